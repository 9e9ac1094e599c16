"""A loop without a loader takes slices of tensors: optimizer.step() counts its steps, emulated and really run."""

import itertools
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import loaderviz as lv
from loaderviz.analysis.what_if import WhatIfError
from loaderviz.timeline import Kind
from loaderviz.traces.steps import BY_OPTIMIZER, IN_TURN

BATCH = 4
ON = pytest.mark.parametrize("on", ["a100", "cpu"])


class Program:
    """A net, its data and an optimizer on one device; `step` trains on a slice."""

    def __init__(self, on, optimizer=torch.optim.SGD, **options):
        self.device = "cpu" if on == "cpu" else "cuda"
        self.x = torch.arange(192.0).reshape(64, 3).to(self.device)
        self.y = torch.arange(64).remainder(2).to(self.device)
        self.net, self.other = nn.Linear(3, 2).to(self.device), nn.Linear(3, 2).to(self.device)
        self.optimizer = optimizer(self.net.parameters(), **{"lr": 0.1} | options)

    def slices(self, count):
        return [(self.x[at : at + BATCH], self.y[at : at + BATCH]) for at in range(0, count * BATCH, BATCH)]

    def backward(self, x, y, net=None):
        nn.functional.cross_entropy((net or self.net)(x), y).backward()

    def train(self, batches):
        for x, y in batches:
            self.backward(x, y)
            self.optimizer.step()
            self.optimizer.zero_grad()

    def loader(self, count=4):
        return DataLoader(TensorDataset(torch.ones(count * BATCH, 3), torch.ones(count * BATCH).long()), BATCH)


def recorded(run, on="a100", make=Program, **options):
    with lv.record(on=on, **options) as recording:
        run(make(on), recording)
    return recording.timeline.self_check()


def ranges(timeline):
    return [(row.name, row.batch) for row in timeline.rows(Kind.RANGE) if row.name.startswith("batch")]


def counts(timeline, name):
    """How often each batch has this operator."""
    return Counter(row.batch for row in timeline.rows(Kind.OPERATOR) if row.name == name)


def steps(*numbers):
    return [(f"batch {number}", number) for number in numbers]


def by_optimizer(timeline):
    return BY_OPTIMIZER in timeline.context.notes


@ON
def test_a_loop_over_slices_has_steps(on):
    timeline = recorded(lambda program, _: program.train(program.slices(4)), on)
    assert ranges(timeline) == steps(0, 1, 2, 3)
    assert by_optimizer(timeline)
    assert IN_TURN not in timeline.context.notes
    assert counts(timeline, "aten::addmm") == {0: 1, 1: 1, 2: 1, 3: 1}
    summary = lv.summarize(timeline.from_batch(1), samples=3 * BATCH)
    kind = Kind.RANGE if on == "cpu" else Kind.COMPUTE  # from hand-out to hand-out, from first kernel to first kernel
    begins = [next(row.start for row in timeline.rows(kind) if row.batch == batch) for batch in (1, 3)]
    step = (begins[1] - begins[0]) / 2
    assert summary.batches == 3
    # Of so few real steps one may take so long that it is a break, which is no part of a step.
    assert 0 < summary.step <= step if on == "cpu" else summary.step == step
    assert summary.samples_per_second == pytest.approx(BATCH / summary.step * 1e9)


def test_the_work_of_the_gpu_is_of_the_step_that_launched_it():
    timeline = recorded(lambda program, _: program.train(program.slices(4)))
    assert {row.batch for row in timeline.rows(Kind.COPY_H2D)} == {-1}  # the data set and two nets: loading
    kernels = [[row.name for row in timeline.rows(Kind.COMPUTE) if row.batch == batch] for batch in range(-1, 4)]
    before, *each = kernels
    assert before == []
    assert each[0] == each[1] == each[2] == each[3]
    assert each[0][0] == "addmm"
    assert each[0][-1] == "_foreach_add_"
    first = next(row for row in timeline.rows(Kind.OPERATOR) if row.batch == 0)
    assert first.name == "aten::addmm"
    loading = [row.end for row in timeline.rows(Kind.OPERATOR) if row.batch < 0]
    assert max(loading) <= first.start == next(row.start for row in timeline.rows(Kind.RANGE) if row.batch == 0)


