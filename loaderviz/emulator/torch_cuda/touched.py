"""Touched: tells `Races` which bytes each operator and copy reads and writes.

Whole tensors and dense views are exact. A view with gaps counts row by row up to `ROWS` rows; one with more counts from
its first to its last byte, so that two streams at work on interleaved columns look as if they met; and one that repeats
elements until it is as large as its storage counts as all of it. What numpy writes into a pinned buffer during its copy
is found by comparing the bytes (`watched`); what it reads is not seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from loaderviz.emulator.torch_cuda.tags import ATTRIBUTE, DeviceTag, HostTag
from loaderviz.emulator.torch_cuda.watched import Watched

if TYPE_CHECKING:
    from loaderviz.emulator.accesses import Work
    from loaderviz.emulator.device import Command
    from loaderviz.emulator.races import Races
    from loaderviz.emulator.torch_cuda.kernels import Operator
    from loaderviz.emulator.torch_cuda.session import Session

ROWS = 64  # of a view with gaps that are told apart
# They write without reading what they write to, though it is their first argument.
FILLING = frozenset((
    "copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "log_normal_",
    "geometric_", "cauchy_", "set_", "_foreach_copy_", "_foreach_zero_", "arange", "randperm",
))  # fmt: skip
NOTHING: set[int] = set()
UNMARKED = {"native_batch_norm": (3, 4)}  # running statistics, which its schema does not name as written


class Plan:
    """Which arguments of an overload are written, worked out once for an `Operator`: by position, or by keyword."""

    def __init__(self, overload: Any) -> None:
        schema = overload._schema
        name = schema.name.split("::")[-1]
        marked = [
            (position, argument)
            for position, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        self.positions = (*(place for place, argument in marked if not argument.kwarg_only), *UNMARKED.get(name, ()))
        self.keywords = tuple(argument.name for _, argument in marked)
        self.fills = name in FILLING or any(argument.kwarg_only for _, argument in marked)  # out=...
        self.writes = bool(self.positions or self.keywords)
        # These ask their argument for its shape and dtype only.
        self.reads = self.writes or not (name.endswith("_like") or name.startswith("new_"))
        # Results that are arguments, as those of x.add_(y), are written already.
        self.makes = any(entry.alias_info is None for entry in schema.returns)

    def written(self, args: Any, kwargs: Any) -> set[int]:
        """Return the ids of the tensors that this call writes to."""
        found = [args[position] for position in self.positions if position < len(args)]
        if kwargs:
            found += [kwargs[name] for name in self.keywords if name in kwargs]
        ids: set[int] = set()
        for value in found:
            ids.update(map(id, value) if isinstance(value, (list, tuple)) else (id(value),))
        return ids


class Touched:
    """The way from torch's operators to the addresses that `Races` knows."""

    def __init__(self, session: Session, races: Races) -> None:
        self.session, self.races = session, races
        self.watched = Watched(session, races)

    # On the device

    def kernel(
        self, command: Command, operator: Operator, call: tuple[Any, Any], tensors: list[torch.Tensor],
        tags: list[Any], sizes: list[int], outputs: list[torch.Tensor], places: list[Any],
    ) -> None:  # fmt: skip
        """An operator was launched as `command`; `tags` and `sizes` [bytes] are those of `tensors`, its arguments.

        `places` are the tags of `outputs`.
        """
        plan = operator.touches or self._plan(operator)
        command.operator = operator.name
        stream, turn, memory = command.stream.id, command.turn, self.races.memory
        written = plan.written(*call) if plan.writes else NOTHING
        for tensor, tag, size in zip(tensors, tags, sizes, strict=True) if plan.reads else ():
            if type(tag) is not DeviceTag:
                continue
            block, writes = tag.block, bool(written) and id(tensor) in written
            if 0 < size == block.requested:  # by far the most, so that this is spelt out; else as in `_access`
                use = (turn, command, writes, tensor.shape, tensor.dtype, block)
                note = memory.overwrite if writes else memory.read
                if note(block.address, block.address + block.size, stream, use):
                    continue
            self._access(command, tensor, block, not (writes and plan.fills), writes)
        if outputs and plan.makes:
            known = set(map(id, tensors)) if written else NOTHING
            for output, tag in zip(outputs, places, strict=False):
                if type(tag) is DeviceTag and id(output) not in known:
                    self._access(command, output, tag.block, False, True)

    def device(
        self, command: Command, operator: str = "", reads: Iterable[torch.Tensor] = (),
        writes: Iterable[torch.Tensor] = (),
    ) -> None:  # fmt: skip
        """`command` reads and writes these device tensors; others are passed over."""
        work = self.races.work(command, operator)
        for tensor in reads:
            self._device(work, tensor, True, False)
        for tensor in writes:
            self._device(work, tensor, False, True)

    def _device(self, work: Work, tensor: torch.Tensor, reads: bool, writes: bool) -> None:
        try:
            tag = getattr(tensor.untyped_storage(), ATTRIBUTE)
        except (AttributeError, NotImplementedError, RuntimeError):
            return
        if type(tag) is DeviceTag:
            self._access(work, tensor, tag.block, reads, writes)

    def _access(self, work: Work, tensor: torch.Tensor, block: Any, reads: bool, writes: bool) -> None:
        access, shape, dtype, nbytes = self.races.access, tensor.shape, tensor.dtype, tensor.nbytes
        if nbytes == block.requested:  # to the block's end: where tensors of other sizes lay before, cells stay whole
            access(work, block.address, block.address + block.size, shape, dtype, block, reads, writes)
            return
        size = tensor.itemsize
        base = block.address + tensor.storage_offset() * size
        if tensor.is_contiguous():
            access(work, base, base + nbytes, shape, dtype, block, reads, writes)
            return
        for first, end in ranges(shape, tensor.stride()):
            access(work, base + first * size, base + end * size, shape, dtype, block, reads, writes)

    # Copies

    def to_device(self, command: Command, target: torch.Tensor, source: torch.Tensor, *, blocking: bool) -> None:
        """A copy to the device was queued (and, if blocking, waited for)."""
        tag = _pinned(source)
        if tag is not None:
            self.watched.look_at(tag.block)
        self.device(command, writes=[target])
        if tag is not None:
            self._access(command, source, tag.block, True, False)
            if not blocking:
                self.watched.begin(command, source, *_hull(source), tag.block)

    def to_host(self, command: Command, target: torch.Tensor, source: torch.Tensor, *, blocking: bool) -> None:
        """A copy to the host was queued; what the target holds now (poison, or the values) nobody may change."""
        tag = _pinned(target)
        self.device(command, reads=[source])
        if tag is not None:
            self.watched.changed(tag.block)
            self._access(command, target, tag.block, False, True)
            if not blocking:
                self.watched.begin(command, target, *_hull(target), tag.block, fills=True)

    # On the host

    def before_change(self, tags: Iterable[Any]) -> None:
        """Tensors may be about to change, and that is known: see what happened to them since they were used last."""
        for tag in tags if len(self.watched) else ():
            if _is_pinned(tag):
                self.watched.look_at(tag.block)

    def host_operator(
        self, operator: Operator, args: Any, kwargs: Any, tensors: list[torch.Tensor], tags: list[Any]
    ) -> None:
        """An operator ran on host tensors; pinned ones may be in use by a copy."""
        used = [(tensor, tag) for tensor, tag in zip(tensors, tags, strict=True) if _is_pinned(tag)]
        if not used:
            return
        plan = operator.touches or self._plan(operator)
        written = plan.written(args, kwargs) if plan.writes else set()
        span = -1 if self.session.measured else len(self.races.runtime.builder) - 1
        if span < 0:
            self.session.mark_source()
        work = self.races.host_work(operator.name, span)
        for tensor, tag in used:
            writes = id(tensor) in written
            if writes:
                self.watched.changed(tag.block)
            self._access(work, tensor, tag.block, not (writes and plan.fills), writes)

    def host_read(self, tensor: torch.Tensor, call: str) -> None:
        """The host reads a tensor of its own in a call that is no operator, or in a part of one: `tolist`, `print`."""
        self._host(tensor, call, writes=False)

    def host_write(self, tensor: torch.Tensor, call: str) -> None:
        """The same for a write; `before_change` has been called."""
        self._host(tensor, call, writes=True)

    def _host(self, tensor: torch.Tensor, call: str, *, writes: bool) -> None:
        tag = _pinned(tensor)
        if tag is not None:
            self.session.mark_source()
            if writes:
                self.watched.changed(tag.block)
            self._access(self.races.host_work(call), tensor, tag.block, not writes, writes)

    def _plan(self, operator: Operator) -> Plan:
        plan = operator.touches = Plan(operator.overload)
        return plan


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
    count = 1
    for _, size in rest:
        count *= size
    if count > ROWS:
        return ((0, sum(stride * (size - 1) for stride, size in rest) + run),)
    starts = [0]
    for stride, size in rest:
        starts = [start + stride * step for step in range(size) for start in starts]
    return tuple((start, start + run) for start in sorted(starts))


def _pinned(tensor: torch.Tensor) -> Any:
    """Return the tag (a `HostTag`) of a host tensor in a pinned block, or None."""
    try:
        tag = getattr(tensor.untyped_storage(), ATTRIBUTE)
    except (AttributeError, NotImplementedError, RuntimeError):
        return None
    return tag if _is_pinned(tag) else None


def _is_pinned(tag: Any) -> bool:
    return type(tag) is HostTag and tag.block is not None and tag.block.size > 0


def _hull(tensor: torch.Tensor) -> tuple[int, int]:
    """Return first and last element + 1 in the storage."""
    offset = int(tensor.storage_offset())
    if tensor.is_contiguous():
        return offset, offset + tensor.numel()
    parts = ranges(tensor.shape, tensor.stride())
    return (offset + parts[0][0], offset + parts[-1][1]) if parts else (0, 0)
