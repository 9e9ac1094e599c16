"""Exact algebra on sets of time intervals, in numpy int64 nanoseconds.

A set is an array of shape (n, 2): half-open intervals [start, end), sorted, disjoint and not touching. `union` makes
one from spans in any order; the other functions take and return such sets. Everything is O(n log n).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt

Intervals = npt.NDArray[np.int64]
Times = npt.NDArray[np.integer[Any]]


def union(start: Times, end: Times) -> Intervals:
    """Return the set covered by the spans [start, end) [ns], given in any order; empty spans add nothing."""
    full = end > start
    first, last = np.asarray(start, np.int64)[full], np.asarray(end, np.int64)[full]
    if (first[1:] < first[:-1]).any():  # seldom: timelines are sorted
        order = np.argsort(first, kind="stable")
        first, last = first[order], last[order]
    return _joined(first, np.maximum.accumulate(last))


def outermost(start: Times, end: Times, since: int) -> npt.NDArray[np.bool_]:
    """Tell which spans, in order of start [ns], begin when all before them are over, and not before `since`."""
    outer: npt.NDArray[np.bool_] = np.maximum.accumulate(np.r_[since, end[:-1]])[: len(start)] <= start
    return outer


def length(intervals: Intervals) -> int:
    """Return the total length, ns."""
    return int((intervals[:, 1] - intervals[:, 0]).sum())


def covers(intervals: Intervals, times: Times) -> npt.NDArray[np.bool_]:
    """Return for each of `times` whether it lies in the set, shape `times.shape`."""
    return covered_within(intervals, times, np.asarray(times) + 1) > 0


def intersect(one: Intervals, other: Intervals) -> Intervals:
    """Return the part that is in both."""
    left, right, in_one, in_other = _pieces(one, other)
    keep = in_one & in_other
    return _joined(left[keep], right[keep])


def subtract(one: Intervals, other: Intervals) -> Intervals:
    """Return the part of `one` that is not in `other`."""
    left, right, in_one, in_other = _pieces(one, other)
    keep = in_one & ~in_other
    return _joined(left[keep], right[keep])


def either(one: Intervals, other: Intervals) -> Intervals:
    """Return the part that is in one of them, or in both."""
    joined = np.concatenate([one, other])
    return union(joined[:, 0], joined[:, 1])


def layers(whole: Intervals, parts: Mapping[str, Intervals]) -> dict[str, Intervals]:
    """Return what each of the parts has of the whole, but for what a part before it has."""
    found, rest = {}, whole
    for name, part in parts.items():
        found[name], rest = intersect(rest, part), subtract(rest, part)
    return found


def covered_before(intervals: Intervals, times: Times) -> npt.NDArray[np.int64]:
    """Return for each of `times` how much of the set lies before it, ns."""
    times = np.asarray(times, np.int64)
    if not len(intervals):
        return np.zeros(times.shape, np.int64)
    lengths = intervals[:, 1] - intervals[:, 0]
    before = np.r_[0, np.cumsum(lengths)]
    place = np.searchsorted(intervals[:, 0], times, side="right") - 1
    safe = np.maximum(place, 0)
    inside = np.minimum(times - intervals[safe, 0], lengths[safe])
    return np.where(place < 0, 0, before[safe] + inside)


def covered_within(intervals: Intervals, start: Times, end: Times) -> npt.NDArray[np.int64]:
    """Return how much of the set lies in each of the spans [start, end), ns, shape `start.shape`."""
    return covered_before(intervals, end) - covered_before(intervals, start)


def free_within(intervals: Intervals, start: Times, end: Times) -> npt.NDArray[np.int64]:
    """Return how much of each of the spans [start, end) is not in the set, ns, shape `start.shape`."""
    return np.asarray(end, np.int64) - start - covered_within(intervals, start, end)


def tracks(spans: Iterable[tuple[float, float]]) -> list[int]:
    """Return for each span, given by start, the first track that is free then: spans of one track do not overlap.

    >>> tracks([(0, 5), (1, 3), (2, 9), (3, 4)])
    [0, 1, 2, 1]
    """
    busy: list[tuple[float, int]] = []  # until when, and the track
    free: list[int] = []
    found = []
    for start, end in spans:
        while busy and busy[0][0] <= start:
            heappush(free, heappop(busy)[1])
        track = heappop(free) if free else len(busy)
        heappush(busy, (end, track))
        found.append(track)
    return found


def _joined(first: Intervals, last: Intervals) -> Intervals:
    """Return sorted intervals, which may touch, or begin within the one before, as a set; `last` never falls."""
    if not len(first):
        return np.empty((0, 2), np.int64)
    gap = np.ones(len(first) + 1, bool)  # before it; there is one after the last
    np.greater(first[1:], last[:-1], out=gap[1:-1])
    return np.stack([first[gap[:-1]], last[gap[1:]]], axis=1)


def _pieces(
    one: Intervals, other: Intervals
) -> tuple[Intervals, Intervals, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Cut time at every edge of both sets: left and right ends of the pieces, and which set covers each."""
    # A stable sort merges the two sorted runs. Every second edge of a set closes it: after an odd number it covers.
    edges = np.concatenate([one.ravel(), other.ravel()])
    order = np.argsort(edges, kind="stable")
    edges = edges[order]
    of_one = np.cumsum(order < 2 * len(one))
    of_other = np.arange(1, len(order) + 1) - of_one
    apart = np.flatnonzero(edges[:-1] < edges[1:])
    return edges[apart], edges[apart + 1], of_one[apart] & 1 > 0, of_other[apart] & 1 > 0
