"""Timeline -> findings: what keeps the data from reaching the GPU while it computes, and what a change would gain.

Every gain is an upper bound with its closed form: the smaller of the time that the change removes and of what the
window has beyond the work that remains. None is promised of a change that `what_if` predicts to gain nothing.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from loaderviz import intervals, words
from loaderviz.analysis import NO_GAIN, ONCE, WORTH_IT, Advice, Finding, Gain, Remedy, Subject, is_worth_it
from loaderviz.analysis.evidence import (
    ANOMALY,
    BACKWARD,
    COPY_OPERATORS,
    FINITE,
    LAYER,
    MASKS,
    READING,
    SCALED,
    SPARE,
    Evidence,
    Floor,
    a_step,
    describe_copies,
    duration,
    in_few_steps,
    line_of,
    lines_of,
    longest_gap,
    names_of,
    where,
)
from loaderviz.analysis.ranks import rank_table
from loaderviz.analysis.trials import Trials
from loaderviz.analysis.what_if import gpu_named
from loaderviz.batches import HAND_OUT, OPTIMIZER_STEP, WORKER_END, WORKER_START
from loaderviz.intervals import Intervals, either
from loaderviz.metrics import Summary, check_timeline, device_sets, in_loop, on_device, on_workers, rank_of
from loaderviz.timeline import ABSENT, COPIES, KERNELS, Cause, Ints, Kind, Mask, Span, Timeline
from loaderviz.vendors import NSIGHT, NSYS, PAGE_FAULTS, Api

APART = 0.03  # of the window, which ends with the last work: so far from its steps, kernel to kernel, is told
LARGE = "resident", "host-bound"  # changes of the whole program: a smaller one comes first that gains half, or a tenth
AS_LARGE = "between-epochs", "communication-exposed"  # are no smaller changes
LINES = (
    "reads-too-much",
    "collate-in-python",
    "uneven-workers",
    "cuda-in-dataset",
    "threads-in-workers",
)  # of the data set
WAITS = "synchronizes-each-step", "index-on-host"  # in which the host waits inside a step
LOADS = "fetch-in-loop", "waiting-for-data"  # findings that ask for workers
WORTH_HIDING = 0.1  # with less of the copy hidden, a gain comes from something else
CANNOT_PAY = "Overlap cannot pay here: the GPU waits for the host, not for the copy."


def waits_for_the_host(summary: Summary) -> bool:
    """Tell whether the GPU loses more time to an idle state, in which the host is late, than to exposed copies."""
    return summary.exposed_copy < summary.idle


def verdict(pinned: Summary, prefetch: Summary) -> str:
    """Say in words whether hiding the copy pays, from the same loop with one stream (`pinned`) and with two."""
    if not (pinned.step and prefetch.step and pinned.batches):
        return "No steps were timed, so nothing can be said."
    copy, gain = pinned.copy / pinned.batches, pinned.step / prefetch.step
    facts = (
        f"With pinned memory and no prefetch the copy takes {words.duration(copy)} of a step of "
        f"{words.duration(pinned.step)} ({words.share(pinned.copy_share)}), and the GPU is idle "
        f"{words.share(1 - (pinned.busy or 0))} of the time. The side stream hides {words.share(prefetch.overlap)} of "
        f"the copy and makes a step {words.times(gain)} as fast. "
    )
    if gain >= WORTH_IT and (prefetch.overlap or 0) >= WORTH_HIDING:
        return facts + f"Overlap pays here; what is left is {words.times(prefetch.headroom)} the limit of the hardware."
    return facts + (CANNOT_PAY if waits_for_the_host(pinned) else "Overlap does not pay here.")


# Findings about copies to the GPU: pageable, not hidden, too many, or there at all. A function looks at the `Evidence`
# and returns one Finding, or None if it does not apply: what it saw in numbers, the line of code that changes it, the
# bound of the gain, and the spans that a picture points to. Whether it is worth the work is decided by `advise`.


JOINS = "aten::cat", "aten::stack"
MANY = 4  # copies a step; a batch of images and labels has two
SMALL = 64 * 1024  # bytes: at 12 GB/s they take 5 µs, as long as the latency of any copy (R22)

_COPIES = Subject((Kind.COPY_H2D,))  # what a picture points to
_PAGEABLE = Subject((Kind.COPY_H2D,), pageable=True)
_DATA = Subject((Kind.WAIT,), (Cause.DATA,))
_GIL = Subject((Kind.WAIT,), (Cause.GIL,))
_MEMORY = Subject((Kind.WAIT,), (Cause.ALLOCATION, Cause.PAGE_LOCKING))
_COLLECTIVES = Subject((Kind.COMMUNICATION,))


def pageable_copy(facts: Evidence) -> Finding | None:
    """Copies to the GPU from pageable memory: they go through a staging buffer and block the host (R1, R7)."""
    copies = facts.pageable
    if not copies.any() or (facts.on_host[1].any() and _makes_its_own(facts)):
        return None
    if _makes_its_own(facts):
        return _converted(facts, *facts.converted)
    left, known = _if_pinned(facts, copies)
    taking = (
        facts.loop & facts.timeline.named(HAND_OUT.__eq__) & bool(facts.lanes_of("worker"))
    )  # the pin thread's then
    inside, on_device = either(facts.copying(copies), facts.covered(taking)), facts.covered(copies)
    direct = intervals.length(either(on_device, inside)) - round(left * intervals.length(on_device))
    what = "the copies and the calls that block for them" + (
        ", and taking batches from workers" if taking.any() else ""
    )
    gain = facts.bound(direct, what, copies, left, host=inside)
    blocked = facts.waiting(Cause.STAGING) & intervals.covers(inside, facts.first)
    alone = facts.fetching.any() and not facts.unlike_loaders
    unasked = bool(blocked.any()) and not facts.synchronizes(copies).any()
    staging = f"; the host is blocked in staging for {duration(facts, facts.length(blocked))}" if blocked.any() else ""
    number = facts.workers_for(gain) if alone else None
    workers = f"num_workers={number or '...'}, " if alone else ""
    pin = "data = data.pin_memory()  # once, before the loop takes its batches from it"
    if facts.has_loader:
        pin = f"loader = DataLoader(..., {workers}pin_memory=True)"
    if name := facts.fault("not-pinned"):
        known += f"; pin_memory=True is set, and torch does not know what to pin in a batch of the class {name}"
        pin = f"def pin_memory(self): self.x = self.x.pin_memory(); ...; return self  # in the class {name}"
    return Finding(
        "hidden-sync" if unasked else "pageable-copy",
        f"{describe_copies(facts, copies, 'pageable ')}, {where(facts, copies)}{staging}"
        f"{', although no call asked it to wait' if unasked else ''}{known}"
        f"{'; without workers the main thread would also have to pin, so use workers' if alone else ''}",
        f'{pin}\nbatch = batch.to("cuda", non_blocking=True)',
        gain,
        {"pinned": True} | ({"workers": number} if number else {}),
        subject=_PAGEABLE,
    )


def _carried(facts: Evidence, copies: Mask) -> int:
    return int(facts.timeline.nbytes[copies].clip(1).sum())


def _makes_its_own(facts: Evidence) -> bool:
    """Tell whether most of what is copied from pageable memory is made by the loop, which no loader pins."""
    return bool(facts.pageable.any()) and 2 * _carried(facts, facts.converted[0]) > _carried(facts, facts.pageable)


def _converted(facts: Evidence, copies: Mask, makers: Mask) -> Finding:
    """What is copied is a new tensor, made by `.float()` or arithmetic in the loop: that the loader pins is no help."""
    size = _carried(facts, facts.batch_copies) / max(1, facts.steps or 1)
    shrink = min(1.0, facts.batch_bytes / size) if facts.batch_bytes and facts.steps else 1.0
    left, known = _if_pinned(facts, copies)
    begins = np.minimum(facts.first + facts.launch_time, facts.last)[makers]  # they are still launched then
    making = intervals.union(begins, facts.last[makers])
    inside = either(facts.copying(copies), facts.covered(makers))
    direct = intervals.length(either(facts.covered(copies), inside))
    what = "the copies, the calls that block for them, and what makes their tensors"
    gain = facts.bound(direct, what, copies, left * shrink, host=inside)
    unasked = facts.waiting(Cause.STAGING).any() and not facts.synchronizes(copies).any()
    names = " and ".join(names_of(facts, makers)[:2])
    less = f"; a batch has {words.size(size * shrink)} as the loader gives it" if shrink < 1 else ""
    return Finding(
        "hidden-sync" if unasked else "pageable-copy",
        f"{describe_copies(facts, copies, 'pageable ')}, {where(facts, copies)}: they carry new tensors that the loop "
        f"makes on the host just before, with {names}, {duration(facts, facts.length(makers))}. A new tensor is "
        f"pageable, whatever the loader pins{less}{known}",
        'x = batch.to("cuda", non_blocking=True)  # as it comes from DataLoader(..., pin_memory=True)\n'
        f"# and then {names}, on the GPU: after the copy",
        gain,
        subject=_PAGEABLE,
        removal=facts.removal(making, shrink=shrink, pinned=True),
    )


def model_on_host(facts: Evidence) -> Finding | None:
    """A layer or the loss is computed on the CPU, and its results and gradients are copied from and to the GPU."""
    timeline, (mine, copies) = facts.timeline, facts.on_host
    if not mine.any():
        return None
    back = np.isin(timeline.source, timeline.source[facts.program & timeline.named(BACKWARD)])
    optimizing = facts.covered(facts.loop & timeline.named(OPTIMIZER_STEP.match))
    own = mine & ~back & ~intervals.covers(optimizing, timeline.start)
    known = np.flatnonzero(own & (timeline.source >= 0))
    times = np.bincount(timeline.source[known], (facts.last - facts.first)[known])
    place = timeline.lines[timeline.sources[int(times.argmax())]] if len(known) else "the loop"
    returns = facts.launched(facts.program & back) & copies
    comes = "its result goes to the GPU, and its gradient comes back"
    if not (returns & timeline.where(Kind.COPY_D2H)).any():
        comes = "what it needs comes from the GPU, and the gradient goes there"
    calls = facts.calls(copies) | facts.synchronizes(copies)
    begins = np.minimum(facts.first + facts.launch_time, facts.last)[mine]  # they are still launched then
    moving = either(facts.covered(calls), facts.around(COPY_OPERATORS, facts.calls(copies)))
    when = either(intervals.union(begins, facts.last[mine]), moving)
    direct = intervals.length(either(when, facts.covered(copies)))
    names = " and ".join(names_of(facts, own if own.any() else mine, when)[:2])
    return Finding(
        "model-on-host",
        f"{place} computes a part of the model on the CPU ({names}): {duration(facts, facts.length(mine))} with its "
        f"backward pass and optimizer. In {words.count(int(copies.sum()), 'copy')} {comes}, "
        f"{duration(facts, facts.length(copies))}",
        f'# compute {place} on the GPU: module.to("cuda") before the optimizer is made, and no .cpu() before the loss\n'
        'batch = batch.to("cuda", non_blocking=True)  # what it takes from the batch, too',
        facts.bound(direct, "what the CPU computes of the model, and the copies for it", copies, 0, host=when),
        subject=Subject((Kind.COPY_H2D, Kind.COPY_D2H)),
        removal=facts.removal(when, calls),
    )


def cuda_in_dataset(facts: Evidence) -> Finding | None:
    """The data set, or its collate function, moves its samples to the GPU: a worker process could not."""
    copies = facts.in_dataset
    if not copies.any():
        return None
    inside = facts.loading_of(copies)
    sizes = np.unique(facts.timeline.nbytes[copies])
    direct = intervals.length(either(facts.covered(copies), inside))
    gain = facts.bound(direct, "the copies inside the fetches and their calls", copies, 0, host=inside)
    return Finding(
        "cuda-in-dataset",
        f"{describe_copies(facts, copies, '')}, {where(facts, copies)}: the data set or its collate function makes "
        "them, while the loop waits. Worker processes could not: CUDA cannot be begun anew in a forked process",
        "# return tensors of the host from __getitem__ and collate_fn, and move the whole batch in the loop:\n"
        'batch = batch.to("cuda", non_blocking=True)  # with DataLoader(..., num_workers=..., pin_memory=True)',
        gain,
        subject=_COPIES,
        removal=facts.removal(inside, facts.calls(copies), joined=min(len(sizes), MANY)),
    )


def index_on_host(facts: Evidence) -> Finding | None:
    """A tensor of the GPU is indexed from host memory: each time a blocking copy of the index (R46, R30)."""
    copies = facts.index_copies
    if not copies.any():
        return None
    inside = facts.loading_of(copies)
    direct = intervals.length(either(facts.covered(copies), inside))
    blocked = duration(facts, intervals.length(facts.copying(copies)))
    gain = facts.bound(direct, "the copies of indices and the waits for them", copies, 0, host=inside)
    return Finding(
        "index-on-host",
        f"{describe_copies(facts, copies, '')}, {where(facts, copies)}: they carry the indices of `x[rows]` with "
        f"`rows` in host memory, and the host waits for each, {blocked}",
        'order = torch.randperm(len(x)).to("cuda")  # once an epoch; then x[rows] for rows in order.split(size)',
        gain,
        subject=_COPIES,
        removal=facts.removal(inside, facts.calls(copies) | facts.synchronizes(copies)),
    )


def copy_not_hidden(facts: Evidence) -> Finding | None:
    """Copies from pinned memory that run while no kernel does: a second stream can hide them (R16, R20)."""
    copies = facts.batch_copies & (facts.timeline.pinned != 0) & ~facts.in_dataset
    exposed = facts.exposed(copies)
    if not exposed:
        return None
    gain = facts.bound(exposed, "the exposed copy", copies, apart=True)
    lanes = facts.timeline.lane
    shared = np.isin(lanes[copies], lanes[facts.mask(*KERNELS)]).any()
    one = copies.sum() == 1
    if shared:
        why = f"{'it shares' if one else 'they share'} a stream with kernels, and a stream runs in order"
        change = 'loader = loaderviz.loaders.PrefetchLoader(loader, "cuda", depth=2)'
    else:
        why = f"{'it has' if one else 'they have'} another stream than the kernels, and yet nothing computes meanwhile"
        change = "# issue the copy of the next batch before the step of this one, not after it; depth=2"
    kind = "pinned " if (facts.timeline.pinned[copies] == 1).all() else ""
    seen = f"{describe_copies(facts, copies, kind)}, {where(facts, copies)}: {why}"
    return Finding("copy-not-hidden", seen, change, gain, {"prefetch": 2}, subject=_COPIES)


def wide_dtype(facts: Evidence) -> Finding | None:
    """Bytes that travel as floats or whole numbers of 32 or 64 bits; or floats of 64 bits, where 32 are usual."""
    copies, faults = facts.batch_copies, facts.timeline.context.faults
    known = copies.any() and {"wide-dtype", "float64"} & {*faults}
    if not known or 2 * _carried(facts, facts.converted[0]) > _carried(facts, copies):  # made by the loop: told of it
        return None
    if "wide-dtype" in faults:
        less, part = 3 / 4, "three quarters of the copies"
        seen = "all values would fit into a byte, as they are or times 255"
        change = "# keep uint8 in the data set and move that; then, on the GPU: x = x.float() / 255"
    else:
        less, part = 1 / 2, "half of the copies"
        seen = "they are of float64, and float32 has half the bytes"
        change = "# make float32 in the data set, if that is exact enough: numpy makes float64 unless told"
    size = facts.timeline.nbytes[copies]
    large = copies & (facts.timeline.nbytes > size.mean() / 2)
    share = 1 - less * float(facts.timeline.nbytes[large].sum()) / max(1, int(size.sum()))
    fewer = min(
        intervals.length(facts.getting), round(facts.supply_floor().ns * less)
    )  # a batch is made and pinned sooner
    gain = facts.gain(round(facts.length(copies) * less) + fewer, f"{part}, and of what loads", Floor(0, ""))
    told = f"{describe_copies(facts, copies, '')}, {where(facts, copies)}: {seen}"
    return Finding("wide-dtype", told, change, gain, subject=_COPIES, removal=facts.removal(shrink=share))


def restarts_iterator(facts: Evidence) -> Finding | None:
    """A new iterator is begun for each batch: its order is drawn, workers fetch ahead, and all of that is left."""
    timeline, line = facts.timeline, facts.fault("restarts-iterator")
    if line is None or not facts.steps:
        return None
    asks = facts.loop & (facts.handing_out | on_workers(timeline))
    does = facts.loop & timeline.where(Kind.OPERATOR, Kind.API, Kind.WAIT, Kind.FETCH, Kind.PIN)
    other = intervals.subtract(facts.judged, facts.covered(does))
    time = either(either(facts.getting, facts.covered(asks)), other)
    gain = facts.bound(
        intervals.length(time), "all that loading takes, and what is outside of torch", host=time, supply=False
    )
    drawn = "and workers fetch ahead what nobody takes" if facts.lanes_of("worker") else "of all samples"
    return Finding(
        "restarts-iterator",
        f"{line or 'the loop'} begins a new iterator of a DataLoader for each batch or two: each time the order is "
        f"drawn anew, {drawn}. Loading, and what is outside of torch, take {duration(facts, intervals.length(time))}",
        "batches = iter(loader)  # once; then next(batches) in each step, and iter(loader) again after StopIteration",
        gain,
        subject=_DATA,
    )


def restarts_workers(facts: Evidence) -> Finding | None:
    """Worker processes that are started again, as in each epoch, and then the first batch is waited for."""
    if facts.fault("restarts-iterator") is not None:
        return None
    starts = facts.timeline.named(WORKER_START.match)
    lines = facts.timeline.source
    if (lines[starts] >= 0).all():  # else nobody knows whose workers they are
        starts[np.flatnonzero(starts)[np.unique(lines[starts], return_index=True)[1]]] = False  # a loader's first ones
    starts &= facts.loop & (facts.timeline.start > facts.start)
    if not starts.any():
        return None
    data = np.flatnonzero(facts.waiting(Cause.DATA))
    until = facts.timeline.start[starts].max()  # the last workers end only once
    mine = starts | (facts.loop & facts.timeline.named(WORKER_END.match) & (facts.timeline.start < until))
    place = np.searchsorted(facts.timeline.start[data], facts.timeline.end[starts])
    mine[data[place[place < len(data)]]] = True
    count, cost = int(starts.sum()), facts.covered(mine)
    gain = facts.bound(intervals.length(cost), "starting workers and waiting for their first batch", host=cost)
    return Finding(
        "restarts-workers",
        f"worker processes are started {count:,} more {'time' if count == 1 else 'times'}, as in each epoch: that and "
        f"their first batches take {words.duration(intervals.length(cost))} ({where(facts, starts)})",
        "loader = DataLoader(..., persistent_workers=True)  # and the same loader in each epoch",
        gain,
        subject=_DATA,
    )


def page_faults(facts: Evidence) -> Finding | None:
    """Managed memory that moves when the GPU or the host touches it: who does waits for its pages."""
    timeline, moved = facts.timeline, facts.migrations
    faults = on_device(timeline, facts.device) & timeline.named(PAGE_FAULTS.__eq__) & (facts.last > facts.first)
    if not (moved | faults).any():
        return None
    waits, parts = facts.covered(moved | faults), []
    if faults.any():
        groups = words.count(int(faults.sum()), "group")
        parts.append(f"{groups} of page faults of the GPU take {duration(facts, facts.length(faults))}")
    if moved.any():
        size, time = int(timeline.nbytes[moved].clip(0).sum()), int((timeline.end - timeline.start)[moved].sum())
        count, rate = words.count(int(moved.sum()), "migration"), words.size(size / max(1, time) * 1e9)
        parts.append(f"{count} of {words.size(size)} take {duration(facts, facts.length(moved))} ({rate}/s)")
    inside = intervals.length(intervals.intersect(waits, facts.kernels))
    return Finding(
        "page-faults",
        f"managed memory moves page by page, when the GPU or the host touches it: {', '.join(parts)}. Together that "
        f"is {duration(facts, intervals.length(waits))}; kernels, which may wait for pages, run in "
        f"{duration(facts, inside)} of it",
        "cudaMemPrefetchAsync(data, bytes, device, stream)  // before a kernel reads it; back before the host does\n"
        "// or cudaMalloc() in place of cudaMallocManaged(), and one cudaMemcpyAsync() from page-locked memory",
        facts.gain(intervals.length(waits), "the page faults and the migrations", Floor(0, "")),
        subject=Subject((Kind.COPY_H2D, Kind.COPY_D2H)),
    )


def many_small_copies(facts: Evidence) -> Finding | None:
    """Several copies a step that last as long as their latency: one copy of the joined bytes would do (R22)."""
    timeline = facts.timeline
    copies = facts.batch_copies & ~facts.in_dataset & (timeline.nbytes > 0) & (timeline.end > timeline.start)
    count, steps = int(copies.sum()), facts.steps or 1
    time, nbytes = (timeline.end - timeline.start)[copies], timeline.nbytes[copies]
    if count < MANY * steps or nbytes.mean() > SMALL:
        return None
    left = steps / count  # joined, they take at least as long as one of them
    rest = copies.copy()
    rest[np.flatnonzero(copies)[:: max(1, count // steps)]] = False  # one of each step stays
    joins = facts.loop & timeline.named(JOINS.__contains__) & facts.follows(facts.calls(copies))
    calls = either(facts.loading_of(rest), facts.in_lines(facts.calls(rest) | joins))  # no need to join them after it
    direct = min(facts.exposed(copies), round(time.sum() * (1 - left))) + intervals.length(calls)
    gain = facts.bound(direct, "their latency and their calls, and joining them", copies, left, host=calls)
    return Finding(
        "many-small-copies",
        f"{describe_copies(facts, copies, '')}, {where(facts, copies)}: one takes "
        f"{words.duration(float(time.mean()))} for {words.size(float(nbytes.mean()))} on average, mostly latency",
        'flat = torch.cat([part.flatten() for part in parts]).to("cuda", non_blocking=True)  # split it there',
        gain,
        subject=_COPIES,
        removal=facts.removal(joined=1),
    )


def resident(facts: Evidence, workers_help: bool = True) -> Finding | None:
    """What is left of loading when it is done as well as can be; with the data set on the GPU nothing is.

    Where workers do not help, what comes from another process costing more than it saves, that is all of loading.
    """
    copies = facts.batch_copies
    if not copies.any():
        return None
    pageable = copies & (facts.timeline.pinned == 0)
    ahead = either(facts.fetched, facts.copying(pageable))
    hidden = facts.device_floor(copies, _if_pinned(facts, pageable)[0] if pageable.any() else 1.0, apart=True)
    best = max(hidden.ns, facts.host_floor(ahead).ns)
    loading = either(facts.loading(copies), facts.covered(facts.loop & facts.does(Api.EVENT)))  # of pinned copies
    between = np.c_[loading[:-1, 1], loading[1:, 0]]
    loading = either(loading, between[between[:, 1] - between[:, 0] <= PYTHON])
    direct = intervals.length(loading) + facts.exposed(copies)
    gain = facts.bound(direct, "all that loading costs", copies, 0, host=loading, supply=False)
    left = best - (facts.window - gain.ns)  # what even a perfect loader that copies cannot gain
    if workers_help and not is_worth_it(left, best):
        return None
    others = intervals.length(intervals.subtract(loading, facts.getting))
    why = (
        f"that is longer than the kernels, {duration(facts, facts.summary.kernels, facts.rounds)}, "
        "so not all of it can be hidden"
        if facts.length(copies) > facts.summary.kernels
        else "even where the copy is hidden, copying and handing out keep the main thread busy "
        f"for {duration(facts, others)}"
    )
    if rest := intervals.length(loading) - others:
        why += f"; fetching batches, or waiting for them, takes {duration(facts, rest)}"
    change = (
        "loader = loaderviz.loaders.ResidentLoader((images, labels), batch_size=...)  # if the data set fits"
        if facts.has_loader
        else 'data = data.to("cuda")  # once, before the loop, if the data set fits; the loop takes its batches there'
    )
    seen = f"{describe_copies(facts, copies, '')}; {why}"
    return Finding("resident", seen, change, gain, {"resident": True}, subject=_COPIES)


def _if_pinned(facts: Evidence, copies: Mask) -> tuple[float, str]:
    """Return the share of the time of pageable `copies` that is left once pinned (0 if not known), and words for it.

    The rate is that of pinned copies as large, where there are any, else that of the link of the card that is named.
    """
    timeline, here = facts.timeline, facts.mask(Kind.COPY_H2D)
    time, link = timeline.end - timeline.start, gpu_named(timeline.context.device).h2d
    pinned = here & (timeline.pinned == 1) & (time > 0) & (timeline.nbytes >= timeline.nbytes[copies].max(initial=0))
    if timeline.nbytes[copies].min(initial=1) <= 0:
        return 0.0, ""
    if pinned.any():
        best = float((timeline.nbytes[pinned] / time[pinned]).max())
        told = f"; pinned copies reach {words.size(best * 1e9)}/s here"
    elif link:
        best = link / 1e9
        told = f"; no pinned copy as large is seen, and the link of such a card is taken to reach {words.size(link)}/s"
    else:
        return 0.0, "; no pinned copy as large is seen, and how fast this GPU's link is, is not known"
    left = min(1.0, float(timeline.nbytes[copies].sum()) / best / max(1, int(time[copies].sum())))
    return left, told


# Findings about several GPUs: collectives that nothing hides, and a rank that lets the others wait

_OVERLAP = {  # what helps, by what calls the collectives; of DDP by what they do, too
    "tensor-parallel": (
        "# a layer waits for its own collective: shard fewer ways, or give it work meanwhile (async tensor parallel,\n"
        "# sequence parallel)"
    ),
    "exchange": "# begin the exchange for the next batch before this batch's dense layers, and wait for it after them",
    "fsdp": "fully_shard(layer) for each layer  # so that the next one is gathered while this one computes",
    "optimizer": (
        "# in the optimizer's step: start all collectives with async_op=True, update a parameter as soon as its own\n"
        "# work.wait() is over, and gather the updated ones while the next step begins"
    ),
    "ddp all_reduce": (
        "model = DistributedDataParallel(model, bucket_cap_mb=50, gradient_as_bucket_view=True)\n"
        "# try 10 to 100 MB; in bfloat16: model.register_comm_hook(None, default_hooks.bf16_compress_hook)"
    ),
    "ddp broadcast": "model = DistributedDataParallel(model, broadcast_buffers=False)  # if no buffer must be the same",
    "": "work = dist.all_reduce(..., async_op=True)  # or another collective; work.wait() where its result is needed",
}


def communication_exposed(facts: Evidence) -> Finding | None:
    """Collectives that run while no kernel computes and move bytes; if they mostly wait, a rank is late instead."""
    mine = facts.mask(Kind.COMMUNICATION)
    summary = facts.summary
    if not summary.exposed_communication or 2 * (summary.rank_wait or 0) > summary.communication:
        return None
    operations, (caller, name) = facts.operations(mine), facts.caller(mine)
    gain = facts.gain(
        summary.exposed_communication,
        "the exposed communication",
        facts.device_floor(mine, 0),
        facts.host_floor(),
        Floor(summary.moved, "bytes that collectives move"),
    )
    hidden = words.share(summary.hidden_communication / summary.communication)
    if summary.rank_wait is None:
        known = "how much of it is waiting for other ranks, the trace of one rank does not tell"
    else:
        known = f"{duration(facts, summary.rank_wait, facts.rounds)} of it is known to be waiting for other ranks"
    count, calls = int(mine.sum()), f" Most of it is called in {name}." if caller else ""
    change = _OVERLAP.get(caller) or _OVERLAP.get(f"{caller} {operations[0]}", _OVERLAP[""])
    return Finding(
        "communication-exposed",
        f"{words.count(count, 'collective')}{a_step(count, facts.rounds)} ({', '.join(operations)}) run for "
        f"{duration(facts, summary.communication, facts.rounds)}, {hidden} of it hidden under compute kernels: "
        f"{words.share(summary.exposed_communication / facts.window)} of the time is spent in exposed communication "
        f"({where(facts, mine)}); {known}.{calls}",
        change,
        gain,
        subject=_COLLECTIVES,
    )


_EVEN = {  # what to look at, by what a late rank does longer than the others
    "computes": "give it as much work as the others: samples as long, layers as large; see if its GPU is throttled",
    "copies": "compare its copies with those of another rank: their bytes, pinned memory, the link of its GPU",
    "loads": "compare its loader with that of another rank: its workers, its shard, its cores and its disk",
    "works": "see what its host does that the others' do not, such as logs and checkpoints, and which cores it has",
    "": "compare it with another rank: loaderviz.advise(timeline, device=...)",
}
_IN_TURN = (
    "see what makes a step longer in one rank than in the others, such as longer samples, or now and then a slow read"
)


def late_rank(facts: Evidence) -> Finding | None:
    """Ranks that come late to collectives: the others wait for them, whatever the network does."""
    table = rank_table(facts.timeline, facts.asked)
    if table is None or not table.lateness.cost:
        return None
    found, whole = table.lateness, table.lateness.window[1] - table.lateness.window[0]
    step = found.cost / found.steps if found.steps else None
    what = "what the other ranks wait for in collectives"
    basis = f"at most {words.duration(found.cost)} in {words.duration(whole)}, {what}"
    return Finding(
        "late-rank",
        " ".join(table.told),
        f"# the ranks are late in turn: {_IN_TURN}"
        if found.in_turn or not table.late
        else "\n".join(f"# rank {each.row.rank}: {_EVEN[each.cause]}" for each in table.late),
        Gain(found.cost, found.cost / whole, step, basis),
        subject=_COLLECTIVES,
    )


# Findings about the host: it fetches, waits, synchronises, allocates, or launches too slowly


PYTHON = 1_000  # ns from one call of loading to the next, which are no other work
LAUNCH = 100_000  # ns of the host for a kernel; with more it is not the launching that takes so long
SATURATED = 0.9  # busy so much of the time, it is the bottleneck
NEARLY = 0.7  # workers that are busy so much, while the loop waits in most steps: more of them are tried
MOST_OF_IT = 0.5  # of the fetches
QUEUED = 0.2  # of the fetches' time: so long do workers wait for one lock only where it is hardly ever free
# ns a byte of a batch: to read it takes 1 or 2, with many small files 50; only far more bytes, or Python, take so long
SLOW_BYTES = {Cause.READ: 100, Cause.COLLATE: 40}
FAR_MORE, LITTLE = 10, 100_000  # times the bytes of a batch; so many bytes are read of files in next to no time
DENSE = 0.3  # of the time
DENSE_GRADIENTS = (
    "aten::embedding_dense_backward",
    "aten::_embedding_bag_dense_backward",
    "aten::_embedding_bag_backward",
)
SPARSE_CALLS = {"SGD": 2, "Adagrad": 10, "Adam": 19}  # launches that a sparse step takes the host more, as fitted
UNTRIED = 0.1  # of the time: what cannot be replayed in a loop that can is told from there on
EVERY = 20  # steps: what is done between them more often than that could be done less often
IN_LINE = 0.1  # of the time between the steps; a line that takes less of it is not named
HOT = 2.0  # times as long as the other workers'
MANY_OF_ITS = 0.55  # quantile: close to half of a worker's batches are long, which is no chance
OFTEN_BEHIND = 0.2  # of the time: who keeps the loop waiting so long, and in most steps, is not behind now and then
UNEVEN = 1.5  # times the median: batches of a loader that differ so
OTHERS = 0.5  # of what a fetch computes: what other threads of its worker take besides is told
CROWDED = 0.7  # of all cores
MANY_TIMES = 2  # so many times the workers that are of use are too many
GROWN = 32 * 2**20  # bytes, by which a worker's memory grew in all
SWAPPED = 64 * 1024  # bytes a batch
TAKEN, MOSTLY = 0.2, 0.9  # of the time
COLD = 0.5  # of a batch's bytes, which are decoded mostly
SPREAD, SPREAD_STEPS = 2, 20  # p99 over p50, and how many steps it takes to tell
START_UP = 0.1  # of the recording; less than that before the steady state is not worth a word
_WHERE = {"host in CUDA calls": "in CUDA calls", "host in operators": "in operators", "other": "outside torch"}


def _without_waits(facts: Evidence, waits: Mask) -> Gain:
    """Bound what it gains that none of these waits for data is left: the device, the host and the pin thread stay."""
    floors = facts.device_floor(), facts.host_floor(), facts.supply_floor("pin")
    return facts.gain(facts.length(waits), "the waits for data", *floors)


def _at_line(facts: Evidence) -> str:
    """Say what takes most of the fetches, and where."""
    cause, line, share = facts.fetch_place
    if cause in (Cause.NONE, Cause.THREAD) or share < MOST_OF_IT:
        return ""
    waits = 1 - facts.fetch.on_core
    core = f", and {words.share(waits)} of the time takes no core" if waits > 0.1 else ""
    return f"; most of a fetch is {cause.words}{f' in {line}' if line else ''}{core}"


def _room(facts: Evidence, number: int | None) -> str:
    """Say so where more workers than these would fill the shared memory with the batches that they make ahead."""
    workers, memory = facts.room
    if not number or number < workers:
        return ""
    many, assumed = words.count(workers, "worker"), "" if facts.timeline.context.shared_memory else ", which is assumed"
    return f"; the batches of more than {many} would not fit into {words.size(memory)} of /dev/shm{assumed}"


def _starting(facts: Evidence, number: int | None, gain: Gain) -> str:
    """Say so where to start so many workers takes longer than they save in the steps that are judged."""
    if not gain.ns:
        return ""
    more, saves = _more_starts(facts, number or 0), gain.ns / (facts.steps or 1)
    known = "assumed of this host" if facts.timeline.context.origin == "emulated" else "as it took here"
    takes = f"; starting that many more takes {words.duration(more)} ({known})"
    if facts.epoch and more > UNTRIED * saves * facts.epoch:
        return f"{takes}, in each epoch of {math.ceil(facts.epoch):,} batches, or once with persistent_workers=True"
    if more <= gain.ns:
        return ""
    pays = math.ceil(more / saves)
    return f"{takes}: it pays in epochs of {pays:,} steps or more, or with persistent_workers=True"


def _more_starts(facts: Evidence, number: int) -> float:
    """How long it takes to start so many workers beyond those that there are [ns]; 0: not known."""
    return max(0, number - len(facts.lanes_of("worker"))) * facts.starting


def fetch_in_loop(facts: Evidence) -> Finding | None:
    """The loop's own thread fetches (and pins) the batches: DataLoader without workers."""
    fetching = facts.fetching
    steps = np.searchsorted(facts.timeline.start[facts.marks], facts.first[fetching], side="right")
    if not fetching.any() or 2 * len(np.unique(steps)) < (facts.steps or 0) or facts.in_dataset.any():
        return None  # an order once an epoch is no batch; copies that the data set makes, a worker could not make
    work = facts.fetched
    length = intervals.length(work)
    pinned, saved, too = _pinned_too(facts)
    floors = pinned, facts.host_floor(work)
    gain = facts.gain(length + saved, f"what the main thread fetches and pins{too}", *floors, facts.workers_floor())
    idle = intervals.length(intervals.intersect(work, facts.idle))
    number, each = facts.workers_for(gain), "  # each that the loop takes batches from" * (len(facts.loaders) > 1)
    pins = " and pins" if (facts.timeline.kind[fetching] == Kind.PIN).any() else ""
    return Finding(
        "fetch-in-loop",
        f"the main thread fetches{pins} the batches itself, {duration(facts, length)} ({where(facts, fetching)})"
        f"{f'; the GPU is idle for {duration(facts, idle)} of it' if facts.here.any() else ''}"
        f"{_at_line(facts)}{_room(facts, number)}{too_slow(facts, *floors)}",
        f"loader = DataLoader(..., num_workers={number or '...'}{_pin(facts)}){each}",
        gain,
        _workers(facts, number),
        subject=Subject((Kind.FETCH, Kind.PIN)),
    )


