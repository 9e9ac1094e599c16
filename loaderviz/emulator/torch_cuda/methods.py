"""Methods of `Tensor` that never reach a mode, or that the DataLoader's pin thread calls: set on the class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from loaderviz.emulator.torch_cuda import transfers
from loaderviz.emulator.torch_cuda.handlers import TYPES
from loaderviz.emulator.torch_cuda.tags import HostTag, is_on_device, set_tag
from loaderviz.errors import NotModelledError

if TYPE_CHECKING:
    from loaderviz.emulator.torch_cuda.patching import Patches
    from loaderviz.emulator.torch_cuda.session import Session


def install(session: Session, patches: Patches) -> None:
    """Set the methods while the recording runs."""
    patches.set(torch.Tensor, "pin_memory", _pin_memory(session))
    patches.set(torch.Tensor, "is_pinned", _is_pinned(session))
    patches.set(torch.Tensor, "record_stream", _record_stream(session))
    for name in ("__dlpack__", "__dlpack_device__"):
        patches.set(torch.Tensor, name, _dlpack(getattr(torch.Tensor, name)))


def _pin_memory(session: Session) -> Any:
    """Return what stands in for `Tensor.pin_memory`: also called by the DataLoader's pin thread."""

    def pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        """Copy the tensor to pinned memory, if it is not pinned yet."""
        if is_on_device(tensor):
            raise RuntimeError(f"cannot pin 'torch.cuda.{TYPES[tensor.dtype]}' only dense CPU tensors can be pinned")
        transfers.check_layout(tensor)
        if session.in_pin_thread():
            copy = tensor.clone(memory_format=torch.contiguous_format)
            set_tag(copy, HostTag(session, pinned=True))  # its block is given at hand-out, by the main thread
            return copy
        session.enter("Tensor.pin_memory")
        with torch._C.DisableTorchFunction():
            tag = session.host_tag(tensor)
            result = tensor if tag and tag.pinned else transfers.pin_memory(session, tensor.detach(), tag)
        session.leave()
        return result

    return pin_memory


def _dlpack(original: Any) -> Any:
    """Return what stands in for `Tensor.__dlpack__`: it would hand out the memory of the CPU tensor behind it."""

    def dlpack(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Hand out a host tensor's memory."""
        if is_on_device(tensor):
            raise NotModelledError("DLPack of a tensor on the emulated GPU is not modelled; copy it with .cpu() first")
        return original(tensor, *args, **kwargs)

    return dlpack


def _is_pinned(session: Session) -> Any:
    """Return what stands in for `Tensor.is_pinned`."""

    def is_pinned(tensor: torch.Tensor, device: Any = None) -> bool:
        """Tell whether the tensor is in pinned memory."""
        with torch._C.DisableTorchFunction():
            if tensor.layout is not torch.strided or is_on_device(tensor):
                return False
            tag = session.host_tag(tensor)
        return bool(tag and tag.pinned)

    return is_pinned


def _record_stream(session: Session) -> Any:
    """Return what stands in for `Tensor.record_stream`."""

    def record_stream(tensor: torch.Tensor, stream: Any) -> None:
        """Note that `stream` uses the tensor's memory (R36)."""
        session.enter("Tensor.record_stream")
        with torch._C.DisableTorchFunction():
            tag = session.device_tag(tensor)
        if tag is None:
            raise RuntimeError("record_stream: the tensor is on the CPU; only device memory has streams")
        session.pool.record_stream(tag.block, session.stream_of(stream))
        session.leave()

    return record_stream
