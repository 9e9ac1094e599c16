"""Loaders that bring batches to a GPU, for real training: from the blocking copy to the data set that lives there.

================ ==============================================================================================
BlockingLoader   `.to(device)` per batch: the reference
PinnedLoader     pinned memory and `non_blocking=True` on the computing stream: the host runs on, nothing overlaps
PrefetchLoader   copies on a side stream while the GPU computes; four policies for the memory of a batch
ResidentLoader   the data set on the device, batches as slices or gathers: no copy is left
================ ==============================================================================================

They need nothing but torch, and run on `device="cpu"` with the same order, errors and state.
"""

from __future__ import annotations

from .base import BlockingLoader, PinnedLoader
from .prefetch import LIFETIMES, PrefetchLoader
from .resident import ResidentLoader

__all__ = [
    "LIFETIMES",
    "BlockingLoader",
    "PinnedLoader",
    "PrefetchLoader",
    "ResidentLoader",
]
