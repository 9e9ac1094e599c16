"""Summary against brute force over every nanosecond, and against closed forms."""

from __future__ import annotations

import math
import pickle
from itertools import pairwise

import factory
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderviz import compare, export, metrics, words
from loaderviz.metrics import MetricsError, NotATimelineError, describe, hidden_shares, states, summarize, utilization
from loaderviz.timeline import COPIES, DEVICE_KINDS, KERNELS, Cause, Context, Kind, TimelineBuilder

SEEDS = st.integers(0, 10_000)


def times(timeline, *kinds, window=None, cause=None):
    """The set of ns in which a span of these kinds runs."""
    inside = set(range(*window)) if window else None
    found = {
        time
        for row in timeline.rows(*kinds)
        if cause is None or row.cause is cause
        for time in range(row.start, row.end)
    }
    return found if inside is None else found & inside


@given(SEEDS, st.none() | st.tuples(st.integers(0, 40), st.integers(40, 90)))
def test_every_number_against_brute_force(seed, window):
    timeline = factory.random_timeline(seed)  # without steps: nothing is left out
    summary = summarize(timeline, window=window)
    if window is None:
        window = (timeline.begin, timeline.begin + timeline.duration)
    kernels, copies = times(timeline, *KERNELS, window=window), times(timeline, *COPIES, window=window)
    work = times(timeline, *DEVICE_KINDS, window=window)
    length = window[1] - window[0]
    assert summary.window == length
    assert summary.compute == len(times(timeline, Kind.COMPUTE, window=window))
    assert summary.communication == len(times(timeline, Kind.COMMUNICATION, window=window))
    assert summary.kernels == len(kernels)
    assert summary.copy == len(copies)
    assert summary.hidden_copy == len(copies & kernels)
    assert summary.exposed_copy == len(copies - kernels)
    assert summary.idle == length - len(work)
    h2d, d2h = (len(times(timeline, kind, window=window)) for kind in COPIES)
    computing, communicating = (times(timeline, kind, window=window) for kind in KERNELS)
    assert summary.hidden_communication == len(communicating & computing)
    assert summary.exposed_communication == len(communicating - computing)
    assert (summary.h2d, summary.d2h, summary.limit) == (h2d, d2h, max(len(computing), h2d, d2h))
    assert summary.limit_most == max(summary.limit, len(communicating))
    assert summary.overlap == (len(copies & kernels) / len(copies) if copies else None)
    assert summary.headroom == (length / summary.limit if summary.limit else None)
    blocked = {cause.words: len(times(timeline, Kind.WAIT, window=window, cause=cause)) for cause in Cause}
    assert summary.host_blocked == {words: time for words, time in blocked.items() if time}
    assert sum(summary.breakdown.values()) == length
    assert all(part > 0 for part in summary.breakdown.values())
    rest = set(range(*window)) - work
    for cause in list(Cause)[1:]:  # in order of the causes: a ns counts once
        mine = times(timeline, Kind.WAIT, cause=cause) & rest
        assert summary.breakdown.get(f"idle: host blocked, {cause.words}", 0) == len(mine)
        rest -= mine
    names = ("fetches a batch", "pins a batch", "in CUDA calls", "in operators")
    for name, kind in zip(names, (Kind.FETCH, Kind.PIN, Kind.API, Kind.OPERATOR), strict=True):
        mine = times(timeline, kind) & rest
        assert summary.breakdown.get(f"idle: host {name}", 0) == len(mine)
        rest -= mine
    assert summary.breakdown.get("idle: other", 0) == len(rest)


@given(SEEDS)
def test_states_are_disjoint_and_fill_the_window(seed):
    timeline = factory.random_timeline(seed)
    found = {name: {t for a, b in part.tolist() for t in range(a, b)} for name, part in states(timeline).items()}
    everything = set(range(timeline.begin, timeline.begin + timeline.duration))
    assert set.union(*found.values()) == everything
    assert sum(map(len, found.values())) == len(everything)
    kernels, copies = times(timeline, *KERNELS), times(timeline, *COPIES)
    assert found["compute"] == kernels - copies
    assert found["copy hidden"] == kernels & copies
    assert found["copy exposed"] == copies - kernels
    assert found["idle"] == everything - times(timeline, *DEVICE_KINDS)


@given(SEEDS, st.integers(1, 100))
def test_utilization_against_brute_force(seed, window):
    timeline = factory.random_timeline(seed)
    edges, share = utilization(timeline, window)
    kernels = times(timeline, *KERNELS)
    assert edges[0] == timeline.begin
    assert edges[-1] == timeline.begin + timeline.duration
    expected = [len(kernels & set(range(a, b))) / (b - a) for a, b in pairwise(edges.tolist())]
    assert share.tolist() == pytest.approx(expected)
    assert (np.diff(edges)[:-1] == window).all()


