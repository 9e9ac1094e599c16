"""Where spans go: the order of the lanes, and tracks without overlaps."""

import factory
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderviz.timeline import Kind
from loaderviz.view.lanes import LANES, arrange, depths

SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), max_size=20)


def names(timeline, **options):
    return [row.name for row in arrange(timeline, **options)[0]]


def test_lanes_go_the_way_of_a_batch_in_the_words_of_the_reader():
    assert names(factory.loader("prefetch")) == [
        "worker 0", "worker 1", "pin thread", "main thread: batches", "main thread: CUDA calls", "main thread waits",
        "copy engine to GPU", "default stream", "side stream 7", "what the GPU does",
    ]  # fmt: skip
    assert "main thread: operators" in names(factory.loader("prefetch"), operators=True)
    assert names(factory.empty()) == []


def test_every_span_is_in_one_track_and_copies_in_that_of_their_engine_too():
    timeline = factory.loader("prefetch")
    rows, left_out = arrange(timeline, operators=True)
    times = np.bincount(np.concatenate([track for row in rows for track in row.tracks]), minlength=len(timeline))
    assert (times == np.where(timeline.where(Kind.COPY_H2D), 2, 1)).all()
    assert [row.kind for row in rows if row.mirror] == ["engine"] and left_out == 0


@given(SPANS)
def test_tracks_hold_no_overlap(spans):
    start = np.array([start for start, _ in spans], np.int64)
    end = start + np.array([length for _, length in spans], np.int64)
    depth = depths(start, end)
    for one in range(len(spans)):
        for other in range(one):
            if depth[one] == depth[other] and end[one] > start[one] and end[other] > start[other]:
                assert end[one] <= start[other] or end[other] <= start[one]


def test_nested_spans_go_down_one_track_a_level():
    #         outer      child     grandchild  child     apart
    start = np.array([0, 10, 20, 60, 100])
    end = np.array([100, 50, 30, 90, 110])
    assert depths(start, end).tolist() == [0, 1, 2, 1, 0]
    assert depths(start[::-1], end[::-1]).tolist() == [0, 1, 2, 1, 0][::-1]
    points = depths(np.array([0, 10, 10, 20]), np.array([10, 10, 20, 20]))  # a stream needs one track even with them
    assert points.tolist() == [0, 0, 0, 0]


def test_a_long_operator_is_drawn_where_the_host_would_seem_to_do_nothing():
    timeline = factory.made(
        ("main", 0, 500, Kind.OPERATOR),
        ("main", 10, 400, Kind.OPERATOR),  # inside of it
        ("main", 450, 460, Kind.API),
        ("main", 500, 510, Kind.OPERATOR),  # a short one
        ("main", 600, 900, Kind.OPERATOR),  # around a call
        ("main", 610, 890, Kind.API),
    )
    operators, calls = arrange(timeline)[0]
    assert (operators.name, calls.name) == ("main thread: operators", "main thread: CUDA calls")
    assert operators.tracks[0].tolist() == [0]


def test_each_gpu_has_its_own_lanes_and_strip():
    rows, _ = arrange(factory.made(*((f"stream 7@{device}", 0, 10, Kind.COPY_D2H) for device in (1, 0))))
    assert [(row.device, row.name) for row in rows] == [
        (gpu, name) for gpu in (0, 1) for name in ("copy engine from GPU", "default stream", "what the GPU does")
    ]


@pytest.mark.parametrize("depth", [4, 6])
def test_spans_nested_too_deeply_are_counted(depth):
    rows, left_out = arrange(factory.made(*(("thread 5", level, 100 - level, Kind.RANGE) for level in range(depth))))
    assert (len(rows[0].tracks), left_out) == (4, depth - 4)


@pytest.mark.parametrize("devices", [1, 3 * LANES])
def test_of_very_many_lanes_the_busiest_are_drawn_and_a_line_says_how_many_are_not(devices):
    streams = ((f"stream {n + 8}@{n % devices}", n, n + 10 + n % 999, Kind.COMPUTE) for n in range(3 * LANES))
    threads = ((f"thread {n}", n, n + 10 + n % 777, Kind.API) for n in range(2 * LANES))
    timeline = factory.made(("main", 0, 5, Kind.API), ("stream 7", 0, 1, Kind.COPY_H2D), *threads, *streams)
    rows, left_out = arrange(timeline)
    drawn = {group: [row for row in rows if row.kind == group and row.of >= 0] for group in ("host", "stream")}
    assert [row.name for row in rows[-2:]] == ["and 251 more threads", "and 501 more streams"]
    assert (len(drawn["host"]), len(drawn["stream"]), left_out) == (LANES, LANES, 0)
    assert drawn["host"][0].name == "main thread: CUDA calls"  # although it is seldom busy
    busy = {
        lane: int((timeline.end - timeline.start)[timeline.lane == lane].sum()) for lane in range(len(timeline.lanes))
    }
    shown = sorted(busy[row.of] for row in drawn["stream"])
    assert shown == sorted(busy[n] for n, lane in enumerate(timeline.lanes) if lane.role == "stream")[-LANES:]
    head, _ = timeline.view().packed()
    assert head["parts"][0]["lanes"][-1]["tracks"] == [{"count": 0, "mirror": False}]
    said = "501 more streams are not drawn: they are busy for a shorter time than those in the picture"
    assert head["parts"][0]["lanes"][-1]["title"] == said == head["notes"][-1]
    assert head["parts"][0]["lanes"][-1]["group"] == -1
    assert ">and 501 more streams<" in timeline.view().svg()
