"""What a timeline knows of one moment, which the stepper shows, and of one span, which the viewer tells.

    state_at(timeline, 1_500_000).batches[7].place    # ns; "copied to the GPU, waits for its kernels"
    details(timeline, index)                          # ("launched by", "cudaMemcpyAsync (batch 3, main), …"), …

A span is running from its start on, and no longer at its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from loaderviz import words
from loaderviz.metrics import check_timeline, hidden_shares, loop_lanes
from loaderviz.timeline import COPIES, DEVICE_KINDS, KERNELS, ArrowKind, Kind, Timeline

Indices = npt.NDArray[np.int64]
Rows = list[tuple[str, str]]


@dataclass(frozen=True)
class Waiting:
    """A command in a stream's queue: its span, and why it does not run yet."""

    span: int
    why: str


@dataclass(frozen=True)
class Thread:
    """A host thread: its lane, and the spans it is in, from the outside in. None running: it does nothing known."""

    lane: int
    inside: tuple[int, ...]

    @property
    def doing(self) -> int:
        """The innermost span; -1 if there is none."""
        return self.inside[-1] if self.inside else -1


@dataclass(frozen=True)
class Stream:
    """A stream: its lane, the span that runs (-1: none), and what waits in its queue, in order."""

    lane: int
    running: int
    queue: tuple[Waiting, ...]


@dataclass(frozen=True)
class BatchPlace:
    """Where a batch is, in words, and the span that it is in (-1: it waits, or is done)."""

    batch: int
    place: str
    span: int = -1


@dataclass(frozen=True)
class State:
    """The moment `time` [ns]. `source` is "file:line" of the training loop, "" if not known.

    `engines` maps "compute", "H2D engine" and "D2H engine" to the spans that they run; `batches` has each batch that
    has begun and is not done, by number; `marks` are the hazards up to now, as positions in `timeline.marks`.
    """

    time: int
    source: str
    threads: tuple[Thread, ...]
    streams: tuple[Stream, ...]
    engines: dict[str, tuple[int, ...]]
    batches: dict[int, BatchPlace] = field(default_factory=dict)
    marks: tuple[int, ...] = ()


def state_at(timeline: Timeline, time: int) -> State:
    """Return what is going on at `time` [ns]. Raises `NotATimelineError` for anything but a Timeline."""
    check_timeline(timeline, "state_at()")
    running = (timeline.start <= time) & (timeline.end > time)
    host = [number for number, lane in enumerate(timeline.lanes) if lane.group == "host"]
    threads = tuple(Thread(lane, _inside(timeline, running, lane)) for lane in host)
    return State(
        time, _source(timeline, time, running), threads, tuple(_streams(timeline, time, running)),
        _engines(timeline, running), _batches(timeline, time),
        tuple(number for number, mark in enumerate(timeline.marks) if mark.time <= time),
    )  # fmt: skip


def events(timeline: Timeline) -> Indices:
    """Return the moments [ns], each once, in order, at which something but operators and ranges begins or ends."""
    counted = ~timeline.where(Kind.OPERATOR, Kind.RANGE)
    if not counted.any():
        counted[:] = True
    return np.unique(np.r_[timeline.start[counted], timeline.end[counted]])


def _inside(timeline: Timeline, running: npt.NDArray[np.bool_], lane: int) -> tuple[int, ...]:
    """Return the running spans of a host lane, from the outside in: by start, the longer first."""
    mine = np.flatnonzero(running & (timeline.lane == lane))
    order = np.lexsort((timeline.kind[mine] == Kind.WAIT, -timeline.end[mine], timeline.start[mine]))
    return tuple(int(span) for span in mine[order])


def _source(timeline: Timeline, time: int, running: npt.NDArray[np.bool_]) -> str:
    """Return the line that the loop is at: that of the innermost span with one, else of the last one that began."""
    loop = np.isin(timeline.lane, loop_lanes(timeline)) & (timeline.source >= 0)
    for mask in (loop & running, loop & (timeline.start <= time)):
        found = np.flatnonzero(mask)
        if len(found):
            latest = found[np.lexsort((-timeline.end[found], timeline.start[found]))[-1]]
            return timeline.sources[int(timeline.source[latest])]
    return ""


