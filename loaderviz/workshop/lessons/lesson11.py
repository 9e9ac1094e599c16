"""Lesson 11, an article repaired: its program, which decodes and augments pictures in workers, on the way to the limit.

The article's calls and settings: pictures of 3 x 96 x 96, four workers, pinned, `.cuda()` in the loop. What stands in a
worker is defined here, not in the notebook: spawned workers (macOS, Windows) must import it.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from loaderviz import words
from loaderviz.emulator.host import costs
from loaderviz.emulator.torch import now
from loaderviz.metrics import summarize
from loaderviz.recording import record
from loaderviz.timeline import Kind, Timeline
from loaderviz.workshop import diagnosis, harness
from loaderviz.workshop.exercises import ExerciseError, NotYet, Score, Theirs, check_of, learners_code, say
from loaderviz.workshop.harness import Batch, BatchWork, CheckLoop, Data, FeedConfig, LoaderRun, feed
from loaderviz.workshop.lessons.lesson03 import judged_again
from loaderviz.workshop.lessons.lesson04 import PER_EPOCH, by_batch, must_be_complete, must_be_shuffled, rows_of
from loaderviz.workshop.lessons.lesson06 import AT_MOST, FILES_HOST, Files, must_keep_to_cores, stations, workers_of

SIZE, EPOCHS, SHAPE = 64, 2, (3, 96, 96)  # pictures in a batch, epochs, a picture
DECODE = 1_000_000  # ns of a picture
HIDDEN = 64
_BANDWIDTH = harness.FAST_HOST.memory_bandwidth // 10
HOST = harness.variant(
    FILES_HOST, "workshop host for pictures", memory_bandwidth=_BANDWIDTH, parallel_bandwidth=_BANDWIDTH
)
ON_GPU, ONCE, TO_LIMIT = 1.15, 1.2, 1.4  # x what the step must take; before the repair it takes 1.9, 2.7 and 1.8 times
FLOATS_AHEAD = 6  # batches of floats on the GPU, beside all pictures as bytes


class Photos(Files):
    """Pictures in files: `photos[7]` decodes one, which takes a millisecond, to uint8 `[3, 96, 96]`, and its label."""

    def __getitem__(self, index: int) -> Batch:  # type: ignore[override]
        with costs(DECODE / 1e9):
            images, labels = self._disk
            index = operator.index(index)  # not a list or a slice: each file is decoded for itself
            return images[index], labels[index]


def augment(images: torch.Tensor) -> torch.Tensor:
    """Mirror half of the pictures, and scale them; uint8 `[B, 3, 96, 96]` in, float32 out, on the same device."""
    scaled = (images.float() / 255 - 0.5) / 0.25
    mirrored = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
    return torch.where(mirrored, scaled.flip(-1), scaled)


class Augmented(Dataset[Batch]):
    """The article's data set: each picture is decoded and augmented when it is asked for."""

    def __init__(self, photos: Photos) -> None:
        self.photos = photos

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, index: int) -> Batch:
        picture, label = self.photos[index]
        return augment(picture[None])[0], label


class Training(CheckLoop):
    """The loop of the check; it waits for the GPU once, before the epoch that counts."""

    since = 0

    def __init__(self, data: Data, setting: FeedConfig, count: int) -> None:
        super().__init__(data, setting, count)
        self.work = BatchWork(data.weights, hidden=HIDDEN)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Work on one batch of pictures."""
        super().step(images.flatten(1), labels)
        if len(self.seen) == PER_EPOCH * (EPOCHS - 1):
            torch.cuda.synchronize()
            self.since = now()


def _pictures(chance: random.Random) -> Data:
    """Return fresh pictures; each has a label of its own."""
    generator, count = harness.generator_of(chance), SIZE * PER_EPOCH
    images = torch.randint(256, (count, *SHAPE), generator=generator, dtype=torch.uint8)
    return Data(images, torch.randperm(2**13, generator=generator)[:count], [SIZE] * PER_EPOCH, chance)


def _fed(answer: Callable[..., Any], data: Data, *, reads: bool = False) -> LoaderRun:
    """Feed all epochs."""

    def load(images: torch.Tensor, labels: torch.Tensor) -> Any:
        return answer(Photos(images, labels), EPOCHS)

    setting = FeedConfig(epochs=EPOCHS, reads=reads, host=HOST)
    return feed(load, data, setting, resident=True, consumer=Training)


def _last_epoch(run: LoaderRun) -> LoaderRun:
    """Return the part that counts: in it nothing begins for the first time."""
    assert isinstance(run.loop, Training)
    end = run.timeline.begin + run.timeline.duration
    return replace(run, timeline=run.timeline.between(run.loop.since, end), seen=run.seen[-PER_EPOCH:])


@lru_cache(maxsize=1)
def work_time() -> int:
    """Return the time [ns] of the GPU's own work on a batch of bytes: it augments and trains (measured)."""
    with record(on=harness.GPU, host=HOST) as recording:
        work = BatchWork(torch.ones(torch.Size(SHAPE).numel(), dtype=torch.float64), hidden=HIDDEN)
        images = torch.zeros(SIZE, *SHAPE, dtype=torch.uint8).to("cuda")
        torch.cuda.synchronize()
        work(augment(images).flatten(1))
        torch.cuda.synchronize()
    return summarize(recording.timeline).kernels


