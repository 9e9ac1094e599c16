"""The two loaders that overlap nothing: the blocking copy, and pinned memory on the stream that computes.

With a blocking copy the GPU has nothing to compute, and the host launches nothing: the copy adds to every step. From
pinned memory with `non_blocking=True` the host runs on, but the copy sits in the same stream as the kernels and still
runs between two steps. Overlap needs a second stream (`PrefetchLoader`).
"""

from __future__ import annotations

from collections.abc import Generator

from .base import Batch, CopyingLoader, Drawn
from .nested import pin, to_device


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


class PinnedLoader(CopyingLoader[Batch]):
    """Copy each batch from page-locked memory with `non_blocking=True`, on the consumer's own stream.

    The source should pin (`DataLoader(pin_memory=True)`, which does it in a thread). What arrives pageable is
    pinned here, in the calling thread: one more host copy per tensor, which can cost more than it gains.
    `pageable_copies` counts those tensors, so that it does not go unnoticed.

    The pinned buffer may be dropped while its copy runs, PyTorch keeps it until then; but a source that refills
    a buffer it has handed out changes a copy under way, and nothing here can see that.

    Args:
        loader: any iterable of batches, best pinned already.
        device: where the batches go. On a device that is not CUDA this is a plain copy.

    >>> source = DataLoader(dataset, 256, num_workers=4, pin_memory=True)  # doctest: +SKIP
    >>> for images, labels in PinnedLoader(source, "cuda"):  # doctest: +SKIP
    ...     train_step(images, labels)
    """

    def _move(self, draws: Generator[Drawn, None, None]) -> Generator[Drawn, None, None]:
        on_cuda = self.device.type == "cuda"
        for drawn in draws:
            with self._handing_out(drawn):
                self._count_pageable(drawn.batch)
                host = pin(drawn.batch) if on_cuda else drawn.batch
                drawn.batch = to_device(host, self.device, non_blocking=on_cuda)
                del host
            yield drawn
