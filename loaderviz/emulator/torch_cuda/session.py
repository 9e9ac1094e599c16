"""Session: one recording on the emulated GPU. It owns the runtime, the memory pools and what the modes share.

The parts around it: `tags` (where a tensor is), `transfers` (copies between host and device), `operators` (every aten
operator), `functions` (calls that name a device), `names` (torch.cuda and torch.accelerator), `clock` (virtual time),
`backward` (streams in autograd).
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Any, ClassVar, Literal

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from loaderviz.emulator import costs
from loaderviz.emulator.device import Stream
from loaderviz.emulator.hardware import Gpu, Host
from loaderviz.emulator.races import Races
from loaderviz.emulator.runtime import Event, Runtime
from loaderviz.emulator.torch_cuda.batches import BatchNumbers
from loaderviz.emulator.torch_cuda.late import LateBytes
from loaderviz.emulator.torch_cuda.places import Places
from loaderviz.emulator.torch_cuda.tags import (
    any_on_device,
)  # fmt: skip
from loaderviz.emulator.torch_cuda.touched import Touched
from loaderviz.errors import LoadervizError, NotModelledError
from loaderviz.timeline import Context, Timeline

Copies = Literal["on_wait", "eager"]
OnHazard = Literal["warn", "raise", "off"]
DEVICE = torch.device("cuda", 0)
CPU = torch.device("cpu")
PIN_THREAD = "loaderviz pin thread"
BATCH_RANGE = re.compile(r"batch (\d+)(?:: (\d+) samples?)?$")
PREFETCH_RANGE = re.compile(r"prefetch of batch (\d+)$")
TORCH = Path(torch.__file__).parent
PACKAGES = (TORCH, TORCH.parent / "torchvision", Path(__file__).parents[2])
NOT_USER_CODE = (*(f"{package}{os.sep}" for package in PACKAGES), "<frozen", contextlib.__file__)


class NoRecordingError(LoadervizError, RuntimeError):
    """A stream or event of the emulated GPU was used outside a recording."""


def wanted_device(device: Any) -> torch.device:
    """Return the device that a call names. An int is a GPU's index. Raises `NotModelledError` for a second GPU."""
    if isinstance(device, int) and not isinstance(device, bool):
        device = torch.device("cuda", device)
    place: torch.device = torch.device(device)
    if place.type == "cuda":
        if place.index not in (None, 0):
            raise NotModelledError(
                f"{place} was asked for, but the emulated machine has one GPU, cuda:0; several devices and peer "
                "copies are not modelled"
            )
        return DEVICE
    return place


