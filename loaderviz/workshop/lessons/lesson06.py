"""Lesson 6, workers: what a batch costs in each station, and exercises (the step, how many are enough, slow files).

What stands in a worker is defined here, not in the notebook: spawned workers (macOS, Windows) must import it.
"""

from __future__ import annotations

import math
import operator
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset

from loaderviz import words
from loaderviz.emulator import replay
from loaderviz.emulator.hardware import GB, RECEIVING, SENDING, Host
from loaderviz.emulator.runtime import Runtime
from loaderviz.experiment import Images
from loaderviz.loaders import PrefetchLoader
from loaderviz.timeline import Cause, Kind, Timeline, TimelineError
from loaderviz.widgets.explorer import Settings, simulate
from loaderviz.workshop import diagnosis, harness
from loaderviz.workshop.diagnosis import stretch
from loaderviz.workshop.exercises import NotYet, Score, check_of, counted, learners_code, number_of, say
from loaderviz.workshop.harness import Batch, Data, FeedConfig, LoaderRun, feed

if TYPE_CHECKING:
    import plotly.graph_objects as go

STEADY = range(12, 28)  # batches by which the start is over: of 32, the first 12 fill queues and take memory
STAGES = {"fetch": Kind.FETCH, "pin": Kind.PIN, "copy": Kind.COPY_H2D, "compute": Kind.COMPUTE}


def stations(timeline: Timeline) -> dict[str, int]:
    """Return what one batch costs in each station, ns: the median over the batches; 0 where a station does not occur.

    `fetch` is one worker's time for a batch, however many workers there are.
    """
    found = {}
    for name, kind in STAGES.items():
        mine = timeline.where(kind) & (timeline.batch >= 0)
        _, which = np.unique(timeline.batch[mine], return_inverse=True)
        times = np.bincount(which, (timeline.end - timeline.start)[mine])
        found[name] = int(np.median(times)) if len(times) else 0
    return found


def limit(costs: Mapping[str, int], workers: int) -> int:
    """Return the shortest step [ns] with so many workers (from 1): the time of the slowest station.

    >>> limit({"fetch": 3200, "pin": 400, "copy": 130, "compute": 900}, workers=2)
    1600
    """
    return max(math.ceil(costs["fetch"] / workers), costs["pin"], costs["copy"], costs["compute"])


def steady(timeline: Timeline, batches: range = STEADY) -> Timeline:
    """Return the part in which the GPU works on these batches: from the end of its work on the one before.

    Cut by the GPU's work, since the host runs ahead of it. A step takes `duration / len(batches)` there.
    Raises `TimelineError` if the GPU did not work on all of them.
    """
    edges = []
    for batch in (batches[0] - 1, batches[-1]):
        ends = timeline.end[timeline.where(Kind.COMPUTE) & (timeline.batch == batch)]
        if not len(ends):
            raise TimelineError(f"steady({batches}): no kernel works on batch {batch}; train on more batches")
        edges.append(int(ends.max()))
    return timeline.between(*edges)


