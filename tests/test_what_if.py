"""what_if(): the predicted step is within 10 % of the really emulated one, for each change of the loader."""

import functools
import json
import queue
import threading
import time
from dataclasses import replace

import factory
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import loaderviz as lv
from loaderviz import experiment
from loaderviz.analysis.what_if import LoopModel, WhatIfError, gpu_of, host_of, known_gpu, replayed
from loaderviz.batches import batch_name
from loaderviz.emulator import Gpu, Host, Runtime
from loaderviz.emulator.hardware import GPUS, UnknownHardwareError
from loaderviz.emulator.memory import OutOfMemory
from loaderviz.emulator.replay import PRESETS, LoaderConfig
from loaderviz.metrics import NotATimelineError
from loaderviz.timeline import Kind
from loaderviz.widgets.explorer import Settings, rates_of, simulate

TOLERANCE = 0.1
CHANGES = {
    "blocking": {"pinned": False, "prefetch": 0},
    "pinned": {"pinned": True, "prefetch": 0},
    "prefetch": {"pinned": True, "prefetch": 2},
    "resident": {"resident": True},
}


run = functools.cache(simulate)


def step(timeline):
    return lv.summarize(timeline).step


def again(timeline):
    """The loop replayed as it is: what_if() itself gives the timeline back where nothing is changed."""
    loop = LoopModel(timeline)
    assert lv.what_if(timeline).spans is timeline.spans
    return replayed(loop, loop.config, gpu_of(loop), gpu_of(loop))


def wrong(rows, tolerance=TOLERANCE):
    """Those of (name, predicted, emulated) that are too far apart."""
    return [f"{name}: {got:.0f} ns, not {real:.0f}" for name, got, real in rows if abs(got / real - 1) >= tolerance]


@pytest.mark.parametrize(
    ("first", "gpu", "batch_size"),
    [(0, "a100", 64), factory.slow(1, "a100", 8192), factory.slow(0, "t4", 1024), (1, "h200", 8192)],
)
def test_the_ladder_of_the_lessons(first, gpu, batch_size):
    """From each rung each other one, and from each number of workers another one; half of them on each GPU."""
    rows = []
    for number, (compute, workers) in enumerate(((100_000, 4), (880_000, 4), (880_000, 0), (3_000_000, 2)), first):
        base = factory.settings(gpu, batch_size, compute, workers=workers, steps=12)
        rungs = {name: base.change(**PRESETS[name]) for name in CHANGES}
        for at, here in enumerate(("blocking", "pinned", "prefetch"), number):
            for there, change in list(CHANGES.items())[at % 2 :: 2]:
                predicted, real = (
                    lv.summarize(each) for each in (lv.what_if(run(rungs[here]), **change), run(rungs[there]))
                )
                rows.append((f"{workers} workers, {compute}: {here} -> {there}", predicted.step, real.step))
                assert predicted.samples == real.samples
                if compute == 880_000 and there != "resident":
                    assert predicted.overlap == pytest.approx(real.overlap, abs=0.05), rows[-1]
            other = {"workers": 4 - workers}
            predicted, real = lv.what_if(run(rungs[here]), **other), run(rungs[here].change(**other))
            rows.append((f"{here}, {workers} -> {other} workers", step(predicted), step(real)))
    assert not wrong(rows)
    assert np.median([abs(got / real - 1) for _, got, real in rows]) < 0.01


@pytest.mark.slow
def test_pytorch_code_on_the_emulated_gpu(monkeypatch):
    monkeypatch.setattr(experiment, "HIDDEN", 384)  # wider ones come to other tiles on the laptop
    setting = experiment.Setting(batch_size=1024, steps=6, warmup=6, workers=2)
    real, elsewhere = (
        {name: run.timeline for name, run in experiment.four_loaders(setting, on=gpu).items()}
        for gpu in ("t4", "laptop")
    )
    begins = ("blocking", "pinned", "prefetch")
    rows = [
        (f"{here} -> {there}", step(lv.what_if(real[here], **change)), step(real[there]))
        for here in begins
        for there, change in CHANGES.items()
    ]
    assert not wrong(rows, 0.03)
    assert not wrong([(here, step(lv.what_if(real[here], gpu="laptop")), step(elsewhere[here])) for here in begins])


