"""Timeline -> Summary: how much of the copy is hidden, what the loop waits for, how far it is from the limit.

All times are exact integer nanoseconds (interval algebra, no sampling), of the steady state (see `Loop`): the start of
the workers, page-locking and the first batch are left out, and told as `start_up`; so is what belongs to no step, such
as validation between two epochs, and told as `outside`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import cache, wraps
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from loaderviz import intervals, words
from loaderviz.batches import BATCH_RANGE, OPTIMIZER_STEP, STEP_RANGE, WORKER_END, WORKER_START
from loaderviz.errors import LoadervizError
from loaderviz.intervals import Intervals
from loaderviz.timeline import (
    COPIES,
    DEVICE_KINDS,
    KERNELS,
    LOADING,
    Cause,
    Floats,
    Ints,
    Kind,
    Mask,
    Message,
    Numbers,
    Timeline,
    gathered,
    grouped,
)
from loaderviz.vendors import POINT_TO_POINT, Api, calls_of

Function = TypeVar("Function", bound=Callable[..., Any])


NONE: Intervals = np.empty((0, 2), np.int64)
AT_THE_LIMIT = 1.005  # window / limit; up to it, the number would read as 1.00x

# What the host does while the device is idle, from the most to the least telling; a wait is seen before its call.
_HOST_WORK = {
    "idle: host fetches a batch": (Kind.FETCH,),
    "idle: host pins a batch": (Kind.PIN,),
    "idle: host in CUDA calls": (Kind.API,),
    "idle: host in operators": (Kind.OPERATOR,),
}


class MetricsError(LoadervizError, ValueError):
    """A question to a timeline that has no answer."""


class NotATimelineError(LoadervizError, TypeError):
    """Something else was given where a Timeline is needed."""


def once(function: Function) -> Function:
    """Let a function of a timeline be worked out once where it is called without options; each caller gets a copy."""

    @wraps(function)
    def remembered(timeline: Timeline, *values: Any, **options: Any) -> Any:
        asked = any(value is not None for value in (*values, *options.values()))
        if asked or not isinstance(timeline, Timeline):
            return function(timeline, *values, **options)
        if function.__name__ not in timeline.results:
            timeline.results[function.__name__] = function(timeline)
        return deepcopy(timeline.results[function.__name__])

    return cast(Function, remembered)


def check_timeline(value: object, caller: str) -> Timeline:
    """Return `value` if it is a Timeline; raise `NotATimelineError` that says what to give `caller` instead."""
    if isinstance(value, Timeline):
        return value
    hint = "give recording.timeline, or a file to loaderviz.read()"
    raise NotATimelineError(f"{caller} needs a Timeline, got {type(value).__name__} ({str(value)[:60]}); {hint}")


def device_sets(timeline: Timeline, start: int, end: int, device: int = 0) -> dict[str, Intervals]:
    """Return when a device does what between `start` and `end` [ns], as sets of intervals.

    Keys: compute, communication, kernels (either), h2d, d2h, copies (either), work (anything, memset and D2D included).
    """
    kinds = {
        "compute": (Kind.COMPUTE,),
        "communication": (Kind.COMMUNICATION,),
        "kernels": KERNELS,
        "h2d": (Kind.COPY_H2D,),
        "d2h": (Kind.COPY_D2H,),
        "copies": COPIES,
        "work": DEVICE_KINDS,
    }
    here = np.flatnonzero(on_device(timeline, device))
    first, last = np.maximum(timeline.start[here], start), np.minimum(timeline.end[here], end)
    masks = {name: timeline.where(*which)[here] for name, which in kinds.items()}
    return {name: intervals.union(first[mask], last[mask]) for name, mask in masks.items()}


def states(timeline: Timeline, device: int | None = None) -> dict[str, Intervals]:
    """Return what the GPU is doing, as seven sets that are disjoint and together fill the timeline.

    Keys: "compute" (a kernel, no host-device copy), "copy hidden" (one under kernels), "copy exposed", "waiting for
    ranks" and "communication" (a collective alone, before and after the last known rank has come), "other device work",
    "idle".
    """
    check_timeline(timeline, "states()")
    start, end = window_of(timeline, None)
    device, _ = choose_device(timeline, device)
    sets = device_sets(timeline, start, end, device)
    waits, _ = rank_waits(timeline, start, end, device) or (NONE, NONE)
    layers = {
        "copy hidden": intervals.intersect(sets["kernels"], sets["copies"]),
        "copy exposed": sets["copies"],
        "compute": sets["compute"],
        "waiting for ranks": waits,
        "communication": sets["communication"],
        "other device work": sets["work"],
        "idle": np.array([[start, end]]),
    }
    return intervals.layers(layers["idle"], layers)


def window_of(timeline: Timeline, window: tuple[int, int] | None) -> tuple[int, int]:
    """Return start and end [ns] of the window, or of the whole timeline for None; a bad one raises `MetricsError`."""
    if window is None:
        return timeline.begin, timeline.begin + timeline.duration
    try:
        start, end = (int(edge) for edge in window)
    except (TypeError, ValueError) as problem:
        raise MetricsError(f"window is {window!r}; give (start, end) in ns, or None for all of it") from problem
    if end < start:
        raise MetricsError(f"window is {window!r}: its end lies before its start; give (start, end) in ns")
    return start, end


def devices_of(timeline: Timeline) -> tuple[int, ...]:
    """Return the numbers of the devices, in order; where there is none those of the loops, which are ranks without."""
    lanes = [lane for lane in timeline.lanes if lane.group == "device"] or timeline.lanes
    return tuple(sorted({lane.device for lane in lanes if lane.group == "device" or lane.role == "main"})) or (0,)


@once
def choose_device(timeline: Timeline, device: int | None = None) -> tuple[int, tuple[int, ...]]:
    """Return the device asked for, else the one that the others wait for, or that works longest, and all devices."""
    devices = devices_of(timeline)
    if device is None:
        late = lateness(timeline).late if len(devices) > 1 else ()
        return (*late, _busiest(timeline))[0], devices
    if device not in devices:
        raise MetricsError(f"device {device!r} is not in this timeline; it has {', '.join(map(str, devices))}")
    return device, devices


def _busiest(timeline: Timeline) -> int:
    """Return the device with the most work of its own: in a collective it may only wait.

    Of ranks on the CPU, the one whose loop is longest in operators that are no collective, and in getting batches.
    """
    devices = devices_of(timeline)
    own = timeline.where(*DEVICE_KINDS) & ~timeline.where(Kind.COMMUNICATION)
    spans = np.flatnonzero(own & timeline.in_lanes(lambda lane: lane.group == "device"))
    if not len(spans) and len(devices) > 1:
        shared = timeline.named(lambda name: name.startswith(("gloo:", "c10d::")))
        works, loop = timeline.where(Kind.OPERATOR, Kind.FETCH), timeline.select(lane=loop_lanes(timeline))
        works |= timeline.cause == Cause.DATA

        def alone(mine: Ints) -> int:
            parts = (mine[works[mine]], mine[shared[mine]])
            sets = [intervals.union(timeline.start[part], timeline.end[part]) for part in parts]
            return intervals.length(intervals.subtract(*sets))

        rank = np.where(loop, np.searchsorted(devices, device_of(timeline)), len(devices))
        return devices[int(np.argmax([alone(mine) for mine in grouped(rank, len(devices) + 1)[:-1]]))]
    whose = np.searchsorted(devices, device_of(timeline)[spans])
    return devices[int(np.bincount(whose, (timeline.end - timeline.start)[spans], len(devices)).argmax())]


def on_device(timeline: Timeline, device: int) -> Mask:
    """Return a mask over the spans: True for those in a stream of this device."""
    return timeline.in_lanes(lambda lane: lane.group == "device" and lane.device == device)


def device_of(timeline: Timeline) -> Ints:
    """Return the device of each span's lane."""
    return np.array([lane.device for lane in timeline.lanes], np.int64)[timeline.lane]


