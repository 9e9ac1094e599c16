"""Validation and calibration: a trace made of the model's own times is exact; real traces are within the limit."""

import gzip
import io
import json
import pickle
import re
from dataclasses import replace
from pathlib import Path
from time import thread_time_ns
from types import SimpleNamespace

import factory
import numpy as np
import pytest
import torch
from factory import shared

import loaderviz as lv
from benchmarks.steps import Setup, gpu_time
from benchmarks.validate import MENDED, STEPS, ranks
from loaderviz import words
from loaderviz.analysis import calibration
from loaderviz.analysis.validate import JUDGED, ValidationError
from loaderviz.cli import main
from loaderviz.emulator import Gpu, Host
from loaderviz.emulator.hardware import UnknownHardwareError
from loaderviz.emulator.kernels import Array, Call, kernel_times
from loaderviz.emulator.torch.dataloader import FORMATS, parcel_of
from loaderviz.machine import new_pages

CARD = "NVIDIA A100-SXM4-80GB"
WIDE, SQUARE = (8192, 4096), (4096, 4096)
CALLS = {  # name, shapes of the arguments, and the same call as the model takes it
    "aten::add": ([WIDE, WIDE], Call("add", [Array(WIDE, "float")] * 2, [Array(WIDE, "float")])),
    "aten::mm": ([WIDE, SQUARE], Call("mm", [Array(WIDE, "float"), Array(SQUARE, "float")], [Array(WIDE, "float")])),
    "aten::zero_": ([WIDE], Call("zero_", [], [Array(WIDE, "float")])),
}
LATENCY, LAUNCH = 2.5, 6.0  # us


def made(path, slower=1.0, shapes=True, card=CARD):
    """Write a trace in which each operator's kernels take `slower` times what the model says; return the path."""
    events, at, correlation = [], 0.0, 0
    for name, (dims, call) in [*CALLS.items()] * 4:
        durations = kernel_times(Gpu.named(CARD), call)
        arguments = {"Input Dims": dims, "Input type": ["float"] * len(dims)} if shapes else {}
        length = (LAUNCH + LATENCY) * len(durations) + slower * sum(durations) / 1000 + 50
        events.append({"cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": at, "dur": length, "args": arguments})
        start = at + 1
        for duration in durations:
            correlation += 1
            seen = {"correlation": correlation, "stream": 7}
            call_ = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": start, "dur": LAUNCH}
            begin, took = start + LAUNCH + LATENCY, slower * duration / 1000
            kernel = {"cat": "kernel", "name": "vectorized_elementwise", "pid": 0, "tid": 7, "ts": begin, "dur": took}
            events += [call_ | {"args": {"correlation": correlation}}, kernel | {"args": seen}]
            start = begin + took + 1
        at += length + 100
    data = {"deviceProperties": [{"name": card}], "traceEvents": [{"ph": "X"} | event for event in events]}
    path.write_bytes(gzip.compress(json.dumps(data).encode()))
    return path


@pytest.mark.parametrize("slower", [1, 2, 0.5])
def test_a_trace_of_the_models_own_times_is_exact(tmp_path, slower):
    found = lv.validate(made(tmp_path / "t.json.gz", slower))
    assert found.gpu is Gpu.preset("a100-sxm-80gb")
    assert found.ratio == pytest.approx(1 / slower, rel=1e-4)
    assert found.error == pytest.approx(abs(1 - 1 / slower), abs=1e-4)
    assert {row.kind: row.operators for row in found.rows} == {"elementwise": 4, "gemm_fp32": 4, "fill": 4}
    assert found.numbers["launch_latency"] == LATENCY * 1000 and found.numbers["launch"] == LAUNCH * 1000


def test_a_calibrated_machine_has_the_traces_own_times(tmp_path, capsys):
    path, saved = made(tmp_path / "t.json.gz", 1.7), tmp_path / "mine.json"
    assert main(["calibrate", str(path), "--out", str(saved)]) == 0
    assert "kept from a100-sxm-80gb and workstation:" in capsys.readouterr().out
    assert lv.validate(path, on=str(saved)).error < 0.001
    gpu, host, card = Gpu.preset(str(saved)), Host.preset(str(saved)), Gpu.named(CARD)
    assert (gpu.launch_latency, host.launch, gpu.name) == (2_500, 6_000, f"{CARD}, calibrated")
    assert gpu.source("launch_latency") == "measured: mine.json"
    assert (gpu.memory, gpu.kernels["attention"]) == (card.memory, card.kernels["attention"])
    assert {"memory", "dispatch", "kernels of attention"} <= set(lv.calibrate(path).kept)
    with lv.record(on=str(saved), host=str(saved)) as recording:
        for batch in range(3):
            with torch.profiler.record_function(f"batch {batch}"):
                torch.zeros(8).to("cuda").add_(1)
    assert recording.timeline.context.device == gpu.name
    assert lv.what_if(recording.timeline, gpu=str(saved)).context.device.startswith(gpu.name)
    assert lv.explore(gpu=str(saved)).settings.machine().launch_latency == 2_500
    assert lv.calibrate(made(path, card="Voodoo 2")).gpu["preset"] == "a100"  # an unknown card


