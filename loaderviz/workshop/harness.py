"""What runs a learner's loader on the emulated GPU, with the check as its training loop, and measures what came out.

The exercises use small tensors, so that a check takes about a second. The machine moves bytes at a fortieth of the
speed of the lessons' laptop, so a batch of 64 behaves as one of 2560 does there: copies take as long, and calls.
"""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median
from typing import Any, Literal, TypeVar

import torch
from torch.profiler import record_function

from loaderviz import words
from loaderviz.emulator.hardware import Gpu, Host
from loaderviz.emulator.hazards import Hazard
from loaderviz.emulator.kernels import memory_time
from loaderviz.emulator.torch import handed_out, last_writers, now
from loaderviz.emulator.torch.session import Session
from loaderviz.imports import held
from loaderviz.loaders import base as loaders
from loaderviz.machine import thread_time_ns
from loaderviz.metrics import summarize
from loaderviz.recording import record
from loaderviz.timeline import Cause, Kind, Span, Timeline
from loaderviz.workshop import diagnosis
from loaderviz.workshop.diagnosis import Fact, at, stretch
from loaderviz.workshop.exercises import NotYet, Score, counted, learners_code, say, sentence

# The machine, and what can be known about a run before it runs: its limit

SLOWER = 40
FEATURES = 28 * 28  # an MNIST image
SAMPLES = 64
HIDDEN = 256
POOL_STREAMS, WARM_BLOCKS = 32, (*[2**20] * 12, 2 * 2**20)  # bytes of each block

MachineT = TypeVar("MachineT", Gpu, Host)


def variant(machine: MachineT, name: str, **numbers: Any) -> MachineT:
    """Return a machine of the exercises, in which these numbers are chosen."""
    sources = machine.sources | dict.fromkeys(numbers, "chosen for the exercises")
    return replace(machine, name=name, sources=sources, **numbers)


_LAPTOP = Gpu.preset("laptop")
GPU = variant(
    _LAPTOP,
    "workshop GPU",
    h2d=_LAPTOP.h2d // SLOWER,
    d2h=_LAPTOP.d2h // SLOWER,
    pageable=_LAPTOP.pageable // SLOWER,
    fp32=128 * 10**9,  # so that a step computes a little longer than its copy takes
    tf32=128 * 10**9,
    sms=1,  # one that holds the laptop's threads: small products fill it, too
    threads_per_sm=_LAPTOP.sms * _LAPTOP.threads_per_sm,
    malloc=2_000,  # in a long run the first allocations do not count
    malloc_small=2_000,
)
# What the checks ask about are copies and waits: their work stands for a step, whose Python costs nothing here, and
# nobody takes turns at cores or memory. A launch takes so long that a wait in each step costs what a check can see.
_PYTHON = ("python", "module", "composite", "convolution", "node", "optimizer", "parameter")
_FREE = dict.fromkeys((*_PYTHON, "cores", "crowding"), 0) | {"dispatch": 5_000}
FAST_HOST = variant(Host.preset("laptop"), "workshop host, fast memory", **_FREE)
_SLOW = FAST_HOST.memory_bandwidth // SLOWER  # in parallel, too: OMP_NUM_THREADS=1, as the guide has it for a room
HOST = variant(FAST_HOST, "workshop host", memory_bandwidth=_SLOW, parallel_bandwidth=_SLOW)


class BatchWork:
    """What the check does with each batch on the GPU: sums to recognise the data by, then a layer of a network.

    Call it inside a recording. The weights of the sums are random and known to the check only. They are whole numbers,
    and so are the data: float64 adds them without rounding, in whatever order and layout they come.
    """

    def __init__(self, weights: torch.Tensor, scale: int = 1, hidden: int = HIDDEN) -> None:
        self.weights, self.scale = weights.to("cuda"), scale
        generator = torch.Generator(device="cpu").manual_seed(0)
        self.layer = (torch.randn(len(weights), hidden, generator=generator, device="cpu") / 28).to("cuda")

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return one sum per sample, float64 `[B]`, on the GPU; `images` is `[B, FEATURES]` of any dtype."""
        whole = images.double()
        if self.scale != 1:
            whole = (whole * self.scale).round()
        sums = torch.mv(whole, self.weights)
        torch.relu(images.float() @ self.layer)
        return sums


def sums_of(images: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the sums that `BatchWork` must find, on the CPU: float64 `[B]`."""
    return torch.mv(images.flatten(1).double(), weights)


