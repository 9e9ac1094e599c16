"""Where everything is at a moment: against brute force over the rows, and in words a reader can check."""

import factory
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaderviz.emulator.replay import PRESETS
from loaderviz.metrics import NotATimelineError
from loaderviz.timeline import ArrowKind, Kind
from loaderviz.widgets import Settings, state_at
from loaderviz.widgets.explorer import simulate
from loaderviz.widgets.stepper import events

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
