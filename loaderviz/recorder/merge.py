"""A trace of our own recording + what the profiler does not see -> the Timeline that an emulated run of it would give.

The trace holds ranges of ours, named "loaderviz|12|waiting for data": they get the names and kinds of the emulated
DataLoader, and the batch in their name. Workers and pin thread get lanes of their own. What the profiler itself did at
either end is cut off.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderviz import words
from loaderviz.intervals import take_free
from loaderviz.recorder.clocks import ANCHORS, Anchor, Clock, clock
from loaderviz.recorder.fetches import Fetch
from loaderviz.recorder.kineto import RawTrace
from loaderviz.recorder.names import LOADER_NEXT, MARK, NUMBERED, PREFETCH
from loaderviz.timeline import SPAN_COLUMNS, Cause, Kind, Lane, Timeline

CLOCK = "clock"
_GIVE = "DataLoader hand-out"
_OWN = re.compile(r"loaderviz\|(-?\d+)\|(.+)$")
_HAND_OUT = re.compile(r"loaderviz\|\d+\|(batch \d+: \d+ samples)$")
_MEANINGS = (
    (re.compile("waiting for data$"), Kind.WAIT, Cause.DATA),
    (re.compile(f"{_GIVE}$"), Kind.OPERATOR, Cause.NONE),
    (re.compile(r"start \d+ workers$"), Kind.OPERATOR, Cause.NONE),
    (re.compile(r"fetch batch \d+$"), Kind.FETCH, Cause.NONE),
)
_ROLES = ("main", "worker", "pin", "thread")
_DEFAULT_STREAM = 7  # CUPTI's number of the legacy default stream, which is PyTorch's
_PIN = "aten::pin_memory"
_APART = 1_000  # lane numbers of one loader and the next

Ints = npt.NDArray[np.integer[Any]]


def own_name(name: str, batch: int = -1) -> str:
    """Return the name of a range of ours: what the main thread does, and for which batch (-1: none)."""
    return f"loaderviz|{batch}|{name}"


@dataclass(frozen=True)
class Own:
    """What we noted ourselves, in ns of `perf_counter_ns`.

    `readings`: before, inside and after each range named "clock"; `left`: iterator -> when its workers had all left;
    `batches`: (iterator, epoch, order) -> number of the batch; `nbytes`: batch -> bytes, if the main thread fetched it.
    """

    readings: Sequence[tuple[int, int, int]]
    fetches: Sequence[Fetch]
    left: dict[int, int]
    batches: dict[tuple[int, int, int], int]
    nbytes: dict[int, int]


def choose_marks(raw: RawTrace) -> None:
    """Keep one mark for each step, in place: the program's own "batch 3", else a loader's, else the DataLoader's.

    The last are recorded as ranges of ours; they become marks by their name.
    """
    numbered = {number: int(match[1]) for number, name in enumerate(raw.names) if (match := NUMBERED.match(name))}
    users = np.flatnonzero(np.isin(raw.columns["name"], list(numbered)))
    if not len(users):
        raw.names[:] = [match[1] if (match := _HAND_OUT.match(name)) else name for name in raw.names]
        return
    marked = {number: int(match[1]) for number, name in enumerate(raw.names) if (match := MARK.match(name))}
    start = raw.columns["start"]
    marks = np.flatnonzero(np.isin(raw.columns["name"], list(marked)))
    marks = marks[np.argsort(start[marks], kind="stable")]
    places = np.searchsorted(start[marks], start[users], side="right") - 1
    keep = np.ones(len(start), bool)
    for user, place in zip(users.tolist(), places.tolist(), strict=True):  # a loader said the same just before
        batch = numbered[int(raw.columns["name"][user])]
        if place >= 0 and marked[int(raw.columns["name"][marks[place]])] == batch:
            keep[user] = False
    for column in raw.columns:
        raw.columns[column] = raw.columns[column][keep]


def merged(timeline: Timeline, own: Own) -> Timeline:
    """Return the timeline with our ranges turned into what they stand for, and with the lanes of workers and pin."""
    main = _main(timeline)
    anchors = _anchors(timeline, own)
    if not anchors:
        note = "the profiler lost ranges of ours, so that its clock is not known: workers and pin thread are left out"
        return _noted(_completed(_translated(timeline, main), main, own.nbytes), note)
    ours = clock(anchors[:ANCHORS], anchors[ANCHORS:])
    begin, end = anchors[ANCHORS - 1].end, anchors[-ANCHORS].start
    timeline = _completed(_translated(_trimmed(timeline, begin, end), main), main, own.nbytes)
    lanes, spans = _spans(own, ours, begin, end)
    timeline = _with(timeline, lanes, spans)
    return _noted(timeline, _clock_note(ours)) if spans else timeline


def _noted(timeline: Timeline, note: str) -> Timeline:
    return replace(timeline, context=replace(timeline.context, notes=(*timeline.context.notes, note)))


def _main(timeline: Timeline) -> int:
    """Return the lane of the thread that was recorded: our ranges are in it."""
    ours = _named(timeline, _OWN)
    roles = [lane.role for lane in timeline.lanes]
    return int(timeline.lane[ours[0]]) if len(ours) else roles.index("main") if "main" in roles else -1


def _anchors(timeline: Timeline, own: Own) -> list[Anchor]:
    """Return the ranges named "clock" of both ends; none if one is lost."""
    rows = _named(timeline, re.compile(re.escape(own_name(CLOCK)) + "$"))
    if not len(rows) == len(own.readings) == 2 * ANCHORS:
        return []
    seen = zip(timeline.start[rows].tolist(), timeline.end[rows].tolist(), strict=True)
    return [Anchor(*ours, *profilers) for ours, profilers in zip(own.readings, seen, strict=True)]


def _named(timeline: Timeline, pattern: re.Pattern[str]) -> Ints:
    return np.flatnonzero(np.isin(timeline.name, _matching(timeline, pattern)))


def _matching(timeline: Timeline, pattern: re.Pattern[str]) -> list[int]:
    return [number for number, name in enumerate(timeline.names) if pattern.match(name)]


def _trimmed(timeline: Timeline, begin: int, end: int) -> Timeline:
    """Take away what the profiler did at either end, on the host; the GPU's work is all the program's."""
    host = np.isin(timeline.lane, [n for n, lane in enumerate(timeline.lanes) if lane.group == "host"])
    inside = (timeline.start >= begin) & (timeline.start < end)
    spans = timeline.spans | {"end": np.where(host, np.minimum(timeline.end, end), timeline.end)}
    return replace(timeline, spans=spans).only(~host | inside)


def _translated(timeline: Timeline, main: int) -> Timeline:
    """Give each range of ours its name, kind, cause and batch; drop those that were for us alone."""
    count = len(timeline.names)
    table: dict[str, int] = {}
    name, batch = np.empty(count, np.int32), np.full(count, -2, np.int32)
    kind, cause, drop = np.full(count, -1, np.int8), np.zeros(count, np.int8), np.zeros(count, bool)
    for number, text in enumerate(timeline.names):
        if match := _OWN.match(text):
            text, batch[number] = match[2], int(match[1])
            found = next((each for each in _MEANINGS if each[0].match(text)), None)
            if found:
                kind[number], cause[number] = found[1], found[2]
            drop[number] = found is None
        elif LOADER_NEXT.match(text):
            kind[number] = Kind.RANGE  # what happens inside it is told by ranges of ours
        elif MARK.match(text):
            text = text.removesuffix(": 0 samples")
        drop[number] |= bool(PREFETCH.match(text))
        name[number] = table.setdefault(text, len(table))
    old = timeline.name
    spans = dict(timeline.spans)
    known = kind[old] >= 0
    elsewhere = (batch[old] > -2) & (timeline.lane != main)  # the profiler repeats ranges beside the GPU's work in them
    spans["kind"] = np.where(known, kind[old], spans["kind"])
    spans["cause"] = np.where(known, cause[old], spans["cause"])
    spans["batch"] = np.where(batch[old] > -2, batch[old], spans["batch"])
    pins = (old == _number(timeline, _PIN)) & (timeline.lane == main)
    spans["kind"] = np.where(pins, np.int8(Kind.PIN), spans["kind"])
    spans["name"] = name[old]
    lanes = tuple(_lane(lane, number == main) for number, lane in enumerate(timeline.lanes))
    return replace(timeline, spans=spans, names=tuple(table), lanes=lanes).only(~(drop[old] | elsewhere))


def _completed(timeline: Timeline, main: int, nbytes: dict[int, int]) -> Timeline:
    """Tell the size of what the main thread fetched, and the batch of torch's ranges around what is done for it."""
    spans, start = timeline.spans | {"batch": timeline.batch.copy(), "nbytes": timeline.nbytes.copy()}, timeline.start
    here, data = timeline.lane == main, timeline.cause == Cause.DATA
    fetched = np.flatnonzero(here & timeline.where(Kind.FETCH))
    spans["nbytes"][fetched] = [nbytes.get(number, -1) for number in timeline.batch[fetched].tolist()]
    inner = here & (timeline.where(Kind.FETCH) | data | (timeline.name == _number(timeline, _GIVE)))
    parts, ranges = np.flatnonzero(inner), np.flatnonzero(here)
    ranges = ranges[np.isin(timeline.name[ranges], _matching(timeline, LOADER_NEXT))]
    first = np.searchsorted(start[parts], start[ranges])
    found = first < len(parts)
    found[found] = start[parts[first[found]]] < timeline.end[ranges[found]]
    steps = np.flatnonzero(here & timeline.where(Kind.RANGE) & np.isin(timeline.name, _matching(timeline, MARK)))
    step = np.searchsorted(start[steps], start[ranges], side="right") - 1  # the loop is at this one
    spans["batch"][ranges] = np.append(timeline.batch[steps], -1)[step]
    spans["batch"][ranges[found]] = timeline.batch[parts[first[found]]]
    return replace(timeline, spans=spans)


