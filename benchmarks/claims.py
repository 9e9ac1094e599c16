"""Make docs/claims.md: the articles' programs with what they cost, and a card for each claim that lesson 9 leaves out.

    python -m benchmarks.claims [--out docs/claims.md] [--only KEY ...]      # with `--only` it prints these cards

The claims are in loaderviz/workshop/claims.toml; here are their experiments, each named like its claim. What
has nothing to do with a GPU is tried on this computer.
"""

from __future__ import annotations

import argparse
import inspect
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint_sequential
from torch.utils.data import DataLoader, TensorDataset, default_collate

import loaderviz as lv
from loaderviz import mnist, words
from loaderviz.emulator.hardware import Gpu
from loaderviz.metrics import utilization
from loaderviz.timeline import Kind, Timeline
from loaderviz.workshop import articles
from loaderviz.workshop.lessons.claims import BOOK, HERE, MACHINES, Card, Experiment, Machine, Samples, Slices

HOST = "laptop"
GPUS = [machine for machine in MACHINES if machine.device == "cuda"]
EXPERIMENTS: dict[str, tuple[Experiment, Sequence[Machine]]] = {}


def tried(key: str, machines: Sequence[Machine] = GPUS) -> Callable[[Experiment], Experiment]:
    """Return a decorator that makes a function the experiment of a claim."""

    def note(experiment: Experiment) -> Experiment:
        EXPERIMENTS[key] = experiment, machines
        return experiment

    return note


def recorded(machine: Machine, program: Callable[[], Any]) -> Timeline:
    """Return the timeline of a program on a machine."""
    with warnings.catch_warnings(action="ignore"), lv.record(on=machine.gpu, host=HOST, hazards="off") as recording:
        program()
        torch.cuda.synchronize()
    return recording.timeline


def took(machine: Machine, program: Callable[[], Any]) -> int:
    """Return the virtual time [ns] of a program's second run: the first one takes memory."""
    times = []

    def twice() -> None:
        for _ in range(2):
            torch.cuda.synchronize()
            begin = time.perf_counter_ns()
            program()
            torch.cuda.synchronize()
            times.append(time.perf_counter_ns() - begin)

    recorded(machine, twice)
    return times[-1]


# Article 1


@tried("idle time")
def idle_time(machine):
    found = {}
    for size in (64, 2048):
        loaders = [DataLoader(Samples(size * 10), size, num_workers=4) for _ in range(2)]
        step = [machine.train(each, non_blocking=nb).step for each, nb in zip(loaders, (False, True), strict=True)]
        found[f"batches of {size}"] = step[0] / step[1]
    return found


@tried("loading first", MACHINES)
def loading_first(machine):
    memory = machine.train([(torch.zeros(64, 1, 28, 28), torch.zeros(64, dtype=torch.int64))] * 10).step
    data = {"in memory": Samples(640), "10 µs a sample": Samples(640, cost=1e-5)}
    step = {(name, n): machine.train(DataLoader(data[name], 64, num_workers=n)).step for name in data for n in (0, 4)}
    return {f"{name}, {n} workers": each / memory for (name, n), each in step.items()}


@tried("waits each time")
def waits_each_time(machine):
    return {
        f"{hidden} wide": machine.train(DataLoader(Samples(640, cost=1e-5), 64), hidden).busy for hidden in (128, 8192)
    }


@tried("four workers", MACHINES)
def four_workers(machine):
    found = {}
    for name, cost in {"in memory": 0.0, "10 µs a sample": 1e-5, "100 µs": 1e-4}.items():
        step = [machine.train(DataLoader(Samples(64 * 12, cost=cost), 64, num_workers=n)).step for n in (0, 4)]
        found[name] = step[0] / step[1]
    return found


@tried("labels on the CPU")
def labels_on_the_cpu(machine):
    try:
        recorded(machine, lambda: torch.nn.functional.cross_entropy(torch.zeros(4, 10).cuda(), torch.zeros(4).long()))
    except RuntimeError:
        return 0
    return 1


@tried("a tensor of it", HERE)
def a_tensor_of_it(machine):
    values = {"a list": [1.0, 2.0], "a number": 5, "bytes": torch.arange(3, dtype=torch.uint8).numpy()}
    wanted = {name: torch.as_tensor(x) for name, x in values.items()}
    return {
        name: int(torch.Tensor(x).dtype == wanted[name].dtype and torch.Tensor(x).equal(wanted[name]))
        for name, x in values.items()
    }


