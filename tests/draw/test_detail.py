"""Level of detail: exact when few, bounded when many, nothing lost and nothing widened."""

from __future__ import annotations

import factory
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderviz.draw.detail import reduce

# gaps and lengths of the spans of some tracks: spans in a track never overlap
TRACKS = st.lists(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 50), st.integers(0, 3)), max_size=30), min_size=1, max_size=4
)


def columns(tracks):
    rows = []
    for number, spans in enumerate(tracks):
        clock = 0
        for gap, length, category in spans:
            rows.append((number, clock + gap, clock + gap + length, category))
            clock += gap + length
    return np.array(rows, np.int64).reshape(-1, 4).T


@given(TRACKS)
def test_few_spans_stay_as_they_are(tracks):
    track, start, end, category = columns(tracks)
    bars = reduce(track, start, end, category, budget=200)
    assert sorted(bars.item.tolist()) == list(range(len(track)))
    assert (bars.count == 1).all()
    assert (bars.start == start[bars.item]).all()
    assert (bars.end == end[bars.item]).all()


@given(TRACKS, st.integers(1, 40))
def test_many_spans_are_merged_without_loss(tracks, budget):
    track, start, end, category = columns(tracks)
    bars = reduce(track, start, end, category, budget)
    assert len(bars) <= max(budget, len({*track.tolist()}))
    assert bars.count.sum() == len(track)
    assert bars.busy.sum() == (end - start).sum()
    for number in range(len(bars)):
        mine = (track == bars.track[number]) & (start >= bars.start[number]) & (end <= bars.end[number])
        inside = np.flatnonzero(mine)
        assert start[inside].min() == bars.start[number], "widened to the left"
        assert end[inside].max() == bars.end[number], "widened to the right"
        assert bars.item[number] in inside
    order = np.lexsort((bars.start, bars.track))
    same = bars.track[order][1:] == bars.track[order][:-1]
    assert (bars.start[order][1:] >= bars.end[order][:-1])[same].all(), "bars overlap"


def test_the_bar_has_the_category_that_takes_most_of_its_time():
    start = np.arange(0, 1000, 10)
    length = np.where(np.arange(100) % 10 == 0, 8, 1)  # few long ones of category 1, many short ones of category 2
    category = np.where(length == 8, 1, 2)
    bars = reduce(np.zeros(100, np.int64), start, start + length, category, budget=5)
    assert len(bars) <= 5
    totals = [(category[(start >= a) & (start < b)] == 1) @ length[(start >= a) & (start < b)]
              for a, b in zip(bars.start, bars.end, strict=True)]  # fmt: skip
    for total, busy, item in zip(totals, bars.busy, bars.item, strict=True):
        assert category[item] == (1 if 2 * total > busy else 2)


@pytest.mark.parametrize("budget", [50, 500, 4_400])
def test_the_budget_holds_for_a_long_run(budget):
    timeline = factory.many_spans(20_000)
    bars = reduce(timeline.lane, timeline.start, timeline.end, timeline.batch, budget)
    assert budget / 4 < len(bars) <= budget
    assert bars.count.sum() == 20_000


def test_nothing_gives_nothing():
    nothing = np.empty(0, np.int64)
    assert len(reduce(nothing, nothing, nothing, nothing)) == 0
