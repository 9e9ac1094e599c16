"""Several ranks beside each other: how long each waits for the others in collectives, which one is late, and why.

The rank that comes last to a collective waits for nobody. Why it is late is what it does longer than the median of the
others: its own loader, its copies, its kernels, its host.
"""

from __future__ import annotations

import re
from bisect import bisect
from dataclasses import dataclass, replace
from html import escape
from statistics import median

import numpy as np

from loaderviz import intervals, words
from loaderviz.metrics import check_timeline, collectives, devices_of, loop_lanes, once, window_of
from loaderviz.timeline import COPIES, Cause, Ints, Kind, Timeline, grouped

MOST = 0.5  # of the collectives: who comes last to more of them is the late rank
CAUSE = 0.2  # of what a rank is late: what explains less of it is not told as the reason
BAR = 20  # characters
FEW, DRAWN = 8, 3  # ranks: of more than these a table folds most, and a picture has only the telling ones
CAUSES = {
    "loads": "its own loader takes",
    "copies": "its copies take",
    "computes": "its kernels take",
    "works": "its host's own work takes",
}


@dataclass(frozen=True)
class RankRow:
    """One rank, times in ns: its kernels, copies, loading and other work of its loop's thread, waits in collectives.

    `came_last` counts the collectives to which it came last, `late` sums up how long after the median rank it came.
    """

    rank: str
    device: int
    computes: int
    copies: int
    loads: int
    works: int
    waits: int
    came_last: int
    late: int


