"""Time what the emulated device adds to each operator: an MLP training step, plain on the CPU and recorded.

Run it from the repository's root:

    python -m benchmarks.operators

It prints microseconds of processor time per dispatched operator: plain, under a pair of torch modes that do nothing
(one for functions, one for operators: the least that any emulator of this kind costs), and emulated, with hazards off
and on. All are measured in turn, in one run, and told as multiples of the empty pair. Then it prints the processor time
from the start of a script to the end of its first training step, alone and by `loaderviz run`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from loaderviz import record
from loaderviz.emulator.torch.session import OnHazard

STARTS_LATER = 1.0  # s of processor time that a script's first step may end later, at most
SCRIPT = """
import os, torch
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(784, 10).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.rand(64, 784).to(device)).sum().backward()
optimizer.step()
os._exit(0)  # the end of its first step, before any page is written
"""
TARGET: dict[OnHazard, float] = {"off": 1.5, "warn": 1.8}  # times the empty pair's, at most, by `hazards`


class Passing(TorchFunctionMode):
    """Sees every function and does nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run it."""
        return func(*args, **(kwargs or {}))


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


def round_of(step: Callable[[], None], steps: int) -> float:
    """Return the processor time of one of `steps` steps [us]."""
    start = time.process_time_ns()  # a recording leaves this clock alone
    for _ in range(steps):
        step()
    return (time.process_time_ns() - start) / 1000 / steps


def measure(rounds: int, steps: int = 20) -> dict[str, float]:
    """Return the times of a step [us] by way, each the least of `rounds`, and the number of its operators."""
    step = training("cpu")
    step()
    with Counting() as counting:
        step()
    times = {"operators": float(counting.count)}

    def note(way: str, ready: Callable[[], None]) -> None:
        times[way] = min(times.get(way, float("inf")), round_of(ready, steps))

    for _ in range(rounds):
        note("plain", step)
        with Passing(), Counting():
            note("empty pair", step)
        for hazards in TARGET:
            with record(on="a100", host="laptop", hazards=hazards):
                emulated = training("cuda")
                round_of(emulated, 3)
                note(f"hazards {hazards}", emulated)
    return times


def start_up(rounds: int) -> dict[str, float]:
    """Return the processor time [s] of `SCRIPT` by way, each the least of `rounds`."""
    times: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(SCRIPT, encoding="utf-8")
        for _ in range(rounds):
            for way, words in {"alone": [], "by loaderviz run": ["-m", "loaderviz", "run", "--on", "a100"]}.items():
                before = os.times()
                subprocess.run([sys.executable, *words, str(script)], check=True, stdout=subprocess.DEVNULL)
                after = os.times()
                took = after.children_user + after.children_system - before.children_user - before.children_system
                times[way] = min(times.get(way, took), took)
    return times


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", default=15, type=int)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    times = measure(options.rounds)
    operators = times.pop("operators")
    print(f"MLP step, {operators:.0f} operators, torch {torch.__version__}, 1 thread; us of processor time")
    for name, took in times.items():
        share = took / times["empty pair"]
        print(f"{name:12}{took:9.0f} a step{took / operators:8.1f} an operator{share:8.2f} of the empty pair")
    for hazards, most in TARGET.items():
        share = times[f"hazards {hazards}"] / times["empty pair"]
        print(f"hazards {hazards}: {share:.2f} times the empty pair (at most {most} wanted)")
    alone, emulated = start_up(min(5, options.rounds)).values()
    print(f"a script to the end of its first step: {alone:.2f} s alone, {emulated:.2f} s by loaderviz run:")
    print(f"{emulated - alone:.2f} s later (at most {STARTS_LATER} wanted)")


if __name__ == "__main__":
    main()
