"""Does a program of threads give the same timeline each time? 100 recordings of each, also with frantic switches.

python -m benchmarks.threads                     # all programs
python -m benchmarks.threads copying_thread --runs 10
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from queue import Queue

import torch

import loaderviz as lv
from benchmarks.programs import PROGRAMS, Program

FRANTIC = 1e-6  # s


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

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for _ in threads:
        done.get()
    for thread in threads:
        thread.join()


OURS: dict[str, Callable[[str], object]] = {"pool": pool, "locks": locks}
OTHERS = ("copying_thread", "torchdata_pin", "spdl_pipeline", "background_generator")


def programs() -> dict[str, Callable[[str], object]]:
    """Return those whose packages are installed."""
    found = dict(OURS)
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
    options = parser.parse_args(arguments)
    usual, several = sys.getswitchinterval(), 0
    for name, run in programs().items():
        if options.names and name not in options.names:
            continue
        found: Counter[str] = Counter()
        try:
            for number in range(options.runs):
                sys.setswitchinterval(FRANTIC if number % 2 else usual)
                found[digest(run)] += 1
        finally:
            sys.setswitchinterval(usual)
        several += len(found) > 1
        print(f"{name:24}{options.runs} runs, {len(found)} timelines: {dict(found)}", flush=True)
    return int(several > 0)


if __name__ == "__main__":
    sys.exit(main())
