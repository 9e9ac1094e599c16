"""what_if(): the same loop with another loader, or on another GPU, predicted from one timeline.

The kernels, the host's calls and the cost of a batch are those of the timeline; the changed loader is replayed with
them on the emulator's rules (`emulator.replay`). How close it comes is measured in the tests.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby, pairwise
from typing import Any, Literal

import numpy as np

from loaderviz import intervals, words
from loaderviz.analysis.evidence import Evidence, Removal
from loaderviz.batches import BATCH_RANGE, HAND_OUT
from loaderviz.emulator.device import Stream
from loaderviz.emulator.hardware import GPUS, HOSTS, PAGE, RECEIVING, SENDING, Gpu, Host, Parcel, UnknownHardwareError
from loaderviz.emulator.replay import Batch, LoaderConfig, Replay
from loaderviz.emulator.runtime import GraphNode, Runtime
from loaderviz.errors import LoadervizError
from loaderviz.intervals import either
from loaderviz.metrics import check_timeline, summarize
from loaderviz.timeline import Cause, Context, Ints, Kind, Lane, Mask, Span, Timeline, gathered
from loaderviz.traces.steps import noted
from loaderviz.vendors import Api


class WhatIfError(LoadervizError, ValueError):
    """A timeline, or a change, of which nothing can be predicted; the message says what is missing."""


# The loop of a timeline as a program: what a batch is, what loading it costs, and what the host does in a step.
# Everything that belongs to loading is taken out of the steps: fetching, pinning, hand-outs, the copies to the GPU with
# their calls and waits, events, and cold allocations. What is left stays as it was measured.


ROUNDS = 4  # batches that each worker gives in a replay, at least
LOST = 0.05  # of the GPU's time; what no call launched is not replayed
MAIN_STREAM = 0.95  # of the kernels' time; with less in one stream the order between streams would matter


@dataclass(frozen=True)
class HostCall:
    """A call of the host: `before` ns of its own work, then the call, which takes it `cost` ns without waiting.

    `work` is the span that it launches, None for a synchronisation; `joins`: the computing stream waits for the
    collectives before it. `works`: some of the host's own work is no part of the training, and so of no graph.
    """

    before: int
    cost: int
    operator: str
    source: str
    work: Span | None
    joins: bool = False
    works: bool = False


@dataclass(frozen=True)
class Step:
    """A step of the loop: its samples (0: not known), the tensors that are copied, in bytes, and the host's calls.

    Its batch is fetched in `fetch` ns on a core and `waits` ns without one.
    """

    samples: int
    tensors: tuple[int, ...]
    fetch: int
    waits: int
    calls: tuple[HostCall, ...]
    after: int  # ns of the host's work after the last call
    pins: int = 0  # ns in which the loop's thread pins what workers fetched


class LoopModel:
    """The loop of a timeline, in its steady state, without its allocations and what a `removal` takes away.

    Raises `WhatIfError` where the timeline does not show one.
    """

    def __init__(self, timeline: Timeline, removal: Removal | None = None, facts: Evidence | None = None) -> None:
        self.facts = facts = facts or Evidence(timeline)
        self.timeline, self._removal = timeline, (removal := removal or facts.removal())
        _check(facts)
        copies, first = facts.mask(Kind.COPY_H2D), self.timeline.start[self.facts.marks[0]]
        copies &= (timeline.batch >= 0) | (facts.first >= first)  # else of a model, or a data set
        copies &= ~facts.launched(removal.calls) | bool(removal.joined)
        often = 2 * len(np.unique(timeline.batch[copies])) > len(facts.marks) or (timeline.batch[copies] < 0).all()
        self.copies = copies if often else np.zeros(len(timeline), bool)  # seldom: of an epoch's order, and stays
        self.resident = not self.copies.any()  # the steps copy nothing to the GPU: the data are there
        context = timeline.context
        # of the host that was emulated; None for a real one, or one of one's own
        self.preset = HOSTS.get(context.host.split(" (")[0]) if context.origin == "emulated" else None
        removed = either(facts.loading(self.copies), facts.covered(self._beside))
        waits = facts.covered(self.host & self.timeline.where(Kind.WAIT))
        self._not_the_steps = either(either(waits, removed), either(removal.when, facts.outside))

    # How the batches came

    @cached_property
    def copies_in_dataset(self) -> bool:
        """Whether the data set still copies to the GPU, which a worker process could not."""
        return bool((self.facts.in_dataset & ~self.facts.launched(self._removal.calls)).any())

    @cached_property
    def config(self) -> LoaderConfig:
        """How the batches came to the GPU."""
        if self.resident:
            return LoaderConfig(resident=True)
        timeline, facts, copies = self.timeline, self.facts, self.copies
        size, pins = np.maximum(timeline.nbytes[copies], 1), timeline.where(Kind.PIN) & (timeline.end > facts.start)
        return LoaderConfig(
            workers=self._workers,
            pin=bool(size[timeline.pinned[copies] == 1].sum() * 2 > size.sum()),  # most of the bytes
            non_blocking=bool(facts.synchronizes(copies).sum() * 2 <= copies.sum()),
            side_stream=not np.isin(timeline.lane[copies], [self.lane]).any(),
            depth=self._depth(),
            pinned_before=self.pins_itself or not pins.any(),
        )

    @cached_property
    def _workers(self) -> int:
        fetches = self.timeline.where(Kind.FETCH)[self.facts.loop].any()
        return 0 if fetches else len(self.facts.lanes_of("worker"))

    @cached_property
    def pins_itself(self) -> bool:
        """Whether the loop's thread pins what workers fetched, as no pin thread does."""
        pins = self.facts.loop & self.timeline.where(Kind.PIN)
        return bool(self._workers and pins.any() and not self.facts.lanes_of("pin"))

    def _depth(self) -> int:
        """How many batches are copied ahead: those called for before the first kernel of a step, on average."""
        timeline, calls = self.timeline, self.facts.launched_by
        copies = np.flatnonzero(self.copies & (calls >= 0) & (timeline.batch >= 0))
        kernels = np.flatnonzero(self.facts.mask(Kind.COMPUTE) & (calls >= 0) & (timeline.batch >= 0))
        copies = copies[np.argsort(timeline.start[calls[copies]], kind="stable")]
        latest = np.maximum.accumulate(timeline.batch[copies])
        kernels = kernels[np.lexsort((timeline.start[calls[kernels]], timeline.batch[kernels]))]
        batches, first = np.unique(timeline.batch[kernels], return_index=True)
        place = np.searchsorted(timeline.start[calls[copies]], timeline.start[calls[kernels[first]]])
        ahead = latest[place[place > 0] - 1] - batches[place > 0]
        return max(0, int(np.median(ahead))) if len(ahead) else 0

    @property
    def from_hand_out(self) -> bool:
        """Whether a step begins when its batch is handed out (loaderviz's marks), not when it is asked for."""
        timeline, facts = self.timeline, self.facts
        starts = dict(zip(timeline.batch[facts.marks].tolist(), timeline.start[facts.marks].tolist(), strict=True))
        asked = np.flatnonzero(facts.fetching | facts.waiting(Cause.DATA))
        inside = [
            timeline.start[row] >= starts[batch]
            for row in asked.tolist()
            if (batch := int(timeline.batch[row])) in starts
        ]
        return bool(sum(inside) * 2 <= len(inside))

    # What a step is

    @cached_property
    def steps(self) -> list[Step]:
        """The steps, in order."""
        timeline, facts, spans = self.timeline, self.facts, self.facts.marks
        starts = timeline.start[spans].tolist()
        usual = () if self.resident else self._usual_tensors()
        took, waited = np.median(list(self.fetched.values()), axis=0).tolist() if self.fetched else (0, 0)
        usual_fetch: tuple[int, int] = round(took), round(waited)
        ends = timeline.end[spans]
        last = int(ends[-1]) if (ends[:-1] >= starts[1:]).all() else facts.end  # what follows the loop is no step
        edges = np.array([*starts, last], np.int64)
        pins = intervals.covered_within(
            facts.covered(facts.fetching & self.pins_itself), edges[:-1], np.maximum(edges[1:], edges[:-1])
        )
        steps = []
        for index, (pinned, (calls, after)) in enumerate(zip(pins.tolist(), self._calls(edges), strict=True)):
            batch = int(timeline.batch[spans[index]])
            marked = BATCH_RANGE.match(timeline.names[timeline.name[spans[index]]])
            samples = int((marked and marked["samples"]) or 0)
            steps.append(
                Step(
                    samples,
                    self._tensors.get(batch) or usual,
                    *self.fetched.get(batch, usual_fetch),
                    calls,
                    after + self._removal.longer,
                    pinned,
                )
            )
        return steps

    @cached_property
    def lane(self) -> int:
        """The lane of the stream that computes. Raises `WhatIfError` if there are several."""
        kernels = self.facts.mask(Kind.COMPUTE)
        time = np.bincount(self.timeline.lane[kernels], (self.facts.last - self.facts.first)[kernels])
        if time.max() < MAIN_STREAM * time.sum():
            names = ", ".join(self.timeline.lanes[lane].name for lane in np.flatnonzero(time))
            raise WhatIfError(f"what_if() replays kernels in one stream, but here they run in several: {names}")
        return int(time.argmax())

    @property
    def stream(self) -> Lane:
        """The lane of the stream that computes."""
        return self.timeline.lanes[self.lane]

    @cached_property
    def fetched(self) -> dict[int, tuple[int, int]]:
        """For each batch how long it was fetched, by whom ever: on a core and without one [ns]; empty if not known."""
        timeline = self.timeline
        mine = timeline.where(Kind.FETCH) & (timeline.batch >= 0)
        times: dict[int, tuple[int, int]] = {}
        gone = np.where(
            self.facts.loop, intervals.covered_within(self._removal.when, timeline.start, timeline.end), 0
        )  # of each of the loop's spans
        for index in np.flatnonzero(self.whole(mine)).tolist():
            batch, length = int(timeline.batch[index]), int(timeline.end[index] - timeline.start[index])
            (took, waited), waits = times.get(batch, (0, 0)), min(length, int(timeline.waited[index]))
            computes, left = max(0, length - waits - int(gone[index])), self._removal.fetch
            times[batch] = took + round(left * computes), waited + round(left * self._unlocked * waits)
        if self._removal.even and times:
            took, waited = (round(float(mean)) for mean in np.mean(list(times.values()), axis=0))
            times = dict.fromkeys(times, (took, waited))
        if self._removal.any_order and times:
            on_core = sum(took for took, _ in times.values()) / max(1, sum(map(sum, times.values())))
            ready = self.facts.as_ready({batch: float(sum(parts)) for batch, parts in times.items()})
            times = {batch: (round(on_core * time), round((1 - on_core) * time)) for batch, time in ready.items()}
        return times

    @property
    def locked(self) -> int:
        """For how many ns a fetch has a lock that the workers share; it waits for others once more in the replay."""
        return self.facts.locked if self._removal.waits == 1 else 0

    @property
    def _unlocked(self) -> float:
        return self.facts.unlocked if self.locked else self._removal.waits

    @cached_property
    def draw_time(self) -> int:
        """What the loop's thread does for a batch besides fetching, pinning and the hand-out, on average [ns]."""
        facts, timeline = self.facts, self.timeline
        inside = facts.covered(facts.loop & facts.handing_out)
        known = facts.fetching | facts.loop & (timeline.where(Kind.WAIT) | timeline.named(HAND_OUT.__eq__))
        known_or_gone = either(facts.covered(known | self._beside), self._removal.when)
        rest = intervals.subtract(inside, known_or_gone)
        return round(intervals.length(rest) / max(1, len(self.steps)))

    def whole(self, mask: Mask) -> Mask:
        """Those of the spans that are not cut off at an edge of the timeline; all of them if none is whole."""
        timeline = self.timeline
        inside = mask & (timeline.start > timeline.begin) & (timeline.end < timeline.begin + timeline.duration)
        return inside if inside.any() else mask

    # Inside

    @cached_property
    def host(self) -> Mask:
        """Spans of the threads that launch: the loop's, and autograd's where that is another one."""
        return self.facts.program & (self.facts.last > self.facts.first)

    @cached_property
    def _beside(self) -> Mask:
        return self.host & self.facts.does(Api.EVENT | Api.MEMORY)

    @cached_property
    def _kept(self) -> Ints:
        """The host's calls that belong to the steps, in order of start."""
        facts = self.facts
        out = self._beside | facts.calls(self.copies) | facts.synchronizes(self.copies) | self._removal.calls
        needed = self.timeline.places(list(self._work_of)) | facts.does(Api.SYNCHRONIZE)
        return np.flatnonzero(self.host & self.timeline.where(Kind.API) & needed & ~out)

    @cached_property
    def _joining(self) -> set[int]:
        """The kernels before which the computing stream stood still until a collective ended: it waits for it there."""
        timeline, facts = self.timeline, self.facts
        kernels = np.flatnonzero(facts.mask(Kind.COMPUTE) & (timeline.lane == self.lane))
        starts, found = timeline.start[kernels], set()
        for row in np.flatnonzero(facts.mask(Kind.COMMUNICATION) & (timeline.lane != self.lane)).tolist():
            place = int(np.searchsorted(starts, timeline.end[row]))
            if place < len(kernels) and (not place or timeline.end[kernels[place - 1]] <= timeline.end[row]):
                found.add(int(kernels[place]))
        return found

    @cached_property
    def _work_of(self) -> dict[int, int]:
        """The span that each call launches. Raises `WhatIfError` for a call that launches several (a CUDA graph)."""
        here = np.flatnonzero(self.facts.here & (self.facts.launched_by >= 0))
        calls = self.facts.launched_by[here].tolist()
        twice = [call for call, count in Counter(calls).items() if count > 1]
        if twice:
            name = self.timeline.names[self.timeline.name[twice[0]]]
            raise WhatIfError(f"what_if() cannot replay {name}, which launches several kernels at once (a CUDA graph)")
        return dict(zip(calls, here.tolist(), strict=True))

    def _calls(self, edges: Ints) -> Iterator[tuple[tuple[HostCall, ...], int]]:
        """Give the calls of each step between two of these times, and the host's work after the last of them."""
        timeline, places = self.timeline, np.searchsorted(self.timeline.start[self._kept], edges)
        rows, places = self._kept[places[0] : places[-1]], places - places[0]
        first, last = self.facts.first[rows], self.facts.last[rows]
        some = places[:-1] < places[1:]  # steps with a call
        since = np.r_[edges[:1], last[:-1]][: len(rows)]  # the end of the call before, or the begin of the step
        since[places[:-1][some]] = edges[:-1][some]
        ended = edges[:-1].copy()
        ended[some] = last[places[1:][some] - 1]
        inside = self._not_the_steps
        before = intervals.free_within(inside, since, np.maximum(first, since)).tolist()
        other = intervals.subtract(self.facts.other_work.when, inside)
        works = intervals.covered_within(other, since, np.maximum(first, since)) > 0
        cost = intervals.free_within(inside, np.maximum(first, since), last).tolist()
        after = intervals.free_within(inside, ended, np.maximum(edges[1:], ended)).tolist()
        operators = self.host & timeline.where(Kind.OPERATOR)
        of_lane = [spans[operators[spans]] for spans in timeline.by_lane()]
        launched = [self._work_of.get(row, -1) for row in rows.tolist()]
        calls = [
            HostCall(
                gap, own, self.facts.innermost(of_lane[lane], row), timeline.sources[source] if source >= 0 else "",
                span if work >= 0 else None, work in self._joining, other,
            )
            for row, gap, own, lane, source, work, span, other in zip(
                rows.tolist(), before, cost, timeline.lane[rows].tolist(), timeline.source[rows].tolist(), launched,
                timeline.rows_at(np.array(launched, np.int64)), works.tolist(), strict=True,
            )
        ]  # fmt: skip
        for (low, high), rest in zip(pairwise(places.tolist()), after, strict=True):
            yield tuple(calls[low:high]), rest

    @cached_property
    def _tensors(self) -> dict[int, tuple[int, ...]]:
        """The tensors of each batch whose copies are known, in bytes."""
        mine = self.copies & (self.timeline.nbytes >= 0)
        columns = self.timeline.batch[mine].tolist(), self.timeline.nbytes[mine].tolist()
        found: dict[int, list[int]] = gathered(zip(*columns, strict=True))
        joined, shrink = self._removal.joined, self._removal.shrink
        if shrink < 1:
            found = {batch: [round(size * shrink) for size in sizes] for batch, sizes in found.items()}
        if joined:
            found = {batch: [sum(sizes[place::joined]) for place in range(joined)] for batch, sizes in found.items()}
        return {batch: tuple(sizes) for batch, sizes in found.items()}

    @cached_property
    def seen_parcel(self) -> Parcel | None:
        """What most batches are, if the timeline says it; of a real one only how many tensors they have is known."""
        context = self.timeline.context
        seen = {what: amount for what, amount in context.usage.items() if what in Parcel._fields}
        return Parcel(**seen) if seen and context.origin == "emulated" else None

    def parcel(self, step: Step) -> Parcel:
        """What a worker sends of a batch: as it was seen, else the tensors that are copied."""
        seen, copied = self.seen_parcel, sum(step.tensors)
        if not seen:
            return Parcel(self.timeline.context.usage.get("tensors", 0) or len(step.tensors), copied)
        saved = min(seen.shared, round(copied / self._removal.shrink)) - copied  # by a smaller dtype
        return seen._replace(shared=seen.shared - max(0, saved))

    def _usual_tensors(self) -> tuple[int, ...]:
        """The tensors that most batches have, for those whose copies lie before the window."""
        found = Counter(self._tensors[batch] for batch in sorted(self._tensors) if batch >= 0)
        if not found:
            raise WhatIfError("what_if() finds no copy to the GPU that is known to belong to a batch of known size")
        return found.most_common(1)[0][0]


