"""Gpu and Host: the machines that can be emulated. Each number has a source, or says "assumed".

    Gpu.preset("a100").h2d          # 25_000_000_000 bytes a second from pinned memory
    Gpu.preset("a100").source("h2d")
    replace(Host.preset("laptop"), fetch_per_sample=50_000)  # a data set with slow transforms (dataclasses.replace)

Times are integer nanoseconds, sizes bytes, rates bytes (or FLOPs) a second, shares thousandths.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TypeVar

from loaderviz.errors import LoadervizError

GB = 10**9  # bandwidths are given in decimal GB/s
GIB = 2**30
TERA = 10**12

ASSUMED = "assumed"
SHEET = "NVIDIA data sheet of the card"
NVBANDWIDTH = "nvbandwidth README: 26.0 GB/s one way, 18.4-19.6 GB/s each way at once: a factor of 0.72 (R21)"
LATENCY = "PCIe latency of about 5 us (d2l.ai latency table; R22 says 5-10 us)"


class UnknownHardwareError(LoadervizError, ValueError):
    """No such preset."""


@dataclass(frozen=True)
class Gpu:
    """What the device can do. Rates in bytes/s or FLOP/s, times in ns, memory in bytes, factors in thousandths."""

    name: str
    h2d: int  # pinned host -> device
    d2h: int  # device -> pinned host
    pageable: int  # either way through the staging buffer
    memory_bandwidth: int
    memory: int
    fp32: int
    tf32: int
    fp16: int  # also bfloat16
    fp64: int
    sms: int
    capability: tuple[int, int]
    copy_latency: int = 5_000
    bidirectional: int = 720
    staging_chunk: int = 512 * 1024
    launch_latency: int = 4_000
    kernel_start: int = 2_000
    efficiency: int = 750
    threads_per_sm: int = 2048
    queue_depth: int = 1024
    async_engines: int = 3  # copy engines: with one, H2D and D2H take turns; more than two add nothing
    context_memory: int = 512 * 2**20
    malloc: int = 100_000
    sources: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    def source(self, name: str) -> str:
        """Return where the number `name` comes from, or "assumed"."""
        return self.sources.get(name) or GPU_SOURCES.get(name, ASSUMED)

    @classmethod
    def preset(cls, name: str) -> Gpu:
        """Return a preset by name. Raises `UnknownHardwareError`, with the names that exist."""
        return _preset(GPUS, name, "GPU")


GPU_SOURCES = {
    **dict.fromkeys(("memory_bandwidth", "memory", "fp32", "tf32", "fp16", "fp64", "sms", "capability"), SHEET),
    "copy_latency": LATENCY,
    "bidirectional": NVBANDWIDTH,
    "queue_depth": "about 1000 launches a stream, then the call blocks (Stack Overflow 53970187, R24)",
    "efficiency": "torch.distributed._tools.RuntimeEstimator: 75 % of peak",
    "threads_per_sm": "CUDA programming guide, resident threads per multiprocessor",
    "async_engines": "deviceQuery of A100, T4 and GTX 1650: 3 (R20); other cards assumed alike",
}
PCIE3 = "PCIe 3 x16, DGX class: 11-12 GB/s pinned, 5-6 pageable (dask-cuda issue 98)"
PCIE4 = "PCIe 4: nvbandwidth's README has 26.0 GB/s pinned, rounded to 25; pageable 10: RTX 5090, PyTorch tutorial"
PCIE5 = "H200 on PCIe 5 x16: 55.43 GB/s H2D, 55.06 D2H (ml-engineering network/README.md); pageable 9.7 (RTX PRO 6000)"


def _link(text: str) -> dict[str, str]:
    return dict.fromkeys(("h2d", "d2h", "pageable"), text)


GPUS: dict[str, Gpu] = {
    "t4": Gpu(
        "Tesla T4", 12 * GB, 12 * GB, 6 * GB, 320 * GB, 16 * GB, 81 * TERA // 10, 81 * TERA // 10, 65 * TERA,
        254 * GB, 40, (7, 5), threads_per_sm=1024, sources=_link("assumed from: " + PCIE3),
    ),
    "a100": Gpu(
        "NVIDIA A100-PCIE-40GB", 25 * GB, 25 * GB, 10 * GB, 1555 * GB, 40 * GIB, 195 * TERA // 10, 156 * TERA,
        312 * TERA, 97 * TERA // 10, 108, (8, 0), sources=_link(PCIE4),
    ),
    "a100-80gb": Gpu(
        "NVIDIA A100 80GB PCIe", 25 * GB, 25 * GB, 10 * GB, 1935 * GB, 80 * GIB, 195 * TERA // 10, 156 * TERA,
        312 * TERA, 97 * TERA // 10, 108, (8, 0), sources=_link(PCIE4),
    ),
    "h100": Gpu(
        "NVIDIA H100 PCIe", 55 * GB, 55 * GB, 10 * GB, 2000 * GB, 80 * GIB, 51 * TERA, 378 * TERA, 756 * TERA,
        26 * TERA, 114, (9, 0), sources=_link("assumed from: " + PCIE5),
    ),
    "h200": Gpu(
        "NVIDIA H200", 55_430_000_000, 55_060_000_000, 10 * GB, 4800 * GB, 141 * GB, 67 * TERA, 494 * TERA,
        989 * TERA, 34 * TERA, 132, (9, 0), sources=_link(PCIE5),
    ),
    "laptop-pcie3": Gpu(
        "NVIDIA GeForce RTX 3060 Laptop GPU (PCIe 3)", 12 * GB, 12 * GB, 6 * GB, 336 * GB, 6 * GIB, 109 * TERA // 10,
        218 * TERA // 10, 436 * TERA // 10, 170 * GB, 30, (8, 6), threads_per_sm=1536,
        sources=_link("assumed from: " + PCIE3),
    ),
    "laptop": Gpu(
        "NVIDIA GeForce RTX 3060 Laptop GPU", 25 * GB, 25 * GB, 10 * GB, 336 * GB, 6 * GIB, 109 * TERA // 10,
        218 * TERA // 10, 436 * TERA // 10, 170 * GB, 30, (8, 6), threads_per_sm=1536,
        sources=_link("assumed from: " + PCIE4),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Host:
    """What the computer around the GPU costs. Times in ns, rates in bytes/s."""

    name: str
    dispatch: int  # one operator through PyTorch, without its CUDA calls
    launch: int  # cudaLaunchKernel
    memcpy_call: int  # cudaMemcpyAsync
    synchronize: int  # cudaStreamSynchronize, when there is nothing to wait for
    event_call: int  # cudaEventRecord, cudaStreamWaitEvent
    query: int  # cudaEventQuery
    memory_bandwidth: int  # what one thread reads and writes
    page_lock_base: int  # cudaHostAlloc, however small
    page_lock_per_gib: int
    fetch_per_sample: int  # dataset[i] and its share of collate
    fetch_per_byte: int  # picoseconds a byte: read, gather or collate, and the way through shared memory
    fetch_base: int  # a batch, however small: queue, index list
    hand_out: int  # the main thread takes a batch from the loader
    worker_start: int  # one DataLoader worker process
    sources: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    def source(self, name: str) -> str:
        """Return where the number `name` comes from, or "assumed"."""
        return self.sources.get(name, HOST_SOURCES.get(name, ASSUMED))

    @classmethod
    def preset(cls, name: str) -> Host:
        """Return "laptop" or "workstation". Raises `UnknownHardwareError`, with the names that exist."""
        return _preset(HOSTS, name, "host")


HOST_SOURCES = {
    "dispatch": "eager operator 5-25 us in all (jiahuanglin.xyz); the CUDA call taken out: 5 us, workstation 3 us",
    "launch": "cudaLaunchKernel 4-5 us (Stack Overflow 53970187, R24)",
    "memcpy_call": "cudaMemcpyAsync 3.39 us (PyTorch tutorial pinmem_nonblock)",
    "synchronize": "cudaStreamSynchronize 4.54 us (PyTorch tutorial pinmem_nonblock)",
    "memory_bandwidth": "one thread's memcpy: pageable copies reach 9.6-10 GB/s (RTX 5090, tutorial), read and written",
    "fetch_per_byte": "assumed: 4 GB/s (6 GB/s); index_select of 256 MNIST images: 23 us for 200 KB",
    "page_lock_per_gib": "page-locking 0.24 s/GiB (ik_llama.cpp 1517) to 0.5 s/GiB (cudf 23477)",
    "fetch_per_sample": "measured: 2.4 us a sample for in-memory MNIST (DataLoader over TensorDataset, 256 in 623 us)",
}

HOSTS: dict[str, Host] = {
    "laptop": Host(
        "laptop", dispatch=5_000, launch=4_500, memcpy_call=3_400, synchronize=4_500, event_call=1_500, query=1_000,
        memory_bandwidth=16 * GB, page_lock_base=100_000, page_lock_per_gib=500_000_000, fetch_per_sample=2_400,
        fetch_per_byte=250, fetch_base=20_000, hand_out=20_000, worker_start=20_000_000,
    ),
    "workstation": Host(
        "workstation", dispatch=3_000, launch=4_000, memcpy_call=3_400, synchronize=4_500, event_call=1_000, query=700,
        memory_bandwidth=20 * GB, page_lock_base=50_000, page_lock_per_gib=240_000_000, fetch_per_sample=2_400,
        fetch_per_byte=150, fetch_base=15_000, hand_out=15_000, worker_start=15_000_000,
    ),
}  # fmt: skip


Machine = TypeVar("Machine", Gpu, Host)


def _preset(presets: dict[str, Machine], name: str, what: str) -> Machine:
    try:
        return presets[name.lower()]
    except (KeyError, AttributeError):
        known = ", ".join(sorted(presets))
        raise UnknownHardwareError(f"no {what} preset {name!r}; choose one of: {known}") from None


def numbers(machine: Gpu | Host) -> dict[str, str]:
    """Return every number of a preset with its source, for a table: `{"h2d": "25000000000 (PCIe 4: …)"}`."""
    names = [entry.name for entry in fields(machine) if entry.name not in ("name", "sources")]
    return {name: f"{getattr(machine, name)} ({machine.source(name)})" for name in names}
