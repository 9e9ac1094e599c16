"""torch.profiler traces: every trap that real files hold, each in a few events. See also test_damage and test_waits."""

import itertools
import json
import random

import pytest
import trace_files
from factory import real
from trace_files import (
    BASE,
    PID,
    call,
    copy,
    event,
    loop,
    note,
    notes,
    op,
    read_events,
    repeated,
    rows,
    straggling,
    trace,
    work,
    write,
)

from loaderviz import advise, files, intervals, summarize
from loaderviz.analysis.evidence import Evidence
from loaderviz.analysis.ranks import drawn, rank_table
from loaderviz.analysis.what_if import LoopModel
from loaderviz.export import advised
from loaderviz.metrics import describe
from loaderviz.timeline import Kind, Timeline
from loaderviz.traces import TraceError, read, source


def test_a_step_becomes_lanes_kinds_arrows_and_batches(tmp_path):
    timeline = read_events(tmp_path, *loop(), deviceProperties=[{"id": 0, "name": "V100"}])
    assert [lane.name for lane in timeline.lanes] == ["main", "stream 7"]
    assert [(row.start, row.duration, row.kind.name, row.name, row.batch) for row in timeline.rows()] == [
        (0, 100_000, "RANGE", "ProfilerStep#3", 3),
        (1_000, 20_000, "OPERATOR", "aten::copy_", 3),
        (2_000, 8_000, "API", "cudaMemcpyAsync", 3),
        (12_000, 30_000, "COPY_H2D", "Memcpy HtoD (Pinned -> Device)", 3),
        (30_000, 10_000, "OPERATOR", "aten::mm", 3),
        (32_000, 5_000, "API", "cudaLaunchKernel", 3),
        (45_000, 40_000, "COMPUTE", "gemm", 3),
        (60_000, 26_000, "API", "cudaDeviceSynchronize", 3),
        (60_000, 26_000, "WAIT", "synchronize", 3),
    ]
    assert timeline.context.device == "V100"
    assert timeline.context.origin == "file"
    assert "2023-11-14 22:13:20.000000000 UTC" in timeline.context.clock
    copied = rows(timeline, Kind.COPY_H2D)[0]
    assert (copied.nbytes, copied.pinned, copied.correlation) == (1_000, True, 1)
    arrows = [
        (timeline.row(int(tail)).name, timeline.row(int(head)).name)
        for tail, head in zip(timeline.arrows["tail"], timeline.arrows["head"], strict=True)
    ]
    assert sorted(arrows) == [("cudaLaunchKernel", "gemm"), ("cudaMemcpyAsync", "Memcpy HtoD (Pinned -> Device)")]
    assert summarize(timeline).host_blocked == {"synchronize": 26_000}


@pytest.mark.parametrize("style", ["compact", "one line", "torch 2.13", "sorted keys", "kineto"])
@pytest.mark.parametrize("chunk", [300, source.CHUNK])
@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_every_layout_reads_the_same(tmp_path, monkeypatch, style, chunk, name):
    monkeypatch.setattr(source, "CHUNK", chunk)
    monkeypatch.setattr(files, "BLOCK", chunk)
    meta = {"ph": "M", "name": "process_name", "pid": PID, "tid": 0, "ts": BASE, "args": {"name": "python"}}
    flow = {"ph": "s", "id": 1, "pid": PID, "tid": PID, "ts": BASE, "cat": "ac2g", "name": "ac2g"}
    instant = {"ph": "i", "s": "t", "name": "[memory]", "pid": PID, "tid": PID, "ts": BASE, "args": {"Bytes": 4}}
    mixed = [meta, *(event for event in loop() for event in (event, flow, instant)), meta]
    data = trace(*mixed, deviceProperties=[{"id": 0, "name": "V100", "sizes": [{"a": 1}, {"b": 2}]}])
    timeline = read(write(tmp_path, trace_files.styled(data, style), name))
    plain = read_events(tmp_path, *loop(), deviceProperties=[{"id": 0, "name": "V100"}])
    assert rows(timeline) == rows(plain)
    assert timeline.context.device == "V100"
    assert "no event lost" in notes(timeline)
    assert "8 instant marks" in notes(timeline)


