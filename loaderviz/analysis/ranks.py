"""Several ranks beside each other: how long each waits for the others in collectives, which one is late, and why.

    print(rank_table(loaderviz.read("traces/")))     # a row for each rank, and who is late

The rank that comes last to a collective waits for nobody, and all others wait for it (see `metrics.collectives`). Why
it is late is what it does longer than the median of the others: its own loader, its copies, its kernels, its host.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from statistics import median

import numpy as np

from loaderviz import intervals, words
from loaderviz.metrics import Ints, check_timeline, collectives, devices_of, loop_lanes, window_of
from loaderviz.timeline import COPIES, Cause, Kind, Timeline

MOST = 0.5  # of the collectives: who comes last to more of them is the late rank
CAUSE = 0.2  # of what a rank is late: what explains less of it is not told as the reason
BAR = 20  # characters
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

    def _cells(self) -> list[tuple[str, ...]]:
        most = max(1, *(row.waits for row in self.rows))
        head = ("rank", "kernels", "copies", "loading", "other host work", "comes last", "waits for others", "")
        return [head] + [
            (
                row.rank,
                *(words.duration(time) for time in (row.computes, row.copies, row.loads, row.works)),
                f"{row.came_last:,}",
                words.duration(row.waits),
                "█" * round(BAR * row.waits / most),
            )
            for row in self.rows
        ]

    def __str__(self) -> str:
        cells = self._cells()
        widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
        lines = ["  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in cells]
        told = f"rank {self.last.rank} is late: {self.why}" if self.last else "no rank is late to most collectives"
        return "\n".join([*(line.rstrip() for line in lines), f"{told} ({words.count(self.shared, 'collective')})"])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def rank_table(timeline: Timeline, window: tuple[int, int] | None = None) -> RankTable | None:
    """Return the ranks beside each other in a `window` [ns], or in all of the timeline; None if there is one device.

    Raises `NotATimelineError` for anything but a Timeline, `MetricsError` for a window that makes no sense.
    """
    devices = devices_of(check_timeline(timeline, "rank_table()"))
    if len(devices) < 2:
        return None
    start, end = window_of(timeline, window)
    number, arrival = collectives(timeline)
    inside = (timeline.end > start) & (timeline.start < end)
    parts = np.flatnonzero((number >= 0) & inside)
    late = _lateness(number[parts], timeline.start[parts])
    last = timeline.start[parts] == arrival[parts]
    lane_device = np.array([lane.device if lane.group == "device" else -1 for lane in timeline.lanes])
    whose = lane_device[timeline.lane[parts]]
    by_lane = np.argsort(timeline.lane, kind="stable")
    edges = np.searchsorted(timeline.lane[by_lane], np.arange(len(timeline.lanes) + 1))
    rows = []
    for device in devices:

        def taken(lanes: list[int], *kinds: Kind, cause: Cause | None = None) -> int:
            here = np.sort(np.concatenate([by_lane[edges[lane] : edges[lane + 1]] for lane in lanes]))
            here = here[np.isin(timeline.kind[here], kinds)]
            here = here if cause is None else here[timeline.cause[here] == cause]
            first, until = np.maximum(timeline.start[here], start), np.minimum(timeline.end[here], end)
            return intervals.length(intervals.union(first, until))

        streams, loop = np.flatnonzero(lane_device == device).tolist(), loop_lanes(timeline, device)
        waits = np.minimum(arrival[parts], timeline.end[parts]) - timeline.start[parts]
        mine = whose == device
        row = RankRow(
            _name(timeline.lanes[streams[0]].name, device),
            device,
            computes=taken(streams, Kind.COMPUTE),
            copies=taken(streams, *COPIES),
            loads=taken(loop, Kind.FETCH, Kind.PIN) + taken(loop, Kind.WAIT, cause=Cause.DATA) if loop else 0,
            works=max(0, taken(loop, Kind.API, Kind.OPERATOR) - taken(loop, Kind.WAIT)) if loop else 0,
            waits=int(waits[mine].sum()),
            came_last=int((mine & last).sum()),
            late=int(late[mine & last].sum()),
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
