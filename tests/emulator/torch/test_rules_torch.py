"""The rules of PyTorch on CUDA, each a test that names it; the device's own rules are in test_rules.py."""

import time
from dataclasses import replace

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import loaderviz as lv
from loaderviz.emulator.hardware import Gpu, Kernel
from loaderviz.emulator.runtime import CudaError
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


@pytest.mark.parametrize(("waits", "page_locked"), [(False, 2), (True, 1)])
def test_r40_pinned_memory_freed_during_its_copy_is_given_out_again_after_it(waits, page_locked):
    with lv.record(on="a100", copies="eager") as recording:
        target, pinned = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda"), host_bytes(8).pin_memory()
        target.copy_(pinned, non_blocking=True)
        del pinned
        if waits:
            torch.cuda.synchronize()
        torch.empty(8 * MIB, dtype=torch.uint8, pin_memory=True)
    assert names(recording, Kind.API).count("cudaHostAlloc") == page_locked


def test_r17_backward_runs_on_the_stream_of_the_forward_and_the_callers_stream_comes_after_it():
    with lv.record(on="a100") as recording:
        weight = torch.rand(64, 64, device="cuda", requires_grad=True)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            product = weight @ weight
            product.register_hook(lambda gradient: torch.cuda._sleep(LONG))
            loss = product.sum()
        loss.backward()
        weight.grad.neg_()
    _, *backward = spans(recording, Kind.COMPUTE, name="mm")
    (reader,) = spans(recording, Kind.COMPUTE, name="neg_")
    assert [span.lane.number for span in (*backward, reader)] == [13, 13, 7]
    assert reader.start >= backward[-1].end


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
        x[torch.zeros(2, dtype=torch.int64, device="cuda")] = x[2:].clone()
        x.is_cuda, x.shape, x.numel(), len(x), x.dtype, x.device
    assert not spans(recording, Kind.WAIT) and not spans(recording, Kind.API, name="cudaStreamSynchronize")


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


PATHS = {  # what is made of pinned bytes, how it is sent, and what of it goes over the link: bytes, pinned
    "a change of dtype is made on the GPU": (lambda x: x, (torch.float32, True), (4 * MIB, True)),
    "if blocking, on the CPU, and loses the pinned path": (lambda x: x, (torch.float32, False), (16 * MIB, False)),
    "what is not dense goes through a pageable temporary": (lambda x: x[:, ::2], (torch.uint8, True), (2 * MIB, False)),
    "dense, in another order": (lambda x: x.t(), (torch.uint8, False), (4 * MIB, True)),
}


@pytest.mark.parametrize("name", PATHS)
def test_r31_what_is_sent_and_whether_it_stays_pinned(name):
    view, (dtype, non_blocking), expected = PATHS[name]
    with lv.record(on="a100") as recording:
        source = view(torch.arange(4 * MIB, dtype=torch.uint8).reshape(2048, 2048).pin_memory())
        moved = source.to("cuda", dtype, non_blocking=non_blocking)
        assert moved.dtype == dtype and torch.equal(moved.cpu(), source.to(dtype))
    (copy,) = spans(recording, Kind.COPY_H2D)
    assert (copy.nbytes, copy.pinned) == expected
    converted = spans(recording, Kind.COMPUTE, name="copy_")
    assert [kernel.start >= copy.end for kernel in converted] == [True] * (dtype == torch.float32 and non_blocking)


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


def test_r34_a_graph_captures_copies_of_pinned_memory_only():
    with lv.record(on="a100"):
        x, pinned = torch.zeros(4, device="cuda"), torch.ones(4).pin_memory()
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            x.copy_(pinned, non_blocking=True)
        failed = pytest.raises(CudaError, match="previous error during capture")
        with failed, torch.cuda.graph(torch.cuda.CUDAGraph()):
            x.copy_(torch.ones(4), non_blocking=True)


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


# 46 and 47: indexing

