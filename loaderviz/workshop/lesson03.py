"""Exercises of lesson 3, prefetch: overlap without hazards, batches of different size, a source that refills."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loaderviz.timeline import Timeline
from loaderviz.workshop import facts, machine
from loaderviz.workshop.exercise import Exercise
from loaderviz.workshop.measure import Setting, feed
from loaderviz.workshop.outcome import Score
from loaderviz.workshop.source import Data

BATCHES = 32
UNEVEN = (64, 64, 64, 256) * 5  # every fourth batch is four times as large
BUFFERS = 2


def _limit(data: Data) -> int:
    copies = [machine.copy_time(*batch) for batch in data.batches]
    return machine.pipeline_limit(copies, [machine.work_time(size) for size in data.sizes])


def _judge(
    answer: Callable[..., Any], data: Data, setting: Setting, factor: float, *more: Any,
    explain: Callable[[Timeline], facts.Fact] = facts.why_not_hidden,
) -> Score:  # fmt: skip
    run = feed(answer, data, setting, *more)
    run.must_not_be_overwritten()
    run.must_be_right()
    return Score(run.must_take(_limit(data), factor, explain), run.timeline)


# 3.1


def _overlap(answer: Callable[..., Any]) -> Score:
    return _judge(answer, Data([machine.SAMPLES] * BATCHES), Setting(), 1.1)


overlap = Exercise(
    "3.1", "lesson03.overlap", "Copy under the work",
    task="`batches` gives batches in pinned memory. Hand out each one on the GPU, in order, so that the next batch is "
    "copied while the GPU works on this one. What you hand out is used in the current stream, and then dropped.",
    target=f"{BATCHES} batches within 1.1x of the limit, no hazard, every batch correct and in order. The limit: the "
    "first copy, and then only work.",
    starter='''
import torch


def prefetch(batches):
    """Yield each batch on the GPU; copy the next one while the GPU works on this one."""
    side, main, coming = torch.cuda.Stream(), torch.cuda.current_stream(), None
    for images, labels in batches:
        ...  # fill this in; you may change every line
        yield images, labels
''',
    answer='''
import torch


def prefetch(batches):
    """Yield each batch on the GPU; copy the next one while the GPU works on this one."""
    side, main, coming = torch.cuda.Stream(), torch.cuda.current_stream(), None
    for batch in batches:
        with torch.cuda.stream(side):
            copies = [part.to("cuda", non_blocking=True) for part in batch]
            arrived = side.record_event()
        if coming is not None:
            yield coming  # the copy of the batch after it is queued already
        main.wait_event(arrived)  # from here on, `main` computes on the new batch
        [part.record_stream(main) for part in copies]  # its memory is taken until `main` is done with it
        coming = copies
    yield coming
''',
    hints=(
        "Three conditions: pinned (you have that), non_blocking=True, and a stream of its own for the copies.",
        "Keep one batch back: queue the copy of the new batch, yield the one before it, then let `main` wait for the "
        "new one.",
        "The memory was taken in the side stream. Before you hand out a tensor: `tensor.record_stream(main)`.",
    ),
    measure=_overlap,
)  # fmt: skip

# 3.2


def _uneven(answer: Callable[..., Any]) -> Score:
    return _judge(answer, Data(UNEVEN), Setting(), 1.05, 4)


uneven = Exercise(
    "3.2", "lesson03.uneven", "Batches of different size",
    task="Every fourth batch is four times as large. Its copy needs more than one step to hide under. Write a "
    "prefetcher that copies up to `depth` batches ahead (the check asks for 4).",
    target=f"{len(UNEVEN)} batches within 1.05x of the limit, no hazard, every batch correct and in order. The limit: "
    "copies as early as you like, each one before its work.",
    starter='''
from collections import deque

import torch


def prefetch(batches, depth):
    """Yield each batch on the GPU; up to `depth` later ones are on their way."""
    side, main, source, ahead = torch.cuda.Stream(), torch.cuda.current_stream(), iter(batches), deque()

    def copy_one():
        ...  # if there is one more batch: queue its copy on `side`, append it to `ahead`

    ...  # keep `ahead` filled, wait for the right copy, hand out its batch
''',
    answer='''
from collections import deque

import torch


def prefetch(batches, depth):
    """Yield each batch on the GPU; up to `depth` later ones are on their way."""
    side, main, source, ahead = torch.cuda.Stream(), torch.cuda.current_stream(), iter(batches), deque()

    def copy_one():
        batch = next(source, None)
        if batch is not None:
            with torch.cuda.stream(side):
                copies = [part.to("cuda", non_blocking=True) for part in batch]
                ahead.append((copies, side.record_event()))  # one event for each batch

    for _ in range(depth):
        copy_one()
    while ahead:
        batch, arrived = ahead.popleft()
        main.wait_event(arrived)  # this copy only, not those behind it
        [part.record_stream(main) for part in batch]
        copy_one()
        yield batch
''',
    hints=(
        "Before the first batch is handed out, queue `depth` copies. Later: one more for each batch handed out.",
        "`main.wait_stream(side)` waits for all copies in the queue. You want to wait for one: `side.record_event()` "
        "gives an event, `main.wait_event(event)` waits for it.",
        "Keep pairs (batch, event) in a deque: append at one end, popleft at the other.",
    ),
    measure=_uneven, arguments=("batches", "depth"),
)  # fmt: skip

# 3.3


def _refill(answer: Callable[..., Any]) -> Score:
    setting = Setting(buffers=BUFFERS, host=machine.FAST_HOST)
    return _judge(answer, Data([machine.SAMPLES] * BATCHES), setting, 1.2)


refill = Exercise(
    "3.3", "lesson03.refill", "A source that refills its buffers",
    task=f"This source has only {BUFFERS} pinned buffers. When you ask it for batch k + {BUFFERS}, it overwrites the "
    "memory of batch k. The prefetcher below is right for other sources. Repair it for this one.",
    target=f"{BATCHES} batches within 1.2x of the limit, no hazard, every batch correct and in order.",
    starter='''
import torch


def prefetch(batches):
    """Yield each batch on the GPU; the source overwrites batch k when asked for batch k + 2."""
    side, main, coming = torch.cuda.Stream(), torch.cuda.current_stream(), None
    for batch in batches:
        with torch.cuda.stream(side):
            copies = [part.to("cuda", non_blocking=True) for part in batch]
            arrived = side.record_event()
        if coming is not None:
            yield coming  # when is it safe to ask the source for the next batch?
        main.wait_event(arrived)
        [part.record_stream(main) for part in copies]
        coming = copies
    yield coming
''',
    answer='''
import torch


def prefetch(batches):
    """Yield each batch on the GPU; the source overwrites batch k when asked for batch k + 2."""
    side, main, coming, before = torch.cuda.Stream(), torch.cuda.current_stream(), None, None
    for batch in batches:
        with torch.cuda.stream(side):
            copies = [part.to("cuda", non_blocking=True) for part in batch]
            arrived = side.record_event()
        if coming is not None:
            yield coming
            before.synchronize()  # the copy of the batch just used: the source overwrites that memory next
        main.wait_event(arrived)
        [part.record_stream(main) for part in copies]
        coming, before = copies, arrived
    yield coming
''',
    hints=(
        "non_blocking means: the copy may still be running when the source writes new values into the same memory.",
        "The next buffer to be overwritten is that of the batch just used. Which event says that its copy is over?",
        "`event.synchronize()` makes the host wait for an event. The GPU still has the work of a whole batch queued.",
    ),
    measure=_refill,
)  # fmt: skip

EXERCISES = (overlap, uneven, refill)
