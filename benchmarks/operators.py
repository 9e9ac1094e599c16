"""Time what the emulated device adds to each operator: an MLP training step, plain on the CPU and recorded.

Run it from the repository's root:

    python -m benchmarks.operators

It prints microseconds of processor time per dispatched operator: plain, under a torch dispatch mode that does nothing
(the least that any emulator of this kind costs), and emulated, with hazards off and on; measured in turn, in one run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from loaderviz import record
from loaderviz.emulator.torch.session import OnHazard

TARGET: dict[OnHazard, float] = {"off": 25.0, "warn": 35.0}  # us added per operator, at most, by `hazards`


class Counting(TorchDispatchMode):
    """Counts operators and does nothing else."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count one and run it."""
        self.count += 1
        return func(*args, **(kwargs or {}))


def training(device: str) -> Callable[[], None]:
    """Return a function that makes one step: MLP 784-128-10, batch 64, SGD with momentum by foreach."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=True)
    images, labels = torch.rand(64, 28, 28).to(device), torch.randint(0, 10, (64,)).to(device)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def microseconds(device: str, steps: int) -> float:
    """Return the processor time of a step, the median of `steps` after ten to warm up."""
    step, times = training(device), []
    for number in range(steps + 10):
        start = time.process_time_ns()  # a recording leaves this clock alone
        step()
        if number >= 10:
            times.append(time.process_time_ns() - start)
    return sorted(times)[len(times) // 2] / 1000


def measure(steps: int) -> dict[str, float]:
    """Return the times of a step [us] by way, and the number of its operators."""
    step = training("cpu")
    step()
    with Counting() as counting:
        step()
    plain = microseconds("cpu", steps)
    with Counting():
        empty = microseconds("cpu", steps)
    times = {"operators": counting.count, "plain": plain, "empty mode": empty}
    for hazards in TARGET:
        with record(on="a100", host="laptop", hazards=hazards):
            times[f"hazards {hazards}"] = microseconds("cuda", steps)
    return times


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", default=300, type=int)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    times = measure(options.steps)
    operators = times.pop("operators")
    print(f"MLP step, {operators:.0f} operators, torch {torch.__version__}, 1 thread; us of processor time")
    for name, took in times.items():
        print(f"{name:12}{took:9.0f} a step{took / operators:8.1f} an operator")
    for hazards, most in TARGET.items():
        added = (times[f"hazards {hazards}"] - times["plain"]) / operators
        print(
            f"added by the emulated device, hazards {hazards}: {added:.1f} us an operator (at most {most:.0f} wanted)"
        )


if __name__ == "__main__":
    main()
