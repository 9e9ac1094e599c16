"""The ladder of the capstone: one rung for each loader, against the first, against the one before, against the limit.

ladder = Ladder(limit)                    # limit() gives ns
ladder.add(Rung("blocking", timeline))
ladder                                    # a table in a notebook, text elsewhere
ladder.compare("blocking", "prefetch")    # a few steps of each, on one time axis
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loaderviz import words
from loaderviz.errors import LoadervizError
from loaderviz.metrics import summarize
from loaderviz.timeline import Timeline
from loaderviz.workshop.leaderboard import escaped
from loaderviz.workshop.stages import steady

if TYPE_CHECKING:
    from loaderviz.draw.comparison import Comparison

HEAD = ("loader", "time", "speed (first = 1)", "speed (one before = 1)", "time (limit = 1)",
        "what costs most", "digits right")  # fmt: skip


class LadderError(LoadervizError, ValueError):
    """There is no such rung."""


@dataclass(frozen=True, repr=False)
class Rung:
    """One loader that was raced: its run, and the share (0..1) of the test digits that the network then knew."""

    name: str
    timeline: Timeline
    right: float | None = None

    @property
    def ns(self) -> int:
        """The time of the whole run, ns."""
        return self.timeline.duration

    @property
    def costs_most(self) -> str:
        """What takes the largest part of the time in which nothing is computed, and its share of the run [per cent]."""
        summary = summarize(self.timeline)
        losses = [(ns, what) for what, ns in summary.breakdown.items() if what != "compute"]
        ns, what = max(losses, default=(0, "nothing"))
        return f"{what}, {words.share(ns / summary.window)}" if ns else "nothing"

    def __repr__(self) -> str:
        right = "" if self.right is None else f"; {words.share(self.right)} of the test digits are right"
        return f"{self.name}: {words.duration(self.ns)}; what costs most: {self.costs_most}{right}"


class Ladder:
    """Rungs in the order in which they were added; a rung with a known name takes the old one's place.

    `limit` gives the time [ns] below which no loader can be; it is called when it is needed.
    """

    def __init__(self, limit: Callable[[], int]) -> None:
        self.rungs: dict[str, Rung] = {}
        self._limit = limit

    def add(self, rung: Rung) -> Rung:
        """Add a rung, and return it."""
        self.rungs[rung.name] = rung
        return rung

    def rows(self) -> list[tuple[str, ...]]:
        """Return a row of text for each rung, under the words of `HEAD`."""
        rungs = list(self.rungs.values())
        rows = []
        for before, rung in zip([None, *rungs], rungs, strict=False):
            against = [words.times(other.ns / rung.ns) if before else "" for other in (rungs[0], before or rung)]
            limit, right = f"{rung.ns / self._limit():.2f}x", words.share(rung.right)
            rows.append((rung.name, words.duration(rung.ns), *against, limit, rung.costs_most, right))
        return rows

    def compare(self, *names: str, batches: range) -> Comparison:
        """Return some steps of some rungs (all rungs by default) side by side, cut by the GPU's work.

        Raises `LadderError` for a name without rung, `TimelineError` for batches that the run does not have.
        """
        from loaderviz.draw import compare

        if unknown := set(names) - self.rungs.keys():
            known = ", ".join(self.rungs) or "none yet"
            raise LadderError(f"there is no rung named {sorted(unknown)[0]!r}; the ladder has: {known}")
        return compare({name: steady(self.rungs[name].timeline, batches) for name in names or self.rungs})

    def __repr__(self) -> str:
        table = [HEAD, *self.rows()]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)) for row in table)
        return "\n".join(line.rstrip() for line in lines)

    def _repr_markdown_(self) -> str:
        rule = ("---", *("---:" for _ in HEAD[1:5]), "---", "---:")
        rows = [(escaped(name), *cells) for name, *cells in self.rows()]
        return "\n".join(f"| {' | '.join(row)} |" for row in [HEAD, rule, *rows])
