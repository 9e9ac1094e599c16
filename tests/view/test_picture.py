"""The picture where no script runs, as a plotly figure and in words; and what a notebook is given."""

import dataclasses
import json
import re
import xml.etree.ElementTree as ET
from base64 import b64decode
from itertools import combinations, pairwise

import factory
import numpy as np
import plotly.graph_objects as go
import pytest
from unpack import unpack

from loaderviz import compare, words
from loaderviz.analysis import NO_GAIN, Advice, Finding, Subject
from loaderviz.analysis.advice import advise
from loaderviz.metrics import NotATimelineError, states, summarize
from loaderviz.timeline import ArrowKind, Cause, Kind
from loaderviz.view import View, ViewError, picture, spoken, still, text, theme
from loaderviz.view.figure import BARS

SVG = "{http://www.w3.org/2000/svg}"
NASTY = '</script><img src=x onerror="alert(1)"> & \u202e \U0001f600'


def texts(picture):
    return ["".join(each.itertext()) for each in ET.fromstring(picture).iter(SVG + "text")]


def race():
    stream, copy = "stream 7 (default)", {"name": "Memcpy HtoD (Pinned -> Device)", "nbytes": 70_000, "pinned": True}
    return factory.made(
        ("main", 0, 3_000, Kind.WAIT, {"name": "cudaMalloc", "cause": Cause.ALLOCATION}),
        (stream, 5_000, 8_000, Kind.COMPUTE, {"name": NASTY, "batch": 0, "source": "a<b>.py:3"}),
        ("stream 9", 2_000, 9_000, Kind.COPY_H2D, {"batch": 0} | copy),
        marks=[(5_000, stream, "early-read", "read before the copy is complete", (2, 1))],
        device="A100",
        origin="emulated",
    ).self_check()


def data_of(html):
    """Head and body of a fragment."""
    head = re.search(r'<script type="application/json" class="lv-head">(.*?)</script>', html, re.DOTALL)
    body = re.search(r'<script type="application/octet-stream" class="lv-body">(.*?)</script>', html)
    return json.loads(head[1]), b64decode(body[1])


def test_the_still_picture_has_the_lanes_and_a_bar_for_each_span():
    timeline = factory.loader("prefetch")
    view = timeline.view()
    picture = view.svg()
    assert {"worker 0", "main thread: batches", "copy engine to GPU", "what the GPU does"} <= {*texts(picture)}
    drawn = sum(path.get("d").count("z") for path in ET.fromstring(picture).iter(SVG + "path") if path.get("fill")
                and path.get("fill") != "none")  # fmt: skip
    assert drawn == len(view.parts[0].bars.span)
    (description,) = ET.fromstring(picture).iter(SVG + "desc")
    assert description.text == view.text()


