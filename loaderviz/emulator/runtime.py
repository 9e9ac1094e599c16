"""Runtime: the CUDA runtime in virtual time, without torch. A host with a clock, and a device that runs behind it.

    gpu = Runtime(Gpu.preset("a100"))
    copies = gpu.stream()
    done = gpu.event()
    gpu.memcpy(25_000_000, "h2d", copies, pinned=True)   # truly asynchronous: costs the host one call
    gpu.record_event(done, copies)
    gpu.wait_event(gpu.default_stream, done)             # the default stream waits, the host does not
    gpu.launch(1_000_000, name="gemm")
    gpu.synchronize()
    gpu.timeline().self_check()

Every call costs host time, as the rules R1 to R45 of CUDA and PyTorch say. All times are integer nanoseconds.
"""

from __future__ import annotations

from typing import Literal

from loaderviz.emulator import costs
from loaderviz.emulator.calls import HostThread, stream_name
from loaderviz.emulator.device import Command, Engine, Stream
from loaderviz.emulator.hardware import Gpu, Host
from loaderviz.emulator.hazards import Clock
from loaderviz.errors import LoadervizError
from loaderviz.timeline import Cause, Kind

__all__ = ["CudaError", "Event", "Runtime", "stream_name"]

POOL_STREAMS = 32  # per priority (R15)
PRIORITIES = (0, -3)  # lowest and highest; others are clamped (R18)
PAGEABLE_ASYNC = 64 * 1024  # bytes: up to here a pageable H2D copy does not block the host (R12)
FIRST_POOL_NUMBER = 13  # what profilers show; the default stream is 7

Direction = Literal["h2d", "d2h", "d2d"]


class CudaError(LoadervizError, RuntimeError):
    """A call that CUDA itself would refuse."""


class Event:
    """A CUDA event: created, recorded (into a stream), complete (when the stream has come to it)."""

    def __init__(self, *, timing: bool = True) -> None:
        self.timing = timing
        self.record: Command | None = None
        self.clock: Clock = {}


