"""Summary against brute force over every nanosecond, and against closed forms."""

import math
import pickle
import re
from itertools import pairwise

import factory
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import loaderviz as lv
from loaderviz import metrics, words
from loaderviz.metrics import (
    MetricsError,
    NotATimelineError,
    collectives,
    describe,
    hidden_shares,
    states,
    summarize,
    utilization,
)
from loaderviz.timeline import COPIES, DEVICE_KINDS, KERNELS, Cause, Kind

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

    def inside(*kinds, cause=None):
        return times(timeline, *kinds, window=window, cause=cause)

    kernels, copies, work = inside(*KERNELS), inside(*COPIES), inside(*DEVICE_KINDS)
    computing, communicating = (inside(kind) for kind in KERNELS)
    h2d, d2h = (len(inside(kind)) for kind in COPIES)
    length, limit = window[1] - window[0], max(len(computing), h2d, d2h)
    blocked = {cause.words: len(inside(Kind.WAIT, cause=cause)) for cause in Cause}
    expected = {
        "window": length,
        "compute": len(computing),
        "communication": len(communicating),
        "kernels": len(kernels),
        "copy": len(copies),
        "hidden_copy": len(copies & kernels),
        "exposed_copy": len(copies - kernels),
        "idle": length - len(work),
        "hidden_communication": len(communicating & computing),
        "exposed_communication": len(communicating - computing),
        "h2d": h2d,
        "d2h": d2h,
        "limit": limit,
        "limit_most": max(limit, len(communicating)),
        "overlap": len(copies & kernels) / len(copies) if copies else None,
        "headroom": length / limit if limit else None,
        "host_blocked": {words: time for words, time in blocked.items() if time},
    }
    assert {name: getattr(summary, name) for name in expected} == expected
    assert sum(summary.breakdown.values()) == length
    assert all(part > 0 for part in summary.breakdown.values())
    rest = set(range(*window)) - work
    names = ("fetches a batch", "pins a batch", "in CUDA calls", "in operators")
    parts = [(f"blocked, {cause.words}", times(timeline, Kind.WAIT, cause=cause)) for cause in list(Cause)[1:]]
    parts += zip(
        names, (times(timeline, kind) for kind in (Kind.FETCH, Kind.PIN, Kind.API, Kind.OPERATOR)), strict=True
    )
    for name, mine in parts:  # in this order: a ns counts once
        assert summary.breakdown.get(f"idle: host {name}", 0) == len(mine & rest)
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
    alone = times(timeline, Kind.COMMUNICATION) - times(timeline, Kind.COMPUTE) - copies
    assert found["compute"] == kernels - copies - alone
    assert (found["communication"], found["waiting for ranks"]) == (alone, set())  # of one rank nobody knows
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


@given(SEEDS)
def test_a_copy_hides_under_the_kernels_of_its_own_device(seed):
    """Two GPUs that do the same at other times: what each hides is what it would hide alone."""
    first, second = factory.random_timeline(seed), factory.random_timeline(seed + 1)

    def spans(timeline, device):
        return [
            (f"{row.lane.name}@{device}", row.start, row.end, row.kind)
            for row in timeline.rows()
            if row.lane.group == "device"
        ]

    both = factory.made(*spans(first, 0), *spans(second, 1))
    alone = [factory.made(*spans(first, 0)), factory.made(*spans(second, 0))]
    for device, timeline in enumerate(alone):
        mine = [row.lane.device == device for row in both.rows()]
        found, wanted = (np.sort(shares) for shares in (hidden_shares(both)[mine], hidden_shares(timeline)))
        assert np.array_equal(found, wanted, equal_nan=True)


def collective(device, start, end, name="all_reduce"):
    return f"stream 9@{device}", start, end, Kind.COMMUNICATION, {"name": name}


@pytest.mark.parametrize(
    ("first", "second", "same"),  # parts of two devices, in µs
    [
        ((0, 500), (400, 600), True),  # they end 100 µs apart
        ((0, 500), (400, 600.001), False),
        ((0, 10_000), (9_500, 11_000), True),  # a tenth of the longer one, which ends first
        ((0, 10_000), (9_500, 11_000.001), False),
        ((9_000, 10_000), (1_112, 11_111), False),
        ((5_000, 10_000), (0, 11_111), True),  # or last
        ((0, 500), (500, 590), False),  # one begins when the other ends
        ((0, 500), (499.999, 590), True),
    ],
)
def test_parts_of_one_collective_end_within_a_tenth_of_the_longest_and_100_us(first, second, same):
    parts = [collective(device, *(round(1000 * time) for time in part)) for device, part in enumerate((first, second))]
    number, arrival = collectives(factory.made(*parts))
    assert sorted(number.tolist()) == ([1, 1] if same else [-1, -1])
    assert set(arrival.tolist()) == ({round(1000 * max(first[0], second[0]))} if same else {-1})


