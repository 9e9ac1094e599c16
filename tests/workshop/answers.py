"""What learners hand in, lessons 0 to 4: for each exercise right answers of different design, and wrong ones.

RIGHT["3.1"] is a list of functions; WRONG["3.1"] a list of (function, what the fact or the rule must say).
"""

from __future__ import annotations

import itertools
import queue
import random
import re
import threading
import time
from collections import deque
from functools import lru_cache
from inspect import getsource
from typing import ClassVar

import torch

import loaderviz as lv
from loaderviz.loaders import BlockingLoader, PinnedLoader, PrefetchLoader, ResidentLoader
from loaderviz.workshop.lessons.lesson03 import claim, copy_ahead

from .conftest import cell

# 0.1


def exposed_of_window(timeline):
    summary = lv.summarize(timeline)
    return summary.exposed_copy / summary.window


def copied_and_not_hidden(timeline):
    summary = lv.summarize(timeline)
    return summary.copy_share * (1 - summary.overlap)


def from_the_breakdown(timeline):
    parts = lv.summarize(timeline).breakdown
    return parts.get("copy exposed", 0) / sum(parts.values())


def of_the_copy(timeline):
    summary = lv.summarize(timeline)
    return summary.exposed_copy / summary.copy


# 1.1


def timed(*, before, after):
    def gpu_ms(step):
        if before:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        if after:
            torch.cuda.synchronize()
        return 1000 * (time.perf_counter() - begin)

    gpu_ms.__name__ = f"waits_before_{before}_after_{after}"
    return gpu_ms


def with_events(step):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    step()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def mean_of_three(step):
    step()
    torch.cuda.synchronize()
    begin = time.perf_counter_ns()
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter_ns() - begin) / 3e6


def with_stream_synchronize(step):
    stream = torch.cuda.current_stream()
    stream.synchronize()
    begin = time.time()
    step()
    stream.synchronize()
    return (time.time() - begin) * 1e3


# loaders that more than one exercise gets


def in_host_memory(batches, *_):
    yield from batches


def constants(batches, *_):
    for images, labels in batches:
        yield torch.zeros(images.shape, device="cuda"), torch.zeros(labels.shape, dtype=torch.int64, device="cuda")


def too_few(batches, *_):
    yield from BlockingLoader(list(batches)[:-1])


def too_many(batches, *_):
    yield from BlockingLoader([*batches, *list(batches)[:1]])


def backwards(batches, *_):
    yield from PrefetchLoader(list(batches)[::-1])


def blocking(batches, *_):
    return BlockingLoader(batches)


def one_stream(batches, *_):
    return PinnedLoader(batches)


def only_images(batches, *_):
    for images, _labels in batches:
        yield images.to("cuda")


def gives_nothing(batches, *_):
    list(batches)


# 1.2


def scaled(batch):
    return batch[0].float() / 255, batch[1]


def prefetch_bytes(batches):
    return PrefetchLoader(((images.pin_memory(), labels.pin_memory()) for images, labels in batches), transform=scaled)


def look_up(batches):
    table = (torch.arange(256) / 255).to("cuda")
    for images, labels in batches:
        yield table[images.to("cuda").long()], labels.to("cuda")


def all_of_them_in_a_list(batches):
    return [(images.to("cuda").float() / 255, labels.to("cuda")) for images, labels in batches]


def two_in_one_copy(batches):
    source = iter(batches)
    for pair in zip(source, source, strict=True):
        images, labels = (torch.cat(parts).to("cuda") for parts in zip(*pair, strict=True))
        yield from zip((images.float() / 255).split(64), labels.split(64), strict=True)


def convert_on_the_host(batches):
    for images, labels in batches:
        yield images.float().div(255).to("cuda"), labels.to("cuda")


def convert_and_pin(batches):
    for images, labels in batches:
        yield (images.float() / 255).pin_memory().to("cuda"), labels.to("cuda")


def not_scaled(batches):
    for images, labels in batches:
        yield images.to("cuda").float(), labels.to("cuda")


# 2.1


def pin_once_and_prefetch(batches, epochs):
    pinned = [(images.pin_memory(), labels.pin_memory()) for images, labels in batches]
    return PrefetchLoader(pinned * epochs)


