"""What scripts ask of the machine: versions, cudart, memory, and NVML, through pynvml where that is there.

NVML is a library of C; pynvml calls it by ctypes. `Nvml` stands in for the library: it answers for the emulated GPU,
and "not supported", as cards do, to what has no emulated figure (temperature, power, clocks).
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from loaderviz import intervals
from loaderviz.emulator.hardware import DATA
from loaderviz.emulator.memory import DEFERRED, FREE, LIVE, SMALL_SEGMENT, Block, Ledger
from loaderviz.emulator.torch import internals
from loaderviz.emulator.torch.functions import answers
from loaderviz.emulator.torch.library.cuda import check_device, for_device, properties
from loaderviz.emulator.torch.patches import Patches
from loaderviz.emulator.torch.session import Session
from loaderviz.emulator.torch.tensors import is_on_device
from loaderviz.errors import NotModelledError
from loaderviz.timeline import Kind

CUDNN = (torch.float16, torch.float32, torch.float64, torch.bfloat16)
PLANS = 4096  # of cuFFT, which a cache of PyTorch's keeps
NONE = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
BLOCK_STATES = {LIVE: "active_allocated", DEFERRED: "active_pending_free", FREE: "inactive"}
# What torch.cuda.host_memory_stats calls the figures of a pool: a block of it is a segment
PINNED = {"allocations": "segment", "allocated_bytes": "reserved_bytes", "active_requests": "active"}
NO_HISTORY = "torch.cuda.memory: the emulated allocator keeps no history; its snapshots show what is there now"
SUCCESS, NOT_FOUND, NOT_SUPPORTED = 0, 6, 3  # nvmlReturn_t


def install(session: Session, patches: Patches) -> None:
    """Put all in place."""
    software = DATA["gpu"]["software"]
    patches.set(torch.version, "cuda", software["cuda"])
    limit, (major, minor, patch) = [10], software["nccl"]
    of_c = {
        "_nccl_version": lambda: major << 32 | minor << 16 | patch,
        "_nccl_version_suffix": lambda: b"",
        "_has_cudnn": True,
        "_cuda_get_cudnn_benchmark_limit": lambda: limit[0],
        "_cuda_set_cudnn_benchmark_limit": lambda value: limit.__setitem__(0, value),
    }
    patches.set_all(
        internals.C, of_c | _statistics(session) | _pinned_statistics(session) | _history(session) | _whole(session)
    )
    of_cudnn = {
        "version": lambda: software["cudnn"],
        "is_available": lambda: True,
        "is_acceptable": lambda tensor: is_on_device(tensor) and tensor.dtype in CUDNN,
    }
    patches.set_all(torch.backends.cudnn, of_cudnn)
    patches.set(torch, "_use_cudnn_rnn_flatten_weight", lambda: False)  # an operator of cuDNN alone
    runtime = _cudart(session)
    patches.set(torch.cuda, "_cudart", runtime)
    patches.function(torch.cuda, "cudart", lambda: runtime)
    utilization = _utilization(session)

    def used() -> int:
        free, total = session.pool.mem_get_info()
        return total - free

    def processes() -> str:
        return f"GPU:0\nprocess {os.getpid():>10d} uses {used() / 2**20:>12.3f} MB GPU memory"

    for name, question in {
        "utilization": utilization,
        "device_memory_used": used,
        "list_gpu_processes": processes,
    }.items():
        patches.function(torch.cuda, name, for_device(question))
    if pynvml := sys.modules.get("pynvml"):  # torch.cuda imports it, if it is there
        library = Nvml(session, utilization)
        patches.set_all(
            pynvml, {"nvmlLib": library, "_nvmlGetFunctionPointer_cache": {}, "_LoadNvmlLibrary": lambda: None}
        )
    else:
        for name in ("temperature", "power_draw", "clock_rate", "memory_usage"):
            patches.function(torch.cuda, name, _needs_nvml(name))


@answers(torch._cufft_get_plan_cache_max_size)
def _plans(session: Session, func: Any, device: int) -> int:
    return PLANS


@answers(torch._cufft_get_plan_cache_size, torch._cufft_set_plan_cache_max_size, torch._cufft_clear_plan_cache)
def _no_plans(session: Session, func: Any, *args: Any) -> int:
    return 0


def _needs_nvml(name: str) -> Callable[..., Any]:
    def ask(device: Any = None) -> Any:
        raise ModuleNotFoundError(
            f"torch.cuda.{name}: nvidia-ml-py does not seem to be installed; and the emulated GPU has no such figure"
        )

    return ask


def _cudart(session: Session) -> Any:
    """Return what stands in for CUDA's runtime: the profiler's switches do nothing, memory is the emulated GPU's."""

    class Runtime(SimpleNamespace):
        def __getattr__(self, name: str) -> Any:
            raise NotModelledError(
                f"torch.cuda.cudart().{name}: the emulated GPU does not model the raw CUDA runtime. Leave this call "
                "out, or run on a GPU."
            )

    return Runtime(
        cudaError=SimpleNamespace(success=SUCCESS),
        cudaGetErrorString=lambda code: "no error" if int(code) == SUCCESS else f"error {int(code)}",
        cudaProfilerStart=lambda: SUCCESS,
        cudaProfilerStop=lambda: SUCCESS,
        cudaMemGetInfo=_memory_of(session),
    )


