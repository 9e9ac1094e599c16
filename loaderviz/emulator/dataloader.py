"""DataLoader in virtual time: real data from real workers, with the times that `Host` says they take.

The workers, the pin thread and the queues are torch's own; their data are real. What they would cost is worked out
when the main thread takes a batch: when its index was sent, when its worker was free, how long fetch and collate take
(and the sleeps in them), then the pin thread. So the picture is the same on every machine. With measured host times a
worker's real time is used instead.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import Subset, _utils
from torch.utils.data import dataloader as torch_dataloader

from loaderviz.contents import nbytes, sample_count, tensors
from loaderviz.emulator import costs
from loaderviz.emulator.torch_cuda.session import PIN_THREAD, Session
from loaderviz.emulator.torch_cuda.tags import HostTag, is_on_device, set_tag, storage_of, tag_of
from loaderviz.errors import NotModelledError
from loaderviz.timeline import Kind

if TYPE_CHECKING:
    from loaderviz.emulator.torch_cuda.patching import Patches

SECOND = 10**9


class Fetched:
    """What a worker sends in place of a bare batch: the batch, how many samples, and what it cost [ns].

    `batched` tells that the data set gave the whole batch at once.
    """

    def __init__(self, data: Any, samples: int, slept: int, took: int, batched: bool) -> None:
        self.data, self.samples, self.slept, self.took, self.batched = data, samples, slept, took, batched

    def pin_memory(self) -> Fetched:
        """Called by the pin thread."""
        if Session.active is None:  # the recording is over; there is nothing to pin for
            return self
        self.data = _utils.pin_memory.pin_memory(self.data)
        return self


def install(session: Session, patches: Patches) -> None:
    """Replace the parts of torch's DataLoader that fetch, pin and hand out."""
    single = torch_dataloader._SingleProcessDataLoaderIter
    several = torch_dataloader._MultiProcessingDataLoaderIter
    patches.set(_utils.worker, "_worker_loop", functools.partial(work, measured=session.measured))
    # Its warning is about this machine's cores; the workers' time is the emulated host's.
    patches.set(torch_dataloader.DataLoader, "check_worker_number_rationality", lambda loader: None)
    patches.set(_utils.pin_memory, "_pin_memory_loop", functools.partial(pin_loop, _utils.pin_memory._pin_memory_loop))
    patches.set(single, "_next_data", _single_next(session, single._next_data))
    patches.set(several, "__init__", _several_init(session, several.__init__))
    patches.set(several, "_reset", _several_reset(session, several._reset))
    patches.set(several, "_process_data", _several_process(session, several._process_data))


# In the worker process


def work(*args: Any, measured: bool) -> None:
    """Run torch's worker loop in the worker: outside the recording, with sleeps counted instead of slept.

    Forked or spawned, the worker has torch's own loop: a fork takes the recording's patches away.
    """
    slept = [0]
    if not measured:

        def count_sleep(seconds: float, /) -> None:
            slept[0] += round(seconds * SECOND)

        time.sleep = count_sleep  # type: ignore[assignment]
    create: Any = torch_dataloader._DatasetKind.create_fetcher

    def create_counting(*arguments: Any) -> Any:
        fetcher = create(*arguments)
        fetch = fetcher.fetch

        def counting(indices: Any) -> Fetched:
            slept[0], start = 0, perf_counter_ns()
            data = fetch(indices)
            took = perf_counter_ns() - start
            return Fetched(data, sample_count(indices, data), slept[0], took, is_batched(fetcher))

        fetcher.fetch = counting
        return fetcher

    torch_dataloader._DatasetKind.create_fetcher = staticmethod(create_counting)  # type: ignore[method-assign]
    _utils.worker._worker_loop(*args)


def pin_loop(loop: Callable[..., None], *args: Any) -> None:
    """Run torch's pin thread under a name by which the session knows it."""
    threading.current_thread().name = PIN_THREAD
    loop(*args)