def graphed(graph, workers, reads, pins=False):
    """Train in small steps, each kernel launched by itself or all of a step as a CUDA graph; return the timeline."""
    inputs = TensorDataset(torch.zeros(20 * 64, 144), torch.zeros(20 * 64, dtype=torch.long))
    model = nn.Sequential(nn.Linear(144, 256), nn.ReLU(), nn.Linear(256, 10))

    def train(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    with lv.record(on="a100", host="laptop", hazards="off") as recording:
        optimizer = torch.optim.SGD(model.cuda().parameters(), 0.01, momentum=0.9)
        x, y = torch.zeros(64, 144, device="cuda"), torch.zeros(64, dtype=torch.long, device="cuda")
        if graph:
            train(x, y)  # allocates
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                loss = train(x, y)
        for batch in DataLoader(inputs, 64, num_workers=workers, pin_memory=not pins):
            batch = [entry.pin_memory() for entry in batch] if pins else batch
            if graph:
                x.copy_(batch[0], non_blocking=True), y.copy_(batch[1], non_blocking=True)
                captured.replay()
            else:
                loss = train(*(entry.to("cuda", non_blocking=True) for entry in batch))
            if reads:
                loss.item()
    return recording.timeline


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("reads", [False, True])
def test_a_step_that_is_launched_as_a_graph(workers, reads):
    launched, real = graphed(False, workers, reads), graphed(True, workers, reads)
    assert step(lv.what_if(launched, graphs=True)) == pytest.approx(step(real), rel=0.04)
    assert step(real) < step(launched)
    if workers:  # then taking two tensors from another process is most of a step
        return
    assert step(real) < 0.8 * step(launched)
    advice = lv.advise(launched)[0]
    assert (advice.kind, advice.asked) == ("host-bound", "what_if(graphs=True)")
    assert "graph.replay()" in advice.change


def test_what_workers_fetch_and_the_loop_pins_is_still_fetched_by_workers():
    predicted = lv.what_if(graphed(False, 2, True, pins=True), graphs=True)
    assert step(predicted) == pytest.approx(step(graphed(True, 2, True, pins=True)), rel=0.1)
    assert len([lane for lane in predicted.lanes if lane.role == "worker"]) == 2


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_the_depth_of_a_prefetch_is_seen(depth):
    chosen = Settings(kernels=17, steps=12, **PRESETS["prefetch"] | {"depth": depth})
    expected = LoaderConfig(workers=4, pin=True, non_blocking=True, side_stream=True, depth=depth)
    assert LoopModel(run(chosen)).config == expected
    assert step(again(run(chosen))) == pytest.approx(step(run(chosen)), rel=0.01)


def loop(steps, body, gpu="a100", samples=64, **costs):
    """A loop of `steps` steps on the runtime; `body` is what it does in each; `costs` are other ones of the host."""
    runtime = Runtime(Gpu.preset(gpu), replace(Host.preset("workstation"), **costs))
    for batch in range(steps):
        start, runtime.batch = runtime.now, batch
        body(runtime)
        runtime.range(start, runtime.now, batch_name(batch, samples), batch)
    return runtime.timeline()


def with_item(steps, samples=64):
    """A loop that reads its loss in each step, as most do."""

    def body(runtime):
        runtime.memcpy(6_000_000, "h2d", pinned=False, blocking=True)
        for _ in range(5):
            runtime.launch(60_000, name="gemm")
        runtime.memcpy(4, "d2h", pinned=True, blocking=True)

    return loop(steps, body, samples=samples)


def test_what_the_program_waits_for_by_itself_stays():
    timeline = with_item(10)
    assert step(again(timeline)) == pytest.approx(step(timeline), rel=0.02)
    for predicted in (again(timeline), lv.what_if(timeline, prefetch=2)):
        assert predicted.where(Kind.COPY_D2H).sum() == timeline.where(Kind.COPY_D2H).sum()
        names = [span.name for span in predicted.rows(Kind.API)]
        assert names.count("cudaStreamSynchronize") >= 10
    pins = [span for span in predicted.rows(Kind.PIN) if span.lane.role == "main"]
    assert len(pins) >= 9  # without workers the main thread pins, and it waits for the GPU first
    pin = Host.preset("workstation").pin_time(6_000_000)
    assert step(predicted) == pytest.approx(5 * 60_000 + pin, rel=0.1)


def test_a_faster_gpu_is_faster_where_the_gpu_is_the_limit():
    for name in ("pinned", "prefetch"):
        timeline = run(Settings(gpu="t4", kernels=17, compute=3_000_000, steps=8, **PRESETS[name], **rates_of("t4")))
        assert step(lv.what_if(timeline, gpu="h200")) < 0.6 * step(timeline)
        assert step(lv.what_if(timeline, gpu="t4")) == pytest.approx(step(lv.what_if(timeline)), rel=0.001)
    small = run(Settings(batch_size=64, kernels=17, compute=34_000, steps=8, **PRESETS["pinned"]))
    assert step(lv.what_if(small, gpu="h200")) > 0.9 * step(small)  # the host is the limit


def test_a_loop_whose_data_are_on_the_gpu_is_predicted_on_another():
    t4 = Settings(gpu="t4", kernels=17, compute=3_000_000, steps=8, resident=True, **rates_of("t4"))
    timeline = run(t4)
    assert step(again(timeline)) == pytest.approx(step(timeline), rel=0.01)
    assert lv.what_if(timeline, resident=True) == lv.what_if(timeline)
    assert not again(timeline).where(Kind.COPY_H2D).any()
    assert step(lv.what_if(timeline, gpu="h200")) < 0.6 * step(timeline)


@pytest.mark.parametrize(
    "name", ["resnet50_workers0_2021.json.gz", factory.slow("ab/resnet50_workers0_2021_b.json.gz")]
)
def test_a_real_trace_against_what_was_measured(name):
    """The same program with num_workers=4 took 141.1 and 142.8 ms a step: within 10 %, and inside the printed band."""
    timeline = factory.real(name)
    assert step(again(timeline)) == pytest.approx(step(timeline), rel=0.01)
    predicted = lv.what_if(timeline, workers=4)
    band = next(note for note in predicted.context.notes if note.startswith("a step takes"))
    least, most = (float(text.split(" ms")[0]) for text in band.split(" from ")[1].split(" to "))
    for measured in (141.1, 142.8):
        assert step(predicted) / 1e6 == pytest.approx(measured, rel=0.1)
        assert least < measured < most
    assert most / (step(predicted) / 1e6) <= 1.151
    promised = next(each.expected_gain for each in lv.advise(timeline) if each.kind == "fetch-in-loop")
    assert step(timeline) - step(predicted) <= promised.per_step


def test_a_real_trace_tells_its_gpu_only_if_it_is_known():
    timeline = factory.real("resnet50_workers0_2021.json.gz")
    timeline = replace(timeline, context=replace(timeline.context, device="Voodoo 2"))
    with pytest.raises(WhatIfError, match="how fast Voodoo 2 copies from pinned memory"):
        lv.what_if(timeline, prefetch=2)
    told = replace(Gpu.preset("a100"), name="Voodoo 2", h2d=12_000_000_000)
    assert step(lv.what_if(timeline, prefetch=2, gpu=told)) < step(timeline)


def test_a_gpu_by_the_name_that_people_give_it():
    timeline = run(Settings(kernels=17, steps=6))
    assert lv.what_if(timeline, gpu="NVIDIA H100 80GB HBM3").context.device.startswith(
        Gpu.preset(known_gpu("H100 SXM")).name
    )
    assert step(lv.what_if(timeline, gpu="H100")) == step(lv.what_if(timeline, gpu=known_gpu("NVIDIA H100")))


def test_a_calibrated_file_of_the_same_gpu_says_more_about_it(tmp_path):
    slow, timeline = tmp_path / "mine.json", run(Settings(gpu="a100", batch_size=8192, kernels=17, steps=6))
    slow.write_text(json.dumps({"gpu": {"preset": "a100", "h2d": 10**9}, "host": {"preset": "laptop"}}))
    change = CHANGES["pinned"]
    assert step(lv.what_if(timeline, gpu=str(slow), **change)) > 2 * step(lv.what_if(timeline, gpu="a100", **change))


@pytest.mark.parametrize("larger", [2, 4])
def test_a_larger_batch_scales_loading_and_kernels(larger):
    """Against the really emulated loop of the larger batch."""
    base = Settings(batch_size=1024, kernels=17, compute=1_000_000, steps=8, **PRESETS["pinned"])
    real = run(base.change(batch_size=1024 * larger, compute=1_000_000 * larger))
    predicted = lv.what_if(run(base), batch_size=1024 * larger)
    assert step(predicted) == pytest.approx(step(real), rel=TOLERANCE)
    assert lv.summarize(predicted).samples == lv.summarize(real).samples
    assert lv.what_if(run(base), batch_size=1024).spans is run(base).spans


def test_slices_of_resident_data_cost_no_kernel():
    timeline = run(Settings(kernels=17, steps=6))
    gathered, sliced = (lv.what_if(timeline, resident=how) for how in ("gather", "slices"))
    assert gathered == lv.what_if(timeline, resident=True)
    assert gathered.where(Kind.COMPUTE).sum() - sliced.where(Kind.COMPUTE).sum() == 6
    assert step(sliced) < step(gathered)


CALLS = {
    "launch": lambda runtime: runtime.launch(100, name="relu"),
    "copy on the GPU": lambda runtime: runtime.memcpy(400, "d2d"),
    "memset": lambda runtime: runtime.memset(400),
    "result": lambda runtime: runtime.memcpy(4, "d2h", pinned=True),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("cost", [1_000, 40_000])  # of one call in five, in ns; the others take 10 µs
def test_a_call_takes_as_long_as_it_was_seen_to(call, cost):
    """A loop that the host limits. The replay's host has one cost for all calls, so what one of them took more or less
    is settled with the host's work after it."""

    def body(runtime, calls):
        host = runtime.host
        runtime.memcpy(4_000, "h2d", pinned=True)
        for number in range(calls):
            runtime.host = replace(host, launch=cost, memcpy_call=cost) if number % 5 == 4 else host
            CALLS[call](runtime)
            runtime.host_work(40_000)
        runtime.host = host
        runtime.launch(100, name="relu")

    few, many = (loop(8, functools.partial(body, calls=calls), launch=10_000, memcpy_call=10_000) for calls in (5, 25))
    observed = 20 * 40_000 + 16 * 10_000 + 4 * cost
    assert step(many) - step(few) == observed
    assert step(again(many)) - step(again(few)) == pytest.approx(observed, rel=0.001)


@pytest.mark.parametrize("cores", [2, 4, 8, 16])
def test_what_workers_took_on_too_few_cores_had_their_turns_in_it(monkeypatch, cores):
    """Seen by a real clock, eight workers take 3.2 ms a batch: a batch each 400 µs, on however many cores."""
    monkeypatch.setattr(factory, "FETCH", 3_200_000)
    timeline = factory.loader("pinned", 64, 8)
    context = replace(timeline.context, origin="recorded", host="this machine", cores=cores)
    timeline = replace(timeline, context=context)
    assert step(timeline) == 400_000
    assert step(again(timeline)) == pytest.approx(400_000, rel=0.12)


def with_collectives(steps, exposed):
    """A loop whose gradients are reduced on a stream of their own; `exposed`: the optimizer waits for that."""

    def body(runtime):
        side, main = runtime.streams.get(1) or runtime.stream(), runtime.default_stream
        runtime.memcpy(6_000_000, "h2d", pinned=False, blocking=True)
        for _ in range(4):
            runtime.launch(100_000, name="gemm")
        runtime.wait_stream(side, main)
        runtime.launch(300_000, side, name="ncclDevKernel_AllReduce")
        if exposed:
            runtime.wait_stream(main, side)
        runtime.launch(50_000, name="sgd")

    made = loop(steps, body)
    collective = np.isin(made.name, [n for n, name in enumerate(made.names) if name.startswith("nccl")])
    device = made.where(Kind.COMPUTE) & collective
    return replace(made, spans=made.spans | {"kind": np.where(device, Kind.COMMUNICATION, made.kind).astype(np.int8)})


@pytest.mark.parametrize("exposed", [False, True])
def test_collectives_stay_as_they_were(exposed):
    timeline = with_collectives(8, exposed)
    before, after = lv.summarize(timeline), lv.summarize(again(timeline))
    assert after.step == pytest.approx(before.step, rel=0.03)
    assert after.communication == before.communication
    assert after.exposed_communication == pytest.approx(before.exposed_communication, rel=0.1, abs=100_000)
    predicted = lv.what_if(timeline, prefetch=2, workers=None)
    assert "their waits for other ranks included" in " ".join(predicted.context.notes)
    assert predicted.where(Kind.COMMUNICATION).sum() == 8


def test_it_is_a_well_made_timeline_that_says_what_it_is():
    timeline = run(Settings(kernels=17, steps=6))
    before = timeline.to_dict()
    predicted = lv.what_if(timeline, pinned=True, prefetch=2, workers=3).self_check()
    assert predicted == lv.what_if(timeline, pinned=True, prefetch=2, workers=3)
    assert timeline.to_dict() == before
    assert predicted.context.device == "NVIDIA A100-PCIE-40GB, predicted"
    notes = " ".join(predicted.context.notes)
    assert "predicted from 6 steps of a timeline of NVIDIA A100-PCIE-40GB (emulated)" in notes
    assert "3 workers, pinned, non_blocking, 2 ahead on a side stream" in notes
    assert lv.summarize(predicted).batches == 6
    assert {lane.name for lane in predicted.lanes if lane.role == "worker"} == {"worker 0", "worker 1", "worker 2"}
    assert {row.source for row in predicted.rows(Kind.COMPUTE)} == {row.source for row in timeline.rows(Kind.COMPUTE)}
    resident = lv.what_if(timeline, resident=True)
    assert not resident.where(Kind.COPY_H2D).any()
    assert "not known" in resident.context.notes[-1]


LOOP = run(Settings(kernels=17, steps=6))
FOREIGN = replace(LOOP, context=replace(LOOP.context, device="Voodoo 2"))
NO_ARROWS = replace(LOOP, arrows={name: values[:0] for name, values in LOOP.arrows.items()})


def test_what_is_no_timeline_or_gpu_or_does_not_fit_is_refused():
    with pytest.raises(UnknownHardwareError, match="choose one of"):
        lv.what_if(LOOP, gpu="voodoo2")
    for no_timeline in ("trace.json", None, 3):
        with pytest.raises(NotATimelineError, match=r"what_if\(\) needs a Timeline"):
            lv.what_if(no_timeline)
    with pytest.raises(OutOfMemory):
        lv.what_if(run(Settings(kernels=17, steps=3, sample_bytes=300_000, workers=1)), prefetch=16, gpu="laptop")


def without_batches(timeline):
    unmarked = timeline.only(~timeline.where(Kind.RANGE))
    return replace(unmarked, spans=unmarked.spans | {"batch": np.full_like(unmarked.batch, -1)})


@pytest.mark.parametrize(
    ("timeline", "change", "complaint"),
    [
        (LOOP, {"pinned": 1}, "pinned=1.: give True, False, or None"),
        (LOOP, {"graphs": "all"}, "graphs='all'.: give True, False, or None"),
        (LOOP, {"resident": "yes"}, "resident='yes'.: give True, False, or None"),
        (LOOP, {"prefetch": -1}, "prefetch=-1.: give a whole number from 0 to 16"),
        (LOOP, {"prefetch": 1.5}, "prefetch=1.5"),
        (LOOP, {"workers": True}, "workers=True"),
        (LOOP, {"batch_size": 0}, "batch_size=0.: give a whole number from 1"),
        (LOOP, {"workers": 65}, "workers=65.: give a whole number from 0 to 64"),
        (LOOP, {"prefetch": 17}, "prefetch=17.: give a whole number from 0 to 16"),
        (LOOP, {"resident": True, "prefetch": 2}, "has nothing to load: leave out pinned, prefetch and workers"),
        (factory.empty(), {}, "needs kernels: the timeline has no work of a GPU"),
        (without_batches(LOOP), {}, "needs steps: mark them with torch.profiler.record_function"),
        (run(Settings(kernels=17, steps=3, resident=True)), {"pinned": True}, "the steps of this loop copy none"),
        (with_item(4, samples=0), {"batch_size": 8}, "does not tell how many samples a batch has"),
        (NO_ARROWS, {}, "needs the host's calls"),
        (with_item(4), {"workers": 2}, "does not show how long a batch is fetched"),
        (FOREIGN, {"gpu": "t4"}, "scales the kernels, but 'Voodoo 2', where they ran, is none of 2080ti"),
        (FOREIGN, {"pinned": True}, "how fast Voodoo 2 copies from pinned memory"),
    ],
)
def test_a_change_that_means_nothing_and_a_timeline_that_shows_no_loop_are_refused(timeline, change, complaint):
    with pytest.raises(WhatIfError, match=complaint):
        lv.what_if(timeline, **change)


@pytest.mark.parametrize(
    "change", [{"workers": 2}, {"workers": 0}, {"prefetch": 1}, {"pinned": True}, {"resident": True}]
)
def test_how_batches_come_is_not_predicted_where_each_sample_comes_alone(change):
    """A replay would copy, or gather, sample by sample what a changed loop copies at once; real workers end with CUDA's
    own error."""
    timeline = copies_samples()
    with pytest.raises(WhatIfError, match="the data set or its collate function copies to the GPU, sample by sample"):
        lv.what_if(timeline, **change)
    assert lv.summarize(lv.what_if(timeline, gpu="t4")).step > 0


@functools.cache
def copies_samples():
    with lv.record(on="a100", host="laptop") as recording:
        layer = nn.Linear(32, 32).cuda()
        for x in DataLoader(factory.Samples(lambda _: torch.zeros(32).cuda(), 64), 16):
            layer(x).sum().backward()
    return recording.timeline


def test_kernels_in_several_streams_and_graphs_are_refused():
    def body(runtime):
        runtime.memcpy(1_000_000, "h2d")
        runtime.launch(50_000)
        runtime.launch(50_000, runtime.stream())

    with pytest.raises(WhatIfError, match=r"in one stream, but here they run in several: stream 7 \(default\), s"):
        lv.what_if(loop(4, body))
    graph = LOOP.arrows | {"tail": LOOP.arrows["tail"].copy()}
    kernels = np.flatnonzero(np.isin(LOOP.arrows["head"], np.flatnonzero(LOOP.where(Kind.COMPUTE))))
    graph["tail"][kernels[1]] = graph["tail"][kernels[0]]
    with pytest.raises(WhatIfError, match="launches several kernels at once"):
        lv.what_if(replace(LOOP, arrows=graph), prefetch=2)


def fed_by_threads(fetch, held, count, steps=30):
    """A loop that really has threads: they fetch into a queue, `held` of it in Python; record its end."""
    orders, ready = queue.Queue(), queue.Queue(2 * count)

    def work():
        while orders.get() is not None:
            with lv.costs(fetch * held):
                pass
            with lv.costs(fetch * (1 - held), gil=False):
                pass
            ready.put(torch.ones(64))

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for number in range(steps + 2 * count):
        orders.put(number)
    for number in range(steps):
        x = ready.get().to("cuda", non_blocking=True)
        with lv.costs(1e-3):
            x.add(1)
        if number == steps // 2:
            begin = time.perf_counter()
    took = (time.perf_counter() - begin) / (steps - 1 - steps // 2)
    for _ in threads:
        orders.put(None)
    while not all(not thread.is_alive() for thread in threads):
        ready.get(timeout=1) if ready.qsize() else time.sleep(1e-3)
    return 1e9 * took


@pytest.mark.slow
@pytest.mark.parametrize(("held", "count"), [(1.0, 2), (1.0, 4), (0.5, 4), (0.2, 4), (0.0, 4)])
def test_threads_for_workers(held, count):
    """Predicted from the timeline of a DataLoader with processes, beside threads that really take turns."""

    def slow(_):
        with lv.costs(8e-3):
            return torch.ones(64)

    with lv.record(on="a100", host="workstation") as recording:
        for x in DataLoader(factory.Samples(slow, 40), batch_size=None, num_workers=count):
            x = x.to("cuda", non_blocking=True)
            with lv.costs(1e-3):
                x.add(1)
    predicted = step(lv.what_if(recording.timeline.from_batch(10), threads=held))
    with lv.record(on="a100", host="workstation", hazards="off"):
        real = fed_by_threads(8e-3, held, count)
    assert not wrong([(f"{held} held, {count} threads", predicted, real)], 0.2)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"threads": True}, "needs workers"),
        ({"threads": True, "workers": 0}, "needs workers"),
        ({"threads": True, "resident": True}, "needs workers"),
        ({"threads": 1.1, "workers": 2}, "from 0 to 1"),
        ({"threads": -1, "workers": 2}, "from 0 to 1"),
        ({"threads": float("nan"), "workers": 2}, "from 0 to 1"),
        ({"threads": "no", "workers": 2}, "from 0 to 1"),
        ({"threads": [], "workers": 2}, "from 0 to 1"),
    ],
)
def test_threads_that_mean_nothing_are_refused(change, complaint):
    with pytest.raises(WhatIfError, match=complaint):
        lv.what_if(run(factory.settings("a100", 64, 100_000, workers=0, steps=6)), **change)


