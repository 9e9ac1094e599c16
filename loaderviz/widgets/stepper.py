"""The stepper: move through a timeline and see where everything is at each moment.

    with lv.record(on="a100") as recording:
        train(...)
    lv.step_through(recording.timeline)

A cursor goes through time: from event to event by the arrow keys on the slider or the buttons, at a constant slowness
by the view's own Play, or to the bar that is clicked. Beside it: the source line of the loop, what each thread, stream
and engine does, what waits in the queues, and which batch is where; `state_at` knows it. A span is running from its
start on, and no longer at its end.
"""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from typing import Any

import numpy as np

from loaderviz import words
from loaderviz.metrics import check_timeline, loop_lanes
from loaderviz.timeline import COPIES, KERNELS, ArrowKind, Ints, Kind, Mask, Timeline, gathered
from loaderviz.widgets import cells
from loaderviz.widgets.cells import Interactive

LONGEST = 60  # characters of what a lane does
AROUND = 5  # source lines shown before and after the current one
# Slider, picture and source are in one window: the view has few words, and at most so many px of lanes in sight.
_LOOKS = {"compact": True, "bare": True, "most": 270}
_ENGINES = {"compute": KERNELS, "H2D engine": (Kind.COPY_H2D,), "D2H engine": (Kind.COPY_D2H,)}
_DONE = "done"
_STAGES = (  # the way of a batch: (kinds, while it is there, when it is over and the next stage has not begun)
    ((Kind.FETCH,), "being fetched", "fetched, waits in host memory"),
    ((Kind.PIN,), "being pinned", "in pinned memory, waits for its copy"),
    ((Kind.COPY_H2D,), "being copied to the GPU", "on the GPU, waits for its kernels"),
    (KERNELS, "being computed", _DONE),
)


def step_through(timeline: Timeline, *, name: str | None = None) -> Stepper:
    """Return the stepper for a timeline; displaying it in a notebook shows it.

    It works on any timeline. It shows source lines where the timeline knows them, as one of `lv.record` does, and where
    the file or the cell can be read. A cell that runs again closes its former stepper. `name` tells several steppers in
    one cell apart. Raises `NotATimelineError` for anything but a Timeline.
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
        if len(self.events):
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

    def _html(self) -> dict[str, str]:
        """Return the words, the loop's source, a table of who does what, and one of the batches."""
        title, lines, number = source_lines(self.state.source)
        code = cells.listing(lines, number) if lines else ""
        threads, streams = self._workers()
        left = cells.table(["thread", "does"], threads)
        right = cells.table(["stream, engine", "does", "waiting"], streams)
        batches = [[str(batch), place] for batch, place in self.state.batches.items()]
        empty = "no batch is on its way" if (self.timeline.batch >= 0).any() else "this timeline knows no batches"
        return {
            "words": cells.paragraph(self.text(), "Now:", live=True),
            "code": cells.titled(f"The loop is at {title}" if number else title, code),
            "batches": cells.titled("Batches on their way", cells.table(["batch", "where"], batches, empty)),
            "device": "<div style='display:flex;flex-wrap:wrap;gap:0 20px'>"
            f"<div>{left}</div><div style='flex:1 1 320px'>{right}</div></div>",
        }

    def _workers(self) -> tuple[list[list[str]], list[list[str]]]:
        """Return what each thread does; and what each stream and engine does, and what waits for it."""
        timeline, state = self.timeline, self.state

        def called(span: int) -> str:
            row = timeline.row(span)
            return row.name + (f", batch {row.batch}" if row.batch >= 0 else "")

        threads = [[timeline.lanes[lane].name, _host_words(timeline, spans)] for lane, spans in state.threads.items()]
        rows = []
        for lane, running in state.streams.items():
            queue, doing = state.queues[lane], called(running) if running >= 0 else "idle"
            waiting = f"{len(queue):,} in its queue; first: {called(queue[0][0])}: {queue[0][1]}" if queue else ""
            rows.append([timeline.lanes[lane].name, _short(doing), waiting])
        for engine, spans in state.engines.items():
            rows.append([engine, "; ".join(name_of(timeline, span) for span in spans) or "idle", ""])
        return threads, rows

    def _assembled(self) -> Any:
        """Return the box: buttons and slider, the view with the source beside it, and below them words and tables."""
        import ipywidgets as widgets

        from loaderviz.widgets.controls import LiveView

        self._live = LiveView(self.view, **_LOOKS)
        self._slider = widgets.IntSlider(
            0,
            0,
            len(self.events) - 1,
            description="event",
            layout={"width": "min(60%, 700px)"},
            style={"description_width": "50px"},
        )
        back, forward = (
            widgets.Button(description=text, tooltip=tip, layout={"width": "auto"})
            for text, tip in (("◀ event before", "one event back"), ("next event ▶", "one event on"))
        )
        back.on_click(lambda _: self.step(-1))
        forward.on_click(lambda _: self.step(1))
        self._slider.observe(lambda change: self._slid(change["new"]), names="value")
        self._live.observe(lambda change: self._played(change["new"]), names="time")
        self._live.observe(lambda change: self._selected(change["new"]), names="selection")
        row = widgets.HBox([back, forward, self._slider], layout={"flex_flow": "row wrap", "align_items": "center"})
        words, code, batches, device = self._panels.values()
        self._live.layout = {"flex": "5 1 420px", "min_width": "0"}
        for panel in (batches, device):  # some workers and batches are in sight, many scroll
            panel.layout = {"max_height": "160px", "overflow": "auto"}
        side = widgets.VBox([code, batches], layout={"flex": "3 1 320px", "min_width": "0"})
        picture = widgets.HBox([self._live, side], layout={"flex_flow": "row wrap", "grid_gap": "0 16px"})
        return widgets.VBox([row, picture, words, device])

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
            self.go_to(self.timeline.begin + int(self.view.parts[0].bars.start[bar]))


