"""The limits that exercises are measured against, against brute force and against runs; facts on made timelines."""

import itertools
import random
from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loaderviz.emulator.hazards import Access, Hazard
from loaderviz.recording import record
from loaderviz.timeline import Kind
from loaderviz.workshop import diagnosis, exercises, harness, lesson04
from loaderviz.workshop.exercises import NotYet
from loaderviz.workshop.harness import BatchSource, Data, FeedConfig, feed
from tests import factory

from .answers import all_at_once, blocking, loader_consumer

times = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=8)


@given(times)
def test_the_limit_is_the_longest_chain(pairs):
    copies, works = zip(*pairs, strict=True)
    chains = (sum(copies[: k + 1]) + sum(works[k:]) for k in range(len(pairs)))
    assert harness.pipeline_limit(copies, works) == max(chains)
    assert max(sum(copies), sum(works)) <= harness.pipeline_limit(copies, works) <= sum(copies) + sum(works)


@pytest.mark.parametrize("sizes", [[64] * 8, [64, 256, 64, 64, 256]])
def test_no_loader_is_faster_than_the_limit_and_the_best_is_close(sizes):
    data = Data.random(sizes, random)
    copies = [harness.copy_time(*batch) for batch in data.batches]
    works = [harness.work_time(size) for size in sizes]
    best = feed(all_at_once, data, FeedConfig())
    best.must_be_right()
    limit = harness.pipeline_limit(copies, works)
    assert limit <= best.took <= 1.1 * limit
    slow = feed(blocking, data, FeedConfig())
    assert sum(copies) + sum(works) <= slow.took


def test_copy_and_work_are_comparable():
    """Else an exercise about hiding the one under the other would teach nothing."""
    images, labels = Data.random([harness.SAMPLES], random).batches[0]
    copy, work = harness.copy_time(images, labels), harness.work_time(harness.SAMPLES)
    assert 0.6 < copy / work < 1.0


def test_the_sums_are_exact_in_any_order_and_layout_of_data_that_differ_each_time():
    data, other = (Data.random([64], random) for _ in range(2))
    images = data.images
    assert not torch.equal(images, other.images) and len(data.labels.unique()) == 64  # a label names a sample
    mixed = torch.empty(harness.FEATURES, 64).t().copy_(images)
    assert torch.equal(harness.sums_of(mixed, data.weights), data.sums)
    assert torch.equal(harness.sums_of(images.half(), data.weights), data.sums)
    assert torch.equal((images.double() @ data.weights.flip(0)) == data.sums, torch.zeros(64, dtype=torch.bool))


@pytest.mark.parametrize("answer", [loader_consumer, all_at_once])
def test_after_the_warm_up_nobody_waits_for_memory(answer):
    run = feed(answer, Data.random([64] * 8, random), FeedConfig())
    assert not [span for span in run.timeline.rows(Kind.API) if span.name == "cudaMalloc"]


def test_the_source_overwrites_its_buffers_in_turn():
    data = Data.random([4] * 5, random)
    with record(on=harness.GPU, host=harness.HOST):
        source = BatchSource(data.batches, buffers=2)
        seen = [(images, images.clone()) for images, _ in source]
    assert all(torch.equal(then, images) for (_, then), (images, _) in zip(seen, data.batches, strict=True))
    assert seen[0][0].data_ptr() == seen[2][0].data_ptr() == seen[4][0].data_ptr() != seen[1][0].data_ptr()


def test_facts_of_a_made_timeline():
    """The blocking timeline of the factory: each copy of 60 µs is followed by its kernels; the second is named."""
    timeline = factory.loader("blocking")
    span, start, end = diagnosis.exposed(timeline)
    assert (span.kind, end - start) == (Kind.COPY_H2D, span.duration)
    fact, rule = diagnosis.why_not_hidden(timeline)
    assert diagnosis.stretch(timeline, start, end) in fact and rule
    assert diagnosis.at(timeline, timeline.begin + 1_234_567) == "1,235 µs"
    assert diagnosis.exposed(factory.loader("prefetch")) is None  # after the first kernel


def test_lines_and_holes():
    assert exercises.left_open(len) == ""  # no source: nothing can be said
    assert exercises.left_open(Data) == ""
    assert not exercises.is_unchanged(len, "def f(): ...")
    assert not exercises.is_theirs(torch.__file__) and not exercises.is_theirs(diagnosis.__file__)
    assert exercises.is_theirs(__file__)


