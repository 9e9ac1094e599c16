"""Batches are nested: one walk over tensors in tuples, lists, mappings, named tuples and dataclasses.

`map_nested` rebuilds a batch with every tensor replaced; containers keep their type, everything that is neither
container nor tensor passes through as the same object. Objects that bring their own `.to` (a packed sequence, a
graph) are leaves of a second kind: they know best how to move themselves.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping, MutableSequence
from typing import Any

import torch
from torch import Tensor

Leaf = Callable[[Any], Any]


def is_movable(value: object) -> bool:
    """Return whether `value` is no tensor and no mapping, but has a method `to`, so that it moves itself."""
    return not isinstance(value, (Tensor, Mapping, type)) and callable(getattr(value, "to", None))


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
    if is_movable(batch):
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
    if not non_blocking:
        return movable.to(device)
    try:
        return movable.to(device, non_blocking=True)
    except TypeError as error:
        if "non_blocking" not in str(error):
            raise
        return movable.to(device)


def pin(batch: Any) -> Any:
    """Return `batch` with each CPU tensor in page-locked memory; what is there already stays the same object."""

    def pin_tensor(tensor: Tensor) -> Tensor:
        return tensor.pin_memory() if is_pageable(tensor) else tensor

    def pin_movable(movable: Any) -> Any:
        return movable.pin_memory() if callable(getattr(movable, "pin_memory", None)) else movable

    return map_nested(batch, pin_tensor, pin_movable)


def is_pageable(leaf: Any) -> bool:
    """Return whether a copy of `leaf` to a GPU would start from ordinary, pageable host memory."""
    if isinstance(leaf, Tensor):
        return leaf.device.type == "cpu" and leaf.layout == torch.strided and not leaf.is_pinned()
    is_pinned = getattr(leaf, "is_pinned", None)
    return callable(is_pinned) and not getattr(leaf, "is_cuda", False) and not is_pinned()


def count_pageable(batch: Any) -> int:
    """Return how many tensors of `batch` lie in pageable host memory."""
    return sum(map(is_pageable, leaves(batch)))


def samples_in(batch: Any) -> int:
    """Return the number of samples in `batch`: the length of the first tensor found in it, 0 if there is none."""
    for leaf in leaves(batch):
        if isinstance(leaf, Tensor):
            return int(leaf.shape[0]) if leaf.dim() else 1
        if hasattr(leaf, "__len__"):
            return len(leaf)
    return 0


def _rebuild(value: Any, walk: Leaf) -> Any:
    """Return `value` with `walk` applied to what it contains; anything that is no container as it is."""
    if isinstance(value, Mapping):
        return _rebuild_mapping(value, {key: walk(item) for key, item in value.items()})
    if isinstance(value, tuple):
        return _rebuild_tuple(value, [walk(item) for item in value])
    if isinstance(value, MutableSequence) and not isinstance(value, bytearray):
        return _rebuild_sequence(value, [walk(item) for item in value])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _rebuild_dataclass(value, walk)
    return value


def _rebuild_mapping(old: Mapping[Any, Any], items: dict[Any, Any]) -> Mapping[Any, Any]:
    if type(old) is dict:
        return items
    if isinstance(old, MutableMapping):
        new = copy.copy(old)  # keeps what the type adds, such as the factory of a defaultdict
        for key, value in items.items():
            new[key] = value
        return new
    return type(old)(items)  # type: ignore[call-arg]


def _rebuild_tuple(old: tuple[Any, ...], items: list[Any]) -> tuple[Any, ...]:
    if hasattr(old, "_fields"):
        return type(old)(*items)
    return type(old)(items)


def _rebuild_sequence(old: MutableSequence[Any], items: list[Any]) -> MutableSequence[Any]:
    if type(old) is list:
        return items
    new = copy.copy(old)
    for index, item in enumerate(items):
        new[index] = item
    return new


def _rebuild_dataclass(old: Any, walk: Leaf) -> Any:
    new = copy.copy(old)
    for field in dataclasses.fields(old):
        if hasattr(old, field.name):
            # object.__setattr__ also works for frozen classes, and no __post_init__ runs a second time.
            object.__setattr__(new, field.name, walk(getattr(old, field.name)))
    return new
