"""Exercises of lesson 4, the data set on the GPU: move it once, shuffle, resume an epoch, hand out safe batches."""

from __future__ import annotations

import ast
import builtins
import itertools
import linecache
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import lru_cache
from sys import modules
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, cast

import torch

from loaderviz import words
from loaderviz.imports import held
from loaderviz.timeline import Kind, Timeline
from loaderviz.workshop import diagnosis, harness
from loaderviz.workshop.diagnosis import stretch
from loaderviz.workshop.exercises import Score, check_of, say
from loaderviz.workshop.harness import Data, FeedConfig, LoaderRun, feed

PER_EPOCH, EPOCHS = 8, 3
ALLOWED = 2 + 2 * EPOCHS  # waits: the move of the data, and an order per epoch
RESUMED = 6  # waits in a part of an epoch: the move of the data, and an order


def _data(chance: random.Random) -> Data:
    return Data.random([harness.SAMPLES] * PER_EPOCH, chance, torch.uint8)


def _limit(data: Data, batches: int) -> int:
    """Return the time [ns] of moving the data set once, as it is stored, and then of one gather and work a batch."""
    once = harness.copy_time(data.images, data.labels, pinned=False)
    work = harness.work_time(harness.SAMPLES, torch.uint8) + harness.conversion_time(harness.SAMPLES, 1)
    return once + batches * work