def test_what_threads_are_is_told():
    timeline = run(factory.settings("a100", 64, 100_000, workers=2, steps=12))
    notes = "\n".join(lv.what_if(timeline, threads=0.25).context.notes)
    assert "2 threads, " in notes and "25% of a fetch is taken to hold Python's lock" in notes
    assert lv.what_if(timeline, threads=False).spans is timeline.spans


@pytest.mark.parametrize("name", sorted(GPUS))
def test_the_machine_is_known_again(name):
    chosen = Settings(gpu=name, kernels=17, steps=6, **PRESETS["pinned"], **rates_of(name))
    loop = LoopModel(run(chosen))
    gpu, host = gpu_of(loop), host_of(loop, loop.config)
    assert (gpu.name, gpu.fp32) == (GPUS[name].name, GPUS[name].fp32)
    assert gpu.h2d == pytest.approx(GPUS[name].h2d, rel=1e-3)
    assert gpu.sources["h2d"] == "measured in the timeline"
    workstation = Host.preset("workstation")
    for cost in ("launch", "memcpy_call", "hand_out", "dispatch", "synchronize"):
        assert getattr(host, cost) == getattr(workstation, cost)
    assert host.memory_bandwidth == pytest.approx(workstation.memory_bandwidth, rel=0.02)


