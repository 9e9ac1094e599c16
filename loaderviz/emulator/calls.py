"""HostThread: the host's side of the emulated machine. Its clock, its calls and waits, and the record of it all.

`Runtime` builds on it: what a call does stands there, what every call has in common stands here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from loaderviz.builder import TimelineBuilder
from loaderviz.emulator import costs
from loaderviz.emulator.device import Command, Device, Engine, Stream
from loaderviz.emulator.hardware import Gpu, Host
from loaderviz.emulator.hazards import HOST, HappensBefore, Place
from loaderviz.timeline import ArrowKind, Cause, Context, Kind, Timeline

if TYPE_CHECKING:
    from loaderviz.emulator.races import Races

DEFAULT_NUMBER = 7  # what profilers show for the default stream


class HostThread:
    """The main thread and the device behind it.

    `now` is the host clock [ns]. `batch` and `source` are noted with every span made while they are set. `races`, if
    set, looks for hazards; it changes no time.
    """

    def __init__(self, gpu: Gpu, host: Host | None = None, *, launch_blocking: bool = False) -> None:
        self.gpu = gpu
        self.host = host or Host.preset("laptop")
        self.launch_blocking = launch_blocking
        self.device = Device(gpu)
        self.order = HappensBefore()
        self.races: Races | None = None
        self.builder = TimelineBuilder(Context())
        self.main = self.builder.lane("main", "host", "main")
        self.now = 0
        self.batch = -1
        self.source = ""
        self.default_stream = Stream(0, DEFAULT_NUMBER)
        self.streams: dict[int, Stream] = {0: self.default_stream}
        self._work: list[Command] = []  # not yet in the builder
        self._spans: dict[Command, int] = {}  # work -> its span there
        self._blocking: list[Stream] = []
        self._correlation = 0

    def host_work(self, duration: int, name: str = "host", kind: Kind = Kind.OPERATOR) -> None:
        """Keep the host busy for `duration` ns."""
        if duration < 0:
            raise ValueError(f"host_work of {duration} ns: time cannot go back")
        self.builder.span(
            self.now, self.now + duration, self.main, kind, name, batch=self.batch, source=self.source
        )  # fmt: skip
        self.now += duration

    def wait_for_data(self, until: int, name: str = "waiting for data") -> None:
        """Block the host until `until` [ns], because the next batch is not there before."""
        self._block_until(until, Cause.DATA, name)

    # The record

    def range(self, start: int, end: int, name: str, batch: int = -1) -> None:
        """Note an annotation on the main lane."""
        self.builder.span(start, end, self.main, Kind.RANGE, name, batch=batch)

    def timeline(self, context: Context | None = None) -> Timeline:
        """Return all that happened, the device's unfinished work run to its end; the host's clock goes there, too."""
        self.now = max(self.now, self.device.drain())
        builder, spans = self.builder, self._spans
        lanes: dict[Stream, int] = {}
        for command in self._work:
            stream = command.stream
            if stream not in lanes:
                lanes[stream] = builder.lane(stream_name(stream), "device", "stream", stream.number)
            assert command.kind is not None
            spans[command] = builder.span(
                command.start, command.end, lanes[stream], command.kind, command.name, batch=command.batch,
                nbytes=command.nbytes, correlation=command.correlation, pinned=command.pinned, source=command.source,
            )  # fmt: skip
            if command.api >= 0:
                builder.arrow(command.api, spans[command], ArrowKind.LAUNCH)
            for before in command.awaits:
                builder.arrow(spans[before], spans[command], ArrowKind.WAIT)
        self._work = []
        if self.races:
            self.races.finish(builder, spans)
        builder.context = context or Context(self.gpu.name, "emulated", self.host.name)
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

    def _put(
        self, stream: Stream | None, name: str, kind: Kind, engine: Engine, work: int, nbytes: int, *,
        share: int = costs.FULL, pinned: bool | None = None,
    ) -> Command:  # fmt: skip
        """Make a command of the present batch and source, and put it into its stream."""
        stream = stream or self.default_stream
        if not 0 < share <= costs.FULL:
            raise ValueError(f"{name}: share {share} must lie in 1..{costs.FULL} thousandths of the GPU")
        command = Command(stream, name, kind, engine, work, self.now + self.gpu.launch_latency, share)
        command.nbytes, command.pinned = nbytes, pinned
        command.batch, command.source = self.batch, self.source
        self._correlation += 1
        command.correlation = self._correlation
        if stream.awaited:
            command.awaits, stream.awaited = tuple(stream.awaited.values()), {}
            if self.races:
                self.races.waits.followed(command)
        self._submit(command)
        stream.last_work = command
        self._work.append(command)
        return command

    def _submit(self, command: Command) -> Command:
        stream = command.stream
        if command.kind is None:  # what an event recorded here stands for
            command.awaits = (*((stream.last_work,) if stream.last_work else ()), *stream.awaited.values())
        self._legacy_barrier(command)
        self.device.submit(command)
        command.turn = self.order.enqueue(stream.id)[1]
        return command

    def _legacy_barrier(self, command: Command) -> None:
        """The default stream and *blocking* streams wait for each other; PyTorch's pool streams do not (R14, R15)."""
        stream = command.stream
        if stream is self.default_stream:
            others = self._blocking
        else:
            others = [self.default_stream] if stream.blocking else []
        for other in others:
            if other.last:
                command.deps += (other.last,)
                self.order.wait(stream.id, self.order.snapshot(other.id))

    def _block(self, ends: Iterable[Command | None], cause: Cause) -> None:
        """Block the host until all of `ends` are over."""
        self.device.advance(self.now)
        until = max((self.device.run(command) for command in ends if command), default=self.now)
        self._block_until(until, cause)

    def _block_until(self, until: int, cause: Cause, name: str = "") -> None:
        if until > self.now:
            self.builder.span(
                self.now, until, self.main, Kind.WAIT, name or cause.words, batch=self.batch, cause=cause,
                source=self.source,
            )  # fmt: skip
            self.now = until

    def _call(self, name: str, cost: int) -> None:
        start = self.now
        self.now += cost
        self._api(name, start)

    def _api(self, name: str, start: int, command: Command | None = None, nbytes: int = -1) -> None:
        """Note the host's side of a call that began at `start` and ends now."""
        span = self.builder.span(
            start, self.now, self.main, Kind.API, name, batch=self.batch, source=self.source,
            nbytes=command.nbytes if command else nbytes, correlation=command.correlation if command else -1,
        )  # fmt: skip
        if command:
            command.api = span


def stream_name(stream: Stream) -> str:
    """Return the lane's name, as profilers number streams: "stream 7 (default)", "stream 13"."""
    return f"stream {stream.number} (default)" if stream.id == 0 else f"stream {stream.number}"
