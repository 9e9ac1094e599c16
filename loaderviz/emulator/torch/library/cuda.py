"""`torch.cuda` and `torch.accelerator`, their streams and events, answered by the emulated device in a recording."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import torch

from loaderviz.emulator.device import Stream as EmulatedStream
from loaderviz.emulator.hardware import DATA, GPUS, Gpu, Multiprocessor
from loaderviz.emulator.runtime import PRIORITIES
from loaderviz.emulator.runtime import Event as EmulatedEvent
from loaderviz.emulator.torch import internals
from loaderviz.emulator.torch.functions import DefaultGenerator
from loaderviz.emulator.torch.patches import Disguised, Patches, stands_for
from loaderviz.emulator.torch.session import DEVICE, Session, wanted_device
from loaderviz.errors import NotModelledError

REAL_STREAM, REAL_EVENT = torch.cuda.Stream, torch.cuda.Event  # so that isinstance() holds for early imports, too
NOT_MODELLED = {
    "memory pools of one's own": "MemPool use_mem_pool",
    "allocators of one's own": "CUDAPluggableAllocator change_current_allocator",
    "raw device memory": "caching_allocator_alloc caching_allocator_delete",
    "green contexts": "GreenContext",
}
ANSWERS: tuple[tuple[Any, str], ...] = (  # of torch.cuda and torch.accelerator, whatever they are asked
    (True, "is_initialized"),
    (False, "_is_in_bad_fork can_device_access_peer"),
    (0, "current_device current_device_index current_device_idx"),
    (None, "init ipc_collect"),
    (0, "current_blas_handle"),
    ("native", "get_allocator_backend"),
)


def install(session: Session, patches: Patches) -> None:
    """Replace the names of `torch.cuda`, `torch.accelerator` and the generic `torch.Stream` and `torch.Event`."""
    patches.function(torch.cuda, "Stream", CudaStream)
    patches.function(torch.cuda, "Event", CudaEvent)
    patches.set(REAL_STREAM, "__new__", lambda cls, *args, **kwargs: CudaStream(*args, **kwargs))
    patches.set(REAL_EVENT, "__new__", lambda cls, *args, **kwargs: CudaEvent(*args, **kwargs))
    patches.function(torch, "Stream", Stream)
    patches.function(torch, "Event", Event)
    refusals: dict[str, Any] = {}
    for what, names in NOT_MODELLED.items():
        for name in names.split():
            refuse, kind = _refusal(f"torch.cuda.{name}", what), getattr(torch.cuda, name, None)
            if isinstance(kind, type):
                _refuse_instances(patches, kind, refuse)
            else:
                refusals[name] = refuse

    exchanging = dict.fromkeys(("_accelerator_exchangeDevice", "_accelerator_maybeExchangeDevice"), _exchange_device)
    patches.set_all(internals.C, exchanging | {"_cuda_tunableop_is_enabled": lambda: False})
    patches.set(internals.C, "_get_accelerator", lambda check=None: torch.device("cuda"))
    ask: Any = torch.get_device_module  # torch remembers its answers, which have no place in a recording, nor after it
    patches.function(torch, "get_device_module", getattr(ask, "__wrapped__", ask))
    # For torch's own functions: random numbers are those of a run on the CPU
    patches.set(torch.cuda, "default_generators", (DefaultGenerator(),))
    makers = ("_create_jit_fn", "_create_multi_output_jit_fn")
    answers: dict[str, Any] = {}
    for answer, names in ANSWERS:
        answers |= dict.fromkeys(names.split(), _always(answer))
    for name, there in (("is_available", True), ("device_count", 1), ("_is_compiled", True)):
        answers[name] = _seen(session, there, getattr(torch.cuda, name))
    cuda = _cuda(session)
    patches.set(internals.C, "_cuda_synchronize", cuda["synchronize"])  # for who holds torch's own function
    shared = {name: cuda[name] for name in ("current_stream", "set_stream", "synchronize")}
    replacements: dict[Any, dict[str, Any]] = {
        torch.cuda: cuda | answers | refusals,
        torch.cuda.jiterator: {
            name: _refusal(f"torch.cuda.jiterator.{name}", "kernels compiled at run time") for name in makers
        },
        torch.accelerator: ACCELERATOR | shared | answers,
        torch.cuda.memory: refusals,
        torch.cuda.nvtx: _nvtx(session),
        torch.backends.mps: {"is_available": _always(False)},  # of two kinds of GPU a program takes the first
        torch.mps: {"is_available": _always(False)},
        torch.cuda.profiler: dict.fromkeys(("start", "stop"), _always(None)),
    }
    for owner, functions in replacements.items():
        for name, value in functions.items():
            patches.function(owner, name, value)


def _seen(session: Session, there: Any, real: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: there if threading.get_ident() in session.threads else real()


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


def _refuse_instances(patches: Patches, kind: Any, refuse: Callable[..., Any]) -> None:
    """The class stays as it is, for isinstance, subclasses and annotations; only, nobody can make an instance."""
    makers = {name for name, value in vars(kind).items() if isinstance(value, staticmethod)}
    makers.add("__init__" if kind.__new__ is object.__new__ else "__new__")
    for name in makers:
        patches.set(kind, name, refuse if name == "__init__" else staticmethod(refuse))


def _refusal(call: str, what: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotModelledError(f"{call}: the emulated GPU does not model {what}. Leave this call out, or run on a GPU.")

    return refuse


def check_device(device: Any) -> None:
    """Accept only the one GPU there is."""
    if device is None or (isinstance(device, int) and device < 0):
        return
    if wanted_device(device).type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {device}")


def for_device(answer: Callable[[], Any]) -> Callable[..., Any]:
    """Return a function that answers for the one GPU there is, whichever way it is named."""

    def ask(device: Any = None) -> Any:
        check_device(device)
        return answer()

    return ask


_exchange_device = for_device(lambda: 0)


def _cuda(session: Session) -> dict[str, Any]:
    """Return the functions of torch.cuda that are about devices, streams and random numbers."""
    gpu = session.runtime.gpu

    def lazy_init() -> None:  # of a call that no function mode saw; the operators will
        session.enter("a CUDA call")
        session.leave()

    def set_stream(stream: Any) -> None:
        if stream is not None:
            session.enter("torch.cuda.set_stream")
            session.set_stream(session.stream_of(stream))
            session.leave()

    def sync_debug(mode: int | str) -> None:
        modes: dict[Any, int] = {"default": 0, "warn": 1, "error": 2, 0: 0, 1: 1, 2: 2}
        if mode not in modes:
            raise RuntimeError(f"invalid value of debug_mode {mode!r}, expected one of default, warn, error")
        session.sync_debug = modes[mode]

    def sleep_kernel(cycles: int) -> None:  # it spins for some cycles, here at 1.5 GHz (assumed)
        with session.calling("torch.cuda._sleep"):
            session.runtime.launch(int(cycles) * 2 // 3, session.stream, name="spin_kernel", share=1)

    new, state = gpu.capability >= (8, 0), torch.get_rng_state

    return {
        "ExternalStream": ExternalStream,
        "get_stream_from_external": lambda pointer, device=None: ExternalStream(pointer, device),
        "_lazy_init": lazy_init,
        "_sleep": sleep_kernel,
        "current_stream": for_device(lambda: Stream.of(session, session.stream)),
        "default_stream": for_device(lambda: Stream.of(session, session.runtime.default_stream)),
        "get_arch_list": lambda: [f"sm_{gpu.capability[0]}{gpu.capability[1]}"],
        "get_device_capability": for_device(lambda: gpu.capability),
        "get_device_name": for_device(lambda: gpu.name),
        "get_device_properties": for_device(lambda: properties(gpu)),
        "get_rng_state": lambda device="cuda": state(),
        "get_sync_debug_mode": lambda: session.sync_debug,
        "initial_seed": torch.initial_seed,
        "is_bf16_supported": lambda including_emulation=True: new or including_emulation,
        "is_tf32_supported": lambda: new,
        "set_device": check_device,
        **dict.fromkeys(("_exchange_device", "_maybe_exchange_device"), _exchange_device),
        "set_stream": set_stream,
        "set_sync_debug_mode": sync_debug,
        "synchronize": for_device(lambda: session.synchronize(None)),
    }


ACCELERATOR = {
    "current_accelerator": lambda check_available=False: torch.device("cuda"),
    "get_device_capability": lambda device=None: {"supported_dtypes": set()},
    **dict.fromkeys(("set_device_index", "set_device_idx"), check_device),
}


class DeviceProperties(SimpleNamespace):
    """What `torch.cuda.get_device_properties` returns, with torch's names."""

    __qualname__ = "_CudaDeviceProperties"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name} of {self.name} is not known to the emulated GPU: no published figure was found")


