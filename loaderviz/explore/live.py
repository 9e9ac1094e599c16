"""LiveFigure: one figure of a timeline that changes in place, fast enough for a slider.

    live = LiveFigure(*picture(timeline, "2 workers", "the finding"))
    live.widget                                                     # a plotly FigureWidget
    live.become(*picture(another, "3 workers", "another finding"))

`draw.figure(..., steady=True)` always has the same traces, so two pictures differ in the values of some properties
only. Those, and nothing else, go to the browser, in one message. plotly checks every value of a figure twice on the way
into a widget, which takes longer than all the rest: here the figure's parts come ready made from `draw.page`.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

import plotly.graph_objects as go
from plotly.basedatatypes import Undefined

from loaderviz.draw import arrows, hazards, page, theme
from loaderviz.draw.detail import BUDGET
from loaderviz.timeline import Kind, Timeline

Json = dict[str, Any]
LEGEND_PX = 80  # kept free below the axis, whatever the legend has, so that the picture does not jump
KEPT = 50  # layouts
_layouts: dict[Any, Json] = {}


class LiveFigure:
    """A figure in a notebook cell, changed in place. `widget` is a FigureWidget.

    `traces` and `layout` are those of `picture`. Raises ImportError where anywidget is missing.
    """

    def __init__(self, traces: list[Json], layout: Json) -> None:
        self._traces, self._layout = traces, layout
        from loaderviz.explore.page_figure import PageFigure  # needs anywidget

        self.widget = PageFigure(figure_of(self._traces, self._layout))
        self.redraws = 0

    def become(self, traces: list[Json], layout: Json) -> None:
        """Send what differs from the present traces and layout, in one message."""
        style, numbers = restyle(self._traces, traces)
        moved = dict(changes(self._layout, layout))
        self._traces, self._layout = traces, layout
        if style or moved:
            self.widget.plotly_update(style, moved, numbers or None)
            self.redraws += 1
            survive_reload(self.widget)


def survive_reload(widget: Any) -> None:
    """Let a page that is loaded again get the figure as it is now.

    plotly keeps what a new page asks for as it was when the cell was displayed. Changes reach the present page as
    messages, so nothing has to be sent here: the stored state becomes the figure's own data.
    """
    widget._trait_values.update(_widget_data=widget._data, _widget_layout=widget._layout_obj._props)


def figure_of(traces: list[Json], layout: Json) -> go.Figure:
    """Return a plain figure of these traces and this layout, in the look of all figures."""
    return go.Figure(traces, layout | {"template": theme.TEMPLATE})


def picture(timeline: Timeline, title: str, subtitle: str, budget: int = BUDGET) -> tuple[list[Json], Json]:
    """Return the traces and the layout of a figure as plain JSON; `title` and `subtitle` are words, not HTML."""
    unit, unit_name = page.time_unit(timeline.duration)
    parts = page.place([("", timeline, timeline.begin)], False, budget)
    return drawn(parts, page.Look(True, (), unit, unit_name, steady=True), title, subtitle)


def drawn(parts: list[page.Part], look: page.Look, title: str, subtitle: str) -> tuple[list[Json], Json]:
    """Return the traces and the layout of what `page.draw` draws, without the cost of a checked figure."""
    traces = [trace for kind in Kind for trace in page._kind_trace(parts, kind, look)]
    traces += [*page._batch_legend(parts, look), *page._copy_legend(parts, look)] if look.by_batch else []
    traces += page._state_traces(parts, look)
    traces += [*arrows.traces(parts, look), *hazards.traces(parts, look)]
    return [trace.to_plotly_json() for trace in traces], layout_of(parts, look, title, subtitle)


def layout_of(parts: list[page.Part], look: page.Look, title: str, subtitle: str) -> Json:
    """Return the layout; `title` and `subtitle` are words, not HTML.

    It depends on the lanes and hazards, which rarely change, but for the words and the time axis: so it is kept, and
    those are filled in.
    """
    key = (tuple((part.placement.tracks, part.timeline.marks, part.origin) for part in parts), look.unit_name)
    if key not in _layouts:
        if len(_layouts) >= KEPT:
            _layouts.clear()
        frame = go.Figure()
        page._lay_out(frame, parts, look, "", "")
        _layouts[key] = frame.layout.to_plotly_json()
        _layouts[key]["margin"]["b"] += LEGEND_PX
        _layouts[key]["height"] += LEGEND_PX
    kept = _layouts[key]
    # Two lines of one title: a browser places a subtitle by the title's size, which a hidden cell does not have.
    small = f"<span style='font-size:13px;color:#444444'>{escape(subtitle, quote=False)}</span>"
    edges = [(part.timeline.begin - part.origin, part.timeline.duration) for part in parts]
    first, last = min(begin for begin, _ in edges), max(begin + length for begin, length in edges)
    pad = 0.005 * (last - first)
    return kept | {
        "autosize": True,
        "title": {"text": f"{escape(title, quote=False)}<br>{small}", "font": {"size": 15}},
        "xaxis": kept["xaxis"] | {"range": [(first - pad) / look.unit, (last + pad) / look.unit]},
    }


def changes(before: Json, after: Json, path: str = "") -> Iterator[tuple[str, Any]]:
    """Give (path, new value) of each property that differs; None for one that is gone. Paths are plotly's, "a.b"."""
    for name in before.keys() | after.keys():
        old, new = before.get(name), after.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from changes(old, new, f"{path}{name}.")
        elif isinstance(new, dict) and old is None:
            yield from changes({}, new, f"{path}{name}.")
        elif old != new:
            yield f"{path}{name}", new


def restyle(before: list[Json], after: list[Json]) -> tuple[Json, list[int]]:
    """Return what `plotly_update` needs to turn some traces into others: a value per changed trace, and their numbers.

    Raises ValueError if the traces are not of the same types in the same order.
    """
    if [trace["type"] for trace in before] != [trace["type"] for trace in after]:
        raise ValueError("two pictures have different traces; draw both with one Look that is steady")
    found = {}
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        if changed := dict(changes(old, new)):
            found[number] = changed
    paths = {path for changed in found.values() for path in changed}
    return {path: [each.get(path, Undefined) for each in found.values()] for path in paths}, list(found)
