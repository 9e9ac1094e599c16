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
from loaderviz.workshop.exercises import Exercise, Score, shipped
from loaderviz.workshop.harness import Data, FeedConfig, feed

FEW, EPOCHS, BATCHES = 8, 5, 16
HELD = 6  # batches whose memory may be held on the GPU at a time: fewer than there are

# 2.1


def _pin_where_it_pays(answer: Callable[..., Any], chance: random.Random) -> Score:
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


pin_once = Exercise(
    "lesson02.pin_once",
    "2.1 Pin where it pays",
    task=f"`batches` gives {FEW} batches in ordinary memory; you can go through it again and again. Hand them all out, "
    f"in order, `epochs` times. Each time they must travel to the GPU: think of data that does not fit there.",
    target="within 1.2x of a loop whose copies are all pinned and whose host pins no batch twice, with memory for "
    f"at most {HELD} batches on the GPU.",
    hints=(
        "pin_memory() is a copy, and your loop waits for it. How often is each batch pinned?",
        "A pinned tensor stays pinned as long as you keep it. Make a list of them before the first epoch.",
    ),
    measure=_pin_where_it_pays,
    arguments=("batches", "epochs"),
)

# 2.2


def _keep_it_pinned(answer: Callable[..., Any], chance: random.Random) -> Score:
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


half = Exercise(
    "lesson02.half",
    "2.2 Do not lose the pinned memory",
    task="`batches` gives float32 images in pinned memory. The network wants float16 on the GPU. Hand out each batch "
    "like that, in order.",
    target="within 1.2x of a loop that copies from the pinned memory and hides nothing.",
    hints=(
        "Look at the picture, or at `lesson02.half.show()`: what does the host do between two copies?",
        "Two steps, and their order matters: to the GPU, and to float16. Which one first?",
    ),
    measure=_keep_it_pinned,
)

EXERCISES = (pin_once, half)
