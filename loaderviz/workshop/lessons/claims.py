"""Lesson 9, what the articles say: claims as data, an experiment for each, and a verdict computed on five machines.

The articles are found by everybody who searches for this subject. They are quoted in our words, with their numbers.
"""

import os
import random
import time
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from loaderviz import words
from loaderviz.emulator.hardware import RECEIVING, SENDING, Gpu, Host
from loaderviz.metrics import summarize
from loaderviz.recording import record
from loaderviz.timeline import Timeline, gathered
from loaderviz.workshop.exercises import (
    ExerciseError,
    Note,
    NotYet,
    Prediction,
    Score,
    as_markdown,
    as_text,
    boxed,
    check_of,
    counted,
    learners_code,
    say,
)
from loaderviz.workshop.loop import HOST, network, steps

WARM_UP = 4  # steps before the clock starts
CHOICES = ("true", "false", "it depends")


@dataclass(frozen=True)
class Claim:
    """A sentence that people repeat. It holds where the experiment's number is from `holds[0]` to `holds[1]`.

    `shows` says what the number is, `decides` what it depends on, as a formula; `when` where the claim is right.
    """

    key: str
    article: int
    text: str
    shows: str
    holds: tuple[float, float]
    decides: str
    when: str
    zh: Mapping[str, str] | None = None

    def said(self, part: str) -> str:
        """Return `text`, `shows`, `decides` or `when` in the learner's language; the book's are in English only."""
        return str((words.in_language(vars(self)) or vars(self))[part])


_TABLES = tomllib.loads((Path(__file__).parents[1] / "claims.toml").read_text(encoding="utf-8"))
CLAIMS, BOOK = ({key: Claim(key, **fields) for key, fields in _TABLES[part].items()} for part in ("lesson", "book"))
ANY = float("inf")


class Samples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """`count` samples of this shape; each takes `cost` seconds to load, or none when it is in the cache."""

    def __init__(
        self,
        count: int,
        shape: tuple[int, ...] = (1, 28, 28),
        cost: float = 0.0,
        *,
        cache: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.count, self.cost, self.cache = count, cost, cache
        self.known: set[int] = set()
        self.sample = torch.zeros(shape, dtype=dtype), torch.tensor(0)  # one for all: an experiment is about time

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.cost and index not in self.known:
            time.sleep(self.cost)
        if self.cache:
            self.known.add(index)
        return self.sample


class Processes(Dataset[int]):
    """As many samples, each the number of the process that loads it."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return os.getpid()


class Slices:
    """Batches as slices of tensors, which are moved to the device when the first one is asked for."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, size: int, device: str) -> None:
        self.parts, self.size, self.device = (images, labels), size, device

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        return zip(*(part.to(self.device).split(self.size) for part in self.parts), strict=True)


@dataclass(frozen=True)
class Trained:
    """What was seen of a training, after the warm-up: ns a step, shares, peak of the GPU's memory in bytes."""

    step: float
    hidden: float
    busy: float
    peak: int
    timeline: Timeline


@dataclass(frozen=True)
class Machine:
    """A machine of the experiments: an emulated GPU, or none (`device` is "cpu" then), in an emulated host."""

    name: str
    gpu: str | Gpu
    device: str = "cuda"
    host: str | Host = HOST

    def train(
        self, loader: Iterable[Any], hidden: int = 128, *, non_blocking: bool = False, epochs: int = 1
    ) -> Trained:
        """Train a network with so many hidden units on all batches, each brought here by `.to`.

        The clock starts after WARM_UP batches of the last epoch.
        """
        done = 0
        # torch counts the cores of this computer, and warns of them
        with warnings.catch_warnings(action="ignore"), record(on=self.gpu, host=self.host) as recording:
            model: Any = None
            for _ in range(epochs):
                done = 0
                for x, y in steps(loader, WARM_UP):
                    if done == WARM_UP:
                        begin = time.perf_counter_ns()
                    x, y = (part.to(self.device, non_blocking=non_blocking) for part in (x, y))
                    if model is None:
                        model = network(x[0].numel(), hidden).to(self.device)
                        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                    optimizer.zero_grad()
                    cross_entropy(model(x), y).backward()
                    optimizer.step()
                    done += 1
            torch.cuda.synchronize()
            end, peak = time.perf_counter_ns(), torch.cuda.max_memory_allocated()
        timeline = recording.timeline.from_batch((epochs - 1) * done + WARM_UP)
        summary = summarize(timeline)
        busy = summary.compute / max(1, end - begin)
        return Trained((end - begin) / (done - WARM_UP), summary.overlap or 0.0, busy, peak, timeline)

    def copy(self, nbytes: int, *, pinned: bool) -> int | None:
        """Return the time [ns] of one blocking copy to the GPU; None where there is none."""
        if self.device == "cpu":
            return None
        with record(on=self.gpu, host=HOST):
            x = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=pinned)
            for _ in range(2):  # the first one takes memory
                begin = time.perf_counter_ns()
                x.to(self.device)
            return time.perf_counter_ns() - begin


