"""Several timelines on one time axis, and their table."""

from __future__ import annotations

import factory
import numpy as np
import pytest

import loaderviz
from loaderviz import draw
from loaderviz.builder import TimelineBuilder
from loaderviz.metrics import NotATimelineError, summarize
from loaderviz.timeline import Context, Kind


def later(start):
    builder = TimelineBuilder(Context(device="T4", origin="recorded"))
    builder.span(start, start + 5_000, builder.lane("stream 0", "device"), Kind.COMPUTE, "kernel")
    return builder.build()


def test_all_start_at_zero_on_one_axis():
    figure = draw.compare({"early": later(0), "late": later(7_000_000)}).figure()
    (kernels,) = [trace for trace in figure.data if trace.name == "kernel"]
    assert list(kernels.base) == [0, 0]
    assert kernels.y[0] < kernels.y[1]
    assert figure.layout.xaxis.range[1] == pytest.approx(5, rel=0.02)


def test_one_trace_per_kind_whatever_the_number_of_timelines():
    figure = draw.compare(factory.loaders(), color="kind").figure()
    names = [trace.name for trace in figure.data]
    assert len(names) == len(set(names))
    headings = [note.text for note in figure.layout.annotations]
    assert [heading.split("</b>")[0] for heading in headings] == [f"<b>{name}" for name in factory.LOADERS]
    assert figure.layout.title.text.startswith("resident is 1.8x as fast as blocking")


def test_the_table_has_the_numbers_of_the_summaries():
    timelines = factory.loaders()
    table = loaderviz.compare(timelines).table()
    assert list(table.index) == list(factory.LOADERS)
    for name, timeline in timelines.items():
        summary, row = summarize(timeline), table.loc[name]
        assert row["makespan [ms]"] == summary.window / 1e6
        assert row["step [µs]"] == summary.step / 1e3
        assert row["samples/s"] == summary.samples_per_second
        assert row["copy hidden [%]"] == 100 * summary.overlap
        assert row["host blocked [ms]"] == sum(summary.host_blocked.values()) / 1e6
        assert row["speed-up"] == pytest.approx(summarize(timelines["blocking"]).window / summary.window)
    alone = draw.compare({"kernel": later(0), "nothing": factory.empty()}).table()
    assert alone["copy hidden [%]"].isna().all()
    assert np.isnan(alone.loc["nothing", "speed-up"])


def test_without_samples_the_speed_up_is_by_step_then_by_makespan():
    def run(length, batches):
        builder = TimelineBuilder(Context())
        lane = builder.lane("stream 0", "device")
        for batch in range(max(1, batches)):
            builder.span(batch * length, (batch + 1) * length, lane, Kind.COMPUTE, "k", batch=batch if batches else -1)
        return builder.build()

    table = draw.compare({"slow": run(300, 2), "fast": run(100, 4)}).table()
    assert table["speed-up"].tolist() == [1, 3]
    assert table["samples/s"].isna().all()
    assert draw.compare({"slow": run(300, 0), "fast": run(100, 0)}).table()["speed-up"].tolist() == [1, 3]


def test_the_title_names_a_first_that_is_the_fastest():
    slow, fast = factory.loader("blocking"), factory.loader("resident")
    title = draw.compare({"fast": fast, "slow": slow}).figure().layout.title.text
    assert title == "fast is 1.8x as fast as slow"
    three = draw.compare({"fast": fast, "slow": slow, "pinned": factory.loader("pinned")}).figure()
    assert three.layout.title.text == "fast is the fastest, 1.4x as fast as pinned"


def test_the_grid_does_not_go_through_the_headers():
    figure = draw.compare(factory.loaders()).figure()
    rooms = [shape for shape in figure.layout.shapes if shape.layer == "between"]
    headers = [note.y for note in figure.layout.annotations]
    assert [room.y0 < y < room.y1 for room, y in zip(rooms, headers, strict=True)] == [True] * 4
    assert {room.xref for room in rooms} <= {None, "x"}  # plotly.js fails on a domain in this layer


def test_the_printed_table_has_the_digits_that_a_column_needs():
    printed = draw.compare(factory.loaders()).printed()
    assert printed.loc["blocking"].to_dict() == {
        "makespan [ms]": "1.840", "step [µs]": "306.7", "samples/s": "834,783", "GPU computes [%]": "48.9",
        "copy [ms]": "0.720", "copy hidden [%]": "0.0", "copy exposed [ms]": "0.720", "host blocked [ms]": "1.676",
        "limit [ms]": "0.900", "headroom": "2.04", "speed-up": "1.00",
    }  # fmt: skip
    alone = draw.compare({"kernel": later(0), "nothing": factory.empty()}).printed()
    assert alone.loc["nothing", "copy hidden [%]"] == "–"


def test_utilization_curves():
    timelines = factory.loaders()
    figure = draw.compare(timelines).utilization(window_ns=50_000)
    assert len(figure.data) == 4
    for trace, timeline in zip(figure.data, timelines.values(), strict=True):
        area = np.asarray(trace.y)[:-1] @ np.diff(np.asarray(trace.x)) / 100
        assert area * 1e3 == pytest.approx(summarize(timeline).kernels)
    assert "blocking: 49 % of 1.84 ms" in figure.layout.meta["text"]
    assert draw.compare({"nothing": factory.empty()}).utilization().data


def test_what_a_notebook_shows():
    comparison = draw.compare(factory.loaders())
    bundle = comparison._repr_mimebundle_()
    assert bundle["text/plain"] == repr(comparison) == comparison.text()
    assert comparison.text().count("\n") == 3
    assert bundle["application/vnd.plotly.v1+json"]["data"]


def test_displaying_it_shows_figure_and_table(monkeypatch):
    shown = []
    display = pytest.importorskip("IPython.display")
    monkeypatch.setattr(display, "display", lambda what, **_: shown.append(what))
    draw.compare(factory.loaders(2))._ipython_display_()
    assert "application/vnd.plotly.v1+json" in shown[0]
    assert "speed-up" in shown[1]._repr_html_()


@pytest.mark.parametrize("wrong", [[], factory.empty(), None, "blocking"])
def test_not_a_dict(wrong):
    with pytest.raises(NotATimelineError, match="dict of name -> Timeline"):
        draw.compare(wrong)


def test_bad_values():
    with pytest.raises(draw.DrawError, match="at least one"):
        draw.compare({})
    with pytest.raises(NotATimelineError, match="for 'a'"):
        draw.compare({"a": 3})
    with pytest.raises(draw.DrawError, match="no option colour"):
        draw.compare(factory.loaders(2), colour="kind")
    with pytest.raises(draw.DrawError, match="color is 'lane'"):
        draw.compare(factory.loaders(2), color="lane")
