"""Run a learner's loader on the emulated GPU, with the check as its consumer, and judge what came out.

run = feed(answer, data, Setting(...))      # raises NotYet at the first batch that is none
run.must_be_right()                         # every batch correct and in order, no hazards, every byte travelled
run.took                                    # ns, from the call to the end of the last work on the GPU
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.profiler import record_function

from loaderviz import words
from loaderviz.emulator.hardware import Gpu, Host
from loaderviz.emulator.torch_cuda.tags import tag_of
from loaderviz.loaders import marks
from loaderviz.recording import record
from loaderviz.timeline import Kind, Span, Timeline
from loaderviz.workshop import facts, machine
from loaderviz.workshop.outcome import NotYet, learners_code
from loaderviz.workshop.source import Batch, Data, Source

LOOK_BACK = 16  # batches: memory in use by an older one is not looked for
WINDOW = "measured"  # the range of what counts; it begins before any code of the learner runs
Seen = tuple[torch.Tensor, torch.Tensor]  # sums float64 [B], labels int64 [B], on the CPU


@dataclass(frozen=True)
class Setting:
    """What the loader is given and what is done with its batches; see `Source` and `Work`."""

    pinned: bool = True
    buffers: int = 0
    epochs: int = 1  # how often all batches must be handed out
    dtype: torch.dtype = torch.float32  # of the images that it must hand out
    scale: int = 1  # the images that it must hand out are the data divided by this
    changes: bool = False  # the consumer changes the images in place
    copies: Literal["on_wait", "eager"] = "on_wait"
    gpu: Gpu = machine.GPU
    host: Host = machine.HOST


@dataclass(frozen=True)
class Run:
    """A finished run: the window of its timeline, the hazards, and what the consumer saw."""

    timeline: Timeline
    hazards: Sequence[Any]
    seen: list[Seen]
    data: Data
    epochs: int = 1
    refills: Sequence[tuple[int, int]] = ()  # when the source overwrote which batch
    places: Sequence[tuple[int, int]] = ()  # the device addresses of the images of each batch handed out
    findings: Sequence[Any] = ()

    @property
    def took(self) -> int:
        """Ns from the call of the learner's function until the GPU has done the last work."""
        return self.timeline.duration

    def must_be_right(self, needed: int | None = None) -> None:
        """Raise `NotYet` unless every batch is correct and in order, came over the link, and there is no hazard.

        `needed`: bytes that must have travelled to the GPU; all epochs of the data by default.
        """
        sizes = self.data.sizes
        expected = list(zip(self.data.sums.split(sizes), self.data.labels.split(sizes), strict=True))
        for number, (sums, labels) in enumerate(self.seen):
            wanted = expected[number % len(expected)]
            if not (torch.equal(sums, wanted[0]) and torch.equal(labels, wanted[1])):
                raise self.not_yet(*facts.wrong_batch(self.timeline, number, (sums, labels), expected))
        self.must_not_be_reused()
        self.must_have_no_hazards()
        if needed is None:
            needed = self.epochs * (self.data.images.nbytes + self.data.labels.nbytes)
        self.must_be_sent(needed)

    def must_be_sent(self, needed: int) -> None:
        """Raise `NotYet` unless at least `needed` bytes travelled to the GPU in the window."""
        copied = facts.bytes_copied(self.timeline)
        if copied < needed:
            raise self.not_yet(
                f"only {words.size(copied)} were copied to the GPU; the batches have {words.size(needed)}",
                "each batch must travel from the host to the GPU in the measured time, as often as it is handed out",
            )

    def must_not_be_overwritten(self) -> None:
        """Raise `NotYet` if the source refilled a buffer while a copy out of it had not ended."""
        for time, batch in self.refills:
            for copy in facts.copies(self.timeline):
                if copy.batch == batch and copy.end > time:
                    fact = (
                        f"the source overwrote the memory of batch {batch} at {facts.at(self.timeline, time)}, but the "
                        f"copy out of it ran {facts.stretch(self.timeline, copy.start, copy.end)}"
                    )
                    raise self.not_yet(fact, facts.REFILL)

    def must_not_be_reused(self) -> None:
        """Raise `NotYet` if a copy wrote into the memory of an earlier batch while kernels still read that."""
        for copy, batch, end in self.reused():
            fact = (
                f"the copy of batch {copy.batch} runs {facts.stretch(self.timeline, copy.start, copy.end)} and "
                f"writes into the memory of batch {batch}, but kernels read that until {facts.at(self.timeline, end)}"
            )
            raise self.not_yet(fact, facts.REUSE)

    def reused(self) -> Iterator[tuple[Span, int, int]]:
        """Yield each copy that wrote into the memory of an earlier batch too early: (copy, batch, end of kernels)."""
        if self.epochs > 1 or all(hazard.kind != "early-reuse" for hazard in self.hazards):
            return  # a batch number then stands for several hand-outs; or the order is made, whatever the addresses
        ends = {batch: facts.kernels_of(self.timeline, batch)[-1:] for batch in range(len(self.places))}
        for copy in facts.copies(self.timeline):
            here = self.places[copy.batch] if copy.batch < len(self.places) else (0, 0)
            for batch in range(max(0, copy.batch - LOOK_BACK), min(copy.batch, len(self.places))):
                reads = ends[batch]
                if reads and copy.start < reads[0].end and _overlap(self.places[batch], here):
                    yield copy, batch, reads[0].end

    def must_have_no_hazards(self) -> None:
        """Raise `NotYet` at the first race that was found."""
        for hazard in self.hazards:
            count = f"{len(self.hazards)} hazards, the first: " if len(self.hazards) > 1 else "one hazard: "
            raise self.not_yet(f"{count}{hazard.line}. To repair it: {hazard.fix}", hazard.rule)

    def must_take(self, limit: int, factor: float, explain: Callable[[Timeline], tuple[str, str]]) -> str:
        """Return the score line, or raise `NotYet` with what `explain` sees if it takes longer than limit * factor."""
        score = self.score(limit)
        if self.took > limit * factor:
            fact, rule = explain(self.timeline)
            raise NotYet(fact, rule, f"{score} The target is {factor}x.", self.timeline)
        return score

    def score(self, limit: int) -> str:
        """Return the line with the numbers."""
        return (
            f"{len(self.seen)} batches in {words.duration(self.took)}: {self.took / limit:.2f}x the limit of "
            f"{words.duration(limit)}. {len(self.hazards)} hazards."
        )

    def not_yet(self, fact: str, rule: str) -> NotYet:
        """Return the exception for a fact of this run."""
        return NotYet(f"{fact[:1].upper()}{fact[1:].rstrip('.')}.", rule, "", self.timeline)