GPUS = "laptop", "t4", "a100", "h100"
MACHINES = (*(Machine(name, name) for name in GPUS), Machine("no GPU", "laptop", "cpu"))
Number = float | None
Experiment = Callable[[Machine], Number | Mapping[str, Number]]


@dataclass(frozen=True, repr=False)
class Verdict:
    """Where a claim holds. `numbers` has for each machine (and case) what the experiment returned, None: not judged."""

    claim: Claim
    numbers: dict[tuple[str, str], Number]
    said: str = ""

    @property
    def holds(self) -> dict[tuple[str, str], bool]:
        """For each machine and case that could be judged whether the claim holds there."""
        low, high = self.claim.holds
        return {where: low <= number <= high for where, number in self.numbers.items() if number is not None}

    @property
    def word(self) -> str:
        """One of CHOICES, or "not judged"."""
        held = self.holds.values()
        return CHOICES[0 if all(held) else 2 if any(held) else 1] if held else "not judged"

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The numbers as text: a row for each machine, with its cases; a number for which the claim holds has a ✔."""
        cases = list(dict.fromkeys(case for _, case in self.numbers))
        machines = dict.fromkeys(machine for machine, _ in self.numbers)
        rows = ((machine, *(self._cell((machine, case)) for case in cases)) for machine in machines)
        return [(say("the-machine"), *cases), *rows]

    def _cell(self, where: tuple[str, str]) -> str:
        number = self.numbers.get(where)
        return say("not judged") if number is None else f"{number:.3g}{' ✔' if self.holds[where] else ''}"

    @property
    def lines(self) -> list[str]:
        """The verdict in words."""
        judged = [number for number in self.numbers.values() if number is not None]
        if not judged:
            return [self.said, say("not-judged")]
        low, high = self.claim.holds
        wanted = say("or-more" if high == ANY else "exactly" if low == high else "from-to", low=low, high=high)
        shows, least, most = self.claim.said("shows"), min(judged), max(judged)
        shows = shows[:1].upper() + shows[1:]
        return [
            self.said,
            say("verdict", word=say(self.word), where=self._where()),
            say("verdict-shows", shows=shows, least=least, most=most, wanted=wanted),
            say("verdict-because", decides=self.claim.said("decides")),
            say("verdict-when", when=self.claim.said("when")),
        ]

    def _where(self) -> str:
        """Say on how many machines the claim is true, and, of several cases, in which."""
        by_machine, by_case = (gathered((where[part], held) for where, held in self.holds.items()) for part in (0, 1))
        machines = counted(len(by_machine), "machine")
        every, some = (sum(map(judge, by_machine.values())) for judge in (all, any))
        said = say("true-on", some=some, machines=machines)
        if len(by_case) > 1:
            counts = ((case, sum(held), len(held)) for case, held in by_case.items())
            cases = say("comma").join(say("in-case", case=case, true=true, tried=tried) for case, true, tried in counts)
            said += say("in-each-case" if every == some else "in-some-case", every=every, cases=cases)
        left_out = {machine for machine, _ in self.numbers} - set(by_machine)
        return said + (say("left-out", machines=say("comma").join(sorted(left_out))) if left_out else "")

    def __repr__(self) -> str:
        return "\n".join([*filter(None, self.lines), as_text(self.rows)])

    def _repr_markdown_(self) -> str:
        table = as_markdown(self.rows, "l".ljust(len(self.rows[0]), "r"))
        return f"{boxed(*filter(None, self.lines))}\n\n{table}"


class Card(Prediction):
    """A claim, and what the reader thinks of it."""

    def __init__(self, claim: Claim) -> None:
        question, choices = say("article", article=claim.article, text=claim.said("text")), [*map(say, CHOICES)]
        super().__init__(question, choices, lambda: say(self._verdict.word))
        self.claim = claim
        self._verdict = Verdict(claim, {})

    def judge(self, experiment: Experiment, machines: Iterable[Machine] = MACHINES) -> Verdict | Note:
        """Run `experiment(machine)` on each machine; return the verdict, or, the first time, ask for a prediction.

        The experiment returns a number, a number for each case (by its name), or None where it cannot be tried.
        """
        if self.choice is None and self._asked < self.asks:
            return self.reveal()
        found = {machine.name: experiment(machine) for machine in machines}
        names = next((list(each) for each in found.values() if isinstance(each, Mapping)), [say("number")])
        cases = {
            name: each if isinstance(each, Mapping) else dict.fromkeys(names, each) for name, each in found.items()
        }
        self._verdict = Verdict(self.claim, {(name, case): cases[name][case] for name in cases for case in names})
        said = say("you-said", choice=self.choice) if self.choice else ""
        return replace(self._verdict, said=said)


def card(key: str) -> Card:
    """Return the card of a claim. Raises `ExerciseError` for a claim that is none."""
    if key not in CLAIMS:
        raise ExerciseError(say("no-claim", claim=key, known=say("comma").join(CLAIMS)))
    return Card(CLAIMS[key])


HERE = (Machine("here", "laptop", "cpu"),)  # for what is tried on this computer, and has nothing to do with a GPU

# 9.1

# Its batches come from workers for nothing: else pinning also moves that work to another thread, which always pays
FREE: dict[str, Any] = dict.fromkeys((*SENDING, *RECEIVING), 0)
NEAR = replace(Host.preset(HOST), name="a near host", **FREE)
LEAST, MARGIN = 0.1, 0.03  # the share that the claim promises; no case is nearer to it than the margin
TRUE, FALSE = 3, ("link", "pictures", "batch", "workers")  # how many cases; why a case is none
CASES = TRUE + len(FALSE)


@check_of("9.1")
def pays(answer: Callable[..., Any], chance: random.Random) -> Score:
    """Compare the learner's verdicts with ours, on machines and data that nobody has seen; three of them are True."""
    cases = [*_drawn(("",) * TRUE, chance), *_drawn(FALSE, chance)]
    chance.shuffle(cases)
    said = []
    for case in cases:
        with learners_code():
            returned = answer(case.machine, case.data, case.size, case.workers)
        if str(getattr(returned, "dtype", "")) in ("bool", "torch.bool") and returned.ndim == 0:  # of numpy, of torch
            returned = bool(returned)
        if not isinstance(returned, bool):
            raise NotYet(say("verdict-wanted", returned=returned))
        said.append(returned)
    wrong = [case for case, verdict in zip(cases, said, strict=True) if verdict != case.holds]
    if wrong:
        same = say("same-verdict", said=said[0]) if len(set(said)) == 1 else ""
        fact = say("verdicts-wrong", count=len(wrong), all=CASES, same=same, case=wrong[0])
        raise NotYet(fact, say("one-difference"), "", wrong[0].timeline)
    return Score(say("verdicts-right", count=CASES, case=cases[-1]), cases[-1].timeline)


