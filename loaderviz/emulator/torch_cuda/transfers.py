"""Transfers: copies between host and device as PyTorch makes them (R28 to R32), with real bytes.

With `copies="on_wait"` the bytes of an asynchronous copy arrive when something that is ordered after it needs them;
until then the destination holds poison (NaN, or the largest integer), so a forgotten wait gives wrong numbers always.
"""

from __future__ import annotations

import weakref

import torch

from loaderviz.emulator import costs
from loaderviz.emulator.torch_cuda.session import Session
from loaderviz.emulator.torch_cuda.tags import HostTag, set_tag, storage_of, tag_of
from loaderviz.errors import NotModelledError
from loaderviz.timeline import Kind


def to_device(session: Session, source: torch.Tensor, dtype: torch.dtype, non_blocking: bool) -> torch.Tensor:
    """Copy a host tensor into new device memory of the current stream (R28).

    A change of dtype: non_blocking converts on the GPU after the copy; blocking converts on the CPU into a pageable
    temporary first, which loses the pinned path (R31).
    """
    check_layout(source)
    with session.bookkeeping():
        if source.dtype != dtype and non_blocking:
            raw = _empty_on_device(session, source, source.dtype)
            copy_to_device(session, raw, source, non_blocking=True)
            return convert_on_device(session, raw, dtype)
        source = _for_copy(session, source, dtype)
        result = _empty_on_device(session, source, dtype)
        copy_to_device(session, result, source, non_blocking=non_blocking)
    return result


def to_host(session: Session, source: torch.Tensor, dtype: torch.dtype, non_blocking: bool) -> torch.Tensor:
    """Copy a device tensor into new host memory: pinned if non_blocking (R32), pageable otherwise."""
    with session.bookkeeping():
        if source.dtype != dtype and non_blocking:
            source = convert_on_device(session, source, dtype)
        source = contiguous_on_device(session, source)
        result = torch.empty_like(source)
        if non_blocking:
            session.pin(result, _batch_of(session, source))
        copy_to_host(session, result, source, non_blocking=non_blocking)
        if source.dtype != dtype:
            result = result.to(dtype)
            session.host_operator("aten::_to_copy", result.nbytes * 2)
    return result


