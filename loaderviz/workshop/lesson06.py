"""Exercises of lesson 6, workers: how many are enough, and a loader for files that are slow to read.

What stands in a worker is defined here or in `stages`, not in the notebook: where workers are spawned (macOS, Windows)
they must be able to import it.
"""

from __future__ import annotations

import operator
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Dataset

from loaderviz import words
from loaderviz.emulator import costs
from loaderviz.emulator.hardware import GB, Host
from loaderviz.loaders import PrefetchLoader
from loaderviz.timeline import Kind, Timeline
from loaderviz.workshop import facts, machine
from loaderviz.workshop.exercise import Exercise
from loaderviz.workshop.measure import Run, Setting, feed
from loaderviz.workshop.outcome import NotYet, Score, learners_code
from loaderviz.workshop.source import Batch, Data
from loaderviz.workshop.stages import SLOWEST, STEADY, SometimesSlow, chart, in_flight, limit, stages, steady

if TYPE_CHECKING:
    from loaderviz.explore.settings import Settings

__all__ = [
    "EXERCISES", "STEADY", "Files", "SometimesSlow", "chart", "enough", "in_flight", "limit", "read_fast", "stages",
    "steady",
]  # fmt: skip

# 6.1

MOST = 64
WITHIN = 1.02  # of the step that any number of workers gives
SAMPLES, STEPS, LAST, AHEAD = 1000, 100, 20, 2  # measured are the last steps: by then full buffers are used up
HOST = "workstation"  # of the explorer's emulator


@dataclass(frozen=True)
class Case:
    """A training with costs that nobody knows before: `settings` for the emulator, `costs` [ns a batch] in words."""

    settings: Settings
    costs: dict[str, int]

    def run(self, workers: int) -> tuple[int, Timeline]:
        """Return the step [ns] with so many workers, and the timeline."""
        from loaderviz.explore.pipeline import simulate

        timeline = simulate(replace(self.settings, workers=workers))
        end = int(timeline.batch[timeline.where(Kind.COMPUTE)].max()) + 1
        last = steady(timeline, range(end - LAST, end))
        return last.duration // LAST, last

    def __str__(self) -> str:
        return ", ".join(f"{name} {words.duration(value)}" for name, value in self.costs.items())


