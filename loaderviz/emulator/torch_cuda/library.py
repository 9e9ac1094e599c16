"""Library: the corners of torch that ask for the device below Python's modes, each with a small stand-in.

autograd's engine call, the grouping of tensors for foreach optimizers, autocast, generators, saving and loading,
deep copies, and `record_function`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import graph
from torch.autograd.profiler import record_function
from torch.utils import _foreach_utils

from loaderviz.emulator.torch_cuda.session import DEVICE, wanted_device
from loaderviz.emulator.torch_cuda.tags import ATTRIBUTE, DeviceTag, is_on_device
from loaderviz.errors import NotModelledError

if TYPE_CHECKING:
    from loaderviz.emulator.torch_cuda.functions import Functions
    from loaderviz.emulator.torch_cuda.operators import Operators
    from loaderviz.emulator.torch_cuda.patching import Patches
    from loaderviz.emulator.torch_cuda.session import Session

FIRST = 5  # before torch's own packages (10 is the CPU's) in the order of serialization


def install(session: Session, patches: Patches, operators: Operators, calls: Functions) -> None:
    """Put all stand-ins in place."""
    patches.function(graph, "_engine_run_backward", operators.backward.wrap(graph._engine_run_backward))
    grouping = _foreach_utils._group_tensors_by_device_and_dtype
    patches.function(_foreach_utils, "_group_tensors_by_device_and_dtype", _grouping(grouping))
    patches.function(
        torch._C, "_group_tensors_by_device_and_dtype", _grouping(torch._C._group_tensors_by_device_and_dtype)
    )
    patches.function(torch, "Generator", _generator(torch.Generator))
    patches.set(torch.backends.cuda, "is_built", lambda: True)
    patches.set(torch.backends.cudnn, "is_acceptable", lambda tensor: False)
    patches.function(torch.nn, "DataParallel", _refuse_data_parallel)
    _install_saved_tensor_hooks(patches, calls)
    _install_autocast(session, patches)
    _install_serialization(session, patches)
    _install_deep_copies(session, patches)
    _install_ranges(session, patches)


def _refuse_data_parallel(*args: Any, **kwargs: Any) -> None:
    raise NotModelledError("DataParallel: several devices are not modelled; use the module as it is")


def _grouping(original: Callable[..., Any]) -> Callable[..., Any]:
    def group(tensor_lists: Any, with_indices: bool = False) -> Any:
        """Group tensors by (device, dtype), device tensors apart from host tensors."""
        groups: dict[Any, Any] = {}
        for (device, dtype), (lists, indices) in original(tensor_lists, with_indices).items():
            places = [tensor is not None and is_on_device(tensor) for tensor in lists[0]]
            for here in sorted(set(places)):
                keep = [position for position, place in enumerate(places) if place == here]
                part = [[entries[position] for position in keep] if entries else entries for entries in lists]
                part_indices = [indices[position] for position in keep] if indices else indices
                groups[DEVICE if here else device, dtype] = (part, part_indices)
        return groups

    return group


def _generator(original: Any) -> Any:
    """Return a class that stands in for `torch.Generator`: a CUDA generator draws the CPU's numbers."""

    class Meta(type(original)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original)

    class Generator(original, metaclass=Meta):  # type: ignore[misc]
        """A generator of random numbers; on the emulated GPU it draws the same numbers as on the CPU."""

        def __new__(cls, device: Any = "cpu") -> Any:
            place = wanted_device(device)
            self = super().__new__(cls, "cpu" if place.type == "cuda" else place)
            self._place = place
            return self

        @property
        def device(self) -> torch.device:
            """Where its user wants its numbers."""
            return self._place  # type: ignore[no-any-return]

    return Generator


def _install_saved_tensor_hooks(patches: Patches, calls: Functions) -> None:
    """Autograd calls pack and unpack hooks (checkpointing, `save_on_cpu`) where no mode is active: bring ours along."""

    def with_mode(hook: Callable[..., Any]) -> Callable[..., Any]:
        def call(value: Any) -> Any:
            with calls:
                return hook(value)

        return call

    def enter(self: Any) -> None:
        torch._C._autograd._push_saved_tensors_default_hooks(with_mode(self.pack_hook), with_mode(self.unpack_hook))

    patches.set(graph.saved_tensors_hooks, "__enter__", enter)


