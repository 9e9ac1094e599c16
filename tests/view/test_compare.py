"""Several timelines on one time axis, and their table."""

import re

import factory
import numpy as np
import plotly.graph_objects as go
import pytest

from loaderviz import compare
from loaderviz.metrics import NotATimelineError, summarize
from loaderviz.timeline import Kind
from loaderviz.view import ViewError


def later(start):
    return factory.made(("stream 0", start, start + 5_000, Kind.COMPUTE), device="T4", origin="recorded")


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
    def run(length, batches, known=True):
        kernels = (
            (at * length, (at + 1) * length, Kind.COMPUTE, {"batch": at if known else -1}) for at in range(batches)
        )
        return factory.made(*(("stream 0", *kernel) for kernel in kernels))

    table = compare({"slow": run(300, 2), "fast": run(100, 4)}).table()
    assert table["speed-up"].tolist() == [1, 3]
    assert table["samples/s"].isna().all()
    assert compare({"slow": run(300, 1, False), "fast": run(100, 1, False)}).table()["speed-up"].tolist() == [1, 3]


def test_the_title_names_a_first_that_is_the_fastest():
    slow, fast = factory.loader("blocking"), factory.loader("resident")
    assert compare({"fast": fast, "slow": slow}).heading == "fast is 1.83x as fast as slow"
    three = compare({"fast": fast, "slow": slow, "pinned": factory.loader("pinned")})
    assert three.heading == "fast is the fastest, 1.40x as fast as pinned"
    picture = three.svg()
    assert all(f">{name}" in picture for name in three.timelines)


def test_what_the_still_picture_says_stays_inside_of_it():
    name = "DataLoader of " + "x" * 200
    long = compare({name: factory.loader("pinned"), "other": factory.loader("prefetch")}, folded=False)
    lines = re.findall(r"<text x=.12. y=[^>]*>(.*?)</text>", long.svg())
    told = [re.sub(r"<[^>]*>", "", line) for line in lines]
    assert any(line.startswith(name[:50]) and "GPU computes" in line for line in told)
    assert max(map(len, told)) <= 140


def test_utilization_curves(monkeypatch):
    timelines, shown = factory.loaders(), []
    figure = compare(timelines).utilization(window_ns=50_000)
    assert len(figure.data) == 4
    for trace, timeline in zip(figure.data, timelines.values(), strict=True):
        area = np.asarray(trace.y)[:-1] @ np.diff(np.asarray(trace.x)) / 100
        assert area * 1e3 == pytest.approx(summarize(timeline, (0, timeline.duration)).kernels)
    assert "blocking: 58 % of 1.51 ms" in figure.layout.meta["text"]
    assert compare({"nothing": factory.empty()}).utilization().data
    monkeypatch.setattr(go.Figure, "_ipython_display_", lambda figure: shown.append(len(figure.data)))
    monkeypatch.setattr("IPython.display.display", lambda html: shown.append(html.data))
    figure._ipython_display_()  # a notebook has the words of a chart below it
    assert shown[0] == 4 and "In words: GPU utilisation" in shown[1] and "pinned: " in shown[1]


def test_a_notebook_shows_the_picture_and_below_it_the_table():
    comparison = compare(factory.loaders())
    bundle = comparison._repr_mimebundle_()
    assert bundle["text/plain"] == repr(comparison) == comparison.text()
    assert comparison.text().count("\n") == 3
    short, full = re.findall(r"<table>.*?</table>", bundle["text/html"])
    blocking = comparison.printed().loc["blocking"]
    assert (blocking["step"], blocking["copy hidden"], blocking["headroom"]) == ("275 µs", "0 %", "1.72x")
    for name, values in comparison.printed().items():
        assert f"<th>{name}</th>" in full
        assert all(f"<td>{value}</td>" in full for value in values)
    assert short.count("<th>") == 1 + 4 + 4 and "speed-up" in short
    alone = compare({"kernel": later(0), "nothing": factory.empty()}).printed()
    assert alone.loc["nothing", "copy hidden"] == "–" and "start-up" not in alone


@pytest.mark.parametrize(
    ("wrong", "options", "error", "said"),
    [
        *((wrong, {}, NotATimelineError, "dict of name -> Timeline") for wrong in ([], factory.empty(), None, "text")),
        ({"a": 3}, {}, NotATimelineError, "for 'a'"),
        ({}, {}, ViewError, "at least one"),
        (factory.loaders(2), {"color": "lane"}, ViewError, "color is 'lane'"),
    ],
)
def test_what_cannot_be_compared(wrong, options, error, said):
    with pytest.raises(error, match=said):
        compare(wrong, **options)
