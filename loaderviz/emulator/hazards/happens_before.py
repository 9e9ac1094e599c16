"""Happens-before over streams, events and the host, and who touched each byte last: what a race is found by.

Every piece of work has a place: (stream, its sequence number there). A stream knows, for each stream, up to which
number it is ordered after it; an event carries such a vector clock from one stream to another; a synchronise gives it
to the host, and what the host enqueues later is ordered after all that the host knows (R16). `races` finds hazards
with it.

Is a wait needed? For each source line of waits the order is also kept as it would be without them, its counterfactual,
until something relies on an order that only this line makes. A line whose counterfactual lasts to the end is not
needed.

`AddressMap` holds accesses by virtual address. Views are ranges of their storage, and a freed block that is handed out
again is the same addresses: both count without further ado. Of each stream only its last write and its last read of a
byte are kept, since what is ordered after these is ordered after the ones before them: the map does not grow with time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from loaderviz.emulator.device import Command

if TYPE_CHECKING:
    from loaderviz.emulator.hazards.between_threads import BetweenThreads, Recorded

Clock = dict[int, int]  # stream -> sequence number of its last work known to be over
Place = tuple[int, int]  # (stream, sequence number of the work in it)
HOST = -1  # the host's own entry among the clocks
COUNTERFACTUALS = 16  # kept at a time: each costs as much as the order itself


class Snapshot(Clock):
    """What an event stands for; `without` holds the same for each counterfactual, `recorded` for its thread."""

    __slots__ = ("recorded", "without")

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.without: dict[str, Clock] = {}
        self.recorded: Recorded | None = None


class Clocks:
    """Vector clocks, one per stream and one for the host."""

    def __init__(self, clocks: dict[int, Clock]) -> None:
        self.clocks = clocks

    def clock(self, stream: int) -> Clock:
        """Return the clock of a stream (or of the `HOST`) as it is now; it is not a copy."""
        clock = self.clocks.setdefault(stream, {})
        if stream != HOST:
            join_clock(clock, self.clocks[HOST])
        return clock

    def is_ordered(self, stream: int, place: Place) -> bool:
        """Tell whether what `stream` gets next runs after the work at `place`. `HOST` asks for the host."""
        owner, number = place
        return self.clock(stream).get(owner, 0) >= number


class HappensBefore(Clocks):
    """What is certain of the device's order; and the same for each counterfactual."""

    def __init__(self) -> None:
        super().__init__({HOST: {}})
        self.counterfactuals: dict[str, HappensBefore] = {}  # source line of waits -> the order without them
        self.needed: set[str] = set()  # lines that something relies on
        self.threads: BetweenThreads | None = None  # who of the host's threads knows what, where there are several

    def divide(self, threads: BetweenThreads) -> None:
        """There will be several threads. From now on no wait is found to be needless: another thread may need it."""
        self.needed.update(self.counterfactuals)
        self.counterfactuals.clear()
        self.threads = threads

    def enqueue(self, stream: int) -> Place:
        """Note that the host puts work into `stream`; return its place."""
        clock = self.clock(stream)
        number = clock[stream] = clock.get(stream, 0) + 1
        for other in self.counterfactuals.values():
            other.enqueue(stream)
        if self.threads:
            self.threads.enqueue(stream, number)
        return stream, number

    def snapshot(self, stream: int) -> Snapshot:
        """Return what an event recorded now in `stream` stands for."""
        snapshot = Snapshot(self.clock(stream))
        for line, other in self.counterfactuals.items():
            snapshot.without[line] = other.snapshot(stream)
        if self.threads:
            snapshot.recorded = self.threads.recorded(stream)
        return snapshot

    def wait(self, stream: int, clock: Clock, line: str = "") -> None:
        """Order everything that `stream` gets from now on after `clock`; not so in the counterfactual of its `line`.

        What the `HOST` waits for comes before all that it enqueues later.
        """
        join_clock(self.clock(stream), clock)
        for name, other in self.counterfactuals.items():
            if name != line:
                other.wait(stream, _without(clock, name))
        if self.threads:
            self.threads.wait(stream, getattr(clock, "recorded", None), clock)

    def host_wait_all(self) -> None:
        """A device synchronise: the host is ordered after every stream."""
        for stream in self.clocks.keys() - {HOST}:
            self.wait(HOST, self.snapshot(stream))

    # Which waits are needed

    def add_counterfactual(self, line: str) -> None:
        """Keep the order without the waits of a line, too, from before the first of them on."""
        known = line in self.counterfactuals or line in self.needed
        if line and not known and not self.threads and len(self.counterfactuals) < COUNTERFACTUALS:
            other = self.counterfactuals[line] = HappensBefore()
            other.clocks = {stream: dict(clock) for stream, clock in self.clocks.items()}

    def need(self, stream: int, place: Place) -> None:
        """What `stream` (or the `HOST`) does must come after `place`: the lines that see to it are needed."""
        self._need(line for line, other in self.counterfactuals.items() if not other.is_ordered(stream, place))

    def need_before(self, clock: Clock, place: Place) -> None:
        """The same for something that comes after `clock` was reached, such as the reuse of recorded memory."""
        owner, number = place
        self._need(line for line in self.counterfactuals if _without(clock, line).get(owner, 0) < number)

    def _need(self, lines: Iterable[str]) -> None:
        for line in list(lines):
            del self.counterfactuals[line]
            self.needed.add(line)


