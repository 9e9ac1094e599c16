"""Copies between host and device as PyTorch makes them (R28 to R32), with real bytes.

With `copies="on_wait"` the bytes of an asynchronous copy arrive when something that is ordered after it needs them;
until then the destination holds poison (NaN, or the largest integer), so a forgotten wait gives wrong numbers always.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from loaderviz.emulator.device import Command, Stream
from loaderviz.emulator.hardware import CACHED
from loaderviz.emulator.kernels import memory_share, memory_time, sm_share
from loaderviz.emulator.torch import internals
from loaderviz.emulator.torch.tensors import (
    AT_REST,
    ATTRIBUTE,
    SET,
    SPARSE,
    Arrival,
    HostTag,
    Tag,
    is_on_device,
    parts_of,
    set_tag,
    storage_of,
    tag_of,
)
from loaderviz.errors import NotModelledError
from loaderviz.timeline import Kind

if TYPE_CHECKING:
    from loaderviz.emulator.torch.session import Session


aten = torch.ops.aten
SPARSE_COO: Any = torch.sparse_coo_tensor  # the stubs have other arguments
SPARSE_COMPRESSED: Any = torch.sparse_compressed_tensor
NESTED = aten._nested_tensor_size, aten._nested_tensor_strides, aten._nested_tensor_storage_offsets


def transfer(
    session: Session, source: torch.Tensor, dtype: torch.dtype, non_blocking: bool, target: torch.Tensor | None = None
) -> torch.Tensor:
    """Copy a tensor to the other side: into `target` (`copy_`), or into new memory of `dtype` (`Tensor.to`), returned.

    New memory is of the current stream (R28), or on the host, then pinned if non_blocking (R32). What changes dtype or
    layout does so on the GPU where the copy is non_blocking, else on the CPU, by way of a pageable temporary, which
    loses the pinned path (R31); gaps are closed where they are.
    """
    if session.aside is AT_REST:
        if target is not None:
            return target.copy_(source)
        return session.put(source.to(dtype, copy=True), on_device=not is_on_device(source))
    if source.layout in SPARSE or source.is_nested:
        return _transfer_parts(session, source, dtype, non_blocking, target)
    check_layout(source)
    with session.bookkeeping():
        source = source if target is None else source.expand_as(target)
        upload, by_gpu = not is_on_device(source), source.dtype != dtype and non_blocking
        if upload and not by_gpu:
            source = _for_copy(session, source, dtype)
        elif not upload and (by_gpu or not _is_dense(source)):
            source = _by_kernel(session, source, dtype if by_gpu else source.dtype)
        if target is not None and source.dtype == dtype and _is_dense(target):
            memcpy(session, target, source, non_blocking=non_blocking)
            return target
        raw = torch.empty_like(source, requires_grad=False)  # as it is on the way, then converted or spread out
        if upload:
            session.place(raw)
        elif target is None and non_blocking:
            session.pin(raw)
        memcpy(session, raw, source, non_blocking=non_blocking and (upload or target is None))
        if target is None and raw.dtype == dtype:
            return raw
        return (_by_kernel if upload else _by_host)(session, raw, dtype, target)


def converted(session: Session, source: torch.Tensor, place: torch.device, options: dict[str, Any]) -> torch.Tensor:
    """`aten::_to_copy` by who calls operators by their names, for `place`."""
    dtype = options.get("dtype") or source.dtype
    if is_on_device(source) != (place.type == "cuda"):
        return transfer(session, source, dtype, bool(options.get("non_blocking")))
    if is_on_device(source):
        return _by_kernel(session, source, dtype)
    with session.placing(None):
        return source.to(dtype, copy=True)


def _transfer_parts(
    session: Session, source: torch.Tensor, dtype: torch.dtype, non_blocking: bool, target: torch.Tensor | None
) -> torch.Tensor:
    """Copy a sparse or nested tensor: each of the dense ones that it consists of, its values in the new dtype."""
    *indices, values = parts_of(source)
    moved = [transfer(session, part, part.dtype, non_blocking) for part in indices]
    moved.append(transfer(session, values, dtype, non_blocking))
    session.irregular = True
    with session.bookkeeping(), torch.no_grad():
        if source.is_nested:
            sizes, strides, offsets = (ask(source) for ask in NESTED)
            result = torch._nested_view_from_buffer(moved[0], sizes, strides, offsets)
        elif source.layout is torch.sparse_coo:
            result = SPARSE_COO(*moved, source.shape, is_coalesced=source.is_coalesced())
        else:
            result = SPARSE_COMPRESSED(*moved, source.shape, layout=source.layout)
        return result if target is None else target.copy_(result)


def memcpy(session: Session, target: torch.Tensor, source: torch.Tensor, *, non_blocking: bool) -> None:
    """`cudaMemcpyAsync` between tensors of one dtype and shape; blocking adds a stream synchronise (R30).

    To the host it is asynchronous only into pinned memory (R3, R11).
    """
    runtime, tracking = session.runtime, session.tracking
    upload = is_on_device(target)
    tag, device_tag = session.host_tag(source if upload else target), session.device_tag(target if upload else source)
    assert device_tag is not None
    pinned = bool(tag and tag.pinned)
    batch = (tag.batch if tag else -1) if upload else device_tag.batch
    prepare(session, target, source)
    session.mark_source(batch)
    if not non_blocking:
        session.synchronizing("blocking copy")
    session.count_call()
    if upload:
        session.look_at(source)
    start = runtime.now
    runtime.now += runtime.host.dispatch
    if tag and tag.block and non_blocking and not session.recorder:
        session.pinned.use(tag.block, session.stream)  # R29
    if tracking and not upload:
        tracking.before_change([tag])
    if not (upload or pinned or runtime.gpu.pageable_d2h) and source.nbytes > CACHED:
        session.note(f"no published figure says how fast {runtime.gpu.name} copies to pageable memory: as from there")
    direction: Any = "h2d" if upload else "d2h"
    new, waits = bool(tag and tag.new), not non_blocking
    if tag:
        tag.new = False
    command = runtime.memcpy(source.nbytes, direction, session.stream, pinned=pinned, blocking=waits, new=new)
    runtime.note(start, "aten::copy_")
    if command.number < 0:  # captured
        assert session.recorder
        session.recorder.note_copy(target, source)
        return
    waits = not non_blocking or runtime.launch_blocking or not (upload or pinned)
    arrive(session, command, target, source, pinned=pinned, waits=waits)


def prepare(session: Session, target: torch.Tensor, source: torch.Tensor) -> None:
    """Before a copy is queued: its target takes over the batch of its source; what was on its way comes before."""
    tag, source_tag = tag_of(target), tag_of(source)
    if tag:
        tag.blank = source_tag.blank if source_tag else ""
    if is_on_device(target):
        known = source_tag is not None and source_tag.batch >= 0
        tag.batch = source_tag.batch if known else session.batches.ahead
        return
    if source_tag:  # not so for memory that only a CUDA graph knows
        session.deferred.deliver(source_tag, session.stream)
    if tag:
        session.deferred.keep_sources(target)
        tag.batch = source_tag.batch if source_tag else -1


def arrive(
    session: Session, command: Command, target: torch.Tensor, source: torch.Tensor, *, pinned: bool, waits: bool
) -> None:
    """Let the bytes of a copy that was just queued get to their target: at once if the host `waits` for it."""
    tracking, deferred, upload = session.tracking, session.deferred, is_on_device(target)
    given, source_tag, target_tag = source, tag_of(source), tag_of(target)
    if upload and source_tag and source_tag.arrivals:  # results are on their way there: read it with those before it
        source = as_seen(session, source, source_tag)
    if waits or session.copies == "eager" or not source.numel():
        if target_tag:
            deferred.deliver(target_tag, session.stream)  # what was under way to the target comes before
        target.detach().copy_(source)
    else:  # pinned memory is read then (R42), pageable memory is staged during the call
        deferred.expect(target, source if upload and pinned else source.clone())
    if tracking:
        tracking.copied(command, target, given, blocking=waits)
    if waits:
        deferred.host_knows()


def as_seen(session: Session, tensor: torch.Tensor, tag: Any) -> torch.Tensor:
    """Return a copy of a tensor as the current stream sees it: with what is on its way, and comes before."""
    whole = tensor.untyped_storage().clone()
    for arrival in tag.arrivals:
        if session.runtime.is_ordered(session.stream, arrival.place):
            arrival._replace(storage=weakref.ref(whole)).deliver()
    seen = torch.empty(0, dtype=tensor.dtype)
    return SET(seen, whole, tensor.storage_offset(), tensor.shape, tensor.stride())


def pin_memory(session: Session, source: torch.Tensor, tag: HostTag | None) -> torch.Tensor:
    """`Tensor.pin_memory()`: a copy into pinned memory on the calling thread, never in place (R43)."""
    with session.bookkeeping():
        runtime, batch = session.runtime, tag.batch if tag else -1
        session.mark_source(batch)
        result = session.pin(source.clone(memory_format=torch.contiguous_format), batch, blank=tag.blank if tag else "")
        start = runtime.now  # what page-locking took is told apart
        session.first_read([source], [tag])
        runtime.now += runtime.host.dispatch + runtime.host.pin_time(source.nbytes)
        runtime.note(start, "aten::pin_memory", Kind.PIN, nbytes=source.nbytes, pinned=True)
    return result


def bytes_of(storage: Any) -> torch.Tensor:
    """Return a tensor that is a view of all of a storage."""
    with internals.DisableTorchFunction():
        return SET(torch.empty(0, dtype=torch.uint8), storage)


def check_layout(tensor: torch.Tensor) -> None:
    """Raise `NotModelledError` for sparse, nested and other tensors without one dense storage."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        raise NotModelledError(
            f"the emulated GPU does not model tensors of layout {tensor.layout}; call .to_dense() first, or keep this "
            "tensor on the CPU"
        )
    storage_of(tensor)