def watch(load: Callable[..., Any]) -> Timeline:
    """Record the last epoch of a loader, on the same pictures each time; print what it takes. Return it.

    Raises `ExerciseError` if it does not hand out all batches on the GPU.
    """
    try:
        run = _article_run() if load is article else _last_epoch(_fed(load, _pictures(random.Random(11))))
    except (NotYet, Theirs) as problem:
        raise ExerciseError(str(problem)) from problem
    work = PER_EPOCH * work_time()
    print(say("photo-epoch", took=words.duration(run.took), work=words.duration(work), times=run.took / work))
    return run.timeline


def article(photos: Photos, epochs: int) -> Iterator[Batch]:
    """The article's program, as the starter of 11.1 has it."""
    loader: DataLoader[Batch] = DataLoader(Augmented(photos), SIZE, shuffle=True, num_workers=4, pin_memory=True)
    for _ in range(epochs):
        for images, labels in loader:
            yield images.cuda(), labels.cuda()


@lru_cache(maxsize=1)
def _article_run() -> LoaderRun:
    """Return the last epoch of the article's program, as the picture of the lesson has it."""
    return _last_epoch(_fed(article, _pictures(random.Random(11))))


# 11.0


@check_of("11.0")
def look(answer: Callable[..., Any], chance: random.Random) -> Score:
    """Ask for the slowest station of the article's program, fetch by four workers."""
    run = _article_run()
    with learners_code():
        returned = answer()
    told = stations(run.timeline)
    if not isinstance(returned, str) or returned.strip().lower() not in told:
        raise NotYet(say("station-wanted", returned=returned, known=say("comma").join(told)), "", "", run.timeline)
    name, each = returned.strip().lower(), told["fetch"] // AT_MOST
    known = {"each": words.duration(each), "fetch": words.duration(told["fetch"]), "workers": AT_MOST}
    if name != "fetch":
        fact = say("station-other", name=name, took=words.duration(told[name]), **known)
        raise NotYet(fact, say("slowest"), "", run.timeline)
    return Score(say("station-found", **known), run.timeline)


# 11.1 to 11.3: the same function, with one more repair each time


def _repaired(answer: Callable[..., Any], chance: random.Random, most: int, factor: float, both: bool = False) -> Score:
    """Judge pictures, order and mirrors, then the last epoch against `most` ns a batch; in both loops.

    Before the last repair one loop is enough, in which the host waits: nothing can run ahead that workers hold up.
    """
    data = _pictures(chance)

    def judge(*, reads: bool) -> Score:
        run = _fed(answer, data, reads=reads)
        _must_be_augmented(run)
        run.must_be_sent(data.images.nbytes)
        run.must_have_no_hazards()
        _must_be_decoded_here(run)
        last = _last_epoch(run)
        return last.must_take(most * PER_EPOCH, factor, _why_slow)

    return judged_again(judge(reads=False), lambda: judge(reads=True)) if both else judge(reads=True)


