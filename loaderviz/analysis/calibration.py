"""Machines to emulate, of measurements: `calibrate()` measures this one, `calibrate(trace)` reads a profiler's trace.

    host = loaderviz.calibrate()     # a Host, in about 5 s
    host.save("my-host.toml")        # python -m loaderviz calibrate --save my-host.toml
    loaderviz.record(on="a100", host="my-host.toml")

What is measured is processor time, the least of several times: what preparing a sample costs beside the table that
hardware.toml has, how fast memory and products are, and what it costs that a worker's batch comes from another process.
Where the clock of processor time ticks coarsely, as on Windows, it is time on the wall, and the last is a preset's.
Page-locking is measured only where there is a GPU. Everything else is that of a preset, as `Host.source` says.
"""

from __future__ import annotations

import io
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import process_time_ns
from typing import Any, overload

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from loaderviz.analysis import validate
from loaderviz.analysis.validate import Calibration
from loaderviz.emulator.hardware import FULL, SECOND, Host
from loaderviz.emulator.torch.dataloader import Meter
from loaderviz.errors import NotSentError
from loaderviz.machine import COARSE, cores, new_pages, thread_time_ns, tick, time_of

LARGE, NEAR, ROUNDS = 2**24, 2**20, 7  # bytes that are copied, and in caches; times that something is measured
PARTS, BYTES = 256, 2**16  # that are sent in a list, and of each: 16 MiB, so that all of their memory is new
MEASURED = "measured by loaderviz.calibrate()"
PATIENCE, STARTED_ANEW = 10, 60  # s until a batch comes from a worker: forked, or started with an import of torch
BATCHES, FEW, FIRST = 24, 9, 4  # that a worker sends of each kind, and of large ones; those in which it warms up


@overload
def calibrate(trace: None = None, on: str | None = None, host: str = "workstation") -> Host: ...
@overload
def calibrate(trace: str | Path, on: str | None = None, host: str = "workstation") -> Calibration: ...
def calibrate(trace: str | Path | None = None, on: str | None = None, host: str = "workstation") -> Host | Calibration:
    """Return this machine as a `Host`, measured; or, of a trace, the GPU and the host that it shows.

    The preset `host` gives what is not measured. A trace must come from torch.profiler with record_shapes=True. The
    preset `on` then gives what the trace does not show of the GPU (default: the card that it names, else "a100").

    Raises `UnknownHardwareError` for a name that is no preset, `ValidationError` for a trace without kernels, and
    `NotSentError` where this system has no way for a worker's batch.
    """
    if trace is not None:
        return validate.calibrate(trace, on, host)
    base = Host.preset(host)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = _memory() | _decoding() | _boundary() | _sharing() | (_locking() if torch.cuda.is_available() else {})
    finally:
        torch.set_num_threads(threads)
    sources = base.sources | dict.fromkeys(found, MEASURED)
    return replace(base, name=f"{Path(host).name}, calibrated", sources=sources, **found)  # it may be a file


def told(host: Host) -> str:
    """Return what was measured of a host, line by line, and how much of it is a preset's."""
    measured = [name for name, source in host.sources.items() if source == MEASURED]
    width = max(map(len, measured))
    lines = [f"{name:<{width}}  {getattr(host, name):>15,}" for name in measured]
    rest = sum(isinstance(value, int) for value in vars(host).values()) - len(measured)
    units = "times in ns, rates in bytes or FLOP a second, a byte's in ps, shares in thousandths"
    return "\n".join([f"{host.name}: {units}", *lines, f"{rest} others are of the preset {host.name.split(', ')[0]!r}"])


def _least(action: Callable[[], object]) -> int:
    """Return the least processor time of an action [ns], of several times."""
    return max(1, min(time_of(action) for _ in range(ROUNDS)))


def _memory() -> dict[str, Any]:
    source, target, matrix, page = torch.ones(LARGE // 4), torch.ones(LARGE // 4), torch.ones(512, 512), new_pages()
    near, product = source[: NEAR // 4], target[: NEAR // 4]
    return {
        "memory_bandwidth": 2 * source.nbytes * SECOND // _least(lambda: target.copy_(source)),
        "cached_bandwidth": 2 * NEAR * SECOND // _least(lambda: torch.mul(near, 2, out=product)),
        "flops": 2 * 512**3 * SECOND // _least(lambda: matrix @ matrix),
        "new_page": round(page.written),
        "first_read": round(page.read),
        "staged_page": round(page.read),
        "unmap": round(page.unmapped),
    }


def _decoding() -> dict[str, Any]:
    """Return how many thousandths of the table's time pictures take, the middle one of four functions."""
    try:
        from PIL import Image
    except ImportError:
        return {}
    file, table = io.BytesIO(), Meter(replace(Host.preset("workstation"), transforms=FULL), measured=False)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (375, 500, 3), dtype=np.uint8))
    picture.save(file, "JPEG", quality=75)
    times = []
    for call in (
        lambda: Image.open(io.BytesIO(file.getvalue())).load(),
        lambda: picture.convert("L"),
        lambda: picture.rotate(10),
        lambda: picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    ):
        with table:
            call()
        times.append(_least(call) / table.work)
    return {"transforms": round(FULL * statistics.median(times))}


