"""What leaves the device or the program: values for Python, pinned memory, DLPack, files, copies, other processes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.utils.dlpack import DLDeviceType

from loaderviz.emulator.runtime import Direction
from loaderviz.emulator.torch import copies, internals
from loaderviz.emulator.torch.functions import answers
from loaderviz.emulator.torch.patches import Patches
from loaderviz.emulator.torch.placement import move
from loaderviz.emulator.torch.session import CPU, ON_HOST, PIN_THREAD, Session, wanted_device
from loaderviz.emulator.torch.tensors import ATTRIBUTE, DeviceTag, HostTag, is_on_device, seen_outside, set_tag
from loaderviz.errors import NotModelledError

FIRST = 5  # before torch's own packages (10 is the CPU's) in the order of serialization
PADDING = "_loaderviz_padding"  # the mask of sequences that an encoder has packed


def install(session: Session, patches: Patches) -> None:
    """Put all in place."""
    _install_methods(session, patches)
    _install_dlpack(session, patches)
    _install_serialization(session, patches)
    _install_sending(session, patches)


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
    session.outside("Tensor.numpy", tensor.nbytes)
    return func(tensor)


@answers(torch.Tensor.__array__)
def _array(session: Session, func: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    session.outside("Tensor.numpy", tensor.nbytes)
    return func(tensor, *args, **kwargs)


@answers(torch.Tensor.apply_, torch.Tensor.map_, torch.Tensor.map2_)
def _by_python(session: Session, func: Any, tensor: Any, *args: Any) -> Any:
    if is_on_device(tensor):
        raise TypeError(f"{func.__name__} is only implemented on CPU tensors")
    return func(tensor, *args)


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
    if not session.shuffling:
        session.host_list("Tensor.tolist", session.runtime.host.list_time(tensor.numel(), given=True))
    return func(tensor)


# Methods of `Tensor` that never reach a mode, or that the DataLoader's pin thread calls: set on the class


def _install_methods(session: Session, patches: Patches) -> None:
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
        with internals.DisableTorchFunction():
            tag = session.host_tag(tensor)
            result = tensor if tag and tag.pinned else copies.pin_memory(session, tensor.detach(), tag)
        session.leave()
        return result

    @patches.around(torch.Tensor, "is_pinned")
    def is_pinned(_: Any, tensor: torch.Tensor, device: Any = None) -> bool:
        with internals.DisableTorchFunction():
            if tensor.layout is not torch.strided or is_on_device(tensor):
                return False
            tag = session.host_tag(tensor)
        return bool(tag and tag.pinned)

    @patches.around(torch.Tensor, "record_stream")
    def record_stream(_: Any, tensor: torch.Tensor, stream: Any) -> None:
        session.enter("Tensor.record_stream")
        with internals.DisableTorchFunction():
            tag = session.device_tag(tensor)
        if tag is None:
            raise RuntimeError("record_stream: the tensor is on the CPU; only device memory has streams")
        session.pool.record_stream(tag.block, session.stream_of(stream))  # R36
        session.leave()


def _install_dlpack(session: Session, patches: Patches) -> None:
    """DLPack of a device tensor is on the device, and shares its memory: torch's own code, but for the capsules."""
    given: dict[int, tuple[Any, torch.Tensor]] = {}  # by the id of a capsule that was made of a device tensor

    @patches.around(internals.C, "_to_dlpack", "_to_dlpack_versioned")
    def give(make: Any, tensor: torch.Tensor, dl_device: Any = None, copy: Any = None) -> Any:
        if not is_on_device(tensor):
            return make(tensor, dl_device=dl_device, copy=copy)
        to_host = dl_device is not None and int(dl_device[0]) == int(DLDeviceType.kDLCPU)
        tensor = tensor.cpu() if to_host else tensor.clone() if copy else tensor
        capsule = make(tensor)
        if not to_host:
            given[id(capsule)] = capsule, tensor
        return capsule

    @patches.around(internals.C, "_from_dlpack")
    def take(original: Any, capsule: Any) -> torch.Tensor:
        with session.bookkeeping():
            result = original(capsule)  # which marks it as used
        made, tensor = given.pop(id(capsule), (None, None))
        return tensor.detach() if made is capsule and tensor is not None else result