def test_the_limit_at_most_leaves_out_what_is_known_to_be_waiting():
    """One collective is seen of both ranks, and rank 0 waits 600 ns in it; the other of rank 0 alone."""
    seen = collective(0, 0, 1_000), collective(1, 600, 1_000), collective(0, 2_000, 2_500, "broadcast")
    summary = summarize(factory.made(*seen, ("stream 7@0", 3_000, 3_010, Kind.COMPUTE)), device=0)
    assert (summary.communication, summary.rank_wait, summary.moved) == (1_500, 600, 400)
    assert (summary.limit, summary.limit_most) == (400, 900)
    assert "at most 900 ns, if no collective waits" in str(summary)
    alone = summarize(factory.made(collective(0, 0, 1_000)))  # and nothing else that could limit
    assert (alone.limit, alone.limit_most, alone.headroom, alone.away) == (0, 1_000, None, "at the limit")


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
        assert (summary.window, summary.start_up) == (timeline.duration, 0)
        assert (summary.batches, summary.compute) == (batches, batches * factory.COMPUTE)
        assert (summary.samples, summary.step) == (batches * factory.SAMPLES, STEPS[name])
        assert summary.samples_per_second == pytest.approx(factory.SAMPLES / STEPS[name] * 1e9)
        starts = [row.start for row in timeline.rows(Kind.RANGE)]
        part = summarize(timeline, window=(starts[1], starts[3]))
        assert (part.batches, part.samples, part.window) == (2, 2 * factory.SAMPLES, starts[3] - starts[1])
        steady = summarize(timeline)
        assert (part.start_up, steady.start_up) == (0, timeline.duration - steady.window)
    assert summarize(factory.loader("pinned")).start_up == factory.FETCH + 2 * factory.PIN  # up to step 1
    assert made["blocking"].copy == batches * 2 * factory.COPY
    assert made["blocking"].overlap == made["pinned"].overlap == made["resident"].overlap == 0
    assert made["prefetch"].copy == batches * factory.COPY
    assert made["prefetch"].exposed_copy == factory.COPY  # only the first has nothing to hide under
    assert made["prefetch"].bandwidth == {"H2D pinned": pytest.approx(factory.NBYTES / factory.COPY * 1e9)}
    assert list(made["blocking"].bandwidth) == ["H2D pageable"]
    assert {"staging", "waiting for data"} <= made["blocking"].host_blocked.keys()
    assert "staging" not in made["pinned"].host_blocked


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["batch 0: 4 samples", "batch 1: 2 samples"] * 2, (4, 12)),  # two epochs
        (["batch 0", "batch 1"], (2, None)),
        (["ProfilerStep#7", "ProfilerStep#8"], (2, None)),
        (["forward"], (None, None)),
    ],
)
def test_ranges_count_the_batches_of_the_loop(names, expected):
    each = [(10 * number, 10 * number + 10, Kind.RANGE, {"name": name}) for number, name in enumerate(names)]
    timeline = factory.made(*((lane, *span) for span in each for lane in ("main", "worker 0")))
    summary = summarize(timeline)
    assert (summary.batches, summary.samples) == expected


def test_without_ranges_the_kernels_tell_the_batches():
    kernels = [("stream 0", 10 * number, 10 * number + 5, Kind.COMPUTE, {"batch": batch})
               for number, batch in enumerate((0, 0, 1, -1, 2))]  # fmt: skip
    summary = summarize(timeline := factory.made(*kernels, samples=30))
    assert (summary.batches, summary.samples) == (3, 30)
    assert summarize(timeline, samples=90).samples_per_second == pytest.approx(90 / 45 * 1e9)


def test_each_device_has_its_own_engines():
    timeline = factory.made(("stream 7", 0, 100, Kind.COMPUTE), ("stream 7@1", 0, 60, Kind.COPY_H2D))
    first, second = summarize(timeline), summarize(timeline, device=1)
    assert (first.device, first.devices, first.copy, first.compute) == (0, (0, 1), 0, 100)
    assert (second.copy, second.hidden_copy, second.limit) == (60, 0, 60)  # a kernel of GPU 0 hides nothing on GPU 1
    assert "device 0, one of 2" in str(first)
    assert describe(timeline).startswith("GPU 0 (one of 2) computes 100 % of the time")
    with pytest.raises(MetricsError, match="it has 0, 1"):
        summarize(timeline, device=7)


def test_only_the_thread_of_the_loop_is_blocked():
    waits = [(lane, 0, 10, Kind.WAIT, {"cause": Cause.SYNCHRONIZE}) for lane in ("worker 0", "pin thread", "thread 5")]
    timeline = factory.made(("main", 0, 10, Kind.WAIT, {"cause": Cause.DATA}), *waits)
    assert summarize(timeline).host_blocked == {"waiting for data": 10}
    alone = factory.made(("thread 5", 0, 10, Kind.WAIT))  # a trace may not know which thread runs the loop
    assert summarize(alone).host_blocked == {"cause not known": 10}


