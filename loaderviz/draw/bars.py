"""The bars of a figure, one trace for each kind of span, and the legend that stands for their colours.

Traces are plain JSON, as plotly.js takes it: a figure that changes under a slider cannot afford plotly's checks of
every value. `page.draw` has them checked once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from loaderviz.draw import hover, theme
from loaderviz.draw.lanes import left_px
from loaderviz.timeline import COPIES, Kind, Span

if TYPE_CHECKING:
    from loaderviz.draw.page import Look, Part

Json = dict[str, Any]

_SHAPES = {Kind.COPY_D2D: "crosses", Kind.MEMSET: "dots"}  # by batch, their pattern tells them from kernels
FILL = 0.84  # a bar's share of its track
_THIN = 0.4  # of that: by batch, a copy in a stream is thin, to be told from a kernel
_LONGEST_TEXTS = 1_500  # bars that carry text; a browser measures each
_EDGE = 1 / 250  # bars longer than this share of the figure get a white edge, which would eat shorter ones
_HAIR = 1 / 20_000  # shorter bars get an edge in their own colour: plotly does not draw what is less than 1/100 px wide
_FIGURE_PX, _LETTER_PX = 1_080, 7.4  # of a figure in a window of 1,280 px, and of a letter


class Columns:
    """The arrays of one bar trace, one entry for each bar."""

    def __init__(self) -> None:
        self.base: list[float] = []
        self.length: list[float] = []
        self.place: list[float] = []
        self.width: list[float] = []
        self.color: list[str] = []
        self.ink: list[str] = []
        self.text: list[str] = []
        self.edge: list[float] = []
        self.rim: list[str] = []  # the colour of the edge
        self.hover: list[str] = []

    def take(self, other: Columns, bars: list[int]) -> None:
        """Add some bars of other columns, by their numbers."""
        for name, values in vars(other).items():
            getattr(self, name).extend([values[number] for number in bars])

    def trace(self, style: theme.Style, name: str, in_legend: bool) -> Json:
        """Return the trace. One without bars is not visible, which spares the browser most of its work."""
        line = {"width": _one_or_all(self.edge) or 0, "color": _one_or_all(self.rim) or "white"}
        marker = {"color": _one_or_all(self.color), "line": line}
        if style.pattern:
            marker["pattern"] = theme.pattern(style, _one_or_all(self.color))
        lettered = any(self.text)
        font = {"color": _one_or_all(self.ink) if lettered else style.ink, "size": theme.TEXT_PX}
        return {
            "type": "bar", "orientation": "h", "name": name, "showlegend": in_legend, "visible": bool(self.base),
            "base": self.base, "x": self.length, "y": self.place, "width": self.width, "marker": marker,
            "hovertext": self.hover, "hovertemplate": "%{hovertext}<extra></extra>", "cliponaxis": True,
            "text": self.text if lettered else [], "textposition": "inside", "textangle": 0,
            "insidetextanchor": "middle",
            "insidetextfont": font | ({"shadow": theme.HALO} if style.pattern else {}),
        }  # fmt: skip


def kind_traces(parts: Sequence[Part], look: Look) -> list[Json]:
    """Return a trace for each kind of span that occurs, in the order of `Kind`; with `look.steady`, for every kind."""
    columns = {kind: Columns() for kind in Kind}
    shortest = _shortest_with_text(parts)
    shown = extent(parts)
    for part in parts:
        drawn = _bars_of(part, look, shortest, shown)
        kinds = part.timeline.kind[part.placement.span[part.bars.item]]
        for kind in np.unique(kinds).tolist():
            columns[Kind(kind)].take(drawn, np.flatnonzero(kinds == kind).tolist())
    traces = []
    for kind in Kind:
        style = theme.KINDS[kind]
        # a trace of many colours shows only its first in the legend; entries of their own stand for it
        used = bool(columns[kind].base)
        if used or look.steady:
            in_legend = used and (not look.by_batch or kind is Kind.WAIT)
            traces.append(columns[kind].trace(style, style.name, in_legend))
    return traces


def extent(parts: Sequence[Part]) -> int:
    """Return the time that the bars of the longest part take [ns], which is about the width of the figure."""
    return max((int(part.bars.end.max() - part.bars.start.min()) for part in parts if len(part.bars)), default=0)


def edge(length: Any, shown: int) -> tuple[Any, Any]:
    """Say of a bar's length, or of an array of them, (has it an edge, in its own colour), in a figure of `shown` ns."""
    hair = length < _HAIR * shown
    return hair | (length >= _EDGE * shown), hair


