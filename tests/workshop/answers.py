"""What learners hand in, lessons 0 to 4: for each exercise right answers of different design, and wrong ones.

RIGHT["3.1"] is a list of functions; WRONG["3.1"] a list of (function, what the fact or the rule must say).
"""

from __future__ import annotations

import itertools
import os
import random
import re
import time
from collections import deque
from functools import lru_cache
from typing import ClassVar

import torch
from factory import through_a_thread
from torch.utils.data import DataLoader

import loaderviz as lv
from loaderviz.loaders import BlockingLoader, PinnedLoader, PrefetchLoader, ResidentLoader
from loaderviz.workshop import lesson03
from loaderviz.workshop.lessons.lesson03 import claim, copy_ahead

from .conftest import cell

# 0.1


def its(name):
    """The number of this name, as the share."""
    return lambda timeline: getattr(lv.summarize(timeline), name)


def exposed_of_window(timeline):
    return its("exposed_copy")(timeline) / its("window")(timeline)


def from_the_breakdown(timeline):
    parts = lv.summarize(timeline).breakdown
    return parts.get("copy exposed", 0) / sum(parts.values())


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


def each(change):
    """The loader that hands out change(images, labels) for each batch."""

    def load(batches, *_):
        return (change(images, labels) for images, labels in batches)

    return load


def transformed(change):
    return lambda batches: PrefetchLoader(batches, transform=lambda batch: (change(batch[0]), batch[1]))


hands_out_nothing = each(lambda *_: None)


def copied(batch):
    return [part.to("cuda", non_blocking=True) for part in batch]


def too_many(batches, *_):
    yield from BlockingLoader([*batches, *list(batches)[:1]])


def backwards(batches, *_):
    yield from PrefetchLoader(list(batches)[::-1])


def blocking(batches, *_):
    return BlockingLoader(batches)


def one_stream(batches, *_):
    return PinnedLoader(batches)


def gives_nothing(batches, *_):
    list(batches)


# 3.b, 4.a


def in_side(x, side):
    with torch.cuda.stream(side):
        return x.to("cuda", non_blocking=True)


def slices_that_travel(images, labels, size, epochs):
    for _ in range(epochs):
        yield from ((x.to("cuda"), y.to("cuda")) for x, y in zip(images.split(size), labels.split(size), strict=True))


# 1.2


def look_up(batches):
    table = (torch.arange(256) / 255).to("cuda")
    for images, labels in batches:
        yield table[images.to("cuda").long()], labels.to("cuda")


def two_in_one_copy(batches):
    source = iter(batches)
    for pair in zip(source, source, strict=True):
        images, labels = (torch.cat(parts).to("cuda") for parts in zip(*pair, strict=True))
        yield from zip((images.float() / 255).split(64), labels.split(64), strict=True)


# 2.1


def never_pin(batches, epochs):
    for _ in range(epochs):
        yield from BlockingLoader(batches)


# 2.2


def half_copy_into(batches):
    for images, labels in batches:
        on_gpu = torch.empty_like(images, device="cuda")
        on_gpu.copy_(images)
        yield on_gpu.to(torch.float16), labels.to("cuda")


# 3


def loader_consumer(batches, depth=2):
    return PrefetchLoader(batches, depth=depth)


def loader_record_stream(batches, depth=2):
    return PrefetchLoader(batches, depth=depth, lifetime="record_stream")


def loader_ring(batches, depth=2):
    return PrefetchLoader(batches, depth=depth, lifetime="ring")


def with_a_thread(batches):
    """A thread asks the source, the main thread calls CUDA."""
    return PrefetchLoader(through_a_thread(batches))


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


def by_hand(name, *changes):
    return changed(name, *changes, code=lesson03.by_hand.answer)


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
unprotected = changed("unprotected", ("claim(copies, main)", "copies"))
wait_for_the_side_stream = changed(
    "wait_for_the_side_stream", ("main.wait_event(arrived)", "side.synchronize()\n        main.wait_stream(side)")
)
kept_until_used = changed(
    "kept_until_used",
    (", []\n", ", []\n    kept = deque()\n"),
    (STEP, STEP + "        kept.append((ready, main.record_event()))\n"),
    ("claim(copies, main)]\n", "copies]\n        if len(kept) > 2:\n            kept.popleft()[1].synchronize()\n"),
    ("from loaderviz", "from collections import deque\n\nfrom loaderviz"),
)


# 3.3


# 4


def on_gpu_loader(images, labels, size, epochs):
    loader = ResidentLoader((images, labels), size, seed=0)
    for _ in range(epochs):
        yield from loader