@lru_cache(maxsize=64)
def work_time(samples: int, dtype: torch.dtype = torch.float32, scale: int = 1, hidden: int = HIDDEN) -> int:
    """Return the time [ns] of the kernels of `BatchWork` for a batch that is on the GPU already (measured)."""
    with record(on=GPU, host=HOST) as recording:
        work = BatchWork(torch.ones(FEATURES, dtype=torch.float64), scale, hidden)
        images = torch.zeros(samples, FEATURES, dtype=dtype).to("cuda")
        torch.cuda.synchronize()
        work(images)
        torch.cuda.synchronize()
    return summarize(recording.timeline).kernels


def copy_time(*tensors: torch.Tensor, pinned: bool = True) -> int:
    """Return the time in ns in which these host tensors travel to the GPU, one after the other."""
    rate = GPU.h2d if pinned else GPU.pageable
    return sum(GPU.copy_time(tensor.nbytes, rate) for tensor in tensors)


def pipeline_limit(copies: Sequence[int], works: Sequence[int]) -> int:
    """Return the shortest time [ns] in which all batches can be copied and worked on, in order.

    The work on a batch begins after its copy; copies run one after the other, works too. So for each k the first k
    copies come before the works from k on, and the longest of these chains is the limit (a two-machine flow shop).

    >>> pipeline_limit([3, 3, 3], [2, 2, 2])    # three copies, and the last work
    11
    """
    done = finished = 0
    for copy, work in zip(copies, works, strict=True):
        done += copy
        finished = max(finished, done) + work
    return finished


def conversion_time(samples: int, kernels: int) -> int:
    """Return the time in ns of `kernels` elementwise kernels over the float32 images of a batch."""
    return kernels * memory_time(GPU, "elementwise", 2 * samples * FEATURES * 4)


def warm_up() -> None:
    """Fill the memory pools of all streams that a program can get, as in a training run that is under way.

    PyTorch hands out its 32 side streams in turn (R15), so the next `torch.cuda.Stream()` is one of these. Without it
    the first batches would cost the host a cudaMalloc each (R13). Call it inside a recording.
    """
    for stream in [torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(POOL_STREAMS))]:
        with torch.cuda.stream(stream):
            blocks = [torch.empty(nbytes, dtype=torch.uint8, device="cuda") for nbytes in WARM_BLOCKS]
            del blocks
    torch.cuda.synchronize()


# The data

Batch = tuple[torch.Tensor, torch.Tensor]


def generator_of(chance: random.Random) -> torch.Generator:
    """Return torch's random numbers, drawn from these."""
    return torch.Generator().manual_seed(chance.getrandbits(62))


