"""Access tracking: tells `Races` which bytes each operator and copy reads and writes.

Whole tensors and dense views are exact. A view with gaps counts row by row up to `ROWS` rows; one with more counts from
its first to its last byte, so that two streams at work on interleaved columns look as if they met; and one that repeats
elements until it is as large as its storage counts as all of it. What numpy writes into a pinned buffer during its copy
is found by comparing the bytes (`PinnedChecksums`); what it reads is not seen.
"""

from __future__ import annotations

import ctypes
import weakref
import zlib
from collections.abc import Collection, Iterable
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from loaderviz.emulator.hazards import UNSEEN
from loaderviz.emulator.hazards.happens_before import HOST, HostWork, LastAccess
from loaderviz.emulator.torch.tensors import DeviceTag, HostTag, tag_of

if TYPE_CHECKING:
    from loaderviz.emulator.device import Command
    from loaderviz.emulator.hazards.races import Races
    from loaderviz.emulator.memory import PinnedBlock
    from loaderviz.emulator.torch.operators import Operator
    from loaderviz.emulator.torch.session import Session

ROWS = 64  # of a view with gaps that are told apart
WHOLE = 16 * 1024  # bytes up to which all of them go into the checksum in their order
SAMPLES, SAMPLE = 8, 2048  # of larger ones: pieces in which order counts, too [bytes]
Tensors = Iterable[torch.Tensor]
Key = tuple[int, int, int]  # first address, bytes, stream


class AccessTracking:
    """The way from torch's operators to the addresses that `Races` knows."""

    def __init__(self, session: Session, races: Races) -> None:
        self.session, self.races = session, races
        self.checksums = PinnedChecksums(session, races)

    # On the device

    def kernel(
        self,
        command: Command,
        operator: Operator,
        changed: Collection[int],
        tensors: list[torch.Tensor],
        tags: list[Any],
        outputs: list[torch.Tensor],
        places: list[Any],
    ) -> None:
        """`command` was launched; `tags` of its `tensors`, ids of the `changed`, `places`: the tags of `outputs`."""
        command.operator = operator.name
        stream = self.races.source_of(command)
        memory, new = self.races.memory, tuple.__new__  # quicker than by its name
        for tensor, tag in zip(tensors, tags, strict=True) if operator.reads else ():
            if type(tag) is not DeviceTag:
                continue
            block, writes = tag.block, id(tensor) in changed
            if 0 < tensor.nbytes == block.requested:  # by far the most, so that this is spelt out; else as in `_access`
                use = new(LastAccess, (command.sequence, command, writes, tensor.shape, tensor.dtype, block))
                if memory.alone(block.address, block.address + block.size, stream, use):
                    continue
            self._access(command, tensor, block, not (writes and operator.fills), writes)
        if outputs and operator.makes:
            known = set(map(id, tensors)) if changed else changed
            for output, tag in zip(outputs, places, strict=False):
                if type(tag) is DeviceTag and id(output) not in known:
                    self._access(command, output, tag.block, False, True)

    def device(self, command: Command, operator: str = "", reads: Tensors = (), writes: Tensors = ()) -> None:
        """`command` reads and writes these device tensors; others are passed over."""
        command.operator = operator or command.name
        for tensors, is_read in ((reads, True), (writes, False)):
            for tensor in tensors:
                tag = tag_of(tensor)
                if type(tag) is DeviceTag:
                    self._access(command, tensor, tag.block, is_read, not is_read)

    def _access(self, work: Command | HostWork, tensor: torch.Tensor, block: Any, reads: bool, writes: bool) -> None:
        access, shape, dtype, nbytes = self.races.access, tensor.shape, tensor.dtype, tensor.nbytes
        if nbytes == block.requested:  # to the block's end: where tensors of other sizes lay before, cells stay whole
            access(work, block.address, block.address + block.size, shape, dtype, block, reads, writes)
            return
        size = tensor.itemsize
        base = block.address + tensor.storage_offset() * size
        for first, end in ranges(shape, tensor.stride()):
            access(work, base + first * size, base + end * size, shape, dtype, block, reads, writes)

    # Copies

    def copied(self, command: Command, target: torch.Tensor, source: torch.Tensor, *, blocking: bool) -> None:
        """A copy was queued (and, if blocking, waited for); what a pinned target holds now nobody may change."""
        self.device(command, reads=[source], writes=[target])
        for tensor, fills in ((source, False), (target, True)):
            tag = tag_of(tensor)
            if not _is_pinned(tag):
                continue
            if fills:
                self.checksums.changed(tag.block)
            else:
                self.checksums.check(tag.block)
            self._access(command, tensor, tag.block, not fills, fills)
            if not blocking:
                self.checksums.begin(command, tensor, tag.block, fills=fills)

    # On the host

    def before_change(self, tags: Iterable[Any]) -> None:
        """Tensors may be about to change, and that is known: see what happened to them since they were used last."""
        for tag in tags if len(self.checksums) else ():
            if _is_pinned(tag):
                self.checksums.check(tag.block)

    def host_operator(
        self, operator: Operator, args: Any, kwargs: Any, tensors: list[torch.Tensor], tags: list[Any]
    ) -> None:
        """An operator ran on host tensors; pinned ones may be in use by a copy."""
        used = [(tensor, tag) for tensor, tag in zip(tensors, tags, strict=True) if _is_pinned(tag)]
        if not used:
            return
        changed = operator.written(args, kwargs)
        span = -1 if self.session.measured else len(self.session.runtime.builder) - 1
        if span < 0:
            self.session.mark_source()
        work = HostWork(operator.name, self.session.runtime.batch, self.session.runtime.source, span)
        for tensor, tag in used:
            writes = id(tensor) in changed
            if writes:
                self.checksums.changed(tag.block)
            self._access(work, tensor, tag.block, not (writes and operator.fills), writes)

    def host_access(self, tensor: torch.Tensor, call: str, *, writes: bool = False) -> None:
        """The host reads or (after `before_change`) writes a tensor in a call that is no operator: `tolist`."""
        tag = tag_of(tensor)
        if _is_pinned(tag):
            self.session.mark_source()
            if writes:
                self.checksums.changed(tag.block)
            work = HostWork(call, self.session.runtime.batch, self.session.runtime.source, -1)
            self._access(work, tensor, tag.block, not writes, writes)