@dataclass(frozen=True, repr=False)
class RankTable:
    """The ranks of a timeline in their order; `shared` collectives were seen of several of them.

    `last` is the rank that comes last to more than half of these, None if there is no such, and `why` says what it does
    longer than the others.
    """

    rows: tuple[RankRow, ...]
    shared: int
    last: RankRow | None
    why: str

    @property
    def telling(self) -> dict[str, RankRow]:
        """The slowest rank, which the others wait for, the median, and the fastest, which waits longest for others."""
        order = sorted(self.rows, key=lambda row: (row is not self.last, row.waits, -row.computes - row.works))
        return {"slowest": order[0], "median": order[len(order) // 2], "fastest": order[-1]}

    def _parts(self) -> tuple[list[RankRow], list[RankRow]]:
        if len(self.rows) <= FEW:
            return list(self.rows), []
        shown = list(self.telling.values())
        return shown, [row for row in self.rows if row not in shown]

    def _cells(self, rows: list[RankRow]) -> list[tuple[str, ...]]:
        which = {row.rank: name for name, row in self.telling.items()} if len(self.rows) > FEW else {}
        return [
            (
                f"{row.rank} {which.get(row.rank, '')}".strip(),
                *(words.duration(time) for time in (row.computes, row.copies, row.loads, row.works)),
                f"{row.came_last:,}",
                words.duration(row.waits),
            )
            for row in rows
        ]

    def _bar(self, row: RankRow) -> float:
        return row.waits / max(1, *(each.waits for each in self.rows))

    @property
    def _told(self) -> str:
        told = f"rank {self.last.rank} is late: {self.why}" if self.last else "no rank is late to most collectives"
        return f"{told} ({words.count(self.shared, 'collective')})"

    def __str__(self) -> str:
        shown, folded = self._parts()
        bars = ["█" * round(BAR * self._bar(row)) for row in shown]
        cells = [(*_HEAD, ""), *((*row, bar) for row, bar in zip(self._cells(shown), bars, strict=True))]
        widths = [max(len(row[column]) for row in cells) for column in range(len(_HEAD))]
        lines = [
            "  ".join([*(text.rjust(width) for text, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
            for row in cells
        ]
        if folded:
            waits = words.duration(min(row.waits for row in folded)), words.duration(max(row.waits for row in folded))
            lines.append(f"{words.count(len(folded), 'more rank')} wait for others {' to '.join(dict.fromkeys(waits))}")
        return "\n".join([*lines, self._told])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        shown, folded = self._parts()
        more = f"<details><summary>{words.count(len(folded), 'more rank')}</summary>{self._html(folded)}</details>"
        return f"{self._html(shown)}{more if folded else ''}<p>{escape(self._told)}</p>"

    def _html(self, rows: list[RankRow]) -> str:
        """Rows as a table, with what each waits as a bar."""
        lines = []
        for row, cells in zip(rows, self._cells(rows), strict=True):
            bar = (
                f'<div style="width:{120 * self._bar(row):.0f}px;height:10px;background:currentColor;opacity:.5"></div>'
            )
            lines.append("".join(f"<td>{escape(cell)}</td>" for cell in cells) + f"<td>{bar}</td>")
        head = "".join(f"<th>{name}</th>" for name in (*_HEAD, ""))
        return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


_HEAD = ("rank", "kernels", "copies", "loading", "other host work", "comes last", "waits for others")


class _Times:
    """How long some lanes do something in a window [ns], and the threads of the loop that feeds a device."""

    def __init__(self, timeline: Timeline, start: int, end: int) -> None:
        self.timeline, self.by_lane = timeline, timeline.by_lane()
        self.first, self.last = np.maximum(timeline.start, start), np.minimum(timeline.end, end)
        self.loop = loop_lanes(timeline)
        self.ranks: dict[int, list[int]] = {}  # lanes of the loop by the rank's first device
        for lane in self.loop:
            self.ranks.setdefault(timeline.lanes[lane].device, []).append(lane)
        self.known: dict[int, tuple[int, int]] = {}

    def when(self, lanes: list[int], column: str, *values: int) -> intervals.Intervals:
        """When any span of these lanes runs that has one of these values in a column."""
        spans = np.concatenate([self.by_lane[lane] for lane in lanes] or [np.empty(0, np.int64)])
        spans = spans[np.isin(self.timeline.spans[column][spans], values)]
        return intervals.union(self.first[spans], self.last[spans])

    def length(self, lanes: list[int], *kinds: Kind) -> int:
        """How long any span of these kinds runs."""
        return intervals.length(self.when(lanes, "kind", *kinds))

    def host(self, device: int) -> tuple[int, int]:
        """How long the loop's threads fetch, pin and wait for batches, and do other work.

        Page-locking is no part of loading (R13).
        """
        ranks = sorted(self.ranks)
        place = bisect(ranks, device) - 1
        if place not in self.known:
            lanes = self.ranks[ranks[place]] if place >= 0 else self.loop
            locking = self.when(lanes, "cause", Cause.PAGE_LOCKING)
            fetched = intervals.subtract(self.when(lanes, "kind", Kind.FETCH, Kind.PIN), locking)
            loads = intervals.length(fetched) + intervals.length(self.when(lanes, "cause", Cause.DATA))
            works = self.length(lanes, Kind.API, Kind.OPERATOR) - self.length(lanes, Kind.WAIT)
            self.known[place] = loads, max(0, works)
        return self.known[place]


@once
def rank_table(timeline: Timeline, window: tuple[int, int] | None = None) -> RankTable | None:
    """Return the ranks beside each other in a `window` [ns], or in all of the timeline; None if there is one device.

    Raises `NotATimelineError` for anything but a Timeline, `MetricsError` for a window that makes no sense.
    """
    devices = devices_of(check_timeline(timeline, "rank_table()"))
    if len(devices) < 2:
        return None
    start, end = window_of(timeline, window)
    number, arrival = collectives(timeline)
    parts = np.flatnonzero((number >= 0) & (timeline.end > start) & (timeline.start < end))
    late = _lateness(number[parts], timeline.start[parts])
    last = timeline.start[parts] == arrival[parts]
    waits = np.minimum(arrival[parts], timeline.end[parts]) - timeline.start[parts]
    streams: dict[int, list[int]] = {device: [] for device in devices}
    for lane, each in enumerate(timeline.lanes):
        if each.group == "device":
            streams[each.device].append(lane)
    whose = np.full(len(timeline.lanes), -1, np.int64)
    for place, lanes in enumerate(streams.values()):
        whose[lanes] = place
    whose, times, rows = whose[timeline.lane[parts]], _Times(timeline, start, end), []
    order = np.argsort(whose, kind="stable")[np.count_nonzero(whose < 0) :]
    for (device, lanes), mine in zip(streams.items(), grouped(whose, len(devices), order), strict=True):
        loads, works = times.host(device)
        row = RankRow(
            _name(timeline.lanes[lanes[0]].name, device),
            device,
            computes=times.length(lanes, Kind.COMPUTE),
            copies=times.length(lanes, *COPIES),
            loads=loads,
            works=works,
            waits=int(waits[mine].sum()),
            came_last=int(last[mine].sum()),
            late=int(late[mine[last[mine]]].sum()),
        )
        rows.append(row)
    shared = len(np.unique(number[parts]))
    latest = max(rows, key=lambda row: row.came_last)
    found = latest if shared and latest.came_last > MOST * shared and latest.late > 0 else None
    return RankTable(tuple(rows), shared, found, _why(found, rows) if found else "")


def _lateness(number: Ints, start: Ints) -> Ints:
    """Return how long after the median start of its collective each part began, ns."""
    late = np.zeros(len(number), np.int64)
    order = np.lexsort((start, number))
    first = np.unique(number[order], return_index=True)[1]
    for low, high in zip(first.tolist(), [*first.tolist()[1:], len(order)], strict=False):
        part = order[low:high]
        late[part] = start[part] - int(start[part[(len(part) - 1) // 2]])
    return late


def _why(late: RankRow, rows: list[RankRow]) -> str:
    """Say what the late rank does longer than the median of the others, if that explains its lateness."""
    others = [row for row in rows if row is not late]
    more = {name: getattr(late, name) - int(median(getattr(row, name) for row in others)) for name in CAUSES}
    name = max(more, key=lambda each: more[each])
    if more[name] < CAUSE * late.late:
        return "its sums of kernels, copies, loading and host work do not tell why"
    return f"{CAUSES[name]} {words.duration(more[name])} longer than in the median rank"


def _name(lane: str, device: int) -> str:
    match = re.match(r"(?:rank|file|process) (\d+) ", lane)
    return match[1] if match else str(device)


def drawn(timeline: Timeline) -> Timeline:
    """Return the timeline with the slowest, the median and the fastest rank alone; of a few ranks as it is."""
    mains = {lane.device for lane in timeline.lanes if lane.role == "main"}
    if len(mains) <= DRAWN or (table := rank_table(timeline)) is None:
        return timeline
    devices = {row.device for row in table.telling.values()}
    hosts = {timeline.lanes[lane].device for device in devices for lane in loop_lanes(timeline, device)}
    kept = [n for n, lane in enumerate(timeline.lanes) if lane.device in (hosts if lane.group == "host" else devices)]
    part, place = timeline.only(np.isin(timeline.lane, kept)), {lane: n for n, lane in enumerate(kept)}
    named = ", ".join(f"{row.rank} ({name})" for name, row in table.telling.items())
    note = f"of {len(mains)} ranks {len(table.telling)} are drawn, {named}; the table has the others"
    return replace(
        part,
        context=replace(part.context, notes=(note, *part.context.notes)),
        lanes=tuple(timeline.lanes[lane] for lane in kept),
        spans=part.spans | {"lane": np.searchsorted(kept, part.lane).astype(part.lane.dtype)},
        marks=tuple(replace(mark, lane=place[mark.lane]) for mark in part.marks if mark.lane in place),
    )
