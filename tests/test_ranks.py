"""Ranks beside each other: stragglers that are planted, by cause, number and size, are found, and nobody else is."""

from __future__ import annotations

import random

import factory
import pytest
from factory import US

import loaderviz as lv
from loaderviz.analysis.ranks import drawn, rank_table
from loaderviz.export import advised
from loaderviz.intervals import length
from loaderviz.metrics import choose_device, describe, states, summarize
from loaderviz.timeline import Cause, Context, Kind, Timeline, TimelineBuilder
from loaderviz.view.lanes import arrange

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
                else (stream, Kind.COPY_D2D if step % 2 else Kind.COPY_H2D, "copies", {}),
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
    least = 0.04 if (how, ranks) == ("in turn", 2) else 0.02  # where all are late in turn, that may be chance
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
    assert describe(timeline).startswith(str(found)) and str(found)[1:] in str(table)
    told = next(each for each in lv.advise(timeline) if each.kind == "late-rank")
    assert ("in turn: see what" in told.change) is (how == "in turn")
    assert told.expected_gain.ns == found.cost and told.expected_gain.per_step == found.cost / STEPS
    assert str(found)[1:] in told.evidence and all(each in told.evidence for each in table.why)
    for device in range(ranks):  # whichever device is asked about
        assert told.evidence in [each.evidence for each in lv.advise(timeline, device=device)]


@pytest.mark.parametrize(
    ("more", "said", "why"),
    [
        (
            {(1, 5): {"computes": 9000}},
            "rank 1 is late in 1 of 12 steps: the others wait 9 ms for it in that step",
            ["Rank 1 is late in 1 of 12 steps: its kernels take 9 ms longer than in the other ranks in that step"],
        ),
        (
            {(1, 5): {"loads": 9000}, (2, 7): {"loads": 8000}},
            "ranks 1 and 2 are late in turn in 2 of 12 steps: the others wait 8.5 ms for them in each of these steps",
            [
                "Rank 1 is late in 1 of 12 steps: "
                "its own loader takes 9 ms longer than in the other ranks in that step",
                "Rank 2 is late in 1 of 12 steps: "
                "its own loader takes 8 ms longer than in the other ranks in that step",
            ],
        ),
        (  # late in each step, and very late once: that one step hides no others
            {(1, step): {"loads": 3200 if step == 3 else 200} for step in range(STEPS)},
            "rank 1 is late: the others wait 450 µs a step for it",
            ["Rank 1 is late in 12 of 12 steps: its own loader takes 450 µs a step longer than in the other ranks"],
        ),
        (
            {(3, step): {"copies": 900} for step in (2, 6, 9)},
            "rank 3 is late in 3 of 12 steps: the others wait 900 µs for it in each of these steps",
            [
                "Rank 3 is late in 3 of 12 steps: its copies take 900 µs longer than in the other ranks in each of "
                "these steps"
            ],
        ),
        ({(rank, 5): {"loads": 9000} for rank in range(4)}, "no rank is late", []),
    ],
    ids=["once", "two once each", "one step far later", "three steps", "all at once"],
)
def test_a_rank_that_is_late_in_few_steps_is_not_told_as_if_it_were_in_each(more, said, why):
    table = rank_table(planted(4, more))
    assert (str(table.lateness), table.why) == (said, why)


@pytest.mark.parametrize(("loads", "late"), [(10, False), (13, True), (20, True)])
def test_advice_tells_of_a_rank_whenever_the_table_does(loads, late):
    """Also where the others wait for less than 3 % of the time, from which on other findings are told."""
    timeline = planted(4, {(1, step): {"loads": loads} for step in range(STEPS)})
    assert bool(rank_table(timeline).late) is late is ("late-rank" in [each.kind for each in lv.advise(timeline)])


@pytest.mark.parametrize("many", [5, 6])
def test_five_may_be_late_in_turn_and_of_more_nobody_is_to_blame(many):
    steps = 2 * many if many == 6 else 10
    timeline = planted(12, {(step % many, step): {"works": 600} for step in range(steps)})
    table = rank_table(timeline)
    told = next(each for each in lv.advise(timeline) if each.kind == "late-rank")
    assert told.expected_gain.ns == table.lateness.cost == steps * 600 * US
    assert sorted(table.lateness.late) == (list(range(5)) if many == 5 else [])
    said = "ranks 0, 1, 2, 3 and 4 are late in turn" if many == 5 else "no rank is late more than others"
    assert str(table.lateness).startswith(said) and told.evidence[1:].startswith(said[1:])
    assert "in turn: see what" in told.change and describe(timeline).startswith(said) == (many == 5)


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
    assert table.late == () and "\nNo rank is late" in str(table)
    assert "late" not in describe(timeline) and "late-rank" not in [each.kind for each in lv.advise(timeline)]


