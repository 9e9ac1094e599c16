"""The widgets without a kernel and without a browser: setting a value redraws, words and numbers follow."""

import json
import re
import runpy
import sys
from dataclasses import asdict
from html import escape

import factory
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaderviz import record, summarize
from loaderviz.emulator.memory import OutOfMemory
from loaderviz.emulator.replay import PRESETS
from loaderviz.metrics import MetricsError, NotATimelineError
from loaderviz.timeline import ArrowKind, Kind
from loaderviz.view import ViewError
from loaderviz.widgets import Settings, SettingsError, cells, explore, state_at, step_through, viewer
from loaderviz.widgets.controls import LiveExplorer, LiveView
from loaderviz.widgets.explorer import program_of, simulate, tables
from loaderviz.widgets.stepper import events

WIDGET = cells.WIDGET


def moved(explorer, **changed):
    """What the page does when one of its controls has moved."""
    explorer.widget.settings = asdict(explorer.settings.change(**changed))


def test_python_has_the_timeline_of_what_the_page_says_it_shows():
    explorer = explore()
    for name, value in [("batch_size", 256), ("side_stream", True), ("depth", 3), ("pin", True), ("non_blocking", True),
                        ("resident", True), ("resident", False), ("gpu", "t4"), ("workers", 7)]:  # fmt: skip
        moved(explorer, **{name: value})
        assert (getattr(explorer.settings, name), explorer.timeline) == (value, simulate(explorer.settings))
        assert explorer.summary == summarize(explorer.timeline)
        assert explorer.program == program_of(explorer.settings)
    assert "7 workers, pinned" in explorer.view.heading and "7 workers, pinned" in explorer.text()
    assert "num_workers=7, pin_memory=True" in explorer.program.text


def test_what_python_sets_the_page_gets():
    explorer = explore(workers=3)
    for name, preset in PRESETS.items():
        explorer.set(**preset)
        assert all(getattr(explorer.settings, key) == value for key, value in preset.items()), name
        assert explorer.widget.settings == asdict(explorer.settings)
        assert (explorer.settings.workers, explorer.timeline) == (3, simulate(explorer.settings))


def test_what_does_not_fit_changes_nothing():
    explorer = explore(gpu="t4", sample_bytes=602_112, batch_size=64)
    former, shown = explorer.timeline, explorer.widget.settings
    with pytest.raises(OutOfMemory, match="CUDA out of memory"):
        explorer.set(resident=True)
    assert explorer.timeline is former and explorer.widget.settings == shown
    assert not explorer.settings.resident


def test_a_page_gets_its_tables_from_python(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"gpu": {"preset": "t4", "h2d": 7_000_000_000}}))
    explorer = explore()
    explorer.set(gpu=str(file))
    known = json.loads(json.dumps(tables(str(file))))
    assert known["gpus"][str(file)]["h2d"] == 7 * 10**9
    assert json.loads(json.dumps(explorer.widget.tables)) == known
    html = explorer.to_html(tmp_path / "page.html").read_text(encoding="utf-8")
    data = re.search(r'<script type="application/json" class="lv-settings">(.*?)</script>', html)[1]
    assert json.loads(data) == {"tables": known, "settings": asdict(explorer.settings)}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"preset": "blocking"}, "To hide it: pinned memory, non_blocking, a side stream, a batch copied ahead."),
        ({"preset": "pinned"}, "To hide it: a side stream, a batch copied ahead."),
        ({"preset": "prefetch"}, "The GPU computes all the time"),
        ({"preset": "prefetch", "batch_size": 64, "compute": 20_000}, "Larger batches or fewer kernels would help"),
        ({"preset": "prefetch", "fetch_per_sample": 5_000}, "More workers would help"),
        ({"preset": "prefetch", "compute": 100_000, "workers": 12}, "The one pin thread is the limit"),
        ({"preset": "prefetch", "fetch_per_sample": 5_000, "threads": True, "python": 200}, "More workers would help"),
        ({"preset": "prefetch", "fetch_per_sample": 5_000, "threads": True}, "One thread at a time has Python's lock"),
    ],
)
def test_it_says_what_the_loop_waits_for(settings, words):
    assert words in explore(**settings).text()


