"""Session: one recording on the emulated GPU. It owns the runtime, the memory pools and what the modes share.

The parts around it: `tags` (where a tensor is), `transfers` (copies between host and device), `operators` (every aten
operator), `functions` (calls that name a device), `names` (torch.cuda and torch.accelerator), `clock` (virtual time),
`backward` (streams in autograd).
"""

from __future__ import annotations

import re
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any, Literal

import torch

from loaderviz.emulator import costs
from loaderviz.emulator.device import Stream
from loaderviz.emulator.hardware import Gpu, Host
from loaderviz.emulator.memory import DevicePool, OutOfMemory, PinnedPool
from loaderviz.emulator.runtime import Event, Runtime
from loaderviz.emulator.torch_cuda.batches import BatchNumbers
from loaderviz.emulator.torch_cuda.tags import ATTRIBUTE, Arrival, DeviceTag, HostTag, set_tag, storage_of, tag_of
from loaderviz.errors import NotModelledError
from loaderviz.timeline import Context, Timeline

Copies = Literal["on_wait", "eager"]
DEVICE = torch.device("cuda", 0)
CPU = torch.device("cpu")
PIN_THREAD = "loaderviz pin thread"
BATCH_RANGE = re.compile(r"batch (\d+)(?:: (\d+) samples?)?$")
NOT_USER_CODE = re.compile(r"[/\\](?:torch|torchvision|loaderviz)[/\\](?!tests)|<frozen|[/\\]contextlib\.py$")


