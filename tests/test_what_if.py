"""what_if(): the predicted step is within 10 % of the really emulated one, for each change of the loader."""

from __future__ import annotations

import functools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import factory
import numpy as np
import pytest

import loaderviz as lv
from loaderviz import experiment
from loaderviz.activity import NotATimelineError
from loaderviz.builder import TimelineBuilder
from loaderviz.emulator import Gpu, Host, Runtime
from loaderviz.emulator.blocks import OutOfMemory
from loaderviz.emulator.hardware import GPUS, UnknownHardwareError
from loaderviz.explore.pipeline import simulate
from loaderviz.explore.settings import PRESETS, Settings, rates_of
from loaderviz.prediction import WhatIfError
from loaderviz.prediction.machine import known_gpu, machine_of
from loaderviz.prediction.observed import Observed
from loaderviz.timeline import Context, Kind

TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
TOLERANCE = 0.1
CHANGES = {
    "blocking": {"pinned": False, "prefetch": 0}, "pinned": {"pinned": True, "prefetch": 0},
    "prefetch": {"pinned": True, "prefetch": 2}, "resident": {"resident": True},
}  # fmt: skip


@functools.cache
def run(chosen):
    return simulate(chosen)


def step(timeline):
    return lv.summarize(timeline).step


def table(rows):
    return "\n".join(f"{name:60} predicted {got / 1e3:9.1f} µs, emulated {real / 1e3:9.1f} µs, {got / real - 1:+.1%}"
                     for name, got, real in rows)  # fmt: skip


# How close it comes


@pytest.mark.parametrize(("gpu", "batch_size"), [("a100", 64), ("a100", 8192), ("t4", 1024), ("h200", 8192)])
def test_the_ladder_of_the_lessons(gpu, batch_size):
    """From each rung each other one, and from each number of workers another one."""
    rows = []
    for compute, workers in ((100_000, 4), (880_000, 4), (880_000, 0), (3_000_000, 2)):
        base = Settings(gpu=gpu, batch_size=batch_size, compute=compute * batch_size // 8192 + 34_000, kernels=17,
                        workers=workers, steps=12, **rates_of(gpu))  # fmt: skip
        rungs = {name: base.change(**PRESETS[name]) for name in CHANGES}
        for here in ("blocking", "pinned", "prefetch"):
            for there, change in CHANGES.items():
                predicted = lv.what_if(run(rungs[here]), **change)
                rows.append(
                    (f"{workers} workers, {compute}: {here} -> {there}", step(predicted), step(run(rungs[there])))
                )
            other = 4 - workers
            predicted = lv.what_if(run(rungs[here]), workers=other)
            rows.append((f"{here}, {workers} -> {other} workers", step(predicted),
                         step(run(rungs[here].change(workers=other)))))  # fmt: skip
    wrong = [row for row in rows if abs(row[1] / row[2] - 1) > TOLERANCE]
    assert not wrong, table(wrong)
    assert np.median([abs(got / real - 1) for _, got, real in rows]) < 0.01, table(rows)


def test_pytorch_code_on_the_emulated_gpu():
    setting = experiment.Setting(batch_size=1024, steps=6, warmup=6, workers=2)
    real = {name: run.timeline for name, run in experiment.four_loaders(setting, on="t4").items()}
    rows = [(f"{here} -> {there}", step(lv.what_if(real[here], **change)), step(real[there]))
            for here in ("blocking", "pinned", "prefetch") for there, change in CHANGES.items()]  # fmt: skip
    assert all(abs(got / true - 1) < 0.03 for _, got, true in rows), table(rows)
    elsewhere = {name: run.timeline for name, run in experiment.four_loaders(setting, on="laptop").items()}
    rows = [(f"{name}: t4 -> laptop", step(lv.what_if(real[name], gpu="laptop")), step(elsewhere[name]))
            for name in ("blocking", "pinned", "prefetch")]  # fmt: skip
    assert all(abs(got / true - 1) < TOLERANCE for _, got, true in rows), table(rows)