ROWS, COLUMNS = [2, 0, 1], [1, 1, 3]
BOOLS = [True, False] * 4
INDEXING = {  # what is done with x, and the copies that it makes: bytes
    "a CPU tensor": (lambda x, mask: x[torch.tensor(ROWS)], [24]),
    "a list": (lambda x, mask: x[ROWS], [24]),
    "a numpy array": (lambda x, mask: x[numpy.array(ROWS)], [24]),
    "two indices": (lambda x, mask: x[ROWS, torch.tensor(COLUMNS)], [24, 24]),
    "pinned memory": (lambda x, mask: x[torch.tensor(ROWS).pin_memory()], [24]),
    "bools, searched on the GPU": (lambda x, mask: x[BOOLS], [8]),
    "a mask, searched on the host": (lambda x, mask: x[torch.tensor(BOOLS)], [32]),
    "small integers": (lambda x, mask: x[torch.tensor(ROWS, dtype=torch.int32)], [12]),
    "into an index": (lambda x, mask: x.__setitem__(ROWS, x[3:6].clone()), [24]),
    "into an index, accumulated": (lambda x, mask: x.index_put_((torch.tensor(ROWS),), x[3:6].clone(), True), [24]),
    "a number into an index": (lambda x, mask: x.__setitem__(ROWS, 3.0), [24, 4]),
    "a whole number": (lambda x, mask: x[3], []),
    "a whole number in a tensor": (lambda x, mask: x[torch.tensor(3)], []),
    "a slice": (lambda x, mask: x[2:4, ::2], []),
    "a number into a mask": (lambda x, mask: x.__setitem__(mask, 3.0), []),
    "a number into a mask of columns": (lambda x, mask: x.t().__setitem__((slice(None), mask), 3.0), []),
    "a tensor of one number into a mask": (lambda x, mask: x.__setitem__(mask, torch.tensor([3.0])), []),
}
WAITS = {"bools, searched on the GPU": 2, "a mask, searched on the host": 0}  # else one for each copy


@pytest.mark.parametrize("name", INDEXING)
def test_r46_an_index_from_the_host_is_moved_by_a_blocking_copy(name):
    """R46, R47: each index in host memory is a copy, and a wait for the stream; others are neither.

    What was searched on the host is sent from pinned memory and waits for nothing.
    """
    index, expected = INDEXING[name]
    values = torch.rand(8, 4)
    with lv.record(on="a100") as recording:
        x = values.to("cuda")
        mask = x[:, 0] > 0.5
        host_mask = mask.cpu()
        torch.cuda.synchronize()
        torch.cuda._sleep(LONG)
        result = index(x, mask)
        result = (x if result is None else result).cpu()
    rows = values.clone()
    with lv.record(on="a100"):  # where a CPU tensor can be pinned
        other = index(rows, host_mask)
    assert torch.equal(result, rows if other is None else other)
    (kernel,) = spans(recording, Kind.COMPUTE, name="spin_kernel")
    copies = [span for span in spans(recording, Kind.COPY_H2D) if span.start >= kernel.start]
    memory = "Pinned" if name in ("pinned memory", "a mask, searched on the host") else "Pageable"
    assert [(span.name, span.nbytes) for span in copies] == [(f"Memcpy HtoD ({memory} -> Device)", n) for n in expected]
    *waits, _cpu = [
        span for span in spans(recording, Kind.API, name="cudaStreamSynchronize") if span.end > kernel.start
    ]
    assert len(waits) == WAITS.get(name, len(expected))
    assert all(wait.end >= copy.end and wait.source == copy.source for wait, copy in zip(waits, copies, strict=False))
    found = recording.lints
    assert [(each.kind, each.count) for each in found] == [("hidden-sync", len(expected))] * bool(waits)
    assert not waits or ("R46" in found[0].rule and found[0].first.source == copies[0].source)


def test_r47_a_number_into_a_mask_is_a_fill_forward_and_backward():
    with lv.record(on="a100") as recording:
        x = torch.ones(8, device="cuda", requires_grad=True)
        y = x * 2
        torch.cuda.synchronize()
        y[y.detach() > 1] = 0.0
        y.sum().backward()
        gradient = x.grad.tolist()
    assert gradient == [0.0] * 8
    kernels = names(recording, Kind.COMPUTE)
    assert {"masked_fill_", "masked_fill"} <= set(kernels) and not {"nonzero", "index_put_", "index_put"} & set(kernels)
    assert len(spans(recording, Kind.API, name="cudaStreamSynchronize")) == 1  # tolist


def test_r46_index_select_takes_no_index_from_the_host_and_the_host_no_index_from_the_device():
    with lv.record(on="a100"):
        x, rows = torch.ones(8, device="cuda"), torch.tensor(ROWS)
        host = torch.zeros(8)
        for refused, told in (
            (lambda: x.index_select(0, rows), "same device"),
            (lambda: x.__setitem__(rows, torch.ones(3)), "same device"),
            (lambda: host[rows.to("cuda")], "indices should be either on cpu or on the same device"),
            (lambda: host.__setitem__(rows, x[:3]), "same device"),
        ):
            with pytest.raises(RuntimeError, match=told):
                refused()
        host[rows] = x[0]
        assert not host.is_cuda and host.tolist() == [1.0] * 3 + [0.0] * 5


# 48: what a kernel reads and writes


def fused_adam(x, y, unscale):
    """A step on parameters x with gradients y."""
    averages, step = [x.clone(), x.clone()], torch.ones((), device="cuda")
    scale = {"grad_scale": step, "found_inf": step * 0} if unscale else {}
    rates = {"lr": 0.1, "beta1": 0.9, "beta2": 0.9, "weight_decay": 0.0, "eps": 1e-8}
    torch._fused_adam_(
        [x], [y], averages[:1], averages[1:], [], [step], amsgrad=False, maximize=False, **rates, **scale
    )


