"""RealRun: PyTorch code as it really runs, on a GPU or on the CPU alone, recorded through torch.profiler.

What the profiler does not know is added by `merge`: the DataLoader's workers and pin thread (`workers`), and which
batch is which (`LoaderRanges`, below).
"""

from __future__ import annotations

import os
import subprocess
import threading
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import profiler
from torch._utils import ExceptionWrapper
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, record_function
from torch.utils.data import _utils
from torch.utils.data import dataloader as torch_dataloader

from loaderviz import words
from loaderviz.batches import (
    BATCH_RANGE,
    HAND_OUT,
    LIMIT,
    Numbering,
    batches_of,
    given_twice,
    prefetch_name,
    sample_count,
    tensors,
)
from loaderviz.errors import LoadervizError, NestedRecordingError, reraise
from loaderviz.files import own_folder
from loaderviz.imports import ELSEWHERE, Function, around, function_of, held, program_of, starting
from loaderviz.loaders import base as loaders
from loaderviz.machine import (
    COARSE,
    TICKS,
    Carried,
    cores,
    processor,
    shared_memory,
    swapped_in,
    thread_lacked,
    tick,
    usage,
)
from loaderviz.stations import Place, Sampler, is_program, stack_of, timing
from loaderviz.timeline import DEVICE_KINDS, Cause, Context, Kind, Timeline, TimelineBuilder
from loaderviz.traces import merge, steps, workers
from loaderviz.traces.assemble import assemble
from loaderviz.traces.kineto import read_kineto
from loaderviz.traces.merge import ANCHORS, CLOCK, STEPPED, TAKING, WAITING, Own, own_name
from loaderviz.traces.source import Document
from loaderviz.traces.steps import Window
from loaderviz.traces.workers import Fetch, read_files

_NOTICEABLE = 1_000_000  # ns
_COUNTED = 8  # batches whose tensors are counted: a walk through each would be a part of the loop
_DEAR = 500_000_000  # ns; a forked worker starts within a few ms, a new process imports torch first
_STARTED = "the start of {} took {} of processor time: a new process imports what the program imports"
_LOOK = 500_000_000  # ns until the spans of a step are counted
_FEW = 100  # steps: a recording of no more is cut at its end alone
_INSTALLED = str(Path(torch.__file__).parents[1])
_TRIED = "NVIDIA H100", "NVIDIA H200"  # the cards on which recordings of a GPU were tried, with torch 2.11
_told = set[str]()  # other cards, of which this process has said so


class NotLookedForError(LoadervizError, RuntimeError):
    """Hazards were asked of a real run, in which they cannot be seen."""


