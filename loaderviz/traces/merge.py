"""A trace of our own recording + what the profiler does not see -> the Timeline that an emulated run of it would give.

Ranges of ours in it, named "loaderviz|12|waiting for data", get the names and kinds of the emulated DataLoader, and the
batch in their name. What the profiler itself did at either end is cut off.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from loaderviz import intervals, words
from loaderviz.batches import (
    BATCH_RANGE,
    HAND_OUT,
    LOADER_NEXT,
    NOT_HANDED_OUT,
    PREFETCH_RANGE,
    WORKER_END,
    WORKER_START,
    loading_lane,
    numbers_of,
)
from loaderviz.intervals import tracks
from loaderviz.stations import DRAWS
from loaderviz.timeline import Cause, Kind, Lane, Look, Timeline, gathered
from loaderviz.traces.kineto import RawTrace
from loaderviz.traces.steps import noted, with_spans

if TYPE_CHECKING:
    from loaderviz.traces.workers import Fetch

CLOCK, STEPPED = "clock", "optimizer step"
NOTICED, SEEN = 100_000, 3  # ns of a gap, looks: what is less is not told of
UNMAPPED = 2  # ns a byte, ten times what was seen: a gap that is longer is the loop's own, in the line of its `for`
ANCHORS = 8  # ranges named "clock" at either end; the first few are slow
_OWN = re.compile(r"loaderviz\|(-?\d+)\|(.+)$")
WAITING = "waiting for data"
TAKING, TAKEN = "taking a batch", 1_000_000  # whose first bytes are there; for so many ns the rest is waited for
_MEANINGS = (
    (re.compile(f"({WAITING}|{TAKING})$"), Kind.WAIT, Cause.DATA),
    (re.compile(f"{HAND_OUT}$"), Kind.OPERATOR, Cause.NONE),
    (WORKER_START, Kind.OPERATOR, Cause.NONE),
    (WORKER_END, Kind.OPERATOR, Cause.NONE),
    (re.compile(r"fetch batch \d+$"), Kind.FETCH, Cause.NONE),
)
_ROLES = ("main", "worker", "pin", "thread")
_DEFAULT_STREAM = 7  # CUPTI's number of the legacy default stream, which is PyTorch's


def own_name(name: str, batch: int = -1) -> str:
    """Return the name of a range of ours: what the main thread does, and for which batch (-1: none)."""
    return f"loaderviz|{batch}|{name}"


@dataclass(frozen=True)
class Own:
    """What we noted ourselves, in ns of `perf_counter_ns`.

    `readings`: before, inside and after each range named "clock"; `left`: iterator -> when its workers had all left;
    `batches`: (iterator, epoch, order) -> number of the batch; `mine`: what the main thread fetched itself, by batch,
    in order, None for what failed;
    `seen`: looks at the main thread; `draws`: when the order of a batch was drawn, if it took long;
    `swapped` [bytes]: brought back from swap; `lacked` [ns]: the loop's thread found no core; `tensors`: how many some
    batches have.
    """

    readings: Sequence[tuple[int, int, int]]
    fetches: Sequence[Fetch]
    left: dict[int, int]
    batches: dict[tuple[int, int, int], int]
    mine: Mapping[int, list[Fetch | None]]
    seen: Sequence[Look]
    draws: Sequence[tuple[int, int]]
    swapped: int
    lacked: int
    tensors: Sequence[int] = ()


def choose_marks(raw: RawTrace) -> None:
    """Keep one mark for each step: the program's own "batch 3", else a loader's, else our range of a DataLoader."""
    numbered, marked = (numbers_of(raw.names, BATCH_RANGE, told) for told in (False, True))
    names, start = raw.columns["name"], raw.columns["start"]
    users = np.flatnonzero(np.isin(names, list(numbered)))
    if not len(users):
        own = [_OWN.match(name) for name in raw.names]
        raw.names[:] = [
            match[2] if match and BATCH_RANGE.match(match[2]) else name
            for match, name in zip(own, raw.names, strict=True)
        ]
        return
    marks = np.flatnonzero(np.isin(names, list(marked)))
    marks = marks[np.argsort(start[marks], kind="stable")]
    places = np.searchsorted(start[marks], start[users], side="right") - 1
    said = [
        place >= 0 and marked[int(names[marks[place]])] == numbered[int(names[user])]
        for user, place in zip(users.tolist(), places.tolist(), strict=True)
    ]  # by a loader, just before
    for column, values in raw.columns.items():
        raw.columns[column] = np.delete(values, users[said])


def optimizer_steps(timeline: Timeline) -> list[tuple[int, int]]:
    """Return end [ns] and number of the steps that optimizers made, from ranges of ours."""
    ranges = np.flatnonzero(timeline.named(re.compile(rf"loaderviz\|\d+\|{STEPPED}$").match))
    return [(span.end, int(span.name.split("|")[1])) for span in timeline.rows_at(ranges)]


def merged(timeline: Timeline, own: Own) -> Timeline:
    """Return the timeline with our ranges turned into what they stand for, and with the lanes of workers and pin."""
    ours, roles = np.flatnonzero(timeline.named(_OWN.match)), [lane.role for lane in timeline.lanes]
    main = int(timeline.lane[ours[0]]) if len(ours) else roles.index("main") if "main" in roles else -1
    rows = np.flatnonzero(timeline.named(own_name(CLOCK).__eq__))
    if not len(rows) == len(own.readings) == 2 * ANCHORS:
        note = "the profiler lost ranges of ours, so that its clock is not known: workers and pin thread are left out"
        return noted(_completed(_translated(timeline, main), main, own), note)
    seen = zip(own.readings, timeline.start[rows].tolist(), timeline.end[rows].tolist(), strict=True)
    anchors = [Anchor(*reading, start, end) for reading, start, end in seen]
    there = Clock(anchors[:ANCHORS], anchors[ANCHORS:])
    begin, end = anchors[ANCHORS - 1].end, anchors[-ANCHORS].start
    # take away what the profiler did at either end, on the host; the GPU's work is all the program's
    host = timeline.in_lanes(lambda lane: lane.group == "host")
    inside = (timeline.start >= begin) & (timeline.start < end)
    ends = np.where(host, np.minimum(timeline.end, end), timeline.end)
    timeline = replace(timeline, spans=timeline.spans | {"end": ends}).only(~host | inside)
    timeline, added = _with_workers(_completed(_translated(timeline, main), main, own), own, there, begin, end)
    looks, seen_inside = _looks(timeline, own.seen, there, begin, end)
    looks = _drawn(looks, [(there.of(start), there.of(stop)) for start, stop in own.draws])
    (timeline, looks), usage = _let_go(_with_lines(timeline, seen_inside), looks), _usage(own, there, begin, end)
    timeline = replace(timeline, context=replace(timeline.context, looks=looks, usage=usage))
    if not added:
        return timeline
    drift = f", which drifted by {words.duration(abs(there.drift))}" if abs(there.drift) > there.error else ""
    note = f"put onto the profiler's to ± {words.duration(there.error)} (time 0 is {-there.offset / 1e9:.6f} s of it"
    return noted(timeline, f"workers and pin thread: times of the monotonic clock, {note}{drift})")


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
        elif text.startswith(LOADER_NEXT):
            kind[number] = Kind.RANGE  # what happens inside it is told by ranges of ours
        elif BATCH_RANGE.match(text):
            text = text.removesuffix(": 0 samples")
        drop[number] |= bool(PREFETCH_RANGE.match(text))
        name[number] = table.setdefault(text, len(table))
    old, spans, pin = timeline.name, timeline.spans, timeline.named("aten::pin_memory".__eq__)
    elsewhere = (batch[old] > -2) & (timeline.lane != main)  # the profiler repeats ranges beside the GPU's work in them
    kinds = np.where(kind[old] >= 0, kind[old], spans["kind"])
    spans = spans | {
        "kind": np.where(pin & (timeline.lane == main), np.int8(Kind.PIN), kinds),
        "cause": np.where(kind[old] >= 0, cause[old], spans["cause"]),
        "batch": np.where(batch[old] > -2, batch[old], spans["batch"]),
        "name": name[old],
    }
    lanes = list(timeline.lanes)
    for number, lane in enumerate(lanes):  # named as an emulated timeline does
        if number == main:
            lanes[number] = replace(lane, name="main", role="main")
        elif lane.role == "main":  # the reader took another thread for that of the loop
            lanes[number] = replace(lane, name=f"thread {lane.number}", role="thread")
        elif lane.role == "stream" and lane.number == _DEFAULT_STREAM:
            lanes[number] = replace(lane, name=lane.name.replace("stream 7", "stream 7 (default)", 1))
    takes = spans["name"] == table.get(TAKING, -1)
    spans["name"] = np.where(takes, table.setdefault(WAITING, len(table)), spans["name"]).astype(np.int32)
    took = takes & (timeline.end - timeline.start < TAKEN)
    timeline = replace(timeline, spans=spans, names=tuple(table), lanes=tuple(lanes))
    return timeline.only(~(drop[old] | elsewhere | took))


_FETCHED = ("batch", "name", "nbytes", "waited", "cause", "source")  # columns of which the profiler knows nothing


def _completed(timeline: Timeline, main: int, own: Own) -> Timeline:
    """Tell of what the main thread fetched its size and for how long it waited, and whose torch's ranges are."""
    spans = timeline.spans | {name: timeline.spans[name].copy() for name in _FETCHED}
    start = timeline.start
    here, fetches = timeline.lane == main, timeline.where(Kind.FETCH)
    fetched = np.flatnonzero(here & fetches)
    numbers = timeline.batch[fetched].tolist()
    sources = {source: number for number, source in enumerate(timeline.sources)}
    left = {number: list(works) for number, works in own.mine.items()}
    for row, number in zip(fetched.tolist(), numbers, strict=True):
        works = left.get(number)
        if not works:
            continue
        if (work := works.pop(0)) is None:  # it failed, or was the end of a stream
            spans["batch"][row], spans["name"][row] = -1, len(timeline.names)
        else:
            source = sources.setdefault(work.line, len(sources)) if work.line else -1
            told = {"nbytes": work.nbytes, "waited": work.waited, "cause": work.cause, "source": source}
            for column, value in told.items():
                spans[column][row] = value
    asks, gives = timeline.named(lambda name: name.startswith(LOADER_NEXT)), timeline.named(HAND_OUT.__eq__)
    parts = np.flatnonzero(here & (fetches | (timeline.cause == Cause.DATA) | gives))
    ranges = np.flatnonzero(here & asks)
    first = np.searchsorted(start[parts], start[ranges])
    found = first < len(parts)
    found[found] = start[parts[first[found]]] < timeline.end[ranges[found]]
    marks = list(numbers_of(timeline.names, BATCH_RANGE, told=True))
    steps = np.flatnonzero(here & timeline.where(Kind.RANGE) & np.isin(timeline.name, marks))
    step = np.searchsorted(start[steps], start[ranges], side="right") - 1  # the loop is at this one
    spans["batch"][ranges] = np.append(timeline.batch[steps], -1)[step]
    spans["batch"][ranges[found]] = timeline.batch[parts[first[found]]]
    names = timeline.names + (NOT_HANDED_OUT,) * bool((spans["name"] == len(timeline.names)).any())
    return replace(timeline, spans=spans, names=names, sources=tuple(sources))


