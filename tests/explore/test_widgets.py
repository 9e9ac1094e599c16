"""The widgets without a kernel and without a browser: setting a value redraws, words and numbers follow."""

from __future__ import annotations

import runpy
import sys
from html import escape

import factory
import numpy as np
import pytest

from loaderviz import draw, record, summarize
from loaderviz.builder import TimelineBuilder
from loaderviz.explore import Settings, SettingsError, cells, explore, panels, step_through, viewer
from loaderviz.explore.live import LiveFigure, figure_of, picture
from loaderviz.explore.pipeline import simulate
from loaderviz.explore.program import program_of
from loaderviz.explore.settings import PRESETS
from loaderviz.explore.stepper import source_lines
from loaderviz.metrics import MetricsError
from loaderviz.timeline import Context, Kind

WIDGET, PLOTLY = cells.WIDGET, "application/vnd.plotly.v1+json"


def plain(figure):
    """What a figure shows, without what plotly adds for itself; a property that is None is not set."""

    def clean(value):
        if isinstance(value, dict):
            return {name: clean(each) for name, each in value.items() if name != "uid" and each is not None}
        return [clean(each) for each in value] if isinstance(value, (list, tuple)) else value

    def bare(value):
        if isinstance(value, dict):
            kept = {name: bare(each) for name, each in value.items()}
            return {name: each for name, each in kept.items() if each != {}}
        return value

    json = figure.to_plotly_json()
    return bare(clean({"data": json["data"], "layout": json["layout"]}))


# What all have


def test_a_card_has_no_border_that_plotly_would_count_as_room():
    """With one, the figure grew by two pixels whenever the page was resized."""
    assert "::after{" in panels.fit()
    assert "border:" not in panels.fit().partition("::after")[0]


def test_a_table_keeps_arrows_and_labels_whole():
    shown = panels.table(["", ""], [["launched by", "Memcpy HtoD (Pinned -> Device)"]])
    assert "<thead>" not in shown
    assert "white-space:nowrap'>launched by</td>" in shown
    assert "Pinned -\u2060&gt; Device" in shown
    assert "<th " in panels.table(["who", "does"], [["main", "idle"]])


# The explorer


def test_a_slider_redraws_figure_numbers_words_and_code():
    explorer = explore()
    figure = explorer._live.widget
    before = figure.layout.title.text, explorer._code.value, explorer._numbers.value
    explorer.controls["workers"].value = 7
    explorer.controls["pin"].value = True
    assert explorer.settings == Settings(workers=7, pin=True)
    assert "7 workers, pinned" in figure.layout.title.text
    assert "num_workers=7, pin_memory=True" in explorer._code.value
    assert "7 workers" in explorer._words.value
    for old, new in zip(before, (figure.layout.title.text, explorer._code.value, explorer._numbers.value), strict=True):
        assert old != new


def test_the_widget_shows_what_a_fresh_figure_of_the_setting_shows():
    explorer = explore()
    for name, value in [("batch_size", 256), ("side_stream", True), ("depth", 3), ("pin", True), ("non_blocking", True),
                        ("resident", True), ("resident", False), ("gpu", "t4"), ("workers", 1)]:  # fmt: skip
        explorer.controls[name].value = value
        assert plain(explorer._live.widget) == plain(explorer.figure), name


def test_a_lesson_is_one_click_and_one_redraw():
    explorer = explore(workers=3)
    for name, preset in PRESETS.items():
        redraws = explorer._live.redraws
        explorer.controls.buttons[name].click()
        assert explorer._live.redraws <= redraws + 1
        assert all(getattr(explorer.settings, key) == value for key, value in preset.items())
        assert explorer.settings.workers == 3
        assert [each.description for each in explorer.controls.buttons.values() if each.button_style] == [name]
        assert explorer.timeline == simulate(explorer.settings)


def test_the_gpu_brings_its_link_and_a_larger_batch_its_work():
    explorer = explore()
    explorer.controls["gpu"].value = "h200"
    assert explorer.settings.pinned_rate == 55_430_000_000
    assert explorer.controls["pinned_rate"].label == "55.43 GB/s"
    explorer.controls["batch_size"].value = 4096
    assert explorer.settings.compute == 440_000
    assert explorer.controls["compute"].label == "440 µs"


