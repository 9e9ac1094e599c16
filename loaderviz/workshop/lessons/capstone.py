"""The capstone: the training of fresh MNIST digits in three worlds, a ladder of loaders, leaderboards, and the races.

capstone.climb("blocking", my_loader)           # train with it: a rung of capstone.ladder
capstone.race.check(my_loader, name="Ada")      # the exercise: a rung, and a line in the leaderboard
capstone.leaderboard()
capstone.milliseconds(my_loader)                # the same training on the GPU that is there
capstone.larger.check(my_loader, reason="copy") # at home: a data set that does not fit; capstone.files: slow files
"""

from __future__ import annotations

import os
import random
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.functional import cross_entropy

from loaderviz import mnist, words
from loaderviz.metrics import summarize, window_of
from loaderviz.recording import record
from loaderviz.timeline import Kind, Timeline
from loaderviz.view import Comparison, compare
from loaderviz.workshop import diagnosis, harness, rooms
from loaderviz.workshop.exercises import (
    Exercise,
    ExerciseError,
    NotYet,
    Outcome,
    Score,
    as_markdown,
    as_text,
    check_of,
    say,
    sentence,
    shipped,
)
from loaderviz.workshop.harness import CheckLoop, Data, FeedConfig, LoaderRun, feed, generator_of
from loaderviz.workshop.lessons.lesson04 import by_batch, must_be_shuffled, waits_too_often
from loaderviz.workshop.lessons.lesson06 import Files, reading_time, steady, workers_of
from loaderviz.workshop.loop import gpu_milliseconds, network

Loader = Callable[..., Any]  # load(images, labels, size, epochs): hands out batches on the GPU

SIZE, PER_EPOCH, EPOCHS, HIDDEN = 256, 12, 4, 128
STEPS = PER_EPOCH * EPOCHS
TESTED, LEARNED = 2000, 0.3  # test digits that the trained network is asked; the share that it knows at least
# A step of this network takes four fifths of the copy of a batch as floats, and three times that of one as bytes.
GPU = harness.variant(harness.GPU, "workshop GPU, for batches of 256", fp32=147 * 10**9, tf32=147 * 10**9)
HOST = harness.variant(
    harness.HOST,
    "workshop host, slow fetch",
    fetch_per_byte=harness.HOST.fetch_per_byte * harness.SLOWER,
    worker_start=harness.HOST.worker_start // 10,  # in a training of many steps the start does not count
)


@dataclass(frozen=True)
class World:
    """A race, the exercise with this number: what the loader gets, and what it must not do.

    `held`: for how many batches there is memory on the GPU beside the weights, 0: for all. `flips`: the pictures are in
    files (`lesson06.Files`), and each must be flipped left to right, or not, by chance. `target` x the limit, and the
    host waits for the GPU at most `waits` times: where one wait a step costs less than what is right may cost, time
    does not tell them apart. What is right takes 2 % less than the target, and what is too slow 2 % more.
    """

    name: str
    number: str
    target: float
    waits: float = float("inf")
    held: int = 0
    flips: bool = False