# Workers and pin thread


def _with_workers(timeline: Timeline, own: Own, there: Clock, begin: int, end: int) -> tuple[Timeline, bool]:
    """Return it with the lanes of workers and pin thread, and what they did between `begin` and `end`, if anything.

    The lanes stand in the order in which a batch travels; those without spans are dropped.
    """
    slots, old = _slots(own), len(timeline.lanes)
    lanes: dict[Lane, int] = {}
    names, rows = list[str](), list[tuple[int, ...]]()
    sources = {source: number for number, source in enumerate(timeline.sources)}
    for work in own.fetches:
        start = there.of(work.start)
        stop = end if work.end is None else there.of(work.end)
        if stop <= begin or start >= end:
            continue
        pins, slot = work.worker < 0, slots[work.iterator]
        what = "pin" if pins else "fetch"
        batch = own.batches.get((work.iterator, work.epoch, work.order), -1)
        if work.failed:
            names.append(f"failed {what}")
        elif batch >= 0:
            names.append(f"{what} batch {batch}")
        else:
            names.append(f"{what} (not ended)" if work.end is None else NOT_HANDED_OUT.replace("fetch", what))
        kind = Kind.PIN if pins else Kind.FETCH
        lane = lanes.setdefault(Lane(*loading_lane(work.worker, slot)), old + len(lanes))
        source = sources.setdefault(work.line, len(sources)) if work.line else -1
        about = batch, work.nbytes, 1 if pins else -1, work.waited, work.cause, source
        rows.append((max(start, begin), min(stop, end), lane, kind, *about))
    table = np.array(rows, np.int64).reshape(-1, 10).T
    told = ("start", "end", "lane", "kind", "batch", "nbytes", "pinned", "waited", "cause", "source")
    columns = dict(zip(told, table, strict=True))
    timeline, every = with_spans(timeline, names, **columns), [*timeline.lanes, *lanes]
    timeline = replace(timeline, sources=tuple(sources))

    def rank(number: int) -> tuple[bool, int, int]:
        role = every[number].role
        return every[number].group != "host", _ROLES.index(role) if role in _ROLES else len(_ROLES), number

    order = sorted(np.unique(timeline.lane).tolist(), key=rank)
    place = np.zeros(len(every), np.int32)
    place[order] = np.arange(len(order))
    spans = timeline.spans | {"lane": place[timeline.lane]}
    return replace(timeline, spans=spans, lanes=tuple(every[number] for number in order)).sorted(), bool(rows)