def test_what_has_no_effect_is_greyed_out():
    explorer = explore()
    assert explorer.controls["lifetime"].disabled
    explorer.controls["side_stream"].value = True
    assert not explorer.controls["lifetime"].disabled
    explorer.controls["resident"].value = True
    assert all(explorer.controls[name].disabled for name in ("workers", "pin", "depth", "lifetime", "side_stream"))


def test_what_does_not_fit_is_said_and_the_picture_stays():
    explorer = explore(gpu="t4", sample_bytes=602_112, batch_size=64)
    former = explorer.timeline
    explorer.controls.buttons["resident"].click()
    assert "does not work" in explorer._words.value
    assert "memory" in explorer._words.value
    assert explorer.timeline is former
    explorer.controls.buttons["blocking"].click()
    assert "does not work" not in explorer._words.value


def test_every_control_has_its_name_as_text():
    explorer = explore()
    for widget in explorer.controls.widgets.values():
        assert widget.description
        assert widget.description in ("GPU", *_texts(explorer))


def _texts(explorer):
    return [widget.description for widget in explorer.controls.widgets.values()]


def test_the_numbers_are_those_of_summarize():
    explorer = explore("prefetch")
    summary = summarize(explorer.timeline)
    assert explorer.summary == summary
    assert f"{summary.step / 1e3:.1f} µs" in explorer._numbers.value
    assert draw.text(explorer.timeline).startswith(explorer.text().split(": ")[1].split(". ")[0])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"preset": "blocking"}, "To hide it: pinned memory, non_blocking, a side stream, a batch copied ahead."),
        ({"preset": "pinned"}, "To hide it: a side stream, a batch copied ahead."),
        ({"preset": "prefetch"}, "The GPU computes all the time"),
        ({"preset": "prefetch", "batch_size": 64, "compute": 20_000}, "Larger batches or fewer kernels would help"),
        ({"preset": "prefetch", "fetch_per_sample": 5_000}, "More workers would help"),
        ({"preset": "prefetch", "compute": 100_000, "workers": 12}, "The one pin thread is the limit"),
    ],
)
def test_it_says_what_the_loop_waits_for(settings, words):
    assert words in explore(**settings).text()


def test_a_preset_or_setting_that_means_nothing_is_refused():
    with pytest.raises(SettingsError, match="no preset 'fast'; choose from blocking"):
        explore("fast")
    with pytest.raises(SettingsError, match="no setting worker"):
        explore(worker=3)


# All three: cells, first frames


@pytest.mark.parametrize("make", [explore, lambda: step_through(factory.loader("pinned")),
                                  lambda: viewer(factory.loader("pinned"))])  # fmt: skip
def test_a_cell_that_runs_again_closes_its_former_picture(make):
    first = make()
    widgets = list(cells.descendants(first.widget))
    assert sum("Figure" in type(widget).__name__ for widget in widgets) == 1
    second = make()
    assert first.widget is None
    assert all(widget.comm is None for widget in widgets)
    assert second.widget.comm is not None
    other = cells._open
    assert list(other.values()) == [second]


@pytest.mark.parametrize("make", [explore, lambda: step_through(factory.loader("pinned")),
                                  lambda: viewer(factory.loader("pinned"))])  # fmt: skip
def test_a_first_frame_for_places_without_widgets(make, monkeypatch):
    shown = make()
    live = shown._repr_mimebundle_()
    assert live.keys() == {WIDGET, PLOTLY, "text/html", "text/plain"}
    assert live["text/html"].startswith("<svg ")  # GitHub and nbviewer show this, and know neither of the first two
    assert live["text/html"].endswith(shown.static_html())
    assert live["text/plain"] == shown.text()
    for module in ("explorer", "stepper", "viewer"):  # by name: loaderviz.explore.viewer is the function
        monkeypatch.setattr(sys.modules[f"loaderviz.explore.{module}"], "live_here", lambda: False)
    still = make()
    bundle = still._repr_mimebundle_()
    assert WIDGET not in bundle
    assert len(bundle[PLOTLY]["data"]) > 3
    assert bundle["image/svg+xml"] == live["text/html"][: len(bundle["image/svg+xml"])]
    assert bundle["text/plain"] == still.text()