# In the main process, without workers


def _single_next(session: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    def next_data(self: Any) -> Any:
        """Fetch a batch on the main thread (and pin it there, R45)."""
        if not session.in_recording_thread():
            return original(self)
        index = self._next_index()
        runtime, start, real = session.runtime, session.runtime.now, perf_counter_ns()
        if not hasattr(self, "_first_batch"):
            self._first_batch, self._fetched = session.batches.new_iterator(), 0
        batch = self._first_batch + self._fetched
        with session.fetching_data():
            data = self._dataset_fetcher.fetch(index)
        self._fetched += 1
        samples = sample_count(index, data)
        took = (
            perf_counter_ns() - real
            if session.measured
            else costs.fetch_time(runtime.host, samples, nbytes(data), batched=is_batched(self._dataset_fetcher))
        )
        runtime.now += took
        runtime.builder.span(
            start, runtime.now, runtime.main, Kind.FETCH, f"fetch batch {batch}", batch=batch, nbytes=nbytes(data)
        )
        mark(session, data, batch)
        if self._pin_memory:
            data = _utils.pin_memory.pin_memory(data, self._pin_memory_device)
        session.leave()
        session.batches.handed_out(batch, samples)
        return data

    return next_data


# In the main process, with workers


class Schedule:
    """When each batch of one epoch was ordered, fetched and pinned, in virtual time.

    torch orders `prefetch_factor` batches from each worker when the epoch begins, and one more at each hand-out.
    """

    def __init__(self, session: Session, iterator: Any, former: Schedule | None) -> None:
        self.session, self.begun = session, session.runtime.now
        self.depth = iterator._prefetch_factor * iterator._num_workers
        self.pins = iterator._pin_memory
        self.first_batch = session.batches.new_iterator()
        self.handed_out: list[int] = []  # when
        self.free: list[int] = [self.begun] * iterator._num_workers  # when each worker is
        self.pin_free: int = self.begun
        if former is not None and former.session is session:  # the same workers go on
            self.free, self.pin_free = former.free, former.pin_free

    def arrive(self, fetched: Fetched, worker: int) -> None:
        """The main thread takes a batch: draw what led to it, and wait until it is there."""
        session, runtime, count = self.session, self.session.runtime, len(self.handed_out)
        session.late.let_go()
        session.give_back()
        batch, size = self.first_batch + count, nbytes(fetched.data)
        ordered = self.begun if count < self.depth else self.handed_out[count - self.depth]
        start = max(ordered, self.free[worker])
        cost = costs.fetch_time(runtime.host, fetched.samples, size, batched=fetched.batched) + fetched.slept
        ready = self.free[worker] = start + (fetched.took if session.measured else cost)
        lane = runtime.builder.lane(f"worker {worker}", "host", "worker", worker)
        runtime.builder.span(start, ready, lane, Kind.FETCH, f"fetch batch {batch}", batch=batch, nbytes=size)
        mark(session, fetched.data, batch)
        if self.pins:
            ready = self._pin(batch, fetched.data, ready)
        runtime.batch, runtime.source = batch, session.source()
        if ready > runtime.now:
            runtime.wait_for_data(ready)
        start = runtime.now
        runtime.now += runtime.host.hand_out
        runtime.builder.span(start, runtime.now, runtime.main, Kind.OPERATOR, "DataLoader hand-out", batch=batch)
        self.handed_out.append(runtime.now)
        session.batches.handed_out(batch, fetched.samples)

    def _pin(self, batch: int, data: Any, ready: int) -> int:
        """The pin thread copies the batch into pinned memory; batches go through it in order (R45)."""
        runtime, start = self.session.runtime, max(ready, self.pin_free)
        locked = 0
        for tensor in tensors(data):
            tag = tag_of(tensor)
            if type(tag) is HostTag and tag.pinned and tag.block is None:
                tag.block, cost = self.session.pinned.allocate_at(storage_of(tensor).nbytes(), start)
                locked += cost
        self.pin_free = start + locked + costs.host_time(runtime.host, 2 * nbytes(data))
        lane = runtime.builder.lane("pin thread", "host", "pin")
        runtime.builder.span(
            start, self.pin_free, lane, Kind.PIN, f"pin batch {batch}", batch=batch, nbytes=nbytes(data), pinned=True
        )
        return self.pin_free


class RecordedIter(torch_dataloader._MultiProcessingDataLoaderIter):
    """An iterator whose workers were started in a recording: they send `Fetched`, also when the recording is over."""

    def _process_data(self, data: Any, *args: Any) -> Any:
        if isinstance(data, Fetched) and not (Session.active and Session.active.in_recording_thread()):
            data = data.data
        return super()._process_data(data, *args)  # type: ignore[no-untyped-call]


RecordedIter.__name__ = torch_dataloader._MultiProcessingDataLoaderIter.__name__  # it is in the name of torch's range


def _several_init(session: Session, original: Callable[..., None]) -> Callable[..., None]:
    def init(self: Any, loader: Any) -> None:
        """Start the workers: each costs the main thread the start of a process."""
        if not loader.in_order:
            self._shutdown = True  # nothing to shut down when it is thrown away
            raise NotModelledError(
                "DataLoader(in_order=False) is not modelled: which batch comes first would depend on this machine; "
                "use in_order=True"
            )
        self.__class__ = RecordedIter
        if session.in_recording_thread():
            session.enter("DataLoader")
            runtime, workers = session.runtime, loader.num_workers
            runtime.batch, runtime.source = -1, session.source()
            runtime.host_work(runtime.host.worker_start * workers, f"start {workers} workers", Kind.OPERATOR)
        else:
            session.note("a DataLoader was iterated in a second thread: its fetches are not in the timeline")
        original(self, loader)
        session.leave()

    return init


def _several_reset(session: Session, original: Callable[..., None]) -> Callable[..., None]:
    def reset(self: Any, loader: Any, first_iter: bool = False) -> None:
        """Begin an epoch: orders for the first batches go out."""
        if session.in_recording_thread():
            self._schedule = Schedule(session, self, getattr(self, "_schedule", None))
        original(self, loader, first_iter)

    return reset


def _several_process(session: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    def process(self: Any, data: Any, worker: int, *args: Any) -> Any:
        """Hand a batch out: its costs first, then the next order goes to a worker."""
        if not session.in_recording_thread() or isinstance(data, ExceptionWrapper):
            return original(self, data, worker, *args)
        if not isinstance(data, Fetched):  # from workers that are older than the recording
            data = Fetched(data, sample_count((), data), 0, 0, False)
        session.enter("DataLoader")
        schedule = getattr(self, "_schedule", None)
        if schedule is None or schedule.session is not session:
            schedule = self._schedule = Schedule(session, self, None)
        schedule.arrive(data, worker)
        session.leave()
        return original(self, data.data, worker, *args)

    return process


# Batches


def is_batched(fetcher: Any) -> bool:
    """Tell whether a fetcher asks its data set for whole batches: `batch_size=None`, or `__getitems__`."""
    dataset = fetcher.dataset
    while isinstance(dataset, Subset):  # it has `__getitems__`, and passes the question on
        dataset = dataset.dataset
    return not fetcher.auto_collation or bool(getattr(dataset, "__getitems__", None))


def mark(session: Session, data: Any, batch: int) -> None:
    """Let the tensors of a batch carry its number."""
    with session.bookkeeping(), torch._C.DisableTorchFunction():
        for tensor in tensors(data):
            if tensor.layout is not torch.strided or is_on_device(tensor):
                continue
            tag = session.host_tag(tensor)
            if tag is None:
                set_tag(tensor, HostTag(session, batch))
            else:
                tag.batch = batch
