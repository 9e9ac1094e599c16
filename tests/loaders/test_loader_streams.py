"""On a device with streams: no race at any depth and lifetime, one stream per loader, honest counts."""

import contextlib
import gc
import itertools
from functools import partial

import pytest
import torch

from loaderviz import record
from loaderviz.loaders import LIFETIMES, BlockingLoader, PinnedLoader, PrefetchLoader, ResidentLoader
from loaderviz.timeline import Kind

from .conftest import GPU, Source

with_streams = pytest.mark.parametrize("device", ["emulated", GPU], indirect=True)

DEPTHS = (0, 1, 2, 4)


def train(batches, steps_of_work=3):
    """Sums over each batch after some work on it; the host never waits inside, so it runs ahead of the device."""
    results = []
    for images, labels in batches:
        x = images.float()
        for _ in range(steps_of_work):
            x = x @ x.T @ x / 64.0
        results.append(x.sum() + labels.sum())
        del images, labels, x
    return [result.item() for result in results]


class Matrices(Source):
    def batch(self, index):
        image = torch.full((16, 16), 0.25) + torch.eye(16) * index / 8
        parts = image, torch.arange(16) + index
        return tuple(part.pin_memory() for part in parts) if self.pinned else parts


@with_streams
@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("lifetime", LIFETIMES)
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("transform", [None, lambda batch: (batch[0] * 2 - 0.25, batch[1])], ids=["", "transform"])
def test_every_depth_and_lifetime_computes_what_the_blocking_loop_does(device, transform, depth, lifetime, pinned):
    expected = train(map(transform or tuple, BlockingLoader(Matrices(9), device)))
    source = Matrices(9, pinned=pinned)
    loader = PrefetchLoader(source, device, depth=depth, lifetime=lifetime, transform=transform)
    for _ in range(2):
        assert train(loader) == expected
    assert loader.pageable_copies == (0 if pinned else 2 * 2 * 9)


@pytest.mark.slow
@with_streams
@pytest.mark.parametrize("lifetime", LIFETIMES)
def test_a_break_with_copies_under_way_harms_nobody(device, lifetime):
    loader = PrefetchLoader(Matrices(9, pinned=True), device, depth=3, lifetime=lifetime)
    expected = train(BlockingLoader(Matrices(9), device))
    for _ in range(3):
        for _batch in loader:
            break
        gc.collect()  # the batches in flight are gone for certain, and their memory is handed out again
        fresh = [torch.zeros(16, 16, device=device) for _ in range(4)]  # where a copy may still be under way
        assert [(each + 1).sum().item() for each in fresh] == [256] * 4
    assert train(loader) == expected


MAKERS = {
    "blocking": BlockingLoader,
    "pinned": PinnedLoader,
    **{
        f"{name}, {how}": partial(PrefetchLoader, lifetime=name, transform=transform)
        for name in LIFETIMES
        for how, transform in (("plain", None), ("transform", lambda batch: [part * 2 for part in batch]))
    },
}


@pytest.mark.slow
@with_streams
@pytest.mark.parametrize("leave", ["break", "the end", "an error"])
@pytest.mark.parametrize("name", MAKERS)
def test_memory_comes_back_at_once_without_garbage_collection(device, name, leave, uncollected):
    """A batch in a cycle of references would keep its memory until Python next looks for cycles."""
    source = Matrices(6, pinned=True, fail_at=4 if leave == "an error" else None)
    loader = MAKERS[name](source, device)
    before = torch.cuda.memory_allocated()
    for _ in range(2):
        with contextlib.suppress(ZeroDivisionError):
            for batch in loader:
                del batch
                if leave == "break":
                    break
        if "ring" in name:
            loader.close()  # its buffers stay for the next epoch, else
        assert torch.cuda.memory_allocated() == before


def kept(loader, steps):
    """Read each batch again `steps` steps after its own, and compare."""
    window = []
    for k, (images, _labels) in enumerate(loader):
        window.append((k, images))
        if len(window) > steps:
            index, old = window.pop(0)
            assert old.cpu().tolist() == Matrices(1).batch(index)[0].tolist()


