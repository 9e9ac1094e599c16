"""RealRun: PyTorch code as it really runs, on a GPU or on the CPU alone, recorded through torch.profiler.

The profiler's public export is read by our own reader (`kineto`), and what it does not know is added: the DataLoader's
workers and pin thread (`workers`), which batch is which (`loading`), by a clock that both have (`clocks`).
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
import warnings
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Literal

import torch
from torch import profiler
from torch.profiler import ProfilerActivity, record_function

from loaderviz import words
from loaderviz.builder import TimelineBuilder
from loaderviz.errors import LoadervizError, NestedRecordingError
from loaderviz.recorder import merge
from loaderviz.recorder.assemble import assemble
from loaderviz.recorder.chunks import Document
from loaderviz.recorder.clocks import ANCHORS
from loaderviz.recorder.kineto import read_kineto
from loaderviz.recorder.loading import Loading
from loaderviz.recorder.window import Window, samples
from loaderviz.timeline import DEVICE_KINDS, Context, Timeline

_NOTICEABLE = 1_000_000  # ns


class NotLookedForError(LoadervizError, RuntimeError):
    """Hazards were asked of a real run, in which they cannot be seen."""


class RealRun:
    """One recording of a real run; use it as a context manager, then read `timeline`.

    `cuda` says whether the GPU's work is recorded, too; `wait` and `steps` are those of `loaderviz.record`. Raises
    `NestedRecordingError` when a profiler runs already, LoadervizError where this torch was built without one.
    """

    def __init__(self, *, cuda: bool, wait: int = 0, steps: int | None = None) -> None:
        if not profiler.kineto_available():
            raise LoadervizError("this PyTorch was built without its profiler (Kineto); emulate a GPU: on='a100'")
        self._cuda = cuda
        self._window = Window(
            wait, steps, prepare=self._prepare, begin=self._begin, end=self._end, discard=self._discard
        )
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
            self._folder = Path(tempfile.mkdtemp(prefix="loaderviz-"))
            stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
            self._loading = Loading(self._folder, self._window)
            self._loading.install(stack)
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
            self.timeline = self._build()
        except Exception as problem:
            if kind is None:
                raise
            self.timeline = _nothing(f"the timeline could not be built: {problem}")  # the program's own error goes on
        finally:
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

    findings = hazards

    # The profiler: prepared a step before it begins, since its start may take seconds

    def _prepare(self) -> None:
        if self._state == "prepared":  # for a step that turned out to be none
            return
        self._profile = new_profile(self._cuda)
        with warnings.catch_warnings():  # torch 2.10 warns of several cycles, and there is one
            warnings.filterwarnings("ignore", "Warning: Profiler clears events", UserWarning)
            self._profile.prepare_trace()
        self._state = "prepared"

    def _begin(self) -> None:
        begin = perf_counter_ns()
        self._prepare()
        self._state = ""
        self._profile.start_trace()
        self._state, self._loading.live = "running", True
        self._started = perf_counter_ns() - begin
        self._anchor()

    def _end(self) -> None:
        self._anchor()
        self._stop()

    def _discard(self) -> None:
        self._stop()
        self._readings.clear()

    def _stop(self, *_: object) -> None:
        """Stop the profiler. One that was only prepared is started first: torch ends its own warm-up in this way."""
        state, self._state, self._loading.live = self._state, "", False
        if state == "prepared":
            self._profile.start_trace()
        if state:
            self._profile.stop_trace()

    def _anchor(self) -> None:
        for _ in range(ANCHORS):
            before = perf_counter_ns()
            with record_function(merge.own_name(merge.CLOCK)):
                inside = perf_counter_ns()
            self._readings.append((before, inside, perf_counter_ns()))

    # The timeline

    def _build(self) -> Timeline:
        reasons = [*self._window.notes(), *self._loading.notes]
        if not self._readings:
            return _nothing(*reasons)
        path = self._folder / "trace.json"
        self._profile.export_chrome_trace(str(path))
        raw = read_kineto(Document(path))
        path.unlink()
        raw.left_out.pop("instant", None)  # the profiler's own marks of its beginning and end
        merge.choose_marks(raw)
        own = self._loading.seen(self._readings)
        timeline = merge.merged(assemble([raw]), own)
        return replace(timeline, context=self._context(timeline, reasons))

    def _context(self, timeline: Timeline, reasons: list[str]) -> Context:
        """Say what was recorded, where, and what is not in it."""
        found, notes = timeline.context, list(reasons)
        if not len(timeline) and not reasons:
            notes.append("nothing was recorded: the block ran no PyTorch operator, no DataLoader and no annotation")
        elif self._cuda and not timeline.where(*DEVICE_KINDS).any():
            notes.append("the profiler saw no work on the GPU: did the block use it, or does another profiler?")
        if self._window.wait and self._started > _NOTICEABLE:
            notes.append(f"the profiler took {words.duration(self._started)} to begin; any workers went on meanwhile")
        versions = {"torch": torch.__version__} | found.versions
        host = f"this machine, {os.cpu_count()} CPU cores"
        device = _gpu_name(found.device) if self._cuda else _cpu_name()
        return Context(
            device, "recorded", host, clock=found.clock, samples=samples(timeline), versions=versions,
            notes=(*notes, *found.notes),
        )  # fmt: skip


def new_profile(cuda: bool) -> profiler.profile:
    """Return a torch.profiler for this machine, not yet started: no shapes, no stacks, no Python objects of events."""
    if not torch.cuda.is_available():  # its log would say "profiler_start"; where there is a GPU it says what is wrong
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    return profiler.profile(activities=activities, experimental_config=_experimental(cuda))


def _experimental(cuda: bool) -> Any:
    """Return the options that this version has: synchronisation events (for arrows), and no list of Python objects."""
    config = getattr(profiler, "_ExperimentalConfig", None)
    wanted = {"trace_only": True} | ({"enable_cuda_sync_events": True} if cuda else {})
    for options in (wanted, {name: value for name, value in wanted.items() if name != "trace_only"}):
        try:
            return config(**options) if config and options else None
        except TypeError:  # a version without that option
            continue
    return None


def _nothing(*reasons: str) -> Timeline:
    return TimelineBuilder(Context(origin="recorded", notes=reasons)).build()


def _gpu_name(traced: str) -> str:
    known = torch.cuda.is_available() and ("unknown" in traced or "no GPU" in traced)
    return torch.cuda.get_device_name() if known else traced


def _cpu_name() -> str:
    """Return the processor's name, such as "CPU alone (AMD EPYC 7B13)"."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except (OSError, ValueError):
        text = ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    return f"CPU alone ({match[1] if match else platform.processor() or platform.machine()})"