def loop_lanes(timeline: Timeline, device: int | None = None) -> list[int]:
    """Return the lanes of the training loop: those of role "main", else the host threads that do not load data.

    Of several ranks only the one that drives `device`, if that is given: a host lane has its rank's first device.
    """
    host = [(i, lane) for i, lane in enumerate(timeline.lanes) if lane.group == "host"]
    loop = [i for i, lane in host if lane.role == "main"] or [i for i, lane in host if lane.role not in LOADING]
    first = {i: timeline.lanes[i].device for i in loop}
    rank = max((number for number in first.values() if device is not None and number <= device), default=None)
    return [i for i in loop if rank is None or first[i] == rank]


def _covered(timeline: Timeline, mask: Mask, start: int, end: int) -> Intervals:
    return _within(np.array([[start, end]]), timeline, mask)


def on_workers(timeline: Timeline) -> Mask:
    """Return a mask over the spans: True where a thread starts a DataLoader's worker processes, or ends them."""
    return timeline.named(WORKER_START.match) | timeline.named(WORKER_END.match)


def in_loop(timeline: Timeline, device: int) -> Mask:
    """Return a mask over the spans: True for those of the loop that feeds this device."""
    return timeline.select(lane=loop_lanes(timeline, device))


def _within(judged: Intervals, timeline: Timeline, mask: Mask) -> Intervals:
    return intervals.intersect(judged, intervals.union(timeline.start[mask], timeline.end[mask]))


def _waits(timeline: Timeline, judged: Intervals, loop: Mask) -> dict[str, Intervals]:
    """When the loop's thread is blocked in what is judged, by cause in words; only causes that occur."""
    blocked = loop & timeline.where(Kind.WAIT)
    names = {cause: cause.words for cause in list(Cause)[1:]} | {Cause.NONE: "cause not known"}
    parts = {name: _within(judged, timeline, blocked & (timeline.cause == cause)) for cause, name in names.items()}
    return {name: part for name, part in parts.items() if len(part)}


def _breakdown(
    timeline: Timeline, judged: Intervals, sets: dict[str, Intervals], waits: dict[str, Intervals], loop: Mask
) -> dict[str, int]:
    """Give every ns of what is judged to one entry: device work, then what the host does while the device is idle."""
    layers = {
        "compute": sets["compute"],
        "communication exposed, waiting for other ranks": sets["waiting for ranks"],
        "communication exposed": sets["communication"],
        "copy exposed": sets["copies"],
        "other device work": sets["work"],
        **{f"idle: host blocked, {cause}": part for cause, part in waits.items()},
        "idle: host starts workers": _within(judged, timeline, loop & timeline.named(WORKER_START.match)),
        "idle: host ends workers": _within(judged, timeline, loop & timeline.named(WORKER_END.match)),
        **{name: _within(judged, timeline, loop & timeline.where(*kinds)) for name, kinds in _HOST_WORK.items()},
        "idle: other": judged,
    }
    return {name: time for name, part in intervals.layers(judged, layers).items() if (time := intervals.length(part))}


# Collectives. A kernel of one runs from when its rank comes to it until all ranks have what they need: before the last
# one has come it only waits. With several ranks in a timeline its time can be parted, with one it cannot.

_AGREE = 100_000, 0.1  # ns, and share of the longer one, by which the ends of one collective may differ among ranks


@once
def collectives(timeline: Timeline) -> tuple[Ints, Ints]:
    """Return for each span the number of the collective it is part of, and when the last known rank came to that [ns].

    Both are -1 for what is no collective, or was seen of one device alone. Parts of one collective have the same name
    and process group, overlap, and end together.
    """
    number, arrival = np.full((2, len(timeline)), -1, np.int64)
    rows = np.flatnonzero(timeline.where(Kind.COMMUNICATION) & (timeline.end > timeline.start))
    devices = device_of(timeline)[rows]
    if len(np.unique(devices)) < 2:
        return number, arrival
    members = _process_groups(timeline, rows)
    alike = timeline.name[rows].astype(np.int64) * (1 + int(members.max())) + members
    order = np.lexsort((timeline.end[rows], alike))
    rows, devices = rows[order], devices[order]
    columns = (devices, alike[order], timeline.start[rows], timeline.end[rows])
    groups, latest = [], [-1]  # of each part its group; of each group, from 1 on, the latest start
    of, first, longest = -1, 0, 0  # the group's name, its first end, its longest part
    seen: set[int] = set()
    for device, name, start, end in zip(*(column.tolist() for column in columns), strict=True):
        apart = max(_AGREE[0], _AGREE[1] * max(longest, end - start))
        if name != of or end - first > apart or start >= first or latest[-1] >= end or device in seen:
            of, first, longest, seen = name, end, 0, set()
            latest.append(start)
        longest, latest[-1] = max(longest, end - start), max(latest[-1], start)
        seen.add(device)
        groups.append(len(latest) - 1)
    several = np.bincount(groups)[groups] > 1
    number[rows[several]] = np.array(groups)[several]
    arrival[rows[several]] = np.array(latest)[groups][several]
    return number, arrival


def messages_of(timeline: Timeline, rows: Ints) -> list[Message | None]:
    """Return the message of each of these collectives, None where none is known."""
    told = {message.correlation: message for message in timeline.context.messages}
    return [told.get(correlation) for correlation in timeline.correlation[rows].tolist()]


def _process_groups(timeline: Timeline, rows: Ints) -> Ints:
    """Return a number for the process group of each of these collectives, as far as its message tells it."""
    names = [message.group if message else "" for message in messages_of(timeline, rows)]
    return np.unique(names, return_inverse=True)[1]


def point_to_point(timeline: Timeline, rows: Ints, by_few: bool) -> Mask:
    """Return which of these are no collectives, but send or receive: by their messages, else by their kernels.

    An exchange of all ranks has the same kernels: they tell only where less than 3/4 of the ranks meet, on average.
    """
    names = [timeline.names[name] * by_few for name in timeline.name[rows].tolist()]
    told = zip(messages_of(timeline, rows), names, strict=True)
    return np.array([POINT_TO_POINT.search((message and message.name) or name) for message, name in told], bool)


def rank_waits(timeline: Timeline, start: int, end: int, device: int) -> tuple[Intervals, Intervals] | None:
    """Return when a device's collectives wait for other ranks, and when they move bytes, within the window [ns].

    That is of those that were seen of several ranks; None if there are no such.
    """
    arrival = collectives(timeline)[1]
    mine = on_device(timeline, device) & (arrival >= 0)
    if not mine.any():
        return None
    first, until = np.maximum(timeline.start[mine], start), np.minimum(timeline.end[mine], end)
    came = np.minimum(arrival[mine], until)
    return intervals.union(first, came), intervals.union(np.maximum(came, first), until)


# Who is late. The lateness of a collective is what its last rank comes after the last but one: so much earlier it would
# begin if that rank alone were as early as the others. Where several come late, each gap between two arrivals is shared
# by those who have not come yet. Half of the ranks are not late: what comes before the middle one is not counted.

BLAME = 0.2  # of all lateness: a rank that causes so much of it is to blame
WAITED = 0.02  # of the window: what others wait for less than that is not told
ALIKE = 1.5  # times its fair part of all lateness: if one of those to blame causes less, it takes twice as much waiting
OFTEN = 0.5  # of what it usually causes where it is late: a step in which a rank causes so much is one more of these


