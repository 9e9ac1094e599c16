"""What a kernel costs: bytes against memory bandwidth, FLOPs against peak, whichever takes longer (a roofline).

    kernel_time(gpu, nbytes=4096, flops=0)          # ns
    sm_share(gpu, elements=1024)                    # thousandths of the GPU that it fills

It promises the order of things and the bottleneck, not microseconds. Never imports torch.
"""

from __future__ import annotations

from typing import Literal

from loaderviz.emulator.hardware import Gpu, Host

Precision = Literal["fp32", "tf32", "fp16", "fp64"]
FULL = 1000  # shares and factors are in thousandths
SECOND = 10**9


def kernel_time(gpu: Gpu, nbytes: int, flops: int = 0, precision: Precision = "fp32") -> int:
    """Return the time of a kernel in ns: max(bytes/bandwidth, FLOPs/peak)/efficiency + a fixed start cost.

    `nbytes` counts what it reads and writes; `flops` what `torch.utils.flop_counter` counts (2 per multiply-add).
    """
    memory = ceil_div(nbytes * SECOND * FULL, gpu.memory_bandwidth * gpu.efficiency)
    math = ceil_div(flops * SECOND * FULL, getattr(gpu, precision) * gpu.efficiency)
    return gpu.kernel_start + max(memory, math)


def sm_share(gpu: Gpu, elements: int) -> int:
    """Return the share of the GPU, in thousandths (1..1000), that a kernel over `elements` outputs fills (R19).

    One thread an element, as PyTorch's elementwise kernels come close to; a kernel that fills the GPU leaves no room
    for a second one.
    """
    return min(FULL, max(1, ceil_div(elements * FULL, gpu.sms * gpu.threads_per_sm)))


def copy_time(gpu: Gpu, nbytes: int, rate: int) -> int:
    """Return the time of a copy over the link in ns: latency + bytes / rate (R22)."""
    return gpu.copy_latency + ceil_div(nbytes * SECOND, rate)


def device_copy_time(gpu: Gpu, nbytes: int) -> int:
    """Return the time of a device-to-device copy in ns: each byte is read once and written once."""
    return kernel_time(gpu, 2 * nbytes)


def host_time(host: Host, nbytes: int) -> int:
    """Return the time in ns in which one host thread touches `nbytes` (reads and writes counted)."""
    return ceil_div(nbytes * SECOND, host.memory_bandwidth)


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
