"""AddressMap: who last wrote and read each byte of the emulated memory, by virtual address.

Views and slices are ranges of their storage, and a freed block that is handed out again is the same addresses: so both
count without further ado. Of each stream only its last write and its last read of a byte are kept, since what is
ordered after these is ordered after the ones before them; so the map does not grow with the length of a run.

    memory = AddressMap()
    for cell in memory.cells(0, 4096):    # splits where it must
        cell.reads[stream] = access
    memory.join(0, 4096)                  # and joins what has become the same
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from loaderviz.emulator.device import Command
from loaderviz.emulator.hazards.happens_before import Clock, Place


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

    def is_of(self, stream: int) -> bool:
        """Tell whether nobody but `stream` has touched it."""
        writes, reads = self.writes, self.reads
        return (not writes or (len(writes) == 1 and stream in writes)) and (
            not reads or (len(reads) == 1 and stream in reads)
        )


class AddressMap:
    """Cells by address. They do not overlap; addresses never touched have none."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._cells: dict[int, Cell] = {}

    def __len__(self) -> int:
        return len(self._cells)

    def cells(self, start: int, end: int) -> Sequence[Cell]:
        """Return the cells that make up `start` to `end` exactly; they are split or made where needed."""
        cell = self._cells.get(start)
        if cell is not None and cell.end == end:
            return (cell,)
        found, position = [], start
        for cell in self.touched(start, end):
            if position < cell.start:
                found.append(self._add(position, cell.start))
            found.append(cell)
            position = cell.end
        if position < end:
            found.append(self._add(position, end))
        return found

    def read(self, start: int, end: int, stream: int, access: LastAccess) -> bool:
        """Add a read to one cell that nobody but `stream` writes to; return False if there is no such cell."""
        cell = self._cells.get(start)
        if cell is None or cell.end != end:
            return False
        writes = cell.writes
        if writes and (len(writes) > 1 or stream not in writes):
            return False
        cell.reads[stream] = access
        return True

    def overwrite(self, start: int, end: int, stream: int, access: LastAccess) -> bool:
        """Make one cell, with this write, of what nobody but `stream` has touched; return False if somebody has.

        With `read`, that is most of what a training loop does: no other stream has to do with its parameters, and
        where a tensor is made, there lay one of the same stream before, perhaps of another size.
        """
        starts, cells = self._starts, self._cells
        cell = cells.get(start)
        if cell is not None and cell.end == end:
            if not cell.is_of(stream):
                return False
            cell.writes, cell.reads = {stream: access}, {}
            return True
        first = bisect_right(starts, start) - 1
        if first < 0 or cells[starts[first]].end <= start:
            first += 1
        last = bisect_left(starts, end, first)
        found = [cells[begin] for begin in starts[first:last]]
        for cell in found:
            if not cell.is_of(stream):
                return False
        edges = [start]
        if found:
            front, back = found[0], found[-1]
            if back.end > end:
                cells[end] = Cell(end, back.end, back.writes.copy(), back.reads.copy())
                edges.append(end)
            if front.start < start:
                front.end = start
                edges.insert(0, front.start)
            for begin in starts[first + (front.start <= start) : last]:
                del cells[begin]
        cells[start] = Cell(start, end, {stream: access}, {})
        starts[first:last] = edges
        return True

    def touched(self, start: int, end: int) -> list[Cell]:
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

    def forget(self, start: int, end: int, clock: Clock | None = None) -> list[Place]:
        """Drop what is over once `clock` is reached (None: all that there is); return what was dropped."""
        dropped: list[Place] = []
        kept = []
        for cell in self.touched(start, end):
            for uses in (cell.writes, cell.reads):
                for stream in [s for s, access in uses.items() if clock is None or clock.get(s, 0) >= access.sequence]:
                    dropped.append((stream, uses.pop(stream).sequence))
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
