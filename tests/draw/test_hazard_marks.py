"""Hazards in the picture: what is outlined, shaded, dashed and written, and where."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from loaderviz import draw
from loaderviz.builder import TimelineBuilder
from loaderviz.draw import hazards
from loaderviz.timeline import Context, Kind

TEXT = "stream 13 overwrites float32[4] while stream 7 still reads it; missing: record_stream at train.py:3"


def timeline(marks=1, gap=0, spans=True):
    """A kernel on one stream, and the copy that overwrites what it reads on another, `marks` times."""
    builder = TimelineBuilder(Context("A100", "emulated", "laptop"))
    main, side = builder.lane("stream 7", "device", number=7), builder.lane("stream 13", "device", number=13)
    for number in range(marks):
        start = number * 10_000
        kernel = builder.span(start, start + 4_000, main, Kind.COMPUTE, "norm", batch=number)
        begin = start + 3_000 + gap
        copy = builder.span(begin, begin + 2_000, side, Kind.COPY_H2D, "Memcpy HtoD (Pinned -> Device)", batch=number)
        builder.mark(begin, side, "early-reuse", TEXT, (kernel, copy) if spans else (-1, -1))
    return builder.build()


def named(figure):
    return {trace.name: trace for trace in figure.data if trace.type == "scatter" or trace.zorder}


def band_of(figure):
    (band,) = [trace for trace in figure.data if trace.name == "both at once"]
    return band


def boxes(trace):
    """[(left, right, top, bottom)] of a trace of rectangles."""
    x, y = np.array(trace.x).reshape(-1, 6)[:, :5], np.array(trace.y).reshape(-1, 6)[:, :5]
    return [(*map(float, box),) for box in zip(x.min(1), x.max(1), y.min(1), y.max(1), strict=True)]


def test_both_spans_are_outlined_in_their_lanes_and_the_time_they_share_is_shaded():
    figure = timeline().figure()
    traces, labels = named(figure), dict(zip(figure.layout.yaxis.tickvals, figure.layout.yaxis.ticktext, strict=True))
    kernel, copy = boxes(traces["in a race"])
    assert (kernel[:2], copy[:2]) == ((0, 4), (3, 5))
    assert [labels[round((box[2] + box[3]) / 2, 6)] for box in (kernel, copy)] == ["stream 7", "stream 13"]
    band = band_of(figure)
    assert (list(band.base), list(band.x)) == ([3], [1])
    assert band.zorder < 0  # behind the bars, whose colours stay
    top, bottom = (band.y[0] + side * band.width[0] / 2 for side in (-1, 1))
    assert top < kernel[2] < copy[3] < bottom


def test_the_missing_order_is_dashed_from_the_end_of_the_first_to_the_start_of_the_second():
    figure = timeline(gap=3_000).figure()
    edge = named(figure)["missing order"]
    assert (edge.x[:2], edge.line.dash) == ((4.0, 6.0), "dash")
    assert not band_of(figure).base  # they came apart


def test_words_stand_below_the_lanes_and_a_line_leads_there():
    figure = timeline().figure()
    (note,) = [each for each in figure.layout.annotations if "early-reuse" in each.text]
    assert note.text.split("<br>")[1] == "missing: record_stream at train.py:3"
    bars = [trace for trace in figure.data if trace.type == "bar" and list(trace.y) != [None]]
    assert max(np.max(trace.y) for trace in bars) < note.y < figure.layout.yaxis.range[0]
    (leader,) = [shape for shape in figure.layout.shapes if shape.type == "line"]
    assert leader.x0 == leader.x1 == 3 and leader.y1 == note.y
    assert note.font.size >= 12


@pytest.mark.parametrize("width", [880, 1_500])
def test_words_are_met_by_the_line_that_leads_there_and_stay_inside(width):
    shown = timeline(3)
    for number, mark in enumerate(shown.marks):
        alone = dataclasses.replace(shown, marks=(dataclasses.replace(mark, text=f"{TEXT} {'wide ' * number * 8}"),))
        figure = alone.figure()
        (note,), (leader,) = figure.layout.annotations, [each for each in figure.layout.shapes if each.type == "line"]
        low, high = figure.layout.xaxis.range
        line = (leader.x0 - low) / (high - low) * width
        left = line + note.xshift
        right = left + 7.3 * max(map(len, re.sub("<[^i>]*>", "", note.text.replace("<br>", "\n")).splitlines()))
        assert note.x == leader.x0
        assert -8 <= left <= line <= right <= width + 1, (number, left, line, right)


def test_hazards_of_the_same_words_share_them():
    (note,) = [note for note in timeline(3).figure().layout.annotations if "early-reuse" in note.text]
    assert note.text.startswith("<b>early-reuse, 3 times: stream 13 overwrites")


def test_long_words_go_on_in_a_second_line():
    shown = timeline()
    long = dataclasses.replace(shown.marks[0], text=f"{'what is wrong ' * 14}; missing: {'a wait ' * 30}")
    (note,) = dataclasses.replace(shown, marks=(long,)).figure().layout.annotations
    lines = note.text.split("<br>")
    assert [line.startswith("<b>") for line in lines] == [True, True, False, False]
    assert max(map(len, lines)) < 120


def test_only_the_first_are_drawn_in_full_and_all_have_a_cross():
    figure = timeline(9).figure()
    assert len(boxes(named(figure)["in a race"])) == 2 * hazards.IN_FULL
    assert len(named(figure)["hazard"].x) == 9
    assert all("record_stream" in text for text in named(figure)["hazard"].hovertext)


def test_the_cross_of_an_access_by_the_host_stands_in_its_own_track():
    builder = TimelineBuilder(Context())
    main, side = builder.lane("main", "host", "main"), builder.lane("stream 13", "device", number=13)
    builder.span(0, 9_000, main, Kind.RANGE, "batch 0")
    copy = builder.span(1_000, 5_000, side, Kind.COPY_H2D, "Memcpy HtoD (Pinned -> Device)")
    fill = builder.span(2_000, 3_000, main, Kind.OPERATOR, "aten::fill_")
    builder.mark(2_000, main, "early-refill", TEXT, (copy, fill))
    figure = builder.build().figure(operators=True)
    labels = dict(zip(figure.layout.yaxis.tickvals, figure.layout.yaxis.ticktext, strict=True))
    assert labels[named(figure)["hazard"].y[0]] == "main · operators"
    left_out = named(builder.build().figure())["hazard"]
    assert labels[left_out.y[0]] == "main · ranges"


@pytest.mark.parametrize("shown", [timeline(spans=False), timeline().between(6_000, 7_000)])
def test_a_hazard_without_both_spans_in_the_picture_has_at_most_its_cross(shown):
    traces = named(shown.figure())
    assert not traces or not (traces["in a race"].x or traces["missing order"].x)


def test_without_hazards_nothing_is_added():
    plain = timeline(0)
    assert not {"hazard", "in a race", "missing order", "both at once"} & set(named(timeline(0).figure()))
    assert len(plain.figure(steady=True).data) == len(timeline(2).figure(steady=True).data)


def test_text_is_escaped():
    builder = TimelineBuilder(Context())
    lane = builder.lane("stream 7", "device")
    spans = tuple(builder.span(n, n + 1, lane, Kind.COMPUTE, "k") for n in range(2))
    builder.mark(0, lane, "early-read", "a<b & c; missing: <d>", spans)
    (note,) = draw.figure(builder.build()).layout.annotations
    assert note.text == "<b>early-read: a&lt;b &amp; c</b><br>missing: &lt;d&gt;"
