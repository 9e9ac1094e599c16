"""What a function of `advice` may ask a timeline: its steady state, who does what in it, and what would remain of it.

Everything is clipped to the window that is judged. A timeline may lack batches, host lanes, launches or copies.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from itertools import compress, cycle, groupby, islice, pairwise
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from loaderviz import intervals, words
from loaderviz.analysis import Gain
from loaderviz.batches import HAND_OUT, LOADER_NEXT, OPTIMIZER_STEP, WORKER_START
from loaderviz.intervals import Intervals, either
from loaderviz.metrics import (
    NONE,
    Loop,
    Summary,
    begin_of,
    choose_device,
    fetch_times,
    giving,
    in_loop,
    on_device,
    on_workers,
    summary_of,
    window_of,
)
from loaderviz.timeline import (
    COPIES,
    DEVICE_KINDS,
    KERNELS,
    LOADING,
    Cause,
    Ints,
    Kind,
    Mask,
    Timeline,
    gathered,
    grouped,
)
from loaderviz.vendors import MIGRATION, Api, calls_of

FEW, UNSEEN = 20, 0.25  # launches; share of the window in which the host waits for work that nobody sees
PHASE, PHASE_SHARE = 5, 0.1  # steps, and share of the window, of a part of the loop that is judged by itself
LOCK_TAKEN = 0.9  # of the time: where one of them has the lock so long, more workers gain next to nothing
QUEUED = 10_000  # ns: of two kernels that were both launched before, the second begins so soon after the first
LATE_FIRST, OFTEN = 1_000_000, 10  # ns, and times a later call: a first call that takes so long has started something
EARLY = 0.1  # of a step: so much work of the device that was launched before the window is of steps without a mark
SPARE = 1.25  # workers that are busy 80 % of the time keep up although batches differ
MOST_WORKERS = 64  # as many as `what_if` replays
SHARED_MEMORY, PREFETCHED = 8 << 30, 2  # bytes, where not known: half of 16 GB; batches a worker makes ahead
LINE_SHARE = 0.2  # of what fetches do for the longest: a line that takes so much of it is named
LONG = 1.5  # times the median step
OTHER, OTHER_SHARE = 100_000, 0.02  # ns a launch, share of the window: more is no launching
SEEN = 2  # calls that were seen in a line, or it is not named
NO_ROWS, CALLS = np.zeros(0, np.int64), (Kind.OPERATOR, Kind.API, Kind.WAIT)
LOOKS, LOOKED = 3, 0.1  # so many looks, and so much of the window, or a line that was looked at is not named
TURNS = 0.9  # of all cores
TYPICAL_CORES = 16  # for one GPU, in a server or a cloud machine; only where the timeline does not tell
_LOADER = re.compile(r"\(loader \d+\)$")  # in the name of a lane, from the second one on
_OPERATION = re.compile(r"AllReduce|AllGather|ReduceScatter|Broadcast|SendRecv|AllToAll|Reduce", re.I)
CALLERS = {  # of collectives, by a range around their launch: the first that is there
    "tensor-parallel": re.compile(r"ModelParallelRegion|TensorParallel|(Column|Row)ParallelLinear").search,
    "exchange": re.compile(r"all2all|alltoall", re.I).search,
    "fsdp": re.compile(r"FSDP|FullyShardedDataParallel|fully_shard").search,
    "optimizer": re.compile(r"Optimizer\.step#").search,
    "ddp": re.compile(r"DistributedDataParallel|AccumulateGrad").search,
}
NUMBER = 8  # bytes
READING = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero")
MASKS = "aten::nonzero", "aten::masked_select"  # what they give has a size that the host must know
FINITE = ("aten::isnan", "aten::isinf", "aten::isfinite", "aten::logical_or")  # as clip_grad_norm_ asks for an error
SCALED = ("aten::_amp_foreach_non_finite_check_and_unscale_",)  # by which GradScaler knows whether to step
ANOMALY = ("aten::_is_any_true",)  # so anomaly detection looks at each gradient
COPY_OPERATORS = ("aten::to", "aten::_to_copy", "aten::copy_")
# Inside another operator these make a new tensor of a batch; an operator of the loop itself does so unless it is one of
# `LOOKS_ON`: it leads to another one, looks at the batch otherwise, or draws a number
CONVERTS = {
    f"aten::{name}{end}"
    for name in ("_to_copy", "div", "mul", "sub", "add", "rsub", "clone", "clamp", "neg")
    for end in ("", "_")
}
LOOKS_ON = re.compile(
    r"aten::(to|contiguous|view|reshape|permute|transpose|movedim|flatten|(un)?squeeze|expand|slice|select|narrow|split|"
    r"chunk|unbind|detach|lift_fresh|item|is_nonzero|_local_scalar_dense|rand|randn|randint|randperm|empty|zeros|ones|"
    r"full|arange|tensor|eq|ne|[lg][te]|copy_|set_|resize_|_nested)($|_(as|like|strided|int|copy)$)|(?!aten::)"
).match
LOOKS_AT = re.compile(
    r"aten::(sum|mean|a?min|a?max|argm(in|ax)|std|var|norm|any|all|equal|unique|histc|bincount)"
).match
# Bytes a ns of one thread: what makes a tensor takes longer, and so what is shorter has made another one. Many threads
# make a large one sooner: 16 divide 6.3 MB of floats in 86 us. An operator takes so many ns whatever it does
FASTEST, TOGETHER, CALLED = 30, 100, 10_000
_LAYERS = r"\w*(mm|conv|linear|matmul|attention|embedding)"
TRAINS = re.compile(rf"aten::{_LAYERS}|Optimizer\.step#").match  # no line to leave out
BACKWARD = re.compile(r"aten::(\w+_)?backward|aten::ones_like$|autograd::engine").match  # begins with the loss' own
_WHOLE = "(forward|backward)$"  # of a step without a model
LAYER = re.compile(rf"(aten::|autograd::engine::evaluate_function: )({_LAYERS}|{_WHOLE})", re.IGNORECASE).match


@dataclass(frozen=True)
class Floor:
    """What takes at least `ns` in the window, and what it is in words."""

    ns: int
    what: str


@dataclass(frozen=True)
class Removal:
    """What a line that is written anew takes away: the host's time `when`, its `calls`, with what they launch.

    `even`: each batch takes as long to fetch as all do on average, `any_order`: as `Evidence.as_ready` says.
    `shrink`: the share of a batch's bytes that is left, `fetch`: of the time of its fetch, `waits`: of what that waits.
    `pinned`: what is copied lies in pinned memory then. `joined`: so many tensors of a batch are copied at once.
    `graphs`: what is left of a step is a CUDA graph. `longer`: what the host does in place of it, a step [ns].
    """

    when: Intervals
    calls: Mask
    joined: int = 0
    graphs: bool = False
    even: bool = False
    any_order: bool = False
    shrink: float = 1.0
    fetch: float = 1.0
    waits: float = 1.0
    pinned: bool = False
    longer: int = 0


class OtherWork(NamedTuple):
    """Where ("file:line", "" if nowhere) and when a line does it, within which time at most, and the line's spans.

    `seen`: the line is known from looks, which tell it of a part of the time, and not from its spans.
    """

    place: str
    when: Intervals
    within: Intervals
    spans: Mask
    seen: bool = False


class Fetch(NamedTuple):
    """Of a batch [ns]: it `computes` on a core, `waits` without one; `shortest`: the least that any computes."""

    computes: float = 0.0
    waits: float = 0.0
    shortest: float = 0.0

    @property
    def takes(self) -> float:
        """How long it is, in all [ns]."""
        return self.computes + self.waits

    @property
    def on_core(self) -> float:
        """The share of it (0..1) that is computing; 1 where it is not known."""
        return self.computes / self.takes if self.takes else 1.0


class Evidence:
    """One device of a timeline (None: the busiest), in a `window` [ns], or for None in the steady state.

    Masks are over the timeline's spans. `marks` are the spans that mark the steps, those that begin in the window.
    What is `outside` of all steps (None: as `Loop` says) is no part of anything but of the findings about it.
    """

    def __init__(
        self,
        timeline: Timeline,
        device: int | None = None,
        window: tuple[int, int] | None = None,
        outside: Intervals | None = None,
    ) -> None:
        self.asked = window
        device, _ = choose_device(timeline, device)
        self.cores = timeline.context.cores  # of the machine that was recorded; None if the timeline does not tell
        loop = Loop.of(timeline, device)
        if window is None:
            window = loop.window or _working(timeline, device)
        start, end = window_of(timeline, window)
        self.timeline, self.device, self.start, self.end = timeline, device, start, end
        self.marked, self.outside = loop, loop.outside(start, end) if outside is None else outside
        self.judged = intervals.subtract(np.array([[start, end]]), self.outside)
        self.window = intervals.length(self.judged)
        self.marks: list[int] = loop.spans[loop.between(start, end)].tolist()
        self.summary: Summary = summary_of(loop, start, end, self.outside)
        self.steps = self.summary.batches
        self.first: Ints = np.clip(timeline.start, start, end)  # of each span, what lies in the window
        self.last: Ints = np.clip(timeline.end, start, end)
        inside = (timeline.end > start) & (timeline.start < end)
        apart = (timeline.end > timeline.start) & (intervals.covered_within(self.judged, self.first, self.last) == 0)
        inside &= ~apart
        self.last = np.where(apart, self.first, self.last)
        self.here = inside & on_device(timeline, device) & timeline.where(*DEVICE_KINDS)  # its work: a range is none
        self.loop = inside & in_loop(timeline, device)

    # Who does what

    def mask(self, *kinds: Kind) -> Mask:
        """The device's spans of these kinds."""
        return self.here & self.timeline.where(*kinds)

    def covered(self, mask: Mask) -> Intervals:
        """When any of these spans runs."""
        found = intervals.union(self.first[mask], self.last[mask])
        return intervals.intersect(found, self.judged) if len(self.outside) else found

    @cached_property
    def kernels(self) -> Intervals:
        """When a kernel runs."""
        return self.covered(self.mask(*KERNELS))

    @cached_property
    def idle(self) -> Intervals:
        """When the device has nothing to do."""
        return intervals.subtract(self.judged, self.covered(self.here))

    def length(self, mask: Mask) -> int:
        """How many ns any of these spans runs."""
        return intervals.length(self.covered(mask))

    def exposed(self, copies: Mask) -> int:
        """How many ns of these copies no kernel hides."""
        return intervals.length(intervals.subtract(self.covered(copies), self.kernels))

    @cached_property
    def elastic(self) -> Intervals:
        """When the loop's thread waits for what could be there earlier (work, data): not a call's own cost."""
        waits = self.covered(self.loop & self.timeline.where(Kind.WAIT))
        waits = intervals.intersect(waits, self.covered(self.here))
        return either(waits, self.covered(self.waiting(Cause.DATA)))

    def waiting(self, *causes: Cause) -> Mask:
        """The waits of the loop's thread for these causes."""
        return self.loop & self.timeline.select(Kind.WAIT, cause=causes)

    @cached_property
    def launched_by(self) -> Ints:
        """For each span the host's call that launched it, -1 where that is not known."""
        result = np.full(len(self.timeline), -1, np.int64)
        calls, work = self.timeline.launches
        result[work] = calls
        return result

    @cached_property
    def _does(self) -> Ints:
        return calls_of(self.timeline.names)[self.timeline.name]

    def does(self, what: Api) -> Mask:
        """The host's calls that do any of this, whatever the vendor calls them."""
        mine: Mask = self.timeline.where(Kind.API) & (self._does & what != 0)
        return mine

    @cached_property
    def _synchronizing(self) -> tuple[Ints, Ints]:
        """The loop's synchronising calls, and for each the copy that the call just before it launched (-1: none)."""
        timeline = self.timeline
        calls = np.flatnonzero(self.loop & timeline.where(Kind.API))
        calls = calls[np.lexsort((calls, timeline.lane[calls]))]  # per thread, in order of start
        place = np.flatnonzero(self.does(Api.SYNCHRONIZE)[calls])
        copy_of = np.full(len(timeline), -1, np.int64)
        copies = np.flatnonzero(timeline.where(*COPIES) & (self.launched_by >= 0))
        copy_of[self.launched_by[copies]] = copies
        before = np.where(place > 0, copy_of[calls[place - 1]], -1) if len(calls) else place
        return calls[place], before

    def synchronizes(self, after: Mask | None) -> Mask:
        """The synchronising calls of the loop that follow at once one of the copies `after`; for None, no H2D copy.

        `.to("cuda")` calls so for its copy; `.item()` for a copy to the host, or a program of its own accord. One
        before the first launch or after the last one keeps none back, such as a profiler's when it begins or ends.
        """
        calls, copy = self._synchronizing
        if after is None:
            launched = np.sort(self.timeline.start[self.launching])
            place = np.searchsorted(launched, self.timeline.start[calls])
            mine = (copy < 0) & (place > 0) & (place < len(launched))
            mine |= (copy >= 0) & ~self.timeline.where(Kind.COPY_H2D)[copy]
        else:
            mine = (copy >= 0) & after[copy]
        return self.timeline.places(calls[mine])

    @cached_property
    def waits_inside(self) -> Mask:
        """Where the host waits for the GPU between two launches of one step; none if that is in less than half of them.

        A wait before a step's first kernel or after its last one is none: a CUDA graph of the step need not hold it.
        """
        waits = self.loop & self.does(Api.SYNCHRONIZE) | self.waiting(Cause.SYNCHRONIZE, Cause.STAGING)
        rows, starts = np.flatnonzero(waits), self.timeline.start[self.marks]
        launches = np.sort(self.timeline.start[self.calls(self.mask(*KERNELS))])
        steps = np.r_[-1, np.searchsorted(starts, launches, side="right"), -1]
        place = np.searchsorted(launches, self.timeline.start[rows])
        inside = rows[(steps[place] == steps[place + 1]) & (steps[place] > 0)]
        often = 2 * len(np.unique(np.searchsorted(starts, self.timeline.start[inside]))) >= max(1, len(starts))
        return waits & self.timeline.places(inside if often else [])

    def follows(self, calls: Mask) -> Mask:
        """The spans before which the loop's last call to launch was one of these."""
        rows, starts = np.flatnonzero(self.launching | calls), self.timeline.start
        place = np.searchsorted(starts[rows], starts) - 1
        return (place >= 0) & calls[rows][place] if len(rows) else calls

    @cached_property
    def at_lines(self) -> tuple[Ints, Ints]:
        """The spans of the main thread whose line is known, and until when it is at that line: until the next one.

        None where few calls have lines: in a recording of a real run, and its replay, those in which it was seen.
        """
        timeline = self.timeline
        main = timeline.in_lanes(lambda lane: lane.role == "main")
        calls = np.flatnonzero(main & timeline.where(*CALLS))
        calls = calls[intervals.outermost(timeline.start[calls], timeline.end[calls], timeline.begin)]
        if 2 * np.count_nonzero(timeline.source[calls] >= 0) <= len(calls):
            return (NO_ROWS, NO_ROWS)
        rows = np.flatnonzero(main & (timeline.source >= 0) & ~timeline.where(Kind.RANGE))
        starts = timeline.start[rows]
        return rows, np.maximum(np.r_[starts[1:], self.end][: len(rows)], starts)

    def in_lines(self, mask: Mask) -> Intervals:
        """When the main thread is in the lines of these spans, between two calls, too."""
        rows, until = self.at_lines
        rows, until = rows[mask[rows]], until[mask[rows]]
        return intervals.intersect(intervals.union(self.timeline.start[rows], until), self.judged)

    @cached_property
    def training_lines(self) -> Ints:
        """The lines of the program that train: forward and backward pass, optimizer."""
        timeline = self.timeline
        training = self.covered(self.loop & timeline.named(lambda name: bool(TRAINS(name))))
        lines: Ints = np.unique(timeline.source[self.loop & intervals.covers(training, timeline.start)])
        return lines

    def line_mates(self, calls: Mask) -> Mask:
        """What else stands in the lines of these calls, and what it launches; nothing of a line that trains, too."""
        timeline = self.timeline
        lines = np.setdiff1d(timeline.source[calls], self.training_lines) if len(self.at_lines[0]) else NO_ROWS
        mine = self.loop & np.isin(timeline.source, lines[lines >= 0])
        return mine | self.here & self.launched(mine)

    def using(self, results: Mask) -> Mask:
        """What torch does on the host with these results, up to the next launch or batch; nothing with a number."""
        timeline, starts = self.timeline, self.timeline.start
        calls = self.calls(results & (timeline.nbytes > NUMBER))
        operators = self.loop & timeline.where(Kind.OPERATOR) & timeline.named(lambda name: name.startswith("aten::"))
        given = self.loop & self.handing_out | self.fetching
        rows, launches = np.flatnonzero(self.launching | calls | given), np.sort(starts[self.launching])
        place = np.searchsorted(starts[rows], starts) - 1
        found = operators & (place >= 0) & calls[rows[place]] if len(rows) else operators & False
        found &= np.searchsorted(launches, starts) == np.searchsorted(launches, timeline.end)
        return found & ~(np.isin(timeline.source, self.training_lines) & (timeline.source >= 0))

    def asking(self, calls: Mask, operators: Sequence[str]) -> Mask:
        """Those of these calls that bring what one of these operators has given: no kernel is launched in between."""
        timeline, mine = self.timeline, np.flatnonzero(calls)
        rows = np.flatnonzero(self.loop & timeline.where(Kind.OPERATOR) & timeline.named(operators.__contains__))
        launches, begins = np.sort(timeline.start[self.calls(self.mask(*KERNELS))]), timeline.start[mine]
        ended = np.r_[timeline.begin - 1, timeline.end[rows]][np.searchsorted(timeline.start[rows], begins)]
        none = np.searchsorted(launches, begins) == np.searchsorted(launches, ended)
        return timeline.places(mine[none & (ended >= timeline.begin)])

    @cached_property
    def program(self) -> Mask:
        """The spans of the loop's thread, and of those that torch starts for it, such as autograd's."""
        lanes = self.timeline.lanes
        ranks = {lanes[number].device for number in np.unique(self.timeline.lane[self.loop]).tolist()}
        threads = self.timeline.in_lanes(lambda lane: lane.role == "thread" and lane.device in ranks)
        return self.loop | threads & (self.last > self.first)

    def operating(self, operators: Sequence[str]) -> Mask:
        """The program's spans that are one of these operators, or in one, and what they launch."""
        host, timeline = self.program, self.timeline
        inside = self.covered(host & timeline.where(Kind.OPERATOR) & timeline.named(operators.__contains__))
        mine = host & intervals.covers(inside, timeline.start) & ~timeline.where(Kind.RANGE)
        both: Mask = mine | self.here & self.launched(mine)
        return both

    def around(self, operators: Sequence[str], calls: Mask) -> Intervals:
        """When the loop's thread is in one of these operators, such as `READING`, that makes one of these calls."""
        timeline, starts = self.timeline, np.sort(self.first[calls])
        mine = self.loop & timeline.where(Kind.OPERATOR) & timeline.named(operators.__contains__)
        return self.covered(mine & (np.searchsorted(starts, self.last) > np.searchsorted(starts, self.first)))

    def launched(self, calls: Mask) -> Mask:
        """The spans that these calls of the host launched."""
        return calls[self.launched_by] & (self.launched_by >= 0)

    def idle_beside(self, waits: Intervals) -> int:
        """How long the device is idle in each of these waits of the host and after it, but no longer than it lasts.

        After it is up to the first work that the host launches ahead again, while the device has other work, or to the
        next wait.
        """
        rows, (start, end), idle = np.flatnonzero(self.here), waits.T, np.r_[self.idle, [[self.end, self.end]]]
        call = np.where(self.launched_by[rows] < 0, rows, self.launched_by[rows])
        before = idle[np.searchsorted(self.idle[:, 1], self.first[rows])]  # the gap that the work ends, if it does
        ahead = (before[:, 1] > self.first[rows]) | (self.timeline.end[call] <= before[:, 0])
        called = np.sort(self.timeline.start[call[ahead]])
        rows = rows[ahead][np.argsort(self.timeline.start[call[ahead]], kind="stable")]
        until = np.r_[self.first[rows], self.end][np.searchsorted(called, end)]
        until = np.clip(until, end, np.r_[start[1:], self.end])
        return int(np.minimum(intervals.covered_within(self.idle, start, until), end - start).sum())

    def operators_of(self, calls: Mask) -> Counter[str]:
        """For how many ns these calls are in which operators: the innermost, but `aten::to` has what copies for it."""
        operators, within = self.loop & self.timeline.where(Kind.OPERATOR), (*COPY_OPERATORS[1:], READING[1])
        inner = operators & self.timeline.named(within.__contains__)
        rows, times = [np.flatnonzero(each) for each in (operators & ~inner, inner)], Counter[str]()
        for call in np.flatnonzero(calls).tolist():
            names = (self.innermost(each, call) for each in rows)
            times[next(filter(None, names), "")] += int(self.last[call] - self.first[call])
        return Counter({name: time for name, time in times.items() if name})

    def calls(self, work: Mask) -> Mask:
        """The host's calls that launched these spans of the device."""
        launch = self.launched_by[work]
        return self.timeline.places(launch[launch >= 0]) & self.loop

    def copying(self, copies: Mask) -> Intervals:
        """When the loop's thread is inside the calls of these copies, or in the synchronisation that follows them."""
        return self.covered(self.calls(copies) | self.synchronizes(copies))

    def removal(self, when: Intervals = NONE, calls: Mask | None = None, **change: Any) -> Removal:
        """What a changed line takes away; without arguments nothing."""
        return Removal(when, self.timeline.places([]) if calls is None else calls, **change)

    def fault(self, kind: str) -> str | None:
        """Where this was seen to be wrong while it was recorded, "" where no line is known; None if it was not."""
        told = (each.partition(" ") for each in self.timeline.context.faults)
        return next((line for name, _, line in told if name == kind), None)

    @cached_property
    def on_host(self) -> tuple[Mask, Mask]:
        """What the host computes of a model in the GPU's loop: its operators, and the copies for it between both.

        Nothing where autograd computes no layer on the host, or nothing is copied for it, in most of the steps.
        """
        timeline, none = self.timeline, np.zeros(len(self.timeline), bool)
        rows = np.flatnonzero(self.program & timeline.where(Kind.OPERATOR) & (self.last > self.first))
        calls = np.sort(timeline.start[self.launched_by[self.launched_by >= 0]])
        alone = np.searchsorted(calls, timeline.end[rows]) == np.searchsorted(calls, timeline.start[rows])
        alone &= ~intervals.covers(self.covered(self.fetching | self.loop & self.handing_out), timeline.start[rows])
        place = timeline.lane * (len(timeline.sources) + 1) + timeline.source  # its thread and line
        back = np.isin(place, place[rows[timeline.named(BACKWARD)[rows]]])
        layers = timeline.named(lambda name: LAYER(name) or "_backward" in name)
        mine = timeline.places(rows[alone & ((timeline.end - timeline.start)[rows] >= CALLED)])
        copies = self.here & timeline.where(*COPIES) & self.launched(self.program & np.isin(place, place[mine]))
        for each in (mine & back & layers, copies & self.launched(self.program & back)):
            steps = np.unique(np.searchsorted(timeline.start[self.marks], timeline.start[each]))
            if not self.steps or 2 * len(steps) < self.steps:
                return none, none
        return mine, copies

    @cached_property
    def pageable(self) -> Mask:
        """The copies of batches from pageable memory, but for those that the data set makes."""
        copies: Mask = self.batch_copies & (self.timeline.pinned == 0) & ~self.in_dataset
        return copies

    @cached_property
    def converted(self) -> tuple[Mask, Mask]:
        """The pageable copies of what the loop made on the host of a batch, just before, and the operators that did."""
        timeline = self.timeline
        copies, found = np.zeros((2, len(timeline)), bool)
        rows = np.flatnonzero(self.loop & timeline.where(Kind.OPERATOR))
        outer = intervals.outermost(timeline.start[rows], timeline.end[rows], self.start)
        makes = timeline.named(CONVERTS.__contains__)
        rows, shared = rows[outer | makes[rows]], makes
        makes = makes | ~timeline.named(lambda name: bool(LOOKS_ON(name)))
        begins, lasts = timeline.start[rows], (timeline.end - timeline.start)[rows] * makes[rows]
        long, together = (lasts - CALLED).clip(0) * shared[rows], min(TOGETHER, FASTEST * (self.cores or 1))
        given = self.fetching | self.waiting(Cause.DATA) | (self.loop & self.handing_out) | self.launching
        given |= self.loop & timeline.named(lambda name: bool(LOOKS_AT(name)))  # what was made for it is not copied
        edges = np.r_[self.start, np.sort(timeline.end[given])]
        for copy in np.flatnonzero(self.pageable & (self.launched_by >= 0)).tolist():
            begin = timeline.start[self.launched_by[copy]]
            edge = edges[np.searchsorted(edges, begin, side="right") - 1]
            after, until = np.searchsorted(begins, (edge, begin)).tolist()
            made = after + np.flatnonzero(lasts[after:until] * (timeline.end[rows[after:until]] <= begin))
            most = max(lasts[made].sum() * FASTEST, long[made].sum() * together)
            copies[copy] = most > timeline.nbytes[copy]
            found[rows[made]] |= copies[copy]
        return copies, found

    # What remains

    def device_floor(self, copies: Mask | None = None, left: float = 1.0, *, apart: bool = False) -> Floor:
        """Return how long the device works at least: its busiest engine or stream (a stream runs in order, R16).

        Of the time of `copies` only the share `left` remains; `apart`: they are in a stream of their own.
        """
        kind = self.timeline.kind
        time = (self.last - self.first).astype(np.float64)
        if copies is not None:
            time[copies] *= left
        kernels = self.kernels if copies is None or left else self.covered(self.mask(*KERNELS) & ~copies)
        floors = [Floor(intervals.length(kernels), "kernels")]
        for direction, what in ((Kind.COPY_H2D, "H2D copies"), (Kind.COPY_D2H, "D2H copies")):
            mine = self.here & (kind == direction)  # two rows of one direction may overlap in a recorded trace
            floors.append(Floor(round(min(time[mine].sum(), self.length(mine))), what))
        queued = self.here & ~copies if apart and copies is not None else self.here
        busy = np.bincount(self.timeline.lane[queued], time[queued], len(self.timeline.lanes))
        if len(busy) and busy.max() > max(floor.ns for floor in floors):
            lane = int(busy.argmax())
            floors.append(Floor(round(busy[lane]), f"work in {self.timeline.lanes[lane].name}"))
        return max(floors, key=lambda floor: floor.ns)

    def host_floor(self, without: Intervals | None = None) -> Floor:
        """Return how long the loop's thread works at least: the window less what is elastic, and `without`.

        Less is what workers took from it on a real machine: no more than they worked, and than it lacked a core, which
        is measured, or follows from how many threads share the cores.
        """
        if not self.loop.any():
            return Floor(0, "")
        free = self.elastic if without is None else either(self.elastic, without)
        works, workers, many = intervals.subtract(self.judged, free), self.lanes_of("worker"), len(self.marks)
        own = intervals.length(works)
        if many > 2:  # but the last step, which ends with the last work
            edges = self.timeline.start[self.marks][[0, -1]].astype(np.int64)
            own = min(own, intervals.length(intervals.intersect(works, edges[np.newaxis])) * many // (many - 1))
        if not workers or self.timeline.context.origin == "emulated":
            return Floor(own, "the host's own work")
        crowded = own * max(0.0, 1 - (self.cores or 1 + len(workers)) / (1 + len(workers)))
        lacked = self.timeline.context.usage.get("loop lacked", crowded)
        return Floor(round(own - min(own, lacked, self.worked)), "the host's own work")

    def supply_floor(self, *roles: str) -> Floor:
        """Return how long the workers and the pin thread work at least (or only those of `roles`).

        Counted is what a lane does in the window for batches that are used in it, each as short as its shortest: longer
        ones may have page-locked new memory, which another loader need not do.
        """
        timeline, time = self.timeline, self.last - self.first
        used = timeline.batch[self.here].max(initial=-1)
        mine = timeline.where(Kind.FETCH, Kind.PIN) & (timeline.batch >= 0) & (timeline.batch <= used) & (time > 0)
        whole = mine & (timeline.start > self.start) & (timeline.end < self.end)  # not cut off at an edge
        floors = [Floor(0, "")]
        by_lane = timeline.by_lane()
        for lane in self.lanes_of(*(roles or LOADING)):
            here = by_lane[lane]
            if whole[here].any():
                work = int(np.minimum(time[here[mine[here]]], time[here[whole[here]]].min()).sum())
                floors.append(Floor(work, f"work in {timeline.lanes[lane].name}"))
        return max(floors, key=lambda floor: floor.ns)

    def gain(self, direct: int, what: str, *floors: Floor) -> Gain:
        """Return the bound: `direct` ns, which is `what`, but no more than what the window has above these floors."""
        rest = max(floors, key=lambda floor: floor.ns)
        bound = self.window - rest.ns
        if direct <= bound:
            basis = f"at most {words.duration(direct)} in the window, {what}"
        else:
            basis = f"at most the window, {words.duration(self.window)}, less {words.duration(rest.ns)} of {rest.what}"
        ns = max(0, min(direct, bound))
        share, step = ns / self.window if self.window else 0.0, self.summary.step
        if not (step and self.rounds):
            return Gain(ns, share, None, basis)
        # The last of its steps may be longer than from one to the next, or shorter: it ends with the last work
        each = max(share * step, ns / self.rounds, step - rest.ns / self.rounds if ns == bound else 0)
        return Gain(ns, share, min(step, each), basis)

    @cached_property
    def rounds(self) -> float | None:
        """How many steps the device's work in the window is of: also of steps before the first mark, if it has some."""
        first, step = min(self.marks, default=-1), self.summary.step
        early = self.mask(*KERNELS) & (self.timeline.batch < 0) & (self.launched_by < 0)
        if first < 0 or not step or not early.any():
            return self.steps
        begin = begin_of(self.timeline, self.device, np.array([first]))[0]
        early &= self.timeline.end <= begin
        return max(self.steps or 0, self.window / step) if self.length(early) > EARLY * step else self.steps

    def per_step(self, ns: float, rounds: float | None = None) -> float | None:
        """Return a step's part of `ns` in the window; None where steps are not known, or are shorter than that.

        What the host does is of the steps that are marked, what the device does may be of more `rounds`.
        """
        each = ns / (rounds or self.steps) if self.steps else None
        return each if each is None or each <= (self.summary.step or each) else None

    def bound(
        self,
        direct: int,
        what: str,
        copies: Mask | None = None,
        left: float = 1.0,
        *,
        apart: bool = False,
        host: Intervals | None = None,
        supply: bool = True,
    ) -> Gain:
        """Return the gain of a change of which `device_floor(copies, left, apart)` and `host_floor(host)` remain."""
        floors = [self.device_floor(copies, left, apart=apart), self.host_floor(host)]
        return self.gain(direct, what, *floors, *([self.supply_floor()] if supply else []))

    # Communication

    def operations(self, collectives: Mask) -> list[str]:
        """What these collectives do, the longest first: "all_reduce"; by the range of their launch, else their name."""
        timeline = self.timeline
        times: dict[str, int] = {}
        rows = np.flatnonzero(timeline.named(lambda name: name.startswith("nccl:")) & (timeline.end > timeline.start))
        for row in np.flatnonzero(collectives).tolist():
            name, call = timeline.names[timeline.name[row]].partition("(")[0], int(self.launched_by[row])
            if around := self.innermost(rows, call if call >= 0 else row):
                name = around.removeprefix("nccl:").lstrip("_").removesuffix("_base")
            elif found := _OPERATION.search(name):
                name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", found.group()).lower()
            times[name] = times.get(name, 0) + int(self.last[row] - self.first[row])
        return sorted(times, key=lambda name: -times[name])

    def caller(self, collectives: Mask) -> tuple[str, str]:
        """What calls these collectives for most of their time: a key of `CALLERS` and a range's name; else "" twice."""
        timeline, times, lane = self.timeline, dict[tuple[str, str], int](), self.timeline.lane
        ranges = {caller: np.flatnonzero(timeline.named(of)) for caller, of in CALLERS.items()}
        for row in np.flatnonzero(collectives & (self.launched_by >= 0)).tolist():
            call = int(self.launched_by[row])
            mine = ((caller, self.innermost(rows[lane[rows] == lane[call]], call)) for caller, rows in ranges.items())
            found = next((each for each in mine if each[1]), ("", ""))
            times[found] = times.get(found, 0) + int(self.last[row] - self.first[row])
        return max(times, key=lambda each: times[each], default=("", ""))

    def innermost(self, rows: Ints, span: int) -> str:
        """The name of the last of `rows`, spans in order of start, that runs when another one begins; "" if none."""
        timeline, begin = self.timeline, self.timeline.start[span]
        place = bisect_right(rows, begin, key=timeline.start.__getitem__)  # type: ignore[arg-type, unused-ignore]
        around = rows[max(0, place - 8) : place]
        around = around[timeline.end[around] > begin]
        return timeline.names[timeline.name[around[-1]]] if len(around) else ""

    # Loading

    @cached_property
    def indexing(self) -> Intervals:
        """When the loop's thread is in an indexing operator, which copies an index that is in host memory (R46)."""
        named = self.timeline.named(lambda name: name.startswith("aten::index"))
        return self.covered(self.loop & self.timeline.where(Kind.OPERATOR) & named)

    @cached_property
    def index_copies(self) -> Mask:
        """The copies to the GPU that an indexing operator makes: of an index in host memory (R46)."""
        return self.mask(Kind.COPY_H2D) & self.launched(intervals.covers(self.indexing, self.first))

    @cached_property
    def batch_copies(self) -> Mask:
        """The copies to the GPU that bring batches.

        What is moved once, such as a model or all of the data, brings none: it is launched outside of the steps. Where
        none are known a row of copies with no kernel between them is for batches if another row is just like it.
        """
        copies = self.mask(Kind.COPY_H2D) & ~self.index_copies & ~self.migrations & ~self.on_host[1]
        timeline, rows = self.timeline, np.flatnonzero(copies)
        if self.steps is not None:
            inside = copies & (timeline.batch >= 0)
            return inside if inside.any() else copies
        begun = np.searchsorted(self.kernels[:, 0], timeline.start[rows], side="right")
        each_row = np.split(rows, np.flatnonzero(np.diff(begun)) + 1)
        alike = gathered((tuple(timeline.nbytes[row].tolist()), row) for row in each_row)
        again = [row for each in alike.values() if len(each) > 1 for row in each]
        copies[:] = False
        copies[np.concatenate(again) if again else []] = True
        return copies

    @cached_property
    def migrations(self) -> Mask:
        """The copies of managed memory's pages that are made because the other side touches them."""
        return self.here & self.timeline.named(lambda name: MIGRATION in name)

    @cached_property
    def has_loader(self) -> bool:
        """Whether a DataLoader is seen at work."""
        loads = self.timeline.where(Kind.FETCH, Kind.PIN) | (self.timeline.cause == Cause.DATA) | self.handing_out
        return bool(loads.any())

    @cached_property
    def handing_out(self) -> Mask:
        """What a DataLoader's hand-out is in the loop's thread."""
        return self.timeline.named(lambda name: name.startswith((LOADER_NEXT, HAND_OUT)))

    @cached_property
    def taking(self) -> Intervals:
        """When the loop's thread takes a batch from a DataLoader, but for the program's own code in it: a sampler."""
        given = self.covered(self.loop & self.handing_out)
        waits = self.covered(self.loop & self.timeline.where(Kind.WAIT))
        return intervals.subtract(given, intervals.subtract(self._seen, waits))

    @property
    def hindered(self) -> float:
        """The share (0..1) of what the loop's thread does, its waits left out, in which it had no core."""
        works = self.timeline.duration - self.length(self.loop & self.timeline.where(Kind.WAIT))
        return min(1.0, self.timeline.context.usage.get("loop lacked", 0) / max(1, works))

    @property
    def taking_late(self) -> float:
        """For how many ns of taking batches a core is lacking, as it would be without workers."""
        return self.hindered * intervals.length(either(self.taking, self.getting))

    @cached_property
    def beginning(self) -> Intervals:
        """From when the loop starts workers until one of them fetches."""
        fetches = np.sort(self.timeline.start[self.timeline.select(Kind.FETCH, self.lanes_of("worker"))])
        starts = self.timeline.start[self._starts]
        until = np.r_[fetches, self.end][np.searchsorted(fetches, starts)]
        return intervals.intersect(intervals.union(starts, until), self.judged)

    @property
    def _seen(self) -> Intervals:
        begin, lasts = np.array([look[:2] for look in self.timeline.context.looks], np.int64).reshape(-1, 2).T
        return intervals.union(begin, begin + lasts)

    @cached_property
    def fetching(self) -> Mask:
        """What the loop's thread fetches and pins by itself, which workers and pin thread could do."""
        return self.loop & self.timeline.where(Kind.FETCH, Kind.PIN)

    @cached_property
    def fetched(self) -> Intervals:
        """When it does so; page-locking, which is paid once (R44), is no part of it."""
        return self._but_locking(self.fetching)

    @cached_property
    def getting(self) -> Intervals:
        """When the loop's thread fetches and pins batches, or waits for them."""
        return either(self.fetched, self.covered(self.waiting(Cause.DATA)))

    def _but_locking(self, mask: Mask) -> Intervals:
        return intervals.subtract(self.covered(mask), self.covered(self.waiting(Cause.PAGE_LOCKING)))

    def loading(self, copies: Mask) -> Intervals:
        """When the loop's thread does or waits for anything that loading these copies needs, hand-outs included."""
        mine = self.fetching | self.waiting(Cause.DATA) | (self.loop & self.handing_out)
        return either(self._but_locking(mine), self.loading_of(copies))

    def loading_of(self, copies: Mask) -> Intervals:
        """When the loop's thread is inside the calls of these copies, or in the operators around them."""
        return either(self.around(COPY_OPERATORS, self.calls(copies)), self.copying(copies))

    @cached_property
    def phases(self) -> list[tuple[int, int, bool]]:
        """Parts of the loop of different kinds: (start, end [ns], whether its steps load batches); empty if it has one.

        A part has at least `PHASE` steps and a share of the window; fewer ones between are of the part before them.
        """
        timeline, starts = self.timeline, self.timeline.start[self.marks]
        supplied = timeline.batch[timeline.where(Kind.FETCH, Kind.PIN) | self.batch_copies]
        loads = np.isin(timeline.batch[self.marks], supplied[supplied >= 0])
        asks = self.fetching | self.waiting(Cause.DATA) | (self.loop & self.handing_out)
        place = np.searchsorted(starts, timeline.start[asks], side="right") - 1
        loads[place[place >= 0]] = True
        parts: list[tuple[int, int, bool]] = []  # first and last step
        for first, last in pairwise([0, *(np.flatnonzero(np.diff(loads)) + 1).tolist(), len(starts)]):
            if parts and (last - first < PHASE or parts[-1][2] == loads[first]):
                parts[-1] = (parts[-1][0], last, parts[-1][2])
            else:
                parts.append((first, last, bool(last > first and loads[first])))
        edges = [self.start, *(int(starts[first]) for first, _, _ in parts[1:]), self.end]
        found = [(*edge, part[2]) for edge, part in zip(pairwise(edges), parts, strict=True)]
        long = [end - start >= PHASE_SHARE * self.window for start, end, _ in found]
        return found if len(found) > 1 and all(long) and parts[0][1] >= PHASE else []

    @cached_property
    def first_calls(self) -> Mask:
        """Calls and operators that took far longer the first time: libraries start, kernels are loaded.

        Nothing where two steps are known: what is in a steady state comes back.
        """
        timeline, found = self.timeline, np.zeros(len(self.timeline), bool)
        rows = np.flatnonzero(self.loop & timeline.where(Kind.API, Kind.OPERATOR) & (self.last > self.first))
        if (self.steps or 0) > 1 or not len(rows):
            return found
        waits = self.covered(self.loop & timeline.where(Kind.WAIT))
        own = intervals.free_within(waits, self.first, self.last)
        names, whose = np.unique(timeline.name[rows], return_inverse=True)
        for same in grouped(whose, len(names)):
            row, later = rows[same[0]], own[rows[same[1:]]]
            found[row] = own[row] >= LATE_FIRST and (not len(later) or own[row] >= OFTEN * np.median(later))
        work = np.flatnonzero(
            (self.launched_by >= 0) & self.mask(*KERNELS)
        )  # a kernel is loaded when it is first launched
        calls = self.launched_by[work[np.unique(timeline.name[work], return_index=True)[1]]]
        usual = np.median(own[self.launching]) if self.launching.any() else 0
        found[calls] |= self.loop[calls] & (own[calls] >= max(LATE_FIRST, OFTEN * usual))
        return found

    @cached_property
    def launching(self) -> Mask:
        """The loop's calls that put work into a stream."""
        return self.loop & self.does(Api.LAUNCH)

    @cached_property
    def launch_time(self) -> int:
        """What an operator takes of the host that launches work, without its waits: the median [ns]."""
        rows = np.flatnonzero(self.loop & self.timeline.where(Kind.OPERATOR))
        return self.own_time(self.timeline.places(rows[self.launches(rows)]), self.loop)

    def launches(self, rows: Ints) -> Mask:
        """Tell in which of these spans of the host a kernel is launched."""
        starts = np.sort(self.timeline.start[self.calls(self.mask(*KERNELS))])
        found: Mask = np.searchsorted(starts, self.timeline.end[rows]) > np.searchsorted(
            starts, self.timeline.start[rows]
        )
        return found

    def own_time(self, spans: Mask, threads: Mask) -> int:
        """How long these spans of the host take without the waits of these threads, the median [ns]; 0 for none."""
        waits = self.covered(threads & self.timeline.where(Kind.WAIT))
        times = intervals.free_within(waits, self.first[spans], self.last[spans])
        return round(float(np.median(times))) if len(times) else 0

    @cached_property
    def complete_until(self) -> int:
        """Until when the work of each launch is in the timeline, if it is anywhere [ns].

        In a stream that works to the timeline's end, what was launched after the last that is seen begins later (R16).
        """
        timeline, before, until = self.timeline, self.timeline.begin - 1, int(self.timeline.end.max(initial=0))
        work = np.flatnonzero(on_device(timeline, self.device) & timeline.where(*DEVICE_KINDS))
        lanes, whose = np.unique(timeline.lane[work], return_inverse=True)
        found = [until]
        for mine in grouped(whose, len(lanes)):
            if timeline.end[work[mine]].max() >= until - QUEUED:
                calls = self.launched_by[work[mine]]
                found.append(int(timeline.start[calls[calls >= 0]].max(initial=before)))
        return min(found)

    @cached_property
    def unseen(self) -> str:
        """Why the GPU's work is not in the timeline although the host launches it, or waits for it; "" if it is."""
        if len(self.outside):
            return Evidence(self.timeline, self.device, (self.start, self.end), NONE).unseen
        lost, count = int(self.lost.sum()), int(self._known.sum())
        if count >= FEW and lost > count / 2:
            if self.timeline.context.origin == "file" and (self.timeline.correlation[self._known] < 0).all():
                told = words.count(count, "launch")
                return f"it is not known what {told} put on the GPU: no event has a correlation id (in its args)"
            why = "a CUDA graph is captured" + ("" if self.captured else ", or the profiler lost their work")
            return f"{lost:,} of {words.count(count, 'launch')} have no work on the GPU: {why}"
        blocked = intervals.intersect(self.covered(self.waiting(Cause.SYNCHRONIZE, Cause.STAGING)), self.idle)
        share = intervals.length(blocked) / self.window if self.window else 0.0
        if share > UNSEEN:
            return (
                f"the host is blocked for {words.share(share)} of the time while the GPU is idle: the work that it "
                "waits for is not in the timeline (the profiler began while it ran, or lost it)"
            )
        return ""

    @cached_property
    def _known(self) -> Mask:
        return self.launching & (self.timeline.start <= self.complete_until)

    @cached_property
    def lost(self) -> Mask:
        """The loop's launches that have no work on the GPU, although it would be in the timeline."""
        return self._known & ~self.timeline.places(self.launched_by[self.launched_by >= 0])

    @property
    def captured(self) -> bool:
        """Whether a CUDA graph is seen to be captured."""
        return bool(self.timeline.named(lambda name: "BeginCapture" in name).any())

    def lanes_of(self, *roles: str) -> list[int]:
        """The lanes of the host threads of these roles ("worker", "pin"); of several DataLoaders, of the busiest."""
        lanes = enumerate(self.timeline.lanes)
        return [number for number, lane in lanes if lane.role in roles and number not in self._other_loaders]

    def _by_loader(self, *roles: str) -> dict[str, list[int]]:
        """The lanes of these roles of each DataLoader, by the end of their names."""
        lanes = enumerate(self.timeline.lanes)
        return gathered(("".join(_LOADER.findall(lane.name)), number) for number, lane in lanes if lane.role in roles)

    @cached_property
    def _other_loaders(self) -> set[int]:
        """The lanes of all DataLoaders but the one whose workers have the least time left."""
        loaders, workers = self._by_loader(*LOADING), self._by_loader("worker")
        busiest = max(loaders, key=lambda name: self.busy(workers.get(name, [])), default="")
        return {number for name, lanes in loaders.items() for number in lanes if name != busiest}

    @cached_property
    def loaders(self) -> list[bool]:
        """The DataLoaders whose batches most steps take: for each whether it has workers."""
        timeline, found, most = self.timeline, list[bool](), (self.steps or 0) / 2
        fetches = timeline.where(Kind.FETCH) & (timeline.batch >= 0) & (self.last > self.first)
        mine = timeline.batch[fetches & self.loop]
        if len(np.unique(mine)) > most:
            found += [False] * max(1, round(len(mine) / len(np.unique(mine))))
        given = (timeline.batch[fetches & timeline.select(lane=each)] for each in self._by_loader("worker").values())
        return found + [True for each in given if len(np.unique(each)) > most]

    @property
    def unlike_loaders(self) -> bool:
        """Whether a step takes batches of several DataLoaders, and not all of them in the loop's own thread."""
        return len(self.loaders) > 1 and any(self.loaders)

    @property
    def which_loader(self) -> str:
        """Says which of several DataLoaders `lanes_of` is about: " of loader 2"; "" where there is one."""
        lanes = self.lanes_of(*LOADING)
        if not (lanes and self._other_loaders):
            return ""
        name = _LOADER.search(self.timeline.lanes[lanes[0]].name)
        return f" of {name[0].strip('()')}" if name else " of loader 1"

    def busy(self, lanes: list[int]) -> float:
        """The share of the window in which these lanes are busy, on average."""
        mine = self.timeline.select(lane=lanes)
        time = float((self.last - self.first)[mine].sum())
        return min(1.0, time / (self.window * len(lanes))) if lanes and self.window else 0

    def busy_with_orders(self, lanes: list[int]) -> float:
        """As `busy`, without the time after a worker's last batch where an epoch ends with those that are made."""
        timeline, epoch = self.timeline, self.timeline.context.usage.get("epoch", 0)
        made = timeline.where(Kind.FETCH) & timeline.select(lane=lanes)
        if not (epoch and made.any()) or (timeline.batch[made].max() + 1) % epoch:
            return self.busy(lanes)
        ends = (timeline.end[made & (timeline.lane == lane)].max(initial=0) for lane in lanes)
        idle = sum(max(0, self.end - max(end, self.start)) for end in ends)
        return float(min(1.0, self.busy(lanes) / max(1e-9, 1 - idle / (self.window * len(lanes)))))

    @cached_property
    def worked(self) -> float:
        """For how many ns of the processor workers worked in the window: their fetches, and their other threads."""
        lanes, others = self.lanes_of("worker"), self.timeline.context.usage.get("others", 0)
        return self.busy(lanes) * len(lanes) * self.window + others * (self.steps or 0)

    @cached_property
    def in_dataset(self) -> Mask:
        """The copies to the GPU that the data set makes, or what collates its samples, on the loop's thread.

        In a prediction all of them, where it was so in the loop that was predicted: a replay copies after the fetch.
        """
        if self.fault("cuda-in-dataset") is not None:
            return self.mask(Kind.COPY_H2D)
        fetches = self.covered(self.loop & self.timeline.where(Kind.FETCH))
        return self.mask(Kind.COPY_H2D) & self.launched(intervals.covers(fetches, self.first))

    def seen_lines(self, when: Intervals) -> list[tuple[str, int]]:
        """Where outside of torch the main thread was seen in this time, and for how many ns; the longest first."""
        looks, found = self.timeline.context.looks, Counter[str]()
        begin, lasts = np.array([look[:2] for look in looks], np.int64).reshape(-1, 2).T
        for look, time in zip(looks, intervals.covered_within(when, begin, begin + lasts).tolist(), strict=True):
            found[look.line] += time
        return [(self.timeline.lines[line], time) for line, time in found.most_common() if time]

    def calls_torch(self, line: str) -> bool:
        """Whether the main thread was seen in an operator that this line ("file:line") calls."""
        timeline = self.timeline
        called = np.unique(timeline.source[self.loop & timeline.where(Kind.OPERATOR) & (timeline.source >= 0)])
        return line in (timeline.lines[timeline.sources[source]] for source in called.tolist())

    @property
    def beside_training(self) -> Intervals:
        """When the loop's thread is in an operator that is no training and no loading, as far as its name tells."""
        timeline = self.timeline
        trains = self.loop & timeline.named(lambda name: bool(TRAINS(name)) or name.startswith("autograd::"))
        operators = self.covered(self.loop & timeline.where(Kind.OPERATOR) & ~self.handing_out)
        return intervals.subtract(operators, either(self.getting, self.covered(trains)))

    def seen_within(self, when: Intervals) -> Ints:
        """For how many ns of each of these times the main thread was seen in a line outside of torch."""
        return intervals.covered_within(self._seen, when[:, 0], when[:, 1])

    @cached_property
    def fetches(self) -> Mask:
        """What workers or the loop fetch in the window; of several DataLoaders with workers, the busiest one's."""
        timeline = self.timeline
        fetches = timeline.where(Kind.FETCH) & (timeline.end > self.start) & (timeline.start < self.end)
        return fetches & ~timeline.select(lane=list(self._other_loaders))

    @cached_property
    def others_ready(self) -> Mask:
        """The waits of the loop for half of which a batch is ready that it takes only after them, in its order."""
        timeline, fetched = self.timeline, np.flatnonzero(self.fetches & (self.timeline.batch >= 0))
        fetched = fetched[np.argsort(timeline.end[fetched], kind="stable")]
        used = np.full(int(timeline.batch.max(initial=0)) + 1, timeline.end.max(initial=0))
        rows = np.flatnonzero(self.loop & (timeline.batch >= 0) & ~timeline.where(Kind.RANGE))
        np.minimum.at(used, timeline.batch[rows], timeline.end[rows])
        latest = np.r_[self.start, np.maximum.accumulate(used[timeline.batch[fetched]])]
        before = np.searchsorted(timeline.end[fetched], (timeline.start + timeline.end) // 2, side="right")
        ready: Mask = self.waiting(Cause.DATA) & (latest[before] > timeline.end)
        return ready

    def as_ready(self, times: Mapping[int, float]) -> dict[int, float]:
        """What fetches of batches that take so long [ns] would take in order, if they came when they come in any order.

        An epoch ends with its last batch all the same. Where its end is not seen they take as long as on average.
        """
        epoch, number = self.timeline.context.usage.get("epoch", 0), len(self.lanes_of("worker"))
        found = dict.fromkeys(times, float(np.mean([*times.values()])))
        own = (self.window - self.length(self.waiting(Cause.DATA))) / max(1, self.steps or 0)
        for _, batches in groupby(sorted(times), lambda batch: batch // epoch if epoch else -1):
            mine = list(batches)
            if epoch and (mine[-1] + 1) % epoch == 0:
                found |= zip(mine, _as_ready([times[batch] for batch in mine], number, own), strict=True)
        return found

    @cached_property
    def received(self) -> Mask:
        """The waits of the loop for batches that a worker has made before them: it receives what is there."""
        timeline, last = self.timeline, int(self.timeline.batch.max(initial=0)) + 1
        made = np.full(last + 1, timeline.end.max(initial=0))
        rows = np.flatnonzero(self.fetches & ~self.loop & (timeline.batch >= 0))
        made[timeline.batch[rows]] = timeline.end[rows]
        return self.waiting(Cause.DATA) & (timeline.batch >= 0) & (made[timeline.batch] <= timeline.start)

    @cached_property
    def fetch_place(self) -> tuple[Cause, str, float]:
        """What fetches do for the longest, in which lines ("file:line and file:line"), and its share of their time."""
        times = self._fetch_times
        cause = Cause(int(times.argmax())) if times.any() else Cause.NONE
        return cause, *self.fetch_lines(cause)

    @cached_property
    def _fetch_times(self) -> Ints:
        """For how many ns fetches do what, by cause."""
        mine = self.fetches & (self.timeline.cause != Cause.NONE)
        return np.bincount(self.timeline.cause[mine], (self.timeline.end - self.timeline.start)[mine], len(Cause))

    @property
    def locked(self) -> int:
        """For how many ns a fetch has a lock that the workers share (0: not known)."""
        return self.timeline.context.usage.get("locked", 0)

    @property
    def queued(self) -> float:
        """For how many ns a fetch waits for a lock: of a real one what was seen, but one of the workers has it then."""
        if self.locked:
            return max(0.0, self.fetch.waits - self.timeline.context.usage.get("unlocked waits", 0))
        number = max(1, len(self.lanes_of("worker")))
        return min(self.fetch_lines(Cause.THREAD)[1], 1 - 1 / number) * self.fetch.takes

    @property
    def lock_is_taken(self) -> bool:
        """Whether one of the workers has that lock nearly all the time."""
        taken = self.locked * int(self.fetches.sum())
        return bool(self.lanes_of("worker")) and taken > LOCK_TAKEN * self.window

    @property
    def unlocked(self) -> float:
        """What is left (0..1) of the waits of fetches without those for a lock."""
        return max(0.0, 1 - self.queued / self.fetch.waits) if self.fetch.waits else 1.0

    def fetch_lines(self, cause: Cause) -> tuple[str, float]:
        """In which lines fetches do this ("file:line and file:line"), and for which share of their time."""
        timeline, time, took = self.timeline, self.timeline.end - self.timeline.start, self._fetch_times[cause]
        mine = self.fetches & (timeline.cause == cause) & (timeline.source >= 0)
        by_line = np.bincount(timeline.source[mine], time[mine], len(timeline.sources))
        order = np.argsort(-by_line, kind="stable")[:2].tolist()
        lines = [timeline.lines[timeline.sources[line]] for line in order if by_line[line] > LINE_SHARE * took]
        return " and ".join(lines), float(took / max(1, time[self.fetches].sum()))

    @cached_property
    def begins(self) -> Ints:
        """When the device begins on each step, in order [ns]."""
        return begin_of(self.timeline, self.device, self.marked.spans[self.marked.between(self.start, self.end)])

    @cached_property
    def optimized(self) -> Ints:
        """When the device begins on each step [ns]; on each step of the optimizer, where gradients are accumulated."""
        optimizing = self.timeline.start[self.loop & self.timeline.named(OPTIMIZER_STEP.match)]
        ends = np.unique(np.searchsorted(self.timeline.start[self.marks], optimizing, side="right"))
        ends = ends[(ends > 0) & (ends < len(self.begins))]
        return self.begins[ends] if 0 < 2 * len(ends) <= len(self.begins) else self.begins

    @cached_property
    def longer_steps(self) -> tuple[Ints, Mask, dict[str, float]]:
        """How long each of `optimized` takes [ns], which are long, and what they have more [ns], the largest first.

        Long is one of 1.5 times the median. What they have more is the time of "kernels", "copies", "collectives"
        and "loading", of "operators" where there is no GPU; "" is the rest, in which the GPU has nothing to do.
        """
        edges = self.optimized
        time = intervals.free_within(self.outside, edges[:-1], edges[1:])
        far = time > LONG * np.median(time) if len(time) else np.zeros(0, bool)
        if not far.any():
            return time, far, {}
        work = {
            "kernels": self.kernels,
            "copies": self.covered(self.mask(*COPIES)),
            "collectives": self.covered(self.mask(Kind.COMMUNICATION)),
        }
        if not self.here.any():
            work = {"operators": self.covered(self.loop & self.timeline.where(Kind.OPERATOR))}
        more, whole = {}, self.judged
        for name, part in intervals.layers(whole, work | {"loading": self.getting, "": whole}).items():
            each = intervals.covered_within(part, edges[:-1], edges[1:])
            more[name] = float(each[far].mean() - each[~far].mean())
        return time, far, dict(sorted(more.items(), key=lambda item: -item[1]))

    @cached_property
    def growing(self) -> Mask:
        """The calls that get more device memory, in a quarter of the steps up to the last ones; none if it is freed."""
        calls = self.loop & self.does(Api.ALLOCATE)
        grown = np.searchsorted(self.timeline.start[self.marks], self.timeline.start[calls], side="right")
        steps = len(self.marks)
        goes_on = len(np.unique(grown)) >= max(PHASE, steps / 4) and np.count_nonzero(grown > steps / 2) > 1
        return calls & bool(goes_on and not (self.loop & self.does(Api.FREE)).any())

    @cached_property
    def evaluating(self) -> tuple[Intervals, Ints]:
        """When the loop computes layers after the training of a step, in most of the steps, and the first of each."""
        timeline, edges = self.timeline, self.timeline.start[self.marks]
        trains = self.program & timeline.named(lambda name: bool(BACKWARD(name) or OPTIMIZER_STEP.match(name)))
        trains |= self.program & (timeline.source >= 0) & np.isin(timeline.source, timeline.source[trains])
        operators = np.flatnonzero(self.loop & timeline.where(Kind.OPERATOR))
        trained, until = np.zeros((2, len(edges) + 1), np.int64)
        np.maximum.at(trained, np.searchsorted(edges, timeline.start[trains], side="right"), timeline.end[trains])
        step = np.searchsorted(edges, timeline.start[operators], side="right")
        after = (trained[step] > 0) & (timeline.start[operators] >= trained[step]) & (step > 0)
        rows, step = operators[after], step[after]
        layers = timeline.named(LAYER)[rows]
        evaluated, first = np.unique(step[layers], return_index=True)
        if 2 * len(evaluated) < max(1, len(edges)):
            return NONE, NO_ROWS
        lines = timeline.source[rows[layers]]
        mine = np.isin(timeline.source[rows], lines) if (lines >= 0).all() else np.isin(step, evaluated)
        np.maximum.at(until, step[mine], timeline.end[rows[mine]])
        when = intervals.union(timeline.start[rows[layers][first]], until[evaluated])
        return intervals.subtract(intervals.intersect(when, self.judged), self.getting), rows[layers][first]

    @cached_property
    def other_work(self) -> OtherWork:
        """What takes the GPU's idle time besides training: no line that launches kernels, waits for them, or loads."""
        timeline = self.timeline
        calls = self.does(Api.MEMORY | Api.COPY | Api.SYNCHRONIZE) | on_workers(timeline) | timeline.where(Kind.WAIT)
        busy = either(self.getting, self.covered(self.loop & calls))
        results = self.mask(Kind.COPY_D2H) & ~self.migrations & bool(self.steps)
        results &= 2 * np.count_nonzero(results) >= (self.steps or 0)  # they are waited for in most steps
        told = either(self.covered(self.converted[1] | self.on_host[0]), self.in_lines(self.using(results)))
        free = intervals.subtract(self.idle, either(busy, told))
        if (line := self._other_line(free)) >= 0:
            mine = timeline.source == line
            whole = intervals.subtract(self.in_lines(mine), busy)
            when = intervals.intersect(whole, self.idle)
            return OtherWork(timeline.lines[timeline.sources[line]], when, whole, self.loop & mine)
        gaps = intervals.subtract(free, self.covered(self.loop & timeline.where(Kind.OPERATOR, Kind.API)))
        gaps = NONE if len(self.at_lines[0]) else gaps[gaps[:, 1] - gaps[:, 0] > OTHER]
        return OtherWork(*self._seen_in(gaps), gaps, np.zeros(len(timeline), bool), seen=True)

    def _seen_in(self, gaps: Intervals) -> tuple[str, Intervals]:
        """Where the main thread was seen most in these gaps between calls of torch, and when."""
        looks = self.timeline.context.looks
        inside = intervals.covers(gaps, np.array([look.moment for look in looks], np.int64))
        by_line = gathered((look.line, (look.time, look.moment)) for look in compress(looks, inside))
        found = [
            (self.timeline.lines[line], intervals.intersect(np.array(times), gaps))
            for line, times in by_line.items()
            if len(times) >= LOOKS
        ]
        place, when = max(found, key=lambda each: intervals.length(each[1]), default=("", NONE))
        return (place, when) if intervals.length(when) > LOOKED * self.window else ("", NONE)

    def _other_line(self, free: Intervals) -> int:
        """The number of the line that takes most of this time; -1 where there is none."""
        timeline, (rows, until) = self.timeline, self.at_lines
        if not (len(rows) and len(free)):
            return -1
        times = np.bincount(
            timeline.source[rows],
            intervals.covered_within(free, timeline.start[rows], until),
            len(timeline.sources),
        )
        waits = self.loop & (self.does(Api.SYNCHRONIZE) | timeline.where(Kind.WAIT))
        launches = (self.calls(self.mask(*DEVICE_KINDS)) | waits) & (timeline.source >= 0)
        count = np.bincount(timeline.source[launches], minlength=len(timeline.sources))
        times[times < OTHER * np.maximum(count, 1)] = 0  # its time goes to launches and waits
        works = self.loop & timeline.where(Kind.OPERATOR) & ~timeline.named(COPY_OPERATORS.__contains__)
        copying = self.calls(self.batch_copies) & ~np.isin(timeline.source, timeline.source[works])
        loads = self.fetching | self.loop & self.handing_out | copying
        times[timeline.source[loads & (timeline.source >= 0)]] = 0  # the loop's own line, and one that only copies
        line = int(times.argmax())
        return line if times[line] >= OTHER_SHARE * self.window else -1

    @cached_property
    def explained(self) -> Intervals:
        """The idle time that is no lack of launches: memory and work beside the training, which have their findings.

        Nor is a gap before work that was launched when it began, as between the kernels of a CUDA graph.
        """
        other = either(self.covered(self.on_host[0] | self.loop & self.does(Api.MEMORY)), self.other_work.when)
        other = either(other, self.evaluating[0])
        rows = np.flatnonzero(self.here & (self.launched_by >= 0))
        if not (len(rows) and len(self.idle)):
            return other
        place = np.searchsorted(self.first[rows], self.idle[:, 1])
        after = rows[np.minimum(place, len(rows) - 1)]
        queued = (place < len(rows)) & (self.first[after] == self.idle[:, 1])
        queued &= self.timeline.end[self.launched_by[after]] <= self.idle[:, 0]
        return either(other, self.idle[queued])

    @cached_property
    def fetch(self) -> Fetch:
        """What a batch's fetch takes, on average of those in the window."""
        mine = giving(self.timeline, self.fetches)
        if not mine.any():
            return Fetch()
        whole = mine & (self.timeline.start > self.start) & (self.timeline.end < self.end)
        shortest = fetch_times(self.timeline, whole if whole.any() else mine)[0].min()
        computes, waits = fetch_times(self.timeline, mine)
        return Fetch(float(computes.mean()), float(waits.mean()), float(shortest))

    @cached_property
    def batch_bytes(self) -> float:
        """The bytes of a batch, as it is fetched, on average; 0: not known."""
        sizes = self.timeline.nbytes[self.fetches]
        return float(sizes[sizes > 0].mean()) if (sizes > 0).any() else 0.0

    @cached_property
    def on_core(self) -> float:
        """The share (0..1) of what fetches compute in which they have a core: measured, else as many as there are."""
        now, usage = len(self.lanes_of("worker")), self.timeline.context.usage
        if (lacked := usage.get("lacked")) is not None and self.fetch.computes:
            return max(0.0, 1 - lacked / usage.get("busy", self.fetch.computes))
        return min(1.0, (self.cores or now) / now) if now else 1.0

    @cached_property
    def take_turns(self) -> bool:
        """Whether there are more workers than cores, and those that compute at a time take all cores."""
        number = len(self.lanes_of("worker"))
        computing = self.busy(self.lanes_of("worker")) * number * self.fetch.on_core if self.fetch.takes else 0
        return self.cores is not None and number > self.cores and computing >= TURNS * self.cores

    def crowded(self, then: int) -> float:
        """The share (0..1) of the cores beside the loop's that workers keep busy, or so many would; 1: not known."""
        number, step = len(self.lanes_of("worker")), self.window / (self.steps or 1)
        if not self.cores:
            return 1.0
        busy = self.busy(self.lanes_of("worker")) * number if number else 0.0
        if then and not number:
            busy = min(then, self.fetch.computes / max(1.0, step - self.fetch.computes))
        return min(1.0, busy / max(1, self.cores - 1))

    @cached_property
    def useful_workers(self) -> int:
        """More workers than this are of no use in a long epoch: what computes takes cores, and batches take memory."""
        cores = self.cores or max(TYPICAL_CORES, len(self.lanes_of("worker")))
        at_once = round(cores / max(self.fetch.on_core, cores / MOST_WORKERS))
        return min(MOST_WORKERS, at_once, max(1, self.room[0]))

    @cached_property
    def most_workers(self) -> int:
        """More workers than this are of no use, one of which may have a lock that all need."""
        most = self._in_an_epoch(self.useful_workers)
        own = self.fetch.computes + self.fetch.waits * self.unlocked
        return min(most, ceil(own / self.locked)) if self.locked else most  # one of them has the lock all the time then

    def _in_an_epoch(self, most: int) -> int:
        """So many workers, at `most`, take the least time for an epoch, with their start; if that is seen."""
        batches, fetch = ceil(self.epoch or 0), self.fetch.takes
        if not batches:
            return most
        most = min(most, batches if self.starting else ceil(batches / PREFETCHED))
        return min(range(1, most + 1), key=lambda many: many * self.starting + ceil(batches / many) * fetch)

    @cached_property
    def _starts(self) -> list[int]:
        return np.flatnonzero(self.timeline.named(WORKER_START.match)).tolist()

    @cached_property
    def starting(self) -> float:
        """For how many ns the loop starts a worker, and ends it, as it is seen; 0 where it is not."""
        timeline = self.timeline
        takes = on_workers(timeline)
        many = sum(int(timeline.names[timeline.name[row]].split()[1]) for row in self._starts)
        return float((timeline.end - timeline.start)[takes].sum()) / many if many else 0.0

    @cached_property
    def epoch(self) -> float | None:
        """How many batches workers make until they are started again, as far as that is known; of one DataLoader."""
        known, made = self.timeline.context.usage.get("epoch"), len(np.unique(self.timeline.batch)) - 1
        return max(known, made / max(1, len(self._starts))) if known and len(self.loaders) == 1 else None

    @cached_property
    def room(self) -> tuple[int, int]:
        """For how many workers' prefetched batches there is shared memory, and its bytes."""
        memory, size = self.timeline.context.shared_memory or SHARED_MEMORY, int(self.batch_bytes)
        return memory // (PREFETCHED * size) if size else MOST_WORKERS, memory

    @cached_property
    def more_workers(self) -> bool:
        """Whether more workers than now can help: there is room for them, and a lock that all need is free at times."""
        return SPARE * len(self.lanes_of("worker")) < self.most_workers and not self.lock_is_taken

    def workers_for(self, gain: Gain) -> int | None:
        """Return how many workers keep up with the loop once the gain is made; None if the timeline does not tell."""
        if not (self.fetch.takes and self.steps and self.window > gain.ns):
            return None
        needed = ceil(SPARE * self.fetch.takes * self.steps / (self.window - gain.ns))
        return max(1, min(needed, self.most_workers))

    def workers_floor(self) -> Floor:
        """Return how long all cores need to fetch at least, each batch as short as the shortest; waiting takes none.

        Nothing where there are about so many workers already: then the fetching itself is to be changed.
        """
        cores = self.cores or max(TYPICAL_CORES, len(self.lanes_of("worker")))
        if not (self.fetch.shortest and self.steps and self.more_workers):
            return Floor(0, "")
        fetching = Floor(int(self.fetch.shortest * self.steps) // cores, f"fetching on {words.count(cores, 'core')}")
        return max(
            fetching,
            Floor(int(self.locked * self.steps), "work with the lock that the workers share"),
            key=lambda floor: floor.ns,
        )


def _as_ready(times: Sequence[float], workers: int, own: float) -> Iterator[float]:
    """Give what each fetch of an epoch would take in order to be there when one is in any order, as torch orders them.

    The loop has `own` ns of other work for each batch. An order goes to the next worker that has less than it may have.
    """
    free, has, turns, orders = [0.0] * workers, [0] * workers, cycle(range(workers)), iter(times)
    begins, made, there, now = [0.0] * PREFETCHED * workers, [0.0] * workers, list[tuple[float, int]](), 0.0
    for number in range(len(times)):
        for time in islice(orders, 1 if number else PREFETCHED * workers):
            worker = next(each for each in turns if has[each] < PREFETCHED)
            has[worker] += 1
            free[worker] = max(free[worker], begins[-1]) + time
            heappush(there, (free[worker], worker))
        ready, worker = heappop(there)
        has[worker] -= 1
        yield max(0.0, ready - max(begins[number], made[number]))  # after the order, and what this worker made before
        made.append(ready)
        begins.append(max(now, ready))
        now = begins[-1] + own


def _working(timeline: Timeline, device: int) -> tuple[int, int] | None:
    """Return from when to when a device has work; None if it has none."""
    work = on_device(timeline, device) & timeline.where(*DEVICE_KINDS)
    if not work.any():
        return None
    start, end = int(timeline.start[work].min()), int(timeline.end[work].max())
    return (start, end) if start < end else None


# The evidence in words: times a step, where the longest span is, what fills the longest gap


def duration(facts: Evidence, ns: float, rounds: float | None = None) -> str:
    """A time in the window, as a reader compares it: a step's share of it where steps are known."""
    each = facts.per_step(ns, rounds)
    return words.duration(ns) if each is None else f"{words.duration(each)} a step"


def describe_copies(facts: Evidence, mask: Mask, kind: str) -> str:
    """Describe copies: "24 pinned copies to the GPU, 2 a step, 6.5 MB in 270 µs a step (24.1 GB/s), 0 % hidden"."""
    count, size = int(mask.sum()), int(np.maximum(facts.timeline.nbytes[mask], 0).sum())
    time = int((facts.timeline.end - facts.timeline.start)[mask].sum())
    length = facts.length(mask)
    carries = f"{words.size(size / (facts.rounds or 1))} in " if size else ""
    rate = f" ({words.size(size / time * 1e9)}/s)" if size and time else ""
    hidden = words.share(1 - facts.exposed(mask) / length if length else 0.0)
    much = f"{carries}{duration(facts, length, facts.rounds)}{rate}"
    return f"{words.count(count, f'{kind}copy')} to the GPU{a_step(count, facts.rounds)}, {much}, {hidden} hidden"


def a_step(count: int, steps: float | None) -> str:
    """Say how many that is a step: ", 2 a step"; "" where steps are not known."""
    if not steps:
        return ""
    per = count / steps
    return f", {per:,.0f} a step" if per >= 100 else f", {per:.3g} a step"


def in_few_steps(facts: Evidence, mask: Mask) -> tuple[str, str]:
    """Where these are in at most half of the steps: " in 2 of 12 steps", and how to leave them out; else "" twice.

    Only the first steps can be left out: what comes back later is no warm-up.
    """
    batches = np.unique(facts.timeline.batch[mask])
    batches = batches[batches >= 0]
    if not (facts.steps and len(batches)) or len(batches) > facts.steps / 2:
        return "", ""
    seen = f" in {len(batches):,} of {words.count(facts.steps, 'step')}"
    known = np.unique(facts.timeline.batch[facts.here | mask])
    if batches.max() >= known[known >= 0].min() + facts.steps / 2:
        return seen, ""
    after = int(batches.max()) + 1
    marked = any(name.split(":")[0] == f"batch {after}" for name in facts.timeline.names)
    cut = f"timeline.from_batch({after})  # " if marked else "# record more steps: "
    return seen, f"{cut}a warm-up is paid once"


def names_of(facts: Evidence, mask: Mask, within: Intervals | None = None) -> list[str]:
    """The names of these spans, the most frequent first, or else those that take most of the time `within`."""
    numbers, which = np.unique(facts.timeline.name[mask], return_inverse=True)
    times = None if within is None else intervals.covered_within(within, facts.first[mask], facts.last[mask])
    weights = np.bincount(which, times)
    return [facts.timeline.names[number] for number in numbers[np.argsort(-weights, kind="stable")]]


def longest_gap(facts: Evidence, without: Intervals) -> tuple[str, str]:
    """Say where the device's longest gap is in which the host neither loads nor waits, and what it does there.

    Times `without` are no part of it.

    The second is that alone: "in aten::mm, called in train.py:12", or "before" the call that ends the gap; else "".
    """
    loading = facts.loop & (facts.timeline.where(Kind.FETCH, Kind.PIN, Kind.WAIT) | on_workers(facts.timeline))
    edges = intervals.covered_within(facts.outside, facts.timeline.start, facts.timeline.end) > 0
    loading |= facts.loop & edges & ~facts.timeline.where(Kind.RANGE)  # what is beside the steps, up to their edges
    gaps = intervals.subtract(facts.idle, either(facts.covered(loading), without))
    first, last = gaps[np.argmax(gaps[:, 1] - gaps[:, 0])].tolist()
    part = np.minimum(facts.last, last) - np.maximum(facts.first, first)  # of each span that lies in the gap
    part[~(facts.loop & facts.timeline.where(Kind.API, Kind.OPERATOR))] = 0
    begin, length = words.duration(first - facts.timeline.begin), words.duration(last - first)
    text = f"The longest gap begins at {begin} and lasts {length}"
    best = int(part.max(initial=0))
    if 2 * best >= last - first:
        most = int(np.flatnonzero(part == best)[-1])  # the innermost of those that fill it
        place = f"in {facts.timeline.names[facts.timeline.name[most]]}{line_of(facts, most)}"
        return f"{text}, {place}", place
    calls = facts.timeline.where(Kind.API) & (facts.timeline.end >= last)
    if last in without[:, 0]:
        calls = facts.timeline.where(Kind.API, Kind.OPERATOR) & (facts.timeline.start == last)
    then = np.flatnonzero(facts.loop & calls)
    if not len(then):
        return text, ""
    place = f"before {facts.timeline.names[facts.timeline.name[then[0]]]}{line_of(facts, then[0])}"
    return f"{text}, {place}", place


def lines_of(facts: Evidence, when: Intervals) -> list[tuple[str, int]]:
    """The program's lines in these times, as "file:line", and for how many ns each: until the next one calls torch."""
    timeline, (rows, until) = facts.timeline, facts.at_lines
    within = intervals.covered_within(when, timeline.start[rows], until)
    times = np.bincount(timeline.source[rows], within, len(timeline.sources))
    order = np.argsort(-times, kind="stable").tolist()
    return [(timeline.lines[timeline.sources[line]], int(times[line])) for line in order if times[line]]


def line_of(facts: Evidence, span: int) -> str:
    """Say where this span is called: ", called in train.py:12"; "" where no line is known."""
    line = int(facts.timeline.source[span])
    return f", called in {facts.timeline.lines[facts.timeline.sources[line]]}" if line >= 0 else ""


def seen_in(facts: Evidence, mask: Mask) -> str:
    """Say in which line the main thread was seen in most of these spans, of those of which it is known; else ""."""
    timeline, rows = facts.timeline, np.flatnonzero(mask & (facts.timeline.source >= 0))
    known = np.flatnonzero(timeline.in_lanes(lambda lane: lane.role == "main") & (timeline.source >= 0))
    outer = timeline.start[known]  # of each call that was seen, the outermost counts
    outer = outer[intervals.outermost(outer, timeline.end[known], timeline.begin)]
    calls = np.searchsorted(outer, timeline.start[rows], side="right").tolist()
    counts = Counter(source for _, source in {*zip(calls, timeline.source[rows].tolist(), strict=True)})
    found = counts.most_common(1)
    if not found or found[0][1] < SEEN or 2 * found[0][1] <= counts.total():
        return ""
    return f", most often called in {timeline.lines[timeline.sources[found[0][0]]]}"


def where(facts: Evidence, mask: Mask) -> str:
    """Where these spans are, and the longest: "in stream 7, the longest takes 262 µs, at 1.2 ms (batch 3)"."""
    indices = np.flatnonzero(mask)
    lanes = dict.fromkeys(facts.timeline.lanes[lane].name for lane in facts.timeline.lane[indices].tolist())
    longest = int(indices[np.argmax((facts.timeline.end - facts.timeline.start)[indices])])
    at = words.duration(int(facts.timeline.start[longest]) - facts.timeline.begin)
    lasts = words.duration(int(facts.timeline.end[longest] - facts.timeline.start[longest]))
    batch = int(facts.timeline.batch[longest])
    whose = f" (batch {batch})" if batch >= 0 else ""
    line = line_of(facts, longest) or seen_in(facts, mask)
    return f"in {', '.join(lanes)}, the longest takes {lasts}, at {at}{whose}{line}"
