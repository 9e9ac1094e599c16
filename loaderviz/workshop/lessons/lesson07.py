"""Exercises of lesson 7, your own trace: compute the exposed copy from intervals, and find the cause in a timeline."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from loaderviz import intervals, words
from loaderviz.emulator.hardware import RECEIVING, SENDING, Host
from loaderviz.metrics import summarize
from loaderviz.timeline import COPIES, Context, Kind, Timeline, TimelineBuilder
from loaderviz.widgets.explorer import Settings, simulate
from loaderviz.workshop import diagnosis
from loaderviz.workshop.diagnosis import stretch
from loaderviz.workshop.exercises import NotYet, Score, check_of, learners_code, number_of, say

Interval = tuple[int, int]  # start, end [ns]
SEED_BITS = 32  # of what is drawn anew for each check; a seed this short can be typed

# 7.1

STEPS = 6
MADE, LENGTH = Context("a GPU of this exercise", "file"), (60_000, 240_000)  # ns of a copy, or of a step's kernels


@check_of("7.1")
def exposed_copy(answer: Callable[..., Any], chance: random.Random) -> Score:
    picture, said = None, []
    for make in (one_after_the_other, beside_kernels, two_at_once):
        seed = chance.getrandbits(SEED_BITS)
        timeline = make(random.Random(seed))
        copies, kernels = intervals_of(timeline, *COPIES), intervals_of(timeline, Kind.COMPUTE)
        for some in (copies, kernels):
            chance.shuffle(some)
        with learners_code():
            returned = answer(list(copies), list(kernels))
        wanted = summarize(timeline).exposed_copy
        if abs((got := number_of(returned, "ns-wanted", timeline)) - wanted) > 1:
            fact = _why_wrong(got, wanted, timeline)
            again = say("timeline-again", fact=fact, make=make.__name__, seed=seed)
            raise NotYet(again, say("exposed-counts"), "", timeline)
        said.append(words.duration(wanted))
        picture = timeline
    return Score(say("three-timelines", exposed=say("comma").join(said)), picture)


def intervals_of(timeline: Timeline, *kinds: Kind) -> list[Interval]:
    """Return (start, end) [ns] of the spans of these kinds."""
    mine = timeline.where(*kinds)
    return list(zip(timeline.start[mine].tolist(), timeline.end[mine].tolist(), strict=True))


def one_after_the_other(chance: random.Random) -> Timeline:
    """Return a blocking loop: nothing is hidden."""
    builder, now = TimelineBuilder(MADE), 0
    for batch in range(STEPS):
        now = _span(builder, 7, Kind.COPY_H2D, now, chance.randrange(*LENGTH), batch)
        now = _span(builder, 7, Kind.COMPUTE, now + chance.randrange(9_000), chance.randrange(*LENGTH), batch)
    return builder.build().self_check()


def beside_kernels(chance: random.Random) -> Timeline:
    """Return a prefetcher: each copy is hidden in part, under several kernels with gaps between them."""
    builder, now, copied = TimelineBuilder(MADE), 0, 0
    for batch in range(STEPS):
        copied = _span(
            builder, 13, Kind.COPY_H2D, max(copied, now) + chance.randrange(40_000), chance.randrange(*LENGTH), batch
        )
        for _ in range(3):
            now = _span(builder, 7, Kind.COMPUTE, now + chance.randrange(20_000), chance.randrange(*LENGTH) // 3, batch)
    return builder.build().self_check()


def two_at_once(chance: random.Random) -> Timeline:
    """Return kernels in two streams, and copies both ways: two kernels run at once, and so do two exposed copies."""
    builder, now = TimelineBuilder(MADE), 0
    for batch in range(STEPS):
        first = _span(builder, 7, Kind.COMPUTE, now + chance.randrange(60_000, 90_000), 150_000, batch)
        _span(builder, 15, Kind.COMPUTE, first - chance.randrange(10_000, 50_000), 80_000, batch)  # until 310 at most
        copied = _span(builder, 13, Kind.COPY_H2D, now, chance.randrange(400_000, 500_000), batch)
        _span(builder, 14, Kind.COPY_D2H, copied - chance.randrange(50_000, 150_000), chance.randrange(*LENGTH), batch)
        now += chance.randrange(800_000, 900_000)
    return builder.build().self_check()


def _span(builder: TimelineBuilder, stream: int, kind: Kind, start: int, length: int, batch: int) -> int:
    """Add a span to a stream, `length` ns long; return its end."""
    name = "kernel" if kind == Kind.COMPUTE else f"Memcpy {'HtoD' if kind == Kind.COPY_H2D else 'DtoH'}"
    lane = builder.lane(f"stream {stream}", "device", "stream", stream)
    builder.span(start, start + length, lane, kind, name, batch=batch, nbytes=-1 if kind == Kind.COMPUTE else 1000)
    return start + length


def _why_wrong(got: float, wanted: int, timeline: Timeline) -> str:
    """Say what the learner's number is, if it is one of the usual ones, and where the longest exposed stretch is."""
    copies = [intervals.union(*np.array([pair]).T) for pair in intervals_of(timeline, *COPIES)]
    kernels = [intervals.union(*np.array([pair]).T) for pair in intervals_of(timeline, Kind.COMPUTE)]
    any_copy, any_kernel = (intervals.union(*np.concatenate(some).T) for some in (copies, kernels))
    alone = [intervals.length(intervals.subtract(copy, any_kernel)) for copy in copies]
    shared = [intervals.length(intervals.intersect(any_copy, kernel)) for kernel in kernels]
    usual = {
        sum(map(intervals.length, copies)): "sum-of-copies",
        intervals.length(any_copy): "any-copy",
        intervals.length(any_copy) - wanted: "only-hidden",
        sum(alone): "copies-twice",
        intervals.length(any_copy) - sum(shared): "kernels-twice",
    }
    longest = max(intervals.subtract(any_copy, any_kernel).tolist(), key=lambda stretch: stretch[1] - stretch[0])
    guess = next((say(key) for value, key in usual.items() if value and abs(got - value) <= 1), "")
    return say("exposed-wrong", got=got, wanted=wanted, guess=guess, longest=stretch(timeline, *longest))


