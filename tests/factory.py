"""Timelines for the tests: the four loaders in small, with workers, pin thread, nested host calls and two streams.

The numbers are round, so that a test can say what must come out: `blocking` hides nothing, `prefetch` hides all but
the first copy, `resident` has no copies after its first.
"""

from __future__ import annotations

import functools
import gc
import http.server
import importlib.util
import os
import queue
import random
import re
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from torch.utils.data import Dataset

import loaderviz as lv
from loaderviz.timeline import DEVICE_KINDS, ArrowKind, Cause, Context, Kind, Timeline, TimelineBuilder
from loaderviz.timeline import KERNELS as KERNELS_OF_ALL
from loaderviz.widgets.explorer import Settings, rates_of

US = 1_000
FETCH, PIN, COPY, COMPUTE, LAUNCH = 180 * US, 40 * US, 60 * US, 150 * US, 5 * US
KERNELS = 5  # per batch
SAMPLES, NBYTES = 256, 802_816
LOADERS = ("blocking", "pinned", "prefetch", "resident")
slow = functools.partial(pytest.param, marks=pytest.mark.slow)  # a case for `make test-all`
STARTS_A_THREAD = "_start_joinable_thread" if hasattr(threading, "_start_joinable_thread") else "_start_new_thread"
SHARED = Path(__file__).resolve().parents[2] / "shared" / "traces"


def shared(name: str) -> Path:
    """A real trace, where the folder of them is there."""
    if not (path := SHARED / name).exists():
        pytest.skip(f"the public traces are not in {SHARED.name}/ beside the repository")
    return path


@functools.cache
def real(name: str) -> Timeline:
    """The timeline of a real trace, read once for all tests."""
    return lv.read(shared(name))


def script(path: str) -> ModuleType:
    """Return the module at this path of the project, which is no part of the package."""
    spec = importlib.util.spec_from_file_location(path[:-3].replace("/", "_"), Path(__file__).parents[1] / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Samples(Dataset[Any]):
    """`of(index)` is a sample; None becomes 0.0."""

    def __init__(self, of: Callable[[int], Any], count: int = 4) -> None:
        self.of, self.count = of, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        sample = self.of(index)
        return 0.0 if sample is None else sample


def through_a_thread(batches: Iterable[Any]) -> Iterator[Any]:
    """Give what a thread of its own takes."""
    ready: queue.Queue[Any] = queue.Queue(2)

    def take() -> None:
        for batch in batches:
            ready.put(batch)
        ready.put(None)

    threading.Thread(target=take, daemon=True).start()
    while (batch := ready.get()) is not None:
        yield batch


def in_threads(*works: Callable[[], Any]) -> None:
    """Do each of these in a thread of its own, at the same time, and wait for their ends."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def python(*command: Any, folder: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a Python of its own, in which the project can be imported; return how it ended and what it said."""
    known = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])} | environment
    words = [sys.executable, *map(str, command)]
    return subprocess.run(words, cwd=folder, env=known, capture_output=True, text=True, check=False)


@contextmanager
def beside(work: Callable[[], Any], **options: Any) -> Iterator[threading.Thread]:
    """Do this in a thread beside the block, and wait for its end."""
    thread = threading.Thread(target=work, **options)
    thread.start()
    yield thread
    thread.join()


def are_gone(*things: weakref.ref[Any]) -> bool:
    """Tell whether these are collected: a collection does nothing while another thread of the tests is at one."""
    until = time.monotonic() + 10
    while any(each() is not None for each in things) and time.monotonic() < until:
        gc.collect()
        time.sleep(0.01)
    return all(each() is None for each in things)


