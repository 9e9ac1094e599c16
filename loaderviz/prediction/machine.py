"""The machine of a timeline: presets by its names, made sharper by what the timeline itself shows.

gpu, host = machine_of(observed)       # rates of the link and costs of calls as measured, where they were
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np

from loaderviz.activity import Mask
from loaderviz.emulator.hardware import GPUS, HOSTS, Gpu, Host
from loaderviz.prediction.errors import WhatIfError
from loaderviz.prediction.observed import Observed
from loaderviz.timeline import COPIES, Kind

# Kernels that are limited by arithmetic; all others by memory. Good enough to tell the bottleneck, no more.
ARITHMETIC = re.compile(r"gemm|conv|cutlass|attention|addmm|bmm|baddbmm|\bmm\b|matmul|wgrad|dgrad|fprop", re.IGNORECASE)


def machine_of(loop: Observed) -> tuple[Gpu, Host]:
    """Return the GPU and the host of a timeline; a rate of the link that is not known is 0."""
    return _gpu(loop), _host(loop)


def known_gpu(name: str) -> str:
    """Return the preset that a device's name means, "" if none: "NVIDIA A100-PG509-200" is "a100"."""
    for key, gpu in GPUS.items():
        if gpu.name == name:
            return key
    short = [key for key in ("a100", "h200", "h100", "t4") if re.search(rf"\b{key}\b", name, re.IGNORECASE)]
    return short[0] if short else ""


def slower(name: str, source: Gpu, target: Gpu) -> float:
    """Return by what factor a kernel lasts longer on `target` than on `source`: by peak FLOP/s or by bandwidth."""
    if ARITHMETIC.search(name):
        return source.fp32 * source.efficiency / (target.fp32 * target.efficiency)
    return source.memory_bandwidth * source.efficiency / (target.memory_bandwidth * target.efficiency)


def _gpu(loop: Observed) -> Gpu:
    name = loop.timeline.context.device
    preset = known_gpu(name)
    base = Gpu.preset(preset) if preset else replace(Gpu.preset("a100"), name=name, h2d=0, d2h=0, pageable=0)
    rates = {
        "h2d": _rate(loop, base, loop.timeline.where(Kind.COPY_H2D) & (loop.timeline.pinned == 1)),
        "d2h": _rate(loop, base, loop.timeline.where(Kind.COPY_D2H) & (loop.timeline.pinned != 0)),
        "pageable": _rate(loop, base, loop.timeline.where(*COPIES) & (loop.timeline.pinned == 0)),
    }
    seen: dict[str, Any] = {key: rate for key, rate in rates.items() if rate}
    return replace(base, **seen, sources=base.sources | dict.fromkeys(seen, "measured in the timeline"))


def _rate(loop: Observed, gpu: Gpu, copies: Mask) -> int:
    """Return the best rate [bytes/s] of copies that last longer than their latency; 0 without any such."""
    timeline = loop.timeline
    time = timeline.end - timeline.start - gpu.copy_latency
    mine = copies & (time > gpu.copy_latency) & (timeline.nbytes > 0)
    if not mine.any():
        return 0
    return round(float((timeline.nbytes[mine] / time[mine]).max()) * 1e9)


def _host(loop: Observed) -> Host:
    timeline, facts = loop.timeline, loop.facts
    name = timeline.context.host.split(" ")[0]
    base = Host.preset(name if name in HOSTS else "workstation")
    launches = facts.calls(facts.mask(Kind.COMPUTE))
    pinned = facts.calls(loop.copies & (timeline.pinned == 1))
    handed = facts.loop & np.isin(timeline.name, [n for n, each in enumerate(timeline.names) if "hand-out" in each])
    pins = loop.whole(timeline.where(Kind.PIN) & (timeline.nbytes > 0) & (timeline.end > timeline.start))
    seen = {
        "launch": _median(loop, launches), "memcpy_call": _median(loop, pinned), "hand_out": _median(loop, handed),
        "synchronize": _median(loop, facts.synchronizes(loop.copies)),
    }  # fmt: skip
    if pins.any():  # the quickest: others may have page-locked new memory
        rate = 2 * timeline.nbytes[pins] / (timeline.end - timeline.start)[pins]
        seen["memory_bandwidth"] = round(float(rate.max()) * 1e9)
    known: dict[str, Any] = {key: value for key, value in seen.items() if value}
    return replace(base, **known)


def _median(loop: Observed, calls: Mask) -> int:
    return round(float(np.median(loop.own_time(calls)))) if calls.any() else 0


def checked(gpu: Gpu, pinned: bool) -> Gpu:
    """Return the GPU with a rate for every copy; raise `WhatIfError` if that of the loader's own copies is not known.

    A rate that is not known stands for what the loader does not do: it is as high as the highest known one.
    """
    if not (gpu.h2d if pinned else gpu.pageable):
        kind = "pinned" if pinned else "pageable"
        raise WhatIfError(
            f"what_if() does not know how fast {gpu.name} copies from {kind} memory: the timeline has no such copy, "
            f"and the GPU is none of {', '.join(sorted(GPUS))}. Give gpu=Gpu({gpu.name!r}, ...) with its rates"
        )
    best = max(gpu.h2d, gpu.d2h, gpu.pageable)
    return replace(gpu, h2d=gpu.h2d or best, d2h=gpu.d2h or best, pageable=gpu.pageable or best)
