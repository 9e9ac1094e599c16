"""The page: one or more timelines on one time axis, as a plotly figure. `figure` and `compare` are its front doors.

One `go.Bar` trace per kind of span, whatever the number of timelines; the bars carry their base (start), length and
place as arrays. Shapes are few: they cost a browser far more than bars do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from loaderviz import metrics
from loaderviz.draw import arrows as arrow_traces
from loaderviz.draw import detail, hazards, hover, strip, theme
from loaderviz.draw.lanes import Placement, arrange
from loaderviz.timeline import COPIES, Kind, Timeline

_LONGEST_TEXTS = 1_500  # bars that carry text; a browser measures each
_HEADER = 1.35  # track heights above each of several timelines, for its name
_FILL, _THIN = 0.84, 0.4  # a bar's share of its track; by batch, a copy in a stream is thin, to be told from a kernel
_MARGIN = {"l": 150, "r": 24, "t": 78, "b": 64}  # px
_BELOW = 56  # px from the lanes to the legend; it is below the axis, so that narrow cells keep their width
_LEGEND_ROW = 20  # px; four entries fit into a row of 1,000 px
_CHARACTER, _SUBTITLE_LINE = 6.8, 17  # px: width of a letter of a lane's name, height of a further line
_TITLE = 26  # px above the title, where the subtitle has several lines; plotly itself would centre it
_EDGE = 1 / 250  # bars longer than this share of the figure get a white edge, which would eat shorter ones


@dataclass(frozen=True)
class Part:
    """One timeline on the page. `origin` is the time [ns] that is drawn as 0, `top` where its tracks begin."""

    timeline: Timeline
    label: str
    origin: int
    top: float
    placement: Placement
    bars: detail.Bars
    hidden: hover.Shares  # of each span, see `metrics.hidden_shares`


@dataclass(frozen=True)
class Look:
    """What a figure shows: colours by "batch" or "kind", which arrows, and the unit of time (ns in it, its name).

    `steady`: traces with nothing to show are there too, so that two figures of one look have the same traces.
    """

    by_batch: bool
    arrows: tuple[str, ...]
    unit: int
    unit_name: str
    steady: bool = False


def time_unit(ns: int) -> tuple[int, str]:
    """Return the unit that suits an axis of this length: (ns in it, its name)."""
    return (1_000, "µs") if ns < 2_000_000 else (1_000_000, "ms") if ns < 10_000_000_000 else (1_000_000_000, "s")


def place(timelines: Sequence[tuple[str, Timeline, int]], operators: bool, budget: int) -> list[Part]:
    """Lay the timelines (label, timeline, origin in ns) out below each other; together they have `budget` bars."""
    parts: list[Part] = []
    top = 0.0
    for label, timeline, origin in timelines:
        if len(timelines) > 1:
            top += _HEADER
        placement = hazards.make_room(timeline, arrange(timeline, operators, top))
        category = timeline.kind[placement.span].astype(np.int64) * 2**32 + timeline.batch[placement.span] + 1
        bars = detail.reduce(
            placement.track, timeline.start[placement.span], timeline.end[placement.span], category,
            max(1, budget // len(timelines)),
        )  # fmt: skip
        parts.append(Part(timeline, label, origin, top, placement, bars, metrics.hidden_shares(timeline)))
        top = placement.bottom + 0.2
    return parts


def draw(parts: Sequence[Part], look: Look, title: str, subtitle: str, text: str) -> go.Figure:
    """Return the figure of these parts."""
    figure = go.Figure(layout={"template": theme.TEMPLATE, "meta": {"text": text}})
    traces = [trace for kind in Kind for trace in _kind_trace(parts, kind, look)]
    traces += [*_batch_legend(parts, look), *_copy_legend(parts, look)] if look.by_batch else []
    traces += _state_traces(parts, look)
    traces += [*arrow_traces.traces(parts, look), *hazards.traces(parts, look)]
    figure.add_traces(traces)
    _lay_out(figure, parts, look, title, subtitle)
    return figure


def _kind_trace(parts: Sequence[Part], kind: Kind, look: Look) -> list[go.Bar]:
    """Return the one trace of all bars of a kind, or none."""
    style, columns = theme.KINDS[kind], _Columns()
    shortest = _shortest_with_text(parts)
    edged = _EDGE * max(part.timeline.duration for part in parts)
    for part in parts:
        bars, placement = part.bars, part.placement
        mine = np.flatnonzero(part.timeline.kind[placement.span[bars.item]] == kind)
        chosen = detail.Bars(*(getattr(bars, name)[mine] for name in bars.__dataclass_fields__))
        tracks = [placement.tracks[number] for number in chosen.track]
        rows = [part.timeline.row(int(placement.span[item])) for item in chosen.item]
        styles = [theme.of_batch(row.batch) if look.by_batch and kind is not Kind.WAIT else style for row in rows]
        columns.base += ((chosen.start - part.origin) / look.unit).tolist()
        columns.length += ((chosen.end - chosen.start) / look.unit).tolist()
        columns.place += [track.middle for track in tracks]
        thin = _THIN if look.by_batch and kind in COPIES else 1.0
        columns.width += [track.height * _FILL * (thin if track.group == "stream" else 1.0) for track in tracks]
        columns.color += [each.color for each in styles]
        columns.ink += [style.ink if kind is Kind.WAIT else each.ink for each in styles]
        columns.edge += [float(length >= edged) for length in chosen.end - chosen.start]
        columns.hover += hover.hover_texts(part.timeline, placement.span, chosen, part.origin, part.hidden)
        columns.text += [
            hover.bar_text(row, look.by_batch) if count == 1 and end - start >= shortest else ""
            for row, count, start, end in zip(rows, chosen.count, chosen.start, chosen.end, strict=True)
        ]
    if not columns.base and not look.steady:
        return []
    # a trace of many colours shows only its first in the legend; entries of their own stand for it
    in_legend = bool(columns.base) and (not look.by_batch or kind is Kind.WAIT)
    return [columns.bar(style, style.name, in_legend)]


class _Columns:
    """The arrays of one bar trace."""

    def __init__(self) -> None:
        self.base: list[float] = []
        self.length: list[float] = []
        self.place: list[float] = []
        self.width: list[float] = []
        self.color: list[str] = []
        self.ink: list[str] = []
        self.text: list[str] = []
        self.edge: list[float] = []
        self.hover: list[str] = []

    def bar(self, style: theme.Style, name: str, in_legend: bool) -> go.Bar:
        """Return the trace."""
        marker = {"color": _one_or_all(self.color), "line": {"width": _one_or_all(self.edge) or 0, "color": "white"}}
        if style.pattern:
            marker["pattern"] = theme.pattern(style, _one_or_all(self.color))
        return go.Bar(
            base=self.base, x=self.length, y=self.place, width=self.width, orientation="h", name=name, marker=marker,
            text=self.text if any(self.text) else None, textposition="inside", textangle=0, insidetextanchor="middle",
            insidetextfont={"color": _one_or_all(self.ink), "size": theme.TEXT_PX}, cliponaxis=True,
            hovertext=self.hover, hovertemplate="%{hovertext}<extra></extra>", showlegend=in_legend,
        )  # fmt: skip


def _one_or_all(values: list[Any]) -> Any:
    return values[0] if len(set(values)) == 1 else values


def _shortest_with_text(parts: Sequence[Part]) -> int:
    lengths = np.sort(np.concatenate([part.bars.end - part.bars.start for part in parts]))
    return int(lengths[-_LONGEST_TEXTS]) if len(lengths) > _LONGEST_TEXTS else 0


def _batch_legend(parts: Sequence[Part], look: Look) -> list[go.Bar]:
    """Return legend entries for the batch colours that occur; the traces themselves hold several colours."""
    numbers = np.unique(np.concatenate([part.timeline.batch for part in parts]))
    cycle = len(theme.BATCHES)
    first = {int(number) % cycle: int(number) for number in numbers[numbers >= 0][::-1]}
    places = range(cycle) if look.steady else sorted(range(cycle), key=lambda place: first.get(place, -1))
    entries = []
    for place in places:
        mine = [str(number) for number in numbers[numbers >= 0] if number % cycle == place]
        shown = ", ".join(mine[:3]) + (", …" if len(mine) > 3 else "")
        entries.append((f"batch {shown}", theme.BATCHES[place].color, bool(mine)))
    entries.append((theme.NO_BATCH.name, theme.NO_BATCH.color, bool((numbers < 0).any())))
    return [
        go.Bar(x=[None], y=[None], orientation="h", name=name, marker_color=color, hoverinfo="skip", showlegend=used)
        for name, color, used in entries
        if used or look.steady
    ]


def _copy_legend(parts: Sequence[Part], look: Look) -> list[go.Scatter]:
    used = any(part.timeline.where(*COPIES).any() for part in parts)
    entry = go.Scatter(x=[None], y=[None], mode="lines", name="thin bar: copy", hoverinfo="skip", showlegend=used,
                       line={"color": theme.GREY, "width": 7})  # fmt: skip
    return [entry] if used or look.steady else []


def _state_traces(parts: Sequence[Part], look: Look) -> list[go.Bar]:
    """Return the strips that say what each GPU is doing, one trace per state that occurs."""
    columns = {name: _Columns() for name in theme.STATES}
    for part in parts:
        for device, track in part.placement.strips.items():
            for piece in strip.pieces(metrics.states(part.timeline, device), detail.BUDGET // max(8, 2 * len(parts))):
                column = columns[piece.state]
                column.base.append((piece.start - part.origin) / look.unit)
                column.length.append((piece.end - piece.start) / look.unit)
                column.place.append(track.middle + _FILL * track.height * (0.5 - piece.below - piece.share / 2))
                column.width.append(_FILL * track.height * piece.share)
                column.color.append(theme.STATES[piece.state].color)
                column.edge.append(0.0)
                column.hover.append(piece.words(part.origin))
    traces = [
        columns[name].bar(style, f"GPU: {style.name}", bool(columns[name].base)).update(legendrank=1_001 + rank)
        for rank, (name, style) in enumerate(theme.STATES.items())
        if columns[name].base or look.steady
    ]
    return traces[::-1]  # a browser rounds short bars up to a pixel: idle, drawn first, must not cover the others


def _lay_out(figure: go.Figure, parts: Sequence[Part], look: Look, title: str, subtitle: str) -> None:
    tracks = [track for part in parts for track in part.placement.tracks]
    bottom = max([part.placement.bottom for part in parts], default=0.0)
    end = max([part.timeline.begin + part.timeline.duration - part.origin for part in parts], default=0)
    first = min([part.timeline.begin - part.origin for part in parts], default=0)
    pad = 0.005 * (end - first)
    named = [track for track in tracks if track.label]
    entries = sum(trace.showlegend is not False for trace in figure.data)
    lanes_px = round(max(bottom, 3) * theme.TRACK_PX)
    longest = max([len(track.label) for track in named], default=0)
    further = subtitle.count("<br>")
    margin = _MARGIN | {
        "b": _MARGIN["b"] + _LEGEND_ROW * -(-entries // 4), "t": _MARGIN["t"] + _SUBTITLE_LINE * further,
        "l": min(max(_MARGIN["l"], round(_CHARACTER * longest) + 14), 3 * _MARGIN["l"]),
    }  # fmt: skip
    height = lanes_px + margin["t"] + margin["b"]
    place = {"y": 1 - _TITLE / height, "yref": "container", "yanchor": "top"} if further else {}
    figure.update_layout(
        title={"text": title, "subtitle": {"text": subtitle}, **place}, barmode="overlay", bargap=0,
        height=height, margin=margin,
        legend={"itemclick": False if look.by_batch else "toggle", "itemdoubleclick": False, "orientation": "h",
                "x": 0, "xanchor": "left", "y": -_BELOW / lanes_px, "yanchor": "top"},
        hovermode="closest", dragmode="zoom",
    )  # fmt: skip
    figure.update_xaxes(
        title={"text": f"time [{look.unit_name}]", "standoff": 8}, exponentformat="none", separatethousands=True,
        range=[(first - pad) / look.unit, (end + pad) / look.unit],
    )  # fmt: skip
    figure.update_yaxes(
        range=[bottom + 0.1, -0.1], tickmode="array", tickvals=[track.middle for track in named],
        ticktext=[escape(track.label, quote=False) for track in named], showgrid=False, fixedrange=True,
    )  # fmt: skip
    _headers_and_bands(figure, parts)
    hazards.annotate(figure, parts, look)
    if not any(len(part.timeline) for part in parts):
        words = "This timeline is empty: nothing was recorded."
        figure.add_annotation(text=words, showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper", font={"size": 16})
        figure.update_xaxes(visible=False)
        figure.update_yaxes(visible=False)


def _headers_and_bands(figure: go.Figure, parts: Sequence[Part]) -> None:
    """Shade the host lanes, and above each of several timelines write what it is."""
    for part in parts:
        host = [track for track in part.placement.tracks if track.group == "host"]
        if host:
            edges = {"y0": host[0].top - 0.05, "y1": host[-1].top + host[-1].height + 0.08}
            figure.add_shape(type="rect", xref="paper", x0=0, x1=1, **edges, fillcolor=theme.HOST_BAND,
                             line_width=0, layer="below")  # fmt: skip
        if len(parts) > 1:
            line = metrics.describe(part.timeline).replace("GPU computes", "the GPU computes", 1)
            figure.add_annotation(
                text=f"<b>{escape(part.label, quote=False)}</b>: {line}", xref="paper", x=0, xanchor="left",
                y=part.top - 0.1, yanchor="bottom", showarrow=False, align="left", font={"size": theme.TEXT_PX + 2},
            )  # fmt: skip