def _without(clock: Clock, line: str) -> Clock:
    """Return a clock as it would be without the waits of a line; before their first it was the same."""
    return clock.without.get(line, clock) if isinstance(clock, Snapshot) else clock


def join_clock(clock: Clock, other: Clock) -> None:
    """Let `clock` know what another one knows, too."""
    for stream, number in other.items():
        if clock.get(stream, 0) < number:
            clock[stream] = number


# Who touched each byte last


class HostWork:
    """An operator of the host that touches pinned memory, at a program line; `span` is its number in the builder."""

    __slots__ = ("batch", "in_race", "operator", "source", "span")

    def __init__(self, operator: str, batch: int, source: str, span: int = -1) -> None:
        self.operator, self.batch, self.source, self.span = operator, batch, source, span
        self.in_race = False


class LastAccess(NamedTuple):
    """A read or write: by whom, of what tensor (its shape and dtype), and in which block."""

    sequence: int  # number of the work in its stream; 0 for the host
    work: Command | HostWork
    writes: bool
    shape: Sequence[int]
    dtype: object
    block: object


class Cell:
    """A range of addresses with one history: stream -> last write, stream -> last read."""

    __slots__ = ("end", "reads", "start", "writes")

    def __init__(self, start: int, end: int, writes: dict[int, LastAccess], reads: dict[int, LastAccess]) -> None:
        self.start, self.end, self.writes, self.reads = start, end, writes, reads


class AddressMap:
    """Cells by address. They do not overlap; addresses never touched have none."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._cells: dict[int, Cell] = {}

    def cells(self, start: int, end: int) -> Sequence[Cell]:
        """Return the cells that make up `start` to `end` exactly; they are split or made where needed."""
        found, position = [], start
        for cell in self.cells_in(start, end):
            if position < cell.start:
                found.append(self._add(position, cell.start))
            found.append(cell)
            position = cell.end
        if position < end:
            found.append(self._add(position, end))
        return found

    def alone(self, start: int, end: int, stream: int, access: LastAccess) -> bool:
        """Add an access to one cell that races with nothing there; return False if that has to be looked at.

        Nobody but `stream` writes to the cell, nor, where this is a write, reads it. That is most of what a training
        loop does: no other stream has to do with its parameters.
        """
        cell = self._cells.get(start)
        if cell is None or cell.end != end or not cell.writes.keys() <= {stream}:
            return False
        if not access.writes:
            cell.reads[stream] = access
        elif cell.reads.keys() <= {stream}:
            cell.writes, cell.reads = {stream: access}, {}
        else:
            return False
        return True

    def cells_in(self, start: int, end: int) -> list[Cell]:
        """Return the cells that there are from `start` to `end`, split at these two."""
        for address in (start, end):
            index = bisect_right(self._starts, address) - 1
            cell = self._cells[self._starts[index]] if index >= 0 else None
            if cell and cell.start < address < cell.end:
                self._cells[address] = Cell(address, cell.end, dict(cell.writes), dict(cell.reads))
                self._starts.insert(index + 1, address)
                cell.end = address
        return [self._cells[begin] for begin in self._starts[self._between(start, end)]]

    def join(self, start: int, end: int) -> None:
        """Make one cell of neighbours from `start` to `end` whose histories are the same."""
        between = self._between(start, end)
        cells = [self._cells[begin] for begin in self._starts[between]]
        kept = cells[:1]
        for cell in cells[1:]:
            before = kept[-1]
            if before.end == cell.start and before.writes == cell.writes and before.reads == cell.reads:
                before.end = cell.end
                del self._cells[cell.start]
            else:
                kept.append(cell)
        self._starts[between] = [cell.start for cell in kept]

    def forget(self, start: int, end: int, over: Callable[[Place], bool] | None = None) -> list[Place]:
        """Drop what is `over` (None: all that there is); return what was dropped."""
        dropped: list[Place] = []
        kept = []
        for cell in self.cells_in(start, end):
            for uses in (cell.writes, cell.reads):
                places = [(stream, access.sequence) for stream, access in uses.items()]
                for place in [place for place in places if over is None or over(place)]:
                    del uses[place[0]]
                    dropped.append(place)
            if cell.writes or cell.reads:
                kept.append(cell.start)
            else:
                del self._cells[cell.start]
        self._starts[self._between(start, end)] = kept
        return dropped

    def _between(self, start: int, end: int) -> slice:
        return slice(bisect_left(self._starts, start), bisect_left(self._starts, end))

    def _add(self, start: int, end: int) -> Cell:
        cell = self._cells[start] = Cell(start, end, {}, {})
        self._starts.insert(bisect_left(self._starts, start), start)
        return cell