def test_an_arrow_goes_from_the_end_of_one_bar_to_the_start_of_the_other():
    copy, kernel = ("stream 9", 2_000, 5_000, Kind.COPY_H2D), ("stream 7", 6_000, 9_000, Kind.COMPUTE)
    timeline = factory.made(("main", 0, 12_000, Kind.OPERATOR), copy, kernel, ("stream 7", 9_000, 10_000, Kind.COMPUTE))
    edges = {"tail": [1, 2, 0], "head": [2, 3, 1], "kind": [ArrowKind.WAIT, ArrowKind.WAIT, ArrowKind.LAUNCH]}
    arrows = {name: np.array(values) for name, values in edges.items()}  # the second is in one stream, not drawn
    picture = dataclasses.replace(timeline, arrows=arrows).view().svg()
    drawn = list(ET.fromstring(picture).iter(SVG + "path"))
    line, _ = [each.get("d") for each in drawn if each.get("marker-end")]  # and that of the legend
    assert texts(picture).count(theme.WAITED) == 1
    in_one_stream = dataclasses.replace(timeline, arrows={name: values[1:2] for name, values in arrows.items()})
    assert theme.WAITED not in texts(in_one_stream.view().svg())
    paths = "".join(each.get("d") for each in drawn if each.get("fill") and not each.get("marker-end"))
    bars = [tuple(map(float, each)) for each in re.findall(r"M([\d.]+) (\d+)h([\d.]+)v(\d+)", paths)]
    x, y, to_x, to_y = map(float, re.findall(r"[\d.]+", line))
    assert [x, to_x] == [176 + 768 * time / 12_000 for time in (5_000, 6_000)]
    rows = [
        [(left, top) for left, top, wide, high in bars if at == pytest.approx(top + high / 2, abs=1)]
        for at in (y, to_y)
    ]
    assert [min(left for left, _ in row) for row in rows] == [176 + 768 * time / 12_000 for time in (2_000, 6_000)]


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", [*factory.LOADERS, "race", "kinds", "empty"])
def test_the_legend_of_a_still_picture_names_what_is_drawn_and_stays_inside(name, language, monkeypatch):
    monkeypatch.setenv("LOADERVIZ_LANGUAGE", language)
    others = {"race": race, "kinds": lambda: factory.device_kinds()[0], "empty": factory.empty}
    timeline = factory.loader(name) if name in factory.LOADERS else others[name]()
    root = ET.fromstring(timeline.view(advice=False).svg())
    bottom, of_letter = float(root.get("height")), 12 if language == "zh" else 6
    said = {"".join(each.itertext()): each for each in root.iter(SVG + "text")}
    for state, part in states(timeline).items():
        told = spoken.word(theme.LEGEND[state])
        assert (told in said) == bool(len(part)) or name == "race", state  # which shows a part of the time
        if told in said:
            assert float(said[told].get("x")) + of_letter * len(told) < still.WIDTH
            assert float(said[told].get("y")) < bottom
    assert not [text for text in said if language == "zh" and text in theme.LEGEND.values()]
    places = sorted((float(each.get("y")), float(each.get("x")), len(text) * 6) for text, each in said.items()
                    if float(each.get("y")) > bottom - 40 and not each.get("text-anchor"))  # fmt: skip
    for (y, x, wide), (next_y, next_x, _) in pairwise(places):
        assert y != next_y or x + wide < next_x  # none is written over the next


@pytest.mark.parametrize("timeline", [factory.many_spans(20_000, 40), factory.empty(), race()])
def test_a_still_picture_is_small_and_well_formed(timeline):
    picture = timeline.view(title=NASTY.replace("\u202e", "")).svg()
    assert len(picture) < 60_000
    assert any("onerror" in line for line in texts(picture))
    marks = [f"{mark.kind}: {mark.text}" for mark in timeline.marks]
    assert {*marks} <= {*texts(picture)}


def test_a_run_of_kernels_with_short_pauses_has_one_name_in_the_strip():
    kernels = [("stream 7", at, at + 9_950, Kind.COMPUTE) for at in (*range(0, 200_000, 10_000), 500_000)]
    said = texts(factory.made(*kernels, ("stream 7", 300_000, 400_000, Kind.COPY_H2D)).view().svg())
    assert [said.count(name) for name in ("compute", "copy exposed", "idle")] == [1, 1, 2]


def test_the_area_of_a_state_in_the_still_picture_is_its_time():
    timeline = factory.loader("blocking", 200)  # merged: far more changes than pixels
    view = timeline.view()
    scale = (still.WIDTH - 176 - 16) / timeline.duration
    strip = view.parts[0].arranged[0][-1]
    assert strip.kind == "strip"
    for name, part in states(timeline).items():
        style = theme.STATES[name]
        if not len(part) or style.pattern:
            continue
        (path,) = [each.get("d") for each in ET.fromstring(view.svg()).iter(SVG + "path")
                   if each.get("fill") == style.color]  # fmt: skip
        wide = sum(float(width) for width in re.findall(r"h([\d.]+)v", path))
        assert wide == pytest.approx((part[:, 1] - part[:, 0]).sum() * scale, rel=0.1)


