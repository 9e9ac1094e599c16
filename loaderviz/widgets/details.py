"""Details: all that a timeline knows about one span. Its launch, what it waited for, what it launched. Pure functions.

for label, value in details(timeline, index):
    print(label, value)          # "launched by  cudaMemcpyAsync (batch 3, main), 12 µs before it began"
"""

from __future__ import annotations

import numpy as np

from loaderviz import words
from loaderviz.metrics import hidden_shares
from loaderviz.timeline import COPIES, DEVICE_KINDS, KERNELS, ArrowKind, Kind, Timeline
from loaderviz.widgets.state import name_of, waited_for

Rows = list[tuple[str, str]]


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
        speed = f", {row.nbytes / row.duration:.3g} GB/s" if row.duration and row.nbytes else ""  # bytes per ns
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
