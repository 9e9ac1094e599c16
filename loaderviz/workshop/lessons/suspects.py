"""Six prefetchers, A to F. Four of them are wrong; `trial.try_out` shows which.

Each takes batches (images, labels) in pinned host memory (`loader_d`: in pageable memory, which it pins by itself), and
hands them out on the GPU, in order. `loader_f` also divides the images of each batch by their brightest pixel. Each
batch is used in the current stream before the next one is asked for, and then dropped.

They are read in the lesson as a learner's own code would be. So they have no types, and reports name these lines.
"""

from collections import deque

import torch

from loaderviz.workshop.lessons.lesson03 import claim, copy_ahead
from loaderviz.workshop.loop import new_model, steps, train_step

__user_code__ = True  # to the emulator this is a program, not a part of loaderviz


def use(work, images, labels):
    """What the loop does with each batch on the GPU."""
    labels = labels.clone()
    return work(images), labels


def loader_a(batches):
    """One batch ahead. An event says when a batch has arrived."""
    side, main, ready = torch.cuda.Stream(), torch.cuda.current_stream(), []
    for batch in batches:
        with torch.cuda.stream(side):
            copies = [part.to("cuda", non_blocking=True) for part in batch]
            arrived = side.record_event()
            arrived.wait()  # no work on a batch before it has arrived
        yield from ready
        ready = [claim(copies, main)]
    yield from ready


def loader_b(batches):
    """One batch ahead, in three sets of buffers on the GPU, which are made once and overwritten in turn."""
    side, main, ready, buffers = torch.cuda.Stream(), torch.cuda.current_stream(), [], []
    used = [torch.cuda.Event() for _ in range(3)]
    for number, batch in enumerate(batches):
        slot = number % 3
        if number < 3:
            buffers.append([torch.empty_like(part, device="cuda") for part in batch])
            used[slot].record()
        with torch.cuda.stream(side):
            used[slot].wait()
            for buffer, part in zip(buffers[slot], batch, strict=True):
                buffer.copy_(part, non_blocking=True)
            arrived = side.record_event()
        yield from ready
        used[slot - 1].record()
        main.wait_event(arrived)
        ready = [buffers[slot]]
    yield from ready


def loader_c(batches):
    """One batch ahead. Memory that has a reference is not given away, so the last four batches are kept."""
    side, main, ready = torch.cuda.Stream(), torch.cuda.current_stream(), []
    kept = deque(maxlen=4)
    for batch in batches:
        copies, arrived = copy_ahead(batch, side)
        kept.append(copies)
        yield from ready
        main.wait_event(arrived)
        ready = [copies]
    yield from ready


def loader_d(batches):
    """One batch ahead, from pageable memory through one pinned buffer, which an event guards."""
    side, main, ready = torch.cuda.Stream(), torch.cuda.current_stream(), []
    pinned, copied = None, torch.cuda.Event()
    for batch in batches:
        pinned = pinned or [torch.empty_like(part, pin_memory=True) for part in batch]
        side.wait_event(copied)  # nothing goes into the buffer before the copy out of it is over
        for buffer, part in zip(pinned, batch, strict=True):
            buffer.copy_(part)
        with torch.cuda.stream(side):
            copies = [buffer.to("cuda", non_blocking=True) for buffer in pinned]
            copied.record()
        yield from ready
        main.wait_event(copied)
        ready = [claim(copies, main)]
    yield from ready


def loader_e(batches):
    """One batch ahead. No copy begins while work may still read the memory that it writes to."""
    side, main, ready = torch.cuda.Stream(), torch.cuda.current_stream(), []
    for batch in batches:
        yield from ready
        side.wait_stream(main)
        copies, arrived = copy_ahead(batch, side)
        main.wait_event(arrived)
        claim(copies, main)
        ready = [copies]
    yield from ready


def loader_f(batches):
    """One batch ahead, divided by its brightest pixel; the host asks for that number without blocking."""
    side, main, ready = torch.cuda.Stream(), torch.cuda.current_stream(), []
    for batch in batches:
        with torch.cuda.stream(side):
            images, labels = (part.to("cuda", non_blocking=True) for part in batch)
            arrived = side.record_event()
            brightest = images.amax().to("cpu", non_blocking=True)
        claim((images, labels), main)
        yield from ready
        main.wait_event(arrived)
        arrived.synchronize()  # the host needs the number now
        ready = [(images / brightest.item(), labels)]
    yield from ready


def train(batches, loader):
    """A training loop with one of them, for a GPU that is there."""
    model, optimizer = new_model()
    for images, labels in steps(loader(batches)):
        train_step(model, optimizer, images, labels)


LOADERS = {"A": loader_a, "B": loader_b, "C": loader_c, "D": loader_d, "E": loader_e, "F": loader_f}
