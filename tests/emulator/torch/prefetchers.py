"""The ways in which public training loops bring batches to the GPU, each mechanism re-implemented in a few lines.

Each takes an iterable of batches (tuples of host tensors) and yields tuples of device tensors. `PREFETCHERS` names
them all, with and without the protection that keeps a batch's memory from being used again too early, and says what to
expect: does the copy of the next batch run while this one is computed, and is the program right.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count, islice

import torch

DEVICE = torch.device("cuda")


def copied(batch):
    return tuple(entry.to(DEVICE, non_blocking=True) for entry in batch)


def recorded(batch):
    for entry in batch:
        entry.record_stream(torch.cuda.current_stream())


def ahead(source, start, wait, depth=1, done=lambda begun: None):
    """Begin the copies of the next batches before this one is handed out; `wait` gives the batch of what was begun."""
    source, ready = map(start, source), deque()
    ready.extend(islice(source, depth))
    while ready:
        begun = ready.popleft()
        batch = wait(begun)
        ready.extend(islice(source, 1))
        yield batch
        done(begun)


def waiting(stream, record=False):
    """Let the consumer wait for the copies of a stream, and perhaps record each tensor on its own."""

    def wait(batch):
        torch.cuda.current_stream().wait_stream(stream)
        if record:
            recorded(batch)
        return batch

    return wait


def plain(loader):
    """No prefetching: blocking copies on the consumer's stream."""
    for batch in loader:
        yield tuple(entry.to(DEVICE) for entry in batch)


def non_blocking(loader):
    """No prefetching: asynchronous copies on the consumer's stream."""
    return map(copied, loader)


def one_ahead(loader, record, side_waits):
    """A side stream and one batch ahead; the protection is `record_stream`, a side stream that waits, or nothing."""
    stream = torch.cuda.Stream()

    def start(batch):
        if side_waits:
            stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            return copied(batch)

    return ahead(loader, start, waiting(stream, record))


def event_per_batch(loader, record):
    """Two batches ahead, an event for each of them."""
    stream = torch.cuda.Stream()

    def start(batch):
        with torch.cuda.stream(stream):
            return copied(batch), stream.record_event()

    def wait(begun):
        moved, event = begun
        event.wait()
        if record:
            recorded(moved)
        return moved

    return ahead(loader, start, wait, depth=2)


def in_place(loader, side_waits):
    """Memory of the consumer's stream, filled on a side stream that waits for the consumer first, or does not."""
    stream = torch.cuda.Stream()

    def start(batch):
        moved = tuple(torch.empty_like(entry, device=DEVICE) for entry in batch)
        if side_waits:
            stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for target, entry in zip(moved, batch, strict=True):
                target.copy_(entry, non_blocking=True)
        return moved

    return ahead(loader, start, waiting(stream))


def ring(loader, wait_for_reader, slots=3):
    """Buffers made once and used in turn; a slot is filled again when the batch in it was read, or at once."""
    streams, buffers, read, number = [torch.cuda.Stream() for _ in range(slots)], {}, {}, count()

    def start(batch):
        slot = next(number) % slots
        if slot not in buffers:
            buffers[slot] = tuple(torch.empty_like(entry, device=DEVICE) for entry in batch)
            streams[slot].wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(streams[slot]):
            if wait_for_reader and slot in read:
                read[slot].wait()
            for entry, place in zip(batch, buffers[slot], strict=True):
                place.copy_(entry, non_blocking=True)
        return slot

    def wait(slot):
        torch.cuda.current_stream().wait_stream(streams[slot])
        return buffers[slot]

    def done(slot):
        read[slot] = torch.cuda.current_stream().record_event()

    return ahead(loader, start, wait, slots - 1, done)


def pinned_slots(loader, wait_for_copy, slots=2):
    """Pinned buffers made once and refilled in turn by the host, when the copy out of them is over, or at once."""
    stream, buffers, copies = torch.cuda.Stream(), [], [torch.cuda.Event() for _ in range(slots)]
    for number, batch in enumerate(loader):
        slot = number % slots
        if len(buffers) < slots:
            buffers.append(tuple(entry.pin_memory() for entry in batch))
        else:
            if wait_for_copy:
                copies[slot].synchronize()
            for entry, buffer in zip(batch, buffers[slot], strict=True):
                buffer.copy_(entry)  # refill here
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            moved = copied(buffers[slot])
            copies[slot].record()
        torch.cuda.current_stream().wait_event(copies[slot])
        yield moved


def waits_wrongly(loader, too_early):
    """A mistake: the consumer waits before the copy is enqueued, so that it waits for nothing (R16), or never."""
    stream = torch.cuda.Stream()
    for batch in loader:
        if too_early:
            torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.stream(stream):
            moved = copied(batch)
        yield moved


@dataclass(frozen=True)
class Prefetcher:
    make: Callable
    overlaps: bool  # copies run under compute
    right: bool = True  # every value is as it should be
    races: frozenset[str] = frozenset()  # kinds of hazard that it has on real hardware, whatever the values here


REUSE, READ, REFILL = (frozenset([f"early-{what}"]) for what in ("reuse", "read", "refill"))


def way(make, *options, **expected):
    return Prefetcher(lambda loader: make(loader, *options), **expected)


PREFETCHERS = {
    "plain": way(plain, overlaps=False),
    "non_blocking": way(non_blocking, overlaps=False),
    "one ahead, record_stream": way(one_ahead, True, False, overlaps=True),
    "one ahead, side waits": way(one_ahead, False, True, overlaps=True),
    "one ahead, unprotected": way(one_ahead, False, False, overlaps=True, races=REUSE),
    "event per batch, record_stream": way(event_per_batch, True, overlaps=True),
    "event per batch, unprotected": way(event_per_batch, False, overlaps=True, races=REUSE),
    "in place": way(in_place, True, overlaps=True),
    "in place, unprotected": way(in_place, False, overlaps=True, races=REUSE),
    "ring, waits for reader": way(ring, True, overlaps=True),
    "ring, unprotected": way(ring, False, overlaps=True, races=REUSE),
    "pinned slots, waits for copy": way(pinned_slots, True, overlaps=False),
    "pinned slots, unprotected": way(pinned_slots, False, overlaps=False, races=REFILL),
    "waits too early": way(waits_wrongly, True, overlaps=True, right=False, races=READ | REUSE),
    "never waits": way(waits_wrongly, False, overlaps=True, right=False, races=READ | REUSE),
}