def test_a_preset_or_setting_that_means_nothing_is_refused():
    for make, said in (
        (lambda: explore("fast"), "no preset 'fast'; choose from blocking"),
        (lambda: explore(workers=-1), "workers is -1; give"),
        (lambda: explore().set(worker=3), "no setting worker"),
    ):
        with pytest.raises(SettingsError, match=said):
            make()


ALL_THREE = pytest.mark.parametrize("make", [explore, lambda **name: step_through(factory.loader("pinned"), **name),
                                             lambda **name: viewer(factory.loader("pinned"), **name)])  # fmt: skip


@ALL_THREE
def test_a_cell_that_runs_again_closes_its_former_picture_unless_they_have_names(make):
    first = make()
    widgets = list(cells.descendants(first.widget))
    assert sum(isinstance(widget, (LiveView, LiveExplorer)) for widget in widgets) == 1
    second = make()
    assert first.widget is None
    assert all(widget.comm is None for widget in widgets)
    assert second.widget.comm is not None
    assert list(cells._open.values()) == [second]
    one, two = make(name="one"), make(name="two")
    assert one.widget is not None and two.widget is not None


@ALL_THREE
def test_a_first_frame_for_places_without_widgets(make, monkeypatch):
    shown = make()
    outputs = displayed(shown)
    assert [output.keys() for output in outputs] == [
        {"text/html", "image/svg+xml", "text/plain"},
        {WIDGET, "text/plain"},
    ]
    assert " data-lv-stand>" in outputs[0]["text/html"]
    assert shown.static_html() in outputs[0]["text/html"]
    assert (cells.RUN in outputs[0]["text/html"]) == (make is not explore)  # which needs none
    assert (outputs[0]["text/plain"], outputs[1]["text/plain"]) == (shown.text(), " ")
    monkeypatch.setattr(cells, "live_here", lambda: False)
    (alone,) = displayed(make())
    assert " data-lv-stand>" not in alone["text/html"]
    assert sum(map(len, alone.values())) < 300_000


def displayed(picture):
    """What a notebook is given."""
    import IPython.display

    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IPython.display, "display", lambda data, raw: found.append(data))
        picture._ipython_display_()
    return found


@pytest.mark.parametrize("place", ["google.colab", None])
def test_an_explorer_without_widgets_still_changes(monkeypatch, place):
    if place:
        monkeypatch.setitem(sys.modules, place, object())
    else:
        monkeypatch.setattr(cells, "live_here", lambda: False)
    explorer = explore()
    explorer.set(workers=2)
    assert explorer.widget is None and "2 workers" in explorer.view.heading


def test_marimo_asks_for_the_widget_since_no_script_runs_in_its_html(monkeypatch):
    explorer = explore()
    assert explorer._display_() is explorer.widget is not None
    monkeypatch.setattr(cells, "live_here", lambda: False)
    alone = explore()
    assert alone._display_() is alone.view  # it would ask `alone` again, for ever


def test_a_page_that_is_loaded_again_gets_the_present_state():
    from ipywidgets.widgets import widget as registry

    former = set(registry._instances)  # other tests make widgets, too
    for _ in range(2):  # the second time with closed pictures behind it
        explorer = explore(name="")
        stepper, view = step_through(explorer.timeline, name=""), viewer(explorer.timeline, name="")
    moved(explorer, workers=6)
    stepper._slider.value = 9
    begin = view.timeline.begin
    view.show(begin + 1_000, begin + 9_000)
    alive = [widget for key, widget in registry._instances.items() if key not in former]
    states = [widget.get_state() for widget in alive]  # what the page asks for; none may fail
    shown = [state for state in states if "body" in state]
    assert len(shown) == 2
    assert [state["settings"]["workers"] for state in states if "tables" in state] == [6]
    assert any(state["time"] == stepper.events[9] - begin for state in shown)
    assert any(state["window"] == [1_000, 9_000] for state in shown)