class RealRun:
    """One recording of a real run; use it as a context manager, then read `timeline`.

    `cuda` says whether the GPU's work is recorded, too; `wait` and `steps` are those of `loaderviz.record`. Raises
    `NestedRecordingError` when a profiler runs already, LoadervizError where this torch was built without one.
    """

    def __init__(self, *, cuda: bool, wait: int = 0, steps: int | None = None, limit: int = LIMIT) -> None:
        if not profiler.kineto_available():
            raise LoadervizError("this PyTorch was built without its profiler (Kineto); emulate a GPU: on='a100'")
        self._cuda = cuda
        self._window, self._limit = Window(self, wait, steps), limit
        self._full = False
        self.timeline: Timeline | None = None
        self._profile: Any = None
        self._readings: list[tuple[int, int, int]] = []  # of our clock, before, in and after each anchor
        self._state: Literal["", "prepared", "running"] = ""
        self._started = 0  # how long the profiler took to begin, ns
        self._process = os.getpid()

    def __enter__(self) -> RealRun:
        if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            raise NestedRecordingError(
                "a profiler is running in this thread already; end it before record() begins, or read() its trace"
            )
        with ExitStack() as stack:
            self._folder = own_folder(stack)
            (self._folder / workers.RUNNING).touch()
            self._loader = LoaderRanges(self._folder, self._window)
            self._loader.install(stack)
            self._counter = SpanCounter(self._folder / "operators.json")
            stack.push(self._stop)
            self._window.enter()
            self._undo = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if os.getpid() != self._process:  # a fork of the program leaves the block: the recording is its parent's
            self._undo.pop_all()  # nothing here is this process's to undo
            self.timeline = _nothing("this is a forked process; its parent has the recording")
            return
        try:
            self._window.leave()
            if kind is not None:
                # not what it says: that may be a path or a name, and a timeline is made to be passed on
                self._loader.notes.setdefault(f"{kind.__name__} ended the block; what came before it is here")
            self.timeline = self._build()
        except Exception as problem:
            if kind is None:
                raise
            self.timeline = _nothing(f"the timeline could not be built: {problem}")  # the program's own error goes on
        finally:
            self.leave()

    def leave(self) -> None:
        """Undo what entering did, if anything is left of it."""
        self._undo.close()
        self._profile = None

    def begin_step(self) -> None:
        """The program says that a step begins; from the first such call on, these are counted."""
        self._window.called()

    @property
    def hazards(self) -> Any:
        """Raise `NotLookedForError`: a race leaves no trace in a real run, so none would mean nothing."""
        raise NotLookedForError(
            "hazards are not looked for in a recorded run: a race leaves no trace there, it gives wrong numbers now "
            "and then. Run the same code on an emulated GPU: record(on='a100')"
        )

    lints = hazards

    # The profiler, as `Window` asks: prepared a step before it begins, since its start may take seconds

    def prepare(self) -> None:
        """Make the profiler ready."""
        if self._state == "prepared":  # for a step that turned out to be none
            return
        self._profile = new_profile(self._cuda)
        with warnings.catch_warnings():  # torch 2.10 warns of several cycles, and there is one
            warnings.filterwarnings("ignore", "Warning: Profiler clears events", UserWarning)
            self._profile.prepare_trace()
        self._state = "prepared"

    def begin(self) -> None:
        """Let the profiler run."""
        begin = perf_counter_ns()
        self.prepare()
        self._state = ""
        (self._folder / workers.RUNNING).touch()
        self._profile.start_trace()
        self._state = "running"
        self._loader.began()
        self._started = perf_counter_ns() - begin
        self._anchor()

    def goes_on(self) -> bool:
        """Another step begins; tell whether there is room for it."""
        few = self._window.steps is not None and self._window.steps <= _FEW
        self._full = not few and self._counter.step() >= self._limit
        return not self._full

    def end(self) -> None:
        """Stop it, with all steps recorded."""
        self._counter.stop()
        self._anchor()
        self._stop()
        (self._folder / workers.RUNNING).unlink()
        self._loader.ended()

    def discard(self) -> None:
        """Stop it, and forget what it recorded."""
        self._stop()
        self._readings.clear()

    def _stop(self, *_: object) -> None:
        """Stop the profiler. One that was only prepared is started first: torch ends its own warm-up in this way."""
        state, self._state, self._loader.live = self._state, "", False
        if state == "prepared":
            self._profile.start_trace()
        if state:
            self._profile.stop_trace()

    def _anchor(self) -> None:
        for _ in range(ANCHORS):
            before = perf_counter_ns()
            with record_function(own_name(CLOCK)):
                inside = perf_counter_ns()
            self._readings.append((before, inside, perf_counter_ns()))

    # The timeline

    def _build(self) -> Timeline:
        reasons = steps.notes(self._window.wait, self._window.steps, self._window.count)
        if not self._readings:
            return _nothing(*reasons, *self._loader.notes)
        path = self._folder / "trace.json"
        self._profile.export_chrome_trace(str(path))
        raw = read_kineto(Document(path))
        path.unlink()
        raw.left_out.pop("instant", None)  # the profiler's own marks of its beginning and end
        by_optimizer = self._loader.by_optimizer(raw.names)
        merge.choose_marks(raw)
        own, traced = self._loader.seen(self._readings), assemble([raw])
        timeline = merge.merged(traced, own)
        if by_optimizer:
            timeline = steps.by_optimizer(timeline, merge.optimizer_steps(traced))
        timeline = replace(timeline, context=self._context(timeline, [*reasons, *self._loader.notes]))
        return steps.limited(timeline, self._limit, is_full=self._full)

    def _context(self, timeline: Timeline, reasons: list[str]) -> Context:
        """Say what was recorded, where, and what is not in it."""
        found, notes, missing = timeline.context, list(reasons), tuple[str, ...]()
        if not len(timeline) and not reasons:
            notes.append("nothing was recorded: the block ran no PyTorch operator, no DataLoader and no annotation")
        elif self._cuda and not timeline.where(*DEVICE_KINDS).any():
            missing = ("the profiler saw no work on the GPU: did the block use it, or does another profiler?",)
        if self._window.wait and self._started > _NOTICEABLE:
            notes.append(f"the profiler took {words.duration(self._started)} to begin; any workers went on meanwhile")
        if tick() >= COARSE and timeline.where(Kind.FETCH).any():
            notes.append(TICKS.format(words.duration(tick())))
        device = found.device if self._cuda else f"CPU alone ({processor()})"
        if self._cuda and torch.cuda.is_available() and ("unknown" in device or "no GPU" in device):
            device = torch.cuda.get_device_name()
        if self._cuda and not missing and len(timeline):
            notes += untried_card(device)
        return Context(
            device,
            "recorded",
            "this machine",
            clock=found.clock,
            cores=cores().threads,
            looks=found.looks,
            faults=(*self._loader.faults, *self._loader.numbering.faults),
            shared_memory=shared_memory(),
            usage=found.usage | self._loader.numbering.usage,
            samples=steps.samples(timeline),
            versions={"torch": torch.__version__} | found.versions,
            missing=(*missing, *found.missing),
            notes=(*notes, *missing, *found.notes),
        )


