"""record(): the front door. The same PyTorch code on an emulated GPU or on a real one, as a Timeline.

with loaderviz.record(on="a100") as recording:
    train(...)
recording.timeline
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from loaderviz.emulator.findings import Hazards, HazardWarning
from loaderviz.emulator.hardware import GPUS, Gpu, Host
from loaderviz.errors import LoadervizError, NotModelledError
from loaderviz.timeline import Timeline

if TYPE_CHECKING:
    from types import TracebackType

    from loaderviz.emulator.torch_cuda import EmulatedCuda

DEFAULT_GPU = "a100"


class NotRecordedError(LoadervizError, RuntimeError):
    """The timeline was asked for before the recording was over."""


class Recording:
    """A running or finished recording. Use it as a context manager; `timeline` is there when the block is over."""

    def __init__(self, emulated: EmulatedCuda, *, warn: bool = False) -> None:
        self._emulated, self._warn = emulated, warn
        self._timeline: Timeline | None = None

    def __enter__(self) -> Recording:
        self._emulated.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._emulated.__exit__(kind, error, trace)
        self._timeline = self._emulated.timeline
        if self._warn and self.hazards and kind is None:
            count = len(self.hazards)
            warnings.warn(
                f"{count} hazard{'s' if count > 1 else ''} found: on a real GPU this program gives wrong numbers now "
                f"and then. The first: {self.hazards[0].line}. Print recording.hazards to see what is missing where",
                HazardWarning, stacklevel=2,
            )  # fmt: skip

    @property
    def timeline(self) -> Timeline:
        """What was recorded. Raises `NotRecordedError` inside the block."""
        if self._timeline is None:
            raise NotRecordedError("the timeline is there when the record() block has ended; read it after the block")
        return self._timeline

    @property
    def hazards(self) -> Hazards:
        """The races of the program, each once: wrong on a real GPU, now and then. Empty with `hazards="off"`.

        Raises `NotRecordedError` inside the block.
        """
        self.timeline  # noqa: B018
        return self._emulated.hazards

    @property
    def findings(self) -> Hazards:
        """What is right and useless or slow: waits for nothing, waits without need, hidden synchronisation, …

        Raises `NotRecordedError` inside the block.
        """
        self.timeline  # noqa: B018
        return self._emulated.findings

    def __repr__(self) -> str:
        return f"<recording: {self._timeline!r}>" if self._timeline else "<recording: not ended>"


def record(
    on: str | Gpu = "auto",
    *,
    host: str | Host = "laptop",
    copies: Literal["on_wait", "eager"] = "on_wait",
    hazards: Literal["warn", "raise", "off"] = "warn",
) -> Recording:
    """Record the PyTorch code in the `with` block; `recording.timeline` is what happened.

    `on` names the GPU: a preset ("a100", "t4", "h200", "laptop", …), a `Gpu` of your own, or "auto": an emulated
    A100 where there is no GPU. `host` is a preset ("laptop", "workstation"), a `Host`, or "measured": this machine's
    own cost of Python, data set and collate. With `copies="on_wait"` a copy's bytes arrive when something ordered
    after it needs them, until then the destination is poison (NaN); "eager" copies at once. Races are in
    `recording.hazards`; `hazards="warn"` also warns at the end (`HazardWarning`), "raise" stops at the racing call
    (`RaceError`), "off" does not look for them.

    Raises `UnknownHardwareError` for a name that is no preset, `NotModelledError` inside the block for a call that
    the emulated GPU does not model.

    >>> with loaderviz.record(on="t4") as recording:
    ...     torch.ones(1000).pin_memory().to("cuda", non_blocking=True).sum().item()
    >>> recording.timeline.duration    # virtual ns
    """
    measured = host == "measured"
    machine = Host.preset("laptop") if measured else host if isinstance(host, Host) else Host.preset(host)
    if measured:
        machine = replace(machine, name="measured on this machine")
    from loaderviz.emulator.torch_cuda import EmulatedCuda  # torch is imported when it is needed

    EmulatedCuda.refuse_nesting()
    emulated = EmulatedCuda(_gpu(on), machine, measured=measured, copies=copies, hazards=hazards)
    return Recording(emulated, warn=hazards == "warn")


def _gpu(on: str | Gpu) -> Gpu:
    if isinstance(on, Gpu):
        return on
    if on in ("auto", "cuda"):
        import torch

        if torch.cuda.is_available():
            presets = ", ".join(sorted(GPUS))
            raise NotModelledError(
                f"record(on={on!r}) on a machine with a GPU: recording a real GPU is not built yet. Emulate one by "
                f"name: {presets}"
            )
        if on == "cuda":
            raise LoadervizError("record(on='cuda'): torch sees no CUDA GPU here. Use on='auto' to emulate one.")
        on = DEFAULT_GPU
    return Gpu.preset(on)
