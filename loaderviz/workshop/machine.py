"""The machine of the exercises, and what can be known about a run before it runs: its limit.

The exercises use small tensors, so that a check takes about a second. A machine whose link and memory have a tenth of
the speed of the lessons' laptop makes a small batch behave as one ten times as large does there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import torch

from loaderviz.emulator import costs
from loaderviz.emulator.hardware import GB, Gpu, Host
from loaderviz.metrics import summarize
from loaderviz.recording import record

TENTH = 10
FEATURES = 28 * 28  # an MNIST image
SAMPLES = 256
HIDDEN = 256

_LAPTOP = Gpu.preset("laptop")
GPU = replace(
    _LAPTOP, name="workshop GPU", h2d=_LAPTOP.h2d // TENTH, d2h=_LAPTOP.d2h // TENTH,
    pageable=_LAPTOP.pageable // TENTH, fp32=3 * 10**11, tf32=3 * 10**11,
    sources=dict.fromkeys(("h2d", "d2h", "pageable"), "a tenth of the preset 'laptop'")
    | dict.fromkeys(("fp32", "tf32"), "chosen so that a step computes about as long as its copy takes"),
)  # fmt: skip
FAST_HOST = replace(Host.preset("laptop"), name="workshop host")
HOST = replace(
    FAST_HOST, memory_bandwidth=FAST_HOST.memory_bandwidth // TENTH,
    sources={"memory_bandwidth": "a tenth of the preset 'laptop'"},
)  # fmt: skip
assert GPU.h2d == 5 * GB // 2


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
