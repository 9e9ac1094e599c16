"""Exercises of lesson 2, pinned memory: pin where it pays, and do not lose it again on the way."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from loaderviz import words
from loaderviz.timeline import Kind, Timeline
from loaderviz.workshop import diagnosis, harness
from loaderviz.workshop.diagnosis import stretch
from loaderviz.workshop.exercises import Score, check_of, shipped
from loaderviz.workshop.harness import Data, FeedConfig, feed

FEW, EPOCHS, BATCHES = 8, 5, 16
HELD = 6  # batches whose memory may be held on the GPU at a time: fewer than there are

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
        return (
            f"The host pins {len(pins)} times. Once it does so {stretch(timeline, pin.start, pin.end)} "
            f"(batch {pin.batch}); there are only {FEW} different batches.",
            diagnosis.PINNING,
        )
    pageable = [span for span in diagnosis.copies(timeline) if span.pinned is False]
    if len(pageable) > FEW:
        span = pageable[FEW]
        rate = span.nbytes / span.duration
        return (
            f"The copy of batch {span.batch} {stretch(timeline, span.start, span.end)} comes from memory that is "
            f"not pinned: {rate:.2f} GB/s. From pinned memory it would be {harness.GPU.h2d / 1e9:.2f} GB/s.",
            "R1: a copy from ordinary memory is staged; one from pinned memory is not (R2).",
        )
    return diagnosis.why_not_hidden(timeline)


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
        before = f" Before it, the host is in {host.name} for {words.duration(host.duration)}." if host else ""
        return (
            f"The copy of batch {span.batch} {stretch(timeline, span.start, span.end)} does not come from the "
            f"pinned memory that you were given: its source is pageable.{before}",
            "R31: what you convert on the host is a new tensor, and it is not pinned. A blocking .to() with a dtype "
            "does just that.",
        )
    return diagnosis.why_idle(timeline)