def untried_card(device: str) -> list[str]:
    """Return a sentence, once a process, for a card on which nobody has tried to record; else nothing."""
    if device in _told or (device.startswith(_TRIED) and "MIG" not in device):
        return []
    _told.add(device)
    tried = f"an {' and an '.join(_TRIED)}"
    return [
        f"recordings of a GPU were tried on {tried} with torch 2.11, and this card is {device}; in a copy of the "
        "repository, `python -m benchmarks.gpu_day` tries it in 20 minutes"
    ]


class SpanCounter:
    """Tells about how many spans the profiler has by now, which it does not say itself.

    Of one step after half a second, and of others later, torch's observer for execution traces writes the operators to
    a file. It takes some 20 µs for each, so that this step is a longer one.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._next, self._pause = file, perf_counter_ns() + _LOOK, _LOOK
        self._steps = self._each = 0  # how many there were, and spans of one that was counted
        self._observer = ExecutionTraceObserver()

    def step(self) -> int:
        """A step begins; return the spans of all those before it, 0 while none was counted."""
        if self._observer.is_registered:
            self.stop()
            self._each = self._file.read_text(encoding="utf-8").count('"id":')
        elif perf_counter_ns() > self._next:
            self._pause *= 4
            self._next = perf_counter_ns() + self._pause
            with _silent():
                self._observer.register_callback(str(self._file)).start()
        self._steps += 1
        return self._each * self._steps

    def stop(self) -> None:
        """Observe no more."""
        if self._observer.is_registered:
            with _silent():
                self._observer.unregister_callback()


@contextmanager
def _silent() -> Iterator[None]:
    """Let nothing be written to standard error, where torch says each time that it begins to observe."""
    with open(os.devnull, "wb") as nowhere:
        kept = os.dup(2)
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def new_profile(cuda: bool) -> profiler.profile:
    """Return a torch.profiler for this machine, not yet started: no shapes, no stacks, no Python objects of events."""
    if not torch.cuda.is_available():  # its log would say "profiler_start"; where there is a GPU it says what is wrong
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    config: Any = vars(profiler)["_ExperimentalConfig"]
    try:  # synchronisation events, for arrows, and no list of Python objects
        options = config(enable_cuda_sync_events=cuda, trace_only=True)
    except TypeError:  # a version without the second
        options = config(enable_cuda_sync_events=cuda)
    return profiler.profile(activities=activities, experimental_config=options)


def _nothing(*reasons: str) -> Timeline:
    return TimelineBuilder(Context(origin="recorded", notes=reasons)).build()


# What the main thread's DataLoaders do while a real run is recorded, told to the profiler as ranges. Torch's own parts
# are wrapped, not replaced: each wrapper enters a range, calls the original, and counts. The ranges are named
# "loaderviz|12|waiting for data", with the batch they are for; `merge` gives them the names and kinds that the emulated
# DataLoader uses.

_NOTHING: AbstractContextManager[object] = nullcontext()
_LONG = 50_000  # ns
_OLD = "a DataLoader was being iterated when the recording began: the work of its workers is not in the timeline"
_OTHER_THREAD = "a DataLoader was iterated in a second thread: its batches do not count as steps"


class IteratorState:
    """What is known of one iterator of a DataLoader. `number` is None if its workers are older than the recording."""

    def __init__(self, number: int | None = None) -> None:
        self.number = number
        self.epoch = -1
        self.first = self.count = 0  # number of the epoch's first batch, batches handed out since
        self.sizes: list[int] = []  # samples in each order of this epoch, 0: not told by its indices
        self.received = 0  # index of the last batch that came
        self.firsts = dict[int, bytes]()  # of an IterableDataset, what each worker gave first
        self.nested: bool | None = None  # one of loaderviz's loaders draws from it, and marks the steps itself

    @property
    def batch(self) -> int:
        """The number of the batch that is handed out next."""
        return self.first + self.count

    def begin_epoch(self, first: int) -> None:
        """Count from the first order again."""
        self.epoch, self.first, self.count = self.epoch + 1, first, 0
        self.sizes.clear()


class LoaderRanges:
    """Wraps torch's DataLoader for one recording. `live` says whether the profiler runs at the moment.

    `batches` maps (iterator, epoch, order) to the number under which a batch was handed out, `mine` such a number to
    what the main thread did each time when it fetched the batch itself (two loaders both have a batch 0).
    """

    def __init__(self, folder: Path, window: Window) -> None:
        self.live = False
        self.batches: dict[tuple[int, int, int], int] = {}
        self.mine = defaultdict[int, list[Fetch | None]](list)
        self._began = self._ended = (swapped_in(), thread_lacked())
        self.sampler = Sampler()
        self._tensors: list[int] = []  # how many the first batches have
        self._draws = list[tuple[int, int]]()  # when the order of a batch was drawn, if it took long
        self.notes: dict[str, None] = {}  # of the timeline, each once
        self.faults: dict[str, None] = {}
        self._folder, self._window = folder, window
        self.numbering = Numbering()
        self._feeds: WeakKeyDictionary[Any, IteratorState] = WeakKeyDictionary()
        self._iterators = 0
        self._step = -1  # an optimizer's last one
        self._step_told = False
        self._marks: set[str] = set()  # names of the ranges by which our loaders mark their batches
        self._building, self._started = threading.RLock(), ExitStack()  # while workers of a loader are started
        self._thread, self._process = threading.get_ident(), os.getpid()
        self._fetching: IteratorState | None = None  # whose batch the main thread prepares itself
        self._within = False  # a fetch: a DataLoader that a data set has is a part of it
        self._waits = Carried()  # of the fetches of the main thread

    def install(self, stack: ExitStack) -> None:
        """Wrap the parts of torch that are there; `stack` puts them back."""
        stack.callback(self.sampler.stop)
        every, several = torch_dataloader._BaseDataLoaderIter, torch_dataloader._MultiProcessingDataLoaderIter
        parts: list[tuple[Any, str, Any]] = [
            (every, "__next__", self._next),
            (every, "_next_index", self._next_index),
            (_utils.fetch._MapDatasetFetcher, "fetch", self._fetch),
            (_utils.fetch._IterableDatasetFetcher, "fetch", self._fetch),
            (several, "_reset", self._reset),
            (several, "_get_data", self._get_data),
            (several, "_process_data", self._process_data),
            (several, "__init__", self._start_workers),
            (several, "_shutdown_workers", self._end_workers),
        ]
        always: list[tuple[Any, str, Any]] = [
            (ExceptionWrapper, "reraise", reraise),
            (BaseProcess, "start", self._start_process),
            (subprocess.Popen, "__init__", self._start_program),
        ]
        lacking = [name for owner, name, _ in parts if not callable(getattr(owner, name, None))]
        if missing := ", ".join(lacking) or workers.can_record():
            self.notes.setdefault(
                f"torch {torch.__version__} has no {missing}: the DataLoader's work is not in the timeline"
            )
            parts = []
        for owner, name, function in (*parts, *always):
            stack.enter_context(held(owner, name, around(getattr(owner, name), function)))
        stack.enter_context(held(loaders, "on_batch", self._marked))
        stack.enter_context(held(loaders, "on_prefetch", self._prefetching))
        stack.enter_context(register_optimizer_step_post_hook(self._stepped))

    def by_optimizer(self, names: Iterable[str]) -> bool:
        """Tell whether the loop's steps are optimizers' steps: neither a loader nor a range of the program marks them.

        `names` are those of the trace: the program's own "batch 3" is in it, and was not seen before.
        """
        by_program = any(BATCH_RANGE.match(name) and name not in self._marks for name in names)
        return self.numbering.by_optimizer and not self._window.by_call and not by_program

    def seen(self, readings: Sequence[tuple[int, int, int]]) -> Own:
        """Return what was noted beside the profiler; `readings` are those of our clock."""
        fetches, left, costs = read_files(self._folder)
        if sum(costs) > _DEAR:
            self.notes.setdefault(_STARTED.format(words.count(len(costs), "worker"), words.duration(sum(costs))))
        swapped, lacked = (end - begin for begin, end in zip(self._began, self._ended, strict=True))
        seen = self.sampler.seen, self._draws
        return Own(readings, fetches, left, self.batches, self.mine, *seen, swapped, lacked, self._tensors)

    def began(self) -> None:
        """The profiler runs from now on."""
        self.live, self._began = True, (swapped_in(), thread_lacked())
        self.mine.clear()

    def ended(self) -> None:
        """All steps are recorded."""
        self._ended = swapped_in(), thread_lacked()
        self.sampler.stop()

    def say(self, name: str, batch: int = -1) -> AbstractContextManager[object]:
        """Return the range to enter around what the main thread does for a batch."""
        return record_function(own_name(name, batch)) if self.live and self._here() and not self._within else _NOTHING

    # What is done around torch's parts, of which `original` is one. `iterator` is a DataLoader's iterator.

    def _next(self, original: Function, iterator: Any) -> Any:
        if os.getpid() != self._process or (self._within and self._here()):
            return original(iterator)
        feed = self._feed(iterator)
        with held(self, "_fetching", feed if self._here() else self._fetching):
            data = original(iterator)
        self._handed_out(feed, iterator, data)
        return data

    def _next_index(self, original: Function, iterator: Any) -> Any:
        began = perf_counter_ns()
        index = original(iterator)
        if (now := perf_counter_ns()) - began >= _LONG and self.live and self._here() and not self._within:
            self._draws.append((began, now))
        told = isinstance(index, Sequence) and index and index[0] is not None
        self._feed(iterator).sizes.append(len(index) if told else 0)
        return index

    def _fetch(self, original: Function, fetcher: Any, indices: Any) -> Any:
        """Prepare a batch on the main thread; workers that were forked come here, too."""
        feed = self._fetching
        if feed is None or not self._here() or self._within:
            return original(fetcher, indices)
        if not self.live:
            with held(self, "_within", True):
                return original(fetcher, indices)
        mine, start, used = self.mine[feed.batch], perf_counter_ns(), usage()
        mine.append(None)
        with self.say(f"fetch batch {feed.batch}", feed.batch):
            self.sampler.begin()
            with timing(fetcher, self.sampler), held(self, "_within", True):
                data = original(fetcher, indices)
            place = self.sampler.most() or Place(Cause.NONE, "")
        end, now = perf_counter_ns(), usage()
        if self.live:  # still
            meanwhile = now.since(used)._replace(others=0)  # other threads are the model's
            waited = self._waits.due(now.waited(used, end - start))
            place = place.seen(waited, meanwhile.busy)
            done = workers.size_of(data), False, waited, int(place.cause), place.line, meanwhile
            mine[-1] = Fetch(-1, -1, feed.epoch, feed.count, start, end, *done)
        return data

    def _start_workers(self, original: Function, iterator: Any, loader: Any) -> None:
        """Start workers and pin thread with our stand-ins in the place of torch's loops."""
        with self._building:
            number, self._iterators = self._iterators, self._iterators + 1
            self._feeds[iterator] = IteratorState(number)
            work = workers.RecordedLoop(self._folder, number, _utils.worker._worker_loop)
            loop = _utils.pin_memory._pin_memory_loop
            pin = workers.RecordedLoop(self._folder, number, loop, loader.num_workers)
            with (
                held(_utils.worker, "_worker_loop", work),
                held(_utils.pin_memory, "_pin_memory_loop", pin),
                starting(loader.num_workers, workers.__name__),
                ExitStack() as self._started,
            ):
                self._started.enter_context(self.say(f"start {loader.num_workers} workers"))
                original(iterator, loader)

    def _end_workers(self, original: Function, iterator: Any) -> None:
        """Wait until workers and pin thread have left; torch asks for it more than once."""
        gone = getattr(iterator, "_shutdown", True)
        with _NOTHING if gone else self.say(f"end {len(iterator._workers)} workers"):
            original(iterator)

    def _start_process(self, original: Function, process: Any) -> None:
        self._elsewhere(function_of(process))
        original(process)

    def _start_program(self, original: Function, process: Any, args: Any = None, *more: Any, **options: Any) -> None:
        self._elsewhere(program_of(args))
        original(process, args, *more, **options)

    def _elsewhere(self, program: str) -> None:
        if program and not program.startswith(_INSTALLED):
            self.notes.setdefault(ELSEWHERE.format(Path(program).name))

    def _reset(self, original: Function, iterator: Any, *args: Any, **options: Any) -> None:
        self._started.close()  # from here on the sampler draws, which is the program's
        self._feed(iterator).begin_epoch(self._new_iterator(iterator))
        original(iterator, *args, **options)

    def _get_data(self, original: Function, iterator: Any) -> Any:
        """Take what comes next; the host waits if there is nothing yet."""
        feed = self._feed(iterator)
        with self.say(WAITING if iterator._data_queue.empty() else TAKING, feed.batch):
            index, data = original(iterator)
        feed.received = index
        return index, data

    def _process_data(self, original: Function, iterator: Any, *args: Any) -> Any:
        feed, data, worker = self._feed(iterator), args[0], args[1] if len(args) > 1 else -1
        iterable = iterator._dataset_kind == torch_dataloader._DatasetKind.Iterable
        if iterable and not isinstance(data, ExceptionWrapper) and given_twice(feed.firsts, worker, data):
            self.faults.setdefault("unsharded-iterable")
        with self.say(HAND_OUT, feed.batch):
            return original(iterator, *args)

    # Counting

    def _feed(self, iterator: Any) -> IteratorState:
        feed = self._feeds.get(iterator)
        if feed is None:  # without workers, or older than the recording
            feed = self._feeds[iterator] = IteratorState()
            feed.begin_epoch(self._new_iterator(iterator))
            if hasattr(iterator, "_workers"):
                self.notes.setdefault(_OLD)
        return feed

    def _new_iterator(self, iterator: Any) -> int:
        """An epoch of an iterator begins: return the number of its first batch."""
        if self._within or not self._here():  # of a data set, or another thread's
            return self.numbering.new_iterator()
        line = next((each.place for each in stack_of() if is_program(each.file)), "")
        return self.numbering.new_iterator(batches_of(iterator), line)

    def _handed_out(self, feed: IteratorState, iterator: Any, data: Any) -> None:
        batch, index = feed.batch, feed.count  # the order that it was for
        if hasattr(iterator, "_workers"):
            index = int(iterator._rcvd_idx) - 1 if getattr(iterator, "_in_order", True) else feed.received
        feed.count += 1
        self.numbering.used(batch, mine=self._here())
        if feed.number is not None and not self._window.over:
            self.batches[feed.number, feed.epoch, index] = batch
        if not self._here():
            self.notes.setdefault(_OTHER_THREAD)
            self.faults.setdefault("loader-in-thread")
            return
        if feed.nested is None:
            feed.nested = self._drawn_by_a_loader(iterator)
        if not feed.nested:
            self._window.batch()
            if self.live:
                if len(self._tensors) < _COUNTED:
                    self._tensors.append(len(tensors(data)))
                size = feed.sizes[index] if index < len(feed.sizes) else 0
                with self.say(f"batch {batch}: {size or sample_count((), data)} samples", batch):
                    pass

    def _drawn_by_a_loader(self, iterator: Any) -> bool:
        """Tell whether one of loaderviz's loaders draws the batches; where workers send them, their line is kept."""
        stack = stack_of()
        if hasattr(iterator, "_workers"):
            self.sampler.draws(stack)
        return any(str(each.names.get("__name__")).startswith("loaderviz.loaders.") for each in stack)

    def _marked(self, index: int, samples: int) -> None:
        """One of our loaders hands out its batch `index` of this epoch."""
        batch = self.numbering.number_of(index, "batch")
        if self._here():
            self._window.batch()
            if self.live:
                self._marks.add(mark := f"batch {batch}: {samples} samples")
                with record_function(mark):
                    pass

    def _prefetching(self, index: int) -> AbstractContextManager[object]:
        batch = self.numbering.number_of(index, "prefetch")
        return record_function(prefetch_name(batch)) if self.live and self._here() else _NOTHING

    def _stepped(self, optimizer: Optimizer, *_: object) -> None:
        """An optimizer's `step()` ends; called by torch."""
        if not self._here():
            return
        step = self.numbering.stepped(id(optimizer))
        begins = step > self._step
        if begins:  # the others' marks are told if the first one's is: else they are in the next step
            self._step, self._step_told = step, self.live
        if self._step_told:
            with self.say(STEPPED, step):
                pass
        if begins:
            self._window.stepped()

    def _here(self) -> bool:
        return threading.get_ident() == self._thread and os.getpid() == self._process
