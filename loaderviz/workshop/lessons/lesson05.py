"""Lesson 5, find the bug: try a loader out, and three exercises (loaders A, C and F, repaired with their overlap)."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from loaderviz import metrics, words
from loaderviz.emulator.hazards import Access, Hazards, Lints
from loaderviz.timeline import Timeline
from loaderviz.view import View
from loaderviz.workshop import harness
from loaderviz.workshop.exercises import Score, check_of, say
from loaderviz.workshop.harness import Batch, CheckLoop, Data, FeedConfig, LoaderRun, feed
from loaderviz.workshop.lessons import suspects
from loaderviz.workshop.lessons.lesson03 import judged_again

TRIED = 16  # batches of a trial
HIDDEN = 512  # work on a batch takes about twice as long as its copy, so that copies can get far ahead of it
BRIGHTEST = 255  # pixel of each batch of `Data`
STEPS, CLOSE = 3, 15  # a picture shows three steps, or 15 times the length of the race if that is less


class TrialLoop(CheckLoop):
    """The loop: it uses each batch on the GPU, and never waits for anything, unless it is to read a number of each."""

    def __init__(self, data: Data, setting: FeedConfig, count: int) -> None:
        super().__init__(data, setting, count)
        self.work = harness.BatchWork(data.weights, setting.scale, HIDDEN)
        sizes = [4] * 4 + [part.nbytes for part in data.batches[0]]
        [torch.empty(size, dtype=torch.uint8, pin_memory=True) for size in sizes]  # from now on the pinned pool is warm

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Use one batch."""
        self.seen.append(suspects.use(self.work, images, labels))
        if self.setting.reads:
            self.seen[-1][0].mean().item()


