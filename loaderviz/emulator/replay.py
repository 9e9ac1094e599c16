"""A training loop on the emulated GPU without torch: any way to feed it (`LoaderConfig`), any work in it (`Work`).

The explorer replays what its sliders say, `what_if` what a timeline shows. The host's calls, the memory pools, workers
and pin thread obey the same rules as PyTorch on the emulator does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from loaderviz.batches import batch_name
from loaderviz.emulator.hardware import Parcel
from loaderviz.emulator.host import PREFETCH_FACTOR, LoaderSchedule
from loaderviz.emulator.kernels import memory_time
from loaderviz.emulator.memory import Block, DevicePool, PinnedBlock, PinnedPool
from loaderviz.emulator.runtime import Event, Runtime
from loaderviz.timeline import Context, Kind, Timeline

Lifetime = Literal["consumer", "wait", "record_stream", "ring"]


class LifetimePolicy(NamedTuple):
    """What keeps a batch's memory on the device from being used again too early when a side stream copies (R35 - R37).

    The memory is the computing stream's (or, if not, the copying one's); the copying stream waits for the computing one
    before each copy; the computing stream is recorded for it; a few buffers are filled in turn.
    """

    of_consumer: bool
    waits: bool
    records: bool
    ring: bool


LIFETIMES: dict[Lifetime, LifetimePolicy] = {  # as in `loaders`
    "consumer": LifetimePolicy(True, True, False, False),
    "wait": LifetimePolicy(False, True, False, False),
    "record_stream": LifetimePolicy(False, False, True, False),
    "ring": LifetimePolicy(True, True, False, True),
}


@dataclass(frozen=True)
class LoaderConfig:
    """How batches come to the GPU: by `workers` processes, pinned or not, copied `depth` batches ahead or in place.

    With `threads` the workers are threads of the loop's process: nothing is sent, but `python` thousandths of a fetch
    hold the interpreter's lock, which one thread has at a time, the loop's or another (R53).
    `lifetime`, one of `LIFETIMES`, protects a batch's memory when a side stream copies. With `resident` the data set
    lives on the GPU, and the rest has no effect. `pinned_before`: the batches need not be pinned by the loader.
    """

    workers: int = 0
    pin: bool = False
    non_blocking: bool = False
    side_stream: bool = False
    depth: int = 0
    lifetime: Lifetime = "consumer"
    resident: bool = False
    pinned_before: bool = False
    threads: bool = False
    python: int = 1000

    @property
    def pins(self) -> bool:
        """Whether the loader pins the batches."""
        return self.pin and not self.pinned_before

    @property
    def in_threads(self) -> bool:
        """Whether there are workers, and they are threads."""
        return self.threads and self.workers > 0

    @property
    def warmup(self) -> int:
        """Steps in which memory is allocated and queues fill."""
        return PREFETCH_FACTOR * max(self.workers, 2) + self.depth + 2


PRESETS: dict[str, dict[str, Any]] = {  # the four loaders, as changes of a config
    "blocking": {"pin": False, "non_blocking": False, "side_stream": False, "depth": 0, "resident": False},
    "pinned": {"pin": True, "non_blocking": True, "side_stream": False, "depth": 0, "resident": False},
    "prefetch": {"pin": True, "non_blocking": True, "side_stream": True, "depth": 2, "resident": False,
                 "lifetime": "consumer"},
    "resident": {"resident": True},
}  # fmt: skip


class Batch(NamedTuple):
    """What is loaded: bytes of each tensor, samples (0: not known), ns of preparing it and of drawing its indices.

    A worker prepares it, or the main thread, which also draws the indices. `waits` ns more need no core. For `locked`
    ns of all that it has a lock, which one worker has at a time.
    """

    tensors: Sequence[int]
    samples: int
    fetch_time: int
    draw_time: int = 0
    waits: int = 0
    locked: int = 0
    sends: Parcel | None = None

    @property
    def parcel(self) -> Parcel:
        """What a worker sends: the tensors, if nothing else is known."""
        return self.sends or Parcel(len(self.tensors), sum(self.tensors))


class Work(Protocol):
    """What is loaded and computed. Batches are counted from 0, warm-up included.

    `resident_bytes` are moved to the GPU before the loop, if the data set lives there.
    """

    resident_bytes: Sequence[int]

    def batch(self, number: int) -> Batch:
        """Return what is loaded."""

    def train(self, runtime: Runtime, number: int) -> None:
        """Do a step's work on the default stream, from the host's calls to the kernels."""

    def source(self, does: str) -> str:
        """The "file:line" that does this ("copy", "loop", …), or ""."""


def launch(runtime: Runtime, name: str, time: int) -> None:
    """An operator of a training step that launches one kernel of `time` ns on the default stream."""
    start = runtime.now
    runtime.host_needs(runtime.host.step_operator())
    runtime.launch(time, name=name)
    runtime.note(start, f"aten::{name}")


class HostBatch(NamedTuple):
    """A batch in host memory: its tensors' bytes, and their pinned blocks, if the loader pins them."""

    tensors: Sequence[int]
    pinned: tuple[PinnedBlock, ...] = ()