def test_a_kernel_is_thick_and_a_copy_thin_in_the_still_picture_and_in_the_figure():
    timeline, heights = factory.device_kinds()
    lane = {"host": 20, "engine": 14, "stream": 24, "strip": 24}
    for color in ("kind", "batch"):
        view = timeline.view(color=color)
        bars, (rows, _) = view.parts[0].bars, view.parts[0].arranged
        names = {each.text: float(each.get("y")) for each in ET.fromstring(view.svg()).iter(SVG + "text")}
        drawn = {(x, int(top)): int(high) for x, top, high in re.findall(r"M([\d.]+) (\d+)h[\d.]+v(\d+)", view.svg())}
        for number, row in enumerate(rows):  # each is one track here
            top = names[row.name] - 4 - lane[row.kind] / 2 + 1
            for bar in np.flatnonzero(bars.track == number).tolist():
                span = int(bars.span[bar])
                share = heights[timeline.row(span).name] if span >= 0 else theme.STYLES[int(bars.style[bar])].height
                high = 12 if row.kind == "engine" else round(share * (lane[row.kind] - 2))
                assert drawn[f"{176 + 768 * int(bars.start[bar]) / timeline.duration:.2f}", top] == high, row.name
        assert {"thick: kernel", "thin: copy, memset"} <= {*texts(view.svg())}
    traces = timeline.figure(color="kind").data
    widths = {trace.name: (trace.width, {round(y % 1 - trace.width / 2, 3) for y in trace.y}) for trace in traces}
    for kind, style in theme.KINDS.items():
        if kind.name.lower() in heights:
            width, tops = widths[style.name]
            assert width == pytest.approx(0.8 * heights[kind.name.lower()])
            assert len(tops) == 1  # they hang from one line


def test_what_a_notebook_is_given():
    timeline = race()
    bundle = timeline._repr_mimebundle_()
    assert bundle["text/plain"] == text(timeline)
    assert bundle["image/svg+xml"].startswith("<svg")
    head, body = data_of(bundle["text/html"])
    assert (head, body) == timeline.view().packed()
    assert NASTY in head["names"]
    assert len(unpack(head, body)["start"]) == head["rows"]
    outside = re.sub(r"<script.*?</script>", "", bundle["text/html"], flags=re.DOTALL)
    assert "onerror" not in outside and "<svg" not in outside and " id=" not in outside
    assert "In words: GPU computes" in outside
    long = factory.many_spans(100_000)._repr_mimebundle_()  # it is stored with the notebook
    assert sum(map(len, long.values())) <= 300_000
    head, _ = data_of(long["text/html"])
    assert head["parts"][0]["whole"] == head["window"]
    assert "loaderviz.export.to_html(timeline, 'page.html') all" in head["notes"][0]


def test_the_module_brings_its_style_sheet_and_ends_no_script():
    module = picture.module()
    assert "__LV_CSS__" not in module and "</script" not in module.lower()
    assert len(picture.loader()) < 60_000


def test_a_figure_is_plain_and_has_the_same_lanes_colours_and_title():
    timeline = factory.loader("prefetch")
    figure = timeline.figure(color="kind")
    assert {"worker 0", "default stream", "what the GPU does"} <= {*figure.layout.yaxis.ticktext}
    assert figure.layout.title.text.startswith("GPU computes")
    assert figure.layout.meta["text"] == text(timeline)
    (kernels,) = [trace for trace in figure.data if trace.name == "kernel"]
    assert kernels.marker.color == theme.KINDS[Kind.COMPUTE].color
    assert sum(kernels.x) * 1e3 == pytest.approx(summarize(timeline, (0, timeline.duration)).compute)
    (kernels,) = [trace for trace in timeline.figure().data if trace.name == "kernel"]
    assert {*kernels.marker.color} == {theme.of_batch(batch).color for batch in range(6)}
    long = factory.many_spans(30_000)
    data = long.figure().data
    assert sum(len(trace.x) for trace in data) <= BARS
    assert sum(sum(trace.x) for trace in data if trace.name == "kernel") * 1e6 == pytest.approx(
        (long.end - long.start).sum()
    )


def test_words():
    timeline = factory.loader("blocking")
    assert timeline.view().heading.startswith("GPU computes 58 % of the time, 0 % of the copy is hidden")
    assert "5 batches in 1.51 ms, 275 µs a step" in text(timeline)
    assert "a hazard: early-read, read before the copy is complete" in text(race())
    quiet = timeline.view(verdict=False)
    assert quiet.heading == "" == quiet.packed()[0]["title"]
    assert quiet.packed()[0]["withheld"] == timeline.view().heading
    assert "GPU computes 58" not in quiet.svg()
    quiz = timeline.view(title="What do you see?", verdict=False).packed()[0]
    assert (quiz["withheld"], quiz["twin"]) == ("", "")