DeviceProperties.__name__ = "_CudaDeviceProperties"


def properties(gpu: Gpu) -> DeviceProperties:
    """Return the device's properties, in bytes, bits and kHz; what no source tells is an AttributeError.

    What depends on the generation alone is from table "Technical Specifications per Compute Capability" of NVIDIA's
    programming guide. The memory clock is what gives the bandwidth on that bus, at two transfers a cycle.
    """
    (major, minor), name = gpu.capability, gpu.name
    known: dict[str, Any] = {}
    if f"{major}.{minor}" in DATA["gpu"]["capabilities"]:
        per_sm = Multiprocessor.of(name, gpu.capability).shared
        known["shared_memory_per_multiprocessor"] = per_sm * 1024
        known["shared_memory_per_block_optin"] = (per_sm - (major >= 8)) * 1024  # from Ampere on CUDA keeps one
    key, chips = next((key for key, preset in GPUS.items() if preset.name == name), ""), DATA["gpu"]["chips"]
    if chip := chips.get(key) or chips.get(key.partition("-")[0]):
        cache, bus, clock = chip
        known |= {"L2_cache_size": round(cache * 2**20), "memory_bus_width": bus, "clock_rate": clock * 1000}
        known["memory_clock_rate"] = gpu.memory_bandwidth * 8 // (2 * bus * 1000)
    return DeviceProperties(
        name=name, major=major, minor=minor, total_memory=gpu.memory, multi_processor_count=gpu.sms,
        max_threads_per_multi_processor=gpu.threads_per_sm, max_threads_per_block=1024, warp_size=32,
        regs_per_multiprocessor=65536, shared_memory_per_block=48 * 1024, is_integrated=0, is_multi_gpu_board=0,
        async_engine_count=gpu.async_engines, gcnArchName=f"sm_{major}{minor}",
        uuid=uuid.uuid5(uuid.NAMESPACE_DNS, name), **known,
    )  # fmt: skip


