"""What a rule of `advice` may ask a timeline: its steady state, who does what in it, and what would remain of it.

    facts = Evidence.of(timeline)
    facts.exposed(copies)                # ns of these copies that no kernel hides
    facts.device_floor(copies, left=0)   # what the device takes at least without them
    facts.gain(exposed, "the exposed copy", floor, …)  # what a change can gain at most, as a `Gain`

Everything is clipped to the window that is judged: from the first step to the end of the device's last work. Imports
neither torch nor the emulator; a timeline may lack batches, host lanes, launches or copies.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from math import ceil

import numpy as np
import numpy.typing as npt

from loaderviz import intervals, words
from loaderviz.activity import LOADING, Mask, choose_device, loop_lanes, on_device, window_of
from loaderviz.advice.finding import Gain
from loaderviz.intervals import Intervals
from loaderviz.metrics import Summary, step_spans, summarize
from loaderviz.timeline import COPIES, DEVICE_KINDS, KERNELS, ArrowKind, Cause, Kind, Timeline

Ints = npt.NDArray[np.int64]

SPARE = 1.25  # workers that are busy 80 % of the time keep up although batches differ
HAND_OUT = re.compile(r"^(enumerate\(DataLoader\)#|DataLoader hand-out$)")
COPY_OPERATORS = ("aten::to", "aten::_to_copy", "aten::copy_")
SYNCHRONIZE = re.compile(r"^(cuda|hip|cu)\w*Synchronize\w*$", re.IGNORECASE)


@dataclass(frozen=True)
class Floor:
    """What takes at least `ns` in the window, and what it is in words."""

    ns: int
    what: str


class Evidence:
    """One device of a timeline, in the window that is judged. Masks are over the timeline's spans."""

    def __init__(self, timeline: Timeline, device: int, start: int, end: int) -> None:
        self.timeline, self.device, self.start, self.end = timeline, device, start, end
        self.window = end - start
        self.summary: Summary = summarize(timeline, (start, end), device=device)
        self.steps = self.summary.batches
        self.first: Ints = np.clip(timeline.start, start, end)  # of each span, what lies in the window
        self.last: Ints = np.clip(timeline.end, start, end)
        inside = (timeline.end > start) & (timeline.start < end)
        self.here = inside & on_device(timeline, device)
        self.loop = inside & np.isin(timeline.lane, loop_lanes(timeline, device))

    @classmethod
    def of(cls, timeline: Timeline, device: int | None = None, window: tuple[int, int] | None = None) -> Evidence:
        """Return the evidence for a device (None: the busiest), in `window` [ns] or, for None, in the steady state."""
        device, _ = choose_device(timeline, device)
        start, end = window_of(timeline, window)
        return cls(timeline, device, *(steady_state(timeline, device, start, end) if window is None else (start, end)))

    # Who does what

    def mask(self, *kinds: Kind) -> Mask:
        """The device's spans of these kinds."""
        return self.here & self.timeline.where(*kinds)

    def covered(self, mask: Mask) -> Intervals:
        """When any of these spans runs."""
        return intervals.union(self.first[mask], self.last[mask])

    @cached_property
    def kernels(self) -> Intervals:
        """When a kernel runs."""
        return self.covered(self.mask(*KERNELS))

    @cached_property
    def idle(self) -> Intervals:
        """When the device has nothing to do."""
        return intervals.subtract(np.array([[self.start, self.end]]), self.covered(self.here))

    def length(self, mask: Mask) -> int:
        """How many ns any of these spans runs."""
        return intervals.length(self.covered(mask))

    def exposed(self, copies: Mask) -> int:
        """How many ns of these copies no kernel hides."""
        return intervals.length(intervals.subtract(self.covered(copies), self.kernels))

    @cached_property
    def elastic(self) -> Intervals:
        """When the loop's thread waits for something that could be there earlier: the device's work, or data.

        A wait while the device has nothing to do is the call's own cost (page-locking, cudaMalloc).
        """
        waits = self.covered(self.loop & self.timeline.where(Kind.WAIT))
        waits = intervals.intersect(waits, self.covered(self.here))
        return either(waits, self.covered(self.waiting(Cause.DATA)))

    def waiting(self, *causes: Cause) -> Mask:
        """The waits of the loop's thread for these causes."""
        return self.loop & self.timeline.where(Kind.WAIT) & np.isin(self.timeline.cause, causes)

    @cached_property
    def launched_by(self) -> Ints:
        """For each span the host's call that launched it, -1 where that is not known."""
        result = np.full(len(self.timeline), -1, np.int64)
        arrows = self.timeline.arrows
        launch = arrows["kind"] == ArrowKind.LAUNCH
        result[arrows["head"][launch]] = arrows["tail"][launch]
        return result

    @cached_property
    def _synchronizing(self) -> tuple[Ints, Ints]:
        """The loop's synchronising calls, and for each the copy that the call just before it launched (-1: none)."""
        timeline = self.timeline
        calls = np.flatnonzero(self.loop & timeline.where(Kind.API))
        calls = calls[np.lexsort((calls, timeline.lane[calls]))]  # per thread, in order of start
        numbers = [number for number, name in enumerate(timeline.names) if SYNCHRONIZE.match(name)]
        place = np.flatnonzero(np.isin(timeline.name[calls], numbers))
        copy_of = np.full(len(timeline), -1, np.int64)
        copies = np.flatnonzero(timeline.where(*COPIES) & (self.launched_by >= 0))
        copy_of[self.launched_by[copies]] = copies
        before = np.where(place > 0, copy_of[calls[place - 1]], -1) if len(calls) else place
        return calls[place], before

    def synchronizes(self, after: Mask | None) -> Mask:
        """The synchronising calls of the loop that follow at once one of the copies `after`; for None, no H2D copy.

        `.to("cuda")` calls so for its copy; `.item()` for a copy to the host, or a program of its own accord.
        """
        result = np.zeros(len(self.timeline), bool)
        calls, copy = self._synchronizing
        if after is None:
            mine = (copy < 0) | ~self.timeline.where(Kind.COPY_H2D)[copy]
        else:
            mine = (copy >= 0) & after[copy]
        result[calls[mine]] = True
        return result

    def calls(self, work: Mask) -> Mask:
        """The host's calls that launched these spans of the device."""
        result = np.zeros(len(self.timeline), bool)
        launch = self.launched_by[work]
        result[launch[launch >= 0]] = True
        return result & self.loop

    def copying(self, copies: Mask) -> Intervals:
        """When the loop's thread is inside the calls of these copies, or in the synchronisation that follows them."""
        return self.covered(self.calls(copies) | self.synchronizes(copies))

    # What remains

    def device_floor(self, copies: Mask | None = None, left: float = 1.0, *, apart: bool = False) -> Floor:
        """Return how long the device works at least: its busiest engine or stream (a stream runs in order, R16).

        Of the time of `copies` only the share `left` remains; `apart`: they are in a stream of their own.
        """
        kind = self.timeline.kind
        time = (self.last - self.first).astype(np.float64)
        if copies is not None:
            time[copies] *= left
        floors = [Floor(intervals.length(self.kernels), "kernels")]
        for direction, what in ((Kind.COPY_H2D, "H2D copies"), (Kind.COPY_D2H, "D2H copies")):
            mine = self.here & (kind == direction)  # two rows of one direction may overlap in a recorded trace
            floors.append(Floor(round(min(time[mine].sum(), self.length(mine))), what))
        queued = self.here & self.timeline.where(*DEVICE_KINDS)
        if apart and copies is not None:
            queued &= ~copies
        busy = np.bincount(self.timeline.lane[queued], time[queued], len(self.timeline.lanes))
        if len(busy) and busy.max() > max(floor.ns for floor in floors):
            lane = int(busy.argmax())
            floors.append(Floor(round(busy[lane]), f"work in {self.timeline.lanes[lane].name}"))
        return max(floors, key=lambda floor: floor.ns)

    def host_floor(self, without: Intervals | None = None) -> Floor:
        """Return how long the loop's thread works at least: the window less what is elastic, and `without`."""
        if not self.loop.any():
            return Floor(0, "")
        free = self.elastic if without is None else either(self.elastic, without)
        return Floor(self.window - intervals.length(free), "the host's own work")

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
        for lane in self.lanes_of(*(roles or LOADING)):
            here = timeline.lane == lane
            if (whole & here).any():
                work = int(np.minimum(time[mine & here], time[whole & here].min()).sum())
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
        return Gain(ns, ns / self.window if self.window else 0.0, ns / self.steps if self.steps else None, basis)

    # Loading

    @cached_property
    def fetching(self) -> Mask:
        """What the loop's thread fetches and pins by itself, which workers and pin thread could do."""
        return self.loop & self.timeline.where(Kind.FETCH, Kind.PIN)

    def loading(self, copies: Mask) -> Intervals:
        """When the loop's thread does or waits for anything that loading these copies needs, hand-outs included."""
        timeline = self.timeline
        handing = [n for n, name in enumerate(timeline.names) if HAND_OUT.match(name)]
        copying = [n for n, name in enumerate(timeline.names) if name in COPY_OPERATORS]
        calls = np.sort(self.first[self.calls(copies)])
        around = self.loop & timeline.where(Kind.OPERATOR) & np.isin(timeline.name, copying)
        around &= np.searchsorted(calls, self.last) > np.searchsorted(calls, self.first)  # it holds such a call
        mine = around | self.fetching | self.waiting(Cause.DATA) | (self.loop & np.isin(timeline.name, handing))
        return either(self.covered(mine), self.copying(copies))

    def lanes_of(self, *roles: str) -> list[int]:
        """The lanes of the host threads of these roles ("worker", "pin")."""
        return [number for number, lane in enumerate(self.timeline.lanes) if lane.role in roles]

    def busy(self, lanes: list[int]) -> float:
        """The share of the window in which these lanes are busy, on average."""
        mine = np.isin(self.timeline.lane, lanes)
        return float((self.last - self.first)[mine].sum()) / (self.window * len(lanes)) if lanes and self.window else 0

    def per_batch(self, kind: Kind) -> float:
        """How long a batch is fetched, or pinned, on average [ns]; 0 if the timeline does not show it."""
        mine = self.timeline.where(kind) & (self.timeline.end > self.start) & (self.timeline.start < self.end)
        return float((self.timeline.end - self.timeline.start)[mine].mean()) if mine.any() else 0.0

    def workers_for(self, gain: Gain) -> str:
        """Return how many workers keep up with the loop once the gain is made; "..." if the timeline does not tell."""
        fetch = self.per_batch(Kind.FETCH)
        if not (fetch and self.steps and self.window > gain.ns):
            return "..."
        return str(max(1, ceil(SPARE * fetch * self.steps / (self.window - gain.ns))))


def steady_state(timeline: Timeline, device: int, start: int, end: int) -> tuple[int, int]:
    """Return the part from the first step (else the device's first work) to the end of the last step and last work."""
    steps, _ = step_spans(timeline, start, end, device)
    work = on_device(timeline, device) & timeline.where(*DEVICE_KINDS)
    edges = [int(edge) for edge in timeline.end[steps]] + ([int(timeline.end[work].max())] if work.any() else [])
    if not edges:
        return start, end
    first = int(timeline.start[steps].min() if steps else timeline.start[work].min())
    return (first, max(edges)) if first < max(edges) else (start, end)


def either(one: Intervals, other: Intervals) -> Intervals:
    """Return the part that is in one of them, or in both."""
    joined = np.concatenate([one, other])
    return intervals.union(joined[:, 0], joined[:, 1])
