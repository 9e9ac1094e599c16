"""torch's DataLoader in virtual time: when each batch is fetched, pinned and handed out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loaderviz.emulator import costs
from loaderviz.emulator.memory import PinnedBlock, PinnedPool
from loaderviz.emulator.runtime import Runtime
from loaderviz.replay.work import Feed, Work
from loaderviz.timeline import Kind

PREFETCH_FACTOR = 2  # batches that each worker prepares ahead, as DataLoader's default


@dataclass
class HostBatch:
    """A batch in host memory: its number, its tensors' bytes, and their pinned blocks, if they have any."""

    number: int
    tensors: Sequence[int]
    pinned: tuple[PinnedBlock, ...] = ()


class DataLoader:
    """torch's DataLoader in virtual time: workers, pin thread and the order of their work."""

    def __init__(self, runtime: Runtime, feed: Feed, work: Work) -> None:
        self.runtime, self.feed, self.work = runtime, feed, work
        self.pool = PinnedPool(runtime)
        self.number = 0
        self.sent = [0] * (PREFETCH_FACTOR * feed.workers)  # when each batch was ordered
        self.free = [0] * feed.workers  # when each worker is
        self.pin_free = 0

    def next(self) -> HostBatch:
        """Give the main thread its next batch; it waits until the batch is there."""
        number = self.number
        self.number += 1
        self.runtime.batch, self.runtime.source = number, self.work.source("loop")
        self.runtime.now += self.work.draw_time(number)
        return self._from_worker(number) if self.feed.workers else self._on_main(number)

    def _on_main(self, number: int) -> HostBatch:
        runtime, tensors = self.runtime, self.work.tensors(number)
        if fetch := self.work.fetch_time(number):
            runtime.host_work(fetch, f"fetch batch {number}", Kind.FETCH)
        if not self.feed.pin:
            return HostBatch(number, tensors)
        blocks = []
        for nbytes in tensors:
            blocks.append(self.pool.allocate(nbytes))
            start = runtime.now
            runtime.now += runtime.host.dispatch + self._pinning(nbytes)
            runtime.builder.span(
                start, runtime.now, runtime.main, Kind.PIN, f"pin batch {number}", batch=number, nbytes=nbytes,
                pinned=True, source=runtime.source,
            )  # fmt: skip
        return HostBatch(number, tensors, tuple(blocks))

    def _from_worker(self, number: int) -> HostBatch:
        runtime = self.runtime
        ready, blocks = self._prepare(number)
        if ready > runtime.now:
            runtime.wait_for_data(ready)
        runtime.host_work(runtime.host.hand_out, "DataLoader hand-out")
        self.sent.append(runtime.now)  # the next order goes to a worker
        return HostBatch(number, self.work.tensors(number), blocks)

    def _prepare(self, number: int) -> tuple[int, tuple[PinnedBlock, ...]]:
        """A worker fetches a batch, and the pin thread pins it; return when it is ready [ns], and its blocks."""
        runtime, worker, tensors = self.runtime, number % self.feed.workers, self.work.tensors(number)
        start = max(self.sent[number], self.free[worker])
        ready = self.free[worker] = start + self.work.fetch_time(number)
        lane = runtime.builder.lane(f"worker {worker}", "host", "worker", worker)
        runtime.builder.span(
            start, ready, lane, Kind.FETCH, f"fetch batch {number}", batch=number, nbytes=sum(tensors),
            source=self.work.source("fetch"),
        )  # fmt: skip
        if not self.feed.pin:
            return ready, ()
        start = end = max(ready, self.pin_free)  # batches go through the pin thread in order (R45)
        blocks = []
        for nbytes in tensors:
            block, locked = self.pool.allocate_at(nbytes, start)
            blocks.append(block)
            end += locked + self._pinning(nbytes)
        self.pin_free = end
        lane = runtime.builder.lane("pin thread", "host", "pin")
        runtime.builder.span(
            start, end, lane, Kind.PIN, f"pin batch {number}", batch=number, nbytes=sum(tensors), pinned=True
        )
        return end, tuple(blocks)

    def finish(self) -> None:
        """Note what workers and pin thread do for batches that were ordered and not yet asked for."""
        for number in range(self.number, len(self.sent)):
            self._prepare(number)

    def _pinning(self, nbytes: int) -> int:
        return costs.host_time(self.runtime.host, 2 * nbytes)

    def drop(self, batch: HostBatch | None) -> None:
        """The program lets go of a batch in host memory."""
        for block in batch.pinned if batch else ():
            self.pool.free(block)
