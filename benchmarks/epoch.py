"""Time an epoch of MNIST, plain on the CPU and on the emulated device.

Run it from the repository's root:

    python -m benchmarks.epoch

An MLP, batch 256, one thread, DataLoader without workers; once over tensors in memory (float32), once over
torchvision's MNIST with its ToTensor transform. It prints seconds of processor time and the ratio, from one run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from loaderviz import mnist, record
from loaderviz.workshop.articles import digits

TARGET = 3.0  # times the plain epoch, at most


def epoch(device: str, data: Dataset[Any]) -> float:
    """Train for one epoch; return its processor time [s]."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    start = time.process_time()  # a recording leaves this clock alone
    for images, labels in DataLoader(data, batch_size=256, shuffle=True):
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return time.process_time() - start


def measure(data: Dataset[Any], repeats: int) -> tuple[float, float]:
    """Return the best plain and the best emulated time of some epochs [s], taken in turn."""
    plain, emulated = [], []
    for _ in range(repeats):
        plain.append(epoch("cpu", data))
        with record(on="a100"):
            emulated.append(epoch("cuda", data))
    return min(plain), min(emulated)


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
        plain, emulated = measure(data, options.repeats)
        ratio = f"{emulated / plain:4.1f}x (at most {TARGET}x wanted)"
        print(f"{name:12} plain {plain:6.2f}   emulated {emulated:6.2f}   {ratio}")


if __name__ == "__main__":
    main()