def waiting_for_data(facts: Evidence) -> Finding | None:
    """The loop waits for the workers or for the pin thread while the GPU has nothing to do."""
    waits = facts.waiting(Cause.DATA)
    starved = intervals.intersect(facts.covered(waits), facts.idle)
    if not len(starved) or facts.fault("unsharded-iterable") is not None:  # more workers would give more copies
        return None
    pinned, saved, too = _pinned_too(facts)
    floors = pinned, facts.host_floor(), facts.supply_floor("pin")
    gain = facts.gain(facts.length(waits) + saved, f"the waits for data{too}", *floors, facts.workers_floor())
    within = intervals.covered_within(starved, facts.first, facts.last)
    starving = waits & (within > 0)
    seen, remedy, number = _behind(facts, gain, starving)
    if not number:  # then nothing is pinned either
        floors = facts.device_floor(), *floors[1:]
        gain = facts.gain(facts.length(waits), "the waits for data", *floors, facts.workers_floor())
    if remedy in ("fewer-bytes", "fewer-tensors"):  # the pin thread has less to do then, workers and copies have, too
        gain = facts.gain(facts.length(waits), "the waits for data", *floors[:2])
        copies, what = facts.batch_copies, "the waits for data, and the copies"
        if gain.ns >= 2 * facts.exposed(copies):  # else copies, which have their own findings, take as long
            direct = facts.length(waits) + facts.exposed(copies)
            gain = facts.bound(direct, what, copies, 0, host=facts.copying(copies), supply=False)
    if remedy == "no-warm-up":
        _, change = in_few_steps(facts, starving)
    else:
        cause, line, share = facts.fetch_place
        mostly = f",\n# most of which is {cause.words} in {line}" if line and share >= MOST_OF_IT else ""
        change = REMEDIES[remedy].format(number=number, pin=_pin(facts), mostly=mostly)
    idle = f", and the GPU is idle for {duration(facts, intervals.length(starved))} of it" if facts.here.any() else ""
    removal = facts.removal(any_order=True) if remedy == "any-order" else None
    if remedy == "lock" and facts.queued:  # one worker alone waits for nobody: what it would gain was not replayed
        removal = facts.removal(waits=facts.unlocked)
    return Finding(
        "waiting-for-data",
        f"the loop waits {duration(facts, facts.length(waits))} for its next batch{idle} "
        f"({where(facts, waits)}); {seen}{_at_line(facts)}{_room(facts, number)}"
        f"{too_slow(facts, *floors) if number else ''}{_starting(facts, number, gain)}",
        change,
        gain,
        _workers(facts, number),
        subject=_DATA,
        removal=removal,
        remedy=remedy,
    )