@pytest.mark.parametrize("given", [{}, {"workers": 1, "sample_bytes": 300_000}, {"workers": 2}])
def test_the_way_to_the_limit_says_what_the_first_finding_says(given):
    """Its first step is the loop's less the predicted gain; each is shorter, and no setting is changed twice."""
    advice = lv.advise(run(Settings(kernels=17, steps=8, **given)))
    tried = next(each for each in advice if each.predicted is not None and each.parameters)
    first, *rest = advice.path
    assert (first.kind, first.parameters) == (tried.kind, tried.parameters)
    assert first.step == pytest.approx(advice.step - tried.expected_gain.predicted, rel=1e-9)
    assert all(after.step < before.step for before, after in zip([first, *rest], rest, strict=False))
    names = [name for step in advice.path for name, value in step.parameters.items() if value is not True]
    assert len(names) == len(set(names))


def features(tensors=40, listed=0):
    """Samples of many small tensors, and of so many bytes beside them."""
    more = {"raw": bytes(listed)} if listed else {}
    return factory.Samples(
        lambda _: {f"feature {place}": torch.full((8,), float(place)) for place in range(tensors)} | more, 32 * 24
    )


@functools.cache
def _features(workers, joined, **options):
    """Record a loop whose batches are many tensors, copied one by one or joined before they are copied."""
    with lv.record(on="a100", host="laptop") as recording:
        for batch in DataLoader(features(**options), 32, num_workers=workers):
            parts = [each for each in batch.values() if isinstance(each, torch.Tensor)]
            if joined:
                parts = torch.cat([part.flatten() for part in parts]).cuda().split(parts[0].numel())
            sum(part.cuda().sum() for part in parts)
    return recording.timeline


