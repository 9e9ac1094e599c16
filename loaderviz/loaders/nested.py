"""Batches are nested: one walk over tensors in tuples, lists, mappings, named tuples and dataclasses.

Containers keep their type; what is neither container nor tensor passes through. Objects that bring their own `.to` (a
packed sequence, a graph) are leaves of a second kind: they know best how to move themselves.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping, MutableSequence
from typing import Any

import torch
from torch import Tensor

Leaf = Callable[[Any], Any]


def map_nested(batch: Any, on_tensor: Callable[[Tensor], Any], on_movable: Leaf | None = None) -> Any:
    """Return a copy of `batch` in which each tensor is `on_tensor(tensor)`.

    Args:
        batch: a tensor, or tensors in tuples, lists, mappings, named tuples, dataclasses, to any depth.
        on_tensor: called for each tensor, in order.
        on_movable: called for each object with its own `.to`; without it such an object passes through.

    Containers are never changed: they are rebuilt with their own type (a `defaultdict` keeps its factory, a
    dataclass its `init=False` fields).

    >>> map_nested({"x": torch.ones(2), "name": "a"}, lambda t: t + 1)
    {'x': tensor([2., 2.]), 'name': 'a'}
    """
    if isinstance(batch, Tensor):
        return on_tensor(batch)
    if not isinstance(batch, (Mapping, type)) and callable(getattr(batch, "to", None)):
        return batch if on_movable is None else on_movable(batch)
    # Not a function that calls itself by its own name: that is a cycle, and would keep the tensors that it saw alive.
    return _rebuild(batch, lambda item: map_nested(item, on_tensor, on_movable))


def leaves(batch: Any) -> Iterator[Any]:
    """Yield the tensors of `batch`, and its objects with their own `.to`, in the order of `map_nested`."""
    found: list[Any] = []

    def keep(leaf: Any) -> Any:
        found.append(leaf)
        return leaf

    map_nested(batch, keep, keep)
    return iter(found)


def to_device(batch: Any, device: torch.device, non_blocking: bool = False) -> Any:
    """Return `batch` with each tensor and each object with a `.to` moved to `device`, on the current stream."""
    return map_nested(
        batch,
        lambda tensor: tensor.to(device, non_blocking=non_blocking),
        lambda movable: move(movable, device, non_blocking),
    )


def move(movable: Any, device: torch.device, non_blocking: bool) -> Any:
    """Return `movable.to(device)`, asynchronously if asked for and if its `to` takes `non_blocking`."""
    try:
        return movable.to(device, non_blocking=non_blocking)
    except TypeError as error:
        if "non_blocking" not in str(error):
            raise
        return movable.to(device)


def pin(batch: Any) -> Any:
    """Return `batch` with each CPU tensor in page-locked memory; what is there already stays the same object."""

    def pin_leaf(leaf: Any) -> Any:
        can = is_pageable(leaf) if isinstance(leaf, Tensor) else callable(getattr(leaf, "pin_memory", None))
        return leaf.pin_memory() if can else leaf

    return map_nested(batch, pin_leaf, pin_leaf)


def is_pageable(leaf: Any) -> bool:
    """Return whether a copy of `leaf` to a GPU would start from ordinary, pageable host memory."""
    if isinstance(leaf, Tensor):
        return leaf.device.type == "cpu" and leaf.layout == torch.strided and not leaf.is_pinned()
    is_pinned = getattr(leaf, "is_pinned", None)
    return callable(is_pinned) and not getattr(leaf, "is_cuda", False) and not is_pinned()


def samples_in(batch: Any) -> int:
    """Return the number of samples in `batch`: the length of the first tensor found in it, 0 if there is none."""
    for leaf in leaves(batch):
        if isinstance(leaf, Tensor):
            return int(leaf.shape[0]) if leaf.dim() else 1
        if hasattr(leaf, "__len__"):
            return len(leaf)
    return 0


def _rebuild(old: Any, walk: Leaf) -> Any:
    """Return `old` with `walk` applied to what it contains; anything that is no container as it is."""
    items: Mapping[Any, Any]
    if isinstance(old, tuple):
        values = [walk(item) for item in old]
        return type(old)(*values) if hasattr(old, "_fields") else type(old)(values)
    if isinstance(old, Mapping):
        items = {key: walk(item) for key, item in old.items()}
        if type(old) is dict or not isinstance(old, MutableMapping):
            return items if type(old) is dict else type(old)(items)  # type: ignore[call-arg]
    elif isinstance(old, MutableSequence) and not isinstance(old, bytearray):
        items = dict(enumerate(map(walk, old)))
    elif dataclasses.is_dataclass(old) and not isinstance(old, type):
        names = [field.name for field in dataclasses.fields(old) if hasattr(old, field.name)]
        items = {name: walk(getattr(old, name)) for name in names}
    else:
        return old
    new: Any = copy.copy(old)  # keeps what the type adds, such as the factory of a defaultdict
    for key, item in items.items():
        if isinstance(old, (Mapping, MutableSequence)):
            new[key] = item
        else:  # also works for frozen classes, and no __post_init__ runs a second time
            object.__setattr__(new, key, item)
    return new