def _looks(
    timeline: Timeline, seen: Sequence[Look], there: Clock, begin: int, end: int
) -> tuple[tuple[Look, ...], tuple[Look, ...]]:
    """Return the looks at the main thread that found it outside and inside of torch, with the timeline's times."""
    looks = [look._replace(time=there.of(look.time)) for look in seen if begin <= there.of(look.moment) < end]
    told = timeline.where(Kind.OPERATOR, Kind.FETCH, Kind.PIN, Kind.WAIT, Kind.API)
    told &= timeline.in_lanes(lambda lane: lane.role == "main")
    told &= ~timeline.named(HAND_OUT.__eq__)  # a sampler is the program's own, and runs in it
    calls = intervals.union(timeline.start[told], timeline.end[told])
    within = intervals.covers(calls, np.array([look.moment for look in looks], np.int64))
    return tuple(compress(looks, ~within)), tuple(compress(looks, within))


def _drawn(looks: tuple[Look, ...], draws: Sequence[tuple[int, int]]) -> tuple[Look, ...]:
    """Let the looks into a sampler of the program stand for all of the time in which orders are drawn.

    A look comes late, or in few draws, where the sampler keeps the interpreter, or others have the cores.
    """
    when = intervals.union(*np.array(draws, np.int64).reshape(-1, 2).T)
    within = intervals.covers(when, np.array([look.moment for look in looks], np.int64))
    lines = Counter(look.line for look in compress(looks, within))
    if not lines:
        return looks
    line = lines.most_common(1)[0][0]
    return tuple(
        sorted((*compress(looks, ~within), *(Look(start, stop - start, line) for start, stop in when.tolist())))
    )