@lru_cache(4096)
def ranges(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Return the ranges of elements that a view touches, counted from its first: exact up to `ROWS` ranges."""
    if 0 in shape:
        return ()
    dims = sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size > 1)
    run = 1
    rest: list[tuple[int, int]] = []
    for stride, size in dims:
        if stride == 0:
            continue  # the same elements again
        if not rest and stride <= run:
            run = stride * (size - 1) + run
        else:
            rest.append((stride, size))
    if not rest:
        return ((0, run),)
    if prod(size for _, size in rest) > ROWS:
        return ((0, sum(stride * (size - 1) for stride, size in rest) + run),)
    starts = [0]
    for stride, size in rest:
        starts = [start + stride * step for step in range(size) for start in starts]
    return tuple((start, start + run) for start in sorted(starts))


def _is_pinned(tag: Any) -> bool:
    return type(tag) is HostTag and tag.block is not None and tag.block.size > 0


class PendingCopy(NamedTuple):
    """A copy, and the bytes that it reads or fills: where in the storage, and their checksum when it was queued."""

    access: LastAccess
    storage: weakref.ref[torch.UntypedStorage]
    first: int  # byte in the storage
    nbytes: int
    checksum: int = 0

    def current_checksum(self) -> int | None:
        """Return that of the bytes as they are now, past torch: no mode sees it, and it takes no time."""
        storage = self.storage()
        if storage is None:
            return None  # memory that is gone cannot be written to
        data = (ctypes.c_ubyte * self.nbytes).from_address(storage.data_ptr() + self.first)
        return checksum(memoryview(data).cast("B"))


class PinnedChecksums:
    """The copies from (and to) pinned memory that the host has not waited for, with checksums of their bytes.

    So a write is found that no operator tells of: by numpy through a shared buffer, or inside a data set. The bytes are
    compared with what they were when the host has waited for the copy, when the buffer is used again, and at the end;
    bytes that were put back before that are not seen to have changed.
    """

    def __init__(self, session: Session, races: Races) -> None:
        self._session, self._races = session, races
        self._pending: dict[Key, PendingCopy] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def begin(self, command: Command, tensor: torch.Tensor, block: PinnedBlock, *, fills: bool = False) -> None:
        """`command` was queued to read (or fill) the elements of `tensor`, which is in `block`."""
        parts, offset = ranges(tensor.shape, tensor.stride()), int(tensor.storage_offset())
        if not parts:
            return
        first, end = offset + parts[0][0], offset + parts[-1][1]
        size, pending = tensor.itemsize, self._pending
        key = (block.address + first * size, (end - first) * size, command.stream.id)

        def gone(reference: weakref.ref[torch.UntypedStorage]) -> None:
            if (copy := pending.get(key)) is not None and copy.storage is reference:
                pending.pop(key, None)

        access = LastAccess(command.sequence, command, fills, tensor.shape, tensor.dtype, block)
        pending[key] = PendingCopy(access, weakref.ref(tensor.untyped_storage(), gone), first * size, key[1])
        self._renew(key)

    def check_finished(self) -> None:
        """The host has waited: what it now knows to be copied must be as it was when the copy was queued."""
        for key in list(self._pending):  # a copy: garbage collection may end a check at any time
            copy = self._pending.get(key)
            if copy and self._races.order.is_ordered(HOST, (key[2], copy.access.sequence)):
                self._compare(key)
                self._pending.pop(key, None)

    def check(self, block: PinnedBlock | None = None) -> None:
        """The block (None: all) is used again or will change by what is known: what happened? Then call `changed`."""
        for key in list(self._pending) if block is None else self._inside(block):
            self._compare(key)

    def changed(self, block: PinnedBlock) -> None:
        """Some of its bytes have changed since `check`, and that is known: from now on they must stay as they are."""
        for key in self._inside(block):
            self._renew(key)

    def _inside(self, block: PinnedBlock) -> list[Key]:
        return [key for key in list(self._pending) if block.address <= key[0] < block.address + block.size]

    def _renew(self, key: Key) -> None:
        copy = self._pending.get(key)
        if copy and (now := copy.current_checksum()) is not None:
            self._pending[key] = copy._replace(checksum=now)

    def _compare(self, key: Key) -> None:
        copy = self._pending.get(key)
        if copy and copy.current_checksum() not in (None, copy.checksum):
            self._pending.pop(key, None)
            self._session.mark_source()
            runtime = self._session.runtime
            self._races.changed_unseen(copy.access, HostWork(UNSEEN, runtime.batch, runtime.source))


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
