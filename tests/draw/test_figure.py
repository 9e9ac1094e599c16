"""The figure, by its data: every span has its bar, in its place, with its words."""

from __future__ import annotations

import dataclasses
import json
import sys
import types

import factory
import numpy as np
import plotly.graph_objects as go
import pytest

from loaderviz import draw, words
from loaderviz.builder import TimelineBuilder
from loaderviz.draw import theme
from loaderviz.draw.detail import BUDGET
from loaderviz.metrics import NotATimelineError, states, summarize
from loaderviz.timeline import ArrowKind, Cause, Context, Kind


def bars(figure):
    """Return every bar drawn: (trace, start, end, track label, hover text)."""
    axis = dict(zip(figure.layout.yaxis.tickvals, figure.layout.yaxis.ticktext, strict=True))
    found = []
    for trace in figure.data:
        if isinstance(trace, go.Bar) and trace.base is not None:
            for base, length, place, words in zip(trace.base, trace.x, trace.y, trace.hovertext, strict=True):
                found.append((trace.name, base, base + length, axis.get(place), words))
    return found


def hazard():
    builder = TimelineBuilder(Context(device="A100", origin="emulated"))
    main, stream = builder.lane("main", "host", "main"), builder.lane("stream 0", "device")
    side = builder.lane("stream 9", "device", number=9)
    copy = builder.span(2_000, 9_000, side, Kind.COPY_H2D, "Memcpy HtoD (Pinned -> Device)", batch=0, nbytes=70_000,
                        pinned=True)  # fmt: skip
    read = builder.span(5_000, 8_000, stream, Kind.COMPUTE, "void norm<float, 4>(T const&)", batch=0,
                        source="a<b>.py:3")  # fmt: skip
    builder.span(0, 3_000, main, Kind.WAIT, "cudaMalloc", cause=Cause.ALLOCATION)
    builder.span(9_000, 9_500, stream, Kind.COPY_D2D, "Memcpy DtoD")
    builder.span(9_500, 9_700, stream, Kind.MEMSET, "Memset (Device)")
    builder.mark(5_000, stream, "early-read", "norm reads batch 0 before its copy is complete", (copy, read))
    return builder.build().self_check()


@pytest.mark.parametrize("color", ["batch", "kind"])
def test_every_span_has_its_bar(color):
    timeline = factory.loader("prefetch")
    figure = draw.figure(timeline, color=color, operators=True)
    again = ("GPU state", "H2D engine")
    drawn = sorted((start, end) for name, start, end, lane, _ in bars(figure) if lane not in again)
    expected = sorted((row.start / 1e3, row.end / 1e3) for row in timeline.rows())
    assert np.allclose(drawn, expected)


def test_one_trace_per_kind_and_the_sum_of_lengths_is_the_time():
    timeline = factory.loader("blocking")
    figure = draw.figure(timeline, color="kind")
    names = [trace.name for trace in figure.data]
    assert len(names) == len(set(names))
    kernels = next(trace for trace in figure.data if trace.name == "kernel")
    assert sum(kernels.x) * 1e3 == pytest.approx(summarize(timeline).compute)


def test_the_strip_says_what_the_gpu_does():
    timeline = factory.loader("prefetch")
    strip = [bar for bar in bars(draw.figure(timeline)) if bar[3] == "GPU state"]
    for name, part in states(timeline).items():
        mine = [(start, end) for trace, start, end, _, _ in strip if trace == f"GPU: {theme.STATES[name].name}"]
        assert np.allclose(sorted(mine), part / 1e3) if len(part) else not mine


@pytest.mark.parametrize("timeline", [factory.loader("blocking", 200), factory.many_spans(5_000, lanes=1)])
def test_the_area_of_a_colour_in_the_strip_is_the_time_of_its_state(timeline):
    figure = draw.figure(timeline)
    unit = {"µs": 1e3, "ms": 1e6}[figure.layout.xaxis.title.text[6:8]]
    bottom = max(figure.layout.yaxis.tickvals)
    full = 0.8 * 0.84
    changes = 0
    for name, part in states(timeline).items():
        area = 0.0
        for trace in figure.data:
            if trace.name == f"GPU: {theme.STATES[name].name}":
                area += sum(np.multiply(trace.x, trace.width)) / full * unit
                low, high = np.subtract(trace.y, np.divide(trace.width, 2)), np.add(trace.y, np.divide(trace.width, 2))
                assert low.min() >= bottom - full / 2 - 1e-9
                assert high.max() <= bottom + full / 2 + 1e-9
                changes += sum("changes" in words for words in trace.hovertext)
        assert area == pytest.approx((part[:, 1] - part[:, 0]).sum(), rel=1e-6)
    assert changes > 100