@dataclass(frozen=True)
class PinningCase:
    """A machine and data, and the time of a step [ns] there, without pinning and with it."""

    machine: Machine
    data: Samples
    rates: tuple[float, float]  # of copies from ordinary and from pinned memory [GB/s]
    size: int
    workers: int
    steps: tuple[float, float]
    timeline: Timeline

    @property
    def saved(self) -> float:
        """The share of a step that pinning saves."""
        return 1 - self.steps[1] / self.steps[0]

    @property
    def holds(self) -> bool:
        """Whether the claim of the exercise holds here."""
        return self.saved >= LEAST

    def __str__(self) -> str:
        shape, (plain, pinned) = " x ".join(map(str, self.data.sample[0].shape)), map(words.duration, self.steps)
        workers = counted(self.workers, "worker")
        return say("pinning-case", case=self, shape=shape, workers=workers, plain=plain, pinned=pinned)


def _drawn(ways: Sequence[str], chance: random.Random) -> Iterator[PinningCase]:
    """Draw a case for each: pinning pays there, or does not for this reason: a link, small pictures, few of them."""
    for way in ways:
        while True:
            gpu = Gpu.preset(chance.choice(GPUS))
            rate = int(chance.uniform(6, 20) * 10**9)
            slower = chance.uniform(0.9, 1) if way == "link" else chance.uniform(0.2, 0.4)
            secret = replace(gpu.behind(rate, int(rate * slower)), name="a secret GPU")
            # Batches of less than 1 MiB: larger ones are still being page-locked when the clock starts.
            side = chance.randrange(8, 14) if way == "pictures" else chance.randrange(44, 62)
            size, workers = chance.choice((4, 6) if way == "batch" else (56, 64)), 0 if way == "workers" else 2
            machine, data = Machine("secret", secret, host=NEAR), Samples(8 * max(size, 40), (1, side, side))
            loaders = (DataLoader(data, size, num_workers=workers, pin_memory=pin) for pin in (False, True))
            plain, pinned = (machine.train(loader) for loader in loaders)
            rates = secret.pageable / 1e9, rate / 1e9
            case = PinningCase(machine, data, rates, size, workers, (plain.step, pinned.step), pinned.timeline)
            if case.holds == (not way) and abs(case.saved - LEAST) > MARGIN:
                yield case
                break
