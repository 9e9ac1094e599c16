"""Several ranks beside each other: how long each waits for the others in collectives, which are late, and why.

Why a rank is late is what it does longer than the others between two collectives: its kernels run longer, or its
copies, or its GPU has nothing to do while its host loads, or does something else.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from html import escape
from statistics import median
from typing import Any

import numpy as np

from loaderviz import intervals, words
from loaderviz.intervals import Intervals, either
from loaderviz.metrics import (
    Lateness,
    check_timeline,
    collectives,
    device_of,
    devices_of,
    lateness,
    loop_lanes,
    messages_of,
    once,
    rank_of,
    summarize,
    usually,
    window_of,
)
from loaderviz.timeline import ABSENT, COPIES, Cause, Ints, Kind, Message, Timeline, gathered, grouped

CAUSE = 0.2  # of what a rank is late: what explains less of it is not told as the reason
BAR, _BAR = 20, "height:10px;background:currentColor;opacity:.5"  # characters, and the style of a bar in HTML
FEW, DRAWN = 8, 3  # ranks: of more than these a table folds most, and a picture has only the telling ones
CAUSES = {
    "computes": "its kernels take",
    "copies": "its copies take",
    "loads": "its own loader takes",
    "works": "its GPU waits for the host's own work",
}


@dataclass(frozen=True)
class RankRow:
    """One rank, times in ns: its kernels, copies, loading and other work of its loop's thread, waits in collectives.

    `blame` is for how long it held the others up in collectives, alone or as its share; see `metrics.Lateness`.
    """

    rank: str
    device: int
    computes: int
    copies: int
    loads: int
    works: int
    waits: int
    blame: int


@dataclass(frozen=True)
class Culprit:
    """A late rank: what it does `more` ns longer than the others before it comes late, and in how many steps it does.

    `cause` is a key of `CAUSES`, "" where none of them explains it.
    """

    row: RankRow
    cause: str
    more: int
    often: int


@dataclass(frozen=True)
class Collective:
    """A collective that was seen of several ranks: what it moves, and how fast. Times in ns; None: not known.

    `name`, `nbytes`, `dtype`, `group` and `ranks` are those of its `timeline.Message`; without one, the name is its
    kernel's. It starts `start` after the window does, and `skew` later the last of the `seen` ranks comes to it; from
    then to when the first of them has done, it takes `transfer`. Ranks that were not seen may come later still: then
    the bandwidths are at least as high as they are told.
    """

    name: str
    nbytes: int | None
    dtype: str | None
    group: str | None
    ranks: int | None
    seen: int
    start: int
    skew: int
    transfer: int

    @property
    def algorithm_bandwidth(self) -> float | None:
        """Bytes a second: the message's, as nccl-tests count them, by the time of its transfer."""
        return None if not self.nbytes or min(self.nbytes, self.transfer) <= 0 else self.nbytes / self.transfer * 1e9

    @property
    def bus_bandwidth(self) -> float | None:
        """Bytes a second through each link of a ring, by nccl-tests' factor for this collective and so many ranks.

        >>> Collective("allreduce", 8_000_000, "Float", "0", 4, 4, 0, 0, 1_000_000).bus_bandwidth
        12000000000.0
        """
        name, speed = self.name.replace("_", "").lower(), self.algorithm_bandwidth
        factor = next((each for pattern, each in _FACTORS.items() if re.match(pattern, name)), None)
        if factor is None or speed is None or self.ranks is None or self.ranks < 1:
            return None
        return speed * (factor * (self.ranks - 1) / self.ranks if factor else 1)

    def to_dict(self) -> dict[str, Any]:
        """Return its fields and bandwidths, ready for JSON."""
        return asdict(self) | {
            "algorithm_bandwidth": self.algorithm_bandwidth,
            "bus_bandwidth": self.bus_bandwidth,
        }


# Of nccl-tests: how often (n - 1) / n of the message's bytes pass a link; 0: all of them do, once.
_FACTORS = {"allreduce": 2, "allgather|reducescatter|alltoall|gather|scatter": 1, "broadcast|reduce|send|recv": 0}