def test_names_of_2021(tmp_path):
    """Categories in capitals, tids as text, flows of category `async`, annotations as operators."""

    def old(cat, name, ts, dur, tid, **args):
        return event(cat, name, 0 if "stream" in str(tid) else PID, tid, ts, dur, args)

    timeline = read_events(
        tmp_path,
        old("Operator", "ProfilerStep#5", BASE, 90, str(PID), **{"Call stack": "a;b"}),
        old("Operator", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", BASE + 1, 20, str(PID)),
        old("Operator", "aten::mm", BASE + 30, 9, PID),  # tids as text and as numbers in one file
        old("Runtime", "cudaLaunchKernel", BASE + 31, 5, str(PID), correlation=4, **{"external id": 9}),
        old("Kernel", "gemm", BASE + 40, 20, "stream 7", device=0, stream=7, correlation=4),
        old("Memcpy", "Memcpy HtoD (Pageable -> Device)", BASE + 62, 5, "stream 7", device=0, stream=7, correlation=5),
        old("Memset", "Memset (Device)", BASE + 70, 0, "stream 7", device=0, stream=7, correlation=6, bytes=8),
        old("Trace", "PyTorch Profiler (0)", BASE, 99, "PyTorch Profiler"),
    )
    assert [lane.name for lane in timeline.lanes] == ["main", "stream 7"]
    kinds = [row.kind.name for row in timeline.rows()]
    assert kinds == ["RANGE", "FETCH", "OPERATOR", "API", "COMPUTE", "COPY_H2D", "MEMSET"]
    assert [row.batch for row in timeline.rows()] == [5, 5, 5, 5, 5, -1, -1]


@pytest.mark.parametrize("cat", ["cuda_driver", "xpu_runtime", "mtia_runtime", "privateuse1_driver", "CUDA_Runtime"])
def test_calls_of_every_vendor(tmp_path, cat):
    timeline = read_events(tmp_path, call("cuLaunchKernel", BASE, 5, 1, cat=cat), work("triton_", BASE + 9, 5, 1))
    assert [row.kind for row in timeline.rows()] == [Kind.API, Kind.COMPUTE]
    assert len(timeline.arrows["tail"]) == 1


def test_ns_times_relative_to_the_base(tmp_path):
    """Since torch 2.4: µs with three digits from `baseTimeNanoseconds`; exact in ns."""
    times = sorted(random.sample(range(5 * 10**12), 200))
    events = [op(f"aten::{n}", f"@{ns // 1000}.{ns % 1000:03d}@", 0.001) for n, ns in enumerate(times)]
    text = json.dumps(trace(*events, baseTimeNanoseconds=1_711_929_600_000_000_000)).replace('"@', "").replace('@"', "")
    timeline = read(write(tmp_path, text))
    assert (timeline.start - timeline.start[0]).tolist() == [ns - times[0] for ns in times]
    assert set((timeline.end - timeline.start).tolist()) == {1}
    assert "2024-04-01 0" in timeline.context.clock


def test_the_base_is_added_only_to_times_that_count_from_it(tmp_path):
    """Some versions write it beside times of the Unix clock, which stay as they are."""
    for base in (BASE, 7):
        timeline = read_events(tmp_path, op("aten::mm", base, 5), baseTimeNanoseconds=1_711_929_600_000_000_000)
        assert ("2024-04-01 00:00:00.000007" if base == 7 else "2023-11-14 22:13:20") in timeline.context.clock


@pytest.mark.parametrize(
    ("text", "ns"),  # µs as they stand in the file; None: no time
    [
        ("7", 7_000), ("-7", -7_000), ("0.001", 1), ("1.5", 1_500), ("1.25", 1_250), ("1.2345", 1_234),
        ("1.2346", 1_235), ("1.2355", 1_236), ("1e3", 1_000_000), ("-1.5", -1_500), ('"12.5"', 12_500), ("1.", None),
        ("12.345", 12_345), ("12.3456", 12_346), ("1.5e1", 15_000), ('"7"', 7_000), ('"7.25"', 7_250), ('""', None),
        ('"-"', None), ('"."', None), ('"7 us"', None), ("1e30", None),
        ('"x"', None), ("true", None), ("null", None), ("[1]", None), ("1e999999", None),
        (str(2**62), None), (f"-{2**62}", None), ('"inf"', None),
    ],
)  # fmt: skip
def test_a_time_in_us_is_read_with_all_its_digits(tmp_path, text, ns):
    """That of a length, beside an event that is whole. What is no time, or less than none, is lost and told."""
    events = json.dumps(trace(op("whole", BASE, 1), op("odd", BASE, "@"))).replace('"@"', text)
    timeline, lost = read(write(tmp_path, events)), ns is None or ns < 0
    assert [row.duration for row in timeline.rows() if row.name == "odd"] == ([] if lost else [ns])
    assert ("1 event" in notes(timeline)) == lost


@pytest.mark.parametrize(
    ("size", "nbytes"),
    [
        (2560, 2560), ("2560", 2560), ("0x10", 16), ("2.5e3", 2500), (2560.0, 2560), (0, 0), ("x", -1), ("0xg", -1),
        (None, -1), ([1], -1), (2**62 - 1, 2**62 - 1), (2**62, -1), (-(2**62), -1), ("1e999999", -1), ("inf", -1),
    ],
)  # fmt: skip
def test_a_number_may_be_text(tmp_path, size, nbytes):
    for key in ("bytes", "size"):
        timeline = read_events(tmp_path, work("Memset (Device)", BASE, 5, 1, cat="gpu_memset", **{key: size}))
        assert timeline.nbytes.tolist() == [nbytes]


def test_absolute_times_with_ns_digits(tmp_path):
    """torch 2.3: the digits of 1712195495521308.558 do not fit into a float64."""
    ns = [1_712_195_495_521_308_558 + step for step in (0, 1, 250, 1_001, 77_777)]
    events = [op("aten::mm", f"@{time // 1000}.{time % 1000:03d}@", 2) for time in ns]
    events += [op("whole", f"@{1_712_195_495_521_400}@", 2)]  # whole ones among them
    timeline = read(write(tmp_path, json.dumps(trace(*events)).replace('"@', "").replace('@"', "")))
    assert timeline.start.tolist() == [0, 1, 250, 1_001, 77_777, 1_712_195_495_521_400_000 - ns[0]]


@pytest.mark.parametrize(
    ("name", "kind", "pinned"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "COPY_H2D", False),
        ("Memcpy HtoD (Pinned -> Device)", "COPY_H2D", True),
        ("Memcpy DtoH (Device -> Pageable)", "COPY_D2H", False),
        ("Memcpy DtoH (Device -> Pinned)", "COPY_D2H", True),
        ("Memcpy DtoD (Device -> Device)", "COPY_D2D", None),
        ("Memcpy HtoD (Host -> Device)", "COPY_H2D", None),  # ROCm does not tell
        ("Memcpy HtoA (Pinned -> Array)", "COPY_H2D", True),
        ("Memcpy AtoH (Array -> Pageable)", "COPY_D2H", False),
        ("Memcpy PtoP (Device -> Device)", "COPY_D2D", None),
        ("Memcpy HtoH (Pageable -> Pageable)", "COPY_D2D", None),
        ("Memcpy HtoD (Managed -> Device)", "COPY_H2D", None),
        ("Memcpy Unknown (Unknown -> Unknown)", "COPY_D2D", None),
        ("CopyHostToDevice", "COPY_H2D", None),
        ("CopyDeviceToHost", "COPY_D2H", None),
        ("zeCommandListAppendMemoryCopy(M2D)", "COPY_H2D", None),
        ("Memcpy D2M (Device -> Memory)", "COPY_D2H", None),
    ],
)
def test_direction_and_memory_stand_in_the_name(tmp_path, name, kind, pinned):
    row = rows(read_events(tmp_path, copy(BASE, 5, 1, name)))[0]
    assert (row.kind.name, row.pinned) == (kind, pinned)