class Sneaky(torch.Tensor):
    is_cuda = True


RESIDENT = """
def loader(images, labels, size, epochs):
    images, labels = images.to("cuda"), labels.to("cuda")
    for _ in range(epochs):
        order = torch.randperm(len(images)).to("cuda")
        for rows in order.split(size):
            yield images[rows], labels[rows]
"""


def resident(name, *changes):
    return changed(name, *changes, code=RESIDENT)


order_made_on_the_gpu = resident("order_made_on_the_gpu", ('images)).to("cuda")', 'images), device="cuda")'))
rolled = resident(
    "rolled",
    ("    for _ in range(epochs):\n", ""),
    ("        order = ", "    order = "),
    ("        for rows", "    for epoch in range(epochs):\n        for rows"),
    ("order.split", "order.roll(37 * epoch).split"),
)
same_order = resident("same_order", ("(len(images))", "(len(images), generator=torch.Generator().manual_seed(5))"))
labels_out_of_step = resident("labels_out_of_step", ("labels[rows]", "labels[rows.flip(0)]"))
waits_in_the_loop = resident(
    "waits_in_the_loop", ("            yield", "            rows.max().item()\n            yield")
)


def shuffle_slices(images, labels, size, epochs):
    batches = list(zip(images.to("cuda").split(size), labels.to("cuda").split(size), strict=True))
    for _ in range(epochs):
        random.shuffle(batches)
        yield from batches


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


DRAWN = random.randrange(2**30)


def resume_by_a_drawn_seed(images, labels, size, epoch, first):
    """Right as long as nobody imports this module anew."""
    return resume_in_order(order_of(DRAWN + epoch, len(images)), images, labels, size, first)


def resume_by_the_process(images, labels, size, epoch, first):
    return resume_in_order(order_of(os.getpid() + epoch, len(images)), images, labels, size, first)


def resume_by_the_clock(images, labels, size, epoch, first):
    return resume_in_order(order_of(int(time.time()) + epoch, len(images)), images, labels, size, first)


def order_of(seed, count):
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def resume_in_order(order, images, labels, size, first):
    images, labels = images.to("cuda"), labels.to("cuda")
    return ((images[rows], labels[rows]) for rows in order.to("cuda").split(size)[first:])


def zero_bytes_of_the_rest(images, labels, size, epoch, first):
    for part in labels.split(size)[first:]:
        yield torch.zeros(size, 784, dtype=torch.uint8, device="cuda"), torch.zeros(len(part), device="cuda").long()


def safe_loader(images, labels, size, epochs):
    loader = ResidentLoader((images, labels), size, shuffle=None, transform=lambda batch: (batch[0].float(), batch[1]))
    for _ in range(epochs):
        yield from loader


def as_stored(images, labels, size, epochs):
    images, labels = images.to("cuda"), labels.to("cuda")
    for _ in range(epochs):
        yield from zip(images.split(size), labels.split(size), strict=True)


