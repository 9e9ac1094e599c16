"""Why a learner's run is slow or wrong, as a fact of its own timeline and the rule behind it: (fact, rule).

Which copy is exposed, in which stretch the GPU is idle, what the host waits for: `loaderviz.analysis.evidence` has the
masks, here one span is chosen and told. Times are µs from the start of the measured window, as in the picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import torch

from loaderviz import intervals, words
from loaderviz.analysis.evidence import Evidence
from loaderviz.emulator.hazards import Access, Report
from loaderviz.metrics import summarize
from loaderviz.timeline import Cause, Kind, Span, Timeline
from loaderviz.workshop.exercises import say

Fact = tuple[str, str]
Tensors = tuple[torch.Tensor, torch.Tensor]  # the sums of a batch, and its labels
SMALL = 8_192  # copies up to this size (the labels) are not worth a sentence
POLLS = 16  # questions in a row whether an event is over: the allocator asks fewer, a loop that waits more
HARDLY = 0.03  # of the time; so little idle time explains nothing
WAITS = {Cause.SYNCHRONIZE, Cause.STAGING}


def _evidence(timeline: Timeline) -> Evidence:
    return Evidence(timeline, window=(timeline.begin, timeline.begin + timeline.duration))


def at(timeline: Timeline, time: int) -> str:
    """Return a time as the picture shows it."""
    return f"{(time - timeline.begin) / 1000:,.0f} µs"


def stretch(timeline: Timeline, start: int, end: int) -> str:
    """Return "from 120 µs to 450 µs"."""
    return say("stretch", start=at(timeline, start), end=at(timeline, end))


def copies(timeline: Timeline) -> list[Span]:
    """Return the host-to-device copies that are worth a sentence, in order of start."""
    return [span for span in timeline.rows(Kind.COPY_H2D) if span.nbytes > SMALL]


def kernels_of(timeline: Timeline, batch: int) -> list[Span]:
    """Return the kernels that work on a batch."""
    return [span for span in timeline.rows(Kind.COMPUTE) if span.batch == batch]


def exposed(timeline: Timeline) -> tuple[Span, int, int] | None:
    """Return the (earlier) copy with the longest exposed stretch, and that; none before the first kernel can hide."""
    kernels = _evidence(timeline).kernels
    if not len(kernels):
        return None
    best: tuple[Span, int, int] | None = None
    for span in copies(timeline):
        own = intervals.union(np.array([max(span.start, int(kernels[0, 0]))]), np.array([span.end]))
        for start, end in intervals.subtract(own, kernels).tolist():
            if best is None or end - start > 1.1 * (best[2] - best[1]):
                best = span, start, end
    return best


def why_not_hidden(timeline: Timeline) -> Fact:
    """Say which copy is exposed, from when to when, and why; or what else keeps the GPU idle."""
    runs = groupby(timeline.rows(Kind.API), key=lambda call: call.name == "cudaEventQuery")
    asked = max((list(calls) for asks, calls in runs if asks), key=len, default=[])
    if len(asked) > POLLS:
        return say("polls", count=len(asked), line=line_of(timeline, asked[0])), say("R25-polling")
    found = exposed(timeline)
    if (found is None or found[0].pinned) and (waiting := too_strong_wait(timeline)):
        return waiting
    summary = _evidence(timeline).summary
    if found is None or summary.exposed_copy < summary.idle / 2:
        return why_idle(timeline)
    span, start, end = found
    more, rule = _cause(timeline, span, start)
    ran, alone = stretch(timeline, span.start, span.end), stretch(timeline, start, end)
    return say("exposed", batch=span.batch, ran=ran, alone=alone, more=more).rstrip(), say(rule)


def _cause(timeline: Timeline, span: Span, start: int) -> Fact:
    """Say why this copy does not run beside kernels; the rule by its key."""
    if span.pinned is False:
        return say("pageable"), "R7"
    if wait := waited_for(timeline, span):
        rule = "R30" if inside(timeline, wait) else "R25"
        return say("host-waits", ran=stretch(timeline, wait.start, wait.end), line=line_of(timeline, wait)), rule
    kernels = list(timeline.rows(Kind.COMPUTE))
    if span.lane == max(kernels, key=lambda kernel: kernel.duration).lane:
        return say("same-stream", stream=span.lane.name), "R16-one-stream"
    return _late(timeline, span, start)


def _late(timeline: Timeline, span: Span, start: int) -> Fact:
    """Say why a copy in a stream of its own began as late as this; the rule by its key."""
    call, before = timeline.call_of(span), last_kernel_before(timeline, start)
    if call is not None and (own := own_wait(timeline, call)):
        ran, asked = stretch(timeline, own.start, own.end), at(timeline, call.start)
        return say("waited-first", ran=ran, line=line_of(timeline, own), asked=asked), "R25"
    if call is not None and before is not None and call.start >= before.end - timeline_step(timeline) // 20:
        waits = [wait.end for wait in timeline.rows(Kind.WAIT) if before.end <= wait.end <= call.start]
        until = say("waited-until", time=at(timeline, waits[-1])) if waits else ""
        asked, ended = at(timeline, call.start), at(timeline, before.end)
        return say("asked-late", asked=asked, ended=ended, until=until), "R16-too-late"
    others = (other.end for other in copies(timeline) if other.batch != span.batch)
    busy = any(0 <= span.start - end < 30_000 for end in others)  # another copy ended just before this one began
    if not busy and call is not None and span.start - call.end > timeline_step(timeline) // 4:
        asked, until = at(timeline, call.start), at(timeline, span.start)
        return say("stream-waited", asked=asked, until=until), "R16-wait-stream"
    return say("engine-busy") if busy else "", "not-far-enough"


def why_idle(timeline: Timeline) -> Fact:
    """Say in which stretch the GPU is idle for longest, and what the host does meanwhile."""
    gaps = _evidence(timeline).idle
    share = intervals.length(gaps) / max(1, timeline.duration)
    if share < HARDLY:
        return say("hardly-idle", share=words.share(share)) if len(gaps) else say("never-idle"), say("cheapest")
    start, stop = max(gaps.tolist(), key=lambda gap: gap[1] - gap[0])
    fact = say("idle", ran=stretch(timeline, start, stop))
    cause = host_cause(timeline, start, stop)
    if cause is None:
        return fact, say("R23")
    if rule := rule_of_index(timeline, cause):
        return say(f"idle-{rule}", fact=fact), say(rule)
    if cause.kind == Kind.WAIT and cause.cause == Cause.SYNCHRONIZE:
        return say("idle-waits", fact=fact), say("R25")
    staged = cause.kind == Kind.WAIT and cause.cause == Cause.STAGING
    batch = say("for-batch", batch=cause.batch) if cause.batch >= 0 else ""
    pins = cause.kind == Kind.PIN or cause.cause == Cause.PAGE_LOCKING
    rule = "R7" if staged else "R43" if pins else "R23"
    return say("meanwhile", fact=fact, call=cause.name, batch=batch), say(rule)


def too_strong_wait(timeline: Timeline) -> Fact | None:
    """Say if the kernels of a batch, queued in time, began long after its copy, while copies for later batches ran."""
    for copy in copies(timeline):
        kernels = kernels_of(timeline, copy.batch)
        if not kernels:
            continue
        begin, call = kernels[0].start, timeline.call_of(kernels[0])
        behind = (span for span in copies(timeline) if span.batch > copy.batch)
        later = [span for span in behind if span.start < begin <= span.end + 50_000]
        before = last_kernel_before(timeline, begin)
        free = max(copy.end, before.end if before else copy.end, call.end if call else begin)
        small = [span for span in timeline.rows(Kind.COPY_H2D) if span.batch == copy.batch and span.lane == copy.lane]
        if later and later[-1].lane != copy.lane and small[-1].end > copy.end + timeline_step(timeline) // 3:
            images, labels = at(timeline, copy.end), at(timeline, small[-1].end)
            found = say("labels-late", batch=copy.batch, images=images, labels=labels, other=later[-1].batch)
            return found, say("turns")
        waited = [span for span in later if span.end <= begin and span.lane != kernels[0].lane]
        if waited and begin - free > max(span.duration for span in waited) // 2:
            over, began = at(timeline, copy.end), at(timeline, begin)
            found = say("waits-for-later", batch=copy.batch, over=over, began=began, other=waited[-1].batch)
            return found, say("R16-too-strong")
    return None


def read_early(hazards: Sequence[Report]) -> bool:
    """Tell whether a race report says that something was read before its copy was over."""
    return any(hazard.kind == "early-read" for hazard in hazards)


def rule_of_reuse(hazard: Report) -> str:
    """Return what to do about an early reuse: of memory that was freed, or of a buffer that the program keeps."""
    return say("R35" if hazard.rule.startswith("R35") else "R37")


def wrong_batch(
    timeline: Timeline,
    hazards: Sequence[Report],
    number: int,
    seen: Tensors,
    expected: Sequence[Tensors],
    scale: int,
    values: str,
    buffers: int,
) -> Fact:
    """Say what is wrong with batch `number`: another one, a race, other values than `values`. `scale` divides images.

    `buffers`: the source refills so many in turn; 0 for none.
    """
    sums, labels = seen
    wanted = expected[number % len(expected)]
    if scale != 1 and torch.equal(sums, scale * wanted[0]):
        return say("not-divided", batch=number, scale=scale), say("from-0-to-1")
    for other, right in enumerate(expected):
        if all(map(torch.equal, seen, right)):
            filled = buffers and other > number and (other - number) % buffers == 0
            rule = say("few-buffers" if filled else "in-order", count=buffers)
            return say("overwritten" if filled else "other-batch", number=number, batch=other), rule
    if read_early(hazards):
        kernels, mine = kernels_of(timeline, number), [span for span in copies(timeline) if span.batch == number]
        when = ""
        if kernels and mine:
            ran = stretch(timeline, mine[-1].start, mine[-1].end)
            when = say("nothing-waits", ran=ran, begin=at(timeline, kernels[0].start))
        return say("read-early", batch=number, when=when), say("R15")
    later = [other for other, (right, _) in enumerate(expected) if other != number and torch.isin(sums, right).any()]
    if later and any(hazard.kind in ("early-refill", "early-reuse") for hazard in hazards):
        return say("written-again", batch=number, other=later[0]), say("R42")
    if later:
        return say("others-values", batch=number, other=later[0]), say("own-samples")
    what, rule = say("other-labels", count=int((labels != wanted[1]).sum()), all=len(labels)), say("labels-unchanged")
    if differ := int((sums != wanted[0]).sum()):
        found = say("zeros" if not sums.any() else "nan" if sums.isnan().all() else "other-ones")
        what, rule = say("other-images", count=differ, all=len(sums), values=found), say(values, scale=scale)
    return say("other-values", batch=number, what=what), rule


def waited_for(timeline: Timeline, span: Span) -> Span | None:
    """Return the wait of the host for this copy: it begins just after its call and lasts until its end."""
    call = timeline.call_of(span)
    for wait in timeline.rows(Kind.WAIT):
        near = call is not None and call.start <= wait.start <= call.end + 20_000
        if wait.cause in WAITS and near and abs(wait.end - span.end) < 50_000:
            return wait
    return None


def own_wait(timeline: Timeline, call: Span) -> Span | None:
    """Return the longest wait of the learner's code for the GPU in the step before a call."""
    step, check = timeline_step(timeline), line_of_check(timeline)
    waits = [
        wait
        for wait in timeline.rows(Kind.WAIT)
        if wait.cause == Cause.SYNCHRONIZE and wait.lane == call.lane and wait.source != check
        if call.start - step < wait.end <= call.start and wait.duration > step // 20
    ]
    return max(waits, key=lambda wait: wait.duration, default=None)


