"""Hundreds of ranks as one table: the same as of a timeline of all, with a few kilobytes of each file."""

import json
import pickle
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import pytest
from factory import real, shared, slow
from trace_files import BASE, call, loop, note, op, repeated, straggling, trace, work, write

import loaderviz as lv
from loaderviz.analysis import fleet
from loaderviz.analysis.ranks import rank_table
from loaderviz.metrics import describe
from loaderviz.traces import TraceError


def alike(table, whole):
    """Whether two tables say the same, but for what a rank did in its own steady state."""
    rows, wanted = ([(row.rank, row.waits, row.blame) for row in each.rows] for each in (table, whole))
    late, their = ([replace(found, row=None) for found in each.late] for each in (table, whole))
    assert (rows, late) == (wanted, their)
    assert replace(table.lateness, window=()) == replace(whole.lateness, window=())
    assert table.collectives == whole.collectives


@pytest.mark.parametrize(("late", "count", "gpus"), [(0, 2, 1), (7, 12, 1), (3, 4, 1), (3, 4, 2), (None, 8, 1)])
def test_the_table_is_that_of_all_ranks_in_one_timeline(tmp_path, late, count, gpus):
    straggling(tmp_path, late, count=count, world_size=count)
    if gpus > 1:
        data = json.loads((tmp_path / "1.json").read_text())
        write(
            tmp_path, data | {"traceEvents": [*data["traceEvents"], work("gemm", BASE + 90, 9, 1, device=9)]}, "1.json"
        )
    table, whole = lv.ranks(tmp_path), rank_table(lv.read(tmp_path))
    alike(table, whole)
    names = ["0", "1 GPU 0", "1 GPU 1", "2", "3"] if gpus > 1 else [*map(str, range(count))]
    assert [row.rank for row in table.rows] == names
    assert [(row.computes, row.copies) for row in table.rows] == [(row.computes, row.copies) for row in whole.rows]
    assert {row.rank for row in table.telling} == {row.rank for row in whole.telling}
    assert [(each.row.rank, each.cause, each.often) for each in table.late] == [(str(late), "loads", 6)] * (
        late is not None
    )
    assert not table.notes and not table.timeline.context.missing and "not read" not in str(table.timeline.context)
    assert late is None or str(late) in {lane.name.split()[1] for lane in table.timeline.lanes}
    assert str(table) == str(table) and "late" in table._repr_html_()


def test_what_runs_under_a_collective_that_no_other_file_has_is_not_lost(tmp_path):
    """Rank 1 is late by kernels, most of which run while it sends something to a rank that was not recorded."""
    for rank in range(2):
        longer = 300 * rank
        events = repeated(
            6,
            1_000,
            lambda n, at, longer=longer, rank=rank: [
                note(f"ProfilerStep#{n + 3}", at, 1_000),
                op("aten::mm", at + 5, 20),
                call("cudaLaunchKernel", at + 10, 5, 10 * n + 1),
                work("gemm", at + 20, 200 + longer, 10 * n + 1, device=rank),
                *[work("ncclDevKernel_SendRecv", at + 60, 350, 10 * n + 3, 21, device=1)] * rank,
                work("ncclDevKernel_AllReduce_Sum", at + 240 + longer, 650 - longer, 10 * n + 2, 20, device=rank),
            ],
        )
        write(tmp_path, trace(*events, distributedInfo={"rank": rank}), f"{rank}.json")
    table = lv.ranks(tmp_path)
    assert [(each.row.rank, each.cause, each.more) for each in table.late] == [("1", "computes", 6 * 300_000)]
    alike(table, rank_table(lv.read(tmp_path)))


def test_lateness_of_a_step_is_that_of_its_time_where_not_all_steps_are_marked(tmp_path):
    """Six steps of 1 ms, of which two began before their marks were recorded; rank 1 comes 290 µs late."""
    straggling(tmp_path, 1, count=3)
    for path in tmp_path.iterdir():
        data = json.loads(path.read_text())
        unmarked = [each for each in data["traceEvents"] if each["name"] not in ("ProfilerStep#3", "ProfilerStep#4")]
        write(tmp_path, data | {"traceEvents": unmarked}, path.name)
    timeline = lv.read(tmp_path)
    found = next(each for each in lv.advise(timeline) if each.kind == "late-rank")
    assert found.expected_gain.per_step == pytest.approx(290_000)
    assert "290 µs a step for it (100 % of all lateness) in 6 collectives of 6 ms. " in found.evidence
    assert found.expected_gain.basis.startswith("at most 1.74 ms in 6 ms, ")
    alike(lv.ranks(tmp_path), rank_table(timeline))


def test_a_pool_gives_the_same_and_each_rank_is_a_few_kilobytes(tmp_path):
    straggling(tmp_path, 5, count=9, steps=40)
    with ProcessPoolExecutor(2) as pool:
        table = lv.ranks(tmp_path, executor=pool)
    assert (table.rows, table.late) == ((alone := lv.ranks(tmp_path)).rows, alone.late)
    assert table.timeline == alone.timeline
    (numbers,) = fleet._numbers_of(tmp_path / "5.json")
    assert len(pickle.dumps(numbers)) < 6_000  # of 40 collectives


def test_what_is_no_trace_is_told(tmp_path):
    straggling(tmp_path, 1, count=3)
    write(tmp_path, "hello", "a.json")
    table = lv.ranks(tmp_path)
    assert len(table.rows) == 3 and "a.json is no trace" in table.notes[0]
    assert "Left out: " in str(table) and "Left out: " in table._repr_html_()
    with pytest.raises(TraceError, match=r"a\.json is no trace"):
        lv.ranks([tmp_path / "0.json", tmp_path / "a.json"])