def _bars_of(part: Part, look: Look, shortest: int, shown: int) -> Columns:
    """Return all bars of a timeline, in a figure of `shown` ns. Those shorter than `shortest` [ns] bear no text."""
    bars, placement, columns = part.bars, part.placement, Columns()
    rows = part.timeline.rows_at(placement.span[bars.item])
    tracks = [placement.tracks[number] for number in bars.track.tolist()]
    styles = [_style(row, look) for row in rows]
    length = bars.end - bars.start
    columns.base = ((bars.start - part.origin) / look.unit).tolist()
    columns.length = (length / look.unit).tolist()
    columns.place = [track.middle for track in tracks]
    thin = COPIES if look.by_batch else ()
    columns.width = [
        track.height * FILL * (_THIN if track.group == "stream" and row.kind in thin else 1.0)
        for track, row in zip(tracks, rows, strict=True)
    ]
    columns.color = [style.color for style in styles]
    columns.ink = [style.ink for style in styles]
    edged, hair = edge(length, shown)
    columns.edge = edged.astype(float).tolist()
    columns.rim = [color if thin else "white" for color, thin in zip(columns.color, hair.tolist(), strict=True)]
    columns.hover = hover.hover_texts(rows, part.hidden[placement.span[bars.item]], bars, part.origin)
    lettered = ((bars.count == 1) & (length >= shortest)).tolist()
    room = (_FIGURE_PX - left_px(placement.tracks)) / _LETTER_PX
    letters = (length * (room / max(1, shown))).astype(int).tolist()
    columns.text = [
        hover.bar_text(row, look.by_batch, fit) if has else ""
        for row, has, fit in zip(rows, lettered, letters, strict=True)
    ]
    return columns


def _style(row: Span, look: Look) -> theme.Style:
    style = theme.KINDS[row.kind]
    if not look.by_batch or row.kind is Kind.WAIT:
        return style
    batch = theme.of_batch(row.batch)
    return replace(batch, ink=style.ink) if style.pattern else batch  # on a pattern, which is pale, text is black


def _one_or_all(values: list[Any]) -> Any:
    return values[0] if len(set(values)) == 1 else values


def _shortest_with_text(parts: Sequence[Part]) -> int:
    lengths = np.sort(np.concatenate([np.empty(0, np.int64), *(part.bars.end - part.bars.start for part in parts)]))
    return int(lengths[-_LONGEST_TEXTS]) if len(lengths) > _LONGEST_TEXTS else 0


def legend(parts: Sequence[Part], look: Look) -> list[Json]:
    """Return the legend's entries for colours of batches, thin bars and patterns; none if colours mean kinds.

    Each is a trace that draws nothing; with `look.steady` all are there, and those that do not occur are not visible.
    """
    if not look.by_batch:
        return []
    drawn = [(part.timeline, part.placement.span[part.bars.item]) for part in parts]
    batch, kind = (
        np.concatenate([np.empty(0, np.int32), *(each.spans[name][spans] for each, spans in drawn)])
        for name in ("batch", "kind")
    )
    numbers = np.unique(batch[kind != Kind.WAIT])
    batches = [int(number) for number in numbers[numbers >= 0]]
    cycle, entries = len(theme.BATCHES), []
    first = {number % cycle: number for number in batches[::-1]}
    for place in range(cycle) if look.steady else sorted(range(cycle), key=lambda place: first.get(place, -1)):
        mine = [str(number) for number in batches if number % cycle == place]
        shown = ", ".join(mine[:3]) + (", …" if len(mine) > 3 else "")
        entries.append(_entry(f"batch {shown}", bool(mine), marker={"color": theme.BATCHES[place].color}))
    entries.append(_entry(theme.NO_BATCH.name, bool((numbers < 0).any()), marker={"color": theme.NO_BATCH.color}))
    thin = {"symbol": "line-ew", "size": 14, "line": {"color": theme.GREY, "width": 6}}
    copies = bool(np.isin(kind, COPIES).any())
    entries.append(_entry("thin bar: copy", copies, type="scatter", mode="markers", marker=thin))
    for each, shape in _SHAPES.items():
        style = theme.KINDS[each]
        marker = {"color": theme.DARK, "pattern": theme.pattern(style, theme.DARK)}
        entries.append(_entry(f"{shape}: {style.name}", bool((kind == each).any()), marker=marker))
    return [entry for entry in entries if entry["visible"] or look.steady]


def _entry(name: str, used: bool, **looks: Any) -> Json:
    entry: Json = {"type": "bar", "x": [None], "y": [None], "name": name, "hoverinfo": "skip"}
    if "type" not in looks:
        entry["orientation"] = "h"
    return entry | looks | {"showlegend": used, "visible": used}
