"""Races: finds the hazards of a program while it runs on the emulated device. It changes no time and no value.

Everything that touches device or pinned memory is told to it: by whom, which addresses, read or write. Two accesses of
a byte, one of them a write, are a race unless the one is certain to be over when the other begins (`happens_before`).
That they happened to come apart in this run does not count; nor do the allocator's own stops (a cudaFree, R13), which a
warm cache has not.

    races = gpu.races = Races(gpu.order, gpu.builder)
    copy = gpu.memcpy(4096, "h2d", side)
    races.access(copy, address, address + 4096, writes=True)
    races.access(gpu.launch(1000), address, address + 4096, reads=True)    # early-read: nobody waits for the copy
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from loaderviz import words
from loaderviz.emulator.device import Command, Stream
from loaderviz.emulator.hazards import UNSEEN, Access, Hazard, Hazards, Lints, RaceError, short, texts
from loaderviz.emulator.hazards.between_threads import THREAD
from loaderviz.emulator.hazards.happens_before import (
    HOST,
    AddressMap,
    Cell,
    Clock,
    HappensBefore,
    HostWork,
    LastAccess,
)
from loaderviz.emulator.hazards.lints import Linter
from loaderviz.timeline import TimelineBuilder

KEPT = 8  # conflicts of one kind that are kept, to show the one that overlaps most
BATCHES = 5  # batches that a report names
UNSEEN_WAY = (
    "A recording does not see a list, a `deque` or a variable by which one thread hands something to another one: if "
    "the tensor came that way before the streams were told to wait, the program is right, and this no race"
)


class Conflict(NamedTuple):
    """Two accesses of the same bytes that nothing orders; `waited` is the line of the last wait between their streams.

    `apart`: the second's thread does not know of the first's work. `shows` is larger for one that shows better what is
    wrong.
    """

    first: LastAccess
    second: LastAccess
    waited: str
    apart: bool = False

    @property
    def shows(self) -> tuple[int, int]:
        """Best where both ran at the same time for longest, or else the wrong way round; by (which, ns)."""
        first, second = self.first.work, self.second.work
        if isinstance(first, HostWork) or isinstance(second, HostWork) or first.end < 0 or second.end < 0:
            return 0, 0
        overlap = min(first.end, second.end) - max(first.start, second.start)
        return (2, overlap) if overlap > 0 else (int(second.start < first.start), overlap)


class Conflicts:
    """All conflicts of one kind, at one pair of lines, over a tensor of one shape; `count` second works are in them."""

    def __init__(self, kind: str) -> None:
        self.kind, self.count = kind, 0
        self.batches: list[int] = []
        self.kept: list[Conflict] = []
        self._last: Command | HostWork | None = None

    def add(self, conflict: Conflict) -> None:
        """Count one more."""
        if conflict.second.work is self._last:
            return
        self._last = conflict.second.work
        self.count += 1
        batch = self._last.batch
        if batch >= 0 and len(self.batches) < BATCHES and batch not in self.batches:
            self.batches.append(batch)
        if len(self.kept) < KEPT:
            self.kept.append(conflict)

    @property
    def best(self) -> Conflict:
        """The one that shows best what is wrong."""
        return max(self.kept, key=lambda conflict: conflict.shows)


class MissingEdge:
    """An order that nothing ensures: a stream (or the host) would have to wait for another one before a line.

    All conflicts that this one wait would have ordered are one hazard. `leading` are told: those of the last work that
    is to be waited for, where the wait is missing first. It is missing `times`; the last time it would have ordered the
    other stream's work up to number `up_to`.
    """

    def __init__(self, line: str) -> None:
        self.line, self.number = line, -1
        self.times = self.up_to = 0
        self.conflicts: dict[Any, Conflicts] = {}  # by kind, both lines, shape
        self.leading: Conflicts  # known once one was added

    def add(self, kind: str, conflict: Conflict) -> None:
        """Add a conflict."""
        first, second = conflict.first, conflict.second
        key = kind, first.work.source, second.work.source, tuple(second.shape)
        conflicts = self.conflicts.setdefault(key, Conflicts(kind))
        conflicts.add(conflict)
        here = self.times == 1 and second.work.source == self.line
        if self.number < 0 or (here and first.sequence > self.number):
            self.leading, self.number = conflicts, first.sequence


class Races:
    """The hazards of one recording. `raising`: raise `RaceError` at the first one instead of collecting them.

    `linter` is told of waits and copies, and `lints` is what came of it.
    """

    def __init__(self, order: HappensBefore, builder: TimelineBuilder, *, raising: bool = False) -> None:
        self.order, self.raising = order, raising
        self.memory = AddressMap()
        self.linter = Linter(order)
        self.hazards, self.lints = Hazards(), Lints()
        self._builder = builder
        self._missing: dict[tuple[int, int, str], MissingEdge] = {}  # by both streams, and the line that should wait
        self._last: dict[tuple[int, int], MissingEdge] = {}  # of both streams

    def access(
        self,
        work: Command | HostWork,
        start: int,
        end: int,
        shape: Sequence[int] = (),
        dtype: object = "",
        block: object = None,
        reads: bool = False,
        writes: bool = False,
    ) -> None:
        """Note that `work` touches the addresses from `start` to `end`, a tensor in `block`; find what it races with.

        Work that reads and writes them reads first. Raises `RaceError` if that was asked for.
        """
        if end <= start:
            return
        memory = self.memory
        if isinstance(work, HostWork):  # what it enqueues later comes after, so it need not be remembered
            access = LastAccess(0, work, writes, shape, dtype, block)
            clock = (self.order.threads or self.order).clock(HOST)
            for cell in memory.cells_in(start, end):
                self._compare(cell.writes, access, HOST, clock, "early-refill" if writes else "early-host-read")
                self._compare(cell.reads if writes else {}, access, HOST, clock, "early-refill")
            memory.join(start, end)
            return
        stream = self.source_of(work)
        access = tuple.__new__(LastAccess, (work.sequence, work, writes, shape, dtype, block))  # by far the most
        if memory.alone(start, end, stream, access):
            return
        clock = (self.order.threads or self.order).clock(work.stream.id)
        for cell in memory.cells(start, end):
            self._touch(cell, access, stream, clock, "early-read" if reads else "early-reuse")
        memory.join(start, end)

    def source_of(self, work: Command) -> int:
        """Return by whom the work that was just enqueued touches memory: its stream, and the thread that runs."""
        return self.order.threads.source(work.stream.id) if self.order.threads else work.stream.id

    def _touch(self, cell: Cell, access: LastAccess, stream: int, clock: Clock, kind: str) -> None:
        """What is ordered before a write is done with: whoever comes after the write comes after that, too."""
        self._compare(cell.writes, access, stream, clock, kind)
        if not access.writes:
            cell.reads[stream] = access
            return
        self._compare(cell.reads, access, stream, clock, "early-reuse")
        cell.reads = _unordered(cell.reads, stream, clock)
        cell.writes = _unordered(cell.writes, stream, clock)
        cell.writes[stream] = access

    def _compare(
        self, earlier: dict[int, LastAccess], access: LastAccess, stream: int, clock: Clock, kind: str
    ) -> None:
        """Report a race of this `kind` with each earlier access that is not over; a new block's is one of its reuse."""
        for other, before in earlier.items():
            if (other - stream) % THREAD == 0:
                continue
            if clock.get(other, 0) < before.sequence:
                reused = kind == "early-read" and before.block is not access.block
                self._report("early-reuse" if reused else kind, before, access, other)
            elif self.order.counterfactuals:
                self.order.need(stream, (other, before.sequence))

    def changed_unseen(self, copy: LastAccess, found_by: HostWork) -> None:
        """Pinned bytes are not what they were when `copy` was queued to read (or fill) them; nobody told of it."""
        self._report("early-refill", copy, copy._replace(sequence=0, work=found_by, writes=True))

    def recorded(self, start: int, end: int, clock: Clock) -> None:
        """Freed memory will not be handed out again before an event that stands for `clock` is over (R36, R40)."""
        for place in self.memory.forget(start, end, lambda place: clock.get(place[0] % THREAD, 0) >= place[1]):
            if self.order.counterfactuals:
                self.order.need_before(clock, place)

    def freed(self, start: int, end: int, stream: Stream) -> None:
        """The running thread lets go of memory of a stream's pool, which has a lock of its own.

        So whoever gets it next comes after what this thread knows to be before its own next work in that stream.
        """
        if self.order.threads:
            clock = self.order.threads.clock(stream.id)
            self.memory.forget(start, end, lambda place: clock.get(place[0], 0) >= place[1])

    # What was found

    def _report(self, kind: str, first: LastAccess, second: LastAccess, source: int = 0) -> None:
        """Two accesses conflict: would a wait that is missing anyway order them, or is this one more?

        The fewest waits that order all conflicts of two streams: each as late as may be, before the second access of a
        conflict that no earlier one orders. A wait orders what the other stream has in its queue by then.
        """
        second.work.in_race = True
        stream, other = _stream(second.work), _stream(first.work)
        pair = other.id if other else HOST, stream.id if stream else HOST
        edge = self._last.get(pair)
        if edge is None or first.sequence > edge.up_to:
            line = second.work.source
            edge = self._last[pair] = self._missing.setdefault((*pair, line), MissingEdge(line))
            edge.times, edge.up_to = edge.times + 1, self.order.clock(pair[0]).get(pair[0], 0)
        threads = self.order.threads
        apart = bool(threads and other and not threads.is_ordered(other.id, (source, first.sequence)))
        edge.add(kind, Conflict(first, second, self.linter.last_waits.get(pair, ""), apart))
        if self.raising:
            raise RaceError(self._hazard(edge))

    def finish(self, spans: dict[Command, int]) -> None:
        """The run is over and all times are known: write the reports, and mark them in the timeline."""
        self.hazards = Hazards(map(self._hazard, self._missing.values()))
        for hazard, edge in zip(self.hazards, self._missing.values(), strict=True):
            best = edge.leading.best
            first, second = (
                spans.get(work, -1) if isinstance(work, Command) else work.span
                for work in (best.first.work, best.second.work)
            )
            shown = second if second >= 0 else first
            lane = self._builder.place(shown)[2] if shown >= 0 else 0
            begin = hazard.second.start if hazard.second else -1
            time = begin if begin >= 0 else max(0, hazard.first.start)
            text = f"{hazard.problem}; missing: {hazard.edge}"
            self._builder.mark(time, lane, hazard.kind, text, (first, second), str(hazard))

    def _hazard(self, edge: MissingEdge) -> Hazard:
        """Return the report of the conflicts that lead; for want of the same order the others race, too."""
        told, more = edge.leading, len(edge.conflicts) - 1
        before, after, waited, apart = told.best
        first, second = self._side(before), self._side(after)
        owner, case = getattr(getattr(after.block, "stream", None), "number", None), told.kind
        if case == "early-reuse" and before.block is not after.block:
            own = owner is not None and owner == first.stream
            case = "early-reuse of its own freed memory" if own else "early-reuse of freed memory"
        unseen = f"the line that writes (it ran before {second.line} was over)"
        early = f"{second.place} does wait for {first.place} at {short(waited)}, but earlier"
        names = [self.linter.name_of(_stream(access.work)) for access in (before, after)]
        one, other = _variables((first, second), names)
        values = {
            "first": first,
            "second": second,
            "one": one,
            "other": other,
            "does": "writes" if first.writes else "reads",
            "uses": "writes into" if second.writes else "reads",
            "fills": "fill" if first.writes else "read",
            "pool": "its pool" if owner is None else f"the pool of stream {owner}",
            "where": unseen if second.operator == UNSEEN else second.line,
            "too_early": f". {early}: a wait is only for what is in the queue by then" if waited else "",
        }
        said = {name: text.format(**values) for name, text in texts()[case].items()}
        if more:
            pairs = f"{words.count(more, 'other pair')} of accesses race{'s' * (more == 1)}"
            said["missing"] += f". {pairs} for want of it, too"
        if apart:
            one, other = self._thread(before), self._thread(after)
            said["missing"] += (
                f". Nor does {other} wait for {one}, so it may come here before {first.line}. {UNSEEN_WAY}"
            )
            said["fix"] += f". And let {other} wait for {one}: with a queue, a lock, an event of `threading` or `join`"
        return Hazard(told.kind, first, second, count=told.count, batches=tuple(told.batches), **said)

    def _thread(self, access: LastAccess) -> str:
        """Return the name of the thread whose call it was."""
        name = self._builder.lane_of(access.work.api if isinstance(access.work, Command) else access.work.span)
        return "the main thread" if name == "main" else name

    def _side(self, access: LastAccess) -> Access:
        work, start, end = access.work, -1, -1
        if isinstance(work, Command):
            start, end = work.start, work.end
        elif work.span >= 0:
            start, end, _ = self._builder.place(work.span)
        number = work.stream.number if isinstance(work, Command) else None
        shape, dtype = tuple(access.shape), str(access.dtype).removeprefix("torch.")
        return Access(work.operator, access.writes, number, shape, dtype, work.batch, work.source, start, end)


def _unordered(accesses: dict[int, LastAccess], stream: int, clock: Clock) -> dict[int, LastAccess]:
    return {
        other: access for other, access in accesses.items() if other != stream and clock.get(other, 0) < access.sequence
    }


def _stream(work: Command | HostWork) -> Stream | None:
    return work.stream if isinstance(work, Command) else None


def _variables(sides: Sequence[Access], names: Sequence[str]) -> list[str]:
    """Return what to write for the streams of both sides: the default one is the current one, as a rule."""
    default = {None: "", 7: "torch.cuda.current_stream()"}
    alone = any(side.stream in default for side in sides)
    told = names if names[0] != names[1] else ("", "")  # a name that two streams were given tells nothing
    fallback = ("side" if alone else f"stream_{side.stream}" for side in sides)
    return [default.get(side.stream, name or word) for side, name, word in zip(sides, told, fallback, strict=True)]
