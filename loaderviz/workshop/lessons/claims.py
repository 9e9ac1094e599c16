"""Lesson 9, what the articles say: claims as data, an experiment for each, and a verdict computed on five machines.

card = claims.card("prefetch")          # the claim, and a prediction: true, false, or it depends
card.judge(experiment)                  # experiment(machine) returns a number; where does the claim hold?
machine.train(loader).step              # ns; .hidden, .busy, .peak, .timeline
claims.saving                           # the exercise: an experiment of your own

The articles are found by everybody who searches for this subject. They are quoted in our words, with their numbers.
"""

from __future__ import annotations

import os
import random
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from loaderviz.emulator.hardware import Gpu
from loaderviz.metrics import summarize
from loaderviz.recording import record
from loaderviz.timeline import Timeline
from loaderviz.workshop.exercises import Exercise, ExerciseError, Note, NotYet, Prediction, Score, boxed, learners_code
from loaderviz.workshop.loop import HOST, steps

WARM_UP = 4  # steps before the clock starts
CHOICES = ("true", "false", "it depends")


@dataclass(frozen=True)
class Claim:
    """A sentence that people repeat. It holds where the experiment's number is from `low` to `high`.

    `shows` says what the number is, `decides` what it depends on, as a formula; `when` where the claim is right.
    """

    key: str
    article: int
    text: str
    shows: str
    low: float
    high: float
    decides: str
    when: str


# key | article | numbers for which it holds | what the number is; the claim; what decides; when it is true
_TEXT = """
prefetch | article 1 | 0.1 to inf | share of the copies under kernels
With `non_blocking=True` the next batch is copied while the GPU computes on this one.
hidden > 0 needs a pinned source, `non_blocking`, and another stream (R7, R16)
all three are there. The call alone hides nothing

slow loading | article 1 | 0.0005 to inf | what it gains with slow loading, less what it gains with fast loading
`non_blocking=True` helps most when loading is slow, and does nothing when loading is fast.
step = max(fetch / workers, host + wait for the copy): it shortens the second term only
never: it is the other way round

threads | article 2 | 1 to 1 | share of the samples that were loaded in the process of the loop
The DataLoader loads batches with several threads.
`num_workers` is a number of processes
the data set starts threads of its own. Only the thread that pins is one of PyTorch

factor | article 2 | 1.02 to inf | step with 1 / step with 8
`prefetch_factor` says how many batches are loaded at the same time: more is faster.
step = max(fetch / workers, the rest): the factor is in neither term
batches take different times, and the workers are fast enough on average

cache | article 2 | 1.2 to inf | first epoch / last epoch
A cache inside the data set makes the later epochs faster.
a worker keeps what *it* has loaded, as long as it lives: hits after e epochs 1 - (1 - 1/w)^(e - 1)
there are no workers, or `persistent_workers=True` and many epochs

without workers | article 3 | 1.01 to inf | step without / step with
`DataLoader(data, 32, pin_memory=True)` feeds the GPU faster.
without workers the loop itself copies each batch into pinned memory
there are workers: then a thread pins

GPU memory | article 3 | 1.01 to inf | peak without / peak with
`pin_memory=True` makes better use of the memory of the GPU.
pinned memory is memory of the host
never; it takes memory of the host, rounded up to a power of two

rate | article 4 | 1.3 to 1.5 | rate from pinned memory / rate from ordinary memory
Pinned memory makes a copy 30 to 50 % faster.
(latency + bytes / pageable rate) / (latency + bytes / pinned rate)
the copies are of some hundred kB, or the host copies as fast as the link

saving | article 4 | 0.15 to 0.25 | share of the step that is saved
With `pin_memory=True` a training on images takes 20 % less time.
share of the copy x (1 - pinned time / pageable time), if the pin thread keeps up
about a third of the step is a blocking copy

forty | article 5 | 0 to 0.4 | largest share of the time with a kernel
However many workers there are, the GPU is never busy for more than 40 % of the time.
kernels / (host's work in a step + hand-out + blocking copy)
the network is small for the GPU

slices | article 5 | 2 to 3 | time a sample with the DataLoader / with slices
Slices of a data set on the GPU are two to three times as fast as a DataLoader.
max(fetch / workers, host + copy, kernels) / max(host, kernels), at equal batches
the batches are equal, the DataLoader has no workers, and the network is tiny

order | article 5 | 0.9 to inf | samples that sample 0 meets in ten epochs / with shuffled samples
Going through shuffled slices is the same as `shuffle=True`.
a slice has the same samples in each epoch: B - 1 mates, however many epochs
never, for more than one epoch
"""