def test_notes_about_the_whole_are_left_out_of_a_part():
    timeline = factory.loader("blocking", batches=20)
    notes = ("recording quality: good", "the GPU has work from 1 µs to 2 µs only", "under autocast")
    context = dataclasses.replace(timeline.context, notes=notes, whole=notes[:2])
    whole = dataclasses.replace(timeline, context=context)
    assert all(note in whole.view().subtitle for note in notes)
    half = whole.between(0, timeline.duration // 2)
    subtitle = half.between(0, timeline.duration // 4).view().subtitle
    assert subtitle.count(" shown") == 1
    assert f"{words.duration(timeline.duration // 4)} of {words.duration(timeline.duration)} shown" in subtitle
    assert "under autocast" in subtitle and "quality" not in subtitle and "work from" not in subtitle
    assert half.context.notes[:3] == notes  # they are kept


def test_bad_options():
    with pytest.raises(ViewError, match="color is 'lane'; give"):
        factory.loader("pinned").view(color="lane")
    for call in (text, lambda value: View({"": value})):
        with pytest.raises(NotATimelineError):
            call("trace.json")


def luminance(color):
    channels = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one, other):
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


SOLID = "compute", "copy exposed", "communication"  # states without a pattern that are no idle time


def test_text_on_bars_can_be_read_and_bars_be_seen_on_light_and_dark_pages():
    for style in (*theme.KINDS.values(), *theme.BATCHES, theme.NO_BATCH, *theme.STATES.values()):
        assert contrast(style.back if style.pattern else style.color, style.ink) >= 4.5, style
    for style in (*theme.BATCHES, *theme.KINDS.values(), *map(theme.STATES.get, SOLID)):
        assert contrast(style.color, "#FFFFFF") >= 3, style
        assert contrast(style.color, "#161616") >= 3, style
    assert contrast(theme.FRAME, "#FFFFFF") >= 3 <= contrast(theme.FRAME, "#161616")  # around idle parts, too


def test_a_colour_means_one_thing():
    """Seven batches before one comes again; what the GPU does and a blocked host share no colour with anything."""
    batches = [style.color for style in theme.BATCHES]
    assert len({*batches}) == len(batches) >= 7
    kinds = {style.color for kind, style in theme.KINDS.items() if kind is not Kind.WAIT}
    own = [theme.STATES[name].color for name in (*SOLID, "copy hidden", "idle")] + [theme.WAITING]
    assert len({*own}) == 6
    assert not {*own} & {*batches, *kinds, theme.NO_BATCH.color}
    assert all(theme.of_batch(one).color != theme.of_batch(one + step).color for one in range(7) for step in (1, 3, 4))
    assert all(np.linalg.norm([int(a[i : i + 2], 16) - int(b[i : i + 2], 16) for i in (1, 3, 5)]) > 50
               for a, b in combinations([*batches, *own], 2))  # fmt: skip


# Of linear RGB, for who lacks the cones for long, middle or short waves: Machado, Oliveira and Fernandes (2009).
EYES = {
    "all": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]])
AS_IT_WAS = ["#0072B2", "#B58A00", "#2E9BD6", "#8A5A2B", "#009E60", "#7B5BC2", "#7F9300"]  # AMBER and OLIVE were alike


def apart(one, other, eyes):
    """Return how far apart two colours are for these eyes: dE of 1976, in CIELAB."""

    def lab(color):
        part = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255
        linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
        x, y, z = XYZ @ np.clip(EYES[eyes] @ linear, 0, 1) / XYZ.sum(axis=1)
        x, y, z = (np.cbrt(each) if each > 216 / 24389 else (24389 / 27 * each + 16) / 116 for each in (x, y, z))
        return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])

    return float(np.linalg.norm(lab(one) - lab(other)))


