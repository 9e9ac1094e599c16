"""Exercises of lesson 2, pinned memory: pin where it pays, and do not lose it again on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from loaderviz import words
from loaderviz.emulator import costs
from loaderviz.timeline import Kind, Timeline
from loaderviz.workshop import facts, machine
from loaderviz.workshop.exercise import Exercise
from loaderviz.workshop.measure import Setting, feed
from loaderviz.workshop.outcome import Score
from loaderviz.workshop.source import Data

FEW, EPOCHS, BATCHES = 4, 10, 16

# 2.1


def _pin_where_it_pays(answer: Callable[..., Any]) -> Score:
    data = Data([machine.SAMPLES] * FEW)
    run = feed(answer, data, Setting(pinned=False, epochs=EPOCHS), EPOCHS)
    run.must_be_right()
    batch, steps = data.batches[0], FEW * EPOCHS
    pins = FEW * sum(_pin_time(part) for part in batch)
    work = machine.work_time(machine.SAMPLES)
    limit = pins + machine.sum_limit([machine.copy_time(*batch)] * steps, [work] * steps)
    return Score(run.must_take(limit, 1.2, _pins), run.timeline)


def _pin_time(tensor: torch.Tensor) -> int:
    """Return what pinning a tensor in new memory costs: page-locking, then the host's copy (R43, R44)."""
    return costs.page_lock_time(machine.HOST, tensor.nbytes) + costs.host_time(machine.HOST, 2 * tensor.nbytes)


def _pins(timeline: Timeline) -> facts.Fact:
    pins = [span for span in timeline.rows(Kind.PIN) if span.nbytes > facts.SMALL]
    if len(pins) > 2 * FEW:
        pin = pins[FEW]
        return (
            f"The host pins {len(pins)} times. Once it does so {facts.stretch(timeline, pin.start, pin.end)} "
            f"(batch {pin.batch}); there are only {FEW} different batches.",
            facts.PINNING,
        )
    pageable = [span for span in facts.copies(timeline) if span.pinned is False]
    if len(pageable) > FEW:
        span = pageable[FEW]
        rate = span.nbytes / span.duration
        return (
            f"The copy of batch {span.batch} {facts.stretch(timeline, span.start, span.end)} comes from memory that is "
            f"not pinned: {rate:.2f} GB/s. From pinned memory it would be {machine.GPU.h2d / 1e9:.2f} GB/s.",
            "R1: a copy from ordinary memory is staged; one from pinned memory is not (R2).",
        )
    return facts.why_not_hidden(timeline)


pin_once = Exercise(
    "2.1", "lesson02.pin_once", "Pin where it pays",
    task=f"`batches` gives {FEW} batches in ordinary memory; you can go through it again and again. Hand them all out, "
    f"in order, `epochs` times. Each time they must travel to the GPU: think of data that does not fit there.",
    target="within 1.2x of a loop whose copies are all pinned and whose host pins no batch twice.",
    starter='''
def load(batches, epochs):
    """Yield all batches on the GPU, in order, `epochs` times."""
    for epoch in range(epochs):
        for images, labels in batches:
            images, labels = images.pin_memory(), labels.pin_memory()  # is this the right place?
            yield images.to("cuda"), labels.to("cuda")
''',
    answer='''
def load(batches, epochs):
    """Yield all batches on the GPU, in order, `epochs` times."""
    pinned = [(images.pin_memory(), labels.pin_memory()) for images, labels in batches]  # once
    for epoch in range(epochs):
        for images, labels in pinned:
            yield images.to("cuda"), labels.to("cuda")
''',
    hints=(
        "pin_memory() is a copy, and your loop waits for it. How often is each batch pinned?",
        "A pinned tensor stays pinned as long as you keep it. Make a list of them before the first epoch.",
    ),
    measure=_pin_where_it_pays, arguments=("batches", "epochs"),
)  # fmt: skip

# 2.2


def _keep_it_pinned(answer: Callable[..., Any]) -> Score:
    data = Data([machine.SAMPLES] * BATCHES)
    run = feed(answer, data, Setting(dtype=torch.float16))
    run.must_be_right(needed=data.images.nbytes // 2 + data.labels.nbytes)
    work = machine.work_time(machine.SAMPLES, torch.float16) + machine.conversion_time(machine.SAMPLES, 1)
    limit = machine.sum_limit([machine.copy_time(*data.batches[0])] * BATCHES, [work] * BATCHES)
    return Score(run.must_take(limit, 1.2, _lost), run.timeline)


def _lost(timeline: Timeline) -> facts.Fact:
    lost = [span for span in facts.copies(timeline) if span.pinned is False]
    if lost:
        span = lost[min(1, len(lost) - 1)]
        host = facts.host_cause(timeline, lost[0].end, span.start) if len(lost) > 1 else None
        before = f" Before it, the host is in {host.name} for {words.duration(host.duration)}." if host else ""
        return (
            f"The copy of batch {span.batch} {facts.stretch(timeline, span.start, span.end)} does not come from the "
            f"pinned memory that you were given: its source is pageable.{before}",
            "R31: what you convert on the host is a new tensor, and it is not pinned. A blocking .to() with a dtype "
            "does just that.",
        )
    return facts.why_idle(timeline)


half = Exercise(
    "2.2", "lesson02.half", "Do not lose the pinned memory",
    task="`batches` gives float32 images in pinned memory. The network wants float16 on the GPU. Hand out each batch "
    "like that, in order.",
    target="within 1.2x of a loop that copies from the pinned memory and hides nothing.",
    starter='''
import torch


def load(batches):
    """Yield each batch on the GPU: images float16, labels as they are."""
    for images, labels in batches:
        images = images.to("cuda", torch.float16)  # change this line
        yield images, labels.to("cuda")
''',
    answer='''
import torch


def load(batches):
    """Yield each batch on the GPU: images float16, labels as they are."""
    for images, labels in batches:
        images = images.to("cuda").half()  # from pinned memory; then the GPU converts
        yield images, labels.to("cuda")
''',
    hints=(
        "Look at the picture, or at `lesson02.half.show()`: what does the host do between two copies?",
        "Two steps, and their order matters: to the GPU, and to float16. Which one first?",
    ),
    measure=_keep_it_pinned,
)  # fmt: skip

EXERCISES = (pin_once, half)