# Files and other processes


def _install_serialization(session: Session, patches: Patches) -> None:
    """torch.save notes "cuda:0" for device storages, torch.load puts them there; a deep copy is where its source is."""

    def location(storage: Any) -> str | None:
        if type(getattr(storage, ATTRIBUTE, None)) is not DeviceTag:
            if session.tracking and storage.device.type == "cpu":
                session.tracking.host_access(copies.bytes_of(storage), "torch.save")
            return None
        return "cuda:0"  # and torch copies it with `.cpu()`

    def restore(storage: Any, wanted: str) -> Any:
        if not wanted.startswith("cuda"):
            return None
        wanted_device(wanted)
        with session.calling("torch.load"):
            storage = storage.clone()
            bring(session, storage)
        return storage

    @patches.around(torch.UntypedStorage, "_write_file")  # as pickle does
    def write_file(write: Any, storage: Any, *args: Any) -> Any:
        if type(tag := getattr(storage, ATTRIBUTE, None)) is DeviceTag:
            with session.calling("torch.save"):
                session.deferred.deliver(tag, session.stream)
                _move_bytes(session, "d2h", reads=[copies.bytes_of(storage)])
        return write(storage, *args)

    @patches.around(torch.storage._StorageBase, "__deepcopy__")
    def deepcopy(copy_storage: Any, self: Any, memo: Any) -> Any:
        tag = getattr(self, ATTRIBUTE, None)
        if type(tag) is not DeviceTag or session.aside is ON_HOST:
            return copy_storage(self, memo)
        session.deferred.deliver(tag, session.stream)
        known = id(self) in memo or self._cdata in memo
        with session.bookkeeping():
            result = copy_storage(self, memo)
        if not known:
            with session.calling("copy.deepcopy"):
                _move_bytes(session, "d2d", [copies.bytes_of(self)], [copies.bytes_of(result)])
        return result

    patches.set(torch.serialization, "_package_registry", list(torch.serialization._package_registry))
    torch.serialization.register_package(FIRST, location, restore)


def bring(session: Session, storage: Any) -> None:
    """Put a storage that was read from a file on the device."""
    if type(getattr(storage, ATTRIBUTE, None)) is not DeviceTag:
        _move_bytes(session, "h2d", writes=[session.place(copies.bytes_of(storage))])


def _move_bytes(
    session: Session, direction: Direction, reads: Sequence[torch.Tensor] = (), writes: Sequence[torch.Tensor] = ()
) -> None:
    """Copy all of a storage; to the host and from there it is a blocking copy of pageable memory."""
    crosses, size = direction != "d2d", (*reads, *writes)[0].nbytes
    command = session.runtime.memcpy(size, direction, session.stream, pinned=not crosses, blocking=crosses)
    if session.tracking:
        session.tracking.device(command, reads=reads, writes=writes)
    if crosses:
        session.deferred.host_knows()


def _install_sending(session: Session, patches: Patches) -> None:
    """A tensor of the device that goes to another process goes by CUDA's handles for memory, which nothing emulates."""
    reducers: dict[Any, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]

    def send(reduce: Any, tensor: torch.Tensor) -> Any:
        with internals.DisableTorchFunction():
            here = session.alive and is_on_device(tensor)
        if here:
            problem = NotModelledError(
                "a tensor on the emulated GPU cannot be sent to another process (CUDA IPC is not modelled): keep "
                "one process for the GPU, or send tensor.cpu()"
            )
            raise problem if session.in_recording_thread() else session.refused_elsewhere(problem)
        return reduce(tensor)

    for kind in (torch.Tensor, torch.nn.Parameter):
        patches.at_end(partial(reducers.__setitem__, kind, reducers[kind]))
        reducers[kind] = partial(send, reducers[kind])
