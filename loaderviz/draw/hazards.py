"""Hazards in the picture: both spans outlined, a band behind the time they share, the missing order dashed, words.

Only the first few are drawn in full; each has a cross, and says in full what is wrong when it is pointed at.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from loaderviz.draw import theme
from loaderviz.draw.arrows import own, places
from loaderviz.draw.bars import Json
from loaderviz.timeline import Mark, Timeline

if TYPE_CHECKING:
    from loaderviz.draw.lanes import Placement
    from loaderviz.draw.page import Look, Part

IN_FULL = 3  # hazards drawn with everything; more hide the picture
_HALF = 0.47  # of a track's height: the outline lies around the bar
_BAND, _BAND_EDGE = "#F7F0A0", "#8F8600"  # a light yellow of the palette's hue; pale, for text may lie on it
_OVER = 0.3  # track heights that the band sticks out over the bars, which hide it
_LETTERS, _MOST_LINES = 110, 3  # in a line of the words about a hazard; lines for what is wrong
_LINE_PX, _AROUND_PX = 16, 17  # px of a line of them, and around them
_LETTER_PX, _PLOT_PX = 7.3, 880  # px of a bold letter, and of a figure in a window of 1,280
_LEADER = {"color": theme.BLACK, "width": 1, "dash": "dot"}
_HOVER_LETTERS = 90


class Box(NamedTuple):
    """A span as it is drawn: x from `left` to `right`, y from `top` to `bottom` (which is larger)."""

    left: float
    right: float
    top: float
    bottom: float


class Pair(NamedTuple):
    """A hazard of which both spans are drawn."""

    mark: Mark
    first: Box
    second: Box

    @property
    def shared(self) -> Box | None:
        """The time that both run, over both tracks and what lies between; None if they came apart."""
        left, right = max(self.first.left, self.second.left), min(self.first.right, self.second.right)
        if right <= left:
            return None
        return Box(left, right, min(self.first.top, self.second.top), max(self.first.bottom, self.second.bottom))


def traces(parts: Sequence[Part], look: Look) -> list[Json]:
    """Return the traces of all hazards; none if there are none (with `look.steady` they are there, not visible)."""
    if not any(part.timeline.marks for part in parts) and not look.steady:
        return []
    shown = [pair for part in parts for pair in _pairs(part, look)]
    shares = [pair.shared for pair in shown if pair.shared]
    outlines = [_outline(box) for pair in shown for box in (pair.first, pair.second)]
    edges = [_edge(pair) for pair in shown]
    arrow = {"symbol": "arrow", "angleref": "previous", "color": theme.BLACK, "size": [0, 14, 0] * len(edges),
             "standoff": [0, 10, 0] * len(edges)}  # fmt: skip
    return [
        _band(shares),
        _lines(outlines, "in a race", mode="lines", line={"color": theme.BLACK, "width": 3}),
        _lines(edges, "missing order", mode="lines+markers", marker=arrow,
               line={"color": theme.BLACK, "width": 2, "dash": "dash"}),
        _crosses(parts, look),
    ]  # fmt: skip


def make_room(timeline: Timeline, placement: Placement) -> Placement:
    """Leave room below the lanes for the words about hazards."""
    room = sum(_height(lines) for lines in _words(_drawn(timeline, placement)).values())
    return replace(placement, bottom=placement.bottom + room) if room else placement


def notes(parts: Sequence[Part], look: Look, span: tuple[float, float]) -> tuple[list[Json], list[Json]]:
    """Return (annotations, shapes): what each hazard drawn in full is, and the line that leads there.

    The words stand below the lanes, where they hide nothing; hazards of the same words share them. `span` is the range
    of the time axis.
    """
    annotations: list[Json] = []
    shapes: list[Json] = []
    for part in parts:
        pairs = _pairs(part, look)
        words = _words([pair.mark for pair in pairs])
        top = part.placement.bottom - sum(map(_height, words.values())) + 0.15
        for key, lines in words.items():
            second = next(pair.second for pair in pairs if _key(pair.mark) == key)
            x = max(span[0], second.left)
            shapes.append({"type": "line", "x0": x, "x1": x, "y0": second.bottom, "y1": top, "line": _LEADER})
            annotations.append({
                "x": x, "xanchor": "left", "xshift": -_shift(lines, (x - span[0]) / ((span[1] - span[0]) or 1)),
                "y": top, "yanchor": "top", "align": "left", "showarrow": False, "text": "<br>".join(lines),
                "font": {"size": theme.TEXT_PX}, "bgcolor": "white", "bordercolor": theme.BLACK, "borderwidth": 1,
                "borderpad": 3,
            })  # fmt: skip
            top += _height(lines)
    return annotations, shapes


def _key(mark: Mark) -> tuple[str, str]:
    return mark.kind, mark.text


def _words(marks: Sequence[Mark]) -> dict[tuple[str, str], list[str]]:
    """Return the lines about each hazard, as plotly's HTML; hazards of the same words are one entry."""
    return {key: _lines_about(*key, count) for key, count in Counter(map(_key, marks)).items()}


def _lines_about(kind: str, text: str, count: int) -> list[str]:
    problem, _, missing = text.partition("; missing: ")
    times = f", {count} times" if count > 1 else ""
    first, second = (
        [escape(line, quote=False) for line in wrap(part, _LETTERS, max_lines=_MOST_LINES, placeholder=" …")]
        for part in (f"{kind}{times}: {problem}", f"missing: {missing}")
    )
    return [f"<b>{line}</b>" for line in first] + (second if missing else [])