def test_gpu_events_with_missing_and_odd_arguments(tmp_path):
    """P2P copies have no device; bytes are absent for 0 us; stream 0 is valid; negative streams count as positive."""
    timeline = read_events(
        tmp_path,
        work("Memcpy PtoP (Device -> Device)", BASE, 5, 1, 9, 3, "gpu_memcpy") | {"args": {"stream": 9}},
        event("gpu_memset", "Memset (Device)", 3, 12, BASE, 0, {"memory bandwidth (GB/s)": "inf"}),
        work("k", BASE, 5, 2, stream=0, device=3),
        work("m", BASE, 5, 3, stream=-20, device=3),
        work("far", BASE, 5, 4, stream=7, device=0) | {"tid": 1_000_007},
        op("aten::mm", BASE, 9, tid=7, pid=0),  # the number of a device as a pid
    )
    lanes = {(lane.name, lane.device) for lane in timeline.lanes if lane.group == "device"}
    assert [row.name for row in timeline.rows() if row.lane.group == "host"] == ["aten::mm"]
    assert lanes == {("stream 7", 0), *((f"stream {number}", 3) for number in (0, 9, 12, 20))}
    assert set(timeline.nbytes.tolist()) == {-1}


def test_sync_rows_are_not_work(tmp_path):
    sync = work("Context Sync", BASE + 10, 10_000, 9, stream=4_294_967_295, cat="cuda_sync")
    other = work("Stream Sync", BASE + 10, 10_000, 8, stream=-1, cat="cuda_sync") | {"tid": -1}
    timeline = read_events(tmp_path, work("gemm", BASE, 5, 1), sync, other)
    assert [lane.name for lane in timeline.lanes] == ["stream 7"]
    assert timeline.duration == 5_000
    assert "2 synchronisation rows" in notes(timeline)


def test_annotations_of_the_gpu_are_not_work(tmp_path):
    """Kineto starts them 1 ns early and lets them last 2 ns longer; they have no stream argument."""
    ranged = event("gpu_user_annotation", "ProfilerStep#1", 0, 7, BASE - 5, 50, {"External id": 3})
    timeline = read_events(tmp_path, ranged, work("gemm", BASE, 5, 1))
    assert summarize(timeline).busy == pytest.approx(5 / 50)
    assert intervals.length(Evidence(timeline, window=(0, 50_000)).idle) == 45_000  # nor for advice
    assert [(row.lane.name, row.kind.name, row.batch) for row in timeline.rows()] == [
        ("stream 7 ranges", "RANGE", 1),
        ("stream 7", "COMPUTE", -1),
    ]


def test_one_graph_launch_many_kernels_that_overlap(tmp_path):
    """Each begins 2 µs before the last ends; and whatever overlaps has a lane without overlaps (`self_check`)."""
    kernels = [work(f"k{n}", BASE + 10 + 4 * n, 6, 5) for n in range(4)]
    timeline = read_events(tmp_path, call("cudaGraphLaunch", BASE, 3, 5), *kernels)
    assert [(row.start, row.duration, row.lane.name) for row in timeline.rows(Kind.COMPUTE)] == [
        (10_000 + 4_000 * n, 6_000, ("stream 7", "stream 7 (2)")[n % 2]) for n in range(4)
    ]
    assert len(timeline.arrows["tail"]) == 4
    assert "2 spans overlap another of their stream" in notes(timeline)
    some = [work(f"k{n}", BASE + random.randrange(300), random.randrange(40), n + 1) for n in range(120)]
    timeline = read_events(tmp_path, *some)
    assert sorted((timeline.end - timeline.start).tolist()) == sorted(1000 * event["dur"] for event in some)


