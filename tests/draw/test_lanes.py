"""Where spans go: the order of the lanes, and tracks without overlaps."""

from __future__ import annotations

import factory
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loaderviz.builder import TimelineBuilder
from loaderviz.draw.lanes import arrange, depths, left_px
from loaderviz.timeline import Context, Kind

SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), max_size=20)


def labels(timeline, **options):
    return [track.label for track in arrange(timeline, **options).tracks]


def test_lanes_go_the_way_of_a_batch():
    assert labels(factory.loader("prefetch")) == [
        "worker 0", "worker 1", "pin thread", "main · ranges", "main · calls", "main · waits", "H2D engine", "stream 0",
        "stream 7", "GPU state",
    ]  # fmt: skip
    assert "main · operators" in labels(factory.loader("prefetch"), operators=True)
    assert labels(factory.empty()) == []


def test_nested_tracks_and_long_names_are_labelled():
    builder = TimelineBuilder(Context())
    lane = builder.lane("a thread with a name of more letters than there is room", "host", "main")
    builder.span(0, 10, lane, Kind.RANGE, "outer")
    builder.span(2, 8, lane, Kind.RANGE, "inner")
    tracks = arrange(builder.build()).tracks
    assert [track.label for track in tracks] == ["a thread with a name of…here is room · ranges", "nested"]
    assert left_px(tracks) > left_px(tracks[1:]) == 150


def test_every_span_is_drawn_once_and_copies_once_more_in_their_engine():
    timeline = factory.loader("prefetch")
    placement = arrange(timeline, operators=True)
    times = np.bincount(placement.span, minlength=len(timeline))
    assert (times == np.where(timeline.where(Kind.COPY_H2D), 2, 1)).all()


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


def test_a_stream_needs_one_track_even_with_spans_of_no_length():
    assert depths(np.array([0, 10, 10, 20]), np.array([10, 10, 20, 20])).tolist() == [0, 0, 0, 0]


def test_a_long_operator_is_drawn_where_the_host_would_seem_to_do_nothing():
    builder = TimelineBuilder(Context())
    main = builder.lane("main", "host", "main")
    alone = builder.span(0, 500, main, Kind.OPERATOR, "aten::div")
    builder.span(10, 400, main, Kind.OPERATOR, "inside of it")
    builder.span(450, 460, main, Kind.API, "cudaLaunchKernel")
    builder.span(500, 510, main, Kind.OPERATOR, "a short one")
    builder.span(600, 900, main, Kind.OPERATOR, "around a call")
    builder.span(610, 890, main, Kind.API, "cudaMemcpyAsync")
    timeline = builder.build()
    placement = arrange(timeline)
    assert [track.label for track in placement.tracks] == ["main · operators", "main · calls"]
    assert [timeline.names[timeline.name[span]] for span in placement.span[placement.track == 0]] == ["aten::div"]
    assert alone in placement.span


def test_each_gpu_has_its_own_lanes_and_strip():
    builder = TimelineBuilder(Context())
    for device in (1, 0):
        lane = builder.lane("stream 7", "device", number=7, device=device)
        builder.span(0, 10, lane, Kind.COPY_D2H, "Memcpy DtoH (Device -> Pinned)")
    placement = arrange(builder.build())
    names = ["D2H engine", "stream 7", "state"]
    assert [track.label for track in placement.tracks] == [f"GPU {gpu} · {name}" for gpu in (0, 1) for name in names]
    assert sorted(placement.strips) == [0, 1]
    tops = [track.top for track in placement.tracks]
    assert tops == sorted(tops)
    assert placement.bottom == placement.tracks[-1].top + placement.tracks[-1].height
