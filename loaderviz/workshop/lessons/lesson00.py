"""Exercise of lesson 0, a first one: read from a timeline what overlap can win, and get to know `check()`."""

from __future__ import annotations

import numbers
import random
from collections.abc import Callable
from typing import Any

from loaderviz import words
from loaderviz.loaders import BlockingLoader, PrefetchLoader
from loaderviz.metrics import Summary, summarize
from loaderviz.timeline import Timeline
from loaderviz.workshop.exercises import Exercise, NotYet, Score, learners_code
from loaderviz.workshop.harness import SAMPLES, Data, FeedConfig, feed

WITHIN = 0.005  # of the window: half a percent
EXPOSED = "a copy is exposed while no kernel runs. Only this part of the copy can be won by overlap."


def _read_it(answer: Callable[..., Any], chance: random.Random) -> Score:
    """Let the learner read two fresh recordings of random length: nothing hidden, most of it hidden."""
    lines, timeline = [], None
    for loader in (BlockingLoader, PrefetchLoader):
        data = Data.random([SAMPLES] * chance.randrange(3, 9), chance)
        timeline = feed(loader, data, FeedConfig()).timeline
        with learners_code():
            returned = answer(timeline)
        lines.append(_judge(returned, timeline, loader.__name__))
    return Score(" ".join(lines), timeline)


def _judge(returned: Any, timeline: Timeline, loader: str) -> str:
    """Return a part of the score, or raise `NotYet` with what the number is instead."""
    if isinstance(returned, bool) or not isinstance(returned, numbers.Real):
        raise NotYet(f"Your function returned {returned!r}. A share from 0 to 1 is wanted.", "", "", timeline)
    summary, got = summarize(timeline), float(returned)
    truth = summary.exposed_copy / summary.window
    if abs(got - truth) <= WITHIN:
        return f"{loader}: you read {words.share(got)}, it is {words.share(truth)}."
    exposed, window = words.duration(summary.exposed_copy), words.duration(summary.window)
    fact = (
        f"You returned {got:.4g} for a {loader}. There {exposed} of {window} is exposed copy: a share of {truth:.4f}."
    )
    raise NotYet(f"{fact} {_what_it_is(got, summary)}".strip(), EXPOSED, "", timeline)


def _what_it_is(got: float, summary: Summary) -> str:
    """Say which other number of the timeline it is, if it is one."""
    exposed = summary.exposed_copy / summary.window
    others = {
        exposed * 100: "Yours is in percent.",
        summary.exposed_copy: "Yours is a time in nanoseconds.",
        summary.exposed_copy / (summary.batches or 1): "Yours is a time for each batch.",
        summary.copy / summary.window: f"Yours counts the hidden copy, too: {words.duration(summary.hidden_copy)}.",
        summary.hidden_copy / summary.window: "Yours is the hidden part of the copy.",
        summary.overlap or 0: "Yours is the share of the copy that is hidden.",
        summary.exposed_copy / summary.copy: "Yours is a share of the copy, not of the whole time.",
        1 - (summary.compute_share or 0): "Yours is all the time in which the GPU does not compute.",
    }
    close = [text for other, text in others.items() if abs(got - other) <= WITHIN * max(1, abs(other))]
    return close[0] if close else ""


reading = Exercise(
    "lesson00.reading",
    "0.1 What could overlap win?",
    task="Write `exposed_share(timeline)`. It returns the share of the time in which a copy keeps the GPU from "
    "computing, from 0 to 1. The numbers of the table above are attributes, in nanoseconds: `summary.window` (the "
    "whole time, without the start), `summary.compute`, `summary.copy`, `summary.hidden_copy`, "
    "`summary.exposed_copy`, `summary.idle`.",
    target="right for two fresh recordings: one that hides no copy, one that hides most of it.",
    hints=(
        "A share is a part of a whole. The whole is summary.window. Which part is wanted?",
        "Not summary.copy: some of the copy may be hidden. The line 'copy exposed' of the table is the part.",
    ),
    measure=_read_it,
    arguments=("timeline",),
)

EXERCISES = (reading,)
