"""What does the search for hazards cost? Time added per operator (goal: at most 25 µs), and memory over 40 epochs.

Run it from the root of the repository: python -m benchmarks.hazards [--epochs 40]

The loop is a prefetcher (side stream, one event per batch, record_stream) with a small CNN and Adam, forward and
backward on the device; all operators count, those of the backward pass and the optimizer too. Short recordings without
and with the search take turns. Of each, the fastest step counts, in processor time of this process; of the pairs, the
median. So other work on the machine matters little to the ratio; the µs grow with it, as those without the search do.
The memory is what the search itself keeps: cells of the address map, waits and orders without them, watched pinned
buffers. It must not grow with the epochs.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Iterator
from statistics import median

import torch
from torch import nn

import loaderviz
from loaderviz.emulator.torch.session import Session
from loaderviz.loaders import PrefetchLoader
from loaderviz.timeline import Kind

GOAL = 25.0  # µs an operator
ROWS, STEPS = 64, 12


class Batches:
    """Pinned batches of MNIST's shape."""

    def __len__(self) -> int:
        return STEPS

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for step in range(STEPS):
            yield torch.full((ROWS, 1, 28, 28), step / STEPS).pin_memory(), torch.full((ROWS,), step % 10).pin_memory()


def train(epochs: int) -> Iterator[None]:
    """Train for some epochs; yield after each step."""
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(144, 32), nn.ReLU(), nn.Linear(32, 10)
    ).to("cuda")
    optimizer, loss_of = torch.optim.Adam(model.parameters()), nn.CrossEntropyLoss()
    loader = PrefetchLoader(Batches(), "cuda", lifetime="record_stream")
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss_of(model(images), labels).backward()
            optimizer.step()
            yield


def kept() -> tuple[int, int, int]:
    """Return what the search keeps now: cells, uses in them, and everything else (waits, watches)."""
    session = Session.running("benchmark")
    races, tracking = session.runtime.races, session.tracking
    if races is None or tracking is None:
        return 0, 0, 0
    cells = list(races.memory._cells.values())
    linter, counterfactuals = races.linter, races.order.counterfactuals
    others = (linter._waits, linter._held, linter._last, counterfactuals, tracking.checksums, races._found)
    return len(cells), sum(len(cell.writes) + len(cell.reads) for cell in cells), sum(map(len, others))


def fastest_step(hazards: str, epochs: int = 2) -> tuple[float, float]:
    """Return (µs of processor time of the fastest step, operators a step); the first epoch warms up."""
    times = []
    with loaderviz.record(on="a100", hazards=hazards) as recording:
        last = time.process_time_ns()  # a recording leaves this clock alone
        for _ in train(epochs):
            now = time.process_time_ns()
            times.append(now - last)
            last = now
    assert not recording.hazards, recording.hazards
    return min(times[STEPS:]) / 1000, int(recording.timeline.where(Kind.OPERATOR).sum()) / (epochs * STEPS)


def compare(pairs: int) -> tuple[float, float, float]:
    """Return µs an operator without the search, µs added by it, and how many times as long it takes with it."""
    off, added, ratio = [], [], []
    for pair in range(pairs):
        modes = ("off", "warn") if pair % 2 else ("warn", "off")
        steps = {mode: fastest_step(mode) for mode in modes}
        (without, operators), (searching, _) = steps["off"], steps["warn"]
        off.append(without / operators)
        added.append((searching - without) / operators)
        ratio.append(searching / without)
    return median(off), median(added), median(ratio)


def growth(epochs: int) -> list[tuple[int, int, int]]:
    """Return what the search keeps after each epoch."""
    with loaderviz.record(on="a100"):
        return [kept() for step, _ in enumerate(train(epochs), 1) if step % STEPS == 0]


def main() -> int:
    """Print both; return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=40, help="over which the memory is looked at")
    parser.add_argument("--pairs", type=int, default=30, help="of recordings without and with the search")
    options = parser.parse_args()
    torch.set_num_threads(1)
    fastest_step("warn")  # warms up
    off, added, ratio = compare(options.pairs)
    machine = platform.processor() or platform.machine()
    print(f"{machine}, Python {platform.python_version()}, torch {torch.__version__}")
    print(f"hazards off: {off:.1f} µs an operator; on: {ratio:.2f} times as long, {added:.1f} µs more "
          f"(goal: at most {GOAL:.0f})")  # fmt: skip
    sizes = growth(options.epochs)
    print(f"kept by the search, over {options.epochs} epochs of {STEPS} batches: cells, uses in them, others")
    for epoch in sorted({0, 1, options.epochs // 4, options.epochs // 2, options.epochs - 1}):
        print(f"  after epoch {epoch + 1:3}: {sizes[epoch][0]:5,} {sizes[epoch][1]:5,} {sizes[epoch][2]:5,}")
    # A few more or less: the blocks that hold the same tensors are cut differently from one epoch to the next.
    before, after = (max(map(sum, half)) for half in (sizes[: len(sizes) // 2], sizes[len(sizes) // 2 :]))
    flat = after <= 1.2 * before
    print("flat" if flat else "it grows")
    return int(added > GOAL or not flat)


if __name__ == "__main__":
    sys.exit(main())