def test_how_much_of_the_copy_is_hidden():
    base = Settings(kernels=17, steps=12)
    for here in ("blocking", "pinned"):
        for there in ("blocking", "pinned", "prefetch"):
            predicted = lv.summarize(lv.what_if(run(base.change(**PRESETS[here])), **CHANGES[there]))
            real = lv.summarize(run(base.change(**PRESETS[there])))
            assert predicted.overlap == pytest.approx(real.overlap, abs=0.05)
            assert predicted.samples == real.samples


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_the_depth_of_a_prefetch_is_seen(depth):
    chosen = Settings(kernels=17, steps=12, **PRESETS["prefetch"] | {"depth": depth})
    loop = Observed.of(run(chosen))
    assert (loop.depth, loop.side_stream, loop.pinned, loop.blocking, loop.workers) == (depth, True, True, False, 4)
    assert step(lv.what_if(run(chosen))) == pytest.approx(step(run(chosen)), rel=0.01)


def with_item(steps, gpu="a100"):
    """A loop that reads its loss in each step, as most do."""
    runtime = Runtime(Gpu.preset(gpu), Host.preset("workstation"))
    for batch in range(steps):
        start, runtime.batch = runtime.now, batch
        runtime.memcpy(6_000_000, "h2d", pinned=False, blocking=True)
        for _ in range(5):
            runtime.launch(60_000, name="gemm")
        runtime.memcpy(4, "d2h", pinned=True, blocking=True)
        runtime.range(start, runtime.now, f"batch {batch}: 64 samples", batch)
    return runtime.timeline()


def test_what_the_program_waits_for_by_itself_stays():
    timeline = with_item(10)
    again = lv.what_if(timeline)
    assert step(again) == pytest.approx(step(timeline), rel=0.02)
    for predicted in (again, lv.what_if(timeline, prefetch=2)):
        assert predicted.where(Kind.COPY_D2H).sum() == timeline.where(Kind.COPY_D2H).sum()
        names = [span.name for span in predicted.rows(Kind.API)]
        assert names.count("cudaStreamSynchronize") >= 10
    pins = [span for span in predicted.rows(Kind.PIN) if span.lane.role == "main"]
    assert len(pins) >= 9  # without workers the main thread pins, which costs most of what the prefetch gains
    assert 0.8 * step(timeline) < step(predicted) < step(timeline)


def test_a_faster_gpu_is_faster_where_the_gpu_is_the_limit():
    for name in ("pinned", "prefetch"):
        timeline = run(Settings(gpu="t4", kernels=17, compute=3_000_000, steps=8, **PRESETS[name], **rates_of("t4")))
        assert step(lv.what_if(timeline, gpu="h200")) < 0.6 * step(timeline)
        assert step(lv.what_if(timeline, gpu="t4")) == pytest.approx(step(lv.what_if(timeline)), rel=0.001)
    small = run(Settings(batch_size=64, kernels=17, compute=34_000, steps=8, **PRESETS["pinned"]))
    assert step(lv.what_if(small, gpu="h200")) > 0.9 * step(small)  # the host is the limit


@pytest.mark.skipif(not TRACES.is_dir(), reason="needs the shared traces")
def test_a_real_trace():
    timeline = lv.read(TRACES / "resnet50_workers0_2021.json.gz")
    assert step(lv.what_if(timeline)) == pytest.approx(step(timeline), rel=0.03)
    with_workers = lv.summarize(lv.what_if(timeline, workers=4))
    assert with_workers.step < 0.75 * step(timeline)
    promised = next(each.expected_gain for each in lv.advise(timeline) if each.rule == "fetch-in-loop")
    assert step(timeline) - with_workers.step <= promised.per_step
    with pytest.raises(WhatIfError, match="how fast Tesla V100-DGXS-32GB copies from pinned memory"):
        lv.what_if(timeline, prefetch=2)
    v100 = replace(Gpu.preset("a100"), name=timeline.context.device, h2d=12_000_000_000)
    assert step(lv.what_if(timeline, prefetch=2, workers=4, gpu=v100)) < with_workers.step


# What it returns