@given(SEEDS)
def test_hidden_share_of_each_copy(seed):
    timeline = factory.random_timeline(seed)
    kernels = times(timeline, *KERNELS)
    for row, value in zip(timeline.rows(), hidden_shares(timeline).tolist(), strict=True):
        if row.kind in COPIES and row.duration:
            hidden = len(set(range(row.start, row.end)) & kernels) / row.duration
            assert value == pytest.approx(hidden)
        else:
            assert math.isnan(value)


STEPS = {
    "blocking": 2 * factory.COPY + factory.COMPUTE + factory.LAUNCH,  # the first launch comes after the copy
    "pinned": factory.COPY + factory.COMPUTE,
    "prefetch": factory.COMPUTE,
    "resident": factory.COMPUTE,
}


def test_closed_form_of_the_loaders():
    batches = 6
    made = {}
    for name, timeline in factory.loaders(batches).items():
        made[name] = summary = summarize(timeline, window=(0, timeline.duration))
        assert summary.window == timeline.duration
        assert summary.start_up == 0
        assert summary.compute == batches * factory.COMPUTE
        assert summary.batches == batches
        assert summary.samples == batches * factory.SAMPLES
        assert summary.step == STEPS[name]
        assert summary.samples_per_second == pytest.approx(factory.SAMPLES / STEPS[name] * 1e9)
    assert made["blocking"].copy == batches * 2 * factory.COPY
    assert made["blocking"].overlap == made["pinned"].overlap == made["resident"].overlap == 0
    assert made["prefetch"].copy == batches * factory.COPY
    assert made["prefetch"].exposed_copy == factory.COPY  # only the first has nothing to hide under
    assert made["prefetch"].bandwidth == {"H2D pinned": pytest.approx(factory.NBYTES / factory.COPY * 1e9)}
    assert list(made["blocking"].bandwidth) == ["H2D pageable"]
    assert {"staging", "waiting for data"} <= made["blocking"].host_blocked.keys()
    assert "staging" not in made["pinned"].host_blocked


def test_a_window_counts_the_batches_handed_out_in_it():
    timeline = factory.loader("blocking")
    starts = [row.start for row in timeline.rows(Kind.RANGE)]
    summary = summarize(timeline, window=(starts[1], starts[3]))
    assert (summary.batches, summary.samples) == (2, 2 * factory.SAMPLES)
    assert summary.window == starts[3] - starts[1]


def test_batches_of_two_epochs_are_counted_twice_and_steps_of_the_profiler_count_too():
    for names, expected in (
        (["batch 0: 4 samples", "batch 1: 2 samples"] * 2, (4, 12)),
        (["batch 0", "batch 1"], (2, None)),
        (["ProfilerStep#7", "ProfilerStep#8"], (2, None)),
        (["forward"], (None, None)),
    ):
        builder = TimelineBuilder(Context())
        main = builder.lane("main", "host", "main")
        worker = builder.lane("worker 0", "host", "worker")
        for number, name in enumerate(names):
            builder.span(10 * number, 10 * number + 10, main, Kind.RANGE, name)
            builder.span(10 * number, 10 * number + 10, worker, Kind.RANGE, name)  # not the loop's
        summary = summarize(builder.build())
        assert (summary.batches, summary.samples) == expected


def test_without_ranges_the_kernels_tell_the_batches():
    builder = TimelineBuilder(Context(samples=30))
    stream = builder.lane("stream 0", "device")
    for number, batch in enumerate((0, 0, 1, -1, 2)):
        builder.span(10 * number, 10 * number + 5, stream, Kind.COMPUTE, "kernel", batch=batch)
    summary = summarize(builder.build())
    assert (summary.batches, summary.samples) == (3, 30)
    assert summarize(builder.build(), samples=90).samples_per_second == pytest.approx(90 / 45 * 1e9)


def test_each_device_has_its_own_engines():
    builder = TimelineBuilder(Context())
    lanes = [builder.lane("stream 7", "device", number=7, device=device) for device in (0, 1)]
    builder.span(0, 100, lanes[0], Kind.COMPUTE, "kernel")
    builder.span(0, 60, lanes[1], Kind.COPY_H2D, "Memcpy HtoD")
    timeline = builder.build()
    first, second = summarize(timeline), summarize(timeline, device=1)
    assert (first.device, first.devices, first.copy, first.compute) == (0, (0, 1), 0, 100)
    assert (second.copy, second.hidden_copy, second.limit) == (60, 0, 60)  # a kernel of GPU 0 hides nothing on GPU 1
    assert "device 0 of 2" in str(first)
    with pytest.raises(MetricsError, match="it has 0, 1"):
        summarize(timeline, device=7)


