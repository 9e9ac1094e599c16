"""Exercises of lesson 1, the blocking copy: time GPU work correctly, and send no more bytes than needed."""

from __future__ import annotations

import numbers
import secrets
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import record_function

from loaderviz import words
from loaderviz.recording import record
from loaderviz.timeline import Kind, Span, Timeline
from loaderviz.workshop import facts, machine
from loaderviz.workshop.exercise import Exercise
from loaderviz.workshop.measure import WINDOW, Setting, feed, window_of
from loaderviz.workshop.outcome import NotYet, Score, learners_code
from loaderviz.workshop.source import Data

EARLIER = 5  # matrix products that are still in the queue when the learner's function is called
WITHIN = 0.1
BATCHES = 16
FUNCTION = "your function"
R27 = (
    "R27: the host runs ahead. A call returns when its work is queued. Wait for the GPU before you read the clock, or "
    "let the GPU take the time with two events."
)

# 1.1


def _time_a_step(answer: Callable[..., Any]) -> Score:
    """Let the learner time two steps of random length, with work in the queue before them."""
    lines, timeline = [], None
    for _ in range(2):
        amount = 3 + secrets.randbelow(8)
        returned, calls, timeline = _run(answer, amount)
        lines.append(_judge(returned, calls, amount, timeline))
    return Score(" ".join(lines), timeline)


def _run(answer: Callable[..., Any], amount: int) -> tuple[Any, int, Timeline]:
    calls = 0
    with record(on=machine.GPU, host=machine.HOST) as recording:
        matrix = torch.ones(256, 256, device="cuda")
        matrix @ matrix
        torch.cuda.synchronize()

        def step() -> None:
            nonlocal calls
            calls += 1
            for _ in range(amount):
                matrix @ matrix

        with record_function(WINDOW):
            for _ in range(EARLIER):
                matrix @ matrix
            with record_function(FUNCTION), learners_code():
                returned = answer(step)
            torch.cuda.synchronize()
    return returned, calls, window_of(recording.timeline)


def _judge(returned: Any, calls: int, amount: int, timeline: Timeline) -> str:
    """Return a line for the score, or raise `NotYet` with what the timeline shows."""
    if not calls:
        raise NotYet("Your function did not call step().", "call it, and measure how long the GPU works", "", timeline)
    if isinstance(returned, bool) or not isinstance(returned, numbers.Real):
        raise NotYet(f"Your function returned {returned!r}. A number of milliseconds is wanted.", "", "", timeline)
    products = sorted((span for span in timeline.rows(Kind.COMPUTE) if span.name == "mm"), key=lambda span: span.start)
    steps = products[EARLIER : EARLIER + amount * calls]
    truth, got = amount * products[0].duration / 1e6, float(returned)
    if abs(got - truth) <= WITHIN * truth:
        return f"You measured {got:.3f} ms, the GPU worked {truth:.3f} ms."
    each = " each time" if calls > 1 else ""
    fact = (
        f"You returned {got:.3f}. The GPU worked on step() {facts.stretch(timeline, steps[0].start, steps[-1].end)}: "
        f"{truth:.3f} ms{each}."
    )
    more, rule = _why(got, truth, steps, timeline)
    raise NotYet(f"{fact} {more}".strip(), rule, "", timeline)


def _why(got: float, truth: float, steps: list[Span], timeline: Timeline) -> facts.Fact:
    if any(abs(got * factor - truth) <= WITHIN * truth for factor in (1e3, 1e-3, 1e-6)):
        return "The unit is wrong.", "the result is wanted in milliseconds"
    function = next(span for span in timeline.rows(Kind.RANGE) if span.name == FUNCTION)
    if got < truth and function.end < steps[-1].end:
        return f"Your function was back at {facts.at(timeline, function.end)}: before the GPU had finished.", R27
    if got > truth:
        text = f"Until {facts.at(timeline, steps[0].start)} the GPU did earlier work, and you timed that, too."
        return text, R27
    return "", R27


