"""Time an epoch of MNIST on the CPU: plain, under torch.profiler alone, and in a recording of each kind.

Run it from the repository's root:

    python -m benchmarks.epoch

An MLP, batch 256, one thread, DataLoader without workers; once over tensors in memory (float32), once over
torchvision's MNIST with its ToTensor transform. It prints seconds of processor time, writing the timeline included, and
how many times the plain epoch's that is. It takes the ways in turn and prints the best of some rounds of each.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, Dataset, TensorDataset

from loaderviz import mnist, record
from loaderviz.workshop.articles import digits

TARGET = 3.0  # times the plain epoch, at most, for the emulated one
WAYS: dict[str, tuple[str, Callable[[], AbstractContextManager[Any]]]] = {
    "plain": ("cpu", nullcontext),
    "torch.profiler": ("cpu", lambda: profile(activities=[ProfilerActivity.CPU])),
    'on="cpu"': ("cpu", lambda: record(on="cpu")),
    'on="a100"': ("cuda", lambda: record(on="a100")),
}


def epoch(device: str, data: Dataset[Any]) -> None:
    """Train for one epoch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in DataLoader(data, batch_size=256, shuffle=True):
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()


def measure(data: Dataset[Any], repeats: int) -> dict[str, float]:
    """Return the least processor time of an epoch [s] in each way."""
    taken: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(repeats):
        for name, (device, way) in WAYS.items():
            start = time.process_time()  # a recording leaves this clock alone
            with way():
                epoch(device, data)
            taken[name].append(time.process_time() - start)
    return {name: min(times) for name, times in taken.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", default=60_000, type=int)
    parser.add_argument("--repeats", default=3, type=int, help="the best of so many is reported")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    images, labels = mnist.tensors()
    chosen = range(options.samples)
    sets: dict[str, Dataset[Any]] = {
        "in memory": TensorDataset(images[chosen].float() / 255, labels[chosen]),
        "torchvision": digits(options.samples, 1),
    }
    print(f"{options.samples} images, batch 256, torch {torch.__version__}, 1 thread; s of processor time")
    for name, data in sets.items():
        times = measure(data, options.repeats)
        for way, seconds in times.items():
            goal = f" (at most {TARGET}x wanted)" if WAYS[way][0] == "cuda" else ""
            print(f"{name:12} {way:15} {seconds:6.2f} {seconds / times['plain']:5.2f}x{goal}")


if __name__ == "__main__":
    main()
