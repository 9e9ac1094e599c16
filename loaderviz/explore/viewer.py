"""The viewer: zoom and pan in a timeline of any length, click on a span for its story, select a window for its numbers.

    lv.explore.viewer(timeline)

A browser draws a few thousand bars quickly and a million not at all. So the figure holds what the present window needs:
each zoom asks Python for its bars, short neighbours merged as far as the screen cannot tell them apart.
"""

from __future__ import annotations

from dataclasses import replace as changed
from typing import Any

import numpy as np
import plotly.graph_objects as go

from loaderviz import words
from loaderviz.activity import check_timeline, window_of
from loaderviz.draw import bars, detail, hazards, page, strip, theme
from loaderviz.explore import panels
from loaderviz.explore.cells import Interactive, live_here
from loaderviz.explore.details import details, launch_of
from loaderviz.explore.live import Json, LiveFigure, figure_of, layout_of
from loaderviz.metrics import MetricsError, describe, hidden_shares, summarize
from loaderviz.timeline import Kind, Timeline

BARS = 2_000
SHORTEST = 10  # ns; a window is not zoomed in further

_NO_BUTTONS = ["select2d", "lasso2d", "resetScale2d"]  # the first is beside the figure, as text

Window = tuple[int, int]


def viewer(timeline: Timeline, *, color: str = "batch", name: str | None = None) -> Viewer:
    """Return the viewer of a timeline; displaying it in a notebook shows it.

    `color` is "batch" or "kind", as in `draw.figure`. A cell that runs again closes its former viewer; `name` tells
    several in one cell apart. Raises `NotATimelineError`, and `MetricsError` for another colour.
    """
    if color not in ("batch", "kind"):
        raise MetricsError(f"color is {color!r}; give 'batch' or 'kind'")
    return Viewer(check_timeline(timeline, "viewer()"), color, name)