def _check(facts: Evidence) -> None:
    """Raise `WhatIfError` with what is missing, unless the timeline shows a loop."""
    if not facts.mask(Kind.COMPUTE).any():
        raise WhatIfError("what_if() needs kernels: the timeline has no work of a GPU to replay")
    if not facts.marks:
        raise WhatIfError(
            "what_if() needs steps: mark them with torch.profiler.record_function('batch 3'), use a DataLoader or a "
            "loader of loaderviz, or record with torch.profiler's schedule; record() counts optimizer.step(), too"
        )
    work, launched = facts.here, facts.launched_by >= 0
    time = (facts.last - facts.first).astype(np.float64)
    if not (launched & facts.mask(Kind.COMPUTE)).any():
        raise WhatIfError("what_if() needs the host's calls: the timeline does not say which call launched a kernel")
    queued = facts.first < facts.first[work & launched].min()  # launched before the window begins
    if (lost := time[work & ~launched & ~queued].sum() / max(1.0, time[work].sum())) > LOST:
        raise WhatIfError(
            f"what_if() needs the host's calls: {words.share(lost)} of the GPU's work has none in the timeline (a CUDA "
            "graph, or a profiler that lost rows). Record without graphs, with activities=[CPU, CUDA]"
        )


# The machine of a timeline: presets by its names, made sharper by what the timeline itself shows