def _height(lines: Sequence[str]) -> float:
    """Return how many track heights the words about a hazard need."""
    return (_LINE_PX * len(lines) + _AROUND_PX) / theme.TRACK_PX


def _shift(lines: Sequence[str], place: float) -> float:
    """Return how far [px] the words are moved to the left of the line that leads to them, to stay inside.

    `place` is where that line is, from 0 to 1. The line meets the words in a wider figure, too.
    """
    longest = max(len(re.sub(r"<[^>]*>", "", line)) for line in lines)
    return min(max(8.0, _LETTER_PX * longest - (1 - place) * _PLOT_PX), 8 + place * _PLOT_PX)


def _drawn(timeline: Timeline, placement: Placement) -> list[Mark]:
    """Return the hazards that are drawn in full: the first whose two spans are both drawn."""
    if not timeline.marks:
        return []
    spans = set(placement.span.tolist())
    return [mark for mark in timeline.marks if spans.issuperset(mark.spans)][:IN_FULL]


def _pairs(part: Part, look: Look) -> list[Pair]:
    marks = _drawn(part.timeline, part.placement)
    if not marks:
        return []
    middle, height = places(part)
    return [
        Pair(mark, *(_box(part, look, span, middle[span], height[span]) for span in mark.spans)) for mark in marks
    ]  # fmt: skip


def _box(part: Part, look: Look, span: int, middle: float, height: float) -> Box:
    start, end = part.timeline.start[span], part.timeline.end[span]
    left, right = (float((time - part.origin) / look.unit) for time in (start, end))
    return Box(left, right, float(middle - _HALF * height), float(middle + _HALF * height))


def _outline(box: Box) -> list[tuple[float | None, float | None]]:
    corners = [(box.left, box.top), (box.right, box.top), (box.right, box.bottom), (box.left, box.bottom)]
    return [*corners, corners[0], (None, None)]


def _edge(pair: Pair) -> list[tuple[float | None, float | None]]:
    """From the end of the first to the start of the second: where an arrow would be, if something made this order."""
    first, second = pair.first, pair.second
    return [
        (first.right, (first.top + first.bottom) / 2), (second.left, (second.top + second.bottom) / 2), (None, None),
    ]  # fmt: skip


def _band(shares: Sequence[Box]) -> Json:
    """Return the trace of the time that both spans of a hazard run; it lies behind the bars, whose colours stay."""
    top, bottom = (np.array([box[side] for box in shares], float) for side in (2, 3))
    return {
        "type": "bar", "orientation": "h", "name": "both at once", "zorder": -1, "hoverinfo": "skip",
        "showlegend": bool(shares), "visible": bool(shares), "base": [box.left for box in shares],
        "x": [box.right - box.left for box in shares], "y": ((top + bottom) / 2).tolist(),
        "width": (bottom - top + 2 * _OVER).tolist(), "hovertext": [""] * len(shares),
        "marker": {"color": _BAND, "line": {"color": _BAND_EDGE, "width": 1}},
    }  # fmt: skip


def _lines(shapes: Sequence[list[tuple[float | None, float | None]]], name: str, **looks: Any) -> Json:
    points = [point for shape in shapes for point in shape]
    return {"type": "scatter", "x": [x for x, _ in points], "y": [y for _, y in points], "hoverinfo": "skip",
            "name": name, "showlegend": bool(points), "visible": bool(points), **looks}  # fmt: skip


def _crosses(parts: Sequence[Part], look: Look) -> Json:
    x, y, texts = [], [], []
    for part in parts:
        heights = _heights(part) if part.timeline.marks else []
        for mark, height in zip(part.timeline.marks, heights, strict=True):
            x.append((mark.time - part.origin) / look.unit)
            y.append(height)
            words = "<br>".join(escape(line, quote=False) for line in wrap(mark.text, _HOVER_LETTERS))
            texts.append(f"<b>{escape(mark.kind, quote=False)}</b><br>{words}")
    marker = {"symbol": "x", "size": 13, "color": theme.BLACK, "line": {"color": "white", "width": 1.5}}
    return {"type": "scatter", "x": x, "y": y, "mode": "markers", "marker": marker, "name": "hazard",
            "hovertext": texts, "hovertemplate": "%{hovertext}<extra></extra>", "showlegend": bool(x),
            "visible": bool(x)}  # fmt: skip


def _heights(part: Part) -> list[float]:
    """Return where each cross stands: in the track of the second span, or of the first of its lane if it is not drawn.

    A host thread has several tracks, and a cross in another one than the span would point at nothing.
    """
    middle, _ = places(part)
    lanes = _lane_places(part)
    found = []
    for mark in part.timeline.marks:
        second = mark.spans[1]
        drawn = second >= 0 and not np.isnan(middle[second])
        found.append(float(middle[second]) if drawn else lanes.get(mark.lane, part.placement.bottom))
    return found


def _lane_places(part: Part) -> dict[int, float]:
    """Return where the first track of each lane is."""
    placement = part.placement
    mine = own(placement)
    lanes, first = np.unique(part.timeline.lane[placement.span[mine]], return_index=True)
    tracks = placement.track[mine][first]
    return {int(lane): placement.tracks[track].middle for lane, track in zip(lanes, tracks, strict=True)}
