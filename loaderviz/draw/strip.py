"""The strip under the lanes: what the GPU is doing. Where states change too fast to be drawn, their shares are stacked.

A bar that stands for one state has the full height. A bar that stands for many short ones is as high as the state's
share of that time, so the area of a colour is always exactly the time of its state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from loaderviz import words
from loaderviz.draw import detail, theme
from loaderviz.intervals import Intervals, covered_before


@dataclass(frozen=True)
class Piece:
    """A bar of the strip: from `start` to `end` [ns], `share` of its height, above the share `below`."""

    state: str
    start: int
    end: int
    share: float
    below: float
    merged: int  # how many changes of state are in it; 1: it is exact

    def words(self, origin: int) -> str:
        """Return the hover text; `origin` [ns] is time 0."""
        name, length = theme.STATES[self.state].name, words.duration(self.end - self.start)
        if self.merged > 1:
            name, length = f"{name}, {words.share(self.share)}", f"of {length}, {self.merged} changes"
        return f"<b>GPU: {name}</b><br>{length}, from {words.duration(self.start - origin)}"


def pieces(states: dict[str, Intervals], budget: int) -> Iterator[Piece]:
    """Give the bars for disjoint states that fill a window; at most `budget` places in time, stacked where needed."""
    order = list(states)
    parts = np.concatenate([states[name] for name in order])
    number = np.repeat(np.arange(len(order)), [len(states[name]) for name in order])
    bars = detail.reduce(np.zeros(len(parts), np.int64), parts[:, 0], parts[:, 1], number, max(1, budget))
    time = {name: covered_before(part, bars.end) - covered_before(part, bars.start) for name, part in states.items()}
    for index in range(len(bars)):
        start, end, below = int(bars.start[index]), int(bars.end[index]), 0.0
        for name in order:
            share = float(time[name][index]) / (end - start)
            if share:
                yield Piece(name, start, end, share, below, int(bars.count[index]))
            below += share
