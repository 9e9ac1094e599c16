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
from loaderviz.emulator.accesses import AddressMap, Cell, Use, Work
from loaderviz.emulator.findings import Access, Hazard, Hazards, RaceError
from loaderviz.emulator.hazards import HOST, Clock
from loaderviz.emulator.waits import Waits

if TYPE_CHECKING:
    from loaderviz.builder import TimelineBuilder
    from loaderviz.emulator.calls import HostThread
    from loaderviz.emulator.device import Command

KEPT = 8  # meetings of one kind that are kept, to show the one that overlaps most
BATCHES = 5  # batches that a report names
_NEW: Any = tuple.__new__  # a NamedTuple's own constructor takes twice as long, and this runs for each tensor


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

    def work(self, command: Command, operator: str = "") -> Work:
        """Return what was put into a stream last, as something that touches memory."""
        stream = command.stream
        clock = self.order.clock(stream.id)
        return Work(
            operator or command.name, stream, clock[stream.id], clock, command.batch, command.source, command
        )  # fmt: skip

    def host_work(self, operator: str, span: int = -1) -> Work:
        """Return an operator of the host, at the present line and batch; `span` is its number in the builder."""
        clock = self.order.clock(HOST)
        return Work(operator, None, 0, clock, self.runtime.batch, self.runtime.source, span=span)

    def access(
        self, work: Work, start: int, end: int, shape: Sequence[int] = (), dtype: object = "", block: object = None,
        reads: bool = False, writes: bool = False,
    ) -> None:  # fmt: skip
        """Note that `work` touches the addresses from `start` to `end`, a tensor in `block`; find what it races with.

        Work that reads and writes them reads first. Raises `RaceError` if that was asked for.
        """
        if end <= start:
            return
        use: Use = _NEW(Use, (work.number, work, writes, shape, dtype, block))
        if work.stream is None:
            self._host_access(use, start, end)
            return
        stream, cell = work.stream.id, self.memory.at(start)
        if cell is not None and cell.end == end:
            before, others = cell.writes, cell.reads
            if len(before) == 1 and stream in before:  # by far the most: nobody but this stream writes here,
                if not writes:
                    others[stream] = use
                    return
                if not others or (len(others) == 1 and stream in others):  # nor reads
                    others.clear()
                    before[stream] = use
                    return
            self._touch(cell, use, stream, work.clock, reads)
            return
        for cell in self.memory.cells(start, end):
            self._touch(cell, use, stream, work.clock, reads)
        self.memory.join(start, end)

    def _touch(self, cell: Cell, use: Use, stream: int, clock: Clock, reads: bool) -> None:
        """What is ordered before a write is done with: whoever comes after the write comes after that, too."""
        before = cell.writes
        alone = len(before) == 1 and stream in before  # nobody but this stream writes here
        if before and not alone:
            self._compare(before, use, stream, clock, reads)
        if not use.writes:
            cell.reads[stream] = use
            return
        if cell.reads:
            if len(cell.reads) > 1 or stream not in cell.reads:
                self._compare(cell.reads, use, stream, clock, False)
            cell.reads = _unordered(cell.reads, stream, clock)
        if not alone:
            before = cell.writes = _unordered(before, stream, clock)
        before[stream] = use

    def _compare(self, uses: dict[int, Use], use: Use, stream: int, clock: Clock, reads: bool) -> None:
        for other, before in uses.items():
            if other == stream:
                continue
            if clock.get(other, 0) < before.number:
                reused = before.block is not use.block
                self._found("early-read" if reads and before.writes and not reused else "early-reuse", before, use)
            elif self.order.trials:
                self.order.rely(stream, (other, before.number))

    def _host_access(self, use: Use, start: int, end: int) -> None:
        """The host reads or writes pinned memory: what it enqueues later comes after, so it need not be remembered."""
        clock = self.order.clock(HOST)
        kind = "early-refill" if use.writes else "early-host-read"
        for cell in self.memory.touched(start, end):
            for uses in (cell.writes, cell.reads) if use.writes else (cell.writes,):
                for stream, before in uses.items():
                    if clock.get(stream, 0) < before.number:
                        self._found(kind, before, use)
                    elif self.order.trials:
                        self.order.rely(HOST, (stream, before.number))
        self.memory.join(start, end)

    def changed_unseen(
        self, copy: Work, fills: bool, operator: str, shape: Sequence[int], dtype: object, block: object
    ) -> None:
        """Pinned bytes are not what they were when `copy` was queued to read (or fill) them; nobody told of it."""
        first = Use(copy.number, copy, fills, shape, dtype, block)
        self._found("early-refill", first, Use(0, self.host_work(operator), True, shape, dtype, block))

    def recorded(self, start: int, end: int, clock: Clock) -> None:
        """Freed memory will not be handed out again before an event that stands for `clock` is over (R36, R40)."""
        for use in self.memory.forget(start, end, clock):
            if self.order.trials:
                assert use.work.stream is not None
                self.order.rely_on(clock, (use.work.stream.id, use.number))

    def returned(self, start: int, end: int) -> None:
        """CUDA has these addresses back, and they are not used again."""
        self.memory.drop(start, end)

    # What was found

    def _found(self, kind: str, first: Use, second: Use) -> None:
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
        sighting.add(Meeting(first, second, self.waits.last_between(second.work.stream, first.work.stream)))
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
        if work.command is not None:
            start, end = work.command.start, work.command.end
        elif work.span >= 0:
            start, end = self.runtime.builder.times(work.span)
        number = None if work.stream is None else work.stream.number
        dtype = str(use.dtype).removeprefix("torch.")
        return Access(
            work.operator, use.writes, number, tuple(use.shape), dtype, work.batch, work.source, start, end
        )  # fmt: skip


def _unordered(uses: dict[int, Use], stream: int, clock: Clock) -> dict[int, Use]:
    return {
        other: use for other, use in uses.items() if other != stream and clock.get(other, 0) < use.number
    }  # fmt: skip


def _best(sighting: Sighting) -> Meeting:
    """Return the meeting that shows it best: where both ran at the same time for longest, or the wrong way round."""

    def shows(meeting: Meeting) -> tuple[int, int]:
        first, second = meeting.first.work.command, meeting.second.work.command
        if first is None or second is None or first.end < 0 or second.end < 0:
            return 0, 0
        overlap = min(first.end, second.end) - max(first.start, second.start)
        return (2, overlap) if overlap > 0 else (int(second.start < first.start), overlap)

    return max(sighting.meetings, key=shows)


def _span(work: Work, spans: dict[Command, int]) -> int:
    return work.span if work.command is None else spans.get(work.command, -1)