# Kernels that are limited by arithmetic; all others by memory. Good enough to tell the bottleneck, no more.
ARITHMETIC = re.compile(r"gemm|conv|cutlass|attention|addmm|bmm|baddbmm|\bmm\b|matmul|wgrad|dgrad|fprop", re.IGNORECASE)


_FAMILY = re.compile(r"\b(?:[abhltv]\d{1,3}|mi\d{3}x?|(?:rtx|gtx)\W?\d{4})\b", re.IGNORECASE)


def known_gpu(name: str) -> str:
    """Return the preset that a device's name means, "" if none: "NVIDIA A100-PG509-200" is "a100-sxm".

    Of several of a family the one that shares most with the name: "H100 SXM", "A100 80GB PCIe".
    """
    if name in GPUS:
        return name
    with suppress(UnknownHardwareError):
        card = Gpu.named(name)
        return next(key for key, gpu in GPUS.items() if gpu is card)
    family = _FAMILY.search(name)
    near = [key for key in GPUS if family and re.search(rf"\b{family[0]}\b", f"{key} {GPUS[key].name}", re.IGNORECASE)]
    return max(near, key=lambda key: len(_parts(f"{key} {GPUS[key].name}") & _parts(name)), default="")


def _parts(name: str) -> set[str]:
    text = re.sub(r"sxm\d|hbm3", "sxm", name.lower())
    return set(re.findall(r"sxm|pcie|\d+ ?gb|laptop", text.replace(" gb", "gb")))


