"""The plain loop: each batch is copied when it is asked for, and the host waits until the copy is done.

This is what `x.to(device)` in a training loop does. The GPU has nothing to compute during the copy, and the host
launches nothing during it either: the copy adds to every step.
"""

from __future__ import annotations

from collections.abc import Generator

from .base import Batch
from .copying import CopyingLoader, Drawn
from .nested import to_device


class BlockingLoader(CopyingLoader[Batch]):
    """Copy each batch with a blocking `.to(device)`.

    Args:
        loader: any iterable of batches; a batch is a tensor or any nesting of tensors.
        device: where the batches go.

    >>> for images, labels in BlockingLoader(loader, "cuda"):  # doctest: +SKIP
    ...     train_step(images, labels)
    """

    def _move(self, draws: Generator[Drawn, None, None]) -> Generator[Drawn, None, None]:
        for drawn in draws:
            with self._handing_out(drawn):
                self._count_pageable(drawn.batch)
                drawn.batch = to_device(drawn.batch, self.device)
            yield drawn
