"""Lesson 3, prefetch: two building blocks, and exercises (by hand, overlap, uneven batches, a source that refills)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch

from loaderviz.loaders import marks
from loaderviz.timeline import Kind
from loaderviz.workshop import diagnosis, harness
from loaderviz.workshop.exercises import Exercise, NotYet, Score
from loaderviz.workshop.harness import Data, FeedConfig, feed

BATCHES, FEW = 32, 8
UNEVEN = (64, 64, 64, 256) * 5  # every fourth batch is four times as large
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
    with torch.cuda.stream(side), nullcontext() if number is None else marks.prefetching(number):
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
    copies = [harness.copy_time(*batch) for batch in data.batches]
    limit = harness.pipeline_limit(copies, [harness.work_time(size) for size in data.sizes])
    score = run.must_take(limit, factor)
    run.must_not_be_far_ahead(depth or AHEAD, depth - 1)
    return score


def _judge_twice(answer: Callable[..., Any], data: Data, factors: tuple[float, float], *depths: int) -> Score:
    """Judge with a loop that never waits, and with one that reads its loss, each against its factor.

    In the first the host runs ahead of the GPU, so even a copy that is queued after the step is queued in time.
    """
    first, second = depths or (0, 0)
    score = _judge(answer, data, FeedConfig(), factors[0], first)
    try:
        reading = _judge(answer, data, FeedConfig(reads=True), factors[1], second)
    except NotYet as problem:
        problem.fact = (
            f"In a loop that never waits this is fast enough. With the loss read in each step: {problem.fact}"
        )
        raise
    return Score(f"{score.text} With the loss read in each step: {reading.text}", score.timeline)


# 3.0


def _by_hand(answer: Callable[..., Any], chance: random.Random) -> Score:
    def load(batches: Any) -> Iterator[Any]:
        side, main = torch.cuda.Stream(), torch.cuda.current_stream()
        for batch in batches:
            yield answer(batch, side, main)

    run = feed(load, Data.random([harness.SAMPLES] * FEW, chance), FeedConfig())
    run.must_be_right()
    main = {kernel.lane for kernel in run.timeline.rows(Kind.COMPUTE)}
    for copy in diagnosis.copies(run.timeline):
        fact = f"the copy of batch {copy.batch} runs {diagnosis.stretch(run.timeline, copy.start, copy.end)}"
        if copy.lane in main:
            raise run.not_yet(f"{fact} in {copy.lane.name}, and so do the kernels", diagnosis.ONE_STREAM)
        if diagnosis.waited_for(run.timeline, copy):
            raise run.not_yet(
                f"{fact}, and the host waits for it", "the stream waits, not the host: it gives the GPU work"
            )
    return Score(f"{FEW} batches, copied in the side stream; the host waited for none. 0 hazards.", run.timeline)


by_hand = Exercise(
    "lesson03.by_hand",
    "3.0 Four calls by hand",
    task="Write `to_gpu(batch, side, main)` for a batch (images, labels) in pinned memory. Four calls: copy in the "
    "stream `side`, without blocking; record an event there; let `main` wait for the event; tell the allocator that "
    "`main` reads the memory, too (`record_stream`). Return the batch.",
    target=f"{FEW} batches, all correct, copied in the side stream; the host waits for no copy; no hazard.",
    hints=(
        "`with torch.cuda.stream(side):` what is called inside goes into that stream.",
        "`side.record_event()` returns an event; `main.wait_event(event)` comes outside of the `with`.",
        "`part.record_stream(main)` for each of the two tensors on the GPU.",
    ),
    measure=_by_hand,
    arguments=("batch", "side", "main"),
)

# 3.1


def _overlap(answer: Callable[..., Any], chance: random.Random) -> Score:
    return _judge_twice(answer, Data.random([harness.SAMPLES] * BATCHES, chance), OVERLAP)


overlap = Exercise(
    "lesson03.overlap",
    "3.1 Copy under the work",
    task="`batches` gives batches in pinned memory. Hand out each one on the GPU, in order, so that the next batch is "
    "copied while the GPU works on this one. What you hand out is used in the current stream, and then dropped. Memory "
    f"is small: copy at most {AHEAD} batches ahead.",
    target=f"{BATCHES} batches within {OVERLAP[0]}x of the limit in a loop that never waits, and within {OVERLAP[1]}x "
    "in one that reads its loss in each step; no hazard, every batch correct and in order. The limit: the first copy, "
    "and then only work.",
    hints=(
        "Three conditions: pinned (you have that), non_blocking, and a stream of its own: `copy_ahead` does these two.",
        "Keep one batch back: queue the copy of the new batch, yield the one before it, then let `main` wait for the "
        "new one.",
        "The memory was taken in the side stream: before you hand out a batch, `claim(batch, main)`.",
    ),
    measure=_overlap,
)

# 3.2


def _uneven(answer: Callable[..., Any], chance: random.Random) -> Score:
    return _judge_twice(answer, Data.random(UNEVEN, chance), UNEVEN_WITHIN, *map(chance.choice, DEPTHS))


uneven = Exercise(
    "lesson03.uneven",
    "3.2 Batches of different size",
    task="Every fourth batch is four times as large. Its copy needs more than one step to hide under. Write a "
    "prefetcher that copies up to `depth` batches ahead, no more and no fewer (the check draws `depth`).",
    target=f"{len(UNEVEN)} batches within {UNEVEN_WITHIN[0]}x of the limit in a loop that never waits, and within "
    f"{UNEVEN_WITHIN[1]}x in one that reads its loss in each step; no hazard, every batch correct and in order. The "
    "limit: copies as early as you like, each one before its work.",
    hints=(
        "Before the first batch is handed out, `depth` copies are queued. Later: one more for each batch handed out.",
        "`main.wait_stream(side)` waits for all copies in the queue. You want to wait for one: `copy_ahead` gives an "
        "event for each copy, and `main.wait_event(event)` waits for it.",
        "`ahead += [copy_ahead(batch, side) for batch in islice(source, 1)]` adds one copy, if a batch is left.",
    ),
    measure=_uneven,
    arguments=("batches", "depth"),
)

# 3.3


def _refill(answer: Callable[..., Any], chance: random.Random) -> Score:
    setting = FeedConfig(buffers=BUFFERS, host=harness.FAST_HOST)
    return _judge(answer, Data.random([harness.SAMPLES] * BATCHES, chance), setting, 1.2)


refill = Exercise(
    "lesson03.refill",
    "3.3 A source that refills its buffers",
    task=f"This source has only {BUFFERS} pinned buffers. When you ask it for batch k + {BUFFERS}, it overwrites the "
    "memory of batch k. The prefetcher below is one answer to 3.1: right for other sources. Repair it for this one.",
    target=f"{BATCHES} batches within 1.2x of the limit, no hazard, every batch correct and in order.",
    hints=(
        "non_blocking means: the copy may still be running when the source writes new values into the same memory.",
        "The next buffer to be overwritten is that of the batch just used. How does the host know that it is copied?",
        "`event.synchronize()` makes the host wait for one copy, `side.synchronize()` for all. Do it before you ask "
        "for more: the GPU still has the work of a whole batch queued.",
    ),
    measure=_refill,
)

EXERCISES = (by_hand, overlap, uneven, refill)