def test_it_is_a_well_made_timeline_that_says_what_it_is():
    timeline = run(Settings(kernels=17, steps=6))
    predicted = lv.what_if(timeline, pinned=True, prefetch=2, workers=3).self_check()
    assert predicted == lv.what_if(timeline, pinned=True, prefetch=2, workers=3)
    assert predicted.context.device == "NVIDIA A100-PCIE-40GB, predicted"
    notes = " ".join(predicted.context.notes)
    assert "predicted from 6 steps of a timeline of NVIDIA A100-PCIE-40GB (emulated)" in notes
    assert "3 workers, pinned, non_blocking, 2 ahead on a side stream" in notes
    assert lv.summarize(predicted).batches == 6
    assert {lane.name for lane in predicted.lanes if lane.role == "worker"} == {"worker 0", "worker 1", "worker 2"}
    assert {span.source for span in predicted.rows(Kind.COMPUTE)} == {
        span.source for span in timeline.rows(Kind.COMPUTE)
    }
    assert "what if" in lv.compare({"now": timeline, "what if": predicted}).figure().to_json()
    resident = lv.what_if(timeline, resident=True)
    assert not resident.where(Kind.COPY_H2D).any()
    assert "not known" in resident.context.notes[-1]


def test_the_timeline_itself_is_not_changed():
    timeline = run(Settings(kernels=17, steps=6))
    before = timeline.to_dict()
    lv.what_if(timeline, prefetch=2)
    assert timeline.to_dict() == before


def test_it_needs_no_torch(tmp_path):
    saved = run(Settings(kernels=17, steps=6)).save(tmp_path / "run.json")
    code = (
        "import sys; sys.modules['torch'] = sys.modules['ipywidgets'] = None\n"
        "import loaderviz as lv\n"
        "print(lv.summarize(lv.what_if(lv.Timeline.load(sys.argv[1]), prefetch=2)).batches)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(saved)], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("6", "")


# What cannot be predicted


LOOP = run(Settings(kernels=17, steps=6))
FOREIGN = replace(LOOP, context=replace(LOOP.context, device="Voodoo 2"))
NO_ARROWS = replace(LOOP, arrows={name: values[:0] for name, values in LOOP.arrows.items()})


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"pinned": 1}, "pinned=1.: give True, False, or None"),
        ({"resident": "yes"}, "resident='yes'.: give True, False, or None"),
        ({"prefetch": -1}, "prefetch=-1.: give a whole number from 0 to 16"),
        ({"prefetch": 1.5}, "prefetch=1.5"),
        ({"workers": True}, "workers=True"),
        ({"workers": 1_000}, "workers=1000.: give a whole number from 0 to 64"),
        ({"resident": True, "prefetch": 2}, "has nothing to load: leave out pinned, prefetch and workers"),
    ],
)
def test_a_change_that_means_nothing_is_refused(change, complaint):
    with pytest.raises(WhatIfError, match=complaint):
        lv.what_if(LOOP, **change)


def test_an_unknown_gpu_is_refused():
    with pytest.raises(UnknownHardwareError, match="choose one of"):
        lv.what_if(LOOP, gpu="voodoo2")
    for wrong in ("trace.json", None, 3):
        with pytest.raises(NotATimelineError, match=r"what_if\(\) needs a Timeline"):
            lv.what_if(wrong)


def test_batches_that_do_not_fit_are_refused():
    large = run(Settings(kernels=17, steps=3, sample_bytes=300_000, workers=1))
    with pytest.raises(OutOfMemory):
        lv.what_if(large, prefetch=16, gpu="laptop")


def without_batches(timeline):
    keep = [span for span in timeline.rows() if not span.name.startswith("batch")]
    builder = TimelineBuilder(timeline.context)
    for span in keep:
        lane = builder.lane(span.lane.name, span.lane.group, span.lane.role, span.lane.number, span.lane.device)
        builder.span(span.start, span.end, lane, span.kind, span.name, nbytes=span.nbytes, pinned=span.pinned)
    return builder.build()


