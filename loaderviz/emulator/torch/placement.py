"""Placement: what a call of torch that makes or converts a tensor says of its device, as a GPU's PyTorch does.

Tensors from Python's data, as another one is (`type_as`, `new`), by the old names of types (`torch.cuda.FloatTensor`),
`.to` and its like, and what tensors and storages answer when they are asked where they are. The rules are those of
torch/csrc/utils/tensor_new.cpp and tensor_types.cpp; tests ask PyTorch itself, which has a device "meta" everywhere.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache, partial
from typing import Any

import torch
from torch.utils import _device

from loaderviz.emulator.torch import copies, internals
from loaderviz.emulator.torch.functions import answers, call_with_device, is_faked, is_there, overriding
from loaderviz.emulator.torch.patches import QUESTIONS, Patches, device_named, stands_for
from loaderviz.emulator.torch.session import CPU, DEVICE, ON_HOST, STANDS_FOR_CUDA, Session, wanted_device
from loaderviz.emulator.torch.tensors import (
    AT_REST,
    ATTRIBUTE,
    DECLARED,
    MEMBERS,
    NO_DISPATCH,
    PLAIN,
    SET,
    DeviceTag,
    any_on_device,
    is_on_device,
    tag_of,
)

aten = torch.ops.aten
SPARSE_FACTORIES = {
    getattr(torch, f"sparse_{kind}_tensor") for kind in ("coo", "csr", "csc", "bsr", "bsc", "compressed")
}
NO_FUNCTIONS = internals.DisableTorchFunction  # a block in which no call is the program's
STORAGES = torch.UntypedStorage, torch.TypedStorage
LEGACY: Any = type(torch.FloatTensor)  # the metaclass of the old types
TYPES = {
    f"{kind.__module__}.{kind.__name__}": (DEVICE if kind.is_cuda else CPU, kind.dtype)
    for module in (torch, torch.sparse, torch.cuda, torch.cuda.sparse)
    for kind in vars(module).values()
    if type(kind) is LEGACY and isinstance(kind.dtype, torch.dtype)
}


# Questions about where a tensor is


@answers(torch.device)
def _named_device(session: Session, func: Any, *args: Any, **kwargs: Any) -> torch.device:
    return device_named(*args, **kwargs)


@answers(torch.get_device, *QUESTIONS)
def _place(session: Session, func: Any, input: Any, *args: Any) -> Any:
    return QUESTIONS.get(func, 0) if is_on_device(input) else func(input, *args)


def _install_questions(session: Session, patches: Patches) -> None:
    """Let each tensor answer by itself, also where no mode is: inside what a class or a mode of the program runs.

    A subclass that sees torch's functions is asked first, by way of the mode.
    """

    def asked(getter: Any, there: Any) -> property:
        ask = getter.__get__

        def answer(tensor: torch.Tensor) -> Any:
            if type(tensor) not in PLAIN and overriding((type(tensor),)):
                return ask(tensor)
            with NO_FUNCTIONS():
                if session.aside is ON_HOST and is_there(tensor):
                    return STANDS_FOR_CUDA if there is DEVICE else there
                in_backward = session.aside is AT_REST and internals.current_graph_task_id() >= 0
                return there if is_on_device(tensor) or (in_backward and tag_of(tensor) is None) else ask(tensor)

        return property(answer)

    for name in ("device", "is_cuda", "is_cpu"):
        getter = MEMBERS[name]
        there = QUESTIONS[getter.__get__]
        patches.set(torch.Tensor, name, asked(getter, DEVICE if name == "device" else there))

    @patches.around(torch.Tensor, "data_ptr")
    def data_ptr(ask: Any, tensor: torch.Tensor) -> int:
        with NO_FUNCTIONS():
            if type(tensor) not in PLAIN or not is_on_device(tensor) or session.aside is AT_REST:
                return ask(tensor)  # type: ignore[no-any-return]
            tag: Any = session.device_tag(tensor) if session.in_recording_thread() else tag_of(tensor)
            return tag.block.address + int(tensor.storage_offset()) * tensor.itemsize if tensor.numel() else 0


# Factories


@answers(*_device._device_constructors())
def construct(session: Session, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Where the call says it, else on the default device, or that of the default type, whatever its arguments are."""
    asked = kwargs.get("device")
    device = _device.CURRENT_DEVICE if asked is None else asked
    if func in SPARSE_FACTORIES:
        place, args = _with_parts(session, device, args, 2 if func is torch.sparse_coo_tensor else 3)
    elif device is None and (like := args[1] if func is torch.empty_quantized else kwargs.get("out")) is not None:
        place = _device_of(like)
    else:
        place = session.default_type if device is None else device
    return call_with_device(session, func, args, {**kwargs, "device": place})


