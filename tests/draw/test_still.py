"""The still picture: well-formed, with every bar where plotly has it, and words that stand for the rest."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import factory
import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_figure import hazard

from loaderviz import draw
from loaderviz.draw import still, theme

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