@dataclass(frozen=True, repr=False)
class RankTable:
    """The ranks of a timeline in their order; `shared` collectives were seen of several of them.

    `collectives` are these, in order of start: their message sizes, arrival skews, transfers and bandwidths.
    `late` are the ranks to blame, the worst first, of what `lateness` says. `notes` say what was left out, and which
    ranks are missing. Where `loaderviz.ranks` has made the table, `timeline` has the telling ranks.
    """

    rows: tuple[RankRow, ...]
    shared: int
    lateness: Lateness
    late: tuple[Culprit, ...]
    collectives: tuple[Collective, ...] = ()
    timeline: Timeline | None = field(default=None, compare=False)
    notes: tuple[str, ...] = ()

    @property
    def telling(self) -> dict[RankRow, str]:
        """The late ranks, or the one that waits least for others, the median, and the fastest, which waits longest."""
        worst = [each.row for each in self.late]
        order = sorted(self.rows, key=lambda row: (row not in worst, row.waits, -row.computes - row.works))
        first = dict.fromkeys(worst, "late") or {order[0]: "slowest"}
        return first | {order[len(order) // 2]: "median", order[-1]: "fastest"} | first

    @property
    def why(self) -> list[str]:
        """A sentence for each late rank: how often it is late, and what it does longer than the others."""
        unit = "step" if self.lateness.steps else "collective"
        return [
            f"Rank {each.row.rank} is late in {each.often} of {words.count(self.lateness.units, unit)}: "
            + (
                f"{CAUSES[each.cause]} {self.lateness.longer(each.more, each.often, 'longer than in the other ranks')}"
                if each.cause
                else "neither kernels nor copies, loading or host tell why"
            )
            for each in self.late
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return its ranks, those to blame and its collectives, ready for JSON: times in ns, None: not known.

        >>> loaderviz.ranks("run/").to_dict()["collectives"][0]["skew"]
        300000
        """
        return {
            "ranks": [asdict(row) for row in self.rows],
            "late": [{"rank": each.row.rank, "cause": each.cause, "more": each.more} for each in self.late],
            "collectives": [each.to_dict() for each in self.collectives],
            "notes": list(self.notes),
        }

    def _moved(self) -> list[tuple[str, ...]]:
        """Return cells for each kind of collective, its median skew and transfer, what takes longest first."""
        kinds = gathered(((each.name, each.nbytes, each.dtype, each.ranks), each) for each in self.collectives)
        cells = []
        for alike in sorted(kinds.values(), key=lambda alike: -sum(each.transfer for each in alike)):
            skew, transfer = (round(median(getattr(each, name) for each in alike)) for name in ("skew", "transfer"))
            usual = replace(alike[0], skew=skew, transfer=transfer)
            least = "≥ " * (usual.ranks is not None and min(each.seen for each in alike) < usual.ranks)
            speeds = [
                "not known" if speed is None else f"{least}{words.size(speed)}/s"
                for speed in (usual.algorithm_bandwidth, usual.bus_bandwidth)
            ]
            cells.append(
                (
                    words.one_line(usual.name, 60),
                    f"{len(alike):,}",
                    "not known" if usual.nbytes is None else words.size(usual.nbytes),
                    words.one_line(usual.dtype or "", 20),
                    "not known" if usual.ranks is None else str(usual.ranks),
                    words.duration(skew),
                    words.duration(transfer),
                    *speeds,
                )
            )
        return cells

    def _parts(self) -> tuple[list[RankRow], list[RankRow]]:
        shown = list(self.rows if len(self.rows) <= FEW else self.telling)
        return shown, [row for row in self.rows if row not in shown]

    def _cells(self, rows: list[RankRow]) -> list[tuple[str, ...]]:
        which = self.telling if len(self.rows) > FEW else {}
        return [
            (
                f"{row.rank} {which.get(row, '')}".strip(),
                *(words.duration(time) for time in (row.computes, row.copies, row.loads, row.works)),
                *(words.duration(time) for time in (row.blame, row.waits)),
            )
            for row in rows
        ]

    def _bar(self, row: RankRow) -> float:
        return row.waits / max(1, *(each.waits for each in self.rows))

    @property
    def told(self) -> list[str]:
        """Sentences: who is late and for how long, in which time, and why."""
        whole = words.duration(self.lateness.window[1] - self.lateness.window[0])
        share = f" ({words.share(self.lateness.share)} of all lateness)" if self.late else ""
        first = f"{self.lateness}{share} in {words.count(self.shared, 'collective')} of {whole}".capitalize()
        return [f"{each}." for each in (first, *self.why)]

    @property
    def _told(self) -> str:
        notes = [f"{note[:1].upper()}{note[1:]}." for note in self.notes]
        return "\n".join([*(self.told if self.shared else [_NONE_SEEN]), *notes])

    def __str__(self) -> str:
        shown, folded = self._parts()
        bars = ["█" * round(BAR * self._bar(row)) for row in shown]
        lines = words.aligned([(*_HEAD, ""), *((*row, bar) for row, bar in zip(self._cells(shown), bars, strict=True))])
        if folded:
            waits = (words.duration(edge(row.waits for row in folded)) for edge in (min, max))
            lines.append(f"{words.count(len(folded), 'more rank')} wait for others {' to '.join(dict.fromkeys(waits))}")
        moved = self._moved()
        more = [f"and {words.count(len(moved) - FEW, 'more kind')} of collectives"] * (len(moved) > FEW)
        table = ["", *words.aligned([(*_MOVED, ""), *((*row, "") for row in moved[:FEW])]), *more] if moved else []
        return "\n".join([*lines, self._told, *table])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        shown, folded = self._parts()
        more = f"<details><summary>{words.count(len(folded), 'more rank')}</summary>{self._html(folded)}</details>"
        moved = [[escape(cell) for cell in row] for row in self._moved()]
        rest = f"<details><summary>more kinds of collectives</summary>{words.table(_MOVED, moved[FEW:])}</details>"
        table = f"{words.table(_MOVED, moved[:FEW]) if moved else ''}{rest if moved[FEW:] else ''}"
        return (
            f"{self._html(shown)}{more if folded else ''}<p>{'<br>'.join(escape(self._told).splitlines())}</p>{table}"
        )

    def _html(self, rows: list[RankRow]) -> str:
        """Rows as a table, with what each waits as a bar."""
        bars = [f'<div style="width:{120 * self._bar(row):.0f}px;{_BAR}"></div>' for row in rows]
        cells = [[*map(escape, cells), bar] for cells, bar in zip(self._cells(rows), bars, strict=True)]
        return words.table((*_HEAD, ""), cells)


_NONE_SEEN = "No collective was seen on the GPUs of several ranks, so nobody is told to be late."
_HEAD = ("rank", "kernels", "copies", "loading", "other host work", "holds others up", "waits for others")
_MOVED = (
    "collective",
    "times",
    "message",
    "type",
    "ranks",
    "arrival skew",
    "transfer",
    "algorithm bandwidth",
    "bus bandwidth",
)


class Times:
    """When the lanes of ranks do something in a window [ns]: `streams` are a device's, the loop's threads feed it."""

    def __init__(self, timeline: Timeline, start: int, end: int) -> None:
        self.timeline, self.by_lane = timeline, timeline.by_lane()
        self.first, self.last = np.clip(timeline.start, start, end), np.clip(timeline.end, start, end)
        self.window = np.array([[start, end]])
        self.loop, lanes = loop_lanes(timeline), timeline.lanes
        self.ranks = gathered((lanes[lane].device, lane) for lane in self.loop)  # by the rank's first device
        self.streams = gathered((each.device, lane) for lane, each in enumerate(lanes) if each.group == "device")
        self.known: dict[int, tuple[Intervals, Intervals, int]] = {}

    def when(self, lanes: list[int], column: str, *values: int) -> Intervals:
        """When any span of these lanes runs that has one of these values in a column."""
        spans = np.concatenate([self.by_lane[lane] for lane in lanes] or [np.empty(0, np.int64)])
        spans = spans[np.isin(self.timeline.spans[column][spans], values)]
        return intervals.union(self.first[spans], self.last[spans])

    def lanes(self, device: int) -> list[int]:
        """The threads of the loop that feeds a device; the keys of `ranks` are the first devices of ranks."""
        place = bisect(ranks := sorted(self.ranks), device) - 1
        return self.ranks[ranks[place]] if place >= 0 else self.loop

    def begin(self, device: int) -> int:
        """When the first of a rank's spans begins, or the window [ns]: its recording may begin later than others'."""
        lanes = [*self.streams[device], *self.lanes(device)]
        return min(int(self.first[self.by_lane[lane][0]]) for lane in lanes if len(self.by_lane[lane]))

    def works(self, device: int) -> tuple[Intervals, Intervals]:
        """When a device computes, and when it copies."""
        lanes = self.streams.get(device, [])
        return self.when(lanes, "kind", Kind.COMPUTE), self.when(lanes, "kind", *COPIES, Kind.COPY_D2D)

    def host(self, device: int) -> tuple[Intervals, Intervals, int]:
        """When the loop's threads fetch, pin and wait for batches, when they wait for staging; how long else they work.

        Page-locking is no part of loading (R13).
        """
        lanes = self.lanes(device)
        if (place := max(lanes, default=-1)) not in self.known:
            fetched = self.when(lanes, "kind", Kind.FETCH, Kind.PIN)
            fetched = intervals.subtract(fetched, self.when(lanes, "cause", Cause.PAGE_LOCKING))
            calls, waits = (self.when(lanes, "kind", *kinds) for kinds in ((Kind.API, Kind.OPERATOR), (Kind.WAIT,)))
            self.known[place] = (
                either(fetched, self.when(lanes, "cause", Cause.DATA)),
                self.when(lanes, "cause", Cause.STAGING),
                max(0, intervals.length(calls) - intervals.length(waits)),
            )
        return self.known[place]

    def of(self, device: int) -> tuple[int, int, int, int]:
        """For how long a device computes and copies, its loop's threads load, and do other work [ns]."""
        loads, _, works = self.host(device)
        computes, copies, loaded = (intervals.length(part) for part in (*self.works(device), loads))
        return computes, copies, loaded, works

    def parted(self, device: int) -> list[Intervals]:
        """When a device does what each of `CAUSES` says, and nothing of what stands before it there."""
        computes, copies = self.works(device)
        loads, staging, _ = self.host(device)
        rest = self.window[: bool(self.lanes(device))]  # a GPU without work has a host, if one is seen
        parts = (computes, either(copies, intervals.subtract(staging, loads)), loads, rest)
        return [*intervals.layers(self.window, dict(zip(CAUSES, parts, strict=True))).values()]


@once
def rank_table(timeline: Timeline, window: tuple[int, int] | None = None) -> RankTable | None:
    """Return the ranks beside each other in a `window` [ns], or in the steady state; None if there is one device.

    Raises `NotATimelineError` for anything but a Timeline, `MetricsError` for a window that makes no sense.
    """
    devices = devices_of(check_timeline(timeline, "rank_table()"))
    if len(devices) < 2:
        return None
    found = lateness(timeline, window)
    rows = np.flatnonzero(timeline.where(Kind.COMMUNICATION) & (timeline.end > timeline.start))
    whole, places = Times(timeline, *window_of(timeline, None)), np.searchsorted(devices, device_of(timeline)[rows])
    of = dict(zip(devices, grouped(places, len(devices)), strict=True))
    times = Times(timeline, *found.window)
    did = {device: times.of(device) for device in devices}
    table = table_of(timeline, found, did, lambda device: done_by(whole, device, rows[of[device]]))
    return replace(table, notes=tuple(each for each in timeline.context.missing if ABSENT in each))


def table_of(
    timeline: Timeline,
    found: Lateness,
    did: dict[int, tuple[int, int, int, int]],
    done: Callable[[int], tuple[Ints, Ints]],
) -> RankTable:
    """Return the table of ranks that `did` so much, by device: ns of kernels, copies, loading and other work.

    `done` tells of a device what it had done by when; see `done_by`.
    """
    parts, devices = found.parts, list(did)
    waits = np.minimum(collectives(timeline)[1][parts], timeline.end[parts]) - timeline.start[parts]
    whose = np.searchsorted(devices, found.device)
    waited, blamed = (np.bincount(whose, values, len(devices)).round() for values in (waits, found.blame))
    rows = {
        device: RankRow(rank_of(timeline, device), device, *(*did[device], int(waits), int(blame)))
        for device, waits, blame in zip(devices, waited, blamed, strict=True)
    }
    spent = np.zeros((len(parts), len(CAUSES)), np.int64)
    for device in np.unique(found.device).tolist() if found.late else ():
        mine = found.device == device
        came, ended = timeline.start[parts[mine]], timeline.end[parts[mine]]
        spent[mine] = spent_before(found.window[0], came, ended, *done(device))
    late = [
        Culprit(rows[each], *_why(found, spent, each), often)
        for each, often in zip(found.late, found.often, strict=True)
    ]
    moved = collectives_of(timeline, found)
    return RankTable(tuple(rows.values()), len(moved), found, tuple(late), moved)


def collectives_of(timeline: Timeline, found: Lateness) -> tuple[Collective, ...]:
    """Return the collectives of a window in order of start. What its ranks tell of one differently is not known."""
    told, moved = messages_of(timeline, found.parts), list[Collective]()
    for places in grouped(found.group, int(found.group.max(initial=-1)) + 1):
        rows = found.parts[places]
        came, ended = timeline.start[rows], timeline.end[rows]
        messages = [message for place in places.tolist() if (message := told[place])]
        agreed = dict[str, Any]()
        for name in Message._fields[1:]:
            values = {getattr(each, name) for each in messages}
            agreed[name] = values.pop() or None if len(values) == 1 else None
        agreed["name"] = agreed["name"] or timeline.names[timeline.name[rows[0]]].partition("(")[0]
        times = int(came.min()), int(came.max())
        moved.append(
            Collective(
                **agreed,
                seen=len(rows),
                start=times[0] - found.window[0],
                skew=times[1] - times[0],
                transfer=int(ended.min()) - times[1],
            )
        )
    return tuple(sorted(moved, key=lambda each: each.start))


def done_by(whole: Times, device: int, rows: Ints) -> tuple[Ints, Ints]:
    """Return when a rank's recording begins, and each of its collectives does, and ends [ns]; and what it had done.

    That is for how long it did each of `CAUSES` by then, a column for each.
    """
    begin = whole.begin(device) if len(rows) else whole.timeline.begin
    moments = np.r_[begin, whole.timeline.start[rows], whole.timeline.end[rows]]
    return moments, np.stack([intervals.covered_before(part, moments) for part in whole.parted(device)], axis=1)


def spent_before(start: int, came: Ints, ended: Ints, moments: Ints, done: Ints) -> Ints:
    """Return for how long a rank did each of `CAUSES` before each of its collectives [ns], from `start` on.

    By these `moments` it had `done` so much of each; what it does between two of them, it does evenly. It counts from
    the end of the collective before, which all ranks have in common. Kernels count from when the rank came to that one:
    what those who wait in it compute meanwhile, the late one computes after it. So does the rest, if that one goes on.
    """
    starts, ends, order = np.empty_like(came), np.r_[start, np.sort(ended)], np.argsort(came, kind="stable")
    starts[order] = np.r_[start, came[order]][:-1]
    since = np.maximum(starts, ends[np.searchsorted(ends[1:], came, side="right")])
    order, edges = np.argsort(moments, kind="stable"), np.maximum(start, [[starts, came], *[[since, came]] * 3])
    known = [np.interp(times, moments[order], each) for times, each in zip(edges, done[order].T, strict=True)]
    return np.diff(known, axis=1)[:, 0].T.round().astype(np.int64)


def _why(found: Lateness, spent: Ints, device: int) -> tuple[str, int]:
    """Return why a device is late, as a key of `CAUSES`, and by how many ns that is longer than in the others.

    Compared is all that they do in the steps in which it is late, between collectives of whichever groups.
    """
    unit = found.unit if found.steps else np.zeros_like(found.unit)
    devices, whose = np.unique(found.device, return_inverse=True)
    did = np.zeros((len(devices), int(unit.max()) + 1, len(CAUSES)))
    np.add.at(did, (whose, unit), spent)
    held = np.bincount(unit, found.blame * (found.device == device))
    late = usually(held, (found.window[1] - found.window[0]) / len(held))
    fair = ~np.isin(devices, found.late) if len(found.late) < len(devices) else devices != device
    more = (did[devices == device][0] - did[fair].mean(axis=0))[late].sum(axis=0)
    best = int(more.argmax())
    return (list(CAUSES)[best], round(more[best])) if more[best] >= CAUSE * held[late].sum() else ("", 0)


def drawn(timeline: Timeline) -> Timeline:
    """Return the timeline with the telling ranks alone, whose numbers stay those of all; of a few ranks as it is."""
    mains = {lane.device for lane in timeline.lanes if lane.role == "main"}
    if len(mains) <= DRAWN or (table := rank_table(timeline)) is None:
        return timeline
    devices = {row.device for row in table.telling}
    hosts = {timeline.lanes[lane].device for device in devices for lane in loop_lanes(timeline, device)}
    kept = [n for n, lane in enumerate(timeline.lanes) if lane.device in (hosts if lane.group == "host" else devices)]
    here = np.isin(timeline.lane, kept)
    part, place = timeline.only(here), {lane: n for n, lane in enumerate(kept)}
    note = (
        f"of {len(mains)} ranks {len(table.telling)} are drawn, "
        f"{', '.join(f'{row.rank} ({name})' for row, name in table.telling.items())}; the table has the others"
    )
    shown = replace(
        part,
        context=replace(part.context, notes=(note, *part.context.notes)),
        lanes=tuple(timeline.lanes[lane] for lane in kept),
        spans=part.spans | {"lane": np.searchsorted(kept, part.lane).astype(part.lane.dtype)},
        marks=tuple(replace(mark, lane=place[mark.lane]) for mark in part.marks if mark.lane in place),
    )
    summarize(timeline)
    shown.results.update(timeline.results | {"collectives": tuple(each[here] for each in collectives(timeline))})
    return shown
