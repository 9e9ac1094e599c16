"""The stepper: move through a timeline and see where everything is at each moment.

    with lv.record(on="a100") as recording:
        train(...)
    lv.step_through(recording.timeline)

A cursor goes through time: from event to event by the arrow keys on the slider or the buttons, at a constant slowness
by the view's own Play, or to the bar that is clicked. Beside it: the source line of the loop, what each thread, stream
and engine does, what waits in the queues, and which batch is where.
"""

from __future__ import annotations

import linecache
from typing import Any

import numpy as np

from loaderviz import words
from loaderviz.metrics import check_timeline
from loaderviz.timeline import Kind, Timeline
from loaderviz.widgets import cells
from loaderviz.widgets.cells import Interactive, live_here
from loaderviz.widgets.state import State, events, name_of, state_at

AROUND = 6  # source lines shown before and after the current one


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
        self.time = int(self.events[0]) if len(self.events) else timeline.begin  # ns, as in `timeline.start`
        self.state = state_at(timeline, self.time)
        self.view = timeline.view()
        if live_here() and len(self.events):
            self._build()

    @property
    def place(self) -> int:
        """Which event the cursor is at or behind."""
        return max(0, int(np.searchsorted(self.events, self.time, side="right")) - 1)

    def go_to(self, time: int) -> None:
        """Move the cursor to `time` [ns]."""
        self.time = min(max(time, self.timeline.begin), self.timeline.begin + self.timeline.duration)
        self.state = state_at(self.timeline, self.time)
        if self.widget is not None:
            self._live.time = float(self.time - self.timeline.begin)
            self._slider.value = self.place
            self._write()

    def step(self, count: int = 1) -> None:
        """Move the cursor by some events, forward or, if negative, back."""
        if len(self.events):
            self.go_to(int(self.events[min(max(self.place + count, 0), len(self.events) - 1)]))

    def text(self) -> str:
        """Return the present state in words."""
        return describe(self.timeline, self.state)

    def static_html(self) -> str:
        """Return the present state, for a place without widgets."""
        return cells.paragraph(self.text()) + self._code() + self._device() + self._batches()

    def _build(self) -> None:
        import ipywidgets as widgets

        from loaderviz.widgets.live import LiveView

        self._live = LiveView(self.view)
        self._live.time = float(self.time - self.timeline.begin)
        self._slider = widgets.IntSlider(
            0, 0, len(self.events) - 1, description="event", layout={"width": "min(60%, 700px)"},
            style={"description_width": "50px"},
        )  # fmt: skip
        back, forward = (
            widgets.Button(description=text, tooltip=tip, layout={"width": "auto"})
            for text, tip in (("◀ event before", "one event back"), ("next event ▶", "one event on"))
        )
        back.on_click(lambda _: self.step(-1))
        forward.on_click(lambda _: self.step(1))
        self._panels = {name: widgets.HTML() for name in ("words", "code", "device", "batches")}
        self._slider.observe(lambda change: self._slid(change["new"]), names="value")
        self._live.observe(lambda change: self._played(change["new"]), names="time")
        self._live.observe(lambda change: self._selected(change["new"]), names="selection")
        row = widgets.HBox([back, forward, self._slider], layout={"flex_flow": "row wrap", "align_items": "center"})
        columns = widgets.HBox(
            [self._column("code", 380), self._column("device", 380), self._column("batches", 210)],
            layout={"flex_flow": "row wrap", "grid_gap": "20px"},
        )
        self.widget = widgets.VBox([row, self._live, self._panels["words"], columns])
        self._write()

    def _slid(self, place: int) -> None:
        if place != self.place:
            self.go_to(int(self.events[place]))

    def _played(self, time: float) -> None:
        """The view's own cursor has moved: it plays, or was dragged."""
        moved = self.timeline.begin + round(time)
        if time >= 0 and moved != self.time:
            self.go_to(moved)

    def _selected(self, bar: int) -> None:
        """A click on a bar moves the cursor to its start."""
        if bar >= 0:
            part = self.view.parts[0]
            self.go_to(self.timeline.begin + int(part.bars.start[bar]))

    def _column(self, name: str, width: int) -> Any:
        self._panels[name].layout = {"flex": f"1 1 {width}px", "min_width": "0", "overflow": "auto"}
        return self._panels[name]

    def _write(self) -> None:
        self._panels["words"].value = cells.paragraph(self.text(), "Now:", live=True)
        self._panels["code"].value = self._code()
        self._panels["device"].value = self._device()
        self._panels["batches"].value = self._batches()

    def _code(self) -> str:
        title, lines, number = source_lines(self.state.source)
        body = cells.listing(lines, number) if lines else ""
        return f"<b style='font-size:14px'>The loop is at</b>{cells.paragraph(title)}{body}"

    def _device(self) -> str:
        rows = [[thread, doing, ""] for thread, doing in self._threads()]
        for stream in self.state.streams:
            doing = _work(self.timeline, stream.running) if stream.running >= 0 else "idle"
            queue = [f"{_work(self.timeline, each.span)}: {each.why}" for each in stream.queue[:1]]
            more = [f"{len(stream.queue):,} in its queue"] if stream.queue else []
            rows.append([self.timeline.lanes[stream.lane].name, _short(doing), "; first: ".join([*more, *queue])])
        for engine, spans in self.state.engines.items():
            rows.append([engine, "; ".join(name_of(self.timeline, span) for span in spans) or "idle", ""])
        table = cells.table(["who", "does", "waiting"], rows)
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
        return f"<b style='font-size:14px'>Batches on their way</b>{cells.table(['batch', 'where'], rows, empty)}"


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