def inside(timeline: Timeline, span: Span) -> bool:
    """Tell whether a call or wait of the host is part of an operator, such as a copy, and not one of the program's."""
    return any(row.start <= span.start < row.end for row in timeline.rows(Kind.OPERATOR))


def rule_of_index(timeline: Timeline, wait: Span) -> str:
    """Return why the host waits inside an indexing operator: R46, an index moves from host memory, or R47, a mask is
    counted; "" for any other wait.
    """
    indexing = intervals.covers(_evidence(timeline).indexing, np.array([wait.start]))
    if wait.kind != Kind.WAIT or not indexing[0]:
        return ""
    counts = (row for row in timeline.rows(Kind.OPERATOR) if row.name == "aten::nonzero")
    return "R47" if any(row.start <= wait.start < row.end for row in counts) else "R46"


def line_of(timeline: Timeline, span: Span | Access) -> str:
    """Return " in line 7 of your code"; "" where it is not known, and for the line that calls the check."""
    theirs = span.source and span.source != line_of_check(timeline)
    return say("in-line", line=span.source.rpartition(":")[2]) if theirs else ""


def line_of_check(timeline: Timeline) -> str:
    """Return "file:line" of the call of the check: the last call of all is its own, a wait for the end of the run."""
    return max(timeline.rows(Kind.API), key=lambda call: call.start).source


def last_kernel_before(timeline: Timeline, time: int) -> Span | None:
    """Return the kernel that was the last to end before `time`."""
    kernels = [span for span in timeline.rows(Kind.COMPUTE) if span.end <= time]
    return max(kernels, key=lambda span: span.end, default=None)


def timeline_step(timeline: Timeline) -> int:
    """Return the length of a step, ns."""
    return int(summarize(timeline).step or timeline.duration)


def host_cause(timeline: Timeline, start: int, end: int) -> Span | None:
    """Return what the loop's thread does for longest between `start` and `end`; a wait is seen before its call."""

    def shared(span: Span) -> int:
        return min(end, span.end) - max(start, span.start)

    host = timeline.only(_evidence(timeline).loop)
    best = max(host.rows(Kind.WAIT, Kind.PIN, Kind.FETCH, Kind.OPERATOR, Kind.API), key=shared, default=None)
    return best if best and shared(best) > 0 else None
