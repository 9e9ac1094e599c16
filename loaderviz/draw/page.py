"""The page: one or more timelines on one time axis, as a plotly figure. `figure` and `compare` are its front doors.

    parts = place([("", timeline, timeline.begin)], operators=False, budget=4_400)
    look = Look(by_batch=True, arrows=(), unit=1_000, unit_name="µs")
    draw(parts, look, "title", "subtitle", "in words")        # or traces(parts, look), and frame.layout

One `go.Bar` trace per kind of span, whatever the number of timelines; the bars carry their base (start), length and
place as arrays. Shapes are few: they cost a browser far more than bars do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from loaderviz import metrics
from loaderviz.draw import arrows, bars, detail, frame, hazards, hover, strip, theme
from loaderviz.draw.bars import Json
from loaderviz.draw.lanes import Placement, arrange
from loaderviz.timeline import Timeline

_HEADER = 1.35  # track heights above each of several timelines, for its name


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

    `steady`: traces with nothing to show are there too, not visible; so two figures of one look have the same traces.
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
        shown = detail.reduce(
            placement.track, timeline.start[placement.span], timeline.end[placement.span], category,
            max(1, budget // len(timelines)),
        )  # fmt: skip
        parts.append(Part(timeline, label, origin, top, placement, shown, metrics.hidden_shares(timeline)))
        top = placement.bottom + 0.2
    return parts


def traces(parts: Sequence[Part], look: Look) -> list[Json]:
    """Return all traces of these parts as plain JSON, those of `bars.kind_traces` first."""
    return [
        *bars.kind_traces(parts, look), *bars.legend(parts, look), *strip.traces(parts, look),
        *arrows.traces(parts, look), *hazards.traces(parts, look),
    ]  # fmt: skip


def draw(parts: Sequence[Part], look: Look, title: str, subtitle: str, text: str) -> go.Figure:
    """Return the figure of these parts; `title` and `subtitle` are plotly's HTML, `text` is the text twin."""
    data = traces(parts, look)
    rows = frame.legend_rows([trace["name"] for trace in data if trace["showlegend"]])
    layout = frame.layout(parts, look, title, subtitle, rows)
    return go.Figure(data, layout | {"template": theme.TEMPLATE, "meta": {"text": text}})