class Session:
    """The state of one emulated recording. Used from the thread that made it, and only from there."""

    def __init__(self, gpu: Gpu, host: Host, *, measured: bool, copies: Copies, launch_blocking: bool) -> None:
        self.runtime = Runtime(gpu, host, launch_blocking=launch_blocking)
        self.pool = DevicePool(self.runtime)
        self.pinned = PinnedPool(self.runtime)
        self.stream: Stream = self.runtime.default_stream  # the current one
        self.stream_history: list[tuple[int, Stream]] = [(0, self.stream)]  # (autograd sequence number, stream)
        self.copies = copies
        self.measured = measured
        self.thread = threading.get_ident()
        self.alive = True
        self.quiet = 0  # above 0: operators are seen and not counted (our own bookkeeping)
        self.fetching = 0  # above 0: inside dataset and collate, whose host costs come from `Host`
        self.target: torch.device | None = None  # where a factory call wants its result
        self.sync_debug = 0  # 0 off, 1 warn, 2 error
        self.batches = BatchNumbers(self.runtime)
        self.notes: dict[str, None] = {}  # in order, each once
        self._arriving: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()  # storages with arrivals
        self._results: list[tuple[Arrival, torch.Tensor]] = []  # device-to-host copies that the host has not waited for
        self._left_at = perf_counter_ns()
        self._internal: dict[str, bool] = {}
        self.stream_class: Any = None  # torch.cuda.Stream, while this session runs

    # Where tensors are

    def place(self, tensor: torch.Tensor, batch: int = -1) -> torch.Tensor:
        """Put a new tensor's storage on the device: take a block of the current stream. Raises torch's OutOfMemoryError."""
        storage = storage_of(tensor)
        tag = DeviceTag(self, self.allocate(storage.nbytes()), batch, storage)
        setattr(storage, ATTRIBUTE, tag)
        return tensor

    def allocate(self, nbytes: int) -> Any:
        """Take a block from the current stream's pool."""
        try:
            return self.pool.allocate(nbytes, self.stream)
        except OutOfMemory as problem:
            raise torch.OutOfMemoryError(str(problem)) from None

    def pin(self, tensor: torch.Tensor, batch: int = -1) -> torch.Tensor:
        """Give a tensor's storage a pinned block; new ones are page-locked first (R44)."""
        tag = HostTag(self, batch, pinned=True)
        tag.block = self.pinned.allocate(storage_of(tensor).nbytes())
        set_tag(tensor, tag)
        return tensor

    def device_tag(self, tensor: torch.Tensor) -> DeviceTag | None:
        """Return the tensor's tag if it is on the device. A tensor of an earlier recording is taken over as it is."""
        tag = tag_of(tensor)
        if type(tag) is not DeviceTag:
            return None
        if tag.session is not self:
            self.place(tensor)
            tag = tag_of(tensor)
        return tag  # type: ignore[no-any-return]

    def host_tag(self, tensor: torch.Tensor) -> HostTag | None:
        """Return the tag of a host tensor, if it has one of this recording (earlier pinned memory is taken over)."""
        tag = tag_of(tensor)
        if type(tag) is not HostTag:
            return None
        if tag.session is not self:
            if not tag.pinned:
                return None
            self.pin(tensor)
            tag = tag_of(tensor)
        return tag  # type: ignore[no-any-return]

    def release_device(self, tag: DeviceTag) -> None:
        """The storage is gone: its block is free from now on, at the host's time (R35)."""
        if self.alive:
            self.pool.free(tag.block)

    def release_pinned(self, tag: HostTag) -> None:
        """The pinned storage is gone; its block comes back when the copies that used it are over (R40)."""
        if self.alive and tag.block is not None:
            self.pinned.free(tag.block)

    # Values that arrive late (copies="on_wait")

    def expect(self, tensor: torch.Tensor, arrival: Arrival) -> None:
        """Note that the bytes of a device tensor are on their way."""
        storage = storage_of(tensor)
        getattr(storage, ATTRIBUTE).arrivals.append(arrival)
        self._arriving.add(storage)

    def expect_on_host(self, tensor: torch.Tensor, arrival: Arrival) -> None:
        """Note that the bytes of a pinned host tensor are on their way from the device."""
        self._results.append((arrival, tensor))

    def deliver(self, tensor: torch.Tensor, tag: DeviceTag, stream: Stream) -> None:
        """Let those bytes arrive that `stream` is ordered after; the others stay poison for it."""
        storage, waiting = storage_of(tensor), tag.arrivals
        tag.arrivals = []
        for arrival in waiting:
            if self.runtime.is_ordered(stream, arrival.place):
                self._write(arrival, storage)
            else:
                tag.arrivals.append(arrival)

    def host_knows(self) -> None:
        """The host has waited for something: what is certain to be over for it has arrived."""
        if self._results:
            done = [entry for entry in self._results if self.runtime.is_ordered(None, entry[0].place)]
            self._results = [entry for entry in self._results if not any(entry is other for other in done)]
            for arrival, tensor in done:
                self._write(arrival, storage_of(tensor))
        for storage in list(self._arriving):
            tag = getattr(storage, ATTRIBUTE)
            waiting, tag.arrivals = tag.arrivals, []
            for arrival in waiting:
                if self.runtime.is_ordered(None, arrival.place):
                    self._write(arrival, storage)
                else:
                    tag.arrivals.append(arrival)
            if not tag.arrivals:
                self._arriving.discard(storage)

    def _write(self, arrival: Arrival, storage: torch.UntypedStorage) -> None:
        with self.bookkeeping(), torch.no_grad():
            arrival.deliver(storage)

    # Host time

    @contextmanager
    def bookkeeping(self) -> Iterator[None]:
        """Run our own tensor code: nothing of it is counted."""
        self.quiet += 1
        try:
            yield
        finally:
            self.quiet -= 1

    def enter(self, call: str) -> None:
        """Every way into the emulator passes here: the right thread? And, with measured host time, how late is it?"""
        if threading.get_ident() != self.thread:
            raise NotModelledError(
                f"{call} in a second Python thread: the emulated GPU has one host thread. Issue CUDA calls from the "
                "thread that entered record()."
            )
        if self.measured:
            self.runtime.now += max(0, perf_counter_ns() - self._left_at)

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
        """Return "file:line" of the nearest frame that is neither torch's nor ours."""
        frame, internal = sys._getframe(1), self._internal
        while frame is not None:
            file = frame.f_code.co_filename
            known = internal.get(file)
            if known is None:
                known = internal[file] = bool(NOT_USER_CODE.search(file))
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
        self.host_knows()
        self.leave()

    def sleep_kernel(self, cycles: int) -> None:
        """`torch.cuda._sleep`: a kernel that spins for some cycles, here at 1.5 GHz (assumed)."""
        self.enter("torch.cuda._sleep")
        self.mark_source()
        self.runtime.launch(int(cycles) * 2 // 3, self.stream, name="spin_kernel", share=1)
        self.leave()

    def stream_of(self, stream: Any) -> Stream:
        """Return the runtime's stream behind a `torch.cuda.Stream`."""
        if not isinstance(getattr(stream, "_stream", None), Stream):
            raise TypeError(f"a torch.cuda.Stream of this recording is expected, got {stream!r}")
        return stream._stream  # type: ignore[no-any-return]

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
        """An annotation begins (`record_function`, NVTX); one named "batch 3" says which batch the loop is at."""
        match = BATCH_RANGE.match(name)
        if match:
            self.batches.annotated(int(match[1]), int(match[2] or 0))
        return self.runtime.now

    def leave_range(self, name: str, start: int) -> None:
        """The annotation that began at `start` ends."""
        if not BATCH_RANGE.match(name):
            self.runtime.range(start, self.runtime.now, name, self.batches.current)

    def finish(self, *, keep_values: bool = True) -> Timeline:
        """End the recording: the device runs dry, what is on its way arrives, the timeline is built."""
        self.runtime.device.drain()
        if keep_values:
            self.runtime.order.host_wait_all()
            self.host_knows()
        self.alive = False
        self.batches.finish()
        runtime = self.runtime
        host = f"{runtime.host.name} (other Python: {'measured' if self.measured else 'free'})"
        context = Context(
            runtime.gpu.name, "emulated", host, samples=self.batches.samples,
            versions={"torch": torch.__version__}, notes=tuple(self.notes),
        )  # fmt: skip
        return runtime.timeline(context)
