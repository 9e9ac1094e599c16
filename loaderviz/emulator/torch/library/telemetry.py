"""What scripts ask of the machine: versions of CUDA's libraries, cudart, and NVML, through pynvml where that is there.

NVML is a library of C; pynvml calls it by ctypes. `Nvml` stands in for the library: it answers for the emulated GPU,
and "not supported", as cards do, to what has no emulated figure (temperature, power, clocks).
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from loaderviz import intervals
from loaderviz.emulator.hardware import DATA
from loaderviz.emulator.torch.functions import answers
from loaderviz.emulator.torch.library.cuda import check_device, properties
from loaderviz.emulator.torch.session import Session
from loaderviz.emulator.torch.tensors import is_on_device
from loaderviz.errors import NotModelledError
from loaderviz.timeline import Kind

if TYPE_CHECKING:
    from loaderviz.emulator.torch.patches import Patches

CUDNN = (torch.float16, torch.float32, torch.float64, torch.bfloat16)
PLANS = 4096  # of cuFFT, which a cache of PyTorch's keeps
SUCCESS, NOT_FOUND, NOT_SUPPORTED = 0, 6, 3  # nvmlReturn_t


def install(session: Session, patches: Patches) -> None:
    """Put all in place."""
    software = DATA["gpu"]["software"]
    patches.set(torch.version, "cuda", software["cuda"])
    patches.set(torch._C, "_nccl_version", lambda: _packed(software["nccl"]))
    patches.set(torch._C, "_nccl_version_suffix", lambda: b"")
    patches.set(torch._C, "_has_cudnn", True)
    for name, answer in {"version": software["cudnn"], "is_available": True}.items():
        patches.set(torch.backends.cudnn, name, lambda answer=answer: answer)
    patches.set(torch.backends.cudnn, "is_acceptable", lambda tensor: is_on_device(tensor) and tensor.dtype in CUDNN)
    patches.set(torch, "_use_cudnn_rnn_flatten_weight", lambda: False)  # an operator of cuDNN alone
    limit = [10]
    patches.set(torch._C, "_cuda_get_cudnn_benchmark_limit", lambda: limit[0])
    patches.set(torch._C, "_cuda_set_cudnn_benchmark_limit", lambda value: limit.__setitem__(0, value))
    runtime = _cudart(session)
    patches.set(torch.cuda, "_cudart", runtime)
    patches.function(torch.cuda, "cudart", lambda: runtime)
    utilization = Utilization(session)

    def busy(device: Any = None) -> int:
        check_device(device)
        return utilization.percent()

    def used(device: Any = None) -> int:
        check_device(device)
        free, total = session.pool.mem_get_info()
        return total - free

    patches.function(torch.cuda, "utilization", busy)
    patches.function(torch.cuda, "device_memory_used", used)
    patches.function(torch.cuda, "list_gpu_processes", lambda device=None: _processes(used(device)))
    if pynvml := sys.modules.get("pynvml"):  # torch.cuda imports it, if it is there
        patches.set(pynvml, "nvmlLib", Nvml(session, utilization))
        patches.set(pynvml, "_nvmlGetFunctionPointer_cache", {})
        patches.set(pynvml, "_LoadNvmlLibrary", lambda: None)
    else:
        for name in ("temperature", "power_draw", "clock_rate", "memory_usage"):
            patches.function(torch.cuda, name, _needs_nvml(name))


@answers(torch._cufft_get_plan_cache_max_size)
def _plans(session: Session, func: Any, device: int) -> int:
    return PLANS


@answers(torch._cufft_get_plan_cache_size, torch._cufft_set_plan_cache_max_size, torch._cufft_clear_plan_cache)
def _no_plans(session: Session, func: Any, *args: Any) -> int:
    return 0


def _packed(version: list[int]) -> int:
    major, minor, patch = version
    return major << 32 | minor << 16 | patch


def _processes(used: int) -> str:
    return f"GPU:0\nprocess {os.getpid():>10d} uses {used / 2**20:>12.3f} MB GPU memory"


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
        cudaMemGetInfo=lambda device=0: session.pool.mem_get_info(),
    )


class Utilization:
    """What part of the time kernels ran, as NVML has it [percent]; here since the last question."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._since, self._spans = 0, 0

    def percent(self) -> int:
        """Return the share of the time since the last question."""
        with self._session.calling("a question about utilization"):
            runtime, since, first = self._session.runtime, self._since, self._spans
            runtime.device.advance(runtime.now)
            self._since, self._spans = runtime.now, len(runtime.builder)
            spans = runtime.recorded(first)
        kernels = spans.kind == Kind.COMPUTE
        busy = intervals.length(intervals.union(spans.start[kernels], spans.end[kernels]))
        return min(100, round(100 * busy / max(1, self._since - since)))


class Nvml:
    """The functions of libnvidia-ml that have an answer; each writes to its last argument, and returns a status."""

    def __init__(self, session: Session, utilization: Utilization) -> None:
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

        def rates(handle: Any, result: Any) -> int:
            return _write(result, gpu=utilization.percent(), memory=0)

        def handle_at(index: Any, result: Any) -> int:
            return SUCCESS if getattr(index, "value", index) == 0 else NOT_FOUND

        def capability(handle: Any, major: Any, minor: Any) -> int:
            return _write(major, gpu.capability[0]) or _write(minor, gpu.capability[1])

        done = number(0)
        self.functions: dict[str, Callable[..., int]] = {
            **dict.fromkeys(("nvmlInit_v2", "nvmlInitWithFlags", "nvmlShutdown"), lambda *args: SUCCESS),
            "nvmlDeviceGetCount_v2": number(1),
            "nvmlDeviceGetHandleByIndex_v2": handle_at,
            "nvmlDeviceGetHandleByUUID": lambda uuid, result: SUCCESS,
            "nvmlDeviceGetIndex": done,
            "nvmlDeviceGetName": text(gpu.name),
            "nvmlDeviceGetUUID": text(f"GPU-{known.uuid}"),
            "nvmlDeviceGetMemoryInfo": memory,
            "nvmlDeviceGetMemoryInfo_v2": memory,
            "nvmlDeviceGetUtilizationRates": rates,
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