_MAP_IT = "# map the file: numpy.load(path, mmap_mode='r'); or read only what the sample needs, such as with seek()"
_STACK_IT = "# make tensors in __getitem__, and stack them at once: torch.stack, pad_sequence, or numpy on all samples"


def slow_line(facts: Evidence) -> Finding | None:
    """One line takes most of each fetch: it reads far more than it gives, or makes batches in Python."""
    cause, line, share = facts.fetch_place
    size, late, reads = facts.batch_bytes, intervals.length(facts.getting), cause == Cause.READ
    if not (cause in SLOW_BYTES and share >= MOST_OF_IT and size and late):
        return None
    read = facts.timeline.context.usage.get("read", 0) if reads else 0
    if read < FAR_MORE * max(size, LITTLE) if read else facts.fetch.computes < SLOW_BYTES[cause] * size:
        return None
    gain = facts.bound(
        late, "what this line takes of the fetches that the loop waits for", host=facts.getting, supply=False
    )
    each = words.duration(share * facts.fetch.takes)
    files = f"{words.size(read)} of files" if read else "files"
    what, why = (
        (f"reading {files}", "so few bytes are read far sooner")
        if reads
        else ("joining samples", "that is Python's work on each sample")
    )
    return Finding(
        "reads-too-much" if reads else "collate-in-python",
        f"{line or 'The data set'}: {what} takes {each} for a batch of {words.size(size)}: {why} ({words.share(share)} "
        "of the time of the fetches)",
        _MAP_IT if reads else _STACK_IT,
        gain,
        subject=Subject((Kind.FETCH,)),
        # What a batch made in another way takes, nobody knows; to read next to nothing takes next to nothing
        removal=facts.removal(fetch=1 - share) if reads else None,
    )


def uneven_workers(facts: Evidence) -> Finding | None:
    """One worker's batches take far longer than those of the others, and the loop takes batches in turn."""
    timeline, waits, by_lane = facts.timeline, facts.waiting(Cause.DATA), facts.timeline.by_lane()
    lasts = timeline.end - timeline.start
    fetched = {lane: by_lane[lane][facts.fetches[by_lane[lane]]] for lane in facts.lanes_of("worker")}
    usual = {lane: float(np.quantile(lasts[spans], MANY_OF_ITS)) for lane, spans in fetched.items() if len(spans)}
    if len(usual) < 2 or not waits.any():
        return None
    hot = max(usual, key=lambda lane: usual[lane])
    times = usual[hot] / max(1.0, float(np.median([time for lane, time in usual.items() if lane != hot])))
    if times < HOT or 2 * facts.length(waits & facts.others_ready) < facts.length(waits):  # none is kept back
        return None
    return Finding(
        "uneven-workers",
        f"{timeline.lanes[hot].name} takes {times:.1f} times as long as the others for many of its batches: the others "
        f"have to wait for it, since batches are taken in turn, and the loop waits "
        f"{duration(facts, facts.length(waits))}{_at_line(facts)}",
        "# let slow samples come to all workers in turn: shuffle, or another order; or DataLoader(..., in_order=False)",
        _without_waits(facts, waits),
        subject=_DATA,
        removal=facts.removal(even=True),
    )


def workers_cost_more(facts: Evidence) -> Finding | None:
    """The loop takes longer to get a batch from its workers than it would need to make it."""
    number = len(facts.lanes_of("worker"))
    fetch = facts.fetch.computes * facts.on_core * (1 - facts.timeline.context.sent) + facts.fetch.waits
    taking = either(facts.covered(facts.waiting(Cause.DATA)), facts.taking)
    others = either(facts.covered(facts.fetching), facts.beginning)  # of another loader, which has no workers
    taking = intervals.subtract(taking, others)
    time, making = intervals.length(taking), round(fetch * (facts.steps or 0))
    if not (number and making) or facts.unlike_loaders:  # which one's it is, is not known then
        return None
    if time - facts.taking_late <= making:
        return _received(facts, time)
    gain = facts.gain(time, "what the loop waits for workers, and takes from them", facts.device_floor())
    return Finding(
        "workers-cost-more",
        f"the loop spends {duration(facts, time)} to take batches from {words.count(number, 'worker')}, and would make "
        f"one itself in {words.duration(fetch)}: what another process makes has to be sent, too",
        "loader = DataLoader(..., num_workers=0)  # or larger batches, whose samples are made at once"
        + (f"\n{_FEWER}" if facts.timeline.context.usage.get("tensors", 0) >= MANY_SENT else ""),
        gain,
        {"workers": 0},
        subject=_DATA,
    )


MANY_SENT = 8  # tensors of a batch: joined, they are received in less than a quarter of the time
_FEWER = "# or send fewer tensors: join those of a batch in collate_fn, and split them on the GPU"


