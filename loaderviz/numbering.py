"""Batches are numbered through a whole recording, the same in an emulated and a real one: epochs go on counting.

A DataLoader's n-th batch gets the number of its iterator's first batch + n. loaderviz's loaders count from 0 in each
epoch, ahead of the hand-out where they prefetch; a smaller number than before says that a new epoch has begun.
"""

from __future__ import annotations


class Numbering:
    """Gives out the numbers."""

    def __init__(self) -> None:
        self._next = 0  # the first number not in use
        self._base = 0  # of the loader that marks
        self._iterator_base = -1  # of a DataLoader iterator that began since the marks' last epoch
        self._last = {"batch": -1, "prefetch": -1}

    def new_iterator(self) -> int:
        """A DataLoader iterator begins: return the number of its first batch."""
        self._iterator_base = self._next
        return self._next

    def used(self, batch: int) -> None:
        """Batch `batch` of a DataLoader is handed out."""
        self._next = max(self._next, batch + 1)

    def number_of(self, index: int, what: str) -> int:
        """Return the number of a loader's batch `index` in its epoch; `what` is "batch" (hand-out) or "prefetch"."""
        if index <= self._last[what] or max(self._last.values()) < 0:  # a new epoch
            self._base = self._iterator_base if self._iterator_base >= 0 else self._next
            self._iterator_base = -1
            self._last = {"batch": -1, "prefetch": -1}
        self._last[what] = index
        self._next = max(self._next, self._base + index + 1)
        return self._base + index