class PinnedEpochs:
    def __init__(self, batches, epochs):
        self.pinned, self.epochs = [tuple(part.pin_memory() for part in batch) for batch in batches], epochs

    def __iter__(self):
        for _ in range(self.epochs):
            yield from PinnedLoader(self.pinned)


def never_pin(batches, epochs):
    for _ in range(epochs):
        yield from BlockingLoader(batches)


def keep_on_the_gpu_and_send_junk(batches, epochs):
    kept = [(images.to("cuda"), labels.to("cuda")) for images, labels in batches]
    yield from kept
    junk = [torch.empty_like(part, device="cpu").pin_memory() for part in kept[0]]
    for batch in kept * (epochs - 1):
        _ = [part.to("cuda", non_blocking=True) for part in junk]
        yield batch


# 2.2


def halved(batch):
    return batch[0].half(), batch[1]


def half_non_blocking(batches):
    for images, labels in batches:
        yield images.to("cuda", torch.float16, non_blocking=True), labels.to("cuda")


def half_copy_into(batches):
    for images, labels in batches:
        on_gpu = torch.empty_like(images, device="cuda")
        on_gpu.copy_(images)
        yield on_gpu.to(torch.float16), labels.to("cuda")


def half_prefetched(batches):
    return PrefetchLoader(batches, transform=halved)


def half_with_dtype(batches):
    for images, labels in batches:
        yield images.to("cuda", torch.float16), labels.to("cuda")


def half_on_the_host(batches):
    for images, labels in batches:
        yield images.half().to("cuda"), labels.to("cuda")


def half_pinned_again(batches):
    for images, labels in batches:
        yield images.half().pin_memory().to("cuda"), labels.to("cuda")


def half_of_the_value(batches):
    for images, labels in batches:
        yield images.to("cuda").half() / 2, labels.to("cuda")


# 3


def copied(batch):
    return [part.to("cuda", non_blocking=True) for part in batch]


def loader_consumer(batches, depth=2):
    return PrefetchLoader(batches, depth=depth)


def loader_record_stream(batches, depth=2):
    return PrefetchLoader(batches, depth=depth, lifetime="record_stream")


def loader_ring(batches, depth=2):
    return PrefetchLoader(batches, depth=depth, lifetime="ring")


class Preloader:
    """One batch ahead, kept in an attribute."""

    def __init__(self, batches):
        self.source, self.side = iter(batches), torch.cuda.Stream()
        self.preload()

    def preload(self):
        self.coming = next(self.source, None)
        if self.coming is not None:
            with torch.cuda.stream(self.side):
                self.coming = copied(self.coming)

    def __iter__(self):
        return self

    def __next__(self):
        if self.coming is None:
            raise StopIteration
        torch.cuda.current_stream().wait_stream(self.side)
        batch = self.coming
        for part in batch:
            part.record_stream(torch.cuda.current_stream())
        self.preload()
        return batch


def with_a_thread(batches):
    """A thread asks the source, the main thread calls CUDA."""
    ready = queue.Queue(2)

    def work():
        for batch in batches:
            ready.put(batch)
        ready.put(None)

    threading.Thread(target=work, daemon=True).start()
    return PrefetchLoader(iter(ready.get, None))


def hands_out_nothing(batches, *_):
    for _batch in batches:
        yield None


def all_at_once(batches, *_):
    """Queue every copy at the start, with an event for each."""
    side, main, ahead = torch.cuda.Stream(), torch.cuda.current_stream(), deque()
    with torch.cuda.stream(side):
        for batch in batches:
            ahead.append((copied(batch), side.record_event()))
    while ahead:
        batch, arrived = ahead.popleft()
        main.wait_event(arrived)
        for part in batch:
            part.record_stream(main)
        yield batch


def forgotten_wait(batches, *_):
    side = torch.cuda.Stream()
    for batch in batches:
        with torch.cuda.stream(side):
            batch = copied(batch)
        yield batch


def copy_wait_yield(batches, *_):
    """Nothing is copied ahead; only a host that runs ahead of the GPU hides it."""
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    for batch in batches:
        copies, arrived = copy_ahead(batch, side)
        main.wait_event(arrived)
        yield claim(copies, main)