def test_only_the_thread_of_the_loop_is_blocked():
    builder = TimelineBuilder(Context())
    for name, role in (("main", "main"), ("worker 0", "worker"), ("pin thread", "pin"), ("thread 5", "thread")):
        lane = builder.lane(name, "host", role)
        builder.span(0, 10, lane, Kind.WAIT, "wait", cause=Cause.DATA if role == "main" else Cause.SYNCHRONIZE)
    assert summarize(builder.build()).host_blocked == {"waiting for data": 10}
    builder = TimelineBuilder(Context())  # a recorded trace may not know which thread runs the loop
    builder.span(0, 10, builder.lane("thread 5", "host", "thread"), Kind.WAIT, "wait")
    assert summarize(builder.build()).host_blocked == {"cause not known": 10}


def test_an_empty_timeline_has_no_shares():
    summary = summarize(factory.empty())
    assert summary.window == summary.limit == summary.idle == 0
    assert summary.overlap is summary.busy is summary.headroom is summary.step is summary.batches is None
    assert summary.breakdown == summary.host_blocked == {}
    assert "window" in str(summary)
    assert describe(factory.empty(), "x") == "x: an empty timeline, nothing was recorded"
    edges, share = utilization(factory.empty(), 100)
    assert (len(edges), len(share)) == (1, 0)


def test_describe():
    timeline = factory.loader("blocking")
    line = describe(timeline, "blocking")
    assert line == "blocking: GPU computes 58 % of the time, 0 % of the copy is hidden, 1.72x the limit"
    whole = describe(timeline, window=(0, timeline.duration))
    assert whole == "GPU computes 49 % of the time, 0 % of the copy is hidden, 2.04x the limit"
    assert "no copies" in describe(factory.many_spans(50))
    builder = TimelineBuilder(Context())
    builder.span(0, 5_000, builder.lane("main", "host", "main"), Kind.OPERATOR, "aten::add")
    assert describe(builder.build()) == "5 µs on the host, no work on the GPU"
    builder.span(0, 5_000, builder.lane("stream 0", "device"), Kind.COMPUTE, "kernel")
    assert describe(builder.build()).endswith("at the limit")
    builder.span(0, 500, builder.lane("stream 1", "device", device=1), Kind.COMPUTE, "kernel")
    assert describe(builder.build(), "x").startswith("x: GPU 0 (of 2) computes 100 % of the time")


@pytest.mark.parametrize(
    ("loop", "said"), [(1_000, "at the limit"), (1_004, "at the limit"), (1_006, "1.01x the limit")]
)
def test_at_the_limit_is_less_than_half_a_per_cent_above_it(loop, said):
    builder = TimelineBuilder(Context())
    builder.span(0, loop, builder.lane("main", "host", "main"), Kind.OPERATOR, "aten::add")
    builder.span(0, 1_000, builder.lane("stream 0", "device"), Kind.COMPUTE, "kernel")
    assert describe(builder.build()).endswith(f", {said}")


def test_a_run_without_a_gpu_says_what_loading_costs():
    builder = TimelineBuilder(Context())
    main = builder.lane("main", "host", "main")
    builder.span(0, 300, main, Kind.FETCH, "fetch batch 0")
    builder.span(300, 800, main, Kind.WAIT, "waiting for data", cause=Cause.DATA)
    builder.span(800, 1_000, main, Kind.OPERATOR, "aten::add")
    said = "1 µs on the host, no work on the GPU, 50 % waiting for data, 30 % fetching batches"
    assert describe(builder.build()) == said


def test_the_table_says_every_number_with_its_unit():
    summary = summarize(factory.loader("prefetch"))
    text, html, markdown = str(summary), summary._repr_html_(), summary._repr_markdown_()
    for word in ("405 µs", "785 µs", "150 µs", "1.707 M samples/s", "100 % of the copy", "13.38 GB/s", "waiting for"):
        assert word in text
        assert word in html
        assert word in markdown
    assert len({line.index("780 µs") for line in text.splitlines() if "780 µs" in line}) == 1  # columns aligned
    assert markdown.splitlines()[1] == "|---|---:|---|"