def _received(facts: Evidence, taking: int) -> Finding | None:
    """What the loop waits for is there: each tensor of a batch comes by a file and a socket of its own."""
    received = facts.received
    time = facts.length(received)
    if (
        not time
        or 2 * time < taking
        or facts.take_turns
        or facts.lanes_of("pin")
        or facts.timeline.context.origin == "emulated"
    ):
        return None
    gain = facts.gain(time, "what the loop takes to receive batches", facts.device_floor(), facts.host_floor())
    return Finding(
        "workers-cost-more",
        f"the loop waits {duration(facts, time)} for batches that its workers have made already "
        f"({where(facts, received)}): it receives them, and each tensor comes through a file and a socket of its own",
        "# let the pin thread receive them: DataLoader(..., pin_memory=True)\n" + _FEWER,
        gain,
        subject=_DATA,
    )


def threads_in_workers(facts: Evidence) -> Finding | None:
    """Other threads of the workers take the cores, such as those of OpenMP or OpenCV, which wait by spinning."""
    others, number = facts.timeline.context.usage.get("others", 0), len(facts.lanes_of("worker"))
    waits, cores = facts.waiting(Cause.DATA), facts.cores or 0
    own = facts.fetch.computes * facts.on_core
    crowded = (others + own) * (facts.steps or 0) >= CROWDED * cores * facts.window
    if not (number and cores and others and waits.any() and crowded) or others < OTHERS * own:
        return None
    return Finding(
        "threads-in-workers",
        f"for a batch, other threads of a worker take {words.duration(others)} of the processor, and the one that "
        f"fetches {words.duration(own)}: {words.count(number, 'worker')} with their threads share "
        f"{words.count(cores, 'CPU core')}, and the loop waits {duration(facts, facts.length(waits))}",
        "# in worker_init_fn: cv2.setNumThreads(0), or threadpoolctl.threadpool_limits(1);\n"
        "# or set OMP_NUM_THREADS=1 before the program starts",
        _without_waits(facts, waits),
        subject=_DATA,
    )


def too_many_workers(facts: Evidence) -> Finding | None:
    """Far more workers than cores, and what they do is to compute."""
    number, enough = len(facts.lanes_of("worker")), facts.useful_workers
    if not facts.take_turns or number < MANY_TIMES * enough:
        return None
    return Finding(
        "too-many-workers",
        f"{words.count(number, 'worker')} compute, and {_cores(facts)}: they take turns, and "
        f"{words.count(enough, 'worker')} would give as many batches. Each one more takes memory, and time to start",
        f"loader = DataLoader(..., num_workers={enough})",
        NO_GAIN,
        {"workers": enough},
        subject=Subject((Kind.FETCH,)),
    )


def interpreter_lock(facts: Evidence) -> Finding | None:
    """Another thread runs Python, and the one that launches kernels waits for the interpreter's lock (R53)."""
    waits, timeline = facts.waiting(Cause.GIL), facts.timeline
    if not waits.any():
        return None
    length, waited = facts.length(waits), facts.covered(waits)
    has = {
        f"{lane.name} has": intervals.length(
            intervals.subtract(waited, facts.covered(timeline.where(Kind.WAIT) & (timeline.lane == number)))
        )
        for number, lane in enumerate(timeline.lanes)
        if lane.role == "thread"
    }
    fetching = intervals.intersect(waited, facts.covered(timeline.where(Kind.FETCH) & ~facts.loop))
    has["the threads that fetch have"] = intervals.length(fetching)  # of a prediction, whose lanes are workers
    who = max(has, key=lambda who: has[who])
    others = "worker processes: DataLoader(..., num_workers=...)"
    if "fetch" not in who and facts.fault("loader-in-thread") is None:  # nothing tells that it loads
        others = "another process, or to DataLoader(..., num_workers=...) if it loads"
    return Finding(
        "interpreter-lock",
        f"the thread that launches kernels waits {duration(facts, length)} for the lock of Python's interpreter; "
        f"{who} it for {words.share(has[who] / max(1, length))} of that time",
        f"# give that thread's Python to {others};\n"
        "# or decode with C code that lets go of the lock, or run a free-threaded Python",
        facts.gain(length, "the waits for Python's lock", facts.device_floor()),
        subject=_GIL,
    )


def unsharded_iterable(facts: Evidence) -> Finding | None:
    """Each worker of an IterableDataset gives all samples."""
    workers = len(facts.lanes_of("worker"))
    if facts.fault("unsharded-iterable") is None:
        return None
    ns = round(facts.window * (1 - 1 / max(2, workers)))
    return Finding(
        "unsharded-iterable",
        f"the first batches of two workers are the same: each of the {workers} workers goes through the whole "
        f"IterableDataset, and the loop trains on each sample {workers} times in an epoch",
        "# in __iter__: info = torch.utils.data.get_worker_info()\n"
        "# and from sample info.id on take each info.num_workers-th one",
        Gain(ns, ns / max(1, facts.window), None, "the batches that are given once more"),
        subject=Subject((Kind.FETCH,)),
    )


def dense_embedding(facts: Evidence) -> Finding | None:
    """The gradient of a large embedding is dense: backward pass and optimizer walk all rows, a batch touches a few."""
    timeline = facts.timeline
    host = timeline.in_lanes(lambda lane: lane.group == "host")
    # the last of the gradients is a sparse one, if it is asked to be
    known = DENSE_GRADIENTS[: -1 if "aten::_sparse_coo_tensor_with_dims_and_tensors" in timeline.names else None]
    dense = host & timeline.named(known.__contains__) & (facts.last > facts.first)
    if not dense.any():
        return None
    optimizing = facts.loop & timeline.named(OPTIMIZER_STEP.match)
    around = either(facts.covered(optimizing), facts.covered(dense))
    time, work = intervals.length(around), np.zeros(len(timeline), bool)
    if facts.here.any():
        work = facts.mask(*KERNELS, Kind.MEMSET) & facts.launched(intervals.covers(around, facts.first))
        time = facts.length(work)
    if time < DENSE * facts.window:
        return None
    gain = facts.gain(time, "the optimizer and the gradient of the embedding", Floor(0, ""))
    if not facts.here.any():  # the host does it: a few rows take next to nothing
        gain = replace(gain, predicted=gain.per_step)
    return Finding(
        "dense-embedding",
        f"an embedding gets a dense gradient: that and the optimizer, which walks all of its rows, take "
        f"{duration(facts, time)} ({where(facts, dense)})",
        "torch.nn.Embedding(..., sparse=True)  # with SGD, Adagrad or SparseAdam, which touch the batch's rows alone",
        gain,
        subject=Subject((Kind.COMPUTE,)),
        # a few rows take next to nothing of the GPU
        removal=facts.removal(
            calls=facts.calls(work),
            longer=facts.launch_time * SPARSE_CALLS.get(_optimizer(facts, optimizing), SPARSE_CALLS["Adam"]),
        ),
    )


NAMED = 0.1  # of what the loop waits in one operator: another one in which it waits less is not named
_SYNCHRONIZES = {  # what to change, by what the host waits for
    "mask": (
        "# x[mask] and torch.nonzero give as many rows as are true, and the host waits to know how many.\n"
        "# A loss that skips rows (ignore_index) keeps the shape, as (x * mask).sum() / mask.sum() does;\n"
        "# counts.index_add_(0, y, values) counts all classes at once;\n"
        "# or make the indices on the host, before the batch is copied"
    ),
    "result": (
        "# leave results on the GPU and bring them once, after the loop, such as: total += loss.detach()\n"
        "# or compute and read them in every 20th step only;\n"
        "# a length or a count of the batch can be computed on the host, before the batch is copied"
    ),
    "finite": (
        "# clip_grad_norm_(..., error_if_nonfinite=False), which is the default: to raise an error at once, the host\n"
        "# waits in each step. So it does for `if loss.isnan()`: look in every 100th step only, or after the loop"
    ),
    "scaled": (
        "optimizer = ...(..., fused=True)  # Adam, AdamW, SGD, Adagrad: it asks on the GPU if a gradient is infinite.\n"
        "# GradScaler reads that on the host for any other; with bfloat16 there is nothing to scale"
    ),
    "": "# no torch.cuda.synchronize() in the loop: a stream keeps its order by itself",
}


def synchronizes_each_step(facts: Evidence) -> Finding | None:
    """`.item()`, `.cpu()`, `print` or a synchronise in each step: the host cannot run ahead (R25)."""
    calls, results = facts.synchronizes(None), facts.mask(Kind.COPY_D2H) & ~facts.migrations
    if not calls.any():  # a plain cudaMemcpy waits itself
        calls = facts.calls(results & (facts.timeline.end <= facts.timeline.end[facts.launched_by]))
    calls &= ~(facts.asking(calls, ANOMALY) | facts.synchronizes(facts.on_host[1]))  # these have their own findings
    results &= ~facts.launched(facts.asking(facts.calls(results), ANOMALY))
    count, steps = int(calls.sum()), facts.steps
    if count < max(2, (steps or 4) / 2):
        return None
    waits = calls | facts.calls(results)
    inside = either(facts.covered(waits), facts.around(READING, calls))
    checks = 2 * facts.asking(calls, FINITE).sum() > count
    mates = facts.operating(FINITE) if checks else facts.line_mates(waits)  # a norm that is computed only to be read
    uses = facts.using(results)  # there, too, if the results stay there
    mates |= uses
    host, work = mates & facts.loop, mates & facts.here
    free = either(inside, facts.in_lines(host))
    direct = facts.idle_beside(free) + facts.length(work) + facts.exposed(results)
    what = "the GPU's idle time beside the calls that wait for it, and what they and their lines have it do"
    if uses.any():
        what += ", and what the host does with their results"
    gain = facts.bound(direct, what, results | work, 0, host=free)
    reads, made = int(results.sum()), facts.operators_of(waits).most_common(2)
    longest = [f"{name} ({duration(facts, time)})" for name, time in made if time >= NAMED * made[0][1]]
    told = f"{words.count(reads, 'copy')} {'brings' if reads == 1 else 'bring'} a result to the host"
    asked = "mask" if made and made[0][0] in MASKS else "result" if reads or (made and made[0][0] in READING) else ""
    asked = "finite" if checks else "scaled" if 2 * facts.asking(calls, SCALED).sum() > count else asked
    told = told if reads else "no copy of a result is seen" if asked else "no result is brought to the host by them"
    told += f"; it waits longest in {' and '.join(longest)}" if longest else ""
    used = f"{duration(facts, facts.length(uses))} ({', '.join(names_of(facts, uses)[:2])})"
    told += f"; what the host does with them takes {used}" if uses.any() else ""
    return Finding(
        "synchronizes-each-step",
        f"the loop waits for the GPU {count:,} times{a_step(count, steps)}, {duration(facts, intervals.length(inside))}"
        f" ({where(facts, waits)}); {told}",
        _SYNCHRONIZES[asked],
        gain,
        subject=Subject((Kind.WAIT,), (Cause.SYNCHRONIZE,)),
        removal=facts.removal(either(inside, facts.covered(host)), waits | mates),
    )


def anomaly_mode(facts: Evidence) -> Finding | None:
    """Anomaly detection is on: each gradient is looked at, and each operator forward keeps the stack of its call."""
    checks = facts.program & facts.timeline.named(ANOMALY.__contains__) & (facts.last > facts.first)
    count, waits = int(checks.sum()), facts.length(facts.synchronizes(None))
    if count < 2 * (facts.steps or 1):  # one is the program's own
        return None
    what, floor = "all but the loading", Floor(intervals.length(facts.getting), "loading")
    if facts.here.any():
        what, floor = "all but the GPU's work", facts.device_floor(facts.operating(ANOMALY) & facts.here, 0)
    for_it = f", and the loop waits for the GPU, {words.duration(waits)} in all" if waits else ""
    return Finding(
        "anomaly-mode",
        f"anomaly detection is on: {words.count(count, 'gradient')}{a_step(count, facts.steps)}, "
        f"are looked at for NaN ({where(facts, checks)}){for_it}. In the forward pass each "
        "operator keeps the stack of its call, too; what that takes is in its own time, and not told apart",
        "torch.autograd.set_detect_anomaly(False)  # on only while you look for a NaN",
        facts.gain(facts.window, what, floor),
        subject=Subject((Kind.OPERATOR,)),
    )


def allocates_in_loop(facts: Evidence) -> Finding | None:
    """cudaMalloc, cudaFree or page-locking inside the loop: all cost the host's time, cudaFree waits (R13, R44)."""
    waits = facts.waiting(Cause.ALLOCATION, Cause.PAGE_LOCKING)
    calls = facts.loop & facts.does(Api.MEMORY)
    shown = calls if calls.any() else waits
    if not shown.any() or facts.growing.any() or (facts.steps or 0) < 2:  # then nothing tells that they come back
        return None
    work = facts.covered(waits | calls)
    gain = facts.bound(intervals.length(work), "these calls", host=work)
    few, leave_out = in_few_steps(facts, shown)
    change = leave_out or "# no torch.cuda.empty_cache() in the loop; keep the shapes of the batches equal"
    called, count = ", ".join(names_of(facts, shown)), int(shown.sum())
    take = f"{'takes' if count == 1 else 'take'} {words.duration(intervals.length(work))}"
    return Finding(
        "allocates-in-loop",
        f"{count:,} x {called}{few} {take} ({where(facts, shown)})",
        change,
        gain,
        subject=_MEMORY,
    )


def memory_grows(facts: Evidence) -> Finding | None:
    """The caching allocator asks for more device memory step after step: tensors of old steps are kept."""
    calls = facts.growing
    if not calls.any():
        return None
    sizes = facts.timeline.nbytes[calls].clip(0)
    grown = f", {words.size(sizes.sum() / (facts.steps or 1))} a step" if sizes.any() else ""
    work, change = facts.covered(calls), KEEP_NONE
    if 2 * len(np.unique(sizes)) > len(sizes) > 2:  # what a loop keeps, it keeps in blocks of few sizes
        grown += ", and asks for another size each time"
        change = f"# keep the shapes of the batches equal: a block of another size does not fit\n{KEEP_NONE}"
    return Finding(
        "memory-grows",
        f"the loop needs more memory of the GPU step after step{grown}: {words.count(int(calls.sum()), 'call')} of "
        f"{', '.join(names_of(facts, calls))} ({where(facts, calls)}), and nothing is given back: at last it is full",
        change,
        facts.bound(intervals.length(work), "these calls", host=work),
        subject=_MEMORY,
    )


KEEP_NONE = "# keep no tensors of old steps, such as a list of outputs, or a sum of losses: total += loss.detach()"


