"""The rules of PyTorch on CUDA, each a test that names it; the device's own rules are in test_rules.py."""

from __future__ import annotations

import time

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import loaderviz as lv
from loaderviz.errors import NotModelledError
from loaderviz.timeline import Cause, Kind

MIB = 2**20
LONG = 1_500_000  # cycles of torch.cuda._sleep: 1 ms


def spans(recording, *kinds, name=None):
    return [span for span in recording.timeline.rows(*kinds) if name is None or span.name == name]


def names(recording, *kinds):
    return [span.name for span in spans(recording, *kinds)]


def inside(outer, inner):
    return outer.start <= inner.start and inner.end <= outer.end


def host_bytes(mib=1):
    return torch.ones(mib * MIB, dtype=torch.uint8)


def test_r17_backward_runs_on_the_stream_of_the_forward():
    with lv.record(on="a100") as recording:
        weight = torch.rand(64, 64, device="cuda", requires_grad=True)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            loss = (weight @ weight).sum()
        torch.cuda.current_stream().wait_stream(side)
        loss.backward()
    backward = [span for span in spans(recording, Kind.COMPUTE) if span.name == "mm"][1:]
    assert len(backward) == 2
    assert {span.lane.number for span in backward} == {13}


def test_r17_after_backward_the_callers_stream_is_ordered_after_it():
    with lv.record(on="a100") as recording:
        weight = torch.rand(64, 64, device="cuda", requires_grad=True)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            loss = (weight * 2).sum()
            loss.register_hook(lambda gradient: torch.cuda._sleep(LONG))
        loss.backward()
        weight.grad.neg_()
    *_, slow = [span for span in spans(recording, Kind.COMPUTE) if span.lane.number == 13]
    (reader,) = spans(recording, Kind.COMPUTE, name="neg_")
    assert reader.lane.number == 7
    assert reader.start >= slow.end


