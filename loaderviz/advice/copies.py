"""The rules of `advise` about copies to the GPU: pageable, not hidden, too many, or there at all.

A rule looks at the `Evidence` and returns one Finding, or None if it does not apply: what it saw in numbers, the line
of code that changes it, and the bound of the gain. Whether that is worth the work is not decided here.
"""

from __future__ import annotations

import numpy as np

from loaderviz import intervals, words
from loaderviz.activity import Mask
from loaderviz.advice.evidence import Evidence, either
from loaderviz.advice.finding import Finding, Gain, is_worth_it
from loaderviz.advice.phrases import describe_copies, duration, where
from loaderviz.timeline import KERNELS, Cause, Kind

MANY = 4  # copies a step; a batch of images and labels has two
SMALL = 64 * 1024  # bytes: at 12 GB/s they take 5 µs, as long as the latency of any copy (R22)


def pageable_copy(facts: Evidence) -> Finding | None:
    """Copies to the GPU from pageable memory: they go through a staging buffer and block the host (R1, R7)."""
    copies = facts.mask(Kind.COPY_H2D) & (facts.timeline.pinned == 0)
    if not copies.any():
        return None
    left, known = _if_pinned(facts, copies)
    inside, on_device = facts.copying(copies), facts.covered(copies)
    direct = intervals.length(either(on_device, inside)) - round(left * intervals.length(on_device))
    gain = facts.gain(
        direct, "the copies and the calls that block for them", facts.device_floor(copies, left),
        facts.host_floor(inside), facts.supply_floor(),
    )  # fmt: skip
    blocked = facts.waiting(Cause.STAGING) & intervals.covers(inside, facts.first)
    alone = facts.fetching.any()
    unasked = bool(blocked.any()) and not facts.synchronizes(copies).any()
    staging = f"; the host is blocked in staging for {duration(facts, facts.length(blocked))}" if blocked.any() else ""
    workers = f"num_workers={facts.workers_for(gain)}, " if alone else ""
    return Finding(
        "hidden-sync" if unasked else "pageable-copy",
        f"{describe_copies(facts, copies, 'pageable ')}, {where(facts, copies)}{staging}"
        f"{', although no call asked it to wait' if unasked else ''}{known}"
        f"{'; without workers the main thread would also have to pin, so use workers' if alone else ''}",
        f"loader = DataLoader(..., {workers}pin_memory=True)\n"
        'batch = batch.to("cuda", non_blocking=True)', gain,
    )  # fmt: skip


def copy_not_hidden(facts: Evidence) -> Finding | None:
    """Copies from pinned memory that run while no kernel does: a second stream can hide them (R16, R20)."""
    copies = facts.mask(Kind.COPY_H2D) & (facts.timeline.pinned != 0)
    exposed = facts.exposed(copies)
    if not exposed:
        return None
    gain = facts.gain(
        exposed, "the exposed copy", facts.device_floor(copies, apart=True), facts.host_floor(), facts.supply_floor()
    )
    lanes = facts.timeline.lane
    shared = np.isin(lanes[copies], lanes[facts.mask(*KERNELS)]).any()
    why = "they share a stream with kernels, and a stream runs in order" if shared else (
        "they have a stream of their own, and yet nothing computes while they run"
    )  # fmt: skip
    change = 'loader = loaderviz.loaders.PrefetchLoader(loader, "cuda", depth=2)' if shared else (
        "# issue the copy of the next batch before the step of this one, not after it; depth=2"
    )  # fmt: skip
    kind = "pinned " if (facts.timeline.pinned[copies] == 1).all() else ""
    return Finding(
        "copy-not-hidden", f"{describe_copies(facts, copies, kind)}, {where(facts, copies)}: {why}", change, gain
    )  # fmt: skip


def many_small_copies(facts: Evidence) -> Finding | None:
    """Several copies a step that last as long as their latency: one copy of the joined bytes would do (R22)."""
    timeline = facts.timeline
    copies = facts.mask(Kind.COPY_H2D) & (timeline.nbytes > 0) & (timeline.end > timeline.start)
    count, steps = int(copies.sum()), facts.steps or 1
    time, nbytes = (timeline.end - timeline.start)[copies], timeline.nbytes[copies]
    if count < MANY * steps or nbytes.mean() > SMALL:
        return None
    left = steps / count  # joined, they take at least as long as one of them
    rest = copies.copy()
    rest[np.flatnonzero(copies)[:: max(1, count // steps)]] = False  # one of each step stays
    calls = facts.copying(rest)
    gain = facts.gain(
        min(facts.exposed(copies), round(time.sum() * (1 - left))) + intervals.length(calls),
        "their latency and their calls", facts.device_floor(copies, left), facts.host_floor(calls),
        facts.supply_floor(),
    )  # fmt: skip
    return Finding(
        "many-small-copies",
        f"{describe_copies(facts, copies, '')}, {where(facts, copies)}: one takes "
        f"{words.duration(float(time.mean()))} for {words.size(float(nbytes.mean()))} on average, mostly latency",
        'flat = torch.cat([part.flatten() for part in parts]).to("cuda", non_blocking=True)  # split it there', gain,
    )  # fmt: skip


def resident(facts: Evidence) -> Finding | None:
    """What is left of loading when it is done as well as can be; with the data set on the GPU nothing is."""
    copies = facts.mask(Kind.COPY_H2D)
    if not copies.any():
        return None
    pageable = copies & (facts.timeline.pinned == 0)
    ahead = either(facts.covered(facts.fetching), facts.copying(pageable))
    hidden = facts.device_floor(copies, _if_pinned(facts, pageable)[0] if pageable.any() else 1.0, apart=True)
    best = max(hidden.ns, facts.host_floor(ahead).ns)
    loading = facts.loading(copies)
    gain = facts.gain(
        intervals.length(loading) + facts.exposed(copies), "all that loading costs", facts.device_floor(copies, 0),
        facts.host_floor(loading),
    )  # fmt: skip
    left = best - (facts.window - gain.ns)  # what even a perfect loader that copies cannot gain
    if not is_worth_it(Gain(max(0, left), 0.0, None), best):
        return None
    summary = facts.summary
    why = (
        "they take longer than the kernels, so they cannot all be hidden" if summary.h2d > summary.kernels
        else f"hidden or not, they keep the main thread busy for {duration(facts, intervals.length(loading))}"
    )  # fmt: skip
    return Finding(
        "resident", f"{describe_copies(facts, copies, '')}; {why}",
        "loader = loaderviz.loaders.ResidentLoader((images, labels), batch_size=...)  # if the data set fits", gain,
    )  # fmt: skip


def _if_pinned(facts: Evidence, copies: Mask) -> tuple[float, str]:
    """Return the share of the time of pageable `copies` that is left once they are pinned, and words for it.

    Known only if the timeline has pinned copies that are at least as large; else 0, which is the bound.
    """
    timeline, here = facts.timeline, facts.mask(Kind.COPY_H2D)
    time = timeline.end - timeline.start
    pinned = here & (timeline.pinned == 1) & (time > 0) & (timeline.nbytes >= timeline.nbytes[copies].max(initial=0))
    if not pinned.any() or timeline.nbytes[copies].min(initial=1) <= 0:
        return 0.0, ""
    best = float((timeline.nbytes[pinned] / time[pinned]).max())
    left = min(1.0, float(timeline.nbytes[copies].sum()) / best / max(1, int(time[copies].sum())))
    return left, f"; pinned copies reach {words.size(best * 1e9)}/s here"
