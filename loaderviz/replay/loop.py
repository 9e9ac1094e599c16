"""The training loop in virtual time, statement by statement: copy in place, copy ahead, or gather on the GPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from loaderviz.emulator import costs
from loaderviz.emulator.memory import Block, DevicePool
from loaderviz.emulator.runtime import Event, Runtime
from loaderviz.replay.loader import DataLoader, HostBatch
from loaderviz.replay.work import Feed, Work, launch
from loaderviz.timeline import Context, Kind, Timeline


class Replay:
    """A training loop: batch after batch is copied, or gathered on the GPU, and trained on."""

    def __init__(self, feed: Feed, work: Work, runtime: Runtime, *, from_hand_out: bool = False) -> None:
        self.feed, self.work, self.runtime = feed, work, runtime
        self.from_hand_out = from_hand_out  # a step begins when its batch is handed out, not when it is asked for
        self.loader = DataLoader(runtime, feed, work)
        self.pool = DevicePool(runtime)
        self.main = runtime.default_stream
        self.side = runtime.stream() if feed.side_stream and not feed.resident else self.main
        self.holds: HostBatch | None = None  # the variable `batch`
        self.ring = deque[list[Block]]()
        self.steps: list[tuple[int, int]] = []  # (start [ns], batch)

    def run(self, warmup: int, steps: int) -> Timeline:
        """Return `steps` steps after a warm-up, at whose end the host waits for the GPU. Raises `OutOfMemory`."""
        runtime, work = self.runtime, self.work
        if self.feed.resident:
            self._resident(warmup, steps)
        elif self.feed.depth:
            self._ahead(warmup, steps)
        else:
            self._in_place(warmup, steps)
        self._at("synchronize")
        runtime.synchronize()
        if not self.feed.resident:
            self.loader.finish()
        ends = [start for start, _ in self.steps[1:]] + [runtime.now]
        for (start, batch), end in zip(self.steps, ends, strict=True):
            runtime.range(start, end, f"batch {batch}: {work.samples(batch)} samples", batch)
        samples = sum(work.samples(number) for number in range(warmup + steps))
        context = Context(runtime.gpu.name, "emulated", runtime.host.name, samples=samples)
        return runtime.timeline(context).between(self.steps[warmup][0], runtime.now)

    def _in_place(self, warmup: int, steps: int) -> None:
        """Copy each batch when its turn has come."""
        blocks: list[Block] = []  # the variable `x`
        for number in range(warmup + steps):
            self._begin(number, warmup)
            batch = self.loader.next()
            self._handed_out(number)
            fresh = self._copy(batch)
            if self.side is not self.main:
                self._at("hand over")
                self.runtime.wait_stream(self.main, self.side)
            blocks = self._rebind(blocks, fresh)
            self._train(number)

    def _ahead(self, warmup: int, steps: int) -> None:
        """Copy `depth` batches before their turn."""
        queue: deque[tuple[list[Block], Event]] = deque()
        blocks: list[Block] = []
        for number in range(warmup + steps):
            self._begin(number, warmup)
            while len(queue) < self.feed.depth and not number:  # the first ones
                queue.append(self._copy_with_event())
            fresh, copied = queue.popleft()
            self.runtime.batch = number
            self._at("drop")
            blocks = self._rebind(blocks, fresh)
            if self.side is not self.main:
                self._at("hand over")
                self.runtime.wait_event(self.main, copied)
            self._record_stream(fresh)
            queue.append(self._copy_with_event())
            self._handed_out(number)
            self._train(number)

    def _resident(self, warmup: int, steps: int) -> None:
        runtime = self.runtime
        for does, nbytes in zip(("move", "order"), self.work.resident_bytes(), strict=False):
            self._at(does)
            self.pool.allocate(nbytes)
            runtime.memcpy(nbytes, "h2d", pinned=False, blocking=True)
        blocks: list[Block] = []
        for number in range(warmup + steps):
            self._begin(number, warmup)
            self._handed_out(number)
            runtime.batch = number
            self._at("gather")
            indices, fresh = 8 * self.work.samples(number), []
            for nbytes in self.work.tensors(number):
                fresh.append(self.pool.allocate(nbytes))
                launch(runtime, "index_select", costs.kernel_time(runtime.gpu, 2 * nbytes + indices))
            blocks = self._rebind(blocks, fresh)
            self._train(number)

    # The statements

    def _at(self, does: str) -> None:
        self.runtime.source = self.work.source(does)

    def _begin(self, number: int, warmup: int) -> None:
        """A step of the loop begins. The clock runs from the end of the warm-up on, as any timing must (R27)."""
        if number == warmup:
            self._at("synchronize")
            self.runtime.synchronize()
        if not self.from_hand_out:
            self.steps.append((self.runtime.now, number))

    def _handed_out(self, number: int) -> None:
        if self.from_hand_out:
            self.steps.append((self.runtime.now, number))

    def _train(self, number: int) -> None:
        self.runtime.batch = number
        self.work.train(self.runtime, number)

    def _copy(self, batch: HostBatch) -> list[Block]:
        """Copy a batch that the loader gave; return its memory on the device."""
        feed, runtime = self.feed, self.runtime
        self.loader.drop(self.holds)
        self.holds = batch
        blocks = self._memory(batch.tensors)
        self._at("copy")
        for index, nbytes in enumerate(batch.tensors):
            start = runtime.now
            runtime.now += runtime.host.dispatch
            if batch.pinned and feed.non_blocking:
                self.loader.pool.use(batch.pinned[index], self.side)  # R29
            runtime.memcpy(nbytes, "h2d", self.side, pinned=bool(batch.pinned), blocking=not feed.non_blocking)
            runtime.builder.span(
                start, runtime.now, runtime.main, Kind.OPERATOR, "aten::copy_", batch=batch.number,
                source=runtime.source,
            )  # fmt: skip
        return blocks

    def _copy_with_event(self) -> tuple[list[Block], Event]:
        blocks, copied = self._copy(self.loader.next()), self.runtime.event(timing=False)
        if self.side is not self.main:
            self._at("event")
            self.runtime.record_event(copied, self.side)
        return blocks, copied

    def _memory(self, tensors: Sequence[int]) -> list[Block]:
        """Take the device memory of a batch, in the way of the lifetime policy."""
        policy = self.feed.lifetime
        if self.side is self.main:
            self._at("copy")
            return [self.pool.allocate(nbytes, self.main) for nbytes in tensors]
        if policy == "ring":
            while len(self.ring) <= self.feed.depth:
                self.ring.append([self.pool.allocate(nbytes, self.main) for nbytes in tensors])
            self.ring.rotate(-1)
        if policy == "consumer":
            self._at("allocate")
            blocks = [self.pool.allocate(nbytes, self.main) for nbytes in tensors]
        if policy != "record_stream":
            self._at("protect")
            self.runtime.wait_stream(self.side, self.main)
        if policy == "ring":
            return self.ring[-1]
        self._at("copy")
        return blocks if policy == "consumer" else [self.pool.allocate(nbytes, self.side) for nbytes in tensors]

    def _rebind(self, old: list[Block], new: list[Block]) -> list[Block]:
        """`x = …`: the former batch on the device is dropped."""
        if not (self.side is not self.main and self.feed.lifetime == "ring"):
            for block in old:
                self.pool.free(block)
        if not self.feed.depth:
            self._record_stream(new)
        return new

    def _record_stream(self, blocks: list[Block]) -> None:
        if self.side is not self.main and self.feed.lifetime == "record_stream":
            self._at("record_stream")
            for block in blocks:
                self.pool.record_stream(block, self.main)
