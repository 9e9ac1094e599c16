"""Steps: which batch each span is for, by annotations or by optimizers, and which steps of a run are kept."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from loaderviz import intervals, words
from loaderviz.batches import (
    BATCH_RANGE,
    LOADER_NEXT,
    OPTIMIZER_STEP,
    PREFETCH_RANGE,
    STEP_RANGE,
    batch_name,
    numbers_of,
)
from loaderviz.timeline import LOADING, Cause, Ints, Kind, Mask, Timeline, gathered, grouped
from loaderviz.traces.kineto import RawTrace, Rows
from loaderviz.traces.source import TraceError
from loaderviz.vendors import ON_DEVICE, Role

if TYPE_CHECKING:
    from loaderviz.traces.live import RealRun

FULL = (
    "the recording was full, and what came after this is left out: at most {} are kept. Give record() a larger limit "
    "(--limit), or record some steps of the run, as wait=10, steps=20 does"
)
BY_OPTIMIZER = "steps are counted by optimizer.step(): no loader marks the batches"
IN_TURN = "optimizers that step in turn make one step of the loop, which the last of them ends"
COUNTED = "steps are counted by optimizer.step(): nothing marks them"
BY_LOADER = "steps are counted by DataLoader.__next__: nothing marks them"


def batches(rows: Rows, launch: Ints, names: list[str], main: int) -> Ints:
    """Return the batch of each row, -1 for none; marks of loaderviz's loaders are lengthened to the next hand-out.

    One sort of annotation decides: loaderviz's marks if there are any, else "batch N", else "ProfilerStep#N". What is
    launched inside "prefetch of batch N" is for that batch.
    """
    start, end, lane = rows["start"], rows["end"], rows["lane"]
    result = np.full(len(start), -1, np.int32)
    early, early_numbers = _marks(rows, names, PREFETCH_RANGE)
    for pattern, told in ((BATCH_RANGE, True), (BATCH_RANGE, False), (STEP_RANGE, False)):
        marks, numbers = _marks(rows, names, pattern, told)
        if not len(marks):
            continue
        loop = main if (lane[marks] == main).any() else lane[marks[0]]
        ranges, numbers = marks[lane[marks] == loop], numbers[lane[marks] == loop]
        if told:  # "from here on": to the next hand-out, the last one to the end of its lane
            end[ranges] = np.maximum(end[ranges], np.r_[start[ranges][1:], end[lane == loop].max()])
        _inside(result, start, start[ranges], end[ranges], numbers)
        lanes = int(lane.max(initial=-1)) + 1
        for here, which in zip(grouped(lane, lanes), grouped(lane[early], lanes), strict=True) if len(early) else ():
            if len(which):
                part, mine = result[here], early[which]
                _inside(part, start[here], start[mine], end[mine], early_numbers[which])
                result[here] = part
        if told:  # fetching comes before its batch is handed out, or prefetched: it is for the next one that is named
            starts, numbers = np.r_[start[ranges], start[early]], np.r_[numbers, early_numbers]
            order = np.argsort(starts, kind="stable")
            waits = (rows["kind"] == Kind.WAIT) & (rows["cause"] == Cause.DATA)
            fetching = np.flatnonzero((rows["kind"] == Kind.FETCH) | waits)
            place = np.searchsorted(starts[order], end[fetching])
            found = place < len(starts)
            result[fetching[found]] = numbers[order][place[found]]
        break
    launched = launch >= 0
    result[launched] = result[launch[launched]]
    result[np.isin(rows["role"], ON_DEVICE) & ~launched] = -1  # the time it ran in says nothing about its batch
    result[rows["role"] == Role.GPU_ANNOTATION] = -1
    for pattern in (STEP_RANGE, BATCH_RANGE, PREFETCH_RANGE):
        own, numbers = _marks(rows, names, pattern)
        result[own] = numbers
    return result


def _marks(rows: Rows, names: list[str], pattern: re.Pattern[str], told: bool | None = None) -> tuple[Ints, Ints]:
    """Return the rows of the annotations that match, and their numbers."""
    matches = numbers_of(names, pattern, told)
    numbers = np.full(max(1, len(names)), -1, np.int64)
    numbers[list(matches)] = list(matches.values())
    found = np.flatnonzero((rows["kind"] == Kind.RANGE) & (numbers[rows["name"]] >= 0)) if matches else np.empty(0, int)
    return found, numbers[rows["name"][found]]


def _inside(result: Ints, times: Ints, start: Ints, end: Ints, numbers: Ints) -> None:
    """Give the rows that begin in one of these ranges (sorted, apart) its number."""
    if len(start):
        place = np.searchsorted(start, times, side="right") - 1
        found = (place >= 0) & (times < end[np.maximum(place, 0)])
        result[found] = numbers[place[found]]


def with_spans(timeline: Timeline, names: Sequence[str], **columns: Any) -> Timeline:
    """Return it with further spans, not yet sorted; nothing is known of columns that are not given."""
    table, more = {name: number for number, name in enumerate(timeline.names)}, len(names)
    usual = {"cause": Cause.NONE, "waited": 0}
    columns = usual | columns | {"name": [table.setdefault(name, len(table)) for name in names]}
    spans = {
        column: np.concatenate([old, np.full(more, columns.get(column, -1), old.dtype)])
        for column, old in timeline.spans.items()
    }
    return replace(timeline, spans=spans, names=tuple(table))


def noted(timeline: Timeline, *notes: str, **context: Any) -> Timeline:
    """Return it with further notes, and with other entries of its context."""
    found = replace(timeline.context, notes=(*timeline.context.notes, *notes), **context)
    return replace(timeline, context=found)


def counted(timeline: Timeline) -> Timeline:
    """Return the timeline of a file with the steps of each rank counted, where nothing marks at least two.

    A step begins with a `DataLoader.__next__`; where none comes any more, or from the first, steps end with optimizers.
    """
    marked = [*numbers_of(timeline.names, BATCH_RANGE), *numbers_of(timeline.names, STEP_RANGE)]
    told = np.unique(timeline.lane[timeline.where(Kind.RANGE) & np.isin(timeline.name, marked)]).tolist()
    known, by_lane = {timeline.lanes[lane].device for lane in told}, timeline.by_lane()
    threads = gathered(  # the spans of the host threads of each rank
        (lane.device, spans) for lane, spans in zip(timeline.lanes, by_lane, strict=True) if lane.group == "host"
    )
    asks, stepping = timeline.named(lambda name: name.startswith(LOADER_NEXT)), timeline.named(OPTIMIZER_STEP.match)
    batch, notes, begin = timeline.batch.copy(), dict[str, None](), timeline.begin
    found: list[tuple[int, int, int, int]] = []  # start, end, lane and number of each step
    for main, lane in enumerate(timeline.lanes):
        if lane.role != "main" or lane.device in known:
            continue
        here = by_lane[main]
        asked, rows = timeline.start[here[asks[here]]].tolist(), here[stepping[here]]
        outer = intervals.outermost(timeline.start[rows], timeline.end[rows], begin)
        ends = timeline.end[rows[outer]].tolist()
        if not asked and ends:
            asked = [_first_step(timeline, here, stepping, np.array(ends))]
        steps = _from(asked, ends, int(timeline.end[here].max(initial=0)))
        if len(steps) < 2:
            continue
        begins, lasts = np.array(steps).T
        mine = np.sort(np.concatenate(threads[lane.device]))
        part = np.asarray(batch[mine], np.int32)
        _inside(part, timeline.start[mine], begins, lasts, np.arange(len(steps)))
        batch[mine] = part
        found += [(start, end, main, number) for number, (start, end) in enumerate(steps)]
        notes[COUNTED if len(asked) < 2 else BY_LOADER] = None
    if not found:
        return timeline
    return _numbered(timeline, batch, *np.array(found).T, *notes)


def _numbered(timeline: Timeline, batch: Ints, start: Ints, end: Ints, lane: Any, step: Ints, *notes: str) -> Timeline:
    """Return it with these batches, also of the work that is launched for them, a range for each step, and notes."""
    tails, heads = timeline.launches
    batch[heads] = batch[tails]
    timeline = noted(replace(timeline, spans=timeline.spans | {"batch": batch}), *notes)
    names = [batch_name(number, None) for number in step.tolist()]
    return with_spans(timeline, names, start=start, end=end, lane=lane, kind=Kind.RANGE, batch=step).sorted()


def _from(asked: list[int], ends: list[int], last: int) -> list[tuple[int, int]]:
    """Return start and end of the steps that begin when a batch is asked for, or end with an optimizer's step.

    What comes after the last batch and has several times the optimizers' steps that a batch usually has is a loop of
    another kind: its steps end with optimizers.
    """
    if not asked:
        return []
    places = np.searchsorted(ends, [*asked, last + 1])
    usual = int(np.median(np.diff(places[:-1]))) if len(asked) > 1 else 1
    rest = ends[places[-2] :]
    if not rest:
        return list(zip(asked, [*asked[1:], last], strict=True))
    if len(asked) == 1 or (usual and len(rest) > 2 * usual):
        return [*pairwise(asked), *pairwise([asked[-1], *rest[usual - 1 :: usual]])]
    return list(zip(asked, [*asked[1:], max(rest)], strict=True))


def by_optimizer(timeline: Timeline, marks: Sequence[tuple[int, int]]) -> Timeline:
    """Return the timeline of a loop without a loader with its steps numbered by `marks`: end [ns] and number of each.

    A step is what begins on the host between the end of the one before and its own end, and the device's work that is
    launched there; of several marks with one number the last is its end. It gets a range named as a batch is. Step 0
    begins where `_first_step` says; what was before, such as moving the data set, is of no batch, as is what comes
    after the last step. Ranges of a loader that handed out what is no step (its batches were moved to the GPU, or
    evaluated) are dropped.
    """
    main = next((number for number, lane in enumerate(timeline.lanes) if lane.role == "main"), -1)
    ends = {number: end for end, number in marks}
    if main < 0 or not ends:
        return timeline
    timeline = timeline.only(~(timeline.where(Kind.RANGE) & timeline.named(BATCH_RANGE.match)))
    numbers, last = np.array(list(ends)), np.array(list(ends.values()))
    here, stepping = np.flatnonzero(timeline.lane == main), timeline.named(OPTIMIZER_STEP.match)
    begins = np.r_[timeline.begin if numbers[0] else _first_step(timeline, here, stepping, last), last[:-1]]
    batch = np.full(len(timeline), -1, np.int32)
    _inside(batch, timeline.start, begins, last, numbers)
    batch[timeline.in_lanes(lambda lane: lane.role in LOADING or lane.group == "device")] = -1
    several = [IN_TURN] if len(marks) > len(ends) else []
    timeline = replace(timeline, context=replace(timeline.context, samples=None))
    return _numbered(timeline, batch, begins, last, main, numbers, BY_OPTIMIZER, *several)


def _first_step(timeline: Timeline, here: Ints, stepping: Mask, ends: Ints) -> int:
    """Return when step 0 begins [ns], for nothing marks it: where it looks as the shortest of the later steps does.

    `here` are the spans of the loop's thread, `stepping` tells which are of optimizers, `ends` has the ends of steps.

    An operator that is used n times in that step, until its optimizer, is used in step 0 for the last n times: of those
    that are, and not long before, the one that the shortest step uses first is where step 0 begins. Another one may be
    lacking in step 0, such as gradients set to zero. With one step alone it begins after the last copy to the GPU.
    """
    inside = here[stepping[here]]
    optimizing = intervals.union(timeline.start[inside], timeline.end[inside])
    rows = here[(timeline.kind[here] == Kind.OPERATOR) & ~intervals.covers(optimizing, timeline.start[here])]
    start = timeline.start[rows]
    places = np.searchsorted(start, ends)
    before, counts = rows[: places[0]], np.diff(places)
    if not len(before):
        return timeline.begin
    if not counts.any():
        tails, heads = timeline.launches
        calls = tails[timeline.where(Kind.COPY_H2D)[heads] & (timeline.start[tails] < timeline.start[before[-1]])]
        return int(start[np.searchsorted(start, timeline.end[calls].max())]) if len(calls) else timeline.begin
    shortest = int(np.argmin(np.where(counts, counts, len(rows) + 1)))
    usual = timeline.name[rows[places[shortest] : places[shortest + 1]]].tolist()
    used = gathered((name, place) for place, name in enumerate(timeline.name[before].tolist()))
    for name, often in Counter(usual).items():  # in order of their first use
        found = used.get(name, [])[-often:]
        if len(found) == often and len(before) - found[0] <= 2 * len(usual):
            return int(start[found[0]])
    return int(start[max(0, len(before) - len(usual))])


# Which steps of a loop are recorded, really run or emulated: leave out the first `wait`, record `steps`, then stop. A
# step begins when a batch is handed out to the main thread, or, where the first `optimizer.step()` comes before any
# batch, when the one before it has ended; if the program calls `recording.step()`, with that call, and then only with
# it. `Window` counts while the program runs, and turns the profiler on and off; `cut` does the same to an emulated
# timeline, afterwards.


class Window:
    """Counts steps, and lets `run` `prepare` one step before it has to `begin`, then `end`; `discard` if it was early.

    Before the first `called()` the hand-outs count. A program that counts its own steps has handed out a batch or more
    by then; what was recorded of those is thrown away and the count begins anew.
    """

    def __init__(self, run: RealRun, wait: int, steps: int | None) -> None:
        self.run, self.wait, self.steps = run, wait, steps
        self.count = 0  # steps that began
        self.by_call = self.by_optimizer = False
        self.open = self.over = False

    def enter(self) -> None:
        """The block begins: without `wait` the recording does, too, with all that comes before the first step."""
        if not self.wait:
            self._open()

    def batch(self) -> None:
        """A batch is handed out to the main thread."""
        if not (self.by_call or self.by_optimizer):
            self._step()

    def stepped(self) -> None:
        """A step is over, as an optimizer says: where no batch was handed out, the next one begins."""
        if self.count == 0 and not self.by_call:
            self.by_optimizer, self.count = True, 1  # the one that is over
        if self.by_optimizer:
            self._step()

    def called(self) -> None:
        """The program says that a step begins."""
        if not self.by_call:
            self.by_call, self.by_optimizer, self.count = True, False, 0
            if self.over or (self.open and self.wait):
                self.run.discard()
                self.open = self.over = False
        self._step()

    def leave(self) -> None:
        """The block ends, and with it the recording."""
        if self.by_optimizer and not self.over:
            self.count -= 1  # what came after the last optimizer.step() is no step
            if self.open and self.count == self.wait:
                self.run.discard()
                self.open = False
        if self.open:
            self._close()

    def _step(self) -> None:
        index, self.count = self.count, self.count + 1
        if self.open:
            if (self.steps is not None and index >= self.wait + self.steps) or not self.run.goes_on():
                self._close()
        elif not self.over:
            if index == self.wait:
                self._open()
            elif index == self.wait - 1:
                self.run.prepare()

    def _open(self) -> None:
        self.run.begin()
        self.open = True

    def _close(self) -> None:
        self.open, self.over = False, True
        self.run.end()


def notes(wait: int, steps: int | None, count: int) -> list[str]:
    """Say what is left out of a recording whose block had `count` steps."""
    first = f"the first {f'{wait} steps are' if wait > 1 else 'step is'} left out (wait={wait})"
    if wait and count <= wait:
        return [f"nothing is recorded: {first}, and the block had {count}"]
    found = [first] if wait else []
    if steps is not None and count > wait + steps:
        found.append(f"what came after {'the next' if wait else 'the first'} {steps} is left out (steps={steps})")
    elif steps is not None and count < wait + steps:
        found.append(f"the block had {count - wait} of the {steps} steps to record")
    return found


def limited(timeline: Timeline, limit: int, *, is_full: bool) -> Timeline:
    """Return the whole steps of a real run that have no more than so many spans together, with a note of the limit.

    `is_full`: it was ended because it seemed to have as many.
    """
    if len(timeline) <= limit and not is_full:
        return timeline
    if len(timeline) > limit:
        starts = np.sort(timeline.start)
        marks = timeline.where(Kind.RANGE) & timeline.named(
            lambda name: BATCH_RANGE.match(name) or STEP_RANGE.match(name)
        )
        edges = [time for time in timeline.start[marks].tolist() if timeline.begin < time <= starts[limit]]
        timeline = timeline.only(timeline.start < max(edges, default=starts[limit]))
    return noted(timeline, FULL.format(words.count(limit, "span")), samples=samples(timeline))


def cut(timeline: Timeline, wait: int, steps: int | None, by_call: bool) -> Timeline:
    """Return the part of an emulated timeline that `wait` and `steps` ask for; spans across its edges are cut there."""
    if not wait and steps is None:
        return timeline
    pattern = STEP_RANGE if by_call else BATCH_RANGE
    found = [(row.start, row.name) for row in timeline.rows(Kind.RANGE) if pattern.match(row.name)]
    starts = [start for start, _ in sorted(found)]
    if by_call and found and (first := pattern.match(min(found)[1])):  # those before it were dropped
        starts[:0] = [timeline.begin] * int(first["number"])
    if wait >= len(starts) and wait:
        part = replace(timeline.only(np.zeros(len(timeline), bool)), marks=())
    else:
        last = len(starts) if steps is None else wait + steps
        begin = starts[wait] if wait else timeline.begin
        end = starts[last] if last < len(starts) else timeline.begin + timeline.duration
        part = replace(timeline.between(begin, end), context=timeline.context)  # our own note says it in steps
    return noted(part, *notes(wait, steps, len(starts)), samples=samples(part))


def samples(timeline: Timeline) -> int | None:
    """Return how many samples its steps were for, by their ranges; None if one does not say."""
    ranges = np.flatnonzero(timeline.where(Kind.RANGE)).tolist()
    found = [match for index in ranges if (match := BATCH_RANGE.match(timeline.names[int(timeline.name[index])]))]
    counts = [int(match["samples"] or 0) for match in found]
    return sum(counts) if counts and all(counts) else None


# A part of a file. Taken is what the host begins in a time, the device's work that it launches there, and the ranges on
# the device that lie around this work; work without a launch by its own time. The rest becomes no span.


def checked_part(steps: Any, window: Any) -> tuple[slice | None, Any]:
    """Return both with Python's own whole numbers. Raises TypeError for what is no part of a trace."""
    if steps is not None and window is not None:
        raise TypeError("steps and window are two ways to say which part is read; give one of them")
    if steps is not None:
        one = isinstance(steps, slice) and (steps.step is None or (type(steps.step) is int and steps.step == 1))
        edges = (steps.start, steps.stop) if one else ("",)
        if not _ascending(0 if edges[0] is None else edges[0], *edges[1:]):
            raise TypeError(
                f"steps={steps!r}: give numbers of steps that follow each other, such as slice(3, 6) for 3, 4 and 5"
            )
    if window is not None and not (
        isinstance(window, tuple) and len(window) == 2 and None not in window and _ascending(*window)
    ):
        raise TypeError(f"window={window!r}: give start and end in ns from the first event, such as (0, 5_000_000)")
    given = window if steps is None else (steps.start, steps.stop)
    whole = tuple(None if each is None else index(each) for each in given or ())
    return (None, whole or None) if steps is None else (slice(*whole), None)


