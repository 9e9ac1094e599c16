"""The machine of the exercises, and what can be known about a run before it runs: its limit.

The exercises use small tensors, so that a check takes about a second. The machine moves bytes at a fortieth of the
speed of the lessons' laptop, so a batch of 64 behaves as one of 2560 does there: copies take as long, and calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import torch

from loaderviz.emulator import costs
from loaderviz.emulator.hardware import Gpu, Host
from loaderviz.metrics import summarize
from loaderviz.recording import record

SLOWER = 40
FEATURES = 28 * 28  # an MNIST image
SAMPLES = 64
HIDDEN = 256
POOL_STREAMS, WARM_BLOCKS = 32, 12

_LAPTOP = Gpu.preset("laptop")
GPU = replace(
    _LAPTOP, name="workshop GPU", h2d=_LAPTOP.h2d // SLOWER, d2h=_LAPTOP.d2h // SLOWER,
    pageable=_LAPTOP.pageable // SLOWER, fp32=10**11, tf32=10**11, malloc=2_000,
    sources=dict.fromkeys(("h2d", "d2h", "pageable"), "1/40 of the preset 'laptop'")
    | dict.fromkeys(("fp32", "tf32"), "chosen so that a step computes a little longer than its copy takes")
    | {"malloc": "chosen small: in a training run of many steps the first allocations do not count"},
)  # fmt: skip
FAST_HOST = replace(Host.preset("laptop"), name="workshop host, fast memory")
HOST = replace(
    FAST_HOST, name="workshop host", memory_bandwidth=FAST_HOST.memory_bandwidth // SLOWER,
    sources={"memory_bandwidth": "1/40 of the preset 'laptop'"},
)  # fmt: skip


class Work:
    """What the check does with each batch on the GPU: sums to recognise the data by, then a layer of a network.

    Call it inside a recording. The weights of the sums are random and known to the check only. They are whole numbers,
    and so are the data: float64 adds them without rounding, in whatever order and layout they come.
    """

    def __init__(self, weights: torch.Tensor, scale: int = 1, hidden: int = HIDDEN) -> None:
        self.weights, self.scale = weights.to("cuda"), scale
        generator = torch.Generator(device="cpu").manual_seed(0)
        self.layer = (torch.randn(len(weights), hidden, generator=generator, device="cpu") / 28).to("cuda")

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return one sum per sample, float64 `[B]`, on the GPU; `images` is `[B, FEATURES]` of any dtype."""
        whole = images.double()
        if self.scale != 1:
            whole = (whole * self.scale).round()
        sums = torch.mv(whole, self.weights)
        torch.relu(images.float() @ self.layer)
        return sums


def sums_of(images: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the sums that `Work` must find, on the CPU: float64 `[B]`."""
    return torch.mv(images.reshape(len(images), -1).double(), weights)


@lru_cache(maxsize=64)
def work_time(samples: int, dtype: torch.dtype = torch.float32, scale: int = 1, hidden: int = HIDDEN) -> int:
    """Return the time in ns in which the kernels of `Work` run for a batch that is on the GPU already (measured)."""
    with record(on=GPU, host=HOST) as recording:
        work = Work(torch.ones(FEATURES, dtype=torch.float64), scale, hidden)
        images = torch.zeros(samples, FEATURES, dtype=dtype).to("cuda")
        torch.cuda.synchronize()
        work(images)
        torch.cuda.synchronize()
    return summarize(recording.timeline).kernels


def copy_time(*tensors: torch.Tensor, pinned: bool = True) -> int:
    """Return the time in ns in which these host tensors travel to the GPU, one after the other."""
    rate = GPU.h2d if pinned else GPU.pageable
    return sum(costs.copy_time(GPU, tensor.nbytes, rate) for tensor in tensors)


def pipeline_limit(copies: Sequence[int], works: Sequence[int]) -> int:
    """Return the shortest time [ns] in which all batches can be copied and worked on, in order.

    The work on a batch begins after its copy; copies run one after the other, works too. So for each k the first k
    copies come before the works from k on, and the longest of these chains is the limit (a two-machine flow shop).

    >>> pipeline_limit([3, 3, 3], [2, 2, 2])    # three copies, and the last work
    11
    """
    done = finished = 0
    for copy, work in zip(copies, works, strict=True):
        done += copy
        finished = max(finished, done) + work
    return finished


def sum_limit(copies: Sequence[int], works: Sequence[int]) -> int:
    """Return the time [ns] of a loop that hides nothing: each copy, then its work."""
    return sum(copies) + sum(works)


@lru_cache(maxsize=8)
def conversion_time(samples: int, kernels: int) -> int:
    """Return the time in ns of `kernels` elementwise kernels over the float32 images of a batch."""
    return kernels * costs.kernel_time(GPU, 2 * samples * FEATURES * 4)


def warm_up() -> None:
    """Fill the memory pools of all streams that a program can get, as in a training run that is under way.

    PyTorch hands out its 32 side streams in turn (R15), so the next `torch.cuda.Stream()` is one of these. Without it
    the first batches would wait for cudaMalloc, which stops the whole device (R13). Call it inside a recording.
    """
    for stream in [torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(POOL_STREAMS))]:
        with torch.cuda.stream(stream):
            kept = [torch.empty(2**20, dtype=torch.uint8, device="cuda") for _ in range(WARM_BLOCKS)]
            kept.append(torch.empty(2 * 2**20, dtype=torch.uint8, device="cuda"))
            del kept
    torch.cuda.synchronize()