@contextmanager
def serving(folder: Path, asked: list[str] | None = None) -> Iterator[int]:
    """Serve a folder on this machine, at this port; which paths were asked for is noted."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            [] if asked is None else asked.append(self.path)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_port
        server.shutdown()


def made(*spans: Any, marks: Any = (), **context: Any) -> Timeline:
    """A timeline of spans (lane, start, end, kind, and what else of it is known) and marks (time, lane, and so on).

    A lane is "main", "stream 7" or, of another device, "stream 7@1", perhaps after "rank 1 "; `by=-1`: the span before
    launches it.
    """
    builder = TimelineBuilder(Context(**context))

    def lane_of(text: str) -> int:
        name, _, device = text.partition("@")
        role, number, *_ = re.sub(r"^rank \d+ |^pin thread", "", f"{name} 0").split(" ")
        return builder.lane(
            name, "device" if role == "stream" else "host", role or "pin", int(number), int(device or 0)
        )

    for lane, start, end, kind, *more in spans:
        known = {"name": kind.name.lower()} | dict(*more)
        by = known.pop("by", 0)
        span = builder.span(start, end, lane_of(lane), kind, **known)
        if by:
            builder.arrow(span + by, span, ArrowKind.LAUNCH)
    for at, lane, *more in marks:
        builder.mark(at, lane_of(lane), *more)
    return builder.build()


def us(spans: Any) -> list[Any]:
    """These spans, whose times are given in µs, for `made`."""
    return [(lane, round(start * US), round(end * US), *more) for lane, start, end, *more in spans]


def steps(count: int, period: float, spans: Callable[[int], Any]) -> list[Any]:
    """Of so many steps of `period` µs the `spans(n)` of each, for `made`: with times in µs from the nth's begin."""
    of_all = ((n * period, span) for n in range(count) for span in spans(n))
    return us((lane, at + start, at + end, *more) for at, (lane, start, end, *more) in of_all)


def device_kinds() -> tuple[Timeline, dict[str, float]]:
    """A stream with each kind of device work, and a second copy to the GPU, of no batch, in another stream; and how
    high each is drawn, by name: 1 for kernels."""
    heights = {kind.name.lower(): 1.0 if kind in KERNELS_OF_ALL else 0.55 for kind in DEVICE_KINDS}
    spans = [("stream 7", 100 * at * US, (100 * at + 90) * US, kind, {"batch": at, "nbytes": 1_000_000})
             for at, kind in enumerate(DEVICE_KINDS)]  # fmt: skip
    other = ("stream 9", 650 * US, 700 * US, Kind.COPY_H2D, {"name": "alone"})
    host = ("main", 0, 700 * US, Kind.API, {"name": "host"})
    return made(host, *spans, other), heights | {"alone": 0.55, "host": 1.0}


def loader(name: str, batches: int = 6, workers: int = 2) -> Timeline:
    """One of the four loaders; every timeline passes `self_check`."""
    return _Loop(name, batches, workers).timeline()


def loaders(batches: int = 6) -> dict[str, Timeline]:
    return {name: loader(name, batches) for name in LOADERS}


def settings(gpu: str, batch_size: int, compute: int, kernels: int = 17, **more: Any) -> Settings:
    """A loop of the emulator whose kernels take `compute` ns for 8,192 samples, and 2 µs a kernel."""
    time = compute * batch_size // 8192 + 2_000 * kernels
    return Settings(gpu=gpu, batch_size=batch_size, compute=time, kernels=kernels, **rates_of(gpu), **more)


def empty() -> Timeline:
    return TimelineBuilder(Context(device="A100", origin="emulated")).build()


