"""Several timelines on one time axis, and their table."""

from __future__ import annotations

import re

import factory
import numpy as np
import plotly.graph_objects as go
import pytest

from loaderviz import compare
from loaderviz.metrics import NotATimelineError, summarize
from loaderviz.timeline import Context, Kind, TimelineBuilder
from loaderviz.view import ViewError


def later(start):
    builder = TimelineBuilder(Context(device="T4", origin="recorded"))
    builder.span(start, start + 5_000, builder.lane("stream 0", "device"), Kind.COMPUTE, "kernel")
    return builder.build()


def test_all_start_at_zero_on_one_axis():
    both = compare({"early": later(0), "late": later(7_000_000)})
    (kernels,) = [trace for trace in both.figure().data if trace.name == "kernel" and trace.showlegend is not False][:1]
    assert list(kernels.base) == [0]
    assert [part["duration"] for part in both.packed()[0]["parts"]] == [5_000, 5_000]
    assert both.packed()[0]["window"] is None


def test_each_timeline_says_what_it_does_unless_the_verdict_is_withheld():
    head, _ = compare(factory.loaders(), color="kind").packed()
    assert [part["name"] for part in head["parts"]] == list(factory.LOADERS)
    assert head["title"].startswith("prefetch is 1.83x as fast as blocking")
    assert all("GPU computes" in part["finding"] and part["hero"]["step"] for part in head["parts"])
    quiet, _ = compare(factory.loaders(), verdict=False).packed()
    assert quiet["title"] == "" == quiet["parts"][0]["finding"]
    assert (quiet["withheld"], quiet["twin"]) == (head["title"], head["twin"])


def test_the_table_has_the_numbers_of_the_summaries():
    timelines = factory.loaders()
    table = compare(timelines).table()
    assert list(table.index) == list(factory.LOADERS)
    for name, timeline in timelines.items():
        summary, row = summarize(timeline), table.loc[name]
        assert row["start-up [ms]"] == summary.start_up / 1e6
        assert row["window [ms]"] == summary.window / 1e6
        assert row["step [µs]"] == summary.step / 1e3
        assert row["samples/s"] == summary.samples_per_second
        assert row["copy hidden [%]"] == 100 * summary.overlap
        assert row["host blocked [ms]"] == sum(summary.host_blocked.values()) / 1e6
        assert row["speed-up"] == pytest.approx(summarize(timelines["blocking"]).step / summary.step)
    alone = compare({"kernel": later(0), "nothing": factory.empty()}).table()
    assert alone["copy hidden [%]"].isna().all()
    assert np.isnan(alone.loc["nothing", "speed-up"])


def test_without_samples_the_speed_up_is_by_step_then_by_the_window():
    def run(length, batches):
        builder = TimelineBuilder(Context())
        lane = builder.lane("stream 0", "device")
        for batch in range(max(1, batches)):
            builder.span(batch * length, (batch + 1) * length, lane, Kind.COMPUTE, "k", batch=batch if batches else -1)
        return builder.build()

    table = compare({"slow": run(300, 2), "fast": run(100, 4)}).table()
    assert table["speed-up"].tolist() == [1, 3]
    assert table["samples/s"].isna().all()
    assert compare({"slow": run(300, 0), "fast": run(100, 0)}).table()["speed-up"].tolist() == [1, 3]


def test_the_title_names_a_first_that_is_the_fastest():
    slow, fast = factory.loader("blocking"), factory.loader("resident")
    title = compare({"fast": fast, "slow": slow}).heading
    assert title == "fast is 1.83x as fast as slow"
    three = compare({"fast": fast, "slow": slow, "pinned": factory.loader("pinned")})
    assert three.heading == "fast is the fastest, 1.40x as fast as pinned"


def test_the_printed_table_has_the_words_of_the_picture():
    printed = compare(factory.loaders()).printed()
    assert printed.loc["blocking"].to_dict() == {
        "start-up": "330 µs", "window": "1.51 ms", "step": "275 µs", "samples/s": "930,909", "GPU computes": "58 %",
        "copy": "600 µs", "copy hidden": "0 %", "copy exposed": "600 µs", "host blocked": "1.373 ms",
        "limit": "880 µs", "headroom": "1.72x", "speed-up": "1.00x",
    }  # fmt: skip
    alone = compare({"kernel": later(0), "nothing": factory.empty()}).printed()
    assert alone.loc["nothing", "copy hidden"] == "–" and "start-up" not in alone


def test_utilization_curves():
    timelines = factory.loaders()
    figure = compare(timelines).utilization(window_ns=50_000)
    assert len(figure.data) == 4
    for trace, timeline in zip(figure.data, timelines.values(), strict=True):
        area = np.asarray(trace.y)[:-1] @ np.diff(np.asarray(trace.x)) / 100
        assert area * 1e3 == pytest.approx(summarize(timeline, (0, timeline.duration)).kernels)
    assert "blocking: 58 % of 1.51 ms" in figure.layout.meta["text"]
    assert compare({"nothing": factory.empty()}).utilization().data


def test_a_notebook_has_the_words_of_a_chart_below_it(monkeypatch):
    shown = []
    monkeypatch.setattr(go.Figure, "_ipython_display_", lambda figure: shown.append(len(figure.data)))
    monkeypatch.setattr("IPython.display.display", lambda html: shown.append(html.data))
    compare(factory.loaders()).utilization()._ipython_display_()
    assert shown[0] == 4 and "In words: GPU utilisation" in shown[1] and "pinned: " in shown[1]


def test_a_notebook_shows_the_picture_and_below_it_the_table():
    comparison = compare(factory.loaders())
    bundle = comparison._repr_mimebundle_()
    assert bundle["text/plain"] == repr(comparison) == comparison.text()
    assert comparison.text().count("\n") == 3
    short, full = re.findall(r"<table>.*?</table>", bundle["text/html"])
    for name, values in comparison.printed().items():
        assert f"<th>{name}</th>" in full
        assert all(f"<td>{value}</td>" in full for value in values)
    assert short.count("<th>") == 1 + 4 + 4 and "speed-up" in short


@pytest.mark.parametrize("wrong", [[], factory.empty(), None, "blocking"])
def test_not_a_dict(wrong):
    with pytest.raises(NotATimelineError, match="dict of name -> Timeline"):
        compare(wrong)


def test_bad_values():
    with pytest.raises(ViewError, match="at least one"):
        compare({})
    with pytest.raises(NotATimelineError, match="for 'a'"):
        compare({"a": 3})
    with pytest.raises(ViewError, match="color is 'lane'"):
        compare(factory.loaders(2), color="lane")
