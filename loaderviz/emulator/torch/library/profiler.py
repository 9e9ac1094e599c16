"""Annotations, torch's profiler and its hooks: ranges, the emulated work in virtual time, what CUDA is asked."""

from __future__ import annotations

import re
import weakref
from typing import Any

import torch
from torch.autograd.profiler import record_function
from torch.autograd.profiler_util import FunctionEvent

from loaderviz.emulator.device import Stream
from loaderviz.emulator.runtime import Event
from loaderviz.emulator.torch import internals
from loaderviz.emulator.torch.internals import DeviceType
from loaderviz.emulator.torch.patches import Patches
from loaderviz.emulator.torch.session import Session
from loaderviz.imports import held
from loaderviz.timeline import Kind, Timeline


def install(session: Session, patches: Patches) -> None:
    """Put all in place."""
    _install_ranges(session, patches.pricing)
    _install_profiler(session, patches)

    def trace() -> None:
        if "stream" not in vars(session.runtime):
            Trace(session, patches)

    patches.set(internals.C, "_activate_gpu_trace", trace)
    if any(getattr(table, "callback_list", ()) for table in vars(internals.gpu_trace).values()):
        trace()  # who listens has said so before the recording


class Trace:
    """Tells the listeners of `torch.cuda._gpu_trace`, such as `torch.cuda._sanitizer`, what CUDA is asked from now on.

    In torch's order, with numbers that `cuda_stream`, `cuda_event` and `data_ptr()` return. An event is created when it
    is first recorded; those of the allocator of device memory are not told, nor are kernels, which a mode sees. With
    CUDA_LAUNCH_BLOCKING=1 each launch shows as a stream synchronisation.
    """

    def __init__(self, session: Session, patches: Patches) -> None:
        self._streams, self._default = session.runtime.streams, session.runtime.default_stream
        self._events = weakref.WeakSet[Event]()
        self._frees = False
        owners = {session.runtime: "stream record_event wait_event synchronize", session.pool: "allocate free"}
        for owner, names in owners.items():
            for name in names.split():
                patches.around(owner, name)(getattr(self, name))

    def stream(self, make: Any, *args: Any, **kwargs: Any) -> Stream:
        """A stream is made, or the pool hands one out again, which is not told."""
        before, stream = len(self._streams), make(*args, **kwargs)
        if len(self._streams) > before:
            _tell("StreamCreation", stream.id)
        return stream  # type: ignore[no-any-return]

    def record_event(self, record: Any, event: Event, stream: Stream | None = None) -> None:
        """An event is recorded, and exists from then on."""
        record(event, stream)
        if self._frees:
            return
        if event not in self._events:
            self._events.add(event)
            weakref.finalize(event, _tell, "EventDeletion", id(event)).atexit = False
            _tell("EventCreation", id(event))
        _tell("EventRecord", id(event), (stream or self._default).id)

    def wait_event(self, wait: Any, stream: Stream, event: Event, **asked: Any) -> None:
        """A stream waits for an event."""
        wait(stream, event, **asked)
        if event in self._events:
            _tell("EventWait", id(event), stream.id)

    def synchronize(self, wait: Any, target: Stream | Event | None = None, *, learn: bool = True) -> None:
        """The host waits, as it does after a blocking copy; not where the allocator makes it (`learn=False`)."""
        if target is None:
            _tell("DeviceSynchronization")
        elif isinstance(target, Stream):
            _tell("StreamSynchronization", target.id)
        elif learn and target in self._events:
            _tell("EventSynchronization", id(target))
        wait(target, learn=learn)

    def allocate(self, take: Any, *args: Any) -> Any:
        """The allocator hands out a block."""
        block = take(*args)
        if block.size:
            _tell("MemoryAllocation", block.address)
        return block

    def free(self, give_back: Any, block: Any) -> None:
        """It takes one back, and may record events of its own."""
        if block.size:
            _tell("MemoryDeallocation", block.address)
        with held(self, "_frees", True):
            give_back(block)


def _tell(what: str, *numbers: int) -> None:
    getattr(internals.gpu_trace, f"{what}Callbacks").fire_callbacks(*numbers)