def test_work_is_drawn_over_idle():
    """Bars of less than a pixel are drawn as one pixel; a kernel between two gaps must stay visible."""
    names = [trace.name for trace in draw.figure(hazard()).data if (trace.name or "").startswith("GPU: ")]
    assert names == [f"GPU: {theme.STATES[name].name}" for name in list(theme.STATES)[:0:-1]]


def test_colours_by_batch_and_by_kind():
    timeline = factory.loader("prefetch")
    kernels = next(trace for trace in draw.figure(timeline, color="batch").data if trace.name == "kernel")
    batches = [row.batch for row in timeline.rows(Kind.COMPUTE)]
    assert list(kernels.marker.color) == [theme.of_batch(batch).color for batch in batches]
    assert list(kernels.text) == [str(batch) for batch in batches]
    assert all(one.color != other.color for one, other in zip(theme.BATCHES, theme.BATCHES[1:], strict=False))
    kernels = next(trace for trace in draw.figure(timeline, color="kind").data if trace.name == "kernel")
    assert kernels.marker.color == theme.KINDS[Kind.COMPUTE].color


def test_hover_says_what_is_known_and_escapes_names():
    figure = draw.figure(hazard())
    texts = [words for *_, words in bars(figure)]
    (copy, _) = [text for text in texts if text.startswith("<b>Memcpy HtoD")]
    for word in ("7 µs", "from 2 µs", "70 kB, 10 GB/s", "stream 9, batch 0", "pinned host memory", "43 % of it hidden"):
        assert word in copy
    (kernel,) = [text for text in texts if "norm" in text]
    assert "<b>norm&lt;float, 4&gt;(T const&amp;)</b>" in kernel
    assert "a&lt;b&gt;.py:3" in kernel
    (wait,) = [text for text in texts if "cudaMalloc" in text]
    assert "host blocked: allocation" in wait


def test_waits_are_hatched_with_their_cause():
    figure = draw.figure(factory.loader("blocking"))
    waits = next(trace for trace in figure.data if trace.name == "host blocked")
    assert waits.marker.pattern.shape == "/"
    assert set(waits.text) == {"waiting for data", "staging", "synchronize"}


def test_by_batch_the_legend_explains_patterns_and_has_only_what_is_drawn():
    figure = draw.figure(hazard())
    entries = [trace.name for trace in figure.data if trace.showlegend]
    assert {"crosses: copy D2D", "dots: memset", "thin bar: copy", "no batch", "batch 0"} <= set(entries)
    builder = TimelineBuilder(Context())
    main = builder.lane("main", "host", "main")
    builder.span(0, 9, main, Kind.API, "call", batch=3)
    builder.span(1, 2, main, Kind.OPERATOR, "not drawn")
    builder.span(2, 8, main, Kind.WAIT, "purple, whatever its batch", cause=Cause.DATA)
    shown = draw.figure(builder.build())
    assert [trace.name for trace in shown.data if trace.showlegend] == ["host blocked", "batch 3"]


def test_text_on_a_pattern_is_black_by_batch_too():
    builder = TimelineBuilder(Context())
    builder.span(0, 9, builder.lane("stream 0", "device"), Kind.COPY_D2D, "copy", batch=0)
    (copy,) = [trace for trace in draw.figure(builder.build()).data if trace.name == "copy D2D"]
    assert (copy.insidetextfont.color, copy.marker.color) == (theme.INK, theme.BLUE)


def test_what_is_too_short_for_a_pixel_has_an_edge_in_its_own_colour():
    """plotly draws nothing where a bar is less than a hundredth of a pixel wide."""
    builder = TimelineBuilder(Context())
    stream = builder.lane("stream 0", "device")
    builder.span(0, 1_000_000, stream, Kind.COMPUTE, "long", batch=0)
    builder.span(1_000_000, 1_000_002, stream, Kind.COMPUTE, "short", batch=1)
    (kernels,) = [trace for trace in draw.figure(builder.build()).data if trace.name == "kernel"]
    assert list(kernels.x) == [1_000, 0.002]  # µs; no bar is widened
    assert list(kernels.marker.line.color) == ["white", theme.ORANGE]
    assert kernels.marker.line.width == 1


