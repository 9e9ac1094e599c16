"""Which lanes a timeline has in the picture, in the reader's words, and which span is in which track of them.

Lanes go from host to device, in the order in which a batch travels. A lane has one or more tracks; spans of one track
never overlap. On a host thread batches, operators, calls and waits nest in time, so each sort is a lane of its own, and
operators within operators go one track down. A copy stands in its stream and once more in its engine's lane, which
shows the copies of all streams. Below the streams of each device stands what that device is doing.
"""

from __future__ import annotations

import re
from bisect import bisect
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderviz.batches import BATCH_RANGE, STEP_RANGE
from loaderviz.intervals import covered_within, take_free, union
from loaderviz.timeline import DEVICE_KINDS, KERNELS, LOADING, Kind, Lane, Timeline

Indices = npt.NDArray[np.int64]

_ROLES = ("worker", "pin", "main", "thread")  # the way of a batch through the host
_SORTS = (  # the lanes of a host thread, from the outside in
    ("ranges", (Kind.RANGE,)),
    ("operators", (Kind.OPERATOR,)),
    ("CUDA calls", (Kind.API, Kind.FETCH, Kind.PIN)),
    ("waits", (Kind.WAIT,)),
    ("other", DEVICE_KINDS),  # not expected on the host, but never lost
)
_SHORT = {"CUDA calls": "calls", "loading and CUDA calls": "load", "operators": "ops"}
_ENGINES = (
    ("copy engine to GPU", "copy in", "H2D copy engine: the copies to the GPU, of all streams", Kind.COPY_H2D),
    ("copy engine from GPU", "copy out", "D2H copy engine: the copies from the GPU, of all streams", Kind.COPY_D2H),
)
DEPTH = 4  # tracks of nested spans; deeper ones are left out and counted
_LONG, _COVERED = 0.05, 0.05  # shares: of the timeline, a long operator; of it, what other bars may cover


@dataclass(frozen=True)
class Row:
    """A lane of the picture: `tracks` are span numbers in order of start. A "strip" has one of none: it has states.

    `of` is the lane of the timeline (-1: of several), `mirror` says that its spans stand in another row, too.
    """

    name: str
    short: str
    title: str
    kind: str  # "host", "engine", "stream" or "strip"
    device: int
    tracks: tuple[Indices, ...] = ()
    of: int = -1
    role: str = ""
    mirror: bool = False


def arrange(timeline: Timeline, operators: bool = False) -> tuple[list[Row], int]:
    """Return the rows of a timeline, and how many spans are nested too deeply to be in one.

    Operators are drawn on demand, and where the lane would be empty for long. The rows of one device, host lanes of its
    rank before them, stand together.
    """
    order = sorted(range(len(timeline.lanes)), key=lambda number: _rank(timeline.lanes[number], number))
    streams = [number for number in order if timeline.lanes[number].group == "device"]
    devices = sorted({timeline.lanes[number].device for number in streams})
    rows = [row for number in order if number not in streams for row in _host_rows(timeline, number, operators)]
    for device in devices:
        mine = [number for number in streams if timeline.lanes[number].device == device]
        rows += _device_rows(timeline, device, mine)
    rows.sort(key=lambda row: max(1, bisect(devices, row.device)))
    missing = np.ones(len(timeline), bool) if operators else ~timeline.where(Kind.OPERATOR)
    for row in rows:
        for track in row.tracks:
            missing[track] = False
    return rows, int(missing.sum())


def depths(start: npt.NDArray[np.integer[Any]], end: npt.NDArray[np.integer[Any]]) -> Indices:
    """Return a track for each span, shape `start.shape`, so that none overlap: spans that nest get their depth."""
    result = np.zeros(len(start), np.int64)
    full = np.flatnonzero(end > start)
    order = full[np.lexsort((-end[full], start[full]))]
    first, last = start[order], end[order]
    ends = np.sort(last)
    depth = np.arange(len(order)) - np.searchsorted(ends, first, side="right")  # spans still open where it starts
    by_track = np.lexsort((first, depth))
    same = depth[by_track][1:] == depth[by_track][:-1]
    if (same & (first[by_track][1:] < last[by_track][:-1])).any():  # not all of them nest
        free: list[float] = []
        depth = np.array([take_free(free, a, b) for a, b in zip(first.tolist(), last.tolist(), strict=True)], np.int64)
    result[order] = depth
    points = np.flatnonzero(end <= start)  # no length, no overlap: drawn inside what is open around them
    times = start[points]
    result[points] = np.searchsorted(first, times, side="left") - np.searchsorted(ends, times, side="right")
    return result


def _rank(lane: Lane, number: int) -> tuple[int, int, int]:
    role = _ROLES.index(lane.role) if lane.role in _ROLES else len(_ROLES)
    return (role if lane.group == "host" else 0, lane.number, number)