def _install_autocast(session: Session, patches: Patches) -> None:
    """Autocast for CUDA runs as the CPU's autocast with the same dtype, and the timeline says so."""
    autocast = torch.amp.autocast_mode.autocast
    begin = autocast.__init__

    def init(
        self: Any, device_type: str, dtype: torch.dtype | None = None, enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:  # fmt: skip
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
            if enabled:
                session.note(f"autocast: the values are really computed in {dtype}, by the CPU's kernels and lists")
        begin(self, device_type, dtype, enabled, cache_enabled)

    patches.set(autocast, "__init__", init)
    for name in ("is_autocast_enabled", "get_autocast_dtype", "is_autocast_available"):
        if hasattr(torch, name):
            patches.function(torch, name, _as_cpu(getattr(torch, name)))


def _as_cpu(original: Callable[..., Any]) -> Callable[..., Any]:
    def ask(device_type: str = "cuda") -> Any:
        """Answer for the CPU's autocast, which stands in for CUDA's."""
        return original("cpu" if device_type == "cuda" else device_type)

    return ask


def _install_serialization(session: Session, patches: Patches) -> None:
    """torch.save notes "cuda:0" for device storages, torch.load puts them there."""

    def location(storage: Any) -> str | None:
        tag = getattr(storage, ATTRIBUTE, None)
        if type(tag) is not DeviceTag:
            if session.touched:
                session.touched.host_read(_bytes_of(storage), "torch.save")
            return None
        session.enter("torch.save")
        if tag.arrivals:
            session.late.deliver(tag, session.stream)
        session.mark_source()
        command = session.runtime.memcpy(storage.nbytes(), "d2h", session.stream, pinned=False, blocking=True)
        if session.touched:
            session.touched.device(command, reads=[_bytes_of(storage)])
        session.late.host_knows()
        session.leave()
        return "cuda:0"

    def restore(storage: Any, wanted: str) -> Any:
        if not wanted.startswith("cuda"):
            return None
        wanted_device(wanted)
        session.enter("torch.load")
        session.mark_source()
        session.place(_bytes_of(storage))
        command = session.runtime.memcpy(storage.nbytes(), "h2d", session.stream, pinned=False, blocking=True)
        if session.touched:
            session.touched.device(command, writes=[_bytes_of(storage)])
        session.late.host_knows()
        session.leave()
        return storage

    patches.set(torch.serialization, "_package_registry", list(torch.serialization._package_registry))
    torch.serialization.register_package(FIRST, location, restore)


def _install_deep_copies(session: Session, patches: Patches) -> None:
    """A deep copy of a device tensor is on the device."""
    base = torch.storage._StorageBase
    copy_storage: Any = base.__deepcopy__

    def deepcopy(self: Any, memo: Any) -> Any:
        tag = getattr(self, ATTRIBUTE, None)
        if type(tag) is not DeviceTag:
            return copy_storage(self, memo)
        session.late.deliver(tag, session.stream)
        with session.bookkeeping():
            result = copy_storage(self, memo)
        if getattr(result, ATTRIBUTE, None) is None:
            session.mark_source()
            session.place(_bytes_of(result), tag.batch)
            command = session.runtime.memcpy(self.nbytes(), "d2d", session.stream)
            if session.touched:
                session.touched.device(command, reads=[_bytes_of(self)], writes=[_bytes_of(result)])
        return result

    patches.set(base, "__deepcopy__", deepcopy)


def _bytes_of(storage: Any) -> torch.Tensor:
    """Return a tensor that is a view of all of a storage."""
    with torch._C.DisableTorchFunction():
        return torch.empty(0, dtype=torch.uint8).set_(storage)


def _install_ranges(session: Session, patches: Patches) -> None:
    """`record_function` (and with it the DataLoader's own annotation) becomes a range on the main lane."""
    enter: Any = record_function.__enter__
    leave = record_function.__exit__
    starts: dict[int, int] = {}

    def begin(self: Any) -> Any:
        if not session.in_recording_thread():
            return enter(self)
        starts[id(self)] = session.enter_range(self.name)
        with session.bookkeeping():
            return enter(self)

    def end(self: Any, *error: Any) -> Any:
        start = starts.pop(id(self), None)
        if start is not None:
            session.leave_range(self.name, start)
        with session.bookkeeping():
            return leave(self, *error)

    patches.set(record_function, "__enter__", begin)
    patches.set(record_function, "__exit__", end)
