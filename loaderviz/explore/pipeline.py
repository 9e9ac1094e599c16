"""The loaders of the lessons on the emulated GPU without torch: `simulate(settings)` gives the Timeline.

    timeline = simulate(Settings(pin=True, non_blocking=True, side_stream=True, depth=2))
    loaderviz.summarize(timeline).overlap

The host's calls, the memory pools, workers and pin thread obey the same rules as PyTorch on the emulator does, so that
lessons and explorer agree. A pure function: the same settings give the same timeline, to the nanosecond.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from loaderviz.emulator import costs
from loaderviz.emulator.hardware import Host
from loaderviz.emulator.memory import Block, DevicePool, PinnedBlock, PinnedPool
from loaderviz.emulator.runtime import Event, Runtime
from loaderviz.explore.program import Program, program_of
from loaderviz.explore.settings import SAMPLES, Settings
from loaderviz.timeline import Context, Kind, Timeline

PREFETCH_FACTOR = 2  # batches that each worker prepares ahead, as DataLoader's default
HOST = "workstation"


def simulate(settings: Settings, program: Program | None = None) -> Timeline:
    """Return `settings.steps` steps of the loop, after a warm-up in which memory is allocated and queues fill.

    `program` is `program_of(settings)`, if it was made before; its lines are the sources of the spans. Raises
    `OutOfMemory` if the batches (or the resident data set) do not fit into the GPU's memory.
    """
    return _Loop(settings, program or program_of(settings)).run()


@dataclass
class _HostBatch:
    """A batch in host memory: its number and its pinned block, if it has one."""

    number: int
    pinned: PinnedBlock | None


class _Loader:
    """DataLoader in virtual time: workers, pin thread and the order of their work."""

    def __init__(self, runtime: Runtime, settings: Settings, program: Program) -> None:
        self.runtime, self.settings = runtime, settings
        self.line, self.fetch_line = program.source("loop"), program.source("fetch")
        self.pool = PinnedPool(runtime)
        self.number = 0
        self.sent = [0] * (PREFETCH_FACTOR * settings.workers)  # when each batch was ordered
        self.free = [0] * settings.workers  # when each worker is
        self.pin_free = 0
        slept = settings.batch_size * settings.fetch_per_sample
        self.cost = costs.fetch_time(runtime.host, settings.batch_size, settings.nbytes, batched=True) + slept

    def next(self) -> _HostBatch:
        """Give the main thread its next batch; it waits until the batch is there."""
        number = self.number
        self.number += 1
        self.runtime.batch, self.runtime.source = number, self.line
        return self._from_worker(number) if self.settings.workers else self._on_main(number)

    def _on_main(self, number: int) -> _HostBatch:
        runtime = self.runtime
        runtime.host_work(self.cost, f"fetch batch {number}", Kind.FETCH)
        if not self.settings.pin:
            return _HostBatch(number, None)
        block, start = self.pool.allocate(self.settings.nbytes), runtime.now
        runtime.now += runtime.host.dispatch + self._pinning()
        runtime.builder.span(
            start, runtime.now, runtime.main, Kind.PIN, f"pin batch {number}", batch=number,
            nbytes=self.settings.nbytes, pinned=True, source=self.line,
        )  # fmt: skip
        return _HostBatch(number, block)

    def _from_worker(self, number: int) -> _HostBatch:
        runtime = self.runtime
        ready, block = self._prepare(number)
        if ready > runtime.now:
            runtime.wait_for_data(ready)
        runtime.host_work(runtime.host.hand_out, "DataLoader hand-out")
        self.sent.append(runtime.now)  # the next order goes to a worker
        return _HostBatch(number, block)

    def _prepare(self, number: int) -> tuple[int, PinnedBlock | None]:
        """A worker fetches a batch, and the pin thread pins it; return when it is ready [ns], and its block."""
        runtime, worker, nbytes = self.runtime, number % self.settings.workers, self.settings.nbytes
        start = max(self.sent[number], self.free[worker])
        ready = self.free[worker] = start + self.cost
        lane = runtime.builder.lane(f"worker {worker}", "host", "worker", worker)
        runtime.builder.span(
            start, ready, lane, Kind.FETCH, f"fetch batch {number}", batch=number, nbytes=nbytes, source=self.fetch_line
        )
        if not self.settings.pin:
            return ready, None
        start = max(ready, self.pin_free)  # batches go through the pin thread in order (R45)
        block, locked = self.pool.allocate_at(nbytes, start)
        ready = self.pin_free = start + locked + self._pinning()
        lane = runtime.builder.lane("pin thread", "host", "pin")
        runtime.builder.span(
            start, ready, lane, Kind.PIN, f"pin batch {number}", batch=number, nbytes=nbytes, pinned=True
        )
        return ready, block

    def finish(self) -> None:
        """Note what workers and pin thread do for batches that were ordered and not yet asked for."""
        for number in range(self.number, len(self.sent)):
            self._prepare(number)

    def _pinning(self) -> int:
        return costs.host_time(self.runtime.host, 2 * self.settings.nbytes)

    def drop(self, batch: _HostBatch | None) -> None:
        """The program lets go of a batch in host memory."""
        if batch is not None and batch.pinned is not None:
            self.pool.free(batch.pinned)


class _Loop:
    """The training loop of a `Program`, statement by statement."""

    def __init__(self, settings: Settings, program: Program) -> None:
        self.settings, self.program = settings, program
        self.runtime = runtime = Runtime(settings.machine(), Host.preset(HOST))
        self.loader = _Loader(runtime, settings, program)
        self.pool = DevicePool(runtime)
        self.main = runtime.default_stream
        self.side = runtime.stream() if settings.side_stream and not settings.resident else self.main
        self.holds: _HostBatch | None = None  # the variable `batch`
        self.ring = deque[Block]()
        self.steps: list[tuple[int, int]] = []  # (start [ns], batch)

    def run(self) -> Timeline:
        """Run the warm-up and the steps; return the steps."""
        settings, runtime = self.settings, self.runtime
        warmup = PREFETCH_FACTOR * max(settings.workers, 2) + settings.depth + 2
        if settings.resident:
            self._resident(warmup)
        elif settings.depth:
            self._ahead(warmup)
        else:
            self._in_place(warmup)
        self._at("synchronize")
        runtime.synchronize()
        if not settings.resident:
            self.loader.finish()
        ends = [start for start, _ in self.steps[1:]] + [runtime.now]
        for (start, batch), end in zip(self.steps, ends, strict=True):
            runtime.range(start, end, f"batch {batch}: {settings.batch_size} samples", batch)
        context = Context(
            runtime.gpu.name, "emulated", runtime.host.name, samples=(warmup + settings.steps) * settings.batch_size
        )
        return runtime.timeline(context).between(self.steps[warmup][0], runtime.now)

    def _in_place(self, warmup: int) -> None:
        """Copy each batch when its turn has come."""
        block: Block | None = None  # the variable `x`
        for number in range(warmup + self.settings.steps):
            self._begin(number, warmup)
            fresh = self._copy()
            if self.side is not self.main:
                self._at("hand over")
                self.runtime.wait_stream(self.main, self.side)
            block = self._rebind(block, fresh)
            self._train(number)

    def _ahead(self, warmup: int) -> None:
        """Copy `depth` batches before their turn."""
        queue: deque[tuple[Block, Event]] = deque()
        block: Block | None = None
        for number in range(warmup + self.settings.steps):
            self._begin(number, warmup)
            while len(queue) < self.settings.depth and not number:  # the first ones
                queue.append(self._copy_with_event())
            fresh, copied = queue.popleft()
            self.runtime.batch = number
            self._at("drop")
            block = self._rebind(block, fresh)
            if self.side is not self.main:
                self._at("hand over")
                self.runtime.wait_event(self.main, copied)
            self._record_stream(fresh)
            queue.append(self._copy_with_event())
            self._train(number)

    def _resident(self, warmup: int) -> None:
        settings, runtime = self.settings, self.runtime
        self._at("move")
        self.pool.allocate(SAMPLES * settings.sample_bytes)
        runtime.memcpy(SAMPLES * settings.sample_bytes, "h2d", pinned=False, blocking=True)
        self._at("order")
        self.pool.allocate(8 * SAMPLES)
        runtime.memcpy(8 * SAMPLES, "h2d", pinned=False, blocking=True)
        block: Block | None = None
        gather = costs.kernel_time(runtime.gpu, 2 * settings.nbytes + 8 * settings.batch_size)
        for number in range(warmup + settings.steps):
            self._begin(number, warmup)
            runtime.batch = number
            self._at("gather")
            fresh = self.pool.allocate(settings.nbytes)
            self._kernel("index_select", gather)
            block = self._rebind(block, fresh)
            self._train(number)

    # The statements

    def _at(self, does: str) -> None:
        self.runtime.source = self.program.source(does)

    def _begin(self, number: int, warmup: int) -> None:
        """A step of the loop begins. The clock runs from the end of the warm-up on, as any timing must (R27)."""
        if number == warmup:
            self._at("synchronize")
            self.runtime.synchronize()
        self.steps.append((self.runtime.now, number))

    def _copy(self) -> Block:
        """Take a batch from the loader and copy it; return its memory on the device."""
        settings, runtime = self.settings, self.runtime
        batch = self.loader.next()
        self.loader.drop(self.holds)
        self.holds = batch
        block = self._memory()
        self._at("copy")
        start = runtime.now
        runtime.now += runtime.host.dispatch
        if batch.pinned is not None and settings.non_blocking:
            self.loader.pool.use(batch.pinned, self.side)  # R29
        runtime.memcpy(
            settings.nbytes, "h2d", self.side, pinned=batch.pinned is not None, blocking=not settings.non_blocking
        )
        runtime.builder.span(
            start, runtime.now, runtime.main, Kind.OPERATOR, "aten::copy_", batch=batch.number, source=runtime.source
        )
        return block

    def _copy_with_event(self) -> tuple[Block, Event]:
        block, copied = self._copy(), self.runtime.event(timing=False)
        if self.side is not self.main:
            self._at("event")
            self.runtime.record_event(copied, self.side)
        return block, copied

    def _memory(self) -> Block:
        """Take the device memory of a batch, in the way of the lifetime policy."""
        nbytes, policy = self.settings.nbytes, self.settings.lifetime
        if self.side is self.main:
            self._at("copy")
            return self.pool.allocate(nbytes, self.main)
        if policy == "ring":
            while len(self.ring) <= self.settings.depth:
                self.ring.append(self.pool.allocate(nbytes, self.main))
            self.ring.rotate(-1)
        if policy == "consumer":
            self._at("allocate")
            block = self.pool.allocate(nbytes, self.main)
        if policy != "record_stream":
            self._at("protect")
            self.runtime.wait_stream(self.side, self.main)
        if policy == "ring":
            return self.ring[-1]
        self._at("copy")
        return block if policy == "consumer" else self.pool.allocate(nbytes, self.side)

    def _rebind(self, old: Block | None, new: Block) -> Block:
        """`x = …`: the former batch on the device is dropped."""
        if old is not None and not (self.side is not self.main and self.settings.lifetime == "ring"):
            self.pool.free(old)
        if not self.settings.depth:
            self._record_stream(new)
        return new

    def _record_stream(self, block: Block) -> None:
        if self.side is not self.main and self.settings.lifetime == "record_stream":
            self._at("record_stream")
            self.pool.record_stream(block, self.main)

    def _train(self, number: int) -> None:
        """Launch the kernels of a step: a third forward, the last one the optimizer's, the rest backward."""
        kernels, runtime = self.settings.kernels, self.runtime
        runtime.batch = number
        time = max(runtime.gpu.kernel_start, costs.ceil_div(self.settings.compute, kernels))
        forward = max(1, kernels // 3)
        for kernel in range(kernels):
            name = "forward" if kernel < forward else "optimizer" if kernel == kernels - 1 else "backward"
            self._at(name)
            self._kernel(name, time)

    def _kernel(self, name: str, time: int) -> None:
        runtime, start = self.runtime, self.runtime.now
        runtime.now += runtime.host.dispatch
        runtime.launch(time, self.main, name=name)
        runtime.builder.span(
            start, runtime.now, runtime.main, Kind.OPERATOR, f"aten::{name}", batch=runtime.batch, source=runtime.source
        )