def describe(timeline: Timeline, state: State) -> str:
    """Return a state in one line of words: the host, each stream, the batches."""
    parts = [words.duration(state.time - timeline.begin)]
    for number, spans in state.threads.items():
        lane = timeline.lanes[number]
        if lane.role in ("main", "thread") and (timeline.kind[spans] != Kind.RANGE).any():
            parts.append(f"{lane.name}: {_host_words(timeline, spans)}")
    for number, running in state.streams.items():
        doing, queue = timeline.row(running).name if running >= 0 else "idle", state.queues[number]
        parts.append(f"{timeline.lanes[number].name}: {_short(doing)}{f' ({len(queue)} waiting)' if queue else ''}")
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
        return f"{words.place(source)} (its text cannot be read here)", [], number
    first = max(1, number - AROUND)
    lines = list(enumerate(text[first - 1 : number + AROUND], first))
    name = "the cell" if "ipykernel_" in file else file.replace("\\", "/").rpartition("/")[2]
    name = "the explorer's code" if name.startswith("<explorer ") else name
    return f"{name}, line {number}", lines, number


def _host_words(timeline: Timeline, spans: Ints) -> str:
    """Say what a host thread does, from its running spans: the call, and what blocks it."""
    rows = [row for row in timeline.rows_at(spans) if row.kind is not Kind.RANGE]
    if not rows:
        return "nothing that is recorded"
    last = rows[-1]
    if last.kind is not Kind.WAIT:
        return last.name
    calls = [f", in {row.name}" for row in rows if row.kind is Kind.API]
    return f"blocked: {last.cause.words if last.cause else last.name}{''.join(calls[-1:])}"


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


# What is going on at a moment


@dataclass(frozen=True)
class State:
    """The moment `time` [ns]. `source` is "file:line" of the training loop, "" if not known.

    By lane: `threads` has the spans that a host thread is in, from the outside in; `streams` the span that a stream
    runs (-1: none); `queues` what waits in a stream, in order, as (span, why it does not run yet). `engines` maps
    "compute", "H2D engine" and "D2H engine" to the spans that they run, `batches` the number of each batch that has
    begun and is not done to where it is, in words. `marks` has the hazards up to now, as positions in `timeline.marks`.
    """

    time: int
    source: str
    threads: dict[int, Ints]
    streams: dict[int, int]
    queues: dict[int, list[tuple[int, str]]]
    engines: dict[str, list[int]]
    batches: dict[int, str]
    marks: list[int]


def state_at(timeline: Timeline, time: int) -> State:
    """Return what is going on at `time` [ns]. Raises `NotATimelineError` for anything but a Timeline."""
    check_timeline(timeline, "state_at()")
    running = (timeline.start <= time) & (timeline.end > time)
    lanes = gathered((lane.group, number) for number, lane in enumerate(timeline.lanes))
    work = running & ~timeline.where(Kind.RANGE)
    streams = {lane: np.flatnonzero(work & (timeline.lane == lane)).tolist() for lane in lanes.get("device", ())}
    now = {lane: spans[0] if spans else -1 for lane, spans in streams.items()}
    return State(
        time=time,
        source=_source(timeline, time, running),
        threads={lane: _inside(timeline, running, lane) for lane in lanes.get("host", ())},
        streams=now,
        queues=_queues(timeline, time, now),
        engines={
            name: np.flatnonzero(running & timeline.where(*kinds)).tolist()
            for name, kinds in _ENGINES.items()
            if name == "compute" or timeline.where(*kinds).any()
        },
        batches=_batches(timeline, time),
        marks=[number for number, mark in enumerate(timeline.marks) if mark.time <= time],
    )


