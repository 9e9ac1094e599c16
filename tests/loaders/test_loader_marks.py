"""Marks: who listens learns which batch the work is for; a trace shows it by name."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from loaderviz.loaders import BlockingLoader, PinnedLoader, PrefetchLoader, ResidentLoader, marks

from .conftest import Source

DATA = torch.arange(10), torch.arange(10)
LOADERS: dict[str, Any] = {
    "blocking": lambda: BlockingLoader(Source(3), "cpu"),
    "pinned": lambda: PinnedLoader(Source(3), "cpu"),
    "prefetch-0": lambda: PrefetchLoader(Source(3), "cpu", depth=0),
    "prefetch-2": lambda: PrefetchLoader(Source(3), "cpu", depth=2),
    "resident": lambda: ResidentLoader(DATA, 4, device="cpu"),
    "slices": lambda: ResidentLoader(DATA, 4, "batches", device="cpu"),
}


def expected_of(name):
    return [(0, 4), (1, 4), (2, 2)] if name in ("resident", "slices") else [(0, 4), (1, 4), (2, 4)]


@pytest.mark.parametrize("name", LOADERS)
def test_the_hook_hears_each_batch_before_the_user_gets_it(name, monkeypatch):
    heard: list[tuple[int, int]] = []
    monkeypatch.setattr(marks, "on_batch", lambda index, samples: heard.append((index, samples)))
    loader = LOADERS[name]()
    for _ in range(2):
        for k, batch in enumerate(loader):
            assert len(heard) == k + 1
            assert heard[-1] == (k, len(batch[0]))
        assert sorted(samples for _, samples in heard) == sorted(samples for _, samples in expected_of(name))
        heard.clear()


def test_the_prefetch_hook_is_around_the_copy_of_the_later_batch(monkeypatch):
    heard: list[Any] = []

    @contextmanager
    def around(index):
        heard.append(("copy", index))
        yield
        heard.append(("copied", index))

    monkeypatch.setattr(marks, "on_prefetch", around)
    monkeypatch.setattr(marks, "on_batch", lambda index, samples: heard.append(("out", index)))
    for _batch in PrefetchLoader(Source(3), "cpu", depth=1):
        pass
    copies = [[("copy", k), ("copied", k)] for k in range(3)]
    # Batch 1 is copied before batch 0 goes out: the order that makes the overlap possible.
    assert heard == [*copies[0], *copies[1], ("out", 0), *copies[2], ("out", 1), ("out", 2)]


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
