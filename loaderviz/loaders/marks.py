"""Marks that let a timeline know which batch a piece of work is for: from here on (`handing_out`), or ahead.

A running `torch.profiler` gets ranges named "batch 3: 256 samples" and "prefetch of batch 5"; the hooks `on_batch` and
`on_prefetch`, the emulator's, are told instead of it. When nobody listens, a call costs well under a microsecond.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch.profiler import record_function

on_batch: Callable[[int, int], None] | None = None
"""Called as `on_batch(index, samples)` when a loader hands out a batch; work after the call is for that batch."""

on_prefetch: Callable[[int], AbstractContextManager[object]] | None = None
"""Called as `on_prefetch(index)`; the loader enters what it returns around the copy of that later batch."""

_NOTHING: AbstractContextManager[object] = nullcontext()


def listening() -> bool:
    """Return whether a profiler runs or a hook is set, so that a mark would reach somebody."""
    return on_batch is not None or on_prefetch is not None or _profiling()


def handing_out(index: int, samples: int) -> AbstractContextManager[object]:
    """Mark that the work from here on is for batch `index`; the returned context goes around its preparation.

    `index` counts from 0 in each epoch; `samples` is the number of samples in the batch.
    """
    if on_batch is not None:
        on_batch(index, samples)
    elif _profiling():
        return record_function(f"batch {index}: {samples} samples")
    return _NOTHING


def prefetching(index: int) -> AbstractContextManager[object]:
    """Return the context to enter around the copy of batch `index`, issued before that batch is due."""
    if on_prefetch is not None:
        return on_prefetch(index)
    if _profiling():
        return record_function(f"prefetch of batch {index}")
    return _NOTHING


def _profiling() -> bool:
    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]