PASSES = {  # over the bytes of x, read or written
    "zero_": (lambda x, y: x.zero_(), 1),
    "fill_": (lambda x, y: x.fill_(2.0), 1),
    "fill_ by assignment": (lambda x, y: x.__setitem__(slice(None), 2.0), 1),
    "normal_": (lambda x, y: x.normal_(), 1),
    "ones": (lambda x, y: torch.ones_like(x), 1),
    "copy_": (lambda x, y: x.copy_(y), 2),
    "neg": (lambda x, y: x.neg(), 2),
    "neg_": (lambda x, y: x.neg_(), 2),
    "out": (lambda x, y: torch.neg(x, out=y), 2),
    "add_": (lambda x, y: x.add_(y), 3),
    "foreach zero": (lambda x, y: torch._foreach_zero_([x]), 1),
    "foreach copy": (lambda x, y: torch._foreach_copy_([x], [y]), 2),
    "foreach add": (lambda x, y: torch._foreach_add_([x], [y]), 3),
    "fused Adam": (lambda x, y: fused_adam(x, y, unscale=False), 7),  # all four are read, and all but y written
    "fused Adam with a GradScaler": (lambda x, y: fused_adam(x, y, unscale=True), 8),
}


# Every class of kernels moves its bytes at the bandwidth of 1 byte a ns, and nothing else takes time.
PLAIN = replace(
    Gpu.preset("a100"), memory_bandwidth=10**9, fp32=10**6, tf32=10**6,
    kernels=dict.fromkeys(Gpu.preset("a100").kernels, Kernel(0, 1000, 1000)),
)  # fmt: skip


@pytest.mark.parametrize("name", PASSES)
def test_r48_what_is_only_written_counts_once(name):
    change, passes = PASSES[name]
    with lv.record(on=PLAIN) as recording:
        x, y = torch.rand(MIB, device="cuda"), torch.rand(MIB, device="cuda")
        change(x, y)
    *_, kernel = spans(recording, Kind.COMPUTE)
    assert kernel.duration == pytest.approx(passes * 4 * MIB, abs=12)  # numbers, as to fill with, are read, too


@pytest.mark.filterwarnings("ignore::loaderviz.HazardWarning")  # the race is meant
@pytest.mark.parametrize("name", ["zero_", "copy_", "add_"])
def test_r48_a_write_is_still_an_access_and_a_read_only_where_the_operator_reads(name):
    with lv.record(on="a100") as recording:
        x, y, side = torch.rand(MIB, device="cuda"), torch.rand(MIB, device="cuda"), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            x.neg_()
        PASSES[name][0](x, y)
    (hazard,) = recording.hazards
    assert hazard.kind == ("early-read" if name == "add_" else "early-reuse")


@pytest.mark.parametrize("groups", [1, 4, 16])
def test_r48_the_gradients_of_a_grouped_convolution_have_twice_the_flops_of_the_convolution(groups, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # tensor cores would compute whole tiles
    with lv.record(on=PLAIN) as recording:  # arithmetic is so slow that nothing else counts
        x = torch.rand(2, 16, 9, 9, device="cuda", requires_grad=True)
        weight = torch.rand(32, 16 // groups, 3, 3, device="cuda", requires_grad=True)
        torch.nn.functional.conv2d(x, weight, groups=groups).sum().backward()
    forward, backward = (
        sum(span.duration for span in spans(recording, Kind.COMPUTE) if span.name == name)
        for name in ("convolution", "convolution_backward")
    )
    multiply_adds = 2 * 32 * 7 * 7 * 16 // groups * 9
    assert (forward, backward) == (2 * multiply_adds * 1000, 2 * forward)


@pytest.mark.parametrize("graph", [False, True])
def test_r49_a_copy_slows_what_moves_bytes_and_hardly_what_computes(graph):
    def durations(mib):
        with lv.record(on="a100", host="laptop") as recording:
            moves, computes = torch.ones(16 * MIB, device="cuda"), torch.ones(1024, 1024, device="cuda")
            pinned, target = host_bytes(mib).pin_memory(), torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")
            if graph:
                with torch.cuda.graph(captured := torch.cuda.CUDAGraph()):
                    made = [moves.add(1), computes @ computes]
            torch.cuda.synchronize()
            with torch.cuda.stream(torch.cuda.Stream()):
                target.copy_(pinned, non_blocking=True)
            if graph:
                captured.replay()
            else:
                made = [moves.add(1), computes @ computes]
            torch.cuda.synchronize()
        assert len(made) == 2
        return [spans(recording, Kind.COMPUTE, name=name)[-1].duration for name in ("add", "mm")]

    (add, mm), (add_beside, mm_beside) = durations(mib=0), durations(mib=64)
    assert 1.01 < add_beside / add < 1.016
    assert mm <= mm_beside < 1.004 * mm
