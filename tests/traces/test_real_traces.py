"""The public traces: their figures, as other tools and exact arithmetic over the raw events found them."""

import gzip
import json

import pytest
from factory import real, shared
from trace_files import notes

from loaderviz import summarize
from loaderviz.timeline import DEVICE_KINDS, KERNELS, Cause, Kind
from loaderviz.traces import read

US = 1_000


def raw_events(path, *categories):
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return [event for event in events if event.get("ph") == "X" and event.get("cat", "").lower() in categories]


@pytest.mark.parametrize(
    ("name", "spans", "copy", "hidden"),
    [
        ("alexnet_pageable_2023.json.gz", 361 + 359 + 79 + 16 + 8 + 3, 55_503, 0),
        ("two_ranks/rank-0.json.gz", 2329 + 1204 + 1154 + 73 + 40 + 10, 893, 871),
        ("resnet50_workers0_2021.json.gz", 23646 + 11923 + 8772 + 312 + 12, 11_492, 0),
    ],
)
def test_copies_and_what_hides_them(name, spans, copy, hidden):
    timeline = real(name).self_check()
    summary = summarize(timeline)
    assert (summary.copy, summary.hidden_copy) == (copy * US, hidden * US)
    assert "no event lost" in notes(timeline)
    added = sum(row.cause not in (Cause.NONE, Cause.DATA) for row in timeline.rows(Kind.WAIT))
    assert len(timeline) - added == spans  # nothing dropped, nothing twice


def test_alexnet_window_and_idle():
    """T and idle over the GPU's rows, the two figures of research 5 (without synchronisation rows)."""
    timeline = real("alexnet_pageable_2023.json.gz")
    gpu = timeline.where(*DEVICE_KINDS)
    window = int(timeline.start[gpu].min()), int(timeline.end[gpu].max())
    summary = summarize(timeline, window=window)
    assert (summary.window, summary.idle) == (12_920_244 * US, 12_854_103 * US)
    assert timeline.context.device == "NVIDIA A100-PG509-200"
    assert "2 of 100 launches without GPU work, 0 of 98 GPU spans without a launch" in notes(timeline)
    assert [row.pinned for row in timeline.rows(Kind.COPY_H2D)] == [False] * 16


def test_resnet_steps_and_fetching():
    path = shared("resnet50_workers0_2021.json.gz")
    timeline = read(path)
    assert summarize(timeline).batches == 6
    assert {int(batch) for batch in timeline.batch[timeline.where(Kind.COPY_H2D)]} == set(range(5, 11))
    assert summarize(timeline).breakdown["idle: host fetches a batch"] > 0.3 * timeline.duration
    kernels = raw_events(path, "kernel")
    times = sorted((event["ts"] * US, event["dur"] * US) for event in kernels)
    origin = times[0][0] - int(timeline.start[timeline.where(*KERNELS)].min())
    mine = timeline.where(*KERNELS)
    assert [(start - origin, length) for start, length in times] == sorted(
        zip(timeline.start[mine].tolist(), (timeline.end - timeline.start)[mine].tolist(), strict=True)
    )
    assert "7 % of GPU spans last 0 ns" in notes(timeline)


def test_two_ranks_side_by_side():
    folder = shared("two_ranks")
    together = real("two_ranks")
    for rank in (0, 1):
        alone = real(f"two_ranks/rank-{rank}.json.gz")
        assert summarize(together, device=rank).copy == summarize(alone).copy
        assert summarize(together, device=rank).compute == summarize(alone).compute
    first = [min(event["ts"] for event in raw_events(folder / f"rank-{rank}.json.gz", "kernel")) for rank in (0, 1)]
    starts = [min(row.start for row in together.rows(*KERNELS) if row.lane.device == rank) for rank in (0, 1)]
    assert starts[1] - starts[0] == (first[1] - first[0]) * US
    assert {lane.name for lane in together.lanes if lane.role == "main"} == {"rank 0 main", "rank 1 main"}


def test_cpu_only_and_synchronisation():
    cpu = real("cpu_only_2023.json.gz")
    assert [lane.name for lane in cpu.lanes] == ["main"]
    assert summarize(cpu).host_blocked == {"waiting for data": 71 * US}
    sync = summarize(real("event_sync_2023.json.gz")).host_blocked
    assert sync == {"staging": 29 * US, "synchronize": (6 + 34 + 8) * US}