def test_noise_is_left_out_and_counted(tmp_path):
    noise = [
        {"ph": "M", "name": "process_sort_index", "pid": 0, "tid": 0, "ts": BASE, "args": {"sort_index": 3}},
        {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": BASE * 1000},
        {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "x", "ts": BASE, "dur": 9},
        {"ph": "C", "name": "gpu_util", "pid": 0, "ts": BASE, "args": {"x": 1}},
        op("frame.py(3): f", BASE, 5) | {"cat": "python_function"},
        op("Activity Buffer Request", BASE, 5) | {"cat": "overhead"},
    ]
    timeline = read_events(tmp_path, *loop(), *noise)
    assert len(timeline) == 9
    left_out = ("1 python_function events", "1 overhead events", "1 instant marks", "1 counters")
    assert all(each in notes(timeline) for each in left_out)


def test_twins_are_taken_once(tmp_path):
    twin, other = call("cudaGetDevice", BASE, 0, 0), call("cudaSetDevice", BASE, 0, 0)
    timeline = read_events(tmp_path, *loop(), twin, other, twin, twin, call("cudaGetDevice", BASE, 0, 0, tid=9))
    assert sum(row.name == "cudaGetDevice" for row in timeline.rows()) == 2  # in two threads
    assert "(2 left out)" in notes(timeline)


def test_rocm_strings_and_copy_kernels(tmp_path):
    """hip arguments are text; from ROCm 7.1 on copies may be kernels, whose direction stands in the call."""
    timeline = read_events(
        tmp_path,
        call("hipMemcpyWithStream", BASE, 20, 1, size="2560", kind="1", stream="0x0"),
        work("__amd_rocclr_copyBuffer", BASE + 5, 10, 1, stream=0),
        call("hipMemcpyAsync", BASE + 30, 2, 2, size="64", kind="2"),
        work("__amd_rocclr_copyBufferAligned", BASE + 40, 5, 2, stream=0),
        call("hipLaunchKernel", BASE + 50, 2, 3),
        work("__amd_rocclr_fillBufferAligned", BASE + 60, 5, 3, stream=0),
        work("ncclDevKernel_AllReduce", BASE + 70, 5, 4, stream=1),
    )
    kinds = [row.kind.name for row in timeline.rows() if row.lane.group == "device"]
    assert kinds == ["COPY_H2D", "COPY_D2H", "MEMSET", "COMMUNICATION"]
    assert rows(timeline, Kind.API)[0].nbytes == 2_560


def test_info_after_the_events_and_ranks(tmp_path):
    """`distributedInfo` may come after the events; ranks are aligned by their clocks and keep their own lanes."""
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in (1, 0):
        moved = loop(BASE + 1_000 * rank)
        text = json.dumps({"traceEvents": moved, "distributedInfo": {"rank": rank}})
        write(folder, text, f"worker{9 - rank}.json")
    timeline = read(folder)
    assert [lane.name for lane in timeline.lanes] == [
        f"rank {r} {name}" for r in (0, 1) for name in ("main", "stream 7")
    ]
    steps = list(timeline.rows(Kind.RANGE))
    assert [(row.start, row.lane.name) for row in steps] == [(0, "rank 0 main"), (1_000_000, "rank 1 main")]
    assert {lane.device for lane in timeline.lanes if lane.group == "device"} == {0, 1}  # two computers, one number
    assert notes(timeline).startswith("rank 0: recording quality")
    names = [timeline.row(int(i)).lane.name[:6] for side in ("tail", "head") for i in timeline.arrows[side]]
    assert names[:4] == names[4:]  # arrows stay in their rank
    assert len({row.correlation for row in timeline.rows(Kind.COMPUTE)}) == 2
    assert read([folder / "worker8.json", folder / "worker9.json"]) == timeline


def test_ranks_by_file_name_and_without_a_common_clock(tmp_path):
    for rank in (0, 1):
        write(tmp_path, trace(*loop(500 + 70 * rank)), f"rank_{rank}.json")
    timeline = read(tmp_path)
    assert "each rank begins at time 0" in notes(timeline)
    assert [(row.start, row.lane.name) for row in timeline.rows(Kind.RANGE)] == [(0, "rank 0 main"), (0, "rank 1 main")]


@pytest.mark.parametrize(("slices", "parts"), [(20, 2), (4, 1)])
def test_a_loader_and_then_slices_are_judged_apart(tmp_path, slices, parts):
    """Eight steps that fetch for 500 µs and copy, then steps that only compute: the second kind costs no fetching."""
    events, time = [], BASE
    for number in range(8 + slices):
        if number < 8:
            events += [
                note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", time, 500),
                call("cudaMemcpyAsync", time + 510, 100, 100 + number),
                copy(time + 515, 90, 100 + number, nbytes=900_000),
            ]
            time += 620
        events += [call("cudaLaunchKernel", time, 5, 200 + number), work("gemm", time + 10, 300, 200 + number)]
        events.append(note("Optimizer.step#SGD.step", time + 20, 20))
        time += 350
    advice = advise(read_events(tmp_path, *events))
    fetching = next(finding for finding in advice if finding.kind == "fetch-in-loop")
    assert advice.judged.count(" steps of ") == parts and advice.judged.count("with_stack") == 1
    assert fetching.evidence.startswith("part 1, ") == (parts == 2)
    per_step = 8 * 500_000 / (8 if parts == 2 else 8 + slices)
    assert fetching.expected_gain.per_step == pytest.approx(per_step, rel=0.15)
    assert not any("part 2" in finding.evidence and finding.kind == "fetch-in-loop" for finding in advice)


@pytest.mark.parametrize("late", [0, 7])
def test_ranks_name_the_straggler(tmp_path, late):
    straggling(tmp_path, late)
    timeline = read(tmp_path).self_check()
    table = rank_table(timeline)
    assert table.telling[table.late[0].row] == "late"
    assert table.telling[max(table.rows, key=lambda row: row.waits)] == "fastest"
    ranks = str(table).split("\n\n")[0]  # head, three ranks, the others, who is late, why
    assert ranks.count("\n") == 6 and "9 more ranks" in ranks
    shown = drawn(timeline)
    assert {lane.name.split()[1] for lane in shown.lanes} == {row.rank for row in table.telling}
    assert len(shown) == len(timeline) // 4 and "3 are drawn" in notes(shown)
    assert len(notes(timeline)) < 600  # what is noted of twelve ranks is told once


@pytest.mark.parametrize(
    ("launches", "memset", "kind", "said"),
    [
        (0, False, "no-gpu-work", "no work of a GPU"),
        (30, False, "work-not-seen", "makes 30 launches, and no kernel"),
        (1, False, "work-not-seen", "makes 1 launch, and no kernel"),
        (0, True, "work-not-seen", "no kernel and no copy, nor a launch of one, only 1 µs of other work"),
    ],
)
def test_what_is_not_in_a_file_is_not_said_to_be_at_the_limit(tmp_path, launches, memset, kind, said):
    events = [call("cudaLaunchKernel", BASE + 10 * number, 5, number) for number in range(launches)]
    events += [work("Memset (Device)", BASE + 20, 1, 99, cat="gpu_memset")] * memset
    timeline = read_events(tmp_path, op("aten::addmm", BASE, 119_000), *events)
    (found,) = advise(timeline)
    assert ("launch" in describe(timeline)) == (launches > 0)
    assert ("no kernel and no copy, only 1 µs of other work on the GPU" in describe(timeline)) == memset
    assert "computes" not in describe(timeline)
    assert (found.kind, "CUDA" in found.change) == (kind, launches > 0 or memset) and said in found.evidence


def test_gpus_that_are_named_and_not_seen_are_named_in_the_title(tmp_path):
    gpus = [{"id": number, "name": "NVIDIA A100"} for number in range(8)]
    events = [call("cudaLaunchKernel", BASE + 10 * number, 5, number) for number in range(3)]
    timeline = read_events(tmp_path, *events, deviceProperties=gpus)
    assert timeline.context.device == "8 x NVIDIA A100, no work of it recorded"
    head, _ = advised(timeline, advise(timeline)).packed()
    (finding,) = head["parts"][0]["findings"]
    assert finding["title"] == "work-not-seen" and finding["open"]


def test_ranks_without_a_device_have_loops_of_their_own(tmp_path):
    """Two ranks on the CPU with three steps of 100 ms each, half a step apart, are no loop of six steps of 50 ms."""
    for rank in range(2):
        begins = [BASE + 100_000 * step + 50_000 * rank for step in range(3)]
        events = [note(f"ProfilerStep#{step + 3}", begin, 100_000) for step, begin in enumerate(begins)]
        events += [op("aten::addmm", begin + 10, (90 + rank) * 1_000) for begin in begins]
        write(tmp_path, trace(*events, distributedInfo={"rank": rank}), f"{rank}.json")
    timeline = read(tmp_path).self_check()
    found = [summarize(timeline, device=device) for device in (0, 1)]
    assert [(each.batches, each.step) for each in found] == [(3, 100_000_000)] * 2
    table = rank_table(timeline)
    assert [(row.rank, row.works) for row in table.rows] == [
        ("0", 220_010_000),
        ("1", 273_000_000),
    ]  # in the time of rank 1, which works longer
    assert table.late == () and table.shared == 0 and advise(timeline)[0].kind == "no-gpu-work"


def test_a_rank_that_cannot_be_read_is_named(tmp_path):
    straggling(tmp_path, 0, count=3)
    write(tmp_path, "PK\x03\x04", "1.json")
    timeline = read(tmp_path)
    assert "left out: " in notes(timeline) and "1.json is no trace: it looks like a zip archive" in notes(timeline)
    assert {lane.device for lane in timeline.lanes if lane.group == "device"} == {0, 2}
    with pytest.raises(TraceError, match=r"1\.json is a damaged archive"):  # who names it wants it
        read([tmp_path / "0.json", tmp_path / "1.json"])


@pytest.mark.parametrize(
    ("gpus", "numbers"),
    [
        ([(0, 1), (2, 3)], [0, 1, 2, 3]),
        ([(2, 3), (0, 1)], [2, 3, 0, 1]),
        ([(0, 2), (1, 3)], [0, 1, 2, 3]),
        ([(0, 1), (0, 1)], [0, 1, 2, 3]),
    ],
)
def test_each_gpu_is_judged_with_the_loop_of_its_own_rank(tmp_path, gpus, numbers):
    """Rank 0 waits for 10 µs, rank 1 for 20 µs, whatever the numbers of their GPUs."""
    for rank, devices in enumerate(gpus):
        launches = [
            event
            for device in devices
            for event in (
                call("cudaLaunchKernel", BASE + 10 * device, 5, device + 1),
                work("gemm", BASE + 100, 20, device + 1, device=device),
            )
        ]
        wait = call("cudaDeviceSynchronize", BASE + 200, 10 * (rank + 1), 99)
        write(tmp_path, trace(note("ProfilerStep#3", BASE, 300), *launches, wait), f"rank_{rank}.json")
    timeline = read(tmp_path)
    waited = [summarize(timeline, device=number).host_blocked["synchronize"] for number in numbers]
    assert waited == [10_000, 10_000, 20_000, 20_000]
    lanes = {lane.device: lane.name[:6] for lane in timeline.lanes if lane.group == "device"}
    assert [lanes[number] for number in numbers] == ["rank 0", "rank 0", "rank 1", "rank 1"]


def test_threads_have_names(tmp_path):
    named = op("thread_name", BASE, 0, tid=33) | {"ph": "M", "args": {"name": "thread 33 (loader)"}}
    timeline = read_events(
        tmp_path,
        *loop(),
        op("autograd::engine::evaluate_function: MmBackward0", BASE + 50, 9, tid=31),
        named,
        op("aten::add", BASE + 50, 9, tid=32),
        op("aten::stack", BASE + 50, 9, tid=33),
    )
    names = {lane.number: lane.name for lane in timeline.lanes if lane.group == "host"}
    assert names == {PID: "main", 31: "autograd 31", 32: "thread 32", 33: "loader 33"}


def test_marks_of_the_loaders_hold_until_the_next(tmp_path):
    """`loaderviz.loaders` marks the hand-out of a batch; copies inside "prefetch of batch N" are for that batch."""
    events = [
        note("prefetch of batch 1", BASE + 2, 4),
        call("cudaMemcpyAsync", BASE + 3, 2, 1),
        copy(BASE + 9, 5, 1),
    ]

    def step(n, at):
        launch = call("cudaLaunchKernel", at + 20, 2, 2 + n)
        return [note(f"batch {n}: 64 samples", at + 10, 1), launch, work("k", at + 30, 5, 2 + n)]

    timeline = read_events(tmp_path, *events, *trace_files.repeated(2, 40, step))
    assert [row.batch for row in timeline.rows(Kind.COPY_H2D, Kind.COMPUTE)] == [1, 0, 1]
    assert [(row.start, row.end) for row in timeline.rows(Kind.RANGE) if row.name.startswith("batch")] == [
        (8_000, 48_000),
        (48_000, 60_000),
    ]
    assert summarize(timeline).samples == 128


def test_launches_match_brute_force(tmp_path):
    events, expected = [], {}
    for number in range(1, 200):
        launches = [BASE + random.randrange(10_000) for _ in range(random.choice([0, 1, 1, 2]))]
        events += [call("cudaLaunchKernel", ts, 1, number, tid=random.randrange(3)) for ts in launches]
        if random.random() < 0.9:
            events.append(work(f"k{number}", BASE + 20_000 + 10 * number, 5, number))
            expected[f"k{number}"] = min(launches, default=None)
    random.shuffle(events)
    timeline = read_events(tmp_path, *events)
    origin = min(event["ts"] for event in events)
    found = {
        timeline.row(int(head)).name: int(timeline.start[tail]) // 1000 + origin
        for tail, head in zip(timeline.arrows["tail"], timeline.arrows["head"], strict=True)
    }
    assert found == {name: ts for name, ts in expected.items() if ts is not None}
    orphans = sum(ts is None for ts in expected.values())
    assert f"{orphans} of {len(expected)} GPU spans without a launch" in notes(timeline)


def test_the_quality_of_a_recording(tmp_path):
    events = [*loop(), call("cudaLaunchKernel", BASE + 90, 1, 77), work("k", BASE + 95, 0, 99)]
    events += [op("aten::x", BASE + n, 1.0) for n in range(60)]
    line = "INFO: Record counts: Out-of-range = 7, Invalid ext correlations = 0, CUPTI stopped early? = 1"
    said = notes(read_events(tmp_path, *events, INFO=[line]))
    assert said.startswith("the profiler's buffer was full") and "left out 7 events from before" in said
    assert "1 of 3 launches without GPU work, 1 of 3 GPU spans without a launch" in said
    assert "33 % of GPU spans last 0 ns" in said
    assert "clock steps of 1 µs" in said


@pytest.mark.parametrize("data", [trace(), {"traceEvents": []}, [{"ph": "M", "name": "x", "pid": 1, "tid": 1}]])
def test_a_file_with_nothing_in_it_is_an_error(tmp_path, data):
    with pytest.raises(TraceError, match="has no events: the profiler recorded nothing"):
        read(write(tmp_path, data))


def test_a_rank_with_nothing_in_it_is_one_of_several(tmp_path):
    for rank, events in enumerate((loop(), [])):
        write(tmp_path, trace(*events, distributedInfo={"rank": rank}), f"{rank}.json")
    assert "rank 1: the file has no events that can be drawn" in notes(timeline := read(tmp_path))
    assert len(timeline) == 9
    (tmp_path / "0.json").unlink()
    with pytest.raises(TraceError, match=r"1\.json has no events"):
        read(tmp_path)


def test_a_bare_list_of_events_without_its_end(tmp_path):
    """The array form of the format; its closing bracket is optional."""
    text = json.dumps(loop())
    whole = read(write(tmp_path, text))
    assert len(whole) == 9
    assert read(write(tmp_path, text[:-1] + ",")).spans["start"].tolist() == whole.spans["start"].tolist()


def unmarked(loads, slices, first=0):
    """A loop whose steps nothing marks: so many with a DataLoader, each with two optimizers, then over slices."""
    return repeated(
        loads + slices,
        100,
        lambda n, at: [
            *[op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 20)] * (n < loads),
            *[call("cudaMalloc", at + 22, 8, 0)] * (n < first),
            op("aten::mm", at + 35, 3),
            call("cudaLaunchKernel", at + 36, 2, n + 1),
            work("gemm", at + 40, 50, n + 1),
            note("Optimizer.step#SGD.step", at + 90, 4),
            note("Optimizer.step#Adam.step", at + 95, 4),
        ],
    )


