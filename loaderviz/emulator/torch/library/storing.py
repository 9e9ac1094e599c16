"""What leaves the program: `torch.save`, `torch.load`, deep copies, and tensors sent to another process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import torch

from loaderviz.emulator.runtime import Direction
from loaderviz.emulator.torch import copies
from loaderviz.emulator.torch.session import ON_HOST, Session, wanted_device
from loaderviz.emulator.torch.tensors import ATTRIBUTE, DeviceTag, is_on_device
from loaderviz.errors import NotModelledError

if TYPE_CHECKING:
    from loaderviz.emulator.torch.patches import Patches

FIRST = 5  # before torch's own packages (10 is the CPU's) in the order of serialization


def install(session: Session, patches: Patches) -> None:
    """Put all in place."""
    _install_serialization(session, patches)
    _install_sending(session, patches)


def _install_serialization(session: Session, patches: Patches) -> None:
    """torch.save notes "cuda:0" for device storages, torch.load puts them there; a deep copy is where its source is."""

    def location(storage: Any) -> str | None:
        tag = getattr(storage, ATTRIBUTE, None)
        if type(tag) is not DeviceTag:
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
        with torch._C.DisableTorchFunction():
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
