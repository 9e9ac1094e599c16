"""What the main thread's DataLoaders do while a real run is recorded, told to the profiler as ranges.

Torch's own parts are wrapped, not replaced: each wrapper enters a range (`record_function`), calls the original, and
counts. The ranges are named "loaderviz|12|waiting for data", with the batch they are for; `merge` gives them the names
and kinds that the emulated DataLoader uses. What workers and pin thread do comes with `Loading.seen`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import wraps
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.profiler import record_function
from torch.utils.data import _utils
from torch.utils.data import dataloader as torch_dataloader

from loaderviz.contents import sample_count
from loaderviz.loaders import marks
from loaderviz.numbering import Numbering
from loaderviz.recorder import workers
from loaderviz.recorder.fetches import Fetch, read_files
from loaderviz.recorder.merge import Own, own_name
from loaderviz.recorder.window import Window

_NOTHING: AbstractContextManager[object] = nullcontext()
_OLD = "a DataLoader was being iterated when the recording began: the work of its workers is not in the timeline"
_OTHER_THREAD = "a DataLoader was iterated in a second thread: its batches do not count as steps"


class Feed:
    """What is known of one iterator of a DataLoader. `number` is None if its workers are older than the recording."""

    def __init__(self, number: int | None = None) -> None:
        self.number = number
        self.epoch = -1
        self.first = self.count = 0  # number of the epoch's first batch, batches handed out since
        self.sizes: list[int] = []  # samples in each order of this epoch, 0: not told by its indices
        self.received = 0  # index of the last batch that came
        self.nested: bool | None = None  # one of loaderviz's loaders draws from it, and marks the steps itself

    @property
    def batch(self) -> int:
        """The number of the batch that is handed out next."""
        return self.first + self.count

    def begin_epoch(self, first: int) -> None:
        """Count from the first order again."""
        self.epoch, self.first, self.count = self.epoch + 1, first, 0
        self.sizes.clear()


class Loading:
    """Wraps torch's DataLoader for one recording. `live` says whether the profiler runs at the moment.

    `batches` maps (iterator, epoch, order) to the number under which a batch was handed out, `nbytes` such a number to
    the bytes of a batch that the main thread fetched itself.
    """

    def __init__(self, folder: Path, window: Window) -> None:
        self.live = False
        self.batches: dict[tuple[int, int, int], int] = {}
        self.nbytes: dict[int, int] = {}
        self.notes: dict[str, None] = {}
        self._folder, self._window = folder, window
        self._numbering = Numbering()
        self._feeds: WeakKeyDictionary[Any, Feed] = WeakKeyDictionary()
        self._pinned: list[Fetch] = []
        self._iterators = 0
        self._building = threading.RLock()
        self._thread, self._process = threading.get_ident(), os.getpid()
        self._fetching: Feed | None = None  # whose batch the main thread prepares itself

    def install(self, stack: ExitStack) -> None:
        """Wrap the parts of torch that are there; `stack` puts them back."""
        every, several = torch_dataloader._BaseDataLoaderIter, torch_dataloader._MultiProcessingDataLoaderIter
        parts: list[tuple[Any, str, Any]] = [
            (every, "__next__", self._next), (every, "_next_index", self._next_index),
            (_utils.fetch._MapDatasetFetcher, "fetch", self._fetch),
            (_utils.fetch._IterableDatasetFetcher, "fetch", self._fetch),
            (several, "_reset", self._reset), (several, "_get_data", self._get_data),
            (several, "_process_data", self._process_data), (several, "__init__", self._start_workers),
        ]  # fmt: skip
        lacking = [name for owner, name, _ in parts if not callable(getattr(owner, name, None))]
        if missing := ", ".join(lacking) or workers.can_record():
            self.note(f"torch {torch.__version__} has no {missing}: the DataLoader's work is not in the timeline")
        else:
            for owner, name, wrapper in parts:
                _replace(stack, owner, name, wrapper(getattr(owner, name)))
        _replace(stack, marks, "on_batch", self._marked)
        _replace(stack, marks, "on_prefetch", self._prefetching)

    def seen(self, readings: Sequence[tuple[int, int, int]]) -> Own:
        """Return what was noted beside the profiler; `readings` are those of our clock."""
        fetches, left = read_files(self._folder)
        return Own(readings, [*fetches, *self._pinned], left, self.batches, self.nbytes)

    def note(self, text: str) -> None:
        """Add a line to the timeline's notes, once."""
        self.notes.setdefault(text)

    def say(self, name: str, batch: int = -1) -> AbstractContextManager[object]:
        """Return the range to enter around what the main thread does for a batch."""
        return record_function(own_name(name, batch)) if self.live and self._here() else _NOTHING

    # What torch's parts are wrapped in. `iterator` is a DataLoader's iterator.

    def _next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def next_batch(iterator: Any) -> Any:
            if os.getpid() != self._process:
                return original(iterator)
            feed = self._feed(iterator)
            outer, self._fetching = self._fetching, feed if self._here() else self._fetching
            try:
                data = original(iterator)
            finally:
                self._fetching = outer
            self._handed_out(feed, iterator, data)
            return data

        return next_batch

    def _next_index(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def next_index(iterator: Any) -> Any:
            index = original(iterator)
            told = isinstance(index, Sequence) and index and index[0] is not None
            self._feed(iterator).sizes.append(len(index) if told else 0)
            return index

        return next_index

    def _fetch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def fetch(fetcher: Any, indices: Any) -> Any:
            """Prepare a batch on the main thread; workers that were forked come here, too."""
            feed = self._fetching
            if feed is None or os.getpid() != self._process or not self._here():
                return original(fetcher, indices)
            with self.say(f"fetch batch {feed.batch}", feed.batch):
                data = original(fetcher, indices)
            if self.live:
                self.nbytes[feed.batch] = workers.size_of(data)
            return data

        return fetch

    def _start_workers(self, original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def init(iterator: Any, loader: Any) -> None:
            """Start workers and pin thread with our stand-ins in the place of torch's loops."""
            with self._building, ExitStack() as stack:
                number, self._iterators = self._iterators, self._iterators + 1
                self._feeds[iterator] = Feed(number)
                work = workers.RecordedWorker(str(self._folder), number, _utils.worker._worker_loop)
                loop = _utils.pin_memory._pin_memory_loop
                pin = workers.RecordedPinThread(self._pinned, number, loader.num_workers, loop)
                _replace(stack, _utils.worker, "_worker_loop", work)
                _replace(stack, _utils.pin_memory, "_pin_memory_loop", pin)
                with self.say(f"start {loader.num_workers} workers"):
                    original(iterator, loader)

        return init

    def _reset(self, original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def reset(iterator: Any, *args: Any, **options: Any) -> None:
            """Begin an epoch: the first orders go out."""
            self._feed(iterator).begin_epoch(self._numbering.new_iterator())
            original(iterator, *args, **options)

        return reset

    def _get_data(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def get_data(iterator: Any) -> Any:
            """Take what comes next; the host waits if there is nothing yet."""
            feed = self._feed(iterator)
            with self.say("waiting for data", feed.batch) if iterator._data_queue.empty() else _NOTHING:
                index, data = original(iterator)
            feed.received = index
            return index, data

        return get_data

    def _process_data(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def process_data(iterator: Any, *args: Any) -> Any:
            """Send the next order, and give the batch out."""
            with self.say("DataLoader hand-out", self._feed(iterator).batch):
                return original(iterator, *args)

        return process_data

    # Counting

    def _feed(self, iterator: Any) -> Feed:
        feed = self._feeds.get(iterator)
        if feed is None:  # without workers, or older than the recording
            feed = self._feeds[iterator] = Feed()
            feed.begin_epoch(self._numbering.new_iterator())
            if hasattr(iterator, "_workers"):
                self.note(_OLD)
        return feed

    def _handed_out(self, feed: Feed, iterator: Any, data: Any) -> None:
        batch, index = feed.batch, _index(feed, iterator)
        feed.count += 1
        self._numbering.used(batch)
        if feed.number is not None:
            self.batches[feed.number, feed.epoch, index] = batch
        if not self._here():
            self.note(_OTHER_THREAD)
            return
        if feed.nested is None:
            feed.nested = _drawn_by_a_loader()
        if not feed.nested:
            self._window.batch()
            size = feed.sizes[index] if index < len(feed.sizes) else 0
            with self.say(f"batch {batch}: {size or sample_count((), data)} samples", batch):
                pass

    def _marked(self, index: int, samples: int) -> None:
        """One of our loaders hands out its batch `index` of this epoch."""
        batch = self._numbering.number_of(index, "batch")
        if self._here():
            self._window.batch()
            if self.live:
                with record_function(f"batch {batch}: {samples} samples"):
                    pass

    def _prefetching(self, index: int) -> AbstractContextManager[object]:
        batch = self._numbering.number_of(index, "prefetch")
        return record_function(f"prefetch of batch {batch}") if self.live and self._here() else _NOTHING

    def _here(self) -> bool:
        """Tell whether the thread that is recorded is calling."""
        return threading.get_ident() == self._thread and os.getpid() == self._process


def _index(feed: Feed, iterator: Any) -> int:
    """Return the order that the batch just handed out was for."""
    if not hasattr(iterator, "_workers"):
        return feed.count
    return feed.received if not getattr(iterator, "_in_order", True) else int(iterator._rcvd_idx) - 1


def _drawn_by_a_loader() -> bool:
    """Tell whether one of loaderviz's loaders is among the callers."""
    frame = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("loaderviz.loaders."):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _replace(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Set `owner.name` until the stack is unwound."""
    stack.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)
