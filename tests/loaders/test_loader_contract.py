"""What the three copying loaders promise alike: order, length, errors in their place, nothing left open."""

import contextlib
import multiprocessing
import threading
import weakref
from functools import partial

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, TensorDataset

from loaderviz.loaders import LIFETIMES, BlockingLoader, PinnedLoader, PrefetchLoader, ResidentLoader
from loaderviz.loaders import base as marks

from .conftest import Source

DEPTHS = (0, 1, 3, 20)
MAKERS = {
    "blocking": BlockingLoader,
    "pinned": PinnedLoader,
    **{
        f"prefetch-{depth}-{lifetime}": partial(PrefetchLoader, depth=depth, lifetime=lifetime)
        for depth in DEPTHS
        for lifetime in LIFETIMES
    },
}


@pytest.fixture(params=list(MAKERS))
def make(request):
    return MAKERS[request.param]


def values(batch):
    return [part.tolist() for part in batch]


def test_every_batch_in_order_with_its_values_in_each_of_two_epochs(make, device):
    source = Source(7)
    loader = make(source, device)
    for _ in range(2):
        got = [({part.device.type for part in batch}, values(batch)) for batch in loader]
        assert got == [({device.type}, values(source.batch(k))) for k in range(7)]
    assert source.open == 0


@pytest.mark.parametrize("fail_at", [0, 1, 3, 6])
def test_an_error_comes_after_exactly_the_batches_before_it(make, device, fail_at):
    source = Source(7, fail_at=fail_at)
    got = []
    loader = make(source, device)
    with pytest.raises(ZeroDivisionError, match=f"batch {fail_at} is broken"):
        for batch in loader:
            got.append(values(batch))
    assert got == [values(source.batch(k)) for k in range(fail_at)]
    assert loader.batches_handed_out == fail_at
    assert source.open == 0
    source.fail_at = None
    assert len(list(loader)) == 7, "the loader works again after an error"


@pytest.mark.slow
def test_an_error_once_caught_keeps_nothing_alive(make, uncollected):
    """A DataLoader's workers end with its iterator: a cycle through the traceback would keep both alive."""

    def failing():
        yield torch.zeros(1)
        raise ZeroDivisionError

    iterators = []

    class Fresh:
        def __iter__(self):
            iterator = failing()
            iterators.append(weakref.ref(iterator))
            return iterator

    with contextlib.suppress(ZeroDivisionError):
        list(make(Fresh(), torch.device("cpu")))
    assert [reference() for reference in iterators] == [None]


def test_an_empty_source_yields_nothing(make, device):
    assert list(make([], device)) == []
    assert list(make(iter(()), device)) == []


def test_len_passes_through_and_is_a_type_error_without(make):
    assert len(make(Source(5), torch.device("cpu"))) == 5
    with pytest.raises(TypeError, match="len"):
        len(make((batch for batch in ()), torch.device("cpu")))


def test_a_break_closes_the_source_at_once(make, device):
    source = Source(60)
    loader = make(source, device)
    for _batch in loader:
        assert source.open == 1
        break
    assert source.open == 0
    assert len(list(loader)) == 60


def test_a_new_iteration_cancels_the_old_one(make, device):
    source = Source(60)
    loader = make(source, device)
    old = iter(loader)
    next(old)
    new = iter(loader)
    assert source.open == 0
    assert values(next(new)) == values(source.batch(0))
    assert source.open == 1
    with pytest.raises(RuntimeError, match="cancelled"):
        next(old)
    assert len(list(new)) == 59
    iter(loader)
    assert list(new) == []  # it stays ended when the loader goes on


def test_close_ends_the_iteration_and_the_loader_can_be_used_again(make, device):
    source = Source(7)
    loader = make(source, device)
    running = iter(loader)
    next(running)
    loader.close()
    loader.close()
    assert source.open == 0
    with pytest.raises(RuntimeError, match="closed"):
        next(running)
    assert len(list(loader)) == 7


@pytest.mark.parametrize("loader_type", [BlockingLoader, PinnedLoader, PrefetchLoader])
def test_a_break_leaves_no_worker_process_and_no_thread(loader_type):
    threads = set(threading.enumerate())
    processes = len(multiprocessing.active_children())
    data = TensorDataset(torch.arange(40))
    loader = loader_type(DataLoader(data, 4, num_workers=1), "cpu")
    for _ in range(2):
        for _batch in loader:
            assert len(multiprocessing.active_children()) == processes + 1
            break
    assert len(multiprocessing.active_children()) == processes
    for thread in set(threading.enumerate()) - threads:
        thread.join(timeout=10)  # the feeder of a closed queue ends by itself, a moment later
        assert not thread.is_alive(), thread


