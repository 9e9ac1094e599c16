"""Plain plotly figures, to change by hand and to export: the lanes, colours and title of the view, and few bars.

The view itself is not made of them: plotly draws some thousand bars quickly, and a real trace not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from textwrap import wrap

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from loaderviz import metrics, words
from loaderviz.timeline import Kind, Timeline
from loaderviz.view import theme
from loaderviz.view.pack import Json, Part
from loaderviz.view.picture import View, twin

BARS = 2_000
_TRACK, _HEADER = 26, 1.2  # px of a track, and tracks above each of several timelines

TEMPLATE = go.layout.Template(
    layout={
        "font": {"family": "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif", "size": 13, "color": theme.TEXT},
        "title": {"x": 0.01, "xref": "container", "font": {"size": 16}, "subtitle": {"font": {"color": theme.SOFT}}},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "colorway": [theme.BLUE, theme.EXPOSED, theme.GREEN, theme.WAITING, theme.AMBER, theme.SKY],
        "xaxis": {"gridcolor": theme.GRID, "zeroline": False, "ticks": "outside"},
        "yaxis": {"gridcolor": theme.GRID, "zeroline": False},
        "hoverlabel": {"bgcolor": "white", "align": "left", "namelength": -1},
    }
)


def figure(view: View) -> go.Figure:
    """Return a view as a plotly figure of at most some 2,000 bars; its words are in `layout.meta["text"]`."""
    longest = max(timeline.duration for timeline in view.timelines.values())
    first, last = view.first or (0, longest)
    unit, unit_name = time_unit(last - first)
    data: list[Json] = []
    names: list[str] = []
    places: list[float] = []
    top = 0.0
    for part in view.parts:
        if len(view.parts) > 1:
            names.append(f"<b>{escape(part.name, quote=False)}</b>")
            places.append(top + 0.6)
            top += _HEADER
        data += _traces(part, BARS // len(view.parts), view.color == "batch", unit, top)
        for row in part.arranged[0]:
            names.append(escape(row.name, quote=False))
            places.append(top + 0.5)
            top += len(row.tracks)
        top += 0.4
    seen: set[str] = set()
    for trace in data:
        trace["showlegend"] = trace["name"] not in seen
        seen.add(trace["name"])
    layout = {
        "template": TEMPLATE,
        "meta": {"text": view.text()},
        "barmode": "overlay",
        "height": round(_TRACK * top + 220),
        "title": {"text": _wrapped(view.heading, 110), "subtitle": {"text": _wrapped(view.subtitle, 140)},
                  "y": 1, "yanchor": "top", "pad": {"t": 12}},
        "margin": {"l": 190, "r": 24, "t": 150, "b": 50},  # the legend has what is below to itself: it may wrap
        "hovermode": "closest",
        "legend": {"orientation": "h", "yref": "container", "y": 0.01, "yanchor": "bottom", "itemclick": "toggle"},
        "xaxis": {"title": {"text": f"time [{unit_name}]"}, "side": "top", "range": [first / unit, last / unit]},
        "yaxis": {"range": [top, 0], "tickvals": places, "ticktext": names, "showgrid": False, "fixedrange": True},
    }  # fmt: skip
    return go.Figure(data, layout)


def time_unit(ns: int) -> tuple[int, str]:
    """Return the unit that suits an axis of this length: (ns in it, its name)."""
    return (1_000, "µs") if ns < 2_000_000 else (1_000_000, "ms") if ns < 10_000_000_000 else (1_000_000_000, "s")


def _traces(part: Part, limit: int, by_batch: bool, unit: int, top: float) -> Iterator[Json]:
    """Give a trace for each kind of span and state that occurs, in about `limit` bars."""
    bars = part.bars if len(part.bars.span) <= limit else part.thinned(part.bars, part.bars.span < -1, limit)
    for number in np.unique(bars.style).tolist():
        mine = np.flatnonzero(bars.style == number)
        style, state = theme.STYLES[number], number >= len(Kind)
        rows = [] if state else part.timeline.rows_at(bars.span[mine])
        batches = by_batch and not state and number != Kind.WAIT
        marker: Json = {"color": [theme.of_batch(row.batch).color for row in rows] if batches else style.color}
        if style.pattern:
            marker["pattern"] = {"shape": style.pattern, "size": 6, "fgcolor": marker["color"], "bgcolor": style.back}
        start, length = bars.start[mine], bars.end[mine] - bars.start[mine]
        told = (
            [style.name] * len(mine)
            if state
            else [
                f"<b>{escape(row.name[:90], quote=False)}</b>" + (f", batch {row.batch}" if row.batch >= 0 else "")
                if count == 1
                else f"<b>{count} spans</b>, such as {escape(row.name[:90], quote=False)}"
                for row, count in zip(rows, bars.count[mine].tolist(), strict=True)
            ]
        )
        yield {
            "type": "bar",
            "orientation": "h",
            "name": theme.legend(number),
            "marker": marker,
            "base": (start / unit).tolist(),
            "x": (length / unit).tolist(),
            "width": (high := 0.8 * style.height),
            "y": (bars.track[mine] + top + 0.1 + high / 2).tolist(),  # a copy hangs from the top of its lane
            "hovertext": [
                f"{name}<br>{words.duration(time)}, from {words.duration(begin)}"
                for name, time, begin in zip(told, length.tolist(), start.tolist(), strict=True)
            ],
            "hovertemplate": "%{hovertext}<extra></extra>",
        }


def _wrapped(text: str, letters: int) -> str:
    return "<br>".join(escape(line, quote=False) for line in wrap(text, letters))


class Chart(go.Figure):  # type: ignore[misc]
    """A plotly figure below which a notebook has its words, those in `layout.meta["text"]`."""

    def _ipython_display_(self) -> None:
        from IPython.display import HTML, display

        super()._ipython_display_()
        display(HTML(twin(self.layout.meta["text"])))


def utilization(timelines: Mapping[str, Timeline], window: int) -> go.Figure:
    """Return the GPU-utilisation curves of timelines by name: share of each `window` [ns] in which a kernel runs."""
    longest = max(timeline.duration for timeline in timelines.values())
    unit, unit_name = time_unit(longest)
    count = len(timelines)
    headings = [f"{escape(name, quote=False)}: {_mean(each)}" for name, each in timelines.items()]
    shown = make_subplots(
        figure=Chart(), rows=count, shared_xaxes=True, vertical_spacing=0.28 / count, subplot_titles=headings
    )
    for number, timeline in enumerate(timelines.values()):
        edges, share = metrics.utilization(timeline, window)
        shown.add_scatter(
            x=(edges - timeline.begin) / unit,
            y=100 * np.r_[share, share[-1:]],
            row=number + 1,
            col=1,
            mode="lines",
            line={"color": theme.BLUE, "shape": "hv", "width": 1.5},
            fill="tozeroy",
            fillcolor=theme.SKY,
            hovertemplate=f"%{{y:.0f}} % from %{{x:.4g}} {unit_name}<extra></extra>",
        )
    title = f"GPU utilisation: share of each {words.duration(window)} in which a kernel runs"
    shown.update_layout(
        template=TEMPLATE,
        meta={"text": title + ". " + "; ".join(headings)},
        title={"text": title},
        height=110 * count + 130,
        margin={"l": 70, "r": 24, "t": 84, "b": 56},
        showlegend=False,
    )
    shown.update_annotations(x=0, xanchor="left", font_size=13)
    shown.update_xaxes(range=[0, 1.005 * longest / unit], exponentformat="none", separatethousands=True)
    shown.update_xaxes(title_text=f"time [{unit_name}]", row=count, col=1)
    shown.update_yaxes(range=[0, 105], tickvals=[0, 50, 100], ticktext=["0 %", "50 %", "100 %"])
    return shown


def _mean(timeline: Timeline) -> str:
    summary = metrics.summarize(timeline)
    mean = summary.kernels / summary.window if summary.window else 0
    return "no work on the GPU" if not mean else f"{words.share(mean)} of {words.duration(summary.window)}"
