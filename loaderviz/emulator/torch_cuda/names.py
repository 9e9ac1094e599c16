"""Names: what `torch.cuda` and `torch.accelerator` offer, answered by the emulated device while a recording runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from loaderviz.emulator.torch_cuda.handlers import TYPES, is_device
from loaderviz.emulator.torch_cuda.memory_names import check_device, memory_functions
from loaderviz.emulator.torch_cuda.streams import (
    REAL_EVENT,
    REAL_STREAM,
    CudaStream,
    Event,
    GenericEvent,
    Stream,
    StreamContext,
)
from loaderviz.errors import NotModelledError

if TYPE_CHECKING:
    from loaderviz.emulator.torch_cuda.patching import Patches
    from loaderviz.emulator.torch_cuda.session import Session

NOT_MODELLED = {
    "CUDAGraph": "CUDA graphs", "graph": "CUDA graphs", "make_graphed_callables": "CUDA graphs",
    "graph_pool_handle": "CUDA graphs", "ExternalStream": "streams made outside PyTorch",
    "get_stream_from_external": "streams made outside PyTorch", "MemPool": "memory pools of one's own",
    "use_mem_pool": "memory pools of one's own", "CUDAPluggableAllocator": "allocators of one's own",
    "change_current_allocator": "allocators of one's own", "caching_allocator_alloc": "raw device memory",
    "caching_allocator_delete": "raw device memory", "cudart": "the raw CUDA runtime",
    "memory_snapshot": "allocator snapshots", "utilization": "NVML readings; see loaderviz.metrics.utilization",
    "temperature": "NVML readings", "power_draw": "NVML readings", "clock_rate": "NVML readings",
    "list_gpu_processes": "NVML readings", "device_memory_used": "NVML readings", "memory_usage": "NVML readings",
    "jiterator": "kernels compiled at run time", "GreenContext": "green contexts",
}  # fmt: skip


def install(session: Session, patches: Patches) -> None:
    """Replace the names of `torch.cuda`, `torch.accelerator` and the generic `torch.Stream` and `torch.Event`."""
    for owner in (torch.cuda, torch.cuda.streams):
        patches.function(owner, "Stream", CudaStream)
        patches.function(owner, "Event", Event)
    patches.set(REAL_STREAM, "__new__", lambda cls, *args, **kwargs: CudaStream(*args, **kwargs))
    patches.set(REAL_EVENT, "__new__", lambda cls, *args, **kwargs: Event(*args, **kwargs))
    patches.function(torch, "Stream", Stream)
    patches.function(torch, "Event", GenericEvent)
    for name, value in (_cuda(session) | memory_functions(session)).items():
        patches.function(torch.cuda, name, value)
        if hasattr(torch.cuda.memory, name):
            patches.set(torch.cuda.memory, name, value)
        if hasattr(torch.cuda.random, name):
            patches.set(torch.cuda.random, name, value)
    for dtype, name in TYPES.items():
        patches.function(torch.cuda, name, _legacy_type(name, dtype))
    for name, what in NOT_MODELLED.items():
        patches.function(torch.cuda, name, _refusal(f"torch.cuda.{name}", what))
    patches.function(torch, "compile", _refusal("torch.compile", "compiled code on the device"))
    for name, value in (_accelerator(session) | memory_functions(session)).items():
        patches.function(torch.accelerator, name, value)
    for name, value in _nvtx(session).items():
        patches.function(torch.cuda.nvtx, name, value)


def _refusal(call: str, what: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        """Say that this is not modelled."""
        raise NotModelledError(f"{call}: the emulated GPU does not model {what}. Leave this call out, or run on a GPU.")

    return refuse


def _legacy_type(name: str, dtype: torch.dtype) -> type:
    """Return what stands in for `torch.cuda.FloatTensor` and its like: it can be asked for, not made."""

    class Meta(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return is_device(instance) and instance.dtype is dtype

    class Legacy(metaclass=Meta):
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            raise NotModelledError(f"torch.cuda.{name}(…) is not modelled; use torch.tensor(…, device='cuda')")

    return Legacy


def _nothing() -> Callable[..., None]:
    def nothing(*args: Any, **kwargs: Any) -> None:
        """Nothing to be done on the emulated GPU."""

    return nothing


def _cuda(session: Session) -> dict[str, Any]:
    """Return the functions of torch.cuda that are about devices, streams and random numbers."""
    gpu = session.runtime.gpu

    def late_init() -> None:
        """Reached only by a call that went past the emulator."""
        session.enter("a CUDA call")
        raise NotModelledError(
            "this call reached CUDA itself, past the emulated GPU, which does not model it; the traceback names it"
        )

    def synchronize(device: Any = None) -> None:
        """Block the host until the device is done."""
        check_device(device)
        session.synchronize(None)

    def get_device_properties(device: Any = None) -> Any:
        """Return what is known of the emulated GPU."""
        check_device(device)
        return properties(session)

    def set_stream(stream: Any) -> None:
        """Make a stream the current one."""
        if stream is not None:
            session.enter("torch.cuda.set_stream")
            session.set_stream(session.stream_of(stream))
            session.leave()

    def sync_debug(mode: int | str) -> None:
        """Warn or raise at operators that make the host wait."""
        modes: dict[Any, int] = {"default": 0, "warn": 1, "error": 2, 0: 0, 1: 1, 2: 2}
        if mode not in modes:
            raise RuntimeError(f"invalid value of debug_mode {mode!r}, expected one of default, warn, error")
        session.sync_debug = modes[mode]

    def for_device(answer: Callable[[], Any]) -> Callable[..., Any]:
        def ask(device: Any = None) -> Any:
            """Answer for the one GPU there is."""
            check_device(device)
            return answer()

        return ask

    def seed(seed: int) -> None:
        """Seed the generator that the emulated GPU draws from: the CPU's, so that numbers are those of a CPU run."""
        torch.default_generator.manual_seed(int(seed))

    def new_seed() -> None:
        """Seed it with a random number."""
        torch.default_generator.seed()

    cpu_state, set_cpu_state = torch.get_rng_state, torch.set_rng_state
    return {
        "is_available": lambda: True, "device_count": lambda: 1, "current_device": lambda: 0, "init": _nothing(),
        "is_initialized": lambda: True, "_lazy_init": late_init, "_is_in_bad_fork": lambda: False,
        "set_device": check_device, "device": _one_device, "device_of": _one_device, "ipc_collect": _nothing(),
        "synchronize": synchronize, "current_stream": for_device(lambda: Stream.of(session, session.stream)),
        "default_stream": for_device(lambda: Stream.of(session, session.runtime.default_stream)),
        "set_stream": set_stream, "stream": StreamContext, "StreamContext": StreamContext,
        "get_device_name": for_device(lambda: gpu.name), "get_device_properties": get_device_properties,
        "get_device_capability": for_device(lambda: gpu.capability), "can_device_access_peer": lambda *_: False,
        "is_bf16_supported": lambda *_: gpu.capability >= (8, 0), "is_tf32_supported": lambda: gpu.capability >= (8, 0),
        "get_arch_list": lambda: [f"sm_{gpu.capability[0]}{gpu.capability[1]}"],
        "is_current_stream_capturing": lambda: False, "set_sync_debug_mode": sync_debug,
        "get_sync_debug_mode": lambda: session.sync_debug, "_sleep": session.sleep_kernel,
        "manual_seed": seed, "manual_seed_all": seed, "seed": new_seed, "seed_all": new_seed,
        "initial_seed": torch.initial_seed, "get_rng_state": lambda device=None: cpu_state(),
        "get_rng_state_all": lambda: [cpu_state()], "set_rng_state": lambda state, device=None: set_cpu_state(state),
        "set_rng_state_all": lambda states: set_cpu_state(next(iter(states))),
        "default_generators": (torch.default_generator,),
    }  # fmt: skip