def test_a_loop_that_copies_its_slices_has_the_copies_in_its_steps():
    def run(program, _):
        x, y = program.x.cpu(), program.y.cpu()
        program.train((x[k : k + BATCH].cuda(), y[k : k + BATCH].cuda()) for k in range(0, 3 * BATCH, BATCH))

    timeline = recorded(run)
    assert [row.batch for row in timeline.rows(Kind.COPY_H2D)] == [-1] * 6 + [0, 0, 1, 1, 2, 2]
    assert lv.summarize(timeline.from_batch(0)).batches == 3


def test_one_step_alone_begins_after_the_last_copy_to_the_gpu():
    timeline = recorded(lambda program, _: program.train(program.slices(1)))
    assert ranges(timeline) == steps(0)
    assert {row.batch for row in timeline.rows(Kind.COPY_H2D)} == {-1}
    assert counts(timeline, "aten::addmm") == {0: 1}


def test_data_made_on_the_gpu_are_no_part_of_the_first_step():
    """Nothing is copied there; Adam makes its state in the first step, which is no reason for it to begin late."""

    def run(program, _):
        x, y = torch.zeros(16, 3, device="cuda"), torch.zeros(16, device="cuda").long()
        program.train(itertools.repeat((x, y), 3))

    timeline = recorded(run, make=lambda on: Program(on, torch.optim.Adam))
    assert counts(timeline, "aten::zeros")[-1] == 2
    assert [counts(timeline, "aten::addmm")[batch] for batch in range(-1, 3)] == [0, 1, 1, 1]
    assert counts(timeline, "aten::zeros_like") == {0: 4}


@ON
@pytest.mark.parametrize(
    ("wait", "wanted", "expected"), [(0, 2, [0, 1]), (2, 2, [2, 3]), (1, None, [1, 2, 3, 4]), (3, 9, [3, 4])]
)
def test_wait_and_steps_count_them(on, wait, wanted, expected):
    def run(program, _):
        program.train(program.slices(5))

    timeline = recorded(run, on, wait=wait, steps=wanted)
    assert ranges(timeline) == steps(*expected)
    assert [counts(timeline, "aten::addmm")[number] for number in range(6)] == [int(n in expected) for n in range(6)]
    notes = " ".join(timeline.context.notes)
    assert ("the block had 2 of the 9 steps to record" in notes) == (wanted == 9)
    assert ("is left out (steps=2)" in notes) == (wanted == 2)


@ON
def test_too_few_steps_are_nothing_with_a_reason(on):
    timeline = recorded(lambda program, _: program.train(program.slices(3)), on, wait=3)
    assert len(timeline) == 0
    assert "(wait=3), and the block had 3" in " ".join(timeline.context.notes)


def accumulated(program):
    for number, (x, y) in enumerate(program.slices(6)):
        program.backward(x, y)
        if number % 3 == 2:
            program.optimizer.step()
            program.optimizer.zero_grad()


def evaluated(program):
    for _ in range(2):
        program.train(program.slices(2))
        with torch.no_grad():
            program.net(program.x)


def evaluated_by_a_loader(program):
    for _ in range(2):
        program.train(program.slices(3))
        for x, _ in program.loader(2):
            program.net(x.to(program.device))


def moved_by_a_loader(program):
    parts = [(x.to(program.device), y.to(program.device)) for x, y in program.loader(3)]
    x, y = torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
    for _ in range(3):
        program.train([(x[:BATCH], y[:BATCH]), (x[BATCH:], y[BATCH:])])


