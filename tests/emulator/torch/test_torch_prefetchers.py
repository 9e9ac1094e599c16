"""Public ways of prefetching run unmodified on the emulated device: right data, and copies where they belong."""

from __future__ import annotations

import pytest
import torch
from prefetchers import PREFETCHERS

import loaderviz as lv
from loaderviz.timeline import COPIES, Kind

BATCHES, ROWS, COLUMNS = 6, 64, 1024


def batches(pin):
    generator = torch.Generator().manual_seed(3)
    for _ in range(BATCHES):
        batch = torch.rand(ROWS, COLUMNS, generator=generator), torch.randint(0, 9, (ROWS,), generator=generator)
        yield tuple(entry.pin_memory() for entry in batch) if pin else batch


def consume(prefetcher):
    """Read each batch twice with a long kernel in between, without waiting for the GPU."""
    seen = []
    for images, labels in prefetcher:
        first = images.sum()
        torch.cuda._sleep(450_000)  # 0.3 ms, longer than a copy
        seen.append(torch.stack((first, images.amax(), labels.sum().float())))
    return torch.stack(seen).cpu()


def expected():
    return torch.stack(
        [torch.stack((images.sum(), images.amax(), labels.sum().float())) for images, labels in batches(False)]
    )


def hidden(timeline):
    """Return how many of the image copies run while a kernel runs."""
    kernels = [(span.start, span.end) for span in timeline.rows(Kind.COMPUTE)]
    large = [span for span in timeline.rows(*COPIES) if span.nbytes == ROWS * COLUMNS * 4]
    return sum(any(start < copy.end and copy.start < end for start, end in kernels) for copy in large)


@pytest.mark.filterwarnings("ignore::loaderviz.HazardWarning")  # the race is meant
@pytest.mark.parametrize("name", PREFETCHERS)
def test_each_way_gives_its_data_and_its_overlap(name):
    prefetcher = PREFETCHERS[name]
    with lv.record(on="a100") as recording:
        source = list(batches(True))  # in memory and pinned before the loop begins
        torch.cuda.synchronize()
        seen = consume(prefetcher.make(iter(source)))
    assert torch.equal(seen, expected()) == prefetcher.right
    assert seen[:, 0].isnan().all() or name != "never waits"
    # the first copies meet cold pools, which synchronise (R13), so not all of them can be hidden
    assert hidden(recording.timeline) >= 2 if prefetcher.overlaps else hidden(recording.timeline) == 0


@pytest.mark.parametrize("name", ["plain", "attributes, record_stream", "in place", "ring, waits for reader"])
def test_pageable_sources_give_the_same_data(name):
    with lv.record(on="a100"):
        seen = consume(PREFETCHERS[name].make(batches(False)))
    assert torch.equal(seen, expected())
