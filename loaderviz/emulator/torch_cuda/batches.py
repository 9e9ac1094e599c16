"""Which batch a piece of work is for, and when the loop was at which batch.

Batches are numbered through the whole recording. Data carry their number with them (a DataLoader's n-th batch, and all
that is computed from it); work on data without a number belongs to the batch that the loop is at. The loop's position
is told by our loaders' marks, by annotations named "batch 3", or, failing both, by the DataLoader's hand-outs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from loaderviz.emulator.runtime import Runtime
from loaderviz.numbering import Numbering

Step = tuple[int, int, int]  # start [ns], batch, samples (0: not known)


class BatchNumbers(Numbering):
    """Numbers batches and remembers the loop's steps."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime
        self.current = -1  # the batch that the loop is at
        self.ahead = -1  # inside `prefetching`: the later batch that the work is for
        self._newest: dict[int, int] = {}  # stream -> the newest batch that a kernel there was for
        self._marked: list[Step] = []
        self._handed_out: list[Step] = []
        self._by_loader = False  # the last mark came from a loader, not from an annotation

    def handed_out(self, batch: int, samples: int) -> None:
        """A DataLoader gives batch `batch` to the main thread."""
        self.used(batch)
        self._handed_out.append((self._runtime.now, batch, samples))
        if not self._marked:
            self.current = batch

    def marked(self, index: int, samples: int) -> None:
        """One of our loaders hands out its batch `index` of this epoch."""
        self.current = self.number_of(index, "batch")
        self._marked.append((self._runtime.now, self.current, samples))

        self._by_loader = True

    def annotated(self, index: int, samples: int) -> None:
        """The program itself says that it is at batch `index`; a loader may have said so before."""
        if not (self._by_loader and index == self._last["batch"]):
            self.marked(index, samples)
        self._by_loader = False

    @contextmanager
    def prefetching(self, index: int) -> Iterator[None]:
        """Work in here is for a later batch, `index` of this epoch."""
        before = self.current, self.ahead
        self.current = self.ahead = self.number_of(index, "prefetch")
        try:
            yield
        finally:
            self.current, self.ahead = before

    def of_data(self, batch: int) -> int:
        """Return the batch that new data carry: that of the data they are made from, or the one prefetched, or -1."""
        return batch if batch >= 0 else self.ahead

    def of_kernel(self, batch: int, stream: int) -> int:
        """Return the batch that a kernel on data of `batch` (-1: of none) is for.

        Optimizer state carries the batch of the step before, so older data count as those of the newest kernel in the
        stream.
        """
        if batch < 0:
            return self.current
        self._newest[stream] = batch = max(batch, self._newest.get(stream, -1))
        return batch

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