@pytest.mark.parametrize("options", [{}, {"tensors": 2, "listed": 60_000}], ids=["many tensors", "bytes"])
@pytest.mark.parametrize("joined", [False, True], ids=["one by one", "joined"])
def test_what_is_received_from_workers_is_the_batch_and_not_what_is_copied(options, joined):
    steps = {workers: lv.summarize(_features(workers, joined, **options)).step for workers in (0, 2)}
    for now, then in ((0, 2), (2, 0)):
        predicted = lv.what_if(_features(now, joined, **options), workers=then)
        assert lv.summarize(predicted).step == pytest.approx(steps[then], rel=0.15)
    assert steps[2] > 1.2 * steps[0]  # so workers do not pay, and are not offered
    path = lv.advise(_features(0, joined, **options)).path
    assert "workers" not in {name for change in path for name in change.parameters}


def test_to_join_the_copies_does_not_join_what_workers_send():
    loose, joined = _features(2, False), lv.summarize(_features(2, True)).step
    found = {finding.kind: finding for finding in lv.advise(loose)}
    gained = lv.summarize(loose).step - joined
    assert found["many-small-copies"].expected_gain.predicted == pytest.approx(gained, rel=0.15)
    assert next(iter(found)) == "workers-cost-more" and "send fewer tensors" in found["workers-cost-more"].change