def test_an_explorer_without_widgets_still_changes(monkeypatch):
    monkeypatch.setattr(sys.modules["loaderviz.explore.explorer"], "live_here", lambda: False)
    explorer = explore()
    explorer.set(workers=2)
    assert "2 workers" in explorer.figure.layout.title.text


def test_on_colab_there_are_first_frames(monkeypatch):
    monkeypatch.setitem(sys.modules, "google.colab", object())
    assert explore().widget is None


def test_a_page_that_is_loaded_again_gets_the_present_state():
    from ipywidgets.widgets import widget as registry

    former = set(registry._instances)  # other tests make widgets, too
    for _ in range(2):  # the second time with closed pictures behind it
        explorer = explore(name="")
        stepper, view = step_through(explorer.timeline, name=""), viewer(explorer.timeline, name="")
        for picture_ in (explorer, stepper, view):
            picture_._repr_mimebundle_()
    explorer.controls["workers"].value = 6
    stepper._slider.value = 9
    view._shift(0, 0.5)
    alive = [widget for key, widget in registry._instances.items() if key not in former]
    states = [widget.get_state() for widget in alive]  # what the page asks for; none may fail
    figures = [state for state in states if "_widget_layout" in state]
    titles = sorted(state["_widget_layout"]["title"]["text"] for state in figures)
    assert len(figures) == 3
    assert any("6 workers" in title for title in titles)
    assert any("event 10 of" in title for title in titles)
    assert list(view._live.widget.get_state()["_widget_layout"]["xaxis"]["range"]) == list(
        view.figure.layout.xaxis.range
    )


def test_all_pictures_of_a_page_share_one_script():
    one, two = explore(name="one"), explore(name="two")
    first, second = (explorer._live.widget for explorer in (one, two))
    assert first._script is second._script
    assert len(first._script.text) > 1_000_000
    assert len(str(first.get_state())) < 200_000
    first._script.close()
    assert explore(name="three")._live.widget._script.comm is not None


def test_a_figure_is_complete_when_the_page_first_hears_of_it(monkeypatch):
    """A page that has just been opened may miss what is sent later, and would show an empty figure."""
    import comm

    told = []
    create = comm.create_comm
    monkeypatch.setattr(
        comm, "create_comm", lambda **options: told.append(options["data"]["state"]) or create(**options)
    )
    for make in (explore, lambda: step_through(factory.loader("pinned")), lambda: viewer(factory.loader("pinned"))):
        picture_ = make()
        (state,) = [each for each in told if "_widget_data" in each]
        figure = picture_.figure.to_plotly_json()
        assert [trace["name"] for trace in state["_widget_data"]] == [trace["name"] for trace in figure["data"]]
        assert state["_widget_layout"]["title"]["text"] == figure["layout"]["title"]["text"]
        assert state["_config"]["responsive"]
        assert list(state["_dom_classes"]) == ["loaderviz-card"]
        told.clear()


def test_two_pictures_with_names_live_side_by_side():
    one, two = explore(name="one"), explore(name="two")
    assert one.widget is not None
    assert two.widget is not None


# Changing in place


def test_a_live_figure_becomes_any_other():
    pictures = [picture(simulate(Settings().change(**preset)), name, "finding") for name, preset in PRESETS.items()]
    live = LiveFigure(*pictures[0])
    for place in (1, 2, 3, 0, 3, 2, 1, 0):
        live.become(*pictures[place])
        assert plain(live.widget) == plain(figure_of(*pictures[place]))


def test_nothing_is_sent_where_nothing_changed():
    traces, layout = picture(simulate(Settings()), "a", "b")
    live = LiveFigure(traces, layout)
    live.become(*picture(simulate(Settings()), "a", "b"))
    assert live.redraws == 0


def test_the_fast_way_draws_what_draw_figure_draws():
    timeline = simulate(Settings().change(**PRESETS["prefetch"]))
    fast = plain(figure_of(*picture(timeline, "t", "s")))["data"]
    slow = plain(draw.figure(timeline, steady=True))["data"]
    assert fast == slow


def test_what_is_empty_is_not_visible_and_costs_the_browser_nothing():
    traces, _ = picture(simulate(Settings()), "t", "s")
    for trace in traces:
        drawn = any(each is not None for each in trace["x"])
        assert trace["visible"] == (drawn or trace["showlegend"]), trace["name"]
    assert sum(trace["visible"] for trace in traces) < 0.7 * len(traces)