def case(slowest: str, enough: int) -> Case:
    """Return a training that needs `enough` workers. `slowest` is the stage that, fetch aside, takes longest.

    One worker fewer makes a step a sixth longer, or more. For 3 workers the ratio of fetch to that stage is about 2.4,
    so it has to be rounded up.
    """
    from loaderviz.explore.settings import Settings  # brings the widgets, which no other lesson needs

    unit = 800_000 + secrets.randbelow(800_000)  # ns of the slowest stage
    nbytes = unit * {"compute": 2, "pin": 10, "copy": 5}[slowest]  # in 1 ns the host reads and writes 10 bytes each
    rate = nbytes * GB // unit if slowest == "copy" else 50 * GB
    compute = unit if slowest == "compute" else unit // 2
    fetch = unit * (1170 + secrets.randbelow(15)) // 1000 * (enough - 1) or unit * 6 // 10
    base = costs.fetch_time(Host.preset(HOST), SAMPLES, nbytes, batched=True)
    settings = Settings(
        batch_size=SAMPLES, sample_bytes=nbytes // SAMPLES, pinned_rate=rate, compute=compute, depth=AHEAD,
        fetch_per_sample=max(0, (fetch - base) // SAMPLES), pin=True, non_blocking=True, side_stream=True, steps=STEPS,
    )  # fmt: skip
    known = {
        "fetch": base + SAMPLES * settings.fetch_per_sample,
        "pin": costs.host_time(Host.preset(HOST), 2 * settings.nbytes),
        "copy": costs.copy_time(settings.machine(), settings.nbytes, rate),
        "compute": compute,
    }
    return Case(settings, known)


def _cases() -> Iterator[Case]:
    """Yield trainings that need 3 workers, 1, and three times one of 2 to 6."""
    yield case("compute", 3)
    yield case("compute", 1)
    for slowest in ("pin", "copy", "compute"):
        yield case(slowest, 3 + secrets.randbelow(4) if slowest == "pin" else 2 + secrets.randbelow(5))


def _enough(answer: Callable[..., Any]) -> Score:
    found: list[int] = []
    timeline = None
    for fresh in _cases():
        with learners_code():
            returned = answer(**fresh.costs)
        workers = _count(returned, fresh)
        step, timeline = fresh.run(workers)
        best, _ = fresh.run(MOST)
        said = f"A batch costs: {fresh}. You said {words.count(workers, 'worker')}: a step takes "
        said += words.duration(step)
        if step > WITHIN * best:
            text = f"{said}, with more of them {words.duration(best)}. {_waits(timeline)}"
            raise NotYet(text.strip(), SLOWEST, "", timeline)
        if workers > 1 and fresh.run(workers - 1)[0] <= WITHIN * best:
            text = f"{said}. With {workers - 1} it takes the same."
            raise NotYet(text, f"{SLOWEST}; a worker more than needed only takes memory and a core", "", timeline)
        found.append(workers)
    numbers = ", ".join(map(str, found))
    return Score(f"{len(found)} trainings: {numbers} workers, none too few, none too many.", timeline)


def _count(returned: Any, fresh: Case) -> int:
    """Return the learner's number of workers, or raise `NotYet`."""
    try:
        workers = int(returned) if isinstance(returned, float) and returned.is_integer() else operator.index(returned)
    except TypeError:
        raise NotYet(f"Your function returned {returned!r}. A whole number of workers is wanted.") from None
    if isinstance(returned, bool) or not 1 <= workers <= MOST:
        raise NotYet(f"A batch costs: {fresh}. You said {returned!r} workers; give a number from 1 to {MOST}.", SLOWEST)
    return workers


def _waits(timeline: Timeline) -> str:
    """Say where the loop waits for data longest."""
    waits = [span for span in timeline.rows(Kind.WAIT) if span.cause.name == "DATA"]
    longest = max(waits, key=lambda span: span.end - span.start, default=None)
    if longest is None:
        return ""
    return f"The loop waits for batch {longest.batch} {facts.stretch(timeline, longest.start, longest.end)}."


enough = Exercise(
    "6.1", "lesson06.enough", "How many workers are enough?",
    task="Write `workers_needed(fetch, pin, copy, compute)`. The arguments say how long one batch takes in each stage "
    "[ns]; `fetch` is the time of one worker. Copies run in a side stream. Return the smallest number of workers "
    "(1 or more) beyond which more workers gain nothing.",
    target="right for five trainings with random costs: with your number the emulated step is as short as it can be, "
    "and with one worker fewer it is longer.",
    starter='''
def workers_needed(fetch, pin, copy, compute):
    """Return the smallest number of workers beyond which more workers gain nothing; times of a batch in ns."""
    return ...
''',
    answer='''
import math


def workers_needed(fetch, pin, copy, compute):
    """Return the smallest number of workers beyond which more workers gain nothing; times of a batch in ns."""
    slowest = max(pin, copy, compute)  # of the stages that do not get faster by more workers
    return max(1, math.ceil(fetch / slowest))
''',
    hints=(
        "With n workers one batch is ready every fetch / n. When is that no longer the slowest stage?",
        "The slowest of pin, copy and compute sets the pace. How many workers fetch a batch in that time?",
        "Round up: 2.3 workers are not enough when there are 2.",
    ),
    measure=_enough, arguments=("fetch", "pin", "copy", "compute"),
)  # fmt: skip

# 6.2

BATCHES, AT_MOST = 32, 4  # batches; workers, since the machine of the task has so many cores
ONE_READ, ONE_PICTURE = 40_000, 8_000  # ns: of a read, however many pictures; of each picture in it
FILES_HOST = replace(
    machine.HOST, name="workshop host, quick start", worker_start=50_000, page_lock_base=2_000,
    sources=machine.HOST.sources
    | dict.fromkeys(("worker_start", "page_lock_base"), "chosen small: in a long training the start is little"),
)  # fmt: skip


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


def _read_fast(answer: Callable[..., Any]) -> Score:
    data = Data([machine.SAMPLES] * BATCHES, torch.uint8)

    def load(images: torch.Tensor, labels: torch.Tensor) -> Iterator[Batch]:
        return iter(PrefetchLoader(_host_batches(answer(Files(images, labels), machine.SAMPLES)), "cuda"))

    run = feed(load, data, Setting(dtype=torch.uint8, host=FILES_HOST), resident=True)
    run.must_be_right()
    count = _workers(run.timeline)
    if count > AT_MOST:
        raise run.not_yet(
            f"you have {count} workers, but the machine of this task has {AT_MOST} cores",
            "each worker is a process: more of them than cores take turns, which the emulated machine does not show",
        )
    score = Score(run.must_take(_limit(data), 1.1, _why_slow), run.timeline)
    _must_have_read(run)
    return score


def _host_batches(batches: Any) -> Any:
    """Return what the learner gave, if batches can be drawn from it."""
    if not hasattr(batches, "__iter__"):
        said = "nothing (None)" if batches is None else f"a {type(batches).__name__}"
        raise NotYet(f"Your function returned {said}. Return a DataLoader, or anything that hands out batches.")
    return batches


def _workers(timeline: Timeline) -> int:
    return len({span.lane for span in timeline.rows(Kind.FETCH) if span.lane.role == "worker"})


def _reading(count: int) -> int:
    """Return the time of one read of so many pictures, ns."""
    return ONE_READ + count * ONE_PICTURE


def _limit(data: Data) -> int:
    """Return the time [ns] until the first batch is on the GPU, and then only of work."""
    images, labels = data.batches[0]
    nbytes = images.nbytes + labels.nbytes
    first = FILES_HOST.worker_start + costs.fetch_time(FILES_HOST, len(labels), nbytes, batched=True)
    first += _reading(len(labels)) + costs.host_time(FILES_HOST, 2 * nbytes) + machine.copy_time(images, labels)
    return first + BATCHES * machine.work_time(machine.SAMPLES, torch.uint8)


def _must_have_read(run: Run) -> None:
    """Raise `NotYet` if the workers cannot have read the files in the time that they took."""
    took = sum(span.end - span.start for span in run.timeline.rows(Kind.FETCH))
    needed = BATCHES * _reading(machine.SAMPLES)
    if took < needed:
        raise run.not_yet(
            f"the batches were fetched in {words.duration(took)}; to read all files takes {words.duration(needed)}",
            "read each picture through `data[...]`, in a DataLoader",
        )


def _why_slow(timeline: Timeline) -> facts.Fact:
    """Say that fetching is the slowest stage, if it is; else why the GPU is idle or a copy is not hidden."""
    found, workers = stages(timeline), _workers(timeline)
    ready = found["fetch"] // max(1, workers)
    if not ready or (workers and ready <= 1.05 * found["compute"]):
        return facts.why_not_hidden(timeline)
    who = f"{workers} worker{'s do' if workers > 1 else ' does'} it" if workers else "the main thread does it itself"
    fact = (
        f"To fetch a batch takes {words.duration(found['fetch'])}, and {who}. So one is ready every "
        f"{words.duration(ready)} at best. The GPU needs only {words.duration(found['compute'])} for it, and waits."
    )
    return fact, SLOWEST


read_fast = Exercise(
    "6.2", "lesson06.read_fast", "Files that are slow to read",
    task="`data[7]` reads one picture from a file, `data[[7, 8, 9]]` reads several in one go. A read takes 40 µs, "
    "and 8 µs more for each picture in it. Return a loader that hands out all pictures in order, in batches of `size`, "
    "in host memory. The check copies them with PrefetchLoader. "
    f"The machine has {AT_MOST} cores: use at most {AT_MOST} workers.",
    target=f"{BATCHES} batches in at most 1.1x the limit, which is the time until the first batch is on the GPU, and "
    "then only computation.",
    starter='''
from torch.utils.data import DataLoader


def make_loader(data, size):
    """Return a loader over all of `data`, in order, in batches of `size`; more workers are not enough."""
    return DataLoader(data, size, num_workers=0)
''',
    answer='''
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler


def make_loader(data, size):
    """Return a loader over all of `data`, in order, in batches of `size`; each batch is one read."""
    rows = BatchSampler(SequentialSampler(data), size, drop_last=False)  # lists of `size` numbers
    return DataLoader(data, batch_size=None, sampler=rows, num_workers=2, pin_memory=True)
''',
    hints=(
        "How often does a DataLoader ask this data set for one batch, and what does each read cost?",
        "With batch_size=None, DataLoader gives each thing from `sampler` to `data[...]` as it is: also a list.",
        "torch.utils.data.BatchSampler makes lists. And one read still takes longer than the GPU's work: one worker is "
        "not enough. (A class of your own in a notebook cannot go to workers on macOS and Windows; this needs none.)",
    ),
    measure=_read_fast, arguments=("data", "size"),
)  # fmt: skip

EXERCISES = (enough, read_fast)
