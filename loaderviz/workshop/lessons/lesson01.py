"""Exercises of lesson 1, the blocking copy: wait for GPU work, time it, and send no more bytes than needed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.profiler import record_function

from loaderviz import words
from loaderviz.recording import record
from loaderviz.timeline import Kind, Span, Timeline, gathered
from loaderviz.workshop import diagnosis, harness
from loaderviz.workshop.diagnosis import at, stretch
from loaderviz.workshop.exercises import NotYet, Score, check_of, learners_code, number_of, say, shipped
from loaderviz.workshop.harness import WINDOW, Data, FeedConfig, fed_twice, feed, measured_part

EARLIER = 5  # matrix products that are still in the queue when the learner's function is called
WITHIN = 0.1
LATE = 100_000  # ns after the last kernel, in which a function that waited for it is back
BATCHES, FEW = 16, 8
FUNCTION = "your function"

# 1.a


@check_of("1.a")
def wait(answer: Callable[..., Any], chance: random.Random) -> Score:
    """Let the learner wait for two steps of random length, with work in the queue before them."""
    for _ in range(2):
        amount = chance.randrange(3, 11)
        _, calls, timeline = _run(answer, amount)
        if calls != 1:
            raise NotYet(say("call-once", calls=calls) if calls else say("not-called"), "", "", timeline)
        last = max(span.end for span in timeline.rows(Kind.COMPUTE))
        back = next(span.end for span in timeline.rows(Kind.RANGE) if span.name == FUNCTION)
        times = {"back": at(timeline, back), "done": at(timeline, last)}
        if back < last:
            raise NotYet(say("returned-early", **times), say("R27"), "", timeline)
        if back > last + LATE:
            raise NotYet(say("returned-late", **times), say("R23"), "", timeline)
    return Score(say("waited", **times), timeline)


# 1.1


@check_of("1.1")
def timing(answer: Callable[..., Any], chance: random.Random) -> Score:
    """Let the learner time two steps of random length, with work in the queue before them."""
    lines, timeline = [], None
    for _ in range(2):
        amount = chance.randrange(3, 11)
        returned, calls, timeline = _run(answer, amount)
        lines.append(_judge(returned, calls, amount, timeline))
    return Score(say("space").join(lines), timeline)


def _run(answer: Callable[..., Any], amount: int) -> tuple[Any, int, Timeline]:
    calls = 0
    with record(on=harness.GPU, host=harness.HOST) as recording:
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
    return returned, calls, measured_part(recording.timeline)


def _judge(returned: Any, calls: int, amount: int, timeline: Timeline) -> str:
    """Return a line for the score, or raise `NotYet` with what the timeline shows."""
    if not calls:
        raise NotYet(say("not-called"), say("call-it"), "", timeline)
    got = number_of(returned, "milliseconds-wanted", timeline)
    products = sorted((span for span in timeline.rows(Kind.COMPUTE) if span.name == "mm"), key=lambda span: span.start)
    steps = products[EARLIER : EARLIER + amount * calls]
    truth = amount * products[0].duration / 1e6
    if abs(got - truth) <= WITHIN * truth:
        return say("measured", got=got, truth=truth)
    each, worked = say("each-time") if calls > 1 else "", stretch(timeline, steps[0].start, steps[-1].end)
    more, rule = _why(got, truth, calls, steps, timeline)
    fact = say("measured-wrong", got=got, worked=worked, truth=truth, each=each)
    raise NotYet(say("space").join(filter(None, (fact, more))), rule, "", timeline)


def _why(got: float, truth: float, calls: int, steps: list[Span], timeline: Timeline) -> diagnosis.Fact:
    """Say what the learner's time is, and the rule; no cause where it is the time of nothing that is known."""

    def is_about(time: float) -> bool:
        return abs(got - time) <= WITHIN * time

    if any(is_about(truth / factor) for factor in (1e3, 1e-3, 1e-6)):
        return say("wrong-unit"), say("in-milliseconds")
    function = next(span for span in timeline.rows(Kind.RANGE) if span.name == FUNCTION)
    if got < truth and function.end < steps[-1].end:
        return say("back-early", time=at(timeline, function.end)), say("R27")
    if calls > 1 and is_about(calls * truth):
        return say("all-calls", calls=calls), say("one-call")
    if is_about((steps[-1].end - function.start) / 1e6) and function.start < steps[0].start:
        return say("earlier-work", time=at(timeline, steps[0].start)), say("R27")
    return (say("counted-twice"), say("each-kernel-once")) if is_about(2 * truth) else ("", say("R27"))


# 1.b


@check_of("1.b")
def one_byte(answer: Callable[..., Any], chance: random.Random) -> Score:
    """Let the learner copy the images of each batch; in a loop that never waits, and in one that reads its loss."""

    def load(batches: Any) -> Iterator[Any]:
        for images, labels in batches:
            yield answer(images), labels.to("cuda")

    data = Data.random([harness.SAMPLES] * FEW, chance, torch.uint8)
    for run in fed_twice(load, data, FeedConfig(pinned=False)):
        if _too_large(run.timeline, data.batches[0][0]):
            raise run.not_yet(*_too_many_bytes(run.timeline, data.batches[0][0]))
    return Score(say("one-byte", count=FEW, carried=words.size(data.batches[0][0].nbytes)), run.timeline)


# 1.2


@check_of("1.2")
def fewer_bytes(answer: Callable[..., Any], chance: random.Random) -> Score:
    data = Data.random([harness.SAMPLES] * BATCHES, chance, torch.uint8)
    run = feed(answer, data, FeedConfig(pinned=False, scale=255))
    run.must_be_right()
    blocking = feed(shipped("1.2"), data, run.config).took
    return run.must_reach(1.3 * blocking, lambda timeline: _too_many_bytes(timeline, data.batches[0][0]))


def _too_large(timeline: Timeline, images: torch.Tensor) -> list[list[Span]]:
    """Return the copies of each batch that carry more than the stored images, in however many parts."""
    # the labels take 8 bytes each, and less than one image
    copies = gathered((span.batch, span) for span in timeline.rows(Kind.COPY_H2D) if span.nbytes > 8 * len(images))
    return [spans for spans in copies.values() if sum(span.nbytes for span in spans) > 1.5 * images.nbytes]


def _too_many_bytes(timeline: Timeline, images: torch.Tensor) -> diagnosis.Fact:
    if large := _too_large(timeline, images):
        spans = large[min(1, len(large) - 1)]
        ran, carried = stretch(timeline, spans[0].start, spans[-1].end), sum(span.nbytes for span in spans)
        sizes = {"carried": words.size(carried), "stored": words.size(images.nbytes)}
        key = "too-many-bytes" if len(spans) == 1 else "too-many-copies"
        return say(key, count=len(spans), ran=ran, **sizes), say("R22")
    return diagnosis.why_idle(timeline)
