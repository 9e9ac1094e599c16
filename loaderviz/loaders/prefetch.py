"""Prefetch: while the GPU computes on batch n, the next batches are copied on a side stream.

The order inside one step is the whole trick: let the consumer's stream wait for batch n, *issue the next copy*,
and only then hand batch n out. Issued later, the copy would queue behind the step it should run beside.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Any

import torch

from . import marks
from .base import Batch, BatchSource, checked_count
from .copying import CopyingLoader, Drawn
from .lifetime import LIFETIMES, POLICIES, Flight, SideStream, Transform
from .nested import samples_in, to_device


class PrefetchLoader(CopyingLoader[Batch]):
    """Copy up to `depth` batches ahead on a side stream; hand each out when its copy is ordered before use.

    The side stream is made once per loader, when the first copy is issued. Each batch has one event. Device
    memory: `depth` batches in flight, the one handed out, and for a moment the one before.

    The source must be pinned (`DataLoader(pin_memory=True)`) for a copy to overlap anything: from pageable memory
    `non_blocking=True` may block the host, whatever the stream. `pageable_copies` counts such tensors. The source
    must not refill a pinned buffer that it has handed over: the host runs ahead of the copies, by no fixed number
    of batches, and nothing here waits for them.

    Args:
        loader: any iterable of batches; a batch is a tensor or any nesting of tensors.
        device: where the batches go. On a device that is not CUDA the batches are drawn ahead in the same way,
            and copied plainly.
        depth: how many batches are copied ahead, beyond the one handed out. 0 is the plain blocking loop, the
            reference for every other depth. 1 or 2 is enough unless the copy times vary a lot.
        lifetime: what protects a batch's memory once it is dropped: `"consumer"` (default), `"wait"`,
            `"record_stream"` or `"ring"`; see `loaderviz.loaders.lifetime`. With `"ring"` a batch is valid during
            its own step and `depth` further ones, then it is overwritten.
        transform: called with each device batch, on the side stream; its result is handed out.

    Objects with their own `.to`, tensor subclasses and sparse tensors allocate and copy in one call: their memory
    comes from the side stream's pool, and is protected as by `"wait"`; `"record_stream"` refuses them if it cannot.

    Errors of the source (and of copy and transform) come in their place: the batches before them first.

    Raises:
        ValueError: `depth` is negative or `lifetime` is not one of the four.
        TypeError: `loader` cannot be iterated, `depth` is no whole number or `transform` cannot be called.

    >>> source = DataLoader(dataset, 256, num_workers=4, pin_memory=True)  # doctest: +SKIP
    >>> for images, labels in PrefetchLoader(source, "cuda", depth=2):  # doctest: +SKIP
    ...     train_step(images, labels)
    """

    def __init__(
        self,
        loader: BatchSource[Batch],
        device: torch.device | str = "cuda",
        depth: int = 2,
        lifetime: str = "consumer",
        transform: Transform | None = None,
    ) -> None:
        super().__init__(loader, device)
        self.depth = checked_count(depth, "depth", least=0)
        if lifetime not in POLICIES:
            raise ValueError(f"lifetime must be one of {', '.join(map(repr, LIFETIMES))}, got {lifetime!r}")
        if transform is not None and not callable(transform):
            raise TypeError(f"transform must be callable, got {type(transform).__name__}")
        self.lifetime = lifetime
        self.transform = transform
        self._copies: SideStream | None = None

    def close(self) -> None:
        """End a running iteration, and let go of the batches in flight and of the ring's buffers."""
        super().close()
        if self._copies is not None:
            self._copies.release()

    def _move(self, draws: Generator[Drawn, None, None]) -> Generator[Drawn, None, None]:
        if self.depth == 0:
            yield from self._move_plainly(draws)
            return
        in_flight: deque[Drawn | Exception] = deque()
        try:
            self._issue(draws, in_flight, self.depth)
            while in_flight:
                due = in_flight.popleft()
                if isinstance(due, Exception):
                    try:
                        raise due
                    finally:
                        del due  # else error -> traceback -> this frame -> error, and the workers live on
                self._land(due)
                self._issue(draws, in_flight, 1)  # before the batch goes out, and with it the next step
                if marks.listening():
                    marks.mark_batch(due.index, samples_in(due.batch))
                yield due
        finally:
            self._abandon(in_flight)

    def _move_plainly(self, draws: Generator[Drawn, None, None]) -> Generator[Drawn, None, None]:
        for drawn in draws:
            with self._handing_out(drawn):
                self._count_pageable(drawn.batch)
                drawn.batch = self._plain_copy(drawn.batch)
            yield drawn

    def _issue(self, draws: Generator[Drawn, None, None], in_flight: deque[Drawn | Exception], count: int) -> None:
        """Draw up to `count` batches and issue their copies; an error takes its place in the queue."""
        for _ in range(count):
            try:
                drawn = next(draws, None)
                if drawn is None:
                    return
                with marks.prefetching(drawn.index):
                    drawn.batch = self._copy_ahead(drawn.batch)
                in_flight.append(drawn)
            except Exception as error:
                draws.close()  # nothing comes after an error
                in_flight.append(error)
                return

    def _copy_ahead(self, host: Any) -> Any:
        """Return a `Flight` on CUDA, and the finished copy on any other device."""
        if self.device.type != "cuda":
            return self._plain_copy(host)
        self._count_pageable(host)
        if self._copies is None:
            self._copies = POLICIES[self.lifetime](self.device, self.depth, self.transform)
        return self._copies.issue(host)

    def _plain_copy(self, host: Any) -> Any:
        batch = to_device(host, self.device)
        return batch if self.transform is None else self.transform(batch)

    def _land(self, drawn: Drawn) -> None:
        if isinstance(drawn.batch, Flight) and self._copies is not None:
            drawn.batch = self._copies.hand_out(drawn.batch)

    def _abandon(self, in_flight: deque[Drawn | Exception]) -> None:
        while in_flight:
            drawn = in_flight.pop()
            if isinstance(drawn, Drawn) and isinstance(drawn.batch, Flight) and self._copies is not None:
                self._copies.abandon(drawn.batch)
