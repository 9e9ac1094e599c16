"""What collectives move: message sizes, arrival skew, transfer and bandwidths, by the definitions of nccl-tests."""

import gzip
import json
from collections import defaultdict
from dataclasses import replace

import pytest
from factory import real, shared
from trace_files import BASE, call, event, trace, work, write

import loaderviz as lv
from loaderviz.analysis.ranks import rank_table
from loaderviz.timeline import Timeline, TimelineError

TOLD = {"Collective name": "allreduce", "In msg nelems": 1_000, "Out msg nelems": 1_000, "dtype": "Float"}
TOLD |= {"Group size": 4, "Process Group Name": "7"}


def run(folder, ranks=4, apart=10, end=130, at=BASE, more=(), **told):
    """Files of ranks that come to one collective `apart` µs after each other, and are through `end` µs after `at`."""
    for rank in range(ranks):
        args = {key: value(rank) if callable(value) else value for key, value in told.items()}
        events = [call("cudaLaunchKernel", at, 5, 9), *more]
        came = at + 20 + apart * rank
        events += [work("ncclDevKernel_Generic(args)", came, at + end + rank - came, 9, device=rank, **args)]
        write(folder, trace(*events, distributedInfo={"rank": rank}), f"{rank}.json")
    return lv.read(folder)


def only(timeline):
    (found,) = rank_table(timeline).collectives
    return found


@pytest.mark.parametrize(
    ("name", "given", "got", "dtype", "nbytes", "factor"),
    [
        ("allreduce", 1_000, 1_000, "Float", 4_000, 2 * 3 / 4),
        ("allreduce_coalesced", 1_000, 1_000, "BFloat16", 2_000, 2 * 3 / 4),
        ("_allgather_base", 1_000, 4_000, "Half", 8_000, 3 / 4),
        ("all_gather_into_tensor_coalesced", 1_000, 4_000, "Float8_e4m3fn", 4_000, 3 / 4),
        ("_reduce_scatter_base", 4_000, 1_000, "Double", 32_000, 3 / 4),
        ("all_to_all", 4_000, 4_000, "Long", 32_000, 3 / 4),
        ("gather", 1_000, 4_000, "Byte", 4_000, 3 / 4),
        ("scatter", 4_000, 1_000, "Byte", 4_000, 3 / 4),
        ("broadcast", 1_000, 1_000, "Float", 4_000, 1),
        ("_reduce_oop", 1_000, 1_000, "Float", 4_000, 1),
        ("send", 1_000, 1_000, "Float", 4_000, 1),
        ("recv", 1_000, 1_000, "Float", 4_000, 1),
    ],
)
def test_sizes_and_bandwidths_are_those_of_nccl_tests(tmp_path, name, given, got, dtype, nbytes, factor):
    sizes = {"Collective name": name, "In msg nelems": given, "Out msg nelems": got, "dtype": dtype}
    found = only(run(tmp_path, **TOLD | sizes))
    assert (found.name, found.dtype, found.nbytes, found.ranks, found.seen) == (name, dtype, nbytes, 4, 4)
    assert (found.group, found.skew, found.transfer) == (
        "7",
        30_000,
        80_000,
    )  # ns
    speed = nbytes / 80e-6
    assert found.algorithm_bandwidth == pytest.approx(speed)
    assert found.bus_bandwidth == pytest.approx(speed * factor)


@pytest.mark.parametrize("apart", [0, 1, 25])
def test_who_comes_late_makes_skew_and_no_transfer(tmp_path, apart):
    """The bytes move in 80 µs, however long the others have waited."""
    found = only(run(tmp_path, apart=apart, end=100 + 3 * apart, **TOLD))
    assert (found.skew, found.transfer) == (3_000 * apart, 80_000)
    assert found.algorithm_bandwidth == pytest.approx(5e7)


@pytest.mark.parametrize(
    "without",
    [
        {"In msg nelems": None},
        {"Out msg nelems": "many"},
        {"dtype": "Quaternion"},
        {"In msg nelems": 0, "Out msg nelems": 0},
        {"In msg nelems": -1, "Out msg nelems": -1},
        {"In msg nelems": 10**30},
        {"In msg nelems": True},
        {"In msg nelems": lambda rank: 2_000 + rank},  # each gives another number: all_to_allv
    ],
)
def test_what_no_file_tells_is_not_known_and_never_0(tmp_path, without):
    found = only(timeline := run(tmp_path, **TOLD | without))
    assert (found.nbytes, found.algorithm_bandwidth, found.bus_bandwidth) == (None, None, None)
    assert (found.ranks, found.skew, found.transfer) == (4, 30_000, 80_000)
    table = rank_table(timeline)
    (told,) = json.loads(json.dumps(table.to_dict()))["collectives"]
    assert told["nbytes"] is told["algorithm_bandwidth"] is told["bus_bandwidth"] is None
    assert str(table).splitlines()[-1].count("not known") == 3


@pytest.mark.parametrize("ranks", [None, 0, -4, "4"])
def test_without_its_group_a_collective_has_no_bus_bandwidth(tmp_path, ranks):
    found = only(run(tmp_path, **TOLD | {"Group size": ranks}))
    assert (found.ranks, found.bus_bandwidth) == (None, None) and found.algorithm_bandwidth == pytest.approx(5e7)


def test_a_kernel_that_tells_nothing_has_its_own_name(tmp_path):
    found = only(run(tmp_path))
    assert (found.name, found.nbytes, found.dtype, found.group, found.ranks) == (
        "ncclDevKernel_Generic",
        *[None] * 4,
    )