@pytest.mark.parametrize(("loads", "slices"), [(6, 0), (2, 0), (6, 9)])
def test_steps_that_nothing_marks_are_counted_by_the_loader(tmp_path, loads, slices):
    timeline = read_events(tmp_path, *unmarked(loads, slices))
    ranges = [(row.name, row.start // 1_000) for row in rows(timeline, Kind.RANGE) if row.name.startswith("batch")]
    late = [(f"batch {n}", 100 * n - 1) for n in range(loads, loads + slices)]  # from the optimizers' end on
    assert ranges == [(f"batch {n}", 100 * n) for n in range(loads)] + late
    assert [row.batch for row in rows(timeline, Kind.COMPUTE)] == list(range(loads + slices))
    assert "counted by DataLoader.__next__" in notes(timeline)
    assert summarize(timeline).batches == loads + slices


def test_the_pools_first_blocks_are_warm_up(tmp_path):
    """Thirty `__next__` ranges, cudaMalloc in the first two steps: they are no finding about the loop."""
    timeline = read_events(tmp_path, *unmarked(30, 0, first=2))
    assert summarize(timeline).batches == 28
    assert "allocates-in-loop" not in {finding.kind for finding in advise(timeline)}
    assert len(LoopModel(timeline).steps) == 28


def frame(name, ts, dur, tid=PID):
    return op(name, ts, dur, tid) | {"cat": "python_function", "args": {"Python id": 1, "Python parent id": None}}


@pytest.mark.parametrize("indent", [None, 1, 2])
def test_operators_know_the_nearest_line_outside_torch(tmp_path, indent):
    frames = {
        "train.py(30): <module>": (0, 1_000),
        "torch/nn/modules/module.py(1532): _call_impl": (10, 300),
        "src/net.py(5): forward": (20, 100),
        "<built-in method linear>": (25, 50),
        "/usr/lib/python3.11/contextlib.py(137): __enter__": (30, 60),
    }
    events = [frame(name, BASE + begin, length) for name, (begin, length) in frames.items()]
    events += [frame("other.py(9): run", BASE, 1_000, tid=PID + 1), op("aten::linear", BASE + 35, 9)]
    events += [call("cudaLaunchKernel", BASE + 36, 5, 1), work("gemm", BASE + 400, 9, 1)]
    events += [op("aten::relu", BASE + 150, 9), op("aten::after", BASE + 2_000, 9)]
    timeline = read(write(tmp_path, json.dumps(trace(*events), indent=indent)))
    inside = dict.fromkeys(("aten::linear", "cudaLaunchKernel", "gemm"), "src/net.py:5")
    expected = inside | {"aten::relu": "train.py:30", "aten::after": ""}
    assert {row.name: row.source for row in timeline.rows()} == expected
    assert "with_stack" not in advise(timeline).judged
    assert "with_stack=True" in advise(read_events(tmp_path, *loop())).judged


@pytest.mark.parametrize("program", [True, False])
def test_operators_know_the_line_of_the_program_or_the_outermost_of_a_package(tmp_path, program):
    frames = {
        "train.py(30): <module>": (0, 1_000),
        "/venv/lib/python3.11/site-packages/trainer/run.py(7): run": (10, 300),
        "torchvision/models/resnet.py(266): forward": (20, 100),
    }
    events = [frame(name, BASE + begin, length) for name, (begin, length) in list(frames.items())[1 - program :]]
    timeline = read(write(tmp_path, json.dumps(trace(*events, op("aten::conv2d", BASE + 35, 9)))))
    assert timeline.lines[timeline.row(0).source] == ("train.py:30" if program else "run.py:7")


def nested(count, most):
    """Nested frames of one thread at random, (begin, end) in µs below `most`, and their events."""
    frames, stack = [], []
    for time in sorted(random.sample(range(most), count)):
        if stack and random.random() < 0.5:
            frames.append((stack.pop(), time))
        else:
            stack.append(time)
    frames += [(begin, most) for begin in stack]
    return frames, [frame(f"a{n}.py({n}): f", BASE + begin, end - begin) for n, (begin, end) in enumerate(frames)]


def test_the_nearest_line_by_brute_force(tmp_path):
    """It is of the last frame that began and has not ended."""
    frames, events = nested(400, 10_000)
    edges = {edge for each in frames for edge in each}
    events += [op(f"op{time}", BASE + time, 0) for time in range(1, 10_000, 37) if time not in edges]
    for row in read_events(tmp_path, *events).rows():
        time = int(row.name.removeprefix("op"))
        open_ones = [(begin, n) for n, (begin, end) in enumerate(frames) if begin <= time < end]
        assert row.source == (f"a{max(open_ones)[1]}.py:{max(open_ones)[1]}" if open_ones else "")


# What is not in a file although it happened


def others(count, cat="mystery"):
    return [event(cat, f"odd {number}", PID, 2, BASE + number, 1, {}) for number in range(count)]


def lacking(key, count):
    return [each | {key: None} for each in others(count, "cpu_op")]


@pytest.mark.parametrize(
    ("events", "outer", "kind", "told"),
    [
        ([op("aten::mm", BASE, 5), *others(3)], {}, "work-not-seen", "only 25 % of the events with a duration"),
        ([*loop(), *others(30)], {}, "work-not-seen", "only 21 % of the events with a duration"),
        ([*loop(), *others(5)], {}, None, None),
        ([*loop(), *lacking("dur", 12)], {}, "work-not-seen", "only 40 % of the events with a duration"),
        ([*loop(), *lacking("ts", 30)], {}, "work-not-seen", "the timeline; 30 events cannot be read"),
        ([*loop(), *lacking("dur", 5)], {}, None, None),
        ([op("aten::mm", BASE, 5), *others(30, "python_function")], {}, "no-gpu-work", None),  # stacks
        (
            [op("aten::mm", BASE, 5)],
            {"deviceProperties": [{"id": 0, "name": "H100"}, {"id": 1, "name": "H100"}]},
            "work-not-seen",
            "the file names 2 x H100, and has no call that launches work",
        ),
        ([*loop()], {"deviceProperties": [{"id": 0, "name": "H100"}]}, None, None),
        ([op("aten::mm", BASE, 5)], {}, "no-gpu-work", None),
        ([*loop()], {"INFO": ["CUPTI stopped early? = 1"]}, "work-not-seen", "buffer was full"),
    ],
)
def test_nothing_is_said_of_what_the_file_has_not_seen(tmp_path, events, outer, kind, told):
    timeline = read_events(tmp_path, *events, **outer)
    found = [finding.kind for finding in advise(timeline)]
    assert kind is None or kind in found
    assert bool(timeline.context.missing) is bool(told) and ("work-not-seen" in found) is (kind == "work-not-seen")
    if told:
        assert told in timeline.context.missing[0] and timeline.context.notes[0] == timeline.context.missing[0]
        assert any(told in finding.evidence for finding in advise(timeline)) and told in describe(timeline)
        assert Timeline.from_dict(timeline.to_dict()) == timeline


@pytest.mark.parametrize("process", ["Ascend Hardware", "Ascend Hardware 0", "CANN", "CANN 12", "Overlap Analysis"])
def test_a_profile_of_an_ascend_npu_is_refused_by_name(tmp_path, process):
    named = {"ph": "M", "name": "process_name", "pid": 9, "args": {"name": process}}
    for at in (0, 9):
        events = loop()
        events.insert(at, named)
        with pytest.raises(TraceError, match=r"Ascend NPU.*is not read"):
            read(write(tmp_path, trace(*events)))


@pytest.mark.parametrize(("other", "told"), [(True, True), (False, False)])
def test_a_kernel_that_is_loaded_when_it_is_first_launched_is_warm_up(tmp_path, other, told):
    """The tenth launch takes 20 ms; it is the first of its kernel, or the tenth of the same, which is no first call."""
    events, at = [], BASE
    for number in range(12):
        events.append(call("cudaLaunchKernel", at, length := 20_000 if number == 9 else 10, number + 1))
        name = "new_kernel" if other and number == 9 else "gemm"
        events.append(work(name, at + length + 5, 30, number + 1))
        at += length + 50
    found = {finding.kind: finding for finding in advise(read_events(tmp_path, *events))}
    assert ("warm-up" in found) is told
    if told:
        assert "first calls of cudaLaunchKernel" in found["warm-up"].evidence
        assert "host-bound" not in found or found["host-bound"].expected_gain.ns < 1_000_000


# Where the main thread is between its calls of torch, by frames of Python


def test_pauses_by_brute_force(tmp_path):
    """Of each pause of 100 µs or more the innermost frame that is open for more than half of it, counted µs by µs."""
    frames, events = nested(120, 20_000)
    calls = sorted(random.sample(range(1, 20_000), 60))
    timeline = read_events(tmp_path, *events, *(op(f"op{time}", BASE + time, 1) for time in calls))
    expected = []
    for begin, end in itertools.pairwise(calls):
        most = [
            (start, f"a{n}.py:{n}")
            for n, (start, stop) in enumerate(frames)
            if sum(start <= time < stop for time in range(begin + 1, end)) * 2 > end - begin - 1
        ]
        if end - begin - 1 >= 100 and most:
            expected.append(((begin + 1 - calls[0]) * 1_000, (end - begin - 1) * 1_000, max(most)[1]))
    assert [tuple(look) for look in timeline.context.looks] == expected != []


def test_a_line_that_calls_nothing_of_torch_is_named_by_its_frame(tmp_path):
    """A step of 1 ms on the GPU, before which a function of the program works for 4 ms; the line before it is known."""
    events = repeated(
        8,
        5_000,
        lambda n, at: [
            note(f"ProfilerStep#{n}", at, 5_000),
            frame("train.py(7): reset", at, 20),
            op("aten::zero_", at + 2, 5),
            frame("data.py(3): tokenize", at + 50, 3_900),
            frame("re/__init__.py(9): sub", at + 60, 3_800),
            op("aten::mm", at + 4_000, 20),
            call("cudaLaunchKernel", at + 4_005, 5, n + 1),
            work("gemm", at + 4_020, 900, n + 1),
        ],
    )
    found = advise(read_events(tmp_path, frame("train.py(1): main", BASE, 40_000), *events))[0]
    assert found.kind == "other-work-in-loop" and found.evidence.startswith("data.py:3 takes")


@pytest.mark.parametrize("slow", [0, 1, 2])
@pytest.mark.parametrize("what", ["loads", "waits", "computes"])
def test_of_ranks_on_the_cpu_the_slow_one_is_judged(tmp_path, slow, what):
    """All of them are as long in their steps, since the others wait in the collective."""
    for rank in range(3):
        loads = 1_800 if rank == slow and what != "computes" else 300
        computes = 2_500 if rank == slow and what == "computes" else 1_000
        events = repeated(
            6,
            4_000,
            lambda n, at, loads=loads, computes=computes: [
                note(f"ProfilerStep#{n}", at, 4_000),
                op(
                    f"enumerate(DataLoader)#_{'Multi' if what == 'waits' else 'Single'}ProcessDataLoaderIter.__next__",
                    at,
                    loads,
                ),
                op("aten::addmm", at + loads, computes),
                op("gloo:all_reduce", at + loads + computes, 3_900 - loads - computes),
            ],
        )
        write(tmp_path, trace(*events, distributedInfo={"rank": rank, "backend": "gloo"}), f"{rank}.json")
    timeline = read(tmp_path)
    assert summarize(timeline).device == slow
    advice, kinds = advise(timeline), {"loads": "fetch-in-loop", "waits": "waiting-for-data"}
    assert advice.judged.startswith(f"Judged: rank {slow}, one of 3, ") and "device" not in advice.judged
    found = [each for each in advice if each.kind in kinds.values()]
    assert [each.kind for each in found] == ([kinds[what]] if what in kinds else [])
    assert all(each.expected_gain.per_step > 1_500_000 for each in found)


def test_files_of_one_rank_are_told_apart_and_that_is_said(tmp_path):
    for name in ("node0", "node1"):
        write(tmp_path, trace(*loop(), distributedInfo={"rank": 0}), f"{name}.json")
    assert "2 files are of rank 0, and are told apart by their number" in notes(read(tmp_path))


@pytest.mark.parametrize("ranks", [1, 2])
def test_lines_of_pauses_are_those_of_one_program(tmp_path, ranks):
    for rank in range(ranks):
        events = [op("aten::mm", BASE, 5), op("aten::mm", BASE + 500, 5), frame("train.py(3): wait", BASE, 600)]
        write(tmp_path, trace(*events, distributedInfo={"rank": rank}), f"{rank}.json")
    looks = read(tmp_path).context.looks
    assert [tuple(look) for look in looks] == [(5_000, 495_000, "train.py:3")] * (ranks == 1)


def test_the_slow_part_of_a_real_inference_is_its_pictures():
    """By hand: of 382 ms, 217 ms are in `preprocess`, 178 of them in the image processor."""
    found = advise(real("measured/h100_timesformer_bf16_2025.json.gz"))[0]
    assert found.kind == "other-work-in-loop" and "image_processing_videomae.py:235 takes 215.3 ms" in found.evidence


@pytest.mark.parametrize("pinned", ["Pageable", "Pinned"])
def test_a_plain_copy_to_the_host_is_a_wait_of_its_own(tmp_path, pinned):
    """Kernels of 100 µs, and `cudaMemcpy` of 200 µs, which returns when the copy is done."""
    events = repeated(
        10,
        400,
        lambda n, at: [
            note(f"ProfilerStep#{n}", at, 400),
            call("cudaLaunchKernel", at, 5, 2 * n + 1),
            work("gemm", at + 10, 100, 2 * n + 1),
            call("cudaMemcpy", at + 20, 292, 2 * n + 2),
            copy(at + 111, 200, 2 * n + 2, f"Memcpy DtoH (Device -> {pinned})", nbytes=2_000_000),
        ],
    )
    found = advise(read_events(tmp_path, *events))[0]
    assert found.kind == "synchronizes-each-step" and "10 copies bring a result to the host" in found.evidence
    assert "total += loss.detach()" in found.change and found.expected_gain.per_step >= 200_000


@pytest.mark.parametrize("captured", [False, True])
def test_a_graph_is_said_to_be_captured_only_where_that_is_seen(tmp_path, captured):
    events = [call("cudaStreamBeginCapture", BASE + 900, 5, 900)] if captured else []
    events += [call("cudaLaunchKernel", BASE + 100 * n, 5, n + 1) for n in range(40)]
    events += [work("gemm", BASE + 100 * n + 10, 50, n + 1) for n in (*range(10), 39)]
    advice = advise(read_events(tmp_path, *events))
    told = next(each for each in advice if each.kind == "work-not-seen").evidence
    assert "29 of 39 launches have no work on the GPU: a CUDA graph is captured" in told
    assert ("or the profiler lost their work" in told) is not captured


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("lost", [0, 2, 4])  # of five launches a step
def test_where_most_work_was_lost_nothing_else_comes_first(tmp_path, lost, captured):
    """The loop waits for data; what it could gain is not known unless it is seen why launches have no work."""
    events = repeated(
        10,
        1_000,
        lambda n, at: [
            note(f"ProfilerStep#{n}", at, 1_000),
            op("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", at, 700),
            *[call("cudaLaunchKernel", at + 710 + 50 * k, 5, 5 * n + k + 1) for k in range(5)],
            *[work("gemm", at + 720 + 50 * k, 45, 5 * n + k + 1) for k in range(lost, 5)],
        ],
    )
    events += [call("cudaStreamBeginCapture", BASE, 5, 900)] * captured
    kinds = [finding.kind for finding in advise(read_events(tmp_path, *events))]
    assert ("work-not-seen" in kinds) is (lost == 4) and "waiting-for-data" in kinds
    assert kinds[0] == ("work-not-seen" if lost == 4 and not captured else "waiting-for-data")
