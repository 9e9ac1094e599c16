"""Lesson 3, prefetch: two building blocks, and three exercises (overlap, uneven batches, a source that refills).

copies, arrived = copy_ahead(batch, side)   # queued on the side stream; the host goes on
main.wait_event(arrived)                    # what comes now in `main` runs after the copy
x, y = claim(copies, main)                  # and their memory is not given away before `main` is done
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from loaderviz.loaders import marks
from loaderviz.workshop import facts, machine
from loaderviz.workshop.exercise import Exercise
from loaderviz.workshop.measure import Setting, feed
from loaderviz.workshop.outcome import Score
from loaderviz.workshop.source import Data

BATCHES = 32
UNEVEN = (64, 64, 64, 256) * 5  # every fourth batch is four times as large
BUFFERS = 2


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


def _limit(data: Data) -> int:
    copies = [machine.copy_time(*batch) for batch in data.batches]
    return machine.pipeline_limit(copies, [machine.work_time(size) for size in data.sizes])


def _judge(answer: Callable[..., Any], data: Data, setting: Setting, factor: float, *more: Any) -> Score:
    run = feed(answer, data, setting, *more)
    run.must_not_be_overwritten()
    run.must_be_right()
    return Score(run.must_take(_limit(data), factor, facts.why_not_hidden), run.timeline)


# One batch ahead: the answer of 3.1, and what 3.3 begins with.
ONE_AHEAD = '''
from loaderviz.workshop.lesson03 import claim, copy_ahead


def prefetch(batches):
    """Yield each batch on the GPU; copy the next one while the GPU works on this one."""
    side, main, coming = torch.cuda.Stream(), torch.cuda.current_stream(), None
    for batch in batches:
        copies, arrived = copy_ahead(batch, side)
        if coming is not None:
            yield coming  # the copy of the batch after it is queued already
        main.wait_event(arrived)  # what `main` does from here on, it does after this copy
        coming = claim(copies, main)
    yield coming
'''

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
from loaderviz.workshop.lesson03 import claim, copy_ahead


def prefetch(batches):
    """Yield each batch on the GPU; copy the next one while the GPU works on this one."""
    side, main, coming = torch.cuda.Stream(), torch.cuda.current_stream(), None
    for batch in batches:
        ...  # fill this in; you may change every line
        yield batch
''',
    answer=ONE_AHEAD,
    hints=(
        "Three conditions: pinned (you have that), non_blocking, and a stream of its own: `copy_ahead` does these two.",
        "Keep one batch back: queue the copy of the new batch, yield the one before it, then let `main` wait for the "
        "new one.",
        "The memory was taken in the side stream: before you hand out a batch, `claim(batch, main)`.",
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
from itertools import islice

from loaderviz.workshop.lesson03 import claim, copy_ahead


def prefetch_deep(batches, depth):
    """Yield each batch on the GPU; up to `depth` later ones are on their way."""
    side, main, source = torch.cuda.Stream(), torch.cuda.current_stream(), iter(batches)
    ahead = [copy_ahead(batch, side) for batch in islice(source, depth)]
    while ahead:
        copies, arrived = ahead.pop(0)
        ...  # wait for the right copy, queue one more, hand out the batch
''',
    answer='''
from itertools import islice

from loaderviz.workshop.lesson03 import claim, copy_ahead


def prefetch_deep(batches, depth):
    """Yield each batch on the GPU; up to `depth` later ones are on their way."""
    side, main, source = torch.cuda.Stream(), torch.cuda.current_stream(), iter(batches)
    ahead = [copy_ahead(batch, side) for batch in islice(source, depth)]
    while ahead:
        copies, arrived = ahead.pop(0)
        main.wait_event(arrived)  # this copy only, not those behind it
        ahead += [copy_ahead(batch, side) for batch in islice(source, 1)]  # one more, if there is one
        yield claim(copies, main)
''',
    hints=(
        "Before the first batch is handed out, `depth` copies are queued. Later: one more for each batch handed out.",
        "`main.wait_stream(side)` waits for all copies in the queue. You want to wait for one: `copy_ahead` gives an "
        "event for each copy, and `main.wait_event(event)` waits for it.",
        "`ahead += [copy_ahead(batch, side) for batch in islice(source, 1)]` adds one copy, if a batch is left.",
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
    "memory of batch k. The prefetcher below is one answer to 3.1: right for other sources. Repair it for this one.",
    target=f"{BATCHES} batches within 1.2x of the limit, no hazard, every batch correct and in order.",
    starter=ONE_AHEAD.replace("prefetch", "prefetch_refilled"),
    answer='''
from loaderviz.workshop.lesson03 import claim, copy_ahead


def prefetch_refilled(batches):
    """Yield each batch on the GPU; the source overwrites batch k when asked for batch k + 2."""
    side, main, coming, done = torch.cuda.Stream(), torch.cuda.current_stream(), None, None
    for batch in batches:
        copies, arrived = copy_ahead(batch, side)
        if coming is not None:
            yield coming
            done.synchronize()  # the copy of the batch just used: the source overwrites that memory next
        main.wait_event(arrived)
        coming, done = claim(copies, main), arrived
    yield coming
''',
    hints=(
        "non_blocking means: the copy may still be running when the source writes new values into the same memory.",
        "The next buffer to be overwritten is that of the batch just used. How does the host know that it is copied?",
        "`event.synchronize()` makes the host wait for one copy, `side.synchronize()` for all. Do it before you ask "
        "for more: the GPU still has the work of a whole batch queued.",
    ),
    measure=_refill,
)  # fmt: skip

EXERCISES = (overlap, uneven, refill)