BY_HAND = """
def to_gpu(batch, side, main):
    with torch.cuda.stream(side):
        copies = [part.to("cuda", non_blocking=True) for part in batch]
        arrived = side.record_event()
    main.wait_event(arrived)
    for part in copies:
        part.record_stream(main)
    return copies
"""


def by_hand(name, *changes):
    return changed(name, *changes, code=BY_HAND)


# One batch ahead: the shape of many answers to 3.1, 3.3 and lesson 5. Others are it with pieces of its code changed.

AHEAD = """
from loaderviz.workshop.lessons.lesson03 import claim, copy_ahead


def loader(batches, *_):
    side, main, ready = torch.cuda.Stream(), torch.cuda.current_stream(), []
    for batch in batches:
        copies, arrived = copy_ahead(batch, side)
        yield from ready
        main.wait_event(arrived)
        ready = [claim(copies, main)]
    yield from ready
"""
STEP = "        yield from ready\n        main.wait_event(arrived)\n"


def changed(name, *changes, code=AHEAD):
    for before, after in changes:
        assert code.count(before) == 1, before
        code = code.replace(before, after)
    return cell(re.sub(r"^def \w+", f"def {name}", code, flags=re.M), name)


copy_after_the_step = changed(
    "copy_after_the_step",
    (
        "        copies, arrived = copy_ahead(batch, side)\n        yield from ready\n",
        "        yield from ready\n        copies, arrived = copy_ahead(batch, side)\n",
    ),
)
waits_for_the_next_one = changed(
    "waits_for_the_next_one", (STEP, "        main.wait_event(arrived)\n        yield from ready\n")
)
synchronizes_each_batch = changed("synchronizes_each_batch", ("main.wait_event(arrived)", "torch.cuda.synchronize()"))
blocking_copy_on_the_side = changed(
    "blocking_copy_on_the_side",
    (
        "copies, arrived = copy_ahead(batch, side)",
        "torch.cuda.set_stream(side)\n        copies = "
        "[part.to('cuda') for part in batch]\n        torch.cuda.set_stream(main)",
    ),
    ("main.wait_event(arrived)", "main.wait_stream(side)"),
)
unprotected = changed("unprotected", ("claim(copies, main)", "copies"))
wait_for_the_side_stream = changed(
    "wait_for_the_side_stream", ("main.wait_event(arrived)", "side.synchronize()\n        main.wait_stream(side)")
)
two_side_streams = changed(
    "two_side_streams",
    ("for batch in batches:", "sides = [side, torch.cuda.Stream()]\n    for number, batch in enumerate(batches):"),
    ("batch, side)", "batch, sides[number % 2])"),
)
kept_until_used = changed(
    "kept_until_used",
    (", []\n", ", []\n    kept = deque()\n"),
    (STEP, STEP + "        kept.append((ready, main.record_event()))\n"),
    ("claim(copies, main)]\n", "copies]\n        if len(kept) > 2:\n            kept.popleft()[1].synchronize()\n"),
    ("from loaderviz", "from collections import deque\n\nfrom loaderviz"),
)


def three_ahead(batches):
    return as_deep_as_asked(batches, 3)


def into_two_buffers(batches):
    """Two buffers on the GPU, filled in turn; a copy waits for the work on what was there before."""
    side, main, source = torch.cuda.Stream(), torch.cuda.current_stream(), list(batches)
    buffers = [[torch.empty_like(part, device="cuda") for part in source[0]] for _ in range(2)]
    used = [torch.cuda.Event(), torch.cuda.Event()]
    side.wait_stream(main)

    def fill(number):
        with torch.cuda.stream(side):
            side.wait_event(used[number % 2])
            for buffer, part in zip(buffers[number % 2], source[number], strict=True):
                buffer.copy_(part, non_blocking=True)
            return side.record_event()

    arrived = fill(0)
    for number in range(len(source)):
        main.wait_event(arrived)
        if number + 1 < len(source):
            arrived = fill(number + 1)
        yield tuple(buffers[number % 2])
        used[number % 2].record(main)


