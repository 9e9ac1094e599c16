"""The interval algebra against brute force: a set of intervals is the set of the nanoseconds in it."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loaderviz import intervals

SPANS = st.lists(st.tuples(st.integers(-20, 40), st.integers(0, 12)), max_size=12)


def seconds(spans):
    return {time for start, length in spans for time in range(start, start + length)}


def make(spans):
    start = np.array([start for start, _ in spans], np.int64)
    return intervals.union(start, start + np.array([length for _, length in spans], np.int64))


def members(some):
    assert some.dtype == np.int64
    assert (some[:, 0] < some[:, 1]).all(), "an empty interval"
    assert (some[1:, 0] > some[:-1, 1]).all(), "not sorted, or two that touch"
    return {time for start, end in some.tolist() for time in range(start, end)}


@given(SPANS)
def test_union_and_length(spans):
    assert members(make(spans)) == seconds(spans)
    assert intervals.length(make(spans)) == len(seconds(spans))


@given(SPANS, SPANS)
def test_intersection_and_difference(one, other):
    assert members(intervals.intersect(make(one), make(other))) == seconds(one) & seconds(other)
    assert members(intervals.subtract(make(one), make(other))) == seconds(one) - seconds(other)


@given(SPANS)
def test_points(spans):
    times = np.arange(-25, 60)
    inside = [time in seconds(spans) for time in times.tolist()]
    assert intervals.covers(make(spans), times).tolist() == inside
    before = [sum(member < time for member in seconds(spans)) for time in times.tolist()]
    assert intervals.covered_before(make(spans), times).tolist() == before
    within = intervals.covered_within(make(spans), times[:-1], times[1:])
    assert within.tolist() == [after - earlier for earlier, after in pairwise(before)]


def test_large_times_stay_exact():
    big = 1_712_195_495_521_308_558  # ns of a real trace; a float64 is off by up to 128 ns here
    some = intervals.union(np.array([big]), np.array([big + 3]))
    assert intervals.length(some) == 3


def test_edges_are_sorted_not_hashed(monkeypatch):
    """numpy's unique hashes: a hundred times as long on a million edges that are nearly in order."""
    monkeypatch.delattr(np, "unique")
    one, other = make([(0, 4), (6, 3)]), make([(0, 2), (3, 4)])
    assert intervals.intersect(one, other).tolist() == [[0, 2], [3, 4], [6, 7]]
    assert intervals.subtract(one, other).tolist() == [[2, 3], [7, 9]]


@given(SPANS, SPANS, SPANS)
def test_layers_part_a_whole_and_free_time_is_what_a_set_leaves(whole, first, second):
    parts = intervals.layers(make(whole), {"first": make(first), "second": make(second)})
    expected = seconds(whole) & seconds(first), seconds(whole) & seconds(second) - seconds(first)
    assert tuple(map(members, parts.values())) == expected
    edges = np.arange(-25, 60)
    free = intervals.free_within(make(first), edges[:-1], edges[1:])
    assert free.tolist() == [int(edge not in seconds(first)) for edge in edges[:-1].tolist()]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=12), st.integers(0, 10))
def test_an_outermost_span_begins_when_all_before_it_are_over(spans, since):
    spans = sorted((start, start + lasts) for start, lasts in spans)
    start, end = np.array(spans, np.int64).reshape(-1, 2).T
    found = intervals.outermost(start, end, since).tolist()
    assert found == [
        begin >= max([since, *(last for _, last in spans[:place])]) for place, (begin, _) in enumerate(spans)
    ]