def test_a_fetch_is_split_into_waiting_computing_and_bytes():
    """Of the batches in the window, on average; a trace of a profiler does not tell for how long a fetch waited."""
    spans = [
        ("worker 0", n * 100, n * 100 + 60 + 20 * n, Kind.FETCH, {"batch": n, "waited": 45 + 15 * n, "nbytes": 4_000})
        for n in (0, 1)
    ]
    spans += [("worker 1", 0, 500, Kind.FETCH), ("main", 0, 500, Kind.OPERATOR)]  # the end of a stream gives no batch
    told = summarize(factory.made(*spans, origin="recorded"))
    assert (told.fetch_waits, told.fetch_computes, told.fetch_bytes) == (52.5, 17.5, 4_000)
    assert re.search(r"fetch +70 ns  a batch; 75 % waiting, 25 % on a core; 4 kB", str(told))
    read = summarize(factory.made(*spans))
    assert read.fetch_waits is read.fetch_computes is None and read.fetch_bytes == 4_000
    assert summarize(factory.empty()).fetch_bytes is None and "fetch" not in str(read)


def test_an_empty_timeline_has_no_shares():
    summary = summarize(factory.empty())
    assert summary.window == summary.limit == summary.idle == 0
    assert summary.overlap is summary.busy is summary.headroom is summary.step is summary.batches is None
    assert summary.breakdown == summary.host_blocked == {}
    assert "window" in str(summary)
    assert describe(factory.empty(), "x") == "x: an empty timeline, nothing was recorded"
    edges, share = utilization(factory.empty(), 100)
    assert (len(edges), len(share)) == (1, 0)


OPERATOR, COMPUTE = ("main", 0, 1_000, Kind.OPERATOR), ("stream 0", 0, 1_000, Kind.COMPUTE)
LOADING = ("main", 0, 300, Kind.FETCH), ("main", 300, 800, Kind.WAIT, {"cause": Cause.DATA})


@pytest.mark.parametrize(
    ("timeline", "said"),
    [
        (factory.loader("blocking"), "GPU computes 58 % of the time, 0 % of the copy is hidden, 1.72x the limit"),
        (factory.many_spans(50), "no copies"),
        (factory.made(OPERATOR), "1 µs on the host, no work on the GPU"),
        (factory.made(OPERATOR, COMPUTE), ", at the limit"),
        (factory.made(("main", 0, 1_005, Kind.OPERATOR), COMPUTE), ", at the limit"),  # half a per cent above it
        (factory.made(("main", 0, 1_006, Kind.OPERATOR), COMPUTE), ", 1.01x the limit"),
        (
            factory.made(*LOADING, ("main", 800, 1_000, Kind.OPERATOR)),
            "1 µs on the host, no work on the GPU, 50 % waiting for data, 30 % fetching batches",
        ),
    ],
)
def test_describe(timeline, said):
    assert said in describe(timeline)
    assert describe(timeline, "x") == f"x: {describe(timeline)}"


def test_the_table_says_every_number_with_its_unit():
    summary = summarize(factory.loader("prefetch"))
    text, html = str(summary), summary._repr_html_()
    for word in ("405 µs", "785 µs", "150 µs", "1.707 M samples/s", "100 % of the copy", "13.38 GB/s", "waiting for"):
        assert word in text
        assert word in html
    assert len({line.index("780 µs") for line in text.splitlines() if "780 µs" in line}) == 1  # columns aligned


def table_of(summary):
    """The rows of a summary as it prints: what -> (how much, remark)."""
    lines = [re.split(r"\s{2,}", line) for line in str(summary).splitlines() if line]
    return {what: tuple(rest) for what, *rest in lines}


def test_the_table_of_a_run_on_several_ranks():
    computes = [(f"stream 7@{rank}", 400, end, Kind.COMPUTE) for rank, end in ((0, 1_000), (1, 600))]
    spans = *computes, collective(0, 0, 600), collective(1, 200, 600)
    summary = summarize(timeline := factory.made(*spans), device=0)
    table = table_of(summary)
    expected = {
        "window": ("1 µs", "device 0, one of 2"),
        "GPU computes": ("600 ns", "60 % of the window"),
        "GPU communicates": ("600 ns", "60 % of the window"),
        "communication hidden": ("200 ns", "33 % of communication"),
        "waiting for other ranks": ("200 ns", "33 % of communication"),
        "GPU idle": ("0 ns", "0 % of the window"),
        "limit": ("600 ns", "kernels alone"),
        "headroom": ("1.67x", "window / limit"),
        "communication exposed": ("200 ns", "20 % of the window"),  # of the breakdown, which comes last
        "communication exposed, waiting for other ranks": ("200 ns", "20 % of the window"),
    }
    assert {name: table.get(name) for name in expected} == expected
    assert (summary.hidden_communication, summary.exposed_communication) == (200, 400)
    assert describe(timeline).startswith(
        "rank 1 is late: the others wait 200 ns for it; GPU 1 (one of 2) computes 20 %"
    )