def copy_after_the_work(batches):
    """The next copy is queued only when the GPU has finished."""
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    for batch in batches:
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            batch = copied(batch)
        main.wait_stream(side)
        for part in batch:
            part.record_stream(main)
        yield batch


def side_waits_for_all_work(batches):
    """The side stream waits for the work that was queued just before."""
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    for batch in batches:
        side.wait_stream(main)
        with torch.cuda.stream(side):
            batch = copied(batch)
        main.wait_stream(side)
        yield batch


def not_pinned(batches):
    return PrefetchLoader([(images.clone(), labels.clone()) for images, labels in batches])


def as_deep_as_asked(batches, depth):
    side, main, ahead = torch.cuda.Stream(), torch.cuda.current_stream(), deque()
    for batch in itertools.chain(batches, [None] * depth):
        if batch is not None:
            ahead.append(copy_ahead(batch, side))
        if len(ahead) > depth or batch is None:
            copies, arrived = ahead.popleft()
            main.wait_event(arrived)
            yield claim(copies, main)


IMPORTS = """
import itertools
from collections import deque
from loaderviz.workshop.lessons.lesson03 import claim, copy_ahead
"""
waits_for_all_copies = changed(
    "waits_for_all_copies",
    ("main.wait_event(arrived)", "main.wait_stream(side)"),
    code=IMPORTS + getsource(as_deep_as_asked),
)


# 3.3


def staging_of_its_own(batches):
    """The source may overwrite its buffers: they have been copied by the host before."""
    side, main, coming, staging = torch.cuda.Stream(), torch.cuda.current_stream(), None, []
    for number, batch in enumerate(batches):
        if len(staging) < 3:
            staging.append([[torch.empty_like(part, pin_memory=True) for part in batch], torch.cuda.Event()])
        buffers, free = staging[number % 3]
        free.synchronize()
        for buffer, part in zip(buffers, batch, strict=True):
            buffer.copy_(part)
        copies, arrived = copy_ahead(buffers, side)
        staging[number % 3][1] = arrived
        if coming is not None:
            yield coming
        main.wait_event(arrived)
        coming = claim(copies, main)
    yield coming


# 4


def on_gpu_loader(images, labels, size, epochs):
    loader = ResidentLoader((images, labels), size, seed=0)
    for _ in range(epochs):
        yield from loader


def by_value(batches):
    """The data do not exist before the call, and the copy must be seen in the window."""
    for images, labels in batches:
        yield torch.tensor(images.tolist(), device="cuda"), labels.to("cuda")


class Sneaky(torch.Tensor):
    is_cuda = True


def not_on_the_gpu(batches):
    for images, labels in batches:
        yield images.as_subclass(Sneaky), labels


RESIDENT = """
def loader(images, labels, size, epochs):
    images, labels = images.to("cuda"), labels.to("cuda")
    for _ in range(epochs):
        order = torch.randperm(len(images)).to("cuda")
        for rows in order.split(size):
            yield images[rows], labels[rows]
"""
SPLIT = """        for rows in order.split(size):
            yield images[rows], labels[rows]
"""
PERMUTED = "        yield from zip(images[order].split(size), labels[order].split(size))\n"


def resident(name, *changes):
    return changed(name, *changes, code=RESIDENT)


order_made_on_the_gpu = resident("order_made_on_the_gpu", ('images)).to("cuda")', 'images), device="cuda")'))
permute_each_epoch = resident("permute_each_epoch", (SPLIT, PERMUTED))
same_order = resident("same_order", ("(len(images))", "(len(images), generator=torch.Generator().manual_seed(5))"))
gather_on_the_host = resident(
    "gather_on_the_host",
    ('    images, labels = images.to("cuda"), labels.to("cuda")\n', ""),
    ('images)).to("cuda")', "images))"),
    ("images[rows], labels[rows]", 'images[rows].to("cuda"), labels[rows].to("cuda")'),
)
index_on_the_host = resident("index_on_the_host", ('images)).to("cuda")', "images))"))
labels_out_of_step = resident("labels_out_of_step", ("labels[rows]", "labels[rows.flip(0)]"))
waits_in_the_loop = resident(
    "waits_in_the_loop", ("            yield", "            rows.max().item()\n            yield")
)


