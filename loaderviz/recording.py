"""record(): the front door. The same PyTorch code on an emulated GPU or on a real one, as a Timeline.

with loaderviz.record(on="a100") as recording:      # emulated, in virtual time; on="cuda": as it really runs
    train(...)
recording.timeline
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from loaderviz import words
from loaderviz.batches import LIMIT
from loaderviz.emulator.hardware import Gpu, Host
from loaderviz.emulator.hazards import Hazards, HazardWarning, Lints
from loaderviz.errors import LoadervizError, NestedRecordingError
from loaderviz.machine import cores, give_back, new_pages
from loaderviz.stopping import no_news_of_workers
from loaderviz.timeline import Timeline
from loaderviz.traces import steps as loop_steps

if TYPE_CHECKING:
    from types import TracebackType

    from loaderviz.emulator.torch import EmulatedCuda
    from loaderviz.emulator.torch.check import Check
    from loaderviz.traces.live import RealRun

DEFAULT_GPU = "a100"
_LATE = (
    "recording.step() was called first when all the batches asked for were recorded: the steps are these batches. Call "
    "it from the first step on"
)


class NotRecordedError(LoadervizError, RuntimeError):
    """The timeline was asked for before the recording was over."""


class CheckWarning(UserWarning):
    """The emulated run differs from the CPU's, or from what PyTorch says of a real GPU."""


class RecordOptionError(LoadervizError, ValueError):
    """An option of record() has a value that means nothing, or that a real run cannot keep."""


class _WayOut:
    """A recording's end, called by `with` or, if an interrupt comes before `__exit__` runs, when it is let go of."""

    _of_a_statement = False

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        # a statement looks this up before it enters
        self._of_a_statement = not recording._over and Recording._running is not recording

    def __call__(self, *args: Any) -> None:
        self._recording.end(*args)

    def __del__(self) -> None:
        if self._of_a_statement and Recording._running is self._recording:
            self._recording.end(KeyboardInterrupt, None, None)


class _Exit:
    def __get__(self, recording: Recording | None, owner: Any = None) -> Callable[..., None]:
        return Recording.end if recording is None else _WayOut(recording)


