"""Where a tensor is: on the emulated device, in pinned memory, or part of a batch, and in which block of memory.

A tag is an attribute of the tensor's storage, so it stays through views, parameters and autograd's saved tensors, and
it dies with the storage: that is when the block goes back to its pool.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from loaderviz.emulator.hazards.happens_before import Place
from loaderviz.emulator.memory import Block, DevicePool, OutOfMemory, PinnedBlock, PinnedPool
from loaderviz.emulator.runtime import Runtime
from loaderviz.emulator.torch import internals
from loaderviz.errors import NotModelledError

ATTRIBUTE = "_loaderviz_tag"
AT_REST = object()
DECLARED = "_loaderviz_on_device"  # of a subclass without memory of its own that says it is on the device
PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
NO_DISPATCH = torch.Tensor.__torch_dispatch__  # what a class says that does not run operators itself
MEMBERS: Any = vars(internals.TensorBase)  # what a tensor has in C++, whatever stands in for it
STORAGE, SET = torch.Tensor.untyped_storage, torch.Tensor.set_  # torch's own, whatever stands in for it
NO_STORAGE = NotImplementedError, RuntimeError, ValueError  # the last: a lazy module shows its parameter's to nobody
BY_ROWS, BY_COLUMNS = ("crow_indices", "col_indices", "values"), ("ccol_indices", "row_indices", "values")
SPARSE = {  # layouts, and what a tensor of each consists of
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: BY_ROWS, torch.sparse_bsr: BY_ROWS, torch.sparse_csc: BY_COLUMNS, torch.sparse_bsc: BY_COLUMNS,
}  # fmt: skip


class Arrival(NamedTuple):
    """Bytes that are on their way to a tensor: they arrive when something ordered after `place` needs them."""

    place: Place
    source: torch.Tensor
    storage: weakref.ref[torch.UntypedStorage]  # of the destination; offset and stride are its geometry in there
    offset: int
    stride: tuple[int, ...]

    def deliver(self) -> None:
        """Write the bytes, if the destination is still there."""
        storage = self.storage()
        if storage is not None:
            target = torch.empty(0, dtype=self.source.dtype)
            SET(target, storage, self.offset, self.source.shape, self.stride)
            target.copy_(self.source)


class DeviceTag:
    """The storage is on the emulated device, in `block`; its content belongs to `batch` (-1: to none).

    `blank` is the line that made it without content, until something writes there.
    """

    __slots__ = ("__weakref__", "arrivals", "batch", "blank", "block", "memory")

    def __init__(self, memory: TensorMemory, block: Block, batch: int = -1) -> None:
        self.memory, self.block, self.batch, self.blank = memory, block, batch, ""
        self.arrivals: tuple[Arrival, ...] = ()

    def __del__(self) -> None:
        if hasattr(self, "block"):  # else an interrupt came before there was one
            self.memory.release(self.block)


class HostTag:
    """The storage is host memory that is pinned (`block`), or holds data of a batch, or nothing yet (`blank`).

    It is `new` where a worker wrote it, and nobody in this process has touched its pages.
    `block` may be None while `pinned` is True: pinned by the loader's thread, its block is given at hand-out.
    """

    __slots__ = ("__weakref__", "arrivals", "batch", "blank", "block", "memory", "new", "pinned")

    def __init__(self, memory: TensorMemory, batch: int = -1, *, pinned: bool = False) -> None:
        self.memory, self.batch, self.pinned, self.blank = memory, batch, pinned, ""
        self.new = False
        self.block: PinnedBlock | None = None
        self.arrivals: tuple[Arrival, ...] = ()

    def __del__(self) -> None:
        if self.block is not None:  # it comes back when the copies that used it are over (R40)
            self.memory.release(self.block)


Tag = DeviceTag | HostTag


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    """Return the tensor's storage. Raises `NotModelledError` for layouts that have none of their own."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError) as problem:
        raise NotModelledError(
            f"the emulated GPU does not model tensors of layout {tensor.layout} (a {type(tensor).__name__}); "
            "keep them on the CPU, or make them dense with .to_dense() first"
        ) from problem


def seen_outside(tensor: torch.Tensor) -> None:
    """Somebody else may write to a host tensor past torch, or past our modes: from now on it counts as written."""
    if type(tag := tag_of(tensor)) is HostTag:
        tag.blank = ""


def parts_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the dense tensors that hold a tensor's memory: indices and values, what it wraps, or itself.

    A tensor of `torch.func` wraps one more; a subclass with memory in others names them by `__tensor_flatten__`.
    """
    names = ("values",) if tensor.layout is torch.strided and tensor.is_nested else SPARSE.get(tensor.layout)
    if names:
        with internals.DisableTorchDispatch(), torch.no_grad():  # our own question
            return tuple(getattr(tensor, name)() for name in names)
    if internals.is_functorch_wrapped_tensor(tensor):
        return parts_of(internals.get_unwrapped(tensor))
    flatten: Any = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return (tensor,)
    inner = [getattr(tensor, name) for name in flatten()[0]]
    return tuple(part for each in inner if isinstance(each, torch.Tensor) for part in parts_of(each))


def tag_of(tensor: torch.Tensor) -> Any:
    """Return the tensor's `DeviceTag` or `HostTag`, or None; of several parts that of the last, its values."""
    try:
        return getattr(tensor.untyped_storage(), ATTRIBUTE, None)
    except NO_STORAGE:
        return next((tag_of(part) for part in reversed(parts_of(tensor)) if part is not tensor), None)


