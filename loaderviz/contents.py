"""What a batch holds: its tensors, their bytes, how many samples. Of any nesting; nothing is copied.

Used where batches are counted beside a running loop (the emulated DataLoader, the workers of a recorded one), so it is
quick and calls nothing of the batch's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def tensors(data: Any) -> list[torch.Tensor]:
    """Return the tensors of a nested batch."""
    if isinstance(data, torch.Tensor):
        return [data]
    if isinstance(data, dict):
        data = list(data.values())
    elif hasattr(data, "__dict__") and not isinstance(data, (str, bytes, type)):
        data = list(vars(data).values())
    if isinstance(data, (list, tuple)):
        return [tensor for entry in data for tensor in tensors(entry)]
    return []


def nbytes(data: Any) -> int:
    """Return the bytes of all tensors of a nested batch."""
    return sum(tensor.nbytes for tensor in tensors(data) if tensor.layout is torch.strided)


def sample_count(indices: Any, data: Any) -> int:
    """Return how many samples a batch has: by its index list, else by its first tensor, else 1."""
    if isinstance(indices, Sequence) and indices and indices[0] is not None:
        return len(indices)
    first = next(iter(tensors(data)), None)
    return first.shape[0] if first is not None and first.dim() else 1
