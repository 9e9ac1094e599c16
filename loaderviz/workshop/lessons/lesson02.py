"""Exercises of lesson 2, pinned memory: pin where it pays, and do not lose it again on the way."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import TensorDataset

from loaderviz import words
from loaderviz.timeline import Kind, Timeline
from loaderviz.workshop import diagnosis, harness
from loaderviz.workshop.diagnosis import stretch
from loaderviz.workshop.exercises import Score, check_of, say, shipped
from loaderviz.workshop.harness import Data, FeedConfig, fed_twice, feed

FEW, EPOCHS, BATCHES = 8, 5, 16
HELD = 6  # batches whose memory may be held on the GPU at a time: fewer than there are

# 2.a


@check_of("2.a")
def pin_one(answer: Callable[..., Any], chance: random.Random) -> Score:
    """Let the learner copy the images of each batch; in a loop that never waits, and in one that reads its loss."""

    def load(batches: Any) -> Iterator[Any]:
        for images, labels in batches:
            yield answer(images), labels.pin_memory().to("cuda")

    data = Data.random([harness.SAMPLES] * FEW, chance)
    for run in fed_twice(load, data, FeedConfig(pinned=False)):
        copies = list(run.timeline.rows(Kind.COPY_H2D))  # labels are pinned; a part of the images may be small
        run.must_be_pinned(copies, "R1")
    took = words.duration(max(copy.duration for copy in copies))
    return Score(say("not-staged", count=len(copies), took=took), run.timeline)


# 2.1


@check_of("2.1")
def pin_once(answer: Callable[..., Any], chance: random.Random) -> Score:
    data = Data.random([harness.SAMPLES] * FEW, chance, below=2**24)  # nothing smaller than float32 holds these
    dark = chance.randrange(2**22, 2**23)
    run = feed(answer, data, FeedConfig(pinned=False, epochs=EPOCHS, changes=dark, travels=True), EPOCHS)
    run.must_be_right()
    run.must_hold(HELD)
    return run.must_reach(1.2 * feed(shipped("2.1"), data, run.config, EPOCHS).took, _pins)


def _pins(timeline: Timeline) -> diagnosis.Fact:
    pins = [span for span in timeline.rows(Kind.PIN) if span.nbytes > diagnosis.SMALL]
    if len(pins) > 2 * FEW:
        pin = pins[FEW]
        once = stretch(timeline, pin.start, pin.end)
        return say("pins-often", count=len(pins), once=once, batch=pin.batch, few=FEW), say("R43")
    pageable = [span for span in diagnosis.copies(timeline) if span.pinned is False]
    if len(pageable) > FEW:
        span = pageable[FEW]
        ran, rate = stretch(timeline, span.start, span.end), span.nbytes / span.duration
        return say("not-pinned", batch=span.batch, ran=ran, rate=rate, pinned=harness.GPU.h2d / 1e9), say("R1")
    return diagnosis.why_not_hidden(timeline)


# 2.b


@check_of("2.b")
def let_pin(answer: Callable[..., Any], chance: random.Random) -> Score:
    """Let the learner make a DataLoader; in a loop that never waits, and in one that reads its loss."""
    data = Data.random([harness.SAMPLES] * FEW, chance)

    def load(batches: Any) -> Iterator[Any]:
        for images, labels in harness.given(answer(TensorDataset(data.images, data.labels))):
            yield images.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)

    for run in fed_twice(load, data, FeedConfig()):
        large = diagnosis.copies(run.timeline)
        run.must_be_pinned(large, "R1", "loader-pageable")
        if not any(pin.lane.role == "pin" for pin in run.timeline.rows(Kind.PIN)):
            raise run.not_yet(say("pins-itself"), say("R43"))
    return Score(say("loader-pins", count=len(large)), run.timeline)


# 2.2


@check_of("2.2")
def half(answer: Callable[..., Any], chance: random.Random) -> Score:
    data = Data.random([harness.SAMPLES] * BATCHES, chance)
    run = feed(answer, data, FeedConfig(dtype=torch.float16))
    run.must_be_right(needed=data.images.nbytes // 2 + data.labels.nbytes)
    return run.must_reach(1.2 * feed(shipped("2.2"), data, run.config).took, _lost)


def _lost(timeline: Timeline) -> diagnosis.Fact:
    lost = [span for span in diagnosis.copies(timeline) if span.pinned is False]
    if lost:
        span = lost[min(1, len(lost) - 1)]
        host = diagnosis.host_cause(timeline, lost[0].end, span.start) if len(lost) > 1 else None
        before = say("host-before", call=host.name, time=words.duration(host.duration)) if host else ""
        ran = stretch(timeline, span.start, span.end)
        return say("pinning-lost", batch=span.batch, ran=ran, before=before), say("R31")
    return diagnosis.why_idle(timeline)