def _with_lines(timeline: Timeline, inside: Sequence[Look]) -> Timeline:
    """Give the calls of torch in which the main thread was seen their line: the outermost ones with all in them."""
    sources = {source: number for number, source in enumerate(timeline.sources)}
    mine = timeline.where(Kind.OPERATOR, Kind.API, Kind.WAIT)
    rows = np.flatnonzero(mine & timeline.in_lanes(lambda lane: lane.role == "main"))
    starts, ends, found = timeline.start[rows], timeline.end[rows], timeline.source.copy()
    outer = np.flatnonzero(intervals.outermost(starts, ends, timeline.begin))
    until = np.r_[outer[1:], len(rows)]  # what begins in a call stands behind it, up to the next one
    moments = np.array([look.moment for look in inside], np.int64)
    for look, place in zip(inside, np.searchsorted(starts[outer], moments, side="right") - 1, strict=True):
        if place >= 0 and not look.line.startswith(DRAWS) and look.moment < ends[outer[place]]:
            within = rows[outer[place] : until[place]]
            found[within] = sources.setdefault(look.line, len(sources))
    return replace(timeline, spans=timeline.spans | {"source": found}, sources=tuple(sources))


def _let_go(timeline: Timeline, looks: Sequence[Look]) -> tuple[Timeline, tuple[Look, ...]]:
    """Let the hand-outs last until the loop goes on, if it was seen there: it lets go of the batch before.

    To unmap the shared memory of 20 MB took 3.8 ms (H100, a virtual machine of 16 cores), and no call tells of it.
    Looks at the line that draws are returned only where that takes far longer: then the loop's body is in it, too.
    """
    main = timeline.in_lanes(lambda lane: lane.role == "main") & ~timeline.where(Kind.RANGE)
    rows = np.flatnonzero(main & timeline.named(HAND_OUT.__eq__))
    ends, starts = timeline.end[rows], np.sort(timeline.start[main])
    after = np.append(starts, timeline.begin)[np.searchsorted(starts, ends)]
    given = timeline.where(Kind.FETCH, Kind.PIN) & (timeline.batch >= 0)
    sizes = np.zeros(int(timeline.batch.max(initial=0)) + 1, np.int64)
    np.maximum.at(sizes, timeline.batch[given], timeline.nbytes[given])
    size, gap = sizes[timeline.batch[rows].clip(0)], after - ends
    longer = (size > 0) & (gap >= NOTICED + size * UNMAPPED)
    long = (gap > NOTICED) & ~longer
    gaps, body = intervals.union(ends[long], after[long]), intervals.union(ends[longer], after[longer])
    moments = np.array([look.moment for look in looks], np.int64)
    drawn = np.array([look.line.startswith(DRAWS) for look in looks], bool)
    told = tuple(
        look._replace(line=look.line.removeprefix(DRAWS))
        for look in compress(looks, ~drawn | intervals.covers(body, moments))
    )
    draws, others = moments[drawn], moments[~drawn]
    drawing, busy = (
        np.unique(np.searchsorted(gaps[:, 0], times[intervals.covers(gaps, times)], side="right") - 1)
        for times in (draws, others)
    )
    if len(drawing) < max(SEEN, len(busy)):
        return timeline, told
    spans, left = timeline.spans | {"end": timeline.end.copy()}, np.delete(gaps, busy, axis=0)
    long &= intervals.covers(left, ends)
    spans["end"][rows[long]] = after[long]
    return replace(timeline, spans=spans), told


