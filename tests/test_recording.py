"""record(): the front door."""

import importlib.util
import sys
import types
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

import loaderviz as lv
from loaderviz import machine
from loaderviz.emulator import Gpu, Host
from loaderviz.emulator.hardware import GPUS
from loaderviz.errors import LoadervizError
from loaderviz.recording import NotRecordedError, RecordOptionError
from loaderviz.timeline import Kind, Timeline


def program():
    return torch.arange(1000.0).pin_memory().to("cuda", non_blocking=True).sum().item()


@pytest.mark.parametrize("name", sorted(GPUS))
def test_every_preset_runs_the_same_program(name):
    with lv.record(on=name) as recording:
        assert program() == 499500.0
    timeline = recording.timeline.self_check()
    assert timeline.context.device == GPUS[name].name
    assert timeline.context.origin == "emulated"
    assert timeline.context.versions["torch"] == torch.__version__


def test_a_gpu_and_a_host_of_ones_own():
    slow = replace(Gpu.preset("t4"), name="slow", h2d=10**6)
    with lv.record(on=slow, host=replace(Host.preset("workstation"), name="mine")) as recording:
        program()
    (copy,) = recording.timeline.rows(Kind.COPY_H2D)
    assert copy.duration == slow.copy_latency + 4000 * 1000
    assert recording.timeline.context.host.startswith("mine")
    with pytest.raises(ValueError, match="'on_wait' or 'eager'"):
        lv.record(on=slow, copies="later")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_auto_emulates_where_there_is_no_gpu():
    with lv.record() as recording:
        program()
    assert recording.timeline.context.device == "NVIDIA A100-PCIE-40GB"
    with pytest.raises(LoadervizError, match="no CUDA GPU here"):
        lv.record(on="cuda")


def test_the_default_host_measures_the_programs_own_python():
    """In a copy of the module, as this run of the tests has a host by name in it (conftest)."""
    spec = importlib.util.find_spec(lv.record.__module__)
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    assert fresh.record.__kwdefaults__["host"] == "auto"


def test_the_timeline_is_there_after_the_block():
    with lv.record(on="a100") as recording:
        with pytest.raises(NotRecordedError, match="after the block"):
            recording.timeline
        assert "not ended" in repr(recording)
    assert isinstance(recording.timeline, Timeline) and len(recording.timeline.self_check()) == 0
    assert "spans" in repr(recording)


def test_an_error_in_the_block_comes_through_and_leaves_the_timeline_so_far():
    recording = lv.record(on="a100")
    with pytest.raises(KeyError, match="mine"), recording:
        program()
        raise KeyError("mine")
    assert recording.timeline.self_check().where(Kind.COPY_H2D).sum() == 1


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"wait": -1}, r"record\(wait=-1\): give a whole number of steps, 0 or more"),
        ({"wait": 1.5}, "wait=1.5"),
        ({"wait": True}, "wait=True"),
        ({"wait": None}, "wait=None"),
        ({"steps": 0}, "steps, 1 or more, or None for all"),
        ({"steps": "3"}, "steps='3'"),
    ],
    ids=str,
)
@pytest.mark.parametrize("on", ["a100", "cpu"])
def test_a_number_of_steps_that_means_nothing_is_refused(on, option, said):
    with pytest.raises(RecordOptionError, match=said):
        lv.record(on=on, **option)


def emulated_loop(batches=5, mark=True, **options):
    """Copies of 1,000 floats, one a step, each step marked."""
    with lv.record(on="a100", **options) as recording:
        for batch in range(batches):
            with torch.profiler.record_function(f"batch {batch}") if mark else nullcontext():
                torch.arange(1000.0).to("cuda").sum().item()
    return recording.timeline.self_check()


@pytest.mark.parametrize(("wait", "steps"), [(0, None), (1, None), (0, 2), (2, 2), (4, 1), (1, 9)])
def test_a_window_of_an_emulated_run_is_that_part_of_the_whole(wait, steps):
    whole, part = emulated_loop(), emulated_loop(wait=wait, steps=steps)
    starts = [row.start for row in whole.rows(Kind.RANGE)]
    last = len(starts) if steps is None else min(len(starts), wait + steps)
    begin = starts[wait] if wait else whole.begin
    expected = whole.between(begin, starts[last] if last < len(starts) else whole.begin + whole.duration)
    assert list(part.rows()) == list(expected.rows())
    assert part.marks == expected.marks
    assert [row.batch for row in part.rows(Kind.COPY_H2D)] == list(range(wait, last))


def test_a_program_without_steps_has_none_to_leave_out():
    timeline = emulated_loop(mark=False, wait=2)
    assert len(timeline) == 0
    assert "nothing is recorded: the first 2 steps" in timeline.context.notes[-1]
    whole = emulated_loop(mark=False, steps=2)
    assert whole.where(Kind.COPY_H2D).sum() == 5
    assert "the block had 0 of the 2 steps to record" in whole.context.notes[-1]


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_a_notebooks_kernel_gives_free_memory_back_after_a_recording(monkeypatch):
    trimmed = []
    libc = types.SimpleNamespace(malloc_trim=trimmed.append)
    monkeypatch.setattr(machine, "ctypes", types.SimpleNamespace(CDLL=lambda name: libc))
    shell = types.SimpleNamespace(kernel=object())
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: shell
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    with lv.record(on="t4"):
        assert trimmed == []
    assert trimmed == [0]
    del libc.malloc_trim  # musl has none
    machine.give_back()
    del shell.kernel  # a terminal: the process ends soon
    monkeypatch.setattr(machine, "ctypes", None)
    with lv.record(on="t4"):
        pass
