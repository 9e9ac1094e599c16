"""LiveFigure: one figure of a timeline that changes in place, fast enough for a slider.

    live = LiveFigure(*picture(timeline, "2 workers", "the finding"))
    live.widget                                                     # a plotly FigureWidget
    live.become(*picture(another, "3 workers", "another finding"))

A steady `draw.page.Look` always has the same traces, so two pictures differ in the values of some properties only.
Those, and nothing else, go to the browser, in one message. plotly checks every value of a figure on the way into a
figure, which takes longer than all the rest: here traces and layout stay plain JSON, as `draw.page` makes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go
from plotly.basedatatypes import Undefined

from loaderviz.draw import frame, page, theme
from loaderviz.draw.detail import BUDGET
from loaderviz.timeline import Timeline

Json = dict[str, Any]
# plotly draws a widget narrow at first, and would keep the long legend of that picture inside: over the axis, for ever.
FIXED = {"autoexpand": False}  # margins
EDGE_PX = 10  # of the legend, around its rows
LEGEND_ROWS = 4  # kept free below the axis, whatever the legend has, so that the picture does not jump


class LiveFigure:
    """A figure in a notebook cell, changed in place. `widget` is a FigureWidget.

    `traces` and `layout` are those of `picture`, `config` is plotly's, such as `{"doubleClick": "autosize"}`. Raises
    ImportError where anywidget is missing.
    """

    def __init__(self, traces: list[Json], layout: Json, config: Json | None = None) -> None:
        self._traces, self._layout = traces, layout
        from loaderviz.explore.page_figure import PageFigure  # needs anywidget

        self.widget = PageFigure(figure_of(self._traces, self._layout), config)
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
    look = page.Look(True, (), unit, unit_name, steady=True)
    return page.traces(parts, look), layout_of(parts, look, title, subtitle)


def layout_of(parts: Sequence[page.Part], look: page.Look, title: str, subtitle: str) -> Json:
    """Return the layout as plain JSON; `title` and `subtitle` are words, not HTML."""
    # Two lines of one title: a browser places a subtitle by the title's size, which a hidden cell does not have.
    small = f"<span style='font-size:13px;color:{theme.SOFT}'>{escape(subtitle, quote=False)}</span>"
    words = {"text": f"{escape(title, quote=False)}<br>{small}", "font": {"size": 15}}
    layout = frame.layout(parts, look, "", "", LEGEND_ROWS)
    margin = layout["margin"] | FIXED | {"b": layout["margin"]["b"] + EDGE_PX}
    return layout | {"autosize": True, "title": words, "margin": margin, "height": layout["height"] + EDGE_PX}


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