def properties(session: Session) -> Any:
    """Return the device's properties, by the names that `torch.cuda.get_device_properties` has."""
    gpu = session.runtime.gpu
    return SimpleNamespace(
        name=gpu.name, major=gpu.capability[0], minor=gpu.capability[1], total_memory=gpu.memory,
        multi_processor_count=gpu.sms, max_threads_per_multi_processor=gpu.threads_per_sm, warp_size=32,
        is_integrated=0, is_multi_gpu_board=0, async_engine_count=gpu.async_engines,
    )  # fmt: skip


class _one_device(contextlib.AbstractContextManager[None]):
    """`torch.cuda.device(0)` and `torch.cuda.device_of(tensor)`: there is only one."""

    def __init__(self, device: Any) -> None:
        if not isinstance(device, torch.Tensor):
            check_device(device)
        self.idx = self.prev_idx = 0

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def _accelerator(session: Session) -> dict[str, Any]:
    """Return the functions of torch.accelerator."""
    names = _cuda(session)
    return {
        "is_available": lambda: True, "device_count": lambda: 1,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": lambda: 0, "current_device_idx": lambda: 0, "set_device_index": check_device,
        "set_device_idx": check_device, "current_stream": names["current_stream"], "set_stream": names["set_stream"],
        "synchronize": names["synchronize"], "device_index": _one_device,
        "get_device_capability": lambda device=None: {"supported_dtypes": set()},
    }  # fmt: skip


def _nvtx(session: Session) -> dict[str, Any]:
    """Return the functions of torch.cuda.nvtx: ranges on the main lane."""
    stack: list[tuple[str, int]] = []

    def push(message: str) -> int:
        """Open a range; return its depth."""
        stack.append((str(message), session.enter_range(str(message))))
        return len(stack) - 1

    def pop() -> int:
        """Close the innermost range; return its depth, or -1 if none is open."""
        if not stack:
            return -1
        session.leave_range(*stack.pop())
        return len(stack)

    @contextlib.contextmanager
    def span(message: str, *args: Any, **kwargs: Any) -> Iterator[None]:
        """Open a range around a block."""
        push(message.format(*args, **kwargs))
        try:
            yield
        finally:
            pop()

    def mark(message: str) -> None:
        """Note a moment."""
        now = session.runtime.now
        session.runtime.range(now, now, str(message), session.batches.current)

    return {"range_push": push, "range_pop": pop, "range": span, "mark": mark}
