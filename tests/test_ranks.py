"""Ranks beside each other: stragglers that are planted, by cause, number and size, are found, and nobody else is."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from factory import US

import loaderviz as lv
from loaderviz.analysis.ranks import rank_table
from loaderviz.metrics import choose_device, describe, summarize
from loaderviz.timeline import Cause, Context, Kind, Timeline, TimelineBuilder

TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
STEPS, MOVES = 12, 100  # steps; µs that a collective moves bytes
USUAL = {"loads": 50, "works": 60, "copies": 40, "computes": 300}  # µs a step of what comes one after the other


def planted(ranks: int, more: dict[tuple[int, int], dict[str, int]], waits: bool = False) -> Timeline:
    """Ranks that load, work on the host, copy, compute and reduce in each step; `more` is by rank and step [µs].

    `waits`: the loop waits for workers, and in staging, where it else fetches, and a copy is one of the GPU.
    """
    builder, clock = TimelineBuilder(Context(origin="file")), 0
    lanes = [
        [builder.lane(f"rank {rank} main", "host", "main", device=rank)]
        + [builder.lane(f"rank {rank} stream {n}", "device", number=n, device=rank) for n in (7, 20)]
        for rank in range(ranks)
    ]
    for step in range(STEPS):
        times = [
            {name: time * US + more.get((rank, step), {}).get(name, 0) * US for name, time in USUAL.items()}
            for rank in range(ranks)
        ]
        end = clock + max(sum(each.values()) for each in times) + MOVES * US
        for (main, stream, side), each in zip(lanes, times, strict=True):
            at, looks = clock, {"batch": step}
            parts = [
                (main, Kind.WAIT, "loads", {"cause": Cause.DATA}) if waits else (main, Kind.FETCH, "loads", {}),
                (main, Kind.OPERATOR, "works", {}),
                (main, Kind.WAIT, "copies", {"cause": Cause.STAGING})
                if waits
                else (stream, Kind.COPY_H2D, "copies", {}),
                (stream, Kind.COMPUTE, "computes", {}),
            ]  # fmt: skip
            for lane, kind, name, options in parts:
                builder.span(at, at + each[name], lane, kind, name, **looks, **options)
                at += each[name]
            builder.span(at, end, side, Kind.COMMUNICATION, "ncclDevKernel_AllReduce_Sum", **looks)
            builder.span(clock, end, main, Kind.RANGE, f"batch {step}: 8 samples", **looks)
        clock = end
    return builder.build().self_check()


def who(how: str, ranks: int, step: int) -> set[int]:
    """The ranks that are late in a step."""
    return {
        "one": {1},
        "two": {1, ranks - 1},
        "in turn": {1} if step % 2 else {0},
        "seldom": {1} if step % 4 == 1 else set(),
    }[how]


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("size", [30, 200, 900])  # µs that they are late
@pytest.mark.parametrize(
    ("how", "ranks"),
    [(how, ranks) for how in ("one", "two", "in turn", "seldom") for ranks in (2, 4, 8) if (how, ranks) != ("two", 2)],
)
@pytest.mark.parametrize("cause", USUAL)
def test_planted_stragglers_are_found_with_their_cause_and_their_cost(cause, how, ranks, size, waits):
    late = [who(how, ranks, step) for step in range(STEPS)]
    timeline = planted(ranks, {(rank, n): {cause: size} for n, each in enumerate(late) for rank in each}, waits)
    culprits = sorted(set.union(*late))
    held = sum(map(bool, late))
    least = 0.06 if (how, ranks) == ("in turn", 2) else 0.03  # where all are late in turn, that may be chance
    if held * size < least * (STEPS * 550 + held * size):
        assert rank_table(timeline).late == () and "late" not in describe(timeline)
        return
    table = rank_table(timeline)
    found = table.lateness
    assert (sorted(found.late), found.cost, found.share) == (culprits, held * size * US, 1.0)
    assert (found.steps, found.units, found.in_turn) == (STEPS, STEPS, how == "in turn")
    often = {rank: sum(rank in each for each in late) for rank in culprits}
    assert {each.row.device: (each.cause, each.more, each.often) for each in table.late} == {
        rank: (cause, often[rank] * size * US, often[rank]) for rank in culprits
    }
    assert sum(row.blame for row in table.rows) == held * size * US
    assert choose_device(timeline)[0] == summarize(timeline).device == found.late[0]
    assert describe(timeline).startswith(str(found)) and str(found) in str(table)
    told = next(each for each in lv.advise(timeline) if each.kind == "late-rank")
    assert told.expected_gain.ns == found.cost and told.expected_gain.per_step == found.cost / STEPS
    assert str(found)[1:] in told.evidence and all(each in told.evidence for each in table.why)
    for device in range(ranks):  # whichever device is asked about
        assert told.evidence in [each.evidence for each in lv.advise(timeline, device=device)]


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("jitter", [0, 1, 5, 10])
def test_of_ranks_that_are_as_fast_as_each_other_none_is_late(ranks, jitter):
    draw = random.Random(10 * ranks + jitter)
    more = {
        (rank, step): {name: draw.randint(-jitter, jitter) for name in USUAL}
        for rank in range(ranks)
        for step in range(STEPS)
    }
    timeline = planted(ranks, more)
    table = rank_table(timeline)
    assert table.late == () and str(table).splitlines()[-1].startswith("no rank is late")
    assert "late" not in describe(timeline) and "late-rank" not in [each.kind for each in lv.advise(timeline)]