@with_streams
@pytest.mark.parametrize("lifetime", LIFETIMES)
@pytest.mark.parametrize("depth", DEPTHS)
def test_a_batch_that_is_kept_stays_unchanged_in_a_ring_for_depth_further_steps(device, depth, lifetime):
    steps = depth if lifetime == "ring" else depth + 3
    kept(PrefetchLoader(Matrices(14, pinned=True), device, depth=depth, lifetime=lifetime), steps)


@pytest.mark.filterwarnings("ignore::loaderviz.HazardWarning")  # the race is meant
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_ring_keeps_a_batch_not_longer_which_is_reported(depth):
    with record(on="a100") as recording, pytest.raises(AssertionError):
        kept(PrefetchLoader(Matrices(14, pinned=True), "cuda", depth=depth, lifetime="ring"), steps=depth + 1)
    assert {hazard.kind for hazard in recording.hazards} == {"early-read"}


@with_streams
def test_a_ring_takes_a_shorter_last_batch_and_names_one_that_does_not_fit(device):
    short = [torch.ones(4, 2), torch.ones(4, 2), torch.ones(3, 2) * 2]
    got = [batch.tolist() for batch in PrefetchLoader(short, device, depth=1, lifetime="ring")]
    assert got == [part.tolist() for part in short]
    # Depth 1 has three buffers: the fourth batch is the first to meet one that is there already.
    wide = [torch.ones(4, 2)] * 3 + [torch.ones(4, 3)]
    running = iter(PrefetchLoader(wide, device, depth=1, lifetime="ring"))
    assert [next(running).shape for _ in range(3)] == [(4, 2)] * 3
    with pytest.raises(ValueError, match=r"\(4, 3\) torch.float32, its buffer \(4, 2\).*lifetime='consumer'"):
        next(running)


class Movable:
    """Moves itself and cannot be recorded on a stream."""

    def __init__(self, tensor):
        self.tensor = tensor

    def to(self, device, non_blocking=False):
        return Movable(self.tensor.to(device, non_blocking=non_blocking))


@with_streams
def test_record_stream_refuses_what_it_cannot_protect(device):
    with pytest.raises(TypeError, match=r"cannot protect a Movable.*lifetime='wait'"):
        next(iter(PrefetchLoader([Movable(torch.ones(2))], device, lifetime="record_stream")))


@pytest.mark.parametrize("lifetime", LIFETIMES)
def test_one_stream_for_all_epochs(lifetime):
    with record(on="a100") as recording:
        loader = PrefetchLoader(Matrices(3, pinned=True), "cuda", lifetime=lifetime)
        for _ in range(5):
            train(loader)
            loader.close()
    assert {copy.lane.number for copy in recording.timeline.rows(Kind.COPY_H2D)} == {13}  # the first of the pool


@with_streams
@pytest.mark.parametrize("pattern", ["01", "0011", "0001111011", "011200122"])
@pytest.mark.parametrize("how", ["plain", "transform", "movable"])
@pytest.mark.parametrize("lifetime", LIFETIMES)
@pytest.mark.parametrize("depth", [1, 2])
def test_the_consumer_may_change_its_stream_between_two_batches(device, depth, lifetime, how, pattern):
    """A copy is issued while one stream is current, its batch is used on another, dropped, and its memory reused."""
    if how == "movable" and lifetime == "record_stream":
        pytest.skip("record_stream refuses what it cannot protect")
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    source = [torch.full((64,), float(k)).pin_memory() for k in range(24)]
    batches = [Movable(tensor) for tensor in source] if how == "movable" else source
    transform = (lambda batch: batch * 2) if how == "transform" else None
    running = iter(PrefetchLoader(batches, device, depth=depth, lifetime=lifetime, transform=transform))
    totals = []
    for k in range(len(source)):
        with torch.cuda.stream(streams[int(pattern[k % len(pattern)])]):
            batch = next(running)
            torch.cuda._sleep(300_000)
            totals.append((batch.tensor if how == "movable" else batch).sum())
            del batch
        for stream in streams:
            with torch.cuda.stream(stream):
                torch.empty(64, device=device).fill_(-1)  # a model's own memory: perhaps what the batch had
    torch.cuda.synchronize()
    factor = 2 if how == "transform" else 1
    assert [total.item() for total in totals] == [64.0 * k * factor for k in range(len(source))]


