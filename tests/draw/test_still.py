"""The still picture: well-formed, with every bar where plotly has it, and words that stand for the rest."""

from __future__ import annotations

import dataclasses
import re
import xml.etree.ElementTree as ET

import factory
import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_figure import hazard

from loaderviz import draw
from loaderviz.builder import TimelineBuilder
from loaderviz.draw import still, theme
from loaderviz.timeline import ArrowKind, Context, Kind

SVG = "{http://www.w3.org/2000/svg}"


def parts(picture, tag):
    return list(ET.fromstring(picture).iter(SVG + tag))


def words(picture):
    return ["".join(each.itertext()) for each in parts(picture, "text")]


@pytest.mark.parametrize("color", ["batch", "kind"])
@pytest.mark.parametrize("name", factory.LOADERS)
def test_every_bar_has_its_rectangle(name, color):
    figure = factory.loader(name).figure(color=color)
    (left, right), (first, last) = (150, still.WIDTH - 24), figure.layout.xaxis.range
    expected = []
    for trace in figure.data:
        if isinstance(trace, go.Bar) and trace.base:
            x = left + (np.array(trace.base) - first) / (last - first) * (right - left)
            wide = np.maximum(0.5, np.array(trace.x) / (last - first) * (right - left))
            expected += zip(x.round(1).tolist(), wide.round(1).tolist(), strict=True)
    found = [
        (float(each.get("x")), float(each.get("width")))
        for each in parts(still.svg(figure), "rect")
        if each.get("stroke") or (each.get("fill", "").startswith(("#", "url")) and "." in each.get("width", ""))
    ]
    missing = [bar for bar in expected if not any(np.allclose(bar, each, atol=0.11) for each in found)]
    assert expected
    assert missing == []


def test_names_are_written_as_they_are():
    """`<`, `&` and quotes in names are words, not tags."""
    picture = still.svg(hazard().figure(title='a <b> & "c"'))
    assert 'a <b> & "c"' in words(picture)
    assert "early-read: norm reads batch 0 before its copy is complete" in words(picture)
    assert {"main · waits", "stream 0", "stream 9", "GPU state", "time [µs]", "A100, emulated"} <= set(words(picture))


def test_the_legend_is_that_of_the_bars():
    figure = factory.loader("prefetch").figure()
    picture = still.svg(figure)
    entries = [trace.name for trace in figure.data if trace.showlegend]
    assert len(entries) > 5
    assert words(picture)[-len(entries) :] == sorted(
        entries, key=lambda name: next(trace.legendrank or 1_000 for trace in figure.data if trace.name == name)
    )
    striped = parts(picture, "pattern")
    assert len(striped) == 2  # host blocked, copy hidden
    assert {theme.PURPLE.lstrip("#"), theme.ORANGE.lstrip("#")} == {each.get("id")[-6:] for each in striped}


def test_patterns_differ_by_shape_and_by_their_ground():
    """Orange crosses of a batch are not the orange stripes of a hidden copy, which lie on dark."""
    builder = TimelineBuilder(Context(device="A100", origin="emulated"))
    stream, side = builder.lane("stream 7", "device", number=7), builder.lane("stream 9", "device", number=9)
    builder.span(0, 900, stream, Kind.COMPUTE, "kernel", batch=1)
    builder.span(100, 400, side, Kind.COPY_H2D, "Memcpy HtoD", batch=1)
    for number, kind in enumerate((Kind.COPY_D2D, Kind.MEMSET)):
        builder.span(900 + 100 * number, 1_000 + 100 * number, stream, kind, "work", batch=number)
    picture = still.svg(builder.build().figure())
    found = [each.get("id") for each in parts(picture, "pattern")]
    assert len(found) == len(set(found))
    assert {name[:4] for name in found if name.endswith("E69F00")} == {"stri", "dots"}
    assert {"crosses: copy D2D", "dots: memset"} <= set(words(picture))
    used = set(re.findall(r"url\(#(\w+)\)", picture)) - {"arrow"}
    assert used == set(found)


def test_lines_arrows_and_crosses_are_there():
    timeline = factory.loader("prefetch")
    picture = still.svg(timeline.figure(arrows="wait"))
    arrows = [each for each in parts(picture, "path") if each.get("marker-end")]
    assert len(arrows) == (timeline.arrows["kind"] == ArrowKind.WAIT).sum() > 0
    crosses = [each for each in parts(still.svg(hazard().figure()), "path") if "l10 10" in each.get("d")]
    assert len(crosses) == 4  # white and black, in the picture and in the legend


def test_all_of_a_long_subtitle_is_there():
    timeline = factory.loader("blocking")
    notes = tuple(f"note {number}: {'words ' * 20}" for number in range(3))
    long = dataclasses.replace(timeline, context=dataclasses.replace(timeline.context, notes=notes))
    picture = still.svg(long.figure())
    assert all(f"note {number}" in " ".join(words(picture)) for number in range(3))
    assert max(len(line) for line in words(picture)) < 150


def test_a_comparison_has_its_headers_and_its_twin():
    comparison = draw.compare({"one": factory.loader("blocking"), "two": factory.loader("prefetch")})
    picture = comparison._repr_mimebundle_()["image/svg+xml"]
    assert [line.partition(":")[0] for line in words(picture) if line.startswith(("one:", "two:"))] == ["one", "two"]
    assert [each.text for each in parts(picture, "desc")] == [comparison.text()]


def test_too_many_bars_or_none_give_no_picture():
    assert still.svg(factory.many_spans(still.MOST * 3).figure()) == ""
    assert still.svg(factory.empty().figure()) == ""
    assert "image/svg+xml" not in factory.empty()._repr_mimebundle_()


def test_a_picture_is_small():
    figure = factory.loader("prefetch", 40).figure()
    bars = sum(len(trace.base) for trace in figure.data if isinstance(trace, go.Bar) and trace.base)
    assert len(still.svg(figure)) < 4_000 + 150 * bars


@given(st.floats(-1e6, 1e9), st.floats(1e-3, 1e9))
def test_ticks_are_round_few_and_inside(first, length):
    last = first + length
    found = still.ticks(first, last)
    assert len(found) <= 9
    if last > first and length > 1e-6 * abs(first):
        assert len(found) >= 2
        step = found[1] - found[0]
        assert all(first - 1e-6 * step <= tick <= last + 1e-6 * step for tick in found)
        assert float(f"{step:.6e}"[0]) in (1, 2, 5, 9)  # 9: of 0.999…
    assert still.ticks(5, 5) == []