def _number(timeline: Timeline, name: str) -> int:
    return timeline.names.index(name) if name in timeline.names else -1


def _lane(lane: Lane, is_main: bool) -> Lane:
    """Name a lane as an emulated timeline does."""
    if is_main:
        return replace(lane, name="main", role="main")
    if lane.role == "main":  # the reader took another thread for that of the loop
        return replace(lane, name=f"thread {lane.number}", role="thread")
    if lane.role == "stream" and lane.number == _DEFAULT_STREAM:
        return replace(lane, name=lane.name.replace("stream 7", "stream 7 (default)", 1))
    return lane


# Workers and pin thread


Row = dict[str, Any]


def _spans(own: Own, ours: Clock, begin: int, end: int) -> tuple[list[Lane], list[Row]]:
    """Return the lanes of workers and pin thread, and their spans between `begin` and `end`; "lane" counts these."""
    slots = _slots(own)
    lanes: dict[Lane, int] = {}
    rows = []
    for work in own.fetches:
        start = ours.of(work.start)
        stop = end if work.end is None else ours.of(work.end)
        if stop <= begin or start >= end:
            continue
        lane = _lane_of(work, slots[work.iterator])
        batch = own.batches.get((work.iterator, work.epoch, work.order), -1)
        rows.append({
            "start": max(start, begin), "end": min(stop, end), "lane": lanes.setdefault(lane, len(lanes)),
            "kind": Kind.FETCH if work.worker >= 0 else Kind.PIN, "name": _name_of(work, batch), "batch": batch,
            "nbytes": work.nbytes, "pinned": 1 if work.worker < 0 else -1,
        })  # fmt: skip
    return list(lanes), rows


