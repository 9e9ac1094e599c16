"""The strip under the lanes: what the GPU is doing. Where states change too fast to be drawn, their shares are stacked.

A bar that stands for one state has the full height. A bar that stands for many short ones is as high as the state's
share of that time, so the area of a colour is always exactly the time of its state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from loaderviz import metrics, words
from loaderviz.draw import detail, theme
from loaderviz.draw.bars import FILL, Columns, Json, edge, extent
from loaderviz.intervals import Intervals, covered_within

if TYPE_CHECKING:
    from loaderviz.draw.page import Look, Part


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
    time = {name: covered_within(part, bars.start, bars.end) for name, part in states.items()}
    for index in range(len(bars)):
        start, end, below = int(bars.start[index]), int(bars.end[index]), 0.0
        for name in order:
            share = float(time[name][index]) / (end - start)
            if share:
                yield Piece(name, start, end, share, below, int(bars.count[index]))
            below += share


def traces(parts: Sequence[Part], look: Look) -> list[Json]:
    """Return the strips of these timelines, a trace for each state that occurs; with `look.steady`, for every state."""
    columns = {name: Columns() for name in theme.STATES}
    budget, shown = detail.BUDGET // max(8, 2 * len(parts)), extent(parts)
    for part in parts:
        for device, track in part.placement.strips.items():
            for piece in pieces(metrics.states(part.timeline, device), budget):
                column = columns[piece.state]
                column.base.append((piece.start - part.origin) / look.unit)
                column.length.append((piece.end - piece.start) / look.unit)
                column.place.append(track.middle + FILL * track.height * (0.5 - piece.below - piece.share / 2))
                column.width.append(FILL * track.height * piece.share)
                column.color.append(theme.STATES[piece.state].color)
                hair = piece.state != "idle" and bool(edge(piece.end - piece.start, shown)[1])
                column.edge.append(float(hair))
                column.rim.append(column.color[-1])
                column.hover.append(piece.words(part.origin))
    found = [
        columns[name].trace(style, f"GPU: {style.name}", bool(columns[name].base)) | {"legendrank": 1_001 + rank}
        for rank, (name, style) in enumerate(theme.STATES.items())
        if columns[name].base or look.steady
    ]
    return found[::-1]  # a browser rounds short bars up to a pixel: idle, drawn first, must not cover the others