# The process boundary


class Stamped(Dataset[Any]):
    """A batch of one kind, with the processor time of making it, and its worker's until then [ns]."""

    def __init__(self, make: Callable[[], Any], batches: int) -> None:
        self.make, self.batches = make, batches

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, index: int) -> Any:
        start = thread_time_ns()
        batch = self.make()
        return batch, thread_time_ns() - start, process_time_ns()


def _as_it_is(batch: Any) -> Any:
    return batch


def _parts() -> list[bytes]:
    return [bytes(bytearray(BYTES)) for _ in range(PARTS)]


def _crossing(make: Callable[[], Any], batches: int = BATCHES) -> tuple[int, int]:
    """Return the least ns of processor time in which a worker sends a batch, and this thread receives it."""
    patience = PATIENCE if multiprocessing.get_start_method() == "fork" else STARTED_ANEW
    loader = iter(DataLoader(Stamped(make, batches), None, num_workers=1, collate_fn=_as_it_is, timeout=patience))
    sent, received, before = [], [], 0
    for _ in range(batches):
        start = thread_time_ns()
        try:
            _, making, stamp = next(loader)
        except RuntimeError as error:
            if "timed out" not in str(error):  # the worker has died, which torch says
                raise
            raise NotSentError(
                f"a worker did not send a batch of a few bytes within {patience} s: /dev/shm is full, or the path of "
                f"the temporary folder {tempfile.gettempdir()} is too long for a socket; name a shorter one in TMPDIR"
            ) from error
        received.append(thread_time_ns() - start)
        sent.append(stamp - before - making)
        before = stamp
    return min(sent[FIRST:]), min(received[FIRST:])


def _boundary() -> dict[str, Any]:
    if tick() >= COARSE:  # a batch takes less, and on the wall it would be what the two processes wait for each other
        return {}
    nothing, tensor, pickled = _crossing(int), _crossing(partial(torch.zeros, 1)), _crossing(_parts, FEW)
    found = {
        "fetch_base": nothing[0],
        "hand_out": nothing[1],
        "tensor_sent": tensor[0] - nothing[0],
        "tensor_received": tensor[1] - nothing[1],
        "pickle_per_byte": (pickled[0] - nothing[0]) * 1000 / (PARTS * BYTES),
        "unpickle_per_byte": (pickled[1] - nothing[1]) * 1000 / (PARTS * BYTES),
    }
    return {name: max(0, round(value)) for name, value in found.items()}


# Cores that work at once


def _busy(start: Any, done: Any, seconds: float) -> None:
    start.wait()
    count, pixels, end, before = 0, np.ones(2**16, np.float32), time.perf_counter() + seconds, thread_time_ns()
    while time.perf_counter() < end:
        pixels *= 1.0
        count += 1
    done.put((thread_time_ns() - before) / count)


def _together(processes: int, seconds: float = 0.25) -> float:
    """Return the processor time of a piece of work [ns] in each of so many processes at once, the mean."""
    context = multiprocessing.get_context()
    start, done = context.Barrier(processes), context.Queue()
    started = [context.Process(target=_busy, args=(start, done, seconds), daemon=True) for _ in range(processes)]
    for process in started:
        process.start()
    times = [float(done.get()) for _ in started]
    for process in started:
        process.join()
    return statistics.mean(times)


def _sharing() -> dict[str, Any]:
    """Return the cores, and how much they slow each other: beside a thread half of the others are busy on average."""
    physical, threads = cores()
    found: dict[str, Any] = {"cores": physical, "siblings": cores().siblings}
    alone, every = _together(1), _together(physical)
    found["contention"] = max(0, round(2 * FULL * (every / alone - 1) / max(1, physical - 1)))
    if threads > physical:
        found["sibling"] = max(0, round(FULL * (threads / physical * every / _together(threads) - 1)))
    return found


def _locking() -> dict[str, Any]:
    """Return what page-locking takes, in this thread's processor time: a page of it, and a GiB."""
    driver, times = torch.cuda.cudart(), []
    torch.cuda.init()
    for size in (4096, 4096, 2**28):  # the first call of a process begins CUDA: 103 ms on an H200
        memory = torch.zeros(size, dtype=torch.uint8)
        start = thread_time_ns()
        driver.cudaHostRegister(memory.data_ptr(), size, 0)
        times.append(thread_time_ns() - start)
        driver.cudaHostUnregister(memory.data_ptr())
    _, page, part = times
    return {"page_lock_base": page, "page_lock_per_gib": 2**30 // 2**28 * max(0, part - page)}