def test_ranks_without_a_clock_in_common_begin_together(tmp_path):
    straggling(tmp_path, 1, count=3)
    whole = lv.ranks(tmp_path)
    numbers = [fleet._numbers_of(tmp_path / f"{rank}.json")[0] for rank in range(3)]
    moved = [
        replace(each, unix=False, **{name: getattr(each, name) + 10**6 * at for name in ("moments", "steps")})
        for at, each in enumerate(numbers)
    ]
    moved = [replace(each, window=tuple(t + 10**6 * at for t in each.window)) for at, each in enumerate(moved)]
    assert [row.blame for row in fleet._joined(moved).rows] == [row.blame for row in whole.rows]


def test_ranks_without_collectives_are_a_table_without_anybody_late(tmp_path):
    for rank in range(3):
        write(tmp_path, trace(*loop(), distributedInfo={"rank": rank}), f"{rank}.json")
    table = lv.ranks(tmp_path)
    assert [row.rank for row in table.rows] == ["0", "1", "2"] and not table.shared
    assert "No collective was seen on the GPUs of several ranks" in str(table)  # gloo's are on the host


@pytest.mark.parametrize(
    ("files", "error", "told"),
    [
        ({"0.json": trace(*loop())}, TraceError, "two ranks at least"),
        ({"0.json": "hello", "1.json": "there"}, TraceError, "is no trace"),
        ({"0.json": trace(op("x", BASE, 5)), "1.json": trace()}, TraceError, "two ranks at least"),
    ],
)
def test_what_has_no_two_ranks(tmp_path, files, error, told):
    for name, content in files.items():
        write(tmp_path, content, name)
    with pytest.raises(error, match=told):
        lv.ranks(tmp_path)


def test_odd_arguments(tmp_path):
    for given, error in ((3, TypeError), (tmp_path / "none", FileNotFoundError), ([], TraceError)):
        with pytest.raises(error):
            lv.ranks(given)
    with pytest.raises(TypeError, match=r"has no map\(\)"):
        lv.ranks(tmp_path, executor=3)
    saved = tmp_path / "saved.json"
    lv.read(write(tmp_path, trace(*loop()))).save(saved)
    with pytest.raises(TraceError, match="loaderviz"):
        lv.ranks([saved, saved])


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "two_ranks",
            "the others wait 12.",
        ),  # they exchange all with all; rank 1 computes beside what its file alone has
        slow("ranks8_nanogpt_2025", "in 84 collectives of 206.7 ms."),  # not in the 185.8 ms of rank 1
    ],
)
def test_real_ranks(name, told):
    alike(table := lv.ranks(shared(name)), rank_table(real(name)))
    assert told in str(table)


def test_a_part_of_the_steps_is_that_of_all_ranks_in_one_timeline(tmp_path):
    straggling(tmp_path, 2, count=4)
    part, whole = lv.ranks(tmp_path, steps=slice(4, 6)), rank_table(lv.read(tmp_path, steps=slice(4, 6)))
    alike(part, whole)
    assert part.shared == 2 < lv.ranks(tmp_path).shared
    assert set(part.timeline.batch.tolist()) == {4, 5}
    with pytest.raises(TypeError, match="give numbers of steps"):
        lv.ranks(tmp_path, steps=3)
    with pytest.raises(TraceError, match="none from 90"):
        lv.ranks([tmp_path / "0.json", tmp_path / "1.json"], steps=slice(90, 99))


LACK = "rank 2 of 4 has no file here: in collectives others may wait for it"


@pytest.mark.parametrize(
    ("worlds", "ranks", "told"),
    [
        ([4, 4, None, 4], None, LACK),
        ([4, 4, None, 4], [0, 1], "ranks 2, 3 of 4 were not read: in collectives others may wait for them"),
        ([4, 4, 4, 4], None, ""),
        ([9, 9, None, 9], None, "ranks 2, 4, 5, 6, 7, 8 of 9 have no file here"),
        ([99, 99, 99, 99], None, "ranks 4, 5, 6, 7, 8, 9 and 89 more of 99 have no file here"),
        ([4, 5, None, 4], None, ""),
        ([1, 1, None, 1], None, ""),  # fewer than there are
        *(([bad, bad, None, bad], None, "") for bad in (-4, 0, "4", 4.0, True, [4], 10**18, float("nan"))),
    ],
)
def test_a_rank_that_has_no_file_is_missing(tmp_path, worlds, ranks, told):
    straggling(tmp_path, 0, count=4)
    for rank, world in enumerate(worlds):
        data = json.loads((tmp_path / f"{rank}.json").read_text())
        data["distributedInfo"]["world_size"] = world
        (tmp_path / f"{rank}.json").unlink()
        if world is not None:
            write(tmp_path, data, f"{rank}.json")
    timeline = lv.read(tmp_path, ranks=ranks)
    (missing,) = timeline.context.missing or ("",)
    assert told in missing and bool(missing) == bool(told) and missing in describe(timeline)
    assert ("work-not-seen" in [each.kind for each in lv.advise(timeline)]) is bool(told)
    if told == LACK:
        assert "give read() the files of all" in lv.advise(timeline)[-1].change
    table = lv.ranks(tmp_path)
    assert [each for each in table.notes if "others may wait" in each] == list(table.timeline.context.missing)
    if ranks is None:
        assert table.timeline.context.missing == timeline.context.missing == rank_table(timeline).notes
    alone = lv.read(tmp_path / "0.json").context
    assert not alone.missing
    assert ("were not read" in "".join(alone.notes)) is (type(worlds[0]) is int and 1 < worlds[0] < 10**18)
