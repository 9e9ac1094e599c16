"""Stream and Event as `torch.cuda` and generic `torch` have them, on the emulated runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from loaderviz.emulator import device as emulated
from loaderviz.emulator import runtime as cuda
from loaderviz.emulator.torch_cuda.functions import wanted_device
from loaderviz.errors import NotModelledError

if TYPE_CHECKING:
    from loaderviz.emulator.torch_cuda.session import Session

DEVICE = torch.device("cuda", 0)
REAL_STREAM, REAL_EVENT = torch.cuda.Stream, torch.cuda.Event  # so that isinstance() holds for early imports, too


class StreamBase:
    """One stream of the emulated device; two objects for the same stream are equal."""

    _session: Session
    device = DEVICE
    device_index = 0
    device_type = 1

    @property
    def __class__(self) -> Any:
        """Pass for a `torch.cuda.Stream` in isinstance checks, whenever that name was imported."""
        return REAL_STREAM

    @classmethod
    def of(cls, stream: emulated.Stream) -> StreamBase:
        """Wrap a stream of the runtime."""
        self = object.__new__(cls)
        self._stream = stream
        self._entered: list[emulated.Stream] = []
        return self

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Any:
        """Take the next stream of the pool: 32 per priority, round robin (R15)."""
        session = cls._session
        session.enter("torch.cuda.Stream")
        if isinstance(device, int) and device < 0:
            device = None
        if "stream_ptr" in kwargs or "external" in kwargs:
            raise NotModelledError(
                "streams made outside PyTorch (ExternalStream) are not modelled; use torch.cuda.Stream"
            )
        if "stream_id" in kwargs:
            return cls.of(session.runtime.streams[kwargs["stream_id"]])
        if device is not None and wanted_device(device).type != "cuda":
            raise ValueError(f"a stream needs a CUDA device, got {device}")
        stream = session.runtime.stream(priority)
        session.leave()
        return cls.of(stream)

    @property
    def stream_id(self) -> int:
        """PyTorch's number of the stream; 0 is the default stream."""
        return self._stream.id

    @property
    def cuda_stream(self) -> int:
        """What would be the cudaStream_t: 0 for the default stream."""
        return self._stream.id

    @property
    def priority(self) -> int:
        """Lower goes first."""
        return self._stream.priority

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return (lowest, highest) priority."""
        return cuda.PRIORITIES

    def native_handle(self) -> int:
        """Return what would be the cudaStream_t."""
        return self._stream.id

    def wait_event(self, event: EventBase) -> None:
        """Make future work of this stream wait for `event`; returns at once (R16)."""
        event.wait(self)

    def wait_stream(self, stream: StreamBase) -> None:
        """Make future work of this stream wait for all that is in `stream` now (R16)."""
        session = self._session
        session.enter("Stream.wait_stream")
        session.mark_source()
        session.runtime.wait_stream(self._stream, stream._stream)
        session.leave()

    def record_event(self, event: EventBase | None = None) -> EventBase:
        """Record an event (a new one if None) and return it."""
        event = torch.cuda.Event() if event is None else event  # type: ignore[assignment]
        assert event is not None
        event.record(self)
        return event

    def query(self) -> bool:
        """Tell whether all work in the stream is over."""
        session = self._session
        session.enter("Stream.query")
        session.mark_source()
        over = session.runtime.query(self._stream)
        session.host_knows()
        session.leave()
        return over

    def synchronize(self) -> None:
        """Block the host until all work in the stream is over."""
        self._session.synchronize(self._stream)

    def is_capturing(self) -> bool:
        """CUDA graphs are not modelled, so no stream is ever capturing."""
        return False

    def __enter__(self) -> StreamBase:
        self._entered.append(self._session.stream)
        self._session.set_stream(self._stream)
        return self

    def __exit__(self, *_: object) -> None:
        self._session.set_stream(self._entered.pop())

    def __eq__(self, other: object) -> bool:
        return getattr(other, "_stream", None) is self._stream

    def __hash__(self) -> int:
        return hash((self._stream.id, 0))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device=cuda:0 cuda_stream={self._stream.id:#x}>"


class EventBase:
    """One event of the emulated device; it times in virtual milliseconds."""

    _session: Session
    device = DEVICE

    @property
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
        cls._session.enter("torch.cuda.Event")
        self = object.__new__(cls)
        self._event = cls._session.runtime.event(timing=enable_timing)
        cls._session.leave()
        return self

    def record(self, stream: StreamBase | None = None) -> None:
        """Let the event stand for all that is in `stream` (None: the current one) now."""
        session = self._session
        session.enter("Event.record")
        session.mark_source()
        session.runtime.record_event(self._event, stream._stream if stream is not None else session.stream)
        session.leave()

    def wait(self, stream: StreamBase | None = None) -> None:
        """Make future work of `stream` (None: the current one) wait for the event."""
        session = self._session
        session.enter("Event.wait")
        session.mark_source()
        session.runtime.wait_event(stream._stream if stream is not None else session.stream, self._event)
        session.leave()

    def query(self) -> bool:
        """Tell whether the work that the event stands for is over."""
        session = self._session
        session.enter("Event.query")
        session.mark_source()
        over = session.runtime.query(self._event)
        session.host_knows()
        session.leave()
        return over

    def elapsed_time(self, end_event: EventBase) -> float:
        """Return the virtual milliseconds between this event and `end_event`."""
        return self._session.runtime.elapsed_time(self._event, end_event._event) / 1e6

    def synchronize(self) -> None:
        """Block the host until the event is over."""
        self._session.synchronize(self._event)

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {'recorded' if self._event.record else 'uninitialized'}>"


class GenericEvent(EventBase):
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

    def __init__(self, session: Session, stream: StreamBase | None) -> None:
        self._session, self.stream = session, stream
        self._before: list[emulated.Stream] = []

    def __enter__(self) -> None:
        self._before.append(self._session.stream)
        if self.stream is not None:
            self._session.set_stream(self.stream._stream)

    def __exit__(self, *_: object) -> None:
        self._session.set_stream(self._before.pop())


def bind(session: Session) -> tuple[type[StreamBase], type[EventBase], type[GenericEvent]]:
    """Return the stream and event classes of this session."""
    space = {"_session": session, "__module__": "torch.cuda"}
    stream = type("Stream", (StreamBase,), dict(space))
    event = type("Event", (EventBase,), dict(space))
    generic = type("Event", (GenericEvent,), {**space, "__module__": "torch"})
    return stream, event, generic
