"""Marks: who listens learns which batch the work is for; a trace shows it by name."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from loaderviz.loaders import BlockingLoader, PinnedLoader, PrefetchLoader, ResidentLoader
from loaderviz.loaders import base as marks

from .conftest import Source

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