def test_r25_item_waits_for_the_current_stream_only():
    with lv.record(on="a100") as recording:
        value, side = torch.ones((), device="cuda"), torch.cuda.Stream()
        with torch.cuda.stream(side):
            torch.cuda._sleep(LONG)
        torch.cuda._sleep(LONG // 4)
        assert value.item() == 1.0
    (long, short) = sorted(spans(recording, Kind.COMPUTE, name="spin_kernel"), key=lambda span: -span.duration)
    (wait,) = [span for span in spans(recording, Kind.WAIT) if span.cause == Cause.SYNCHRONIZE]
    assert short.end < wait.end < long.end
    assert names(recording, Kind.API)[-2:] == ["cudaMemcpyAsync", "cudaStreamSynchronize"]
    assert spans(recording, Kind.COPY_D2H)[0].nbytes == 4


READERS = {
    "item": lambda x: x[0].item(),
    "float": lambda x: float(x[0]),
    "bool": lambda x: bool(x[0] > 0),
    "cpu": lambda x: x.cpu(),
    "tolist": lambda x: x.tolist(),
    "print": lambda x: repr(x),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "mask in place": lambda x: x.__setitem__(x > 0, torch.ones(4, device="cuda")),
    "unique": lambda x: x.unique(),
    "masked_select": lambda x: x.masked_select(x > 0),
    "equal": lambda x: torch.equal(x, x),
    "iterate over values": lambda x: [int(entry) for entry in x],
    "repeat_interleave": lambda x: x.repeat_interleave(torch.tensor([1, 2, 1, 1], device="cuda")),
}


@pytest.mark.parametrize("name", READERS)
def test_r25_reading_a_value_waits(name):
    with lv.record(on="a100") as recording:
        x = torch.ones(4, device="cuda")
        torch.cuda._sleep(LONG)
        before = time.perf_counter()
        READERS[name](x)
        took = time.perf_counter() - before
    assert took > 0.0009
    assert any(span.duration > 900_000 for span in spans(recording, Kind.WAIT))


def test_r25_work_that_needs_no_value_does_not_wait():
    with lv.record(on="a100") as recording:
        x = torch.ones(4, device="cuda")
        torch.cuda._sleep(LONG)
        x.add_(1)[:2].mul(x.sum()).where(x[:2] > 0, x[2:])
        x[torch.tensor([0, 1], device="cuda")] = 3.0
        x.is_cuda, x.shape, x.numel(), len(x), x.dtype, x.device
    # the one wait is for the index list, a blocking copy from Python
    assert [span.source for span in spans(recording, Kind.WAIT) if span.duration > 900_000] == [
        span.source for span in spans(recording, Kind.API, name="cudaStreamSynchronize")
    ]


def test_r26_sync_debug_mode_warns_and_raises_at_explicit_synchronisation():
    with lv.record(on="a100"):
        x, host = torch.ones(4, device="cuda"), torch.ones(4)
        torch.cuda.set_sync_debug_mode("warn")
        for call in (lambda: x.sum().item(), lambda: x.nonzero(), lambda: x.cpu(), lambda: host.to("cuda")):
            with pytest.warns(UserWarning, match="synchronizing CUDA operation"):
                call()
        torch.cuda.set_sync_debug_mode(2)
        with pytest.raises(RuntimeError, match="synchronizing CUDA operation"):
            x.sum().item()
        x.add(1)
        assert torch.cuda.get_sync_debug_mode() == 2
        torch.cuda.set_sync_debug_mode("default")
        x.sum().item()


def test_r26_a_pageable_copy_that_blocks_escapes_it_and_is_in_the_timeline():
    with lv.record(on="a100") as recording:
        torch.cuda.set_sync_debug_mode("error")
        host_bytes(8).to("cuda", non_blocking=True)
    assert Cause.STAGING in {span.cause for span in spans(recording, Kind.WAIT)}


def test_r27_time_without_a_synchronise_is_the_time_of_the_enqueue():
    with lv.record(on="a100"):
        start = time.perf_counter()
        torch.cuda._sleep(LONG)
        enqueued = time.perf_counter()
        torch.cuda.synchronize()
        done = time.perf_counter()
    assert enqueued - start < 0.0001 < 0.001 < done - start


def test_r27_launch_blocking_makes_each_launch_wait(monkeypatch):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    with lv.record(on="a100"):
        start = time.perf_counter()
        torch.cuda._sleep(LONG)
        assert time.perf_counter() - start > 0.001


def test_r28_a_copy_uses_the_current_stream():
    with lv.record(on="a100") as recording:
        source, side = host_bytes().pin_memory(), torch.cuda.Stream()
        with torch.cuda.stream(side):
            source.to("cuda", non_blocking=True)
        source.to("cuda", non_blocking=True)
    assert [span.lane.number for span in spans(recording, Kind.COPY_H2D)] == [13, 7]


@pytest.mark.parametrize("pinned", [True, False])
def test_r29_r40_memory_of_a_running_copy_is_not_reused_if_it_is_pinned(pinned):
    """Dropping the pinned source of a running copy is safe: its memory comes back when the copy is over."""
    with lv.record(on="a100") as recording:
        moved = host_bytes(16).pin_memory().to("cuda", non_blocking=True)  # 0.7 ms
        again = host_bytes(16).pin_memory()  # must not get the same memory yet
        del again
        torch.cuda.synchronize()
        host_bytes(16).pin_memory()
        assert moved.sum().item() == 16 * MIB
    assert len(spans(recording, Kind.API, name="cudaHostAlloc")) == 2


def test_r30_a_blocking_copy_waits_for_all_earlier_work_of_its_stream_and_for_no_other():
    with lv.record(on="a100") as recording:
        source, side = host_bytes().pin_memory(), torch.cuda.Stream()
        torch.empty(MIB, dtype=torch.uint8, device="cuda")  # so that no cudaMalloc synchronises below
        with torch.cuda.stream(side):
            torch.cuda._sleep(4 * LONG)
        torch.cuda._sleep(LONG)
        source.to("cuda")
    wait = spans(recording, Kind.WAIT)[-1]
    other, own = spans(recording, Kind.COMPUTE, name="spin_kernel")
    assert wait.cause == Cause.SYNCHRONIZE
    assert own.end < wait.end < other.end
    (copy,) = spans(recording, Kind.COPY_H2D)
    assert copy.pinned
    assert copy.start >= own.end


def test_r31_a_change_of_dtype_is_made_on_the_gpu_if_non_blocking():
    with lv.record(on="a100") as recording:
        moved = host_bytes().pin_memory().to("cuda", torch.float32, non_blocking=True)
        assert moved.dtype == torch.float32
    (copy,) = spans(recording, Kind.COPY_H2D)
    assert (copy.nbytes, copy.pinned) == (MIB, True)
    assert spans(recording, Kind.COMPUTE, name="copy_")[0].start >= copy.end


def test_r31_a_change_of_dtype_is_made_on_the_cpu_if_blocking_and_loses_the_pinned_path():
    with lv.record(on="a100") as recording:
        moved = host_bytes().pin_memory().to("cuda", torch.float32)
        assert moved.sum().item() == MIB
    (copy,) = spans(recording, Kind.COPY_H2D)
    assert (copy.nbytes, copy.pinned) == (4 * MIB, False)
    assert spans(recording, Kind.OPERATOR, name="aten::_to_copy")


def test_r31_what_is_not_dense_goes_through_a_pageable_temporary():
    with lv.record(on="a100") as recording:
        source = torch.arange(4 * MIB, dtype=torch.uint8).reshape(2048, 2048).pin_memory()
        assert torch.equal(source[:, ::2].to("cuda", non_blocking=True).cpu(), source[:, ::2])
        assert torch.equal(source.t().to("cuda").cpu(), source.t())  # dense, in another order
    columns, transposed = spans(recording, Kind.COPY_H2D)
    assert not columns.pinned
    assert transposed.pinned


@pytest.mark.filterwarnings("ignore::loaderviz.HazardWarning")  # the race is meant
def test_r32_to_cpu_non_blocking_gives_pinned_memory_that_is_not_there_yet():
    with lv.record(on="a100") as recording:
        values = torch.ones(MIB, device="cuda")
        early = values.to("cpu", non_blocking=True)
        view = early.numpy()
        assert early.is_pinned()
        assert early.isnan().all()
        assert view[0] != view[0]
        torch.cuda.synchronize()
        assert early.sum().item() == MIB
        assert view.sum() == MIB
    (copy,) = spans(recording, Kind.COPY_D2H)
    assert copy.pinned


def test_r32_copy_into_pageable_memory_blocks():
    with lv.record(on="a100") as recording:
        values, target = torch.ones(MIB, device="cuda"), torch.zeros(MIB)
        target.copy_(values, non_blocking=True)
        assert target.sum().item() == MIB
    (copy,) = spans(recording, Kind.COPY_D2H)
    assert not copy.pinned
    assert any(wait.end == copy.end for wait in spans(recording, Kind.WAIT))


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.cuda.CUDAGraph(),
        lambda: torch.cuda.graph(None),
        lambda: torch.cuda.make_graphed_callables(torch.nn.Linear(1, 1), ()),
    ],
)
def test_r34_cuda_graphs_are_refused(call):
    with lv.record(on="a100"), pytest.raises(NotModelledError, match="CUDA graphs"):
        call()


