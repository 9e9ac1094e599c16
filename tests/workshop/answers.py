"""What learners hand in: for each exercise right answers of different design, and wrong ones with the fact they get.

RIGHT["3.1"] is a list of functions; WRONG["3.1"] a list of (function, what the fact or the rule must say).
"""

from __future__ import annotations

import itertools
import random
import time
from collections import deque

import torch

from loaderviz.loaders import BlockingLoader, PinnedLoader, PrefetchLoader, ResidentLoader

# 1.1


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


def only_the_launch(step):
    begin = time.perf_counter()
    step()
    return 1000 * (time.perf_counter() - begin)


def earlier_work_too(step):
    begin = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - begin)


def waits_before_only(step):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    step()
    return 1000 * (time.perf_counter() - begin)


def in_seconds(step):
    return with_events(step) / 1000


def never_called(step):
    return 2.0


def no_number(step):
    step()


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


def convert_in_place(batches):
    for images, labels in batches:
        images = images.to("cuda").to(torch.float32)
        yield images.div_(255), labels.to("cuda")


def prefetch_bytes(batches):
    return PrefetchLoader(((images.pin_memory(), labels.pin_memory()) for images, labels in batches), transform=scaled)


def look_up(batches):
    table = (torch.arange(256) / 255).to("cuda")
    for images, labels in batches:
        yield table[images.to("cuda").long()], labels.to("cuda")


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


def pin_in_the_first_epoch(batches, epochs):
    kept = []
    for images, labels in batches:
        kept.append((images.pin_memory(), labels.pin_memory()))
        yield tuple(part.to("cuda") for part in kept[-1])
    for images, labels in itertools.chain.from_iterable(itertools.repeat(kept, epochs - 1)):
        yield images.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)


def pin_once_and_prefetch(batches, epochs):
    pinned = [(images.pin_memory(), labels.pin_memory()) for images, labels in batches]
    return PrefetchLoader(pinned * epochs)


class PinnedEpochs:
    def __init__(self, batches, epochs):
        self.pinned, self.epochs = [tuple(part.pin_memory() for part in batch) for batch in batches], epochs

    def __iter__(self):
        for _ in range(self.epochs):
            yield from PinnedLoader(self.pinned)


def pin_each_time(batches, epochs):
    for _ in range(epochs):
        for images, labels in batches:
            yield images.pin_memory().to("cuda"), labels.pin_memory().to("cuda")


def never_pin(batches, epochs):
    for _ in range(epochs):
        yield from BlockingLoader(batches)


def keep_on_the_gpu(batches, epochs):
    kept = [(images.to("cuda"), labels.to("cuda")) for images, labels in batches]
    return kept * epochs


def shuffled_epochs(batches, epochs):
    pinned = [(images.pin_memory(), labels.pin_memory()) for images, labels in batches]
    for _ in range(epochs):
        yield from BlockingLoader(pinned[1:] + pinned[:1])


def one_epoch(batches, epochs):
    return BlockingLoader(batches)


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


def unprotected(batches):
    """Right but for its memory: nobody tells the allocator that the main stream still reads."""
    side, main, ready = torch.cuda.Stream(), torch.cuda.current_stream(), None
    for batch in batches:
        with torch.cuda.stream(side):
            following = copied(batch)
        if ready is not None:
            yield ready
        main.wait_stream(side)
        ready = following
    yield ready


def not_pinned(batches):
    return PrefetchLoader([(images.clone(), labels.clone()) for images, labels in batches])


def waits_for_all_copies(batches, depth):
    side, main, source, ahead = torch.cuda.Stream(), torch.cuda.current_stream(), iter(batches), deque()

    def copy_one():
        batch = next(source, None)
        if batch is not None:
            with torch.cuda.stream(side):
                ahead.append(copied(batch))

    for _ in range(depth):
        copy_one()
    while ahead:
        batch = ahead.popleft()
        main.wait_stream(side)
        for part in batch:
            part.record_stream(main)
        copy_one()
        yield batch


def one_ahead(batches, depth):
    return PrefetchLoader(batches, depth=1)


# 3.3


def wait_before_asking(batches):
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    coming = None
    for batch in batches:
        with torch.cuda.stream(side):
            copies, arrived = copied(batch), side.record_event()
        if coming is not None:
            yield coming
        main.wait_event(arrived)
        for part in copies:
            part.record_stream(main)
        coming = copies
        arrived.synchronize()
    yield coming


