"""The ways in which public training loops bring batches to the GPU, each mechanism re-implemented in a few lines.

Each takes an iterable of batches (tuples of host tensors) and yields tuples of device tensors. `PREFETCHERS` names
them all, with and without the protection that keeps a batch's memory from being used again too early, and says what to
expect: does the copy of the next batch run while this one is computed, and is the program right.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

Batch = tuple[torch.Tensor, ...]
DEVICE = torch.device("cuda")


def copied(batch: Any) -> Batch:
    return tuple(entry.to(DEVICE, non_blocking=True) for entry in batch)


def recorded(batch: Batch) -> None:
    for entry in batch:
        entry.record_stream(torch.cuda.current_stream())


def plain(loader: Iterable[Any]) -> Iterator[Batch]:
    """No prefetching: blocking copies on the consumer's stream."""
    for batch in loader:
        yield tuple(entry.to(DEVICE) for entry in batch)


def non_blocking(loader: Iterable[Any]) -> Iterator[Batch]:
    """No prefetching: asynchronous copies on the consumer's stream."""
    for batch in loader:
        yield copied(batch)


class Preloader:
    """Holds one batch ahead in attributes; `next()` gives None at the end."""

    def __init__(self, loader: Iterable[Any], record: bool) -> None:
        self.source, self.record = iter(loader), record
        self.stream = torch.cuda.Stream()
        self.preload()

    def preload(self) -> None:
        batch = next(self.source, None)
        with torch.cuda.stream(self.stream):
            self.batch = None if batch is None else copied(batch)

    def next(self) -> Batch | None:
        torch.cuda.current_stream().wait_stream(self.stream)
        batch = self.batch
        if batch is None:
            return None
        if self.record:
            recorded(batch)
        self.preload()
        return batch


def attributes(loader: Iterable[Any], record: bool) -> Iterator[Batch]:
    """A side stream and one batch ahead, kept in attributes; `record_stream` on each tensor, or nothing."""
    preloader = Preloader(loader, record)
    batch = preloader.next()
    while batch is not None:
        yield batch
        batch = preloader.next()


def generator(loader: Iterable[Any], side_waits: bool) -> Iterator[Batch]:
    """A generator: enqueue the next copy, yield this batch, then wait. The side stream may wait for the consumer."""
    stream, ready = torch.cuda.Stream(), None
    for batch in loader:
        if side_waits:
            stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            following = copied(batch)
        if ready is not None:
            yield ready
        torch.cuda.current_stream().wait_stream(stream)
        ready = following
    if ready is not None:
        yield ready


def event_per_batch(loader: Iterable[Any], record: bool, depth: int = 2) -> Iterator[Batch]:
    """Some batches ahead, an event for each of them."""
    stream, source, ready = torch.cuda.Stream(), iter(loader), deque[tuple[Batch, torch.cuda.Event]]()

    def enqueue() -> None:
        batch = next(source, None)
        if batch is not None:
            with torch.cuda.stream(stream):
                moved, event = copied(batch), torch.cuda.Event()
                event.record()
            ready.append((moved, event))

    for _ in range(depth):
        enqueue()
    while ready:
        moved, event = ready.popleft()
        event.wait()
        if record:
            recorded(moved)
        enqueue()
        yield moved


def in_place(loader: Iterable[Any], side_waits: bool) -> Iterator[Batch]:
    """Memory of the consumer's stream, filled on a side stream that waits for the consumer first, or does not."""
    stream, source = torch.cuda.Stream(), iter(loader)

    def start(batch: Any) -> Batch:
        moved = tuple(torch.empty_like(entry, device=DEVICE) for entry in batch)
        if side_waits:
            stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for target, entry in zip(moved, batch, strict=True):
                target.copy_(entry, non_blocking=True)
        return moved

    batch = next(source, None)
    ready = None if batch is None else start(batch)
    while ready is not None:
        torch.cuda.current_stream().wait_stream(stream)
        batch = next(source, None)
        following = None if batch is None else start(batch)
        yield ready
        ready = following


def ring(loader: Iterable[Any], wait_for_reader: bool, slots: int = 3) -> Iterator[Batch]:
    """Buffers made once and used in turn; a slot is filled again when the batch in it was read, or at once."""
    streams = [torch.cuda.Stream() for _ in range(slots)]
    buffers: list[Batch | None] = [None] * slots
    read: list[torch.cuda.Event | None] = [None] * slots
    source = iter(loader)
    filled: deque[int] = deque()

    def fill(slot: int) -> None:
        batch = next(source, None)
        if batch is None:
            return
        target = buffers[slot]
        if target is None:
            target = buffers[slot] = tuple(torch.empty_like(entry, device=DEVICE) for entry in batch)
            streams[slot].wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(streams[slot]):
            event = read[slot]
            if wait_for_reader and event is not None:
                event.wait()
            for entry, place in zip(batch, target, strict=True):
                place.copy_(entry, non_blocking=True)
        filled.append(slot)

    for slot in range(slots - 1):
        fill(slot)
    following = slots - 1
    while filled:
        slot = filled.popleft()
        torch.cuda.current_stream().wait_stream(streams[slot])
        fill(following)
        target = buffers[slot]
        assert target is not None
        yield target
        event = torch.cuda.Event()
        event.record()
        read[slot], following = event, slot


