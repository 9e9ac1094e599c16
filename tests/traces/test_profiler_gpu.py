"""Workers beside a GPU's work: simulated (a real CPU profile, to whose export rows of CUDA are added), and real."""

import gzip
import json

import datasets
import numpy as np
import pytest
import torch
from factory import shared
from torch.utils.data import DataLoader
from trace_files import call, copy, notes, steps_of, work

import loaderviz as lv
from loaderviz import experiment, mnist
from loaderviz.loaders import BlockingLoader, PinnedLoader, PrefetchLoader
from loaderviz.recording import Recording
from loaderviz.timeline import Cause, Kind
from loaderviz.traces import live, merge, read
from loaderviz.traces.live import NotLookedForError, RealRun
from loaderviz.traces.merge import ANCHORS

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a real CUDA GPU")


def train():
    weight = torch.ones(3, requires_grad=True)
    for batch in DataLoader(datasets.Squares(), batch_size=4, num_workers=1):
        (batch[0] * weight).sum().backward()


def add_to_export(monkeypatch, make_rows, device="NVIDIA H100"):
    """Let the profiler's export have the rows that `make_rows(events)` gives, as if a GPU had done them."""
    new = live.new_profile

    def new_profile(cuda):
        assert cuda
        profile = new(cuda=False)
        export = profile.export_chrome_trace

        def export_chrome_trace(path):
            export(path)
            with open(path, encoding="utf-8") as file:
                data = json.load(file)
            data["traceEvents"] += make_rows([event for event in data["traceEvents"] if event["ph"] == "X"])
            data["deviceProperties"] = [{"id": 0, "name": device}]
            with open(path, "w", encoding="utf-8") as file:
                json.dump(data, file)

        profile.export_chrome_trace = export_chrome_trace
        return profile

    monkeypatch.setattr(live, "new_profile", new_profile)


def recorded(block):
    with Recording(RealRun(cuda=True)) as recording:
        block()
    return recording.timeline.self_check()


def cuda_steps(events):
    """A pinned copy and a kernel after each hand-out, launched by the main thread; and the profiler's own last call."""
    marks = [event for event in events if event["name"].startswith("loaderviz|") and "batch" in event["name"]]
    marks = sorted((event for event in marks if "samples" in event["name"]), key=lambda event: event["ts"])
    rows = []
    for number, mark in enumerate(marks):
        time, pair = mark["ts"] + mark["dur"], 2 * number + 1
        rows += [
            call("cudaMemcpyAsync", time + 1, 2, pair, tid=mark["tid"]),
            copy(time + 4, 20, pair, nbytes=48),
            call("cudaLaunchKernel", time + 4, 2, pair + 1, tid=mark["tid"]),
            work("gemm", time + 30, 15, pair + 1),
        ]
    last = max(event["ts"] + event["dur"] for event in events if event["name"] == merge.own_name(merge.CLOCK))
    own = [call("cudaDeviceSynchronize", last + 5, 50, 10_001, tid=marks[0]["tid"])]
    return [row | {"pid": marks[0]["pid"]} if row["cat"] == "cuda_runtime" else row for row in [*rows, *own]]


def test_workers_beside_the_work_of_a_gpu(monkeypatch):
    add_to_export(monkeypatch, cuda_steps)
    with Recording(RealRun(cuda=True, wait=1, steps=3)) as recording:
        train()
    timeline = recording.timeline.self_check()
    assert [(lane.name, lane.role) for lane in timeline.lanes] == [
        ("main", "main"),
        ("worker 0", "worker"),
        ("stream 7 (default)", "stream"),
    ]
    assert timeline.context.device == "NVIDIA H100"
    copies, kernels = list(timeline.rows(Kind.COPY_H2D)), list(timeline.rows(Kind.COMPUTE))
    assert [row.batch for row in copies] == [row.batch for row in kernels] == [1, 2, 3]
    assert {row.name for row in copies} == {"Memcpy HtoD (Pinned -> Device)"}
    assert "cudaDeviceSynchronize" not in {row.name for row in timeline.rows()}  # the profiler's own
    assert len(timeline.arrows["tail"]) == 6
    handed_out = {row.batch: row.start for row in timeline.rows(Kind.RANGE) if row.name.startswith("batch ")}
    fetched = {row.batch: row.end for row in timeline.rows(Kind.FETCH)}
    assert all(handed_out[row.batch] < row.start for row in copies)
    assert all(fetched[row.batch] < row.start for row in copies if row.batch in fetched)
    whole = timeline.begin, timeline.begin + timeline.duration  # the machine may rest between two steps
    assert lv.summarize(timeline, window=whole).copy == 3 * 20_000
    assert "GPU computes" in timeline.figure(color="batch").layout.title.text