def _tracks(timeline: Timeline, spans: Indices) -> tuple[Indices, ...]:
    depth = depths(timeline.start[spans], timeline.end[spans])
    return tuple(spans[depth == level] for level in range(min(int(depth.max(initial=0)) + 1, DEPTH)))


def _host_rows(timeline: Timeline, number: int, operators: bool) -> list[Row]:
    lane = timeline.lanes[number]
    here = timeline.lane == number
    shown = here if operators else _without_operators(timeline, here)
    name, short = _thread(lane)
    about: dict[str, Any] = {"title": lane.name, "kind": "host", "device": lane.device, "of": number, "role": lane.role}
    spans = np.flatnonzero(shown)
    if lane.role in LOADING and not depths(timeline.start[spans], timeline.end[spans]).any():
        return [Row(name, short, tracks=(spans,), **about)] if len(spans) else []
    rows = []
    for sort, kinds in _SORTS:
        mine = np.flatnonzero(shown & timeline.where(*kinds))
        if len(mine):
            words = _sort_words(timeline, mine, sort)
            full = f"{name} waits" if words == "waits" else f"{name}: {words}"
            rows.append(Row(full, f"{short}: {_SHORT.get(words, words)}", tracks=_tracks(timeline, mine), **about))
    return rows


def _thread(lane: Lane) -> tuple[str, str]:
    """Return the name of a host thread as a reader knows it, and a short one."""
    name = re.sub(r"\bmain$", "main thread", lane.name) if lane.role == "main" else lane.name
    short = {"main": "main", "pin": "pin"}.get(lane.role, name.replace("worker ", "w").replace("thread ", "t"))
    return name, short


def _sort_words(timeline: Timeline, spans: Indices, sort: str) -> str:
    """Return what a lane of these spans holds: "ranges" that mark batches are "batches", to a reader."""
    if sort == "ranges":
        names = {timeline.names[name] for name in np.unique(timeline.name[spans]).tolist()}
        return "batches" if any(BATCH_RANGE.match(name) or STEP_RANGE.match(name) for name in names) else sort
    if sort == "CUDA calls":
        kinds = np.unique(timeline.kind[spans])
        loads = np.isin(kinds, (Kind.FETCH, Kind.PIN))
        return "loading" if loads.all() else "loading and CUDA calls" if loads.any() else sort
    return sort


def _without_operators(timeline: Timeline, here: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Leave a lane's operators out, but long ones during which the lane would be empty, as if the host did nothing."""
    shown: npt.NDArray[np.bool_] = here & ~timeline.where(Kind.OPERATOR)
    long = here & ~shown & (timeline.end - timeline.start >= _LONG * max(1, timeline.duration))
    found = np.flatnonzero(long)
    if len(found):
        others = union(timeline.start[shown], timeline.end[shown])
        start, end = timeline.start[found], timeline.end[found]
        alone = found[covered_within(others, start, end) <= _COVERED * (end - start)]
        shown[alone[depths(timeline.start[alone], timeline.end[alone]) == 0]] = True
    return shown


def _device_rows(timeline: Timeline, device: int, numbers: list[int]) -> list[Row]:
    """Return the copy engines, seen over all streams, the streams, and the strip of what the device does."""
    here = np.isin(timeline.lane, numbers)
    rows = []
    for name, short, title, kind in _ENGINES:
        copies = np.flatnonzero(here & timeline.where(kind))
        if len(copies):
            rows.append(Row(name, short, title, "engine", device, _tracks(timeline, copies), mirror=True))
    # the default stream (7 on CUDA, 0 on HIP), of two the one with more kernels
    found = [
        number
        for number in numbers
        if timeline.lanes[number].number in (0, 7)
        and re.fullmatch(r"(?:rank \d+ )?stream [07](?: \(default\))?", timeline.lanes[number].name)
    ]
    kernels = timeline.lane[timeline.where(*KERNELS)]
    default = max(found, key=lambda number: int((kernels == number).sum()), default=-1)
    for number in numbers:
        spans = np.flatnonzero(timeline.lane == number)
        if not len(spans):
            continue
        lane = timeline.lanes[number]
        name, short = lane.name, lane.name.replace("stream ", "s")
        if lane.role == "stream" and default >= 0:
            word = "default stream" if number == default else r"side \g<0>"
            name, short = re.sub(r"stream .*", word, name), "default" if number == default else short
        rows.append(Row(name, short, lane.name, "stream", device, _tracks(timeline, spans), number, lane.role))
    title = "what the GPU is doing, over all streams"
    return [*rows, Row("what the GPU does", "GPU", title, "strip", device, (np.empty(0, np.int64),))]