def _install_profiler(session: Session, patches: Patches) -> None:
    """`torch.profiler` shows the emulated work in virtual time; what it really recorded, the CPU's, is left aside."""
    profile, emit_nvtx = torch.autograd.profiler.profile, torch.autograd.profiler.emit_nvtx
    since, stacks = "_loaderviz_since", "_loaderviz_stacks"

    @patches.around(profile, "__init__")
    def init(
        make: Any, self: Any, *args: Any, use_device: str | None = None, use_cuda: bool = False, **kwargs: Any
    ) -> None:
        make(self, *args, **kwargs | {"use_cpu": True, "with_stack": False})  # it looks into nn.Module's own call
        self.use_device = "cuda" if use_cuda else use_device
        vars(self)[stacks] = kwargs.get("with_stack", False)

    @patches.around(profile, "_start_trace")
    def start(begin: Any, self: Any) -> None:
        begin(self)
        vars(self)[since] = len(session.runtime.builder)

    @patches.around(profile, "__exit__")
    def leave(end: Any, self: Any, *error: Any) -> Any:
        if not self.enabled or not session.in_recording_thread() or not hasattr(self, since):
            return end(self, *error)
        emulated: list[Timeline] = []

        def events(*_: Any, **__: Any) -> list[FunctionEvent]:
            emulated[:] = emulated or [session.runtime.recorded(getattr(self, since))]
            return _profiled(emulated[0], self.use_device)

        def export_chrome_trace(path: str, *_: Any, **__: Any) -> None:
            from loaderviz.export import to_chrome_trace

            to_chrome_trace(emulated[0], path)

        self._parse_kineto_results, self.export_chrome_trace = events, export_chrome_trace
        with session.bookkeeping():
            result = end(self, *error)
            events()
        self.with_stack = getattr(self, stacks)
        session.note("torch.profiler shows the emulated work in virtual time, without shapes and memory")
        return result

    activities = torch.profiler.ProfilerActivity
    patches.function(torch.autograd, "_supported_activities", lambda: {activities.CPU, activities.CUDA})
    patches.set(emit_nvtx, "__enter__", lambda self: self)
    patches.set(emit_nvtx, "__exit__", lambda self, *error: None)


def _profiled(timeline: Timeline, device: str | None) -> list[FunctionEvent]:
    """Return the spans of a timeline as the profiler's events: each device span counts for the operator that put it."""
    events: list[FunctionEvent] = []
    inside: list[tuple[int, FunctionEvent]] = []  # end, event: what the main thread is in
    launched_by: dict[int, FunctionEvent] = {}  # correlation -> operator
    for number, span in enumerate(timeline.rows()):
        on_device = span.lane.group == "device"
        if on_device and device is None:
            continue
        event = FunctionEvent(
            number,
            re.sub(r"(?<=^ProfilerStep)#\d+", "*", span.name),
            span.lane.number,
            span.start / 1000,
            span.end / 1000,
            input_shapes=[],
            stack=[span.source],
            use_device=device,
            trace_name=span.name,
            device_type=DeviceType.CUDA if on_device else DeviceType.CPU,
            flops=0,
        )
        event.is_user_annotation = span.kind == Kind.RANGE
        events.append(event)
        if on_device:
            if operator := launched_by.get(span.correlation):
                operator.append_kernel(span.name, 0, span.duration / 1000)
        elif span.lane.role == "main":
            while inside and inside[-1][0] <= span.start:
                inside.pop()
            if span.kind == Kind.API and span.correlation >= 0:
                launched_by[span.correlation] = inside[-1][1] if inside else event
            elif span.kind == Kind.OPERATOR:
                inside.append((span.end, event))
    return events


def _install_ranges(session: Session, patches: Patches) -> None:
    """`record_function` (and with it the DataLoader's own annotation) becomes a range on the main lane."""
    ranges = session.ranges = dict[int, tuple[str, int]]()

    def entering(enter: Any, self: Any) -> Any:
        ranges[id(self)] = self.name, session.enter_range(self.name)
        return enter(self)

    def leaving(leave: Any, self: Any, *error: Any) -> Any:
        session.leave_range(*ranges.pop(id(self)))
        return leave(self, *error)

    @patches.around(record_function, "__enter__")
    def begin(enter: Any, self: Any) -> Any:
        return session.own_work(entering, enter, self) if session.in_recording_thread() else enter(self)

    @patches.around(record_function, "__exit__")
    def end(leave: Any, self: Any, *error: Any) -> Any:
        if id(self) in ranges:
            return session.own_work(leaving, leave, self, *error)
        with session.bookkeeping():
            return leave(self, *error)
