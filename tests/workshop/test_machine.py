"""The limits that exercises are measured against, against brute force and against runs; facts on made timelines."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loaderviz.emulator.findings import Access, Hazard
from loaderviz.recording import record
from loaderviz.timeline import Kind
from loaderviz.workshop import facts, holes, machine
from loaderviz.workshop.measure import Setting, feed
from loaderviz.workshop.outcome import NotYet
from loaderviz.workshop.source import Data, Source
from tests import factory

from .answers import all_at_once, blocking, loader_consumer

times = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=8)


@given(times)
def test_the_limit_is_the_longest_chain(pairs):
    copies, works = zip(*pairs, strict=True)
    chains = (sum(copies[: k + 1]) + sum(works[k:]) for k in range(len(pairs)))
    assert machine.pipeline_limit(copies, works) == max(chains)
    assert max(sum(copies), sum(works)) <= machine.pipeline_limit(copies, works) <= machine.sum_limit(copies, works)


@pytest.mark.parametrize("sizes", [[64] * 8, [64, 256, 64, 64, 256]])
def test_no_loader_is_faster_than_the_limit_and_the_best_is_close(sizes):
    data = Data(sizes)
    copies = [machine.copy_time(*batch) for batch in data.batches]
    works = [machine.work_time(size) for size in sizes]
    best = feed(all_at_once, data, Setting())
    best.must_be_right()
    limit = machine.pipeline_limit(copies, works)
    assert limit <= best.took <= 1.1 * limit
    slow = feed(blocking, data, Setting())
    assert machine.sum_limit(copies, works) <= slow.took


def test_copy_and_work_are_comparable():
    """Else an exercise about hiding the one under the other would teach nothing."""
    images, labels = Data([machine.SAMPLES]).batches[0]
    copy, work = machine.copy_time(images, labels), machine.work_time(machine.SAMPLES)
    assert 0.6 < copy / work < 1.0


def test_the_sums_are_exact_in_any_order_and_layout():
    data = Data([64])
    images = data.images
    mixed = torch.empty(machine.FEATURES, 64).t().copy_(images)
    assert torch.equal(machine.sums_of(mixed, data.weights), data.sums)
    assert torch.equal(machine.sums_of(images.half(), data.weights), data.sums)
    assert torch.equal((images.double() @ data.weights.flip(0)) == data.sums, torch.zeros(64, dtype=torch.bool))


def test_data_differ_each_time_and_labels_name_a_sample():
    one, other = Data([64]), Data([64])
    assert not torch.equal(one.images, other.images)
    assert len(one.labels.unique()) == 64


def test_after_the_warm_up_nobody_waits_for_memory():
    run = feed(loader_consumer, Data([64] * 8), Setting())
    assert not [span for span in run.timeline.rows(Kind.API) if span.name == "cudaMalloc"]


def test_the_source_overwrites_its_buffers_in_turn():
    data = Data([4] * 5)
    with record(on=machine.GPU, host=machine.HOST):
        source = Source(data.batches, buffers=2)
        seen = [(images, images.clone()) for images, _ in source]
    assert all(torch.equal(then, images) for (_, then), (images, _) in zip(seen, data.batches, strict=True))
    assert seen[0][0].data_ptr() == seen[2][0].data_ptr() == seen[4][0].data_ptr() != seen[1][0].data_ptr()
    assert [batch for _, batch in source.refills] == [0, 1, 2]
    assert all(one < other for (one, _), (other, _) in itertools.pairwise(source.refills))


def test_facts_of_a_made_timeline():
    """The blocking timeline of the factory: each copy of 60 µs is followed by its kernels; the second is named."""
    timeline = factory.loader("blocking")
    span, start, end = facts.exposed(timeline)
    assert (span.kind, end - start) == (Kind.COPY_H2D, span.duration)
    fact, rule = facts.why_not_hidden(timeline)
    assert facts.stretch(timeline, start, end) in fact and rule
    assert facts.at(timeline, timeline.begin + 1_234_567) == "1,235 µs"


def test_prefetch_of_the_factory_has_nothing_exposed_after_the_first_kernel():
    assert facts.exposed(factory.loader("prefetch")) is None


def test_lines_and_holes():
    assert holes.left_open(len) == ""  # no source: nothing can be said
    assert holes.source_of(Data).startswith("class Data")
    assert not holes.is_unchanged(len, "def f(): ...")
    assert not holes.is_theirs(torch.__file__) and not holes.is_theirs(facts.__file__)
    assert holes.is_theirs(__file__)


def test_a_hazard_of_the_recording_fails_the_check():
    """Whatever the times were: what nothing keeps apart is wrong."""
    access = Access("Memcpy HtoD", True, 13, (64, 784), "float32", 3, "cell:4", 1000, 2000)
    hazard = Hazard(
        "early-reuse", "R36", access, access, "batch 3 is overwritten", "an order", "call record_stream().", "nan"
    )
    run = replace(feed(loader_consumer, Data([64] * 4), Setting()), hazards=(hazard,))
    with pytest.raises(NotYet) as caught:
        run.must_be_right()
    assert caught.value.fact == (
        "One hazard: early-reuse at cell:4: batch 3 is overwritten. To repair it: call record_stream()."
    )
    assert caught.value.rule == "R36"