def with_a_critic(program):
    critic = torch.optim.SGD(program.other.parameters(), lr=0.1)
    for x, y in program.slices(2):
        for _ in range(3):
            program.backward(x, y, program.other)
            critic.step()
        program.train([(x, y)])


def scaled(program):
    scaler = torch.amp.GradScaler(program.device, init_scale=8.0)
    for x, y in program.slices(3):
        scaler.scale(nn.functional.cross_entropy(program.net(x), y)).backward()
        scaler.step(program.optimizer)
        scaler.update()
        program.optimizer.zero_grad()


def set_to_zero(program):
    for x, y in program.slices(4):
        program.optimizer.zero_grad(set_to_none=False)
        program.backward(x, y)
        program.optimizer.step()


@ON
@pytest.mark.parametrize(
    ("run", "forwards"),  # of each step; those after the last one are of step -1
    [
        (accumulated, {0: 3, 1: 3}),
        (evaluated, {0: 1, 1: 1, 2: 2, 3: 1, -1: 1}),
        (evaluated_by_a_loader, {0: 1, 1: 1, 2: 1, 3: 3, 4: 1, 5: 1, -1: 2}),
        (moved_by_a_loader, dict.fromkeys(range(6), 1)),
        (with_a_critic, {0: 1, 1: 1, 2: 2, 3: 1, 4: 1, 5: 2}),
        (scaled, {0: 1, 1: 1, 2: 1}),
        (set_to_zero, {0: 1, 1: 1, 2: 1, 3: 1}),
    ],
)
def test_each_optimizer_step_ends_one(on, run, forwards):
    timeline = recorded(lambda program, _: run(program), on)
    assert ranges(timeline) == steps(*(number for number in forwards if number >= 0))
    assert counts(timeline, "aten::addmm") == forwards
    if run in (evaluated_by_a_loader, moved_by_a_loader):  # its batches are no steps
        assert by_optimizer(timeline) and timeline.context.samples is None
    if run is moved_by_a_loader:
        assert set(counts(timeline, "aten::cat")) == {-1}
        assert {row.batch for row in timeline.rows(Kind.COPY_H2D, Kind.FETCH)} == {-1}


@ON
@pytest.mark.parametrize("optimizers", [1, 2])
def test_a_loader_that_marks_batches_is_what_counts(on, optimizers):
    def run(program, _):
        program.train(program.slices(1))  # a warm-up
        others = [torch.optim.SGD(program.other.parameters(), lr=0.1) for _ in range(optimizers)]
        for x, y in program.loader(3):
            program.backward(x.to(program.device), y.to(program.device), program.other)
            for each in others:
                each.step()

    timeline = recorded(run, on)
    assert [name for name, _ in ranges(timeline)] == [f"batch {number}: 4 samples" for number in range(3)]
    assert not by_optimizer(timeline)
    assert lv.summarize(timeline).samples == 8  # without the first batch, the start-up


@ON
@pytest.mark.parametrize("samples", ["", ": 4 samples"])
def test_what_the_program_counts_itself_counts(on, samples):
    def by_call(program, recording):
        for batch in program.slices(3):
            recording.step()
            program.train([batch])

    def by_name(program, _):
        for number, batch in enumerate(program.slices(3)):
            with torch.profiler.record_function(f"batch {7 * number}{samples}"):
                program.train([batch])

    timeline = recorded(by_call, on, wait=1)
    assert (ranges(timeline), by_optimizer(timeline)) == ([], False)
    assert lv.summarize(timeline).batches == 2
    timeline = recorded(by_name, on)
    assert (ranges(timeline), by_optimizer(timeline)) == ([(f"batch {n}{samples}", n) for n in (0, 7, 14)], False)


