"""The records that workers write, each to a file of its own: five int64, readable whatever became of the worker.

fetches, left = read_files(folder)      # [Fetch(iterator=0, worker=1, epoch=0, order=3, start=…, end=…), …]
"""

from __future__ import annotations

import math
import struct
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

RECORD = struct.Struct("<5q")  # what, epoch, index, time [ns], bytes


class What(IntEnum):
    """What a record tells."""

    BEGAN = 0
    ENDED = 1
    FAILED = 2  # data set or collate raised an error, which goes to the main thread
    EXHAUSTED = 3  # an IterableDataset has no more
    LEFT = 4  # the worker was told to go


class Fetch(NamedTuple):
    """One piece of a worker's or the pin thread's work; times in ns of `perf_counter_ns`, end None: not ended.

    `iterator` numbers the iterators of all DataLoaders; `worker` is -1 for the pin thread; `order` counts the orders of
    an epoch of the iterator.
    """

    iterator: int
    worker: int
    epoch: int
    order: int
    start: int
    end: int | None
    nbytes: int = -1
    failed: bool = False


def file_name(iterator: int, worker: int) -> str:
    """Return the name of a worker's file."""
    return f"{iterator}-{worker}"


def read_files(folder: Path) -> tuple[list[Fetch], dict[int, int]]:
    """Return what the workers wrote to their files in `folder`: their work, and when the last of an iterator's left.

    A record that the death of its worker cut off is left out. An order that was never worked on (the epoch was over) is
    no work; the last one, if nothing came after it, is not ended: its worker is still at it, or died in it. An iterator
    of which a worker has not left has no entry in the second.
    """
    fetches: list[Fetch] = []
    last: dict[int, float] = {}
    for path in sorted(folder.iterdir()):
        iterator, _, worker = path.name.partition("-")
        if iterator.isdigit() and worker.isdigit():
            data = path.read_bytes()
            records = list(RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size]))
            fetches += _paired(int(iterator), int(worker), records)
            left = records[-1][3] if records and records[-1][0] == What.LEFT else math.inf
            last[int(iterator)] = max(last.get(int(iterator), 0), left)
    return fetches, {iterator: int(time) for iterator, time in last.items() if time < math.inf}


def _paired(iterator: int, worker: int, records: list[tuple[int, ...]]) -> list[Fetch]:
    """Join beginnings and ends. Of two beginnings in a row the first was not worked on."""
    found = []
    begun: tuple[int, ...] | None = None
    for record in records:
        what, epoch, index, time, size = record
        if what in (What.ENDED, What.FAILED) and begun is not None:
            found.append(Fetch(iterator, worker, epoch, index, begun[3], time, size, what == What.FAILED))
        begun = record if what == What.BEGAN else None
    if begun is not None:
        found.append(Fetch(iterator, worker, begun[1], begun[2], begun[3], None))
    return found
