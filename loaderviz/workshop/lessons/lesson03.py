"""Lesson 3, prefetch: two building blocks, and exercises (by hand, overlap, uneven batches, a source that refills)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch

from loaderviz.loaders.base import prefetching
from loaderviz.timeline import Kind
from loaderviz.workshop import diagnosis, harness
from loaderviz.workshop.exercises import Exercise, NotYet, Score, check_of, say
from loaderviz.workshop.harness import Data, FeedConfig, fed_twice, feed

BATCHES, FEW = 32, 8
UNEVEN = (64, 64, 64, 256) * 5  # every fourth batch is four times as large
MANY = len(UNEVEN)  # the task's text has it
BUFFERS = 2
# x the limit: in a loop that never waits, and in one that reads its loss, so that the GPU waits for launches, too. The
# best take 1.21x and 1.08x there, a copy that begins only after the step 1.9x and 1.8x.
OVERLAP, UNEVEN_WITHIN = (1.1, 1.5), (1.05, 1.3)
AHEAD = 4  # later batches whose copies may be queued when one is handed out
DEPTHS = (6, 7, 8), (3, 4)  # of which the depth of 3.2 is drawn, in the first loop and in the second


def copy_ahead(batch: Any, side: torch.cuda.Stream, number: int | None = None) -> tuple[Any, torch.cuda.Event]:
    """Queue the copy of a pinned batch in the stream `side`; return it, and an event that marks the end of the copy.

    `number` tells a recording which batch this is.
    """
    with torch.cuda.stream(side), nullcontext() if number is None else prefetching(number):
        copies = [part.to("cuda", non_blocking=True) for part in batch]
        return copies, side.record_event()


def claim(batch: Any, stream: torch.cuda.Stream) -> Any:
    """Tell the allocator that `stream` reads the batch, too (R36); return the batch."""
    for part in batch:
        part.record_stream(stream)
    return batch


def _judge(answer: Callable[..., Any], data: Data, setting: FeedConfig, factor: float, depth: int = 0) -> Score:
    """Feed, with a depth if there is one; judge numbers, orders, memory, then time."""
    run = feed(answer, data, setting, *([depth] if depth else []))
    run.must_not_be_refilled()
    run.must_be_right()
    run.must_not_be_far_ahead(depth or AHEAD)
    run.must_let_go(depth or AHEAD)
    score = run.must_take(run.limit(), factor)
    run.must_not_be_far_ahead(depth or AHEAD, depth - 1)
    return score


def _judge_twice(answer: Callable[..., Any], data: Data, factors: tuple[float, float], *depths: int) -> Score:
    """Judge with a loop that never waits, and with one that reads its loss, each against its factor.

    In the first the host runs ahead of the GPU, so even a copy that is queued after the step is queued in time.
    """
    first, second = depths or (0, 0)
    score = _judge(answer, data, FeedConfig(), factors[0], first)
    return judged_again(score, lambda: _judge(answer, data, FeedConfig(reads=True), factors[1], second))


def judged_again(score: Score, judge: Callable[[], Score]) -> Score:
    """Return both scores as one; what the second judge, whose loop reads its loss, says against it names that loop."""
    try:
        reading = judge()
    except NotYet as problem:
        problem.fact = say("loss-read-fact", fact=problem.fact)
        raise
    return Score(say("loss-read", first=score.text, second=reading.text), score.timeline)


# 3.a


@check_of("3.a")
def go_on(answer: Callable[..., Any], chance: random.Random) -> Score:
    """Let the learner copy without a wait of the host; in a loop that never waits, and in one that reads its loss."""
    data = Data.random([harness.SAMPLES] * FEW, chance)
    for run in fed_twice(answer, data, FeedConfig()):
        copies, waits = list(run.timeline.rows(Kind.COPY_H2D)), {}
        run.must_be_pinned(copies, "R7")
        for copy in copies:
            if wait := diagnosis.waited_for(run.timeline, copy):
                waits[wait.start] = wait, copy  # the last one that was called before the wait
        for wait, copy in waits.values():
            part = say("images-of" if copy.nbytes > diagnosis.SMALL else "labels-of")
            ran = diagnosis.stretch(run.timeline, wait.start, wait.end) + diagnosis.line_of(run.timeline, wait)
            rule = say("both-parts" if diagnosis.inside(run.timeline, wait) else "R25")
            raise run.not_yet(say("still-waits", part=part, batch=copy.batch, ran=ran), rule)
    run.must_not_drain(1)  # by a wait for what was copied, as .item() is; the one at the end is that of the check
    return Score(say("went-on", few=FEW), run.timeline)


# 3.b


@check_of("3.b")
def leave(answer: Callable[..., Any], chance: random.Random) -> Score:
    """Let the learner copy the images in another stream, for which the check waits; in the same two loops."""

    def load(batches: Any) -> Iterator[Any]:
        side, main = torch.cuda.Stream(), torch.cuda.current_stream()
        for images, labels in batches:
            copied = answer(images, side)
            main.wait_stream(side)
            if isinstance(copied, torch.Tensor) and copied.is_cuda:
                copied.record_stream(main)
            yield copied, labels.to("cuda", non_blocking=True)

    data = Data.random([harness.SAMPLES] * FEW, chance)
    for run in fed_twice(load, data, FeedConfig()):
        _must_be_in_side(run)
    return Score(say("left", few=FEW), run.timeline)


def _must_be_in_side(run: harness.LoaderRun) -> None:
    """Raise `NotYet` for a copy in the stream that computes, and one for which the host waits."""
    main = {kernel.lane for kernel in run.timeline.rows(Kind.COMPUTE)}
    for copy in diagnosis.copies(run.timeline):
        ran = diagnosis.stretch(run.timeline, copy.start, copy.end)
        if copy.lane in main:
            fact = say("copy-in-main", batch=copy.batch, ran=ran, stream=copy.lane.name)
            raise run.not_yet(fact, say("R16-one-stream"))
        if diagnosis.waited_for(run.timeline, copy):
            raise run.not_yet(say("copy-waited-for", batch=copy.batch, ran=ran), say("stream-waits"))


# 3.0


@check_of("3.0")
def by_hand(answer: Callable[..., Any], chance: random.Random) -> Score:
    def load(batches: Any) -> Iterator[Any]:
        side, main = torch.cuda.Stream(), torch.cuda.current_stream()
        for batch in batches:
            yield answer(batch, side, main)

    run = feed(load, Data.random([harness.SAMPLES] * FEW, chance), FeedConfig())
    run.must_be_right()
    _must_be_in_side(run)
    return Score(say("by-hand-done", few=FEW), run.timeline)


# 3.c and 3.1


def _overlap(answer: Callable[..., Any], chance: random.Random) -> Score:
    return _judge_twice(answer, Data.random([harness.SAMPLES] * BATCHES, chance), OVERLAP)


order, overlap = Exercise("3.c", _overlap, "order"), Exercise("3.1", _overlap, "overlap")

# 3.2


@check_of("3.2")
def uneven(answer: Callable[..., Any], chance: random.Random) -> Score:
    return _judge_twice(answer, Data.random(UNEVEN, chance), UNEVEN_WITHIN, *map(chance.choice, DEPTHS))


# 3.3


@check_of("3.3")
def refill(answer: Callable[..., Any], chance: random.Random) -> Score:
    setting = FeedConfig(buffers=BUFFERS, host=harness.FAST_HOST)
    return _judge(answer, Data.random([harness.SAMPLES] * BATCHES, chance), setting, 1.2)