def _utilization(session: Session) -> Callable[[], int]:
    """Return a question: what part of the time kernels ran, as NVML has it [percent]; here since it was asked last."""
    since, first = 0, 0

    def percent() -> int:
        nonlocal since, first
        with session.calling("a question about utilization"):
            runtime = session.runtime
            runtime.device.advance(runtime.now)
            spans, before = runtime.recorded(first), since
            since, first = runtime.now, len(runtime.builder)
        kernels = spans.kind == Kind.COMPUTE
        busy = intervals.length(intervals.union(spans.start[kernels], spans.end[kernels]))
        return min(100, round(100 * busy / max(1, since - before)))

    return percent


class Nvml:
    """The functions of libnvidia-ml that have an answer; each writes to its last argument, and returns a status."""

    def __init__(self, session: Session, utilization: Callable[[], int]) -> None:
        gpu, pool = session.runtime.gpu, session.pool
        known = properties(gpu)

        def text(value: str) -> Callable[..., int]:
            def write(*args: Any) -> int:
                buffer = next(arg for arg in reversed(args) if isinstance(arg, ctypes.Array))
                buffer.value = value.encode()[: len(buffer) - 1]
                return SUCCESS

            return write

        def number(value: int) -> Callable[..., int]:
            return lambda *args: _write(args[-1], value)

        def memory(handle: Any, result: Any) -> int:
            free, total = pool.mem_get_info()
            return _write(result, total=total, free=free, used=total - free)

        def capability(handle: Any, major: Any, minor: Any) -> int:
            return _write(major, gpu.capability[0]) or _write(minor, gpu.capability[1])

        self.functions: dict[str, Callable[..., int]] = {
            **dict.fromkeys(("nvmlInit_v2", "nvmlInitWithFlags", "nvmlShutdown"), lambda *args: SUCCESS),
            "nvmlDeviceGetCount_v2": number(1),
            "nvmlDeviceGetHandleByIndex_v2": lambda index, _: NOT_FOUND if getattr(index, "value", index) else SUCCESS,
            "nvmlDeviceGetHandleByUUID": lambda uuid, result: SUCCESS,
            "nvmlDeviceGetIndex": number(0),
            "nvmlDeviceGetName": text(gpu.name),
            "nvmlDeviceGetUUID": text(f"GPU-{known.uuid}"),
            "nvmlDeviceGetMemoryInfo": memory,
            "nvmlDeviceGetMemoryInfo_v2": memory,
            "nvmlDeviceGetUtilizationRates": lambda _, result: _write(result, gpu=utilization(), memory=0),
            "nvmlDeviceGetCudaComputeCapability": capability,
            "nvmlSystemGetCudaDriverVersion": number(DATA["gpu"]["software"]["driver_cuda"]),
            "nvmlSystemGetCudaDriverVersion_v2": number(DATA["gpu"]["software"]["driver_cuda"]),
            "nvmlSystemGetDriverVersion": text(DATA["gpu"]["software"]["driver"]),
        }

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)
        return self.functions.get(name, lambda *args: NOT_SUPPORTED)


def _write(reference: Any, value: Any = None, **fields: int) -> int:
    """Write a number, or the fields of a structure, where a `ctypes.byref` or a pointer leads."""
    target = reference._obj if hasattr(reference, "_obj") else reference.contents
    for name, number in fields.items():
        setattr(target, name, number)
    if value is not None:
        target.value = value
    return SUCCESS


# Memory


def _now(session: Session) -> None:
    session.enter("a question about memory")  # gives back what was freed since the last call
    session.leave()


def _resets(ledger: Ledger, *, peaks: bool) -> Callable[..., None]:
    return lambda *_: ledger.reset(peaks=peaks)


