"""Lesson 6: what it measures of a pipeline agrees with the closed form, and its data sets do what they say."""

import pickle
import random
import time
from dataclasses import replace

import plotly.graph_objects as go
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import loaderviz as lv
from loaderviz.emulator.hardware import Gpu, Host
from loaderviz.loaders import PrefetchLoader
from loaderviz.timeline import Kind, TimelineError
from loaderviz.workshop import lesson06

SIZE, BATCHES = 64, 32
# Bytes move slowly, so that a batch of 64 small samples has the costs of a large one.
GPU = replace(
    Gpu.preset("laptop"), h2d=10**8, d2h=10**8, fp32=14 * 10**9, tf32=14 * 10**9, sms=1, malloc=0, malloc_small=0
)
HOST = replace(
    Host.preset("laptop"),
    memory_bandwidth=10**8,
    fetch_per_sample=40_000,
    **lesson06.FREE | dict.fromkeys(("page_lock_base", "page_lock_per_gib", "worker_start"), 0),
)


def feed(workers, depth=2, samples=SIZE * BATCHES, **options):
    data = TensorDataset(torch.ones(samples, 64))
    with lv.record(on=GPU, host=HOST) as recording:
        layer = torch.ones(64, 512).to("cuda")
        for (x,) in PrefetchLoader(DataLoader(data, SIZE, num_workers=workers, **options), "cuda", depth=depth):
            x @ layer
    return recording.timeline


@pytest.fixture(scope="module")
def runs():
    return {workers: feed(workers, pin_memory=True) for workers in (1, 2, 4, 8)}  # 16 steps: whole rounds of each


def test_a_step_takes_as_long_as_the_slowest_stage(runs):
    costs = lesson06.stations(runs[1])
    assert costs["fetch"] == HOST.fetch_base + SIZE * 40_000 + SIZE * 256 * 250 // 1000
    assert costs["pin"] == 2 * SIZE * 256 * 10 and costs["copy"] == GPU.copy_latency + SIZE * 256 * 10
    slowest = set()
    for workers, timeline in runs.items():
        step = lesson06.steady(timeline).duration / len(lesson06.STEADY)
        assert step == pytest.approx(lesson06.limit(costs, workers), rel=0.01), workers
        slowest.add(lesson06.limit(costs, workers) in (costs["compute"], costs["pin"]))
    assert slowest == {False, True}  # some are limited by the workers, some are not
    round_up = {"fetch": 1000, "pin": 300, "copy": 100, "compute": 200}
    assert [lesson06.limit(round_up, workers) for workers in (1, 2, 3, 4, 100)] == [1000, 500, 334, 300, 300]
    alone = feed(0, samples=6 * SIZE)  # the main thread fetches
    assert {span.lane.role for span in alone.rows(Kind.FETCH)} == {"main"} and lesson06.stations(alone)["pin"] == 0


def test_a_run_that_is_too_short_is_said_so():
    with pytest.raises(TimelineError, match=r"steady\(range\(12, 28\)\): no kernel works on batch 11; train on more"):
        lesson06.steady(feed(1, samples=6 * SIZE))


def test_the_chart_has_the_points_on_the_line(runs):
    costs = lesson06.stations(runs[1])
    steps = {workers: lesson06.steady(timeline).duration / 16 for workers, timeline in runs.items()}
    figure = lesson06.chart({0: 9_999_999} | steps, costs)
    assert isinstance(figure, go.Figure)
    lines = {trace.name: trace for trace in figure.data}
    assert set(lines) == {"the slowest station", "fetch / workers", "compute", "pin", "copy", "measured step"}
    assert list(lines["measured step"].x) == [1, 2, 4, 8]  # not the run without workers: it is no pipeline
    line = dict(zip(lines["the slowest station"].x, lines["the slowest station"].y, strict=True))
    for workers, y in zip(lines["measured step"].x, lines["measured step"].y, strict=True):
        assert y == pytest.approx(line[workers], rel=0.01)


def as_it_is(batch):
    return batch


def test_a_late_batch_stops_the_pipeline_and_a_larger_buffer_hides_it():
    """Head-of-line blocking: the other worker's batches are ready, and wait for the late one."""
    images, labels = torch.ones(SIZE * BATCHES, 64), torch.zeros(SIZE * BATCHES, dtype=torch.int64)
    late = lesson06.SometimesSlow(images, labels, every=9 * SIZE, seconds=0.08)
    assert late[0][0].shape == (64,) and len(late) == SIZE * BATCHES
    for factor in (2, 16):
        loader = DataLoader(late, SIZE, num_workers=2, prefetch_factor=factor, collate_fn=as_it_is)
        with lv.record(on=GPU, host=HOST) as recording:
            for x, _ in loader:
                torch.cuda._sleep(20_000_000)
                x.to("cuda").sum().item()
        waits = [span for span in recording.timeline.rows(Kind.WAIT) if span.cause.name == "DATA"]
        blocked = [span for span in waits if span.batch in (9, 18, 27) and span.end - span.start > 10_000_000]
        assert len(blocked) == (3 if factor == 2 else 0)
        fetches = {span.batch: span for span in recording.timeline.rows(Kind.FETCH)}
        assert factor == 16 or all(fetches[span.batch + 1].end < span.end for span in blocked)  # ready, and behind it


@pytest.mark.parametrize(("rows", "took"), [(3, 48_000), ([1, 2, 3], 64_000), (range(10), 120_000)])
def test_a_read_costs_what_the_task_says(rows, took):
    images, labels = torch.arange(10 * 784).view(10, 784).to(torch.uint8), torch.arange(10)
    data, index = lesson06.Files(images, labels), torch.tensor(rows)
    assert len(data) == 10 and torch.equal(data[rows][0], images[index])
    assert torch.equal(torch.as_tensor(data[rows][1]), labels[index])
    with lv.record(on=GPU):
        data[rows], time.perf_counter_ns()
        begin = time.perf_counter_ns()
        data[rows]
        assert took <= time.perf_counter_ns() - begin < took + 100_000  # and the operators of the gather


def test_data_sets_can_go_to_a_spawned_worker():
    files = lesson06.Files(torch.zeros(2, 784, dtype=torch.uint8), torch.arange(2))
    slow = lesson06.SometimesSlow(torch.zeros(2, 4), torch.arange(2), every=2, seconds=0.1)
    assert [len(pickle.loads(pickle.dumps(data))) for data in (files, slow)] == [2, 2]


def test_a_part_in_which_the_host_had_run_ahead_has_the_batches_of_the_gpu():
    """The loop hands out one batch there, and waits; the GPU works on twenty."""
    step, timeline = lesson06.case("compute", 3, random.Random(1)).run(5)
    summary = lv.summarize(timeline)
    assert (summary.batches, summary.step) == (lesson06.LAST, step) == (20, 948_596)