def _for_copy(session: Session, source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what is really copied: the source, or a pageable temporary of the right dtype and layout (R31)."""
    if source.dtype == dtype and _is_dense(source):
        return source
    if session.tracking:
        session.tracking.host_access(source, "aten::_to_copy")
    tag = session.host_tag(source)
    result = source.to(dtype).contiguous()
    session.host_operator("aten::_to_copy", source.nbytes + result.nbytes, batch=tag.batch if tag else -1)
    if tag and tag.batch >= 0:
        set_tag(result, HostTag(session, tag.batch))
    return result


def _is_dense(tensor: torch.Tensor) -> bool:
    """Tell whether the elements lie side by side, in whatever order: then one memcpy moves them."""
    return tensor.is_contiguous() or bool(aten.is_non_overlapping_and_dense.default(tensor))


def _by_kernel(
    session: Session, source: torch.Tensor, dtype: torch.dtype, target: torch.Tensor | None = None
) -> torch.Tensor:
    """Change the dtype or layout of a device tensor by a kernel on the current stream that copies its elements."""
    runtime, tag = session.runtime, session.device_tag(source)
    if target is None:
        target = session.place(torch.empty_like(source, dtype=dtype), tag.batch if tag else -1)
    for each in (tag, session.device_tag(target)):
        assert each is not None
        session.deferred.deliver(each, session.stream)
    start = runtime.now
    runtime.now += runtime.host.dispatch
    nbytes = source.nbytes + target.nbytes
    duration = memory_time(runtime.gpu, "elementwise", nbytes)
    share, part = sm_share(runtime.gpu, target.numel()), memory_share(runtime.gpu, nbytes, duration)
    command = runtime.launch(duration, session.stream, "copy_", share, part)
    runtime.note(start, "aten::copy_")
    if session.recorder and command.number < 0:  # captured
        session.recorder.keep([target])
        session.recorder.note("aten::copy_", torch.Tensor.copy_, (target, source), written=[target])
    elif session.tracking:
        session.tracking.device(command, "aten::copy_", reads=[source], writes=[target])
    return target.copy_(source)


def _by_host(session: Session, source: torch.Tensor, dtype: torch.dtype, target: torch.Tensor | None) -> torch.Tensor:
    """The same for a host tensor, by the CPU."""
    target = torch.empty_like(source, dtype=dtype) if target is None else target
    if session.tracking:
        session.tracking.before_change([tag_of(target)])
    target.copy_(source)
    session.host_operator("aten::copy_", source.nbytes + target.nbytes)
    if session.tracking:
        session.tracking.host_access(target, "aten::copy_", writes=True)
    return target


class DeferredCopies:
    """The asynchronous copies of one recording whose bytes have not arrived yet."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._tags: weakref.WeakSet[Tag] = weakref.WeakSet()  # tags of storages that wait for bytes

    def expect(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Let `target` hold poison until something ordered after the copy just put into the stream needs its bytes."""
        storage, stream = storage_of(target), self._session.stream.id
        tag: Tag = getattr(storage, ATTRIBUTE)
        place = (stream, self._session.runtime.order.snapshot(stream)[stream])
        target.detach().fill_(poison(target.dtype))
        offset, stride = int(target.storage_offset()), target.stride()
        tag.arrivals += (Arrival(place, source.detach(), weakref.ref(storage), offset, stride),)
        self._tags.add(tag)

    def deliver(self, tag: Tag, stream: Stream | None) -> None:
        """Let those bytes arrive that `stream` (None: the host) is ordered after; the others stay poison for it."""
        if not tag.arrivals:
            return
        waiting, tag.arrivals = tag.arrivals, ()
        tracking = self._session.tracking
        block = tag.block if tracking and type(tag) is HostTag else None
        if tracking and block:
            tracking.checksums.check(block)
        for arrival in waiting:
            if self._session.runtime.is_ordered(stream, arrival.place):
                with self._session.bookkeeping(), torch.no_grad():
                    arrival.deliver()
            else:
                tag.arrivals += (arrival,)
        if tracking and block:
            tracking.checksums.changed(block)
        if not tag.arrivals:
            self._tags.discard(tag)

    def host_knows(self) -> None:
        """The host has waited for something: what is certain to be over for it has arrived."""
        if self._session.tracking:
            self._session.tracking.checksums.check_finished()
        for tag in list(self._tags) if self._tags else ():
            self.deliver(tag, None)

    def let_go(self) -> None:
        """Give pinned memory back that the program has dropped, and that only a deferred copy of ours still holds.

        PyTorch lets go of it as soon as the copy is done (R40), whoever needs the destination, and when.
        """
        for tag in list(self._tags):
            for arrival in tag.arrivals:
                source = tag_of(arrival.source)
                if type(source) is HostTag and source.block is not None and _holders(arrival.source) <= ALONE:
                    self._session.release(source.block)
                    source.block = None

    def keep_sources(self, target: torch.Tensor) -> None:
        """The stream is about to overwrite pinned memory: copies out of it, made before, keep their bytes."""
        storage, stream, is_ordered = storage_of(target), self._session.stream, self._session.runtime.is_ordered
        for tag in list(self._tags):
            tag.arrivals = tuple(
                arrival._replace(source=arrival.source.clone())
                if storage_of(arrival.source) is storage and is_ordered(stream, arrival.place)
                else arrival
                for arrival in tag.arrivals
            )


def _holders(tensor: torch.Tensor) -> int:
    """Return how many hold the storage of a tensor with a tag; `expect` keeps a tensor that nobody else has."""
    return internals.storage_use_count(storage_of(tensor)._cdata)


def _alone() -> int:
    setattr(storage_of(tensor := torch.empty(1)), ATTRIBUTE, None)
    return _holders(tensor)


ALONE = _alone()


def poison(dtype: torch.dtype) -> Any:
    """Return what memory holds before a copy has arrived: NaN, or the largest integer, or True."""
    if dtype.is_floating_point:
        return float("nan")
    if dtype.is_complex:
        return complex("nan")
    return True if dtype is torch.bool else torch.iinfo(dtype).max