def test_the_table_of_a_run_without_a_gpu_is_about_waiting():
    waits = ("main", 0, 300, Kind.WAIT, {"cause": Cause.DATA}), ("main", 300, 1_000, Kind.OPERATOR)
    rows = {"window": ("1 µs",), "host blocked: waiting for data": ("300 ns", "30 % of the window")}
    table = table_of(summarize(factory.made(*waits)))
    assert {name: table[name] for name in rows} == rows
    assert not any("GPU" in name or "copy" in name or "limit" in name for name in table)
    assert table["host blocked, waiting for data"] == ("300 ns", "30 % of the window")  # no "idle" of a GPU


def test_the_rate_of_a_copy_that_is_all_latency_is_not_in_the_table():
    summary = summarize(
        factory.made(
            ("stream 7", 0, 1_000, Kind.COPY_H2D, {"nbytes": 25_000, "pinned": True}),
            ("stream 7", 2_000, 7_000, Kind.COPY_D2H, {"nbytes": 4, "pinned": True}),
        )
    )
    assert summary.bandwidth == {"H2D pinned": 25e9, "D2H pinned": 8e5}
    (rate,) = [line.split() for line in str(summary).splitlines() if "rate" in line]
    assert rate == ["copy", "rate", "H2D", "pinned", "25", "GB/s"]


@pytest.mark.parametrize("call", [summarize, describe, states, lambda it: utilization(it, 5)])
@pytest.mark.parametrize("wrong", [None, "trace.json", {"a": 1}])
def test_something_else_than_a_timeline(call, wrong):
    with pytest.raises(NotATimelineError, match=r"needs a Timeline.*loaderviz\.read"):
        call(wrong)


def test_a_bad_window():
    for window in ((5, 1), 5, ("a", "b"), (1, 2, 3)):
        with pytest.raises(MetricsError, match="window is"):
            summarize(factory.loader("pinned"), window=window)
    for window in (0, -5, 1.5, True, "1 ms"):
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


def test_what_is_remembered_is_no_part_of_the_timeline_nor_of_what_callers_get():
    timeline, fresh = factory.loader("pinned", 4), factory.loader("pinned", 4)
    whole = summarize(timeline)
    expected = dict(whole.breakdown)
    whole.breakdown.clear()
    assert timeline.results and summarize(timeline).breakdown == expected
    assert timeline == fresh
    assert len(pickle.dumps(timeline)) == len(pickle.dumps(fresh))
    assert pickle.loads(pickle.dumps(timeline)) == timeline
    half = timeline.between(timeline.begin, timeline.begin + timeline.duration // 2)
    assert summarize(half).window < whole.window
    assert summarize(timeline, (timeline.begin, timeline.begin + 10)).window == 10
    assert summarize(timeline, samples=7).samples == 7


def test_a_step_of_a_host_that_runs_ahead_is_the_gpus_not_the_hosts():
    """Graphs are launched in 10 µs each, marked by `recording.step()`, and take 20 times as long on the GPU."""
    with lv.record(on="t4") as recording:
        x, source = torch.zeros(256, 512, device="cuda"), torch.randn(12, 256, 512).pin_memory()
        weight = torch.randn(512, 2048, device="cuda")
        with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
            (x @ weight).relu_()
        for rows in source:
            x.copy_(rows, non_blocking=True)
            graph.replay()
            recording.step()
    summary, timeline = lv.summarize(recording.timeline), recording.timeline
    kernels = timeline.start[timeline.where(Kind.COMPUTE) & timeline.named("mm".__eq__)][-12:]
    assert summary.step == pytest.approx(np.diff(kernels)[1:].mean(), rel=0.01) and summary.outside == 0


@pytest.mark.parametrize(("kernels", "begins"), [(3, [30, 130, 230]), (2, [0, 100, 200, 300])])
def test_batches_begin_with_their_kernels_where_most_have_one(kernels, begins):
    marks = [("main", 100 * n, 100 * n + 100, Kind.RANGE, {"batch": n}) for n in range(4)]
    work = [("stream 7", 100 * n + 30, 100 * n + 60, Kind.COMPUTE, {"batch": n}) for n in range(kernels)]
    timeline = factory.made(*marks, *work)
    assert metrics.begin_of(timeline, 0, np.flatnonzero(timeline.where(Kind.RANGE))).tolist() == begins