def test_the_rate_of_a_copy_that_is_all_latency_is_not_in_the_table():
    builder = TimelineBuilder(Context())
    stream = builder.lane("stream 7", "device")
    builder.span(0, 1_000, stream, Kind.COPY_H2D, "Memcpy HtoD", nbytes=25_000, pinned=True)
    builder.span(2_000, 7_000, stream, Kind.COPY_D2H, "Memcpy DtoH", nbytes=4, pinned=True)
    summary = summarize(builder.build())
    assert summary.bandwidth == {"H2D pinned": 25e9, "D2H pinned": 8e5}
    assert [line.split() for line in str(summary).splitlines() if "rate" in line] == [
        ["copy", "rate", "H2D", "pinned", "25", "GB/s"]
    ]


@pytest.mark.parametrize("call", [summarize, describe, states, lambda it: utilization(it, 5)])
@pytest.mark.parametrize("wrong", [None, "trace.json", {"a": 1}])
def test_something_else_than_a_timeline(call, wrong):
    with pytest.raises(NotATimelineError, match=r"needs a Timeline.*loaderviz\.read"):
        call(wrong)


@pytest.mark.parametrize("window", [(5, 1), 5, ("a", "b"), (1, 2, 3)])
def test_a_bad_window(window):
    with pytest.raises(MetricsError, match="window is"):
        summarize(factory.loader("pinned"), window=window)


@pytest.mark.parametrize("window", [0, -5, 1.5, True, "1 ms"])
def test_a_bad_sampling_window(window):
    with pytest.raises(MetricsError, match="sampling window in ns"):
        utilization(factory.loader("pinned"), window)


def test_words():
    times = map(words.duration, (0, 7, 999, 1_000, 12_500, 999_999, 1_234_567, 2.5e9, None))
    assert ", ".join(times) == "0 ns, 7 ns, 999 ns, 1 µs, 12.5 µs, 1 ms, 1.235 ms, 2.5 s, –"
    sizes = map(words.size, (0, 512, 200_704, 47_040_000, None))
    assert ", ".join(sizes) == "0 bytes, 512 bytes, 200.7 kB, 47.04 MB, –"
    assert [words.share(x) for x in (0, 0.001, 0.5, 0.996, 1, None)] == ["0 %", "< 1 %", "50 %", "> 99 %", "100 %", "–"]
    assert [words.times(x) for x in (1.02, 9.99, 9.996, 99.96, 1234, None)] == [
        "1.02x", "9.99x", "10.0x", "100x", "1,234x", "–"]  # fmt: skip
    counts = [words.count(*each) for each in ((1, "batch"), (0, "batch"), (1_234, "span"))]
    assert counts == ["1 batch", "0 batches", "1,234 spans"]
    assert [words.rate(x) for x in (0.5, 99.94, 234_567, 1_234_567, None)] == ["0.5", "99.9", "234,567", "1.235 M", "–"]


@pytest.mark.parametrize(
    "show",
    [
        lambda timelines, _: [timeline._repr_mimebundle_() for timeline in timelines.values()],
        lambda timelines, _: compare(timelines)._repr_mimebundle_(),
        lambda timelines, page: export.to_html(timelines, page),
        lambda timelines, page: export.to_html([export.Section("all", items=[*timelines.values()])], page),
    ],
    ids=["notebook", "compare", "page of a comparison", "page"],
)
def test_showing_a_timeline_works_its_summary_out_once(monkeypatch, tmp_path, show):
    counted = []
    monkeypatch.setattr(metrics, "_steps", lambda *where, real=metrics._steps: counted.append(where) or real(*where))
    monkeypatch.setattr(export, "advise", lambda _: ())  # it judges windows, and predictions, of its own
    timelines = factory.loaders()
    show(timelines, tmp_path / "page.html")
    assert len(counted) == len(timelines)


def test_each_caller_gets_a_summary_of_its_own():
    timeline = factory.loader("pinned", 4)
    first = summarize(timeline)
    expected = dict(first.breakdown)
    first.breakdown.clear()
    assert summarize(timeline).breakdown == expected


def test_what_is_remembered_is_no_part_of_the_timeline():
    timeline, fresh = factory.loader("pinned", 4), factory.loader("pinned", 4)
    whole = summarize(timeline)
    assert timeline.results
    assert timeline == fresh
    assert len(pickle.dumps(timeline)) == len(pickle.dumps(fresh))
    assert pickle.loads(pickle.dumps(timeline)) == timeline
    half = timeline.between(timeline.begin, timeline.begin + timeline.duration // 2)
    assert summarize(half).window < whole.window
    assert summarize(timeline, (timeline.begin, timeline.begin + 10)).window == 10
    assert summarize(timeline, samples=7).samples == 7