class Data:
    """Images and labels, in batches of these sizes, and the sums by which their samples are recognised.

    images: `[N, …]`, whole numbers 0..255, FEATURES each unless a lesson has its own pictures; labels: int64 `[N]`.
    The weights of the sums are fresh.
    """

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, sizes: Sequence[int], chance: random.Random) -> None:
        self.images, self.labels, self.sizes = images, labels, tuple(sizes)
        self.weights = torch.randint(1, 2**16, (images[0].numel(),), generator=generator_of(chance)).double()
        self.sums = sums_of(images, self.weights)

    @classmethod
    def random(
        cls, sizes: Sequence[int], chance: random.Random, dtype: torch.dtype = torch.float32, below: int = 256
    ) -> Data:
        """Return fresh images `[N, FEATURES]`, and labels of which each is another one, so that it names its sample."""
        generator, count = generator_of(chance), sum(sizes)
        images = torch.randint(below, (count, FEATURES), generator=generator, dtype=torch.int32).to(dtype)
        labels = torch.randperm(max(count, 2**13), generator=generator)[:count] + chance.randrange(2**20)
        return cls(images, labels, sizes, chance)

    @property
    def batches(self) -> list[Batch]:
        """The data in batches, in order."""
        return list(zip(self.images.split(self.sizes), self.labels.split(self.sizes), strict=True))

    @property
    def recognised(self) -> list[Batch]:
        """For each batch its sums and its labels."""
        return list(zip(self.sums.split(self.sizes), self.labels.split(self.sizes), strict=True))

    @property
    def nbytes(self) -> int:
        """What all of it takes in memory."""
        return self.images.nbytes + self.labels.nbytes


class BatchSource:
    """An iterable of batches (images, labels) in host memory; make it inside a recording.

    It stands for a DataLoader whose workers (and pin thread) keep up: a batch is there when it is asked for, and costs
    the loop only the hand-out. What it hands out carries its batch number. It can be iterated again, as a DataLoader.

    `pinned`: the batches are in page-locked memory. `buffers`: the source has only so many pinned buffers and refills
    them in turn: batch k + buffers overwrites batch k.
    """

    def __init__(self, batches: Sequence[Batch], *, pinned: bool = True, buffers: int = 0) -> None:
        self._data, self._buffers = list(batches), buffers
        made = torch.Tensor.pin_memory if pinned else torch.clone
        self._ready = [(made(x), made(y)) for x, y in self._data[: buffers or None]]

    def __len__(self) -> int:
        return len(self._data)

    @property
    def changed(self) -> int | None:
        """The first batch in which there is something else than was handed out; not known of buffers."""
        pairs = () if self._buffers else zip(self._ready, self._data, strict=True)
        same = (all(map(torch.equal, mine, given)) for mine, given in pairs)
        return next((number for number, each in enumerate(same) if not each), None)

    def __iter__(self) -> Iterator[Batch]:
        return handed_out(self._filled())

    def _filled(self) -> Iterator[Batch]:
        for number in range(len(self)):
            batch = self._ready[number % len(self._ready)]
            if self._buffers and number >= self._buffers:
                for buffer, fresh in zip(batch, self._data[number], strict=True):
                    buffer.copy_(fresh)
            yield batch


# The run

LOOK_BACK = 16  # batches: memory in use by an older one is not looked for
# Processor time of a batch in the learner's code: more than so much [ns] and so many times what the check's step takes
# (right answers: less than twice as much) is work that no task asks for.
HEAVY, HEAVIER = 10_000_000, 8
WINDOW = "measured"  # the range of what counts; it begins before any code of the learner runs


@dataclass(frozen=True)
class FeedConfig:
    """What the loader is given and what is done with its batches; see `BatchSource` and `BatchWork`."""

    pinned: bool = True
    buffers: int = 0
    epochs: int = 1  # how often all batches must be handed out
    dtype: torch.dtype = torch.float32  # of the images that it must hand out
    scale: int = 1  # the images that it must hand out are the data divided by this
    changes: int = 0  # the consumer makes each pixel that is brighter so bright, in place: nobody can undo that
    travels: bool = False  # images are handed out as a copy from the host left them
    reads: bool = False  # the consumer reads a number of each step, as `loss.item()` does: the host waits for the GPU
    copies: Literal["on_wait", "eager"] = "on_wait"
    gpu: Gpu = GPU
    host: Host = HOST


