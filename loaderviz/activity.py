"""When a device works and why it does not: a timeline as sets of intervals. `metrics` makes its numbers from them.

device_sets(timeline, start, end)["h2d"]   # when a host-to-device copy runs, shape (n, 2), ns
states(timeline)["idle"]                   # when the device has nothing to do
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from loaderviz import intervals
from loaderviz.errors import LoadervizError
from loaderviz.intervals import Intervals
from loaderviz.timeline import COPIES, DEVICE_KINDS, KERNELS, Cause, Kind, Timeline

Mask = npt.NDArray[np.bool_]

LOADING = ("worker", "pin")  # roles of the host threads that prepare batches

# What the host does while the device is idle, from the most to the least telling; a wait is seen before its call.
_HOST_WORK = (
    ("idle: host fetches a batch", (Kind.FETCH,)),
    ("idle: host pins a batch", (Kind.PIN,)),
    ("idle: host in CUDA calls", (Kind.API,)),
    ("idle: host in operators", (Kind.OPERATOR,)),
)


class MetricsError(LoadervizError, ValueError):
    """A question to a timeline that has no answer."""


class NotATimelineError(LoadervizError, TypeError):
    """Something else was given where a Timeline is needed."""


def check_timeline(value: object, caller: str) -> Timeline:
    """Return `value` if it is a Timeline; raise `NotATimelineError` that says what to give `caller` instead."""
    if isinstance(value, Timeline):
        return value
    hint = "give recording.timeline, or a file to loaderviz.read()"
    raise NotATimelineError(f"{caller} needs a Timeline, got {type(value).__name__} ({str(value)[:60]}); {hint}")


def device_sets(timeline: Timeline, start: int, end: int, device: int = 0) -> dict[str, Intervals]:
    """Return when a device does what between `start` and `end` [ns], as sets of intervals.

    Keys: compute, communication, kernels (either), h2d, d2h, copies (either), work (anything, memset and D2D included).
    """
    kinds = {
        "compute": (Kind.COMPUTE,), "communication": (Kind.COMMUNICATION,), "kernels": KERNELS,
        "h2d": (Kind.COPY_H2D,), "d2h": (Kind.COPY_D2H,), "copies": COPIES, "work": DEVICE_KINDS,
    }  # fmt: skip
    here = on_device(timeline, device)
    return {name: _covered(timeline, here & timeline.where(*which), start, end) for name, which in kinds.items()}


def states(
    timeline: Timeline, device: int | None = None, window: tuple[int, int] | None = None
) -> dict[str, Intervals]:
    """Return what the GPU is doing, as five sets that are disjoint and together fill the window.

    Keys: "compute" (a kernel, no host-device copy), "copy hidden", "copy exposed", "other device work", "idle".
    """
    check_timeline(timeline, "states()")
    start, end = window_of(timeline, window)
    sets = device_sets(timeline, start, end, choose_device(timeline, device)[0])
    kernels, copies, work = sets["kernels"], sets["copies"], sets["work"]
    everything = intervals.union(np.array([start]), np.array([end]))
    return {
        "compute": intervals.subtract(kernels, copies),
        "copy hidden": intervals.intersect(kernels, copies),
        "copy exposed": intervals.subtract(copies, kernels),
        "other device work": intervals.subtract(intervals.subtract(work, kernels), copies),
        "idle": intervals.subtract(everything, work),
    }


def window_of(timeline: Timeline, window: tuple[int, int] | None) -> tuple[int, int]:
    """Return start and end [ns] of the window, or of the whole timeline for None; a bad one raises `MetricsError`."""
    if window is None:
        return timeline.begin, timeline.begin + timeline.duration
    try:
        start, end = (int(edge) for edge in window)
    except (TypeError, ValueError) as problem:
        raise MetricsError(f"window is {window!r}; give (start, end) in ns, or None for all of it") from problem
    if end < start:
        raise MetricsError(f"window is {window!r}: its end lies before its start; give (start, end) in ns")
    return start, end


def devices_of(timeline: Timeline) -> tuple[int, ...]:
    """Return the numbers of the devices, in order; (0,) where there is none."""
    return tuple(sorted({lane.device for lane in timeline.lanes if lane.group == "device"})) or (0,)


def choose_device(timeline: Timeline, device: int | None) -> tuple[int, tuple[int, ...]]:
    """Return the device asked for, else the one with the most work, and all devices."""
    devices = devices_of(timeline)
    if device is None:
        duration, works = timeline.end - timeline.start, timeline.where(*DEVICE_KINDS)
        work = {number: int(duration[on_device(timeline, number) & works].sum()) for number in devices}
        return max(devices, key=lambda number: work[number]), devices
    if device not in devices:
        raise MetricsError(f"device {device!r} is not in this timeline; it has {', '.join(map(str, devices))}")
    return device, devices


def on_device(timeline: Timeline, device: int) -> Mask:
    """Return a mask over the spans: True for those in a stream of this device."""
    lanes = [i for i, lane in enumerate(timeline.lanes) if lane.group == "device" and lane.device == device]
    return np.isin(timeline.lane, lanes)


def loop_lanes(timeline: Timeline, device: int | None = None) -> list[int]:
    """Return the lanes of the training loop: those of role "main", else the host threads that do not load data.

    Of several ranks only the one that drives `device`, if that is given: a host lane has its rank's first device.
    """
    host = [(i, lane) for i, lane in enumerate(timeline.lanes) if lane.group == "host"]
    loop = [i for i, lane in host if lane.role == "main"] or [i for i, lane in host if lane.role not in LOADING]
    first = {i: timeline.lanes[i].device for i in loop}
    ranks = [number for number in first.values() if device is not None and number <= device]
    return [i for i in loop if not ranks or first[i] == max(ranks)]


def _covered(timeline: Timeline, mask: Mask, start: int, end: int) -> Intervals:
    first, last = timeline.start[mask], timeline.end[mask]
    return intervals.union(np.maximum(first, start), np.minimum(last, end))


def waits(timeline: Timeline, start: int, end: int, device: int | None = None) -> dict[str, Intervals]:
    """When the thread of the loop that feeds `device` is blocked, by cause in words; only causes that occur."""
    blocked = np.isin(timeline.lane, loop_lanes(timeline, device)) & timeline.where(Kind.WAIT)
    names = {cause: cause.words for cause in list(Cause)[1:]} | {Cause.NONE: "cause not known"}
    parts = {name: _covered(timeline, blocked & (timeline.cause == cause), start, end) for cause, name in names.items()}
    return {name: part for name, part in parts.items() if len(part)}


def breakdown_of(
    timeline: Timeline, start: int, end: int, sets: dict[str, Intervals], device: int | None = None
) -> dict[str, int]:
    """Give every ns of the window to one entry: device work first, then what the host does while the device is idle."""
    loop = np.isin(timeline.lane, loop_lanes(timeline, device))
    layers = [
        ("compute", sets["compute"]),
        ("communication exposed", sets["communication"]),
        ("copy exposed", sets["copies"]),
        ("other device work", sets["work"]),
        *((f"idle: host blocked, {cause}", part) for cause, part in waits(timeline, start, end, device).items()),
        *((name, _covered(timeline, loop & timeline.where(*kinds), start, end)) for name, kinds in _HOST_WORK),
    ]
    breakdown, rest = {}, intervals.union(np.array([start]), np.array([end]))
    for name, part in layers:
        if taken := intervals.length(intervals.intersect(rest, part)):
            breakdown[name] = taken
            rest = intervals.subtract(rest, part)
    if left := intervals.length(rest):
        breakdown["idle: other"] = left
    if sum(breakdown.values()) != end - start:  # by construction; a wrong number must never be printed
        raise AssertionError(f"the breakdown sums to {sum(breakdown.values())} ns in a window of {end - start} ns")
    return breakdown
