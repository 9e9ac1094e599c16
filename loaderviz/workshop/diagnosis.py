"""Why a learner's run is slow or wrong, as a fact of its own timeline and the rule behind it: (fact, rule).

Which copy is exposed, in which stretch the GPU is idle, what the host waits for: `loaderviz.analysis.evidence` has the
masks, here one span is chosen and told. Times are µs from the start of the measured window, as in the picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import torch

from loaderviz import intervals
from loaderviz.analysis.evidence import Evidence
from loaderviz.emulator.hazards import Report
from loaderviz.metrics import summarize
from loaderviz.timeline import Cause, Kind, Span, Timeline

Fact = tuple[str, str]
Tensors = tuple[torch.Tensor, torch.Tensor]  # the sums of a batch, and its labels
SMALL = 8_192  # copies up to this size (the labels) are not worth a sentence
POLLS = 16  # questions in a row whether an event is over: the allocator asks fewer, a loop that waits more
WAITS = {Cause.SYNCHRONIZE, Cause.STAGING}

PAGEABLE = "R7: a copy from memory that is not pinned is staged by the host, so the host waits and gives no new work."
BLOCKING = "R30: a blocking .to() waits until the copy is done; meanwhile the host gives the GPU no work."
ONE_STREAM = "R16: one stream is one queue. A copy in the stream that computes never runs beside its kernels."
TOO_LATE = "R16: a copy cannot start before it is asked for. Ask before the GPU has finished the work before it."
WAITS_FOR_WORK = "R16: `side.wait_stream(...)` waits for all work queued there by then. Wait before you queue more."
NOT_FAR_ENOUGH = "a long copy needs more than one step to hide under: copy more batches ahead."
TOO_STRONG = "R16: `wait_stream(side)` waits for every copy queued so far. Wait for an event of this batch."
HOST_SYNC = "R25: a call that waits for the GPU (.item(), .cpu(), synchronize) leaves it without work afterwards."
INDEX = "R46: an index in host memory is copied to the GPU at each use, and the host waits. Have it on the GPU, once."
PINNING = "R43: pin_memory() is a copy by the host, and the loop waits for it."
HOST_WORK = "R23: work of the host in the loop costs time at each step; the GPU waits if it has nothing queued."
NO_WAIT = "R15, R16: streams do not wait for each other. The stream that reads must wait for the copy (an event)."
REUSE = (
    "R35, R36: memory is given to the next copy as soon as your variable is gone. record_stream() says who still reads."
)
POLLING = "R25: a loop that asks until the answer is yes is a wait of the host. Let the stream wait for the event."
TURNS = "copies in several streams take turns: labels come behind images of others. One side stream keeps the order."
BOUNDED = "memory is small: what is copied long before it is used takes the place of other things."
REFILL = "R42: until a copy is done, nobody may write into its pinned source. Wait for the copy (an event) first."


def _evidence(timeline: Timeline) -> Evidence:
    return Evidence(timeline, window=(timeline.begin, timeline.begin + timeline.duration))


def at(timeline: Timeline, time: int) -> str:
    """Return a time as the picture shows it."""
    return f"{(time - timeline.begin) / 1000:,.0f} µs"


def stretch(timeline: Timeline, start: int, end: int) -> str:
    """Return "from 120 µs to 450 µs"."""
    return f"from {at(timeline, start)} to {at(timeline, end)}"


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
        return f"The host asks {len(asked)} times in a row whether an event is over{line_of(asked[0])}.", POLLING
    found = exposed(timeline)
    if (found is None or found[0].pinned) and (waiting := too_strong_wait(timeline)):
        return waiting
    if found is None:
        return why_idle(timeline)
    span, start, end = found
    summary = _evidence(timeline).summary
    if summary.exposed_copy < summary.idle / 2:
        return why_idle(timeline)
    fact = (
        f"The copy of batch {span.batch} runs {stretch(timeline, span.start, span.end)}. No kernel runs "
        f"{stretch(timeline, start, end)}: so long it is exposed."
    )
    more, rule = _cause(timeline, span, start)
    return f"{fact}{more}", rule


def _cause(timeline: Timeline, span: Span, start: int) -> Fact:
    """Say why this copy does not run beside kernels."""
    lanes = {kernel.lane for kernel in timeline.rows(Kind.COMPUTE)}
    if span.pinned is False:
        return " Its source is not pinned.", PAGEABLE
    if wait := waited_for(timeline, span):
        rule = BLOCKING if inside(timeline, wait) else HOST_SYNC
        return f" The host waits for it {stretch(timeline, wait.start, wait.end)}.", rule
    if span.lane in lanes:
        return f" It is in {span.lane.name}, and so are the kernels.", ONE_STREAM
    call, before = call_of(timeline, span), last_kernel_before(timeline, start)
    if call is not None and before is not None and call.start >= before.end - timeline_step(timeline) // 20:
        text = f" It was asked for at {at(timeline, call.start)}; the kernels before it ended at "
        waits = [wait.end for wait in timeline.rows(Kind.WAIT) if before.end <= wait.end <= call.start]
        until = f", and the host waited until {at(timeline, waits[-1])}" if waits else ""
        return f"{text}{at(timeline, before.end)}{until}.", TOO_LATE
    others = (other.end for other in copies(timeline) if other.batch != span.batch)
    busy = any(0 <= span.start - end < 30_000 for end in others)  # another copy ended just before this one began
    if not busy and call is not None and span.start - call.end > timeline_step(timeline) // 4:
        text = f" It was asked for at {at(timeline, call.start)}, but its stream waited until "
        return f"{text}{at(timeline, span.start)}.", WAITS_FOR_WORK
    return " The copy engine was busy with other copies until then." if busy else "", NOT_FAR_ENOUGH


def why_idle(timeline: Timeline) -> Fact:
    """Say in which stretch the GPU is idle for longest, and what the host does meanwhile."""
    gaps = _evidence(timeline).idle
    if not len(gaps):
        return "The GPU is never idle, but it has more to do than needed.", "the cheapest work is the work left out."
    start, stop = max(gaps.tolist(), key=lambda gap: gap[1] - gap[0])
    fact = f"The GPU has nothing to do {stretch(timeline, start, stop)}."
    cause = host_cause(timeline, start, stop)
    if cause is None:
        return fact, HOST_WORK
    if moves_an_index(timeline, cause):
        return f"{fact} The host copies an index there, and waits.", INDEX
    if cause.kind == Kind.WAIT and cause.cause == Cause.SYNCHRONIZE:
        return f"{fact} The host waits for the GPU and has queued nothing more.", HOST_SYNC
    staged = cause.kind == Kind.WAIT and cause.cause == Cause.STAGING
    batch = f", for batch {cause.batch}" if cause.batch >= 0 else ""
    pins = cause.kind == Kind.PIN or cause.cause == Cause.PAGE_LOCKING
    rule = PAGEABLE if staged else PINNING if pins else HOST_WORK
    return f"{fact} Meanwhile the host is in {cause.name}{batch}.", rule


def too_strong_wait(timeline: Timeline) -> Fact | None:
    """Say if the kernels of a batch, queued in time, began long after its copy, while copies for later batches ran."""
    for copy in copies(timeline):
        kernels = kernels_of(timeline, copy.batch)
        if not kernels:
            continue
        begin, call = kernels[0].start, call_of(timeline, kernels[0])
        behind = (span for span in copies(timeline) if span.batch > copy.batch)
        later = [span for span in behind if span.start < begin <= span.end + 50_000]
        before = last_kernel_before(timeline, begin)
        free = max(copy.end, before.end if before else copy.end, call.end if call else begin)
        small = [span for span in timeline.rows(Kind.COPY_H2D) if span.batch == copy.batch and span.lane == copy.lane]
        if later and later[-1].lane != copy.lane and small[-1].end > copy.end + timeline_step(timeline) // 3:
            text = f"The images of batch {copy.batch} were there at {at(timeline, copy.end)}, its labels only at "
            return f"{text}{at(timeline, small[-1].end)}, behind batch {later[-1].batch} in another stream.", TURNS
        if later and begin - free > timeline_step(timeline) // 3:
            text = (
                f"The copy of batch {copy.batch} was over at {at(timeline, copy.end)}, but its kernels began at "
                f"{at(timeline, begin)}: they waited for the copy of batch {later[-1].batch} as well."
            )
            return text, TOO_STRONG
    return None


def read_early(hazards: Sequence[Report]) -> bool:
    """Tell whether a race report says that something was read before its copy was over."""
    return any(hazard.kind == "early-read" for hazard in hazards)


def wrong_batch(
    timeline: Timeline,
    hazards: Sequence[Report],
    number: int,
    seen: Tensors,
    expected: Sequence[Tensors],
    scale: int = 1,
) -> Fact:
    """Say what is wrong with batch `number`: another one, a race, other values; `scale` divides images."""
    sums, labels = seen
    wanted = expected[number % len(expected)]
    if scale != 1 and torch.equal(sums, scale * wanted[0]):
        return f"the images of batch {number} are not divided by {scale}", "the network wants numbers from 0 to 1"
    for other, right in enumerate(expected):
        if all(map(torch.equal, seen, right)):
            order = "hand the batches out in the order of the source, each once"
            return f"as number {number} you handed out batch {other}", order
    if read_early(hazards):
        kernels, mine = kernels_of(timeline, number), [span for span in copies(timeline) if span.batch == number]
        when = ""
        if kernels and mine:
            when = (
                f": its copy runs {stretch(timeline, mine[-1].start, mine[-1].end)}, its first kernel begins at "
                f"{at(timeline, kernels[0].start)}, and nothing makes it wait"
            )
        return f"batch {number} was read before its copy was complete{when}", NO_WAIT
    later = [other for other, (right, _) in enumerate(expected) if other != number and torch.isin(sums, right).any()]
    if later and any(hazard.kind in ("early-refill", "early-reuse") for hazard in hazards):
        text = f"batch {number} holds values of batch {later[0]}: its memory was written again before the copy was over"
        return text, REFILL
    if later:
        return f"batch {number} holds values of batch {later[0]}", "each batch holds its own samples, in their order"
    what = f"{int((labels != wanted[1]).sum())} of its {len(labels)} labels are other ones"
    if differ := int((sums != wanted[0]).sum()):
        values = "all zeros" if not sums.any() else "not a number (NaN)" if sums.isnan().all() else "other ones"
        what = f"{differ} of its {len(sums)} images are {values}"
    rule = "every value must arrive as it was sent" if scale == 1 else f"each value / {scale}"
    return f"batch {number} does not hold the values of the source: {what}", rule


def waited_for(timeline: Timeline, span: Span) -> Span | None:
    """Return the wait of the host for this copy: it begins just after its call and lasts until its end."""
    call = call_of(timeline, span)
    for wait in timeline.rows(Kind.WAIT):
        near = call is not None and call.start <= wait.start <= call.end + 20_000
        if wait.cause in WAITS and near and abs(wait.end - span.end) < 50_000:
            return wait
    return None


def inside(timeline: Timeline, span: Span) -> bool:
    """Tell whether a call or wait of the host is part of an operator, such as a copy, and not one of the program's."""
    return any(row.start <= span.start < row.end for row in timeline.rows(Kind.OPERATOR))