def test_the_slider_moves_cursor_words_and_code():
    explorer = explore("prefetch")
    stepper = step_through(explorer.timeline)
    stepper._slider.value = 40
    time = int(stepper.events[40])
    assert stepper.state.time == stepper.time == time
    assert stepper._live.time == time - explorer.timeline.begin
    number = int(stepper.state.source.rpartition(":")[2])
    line = explorer.program.text.splitlines()[number - 1].strip()
    assert f"▶ {number:>4}" in stepper._panels["code"].value
    assert line.split("(")[0] in stepper._panels["code"].value
    for by, place in ((-41, 0), (1, 1), (10**6, len(stepper.events) - 1)):  # it stops at the ends
        stepper.step(by)
        assert stepper.place == place
    middle = (int(stepper.events[7]) + int(stepper.events[8])) // 2
    stepper.go_to(middle)
    assert (stepper.place, stepper.time) == (7, middle)


def test_the_views_own_cursor_and_a_click_move_everything():
    stepper = step_through(factory.loader("prefetch"))
    stepper._live.time = 400_000.0  # as the browser does while it plays
    assert stepper.state.time - stepper.timeline.begin == 400_000
    assert stepper._slider.value == stepper.place > 0
    bar = stepper.view.parts[0].bars
    stepper._live.selection = 5
    assert stepper.time - stepper.timeline.begin == bar.start[5]


def test_a_timeline_without_sources_or_batches_or_spans_says_so():
    stepper = step_through(factory.made(("stream 7", 0, 10, Kind.COMPUTE)))
    assert "does not say which source line" in stepper._panels["code"].value
    assert "knows no batches" in stepper._panels["batches"].value
    stepper = step_through(factory.loader("pinned"))
    stepper.step(30)
    assert "cannot be read here" in stepper._panels["code"].value
    assert "0 ns" in step_through(factory.empty()).text() and viewer(factory.empty()).text()


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


def test_the_numbers_are_those_of_the_window_that_is_shown():
    timeline = factory.loader("prefetch", 20)
    view = viewer(timeline)
    view._live.window = [1_000_000.0, 1_500_000.0]  # as the browser does
    assert view.window == (1_000_000, 1_500_000)
    assert "GPU computes" in view._panels["words"].value
    share = summarize(timeline, window=(1_000_000, 1_500_000)).compute_share
    assert f"{share:.0%}".replace("%", " %") in view.text()
    with pytest.raises(MetricsError, match="end lies before its start"):
        view.show(5, 2)
    with pytest.raises(ViewError, match=r"'batch' .* or 'kind'"):
        viewer(timeline, color="red")


def test_a_timeline_that_is_too_long_comes_in_parts(monkeypatch):
    monkeypatch.setattr(sys.modules["loaderviz.widgets.controls"], "MOST", 2_000)
    timeline = factory.many_spans(20_000)
    live = viewer(timeline)._live
    assert live.head["rows"] <= 2_000
    middle = timeline.duration // 2
    live._asked(live, {"need": [middle, middle + 1_000_000.0]}, [])
    assert live.head["window"][0] == live.head["parts"][0]["whole"][0] == middle


# Where everything is at a moment: against brute force over the rows, and in words a reader can check


PREFETCH = simulate(Settings(steps=3).change(**PRESETS["prefetch"]))
STAGES = {Kind.FETCH: 0, Kind.PIN: 1, Kind.COPY_H2D: 2, Kind.COMPUTE: 3, Kind.COMMUNICATION: 3}
WORDS = [
    ("being fetched", "fetched"), ("being pinned", "in pinned"), ("being copied", "on the GPU"),
    ("being computed", "done"),
]  # fmt: skip