timing = Exercise(
    "1.1", "lesson01.timing", "How long does the GPU work?",
    task="Write `gpu_ms(step)`. It calls `step()` and returns how many milliseconds the GPU worked on it. The GPU may "
    "still be busy with other work when your function is called.",
    target="within 10 % of the true time, for two steps of random length.",
    starter='''
import time

import torch


def gpu_ms(step):
    """Return how many milliseconds the GPU works on step()."""
    begin = time.perf_counter()
    step()
    ...  # what is missing here, and above?
    return 1000 * (time.perf_counter() - begin)
''',
    answer='''
import time

import torch


def gpu_ms(step):
    """Return how many milliseconds the GPU works on step()."""
    torch.cuda.synchronize()  # earlier work must not count
    begin = time.perf_counter()
    step()
    torch.cuda.synchronize()  # the work must be done, not only queued
    return 1000 * (time.perf_counter() - begin)
''',
    hints=(
        "step() returns when its work is queued. Which call waits until the GPU has done it?",
        "torch.cuda.synchronize() waits for all work. Where else is it needed, if the queue is not empty at the start?",
        "Another way: two events, torch.cuda.Event(enable_timing=True). The GPU writes down the time itself.",
    ),
    measure=_time_a_step, arguments=("step",),
)  # fmt: skip

# 1.2


def _send_fewer_bytes(answer: Callable[..., Any]) -> Score:
    data = Data([machine.SAMPLES] * BATCHES, torch.uint8)
    run = feed(answer, data, Setting(pinned=False, scale=255))
    run.must_be_right()
    images, labels = data.batches[0]
    work = machine.work_time(machine.SAMPLES, torch.float32, 255) + machine.conversion_time(machine.SAMPLES, 2)
    limit = machine.sum_limit([machine.copy_time(images, labels, pinned=False)] * BATCHES, [work] * BATCHES)
    return Score(run.must_take(limit, 1.3, lambda timeline: _too_many_bytes(timeline, images)), run.timeline)


def _too_many_bytes(timeline: Timeline, images: torch.Tensor) -> facts.Fact:
    large = [span for span in facts.copies(timeline) if span.nbytes > 1.5 * images.nbytes]
    if large:
        span = large[min(1, len(large) - 1)]
        return (
            f"The copy of batch {span.batch} runs {facts.stretch(timeline, span.start, span.end)}: it carries "
            f"{words.size(span.nbytes)}. The images of a batch are stored in {words.size(images.nbytes)}.",
            "R22: a copy takes its bytes / the bandwidth of the link. Send what is stored, convert it on the GPU.",
        )
    return facts.why_idle(timeline)


fewer_bytes = Exercise(
    "1.2", "lesson01.fewer_bytes", "The cheapest bytes",
    task="`batches` gives images as uint8, the way MNIST is stored. The network wants float32 from 0 to 1, on the GPU. "
    "Hand out each batch like that, in order. Keep the copies blocking.",
    target="within 1.3x of a blocking loop that copies only the stored bytes.",
    starter='''
def load(batches):
    """Yield each batch on the GPU: images float32 from 0 to 1, labels as they are."""
    for images, labels in batches:
        images = images.float() / 255  # change this, and the next line
        yield images.to("cuda"), labels.to("cuda")
''',
    answer='''
def load(batches):
    """Yield each batch on the GPU: images float32 from 0 to 1, labels as they are."""
    for images, labels in batches:
        images = images.to("cuda").float() / 255
        yield images, labels.to("cuda")
''',
    hints=(
        "How many bytes has a pixel as uint8, and how many as float32? Which of them travel to the GPU?",
        "The GPU converts numbers much faster than the link carries them. What has to change its place?",
    ),
    measure=_send_fewer_bytes,
)  # fmt: skip

EXERCISES = (timing, fewer_bytes)