class DataLoader:
    """torch's DataLoader without data: batches of so many bytes, when they are there."""

    def __init__(self, runtime: Runtime, config: LoaderConfig, work: Work) -> None:
        self.runtime, self.config, self.work = runtime, config, work
        self.pool = PinnedPool(runtime)
        self.number = self.begun = 0  # how many batches the loop has asked for, and workers have begun
        self.schedule = LoaderSchedule(runtime, config.workers)
        self.prepared = deque[tuple[int, HostBatch]]()
        if config.in_threads and runtime.host.switch_interval:
            runtime.shared.share_lock()

    def next(self) -> HostBatch:
        """Give the main thread its next batch; it waits until the batch is there."""
        runtime, number = self.runtime, self.number
        self.number += 1
        runtime.batch, runtime.source = number, self.work.source("loop")
        batch = self.work.batch(number)
        runtime.now += batch.draw_time
        if not self.config.workers:
            if took := batch.fetch_time + batch.waits:
                runtime.shared.main_rests(runtime.now, runtime.now + batch.waits)
                runtime.host_work(took, f"fetch batch {number}", Kind.FETCH, waited=batch.waits)
            blocks = list[PinnedBlock]()
            for nbytes in batch.tensors if self.config.pins else ():
                blocks.append(self.pool.allocate(nbytes))
                took = runtime.host.dispatch + runtime.host.pin_time(nbytes)
                runtime.host_work(took, f"pin batch {number}", Kind.PIN, nbytes=nbytes, pinned=True)
            return HostBatch(batch.tensors, tuple(blocks))
        # threads hold the interpreter's lock from when they have an order, not when the loop asks for the batch
        self._prepare_all(len(self.schedule.ordered) if self.config.threads else self.number)
        ready, prepared = self.prepared.popleft()
        sent = not (self.config.pins or self.config.threads)
        self.schedule.hand_out(ready, runtime.host.receiving(batch.parcel) if sent else 0)
        return prepared

    def _prepare_all(self, until: int) -> None:
        """Workers prepare the batches before that one."""
        for number in range(self.begun, until):
            self.prepared.append(self._prepare(number))
        self.begun = until

    def _prepare(self, number: int) -> tuple[int, HostBatch]:
        """A worker fetches a batch, and the pin thread pins it; return when it is ready [ns]."""
        batch, blocks = self.work.batch(number), list[PinnedBlock]()

        def locking(start: int) -> int:
            found = [self.pool.allocate_at(nbytes, start) for nbytes in batch.tensors]
            blocks.extend(block for block, _ in found)
            return sum(locked for _, locked in found)

        worker, parcel, host = number % self.config.workers, batch.parcel, self.runtime.host
        nbytes = sum(batch.tensors)
        sending, receiving = (0, 0) if self.config.threads else (host.sending(parcel), host.receiving(parcel))
        queued = self.schedule.queue(worker, number, [("", 1, batch.locked, "")])
        ready = self.schedule.fetch(
            number, worker, batch.fetch_time + sending, nbytes, self.work.source("fetch"), batch.waits,
            python=batch.fetch_time * self.config.python // 1000, queued=queued,
        )  # fmt: skip
        if self.config.pins:
            ready = self.schedule.pin(number, ready, nbytes, locking, receiving)
        return ready, HostBatch(batch.tensors, tuple(blocks))

    def finish(self) -> None:
        """Note what workers and pin thread do for batches that were ordered and not yet asked for."""
        self._prepare_all(len(self.schedule.ordered))