@lru_cache(10_000)  # the names of kernels are long, and few
def _tells(pattern: re.Pattern[str], name: str) -> bool:
    return bool(pattern.search(name))


def slower(name: str, source: Gpu, target: Gpu) -> float:
    """Return by what factor a kernel lasts longer on `target` than on `source`: by FLOP/s or bandwidth within reach."""
    if _tells(ARITHMETIC, name):
        rates = [gpu.fp32 * gpu.kernels["gemm_fp32"].peak for gpu in (source, target)]
    else:
        rates = [gpu.memory_bandwidth * gpu.kernels["elementwise"].bandwidth for gpu in (source, target)]
    return rates[0] / max(1, rates[1])


def gpu_named(name: str) -> Gpu:
    """Return the preset that a device's name means; where it means none, a GPU with rates of the link of 0."""
    preset = known_gpu(name)
    return replace(Gpu.preset(preset) if preset else replace(Gpu.preset("a100"), h2d=0, d2h=0, pageable=0), name=name)


def gpu_of(loop: LoopModel) -> Gpu:
    """Return the GPU of a timeline; a rate of the link that is not known is 0."""
    base = gpu_named(loop.timeline.context.device)
    rates = {
        "h2d": _rate(loop, base, loop.timeline.where(Kind.COPY_H2D) & (loop.timeline.pinned == 1)),
        "d2h": _rate(loop, base, loop.timeline.where(Kind.COPY_D2H) & (loop.timeline.pinned != 0)),
        "pageable": _rate(loop, base, loop.timeline.where(Kind.COPY_H2D) & (loop.timeline.pinned == 0)),
        "pageable_d2h": _rate(loop, base, loop.timeline.where(Kind.COPY_D2H) & (loop.timeline.pinned == 0)),
    }
    if not base.pageable:  # one way says something of the other
        rates["pageable"] = rates["pageable"] or rates["pageable_d2h"]
    seen: dict[str, Any] = {key: rate for key, rate in rates.items() if rate}
    if rates["pageable"]:
        base = replace(base, pageable_cached=0)  # the best rate is that of the smallest, too
    return replace(base, **seen, sources=base.sources | dict.fromkeys(seen, "measured in the timeline"))