def by_slices(device):
    x, net = torch.ones(12, 3).to(device), torch.nn.Linear(3, 2).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for at in range(0, 12, 4):
        net(x[at : at + 4]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_work_belongs_to_the_optimizer_step_that_launched_it_from_whatever_thread(monkeypatch):
    """The data are copied first; backward is launched by autograd's thread; the GPU is late with everything."""

    def rows(events):
        begin = max(event["ts"] for event in events if event["name"] == merge.own_name(merge.CLOCK))
        made = next(event for event in events if event["name"] == "aten::ones")
        found = [("memcpy", 0, made)]
        found += [
            (name, tid, event)
            for name, operator, tid in (("fw", "aten::addmm", 0), ("bw", "aten::mm", 999))
            for event in events
            if event["name"] == operator
        ]
        new = []
        for pair, (name, tid, event) in enumerate(found, 1):
            time, place = event["ts"] + 0.1, {"pid": event["pid"]}
            late = begin + 1000 + 20 * pair
            if name == "memcpy":
                new += [call("cudaMemcpyAsync", time, 0.1, pair, tid=event["tid"]) | place, copy(late, 5, pair)]
            else:
                launch = call("cudaLaunchKernel", time, 0.1, pair, tid=tid or event["tid"]) | place
                new += [launch, work(name, late, 5, pair)]
        return new

    add_to_export(monkeypatch, rows)
    timeline = recorded(lambda: by_slices("cpu"))
    assert steps_of(timeline) == ["batch 0", "batch 1", "batch 2"]
    kernels = [(row.name, row.batch) for row in timeline.rows(Kind.COMPUTE)]
    assert sorted(kernels) == [(name, batch) for name in ("bw", "fw") for batch in range(3)]
    assert [row.batch for row in timeline.rows(Kind.COPY_H2D)] == [-1]


@pytest.mark.gpu
@needs_gpu
def test_steps_of_a_loop_over_slices_on_a_real_gpu():
    with lv.record(on="cuda") as recording:
        by_slices("cuda")
    timeline = recording.timeline.self_check()
    assert steps_of(timeline) == ["batch 0", "batch 1", "batch 2"]
    assert {row.batch for row in timeline.rows(Kind.COPY_H2D)} == {-1}
    forward, each = [row.batch for row in timeline.rows(Kind.OPERATOR) if row.name == "aten::addmm"], [0, 1, 2]
    assert forward == each
    backward = {row.batch for row in timeline.rows(Kind.OPERATOR) if row.lane.role == "thread" and "mm" in row.name}
    assert backward == set(each)


def test_ranges_that_the_profiler_repeats_beside_the_gpus_work_are_no_second_fetch(monkeypatch):
    def rows(events):
        ours = [event for event in events if event["name"].startswith("loaderviz|") and "fetch" in event["name"]]
        beside = [event | {"cat": "gpu_user_annotation", "pid": 0, "tid": 7, "args": {}} for event in ours]
        return [*cuda_steps(events), *beside]

    add_to_export(monkeypatch, rows)
    timeline = recorded(lambda: list(DataLoader(datasets.Squares(), batch_size=8)))
    assert [(row.lane.name, row.batch) for row in timeline.rows(Kind.FETCH)] == [("main", 0), ("main", 1), ("main", 2)]
    assert [lane.name for lane in timeline.lanes] == ["main", "stream 7 (default)"]


def test_without_the_ranges_of_the_clock_workers_are_left_out_and_all_else_is_kept(monkeypatch):
    read_kineto = live.read_kineto

    def lose_one(document):
        raw = read_kineto(document)
        anchor = raw.names.index(merge.own_name(merge.CLOCK))
        lost = (raw.columns["name"] == anchor).argmax()
        raw.columns = {name: np.delete(values, lost) for name, values in raw.columns.items()}
        return raw

    monkeypatch.setattr(live, "read_kineto", lose_one)
    with lv.record(on="cpu") as recording:
        train()
    timeline = recording.timeline.self_check()
    assert steps_of(timeline) == [f"batch {batch}: 4 samples" for batch in range(6)]
    assert [lane.name for lane in timeline.lanes] == ["main"]
    assert "workers and pin thread are left out" in notes(timeline)


def test_real_cuda_rows_keep_their_figures(monkeypatch):
    """The public trace of research 4: 893 µs of copies, 871 of them hidden, whatever is merged around them."""
    path = shared("two_ranks/rank-0.json.gz")
    alone = read(path)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]

    def rows(own):
        spans = [event for event in events if event.get("ph") == "X" and "dur" in event]
        first = min(event["ts"] for event in spans)
        begin = sorted(event["ts"] for event in own if event["name"] == merge.own_name(merge.CLOCK))[ANCHORS]
        return [event | {"ts": event["ts"] - first + begin} for event in spans]

    add_to_export(monkeypatch, rows)
    timeline = recorded(train)
    every = (timeline.begin, timeline.begin + timeline.duration)  # for the loop's steps it is no work
    before, after = lv.summarize(alone), lv.summarize(timeline, every)
    assert (after.copy, after.hidden_copy) == (before.copy, before.hidden_copy) == (893_000, 871_000)
    assert (after.kernels, after.compute) == (before.kernels, before.compute)
    assert len([row for row in timeline.rows(Kind.FETCH) if row.lane.name == "worker 0"]) == 6
    assert steps_of(timeline) == [f"batch {batch}: 4 samples" for batch in range(6)]


