"""What does the search for hazards cost? Time added per operator (goal: at most 25 µs), and memory over 40 epochs.

Run it from the root of the repository: python -m benchmarks.hazards [--epochs 40]

The loop is a prefetcher (side stream, one event per batch, record_stream) with a small CNN and Adam, forward and
backward on the device; all operators count, those of the backward pass and the optimizer too. The memory is what the
search itself keeps: cells of the address map, waits on trial, watched pinned buffers. It must not grow with the epochs.
"""

from __future__ import annotations

import argparse
import platform
import resource
import sys
from collections.abc import Iterator

import torch
from torch import nn

import loaderviz
from loaderviz.emulator.torch_cuda.session import Session
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


def train(epochs: int, sizes: list[tuple[int, int, int]]) -> None:
    """Train for some epochs; after each, note how much the search keeps."""
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
        sizes.append(kept())


def kept() -> tuple[int, int, int]:
    """Return what the search keeps now: cells, uses in them, and everything else (waits, trials, watches)."""
    session = Session.running("benchmark")
    races, touched = session.runtime.races, session.touched
    if races is None or touched is None:
        return 0, 0, 0
    cells = list(races.memory._cells.values())
    waits = races.waits
    others = len(waits._lines) + len(waits._held) + len(waits._last) + len(races.order.trials) + len(touched.watched)
    return len(cells), sum(len(cell.writes) + len(cell.reads) for cell in cells), others + len(races._sightings)


def processor_time() -> float:
    """Return the seconds that this process has computed: real ones, also inside a recording."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(epochs: int, hazards: str) -> tuple[float, int, list[tuple[int, int, int]]]:
    """Return (seconds of this machine, operators, what was kept after each epoch)."""
    sizes: list[tuple[int, int, int]] = []
    with loaderviz.record(on="a100", hazards=hazards) as recording:
        start = processor_time()
        train(epochs, sizes)
        took = processor_time() - start
    assert not recording.hazards, recording.hazards
    return took, int(recording.timeline.where(Kind.OPERATOR).sum()), sizes


def main() -> int:
    """Print both; return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=40)
    epochs = parser.parse_args().epochs
    torch.set_num_threads(1)
    measure(1, "warn")  # warms up
    times: dict[str, list[float]] = {"off": [], "warn": []}
    operators = 0
    for _ in range(9):
        for hazards, seconds in times.items():
            took, operators, _ = measure(5, hazards)
            seconds.append(took)
    off, on = (min(seconds) / operators * 1e6 for seconds in times.values())
    machine = platform.processor() or platform.machine()
    print(f"{machine}, Python {platform.python_version()}, torch {torch.__version__}")
    print(f"{operators:,} operators; hazards off: {off:.1f} µs an operator, on: {on:.1f} µs, added: {on - off:.1f} µs "
          f"(goal: at most {GOAL:.0f})")  # fmt: skip
    sizes = measure(epochs, "warn")[2]
    print(f"kept by the search, over {epochs} epochs of {STEPS} batches: cells, uses in them, others")
    for epoch in sorted({0, 1, epochs // 4, epochs // 2, epochs - 1}):
        print(f"  after epoch {epoch + 1:3}: {sizes[epoch][0]:5,} {sizes[epoch][1]:5,} {sizes[epoch][2]:5,}")
    # A few more or less: the blocks that hold the same tensors are cut differently from one epoch to the next.
    before, after = (max(map(sum, half)) for half in (sizes[: epochs // 2], sizes[epochs // 2 :]))
    flat = after <= 1.2 * before
    print("flat" if flat else "it grows")
    return int(on - off > GOAL or not flat)


if __name__ == "__main__":
    sys.exit(main())