def _with_parts(session: Session, device: Any, args: tuple[Any, ...], parts: int) -> tuple[Any, tuple[Any, ...]]:
    """Return where a sparse tensor is made, with its parts there: where the call says it, or else its values are."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if device is None:
        device = _device_of(tensors[-1]) if tensors else session.default_type
        if any(_device_of(tensor) != device for tensor in tensors):
            raise RuntimeError(f"backend of indices must match that of values, which are on {device}")
    if (place := wanted_device(device)).type not in ("cpu", "cuda"):
        return place, args
    made = (torch.as_tensor(it, device=CPU) if isinstance(it, list) else it for it in args[:parts])  # from lists
    args = *made, *args[parts:]
    return place, tuple(move(session, it, place, None, False) if isinstance(it, torch.Tensor) else it for it in args)


# Calls that bring a tensor to the device or back, in all their forms


@answers(torch.Tensor.to)
def _to(
    session: Session, func: Any, given: Any, /, *rest: Any, copy: bool = False, tensor: Any = None, **kwargs: Any
) -> Any:
    asked = list(rest) if tensor is None else [tensor, *rest]
    if asked and isinstance(asked[-1], bool) and sum(isinstance(entry, bool) for entry in asked) == 2:
        copy = asked.pop()  # (device, dtype, non_blocking, copy)
    device, dtype, non_blocking, memory_format = _parse_to(session, internals.parse_to, *asked, **kwargs)
    return move(session, given, device, dtype, non_blocking, copy, memory_format)


@answers(internals.parse_to)
def _parse_to(session: Session, func: Any, *args: Any, **kwargs: Any) -> Any:
    """What `Tensor.to` and `Module.to` were asked for; a CPU build of torch does not take an index for a GPU."""
    if args and type(args[0]) is int:
        args = wanted_device(args[0]), *args[1:]
    if type(kwargs.get("device")) is int:
        kwargs["device"] = wanted_device(kwargs["device"])
    like: Any = args[0] if args else kwargs.get("tensor")
    if is_on_device(like):
        args, kwargs = (DEVICE, like.dtype, *args[1:]), {name: it for name, it in kwargs.items() if name != "tensor"}
    return func(*args, **kwargs)


@answers(torch.Tensor.cuda)
def _cuda(
    session: Session, func: Any, tensor: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = None
) -> Any:
    device = DEVICE if device is None else wanted_device(device)
    if device.type != "cuda":
        raise RuntimeError(f"Invalid device, must be cuda device, got {device}")
    return move(session, tensor, device, None, non_blocking, memory_format=memory_format)


@answers(torch.Tensor.cpu)
def _cpu(session: Session, func: Any, tensor: Any, memory_format: Any = None) -> Any:
    return move(session, tensor, CPU, None, False, memory_format=memory_format)


@answers(torch.Tensor.type_as)
def _type_as(session: Session, func: Any, tensor: Any, other: Any) -> Any:
    return _to(session, torch.Tensor.to, tensor, other)


def move(
    session: Session,
    tensor: torch.Tensor,
    device: torch.device | None,
    dtype: torch.dtype | None,
    non_blocking: bool,
    copy: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """`Tensor.to` with its arguments sorted out."""
    here = is_on_device(tensor)
    device = wanted_device(device) if device is not None else None
    options: dict[str, Any] = {"dtype": dtype or tensor.dtype, "copy": copy}
    if memory_format is not None:
        options["memory_format"] = memory_format
    if device is None or device == (DEVICE if here else tensor.device):
        return tensor.to(**options)
    if tensor.is_meta or device.type not in ("cpu", "cuda"):
        return tensor.to(CPU if device.type == "cuda" else device, **options)
    if type(tensor).__torch_dispatch__ is not NO_DISPATCH:  # its own class runs operators: it asks for its parts
        with session.placing(device):
            return aten._to_copy.default(  # type: ignore[no-any-return]
                tensor, dtype=dtype, device=device, non_blocking=non_blocking, memory_format=memory_format
            )
    session.enter("Tensor.to")
    if tensor.requires_grad and torch.is_grad_enabled():
        result: torch.Tensor = Moved.apply(tensor, session, options["dtype"], non_blocking)  # type: ignore[no-untyped-call]
    else:
        result = copies.transfer(session, tensor.detach(), options["dtype"], non_blocking)
    if memory_format is not None and memory_format is not torch.preserve_format:
        result = result.contiguous(memory_format=memory_format)
    session.leave()
    return result


class Moved(torch.autograd.Function):
    """A copy between host and device that gradients flow back through."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, session: Session, dtype: torch.dtype, non_blocking: bool) -> Any:
        """Copy to the other side."""
        ctx.session, ctx.dtype, ctx.non_blocking = session, tensor.dtype, non_blocking
        ctx.upload = not is_on_device(tensor)
        return copies.transfer(session, tensor.detach(), dtype, non_blocking)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Copy the gradient back."""
        if ctx.session.aside is AT_REST:  # where nobody has said where it is
            ctx.session.put(gradients[0], on_device=ctx.upload)
        return copies.transfer(ctx.session, gradients[0], ctx.dtype, ctx.non_blocking), None, None, None


@answers(aten._to_copy.default)
def _to_copy(
    session: Session,
    func: Any,
    tensor: Any,
    *,
    device: Any = None,
    dtype: Any = None,
    non_blocking: bool = False,
    **kwargs: Any,
) -> Any:
    kwargs = {name: value for name, value in kwargs.items() if name == "memory_format"}
    return move(session, tensor, device, dtype, non_blocking, copy=True, **kwargs)


# Data from Python or numpy: made on the CPU, then copied (pageable and blocking)


@answers(torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor)
def _from_data(
    session: Session, func: Any, *args: Any, device: Any = None, pin_memory: bool = False, **kwargs: Any
) -> Any:
    template = args[0] if func is torch.Tensor.new_tensor else None
    given = next(iter(args[template is not None :]), kwargs.get("data", kwargs.get("obj")))
    if device is None:  # where its template is, on the default device, where it is itself, or as the default type
        default, like = CPU if func is torch.asarray else session.default_type, given if template is None else template
        device = (_device.CURRENT_DEVICE if template is None else None) or _device_of(like, default)
    place = wanted_device(device)
    if place.type not in ("cpu", "cuda"):
        return func(*args, **kwargs, device=place)
    if kwargs.get("copy") is False and place != _device_of(given):
        raise ValueError(f"can't alias data on {_device_of(given)} on device '{place}'.")
    if isinstance(given, torch.Tensor):
        return _from_tensor(session, func, given, place, template, **kwargs)
    requires_grad = kwargs.pop("requires_grad", False)
    first = given
    while isinstance(first, (list, tuple)) and first:  # of nested lists
        first = first[0]
    with nullcontext() if is_on_device(first) else session.bookkeeping():  # each is read back by itself (R25)
        result = func(*args, **kwargs, device=CPU)
        if isinstance(given, (list, tuple)):
            session.host_list(f"torch.{func.__name__}", session.runtime.host.list_time(result.numel()))
        elif result.dim() and func not in (torch.as_tensor, torch.asarray):  # which share what numpy has
            session.host_operator(f"torch.{func.__name__}", 2 * result.nbytes)
        elif result.dim():
            session.outside(f"torch.{func.__name__}", result.nbytes)
        if pin_memory:
            session.pin(result)
    if place.type == "cuda":
        result = move(session, result, place, None, False)
    return result.requires_grad_() if requires_grad else result


def _device_of(value: Any, default: torch.device = CPU) -> torch.device:
    if isinstance(value, torch.Tensor):
        return DEVICE if is_on_device(value) else value.device
    return default


def _from_tensor(
    session: Session,
    func: Any,
    given: torch.Tensor,
    place: torch.device,
    template: Any,
    *,
    dtype: torch.dtype | None = None,
    requires_grad: bool = False,
    copy: bool | None = None,
    **_: Any,
) -> torch.Tensor:
    if func is torch.as_tensor:
        return move(session, given, place, dtype, False)
    if func is torch.asarray:
        result = move(session, given.detach(), place, dtype, False, bool(copy))
    else:
        name = "torch.tensor" if template is None else "tensor.new_tensor"
        session.warn(
            "To copy construct from a tensor, it is recommended to use sourceTensor.detach().clone() or "
            f"sourceTensor.detach().clone().requires_grad_(True), rather than {name}(sourceTensor)."
        )
        dtype = dtype or (None if template is None else template.dtype)
        result = move(session, given.detach(), place, dtype, False, copy=True)
    return result.requires_grad_() if requires_grad else result


# Types by their old names


def _type_of(session: Session, kind: Any) -> tuple[torch.device, torch.dtype]:
    """Return device and dtype of an old type or its name; of `torch.Tensor` the default. Raises ValueError."""
    name = str(kind) if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
    if name == "torch.Tensor":
        return session.default_type, torch.get_default_dtype()
    if name not in TYPES:
        raise ValueError(f"invalid type: '{name}'")
    return TYPES[name]


@answers(torch.Tensor.type)
def _type(session: Session, func: Any, tensor: Any, dtype: Any = None, non_blocking: bool = False, **more: Any) -> Any:
    if dtype is None:
        name = func(tensor)
        return name.replace("torch.", "torch.cuda.") if is_on_device(tensor) else name
    if isinstance(dtype, torch.dtype):
        return move(session, tensor, None, dtype, non_blocking, **more)
    return move(session, tensor, *_type_of(session, dtype), non_blocking, **more)


@answers(torch.Tensor.new)
def _new(session: Session, func: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    here = is_on_device(tensor)
    if tensor.layout is not torch.strided or not (here or any_on_device(args)):
        return func(tensor, *args, **kwargs)
    return _made(session, tensor.type(), DEVICE if here else CPU, tensor.dtype, args, kwargs)


def _made(
    session: Session, name: str, place: torch.device, dtype: torch.dtype, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.Tensor:
    """Make what the constructor of an old type would: of sizes, data, a storage, or a tensor of that very type."""
    device, sizes = kwargs.get("device"), kwargs.get("size", args)
    given = args[0] if args else kwargs.get("data", kwargs.get("other"))
    with NO_FUNCTIONS():  # we are the mode
        if isinstance(given, torch.Tensor):
            if device is not None:
                raise RuntimeError(f"{name}(tensor, device=device) is not supported. Use torch.as_tensor(...) instead.")
            if _device_of(given) != place or given.dtype is not dtype:
                raise TypeError(f"expected a {name} (got {given.dtype} on {_device_of(given)})")
            return aten.alias.default(given)  # type: ignore[no-any-return]
        if device is not None and wanted_device(device).type != place.type:
            raise RuntimeError(
                f"legacy constructor expects device type: {place.type} but device type: {device} was passed"
            )
        if isinstance(given, STORAGES):
            return _of_storage(place, dtype, given)
        if isinstance(given, torch.Size) or all(isinstance(size, int) for size in sizes):
            sizes = given if isinstance(given, torch.Size) else sizes or (0,)
            return construct(session, torch.empty, sizes, dtype=dtype, device=place)  # type: ignore[no-any-return]
        if isinstance(given, (float, complex)):
            raise TypeError(f"new(): data must be a sequence (got {type(given).__name__})")
        return _from_data(session, torch.as_tensor, given, dtype=dtype, device=place)  # type: ignore[no-any-return]


def _storage(given: Any) -> torch.UntypedStorage:
    return getattr(given, "_untyped_storage", given)  # type: ignore[no-any-return]


def _of_storage(place: torch.device, dtype: torch.dtype, storage: Any) -> torch.Tensor:
    _check_storage(place, _storage(storage).device)
    with internals.DisableTorchDispatch():
        return SET(torch.empty(0, dtype=dtype), _storage(storage))


def _check_storage(place: torch.device, source: torch.device) -> None:
    """Raise RuntimeError if a tensor on one device is to have a storage on another."""
    if source.type != place.type:
        raise RuntimeError(
            f'Attempted to set the storage of a tensor on device "{place}" to a storage on different device '
            f'"{source}".  This is no longer allowed; the devices must match.'
        )


@answers(MEMBERS["grad"].__set__)
def _set_grad(session: Session, func: Any, tensor: Any, grad: Any) -> None:
    if isinstance(grad, torch.Tensor) and _device_of(grad) != _device_of(tensor):
        raise RuntimeError("assigned grad has data located on a different device")
    func(tensor, grad)


def install_types(session: Session, patches: Patches) -> None:
    """Put in place what never comes to the mode: the old types, `torch.Tensor(…)`, storages, subclasses."""
    classes = set(torch._tensor_classes)
    for module in (torch, torch.sparse, torch.cuda, torch.cuda.sparse):
        for name, kind in list(vars(module).items()):
            if type(kind) is LEGACY:
                classes.add(stand_in := _legacy_type(kind))
                patches.function(module, name, stand_in)
    patches.set(torch, "_tensor_classes", classes)
    patches.around(torch.Tensor, "__new__")(partial(_new_tensor, session))
    patches.set(internals.C, "_get_default_device", lambda: session.default_type.type)

    @patches.around(torch, "set_default_tensor_type")
    def set_default_tensor_type(choose: Any, kind: Any) -> None:
        device, dtype = _type_of(session, kind)
        torch.set_default_dtype(dtype)
        session.default_type = device

    @patches.around(torch, "range")  # it has no way to a mode
    def range_(make: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        device = session.default_type if kwargs.get("device") is None else kwargs["device"]
        result: torch.Tensor = call_with_device(session, make, args, {**kwargs, "device": device})
        return result

    @patches.around(torch.Tensor, "_make_wrapper_subclass")
    def make_wrapper_subclass(make: Any, *args: Any, **kwargs: Any) -> Any:
        named = (*(each for each in args if isinstance(each, (torch.device, str))), kwargs.get("device"))[0]
        if is_faked() or named is None or wanted_device(named).type != "cuda":
            return make(*args, **kwargs)
        args = tuple(CPU if each is named else each for each in args)
        result = make(*args, **kwargs | ({"device": CPU} if "device" in kwargs else {}))
        setattr(result, DECLARED, True)
        return result

    @patches.around(internals.nested, "nested_tensor")
    def nested_tensor(make: Any, data: Any, *args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        result = make(data, *args, device=None if device is None else CPU, **kwargs)
        return result if device is None else move(session, result, wanted_device(device), None, False)

    _install_questions(session, patches)
    _install_storages(session, patches)


def _new_tensor(session: Session, make: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.Tensor(…)`, of the default type; the same for its subclasses, which have no constructor of their own."""
    given = args[0] if args else None
    if isinstance(given, STORAGES):
        result = _of_storage(session.default_type, torch.get_default_dtype(), given)
    elif session.default_type is CPU or isinstance(given, torch.Tensor):
        result = make(torch.Tensor, *args, **kwargs)
    else:
        result = _made(session, "torch.Tensor", DEVICE, torch.get_default_dtype(), args, kwargs)
    return result if cls is torch.Tensor else torch.Tensor._make_subclass(cls, result)