def test_a_page_of_many_ranks_has_the_numbers_of_all_of_them_although_it_draws_few():
    """Nobody who is drawn waits for rank 5 alone, which comes between the late one and the others."""
    more = {(rank, step): {"computes": {3: 400, 5: 300}.get(rank, rank)} for rank in range(12) for step in range(STEPS)}
    timeline = planted(12, more)
    table, shown = rank_table(timeline), drawn(timeline)
    assert sorted(row.device for row in table.telling) == [0, 3, 5, 7] and len(shown.lanes) == 12
    for device in (0, 3, 5, 7):
        whole, part = states(timeline, device), states(shown, device)
        assert {name: each.tolist() for name, each in whole.items()} == {
            name: each.tolist() for name, each in part.items()
        }
        row, waits = table.rows[device], whole["waiting for ranks"]
        assert (length(waits), length(whole["communication"])) == (row.waits, STEPS * MOVES * US)
        assert length(whole["compute"]) == row.computes == STEPS * (300 + more[device, 0]["computes"]) * US
    summary, advice = summarize(timeline), lv.advise(timeline)
    head, _ = advised(timeline, advice).packed()
    (part,) = (each for each in head["parts"] if not each["ghost"])
    assert head["title"] == describe(timeline) == describe(shown)
    assert [each["ns"] for each in part["where"]] == [round(time / STEPS) for time in summary.breakdown.values()]
    keys = {each["name"]: each["key"] for each in part["where"]}
    assert keys["communication exposed"] == "state:communication"
    assert rank_table(shown).rows == table.rows and (summarize(shown), summary.device) == (summary, 3)


def test_a_rank_whose_recording_begins_later_was_not_idle_before():
    spans = []
    for device, begin in ((0, 0), (1, 450)):
        for step in range(6):
            at = max(begin, 100 * step)
            spans += [(f"main@{device}", at, 100 * step + 100, Kind.RANGE, {"name": f"ProfilerStep#{step + 3}"}),
                      (f"stream 7@{device}", at, 100 * step + 90, Kind.COMPUTE)] * (at < 100 * step + 90)  # fmt: skip
    timeline = factory.made(*spans, origin="file")
    assert [(each.window, each.idle) for each in (summarize(timeline, device=n) for n in (0, 1))] == [
        (600, 60),
        (150, 20),
    ]


def test_a_real_straggler_is_named_by_what_it_costs_although_it_is_seldom_last():
    timeline = factory.real("ranks8_nanogpt_2025")
    table = rank_table(timeline)
    (culprit,) = table.late
    assert (culprit.row.rank, culprit.cause, table.shared, round(table.lateness.share, 2)) == ("1", "works", 84, 0.85)
    assert round(table.lateness.cost / 1e6, 1) == 25.9  # of 27.4, by hand, they compute for 1.5
    assert round(culprit.row.waits / 1e6) == 6
    assert (
        describe(timeline).startswith("rank 1 is late: the others wait ") and lv.advise(timeline)[0].kind == "late-rank"
    )


@pytest.mark.parametrize("late", [0, 1, 2, None])
def test_a_late_rank_stands_first_and_its_cause_is_unfolded(late):
    timeline = planted(3, {(late, step): {"loads": 600} for step in range(STEPS) if late is not None})
    order = list(dict.fromkeys(row.device for row in arrange(timeline)[0]))
    assert order == ([0, 1, 2] if late is None else [late, *sorted({0, 1, 2} - {late})])
    head, _ = advised(timeline, lv.advise(timeline)).packed()
    findings = [each for part in head["parts"] for each in part.get("findings", ())]
    assert [each["open"] for each in findings] == [each["title"].startswith("late-rank") for each in findings]
    assert any(each["open"] and "its own loader takes" in each["text"] for each in findings) is (late is not None)