def test_names_on_bars_are_as_long_as_there_is_room():
    builder = TimelineBuilder(Context())
    main = builder.lane("main", "host", "main")
    name = "[param|pytorch.model.alex_net|0|0|0|measure|forward]"
    builder.span(0, 8_000, main, Kind.RANGE, name)
    builder.span(8_000, 10_000, main, Kind.RANGE, name)
    builder.span(8_000, 9_000, main, Kind.RANGE, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
    for number in range(2):
        builder.span(10_000, 10_000 + 700 * (1 - number), main, Kind.RANGE, f"batch {number}: 64 samples")
    (ranges,) = [trace for trace in draw.figure(builder.build()).data if trace.name == "range"]
    assert ranges.text[0] == name
    assert ranges.text[1].startswith("[param|pytorch") and ranges.text[1].endswith("d]") and "…" in ranges.text[1]
    assert set(ranges.text[2:]) == {"next batch", "batch 0", "1"}


def test_notes_about_the_whole_are_left_out_of_a_part():
    timeline = factory.loader("blocking", batches=20)
    notes = ("recording quality: good", "the GPU has work from 1 µs to 2 µs only", "under autocast")
    whole = dataclasses.replace(timeline, context=dataclasses.replace(timeline.context, notes=notes))
    assert all(note in whole.figure().layout.title.subtitle.text for note in notes)
    half = whole.between(0, timeline.duration // 2)
    subtitle = half.between(0, timeline.duration // 4).figure().layout.title.subtitle.text.replace("<br>", " ")
    assert subtitle.count(" shown") == 1
    assert f"{words.duration(timeline.duration // 4)} of {words.duration(timeline.duration)} shown" in subtitle
    assert "under autocast" in subtitle and "quality" not in subtitle and "work from" not in subtitle


def test_the_lines_of_a_subtitle_are_of_one_length():
    timeline = factory.loader("blocking")
    long = dataclasses.replace(timeline, context=dataclasses.replace(timeline.context, notes=("some words " * 16,)))
    lengths = [len(line) for line in long.figure().layout.title.subtitle.text.split("<br>")]
    assert len(lengths) == 2
    assert min(lengths) > 0.8 * max(lengths)


def test_a_line_of_a_cell_is_told_by_its_number(monkeypatch):
    class Compiler:
        def format_code_name(self, name):
            return ("Cell", "In[6]") if name == "/tmp/ipykernel_1/2.py" else None

    shell = types.SimpleNamespace(compile=Compiler())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert [words.place(source) for source in ("/tmp/ipykernel_1/2.py:3", "train.py:3")] == ["In[6]:3", "train.py:3"]


def test_marks_are_drawn_in_their_lane():
    figure = draw.figure(hazard())
    (marks,) = [trace for trace in figure.data if trace.name == "hazard"]
    labels = dict(zip(figure.layout.yaxis.tickvals, figure.layout.yaxis.ticktext, strict=True))
    assert (list(marks.x), labels[marks.y[0]]) == ([5.0], "stream 0")
    assert "before its copy is complete" in marks.hovertext[0]
    assert "a hazard: early-read, norm reads" in draw.text(hazard())


@pytest.mark.parametrize(("arrows", "names"), [(False, []), ("launch", ["launch"]), ("wait", ["waits for"]),
                                              (True, ["launch", "waits for"])])  # fmt: skip
def test_arrows_on_demand(arrows, names):
    timeline = factory.loader("prefetch")
    figure = draw.figure(timeline, arrows=arrows)
    lines = {trace.name: trace for trace in figure.data if trace.type == "scatter" and trace.mode == "lines+markers"}
    assert list(lines) == names
    if "waits for" in lines:
        joins = timeline.arrows["kind"] == ArrowKind.WAIT
        x = np.reshape(lines["waits for"].x, (-1, 3))
        assert np.allclose(x[:, 0], timeline.end[timeline.arrows["tail"][joins]] / 1e3)
        assert np.allclose(x[:, 1], timeline.start[timeline.arrows["head"][joins]] / 1e3)


def test_too_many_arrows_are_thinned_and_it_says_so():
    figure = draw.figure(factory.loader("prefetch", batches=100), arrows="launch")
    (name,) = [trace.name for trace in figure.data if "launch" in (trace.name or "")]
    assert name == "launch (400 of 600 drawn)"


def test_a_long_run_keeps_the_budget_and_says_so():
    figure = draw.figure(factory.many_spans(30_000))
    drawn = bars(figure)
    assert len(drawn) <= 2 * BUDGET
    assert sum(len(trace.x) for trace in figure.data if trace.name == "kernel") <= BUDGET
    assert "30,000 spans drawn as" in figure.layout.title.subtitle.text
    merged = [words for *_, words in drawn if " spans</b>, busy " in words]
    assert merged
    assert "mostly compute" in merged[0]
    assert len(json.dumps(figure.to_plotly_json(), default=str)) < 4e6


def test_a_window_shows_a_part_in_full():
    timeline = factory.many_spans(30_000)
    window = (timeline.begin + 1_000_000, timeline.begin + 2_000_000)
    figure = draw.figure(timeline, window=window)
    low, high = (edge * 1e3 for edge in figure.layout.xaxis.range)  # a short window is in µs
    assert (low, high) == pytest.approx((1_000_000, 2_000_000), rel=0.02)
    kernels = next(trace for trace in figure.data if trace.name == "kernel")
    assert len(kernels.x) == ((timeline.end > window[0]) & (timeline.start < window[1])).sum()


def test_axis_and_words():
    timeline = factory.loader("blocking")
    figure = draw.figure(timeline, label="blocking")
    assert figure.layout.xaxis.title.text == "time [µs]"
    assert figure.layout.title.text.startswith("blocking: GPU computes 49 % of the time, 0 % of the copy is hidden")
    assert figure.layout.meta["text"] == draw.text(timeline, "blocking")
    assert "6 batches in 1.84 ms" in draw.text(timeline)
    assert "blocked longest by: staging" in draw.text(timeline)
    assert "A100 PCIe, emulated" in figure.layout.title.subtitle.text
    assert draw.figure(timeline, title="a <b>").layout.title.text == "a &lt;b&gt;"
    assert draw.figure(factory.loader("blocking", batches=60)).layout.xaxis.title.text == "time [ms]"


def test_an_empty_timeline_says_so():
    figure = draw.figure(factory.empty())
    assert [note.text for note in figure.layout.annotations] == ["This timeline is empty: nothing was recorded."]
    assert "empty" in figure.layout.meta["text"]


def test_what_a_notebook_shows():
    timeline = factory.loader("prefetch")
    bundle = timeline._repr_mimebundle_()
    assert bundle["text/plain"] == draw.text(timeline)
    assert json.loads(json.dumps(bundle["application/vnd.plotly.v1+json"]))["data"]
    assert isinstance(timeline.figure(color="kind"), go.Figure)
    assert "text/plain" in draw.mimebundle(factory.empty())


@pytest.mark.parametrize("color", ["batch", "kind"])
def test_a_steady_figure_is_refreshed_in_place(color):
    """An explorer moves a slider: the widget must then show exactly what a new figure would."""
    options = {"color": color, "arrows": True, "steady": True}
    widget = go.FigureWidget(draw.figure(factory.loader("blocking"), **options))
    identities = [id(trace) for trace in widget.data]
    for timeline in (factory.loader("prefetch", batches=3), factory.empty(), hazard(), factory.loader("resident")):
        wanted = draw.figure(timeline, **options)
        draw.refresh(widget, wanted)
        shown, new = (json.loads(each.to_json())["data"] for each in (widget, wanted))
        assert [{name: value for name, value in trace.items() if name != "uid"} for trace in shown] == new
        assert bars(widget) == bars(wanted)
        assert widget.layout.title.text == wanted.layout.title.text
        assert len(widget.layout.annotations) == len(wanted.layout.annotations)
    assert [id(trace) for trace in widget.data] == identities
    with pytest.raises(draw.DrawError, match="steady=True"):
        draw.refresh(widget, draw.figure(factory.loader("blocking")))


def test_a_steady_figure_has_no_more_in_its_legend():
    for timeline in (factory.loader("prefetch"), factory.empty()):
        usual, steady = draw.figure(timeline), draw.figure(timeline, steady=True)
        entries = [[trace.name for trace in each.data if trace.showlegend is not False] for each in (usual, steady)]
        assert entries[0] == entries[1]


@pytest.mark.parametrize("options", [{"color": "lane"}, {"color": None}, {"arrows": "all"}, {"arrows": 3},
                                     {"budget": 0}, {"budget": "many"}])  # fmt: skip
def test_bad_options(options):
    with pytest.raises(draw.DrawError, match="give"):
        draw.figure(factory.loader("pinned"), **options)


def test_something_else_than_a_timeline():
    for call in (draw.figure, draw.text, draw.mimebundle):
        with pytest.raises(NotATimelineError):
            call("trace.json")


def luminance(color):
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("style", [*theme.KINDS.values(), *theme.BATCHES, theme.NO_BATCH])
def test_text_on_bars_can_be_read(style):
    ink = "#FFFFFF" if style.ink == "white" else style.ink
    dark, light = sorted((luminance(style.back if style.pattern else style.color), luminance(ink)))
    assert (light + 0.05) / (dark + 0.05) >= 4.5
    assert theme.TEXT_PX >= 12