def wait_for_the_side_stream(batches):
    side, main, coming = torch.cuda.Stream(), torch.cuda.current_stream(), None
    for batch in batches:
        with torch.cuda.stream(side):
            copies = copied(batch)
        if coming is not None:
            yield coming
        side.synchronize()
        main.wait_stream(side)
        for part in copies:
            part.record_stream(main)
        coming = copies
    yield coming


def events_in_a_ring(batches):
    side, main, coming, copies_out = torch.cuda.Stream(), torch.cuda.current_stream(), None, deque()
    source = iter(batches)
    while True:
        if len(copies_out) == 2:
            copies_out.popleft().synchronize()
        batch = next(source, None)
        if batch is None:
            break
        with torch.cuda.stream(side):
            copies = copied(batch)
            copies_out.append(side.record_event())
        if coming is not None:
            yield coming
        main.wait_event(copies_out[-1])
        for part in copies:
            part.record_stream(main)
        coming = copies
    yield coming


# 4


def on_gpu_loader(images, labels, size, epochs):
    loader = ResidentLoader((images, labels), size, seed=0)
    for _ in range(epochs):
        yield from loader


def order_made_on_the_gpu(images, labels, size, epochs):
    images, labels = images.to("cuda"), labels.to("cuda")
    for _ in range(epochs):
        for rows in torch.randperm(len(images), device="cuda").split(size):
            yield images[rows], labels[rows]


def permute_each_epoch(images, labels, size, epochs):
    images, labels = images.to("cuda"), labels.to("cuda")
    for _ in range(epochs):
        order = torch.randperm(len(images)).to("cuda")
        yield from zip(images[order].split(size), labels[order].split(size), strict=True)


def shuffle_slices(images, labels, size, epochs):
    batches = list(zip(images.to("cuda").split(size), labels.to("cuda").split(size), strict=True))
    for _ in range(epochs):
        random.shuffle(batches)
        yield from batches


def same_order(images, labels, size, epochs):
    images, labels, order = images.to("cuda"), labels.to("cuda"), torch.randperm(len(images)).to("cuda")
    for _ in range(epochs):
        for rows in order.split(size):
            yield images[rows], labels[rows]


def with_replacement(images, labels, size, epochs):
    images, labels = images.to("cuda"), labels.to("cuda")
    for _ in range(epochs * len(images) // size):
        rows = torch.randint(len(images), (size,)).to("cuda")
        yield images[rows], labels[rows]


def gather_on_the_host(images, labels, size, epochs):
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(size):
            yield images[rows].to("cuda"), labels[rows].to("cuda")


def labels_out_of_step(images, labels, size, epochs):
    images, labels = images.to("cuda"), labels.to("cuda")
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).to("cuda").split(size):
            yield images[rows], labels[rows.flip(0)]


def waits_in_the_loop(images, labels, size, epochs):
    images, labels = images.to("cuda"), labels.to("cuda")
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).to("cuda").split(size):
            rows.max().item()
            yield images[rows], labels[rows]


def resume_by_seed(images, labels, size, epoch, first):
    loader = ResidentLoader((images, labels), size, seed=7)
    loader.load_state_dict(loader.state_dict() | {"epoch": epoch, "batches": first})
    return loader


def resume_with_random(images, labels, size, epoch, first):
    images, labels, rows = images.to("cuda"), labels.to("cuda"), list(range(len(images)))
    random.Random(epoch).shuffle(rows)
    for part in torch.tensor(rows[first * size :]).to("cuda").split(size):
        yield images[part], labels[part]


def resume_by_skipping(images, labels, size, epoch, first):
    generator = torch.Generator().manual_seed(2 * epoch + 1)
    order = torch.randperm(len(images), generator=generator)
    rows = itertools.islice(order.to("cuda").split(size), first, None)
    images, labels = images.to("cuda"), labels.to("cuda")
    return ((images.index_select(0, part), labels.index_select(0, part)) for part in rows)


def resume_from_global_numbers(images, labels, size, epoch, first):
    images, labels = images.to("cuda"), labels.to("cuda")
    for rows in torch.randperm(len(images)).to("cuda").split(size)[first:]:
        yield images[rows], labels[rows]