class Recording:
    """A running or finished recording. Use it as a context manager; `timeline` is there when the block is over."""

    _running: ClassVar[Recording | None] = None
    __exit__ = _Exit()

    def __init__(self, run: EmulatedRun | RealRun, *, warn: bool = False) -> None:
        self._run = run
        self.warn = warn  # at the end, of races
        self._over = self._late = False
        self._steps = 0
        self._step: Any = None  # the range of the step that runs, if the program counts its own

    @classmethod
    def refuse_nesting(cls) -> None:
        """Raise `NestedRecordingError` if a recording is running."""
        if cls._running is not None:
            raise NestedRecordingError("a recording is running already; end it before you begin another one")

    def __enter__(self) -> Recording:
        self.refuse_nesting()
        if self._over:
            raise NestedRecordingError("this recording was used already; call record() anew for another one")
        try:
            Recording._running = self
            self._run.__enter__()
        except BaseException:
            Recording._running = None
            raise
        return self

    def end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End the recording, as `__exit__` does. After an interrupt in the middle of it, all is undone all the same."""
        try:
            self._end_step()
            with no_news_of_workers():
                self._run.__exit__(kind, error, trace)
        finally:
            self._run.leave()
            Recording._running, self._over = None, True
            give_back()
        check = getattr(self._run, "check", None)
        if check is not None and check.differences:
            words.warn(f"record(check=True): {check}", sys._getframe(2), CheckWarning)
        if self.warn and self.hazards and kind is None:
            count = len(self.hazards)
            words.warn(
                f"{words.count(count, 'hazard')} found: on a real GPU this program gives wrong numbers now "
                f"and then. The first: {self.hazards[0].line}. Print recording.hazards to see what is missing where",
                sys._getframe(2),
                HazardWarning,
            )

    def step(self) -> None:
        """Say that a step of the loop begins: call it first in the loop's body.

        Only needed where neither a loader's batches nor `optimizer.step()` say what a step is.

        The first call makes `wait` and `steps` of `record()` count these calls instead of the batches handed out; what
        came before it is no step. Each step gets a range "ProfilerStep#0", …, as with torch.profiler.

        When all steps asked for are over, and after the block, a step is none of the recording's: the loop goes on, and
        the first call after the block warns. Raises `NotRecordedError` before the block.
        """
        if self._over:
            if not self._late:
                words.warn("recording.step(): the recording is over, and this step is not in it", sys._getframe(1))
            self._late = True
            return
        if Recording._running is not self:
            raise NotRecordedError("recording.step() belongs into the record() block")
        from torch.profiler import record_function

        self._end_step()
        self._run.begin_step()
        self._step = record_function(f"ProfilerStep#{self._steps}")
        self._step.__enter__()
        self._steps += 1

    def _end_step(self) -> None:
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None

    def _ended(self) -> EmulatedRun | RealRun:
        if not self._over:
            raise NotRecordedError("the timeline is there when the record() block has ended; read it after the block")
        if self._run.timeline is None:
            raise NotRecordedError("there is no timeline: the recording was interrupted while it ended; record again")
        return self._run

    @property
    def timeline(self) -> Timeline:
        """What was recorded. Raises `NotRecordedError` inside the block."""
        timeline = self._ended().timeline
        assert timeline is not None
        return timeline

    @property
    def hazards(self) -> Hazards:
        """The races of the program, each once: wrong on a real GPU, now and then. Empty with `hazards="off"`.

        Raises `NotRecordedError` inside the block, `NotLookedForError` for a real run: a race leaves no trace there.
        """
        return self._ended().hazards

    @property
    def lints(self) -> Lints:
        """What is right and useless or slow: waits for nothing, waits without need, hidden synchronisation, …

        Raises `NotRecordedError` inside the block, `NotLookedForError` for a real run.
        """
        return self._ended().lints

    @property
    def check(self) -> Check | None:
        """Where the emulated run differs from the CPU and from PyTorch; None without `record(check=True)`.

        Raises `NotRecordedError` inside the block.
        """
        run = self._ended()
        return run.check if isinstance(run, EmulatedRun) else None

    @property
    def unpriced(self) -> dict[str, float]:
        """Seconds that the program took on this machine and that a named host does not price, by kind.

        "data set" is the processor's time in data sets and collate beyond torch's operators, the table of transforms
        and what `loaderviz.costs` declares; "waiting" is the time in which they waited for a socket, a process, a lock
        or a file system. Empty with `host="auto"`, where they count, and for a real run.

        Raises `NotRecordedError` inside the block.
        """
        run = self._ended()
        return run.unpriced if isinstance(run, EmulatedRun) else {}

    def __repr__(self) -> str:
        return f"<recording: {self._run.timeline!r}>" if self._over else "<recording: not ended>"


class EmulatedRun:
    """A run on the emulated GPU, of which the steps asked for are kept."""

    def __init__(self, emulated: EmulatedCuda, wait: int, steps: int | None) -> None:
        self._emulated, self._wait, self._wanted = emulated, wait, steps
        self._calls = 0
        self._called_late = False
        self.timeline: Timeline | None = None  # the rest of what was found is there when this is

    def __enter__(self) -> None:
        self._emulated.__enter__()
        self._emulated.session.batches.on_step = self._batch_or_optimizer

    def _batch_or_optimizer(self) -> None:
        batches = self._emulated.session.batches
        if not self._calls:
            self._step_begins(batches.begun, drops=bool(batches.handed))

    def _step_begins(self, begun: int, *, drops: bool = True) -> None:
        """Drop what was over before the steps that are kept, or stop when all that began in them is over."""
        session, scheduler = self._emulated.session, self._emulated.session.scheduler
        if self._emulated.timeline is not None or scheduler.shares_gpu:
            return
        if begun <= self._wait + 1:
            if self._wait and drops and not scheduler.running:  # others may be at an earlier time
                session.runtime.drop()
        elif self._wanted is not None and begun > self._wait + self._wanted + 1 + session.ahead:
            session.stop = self._emulated.stop

    def __exit__(self, *args: Any) -> None:
        try:
            self._emulated.__exit__(*args)
        finally:
            emulated, session = self._emulated, self._emulated.session
            self.hazards, self.lints = emulated.hazards, emulated.lints
            self.check: Check | None = emulated.checker.report if emulated.checker else None
            self.unpriced = {place: sum(took) / 10**9 for place, took in session.unpriced.items()}
            whole, batches = emulated.timeline, session.batches
            if whole and batches.by_optimizer and not self._calls:
                whole = loop_steps.by_optimizer(whole, batches.steps)
            self.timeline = whole and loop_steps.cut(whole, self._wait, self._wanted, self._calls > 0)
            if self.timeline is not None and self._called_late:
                self.timeline = loop_steps.noted(self.timeline, _LATE)

    def leave(self) -> None:
        """Undo what entering did, if anything is left of it."""
        self._emulated.leave()

    def begin_step(self) -> None:
        """The program says that a step begins; from the first such call on, these are counted."""
        if not self._calls and self._emulated.timeline is not None:
            self._called_late = True
            return
        self._calls += 1
        self._step_begins(self._calls)


def record(
    on: str | Gpu = "auto",
    *,
    host: str | Host = "auto",
    copies: Literal["on_wait", "eager"] = "on_wait",
    hazards: Literal["warn", "raise", "off"] = "warn",
    wait: int = 0,
    steps: int | None = None,
    check: bool = False,
    threads: bool = True,
    limit: int = LIMIT,
) -> Recording:
    """Record the PyTorch code in the `with` block; `recording.timeline` is what happened.

    `on` says where it runs:

    * "cuda": this machine's GPU, as it really runs, through torch.profiler. DataLoader workers and pin thread are in
      the picture, whatever the start method. "cpu": the same with the CPU alone, which answers "is my DataLoader the
      bottleneck" on any machine.
    * "a100", "t4", "h200", "laptop", …, or a `Gpu` of your own: emulated, in virtual time.
    * "auto": the real GPU if torch sees one, else an emulated A100.

    `wait` leaves out the first steps, `steps` ends the recording after that many more (None: at the end of the block);
    the program goes on. A step begins when a batch is handed out to the main thread by a DataLoader or one of
    loaderviz's loaders, or with `recording.step()`. A loop that has neither takes its batches as slices of tensors: its
    steps are counted by `optimizer.step()`, from the end of one to the end of the next, where several optimizers step
    in turn as one; what is done between two of them, such as an evaluation, is in the later. How they were counted and
    what was left out stands in `timeline.context.notes`.

    An emulated run keeps nothing of the first `wait` steps, which are emulated all the same, since its clock runs. Some
    steps after the last (one, and as many as a DataLoader's workers prepare ahead) it stops: the program goes on with
    the same values, `device` and `torch.cuda` answer as before, and nothing is priced or looked for races any more;
    clocks in `time` go on from there with this machine's. Where the CPU alone would compute otherwise (half precision,
    complex numbers, sparse and nested tensors, operators and tensor classes of the program's own, CUDA graphs,
    `check=True`) the rest is emulated, too, but not kept. A CUDA graph is captured before that or not at all.

    A real run is kept in memory until it is over: 0.2 kB for each operator and GPU span while it runs, 1.4 kB at its
    end (measured, torch 2.13), and 0.3 to 1 kB in a temporary file. A training step has hundreds to thousands of them,
    so record long runs in part: `record(on="cuda", wait=10, steps=20)`. With more than `limit` spans it is full: it
    ends with the last whole step that has room, and says so in the notes. Where more than 100 steps are to be recorded,
    the operators of one after half a second and of some later ones are counted, which makes these longer.

    For an emulated run only, and without a meaning in a real one: `host` is "auto", a preset ("laptop", "workstation",
    "server 2023") or a `Host`. "auto" is the preset "laptop" for what torch does (calls, operators, modules, autograd,
    optimizers), this machine's cores, and for the program's own Python, the data set and the way of its batches to the
    main process the processor time that they take here, without what the emulator and Python's garbage collections
    take. Time on the wall counts in one case: what the data set waits for (a socket, a process, a lock, a file system)
    without having lacked a core, which `timeline.context.measured` tells. With a preset they cost what it says, and
    what `loaderviz.costs` declares: the same timeline on every machine, to the nanosecond.

    With `copies="on_wait"` a copy's bytes arrive when something ordered after it needs them, until then the destination
    is poison (NaN); "eager" copies at once. Races are in `recording.hazards`; `hazards="warn"` also warns at the end
    (`HazardWarning`), "raise" stops at the racing call (`RaceError`), "off" does not look for them. A real run cannot
    show races: there `recording.hazards` raises an error that says so.

    `check=True` is for who doubts the emulator: the first calls of torch from each line are made again on the CPU, each
    outermost module is run again from a copy, and PyTorch is asked of what kind and on which device each result would
    be on a real GPU. `recording.check` has the differences; the first is warned of at the end (`CheckWarning`). The
    check needs memory for a copy of the model, and the first step takes several times as long.

    The threads that the program starts in the block use the GPU, too: each has a clock of its own, and they take turns,
    always the earliest in virtual time, wherever they wait for each other or the GPU; so the same program gives the
    same timeline. Where a second one uses the GPU, all is kept and emulated until the end, and cut to `wait` and
    `steps` there. Where none does, and one waits for what the recording cannot see, they go on in real time, which the
    notes tell. With `threads=False` they always do: CUDA in a second thread is refused, and all else in it is as it is.

    Raises `UnknownHardwareError` for a name that is no preset, `RecordOptionError` for another option that means
    nothing, LoadervizError for "cuda" without a GPU, `NestedRecordingError` inside another recording, and
    `NotModelledError` inside the block for a call that the emulated GPU does not model; one that was raised in another
    thread is raised again at the end of the block, or where the recording's thread waits for that one.

    >>> with loaderviz.record(on="t4", host="laptop") as recording:
    ...     torch.ones(1000).pin_memory().to("cuda", non_blocking=True).sum().item()
    1000.0
    >>> recording.timeline.duration  # virtual ns
    156175
    """
    wait = _count("wait", wait, 0)
    steps = None if steps is None else _count("steps", steps, 1)
    Recording.refuse_nesting()
    if place := _real(on):
        if hazards == "raise":
            raise RecordOptionError(
                f"record(on={on!r}, hazards='raise') cannot be done: a real run does not show its races. Emulate a "
                "GPU, such as on='a100', or leave hazards out"
            )
        if check:
            raise RecordOptionError(
                f"record(on={on!r}, check=True) cannot be done: a real run is not emulated, so there is nothing to be "
                "compared. Emulate a GPU, such as on='a100', or leave check out"
            )
        from loaderviz.traces.live import RealRun  # torch is imported when it is needed

        return Recording(RealRun(cuda=place == "cuda", wait=wait, steps=steps, limit=_count("limit", limit, 1)))
    emulated = _emulated(on, host, copies=copies, hazards=hazards, check=check, threads=threads)
    return Recording(EmulatedRun(emulated, wait, steps), warn=hazards == "warn")


def _real(on: str | Gpu) -> str:
    """Return "cuda" or "cpu" for a real run, "" for an emulated one. Raises LoadervizError for "cuda" without a GPU."""
    if on == "cpu":
        return "cpu"
    if on not in ("auto", "cuda"):
        return ""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if on == "cuda":
        raise LoadervizError(
            "record(on='cuda'): torch sees no CUDA GPU here. Use on='auto' to emulate one, or on='cpu' to record the "
            "DataLoader's real work"
        )
    return ""


def _emulated(on: str | Gpu, host: str | Host, **options: Any) -> EmulatedCuda:
    measured = host == "auto"
    machine = this_machine() if measured else host if isinstance(host, Host) else Host.preset(host)
    gpu = on if isinstance(on, Gpu) else Gpu.preset(DEFAULT_GPU if on == "auto" else on)
    from loaderviz.emulator.torch import EmulatedCuda  # torch is imported when it is needed

    EmulatedCuda.refuse_nesting()
    return EmulatedCuda(gpu, machine, measured=measured, **options)


def this_machine() -> Host:
    """Return the host of "auto": a laptop's, with this machine's cores. What they take is measured side by side."""
    found, laptop, page = cores(), Host.preset("laptop"), new_pages()
    told: dict[str, Any] = {
        "cores": found.physical,
        "siblings": found.siblings,
        "contention": 0,  # it is in what is measured
        "new_page": round(page.written),
        "first_read": round(page.read),
        "staged_page": round(page.read),
        "unmap": round(page.unmapped),
    }
    sources = laptop.sources | dict.fromkeys(told, "this machine, measured when the process began to record")
    return replace(laptop, sources=sources, **told)


def _count(name: str, value: Any, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        noun = "spans" if name == "limit" else "steps"
        kind = f"a whole number of {noun}, {least} or more" + (", or None for all" if name == "steps" else "")
        raise RecordOptionError(f"record({name}={value!r}): give {kind}")
    return number