def copy_across(session: Session, target: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> None:
    """`target.copy_(source)` with one of them on the host and the other on the device."""
    check_layout(source)
    with session.bookkeeping():
        source = source.expand_as(target)
        if session.device_tag(target):
            converts = source.dtype != target.dtype and non_blocking
            if not converts:
                source = _for_copy(session, source, target.dtype)
            if converts or not _dense(target):  # as it is on the way, then converted or spread out by a kernel
                raw = _empty_on_device(session, source, source.dtype)
                copy_to_device(session, raw, source, non_blocking=non_blocking)
                for tensor in (raw, target):
                    session.late.deliver(tag_of(tensor), session.stream)
                _kernel(session, "copy_", [raw, target])
                target.copy_(raw)
                return
            copy_to_device(session, target, source, non_blocking=non_blocking)
        else:
            source = contiguous_on_device(session, source)
            if source.dtype != target.dtype and non_blocking:
                source = convert_on_device(session, source, target.dtype)
            if source.dtype != target.dtype or not _dense(target):
                result = torch.empty_like(source)
                copy_to_host(session, result, source, non_blocking=False)
                _write_on_host(session, target, result)
                return
            copy_to_host(session, target, source, non_blocking=non_blocking)


def copy_to_device(session: Session, target: torch.Tensor, source: torch.Tensor, *, non_blocking: bool) -> None:
    """`cudaMemcpyAsync` into a device tensor of the same dtype and shape; blocking adds a stream synchronise (R30)."""
    runtime, tag = session.runtime, session.host_tag(source)
    pinned = bool(tag and tag.pinned)
    batch = session.batch_or_current(tag.batch if tag else -1)
    device_tag = session.device_tag(target)
    assert device_tag is not None
    device_tag.batch = session.batches.of_data(tag.batch if tag else -1)
    runtime.batch, runtime.source = batch, session.source()
    if not non_blocking:
        session.synchronizing("blocking copy")
    start = runtime.now
    runtime.now += runtime.host.dispatch
    if tag and tag.block and non_blocking:
        session.pinned.use(tag.block, session.stream)  # R29
    command = runtime.memcpy(source.nbytes, "h2d", session.stream, pinned=pinned, blocking=not non_blocking)
    runtime.builder.span(
        start, runtime.now, runtime.main, Kind.OPERATOR, "aten::copy_", batch=batch, source=runtime.source
    )
    waits = not non_blocking or runtime.launch_blocking
    if session.touched:
        session.touched.to_device(command, target, source, blocking=waits)
    if tag and tag.arrivals:
        source = _with_arrivals(session, source, tag)
    if waits or session.copies == "eager" or not source.numel():
        session.late.deliver(device_tag, session.stream)  # what was under way to the target comes before
        target.detach().copy_(source)
    else:  # pinned memory is read then (R42), pageable memory is staged during the call
        session.late.expect(target, source if pinned else source.clone())
    if waits:
        session.late.host_knows()


def copy_to_host(session: Session, target: torch.Tensor, source: torch.Tensor, *, non_blocking: bool) -> None:
    """`cudaMemcpyAsync` into a host tensor: asynchronous only into pinned memory, the rest blocks (R3, R11)."""
    runtime, tag = session.runtime, session.host_tag(target)
    device_tag = session.device_tag(source)
    assert device_tag is not None
    if device_tag.arrivals:
        session.late.deliver(device_tag, session.stream)
    pinned = bool(tag and tag.pinned)
    if tag:
        session.late.keep_sources(target)
        tag.batch = device_tag.batch
    runtime.batch, runtime.source = session.batch_or_current(device_tag.batch), session.source()
    if not non_blocking:
        session.synchronizing("blocking copy")
    start = runtime.now
    runtime.now += runtime.host.dispatch
    if tag and tag.block and non_blocking:
        session.pinned.use(tag.block, session.stream)
    if session.touched:
        session.touched.before_change([tag])
    command = runtime.memcpy(source.nbytes, "d2h", session.stream, pinned=pinned, blocking=not non_blocking)
    runtime.builder.span(
        start, runtime.now, runtime.main, Kind.OPERATOR, "aten::copy_", batch=runtime.batch, source=runtime.source
    )
    waits = not non_blocking or not pinned or runtime.launch_blocking
    if waits or session.copies == "eager" or not source.numel():
        if tag:
            session.late.deliver(tag, session.stream)  # what was under way to the target comes before
        target.detach().copy_(source)
    else:
        session.late.expect(target, source.clone())
    if session.touched:
        session.touched.to_host(command, target, source, blocking=waits)
    if waits:
        session.late.host_knows()


def pin_memory(session: Session, source: torch.Tensor, tag: HostTag | None) -> torch.Tensor:
    """`Tensor.pin_memory()`: a copy into pinned memory on the calling thread, never in place (R43)."""
    with session.bookkeeping():
        runtime = session.runtime
        runtime.batch, runtime.source = session.batch_or_current(tag.batch if tag else -1), session.source()
        start = runtime.now
        result = session.pin(source.clone(memory_format=torch.contiguous_format), tag.batch if tag else -1)
        runtime.now += runtime.host.dispatch + costs.host_time(runtime.host, 2 * source.nbytes)
        runtime.builder.span(
            start, runtime.now, runtime.main, Kind.PIN, "aten::pin_memory", batch=runtime.batch, nbytes=source.nbytes,
            pinned=True, source=runtime.source,
        )  # fmt: skip
    return result


def convert_on_device(session: Session, source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Change the dtype of a device tensor by a kernel."""
    tag = session.device_tag(source)
    assert tag is not None
    if tag.arrivals:
        session.late.deliver(tag, session.stream)
    result = session.place(source.to(dtype), tag.batch)
    _kernel(session, "copy_", [source, result])
    return result


def contiguous_on_device(session: Session, source: torch.Tensor) -> torch.Tensor:
    """Return a device tensor whose bytes can be copied as one piece: itself if dense, else a copy made by a kernel."""
    if _dense(source):
        return source
    tag = session.device_tag(source)
    assert tag is not None
    if tag.arrivals:
        session.late.deliver(tag, session.stream)
    result = session.place(source.contiguous(), tag.batch)
    _kernel(session, "copy_", [source, result])
    return result


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
    if source.dtype == dtype and _dense(source):
        return source
    if session.touched:
        session.touched.host_read(source, "aten::_to_copy")
    tag = session.host_tag(source)
    result = source.to(dtype).contiguous()
    session.host_operator("aten::_to_copy", source.nbytes + result.nbytes, tag.batch if tag else -1)
    if tag and tag.batch >= 0:
        set_tag(result, HostTag(session, tag.batch))
    return result


def _with_arrivals(session: Session, source: torch.Tensor, tag: HostTag) -> torch.Tensor:
    """Return what the stream will read from pinned memory that results are on their way to: with those before it."""
    whole = source.untyped_storage().clone()
    copy = torch.empty(0, dtype=source.dtype).set_(whole, source.storage_offset(), source.shape, source.stride())
    for arrival in tag.arrivals:
        if session.runtime.is_ordered(session.stream, arrival.place):
            arrival._replace(storage=weakref.ref(whole)).deliver()
    return copy


def _write_on_host(session: Session, target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy a host tensor into another one, which may be pinned and in use by a copy."""
    if session.touched:
        session.touched.before_change([tag_of(target)])
    target.copy_(source)
    session.host_operator("aten::copy_", source.nbytes + target.nbytes)
    if session.touched:
        session.touched.host_write(target, "aten::copy_")


def _empty_on_device(session: Session, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return session.place(torch.empty_like(like, dtype=dtype, requires_grad=False))


def _dense(tensor: torch.Tensor) -> bool:
    """Tell whether the elements lie side by side, in whatever order: then one memcpy moves them."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for size, stride in sorted(zip(tensor.shape, tensor.stride(), strict=True), key=lambda pair: pair[1]):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _batch_of(session: Session, tensor: torch.Tensor) -> int:
    tag = session.device_tag(tensor)
    return tag.batch if tag else -1


def _kernel(session: Session, name: str, tensors: list[torch.Tensor]) -> None:
    """Launch an elementwise kernel over `tensors` on the current stream."""
    runtime = session.runtime
    start = runtime.now
    runtime.now += runtime.host.dispatch
    nbytes = sum(tensor.nbytes for tensor in tensors)
    share = costs.sm_share(runtime.gpu, max(tensor.numel() for tensor in tensors))
    command = runtime.launch(costs.kernel_time(runtime.gpu, nbytes), session.stream, name=name, share=share)
    if session.touched:
        session.touched.device(command, f"aten::{name}", reads=tensors[:-1], writes=tensors[-1:])
    runtime.builder.span(
        start, runtime.now, runtime.main, Kind.OPERATOR, f"aten::{name}", batch=runtime.batch, source=runtime.source
    )
