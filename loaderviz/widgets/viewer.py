"""The viewer: zoom and pan in a timeline of any length, click on a span for its story, a window for its numbers.

    viewer(timeline)

The view itself needs no kernel. What Python adds: the numbers of the window that is shown, and all that is known about
the span that is selected; and a timeline too long to be sent whole comes in parts.
"""

from __future__ import annotations

from typing import Any

from loaderviz import words
from loaderviz.metrics import check_timeline, describe, summarize, window_of
from loaderviz.timeline import Timeline
from loaderviz.view import View
from loaderviz.widgets import cells
from loaderviz.widgets.cells import Interactive, live_here
from loaderviz.widgets.state import details

Window = tuple[int, int]


def viewer(timeline: Timeline, *, color: str = "batch", name: str | None = None) -> Viewer:
    """Return the viewer of a timeline; displaying it in a notebook shows it.

    `color` is "batch" or "kind", as in `timeline.view`. A cell that runs again closes its former viewer; `name` tells
    several in one cell apart. Raises `NotATimelineError`, and `ViewError` for another colour.
    """
    return Viewer(check_timeline(timeline, "viewer()"), color, name)


class Viewer(Interactive):
    """A timeline, the window whose numbers are shown, and the span that is told about (-1: none)."""

    def __init__(self, timeline: Timeline, color: str = "batch", name: str | None = None) -> None:
        super().__init__("viewer", name)
        self.timeline = timeline
        self.view = View({"": timeline}, color)
        self.window: Window = (timeline.begin, timeline.begin + timeline.duration)
        self.picked = -1
        if live_here():
            self._build()

    def show(self, start: int, end: int) -> None:
        """Zoom to a window [ns, as in `timeline.start`]. Raises `MetricsError` if its end lies before its start."""
        self.window = window_of(self.timeline, (start, end))
        if self.widget is not None:
            self._live.window = [float(edge - self.timeline.begin) for edge in self.window]
            self._write()

    def pick(self, span: int) -> None:
        """Tell about a span by its number; -1 for none."""
        self.picked = span if 0 <= span < len(self.timeline) else -1
        if self.widget is not None:
            self._live.selection = self._live.bar_of(self.picked)
            self._write()

    def text(self) -> str:
        """Return the window's numbers, and the story of the span that is picked, in words."""
        story = "; ".join(f"{label}: {value}" for label, value in self.story())
        return f"{self.finding()}. {story}" if story else self.finding()

    def finding(self) -> str:
        """Return the numbers of the window in a line of words."""
        start, end = (words.duration(edge - self.timeline.begin) for edge in self.window)
        return f"{start} to {end}: {describe(self.timeline, window=self.window)}"

    def story(self) -> list[tuple[str, str]]:
        """Return what is known about the span that is picked, as (label, value)."""
        return details(self.timeline, self.picked) if self.picked >= 0 else []

    def static_html(self) -> str:
        """Return the words and numbers, for a place without widgets."""
        return cells.paragraph(self.text()) + cells.numbers(summarize(self.timeline, self.window))

    def _build(self) -> None:
        import ipywidgets as widgets

        from loaderviz.widgets.live import LiveView

        self._live = LiveView(self.view)
        self._live.observe(lambda change: self._zoomed(change["new"]), "window")
        self._live.observe(lambda change: self._selected(change["new"]), "selection")
        self._panels = {name: widgets.HTML() for name in ("numbers", "words", "story")}
        self.widget = widgets.VBox([self._live, *self._panels.values()])
        self._write()

    def _zoomed(self, window: list[float]) -> None:
        start, end = (self.timeline.begin + round(edge) for edge in window)
        if start < end and (start, end) != self.window:
            self.window = (start, end)
            self._write()

    def _selected(self, bar: int) -> None:
        span = self._live.span_of(bar)
        if span != self.picked:
            self.picked = span
            self._write()

    def _write(self) -> None:
        self._panels["numbers"].value = cells.numbers(summarize(self.timeline, self.window))
        self._panels["words"].value = cells.paragraph(self.finding(), "In words:", live=True)
        rows: list[Any] = [list(row) for row in self.story()]
        head = "<b style='font-size:14px'>The span</b>"
        empty = "Click on a bar, or walk the bars by the arrow keys, to learn about it."
        self._panels["story"].value = head + cells.table(["", ""], rows, empty)