def _nvtx(session: Session) -> dict[str, Any]:
    """Return the functions of torch.cuda.nvtx on which its others rest: ranges on the main lane."""
    stack: list[tuple[str, int]] = []

    def push(message: str) -> int:
        stack.append((str(message), session.enter_range(str(message))))
        return len(stack) - 1

    def pop() -> int:
        if not stack:
            return -1
        session.leave_range(*stack.pop())
        return len(stack)

    def mark(message: str) -> None:
        now = session.runtime.now
        session.runtime.range(now, now, str(message), session.batches.current)

    open_ranges: dict[int, tuple[str, int]] = {}

    def start(message: str) -> int:
        open_ranges[number := len(open_ranges) + 1] = str(message), session.enter_range(str(message))
        return number

    def end(number: int) -> None:
        if number in open_ranges:
            session.leave_range(*open_ranges.pop(number))

    return {"range_push": push, "range_pop": pop, "range_start": start, "range_end": end, "mark": mark}


# Streams and events. The objects may outlive a recording: in the next one a stream stands for a stream of that one, and
# an event of the former one is over.


def calling(call: str) -> AbstractContextManager[Session]:
    """Around each call of a stream or event: the running session."""
    return Session.running(call).calling(call)


class OnDevice(Disguised):
    """What streams and events of the emulated device have in common."""

    device = DEVICE
    emulated: Any  # the runtime's own, in the recording that runs now
    _session: Session

    def query(self) -> bool:
        """Tell whether the work in the stream, or that the event stands for, is over."""
        with calling(f"{type(self).__name__}.query") as session:
            over = session.runtime.query(self.emulated)
            session.deferred.host_knows()
            return over

    def synchronize(self) -> None:
        """Block the host until that work is over."""
        Session.running(f"{type(self).__name__}.synchronize").synchronize(self.emulated)