@dataclass(frozen=True)
class Lateness:
    """Who is late to the collectives of a `window` [ns], as far as several ranks were seen; times in ns.

    `late` are the devices to blame, the worst first: the other ranks wait `cost` for them, at least, which is `share`
    (0..1) of what so many ranks could cause. Without one `cost` is what all of them wait in turn; 0 if it is little.
    `often` says in how many of the `units`, which are steps (collectives, where no steps are marked), each of them is
    late, and `held` in how many any of them is; `in_turn`, that most often it is not all of them. `steps` is how many
    the window holds, also of what is cut off; 0 if not known.

    Columns of one entry for each part of a collective, by collective and arrival: `parts` are their spans, `group`
    counts the collectives, `unit` the units, `device` is whose they are, `blame` is for how long it alone, or its
    share, held the others up, while they had nothing to compute.
    """

    window: tuple[int, int]
    late: tuple[int, ...]
    ranks: tuple[str, ...]
    cost: int
    share: float
    steps: float
    often: tuple[int, ...]
    held: int
    units: int
    in_turn: bool
    parts: Ints = field(compare=False)
    group: Ints = field(compare=False)
    unit: Ints = field(compare=False)
    device: Ints = field(compare=False)
    blame: Floats = field(compare=False)

    def per_step(self, ns: float) -> str:
        """A time in the window, in words: that of a step where steps are known."""
        return f"{words.duration(ns / self.steps)} a step" if self.steps else words.duration(ns)

    def longer(self, ns: float, often: int, what: str) -> str:
        """Say `what` (for whom, than whom) is so long in the window; where that is in few steps, how long in one."""
        if not (self.steps and often and 2 * often <= self.units):
            return f"{self.per_step(ns)} {what}"
        return f"{words.duration(ns / often)} {what} in {'that step' if often == 1 else 'each of these steps'}"

    def __str__(self) -> str:
        if not self.late:
            often = f" more than others: in turn they wait {self.per_step(self.cost)} for each other" * (self.cost > 0)
            return f"no rank is late{often}"
        *most, last = self.ranks
        who = f"ranks {', '.join(most)} and {last} are" if most else f"rank {last} is"
        them, turn = "them" if most else "it", " in turn" if self.in_turn else ""
        if self.steps and 2 * self.held <= self.units:
            turn += f" in {self.held} of {words.count(self.units, 'step')}"
        return f"{who} late{turn}: the others wait {self.longer(self.cost, self.held, f'for {them}')}"


@once
def lateness(timeline: Timeline, window: tuple[int, int] | None = None, steps: float | None = None) -> Lateness:
    """Return who is late to the collectives in a `window` [ns], or in the steady state of the busiest device.

    It holds so many `steps`, else those of the busiest one.
    """
    loop = Loop.of(timeline, _busiest(timeline))
    start, end = window_of(timeline, loop.window if window is None else window)
    steps = loop.count(start, end) if steps is None else steps
    parts, group, unit = _parts(timeline, start, end, bool(steps))
    devices, whose = np.unique(device := device_of(timeline)[parts], return_inverse=True)
    met, came, meeting = _met(timeline, parts, group, (start, end))
    _, first, meeting, size = np.unique(meeting, return_index=True, return_inverse=True, return_counts=True)
    last, who, blame = first + size - 1, whose[met], np.zeros(len(parts))
    known, unit = np.unique(unit, return_inverse=True)
    waits, groups = came[last][meeting] - came, _process_groups(timeline, parts[met])
    blame[met] = _without_victims(_blame(came, first, meeting, size), waits, who, unit[met], groups)
    caused = np.bincount(whose, blame, len(devices)).round()
    late = np.argsort(-caused, kind="stable")
    late = late[caused[late] >= max(1, round(BLAME * caused.sum()))]
    others = np.where(np.isin(who, late), came[first][meeting], came)
    cost = int((came[last] - np.maximum.reduceat(others, first)).sum()) if len(met) else 0
    possible = int((came[last] - came[np.maximum(first, last - len(late))]).sum())
    alike = (caused[late] * len(devices) < ALIKE * caused.sum()).any()  # as if all were late, by chance
    least = WAITED * (end - start)
    if cost < (1 + alike) * least:
        late, cost = late[:0], int(caused.sum()) * bool(caused.sum() >= 2 * least)
    held = [np.bincount(unit, blame * (whose == each), len(known)) for each in late]
    often = np.reshape([usually(each, (end - start) / len(known)) for each in held], (len(late), len(known)))
    return Lateness(
        (start, end),
        tuple(devices[late].tolist()),
        tuple(rank_of(timeline, each) for each in devices[late].tolist()),
        cost,
        cost / max(1, possible),
        steps,
        tuple(often.sum(axis=1).tolist()),
        int(np.count_nonzero(often.any(axis=0))),
        len(known),
        bool(2 * often.sum() < (1 + len(late)) * np.count_nonzero(often.any(axis=0))),
        parts,
        group,
        unit,
        device,
        blame,
    )


def _parts(timeline: Timeline, start: int, end: int, stepped: bool) -> tuple[Ints, Ints, Ints]:
    """Return the parts of collectives in [start, end), by collective and arrival, its number, and its unit.

    That is the step it was launched in, -1 where that is not known; where no steps are marked, the collective itself.
    """
    number, came = collectives(timeline)[0], timeline.start
    parts = np.flatnonzero((number >= 0) & (timeline.end > start) & (came < end))
    parts = parts[np.lexsort((came[parts], number[parts]))]
    _, first, group = np.unique(number[parts], return_index=True, return_inverse=True)
    return parts, group, np.maximum.reduceat(timeline.batch[parts], first)[group] if stepped and len(parts) else group


def _met(timeline: Timeline, parts: Ints, group: Ints, window: tuple[int, int]) -> tuple[Ints, Ints, Ints]:
    """Return who meets: places in `parts`, when each came [ns], and the number of the meeting; in this order.

    Ranks meet in collectives. While it has something to compute, a rank that waits in a stream of its own loses
    nothing; so it is counted as come so long before the last one as it loses more than the transfer, and than that one
    does. The stages of a pipeline wait by their schedule, and for nobody: they meet once a step, as if each came
    after its own work, which is all but what it loses in communication.
    """
    _, first, size = np.unique(group, return_index=True, return_counts=True)
    last, lost = (first + size - 1)[group], np.diff(unoccupied(timeline)[:, parts], axis=0)[0]
    came = timeline.start[parts][last]
    came -= np.maximum(0, lost - np.minimum(lost[last], timeline.end[parts] - came))
    between = point_to_point(
        timeline, parts, 4 * len(parts) < 3 * len(size) * len(np.unique(device_of(timeline)[parts]))
    )
    met, meeting = np.flatnonzero(~between), group.copy()
    if between.any():
        stages, works = _stages(timeline, parts, between, window).T
        met, came[stages] = np.r_[met, stages], works
        meeting[stages] = len(first) + timeline.batch[parts[stages]]
    met = met[np.lexsort((came[met], meeting[met]))]
    return met, came[met], meeting[met]


def _stages(timeline: Timeline, parts: Ints, between: Mask, window: tuple[int, int]) -> Ints:
    """Return the place of one part of each stage in each whole step of the window, and how long it works there [ns].

    That is from its last communication of the step before to that of this one, but for what it loses in all of them.
    """
    rows, idle, device = np.flatnonzero(timeline.where(Kind.COMMUNICATION)), unoccupied(timeline), device_of(timeline)
    cut = np.unique(np.r_[-1, timeline.batch[rows[timeline.start[rows] < window[0]]]])
    places = np.flatnonzero(between & ~np.isin(timeline.batch[parts], cut))
    of_stage = gathered(((device[row], timeline.batch[row]), row) for row in rows.tolist())
    until = {each: int(timeline.end[mine].max()) for each, mine in of_stage.items()}
    found = dict[Any, tuple[int, int]]()
    for place, stage, step in zip(places.tolist(), device[parts[places]], timeline.batch[parts[places]], strict=True):
        if (stage, step) not in found:
            waits = intervals.length(intervals.union(*idle[:, of_stage[stage, step]]))
            found[stage, step] = place, until[stage, step] - until.get((stage, step - 1), window[0]) - waits
    return np.array([*found.values()], np.int64).reshape(-1, 2)


def usually(blame: Ints | Floats, step: float) -> Mask:
    """Return where a rank is late: it holds the others up half as long there as it usually does where that is much.

    Much is what is told of a `step` [ns], or the mean, if that is less. Usual is the median of these: one very late
    step hides no other.
    """
    much = blame[blame >= min(WAITED * step, blame.mean())]
    found: Mask = blame >= OFTEN * np.median(much)
    return found


def _without_victims(blame: Floats, waits: Ints, whose: Ints, unit: Ints, groups: Ints) -> Floats:
    """Return the blame of each part without that of ranks which, in the same step, wait as long in other groups [ns].

    Who waits there for a late one comes late here, and holds nobody up.
    """
    if not groups.any():
        return blame
    step = whose * (1 + unit.max()) + unit
    here, part = np.unique(step * (1 + groups.max()) + groups, return_inverse=True)
    in_group, in_all = np.bincount(part, waits), np.bincount(step, waits)
    elsewhere, total = in_all[step] - in_group[part], np.bincount(part, blame, len(here))[part]
    found: Floats = blame * np.maximum(0, 1 - elsewhere / np.maximum(1, total))
    return found


