"""After a recording everything is as it was; between two recordings nothing leaks, and what stays goes on working."""

from __future__ import annotations

import gc
import sys
import threading
import time
import timeit
import types
import weakref

import pytest
import torch
from programs import mlp, same, train
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data import dataloader as torch_dataloader

import loaderviz as lv
from loaderviz.emulator.torch_cuda.recording import EmulatedCuda, NestedRecordingError
from loaderviz.emulator.torch_cuda.session import NoRecordingError, Session
from loaderviz.errors import NotModelledError
from loaderviz.loaders import PrefetchLoader, marks
from loaderviz.timeline import Kind

OWNERS = (
    torch, torch.cuda, torch.cuda.memory, torch.cuda.streams, torch.cuda.random, torch.cuda.nvtx, torch.accelerator,
    torch.Tensor, torch.nn, torch.UntypedStorage, torch.storage._StorageBase, torch._C, torch.overrides, torch.amp,
    torch.amp.autocast_mode.autocast, torch.autograd.graph, torch.autograd.profiler.record_function,
    torch.backends.cuda, torch.backends.cudnn, torch.serialization, torch.utils._foreach_utils, torch._tensor,
    torch.cuda.Stream, torch.cuda.Event, torch.autograd.graph.saved_tensors_hooks, torch.nn.functional,
    torch_dataloader, torch_dataloader.DataLoader, torch_dataloader._SingleProcessDataLoaderIter,
    torch_dataloader._MultiProcessingDataLoaderIter, torch.utils.data._utils.worker,
    torch.utils.data._utils.pin_memory, time, timeit, threading.Thread, marks, sys.modules[__name__],
)  # fmt: skip


def snapshot():
    """Return every attribute of everything that a recording replaces (and of a good deal more)."""
    own = {owner: dict(vars(owner)) for owner in OWNERS}
    own["registry"] = list(torch.serialization._package_registry)
    own["modes"] = torch.overrides._get_current_function_mode_stack(), torch._C._len_torch_dispatch_stack()
    return own


def differences(before, after):
    return [
        (getattr(owner, "__name__", owner), name)
        for owner, names in before.items()
        if isinstance(names, dict)
        for name in names.keys() | after[owner].keys()
        if names.get(name) is not after[owner].get(name) and not isinstance(names.get(name), types.MappingProxyType)
    ]


def use_everything():
    train("cuda", num_workers=1, pin_memory=True)
    with torch.autocast("cuda"), torch.cuda.stream(torch.cuda.Stream()):
        torch.ones(1, device="cuda").item()


def test_everything_is_restored():
    lv.record(on="a100").__enter__().__exit__(None, None, None)  # what is imported at the first use is there now
    with lv.record(on="a100"):
        use_everything()
    before = snapshot()
    with lv.record(on="a100"):
        inside = snapshot()
        use_everything()
    after = snapshot()
    assert len(differences(before, inside)) > 100
    assert differences(before, after) == []
    assert before["registry"] == after["registry"]
    assert before["modes"] == after["modes"] == ([], 0)


def test_everything_is_restored_after_an_error():
    before = snapshot()
    with pytest.raises(ZeroDivisionError), lv.record(on="a100"):
        1 / 0
    with pytest.raises(NotModelledError), lv.record(on="a100"):
        torch.ones(1, device="cuda:3")
    assert differences(before, snapshot()) == []
    assert Session.active is None