@stands_for(torch.Stream)
class Stream(OnDevice):
    """One stream of the emulated device; two objects for the same stream are equal."""

    device_index = 0
    device_type = 1
    _emulated: EmulatedStream
    _entered: list[EmulatedStream]  # the streams that were current before

    @classmethod
    def of(cls, session: Session, stream: EmulatedStream) -> Stream:
        """Wrap a stream of the runtime."""
        self: Stream = object.__new__(CudaStream if cls is Stream else cls)
        self._session, self._emulated = session, stream
        self._entered = []
        return self

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Any:
        """Take the next stream of the pool: 32 per priority, round robin (R15)."""
        with calling("torch.cuda.Stream") as session:
            device = None if isinstance(device, int) and device < 0 else device
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

    cuda_stream = native_handle = stream_id  # what would be the cudaStream_t

    @property
    def priority(self) -> int:
        """Lower goes first."""
        return self._emulated.priority

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return (lowest, highest) priority."""
        return PRIORITIES

    wait_event = REAL_STREAM.wait_event  # returns at once (R16)

    def wait_stream(self, stream: Stream) -> None:
        """Make future work of this stream wait for all that is in `stream` now (R16)."""
        with calling("Stream.wait_stream") as session:
            session.runtime.wait_stream(self.emulated, session.stream_of(stream))

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event (a new one if None) and return it."""
        event = CudaEvent() if event is None else event
        event.record(self)
        return event

    def is_capturing(self) -> bool:
        """Tell whether a CUDA graph is being captured from this stream."""
        capture = Session.running("this stream").runtime.capture
        return bool(capture and capture.takes(self.emulated))

    def __enter__(self) -> Stream:
        session = Session.running("a stream")
        self._entered.append(session.stream)
        session.set_stream(self.emulated)
        return self

    def __exit__(self, *_: object) -> None:
        Session.running("a stream").set_stream(self._entered.pop())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and getattr(other, "_emulated", None) is self._emulated

    def __hash__(self) -> int:
        return hash((self._emulated.id, 0))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device=cuda:0 cuda_stream={self._emulated.id:#x}>"


@stands_for(REAL_STREAM)
class CudaStream(Stream):
    """`torch.cuda.Stream`: there is no other kind, so `torch.Stream` makes these, too."""


@stands_for(torch.cuda.ExternalStream)
class ExternalStream(CudaStream):
    """`torch.cuda.ExternalStream(…)`: one of the emulated streams, by its number."""

    def __new__(cls, stream_ptr: int, device: Any = None, **kwargs: Any) -> Any:
        """Return the stream of that number. Raises `NotModelledError` if it was made outside PyTorch."""
        check_device(device)
        with calling("torch.cuda.ExternalStream") as session:
            if stream := session.runtime.streams.get(stream_ptr):
                return cls.of(session, stream)
        raise NotModelledError(
            f"torch.cuda.ExternalStream: the emulated GPU does not model streams made outside PyTorch, as {stream_ptr} "
            "is. Leave this call out, or run on a GPU."
        )


@stands_for(torch.Event)
class Event(OnDevice):
    """One event of the emulated device; it times in virtual milliseconds."""

    _timing: bool
    _recorded: EmulatedEvent

    def __new__(
        cls, device: Any = None, *, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> Any:
        """Make an event, not yet recorded."""
        if device is not None and wanted_device(device).type != "cuda":
            raise NotModelledError(f"an event on {device} is not modelled; the emulated accelerator is cuda")
        if interprocess:
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

    def elapsed_time(self, end_event: Event) -> float:
        """Return the virtual milliseconds between this event and `end_event`."""
        return self._session.runtime.elapsed_time(self._recorded, end_event._recorded) / 1e6

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {'recorded' if self._recorded.record else 'uninitialized'}>"


@stands_for(REAL_EVENT)
class CudaEvent(Event):
    """`torch.cuda.Event(…)`: the same event, on the current device."""

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> Any:
        """Make an event, not yet recorded."""
        return super().__new__(cls, enable_timing=enable_timing, interprocess=interprocess or external)

    @property
    def cuda_event(self) -> int:
        """What would be the cudaEvent_t; 0 before the first record."""
        return id(self._recorded) if self._recorded.record else 0