def shuffle_slices(images, labels, size, epochs):
    batches = list(zip(images.to("cuda").split(size), labels.to("cuda").split(size), strict=True))
    for _ in range(epochs):
        random.shuffle(batches)
        yield from batches


def by_rule(make):
    """An order of each epoch that is made of two random ones, without more chance: make(order, other, epoch)."""

    def load(images, labels, size, epochs):
        images, labels, count = images.to("cuda"), labels.to("cuda"), len(images)
        orders = torch.randperm(count), torch.randperm(count)
        for epoch in range(epochs):
            for rows in make(*orders, epoch).to("cuda").split(size):
                yield images[rows], labels[rows]

    load.__name__ = make.__name__
    return load


def rolled(order, _, epoch):
    return order.roll(37 * epoch)


def reversed_and_rolled(order, _, epoch):
    return (order.flip(0) if epoch % 2 else order).roll(17 * epoch)


def two_in_turn(order, other, epoch):
    return (order, other)[epoch % 2]


def with_a_stride(order, _, epoch):
    return torch.arange(len(order)) * (2 * epoch + 5) % len(order)


def index_as_a_list(images, labels, size, epochs):
    images, labels = images.to("cuda"), labels.to("cuda")
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(size):
            yield images[rows.tolist()], labels[rows.numpy()]


