"""Where each span is drawn: lanes from host to device, in the order in which a batch travels.

A lane has one or more tracks; bars in one track never overlap. On a host thread the ranges, operators, calls and waits
nest in time, so each sort has a track of its own, and operators within operators go one track down.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderviz.activity import LOADING
from loaderviz.draw.names import cut
from loaderviz.intervals import covered_within, take_free, union
from loaderviz.timeline import DEVICE_KINDS, Kind, Lane, Timeline

Indices = npt.NDArray[np.int64]

_ROLES = ("worker", "pin", "main", "thread")  # the way of a batch through the host
_SORTS = (  # the tracks of a host thread, from the outside in
    ("ranges", (Kind.RANGE,)),
    ("operators", (Kind.OPERATOR,)),
    ("calls", (Kind.API, Kind.FETCH, Kind.PIN)),
    ("waits", (Kind.WAIT,)),
)
DEPTH = 4  # tracks of nested spans; deeper ones are left out and counted
_NESTED = "nested"  # the label of the tracks below the first, where spans nest
_NAME = 36  # letters of a lane's name; the hover has all of it
_LONG, _COVERED = 0.05, 0.05  # shares: of the timeline, a long operator; of it, what other bars may cover
_LEFT, _LETTER_PX = 150, 7.5  # px: the least room for the names, and a letter of one
_TRACK, _LANE_GAP, _GROUP_GAP, _STRIP = 1.0, 0.12, 0.35, 0.8


@dataclass(frozen=True)
class Track:
    """One row of bars: its label ("" for a further track of a stream), group, and place in track heights."""

    label: str
    group: str  # "host", "engine", "stream" or "strip"
    top: float
    height: float

    @property
    def middle(self) -> float:
        """Where the bars are centred."""
        return self.top + self.height / 2


@dataclass(frozen=True)
class Placement:
    """Which span goes into which track. `span` and `track` have one entry per bar; copies have two (engine, stream)."""

    tracks: tuple[Track, ...]
    span: Indices
    track: Indices
    strips: dict[int, Track]  # device number -> track of what the GPU is doing
    bottom: float
    left_out: int  # spans nested too deeply to be drawn


def left_px(tracks: Iterable[Track]) -> int:
    """Return the room [px] that the names of the lanes need, to the left of them."""
    return max(_LEFT, *(round(_LETTER_PX * len(track.label)) + 14 for track in tracks), 0)


class _Pen:
    """Moves down the page and hands out tracks."""

    def __init__(self, top: float) -> None:
        self.top = top
        self.tracks: list[Track] = []
        self.spans: list[Indices] = []
        self.numbers: list[Indices] = []
        self.left_out = 0

    def track(self, label: str, group: str, height: float = _TRACK) -> Track:
        self.tracks.append(Track(label, group, self.top, height))
        self.top += height
        return self.tracks[-1]

    def lane(self, timeline: Timeline, spans: Indices, label: str, group: str) -> None:
        """Add the spans in as many tracks as they need."""
        depth = depths(timeline.start[spans], timeline.end[spans])
        self.left_out += int((depth >= DEPTH).sum())
        for level in range(min(int(depth.max(initial=0)) + 1, DEPTH)):
            self.track(label if level == 0 else _NESTED if group == "host" else "", group)
            mine = spans[depth == level]
            self.spans.append(mine)
            self.numbers.append(np.full(len(mine), len(self.tracks) - 1))


def arrange(timeline: Timeline, operators: bool = False, top: float = 0.0) -> Placement:
    """Place all spans of a timeline; operators only on demand, but where the lane would be empty for long.

    `top` is where the first track begins.
    """
    pen = _Pen(top)
    order = sorted(range(len(timeline.lanes)), key=lambda number: _rank(timeline.lanes[number], number))
    host = [number for number in order if timeline.lanes[number].group == "host"]
    streams = [number for number in order if timeline.lanes[number].group == "device"]
    for number in host:
        _host_lane(pen, timeline, number, operators)
    devices = sorted({timeline.lanes[number].device for number in streams})
    strips = {}
    for device in devices:
        if pen.tracks:
            pen.top += _GROUP_GAP
        mine = [number for number in streams if timeline.lanes[number].device == device]
        prefix = f"GPU {device} · " if len(devices) > 1 else ""
        _device_lanes(pen, timeline, mine, prefix)
        pen.top += _LANE_GAP
        strips[device] = pen.track(prefix + "state" if prefix else "GPU state", "strip", _STRIP)
    empty = np.empty(0, np.int64)
    span = np.concatenate([empty, *pen.spans])
    track = np.concatenate([empty, *pen.numbers])
    return Placement(tuple(pen.tracks), span, track, strips, pen.top, pen.left_out)


def depths(start: npt.NDArray[np.integer[Any]], end: npt.NDArray[np.integer[Any]]) -> Indices:
    """Return a track number for each span such that no two spans in one track overlap, shape `start.shape`.

    Spans that nest get their nesting depth: 0 outside, 1 within one other, and so on.
    """
    result = np.zeros(len(start), np.int64)
    full = np.flatnonzero(end > start)
    order = full[np.lexsort((-end[full], start[full]))]
    first, last = start[order], end[order]
    ends = np.sort(last)
    depth = np.arange(len(order)) - np.searchsorted(ends, first, side="right")  # spans still open where it starts
    by_track = np.lexsort((first, depth))
    same = depth[by_track][1:] == depth[by_track][:-1]
    if (same & (first[by_track][1:] < last[by_track][:-1])).any():  # not all of them nest
        depth = _first_free(first, last)
    result[order] = depth
    points = np.flatnonzero(end <= start)  # no length, no overlap: drawn inside what is open around them
    times = start[points]
    result[points] = np.searchsorted(first, times, side="left") - np.searchsorted(ends, times, side="right")
    return result


def _first_free(start: npt.NDArray[np.integer[Any]], end: npt.NDArray[np.integer[Any]]) -> Indices:
    """Put each span into the first track that is free; for spans that overlap without nesting."""
    free: list[float] = []
    places = [take_free(free, first, last) for first, last in zip(start.tolist(), end.tolist(), strict=True)]
    return np.array(places, np.int64)


def _rank(lane: Lane, number: int) -> tuple[int, int, int, int]:
    role = _ROLES.index(lane.role) if lane.role in _ROLES else len(_ROLES)
    # the host lanes of several ranks bear their devices' numbers: each rank stays together
    return (lane.device, role if lane.group == "host" else 0, lane.number, number)


def _host_lane(pen: _Pen, timeline: Timeline, number: int, operators: bool) -> None:
    lane = timeline.lanes[number]
    here = timeline.lane == number
    shown = here if operators else _without_operators(timeline, here)
    spans = np.flatnonzero(shown)
    if not len(spans):
        return
    if pen.tracks:
        pen.top += _LANE_GAP
    if lane.role in LOADING and not depths(timeline.start[spans], timeline.end[spans]).any():
        pen.lane(timeline, spans, cut(lane.name, _NAME), "host")
        return
    for sort, kinds in _SORTS:
        mine = np.flatnonzero(shown & timeline.where(*kinds))
        if len(mine):
            pen.lane(timeline, mine, f"{cut(lane.name, _NAME)} · {sort}", "host")
    rest = np.flatnonzero(shown & timeline.where(*DEVICE_KINDS))  # not expected on the host, but never lost
    if len(rest):
        pen.lane(timeline, rest, f"{cut(lane.name, _NAME)} · other", "host")


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


def _device_lanes(pen: _Pen, timeline: Timeline, numbers: list[int], prefix: str) -> None:
    """Add the copy engines, seen over all streams, then the streams."""
    here = np.isin(timeline.lane, numbers)
    for name, kind in (("H2D engine", Kind.COPY_H2D), ("D2H engine", Kind.COPY_D2H)):
        copies = np.flatnonzero(here & timeline.where(kind))
        if len(copies):
            pen.lane(timeline, copies, prefix + name, "engine")
    pen.top += _LANE_GAP
    for number in numbers:
        spans = np.flatnonzero(timeline.lane == number)
        if len(spans):
            pen.lane(timeline, spans, prefix + cut(timeline.lanes[number].name, _NAME), "stream")