def brute_force(timeline, time):
    """The same, by going through all rows for each question."""
    rows = list(timeline.rows())
    on = [number for number, row in enumerate(rows) if row.start <= time < row.end]
    threads = {lane: {n for n in on if rows[n].lane == lane} for lane in timeline.lanes if lane.group == "host"}
    running, queues = {}, {}
    calls = {int(head): int(tail) for tail, head, kind in zip(*timeline.arrows.values(), strict=True)
             if kind == ArrowKind.LAUNCH}  # fmt: skip
    for lane in timeline.lanes:
        if lane.group == "device":
            running[lane] = [n for n in on if rows[n].lane == lane]
            mine = [n for n in calls if rows[n].lane == lane]
            waiting = [n for n in mine if rows[calls[n]].end <= time < rows[n].start]
            queues[lane] = sorted(waiting, key=lambda n: rows[n].start)
    batches = {}
    for batch in {row.batch for row in rows if row.batch >= 0}:
        mine = [row for row in rows if row.batch == batch and row.kind in STAGES]
        begun = [STAGES[row.kind] for row in mine if row.start <= time]
        if begun:
            stage = max(begun)
            over = all(row.end <= time for row in mine if STAGES[row.kind] == stage)
            batches[batch] = WORDS[stage][over]
    return threads, running, queues, {batch: place for batch, place in batches.items() if place != "done"}


def check(timeline, time):
    state, (threads, running, queues, batches) = state_at(timeline, time), brute_force(timeline, time)
    lanes = timeline.lanes
    assert {lanes[lane]: set(spans.tolist()) for lane, spans in state.threads.items()} == threads
    for spans in state.threads.values():
        assert (np.diff(timeline.start[spans]) >= 0).all()
    assert {lanes[lane]: [span] if span >= 0 else [] for lane, span in state.streams.items()} == running
    assert {lanes[lane]: [span for span, _ in queue] for lane, queue in state.queues.items()} == queues
    assert all(why for queue in state.queues.values() for _, why in queue)
    assert list(state.batches) == sorted(batches)
    assert all(state.batches[batch].startswith(place) for batch, place in batches.items())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(-2, 80))
def test_random_timelines(seed, time):
    check(factory.random_timeline(seed), time)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(factory.LOADERS), st.integers(0, 2_000_000))
def test_the_four_loaders(name, time):
    check(factory.loader(name), time)


def test_engines_run_what_the_streams_run():
    for time in events(PREFETCH):
        state = state_at(PREFETCH, int(time))
        on_engines = {span for spans in state.engines.values() for span in spans}
        assert on_engines == {*state.streams.values()} - {-1}
        assert all(len(spans) <= 1 for spans in state.engines.values())


def test_the_source_is_that_of_the_innermost_span_else_of_the_last_one():
    timeline = factory.made(
        ("main", 0, 100, Kind.RANGE, {"source": "a.py:1"}),
        ("main", 10, 40, Kind.API, {"source": "a.py:2"}),
        ("main", 20, 30, Kind.WAIT),
    )
    lines = [state_at(timeline, time).source[-1:] for time in (-1, 5, 15, 25, 50, 100, 200)]
    assert lines == ["", "1", "2", "2", "1", "2", "2"]


def test_events_are_all_moments_at_which_something_changes():
    times = events(PREFETCH)
    assert (np.diff(times) > 0).all()
    rows = [row for row in PREFETCH.rows() if row.kind not in (Kind.OPERATOR, Kind.RANGE)]
    assert set(times.tolist()) == {edge for row in rows for edge in (row.start, row.end)}


def test_why_a_command_waits():
    states = [state_at(PREFETCH, int(time)) for time in events(PREFETCH)]
    reasons = {why for state in states for queue in state.queues.values() for _, why in queue}
    assert "behind what runs in its stream" in reasons
    assert any("waits for an event: optimizer" in reason for reason in reasons)
    assert any(reason.endswith("before it in its stream") for reason in reasons)


def test_only_a_timeline_has_states():
    with pytest.raises(NotATimelineError, match=r"recording\.timeline"):
        state_at([1, 2], 3)