def workers_grow(facts: Evidence) -> Finding | None:
    """The memory that a worker shares with no other process grows: by lists of Python objects, or a cache."""
    grown, number = facts.timeline.context.usage.get("memory", 0), len(facts.lanes_of("worker"))
    if grown < GROWN:
        return None
    return Finding(
        "memory-grows",
        f"the memory of a worker grew by {words.size(grown)} while it was recorded, and there are {number}. Either the "
        "data set keeps what it reads, or its samples are Python objects in a list: to read one of them writes its "
        "reference count, and so a worker makes a copy of the memory page in which it lies",
        "# keep samples in one numpy array or tensor, texts too: as bytes, with an array of where each begins",
        NO_GAIN,
    )


def swaps(facts: Evidence) -> Finding | None:
    """The memory of the machine is full."""
    if (nbytes := facts.timeline.context.usage.get("swap", 0)) < SWAPPED:
        return None
    return Finding(
        "swaps",
        f"this machine brought {words.size(nbytes)} a batch back from swap: its memory is full, and what is in swap is "
        "far slower. The other findings may be wrong",
        "# fewer workers, a smaller prefetch_factor, or end what else needs memory",
        NO_GAIN,
    )


def cores_taken(facts: Evidence) -> Finding | None:
    """Other programs, or the program's own other threads, have the cores while the loop's thread could run."""
    timeline = facts.timeline
    share = timeline.context.usage.get("loop lacked", 0) / max(1, timeline.duration)
    if share < TAKEN or 2 * facts.worked > share * facts.window:
        return None
    return Finding(
        "cores-taken",
        f"for {words.share(share) if share < MOSTLY else 'most'} of the time the loop's thread could have run and "
        "found no free core, and its workers are not the reason. Other programs, or other threads of this one, have "
        "the cores: alone the loop would be faster, and the other findings may be wrong",
        "# record again while nothing else runs; see torch.get_num_threads(), and which cores the program may use",
        NO_GAIN,
    )


def cold_cache(facts: Evidence) -> Finding | None:
    """What is read comes from the disk itself: the first epoch, or a data set larger than the memory."""
    nbytes, waited = facts.timeline.context.usage.get("disk", 0), intervals.length(facts.getting)
    is_cold = facts.fetches.any() and nbytes and nbytes >= COLD * facts.batch_bytes
    if not is_cold or waited < UNTRIED * facts.window:
        return None
    return Finding(
        "cold-cache",
        f"for a batch, {words.size(nbytes)} are read from the disk itself. Once read, a file is kept in memory as long "
        "as there is room: an epoch after this one may be faster, and these steps say little about it",
        "# record a later epoch; if the data set is larger than the memory, store it smaller, or read it in order",
        NO_GAIN,
    )


_EVEN_WORK = "# batches of equal work: sort samples of like length into one batch, pad to few lengths"
_LONGER = {  # what is longer in long steps: how it is called, and what to change
    "kernels": ("kernels take", _EVEN_WORK),
    "operators": ("torch's operators take", _EVEN_WORK),
    "copies": ("copies take", _EVEN_WORK),
    "collectives": ("collectives take", "# see which rank comes late in these steps"),
    "": ("the host takes", "# see what the program does in these steps alone"),
}


def uneven_steps(facts: Evidence) -> Finding | None:
    """Steps of very different length, so that a mean says little; waits for data have findings of their own."""
    time, far, more = facts.longer_steps
    if len(time) < SPREAD_STEPS or 2 * np.count_nonzero(far) > len(time) or next(iter(more), "loading") == "loading":
        return None
    usual, long = np.quantile(time, (0.5, 0.99)).tolist()
    if long < SPREAD * usual:
        return None
    (what, change), extra = _LONGER[next(iter(more))], next(iter(more.values()))
    count, steps = np.count_nonzero(far), "steps" if facts.optimized is facts.begins else "steps of the optimizer"
    return Finding(
        "uneven-steps",
        f"half of {len(time):,} {steps} take at most {words.duration(usual)}, one in a hundred takes "
        f"{words.duration(long)} or more. In the {count:,} that {'is' if count == 1 else 'are'} long {what} "
        f"{words.duration(extra)} more than in the others",
        change,
        NO_GAIN,
    )


def _breaks(facts: Evidence) -> tuple[Intervals, int]:
    """Return when the loop does other work than steps, and how often; not where another process had the core so long.

    That is known on the GPU, and on the CPU where a batch is evaluated, or a line of the program was seen for most of
    it. What is short beside the longest is not counted: a step that was a little late.
    """
    breaks = facts.marked.breaks(facts.start, facts.end) if len(facts.outside) else facts.outside
    steps = facts.timeline.start[facts.marks]
    place, lasts = np.searchsorted(steps, breaks[:, 0], side="right"), breaks[:, 1] - breaks[:, 0]
    known = np.full(len(breaks), facts.here.any())
    if not facts.here.any():
        evaluated = np.searchsorted(steps, facts.timeline.start[facts.marked.evaluated], side="right")
        known |= np.isin(place, evaluated) | (facts.seen_within(breaks) > MOST_OF_IT * lasts)
    each = np.bincount(place, lasts * known, len(steps) + 1)
    told = known & (each[place] >= IN_LINE * each.max(initial=0))
    return breaks[told], len(np.unique(place[told]))


def between_epochs(facts: Evidence) -> Finding | None:
    """What the loop does besides its steps, such as validation or a checkpoint: no step is charged for it."""
    breaks, count = _breaks(facts)
    time = intervals.length(breaks)
    if not time or facts.unseen:
        return None
    computing = device_sets(facts.timeline, facts.start, facts.end, facts.device)["kernels"]
    work, steps = intervals.length(intervals.intersect(breaks, computing)), len(facts.marks)
    often = EVERY * count >= steps > 0  # it need not be done so often: then its kernels are saved, too
    longest = breaks[np.argmax(breaks[:, 1] - breaks[:, 0])].tolist()
    lines, seen, idle, less = lines_of(facts, breaks), facts.seen_lines(breaks), "", ""
    if not facts.here.any() or (seen and seen[0][1] > MOST_OF_IT * time):  # the line before hides one without torch
        lines = seen
    if facts.here.any():
        idle = f", in which no kernel runs for {words.duration(time - work)}"
        less = f", less {words.duration(work)} in which kernels run, which only doing it less often saves, too"
    told = ", ".join(f"at {line} for {words.duration(ns)}" for line, ns in lines[:3] if ns >= IN_LINE * time)
    gain, loads = time if often else time - work, ""
    rows = np.flatnonzero(facts.timeline.where(Kind.FETCH) & in_loop(facts.timeline, facts.device))
    fetched = intervals.union(facts.timeline.start[rows], facts.timeline.end[rows])
    if (own := intervals.length(intervals.intersect(fetched, breaks))) > MOST_OF_IT * time:
        loads = f"\n# for {words.duration(own)} the main thread fetches there: DataLoader(..., num_workers=...)"
    return Finding(
        "between-epochs",
        f"{count:,} {'time' if count == 1 else 'times'} in {words.count(steps, 'step')} the loop does other "
        "work than steps, such as validation, a checkpoint, a report or a sampler: "
        f"{words.duration(time)} in all{idle}; the longest part takes {words.duration(longest[1] - longest[0])}, at "
        f"{words.duration(longest[0] - facts.timeline.begin)}{f'. The loop is {told}' if told else ''}. No other "
        "finding counts this time",
        "# do it less often, or let the next steps run meanwhile: save a copy in a thread, read losses once at the end"
        + loads,
        Gain(
            gain,
            gain / (facts.end - facts.start),
            None,
            f"at most {words.duration(time)} between the steps{'' if often else less}",
            predicted=time / steps if often else None,  # what is left out takes no time
        ),
        subject=Subject(time="outside"),
    )


def evaluates_each_step(facts: Evidence) -> Finding | None:
    """Layers that are computed after the training of each step, for no gradient: a validation, or a sample."""
    when, first = facts.evaluating
    if not len(when) or facts.unseen:
        return None
    timeline = facts.timeline
    calls = facts.program & intervals.covers(when, timeline.start) & ~timeline.where(Kind.RANGE)
    work, count = facts.here & facts.launched(calls), words.count(len(first), "step")
    direct = intervals.length(either(when, facts.covered(work)))
    gain = facts.bound(direct, "what host and device do for it", work, 0, host=when, supply=False)
    if not facts.here.any():  # what is left out takes no time
        gain = replace(gain, predicted=facts.per_step(direct))
    line, device = line_of(facts, int(first[0])), f"; the device works {duration(facts, facts.length(work))} for it"
    return Finding(
        "between-epochs",
        f"in {count} the loop computes layers after the backward pass{line}, and no gradient follows from them, as in "
        f"a validation: {duration(facts, intervals.length(when))} of the host{device if work.any() else ''}",
        "# do it less often: in every 100th step, or once in an epoch",
        gain,
        subject=Subject(time="idle"),
        removal=facts.removal(when, calls),
    )


def outlier_fetch(facts: Evidence) -> Finding | None:
    """A fetch that takes far longer than all others: it says nothing about a step, and none is charged for it."""
    timeline, far = facts.timeline, facts.marked.outliers(facts.start, facts.end)
    lost = intervals.length(intervals.intersect(facts.outside, intervals.union(timeline.start[far], timeline.end[far])))
    if not is_worth_it(lost, facts.end - facts.start):
        return None
    others = timeline.where(Kind.FETCH) & ~far & (timeline.start >= facts.start) & (timeline.start < facts.end)
    usual = float(np.median((timeline.end - timeline.start)[others]))
    fetches = "1 fetch takes" if far.sum() == 1 else f"{int(far.sum()):,} fetches take"
    return Finding(
        "outlier-fetch",
        f"{fetches} far longer than the others ({where(facts, far)}), of which the median is {words.duration(usual)}: "
        f"the loop loses {words.duration(lost)}. That is no cost of a step, but a garbage collection, say, or a first "
        "read from the disk. The steps are judged without it",
        "",
        ONCE,
        subject=Subject((Kind.FETCH,)),
    )


def _seen_on_cpu(facts: Evidence) -> Finding | None:
    """The line in which the main thread was seen most often, outside of torch and of its loader."""
    lines, window = facts.seen_lines(facts.judged), max(1, facts.window)
    if not (lines and facts.steps):
        return None
    line, looks = lines[0]
    drawing = facts.length(facts.loop & facts.handing_out) - intervals.length(facts.taking)
    other = facts.summary.breakdown.get("idle: other", 0) + drawing
    other = round(min(other, (facts.summary.step or window) * facts.steps) * (1 - facts.hindered))
    time = min(other, looks)
    if time < IN_LINE * window:
        return None
    inside = intervals.length(facts.beside_training) if facts.calls_torch(line) else 0
    what = "what the main thread does outside of torch and of its loader"
    what += ", and all operators that are no training, as this line has some" if inside else ""
    gain = facts.gain(other + inside, what, Floor(0, ""))
    told, change = "no loading", f"# do what stands in {line} less often, or in another thread or process"
    if facts.fault("loader-in-thread") is not None:
        told = "no loading that is seen; another thread takes a DataLoader's batches, and this line may wait for it"
        change = f"# if {line} waits for that thread: DataLoader(..., num_workers=...) in place of it, or for it"
    elif not inside:  # what is not done takes no time; a wait may be for what takes as long elsewhere
        gain = replace(gain, predicted=facts.per_step(time))
    return Finding(
        "other-work-in-loop",
        f"{line} takes {duration(facts, time)} of the main thread's time: it is no operator of torch and {told}"
        f"{'. The operators that it calls take time besides' if inside else ''}",
        change,
        gain,
        subject=Subject(time="outside"),
    )


