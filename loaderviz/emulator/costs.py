"""What copies and the host's calls cost, without torch. (Kernels: kernels.py.)"""

from __future__ import annotations

from loaderviz.emulator.hardware import Gpu, Host

FULL = 1000  # shares and factors are in thousandths
SECOND = 10**9
SMALL_MALLOC = 2 * 2**20  # bytes: the segments of PyTorch's small blocks


def copy_time(gpu: Gpu, nbytes: int, rate: int, *, down: bool = False) -> int:
    """Return the time of a copy over the link in ns: latency + bytes / rate (R22); `down`: to the host."""
    return (gpu.d2h_latency if down else gpu.copy_latency) + ceil_div(nbytes * SECOND, rate)


def host_time(host: Host, nbytes: int, flops: int = 0) -> int:
    """Return the time in ns in which one host thread touches `nbytes` (reads and writes counted), or computes."""
    math = ceil_div(flops * SECOND, host.flops) if host.flops else 0
    return max(ceil_div(nbytes * SECOND, host.memory_bandwidth), math)


def pin_time(host: Host, nbytes: int) -> int:
    """Return the time in ns in which the main thread copies `nbytes` into pinned memory, with torch's threads."""
    return ceil_div(2 * nbytes * SECOND, max(host.memory_bandwidth, host.parallel_bandwidth))


def step_operator(host: Host) -> int:
    """Return the host's time in ns for an operator of a training step, without its launch, where no one knows which.

    Half of them are taken to be backward, each a node; half forward, each in a module, every second one composite.
    """
    forward = host.python + host.module + host.composite // 2
    return host.dispatch + (forward + host.node) // 2


def malloc_time(gpu: Gpu, nbytes: int) -> int:
    """Return the host's time in ns for `cudaMalloc` or `cudaFree` of `nbytes` bytes (R13)."""
    return gpu.malloc_small if nbytes <= SMALL_MALLOC else gpu.malloc


def page_lock_time(host: Host, nbytes: int) -> int:
    """Return the time in ns of page-locking `nbytes` for the first time (R44)."""
    return host.page_lock_base + ceil_div(nbytes * host.page_lock_per_gib, 2**30)


def fetch_time(host: Host, samples: int, nbytes: int, *, batched: bool = False) -> int:
    """Return the time in ns in which a worker prepares a batch of `samples` samples, `nbytes` bytes in all.

    `batched`: the data set gives the whole batch at once (`__getitems__`, or an index list as one item), which saves
    the cost of each sample.
    """
    per_sample = 0 if batched else samples * host.fetch_per_sample
    return host.fetch_base + per_sample + ceil_div(nbytes * host.fetch_per_byte, 1000)


def ceil_div(a: int, b: int) -> int:
    """Divide whole numbers and round up, so that no work takes less time than it needs."""
    return -(-a // b)