class Session(Places):
    """The state of one emulated recording. Used from the thread that made it, and only from there."""

    active: ClassVar[Session | None] = None  # the one whose recording runs

    def __init__(
        self, gpu: Gpu, host: Host, *, measured: bool, copies: Copies, launch_blocking: bool, hazards: OnHazard = "warn"
    ) -> None:
        self.runtime = Runtime(gpu, host, launch_blocking=launch_blocking)
        self.touched: Touched | None = None  # tells `races` what is read and written
        if hazards != "off":
            self.runtime.races = Races(self.runtime, raising=hazards == "raise")
            self.touched = Touched(self, self.runtime.races)
        super().__init__(self.runtime)
        self.stream_history: list[tuple[int, Stream]] = [(0, self.stream)]  # (autograd sequence number, stream)
        self.copies = copies
        self.measured = measured
        self.thread = threading.get_ident()
        self.quiet = 0  # above 0: operators are seen and not counted (our own bookkeeping)
        self.fetching = 0  # above 0: inside dataset and collate, whose host costs come from `Host`
        self.operators: Any = None  # the mode that sees every operator
        self.resting: Any = None  # the same, while it is put aside
        self.call: tuple[Any, Any] = ((), {})  # the arguments of the torch function that runs
        self.target: torch.device | None = None  # where a factory call wants its result
        self.sync_debug = 0  # 0 off, 1 warn, 2 error
        self.batches = BatchNumbers(self.runtime)
        self.notes: dict[str, None] = {}  # in order, each once
        self.late = LateBytes(self)
        self._prefetching: list[AbstractContextManager[None]] = []
        self._left_at = perf_counter_ns()
        self._internal: dict[str, bool] = {}
        self._adopted: dict[Stream, Stream] = {}  # streams of earlier recordings -> ours

    @classmethod
    def running(cls, call: str) -> Session:
        """Return the session of the recording that runs. Raises `NoRecordingError` if none does."""
        if cls.active is None:
            raise NoRecordingError(
                f"{call} belongs to an emulated GPU whose recording has ended; use it inside a record() block"
            )
        return cls.active

    def call_is_on_device(self) -> bool:
        """Tell whether the torch function that runs was called with a tensor of the device."""
        args, kwargs = self.call
        return any_on_device(args) or any_on_device(kwargs.values())

    # Host time

    @contextmanager
    def bookkeeping(self) -> Iterator[None]:
        """Run our own tensor code: nothing of it is counted."""
        self.quiet += 1
        try:
            yield
        finally:
            self.quiet -= 1

    @contextmanager
    def fetching_data(self) -> Iterator[None]:
        """Inside dataset and collate: host operators are free, since `Host` has a cost for the whole batch.

        So the operators' mode is put aside, until a function has to do with the device.
        """
        self.fetching += 1
        on_top = _get_current_dispatch_mode() is self.operators
        if on_top:
            self.operators.__exit__(None, None, None)
            self.resting = self.operators
        try:
            yield
        finally:
            if on_top:
                self.resting = None
                self.operators.__enter__()
            self.fetching -= 1

    def enter(self, call: str) -> None:
        """Every way into the emulator passes here: the right thread? And, with measured host time, how late is it?"""
        if threading.get_ident() != self.thread:
            raise NotModelledError(
                f"{call} in a second Python thread: the emulated GPU has one host thread. Issue CUDA calls from the "
                "thread that entered record()."
            )
        if self.measured:
            self.runtime.now += max(0, perf_counter_ns() - self._left_at)
        if self._released:
            self.give_back()

    def leave(self) -> None:
        """The way out: from here on other Python code runs, which `host="measured"` counts."""
        if self.measured:
            self._left_at = perf_counter_ns()

    def host_operator(self, name: str, nbytes: int, batch: int = -1) -> None:
        """Count a CPU operator on the main thread: dispatch, and bytes against host memory bandwidth."""
        if self.fetching:
            return
        self.runtime.batch, self.runtime.source = self.batch_or_current(batch), self.source()
        host = self.runtime.host
        self.runtime.host_work(host.dispatch + costs.host_time(host, nbytes), name)

    def source(self) -> str:
        """Return "file:line" of the nearest frame neither torch's nor ours (unless its module is an example)."""
        frame, internal = sys._getframe(1), self._internal
        while frame is not None:
            file = frame.f_code.co_filename
            known = internal.get(file)
            if known is None:
                example = frame.f_globals.get("__user_code__")  # set in a module of ours that stands for a program
                hidden = file.startswith(NOT_USER_CODE) and not example
                known = internal[file] = hidden
            if not known:
                return f"{file}:{frame.f_lineno}"
            frame = frame.f_back  # type: ignore[assignment]
        return ""

    def batch_or_current(self, batch: int) -> int:
        """Return the batch of the data, or, for work without a batch of its own, the one that the loop is at."""
        return batch if batch >= 0 else self.batches.current

    def synchronizing(self, call: str) -> None:
        """A call that makes the host wait, for `torch.cuda.set_sync_debug_mode` (R26)."""
        if self.sync_debug == 1:
            warnings.warn(f"called a synchronizing CUDA operation ({call})", stacklevel=4)
        elif self.sync_debug == 2:
            raise RuntimeError(f"called a synchronizing CUDA operation ({call})")

    def synchronize(self, target: Stream | Event | None) -> None:
        """Block the host until a stream, an event or (None) the device is done; what was on its way arrives."""
        self.enter("synchronize")
        self.mark_source()
        self.runtime.synchronize(target)
        self.late.host_knows()
        self.leave()

    def sleep_kernel(self, cycles: int) -> None:
        """`torch.cuda._sleep`: a kernel that spins for some cycles, here at 1.5 GHz (assumed)."""
        self.enter("torch.cuda._sleep")
        self.mark_source()
        self.runtime.launch(int(cycles) * 2 // 3, self.stream, name="spin_kernel", share=1)
        self.leave()

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

    def mark_source(self) -> None:
        """Let the spans made from now on carry the caller's line and the loop's batch."""
        self.runtime.source, self.runtime.batch = self.source(), self.batches.current

    def in_recording_thread(self) -> bool:
        """Tell whether the thread that records is calling."""
        return threading.get_ident() == self.thread

    def in_pin_thread(self) -> bool:
        """Tell whether the DataLoader's pin thread is calling."""
        return threading.current_thread().name == PIN_THREAD

    def set_stream(self, stream: Stream) -> None:
        """Make `stream` the current one; backward finds by sequence number which one an operator ran on (R17)."""
        if stream is not self.stream:
            self.stream = stream
            self.stream_history.append((torch._C._autograd._get_sequence_nr(), stream))

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
            self._prefetching.append(self.batches.prefetching(int(match[1])))
            self._prefetching[-1].__enter__()
        return self.runtime.now

    def leave_range(self, name: str, start: int) -> None:
        """The annotation that began at `start` ends."""
        if PREFETCH_RANGE.match(name) and self._prefetching:
            self._prefetching.pop().__exit__(None, None, None)
        elif not BATCH_RANGE.match(name):
            self.runtime.range(start, self.runtime.now, name, self.batches.current)

    def finish(self, *, keep_values: bool = True) -> Timeline:
        """End the recording: the device runs dry, what is on its way arrives, the timeline is built."""
        self.runtime.device.drain()
        if keep_values:
            if self.touched:
                self.touched.watched.look_at_all()
            self.runtime.order.host_wait_all()
            self.late.host_knows()
        self.alive = False
        self.batches.finish()
        runtime = self.runtime
        host = f"{runtime.host.name} (other Python: {'measured' if self.measured else 'free'})"
        context = Context(
            runtime.gpu.name, "emulated", host, samples=self.batches.samples,
            versions={"torch": torch.__version__}, notes=tuple(self.notes),
        )  # fmt: skip
        timeline = runtime.timeline(context)
        if runtime.races:
            runtime.races.judge_waits(timeline.duration, self.pool.cached())
        return timeline