FITS, LARGER = World("fits", "8.1", 1.35, STEPS // 2), World("larger", "8.2", 1.4, held=10)
FILES = World("files", "8.3", 1.5, held=10, flips=True)
CORES = 4  # more workers are refused


def digits(chance: random.Random) -> Data:
    """Return a fresh random choice of MNIST digits: images uint8 `[N, 28, 28]`, labels int64 `[N]`."""
    images, labels = mnist.tensors(train=True)
    rows = torch.randperm(len(images), generator=generator_of(chance))[: SIZE * PER_EPOCH]
    return Data(images[rows], labels[rows], (SIZE,) * PER_EPOCH, chance)


class Training(CheckLoop):
    """The training loop of the capstone: a small network, cross entropy, SGD; uint8 images are converted by it."""

    def __init__(self, data: Data, setting: FeedConfig, count: int = 0) -> None:
        super().__init__(data, setting, count)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = network(harness.FEATURES, HIDDEN)
        self.model = model.to("cuda")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.weights = data.weights.to("cuda")

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Note which samples these are, for the check, and train on them. Raises `NotYet` for labels that are none."""
        whole = images.flatten(1).double()
        if images.is_floating_point():
            whole = (whole * 255).round()
        self.seen.append((torch.mv(whole, self.weights), labels.clone()))
        try:
            self.train_on(images, labels)
        except IndexError:  # what would be a device-side assert on a GPU
            early = bool((labels == torch.iinfo(torch.int64).max).any())
            fact = say("read-early" if early else "no-digits", batch=len(self.seen) - 1, when="")
            raise NotYet(sentence(fact), say("R15") if early else "") from None

    def train_on(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Train on one batch. Images that come as they are stored become float32 from 0 to 1 here, on the GPU."""
        pixels = images if images.is_floating_point() else images.float() / 255
        loss = cross_entropy(self.model(pixels), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def right(self) -> float:
        """Return the share (0..1) of the first test digits that the network knows. Call it after the recording."""
        images, labels = (part[:TESTED] for part in mnist.tensors(train=False))
        with torch.no_grad():
            return float((self.model(images.float() / 255).argmax(1) == labels).float().mean())

    def dtypes(self, images: Any) -> torch.dtype:
        """Images may be uint8, as they are stored, or float32 from 0 to 1."""
        return torch.float32 if getattr(images, "dtype", None) == torch.float32 else torch.uint8


def train(load: Loader, chance: random.Random, world: World = FITS) -> tuple[LoaderRun, float]:
    """Train with a loader; return the run and the share (0..1) of the test digits that are right then.

    The digits, and the seed of torch's global generator, are drawn from `chance`.
    Raises `NotYet` if the batches are not honest, and what `feed` raises.
    """

    def from_files(images: torch.Tensor, labels: torch.Tensor, *more: int) -> Any:
        return load(Files(images, labels), *more)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(chance.getrandbits(62))
        setting, loader = FeedConfig(epochs=EPOCHS, gpu=GPU, host=HOST), from_files if world.flips else load
        run = feed(loader, digits(chance), setting, SIZE, EPOCHS, resident=True, consumer=Training)
    _must_be_honest(run, world.flips)
    if world.held:
        run.must_hold(world.held)
    if (count := workers_of(run.timeline)) > CORES:
        raise run.not_yet(say("workers-and-cores", count=count, cores=CORES), say("slowest"))
    assert isinstance(run.loop, Training)
    if (right := run.loop.right()) < LEARNED:
        raise run.not_yet(say("knows", share=words.share(right)), say("nothing-learned"))
    return run, right


def _keys(sums: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return sums * 16 + labels.double()  # one exact number for each sample


def _unflipped(run: LoaderRun) -> list[torch.Tensor]:
    """Return the keys of each batch as if nothing was flipped; raise `NotYet` unless chance flips about half.

    In each epoch, and other samples than in the one before: a share of 50 % +- 5 is ten standard deviations wide.
    """
    plain = _keys(run.data.sums, run.data.labels)
    mirrored = _keys(harness.sums_of(run.data.images.flip(2), run.data.weights), run.data.labels)
    known, order = torch.cat([plain, mirrored]).sort()
    found, turned, known_all = [], [], True  # what is none of the samples is told by others
    for seen in run.seen:
        keys = _keys(*seen)
        at = order[torch.searchsorted(known, keys).clamp(max=len(known) - 1)]
        mine = torch.cat([plain, mirrored])[at] == keys
        known_all &= bool(mine.all())
        found.append(torch.where(mine, plain[at % len(plain)], keys))
        turned.append(torch.stack([at % len(plain), at // len(plain)])[:, mine & (plain != mirrored)[at % len(plain)]])
    epochs = [torch.zeros(len(plain)) for _ in range(0, len(turned), PER_EPOCH)]
    for number, (sample, flipped) in enumerate(turned):
        epochs[number // PER_EPOCH][sample] = flipped.float()
    for number, (now, before) in enumerate(zip(epochs, [torch.zeros(len(plain)), *epochs], strict=False)):
        share = float((now != before).float().mean())
        if known_all and abs(share - 0.5) > 0.05:
            fact = say("turned" if number else "turned-first", epoch=number, share=words.share(share))
            raise run.not_yet(fact, say("flip-half"))
    if known_all and by_batch(flipped for _, flipped in turned):
        raise run.not_yet(say("mirrors-by-batch"), say("flip-half"))
    return found


def _must_be_honest(run: LoaderRun, flips: bool) -> None:
    """Raise `NotYet` unless each epoch has each sample once, with its label, in a new order of the samples."""
    wanted, stored = _keys(run.data.sums, run.data.labels).sort()
    seen_keys = _unflipped(run) if flips else [_keys(*seen) for seen in run.seen]
    epochs = []
    for start in range(0, len(run.seen), PER_EPOCH):
        batches = seen_keys[start : start + PER_EPOCH]
        for number, keys in enumerate(batches, start):
            if not torch.isin(keys, wanted).all():
                raise run.wrong(number, *_wrong_part(run, number, flips))
        keys, order = torch.cat(batches).sort(stable=True)
        if not torch.equal(keys, wanted):
            raise run.not_yet(say("some-twice", epoch=start // PER_EPOCH), say("shuffle"))
        epochs.append(stored[order.argsort()])
    must_be_shuffled(run, epochs, SIZE, stored=False)
    run.must_be_sent(run.data.nbytes)
    run.must_have_no_hazards()


def _wrong_part(run: LoaderRun, number: int, flips: bool) -> tuple[str, str]:
    """Return which part of a batch is no sample's, as the keys of a fact and its rule."""
    sums, known = run.seen[number][0], run.data.sums
    if flips:
        known = torch.cat([known, harness.sums_of(run.data.images.flip(2), run.data.weights)])
    if torch.isin(sums, known).all():
        return "wrong-labels", "same-rows"
    return ("not-divided", "from-0-to-1") if torch.isin(sums, 255 * known).all() else ("wrong-images", "change-neither")


@lru_cache(maxsize=3)
def limit(world: World = FITS) -> int:
    """Return the shortest time [ns]: the copy of a stored batch from pinned memory, and then only training.

    Where the data do not fit, each batch is copied in each epoch, while the GPU trains; files are read before.
    """
    with record(on=GPU, host=HOST) as recording:
        data = digits(random.Random(0))
        training = Training(data, FeedConfig())
        images, labels = data.images[:SIZE].to("cuda"), data.labels[:SIZE].to("cuda")
        torch.cuda.synchronize()
        training.step(images, labels)
        torch.cuda.synchronize()
    kernels = summarize(recording.timeline).kernels
    first, steps = harness.copy_time(data.images[:SIZE], data.labels[:SIZE]), EPOCHS * PER_EPOCH
    if not world.held:
        return first + steps * kernels
    read = HOST.worker_start + reading_time(SIZE) if world.flips else 0
    pace = max(kernels, reading_time(SIZE) // CORES) if world.flips else kernels
    return read + harness.pipeline_limit([first] * steps, [pace] * steps)


def milliseconds(load: Loader) -> float:
    """Train on the GPU that is there; return the time of a step in ms, measured by two events."""
    data = digits(random.Random(0))
    training = Training(data, FeedConfig())

    def run(steps: range) -> None:
        for images, labels in load(data.images, data.labels, SIZE, len(steps) // PER_EPOCH):
            training.step(images, labels)

    return gpu_milliseconds(run, range(STEPS))


# The leaderboard: the races among the rows of a room


class LeaderboardEntry(NamedTuple):
    """One run: who, how long [ns, virtual], when ("2026-01-31 09:30:00 UTC")."""

    name: str
    ns: int
    when: str


class Leaderboard:
    """What the rows of a folder or file say of one world. Without a path: those of the room, else the learner's own.

    `note` says what could not be read, "" if nothing: a leaderboard must never stop an exercise.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, world: str = FITS.name) -> None:
        if world not in (known := {each.name: each for each in (FITS, LARGER, FILES)}):
            raise ValueError(f"there is no world {world!r}; there is {', '.join(known)}")
        self.path, self.note, self.world = Path(path) if path else rooms.board(), "", known[world]

    @property
    def entries(self) -> list[LeaderboardEntry]:
        """All runs, in the order in which they were added."""
        if self.path and (runs := _former(self.path, self.world.name)) is not None:
            return runs
        rows, notes = rooms.read(self.path) if self.path else ([], [])
        away = [say("board-elsewhere", where=rooms.where())] if "://" in rooms.where() else []
        self.note = say("space").join(away + notes)
        races = [row for row in rows if row.kind == "check" and row.about == self.world.number and row.ns]
        return [LeaderboardEntry(row.name, row.ns, rooms.moment(row.at)) for row in races]

    def previous(self, name: str) -> LeaderboardEntry | None:
        """Return the last run of `name`; None if there is none."""
        return next((entry for entry in reversed(self.entries) if entry.name == name), None)

    def ranking(self) -> list[LeaderboardEntry]:
        """Return the best run of each name, fastest first; of equal ones the earlier."""
        best: dict[str, LeaderboardEntry] = {}
        for entry in sorted(self.entries, key=lambda entry: entry.ns):  # a stable sort
            best.setdefault(entry.name, entry)
        return list(best.values())

    def _rows(self, shown: Callable[[str], str]) -> list[tuple[str, ...]]:
        ranked = enumerate(self.ranking(), 1)
        rows = ((str(place), shown(name), words.duration(ns), when) for place, (name, ns, when) in ranked)
        return [tuple(map(say, ("place", "name", "time", "when"))), *rows]

    def __repr__(self) -> str:
        rows = self._rows(str)
        return "\n".join([as_text(rows) if rows[1:] else say("nobody-yet"), *filter(None, [self.note])])

    def _repr_markdown_(self) -> str:
        rows = self._rows(escaped)
        text = as_markdown(rows, "rlrl") if rows[1:] else say("empty-board")
        return "\n\n".join([text, *filter(None, [self.note])])


def _former(path: Path, world: str) -> list[LeaderboardEntry] | None:
    """Return the runs in a leaderboard of version 0.1, an SQLite file that is only read; None for anything else."""
    rows = "select name, ns, at from runs where world = ? order by rowid"
    if not path.is_file():  # SQLite would wait for who writes into a pipe
        return None
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as file:
            runs = file.execute(rows, [world]).fetchall()
    except (sqlite3.Error, OSError):
        return None
    return [LeaderboardEntry(words.one_line(str(name), 40), int(ns), f"{when} UTC") for name, ns, when in runs]


def escaped(text: str) -> str:
    """Return text that Markdown shows as it is: no link, no picture, no end of a table's cell."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", text)


# The ladder: one rung for each loader


def heads() -> tuple[str, ...]:
    """Return what stands above a ladder's columns."""
    speeds = "speed (first = 1)", "speed (one before = 1)", "time (limit = 1)"
    return tuple(map(say, ("loader", "time", *speeds, "what costs most", "digits right")))


@dataclass(frozen=True, repr=False)
class Rung:
    """One loader that was raced: its run, and the share (0..1) of the test digits that the network then knew."""

    name: str
    timeline: Timeline
    right: float | None = None

    @property
    def ns(self) -> int:
        """The time of the whole run, ns."""
        return self.timeline.duration

    @property
    def costs_most(self) -> str:
        """What takes the largest part of the time in which nothing is computed, and its share of the run [per cent]."""
        summary = summarize(self.timeline, window_of(self.timeline, None))
        losses = [(ns, what) for what, ns in summary.breakdown.items() if what != "compute"]
        ns, what = max(losses, default=(0, ""))
        return say("comma").join((what, words.share(ns / summary.window))) if ns else say("none-of-it")

    def __repr__(self) -> str:
        right = "" if self.right is None else say("digits-right", share=words.share(self.right))
        return say("rung", name=self.name, took=words.duration(self.ns), most=self.costs_most, right=right)


class Ladder:
    """Rungs in the order in which they were added; a rung with a known name takes the old one's place.

    `limit` gives the time [ns] below which no loader can be; it is called when it is needed.
    """

    def __init__(self, limit: Callable[[], int]) -> None:
        self.rungs: dict[str, Rung] = {}
        self._limit = limit

    def add(self, rung: Rung) -> Rung:
        """Add a rung, and return it."""
        self.rungs[rung.name] = rung
        return rung

    def rows(self) -> list[tuple[str, ...]]:
        """Return a row of text for each rung, under `heads()`."""
        rungs = list(self.rungs.values())
        rows = []
        for before, rung in zip([None, *rungs], rungs, strict=False):
            against = [words.times(other.ns / rung.ns) if before else "" for other in (rungs[0], before or rung)]
            limit, right = f"{rung.ns / self._limit():.2f}x", words.share(rung.right)
            rows.append((rung.name, words.duration(rung.ns), *against, limit, rung.costs_most, right))
        return rows

    def compare(self, *names: str, batches: range) -> Comparison:
        """Return some steps of some rungs (all rungs by default) side by side, cut by the GPU's work.

        Raises `ExerciseError` for a name without rung, `TimelineError` for batches that the run does not have.
        """
        if unknown := set(names) - self.rungs.keys():
            known = say("comma").join(self.rungs) or say("none-yet")
            raise ExerciseError(say("no-rung", unknown=sorted(unknown)[0], known=known))
        return compare({name: steady(self.rungs[name].timeline, batches) for name in names or self.rungs})

    def __repr__(self) -> str:
        return as_text([heads(), *self.rows()])

    def _repr_markdown_(self) -> str:
        return as_markdown([heads(), *((escaped(name), *cells) for name, *cells in self.rows())], "lrrrrlr")


# The race

YOURS = "yours"  # the rung of the exercise
IDLE = "idle: "  # so begin the parts of a summary's breakdown in which the GPU has no work
LATE_DATA = ("host fetches a batch", "host blocked, waiting for data")


ladder = Ladder(limit)


def climb(name: str, load: Loader) -> Rung:
    """Train with a loader; add the run to the ladder and return it.

    Raises `ExerciseError` if its batches are not those of an honest training.
    """
    try:
        run, right = train(load, random.Random(0))
    except NotYet as problem:
        told = say("space").join(filter(None, (problem.fact, problem.rule)))
        raise ExerciseError(say("not-honest", name=name, problem=told)) from None
    return ladder.add(Rung(name, run.timeline, right))


@lru_cache(maxsize=3)
def baseline(world: World = FITS) -> int:
    """Return the time [ns] of the loader that everybody begins with."""
    return train(shipped(world.number, "starter"), random.Random(0), world)[0].took


# What takes the largest part of a run's time, as the learner says it: parts of a summary's breakdown.
REASONS = {
    "compute": ("compute",),
    "copy": ("copy exposed", "idle: host blocked, staging"),
    "data": ("idle: host fetches a batch", "idle: host pins a batch", "idle: host blocked, waiting for data"),
}


def reason_of(timeline: Timeline) -> str:
    """Return which of REASONS takes the largest part of the time; "host" where none of them does."""
    breakdown = summarize(timeline, window_of(timeline, None)).breakdown
    found = {reason: sum(breakdown.get(part, 0) for part in parts) for reason, parts in REASONS.items()}
    found["host"] = sum(breakdown.values()) - sum(found.values())
    return max(found, key=lambda reason: found[reason])


@check_of("8.0")
def fewer_bytes(answer: Callable[..., Any], chance: random.Random) -> Score:
    run, _ = train(answer, chance)
    sent, stored = int(run.timeline.nbytes[run.timeline.where(Kind.COPY_H2D)].sum()), EPOCHS * run.data.nbytes
    known = {"sent": words.size(sent), "stored": words.size(stored)}
    if sent > stored:
        raise run.not_yet(say("more-than-stored", **known), say("R22"))
    return Score(say("bytes-as-stored", took=words.duration(run.took), **known), run.timeline)


class Race(Exercise):
    """A race of the capstone: each honest run is a line in the world's leaderboard, in the first a rung of the ladder.

    A run's points: 1 each for the time (the target is met), the memory, honesty, and the reason. Without the first
    three a check is not passed; without the right reason a tenth is added to the time on the leaderboard.
    """

    _reason = ""

    def __init__(self, name: str, world: World) -> None:
        super().__init__(world.number, self._train, name)
        self.world = world

    def check(self, answer: Any = None, name: str = "", *, reason: str = "", seed: int | None = None) -> Outcome:
        """Train with the loader, and return the outcome. `name` is for the leaderboard.

        `reason`: what takes the largest part of your run, one of "compute", "copy", "data", "host".
        """
        self.tells, self._reason = {"name": rooms.name_for(name)}, reason
        return super().check(answer, seed=seed)

    def _train(self, answer: Callable[..., Any], chance: random.Random) -> Score:
        """Train, note the time, and compare it: with the baseline, with the last run, with the limit."""
        run, right = train(answer, chance, self.world)
        board, name = Leaderboard(world=self.world.name), self.tells["name"]
        before, found, best = board.previous(name), reason_of(run.timeline), limit(self.world)
        self.tells["ns"] = run.took if self._reason == found else run.took + run.took // 10
        if self.world == FITS:
            ladder.add(Rung(YOURS, run.timeline, right))
        took, share = words.duration(run.took), words.share(right)
        lines = [say("raced", name=name, steps=len(run.seen), took=took, share=share)]
        for key, ns in (("against-baseline", baseline(self.world)), ("against-before", before.ns if before else None)):
            if ns:
                lines.append(say(key, time=words.duration(ns), times=words.times(ns / run.took)))
        lines.append(say("against-limit", time=words.duration(best), times=run.took / best))
        late = run.took > self.world.target * best
        why = why_slow(run) if late else waits_too_often(run.timeline, self.world.waits)
        wanted = say("target-limit" if late else "target-waits", target=self.world.target, waits=self.world.waits)
        points = 2 + (why is None) + (self._reason == found)
        known = say("or").join(map(repr, [*REASONS, "host"]))
        said = say("reason-said" if self._reason else "reason-wanted", reason=self._reason, known=known)
        reason = say("the-reason" if self._reason == found else "not-the-reason", said=said)
        lines.append(
            say("points", points=points, time=say("no-time" if late else "no-waits" if why else "time"), reason=reason)
        )
        score = say("space").join(filter(None, [*lines, board.note]))
        if why:
            raise NotYet(*why, say("space").join([score, wanted]), run.timeline)
        return Score(score, run.timeline)


def why_slow(run: LoaderRun) -> diagnosis.Fact:
    """Say what takes the largest part of the time that is not training, and where the GPU is idle for longest."""
    summary = summarize(run.timeline, window_of(run.timeline, None))
    if waits := waits_too_often(run.timeline, 2 * EPOCHS, for_index=True):
        return waits
    if summary.exposed_copy > summary.idle:
        return diagnosis.why_not_hidden(run.timeline)
    gap, rule = diagnosis.why_idle(run.timeline)
    idle = [(ns, what.removeprefix(IDLE)) for what, ns in summary.breakdown.items() if what.startswith(IDLE)]
    if not idle:
        return gap, rule
    ns, most = max(idle)
    # the longest gap alone would mislead: it is often the start, while the same small gap comes back at each step
    share, most_share = (words.share(time / summary.window) for time in (summary.idle, ns))
    gap = gap[:1].lower() + gap[1:]
    fact = say("idle-mostly", share=share, most=most, most_share=most_share, gap=gap)
    return fact, say("slowest") if most in LATE_DATA else rule


leaderboard = Leaderboard  # as a lesson calls it: without a file, the one of this room

race, larger, files = Race("race", FITS), Race("larger", LARGER), Race("files", FILES)
