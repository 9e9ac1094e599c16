"""Runtime: the CUDA runtime in virtual time, without torch. A host with a clock, and a device that runs behind it.

    gpu = Runtime(Gpu.preset("a100"))
    copies, done = gpu.stream(), gpu.event()
    gpu.memcpy(25_000_000, "h2d", copies, pinned=True)   # truly asynchronous: costs the host one call
    gpu.record_event(done, copies)
    gpu.wait_event(gpu.default_stream, done)             # the default stream waits, the host does not
    gpu.launch(1_000_000, name="gemm")

Every call costs host time, as the rules of CUDA and PyTorch (rules.toml) say. All times are integer nanoseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple

from loaderviz.emulator.device import COMPUTE, D2H, H2D, NONE, Command, Device, Stream
from loaderviz.emulator.hardware import FULL, Gpu, Host, pages
from loaderviz.emulator.hazards import stream_words
from loaderviz.emulator.hazards.happens_before import HOST, Clock, HappensBefore, Place
from loaderviz.emulator.hazards.races import Races
from loaderviz.emulator.host import Shared
from loaderviz.emulator.kernels import memory_share, memory_time
from loaderviz.errors import LoadervizError
from loaderviz.timeline import ArrowKind, Cause, Context, Kind, Timeline, TimelineBuilder

POOL_STREAMS = 32  # per priority (R15)
PRIORITIES = (0, -3)  # lowest and highest; others are clamped (R18)
PAGEABLE_ASYNC = 64 * 1024  # bytes: up to here a pageable H2D copy does not block the host (R12)
KERNEL = Kind.COMPUTE  # looking one up in the enum costs as much as ten such names
# Of most rows: plain numbers, since a tuple of numbers and texts is none of the garbage collector's business.
API, OPERATOR, NO_CAUSE = int(Kind.API), int(Kind.OPERATOR), int(Cause.NONE)
DEFAULT_NUMBER, FIRST_POOL_NUMBER = 7, 13  # of the default stream and the next ones, as profilers show them

Direction = Literal["h2d", "d2h", "d2d"]


class CudaError(LoadervizError, RuntimeError):
    """A call that CUDA itself would refuse."""


class Event:
    """A CUDA event: created, recorded (into a stream), complete (when the stream has come to it)."""

    def __init__(self, *, timing: bool = True) -> None:
        self.timing = timing
        self.record: Command | None = None
        self.clock: Clock = {}
        self.captured: tuple[Capture, Stream, int] | None = None  # in a capture: the stream, and how far it was


class GraphNode(NamedTuple):
    """One kernel, as `Runtime.launch` takes it, or, with a `direction`, one copy of `nbytes` in a CUDA graph."""

    name: str
    duration: int = 0
    share: int = FULL
    traffic: int = 0
    nbytes: int = 0
    direction: Direction | None = None


class Capture:
    """Stream capture: what is put into `origin`, and into streams that wait for it, is noted instead of done.

    It is a *global* one: no call may wait for the device, or ask it. The errors are CUDA's own (900 to 907 of
    driver_types.h).
    """

    def __init__(self, origin: Stream) -> None:
        self.origin, self.nodes = origin, list[GraphNode]()
        self.failed = False
        self._work: dict[Stream, int] = {origin: 0}  # how much is in each stream that takes part
        self._joined: dict[Stream, int] = {}  # and how much of it others have waited for

    def takes(self, stream: Stream) -> bool:
        """Tell whether the stream is capturing."""
        return stream in self._work

    @property
    def branches(self) -> bool:
        """Whether more than one stream takes part."""
        return len(self._work) > 1

    def add(self, stream: Stream, node: GraphNode) -> Command:
        """Note a kernel or copy; return a command that never runs."""
        self._work[stream] += 1
        self.nodes.append(node)
        return Command(stream, node.name, KERNEL, NONE, 0)

    def refuse(self, why: str = "operation not permitted when stream is capturing") -> CudaError:
        """Return the error of a call that a capture does not permit; the capture has failed."""
        self.failed = True
        return CudaError(f"CUDA error: {why}")

    def record(self, event: Event, stream: Stream) -> None:
        """Note an event, recorded in a stream that is capturing."""
        event.captured = self, stream, self._work[stream]

    def wait(self, stream: Stream, event: Event) -> None:
        """A stream waits for a captured event, and takes part from now on."""
        assert event.captured
        _, other, work = event.captured
        self._work[stream] = self._work.get(stream, 0) + 1
        self._joined[other] = work

    def end(self, stream: Stream) -> None:
        """The capture ends in `stream`. Raises `CudaError` if that may not be."""
        if self.failed:
            raise self.refuse("operation failed due to a previous error during capture")
        if stream is not self.origin:
            raise self.refuse("capture was not ended in the same stream as it began")
        if any(self._joined.get(other, -1) < work for other, work in self._work.items() if other is not stream):
            raise self.refuse("capturing stream has unjoined work")


class Runtime:
    """A thread of the host, the one that runs, and the emulated GPU behind it.

    `now` is the host clock [ns]. `batch` and `source` are noted with every span made while they are set. `races`, if
    set, looks for hazards; it changes no time.
    """

    def __init__(self, gpu: Gpu, host: Host | None = None, *, launch_blocking: bool = False) -> None:
        self.gpu = gpu
        self.host = (host or Host.preset("laptop")).for_rank()
        self.shared = Shared(self.host)
        self.launch_blocking = launch_blocking
        self.device = Device(gpu)
        self.order = HappensBefore()
        self.races: Races | None = None
        self.builder = TimelineBuilder(Context())
        self.rested = 0  # ns for which the main thread has slept
        self.main = self.builder.lane("main", "host", "main")
        self.now = 0
        self.batch = -1
        self.source = ""
        self.default_stream = Stream(0, DEFAULT_NUMBER)
        self.streams: dict[int, Stream] = {0: self.default_stream}
        self._pools: dict[int, deque[Stream]] = {}
        self._blocking: list[Stream] = []
        self._work: list[Command] = []  # not yet in the builder
        self._spans: dict[Command, int] = {}  # work -> its span there
        self._correlation = 0
        self.keeps = True  # what happens, for the timeline
        self.capture: Capture | None = None  # the one that is under way
        self.scheduler: Any = None  # the `threads.Scheduler`, once there is more than one thread of the host

    # Streams and events

    def stream(self, priority: int = 0, *, blocking: bool = False) -> Stream:
        """Return a stream of PyTorch's pool: 32 per priority, round robin, none waits for the default stream (R15).

        `blocking=True` makes a new stream of the other kind, which the default stream waits for and which waits for
        it (R14); PyTorch has none of them.
        """
        low, high = PRIORITIES
        priority, number = max(high, min(low, priority)), len(self.streams)
        pool = self._pools.setdefault(priority, deque())  # the one handed out last is at its end
        if blocking or len(pool) < POOL_STREAMS:
            stream = self.streams[number] = Stream(number, FIRST_POOL_NUMBER + number - 1, priority, blocking=blocking)
            (self._blocking if blocking else pool).append(stream)
        else:
            pool.rotate(-1)
            stream = pool[-1]
        if self.races and not blocking:
            self.races.linter.stream_made(stream, self.source)
        return stream

    def event(self, *, timing: bool = True) -> Event:
        """Return a new event, not yet recorded."""
        return Event(timing=timing)

    def record_event(self, event: Event, stream: Stream | None = None) -> None:
        """`cudaEventRecord`: the event stands for all that is in the stream now (R16)."""
        stream = stream or self.default_stream
        self._call("cudaEventRecord", self.host.event_call)
        event.captured = None
        if self.capture and self.capture.takes(stream):
            self.capture.record(event, stream)
            return
        ready = self.now + self.gpu.launch_latency  # it takes the way of every command
        event.record = record = Command(stream, "event record", None, NONE, 0, ready)
        record.awaits = (*((stream.last_work,) if stream.last_work else ()), *stream.awaited.values())
        self._submit(record)
        event.clock = self.order.snapshot(stream.id)

    def wait_event(self, stream: Stream, event: Event, *, asked: bool = True) -> None:
        """`cudaStreamWaitEvent`: what the stream gets from now on waits for the event; the host does not (R16).

        An event that was never recorded holds nothing back. A wait not `asked` for is torch's own: it is never judged.
        """
        self._call("cudaStreamWaitEvent", self.host.event_call)
        if event.captured:
            if event.captured[0] is self.capture:
                self.capture.wait(stream, event)
                return
            raise CudaError("CUDA error: operation not permitted on an event last recorded in a capturing stream")
        if event.record and self.capture and self.capture.takes(stream):
            raise self.capture.refuse("dependency created on uncaptured work in another stream")
        judge = self.races.linter if self.races and asked else None
        marker = Command(stream, "event wait", None, NONE, 0, self.now)
        if judge:
            judge.wait(stream, event.record, self.source, self.batch, marker)
        if event.record is None:
            return
        marker.deps = (event.record,)
        self._submit(marker)
        self.order.wait(stream.id, event.clock, self.source if judge else "")
        for work in event.record.awaits:  # work of one stream ends in its order, so the last of it counts
            known = stream.awaited.get(work.stream)
            if known is None or known.sequence < work.sequence:
                stream.awaited[work.stream] = work

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
        if self.capture and learn:
            raise self.capture.refuse()
        name = "cudaEventQuery" if isinstance(target, Event) else "cudaStreamQuery"
        self._call(name, self.host.query)
        over = self.is_over(target)
        if over and learn:  # the host has learnt it, as by a synchronise
            self.order.wait(HOST, target.clock if isinstance(target, Event) else self.order.snapshot(target.id))
        return over

    def is_over(self, target: Event | Stream | Command) -> bool:
        """Tell, at no cost, whether it is over at the host's time."""
        self.device.advance(self.now)
        if isinstance(target, Stream):
            return not target.queue
        command = target.record if isinstance(target, Event) else target
        return command is None or command.done

    def elapsed_time(self, start: Event, end: Event) -> int:
        """Return the ns between two events. Raises `CudaError` unless both are recorded, complete and timed."""
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
        if self.capture and learn:
            raise self.capture.refuse()
        if target is None:
            name, ends = "cudaDeviceSynchronize", [s.last for s in self.streams.values()]
        elif isinstance(target, Stream):
            name, ends = "cudaStreamSynchronize", [target.last]
        else:
            name, ends = "cudaEventSynchronize", [target.record]
        start = self.now
        self.now += self.host.synchronize
        if self._block(ends, Cause.SYNCHRONIZE):
            self.now += self.host.wake
        self.note(start, name, API)
        if target is None:
            self.order.host_wait_all()
        elif learn:
            self.order.wait(HOST, self.order.snapshot(target.id) if isinstance(target, Stream) else target.clock)

    # Work

    def launch(
        self,
        duration: int,
        stream: Stream | None = None,
        name: str = "kernel",
        share: int = FULL,
        traffic: int = 0,
    ) -> Command:
        """`cudaLaunchKernel`: a kernel of `duration` ns that fills `share` thousandths of the GPU (R19, R23).

        It takes `traffic` thousandths of the memory bandwidth, so copies beside it slow it down (R49). Blocks only when
        the stream's launch queue is full (R24).
        """
        if duration < 0:
            raise ValueError(f"{name} of {duration} ns: a duration cannot be negative")
        stream = stream or self.default_stream
        return self._launch("cudaLaunchKernel", Command(stream, name, KERNEL, COMPUTE, duration, 0, share, traffic))

    def _launch(self, api: str, command: Command) -> Command:
        start, stream = self.now, command.stream
        self._wait_for_place(stream)
        self.now += self.host.launch
        if self.capture and self.capture.takes(stream):
            self.note(start, api, API)
            node = GraphNode(command.name, command.remaining // FULL, command.share, command.traffic)
            return self.capture.add(stream, node)
        self._put(command)
        command.api = self.note(start, api, API, command.nbytes, command.correlation)
        if self.launch_blocking:  # CUDA_LAUNCH_BLOCKING=1 (R27)
            self.synchronize(stream)
        return command

    def memset(self, nbytes: int, *, pinned_host: bool = False) -> Command:
        """`cudaMemsetAsync`: asynchronous, except when the target is pinned host memory (R10)."""
        name = f"Memset ({'Pinned' if pinned_host else 'Device'})"
        duration = memory_time(self.gpu, "fill", nbytes)
        memset = Command(self.default_stream, name, Kind.MEMSET, NONE, duration, nbytes=nbytes)
        command = self._launch("cudaMemsetAsync", memset)
        if pinned_host:
            self.synchronize(command.stream)
        return command

    def memcpy(
        self,
        nbytes: int,
        direction: Direction,
        stream: Stream | None = None,
        *,
        pinned: bool = True,
        blocking: bool = False,
        new: bool = False,
    ) -> Command:
        """`cudaMemcpyAsync`; with `blocking=True` followed by `cudaStreamSynchronize`, as PyTorch copies (R30).

        `pinned` tells about the host side, `new` that it is a worker's shared memory that nobody has read here yet, of
        which staging touches each page for the first time. Pinned copies are truly asynchronous (R8). A pageable H2D
        copy of more than 64 KB waits for the stream, then keeps the host busy with staging (R1, R7, R12); a pageable
        D2H copy blocks until it is done (R11).
        """
        if nbytes < 0:
            raise ValueError(f"memcpy of {nbytes} bytes: a size cannot be negative")
        if direction not in ("h2d", "d2h", "d2d"):
            raise ValueError(f"memcpy direction {direction!r}: choose 'h2d', 'd2h' or 'd2d'")
        start, stream = self.now, stream or self.default_stream
        if self.capture and self.capture.takes(stream):
            if blocking or not pinned:  # R34
                raise self.capture.refuse()
            self._call("cudaMemcpyAsync", self.host.memcpy_call)
            return self.capture.add(stream, GraphNode("memcpy", nbytes=nbytes, direction=direction))
        self._wait_for_place(stream)
        asynchronous = self.now + self.host.memcpy_call  # when it would return if it blocked for nothing
        staged = direction == "h2d" and not pinned and nbytes > PAGEABLE_ASYNC
        fills = direction == "d2h" and not pinned
        if staged:
            self._block([stream.last], Cause.STAGING)
        self.now += self.host.memcpy_call
        alone = self.gpu.pageable_time(nbytes, down=direction == "d2h")
        beside = 0 if pinned or nbytes <= PAGEABLE_ASYNC else self.shared.crowded(alone, self.now) - alone
        beside += self._touch(nbytes, staged) if new and not pinned else 0
        command = self._copy(nbytes, direction, stream, pinned, beside)
        if staged:
            tail = self.gpu.copy_time(min(nbytes, self.gpu.staging_chunk), self.gpu.h2d)
            if self.scheduler:
                self.scheduler.wait_for_device(lambda: command.start >= 0)
            begun = self.device.run_to_start(command)
            self._block_until(max(begun, begun + alone + beside - tail), Cause.STAGING)
        elif fills and not blocking:
            self._block([command], Cause.STAGING)
        command.api = self.note(start, "cudaMemcpyAsync", API, nbytes, command.correlation)
        if self.races and not blocking and (staged or fills):
            self.races.linter.blocked(command, self.now - asynchronous)
        if blocking or (self.launch_blocking and direction != "d2d"):
            self.synchronize(stream)
        elif fills:
            self.order.wait(HOST, self.order.snapshot(stream.id))
        return command

    def _touch(self, nbytes: int, staged: bool) -> int:
        """Each page is touched for the first time: return the ns by which staging lasts longer, if that does it."""
        if staged:
            return pages(nbytes) * self.host.staged_page
        self.now += pages(nbytes) * self.host.first_read
        return 0

    def _copy(self, nbytes: int, direction: Direction, stream: Stream, pinned: bool, beside: int = 0) -> Command:
        """Put a copy into its stream, which takes `beside` ns longer because workers use the host's memory."""
        gpu, memory = self.gpu, "Pinned" if pinned else "Pageable"
        if direction == "d2d":  # each byte is read once and written once
            name, work = "Memcpy DtoD (Device -> Device)", memory_time(gpu, "memcpy", 2 * nbytes)
            return self._put(Command(stream, name, Kind.COPY_D2D, NONE, work, nbytes=nbytes))
        if direction == "h2d":
            kind, engine, rate = Kind.COPY_H2D, H2D, gpu.h2d
            name = f"Memcpy HtoD ({memory} -> Device)"
            if not pinned and nbytes <= PAGEABLE_ASYNC:
                self.now += self.host.work_time(nbytes)  # into the command buffer, before it can be sent (R12)
        else:
            engine = D2H if gpu.async_engines > 1 else H2D  # one for both ways (R20)
            kind, rate = Kind.COPY_D2H, gpu.d2h
            name = f"Memcpy DtoH (Device -> {memory})"
        down = direction == "d2h"
        work = (gpu.copy_time(nbytes, rate, down=down) if pinned else gpu.pageable_time(nbytes, down=down)) + beside
        part = memory_share(gpu, nbytes, work)
        return self._put(Command(stream, name, kind, engine, work, traffic=part, nbytes=nbytes, pinned=pinned))

    def launch_graph(self, nodes: Iterable[GraphNode], stream: Stream | None = None) -> list[Command]:
        """`cudaGraphLaunch`: one call for all nodes, which then run in this order.

        It costs the host as much as one kernel's launch, however many nodes there are: assumed, after NVIDIA's blog
        "Constant Time Launch for Straight-Line CUDA Graphs" (CUDA 12.6; before, each node added to it).
        """
        start, stream, commands = self.now, stream or self.default_stream, list[Command]()
        if self.capture and self.capture.takes(stream):
            raise self.capture.refuse()  # a graph in a graph
        self._wait_for_place(stream)
        self.now += self.host.launch
        for name, duration, share, traffic, nbytes, direction in nodes:
            if direction:
                commands.append(self._copy(nbytes, direction, stream, pinned=True))
            else:
                commands.append(self._put(Command(stream, name, KERNEL, COMPUTE, duration, 0, share, traffic)))
        correlation = commands[0].correlation if commands else -1
        api = self.note(start, "cudaGraphLaunch", API, commands[0].nbytes if len(commands) == 1 else -1, correlation)
        for command in commands:
            command.correlation, command.api = correlation, api
        if self.launch_blocking:
            self.synchronize(stream)
        return commands

    def page_lock(self, nbytes: int) -> None:
        """`cudaHostAlloc`: slow (R44), but it waits for nobody (R13)."""
        start = self.now
        self._block_until(self.now + self.host.page_lock_time(nbytes), Cause.PAGE_LOCKING)
        self.note(start, "cudaHostAlloc", API, nbytes)

    def malloc(self, nbytes: int) -> None:
        """`cudaMalloc`: costs host time, and waits for nobody (R13)."""
        self._call("cudaMalloc", self.gpu.malloc_time(nbytes), nbytes)

    def free(self, nbytes: int) -> None:
        """`cudaFree` of what may be in use: waits for the device (R13)."""
        start = self.now
        self._block([s.last for s in self.streams.values()], Cause.ALLOCATION)
        self.now += self.gpu.malloc_time(nbytes)
        self.note(start, "cudaFree", API, nbytes)

    def host_work(self, duration: int, name: str = "host", kind: int = OPERATOR, **about: Any) -> None:
        """Keep the host busy for `duration` ns, and `note` that."""
        if duration < 0:
            raise ValueError(f"host_work of {duration} ns: time cannot go back")
        start = self.now
        self.host_needs(duration)
        self.note(start, name, kind, **about)

    def host_needs(self, duration: int) -> None:
        """Let the host do `duration` ns of Python and operators, after threads that hold Python's lock (R53)."""
        end = self.shared.python(self.now, duration)
        if end - duration > self.now:
            self._block_until(end - duration, Cause.GIL)
        self.now = end

    def wait_for_data(self, until: int) -> None:
        """Block the host until `until` [ns], because the next batch is not there before."""
        self.shared.main_rests(self.now, max(self.now, until))
        self._block_until(until, Cause.DATA)

    def sleep(self, duration: int) -> None:
        """The main thread sleeps for `duration` ns, which takes no core."""
        self.shared.main_rests(self.now, self.now + duration)
        self.rested += duration
        self.host_work(duration, "time.sleep")

    # The record

    def note(
        self,
        start: int,
        name: str,
        kind: int = OPERATOR,
        nbytes: int = -1,
        correlation: int = -1,
        *,
        pinned: bool | None = None,
        waited: int = 0,
    ) -> int:
        """Note what the host did from `start` [ns] until now, in the present batch and at the present line.

        Return the number of its span.
        """
        end, main, batch, source = self.now, self.main, self.batch, self.source
        return self.builder.span(
            start, end, main, kind, name, batch, nbytes, correlation, pinned, NO_CAUSE, source, waited
        )

    def range(self, start: int, end: int, name: str, batch: int = -1) -> None:
        """Note an annotation on the main lane."""
        self.builder.span(start, end, self.main, Kind.RANGE, name, batch=batch)

    def timeline(self, context: Context | None = None) -> Timeline:
        """Return all that happened, the device's unfinished work run to its end; the host's clock goes there, too."""
        self.now = max(self.now, self.device.drain())
        builder, spans = self.builder, self._spans
        for command in self._work:
            if not command.done:
                continue  # an interrupt inside a step of the device lost it, or what it waits for
            spans[command] = _device_span(builder, command)
            if command.api >= 0:
                builder.arrow(command.api, spans[command], ArrowKind.LAUNCH)
            for before in command.awaits:
                if before in spans:  # else it was dropped
                    builder.arrow(spans[before], spans[command], ArrowKind.WAIT)
        self._work = []
        if self.races:
            self.races.finish(spans)
        builder.context = context or Context(self.gpu.name, "emulated", self.host.name)
        return builder.build()

    def drop(self) -> None:
        """Leave out of the timeline what was over before now. It changes no time."""
        self.device.advance(self.now)
        self.builder.drop(self.now)
        work, self._work = self._work, []
        for command in work:
            if command.done and command.end < self.now:
                command.awaits = ()  # or the last would hold all
            else:
                self._work.append(command)
        if self.races:
            self.races.linter.add_up()

    def forget(self) -> None:
        """The timeline is built, and nothing that happens from now on is kept, or looked at for races."""
        self.keeps, self.races = False, None
        self.builder.forget()
        self._spans.clear()
        self.order.counterfactuals.clear()

    def recorded(self, since: int) -> Timeline:
        """Return what the host did since `builder` had so many spans, and what of its work for the device is over."""
        builder = self.builder.rest(since)
        for command in self._work:
            if command.api >= since and command.done:
                _device_span(builder, command)
        return builder.build()

    def is_ordered(self, stream: Stream | None, place: Place) -> bool:
        """Tell whether what `stream` (None: the host) does next is certain to come after the command at `place`."""
        return self.order.is_ordered(HOST if stream is None else stream.id, place)

    # For the calls

    def _wait_for_place(self, stream: Stream) -> None:
        """The launch queue holds about a thousand commands; a call that finds it full blocks (R24)."""
        if len(stream.queue) >= self.gpu.queue_depth:
            self.device.advance(self.now)
            while len(stream.queue) >= self.gpu.queue_depth:
                self._block([stream.queue[0]], Cause.QUEUE_FULL)

    def _put(self, command: Command) -> Command:
        """Put a command into its stream now, at the present batch and source."""
        if not 0 < command.share <= FULL:
            raise ValueError(f"{command.name}: share {command.share} must lie in 1..{FULL} thousandths of the GPU")
        if self.main:
            self.scheduler.shares_gpu = True
        stream = command.stream
        self._correlation = command.correlation = self._correlation + 1
        command.ready, command.batch, command.source = self.now + self.gpu.launch_latency, self.batch, self.source
        if stream.awaited:
            command.awaits, stream.awaited = tuple(stream.awaited.values()), {}
            if self.races:
                self.races.linter.followed(command)
        self._submit(command)
        stream.last_work = command
        if self.keeps:
            self._work.append(command)
        return command

    def _submit(self, command: Command) -> None:
        """Put a command, or a marker, into its stream.

        Blocking streams and the default stream wait for each other, PyTorch's pool does not (R14, R15).
        """
        stream = command.stream
        if stream is self.default_stream:
            others = self._blocking
        else:
            others = [self.default_stream] if stream.blocking else []
        for other in others:
            if other.last:
                command.deps += (other.last,)
                self.order.wait(stream.id, self.order.snapshot(other.id))
        self.device.submit(command)
        if not self.keeps:
            self.device.advance(self.now)
        command.sequence = self.order.enqueue(stream.id)[1]

    def _block(self, ends: Iterable[Command | None], cause: Cause) -> bool:
        """Block the host until all of `ends` are over; tell whether it had to wait."""
        if self.scheduler:
            ends = list(ends)
            self.scheduler.wait_for_device(lambda: all(end is None or end.done for end in ends))
        device, until = self.device, self.now
        device.advance(until)
        for command in ends:
            if command and device.run(command) > until:
                until = command.end
        return self._block_until(until, cause)

    def _block_until(self, until: int, cause: Cause) -> bool:
        late, threads = until > self.now, self.scheduler
        with threads.without_gil() if threads else nullcontext():
            if late:
                self.builder.span(
                    self.now,
                    until,
                    self.main,
                    Kind.WAIT,
                    cause.words,
                    batch=self.batch,
                    cause=cause,
                    source=self.source,
                )
                self.now = until
        return late

    def _call(self, name: str, cost: int, nbytes: int = -1) -> None:
        start = self.now
        self.now += cost
        self.note(start, name, API, nbytes)


def _device_span(builder: TimelineBuilder, command: Command) -> int:
    assert command.kind is not None
    lane = builder.lane(stream_words(command.stream.number), "device", "stream", command.stream.number)
    return builder.span(
        command.start,
        command.end,
        lane,
        command.kind,
        command.name,
        batch=command.batch,
        nbytes=command.nbytes,
        correlation=command.correlation,
        pinned=command.pinned,
        source=command.source,
    )