def set_tag(tensor: torch.Tensor, tag: Tag) -> None:
    """Attach a tag to the tensor's storage."""
    setattr(storage_of(tensor), ATTRIBUTE, tag)


def is_on_device(tensor: Any) -> bool:
    """Tell whether this is a tensor of the emulated device; one that wraps others is where they are."""
    if type(tensor) in PLAIN:
        try:
            return type(getattr(STORAGE(tensor), ATTRIBUTE, None)) is DeviceTag
        except NO_STORAGE:
            return any(is_on_device(part) for part in parts_of(tensor) if part is not tensor)
    if not isinstance(tensor, torch.Tensor):
        return False
    with internals.DisableTorchFunctionSubclass():
        if DECLARED in vars(tensor):
            return True
        parts = parts_of(tensor) if hasattr(tensor, "__tensor_flatten__") else ()
        return any(map(is_on_device, parts)) or type(tag_of(tensor)) is DeviceTag


def any_on_device(values: Iterable[Any]) -> bool:
    """Tell whether one of these values, or of the lists among them, is a tensor of the emulated device."""
    return any(any_on_device(value) if isinstance(value, (list, tuple)) else is_on_device(value) for value in values)


class TensorMemory:
    """The memory side of a `Session`: the two pools, and the tags that join storages and blocks."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.pool, self.pinned = DevicePool(runtime), PinnedPool(runtime)
        self.stream = runtime.default_stream  # the current one
        self.alive = True
        self.recorder: Any = None  # notes what is put into a CUDA graph, while one is captured
        self.irregular = False  # some tensor of the device consists of several, or is nested
        self._released: deque[Any] = deque()  # blocks
        self._rests: DeviceTag | None = None  # of all that gets to the device once nothing is recorded any more

    def place(self, tensor: torch.Tensor, batch: int = -1) -> torch.Tensor:
        """Put a new tensor's storage on the device, in a block of the current stream. Raises torch.OutOfMemoryError."""
        self.give_block(storage_of(tensor), batch)
        return tensor

    def give_block(self, storage: torch.UntypedStorage, batch: int = -1, *, adopts: bool = False) -> DeviceTag:
        """The same, or for a storage that was there before the recording (`adopts`); return the tag."""
        tag = self._rests or DeviceTag(self, self.allocate(storage.nbytes(), adopts=adopts), batch)
        setattr(storage, ATTRIBUTE, tag)
        if self.recorder and not adopts:
            self.recorder.made(storage, tag)
        return tag

    def put(self, tensor: torch.Tensor, *, on_device: bool) -> torch.Tensor:
        """Let a new tensor be on the device, or on the host, when nothing is recorded any more."""
        tag: Any = self._rests if on_device else HostTag(self)
        for part in (tensor,) if type(tensor) in PLAIN and tensor.layout is torch.strided else parts_of(tensor):
            set_tag(part, tag)
        return tensor

    def allocate(self, nbytes: int, *, adopts: bool = False) -> Any:
        """Take a block from the current stream's pool."""
        if self._released:
            self.give_back()
        try:
            return (self.pool.adopt if adopts else self.pool.allocate)(nbytes, self.stream)
        except OutOfMemory as problem:
            raise torch.OutOfMemoryError(str(problem)) from None

    def pin(self, tensor: torch.Tensor, batch: int = -1, blank: str = "") -> torch.Tensor:
        """Give a tensor's storage a pinned block; new ones are page-locked first (R44)."""
        if self._released:
            self.give_back()
        tag = HostTag(self, batch, pinned=True)
        tag.blank = blank or getattr(tag_of(tensor), "blank", "")
        tag.block = self.pinned.allocate(storage_of(tensor).nbytes())
        set_tag(tensor, tag)
        return tensor

    def device_tag(self, tensor: torch.Tensor) -> DeviceTag | None:
        """Return the tensor's tag if it is on the device. A tensor of an earlier recording is taken over as it is."""
        storage = storage_of(tensor)
        tag = getattr(storage, ATTRIBUTE, None)
        if type(tag) is not DeviceTag:
            return None
        return tag if tag.memory is self else self.give_block(storage, adopts=True)

    def host_tag(self, tensor: torch.Tensor) -> HostTag | None:
        """Return the tag of a host tensor, if it has one of this recording (earlier pinned memory is taken over)."""
        tag = getattr(storage_of(tensor), ATTRIBUTE, None)
        if type(tag) is not HostTag or (tag.memory is not self and not tag.pinned):
            return None
        if tag.memory is not self:
            tag = HostTag(self, pinned=True)
            tag.block, _ = self.pinned.allocate_at(storage_of(tensor).nbytes(), self.runtime.now)  # locked long ago
            set_tag(tensor, tag)
        return tag

    def release(self, block: Any) -> None:
        """The storage is gone: its block goes back at the next way in (R35), for garbage may be collected anywhere."""
        if self.alive:
            self._released.append(block)

    def give_back(self) -> None:
        """Return the blocks of storages that are gone to their pools."""
        released = self._released
        while released:
            block = released.popleft()
            block.pool.free(block)