def _must_be_augmented(run: LoaderRun) -> None:
    """Raise `NotYet` unless each epoch has all pictures, in a new order, and mirrors half of them, drawn anew."""
    weights = run.data.weights
    raw = run.data.sums, harness.sums_of(run.data.images, weights.view(SHAPE).flip(-1).flatten())
    plain, flipped = ((each / 255 - weights.sum() / 2) / 0.25 for each in raw)  # as `augment` scales each value
    found = [_recognised(run, number, plain, flipped) for number in range(len(run.seen))]
    epochs = must_be_complete(run, [rows for rows, _ in found])
    must_be_shuffled(run, epochs, SIZE)
    mirrored = torch.zeros(EPOCHS, len(run.data.labels), dtype=torch.bool)
    for number, (rows, flipped) in enumerate(found):
        mirrored[number // PER_EPOCH, rows] = flipped
    share = mirrored.double().mean().item()
    if not 0.3 < share < 0.7:
        raise run.not_yet(say("mirrors-share", share=words.share(share)), say("mirrors"))
    if by_batch(flipped for _, flipped in found):
        raise run.not_yet(say("mirrors-by-batch"), say("mirrors"))
    same = (mirrored[0] == mirrored[-1]).double().mean().item()
    if not 0.3 < same < 0.7:
        raise run.not_yet(say("mirrors-again", same=words.share(same)), say("mirrors"))


def _recognised(
    run: LoaderRun, number: int, plain: torch.Tensor, flipped: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which pictures a batch holds, int64 `[B]`, and which are mirrored, by the sums of all, float64 `[N]`."""
    rows = rows_of(run, number)
    near = [torch.isclose(run.seen[number][0], each[rows], rtol=0, atol=100) for each in (plain, flipped)]
    if not (near[0] | near[1]).all():
        raise run.wrong(number, "not-augmented", "augment-does")
    return rows, near[1] & ~near[0]


def _must_be_decoded_here(run: LoaderRun) -> None:
    """Raise `NotYet` for more workers than cores, and for pictures that nobody decoded in the measured time."""
    must_keep_to_cores(run)
    needed = len(run.data.labels) * DECODE // AT_MOST
    if run.took < needed:
        took = {"took": words.duration(run.took), "needed": words.duration(needed)}
        raise run.not_yet(say("not-decoded", **took), say("through-photos"))
    allowed = run.data.nbytes + FLOATS_AHEAD * SIZE * torch.Size(SHAPE).numel() * 4
    assert isinstance(run.loop, Training)
    if max(run.loop.held) > allowed:
        held = {"held": words.size(max(run.loop.held)), "allowed": words.size(allowed)}
        raise run.not_yet(say("photos-held", **held), say("bounded"))


def _why_slow(timeline: Timeline) -> diagnosis.Fact:
    """Say that fetching is slowest, and what it does; that floats travel; else why the GPU is idle."""
    told, workers = stations(timeline), workers_of(timeline)
    every = told["fetch"] // max(1, workers)
    copied = int(timeline.nbytes[timeline.where(Kind.COPY_H2D)].sum())
    stored = PER_EPOCH * SIZE * torch.Size(SHAPE).numel()
    if every > told["copy"] + told["compute"] or (not workers and every > told["compute"] // 2):
        decodes = "decodes" if every > SIZE * DECODE // 8 else "else"
        does = "augments" if told["fetch"] > 1.05 * SIZE * DECODE else decodes
        who = say("workers-fetch", workers=workers) if workers else say("main-fetches")
        known = {"fetch": words.duration(told["fetch"]), "every": words.duration(every), "what": say(f"fetch-{does}")}
        return say("photos-fetch", who=who, **known), say("slowest")
    if copied > 2 * stored:
        sizes = {"copied": words.size(copied // PER_EPOCH), "stored": words.size(stored // PER_EPOCH)}
        return say("floats-travel", **sizes), say("R22")
    return diagnosis.why_not_hidden(timeline)


@check_of("11.1")
def on_gpu(answer: Callable[..., Any], chance: random.Random) -> Score:
    decoding = SIZE * DECODE // AT_MOST  # and while four batches are copied and used the next four are decoded
    return _repaired(answer, chance, decoding + (work_time() + _copying()) // 2, ON_GPU)


@check_of("11.2")
def once(answer: Callable[..., Any], chance: random.Random) -> Score:
    return _repaired(answer, chance, work_time() + _copying(), ONCE)


@check_of("11.3")
def to_the_limit(answer: Callable[..., Any], chance: random.Random) -> Score:
    return _repaired(answer, chance, work_time(), TO_LIMIT, both=True)


def _copying() -> int:
    """Return the time [ns] in which a batch of bytes travels."""
    return harness.copy_time(torch.zeros(SIZE, *SHAPE, dtype=torch.uint8), torch.zeros(SIZE, dtype=torch.int64))