def collective():
    builder = TimelineBuilder(Context("NVIDIA A100-PCIE-40GB"))
    main, stream = builder.lane("main", "host", "main"), builder.lane("stream 7", "device", number=7)
    builder.span(0, 100, main, Kind.RANGE, "batch 0", batch=0)
    builder.span(0, 10, stream, Kind.COPY_H2D, "copy", batch=0, nbytes=100, pinned=True)
    builder.span(10, 20, stream, Kind.COMPUTE, "gemm", batch=0)
    builder.span(20, 30, stream, Kind.COMMUNICATION, "nccl", batch=0)
    return builder.build()


@pytest.mark.parametrize(
    ("timeline", "change", "complaint"),
    [
        (factory.empty(), {}, "needs kernels: the timeline has no work of a GPU"),
        (without_batches(LOOP), {}, "needs steps: mark them with torch.profiler.record_function"),
        (run(Settings(kernels=17, steps=3, resident=True)), {}, "needs copies to the GPU"),
        (collective(), {}, "this timeline has collectives, which wait for other ranks"),
        (NO_ARROWS, {}, "needs the host's calls"),
        (with_item(4), {"workers": 2}, "does not show how long a batch is fetched"),
        (FOREIGN, {"gpu": "t4"}, "scales the kernels, but 'Voodoo 2', where they ran, is none of a100"),
        (FOREIGN, {"pinned": True}, "how fast Voodoo 2 copies from pinned memory"),
    ],
    ids=["empty", "no steps", "resident", "collectives", "no launches", "no fetches", "unknown GPU", "unknown rate"],
)  # fmt: skip
def test_a_timeline_that_shows_no_loop_is_refused(timeline, change, complaint):
    with pytest.raises(WhatIfError, match=complaint):
        lv.what_if(timeline, **change)


def test_kernels_in_several_streams_and_graphs_are_refused():
    runtime = Runtime(Gpu.preset("a100"))
    side = runtime.stream()
    for batch in range(4):
        start, runtime.batch = runtime.now, batch
        runtime.memcpy(1_000_000, "h2d")
        runtime.launch(50_000)
        runtime.launch(50_000, side)
        runtime.range(start, runtime.now, f"batch {batch}", batch)
    with pytest.raises(
        WhatIfError, match=r"kernels in one stream, but here they run in several: stream 7 \(default\), s"
    ):
        lv.what_if(runtime.timeline())
    graph = LOOP.arrows | {"tail": LOOP.arrows["tail"].copy()}
    kernels = np.flatnonzero(np.isin(LOOP.arrows["head"], np.flatnonzero(LOOP.where(Kind.COMPUTE))))
    graph["tail"][kernels[1]] = graph["tail"][kernels[0]]
    with pytest.raises(WhatIfError, match="launches several kernels at once"):
        lv.what_if(replace(LOOP, arrows=graph))


# The machine behind a timeline


@pytest.mark.parametrize("name", sorted(GPUS))
def test_the_machine_is_known_again(name):
    chosen = Settings(gpu=name, kernels=17, steps=6, **PRESETS["pinned"], **rates_of(name))
    gpu, host = machine_of(Observed.of(run(chosen)))
    assert (gpu.name, gpu.fp32) == (GPUS[name].name, GPUS[name].fp32)
    assert gpu.h2d == pytest.approx(GPUS[name].h2d, rel=1e-3)
    assert gpu.sources["h2d"] == "measured in the timeline"
    workstation = Host.preset("workstation")
    for cost in ("launch", "memcpy_call", "hand_out", "dispatch", "synchronize"):
        assert getattr(host, cost) == getattr(workstation, cost)
    assert host.memory_bandwidth == pytest.approx(workstation.memory_bandwidth, rel=0.02)


def test_names_of_devices():
    assert known_gpu("NVIDIA A100-PG509-200") == "a100"
    assert known_gpu("NVIDIA H200") == "h200"
    assert known_gpu("NVIDIA H100 80GB HBM3") == "h100"
    assert known_gpu("Tesla T4") == "t4"
    assert known_gpu("Tesla V100-DGXS-32GB") == ""
    assert known_gpu("GT430") == ""