def feed(
    answer: Callable[..., Any], data: Data, setting: Setting, *more: Any, resident: bool = False, count: int = 0,
    consumer: Callable[[Data, Setting, int], Consumer] | None = None,
) -> Run:  # fmt: skip
    """Call `answer(batches, *more)` inside the measured window and consume what it yields.

    `resident`: it gets the whole data set, `answer(images, labels, *more)`, pageable in host memory. `count`: how many
    batches it must hand out, if not all of them `setting.epochs` times. `consumer`: another loop than `Consumer`.
    Raises `NotYet` for what is not a batch on the GPU, and whatever the learner's code raises.
    """
    with record(on=setting.gpu, host=setting.host, copies=setting.copies) as recording:
        loop = (consumer or Consumer)(data, setting, count)
        source = Source(() if resident else data.batches, pinned=setting.pinned, buffers=setting.buffers)
        given = (data.images.clone(), data.labels.clone()) if resident else (source,)
        machine.warm_up()
        with _own_marks() as mark, record_function(WINDOW):
            with learners_code():
                batches = answer(*given, *more)
            loop.consume(batches, mark)
            torch.cuda.synchronize()
        seen = [(sums.cpu(), labels.cpu()) for sums, labels in loop.seen]
    return Run(
        window_of(recording.timeline), recording.hazards, seen, data, setting.epochs, source.refills, loop.places,
        recording.findings,
    )  # fmt: skip