def test_where_the_kernel_is_silent_the_operator_tells(tmp_path):
    """In some files the kernel has only the number of the operator."""
    asks = event("cpu_op", "record_param_comms", 1, 1, BASE - 1, 8, TOLD | {"External id": 5})
    other = event("cpu_op", "record_param_comms", 1, 1, BASE - 20, 8, TOLD | {"External id": 6, "In msg nelems": 1})
    found = only(run(tmp_path, more=[asks, other], **{"External id": 5}))
    assert (found.name, found.nbytes, found.ranks, found.group) == ("allreduce", 4_000, 4, "7")
    assert only(run(tmp_path, more=[asks], **{"External id": 7})).nbytes is None
    same = event("cpu_op", "record_param_comms", 2, 2, BASE - 1, 8, TOLD | {"External id": 5, "In msg nelems": 9_999})
    assert only(run(tmp_path, more=[asks, same], **{"External id": 5})).nbytes is None  # of two processes in one file


def test_ranks_that_were_not_seen_may_have_come_later_still(tmp_path):
    timeline = run(tmp_path, ranks=2, **TOLD)
    assert (only(timeline).seen, only(timeline).ranks) == (2, 4)
    assert str(rank_table(timeline)).splitlines()[-1].count("≥ ") == 2
    assert "≥" not in str(rank_table(run(tmp_path, ranks=4, **TOLD)))


def test_equal_collectives_are_one_row_and_the_longest_is_first(tmp_path):
    for rank in range(2):
        events = []
        for number, (size, lasts) in enumerate([(10, 50), (10, 70), (10, 60), (99, 200)]):
            told = TOLD | {"In msg nelems": size, "Out msg nelems": size, "Group size": 2}
            begin = BASE + 1_000 * number
            events += [call("cudaLaunchKernel", begin, 5, number + 1)]
            events += [work("ncclKernel", begin + 9 + rank, lasts - rank, number + 1, device=rank, **told)]
        write(tmp_path, trace(*events, distributedInfo={"rank": rank}), f"{rank}.json")
    table = rank_table(lv.read(tmp_path))
    assert [each.nbytes for each in table.collectives] == [40, 40, 40, 396]
    assert lv.ranks(tmp_path).collectives == table.collectives
    first, second = (line.split() for line in str(table).splitlines()[-2:])
    assert first[:5] == ["allreduce", "1", "396", "bytes", "Float"] and second[:5] == [
        "allreduce",
        "3",
        "40",
        "bytes",
        "Float",
    ]
    assert second[6:10] == ["1", "µs", "59", "µs"]  # medians
    assert table._repr_html_().count("<table>") == 2 and "<td>396 bytes</td>" in table._repr_html_()


def test_messages_are_saved_with_the_timeline_and_a_damaged_one_is_refused(tmp_path):
    timeline = run(tmp_path, **TOLD)
    again = Timeline.from_dict(json.loads(json.dumps(timeline.to_dict())))
    assert again == timeline and only(again) == only(timeline)
    for damage in ([1, "allreduce"], [1, "allreduce", "4", "Float", "7", 4], 5):
        data = timeline.to_dict()
        data["context"]["messages"] = [damage]
        with pytest.raises(TimelineError, match="messages of a context"):
            Timeline.from_dict(data)
    zero = tuple(each._replace(ranks=0, nbytes=0) for each in timeline.context.messages)
    found = only(replace(timeline, context=replace(timeline.context, messages=zero)))
    assert (found.algorithm_bandwidth, found.bus_bandwidth) == (None, None)


@pytest.mark.slow
def test_a_real_run_of_eight_ranks_is_as_its_files_say():
    """Read from the JSON alone: of each kind the same kernel, counted from the end, of all files is one collective."""
    found = rank_table(real("ranks8_nanogpt_2025")).collectives
    by_hand = defaultdict(list)
    for path in shared("ranks8_nanogpt_2025").iterdir():
        kinds = defaultdict(list)
        for each in (events := json.loads(gzip.decompress(path.read_bytes())))["traceEvents"]:
            if each.get("cat") == "kernel" and "Collective name" in (told := each["args"]):
                start = round(each["ts"] * 1_000) + events["baseTimeNanoseconds"]
                kind = told["Collective name"], max(told["In msg nelems"], told["Out msg nelems"]), told["dtype"]
                kinds[kind].append((start, start + round(each["dur"] * 1_000)))
        for kind, kernels in kinds.items():
            for number, times in enumerate(sorted(kernels, reverse=True)):
                by_hand[*kind, number].append(times)
    expected = []
    for (name, elements, dtype, _), times in by_hand.items():
        starts, ends = zip(*times, strict=True)
        nbytes, transfer = elements * {"BFloat16": 2, "Float": 4}[dtype], min(ends) - max(starts)
        speed = round(nbytes / transfer * 7 / 8, 6)  # GB/s; of eight ranks that gather, or scatter what they reduce
        expected.append((name, nbytes, len(times), max(starts) - min(starts), transfer, speed))
    known = [each for each in found if each.nbytes is not None]
    assert len(found) == 84 and len(known) == 56  # the other 28 were launched before the recording began
    assert sorted(expected) == sorted(
        (each.name, each.nbytes, each.seen, each.skew, each.transfer, round(each.bus_bandwidth / 1e9, 6))
        for each in known
    )
