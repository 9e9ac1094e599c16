"""EmulatedCuda: enter the modes and patches of one emulated recording, and undo them."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import torch
import torch._dynamo  # optimizers import it at their first step; it must not meet our names when it does
from torch.overrides import has_torch_function, has_torch_function_unary, has_torch_function_variadic

from loaderviz.emulator import dataloader
from loaderviz.emulator.findings import Hazards
from loaderviz.emulator.hardware import Gpu, Host
from loaderviz.emulator.torch_cuda import clock, library, methods, names
from loaderviz.emulator.torch_cuda.functions import Functions
from loaderviz.emulator.torch_cuda.guard import Guard, refuse_in_fork, watch_threads
from loaderviz.emulator.torch_cuda.operators import Operators
from loaderviz.emulator.torch_cuda.patching import Patches
from loaderviz.emulator.torch_cuda.session import Copies, OnHazard, Session
from loaderviz.emulator.torch_cuda.tags import ATTRIBUTE
from loaderviz.errors import NestedRecordingError
from loaderviz.loaders import marks
from loaderviz.timeline import Timeline

PLAIN = (torch.Tensor, torch.nn.Parameter, type(None), list, tuple, int, float, bool, str)
OURS = ("loaderviz.emulator", "loaderviz.timeline", "loaderviz.builder")


class EmulatedCuda:
    """One recording on the emulated GPU; use it as a context manager, then read `timeline`.

    `copies` is "on_wait" (late bytes are poison until waited for) or "eager"; `measured=True` counts the real time of
    other Python code. Raises `NestedRecordingError` when entered inside another recording.
    """

    _running: EmulatedCuda | None = None

    def __init__(
        self, gpu: Gpu, host: Host, *, measured: bool = False, copies: Copies = "on_wait", hazards: OnHazard = "warn"
    ) -> None:
        if copies not in ("on_wait", "eager"):
            raise ValueError(f"copies={copies!r}: choose 'on_wait' or 'eager'")
        if hazards not in ("warn", "raise", "off"):
            raise ValueError(f"hazards={hazards!r}: choose 'warn', 'raise' or 'off'")
        self._settings: dict[str, Any] = {"measured": measured, "copies": copies, "hazards": hazards}
        self._machines = gpu, host
        self._patches = Patches()
        self._modes: list[Any] = []
        self.timeline: Timeline | None = None
        self.hazards = self.findings = Hazards()

    def __enter__(self) -> EmulatedCuda:
        self.refuse_nesting()
        if self.timeline is not None:
            raise NestedRecordingError("this recording was used already; call record() anew for another one")
        blocking = os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"
        self.session = Session(*self._machines, launch_blocking=blocking, **self._settings)
        Session.active, EmulatedCuda._running = self.session, self
        try:
            operators, calls = Operators(self.session), Functions(self.session)
            self.session.operators = operators
            self._install(operators, calls)
            modes: tuple[Any, ...] = (operators, calls)
            for mode in modes:
                mode.__enter__()
                self._modes.append(mode)
        except BaseException:
            self._leave()
            raise
        self.session.leave()
        return self

    @classmethod
    def refuse_nesting(cls) -> None:
        """Raise `NestedRecordingError` if a recording is running."""
        if Session.active is not None:
            raise NestedRecordingError("a recording is running already; end it before you begin another one")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._leave(kind)
        self.timeline = self.session.finish()
        races = self.session.runtime.races
        if races:
            self.hazards, self.findings = races.hazards, races.findings

    @classmethod
    def forget_in_child(cls) -> None:
        """In a forked process: take everything away, without touching the parent's timeline; refuse the device."""
        running = cls._running
        if running is None:
            return
        running.session.alive = False
        if not running.session.in_recording_thread():
            running._modes.clear()  # they are on another thread's stack, which is not here
        running._leave()
        Guard(refuse_in_fork).__enter__()  # type: ignore[no-untyped-call]

    def _install(self, operators: Operators, calls: Functions) -> None:
        session, patches = self.session, self._patches
        patches.set(torch.UntypedStorage, ATTRIBUTE, None)
        methods.install(session, patches)
        names.install(session, patches)
        library.install(session, patches, operators, calls)
        dataloader.install(session, patches)
        patches.set(marks, "on_batch", session.batches.marked)
        patches.set(marks, "on_prefetch", session.batches.prefetching)
        clock.install(session, patches)
        watch_threads(session, patches)
        _let_functions_through(patches)
        patches.swap_everywhere(_keeps_its_names)

    def _leave(self, kind: type[BaseException] | None = None) -> None:
        while self._modes:
            self._modes.pop().__exit__(kind, None, None)
        self._patches.restore()
        Session.active = EmulatedCuda._running = None


def _let_functions_through(patches: Patches) -> None:
    """Let torch's Python functions (F.cross_entropy, Tensor.backward, …) run instead of being handed to the mode whole.

    Torch takes a mode away while its handler runs, so a function handed over whole would call its parts unseen.
    """

    def has_override(*values: Any) -> bool:
        if len(values) == 1 and isinstance(values[0], (tuple, list)):
            values = tuple(values[0])
        return not all(type(value) in PLAIN for value in values) and any(
            type(value) not in PLAIN and hasattr(type(value), "__torch_function__") for value in values
        )

    known = {has_torch_function, has_torch_function_unary, has_torch_function_variadic}
    for module in list(sys.modules.values()):
        if not isinstance(module, ModuleType) or not module.__name__.startswith("torch."):
            continue
        for name in ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"):
            if vars(module).get(name) in known and module.__name__ != "torch.overrides":
                patches.set(module, name, has_override)


def _keeps_its_names(module: str) -> bool:
    """Tell which modules keep the names that they imported: ours, and those that need real time."""
    return module.startswith((*OURS, *clock.REAL_TIME)) or module.split(".")[0] in sys.stdlib_module_names - {
        "__main__"
    }


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=EmulatedCuda.forget_in_child)