def test_a_hazard_of_the_recording_fails_the_check():
    """Whatever the times were: what nothing keeps apart is wrong."""
    access = Access("Memcpy HtoD", True, 13, (64, 784), "float32", 3, "cell:4", 1000, 2000)
    said = {"rule": "R36", "problem": "batch 3 is overwritten", "fix": "call record_stream().", "shows": "nan"}
    hazard = Hazard("early-reuse", access, access, **said)
    run = replace(feed(loader_consumer, Data.random([64] * 4, random), FeedConfig()), hazards=(hazard,))
    with pytest.raises(NotYet) as caught:
        run.must_be_right()
    assert caught.value.fact == (
        "One hazard: early-reuse at cell:4: batch 3 is overwritten. To repair it: call record_stream()."
    )
    assert caught.value.rule == "R36"


def order_with_steps_of(distance, times, samples=512):
    """Return a random order in which just so many samples follow the one `distance` before them; no step is commoner.

    Pairs (n, n + distance) stay together, so nothing else is orderly: neither a rank nor blocks nor batches.
    """
    while True:
        free, firsts = set(range(samples)), []
        for n in random.sample(range(samples - distance), samples - distance):
            if len(firsts) < times and {n, n + distance} <= free:
                free -= {n, n + distance}
                firsts.append(n)
        parts = [[n, n + distance] for n in firsts] + [[n] for n in free]
        order = torch.tensor([*itertools.chain.from_iterable(random.sample(parts, len(parts)))])
        if order.diff().unique(return_counts=True)[1].max() == times:
            return order


@pytest.mark.parametrize(("times", "by_a_rule"), [(32, False), (33, True)])
def test_a_sixteenth_of_the_steps_may_be_alike(times, by_a_rule):
    run = Mock(not_yet=NotYet)
    for order in (order_with_steps_of(170, times) for _ in range(8)):
        with pytest.raises(NotYet, match="by a rule") if by_a_rule else nullcontext():
            lesson04.must_be_shuffled(run, [order], 64)


@pytest.mark.parametrize(("own", "step", "light"), [(10, 1, True), (11, 1, False), (40, 5, True), (41, 5, False)])
def test_python_that_no_task_asks_for_is_told_from_a_slow_machine(own, step, light):
    """Ms of processor time a batch. Single batches, such as one that imports, do not count."""
    spent = [(1_000_000 * own, 1_000_000 * step)] * 3 + [(10**9, 10**9), (0, 0)]
    run = replace(feed(loader_consumer, Data.random([64] * 2, random), FeedConfig()), loop=Mock(spent=spent))
    with nullcontext() if light else pytest.raises(NotYet, match=f"takes {own} ms of processor time a batch"):
        run.must_be_light()


def test_numpy_costs_the_host_what_a_pass_of_torch_costs_and_only_in_an_exercise():
    def by_numpy(batches):
        for images, labels in batches:
            yield torch.from_numpy(images.numpy() * 1).to("cuda"), labels.to("cuda")

    def by_torch(batches):
        for images, labels in batches:
            yield (images * 1).to("cuda"), labels.to("cuda")

    data = Data.random([64] * 8, random)
    numpys, torchs = (feed(answer, data, FeedConfig()).took for answer in (by_numpy, by_torch))
    assert numpys == pytest.approx(torchs, rel=0.02)
    with record(on=harness.GPU, host=harness.HOST) as recording:
        torch.from_numpy(data.images.numpy())
    assert not {"Tensor.numpy", "torch.from_numpy"} & {*recording.timeline.names}


def test_of_a_whole_data_set_numpy_pays_for_a_batch():
    def rows_of_numpy(images, labels):
        for start in range(0, len(images), 64):
            yield torch.from_numpy(images.numpy()[start : start + 64]).to("cuda"), labels[start : start + 64].to("cuda")

    run = feed(rows_of_numpy, Data.random([64] * 4, random), FeedConfig(), resident=True)
    passes = [span.duration for span in run.timeline.rows() if span.name == "Tensor.numpy"]
    nbytes = run.data.batches[0][0].nbytes
    assert passes == [harness.HOST.dispatch + harness.HOST.work_time(nbytes)] * 4