@pytest.mark.parametrize(("slower", "limit", "status"), [(1.2, "0.25", 0), (2, "0.25", 1), (2, "0.6", 0)])
def test_the_command_fails_beyond_its_limit(tmp_path, capsys, slower, limit, status):
    path = made(tmp_path / "t.json.gz", slower)
    assert main(["validate", str(path), "--limit", limit]) == status
    *_, last = capsys.readouterr().out.splitlines()
    (totals,) = json.loads(last)
    assert totals["error"] == pytest.approx(1 - 1 / slower, abs=1e-3) and totals["gpu_ms"] * 1e6 > JUDGED


@pytest.mark.parametrize(
    ("content", "options", "error", "words"),
    [
        (b"no json", {}, ValidationError, "is no trace: it looks like a text file"),
        (b'{"traceEvents": []}', {}, ValidationError, "has no kernels; record it with torch.profiler"),
        (None, {"shapes": False}, ValidationError, "has no shapes; record it with torch.profiler.profile"),
        (None, {"card": "Voodoo 2"}, UnknownHardwareError, "no preset fits the GPU 'Voodoo 2'"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path, content, options, error, words):
    path = tmp_path / "t.json"
    if content is None:
        made(path, **options)
    else:
        path.write_bytes(content)
    with pytest.raises(error, match=words):
        lv.validate(path)


@pytest.mark.parametrize(
    "content",
    [
        None,
        "{}",
        "",
        "[]",
        '{"gpu": 3}',
        '{"gpu": {"preset": "x"}}',
        '{"gpu": {"preset": 3}}',
        '{"gpu": {"preset": "a100", "h2d": true}}',
        '{"gpu": {"preset": "a100", "speed": 3}}',
        '{"gpu": {"preset": "a100", "kernels": []}}',
        '{"gpu": {"preset": "a100", "kernels": {"gemm_fp32": [1]}}}',
        '{"gpu":' * 100_000,
    ],
)
def test_a_file_that_is_no_machine_is_refused(tmp_path, content):
    file = tmp_path / "machine.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UnknownHardwareError, match="is not a file that `loaderviz calibrate` wrote"):
        Gpu.preset(str(file))


ODD = [None, True, -1, 2**70, "text", [], [[2**60]], {}, {"name": 3}]


@pytest.mark.parametrize("key", ["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"])
@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_an_event_of_another_kind_is_left_out(tmp_path, key, odd):
    """The other events are compared; an error is one of those that are told."""
    path = made(tmp_path / "t.json")
    data = json.loads(gzip.decompress(path.read_bytes()))
    data["traceEvents"] += [event | {key: odd} for event in data["traceEvents"][-6:]]
    path.write_text(json.dumps(data))
    assert str(lv.validate(path)) and lv.calibrate(path).gpu


@pytest.mark.parametrize("odd", ODD, ids=repr)
@pytest.mark.parametrize("key", ["Input Dims", "Input type", "Input Strides", "correlation", "stream", "bytes"])
def test_arguments_of_another_kind_are_no_comparison(tmp_path, key, odd):
    path = made(tmp_path / "t.json")
    data = json.loads(gzip.decompress(path.read_bytes()))
    for event in data["traceEvents"]:
        if key in event.get("args", {}):
            event["args"][key] = odd
    path.write_text(json.dumps(data))
    try:
        assert str(lv.validate(path))
    except ValidationError as problem:
        assert str(path) in str(problem)


@pytest.mark.parametrize(
    ("name", "operators"),
    [
        ("measured/h100_qwen_bf16_2025.json.gz", 1028),
        ("measured/h100_timesformer_bf16_2025.json.gz", 441),
        factory.slow("measured/a100_dlrm_tf32_2022.json.gz", 4412),
        ("judged/h100_bert_small_2025.json.gz", 60),
    ],
)
def test_real_traces_are_within_the_limit(name, operators):
    found = lv.validate(shared(name))
    assert sum(row.operators for row in found.rows) == operators
    assert found.error <= 0.25
    assert 0.9 < found.ratio < 1.1


@pytest.mark.parametrize("place", range(3), ids=["2080 Ti", "V100", "A100"])
def test_whole_steps_have_the_kernel_time_that_was_measured(place):
    """None of the three was fitted on as a whole; measured in traces of param and HolisticTraceAnalysis."""
    model, gpu, batch, measured = STEPS[place]
    total, kernels = gpu_time(Setup(model, batch, "train"), Gpu.preset(gpu))
    assert (total - kernels * Gpu.preset(gpu).queue_gap) / 1e6 == pytest.approx(measured, rel=0.15)


PAGE = (Path(__file__).parents[1] / "docs" / "validation.md").read_text(encoding="utf-8")
ADVICE = PAGE.partition("## Advice on real traces")[2].partition("\n## ")[0]
FOUND = re.findall(r"(?m)^\| (\S+) \| ([a-z-]+) \| (\d+ %) \|", ADVICE)  # beside it stands what is read by hand


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind", "share"), FOUND)
def test_the_first_finding_on_a_real_trace_is_that_of_the_page(name, kind, share):
    first = lv.advise(factory.real(name if (factory.SHARED / name).is_dir() else f"{name}.json.gz"))[0]
    assert (first.kind, words.share(first.expected_gain.share)) == (kind, share)


@pytest.mark.slow
def test_the_page_has_each_real_trace_and_the_ranks_as_they_are():
    assert "\n".join(ranks(shared("ranks8_nanogpt_2025"))) in ADVICE
    files = (path.relative_to(factory.SHARED) for path in factory.SHARED.rglob("*.json.gz"))
    runs = {path.parent.name if "rank" in path.name else str(path.with_suffix("").with_suffix("")) for path in files}
    assert {name for name, *_ in FOUND} == runs


# This machine


def test_how_much_slower_a_machine_prepares_pictures_is_the_middle_of_four_calls(monkeypatch):
    """Calls that take so many times what the table says: its closed forms, for the picture that calibrate() makes."""
    size, file = 375 * 500 * 3, io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (375, 500, 3), dtype=np.uint8)
    pytest.importorskip("PIL.Image").fromarray(pixels).save(file, "JPEG", quality=75)
    table = [FORMATS["JPEG"].time(len(file.getvalue()), size)]
    table += [base + size * per_byte // 1000 for base, per_byte in ((2_500, 160), (9_000, 440), (3_000, 116))]
    taken = iter([1.2 * table[0], 3.4 * table[1], 1.6 * table[2], 9 * table[3]])
    monkeypatch.setattr(calibration, "_least", lambda call: next(taken))
    assert calibration._decoding() == {"transforms": 2_500}  # between 1.6 and 3.4


def test_this_machine_is_measured_and_saved(tmp_path, capsys):
    path = tmp_path / "here.toml"
    assert main(["calibrate", "--save", str(path)]) == 0
    host, preset = Host.preset(str(path)), Host.preset("workstation")
    measured = {name for name, source in host.sources.items() if source == f"measured: {path.name}"}
    assert measured >= {"transforms", "new_page", "first_read", "tensor_sent", "pickle_per_byte", "cores", "hand_out"}
    said = capsys.readouterr().out
    assert all(name in said for name in measured - {"name"})
    assert 100 < host.transforms < 100_000
    others = {"launch", "dispatch", "node", "disk"} - measured
    assert {name: getattr(host, name) for name in others} == {name: getattr(preset, name) for name in others}
    with lv.record(on="a100", host=str(path)) as recording:
        torch.ones(2, device="cuda")
    assert recording.timeline.context.host.startswith("workstation, calibrated")


def test_what_pickling_takes_is_measured_on_a_long_list(monkeypatch):
    """Of 16 MiB: half a MiB is in caches, and its pages are not new."""
    worker, thread = {"int": 30_000, "_parts": 16_807_216}, {"int": 20_000, "_parts": 33_574_432}

    def crossing(make, batches=calibration.BATCHES):
        name = getattr(make, "__name__", "tensor")
        return worker.get(name, 330_000), thread.get(name, 220_000)

    monkeypatch.setattr(calibration, "_crossing", crossing)
    host = replace(Host.preset("laptop"), **calibration._boundary())
    assert (host.tensor_sent, host.tensor_received) == (300_000, 200_000)
    assert (host.pickle_per_byte, host.unpickle_per_byte) == (1_000, 2_000)


@pytest.mark.this_clock
def test_a_worker_that_sends_arrays_takes_at_least_what_pickle_takes_alone():
    """A list of 256 arrays, 16 MiB: this machine takes 9 to 12 ms for pickle.dumps alone, whose memory is new."""
    arrays, times = [np.ones(2**16, np.uint8) for _ in range(256)], []
    for _ in range(5):
        start = thread_time_ns()
        pickle.dumps(arrays)
        times.append(thread_time_ns() - start)
    page = round(new_pages().written)
    host = replace(Host.preset("workstation"), new_page=page, **calibration._boundary())
    assert host.sending(parcel_of(arrays, set())) > min(times)


def test_page_locking_is_measured_without_the_beginning_of_cuda(monkeypatch):
    """The first call of a process takes 103 ms more, on an H200: it was the price of each page-locking."""
    now, taken = [0], {4096: 200_000, 2**28: 31_000_000}
    first = [103_000_000]

    def register(place, size, flags):
        now[0] += taken[size] + (first.pop() if first else 0)

    driver = SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=lambda place: None)
    monkeypatch.setattr(calibration.torch.cuda, "cudart", lambda: driver)
    monkeypatch.setattr(calibration.torch.cuda, "init", lambda: None)
    monkeypatch.setattr(calibration, "thread_time_ns", lambda: now[0])
    assert calibration._locking() == {"page_lock_base": 200_000, "page_lock_per_gib": 4 * 30_800_000}


def test_the_tests_that_hold_what_was_wrong_once_are_there():
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("test_*.py"))
    assert [test for _, test in MENDED if f"def {test}(" not in tests] == []
