"""Session: one recording on the emulated GPU. It has the runtime, the memory pools and what the modes share."""

from __future__ import annotations

import contextlib
import copy
import linecache
import os
import re
import statistics
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _device
from torch.utils._python_dispatch import _get_current_dispatch_mode

from loaderviz import words
from loaderviz.batches import BATCH_RANGE, LOADER_NEXT, PREFETCH_RANGE, Numbering, batch_name, batches_of, holds_bytes
from loaderviz.emulator.device import Stream
from loaderviz.emulator.hardware import Gpu, Host, Parcel, pages
from loaderviz.emulator.hazards import Access
from loaderviz.emulator.hazards.races import Races
from loaderviz.emulator.host import processor_time, waiting_time
from loaderviz.emulator.runtime import CudaError, Event, Runtime
from loaderviz.emulator.threads import HostThread, Scheduler
from loaderviz.emulator.torch import internals
from loaderviz.emulator.torch.copies import DeferredCopies
from loaderviz.emulator.torch.patches import stop_waiting
from loaderviz.emulator.torch.tensors import AT_REST, DeviceTag, HostTag, TensorMemory
from loaderviz.emulator.torch.tracking import AccessTracking
from loaderviz.errors import LoadervizError, NotModelledError
from loaderviz.imports import held
from loaderviz.machine import COARSE, TICKS, shared_memory, tick
from loaderviz.stations import Sampler, is_package, is_program
from loaderviz.timeline import Cause, Context, Timeline

if TYPE_CHECKING:
    from types import FrameType

    from loaderviz.emulator.torch.dataloader import Fetched

Copies = Literal["on_wait", "eager"]
OnHazard = Literal["warn", "raise", "off"]
DEVICE = torch.device("cuda", 0)
CPU = torch.device("cpu")
STANDS_FOR_CUDA = torch.device("cpu", 0)  # while nothing is emulated; nobody else gives the CPU an index
ON_HOST = object()
PIN_THREAD = "loaderviz pin thread"
OTHER_WORK = [{str(key): [key, (key,)]} for key in range(8)]  # as large as the emulator's for an operator
NOTED = 2_000_000  # ns of a batch that are unpriced, or measured on the wall, from which this is noted
LITTLE, MOST = 500_000, 5  # ns of a batch that is unpriced, too, if more than a step, and so many times what is charged
ONE_THREAD = (
    ": with threads=False the emulated GPU has one host thread. Issue CUDA calls from the thread that entered "
    "record(), or let threads take turns in virtual time, as they do without threads=False."
)
NOT_RECORDED = (
    " that takes no turns: it is older than the recording, or lives on after its end; it was started by `_thread`, "
    "by a library for its processes, or in a data set's fetch. Let a thread use the GPU that you start with "
    "threading.Thread in the record() block, give it work by a queue.Queue, and join it before the block ends."
)
WIDE, LOOKS = 4096, 3  # elements of a tensor that is looked at, and how many such
WIDER = (torch.float32, torch.float64, torch.int64, torch.int32)
# So many times what is charged is noted: this machine's processor may be slower than the named one; its waits add up.
NOTED_TIMES = {"data set": 4, "waiting": 0.25}
NOTED_SHARE = 0.25  # so much of what a fetch takes here is noted, too, where it is more than what is charged,
CLEAR = 12_000_000  # and than so many ns: of less the emulator's own part, 8 ms in benchmarks/loops, may be most
WAITED = 20_000_000  # ns of waiting in all batches but the longest, from which it is noted: it may come in some only
UNPRICED = {
    "data set": "unpriced: the data set's own Python takes time on this machine that a named host does not know: "
    "declare it with loaderviz.costs(seconds), or record with host='auto'; recording.unpriced has the figures",
    "waiting": "unpriced: the data set waits on this machine for a socket, a process, a lock or a file system, which "
    "costs nothing on a named host: declare it with loaderviz.costs(waits=seconds), or record with host='auto'",
}
# What the figures of a host are, by whether this machine is measured
MADE_OF = (
    "other Python costs nothing",
    "cores, new pages of memory, data sets and other Python as measured on this machine; the preset's calls of torch "
    "and CUDA, copies, page-locking, operators and disk",
)
MEASURED = "what the data set waited for was measured with this machine's clock, {0} a batch: {1}"
NOTED_SPUN = 0.1  # of what fetches took
SPUN = (
    "the data set's operators ran on several threads, and other programs had this machine's cores: where one thread "
    "waits for another it counts as if it worked, and other waits may be missing. Record on an idle machine, or after "
    "torch.set_num_threads(1)"
)
EXACT = "without the time in which it had no core", "with the time in which other programs had its core"
TORCH = Path(torch.__file__).parent
PACKAGES = (TORCH, TORCH.parent / "torchvision", TORCH.parent / "torchdata", Path(__file__).parents[2])
NOT_USER_CODE = (*(f"{package}{os.sep}" for package in PACKAGES), "<frozen", contextlib.__file__)


