"""Which steps of a loop are recorded, really run or emulated: leave out the first `wait`, record `steps`, then stop.

A step begins when a batch is handed out to the main thread; if the program calls `recording.step()`, with that call,
and then only with it. `Window` counts while the program runs, and turns the profiler on and off. `cut` does the same to
an emulated timeline, afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from loaderviz.timeline import Kind, Timeline

BATCH = re.compile(r"batch \d+(?:: (\d+) samples?)?$")
STEP = re.compile(r"ProfilerStep#\d+$")


class Window:
    """Counts steps, and calls `prepare` one step before `begin`, then `end`; `discard` if it had begun too early.

    Before the first `called()` the hand-outs count. A program that counts its own steps has handed out a batch or more
    by then; what was recorded of those is thrown away and the count begins anew.
    """

    def __init__(
        self, wait: int, steps: int | None, *, prepare: Callable[[], None], begin: Callable[[], None],
        end: Callable[[], None], discard: Callable[[], None],
    ) -> None:  # fmt: skip
        self.wait, self.steps = wait, steps
        self._prepare, self._begin, self._end, self._discard = prepare, begin, end, discard
        self.count = 0  # steps that began
        self.by_call = False
        self.open = self.over = False

    def enter(self) -> None:
        """The block begins: without `wait` the recording does, too, with all that comes before the first step."""
        if not self.wait:
            self._open()

    def batch(self) -> None:
        """A batch is handed out to the main thread."""
        if not self.by_call:
            self._step()

    def called(self) -> None:
        """The program says that a step begins."""
        if not self.by_call:
            self.by_call, self.count = True, 0
            if self.over or (self.open and self.wait):
                self._discard()
                self.open = self.over = False
        self._step()

    def leave(self) -> None:
        """The block ends, and with it the recording."""
        if self.open:
            self._close()

    def _step(self) -> None:
        index, self.count = self.count, self.count + 1
        if self.open:
            if self.steps is not None and index >= self.wait + self.steps:
                self._close()
        elif not self.over:
            if index == self.wait:
                self._open()
            elif index == self.wait - 1:
                self._prepare()

    def _open(self) -> None:
        self._begin()
        self.open = True

    def _close(self) -> None:
        self.open, self.over = False, True
        self._end()

    def notes(self) -> list[str]:
        """Say what was left out."""
        return notes(self.wait, self.steps, self.count)


def notes(wait: int, steps: int | None, count: int) -> list[str]:
    """Say what is left out of a recording whose block had `count` steps."""
    first = f"the first {f'{wait} steps are' if wait > 1 else 'step is'} left out (wait={wait})"
    if wait and count <= wait:
        return [f"nothing is recorded: {first}, and the block had {count}"]
    found = [first] if wait else []
    if steps is not None and count > wait + steps:
        found.append(f"what came after {'the next' if wait else 'the first'} {steps} is left out (steps={steps})")
    elif steps is not None and count < wait + steps:
        found.append(f"the block had {count - wait} of the {steps} steps to record")
    return found


def cut(timeline: Timeline, wait: int, steps: int | None, by_call: bool) -> Timeline:
    """Return the part of an emulated timeline that `wait` and `steps` ask for; spans across its edges are cut there."""
    if not wait and steps is None:
        return timeline
    pattern = STEP if by_call else BATCH
    starts = sorted(row.start for row in timeline.rows(Kind.RANGE) if pattern.match(row.name))
    if wait >= len(starts) and wait:
        part = emptied(timeline)
    else:
        last = len(starts) if steps is None else wait + steps
        begin = starts[wait] if wait else timeline.begin
        part = timeline.between(begin, starts[last] if last < len(starts) else timeline.begin + timeline.duration)
        part = replace(part, context=timeline.context)  # our own note says it in steps
    own = tuple(notes(wait, steps, len(starts)))
    context = replace(part.context, samples=samples(part), notes=(*part.context.notes, *own))
    return replace(part, context=context)


def emptied(timeline: Timeline) -> Timeline:
    """Return it without its spans, arrows and marks."""
    spans, arrows = (
        {name: values[:0] for name, values in columns.items()} for columns in (timeline.spans, timeline.arrows)
    )
    return replace(timeline, spans=spans, arrows=arrows, marks=())


def samples(timeline: Timeline) -> int | None:
    """Return how many samples its steps were for, by their ranges; None if one does not say."""
    ranges = np.flatnonzero(timeline.where(Kind.RANGE)).tolist()
    found = [match for index in ranges if (match := BATCH.match(timeline.names[int(timeline.name[index])]))]
    counts = [int(match.group(1) or 0) for match in found]
    return sum(counts) if counts and all(counts) else None