class _Loop:
    """Writes down a training loop batch by batch; times in ns."""

    def __init__(self, name: str, batches: int, workers: int) -> None:
        self.name, self.batches, self.workers = name, batches, workers
        samples = batches * SAMPLES
        self.builder = TimelineBuilder(
            Context(device="A100 PCIe", origin="emulated", host="8-core host", samples=samples)
        )
        lane = self.builder.lane
        self.worker = [lane(f"worker {k}", "host", "worker", k) for k in range(workers)]
        self.pin = lane("pin thread", "host", "pin") if name in ("pinned", "prefetch") else -1
        self.main = lane("main", "host", "main")
        self.compute = lane("stream 0", "device", number=0)
        self.copies = lane("stream 7", "device", number=7) if name == "prefetch" else self.compute
        self.correlation = 0
        self.free = {self.compute: 0, self.copies: 0}  # when each stream has done all its work
        self.clock = 0

    def timeline(self) -> Timeline:
        ready = self._prepare()
        copied: dict[int, tuple[int, int]] = {}
        starts = []
        for batch in range(self.batches):
            if self.name == "prefetch":
                for ahead in (batch, batch + 1):
                    if ahead < self.batches and ahead not in copied:
                        self._wait(ready[ahead], ahead)
                        copied[ahead] = self._copy(ahead)
                starts.append(self.clock)
            else:
                self._wait(ready[batch], batch)
                starts.append(self.clock)  # handed out; the loop copies it
                if self.name != "resident" or batch == 0:
                    copied[batch] = self._copy(batch)
            self._train(batch, copied.get(batch))
        last = max(self.free.values())
        self._call("cudaDeviceSynchronize", last + LAUNCH - self.clock, self.batches - 1, Cause.SYNCHRONIZE)
        for batch, (start, end) in enumerate(zip(starts, [*starts[1:], self.clock], strict=True)):
            name = f"batch {batch}: {SAMPLES} samples"
            self.builder.span(start, end, self.main, Kind.RANGE, name, batch=batch, source="train.py:12")
        return self.builder.build().self_check()

    def _prepare(self) -> list[int]:
        """Workers fetch ahead, the pin thread pins; return when each batch is ready."""
        if self.name == "resident":
            return [0] * self.batches
        ready, pin_free = [], 0
        for batch in range(self.batches):
            start = (batch // self.workers) * FETCH
            end = start + FETCH
            self.builder.span(start, end, self.worker[batch % self.workers], Kind.FETCH, f"fetch batch {batch}",
                              batch=batch)  # fmt: skip
            if self.pin >= 0:
                start, end = max(end, pin_free), max(end, pin_free) + PIN
                self.builder.span(start, end, self.pin, Kind.PIN, "pin", batch=batch, nbytes=NBYTES)
                pin_free = end
            ready.append(end)
        return ready

    def _wait(self, until: int, batch: int) -> None:
        if until > self.clock:
            self.builder.span(self.clock, until, self.main, Kind.WAIT, "next(loader)", batch=batch, cause=Cause.DATA)
            self.clock = until

    def _call(self, name: str, time: int, batch: int, cause: Cause = Cause.NONE) -> int:
        self.correlation += 1
        call = self.builder.span(self.clock, self.clock + time, self.main, Kind.API, name, batch=batch,
                                 correlation=self.correlation, source="train.py:14")  # fmt: skip
        if cause is not Cause.NONE:
            inside = (self.clock + US, self.clock + time - US)
            self.builder.span(*inside, self.main, Kind.WAIT, name, batch=batch, cause=cause)
        self.clock += time
        return call

    def _copy(self, batch: int) -> tuple[int, int]:
        """Return the span's number and its end."""
        pinned = self.pin >= 0
        start = max(self.clock + LAUNCH, self.free[self.copies])
        end = start + (COPY if pinned else 2 * COPY)
        blocked = end - self.clock if not pinned else LAUNCH
        cause = Cause.NONE if pinned else Cause.STAGING
        self.builder.span(self.clock, self.clock + blocked, self.main, Kind.OPERATOR, "aten::to", batch=batch)
        call = self._call("cudaMemcpyAsync", blocked, batch, cause)
        name = f"Memcpy HtoD ({'Pinned' if pinned else 'Pageable'} -> Device)"
        copy = self.builder.span(start, end, self.copies, Kind.COPY_H2D, name, batch=batch, nbytes=NBYTES,
                                 correlation=self.correlation, pinned=pinned, source="train.py:14")  # fmt: skip
        self.builder.arrow(call, copy, ArrowKind.LAUNCH)
        self.free[self.copies] = end
        return copy, end

    def _train(self, batch: int, copied: tuple[int, int] | None) -> None:
        for kernel in range(KERNELS):
            operator = (self.clock, self.clock + LAUNCH)
            self.builder.span(*operator, self.main, Kind.OPERATOR, "aten::addmm", batch=batch)
            call = self._call("cudaLaunchKernel", LAUNCH, batch)
            begin = max(self.clock, self.free[self.compute], copied[1] if copied else 0)
            end = begin + COMPUTE // KERNELS
            work = self.builder.span(begin, end, self.compute, Kind.COMPUTE, f"gemm_{kernel}", batch=batch,
                                     correlation=self.correlation, source="train.py:15")  # fmt: skip
            self.builder.arrow(call, work, ArrowKind.LAUNCH)
            if copied and kernel == 0 and self.copies != self.compute:
                self.builder.arrow(copied[0], work, ArrowKind.WAIT)
            self.free[self.compute] = end


def random_timeline(seed: int, spans: int = 12, horizon: int = 60, devices: int = 1) -> Timeline:
    """A small chaotic but well-made timeline, for comparison with brute force over every nanosecond."""
    draw = random.Random(seed)
    builder = TimelineBuilder(Context())
    main = builder.lane("main", "host", "main")
    kinds = [Kind.COMPUTE, Kind.COMMUNICATION, Kind.COPY_H2D, Kind.COPY_D2H, Kind.COPY_D2D, Kind.MEMSET]
    free = {builder.lane(f"stream {k}", "device", number=k): 0 for k in range(3)}
    for _ in range(spans):
        if draw.random() < 0.4:
            start = draw.randrange(horizon)
            kind = draw.choice([Kind.WAIT, Kind.FETCH, Kind.API, Kind.OPERATOR])
            cause = draw.choice(list(Cause)[1:]) if kind is Kind.WAIT else Cause.NONE
            builder.span(start, start + draw.randrange(12), main, kind, "host", cause=cause)
            continue
        lane = draw.choice(list(free))
        start = free[lane] + draw.randrange(6)
        free[lane] = start + draw.randrange(12)
        kind = draw.choice(kinds)
        builder.span(start, free[lane], lane, kind, kind.name.lower(), batch=draw.randrange(-1, 4), nbytes=100,
                     pinned=draw.random() < 0.5)  # fmt: skip
    return builder.build().self_check()


def many_spans(count: int, lanes: int = 4, seed: int = 0) -> Timeline:
    """`count` kernels in a few streams, as a long recorded run has them."""
    draw = random.Random(seed)
    builder = TimelineBuilder(Context(device="A100", origin="recorded"))
    numbers = [builder.lane(f"stream {k}", "device", number=k) for k in range(lanes)]
    clock = [0] * lanes
    for index in range(count):
        lane = index % lanes
        clock[lane] += draw.randrange(1, 4_000)
        start, clock[lane] = clock[lane], clock[lane] + draw.randrange(500, 9_000)
        builder.span(start, clock[lane], numbers[lane], Kind.COMPUTE, "kernel", batch=index // 50)
    return builder.build()


_PLACES = ("argsort", "argwhere", "bincount", "flatnonzero", "lexsort", "nonzero", "searchsorted")
_VALUES = ("arange", "array", "asarray", "cumsum", "fromiter", "full", "ones", "repeat", "where", "zeros")


@contextmanager
def int_of_32_bits() -> Iterator[None]:
    """Let numpy be as where its default integer has 32 bits (Windows before numpy 2, WebAssembly): what is made of
    Python's numbers that fit, or without a dtype, is so wide; arrays of 64 bits stay."""
    wide = (np.dtype(np.int64), np.dtype(np.uint64))

    def told(values: Any) -> bool:
        if isinstance(values, (list, tuple)):
            return any(map(told, values))
        return getattr(values, "dtype", None) in wide or values is np.int64

    def narrow(result: Any) -> Any:
        fits = isinstance(result, np.ndarray) and result.dtype == np.int64 and (np.abs(result) < 2**31).all()
        return result.astype(np.int32) if fits else result

    def narrowed(function: Any, by_width: bool) -> Any:
        @functools.wraps(function)
        def made(*values: Any, **options: Any) -> Any:
            result = function(*values, **options)
            return result if by_width and (told(values) or told(tuple(options.values()))) else narrow(result)

        return made

    class Joined:
        def __init__(self, joins: Any) -> None:
            self.joins = joins

        def __getitem__(self, parts: Any) -> Any:
            result = self.joins[parts]
            return result if told(parts if isinstance(parts, tuple) else (parts,)) else narrow(result)

    with pytest.MonkeyPatch.context() as patch:
        for name in _PLACES + _VALUES:
            patch.setattr(np, name, narrowed(getattr(np, name), name in _VALUES))
        for name in ("r_", "c_"):
            patch.setattr(np, name, Joined(getattr(np, name)))
        yield