def _streams(timeline: Timeline, time: int, running: npt.NDArray[np.bool_]) -> list[Stream]:
    """Return the streams; a command waits in its queue from the end of the call that launched it to its start."""
    launch = timeline.arrows["kind"] == ArrowKind.LAUNCH
    call, work = timeline.arrows["tail"][launch], timeline.arrows["head"][launch]
    queued = work[(timeline.end[call] <= time) & (timeline.start[work] > time)]
    states = []
    for number, lane in enumerate(timeline.lanes):
        if lane.group != "device":
            continue
        here = np.flatnonzero(running & (timeline.lane == number) & (timeline.kind != Kind.RANGE))
        now = int(here[0]) if len(here) else -1
        mine = queued[timeline.lane[queued] == number]
        mine = mine[np.argsort(timeline.start[mine], kind="stable")]
        queue = tuple(
            Waiting(int(span), _why(timeline, time, int(span), now, place)) for place, span in enumerate(mine)
        )
        states.append(Stream(number, now, queue))
    return states


def _why(timeline: Timeline, time: int, span: int, running: int, place: int) -> str:
    """Say why the command at this place of a queue does not run yet."""
    unmet = [tail for tail in waited_for(timeline, span) if int(timeline.end[tail]) > time]
    if running >= 0 or place:
        reason = "behind what runs in its stream" if not place else f"{place} before it in its stream"
    elif unmet:
        reason = ""
    elif int(timeline.kind[span]) in COPIES:
        reason = "its copy engine is busy, or it is on its way"
    else:
        reason = "the compute engine is busy, or it is on its way"
    waits = f"waits for an event: {name_of(timeline, unmet[0])}" if unmet else ""
    return "; ".join(part for part in (reason, waits) if part)


def waited_for(timeline: Timeline, span: int) -> list[int]:
    """Return the spans that an event made this one wait for."""
    mine = (timeline.arrows["head"] == span) & (timeline.arrows["kind"] == ArrowKind.WAIT)
    return [int(tail) for tail in timeline.arrows["tail"][mine]]


def name_of(timeline: Timeline, span: int) -> str:
    """Return the name of a span with its batch and lane, such as "forward (batch 3, stream 7)"."""
    row = timeline.row(span)
    batch = f"batch {row.batch}, " if row.batch >= 0 else ""
    return f"{row.name} ({batch}{row.lane.name})"


def _engines(timeline: Timeline, running: npt.NDArray[np.bool_]) -> dict[str, tuple[int, ...]]:
    engines = {"compute": KERNELS, "H2D engine": (Kind.COPY_H2D,), "D2H engine": (Kind.COPY_D2H,)}
    return {
        name: tuple(int(span) for span in np.flatnonzero(running & timeline.where(*kinds)))
        for name, kinds in engines.items()
        if name == "compute" or timeline.where(*kinds).any()
    }


DONE = "done"
_STAGES = (  # the way of a batch: (kinds, while it is there, when it is over and the next stage has not begun)
    ((Kind.FETCH,), "being fetched", "fetched, waits in host memory"),
    ((Kind.PIN,), "being pinned", "in pinned memory, waits for its copy"),
    ((Kind.COPY_H2D,), "being copied to the GPU", "on the GPU, waits for its kernels"),
    ((Kind.COMPUTE, Kind.COMMUNICATION), "being computed", DONE),
)


def _batches(timeline: Timeline, time: int) -> dict[int, BatchPlace]:
    """Say where each batch is that has begun and is not done. A later stage tells more than an earlier one."""
    places: dict[int, BatchPlace] = {}
    numbered = timeline.batch >= 0
    for stage, (kinds, during, after) in enumerate(_STAGES):
        spans = np.flatnonzero(numbered & timeline.where(*kinds))
        over = np.full(int(timeline.batch.max(initial=-1)) + 1, -1, np.int64)  # when the stage of each batch is
        np.maximum.at(over, timeline.batch[spans], timeline.end[spans])
        begun = spans[timeline.start[spans] <= time]
        latest = {int(timeline.batch[span]): int(span) for span in begun}
        for batch, span in latest.items():
            if over[batch] <= time:
                places[batch] = BatchPlace(batch, after)
                continue
            where = f"{during} by {timeline.lanes[int(timeline.lane[span])].name}" if not stage else during
            places[batch] = BatchPlace(batch, where, span if int(timeline.end[span]) > time else -1)
    return {batch: places[batch] for batch in sorted(places) if places[batch].place != DONE}


# One span: its launch, what it waited for, what it launched