def _lane_of(work: Fetch, slot: int) -> Lane:
    loader = f" (loader {slot + 1})" if slot else ""
    if work.worker < 0:
        return Lane(f"pin thread{loader}", "host", "pin", slot * _APART)
    return Lane(f"worker {work.worker}{loader}", "host", "worker", work.worker + slot * _APART)


def _name_of(work: Fetch, batch: int) -> str:
    what = "fetch" if work.worker >= 0 else "pin"
    if work.failed:
        return f"failed {what}"
    if batch >= 0:
        return f"{what} batch {batch}"
    return f"{what} (not handed out)" if work.end is not None else f"{what} (not ended)"


def _slots(own: Own) -> dict[int, int]:
    """Share the lanes between iterators: one that begins when another's workers have left takes its place."""
    begins: dict[int, int] = {}
    for work in own.fetches:
        begins[work.iterator] = min(work.start, begins.get(work.iterator, work.start))
    free: list[float] = []
    slots = {}
    for iterator, begin in sorted(begins.items(), key=lambda item: item[1]):
        slots[iterator] = take_free(free, begin, own.left.get(iterator, math.inf))
    return slots


def _with(timeline: Timeline, lanes: list[Lane], rows: list[Row]) -> Timeline:
    """Return it with further lanes and spans, its lanes in the order in which a batch travels, and none empty."""
    names = {name: number for number, name in enumerate(timeline.names)}
    added = {column: np.full(len(rows), -1, dtype) for column, dtype in SPAN_COLUMNS.items()}
    for column in ("start", "end", "lane", "kind", "batch", "nbytes", "pinned"):
        added[column][:] = [row[column] for row in rows]
    added["name"][:] = [names.setdefault(row["name"], len(names)) for row in rows]
    added["lane"] += len(timeline.lanes)
    added["cause"][:] = Cause.NONE
    every = [*timeline.lanes, *lanes]
    spans = {column: np.concatenate([values, added[column]]) for column, values in timeline.spans.items()}
    used = np.unique(spans["lane"]).tolist()
    order = sorted(used, key=lambda number: (every[number].group != "host", _rank(every[number]), number))
    place = np.zeros(len(every), np.int32)
    place[order] = np.arange(len(order))
    spans["lane"] = place[spans["lane"]]
    return replace(
        timeline, spans=spans, names=tuple(names), lanes=tuple(every[number] for number in order)
    ).sorted()  # fmt: skip


def _rank(lane: Lane) -> int:
    return _ROLES.index(lane.role) if lane.role in _ROLES else len(_ROLES)


def _clock_note(ours: Clock) -> str:
    drift = f", which drifted by {words.duration(abs(ours.drift))}" if abs(ours.drift) > ours.error else ""
    return (
        "workers and pin thread: times of the monotonic clock, put onto the profiler's to ± "
        f"{words.duration(ours.error)} (time 0 is {-ours.begin[1] / 1e9:.6f} s of it{drift})"
    )