@once
def unoccupied(timeline: Timeline) -> Ints:
    """Return for how long its device computes nothing until a collective starts, and until it ends [ns], shape (2, n).

    A collective waits in a stream of its own, as DDP's do: what its rank computes then is none of the waiting. It is 0
    for other spans.
    """
    found, devices = np.zeros((2, len(timeline)), np.int64), device_of(timeline)
    count = 1 + max((lane.device for lane in timeline.lanes), default=-1)

    def by_device(kind: Kind) -> list[Numbers]:
        rows = np.flatnonzero(timeline.where(kind))
        return grouped(devices, count, rows[np.argsort(devices[rows], kind="stable")])

    for mine, computes in zip(by_device(Kind.COMMUNICATION), by_device(Kind.COMPUTE), strict=True):
        busy = intervals.union(timeline.start[computes], timeline.end[computes])
        times = np.stack([timeline.start[mine], timeline.end[mine]])
        found[:, mine] = times - intervals.covered_before(busy, times)
    return found


def _blame(came: Ints, first: Ints, group: Ints, size: Ints) -> Floats:
    """Return for how long each part holds its collective up [ns]: arrivals are by collective, and in order."""
    many, place = size[group], np.arange(len(came)) - first[group]
    gaps = np.where((place > 0) & (2 * place >= many - 1), np.diff(came, prepend=0), 0)
    blame = np.cumsum(gaps / (many - place))
    found: Floats = blame - blame[first][group]
    return found


def rank_of(timeline: Timeline, device: int) -> str:
    """Return the number of the rank that a device belongs to, as its lanes are named, else that of the device.

    The GPUs of a rank that has several are told apart.
    """
    names = (lane.name for lane in timeline.lanes if lane.device == device)
    match = re.match(r"(rank|file|process) (\d+) ", next(names, ""))
    if not match:
        return str(device)
    of_rank = [lane for lane in timeline.lanes if lane.group == "device" and lane.name.startswith(match[0])]
    gpus = sorted({lane.device for lane in of_rank})
    which = f" GPU {gpus.index(device)}" if len(gpus) > 1 else ""
    if match[1] != "rank" and any(lane.name.startswith("rank ") for lane in timeline.lanes):
        return match[0].rstrip() + which  # beside ranks: its number is none
    return match[2] + which


# The steps of a loop: which of them are the start, and how long one takes once the loop is running. The GPU has work
# left from earlier batches when a batch is handed out, and the host has handed out all of them when the GPU works on
# the last; so the time between two hand-outs, or to the end, says little. The time between the GPU's first kernels of
# two batches is that of whole steps. A loop does more than steps, once an epoch: that is no part of any of them.

GRAPH_LAUNCH = re.compile("GraphLaunch")  # of CUDA, its driver, and HIP
FEW = 3  # steps; with fewer nothing tells which is a usual one
BREAK = 3  # times a usual step: what takes longer, and is not told as loading or allocating, holds other work
OUTLIER, RARE = 10, 100  # times the median fetch; and one in so many fetches, or one alone, is an outlier
_TOLD = (Cause.DATA, Cause.ALLOCATION, Cause.PAGE_LOCKING)  # waits that are findings of their own


