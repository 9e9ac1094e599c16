"""DataLoader in virtual time: real data from real workers, with the times that `Host` says they take.

The workers, the pin thread and the queues are torch's own; their data are real. What they would cost is worked out
when the main thread takes a batch: when its index was sent, when its worker was free, how long fetch and collate take
(and the sleeps in them), then the pin thread. So the picture is the same on every machine.

Of a data set's own work, operators of torch cost their bytes, FLOPs and dispatch; taking samples and stacking them is
in `Host.fetch_per_byte`; all else (PIL, numpy, Python) costs what `loaderviz.costs` declares for it, or what the table
`TRANSFORMS` says. Where it is `measured` (host="auto"), the whole fetch costs the processor time that it takes, and
what is declared in it. A file that `open` opens in a fetch costs the disk once, by its size, however much of it is
read; then it is in the page cache. Not modelled: files that C libraries open (declare what they take), locks such as
HDF5's, and the longer start of spawned workers.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import io
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import thread_time_ns
from typing import TYPE_CHECKING, Any

import torch
from torch._utils import ExceptionWrapper
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import Subset, TensorDataset, _utils
from torch.utils.data import dataloader as torch_dataloader

from loaderviz.batches import nbytes, sample_count, tensors
from loaderviz.emulator import costs
from loaderviz.emulator import host as declarations
from loaderviz.emulator.hardware import Host
from loaderviz.emulator.host import LoaderSchedule
from loaderviz.emulator.sharing import Reads
from loaderviz.emulator.torch.operators import Operator, host_work
from loaderviz.emulator.torch.patches import Guard, touches_device
from loaderviz.emulator.torch.session import PIN_THREAD, Session
from loaderviz.emulator.torch.tensors import HostTag, is_on_device, set_tag, storage_of, tag_of
from loaderviz.errors import NotModelledError
from loaderviz.timeline import Kind

if TYPE_CHECKING:
    from loaderviz.emulator.torch.patches import Patches

SECOND = 10**9
STATEFUL = "torchdata.stateful_dataloader.stateful_dataloader"  # forked from torch's module of iterators
ELSEWHERE = (
    "a DataLoader was iterated in a second thread: its fetches and the numbers of its batches are not in the timeline"
)


class Fetched:
    """What a worker sends in place of a bare batch: the batch, how many samples, and what its `Meter` counted [ns].

    `batched` tells that the data set gave the whole batch at once; `files` are those it opened, with their sizes.
    """

    def __init__(
        self, data: Any, samples: int, slept: int = 0, work: int = 0, unpriced: int = 0, batched: bool = False,
        files: Reads = (),
    ) -> None:  # fmt: skip
        self.data, self.samples, self.slept = data, samples, slept
        self.work, self.unpriced, self.batched, self.files = work, unpriced, batched, files

    def pin_memory(self) -> Fetched:
        """Called by the pin thread."""
        if Session.active is None:  # the recording is over; there is nothing to pin for
            return self
        self.data = _utils.pin_memory.pin_memory(self.data)
        return self


def install(session: Session, patches: Patches) -> None:
    """Replace the parts that fetch, pin and hand out of torch's DataLoader and, once it is imported, of torchdata's."""
    waiting = [STATEFUL]

    def look(loader: Any = None) -> None:  # each DataLoader calls it when it is made
        if waiting and STATEFUL in sys.modules:
            _install_iterators(session, patches, sys.modules[waiting.pop()], "_Stateful")

    # A function would stand aside in the forked worker, where the recording is over; a partial is put there as it is.
    patches.set(_utils.pin_memory, "_pin_memory_loop", functools.partial(pin_loop, _utils.pin_memory._pin_memory_loop))
    # Its warning is about this machine's cores; the workers' time is the emulated host's.
    patches.set(torch_dataloader.DataLoader, "check_worker_number_rationality", look)
    _install_iterators(session, patches, torch_dataloader, "_")
    look()


def _install_iterators(session: Session, patches: Patches, module: Any, prefix: str) -> None:
    single = getattr(module, f"{prefix}SingleProcessDataLoaderIter")
    several = getattr(module, f"{prefix}MultiProcessingDataLoaderIter")
    owner = module if hasattr(module, "_worker_loop") else _utils.worker
    worker = functools.partial(work, owner._worker_loop.__module__, session.runtime.host, session.measured)
    patches.set(owner, "_worker_loop", worker)
    patches.set(single, "_next_data", _single_next(session, single._next_data))
    patches.set(several, "__init__", _several_init(session, several.__init__, several))
    patches.set(several, "__next__", _several_next(session, several.__next__))
    patches.set(several, "_reset", _several_reset(session, several._reset))
    patches.set(several, "_process_data", _several_process(session, several._process_data))


# In the worker process


def work(module: str, host: Host, measured: bool, *args: Any) -> None:
    """Run a module's worker loop in the worker, which has torch's own, with sleeps counted instead of slept."""
    slept, meter = [0], Meter(host, measured)
    for guard in _get_current_function_mode_stack():
        if measured and isinstance(guard, Guard):
            guard.touches = meter.touches
            meter.calibrate()

    def count_sleep(seconds: float, /) -> None:
        slept[0] += round(seconds * SECOND)

    time.sleep = count_sleep  # type: ignore[assignment]
    create: Any = torch_dataloader._DatasetKind.create_fetcher

    def create_counting(*arguments: Any) -> Any:
        fetcher = create(*arguments)
        fetch = fetcher.fetch

        def counting(indices: Any) -> Fetched:
            slept[0] = 0
            with meter:
                data = fetch(indices)
            samples = sample_count(indices, data)
            return Fetched(
                data, samples, slept[0], meter.work, unpriced(meter, fetcher), is_batched(fetcher), meter.files
            )

        fetcher.fetch = counting
        return fetcher

    torch_dataloader._DatasetKind.create_fetcher = staticmethod(create_counting)  # type: ignore[method-assign]
    importlib.import_module(module)._worker_loop(*args)


def pin_loop(loop: Callable[..., None], *args: Any) -> None:
    """Run torch's pin thread under a name by which the session knows it."""
    threading.current_thread().name = PIN_THREAD
    loop(*args)


