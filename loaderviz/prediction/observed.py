"""A timeline -> its loop as a program: what a batch is, what loading it costs, and what the host does in a step.

    loop = Observed.of(timeline)
    loop.steps[0].calls        # the host's calls of a step, each with its own time and the work that it launches

Everything that belongs to loading is taken out of the steps: fetching, pinning, hand-outs, the copies to the GPU with
their calls and waits, events, and cold allocations. What is left stays as it was measured.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderviz import intervals
from loaderviz.activity import LOADING, Mask
from loaderviz.advice.evidence import HAND_OUT, SYNCHRONIZE, Evidence, either
from loaderviz.advice.host import ALLOCATE
from loaderviz.metrics import step_spans
from loaderviz.prediction.errors import WhatIfError
from loaderviz.timeline import DEVICE_KINDS, Cause, Kind, Timeline

Ints = npt.NDArray[np.integer[Any]]

EVENTS = re.compile(r"^(cuda|hip)(Event|StreamWaitEvent)")
MAIN_STREAM = 0.95  # of the kernels' time; with less in one stream the order between streams would matter
SAMPLES = re.compile(r": (\d+) samples?$")


@dataclass(frozen=True)
class Call:
    """A call of the host: `before` ns of its own work, then the call, which takes it `cost` ns without waiting.

    `work` is the span that it launches (-1: a synchronisation, or a call that launches nothing: `kind` None).
    """

    before: int
    cost: int
    operator: str
    source: str
    work: int = -1
    synchronizes: bool = False


@dataclass(frozen=True)
class Step:
    """A step of the loop: its batch, the tensors of that batch in bytes, its samples, and the host's calls."""

    batch: int
    samples: int
    tensors: tuple[int, ...]
    fetch: int
    calls: tuple[Call, ...]
    after: int  # ns of the host's work after the last call