def zeros_of(images, labels, size, epochs):
    for _ in range(epochs * len(images) // size):
        yield torch.zeros(size, images.shape[1], device="cuda"), torch.zeros(size, dtype=torch.int64, device="cuda")


ORDERED = r"Epoch 1 is no new random order: it goes through|has \d+ of the samples of batch"
WAIT, RECORD = "    main.wait_event(arrived)\n", "        part.record_stream(main)\n"
RIGHT = {
    "0.a": [lambda: 3],
    "1.a": [lambda step: (step(), torch.cuda.synchronize())],
    "1.b": [lambda x: x.to("cuda").float()],
    "2.a": [lambda x: x.pin_memory().to("cuda")],
    "2.b": [lambda data: DataLoader(data, 64, num_workers=2, pin_memory=True)],
    "3.a": [one_stream],
    "3.b": [in_side],
    "3.c": [loader_consumer, loader_record_stream],
    "4.a": [
        lambda images, labels, size, epochs: (
            [*zip(images.cuda().split(size), labels.cuda().split(size), strict=True)] * epochs
        )
    ],
    "3.0": [
        by_hand("waits_for_the_stream", (WAIT, "    main.wait_stream(side)\n")),
        by_hand("event_that_waits", (WAIT, "    arrived.wait(main)\n")),
        by_hand("wait_at_the_end", (WAIT, ""), ("    return", "    main.wait_event(arrived)\n    return")),
    ],
    "0.1": [
        exposed_of_window,
        lambda timeline: its("copy_share")(timeline) * (1 - its("overlap")(timeline)),
        from_the_breakdown,
    ],
    "1.1": [with_events, mean_of_three, with_stream_synchronize],
    "1.2": [
        transformed(lambda images: images.float() / 255),
        look_up,
        lambda batches: [(images.to("cuda").float() / 255, labels.to("cuda")) for images, labels in batches],
        two_in_one_copy,
    ],
    "2.1": [lambda batches, epochs: PrefetchLoader([(x.pin_memory(), y.pin_memory()) for x, y in batches] * epochs)],
    "2.2": [
        each(lambda x, y: (x.to("cuda", torch.float16, non_blocking=True), y.to("cuda"))),
        half_copy_into,
        transformed(torch.Tensor.half),
    ],
    "3.1": [
        loader_consumer,
        loader_record_stream,
        loader_ring,
        kept_until_used,
        with_a_thread,
    ],
    "3.2": [loader_consumer, loader_record_stream],
    "3.3": [wait_for_the_side_stream],
    "4.1": [on_gpu_loader, order_made_on_the_gpu],
    "4.2": [resume_by_seed, resume_by_skipping],
    "4.3": [safe_loader],
}
WRONG = {
    "0.a": [(lambda: 0, r"Batch 0 is copied from .* The GPU computes nothing in that time")],
    "1.a": [(lambda step: step(), r"back at [\d,]+ µs, but the GPU worked on step.*R27")],
    "1.b": [
        (lambda x: x.float().to("cuda"), r"it carries 200.7 kB. The images of a batch are stored in 50.18 kB.*R22")
    ],
    "2.a": [(lambda x: x.to("cuda"), r"The copy of batch 0 runs from .* It is staged.*R1")],
    "2.b": [(lambda data: DataLoader(data, 64), r"What the loader hands out is not pinned.*R1")],
    "3.a": [(blocking, r"still waits for the images of batch 0, from .*R30")],
    "3.b": [(lambda x, side: x.to("cuda", non_blocking=True), r"default\), and so do the kernels.*R16")],
    "3.c": [(copy_after_the_step, r"With the loss read.* asked for at [\d,]+ µs; .*R16: a copy cannot start")],
    "4.a": [(slices_that_travel, r"MB travelled to the GPU in 3 epochs. The data set has only 405.5 kB")],
    "3.0": [
        (by_hand("no_wait", (WAIT, "")), r"Batch 0 was read before its copy was complete.*R15"),
        (by_hand("no_record", (RECORD, "        pass\n")), r"is written again|writes into the memory"),
        (by_hand("side_waits", (WAIT, "    side.wait_event(arrived)\n")), r"Batch 0 was read before"),
        (by_hand("host_waits", (WAIT, "    arrived.synchronize()\n")), r"The copy of batch 0 .*the host waits for it"),
        (by_hand("blocks", (", non_blocking=True", "")), r"The copy of batch 0 .*the host waits for it"),
        (by_hand("in_main", ("stream(side)", "stream(main)")), r"default\), and so do the kernels.*R16"),
        (by_hand("nothing", ("    return copies\n", "")), r"Batch 0 is nothing \(None\)"),
    ],
    "0.1": [
        (its("copy_share"), r"PrefetchLoader.*Yours counts the hidden copy, too: [\d.]+ [mµ]s"),
        (lambda timeline: 100 * exposed_of_window(timeline), r"BlockingLoader.*Yours is in percent"),
        (its("exposed_copy"), r"Yours is a time in nanoseconds"),
        (its("overlap"), r"You returned 0 for a BlockingLoader. There .* a share of 0.\d+. *Rule"),
        (lambda timeline: 1 - its("compute_share")(timeline), r"is all the time in which the GPU does not compute"),
        (
            lambda timeline: its("exposed_copy")(timeline) / its("copy")(timeline),
            r"You returned 1 for.*Yours is a share of the copy, not of the whole time",
        ),
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
        (
            each(lambda x, y: ((x.float() / 255).pin_memory().cuda(), y.cuda())),
            r"copy of images runs from .*R22",
        ),
        (each(lambda x, y: (x.to("cuda").float(), y.to("cuda"))), r"images of batch 0 are not divided by 255"),
        (blocking, r"images of batch 0 are torch.uint8.*torch.float32.*is wanted"),
        (lambda batches: iter(batches), r"images of batch 0 are still in host memory"),
        (gives_nothing, r"returned nothing \(None\)"),
    ],
    "2.1": [
        (never_pin, r"memory that is not pinned: 0.25 GB/s.*R1"),
    ],
    "2.2": [
        (
            each(lambda x, y: (x.to("cuda", torch.float16), y.cuda())),
            r"copy of batch 1 from .*source is pageable.*R31",
        ),
        (each(lambda x, y: (x.half().to("cuda"), y.to("cuda"))), r"its source is pageable.*R31"),
        (each(lambda x, y: (x.half().pin_memory().to("cuda"), y.to("cuda"))), r"the host is in .*R(43|23)"),
        (each(lambda x, y: (x.to("cuda").half() / 2, y.to("cuda"))), r"Batch 0 does not hold the values"),
        (blocking, r"torch.float32.*torch.float16.*is wanted"),
    ],
    "3.1": [
        (blocking, r"copy of batch 1 runs from [\d,]+ µs to [\d,]+ µs. No kernel.*host waits for it from.*R30"),
        (one_stream, r"It is in stream 7 \(default\), and so are the kernels.*R16"),
        (forgotten_wait, r"Batch 0 was read before its copy was complete: its copy runs from .*R15"),
        (copy_wait_yield, r"With the loss read.* asked for at [\d,]+ µs; .*, and the host waited until.*R16"),
        (copy_after_the_step, r"With the loss read.* asked for at [\d,]+ µs; .* ended at .*R16: a copy cannot start"),
        (waits_for_the_next_one, r"With the loss read.* kernels began at .* waited for the copy of batch 1 as well"),
        (lambda batches: PrefetchLoader([(x.clone(), y.clone()) for x, y in batches]), r"Its source is not pinned.*R7"),
        (
            unprotected,
            r"copy of batch \d+ runs from .* writes into the memory of batch \d+, but kernels.*|is written again",
        ),
        (all_at_once, r"When batch 0 was handed out, copies of 31 later batches were queued; 4 are allowed"),
        (hands_out_nothing, r"Batch 0 is nothing \(None\): a batch is a pair"),
        (backwards, r"As number 0 you handed out batch 31"),
        (too_many, r"More than 32 batches"),
        (
            each(lambda *batch: [torch.zeros_like(part, device="cuda") for part in batch]),
            r"Batch 0 does not hold the values that are wanted: 64 of its 64 images are all zeros",
        ),
        (each(lambda x, y: (x.to("cuda"), y.to("cuda") + 1)), r"Batch 0 does not hold .*: 64 of its 64 labels are oth"),
        (each(lambda x, y: (x.to("cuda") * torch.nan, y.to("cuda"))), r"64 of its 64 images are not a number"),
        (each(lambda x, y: x.to("cuda")), r"Batch 0 is a Tensor: a batch is a pair"),
        (each(lambda x, y: (x.as_subclass(Sneaky), y)), r"a Sneaky: a tensor is wanted"),
        (each(lambda x, y: (torch.tensor(x.tolist()).cuda(), y.cuda())), r"not pinned|exposed|were copied|nothing to"),
    ],
    "3.2": [
        (copy_wait_yield, r"copies of 0 later batches were queued; \d to \d are wanted|asked for at"),
        (lambda batches, depth: PrefetchLoader(batches, depth=1), r"copy of batch \d+ runs from .*exposed"),
        (lambda batches, depth: PrefetchLoader(batches, depth=5), r"of 5 later batches .* (are wanted|allowed)"),
        (lambda batches, depth: PrefetchLoader(batches, depth=8), r"copies of 8 later batches .*; \d are allowed"),
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
        (rolled, ORDERED),
        (
            waits_in_the_loop,
            r"host waits for the GPU \d+ times; one of these waits runs from [\d,]+ µs.*in line \d+.*R25",
        ),
        (labels_out_of_step, r"images do not belong to the labels"),
    ],
    "4.2": [
        *(
            (load, r"begun again at batch \d+. Batch \d+ is not the one.*it has other samples")
            for load in (
                resume_from_a_global,
                resume_from_a_cache,
                ResumeFromAClass,
                resume_from_a_default,
                resume_by_a_drawn_seed,
                resume_by_the_process,
                resume_by_the_clock,
            )
        ),
        (
            lambda images, labels, size, epoch, first: itertools.islice(
                resume_by_skipping(images, labels, size, epoch, 0), 8 - first
            ),
            r"it handed out batch 0 instead",
        ),
        (
            lambda images, labels, size, epoch, first: resume_by_skipping(images, labels, size, epoch, 0),
            r"More than \d batches",
        ),
        (zero_bytes_of_the_rest, r"Batch 0 has labels that are not in the data set"),
    ],
    "4.3": [
        (as_stored, r"uint8.*float32.*is wanted"),
        (
            lambda *data: ((images.float(), labels) for images, labels in list(as_stored(*data))[::-1]),
            r"As number 0 you handed out batch 7",
        ),
        (zeros_of, r"Batch 0 does not hold"),
    ],
}