def _claims() -> dict[str, Claim]:
    found = {}
    for block in _TEXT.strip().split("\n\n"):
        head, text, decides, when = block.splitlines()
        key, article, numbers, shows = head.split(" | ")
        low, high = map(float, numbers.split(" to "))
        found[key] = Claim(key, int(article.split()[1]), text, shows, low, high, decides, when)
    return found


ANY, CLAIMS = float("inf"), _claims()


class Samples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """`count` samples of this shape, float32; each takes `cost` seconds to load, or none when it is in the cache."""

    def __init__(
        self, count: int, shape: tuple[int, ...] = (1, 28, 28), cost: float = 0.0, *, cache: bool = False
    ) -> None:
        self.count, self.cost, self.cache = count, cost, cache
        self.known: set[int] = set()
        self.sample = torch.zeros(shape), torch.tensor(0)  # one for all: an experiment is about time

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.cost and index not in self.known:
            time.sleep(self.cost)
        if self.cache:
            self.known.add(index)
        return self.sample


class Processes(Dataset[int]):
    """As many samples, each the number of the process that loads it."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return os.getpid()


class Slices:
    """Batches as slices of tensors, which are moved to the device when the first one is asked for."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, size: int, device: str) -> None:
        self.parts, self.size, self.device = (images, labels), size, device

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        return zip(*(part.to(self.device).split(self.size) for part in self.parts), strict=True)


@dataclass(frozen=True)
class Trained:
    """What was seen of a training, after the warm-up: ns a step, shares, peak of the GPU's memory in bytes."""

    step: float
    hidden: float
    busy: float
    peak: int
    timeline: Timeline


@dataclass(frozen=True)
class Machine:
    """A machine of the experiments: an emulated GPU, or none (`device` is "cpu" then), in an emulated host."""

    name: str
    gpu: str | Gpu
    device: str = "cuda"

    def train(
        self, loader: Iterable[Any], hidden: int = 128, *, non_blocking: bool = False, epochs: int = 1
    ) -> Trained:
        """Train a network with so many hidden units on all batches, each brought here by `.to`.

        The clock starts after WARM_UP batches of the last epoch.
        """
        done = 0
        with warnings.catch_warnings(), record(on=self.gpu, host=HOST) as recording:
            warnings.simplefilter("ignore")  # torch counts the cores of this computer
            model: Any = None
            for _ in range(epochs):
                done = 0
                for x, y in steps(loader, WARM_UP):
                    if done == WARM_UP:
                        begin = time.perf_counter_ns()
                    x, y = (part.to(self.device, non_blocking=non_blocking) for part in (x, y))
                    if model is None:
                        layers = torch.nn.Linear(x[0].numel(), hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10)
                        model = torch.nn.Sequential(torch.nn.Flatten(), *layers).to(self.device)
                        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                    optimizer.zero_grad()
                    cross_entropy(model(x), y).backward()
                    optimizer.step()
                    done += 1
            torch.cuda.synchronize()
            end, peak = time.perf_counter_ns(), torch.cuda.max_memory_allocated()
        timeline = recording.timeline.from_batch((epochs - 1) * done + WARM_UP)
        summary = summarize(timeline)
        busy = summary.compute / max(1, end - begin)
        return Trained((end - begin) / (done - WARM_UP), summary.overlap or 0.0, busy, peak, timeline)

    def copy(self, nbytes: int, *, pinned: bool) -> int | None:
        """Return the time [ns] of one blocking copy to the GPU; None where there is none."""
        if self.device == "cpu":
            return None
        with record(on=self.gpu, host=HOST):
            x = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=pinned)
            for _ in range(2):  # the first one takes memory
                begin = time.perf_counter_ns()
                x.to(self.device)
            return time.perf_counter_ns() - begin