def _ascending(start: Any, end: Any = None) -> bool:
    """Tell whether these are whole numbers from 0 on, the second, unless it is None, the larger one."""
    try:
        first, last = (-1 if isinstance(each, bool) else index(each) for each in (start, start if end is None else end))
    except TypeError:
        return False
    return first >= 0 and (end is None or first < last)


def marks_of(trace: RawTrace) -> tuple[Ints, Ints]:
    """Return the rows that mark the steps of a trace, and their numbers; none where nothing marks them."""
    columns, found = trace.columns, (np.empty(0, np.int64),) * 2
    host = np.isin(columns["role"], (Role.ANNOTATION, Role.OPERATOR))
    for pattern in (STEP_RANGE, BATCH_RANGE):
        numbers = numbers_of(trace.names, pattern)
        marks = np.flatnonzero(host & np.isin(columns["name"], list(numbers)))
        if len(marks):
            found = marks, np.array([numbers[name] for name in columns["name"][marks].tolist()])
    return found


def of_steps(trace: RawTrace, steps: slice) -> RawTrace:
    """Return what belongs to the steps with these numbers, up to the beginning of the step after them.

    Raises `TraceError` where nothing in the file marks its steps, and where it has none of these.
    """
    columns, (marks, number) = trace.columns, marks_of(trace)
    if not len(marks):
        raise TraceError(
            f"nothing in {trace.path} marks its steps, nor can they be counted; give read() a window=(start, "
            "end) in ns instead, or call prof.step() in the loop that is recorded"
        )
    first, end = steps.start or 0, number.max() + 1 if steps.stop is None else steps.stop
    chosen = (number >= first) & (number < end)
    if not chosen.any():
        wanted = f"from {first} on" if steps.stop is None else f"from {first} to {end - 1}"
        raise TraceError(f"{trace.path} has the steps {number.min()} to {number.max()}, and none {wanted}")
    start = columns["start"][marks]
    begin = int(start[chosen].min())
    later = start[~chosen & (start > begin)]
    found = words.count(len(np.unique(number[chosen])), "step")
    note = f"the part that was read has {found} of {len(np.unique(number)):,} in the file"
    return _between(trace, begin, int(later.min(initial=1 << 62)), note)