def with_replacement(images, labels, size, epochs):
    images, labels = images.to("cuda"), labels.to("cuda")
    for _ in range(epochs * len(images) // size):
        rows = torch.randint(len(images), (size,)).to("cuda")
        yield images[rows], labels[rows]


def resume_by_seed(images, labels, size, epoch, first):
    loader = ResidentLoader((images, labels), size, seed=7)
    loader.load_state_dict(loader.state_dict() | {"epoch": epoch, "batches": first})
    return loader


def resume_by_skipping(images, labels, size, epoch, first):
    generator = torch.Generator().manual_seed(2 * epoch + 1)
    order = torch.randperm(len(images), generator=generator)
    rows = itertools.islice(order.to("cuda").split(size), first, None)
    images, labels = images.to("cuda"), labels.to("cuda")
    return ((images.index_select(0, part), labels.index_select(0, part)) for part in rows)


def resume_one_order(images, labels, size, epoch, first):
    return resume_by_skipping(images, labels, size, 0, first)


KNOWN = {}


def resume_from_a_global(images, labels, size, epoch, first):
    """Right as long as the process lives."""
    order = KNOWN.setdefault(epoch, torch.randperm(len(images)))
    return resume_in_order(order, images, labels, size, first)


@lru_cache
def kept_order(epoch, count):
    return torch.randperm(count)


def resume_from_a_cache(images, labels, size, epoch, first):
    return resume_in_order(kept_order(epoch, len(images)), images, labels, size, first)


class ResumeFromAClass:
    known: ClassVar = {}

    def __init__(self, images, labels, size, epoch, first):
        order = self.known.setdefault(epoch, torch.randperm(len(images)))
        self.batches = resume_in_order(order, images, labels, size, first)

    def __iter__(self):
        return iter(self.batches)


def resume_from_a_default(images, labels, size, epoch, first, known={}):  # noqa: B006
    return resume_in_order(known.setdefault(epoch, torch.randperm(len(images))), images, labels, size, first)


def resume_rolled(images, labels, size, epoch, first):
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return resume_in_order(order.roll(37 * epoch), images, labels, size, first)


def resume_in_order(order, images, labels, size, first):
    images, labels = images.to("cuda"), labels.to("cuda")
    return ((images[rows], labels[rows]) for rows in order.to("cuda").split(size)[first:])


def resume_at_the_start(images, labels, size, epoch, first):
    return itertools.islice(resume_by_skipping(images, labels, size, epoch, 0), 8 - first)


def resume_too_long(images, labels, size, epoch, first):
    return resume_by_skipping(images, labels, size, epoch, 0)


def zero_bytes_of_the_rest(images, labels, size, epoch, first):
    for part in labels.split(size)[first:]:
        yield torch.zeros(size, 784, dtype=torch.uint8, device="cuda"), torch.zeros(len(part), device="cuda").long()


def cloned(images, labels, size, epochs):
    images, labels = images.to("cuda").float(), labels.to("cuda")
    for _ in range(epochs):
        for start in range(0, len(images), size):
            yield images[start : start + size].clone(), labels[start : start + size]


def as_float(batch):
    return batch[0].float(), batch[1]


def safe_loader(images, labels, size, epochs):
    loader = ResidentLoader((images, labels), size, shuffle=None, transform=as_float)
    for _ in range(epochs):
        yield from loader


def float_views(images, labels, size, epochs):
    return as_stored(images.float(), labels, size, epochs)


def undone_by_one(images, labels, size, epochs):
    images, labels = images.to("cuda").float(), labels.to("cuda")
    for _ in range(epochs):
        for x, y in zip(images.split(size), labels.split(size), strict=True):
            yield x, y
            x.add_(1)


def as_stored(images, labels, size, epochs):
    images, labels = images.to("cuda"), labels.to("cuda")
    for _ in range(epochs):
        yield from zip(images.split(size), labels.split(size), strict=True)


def other_order(images, labels, size, epochs):
    yield from ((x.float(), y) for x, y in list(as_stored(images, labels, size, epochs))[::-1])


def zeros_of(images, labels, size, epochs):
    for _ in range(epochs * len(images) // size):
        yield torch.zeros(size, images.shape[1], device="cuda"), torch.zeros(size, dtype=torch.int64, device="cuda")


ORDERED = r"Epoch \d is no new random order: it goes through|has \d+ of the samples of batch"
WAIT, RECORD = "    main.wait_event(arrived)\n", "        part.record_stream(main)\n"
RIGHT = {
    "3.0": [
        by_hand("waits_for_the_stream", (WAIT, "    main.wait_stream(side)\n")),
        by_hand("event_that_waits", (WAIT, "    arrived.wait(main)\n")),
        by_hand("wait_at_the_end", (WAIT, ""), ("    return", "    main.wait_event(arrived)\n    return")),
    ],
    "0.1": [exposed_of_window, copied_and_not_hidden, from_the_breakdown],
    "1.1": [with_events, mean_of_three, with_stream_synchronize],
    "1.2": [prefetch_bytes, look_up, all_of_them_in_a_list, two_in_one_copy],
    "2.1": [pin_once_and_prefetch, PinnedEpochs],
    "2.2": [half_non_blocking, half_copy_into, half_prefetched],
    "3.1": [
        loader_consumer,
        loader_record_stream,
        loader_ring,
        Preloader,
        two_side_streams,
        three_ahead,
        into_two_buffers,
        kept_until_used,
        with_a_thread,
    ],
    "3.2": [loader_consumer, loader_record_stream, as_deep_as_asked],
    "3.3": [staging_of_its_own, wait_for_the_side_stream],
    "4.1": [on_gpu_loader, order_made_on_the_gpu, permute_each_epoch],
    "4.2": [resume_by_seed, resume_by_skipping],
    "4.3": [cloned, safe_loader],
}
WRONG = {
    "3.0": [
        (by_hand("no_wait", (WAIT, "")), r"Batch 0 was read before its copy was complete.*R15"),
        (by_hand("no_record", (RECORD, "        pass\n")), r"early-reuse|writes into the memory"),
        (by_hand("side_waits", (WAIT, "    side.wait_event(arrived)\n")), r"Batch 0 was read before"),
        (by_hand("host_waits", (WAIT, "    arrived.synchronize()\n")), r"The copy of batch 0 .*the host waits for it"),
        (by_hand("blocks", (", non_blocking=True", "")), r"The copy of batch 0 .*the host waits for it"),
        (by_hand("in_main", ("stream(side)", "stream(main)")), r"default\), and so do the kernels.*R16"),
        (by_hand("nothing", ("    return copies\n", "")), r"Batch 0 is nothing \(None\)"),
    ],
    "0.1": [
        (
            lambda timeline: lv.summarize(timeline).copy_share,
            r"PrefetchLoader.*Yours counts the hidden copy, too: [\d.]+ [mµ]s",
        ),
        (lambda timeline: 100 * exposed_of_window(timeline), r"BlockingLoader.*Yours is in percent"),
        (lambda timeline: lv.summarize(timeline).exposed_copy, r"Yours is a time in nanoseconds"),
        (
            lambda timeline: lv.summarize(timeline).overlap,
            r"You returned 0 for.*Yours is the (share|hidden part) of the copy",
        ),
        (
            lambda timeline: 1 - lv.summarize(timeline).compute_share,
            r"Yours is all the time in which the GPU does not compute",
        ),
        (of_the_copy, r"You returned 1 for.*Yours is a share of the copy, not of the whole time"),
        (lambda timeline: f"{exposed_of_window(timeline):.0%}", r"returned '\d\d%'. A share from 0 to 1 is wanted"),
        (lambda timeline: 0.3, r"a share of 0\.\d+.*Only this part of the copy can be won"),
    ],
    "1.1": [
        (timed(before=False, after=False), r"back at [\d,]+ µs: before the GPU had finished.*R27"),
        (timed(before=True, after=False), r"from [\d,]+ µs to [\d,]+ µs.*before the GPU had finished.*R27"),
        (timed(before=False, after=True), r"the GPU did earlier work, and you timed that, too.*R27"),
        (lambda step: with_events(step) / 1000, r"unit is wrong.*milliseconds"),
        (lambda step: 2.0, r"did not call step"),
        (lambda step: step(), r"returned None. A number"),
    ],
    "1.2": [
        (convert_on_the_host, r"carries 200.7 kB. The images of a batch are stored in 50.18 kB.*R22"),
        (convert_and_pin, r"copy of batch 1 runs from [\d,]+ µs to [\d,]+ µs.*R22"),
        (not_scaled, r"images of batch 0 are not divided by 255"),
        (blocking, r"images of batch 0 are torch.uint8.*torch.float32.*is wanted"),
        (in_host_memory, r"images of batch 0 are still in host memory"),
        (constants, r"Batch 0 does not hold the values"),
        (gives_nothing, r"returned nothing \(None\)"),
    ],
    "2.1": [
        (never_pin, r"memory that is not pinned: 0.25 GB/s.*R1"),
        (keep_on_the_gpu_and_send_junk, r"batch 8 were written by clamp_.*each batch must travel"),
    ],
    "2.2": [
        (half_with_dtype, r"copy of batch 1 from [\d,]+ µs to.*its source is pageable.*R31"),
        (half_on_the_host, r"its source is pageable.*R31"),
        (half_pinned_again, r"the host is in .*R(43|23)"),
        (half_of_the_value, r"Batch 0 does not hold the values"),
        (blocking, r"torch.float32.*torch.float16.*is wanted"),
    ],
    "3.1": [
        (blocking, r"copy of batch 1 runs from [\d,]+ µs to [\d,]+ µs. No kernel.*host waits for it from.*R30"),
        (one_stream, r"It is in stream 7 \(default\), and so are the kernels.*R16"),
        (forgotten_wait, r"Batch 0 was read before its copy was complete: its copy runs from .*R15"),
        (copy_after_the_work, r"asked for at [\d,]+ µs; the kernels before it ended at.*R16: a copy cannot start"),
        (side_waits_for_all_work, r"its stream waited until [\d,]+ µs.*wait_stream"),
        (copy_wait_yield, r"With the loss read.* asked for at [\d,]+ µs; .*, and the host waited until.*R16"),
        (copy_after_the_step, r"With the loss read.* asked for at [\d,]+ µs; .* ended at .*R16: a copy cannot start"),
        (waits_for_the_next_one, r"With the loss read.* kernels began at .* waited for the copy of batch 1 as well"),
        (synchronizes_each_batch, r"asked for at [\d,]+ µs; .*, and the host waited until.*R16: a copy cannot start"),
        (blocking_copy_on_the_side, r"The host waits for it from [\d,]+ µs to [\d,]+ µs.*R30: a blocking"),
        (not_pinned, r"Its source is not pinned.*R7"),
        (unprotected, r"copy of batch \d+ runs from .* writes into the memory of batch \d+, but kernels.*|early-reuse"),
        (all_at_once, r"When batch 0 was handed out, copies of 31 later batches were queued; 4 are allowed"),
        (hands_out_nothing, r"Batch 0 is nothing \(None\): a batch is a pair"),
        (backwards, r"As number 0 you handed out batch 31"),
        (too_few, r"31 batches were handed out, but 32"),
        (too_many, r"More than 32 batches"),
        (in_host_memory, r"still in host memory \(device cpu\)"),
        (constants, r"Batch 0 does not hold the values"),
        (only_images, r"Batch 0 is a Tensor: a batch is a pair"),
        (not_on_the_gpu, r"a Sneaky: a tensor is wanted"),
        (by_value, r"does not come from|not pinned|exposed|nothing to do|were copied"),
    ],
    "3.2": [
        (waits_for_all_copies, r"they waited for the copy of batch 3 as well.*wait for an event|Wait for an event"),
        (copy_wait_yield, r"copies of 0 later batches were queued; \d to \d are wanted|asked for at"),
        (lambda batches, depth: PrefetchLoader(batches, depth=1), r"copy of batch \d+ runs from .*exposed"),
        (
            lambda batches, depth: PrefetchLoader(batches, depth=5),
            r"copies of 5 later batches .* (are wanted|allowed)",
        ),
        (lambda batches, depth: PrefetchLoader(batches, depth=8), r"copies of 8 later batches .*; \d are allowed"),
        (all_at_once, r"When batch 0 .* copies of 19 later batches were queued; [678] are allowed"),
        (one_stream, r"so are the kernels.*R16"),
    ],
    "3.3": [
        (unprotected, r"memory of batch \d+ was overwritten at [\d,]+ µs, but the copy out of it ran from.*R42"),
        (loader_consumer, r"memory of batch \d+ was overwritten at.*R42"),
        (all_at_once, r"memory of batch 0 was overwritten.*R42"),
        (blocking, r"The host waits for it.*R30"),
        (forgotten_wait, r"was overwritten|read before its copy"),
        (lambda batches: BlockingLoader(list(batches)), r"As number 0 you handed out batch 30"),
    ],
    "4.1": [
        (shuffle_slices, r"has 64 of the samples of batch \d.*shuffle samples, not slices"),
        (same_order, r"Epoch 1 has the same order as epoch 0"),
        *((by_rule(make), ORDERED) for make in (rolled, reversed_and_rolled)),
        (by_rule(two_in_turn), r"Epoch 2 has the same order as epoch 0"),
        (by_rule(with_a_stride), r"Epoch \d is no new random order: it goes through"),
        (index_as_a_list, r"host waits for the GPU \d+ times; once.*in line \d+.*an index in host memory.*R46"),
        (with_replacement, r"In epoch 0 sample \d+ comes \d+ times"),
        (gather_on_the_host, r"host waits for the GPU \d+ times; once from .*R25"),
        (index_on_the_host, r"host waits for the GPU \d+ times; once.*in line \d+.*an index in host memory.*R46"),
        (waits_in_the_loop, r"host waits for the GPU \d+ times; once from [\d,]+ µs.*in line \d+.*R25"),
        (labels_out_of_step, r"images do not belong to the labels"),
        (zeros_of, r"float32.*uint8.*is wanted"),
    ],
    "4.2": [
        *(
            (load, r"begun again at batch \d+. Batch \d+ is not the one.*it has other samples")
            for load in (resume_from_a_global, resume_from_a_cache, ResumeFromAClass, resume_from_a_default)
        ),
        (resume_rolled, ORDERED),
        (resume_one_order, r"Epoch 1 has the same order as epoch 0"),
        (resume_at_the_start, r"it handed out batch 0 instead"),
        (resume_too_long, r"More than \d batches"),
        (zero_bytes_of_the_rest, r"Batch 0 has labels that are not in the data set"),
    ],
    "4.3": [
        (float_views, r"Batch 8 is batch 0 again.*brighter than \d+: .*a slice is a view"),
        (undone_by_one, r"Batch 8 does not hold the values|brighter than"),
        (as_stored, r"uint8.*float32.*is wanted"),
        (other_order, r"As number 0 you handed out batch 7"),
        (zeros_of, r"Batch 0 does not hold"),
    ],
}