@dataclass(frozen=True)
class Loop:
    """The loop that feeds one device. `spans` are the marks of its steps, in order; `samples` as their names tell.

    `cut`: the timeline begins in a later step, so the start is not in it. `first` is the place of the first step of
    the steady state in `spans`: the first after step 0 in which nothing is allocated, page-locked or started. If that
    goes on for half of the steps it is no start, and only step 0 is left out. Where the timeline is cut, only a first
    step that holds the GPU up as no later one does is left out. `last` is when its last mark ends [ns].
    `evaluated` are the marks of batches that are no steps, since no optimizer steps for them; one that is only taken,
    before the loop is left, is none of both.
    """

    timeline: Timeline
    device: int
    spans: Ints
    samples: tuple[int | None, ...]
    cut: bool
    first: int
    last: int
    evaluated: Ints

    @classmethod
    def of(cls, timeline: Timeline, device: int) -> Loop:
        """Return the loop of the threads that feed `device`, by loaderviz's marks, else the profiler's."""
        for pattern in (BATCH_RANGE, STEP_RANGE):
            found = {name: match for name, text in enumerate(timeline.names) if (match := pattern.fullmatch(text))}
            mask = timeline.select(Kind.RANGE, loop_lanes(timeline, device)) & np.isin(timeline.name, list(found))
            if mask.any():
                marks = np.flatnonzero(mask)
                spans = _training(timeline, device, marks)
                told = [found[name].groupdict() for name in timeline.name[spans].tolist()]
                counts = [int(each["samples"]) if each.get("samples") else None for each in told]
                spans, samples = _joined(timeline, spans, counts)
                cut = int(found[int(timeline.name[marks[0]])]["number"]) > 0  # whoever takes it: a validation, too
                foreign = timeline.context.origin == "file"  # what was emulated or cut here begins as it goes on
                first = 0 if cut and not foreign else (_first_warm if cut else _first_steady)(timeline, device, spans)
                others, used = _others(timeline, device, marks, spans)
                last = _last(timeline, device, np.r_[spans, others[used]], others[~used])
                return cls(timeline, device, spans, samples, cut, first, last, others[used])
        none = np.empty(0, np.int64)
        return cls(timeline, device, none, (), False, 0, 0, none)

    @property
    def window(self) -> tuple[int, int] | None:
        """From the first steady step, or the cut, to the end of the last step and work; None without steps."""
        if not len(self.spans):
            return None
        work = on_device(self.timeline, self.device) & self.timeline.where(*DEVICE_KINDS)
        start = int(self.timeline.start[self.spans[self.first]])
        end = int(self.timeline.end[work].max(initial=self.last))
        if self.cut and not self.first:  # another rank's recording may begin earlier
            lanes = self.timeline.lanes
            mine = {self.device, *(lanes[lane].device for lane in loop_lanes(self.timeline, self.device))}
            start = int(self.timeline.start[self.timeline.in_lanes(lambda lane: lane.device in mine)].min())
        return (start, end) if start < end else None

    def between(self, start: int, end: int) -> Ints:
        """Return the steps that begin in the window [ns]: places in `spans`."""
        starts = self.timeline.start[self.spans]
        return np.flatnonzero((starts >= start) & (starts < end))

    def breaks(self, start: int, end: int) -> Intervals:
        """Return when the loop does other work than steps in the window [ns]: validation, a checkpoint, a report.

        That is what a step has beyond a usual one if it takes several times as long, first kernel to first kernel. Its
        place is after the step's own work, or before it where the optimizer's step comes late (steps counted by it).
        What is told as loading or allocating is none; nor is a step of as many kernels as usual, which take longer.
        """
        spans, timeline = self.spans[self.between(start, end)], self.timeline
        begins = begin_of(timeline, self.device, spans)
        if len(begins) < FEW:
            return NONE
        loop = in_loop(timeline, self.device)
        told = timeline.where(Kind.FETCH, Kind.PIN) | np.isin(timeline.cause, _TOLD) | on_workers(timeline)
        told &= ~timeline.select(batch=timeline.batch[self.evaluated])  # a validation's loading is a part of it
        optimizing = loop & timeline.named(OPTIMIZER_STEP.match)
        work = _covered(timeline, on_device(timeline, self.device) & timeline.where(*DEVICE_KINDS), start, end)
        known = intervals.subtract(_covered(timeline, (loop & told) | optimizing, start, end), work)
        kernels = on_device(timeline, self.device) & timeline.where(*KERNELS)
        edges = np.r_[begins, max(end, int(begins[-1]))]
        own = intervals.free_within(known, edges[:-1], edges[1:])
        usual, counts = int(np.sort(own)[(len(own) - 1) // 2]), np.diff(np.searchsorted(timeline.start[kernels], edges))
        computing = intervals.covered_within(_covered(timeline, kernels, start, end), edges[:-1], edges[1:])
        alike = counts == np.sort(counts)[(len(counts) - 1) // 2]
        longer = alike * np.maximum(0, computing - np.median(computing))
        far = np.flatnonzero(own - longer > BREAK * usual)
        far = far[: len(far) * (2 * len(far) < len(own))]  # what comes back in each other step is a part of the steps
        stepped = np.r_[timeline.start[0], np.sort(timeline.end[optimizing])]
        last = stepped[np.searchsorted(stepped, edges[1:], side="right") - 1]
        late = usual * (2 * last > edges[:-1] + edges[1:])
        pieces = intervals.union((edges[:-1] + usual - late)[far], (edges[1:] - late)[far])
        return intervals.subtract(pieces, _covered(timeline, loop & told, start, end))

    def outliers(self, start: int, end: int) -> Mask:
        """Return a mask over the spans: the fetches in the window [ns] that take far longer than the others, if rare.

        A garbage collection, a file that was not in the page cache: they say nothing about the next step.
        """
        timeline = self.timeline
        fetches = timeline.where(Kind.FETCH) & (timeline.start >= start) & (timeline.start < end)
        time = timeline.end - timeline.start
        far = fetches & (time > OUTLIER * np.median(time[fetches])) if fetches.any() else fetches
        rare: Mask = far & (far.sum() <= max(1, fetches.sum() // RARE))
        return rare

    def outside(self, start: int, end: int) -> Intervals:
        """Return what of the window [ns] belongs to no step: the breaks, and what the loop loses by outliers."""
        if len(self.between(start, end)) < FEW:
            return NONE
        timeline = self.timeline
        loading = in_loop(timeline, self.device) & (
            timeline.where(Kind.FETCH, Kind.PIN) | (timeline.cause == Cause.DATA)
        )
        outliers = _covered(timeline, self.outliers(start, end), start, end)
        lost = intervals.intersect(outliers, _covered(timeline, loading, start, end))
        return intervals.either(self.breaks(start, end), lost)

    def pace(self, steps: Ints, outside: Intervals) -> float | None:
        """Return the time of one of these steps [ns], neighbours in `spans`, without what is `outside` of them.

        None if they hold no whole step.

        From the first kernel of a batch to that of a later one, or from hand-out to hand-out where kernels are not
        known to be of a batch. Steps after the last copy for a batch are not whole: a prefetcher only hands out what
        it has. Where the loop waits for several workers, which deliver together, it counts whole rounds of them, and
        leaves out the batches that they had ready when the loop began, if a round is left.
        """
        if len(steps) < 2:
            return None
        begins = begin_of(self.timeline, self.device, self.spans[steps])
        begins = begins[: 1 + self._last_whole(self.spans[steps])]
        if len(begins) < 2:
            return None
        timeline = self.timeline
        waits = timeline.select(Kind.WAIT, loop_lanes(timeline, self.device), cause=Cause.DATA)
        waits &= (timeline.start < begins[-1]) & (timeline.end > begins[0])
        fetched = np.unique(timeline.lane[timeline.where(Kind.FETCH)]).tolist()
        workers = sum(timeline.lanes[lane].role == "worker" for lane in fetched)
        if waits.any() and 1 < workers < len(begins):
            made = timeline.where(Kind.FETCH) & (timeline.end <= begins[0])
            stock = np.count_nonzero(np.isin(timeline.batch[self.spans[steps]], timeline.batch[made]))
            if stock + workers < len(begins):
                begins = begins[stock:]
            begins = begins[(len(begins) - 1) % workers :]
        inside = intervals.free_within(outside, begins[:1], begins[-1:])
        return float(inside[0]) / (len(begins) - 1)

    def count(self, start: int, end: int) -> float:
        """Return how many steps the window [ns] holds, 0 if fewer than two are marked.

        Where the timeline begins in a later one, work of earlier ones is in it: then it is the window by a step's time.
        """
        steps = self.between(start, end)
        step = self.pace(steps, NONE) if self.cut else None
        return (end - start) / step if step else len(steps) * (len(steps) > 1)

    def _last_whole(self, spans: Ints) -> int:
        """Return the place in `spans` of the last step by whose hand-out a batch was still loaded."""
        timeline, last = self.timeline, len(spans) - 1
        copies = np.flatnonzero(on_device(timeline, self.device) & timeline.where(Kind.COPY_H2D))
        newest = timeline.batch[copies].max(initial=-1)
        if newest < timeline.batch[spans[last]] or newest < 0:
            return last  # no copy for the last batches: the data set is on the GPU
        copies = copies[timeline.batch[copies] == newest]
        tails, heads = timeline.launches
        called = timeline.start[np.r_[tails[np.isin(heads, copies)], copies]].min()
        after = np.flatnonzero(timeline.start[spans] >= called)
        return int(after[0]) if len(after) else last


def _training(timeline: Timeline, device: int, spans: Ints) -> Ints:
    """Return the marks without those of batches that are only evaluated: before which no optimizer's step comes soon.

    All of them where no optimizer is seen, or CUDA graphs are launched after its last step: they may hold it.
    """
    stepping = in_loop(timeline, device) & timeline.named(OPTIMIZER_STEP.match)
    stepping &= timeline.start >= timeline.start[spans[0]]
    place = np.unique(np.searchsorted(timeline.start[spans], timeline.start[stepping], side="right") - 1)
    graphs = timeline.start[timeline.named(GRAPH_LAUNCH.search)]
    if len(place) < 2 or graphs.max(initial=0) > timeline.start[stepping].max():
        return spans
    following = np.r_[place, 2 * len(spans) + place[-1]]
    distance = following[np.searchsorted(place, np.arange(len(spans)))] - np.arange(len(spans))
    kept: Ints = spans[distance < max(1, np.median(np.diff(place)))]
    return kept


def _joined(timeline: Timeline, spans: Ints, samples: list[int | None]) -> tuple[Ints, tuple[int | None, ...]]:
    """Make one step of neighbours with the same batch, which two DataLoaders have given, with the samples of both."""
    batches = timeline.batch[spans]
    begins = np.flatnonzero(np.r_[True, (np.diff(batches) != 0) | (batches[1:] < 0)])
    parts = [samples[first:after] for first, after in pairwise([*begins.tolist(), len(spans)])]
    known = [[count for count in part if count is not None] for part in parts]
    return spans[begins], tuple(
        sum(some) if len(some) == len(part) else None for some, part in zip(known, parts, strict=True)
    )


def _last(timeline: Timeline, device: int, marks: Ints, taken: Ints) -> int:
    """Return when the last of these marks ends [ns], before its workers leave, or a batch is `taken` for nothing."""
    begin = timeline.start[marks].max()
    over = timeline.named(WORKER_END.match)
    over |= timeline.select(batch=timeline.batch[taken]) & ~timeline.where(Kind.RANGE)
    over &= in_loop(timeline, device) & (timeline.start >= begin)
    return int(timeline.start[over].min(initial=timeline.end[marks].max()))


def _others(timeline: Timeline, device: int, marks: Ints, spans: Ints) -> tuple[Ints, Mask]:
    """Return the marks that are no steps, and of each whether there are operators in it."""
    calls = timeline.select(Kind.OPERATOR, loop_lanes(timeline, device)) & ~timeline.named(WORKER_END.match)
    starts, others = np.sort(timeline.start[calls]), np.setdiff1d(marks, spans)
    left, right = (np.searchsorted(starts, side[others]) for side in (timeline.start, timeline.end))
    return others, left < right


def begin_of(timeline: Timeline, device: int, spans: Ints) -> Ints:
    """Return when the GPU begins on the batches of these marks, in order: the first kernel of each after its mark [ns].

    Where marks have no batch, it is the first kernel launched in each. Batches without a kernel are left out; if those
    are most, the marks' own starts are returned.
    """
    if (timeline.batch[spans] < 0).all():
        return _launched_in(timeline, device, spans)
    kernels = np.flatnonzero(on_device(timeline, device) & timeline.where(*KERNELS) & (timeline.batch >= 0))
    kernels = kernels[np.argsort(timeline.batch[kernels], kind="stable")]  # per batch in order of start
    batches, starts = timeline.batch[kernels], timeline.start[kernels]
    left, right = (np.searchsorted(batches, timeline.batch[spans], side) for side in ("left", "right"))
    begins = []
    for low, high, mark in zip(left.tolist(), right.tolist(), timeline.start[spans].tolist(), strict=True):
        place = low + int(np.searchsorted(starts[low:high], mark))
        if place < high:
            begins.append(int(starts[place]))
    return np.sort(np.array(begins, np.int64)) if 2 * len(begins) > len(spans) else timeline.start[spans]


def _launched_in(timeline: Timeline, device: int, spans: Ints) -> Ints:
    """Return when the first kernel begins that is launched in each of these marks [ns]; else the marks' own starts."""
    tails, heads = timeline.launches
    kernels = (on_device(timeline, device) & timeline.where(*KERNELS))[heads]
    called, begun = timeline.start[tails[kernels]], timeline.start[heads[kernels]]
    order = np.lexsort((begun, called))
    called, begun, marks = called[order], begun[order], timeline.start[spans]
    places = np.searchsorted(called, marks)
    ends = np.searchsorted(called, np.r_[marks[1:], timeline.end[spans[-1:]]])
    begins: Ints = np.sort(begun[places[places < ends]])
    return begins if 2 * len(begins) > len(spans) else marks


def _first_steady(timeline: Timeline, device: int, spans: Ints) -> int:
    """Return the first step after step 0 in which nothing is allocated, page-locked or started; see `Loop`."""
    loop = in_loop(timeline, device)
    cold = loop & timeline.select(Kind.WAIT, cause=(Cause.ALLOCATION, Cause.PAGE_LOCKING))
    cold |= loop & timeline.named(WORKER_START.match)
    file = timeline.context.origin == "file"
    if file:  # there the pool's first blocks are seen as calls
        cold |= loop & timeline.where(Kind.API) & (calls_of(timeline.names)[timeline.name] & Api.ALLOCATE != 0)
    begins, marks = begin_of(timeline, device, spans), timeline.start[spans]
    warm = marks[0] == timeline.begin and not (file and len(spans) > 1 and cold[timeline.start < marks[1]].any())
    if len(spans) < 3 or warm:
        return 0  # two steps must remain for one to be timed; or nothing was prepared for the first batch
    if len(begins) < len(spans):
        begins = marks
    for step in range(1, (len(spans) + 1) // 2):
        until = max(begins[step + 1], marks[step + 1])
        if not (cold & (timeline.start < until) & (timeline.end > marks[step])).any():
            return step
    return 1


def _first_warm(timeline: Timeline, device: int, spans: Ints) -> int:
    """Return 1 if kernels pause for several steps' time in the first step, and in no other for half as long; else 0."""
    begins = begin_of(timeline, device, spans)
    kernels = np.flatnonzero(on_device(timeline, device) & timeline.where(*KERNELS))
    if not len(kernels) or not FEW <= len(spans) == len(begins):
        return 0
    ends = np.r_[begins[1:], timeline.end[kernels].max()]
    starts = np.r_[timeline.start[spans[0]], begins[1:]]
    work = intervals.union(timeline.start[kernels], timeline.end[kernels])
    pause, *others = intervals.free_within(work, starts, ends).tolist()
    return int(pause > max(BREAK * np.median(np.diff(begins[1:])), 2 * max(others)))


# The numbers


_OF_DEVICE = (  # what is not known where no device is in the timeline
    *("compute", "communication", "kernels", "copy", "h2d", "d2h", "hidden_copy", "exposed_copy", "idle", "limit"),
    *("hidden_communication", "moved", "limit_most"),
)


@dataclass(frozen=True, repr=False)
class Summary:
    """The numbers of one timeline, for one device. Times in ns, shares 0..1; None where there is nothing to measure.

    `window` is the length of the steady state, or of the window asked for; `start_up` is what passes before the steady
    state, `outside` what belongs to no step of it and is left out; both are 0 with a window asked for. `compute` and
    `communication` are the time in which such a kernel runs, `kernels` that of either; `hidden_communication` is the
    part of it under compute kernels, `rank_wait` the part in which a collective is known to wait for other ranks (None:
    there is one rank). `copy` is host-device copies (`h2d`, `d2h`; D2D counts as work on the device), `hidden_copy`
    its part under any kernel, `overlap` that part as a share. `busy` is the share of the window with any work on the
    device (None: the timeline has none), `idle` the rest in ns. `host_blocked` gives the ns in which the training
    loop's thread waits, by cause. `limit` is the longest of compute, H2D, D2H and what collectives are known to move:
    the window if all else were hidden. How long the other collectives move is not known: at most the limit is
    `limit_most`. `headroom` is window / limit. `breakdown` is exclusive and sums to the window. `batches` and `samples`
    were handed out in the window. `step` is the mean time from the GPU's first kernel of a batch to that of the next
    (without kernels from hand-out to hand-out; window / batches where that is not known either), `samples_per_second`
    the samples of a batch in such a step. `copy_share` is the copy's share of the window (below 5 % overlap cannot
    pay). `bandwidth` maps a kind of copy to bytes per second. The fetch of a batch takes `fetch_computes` ns on a core
    and `fetch_waits` ns that need none, such as for a disk or a network, and gives `fetch_bytes`, on average.
    """

    window: int
    compute: int
    communication: int
    kernels: int
    copy: int
    h2d: int
    d2h: int
    hidden_copy: int
    exposed_copy: int
    overlap: float | None
    busy: float | None
    idle: int
    host_blocked: dict[str, int]
    limit: int
    headroom: float | None
    batches: int | None
    samples: int | None
    step: float | None
    samples_per_second: float | None
    copy_share: float | None
    breakdown: dict[str, int]
    bandwidth: dict[str, float]
    start_up: int = 0
    device: int = 0
    devices: tuple[int, ...] = (0,)
    hidden_communication: int = 0
    rank_wait: int | None = None
    moved: int = 0  # by collectives seen of several ranks
    limit_most: int = 0
    outside: int = 0
    unpriced: tuple[str, ...] = ()  # what the timeline leaves out, as in `Context`
    fetch_computes: float | None = None
    fetch_waits: float | None = None
    fetch_bytes: float | None = None

    @property
    def exposed_communication(self) -> int:
        """Time in which a collective runs and no compute kernel does [ns]."""
        return self.communication - self.hidden_communication

    @property
    def away(self) -> str:
        """How far the window is from the limit: "2.43x the limit", "at the limit", "1.21x to 3.42x the limit"."""
        least = _ratio(self.window, self.limit_most) or self.headroom
        if self.headroom is None or least is None or self.headroom <= AT_THE_LIMIT:
            return "at the limit"
        far = words.times(self.headroom)
        return f"{far} the limit" if words.times(least) == far else f"{words.times(least)} to {far} the limit"

    @property
    def compute_share(self) -> float | None:
        """Share of the window in which a compute kernel runs."""
        return None if self.busy is None else _ratio(self.compute, self.window)

    @property
    def longest(self) -> str:
        """Whose time the limit is: "kernels", "collectives", "H2D copies" or "D2H copies"."""
        engines = {"kernels": self.compute, "collectives": self.moved, "H2D copies": self.h2d, "D2H copies": self.d2h}
        return max(engines, key=lambda name: engines[name])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON: times in ns, shares 0..1, `None` for what was not measured."""
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return plain | dict.fromkeys(_OF_DEVICE if self.busy is None else ())

    def __str__(self) -> str:
        table, parts = _rows(self), _breakdown_rows(self)
        lines = words.aligned([*table, *parts], "<>")
        title = ["", word("where the window goes (sums to it)")] if parts else []
        return "\n".join([*lines[: len(table)], *title, *lines[len(table) :]])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        parts = _breakdown_rows(self)
        return _html("Summary", _rows(self)) + (_html("Where the window goes (sums to it)", parts) if parts else "")


@once
def summarize(
    timeline: Timeline, window: tuple[int, int] | None = None, samples: int | None = None, device: int | None = None
) -> Summary:
    """Return the Summary of a timeline, or of the part between `window = (start, end)` [ns, as in `timeline.start`].

    Without a window the summary is about the steady state (see `Loop`). A window is taken as it is. `samples` is the
    number of samples in the window; give it where the timeline cannot know it. Raises `NotATimelineError` for anything
    but a Timeline, and `MetricsError` for a window or a device that makes no sense.

    >>> round(loaderviz.summarize(timeline).headroom, 2)  # the loop takes 2.05x the time of its longest engine
    2.05
    >>> loaderviz.summarize(timeline, window=(timeline.begin, timeline.begin + 5_000_000)).window
    5000000
    """
    device, _ = choose_device(check_timeline(timeline, "summarize()"), device)
    loop = Loop.of(timeline, device)
    start, end = window_of(timeline, loop.window if window is None else window)
    outside = NONE if window is not None else loop.outside(start, end)
    found = summary_of(loop, start, end, outside, samples, asked=window is not None)
    computes, waits, size = _fetch(timeline, start, end, device)
    return replace(
        found,
        start_up=0 if window is not None or (loop.cut and not loop.first) else start - timeline.begin,
        unpriced=timeline.context.unpriced,
        fetch_computes=computes,
        fetch_waits=waits,
        fetch_bytes=size,
    )


def summary_of(
    loop: Loop, start: int, end: int, outside: Intervals, samples: int | None = None, *, asked: bool = True
) -> Summary:
    """Return the Summary of the part between `start` and `end` [ns] of what a loop feeds, without what is `outside`.

    What is before it, what a fetch takes, and what is not priced, is not in it. `asked`: somebody wants this part.
    """
    timeline, device = loop.timeline, loop.device
    judged = intervals.subtract(np.array([[start, end]]), outside)
    sets, parted = _judged_sets(loop, start, end, judged)
    waits = _waits(timeline, judged, loop_spans := in_loop(timeline, device))
    lengths = {name: intervals.length(part) for name, part in sets.items()}
    span, copy, busy = intervals.length(judged), lengths["copies"], lengths["work"]
    hidden = intervals.length(intervals.intersect(sets["copies"], sets["kernels"]))
    seen = any(lane.group == "device" and lane.device == device for lane in timeline.lanes)
    limit = max(lengths[name] for name in ("compute", "h2d", "d2h", "moving"))
    batches, counted, step = _steps(loop, start, end, outside)
    if samples is None:
        samples = counted if counted is not None or asked or loop.first else timeline.context.samples
    return Summary(
        window=span,
        compute=lengths["compute"],
        communication=lengths["communication"],
        kernels=lengths["kernels"],
        copy=copy,
        h2d=lengths["h2d"],
        d2h=lengths["d2h"],
        hidden_copy=hidden,
        exposed_copy=copy - hidden,
        overlap=_ratio(hidden, copy),
        busy=_ratio(busy, span) if seen else None,
        idle=span - busy,
        host_blocked={cause: intervals.length(part) for cause, part in waits.items()},
        limit=limit,
        headroom=_ratio(span, limit),
        batches=batches,
        samples=samples,
        step=step,
        samples_per_second=_ratio((samples or 0) * 1e9, batches * (step or 0) if batches else span) or None,
        copy_share=_ratio(copy, span) if seen else None,
        breakdown=_breakdown(timeline, judged, sets, waits, loop_spans),
        bandwidth=_bandwidth(timeline, start, end, device),
        device=device,
        devices=devices_of(timeline),
        hidden_communication=intervals.length(intervals.intersect(sets["communication"], sets["compute"])),
        rank_wait=lengths["waiting for ranks"] if parted else None,
        moved=lengths["moving"],
        limit_most=max(limit, lengths["communication"] - lengths["waiting for ranks"]),
        outside=intervals.length(outside),
    )


def _judged_sets(loop: Loop, start: int, end: int, judged: Intervals) -> tuple[dict[str, Intervals], bool]:
    """Return when the device does what of what is judged, and whether its collectives were seen of several ranks."""
    parted = rank_waits(loop.timeline, start, end, loop.device)
    sets = device_sets(loop.timeline, start, end, loop.device)
    sets["waiting for ranks"], sets["moving"] = parted or (NONE, NONE)
    return {name: intervals.intersect(part, judged) for name, part in sets.items()}, parted is not None


def utilization(timeline: Timeline, window_ns: int) -> tuple[Numbers, Floats]:
    """Return the GPU-utilisation curve of the busiest device: edges [ns], shape (n + 1,), and shares, shape (n,).

    This is what nvidia-smi shows as "GPU-Util": the share of the sampling window in which one or more kernels ran. The
    last window ends with the timeline, so it may be shorter. An empty timeline has no windows.
    """
    check_timeline(timeline, "utilization()")
    if isinstance(window_ns, bool) or not isinstance(window_ns, (int, np.integer)) or window_ns < 1:
        raise MetricsError(f"window_ns is {window_ns!r}; give the sampling window in ns, such as 100_000 for 0.1 ms")
    begin, duration = timeline.begin, timeline.duration
    edges = begin + np.r_[np.arange(0, duration, int(window_ns), dtype=np.int64), duration]
    if not duration:
        return edges[:1], np.empty(0)
    sets = device_sets(timeline, begin, begin + duration, choose_device(timeline, None)[0])
    return edges, np.diff(intervals.covered_before(sets["kernels"], edges)) / np.diff(edges)


def hidden_shares(timeline: Timeline) -> Floats:
    """Return for each span the share of it that is hidden under kernels of its device; NaN unless it is a copy."""
    shares = np.full(len(timeline), np.nan)
    copies = timeline.where(*COPIES) & (timeline.end > timeline.start)
    work = np.flatnonzero((copies | timeline.where(*KERNELS)) & timeline.in_lanes(lambda lane: lane.group == "device"))
    devices, whose = np.unique(device_of(timeline)[work], return_inverse=True)
    for spans in grouped(whose, len(devices)):
        mine, kernels = (work[spans[copies[work[spans]] == copy]] for copy in (True, False))
        under = intervals.union(timeline.start[kernels], timeline.end[kernels])
        first, last = timeline.start[mine], timeline.end[mine]
        shares[mine] = intervals.covered_within(under, first, last) / (last - first)
    return shares


def describe(timeline: Timeline, label: str = "", window: tuple[int, int] | None = None) -> str:
    """Return the finding in one line of words, for the steady state or a window [ns]; titles and text twins use it.

    >>> describe(timeline, "blocking")
    'blocking: GPU computes 47 % of the time, 0 % of the copy is hidden, 2.05x the limit'
    """
    summary = summarize(timeline, window)
    before = f"{label}: " if label else ""
    missing = timeline.context.missing if timeline.context.origin == "file" else ()
    lacks = "".join(f"; {each}" for each in missing[:1])
    if not len(timeline):
        return f"{before}an empty timeline, nothing was recorded"
    if not (summary.kernels or summary.copy):
        calls = timeline.where(Kind.API) & (calls_of(timeline.names)[timeline.name] & Api.LAUNCH != 0)
        calls &= ~timeline.places(timeline.launches[0])
        other = words.duration(summary.window - summary.idle)
        work = f"no kernel and no copy, only {other} of other work on the GPU" if summary.busy else "no work on the GPU"
        if calls.any():
            work = f"{words.count(int(calls.sum()), 'launch')} of work on the GPU that is not in the timeline"
        return f"{before}{words.duration(summary.window)} on the host, {work}{_loading(summary)}{lacks}"
    late = lateness(timeline, window) if len(summary.devices) > 1 else None
    return before + (f"{late}; " if late and late.late else "") + finding(summary) + lacks


def finding(summary: Summary) -> str:
    """Return what a summary with work on the GPU says, in one line of words."""
    gpu = f"GPU {summary.device} (one of {len(summary.devices)})" if len(summary.devices) > 1 else "GPU"
    hidden = words.share(_ratio(summary.hidden_communication, summary.communication))
    parts = [
        f"{gpu} computes {words.share(summary.compute_share)} of the time",
        summary.communication and f"{hidden} of communication is hidden",
        "no copies" if summary.overlap is None else f"{words.share(summary.overlap)} of the copy is hidden",
        summary.headroom is not None and summary.away,
    ]
    return ", ".join(str(part) for part in parts if part)


def _loading(summary: Summary) -> str:
    """Say how much of a run without a GPU goes into getting batches."""
    entries = {"blocked, waiting for data": "waiting for data", "fetches a batch": "fetching batches"}
    times = {text: summary.breakdown.get(f"idle: host {entry}", 0) for entry, text in entries.items()}
    return "".join(f", {words.share(_ratio(time, summary.window))} {text}" for text, time in times.items() if time)


def _steps(loop: Loop, start: int, end: int, outside: Intervals) -> tuple[int | None, int | None, float | None]:
    """Count the batches handed out in [start, end), and their samples where every range says so; with their step [ns].

    Where no step is marked, or hardly one since the host had run ahead, the kernels' batches are counted.
    """
    time = end - start - intervals.length(outside)
    timeline = loop.timeline
    kernels = on_device(timeline, loop.device) & timeline.where(*KERNELS)
    numbers = timeline.batch[kernels & (timeline.start >= start) & (timeline.start < end)]
    batches, samples, step = len(np.unique(numbers[numbers >= 0])), None, None
    if len(loop.spans) and batches < FEW + 2 * len(steps := loop.between(start, end)):
        told = [samples for step in steps if (samples := loop.samples[step]) is not None]
        batches, samples, step = len(steps), sum(told) if len(told) == len(steps) else None, loop.pace(steps, outside)
        if len(steps) > 1:  # else the window is the step; a loader that copied all of them before holds no whole step
            return batches, samples, step
    return batches or None, samples if batches else None, step or _ratio(time, batches)


def _bandwidth(timeline: Timeline, start: int, end: int, device: int) -> dict[str, float]:
    """Return bytes per second of the copies that lie in the window, by direction and kind of host memory."""
    here = on_device(timeline, device) & (timeline.start >= start) & (timeline.end <= end)
    here, time = here & (timeline.nbytes > 0) & (timeline.end > timeline.start), timeline.end - timeline.start
    copies = {
        direction + memory: here & timeline.where(kind) & (timeline.pinned == pinned)
        for direction, kind in (("H2D", Kind.COPY_H2D), ("D2H", Kind.COPY_D2H))
        for memory, pinned in ((" pinned", 1), (" pageable", 0), ("", -1))
    }
    sums = {name: (timeline.nbytes[mine].sum(), time[mine].sum()) for name, mine in copies.items() if mine.any()}
    return {name: float(nbytes) / float(taken) * 1e9 for name, (nbytes, taken) in sums.items()}


def giving(timeline: Timeline, fetches: Mask) -> Mask:
    """Those of these fetches that give a batch, also one that nobody takes; the end of a stream gives none."""
    given = fetches & ((timeline.batch >= 0) | (timeline.nbytes > 0))
    return given if given.any() else fetches


def fetch_times(timeline: Timeline, fetches: Mask) -> tuple[Ints, Ints]:
    """Return for how long each of these fetches is on a core, and for how long it waits without one [ns]."""
    time = (timeline.end - timeline.start)[fetches]
    waits = np.minimum(timeline.waited[fetches], time)
    return time - waits, waits


def _fetch(timeline: Timeline, start: int, end: int, device: int) -> tuple[float | None, ...]:
    """Return what the fetch of a batch takes, computing and waiting, and gives, on average; None: not known."""
    ranks = {timeline.lanes[lane].device for lane in loop_lanes(timeline, device)}
    mine = timeline.where(Kind.FETCH) & timeline.in_lanes(lambda lane: lane.device in ranks)
    mine = giving(timeline, mine & (timeline.end > start) & (timeline.start < end))
    times = fetch_times(timeline, mine & (timeline.context.origin != "file"))
    means = (*times, timeline.nbytes[mine & (timeline.nbytes > 0)])
    return tuple(float(each.mean()) if len(each) else None for each in means)


def _ratio(part: float, whole: Any) -> float | None:
    return part / whole if whole else None


# A Summary as a table: plain text and HTML, both from the same rows


Row = tuple[str, str, str]  # what, how much, remark
_A_RATE = 1e8  # bytes/s; below it all copies were tiny, such as one loss, and the number is their latency's (R22)


def _rows(summary: Summary) -> list[Row]:
    """Return the lines of the table: what, how much with its unit, and a remark such as the share of the window."""
    window, total, copy = summary.window, summary.communication, summary.copy
    gpu, devices = bool(summary.busy or copy), len(summary.devices)  # without one, what it would be told is left out
    rate = f"{words.rate(summary.samples_per_second)} samples/s"
    most = f"; at most {words.duration(summary.limit_most)}, if no collective waits"
    limit = f"{summary.longest} alone" if summary.limit else "no work on the GPU"
    speeds = summary.bandwidth.items()
    waits, computes, size = summary.fetch_waits or 0, summary.fetch_computes or 0, summary.fetch_bytes
    fetch = waits + computes
    split = f"{words.share(waits / fetch)} waiting, {words.share(computes / fetch)} on a core" if fetch else ""
    which = f"device {summary.device}" if gpu else "a loop"
    about = "a batch", split, words.size(size) if size else ""
    rows: list[tuple[object, Row]] = [  # whether it is told, and the line
        (summary.start_up, ("start-up", words.duration(summary.start_up), "before the window")),
        *((True, (f"unpriced: {kind}", "not in it", "see recording.unpriced")) for kind in summary.unpriced),
        (summary.outside, ("between the steps", words.duration(summary.outside), "left out of the window")),
        (True, ("window", words.duration(window), f"{which}, one of {devices}" if devices > 1 else "")),
        (summary.batches, ("step", words.duration(summary.step), words.count(summary.batches or 0, "batch"))),
        (summary.samples_per_second is not None, ("throughput", rate, words.count(summary.samples or 0, "sample"))),
        (gpu, _part("GPU computes", summary.compute, window)),
        (gpu and total, _part("GPU communicates", total, window)),
        (gpu and total, _part("communication hidden", summary.hidden_communication, total, "communication")),
        (gpu and total, _part("communication exposed", summary.exposed_communication, window)),
        (
            gpu and summary.rank_wait is not None,
            _part("waiting for other ranks", summary.rank_wait or 0, total, "communication"),
        ),
        (gpu, _part("GPU idle", summary.idle, window)),
        (gpu, _part("copy", copy, window)),
        (gpu, _part("copy hidden", summary.hidden_copy, copy, "the copy")),
        (gpu, _part("copy exposed", summary.exposed_copy, window)),
        *((gpu and speed > _A_RATE, (f"copy rate {kind}", f"{words.size(speed)}/s", "")) for kind, speed in speeds),
        (fetch, ("fetch", words.duration(fetch), "; ".join(filter(None, about)))),
        *((True, _part(f"host blocked: {cause}", time, window)) for cause, time in summary.host_blocked.items()),
        (gpu, ("limit", words.duration(summary.limit), limit + most * (summary.limit_most > summary.limit))),
        (gpu, ("headroom", words.times(summary.headroom), "window / limit")),
    ]
    return [(word(what), much, word(remark)) for told, (what, much, remark) in rows if told]


def word(text: str) -> str:
    """Return a text of the table in the language that `words.language` chooses; what metrics.toml lacks is English.

    >>> word("idle: host blocked, staging")
    'idle: host blocked, staging'
    """
    table = _texts().get(words.language(), {})
    return "".join(words.translated(part, table) for part in re.split("(: |, |; )", text))


@cache
def _texts() -> dict[str, dict[str, str]]:
    return tomllib.loads(Path(__file__).with_name("metrics.toml").read_text(encoding="utf-8"))


def _breakdown_rows(summary: Summary) -> list[Row]:
    said = {name: name if summary.busy else name.removeprefix("idle: ") for name in summary.breakdown}
    rows = [_part(said[name], time, summary.window) for name, time in summary.breakdown.items()]
    return [(word(what), much, word(remark)) for what, much, remark in rows]


def _html(title: str, rows: list[Row]) -> str:
    return words.table((word(title), "", ""), [[*map(escape, row)] for row in rows], "<><")


def _part(what: str, ns: int, whole: int, of: str = "the window") -> Row:
    return what, words.duration(ns), f"{words.share(ns / whole)} of {of}" if whole else ""
