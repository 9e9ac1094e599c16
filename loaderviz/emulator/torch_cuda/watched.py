"""Watched: pinned bytes that a copy may still be using are compared with what they were when it was queued.

So a write is found that no operator tells of: by numpy through a shared buffer, or inside a data set. They are looked
at when the host has waited for the copy, when the buffer is used again, and at the end; bytes that were put back before
that are not seen to have changed.
"""

from __future__ import annotations

import ctypes
import weakref
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from loaderviz.emulator.findings import UNSEEN
from loaderviz.emulator.hazards import HOST, Place

if TYPE_CHECKING:
    from loaderviz.emulator.device import Command
    from loaderviz.emulator.pinned import PinnedBlock
    from loaderviz.emulator.races import Races
    from loaderviz.emulator.torch_cuda.session import Session

WHOLE = 16 * 1024  # bytes up to which all of them go into the checksum in their order
SAMPLES, SAMPLE = 8, 2048  # of larger ones: pieces in which order counts, too [bytes]

Key = tuple[int, int, int]  # first address, bytes, stream


class Watch(NamedTuple):
    """A copy, and the bytes that it reads: where in the storage, and their checksum when it was queued."""

    command: Command
    place: Place
    storage: weakref.ref[torch.UntypedStorage]
    first: int  # byte in the storage
    nbytes: int
    block: PinnedBlock
    shape: Any
    dtype: Any
    fills: bool  # it writes them
    checksum: int = 0


class Watched:
    """The copies from pinned memory that the host has not waited for."""

    def __init__(self, session: Session, races: Races) -> None:
        self._session, self._races = session, races
        self._watches: dict[Key, Watch] = {}

    def __len__(self) -> int:
        return len(self._watches)

    def begin(
        self, command: Command, tensor: torch.Tensor, first: int, end: int, block: PinnedBlock, *, fills: bool = False
    ) -> None:
        """`command` was queued to read (or fill) the elements `first` to `end` of the storage of `tensor`."""
        if first == end:
            return
        storage, size = tensor.untyped_storage(), tensor.itemsize
        key = (block.address + first * size, (end - first) * size, command.stream.id)
        watch = Watch(
            command, (command.stream.id, command.turn), _weak(storage, key, self._watches), first * size, key[1], block,
            tensor.shape, tensor.dtype, fills,
        )  # fmt: skip
        self._watches[key] = watch._replace(checksum=checksum(_bytes(storage, watch)))

    def look(self) -> None:
        """The host has waited: what it now knows to be copied must be as it was when the copy was queued."""
        for key in list(self._watches):  # a copy: garbage collection may end a watch at any time
            watch = self._watches.get(key)
            if watch is not None and self._races.order.is_ordered(HOST, watch.place):
                self._compare(key)
                self._watches.pop(key, None)

    def look_at(self, block: PinnedBlock) -> None:
        """The block is used again, or about to change in a way that is known: see what happened to it since then."""
        for key in self._inside(block):
            self._compare(key)

    def look_at_all(self) -> None:
        """The run is over."""
        for key in list(self._watches):
            self._compare(key)

    def changed(self, block: PinnedBlock) -> None:
        """Some of its bytes have changed since `look_at`, and that is known: from now on they must stay as they are."""
        for key in self._inside(block):
            watch = self._watches.get(key)
            storage = watch.storage() if watch else None
            if watch and storage:
                self._watches[key] = watch._replace(checksum=checksum(_bytes(storage, watch)))

    def _inside(self, block: PinnedBlock) -> list[Key]:
        return [key for key in list(self._watches) if block.address <= key[0] < block.address + block.size]

    def _compare(self, key: Key) -> None:
        watch = self._watches.get(key)
        storage = watch.storage() if watch else None
        if watch is None or storage is None or checksum(_bytes(storage, watch)) == watch.checksum:
            return
        self._watches.pop(key, None)
        self._session.mark_source()
        self._races.changed_unseen(watch.command, watch.fills, UNSEEN, watch.shape, watch.dtype, watch.block)


def checksum(data: memoryview) -> int:
    """Return a number that changes when the bytes do: all of them count, and their order in small ones and samples."""
    if len(data) <= WHOLE:
        return zlib.crc32(data)
    whole = len(data) // 8 * 8
    total = int(np.frombuffer(data, np.uint64, whole // 8).sum(dtype=np.uint64))  # wraps
    in_order = zlib.crc32(data[whole:])
    for start in range(0, len(data), max(SAMPLE, len(data) // SAMPLES)):
        in_order = zlib.crc32(data[start : start + SAMPLE], in_order)
    return total << 32 | in_order


def _bytes(storage: torch.UntypedStorage, watch: Watch) -> memoryview:
    """Return the watched bytes as they are now, past torch: no mode sees it, and it takes no time."""
    return memoryview((ctypes.c_ubyte * watch.nbytes).from_address(storage.data_ptr() + watch.first)).cast("B")


def _weak(storage: torch.UntypedStorage, key: Key, watches: dict[Key, Watch]) -> weakref.ref[torch.UntypedStorage]:
    """Return a weak reference that ends the watch with the storage: memory that is gone cannot be written to."""

    def gone(reference: weakref.ref[torch.UntypedStorage]) -> None:
        watch = watches.get(key)
        if watch is not None and watch.storage is reference:
            watches.pop(key, None)

    return weakref.ref(storage, gone)
