"""What does recording cost a DataLoader's worker? Goal: below 2 % of the time in which it fetches a batch.

Run it from the root of the repository: python -m benchmarks.workers [--batch-size 64] [--batches 200] [--repeats 7]

The batch is of MNIST through torchvision, with ToTensor and Normalize. Two figures, in processor time, each the best of
some repeats, plain and recorded in turn:

* our own part: what the stand-ins for a worker's queues add to a batch (records written to a file), over the time of
  one fetch in this process;
* the whole: processor time of a DataLoader's worker from batch to batch, plain, inside record(on="cpu"), and under
  torch.profiler alone: a forked worker inherits the running profiler, which record() switches off in it.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from collections import deque
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, Dataset, Subset, default_collate

from loaderviz import mnist, record
from loaderviz.traces.workers import FileLog, LoggedQueue

GOAL = 0.02


class Queue:
    """A queue that costs next to nothing."""

    def __init__(self, items: list[Any]) -> None:
        self._items = deque(items)

    def get(self, timeout: float) -> Any:
        """Return the next item."""
        return self._items.popleft()

    def put(self, item: Any) -> None:
        """Forget an item."""


def pass_through(orders: Any, results: Any, batch: Any, batches: int) -> float:
    """Take `batches` orders and send as many results, as a worker's loop does; return its processor time [s]."""
    start = time.process_time()
    for index in range(batches):
        orders.get(timeout=5.0)
        results.put((index, batch))
    return time.process_time() - start


def own_part(batch: Any, batches: int) -> float:
    """Return the processor time [s] that the stand-ins add to one batch."""
    items = [(index, [index]) for index in range(batches)]
    plain = pass_through(Queue(items), Queue([]), batch, batches)
    with tempfile.TemporaryDirectory() as folder:
        log = FileLog(Path(folder) / "0-0")
        recorded = pass_through(LoggedQueue(Queue(items), log), LoggedQueue(Queue([]), log), batch, batches)
    return (recorded - plain) / batches


def fetch(data: Dataset[Any], size: int) -> float:
    """Return the processor time [s] in which a batch is fetched and collated."""
    start = time.process_time()
    default_collate([data[index] for index in range(size)])
    return time.process_time() - start


def collate(samples: list[Any]) -> tuple[Any, float]:
    """Return the batch, and the processor time that the worker has used so far [s]."""
    return default_collate(samples), time.process_time()


def epoch(data: Dataset[Any], size: int) -> float:
    """Return the processor time [s] that a worker uses from one batch to the next, at best: all of its loop."""
    times = [used for _, used in DataLoader(data, size, num_workers=1, collate_fn=collate)]
    return min(later - earlier for earlier, later in pairwise(times))


def main() -> int:
    """Measure and print; return 1 if the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    from torchvision import transforms  # after mnist, which makes torchvision fit the build of torch

    torch.set_num_threads(1)
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.13,), (0.31,))])
    size = options.batch_size
    data = Subset(mnist.load(train=True, transform=transform), range(size * options.batches))
    batch = default_collate([data[index] for index in range(size)])
    best = dict.fromkeys(("fetch", "own part", "plain", "recorded", "torch.profiler alone"), float("inf"))
    for _ in range(options.repeats):
        figures = {"fetch": min(fetch(data, size) for _ in range(20)), "own part": own_part(batch, 2_000)}
        figures["plain"] = epoch(data, size)
        with record(on="cpu"):
            figures["recorded"] = epoch(data, size)
        with profile(activities=[ProfilerActivity.CPU]):
            figures["torch.profiler alone"] = epoch(data, size)
        best = {name: min(best[name], value) for name, value in figures.items()}
    share = best["own part"] / best["fetch"]
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}; best of {options.repeats}")
    print(f"a fetch of {size} samples takes {best['fetch'] * 1e6:,.0f} µs of processor time")
    print(f"our own part: {best['own part'] * 1e6:.1f} µs a batch, {share:.2%} of the fetch (goal: below {GOAL:.0%})")
    for name in ("plain", "recorded", "torch.profiler alone"):
        print(f"worker, {name:20} {best[name] * 1e6:8,.0f} µs a batch, {best[name] / best['plain'] - 1:+.1%}")
    return int(share >= GOAL)


if __name__ == "__main__":
    sys.exit(main())