def _usage(own: Own, there: Clock, begin: int, end: int) -> dict[str, int]:
    """Return what batches took beside their fetches, as in a timeline's context; only what was seen."""
    made = [
        *(each for each in own.fetches if each.worker >= 0 and each.nbytes >= 0),
        *filter(None, chain(*own.mine.values())),
    ]
    made = [each for each in made if there.of(each.start) >= begin and there.of(each.end or 0) <= end]
    memory = gathered(((each.iterator, each.worker), each.own) for each in made if each.own)
    count = max(1, len(made))
    found = {
        "others": sum(each.used.others for each in made) // count,
        "lacked": sum(each.used.lacked for each in made) // count,
        "busy": sum(each.used.busy for each in made) // count,
        "disk": sum(each.used.disk for each in made) // count,
        "read": sum(each.used.read for each in made) // count,
        "swap": own.swapped // count,
        "memory": max((_growth(looks) for looks in memory.values()), default=0),
        "loop lacked": own.lacked,
        "tensors": sum(own.tensors) // max(1, len(own.tensors)),
    }
    return {what: amount for what, amount in found.items() if amount > 0}


def _growth(looks: Sequence[int]) -> int:
    """Return by how much it grew, but for the largest jump: what is taken once does not grow."""
    steps = [later - sooner for sooner, later in pairwise(looks)]
    return sum(steps) - max(steps, default=0)


def _slots(own: Own) -> dict[int, int]:
    """Share the lanes between iterators: one that begins when another's workers have left takes its place."""
    starts = gathered((work.iterator, work.start) for work in own.fetches)
    begins = {iterator: min(times) for iterator, times in starts.items()}
    order = sorted(begins, key=lambda iterator: begins[iterator])
    slots = tracks((begins[iterator], own.left.get(iterator, math.inf)) for iterator in order)
    return dict(zip(order, slots, strict=True))


# Two clocks: the profiler's, and the one that workers can read (`perf_counter_ns`). At the beginning and the end of a
# recording a few empty ranges are given to the profiler, and our clock is read before, inside and after each. Its start
# lies between the first two readings, its end between the last two, which bounds the offset from both sides; several
# ranges narrow it to about a microsecond. Between the two ends it is interpolated.


class Anchor(NamedTuple):
    """One range: our clock before, inside and after it, and the profiler's start and end of it; all in ns."""

    before: int
    inside: int
    after: int
    start: int
    end: int


class Clock:
    """Turns our times into the profiler's, by anchors of the beginning and of the end, one at least of each.

    `offset` is that of the beginning, `drift` by how much it changes until the end, `error` how far it can be off, ns.
    """

    def __init__(self, begin: Sequence[Anchor], end: Sequence[Anchor]) -> None:
        (self.offset, error), (last, later) = _offset(begin), _offset(end)
        self.drift, self.error = last - self.offset, max(error, later)
        self._begin, self._length = begin[0].before, end[-1].after - begin[0].before

    def of(self, time: int) -> int:
        """Return the profiler's time at our `time`, ns."""
        return time + self.offset + (self.drift * (time - self._begin) // self._length if self._length else 0)


def _offset(anchors: Sequence[Anchor]) -> tuple[int, int]:
    """Return the offset in the middle of what all anchors allow, and half the width of that."""
    low = max(max(anchor.start - anchor.inside, anchor.end - anchor.after) for anchor in anchors)
    high = min(min(anchor.start - anchor.before, anchor.end - anchor.inside) for anchor in anchors)
    return (low + high) // 2, (abs(high - low) + 1) // 2