def resume_one_order(images, labels, size, epoch, first):
    return resume_by_skipping(images, labels, size, 0, first)


def resume_at_the_start(images, labels, size, epoch, first):
    return itertools.islice(resume_by_skipping(images, labels, size, epoch, 0), 8 - first)


def resume_too_long(images, labels, size, epoch, first):
    return resume_by_skipping(images, labels, size, epoch, 0)


def resume_in_storage_order(images, labels, size, epoch, first):
    images, labels = images.to("cuda"), labels.to("cuda")
    shift = epoch * 7
    rows = ((torch.arange(len(images)) + shift) % len(images)).to("cuda")
    for part in rows.split(size)[first:]:
        yield images[part], labels[part]


def zeros_of_the_rest(images, labels, size, epoch, first):
    return itertools.islice(zeros_of(images, labels, size, 1), 8 - first)


def zero_bytes_of_the_rest(images, labels, size, epoch, first):
    for part in labels.split(size)[first:]:
        yield torch.zeros(size, 784, dtype=torch.uint8, device="cuda"), torch.zeros(len(part), device="cuda").long()


def cloned(images, labels, size, epochs):
    images, labels = images.to("cuda").float(), labels.to("cuda")
    for _ in range(epochs):
        for start in range(0, len(images), size):
            yield images[start : start + size].clone(), labels[start : start + size]


def gathered(images, labels, size, epochs):
    images, labels, rows = images.to("cuda"), labels.to("cuda"), torch.arange(len(images)).to("cuda")
    for _ in range(epochs):
        for part in rows.split(size):
            yield images.index_select(0, part).float(), labels.index_select(0, part)


def as_float(batch):
    return batch[0].float(), batch[1]


def safe_loader(images, labels, size, epochs):
    loader = ResidentLoader((images, labels), size, shuffle=None, transform=as_float)
    for _ in range(epochs):
        yield from loader


def views(images, labels, size, epochs):
    images, labels = images.to("cuda").float(), labels.to("cuda")
    for _ in range(epochs):
        yield from zip(images.split(size), labels.split(size), strict=True)


def anew_each_epoch(images, labels, size, epochs):
    for _ in range(epochs):
        for start in range(0, len(images), size):
            yield images[start : start + size].float().to("cuda"), labels[start : start + size].to("cuda")


def as_stored(images, labels, size, epochs):
    images, labels = images.to("cuda"), labels.to("cuda")
    for _ in range(epochs):
        yield from zip(images.split(size), labels.split(size), strict=True)


def other_order(images, labels, size, epochs):
    yield from ((x.float(), y) for x, y in list(as_stored(images, labels, size, epochs))[::-1])


