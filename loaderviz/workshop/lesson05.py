"""Exercises of lesson 5, find the bug: three of its loaders, to be repaired without losing the overlap."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import torch

from loaderviz.workshop import facts, machine
from loaderviz.workshop.exercise import Exercise
from loaderviz.workshop.measure import Run, Setting, feed
from loaderviz.workshop.outcome import Score
from loaderviz.workshop.source import Data
from loaderviz.workshop.trial import HIDDEN, Loop

BATCHES = 32
FACTOR = 1.1
HELD = 6  # batches whose memory may be held at a time
DARKEST = 100  # the brightest pixel of a batch is at least that bright
REFERENCES = (
    "R35: what has a reference is not given away, but a GPU has little memory. An order of the streams (an event, "
    "record_stream) protects it as well, and holds no more than is in use."
)
NUMBER = "R32: a copy to the host with non_blocking=True returns at once. Wait for it, or leave the number on the GPU."


def _feed(answer: Callable[..., Any], data: Data, loop: Callable[..., Any], setting: Setting | None = None) -> Run:
    setting = setting or Setting(host=machine.FAST_HOST)
    return feed(answer, data, setting, consumer=loop)


def _score(run: Run, more: int = 0, scale: int = 1) -> str:
    """Return the score line, or raise `NotYet` if it takes too long. Each batch needs kernels for `more` ns more."""
    copies = [machine.copy_time(*batch) for batch in run.data.batches]
    works = [machine.work_time(size, scale=scale, hidden=HIDDEN) + more for size in run.data.sizes]
    return run.must_take(machine.pipeline_limit(copies, works), FACTOR, facts.why_not_hidden)


# 5.1


def _wait(answer: Callable[..., Any]) -> Score:
    run = _feed(answer, Data([machine.SAMPLES] * BATCHES), Loop)
    run.must_be_right()
    return Score(_score(run), run.timeline)


wait = Exercise(
    "5.1", "lesson05.wait", "Repair loader A",
    task="`arrived.wait()` is there, and still the batches are read before they have arrived. Let the right stream "
    "wait, at the right time.",
    target=f"{BATCHES} batches within {FACTOR}x of the limit, no hazard, every batch correct and in order. The limit: "
    "the first copy, and then only work. So a synchronize in each step does not pass.",
    starter='''
from loaderviz.workshop.lesson03 import claim


def prefetch(batches):
    """One batch ahead. An event says when a batch has arrived."""
    side, main, ready = torch.cuda.Stream(), torch.cuda.current_stream(), []
    for batch in batches:
        with torch.cuda.stream(side):
            copies = [part.to("cuda", non_blocking=True) for part in batch]
            arrived = side.record_event()
            arrived.wait()  # no work on a batch before it has arrived
        yield from ready
        ready = [claim(copies, main)]
    yield from ready
''',
    answer='''
from loaderviz.workshop.lesson03 import claim


def prefetch(batches):
    """One batch ahead. An event says when a batch has arrived."""
    side, main, ready = torch.cuda.Stream(), torch.cuda.current_stream(), []
    for batch in batches:
        with torch.cuda.stream(side):
            copies = [part.to("cuda", non_blocking=True) for part in batch]
            arrived = side.record_event()
        yield from ready  # the work on this batch is queued before `main` waits for the next one
        main.wait_event(arrived)
        ready = [claim(copies, main)]
    yield from ready
''',
    hints=(
        "An event's `wait()` without an argument makes the *current* stream wait. Which one is that, in this line?",
        "`event.wait(stream)` and `stream.wait_event(event)` name the stream that waits.",
        "`main` must wait for this batch before it is handed out, and better after the work on the batch before it is "
        "queued: put the line behind `yield from ready`.",
    ),
    measure=_wait,
)  # fmt: skip

# 5.2


class _Weighed(Loop):
    """The loop, which also notes how much device memory is held when a batch is handed out."""

    most = 0  # bytes

    def consume(self, batches: Any, mark: Callable[[int, int], None]) -> None:
        """Take all batches."""
        self.before = torch.cuda.memory_allocated()
        super().consume(batches, mark)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Use one batch."""
        self.most = max(self.most, torch.cuda.memory_allocated() - self.before)
        super().step(images, labels)


def _kept(answer: Callable[..., Any]) -> Score:
    loops: list[_Weighed] = []

    def loop(data: Data, setting: Setting, count: int) -> _Weighed:
        loops.append(_Weighed(data, setting, count))
        return loops[-1]

    data = Data([machine.SAMPLES] * BATCHES)
    run = _feed(answer, data, loop)
    run.must_be_right()
    held = loops[0].most / sum(part.nbytes for part in data.batches[0])
    if held > HELD:
        raise run.not_yet(f"memory for {held:.1f} batches was held at the same time; {HELD} are allowed", REFERENCES)
    return Score(f"{_score(run)} Memory for {held:.1f} batches.", run.timeline)