def test_a_gpu_that_did_nothing_is_told_of(monkeypatch):
    add_to_export(monkeypatch, lambda events: [])
    timeline = recorded(train)
    assert "the profiler saw no work on the GPU" in notes(timeline)
    told = {finding.kind: finding.change for finding in lv.advise(timeline)}
    assert "did the block use it" in told["no-gpu-work"]


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("NVIDIA H100 80GB HBM3", 0),
        ("NVIDIA H100 PCIe", 0),
        ("NVIDIA H200", 0),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 1),
        ("NVIDIA GeForce RTX 4090", 1),
        ("NVIDIA A100-SXM4-40GB", 1),
        ("AMD Instinct MI300X", 1),
    ],
)
def test_a_card_that_was_never_tried_is_told_of_once_a_process(monkeypatch, device, said):
    monkeypatch.setattr(live, "_told", set())
    add_to_export(monkeypatch, cuda_steps, device)
    found = [notes(recorded(train)).count(f"and an NVIDIA H200 with torch 2.11, and this card is {device}")]
    found += [notes(recorded(train)).count("tried on an NVIDIA H100")]
    assert found == [said, 0]


# On a real GPU


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", experiment.LOADERS)
def test_each_loader_tells_the_same_story_emulated_and_real(name):
    """Lane by lane the same names for the same batches: fetch, pin, hand-out, copies. Kernels have other names."""
    setting = experiment.Setting(batch_size=256, steps=4, warmup=3, workers=2)
    images, labels = mnist.tensors(train=True)
    stories = []
    for on in ("a100", "cuda"):
        with lv.record(on=on) as recording:
            experiment.train(experiment.make_loader(name, setting, images, labels), setting)
        told = {}
        for row in recording.timeline.self_check().rows(Kind.RANGE, Kind.FETCH, Kind.PIN, Kind.COPY_H2D):
            step = row.kind is not Kind.RANGE or row.name.startswith("batch ")
            if step and 0 <= row.batch < setting.batches:  # workers and prefetcher are further ahead, as time allows
                told.setdefault((row.lane.role, row.kind, row.batch), []).append((row.name, row.nbytes))
        stories.append(told)
    assert stories[0] == stories[1]


@pytest.mark.gpu
@needs_gpu
def test_auto_records_the_gpu_that_is_there():
    with lv.record(on="auto", steps=3) as recording:
        for images, labels in PrefetchLoader(DataLoader(datasets.Squares(), 4, num_workers=1, pin_memory=True), "cuda"):
            (images.sum() + labels.sum()).item()
    timeline = recording.timeline.self_check()
    assert timeline.context.origin == "recorded"
    assert timeline.context.device == torch.cuda.get_device_name()
    assert {"worker", "pin", "main", "stream"} <= {lane.role for lane in timeline.lanes}
    assert [row.pinned for row in timeline.rows(Kind.COPY_H2D)] == [True] * len(list(timeline.rows(Kind.COPY_H2D)))
    assert any(row.cause is Cause.SYNCHRONIZE for row in timeline.rows(Kind.WAIT))
    with pytest.raises(NotLookedForError):
        recording.hazards


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("loader", [BlockingLoader, PinnedLoader, PrefetchLoader])
def test_numbers_on_a_real_gpu_are_those_of_an_unrecorded_run(loader):
    def total():
        source = DataLoader(datasets.Squares(), 4, num_workers=1, pin_memory=loader is PrefetchLoader)
        torch.manual_seed(1)
        return [batch[0].sum().item() for batch in loader(source, "cuda")]

    plain = total()
    with lv.record(on="cuda"):
        assert total() == plain
