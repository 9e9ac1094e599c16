"""Timeline -> Summary: how much of the copy is hidden, what the loop waits for, how far it is from the limit.

    summary = summarize(timeline)
    print(summary)          # a table with units
    summary.overlap         # share of the host-device copy time that runs while a kernel runs; None without copies

All times are exact integer nanoseconds (interval algebra, no sampling). A timeline of several devices is summarized for
one of them, the busiest unless `device` says otherwise. The table of a Summary is in `loaderviz.report`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderviz import intervals, words
from loaderviz.activity import (
    MetricsError,
    NotATimelineError,
    breakdown_of,
    check_timeline,
    choose_device,
    device_sets,
    devices_of,
    loop_lanes,
    on_device,
    states,
    waits,
    window_of,
)
from loaderviz.timeline import COPIES, KERNELS, Kind, Timeline

__all__ = [
    "MetricsError", "NotATimelineError", "Summary", "check_timeline", "describe", "hidden_shares", "states",
    "summarize", "utilization",
]  # fmt: skip

# A step of the loop, as the emulator writes it: from the hand-out of the batch to the next hand-out.
BATCH_RANGE = re.compile(r"batch (\d+)(?:: (\d+) samples?)?")
STEP_RANGE = re.compile(r"ProfilerStep#\d+")  # torch.profiler's schedule marks steps so


@dataclass(frozen=True, repr=False)
class Summary:
    """The numbers of one timeline, for one device. Times in ns, shares 0..1; None where there is nothing to measure.

    `window` is the makespan, or the length of the window asked for. `compute` and `communication` are the time in which
    such a kernel runs, `kernels` that of either; `copy` is host-device copies (`h2d`, `d2h`; D2D counts as work on the
    device), `hidden_copy` its part under any kernel, `overlap` that part as a share. `busy` is the share of the window
    with any work on the device, `idle` the rest in ns. `host_blocked` gives the ns in which the training loop's thread
    waits, by cause. `limit` is the longest of kernels, H2D and D2H: the window if all else were hidden; `headroom` is
    window / limit. `breakdown` is exclusive and sums to the window. `step` is window / batches, `copy_share` the copy's
    share of the window (below 5 % overlap cannot pay). `bandwidth` maps a kind of copy to bytes per second.
    """

    window: int
    compute: int
    communication: int
    kernels: int
    copy: int
    h2d: int
    d2h: int
    hidden_copy: int
    exposed_copy: int
    overlap: float | None
    busy: float | None
    idle: int
    host_blocked: dict[str, int]
    limit: int
    headroom: float | None
    batches: int | None
    samples: int | None
    step: float | None
    samples_per_second: float | None
    copy_share: float | None
    breakdown: dict[str, int]
    bandwidth: dict[str, float]
    device: int = 0
    devices: tuple[int, ...] = (0,)

    @property
    def compute_share(self) -> float | None:
        """Share of the window in which a compute kernel runs."""
        return _ratio(self.compute, self.window)

    def __str__(self) -> str:
        from loaderviz import report

        return report.as_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from loaderviz import report

        return report.as_html(self)

    def _repr_markdown_(self) -> str:
        from loaderviz import report

        return report.as_markdown(self)


def summarize(
    timeline: Timeline, window: tuple[int, int] | None = None, samples: int | None = None, device: int | None = None
) -> Summary:
    """Return the Summary of a timeline, or of the part between `window = (start, end)` [ns, as in `timeline.start`].

    `samples` is the number of samples in the window, if the timeline cannot know it. Raises `NotATimelineError` for
    anything but a Timeline, `MetricsError` for a window or device that makes no sense.

        summarize(timeline).headroom                      # 2.4: the loop takes 2.4x the time of its longest engine
        summarize(timeline, window=(0, 5_000_000)).busy   # of the first 5 ms
    """
    check_timeline(timeline, "summarize()")
    start, end = window_of(timeline, window)
    device, devices = choose_device(timeline, device)
    sets = device_sets(timeline, start, end, device)
    kernels, copies = sets["kernels"], sets["copies"]
    span, busy = end - start, intervals.length(sets["work"])
    hidden = intervals.length(intervals.intersect(copies, kernels))
    copy = intervals.length(copies)
    lengths = {name: intervals.length(part) for name, part in sets.items()}
    limit = max(lengths["kernels"], lengths["h2d"], lengths["d2h"])
    batches, counted = _batches(timeline, start, end, device)
    if samples is None:
        samples = counted if counted is not None or window is not None else timeline.context.samples
    return Summary(
        window=span, compute=lengths["compute"], communication=lengths["communication"], kernels=lengths["kernels"],
        copy=copy, h2d=lengths["h2d"], d2h=lengths["d2h"], hidden_copy=hidden, exposed_copy=copy - hidden,
        overlap=_ratio(hidden, copy), busy=_ratio(busy, span), idle=span - busy,
        host_blocked={cause: intervals.length(part) for cause, part in waits(timeline, start, end, device).items()},
        limit=limit, headroom=_ratio(span, limit), batches=batches, samples=samples, step=_ratio(span, batches),
        samples_per_second=_ratio(samples * 1e9, span) if samples is not None else None,
        copy_share=_ratio(copy, span), breakdown=breakdown_of(timeline, start, end, sets, device),
        bandwidth=_bandwidth(timeline, start, end, device), device=device, devices=devices,
    )  # fmt: skip


def utilization(
    timeline: Timeline, window_ns: int, device: int | None = None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return the GPU-utilisation curve: edges [ns], shape (n + 1,), and the share of each window with a kernel, (n,).

    This is what nvidia-smi shows as "GPU-Util": the share of the sampling window in which one or more kernels ran. The
    last window ends with the timeline, so it may be shorter. An empty timeline has no windows.
    """
    check_timeline(timeline, "utilization()")
    if isinstance(window_ns, bool) or not isinstance(window_ns, (int, np.integer)) or window_ns < 1:
        raise MetricsError(f"window_ns is {window_ns!r}; give the sampling window in ns, such as 100_000 for 0.1 ms")
    begin, duration = timeline.begin, timeline.duration
    edges = begin + np.r_[np.arange(0, duration, int(window_ns), dtype=np.int64), duration]
    if not duration:
        return edges[:1], np.empty(0)
    sets = device_sets(timeline, begin, begin + duration, choose_device(timeline, device)[0])
    return edges, np.diff(intervals.covered_before(sets["kernels"], edges)) / np.diff(edges)