def test_how_far_apart_colours_are_is_what_others_say():
    """White and black are 100 apart for everybody; pure red and green 170.6, and who lacks cones sees them nearer."""
    assert [round(apart("#FFFFFF", "#000000", eyes), 1) for eyes in EYES] == [100.0] * 4
    assert round(apart("#FF0000", "#00FF00", "all"), 1) == 170.6
    assert all(apart("#FF0000", "#00FF00", eyes) < 100 for eyes in ("protan", "deutan"))
    assert apart("#B58A00", "#7F9300", "protan") < 0.2 and apart("#0072B2", "#7B5BC2", "deutan") < 6


@pytest.mark.parametrize("eyes", EYES)
def test_batches_that_are_drawn_at_the_same_time_are_told_apart_by_all_eyes(eyes):
    colors = [style.color for style in theme.BATCHES]
    for one, other in combinations(range(7), 2):
        now, before = (apart(table[one], table[other], eyes) for table in (colors, AS_IT_WAS))
        assert now >= min(before, 30) - 0.01, (one, other)  # none is worse than it was, unless it is far off
        if min(other - one, 7 - other + one) <= 2:
            assert now >= 5, (one, other)
        if {one, other} == {1, 6}:
            assert now >= 8


@pytest.mark.parametrize(
    ("subject", "names", "window"),
    [
        (Subject((Kind.COPY_H2D,)), {"pageable", "pinned"}, (1_000, 5_000)),
        (Subject((Kind.COPY_H2D,), pageable=True), {"pageable"}, (1_000, 5_000)),
        (Subject((Kind.WAIT,), (Cause.DATA,)), {"data"}, (5_000, 9_000)),
        (Subject((Kind.WAIT,), (Cause.SYNCHRONIZE, Cause.ALLOCATION)), {"synchronize"}, (1_000, 5_000)),
        (Subject(time="idle"), set(), (5_000, 9_000)),
        (Subject(time="start-up"), set(), (0, 1_000)),
        (Subject(), set(), None),
    ],
)
def test_a_finding_points_to_its_spans_and_to_the_step_around_the_costliest(subject, names, window):
    copy, kernel, wait = ("stream 9", Kind.COPY_H2D), ("stream 7", Kind.COMPUTE), ("main", Kind.WAIT)
    timeline = factory.made(
        *((lane, start, end, kind, {"name": name} | more) for (lane, kind), start, end, name, more in (
            (wait, 4_000, 4_500, "synchronize", {"cause": Cause.SYNCHRONIZE}),
            (wait, 5_500, 8_500, "data", {"cause": Cause.DATA}),
            (kernel, 4_000, 4_500, "first", {"batch": 0}),
            (kernel, 5_000, 5_500, "second", {"batch": 1}),
            (copy, 0, 900, "too early", {"nbytes": 8, "pinned": False}),
            (copy, 2_000, 4_000, "pageable", {"batch": 0, "nbytes": 8, "pinned": False}),
            (copy, 4_500, 5_000, "pinned", {"batch": 1, "nbytes": 8, "pinned": True}),
        )),
        *(("main", start, start + 4_000, Kind.RANGE, {"name": f"batch {number}: 8 samples", "batch": number})
          for number, start in enumerate((1_000, 5_000))),
    ).self_check()  # fmt: skip
    finding = Finding("a-kind", "", "", NO_GAIN, subject=subject)
    head, body = timeline.view(advice=Advice([finding], "", (1_000, 9_000))).packed()
    (told,), columns = head["parts"][0]["findings"], unpack(head, body)
    assert {head["names"][columns["name"][bar]] for bar in told["bars"]} == names
    assert told["window"] == (window and list(window))


# Several timelines on one time axis, and their table


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


@pytest.mark.parametrize("steps", [4, 12])
def test_a_predicted_step_is_told_as_the_way_to_the_limit_tells_it(steps):
    """A replay's own step is another: in a short window it begins and ends with work of no step."""
    timeline = factory.loader("blocking", steps)
    advice = advise(timeline)
    head, _ = timeline.view(advice=advice).packed()
    told = [part["ghost"]["label"] for part in head["parts"] if part.get("ghost")]
    first = advice.path[0]
    assert any(f"predicts {words.duration(first.step)} a step instead of" in text for text in told)
