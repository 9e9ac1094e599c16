"""Ordinary PyTorch code for CUDA, on the emulated runtime: `EmulatedCuda` is a context manager for one recording.

Inside it `torch.cuda`, `.to("cuda")`, `DataLoader(pin_memory=True)` and `time.perf_counter` belong to the emulated
machine; after it everything is as it was, also after an exception. Here modes and patches are entered and undone.
"""

from __future__ import annotations

import functools
import importlib
import multiprocessing.spawn
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch.utils import _python_dispatch
from torch.utils._device import DeviceContext

from loaderviz.batches import HAND_OUT
from loaderviz.emulator.device import Command
from loaderviz.emulator.hardware import Gpu, Host
from loaderviz.emulator.hazards import Hazards, Lints
from loaderviz.emulator.host import costs
from loaderviz.emulator.threads import Scheduler
from loaderviz.emulator.threads.python import install as install_threads
from loaderviz.emulator.torch import dataloader, library
from loaderviz.emulator.torch.check import Checker
from loaderviz.emulator.torch.functions import NOT_ASKED, Functions, MeasuringFunctions, overriding
from loaderviz.emulator.torch.operators import Operators
from loaderviz.emulator.torch.patches import (
    REAL_TIME,
    Guard,
    Patches,
    call_handlers_between,
    install_clock,
    leave_modes,
    refuse_in_fork,
    stop_waits,
    watch_processes,
    watch_threads,
)
from loaderviz.emulator.torch.session import ON_HOST, TORCH, Copies, OnHazard, Session
from loaderviz.emulator.torch.tensors import ATTRIBUTE
from loaderviz.errors import LoadervizError, NestedRecordingError
from loaderviz.imports import REFUSING, preparing
from loaderviz.loaders import base as loaders
from loaderviz.stopping import send_again, signals_held
from loaderviz.timeline import Kind, Timeline

Batch = TypeVar("Batch")
KEEP = ("loaderviz.emulator", "loaderviz.timeline", "torch.overrides")  # modules that keep what they have by name
ASKS = [name for name in vars(torch.overrides) if name.startswith("has_torch_function")]
SEES = Functions.__torch_function__.__code__, Operators.__torch_dispatch__.__code__