@pytest.mark.filterwarnings("ignore::loaderviz.HazardWarning")  # the race is meant
@pytest.mark.parametrize("record", [True, False])
def test_r36_record_stream_keeps_a_dropped_block_until_the_other_stream_is_done(record):
    with lv.record(on="a100") as recording:
        source, side, main = host_bytes(32).pin_memory(), torch.cuda.Stream(), torch.cuda.current_stream()
        with torch.cuda.stream(side):
            moved = source.to("cuda", non_blocking=True)
        main.wait_stream(side)
        torch.cuda._sleep(LONG)
        moved.add(1)
        if record:
            moved.record_stream(main)
        del moved
        with torch.cuda.stream(side):
            again = source.to("cuda", non_blocking=True)
        assert again.is_cuda
        reserved = torch.cuda.memory_reserved()
    assert reserved == (96 if record else 64) * MIB  # the sum's memory is in it
    records = spans(recording, Kind.API, name="cudaEventRecord")
    assert len(records) == (2 if record else 1)


@pytest.mark.filterwarnings("ignore::loaderviz.HazardWarning")  # the race is meant
@pytest.mark.parametrize("waits", [True, False])
def test_r37_writing_memory_of_a_busy_stream_needs_a_wait_too(waits):
    with lv.record(on="a100") as recording:
        source, side, main = host_bytes(4).pin_memory(), torch.cuda.Stream(), torch.cuda.current_stream()
        warm = torch.empty_like(source, device="cuda")
        torch.cuda._sleep(LONG)
        warm.add_(1)  # still to be run
        del warm
        target = torch.empty_like(source, device="cuda")  # the same memory
        if waits:
            side.wait_stream(main)
        with torch.cuda.stream(side):
            target.copy_(source, non_blocking=True)
    (reader,) = spans(recording, Kind.COMPUTE, name="add_")
    (copy,) = spans(recording, Kind.COPY_H2D)
    assert (copy.start >= reader.end) == waits


