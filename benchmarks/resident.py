"""Time the resident loader against DataLoader(TensorDataset, shuffle=True), on one machine, side by side.

Both hand out shuffled batches of images and labels from memory. Run it from the repository's root:

    python -m benchmarks.resident --device cpu --batch-size 256

It prints microseconds per batch (the best of some epochs, start of the epoch included) and the ratio. On a GPU
the DataLoader's batches are copied to it as well, and the device is synchronised at the end of each epoch.

A gather of 256 images is split over torch's threads. Where other programs use the cores, those threads wait for each
other and the figures grow tenfold: measure on a quiet machine, or with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from loaderviz.loaders import BlockingLoader, ResidentLoader


def drawn_mnist(samples: int) -> tuple[Tensor, Tensor]:
    """Return random uint8 images and int64 labels with the shapes of MNIST: what they show is no matter here."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (samples, 28, 28), dtype=torch.uint8, generator=generator)
    return images, torch.randint(0, 10, (samples,), generator=generator)


def seconds_per_batch(batches: Iterable[Any], epochs: int, device: torch.device) -> float:
    """Return the time per batch in the best of `epochs` epochs, after one epoch to warm up."""
    best = float("inf")
    for epoch in range(epochs + 1):
        count = 0
        start = time.perf_counter()
        for _batch in batches:
            count += 1
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if epoch:
            best = min(best, (time.perf_counter() - start) / count)
    return best


def measure(samples: int, batch_size: int, epochs: int, device: torch.device) -> dict[str, float]:
    """Return seconds per batch for each way of making batches, the DataLoader first."""
    data = drawn_mnist(samples)
    ways: dict[str, Iterable[Any]] = {
        "DataLoader(TensorDataset, shuffle=True)": BlockingLoader(
            DataLoader(TensorDataset(*data), batch_size, shuffle=True), device
        )
        if device.type == "cuda"
        else DataLoader(TensorDataset(*data), batch_size, shuffle=True)
    }
    for shuffle, method in (("samples", "gather"), ("samples", "permute"), ("blocks", "gather")):
        loader = ResidentLoader(data, batch_size, shuffle, method=method, device=device)
        ways[f"ResidentLoader({shuffle!r}, method={method!r})"] = loader
    for order in ("batches", None):
        ways[f"ResidentLoader({order!r})"] = ResidentLoader(data, batch_size, order, device=device)
    return {name: seconds_per_batch(way, epochs, device) for name, way in ways.items()}


def table(times: dict[str, float]) -> str:
    """Return the measured times as text; the ratio is to the first row."""
    reference = next(iter(times.values()))
    rows = [f"{'':44}{'us/batch':>10}{'ratio':>9}"]
    rows += [f"{name:44}{1e6 * took:10.1f}{reference / took:8.1f}x" for name, took in times.items()]
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--batch-size", default=256, type=int)
    parser.add_argument("--samples", default=60_000, type=int)
    parser.add_argument("--epochs", default=5, type=int, help="the best of so many is reported")
    options = parser.parse_args(arguments)
    threads = torch.get_num_threads()
    print(f"{options.samples} images, batch {options.batch_size}, {options.device}, {threads} threads")
    print(table(measure(options.samples, options.batch_size, options.epochs, options.device)))


if __name__ == "__main__":
    main()
