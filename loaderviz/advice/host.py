"""The rules of `advise` about the host: it fetches, waits, synchronises, allocates, or launches too slowly.

A rule looks at the `Evidence` and returns one Finding, or None if it does not apply (see `copies`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from loaderviz import intervals, words
from loaderviz.activity import Mask
from loaderviz.advice.copies import copy_not_hidden, pageable_copy
from loaderviz.advice.evidence import Evidence, either
from loaderviz.advice.finding import NO_GAIN, WORTH_IT, Finding, Gain, is_worth_it
from loaderviz.advice.overlap import CANNOT_PAY, waits_for_the_host
from loaderviz.advice.phrases import a_step, duration, in_few_steps, longest_gap, names_of, where
from loaderviz.timeline import KERNELS, Cause, Kind

ALLOCATE = re.compile(r"^(cuda|hip)(Malloc|Free|HostAlloc|HostFree|HostRegister|HostUnregister|HostMalloc)")
LAUNCH = 100_000  # ns of the host for a kernel; with more it is not the launching that takes so long
SATURATED = 0.9  # busy so much of the time, it is the bottleneck
START_UP = 0.1  # of the recording; less than that before the first step is not worth a word
_WHERE = {"host in CUDA calls": "in CUDA calls", "host in operators": "in operators", "other": "outside torch"}


def fetch_in_loop(facts: Evidence) -> Finding | None:
    """The loop's own thread fetches (and pins) the batches: DataLoader without workers."""
    fetching = facts.fetching
    if not fetching.any():
        return None
    work = facts.covered(fetching)
    length = intervals.length(work)
    gain = facts.gain(length, "what the main thread fetches and pins", facts.device_floor(), facts.host_floor(work))
    idle = intervals.length(intervals.intersect(work, facts.idle))
    pins = " and pins" if (facts.timeline.kind[fetching] == Kind.PIN).any() else ""
    return Finding(
        "fetch-in-loop",
        f"the main thread fetches{pins} the batches itself, {duration(facts, length)} ({where(facts, fetching)})"
        f"{f'; the GPU is idle for {duration(facts, idle)} of it' if facts.here.any() else ''}",
        f"loader = DataLoader(..., num_workers={facts.workers_for(gain)}, pin_memory=True)", gain,
    )  # fmt: skip


def waiting_for_data(facts: Evidence) -> Finding | None:
    """The loop waits for the workers or for the pin thread while the GPU has nothing to do."""
    waits = facts.waiting(Cause.DATA)
    starved = intervals.intersect(facts.covered(waits), facts.idle)
    if not len(starved):
        return None
    gain = facts.gain(
        facts.length(waits), "the waits for data", facts.device_floor(), facts.host_floor(), facts.supply_floor("pin")
    )
    within = intervals.covered_within(starved, facts.first, facts.last)
    seen, change = _behind(facts, gain, waits & (within > 0))
    time = duration(facts, intervals.length(starved))
    idle = f", and the GPU is idle for {time} of it" if facts.here.any() else ""
    return Finding(
        "waiting-for-data",
        f"the loop waits {duration(facts, facts.length(waits))} for its next batch{idle} "
        f"({where(facts, waits)}); {seen}", change, gain,
    )  # fmt: skip


def synchronizes_each_step(facts: Evidence) -> Finding | None:
    """`.item()`, `.cpu()`, `print` or a synchronise in each step: the host cannot run ahead (R25)."""
    calls = facts.synchronizes(None)
    count, steps = int(calls.sum()), facts.steps
    if count < max(2, (steps or 4) / 2):
        return None
    results = facts.mask(Kind.COPY_D2H)
    inside = either(facts.covered(calls), facts.covered(facts.calls(results)))
    gain = facts.gain(
        intervals.length(inside) + facts.exposed(results), "the calls that wait for the GPU",
        facts.device_floor(results, 0), facts.host_floor(inside), facts.supply_floor(),
    )  # fmt: skip
    reads = int(results.sum())
    what = f"{reads:,} copies bring a result to the host" if reads else "no result is brought to the host by them"
    change = (
        "total += loss.detach()  # stays on the GPU; total.item() once an epoch" if reads
        else "# no torch.cuda.synchronize() in the loop: a stream keeps its order by itself"
    )  # fmt: skip
    return Finding(
        "synchronizes-each-step",
        f"{count:,} calls wait for the GPU{a_step(facts, count)}, {duration(facts, intervals.length(inside))} "
        f"({where(facts, calls)}); {what}", change, gain,
    )  # fmt: skip


def allocates_in_loop(facts: Evidence) -> Finding | None:
    """cudaMalloc, cudaFree or page-locking inside the loop: each stops the whole device (R13, R44)."""
    waits = facts.waiting(Cause.ALLOCATION, Cause.PAGE_LOCKING)
    if not waits.any():
        return None
    names = [number for number, name in enumerate(facts.timeline.names) if ALLOCATE.match(name)]
    calls = facts.loop & facts.timeline.where(Kind.API) & np.isin(facts.timeline.name, names)
    shown = calls if calls.any() else waits
    work = facts.covered(waits | calls)
    gain = facts.gain(
        intervals.length(work), "these calls", facts.device_floor(), facts.host_floor(work), facts.supply_floor()
    )
    few, leave_out = in_few_steps(facts, shown)
    change = leave_out or "# no torch.cuda.empty_cache() in the loop; keep the shapes of the batches equal"
    called = ", ".join(names_of(facts, shown))
    return Finding(
        "allocates-in-loop",
        f"{int(shown.sum()):,} x {called}{few} take {words.duration(intervals.length(work))} ({where(facts, shown)})",
        change, gain,
    )  # fmt: skip