def test_everything_is_restored_when_the_beginning_fails(monkeypatch):
    before = snapshot()
    monkeypatch.setattr(EmulatedCuda, "_install", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        lv.record(on="a100").__enter__()
    assert differences(before, snapshot()) == []
    monkeypatch.undo()
    with lv.record(on="a100"):
        assert torch.ones(1, device="cuda").is_cuda


def test_nesting_is_refused_and_the_outer_recording_goes_on():
    with lv.record(on="a100") as recording:
        with pytest.raises(NestedRecordingError, match="running already"):
            lv.record(on="t4")
        assert torch.ones(1, device="cuda").item() == 1
    assert recording.timeline.context.device == "NVIDIA A100-PCIE-40GB"


def test_a_recording_can_be_used_once():
    recording = lv.record(on="a100")
    with recording:
        torch.ones(1, device="cuda")
    with pytest.raises(RuntimeError, match="used already"), recording:
        pass


def test_modules_imported_inside_a_recording_get_the_real_names_afterwards(monkeypatch):
    module = types.ModuleType("imported_inside")
    with lv.record(on="a100"):
        exec("from time import perf_counter\nfrom torch.cuda import Stream, synchronize", vars(module))
        monkeypatch.setitem(sys.modules, "imported_inside", module)
        held = time.perf_counter
        module.synchronize()
    assert module.perf_counter is time.perf_counter
    assert module.Stream is torch.cuda.Stream
    assert module.synchronize is torch.cuda.synchronize
    assert abs(held() - time.perf_counter()) < 60  # a clock that was kept is a real one now


def test_the_emulators_objects_say_so_outside_a_recording():
    with lv.record(on="a100"):
        stream, event = torch.cuda.Stream(), torch.cuda.Event()
    for call in (stream.synchronize, event.record, lambda: stream.wait_event(event), stream.__enter__):
        with pytest.raises(NoRecordingError, match="recording has ended"):
            call()


def test_what_stays_on_the_device_goes_on_in_the_next_recording():
    with lv.record(on="a100"):
        model = mlp().to("cuda")
        optimizer = torch.optim.Adam(model.parameters())
        stream, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
        event.record(stream)
        values, pinned = torch.ones(2**18, device="cuda"), torch.ones(10).pin_memory()
    with lv.record(on="a100") as recording:
        assert torch.cuda.memory_allocated() == 0
        assert values.is_cuda
        assert pinned.is_pinned()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            model(values[:144][None]).sum().backward()
        assert event.query()
        torch.cuda.current_stream().wait_stream(stream)
        optimizer.step()
        assert pinned.to("cuda", non_blocking=True).sum().item() == 10
        assert torch.cuda.memory_allocated() > 2**18
        stream.synchronize()
    assert 13 in {span.lane.number for span in recording.timeline.rows(Kind.COMPUTE)}


def test_what_stays_on_the_device_costs_nothing_in_the_next_recording():
    with lv.record(on="a100"):
        there = [torch.ones(2**19, device="cuda") for _ in range(3)]
    with lv.record(on="a100") as recording:
        assert sum(tensor.sum().item() for tensor in there) == 3 * 2**19
    reserved = [span.nbytes for span in recording.timeline.rows() if span.name == "cudaMalloc"]
    assert reserved == [2 * 2**20]  # for the results only


def test_one_loader_may_be_used_in_several_recordings():
    loader = PrefetchLoader(DataLoader(TensorDataset(torch.arange(12.0)), 4), "cuda")
    epochs = []
    for _ in range(3):
        with lv.record(on="a100"):
            epochs.append([batch.tolist() for (batch,) in loader])
    assert epochs[0] == epochs[1] == epochs[2]


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "pin_memory": True}])
def test_the_same_program_gives_the_same_timeline(options):
    timelines = []
    for _ in range(2):
        with lv.record(on="a100") as recording:
            losses = train("cuda", **options)
        timelines.append(recording.timeline)
    assert timelines[0] == timelines[1]
    assert same(losses, train("cpu"))


def test_nothing_is_kept_alive():
    with lv.record(on="a100") as recording:
        train("cuda", pin_memory=True)
        session = weakref.ref(Session.active)
        storage = torch.ones(3, device="cuda").untyped_storage()
        tag = weakref.ref(storage._loaderviz_tag)
        del storage
        assert tag() is None
        for _ in range(3):
            torch.ones(2**20, device="cuda").to("cpu", non_blocking=True)  # results that nobody waits for
        gc.collect()
        assert torch.cuda.memory_allocated() == 0
        assert Session.active.pinned.stats.allocated == 0
    timeline = recording.timeline
    del recording
    gc.collect()
    assert session() is None
    assert len(timeline)


def test_a_forked_process_can_go_on_without_the_recording():
    context = torch.multiprocessing.get_context("fork")
    with lv.record(on="a100") as recording:
        results = context.SimpleQueue()
        process = context.Process(target=_in_child, args=(results,))
        process.start()
        answer = results.get()
        process.join()
    assert answer == (False, 3.0, "perf_counter")
    assert len(recording.timeline) == 0


def _in_child(results):
    time.sleep(0)
    results.put((torch.cuda.is_available(), torch.ones(3).sum().item(), time.perf_counter.__name__))
