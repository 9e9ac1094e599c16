"""Places: which tensors are on the device or in pinned memory, in which block, and when it is given back."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, cast

import torch

from loaderviz.emulator.memory import DevicePool, OutOfMemory, PinnedPool
from loaderviz.emulator.torch_cuda.tags import ATTRIBUTE, DeviceTag, HostTag, set_tag, storage_of, tag_of

if TYPE_CHECKING:
    from loaderviz.emulator.device import Stream
    from loaderviz.emulator.runtime import Runtime
    from loaderviz.emulator.torch_cuda.session import Session


class Places:
    """The memory side of a `Session`: the two pools, and the tags that join storages and blocks."""

    runtime: Runtime

    def __init__(self, runtime: Runtime) -> None:
        self.pool = DevicePool(runtime)
        self.pinned = PinnedPool(runtime)
        self.stream: Stream = runtime.default_stream  # the current one
        self.alive = True
        self._released: deque[tuple[Any, Any]] = deque()

    @property
    def _session(self) -> Session:
        return cast("Session", self)

    def place(self, tensor: torch.Tensor, batch: int = -1) -> torch.Tensor:
        """Put a new tensor's storage on the device, in a block of the current stream. Raises torch.OutOfMemoryError."""
        self.give_block(tensor, batch)
        return tensor

    def give_block(self, tensor: torch.Tensor, batch: int = -1, *, adopts: bool = False) -> DeviceTag:
        """The same, or for a tensor that was there before the recording (`adopts`); return the tag."""
        storage = storage_of(tensor)
        tag = DeviceTag(self._session, self.allocate(storage.nbytes(), adopts=adopts), batch)
        setattr(storage, ATTRIBUTE, tag)
        return tag

    def allocate(self, nbytes: int, *, adopts: bool = False) -> Any:
        """Take a block from the current stream's pool."""
        if self._released:
            self.give_back()
        try:
            take = self.pool.adopt if adopts else self.pool.allocate
            return take(nbytes, self.stream)
        except OutOfMemory as problem:
            raise torch.OutOfMemoryError(str(problem)) from None

    def pin(self, tensor: torch.Tensor, batch: int = -1) -> torch.Tensor:
        """Give a tensor's storage a pinned block; new ones are page-locked first (R44)."""
        tag = HostTag(self._session, batch, pinned=True)
        tag.block = self.pinned.allocate(storage_of(tensor).nbytes())
        set_tag(tensor, tag)
        return tensor

    def device_tag(self, tensor: torch.Tensor) -> DeviceTag | None:
        """Return the tensor's tag if it is on the device. A tensor of an earlier recording is taken over as it is."""
        tag = tag_of(tensor)
        if type(tag) is not DeviceTag:
            return None
        return tag if tag.session is self else self.give_block(tensor, adopts=True)

    def host_tag(self, tensor: torch.Tensor) -> HostTag | None:
        """Return the tag of a host tensor, if it has one of this recording (earlier pinned memory is taken over)."""
        tag = tag_of(tensor)
        if type(tag) is not HostTag:
            return None
        if tag.session is not self:
            if not tag.pinned:
                return None
            tag = HostTag(self._session, pinned=True)
            tag.block, _ = self.pinned.allocate_at(storage_of(tensor).nbytes(), self.runtime.now)  # locked long ago
            set_tag(tensor, tag)
        return tag

    def release_device(self, tag: DeviceTag) -> None:
        """The storage is gone: its block is free from now on, at the host's time (R35).

        Python may collect garbage in the middle of anything, so the block is given back at the next way in.
        """
        if self.alive:
            self._released.append((self.pool, tag.block))

    def release_pinned(self, tag: HostTag) -> None:
        """The pinned storage is gone; its block comes back when the copies that used it are over (R40)."""
        if self.alive and tag.block is not None:
            self._released.append((self.pinned, tag.block))

    def give_back(self) -> None:
        """Return the blocks of storages that are gone to their pools."""
        while self._released:
            pool, block = self._released.popleft()
            pool.free(block)