def events(timeline: Timeline) -> Ints:
    """Return the moments [ns], each once, in order, at which something but operators and ranges begins or ends."""
    counted = ~timeline.where(Kind.OPERATOR, Kind.RANGE)
    if not counted.any():
        counted[:] = True
    return np.unique(np.r_[timeline.start[counted], timeline.end[counted]])


def name_of(timeline: Timeline, span: int) -> str:
    """Return the name of a span with its batch and lane, such as "forward (batch 3, stream 7)"."""
    row = timeline.row(span)
    batch = f"batch {row.batch}, " if row.batch >= 0 else ""
    return f"{row.name} ({batch}{row.lane.name})"


def _inside(timeline: Timeline, running: Mask, lane: int) -> Ints:
    """Return the running spans of a host lane, from the outside in: by start, the longer first."""
    mine = np.flatnonzero(running & (timeline.lane == lane))
    return mine[np.lexsort((timeline.kind[mine] == Kind.WAIT, -timeline.end[mine], timeline.start[mine]))]


def _source(timeline: Timeline, time: int, running: Mask) -> str:
    """Return the line that the loop is at: that of the innermost span with one, else of the last one that began."""
    loop = np.isin(timeline.lane, loop_lanes(timeline)) & (timeline.source >= 0)
    for mask in (loop & running, loop & (timeline.start <= time)):
        found = np.flatnonzero(mask)
        if len(found):
            latest = found[np.lexsort((-timeline.end[found], timeline.start[found]))[-1]]
            return timeline.sources[int(timeline.source[latest])]
    return ""


def _queues(timeline: Timeline, time: int, now: dict[int, int]) -> dict[int, list[tuple[int, str]]]:
    """Return what waits in each stream: a command does from the end of the call that launched it to its start."""
    launch = timeline.arrows["kind"] == ArrowKind.LAUNCH
    call, work = timeline.arrows["tail"][launch], timeline.arrows["head"][launch]
    queued = work[(timeline.end[call] <= time) & (timeline.start[work] > time)]
    queued = queued[np.argsort(timeline.start[queued], kind="stable")]
    return {
        lane: [
            (span, _why(timeline, time, span, running >= 0, place))
            for place, span in enumerate(queued[timeline.lane[queued] == lane].tolist())
        ]
        for lane, running in now.items()
    }


def _why(timeline: Timeline, time: int, span: int, busy: bool, place: int) -> str:
    """Say why the command at this place of the queue of a stream, which may be busy, does not run yet."""
    mine = (timeline.arrows["head"] == span) & (timeline.arrows["kind"] == ArrowKind.WAIT)
    unmet = [tail for tail in timeline.arrows["tail"][mine].tolist() if timeline.end[tail] > time]
    reasons = []
    if place:
        reasons.append(f"{place} before it in its stream")
    elif busy:
        reasons.append("behind what runs in its stream")
    elif not unmet:
        engine = "its copy engine" if int(timeline.kind[span]) in COPIES else "the compute engine"
        reasons.append(f"{engine} is busy, or it is on its way")
    return "; ".join([*reasons, *(f"waits for an event: {name_of(timeline, tail)}" for tail in unmet[:1])])


def _batches(timeline: Timeline, time: int) -> dict[int, str]:
    """Say where each batch is that has begun and is not done. A later stage tells more than an earlier one."""
    places: dict[int, str] = {}
    for kinds, during, after in _STAGES:
        spans = np.flatnonzero((timeline.batch >= 0) & timeline.where(*kinds))
        over = np.full(int(timeline.batch.max(initial=-1)) + 1, -1, np.int64)  # when the stage of each batch is
        np.maximum.at(over, timeline.batch[spans], timeline.end[spans])
        begun = spans[timeline.start[spans] <= time]
        for batch, span in dict(zip(timeline.batch[begun].tolist(), begun.tolist(), strict=True)).items():
            by = f" by {timeline.lanes[timeline.lane[span]].name}" if kinds == (Kind.FETCH,) else ""
            places[batch] = after if over[batch] <= time else during + by
    return {batch: places[batch] for batch in sorted(places) if places[batch] != _DONE}