# 7.2

CAUSES = ("data", "pageable copy", "one stream", "nothing")
OF_EACH = 2
TRAININGS = OF_EACH * len(CAUSES)
WAITING = "waiting for data"


def training(cause: str, seed: int) -> Timeline:
    """Return a training on an emulated GPU with random costs, in which this of `CAUSES` keeps the GPU from computing.

    The ranges of the costs leave a margin: whatever the seed, `advise` finds this cause and no other.
    """
    free: dict[str, Any] = dict.fromkeys((*SENDING, *RECEIVING), 0)  # so that the pin thread keeps up
    host = replace(Host.preset("workstation"), name="a near host", **free)
    return simulate(_settings(cause, random.Random(seed)), host=host)


def _settings(cause: str, chance: random.Random) -> Settings:
    compute = chance.randrange(900_000, 1_500_000)
    # A pageable copy takes most of the time of the kernels, a pinned one a quarter, and the pin thread keeps up: with
    # more bytes it would still be page-locking when the steps begin that are judged.
    nbytes = int(compute * chance.uniform(5.5, 6.5)) // 1000 * 1000
    slow = cause == "data"
    workers = chance.randrange(2, 4) if slow else 8
    fetch = compute * workers * chance.uniform(1.6, 2.5) - nbytes * 0.15 if slow else 0  # the rest is for the bytes
    pin = cause != "pageable copy"
    side = cause in ("data", "nothing") or (not pin and chance.random() < 0.5)
    return Settings(
        batch_size=1000,
        sample_bytes=nbytes // 1000,
        compute=compute,
        workers=workers,
        depth=2 * side,
        fetch_per_sample=max(0, int(fetch) // 1000),
        pin=pin,
        non_blocking=pin or chance.random() < 0.5,
        side_stream=side,
        kernels=chance.randrange(6, 12),
        steps=chance.randrange(10, 16),
    )


@check_of("7.2")
def find_cause(answer: Callable[..., Any], chance: random.Random) -> Score:
    picture = None
    order = [cause for cause in CAUSES for _ in range(OF_EACH)]
    chance.shuffle(order)
    for number, cause in enumerate(order, 1):
        seed = chance.getrandbits(SEED_BITS)
        timeline = training(cause, seed)
        with learners_code():
            returned = answer(timeline)
        if not isinstance(returned, str) or returned not in CAUSES:
            raise NotYet(say("cause-wanted", returned=returned, causes=say("comma").join(map(repr, CAUSES))))
        if returned != cause:
            fact, rule = _what_it_is(cause, timeline)
            more = _harmless_waits(timeline) if returned == "data" else ""
            said = say("other-cause", number=number, returned=returned, cause=cause, fact=fact, more=more, seed=seed)
            raise NotYet(said, rule, "", timeline)
        picture = timeline
    return Score(say("causes-found", count=TRAININGS), picture)


def _what_it_is(cause: str, timeline: Timeline) -> diagnosis.Fact:
    """Return the fact in the timeline that gives the cause away."""
    summary = summarize(timeline)
    if cause == "nothing":
        return say("computes", share=words.share(summary.compute_share)), say("at-the-limit")
    if cause == "data":
        idle = words.duration(summary.breakdown[f"idle: host blocked, {WAITING}"])
        return say("idle-for-data", idle=idle, window=words.duration(summary.window)), say("slowest")
    if cause == "pageable copy":
        pageable = sum(span.pinned is False for span in timeline.rows(Kind.COPY_H2D))
        staging = words.duration(summary.host_blocked.get("staging"))
        return say("staged", count=pageable, time=staging), say("R7")
    return diagnosis.why_not_hidden(timeline)


def _harmless_waits(timeline: Timeline) -> str:
    """Say that the loop waits while the GPU has work."""
    summary = summarize(timeline)
    waits, idle = summary.host_blocked.get(WAITING, 0), summary.breakdown.get(f"idle: host blocked, {WAITING}", 0)
    key = "harmless-idle" if idle else "harmless-waits"
    return say(key, waits=words.duration(waits), idle=words.duration(idle)) if waits else ""
