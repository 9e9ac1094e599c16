"""Ranks whose collectives run beside kernels, in groups, by clocks that differ: who is late, why, and what it costs.

The oracle is the schedule that makes the files: how much longer it takes because one of its ranks is late.
"""

import random

import numpy as np
import pytest
from trace_files import BASE, call, note, notes, op, read, trace, work, write

import loaderviz as lv
from loaderviz.analysis.ranks import rank_table
from loaderviz.traces import clocks

STEPS, LAYER, MOVES = 8, 100, 40  # steps; µs of a layer's kernels, and of a collective
USUAL = {"loads": 80, "works": 60}
ALL = (("0", lambda rank: 0),)  # a process group's name in a rank, and of which part of it a rank is
PAIRS = (("pair", lambda rank: rank // 2), ("half", lambda rank: rank % 2))


def schedule(folder, more=None, layers=4, ranks=4, groups=ALL, clock=lambda rank: 0, left_out=()):
    """Write files of ranks that train; return how long they took [µs].

    In each step a rank loads, works on its host, and computes layer after layer; each has a collective, in a stream of
    its own and in one of `groups` in turn. All come together at the end. `more` is by rank, and of what [µs].
    """
    folder.mkdir(exist_ok=True)
    draw, events, begin = random.Random(7), {rank: [] for rank in range(ranks)}, [BASE] * ranks
    number = 0
    for step in range(STEPS):
        ready, side, extra = [], [0] * ranks, more or {}
        for rank, mine in events.items():
            times = {what: time + extra.get(rank, {}).get(what, 0) + draw.randrange(3) for what, time in USUAL.items()}
            at = begin[rank]
            mine.append(op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, times["loads"]))
            ready.append(at + sum(times.values()))
        for layer in range(layers):
            name, part_of = groups[layer % len(groups)]
            number += 10
            for rank, mine in events.items():
                length = LAYER + extra.get(rank, {}).get("computes", 0) // layers
                mine += [call("cudaLaunchKernel", ready[rank] - 5, 3, number + 1)]
                mine += [work("gemm", ready[rank], length, number + 1, device=rank)]
                ready[rank] += length + 1
            came = [max(ready[rank], side[rank]) + draw.randrange(3) for rank in range(ranks)]
            for rank, mine in events.items():
                group = [other for other in range(ranks) if part_of(other) == part_of(rank)]
                side[rank] = max(came[other] for other in group) + MOVES
                told = {"Collective name": "allreduce", "Process Group Name": f"{name} {part_of(rank)}"}
                told |= {"Group size": len(group), "In msg nelems": 9, "Out msg nelems": 9, "dtype": "Float"}
                took = side[rank] - came[rank]
                mine += [call("cudaLaunchKernelExC", ready[rank] - 3, 2, number + 2)]
                mine += [work("ncclDevKernel_AllReduce_Sum", came[rank], took, number + 2, 20, rank, **told)]
        for rank, mine in events.items():
            mine.append(note(f"ProfilerStep#{step + 3}", begin[rank], max(side) + 20 - begin[rank]))
        begin = [max(side) + 21 + draw.randrange(3) for _ in events]
    for rank, mine in events.items():
        moved = [each | {"ts": each["ts"] + clock(rank)} for each in mine]
        if rank not in left_out:
            write(folder, trace(*moved, distributedInfo={"rank": rank}), f"{rank}.json")
    return max(begin) - BASE


def late(table):
    return {int(each.row.rank): each.cause for each in table.late}


@pytest.mark.parametrize("layers", [1, 4, 12])
@pytest.mark.parametrize("cause", ["loads", "works", "computes"])
@pytest.mark.parametrize("size", [300, 900])
def test_who_is_late_costs_what_the_run_takes_longer_also_beside_kernels(tmp_path, cause, size, layers):
    longer = schedule(tmp_path / "late", {2: {cause: size}}, layers) - schedule(tmp_path / "even", None, layers)
    table = lv.ranks(tmp_path / "late")
    assert late(table) == {2: cause}
    assert abs(table.lateness.cost / 1000 - longer) < 0.1 * longer
    assert abs(table.late[0].more / 1000 / STEPS - size) < 0.1 * size
    assert rank_table(even := read(tmp_path / "even")).late == () and "clocks differ" not in notes(even)


@pytest.mark.parametrize("causes", [{}, {1: {"loads": 400}}, {3: {"computes": 400}}, {0: {"works": 400}}])
@pytest.mark.parametrize("off", [30, -700, 20_000, 3_000_000])  # µs
def test_clocks_that_differ_are_put_right(tmp_path, off, causes):
    schedule(tmp_path / "apart", causes, clock=lambda rank: off * (rank >= 2))
    schedule(tmp_path / "one", causes)
    wanted, table, timeline = (f(tmp_path / name) for f, name in ((read, "one"), (lv.ranks, "apart"), (read, "apart")))
    wanted = rank_table(wanted)
    assert late(table) == late(rank_table(timeline)) == {rank: next(iter(each)) for rank, each in causes.items()}
    assert table.shared == wanted.shared == 4 * STEPS
    for each in (table, rank_table(timeline)):
        assert abs(each.lateness.cost - wanted.lateness.cost) <= 0.01 * wanted.lateness.window[1]
        assert [each.transfer // 10_000 for each in each.collectives] == [4] * 4 * STEPS
    word = "ahead" if off > 0 else "behind"
    assert f"the ranks' clocks differ, by the ends of their collectives, and are put right: rank 2 is {word} by " in (
        notes(timeline)
    )


def test_a_recording_that_begins_some_steps_later_has_the_same_clock():
    """Its first collective is another rank's ninth."""
    draw = random.Random(3)
    ends = BASE * 1000 + 1000 * (1_000 * np.arange(40) + [draw.randrange(200) for _ in range(40)])
    same = ["allreduce"] * 40
    for first, off in ((8, 0), (8, 4_000_000), (0, 4_000_000)):
        assert clocks.ahead([(same, ends), (same[first:], ends[first:] + off)]) == [0, off]
        assert clocks.ahead([(same[first:], ends[first:]), (same, ends + off)]) == [0, off]


def test_what_has_nothing_in_common_has_no_known_clock():
    ends = np.arange(9) * 1_000_000
    assert (
        clocks.ahead([(["a"] * 9, ends), (["b"] * 9, ends + 5_000_000), ([None] * 9, ends), ([], ends[:0])]) == [0] * 4
    )
    (told,) = clocks.told([0, 5_000_000, -7_000], ["rank 0 ", "rank 1 ", "rank 2 "])
    assert told.endswith(" put right: rank 1 is ahead by 5 ms; rank 2 is behind by 7 µs")
    assert clocks.told([9_000] * 7, [f"rank {n} " for n in range(7)])[0].endswith(
        "rank 3 is ahead by 9 µs; and 3 more ranks"
    )


@pytest.mark.parametrize("cause", ["loads", "works", "computes"])
@pytest.mark.parametrize("who", [(1,), (2, 3)])
def test_who_waits_for_its_partner_in_one_group_is_not_blamed_in_another(tmp_path, who, cause):
    schedule(tmp_path, {rank: {cause: 600} for rank in who}, layers=6, groups=PAIRS)
    for table in (lv.ranks(tmp_path), rank_table(read(tmp_path))):
        assert late(table) == dict.fromkeys(who, cause)
        assert {each.seen for each in table.collectives} == {2} and table.shared == 2 * 6 * STEPS


def pipeline(folder, more=None, told=True, stages=4, micro=6):
    """Write files of the stages of a pipeline, which wait in their sends and receives; return how long it took [µs].

    In each step all micro-batches go forward, and then back. `more` is by stage, and of what [µs a step].
    """
    folder.mkdir()
    events, marks = {stage: [] for stage in range(stages)}, {}
    at, extra, draw = [BASE] * stages, more or {}, random.Random(5)
    for number in range(0, 10 * STEPS * 2 * micro * stages, 10):
        step, place = divmod(number // 10, 2 * micro * stages)
        stage, other = place % stages, place % stages + 1
        if place >= micro * stages:
            stage, other = stages - 1 - stage, stages - 1 - other
        for each, mine in events.items() if place == 0 else ():
            loads = 40 + extra.get(each, {}).get("loads", 0)
            mine.append(marks.setdefault((each, step), note(f"ProfilerStep#{step + 3}", at[each], 0)))
            mine.append(op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at[each], loads))
            at[each] += loads
        length = 2 * LAYER + extra.get(stage, {}).get("computes", 0) // (2 * micro) + draw.randrange(9)
        events[stage] += [call("cudaLaunchKernel", at[stage], 3, number + 1)]
        events[stage] += [work("gemm", at[stage] + 4, length, number + 1, 7, stage)]
        at[stage] += length + 5
        came = {"send": (stage, at[stage]), "recv": (other, at[other])} if 0 <= other < stages else {}
        for name, (one, begin) in came.items():
            at[one] = max(begin for _, begin in came.values()) + MOVES // 10
            args = {"Collective name": name, "Process Group Name": "0", "Group size": stages} if told else {}
            events[one] += [call("cudaLaunchKernelExC", begin - 3, 2, number + 2)]
            events[one] += [work("ncclDevKernel_SendRecv", begin, at[one] - begin, number + 2, 20, one, **args)]
    for (stage, step), mark in marks.items():
        mark["dur"] = marks.get((stage, step + 1), {"ts": at[stage] + 1})["ts"] - mark["ts"]
    for stage, mine in events.items():
        write(folder, trace(*mine, distributedInfo={"rank": stage}), f"{stage}.json")
    return max(at) - BASE


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize(
    "causes", [{}, {0: {"loads": 1200}}, {0: {"computes": 1200}}, {2: {"computes": 1200}}, {3: {"computes": 1200}}]
)
def test_of_a_pipeline_the_slowest_stage_is_named_with_what_the_others_wait_for_it(tmp_path, causes, told):
    longer = pipeline(tmp_path / "late", causes, told) - pipeline(tmp_path / "even")
    for table in (lv.ranks(tmp_path / "late"), rank_table(read(tmp_path / "late"))):
        assert late(table) == {stage: next(iter(each)) for stage, each in causes.items()}
        assert abs(table.lateness.cost / 1000 - longer) <= 0.2 * longer
        assert [each.often for each in table.late] == [STEPS] * len(causes)