def pinned_slots(loader: Iterable[Any], wait_for_copy: bool, slots: int = 2) -> Iterator[Batch]:
    """Pinned buffers made once and refilled in turn by the host, when the copy out of them is over, or at once."""
    stream, buffers, copies = torch.cuda.Stream(), list[Batch](), [torch.cuda.Event() for _ in range(slots)]
    for count, batch in enumerate(loader):
        slot = count % slots
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


def transformed(loader: Iterable[Any], record_result: bool) -> Iterator[Batch]:
    """A transform on the side stream after the copy; what the consumer gets is recorded, or only what was copied."""
    stream, consumer = torch.cuda.Stream(), torch.cuda.current_stream()
    for batch in loader:
        with torch.cuda.stream(stream):
            moved = copied(batch)
            results = tuple(entry * 1 for entry in moved)
        recorded(results if record_result else moved)
        consumer.wait_stream(stream)
        del moved
        yield results


def loader_under_stream(loader: Iterable[Any], record: bool) -> Iterator[Batch]:
    """The loader itself is advanced under the side stream, which waits for nothing; the consumer waits for it."""
    stream, consumer = torch.cuda.Stream(), torch.cuda.current_stream()

    def advance(source: Iterator[Any]) -> Batch | None:
        with torch.cuda.stream(stream):
            batch = next(source, None)
            if batch is None:
                return None
            moved = copied(batch)
            if record:
                for entry in moved:
                    entry.record_stream(consumer)
            return moved

    source = iter(loader)
    ready = advance(source)
    while ready is not None:
        consumer.wait_stream(stream)
        following = advance(source)
        yield ready
        ready = following


def last_references(loader: Iterable[Any], kept: int = 4) -> Iterator[Batch]:
    """The host waits for each copy, one batch ahead; the last batches are kept, so that their memory is not reused."""
    stream, cache = torch.cuda.Stream(), deque[Batch](maxlen=kept)

    def transfer(batch: Any) -> Batch:
        with torch.cuda.stream(stream):
            moved = copied(batch)
        stream.synchronize()
        cache.append(moved)
        return moved

    ready = None
    for batch in loader:
        if ready is not None:
            yield ready
        ready = transfer(batch)
    if ready is not None:
        yield ready


def waits_wrongly(loader: Iterable[Any], too_early: bool) -> Iterator[Batch]:
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
    """One way: how to make it, and what to expect of it with pinned batches."""

    make: Callable[[Iterable[Any]], Iterator[Batch]]
    overlaps: bool  # copies run under compute
    right: bool = True  # every value is as it should be
    races: frozenset[str] = frozenset()  # kinds of hazard that it has on real hardware, whatever the values here


REUSE, READ, REFILL = (frozenset([f"early-{what}"]) for what in ("reuse", "read", "refill"))


def way(make: Callable[..., Iterator[Batch]], *options: bool, **expected: Any) -> Prefetcher:
    return Prefetcher(lambda loader: make(loader, *options), **expected)


PREFETCHERS: dict[str, Prefetcher] = {
    "plain": way(plain, overlaps=False),
    "non_blocking": way(non_blocking, overlaps=False),
    "attributes, record_stream": way(attributes, True, overlaps=True),
    "attributes, unprotected": way(attributes, False, overlaps=True, races=REUSE),
    "generator, side waits": way(generator, True, overlaps=True),
    "generator, unprotected": way(generator, False, overlaps=True, races=REUSE),
    "event per batch, record_stream": way(event_per_batch, True, overlaps=True),
    "event per batch, unprotected": way(event_per_batch, False, overlaps=True, races=REUSE),
    "in place": way(in_place, True, overlaps=True),
    "in place, unprotected": way(in_place, False, overlaps=True, races=REUSE),
    "ring, waits for reader": way(ring, True, overlaps=True),
    "ring, unprotected": way(ring, False, overlaps=True, races=REUSE),
    "pinned slots, waits for copy": way(pinned_slots, True, overlaps=False),
    "pinned slots, unprotected": way(pinned_slots, False, overlaps=False, races=REFILL),
    "transformed, record_stream": way(transformed, True, overlaps=True),
    "transformed, recorded too early": way(transformed, False, overlaps=True, races=REUSE),
    "loader under stream, record_stream": way(loader_under_stream, True, overlaps=True),
    "loader under stream, unprotected": way(loader_under_stream, False, overlaps=True, races=REUSE),
    "last references": way(last_references, overlaps=True, races=REUSE),
    "waits too early": way(waits_wrongly, True, overlaps=True, right=False, races=READ | REUSE),
    "never waits": way(waits_wrongly, False, overlaps=True, right=False, races=READ | REUSE),
}
