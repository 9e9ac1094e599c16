"""The stepper: move through a timeline and see where everything is at each moment.

    with lv.record(on="a100") as recording:
        train(...)
    lv.step_through(recording.timeline)

A cursor goes from event to event: by the arrow keys on the slider, by the buttons, by Play (which can be stopped), or
by a click into the picture. Beside it: the source line of the loop, what each thread, stream and engine does, what
waits in the queues, and which batch is where.
"""

from __future__ import annotations

import linecache
from typing import Any

import numpy as np
import plotly.graph_objects as go

from loaderviz import draw, words
from loaderviz.activity import check_timeline
from loaderviz.draw import frame, theme
from loaderviz.draw.page import time_unit
from loaderviz.explore import panels
from loaderviz.explore.cells import Interactive, live_here
from loaderviz.explore.live import EDGE_PX, FIXED, survive_reload
from loaderviz.explore.state import State, events, name_of, state_at
from loaderviz.timeline import Kind, Timeline

AROUND = 6  # source lines shown before and after the current one
CURSOR = "cursor"
UNUSED_PX = 24  # of the top margin: there is no subtitle
BARS = 2_000  # the cursor moves over a picture that stays, so it can be rich, but not slow to appear


def step_through(timeline: Timeline, *, name: str | None = None) -> Stepper:
    """Return the stepper for a timeline; displaying it in a notebook shows it.

    Works on any timeline. Source lines are shown where the timeline knows them (what `lv.record` makes does) and the
    file, or the cell, can be read. A cell that runs again closes its former stepper; `name` tells several in one cell
    apart. Raises `NotATimelineError`.
    """
    return Stepper(check_timeline(timeline, "step_through()"), name)