# The stepper


def test_the_slider_moves_cursor_words_and_code():
    explorer = explore("prefetch")
    stepper = step_through(explorer.timeline)
    figure = stepper._figure
    stepper._slider.value = 40
    time = int(stepper.events[40])
    assert stepper.state.time == stepper.time == time
    assert list(figure.data[-1].x) == pytest.approx([(time - explorer.timeline.begin) / 1e6] * 2)
    assert "event 41 of" in figure.layout.title.text
    number = int(stepper.state.source.rpartition(":")[2])
    line = explorer.program.text.splitlines()[number - 1].strip()
    assert f"▶ {number:>4}" in stepper._panels["code"].value
    assert line.split("(")[0] in stepper._panels["code"].value


def test_buttons_step_and_stop_at_the_ends():
    stepper = step_through(factory.loader("prefetch"))
    stepper.step(-1)
    assert stepper.place == 0
    stepper.step()
    assert stepper.place == 1
    stepper.step(10**6)
    assert stepper.place == len(stepper.events) - 1
    middle = (int(stepper.events[7]) + int(stepper.events[8])) // 2
    stepper.go_to(middle)
    assert stepper.place == 7


def test_a_click_moves_the_cursor_to_the_bar():
    stepper = step_through(factory.loader("prefetch"))
    trace = next(trace for trace in stepper._figure.data if trace.base is not None and len(trace.base) > 3)

    class Points:
        xs, point_inds = [1], [2]

    stepper._clicked(trace, Points, None)
    assert stepper.time - stepper.timeline.begin == pytest.approx(trace.base[2] * stepper._unit, abs=1)


def test_a_timeline_without_sources_or_batches_says_so():
    builder = TimelineBuilder(Context())
    builder.span(0, 10, builder.lane("stream 7", "device"), Kind.COMPUTE, "gemm")
    stepper = step_through(builder.build())
    assert "does not say which source line" in stepper._panels["code"].value
    assert "knows no batches" in stepper._panels["batches"].value
    stepper = step_through(factory.loader("pinned"))
    stepper.step(30)
    assert "cannot be read here" in stepper._panels["code"].value


def test_an_empty_timeline_has_a_stepper_and_a_viewer():
    assert "0 ns" in step_through(factory.empty()).text()
    assert viewer(factory.empty()).text()


OWN = """
import torch

weight = torch.rand(784, 10).to("cuda")
for batch in torch.rand(4, 256, 784):
    x = batch.pin_memory().to("cuda", non_blocking=True)
    loss = (x @ weight).sum()
    loss.item()
"""


def test_it_walks_through_the_learners_own_code(tmp_path):
    """A script of their own, recorded on the emulated GPU: the line of each call, with the lines around it."""
    script = tmp_path / "own_loop.py"
    script.write_text(OWN)
    with record(on="a100") as recording:
        runpy.run_path(str(script))
    stepper = step_through(recording.timeline)
    lines = OWN.splitlines()
    seen = {}
    for place in range(len(stepper.events)):
        stepper._slider.value = place
        number = int(stepper.state.source.rpartition(":")[2])
        code = stepper._panels["code"].value
        assert f"own_loop.py, line {number}" in code
        assert f"▶ {number:>4}  {escape(lines[number - 1])}" in code
        seen[lines[number - 1].strip()] = code
    calls = [line.strip() for line in lines if "to(" in line or "@" in line or "item" in line]
    assert [line for line in seen if line in calls] == calls


def test_play_goes_on_to_the_end_and_stays_there():
    stepper = step_through(factory.loader("prefetch"))
    last = len(stepper.events) - 1
    assert (stepper._play.min, stepper._play.max, stepper._play.repeat) == (0, last, False)
    stepper._play.value = 5  # as the browser's clock does
    assert (stepper.place, stepper._slider.value) == (5, 5)
    stepper._slider.value = 2
    assert stepper._play.value == 2


def test_the_lines_around_come_from_the_file():
    title, lines, number = source_lines(f"{__file__}:3")
    assert title == "test_widgets.py, line 3"
    assert number == 3
    assert [n for n, _ in lines] == list(range(1, 10))
    assert lines[2][1].startswith("from __future__")
    program = program_of(Settings())
    program.remember()
    assert source_lines(program.source("copy"))[1]


