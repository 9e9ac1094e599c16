"""Methods of tensors that bring values to Python or pin them, ask for a stream, or share memory by DLPack."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.dlpack import DLDeviceType

from loaderviz.emulator.torch import copies
from loaderviz.emulator.torch.functions import answers
from loaderviz.emulator.torch.placement import move
from loaderviz.emulator.torch.session import CPU, DEVICE, PIN_THREAD, Session
from loaderviz.emulator.torch.tensors import HostTag, is_on_device, seen_outside, set_tag

if TYPE_CHECKING:
    from loaderviz.emulator.torch.patches import Patches

PADDING = "_loaderviz_padding"  # the mask of sequences that an encoder has packed


@answers(torch.ctc_loss)
def _ctc_loss(session: Session, func: Any, log_probabilities: Any, targets: Any, *lengths: Any, **kwargs: Any) -> Any:
    """The lengths may be on the CPU; the mean over them is taken on the device, and torch copies them there."""
    if is_on_device(log_probabilities):
        lengths = tuple(move(session, it, DEVICE, None, False) if type(it) is torch.Tensor else it for it in lengths)
    return func(log_probabilities, targets, *lengths, **kwargs)


@answers(torch.dropout)
def _dropout(session: Session, func: Any, tensor: Any, p: float, train: bool) -> Any:
    """On CUDA one fused kernel does it (ATen/native/Dropout.cpp), with the same numbers here."""
    fused = train and 0 < p < 1 and is_on_device(tensor) and tensor.numel()
    return torch.native_dropout(tensor, p, train)[0] if fused else func(tensor, p, train)


@answers(torch._VF._pad_packed_sequence)
def _pad_packed(session: Session, func: Any, *args: Any, **kwargs: Any) -> Any:
    """The lengths are made on the host, in C++, which nothing tells from what it makes on the device."""
    padded, lengths = func(*args, **kwargs)
    with session.bookkeeping():
        return padded, lengths.clone()


# Calls that bring a device tensor's values to Python, or refuse to; `print` comes down to these


@answers(torch.Tensor.numpy)
def _numpy(session: Session, func: Any, tensor: Any, *, force: bool = False) -> Any:
    if force:
        tensor = move(session, tensor.detach(), CPU, None, False).resolve_conj().resolve_neg()
    if is_on_device(tensor):
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory "
            "first."
        )
    seen_outside(tensor)
    return func(tensor)


@answers(torch.Tensor.share_memory_)
def _shared(session: Session, func: Any, tensor: Any) -> Any:
    seen_outside(tensor)
    return func(tensor)


@answers(torch.Tensor.to_padded_tensor)
def _to_padded(session: Session, func: Any, tensor: Any, value: Any, *args: Any) -> Any:
    padding = getattr(tensor, PADDING, None)
    return func(tensor, value, *args) if padding is None else tensor.masked_fill(padding.unsqueeze(-1), value)


@answers(torch.Tensor.tolist)
def _tolist(session: Session, func: Any, tensor: Any) -> Any:
    tensor = tensor.detach()
    if is_on_device(tensor):
        tensor = copies.transfer(session, tensor, tensor.dtype, False)
    elif session.tracking:
        session.tracking.host_access(tensor, "Tensor.tolist")
    return func(tensor)


# Methods of `Tensor` that never reach a mode, or that the DataLoader's pin thread calls: set on the class


def install(session: Session, patches: Patches) -> None:
    """Set the methods while the recording runs."""

    @patches.around(torch.Tensor, "pin_memory")
    def pin_memory(_: Any, tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        if is_on_device(tensor):
            raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
        copies.check_layout(tensor)
        if threading.current_thread().name == PIN_THREAD:
            copy = tensor.clone(memory_format=torch.contiguous_format)
            set_tag(copy, HostTag(session, pinned=True))  # its block is given at hand-out, by the main thread
            return copy
        session.enter("Tensor.pin_memory")
        with torch._C.DisableTorchFunction():
            tag = session.host_tag(tensor)
            result = tensor if tag and tag.pinned else copies.pin_memory(session, tensor.detach(), tag)
        session.leave()
        return result

    @patches.around(torch.Tensor, "is_pinned")
    def is_pinned(_: Any, tensor: torch.Tensor, device: Any = None) -> bool:
        with torch._C.DisableTorchFunction():
            if tensor.layout is not torch.strided or is_on_device(tensor):
                return False
            tag = session.host_tag(tensor)
        return bool(tag and tag.pinned)

    @patches.around(torch.Tensor, "record_stream")
    def record_stream(_: Any, tensor: torch.Tensor, stream: Any) -> None:
        session.enter("Tensor.record_stream")
        with torch._C.DisableTorchFunction():
            tag = session.device_tag(tensor)
        if tag is None:
            raise RuntimeError("record_stream: the tensor is on the CPU; only device memory has streams")
        session.pool.record_stream(tag.block, session.stream_of(stream))  # R36
        session.leave()

    _install_dlpack(session, patches)


def _install_dlpack(session: Session, patches: Patches) -> None:
    """DLPack of a device tensor is on the device, and shares its memory: torch's own code, but for the capsules."""
    given: dict[int, tuple[Any, torch.Tensor]] = {}  # by the id of a capsule that was made of a device tensor

    def give(make: Any, tensor: torch.Tensor, dl_device: Any = None, copy: Any = None) -> Any:
        if not is_on_device(tensor):
            return make(tensor, dl_device=dl_device, copy=copy)
        to_host = dl_device is not None and int(dl_device[0]) == int(DLDeviceType.kDLCPU)
        tensor = tensor.cpu() if to_host else tensor.clone() if copy else tensor
        capsule = make(tensor)
        if not to_host:
            given[id(capsule)] = capsule, tensor
        return capsule

    for name in ("_to_dlpack", "_to_dlpack_versioned"):
        patches.around(torch._C, name)(give)

    @patches.around(torch._C, "_from_dlpack")
    def take(original: Any, capsule: Any) -> torch.Tensor:
        with session.bookkeeping():
            result = original(capsule)  # which marks it as used
        made, tensor = given.pop(id(capsule), (None, None))
        return tensor.detach() if made is capsule and tensor is not None else result