@with_streams
@pytest.mark.parametrize(("pinned", "counted"), [(True, 0), (False, 18)])
def test_a_pinned_loader_pins_and_counts_what_came_pageable(device, pinned, counted):
    loader = PinnedLoader(Matrices(9, pinned=pinned), device)
    assert train(loader) == train(BlockingLoader(Matrices(9), device))
    assert loader.pageable_copies == counted


@pytest.mark.parametrize(("make", "pinned"), [(PinnedLoader, True), (BlockingLoader, False)])
def test_what_a_pinned_loader_copies_is_pinned(make, pinned):
    with record(on="a100") as recording:
        list(make(Source(3)))
    assert [copy.pinned for copy in recording.timeline.rows(Kind.COPY_H2D)] == [pinned] * 6


@with_streams
@pytest.mark.parametrize("pattern", ["01", "0011", "0000111122220", "011200122"])
@pytest.mark.parametrize("shuffle", ["samples", "blocks", "batches", None])
@pytest.mark.parametrize("method", ["gather", "permute"])
def test_a_resident_loader_follows_the_consumer_from_stream_to_stream(device, method, shuffle, pattern):
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]

    def totals(device, switch):
        loader = ResidentLoader(torch.arange(64.0).reshape(16, 4), 4, device=device, shuffle=shuffle, method=method)
        found = []
        for k, stream in zip(range(16), itertools.cycle(pattern), strict=False):
            if k % 4 == 0:
                running = iter(loader)
            with switch(streams[int(stream)]):
                found.append(work(next(running)))
            assert k % 4 != 3 or next(running, None) is None
            for each in streams:
                with switch(each):
                    torch.zeros(16, dtype=torch.long, device=device)  # perhaps where the order of an epoch was
        return found

    def work(batch):
        if batch.is_cuda:
            torch.cuda._sleep(300_000)
        return batch.square().sum()

    found = totals(device, torch.cuda.stream)
    torch.cuda.synchronize()
    expected = totals(torch.device("cpu"), lambda _: contextlib.nullcontext())
    assert [one.item() for one in found] == [one.item() for one in expected]


DATASET = torch.utils.data.TensorDataset(torch.arange(32.0 * 64).reshape(32, 64), torch.arange(32))
TOTAL = 2 * (sum(range(32 * 64)) + sum(range(32)))


def workers_source(workers):
    return torch.utils.data.DataLoader(DATASET, 2, num_workers=workers, pin_memory=True, persistent_workers=workers > 0)


def total_of(loader):
    """Two epochs."""
    results = []
    for _ in range(2):
        for images, labels in loader:
            torch.cuda._sleep(300_000)
            results.append(images.sum() + labels.sum())
            del images, labels
    return sum(int(result) for result in results)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("lifetime", LIFETIMES)
def test_no_race_and_no_needless_wait_with_workers_and_a_host_far_ahead(lifetime, workers):
    """Batches of a real DataLoader, some steps of long work on each, and a host that never waits; at every depth."""
    source = workers_source(workers)
    for depth in DEPTHS:
        with record(on="a100") as recording:
            assert total_of(PrefetchLoader(source, "cuda", depth=depth, lifetime=lifetime)) == TOTAL
        assert recording.hazards == [] and recording.lints == []


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_other_loaders_race_with_nothing_either(workers):
    with record(on="a100") as recording:
        source = workers_source(workers)
        loaders = [BlockingLoader(source, "cuda"), PinnedLoader(source, "cuda")]
        loaders += [
            ResidentLoader(DATASET, 2, device="cuda", shuffle=shuffle, method=method)
            for shuffle in ("samples", "blocks", "batches", None)
            for method in ("gather", "permute")
        ]
        totals = [total_of(loader) for loader in loaders]
    assert totals == [TOTAL] * len(loaders)
    assert recording.hazards == [] and recording.lints == []