def moves_an_index(timeline: Timeline, wait: Span) -> bool:
    """Tell whether this wait of the host is inside an indexing operator, which moves an index from host memory."""
    inside = intervals.covers(_evidence(timeline).indexing, np.array([wait.start]))
    return wait.kind == Kind.WAIT and bool(inside[0])


def call_of(timeline: Timeline, span: Span) -> Span | None:
    """Return the host's call that put this work into its stream."""
    calls = np.flatnonzero(timeline.where(Kind.API) & (timeline.correlation == span.correlation))
    return timeline.row(int(calls[0])) if span.correlation >= 0 and len(calls) else None


def line_of(span: Span) -> str:
    """Return " in line 7 of your code"; "" where it is not known."""
    return f" in line {span.source.rpartition(':')[2]} of your code" if span.source else ""


def last_kernel_before(timeline: Timeline, time: int) -> Span | None:
    """Return the kernel that was the last to end before `time`."""
    kernels = [span for span in timeline.rows(Kind.COMPUTE) if span.end <= time]
    return max(kernels, key=lambda span: span.end, default=None)


def timeline_step(timeline: Timeline) -> int:
    """Return the length of a step, ns."""
    return int(summarize(timeline).step or timeline.duration)


def host_cause(timeline: Timeline, start: int, end: int) -> Span | None:
    """Return what the loop's thread does for longest between `start` and `end`; a wait is seen before its call."""
    best, longest = None, 0
    host = timeline.only(_evidence(timeline).loop)
    for span in host.rows(Kind.WAIT, Kind.PIN, Kind.FETCH, Kind.OPERATOR, Kind.API):
        shared = min(end, span.end) - max(start, span.start)
        if shared > longest:
            best, longest = span, shared
    return best