class LegacyTensorType(type):
    """The metaclass of what stands in for the old types."""

    kind: Any
    place: torch.device

    def __instancecheck__(cls, instance: Any) -> bool:
        kind, session = cls.kind, Session.active
        if session is None or not session.alive or not isinstance(instance, torch.Tensor):
            return isinstance(instance, kind)
        same = instance.dtype is kind.dtype and instance.layout is kind.layout
        return same and _device_of(instance).type == cls.place.type


@cache
def _legacy_type(kind: Any) -> Any:
    """Return what stands in for `torch.cuda.FloatTensor`, `torch.FloatTensor`, or their like, in every recording."""
    name, sparse = f"{kind.__module__}.{kind.__name__}", kind.layout is not torch.strided
    place = DEVICE if kind.is_cuda else CPU

    @stands_for(kind)
    class Legacy(metaclass=LegacyTensorType):
        dtype, layout, is_cuda, is_sparse = kind.dtype, kind.layout, kind.is_cuda, sparse
        stands_alone = True

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            session = Session.active
            if (
                session is None
                or not session.alive
                or (not kind.is_cuda and not any(isinstance(it, (torch.Tensor, *STORAGES)) for it in args))
            ):
                return kind(*args, **kwargs)
            if not sparse:
                return _made(session, name, place, kind.dtype, args, kwargs)
            if args and isinstance(args[0], torch.Tensor):
                return torch.sparse_coo_tensor(*args, dtype=kind.dtype, device=place)
            return copies.SPARSE_COO(args or (0,), dtype=kind.dtype, device=place)

    Legacy.kind, Legacy.place = kind, place
    return Legacy


