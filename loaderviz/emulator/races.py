"""Races: finds the hazards of a program while it runs on the emulated device. It changes no time and no value.

Everything that touches device or pinned memory is told to it: by whom, which addresses, read or write. Two accesses of
a byte, one of them a write, are a race unless the one is certain to be over when the other begins (`hazards`). That
they happened to come apart in this run does not count; nor do the allocator's own stops (R13), which a warm cache has
not.

    races = gpu.races = Races(gpu)
    copy = gpu.memcpy(4096, "h2d", side)
    races.access(races.work(copy), address, address + 4096, writes=True)
    read = gpu.launch(1000)
    races.access(races.work(read), address, address + 4096, reads=True)    # early-read: nobody waits for the copy
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from loaderviz.emulator import explain
from loaderviz.emulator.accesses import BLOCK, TURN, WRITES, AddressMap, Cell, HostWork, Kept, Use, Work
from loaderviz.emulator.device import Command, Stream
from loaderviz.emulator.findings import Access, Hazard, Hazards, RaceError
from loaderviz.emulator.hazards import HOST, Clock
from loaderviz.emulator.waits import Waits

if TYPE_CHECKING:
    from loaderviz.builder import TimelineBuilder
    from loaderviz.emulator.calls import HostThread

KEPT = 8  # meetings of one kind that are kept, to show the one that overlaps most
BATCHES = 5  # batches that a report names


class Meeting(NamedTuple):
    """Two uses of the same bytes that nothing orders; `waited` is the line of the last wait between their streams."""

    first: Use
    second: Use
    waited: str


class Sighting:
    """A hazard: all meetings of one kind, at one pair of lines, over a tensor of one shape."""

    def __init__(self, kind: str) -> None:
        self.kind, self.count = kind, 0
        self.batches: list[int] = []
        self.meetings: list[Meeting] = []

    def add(self, meeting: Meeting) -> None:
        """Count one more."""
        self.count += 1
        batch = meeting.second.work.batch
        if batch >= 0 and len(self.batches) < BATCHES and batch not in self.batches:
            self.batches.append(batch)
        if len(self.meetings) < KEPT:
            self.meetings.append(meeting)


class Races:
    """The hazards of one recording. `raising`: raise `RaceError` at the first one instead of collecting them."""

    def __init__(self, runtime: HostThread, *, raising: bool = False) -> None:
        self.runtime, self.order, self.raising = runtime, runtime.order, raising
        self.memory = AddressMap()
        self.waits = Waits(self.order)
        self.hazards = self.findings = Hazards()
        self._sightings: dict[Any, Sighting] = {}

    # What happens

    def work(self, command: Command, operator: str = "") -> Command:
        """Return what was put into a stream last, as something that touches memory."""
        command.operator = operator or command.name
        return command

    def host_work(self, operator: str, span: int = -1) -> HostWork:
        """Return an operator of the host, at the present line and batch; `span` is its number in the builder."""
        return HostWork(operator, self.runtime.batch, self.runtime.source, span)

    def access(
        self, work: Work, start: int, end: int, shape: Sequence[int] = (), dtype: object = "", block: object = None,
        reads: bool = False, writes: bool = False,
    ) -> None:  # fmt: skip
        """Note that `work` touches the addresses from `start` to `end`, a tensor in `block`; find what it races with.

        Work that reads and writes them reads first. Raises `RaceError` if that was asked for.
        """
        if end <= start:
            return
        if isinstance(work, HostWork):
            self._host_access((0, work, writes, shape, dtype, block), start, end)
            return
        stream, use, memory = work.stream.id, (work.turn, work, writes, shape, dtype, block), self.memory
        if (memory.overwrite if writes else memory.read)(start, end, stream, use):
            return
        clock = self.order.clock(stream)
        for cell in memory.cells(start, end):
            self._touch(cell, use, stream, clock, reads)
        memory.join(start, end)

    def _touch(self, cell: Cell, use: Kept, stream: int, clock: Clock, reads: bool) -> None:
        """What is ordered before a write is done with: whoever comes after the write comes after that, too."""
        self._compare(cell.writes, use, stream, clock, reads)
        if not use[WRITES]:
            cell.reads[stream] = use
            return
        self._compare(cell.reads, use, stream, clock, False)
        cell.reads = _unordered(cell.reads, stream, clock)
        cell.writes = _unordered(cell.writes, stream, clock)
        cell.writes[stream] = use

    def _compare(self, uses: dict[int, Kept], use: Kept, stream: int, clock: Clock, reads: bool) -> None:
        for other, before in uses.items():
            if other == stream:
                continue
            if clock.get(other, 0) < before[TURN]:
                reused = before[BLOCK] is not use[BLOCK]  # another block
                self._found("early-read" if reads and before[WRITES] and not reused else "early-reuse", before, use)
            elif self.order.trials:
                self.order.rely(stream, (other, before[TURN]))

    def _host_access(self, use: Kept, start: int, end: int) -> None:
        """The host reads or writes pinned memory: what it enqueues later comes after, so it need not be remembered."""
        clock = self.order.clock(HOST)
        writes = use[WRITES]
        kind = "early-refill" if writes else "early-host-read"
        for cell in self.memory.touched(start, end):
            for uses in (cell.writes, cell.reads) if writes else (cell.writes,):
                for stream, before in uses.items():
                    if clock.get(stream, 0) < before[TURN]:
                        self._found(kind, before, use)
                    elif self.order.trials:
                        self.order.rely(HOST, (stream, before[TURN]))
        self.memory.join(start, end)

    def changed_unseen(
        self, copy: Command, fills: bool, operator: str, shape: Sequence[int], dtype: object, block: object
    ) -> None:
        """Pinned bytes are not what they were when `copy` was queued to read (or fill) them; nobody told of it."""
        first = (copy.turn, copy, fills, shape, dtype, block)
        self._found("early-refill", first, (0, self.host_work(operator), True, shape, dtype, block))

    def recorded(self, start: int, end: int, clock: Clock) -> None:
        """Freed memory will not be handed out again before an event that stands for `clock` is over (R36, R40)."""
        for place in self.memory.forget(start, end, clock):
            if self.order.trials:
                self.order.rely_on(clock, place)

    def returned(self, start: int, end: int) -> None:
        """CUDA has these addresses back, or they stand for memory that nobody has touched in this run."""
        self.memory.drop(start, end)

    # What was found

    def _found(self, kind: str, before: Kept, after: Kept) -> None:
        first, second = Use(*before), Use(*after)
        lines = first.work.source, second.work.source
        key = (kind, *lines, tuple(second.shape))
        met = second.work.found
        if met is None:
            met = second.work.found = set()
        if key in met:
            return
        met.add(key)
        sighting = self._sightings.get(key)
        if sighting is None:
            sighting = self._sightings[key] = Sighting(kind)
        sighting.add(Meeting(first, second, self.waits.last_between(_stream(second.work), _stream(first.work))))
        if self.raising:
            raise RaceError(self._hazard(sighting))

    def finish(self, builder: TimelineBuilder, spans: dict[Command, int]) -> None:
        """The run is over and all times are known: write the reports, and mark them in the timeline."""
        hazards = []
        for sighting in self._sightings.values():
            hazard = self._hazard(sighting)
            hazards.append(hazard)
            meeting = _best(sighting)
            ends = tuple(_span(use.work, spans) for use in (meeting.first, meeting.second))
            shown = hazard.second or hazard.first
            lane = builder.lane_of(ends[1]) if ends[1] >= 0 else builder.lane_of(ends[0]) if ends[0] >= 0 else 0
            time = shown.start if shown.start >= 0 else max(0, hazard.first.start)
            text = f"{hazard.problem}; missing: {self._text(sighting).edge}"
            builder.mark(time, lane, hazard.kind, text, (ends[0], ends[1]))
        self.hazards = Hazards(hazards)

    def judge_waits(self, window: int, cached: dict[int, int]) -> None:
        """The run took `window` ns, and `cached` bytes lie free in each stream's pool: write the findings."""
        self.findings = Hazards(self.waits.findings(window, cached))

    def _hazard(self, sighting: Sighting) -> Hazard:
        meeting = _best(sighting)
        first, second = (self._access(use) for use in (meeting.first, meeting.second))
        text = self._text(sighting)
        return Hazard(
            sighting.kind, text.rule, first, second, text.problem, text.missing, text.fix, text.shows,
            sighting.count, tuple(sighting.batches),
        )  # fmt: skip

    def _text(self, sighting: Sighting) -> explain.Text:
        meeting = _best(sighting)
        first, second = (self._access(use) for use in (meeting.first, meeting.second))
        return explain.race(
            sighting.kind, first, second, meeting.first.block, meeting.second.block, meeting.waited
        )  # fmt: skip

    def _access(self, use: Use) -> Access:
        work, start, end = use.work, -1, -1
        if isinstance(work, Command):
            start, end = work.start, work.end
        elif work.span >= 0:
            start, end = self.runtime.builder.times(work.span)
        stream = _stream(work)
        number = None if stream is None else stream.number
        dtype = str(use.dtype).removeprefix("torch.")
        return Access(
            work.operator, use.writes, number, tuple(use.shape), dtype, work.batch, work.source, start, end
        )  # fmt: skip


def _unordered(uses: dict[int, Kept], stream: int, clock: Clock) -> dict[int, Kept]:
    return {other: use for other, use in uses.items() if other != stream and clock.get(other, 0) < use[TURN]}


def _best(sighting: Sighting) -> Meeting:
    """Return the meeting that shows it best: where both ran at the same time for longest, or the wrong way round."""

    def shows(meeting: Meeting) -> tuple[int, int]:
        first, second = meeting.first.work, meeting.second.work
        if isinstance(first, HostWork) or isinstance(second, HostWork) or first.end < 0 or second.end < 0:
            return 0, 0
        overlap = min(first.end, second.end) - max(first.start, second.start)
        return (2, overlap) if overlap > 0 else (int(second.start < first.start), overlap)

    return max(sighting.meetings, key=shows)


def _span(work: Work, spans: dict[Command, int]) -> int:
    return spans.get(work, -1) if isinstance(work, Command) else work.span


def _stream(work: Work) -> Stream | None:
    return work.stream if isinstance(work, Command) else None