# The viewer


def test_zooming_draws_the_window_with_a_bounded_number_of_bars():
    timeline = factory.many_spans(20_000)
    view = viewer(timeline)
    figure = view._live.widget
    assert 0 < len(view._shown.bars) <= 2_000
    merged = int((view._shown.bars.count > 1).sum())
    assert merged
    middle, width = timeline.duration / 2, timeline.duration / 200
    unit = view._unit
    figure.layout.xaxis.range = [(middle - width) / unit, (middle + width) / unit]
    start, end = view.window
    assert start - timeline.begin == pytest.approx(middle - width, abs=2)
    inside = (timeline.end >= start) & (timeline.start <= end)
    assert len(view._shown.bars) == inside.sum()
    assert (view._shown.bars.count == 1).all()
    assert plain(figure) == plain(view.figure)


def test_the_numbers_are_those_of_the_window():
    timeline = factory.loader("prefetch", 20)
    view = viewer(timeline)
    view.select(1_000_000, 1_500_000)
    assert "GPU computes" in view._panels["words"].value
    share = summarize(timeline, window=(1_000_000, 1_500_000)).compute_share
    assert f"{share:.0%}".replace("%", " %") in view.finding()
    with pytest.raises(MetricsError, match="end lies before its start"):
        view.show(5, 2)
    with pytest.raises(MetricsError, match="'batch' or 'kind'"):
        viewer(timeline, color="red")


def test_a_window_drawn_with_the_mouse_is_selected_and_framed():
    timeline = factory.loader("prefetch", 20)
    view = viewer(timeline)
    figure, unit = view._live.widget, view._unit
    view._drag.value = "select"
    dragged = {"xaxis.range[0]": 1_000_000 / unit, "xaxis.range[1]": 1_500_000 / unit}
    figure._js2py_relayout = {"relayout_data": dragged, "source_view_id": "a view"}  # as a browser does
    assert view.selected == (1_000_000, 1_500_000)
    assert view.window == (0, timeline.duration)
    assert list(figure.layout.xaxis.range) == [0, timeline.duration / unit]
    assert min(figure.data[-2].x) == pytest.approx(1_000_000 / unit)
    assert figure.data[-2].showlegend
    view._shift(0, 0)
    assert not figure.data[-2].showlegend


@pytest.mark.parametrize("color", ["batch", "kind"])
def test_each_bar_is_known_by_its_trace_and_place(color):
    timeline = factory.loader("prefetch", 6)
    view = viewer(timeline, color=color)
    view.show(timeline.begin + 200_000, timeline.begin + 900_000)
    seen = set()
    for number, trace in enumerate(view._live.widget.data[: len(Kind)]):
        for point, base in enumerate(trace.base if trace.base is not None else ()):
            span = view.span_of(number, point)
            assert timeline.kind[span] == number
            assert base == pytest.approx((max(timeline.start[span], view.window[0]) - timeline.begin) / view._unit)
            seen.add(span)
    inside = (timeline.end >= view.window[0]) & (timeline.start <= view.window[1]) & ~timeline.where(Kind.OPERATOR)
    assert seen == set(np.flatnonzero(inside).tolist())


def test_a_picked_span_is_framed_and_told_about():
    view = viewer(factory.loader("prefetch", 6))
    view._next(1)
    first = view.picked
    assert view.timeline.lanes[view.timeline.lane[first]].group == "device"
    view._next(1)
    assert view.picked > first
    assert view.timeline.lane[view.picked] == view.timeline.lane[first]
    view._next(-1)
    assert view.picked == first
    frame = view._live.widget.data[-1]
    assert frame.showlegend
    assert (view.timeline.start[first] - view.timeline.begin) / view._unit in list(frame.x)
    assert "launched by" in view._panels["story"].value


def test_the_buttons_move_and_stay_inside():
    timeline = factory.loader("prefetch", 10)
    view = viewer(timeline)
    view._shift(0, 0.5)
    assert view.window[1] - view.window[0] == pytest.approx(timeline.duration / 2, abs=2)
    for _ in range(5):
        view._shift(0.5, 1)
    assert view.window[1] == pytest.approx(timeline.begin + timeline.duration, abs=2)
    view._shift(0, 0)
    assert view.window == (timeline.begin, timeline.begin + timeline.duration)
