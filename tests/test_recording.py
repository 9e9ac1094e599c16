"""record(): the front door."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import loaderviz as lv
from loaderviz.emulator import Gpu, Host
from loaderviz.emulator.hardware import GPUS, UnknownHardwareError
from loaderviz.errors import LoadervizError
from loaderviz.recording import NotRecordedError
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


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_auto_emulates_where_there_is_no_gpu():
    with lv.record() as recording:
        program()
    assert recording.timeline.context.device == "NVIDIA A100-PCIE-40GB"
    with pytest.raises(LoadervizError, match="no CUDA GPU here"):
        lv.record(on="cuda")


@pytest.mark.parametrize("wrong", [{"on": "a1000"}, {"host": "toaster"}])
def test_an_unknown_name_lists_the_known_ones(wrong):
    with pytest.raises(UnknownHardwareError, match="choose one of"):
        lv.record(**wrong)


def test_an_unknown_way_of_copying_is_refused():
    with pytest.raises(ValueError, match="'on_wait' or 'eager'"):
        lv.record(on="a100", copies="later")


def test_the_timeline_is_there_after_the_block():
    with lv.record(on="a100") as recording:
        with pytest.raises(NotRecordedError, match="after the block"):
            recording.timeline
        assert "not ended" in repr(recording)
        program()
    assert isinstance(recording.timeline, Timeline)
    assert "spans" in repr(recording)


def test_an_error_in_the_block_comes_through_and_leaves_the_timeline_so_far():
    recording = lv.record(on="a100")
    with pytest.raises(KeyError, match="mine"), recording:
        program()
        raise KeyError("mine")
    assert recording.timeline.self_check().where(Kind.COPY_H2D).sum() == 1


def test_an_empty_block_is_an_empty_timeline():
    with lv.record(on="a100") as recording:
        pass
    assert len(recording.timeline.self_check()) == 0


def test_a_timeline_survives_its_json_form():
    with lv.record(on="a100") as recording:
        program()
    assert Timeline.from_dict(recording.timeline.to_dict()) == recording.timeline
