"""When the DataLoader's workers fetch and its pin thread pins, taken where it happens. No profiler sees these.

`RecordedLoop` stands in the place of torch's `_worker_loop` and `_pin_memory_loop`. It runs torch's own loop, with
stand-ins for its queues that note the time: an order that comes out of the first begins a fetch, a batch that goes into
the second ends it.

Each writes records of fourteen int64 to a file of its own, so that they outlive a worker's death. It begins no record
unless a file RUNNING is beside it: the folder goes when a recording ends, for workers that live on, too. It holds no
file open, which Windows would not delete then. Times are of `perf_counter_ns`, one clock for all processes of a
computer. With spawn and forkserver the worker imports this module: it must stay light.
"""

from __future__ import annotations

import inspect
import math
import os
import re
import struct
from collections.abc import Callable
from enum import IntEnum
from io import FileIO
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any, NamedTuple

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import _utils

from loaderviz.batches import nbytes
from loaderviz.imports import answering, bound_arguments
from loaderviz.machine import Carried, Usage, own_memory, usage
from loaderviz.stations import Place, Sampler, timed
from loaderviz.timeline import Cause

# what, epoch, index, time [ns], bytes, cause, line, the process's own memory, usage
RECORD = struct.Struct("<14q")

RUNNING = "running"
LOOK, RARE = 0.25, 50  # s between two looks at the own memory, or so many times what one took


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
    an epoch of the iterator. `waited` [ns]: neither did it run in this time nor lack a core. `cause`
    and `line` say what it did for the longest, and where. `used` is what its process used meanwhile,
    `own` the bytes of memory that only this process had at its end (0: not looked at).
    """

    iterator: int
    worker: int
    epoch: int
    order: int
    start: int
    end: int | None
    nbytes: int = -1
    failed: bool = False
    waited: int = 0
    cause: int = 0
    line: str = ""
    used: Usage = Usage()
    own: int = 0


class RecordedLoop:
    """Stands in the place of torch's loop of a worker, or, for so many `workers`, of their pin thread.

    It is that loop, with its queues logged. Picklable, for spawn.
    """

    def __init__(self, folder: Path, iterator: int, loop: Callable[..., None] | None, workers: int = 0) -> None:
        self.folder, self.iterator, self.loop, self.workers = folder, iterator, loop, workers

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"loop": None}  # a new process has torch's own loop

    def __call__(self, *args: Any) -> None:
        """Run with the arguments of torch's loop; where its queues cannot be logged, as it is."""
        if not self.workers and torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            # a forked worker has its parent's running profiler, which would note every operator, for nobody
            torch.autograd._enable_record_function(False)  # type: ignore[attr-defined]
        loop = self.loop or _utils.worker._worker_loop
        try:
            given = bound_arguments(loop, *args)
            worker = "pin" if self.workers else given.arguments["worker_id"]
            log = FileLog(self.folder / f"{self.iterator}-{worker}", max(1, self.workers))
            if not self.workers:
                log.sampler = Sampler(often=0)  # there are many workers
                given.arguments["collate_fn"] = timed(given.arguments["collate_fn"], log.sampler)
                answering(given.arguments["data_queue"])
            for name in ("in_queue", "out_queue") if self.workers else ("index_queue", "data_queue"):
                given.arguments[name] = LoggedQueue(given.arguments[name], log)
        except (OSError, TypeError, KeyError, ValueError):  # nothing may keep it from its work
            loop(*args)
        else:
            loop(*given.args, **given.kwargs)


def can_record() -> str:
    """Return "" if this version of torch has the loops with the queues that are logged here, else what is missing."""
    wanted = {
        "worker._worker_loop": ("index_queue", "data_queue", "worker_id"),
        "pin_memory._pin_memory_loop": ("in_queue", "out_queue"),
    }
    for place, names in wanted.items():
        module, name = place.split(".")
        loop = getattr(getattr(_utils, module, None), name, None)
        known = inspect.signature(loop).parameters if loop else ()
        if missing := [each for each in names if each not in known]:
            return f"torch.utils.data._utils.{place}" + (f"({missing[0]}=…)" if loop else "")
    return ""


