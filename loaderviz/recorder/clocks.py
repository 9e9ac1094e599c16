"""Two clocks: the profiler's, and the one that workers can read (`perf_counter_ns`). How to get from one to the other.

At the beginning and at the end of a recording a few empty ranges are given to the profiler, and our clock is read
before, inside and after each. Its start lies between the first two readings, its end between the last two, which bounds
the offset from both sides; several ranges narrow it to about a microsecond. Between the two ends it is interpolated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

ANCHORS = 8  # at either end; the first few are slow


class Anchor(NamedTuple):
    """One range: our clock before, inside and after it, and the profiler's start and end of it; all in ns."""

    before: int
    inside: int
    after: int
    start: int
    end: int


@dataclass(frozen=True)
class Clock:
    """Turns our times into the profiler's; `error` is how far it can be off, `drift` how much the clocks part, ns."""

    begin: tuple[int, int]  # our time, the offset then
    end: tuple[int, int]
    error: int

    @property
    def drift(self) -> int:
        """How much the offset changed from the beginning to the end, ns."""
        return self.end[1] - self.begin[1]

    def of(self, time: int) -> int:
        """Return the profiler's time at our `time`, ns."""
        span = self.end[0] - self.begin[0]
        return time + self.begin[1] + (self.drift * (time - self.begin[0]) // span if span else 0)


def clock(begin: Sequence[Anchor], end: Sequence[Anchor]) -> Clock:
    """Return the Clock that fits the anchors of the beginning and of the end, one at least of each."""
    (first, error), (last, later) = _offset(begin), _offset(end)
    return Clock((begin[0].before, first), (end[-1].after, last), max(error, later))


def _offset(anchors: Sequence[Anchor]) -> tuple[int, int]:
    """Return the offset in the middle of what all anchors allow, and half the width of that."""
    low = max(max(anchor.start - anchor.inside, anchor.end - anchor.after) for anchor in anchors)
    high = min(min(anchor.start - anchor.before, anchor.end - anchor.inside) for anchor in anchors)
    return (low + high) // 2, (abs(high - low) + 1) // 2