class EmulatedCuda:
    """One recording on the emulated GPU; use it as a context manager, then read `timeline`.

    `copies` is "on_wait" (bytes on their way are poison until waited for) or "eager"; `measured=True` counts the
    processor time of the program's own Python and data set. Raises `NestedRecordingError` when entered inside another
    recording.
    """

    _running: EmulatedCuda | None = None

    def __init__(
        self,
        gpu: Gpu,
        host: Host,
        *,
        measured: bool = False,
        copies: Copies = "on_wait",
        hazards: OnHazard = "warn",
        check: bool = False,
        threads: bool = True,
    ) -> None:
        if copies not in ("on_wait", "eager"):
            raise ValueError(f"copies={copies!r}: choose 'on_wait' or 'eager'")
        if hazards not in ("warn", "raise", "off"):
            raise ValueError(f"hazards={hazards!r}: choose 'warn', 'raise' or 'off'")
        self._check, self._threads = check, threads
        self._settings: dict[str, Any] = {"measured": measured, "copies": copies, "hazards": hazards}
        self._machines = gpu, host
        self._patches = Patches(Patches())
        self._calls: Any = None  # the mode that sees every torch function
        self._operators: Any = None  # the one that sees every operator
        self.timeline: Timeline | None = None
        self.hazards, self.lints = Hazards(), Lints()
        self.checker: Checker | None = None

    def __enter__(self) -> EmulatedCuda:
        importlib.import_module("torch._dynamo")  # at an optimizer's first step it would meet our names
        self.refuse_nesting()
        if self.timeline is not None:
            raise NestedRecordingError("this recording was used already; call record() anew for another one")
        blocking = os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"
        try:
            EmulatedCuda._running = self
            self.session = Session.active = Session(*self._machines, launch_blocking=blocking, **self._settings)
            mode = MeasuringFunctions if self.session.measured else Functions
            self._calls, self._operators = mode(self.session), Operators(self.session)
            self.session.operators, self.session.functions_mode = self._operators, self._calls
            self.session.meter = dataloader.Meter(self._machines[1], self.session.measured)
            # What belongs to each thread beside what a `HostThread` has, and what a new one begins with
            backward, batches = (
                (self._operators.backward, {"runs": 0, "used": [], "_node": None}),
                (self.session.batches, {"current": -1, "ahead": -1}),
            )
            self.session.scheduler = Scheduler(self.session, [backward, batches])
            self._install()
            self._operators.__enter__()
            self._calls.__enter__()
            self.session.leave()
            if self.session.measured:
                self.session.calibrate()
            if self._check:
                self.session.check = self.checker = Checker(self.session)
        except BaseException:
            self.leave()
            raise
        return self

    @classmethod
    def refuse_nesting(cls) -> None:
        """Raise `NestedRecordingError` if a recording is running."""
        if Session.active is not None:
            raise NestedRecordingError("a recording is running already; end it before you begin another one")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        scheduler = self.session.scheduler
        try:
            if kind is None:
                scheduler.point()  # who is earlier comes as far as the block
            scheduler.note_circles()
            scheduler.running = None  # nobody has another turn
            self.leave()
            if self.timeline is None:
                self._build()
        finally:
            self.session.alive = False
            if scheduler.main:
                self.session.aside = ON_HOST  # for threads that go on
            scheduler.close()
        self._end_with_refusal(kind, error)
        if isinstance(error, Exception) and not isinstance(error, (LoadervizError, torch.OutOfMemoryError)):
            _say_what_was_emulated(error, self.session.runtime.gpu.name)

    def _build(self) -> None:
        self.timeline = self.session.finish()
        if races := self.session.runtime.races:
            self.hazards, self.lints = races.hazards, races.lints

    def stop(self) -> None:
        """End the recording inside the block: all that is to be kept is over, and the program goes on.

        Nothing is kept any more; and where the CPU computes the same, nothing is emulated, and torch is undisturbed but
        for what it says of devices.
        """
        session, scheduler = self.session, self.session.scheduler
        if scheduler.running:
            scheduler.let_go("the steps that are recorded are over")
        for name, start in reversed(list(session.ranges.values())):
            session.leave_range(name, start)
        session.ranges.clear()
        self._build()
        if session.rest():
            self._patches.pricing.restore()
            _python_dispatch._pop_mode()
            library.rest(session, self._patches)

    def _end_with_refusal(self, kind: type[BaseException] | None, error: BaseException | None) -> None:
        """Raise what was refused to another thread, if anything was; where the block ends by an error, it led to it."""
        refused = self.session.refused
        if refused and (kind is None or kind is SystemExit):
            raise refused
        if not refused or error is None or error is refused:
            return
        while before := error.__cause__ or error.__context__:
            if before is refused:
                return
            error = before
        error.__context__ = refused

    @classmethod
    def forget_in_child(cls) -> None:
        """In a forked process: take everything away, without touching the parent's timeline; refuse the device."""
        running = cls._running
        if running is None:
            return
        with signals_held(functools.partial(send_again, after=0.001)):  # an error in what follows a fork is dropped
            running.session.alive, running.session.refused = False, None
            running.session.scheduler.close()
            running.leave()
            Guard(refuse_in_fork).__enter__()  # type: ignore[no-untyped-call]

    def _install(self) -> None:
        session, patches = self.session, self._patches
        for name in [name for name in list(vars(_python_dispatch)) if name.startswith("_is_in_")]:
            patches.set(_python_dispatch, name, vars(_python_dispatch)[name])  # the modes' own marks, to be put back
        patches.set(torch.UntypedStorage, ATTRIBUTE, None)
        library.install(session, patches, self._operators, self._calls)
        dataloader.install(session, patches)
        patches.pricing.set(loaders, "on_batch", session.batches.marked)
        patches.pricing.set(loaders, "on_prefetch", session.batches.prefetching)
        install_clock(session, patches)
        if self._threads:
            install_threads(session.scheduler, patches)
        watch_threads(session, patches)
        watch_processes(session, patches)
        prepared = multiprocessing.spawn.get_preparation_data
        patches.set(multiprocessing.spawn, "get_preparation_data", preparing(REFUSING, prepared))
        stop_waits(session, patches)
        call_handlers_between(patches)
        patches.pricing.at_end(functools.partial(setattr, costs, "declare", None))
        costs.declare = session.declared

        def has_override(*values: Any) -> bool:
            if len(values) == 1 and isinstance(values[0], (tuple, list)):
                values = tuple(values[0])
            return not NOT_ASKED.issuperset(map(type, values)) and bool(overriding(map(type, values)))

        # So torch's Python functions run: torch takes a mode away while it has one whole, and its parts would go unseen
        for module in ("torch.distributed.distributed_c10d", "torch.nn.functional"):  # the first keeps its other names
            for name in ASKS:
                patches.function(sys.modules.get(module), name, has_override)  # and so for all that hold it
        patches.swap_everywhere(_keeps_its_names)

    def leave(self) -> None:
        """Undo everything, also what an interrupt left of entering; a second call does nothing."""
        try:
            self._undo()
        finally:
            self._undo()

    def _undo(self) -> None:
        """Do what is left to be undone. It may be stopped at any point, and begun again."""
        if EmulatedCuda._running is not self:
            return
        for mode in leave_modes(self._calls, self._operators):
            if isinstance(mode, DeviceContext):
                self._patches.at_end(functools.partial(torch.overrides._push_mode, mode))  # the default, which stays
        self._patches.restore()
        if tell := getattr(_python_dispatch, "set_is_in_mode_without_ignore_compile_internals", None):  # torch 2.13
            tell(_python_dispatch._is_in_any_mode_without_ignore_compile_internals)
        Session.active = EmulatedCuda._running = None


