"""AddressMap: who last wrote and read each byte of the emulated memory, by virtual address.

Views and slices are ranges of their storage, and a freed block that is handed out again is the same addresses: so both
count without further ado. Of each stream only its last write and its last read of a byte are kept, since what is
ordered after these is ordered after the ones before them; so the map does not grow with the length of a run.

    memory = AddressMap()
    for cell in memory.cells(0, 4096):    # splits where it must
        cell.reads[stream] = use
    memory.join(0, 4096)                  # and joins what has become the same
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from loaderviz.emulator.hazards import Clock

if TYPE_CHECKING:
    from loaderviz.emulator.device import Command, Stream


class Work:
    """One thing that touches memory: a kernel or copy in a stream, or an operator of the host (`stream` None).

    `number` is its place in the stream, `clock` what the stream was ordered after when it was put there; `span` the
    host's span in the timeline (-1: none). `batch` and `source` are those of the program line that made it.
    """

    __slots__ = ("batch", "clock", "command", "found", "number", "operator", "source", "span", "stream")

    def __init__(
        self, operator: str, stream: Stream | None, number: int, clock: Clock, batch: int, source: str,
        command: Command | None = None, span: int = -1,
    ) -> None:  # fmt: skip
        self.operator, self.stream, self.number, self.clock = operator, stream, number, clock
        self.batch, self.source, self.command, self.span = batch, source, command, span
        self.found: set[object] | None = None  # hazards that it was found in: each counts once


class Use(NamedTuple):
    """A read or write: by whom, of what tensor (its shape and dtype), and in which block."""

    number: int  # of the work in its stream
    work: Work
    writes: bool
    shape: Sequence[int]
    dtype: object
    block: object


class Cell:
    """A range of addresses with one history: stream -> last write, stream -> last read."""

    __slots__ = ("end", "reads", "start", "writes")

    def __init__(self, start: int, end: int, writes: dict[int, Use], reads: dict[int, Use]) -> None:
        self.start, self.end, self.writes, self.reads = start, end, writes, reads

    def __repr__(self) -> str:
        return f"<cell {self.start:#x}..{self.end:#x}, written by {list(self.writes)}, read by {list(self.reads)}>"


class AddressMap:
    """Cells by address. They do not overlap; addresses never touched have none."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._cells: dict[int, Cell] = {}
        self.at = self._cells.get  # the cell that begins at an address, if there is one

    def __len__(self) -> int:
        return len(self._cells)

    def cells(self, start: int, end: int) -> Sequence[Cell]:
        """Return the cells that make up `start` to `end` exactly; they are split or made where needed."""
        cell = self._cells.get(start)
        if cell is not None and cell.end == end:
            return (cell,)
        self._split(start)
        self._split(end)
        first, last = bisect_left(self._starts, start), bisect_left(self._starts, end)
        found, position = [], start
        for cell in [self._cells[begin] for begin in self._starts[first:last]]:
            if position < cell.start:
                found.append(self._add(position, cell.start))
            found.append(cell)
            position = cell.end
        if position < end:
            found.append(self._add(position, end))
        return found

    def touched(self, start: int, end: int) -> list[Cell]:
        """Return the cells that there are from `start` to `end`, split at these two."""
        self._split(start)
        self._split(end)
        first, last = bisect_left(self._starts, start), bisect_left(self._starts, end)
        return [self._cells[begin] for begin in self._starts[first:last]]

    def join(self, start: int, end: int) -> None:
        """Make one cell of neighbours from `start` to `end` whose histories are the same."""
        first, last = bisect_left(self._starts, start), bisect_left(self._starts, end)
        cells = [self._cells[begin] for begin in self._starts[first:last]]
        kept = cells[:1]
        for cell in cells[1:]:
            before = kept[-1]
            if before.end == cell.start and before.writes == cell.writes and before.reads == cell.reads:
                before.end = cell.end
                del self._cells[cell.start]
            else:
                kept.append(cell)
        self._starts[first:last] = [cell.start for cell in kept]

    def forget(self, start: int, end: int, clock: Clock) -> list[Use]:
        """Drop what is over once `clock` is reached, as when memory waits for an event; return what was dropped."""
        dropped: list[Use] = []
        for cell in self.touched(start, end):
            for uses in (cell.writes, cell.reads):
                for stream in [stream for stream, use in uses.items() if clock.get(stream, 0) >= use.number]:
                    dropped.append(uses.pop(stream))
        self._clear(start, end, only_empty=True)
        return dropped

    def drop(self, start: int, end: int) -> None:
        """Forget these addresses: they are never handed out again."""
        self._clear(start, end, only_empty=False)

    def _clear(self, start: int, end: int, *, only_empty: bool) -> None:
        first, last = bisect_left(self._starts, start), bisect_left(self._starts, end)
        kept = []
        for begin in self._starts[first:last]:
            cell = self._cells[begin]
            if only_empty and (cell.writes or cell.reads):
                kept.append(begin)
            else:
                del self._cells[begin]
        self._starts[first:last] = kept

    def _split(self, address: int) -> None:
        """Let a cell begin at `address`, if one lies across it."""
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return
        cell = self._cells[self._starts[index]]
        if cell.start < address < cell.end:
            rest = Cell(address, cell.end, dict(cell.writes), dict(cell.reads))
            cell.end = address
            self._starts.insert(index + 1, address)
            self._cells[address] = rest

    def _add(self, start: int, end: int) -> Cell:
        cell = self._cells[start] = Cell(start, end, {}, {})
        self._starts.insert(bisect_left(self._starts, start), start)
        return cell