class Viewer(Interactive):
    """A timeline, the window that is shown, the window whose numbers are shown, and the span that is told about."""

    def __init__(self, timeline: Timeline, color: str = "batch", name: str | None = None) -> None:
        super().__init__("viewer", name)
        self.timeline = timeline
        self._unit, self._unit_name = page.time_unit(timeline.duration)
        self._look = page.Look(color == "batch", (), self._unit, self._unit_name, steady=True)
        self._whole = page.place([("", timeline, timeline.begin)], False, BARS)[0]
        self.window: Window = (timeline.begin, timeline.begin + timeline.duration)
        self.selected: Window = self.window
        self.picked = -1  # a span
        self._busy = False
        self._panels: dict[str, Any] = {}
        self._traces, self._layout = self._picture()
        if live_here():
            self._build()

    def show(self, start: int, end: int) -> None:
        """Zoom to a window [ns, as in `timeline.start`]. Raises `MetricsError` if its end lies before its start."""
        start, end = window_of(self.timeline, (start, end))
        middle, half = (start + end) // 2, max(SHORTEST, end - start) // 2
        self.window = self.selected = (middle - half, middle + half)
        self._redraw()

    def select(self, start: int, end: int) -> None:
        """Give the numbers of a window [ns] without zooming. Raises `MetricsError` if its end lies before its start."""
        self.selected = window_of(self.timeline, (start, end))
        self._redraw()

    def pick(self, span: int) -> None:
        """Tell about a span by its number; -1 for none."""
        self.picked = span if 0 <= span < len(self.timeline) else -1
        self._redraw()

    @property
    def figure(self) -> go.Figure:
        """The picture as it is now."""
        return figure_of(self._traces, self._layout)

    def text(self) -> str:
        """Return the window's numbers, and the story of the span that is picked, in words."""
        story = "; ".join(f"{label}: {value}" for label, value in self.story())
        return f"{self.finding()}. {story}" if story else self.finding()

    def finding(self) -> str:
        """Return the numbers of the window that is selected, in a line of words."""
        start, end = (edge - self.timeline.begin for edge in self.selected)
        return f"{_moment(start)} to {words.duration(end)}: {describe(self._cut(self.selected))}"

    def story(self) -> list[tuple[str, str]]:
        """Return what is known about the span that is picked, as (label, value)."""
        return details(self.timeline, self.picked) if self.picked >= 0 else []

    def static_html(self) -> str:
        """Return the words and numbers, for a place without widgets."""
        return panels.paragraph(self.text()) + panels.numbers(summarize(self._cut(self.selected)))

    # The picture

    def _cut(self, window: Window) -> Timeline:
        whole = (self.timeline.begin, self.timeline.begin + self.timeline.duration)
        if window[0] <= whole[0] and window[1] >= whole[1]:
            return self.timeline
        return self.timeline.between(*window)

    def _bars(self) -> detail.Bars:
        """Return the bars of the window; spans across its edge are cut there."""
        timeline, placement = self.timeline, self._whole.placement
        start, end = timeline.start[placement.span], timeline.end[placement.span]
        here = np.flatnonzero((end >= self.window[0]) & (start <= self.window[1]))
        span = placement.span[here]
        category = timeline.kind[span].astype(np.int64) * 2**32 + timeline.batch[span] + 1
        first, last = np.maximum(start[here], self.window[0]), np.minimum(end[here], self.window[1])
        bars = detail.reduce(placement.track[here], first, last, category, BARS)
        return changed(bars, item=here[bars.item])

    def _picture(self) -> tuple[list[Json], Json]:
        cut = self._cut(self.window)
        whole = changed(self._whole, bars=self._bars())
        part = changed(whole, timeline=cut, hidden=hidden_shares(cut))
        traces = [
            *bars.kind_traces([whole], self._look), *bars.legend([whole], self._look),
            *strip.traces([part], self._look), *hazards.traces([whole], self._look), self._selection(), self._frame(),
        ]  # fmt: skip
        self._shown = whole
        start, end = (edge - self.timeline.begin for edge in self.window)
        title = f"{_moment(start)} to {words.duration(end)} of {words.duration(self.timeline.duration)}"
        layout = layout_of([self._whole], self._look, title, describe(cut))
        layout["xaxis"] = layout["xaxis"] | {"range": [edge / self._unit for edge in (start, end)]}
        return traces, layout

    def _selection(self) -> Json:
        """Return a frame around the window that is selected, if it is not all that is shown."""
        shown = self.selected != self.window
        left, right = ((edge - self.timeline.begin) / self._unit for edge in self.selected)
        bottom = self._whole.placement.bottom
        return {"type": "scatter", "mode": "lines", "hoverinfo": "skip", "name": "selected window", "showlegend": shown,
                "x": [left, right, right, left, left] if shown else [], "line": {"color": theme.BLACK, "dash": "dash"},
                "y": [0.0, 0.0, bottom, bottom, 0.0] if shown else []}  # fmt: skip

    def _frame(self) -> Json:
        """Return a frame around the picked span, and a line from its launch."""
        x: list[float | None] = []
        y: list[float | None] = []
        for span in (self.picked, launch_of(self.timeline, self.picked) if self.picked >= 0 else -1):
            for place in np.flatnonzero(self._whole.placement.span == span) if span >= 0 else ():
                track = self._whole.placement.tracks[self._whole.placement.track[place]]
                left, right = ((int(column[span]) - self.timeline.begin) / self._unit
                               for column in (self.timeline.start, self.timeline.end))  # fmt: skip
                low, high = track.top + 0.02, track.top + track.height - 0.02
                x += [left, right, right, left, left, None]
                y += [low, low, high, high, low, None]
        line = {"color": theme.BLACK, "width": 3}
        return {"type": "scatter", "mode": "lines", "x": x, "y": y, "line": line, "hoverinfo": "skip",
                "name": "picked, and its launch", "showlegend": bool(x)}  # fmt: skip

    def _redraw(self) -> None:
        self._busy = True
        try:
            self._traces, self._layout = self._picture()
            if self.widget is not None:
                self._live.become(self._traces, self._layout)
        finally:
            self._busy = False
        self._write()

    # The widget

    def _build(self) -> None:
        import ipywidgets as widgets

        config = {"doubleClick": "autosize", "modeBarButtonsToRemove": _NO_BUTTONS}
        self._live = LiveFigure(self._traces, self._layout, config)
        figure = self._live.widget
        figure.layout.on_change(self._zoomed, "xaxis.range")
        figure.layout.on_change(self._freed, "xaxis.autorange")
        for number in range(len(Kind)):  # the traces of spans come first, one for each kind
            figure.data[number].on_click(self._clicked)
        self._drag = widgets.ToggleButtons(
            options=[("zoom", "zoom"), ("move", "pan"), ("select a window", "select")], style={"button_width": "auto"},
            layout={"flex": "0 0 auto", "width": "max-content"},
        )  # fmt: skip
        self._drag.observe(self._drag_changed, "value")
        row = [widgets.Label("drag to"), self._drag, *self._buttons(widgets)]
        rows = [widgets.HBox(row, layout={"flex_flow": "row wrap", "align_items": "center"}), figure]
        self._panels = {name: widgets.HTML() for name in ("numbers", "words", "story")}
        self.widget = widgets.VBox([*rows, *self._panels.values(), widgets.HTML(panels.fit(), layout=panels.UNSEEN)])
        self._write()

    def _buttons(self, widgets: Any) -> list[Any]:
        def button(text: str, tip: str, action: Any) -> Any:
            made = widgets.Button(description=text, tooltip=tip, layout={"width": "auto"})
            made.on_click(lambda _: action())
            return made

        return [
            button("◀ earlier", "move the window half its length back", lambda: self._shift(-0.5, 1)),
            button("later ▶", "move the window half its length on", lambda: self._shift(0.5, 1)),
            button("closer +", "zoom in to half the window", lambda: self._shift(0, 0.5)),
            button("wider −", "zoom out to twice the window", lambda: self._shift(0, 2)),
            button("all", "show the whole timeline", lambda: self._shift(0, 0)),
            button("◀ span before", "tell about the span before, in the same lane", lambda: self._next(-1)),
            button("next span ▶", "tell about the next span of the same lane", lambda: self._next(1)),
        ]

    def _shift(self, by: float, factor: float) -> None:
        begin, end = self.timeline.begin, self.timeline.begin + self.timeline.duration
        length = self.window[1] - self.window[0]
        if not factor or length * factor >= end - begin:
            self.show(begin, end)
            return
        middle = (self.window[0] + self.window[1]) / 2 + by * length
        half = max(SHORTEST, length * factor) / 2
        middle = min(max(middle, begin + half), end - half)
        self.show(round(middle - half), round(middle + half))

    def _next(self, step: int) -> None:
        """Go to the neighbour in the same lane; at first, to the first piece of device work in the window."""
        if self.picked < 0:
            device = [number for number, lane in enumerate(self.timeline.lanes) if lane.group == "device"]
            mine = np.flatnonzero(np.isin(self.timeline.lane, device) & (self.timeline.start >= self.window[0]))
            self.pick(int(mine[0]) if len(mine) else 0)
            return
        mine = np.flatnonzero(self.timeline.lane == self.timeline.lane[self.picked])
        place = int(np.searchsorted(mine, self.picked)) + step
        self.pick(int(mine[min(max(place, 0), len(mine) - 1)]))

    def _drag_changed(self, change: dict[str, Any]) -> None:
        self._live.widget.update_layout(dragmode="pan" if change["new"] == "pan" else "zoom")

    def _zoomed(self, _: Any, span: Any) -> None:
        """The browser has zoomed or moved. To select is to zoom, read the window, and go back.

        plotly's own selection is not used: it makes all outside of it pale, and the browser keeps one event at a time
        for the kernel, so that the mouse, which goes on moving, can replace it.
        """
        if self._busy or span is None:
            return
        begin = self.timeline.begin
        start, end = (begin + round(float(edge) * self._unit) for edge in span)
        if end <= start or (start, end) == self.window:
            return
        if self._drag.value != "select":
            self.show(start, end)
            return
        self._busy = True
        self._live.widget.plotly_relayout({"xaxis.range": self._layout["xaxis"]["range"]})
        self.select(start, end)

    def _freed(self, _: Any, free: Any) -> None:
        """A double click asks for all there is; the browser knows only the bars of the window."""
        if free and not self._busy:
            self._shift(0, 0)

    def _clicked(self, trace: Any, points: Any, _: Any) -> None:
        if points.point_inds:
            self.pick(self.span_of(points.trace_index, points.point_inds[0]))

    def span_of(self, trace: int, point: int) -> int:
        """Return the span behind a bar, given as trace and place in the trace; of a merged bar, one of its spans."""
        bars, placement = self._shown.bars, self._shown.placement
        mine = np.flatnonzero(self.timeline.kind[placement.span[bars.item]] == list(Kind)[trace])
        return int(placement.span[bars.item[mine[point]]])

    def _write(self) -> None:
        if not self._panels:
            return
        self._panels["numbers"].value = panels.numbers(summarize(self._cut(self.selected)))
        self._panels["words"].value = panels.paragraph(self.finding(), "In words:", live=True)
        rows = [list(row) for row in self.story()]
        head = "<b style='font-size:14px'>The span</b>"
        empty = "Click on a bar, or use “next span”, to learn about it."
        self._panels["story"].value = head + panels.table(["", ""], rows, empty)


def _moment(ns: int) -> str:
    """Return a time in words; the beginning needs no unit."""
    return words.duration(ns) if ns else "0"