def _rate(loop: LoopModel, gpu: Gpu, copies: Mask) -> int:
    """Return the best rate [bytes/s] of copies that last longer than their latency; 0 without any such."""
    timeline = loop.timeline
    time = timeline.end - timeline.start - gpu.copy_latency
    if loop.preset and loop.config.workers:  # staging read what workers wrote for the first time
        time -= np.where(timeline.pinned == 0, -(-timeline.nbytes // PAGE) * loop.preset.staged_page, 0)
    mine = copies & (time > gpu.copy_latency) & (timeline.nbytes > 0)
    if not mine.any():
        return 0
    return round(float((timeline.nbytes[mine] / time[mine]).max()) * 1e9)


def host_of(loop: LoopModel, config: LoaderConfig) -> Host:
    """Return the host of a timeline for a replay: a preset by its name, with the costs of calls as measured.

    Of an emulated one all is known. Of a real one with workers, what sending and taking a batch costs is in the
    measured times already, and not counted once more.
    """
    timeline, facts, now = loop.timeline, loop.facts, loop.config
    base = loop.preset or ON_REAL_HOSTS
    base = replace(base, cores=facts.cores or base.cores, siblings=base.siblings if loop.preset else 1)
    same = config.pin == now.pin and not loop.preset
    if now.workers and not loop.preset:
        base = replace(base, **KNOWN)
    launches = facts.calls(facts.mask(Kind.COMPUTE))
    pinned = facts.calls(loop.copies & (timeline.pinned == 1))
    handed = facts.loop & timeline.named(lambda name: name.startswith(HAND_OUT))
    within = either(facts.copying(loop.copies), facts.covered(facts.loop & timeline.where(Kind.WAIT)))
    around = intervals.subtract(facts.loading_of(loop.copies), within)  # operators, without their calls and waits
    pins = loop.whole(timeline.where(Kind.PIN) & (timeline.nbytes > 0) & (timeline.end > timeline.start))
    seen = {
        "launch": facts.own_time(launches, loop.host),
        "memcpy_call": facts.own_time(pinned, loop.host),
        "hand_out": facts.own_time(handed, loop.host) if same else 0,
        "synchronize": facts.own_time(facts.synchronizes(loop.copies), loop.host),
        "dispatch": 0 if loop.preset else round(intervals.length(around) / max(1, int(facts.calls(loop.copies).sum()))),
    }
    if pins.any() and same:  # the quickest: others may have page-locked new memory
        rate = 2 * timeline.nbytes[pins] / (timeline.end - timeline.start)[pins]
        seen["memory_bandwidth"] = round(float(rate.max()) * 1e9)
    known: dict[str, Any] = {key: value for key, value in seen.items() if value}
    return replace(base, **known)


def checked(gpu: Gpu, pinned: bool, loads: bool = True) -> Gpu:
    """Return the GPU with a rate for every copy; raise `WhatIfError` if that of the loader's own copies is not known.

    A rate that is not known stands for what the loader does not do: it is as high as the highest known one.
    """
    if loads and not (gpu.h2d if pinned else gpu.pageable):
        kind = "pinned" if pinned else "pageable"
        raise WhatIfError(
            f"what_if() does not know how fast {gpu.name} copies from {kind} memory: the timeline has no such copy, "
            f"and the GPU is none of {', '.join(sorted(GPUS))}. Give gpu=Gpu({gpu.name!r}, ...) with its rates"
        )
    best = max(gpu.h2d, gpu.d2h, gpu.pageable, 1)
    return replace(gpu, h2d=gpu.h2d or best, d2h=gpu.d2h or best, pageable=gpu.pageable or best)


# The prediction


ON_REAL_HOSTS = Host.preset("workstation")  # what a real host does with batches of workers, where it has none
# Of a real loop with workers this is in its measured times
KNOWN: dict[str, Any] = dict.fromkeys((*SENDING, *RECEIVING, "contention", "crowding"), 0)
LIMITS = {"prefetch": (0, 16), "workers": (0, 64), "batch_size": (1, 1 << 20), "ranks_on_host": (1, 64)}  # as asked
# A core that works alone has a higher clock than all together, so a real host is slower while workers are busy.
# Published clocks of one core and of all: 3.8 and 2.9 GHz (Xeon 8480C; NVIDIA's guide of the DGX H100), 3.5 and 3.1
# (Cascade Lake; AWS, EC2 M5n), 4.0 and 3.6 (Xeon E5-2667 v2; Intel's support article 000056901). Which one ran is not
# known: the middle of their range. It was chosen with the A/B of two ResNet-50 traces in view, with workers and
# without, so those do not test it; no other such pair of traces is known to us that could.
SLOWEST, FASTEST = 3.8 / 2.9, 4.0 / 3.6
WITH_WORKERS = (SLOWEST + FASTEST) / 2
BAND = {"emulated": 0.1, "": 0.1, "workers": 0.15}  # to each side; with other workers on a real host it is widest
_UNSCALED = re.compile(r"multi_tensor_apply|adam|sgd|foreach|optim|nccl|rccl", re.IGNORECASE)  # cost of the parameters


def crossing(facts: Evidence) -> tuple[int, int]:
    """Return what a worker of a real host takes to send a batch, and the loop to receive it [ns], where it had none."""
    parcel = Parcel(facts.timeline.context.usage.get("tensors", 1), int(facts.batch_bytes))
    return ON_REAL_HOSTS.sending(parcel), ON_REAL_HOSTS.receiving(parcel)


@dataclass(frozen=True)
class Change:
    """What `what_if` is asked for."""

    pinned: bool | None = None
    prefetch: int | None = None
    resident: bool | Literal["gather", "slices"] | None = None
    workers: int | None = None
    gpu: str | Gpu | None = None
    batch_size: int | None = None
    graphs: bool | None = None
    ranks_on_host: int | None = None
    threads: bool | float | None = None


def what_if(
    timeline: Timeline,
    pinned: bool | None = None,
    prefetch: int | None = None,
    resident: bool | Literal["gather", "slices"] | None = None,
    workers: int | None = None,
    gpu: str | Gpu | None = None,
    batch_size: int | None = None,
    graphs: bool | None = None,
    ranks_on_host: int | None = None,
    threads: bool | float | None = None,
) -> Timeline:
    """Return the timeline that the loop would have had with a changed loader; None leaves a thing as it is.

    `pinned`: batches come in pinned memory and are copied with `non_blocking=True`, or (False) pageable and blocking.
    `prefetch`: so many batches are copied ahead on a side stream (0: in place, on the stream that computes), pinned
    unless `pinned=False`. `resident`: the data set lives on the GPU, if it fits, which is not checked; a batch is
    gathered there (True or "gather"), or a slice ("slices"). `workers`: DataLoader processes. `gpu`: a preset, or a
    name that means one ("H100 SXM"), or a `Gpu`; kernels are scaled by peak FLOP/s if their name tells arithmetic, else
    by memory bandwidth. A `Gpu` (or a file of `calibrate`) of the timeline's own device only says more about it, as the
    rate of its pinned copies. `batch_size` scales fetching, copies and kernels, but the optimizer's.
    `graphs=True`: what a step computes between two waits of the host is launched at once, as a CUDA graph.
    `ranks_on_host`: so many equal processes share the cores, the disk and the memory's bandwidth of the host.
    `threads`: the workers are threads of the loop's process, which send nothing; a number from 0 to 1 says which part
    of a fetch's work is Python, which holds the interpreter's lock (True: all of it, False: they are processes).

    A change that changes nothing gives the timeline as it is. Collectives last as long as they did. The context says
    what was assumed, and how far the step may be off: with other workers a real host is slower while they work
    (`WITH_WORKERS`), which one trace does not tell, so the band is 15 % to each side there.

    Of a loop whose steps copy nothing, its data being on the GPU, `gpu`, `batch_size` and `graphs` can be asked.

    Raises `WhatIfError` for a timeline that does not show a loop, and for changes that make no sense there;
    `UnknownHardwareError` for an unknown GPU; `OutOfMemory` if the batches do not fit.

    >>> loaderviz.summarize(timeline).step  # ns; a blocking loader
    1831043.0
    >>> loaderviz.summarize(loaderviz.what_if(timeline, prefetch=2)).step
    887700.0
    """
    asked = Change(pinned, prefetch, resident, workers, gpu, batch_size, graphs, ranks_on_host, threads)
    return of_loop(LoopModel(check_timeline(timeline, "what_if()")), asked)


def of_loop(loop: LoopModel, asked: Change) -> Timeline:
    """Return the timeline of a loop with a change, as `what_if` does."""
    timeline, gpu = loop.timeline, asked.gpu
    _check_options(asked)
    config = changed(loop, asked.pinned, asked.prefetch, bool(asked.resident), asked.workers)
    config = _in_threads(loop, config, asked.threads)
    source, here = gpu_of(loop), timeline.context.device
    target = source if gpu is None else gpu if isinstance(gpu, Gpu) else Gpu.preset(known_gpu(gpu) or gpu)
    if target.name == here or (gpu is not None and known_gpu(here) == known_gpu(target.name) != ""):
        told = isinstance(gpu, Gpu) or str(gpu).endswith(".json")  # the same machine, told about in more detail
        target = source = target if told else source
    elif gpu is not None and not known_gpu(here):
        raise WhatIfError(
            f"what_if(gpu=...) scales the kernels, but {here!r}, where they ran, is none of {', '.join(sorted(GPUS))}"
        )
    scale, graphs, ranks = _scale(loop, asked.batch_size), bool(asked.graphs), asked.ranks_on_host or 1
    if config == loop.config and target == source and scale == 1 and not graphs and ranks == 1:
        return noted(timeline, "what_if() was asked for what it is already: nothing is changed")
    return replayed(loop, config, source, target, scale, slices=asked.resident == "slices", graphs=graphs, ranks=ranks)


def replayed(
    loop: LoopModel,
    config: LoaderConfig,
    source: Gpu,
    target: Gpu,
    scale: float = 1.0,
    *,
    slices: bool = False,
    graphs: bool = False,
    ranks: int = 1,
) -> Timeline:
    """Return the loop replayed with this config on `target`, its batches `scale` times as large, on a shared host."""
    target = checked(target, config.pin or (config.resident and bool(target.h2d)), not config.resident)
    work = _LoopWork(loop, config, source, target, scale, slices, graphs)
    host = replace(host_of(loop, config), ranks_on_host=ranks)
    replay = Replay(config, work, Runtime(target, host), from_hand_out=loop.from_hand_out)
    count, workers = len(loop.steps), config.workers
    if workers > loop.config.workers:  # batches come in bursts: of a few the stock would be counted
        count = max(count, ROUNDS * workers)
    try:
        predicted = replay.run(config.warmup, count)
    except OverflowError as problem:
        lasts = words.duration(loop.timeline.duration)
        raise WhatIfError(
            f"what_if() predicts times of more than 292 years for this loop, which lasts {lasts}"
        ) from problem
    names = {loop.timeline.names[n] for n in loop.timeline.name[loop.facts.mask(Kind.COMMUNICATION)].tolist()}
    reduces = predicted.named(names.__contains__)
    reduces &= predicted.where(Kind.COMPUTE)  # the emulator knows kernels, not what they are for
    kinds = np.where(reduces, np.int8(Kind.COMMUNICATION), predicted.kind)
    predicted = replace(predicted, spans=predicted.spans | {"kind": kinds})
    return replace(predicted, context=_context(loop, predicted, config, target, work))


def _in_threads(loop: LoopModel, config: LoaderConfig, threads: object) -> LoaderConfig:
    """Return the config with threads for workers. Raises `WhatIfError` where there are none, or no fetch is known."""
    if threads is None or threads is False:
        return config
    if not isinstance(threads, bool | float | int) or not 0 <= threads <= 1:
        raise WhatIfError(
            f"what_if(threads={threads!r}): give True, False, or which part of a fetch holds Python's lock, from 0 to 1"
        )
    if not config.workers or config.resident:
        raise WhatIfError(f"what_if(threads={threads}) needs workers, and there are none: give workers=4, for example")
    if not loop.fetched:
        raise WhatIfError(f"what_if(threads={threads}): the timeline does not show how long a batch is fetched")
    return replace(config, threads=True, python=round(1000 * threads))


def _scale(loop: LoopModel, batch_size: int | None) -> float:
    """Return how many times as large the batches become."""
    if batch_size is None:
        return 1.0
    known = [step.samples for step in loop.steps if step.samples]
    if not known:
        raise WhatIfError(
            f"what_if(batch_size={batch_size}): the timeline does not tell how many samples a batch has; name "
            "the steps so, such as torch.profiler.record_function('batch 3: 64 samples')"
        )
    return batch_size / float(np.median(known))


def _check_options(change: Change) -> None:
    """Raise `WhatIfError` for a value that makes no sense."""
    for name, asked in vars(change).items():
        if name in ("gpu", "threads"):
            continue
        least, most = LIMITS.get(name, (0, 0))
        if most and asked is not None and (type(asked) is not int or not least <= asked <= most):
            raise WhatIfError(f"what_if({name}={asked!r}): give a whole number from {least} to {most}, or None")
        slices = name == "resident" and asked in ("gather", "slices")
        if not (most or asked is None or isinstance(asked, bool) or slices):
            raise WhatIfError(
                f"what_if({name}={asked!r}): give True, False, or None to leave it as it is"
                f"{'; gather takes rows of a shuffled order, slices neighbours' if name == 'resident' else ''}"
            )


def changed(
    loop: LoopModel,
    pinned: bool | None = None,
    prefetch: int | None = None,
    resident: bool = False,
    workers: int | None = None,
) -> LoaderConfig:
    """Return how batches come to the GPU with this change; raise `WhatIfError` for one that makes no sense here."""
    options = {"pinned": pinned, "prefetch": prefetch, "workers": workers}
    asked = [f"{name}={value}" for name, value in options.items() if value is not None]
    config = loop.config
    if loop.resident and asked:
        raise WhatIfError(
            f"what_if({asked[0]}) changes how batches come to the GPU, but the steps of this loop copy none: its data "
            "are there already. To have it predicted, record the loop with the copy in its steps, such as "
            "images[start:end].to('cuda'). From this timeline gpu=... and batch_size=... can be"
        )
    if loop.resident:
        return config
    if (asked or resident) and loop.facts.unlike_loaders:
        raise WhatIfError(
            f"what_if({asked[0] if asked else 'resident=True'}) replays one DataLoader, but a step of this loop takes "
            "batches of several, with workers and without. Record a loop that has one of them; gpu=... can be predicted"
        )
    if (asked or resident) and loop.copies_in_dataset:
        raise WhatIfError(
            f"what_if({asked[0] if asked else 'resident=True'}): the data set or its collate function copies to the "
            "GPU, sample by sample, and a worker process could not. Let them return tensors of the host, copy the "
            "batch in the loop, and record again; gpu=... can be predicted"
        )
    if resident and asked:
        raise WhatIfError("what_if(resident=True) has nothing to load: leave out pinned, prefetch and workers")
    if workers is not None and workers != config.workers and not loop.fetched:
        raise WhatIfError(
            f"what_if(workers={workers}): the timeline does not show how long a batch is fetched. Record with "
            "loaderviz.record(), which sees the workers, or with num_workers=0, where the main thread fetches"
        )
    if ((pinned or prefetch) and not config.pin) or (workers == 0 and loop.pins_itself):
        config = replace(config, pinned_before=False)
    if pinned:
        config = replace(config, pin=True, non_blocking=True)
    elif pinned is False and config.pin:
        config = replace(config, pin=False, non_blocking=config.depth > 0 and config.side_stream)
    if prefetch:
        config = replace(config, pin=pinned is not False, non_blocking=True, side_stream=True, depth=prefetch)
    elif prefetch == 0:
        config = replace(config, side_stream=False, depth=0, non_blocking=config.pin)
    return replace(config, workers=config.workers if workers is None else workers, resident=resident)


class _LoopWork:
    """The work of a replay: the steps of a timeline, over and over; the warm-up ends where they begin anew."""

    resident_bytes: Sequence[int] = ()

    def __init__(
        self, loop: LoopModel, config: LoaderConfig, source: Gpu, target: Gpu, scale: float, slices: bool, graphs: bool
    ) -> None:
        self.loop, self.steps, self.warmup = loop, loop.steps, config.warmup
        self.origin, self.target, self.scale, self.slices = source, target, scale, slices
        self.graphs, self.copied_ahead = graphs, config.side_stream and config.depth > 0
        self.pins = config.pin and not config.pins  # what workers fetched, in the loop's thread
        self.sender = loop.preset if loop.config.workers else None  # whose sending is in the times of fetches
        stays = config.workers and not config.threads
        self.unsent = 0.0 if stays or (self.sender and loop.seen_parcel) else loop.timeline.context.sent  # of a fetch
        self.owed = 0  # ns that calls of the replay took more than those observed
        self.collectives: Stream | None = None
        real, now, then = loop.timeline.context.origin != "emulated", loop.config.workers, config.workers
        self.crosses = real and bool(now) != bool(then) and not (loop.resident or config.resident)
        clock = 1 + (WITH_WORKERS - 1) * loop.facts.crowded(then)
        self.slower = 1.0 if not self.crosses else clock if then else 1 / clock
        # A worker's time on a real clock has its waits for a core in it, which the replay adds itself.
        self.share = loop.facts.on_core if real and now else 1.0

    def _step(self, number: int) -> Step:
        return self.steps[(number - self.warmup) % len(self.steps)]

    def batch(self, number: int) -> Batch:
        step = self._step(number)
        tensors = [] if self.slices else [round(nbytes * self.scale) for nbytes in step.tensors]
        parcel = self.loop.parcel(step)
        sent = self.sender.sending(parcel) if self.sender else 0
        made = max(0, step.fetch - max(sent, round(step.fetch * self.unsent)))
        fetch = round(made * self.scale * self.slower * self.share)
        waits = round(step.waits * self.scale)
        locked = round(self.loop.locked * self.scale)
        sends = Parcel(parcel.tensors, *(round(nbytes * self.scale) for nbytes in parcel[1:]))
        draws = self.loop.draw_time + round(self.pins * step.pins * self.scale)
        return Batch(tensors, round(step.samples * self.scale), fetch, draws, waits, locked, sends)

    def source(self, does: str) -> str:
        return ""

    def train(self, runtime: Runtime, number: int) -> None:
        """Make the calls of a step, each after the host's own work before it."""
        step = self._step(number)
        for captured, calls in groupby(step.calls, self._is_captured):
            if captured:
                self._launch_graph(runtime, number, list(calls))
                continue
            for call in calls:
                runtime.source = call.source
                start = runtime.now
                self._work(runtime, round(call.before * self.slower))
                self._call(runtime, call)
                if call.operator:
                    runtime.note(start, call.operator)
        runtime.source = ""
        self._work(runtime, round(step.after * self.slower))

    def _is_captured(self, call: HostCall) -> bool:
        """Tell whether a CUDA graph would launch what this call does.

        A wait, a result for the host, and work of the host that is no part of the training end one.
        """
        if not self.graphs or call.work is None or call.joins or call.works or call.work.lane is not self.loop.stream:
            return False
        return call.work.kind in (Kind.COMPUTE, Kind.MEMSET, Kind.COPY_D2D)

    def _launch_graph(self, runtime: Runtime, number: int, calls: Sequence[HostCall]) -> None:
        """Launch it, once the batch is where the graph reads it; the Python around its calls ran in the capture."""
        runtime.source, spans = calls[0].source, [call.work for call in calls if call.work]
        for nbytes in self.batch(number).tensors if self.copied_ahead else ():
            runtime.memcpy(nbytes, "d2d")
        runtime.launch_graph(GraphNode(span.name, self._time(span.name, span.duration, span.kind)) for span in spans)

    def _work(self, runtime: Runtime, time: int) -> None:
        """Let the host work; what calls took too long or too short is settled here, since their cost is one for all."""
        time, self.owed = max(0, time - self.owed), max(0, self.owed - time)
        runtime.host_needs(time)

    def _call(self, runtime: Runtime, call: HostCall) -> None:
        span, began, cost = call.work, runtime.now, round(call.cost * self.slower)
        if span is None:
            runtime.synchronize(runtime.default_stream)
            return
        if call.joins and self.collectives is not None:
            runtime.wait_stream(runtime.default_stream, self.collectives, asked=False)
            self.owed += runtime.now - began
        if span.kind is Kind.COMMUNICATION and span.lane is not self.loop.stream:
            self.collectives, began = self.collectives or runtime.stream(), runtime.now
            runtime.wait_stream(self.collectives, runtime.default_stream, asked=False)
            runtime.launch(span.duration, self.collectives, name=span.name)
            self.owed += runtime.now - began - cost
        elif span.kind is Kind.COPY_D2H:
            runtime.memcpy(max(0, span.nbytes), "d2h", pinned=span.pinned is not False)
            self.owed += runtime.host.memcpy_call - cost
        elif span.kind is Kind.COPY_D2D and span.nbytes >= 0:
            runtime.memcpy(span.nbytes, "d2d")
            self.owed += runtime.host.memcpy_call - cost
        elif span.kind is Kind.MEMSET and span.nbytes >= 0:
            runtime.memset(span.nbytes)
            self.owed += runtime.host.launch - cost
        else:
            runtime.launch(self._time(span.name, span.duration, span.kind), name=span.name)
            self.owed += runtime.host.launch - cost

    def _time(self, name: str, observed: int, kind: Kind) -> int:
        if kind is not Kind.COMPUTE:
            return observed
        scale = 1.0 if self.scale == 1 or _tells(_UNSCALED, name) else self.scale
        if self.target.name != self.origin.name:
            scale *= slower(name, self.origin, self.target)
        if scale == 1:
            return observed
        floors = [gpu.kernels["elementwise"].floor for gpu in (self.origin, self.target)]
        return round(floors[1] + max(0, observed - floors[0]) * scale)


def _context(loop: LoopModel, made: Timeline, config: LoaderConfig, gpu: Gpu, work: _LoopWork) -> Context:
    before = loop.timeline.context
    parts = [
        words.count(config.workers, "thread" if config.threads else "worker") if config.workers else "no workers",
        "pinned" if config.pin else "pageable",
        "non_blocking" if config.non_blocking else "blocking",
        f"{config.depth} ahead on a side stream" if config.side_stream and config.depth else "in place",
    ]
    band = BAND["workers" if work.crosses else before.origin if before.origin in BAND else ""]
    step = summarize(made).step or 0
    around = f"from {words.duration(step * (1 - band))} to {words.duration(step * (1 + band))}"
    notes: list[tuple[object, str]] = [  # whether it is told, and the note
        (
            True,
            f"predicted from {words.count(len(loop.steps), 'step')} of a timeline of {before.device} "
            f"({before.origin}): {'resident on the GPU' if config.resident else ', '.join(parts)}",
        ),
        (True, "kernels and the host's own work as they were; loading replayed on the emulator's rules"),
        (step, f"a step takes {words.duration(step)}, somewhere {around}"),
        (
            work.crosses,
            f"the host is assumed to be {WITH_WORKERS:.2f} times as slow while all cores are busy, since a core "
            f"alone has a higher clock than all together ({FASTEST:.2f} to {SLOWEST:.2f} times, by makers' data)",
        ),
        (
            config.threads,
            f"workers are threads of the loop's process: {config.python / 1000:.0%} of a fetch is taken to hold "
            "Python's lock, and the loop's own thread to wait meanwhile (R53)",
        ),
        (
            loop.facts.mask(Kind.COMMUNICATION).any(),
            "collectives last as long as they did, their waits for other ranks included",
        ),
        (
            work.target.name != work.origin.name,
            "kernels scaled by peak FLOP/s where their name tells arithmetic, else by memory bandwidth",
        ),
        (
            work.scale != 1,
            f"batches {work.scale:.3g} times as large: so are fetching, copies and kernels, but the optimizer's",
        ),
        (
            work.graphs,
            "what a step computes between two waits is launched as one CUDA graph: its shapes must not change, and "
            "what Python does there runs once, in the capture",
        ),
        (config.resident, "whether the data set fits into the GPU's memory is not known"),
    ]
    told = (*made.context.notes, *(note for applies, note in notes if applies))
    return replace(made.context, device=f"{gpu.name}, predicted", notes=told, **_unseen(loop, made, config, work))


def _unseen(loop: LoopModel, made: Timeline, config: LoaderConfig, work: _LoopWork) -> dict[str, Any]:
    """Return what no span of a prediction shows: that the data set copies to the GPU, and what a worker sends."""
    sends = work.batch(work.warmup).parcel._asdict().items()
    usage = made.context.usage | {name: amount for name, amount in sends if amount}
    return {"faults": ("cuda-in-dataset",) * loop.copies_in_dataset, "usage": usage}
