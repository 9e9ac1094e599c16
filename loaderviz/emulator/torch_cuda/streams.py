"""Stream and Event as `torch.cuda` and generic `torch` have them, on the emulated runtime.

The objects may outlive a recording: in the next one a stream stands for a stream of that one, and an event of the
former one is over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from loaderviz.emulator.device import Stream as EmulatedStream
from loaderviz.emulator.runtime import PRIORITIES
from loaderviz.emulator.runtime import Event as EmulatedEvent
from loaderviz.emulator.torch_cuda.session import DEVICE, Session, wanted_device
from loaderviz.errors import NotModelledError

REAL_STREAM, REAL_EVENT = torch.cuda.Stream, torch.cuda.Event  # so that isinstance() holds for early imports, too


@contextmanager
def calling(call: str) -> Iterator[Session]:
    """Around each call of a stream or event: the running session, with the caller's line noted."""
    session = Session.running(call)
    session.enter(call)
    session.mark_source()
    try:
        yield session
    finally:
        session.leave()


class Stream:
    """One stream of the emulated device; two objects for the same stream are equal."""

    device = DEVICE
    device_index = 0
    device_type = 1
    _session: Session
    _emulated: EmulatedStream
    _entered: list[EmulatedStream]  # the streams that were current before

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """Pass for a `torch.cuda.Stream` in isinstance checks, whenever that name was imported."""
        return REAL_STREAM

    @classmethod
    def of(cls, session: Session, stream: EmulatedStream) -> Stream:
        """Wrap a stream of the runtime."""
        self = object.__new__(CudaStream)
        self._session, self._emulated = session, stream
        self._entered = []
        return self

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Any:
        """Take the next stream of the pool: 32 per priority, round robin (R15)."""
        with calling("torch.cuda.Stream") as session:
            if isinstance(device, int) and device < 0:
                device = None
            if "stream_ptr" in kwargs or "external" in kwargs:
                raise NotModelledError(
                    "streams made outside PyTorch (ExternalStream) are not modelled; use torch.cuda.Stream"
                )
            if "stream_id" in kwargs:
                return cls.of(session, session.runtime.streams[kwargs["stream_id"]])
            if device is not None and wanted_device(device).type != "cuda":
                raise ValueError(f"a stream needs a CUDA device, got {device}")
            return cls.of(session, session.runtime.stream(priority))

    @property
    def emulated(self) -> EmulatedStream:
        """The runtime's stream, in the recording that runs now."""
        session = Session.running("this stream")
        if session is not self._session:
            self._emulated = session.adopt(self._emulated)
            self._session = session
        return self._emulated

    @property
    def stream_id(self) -> int:
        """PyTorch's number of the stream; 0 is the default stream."""
        return self._emulated.id

    @property
    def cuda_stream(self) -> int:
        """What would be the cudaStream_t: 0 for the default stream."""
        return self._emulated.id

    @property
    def priority(self) -> int:
        """Lower goes first."""
        return self._emulated.priority

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return (lowest, highest) priority."""
        return PRIORITIES

    def native_handle(self) -> int:
        """Return what would be the cudaStream_t."""
        return self._emulated.id

    def wait_event(self, event: Event) -> None:
        """Make future work of this stream wait for `event`; returns at once (R16)."""
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        """Make future work of this stream wait for all that is in `stream` now (R16)."""
        with calling("Stream.wait_stream") as session:
            session.runtime.wait_stream(self.emulated, session.stream_of(stream))

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event (a new one if None) and return it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        """Tell whether all work in the stream is over."""
        with calling("Stream.query") as session:
            over = session.runtime.query(self.emulated)
            session.late.host_knows()
            return over

    def synchronize(self) -> None:
        """Block the host until all work in the stream is over."""
        Session.running("Stream.synchronize").synchronize(self.emulated)

    def is_capturing(self) -> bool:
        """CUDA graphs are not modelled, so no stream is ever capturing."""
        return False

    def __enter__(self) -> Stream:
        session = Session.running("a stream")
        self._entered.append(session.stream)
        session.set_stream(self.emulated)
        return self

    def __exit__(self, *_: object) -> None:
        Session.running("a stream").set_stream(self._entered.pop())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other._emulated is self._emulated

    def __hash__(self) -> int:
        return hash((self._emulated.id, 0))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device=cuda:0 cuda_stream={self._emulated.id:#x}>"


class CudaStream(Stream):
    """`torch.cuda.Stream`: there is no other kind, so `torch.Stream` makes these, too."""


class Event:
    """One event of the emulated device; it times in virtual milliseconds."""

    device = DEVICE
    _session: Session
    _timing: bool
    _recorded: EmulatedEvent

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """Pass for a `torch.cuda.Event` in isinstance checks, whenever that name was imported."""
        return REAL_EVENT

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> Any:
        """Make an event, not yet recorded."""
        return cls._make(enable_timing, interprocess or external)

    @classmethod
    def _make(cls, enable_timing: bool, foreign: bool) -> Any:
        if foreign:
            raise NotModelledError("interprocess and external events are not modelled; use a plain torch.cuda.Event")
        with calling("torch.cuda.Event") as session:
            self = object.__new__(cls)
            self._session, self._timing = session, enable_timing
            self._recorded = session.runtime.event(timing=enable_timing)
        return self

    @property
    def emulated(self) -> EmulatedEvent:
        """The runtime's event; what was recorded in an earlier recording is over, so it stands for nothing now."""
        session = Session.running("this event")
        if session is not self._session:
            self._session, self._recorded = session, session.runtime.event(timing=self._timing)
        return self._recorded

    def record(self, stream: Stream | None = None) -> None:
        """Let the event stand for all that is in `stream` (None: the current one) now."""
        with calling("Event.record") as session:
            session.runtime.record_event(self.emulated, session.stream_of(stream))

    def wait(self, stream: Stream | None = None) -> None:
        """Make future work of `stream` (None: the current one) wait for the event."""
        with calling("Event.wait") as session:
            session.runtime.wait_event(session.stream_of(stream), self.emulated)

    def query(self) -> bool:
        """Tell whether the work that the event stands for is over."""
        with calling("Event.query") as session:
            over = session.runtime.query(self.emulated)
            session.late.host_knows()
            return over

    def elapsed_time(self, end_event: Event) -> float:
        """Return the virtual milliseconds between this event and `end_event`."""
        return self._session.runtime.elapsed_time(self._recorded, end_event._recorded) / 1e6

    def synchronize(self) -> None:
        """Block the host until the event is over."""
        Session.running("Event.synchronize").synchronize(self.emulated)

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {'recorded' if self._recorded.record else 'uninitialized'}>"


class GenericEvent(Event):
    """`torch.Event(device, …)`: the same event with the device named first."""

    def __new__(
        cls, device: Any = None, *, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> Any:
        """Make an event, not yet recorded."""
        if device is not None and wanted_device(device).type != "cuda":
            raise NotModelledError(f"an event on {device} is not modelled; the emulated accelerator is cuda")
        return cls._make(enable_timing, interprocess)


class StreamContext:
    """`torch.cuda.stream(s)`: `s` is current inside; None changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream
        self._before: list[EmulatedStream] = []

    def __enter__(self) -> None:
        session = Session.running("torch.cuda.stream")
        session.enter("torch.cuda.stream")
        self._before.append(session.stream)
        if self.stream is not None:
            session.set_stream(session.stream_of(self.stream))

    def __exit__(self, *_: object) -> None:
        Session.running("torch.cuda.stream").set_stream(self._before.pop())