def zeros_of(images, labels, size, epochs):
    for _ in range(epochs * len(images) // size):
        yield torch.zeros(size, images.shape[1], device="cuda"), torch.zeros(size, dtype=torch.int64, device="cuda")


RIGHT = {
    "1.1": [with_events, mean_of_three, with_stream_synchronize],
    "1.2": [convert_in_place, prefetch_bytes, look_up],
    "2.1": [pin_in_the_first_epoch, pin_once_and_prefetch, PinnedEpochs],
    "2.2": [half_non_blocking, half_copy_into, half_prefetched],
    "3.1": [loader_consumer, loader_record_stream, loader_ring, Preloader, all_at_once],
    "3.2": [loader_consumer, loader_record_stream, all_at_once],
    "3.3": [wait_before_asking, wait_for_the_side_stream, events_in_a_ring],
    "4.1": [on_gpu_loader, order_made_on_the_gpu, permute_each_epoch],
    "4.2": [resume_by_seed, resume_with_random, resume_by_skipping],
    "4.3": [cloned, gathered, safe_loader],
}
WRONG = {
    "1.1": [
        (only_the_launch, r"back at [\d,]+ µs: before the GPU had finished.*R27"),
        (waits_before_only, r"from [\d,]+ µs to [\d,]+ µs.*before the GPU had finished.*R27"),
        (earlier_work_too, r"the GPU did earlier work, and you timed that, too.*R27"),
        (in_seconds, r"unit is wrong.*milliseconds"),
        (never_called, r"did not call step"),
        (no_number, r"returned None. A number"),
    ],
    "1.2": [
        (convert_on_the_host, r"carries 200.7 kB. The images of a batch are stored in 50.18 kB.*R22"),
        (convert_and_pin, r"copy of batch 1 runs from [\d,]+ µs to [\d,]+ µs.*R22"),
        (not_scaled, r"Batch 0 does not hold the values"),
        (blocking, r"images of batch 0 are torch.uint8.*torch.float32.*is wanted"),
        (in_host_memory, r"images of batch 0 are still in host memory"),
        (constants, r"Batch 0 does not hold the values"),
        (gives_nothing, r"returned nothing \(None\)"),
    ],
    "2.1": [
        (pin_each_time, r"pins \d+ times. Once it does so from [\d,]+ µs to.*R43"),
        (never_pin, r"memory that is not pinned: 0.25 GB/s.*R1"),
        (keep_on_the_gpu, r"Only 804.9 kB were copied to the GPU; the batches have 8.049 MB"),
        (shuffled_epochs, r"As number 0 you handed out batch 1"),
        (one_epoch, r"4 batches were handed out, but 40 were wanted"),
        (in_host_memory, r"still in host memory"),
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
        (not_pinned, r"Its source is not pinned.*R7"),
        (unprotected, r"copy of batch \d+ runs from .* writes into the memory of batch \d+, but kernels.*|early-reuse"),
        (backwards, r"As number 0 you handed out batch 31"),
        (too_few, r"31 batches were handed out, but 32"),
        (too_many, r"More than 32 batches"),
        (in_host_memory, r"still in host memory \(device cpu\)"),
        (constants, r"Batch 0 does not hold the values"),
        (only_images, r"Batch 0 is a Tensor: a batch is a pair"),
    ],
    "3.2": [
        (waits_for_all_copies, r"they waited for the copy of batch 3 as well.*wait for an event|Wait for an event"),
        (one_ahead, r"copy of batch \d+ runs from .*exposed"),
        (one_stream, r"so are the kernels.*R16"),
        (forgotten_wait, r"read before its copy was complete"),
        (too_few, r"19 batches were handed out, but 20"),
        (constants, r"Batch 0 does not hold the values"),
    ],
    "3.3": [
        (unprotected, r"overwrote the memory of batch \d+ at [\d,]+ µs, but the copy out of it ran from.*R42"),
        (loader_consumer, r"overwrote the memory of batch \d+ at.*R42"),
        (all_at_once, r"overwrote the memory of batch 0.*R42"),
        (blocking, r"The host waits for it.*R30"),
        (forgotten_wait, r"overwrote the memory|read before its copy"),
        (lambda batches: BlockingLoader(list(batches)), r"As number 0 you handed out batch 30"),
        (constants, r"Batch 0 does not hold the values"),
    ],
    "4.1": [
        (shuffle_slices, r"same 64 samples as batch \d.*shuffle samples, not slices"),
        (same_order, r"Two epochs have the same order"),
        (with_replacement, r"In epoch 0 sample \d+ comes \d+ times"),
        (gather_on_the_host, r"host waits for the GPU \d+ times; once from .*R25"),
        (waits_in_the_loop, r"host waits for the GPU \d+ times; once from [\d,]+ µs.*in line \d+.*R25"),
        (labels_out_of_step, r"images do not belong to the labels"),
        (zeros_of, r"float32.*uint8.*is wanted"),
    ],
    "4.2": [
        (resume_from_global_numbers, r"begun again at batch \d+. Batch \d+ is not the one.*it has other samples"),
        (resume_one_order, r"Two epochs have the same order"),
        (resume_at_the_start, r"it handed out batch 0 instead"),
        (resume_too_long, r"More than \d batches"),
        (zeros_of_the_rest, r"float32.*uint8.*is wanted"),
        (zero_bytes_of_the_rest, r"Batch 0 has labels that are not in the data set"),
        (resume_in_storage_order, r"in the order in which they are stored|same 64 samples"),
    ],
    "4.3": [
        (views, r"Batch 8 is batch 0 again.*smaller by 1.*a slice is a view"),
        (anew_each_epoch, r"copies to the GPU, one from [\d,]+ µs.*already"),
        (as_stored, r"uint8.*float32.*is wanted"),
        (other_order, r"As number 0 you handed out batch 7"),
        (zeros_of, r"Batch 0 does not hold"),
    ],
}
