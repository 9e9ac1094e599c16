"""what_if(): the same loop with another loader, or on another GPU, predicted from one timeline.

    better = loaderviz.what_if(timeline, pinned=True, prefetch=2)
    loaderviz.compare({"now": timeline, "what if": better})

The kernels, the host's calls and the cost of a batch are those of the timeline; the changed loader is replayed with
them on the emulator's rules (`loaderviz.replay`). It promises the order of things and the bottleneck; how close it
comes is measured against really emulated loops in the tests. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from loaderviz import words
from loaderviz.activity import check_timeline
from loaderviz.emulator.hardware import GPUS, Gpu
from loaderviz.emulator.runtime import Runtime
from loaderviz.prediction.errors import WhatIfError
from loaderviz.prediction.machine import checked, known_gpu, machine_of, slower
from loaderviz.prediction.observed import Call, Observed
from loaderviz.replay import PREFETCH_FACTOR, Replay
from loaderviz.timeline import KERNELS, Context, Kind, Timeline

__all__ = ["WhatIfError", "what_if"]

MOST_WORKERS, DEEPEST = 64, 16


@dataclass(frozen=True)
class Feeding:
    """How batches come to the GPU; see `loaderviz.replay.Feed`."""

    workers: int
    pin: bool
    non_blocking: bool
    side_stream: bool
    depth: int
    lifetime: str = "consumer"
    resident: bool = False


def what_if(
    timeline: Timeline, pinned: bool | None = None, prefetch: int | None = None, resident: bool | None = None,
    workers: int | None = None, gpu: str | Gpu | None = None,
) -> Timeline:  # fmt: skip
    """Return the timeline that the loop would have had with a changed loader; None leaves a thing as it is.

    `pinned`: batches come in pinned memory and are copied with `non_blocking=True`, or (False) pageable and blocking.
    `prefetch`: so many batches are copied ahead on a side stream (0: in place, on the stream that computes), pinned
    unless `pinned=False`. `resident`: the data set lives on the GPU, if it fits, which is not checked. `workers`:
    DataLoader processes. `gpu`: a preset's name or a `Gpu`; kernels are scaled by peak FLOP/s if their name tells
    arithmetic, else by memory bandwidth. A `Gpu` with the name of the timeline's own device only says more about it,
    such as the rate of its pinned copies. The context says what was assumed.

    Raises `WhatIfError` for a timeline that does not show a loop of one GPU with copies, and for changes that make no
    sense together; `UnknownHardwareError` for an unknown GPU; `OutOfMemory` if the batches do not fit.

    >>> loaderviz.summarize(loaderviz.what_if(timeline, prefetch=2)).step     # ns, predicted
    """
    loop = Observed.of(check_timeline(timeline, "what_if()"))
    feeding = _changed(loop, pinned, prefetch, resident, workers)
    source, host = machine_of(loop)
    target = source if gpu is None else gpu if isinstance(gpu, Gpu) else Gpu.preset(gpu)
    here = timeline.context.device
    if target.name == here:  # the same machine, told about in more detail
        source = target
    elif gpu is not None and not known_gpu(here):
        raise WhatIfError(
            f"what_if(gpu=...) scales the kernels, but {here!r}, where they ran, is none of {', '.join(sorted(GPUS))}"
        )
    target = checked(target, feeding.pin or (feeding.resident and bool(target.h2d)))
    runtime = Runtime(target, host)
    warmup = PREFETCH_FACTOR * max(feeding.workers, 2) + feeding.depth + 2
    work = _Observation(loop, warmup, source, target)
    predicted = Replay(feeding, work, runtime, from_hand_out=loop.from_hand_out).run(warmup, len(loop.steps))
    return replace(predicted, context=_context(timeline, predicted.context, feeding, target, len(loop.steps)))


def _changed(
    loop: Observed, pinned: bool | None, prefetch: int | None, resident: bool | None, workers: int | None
) -> Feeding:
    for name, value in (("pinned", pinned), ("resident", resident)):
        if value is not None and not isinstance(value, bool):
            raise WhatIfError(f"what_if({name}={value!r}): give True, False, or None to leave it as it is")
    for name, count, most in (("prefetch", prefetch, DEEPEST), ("workers", workers, MOST_WORKERS)):
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= most):
            raise WhatIfError(f"what_if({name}={count!r}): give a whole number from 0 to {most}, or None")
    if resident and not (pinned is prefetch is workers is None):
        raise WhatIfError("what_if(resident=True) has nothing to load: leave out pinned, prefetch and workers")
    if workers is not None and not loop.fetched:
        raise WhatIfError(f"what_if(workers={workers}): the timeline does not show how long a batch is fetched")
    ahead = loop.side_stream or loop.depth > 0
    feeding = Feeding(loop.workers, loop.pinned, not loop.blocking, loop.side_stream, loop.depth if ahead else 0)
    if pinned is not None:
        feeding = replace(feeding, pin=pinned, non_blocking=pinned or (feeding.depth > 0 and feeding.side_stream))
    if prefetch:
        feeding = replace(feeding, pin=pinned is not False, non_blocking=True, side_stream=True, depth=prefetch)
    elif prefetch == 0:
        feeding = replace(feeding, side_stream=False, depth=0, non_blocking=feeding.pin)
    if workers is not None:
        feeding = replace(feeding, workers=workers)
    return replace(feeding, resident=bool(resident))


class _Observation:
    """The work of a replay: the steps of a timeline, over and over; the warm-up ends where they begin anew."""

    def __init__(self, loop: Observed, warmup: int, source: Gpu, target: Gpu) -> None:
        self.loop, self.steps, self.warmup = loop, loop.steps, warmup
        self.origin, self.target = source, target
        self.owed = 0  # ns that calls of the replay took more than those observed

    def _step(self, number: int) -> int:
        return (number - self.warmup) % len(self.steps)

    def tensors(self, number: int) -> Sequence[int]:
        return self.steps[self._step(number)].tensors

    def samples(self, number: int) -> int:
        return self.steps[self._step(number)].samples

    def fetch_time(self, number: int) -> int:
        return self.steps[self._step(number)].fetch

    def draw_time(self, number: int) -> int:
        return self.loop.draw_time

    def resident_bytes(self) -> Sequence[int]:
        return ()

    def source(self, does: str) -> str:
        return ""

    def train(self, runtime: Runtime, number: int) -> None:
        """Make the calls of a step, each after the host's own work before it."""
        step = self.steps[self._step(number)]
        for call in step.calls:
            runtime.source = call.source
            start = runtime.now
            self._work(runtime, call.before)
            self._call(runtime, call)
            if call.operator:
                runtime.builder.span(
                    start, runtime.now, runtime.main, Kind.OPERATOR, call.operator, batch=runtime.batch,
                    source=call.source,
                )  # fmt: skip
        runtime.source = ""
        self._work(runtime, step.after)

    def _work(self, runtime: Runtime, time: int) -> None:
        """Let the host work; what calls took too long or too short is settled here, since their cost is one for all."""
        time, self.owed = max(0, time - self.owed), max(0, self.owed - time)
        runtime.now += time

    def _call(self, runtime: Runtime, call: Call) -> None:
        if call.synchronizes:
            runtime.synchronize(runtime.default_stream)
            return
        timeline = self.loop.timeline
        span = timeline.row(call.work)
        if span.kind is Kind.COPY_D2H:
            runtime.memcpy(max(0, span.nbytes), "d2h", pinned=span.pinned is not False)
            self.owed += runtime.host.memcpy_call - call.cost
        elif span.kind is Kind.COPY_D2D and span.nbytes >= 0:
            runtime.memcpy(span.nbytes, "d2d")
            self.owed += runtime.host.memcpy_call - call.cost
        elif span.kind is Kind.MEMSET and span.nbytes >= 0:
            runtime.memset(span.nbytes)
            self.owed += runtime.host.launch - call.cost
        else:
            runtime.launch(self._time(span.name, span.duration, span.kind), name=span.name)
            self.owed += runtime.host.launch - call.cost

    def _time(self, name: str, observed: int, kind: Kind) -> int:
        if self.target.name == self.origin.name or kind not in KERNELS:
            return observed
        start = self.origin.kernel_start
        scaled = max(0, observed - start) * slower(name, self.origin, self.target)
        return round(self.target.kernel_start + scaled)


def _context(timeline: Timeline, made: Context, feeding: Feeding, gpu: Gpu, steps: int) -> Context:
    how = "resident on the GPU" if feeding.resident else ", ".join([
        words.count(feeding.workers, "worker") if feeding.workers else "no workers",
        "pinned" if feeding.pin else "pageable", "non_blocking" if feeding.non_blocking else "blocking",
        f"{feeding.depth} ahead on a side stream" if feeding.side_stream and feeding.depth else "in place",
    ])  # fmt: skip
    notes = [
        f"predicted from {words.count(steps, 'step')} of a timeline of {timeline.context.device} "
        f"({timeline.context.origin}): {how}",
        "kernels and the host's own work as they were; loading replayed on the emulator's rules",
    ]
    if timeline.context.device != gpu.name:
        notes.append("kernels scaled by peak FLOP/s where their name tells arithmetic, else by memory bandwidth")
    if feeding.resident:
        notes.append("whether the data set fits into the GPU's memory is not known")
    return replace(made, device=f"{gpu.name}, predicted", notes=(*made.notes, *notes))
