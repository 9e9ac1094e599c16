"""Lesson 0: the machine, drawn; to see an overlap in a picture, and to read from a timeline what overlap can save."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import record_function

from loaderviz import words
from loaderviz.loaders import BlockingLoader, PrefetchLoader
from loaderviz.metrics import Summary, summarize
from loaderviz.recording import record
from loaderviz.timeline import Kind, Timeline
from loaderviz.view import theme
from loaderviz.workshop.diagnosis import copies, stretch
from loaderviz.workshop.exercises import NotYet, Score, check_of, learners_code, number_of, say
from loaderviz.workshop.harness import SAMPLES, Data, FeedConfig, feed
from loaderviz.workshop.lessons.lesson03 import claim, copy_ahead
from loaderviz.workshop.loop import HOST

# The machine, drawn

DRAWN = Path(__file__).with_name("machine.svg").read_text(encoding="utf-8")
# px: where in machine.svg the first batch is in each box, and in how many columns the batches are there
HOST_MEMORY, STAGING, GPU_MEMORY, SMS = (22, 4), (222, 3), (508, 4), (706, 3)
LINK, TOP = (340, 462), 128  # where a batch is at the begin and at the end of its copy; the same height everywhere
SECONDS, SIDE, APART, JUMP = 14, 28, 34, 0.004  # of a round; px of a batch, and to the next; share of a round

Stop = tuple[float, float, float, float]  # share of the round, x, y, opacity


@dataclass(frozen=True)
class MachineDrawing:
    """Host and GPU, drawn, in which the batches of a timeline travel: each is staged, copied, and computed with.

    It moves (not where the reader has asked for less motion) in the times of the timeline, without script or kernel.
    """

    timeline: Timeline

    @property
    def journeys(self) -> dict[int, tuple[int, ...]]:
        """For each batch when it is staged, when its copy begins and ends, and its kernels [ns from the begin]."""
        found = {}
        for copy in self.timeline.rows(Kind.COPY_H2D):
            kernels = [row for row in self.timeline.rows(Kind.COMPUTE) if row.batch == copy.batch]
            (call,) = (row for row in self.timeline.rows(Kind.API) if row.correlation == copy.correlation)
            times = call.start, copy.start, copy.end, kernels[0].start, kernels[-1].end
            found[copy.batch] = tuple(time - self.timeline.begin for time in times)
        return found

    def text(self) -> str:
        """Return the same in words."""
        names = "called", "sent", "there", "begun", "done"
        times = ((batch, dict(zip(names, map(words.duration, at), strict=True))) for batch, at in self.journeys.items())
        return "\n".join(say("journey", batch=batch, **at) for batch, at in times)

    def svg(self) -> str:
        """Return the drawing as SVG; where nothing moves, it is as in the middle of the round."""
        batches = "".join(_moving(batch, self._stops(row, at)) for row, (batch, at) in enumerate(self.journeys.items()))
        drawn = re.sub(">([^<>]+)</text>", lambda found: f">{say(found[1])}</text>", DRAWN)
        return drawn.replace("TEXT", self.text()).replace("BATCHES", batches)

    def _stops(self, row: int, at: tuple[int, ...]) -> list[Stop]:
        call, begin, end, first, last = (time / self.timeline.duration for time in at)
        y = TOP + APART * (row // 4)
        host, buffer, memory, cores = (
            (left + APART * (row % columns), y) for left, columns in (HOST_MEMORY, STAGING, GPU_MEMORY, SMS)
        )
        return [
            (0, *host, 1), (call, *host, 1), (call + JUMP, *buffer, 1), (begin, *buffer, 1),
            (begin + JUMP, LINK[0], y, 1), (end, LINK[1], y, 1), (end + JUMP, *memory, 1), (first, *memory, 1),
            (first + JUMP, *cores, 1), (last - JUMP, *cores, 1), (last, *cores, 0.15), (1, *cores, 0.15),
        ]  # fmt: skip


def _moving(batch: int, stops: list[Stop]) -> str:
    """Return a batch as a square with its number, which goes from stop to stop."""
    style, (shares, *places) = theme.of_batch(batch), zip(*stops, strict=True)
    look = "transform: translate({:.0f}px, {:.0f}px); opacity: {:.2g}"
    moves = "".join(f"{100 * share:.2f}% {{ {look.format(*place)} }}" for share, *place in stops)
    x, y, opacity = (np.interp(0.5, shares, place) for place in places)
    return (
        f"<style>@keyframes lv-machine-{batch} {{ {moves} }}</style>"
        f'<g transform="translate({x:.0f} {y:.0f})" opacity="{opacity:.2g}" '
        f'style="animation: lv-machine-{batch} {SECONDS}s {-SECONDS / 2}s linear infinite">'
        f'<rect width="{SIDE}" height="{SIDE}" rx="4" fill="{style.color}"/>'
        f'<text x="{SIDE // 2}" y="19" text-anchor="middle" fill="{style.ink}">{batch}</text></g>\n'
    )


def machine() -> MachineDrawing:
    """Return the machine with three batches of numbers, copied and multiplied."""
    with record(on="t4", host=HOST) as recording:
        weight = torch.ones(1024, 4096).to("cuda")
        for number in range(5):
            with record_function(f"batch {number}: 1024 samples"):
                x = torch.ones(1024, 1024).to("cuda")
            x @ weight
        torch.cuda.synchronize()
    return MachineDrawing(recording.timeline.from_batch(2))


# 0.a

AHEAD, OF = 3, 6  # the batch that is copied ahead in the puzzle, and how many batches there are


@cache
def puzzle() -> Timeline:
    """Return a loop that waits for each copy but one: batch `AHEAD` is copied while the GPU computes the one before."""

    def load(batches: Any) -> Iterator[Any]:
        side, main, source = torch.cuda.Stream(), torch.cuda.current_stream(), list(batches)
        for number, batch in enumerate(source):
            if number != AHEAD:
                copied = [part.to("cuda") for part in batch]
            if number == AHEAD - 1:
                early, arrived = copy_ahead(source[AHEAD], side)
            yield copied
            if number == AHEAD - 1:
                main.wait_event(arrived)
                copied = claim(early, main)

    return feed(load, Data.random([SAMPLES] * OF, random.Random(0)), FeedConfig(reads=True)).timeline


@check_of("0.a")
def look(answer: Callable[..., Any], chance: random.Random) -> Score:
    """Ask for the number of the one batch of the puzzle that is copied under the computing."""
    timeline = puzzle()
    with learners_code():
        returned = answer()
    got = number_of(returned, "batch-wanted", timeline)
    ran = {copy.batch: stretch(timeline, copy.start, copy.end) for copy in copies(timeline)}
    if got == AHEAD:
        return Score(say("seen", batch=AHEAD, ran=ran[AHEAD], other=AHEAD - 1), timeline)
    if got == AHEAD - 1:
        raise NotYet(say("computed-not-copied", batch=AHEAD - 1), say("two-colours"), "", timeline)
    if got not in ran:
        raise NotYet(say("no-such-batch", got=returned, last=OF - 1), say("two-colours"), "", timeline)
    raise NotYet(say("nothing-beside", batch=int(got), ran=ran[int(got)]), say("two-colours"), "", timeline)


# 0.1

WITHIN = 0.005  # of the window: half a percent


@check_of("0.1")
def reading(answer: Callable[..., Any], chance: random.Random) -> Score:
    """Let the learner read two fresh recordings of random length: nothing hidden, most of it hidden."""
    lines, timeline = [], None
    for loader in (BlockingLoader, PrefetchLoader):
        data = Data.random([SAMPLES] * chance.randrange(3, 9), chance)
        timeline = feed(loader, data, FeedConfig()).timeline
        with learners_code():
            returned = answer(timeline)
        lines.append(_judge(returned, timeline, loader.__name__))
    return Score(say("space").join(lines), timeline)


def _judge(returned: Any, timeline: Timeline, loader: str) -> str:
    """Return a part of the score, or raise `NotYet` with what the number is instead."""
    summary, got = summarize(timeline), number_of(returned, "share-wanted", timeline)
    truth = summary.exposed_copy / summary.window
    if abs(got - truth) <= WITHIN:
        return say("read-share", loader=loader, got=words.share(got), truth=words.share(truth))
    exposed, window = words.duration(summary.exposed_copy), words.duration(summary.window)
    fact = say("exposed-share", got=got, loader=loader, exposed=exposed, window=window, truth=truth)
    told = say("space").join(filter(None, (fact, _what_it_is(got, summary))))
    raise NotYet(told, say("exposed-is"), "", timeline)


def _what_it_is(got: float, summary: Summary) -> str:
    """Say which other number of the timeline it is, if it is one."""
    exposed = summary.exposed_copy / summary.window
    others = {
        exposed * 100: "in-percent",
        summary.exposed_copy: "in-nanoseconds",
        summary.exposed_copy / (summary.batches or 1): "for-each-batch",
        summary.copy / summary.window: "with-hidden-copy",
        summary.exposed_copy / summary.copy: "share-of-copy",
        1 - (summary.compute_share or 0): "not-computing",
    }
    close = (key for other, key in others.items() if abs(got - other) <= WITHIN * max(1, abs(other)))
    return next((say(key, hidden=words.duration(summary.hidden_copy)) for key in close), "")