def chart(steps: Mapping[int, float], costs: Mapping[str, int]) -> go.Figure:
    """Draw measured steps [ns] over the number of workers (points), and the slowest station (line)."""
    from loaderviz.view import theme  # a lesson draws; a check does not
    from loaderviz.view.figure import TEMPLATE, Chart

    some = 1 + np.arange(20 * (max(steps) - 1) + 1) / 20
    lines = {"fetch / workers": costs["fetch"] / some / 1000}
    lines |= {name: np.full(len(some), costs[name] / 1000) for name in ("compute", "pin", "copy")}
    looks = (theme.GREEN, "dot"), (theme.BLUE, "longdash"), (theme.AMBER, "dashdot"), (theme.BROWN, "dash")
    told = say("comma").join(f"{counted(n, 'worker')} {words.duration(time)}" for n, time in steps.items() if n)
    takes = say("comma").join(f"{name} {words.duration(time)}" for name, time in costs.items())
    layout = {"template": TEMPLATE, "height": 400, "margin": {"t": 60, "b": 60}}
    figure = Chart(layout=layout | {"meta": {"text": say("chart", steps=told, costs=takes)}})
    slowest, wide = np.max(list(lines.values()), axis=0), {"color": theme.GRID, "width": 9}
    figure.add_scatter(x=some, y=slowest, name=say("the slowest station"), mode="lines", line=wide)
    for (name, values), (color, dash) in zip(lines.items(), looks, strict=True):
        figure.add_scatter(x=some, y=values, name=name, mode="lines", line={"color": color, "dash": dash})
    workers, diamonds = [count for count in steps if count], {"color": theme.TEXT, "size": 10, "symbol": "diamond"}
    measured = [steps[count] / 1000 for count in workers]
    figure.add_scatter(x=workers, y=measured, name=say("measured step"), mode="markers", marker=diamonds)
    figure.update_layout(title=say("chart-title"))
    figure.update_xaxes(title=say("workers"), dtick=1)
    unit = {"text": say("µs a batch"), "standoff": 12}  # beside the numbers
    figure.update_yaxes(title=unit, automargin=True, rangemode="tozero")
    return figure


class SometimesSlow(Images):
    """MNIST in memory where one sample of `every` makes its batch `seconds` late, as a file on a busy disk does."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, every: int, seconds: float) -> None:
        super().__init__(images, labels)
        self.every, self.seconds = every, seconds

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Gather a batch in one go; a recording counts the sleep in virtual time."""
        if any(index % self.every == 0 for index in indices):
            time.sleep(self.seconds)
        return super().__getitems__(indices)


# 6.0 and 6.1

MOST = 64
WITHIN = 1.02  # of the step that any number of workers gives
SAMPLES, STEPS, LAST, AHEAD = 1000, 100, 20, 2  # measured are the last steps: by then full buffers are used up
# The explorer's host, but that stations take the same time beside any number of workers, each of which has a core
FREE: dict[str, Any] = dict.fromkeys(("cores", "crowding", *SENDING, *RECEIVING), 0)
HOST = replace(Host.preset("workstation"), name="a near host", **FREE)
AMONG = {"pin": (3, 7), "copy": (2, 7), "compute": (2, 7)}  # workers needed, by the slowest station: a range


@dataclass(frozen=True)
class Case:
    """A training with costs that nobody knows before: `settings` for the emulator, `costs` [ns a batch] in words."""

    settings: Settings
    costs: dict[str, int]

    def run(self, workers: int) -> tuple[int, Timeline]:
        """Return the step [ns] with so many workers, and the timeline."""
        timeline = simulate(replace(self.settings, workers=workers), host=HOST)
        end = int(timeline.batch[timeline.where(Kind.COMPUTE)].max()) + 1
        last = steady(timeline, range(end - LAST, end))
        return last.duration // LAST, last

    def __str__(self) -> str:
        return say("comma").join(f"{name} {words.duration(value)}" for name, value in self.costs.items())