class Replay:
    """A training loop: batch after batch is copied, or gathered on the GPU, and trained on.

    `from_hand_out`: a step begins when its batch is handed out, not when it is asked for.
    """

    def __init__(self, config: LoaderConfig, work: Work, runtime: Runtime, *, from_hand_out: bool = False) -> None:
        self.config, self.work, self.runtime = config, work, runtime
        self.from_hand_out = from_hand_out
        self.loader = DataLoader(runtime, config, work)
        self.pool = DevicePool(runtime)
        self.main = runtime.default_stream
        self.side = runtime.stream() if config.side_stream and not config.resident else self.main
        self.on_side = self.side is not self.main
        self.lifetime = LIFETIMES[config.lifetime]
        self.holds: HostBatch | None = None  # the variable `batch`
        self.blocks: list[Block] = []  # the variable `x`
        self.ring = deque[list[Block]]()
        self.queue = deque[tuple[list[Block], Event]]()  # batches copied ahead
        self.asked = 0  # when the present batch was asked for [ns]
        self.steps: list[tuple[int, int]] = []  # (start [ns], batch)

    def run(self, warmup: int, steps: int) -> Timeline:
        """Return `steps` steps after a warm-up, at whose end the host waits for the GPU. Raises `OutOfMemory`."""
        runtime, work, config = self.runtime, self.work, self.config
        step = self._resident if config.resident else self._ahead if config.depth else self._in_place
        for does, nbytes in zip(("move", "order"), work.resident_bytes if config.resident else (), strict=False):
            self._at(does)
            self.pool.allocate(nbytes)
            runtime.memcpy(nbytes, "h2d", pinned=False, blocking=True)
        for number in range(warmup + steps):
            if number == warmup:  # the clock runs from the end of the warm-up on, as any timing must (R27)
                self._at("synchronize")
                runtime.synchronize()
            self.asked = runtime.now
            step(number)
            runtime.batch = number
            work.train(runtime, number)
        self._at("synchronize")
        runtime.synchronize()
        if not config.resident:
            self.loader.finish()
        ends = [start for start, _ in self.steps[1:]] + [runtime.now]
        for (start, batch), end in zip(self.steps, ends, strict=True):
            runtime.range(start, end, batch_name(batch, work.batch(batch).samples), batch)
        total = sum(work.batch(number).samples for number in range(warmup + steps))
        usage = runtime.shared.usage()
        context = Context(runtime.gpu.name, "emulated", runtime.host.name, samples=total or None, usage=usage)
        return runtime.timeline(context).between(self.steps[warmup][0], runtime.now)

    def _begin(self, number: int) -> None:
        self.steps.append((self.runtime.now if self.from_hand_out else self.asked, number))

    def _in_place(self, number: int) -> None:
        """Copy a batch when its turn has come."""
        batch = self.loader.next()
        self._begin(number)
        fresh = self._copy(batch)
        if self.on_side:
            self._at("hand over")
            self.runtime.wait_stream(self.main, self.side)
        self._rebind(fresh)
        self._record_stream(fresh)

    def _ahead(self, number: int) -> None:
        """Copy `depth` batches before their turn."""
        while len(self.queue) < self.config.depth and not number:  # the first ones
            self._copy_with_event()
        fresh, copied = self.queue.popleft()
        self.runtime.batch = number
        self._at("drop")
        self._rebind(fresh)
        if self.on_side:
            self._at("hand over")
            self.runtime.wait_event(self.main, copied)
        self._record_stream(fresh)
        self._copy_with_event()
        self._begin(number)

    def _resident(self, number: int) -> None:
        """Gather a batch on the GPU."""
        self._begin(number)
        self.runtime.batch = number
        self._at("gather")
        batch, fresh = self.work.batch(number), []
        for nbytes in batch.tensors:
            fresh.append(self.pool.allocate(nbytes))
            moved = 2 * nbytes + 8 * batch.samples  # with the indices
            launch(self.runtime, "index_select", memory_time(self.runtime.gpu, "gather", moved))
        self._rebind(fresh)

    # The statements

    def _at(self, does: str) -> None:
        self.runtime.source = self.work.source(does)

    def _copy(self, batch: HostBatch) -> list[Block]:
        """Copy a batch that the loader gave; return its memory on the device."""
        runtime, waits = self.runtime, not self.config.non_blocking
        for block in self.holds.pinned if self.holds else ():
            self.loader.pool.free(block)
        self.holds = batch
        blocks = self._memory(batch.tensors)
        self._at("copy")
        for index, nbytes in enumerate(batch.tensors):
            start = runtime.now
            runtime.now += runtime.host.dispatch
            if batch.pinned and not waits:
                self.loader.pool.use(batch.pinned[index], self.side)  # R29
            new = self.config.workers > 0 and not self.config.threads
            runtime.memcpy(nbytes, "h2d", self.side, pinned=self.config.pin, blocking=waits, new=new)
            runtime.note(start, "aten::copy_")
        return blocks

    def _copy_with_event(self) -> None:
        blocks, copied = self._copy(self.loader.next()), self.runtime.event(timing=False)
        if self.on_side:
            self._at("event")
            self.runtime.record_event(copied, self.side)
        self.queue.append((blocks, copied))

    def _memory(self, tensors: Sequence[int]) -> list[Block]:
        """Take the device memory of a batch, in the way of the lifetime policy."""
        policy, blocks = self.lifetime, list[Block]()
        if self.on_side and policy.ring:
            while len(self.ring) <= self.config.depth:
                self.ring.append([self.pool.allocate(nbytes, self.main) for nbytes in tensors])
            self.ring.rotate(-1)
            blocks = self.ring[-1]
        elif self.on_side and policy.of_consumer:
            self._at("allocate")
            blocks = [self.pool.allocate(nbytes, self.main) for nbytes in tensors]
        if self.on_side and policy.waits:
            self._at("protect")
            self.runtime.wait_stream(self.side, self.main)
        self._at("copy")
        return blocks or [self.pool.allocate(nbytes, self.side) for nbytes in tensors]

    def _rebind(self, fresh: list[Block]) -> None:
        """`x = …`: the former batch on the device is dropped."""
        if not (self.on_side and self.lifetime.ring):
            for block in self.blocks:
                self.pool.free(block)
        self.blocks = fresh

    def _record_stream(self, blocks: list[Block]) -> None:
        if self.on_side and self.lifetime.records:
            self._at("record_stream")
            for block in blocks:
                self.pool.record_stream(block, self.main)