class Consumer:
    """The training loop of the check: looks at each batch, works on it on the GPU, keeps the sums."""

    def __init__(self, data: Data, setting: Setting, count: int) -> None:
        self.data, self.setting = data, setting
        self.work = machine.Work(data.weights, setting.scale)
        self.seen: list[Seen] = []
        self.places: list[tuple[int, int]] = []
        self.wanted = (list(data.sizes) * setting.epochs)[: count or None]

    def consume(self, batches: Any, mark: Callable[[int, int], None]) -> None:
        """Take the batches one by one, as a training loop does; raise `NotYet` if there are too few or too many."""
        iterator = _iterator(batches)
        for number in range(len(self.wanted)):
            with learners_code():
                batch = next(iterator, None)
            if batch is None:
                raise NotYet(f"{number} batches were handed out, but {len(self.wanted)} were wanted.")
            images, labels = self.checked(number, batch)
            del batch
            mark(number, len(images))
            self.places.append(_place(images))
            self.step(images, labels)
            del images, labels
        with learners_code():
            rest = next(iterator, None)
        if rest is not None:
            raise NotYet(f"More than {len(self.wanted)} batches were handed out: after the last one, stop.")

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Work on one batch on the GPU; keep what it is recognised by."""
        self.seen.append((self.work(images), labels.clone()))
        if self.setting.changes:
            images.sub_(1)

    def checked(self, number: int, batch: Any) -> Batch:
        """Return (images, labels), or raise `NotYet` that says why this is no batch on the GPU."""
        what = f"Batch {number}"
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise NotYet(f"{what} is {_said(batch)}: a batch is a pair (images, labels).")
        size = self.wanted[number]
        wanted = ((size, *self.data.images.shape[1:]), self.dtypes(batch[0])), ((size,), torch.int64)
        for name, part, (shape, dtype) in zip(("images", "labels"), batch, wanted, strict=True):
            if type(part) is not torch.Tensor:
                raise NotYet(f"The {name} of batch {number} are {_said(part)}: a tensor is wanted.")
            if not part.is_cuda:
                raise NotYet(
                    f"The {name} of batch {number} are still in host memory (device {part.device}).",
                    "a batch must be on the GPU when it is handed out",
                )
            if tuple(part.shape) != shape or part.dtype != dtype:
                raise NotYet(
                    f"The {name} of batch {number} are {part.dtype} {tuple(part.shape)}; {dtype} {shape} is wanted."
                )
        return batch[0], batch[1]

    def dtypes(self, images: Any) -> torch.dtype:
        """Return the dtype that the images must have."""
        return self.setting.dtype


def window_of(timeline: Timeline) -> Timeline:
    """Return the measured part of a recording, without the range that marks it: it would take a lane in the picture."""
    window = next(span for span in timeline.rows(Kind.RANGE) if span.name == WINDOW)
    return timeline.only(timeline.name != timeline.names.index(WINDOW)).between(window.start, window.end)


@contextmanager
def _own_marks() -> Iterator[Callable[[int, int], None]]:
    """Let the check, and not a loader inside the learner's code, say which batch the loop is at."""
    hooks = marks.on_batch, marks.on_prefetch
    assert hooks[0] is not None, "only inside a recording"
    marks.on_batch = marks.on_prefetch = None
    try:
        yield hooks[0]
    finally:
        marks.on_batch, marks.on_prefetch = hooks


def _iterator(batches: Any) -> Iterator[Any]:
    if hasattr(batches, "__iter__") or hasattr(batches, "__getitem__"):
        with learners_code():
            return iter(batches)
    raise NotYet(
        f"Your function returned {_said(batches)}. It must hand out the batches one by one: use `yield`, or return "
        "something that a `for` loop can go through."
    )


def _place(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the device addresses of a tensor's block, [start, end)."""
    block = tag_of(tensor).block
    return block.address, block.address + block.size


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _said(value: Any) -> str:
    return "nothing (None)" if value is None else f"a {type(value).__name__}"
