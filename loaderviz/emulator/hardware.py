"""Gpu and Host: the machines that can be emulated. Each number has a source, or says "assumed".

Times are integer nanoseconds, sizes bytes, rates bytes (or FLOPs) a second, shares thousandths.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from loaderviz.errors import LoadervizError

GB = 10**9  # bandwidths are given in decimal GB/s
GIB = 2**30
TERA = 10**12

ASSUMED = "assumed"
SHEET = "NVIDIA data sheet of the card"
NVBANDWIDTH = "nvbandwidth README: 26.0 GB/s one way, 18.4-19.6 GB/s each way at once: a factor of 0.72 (R21)"


class UnknownHardwareError(LoadervizError, ValueError):
    """No such preset."""


class Machine:
    """What `Gpu` and `Host` have in common: a source for each number, and presets."""

    sources: dict[str, str]

    def source(self, name: str) -> str:
        """Return where the number `name` comes from, or "assumed"."""
        known = GPU_SOURCES if isinstance(self, Gpu) else HOST_SOURCES
        return self.sources.get(name) or known.get(name, ASSUMED)

    @classmethod
    def preset(cls, name: str) -> Self:
        """Return a preset by name, or the machine of a file that `loaderviz calibrate` wrote ("my_gpu.json").

        Raises `UnknownHardwareError`, with the names that exist.
        """
        presets: dict[str, Any] = GPUS if cls is Gpu else HOSTS
        if str(name).endswith(".json"):
            return cls._saved(Path(name))
        if not isinstance(name, str) or name.lower() not in presets:
            what, known = "GPU" if cls is Gpu else "host", ", ".join(sorted(presets))
            raise UnknownHardwareError(f"no {what} preset {name!r}; choose one of: {known}")
        preset: Self = presets[name.lower()]
        return preset

    @classmethod
    def _saved(cls, path: Path) -> Self:
        try:
            numbers = dict(json.loads(path.read_text(encoding="utf-8"))["gpu" if cls is Gpu else "host"])
            base: Any = cls.preset(numbers.pop("preset"))
            if rows := numbers.pop("kernels", None):
                numbers["kernels"] = {**base.kernels, **{kind: Kernel(*row) for kind, row in rows.items()}}
            measured = dict.fromkeys(numbers, f"measured: {path.name}")
            saved: Self = replace(base, **numbers, sources=base.sources | measured)
            return saved
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise UnknownHardwareError(f"{path} is not a file that `loaderviz calibrate` wrote: {problem}") from problem


class Kernel(NamedTuple):
    """What a class of kernels reaches: ns that the smallest takes, thousandths of memory bandwidth, of peak FLOP/s."""

    floor: int
    bandwidth: int
    peak: int


Kernels = Mapping[str, Kernel]


@dataclass(frozen=True)
class Gpu(Machine):
    """What the device can do. Rates in bytes/s or FLOP/s, times in ns, memory in bytes, factors in thousandths."""

    name: str
    h2d: int  # pinned host -> device
    d2h: int  # device -> pinned host
    pageable: int  # either way through the staging buffer
    memory_bandwidth: int
    memory: int
    fp32: int
    tf32: int
    fp16: int  # also bfloat16; products summed in float32, as PyTorch asks for
    fp64: int
    sms: int
    capability: tuple[int, int]
    architecture: str = "ampere"
    copy_latency: int = 1_500
    d2h_latency: int = 2_500
    bidirectional: int = 720
    staging_chunk: int = 512 * 1024
    launch_latency: int = 1_600  # from the end of the launch call to the start, in an idle stream
    queue_gap: int = 1_100  # between two kernels of a stream that were both queued
    threads_per_sm: int = 2048
    queue_depth: int = 1024
    async_engines: int = 3  # copy engines: with one, H2D and D2H take turns; more than two add nothing
    context_memory: int = 512 * 2**20
    malloc: int = 341_000  # host time of cudaMalloc, cudaFree: large blocks
    malloc_small: int = 20_000  # up to 2 MiB
    kernels: Kernels = field(default_factory=lambda: KERNELS["ampere"], hash=False, repr=False)
    sources: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def named(cls, name: str) -> Gpu:
        """Return the preset of a card by the name that it reports, as "NVIDIA H100 80GB HBM3".

        Raises `UnknownHardwareError` where none fits: a card of a like name (a laptop's, "Ti", a MIG slice) is another.
        """
        given = BRANDS.sub("", name.strip().lower())
        for key, gpu in GPUS.items():
            if given == BRANDS.sub("", gpu.name.lower()) or re.fullmatch(NAMES.get(key, "-"), given):
                return gpu
        raise UnknownHardwareError(
            f"no preset fits the GPU {name!r}; choose the nearest of: {', '.join(sorted(GPUS))}; or give a Gpu(...) "
            "with its numbers"
        )


GPU_SOURCES = {
    **dict.fromkeys(("memory_bandwidth", "memory", "fp32", "tf32", "fp16", "fp64", "sms", "capability"), SHEET),
    "architecture": SHEET,
    "copy_latency": "small H2D copies of H100, A100 and V100 traces: 0.8-2.0 us on the device",
    "d2h_latency": "small D2H copies of the same traces: 2.2-2.8 us",
    "launch_latency": "end of cudaLaunchKernel to the kernel, idle stream: H100 1.7, A100 1.5, V100 2 us (traces)",
    "queue_gap": "between queued kernels: H100 1.02-1.38, A100 1.15, V100 0.75, RTX 2080 Ti 1 us (traces)",
    "bidirectional": NVBANDWIDTH,
    "queue_depth": "1022 commands in 533 launches that blocked (V100 trace); about 1000 (Stack Overflow 53970187)",
    "threads_per_sm": "CUDA programming guide, resident threads per multiprocessor",
    "malloc": "cudaMalloc on an RTX 2080 Ti: 100-700 us, 341 in the middle (param repository, resnet_kineto; R13)",
    "malloc_small": "the same trace: 5-40 us (R13)",
    "async_engines": "deviceQuery of A100, T4 and GTX 1650: 3 (R20); other cards assumed alike",
    "kernels": "fitted to traces class by class: the tables below, each with its source",
}

H200_LINK = "H200, PCIe 5: 55.43 GB/s H2D, 55.06 D2H (ml-engineering network/README.md); pageable 9.7 (RTX PRO 6000)"
# GB/s to the device and to the host, of pinned memory; of pageable memory; and where from.
LINKS = {
    "pcie3": (12.0, 12.0, 6.0, "PCIe 3 x16, DGX class: 11-12 GB/s pinned, 5-6 pageable (dask-cuda issue 98)"),
    "dgxs": (12.0, 12.0, 9.9, "PCIe 3 as above; pageable: copies of 19 MB on a V100-DGXS (pytorch/kineto, 2021)"),
    "pcie4": (25.0, 25.0, 10.0, "PCIe 4: nvbandwidth's README has 26.0 GB/s pinned, rounded to 25; pageable: RTX 5090"),
    "pcie5": (55.0, 55.0, 10.0, H200_LINK),
    "h200": (55.43, 55.06, 10.0, H200_LINK),
}

# Columns: preset, architecture, link, GB/s of memory, GB of memory (GiB where marked), TFLOP/s of fp32, tf32, fp16
# (summed in fp32: half of the sheet's figure on GeForce cards), fp64, multiprocessors, capability, the card's name
# as it reports itself. `*`: no published figure of its link was found, so another card's is assumed.
CARDS = """
t4            turing    pcie3* 320  16    8.1   8.1   65    0.254 40  7.5  Tesla T4
v100          volta     dgxs   900  16Gi  15.7  15.7  125   7.8   80  7.0  Tesla V100-SXM2-16GB
v100-32gb     volta     dgxs   900  32Gi  15.7  15.7  125   7.8   80  7.0  Tesla V100-SXM2-32GB
2080ti        turing    pcie3* 616  11Gi  13.45 13.45 53.8  0.42  68  7.5  NVIDIA GeForce RTX 2080 Ti
laptop        ga10x     pcie4* 336  6Gi   10.9  10.9  21.8  0.17  30  8.6  NVIDIA GeForce RTX 3060 Laptop GPU
laptop-pcie3  ga10x     pcie3* 336  6Gi   10.9  10.9  21.8  0.17  30  8.6  NVIDIA GeForce RTX 3060 Laptop GPU (PCIe 3)
3090          ga10x     pcie4* 936  24Gi  35.6  35.6  71    0.556 82  8.6  NVIDIA GeForce RTX 3090
4090          ada       pcie4* 1008 24Gi  82.6  82.6  165.2 1.29  128 8.9  NVIDIA GeForce RTX 4090
a10g          ga10x     pcie4* 600  24Gi  31.5  35    70    0.49  80  8.6  NVIDIA A10G
l4            ada       pcie4* 300  24Gi  30.3  60    121   0.473 58  8.9  NVIDIA L4
a100          ampere    pcie4  1555 40Gi  19.5  156   312   9.7   108 8.0  NVIDIA A100-PCIE-40GB
a100-80gb     ampere    pcie4  1935 80Gi  19.5  156   312   9.7   108 8.0  NVIDIA A100 80GB PCIe
a100-sxm      ampere    pcie4  1555 40Gi  19.5  156   312   9.7   108 8.0  NVIDIA A100-SXM4-40GB
a100-sxm-80gb ampere    pcie4  2039 80Gi  19.5  156   312   9.7   108 8.0  NVIDIA A100-SXM4-80GB
h100          hopper    pcie5* 2000 80Gi  51    378   756   26    114 9.0  NVIDIA H100 PCIe
h100-sxm      hopper    pcie5* 3350 80Gi  67    494   989   34    132 9.0  NVIDIA H100 80GB HBM3
h200          hopper    h200   4800 141   67    494   989   34    132 9.0  NVIDIA H200
b200          blackwell pcie5* 8000 180   80    1125  2250  40    148 10.0 NVIDIA B200
"""
# Other names that a card of these numbers reports.
NAMES = {"v100-32gb": "v100-(sxm2|sxm3|dgxs)-32gb", "a100-sxm": r"a100-pg509-20\d"}
BRANDS = re.compile(r"^(nvidia |geforce |tesla )*")
RESIDENT_THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 9): 1536}  # a multiprocessor; 2048 elsewhere

# Kernels by class: us of the smallest / thousandths of the memory bandwidth / thousandths of the peak of its precision.
# Fitted to torch.profiler traces: volta to ResNet-50 on a V100 (pytorch/kineto, 2021), ampere to a DLRM-like model on
# an A100 (HolisticTraceAnalysis, 2022; TF32 convolutions: its ResNet-50 of 2024), hopper to Qwen and TimeSformer on an
# H100 (TraceLens, 2025). fp16 convolutions and ga10x are fitted to published step times instead (DeepLearningExamples,
# timm). Where an architecture has no trace, the number of its nearest relative stands: turing of volta, ada of ga10x,
# blackwell of hopper with the floors of a B200 trace.
ARCHITECTURES = "volta turing ampere ga10x ada hopper blackwell"
KERNEL_TABLE = """
fill              1.8/950/0   1.8/950/0   2.0/930/0   2.0/930/0   2.0/930/0   1.5/930/0   3.0/900/0
memcpy            2.5/850/0   2.5/850/0   3.0/800/0   3.0/800/0   3.0/800/0   1.5/800/0   3.0/800/0
elementwise       1.8/890/0   1.8/890/0   1.8/860/0   1.8/860/0   1.8/860/0   1.5/870/0   3.0/870/0
strided           3.0/600/0   3.0/600/0   3.0/560/0   3.0/560/0   3.0/560/0   2.4/480/0   4.0/480/0
cat               3.5/600/0   3.5/600/0   3.5/550/0   3.5/550/0   3.5/550/0   3.5/560/0   4.0/560/0
softmax           4.0/850/0   4.0/850/0   4.0/850/0   4.0/850/0   4.0/850/0   2.5/850/0   4.0/850/0
softmax_unaligned 6.0/220/0   6.0/220/0   6.0/220/0   6.0/220/0   6.0/220/0   6.0/220/0   6.0/220/0
batch_norm        4.0/530/0   4.0/530/0   4.0/500/0   4.0/500/0   4.0/500/0   4.0/500/0   4.0/500/0
batch_norm_grad   4.0/470/0   4.0/470/0   4.0/430/0   4.0/430/0   4.0/430/0   4.0/430/0   4.0/430/0
layer_norm        3.5/450/0   3.5/450/0   3.5/450/0   3.5/450/0   3.5/450/0   3.1/450/0   4.0/450/0
reduction_columns 6.0/600/0   6.0/600/0   10./600/0   10./600/0   10./600/0   5.0/600/0   6.0/600/0
reduction         4.5/750/0   4.5/750/0   5.0/650/0   5.0/650/0   5.0/650/0   3.0/750/0   4.0/750/0
pooling           3.0/600/0   3.0/600/0   3.0/500/0   3.0/500/0   3.0/500/0   2.5/500/0   4.0/500/0
gather            4.0/350/0   4.0/350/0   4.0/350/0   4.0/350/0   4.0/350/0   3.3/300/0   4.0/300/0
foreach           3.0/820/0   3.0/820/0   3.0/760/0   3.0/760/0   3.0/760/0   3.0/760/0   4.0/760/0
gemv              4.0/600/0   4.0/600/0   4.0/600/0   4.0/600/0   4.0/600/0   3.0/600/0   4.0/600/0
gemm_fp16         5.0/600/650 5.0/600/650 5.0/600/750 5.0/700/900 5.0/700/850 5.0/600/750 5.0/600/750
gemm_fp16_align2  5.0/500/220 5.0/500/220 5.0/500/220 5.0/500/220 5.0/500/220 5.0/500/220 5.0/500/220
gemm_fp16_align1  5.0/350/70  5.0/350/70  5.0/350/70  5.0/350/70  5.0/350/70  5.0/350/70  5.0/350/70
gemm_tf32_align1  5.0/600/350 5.0/600/350 5.0/600/350 5.0/600/350 5.0/600/350 5.0/600/350 5.0/600/350
gemm_tf32         5.0/600/750 5.0/600/750 5.0/600/750 5.0/600/750 5.0/600/750 5.0/600/750 5.0/600/750
gemm_fp32         5.0/600/900 5.0/600/900 5.0/600/900 5.0/600/900 5.0/600/900 5.0/600/900 5.0/600/900
gemm_fp64         5.0/600/750 5.0/600/750 5.0/600/750 5.0/600/750 5.0/600/750 5.0/600/750 5.0/600/750
attention         3.0/600/250 3.0/600/250 3.0/600/250 3.0/600/250 3.0/600/250 3.0/600/250 3.0/600/250
conv_1x1_fp32     15/600/580  15/600/580  15/600/580  15/600/580  15/600/580  15/600/580  15/600/580
conv_3x3_fp32     15/600/1400 15/600/1400 15/600/900  15/600/900  15/600/900  15/600/900  15/600/900
conv_fp32         15/600/700  15/600/700  15/600/700  15/600/700  15/600/700  15/600/700  15/600/700
conv_tf32         15/600/280  15/600/280  15/600/280  15/600/280  15/600/280  15/600/280  15/600/280
conv_fp16         15/700/580  15/650/650  15/800/650  15/800/900  15/800/800  15/800/550  15/800/500
conv_fp64         15/600/700  15/600/700  15/600/700  15/600/700  15/600/700  15/600/700  15/600/700
conv_few_channels 15/600/800  15/600/800  15/600/800  15/600/800  15/600/800  15/600/350  15/600/350
conv_depthwise    15/300/500  15/300/500  15/300/500  15/300/500  15/300/500  15/300/500  15/300/500
"""


def _kernel_tables() -> dict[str, Kernels]:
    tables: dict[str, dict[str, Kernel]] = {name: {} for name in ARCHITECTURES.split()}
    for line in KERNEL_TABLE.strip().splitlines():
        kind, *cells = line.split()
        for table, cell in zip(tables.values(), cells, strict=True):
            floor, bandwidth, peak = cell.split("/")
            table[kind] = Kernel(round(float(floor) * 1000), int(bandwidth), int(peak))
    return dict(tables)


def _card(line: str) -> tuple[str, Gpu]:
    key, architecture, link, *numbers, sms, capability, name = line.split(maxsplit=11)
    bandwidth, memory, *rates = numbers
    up, down, pageable, source = LINKS[link.rstrip("*")]
    major, minor = (int(part) for part in capability.split("."))
    sources = dict.fromkeys(("h2d", "d2h", "pageable"), ("assumed from: " if "*" in link else "") + source)
    fp32, tf32, fp16, fp64 = (round(float(rate) * TERA) for rate in rates)
    unit = GIB if memory.endswith("Gi") else GB
    return key, Gpu(
        name, round(up * GB), round(down * GB), round(pageable * GB), int(bandwidth) * GB,
        int(memory.removesuffix("Gi")) * unit, fp32, tf32, fp16, fp64, int(sms), (major, minor), architecture,
        threads_per_sm=RESIDENT_THREADS.get((major, minor), 2048), kernels=KERNELS[architecture], sources=sources,
    )  # fmt: skip


KERNELS: dict[str, Kernels] = _kernel_tables()
GPUS: dict[str, Gpu] = dict(_card(line) for line in CARDS.strip().splitlines())


@dataclass(frozen=True)
class Host(Machine):
    """What the computer around the GPU costs. Times in ns, rates in bytes/s or FLOP/s.

    What has a default costs nothing where it is not given, so that a `Host` of one's own has simple sums.
    """

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
    python: int = 0  # from one call of torch to the next
    module: int = 0  # `nn.Module.__call__`
    composite: int = 0  # a product, convolution or norm beyond `dispatch`: nested calls, cuBLAS, cuDNN
    node: int = 0  # a node of autograd, beyond its kernels' `dispatch`
    optimizer: int = 0  # `Optimizer.step()`, beyond its operators
    parameter: int = 0  # of it, for each parameter
    flops: int = 0  # of one thread, in float32; 0: arithmetic is free
    cores: int = 0  # shared by all (emulator/sharing.py), arithmetic on the main thread takes them all; 0: no limit
    parallel_bandwidth: int = 0  # what torch's threads read and write together; 0: as one thread
    transforms: int = 0  # thousandths of the times in the table of transforms (torch/dataloader.py)
    wake: int = 0  # a blocked host goes on so long after what it waited for
    crowding: int = 0  # thousandths by which each busy worker slows copies within the host's memory (pinning, staging)
    disk: int = 0  # bytes/s of files that are read the first time; 0: files are in memory
    disk_latency: int = 0  # of each such file
    sources: dict[str, str] = field(default_factory=dict, compare=False, repr=False)


# Host times of the server are those of the traces without the profiler's share. That share was measured with torch
# 2.13 on an AMD EPYC 9005, in processor time with and without torch.profiler: a leaf operator takes 1.2 times as long
# under it, batch_norm 1.2, conv2d and linear 1.5, a node of autograd 1.4 to 2, foreach SGD 1.5; with stacks 1.5 to 4.
TRACES = "V100 and A100 servers, 2022 to 2024: traces VN, A4, A8, D0 of HolisticTraceAnalysis and param, "
UNPROFILED = ", without the profiler's share (a comment above says how it was measured)"
HOST_SOURCES = {
    "dispatch": TRACES + "leaf operators 5 to 6.8 us",
    "launch": "cudaLaunchKernel 4-5 us (Stack Overflow 53970187, R24), 5.2 us in VN",
    "memcpy_call": "cudaMemcpyAsync 3.39 us (PyTorch tutorial pinmem_nonblock), 5 us on V100 servers",
    "synchronize": "cudaStreamSynchronize 4.54 us (PyTorch tutorial pinmem_nonblock), 3 to 4 us in A4, A8",
    "python": TRACES + "2 to 3 us between operators where no module is called (D0, A8)",
    "module": TRACES + "8.2 us between the operators of ResNet-50, each in a module (VN), less `python`",
    "composite": TRACES + "conv2d 41, batch_norm 59, linear 54 to 67 us, less dispatch and launch" + UNPROFILED,
    "node": TRACES + "nodes with one kernel 24 to 47 us and gaps of 4 to 7 us, less dispatch and launch" + UNPROFILED,
    "parameter": "foreach SGD 904 us for 161 parameters (VN), less its three operators" + UNPROFILED,
    "optimizer": "foreach SGD of trace VN, with `parameter`",
    "wake": "cudaStreamSynchronize returns 3.9 to 8 us after the end (H100, A100, V100, RTX 2080 Ti)",
    "flops": "a product of 1024 x 1024 on one core of an AMD EPYC 9005: 85 GFLOP/s, processor time; others assumed",
    "cores": "assumed: a laptop of eight cores, a workstation of 16, a server with 32 for each GPU",
    "crowding": "pageable copies of 19 MB on a V100 server: 9.9 GB/s, beside 4 workers 6.5 (pytorch/kineto, ResNet-50)",
    "disk": "assumed: an NVMe drive behind PCIe 3",
    "disk_latency": "assumed: an NVMe drive's random read, 80 to 100 us, and opening the file",
    "parallel_bandwidth": "pin_memory() of 4 MB on the main thread: 0.112 ms (PyTorch tutorial pinmem_nonblock)",
    "transforms": "1000 is an AMD EPYC 9005, on which the table was measured; others assumed",
    "memory_bandwidth": "one thread's memcpy: pageable copies reach 9.6-10 GB/s (RTX 5090, tutorial), read and written",
    "fetch_per_byte": "assumed: 4 GB/s (6 GB/s); index_select of 256 MNIST images: 23 us for 200 KB",
    "page_lock_per_gib": "page-locking 0.24 s/GiB (ik_llama.cpp 1517) to 0.5 s/GiB (cudf 23477)",
    "worker_start": "measured: a fork takes 14 ms of the main thread's processor time (AMD EPYC, torch 2.13)",
    "fetch_per_sample": "measured: 2.4 us a sample for in-memory MNIST (DataLoader over TensorDataset, 256 in 623 us)",
}


def _scaled(part: str, dispatch: str) -> dict[str, str]:
    names = ("python", "module", "composite", "node", "optimizer", "parameter")
    return dict.fromkeys(names, f"assumed: {part} of 'server 2023'") | {"dispatch": dispatch}


# What the processor does takes longer on "server 2016" than on "server 2023", by so many thousandths.
OLDER = 1650
SLOWED = """
    dispatch launch memcpy_call synchronize event_call query fetch_per_sample fetch_per_byte fetch_base hand_out
    worker_start python module composite node optimizer parameter transforms
""".split()  # noqa: SIM905
OLD_SOURCE = (
    "1.65 times 'server 2023': DGX-1 (Xeon E5-2698 v4) with PyTorch of 2020 takes 10.4 ms for a ResNet-50 at batch 1, "
    "with AMP 12.8, which the host sets (DeepLearningExamples, V100); cudaLaunchKernel 7-9 us (a public trace)"
)
HOST_TABLE = """
                                server 2023,        laptop,    workstation
    dispatch                          6_000          5_000          3_000
    launch                            5_200          4_500          4_000
    memcpy_call                       5_000          3_400          3_400
    synchronize                       3_500          4_500          4_500
    event_call                        1_500          1_500          1_000
    query                               800          1_000            700
    memory_bandwidth         20_000_000_000 20_000_000_000 20_000_000_000
    page_lock_base                  100_000        100_000         50_000
    page_lock_per_gib           500_000_000    500_000_000    240_000_000
    fetch_per_sample                  2_400          2_400          2_400
    fetch_per_byte                      250            250            150
    fetch_base                       20_000         20_000         15_000
    hand_out                         20_000         20_000         15_000
    worker_start                 20_000_000     20_000_000     15_000_000
    python                            3_000          2_000          1_500
    module                            5_000          3_300          2_500
    composite                        25_000         16_000         12_500
    node                             15_000         10_000          7_500
    optimizer                        40_000         26_000         20_000
    parameter                         3_300          2_200          1_650
    flops                    40_000_000_000 60_000_000_000 80_000_000_000
    cores                                32              8             16
    parallel_bandwidth       75_000_000_000 30_000_000_000 75_000_000_000
    transforms                        1_700          1_300          1_000
    wake                              5_000          5_000          5_000
    crowding                            130            130            130
    disk                      3_000_000_000  2_000_000_000  3_000_000_000
    disk_latency                    100_000        100_000        100_000
"""


def _hosts() -> dict[str, Host]:
    head, *rows = HOST_TABLE.strip().splitlines()
    names = [name.strip() for name in head.split(",")]
    numbers = {row.split()[0]: [int(number) for number in row.split()[1:]] for row in rows}
    sources = {
        "laptop": _scaled(
            "two thirds", "eager operator 5-25 us in all (jiahuanglin.xyz); the CUDA call taken out: 5 us"
        )
        | {"parallel_bandwidth": "assumed: two channels of DDR4-3200 have 51 GB/s at their peak; a copy reaches 30"},
        "workstation": _scaled("half", "assumed: half of the server's"),
    }
    hosts = {
        name: Host(name, **{key: values[place] for key, values in numbers.items()}, sources=sources.get(name, {}))
        for place, name in enumerate(names)
    }
    new = hosts["server 2023"]
    slower = {name: getattr(new, name) * OLDER // 1000 for name in SLOWED}
    hosts["server 2016"] = replace(new, name="server 2016", **slower, sources=dict.fromkeys(slower, OLD_SOURCE))
    return hosts


HOSTS = _hosts()


def numbers(machine: Gpu | Host) -> dict[str, str]:
    """Return every number of a preset with its source, for a table: `{"h2d": "25000000000 (PCIe 4: …)"}`."""
    names = [entry.name for entry in fields(machine) if entry.name not in ("name", "sources")]
    return {name: f"{getattr(machine, name)} ({machine.source(name)})" for name in names}
