"""Which batch a piece of work is for, and when the loop was at which batch.

Batches are numbered through the whole recording. Data carry their number with them (a DataLoader's n-th batch, and all
that is computed from it); work on data without a number belongs to the batch that the loop is at. The loop's position
is told by our loaders' marks, by annotations named "batch 3", or, failing both, by the DataLoader's hand-outs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from loaderviz.emulator.runtime import Runtime

Step = tuple[int, int, int]  # start [ns], batch, samples (0: not known)


class BatchNumbers:
    """Numbers batches and remembers the loop's steps."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.current = -1
        self._next = 0  # the first number not in use
        self._base = 0  # of the loader that marks
        self._iterator_base = -1  # of a DataLoader iterator that began since the marks' last epoch
        self._last = {"batch": -1, "prefetch": -1}
        self._marked: list[Step] = []
        self._handed_out: list[Step] = []

    def new_iterator(self) -> int:
        """A DataLoader iterator begins: return the number of its first batch."""
        self._iterator_base = self._next
        return self._next

    def handed_out(self, batch: int, samples: int) -> None:
        """A DataLoader gives batch `batch` to the main thread."""
        self._next = max(self._next, batch + 1)
        self._handed_out.append((self._runtime.now, batch, samples))
        if not self._marked:
            self.current = batch

    def marked(self, index: int, samples: int) -> None:
        """One of our loaders hands out its batch `index` of this epoch."""
        self.current = self._number(index, "batch")
        self._marked.append((self._runtime.now, self.current, samples))

    def annotated(self, index: int, samples: int) -> None:
        """The program itself says that it is at batch `index`."""
        self.marked(index, samples)

    @contextmanager
    def prefetching(self, index: int) -> Iterator[None]:
        """Work in here is for a later batch, `index` of this epoch."""
        before, self.current = self.current, self._number(index, "prefetch")
        try:
            yield
        finally:
            self.current = before

    def _number(self, index: int, what: str) -> int:
        if index <= self._last[what] or max(self._last.values()) < 0:  # a new epoch
            self._base = self._iterator_base if self._iterator_base >= 0 else self._next
            self._iterator_base = -1
            self._last = {"batch": -1, "prefetch": -1}
        self._last[what] = index
        self._next = max(self._next, self._base + index + 1)
        return self._base + index

    @property
    def samples(self) -> int | None:
        """How many samples were handed out in all; None if one batch did not say."""
        steps = self._marked or self._handed_out
        if not steps or not all(samples for _, _, samples in steps):
            return None
        return sum(samples for _, _, samples in steps)

    def finish(self) -> None:
        """Note a range for each step of the loop, from its hand-out to the next one."""
        steps = self._marked or self._handed_out
        ends = [start for start, _, _ in steps[1:]] + [self._runtime.now]
        for (start, batch, samples), end in zip(steps, ends, strict=False):
            name = f"batch {batch}: {samples} samples" if samples else f"batch {batch}"
            self._runtime.range(start, end, name, batch)