def _slow(timeline: Timeline) -> diagnosis.Fact:
    """Say what it is: batches that still travel, a host that waits, or a host that is busy."""
    copies = diagnosis.copies(timeline)
    if len(copies) > 4:
        copy = copies[len(copies) // 2]
        return say("many-copies", count=len(copies), once=stretch(timeline, copy.start, copy.end)), say("once")
    return diagnosis.why_idle(timeline)


def _moves_more(timeline: Timeline, data: Data, epochs: int) -> diagnosis.Fact | None:
    """Say that more bytes travel than the data set has, and the rule: it moves in each epoch, or as another type."""
    copied = sum(copy.nbytes for copy in timeline.rows(Kind.COPY_H2D))
    count = len(list(timeline.rows(Kind.COPY_H2D)))
    if copied <= 1.5 * data.nbytes and count <= 2 * PER_EPOCH:  # one for each batch and its labels, but not each time
        return None
    sizes = {"copied": words.size(copied), "once": words.size(data.nbytes)}
    rule = "once" if count > 2 else "R22"
    return say("moved-again", epochs=epochs, **sizes), say(rule)


def waits_too_often(timeline: Timeline, allowed: float = ALLOWED, *, for_index: bool = False) -> diagnosis.Fact | None:
    """Say how often the host waited for the GPU, the end of the window aside, if that is more often than allowed.

    `for_index`: only if it waits inside an indexing operator.
    """
    end = timeline.begin + timeline.duration
    waits = [span for span in timeline.rows(Kind.WAIT) if span.cause in diagnosis.WAITS and span.end < end]
    wait = waits[len(waits) // 2] if len(waits) > allowed else None
    rule = diagnosis.rule_of_index(timeline, wait) if wait else ""
    if wait is None or (for_index and not rule):
        return None
    once = stretch(timeline, wait.start, wait.end) + diagnosis.line_of(timeline, wait)
    return say(f"waits-{rule or 'often'}", count=len(waits), once=once), say(rule or "R25-loop")


def _must_not_wait(run: LoaderRun, allowed: int = ALLOWED) -> None:
    if found := waits_too_often(run.timeline, allowed):
        raise run.not_yet(*found)


def rows_of(run: LoaderRun, number: int) -> torch.Tensor:
    """Return which samples a batch holds, int64 `[B]`, by its labels; raise `NotYet` for one that no sample has."""
    (known, places), labels = run.data.labels.sort(), run.seen[number][1]
    found = torch.searchsorted(known, labels).clamp(max=len(known) - 1)
    if not torch.equal(known[found], labels):
        raise run.wrong(number, "unknown-labels", "labels-unchanged")
    return places[found]


def _order(run: LoaderRun) -> list[torch.Tensor]:
    """Return which samples each batch holds, int64 `[B]`; raise `NotYet` if one is none of the data set."""
    batches = []
    for number, (sums, _) in enumerate(run.seen):
        rows = rows_of(run, number)
        if not torch.equal(sums, run.data.sums[rows]):
            raise run.not_yet(say("unlike-labels", batch=number), say("same-rows"))
        batches.append(rows)
    return batches


def must_be_complete(run: LoaderRun, order: list[torch.Tensor], first: int = 0) -> list[torch.Tensor]:
    """Return the order of the samples in each epoch from `first` on; raise `NotYet` for one twice or never."""
    epochs = [torch.cat(order[start : start + PER_EPOCH]) for start in range(0, len(order), PER_EPOCH)]
    for number, rows in enumerate(epochs, first):
        for sample, times in enumerate(rows.bincount(minlength=len(run.data.labels)).tolist()):
            if times != 1:
                raise run.not_yet(say("sample-times", epoch=number, sample=sample, times=times), say("shuffle"))
    return epochs


def must_be_shuffled(run: LoaderRun, epochs: Sequence[torch.Tensor], size: int, *, stored: bool = True) -> None:
    """Raise `NotYet` if two of these orders (int64 `[N]`, permutations) have something in common that chance has not.

    `stored`: the order in which the samples are stored is one of those compared. Of two random orders of N samples,
    neighbours in one are as far apart in the other as any two, N / 3; the thresholds are six standard deviations away.
    """
    orders = [(say("epoch", epoch=number), rows) for number, rows in enumerate(epochs)]
    as_stored = say("as-stored"), torch.arange(len(epochs[0]))
    pairs = [*itertools.combinations(orders, 2), *((as_stored, each) for each in orders if stored)]
    for (one, former), (other, rows) in pairs:
        if torch.equal(former, rows):
            raise run.not_yet(say("same-order", other=other, one=one), say("shuffle"))
        place = former.argsort()[rows]  # where each sample was in the other order
        batches = [part.unique(return_counts=True) for part in (place // size).split(size)]
        for number, (of, common) in enumerate(batches):
            if common.max() > size // 2 and former is not as_stored[1]:
                of = int(of[common.argmax()])
                fact = say("common", batch=number, other=other, count=int(common.max()), of=of, one=one)
                raise run.not_yet(fact, say("shuffle"))
        steps = place.diff().unique(return_counts=True)[1].max() / len(rows)  # such as always to the next one
        rank = torch.corrcoef(torch.stack([place, torch.arange(len(place))]).double())[0, 1].abs()
        near = place.diff().abs().double().mean() / len(place) - 1 / 3  # such as blocks that stay together
        most = 6 / len(place) ** 0.5
        by_a_rule = steps > 1 / 16 or rank > most
        if by_a_rule or 4.2 * abs(near) > most:
            raise run.not_yet(say("by-a-rule" if by_a_rule else "near", other=other, one=one), say("shuffle"))
    for (_, first), (one, former), (other, rows) in zip(orders, orders[1:], orders[2:], strict=False):
        back, again = first.argsort(), former.argsort()
        if torch.equal(back[former], again[rows]) or torch.equal(former[back], rows[again]):
            raise run.not_yet(say("as-before", other=other, one=one), say("shuffle"))


def by_batch(mirrored: Iterable[torch.Tensor]) -> bool:
    """Tell whether of each batch, bool `[B]`, all or none are mirrored, but for a few."""
    return all(abs(each.double().mean() - 0.5) > 0.45 for each in mirrored)


@contextmanager
def _global_generators(chance: random.Random) -> Iterator[None]:
    """Draw the seeds of the global random generators, which the learner's code may use; put them back afterwards."""
    state = random.getstate()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(chance.getrandbits(62))
        random.seed(chance.getrandbits(62))
        try:
            yield
        finally:
            random.setstate(state)


# 4.a


@check_of("4.a")
def stay(answer: Callable[..., Any], chance: random.Random) -> Score:
    """Let the learner move a data set once; in a loop that never waits, and in one that reads its loss."""
    data = _data(chance)
    for reads in (True, False):
        setting = FeedConfig(epochs=EPOCHS, dtype=torch.uint8, reads=reads)
        run = feed(answer, data, setting, harness.SAMPLES, EPOCHS, resident=True)
        run.must_be_right(needed=data.nbytes)
        if found := _moves_more(run.timeline, data, EPOCHS):
            raise run.not_yet(*found)
    return run.must_take(_limit(data, EPOCHS * PER_EPOCH), 1.2, _slow)


# 4.1


@check_of("4.1")
def shuffle(answer: Callable[..., Any], chance: random.Random) -> Score:
    data = _data(chance)
    with _global_generators(chance):
        run = feed(answer, data, FeedConfig(epochs=EPOCHS, dtype=torch.uint8), harness.SAMPLES, EPOCHS, resident=True)
    must_be_shuffled(run, must_be_complete(run, _order(run)), harness.SAMPLES)
    run.must_be_sent(data.nbytes)
    run.must_have_no_hazards()
    _must_not_wait(run)
    return run.must_take(_limit(data, EPOCHS * PER_EPOCH), 1.1, _slow)


# 4.2


def in_new_process(answer: Callable[..., Any]) -> Callable[..., Any]:
    """Return the learner's function as another process would have it, which knows nothing of former calls.

    Modules, and functions of others, are shared. What else its globals, closures, defaults and attributes name is
    copied, where it can be copied; what its file assigns from a call is asked for anew, such as a random number.
    `hash` of a text is another one in each process.
    """
    home, salt = getattr(answer, "__globals__", None) or vars(modules.get(answer.__module__, object)), object()
    salted = {"hash": lambda value: hash((id(salt), value) if isinstance(value, (str, bytes)) else value)}
    place = {"__builtins__": vars(builtins) | salted, "__name__": home.get("__name__")}
    return cast("Callable[..., Any]", _anew(answer, home, place, {}))


def _anew(value: Any, home: dict[str, Any], place: dict[str, Any], copies: dict[int, Any]) -> Any:
    """Return a copy of a value of the program whose globals are `home`, for one whose globals are `place`."""
    if isinstance(value, FunctionType):
        return _function_anew(value, home, place, copies) if value.__globals__ is home else value
    if isinstance(value, type) and value.__module__ == home.get("__name__"):
        parts = {name: part for name, part in vars(value).items() if name not in ("__dict__", "__weakref__")}
        copies[id(value)] = copy = copies.get(id(value)) or type(value.__name__, value.__bases__, {})
        for name in parts.keys() - vars(copy).keys():
            setattr(copy, name, parts[name])
            setattr(copy, name, _anew(parts[name], home, place, copies))
        return copy
    if hasattr(value, "cache_parameters"):
        return lru_cache(**value.cache_parameters())(_anew(value.__wrapped__, home, place, copies))
    try:
        return value if isinstance(value, (ModuleType, type)) else deepcopy(value)
    except Exception:
        return value


def _function_anew(
    function: FunctionType, home: dict[str, Any], place: dict[str, Any], copies: dict[int, Any]
) -> FunctionType:
    if id(function) in copies:
        return cast(FunctionType, copies[id(function)])
    cells, old = function.__closure__ or (), function.__code__
    copy = FunctionType(old, place, function.__name__, None, tuple(CellType() for _ in cells))
    copies[id(function)] = copy  # before its parts, which may name it
    for cell, before in zip(copy.__closure__ or (), cells, strict=True):
        cell.cell_contents = _anew(before.cell_contents, home, place, copies)
    copy.__defaults__, copy.__kwdefaults__ = deepcopy((function.__defaults__, function.__kwdefaults__))
    vars(copy).update({name: _anew(part, home, place, copies) for name, part in vars(function).items()})
    for name in _names_in(old):
        if name in home and name not in place:
            place[name] = None
            place[name] = _anew(_assigned(name, home, old.co_filename), home, place, copies)
    return copy


def _assigned(name: str, home: dict[str, Any], file: str) -> Any:
    """Return what a global of the learner's file holds; data that a call gave are what it gives now."""
    if not isinstance(home[name], (int, float, str, list, tuple, torch.Tensor, torch.Generator, random.Random)):
        return home[name]
    with suppress(Exception):  # no source, or a call that works once
        body = ast.parse("".join(linecache.getlines(file))).body
        assigned = [
            each.value for each in body if isinstance(each, ast.Assign) and name in map(ast.unparse, each.targets)
        ]
        if any(isinstance(part, ast.Call) for part in ast.walk(assigned[-1])):
            return eval(compile(ast.Expression(assigned[-1]), file, "eval"), home)
    return home[name]


def _names_in(code: CodeType) -> Iterator[str]:
    """Yield the global names that a function uses, those of functions inside it, too."""
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _names_in(part)


@contextmanager
def _another_process(chance: random.Random) -> Iterator[None]:
    """Begin at another time, with another number of the process and of its parent."""
    numbers = [chance.randrange(2**15) for _ in range(2)]
    later = time.time_ns() + chance.randrange(10**9, 10**15)
    with (
        held(os, "getpid", lambda: numbers[0]), held(os, "getppid", lambda: numbers[1]),
        held(time, "time_ns", lambda: later), held(time, "time", lambda: later / 1e9),
    ):  # fmt: skip
        yield


@check_of("4.2")
def resume(answer: Callable[..., Any], chance: random.Random) -> Score:
    data, epoch, first = _data(chance), chance.randrange(1000), chance.randrange(1, PER_EPOCH - 1)

    def run_from(number: int, start: int) -> tuple[LoaderRun, list[torch.Tensor]]:
        arguments, count = (harness.SAMPLES, number, start), PER_EPOCH - start
        with _global_generators(chance), _another_process(chance):
            setting, seed = FeedConfig(dtype=torch.uint8), torch.initial_seed()
            run = feed(in_new_process(answer), data, setting, *arguments, resident=True, count=count)
            if torch.initial_seed() != seed:
                raise run.not_yet(say("global-seed"), say("own-generator"))
        return run, _order(run)

    whole, order = run_from(epoch, 0)
    later = [torch.cat(run_from(number, 0)[1]) for number in (epoch + 1, epoch + 2)]
    must_be_shuffled(whole, [*must_be_complete(whole, order, epoch), *later], harness.SAMPLES)
    run, rest = run_from(epoch, first)
    for number, (mine, wanted) in enumerate(zip(rest, order[first:], strict=True), first):
        if not torch.equal(mine, wanted):
            place = next((k for k, rows in enumerate(order) if torch.equal(rows, mine)), None)
            what = say("instead", batch=place) if place is not None else say("other-samples")
            fact = say("resumed-wrong", epoch=epoch, first=first, batch=number, what=what)
            raise run.not_yet(fact, say("by-the-epoch"))
    run.must_be_sent(data.nbytes)
    run.must_have_no_hazards()
    _must_not_wait(run, RESUMED)
    return run.must_take(_limit(data, PER_EPOCH - first), 1.25, _slow)


# 4.3


@check_of("4.3")
def safe(answer: Callable[..., Any], chance: random.Random) -> Score:
    data, changes = _data(chance), chance.randrange(50, 200)
    run = feed(answer, data, FeedConfig(epochs=2, changes=changes), harness.SAMPLES, 2, resident=True)
    run.must_be_anew(say("view"))
    run.must_be_right(needed=data.nbytes)
    return run.must_take(_limit(data, 2 * PER_EPOCH), 1.2, lambda mine: _moves_more(mine, data, 2) or _slow(mine))
