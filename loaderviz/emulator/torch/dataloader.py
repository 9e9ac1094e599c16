"""DataLoader in virtual time: real data from real workers, with the times that `Host` says they take.

The workers, the pin thread and the queues are torch's own; their data are real. What they would cost is worked out
when the main thread takes a batch: when its index was sent, when its worker was free, how long fetch and collate take
(and the sleeps in them), then the pin thread. So the picture is the same on every machine.

Of a data set's own work, operators of torch cost their bytes, FLOPs and dispatch; taking samples and stacking them is
in `Host.fetch_per_byte`; all else (PIL, numpy, Python) costs what `loaderviz.costs` declares for it, or what a table of
hardware.toml says. Where it is `measured` (host="auto"), the whole fetch costs the processor time that it takes, and
what is declared in it. What is read of a file that `open` opened in a fetch costs the disk, until as much as the file
has was read; then it is in the page cache. Not modelled: pages of a mapped file and files that C libraries open
(declare what they take), locks in C such as HDF5's, and the longer start of spawned workers.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import mmap
import multiprocessing.queues
import multiprocessing.reduction
import os
import stat
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from time import process_time_ns
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.multiprocessing import reductions
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import Subset, TensorDataset, _utils
from torch.utils.data import dataloader as torch_dataloader

from loaderviz import words
from loaderviz.batches import NOT_HANDED_OUT, given_twice, nbytes, sample_count, tensors
from loaderviz.emulator import host as declarations
from loaderviz.emulator.hardware import DATA, FULL, SECOND, Host, Parcel
from loaderviz.emulator.host import LoaderSchedule, Locks, Reads, Waited, processor_time, waiting_time
from loaderviz.emulator.kept import kept_workers
from loaderviz.emulator.torch import internals
from loaderviz.emulator.torch.locks import JITTER, Holdings, look, look_in_worker
from loaderviz.emulator.torch.operators import Operator, host_work
from loaderviz.emulator.torch.patches import REAL_TIME, Guard, Patches, touches_device
from loaderviz.emulator.torch.session import PIN_THREAD, Session
from loaderviz.emulator.torch.tensors import AT_REST, HostTag, is_on_device, set_tag, storage_of, tag_of
from loaderviz.errors import NotModelledError, reraise
from loaderviz.imports import answering, bound_arguments, held, starting
from loaderviz.machine import Carried, thread_time_ns, tick
from loaderviz.stations import Place, Sampler, place_of, stack_of, timed, timing
from loaderviz.timeline import Cause, Kind

STATEFUL = "torchdata.stateful_dataloader.stateful_dataloader"  # forked from torch's module of iterators
ELSEWHERE = (
    "a DataLoader was iterated in a second thread: its fetches and the numbers of its batches are not in the timeline"
)

THREADS = (
    "a DataLoader's workers are threads, by its multiprocessing_context {}: that is not modelled; let them be "
    "processes, or load with num_workers=0 in a thread of your own"
)
TRIES = (
    "the data set tries a lock without waiting for it, or not for long. This machine decides whether it gets the lock, "
    "so this timeline is not the same in every run"
)

TELLS_OF_WORKERS = 2 * _utils.MP_STATUS_CHECK_INTERVAL  # seconds; torch's main thread looks after them that often


@dataclass
class Fetched:
    """What a worker sends in place of a bare batch: the batch, how many samples, and what its `Meter` counted [ns].

    `batched` tells that the data set gave the whole batch at once; `files` are those it read.
    Where it is measured, `spun` is at most what its threads took to wait for each other, `sent` what the worker's
    other threads took since the batch before, which is to send batches, and `received` what taking it took. `here` is
    what all of the fetch, with the emulator's part, took of this machine's processor. `locks` of multiprocessing, and
    of files, are what the fetch had for so long; of `waited` it was `queued` for them. It `tries` one in vain.
    """

    data: Any
    samples: int
    slept: int = 0
    work: int = 0
    unpriced: int = 0
    waited: int = 0
    spun: int = 0
    batched: bool = False
    files: Reads = ()
    sent: int = 0
    received: int = 0
    here: int = 0
    place: Place | None = None
    locks: Locks = ()
    queued: int = 0
    tries: bool = False
    parcel: Parcel | None = None

    @classmethod
    def by(cls, fetcher: Any, indices: Any, data: Any, meter: Meter) -> Fetched:
        """Note what a fetcher's fetch cost, which the meter has counted."""
        dataset, unpriced = fetcher.dataset, 0 if is_priced(fetcher.dataset) else meter.unpriced
        while isinstance(dataset, Subset):  # it has `__getitems__`, and passes the question on
            dataset = dataset.dataset
        batched = not fetcher.auto_collation or bool(getattr(dataset, "__getitems__", None))
        samples = sample_count(indices, data)
        given = len(indices) if fetcher.auto_collation else int(indices != ())  # nothing is, where the fetch has failed
        taking = meter.taking(min(1, given) if batched else given)
        return cls.of(meter, data, samples, batched=batched, taking=taking, unpriced=unpriced)

    @classmethod
    def of(cls, meter: Meter, data: Any, samples: int, *, batched: bool, taking: int, unpriced: int) -> Fetched:
        """Note what the meter has counted."""
        counted = meter.slept, meter.work + taking, unpriced, *meter.waited
        locks, queued = meter.locks.held(), min(meter.waited.time, meter.locks.waited)
        return cls(
            data, samples, *counted, batched, meter.files,
            here=meter.here, place=meter.place, locks=locks, queued=queued, tries=meter.locks.tried,
        )  # fmt: skip

    def after(self, begun: Fetched) -> Fetched:
        """Add what the worker did before its first order, which waits for that."""
        lasts, lasted = (each.slept + each.work + each.waited for each in (self, begun))
        self.place = self.place if lasts > lasted else begun.place or self.place
        for name in ("slept", "work", "unpriced", "waited", "spun", "here", "queued", "tries", "files", "locks"):
            setattr(self, name, getattr(begun, name) + getattr(self, name))
        return self

    def pin_memory(self) -> Fetched:
        """Called by the pin thread."""
        if Session.active is not None:  # else the recording is over; there is nothing to pin for
            self.parcel = parcel_of(self.data, Session.active.sent_whole)  # what is pinned has another storage
            self.data = _utils.pin_memory.pin_memory(self.data)
        return self


def is_priced(dataset: Any) -> bool:
    """Tell whether `Host.fetch_*` are for this data set, so that no time of its own is left without a price."""
    return type(dataset) is TensorDataset or type(dataset).__module__.startswith("loaderviz.")


