"""A data set as tensors that share their first dimension: taking it apart, checking it, putting batches together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .base import require_device
from .nested import leaves, map_nested

Pack = Callable[[Sequence[Tensor]], Any]


def tensors_of(data: Any) -> Any:
    """Return `data` as a nesting of tensors; a data set gives the tensors it is made of.

    Accepts a tensor, any nesting of tensors, a `TensorDataset`, and a data set in memory with `data` and
    `targets` (as torchvision's MNIST and CIFAR10 have them). Raises TypeError for anything else, and ValueError
    for a data set with transforms, which would be skipped silently.
    """
    if isinstance(data, torch.utils.data.TensorDataset):
        return data.tensors
    if hasattr(data, "data") and hasattr(data, "targets") and not isinstance(data, Tensor):
        for name in ("transform", "target_transform"):
            if getattr(data, name, None) is not None:
                raise ValueError(
                    f"the data set has a {name}, which works on single samples and would not be applied here. Pass "
                    "(dataset.data, dataset.targets), and do the same to whole batches with transform="
                )
        return torch.as_tensor(data.data), torch.as_tensor(data.targets)
    if not any(isinstance(leaf, Tensor) for leaf in leaves(data)):
        raise TypeError(
            f"data must be a tensor, a nesting of tensors, a TensorDataset or a data set with .data and .targets; "
            f"a {type(data).__name__} without tensors was given"
        )
    return data


def checked_length(parts: Sequence[Tensor]) -> int:
    """Return the common first dimension of the tensors; raise ValueError if there is none."""
    lengths = [len(part) if part.dim() else None for part in parts]
    if None in lengths or len(set(lengths)) != 1:
        shapes = ", ".join(str(tuple(part.shape)) for part in parts)
        raise ValueError(f"all tensors of the data need the same first dimension, the samples; shapes: {shapes}")
    return len(parts[0])


def packer(data: Any) -> Pack:
    """Return the function that puts one tensor per tensor of `data` back into the nesting of `data`."""
    if isinstance(data, Tensor):
        return lambda parts: parts[0]
    if type(data) is tuple and all(isinstance(item, Tensor) for item in data):
        return tuple
    if type(data) is dict and all(isinstance(item, Tensor) for item in data.values()):
        keys = list(data)
        return lambda parts: dict(zip(keys, parts, strict=True))

    def rebuild(parts: Sequence[Tensor]) -> Any:
        rest = iter(parts)
        return map_nested(data, lambda _: next(rest))

    return rebuild


def check_memory(parts: Sequence[Tensor], device: torch.device, extra: int, advice: str) -> None:
    """Raise MemoryError unless the tensors not yet on `device`, and `extra` bytes, fit into its free memory.

    The free memory is what the driver reports (`torch.cuda.mem_get_info`). What PyTorch's allocator keeps cached
    is not in it: a refusal can be wrong then, never an acceptance. Other devices than CUDA are not checked.
    """
    if device.type != "cuda":
        return
    try:
        free, total = torch.cuda.mem_get_info(device)
    except (AssertionError, RuntimeError):
        require_device(device)
        raise
    to_move = sum(part.numel() * part.element_size() for part in parts if part.device.type != "cuda")
    if to_move + extra > free:
        raise MemoryError(
            f"the data set does not fit on {device}: it needs {_size(to_move + extra)} ({_size(to_move)} of data, "
            f"{_size(extra)} of buffers), and {_size(free)} of {_size(total)} are free. {advice}"
        )


def _size(count: int) -> str:
    """Return a number of bytes as text: 47040000 is '47.0 MB'."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} bytes"
