"""The interpreter's lock, predicted beside measured here (R53): Python and C in two and four threads.

    python -m benchmarks.gil         # measure, keep it in gil.csv, and print both as a table

docs/validation.md has the table of what is kept.

What a piece of Python and a call of C take is measured in one thread, each in processor time; what a switch takes are
the preset's numbers, and Python's own interval. The same program then runs here and on the emulated host, so nothing is
fitted. A ratio is a thread's pieces beside the others over those that it does alone, in runs that alternate; so it is
the same on a slower machine, but not on one whose cores others use: the table says how much of them the threads got.
Where it may, the process asks for more of them than others (`nice`).
"""

from __future__ import annotations

import csv
import hashlib
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

import loaderviz as lv
from loaderviz import machine
from loaderviz.emulator.hardware import Host

FOUND = Path(__file__).with_name("gil.csv")
SECONDS, ROUNDS, GOAL = 0.25, 5, 0.15
FEW = 0.01  # of what a thread does alone: so little is counted in calls, and not judged in percent
WORDS, DATA = 400, bytes(2**22)  # additions in a piece of Python; what C makes sums of
CALLS = {"C 10 us": 10, "C 200 us": 200, "C 5 ms": 5000}  # about so many us a call, on this machine
CASES = (
    ("Python",) * 2, ("Python",) * 4, ("C 5 ms",) * 2, ("C 5 ms",) * 4, ("C 10 us",) * 2,
    *((call, *["Python"] * count) for call in CALLS for count in (1, 3)),
    ("operator", "Python"), ("operator", "Python", "Python", "Python"),
)  # fmt: skip
Pieces = dict[str, Callable[[], object]]


class Run(NamedTuple):
    """How many pieces each thread did, on average one of a kind, and how much of the cores they got."""

    counts: dict[str, float]
    share: float


def together(kinds: Sequence[str], pieces: Pieces, seconds: float) -> Run:
    """Run a thread for each of these kinds, for so long from when all are there; here or on an emulated host."""
    begin, counts, used = time.perf_counter() + 0.02, [0] * len(kinds), [0.0] * len(kinds)

    def work(number: int) -> None:
        piece, count = pieces[kinds[number]], 0
        time.sleep(max(0.0, begin - time.perf_counter()))
        start = time.thread_time()
        while time.perf_counter() < begin + seconds:
            piece()
            count += 1
        counts[number], used[number] = count, time.thread_time() - start

    threads = [threading.Thread(target=partial(work, number)) for number in range(len(kinds))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    by_kind = {kind: statistics.mean(c for c, k in zip(counts, kinds, strict=True) if k == kind) for kind in kinds}
    return Run(by_kind, sum(used) / seconds)


def python() -> int:
    """Take some microseconds of Python, in which the interpreter may switch."""
    total = 0
    for number in range(WORDS):
        total += number
    return total


def alone(piece: Callable[[], object]) -> float:
    """Return the processor time of a piece [s] in one thread: the least of some means."""

    def mean() -> float:
        start, count = time.thread_time(), 0
        while (took := time.thread_time() - start) < 0.05:
            piece()
            count += 1
        return took / count

    return min(mean() for _ in range(10))


def real() -> Pieces:
    """Return what runs here; sums of so many bytes as take about the time in `CALLS`."""
    rate = len(DATA) / alone(partial(hashlib.sha256, DATA))
    return {"Python": python, "operator": partial(torch.ones(64).add, 1)} | {
        call: partial(hashlib.sha256, DATA[: round(rate * us / 1e6)]) for call, us in CALLS.items()
    }


def virtual(took: dict[str, float], calling: float) -> Pieces:
    """Return what takes as long on an emulated host: Python holds the lock, C lets go of it between two lines."""

    def piece(kind: str) -> None:
        with lv.costs(calling if kind in CALLS else took[kind]):
            pass
        if kind in CALLS:
            with lv.costs(took[kind] - calling, gil=False):
                pass

    return {kind: partial(piece, kind) for kind in took} | {"operator": partial(torch.ones(64).add, 1)}


@contextmanager
def first_of_all() -> Iterator[None]:
    """Let this process's threads go before those of all others, where the system allows it."""
    with suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        with suppress(AttributeError, OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def measured(pieces: Pieces) -> Iterator[tuple[tuple[str, ...], dict[str, float], float]]:
    """Give for each case each kind's share of what it does alone, and of the cores."""
    for kinds in CASES:
        shares, cores = dict[str, list[float]](), list[float]()
        for _ in range(ROUNDS):
            own = {kind: together([kind], pieces, SECONDS).counts[kind] for kind in dict.fromkeys(kinds)}
            both = together(kinds, pieces, SECONDS)
            for kind, count in both.counts.items():
                shares.setdefault(kind, []).append(count / own[kind])
            cores.append(both.share)
        yield kinds, {kind: statistics.median(each) for kind, each in shares.items()}, statistics.median(cores)


def predicted(kinds: Sequence[str], pieces: Pieces, host: Host) -> dict[str, float]:
    """Return each kind's share of what it does alone on an emulated host."""

    def counts(kinds: Sequence[str]) -> dict[str, float]:
        with lv.record(on="a100", host=host, hazards="off"):
            return together(kinds, pieces, SECONDS).counts

    own = {kind: counts([kind])[kind] for kind in dict.fromkeys(kinds)}
    return {kind: count / own[kind] for kind, count in counts(kinds).items()}


def judged() -> Iterator[str]:
    """Give the table of what was measured, beside what is predicted from what one thread alone took."""
    with FOUND.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    took = {row["thread"]: float(row["measured"]) for row in rows if not row["threads"]}
    cores, interval, calling = int(took.pop("cores")), round(1e9 * took.pop("interval")), took.pop("calling")
    host = replace(Host.preset("server 2023"), cores=cores, siblings=1, contention=0, switch_interval=interval)
    pieces, errors, made = virtual(took, calling), list[float](), dict[str, dict[str, float]]()
    yield "| threads | thread | measured | predicted | error | cores used |\n|---|---|--:|--:|--:|--:|"
    for row in rows[len(took) + 3 :]:
        name, measured, kinds = row["threads"], float(row["measured"]), row["threads"].split(" + ")
        share = made.setdefault(name, predicted(kinds, pieces, host))[row["thread"]]
        few = measured < FEW and share < FEW
        errors += [] if few else [share / measured - 1]
        error = "both next to none" if few else f"{errors[-1]:+.0%}"
        yield f"| {name} | {row['thread']} | {measured:.4f} | {share:.4f} | {error} | {float(row['cores']):.2f} |"
    within = sum(abs(error) <= GOAL for error in errors)
    yield f"\nWithin {GOAL:.0%}: {within} of {len(errors)}; median {statistics.median(map(abs, errors)):.0%}."


def main() -> None:
    """Measure, keep and print."""
    with first_of_all():
        pieces = real()
        took = {kind: alone(piece) for kind, piece in pieces.items()}
        took |= {"calling": alone(partial(hashlib.sha256, b""))}
        found = list(measured(pieces))
    took |= {"cores": machine.cores().threads, "interval": sys.getswitchinterval()}
    with FOUND.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("threads", "thread", "measured", "cores"))
        writer.writerows(("", kind, f"{time:.4g}", "") for kind, time in took.items())
        for kinds, shares, used in found:
            writer.writerows((" + ".join(kinds), kind, f"{share:.4g}", f"{used:.3g}") for kind, share in shares.items())
    print(f"{took['cores']} cores, Python {sys.version.split()[0]}, load {os.getloadavg()[0]:.0f}\n")
    for line in judged():
        print(line)


if __name__ == "__main__":
    main()