class LoggedQueue:
    """A queue that work comes out of, or that finished work goes into."""

    def __init__(self, queue: Any, log: FileLog) -> None:
        self._queue, self._log = queue, log

    def get(self, *args: Any, **options: Any) -> Any:
        """Take the next order; its work begins now."""
        order = self._queue.get(*args, **options)
        self._log.received(order, perf_counter_ns())
        return order

    def put(self, item: Any, *args: Any, **options: Any) -> None:
        """Send finished work; it ended now."""
        self._log.sent(item, perf_counter_ns())
        self._queue.put(item, *args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class FileLog:
    """Writes what is done to a file. Raises OSError if the file cannot be made; later errors end the log.

    Another epoch begins with so many `messages`: one to a worker, an answer of each worker to the pin thread.
    """

    def __init__(self, path: Path, messages: int = 1) -> None:
        path.touch(0o600)
        self._messages, self._seen = messages, 0
        self._open, self._begun = True, False
        self.sampler: Sampler | None = None
        self._path, self._lines = path, dict[str, int]()
        self._look = 0.0  # when the own memory is looked at next, s of perf_counter

    def received(self, order: Any, now: int) -> None:
        """Note an order: (index, …) is one to work on, None says to go, anything else is a message."""
        if order is None:
            self._write(What.LEFT, 0, now)
        elif isinstance(order, tuple) and isinstance(order[0], int):
            self._begun = os.path.exists(self._path.with_name(RUNNING))
            if self._begun:
                self._write(What.BEGAN, order[0], now)
            if self.sampler is not None:
                (self.sampler.begin if os.path.exists(self._path) else self.sampler.stop)()
        else:
            self._seen += 1

    def sent(self, item: Any, now: int) -> None:
        """Note a batch, an error, or that there is no more."""
        index, data = item
        if not (self._begun and isinstance(index, int)):  # an answer to the message of another epoch is no batch
            return
        if isinstance(data, ExceptionWrapper):
            self._write(What.FAILED, index, now)
        elif isinstance(data, _utils.worker._IterableDatasetStopIteration):
            self._write(What.EXHAUSTED, index, now)
        else:
            self._write(What.ENDED, index, now, size_of(data))

    def _place(self, what: What) -> tuple[int, int]:
        """Return what was done for the longest, and the number of its line in a file beside this one."""
        place = self.sampler.most() if self.sampler is not None and what != What.BEGAN else None
        if place is None:
            return 0, -1
        if place.line not in self._lines:
            self._lines[place.line] = len(self._lines)
            with open(f"{self._path}.lines", "a", encoding="utf-8") as file:
                file.write(f"{place.line}\n")
        return int(place.cause), self._lines[place.line]

    def _memory(self, what: What) -> int:
        """Return the bytes of the own memory after a batch, 0 if it is not looked at, which takes long for many."""
        begin = perf_counter()
        if self.sampler is None or what != What.ENDED or begin < self._look:
            return 0
        own, end = own_memory(), perf_counter()
        self._look = end + max(LOOK, RARE * (end - begin))
        return own

    def _write(self, what: What, index: int, now: int, size: int = -1) -> None:
        if self._open:
            try:
                epoch, used = self._seen // self._messages, usage()
                done = *self._place(what), self._memory(what), *used
                with FileIO(self._path, "r+") as file:  # not made anew where the recording is over
                    file.seek(0, os.SEEK_END)
                    file.write(RECORD.pack(what, epoch, index, now, size, *done))
            except (OSError, struct.error):
                self._open = False


def size_of(data: Any) -> int:
    """Return the bytes of a batch's tensors, -1 if they cannot be counted."""
    try:
        return nbytes(data)
    except Exception:  # a batch of the user's own kind may do anything; its size is not worth an error
        return -1


def read_files(folder: Path) -> tuple[list[Fetch], dict[int, int], list[int]]:
    """Return what the workers wrote to their files in `folder`: their work, and when the last of an iterator's left.

    The third is what the start of each worker took that began in this recording [ns of the processor]: its imports.

    A record that the death of its worker cut off is left out. An order that was never worked on (the epoch was over) is
    no work; the last one, if nothing came after it, is not ended: its worker is still at it, or died in it. An iterator
    of which a worker has not left has no entry in the second. What only passes through a pin thread is no work of it.
    """
    fetches: list[Fetch] = []
    last: dict[int, float] = {}
    costs = list[int]()
    for path in sorted(folder.iterdir()):
        match = re.fullmatch(r"(\d+)-(\d+|pin)", path.name)
        if match is None:
            continue
        iterator, pins = int(match[1]), match[2] == "pin"
        worker = -1 if pins else int(match[2])
        data, carried = path.read_bytes(), Carried()
        begun: tuple[int, ...] | None = None
        record: tuple[int, ...] = (-1, 0, 0, 0)
        named = path.with_name(f"{path.name}.lines")
        lines = [*(named.read_text(encoding="utf-8").splitlines() if named.exists() else []), ""]
        for place, record in enumerate(RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size])):
            what, epoch, index, time, size, cause, line, own, *used = record
            if not place and (what, epoch, index) == (What.BEGAN, 0, worker):  # its very first order
                since = Usage(*used)
                costs.append(since.others + since.busy - since.lacked)
            if begun is not None and (what == What.ENDED or (what == What.FAILED and not pins)):
                start, now, then = begun[3], Usage(*used), Usage(*begun[8:])
                waited, meanwhile = carried.due(now.waited(then, time - start)), now.since(then)
                at = Place(Cause(cause), lines[line]).seen(waited, meanwhile.busy)
                done = what == What.FAILED, waited, int(at.cause), at.line, meanwhile, own
                fetches.append(Fetch(iterator, worker, epoch, index, start, time, size, *done))
            begun = record if what == What.BEGAN else None  # of two beginnings in a row the first was not worked on
        if begun is not None:
            fetches.append(Fetch(iterator, worker, begun[1], begun[2], begun[3], None))
        if not pins:
            left = record[3] if record[0] == What.LEFT else math.inf
            last[iterator] = max(last.get(iterator, 0), left)
    return fetches, {iterator: int(time) for iterator, time in last.items() if time < math.inf}, costs