@dataclass(frozen=True, repr=False)
class Trial:
    """What was seen. `right` says for each batch whether the GPU got its values."""

    name: str
    run: LoaderRun
    right: tuple[bool, ...]

    @property
    def timeline(self) -> Timeline:
        """The run, without what was set up before it."""
        timeline = self.run.timeline
        return replace(timeline, context=replace(timeline.context, notes=()))

    @property
    def hazards(self) -> Hazards:
        """The races, with the times of the picture: ns from the begin of the timeline."""
        begin = self.run.timeline.begin

        def moved(access: Access | None) -> Any:
            if access is None or access.start < 0:
                return access
            return replace(access, start=access.start - begin, end=access.end - begin)

        hazards = self.run.hazards
        return Hazards([replace(each, first=moved(each.first), second=moved(each.second)) for each in hazards])

    @property
    def lints(self) -> Lints:
        """What is right and useless or slow."""
        return Lints(self.run.lints)

    @property
    def overwritten(self) -> tuple[int, ...]:
        """The batches whose memory a copy overwrote before the kernels that read it were over."""
        return tuple(sorted({batch for _, batch, _ in self.run.reused()}))

    @property
    def hidden(self) -> float:
        """The share of the copies that runs under kernels."""
        return metrics.summarize(self.timeline).overlap or 0.0

    @property
    def row(self) -> dict[str, str]:
        """The numbers, and the names of what was reported."""
        hazards, lints = (
            ", ".join(dict.fromkeys(each.kind for each in found)) or "–" for found in (self.hazards, self.lints)
        )
        return {
            say("batches right"): say("some-of-all", some=sum(self.right), all=len(self.right)),
            say("overwritten in use"): str(len(self.overwritten)),
            say("copy hidden"): words.share(self.hidden),
            say("time"): words.duration(self.timeline.duration),
            say("hazards-found"): hazards,
            say("lints"): lints,
        }

    def view(self, color: str = "batch") -> View:
        """Return the picture: a few steps around the first race, or the first steps if there is none."""
        timeline = self.timeline
        begin, width = timeline.begin, timeline.duration * STEPS // len(self.right)
        start, end = begin, begin + width
        for mark in timeline.marks[:1]:
            start = min(int(timeline.start[span]) for span in mark.spans)
            end = max(int(timeline.end[span]) for span in mark.spans)
            space = max(min(width, CLOSE * (end - start)) - (end - start), (end - start) // 2) // 2
            start, end = max(begin, start - space), end + space
        on_host = any(hazard.second and hazard.second.stream is None for hazard in self.hazards)
        kinds = ", ".join(dict.fromkeys(each.kind for each in (*self.hazards, *self.lints))) or say("nothing-to-report")
        return timeline.view(color, on_host, f"{self.name}: {kinds}", (start, end))

    def __repr__(self) -> str:
        return f"{self.name}: " + "; ".join(f"{name}: {value}" for name, value in self.row.items())


def try_out(
    loader: Callable[..., Any],
    *,
    copies: Literal["on_wait", "eager"] = "on_wait",
    read: bool = False,
    batches: int = TRIED,
    like: Callable[..., Any] | None = None,
) -> Trial:
    """Let a loop take all batches from `loader` on the emulated GPU. Nothing is printed, and no hazard warned of.

    `copies="eager"`: the bytes of a copy arrive at once. `read`: the loop reads a number from the GPU in each step.
    `like`: the suspect whose batches it gets, if it is none (D gets pageable ones, F divides them).
    Raises `NotYet` for a loader that hands out something else, and whatever the loader raises (in `Theirs`).
    """
    data, like = Data.random([harness.SAMPLES] * batches, random.Random(0)), like or loader
    setting = FeedConfig(
        pinned=like is not suspects.loader_d,
        scale=BRIGHTEST if like is suspects.loader_f else 1,
        copies=copies,
        host=harness.FAST_HOST,
    )
    with warnings.catch_warnings(action="ignore"):
        run = feed(loader, data, replace(setting, reads=read), consumer=TrialLoop)
    right = (all(map(torch.equal, seen, known)) for seen, known in zip(run.seen, data.recognised, strict=True))
    return Trial(loader.__name__, run, tuple(right))


def table(trials: Mapping[str, Trial]) -> Any:
    """Return a pandas table with a row for each trial."""
    import pandas as pd

    return pd.DataFrame([trial.row for trial in trials.values()], index=list(trials))


def count_wrong(loader: Callable[..., Any], batches: Sequence[Batch]) -> int:
    """Return how many batches of `loader` a GPU adds up wrongly: the one that there is, or that of a recording.

    `batches` are pinned. The result is certain for a right loader only: 0.
    """
    sums = [(images.sum(), labels.sum()) for images, labels in loader(batches)]
    torch.cuda.synchronize()
    expected = [(images.to("cuda").sum(), labels.to("cuda").sum()) for images, labels in batches]
    return sum(
        any(one.item() != other.item() for one, other in zip(mine, right, strict=True))
        for mine, right in zip(sums, expected, strict=True)
    )


# The exercises

BATCHES = 32
FACTOR, READING = 1.1, 1.3  # of the limit; in a loop that reads its loss in each step
HELD = 6  # batches whose memory may be held at a time
DARKEST = 100  # the brightest pixel of a batch is at least that bright


def _feed(
    answer: Callable[..., Any], data: Data, loop: Callable[..., Any] = TrialLoop, reads: bool = False
) -> LoaderRun:
    return feed(answer, data, FeedConfig(host=harness.FAST_HOST, reads=reads), consumer=loop)


def _reading(answer: Callable[..., Any], data: Data, *limit: int, loop: Callable[..., Any] = TrialLoop) -> Score:
    """Judge numbers and time in a loop that reads its loss: its host cannot run ahead, and hide what is in the way."""
    run = _feed(answer, data, loop, reads=True)
    run.must_be_right()
    return run.must_take(run.limit(HIDDEN, *limit), READING)


def _data(chance: random.Random) -> Data:
    return Data.random([harness.SAMPLES] * BATCHES, chance)


# 5.1


@check_of("5.1")
def wait(answer: Callable[..., Any], chance: random.Random) -> Score:
    run = _feed(answer, data := _data(chance))
    run.must_be_right()
    run.must_hold(HELD)
    score = run.must_take(run.limit(HIDDEN), FACTOR)
    run.must_not_drain(BATCHES // 4)
    return judged_again(score, lambda: _reading(answer, data))


# 5.2


@check_of("5.2")
def kept(answer: Callable[..., Any], chance: random.Random) -> Score:
    run = _feed(answer, data := _data(chance))
    run.must_be_right()
    run.must_hold(HELD, "R35-references")
    return judged_again(run.must_take(run.limit(HIDDEN), FACTOR), lambda: _reading(answer, data))


# 5.3


class _Undo(TrialLoop):
    """The loop, which takes each batch times its brightest pixel, to recognise it."""

    def __init__(self, data: Data, *more: Any) -> None:
        self.brightest = [int(images.max()) for images, _ in data.batches]
        super().__init__(data, *more)
        self.values = "by-brightest"

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Use one batch."""
        self.work.scale = self.brightest[len(self.seen)]
        super().step(images, labels)


@check_of("5.3")
def scaled(answer: Callable[..., Any], chance: random.Random) -> Score:
    data = _data(chance)
    for images, _ in data.batches:
        most = chance.randrange(DARKEST, 256)  # of one picture, and not of the first
        images.clamp_(max=most * 9 // 10)[chance.randrange(1, len(images)), 0] = most
    data = Data(data.images, data.labels, data.sizes, chance)
    run = _feed(answer, data, _Undo)
    run.must_have_no_hazards()
    for number, (sums, _) in enumerate(run.seen):
        if sums.isnan().any():
            raise run.not_yet(say("batch-nan", batch=number), say("R32"))
    run.must_be_right()
    run.must_hold(HELD)
    division = harness.conversion_time(harness.SAMPLES, 2)  # and the brightest pixel before it
    score = run.must_take(run.limit(HIDDEN, DARKEST, division), FACTOR)
    return judged_again(score, lambda: _reading(answer, data, DARKEST, division, loop=_Undo))