GPUS = "laptop", "t4", "a100", "h100"
MACHINES = (*(Machine(name, name) for name in GPUS), Machine("no GPU", "laptop", "cpu"))
Number = float | None
Experiment = Callable[[Machine], Number | Mapping[str, Number]]


@dataclass(frozen=True, repr=False)
class Verdict:
    """Where a claim holds. `numbers` has for each machine (and case) what the experiment returned, None: not judged."""

    claim: Claim
    numbers: dict[tuple[str, str], Number]
    said: str = ""

    @property
    def holds(self) -> dict[tuple[str, str], bool]:
        """For each machine and case that could be judged whether the claim holds there."""
        claim = self.claim
        return {
            where: claim.low <= number <= claim.high for where, number in self.numbers.items() if number is not None
        }

    @property
    def word(self) -> str:
        """One of CHOICES, or "not judged"."""
        held = self.holds.values()
        return CHOICES[0 if all(held) else 2 if any(held) else 1] if held else "not judged"

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The numbers as text: a row for each machine, with its cases; a number for which the claim holds has a ✔."""
        cases = list(dict.fromkeys(case for _, case in self.numbers))
        rows = [("machine", *cases)]
        for machine in dict.fromkeys(machine for machine, _ in self.numbers):
            rows.append((machine, *(self._cell((machine, case)) for case in cases)))
        return rows

    def _cell(self, where: tuple[str, str]) -> str:
        number = self.numbers.get(where)
        return "not judged" if number is None else f"{number:.3g}{' ✔' if self.holds[where] else ''}"

    @property
    def lines(self) -> list[str]:
        """The verdict in words."""
        held, judged = sum(self.holds.values()), [number for number in self.numbers.values() if number is not None]
        if not judged:
            return [self.said, "Not judged."]
        low, high = self.claim.low, self.claim.high
        wanted = f"{low:g} or more" if high == ANY else f"{low:g}" if low == high else f"{low:g} to {high:g}"
        return [
            self.said,
            f"Verdict: {self.word}. It holds in {held} of {len(judged)}.",
            f"{self.claim.shows[:1].upper()}{self.claim.shows[1:]}: {min(judged):.3g} to {max(judged):.3g}; the claim "
            f"wants {wanted}.",
            f"What decides: {self.claim.decides}.",
            f"When it is true: {self.claim.when}.",
        ]

    def __repr__(self) -> str:
        widths = [max(map(len, column)) for column in zip(*self.rows, strict=True)]
        table = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)) for row in self.rows]
        return "\n".join([*filter(None, self.lines), *(line.rstrip() for line in table)])

    def _repr_markdown_(self) -> str:
        head, *rows = (f"| {' | '.join(row)} |" for row in self.rows)
        table = "\n".join([head, "|---|" + "--:|" * (len(self.rows[0]) - 1), *rows])
        return f"{boxed(*filter(None, self.lines))}\n\n{table}"


class Card(Prediction):
    """A claim, and what the reader thinks of it."""

    def __init__(self, claim: Claim) -> None:
        super().__init__(f"Article {claim.article}: “{claim.text}”", CHOICES, lambda: self._verdict.word)
        self.claim = claim
        self._verdict = Verdict(claim, {})

    def judge(self, experiment: Experiment, machines: Iterable[Machine] = MACHINES) -> Verdict | Note:
        """Run `experiment(machine)` on each machine; return the verdict, or, the first time, ask for a prediction.

        The experiment returns a number, a number for each case (by its name), or None where it cannot be tried.
        """
        if self.choice is None and self._asked < self.asks:
            return self.reveal()
        found = {machine.name: experiment(machine) for machine in machines}
        names = next((list(each) for each in found.values() if isinstance(each, Mapping)), ["number"])
        cases = {
            name: each if isinstance(each, Mapping) else dict.fromkeys(names, each) for name, each in found.items()
        }
        self._verdict = Verdict(self.claim, {(name, case): cases[name][case] for name in cases for case in names})
        said = f"You said: {self.choice}." if self.choice else ""
        return replace(self._verdict, said=said)


def card(key: str) -> Card:
    """Return the card of a claim. Raises `ExerciseError` for a claim that is none."""
    if key not in CLAIMS:
        raise ExerciseError(f"there is no claim {key!r}; there are {', '.join(CLAIMS)}")
    return Card(CLAIMS[key])


HERE = (Machine("here", "laptop", "cpu"),)  # for what is tried on this computer, and has nothing to do with a GPU

# 9.1

CASES, WITHIN = 2, 0.03


def _saving(answer: Callable[..., Any], chance: random.Random) -> Score:
    """Compare the learner's number with ours, on machines and data that nobody has seen."""
    said, timeline = [], None
    for _ in range(CASES):
        gpu = Gpu.preset(chance.choice(GPUS))
        rate = int(gpu.h2d * chance.uniform(0.3, 1.5))
        secret = replace(gpu, name="a secret GPU", h2d=rate, pageable=int(rate * chance.uniform(0.2, 0.9)))
        side, size = chance.randrange(20, 60), chance.choice((64, 128, 256))
        machine, data = Machine("secret", secret), Samples(size * 10, (1, side, side))
        plain, pinned = _trainings(machine, data, size)
        truth, timeline = 1 - pinned.step / plain.step, pinned.timeline
        with learners_code():
            returned = answer(machine, data, size)
        if isinstance(returned, bool) or not isinstance(returned, (int, float)):
            raise NotYet(f"Your function returned {returned!r}. A share of the step is wanted, such as 0.2.")
        about = f"With batches of {size} x {side} x {side} floats, {secret.pageable / 1e9:.1f} GB/s, and "
        about += f"{rate / 1e9:.1f} GB/s from pinned memory"
        if abs(returned - truth) > WITHIN:
            guess = ""
            if abs(1 / (1 - truth) - returned) <= WITHIN:
                guess = " Yours is how many times as fast it is."
            elif abs(truth + returned) <= WITHIN:
                guess = " The sign is wrong."
            fact = f"{about}: you returned {returned:.3f}; pinning saves {truth:.3f} of the step.{guess}"
            raise NotYet(fact, "an experiment changes one thing, and nothing else", "", timeline)
        said.append(f"{about}: {100 * returned:.0f} % saved.")
    return Score(" ".join(said), timeline)


def _trainings(machine: Machine, data: Dataset[Any], size: int) -> list[Trained]:
    return [machine.train(DataLoader(data, size, num_workers=2, pin_memory=pin)) for pin in (False, True)]


saving = Exercise(
    "claims.saving",
    "9.1 Your own experiment",
    task="Write `experiment(machine, data, size)`: which share of a step does `pin_memory=True` save, with two workers "
    "and batches of `size`? `machine.train(loader).step` is the time of a step. A negative share costs time.",
    target=f"within {WITHIN} of the truth on {CASES} machines and data sets that you have not seen: an experiment that "
    "is right gives the right verdict, whatever the verdict is.",
    hints=(
        "Two trainings, and only one difference between them.",
        "What is saved is 1 - (time with) / (time without).",
    ),
    measure=_saving,
    arguments=("machine", "data", "size"),
)

EXERCISES = (saving,)
