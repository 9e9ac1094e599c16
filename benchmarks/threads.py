"""Does a program of threads give the same timeline each time? 100 recordings of each, also with frantic switches.

python -m benchmarks.threads                     # all programs, beside processes that keep every core busy
python -m benchmarks.threads copying_thread --runs 10 --load 0
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from queue import Empty, Queue

import torch

import loaderviz as lv
from benchmarks.programs import PROGRAMS, Program
from loaderviz import machine

FRANTIC = 1e-6  # s
BUSY = "while True: sum(range(10000))"  # what a process does that takes a core


def pool(device: str) -> None:
    """Threads of a pool copy, each on a stream of its own."""

    def load(number: int) -> tuple[torch.Tensor, torch.cuda.Event]:
        with lv.costs(1e-4 * (5 - number % 5)), torch.cuda.stream(stream := torch.cuda.Stream()):
            return torch.full((64,), float(number)).to(device, non_blocking=True), stream.record_event()

    with ThreadPoolExecutor(3) as executor:
        for x, ready in executor.map(load, range(12)):
            torch.cuda.current_stream().wait_event(ready)
            x.sum().item()


def locks(device: str) -> None:
    """Threads of Python and of C take turns at a lock, a barrier and a queue."""
    lock, barrier, done = threading.Lock(), threading.Barrier(3), Queue[int](1)

    def run(number: int) -> None:
        for step in range(4):
            with lock, lv.costs(3e-4 * (number + step), gil=bool(step % 2)):
                torch.ones(8, device=device).add(1)
            barrier.wait()
        done.put(number)

    with together(*(partial(run, number) for number in range(3))):
        for _ in range(3):
            done.get()


@contextmanager
def together(*runs: Callable[[], object], daemon: bool = False) -> Iterator[None]:
    """Run these in threads beside the block; join all but daemons."""
    threads = [threading.Thread(target=run, daemon=daemon) for run in runs]
    for thread in threads:
        thread.start()
    yield
    for thread in threads if not daemon else ():
        thread.join()


def pipeline(device: str) -> None:
    """Three stages with queues between them: one reads, two decode (in C and in Python), the main thread trains."""
    read, decoded = Queue[int](2), Queue[torch.Tensor | None](2)

    def reader() -> None:
        for number in range(16):
            with lv.costs(1e-4, waits=3e-4):
                read.put(number)
        for _ in range(2):
            read.put(-1)

    def decoder(gil: bool) -> None:
        while (number := read.get()) >= 0:
            with lv.costs(4e-4, gil=gil):
                batch = torch.full((256,), float(number))
            decoded.put(batch.pin_memory())
        decoded.put(None)

    with together(reader, partial(decoder, True), partial(decoder, False)):
        over = 0
        while over < 2:
            batch = decoded.get()
            over += batch is None
            if batch is not None:
                batch.to(device, non_blocking=True).sum().item()


def event_loop(device: str) -> None:
    """Coroutines wait for work in an executor, which calls back into the loop, and for sleeps and each other."""

    async def run() -> None:
        loop, limit, count = asyncio.get_running_loop(), asyncio.Semaphore(2), 0
        arrived = asyncio.Event()

        def load(number: int) -> torch.Tensor:
            with lv.costs(2e-4 * (number % 3 + 1), gil=bool(number % 2)):
                loop.call_soon_threadsafe(arrived.set)
                return torch.full((64,), float(number)).to(device)

        async def one(number: int) -> None:
            nonlocal count
            async with limit:
                x = await loop.run_in_executor(executor, load, number)
            await arrived.wait()
            await asyncio.sleep(1e-4 * (number % 2))
            count += int(x.mul(2).sum().item() > 0)

        with ThreadPoolExecutor(3) as executor:
            await asyncio.gather(*map(one, range(10)))
            await asyncio.wait_for(asyncio.to_thread(load, 1), timeout=1)

    asyncio.run(run())


def condition(device: str) -> None:
    """Producers and consumers of a bounded buffer that a condition guards, some with a time limit."""
    changed, buffer, left = threading.Condition(), list[torch.Tensor](), 12

    def produce(number: int) -> None:
        for step in range(6):
            with lv.costs(2e-4 * (number + step % 3)):
                x = torch.full((32,), float(step), device=device)
            torch.cuda.current_stream().synchronize()
            with changed:
                while len(buffer) >= 2:
                    changed.wait(1e-4)
                buffer.append(x)
                changed.notify()

    def consume() -> None:
        nonlocal left
        while True:
            with changed:
                while left and not buffer:
                    changed.wait()
                if not left:
                    return
                x, left = buffer.pop(0), left - 1
                changed.notify_all()
            x.add(1).sum().item()

    with together(partial(produce, 1), partial(produce, 2), consume):
        consume()


def semaphore(device: str) -> None:
    """Six threads copy, two at a time, on streams of their own."""
    allowed = threading.BoundedSemaphore(2)

    def copy(number: int) -> None:
        host = torch.ones(100_000 * (number + 1)).pin_memory()
        with allowed, torch.cuda.stream(torch.cuda.Stream()):
            with lv.costs(1e-4 * number, gil=False):
                x = host.to(device, non_blocking=True)
            x.sum().item()

    with together(*(partial(copy, number) for number in range(6))):
        torch.ones(64, device=device).sum().item()


def futures(device: str) -> None:
    """Futures with callbacks, an exception and a cancellation; the next task is put in by the one before."""
    results, done = list[float](), Future[int]()

    def load(number: int) -> torch.Tensor:
        with lv.costs(1e-4 * (1 + number % 4)):
            x = torch.full((16,), float(number), device=device)
        if number == 5:
            raise ValueError(number)
        return x

    def after(number: int, found: Future[torch.Tensor]) -> None:
        results.append(-1.0 if found.exception() else found.result().sum().item())
        if number == 9:
            done.set_result(len(results))
        else:
            executor.submit(load, number + 1).add_done_callback(partial(after, number + 1))

    with ThreadPoolExecutor(2) as executor:
        executor.submit(load, 0).add_done_callback(partial(after, 0))
        late = [executor.submit(load, number) for number in (1, 2, 3)]
        late[-1].cancel()
        done.result()


def daemon(device: str) -> None:
    """Daemon threads wait with a time limit, and never end; each thread's stream and buffer are its own."""
    work, own = Queue[int](), threading.local()

    def watch() -> None:
        own.stream = torch.cuda.Stream()
        with torch.cuda.stream(own.stream):
            while True:
                try:
                    number = work.get(timeout=1e-4)
                except Empty:
                    time.sleep(5e-5)
                    continue
                own.buffer = torch.full((128,), float(number)).pin_memory().to(device, non_blocking=True)
                own.stream.synchronize()
                work.task_done()

    own.buffer = torch.zeros(8, device=device)
    with together(watch, watch, daemon=True):
        for number in range(10):
            work.put(number)
            own.buffer.add_(number)
            with lv.costs(2e-4):
                pass
        work.join()
        assert own.buffer.sum().item() == 8 * sum(range(10))