def hidden_shares(timeline: Timeline) -> npt.NDArray[np.float64]:
    """Return for each span the share of it that is hidden under kernels of its device; NaN unless it is a copy."""
    shares = np.full(len(timeline), np.nan)
    copies = timeline.where(*COPIES) & (timeline.end > timeline.start)
    for device in devices_of(timeline):
        here = on_device(timeline, device)
        kernels = here & timeline.where(*KERNELS)
        under = intervals.union(timeline.start[kernels], timeline.end[kernels])
        mine = copies & here
        first, last = timeline.start[mine], timeline.end[mine]
        hidden = intervals.covered_within(under, first, last)
        shares[mine] = hidden / (last - first)
    return shares


def describe(timeline: Timeline, label: str = "") -> str:
    """Return the finding in one line of words; titles and text twins use it.

    describe(timeline, "blocking")
    # "blocking: GPU computes 41 % of the time, 0 % of the copy is hidden, 2.4x the limit"
    """
    summary = summarize(timeline)
    before = f"{label}: " if label else ""
    if not len(timeline):
        return f"{before}an empty timeline, nothing was recorded"
    if not summary.busy:
        return f"{before}{words.duration(summary.window)} on the host, no work on the GPU{_loading(summary)}"
    hidden = "no copies" if summary.overlap is None else f"{words.share(summary.overlap)} of the copy is hidden"
    gpu = f"GPU {summary.device} (of {len(summary.devices)})" if len(summary.devices) > 1 else "GPU"
    parts = [f"{gpu} computes {words.share(summary.compute_share)} of the time", hidden]
    if summary.headroom is not None:
        parts.append("at the limit" if summary.headroom < 1.005 else f"{words.times(summary.headroom)} the limit")
    return before + ", ".join(parts)


def _loading(summary: Summary) -> str:
    """Say how much of a run without a GPU goes into getting batches."""
    entries = {"blocked, waiting for data": "waiting for data", "fetches a batch": "fetching batches"}
    times = {text: summary.breakdown.get(f"idle: host {entry}", 0) for entry, text in entries.items()}
    return "".join(f", {words.share(_ratio(time, summary.window))} {text}" for text, time in times.items() if time)


def step_spans(timeline: Timeline, start: int, end: int, device: int) -> tuple[list[int], list[int]]:
    """Return the spans that mark a step of the loop that feeds `device` and start in the window, in order of start.

    With them the samples that their names tell. loaderviz's own marks come before torch.profiler's steps.
    """
    for pattern in (BATCH_RANGE, STEP_RANGE):
        matches = {number: match for number, name in enumerate(timeline.names) if (match := pattern.fullmatch(name))}
        mask = timeline.where(Kind.RANGE) & np.isin(timeline.name, list(matches))
        mask &= np.isin(timeline.lane, loop_lanes(timeline, device))
        mask &= (timeline.start >= start) & (timeline.start < end)
        if mask.any():
            spans = [int(index) for index in np.flatnonzero(mask)]
            groups = (matches[int(timeline.name[index])].groups() for index in spans)
            return spans, [int(group[1]) for group in groups if len(group) > 1 and group[1] is not None]
    return [], []


def _batches(timeline: Timeline, start: int, end: int, device: int) -> tuple[int | None, int | None]:
    """Count the batches handed out in [start, end), and their samples where every range says so."""
    steps, samples = step_spans(timeline, start, end, device)
    if len(steps):
        return len(steps), sum(samples) if len(samples) == len(steps) else None
    kernels = on_device(timeline, device) & timeline.where(*KERNELS)
    numbers = timeline.batch[kernels & (timeline.start >= start) & (timeline.start < end)]
    return len(np.unique(numbers[numbers >= 0])) or None, None


def _bandwidth(timeline: Timeline, start: int, end: int, device: int) -> dict[str, float]:
    """Return bytes per second of the copies that lie in the window, by direction and kind of host memory."""
    here = on_device(timeline, device) & (timeline.start >= start) & (timeline.end <= end)
    here &= (timeline.nbytes > 0) & (timeline.end > timeline.start)
    rates = {}
    for direction, kind in (("H2D", Kind.COPY_H2D), ("D2H", Kind.COPY_D2H)):
        for memory, pinned in ((" pinned", 1), (" pageable", 0), ("", -1)):
            mine = here & timeline.where(kind) & (timeline.pinned == pinned)
            if mine.any():
                time = float((timeline.end - timeline.start)[mine].sum())
                rates[direction + memory] = float(timeline.nbytes[mine].sum()) / time * 1e9
    return rates


def _ratio(part: float, whole: Any) -> float | None:
    return part / whole if whole else None