@tried("other problems")
def other_problems(machine):
    with warnings.catch_warnings(action="ignore"), lv.record(on=machine.gpu, host=HOST) as recording:
        x = torch.ones(10**6).pin_memory()
        y = x.to("cuda", non_blocking=True)
        x.fill_(2)
        y.sum().item()
    return len(recording.hazards)


@tried("the model first")
def the_model_first(machine):
    shares = []

    def program():
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters())
        mine = {id(parameter) for parameter in model.cuda().parameters()}
        shares.append(sum(id(each) in mine for each in optimizer.param_groups[0]["params"]) / len(mine))

    recorded(machine, program)
    return shares[0]


# Article 2


@tried("a batch in parts", HERE)
def a_batch_in_parts(machine):
    first = []
    for workers in (1, 4):
        with lv.record(on="laptop", host=HOST):
            batches = iter(DataLoader(Samples(512, cost=1e-3), 64, num_workers=workers))
            begin = time.perf_counter_ns()
            next(batches)
            first.append(time.perf_counter_ns() - begin)
            list(batches)
    return first[0] / first[1]


@tried("five samples", HERE)
def five_samples(machine):
    numbers = TensorDataset(torch.arange(5))
    return took(machine, lambda: list(DataLoader(numbers, 2))) / took(
        machine, lambda: list(DataLoader(numbers, 2, num_workers=2))
    )


def fetching(machine: Machine, device: str) -> float:
    """Return the mean time [ns] of a fetch in a loop that brings each batch to this device."""
    timeline = recorded(machine, lambda: [x.to(device) for x, _ in DataLoader(Samples(640), 64, num_workers=2)])
    spans = list(timeline.rows(Kind.FETCH))
    return sum(span.duration for span in spans) / len(spans)


@tried("the GPU loads")
def the_gpu_loads(machine):
    return fetching(machine, "cpu") / fetching(machine, "cuda")


@tried("names a device")
def names_a_device(machine):
    timeline = recorded(machine, lambda: torch.device("cuda"))
    return sum(span.nbytes for span in timeline.rows(Kind.COPY_H2D))