def test_a_real_loop_tells_how_many_tensors_its_batches_have():
    with lv.record(on="cpu") as recording:
        for batch in DataLoader(features(5), 32):
            sum(batch.values())
    assert recording.timeline.context.usage["tensors"] == 5


def _parts(workers, pinned=False):
    """Batches that are parts of one tensor of a data set, which each worker copies into shared memory once."""
    data = torch.rand(32, 16, 3, 64, 64)
    with lv.record(on="a100", host="laptop") as recording:
        for batch in DataLoader(data, None, num_workers=workers, pin_memory=pinned):
            batch.cuda(non_blocking=pinned).sum()
    return recording.timeline


def test_a_part_of_a_tensor_in_memory_is_not_copied_again_for_each_batch():
    own, several = _parts(0), _parts(2)
    host, nbytes = Host.preset("laptop"), 16 * 3 * 64 * 64 * 4
    (fetch,) = {row.end - row.start for row in several.rows() if row.kind == Kind.FETCH and row.batch >= 8}
    assert fetch < host.tensor_sent + host.fetch_time(16, nbytes) + nbytes // 4096 * host.new_page  # no new pages
    assert own.context.usage["tensors"] == several.context.usage["tensors"] == 1
    for now, change, then in (
        (own, {"workers": 2}, several),
        (several, {"workers": 0}, own),
        (several, {"pinned": True}, _parts(2, pinned=True)),
    ):
        assert lv.summarize(lv.what_if(now, **change)).step == pytest.approx(lv.summarize(then).step, rel=0.15)
