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

from loaderviz import words
from loaderviz.batches import BATCH_RANGE, STEP_RANGE
from loaderviz.intervals import covered_within, tracks, union
from loaderviz.metrics import lateness
from loaderviz.timeline import DEVICE_KINDS, KERNELS, LOADING, Ints, Kind, Lane, Numbers, Timeline

_ROLES = ("worker", "pin", "main", "thread")  # the way of a batch through the host
_SORTS = (  # the lanes of a host thread, from the outside in
    ("ranges", (Kind.RANGE,)),
    ("operators", (Kind.OPERATOR,)),
    ("CUDA calls", (Kind.API, Kind.FETCH, Kind.PIN)),
    ("waits", (Kind.WAIT,)),
    ("other", DEVICE_KINDS),  # not expected on the host, but never lost
)
_SHORT = {"CUDA calls": "calls", "loads, calls": "load", "operators": "ops"}
_ENGINES = (
    ("copy engine to GPU", "copy in", "H2D copy engine: the copies to the GPU, of all streams", Kind.COPY_H2D),
    ("copy engine from GPU", "copy out", "D2H copy engine: the copies from the GPU, of all streams", Kind.COPY_D2H),
)
LANES = 250  # threads that are drawn, and streams; of more a line says how many there are
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
    tracks: tuple[Numbers, ...] = ()
    of: int = -1
    role: str = ""
    mirror: bool = False


def arrange(timeline: Timeline, operators: bool = False) -> tuple[list[Row], int]:
    """Return the rows of a timeline, and how many spans are nested too deeply to be in one.

    Operators are drawn on demand, and where the lane would be empty for long. The rows of one device, host lanes of its
    rank before them, stand together, first those of ranks that the others wait for. Last is said how many threads and
    streams have no rows.
    """
    lanes, by_lane = timeline.lanes, timeline.by_lane()
    drawn = sorted((n for group in ("host", "device") for n in _busiest(timeline, by_lane, group)),
                   key=lambda number: _rank(lanes[number], number))  # fmt: skip
    long, rows, streams = _LONG * max(1, timeline.duration), list[Row](), dict[int, list[int]]()
    for number in drawn:
        if lanes[number].group == "device":
            streams.setdefault(lanes[number].device, []).append(number)
        else:
            rows += _host_rows(timeline, number, by_lane[number], operators, long)
    devices = sorted(streams)
    for device in devices:
        rows += _device_rows(timeline, device, {number: by_lane[number] for number in streams[device]})
    late = lateness(timeline).late if len(devices) > 1 else ()  # their rows come first
    place = {device: number for number, device in enumerate(sorted(devices, key=lambda device: device not in late))}
    rows.sort(key=lambda row: place[devices[max(1, bisect(devices, row.device)) - 1]] if devices else 0)
    missing = np.ones(len(timeline), bool) if operators else ~timeline.where(Kind.OPERATOR)
    left_out = [n for n in set(range(len(lanes))).difference(drawn) if len(by_lane[n])]
    for spans in (*(track for row in rows for track in row.tracks), *(by_lane[number] for number in left_out)):
        missing[spans] = False
    for group, what in (("host", "thread"), ("device", "stream")):
        if count := sum(lanes[number].group == group for number in left_out):
            rows.append(_more(count, what, max(devices, default=0) + 1))
    return rows, int(missing.sum())


def _busiest(timeline: Timeline, by_lane: list[Numbers], group: str) -> list[int]:
    """Return the lanes of a group that are drawn: those with spans; of many the loops', and the longest busy ones."""
    used = [n for n, lane in enumerate(timeline.lanes) if lane.group == group and len(by_lane[n])]
    busy = np.bincount(timeline.lane, timeline.end - timeline.start, len(timeline.lanes))
    return sorted(used, key=lambda number: (timeline.lanes[number].role != "main", -busy[number]))[:LANES]


def _more(count: int, what: str, device: int) -> Row:
    verb, them = ("is", "it") if count == 1 else ("are", "they")
    more = words.count(count, f"more {what}")
    title = f"{more} {verb} not drawn: {them} {verb} busy for a shorter time than those in the picture"
    return Row(f"and {more}", f"+ {more}", title, "host", device, (np.empty(0, np.int64),))


def depths(start: Ints, end: Ints) -> Numbers:
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
        depth = np.array(tracks(zip(first.tolist(), last.tolist(), strict=True)), np.int64)
    result[order] = depth
    points = np.flatnonzero(end <= start)  # no length, no overlap: drawn inside what is open around them
    times = start[points]
    result[points] = np.searchsorted(first, times, side="left") - np.searchsorted(ends, times, side="right")
    return result


def _rank(lane: Lane, number: int) -> tuple[int, int, int]:
    role = _ROLES.index(lane.role) if lane.role in _ROLES else len(_ROLES)
    return (role if lane.group == "host" else 0, lane.number, number)