def details(timeline: Timeline, index: int) -> Rows:
    """Return (label, value) pairs about span `index`, in the order to read them."""
    row, begin = timeline.row(index), timeline.begin
    rows: Rows = [
        ("what", row.name),
        ("where", row.lane.name + (f", batch {row.batch}" if row.batch >= 0 else "")),
        ("when", f"{words.duration(row.start - begin)} to {words.duration(row.end - begin)}"),
        ("how long", words.duration(row.duration)),
    ]
    if row.nbytes >= 0:
        speed = f", {words.size(row.nbytes / row.duration * 1e9)}/s" if row.duration and row.nbytes else ""
        rows.append(("size", words.size(row.nbytes) + speed))
    if row.pinned is not None:
        rows.append(("host memory", "pinned" if row.pinned else "pageable"))
    if row.kind in COPIES and row.duration:
        around = timeline.between(row.start, row.end)
        mine = np.flatnonzero((around.kind == row.kind) & (around.correlation == row.correlation))
        if len(mine):
            rows.append(("hidden", f"{words.share(float(hidden_shares(around)[mine[0]]))} of it under kernels"))
    if row.kind is Kind.WAIT:
        rows.append(("blocked by", row.cause.words if row.cause else "not known"))
    rows += _launch(timeline, index) + _before(timeline, index)
    return rows + ([("source", row.source)] if row.source else [])


def launch_of(timeline: Timeline, index: int) -> int:
    """Return the host call that launched a span; -1 if the timeline does not know."""
    mine = (timeline.arrows["head"] == index) & (timeline.arrows["kind"] == ArrowKind.LAUNCH)
    return int(timeline.arrows["tail"][mine][0]) if mine.any() else -1


def launched_by(timeline: Timeline, index: int) -> list[int]:
    """Return the work that a host call launched."""
    mine = (timeline.arrows["tail"] == index) & (timeline.arrows["kind"] == ArrowKind.LAUNCH)
    return [int(head) for head in timeline.arrows["head"][mine]]


def held_by(timeline: Timeline, index: int) -> tuple[int, str]:
    """Return what a piece of device work waited for last, and why: (span, reason); (-1, "") for nothing.

    Three things can hold it: an event, the work before it in its stream, and the work before it on its engine. The one
    that ended last is what it waited for, if that was after its call.
    """
    start = timeline.start[index]
    found: list[tuple[int, int, str]] = [
        (int(timeline.end[tail]), -tail, "an event") for tail in waited_for(timeline, index)
    ]
    works = timeline.where(*DEVICE_KINDS) & (timeline.end <= start) & (np.arange(len(timeline)) != index)
    stream = works & (timeline.lane == timeline.lane[index])
    kind = Kind(int(timeline.kind[index]))
    engine = works & timeline.where(*(KERNELS if kind in KERNELS else (kind,)))
    engine &= timeline.lane != timeline.lane[index]
    for mask, reason in ((stream, "the order of its stream"), (engine, "its engine was busy")):
        before = np.flatnonzero(mask)
        if len(before) and (kind in KERNELS or kind in COPIES or reason != "its engine was busy"):
            last = int(before[np.argmax(timeline.end[before])])
            found.append((int(timeline.end[last]), -last, reason))
    if not found:
        return -1, ""
    end, span, reason = max(found)
    call = launch_of(timeline, index)
    if call >= 0 and end <= timeline.start[call]:
        return -1, ""  # all that was over when it was launched
    return -span, reason


def _launch(timeline: Timeline, index: int) -> Rows:
    rows: Rows = []
    call = launch_of(timeline, index)
    if call >= 0:
        delay = words.duration(int(timeline.start[index] - timeline.start[call]))
        rows.append(("launched by", f"{name_of(timeline, call)}, which began {delay} before it"))
    work = launched_by(timeline, index)
    if work:
        delay = words.duration(int(timeline.start[work[0]] - timeline.end[index]))
        rows.append(("launches", f"{name_of(timeline, work[0])}, which begins {delay} after the call"))
    return rows


def _before(timeline: Timeline, index: int) -> Rows:
    if Kind(int(timeline.kind[index])) not in DEVICE_KINDS:
        return []
    span, reason = held_by(timeline, index)
    if span < 0:
        return [("waited for", "nothing on the GPU: it began when its call had reached it")]
    gap = words.duration(int(timeline.start[index] - timeline.end[span]))
    return [("waited for", f"{name_of(timeline, span)}, by {reason}; it began {gap} after that ended")]