class Observed:
    """The loop of a timeline, in its steady state."""

    def __init__(self, facts: Evidence) -> None:
        self.facts, self.timeline = facts, facts.timeline
        self.copies = facts.mask(Kind.COPY_H2D)
        _check(facts, self.copies)
        self._removed = self._not_the_steps()
        self._busy_before = either(facts.covered(self._host & self.timeline.where(Kind.WAIT)), self._removed)

    @classmethod
    def of(cls, timeline: Timeline) -> Observed:
        """Return the loop of a timeline; raise `WhatIfError` where it does not show one."""
        return cls(Evidence.of(timeline))

    # How the batches came

    @property
    def workers(self) -> int:
        """How many worker processes fetch; 0 where the main thread does."""
        return 0 if self.facts.fetching.any() else len(self.facts.lanes_of("worker"))

    @property
    def pinned(self) -> bool:
        """Whether most of the copied bytes come from pinned memory."""
        size = np.maximum(self.timeline.nbytes[self.copies], 1)
        return bool(size[self.timeline.pinned[self.copies] == 1].sum() * 2 > size.sum())

    @property
    def blocking(self) -> bool:
        """Whether the host synchronises after the copies."""
        return bool(self.facts.synchronizes(self.copies).sum() * 2 > self.copies.sum())

    @property
    def side_stream(self) -> bool:
        """Whether the copies have a stream of their own."""
        return not np.isin(self.timeline.lane[self.copies], [self.lane]).any()

    @property
    def depth(self) -> int:
        """How many batches are copied ahead: those called for before the first kernel of a step, on average."""
        timeline, calls = self.timeline, self.facts.launched_by
        copies = np.flatnonzero(self.copies & (calls >= 0) & (timeline.batch >= 0))
        kernels = np.flatnonzero(self.facts.mask(Kind.COMPUTE) & (calls >= 0) & (timeline.batch >= 0))
        called, ahead = timeline.start[calls[copies]], []
        for batch in np.unique(timeline.batch[kernels]).tolist():
            first = timeline.start[calls[kernels[timeline.batch[kernels] == batch]]].min()
            earlier = timeline.batch[copies[called < first]]
            ahead += [int(earlier.max()) - batch] if len(earlier) else []
        return max(0, int(np.median(ahead))) if ahead else 0

    @property
    def from_hand_out(self) -> bool:
        """Whether a step begins when its batch is handed out (loaderviz's marks), not when it is asked for."""
        timeline, facts = self.timeline, self.facts
        starts = dict(zip(timeline.batch[self._marks].tolist(), timeline.start[self._marks].tolist(), strict=True))
        asked = np.flatnonzero(facts.fetching | facts.waiting(Cause.DATA))
        inside = [timeline.start[row] >= starts[batch] for row in asked.tolist()
                  if (batch := int(timeline.batch[row])) in starts]  # fmt: skip
        return bool(sum(inside) * 2 <= len(inside))

    # What a step is

    @cached_property
    def steps(self) -> list[Step]:
        """The steps, in order."""
        timeline, facts, spans = self.timeline, self.facts, self._marks
        starts = timeline.start[spans].tolist()
        usual = self._usual_tensors()
        steps = []
        for index, (start, end) in enumerate(zip(starts, [*starts[1:], facts.end], strict=True)):
            batch = int(timeline.batch[spans[index]])
            name = timeline.names[timeline.name[spans[index]]]
            samples = SAMPLES.search(name)
            calls, after = self._calls(start, end)
            tensors, count = self._tensors(batch) or usual, int(samples[1]) if samples else 1
            steps.append(Step(batch, count, tensors, self._fetch(batch), calls, after))
        return steps

    @cached_property
    def lane(self) -> int:
        """The lane of the stream that computes. Raises `WhatIfError` if there are several."""
        kernels = self.facts.mask(Kind.COMPUTE)
        time = np.bincount(self.timeline.lane[kernels], (self.facts.last - self.facts.first)[kernels])
        if time.max() < MAIN_STREAM * time.sum():
            names = ", ".join(self.timeline.lanes[lane].name for lane in np.flatnonzero(time))
            raise WhatIfError(f"what_if() replays kernels in one stream, but here they run in several: {names}")
        return int(time.argmax())

    @cached_property
    def fetched(self) -> dict[int, int]:
        """For each batch how long it was fetched, by whom ever [ns]; empty if the timeline does not show it."""
        timeline = self.timeline
        mine = timeline.where(Kind.FETCH) & (timeline.batch >= 0)
        times: dict[int, int] = {}
        for index in np.flatnonzero(self.whole(mine)).tolist():
            batch, length = int(timeline.batch[index]), int(timeline.end[index] - timeline.start[index])
            times[batch] = times.get(batch, 0) + length
        return times

    @cached_property
    def draw_time(self) -> int:
        """What the loop's thread does for a batch besides fetching, pinning and the hand-out, on average [ns]."""
        facts, timeline = self.facts, self.timeline
        names = [number for number, name in enumerate(timeline.names) if HAND_OUT.match(name)]
        inside = facts.covered(facts.loop & np.isin(timeline.name, names))
        handed = [number for number, name in enumerate(timeline.names) if name == "DataLoader hand-out"]
        known = facts.fetching | facts.loop & (timeline.where(Kind.WAIT) | np.isin(timeline.name, handed))
        events = self._calls_named(EVENTS) | self._calls_named(ALLOCATE)
        rest = intervals.subtract(intervals.subtract(inside, facts.covered(known)), facts.covered(events))
        return round(intervals.length(rest) / max(1, len(self.steps)))

    def whole(self, mask: Mask) -> Mask:
        """Those of the spans that are not cut off at an edge of the timeline; all of them if none is whole."""
        timeline = self.timeline
        inside = mask & (timeline.start > timeline.begin) & (timeline.end < timeline.begin + timeline.duration)
        return inside if inside.any() else mask

    def own_time(self, mask: Mask) -> Ints:
        """How long each of these spans of the host takes without its waits [ns]."""
        waits = self.facts.covered(self._host & self.timeline.where(Kind.WAIT))
        start, end = self.facts.first[mask], self.facts.last[mask]
        own: Ints = end - start - intervals.covered_within(waits, start, end)
        return own

    # Inside

    @cached_property
    def _marks(self) -> list[int]:
        """The spans that mark the steps."""
        return step_spans(self.timeline, self.facts.start, self.facts.end, self.facts.device)[0]

    @cached_property
    def _host(self) -> Mask:
        """Spans of the threads that launch: the loop's, and autograd's where that is another one."""
        lanes = self.timeline.lanes
        rank = {lanes[number].device for number in np.unique(self.timeline.lane[self.facts.loop]).tolist()}
        threads = [n for n, lane in enumerate(lanes)
                   if lane.group == "host" and lane.role not in LOADING and lane.device in rank]  # fmt: skip
        return np.isin(self.timeline.lane, threads) & (self.facts.last > self.facts.first)

    def _calls_named(self, pattern: re.Pattern[str]) -> Mask:
        names = [number for number, name in enumerate(self.timeline.names) if pattern.match(name)]
        return self._host & self.timeline.where(Kind.API) & np.isin(self.timeline.name, names)

    def _not_the_steps(self) -> intervals.Intervals:
        """When the host does what belongs to loading, to events, or to cold memory."""
        events = self.facts.covered(self._calls_named(EVENTS) | self._calls_named(ALLOCATE))
        return either(self.facts.loading(self.copies), events)

    @cached_property
    def _kept(self) -> Ints:
        """The host's calls that belong to the steps, in order of start."""
        timeline, facts = self.timeline, self.facts
        calls = self._host & timeline.where(Kind.API) & ~self._calls_named(EVENTS) & ~self._calls_named(ALLOCATE)
        calls &= ~facts.calls(self.copies) & ~facts.synchronizes(self.copies)
        works = self._work_of
        numbers = [number for number, name in enumerate(timeline.names) if SYNCHRONIZE.match(name)]
        calls &= np.isin(np.arange(len(timeline)), list(works)) | np.isin(timeline.name, numbers)
        kept: Ints = np.flatnonzero(calls)
        return kept

    @cached_property
    def _work_of(self) -> dict[int, int]:
        """The span that each call launches. Raises `WhatIfError` for a call that launches several (a CUDA graph)."""
        here = np.flatnonzero(self.facts.here & self.timeline.where(*DEVICE_KINDS) & (self.facts.launched_by >= 0))
        calls = self.facts.launched_by[here].tolist()
        twice = [call for call, count in Counter(calls).items() if count > 1]
        if twice:
            name = self.timeline.names[self.timeline.name[twice[0]]]
            raise WhatIfError(f"what_if() cannot replay {name}, which launches several kernels at once (a CUDA graph)")
        return dict(zip(calls, here.tolist(), strict=True))

    def _calls(self, start: int, end: int) -> tuple[tuple[Call, ...], int]:
        """Return the calls of a step between these times, and the host's work after the last of them."""
        timeline, rows = self.timeline, self._kept
        rows = rows[(timeline.start[rows] >= start) & (timeline.start[rows] < end)]
        first, last = self.facts.first[rows], self.facts.last[rows]
        edges = np.r_[start, last]
        before = self._working(edges[:-1], np.maximum(first, edges[:-1]))
        cost = self._working(np.maximum(first, edges[:-1]), last)
        calls = []
        for row, gap, own in zip(rows.tolist(), before.tolist(), cost.tolist(), strict=True):
            work = self._work_of.get(row, -1)
            source = timeline.sources[timeline.source[row]] if timeline.source[row] >= 0 else ""
            calls.append(Call(gap, own, self._operator(row), source, work, work < 0))
        rest = int(self._working(edges[-1:], np.array([max(end, int(edges[-1]))]))[0])
        return tuple(calls), rest

    def _working(self, start: Ints, end: Ints) -> Ints:
        """How long the host works between these times on what is neither waiting nor loading."""
        idle = self._busy_before
        own: Ints = end - start - intervals.covered_within(idle, start, end)
        return own

    @cached_property
    def _operators(self) -> tuple[Ints, Ints]:
        rows = np.flatnonzero(self._host & self.timeline.where(Kind.OPERATOR))
        return rows, self.timeline.start[rows]

    def _operator(self, row: int) -> str:
        """The name of the innermost operator around a call, "" if there is none near."""
        rows, starts = self._operators
        place = int(np.searchsorted(starts, self.timeline.start[row], side="right"))
        for index in rows[max(0, place - 8) : place][::-1].tolist():
            if (
                self.timeline.end[index] >= self.timeline.end[row]
                and self.timeline.lane[index] == self.timeline.lane[row]
            ):
                return str(self.timeline.names[self.timeline.name[index]])
        return ""

    def _tensors(self, batch: int) -> tuple[int, ...]:
        mine = self.copies & (self.timeline.batch == batch) & (self.timeline.nbytes >= 0)
        return tuple(self.timeline.nbytes[mine].tolist())

    def _usual_tensors(self) -> tuple[int, ...]:
        """The tensors that most batches have, for those whose copies lie before the window."""
        batches = np.unique(self.timeline.batch[self.copies]).tolist()
        found = Counter(self._tensors(batch) for batch in batches if batch >= 0)
        found.pop((), None)
        if not found:
            raise WhatIfError("what_if() finds no copy to the GPU that is known to belong to a batch of known size")
        return found.most_common(1)[0][0]

    def _fetch(self, batch: int) -> int:
        if not self.fetched:
            return 0
        return self.fetched.get(batch, round(float(np.median(list(self.fetched.values())))))


def _check(facts: Evidence, copies: Mask) -> None:
    """Raise `WhatIfError` with what is missing, unless the timeline shows a loop."""
    spans, _ = step_spans(facts.timeline, facts.start, facts.end, facts.device)
    if not facts.mask(Kind.COMPUTE).any():
        raise WhatIfError("what_if() needs kernels: the timeline has no work of a GPU to replay")
    if not spans:
        raise WhatIfError(
            "what_if() needs steps: mark them with torch.profiler.record_function('batch 3'), use a DataLoader or a "
            "loader of loaderviz, or record with torch.profiler's schedule"
        )
    if not copies.any():
        raise WhatIfError("what_if() needs copies to the GPU: without them it does not know what a batch is")
    if facts.mask(Kind.COMMUNICATION).any():
        raise WhatIfError("what_if() predicts one GPU: this timeline has collectives, which wait for other ranks")
    if not (facts.launched_by[facts.mask(Kind.COMPUTE)] >= 0).any():
        raise WhatIfError("what_if() needs the host's calls: the timeline does not say which call launched a kernel")