class Stepper(Interactive):
    """A timeline and a cursor. `state` is the present one; `go_to(time)` and `step(count)` move it."""

    def __init__(self, timeline: Timeline, name: str | None = None) -> None:
        super().__init__("stepper", name)
        self.timeline, self.events = timeline, events(timeline)
        self._unit, self._unit_name = time_unit(timeline.duration)
        self.place = 0  # which event
        self.state = state_at(timeline, self.time)
        self._figure = self._draw()
        if live_here() and len(self.events):
            self._build()

    @property
    def time(self) -> int:
        """Where the cursor is [ns], as in `timeline.start`."""
        return int(self.events[self.place]) if len(self.events) else self.timeline.begin

    def go_to(self, time: int) -> None:
        """Move the cursor to the last event at or before `time` [ns]."""
        self._move(int(np.searchsorted(self.events, time, side="right")) - 1)

    def step(self, count: int = 1) -> None:
        """Move the cursor by some events, forward or, if negative, back."""
        self._move(self.place + count)

    @property
    def figure(self) -> go.Figure:
        """The picture with the cursor as it is now."""
        return go.Figure(self._figure)

    def text(self) -> str:
        """Return the present state in words."""
        return describe(self.timeline, self.state)

    def static_html(self) -> str:
        """Return the present state, for a place without widgets."""
        return panels.paragraph(self.text()) + self._code() + self._device() + self._batches()

    def _move(self, place: int) -> None:
        place = max(0, min(len(self.events) - 1, place))
        if self.widget is not None:
            self._slider.value = place  # its observer does the rest
        else:
            self._at(place)

    def _at(self, place: int) -> None:
        self.place = place
        self.state = state_at(self.timeline, self.time)
        x = (self.time - self.timeline.begin) / self._unit
        with self._figure.batch_update():
            self._figure.data[-1].x = [x, x]
            self._figure.layout.title.text = self._title()
        if self.widget is not None:
            survive_reload(self._figure)

    def _draw(self) -> go.Figure:
        figure = draw.figure(self.timeline, title=self._title(), budget=BARS)
        figure.layout.title.subtitle.text = ""
        names = [trace.name for trace in figure.data if trace.showlegend]
        room = EDGE_PX + frame.LEGEND_ROW * (frame.legend_rows([*names, CURSOR]) - frame.legend_rows(names))
        figure.layout.margin.t -= UNUSED_PX
        figure.layout.margin.b += room
        figure.layout.margin.update(FIXED)
        figure.layout.height += room - UNUSED_PX
        low, high = figure.layout.yaxis.range or (1, 0)
        x = (self.time - self.timeline.begin) / self._unit
        figure.add_scatter(
            x=[x, x], y=[low, high], mode="lines", name=CURSOR, hoverinfo="skip",
            line={"color": theme.BLACK, "width": 2, "dash": "dot"},
        )  # fmt: skip
        return figure

    def _title(self) -> str:
        now = words.duration(self.time - self.timeline.begin)
        count = f"event {self.place + 1:,} of {len(self.events):,}" if len(self.events) else "no events"
        return f"{now}, {count}"

    def _build(self) -> None:
        import ipywidgets as widgets

        from loaderviz.explore.page_figure import PageFigure

        self._figure = PageFigure(self._figure)
        last = len(self.events) - 1
        self._slider = widgets.IntSlider(
            0, 0, last, description="event", readout=False, layout={"width": "min(60%, 700px)"},
            style={"description_width": "50px"},
        )  # fmt: skip
        step = max(1, len(self.events) // 400)
        self._play = widgets.Play(value=0, min=0, max=last, step=step, interval=250, show_repeat=False)
        widgets.link((self._play, "value"), (self._slider, "value"))  # in Python: a jslink would outlive its widgets
        back, forward = (
            widgets.Button(description=text, tooltip=tip, layout={"width": "auto"})
            for text, tip in (("◀ event before", "one event back"), ("next event ▶", "one event on"))
        )
        back.on_click(lambda _: self.step(-1))
        forward.on_click(lambda _: self.step(1))
        self._panels = {name: widgets.HTML() for name in ("words", "code", "device", "batches")}
        self._slider.observe(lambda change: self._to(change["new"]), names="value")
        for trace in self._figure.data[:-1]:
            trace.on_click(self._clicked)
        parts = [widgets.Label("play, stop:"), self._play, back, forward, self._slider]
        row = widgets.HBox(parts, layout={"flex_flow": "row wrap", "align_items": "center"})
        columns = widgets.HBox(
            [self._column("code", 380), self._column("device", 380), self._column("batches", 210)],
            layout={"flex_flow": "row wrap", "grid_gap": "20px"},
        )
        fit = widgets.HTML(panels.fit(), layout=panels.UNSEEN)
        self.widget = widgets.VBox([row, self._figure, self._panels["words"], columns, fit])
        self._write()

    def _column(self, name: str, width: int) -> Any:
        self._panels[name].layout = {"flex": f"1 1 {width}px", "min_width": "0", "overflow": "auto"}
        return self._panels[name]

    def _to(self, place: int) -> None:
        self._at(place)
        self._write()

    def _clicked(self, trace: go.Bar, points: Any, _: Any) -> None:
        if points.xs and points.point_inds:
            base = trace.base[points.point_inds[0]]
            self.go_to(self.timeline.begin + round(float(base) * self._unit))

    def _write(self) -> None:
        self._panels["words"].value = panels.paragraph(self.text(), "Now:", live=True)
        self._panels["code"].value = self._code()
        self._panels["device"].value = self._device()
        self._panels["batches"].value = self._batches()

    def _code(self) -> str:
        title, lines, number = source_lines(self.state.source)
        body = panels.listing(lines, number) if lines else ""
        return f"<b style='font-size:14px'>The loop is at</b>{panels.paragraph(title)}{body}"

    def _device(self) -> str:
        rows = [[thread, doing, ""] for thread, doing in self._threads()]
        for stream in self.state.streams:
            doing = _work(self.timeline, stream.running) if stream.running >= 0 else "idle"
            queue = [f"{_work(self.timeline, each.span)}: {each.why}" for each in stream.queue[:1]]
            more = [f"{len(stream.queue):,} in its queue"] if stream.queue else []
            rows.append([self.timeline.lanes[stream.lane].name, _short(doing), "; first: ".join([*more, *queue])])
        for engine, spans in self.state.engines.items():
            rows.append([engine, "; ".join(name_of(self.timeline, span) for span in spans) or "idle", ""])
        table = panels.table(["who", "does", "waiting"], rows)
        return f"<b style='font-size:14px'>Threads, streams, engines</b>{table}"

    def _threads(self) -> list[tuple[str, str]]:
        rows = []
        for thread in self.state.threads:
            doing = [span for span in thread.inside if self.timeline.kind[span] != Kind.RANGE]
            rows.append((self.timeline.lanes[thread.lane].name, _host_words(self.timeline, doing)))
        return rows

    def _batches(self) -> str:
        rows = [[str(place.batch), place.place] for place in self.state.batches.values()]
        empty = "no batch is on its way" if (self.timeline.batch >= 0).any() else "this timeline knows no batches"
        return f"<b style='font-size:14px'>Batches on their way</b>{panels.table(['batch', 'where'], rows, empty)}"


def describe(timeline: Timeline, state: State) -> str:
    """Return a state in one line of words: the host, each stream, the batches."""
    parts = [words.duration(state.time - timeline.begin)]
    for thread in state.threads:
        doing = [span for span in thread.inside if timeline.kind[span] != Kind.RANGE]
        if doing and timeline.lanes[thread.lane].role in ("main", "thread"):
            parts.append(f"{timeline.lanes[thread.lane].name}: {_host_words(timeline, doing)}")
    for stream in state.streams:
        doing_now = timeline.row(stream.running).name if stream.running >= 0 else "idle"
        waiting = f" ({len(stream.queue)} waiting)" if stream.queue else ""
        parts.append(f"{timeline.lanes[stream.lane].name}: {_short(doing_now)}{waiting}")
    if state.marks:
        parts.append(f"hazards so far: {', '.join(sorted({timeline.marks[mark].kind for mark in state.marks}))}")
    return "; ".join(parts)


def source_lines(source: str) -> tuple[str, list[tuple[int, str]], int]:
    """Return (a title, the numbered lines around, the current number) for "file:line".

    The lines are empty, and the title says why, where the timeline has no source or the file cannot be read.
    """
    file, _, line = source.rpartition(":")
    if not file or not line.isdigit():
        return "This timeline does not say which source line was running.", [], 0
    number = int(line)
    text = linecache.getlines(file)
    if not text:
        return f"{source} (its text cannot be read here)", [], number
    first = max(1, number - AROUND)
    lines = [(first + place, line) for place, line in enumerate(text[first - 1 : number + AROUND])]
    name = "the cell" if "ipykernel_" in file else file.replace("\\", "/").rpartition("/")[2]
    name = "the explorer's code" if name.startswith("<explorer ") else name
    return f"{name}, line {number}", lines, number


def _host_words(timeline: Timeline, doing: list[int]) -> str:
    """Say what a host thread does, from its running spans: the call, and what blocks it."""
    if not doing:
        return "nothing that is recorded"
    row = timeline.row(doing[-1])
    if row.kind is Kind.WAIT:
        call = [timeline.row(span).name for span in doing if timeline.kind[span] == Kind.API]
        return f"blocked: {row.cause.words if row.cause else row.name}" + (f", in {call[-1]}" if call else "")
    return row.name


def _work(timeline: Timeline, span: int) -> str:
    row = timeline.row(span)
    return row.name + (f", batch {row.batch}" if row.batch >= 0 else "")


def _short(text: str, length: int = 60) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