@tried("smaller pictures", MACHINES)
def smaller_pictures(machine):
    found = {}
    for side in (112, 28):
        whole, half = (Samples(640, (3, side // by, side // by)) for by in (1, 2))
        found[f"3 x {side} x {side}"] = (
            machine.train(DataLoader(whole, 64, num_workers=2)).step
            / machine.train(DataLoader(half, 64, num_workers=2)).step
        )
    return found


@tried("augmentation", MACHINES)
def augmentation(machine):
    found = {}
    for n in (0, 2, 8):
        loaders = [DataLoader(Samples(64 * 14, cost=cost), 64, num_workers=n) for cost in (5e-5, 1e-4)]
        found[f"{n} workers"] = machine.train(loaders[0]).step / machine.train(loaders[1]).step
    return found


@tried("augment there")
def augment_there(machine):
    found = {}
    for n in (0, 2, 8):
        plain, turned = (Samples(64 * 14, cost=cost) for cost in (0.0, 1e-5))
        on_gpu = ((x.cuda().flip(2), y) for x, y in DataLoader(plain, 64, num_workers=n))
        found[f"{n} workers"] = machine.train(DataLoader(turned, 64, num_workers=n)).step / machine.train(on_gpu).step
    return found


@tried("transforms before", HERE)
def transforms_before(machine):
    found = {}
    for n in (0, 2, 8):
        each, none = (DataLoader(Samples(1024, cost=cost), 64, num_workers=n) for cost in (5e-5, 0))
        thrice = took(machine, lambda loader=each: [list(loader) for _ in range(3)])
        once = 1024 * 50_000 + took(machine, lambda loader=none: [list(loader) for _ in range(3)])
        found[f"{n} workers"] = thrice / once
    return found


@tried("pin and wait")
def pin_and_wait(machine):
    found = {}
    for name, shape in {"digits": (1, 28, 28), "photos": (3, 64, 64)}.items():
        loaders = [DataLoader(Samples(1280, shape), 64, num_workers=2, pin_memory=pin) for pin in (False, True)]
        step = [machine.train(each).step for each in loaders]
        found[name] = 1 - step[1] / step[0]
    return found


@tried("all together")
def all_together(machine):
    found, tips = {}, {"num_workers": 4, "pin_memory": True, "prefetch_factor": 4, "persistent_workers": True}
    for name, cost, hidden in (("in memory", 0, 128), ("10 µs a sample", 1e-5, 128), ("8192 wide", 0, 8192)):
        none = machine.train(DataLoader(Samples(1280, cost=cost), 64), hidden, epochs=2)
        best = machine.train(DataLoader(Samples(1280, cost=cost, cache=True), 64, **tips), hidden, epochs=2)
        found[name] = none.step / best.step
    return found


# Article 3


@tried("small products")
def small_products(machine):
    found = {}
    for n in (10, 256, 2048):
        a = torch.zeros(n, n)
        times = [took(machine, lambda x=a, to=device: x.to(to) @ x.mT.to(to)) for device in ("cpu", "cuda")]
        found[f"{n} x {n}"] = times[0] / times[1]
    return found


@tried("two ways")
def two_ways(machine):
    x = torch.zeros(10**6)
    return took(machine, lambda: x.to("cuda")) / took(machine, lambda: x.cuda())


@tried("one call")
def one_call(machine):
    found = []

    def program():
        model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(9)))
        model.cuda()
        found.extend(parameter.is_cuda for parameter in model.parameters())

    recorded(machine, program)
    return sum(found) / len(found)


@tried("which device")
def which_device(machine):
    found = []
    recorded(machine, lambda: found.extend(x.is_cuda for x, _ in DataLoader(Samples(256), 32, pin_memory=True)))
    return sum(found) / len(found)


@tried("without workers")
def without_workers(machine):
    step = [machine.train(DataLoader(Samples(32 * 12), 32, pin_memory=pin)).step for pin in (False, True)]
    return step[0] / step[1]


@tried("the whole set")
def the_whole_set(machine):
    def resident(count):
        x, y = torch.zeros(count, 784), torch.zeros(count, dtype=torch.int64)
        return machine.train(Slices(x, y, 64, "cuda")).peak

    loaded = [machine.train(DataLoader(Samples(count), 64)).peak for count in (6400, 640)]
    return {"a DataLoader": loaded[0] / loaded[1], "all on the GPU": resident(6400) / resident(640)}


@tried("two copies")
def two_copies(machine):
    return {f"{n} kB": machine.copy(1000, pinned=False) / machine.copy(n * 1000, pinned=False) for n in (100, 10_000)}


# Article 4


@tried("the CPU waits less")
def the_cpu_waits_less(machine):
    loaders = [DataLoader(Samples(64 * 20, (3, 96, 96)), 64, num_workers=4, pin_memory=pin) for pin in (False, True)]
    waits = [lv.summarize(machine.train(each).timeline).host_blocked for each in loaders]
    times = {"for copies": [sum(each.values()) - each.get("waiting for data", 0) for each in waits]}
    times["for copies and data"] = [sum(each.values()) for each in waits]
    return {name: plain / pinned for name, (plain, pinned) in times.items()}


@tried("as printed")
def as_printed(machine):
    found = {}
    for name, count in (("the first 8 steps", 12), ("16 steps later", 28)):
        loaders = [DataLoader(Samples(64 * count, (3, 96, 96)), 64, num_workers=4, pin_memory=p) for p in (0, 1)]
        ends = [machine.train(each).timeline.from_batch(count - 8) for each in loaders]
        step = [lv.summarize(each).step for each in ends]
        found[name] = 1 - step[1] / step[0]
    return found


class Augmented(Samples):
    """Samples that are turned and normalised when they are asked for."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = super().__getitem__(index)
        return x.flip(2).sub(0.5).div(0.5), y


@tried("on the CPU", MACHINES)
def on_the_cpu(machine):
    found = {}
    for n in (0, 2, 8):
        step = [machine.train(DataLoader(data(1920), 64, num_workers=n)).step for data in (Samples, Augmented)]
        found[f"{n} workers"] = step[1] / step[0]
    return found


@tried("a fifth of what", HERE)
def a_fifth_of_what(machine):
    pairs = {"images": (0.4, 0.2), "text": (0.35, 0.15), "video": (0.5, 0.25)}
    return {name: saved * (1 + faster) / faster for name, (faster, saved) in pairs.items()}


@tried("swapped out")
def swapped_out(machine):
    return machine.copy(10**7, pinned=False) / machine.copy(10**7, pinned=True)


@tried("by itself")
def by_itself(machine):
    return machine.train(DataLoader(Samples(640, (3, 64, 64)), 64, num_workers=4, pin_memory=True)).hidden


def moving(machine: Machine, pin: bool) -> int:
    """Return the time [ns] in which threads of the host copy, pin and wait for copies, over ten batches."""
    timeline = machine.train(DataLoader(Samples(640, (3, 96, 96)), 64, num_workers=4, pin_memory=pin)).timeline
    return sum(
        span.duration
        for span in timeline.rows()
        if span.kind == Kind.PIN or span.name in ("staging", "cudaMemcpyAsync")
    )


@tried("without the CPU")
def without_the_cpu(machine):
    return moving(machine, pin=False) / moving(machine, pin=True)


@tried("straight")
def straight(machine):
    timeline = machine.train(DataLoader(Samples(640), 64, num_workers=2, pin_memory=True)).timeline
    return sum(span.name == "staging" for span in timeline.rows())


@tried("the first batch", HERE)
def the_first_batch(machine):
    found = {}
    for n in (0, 4):
        spent = []
        for pin in (False, True):
            with lv.record(on="laptop", host=HOST):
                batches, begin = (
                    iter(DataLoader(Samples(640), 64, num_workers=n, pin_memory=pin)),
                    time.perf_counter_ns(),
                )
                next(batches)[0].to("cuda")
                spent.append(time.perf_counter_ns() - begin)
        found[f"{n} workers"] = spent[0] / spent[1]
    return found


@tried("long runs")
def long_runs(machine):
    saved = []
    for count in (10, 80):
        loaders = [
            DataLoader(Samples(64 * count, (3, 96, 96)), 64, num_workers=4, pin_memory=pin) for pin in (False, True)
        ]
        spent = [recorded(machine, lambda each=each: [x.cuda() for x, _ in each]).duration for each in loaders]
        saved.append(1 - spent[1] / spent[0])
    return saved[1] - saved[0]


@tried("half the cores")
def half_the_cores(machine):
    found = {}
    for name, cost in {"in memory": 0.0, "20 µs a sample": 2e-5, "200 µs": 2e-4}.items():
        data = Computing(64 * 48, cost=cost)  # more than eight workers have fetched when the clock starts
        step = {n: machine.train(DataLoader(data, 64, num_workers=n)).step for n in (1, 2, 4, 8)}
        found[name] = step[4] / min(step.values())
    return found


class Computing(Samples):
    """Samples that take processor time of a core."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        with lv.costs(self.cost):
            return self.sample


@tried("one file")
def one_file(machine):
    return None


@tried("preprocess in threads")
def preprocess_in_threads(machine):
    return None


class Counted(Samples):
    """Samples that count how often one is asked for."""

    calls = 0

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls += 1
        return super().__getitem__(index)


@tried("fewer reads", HERE)
def fewer_reads(machine):
    sets = {size: Counted(640) for size in (1, 64)}
    for size, data in sets.items():
        list(DataLoader(data, size))
    return sets[1].calls / sets[64].calls


@tried("batch sizes", MACHINES)
def batch_sizes(machine):
    step = {n: machine.train(DataLoader(Samples(n * 14), n, num_workers=4)).step / n for n in (8, 512)}
    return step[8] / step[512]


@tried("the link")
def the_link(machine):
    gpu = Gpu.preset(machine.gpu)
    slow = Machine("slow", replace(gpu, name="half a link", h2d=gpu.h2d // 2))
    return slow.copy(10**7, pinned=True) / machine.copy(10**7, pinned=True)


@tried("always")
def always(machine):
    found = {}
    for name, n, shape in (("no workers", 0, (1, 28, 28)), ("4", 4, (1, 28, 28)), ("4, photos", 4, (3, 96, 96))):
        step = [machine.train(DataLoader(Samples(640, shape), 64, num_workers=n, pin_memory=p)).step for p in (0, 1)]
        found[name] = step[0] / step[1]
    return found


@tried("inference")
def inference(machine):
    found = {}
    for name, shape in {"digits": (1, 28, 28), "photos": (3, 96, 96)}.items():
        spent = []
        for pin in (False, True):
            loader = DataLoader(Samples(64 * 40, shape), 64, num_workers=2, pin_memory=pin)
            timeline = recorded(machine, lambda each=loader: [x.cuda().flatten(1).sum(1).cpu() for x, _ in each])
            spent.append(lv.summarize(timeline.from_batch(8)).step)
        found[name] = spent[0] / spent[1]
    return found


@tried("watch it")
def watch_it(machine):
    large, small = (
        machine.train(DataLoader(Samples(640, (3, side, side)), 64, num_workers=4)).busy for side in (96, 16)
    )
    return large - small


# Article 5


@tried("low and periodic")
def low_and_periodic(machine):
    return {
        f"{hidden} wide": machine.train(DataLoader(Samples(1280), 128), hidden).busy for hidden in (128, 1024, 8192)
    }


@tried("two workers")
def two_workers(machine):
    loaders = {hidden: DataLoader(Samples(1280), 128, num_workers=2) for hidden in (128, 1024, 8192)}
    return {f"{hidden} wide": machine.train(each, hidden).busy for hidden, each in loaders.items()}


def sliced(machine: Machine, hidden: int) -> Any:
    """Return the training on slices of 64 that are on the GPU."""
    x, y = torch.zeros(64 * 14, 784), torch.zeros(64 * 14, dtype=torch.int64)
    return machine.train(Slices(x, y, 64, "cuda"), hidden)


@tried("seventy")
def seventy(machine):
    return {f"{hidden} wide": sliced(machine, hidden).busy for hidden in (128, 1024, 2048, 8192)}


@tried("flat")
def flat(machine):
    found = {}
    for hidden in (128, 8192):
        training = sliced(machine, hidden)
        _, shares = utilization(training.timeline, int(training.step / 6))
        found[f"{hidden} wide"] = float(shares[6:-6].max() - shares[6:-6].min())
    return found


@tried("many small calls")
def many_small_calls(machine):
    loaders = {n: DataLoader(Samples(1280), 128, num_workers=n) for n in (0, 2)}
    return {f"{n} workers": lv.summarize(machine.train(each).timeline).copy_share for n, each in loaders.items()}


@tried("again and again")
def again_and_again(machine):
    batches = 60_000 // 128
    return (
        batches
        * (machine.copy(128 * 3136, pinned=False) + machine.copy(1024, pinned=False))
        / machine.copy(60_000 * 3136, pinned=False)
    )


@tried("it fits")
def it_fits(machine):
    return 70_000 * 784 * 4 / Gpu.preset(machine.gpu).memory


@tried("drops the last", HERE)
def drops_the_last(machine):
    data = TensorDataset(torch.arange(60_000))
    counts = [sum(len(x) for (x,) in DataLoader(data, 64, drop_last=drop)) for drop in (True, False)]
    return counts[0] / counts[1]


@tried("fully used")
def fully_used(machine):
    x = torch.zeros(32)

    def program():
        y = x.cuda()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(2000):
                y.add_(1)
        graph.replay()

    timeline = recorded(machine, program)
    kernels = list(timeline.rows(Kind.COMPUTE))
    return lv.summarize(timeline.between(kernels[0].start, kernels[-1].end)).compute_share


SCRIPT = """
from torch.utils.data import DataLoader
{guard}list(DataLoader(list(range(4)), num_workers=1, multiprocessing_context="spawn"))
"""


@tried("on Windows", HERE)
def on_windows(machine):
    found = {}
    for name, guard in {"without the guard": "", "with it": 'if __name__ == "__main__": '}.items():
        with tempfile.TemporaryDirectory() as place:
            file = Path(place, "script.py")
            file.write_text(SCRIPT.format(guard=guard))
            found[name] = int(bool(subprocess.run([sys.executable, file], capture_output=True, check=False).returncode))
    return found


# Of the sentences that were in lesson 9


def peak(machine: Machine, size: int, *, checkpoints: int = 0, half: bool = False) -> int | None:
    """Return the most memory [bytes] that training twelve wide layers takes on the GPU; None where there is none.

    Their activations are kept, or those of `checkpoints` segments alone; `half` computes in half precision.
    """
    if machine.device == "cpu":
        return None
    with warnings.catch_warnings(action="ignore"), lv.record(on=machine.gpu, host=HOST):
        layers = [torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU()) for _ in range(12)]
        model, x = torch.nn.Sequential(*layers).cuda(), torch.zeros(size, 512, device="cuda", requires_grad=True)
        for _ in range(2):
            with torch.autocast("cuda", torch.float16, enabled=half):
                y = checkpoint_sequential(model, checkpoints, x, use_reentrant=False) if checkpoints else model(x)
            y.float().sum().backward()
        return torch.cuda.max_memory_allocated()


@tried("slow loading", MACHINES)
def more_when_slow(machine):
    gain = []
    for cost in (0.001, 0):
        data = Samples(64 * 10, cost=cost)
        step = [machine.train(DataLoader(data, 64, num_workers=4), non_blocking=nb).step for nb in (False, True)]
        gain.append(step[0] / step[1] - 1)
    return gain[0] - gain[1]


@tried("factor", MACHINES)
def two_against_eight(machine):
    data = Samples(64 * 12, cost=0.0001)
    loaders = [DataLoader(data, 64, num_workers=2, prefetch_factor=factor) for factor in (2, 8)]
    two, eight = (machine.train(loader).step for loader in loaders)
    return two / eight


@tried("cache", MACHINES)
def later_epochs(machine):
    found = {}
    for name, workers, stay in (("no workers", 0, False), ("2 workers", 2, False), ("2 that stay", 2, True)):
        data = [Samples(64 * 8, cost=0.0001, cache=True) for _ in range(2)]
        loaders = [DataLoader(each, 64, num_workers=workers, persistent_workers=stay) for each in data]
        found[name] = machine.train(loaders[0]).step / machine.train(loaders[1], epochs=3).step
    return found


@tried("GPU memory", MACHINES)
def peaks(machine):
    if machine.device == "cpu":
        return None
    loaders = [DataLoader(Samples(64 * 10), 64, pin_memory=pin) for pin in (False, True)]
    return machine.train(loaders[0]).peak / machine.train(loaders[1]).peak


@tried("saving", MACHINES)
def saved(machine):
    found = {}
    for name, shape, size in (("text", (512,), 64), ("digits", (1, 28, 28), 256), ("photos", (3, 96, 96), 64)):
        data = Samples(size * 10, shape)
        step = [machine.train(DataLoader(data, size, num_workers=4, pin_memory=pin)).step for pin in (False, True)]
        found[name] = 1 - step[1] / step[0]
    return found


@tried("memory", MACHINES)
def lowered(machine):
    if machine.device == "cpu":
        return None
    changes = {"checkpoints": {"checkpoints": 3}, "half precision": {"half": True}}
    plain = {size: peak(machine, size) for size in (16, 1024)}
    return {f"{name}, {n}": plain[n] / peak(machine, n, **changes[name]) for name in changes for n in plain}


@tried("slices", MACHINES)
def a_sample(machine):
    x, y = torch.zeros(128 * 10, 784), torch.zeros(128 * 10, dtype=torch.int64)
    sliced = {size: machine.train(Slices(x, y, size, machine.device)).step / size for size in (64, 128)}
    step = {n: machine.train(DataLoader(Samples(128 * 10), 128, num_workers=n)).step / 128 for n in (0, 2)}
    found = {f"{n} workers": step[n] / sliced[64] for n in step}  # batches of 128 against slices of 64, as printed
    return found | {f"{n}, equal batches": step[n] / sliced[128] for n in step}


@tried("order", HERE)
def company(machine):
    met = {"slices": set(), "samples": set()}
    for epoch in range(10):
        met["slices"] |= set(range(64))  # the slice of sample 0, whatever its turn
        rows = torch.randperm(640, generator=torch.Generator().manual_seed(epoch))
        met["samples"] |= next(set(part.tolist()) for part in rows.split(64) if 0 in part)
    return (len(met["slices"]) - 1) / (len(met["samples"]) - 1)


# The page


def card(key: str) -> Iterator[str]:
    """Give the card of a claim: the sentence, the verdict, the numbers, the experiment."""
    experiment, machines = EXPERIMENTS[key]
    claim = Card(BOOK[key])
    claim.asks = 0  # nobody is there to predict
    verdict = claim.judge(experiment, machines)
    print(f"{key:20} {verdict.word:12} {sum(verdict.holds.values())} of {len(verdict.holds)}", flush=True)
    source = inspect.getsource(experiment).partition("\n")[2].strip()
    yield f"### “{BOOK[key].text}”\n"
    yield f"{verdict._repr_markdown_()}\n"
    yield f"```python\n{source}\n```\n"


DATA: dict[str, tuple[Callable[[], Any], int, int]] = {  # of each article's program; samples in a batch, workers
    "1": (lambda: articles.FromList(list(mnist.tensors()[0][:1024].float() / 255)), 64, 4),
    "2": (lambda: articles.digits(16, 64), 64, 2),
    "3": (lambda: Samples(512, (3, 64, 64)), 32, 0),
    "4": (lambda: Samples(1024, (3, 96, 96)), 64, 4),
    "5": (lambda: articles.digits(16, 128), 128, 2),
}


class Clocked(torch.utils.data.Dataset[Any]):
    """A data set whose batches begin with the processor time [ns] at which they were asked for."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitems__(self, rows: list[int]) -> list[Any]:
        begin = time.thread_time_ns()
        return [begin, *(self.data[row] for row in rows)]


def clocked(samples: list[Any]) -> int:
    """Collate a batch; return the processor time [ns] since it was asked for."""
    default_collate(samples[1:])
    return time.thread_time_ns() - int(samples[0])


def fetch_here(name: str) -> float:
    """Return the processor time [ns] of a fetch on this machine, without the emulator: the mean, as in its rows."""
    make, size, workers = DATA[name]
    loader = DataLoader(Clocked(make()), size, num_workers=workers, collate_fn=clocked)
    return statistics.mean(list(loader)[articles.WAIT :])


def programs() -> Iterator[str]:
    """Give the articles' programs as printed, repaired, and the slices of the fifth."""
    yield "| article | host | fetch of a batch | a step | GPU computes | first finding | repaired | times as fast |"
    yield "|---|---|--:|--:|--:|---|--:|--:|"
    for name, (printed, repaired) in articles.PROGRAMS.items():
        for host in (HOST, "auto"):
            before, after = (articles.run(each, host=host) for each in (printed, repaired))
            fetches = [span.duration for span in before.rows(Kind.FETCH)]
            now, then = lv.summarize(before), lv.summarize(after)
            yield (
                f"| {name} | {host} | {words.duration(sum(fetches) / len(fetches))} | {words.duration(now.step)} | "
                f"{words.share(now.compute_share)} | {lv.advise(before)[0].kind} | {words.duration(then.step)} | "
                f"{now.step / then.step:.1f} |"
            )
        yield f"| {name} | measured, no emulator | {words.duration(fetch_here(name))} | | | | | |"
    slices = lv.summarize(articles.run(articles.sliced_5))
    yield (
        f"| 5, its slices | {HOST} | none | {words.duration(slices.step)} | {words.share(slices.compute_share)} | | | |"
    )


PAGE = """# What the articles say: the rest, and their programs

Made by `python -m benchmarks.claims`; no verdict and no number here is typed. Four more sentences are in lesson 9,
where you can say what you think before you see. The sentences are in our words. Each verdict comes from an experiment
on emulated GPUs (laptop, t4, a100, h100, and a machine without one where that makes sense), with the host "laptop";
what has nothing to do with a GPU was tried on the machine that made this page.

## The programs

Written anew with the articles' calls and settings, `loaderviz/workshop/articles.py`, on the emulated GPU
"laptop", {steps} steps after {wait}. The host "{host}" costs the same on every machine; "auto", the default, takes the
processor time of the data set's own Python, here on {cpu}. The third row of each is that machine's processor time for
one fetch in the program's own workers (the third has none), without any emulator: where a batch is large, most of it
is the new shared memory into which a worker puts each batch. All rows are means.
While the page was made, {load:.0f} programs wanted the {cores} cores: make it on an idle machine for your own.
A named host has prices for the usual transforms, and none for a data set whose Python it does not know.

{programs}

{cards}"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="docs/claims.md")
    parser.add_argument("--only", nargs="+", choices=list(BOOK), help="print these cards")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.only:
        print(*(line for key in options.only for line in card(key)), sep="\n")
        return
    table = "\n".join(programs())
    print(table, flush=True)
    parts = []
    for article in range(1, 6):
        parts.append(f"## Article {article}\n")
        parts += [line for key, claim in BOOK.items() if claim.article == article for line in card(key)]
    known = {"steps": articles.STEPS, "wait": articles.WAIT, "host": HOST, "cpu": platform.machine()}
    known |= {"load": os.getloadavg()[0], "cores": len(os.sched_getaffinity(0))}
    Path(options.out).write_text(PAGE.format(**known, programs=table, cards="\n".join(parts)), encoding="utf-8")


if __name__ == "__main__":
    main()