def of_window(traces: Sequence[RawTrace], start: int, end: int) -> list[RawTrace]:
    """Return what belongs to the time from `start` to `end` [ns], counted from the first event of all.

    Raises `TraceError` where no trace has an event there.
    """
    begins = [int(trace.columns["start"].min(initial=1 << 62)) for trace in traces]
    zeros = [min(begins)] * len(begins) if all(trace.unix for trace in traces) else begins
    times = f"{words.duration(start)} to {words.duration(end)}"
    note = f"the part that was read is the time from {times} after the first event"
    parts = [_between(trace, zero + start, zero + end, note) for trace, zero in zip(traces, zeros, strict=True)]
    if not any(len(part.columns["start"]) for part in parts):
        last = max(
            int(trace.columns["end"].max(initial=zero)) - zero for trace, zero in zip(traces, zeros, strict=True)
        )
        raise TraceError(
            f"{traces[0].path.name} has no event in window=({start}, {end}); its last one ends at {last:,} ns"
        )
    return parts


def _between(trace: RawTrace, begin: int, end: int, note: str) -> RawTrace:
    columns = trace.columns
    keep = (columns["start"] >= begin) & (columns["start"] < end)
    calls, numbers = columns["role"] == Role.CALL, columns["correlation"]
    launched = np.isin(columns["role"], ON_DEVICE) & (numbers > 0) & np.isin(numbers, numbers[calls])
    keep = np.where(launched, np.isin(numbers, numbers[calls & keep]), keep)
    if (work := launched & keep).any():  # a range on the device is of the work in its middle
        middle = (columns["start"] + columns["end"]) // 2
        inside = (middle >= columns["start"][work].min()) & (middle <= columns["end"][work].max())
        keep = np.where(columns["role"] == Role.GPU_ANNOTATION, inside, keep)
    launches = set(numbers[keep].tolist())
    return replace(
        trace,
        columns={name: values[keep] for name, values in columns.items()},
        messages=[each for each in trace.messages if each.correlation in launches],
        remarks=[*trace.remarks, note],
        part=bool(np.isin(columns["role"], ON_DEVICE).any()),
        unplaced=round(trace.unplaced * keep.mean()) if len(keep) else 0,
    )
