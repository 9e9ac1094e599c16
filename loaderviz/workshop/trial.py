"""Trial: run one of the loaders of lesson 5 (or your own) on the emulated GPU, and keep what was seen.

trial = try_out(suspects.loader_a)
trial                    # how many batches were right, what was reported
trial.hazards[0]         # a report; its times are those of the picture
trial.figure()           # a few steps around the first race
table({"A": trial})      # several of them in a table
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from loaderviz import metrics, words
from loaderviz.emulator.findings import Access, Hazard, Hazards
from loaderviz.timeline import Timeline
from loaderviz.workshop import machine, suspects
from loaderviz.workshop.measure import Consumer, Run, Setting, feed
from loaderviz.workshop.source import Batch, Data

BATCHES = 16
HIDDEN = 512  # work on a batch takes about twice as long as its copy, so that copies can get far ahead of it
BRIGHTEST = 255  # pixel of each batch of `Data`
STEPS, CLOSE = 3, 15  # a picture shows three steps, or 15 times the length of the race if that is less


class Loop(Consumer):
    """The loop: it uses each batch on the GPU, and never waits for anything."""

    def __init__(self, data: Data, setting: Setting, count: int) -> None:
        super().__init__(data, setting, count)
        self.work = machine.Work(data.weights, setting.scale, HIDDEN)
        sizes = [4] * 4 + [part.nbytes for part in data.batches[0]]
        [torch.empty(size, dtype=torch.uint8, pin_memory=True) for size in sizes]  # from now on the pinned pool is warm

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Use one batch."""
        self.seen.append(suspects.use(self.work, images, labels))


class LoopThatReads(Loop):
    """The same with `.item()` in each step, as for a progress bar."""

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Use one batch, and read a number of it."""
        super().step(images, labels)
        self.seen[-1][0].mean().item()


@dataclass(frozen=True, repr=False)
class Trial:
    """What was seen. `right` says for each batch whether the GPU got its values."""

    name: str
    run: Run
    right: tuple[bool, ...]

    @property
    def timeline(self) -> Timeline:
        """The run, without what was set up before it."""
        timeline = self.run.timeline
        return replace(timeline, context=replace(timeline.context, notes=()))

    @property
    def hazards(self) -> Hazards:
        """The races, with the times of the picture: ns from the begin of the timeline."""
        return Hazards([_moved(hazard, -self.run.timeline.begin) for hazard in self.run.hazards])

    @property
    def findings(self) -> Hazards:
        """What is right and useless or slow."""
        return Hazards(self.run.findings)

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
        hazards, findings = (
            ", ".join(dict.fromkeys(each.kind for each in found)) or "–" for found in (self.hazards, self.findings)
        )
        return {
            "batches right": f"{sum(self.right)} of {len(self.right)}",
            "overwritten in use": str(len(self.overwritten)),
            "copy hidden": words.share(self.hidden),
            "time": words.duration(self.timeline.duration),
            "hazards": hazards,
            "findings": findings,
        }

    def figure(self, color: str = "batch") -> Any:
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
        kinds = ", ".join(dict.fromkeys(each.kind for each in (*self.hazards, *self.findings))) or "nothing to report"
        return timeline.figure(color=color, window=(start, end), operators=on_host, title=f"{self.name}: {kinds}")

    def __repr__(self) -> str:
        return f"{self.name}: " + "; ".join(f"{name}: {value}" for name, value in self.row.items())


def try_out(
    loader: Callable[..., Any], *, copies: Literal["on_wait", "eager"] = "on_wait", read: bool = False,
    batches: int = BATCHES,
) -> Trial:  # fmt: skip
    """Let a loop take all batches from `loader` on the emulated GPU. Nothing is printed, and no hazard warned of.

    `copies="eager"`: the bytes of a copy arrive at once. `read`: the loop reads a number from the GPU in each step.
    Raises `NotYet` for a loader that hands out something else, and whatever the loader raises (in `Theirs`).
    """
    data = Data([machine.SAMPLES] * batches)
    setting = Setting(
        pinned=loader is not suspects.loader_d, scale=BRIGHTEST if loader is suspects.loader_f else 1, copies=copies,
        host=machine.FAST_HOST,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = feed(loader, data, setting, consumer=LoopThatReads if read else Loop)
    expected = zip(data.sums.split(data.sizes), data.labels.split(data.sizes), strict=True)
    right = (
        torch.equal(sums, right_sums) and torch.equal(labels, right_labels)
        for (sums, labels), (right_sums, right_labels) in zip(run.seen, expected, strict=True)
    )
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


def _moved(hazard: Hazard, by: int) -> Hazard:
    second = hazard.second and _moved_side(hazard.second, by)
    return replace(hazard, first=_moved_side(hazard.first, by), second=second)


def _moved_side(access: Access, by: int) -> Access:
    return access if access.start < 0 else replace(access, start=access.start + by, end=access.end + by)