@dataclass(frozen=True)
class LoaderRun:
    """A finished run: the window of its timeline, the hazards, and what the consumer saw."""

    timeline: Timeline
    hazards: Sequence[Hazard]
    seen: list[Batch]  # sums float64 [B], labels int64 [B], on the CPU
    data: Data
    config: FeedConfig
    loop: CheckLoop
    lints: Sequence[Any]
    changed: int | None  # the first batch of the source that the learner's code wrote into

    @property
    def took(self) -> int:
        """Ns from the call of the learner's function until the GPU has done the last work."""
        return self.timeline.duration

    def must_be_right(self, needed: int | None = None) -> None:
        """Raise `NotYet` unless every batch is correct and in order, came over the link, and there is no hazard.

        `needed`: bytes that must have travelled to the GPU; all epochs of the images by default (labels may be sent as
        a smaller type).
        """
        expected = self.data.recognised
        for number, (sums, labels) in enumerate(self.seen):
            wanted = expected[number % len(expected)]
            if not (torch.equal(sums, wanted[0]) and torch.equal(labels, wanted[1])):
                found = self.timeline, self.hazards, number, (sums, labels), expected, self.config.scale
                raise self.not_yet(*diagnosis.wrong_batch(*found, self.loop.values, self.config.buffers))
        self.must_not_be_reused()
        self.must_have_no_hazards()
        if self.changed is not None:
            raise self.not_yet(say("changed-source", batch=self.changed), say("keep-source"))
        self.must_be_sent(self.config.epochs * self.data.images.nbytes if needed is None else needed)

    def must_be_pinned(self, copies: Iterable[Span], rule: str, key: str = "copy-staged") -> None:
        """Raise `NotYet` at the first of these copies that comes from pageable memory; `key` is the text for it."""
        for copy in copies:
            if copy.pinned is False:
                fact = say(key, batch=copy.batch, ran=stretch(self.timeline, copy.start, copy.end))
                raise self.not_yet(fact, say(rule))

    def must_be_sent(self, needed: int) -> None:
        """Raise `NotYet` unless at least `needed` bytes travelled to the GPU in the window."""
        copied = int(self.timeline.nbytes[self.timeline.where(Kind.COPY_H2D)].sum())
        if copied < needed:
            fact = say("not-sent", copied=words.size(copied), needed=words.size(needed))
            raise self.not_yet(fact, say("must-travel"))

    def must_be_anew(self, rule: str) -> None:
        """Raise `NotYet` if a batch is what the loop, which changes each in place, left of it one epoch before."""
        left = sums_of(self.data.images.clamp(max=self.config.changes), self.data.weights).split(self.data.sizes)
        for number in range(count := len(left), len(self.seen)):
            if torch.equal(self.seen[number][0], left[number % count]):
                fact = say("as-left", batch=number, former=number - count, changes=self.config.changes)
                raise self.not_yet(fact, rule)

    def must_not_be_refilled(self) -> None:
        """Raise `NotYet` if somebody wrote into pinned memory while a copy out of it had not ended."""
        for hazard in self.hazards:
            if hazard.kind == "early-refill" and (write := hazard.second):
                copy = hazard.first
                ran = stretch(self.timeline, copy.start, copy.end) if copy.start >= 0 else say("later")
                fact = say("refilled", batch=copy.batch, time=at(self.timeline, write.start), ran=ran)
                raise self.not_yet(fact, say("R42"))

    def must_not_be_far_ahead(self, most: int, least: int = 0) -> None:
        """Raise `NotYet` if copies were ever queued for more than `most` batches after the one handed out.

        Or never for `least` of them. Counted in bytes, so one copy for several batches counts as all of them.
        """
        copies = self.timeline.rows(Kind.COPY_H2D)
        calls = sorted((call.start, copy.nbytes) for copy in copies if (call := self.timeline.call_of(copy)))
        sizes = list(itertools.accumulate(sum(part.nbytes for part in batch) for batch in self.data.batches))
        starts, queued = [start for start, _ in calls], [0, *itertools.accumulate(nbytes for _, nbytes in calls)]
        before = (queued[bisect.bisect_left(starts, time)] for time in self.loop.handed)
        ahead = [bisect.bisect_right(sizes, nbytes) - number - 1 for number, nbytes in enumerate(before)]
        usual = sorted(ahead[: max(1, len(ahead) - most)])  # in the end there are no later ones
        if not least <= max(ahead) <= most or usual[len(usual) // 2] < least:
            number = ahead.index(max(ahead) if max(ahead) > most else usual[len(usual) // 2])
            later = counted(ahead[number], "later batch")
            fact = say("ahead-wanted" if least else "ahead-allowed", batch=number, later=later, least=least, most=most)
            raise self.not_yet(fact, say("bounded"))

    def must_hold(self, most: float, rule: str = "bounded") -> None:
        """Raise `NotYet` if the loader held device memory for more than `most` batches when it handed one out."""
        held = max(self.loop.held) / max(sum(part.nbytes for part in batch) for batch in self.data.batches)
        if held > most:
            raise self.not_yet(say("held", held=held, most=most), say(rule))

    def must_let_go(self, ahead: int) -> None:
        """Raise `NotYet` if the loader ever held more device memory than for `ahead` later batches and four others."""
        sizes = [sum(part.nbytes for part in batch) for batch in self.data.batches]
        fair = max(sum(sizes[number : number + ahead + 4]) for number in range(len(sizes)))
        if max(self.loop.held) > 1.02 * fair:  # blocks are rounded up
            number, most = self.loop.held.index(max(self.loop.held)), words.size(max(self.loop.held))
            fact = say("not-dropped", batch=number, held=most, count=ahead + 4, fair=words.size(fair))
            raise self.not_yet(fact, say("bounded"))

    def must_not_drain(self, most: int) -> None:
        """Raise `NotYet` if the host waited more than `most` times until the GPU had nothing left to compute."""
        kernels, end = list(self.timeline.rows(Kind.COMPUTE)), self.timeline.begin + self.timeline.duration
        waits = [
            wait
            for wait in self.timeline.rows(Kind.WAIT)
            if wait.cause == Cause.SYNCHRONIZE
            and wait.end < end
            and any(wait.start < kernel.end <= wait.end for kernel in kernels)
            and not any(kernel.start <= wait.end < kernel.end for kernel in kernels)
        ]
        if len(waits) > most:
            wait = waits[len(waits) // 2]
            once = stretch(self.timeline, wait.start, wait.end) + diagnosis.line_of(self.timeline, wait)
            raise self.not_yet(say("drained", count=len(waits), once=once), say("R25"))

    def must_not_be_reused(self) -> None:
        """Raise `NotYet` if a copy wrote into the memory of an earlier batch while kernels still read that."""
        for copy, batch, end in self.reused():
            ran = stretch(self.timeline, copy.start, copy.end)
            fact = say("reused", batch=copy.batch, ran=ran, other=batch, end=at(self.timeline, end))
            race = next(hazard for hazard in self.hazards if hazard.kind == "early-reuse")
            raise self.not_yet(fact, diagnosis.rule_of_reuse(race))

    def reused(self) -> Iterator[tuple[Span, int, int]]:
        """Yield each copy that wrote into the memory of an earlier batch too early: (copy, batch, end of kernels)."""
        if self.config.epochs > 1 or all(hazard.kind != "early-reuse" for hazard in self.hazards):
            return  # a batch number then stands for several hand-outs; or the order is made, whatever the addresses
        reads = [diagnosis.kernels_of(self.timeline, batch)[-1:] for batch in range(len(self.loop.places))]
        for copy in diagnosis.copies(self.timeline):
            here = self.loop.places[copy.batch] if copy.batch < len(self.loop.places) else (0, 0)
            for batch in range(max(0, copy.batch - LOOK_BACK), min(copy.batch, len(self.loop.places))):
                there, last = self.loop.places[batch], reads[batch]
                if last and copy.start < last[0].end and there[0] < here[1] and here[0] < there[1]:
                    yield copy, batch, last[0].end

    def must_have_no_hazards(self) -> None:
        """Raise `NotYet` at the first race that was found."""
        for hazard in self.hazards:
            first, second = hazard.first, hazard.second
            if hazard.kind == "early-reuse" and second and first.source == self.loop.line and not first.writes:
                part = say("labels-of" if first.dtype == "int64" else "images-of")
                fact = say("still-read", part=part, batch=first.batch, line=diagnosis.line_of(self.timeline, second))
                raise self.not_yet(fact, diagnosis.rule_of_reuse(hazard))
            key, count = "hazards" if len(self.hazards) > 1 else "hazard", len(self.hazards)
            raise self.not_yet(say(key, count=count, hazard=hazard), hazard.rule)

    def limit(self, hidden: int = HIDDEN, scale: int = 1, more: int = 0) -> int:
        """Return the `pipeline_limit` [ns] of pinned batches; each needs `more` ns on the GPU beside its work."""
        copies = [copy_time(*batch) for batch in self.data.batches]
        works = [work_time(size, scale=scale, hidden=hidden) + more for size in self.data.sizes]
        return pipeline_limit(copies, works)

    def must_take(
        self, limit: int, factor: float, explain: Callable[[Timeline], Fact] = diagnosis.why_not_hidden
    ) -> Score:
        """Return the score, or raise `NotYet` with what `explain` sees if it takes longer than limit * factor."""
        score = self._say("took-limit", limit=words.duration(limit), times=self.took / limit)
        return self._within(limit * factor, score, say("target-factor", score=score, factor=factor), explain)

    def must_reach(self, target: float, explain: Callable[[Timeline], Fact]) -> Score:
        """Return the score, or raise `NotYet` if it takes longer than `target` ns, which one can beat."""
        score = self._say("took-target", target=words.duration(target))
        return self._within(target, score, score, explain)

    def _within(self, most: float, score: str, late: str, explain: Callable[[Timeline], Fact]) -> Score:
        if self.took > most:
            raise NotYet(*explain(self.timeline), late, self.timeline)
        self.must_be_light()
        return Score(score, self.timeline)

    def must_be_light(self) -> None:
        """Raise `NotYet` if the learner's own Python, which the workshop host does for nothing, is far from free here.

        What this machine takes for the check's own step is the measure, so that a slow or busy one is none.
        """
        own, step = (median(times) for times in zip(*self.loop.spent, strict=True))
        if own > max(HEAVY, HEAVIER * step):
            times = {"own": words.duration(own), "step": words.duration(step)}
            raise self.not_yet(say("own-python", **times), say("R23"))

    def _say(self, key: str, **values: object) -> str:
        took = words.duration(self.took)
        return say(key, batches=len(self.seen), took=took, hazards=len(self.hazards), **values)

    def wrong(self, number: int, key: str, rule: str) -> NotYet:
        """Return the exception for a batch of other values: read early if there is such a race, else as `key` says."""
        if diagnosis.read_early(self.hazards):
            key, rule = "read-early", "R15"
        return self.not_yet(say(key, batch=number, when="", scale=255), say(rule))

    def not_yet(self, fact: str, rule: str) -> NotYet:
        """Return the exception for a fact of this run."""
        return NotYet(sentence(fact), rule, "", self.timeline)


def feed(
    answer: Callable[..., Any],
    data: Data,
    setting: FeedConfig,
    *more: Any,
    resident: bool = False,
    count: int = 0,
    consumer: Callable[[Data, FeedConfig, int], CheckLoop] | None = None,
) -> LoaderRun:
    """Call `answer(batches, *more)` inside the measured window and consume what it yields.

    `resident`: it gets the whole data set, `answer(images, labels, *more)`, pageable in host memory. `count`: how many
    batches it must hand out, if not all of them `setting.epochs` times. `consumer`: another loop than `CheckLoop`.
    Raises `NotYet` for what is not a batch on the GPU, and whatever the learner's code raises.
    """
    with record(on=setting.gpu, host=setting.host, copies=setting.copies) as recording:
        loop = (consumer or CheckLoop)(data, setting, count)
        source = BatchSource(() if resident else data.batches, pinned=setting.pinned, buffers=setting.buffers)
        given = (data.images.clone(), data.labels.clone()) if resident else (source,)
        warm_up()
        with _own_marks() as mark, _numpy_costs(data), record_function(WINDOW):
            with learners_code():
                batches = answer(*given, *more)
            loop.consume(batches, mark)
            torch.cuda.synchronize()
        seen = [(sums.cpu(), labels.cpu()) for sums, labels in loop.seen]
    return LoaderRun(
        measured_part(recording.timeline),
        recording.hazards,
        seen,
        data,
        setting,
        loop,
        recording.lints,
        source.changed,
    )


def fed_twice(answer: Callable[..., Any], data: Data, setting: FeedConfig) -> Iterator[LoaderRun]:
    """`feed` a loop that reads its loss in each step, whose host cannot run ahead, and then one that never waits.

    Raises `NotYet` unless what each gets is right.
    """
    for reads in (True, False):
        run = feed(answer, data, replace(setting, reads=reads))
        run.must_be_right()
        yield run


class CheckLoop:
    """The training loop of the check: looks at each batch, works on it on the GPU, keeps the sums.

    `values` is the key of the text that says which values the images must have.
    """

    def __init__(self, data: Data, setting: FeedConfig, count: int) -> None:
        self.data, self.setting, self.values = data, setting, "as-sent" if setting.scale == 1 else "each-value"
        self.work = BatchWork(data.weights, setting.scale)
        self.seen: list[Batch] = []
        self.places: list[tuple[int, int]] = []  # the device addresses of the images of each batch handed out
        self.handed: list[int] = []  # when each batch was handed out, ns
        self.held: list[int] = []  # device memory that the loader held then, bytes
        self.spent: list[tuple[int, int]] = []  # processor time of this thread for each batch: theirs, and `step` [ns]
        self.wanted = (list(data.sizes) * setting.epochs)[: count or None]
        self.line = Session.running("an exercise").source()  # of the program, at which this loop stands

    def consume(self, batches: Any, mark: Callable[[int, int], None]) -> None:
        """Take the batches one by one, as a training loop does; raise `NotYet` if there are too few or too many."""
        iterator, over, own = _iterator(batches), object(), torch.cuda.memory_allocated()
        for number in range(len(self.wanted)):
            began = thread_time_ns()
            with learners_code():
                batch = next(iterator, over)
            taken = thread_time_ns() - began
            self.handed.append(now())
            self.held.append(torch.cuda.memory_allocated() - own)
            if not torch.is_grad_enabled() or torch.is_autocast_enabled("cuda"):
                torch.set_grad_enabled(True)
                torch.set_autocast_enabled("cuda", False)
                raise NotYet(say("changed-loop"), say("stays-on"))
            if batch is over:
                raise NotYet(say("too-few", number=number, wanted=len(self.wanted)))
            images, labels = self.checked(number, batch)
            del batch
            mark(number, len(images))
            if self.setting.travels:
                self.must_have_travelled(number, images)
            start = images.untyped_storage().data_ptr()
            self.places.append((start, start + images.untyped_storage().nbytes()))
            began = thread_time_ns()
            self.step(images, labels)
            self.spent.append((taken, thread_time_ns() - began))
            del images, labels
        with learners_code():
            rest = next(iterator, over)
        if rest is not over:
            raise NotYet(say("too-many", wanted=len(self.wanted)))

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Work on one batch on the GPU; keep what it is recognised by."""
        self.seen.append((self.work(images), labels.clone()))
        if self.setting.changes:
            images.clamp_(max=self.setting.changes)
        if self.setting.reads:
            self.seen[-1][0][0].item()

    def checked(self, number: int, batch: Any) -> Batch:
        """Return (images, labels), or raise `NotYet` that says why this is no batch on the GPU."""
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise NotYet(say("no-pair", batch=number, given=kind_of(batch)))
        size = self.wanted[number]
        wanted = ((size, *self.data.images.shape[1:]), self.dtypes(batch[0])), ((size,), torch.int64)
        for name, part, (shape, dtype) in zip(("images", "labels"), batch, wanted, strict=True):
            if type(part) is not torch.Tensor:
                raise NotYet(say("no-tensor", name=name, batch=number, given=kind_of(part)))
            if not part.is_cuda:
                raise NotYet(say("on-host", name=name, batch=number, device=part.device), say("on-gpu"))
            found = tuple(part.shape)
            if found[:1] != (size,) and found[:1] in {(other,) for other in self.wanted}:
                raise NotYet(say("other-size", number=number, found=found[0], wanted=size), say("in-order"))
            if found != shape or part.dtype != dtype:
                wants = f"{dtype} {shape}"
                raise NotYet(say("other-kind", name=name, batch=number, found=f"{part.dtype} {found}", wanted=wants))
        return batch[0], batch[1]

    def must_have_travelled(self, number: int, images: torch.Tensor) -> None:
        """Raise `NotYet` if the last to write images was no copy from the host."""
        for work in last_writers(images):
            if work.kind != Kind.COPY_H2D:
                former = number - len(self.data.batches)
                if self.setting.changes and former >= 0 and work.name.startswith("clamp"):  # by this loop
                    raise NotYet(say("kept-on-gpu", batch=number, former=former), say("each-epoch"))
                raise NotYet(say("written-by", batch=number, kernel=work.name), say("each-epoch"))

    def dtypes(self, images: Any) -> torch.dtype:
        """Return the dtype that the images must have."""
        return self.setting.dtype


def measured_part(timeline: Timeline) -> Timeline:
    """Return the measured part of a recording, without the range that marks it: it would take a lane in the picture."""
    window = next(span for span in timeline.rows(Kind.RANGE) if span.name == WINDOW)
    return timeline.only(timeline.name != timeline.names.index(WINDOW)).between(window.start, window.end)


@contextmanager
def _own_marks() -> Iterator[Callable[[int, int], None]]:
    """Let the check, and not a loader inside the learner's code, say which batch the loop is at."""
    hooks = loaders.on_batch, loaders.on_prefetch
    assert hooks[0] is not None, "only inside a recording"
    loaders.on_batch = loaders.on_prefetch = None
    try:
        yield hooks[0]
    finally:
        loaders.on_batch, loaders.on_prefetch = hooks


@contextmanager
def _numpy_costs(data: Data) -> Iterator[None]:
    """Let the host pay for what numpy reads and writes as for a pass of torch's own: for a batch of it at most, since
    of a whole data set numpy may take some rows.
    """
    session, taken = Session.running("numpy in an exercise"), torch.from_numpy

    def from_numpy(array: Any) -> torch.Tensor:
        result = taken(array)
        session.outside("torch.from_numpy", result.nbytes)
        return result

    session.largest_pass = max(part.nbytes for part in data.batches[0])
    with held(torch, "from_numpy", from_numpy):
        yield


def _iterator(batches: Any) -> Iterator[Any]:
    if hasattr(batches, "__iter__") or hasattr(batches, "__getitem__"):
        with learners_code():
            return iter(batches)
    raise NotYet(say("no-batches", given=kind_of(batches)))


def given(loader: Any) -> Any:
    """Return what a learner's function returned as a loader, or raise `NotYet` if nothing can go through it."""
    if not hasattr(loader, "__iter__"):
        raise NotYet(say("no-loader", given=kind_of(loader)))
    return loader


def kind_of(value: Any) -> str:
    """Return what a learner's code gave instead of what is wanted: "a list", "nothing (None)"."""
    return say("none") if value is None else say("of-a-type", type=type(value).__name__)
