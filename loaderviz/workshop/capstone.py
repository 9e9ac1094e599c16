"""The capstone: an honest training on MNIST, from the first loader to the limit, with a ladder and a leaderboard.

from loaderviz.workshop import capstone
capstone.race.check(my_loader, name="Ada")
capstone.leaderboard()
"""

from __future__ import annotations

import getpass
import itertools
import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from loaderviz import words
from loaderviz.metrics import summarize
from loaderviz.recording import record
from loaderviz.workshop import facts, machine
from loaderviz.workshop.exercise import Exercise
from loaderviz.workshop.leaderboard import Leaderboard
from loaderviz.workshop.lesson04 import SHUFFLE
from loaderviz.workshop.measure import Consumer, Run, Setting, feed
from loaderviz.workshop.outcome import Outcome, Score
from loaderviz.workshop.source import Data

SIZE, PER_EPOCH, EPOCHS, HIDDEN = 256, 4, 6, 128
TARGET = 1.25
HOST = replace(
    machine.HOST, name="workshop host, slow fetch", fetch_per_byte=machine.HOST.fetch_per_byte * machine.SLOWER
)  # bytes move at a fortieth of the speed of the laptop here, too


class Digits(Data):
    """A fresh random choice of MNIST digits: images uint8 `[N, 28, 28]`, labels int64 `[N]`."""

    def __init__(self) -> None:
        from loaderviz import mnist  # brings torchvision, which the lessons before need not have

        generator = torch.Generator().manual_seed(secrets.randbits(62))
        images, labels = mnist.tensors(train=True)
        rows = torch.randperm(len(images), generator=generator)[: SIZE * PER_EPOCH]
        self.sizes = (SIZE,) * PER_EPOCH
        self.images, self.labels = images[rows], labels[rows]
        self.weights = torch.randint(1, 2**16, (machine.FEATURES,), generator=generator).double()
        self.sums = machine.sums_of(self.images, self.weights)


class Training(Consumer):
    """The training loop of the capstone: a small network, cross entropy, SGD; uint8 images are converted by it."""

    def __init__(self, data: Data, setting: Setting, count: int = 0) -> None:
        super().__init__(data, setting, count)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            layers = torch.nn.Linear(machine.FEATURES, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 10)
        self.model = torch.nn.Sequential(torch.nn.Flatten(), *layers).to("cuda")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.weights = data.weights.to("cuda")

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Train on one batch."""
        floats = images.dtype == torch.float32
        pixels = images if floats else images.float() / 255
        whole = (images.flatten(1).double() * 255).round() if floats else images.flatten(1).double()
        self.seen.append((torch.mv(whole, self.weights), labels.clone()))
        loss = cross_entropy(self.model(pixels), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def dtypes(self, images: Any) -> torch.dtype:
        """Images may be uint8, as they are stored, or float32 from 0 to 1."""
        return torch.float32 if getattr(images, "dtype", None) == torch.float32 else torch.uint8


def train(answer: Callable[..., Any], data: Data, epochs: int = EPOCHS) -> Run:
    """Train with the loader that `answer(images, labels, size, epochs)` returns; raise `NotYet` unless it is honest."""
    setting = Setting(epochs=epochs, host=HOST)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(secrets.randbits(62))
        run = feed(answer, data, setting, SIZE, epochs, resident=True, consumer=Training)
    _must_be_honest(run)
    return run


def _must_be_honest(run: Run) -> None:
    """Raise `NotYet` unless each epoch has each sample once, with its label, in a new order of the samples."""
    wanted = _keys(run.data.sums, run.data.labels).sort().values
    epochs = []
    for start in range(0, len(run.seen), PER_EPOCH):
        batches = [_keys(*seen) for seen in run.seen[start : start + PER_EPOCH]]
        for number, keys in enumerate(batches, start):
            if not torch.isin(keys, wanted).all():
                early = bool(keys.isnan().any())
                text = "was read before its copy was complete" if early else "has images or labels that are wrong"
                raise run.not_yet(f"batch {number} {text}", facts.NO_WAIT if early else "change neither")
        if not torch.equal(torch.cat(batches).sort().values, wanted):
            raise run.not_yet(f"in epoch {start // PER_EPOCH} some samples come twice, others never", SHUFFLE)
        epochs.append({tuple(keys.sort().values.tolist()) for keys in batches})
    for number, (one, other) in enumerate(itertools.pairwise(epochs), 1):
        if one & other:
            raise run.not_yet(f"a batch of epoch {number} has the same samples as one of the epoch before", SHUFFLE)
    run.must_be_sent(run.data.images.nbytes + run.data.labels.nbytes)
    run.must_have_no_hazards()


def _keys(sums: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return one exact number for each sample, of image and label."""
    return sums * 16 + labels.double()


