"""Exercises of lesson 4, the data set on the GPU: shuffle samples, resume an epoch, hand out safe batches."""

from __future__ import annotations

import itertools
import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from loaderviz.timeline import Kind, Timeline
from loaderviz.workshop import facts, machine
from loaderviz.workshop.exercise import Exercise
from loaderviz.workshop.measure import Run, Setting, feed
from loaderviz.workshop.outcome import Score
from loaderviz.workshop.source import Data

PER_EPOCH, EPOCHS = 8, 3
SHUFFLE = "shuffle samples, not slices: a new random order of all samples in each epoch, each sample once"
SYNC = "R25: what waits for the GPU leaves it without work. Inside the loop, nothing may wait."
ONCE = "the data set is on the GPU already: after the first move nothing large has to travel"


def _data() -> Data:
    return Data([machine.SAMPLES] * PER_EPOCH, torch.uint8)


def _limit(data: Data, batches: int, gathers: int) -> int:
    """Return the time [ns] of moving the data set once, as it is stored, and then of working on the batches."""
    once = machine.copy_time(data.images, data.labels, pinned=False)
    work = machine.work_time(machine.SAMPLES, torch.uint8) + machine.conversion_time(machine.SAMPLES, gathers)
    return once + batches * work


def _slow(timeline: Timeline) -> facts.Fact:
    """Say what it is: batches that still travel, a host that waits, or a host that is busy."""
    copies = facts.copies(timeline)
    if len(copies) > 4:
        copy = copies[len(copies) // 2]
        text = f"{len(copies)} copies to the GPU, one {facts.stretch(timeline, copy.start, copy.end)}"
        return f"There are {text}.", ONCE
    return facts.why_idle(timeline)


def _must_not_wait(run: Run, allowed: int) -> None:
    """Raise `NotYet` if the host waited for the GPU more often than `allowed`, the end of the window aside."""
    end = run.timeline.begin + run.timeline.duration
    waits = [span for span in run.timeline.rows(Kind.WAIT) if span.cause in facts.WAITS and span.end < end]
    if len(waits) > allowed:
        wait = waits[len(waits) // 2]
        where = f" in line {wait.source.rpartition(':')[2]} of your code" if wait.source else ""
        raise run.not_yet(
            f"the host waits for the GPU {len(waits)} times; once {facts.stretch(run.timeline, wait.start, wait.end)}"
            f"{where}",
            SYNC,
        )


def _order(run: Run) -> list[torch.Tensor]:
    """Return which samples each batch holds, int64 `[B]`; raise `NotYet` if one is none of the data set."""
    known, places = run.data.labels.sort()
    batches = []
    for number, (sums, labels) in enumerate(run.seen):
        found = torch.searchsorted(known, labels).clamp(max=len(known) - 1)
        if not torch.equal(known[found], labels):
            if (labels == torch.iinfo(torch.int64).max).any():
                raise run.not_yet(f"batch {number} was read before its copy was complete", facts.NO_WAIT)
            raise run.not_yet(f"batch {number} has labels that are not in the data set", "labels travel unchanged")
        rows = places[found]
        if not torch.equal(sums, run.data.sums[rows]):
            text = f"in batch {number} the images do not belong to the labels, or have other values"
            raise run.not_yet(text, "take the same rows of both, and change neither")
        batches.append(rows)
    return batches


def _must_be_complete(run: Run, order: list[torch.Tensor], what: str = "epoch {}") -> list[torch.Tensor]:
    """Return the order of the samples in each epoch; raise `NotYet` if a sample comes twice or never."""
    epochs = [torch.cat(order[start : start + PER_EPOCH]) for start in range(0, len(order), PER_EPOCH)]
    for number, rows in enumerate(epochs):
        counts = rows.bincount(minlength=len(run.data.labels))
        if (counts != 1).any():
            wrong = int((counts != 1).nonzero()[0])
            times = int(counts[wrong])
            raise run.not_yet(f"in {what.format(number)} sample {wrong} comes {times} times", SHUFFLE)
    return epochs


def _must_differ(run: Run, one: torch.Tensor, other: torch.Tensor) -> None:
    """Raise `NotYet` if two epochs have the same order, or batches made of the same samples."""
    if torch.equal(one, other):
        raise run.not_yet("two epochs have the same order", SHUFFLE)
    former = {frozenset(rows.tolist()): number for number, rows in enumerate(one.split(machine.SAMPLES))}
    for number, rows in enumerate(other.split(machine.SAMPLES)):
        if frozenset(rows.tolist()) in former:
            place = former[frozenset(rows.tolist())]
            text = f"batch {number} of an epoch has the same {len(rows)} samples as batch {place} of the epoch before"
            raise run.not_yet(text, SHUFFLE)
    neighbours = (one[1:] - one[:-1] == 1).float().mean()
    if neighbours > 0.5:
        raise run.not_yet("most samples come in the order in which they are stored", SHUFFLE)


@contextmanager
def _other_random_numbers() -> Iterator[None]:
    """Give the learner's code global random generators that nobody knows; put them back afterwards."""
    state = random.getstate()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(secrets.randbits(62))
        random.seed(secrets.randbits(62))
        try:
            yield
        finally:
            random.setstate(state)


# 4.1


def _shuffle(answer: Callable[..., Any]) -> Score:
    data = _data()
    with _other_random_numbers():
        run = feed(answer, data, Setting(epochs=EPOCHS, dtype=torch.uint8), machine.SAMPLES, EPOCHS, resident=True)
    epochs = _must_be_complete(run, _order(run))
    for one, other in itertools.pairwise(epochs):
        _must_differ(run, one, other)
    run.must_be_sent(data.images.nbytes + data.labels.nbytes)
    run.must_have_no_hazards()
    _must_not_wait(run, allowed=2 + 2 * EPOCHS)  # the move of the data, and an order per epoch
    return Score(run.must_take(_limit(data, EPOCHS * PER_EPOCH, 1), 1.1, _slow), run.timeline)


shuffle = Exercise(
    "4.1", "lesson04.shuffle", "Shuffle on the GPU",
    task="`images` (uint8) and `labels` are in host memory. Move them to the GPU once. Then hand out all samples in "
    "batches of `size`, `epochs` times: each sample once in an epoch, in a new random order of the samples each time.",
    target="within 1.1x of the limit (one move, then only work), the host waits for the GPU at most twice an epoch.",
    starter='''
import torch


def shuffled(images, labels, size, epochs):
    """Yield batches of random samples, epoch after epoch; the data set is on the GPU."""
    images, labels = images.to("cuda"), labels.to("cuda")
    for epoch in range(epochs):
        for start in range(0, len(images), size):
            yield images[start : start + size], labels[start : start + size]  # in the order of the file
''',
    answer='''
import torch


def shuffled(images, labels, size, epochs):
    """Yield batches of random samples, epoch after epoch; the data set is on the GPU."""
    images, labels = images.to("cuda"), labels.to("cuda")
    for epoch in range(epochs):
        order = torch.randperm(len(images)).to("cuda")  # one small copy an epoch
        for rows in order.split(size):
            yield images.index_select(0, rows), labels.index_select(0, rows)
''',
    hints=(
        "torch.randperm(n) is a random order of n numbers. Where must it be, so that the GPU can use it?",
        "`images.index_select(0, rows)` collects rows. If `rows` is on the GPU, nothing travels and nobody waits.",
        "Draw the order once per epoch, move it once, and split it: `order.split(size)`.",
    ),
    measure=_shuffle, arguments=("images", "labels", "size", "epochs"),
)  # fmt: skip

# 4.2


def _resume(answer: Callable[..., Any]) -> Score:
    data, epoch, first = _data(), secrets.randbelow(1000), 1 + secrets.randbelow(PER_EPOCH - 2)

    def run_from(number: int, start: int) -> tuple[Run, list[torch.Tensor]]:
        setting = Setting(dtype=torch.uint8)
        with _other_random_numbers():
            run = feed(
                answer, data, setting, machine.SAMPLES, number, start, resident=True, count=PER_EPOCH - start
            )  # fmt: skip
        return run, _order(run)

    whole, order = run_from(epoch, 0)
    following = torch.cat(run_from(epoch + 1, 0)[1])
    [one] = _must_be_complete(whole, order, f"epoch {epoch}")
    _must_differ(whole, one, following)
    run, rest = run_from(epoch, first)
    for number, (mine, wanted) in enumerate(zip(rest, order[first:], strict=True), first):
        if not torch.equal(mine, wanted):
            place = next((k for k, rows in enumerate(order) if torch.equal(rows, mine)), None)
            what = f"it handed out batch {place} instead" if place is not None else "it has other samples"
            raise run.not_yet(
                f"epoch {epoch} was begun again at batch {first}. Batch {number} is not the one that came in the run "
                f"from the start: {what}",
                "the order must be a function of the epoch alone: a generator of its own, seeded with the epoch",
            )
    run.must_be_sent(data.images.nbytes + data.labels.nbytes)
    run.must_have_no_hazards()
    return Score(run.must_take(_limit(data, PER_EPOCH - first, 1), 1.25, _slow), run.timeline)


resume = Exercise(
    "4.2", "lesson04.resume", "Resume in the middle of an epoch",
    task="The training was stopped. Hand out the batches of epoch `epoch` from batch number `first` on: the very "
    "batches that would have come without the stop. Shuffle samples; another epoch has another order.",
    target="the same batches as in the run from the start, in another process, within 1.25x of the limit.",
    starter='''
import torch


def resumed(images, labels, size, epoch, first):
    """Yield the batches of one epoch, from batch number `first` on; the data set is on the GPU."""
    images, labels = images.to("cuda"), labels.to("cuda")
    order = torch.randperm(len(images)).to("cuda")  # another order in each run: what has to change?
    for rows in order.split(size):
        yield images.index_select(0, rows), labels.index_select(0, rows)
''',
    answer='''
import torch


def resumed(images, labels, size, epoch, first):
    """Yield the batches of one epoch, from batch number `first` on; the data set is on the GPU."""
    images, labels = images.to("cuda"), labels.to("cuda")
    generator = torch.Generator().manual_seed(epoch)  # the order is a function of the epoch
    order = torch.randperm(len(images), generator=generator).to("cuda")
    for rows in order.split(size)[first:]:
        yield images.index_select(0, rows), labels.index_select(0, rows)
''',
    hints=(
        "torch.randperm takes a `generator`. Two generators with the same seed give the same order.",
        "Which number is the same in both runs of an epoch, and another one in the next epoch?",
        "`order.split(size)` is a sequence of batches. Leave out the first ones.",
    ),
    measure=_resume, arguments=("images", "labels", "size", "epoch", "first"),
)  # fmt: skip

# 4.3


def _safe(answer: Callable[..., Any]) -> Score:
    data = _data()
    setting = Setting(epochs=2, dtype=torch.float32, changes=True)
    run = feed(answer, data, setting, machine.SAMPLES, 2, resident=True)
    for number in range(len(data.sizes), len(run.seen)):
        before, now = run.seen[number - len(data.sizes)], run.seen[number]
        wrong = not torch.equal(before[0], now[0])
        if wrong and torch.equal(now[0], before[0] - data.weights.sum()):
            raise run.not_yet(
                f"batch {number} is batch {number - len(data.sizes)} again, one epoch later. Every pixel of it is "
                "smaller by 1: the training loop worked on it in place, and so on your data set",
                "a slice is a view: it shares its memory with the data set. Hand out memory of its own",
            )
    run.must_be_right(needed=data.images.nbytes + data.labels.nbytes)
    limit = _limit(data, 2 * PER_EPOCH, 1)
    return Score(run.must_take(limit, 1.2, _slow), run.timeline)


safe = Exercise(
    "4.3", "lesson04.safe", "A batch that may be changed",
    task="The training loop of this check changes each batch in place (`x.sub_(1)`). Hand out the images as float32, "
    "in storage order, in batches of `size`, `epochs` times. The second epoch must be as good as the first.",
    target="every batch correct in both epochs, one move of the uint8 data, within 1.2x of the limit.",
    starter='''
def safe_batches(images, labels, size, epochs):
    """Yield batches of float32 images in storage order; the caller may change them in place."""
    images, labels = images.float().to("cuda"), labels.to("cuda")
    for epoch in range(epochs):
        for start in range(0, len(images), size):
            yield images[start : start + size], labels[start : start + size]  # views of the data set
''',
    answer='''
def safe_batches(images, labels, size, epochs):
    """Yield batches of float32 images in storage order; the caller may change them in place."""
    images, labels = images.to("cuda"), labels.to("cuda")  # as stored: uint8
    for epoch in range(epochs):
        for start in range(0, len(images), size):
            yield images[start : start + size].float(), labels[start : start + size]  # float() makes a new tensor
''',
    hints=(
        "Which operations make a new tensor, and which give a view of the old one?",
        "Keep uint8 on the GPU and convert each batch there: that makes a new tensor, and moves fewer bytes.",
    ),
    measure=_safe, arguments=("images", "labels", "size", "epochs"),
)  # fmt: skip

EXERCISES = (shuffle, resume, safe)
