"""What a timeline knows of one moment, which the stepper shows.

    state_at(timeline, 1_500_000).batches[7]    # ns; "on the GPU, waits for its kernels"

A span is running from its start on, and no longer at its end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loaderviz.metrics import Mask, check_timeline, loop_lanes
from loaderviz.timeline import COPIES, KERNELS, ArrowKind, Ints, Kind, Timeline

_ENGINES = {"compute": KERNELS, "H2D engine": (Kind.COPY_H2D,), "D2H engine": (Kind.COPY_D2H,)}
_DONE = "done"
_STAGES = (  # the way of a batch: (kinds, while it is there, when it is over and the next stage has not begun)
    ((Kind.FETCH,), "being fetched", "fetched, waits in host memory"),
    ((Kind.PIN,), "being pinned", "in pinned memory, waits for its copy"),
    ((Kind.COPY_H2D,), "being copied to the GPU", "on the GPU, waits for its kernels"),
    (KERNELS, "being computed", _DONE),
)


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
    lanes: dict[str, list[int]] = {"host": [], "device": []}
    for number, lane in enumerate(timeline.lanes):
        lanes[lane.group].append(number)
    work = running & ~timeline.where(Kind.RANGE)
    streams = {lane: np.flatnonzero(work & (timeline.lane == lane)).tolist() for lane in lanes["device"]}
    now = {lane: spans[0] if spans else -1 for lane, spans in streams.items()}
    return State(
        time=time,
        source=_source(timeline, time, running),
        threads={lane: _inside(timeline, running, lane) for lane in lanes["host"]},
        streams=now,
        queues=_queues(timeline, time, now),
        engines={name: np.flatnonzero(running & timeline.where(*kinds)).tolist() for name, kinds in _ENGINES.items()
                 if name == "compute" or timeline.where(*kinds).any()},
        batches=_batches(timeline, time),
        marks=[number for number, mark in enumerate(timeline.marks) if mark.time <= time],
    )  # fmt: skip


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
        lane: [(span, _why(timeline, time, span, running >= 0, place))
               for place, span in enumerate(queued[timeline.lane[queued] == lane].tolist())]
        for lane, running in now.items()
    }  # fmt: skip


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