@ON
@pytest.mark.parametrize("wait", [0, 1])
def test_two_optimizers_in_turn_make_one_step(on, wait):
    """A real recording that leaves out steps begins when the first optimizer ends one: the other's is in the next."""

    def run(program, _):
        other = torch.optim.SGD(program.other.parameters(), lr=0.1)
        for x, y in program.slices(3):
            program.train([(x, y)])
            program.backward(x, y, program.other)
            other.step()

    timeline = recorded(run, on, wait=wait)
    assert ranges(timeline) == steps(*range(wait, 3))
    assert [counts(timeline, "aten::addmm")[number] for number in (1, 2)] == [3 if wait and on == "cpu" else 2, 2]
    assert IN_TURN in timeline.context.notes


@ON
def test_a_closure_is_in_its_step(on):
    def run(program, _):
        for x, y in program.slices(3):

            def closure(x=x, y=y):
                program.optimizer.zero_grad()
                loss = nn.functional.cross_entropy(program.net(x), y)
                loss.backward()
                return loss

            program.optimizer.step(closure)

    timeline = recorded(run, on, make=lambda on: Program(on, torch.optim.LBFGS, max_iter=2))
    assert ranges(timeline) == steps(0, 1, 2)
    forwards = counts(timeline, "aten::addmm")
    assert forwards[-1] == 0
    assert min(forwards[number] for number in range(3)) >= 1


def test_torch_is_left_as_it_was():
    from torch.optim import optimizer

    for on in ("a100", "cpu"):
        recorded(lambda program, _: program.train(program.slices(1)), on)
    assert not optimizer._global_optimizer_post_hooks


def plain(copying, n=6, batch=2048):
    """The loop of an article, on data that are on the GPU, or copied in its steps."""
    images, labels = torch.randn(n * batch, 784), torch.zeros(n * batch).long()
    net = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10)).cuda()
    optimizer, criterion = torch.optim.SGD(net.parameters(), lr=0.1), nn.CrossEntropyLoss()
    x, y = (images, labels) if copying else (images.cuda(), labels.cuda())
    for start in range(0, len(x), batch):
        inputs, targets = x[start : start + batch].cuda(), y[start : start + batch].cuda()
        loss = criterion(net(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()


def period(timeline):
    """From the first kernel of a batch to that of the next one, on average; the host may be ahead of the GPU.

    The first batch is left out: some of its kernels may lie before the window.
    """
    batches = {row.batch for row in timeline.rows(Kind.COMPUTE) if row.batch >= 0}
    rows = reversed(list(timeline.rows(Kind.COMPUTE)))
    first = {row.batch: row.start for row in rows if row.batch > min(batches)}
    return (max(first.values()) - min(first.values())) / (len(first) - 1)


def test_another_gpu_is_predicted_for_a_loop_over_data_on_the_gpu():
    here, there = (recorded(lambda *_: plain(copying=False), on=on).from_batch(1) for on in ("t4", "laptop"))
    again = lv.what_if(here)
    assert period(again) == period(here)
    assert (lv.summarize(again).batches, lv.summarize(again).samples) == (5, None)
    assert period(lv.what_if(here, gpu="laptop")) == pytest.approx(period(there), rel=0.1)
    with pytest.raises(WhatIfError, match=r"what_if\(prefetch=2\) changes how .* copy none.*images\[start:end\]"):
        lv.what_if(here, prefetch=2)


def test_the_copies_of_a_loop_over_slices_can_be_changed_without_those_of_its_model():
    here = recorded(lambda *_: plain(copying=True), on="t4")
    pinned = lv.what_if(here, pinned=True)
    assert {row.pinned for row in pinned.rows(Kind.COPY_H2D)} == {True}
    assert {row.nbytes for row in pinned.rows(Kind.COPY_H2D)} == {2048 * 784 * 4, 2048 * 8}
    assert period(lv.what_if(here)) == pytest.approx(period(here), rel=0.03)
    assert period(lv.what_if(here, resident=True)) < period(lv.what_if(here, pinned=True)) < period(here)
    with pytest.raises(WhatIfError, match="does not show how long a batch is fetched"):
        lv.what_if(here, workers=2)