def _tracks(timeline: Timeline, spans: Numbers) -> tuple[Numbers, ...]:
    depth = depths(timeline.start[spans], timeline.end[spans])
    return tuple(spans[depth == level] for level in range(min(int(depth.max(initial=0)) + 1, DEPTH)))


def _host_rows(timeline: Timeline, number: int, spans: Numbers, operators: bool, long: float) -> list[Row]:
    """Return the rows of a host thread's spans; an operator of `long` ns may be in one although they are left out."""
    lane = timeline.lanes[number]
    shown = spans if operators else _without_operators(timeline, spans, long)
    name, short = _thread(lane)
    about: dict[str, Any] = {"title": lane.name, "kind": "host", "device": lane.device, "of": number, "role": lane.role}
    if lane.role in LOADING and not depths(timeline.start[shown], timeline.end[shown]).any():
        return [Row(name, short, tracks=(shown,), **about)] if len(shown) else []
    rows = []
    for sort, kinds in _SORTS:
        mine = shown[np.isin(timeline.kind[shown], kinds)]
        if len(mine):
            holds = _sort_words(timeline, mine, sort)
            full = f"{name} waits" if holds == "waits" else f"{name}: {holds}"
            rows.append(Row(full, f"{short}: {_SHORT.get(holds, holds)}", tracks=_tracks(timeline, mine), **about))
    return rows


def _thread(lane: Lane) -> tuple[str, str]:
    """Return the name of a host thread as a reader knows it, and a short one."""
    name = re.sub(r"\bmain$", "main thread", lane.name) if lane.role == "main" else lane.name
    short = {"main": "main", "pin": "pin"}.get(lane.role, name.replace("worker ", "w").replace("thread ", "t"))
    return name, short


def _sort_words(timeline: Timeline, spans: Numbers, sort: str) -> str:
    """Return what a lane of these spans holds: "ranges" that mark batches are "batches", to a reader."""
    if sort == "ranges":
        names = {timeline.names[name] for name in np.unique(timeline.name[spans]).tolist()}
        return "batches" if any(BATCH_RANGE.match(name) or STEP_RANGE.match(name) for name in names) else sort
    if sort == "CUDA calls":
        kinds = np.unique(timeline.kind[spans])
        loads = np.isin(kinds, (Kind.FETCH, Kind.PIN))
        return "loading" if loads.all() else "loads, calls" if loads.any() else sort
    return sort


def _without_operators(timeline: Timeline, spans: Numbers, length: float) -> Numbers:
    """Leave a lane's operators out, but long ones during which the lane would be empty, as if the host did nothing."""
    operators = timeline.kind[spans] == Kind.OPERATOR
    long = operators & (timeline.end[spans] - timeline.start[spans] >= length)
    shown: Numbers = spans[~operators]
    found = spans[long]
    others = union(timeline.start[shown], timeline.end[shown])
    start, end = timeline.start[found], timeline.end[found]
    alone = found[covered_within(others, start, end) <= _COVERED * (end - start)]
    return np.sort(np.r_[shown, alone[depths(timeline.start[alone], timeline.end[alone]) == 0]])


def _device_rows(timeline: Timeline, device: int, streams: dict[int, Numbers]) -> list[Row]:
    """Return the copy engines, seen over all streams, the streams, and the strip of what the device does."""
    here = np.sort(np.concatenate(list(streams.values())))
    kinds, rows = timeline.kind[here], []
    for name, short, title, kind in _ENGINES:
        copies = here[kinds == kind]
        if len(copies):
            rows.append(Row(name, short, title, "engine", device, _tracks(timeline, copies), mirror=True))
    # the default stream (7 on CUDA, 0 on HIP), of two the one with more kernels
    found = [
        number
        for number in streams
        if timeline.lanes[number].number in (0, 7)
        and re.fullmatch(r"(?:rank \d+ )?stream [07](?: \(default\))?", timeline.lanes[number].name)
    ]
    default = max(found, key=lambda number: int(np.isin(timeline.kind[streams[number]], KERNELS).sum()), default=-1)
    sides = [number for number in streams if timeline.lanes[number].role == "stream" and number != default]
    for number, spans in streams.items():
        lane = timeline.lanes[number]
        name, short = lane.name, lane.name.replace("stream ", "s")
        if lane.role == "stream" and default >= 0:
            alone = "default" if number == default else "side" if len(sides) == 1 else ""
            name, short = re.sub(r"stream .*", f"{alone} stream" if alone else r"side \g<0>", name), alone or short
        rows.append(Row(name, short, lane.name, "stream", device, _tracks(timeline, spans), number, lane.role))
    title = "what the GPU is doing, over all streams"
    return [*rows, Row("what the GPU does", "GPU", title, "strip", device, (np.empty(0, np.int64),))]