kept = Exercise(
    "5.2", "lesson05.kept", "Repair loader C",
    task="The last four batches are kept, so that no copy overwrites them. But the host can be further ahead than four "
    "batches. Protect their memory by an order, however far the host is ahead.",
    target=f"{BATCHES} batches within {FACTOR}x of the limit, no hazard, every batch correct and in order, and never "
    f"memory for more than {HELD} batches.",
    starter='''
from collections import deque

from loaderviz.workshop.lesson03 import copy_ahead


def prefetch_kept(batches):
    """One batch ahead. Memory that has a reference is not given away, so the last four batches are kept."""
    side, main, ready = torch.cuda.Stream(), torch.cuda.current_stream(), []
    kept = deque(maxlen=4)
    for batch in batches:
        copies, arrived = copy_ahead(batch, side)
        kept.append(copies)
        yield from ready
        main.wait_event(arrived)
        ready = [copies]
    yield from ready
''',
    answer='''
from loaderviz.workshop.lesson03 import copy_ahead


def prefetch_kept(batches):
    """One batch ahead. Each copy waits for the work on the batch that was dropped last: it may get its memory."""
    side, main, ready, used = torch.cuda.Stream(), torch.cuda.current_stream(), [], torch.cuda.Event()
    for batch in batches:
        side.wait_event(used)  # recorded one step ago: the work of this step runs beside the copy
        copies, arrived = copy_ahead(batch, side)
        yield from ready
        used = main.record_event()  # after the work on the batch that was just handed out
        main.wait_event(arrived)
        ready = [copies]
    yield from ready
''',
    hints=(
        "Who must wait for whom? The copy into memory that is used again, for the work that still reads it.",
        "The short way: tell the allocator that `main` uses the memory, too. `claim` of lesson 3 does it.",
        "The way without the allocator: after a batch was handed out, `used = main.record_event()`; one step later, "
        "before the next copy is queued, `side.wait_event(used)`. The work of that step runs beside the copy.",
    ),
    measure=_kept,
)  # fmt: skip

# 5.3


class _Dim(Data):
    """Batches of which each has another brightest pixel: `brightest`."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__(sizes)
        self.brightest = [DARKEST + secrets.randbelow(256 - DARKEST) for _ in sizes]
        for images, most in zip(self.images.split(self.sizes), self.brightest, strict=True):
            images.clamp_(max=most)[0, 0] = most
        self.sums = machine.sums_of(self.images, self.weights)


class _Undo(Loop):
    """The loop, which takes each batch times its brightest pixel, to recognise it."""

    data: _Dim

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Use one batch."""
        self.work.scale = self.data.brightest[len(self.seen)]
        super().step(images, labels)


def _scaled(answer: Callable[..., Any]) -> Score:
    run = _feed(answer, _Dim([machine.SAMPLES] * BATCHES), _Undo)
    run.must_have_no_hazards()
    for number, (sums, _) in enumerate(run.seen):
        if sums.isnan().any():
            fact = f"batch {number} is not a number: it, or what it was divided by, had not arrived when it was read"
            raise run.not_yet(f"{fact}, and the detector did not see who read it (numpy?)", NUMBER)
    run.must_be_right()
    kernels = machine.conversion_time(machine.SAMPLES, 2)  # the brightest pixel, and the division
    return Score(_score(run, kernels, DARKEST), run.timeline)


scaled = Exercise(
    "5.3", "lesson05.scaled", "Repair loader F",
    task="Each batch is divided by its own brightest pixel. The event is waited for, and still the host reads that "
    "number before it is there. (The labels stay as they are.)",
    target=f"{BATCHES} batches within {FACTOR}x of the limit, no hazard, every batch correct and in order. The "
    "limit: the first copy, then work, and two kernels more for each batch.",
    starter='''
from loaderviz.workshop.lesson03 import claim


def prefetch_scaled(batches):
    """One batch ahead, divided by its brightest pixel; the host asks for that number without blocking."""
    side, main, ready = torch.cuda.Stream(), torch.cuda.current_stream(), []
    for batch in batches:
        with torch.cuda.stream(side):
            images, labels = (part.to("cuda", non_blocking=True) for part in batch)
            arrived = side.record_event()
            brightest = images.amax().to("cpu", non_blocking=True)
        claim((images, labels), main)
        yield from ready
        main.wait_event(arrived)
        arrived.synchronize()  # the host needs the number now
        ready = [(images / brightest.item(), labels)]
    yield from ready
''',
    answer='''
from loaderviz.workshop.lesson03 import claim, copy_ahead


def prefetch_scaled(batches):
    """One batch ahead, divided by its brightest pixel: a number that the host need not know."""
    side, main, ready = torch.cuda.Stream(), torch.cuda.current_stream(), []
    for batch in batches:
        copies, arrived = copy_ahead(batch, side)
        yield from ready
        main.wait_event(arrived)
        images, labels = claim(copies, main)
        ready = [(images / images.amax(), labels)]  # the number stays on the GPU: nobody waits for it
    yield from ready
''',
    hints=(
        "An event stands for what was queued *before* it was recorded (R16). Which copies are these, here?",
        "One line is in the wrong place: record the event after the copy to the host.",
        "Or ask whether the host needs the number at all: the GPU can divide by a tensor of one element.",
    ),
    measure=_scaled,
)  # fmt: skip

EXERCISES = (wait, kept, scaled)