def test_r40_the_dropped_pinned_temporary_still_gives_the_right_numbers():
    with lv.record(on="a100"):
        moved = [(torch.ones(MIB) * k).pin_memory().cuda(non_blocking=True) for k in range(4)]
        assert [entry.mean().item() for entry in moved] == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.filterwarnings("ignore::loaderviz.HazardWarning")  # the race is meant
def test_r42_a_pinned_source_that_is_refilled_too_early_gives_the_new_numbers():
    with lv.record(on="a100"):
        source = torch.ones(MIB).pin_memory()
        early = source.to("cuda", non_blocking=True)
        source.fill_(2)
        late = source.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        source.fill_(3)
        assert (early.mean().item(), late.mean().item()) == (2.0, 2.0)


def test_r43_pin_memory_copies_blocks_the_host_and_returns_itself_when_pinned():
    with lv.record(on="a100") as recording:
        source = host_bytes(8)
        before = time.perf_counter()
        pinned = source.pin_memory()
        assert time.perf_counter() - before > 0.001  # page-locking, and 8 MiB copied by one thread
        assert not source.is_pinned()
        assert pinned.is_pinned()
        assert pinned.pin_memory() is pinned
        assert pinned[2:].is_pinned()
        pinned[0] = 7
        assert source[0] == 1
    assert len(spans(recording, Kind.PIN)) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_r45_pin_thread_with_workers_main_thread_without(workers):
    with lv.record(on="a100") as recording:
        dataset = TensorDataset(torch.arange(32.0))
        for (batch,) in DataLoader(dataset, 4, pin_memory=True, num_workers=workers):
            assert batch.is_pinned()
            assert batch.to("cuda", non_blocking=True).sum().item() == batch.sum().item()
    pins = spans(recording, Kind.PIN)
    assert len(pins) == 8
    assert {span.lane.name for span in pins} == {"pin thread" if workers else "main"}
    fetches = spans(recording, Kind.FETCH)
    assert {span.lane.name for span in fetches} == ({"worker 0", "worker 1"} if workers else {"main"})
    assert all(copy.pinned for copy in spans(recording, Kind.COPY_H2D))


@pytest.mark.parametrize("factor", [1, 3])
def test_r45_no_more_than_prefetch_factor_batches_a_worker_are_made_ahead(factor):
    """Batch k is ordered when batch k - workers * factor is handed out."""
    with lv.record(on="a100") as recording:
        for _ in DataLoader(TensorDataset(torch.arange(24.0)), 2, num_workers=2, prefetch_factor=factor):
            time.sleep(1)
    fetches = sorted(spans(recording, Kind.FETCH), key=lambda span: span.batch)
    steps = [span for span in spans(recording, Kind.OPERATOR) if span.name == "DataLoader hand-out"]
    for fetch in fetches[2 * factor :]:
        assert fetch.start >= steps[fetch.batch - 2 * factor].end
    for step, fetch in zip(steps, fetches[2 * factor :], strict=False):
        assert fetch.start < step.end + 10**9
