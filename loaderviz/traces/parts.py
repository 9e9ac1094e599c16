"""Some steps of a RawTrace, or a time of it: what is not asked for becomes no span.

Taken is what the host begins in that time, the device's work that it launches there, and the ranges on the device that
lie around this work; work without a launch by its own time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import index
from typing import Any

import numpy as np

from loaderviz import words
from loaderviz.batches import BATCH_RANGE, STEP_RANGE, numbers_of
from loaderviz.traces.kineto import RawTrace
from loaderviz.traces.source import TraceError
from loaderviz.vendors import ON_DEVICE, Role


def check_part(steps: object, window: object) -> None:
    """Raise TypeError for what is no part of a trace."""
    if steps is not None and window is not None:
        raise TypeError("steps and window are two ways to say which part is read; give one of them")
    if steps is not None:
        edges = (steps.start, steps.stop) if isinstance(steps, slice) and steps.step in (None, 1) else ("",)
        if not _ascending(0 if edges[0] is None else edges[0], *edges[1:]):
            raise TypeError(
                f"steps={steps!r}: give numbers of steps that follow each other, such as slice(3, 6) for 3, 4 and 5"
            )
    if window is not None and not (
        isinstance(window, tuple) and len(window) == 2 and None not in window and _ascending(*window)
    ):
        raise TypeError(f"window={window!r}: give start and end in ns from the first event, such as (0, 5_000_000)")


def _ascending(start: Any, end: Any = None) -> bool:
    """Tell whether these are whole numbers from 0 on, the second, unless it is None, the larger one."""
    try:
        first, last = (-1 if isinstance(each, bool) else index(each) for each in (start, start if end is None else end))
    except TypeError:
        return False
    return first >= 0 and (end is None or first < last)


def of_steps(trace: RawTrace, steps: slice) -> RawTrace:
    """Return what belongs to the steps with these numbers, up to the beginning of the step after them.

    Raises `TraceError` where nothing in the file marks its steps, and where it has none of these.
    """
    columns = trace.columns
    host = np.isin(columns["role"], (Role.ANNOTATION, Role.OPERATOR))
    for pattern in (BATCH_RANGE, STEP_RANGE):
        numbers = numbers_of(trace.names, pattern)
        marks = np.flatnonzero(host & np.isin(columns["name"], list(numbers)))
        if len(marks):
            break
    else:
        raise TraceError(
            f"nothing in {trace.path} marks its steps, so steps={steps!r} cannot be told; give window=(start, end) "
            "in ns instead, or call prof.step() in the loop that is recorded"
        )
    number = np.array([numbers[name] for name in columns["name"][marks].tolist()])
    first, end = steps.start or 0, number.max() + 1 if steps.stop is None else steps.stop
    chosen = (number >= first) & (number < end)
    if not chosen.any():
        raise TraceError(f"{trace.path} has the steps {number.min()} to {number.max()}, none of steps={steps!r}")
    start = columns["start"][marks]
    begin = int(start[chosen].min())
    later = start[~chosen & (start > begin)]
    found = words.count(len(np.unique(number[chosen])), "step")
    note = f"{found} of {len(np.unique(number)):,} are read (steps={steps!r})"
    return _between(trace, begin, int(later.min(initial=1 << 62)), note)


def of_window(traces: Sequence[RawTrace], start: int, end: int) -> list[RawTrace]:
    """Return what belongs to the time from `start` to `end` [ns], counted from the first event of all.

    Raises `TraceError` where no trace has an event there.
    """
    begins = [int(trace.columns["start"].min(initial=1 << 62)) for trace in traces]
    zeros = [min(begins)] * len(begins) if all(trace.unix for trace in traces) else begins
    note = f"read is the time from {words.duration(start)} to {words.duration(end)} after the first event"
    parts = [_between(trace, zero + start, zero + end, note) for trace, zero in zip(traces, zeros, strict=True)]
    if not any(len(part.columns["start"]) for part in parts):
        last = max(
            int(trace.columns["end"].max(initial=zero)) - zero for trace, zero in zip(traces, zeros, strict=True)
        )
        raise TraceError(f"{traces[0].path} has no event in window=({start}, {end}); its last one ends at {last:,} ns")
    return parts


def _between(trace: RawTrace, begin: int, end: int, note: str) -> RawTrace:
    columns = trace.columns
    keep = (columns["start"] >= begin) & (columns["start"] < end)
    calls, numbers = columns["role"] == Role.CALL, columns["correlation"]
    launched = np.isin(columns["role"], ON_DEVICE) & (numbers > 0) & np.isin(numbers, numbers[calls])
    keep = np.where(launched, np.isin(numbers, numbers[calls & keep]), keep)
    if (work := launched & keep).any():  # a range on the device is of the work in its middle
        middle = (columns["start"] + columns["end"]) // 2
        inside = (middle >= columns["start"][work].min()) & (middle <= columns["end"][work].max())
        keep = np.where(columns["role"] == Role.GPU_ANNOTATION, inside, keep)
    return replace(
        trace,
        columns={name: values[keep] for name, values in columns.items()},
        remarks=[*trace.remarks, note],
    )