# Storages


def _install_storages(session: Session, patches: Patches) -> None:
    kind, real = torch.UntypedStorage, torch.UntypedStorage.data_ptr

    def tag(storage: Any) -> Any:
        found = None if session.aside is ON_HOST else getattr(storage, ATTRIBUTE, None)
        return found if type(found) is DeviceTag else None

    def make(original: Any, cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        place = None if device is None else wanted_device(device)
        if place is None or place.type != "cuda":
            return original(cls, *args, device=device, **kwargs)
        with session.calling("torch.UntypedStorage"):
            storage = original(cls, *args, **kwargs)
            session.give_block(storage)
        return storage

    here = vars(internals.StorageBase)["device"].__get__

    @patches.around(torch.Tensor, "set_")  # it does not come to the mode
    def set_(replace: Any, tensor: Any, source: Any = None, *args: Any, **kwargs: Any) -> Any:
        if source is not None:
            is_storage = isinstance(source, STORAGES)
            _check_storage(_device_of(tensor), _storage(source).device if is_storage else _device_of(source))
        return replace(tensor, *(() if source is None else (source,)), *args, **kwargs)

    patches.around(kind, "is_shared")(lambda ask, storage: tag(storage) is not None or ask(storage))
    answers = {
        "device": property(lambda storage: DEVICE if tag(storage) else here(storage)),
        "is_cuda": property(lambda storage: storage.device.type == "cuda"),
        "data_ptr": lambda storage: found.block.address if (found := tag(storage)) else real(storage),
    }
    patches.set_all(kind, answers)
    patches.around(kind, "__new__")(make)
