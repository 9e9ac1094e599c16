"""Level of detail: as many bars as a screen can show, however many spans there are.

A browser draws some thousand bars quickly and a million not at all. If there are more spans than the budget, the short
ones that lie next to each other in a track become one bar, which keeps their count and busy time, so that the hover can
say "n spans, busy x of y". Bars reach from the first start to the last end of their spans and are never widened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Column = npt.NDArray[np.integer[Any]]

BUDGET = 4_400  # 8 lanes of 1,100 px with a bar every 2 px; such a figure is painted in about 0.2 s


@dataclass(frozen=True)
class Bars:
    """What is drawn; one entry per bar. `item` is the number of the span, or of one of the prevailing category."""

    item: Ints
    track: Ints
    start: Ints
    end: Ints
    count: Ints  # spans in the bar
    busy: Ints  # ns of its spans; less than end - start where there are gaps

    def __len__(self) -> int:
        return len(self.item)


def reduce(track: Column, start: Column, end: Column, category: Column, budget: int = BUDGET) -> Bars:
    """Return at most `budget` bars (or one per track) for the spans [start, end) [ns] in tracks without overlaps.

    All arguments have shape (n,). With n <= budget every span is a bar of its own. Otherwise spans shorter than a cell
    are merged with the ones that start in the same cell of their track; cells grow until the budget holds. The bar has
    the `category` (any number, such as a colour) that takes most of its time.
    """
    order = np.lexsort((start, track))
    track, start, end, category = (np.asarray(column, np.int64)[order] for column in (track, start, end, category))
    group = np.arange(len(order))
    extent = int(end.max() - start.min()) if len(order) else 0
    cell = max(1, extent // max(1, budget))
    if not len(order):
        return Bars(order, track, start, end, order, order)
    while group[-1] >= budget:
        group = _groups(track, start, end, cell)
        if cell > extent:  # one bar per track: nothing more to merge
            break
        cell = cell * 3 // 2 + 1
    first = np.flatnonzero(np.r_[True, np.diff(group) > 0])
    last = np.r_[first[1:], len(order)] - 1
    busy = np.add.reduceat(end - start, first)
    return Bars(
        order[_prevailing(group, category, end - start)], track[first], start[first], end[last], last - first + 1, busy
    )


def _groups(track: Ints, start: Ints, end: Ints, cell: int) -> Ints:
    """Number the bars: a span as long as a cell stands alone, shorter ones join those before them in the same cell."""
    place = (start - start.min()) // cell
    alone = end - start >= cell
    opens = np.ones(len(start), bool)
    opens[1:] = (track[1:] != track[:-1]) | (place[1:] != place[:-1]) | alone[1:] | alone[:-1]
    return np.cumsum(opens) - 1


def _prevailing(group: Ints, category: Ints, time: Ints) -> Ints:
    """Return for each group the position of the first span of the category with the most time."""
    order = np.lexsort((np.arange(len(group)), category, group))
    opens = np.r_[True, (np.diff(group[order]) != 0) | (np.diff(category[order]) != 0)]
    begins = np.flatnonzero(opens)
    total = np.add.reduceat(time[order], begins)
    owner, candidate = group[order][begins], order[begins]
    rank = np.lexsort((-total, owner))
    best = rank[np.r_[True, np.diff(owner[rank]) != 0]]
    result: Ints = candidate[best]
    return result
