"""Which batch each span is for, from the annotations of a trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from loaderviz.recorder.names import MARK, NUMBERED, ON_DEVICE, PREFETCH, STEP, Role
from loaderviz.timeline import Cause, Kind

Ints = npt.NDArray[np.integer[Any]]
Rows = dict[str, npt.NDArray[Any]]


def batches(rows: Rows, launch: Ints, names: list[str], main: int) -> npt.NDArray[np.int32]:
    """Return the batch of each row, -1 for none; marks of loaderviz's loaders are lengthened to the next hand-out.

    One sort of annotation decides: loaderviz's marks if there are any, else "batch N", else "ProfilerStep#N". What is
    launched inside "prefetch of batch N" is for that batch.
    """
    result = np.full(len(rows["start"]), -1, np.int32)
    for pattern in (MARK, NUMBERED, STEP):
        marks, numbers = _marks(rows, names, pattern)
        if not len(marks):
            continue
        lane = main if (rows["lane"][marks] == main).any() else rows["lane"][marks[0]]
        mine = rows["lane"][marks] == lane
        ranges, numbers = marks[mine], numbers[mine]
        if pattern is MARK:
            _reach_the_next(rows, ranges)
        _inside(result, rows["start"], rows["start"][ranges], rows["end"][ranges], numbers)
        _prefetches(result, rows, names)
        if pattern is MARK:
            _fetched_for(result, rows, ranges, numbers, names)
        break
    launched = launch >= 0
    result[launched] = result[launch[launched]]
    result[np.isin(rows["role"], ON_DEVICE) & ~launched] = -1  # the time it ran in says nothing about its batch
    result[rows["role"] == Role.GPU_ANNOTATION] = -1
    for pattern in (STEP, NUMBERED, MARK, PREFETCH):
        own, numbers = _marks(rows, names, pattern)
        result[own] = numbers
    return result


def _marks(rows: Rows, names: list[str], pattern: Any) -> tuple[Ints, Ints]:
    """Return the rows of the annotations that match, and their numbers."""
    matches = {number: match for number, name in enumerate(names) if (match := pattern.match(name))}
    numbers = np.full(max(1, len(names)), -1, np.int64)
    for number, match in matches.items():
        batch = int(match.group(1)[:18])
        numbers[number] = batch if batch < 2**31 else -1
    found = np.flatnonzero((rows["kind"] == Kind.RANGE) & (numbers[rows["name"]] >= 0)) if matches else np.empty(0, int)
    return found, numbers[rows["name"][found]]


def _inside(result: npt.NDArray[np.int32], times: Ints, start: Ints, end: Ints, numbers: Ints) -> None:
    """Give the rows that begin in one of these ranges (sorted, apart) its number."""
    if len(start):
        place = np.searchsorted(start, times, side="right") - 1
        found = (place >= 0) & (times < end[np.maximum(place, 0)])
        result[found] = numbers[place[found]]


def _reach_the_next(rows: Rows, ranges: Ints) -> None:
    """A mark says "from here on": the range reaches to the next hand-out, the last to the end of its lane."""
    lane = rows["lane"][ranges[0]]
    last = rows["end"][rows["lane"] == lane].max()
    rows["end"][ranges] = np.maximum(rows["end"][ranges], np.r_[rows["start"][ranges][1:], last])


def _prefetches(result: npt.NDArray[np.int32], rows: Rows, names: list[str]) -> None:
    ranges, numbers = _marks(rows, names, PREFETCH)
    for lane in np.unique(rows["lane"][ranges]):
        here, mine = rows["lane"] == lane, rows["lane"][ranges] == lane
        part = np.full(int(here.sum()), -1, np.int32)
        _inside(part, rows["start"][here], rows["start"][ranges[mine]], rows["end"][ranges[mine]], numbers[mine])
        result[here] = np.where(part >= 0, part, result[here])


def _fetched_for(result: npt.NDArray[np.int32], rows: Rows, marks: Ints, numbers: Ints, names: list[str]) -> None:
    """Fetching comes before its batch is handed out, or prefetched: it is for the next one that is named."""
    early, early_numbers = _marks(rows, names, PREFETCH)
    starts = np.concatenate([rows["start"][marks], rows["start"][early]])
    order = np.argsort(starts, kind="stable")
    starts, numbers = starts[order], np.concatenate([numbers, early_numbers])[order]
    waits = (rows["kind"] == Kind.WAIT) & (rows["cause"] == Cause.DATA)
    fetching = np.flatnonzero((rows["kind"] == Kind.FETCH) | waits)
    place = np.searchsorted(starts, rows["end"][fetching])
    found = place < len(starts)
    result[fetching[found]] = numbers[place[found]]
