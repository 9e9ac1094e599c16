"""The capstone: from the first loader to the limit, with a ladder and a leaderboard. The training is in `training`.

capstone.climb("blocking", my_loader)           # train with it: a rung of capstone.ladder
capstone.race.check(my_loader, name="Ada")      # the exercise: a rung, and a line in the leaderboard
capstone.leaderboard()
capstone.milliseconds(my_loader)                # the same training on the GPU that is there
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from loaderviz import words
from loaderviz.errors import LoadervizError
from loaderviz.metrics import summarize
from loaderviz.workshop import facts
from loaderviz.workshop.exercise import Exercise
from loaderviz.workshop.ladder import Ladder, Rung
from loaderviz.workshop.leaderboard import Leaderboard
from loaderviz.workshop.measure import Run
from loaderviz.workshop.outcome import NotYet, Outcome, Score
from loaderviz.workshop.stages import SLOWEST
from loaderviz.workshop.training import EPOCHS, PER_EPOCH, Loader, limit, milliseconds, train

__all__ = ["EXERCISES", "NotHonestError", "Race", "baseline", "climb", "ladder", "leaderboard", "limit", "milliseconds",
           "race"]  # fmt: skip

TARGET = 1.25
YOURS = "yours"  # the rung of the exercise
IDLE = "idle: "  # so begin the parts of a summary's breakdown in which the GPU has no work
LATE_DATA = ("host fetches a batch", "host blocked, waiting for data")


class NotHonestError(LoadervizError, ValueError):
    """A loader hands out something else than the batches of an honest training."""


ladder = Ladder(limit)


def climb(name: str, load: Loader) -> Rung:
    """Train with a loader; add the run to the ladder and return it.

    Raises `NotHonestError` if its batches are not those of an honest training.
    """
    try:
        run, right = train(load)
    except NotYet as problem:
        raise NotHonestError(f"{name}: {problem.fact} {problem.rule}".strip()) from None
    return ladder.add(Rung(name, run.timeline, right))


@lru_cache(maxsize=1)
def baseline() -> int:
    """Return the time [ns] of the loader that everybody begins with."""
    place: dict[str, Any] = {"__name__": "loaderviz.workshop.baseline"}
    exec(BASELINE, place)
    return train(place["load"])[0].took


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
    """The capstone's exercise: each honest run is a rung of the ladder, and a line in the leaderboard."""

    _board: Leaderboard
    _name: str

    def check(self, answer: Any = None, name: str = "", file: str | None = None) -> Outcome:
        """Train with the loader, and return the outcome. `name` and `file` are for the leaderboard."""
        self._board = Leaderboard(file)
        self._name = self._board.name_for(name)
        return super().check(answer)

    def measure(self, answer: Callable[..., Any]) -> Score:
        """Train, note the time, and compare it: with the baseline, with the last run, with the limit."""
        run, right = train(answer)
        before = self._board.previous(self._name)
        self._board.add(self._name, run.took)
        ladder.add(Rung(YOURS, run.timeline, right))
        score = self._score(run, right, before.ns if before else None)
        if run.took > TARGET * limit():
            fact, rule = why_slow(run)
            raise run.not_yet(fact.rstrip("."), rule).with_score(f"{score} The target is {TARGET}x the limit.")
        return Score(score, run.timeline)

    def _score(self, run: Run, right: float, before: int | None) -> str:
        lines = [
            f"{self._name}: {len(run.seen)} steps in {words.duration(run.took)}; {words.share(right)} of the test "
            "digits are right.",
            f"Against the baseline ({words.duration(baseline())}): {words.times(baseline() / run.took)} as fast.",
        ]
        if before:
            faster = words.times(before / run.took)
            lines.append(f"Against your previous run ({words.duration(before)}): {faster} as fast.")
        lines.append(f"Against the limit ({words.duration(limit())}): {run.took / limit():.2f}x its time.")
        return " ".join([*lines, self._board.note]).strip()


def why_slow(run: Run) -> facts.Fact:
    """Say what takes the largest part of the time that is not training, and where the GPU is idle for longest."""
    summary = summarize(run.timeline)
    if summary.exposed_copy > summary.idle:
        return facts.why_not_hidden(run.timeline)
    gap, rule = facts.why_idle(run.timeline)
    idle = [(ns, what.removeprefix(IDLE)) for what, ns in summary.breakdown.items() if what.startswith(IDLE)]
    if not idle:
        return gap, rule
    ns, most = max(idle)
    # the longest gap alone would mislead: it is often the start, while the same small gap comes back at each step
    fact = (
        f"The GPU is idle for {words.share(summary.idle / summary.window)} of the time; the largest part of that: "
        f"{most} ({words.share(ns / summary.window)}). The longest gap: {gap[:1].lower()}{gap[1:]}"
    )
    return fact, SLOWEST if most in LATE_DATA else rule


def leaderboard(file: str | None = None) -> Leaderboard:
    """Return the leaderboard: the best run of each name, fastest first."""
    return Leaderboard(file)


race = Race(
    "8.1", "capstone.race", "From the first loader to the limit",
    task=f"`images` (uint8 [N, 28, 28]) and `labels` are MNIST digits in host memory. Hand out all of them in "
    f"batches of `size`, `epochs` times, shuffled anew each time: images as uint8, or as float32 from 0 to 1. The "
    f"check trains a network on them ({PER_EPOCH * EPOCHS} steps).",
    target=f"honest batches (each sample once in an epoch, in a new order), in at most {TARGET}x the limit, which is "
    "the copy of the first batch, and then only training.",
    starter=BASELINE, answer=ANSWER, arguments=("images", "labels", "size", "epochs"),
    hints=(
        "Where does the time go? `capstone.race.show()`: which lane is busy while the GPU is idle?",
        "Lesson 1: which bytes must travel? Lessons 2 and 3: can they travel while the GPU computes?",
        "Lesson 4: must they travel in every epoch? ResidentLoader, or index_select on the GPU.",
    ),
)  # fmt: skip
EXERCISES = (race,)