def host_bound(facts: Evidence) -> Finding | None:
    """The GPU is idle because the host does not launch fast enough: kernels shorter than their launch (R23)."""
    parts = {where: facts.summary.breakdown.get(f"idle: {name}", 0) for name, where in _WHERE.items()}
    idle = sum(parts.values())
    kernels = facts.mask(*KERNELS)
    count = int(kernels.sum())
    if not (idle and count and facts.loop.any()):
        return None
    gain = facts.gain(idle, "the GPU's idle time in which the host works", facts.device_floor(), facts.supply_floor())
    mean = float((facts.last - facts.first)[kernels].mean())
    launching = facts.length(facts.loop & facts.timeline.where(Kind.API, Kind.OPERATOR)) / count
    split = ", ".join(f"{words.duration(time)} {name}" for name, time in parts.items() if time)
    overlap = copy_not_hidden(facts) or pageable_copy(facts)
    hides = overlap is not None and is_worth_it(overlap.expected_gain, facts.window)
    pays = f". {CANNOT_PAY}" if facts.summary.copy and waits_for_the_host(facts.summary) and not hides else ""
    change = (
        'model = torch.compile(model, mode="reduce-overhead")  # fewer launches (CUDA graphs); or a larger batch'
        if mean < launching < LAUNCH and idle > 2 * parts["outside torch"]
        else "# see what the host does in the longest gap; the GPU has no work then"
    )  # fmt: skip
    return Finding(
        "host-bound",
        f"the GPU is idle for {words.duration(idle)} ({words.share(idle / facts.window)}) while the host works "
        f"({split}). {count:,} kernels{a_step(facts, count)}: one takes {words.duration(mean)} on average, and torch "
        f"and CUDA take {words.duration(launching)} of the host's time for it. {longest_gap(facts)}{pays}",
        change, gain,
    )  # fmt: skip


def start_up(facts: Evidence) -> Finding | None:
    """What is paid before the first step: worker processes, the CUDA context, first allocations."""
    timeline = facts.timeline
    before = facts.start - timeline.begin
    if not facts.here.any() or before < START_UP * timeline.duration:
        return None
    early = (timeline.end <= facts.start) & timeline.where(Kind.API, Kind.OPERATOR, Kind.WAIT, Kind.FETCH)
    longest = ""
    if early.any():
        row = timeline.row(int(np.flatnonzero(early)[np.argmax((timeline.end - timeline.start)[early])]))
        longest = f"; the longest part of it is {row.name}, {words.duration(row.duration)}"
    change = "loader = DataLoader(..., persistent_workers=True)  # so that it does not come back each epoch"
    first = "first step" if facts.steps else "GPU's first work"
    return Finding(
        "start-up",
        f"{words.duration(before)} of {words.duration(timeline.duration)} pass before the {first}{longest}. This time "
        "is not judged", change if facts.lanes_of("worker") else "", Gain(0, 0.0, None, once=True),
    )  # fmt: skip


def nothing(facts: Evidence, found: Sequence[Finding]) -> Finding:
    """The honest finding where no change is worth its work, or where the timeline does not show which would be."""
    summary = facts.summary
    if not summary.busy:
        data = facts.length(facts.waiting(Cause.DATA) | facts.fetching)
        text = "the timeline has no work of a GPU in it, so nothing can overlap"
        text += (
            f"; the loop waits for data or fetches it {words.share(data / facts.window)} of the time" if data else ""
        )
        return Finding("no-gpu-work", text, "", NO_GAIN)
    overlap = summary.overlap
    copy = "no host-device copies" if overlap is None else f"{words.share(overlap)} of the copy is hidden"
    text = (
        f"kernels run {words.share(summary.kernels / facts.window)} of the window, {copy}, the GPU is idle "
        f"{words.share(1 - summary.busy)}: {words.times(summary.headroom)} the limit"
    )
    if not facts.loop.any() and facts.window >= WORTH_IT * summary.limit:
        return Finding("cause-not-seen", f"{text}. The timeline has no host lane that would tell why", "", NO_GAIN)
    small = max(found, key=lambda finding: finding.expected_gain.ns, default=None)
    if small is not None and small.expected_gain.ns:
        text += f". The largest gain that is left is {small.rule}, {small.expected_gain}: not worth a change"
    return Finding("nothing-to-gain", text, "", NO_GAIN)


def _behind(facts: Evidence, gain: Gain, waits: Mask) -> tuple[str, str]:
    """Say who keeps the loop waiting, and what to change: more workers, or less for the pin thread to do."""
    workers, pin = facts.lanes_of("worker"), facts.lanes_of("pin")
    if not workers:
        return "its workers are not in this timeline", "loader = DataLoader(..., num_workers=...)  # more than now"
    busy = facts.busy(workers)
    seen = f"{len(workers)} worker{'s fetch' if len(workers) > 1 else ' fetches'} {words.share(busy)} of the time"
    if pin and facts.busy(pin) > max(busy, SATURATED):
        seen += f", the pin thread pins {words.share(facts.busy(pin))} of it, and there is only one (R45)"
        return seen, "# more workers do not help: make the batches fewer bytes, or keep the data set on the GPU"
    few, leave_out = in_few_steps(facts, waits)
    if busy < SATURATED and leave_out:
        return f"{seen}; the waits are only{few}", leave_out
    if busy < SATURATED:
        late = f"; the waits are only{few}" if few else ""
        return f"{seen}{late}, so batches come unevenly", "loader = DataLoader(..., prefetch_factor=4)"
    needed = facts.workers_for(gain)
    number = max(int(needed) if needed.isdigit() else 0, len(workers) + 1)
    return seen, f"loader = DataLoader(..., num_workers={number}, pin_memory=True)"
