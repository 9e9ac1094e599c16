"""The explorer's pipelines: sound for any setting, in the lessons' order, and as the code beside them does."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loaderviz import experiment, record, summarize
from loaderviz.emulator import Gpu
from loaderviz.emulator.kernels import memory_time
from loaderviz.emulator.replay import LIFETIMES, PRESETS
from loaderviz.timeline import COPIES, Kind
from loaderviz.widgets.explorer import Settings, SettingsError, program_of, simulate

LARGE = Settings(kernels=17)
SMALL = LARGE.change(batch_size=64, compute=34_000)
ANY = st.builds(
    Settings, batch_size=st.sampled_from([8, 256, 8192]), sample_bytes=st.sampled_from([100, 784, 3136]),
    compute=st.sampled_from([1_000, 100_000, 3_000_000]), kernels=st.sampled_from([1, 2, 8]),
    fetch_per_sample=st.sampled_from([0, 1_000]), pinned_rate=st.sampled_from([10**9, 25 * 10**9]),
    workers=st.integers(0, 5), depth=st.integers(0, 4), pin=st.booleans(), non_blocking=st.booleans(),
    side_stream=st.booleans(), lifetime=st.sampled_from(list(LIFETIMES)), resident=st.booleans(),
    gpu=st.sampled_from(["a100", "t4", "h200"]), steps=st.integers(1, 6), threads=st.booleans(),
    python=st.integers(0, 1000),
)  # fmt: skip


def step(of: Settings) -> float:
    return summarize(simulate(of)).step


def spans(timeline, *kinds):
    """By batch: (first start, last end) of the spans of these kinds."""
    found: dict[int, tuple[int, int]] = {}
    for row in timeline.rows(*kinds):
        start, end = found.get(row.batch, (row.start, row.end))
        found[row.batch] = (min(start, row.start), max(end, row.end))
    return found


@settings(max_examples=60, deadline=None)
@given(ANY)
def test_any_setting_gives_a_sound_timeline(chosen):
    timeline = simulate(chosen).self_check()
    summary = summarize(timeline)
    assert summary.batches == chosen.steps
    kernels = np.bincount(timeline.batch[timeline.where(Kind.COMPUTE)])
    assert sorted(kernels[kernels > 0]) == [chosen.kernels + chosen.resident] * chosen.steps
    assert chosen.resident == (not timeline.where(*COPIES).any())
    assert simulate(chosen) == timeline


COPY_BOUND = Settings(compute=1_000, kernels=1, fetch_per_sample=0, pinned_rate=10**9, **PRESETS["prefetch"])


@settings(max_examples=60, deadline=None)
@given(ANY.filter(lambda chosen: not chosen.resident))
@example(COPY_BOUND)  # the host is far ahead: only the order between the streams holds the kernels back
@example(COPY_BOUND.change(depth=0))
def test_no_setting_has_a_race(chosen):
    timeline = simulate(chosen)
    copies, kernels = spans(timeline, Kind.COPY_H2D), spans(timeline, Kind.COMPUTE)
    fetched, pinned = spans(timeline, Kind.FETCH), spans(timeline, Kind.PIN)
    for batch, (start, end) in copies.items():
        if batch in kernels:
            assert kernels[batch][0] >= end, "a kernel reads a batch before its copy is over"
        ready = (pinned if chosen.pin else fetched).get(batch)
        assert ready is None or start >= ready[1], "a batch is copied before it is there"
        if chosen.side_stream and chosen.lifetime != "record_stream" and batch - chosen.depth - 1 in kernels:
            assert start >= kernels[batch - chosen.depth - 1][1], "a copy writes where the GPU still reads"
    for (_, first), (second, _) in pairwise(sorted(copies.values())):
        assert second >= first, "there is one copy engine in each direction"


def test_the_four_lessons_come_out_in_their_order():
    steps = {name: step(LARGE.change(**preset)) for name, preset in PRESETS.items()}
    assert steps["blocking"] > 1.5 * steps["pinned"] > 1.5 * 1.1 * steps["prefetch"]


AHEAD = {"side_stream": True, "depth": 2}


@pytest.mark.parametrize(
    ("change", "least", "most"),
    [
        (PRESETS["prefetch"], 0.95, 1),
        *(({"pin": True, "non_blocking": True, "depth": depth}, 0, 0) for depth in (0, 1, 2, 4)),  # one stream
        ({"pin": True} | AHEAD, 0, 0.05),  # pinning without non_blocking hides nothing
    ],
)
def test_how_much_of_the_copy_is_hidden(change, least, most):
    assert least <= summarize(simulate(LARGE.change(**change))).overlap <= most


def test_non_blocking_without_pinning_gains_nothing():
    for change in ({}, {"side_stream": True}, AHEAD):
        assert step(LARGE.change(non_blocking=True, **change)) > 0.97 * step(LARGE)


def test_small_batches_wait_for_the_host_and_not_for_the_copy():
    plain, ahead = (simulate(SMALL.change(**PRESETS[name])) for name in ("pinned", "prefetch"))
    assert summarize(ahead).step > 0.97 * summarize(plain).step
    breakdown = summarize(plain).breakdown
    launching = breakdown["idle: host in operators"] + breakdown["idle: host in CUDA calls"]
    assert launching > 3 * breakdown["copy exposed"]


def test_workers_share_the_work_until_something_else_is_the_limit():
    slow = LARGE.change(batch_size=256, fetch_per_sample=100_000, **PRESETS["prefetch"])  # 25.6 ms a batch
    steps = [step(slow.change(workers=workers, steps=24)) for workers in (0, 1, 2, 4)]
    assert steps[0] > steps[1] > 25_600_000
    assert steps[1] / steps[2] == pytest.approx(2, rel=0.15)
    assert steps[2] / steps[3] == pytest.approx(2, rel=0.15)


def pace(timeline):
    """The usual time from batch to batch on the GPU; a page-lock or cudaMalloc in one step does not count."""
    starts = [start for start, _ in spans(timeline, Kind.COMPUTE).values()]
    return float(np.median(np.diff(sorted(starts))))


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [4096, 64])
def test_explorer_and_experiment_agree(batch_size):
    runs = experiment.four_loaders(experiment.Setting(batch_size))
    real = {name: run.timeline for name, run in runs.items()}
    per_batch = summarize(real["pinned"]).compute // summarize(real["pinned"]).batches
    # an image of 784 bytes has a label of 8; the kernels are those of the experiment's network
    alike = Settings(batch_size=batch_size, sample_bytes=792, compute=per_batch, kernels=17, steps=12)
    ours = {name: simulate(alike.change(**preset)) for name, preset in PRESETS.items()}
    for name, timeline in ours.items():
        # the experiment's labels are a tensor of their own, which costs as much as the images to take from a worker
        assert pace(timeline) == pytest.approx(pace(real[name]), rel=0.15 if batch_size > 64 else 0.3), name
        if name != "resident":
            assert summarize(timeline).overlap == pytest.approx(summarize(real[name]).overlap, abs=0.05)
    order = sorted(ours, key=lambda name: pace(ours[name]))
    assert all(pace(real[fast]) < 1.05 * pace(real[slow]) for fast, slow in pairwise(order))


CODES = [
    {}, {"pin": True}, {"pin": True, "non_blocking": True}, {"non_blocking": True},
    {"pin": True, "non_blocking": True, "depth": 2}, {"workers": 2, "pin": True},
    {"threads": True},
    *({"threads": True, "workers": 2, **more} for more in ({}, PRESETS["pinned"], PRESETS["prefetch"])),
    *({"pin": True, "non_blocking": True, "side_stream": True, "depth": depth, "lifetime": lifetime}
      for lifetime in LIFETIMES for depth in (0, 1, 3)),
]  # fmt: skip
CALLS = re.compile(r"cudaMemcpyAsync|cudaStreamSynchronize|cudaStreamWaitEvent")


def calls(timeline, batch):
    """The calls of a step that copy, wait or order, in their order; and the streams that copies and kernels run on."""
    steps = ((row.start, row.end) for row in timeline.rows(Kind.RANGE) if re.match(rf"batch {batch}(:|$)", row.name))
    begin, end = next(steps)
    mine = [row.name for row in timeline.rows(Kind.API) if begin <= row.start < end and CALLS.match(row.name)]
    copies = {(row.name, row.lane.name) for row in timeline.rows(Kind.COPY_H2D) if row.start >= begin}
    return sorted(mine), copies, {row.lane.name for row in timeline.rows(Kind.COMPUTE)}


def run_the_code(chosen):
    with record(on="a100") as recording:
        exec(compile(program_of(chosen).text, "<the code>", "exec"), {"__name__": "__main__"})
    return recording.timeline


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("change", CODES, ids=str)
def test_the_code_does_what_the_picture_shows(change):
    chosen = Settings(batch_size=4096, steps=3).change(**({"workers": 0} | change))
    real, ours = run_the_code(chosen), simulate(chosen)
    assert [mark.kind for mark in real.marks if mark.kind.startswith("early")] == []
    middle = min(row.batch for row in ours.rows(Kind.RANGE) if row.batch >= 0) + 1
    assert calls(ours, middle) == calls(real, 8)


@pytest.mark.filterwarnings("ignore")
def test_the_code_of_the_resident_loader_copies_before_the_first_step_only():
    real = run_the_code(Settings(batch_size=4096, resident=True))
    copies = list(real.rows(Kind.COPY_H2D))
    gathers = [row for row in real.rows(Kind.COMPUTE) if "index_select" in row.name]
    assert len(gathers) == -(-60_000 // 4096)
    assert sum(row.nbytes for row in copies) >= 60_000 * 784
    assert max(row.end for row in copies) <= gathers[0].start


def test_the_lines_named_do_what_their_names_say():
    for change in [*CODES, {"resident": True}]:
        program = program_of(Settings(fetch_per_sample=5_000).change(**change))
        text = program.text.splitlines()
        expected = {"copy": r"\.to\(|\.copy_\(", "backward": "backward", "optimizer": "step", "protect": "wait_stream",
                    "hand over": "main.wait", "gather": "index_select", "loop": "for ", "forward": "model"}  # fmt: skip
        for does, pattern in expected.items():
            if does in program.lines:
                assert re.search(pattern, text[program.lines[does] - 1]), (does, change)
        used = {row.source for row in simulate(Settings(fetch_per_sample=5_000).change(**change)).rows() if row.source}
        assert used <= {program.source(does) for does in program.lines}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 0}, "batch_size is 0; give a whole number from 1"),
        ({"depth": 1.5}, "depth is 1.5"),
        ({"depth": 17}, "depth is 17; give a whole number from 0 to 16"),
        ({"workers": 65}, "workers is 65; give a whole number from 0 to 64"),
        ({"pin": 1}, "pin is 1; give True or False"),
        ({"threads": 0.2}, "threads is 0.2; give True or False"),
        ({"python": 1001}, "python is 1001; give a whole number from 0 to 1,000"),
        ({"lifetime": "luck"}, "lifetime is 'luck'; choose from consumer"),
        ({"gpu": "gtx"}, "gpu is 'gtx'; choose from 2080ti"),
        ({"bathc": 3}, "no setting bathc; there are workers"),
    ],
)
def test_a_setting_that_means_nothing_is_refused(change, words):
    with pytest.raises(SettingsError, match=re.escape(words)):
        Settings().change(**change)
    assert Settings(depth=16, workers=64).depth == 16  # the largest


@pytest.mark.parametrize("gpu", ["a100", "t4"])
def test_a_gather_of_resident_data_reads_and_writes_its_bytes_and_reads_its_indices(gpu):
    timeline = simulate(Settings(gpu=gpu, kernels=1, batch_size=512, sample_bytes=3136, steps=3, resident=True))
    gathers = [row.duration for row in timeline.rows(Kind.COMPUTE) if row.name == "index_select"]
    assert gathers == [memory_time(Gpu.preset(gpu), "gather", 2 * 512 * 3136 + 8 * 512)] * 3