def _statistics(session: Session) -> dict[str, Any]:
    pool = session.pool

    def statistics() -> dict[str, Any]:
        _now(session)
        figures = pool.ledger.figures().items()
        nested: dict[str, Any] = {name: {part: it._asdict() for part, it in parts.items()} for name, parts in figures}
        nested |= {"oversize_allocations": NONE, "oversize_segments": NONE, "max_split_size": -1}
        nested |= dict.fromkeys(("num_sync_all_streams", "num_oom_rejections"), 0)
        return nested | {
            "num_alloc_retries": pool.retries,
            "num_ooms": pool.ooms,
            "num_device_alloc": pool.mallocs,
            "num_device_free": pool.releases,
        }

    peaks, totals = (_resets(pool.ledger, peaks=peaks) for peaks in (True, False))
    return {
        "_cuda_memoryStats": for_device(statistics),
        "_cuda_resetPeakMemoryStats": peaks,
        "_cuda_resetAccumulatedMemoryStats": totals,
        "_accelerator_getDeviceStats": for_device(statistics),
        "_accelerator_resetPeakStats": peaks,
        "_accelerator_resetAccumulatedStats": totals,
    }


def _pinned_statistics(session: Session) -> dict[str, Any]:
    pinned = session.pinned

    def statistics() -> dict[str, Any]:
        _now(session)
        figures = {name: pools["all"] for name, pools in pinned.ledger.figures().items()}
        named = {name: figures[figure]._asdict() for name, figure in PINNED.items()}
        return named | {
            "active_bytes": figures["active_bytes"]._asdict(),
            "num_host_alloc": pinned.mallocs,
            "num_host_free": 0,  # the cache keeps what it has
            "host_alloc_time": _times(pinned.locks),
            "host_free_time": _times([]),
        }

    return {
        "_cuda_hostMemoryStats": statistics,
        "_cuda_resetPeakHostMemoryStats": _resets(pinned.ledger, peaks=True),
        "_cuda_resetAccumulatedHostMemoryStats": _resets(pinned.ledger, peaks=False),
        "_host_emptyCache": lambda: None,
    }


def _history(session: Session) -> dict[str, Any]:
    def snapshot(pool_id: tuple[Any, ...] | None = None, *_: Any) -> dict[str, Any]:
        if pool_id and tuple(pool_id[:2]) != (0, 0):
            raise NotModelledError("memory_snapshot: the emulated GPU has no memory pools of one's own; leave them out")
        _now(session)
        segments = [_segment(blocks) for blocks in session.pool.segments()]
        return {"segments": segments, "device_traces": [[]], "external_annotations": []}

    def record_history(enabled: Any = "all", *_: Any, **__: Any) -> None:
        if enabled is not None:
            session.note(NO_HISTORY)

    return {
        "_cuda_memorySnapshot": snapshot,
        "_cuda_record_memory_history": record_history,
        "_cuda_record_memory_history_legacy": record_history,
        "_accelerator_isAllocatorInitialized": lambda: True,
    }


def _memory_of(session: Session) -> Callable[..., tuple[int, int]]:
    def mem_get_info() -> tuple[int, int]:
        _now(session)
        return session.pool.mem_get_info()

    return for_device(mem_get_info)


def _whole(session: Session) -> dict[str, Any]:
    pool, limit = session.pool, [1.0]
    whole = pool.capacity

    def empty_cache() -> None:
        with session.calling("torch.cuda.empty_cache"):
            pool.empty_cache()

    def set_fraction(fraction: float, device: int) -> None:
        check_device(device)
        limit[0] = fraction
        pool.capacity = min(whole, int(fraction * session.runtime.gpu.memory))

    return {
        **dict.fromkeys(("_cuda_emptyCache", "_accelerator_emptyCache"), empty_cache),
        "_accelerator_getMemoryInfo": _memory_of(session),
        "_cuda_setMemoryFraction": set_fraction,
        "_cuda_getMemoryFraction": for_device(lambda: limit[0]),
    }


def _times(durations: list[int]) -> dict[str, int]:
    times = [duration // 1000 for duration in durations]  # us, as torch has them
    total, count = sum(times), len(times)
    return {
        "total": total,
        "max": max(times, default=0),
        "min": min(times, default=0),
        "count": count,
        "avg": total // max(1, count),
    }


def _segment(blocks: list[Block]) -> dict[str, Any]:
    """Return a segment in torch's words; sizes in bytes. Nothing has frames: the allocator's history is not kept."""
    total = sum(block.size for block in blocks)
    active = [block for block in blocks if block.state != FREE]
    return {
        "device": 0,
        "address": blocks[0].address,
        "stream": blocks[0].stream.id,
        "segment_type": "small" if total == SMALL_SEGMENT else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "total_size": total,
        "active_size": sum(block.size for block in active),
        "allocated_size": sum(block.size for block in active if block.state == LIVE),
        "requested_size": sum(block.requested for block in active),
        "blocks": [
            {"address": block.address, "size": block.size, "requested_size": block.requested, "frames": []}
            | {"state": BLOCK_STATES[block.state]}
            for block in blocks
        ],
        "frames": [],
    }