@lru_cache(maxsize=1)
def limit() -> int:
    """Return the time [ns] of the first copy of a stored batch from pinned memory, and then only training."""
    with record(on=machine.GPU, host=HOST) as recording:
        data = Digits()
        training = Training(data, Setting())
        images, labels = data.images[:SIZE].to("cuda"), data.labels[:SIZE].to("cuda")
        torch.cuda.synchronize()
        training.step(images, labels)
        torch.cuda.synchronize()
    kernels = summarize(recording.timeline).kernels
    first = machine.copy_time(data.images[:SIZE], data.labels[:SIZE])
    return first + EPOCHS * PER_EPOCH * kernels


@lru_cache(maxsize=1)
def baseline() -> int:
    """Return the time [ns] of the loader that everybody begins with: one epoch, times the number of epochs."""
    place: dict[str, Any] = {"__name__": "loaderviz.workshop.baseline"}
    exec(BASELINE, place)
    return EPOCHS * train(place["load"], Digits(), epochs=1).took


BASELINE = '''
import torch
from torch.utils.data import DataLoader, TensorDataset


def load(images, labels, size, epochs):
    """Yield shuffled batches on the GPU, epoch after epoch: the loader that everybody begins with."""
    loader = DataLoader(TensorDataset(images.float() / 255, labels), size, shuffle=True)
    for epoch in range(epochs):
        for x, y in loader:
            yield x.to("cuda"), y.to("cuda")
'''

ANSWER = '''
import torch


def load(images, labels, size, epochs):
    """Yield shuffled batches on the GPU, epoch after epoch; the data set is moved once, as it is stored."""
    images, labels = images.to("cuda"), labels.to("cuda")
    for epoch in range(epochs):
        order = torch.randperm(len(images)).to("cuda")
        for rows in order.split(size):
            yield images.index_select(0, rows), labels.index_select(0, rows)
'''


class Race(Exercise):
    """The capstone's exercise: each honest run gets a ladder, and a line in the leaderboard."""

    _board: Leaderboard
    _name: str

    def check(self, answer: Any = None, name: str = "", file: str | None = None) -> Outcome:
        """Train with the loader, and return the outcome. `name` and `file` are for the leaderboard."""
        self._board, self._name = Leaderboard(file), name or _user()
        return super().check(answer)

    def measure(self, answer: Callable[..., Any]) -> Score:
        """Train, note the time, and compare it: with the baseline, with the last run, with the limit."""
        run = train(answer, Digits())
        before = self._board.previous(self._name)
        self._board.add(self._name, run.took)
        lines = [
            f"{len(run.seen)} steps in {words.duration(run.took)}.",
            f"Against the baseline ({words.duration(baseline())}): {words.times(baseline() / run.took)} as fast.",
        ]
        if before:
            against = words.times(before.ns / run.took)
            lines.append(f"Against your previous run ({words.duration(before.ns)}): {against} as fast.")
        lines.append(f"Against the limit ({words.duration(limit())}): {words.times(run.took / limit())} its time.")
        if self._board.note:
            lines.append(self._board.note)
        score = " ".join(lines)
        if run.took > TARGET * limit():
            fact, rule = why_slow(run)
            raise run.not_yet(fact.rstrip("."), rule).with_score(f"{score} The target is {TARGET}x the limit.")
        return Score(score, run.timeline)


def why_slow(run: Run) -> facts.Fact:
    """Say what takes the largest part of the time that is not training, and one place where it is seen."""
    summary = summarize(run.timeline)
    if summary.exposed_copy > summary.idle:
        return facts.why_not_hidden(run.timeline)
    fact, rule = facts.why_idle(run.timeline)
    return f"The GPU is idle for {words.share(summary.idle / summary.window)} of the time. {fact}", rule


def leaderboard(file: str | None = None) -> Leaderboard:
    """Return the leaderboard: the best run of each name, fastest first."""
    return Leaderboard(file)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "you"


race = Race(
    "C", "capstone.race", "From the first loader to the limit",
    task=f"`images` (uint8 [N, 28, 28]) and `labels` are MNIST digits in host memory. Hand out all of them in "
    f"batches of `size`, `epochs` times, shuffled anew each time: images as uint8, or as float32 from 0 to 1. The "
    f"check trains a network on them ({PER_EPOCH * EPOCHS} steps).",
    target=f"honest batches (each sample once in an epoch, new order of samples), within {TARGET}x of the limit: the "
    "first copy, and then only training.",
    starter=BASELINE, answer=ANSWER, arguments=("images", "labels", "size", "epochs"),
    hints=(
        "Where does the time go? `capstone.race.show()`: which lane is busy while the GPU is idle?",
        "Lesson 1: which bytes must travel? Lessons 2 and 3: can they travel while the GPU computes?",
        "Lesson 4: must they travel in every epoch? ResidentLoader, or index_select on the GPU.",
    ),
)  # fmt: skip
EXERCISES = (race,)