class Runtime(HostThread):
    """The host's view of one emulated GPU.

    `now` is the host clock [ns]. `batch` and `source` are noted with every span made while they are set.
    """

    def __init__(self, gpu: Gpu, host: Host | None = None, *, launch_blocking: bool = False) -> None:
        super().__init__(gpu, host, launch_blocking=launch_blocking)
        self._pools: dict[int, list[Stream]] = {}
        self._handed_out: dict[int, int] = {}

    # Streams and events

    def stream(self, priority: int = 0, *, blocking: bool = False) -> Stream:
        """Return a stream of PyTorch's pool: 32 per priority, round robin, none waits for the default stream (R15).

        `blocking=True` makes a new stream of the other kind, which the default stream waits for and which waits for
        it (R14); PyTorch has none of them.
        """
        low, high = PRIORITIES
        priority = max(high, min(low, priority))
        if blocking:
            return self._new_stream(priority, blocking=True)
        pool = self._pools.setdefault(priority, [])
        turn = self._handed_out.get(priority, 0)
        self._handed_out[priority] = turn + 1
        if turn < POOL_STREAMS:
            pool.append(self._new_stream(priority))
        stream = pool[turn % POOL_STREAMS]
        if self.races:
            self.races.waits.stream_made(stream, self.source)
        return stream

    def _new_stream(self, priority: int, *, blocking: bool = False) -> Stream:
        number = len(self.streams)
        stream = self.streams[number] = Stream(number, FIRST_POOL_NUMBER + number - 1, priority, blocking=blocking)
        if blocking:
            self._blocking.append(stream)
        return stream

    def event(self, *, timing: bool = True) -> Event:
        """Return a new event, not yet recorded."""
        return Event(timing=timing)

    def record_event(self, event: Event, stream: Stream | None = None) -> None:
        """`cudaEventRecord`: the event stands for all that is in the stream now (R16)."""
        stream = stream or self.default_stream
        self._call("cudaEventRecord", self.host.event_call)
        ready = self.now + self.gpu.launch_latency  # it takes the way of every command
        event.record = self._submit(Command(stream, "event record", None, Engine.NONE, 0, ready))
        event.clock = self.order.snapshot(stream.id)

    def wait_event(self, stream: Stream, event: Event, *, asked: bool = True) -> None:
        """`cudaStreamWaitEvent`: what the stream gets from now on waits for the event; the host does not (R16).

        An event that was never recorded holds nothing back. A wait not `asked` for is torch's own: it is never judged.
        """
        self._call("cudaStreamWaitEvent", self.host.event_call)
        judge = self.races.waits if self.races and asked else None
        if event.record is None:
            if judge:
                judge.note(stream, None, self.source, self.batch)
            return
        marker = Command(stream, "event wait", None, Engine.NONE, 0, self.now)
        marker.deps = (event.record,)
        if judge:
            judge.note(stream, event.record, self.source, self.batch, marker)
        self._submit(marker)
        self.order.wait(stream.id, event.clock, self.source if judge else "")
        stream.await_work(event.record.awaits)

    def wait_stream(self, stream: Stream, other: Stream, *, asked: bool = True) -> None:
        """`stream.wait_stream(other)`: an event recorded in `other` now, and a wait for it (R16)."""
        event = self.event(timing=False)
        self.record_event(event, other)
        self.wait_event(stream, event, asked=asked)

    def query(self, target: Event | Stream, *, learn: bool = True) -> bool:
        """`cudaEventQuery` / `cudaStreamQuery`: is it over? An event never recorded is.

        The program may rely on the answer; with `learn=False` it does not hear it (an allocator's poll), so that no
        order comes of it.
        """
        name = "cudaEventQuery" if isinstance(target, Event) else "cudaStreamQuery"
        self._call(name, self.host.query)
        over = self.is_over(target)
        if over and learn:  # the host has learnt it, as by a synchronise
            self.order.host_wait(target.clock if isinstance(target, Event) else self.order.snapshot(target.id))
        return over

    def is_over(self, target: Event | Stream | Command) -> bool:
        """Tell, at no cost, whether it is over at the host's time."""
        self.device.advance(self.now)
        if isinstance(target, Stream):
            return not target.queue
        command = target.record if isinstance(target, Event) else target
        return command is None or command.done

    def elapsed_time(self, start: Event, end: Event) -> int:
        """Return the ns between two events.

        Raises `CudaError` if one of them is not recorded, not complete or made without timing.
        """
        for event in (start, end):
            if event.record is None:
                raise CudaError("elapsed_time: both events must be recorded before their times are asked for")
            if not event.timing:
                raise CudaError("elapsed_time: make both events with enable_timing=True")
            if not self.is_over(event):
                raise CudaError("elapsed_time: an event is not complete yet; synchronize first")
        assert start.record and end.record
        return end.record.end - start.record.end

    def synchronize(self, target: Stream | Event | None = None, *, learn: bool = True) -> None:
        """Block the host until a stream, an event, or (None) the whole device is done; `learn` as in `query`."""
        if target is None:
            name, ends = "cudaDeviceSynchronize", [s.last for s in self.streams.values()]
        elif isinstance(target, Stream):
            name, ends = "cudaStreamSynchronize", [target.last]
        else:
            name, ends = "cudaEventSynchronize", [target.record]
        start = self.now
        self.now += self.host.synchronize
        self._block(ends, Cause.SYNCHRONIZE)
        self._api(name, start)
        if target is None:
            self.order.host_wait_all()
        elif learn:
            self.order.host_wait(self.order.snapshot(target.id) if isinstance(target, Stream) else target.clock)

    # Work

    def launch(
        self, duration: int, stream: Stream | None = None, *, name: str = "kernel", share: int = costs.FULL
    ) -> Command:
        """`cudaLaunchKernel`: a kernel of `duration` ns that fills `share` thousandths of the GPU (R19, R23).

        Blocks only when the stream's launch queue is full (R24).
        """
        return self._enqueue("cudaLaunchKernel", self.host.launch, stream, name, Kind.COMPUTE, duration, share=share)

    def memset(self, nbytes: int, stream: Stream | None = None, *, pinned_host: bool = False) -> Command:
        """`cudaMemsetAsync`: asynchronous, except when the target is pinned host memory (R10)."""
        duration = costs.kernel_time(self.gpu, nbytes)
        name = "Memset (Pinned)" if pinned_host else "Memset (Device)"
        command = self._enqueue(
            "cudaMemsetAsync", self.host.launch, stream, name, Kind.MEMSET, duration, nbytes=nbytes
        )  # fmt: skip
        if pinned_host:
            self.synchronize(command.stream)
        return command

    def memcpy(
        self, nbytes: int, direction: Direction, stream: Stream | None = None, *, pinned: bool = True,
        blocking: bool = False,
    ) -> Command:  # fmt: skip
        """`cudaMemcpyAsync`; with `blocking=True` followed by `cudaStreamSynchronize`, as PyTorch copies (R30).

        `pinned` tells about the host side. Pinned copies are truly asynchronous (R8). A pageable H2D copy of more than
        64 KB waits for the stream, then keeps the host busy with staging (R1, R7, R12); a pageable D2H copy blocks
        until it is done (R11).
        """
        if nbytes < 0:
            raise ValueError(f"memcpy of {nbytes} bytes: a size cannot be negative")
        if direction not in ("h2d", "d2h", "d2d"):
            raise ValueError(f"memcpy direction {direction!r}: choose 'h2d', 'd2h' or 'd2d'")
        start = self.now
        self._wait_for_place(stream or self.default_stream)
        asynchronous = self.now + self.host.memcpy_call  # when it would return if it blocked for nothing
        staged = direction == "h2d" and not pinned and nbytes > PAGEABLE_ASYNC
        if staged and (stream or self.default_stream).last:
            self._block([(stream or self.default_stream).last], Cause.STAGING)
        command = self._copy(nbytes, direction, stream, pinned)
        if staged:
            tail = costs.copy_time(self.gpu, min(nbytes, self.gpu.staging_chunk), self.gpu.h2d)
            begun = self.device.run_to_start(command)
            staged_at = begun + costs.copy_time(self.gpu, nbytes, self.gpu.pageable) - tail
            self._block_until(max(begun, staged_at), Cause.STAGING)
        elif direction == "d2h" and not pinned and not blocking:
            self._block([command], Cause.STAGING)
        self._api("cudaMemcpyAsync", start, command)
        if self.races and not blocking and (staged or (direction == "d2h" and not pinned)):
            self.races.waits.blocked(command, self.now - asynchronous)
        if blocking or (self.launch_blocking and direction != "d2d"):
            self.synchronize(command.stream)
        elif direction == "d2h" and not pinned:
            self.order.host_wait(self.order.snapshot(command.stream.id))
        return command

    def memcpy_sync(self, nbytes: int, direction: Direction, *, pinned: bool = True) -> Command:
        """`cudaMemcpy` in the default stream, which PyTorch does not use.

        Pageable H2D returns once the data are staged (R1), pinned H2D and every D2H at completion (R2, R3); D2D does
        not block the host (R4).
        """
        blocking = direction == "d2h" or (direction == "h2d" and pinned)
        return self.memcpy(nbytes, direction, self.default_stream, pinned=pinned, blocking=blocking)

    def page_lock(self, nbytes: int) -> None:
        """`cudaHostAlloc`: slow, and it synchronises the device (R13, R44)."""
        start = self.now
        self._block([s.last for s in self.streams.values()], Cause.PAGE_LOCKING)
        self._block_until(self.now + costs.page_lock_time(self.host, nbytes), Cause.PAGE_LOCKING)
        self._api("cudaHostAlloc", start, nbytes=nbytes)

    def malloc(self, nbytes: int, name: str = "cudaMalloc") -> None:
        """`cudaMalloc` or `cudaFree`: synchronises the device (R13)."""
        start = self.now
        self._block([s.last for s in self.streams.values()], Cause.ALLOCATION)
        self.now += self.gpu.malloc
        self._api(name, start, nbytes=nbytes)

    # Inside

    def _copy(self, nbytes: int, direction: Direction, stream: Stream | None, pinned: bool) -> Command:
        gpu = self.gpu
        self.now += self.host.memcpy_call
        if direction == "d2d":
            kind, engine, work, name = Kind.COPY_D2D, Engine.NONE, costs.device_copy_time(gpu, nbytes), "DtoD"
            return self._put(stream, f"Memcpy {name} (Device -> Device)", kind, engine, work, nbytes)
        if direction == "h2d":
            kind, engine, rate = Kind.COPY_H2D, Engine.H2D, gpu.h2d if pinned else gpu.pageable
        else:
            engine = Engine.D2H if gpu.async_engines > 1 else Engine.H2D  # one for both ways (R20)
            kind, rate = Kind.COPY_D2H, gpu.d2h if pinned else gpu.pageable
        if direction == "h2d" and not pinned and nbytes <= PAGEABLE_ASYNC:
            self.now += costs.host_time(self.host, nbytes)  # into the command buffer, before it can be sent (R12)
        memory = "Pinned" if pinned else "Pageable"
        name = f"HtoD ({memory} -> Device)" if direction == "h2d" else f"DtoH (Device -> {memory})"
        work = costs.copy_time(gpu, nbytes, rate)
        return self._put(stream, f"Memcpy {name}", kind, engine, work, nbytes, pinned=pinned)

    def _enqueue(
        self, api: str, cost: int, stream: Stream | None, name: str, kind: Kind, work: int, *, nbytes: int = -1,
        share: int = costs.FULL,
    ) -> Command:  # fmt: skip
        if work < 0:
            raise ValueError(f"{name} of {work} ns: a duration cannot be negative")
        start = self.now
        stream = stream or self.default_stream
        self._wait_for_place(stream)
        self.now += cost
        engine = Engine.COMPUTE if kind == Kind.COMPUTE else Engine.NONE
        command = self._put(stream, name, kind, engine, work, nbytes, share=share)
        self._api(api, start, command)
        if self.launch_blocking:  # CUDA_LAUNCH_BLOCKING=1 (R27)
            self.synchronize(stream)
        return command