OURS: tuple[Callable[[str], object], ...] = (
    pool, locks, pipeline, event_loop, condition, semaphore, futures, daemon
)  # fmt: skip
OTHERS = ("copying_thread", "torchdata_pin", "spdl_pipeline", "background_generator")


def programs() -> dict[str, Callable[[str], object]]:
    """Return those whose packages are installed."""
    found = {run.__name__: run for run in OURS}
    for name in OTHERS:
        each = PROGRAMS[name]
        if isinstance(each, Program) and all(find_spec(need.replace("-", "_")) for need in each.needs):
            found[name] = each.run
    return found


def digest(run: Callable[[str], object]) -> str:
    """Return what tells one timeline of the program from another."""
    torch.manual_seed(0)
    with lv.record(on="a100", host="laptop") as recording:
        run("cuda")
    timeline = recording.timeline
    rows = repr(([lane.name for lane in timeline.lanes], list(timeline.rows()), timeline.context.notes))
    return hashlib.sha1(rows.encode(), usedforsecurity=False).hexdigest()[:10]


def main(arguments: Sequence[str] | None = None) -> int:
    """Record, count and print; return 1 if a program gave more than one timeline."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="PROGRAM")
    parser.add_argument("--runs", default=100, type=int)
    parser.add_argument("--load", default=machine.cores().threads, type=int, help="processes that keep a core busy")
    options = parser.parse_args(arguments)
    wanted = {name: run for name, run in programs().items() if name in options.names or not options.names}
    if options.runs < 2 or options.load < 0 or len(wanted) < len(set(options.names)):
        parser.error(f"give at least two runs, a load of 0 or more, and names of these: {', '.join(programs())}")
    with busy(options.load):
        found = [tried(name, run, options.runs) for name, run in wanted.items()]
    return int(max(found) > 1)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Start so many processes that take a core each."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def tried(name: str, run: Callable[[str], object], runs: int) -> int:
    """Record a program so often, each second time with frantic switches; tell how many timelines it gave."""
    usual, found = sys.getswitchinterval(), Counter[str]()
    try:
        for number in range(runs):
            sys.setswitchinterval(FRANTIC if number % 2 else usual)
            found[digest(run)] += 1
    finally:
        sys.setswitchinterval(usual)
    print(f"{name:24}{runs} runs, {len(found)} timelines: {dict(found)}", flush=True)
    return len(found)


if __name__ == "__main__":
    sys.exit(main())