# In the main process, without workers


def _single_next(session: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    def next_data(self: Any) -> Any:
        """Fetch a batch on the main thread (and pin it there, R45)."""
        if not session.in_recording_thread():
            session.note(ELSEWHERE)
            return original(self)
        index = self._next_index()
        session.enter("DataLoader")
        runtime, start = session.runtime, session.runtime.now
        if not hasattr(self, "_first_batch"):
            self._first_batch, self._fetched = session.batches.new_iterator(), 0
        batch = self._first_batch + self._fetched
        session.leave()
        with session.fetching_data() as meter:
            data = self._dataset_fetcher.fetch(index)
        session.enter("DataLoader")
        self._fetched += 1
        samples = sample_count(index, data)
        batched = is_batched(self._dataset_fetcher)
        read = runtime.shared.read(runtime.now, meter.files)
        runtime.shared.main_rests(runtime.now, read)
        rest = unpriced(meter, self._dataset_fetcher)
        runtime.now = read + session.fetched(samples, nbytes(data), meter.work, rest, batched=batched)
        runtime.builder.span(
            start, runtime.now, runtime.main, Kind.FETCH, f"fetch batch {batch}", batch=batch, nbytes=nbytes(data)
        )
        mark(session, data, batch)
        session.leave()
        if self._pin_memory:
            data = _utils.pin_memory.pin_memory(data, self._pin_memory_device)
        session.batches.handed_out(batch, samples)
        return data

    return next_data


# In the main process, with workers


class Schedule(LoaderSchedule):
    """The schedule of one epoch of a DataLoader, whose data are real."""

    def __init__(self, session: Session, iterator: Any, former: Schedule | None) -> None:
        same = former if former is not None and former.session is session else None  # the same workers go on
        self.session: Session = session
        self.pins = iterator._pin_memory
        self.batch = session.batches.new_iterator()  # the next one
        super().__init__(session.runtime, iterator._num_workers, iterator._prefetch_factor, self.batch, same)

    def arrive(self, fetched: Fetched, worker: int) -> None:
        """The main thread takes a batch: draw what led to it, and wait until it is there."""
        session, runtime, batch = self.session, self.runtime, self.batch
        session.deferred.let_go()
        session.give_back()
        size, batched = nbytes(fetched.data), fetched.batched
        took = session.fetched(fetched.samples, size, fetched.work, fetched.unpriced, batched=batched)
        if session.measured:
            took += runtime.host.fetch_base  # the queue
        ready = self.fetch(batch, worker, took, size, slept=fetched.slept, files=fetched.files)
        mark(session, fetched.data, batch)
        if self.pins:
            ready = self.pin(batch, ready, size, lambda start: self._locking(fetched.data, start))
        runtime.batch, runtime.source = batch, session.source()
        self.hand_out(ready)
        self.batch += 1
        session.batches.handed_out(batch, fetched.samples)

    def _locking(self, data: Any, start: int) -> int:
        """The pin thread takes memory at `start` [ns]; return how long page-locking it takes."""
        took = 0
        for tensor in tensors(data):
            tag = tag_of(tensor)
            if type(tag) is HostTag and tag.pinned and tag.block is None:
                tag.block, locked = self.session.pinned.allocate_at(storage_of(tensor).nbytes(), start)
                took += locked
        return took


@functools.cache
def _recorded(kind: Any) -> Any:
    """Return the class of an iterator whose workers were started in a recording: they go on to send `Fetched`."""

    def process(self: Any, data: Any, *args: Any) -> Any:
        if isinstance(data, Fetched) and not (Session.active and Session.active.in_recording_thread()):
            data = data.data
        return kind._process_data(self, data, *args)

    return type(kind.__name__, (kind,), {"_process_data": process, "__module__": kind.__module__})


def _several_init(session: Session, original: Callable[..., None], kind: Any) -> Callable[..., None]:
    def init(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        """Start the workers: each costs the main thread the start of a process."""
        if not loader.in_order:
            self._shutdown = True  # nothing to shut down when it is thrown away
            raise NotModelledError(
                "DataLoader(in_order=False) is not modelled: which batch comes first would depend on this machine; "
                "use in_order=True"
            )
        self.__class__ = _recorded(kind)
        if session.in_recording_thread():
            session.enter("DataLoader")
            runtime, workers = session.runtime, loader.num_workers
            runtime.batch, runtime.source = -1, session.source()
            runtime.host_work(runtime.host.worker_start * workers, f"start {workers} workers", Kind.OPERATOR)
            session.begin_priced(0)
        else:
            session.note(ELSEWHERE)
        try:
            original(self, loader, *args, **kwargs)
        finally:
            if session.in_recording_thread():
                session.end_priced()

    return init


def _several_next(session: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    def next_batch(self: Any) -> Any:
        """Take a batch: what that costs the main thread is in `Host.hand_out`."""
        if not session.in_recording_thread():
            return original(self)
        session.begin_priced(0)
        try:
            return original(self)
        finally:
            session.end_priced()

    return next_batch


def _several_reset(session: Session, original: Callable[..., None]) -> Callable[..., None]:
    def reset(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        """Begin an epoch: orders for the first batches go out."""
        if session.in_recording_thread():
            self._schedule = Schedule(session, self, getattr(self, "_schedule", None))
        original(self, loader, *args, **kwargs)

    return reset


def _several_process(session: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    def process(self: Any, data: Any, worker: int, *args: Any) -> Any:
        """Hand a batch out: its costs first, then the next order goes to a worker."""
        if not session.in_recording_thread() or isinstance(data, ExceptionWrapper):
            return original(self, data, worker, *args)
        if not isinstance(data, Fetched):  # from workers that are older than the recording
            data = Fetched(data, sample_count((), data))
        session.enter("DataLoader")
        schedule = getattr(self, "_schedule", None)
        if schedule is None or schedule.session is not session:
            schedule = self._schedule = Schedule(session, self, None)
        schedule.arrive(data, worker)
        session.leave()
        return original(self, data.data, worker, *args)

    return process


# Batches


def unpriced(meter: Meter, fetcher: Any) -> int:
    """Return the real time of a fetch that nothing prices [ns]: none, for one that `Host.fetch_*` are for."""
    ours = type(fetcher.dataset) is TensorDataset or type(fetcher.dataset).__module__.startswith("loaderviz.")
    return 0 if ours else meter.unpriced


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


# What a data set's own work costs

# Measured on one core of an AMD EPYC 9005 (Zen 5), the best of seven in processor time, on pictures of 32 to 512
# pixels a side: Pillow 13.0, torchvision 0.28, torch 2.13. A call costs these ns, and these ps for each byte of the
# larger of what goes in and what comes out. `Host.transforms` says how much slower another processor is.
TRANSFORMS = """
PIL.Image fromarray                               4_000    150
PIL.Image Image.convert                           2_500    160
PIL.Image Image.copy                              1_000     33
PIL.Image Image.crop                              3_500     10
PIL.Image Image.resize                           10_000  1_440
PIL.Image Image.rotate                            9_000    440
PIL.Image Image.transpose                         3_000    116
PIL.ImageFile ImageFile.load                     40_000  1_070
PIL.ImageEnhance _Enhance.enhance                 5_000    750
PIL.ImageOps expand                               6_000     58
torchvision.transforms.functional to_tensor      14_000    670
torchvision.transforms.functional pil_to_tensor   9_000    170
torchvision.transforms.functional normalize      14_000     57
torchvision.transforms.functional adjust_hue     22_000  9_850
"""
PNG = 7  # times as long as a JPEG does its picture take to decode


# In `Host.fetch_per_byte`: to take samples and to stack them
TAKING = frozenset(["index", "index_select", "stack", "cat", "clone", "copy_", "select_copy"])


class Meter(TorchDispatchMode):
    """Counts what is done in a block, on its thread; enter it around each fetch."""

    def __init__(self, host: Host, measured: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.host, self.measured = host, measured
        self.work = self.unpriced = self._left_out = 0
        self.calls = self.overhead = 0  # calls of torch that the emulator saw, and what it took at each [ns]
        self._inside = 0  # above 0: what is called is priced as a whole, or elsewhere
        self._known: dict[Any, Operator] = {}
        self._undo: list[tuple[Any, str, Any]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in `Operators`

    def __enter__(self) -> Any:
        self._replace(declarations.costs, "declare", self.declared)
        if not self.measured:
            if self.host.transforms:
                self._price_transforms()
            super().__enter__()  # type: ignore[no-untyped-call]
        for owner in (builtins, io):  # pathlib's is the second
            self._replace(owner, "open", self._noting(vars(owner)["open"]))
        self.files = list[tuple[tuple[int, int], int]]()
        self.work = self.calls = self._left_out = 0  # ns; _left_out: of real time that is priced, or ours
        self._start = thread_time_ns()
        return self

    def __exit__(self, *error: Any) -> None:
        rest = max(0, thread_time_ns() - self._start - self._left_out - self.calls * self.overhead)
        try:
            if not self.measured:
                super().__exit__(*error)  # type: ignore[no-untyped-call]
        finally:
            self.work, self.unpriced = (self.work + rest, 0) if self.measured else (self.work, rest)
            while self._undo:
                setattr(*self._undo.pop())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator, and price it."""
        kwargs = kwargs or {}
        if (operator := self._known.get(func)) is None:
            operator = self._known[func] = Operator(func)
        if self._inside or operator.is_free or operator.no_kernel:
            return func(*args, **kwargs)
        with self.not_counted(), torch._C.DisableTorchFunction():
            result = func(*args, **kwargs)
            if operator.base not in TAKING:
                self.work += self.host.dispatch + costs.host_time(self.host, *host_work(operator, args, kwargs, result))
        return result

    def calibrate(self) -> None:
        """Find what a worker's guard takes at each call of torch besides its question, which `touches` leaves out."""
        tensor, taken = torch.empty(0), []
        for _ in range(5):
            with self:
                for _ in range(40):
                    tensor.is_floating_point()
            taken.append(self.work // 40)
        self.overhead = min(taken)

    def touches(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> bool:
        """`touches_device`: it looks at each tensor of a batch, and that is the emulator's own work."""
        start = thread_time_ns()
        self.calls += 1
        try:
            return touches_device(func, args, kwargs)
        finally:
            self._left_out += thread_time_ns() - start

    @contextmanager
    def not_counted(self) -> Iterator[None]:
        """Leave out the real time of a block, and what is called in it: it is priced as a whole, or elsewhere."""
        start, before = thread_time_ns(), self._left_out
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            self._left_out = before + thread_time_ns() - start

    @contextmanager
    def declared(self, duration: int) -> Iterator[None]:
        """`loaderviz.costs`: the block's own Python costs `duration` ns, and not what it takes here."""
        start, before = thread_time_ns(), self._left_out
        try:
            yield
        finally:
            self.work += duration
            self._left_out = before + thread_time_ns() - start

    def _noting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `open`, noting what this thread opens to read; the bytes come from the page cache at least."""
        fetching = threading.get_ident()

        def opening(*args: Any, **kwargs: Any) -> Any:
            file = function(*args, **kwargs)
            if threading.get_ident() != fetching:
                return file
            found = os.fstat(file.fileno())
            if file.readable() and stat.S_ISREG(found.st_mode) and self.host.disk:
                self.files.append(((found.st_dev, found.st_ino), found.st_size))
                self.work += 0 if self.measured else costs.host_time(self.host, 2 * found.st_size)
            return file

        return opening

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        self._undo.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    def _price_transforms(self) -> None:
        for row in TRANSFORMS.split("\n")[1:-1]:
            module, path, base, per_byte = row.split()
            owner: Any = sys.modules.get(module)
            if owner is not None:
                *classes, name = path.split(".")
                for step in classes:
                    owner = getattr(owner, step)
                self._replace(owner, name, self._priced(vars(owner)[name], int(base), int(per_byte)))

    def _priced(self, function: Callable[..., Any], base: int, per_byte: int) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            first = args[0] if args else None
            if self._inside or getattr(first, "tile", None) == []:  # a picture that is decoded already
                return function(*args, **kwargs)
            times = PNG if function.__name__ == "load" and getattr(first, "format", "") == "PNG" else 1
            with self.not_counted():
                result = function(*args, **kwargs)
                nbytes = max(_size(first), _size(result))
                self.work += (base + per_byte * times * nbytes // 1000) * self.host.transforms // costs.FULL
            return result

        return call


def _size(value: Any) -> int:
    """Return the bytes of a picture, array or tensor; 0 for anything else."""
    if hasattr(value, "getbands"):
        return int(value.width * value.height * len(value.getbands()))
    size = getattr(value, "nbytes", 0)
    return size if isinstance(size, int) else 0