def test_the_loader_keeps_no_reference_to_a_batch_handed_out(make):
    batches = [torch.zeros(1) for _ in range(3)]
    seen = [weakref.ref(batch) for batch in batches]
    loader = make(iter(batches), torch.device("cpu"))
    running = iter(loader)
    batch = next(running)
    batches.clear()
    assert seen[0]() is batch
    del batch
    assert seen[0]() is None


def test_at_most_depth_batches_are_drawn_beyond_the_one_handed_out(device):
    for depth in DEPTHS:
        source = Source(50)
        for k, _batch in enumerate(PrefetchLoader(source, device, depth=depth)):
            assert source.drawn == min(50, k + 1 + depth)


def test_a_keyboard_interrupt_is_not_put_off(device):
    def interrupted():
        yield torch.zeros(1)
        yield torch.zeros(1)
        raise KeyboardInterrupt

    running = iter(PrefetchLoader(interrupted(), device, depth=3))
    with pytest.raises(KeyboardInterrupt):
        next(running)


def test_a_transform_sees_each_batch_on_the_device_and_its_error_has_its_place(device):
    def transform(batch):
        images, labels = batch
        assert images.device.type == device.type
        if labels[0] == 120:  # batch 3
            raise ArithmeticError("bad label")
        return images / 2, labels

    for depth in DEPTHS:
        source, got = Source(7), []
        with pytest.raises(ArithmeticError, match="bad label"):
            for images, _labels in PrefetchLoader(source, device, depth=depth, transform=transform):
                got.append(images.tolist())
        assert got == [(source.batch(k)[0] / 2).tolist() for k in range(3)]
        assert source.open == 0


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"depth": -1}, ValueError, "depth must be at least 0, got -1"),
        ({"depth": 1.5}, TypeError, "depth must be a whole number, got 1.5"),
        ({"depth": True}, TypeError, "got True"),
        ({"lifetime": "forever"}, ValueError, "'record_stream', 'wait', 'consumer', 'ring', got 'forever'"),
        ({"transform": 3}, TypeError, "transform must be callable, got int"),
        ({"device": "toaster"}, RuntimeError, "toaster"),
        ({"loader": 3}, TypeError, "must be iterable, got int"),
    ],
)
def test_bad_arguments_are_named(arguments, error, match):
    with pytest.raises(error, match=match):
        PrefetchLoader(**{"loader": [], "device": "cpu", **arguments})


def test_without_cuda_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for loader in (BlockingLoader([1]), PinnedLoader([1]), PrefetchLoader([1])):
        with pytest.raises(RuntimeError, match="Pass device='cpu', or run the loop inside"):
            next(iter(loader))


def test_on_the_cpu_nothing_is_counted_as_a_pageable_copy(make):
    loader = make(Source(3), torch.device("cpu"))
    list(loader)
    assert loader.pageable_copies == 0


# Marks: who listens learns which batch the work is for; a trace shows it by name


DATA = torch.arange(10), torch.arange(10)
LOADERS = {
    "blocking": lambda: BlockingLoader(Source(3), "cpu"),
    "pinned": lambda: PinnedLoader(Source(3), "cpu"),
    "prefetch-0": lambda: PrefetchLoader(Source(3), "cpu", depth=0),
    "prefetch-2": lambda: PrefetchLoader(Source(3), "cpu", depth=2),
    "resident": lambda: ResidentLoader(DATA, 4, device="cpu"),
    "slices": lambda: ResidentLoader(DATA, 4, "batches", device="cpu"),
}


def expected_of(name):
    return [(0, 4), (1, 4), (2, 2)] if name in ("resident", "slices") else [(0, 4), (1, 4), (2, 4)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LOADERS)
def test_each_batch_has_one_named_range_in_a_trace(name):
    loader = LOADERS[name]()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _batch in loader:
            torch.ones(1)
    names = [event.name for event in profiler.events()]
    ranges = [event for event in names if event.startswith("batch ")]
    if name == "slices":  # the short batch can come anywhere
        assert sorted(text.split(": ")[1] for text in ranges) == ["2 samples", "4 samples", "4 samples"]
    else:
        assert ranges == [f"batch {k}: {n} samples" for k, n in expected_of(name)]
    prefetches = [event for event in names if event.startswith("prefetch of batch ")]
    assert prefetches == ([f"prefetch of batch {k}" for k in range(3)] if name == "prefetch-2" else [])


@pytest.mark.filterwarnings("ignore")
def test_the_gather_of_a_resident_batch_lies_in_its_range():
    loader = ResidentLoader(DATA, 4, device="cpu")
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _batch in loader:
            pass
    gathers = [event for event in profiler.events() if event.name == "aten::index_select"]
    assert [event.cpu_parent.name for event in gathers] == [
        f"batch {k}: {n} samples" for k, n in expected_of("resident") for _ in DATA
    ]


def test_nobody_listens_by_default():
    assert marks.on_batch is None and marks.on_prefetch is None and not marks.listening()
    assert marks.handing_out(0, 1) is marks.prefetching(1), "the same empty context: nothing is built"
