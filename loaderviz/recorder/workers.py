"""When the DataLoader's workers fetch and its pin thread pins, taken where it happens. No profiler sees these.

While a recording runs, `RecordedWorker` stands in the place of torch's `_worker_loop`, and `RecordedPinThread` in that
of `_pin_memory_loop`. Each runs torch's own loop, with stand-ins for its queues that note the time: an order that comes
out of the first queue begins a fetch, a batch that goes into the second ends it. Nothing else changes.

A worker writes records of five int64 to a file of its own, so that they outlive its death; it stops when the file is
deleted, which is how a recording ends for workers that live on. Times are of `perf_counter_ns`, one clock for all
processes of a computer. With spawn and forkserver the worker imports this module: it must stay light.
"""

from __future__ import annotations

import inspect
import os
import struct
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import _utils

from loaderviz.contents import nbytes
from loaderviz.recorder.fetches import RECORD, Fetch, What, file_name


class RecordedWorker:
    """Stands in the place of `_worker_loop`: torch's loop, with its queues watched. Picklable, for spawn."""

    def __init__(self, folder: str, iterator: int, loop: Callable[..., None] | None) -> None:
        self.folder, self.iterator, self.loop = folder, iterator, loop

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "iterator": self.iterator, "loop": None}  # a new process has torch's own loop

    def __call__(self, *args: Any) -> None:
        """Run in the worker process, with the arguments of torch's loop."""
        _leave_profiler()
        loop = self.loop or _utils.worker._worker_loop
        try:
            given = inspect.signature(loop).bind(*args)
            log = FileLog(Path(self.folder) / file_name(self.iterator, given.arguments["worker_id"]))
            queues = given.arguments["index_queue"], given.arguments["data_queue"]
            given.arguments["index_queue"], given.arguments["data_queue"] = Orders(queues[0], log), Sent(queues[1], log)
        except (OSError, TypeError, KeyError, ValueError):  # nothing may keep the worker from its work
            loop(*args)
        else:
            loop(*given.args, **given.kwargs)


class RecordedPinThread:
    """Stands in the place of `_pin_memory_loop`; the work done is appended to `log` as `Fetch`."""

    def __init__(self, log: list[Fetch], iterator: int, workers: int, loop: Callable[..., None]) -> None:
        self.log, self.iterator, self.workers, self.loop = log, iterator, workers, loop

    def __call__(self, *args: Any) -> None:
        """Run in the pin thread, with the arguments of torch's loop."""
        try:
            given = inspect.signature(self.loop).bind(*args)
            log = ListLog(self.log, self.iterator, self.workers)
            queues = given.arguments["in_queue"], given.arguments["out_queue"]
            given.arguments["in_queue"], given.arguments["out_queue"] = Orders(queues[0], log), Sent(queues[1], log)
        except (TypeError, KeyError, ValueError):
            self.loop(*args)
        else:
            self.loop(*given.args, **given.kwargs)


def can_record() -> str:
    """Return "" if this version of torch has the loops with the queues that are watched here, else what is missing."""
    wanted = {
        "torch.utils.data._utils.worker._worker_loop": ("index_queue", "data_queue", "worker_id"),
        "torch.utils.data._utils.pin_memory._pin_memory_loop": ("in_queue", "out_queue"),
    }
    for place, names in wanted.items():
        module, name = place.removeprefix("torch.utils.data._utils.").split(".")
        loop = getattr(getattr(_utils, module, None), name, None)
        if loop is None:
            return place
        missing = [each for each in names if each not in inspect.signature(loop).parameters]
        if missing:
            return f"{place}({missing[0]}=…)"
    return ""


def _leave_profiler() -> None:
    """A forked worker has its parent's running profiler, which would note every operator, for nobody."""
    if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
        torch.autograd._enable_record_function(False)  # type: ignore[attr-defined]


# Queues


class Orders:
    """A queue that work comes out of."""

    def __init__(self, queue: Any, log: FileLog | ListLog) -> None:
        self._queue, self._log = queue, log

    def get(self, *args: Any, **options: Any) -> Any:
        """Take the next order; its work begins now."""
        order = self._queue.get(*args, **options)
        self._log.received(order, perf_counter_ns())
        return order

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class Sent:
    """A queue that finished work goes into."""

    def __init__(self, queue: Any, log: FileLog | ListLog) -> None:
        self._queue, self._log = queue, log

    def put(self, item: Any, *args: Any, **options: Any) -> None:
        """Send finished work; it ended now."""
        self._log.sent(item, perf_counter_ns())
        self._queue.put(item, *args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class FileLog:
    """Writes what a worker does to its file. Raises OSError if the file cannot be made; later errors end the log."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o600)
        self._epoch = 0
        self._open = True

    def received(self, order: Any, now: int) -> None:
        """Note an order: (index, …) is one to fetch, None says to go, anything else begins another epoch."""
        if order is None:
            self._write(What.LEFT, 0, now, -1)
        elif isinstance(order, tuple):
            self._write(What.BEGAN, order[0], now, -1)
        else:
            self._epoch += 1

    def sent(self, item: Any, now: int) -> None:
        """Note a batch, an error, or that there is no more."""
        index, data = item
        if not isinstance(index, int):  # an answer to the message of another epoch
            return
        if isinstance(data, ExceptionWrapper):
            self._write(What.FAILED, index, now, -1)
        elif isinstance(data, _utils.worker._IterableDatasetStopIteration):
            self._write(What.EXHAUSTED, index, now, -1)
        else:
            self._write(What.ENDED, index, now, size_of(data))

    def _write(self, what: What, index: int, now: int, size: int) -> None:
        if not self._open:
            return
        try:
            self._open = os.fstat(self._file).st_nlink > 0  # deleted: the recording is over
            os.write(self._file, RECORD.pack(what, self._epoch, index, now, size))
        except (OSError, struct.error):
            self._open = False


class ListLog:
    """Notes what the pin thread does; errors and messages that only pass through it are no work."""

    def __init__(self, fetches: list[Fetch], iterator: int, workers: int) -> None:
        self._fetches, self._iterator, self._workers = fetches, iterator, workers
        self._answers = self._start = 0

    def received(self, order: Any, now: int) -> None:
        """Note when a batch comes in. Each worker answers the message of another epoch; all of them make one epoch."""
        self._start = now
        if isinstance(order, tuple) and isinstance(order[0], _utils.worker._ResumeIteration):
            self._answers += 1

    def sent(self, item: Any, now: int) -> None:
        """Note that the batch is pinned."""
        index, data = item
        stop = _utils.worker._IterableDatasetStopIteration
        if isinstance(index, int) and not isinstance(data, (ExceptionWrapper, stop)):
            epoch = self._answers // self._workers
            self._fetches.append(Fetch(self._iterator, -1, epoch, index, self._start, now, size_of(data), False))


def size_of(data: Any) -> int:
    """Return the bytes of a batch's tensors, -1 if they cannot be counted."""
    try:
        return nbytes(data)
    except Exception:  # a batch of the user's own kind may do anything; its size is not worth an error
        return -1