ASKS_FOR_GPU = re.compile(r"\b(cuda|accelerator)\.is_available\(\)")


class NoRecordingError(LoadervizError, RuntimeError):
    """A stream or event of the emulated GPU was used outside a recording."""


def wanted_device(device: Any) -> torch.device:
    """Return the device that a call names. An int is a GPU's index. Raises `CudaError` for a second GPU."""
    if isinstance(device, int) and not isinstance(device, bool):
        device = torch.device("cuda", device)
    place: torch.device = torch.device(device)
    if place.type == "cuda":
        if place.index not in (None, 0):
            raise CudaError(
                f"CUDA error: invalid device ordinal: {place} was asked for, but the emulated machine has one GPU, "
                "cuda:0; several devices and peer copies are not modelled"
            )
        return DEVICE
    if place.type not in ("cpu", "meta") and Session.active is not None:  # a Mac's GPU, for example
        Session.active.note(f"what runs on {place} is not in this timeline: CUDA devices alone are emulated")
    return CPU if place.type == "cpu" else place  # "cpu:0" is the same


class Session(HostThread, TensorMemory):
    """The state of one emulated recording, used by one thread at a time, whose own state it has."""

    active: ClassVar[Session | None] = None  # the one whose recording runs
    stop: Callable[[], None] | None = None  # to be called once the recording may stop
    stray = 0  # the thread that has our modes, and no turns any more
    _stopped = 0  # when it did, on this machine's clock [ns]
    plain = True  # nothing is in the program that the CPU alone would do in another way
    touched = False  # a data set has to do with the device
    ahead = 0  # batches that DataLoaders' workers prepare at most
    ranges: dict[int, tuple[str, int]]  # annotations that began: name and start [ns]

    def __init__(
        self, gpu: Gpu, host: Host, *, measured: bool, copies: Copies, launch_blocking: bool, hazards: OnHazard = "warn"
    ) -> None:
        TensorMemory.__init__(self, Runtime(gpu, host, launch_blocking=launch_blocking))
        HostThread.__init__(self, self.runtime.default_stream)
        self.alone = self.thread  # while it is the only thread that is recorded; then 0
        self.scheduler: Scheduler  # of the threads
        self.tracking: AccessTracking | None = None  # tells `races` what is read and written
        if hazards != "off":
            self.runtime.races = Races(self.runtime.order, self.runtime.builder, raising=hazards == "raise")
            self.tracking = AccessTracking(self, self.runtime.races)
        self.copies = copies
        self.measured = measured
        self.threads = {self.thread}  # also those that were started since: they are told of the GPU, and refused it
        self.refused: NotModelledError | None = None  # the first in another thread
        self.stops = False  # its thread can be stopped where it waits, by a signal: `patches.stop_waits`
        self.shuffling = False  # torch's own sampler says what comes next, which is in `Host.fetch_per_sample`
        self.fetching = 0  # above 0: inside dataset and collate, whose host costs come from `Host`
        self.operators: Any = None  # the mode that sees every operator
        self.functions_mode: Any = None  # the one that sees every function
        self.default_type = CPU  # the device of the default tensor type
        self.only_nccl: list[Any] = []  # the process groups that take tensors of the device alone
        self.warming_up = False  # inside make_graphed_callables, which runs backward of gradients that it leaves blank
        self.sync_debug = 0  # 0 off, 1 warn, 2 error
        self.batches = BatchNumbers(self.runtime)
        self.notes: dict[str, None] = dict.fromkeys(internals.untried())  # in order, each once
        self.meter: Any = None  # the `dataloader.Meter` of data sets on the main thread
        self.sampler: Sampler | None = None  # of the program's lines, where it is measured
        self.sent = self.fetched_by_workers = 0  # ns that workers computed, and of that to send their batches
        self.faults: dict[str, None] = {}  # what is seen to be wrong, by the kind of its finding
        self.largest_pass = 0  # bytes of `outside` at most; 0: it costs nothing
        self._looks = LOOKS
        self.unpriced: dict[str, list[int]] = {}  # where a batch took how many ns of real time that nothing prices
        self._charged: list[int] = []  # what each batch costs instead [ns]
        self._here: list[int] = []  # what its fetch took this machine's processor [ns]
        self.sent_whole: set[Hashable] = set()  # storages of which workers send parts
        self._parcels: list[tuple[int, ...]] = []  # what each batch is, and read of files, whoever fetches it
        self._waited: list[int] = []  # how long this machine waited for each [ns]
        self._spun = self._worked = 0  # how long its threads may have waited for each other, of what is measured [ns]
        self.deferred = DeferredCopies(self)
        self._internal: set[str] = set()  # files of torch and ours
        self._adopted: dict[Stream, Stream] = {}  # streams of earlier recordings -> ours

    @classmethod
    def running(cls, call: str) -> Session:
        """Return the session of the recording that runs. Raises `NoRecordingError` if none does."""
        if cls.active is None:
            raise NoRecordingError(
                f"{call} belongs to an emulated GPU whose recording has ended; use it inside a record() block"
            )
        return cls.active

    # Host time

    def bookkeeping(self) -> AbstractContextManager[None]:
        """Run our own tensor code: nothing of it is counted."""
        return held(self, "quiet", self.quiet + 1)

    def placing(self, device: torch.device | None) -> AbstractContextManager[None]:
        """A call of torch makes a tensor, which belongs on `device` (None: where its arguments are)."""
        return held(self, "target", device)

    @contextmanager
    def seen(self) -> Iterator[None]:
        """Let the functions of a block be seen, too, though it runs inside one: torch takes a mode away meanwhile."""
        with nullcontext() if self.functions_mode in _get_current_function_mode_stack() else self.functions_mode:
            yield

    @contextmanager
    def on_host(self) -> Iterator[None]:
        """Run a block on the CPU that is really there, also what asks for the GPU; nothing of it is counted."""
        with held(self, "aside", ON_HOST), internals.DisableTorchDispatch():
            yield

    @contextmanager
    def fetching_data(self, priced: bool = True) -> Iterator[Any]:
        """Inside data set and collate a meter counts; the operators' mode rests until the device is touched.

        How much of a fetch was the emulator's own is found before the first one of which somebody asks it: not of a
        data set that is `priced`, unless it is measured.
        """
        self.fetching += 1
        self.begin_priced(0)
        on_top = _get_current_dispatch_mode() is self.operators
        if on_top:
            self.operators.__exit__(None, None, None)
            self.aside = self.operators
        try:
            if not self.meter.is_calibrated and (self.measured or not priced):
                self.meter.calibrate()
            with self.meter:
                yield self.meter
        finally:
            if on_top:
                self.aside = None
                self.operators.__enter__()
            self.fetching -= 1
            self.end_priced()

    def sleep(self, time: int) -> None:
        """The program sleeps for so many ns, which takes no core."""
        if not time:
            self.scheduler.look()
        with self.scheduler.without_gil():  # what comes next comes after what others do meanwhile
            self.runtime.sleep(time)
        if self.fetching:
            self.meter.beside += time
            self.meter.note(Cause.INPUT, time)

    def new_iterator(self, iterator: Any) -> int:
        """A DataLoader's iterator begins: return the number of its first batch."""
        mine = not self.fetching and self.in_recording_thread()
        return self.batches.new_iterator(batches_of(iterator) if mine else 0, self.source(2))

    def look_at(self, source: torch.Tensor) -> None:
        """Look whether the first large tensors that go to the GPU are bytes in a wider type, or float64."""
        if self._looks and source.numel() >= WIDE and source.dtype in WIDER and source.layout is torch.strided:
            self._looks -= 1
            with self.bookkeeping(), internals.DisableTorchFunction(), internals.DisableTorchDispatch():
                some = source.detach().flatten()[:: max(1, source.numel() // WIDE)].double()
                if holds_bytes(some):
                    self.faults.setdefault("wide-dtype")
                elif source.dtype == torch.float64:
                    self.faults.setdefault("float64")

    def enter(self, call: str) -> None:
        """Every way into the emulator passes here: the right thread? And where Python is measured, how late is it?"""
        if threading.get_ident() != self.alone:
            self._enter_of_many(call)
        if self.measured:
            self.runtime.now += self.own.stop()
        if self._released:
            self.give_back()

    def _enter_of_many(self, call: str) -> None:
        """Where threads are scheduled, a way in is a point. Raises what is refused to a thread that is not."""
        if self.in_recording_thread() and self.alive:
            self.catch_up()
            self.scheduler.collect()
            self.scheduler.point()
            if self.alive:
                return
        why = NOT_RECORDED if self.scheduler.gives_turns else ONE_THREAD
        if self.scheduler.let_go_for:
            why = f", and threads have no turns any more: {self.scheduler.let_go_for}"
        raise self.refused_elsewhere(NotModelledError(f"{call} in a second Python thread{why}"))

    def catch_up(self) -> None:
        """Where Python is measured, let the clock come to where the program is."""
        if self.measured:
            self.scheduler.works(self.own.stop())

    def refused_elsewhere(self, problem: NotModelledError) -> NotModelledError:
        """Note what is refused to another thread, and return it: the recording ends with the first of these."""
        if self.refused is None and self.alive:
            self.refused = problem
            if self.stops:
                threading.Thread(target=stop_waiting, args=(self,), daemon=True).start()
        return problem

    def leave(self) -> None:
        """The way out: from here on the program's own Python runs, whose processor time `host="auto"` counts."""
        if self.measured and not self.priced and not self.functions:
            self.own.go()

    @contextmanager
    def calling(self, call: str) -> Iterator[Session]:
        """Around a call that the emulator answers: in, with the caller's line noted, and out."""
        self.enter(call)
        self.mark_source()
        try:
            yield self
        finally:
            self.leave()

    def own_work(self, work: Callable[..., Any], *args: Any) -> Any:
        """Run what is the emulator's and calls nothing of the device: no part of it is the program's, or counted.

        Its operators go past our mode, unless the program has a mode of its own, which sees them as on a GPU.
        """
        if self.measured:
            self.runtime.now += self.own.stop()
        try:
            alone = internals.DisableTorchDispatch() if self.operators_alone() else nullcontext()
            with (
                held(self, "functions", self.functions + 1),
                self.bookkeeping(),
                internals.DisableTorchFunction(),
                alone,
            ):
                return work(*args)
        finally:
            self.leave()

    def calibrate(self) -> None:
        """Find what the emulator takes around each call of torch that the clocks of the program would count.

        Between two calls it does other work, as it does for an operator: afterwards a processor is slower for a while.
        """
        runtime, tensor, taken = self.runtime, torch.empty(0), []
        self.own.stop()
        with processor_time.fine():
            for _ in range(60):
                self.own_work(copy.deepcopy, OTHER_WORK)
                before = runtime.now
                tensor.is_floating_point()
                taken.append(runtime.now - before)
                runtime.now = before
            self.own.overhead = statistics.median_low(taken)
            self.own.stop()
        self.own.go()

    def begin_priced(self, cost: int) -> None:
        """A module's call, backward or an optimizer's step begins: from here `Host` says what Python costs."""
        self.enter("torch")
        self.runtime.now += cost
        self.priced += 1

    def end_priced(self) -> None:
        """It ends."""
        self.priced -= 1
        self.leave()

    @contextmanager
    def declared(self, work: int, waits: int, gil: bool = True) -> Iterator[None]:
        """`loaderviz.costs`: the Python of a block takes `work` ns, then waits; torch in it costs as it always does."""
        self.begin_priced(0)
        try:
            yield
        finally:
            self.mark_source()
            start = self.runtime.now
            self.scheduler.works(work, gil)
            self.runtime.note(start, "declared")
            if waits:
                with self.scheduler.without_gil():
                    self.runtime.sleep(waits)
            self.scheduler.point()
            self.end_priced()

    def count_call(self) -> None:
        """At the first operator of a call of torch, charge what lies between two calls, unless it is measured."""
        if self.counted == self.calls:
            return
        self.counted = self.calls
        if not self.fetching and (self.priced or not self.measured):
            self.runtime.now += self.runtime.host.python

    def host_operator(self, name: str, nbytes: int, flops: int = 0, work: int = 0, *, batch: int = -1) -> None:
        """Count a CPU operator on the main thread: dispatch, and bytes, FLOPs or work, whichever takes longest."""
        if self.fetching:
            return
        self.mark_source(batch)
        host, start = self.runtime.host, self.runtime.now
        work = host.dispatch + host.work_time(nbytes, flops // max(1, host.cores), work)
        self.scheduler.works(work, gil=False)
        self.runtime.note(start, name)
        if flops:
            self.runtime.shared.take(start, self.runtime.now, host.cores - 1)  # torch's threads

    def outside(self, name: str, nbytes: int) -> None:
        """Count what numpy or Python gets of a tensor, or gives, as one pass over it, where an exercise wants that."""
        if self.largest_pass and self.in_recording_thread():
            self.host_operator(name, min(nbytes, self.largest_pass))

    def host_list(self, name: str, took: int) -> None:
        """Count the ns that a list takes to become a tensor, or back, on the main thread, which has the lock then."""
        if took and not self.fetching:
            self.mark_source(-1)
            start = self.runtime.now
            self.scheduler.works(took, gil=True)
            self.runtime.note(start, name)

    def fetched(self, batch: Fetched, nbytes: int, parcel: Parcel) -> int:
        """Return what a fetch costs a processor [ns]; note what nothing prices, and what is measured on the wall."""
        self._parcels.append((*parcel, sum(count for *_, count in batch.files)))
        self._waited.append(batch.waited)
        if self.measured:
            self._spun, self._worked = self._spun + batch.spun, self._worked + batch.work
            return batch.work
        took = batch.work + self.runtime.host.fetch_time(batch.samples, nbytes, batched=batch.batched)
        for what, time in (("data set", batch.unpriced), ("waiting", batch.waited)):
            self.unpriced.setdefault(what, []).append(time)
        self._charged.append(took + batch.slept)
        self._here.append(batch.here)
        return took

    def _parcel(self) -> dict[str, int]:
        """Return what most batches are, and read of files, as in a timeline's context."""
        usual = map(statistics.median_low, zip(*self._parcels, strict=True))
        return {what: amount for what, amount in zip((*Parcel._fields, "read"), usual, strict=False) if amount}

    def _not_priced(self) -> tuple[str, ...]:
        """Return the kinds of time that batches take on this machine, and that are far from what they cost."""
        if self.measured:
            return ()
        # More than one batch is judged at once, in sum, where a tick of the clock is a batch's time
        far, many = NOTED_TIMES["data set"], max(1, min(4 * tick() // NOTED, len(self._charged) // 2))
        starts = range(0, len(self._charged), many)
        sums = (
            [sum(times[start : start + many]) for start in starts]
            for times in (self.unpriced.get("data set", []), self._charged, self._here)
        )
        step = self.runtime.now / max(1, len(self._charged))
        noted = [
            (time >= NOTED * many and time > min(far * cost, max(cost, NOTED_SHARE * here, CLEAR * many)))
            or time > max(LITTLE * many, step * many, MOST * cost)
            for time, cost, here in zip(*sums, strict=True)
        ]
        # of one batch nothing is known: it may load and warm up
        python = len(noted) > 1 and 2 * sum(noted) > len(noted)
        waiting = self._waits() > NOTED_TIMES["waiting"] * sum(self._charged)
        return tuple(kind for kind, is_far in (("data set", python), ("waiting", waiting)) if is_far)

    def _waits(self) -> int:
        """Return how long the data set waited [ns], if that is worth a word; what is paid once is left out."""
        waits = sum(self._waited) - max(self._waited, default=0)
        return waits if waits >= WAITED else 0

    def first_read(self, tensors: Iterable[torch.Tensor], tags: Iterable[Any]) -> None:
        """The main thread reads tensors: of what a worker wrote, each page costs it once."""
        for tensor, tag in zip(tensors, tags, strict=False):
            if type(tag) is HostTag and tag.new:
                tag.new = False
                self.runtime.now += pages(tensor.nbytes) * self.runtime.host.first_read

    def source(self, depth: int = 1) -> str:
        """Return "file:line" of `caller`."""
        frame = self.caller(depth + 1)
        return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""

    def caller(self, depth: int = 1) -> FrameType | None:
        """Return the nearest frame of the program, or of an example of ours; without one a package's outermost.

        The next `depth` ones are none.
        """
        frame: FrameType | None = sys._getframe(depth)
        internal, outermost = self._internal, None
        while frame is not None:
            if (file := frame.f_code.co_filename) not in internal:
                example = frame.f_globals.get("__user_code__")  # set in a module of ours that stands for a program
                own = file.startswith(NOT_USER_CODE)
                if example or (not own and is_program(file)):
                    return frame
                if own:
                    internal.add(file)
                elif is_package(file):
                    outermost = frame
            frame = frame.f_back
        return outermost

    def mark_source(self, batch: int = -1) -> None:
        """Let the spans made from now on carry the caller's line, and this batch, or else that of the loop."""
        self.runtime.source, self.runtime.batch = self.source(), batch if batch >= 0 else self.batches.current

    def mark_call(self, batch: int) -> None:
        """The same for an operator: all those of one call of torch come from one line."""
        if self.line_of != self.calls:
            self.line_of, self.line = self.calls, self.source(4)
        runtime = self.runtime
        runtime.source, runtime.batch = self.line, batch if batch >= 0 else self.batches.current

    def warn(self, text: str) -> None:
        """Warn as torch does, at the program's own line."""
        words.warn(text, self.caller())

    def read_blank(self, operator: str, on_device: bool, made: str) -> None:
        """An operator reads memory that was made at a line, and that nothing has written since."""
        if self.runtime.races and not self.warming_up:
            at = Access(operator, False, self.stream.number if on_device else None, source=self.source())
            self.runtime.races.linter.blank(at, made)

    def synchronizing(self, call: str) -> None:
        """A call that makes the host wait, for `torch.cuda.set_sync_debug_mode` (R26)."""
        if self.sync_debug == 1:
            self.warn(f"called a synchronizing CUDA operation ({call})")
        elif self.sync_debug == 2:
            raise RuntimeError(f"called a synchronizing CUDA operation ({call})")

    def synchronize(self, target: Stream | Event | None) -> None:
        """Block the host until a stream, an event or (None) the device is done; what was on its way arrives."""
        with self.calling("synchronize"):
            self.runtime.synchronize(target)
            self.deferred.host_knows()

    def stream_of(self, stream: Any) -> Stream:
        """Return the runtime's stream behind a `torch.cuda.Stream`; None stands for the current one."""
        if stream is None:
            return self.stream
        emulated = getattr(stream, "emulated", None)
        if not isinstance(emulated, Stream):
            raise TypeError(f"a torch.cuda.Stream is expected, got {stream!r}")
        return emulated

    def adopt(self, stream: Stream) -> Stream:
        """Return what stands in this recording for a stream that was made in an earlier one."""
        if stream.id == 0:
            return self.runtime.default_stream
        if stream not in self._adopted:
            self._adopted[stream] = self.runtime.stream(stream.priority)
        return self._adopted[stream]

    def in_recording_thread(self) -> bool:
        """Tell whether the thread that records is calling."""
        return threading.get_ident() == self.thread

    def set_stream(self, stream: Stream) -> None:
        """Make `stream` the current one; backward finds by sequence number which one an operator ran on (R17)."""
        if stream is not self.stream:
            self.stream = stream
            self.stream_history.append((internals.get_sequence_nr(), stream))

    def note(self, text: str) -> None:
        """Add a line to the timeline's notes, once."""
        self.notes.setdefault(text)

    # Ranges and the end

    def enter_range(self, name: str) -> int:
        """An annotation begins (`record_function`, NVTX); return when.

        One named "batch 3" says which batch the loop is at, "prefetch of batch 5" what the work inside is for.
        """
        if match := BATCH_RANGE.match(name):
            self.batches.annotated(int(match[1]), int(match[2] or 0))
        elif match := PREFETCH_RANGE.match(name):
            self.prefetching.append(self.batches.prefetching(int(match[1])))
            self.prefetching[-1].__enter__()
        return self.runtime.now

    def leave_range(self, name: str, start: int) -> None:
        """The annotation that began at `start` ends."""
        if PREFETCH_RANGE.match(name) and self.prefetching:
            self.prefetching.pop().__exit__(None, None, None)
        elif not BATCH_RANGE.match(name):
            batch = self.batches.asked_for(start) if name.startswith(LOADER_NEXT) else self.batches.current
            self.runtime.range(start, self.runtime.now, name, batch)

    def stop_if_idle(self) -> bool:
        """Stop, unless the call of torch that the program makes is inside another one, or in something that counts.

        Tell whether it is a call of a thread that is not recorded any more.
        """
        if self.stray or self.runtime.main:
            return threading.get_ident() == self.stray
        counts = self.priced or self.fetching or self.quiet or self.functions > self.measured
        if self.stop and not counts and self.target is None and self.runtime.capture is None:
            stop, self.stop = self.stop, None
            stop()
        return False

    def since_stop(self) -> int:
        """Return how long ago the recording stopped [ns], on this machine's clock; 0 if it has not."""
        return perf_counter_ns() - self._stopped if self._stopped else 0

    def rest(self) -> bool:
        """The timeline is there: keep no more; and if the CPU gives the same values, let it work undisturbed.

        Tell whether it does: then tensors of the device are told by one tag, and nothing is priced.
        """
        self.runtime.forget()
        self.tracking = None
        alone = self.operators_alone() and not _get_current_function_mode_stack() and _device.CURRENT_DEVICE is None
        ranks = torch.distributed.is_available() and torch.distributed.is_initialized()
        usual = self.default_type is CPU and self.check is None and not (self.irregular or ranks)
        if not (self.plain and alone and usual and self.sync_debug == 0):
            return False
        self._rests = DeviceTag(self, self.allocate(0))  # from now on no memory is counted: one tag for all of it
        self.aside, self.measured, self._stopped = AT_REST, False, perf_counter_ns()
        return True

    def operators_alone(self) -> bool:
        """Tell whether no mode but ours sees operators."""
        return _get_current_dispatch_mode() is self.operators and internals.len_torch_dispatch_stack() == 1

    def finish(self) -> Timeline:
        """End the recording: the device runs dry, what is on its way arrives, the timeline is built."""
        self.runtime.device.drain()
        if self.tracking:
            self.tracking.checksums.check()
        self.runtime.order.host_wait_all()
        self.deferred.host_knows()
        self.batches.finish()
        runtime = self.runtime
        host = f"{runtime.host.name} ({MADE_OF[self.measured]})"
        unpriced, measured = self._not_priced(), ("waiting",) if self.measured and self._waits() else ()
        for kind in unpriced:
            self.note(UNPRICED[kind])
        if self._spun > NOTED_SPUN * self._worked:
            self.note(SPUN)
        if self.measured and tick() >= COARSE:
            self.note(TICKS.format(words.duration(tick())))
        if measured:
            waited = words.duration(sum(self._waited) / len(self._waited))
            self.note(MEASURED.format(waited, EXACT[not waiting_time.is_exact]))
        context = Context(
            runtime.gpu.name,
            "emulated",
            host,
            cores=runtime.host.cores or None,
            samples=self.batches.samples,
            versions={"torch": str(torch.__version__)},
            notes=(notes := tuple(self.notes)),
            unpriced=unpriced,
            measured=measured,
            faults=(*self.faults, *self.batches.faults),
            looks=tuple(self.sampler.seen) if self.sampler is not None else (),
            sent=self.sent / max(1, self.fetched_by_workers),
            shared_memory=shared_memory() if self.measured else None,
            usage=runtime.shared.usage() | self._parcel() | self.batches.usage,
        )
        timeline = runtime.timeline(context)
        if all(lane.group == "host" for lane in timeline.lanes) and (line := _asks_for_gpu(timeline.sources)):
            note = (
                f"nothing ran on the emulated GPU: when {line} asked whether there is one, the recording had not "
                "begun. Put that line into the record() block, or write device = 'cuda'"
            )
            timeline = replace(timeline, context=replace(context, notes=(*notes, note), missing=(note,)))
        if runtime.races:
            runtime.races.lints = runtime.races.linter.lints(timeline.begin + timeline.duration, self.pool.cached())
        return timeline


def _asks_for_gpu(sources: Iterable[str]) -> str:
    """Return "file:line" of where one of the program's files asks whether there is a GPU, or ""."""
    for file in dict.fromkeys(source.rpartition(":")[0] for source in sources):
        for number, line in enumerate(linecache.getlines(file), 1):
            if ASKS_FOR_GPU.search(line):
                return f"{os.path.basename(file)}:{number}"
    return ""


Step = tuple[int, int, int]  # start [ns], batch, samples (0: not known)


class BatchNumbers(Numbering):
    """Which batch a piece of work is for, and when the loop was at which batch.

    Batches are numbered through the whole recording. Data carry their number with them (a DataLoader's n-th batch, and
    all that is computed from it); work on data without a number belongs to the batch that the loop is at. The loop's
    position is told by our loaders' marks, by annotations named "batch 3", or, failing both, by the DataLoader's
    hand-outs. Where no batch is handed out, optimizers' steps are noted, from which `traces.steps` numbers the finished
    timeline.
    """

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime
        self.current = -1  # the batch that the loop is at
        self.ahead = -1  # inside `prefetching`: the later batch that the work is for
        self._newest: dict[int, int] = {}  # stream -> the newest batch that a kernel there was for
        self._marked: list[Step] = []
        self._handed_out: list[Step] = []
        self._by_loader = False  # the last mark came from a loader, not from an annotation
        self.steps: list[tuple[int, int]] = []  # end [ns] and number of optimizers' steps
        self.on_step: Callable[[], object] = int  # called when a step begins

    def handed_out(self, batch: int, samples: int) -> None:
        """A DataLoader gives batch `batch` to the main thread."""
        self.used(batch)
        if self._runtime.main:
            self.current = batch  # in another thread than the loop's: of the work there
            return
        self._handed_out.append((self._runtime.now, batch, samples))
        if not self._marked:
            self.current = batch
            if max(self._last.values()) < 0:  # else one of our loaders takes it, and marks the step
                self.on_step()

    @property
    def handed(self) -> list[Step]:
        """The batches that the loop has got, and so its steps that have begun."""
        return self._marked or self._handed_out

    @property
    def begun(self) -> int:
        """How many steps of the loop have begun; where only optimizers tell of them, how many are over."""
        return len(self.handed) or (self.steps[-1][1] + 1 if self.steps else 0)

    def asked_for(self, since: int) -> int:
        """Return the batch that a DataLoader has handed out since `since` [ns]; else the one that the loop is at."""
        time, batch, _ = self._handed_out[-1] if self._handed_out else (-1, -1, 0)
        return batch if time >= since else self.current

    def marked(self, index: int, samples: int) -> None:
        """One of our loaders hands out its batch `index` of this epoch."""
        self.current = self.number_of(index, "batch")
        self._marked.append((self._runtime.now, self.current, samples))
        self._by_loader = True
        self.on_step()

    def annotated(self, index: int, samples: int) -> None:
        """The program itself says that it is at batch `index`; a loader may have said so before."""
        if not (self._by_loader and index == self._last["batch"]):
            self.marked(index, samples)
        self._by_loader = False

    def optimizer_stepped(self, optimizer: object, *_: object) -> None:
        """An optimizer's `step()` ends; called by torch."""
        self.steps.append((self._runtime.now, self.stepped(id(optimizer))))
        if not self._handed_out:
            self.on_step()

    @contextmanager
    def prefetching(self, index: int) -> Iterator[None]:
        """Work in here is for a later batch, `index` of this epoch."""
        before = self.current, self.ahead
        self.current = self.ahead = self.number_of(index, "prefetch")
        try:
            yield
        finally:
            self.current, self.ahead = before

    def of_kernel(self, batch: int, stream: int) -> int:
        """Return the batch of a kernel on data of `batch` (-1: none); older data, such as states, count as newest."""
        if batch < 0:
            return self.current
        self._newest[stream] = batch = max(batch, self._newest.get(stream, -1))
        return batch

    @property
    def samples(self) -> int | None:
        """How many samples were handed out in all; None if one batch did not say."""
        counts = [samples for _, _, samples in self.handed]
        return sum(counts) if counts and all(counts) else None

    def finish(self) -> None:
        """Note a range for each step of the loop, from its hand-out to the next one."""
        ends = [start for start, _, _ in self.handed[1:]] + [self._runtime.now]
        for (start, batch, samples), end in zip(self.handed, ends, strict=False):
            self._runtime.range(start, end, batch_name(batch, samples), batch)
