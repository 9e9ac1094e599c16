"""Where everything is at a moment: against brute force over the rows, and in words a reader can check."""

from __future__ import annotations

import factory
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaderviz.emulator.replay import PRESETS
from loaderviz.metrics import NotATimelineError
from loaderviz.timeline import ArrowKind, Context, Kind, TimelineBuilder
from loaderviz.widgets import Settings, state_at
from loaderviz.widgets.settings import simulate
from loaderviz.widgets.state import details, events, held_by, launch_of

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
    assert {timeline.lanes[each.lane]: set(each.inside) for each in state.threads} == threads
    for each in state.threads:
        ends = [int(timeline.end[span]) for span in each.inside]
        starts = [int(timeline.start[span]) for span in each.inside]
        assert starts == sorted(starts), (starts, ends)
    for stream in state.streams:
        lane = timeline.lanes[stream.lane]
        assert ([stream.running] if stream.running >= 0 else []) == running[lane]
        assert [each.span for each in stream.queue] == queues[lane]
        assert all(each.why for each in stream.queue)
    assert list(state.batches) == sorted(batches)
    assert all(state.batches[batch].place.startswith(place) for batch, place in batches.items())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(-2, 80))
def test_random_timelines(seed, time):
    check(factory.random_timeline(seed), time)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(factory.LOADERS), st.integers(0, 2_000_000))
def test_the_four_loaders(name, time):
    check(factory.loader(name), time)


@pytest.mark.parametrize("share", [0, 0.1, 0.35, 0.6, 0.99, 1])
def test_the_explorers_own_timeline(share):
    check(PREFETCH, PREFETCH.begin + round(share * PREFETCH.duration))


def test_engines_run_what_the_streams_run():
    for time in events(PREFETCH):
        state = state_at(PREFETCH, int(time))
        on_engines = {span for spans in state.engines.values() for span in spans}
        assert on_engines == {stream.running for stream in state.streams} - {-1}
        assert all(len(spans) <= 1 for spans in state.engines.values())


def test_the_source_is_that_of_the_innermost_span_else_of_the_last_one():
    builder = TimelineBuilder(Context())
    main = builder.lane("main", "host", "main")
    builder.span(0, 100, main, Kind.RANGE, "batch 0", source="a.py:1")
    builder.span(10, 40, main, Kind.API, "cudaMemcpyAsync", source="a.py:2")
    builder.span(20, 30, main, Kind.WAIT, "staging")
    timeline = builder.build()
    assert [state_at(timeline, time).source for time in (5, 15, 25, 50, 100, 200)] == [
        "a.py:1", "a.py:2", "a.py:2", "a.py:1", "a.py:2", "a.py:2",
    ]  # fmt: skip
    assert state_at(timeline, -1).source == ""


def test_events_are_all_moments_at_which_something_changes():
    times = events(PREFETCH)
    assert (np.diff(times) > 0).all()
    rows = [row for row in PREFETCH.rows() if row.kind not in (Kind.OPERATOR, Kind.RANGE)]
    assert set(times.tolist()) == {edge for row in rows for edge in (row.start, row.end)}


def test_why_a_command_waits():
    waiting = [each for time in events(PREFETCH) for stream in state_at(PREFETCH, int(time)).streams
               for each in stream.queue]  # fmt: skip
    reasons = {each.why for each in waiting}
    assert "behind what runs in its stream" in reasons
    assert any("waits for an event: optimizer" in reason for reason in reasons)
    assert any(reason.endswith("before it in its stream") for reason in reasons)


def test_only_a_timeline_has_states():
    with pytest.raises(NotATimelineError, match=r"recording\.timeline"):
        state_at([1, 2], 3)


# Details of a span


@pytest.mark.parametrize("name", ["blocking", "pinned", "prefetch", "resident"])
def test_work_begins_when_what_held_it_is_over(name):
    timeline = simulate(Settings(steps=3).change(**PRESETS[name]))
    latency = Settings().machine().launch_latency
    for index in np.flatnonzero(timeline.where(Kind.COMPUTE, Kind.COPY_H2D)):
        call, (held, reason) = launch_of(timeline, int(index)), held_by(timeline, int(index))
        start = int(timeline.start[index])
        if held >= 0:
            assert reason
            assert int(timeline.end[held]) <= start
        if call < 0:
            continue  # launched before the window
        if timeline.kind[index] == Kind.COMPUTE:
            reached = int(timeline.end[call]) + latency
        else:  # a copy's call can block: it is on its way before the call returns
            continue
        over = int(timeline.end[held]) if held >= 0 else 0
        if held >= 0 and timeline.kind[held] == Kind.COMPUTE and timeline.lane[held] == timeline.lane[index]:
            over += Settings().machine().queue_gap * (start > max(reached, over))  # unless an event lay between them
        assert start == max(reached, over), "it began when its call had reached it and nothing held it"


def test_details_tell_the_story_of_a_prefetched_copy():
    copy = next(i for i in np.flatnonzero(PREFETCH.where(Kind.COPY_H2D)) if launch_of(PREFETCH, int(i)) >= 0)
    copy = next(i for i in np.flatnonzero(PREFETCH.where(Kind.COPY_H2D)) if i > copy)
    story = dict(details(PREFETCH, int(copy)))
    assert story["what"] == "Memcpy HtoD (Pinned -> Device)"
    assert story["host memory"] == "pinned"
    assert story["hidden"] == "> 99 % of it under kernels"  # all but the gaps between kernels
    assert story["launched by"].startswith("cudaMemcpyAsync (batch")
    assert "by an event" in story["waited for"]


def test_details_of_a_host_call_tell_what_it_launches():
    call = launch_of(PREFETCH, int(np.flatnonzero(PREFETCH.where(Kind.COMPUTE))[-1]))
    assert "optimizer" in dict(details(PREFETCH, call))["launches"]
