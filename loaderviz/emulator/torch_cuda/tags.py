"""Tags: what makes an ordinary CPU tensor a tensor of the emulated device, or pinned, or part of a batch.

A tag is an attribute of the tensor's storage, so it stays through views, parameters and autograd's saved tensors, and
it dies with the storage: that is when the block goes back to its pool.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from loaderviz.emulator.hazards import Place
from loaderviz.emulator.memory import Block, PinnedBlock
from loaderviz.errors import NotModelledError

if TYPE_CHECKING:
    from loaderviz.emulator.torch_cuda.session import Session

ATTRIBUTE = "_loaderviz_tag"


class Arrival(NamedTuple):
    """Bytes that are on their way to a tensor: they arrive when something ordered after `place` needs them."""

    place: Place
    source: torch.Tensor
    storage: weakref.ref[torch.UntypedStorage]  # of the destination; offset and stride are its geometry in there
    offset: int
    stride: tuple[int, ...]

    def deliver(self) -> None:
        """Write the bytes, if the destination is still there."""
        storage = self.storage()
        if storage is not None:
            target = torch.empty(0, dtype=self.source.dtype)
            target.set_(storage, self.offset, self.source.shape, self.stride)
            target.copy_(self.source)


class DeviceTag:
    """The storage is on the emulated device, in `block`; its content belongs to `batch` (-1: to none)."""

    __slots__ = ("__weakref__", "arrivals", "batch", "block", "session")

    def __init__(self, session: Session, block: Block, batch: int = -1) -> None:
        self.session, self.block, self.batch = session, block, batch
        self.arrivals: list[Arrival] = []

    def __del__(self) -> None:
        self.session.release_device(self)


class HostTag:
    """The storage is host memory that is pinned (`block`), or holds data of a batch, or both.

    `block` may be None while `pinned` is True: pinned by the loader's thread, its block is given at hand-out.
    """

    __slots__ = ("__weakref__", "arrivals", "batch", "block", "pinned", "session")

    def __init__(self, session: Session, batch: int = -1, *, pinned: bool = False) -> None:
        self.session, self.batch, self.pinned = session, batch, pinned
        self.block: PinnedBlock | None = None
        self.arrivals: list[Arrival] = []

    def __del__(self) -> None:
        if self.block is not None:
            self.session.release_pinned(self)


Tag = DeviceTag | HostTag


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    """Return the tensor's storage. Raises `NotModelledError` for layouts that have none of their own."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError) as problem:
        raise NotModelledError(
            f"the emulated GPU does not model tensors of layout {tensor.layout} (a {type(tensor).__name__}); "
            "keep them on the CPU, or make them dense with .to_dense() first"
        ) from problem


def tag_of(tensor: torch.Tensor) -> Any:
    """Return the tensor's `DeviceTag` or `HostTag`, or None."""
    return getattr(storage_of(tensor), ATTRIBUTE, None)


def set_tag(tensor: torch.Tensor, tag: Tag) -> None:
    """Attach a tag to the tensor's storage."""
    setattr(storage_of(tensor), ATTRIBUTE, tag)


def is_on_device(tensor: torch.Tensor) -> bool:
    """Tell whether the tensor is on the emulated device; sparse and other storage-less tensors are not."""
    if tensor.layout is not torch.strided:
        return False
    try:
        return type(getattr(tensor.untyped_storage(), ATTRIBUTE, None)) is DeviceTag
    except (NotImplementedError, RuntimeError):
        return False


def any_on_device(values: Iterable[Any]) -> bool:
    """Tell whether one of these values, or of the lists among them, is a tensor of the emulated device."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if is_on_device(value):
                return True
        elif isinstance(value, (list, tuple)) and any_on_device(value):
            return True
    return False