# What others may ask of the recording that runs; each raises `NoRecordingError` outside of one


def now() -> int:
    """Return the time of the emulated host [ns]."""
    return Session.running("now()").runtime.now


def handed_out(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Give batches as a DataLoader whose workers keep up: each carries its number, and costs only the hand-out."""
    session = Session.running("handed_out()")
    for number, batch in enumerate(batches, session.batches.new_iterator()):
        dataloader.mark(session, batch, number)
        session.mark_source(number)
        session.runtime.host_work(session.runtime.host.hand_out, HAND_OUT, Kind.OPERATOR)
        yield batch


def last_writers(tensor: torch.Tensor) -> list[Command]:
    """Return the kernels and copies that were the last to write to a tensor's memory; none where races go unseen."""
    races, start = Session.running("last_writers()").runtime.races, tensor.data_ptr()
    cells = races.memory.cells_in(start, start + tensor.nbytes) if races else ()
    return [write.work for cell in cells for write in cell.writes.values() if isinstance(write.work, Command)]


def _say_what_was_emulated(error: Exception, gpu: str) -> None:
    """Add a line to an error out of torch, or out of the emulator: whoever reads it may not think of the recording."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    seen = [frame.f_locals["func"] for frame in frames if frame.f_code in SEES]
    of_torch = bool(frames) and frames[-1].f_code.co_filename.startswith(str(TORCH))
    if seen or of_torch or "cuda" in str(error).lower():
        call = f"{torch.overrides.resolve_name(seen[-1]) or seen[-1]} on " if seen else ""
        error.add_note(
            f"This was inside a loaderviz recording, which was emulating {call}an {gpu}. Try the program without "
            "loaderviz: if it runs then, loaderviz is at fault."
        )


@functools.cache
def _keeps_its_names(module: str) -> bool:
    return module.startswith((*KEEP, *REAL_TIME)) or module.split(".")[0] in sys.stdlib_module_names - {"__main__"}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=EmulatedCuda.forget_in_child)