WAITS_INSIDE = (
    "# take the host's waits out of the step{}:\n"
    "# copy a batch before it, with non_blocking=True; write torch.where() in place of an if;\n"
    "# read a value once the step is launched. Then the step can be a CUDA graph, which cannot hold a wait"
)
_ELEMENTWISE = (
    "abs", "acos", "add", "addcdiv", "addcmul", "asin", "atan", "ceil", "clamp_max", "clamp_min", "cos", "cosh",
    "div", "erf", "erfc", "exp", "expm1", "floor", "frac", "lerp", "lgamma", "log", "log10", "log1p", "log2",
    "maximum", "minimum", "mul", "neg", "norm", "pow", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin",
    "sinh", "sqrt", "sub", "tan", "tanh", "trunc", "zero",
)  # fmt: skip
# Operators that torch has for lists of tensors, too, and what these are called, one or two for each
ONE_BY_ONE = {f"aten::{name}{end}": f"{name}{end}" for name in _ELEMENTWISE for end in ("", "_")} | {
    "aten::copy_": "copy_",
    "aten::clone": "copy_",  # into tensors that are made once
    "aten::clamp": "clamp_min clamp_max",
    "aten::clamp_": "clamp_min_ clamp_max_",
    "aten::linalg_vector_norm": "norm",
}
SINGLY, PART = 16, 0.1  # such calls a step, and of all kernels, from which they are named
OPTIMIZER, ROW = -2, -3  # stand for the lines of all optimizers, and of rows of such calls where no lines are known
FOREACH = "optimizer = {name}(..., foreach=True)  # or fused=True: all parameters at once"
# Of torch.optim; a name that a library gave its own, such as apex' FusedAdam, may take no such value.
TAKES_FOREACH = frozenset(
    ("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
)
NO_FOREACH = "# {name} goes through its parameters one by one; torch.optim's optimizers take foreach=True: all at once"
AT_ONCE = "torch._foreach_{name}(tensors, ...)  # in place of a loop over tensors: all of them at once"
CELL = re.compile(r"aten::(\w*(lstm|gru|rnn\w*)_cell|unsafe_(split|chunk))").match  # of a recurrent network
BATCHED = (
    "# in place of the loop in {place}, do all of its samples, elements or tensors at once:\n"
    "# index with a tensor, use torch.where() and a mask, or an operator over a dimension.\n"
    "# Where each needs the one before it, torch.compile() joins them"
)
CELLS = "# torch.nn.LSTM, GRU or RNN in place of their cells in {place}: one call goes through all time steps"
REPLAY = (
    "with torch.cuda.graph(graph): loss = step(x, y)  # once; then x.copy_(batch) and graph.replay() in each step\n"
    "# in the graph all tensors are made on the GPU, and an optimizer such as Adam needs capturable=True\n"
    'model = torch.compile(model, mode="reduce-overhead")  # or let torch make the graph; or take a larger batch'
)


def other_work_in_loop(facts: Evidence) -> Finding | None:
    """A line that is no training, such as a log, a checkpoint or a report, while the GPU has nothing to do."""
    if not facts.here.any():
        return _seen_on_cpu(facts)
    place, when, within, mine, is_seen = facts.other_work
    if not place or facts.unseen:
        return None
    time, seen = intervals.length(when), facts.seen_lines(facts.judged)
    if not is_seen and seen and seen[0][1] > MOST_OF_IT * time:  # a line that calls nothing of torch was hidden
        place, mine = seen[0][0], np.zeros_like(mine)
    what = "what the host does outside of torch" if is_seen else "what this line takes"
    gain = facts.bound(intervals.length(within), what, host=within)
    names = ", ".join(names_of(facts, mine & (facts.last > facts.first), when)[:2])
    return Finding(
        "other-work-in-loop",
        f"{place} takes {duration(facts, time)} of the host's time while the GPU has nothing to do, in "
        f"{words.count(len(when), 'piece')}{f' ({names})' if names else ''}: it is no training, no loading and no wait "
        "for the GPU",
        f"# do what stands in {place} less often, or in another thread or process",
        gain,
        subject=Subject(time="idle"),
        removal=facts.removal(when if is_seen else within, mine),
    )


def _alternate(facts: Evidence, mine: Ints, others: Ints) -> bool:
    """Tell whether most of these operators of another line are between those of one, in a step: it is the same loop."""
    place = np.searchsorted(mine, others)
    between = (place > 0) & (place < len(mine))
    step = np.searchsorted(facts.timeline.start[facts.marks], facts.timeline.start[mine], side="right")
    same = step[place[between] - 1] == step[place[between]]
    return bool(2 * np.count_nonzero(same) > len(others))


def _in_rows(timeline: Timeline, rows: Ints, single: Mask) -> Mask:
    """Tell which of these operators are in a long row of those that torch has for lists of tensors, too.

    Few names come again and again, and some write into their tensor: what computes one value is a row as well.
    """
    runs = np.flatnonzero(np.diff(np.r_[False, single, False]))
    names, writes = timeline.name[rows], timeline.named(lambda name: name[-1:] == "_")[rows]
    found = np.zeros(len(rows), bool)
    for first, last in runs.reshape(-1, 2).tolist():
        length = last - first
        few = 4 * len(np.unique(names[first:last])) <= length <= 4 * np.count_nonzero(writes[first:last])
        found[first:last] = few and length >= SINGLY
    return found


def _before_backward(facts: Evidence, rows: Ints) -> Mask:
    """Tell which of these operators come before the backward pass of their batch: a model's own, of no gradient."""
    timeline, handed = facts.timeline, facts.loop & facts.handing_out
    back = timeline.start[facts.program & timeline.named(BACKWARD)]
    back, starts, far = np.sort(back), timeline.start[rows], timeline.begin + timeline.duration
    place = np.searchsorted(back, starts)
    # a batch is handed out before and after which backward operator
    batch, last, following = (
        np.searchsorted(timeline.start[handed], each, side="right")
        for each in (starts, np.r_[timeline.begin - 1, back][place], np.r_[back, far][place])
    )
    before: Mask = (batch > last) & (batch == following) & (place < len(back))
    return before


def _whole(facts: Evidence, operators: Mask) -> tuple[Mask, Intervals]:
    """Return these operators of the program with the calls in them, and when they run, with the Python between them."""
    mine: Mask = operators | facts.program & intervals.covers(facts.covered(operators), facts.timeline.start)
    rows, until = facts.at_lines
    between = mine[rows] & np.r_[mine[rows][1:], False][: len(rows)]
    python = intervals.union(facts.timeline.start[rows[between]], until[between])
    return mine, either(facts.covered(mine), intervals.intersect(python, facts.judged))


def _singly(facts: Evidence, optimizing: Mask) -> tuple[Ints, int]:
    """Return the operators that go through tensors one by one, and a line of theirs, `OPTIMIZER` or `ROW`."""
    timeline, steps, kernels = facts.timeline, facts.rounds or 0, int(facts.mask(*KERNELS).sum())
    rows = np.flatnonzero(facts.loop & timeline.where(Kind.OPERATOR) & ~optimizing)
    rows = rows[intervals.outermost(timeline.start[rows], timeline.end[rows], facts.start)]
    rows = rows[(timeline.start[rows] < facts.end) & ~timeline.named("aten::detach".__eq__)[rows]]
    rows = rows[~_before_backward(facts, rows) & facts.launches(rows)]
    inside = intervals.covers(facts.covered(optimizing), timeline.start[rows])
    single = timeline.named(ONE_BY_ONE.__contains__)[rows]
    if not (optimizing | timeline.named(BACKWARD)).any():  # nothing is trained: what makes a new tensor is a model's
        single &= timeline.named(lambda name: name.endswith("_"))[rows]
    lines = timeline.source[rows]
    if not len(facts.at_lines[0]):  # as where a real GPU is recorded: what follows one on the other is a loop
        lines = np.where(_in_rows(timeline, rows, single), ROW, -1)
    lines = np.where(inside, OPTIMIZER, lines)
    single &= lines != -1
    known, counts = np.unique(lines[single], return_counts=True)
    counts[2 * counts <= [int((lines == line).sum()) for line in known]] = 0
    trains = np.isin(known, facts.training_lines) & (known >= 0)
    counts[trains] = 0  # as a backward pass, whose operators are autograd's
    if not (steps and len(known) and counts.max() >= max(SINGLY * steps, PART * kernels)):
        return rows[:0], -1
    most = int(known[counts.argmax()])
    mine = rows[single & (lines == most)]
    among = [line for line in known[counts >= SINGLY * steps].tolist() if _alternate(facts, mine, rows[lines == line])]
    return rows[single & np.isin(lines, [most, *among])], most


def _optimizer(facts: Evidence, steps: Mask) -> str:
    """The class of the optimizer that makes most of these steps, such as "Adam"; "" if there are none."""
    return "".join(names_of(facts, steps)[:1]).partition("#")[2].partition(".")[0]


def _at_once(facts: Evidence, mine: Ints, line: int, optimizing: Mask) -> str:
    """Return the call that does to all tensors what these operators do to one."""
    timeline = facts.timeline
    if line == OPTIMIZER:
        name = _optimizer(facts, optimizing)
        return (FOREACH if name in TAKES_FOREACH else NO_FOREACH).format(name=name)
    called = Counter(timeline.names[name] for name in timeline.name[mine].tolist())
    first, *others = dict.fromkeys(name for each, _ in called.most_common() for name in ONE_BY_ONE[each].split())
    return AT_ONCE.format(name=first) + (f"\n# the same for {', '.join(others)}" if others else "")


def _again(facts: Evidence, optimizing: Mask) -> tuple[Ints, int]:
    """Return the operators of a loop within each step, with the backward pass that follows from it, and its line.

    Few operators of few lines come again and again, with no layer, copy or wait between them: else it may be a model.
    """
    timeline, steps, kernels = facts.timeline, facts.rounds or 0, int(facts.mask(*KERNELS).sum())
    rows = np.flatnonzero(facts.program & timeline.where(Kind.OPERATOR) & ~optimizing)
    outer = intervals.outermost(timeline.start[rows], timeline.end[rows], facts.start)
    rows, source = rows[outer & (timeline.start[rows] < facts.end)], timeline.source
    back = source[rows[timeline.named(BACKWARD)[rows]]]
    packs = timeline.named("aten::_pack_padded_sequence".__eq__).any()  # the emulator has no kernel for all its steps
    cells = source[rows[timeline.named(CELL)[rows] & (not packs)]]
    layers = timeline.named(LAYER) & ~(np.isin(source, [*cells, *back]) & bool(len(cells)))
    apart = facts.loop & (timeline.where(Kind.WAIT) | facts.does(Api.SYNCHRONIZE | Api.COPY) | facts.handing_out)
    apart |= facts.loop & (facts.fetching | optimizing)
    rows = rows[~layers[rows] & ~intervals.covers(facts.covered(optimizing), timeline.start[rows])]
    rows = rows[facts.launches(rows)]
    run = np.searchsorted(np.sort(timeline.start[apart | facts.program & layers]), timeline.start[rows])
    _, which = np.unique(np.c_[timeline.lane[rows], run], axis=0, return_inverse=True)
    kinds = np.unique(np.c_[which.ravel(), source[rows], timeline.name[rows]], axis=0)[:, 0]
    count = np.bincount(which.ravel())
    long = (count >= SINGLY) & (count >= 4 * np.bincount(kinds, minlength=len(count)))
    rows = rows[long[which.ravel()]]
    own = rows[(source[rows] >= 0) & ~np.isin(source[rows], back)]
    if not (len(facts.at_lines[0]) and steps and len(own) >= max(SINGLY * steps, PART * kernels)):
        return rows[:0], -1
    return rows, int(np.bincount(source[own]).argmax())


def one_by_one(facts: Evidence) -> Finding | None:
    """Operators that go through tensors or samples one by one, such as an optimizer: all could be done at once."""
    timeline = facts.timeline
    optimizing = facts.loop & timeline.named(OPTIMIZER_STEP.match)
    mine, line = _singly(facts, optimizing)
    if len(mine):
        change, seen = _at_once(facts, mine, line, optimizing), "go through tensors one by one"
        at = line_of(facts, int(mine[0]))
    else:
        mine, line = _again(facts, optimizing)
        if not len(mine):
            return None
        place = timeline.lines[timeline.sources[line]]
        change = (CELLS if timeline.named(CELL)[mine].any() else BATCHED).format(place=place)
        also = " and in the backward pass that follows from it" if timeline.named(BACKWARD)[mine].any() else ""
        seen, at = "are the same few again and again", f", in a loop in {place}{also}"
    gone = timeline.places(mine)
    every = _whole(facts, gone)[1]
    step = np.searchsorted(timeline.start[facts.marks], timeline.start[mine], side="right")
    gone[mine[np.unique(np.c_[step, timeline.name[mine]], axis=0, return_index=True)[1]]] = False  # for all, one stays
    gone, when = _whole(facts, gone)
    work = facts.here & facts.launched(gone)
    if 2 * np.count_nonzero(work & timeline.where(*COPIES)) > np.count_nonzero(work):
        return None  # the tensors are still on the host: `many_small_copies`
    direct = facts.length(work) + intervals.length(intervals.intersect(every, facts.idle))
    time = duration(facts, intervals.length(every))
    return Finding(
        "one-by-one",
        f"{words.count(len(mine), 'operator')}{a_step(len(mine), facts.rounds)}, {seen}{at}: the host launches each of "
        f"them, {time}",
        change,
        facts.bound(direct, "the GPU's idle time in their lines, and their kernels", work, 0, host=every),
        subject=Subject(time="idle"),
        removal=facts.removal(when, gone | work),
    )


def _most_launched(facts: Evidence, kernels: Mask) -> str:
    """Say which line launches most of these kernels; "" where none does, or the backward pass and the optimizer do."""
    timeline, calls = facts.timeline, facts.calls(kernels)
    lines = timeline.source[calls & (timeline.source >= 0)]
    if not len(lines):
        return ""
    line = int(np.bincount(lines).argmax())
    named = timeline.named(lambda name: bool(BACKWARD(name) or OPTIMIZER_STEP.match(name)))
    share = np.count_nonzero(lines == line) / np.count_nonzero(calls)
    if share <= MOST_OF_IT or (facts.loop & named & (timeline.source == line)).any():
        return ""
    return f"{timeline.lines[timeline.sources[line]]} launches {words.share(share)} of them"


def host_bound(facts: Evidence) -> Finding | None:
    """The GPU is idle because the host does not launch fast enough: kernels shorter than their launch (R23)."""
    parts = {where: facts.summary.breakdown.get(f"idle: {name}", 0) for name, where in _WHERE.items()}
    first_calls = _first_calls(facts, waiting=False)
    first = intervals.length(intervals.intersect(facts.idle, first_calls))
    other = intervals.length(intervals.intersect(facts.idle, facts.explained))
    idle = sum(parts.values()) - first - other
    kernels = facts.mask(*KERNELS)
    count = int(kernels.sum())
    if not (idle > 0 and count and facts.loop.any()) or facts.unseen:
        return None
    gain = facts.gain(idle, "the GPU's idle time in which the host works", facts.device_floor(), facts.supply_floor())
    mean = float((facts.last - facts.first)[kernels].mean())
    calls = int((facts.launching & ~facts.does(Api.COPY)).sum())  # a graph's launches many; some work is not seen yet
    launched = facts.covered(facts.loop & facts.timeline.where(Kind.API, Kind.OPERATOR))
    launching = intervals.length(intervals.subtract(launched, facts.elastic)) / max(count, calls)
    split = ", ".join(f"{words.duration(time)} {name}" for name, time in parts.items() if time)
    split += f"; first calls, {words.duration(first)}, are left out" if first else ""
    overlap = copy_not_hidden(facts) or pageable_copy(facts)
    hides = overlap is not None and is_worth_it(overlap.expected_gain.ns, facts.window)
    pays = CANNOT_PAY if facts.batch_copies.any() and waits_for_the_host(facts.summary) and not hides else ""
    gap, place = longest_gap(facts, first_calls)
    gap = _most_launched(facts, kernels) or gap
    waits, asks = facts.waits_inside, dict[str, Any]()
    change = f"# see what the host does {place or 'in the longest gap'}; the GPU has no work then"
    between = intervals.subtract(facts.idle, launched)  # Python from one call to the next is a part of launching
    elsewhere = min(parts["outside torch"], intervals.length(between[between[:, 1] - between[:, 0] >= LAUNCH]))
    launches = mean < launching < LAUNCH and idle > 2 * elsewhere
    if launches and waits.any():
        change, asking = WAITS_INSIDE.format(line_of(facts, int(np.argmax(waits)))), waits & facts.does(Api.SYNCHRONIZE)
        if 2 * facts.asking(asking, FINITE).sum() > asking.sum():
            change = f"{_SYNCHRONIZES['finite']}\n{change}"
    elif launches:
        change, asks = REPLAY, {"graphs": True}
    takes = f"it takes {words.duration(mean)}" if count == 1 else f"one takes {words.duration(mean)} on average"
    sentences = (
        f"the GPU is idle for {words.duration(idle)} ({words.share(idle / facts.window)}) while the host works "
        f"({split})",
        f"{words.count(count, 'kernel')}{a_step(count, facts.rounds)}: {takes}, and torch and CUDA take "
        f"{words.duration(launching)} of the host's time for it",
        gap,
        pays,
    )
    seen = ". ".join(filter(None, sentences))
    removal = facts.removal(calls=waits, graphs=True) if launches and not asks else None
    return Finding("host-bound", seen, change, gain, asks, subject=Subject(time="idle"), removal=removal)


def start_up(facts: Evidence) -> Finding | None:
    """What is paid before the steady state: worker processes, the CUDA context, first allocations."""
    timeline = facts.timeline
    before = facts.start - timeline.begin
    if not facts.here.any() or facts.marked.cut or before < START_UP * timeline.duration:
        return None
    row = _longest_before(facts, np.ones(len(timeline), bool))
    longest = f"; the longest part of it is {row.name}, {words.duration(row.duration)}" if row else ""
    change = "loader = DataLoader(..., persistent_workers=True)  # with more epochs than one, if it is not set already"
    number = int(timeline.batch[facts.marks[0]]) if facts.marks else -1
    first = f"batch {number}" if number > 0 else "the first step" if facts.steps else "the GPU's first work"
    return Finding(
        "start-up",
        f"{words.duration(before)} of {words.duration(timeline.duration)} pass before {first}{longest}. This time "
        "is not judged",
        change if facts.lanes_of("worker") else "",
        ONCE,
        subject=Subject(time="start-up"),
    )


def warm_up(facts: Evidence) -> Finding | None:
    """First calls and allocations, where fewer than two steps are marked: nothing tells that they come back.

    Or a slow first step of a recording that begins in a later one, which is left out.
    """
    if facts.marked.cut and facts.marked.first and facts.asked is None:
        return _slow_first_step(facts)
    memory, time = facts.loop & facts.does(Api.MEMORY), intervals.length(_first_calls(facts))
    if not facts.here.any() or not time or time < START_UP * facts.window:
        return None
    slow = np.flatnonzero(facts.first_calls & ~memory)
    slow = slow[np.argsort(facts.first[slow] - facts.last[slow], kind="stable")][:3]
    names = [facts.timeline.names[name] for name in facts.timeline.name[slow].tolist()]
    seen = [f"first calls of {', '.join(names)}"] if names else []
    seen += [f"{int(memory.sum()):,} x {', '.join(names_of(facts, memory)[:3])}"] if memory.any() else []
    return Finding(
        "warm-up",
        f"{words.duration(time)} of {words.duration(facts.window)} are what is usually paid once: {'; '.join(seen)}. "
        "Fewer than two steps are marked, so nothing tells whether it comes back",
        "# record later steps and mark them: schedule=torch.profiler.schedule(wait=5, warmup=1, active=5), prof.step()",
        ONCE,
    )


def _slow_first_step(facts: Evidence) -> Finding:
    first, second = facts.timeline.start[facts.marked.spans[:2]].tolist()
    row, what = _longest_before(facts, in_loop(facts.timeline, facts.device)), "what is outside torch"
    if row and 2 * row.duration > second - first:
        what = f"{row.name}, {words.duration(row.duration)}"
    return Finding(
        "warm-up",
        f"the first step takes {words.duration(second - first)}, and most of it is {what}. The GPU has no such pause "
        f"in the {len(facts.marks):,} later steps, so this time is not judged",
        "# record more steps, and later ones, to see whether it comes back: schedule(wait=10, warmup=2, active=20)",
        ONCE,
        subject=Subject(time="start-up"),
    )


def _longest_before(facts: Evidence, mask: Mask) -> Span | None:
    """Return the longest of these calls, waits and fetches that end before the window; None if there is none."""
    timeline = facts.timeline
    early = mask & (timeline.end <= facts.start) & timeline.where(Kind.API, Kind.OPERATOR, Kind.WAIT, Kind.FETCH)
    longest = np.argmax((timeline.end - timeline.start) * early) if early.any() else None
    return None if longest is None else timeline.row(int(longest))


def short_window(facts: Evidence) -> Finding | None:
    """Fewer batches than there are workers were begun in the window: they have not shown how fast they are."""
    timeline, workers = facts.timeline, facts.lanes_of("worker")
    fetches = timeline.select(Kind.FETCH, workers, timeline.batch[facts.marks]) & (timeline.batch >= 0)
    made, number = len(np.unique(timeline.batch[fetches])), len(workers)
    begun = len(np.unique(timeline.batch[fetches & (timeline.start >= facts.start)]))
    if not made or begun >= number:
        return None
    return Finding(
        "short-window",
        f"{words.count(number, 'worker')} began only {begun} of the {words.count(made, 'batch')} of these "
        "steps in this time, and all others before it. So it does not show whether they keep up with the loop",
        f"# record at least {made - begun + 3 * number} steps",
        NO_GAIN,
    )


def unpriced(facts: Evidence) -> Finding | None:
    """What the data set does here and costs nothing on the emulated host: the loader is slower than shown."""
    kinds = facts.timeline.context.unpriced
    if not kinds:
        return None
    what = {"data set": "the Python of the data set", "waiting": "the waiting in the data set"}
    given = {"data set": "seconds", "waiting": "waits=seconds"}
    return Finding(
        "unpriced",
        f"this host has no price for {' and for '.join(what[kind] for kind in kinds)}. On this machine they take long, "
        "so the loader is slower than this timeline shows it, and the other findings may be wrong",
        f"with loaderviz.costs({', '.join(given[kind] for kind in kinds)}):  # around it, in the data set\n"
        '# or record(host="auto"), which measures it',
        NO_GAIN,
    )


def _first_calls(facts: Evidence, waiting: bool = True) -> Intervals:
    """When the loop's thread is in first calls or, where fewer than two steps are known, allocates."""
    waits = facts.covered(facts.loop & facts.timeline.where(Kind.WAIT))
    first = facts.covered(facts.first_calls | (facts.loop & facts.does(Api.MEMORY)))
    if (facts.steps or 0) > 1:
        return waits[:0]
    return first if waiting else intervals.subtract(first, waits)


def _recording(facts: Evidence) -> str:
    """How to record all of the GPU's work, with the profiler that has made the file, or all ranks."""
    missing = facts.timeline.context.missing
    if missing and not facts.unseen and all(ABSENT in each for each in missing):
        return "# record each rank, and give read() the files of all of them"
    if NSIGHT in facts.timeline.context.versions:
        return f"{NSYS} python train.py  # begin before the work, and wait for the GPU before the program ends"
    return "# begin the profiler before the work, with activities=[CPU, CUDA]; wait for the GPU before it ends"


_MEMSET = re.compile("memset", re.IGNORECASE)
LOST = 0.05  # of the launches: if the work of more is not seen, it is not known that there is nothing to gain
_NOT_JUDGED = (
    ". The kernels set the pace, and what they compute is not judged here: a lower precision (TF32, torch.autocast), "
    "another model or a faster GPU makes them shorter"
)


def nothing(facts: Evidence, found: Sequence[Finding]) -> Finding:
    """The honest finding where no change is worth its work, or where the timeline does not show which would be."""
    summary = facts.summary
    if not summary.kernels and not summary.copy:
        made, missing = facts.timeline.places(facts.launched_by[facts.launched_by >= 0]), facts.timeline.context.missing
        unseen, lost = "", int((facts.does(Api.LAUNCH) & ~made).sum())
        if lost:
            unseen = (
                f"the host makes {words.count(lost, 'launch')}, and no kernel and no copy is in the timeline: the "
                "profiler lost them, or was not asked for them"
            )
        elif missing and facts.timeline.context.origin == "file":
            unseen = "; ".join(missing)
        elif summary.busy:
            time = words.duration(facts.length(facts.here))
            unseen = (
                f"the timeline has no kernel and no copy, nor a launch of one, only {time} of other work on the GPU: "
                "if there were some, the profiler did not see them"
            )
        if unseen:
            return Finding("work-not-seen", unseen, _recording(facts), NO_GAIN)
        text = "the timeline has no work of a GPU in it, so nothing can overlap"
        if data := intervals.length(facts.getting):
            text += f"; the loop waits for data or fetches it {words.share(data / facts.window)} of the time"
        return Finding("no-gpu-work", text, f"# {'; '.join(missing)}" if missing else "", NO_GAIN)
    overlap = summary.overlap
    copy = "no host-device copies" if overlap is None else f"{words.share(overlap)} of the copy is hidden"
    run = (
        f"{words.share(summary.kernels / facts.window)} of the window, {copy}, the GPU is idle "
        f"{words.share(1 - (summary.busy or 0))}: {summary.away}"
    )
    lost = int((facts.lost & ~facts.timeline.named(_MEMSET.search)).sum())  # CUPTI does not tell of each memset
    count, some = int(facts.launching.sum()), ""
    if lost > LOST * count and not facts.captured:
        some = f"{lost:,} of {words.count(count, 'launch')} of the loop have no work on the GPU: the profiler lost it"
    if unseen := facts.unseen or "; ".join(facts.timeline.context.missing) or some:
        return Finding("work-not-seen", f"{unseen}. Kernels are seen {run}", _recording(facts), NO_GAIN)
    text = f"kernels run {run}"
    if not facts.loop.any() and facts.window >= WORTH_IT * summary.limit:
        return Finding("cause-not-seen", f"{text}. The timeline has no host lane that would tell why", "", NO_GAIN)
    small = max(found, key=lambda finding: finding.expected_gain.ns, default=None)
    if small is not None and small.expected_gain.ns:
        tried = is_worth_it(small.expected_gain.ns, facts.window)
        why = "but in a replay its change gains less than 3 %" if tried else "not worth a change"
        text += f". The largest gain that is left is {small.kind}, {small.expected_gain}: {why}"
    if summary.kernels >= SATURATED * facts.window:
        text += _NOT_JUDGED
    return Finding("nothing-to-gain", text, "", NO_GAIN)


def _pin_thread_is_full(facts: Evidence) -> bool:
    """Tell whether the pin thread, and not the workers before it, keeps the loop waiting."""
    workers, pin = facts.lanes_of("worker"), facts.lanes_of("pin")
    if not (workers and pin):
        return False
    busy, places = facts.busy(workers), min(len(workers), facts.cores or len(workers))
    return facts.busy(pin) > max(busy * len(workers) / places, SATURATED)


CHEAPER = "prepare the samples once and store them, or keep the data set on the GPU"
NO_MORE = "# more workers do not help"
REMEDIES: dict[Remedy, str] = {  # as lines of code, into which comes how many workers and whether they pin
    "workers": "loader = DataLoader(..., num_workers={number}{pin})",
    "some-workers": "loader = DataLoader(..., num_workers=...)  # more than now",
    "any-order": "loader = DataLoader(..., in_order=False)  # batches come as they are ready, so the order changes",
    # helps where the batches are there in time on average; no replay has a stock of another size
    "stock": (
        "loader = DataLoader(..., prefetch_factor=8)  # if some batches take longer: so many are ordered of each "
        "worker\nloader = DataLoader(..., persistent_workers=True)  # if the waits are at the beginning of an epoch"
    ),
    "lock": f"{NO_MORE}: hold the lock for less, or give each worker a file or connection of its own",
    "fewer-bytes": f"{NO_MORE}: make the batches fewer bytes, or keep the data set on the GPU",
    "fewer-tensors": f"{NO_MORE}: send fewer tensors; join them in collate_fn, and split them on the GPU",
    "cheaper": f"{NO_MORE}: {CHEAPER}",
    "one-epoch": f"{NO_MORE} in so short an epoch: make a fetch shorter{{mostly}};\n"
    "# with more epochs than one, persistent_workers=True starts these once",
    "room": "# more workers do not fit: make the batches fewer bytes, such as uint8, or smaller",
}
AT_BEST = "fewer-bytes", "fewer-tensors", "stock"  # it is not known that they help


def _workers(facts: Evidence, number: int | None) -> dict[str, Any]:
    return {"workers": number} | ({"pinned": True} if _pin(facts) else {}) if number else {}


def _behind(facts: Evidence, gain: Gain, waits: Mask) -> tuple[str, Remedy, int | None]:
    """Say who keeps the loop waiting; return also what helps, and with how many workers, if it is more of them."""
    workers, pin = facts.lanes_of("worker"), facts.lanes_of("pin")
    if not workers:
        return "its workers are not in this timeline", "some-workers", None
    busy, places = facts.busy_with_orders(workers), min(len(workers), facts.cores or len(workers))
    many = words.count(len(workers), "worker") + facts.which_loader
    until = " in which they have orders" if busy > facts.busy(workers) else ""
    seen = f"{many} {'fetch' if len(workers) > 1 else 'fetches'} {words.share(busy)} of the time{until}"
    waiting = busy * len(workers) <= places < len(workers)  # one that waits for an emulated core does not look busy
    busy = busy * len(workers) / places if waiting else busy
    if _pin_thread_is_full(facts):
        seen += f", the pin thread pins for {words.share(facts.busy(pin))} of it, and there is only one (R45)"
        return seen, _less_to_pin(facts), None
    if busy > NEARLY and (waits_at := _at_lock(facts)):
        return f"{seen}, and {waits_at}", "lock", None
    waiting |= facts.take_turns
    loaded = facts.fetch.takes * (facts.steps or 0) / max(1, places * facts.window)  # also at an epoch's end
    if max(busy, loaded) < SATURATED and not facts.take_turns and (told := _seldom(facts, seen, waits, busy > NEARLY)):
        return *told, None
    if not facts.more_workers or facts.take_turns:
        why, remedy = _no_more(facts, len(workers), waiting)
        return f"{seen}{why}", remedy, None
    return seen, "workers", max(facts.workers_for(gain) or 0, len(workers) + 1)


def _no_more(facts: Evidence, number: int, waiting: bool) -> tuple[str, Remedy]:
    """Say why more than this number of workers, which may be `waiting` for cores, do not help; return what does."""
    if full := _room(facts, number):
        return full, "room"
    if facts.epoch and SPARE * number < facts.useful_workers and not facts.lock_is_taken:
        short = f"an epoch has {math.ceil(facts.epoch):,} batches"
        return f", and {short}: more workers take longer to start than they save", "one-epoch"
    return f", and {_cores(facts)}: {'they take turns' if waiting else 'more workers would take turns'}", "cheaper"


def _less_to_pin(facts: Evidence) -> Remedy:
    """What makes the pin thread's work less: of many small tensors each one has its price, whatever bytes it has."""
    tensors = facts.timeline.context.usage.get("tensors", 0)
    return "fewer-tensors" if tensors >= MANY_SENT and facts.batch_bytes < tensors * SMALL else "fewer-bytes"


def _at_lock(facts: Evidence) -> str:
    """Say that workers wait for a lock which one of them has at a time, or that it is always taken; "" if not."""
    place, seen = facts.fetch_lines(Cause.THREAD)
    place = place or facts.fault("shared-lock") or ""
    at = place and f" in {place}"
    if seen > QUEUED:
        share = facts.queued / facts.fetch.takes
        return f"for {words.share(share)} of it they wait for each other{at}"
    if facts.lock_is_taken:
        return f"each batch needs the lock{at} for {words.duration(facts.locked)}, and one fetch has it at a time"
    return ""


def _seldom(facts: Evidence, seen: str, waits: Mask, nearly: bool) -> tuple[str, Remedy] | None:
    """Say when workers that are not busy all the time are behind, and what helps; None: they give all they can."""
    few, leave_out = in_few_steps(facts, waits)
    late = f"; the waits are only{few}" if few else ""
    if leave_out:
        return f"{seen}{late}", "no-warm-up"
    time = (facts.timeline.end - facts.timeline.start)[facts.fetches]
    if len(time) and np.quantile(time, 0.95) > UNEVEN * np.median(time):
        kept = 2 * facts.length(waits & facts.others_ready) >= facts.length(waits)
        if not kept or (nearly and not few and facts.more_workers):  # who works all the time needs help, in any order
            return None
        ready = "others are ready, and have to wait for them"
        return f"{seen}{late}, and some batches take far longer: {ready}", "any-order"
    if not few and facts.length(waits) > OFTEN_BEHIND * facts.window:
        return None if nearly and facts.more_workers else _often(facts, seen, waits)
    return f"{seen}{late}: they have time left, and the loop waits only now and then", "stock"


def _often(facts: Evidence, seen: str, waits: Mask) -> tuple[str, Remedy]:
    """Say who keeps the loop waiting in most steps while the workers have time left: the pin thread, if it works."""
    pinning = facts.covered(facts.timeline.where(Kind.PIN) & ~facts.loop)
    share = intervals.length(intervals.intersect(pinning, facts.covered(waits))) / facts.length(waits)
    if share > 0.5:
        told = (
            f"for {words.share(share)} of its waits the pin thread, of which there is only one, copies the batch (R45)"
        )
        return f"{seen}, and still the loop waits in most steps: {told}", _less_to_pin(facts)
    return f"{seen}, and still the loop waits in most steps: before these waits they do not fetch for a while", "stock"


def _pin(facts: Evidence) -> str:
    pins = facts.summary.busy and not facts.unlike_loaders and not _makes_its_own(facts)
    return ", pin_memory=True" if pins else ""


def _pinned_too(facts: Evidence) -> tuple[Floor, int, str]:
    """Return how long the device works once pin_memory=True pins its pageable copies, what that saves [ns], in words.

    Where nothing is to be pinned, that is how long it works, 0, and no word.
    """
    copies = facts.pageable & bool(_pin(facts))
    left = _if_pinned(facts, copies)[0] if copies.any() else 1.0
    saved = round((1 - left) * facts.length(copies))
    return facts.device_floor(copies, left), saved, ", and what pinned copies save" * bool(saved)


def too_slow(facts: Evidence, *floors: Floor) -> str:
    """Say so where even as many workers as there are cores are slower than all else that the loop needs (`floors`)."""
    fetching = facts.workers_floor()
    if fetching.ns <= max(floor.ns for floor in floors):
        return ""
    number, still = facts.most_workers, "so loading stays slower than the rest of the step, whatever the workers"
    workers = f"even {words.count(number, 'worker')} ({_cores(facts)}) {'needs' if number == 1 else 'need'}"
    return f"; {workers} {duration(facts, fetching.ns)}, {still}: {CHEAPER}"


def _cores(facts: Evidence) -> str:
    if facts.cores:
        return f"this machine has {words.count(facts.cores, 'CPU core')}"
    return f"{facts.most_workers} CPU cores for a GPU are usual; the timeline does not tell how many there are"


# The door

FINDINGS = (
    unsharded_iterable,
    model_on_host,
    pageable_copy,
    wide_dtype,
    index_on_host,
    copy_not_hidden,
    page_faults,
    cuda_in_dataset,
    slow_line,
    uneven_workers,
    workers_cost_more,
    threads_in_workers,
    dense_embedding,
    fetch_in_loop,
    waiting_for_data,
    interpreter_lock,
    anomaly_mode,
    synchronizes_each_step,
    many_small_copies,
    allocates_in_loop,
    resident,
    restarts_iterator,
    restarts_workers,
    communication_exposed,
    late_rank,
    between_epochs,
    evaluates_each_step,
    other_work_in_loop,
    one_by_one,
    host_bound,
)


# Told although they gain nothing a step: what makes the other findings doubtful, and what is good to know after them
DOUBTS = unpriced, short_window, swaps, cores_taken, memory_grows
BESIDE = too_many_workers, workers_grow, cold_cache, uneven_steps, outlier_fetch, start_up


def advise(timeline: Timeline, window: tuple[int, int] | None = None, device: int | None = None) -> Advice:
    """Return findings: what each change could gain, in the order to make them. If nothing can be gained, one says so.

    The change with the largest gain comes first. A change of the whole program comes after others that gain at least
    half as much, or a tenth of the time. Findings worth less than 3 % are left out, but for a late rank (2.5 %).

    The advice is about the steady state, as a summary is (in a timeline without steps: from the GPU's first work to
    its last), or about `window = (start, end)` [ns, as in `timeline.start`]. Of several devices it is about the one
    that the others wait for, else the one that works longest, or about `device`.

    Raises `NotATimelineError` for anything but a Timeline, and `MetricsError` for a window or a device that makes no
    sense.

    >>> advice = loaderviz.advise(timeline)
    >>> print(advice[0].change)
    loader = DataLoader(..., pin_memory=True)
    batch = batch.to("cuda", non_blocking=True)
    >>> advice[0].expected_gain.ns  # in the window, at most
    5185205
    """
    facts = Evidence(check_timeline(timeline, "advise()"), device, window)
    if window is None and facts.phases:
        return _apart(facts)
    found, summary = _findings(facts, replayed=window is None and device is None), facts.summary
    limit = summary.limit / facts.steps if summary.limit and facts.steps else None
    judged = f"Judged: {_judged(facts)}{_no_lines(facts)}"
    return Advice(found, judged, (facts.start, facts.end), timeline, summary.step, limit, summary.longest)


def _findings(facts: Evidence, *, replayed: bool) -> list[Finding]:
    """Return what is worth to be told of one part of a loop, in order; whether each change was `replayed` before."""
    found = [each for find in FINDINGS if (each := find(facts))]
    worth = [each for each in found if _is_told(each, each.expected_gain.ns, facts)]
    waits_hinder = any(each.removal is not None and each.removal.graphs for each in worth)
    if replayed:
        worth = _tried(facts, worth)
    _order(facts, worth, waits_hinder)
    warm = warm_up(facts)
    doubts, beside = ([each for find in part if (each := find(facts))] for part in (DOUBTS, BESIDE))
    beside = [*filter(None, [warm]), *beside]
    beyond = {each.kind for each in (*doubts, *beside)}
    if warm and worth and worth[0].expected_gain.ns < intervals.length(_first_calls(facts)):  # a pass that is cold
        worth, beside = [warm, *worth], beside[1:]
    told = worth or ([] if warm or "short-window" in beyond else [nothing(facts, found)])
    told = [each for each in told if each.kind != "nothing-to-gain" or "uneven-steps" not in beyond]
    if worth and (facts.unseen or (facts.timeline.context.missing and facts.timeline.context.origin == "file")):
        # what has no work is no guess where a graph is captured; else all gains are those of a part of the program
        told.insert(len(told) if facts.captured or not facts.unseen else 0, nothing(facts, found))
    elif (
        worth
        and not facts.summary.busy
        and (facts.timeline.context.missing or facts.timeline.context.origin == "emulated")
    ):
        told.insert(0, nothing(facts, found))  # what a loop on the CPU could gain is not what was asked
    return [*doubts, *told, *beside]


def _is_told(finding: Finding, ns: int, facts: Evidence) -> bool:
    """Tell whether a change that gains `ns` is worth it; who is late has to be more than little in `lateness` only."""
    return finding.kind == "late-rank" or is_worth_it(ns, facts.window)


def _tried(facts: Evidence, found: Sequence[Finding]) -> list[Finding]:
    """Return the findings whose change gains something, each with what it gains in a replay."""
    trials, named = Trials(facts), {each.kind for each in found}
    tried = [checked for each in found if (checked := trials.tried(each))]
    tried = [each for each in tried if _is_told(each, round(_value(facts, each)), facts)]
    kept = {each.kind for each in tried}  # an epoch ends with its slowest batch in any order
    slow = (_cheaper(each) for each in found if each.remedy == "any-order" and each.kind not in kept)
    tried += filter(None, map(trials.tried, slow))
    if not trials.why_not:
        tried = [
            each
            for each in tried
            if each.expected_gain.predicted or each.expected_gain.share > UNTRIED or each.kind == "late-rank"
        ]
    useless = (named - {each.kind for each in tried}) & set(LOADS) or (not tried and _pin_thread_is_full(facts))
    instead = resident(facts, workers_help=False) if useless and "resident" not in named else None
    if instead and (checked := trials.tried(instead)):
        tried.append(checked)
    if tried or facts.summary.busy or intervals.length(facts.getting) < UNTRIED * facts.window:
        return tried
    return [_cheaper(each) for each in found if each.kind in LOADS]  # on the CPU loading is what was asked for


def _cheaper(finding: Finding) -> Finding:
    return replace(finding, change=REMEDIES["cheaper"], remedy="cheaper", parameters={}, removal=None)


def _value(facts: Evidence, finding: Finding) -> float:
    """Return what a change gains in the window [ns], less its share of an epoch's start: as predicted, or at most."""
    gain, step = finding.expected_gain, facts.summary.step
    starts = _more_starts(facts, finding.parameters.get("workers", 0)) * (facts.steps or 0) / (facts.epoch or math.inf)
    return (gain.ns if gain.predicted is None or not step else gain.predicted / step * facts.window) - starts


def _order(facts: Evidence, found: list[Finding], waits_hinder: bool) -> None:
    """Put what is to be changed first to the front: what gains most, but for what is as good and less work.

    That is a line, then more workers, then another program. `waits_hinder`: a step would be a CUDA graph but for its
    waits, which have to be out before.
    """
    found.sort(key=lambda finding: -_value(facts, finding))
    waits: _Rule = (lambda one: one.kind == "host-bound", lambda one: one.kind in WAITS, True)
    for later, sooner, must in (waits, *_SOONER) if waits_hinder else _SOONER:
        first = next(filter(sooner, found), None)
        if first and later(found[0]) and (must or _is_as_good(facts, first, found[0])):
            found.remove(first)
            found.insert(0, first)


# Which finding is later than which, and whether it must be
_Rule = tuple[Callable[[Finding], bool], Callable[[Finding], bool], bool]
_SOONER: tuple[_Rule, ...] = (
    (lambda one: one.kind != "late-rank", lambda one: one.kind == "late-rank", False),
    (lambda one: one.kind == "resident", lambda one: one.kind not in (*LARGE, *AS_LARGE), False),
    (
        lambda one: one.kind in LARGE,
        lambda one: one.remedy != "stock" and one.kind not in (*LARGE, *AS_LARGE),
        False,
    ),
    (lambda one: one.kind not in AS_LARGE, lambda one: one.kind == "restarts-iterator", False),
    (lambda one: one.kind in LOADS, lambda one: one.kind in LINES, False),
    (lambda one: one.kind in LOADS and not one.parameters, lambda one: one.kind == "workers-cost-more", True),
    (
        lambda one: one.remedy in AT_BEST,  # another data set
        lambda one: one.kind not in LARGE and one.remedy not in AT_BEST,
        False,
    ),
    (lambda one: one.kind != "unsharded-iterable", lambda one: one.kind == "unsharded-iterable", True),
)


def _is_as_good(facts: Evidence, finding: Finding, first: Finding) -> bool:
    value, best = _value(facts, finding), _value(facts, first)
    return 2 * value > best or (first.kind in LARGE and value > UNTRIED * facts.window)


def _apart(facts: Evidence) -> Advice:
    """Judge the parts of a loop of different kinds by themselves; a finding says which part it is about."""
    found, judged = [], []
    for number, (start, end, loads) in enumerate(facts.phases, 1):
        kind = "whose batches are loaded" if loads else "whose data are on the GPU"
        part = Evidence(facts.timeline, facts.device, (start, end))
        judged.append(f"Part {number}, {kind}: {_judged(part)}")
        about = (each for each in _findings(part, replayed=False) if each.kind != "start-up")  # that is another part
        found += [replace(each, evidence=f"part {number}, {kind}: {each.evidence}") for each in about]
    if once := start_up(facts):
        found.append(once)
    found.sort(key=lambda finding: -finding.expected_gain.ns)
    return Advice(found, f"{' '.join(judged)}{_no_lines(facts)}", (facts.start, facts.end))


def _judged(facts: Evidence) -> str:
    """Say which part of the timeline the findings are about, and what it cannot be shorter than."""
    summary, part = facts.summary, words.duration(facts.window)
    whole, many = words.duration(facts.timeline.duration), summary.batches or 0
    steps = "1 step" if many == 1 else f"{many:,} steps of {words.duration(summary.step)}"
    if facts.rounds and facts.rounds - many >= 0.1:  # the least that its two digits tell well
        steps += f", and the GPU's work on {facts.rounds - many:.2g} steps that were launched before the window"
    elif summary.step and abs(many * summary.step - facts.window) > APART * facts.window:
        steps += (
            f" from one to the next (a time “a step” below is its part of the {part} / {many:,}, a gain its share of a "
            "step)"
        )
    which = f"rank {rank_of(facts.timeline, facts.device)}" if summary.busy is None else f"device {facts.device}"
    parts = [
        len(summary.devices) > 1 and f"{which}, one of {len(summary.devices)}",
        part if part == whole else f"{part} of {whole}",
        many and steps,
        len(facts.outside) and f"without {words.duration(intervals.length(facts.outside))} that no usual step has",
    ]
    limit = f"; the limit is {duration(facts, summary.limit)}, {summary.longest} alone" if summary.limit else ""
    if summary.limit_most > summary.limit:
        limit += f", or up to {duration(facts, summary.limit_most)} if collectives do not wait for other ranks"
    return f"{', '.join(str(each) for each in parts if each)}{limit}."


def _no_lines(facts: Evidence) -> str:
    if facts.timeline.context.origin == "file" and facts.here.any() and not facts.timeline.sources:
        return " The file has no lines of code: record with with_stack=True."
    return ""