def case(slowest: str, enough: int, chance: random.Random) -> Case:
    """Return a training that needs `enough` workers. `slowest` is the station that, fetch aside, takes longest.

    One worker fewer makes a step a sixth longer, or more. For 3 workers the ratio of fetch to that is about 2.4,
    so it has to be rounded up.
    """
    unit = chance.randrange(800_000, 1_600_000)  # ns of the slowest station
    nbytes = unit * {"compute": 2, "pin": 10, "copy": 5}[slowest]  # in 1 ns the host reads and writes 10 bytes each
    rate = nbytes * GB // unit if slowest == "copy" else 50 * GB
    compute = unit if slowest == "compute" else unit // 2
    fetch = unit * chance.randrange(1170, 1185) // 1000 * (enough - 1) or unit * 6 // 10
    base = HOST.fetch_time(SAMPLES, nbytes, batched=True)
    settings = Settings(
        batch_size=SAMPLES,
        sample_bytes=nbytes // SAMPLES,
        pinned_rate=rate,
        compute=compute,
        depth=AHEAD,
        fetch_per_sample=max(0, (fetch - base) // SAMPLES),
        pin=True,
        non_blocking=True,
        side_stream=True,
        steps=STEPS,
    )
    known = {
        "fetch": base + SAMPLES * settings.fetch_per_sample,
        "pin": HOST.work_time(2 * settings.nbytes),
        "copy": settings.machine().copy_time(settings.nbytes, rate),
        "compute": compute,
    }
    return Case(settings, known)


@check_of("6.0")
def pace(answer: Callable[..., Any], chance: random.Random) -> Score:
    timeline = None
    for slowest, among in AMONG.items():
        needed = chance.randrange(*among)
        fresh = case(slowest, needed, chance)
        fetch, *others = fresh.costs.values()
        for workers in (1, needed + 2):  # fetching is the slowest station, and then, by far, another one
            step, timeline = fresh.run(workers)
            known = {"costs": fresh, "workers": counted(workers, "worker"), "rule": say("slowest")}
            mistakes: dict[str, list[float]] = {
                "stations-added": [fetch / workers + sum(others)],
                "fetch-whole": [max(fetch, *others)],
                "all-divided": [max(fetch, *others) / workers],
            }
            _must_say(answer, (fetch, workers, *others), step, timeline, mistakes, **known)
    return Score(say("steps-found", count=2 * len(AMONG)), timeline)


def _must_say(
    answer: Callable[..., Any],
    given: Sequence[int],
    step: int,
    timeline: Timeline,
    mistakes: Mapping[str, Sequence[float]],
    **known: object,
) -> None:
    """Raise `NotYet` unless the learner says the step [ns]; `mistakes` are times that formulas of many people give."""
    with learners_code():
        returned = answer(*given)
    said = number_of(returned, "step-wanted", timeline)
    if not abs(said - step) <= (WITHIN - 1) * step:
        why = next((say(key) for key, times in mistakes.items() if np.isclose(said, times, rtol=0.001).any()), "")
        fact = say("other-step", said=f"{said:,.0f}", why=why, step=words.duration(step), **known)
        raise NotYet(fact.strip(), str(known["rule"]), "", timeline)


@check_of("6.1")
def enough(answer: Callable[..., Any], chance: random.Random) -> Score:
    found: list[int] = []
    timeline = None
    drawn = ((slowest, chance.randrange(*among)) for slowest, among in AMONG.items())
    for slowest, enough in [("compute", 3), ("compute", 1), *drawn]:
        fresh = case(slowest, enough, chance)
        with learners_code():
            returned = answer(**fresh.costs)
        workers = _count(returned, fresh)
        step, timeline = fresh.run(workers)
        best, _ = fresh.run(MOST)
        said = say("takes", costs=fresh, workers=counted(workers, "worker"), step=words.duration(step))
        if step > WITHIN * best:
            fact = say("too-few-workers", said=said, best=words.duration(best), waits=_waits(timeline))
            raise NotYet(fact.strip(), say("slowest"), "", timeline)
        if workers > 1 and fresh.run(workers - 1)[0] <= WITHIN * best:
            fact = say("too-many-workers", said=said, fewer=workers - 1)
            raise NotYet(fact, say("no-worker-more", slowest=say("slowest")), "", timeline)
        found.append(workers)
    numbers = say("comma").join(map(str, found))
    return Score(say("workers-found", count=len(found), numbers=numbers), timeline)


def _count(returned: Any, fresh: Case) -> int:
    """Return the learner's number of workers, or raise `NotYet`."""
    try:
        workers = int(returned) if isinstance(returned, float) and returned.is_integer() else operator.index(returned)
    except TypeError:
        raise NotYet(say("workers-wanted", returned=returned)) from None
    if isinstance(returned, bool) or not 1 <= workers <= MOST:
        raise NotYet(say("workers-beyond", costs=fresh, returned=returned, most=MOST), say("slowest"))
    return workers


def _waits(timeline: Timeline) -> str:
    waits = [span for span in timeline.rows(Kind.WAIT) if span.cause == Cause.DATA]
    for longest in sorted(waits, key=lambda span: -span.duration)[:1]:
        return say("loop-waits", batch=longest.batch, ran=stretch(timeline, longest.start, longest.end))
    return ""


# 6.2

BATCHES, AT_MOST = 32, 4  # batches; workers, since the machine of the task has so many cores
ONE_READ, ONE_PICTURE = 40_000, 8_000  # ns: of a read, however many pictures; of each picture in it
# Quick: in a long training the start is little.
FILES_HOST = harness.variant(
    harness.HOST, "workshop host, quick start", **FREE | {"worker_start": 50_000, "page_lock_base": 2_000}
)


class Files(Dataset[Batch]):
    """Pictures in files: `data[7]` reads one, `data[[7, 8, 9]]` reads several in one go.

    A read takes 40 µs, and 8 µs for each picture in it. Pictures are uint8 `[784]`, or `[B, 784]` for a list.
    """

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self._disk = images, labels

    def __len__(self) -> int:
        return len(self._disk[1])

    def __getitem__(self, which: int | Sequence[int]) -> Batch:
        rows = torch.tensor([which] if isinstance(which, int) else list(which))
        time.sleep((ONE_READ + ONE_PICTURE * len(rows)) / 1e9)
        images, labels = (part[rows] for part in self._disk)
        return (images[0], labels[0]) if isinstance(which, int) else (images, labels)


@check_of("6.2")
def read_fast(answer: Callable[..., Any], chance: random.Random) -> Score:
    data = Data.random([harness.SAMPLES] * BATCHES, chance, torch.uint8)

    def load(images: torch.Tensor, labels: torch.Tensor) -> Iterator[Batch]:
        batches = harness.given(answer(Files(images, labels), harness.SAMPLES))
        return iter(PrefetchLoader(_on_host(batches), "cuda"))

    run = feed(load, data, FeedConfig(dtype=torch.uint8, host=FILES_HOST), resident=True)
    run.must_be_right()
    must_keep_to_cores(run)
    score = run.must_take(_limit(data), 1.1, _why_slow)
    took, needed = sum(span.duration for span in run.timeline.rows(Kind.FETCH)), BATCHES * reading_time(harness.SAMPLES)
    if took < needed:
        fact = say("not-read", took=words.duration(took), needed=words.duration(needed))
        raise run.not_yet(fact, say("read-each"))
    return score


def _on_host(batches: Iterable[Any]) -> Iterator[Any]:
    """Pass the learner's batches on. Raises `NotYet` for one that is on the GPU already."""
    for number, batch in enumerate(batches):
        if any(isinstance(part, torch.Tensor) and part.is_cuda for part in batch):
            raise NotYet(say("on-gpu-already", batch=number), say("check-copies"))
        yield batch


def workers_of(timeline: Timeline) -> int:
    """Return how many workers fetch."""
    return len({span.lane for span in timeline.rows(Kind.FETCH) if span.lane.role == "worker"})


def must_keep_to_cores(run: LoaderRun) -> None:
    """Raise `NotYet` for more workers than the machine of the task has cores."""
    if (count := workers_of(run.timeline)) > AT_MOST:
        raise run.not_yet(say("more-than-cores", count=count, cores=AT_MOST), say("take-turns"))


def reading_time(count: int) -> int:
    """Return the time of one read of so many pictures, ns."""
    return ONE_READ + count * ONE_PICTURE


def _limit(data: Data) -> int:
    """Return the time [ns] until the first batch is on the GPU, and then only of work."""
    images, labels = data.batches[0]
    nbytes = images.nbytes + labels.nbytes
    first = FILES_HOST.worker_start + FILES_HOST.fetch_time(len(labels), nbytes, batched=True)
    first += reading_time(len(labels)) + FILES_HOST.work_time(2 * nbytes) + harness.copy_time(images, labels)
    return first + BATCHES * harness.work_time(harness.SAMPLES, torch.uint8)


def _why_slow(timeline: Timeline) -> diagnosis.Fact:
    """Say that fetching is the slowest station, if it is; else why the GPU is idle or a copy is not hidden."""
    found, workers = stations(timeline), workers_of(timeline)
    ready = found["fetch"] // max(1, workers)
    if not ready or (workers and ready <= 1.05 * found["compute"]):
        return diagnosis.why_not_hidden(timeline)
    who = say("workers-fetch" if workers > 1 else "worker-fetches" if workers else "main-fetches", workers=workers)
    fetch, ready_every, compute = map(words.duration, (found["fetch"], ready, found["compute"]))
    return say("fetch-slow", fetch=fetch, who=who, ready=ready_every, compute=compute), say("slowest")


# 6.3

TURNS, ROUNDS = 10, 60  # pieces of the loop's own Python in a step; steps, whole rounds of 2 to 6 threads
LOCKED = replace(HOST, name="a host with one lock", dispatch=0, launch=0, hand_out=0, wake=0, synchronize=0)
# ns of a fetch, thousandths of it that hold the lock, threads, ns of the loop's Python, ns of the GPU's work: ranges
SHARES = {
    "held": ((4, 8), (600, 900), (3, 7), (1, 3), (1, 2)),
    "fetch": ((12, 16), (50, 100), (2, 4), (1, 2), (1, 2)),
    "compute": ((4, 6), (200, 300), (4, 7), (1, 2), (7, 9)),
}


@dataclass
class Threaded:
    """A training whose threads fetch for `fetch` ns, `held` of them in Python; the loop itself has `host` ns of it."""

    fetch: int
    held: int
    host: int
    compute: int
    resident_bytes: Sequence[int] = ()

    def batch(self, number: int) -> replay.Batch:
        """Return a small batch."""
        return replay.Batch([1000], 1, self.fetch)

    def train(self, runtime: Runtime, number: int) -> None:
        """Do the loop's own Python, and launch one kernel."""
        for _ in range(TURNS):
            runtime.host_work(self.host // TURNS, "Python")
        runtime.launch(self.compute, name="kernel")

    def source(self, does: str) -> str:
        """Return no line: the program is not shown."""
        return ""

    def run(self, threads: int) -> tuple[int, Timeline]:
        """Return the step [ns] with so many threads, and the timeline."""
        python = round(1000 * self.held / self.fetch)
        config = replay.LoaderConfig(threads, non_blocking=True, threads=True, python=python)
        timeline = replay.Replay(config, self, Runtime(harness.GPU, LOCKED)).run(ROUNDS, ROUNDS)
        return timeline.duration // ROUNDS, timeline

    def __str__(self) -> str:
        told = {"fetch": self.fetch, "held": self.held, "host": self.host, "compute": self.compute}
        return say("comma").join(f"{name} {words.duration(value)}" for name, value in told.items())


@check_of("6.3")
def one_lock(answer: Callable[..., Any], chance: random.Random) -> Score:
    timeline = None
    for among in SHARES.values():
        fetch, share, threads, host, compute = (chance.randrange(*each) for each in among)
        held = fetch * share * 1000
        fresh = Threaded(fetch * 10**6, held, host * 10**6, compute * 10**6)
        step, timeline = fresh.run(threads)
        given = fresh.fetch, fresh.held, threads, fresh.host, fresh.compute
        alone = fresh.fetch / threads
        mistakes = {
            "lock-forgotten": [max(alone, fresh.compute), max(alone, fresh.host, fresh.compute)],
            "loop-forgotten": [max(alone, held, fresh.host, fresh.compute)],
            "lock-divided": [max(alone, held / threads + fresh.host, fresh.compute)],
            "stations-added": [alone + held + fresh.host + fresh.compute],
        }
        known = {"costs": fresh, "workers": counted(threads, "thread"), "rule": say("one-lock")}
        _must_say(answer, given, step, timeline, mistakes, **known)
    return Score(say("steps-found", count=len(SHARES)), timeline)