def install(session: Session, patches: Patches) -> None:
    """Replace the parts that fetch, pin and hand out of torch's DataLoader and, once it is imported, of torchdata's."""
    iterators, waiting = Iterators(session), [STATEFUL]
    patches.pricing.at_end(functools.partial(processor_time.watch, False))
    processor_time.watch()
    if session.measured:
        session.sampler = session.meter.sampler = Sampler(lambda: session.runtime.now, own=True)
        patches.pricing.at_end(session.sampler.stop)
        patches.pricing.around(multiprocessing.queues.Queue, "get")(iterators.receive)
    patches.around(multiprocessing.reduction, "dump")(iterators.pickle)

    def look(loader: Any = None) -> None:  # each DataLoader calls it when it is made
        if waiting and STATEFUL in sys.modules:
            iterators.install(patches, sys.modules[waiting.pop()], "_Stateful")

    # A function would stand aside in the forked worker, where the recording is over; a partial is put there as it is.
    patches.set(_utils.pin_memory, "_pin_memory_loop", functools.partial(pin_loop, _utils.pin_memory._pin_memory_loop))
    # Its warning is about this machine's cores; the workers' time is the emulated host's.
    patches.set(torch_dataloader.DataLoader, "check_worker_number_rationality", look)
    patches.around(ExceptionWrapper, "reraise")(reraise)
    iterators.install(patches, torch_dataloader, "_")
    look()


# In the worker process


def work(module: str, host: Host, measured: bool, *args: Any) -> None:
    """Run a module's worker loop in the worker, which has torch's own, with sleeps counted instead of slept."""
    processor_time.watch()
    look_in_worker()
    meter = Meter(host, measured)
    meter.sampler = Sampler(often=0) if measured else None  # there are many workers
    for guard in _get_current_function_mode_stack():
        if isinstance(guard, Guard):
            guard.touches = functools.partial(meter.touches, asks=guard.touches)
    create: Any = torch_dataloader._DatasetKind.create_fetcher
    before, begun = others_time(), list[Fetched]()

    def begin(function: Callable[..., Any], *arguments: Any) -> Any:
        if measured and not meter.is_calibrated:
            meter.calibrate()
        with meter:
            result = function(*arguments)
        begun.append(Fetched.of(meter, None, 0, batched=False, taking=0, unpriced=meter.unpriced))
        return result

    def create_counting(kind: Any, *arguments: Any) -> Any:
        if sys._getframe(1).f_code.co_name != "_worker_loop":  # of a DataLoader within the data set: a part of a fetch
            return create(kind, *arguments)
        iterable = kind == torch_dataloader._DatasetKind.Iterable  # whose `__iter__` is called now
        fetcher = begin(create, kind, *arguments) if iterable else create(kind, *arguments)
        if not meter.is_calibrated and (measured or not is_priced(fetcher.dataset)):
            meter.calibrate()
        fetcher.collate_fn = timed(fetcher.collate_fn, meter.sampler)
        fetch = fetcher.fetch

        def counting(indices: Any) -> Fetched:
            nonlocal before
            with meter:
                data = fetch(indices)
            fetched = Fetched.by(fetcher, indices, data, meter)
            while begun:
                fetched = fetched.after(begun.pop())
            fetched.sent = max(0, others_time() - before)  # clocks tick apart: what is less than nothing is carried on
            before += fetched.sent
            return fetched

        fetcher.fetch = counting
        return fetcher

    loop = importlib.import_module(module)._worker_loop
    bound = bound_arguments(loop, *args)
    answering(bound.arguments["data_queue"])
    if (init := bound.arguments["init_fn"]) is not None:
        bound.arguments["init_fn"] = functools.partial(begin, init)
    with (  # the process may be another worker after this one
        held(time, "sleep", functools.partial(meter.count_sleep, time.sleep)),
        held(torch_dataloader._DatasetKind, "create_fetcher", staticmethod(create_counting)),
    ):
        loop(*bound.args, **bound.kwargs)


def others_time() -> int:
    """Return the processor time [ns] of this process's other threads: in a worker those that send batches."""
    return process_time_ns() - thread_time_ns()


def pin_loop(loop: Callable[..., None], *args: Any) -> None:
    """Run torch's pin thread under a name by which the session knows it.

    What a worker sent cannot be received once it is gone. The main thread, which sees which one is, says so, or it
    stops itself: only if it does neither is this error told.
    """
    threading.current_thread().name = PIN_THREAD
    try:
        loop(*args)
    except (ConnectionError, FileNotFoundError, EOFError):
        if not bound_arguments(loop, *args).arguments["done_event"].wait(TELLS_OF_WORKERS):
            raise


# In the main process


class Schedule(LoaderSchedule):
    """The schedule of one epoch of a DataLoader, whose data are real."""

    def __init__(self, session: Session, iterator: Any, former: Schedule | None) -> None:
        same = former if former is not None and former.session is session else None  # the same workers go on
        self.session: Session = session
        self.pins = iterator._pin_memory
        self.batch = session.new_iterator(iterator)  # the next one
        self.firsts = dict[int, bytes]()  # of an IterableDataset, what each worker gave first
        self.order: int | None = None  # of the batch that is about to be handed out, if not the oldest
        super().__init__(session.runtime, iterator._num_workers, iterator._prefetch_factor, self.batch, same)

    def arrive(self, fetched: Fetched, worker: int, order: int) -> None:
        """The main thread takes the batch of an order: draw what led to it, and wait until it is there."""
        session, runtime, batch = self.session, self.runtime, self.batch
        session.deferred.let_go()
        session.give_back()
        size, host = nbytes(fetched.data), runtime.host
        queued = self.queue(worker, order, fetched.locks)
        if queued[0]:  # on this machine, too, it waited for the other workers
            fetched.waited -= fetched.queued
        self._note_locks(fetched)
        parcel = fetched.parcel or parcel_of(fetched.data, session.sent_whole)
        took, receiving = session.fetched(fetched, size, parcel), fetched.received
        sent = host.fetch_base + fetched.sent  # the queue
        if not session.measured:
            sent, receiving = host.sending(parcel), host.receiving(parcel)
            self.kept = (len(self.ordered) - batch + self.first + 1) * parcel.shared
            if host.shm and (most := runtime.shared.batches) > host.shm:
                session.note(
                    f"the workers' batches take up to {words.size(most)} of shared memory (/dev/shm), and this host "
                    f"has {words.size(host.shm)} of it for a process: a worker would die of a bus error there"
                )
        session.sent, session.fetched_by_workers = session.sent + sent, session.fetched_by_workers + took + sent
        waited = fetched.waited if session.measured else 0
        does, line = fetched.place or (Cause.NONE, "")
        ready = self.fetch(
            batch, worker, took + sent, size, line, fetched.slept, waited, fetched.files, order, does,
            queued=queued,
        )  # fmt: skip
        pins = self.pins and not (size and self._is_left(fetched.data))
        mark(session, fetched.data, batch, new=not pins)
        if pins:
            ready = self.pin(batch, ready, size, lambda start: self._locking(fetched.data, start), receiving)
            receiving = 0
        runtime.batch, runtime.source = batch, session.source()
        self.hand_out(ready, receiving)
        self.batch += 1
        if not session.fetching:  # by a DataLoader within a data set
            session.batches.handed_out(batch, fetched.samples)

    def _note_locks(self, fetched: Fetched) -> None:
        if line := max(fetched.locks, key=lambda lock: lock[2], default=("", 1, 0, ""))[-1]:
            self.session.faults.setdefault(f"shared-lock {line}")
        if fetched.tries:
            self.session.note(TRIES)

    def _is_left(self, data: Any) -> bool:
        """Tell whether the pin thread left a batch as it is, and note why: torch does not know its class."""
        tags = map(self.session.host_tag, tensors(data))
        if any(tag is not None and tag.pinned for tag in tags):
            return False
        self.session.faults.setdefault(f"not-pinned {type(data).__name__}")
        self.session.note(
            f"pin_memory=True leaves a batch of the class {type(data).__name__} as it is, in pageable memory: "
            "give this class a method pin_memory(), which returns it pinned"
        )
        return True

    def sent(self, iterator: Any) -> None:
        """Forget the orders that did not go out: the sampler had no more. (One for an IterableDataset always has.)"""
        if iterator._dataset_kind == torch_dataloader._DatasetKind.Map:
            del self.ordered[iterator._send_idx :]

    def ready_at(self, taken: tuple[int, Any], order: int) -> int:
        """Return when the batch that a worker has taken an order for is there, if it finds a core at once."""
        worker, fetched = taken
        took = fetched.slept + fetched.work if isinstance(fetched, Fetched) else 0
        if took and self.session.measured:  # else what is waited for is told, and charged to nobody
            took += fetched.waited
        return max(self.ordered[order], self.free_at(worker)) + took

    def _locking(self, data: Any, start: int) -> int:
        """The pin thread takes memory at `start` [ns]; return how long page-locking it takes."""
        took = 0
        for tensor in tensors(data):
            tag = tag_of(tensor)
            if type(tag) is HostTag and tag.pinned and tag.block is None:
                tag.block, locked = self.session.pinned.allocate_at(storage_of(tensor).nbytes(), start)
                took += locked
        return took


class Iterators:
    """What is done around the parts of a DataLoader's iterators, of which `original` is one, in a recording."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def install(self, patches: Patches, module: Any, prefix: str) -> None:
        """Take the place of the parts of a module's iterators."""
        session = self.session
        single = getattr(module, f"{prefix}SingleProcessDataLoaderIter")
        several = getattr(module, f"{prefix}MultiProcessingDataLoaderIter")
        owner = module if hasattr(module, "_worker_loop") else _utils.worker
        worker = functools.partial(work, owner._worker_loop.__module__, session.runtime.host, session.measured)
        pricing = patches.pricing
        plain = functools.partial(held, owner, "_worker_loop", owner._worker_loop)
        pricing.set(owner, "_worker_loop", worker)
        pricing.around(single, "_next_data")(self.fetch)
        pricing.around(several, "__init__")(functools.partial(self.start_workers, several, plain))
        pricing.around(several, "__next__")(self.run)
        pricing.around(several, "_reset")(self.begin_epoch)
        pricing.around(several, "_process_data")(self.hand_out)
        pricing.around(several, "_next_data")(self.next_data)
        base = next(each for each in several.__mro__ if "_next_index" in vars(each))
        pricing.around(base, "_next_index")(self.draw)

    def fetch(self, original: Callable[..., Any], iterator: Any) -> Any:
        """Fetch a batch on the main thread (and pin it there, R45)."""
        session = self.session
        if not session.in_recording_thread():
            session.note(ELSEWHERE)
            return original(iterator)
        if session.fetching:  # a DataLoader within a data set is a part of its fetch
            return original(iterator)
        index, fetcher = iterator._next_index(), iterator._dataset_fetcher
        session.enter("DataLoader")
        start, rested = session.runtime.now, session.runtime.rested
        if not hasattr(iterator, "_next_batch"):
            iterator._next_batch = session.new_iterator(iterator)
        batch = iterator._next_batch
        session.leave()
        try:
            with session.fetching_data(is_priced(fetcher.dataset)) as meter, timing(fetcher, session.sampler):
                data = fetcher.fetch(index)
        except BaseException:  # what it took is taken; the end of a stream comes here, too
            self._charge(Fetched.by(fetcher, (), None, session.meter), start, rested, -1, -1)
            raise
        session.enter("DataLoader")
        iterator._next_batch += 1
        fetched = Fetched.by(fetcher, index, data, meter)
        self._charge(fetched, start, rested, batch, nbytes(data))
        mark(session, data, batch)
        session.leave()
        if iterator._pin_memory:
            data = _utils.pin_memory.pin_memory(data, iterator._pin_memory_device)
        session.batches.handed_out(batch, fetched.samples)
        return data

    def _charge(self, fetched: Fetched, start: int, rested: int, batch: int, size: int) -> None:
        """Let the main thread have fetched a batch of `size` bytes since `start`; both are -1 if there is none."""
        session, runtime = self.session, self.session.runtime
        waited = fetched.waited if session.measured else 0
        read = max(runtime.shared.read(runtime.now, fetched.files), runtime.now + waited) + fetched.slept
        runtime.shared.main_rests(runtime.now, read)
        rested = read - runtime.now + runtime.rested - rested
        parcel = parcel_of(fetched.data, session.sent_whole)
        runtime.now = read + (session.fetched(fetched, size, parcel) if size >= 0 else fetched.work)
        if size >= 0:
            runtime.shared.queued(start, fetched.locks)  # nobody waits here, but workers would
            runtime.shared.waits(rested)
        elif runtime.now == start:
            return
        name = f"fetch batch {batch}" if size >= 0 else NOT_HANDED_OUT
        does, line = fetched.place or (Cause.NONE, "")
        runtime.builder.span(
            start, runtime.now, runtime.main, Kind.FETCH, name, batch, size, cause=does, source=line, waited=rested
        )

    def start_workers(
        self, kind: Any, plain: Any, original: Any, iterator: Any, loader: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Start the workers: each costs the main thread the start of a process.

        Raises `NotModelledError` where they are threads; in a thread that is not recorded they have torch's loop.
        """
        session, context = self.session, loader.multiprocessing_context
        worker = getattr(context, "Process", None)
        if isinstance(worker, type) and issubclass(worker, threading.Thread):
            if session.in_recording_thread():
                iterator._shutdown = True  # there is nothing yet
                raise NotModelledError(THREADS.format(type(context).__name__))
            session.note(ELSEWHERE)
            with plain():
                original(iterator, loader, *args, **kwargs)
            return
        iterator.__class__ = _recorded(kind)
        if session.in_recording_thread():
            session.enter("DataLoader")
            runtime, workers = session.runtime, loader.num_workers
            look()
            runtime.batch, runtime.source = -1, session.source()
            runtime.host_work(runtime.host.worker_start * workers, f"start {workers} workers", Kind.OPERATOR)
        else:
            session.note(ELSEWHERE)
        with starting(loader.num_workers, __name__), kept_workers():
            self.run(original, iterator, loader, *args, **kwargs)

    def run(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a part of torch whose Python costs nothing more: to take a batch is in `Host.hand_out`."""
        if not self.session.in_recording_thread():
            return original(*args, **kwargs)
        self.session.begin_priced(0)
        try:
            return original(*args, **kwargs)
        finally:
            self.session.end_priced()

    def draw(self, original: Callable[..., Any], iterator: Any) -> Any:
        """Let the sampler say which samples are next: within what is priced only one of torch's own costs nothing."""
        session, drawn = self.session, iterator._index_sampler
        own = any(not type(each).__module__.startswith("torch.") for each in (drawn, getattr(drawn, "sampler", drawn)))
        if not session.in_recording_thread():
            return original(iterator)
        if not (own and session.priced):
            with held(session, "shuffling", not own):
                return original(iterator)
        priced, session.priced = session.priced, 0
        session.leave()
        try:
            return original(iterator)
        finally:
            session.enter("torch")
            session.priced = priced

    def pickle(self, original: Callable[..., None], *args: Any) -> None:
        """Pickle what a process gets that is started anew; a forked one has it, so what torch copies costs nothing."""
        with self.session.bookkeeping() if self.session.in_recording_thread() else contextlib.nullcontext():
            original(*args)

    def receive(self, original: Callable[..., Any], queue: Any, *args: Any, **kwargs: Any) -> Any:
        """Take a message from a queue, on the main thread or the pin thread: what that takes of it is measured."""
        before, mine = thread_time_ns(), self.session.in_recording_thread() and self.session.alive
        take = functools.partial(original, queue, *args, **kwargs)
        message = self.session.own_work(take) if mine else take()
        if isinstance(message, tuple) and isinstance(message[-1], Fetched):
            message[-1].received = thread_time_ns() - before
        return message

    def begin_epoch(self, original: Callable[..., None], iterator: Any, *args: Any, **kwargs: Any) -> None:
        """Orders for the first batches go out."""
        here = self.session.in_recording_thread()
        if here:
            iterator._schedule = Schedule(self.session, iterator, getattr(iterator, "_schedule", None))
            self.session.ahead = max(self.session.ahead, iterator._num_workers * iterator._prefetch_factor)
        original(iterator, *args, **kwargs)
        if here:
            iterator._schedule.sent(iterator)

    def next_data(self, original: Callable[..., Any], iterator: Any) -> Any:
        """The next batch, or the end of the epoch."""
        schedule = getattr(iterator, "_schedule", None)
        if schedule is None or not self.session.in_recording_thread():
            return original(iterator)
        try:
            return original(iterator) if iterator._in_order else self.next_of_all(iterator, schedule)
        except StopIteration:
            schedule.end(workers_stay=iterator._persistent_workers)
            raise

    def next_of_all(self, iterator: Any, schedule: Schedule) -> Any:
        """With `in_order=False` the batch comes first that is there first, in virtual time.

        So the oldest order of each worker is really waited for; which of them this machine had first does not matter.
        """
        orders = iterator._task_info
        while orders:
            oldest = {orders[order][0]: order for order in sorted(orders, reverse=True)}  # by worker
            while any(len(orders[order]) < 2 for order in oldest.values()):
                order, data = iterator._get_data()
                iterator._tasks_outstanding -= 1
                orders[order] += (data,)
            order = min(oldest.values(), key=lambda order: (schedule.ready_at(orders[order], order), order))
            worker, data = orders.pop(order)
            if not isinstance(data, _utils.worker._IterableDatasetStopIteration):
                schedule.order = order
                return iterator._process_data(data, worker)
            for unanswered in [order for order, (of, *_) in orders.items() if of == worker]:
                del orders[unanswered]
            if iterator._persistent_workers:
                iterator._workers_status[worker] = False
            else:
                iterator._mark_worker_as_unavailable(worker)
            iterator._try_put_index()
        if not iterator._persistent_workers:
            iterator._shutdown_workers()
        raise StopIteration

    def hand_out(self, original: Callable[..., Any], iterator: Any, data: Any, worker: int, *args: Any) -> Any:
        """Hand a batch out: its costs first, then the next order goes to a worker."""
        session = self.session
        if not session.in_recording_thread() or isinstance(data, ExceptionWrapper):
            return original(iterator, data, worker, *args)
        if not isinstance(data, Fetched):  # from workers that are older than the recording
            data = Fetched(data, sample_count((), data))
        session.enter("DataLoader")
        schedule = getattr(iterator, "_schedule", None)
        if schedule is None or schedule.session is not session:
            schedule = iterator._schedule = Schedule(session, iterator, None)
        order, schedule.order = schedule.order, None
        schedule.arrive(data, worker, schedule.batch - schedule.first if order is None else order)
        kinds = torch_dataloader._DatasetKind
        if iterator._dataset_kind == kinds.Iterable and given_twice(schedule.firsts, worker, data.data):
            session.faults.setdefault("unsharded-iterable")
        session.leave()
        given = original(iterator, data.data, worker, *args)
        schedule.sent(iterator)
        return given


@functools.cache
def _recorded(kind: Any) -> Any:
    """Return the class of an iterator whose workers were started in a recording: they go on to send `Fetched`."""

    def process(self: Any, data: Any, *args: Any) -> Any:
        active = Session.active
        if isinstance(data, Fetched) and not (active and active.aside is not AT_REST and active.in_recording_thread()):
            data = data.data
        return kind._process_data(self, data, *args)

    return type(kind.__name__, (kind,), {"_process_data": process, "__module__": kind.__module__})


def parcel_of(data: Any, sent: set[Hashable]) -> Parcel:
    """Return what a worker sends for a batch: whole storages through shared memory, all else pickled through a pipe.

    A storage of which a batch is a part, as of a data set in memory, is copied there once: then it is in `sent`.
    """
    dense = [each for each in tensors(data) if each.layout is torch.strided]
    storages = {each.data_ptr(): each for each in map(storage_of, dense)}
    sizes = {place: each.nbytes() for place, each in storages.items()}
    if sum(sizes.values()) > sum(each.nbytes for each in dense):
        for place, storage in storages.items():
            handle = _handle(storage) or place  # no worker sent it
            if handle in sent:
                sizes[place] = 0
            sent.add(handle)
    pickled = list(_pickled(data, set()))
    arrays = sum(size for size, is_array in pickled if is_array)
    return Parcel(len(sizes), sum(sizes.values()), sum(size for size, _ in pickled), arrays)


def _handle(storage: torch.UntypedStorage) -> Hashable:
    """Return by what the processes know a storage that one of them sent: its file; None for any other."""
    mine = reductions.StorageWeakRef(storage).cdata
    return next((handle for handle, each in [*reductions.shared_cache.items()] if each.cdata == mine), None)


def _pickled(data: Any, seen: set[int]) -> Iterator[tuple[int, bool]]:
    """Give the bytes of each part that is pickled, and whether it is an array."""
    if isinstance(data, (torch.Tensor, int, float, type(None))) or id(data) in seen:
        return
    seen.add(id(data))  # pickle writes an object once
    if size := len(data) if isinstance(data, (str, bytes, bytearray)) else _size(data):
        yield size, not isinstance(data, (str, bytes, bytearray))
        return
    if hasattr(data, "__dict__") and not isinstance(data, type):
        data = vars(data)
    for part in data.values() if isinstance(data, dict) else data if isinstance(data, (list, tuple)) else ():
        yield from _pickled(part, seen)


def mark(session: Session, data: Any, batch: int, *, new: bool = False) -> None:
    """Let the tensors of a batch carry its number, and whether no one here has read their memory."""
    with session.bookkeeping(), internals.DisableTorchFunction():
        for tensor in tensors(data):
            if tensor.layout is not torch.strided or is_on_device(tensor):
                continue
            tag = session.host_tag(tensor)
            if tag is None:
                set_tag(tensor, tag := HostTag(session, batch))
            tag.batch, tag.new = batch, new


# What a data set's own work costs


# Their bytes are in `Host.fetch_per_byte`: to take samples and to stack them
TAKING = frozenset(["index", "index_select", "clone", "copy_", "select_copy"])
STACKING = frozenset(["stack", "cat"])

# `Host.fetch_per_sample` is for a sample of two tensors, of which each is taken once and stacked. On this machine
# taking one is x[i] in 0.82 us, and to stack it takes 0.39 us: a third and a sixth of 2.4 us.
TENSORS, TAKES, STACKS = 2, 3, 6
NOTED = 100_000  # ns: an operator of a fetch that takes so long is noted with its line


OPENS = ("builtins", "open"), ("io", "open"), ("tarfile", "bltn_open"), ("bz2", "_builtin_open")  # pathlib's is io's


class File(NamedTuple):
    """A file: its device's number and its own, and its size in bytes."""

    key: tuple[int, int]
    size: int


def file_of(number: int) -> File:
    """Return the file that has this number in this process."""
    found = os.fstat(number)
    return File((found.st_dev, found.st_ino), found.st_size if stat.S_ISREG(found.st_mode) else 0)


class _Opened(io.FileIO):
    """A file that tells a meter what is read of it; who takes its number, as numpy.fromfile does, reads it whole."""

    def __init__(self, meter: Meter, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        start = processor_time()
        self.meter, self.file, self.place = meter, file_of(super().fileno()), place_of(stack_of())
        self.taken = False
        meter.leave_out(start)

    def fileno(self) -> int:
        number, start = super().fileno(), processor_time()
        if not self.taken:  # however often somebody asks
            self.taken = True
            self.meter.taken.append((self.file, self.place))
        self.meter.leave_out(start)
        return number

    def read(self, size: int | None = -1, /) -> Any:
        return self._told(super().read(size))

    def readall(self) -> Any:
        return self._told(super().readall())

    def readinto(self, buffer: Any, /) -> Any:
        return self._told(super().readinto(buffer))

    def _told(self, got: Any) -> Any:
        start = processor_time()
        self.meter.reads(self.file, got if isinstance(got, int) else len(got or b""), self.place)
        self.meter.leave_out(start)
        return got


def _take(tensor: torch.Tensor) -> None:
    for _ in range(20):
        tensor[len(tensor) - 1]


class Meter(TorchDispatchMode):
    """Counts what is done in a block, on its thread; enter it around each fetch."""

    def __init__(self, host: Host, measured: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.host, self.measured = host, measured
        self.work = self.slept = self.unpriced = self.here = self._left_out = 0  # ns
        self.waited = Waited(0, 0)
        self._rests, self._waits = Carried(), Carried()
        self.calls = self.overhead = 0  # calls of torch that the emulator saw, and what it took at each [ns]
        self.is_calibrated = False
        self._taken = self._stacked = 0  # tensors: views and copies, and parts of a batch
        self._inside = 0  # above 0: what is called is priced as a whole, or elsewhere
        self._declared = 0  # above 0: so is all Python, but torch's operators
        self._decodes = False  # what is called is a part of a decoder
        self._known: dict[Any, Operator] = {}
        self._read = Counter[File]()  # bytes of files
        self.taken = list[tuple[File, Place | None]]()  # those whose number somebody took, for each time it was opened
        self.files: Reads = ()
        self.thread = 0  # the one that fetches, while it does
        self.beside = 0  # ns of sleeps of the main thread, which its own clock has
        self.locks = Holdings(self)
        self._mapped = self._mapping(mmap.mmap)
        self._undo = contextlib.ExitStack()
        self.sampler: Sampler | None = None  # of the lines, where they are measured
        self._places = Counter[Place]()  # [ns] of what is priced at the line that does it
        self.place: Place | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in `Operators`

    def __enter__(self) -> Any:
        self._replace(declarations.costs, "declare", self.declared)
        if not self.measured:
            if self.host.transforms:
                self._price_transforms()
            super().__enter__()  # type: ignore[no-untyped-call]
        for module, name in OPENS if self.host.disk else ():
            if module in sys.modules:
                self._replace(sys.modules[module], name, self._noting(vars(sys.modules[module])[name]))
        self._replace(mmap, "mmap", self._mapped)
        self.locks.begin(self._replace)
        self._read.clear()
        self.taken.clear()
        self._places.clear()
        if self.sampler is not None:
            self.sampler.begin()
        self.work = self.slept = self.calls = self._left_out = 0  # _left_out: of real time that is priced, or ours
        self._taken = self._stacked = 0
        self.thread, self._began = threading.get_ident(), waiting_time.wall()
        self._waits_from, self.waits_declared = waiting_time.read(), 0
        self._start = processor_time()
        return self

    def __exit__(self, *error: Any) -> None:
        self.locks.end()
        self.here = processor_time() - self._start
        rest = self._rests.due(self.here - self._left_out - self.calls * self.overhead)
        waited, spun = waiting_time.since(self._waits_from)
        waited = self._waits.due(max(-tick(), waited - self.waits_declared))  # less of it is threads' work at once
        self.waited = Waited(waited if waited > JITTER else 0, min(rest, spun))
        whole, self._read = self._read, Counter()
        for file, place in self.taken:
            self.reads(file, file.size, place)
        self._read |= whole
        self.files = tuple((file.key, file.size, count) for file, count in self._read.items())
        try:
            if not self.measured:
                super().__exit__(*error)  # type: ignore[no-untyped-call]
                self.work += sum(self.host.work_time(2 * count) for count in self._read.values())
        finally:
            self.thread = 0
            self.work, self.unpriced = (self.work + rest, 0) if self.measured else (self.work, rest)
            self._undo.close()
            place = self.sampler.most() if self.sampler is not None else None
            self.place = place and place.seen(waited, self.here)
            if self._places and (self.place is None or max(self._places.values()) > self.work // 2):
                self.place = max(self._places, key=self._places.__getitem__)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator, and price it."""
        start, before, kwargs = processor_time(), self._left_out, kwargs or {}
        self.calls += 1
        if (operator := self._known.get(func)) is None:
            operator = self._known[func] = Operator(func)
        if self._inside or operator.is_free or operator.no_kernel:
            self.leave_out(start)
            result = func(*args, **kwargs)
            if operator.is_view and not self._inside:
                self._taken += len(result) if isinstance(result, (list, tuple)) else 1
            return result
        self._inside += 1
        try:
            with internals.DisableTorchFunction():
                result = func(*args, **kwargs)
                if operator.base in TAKING:
                    self._taken += 1
                    self.work += host_work(operator, args, kwargs, result)[2] * self.host.transforms // FULL
                elif operator.base in STACKING:
                    self._stacked += len(args[0])
                else:
                    took = self.host.sample_time(*host_work(operator, args, kwargs, result))
                    filtering = sampled(operator.base, args, result) * SAMPLING["per_byte"] // 1000
                    took = max(took, filtering * self.host.transforms // FULL)
                    self.work += self.host.dispatch + took
                    if took >= NOTED:
                        self.note(Cause.TRANSFORM, took)
            return result
        finally:
            self._inside -= 1
            self._left_out = before + processor_time() - start

    def taking(self, samples: int) -> int:
        """Return what taking and stacking the tensors of so many samples cost [ns] above `Host.fetch_per_sample`.

        A fetch without samples has failed, or is the end of a stream, and pays for none.
        """
        price = 0 if self.measured or not samples else self.host.fetch_per_sample
        taken, stacked = (max(0, many - TENSORS * samples) for many in (self._taken, self._stacked))
        return price * taken // TAKES + price * stacked // STACKS

    def calibrate(self) -> None:
        """Find what the emulator takes at each call of torch that it sees, besides what it leaves out by itself.

        Tried with what data sets do most.
        """
        tensor, seen, plain = torch.empty(2, 1), list[int](), list[int]()
        self.overhead, self.is_calibrated = 0, True
        with processor_time.fine():
            for _ in range(7):
                with self:
                    _take(tensor)
                seen.append(self.work if self.measured else self.unpriced)
                start = processor_time()
                with internals.DisableTorchFunction(), internals.DisableTorchDispatch():
                    _take(tensor)
                plain.append(processor_time() - start)
        least = min(plain) if self.measured else 0  # each at its best: one that was disturbed says nothing
        self.overhead = max(0, min(seen) - least) // max(1, self.calls)

    def touches(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
        *,
        asks: Callable[..., bool] | None = None,
    ) -> bool:
        """`touches_device`: it looks at each tensor of a batch, and that is the emulator's own work."""
        start = processor_time()
        self.calls += 1
        try:
            return (asks or touches_device)(func, args, kwargs)
        finally:
            self.leave_out(start)

    def leave_out(self, start: int) -> None:
        """What was done since then is the emulator's."""
        self._left_out += processor_time() - start

    def charged_elsewhere(self, start: int, began: int) -> None:
        """Leave out what was done since the processor's clock said `start`, and waited for since the wall's `began`."""
        took = processor_time() - start
        self._left_out += took
        self.waits_declared += waiting_time.wall() - began - took

    def passed(self) -> int:
        """Return what this fetch costs until now [ns], without what it waited for on this machine."""
        measured = 0
        if self.measured:
            measured = processor_time() - self._start - self._left_out - self.calls * self.overhead
        reads = 0 if self.measured else sum(self.host.work_time(2 * count) for count in self._read.values())
        return self.beside + self.slept + self.work + measured + reads

    @contextlib.contextmanager
    def not_counted(self) -> Iterator[None]:
        """Leave out the real time of a block, and what is called in it: it is priced as a whole, or elsewhere."""
        start, before = processor_time(), self._left_out
        try:
            with held(self, "_inside", self._inside + 1):
                yield
        finally:
            self._left_out = before + processor_time() - start

    @contextlib.contextmanager
    def declared(self, work: int, waits: int, gil: bool = True) -> Iterator[None]:
        """`loaderviz.costs`: the block's own Python takes `work` ns and waits for `waits` ns, whatever it does here."""
        start, before, began = processor_time(), self._left_out, waiting_time.wall()
        self._declared += 1
        try:
            yield
        finally:
            self._declared -= 1
            self.work += work
            self.slept += waits
            self._left_out = before
            self.charged_elsewhere(start, began)

    def count_sleep(self, real: Callable[[float], None], seconds: float, /) -> None:
        """`time.sleep`, in a worker; other threads, and those who wait for something real, really sleep."""
        caller = str(sys._getframe(1).f_globals.get("__name__") or "")
        if threading.get_ident() != self.thread or caller.startswith(REAL_TIME):
            real(seconds)
        else:
            self.slept += round(seconds * SECOND)
            self.note(Cause.INPUT, round(seconds * SECOND))

    def note(self, does: Cause, time: int) -> None:
        """Note that so many ns of the fetch go to what the program does at its line."""
        start = processor_time()
        if (place := place_of(stack_of())) is not None:
            self._places[place._replace(cause=does if place.cause != Cause.COLLATE else place.cause)] += time
        self.leave_out(start)

    def wall(self) -> int:
        """Return how long the fetch has lasted on the wall [ns], for clocks that are looked at in it."""
        return waiting_time.wall() - self._began

    def _noting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `open`, whose files count what is read of them, where this thread opens them to read alone."""
        fetching = threading.get_ident()

        @functools.wraps(function)
        def opening(
            file: Any,
            mode: str = "r",
            buffering: int = -1,
            encoding: Any = None,
            errors: Any = None,
            newline: Any = None,
            closefd: Any = True,
            opener: Any = None,
        ) -> Any:
            start = processor_time()
            binary = mode in ("rb", "br")
            usual = not (encoding or errors or newline) if binary else mode in ("r", "rt", "tr") and buffering
            if threading.get_ident() != fetching or not usual:
                return function(file, mode, buffering, encoding, errors, newline, closefd, opener)
            path = file if isinstance(file, int) else os.fspath(file)
            self.leave_out(start)
            raw = _Opened(self, path, closefd=closefd, opener=opener)
            if not buffering:
                return raw
            buffer = io.BufferedReader(raw, *[buffering] * (buffering > 1))
            if binary:
                return buffer
            reader: Any = io.TextIOWrapper(buffer, encoding, errors, newline, line_buffering=buffering == 1)
            reader.mode = mode
            return reader

        return opening

    def _mapping(self, original: type[mmap.mmap]) -> type[mmap.mmap]:
        """Return `mmap.mmap`: mapping a file reads nothing of it."""

        class Mapped(original):  # type: ignore[valid-type, misc]
            def __new__(cls, number: int, *args: Any, **kwargs: Any) -> Any:
                if number >= 0:
                    start = processor_time()
                    mapped = file_of(number)
                    self.taken = [each for each in self.taken if each[0] != mapped]
                    self.leave_out(start)
                return super().__new__(cls, number, *args, **kwargs)

        return Mapped

    def reads(self, file: File, count: int, place: Place | None) -> None:
        """Note that so many bytes of a file are read at a line; they come from the page cache at least."""
        if not file.size:  # a pipe, a device
            return
        self._read[file] += count
        if place is not None:
            self._places[place] += self.host.work_time(2 * count)

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        self._undo.callback(setattr, owner, name, vars(owner)[name])
        setattr(owner, name, value)

    def _price_transforms(self) -> None:
        for listed in ("tensor", "as_tensor", "asarray"):
            self._replace(torch, listed, self._listing(vars(torch)[listed]))
        self._undo.callback(delattr, torch.Tensor, "tolist")  # which its base has
        torch.Tensor.tolist = self._listing(torch.Tensor.tolist)  # type: ignore[method-assign]
        for table, price in ((DATA["transforms"], self._priced), (DATA["decoders"], self._decoding)):
            for module, prices in table.items():
                for path, numbers in prices.items() if module in sys.modules else ():
                    *classes, name = path.split(".")
                    owner: Any = sys.modules[module]
                    for each in classes:
                        owner = getattr(owner, each, None)
                    if function := vars(owner).get(name) if owner else None:  # else of another version
                        self._replace(owner, name, price(function, numbers, f"{module}.{path}"))

    def _priced(self, function: Callable[..., Any], price: Sequence[int], path: str) -> Callable[..., Any]:
        """Return a function that costs its own part: a picture of a file is decoded before, for itself."""
        (base, per_byte), touched = price, TOUCHED.get(path, largest)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._inside or self._declared:
                return function(*args, **kwargs)
            for image in (*args[:2], *kwargs.values()):
                if hasattr(image, "fp"):  # of a file; its format may have no price
                    image.load()
            before = self._left_out
            with self.not_counted():
                result = function(*args, **kwargs)
                if (nbytes := touched(args, kwargs, result)) is not None:
                    self._charge(base + per_byte * nbytes // 1000, Cause.TRANSFORM)
            self._left_out = before if nbytes is None else self._left_out
            return result

        return call

    def _decoding(self, function: Callable[..., Any], factor: int, path: str) -> Callable[..., Any]:
        """Return a decoder that costs its file's bytes and its picture's; a format of no price stays unpriced."""
        plain = without_simd(path.partition(".")[0])

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = (*args[:2], *kwargs.values())  # of a method the second
            source = next(
                (each for each in given if isinstance(each, FILES) or hasattr(each, "fp") or _size(each)), None
            )
            decoded = getattr(source, "tile", None) == [] and getattr(source, "_im", 0) is not None
            if self._declared or self._decodes or decoded:
                return function(*args, **kwargs)
            with self.not_counted():
                price, size = decoding(source)
            if price is None:
                return function(*args, **kwargs)
            with self.not_counted(), held(self, "_decodes", True):
                result = function(*args, **kwargs)
                took = price.time(size, _size(result) or _size(source)) * factor // FULL
                self._charge(took * (plain if price in JPEGS else FULL) // FULL, Cause.DECODE)
            return result

        return call

    def _listing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that costs what it reads out of lists, or gives; what torch makes of some is collating."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            given: Any = next(iter((*args, *kwargs.values())), None)
            caller = str(sys._getframe(1).f_globals.get("__name__"))
            gives = function.__name__ == "tolist"
            free = not (gives or isinstance(given, (list, tuple))) or caller.startswith("torch.")
            if free or self._inside or self._declared:
                return function(*args, **kwargs)
            with self.not_counted():
                result = function(*args, **kwargs)
                took = self.host.list_time((given if gives else result).numel(), given=gives)
                self.work += took
                self.note(Cause.TRANSFORM, took)
            return result

        return call

    def _charge(self, time: int, does: Cause) -> None:
        self.work += time * self.host.transforms // FULL
        self.note(does, time * self.host.transforms // FULL)


# What a call costs by, of its arguments and result: bytes, or None where it has no price
Touched = Callable[[tuple[Any, ...], dict[str, Any], Any], int | None]
SAMPLING = DATA["sampling"]
FILTERS = SAMPLING["taps"]
COLORED = "RGB", "RGBA", "P", "CMYK", "YCbCr", "HSV"  # modes of pictures: others have one color, and convert as fast


def largest(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Return the bytes of the largest of what a function gets first, or second as a method, and of what it gives."""
    return max(map(_size, (*args[:2], *kwargs.values(), result)))


def converted(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int | None:
    """Return the bytes by which `Image.convert` costs; to the same mode it copies, a palette of its own has none."""
    given = dict(zip(("mode", "matrix", "dither", "palette"), args[1:], strict=False)) | kwargs
    old, new, colors = args[0].mode, result.mode, SAMPLING["converts"]
    nbytes = largest(args, kwargs, result)
    if old == new:
        return nbytes // 5
    if new == "P" and given.get("palette"):
        return None
    plain = new if given.get("dither") != 0 else f"{new} undithered"
    often = colors["from"].get(old, 0) + (colors["to"].get(plain, 0) if old in COLORED or new == "1" else 0)
    return max(nbytes, int(result.width * result.height * often))


def resized(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Return the bytes that `Image.resize` touches: one filter for rows, one for columns, wider where they shrink."""
    given = dict(zip(("size", "resample", "box", "reducing_gap"), args[1:], strict=False)) | kwargs
    image, gap = args[0], given.get("reducing_gap")
    left, top, right, bottom = given.get("box") or (0, 0, *image.size)
    width, height, reduced = right - left, bottom - top, 0
    if gap and (factors := [int(width / result.width / gap) or 1, int(height / result.height / gap) or 1]) != [1, 1]:
        width, height, reduced = width / factors[0], height / factors[1], _size(image)
    taps = FILTERS[_filter(given, "BICUBIC", image)]
    if not taps:
        return _size(result) // 2
    return reduced + _passes((height, width), (result.height, result.width), taps, True) * len(image.getbands())


def turned(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Return the bytes that `Image.transform` touches: each pixel is made of those around it, in both directions."""
    given = dict(zip(("size", "method", "data", "resample"), args[1:], strict=False)) | kwargs
    return _size(result) * int(SAMPLING["turned"][_filter(given, "NEAREST", args[0])])


def _filter(given: dict[str, Any], usual: str, image: Any) -> str:
    """Return the name of the filter that Pillow takes: it interpolates no palette."""
    resample = given.get("resample")
    names: Any = sys.modules["PIL.Image"].Resampling
    return "NEAREST" if image.mode in ("1", "P") else usual if resample is None else str(names(resample).name)


def _passes(old: Sequence[float], new: Sequence[int], taps: int, widens: bool) -> int:
    """Return how many pixels two passes of a filter touch; one that would change no size is left out."""
    (height, width), (new_height, new_width) = old, new
    passes = (height * new_width, width / new_width), (new_height * new_width, height / new_height)
    return sum(int(size * (2 + taps * max(1, scale if widens else 1))) for size, scale in passes if scale != 1)


def recolored(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Return the bytes of `cv2.cvtColor`, as often as its kind of conversion counts."""
    code, often = kwargs.get("code", args[-1]), SAMPLING["colors"]
    return largest(args, kwargs, result) * int(often.get(str(code), often["other"]))


def shrunk(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Return how many numbers `cv2.resize` makes, as often as its filter counts."""
    way = kwargs.get("interpolation", args[5] if len(args) > 5 else 1)
    return int((max(args[0].size, result.size) if way == 3 else result.size) * SAMPLING["shrinks"][way])


def sampled(base: str, args: Any, result: Any) -> int:
    """Return the bytes that an operator of torch touches as it interpolates, or as it makes a grid for that; else 0."""
    if base == "bmm" and args[1][0].numel() <= 16:  # points times a matrix of a rotation
        return int(result.numel() // result.shape[-1] * SAMPLING["point"])
    if base == "grid_sampler_2d":
        return int(result.nbytes * SAMPLING["grid"][args[2]])
    if (taps := SAMPLING["operators"].get(base)) is None:
        return 0
    if not taps:
        return int(result.numel() * SAMPLING["nearest"])
    planes = result.shape[0] * result.shape[1] * max(SAMPLING["least"], result.element_size())
    return int(planes * _passes(args[0].shape[2:], result.shape[2:], taps, base.endswith("_aa")))


TOUCHED: dict[str, Touched] = {
    "PIL.Image.Image.convert": converted,
    "PIL.Image.Image.resize": resized,
    "PIL.Image.Image.transform": turned,
    "cv2.cvtColor": recolored,
    "cv2.resize": shrunk,
}
FILES = (str, os.PathLike, bytes, bytearray, memoryview)  # of which a decoder reads


class Decoding(NamedTuple):
    """What a format costs: ns a picture, ps a byte of its file and of the picture.

    What a file's bytes cost is at most `most` ps a byte of the picture: then they are literals. A file that is no
    smaller than its picture is stored as it is, and copied. With `most` 0 neither is so (a draft of a JPEG).
    """

    base: int
    per_file_byte: int
    per_byte: int
    most: int

    def time(self, file: int, picture: int) -> int:
        """Return the ns of decoding so many bytes."""
        packed = file * self.per_file_byte
        if self.most:
            packed = file * self.per_byte if file >= picture else min(packed, picture * self.most)
        return self.base + (packed + picture * self.per_byte) // 1000


FORMATS = {name: Decoding(*numbers) for name, numbers in DATA["formats"].items()}
JPEGS = FORMATS["JPEG"], FORMATS["progressive JPEG"]
STARTS = {b"\xff\xd8\xff": "JPEG", b"\x89PNG": "PNG", b"RIFF": "WEBP", b"GIF8": "GIF", b"BM": "BMP"}  # of files
PROGRESSIVE, HEADER = "progressive JPEG", 2**16  # bytes of a file in which its frame begins
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # markers of a JPEG's frame: which kind it is


def without_simd(module: str) -> int:
    """Return by which factor [thousandths] this version of a module decodes a JPEG more slowly than newer ones."""
    old = DATA["plain"].get(module, {"before": [], "factor": FULL})
    version = str(getattr(sys.modules[module], "__version__", ""))
    number = [int(part) for part in version.split(".")[:2] if part.isdigit()]
    return int(old["factor"]) if number and number < old["before"] else FULL


def decoding(source: Any) -> tuple[Decoding | None, int]:
    """Return what decoding an opened picture, a path or a file's bytes in any array costs, and how many bytes."""
    if hasattr(source, "fp"):  # of Pillow
        progressive = source.format == "JPEG" and "progressive" in source.info
        return FORMATS.get(PROGRESSIVE if progressive else source.format), _file_size(source.fp)
    start = b""
    with contextlib.suppress(OSError, ValueError, TypeError):
        if isinstance(source, (str, os.PathLike)):
            with open(source, "rb") as file:  # which notes that it is read
                return _format(file.read(HEADER)), _file_size(file)
        flat = source if isinstance(source, (bytes, bytearray, memoryview)) else np.asarray(source[:HEADER])
        start = bytes(flat[:HEADER])
    return _format(start), _size(source) or len(start and source)


def _format(start: bytes) -> Decoding | None:
    name = next((name for first, name in STARTS.items() if start.startswith(first)), "")
    return FORMATS.get(PROGRESSIVE if name == "JPEG" and _is_progressive(start) else name)


def _is_progressive(start: bytes) -> bool:
    """Tell whether a JPEG's frame comes in several scans: its marker is a third one, after tables and notes."""
    place = 2
    while start[place : place + 1] == b"\xff" and start[place + 1] not in FRAMES:
        place += 2 + int.from_bytes(start[place + 2 : place + 4], "big")
    return start[place + 1 : place + 2] in (b"\xc2", b"\xc6", b"\xca", b"\xce")


def _file_size(file: Any) -> int:
    """Return the bytes of an opened file, or of one in memory."""
    try:
        return os.fstat(file.fileno()).st_size
    except (OSError, AttributeError, ValueError):  # io.UnsupportedOperation is both of the outer ones
        here = file.tell()
        size: int = file.seek(0, os.SEEK_END)
        file.seek(here)
        return size


def _size(value: Any) -> int:
    """Return the bytes of a picture, array or tensor; 0 for anything else."""
    if hasattr(value, "getbands"):
        return int(value.width * value.height * len(value.getbands()))
    size = getattr(value, "nbytes", 0)
    return size if isinstance(size, int) else 0
