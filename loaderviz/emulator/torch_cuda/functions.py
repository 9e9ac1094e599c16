"""Functions: calls that name a device, and questions about one, answered by a `TorchFunctionMode`.

A CPU build of torch would refuse `.to("cuda")` before any operator runs. This mode sees the call first, takes the
device out of it, and says where the result belongs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _device

from loaderviz.emulator.torch_cuda import transfers
from loaderviz.emulator.torch_cuda.session import CPU, DEVICE, Session, wanted_device
from loaderviz.emulator.torch_cuda.tags import is_on_device, set_tag
from loaderviz.errors import NotModelledError

Handler = Callable[[Session, Any, tuple[Any, ...], dict[str, Any]], Any]
HANDLERS: dict[Any, Handler] = {}
TYPES = {
    torch.float32: "FloatTensor", torch.float64: "DoubleTensor", torch.float16: "HalfTensor",
    torch.bfloat16: "BFloat16Tensor", torch.uint8: "ByteTensor", torch.int8: "CharTensor",
    torch.int16: "ShortTensor", torch.int32: "IntTensor", torch.int64: "LongTensor", torch.bool: "BoolTensor",
}  # fmt: skip


class Functions(TorchFunctionMode):
    """The mode that sees every torch function while a recording runs."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self._constructors = _device._device_constructors()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function: by its handler, as a call with a `device`, or as it is."""
        handler = HANDLERS.get(func)
        if handler is not None:
            return handler(self.session, func, args, kwargs or {})
        if kwargs and ("device" in kwargs or "pin_memory" in kwargs):
            return call_with_device(self.session, func, args, kwargs)
        if _device.CURRENT_DEVICE is not None and func in self._constructors:
            return call_with_device(self.session, func, args, {**(kwargs or {}), "device": _device.CURRENT_DEVICE})
        return func(*args, **(kwargs or {}))


def call_with_device(session: Session, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a factory (`torch.zeros`, `x.new_empty`, …) and put its result where it was asked for."""
    kwargs = dict(kwargs)
    pin = kwargs.pop("pin_memory", False)
    asked = kwargs.get("device")
    device = None if asked is None else wanted_device(asked)
    if device is not None and device.type not in ("cpu", "cuda"):
        result = func(*args, **kwargs)  # "meta" and others are none of our business
        return session.pin(result) if pin else result
    if pin and (device or CPU).type == "cuda":
        raise RuntimeError("Only dense CPU tensors can be pinned")
    if device is not None:
        kwargs["device"] = CPU
    before, session.target = session.target, device
    try:
        result = func(*args, **kwargs)
    finally:
        session.target = before
    if pin:
        with session.bookkeeping():
            session.pin(result)
    return result


def handles(*functions: Any) -> Callable[[Handler], Handler]:
    """Register a handler for these functions."""

    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(functions, handler))
        return handler

    return register


def is_device(session: Session, tensor: Any) -> bool:
    """Tell whether this is a tensor of the emulated device."""
    return isinstance(tensor, torch.Tensor) and is_on_device(tensor)


# Questions


@handles(torch.Tensor.device.__get__)  # type: ignore[attr-defined]
def _device_of(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    return DEVICE if is_device(session, args[0]) else func(*args)


@handles(torch.Tensor.is_cuda.__get__)  # type: ignore[attr-defined]
def _is_cuda(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    return is_device(session, args[0]) or func(*args)


@handles(torch.Tensor.is_cpu.__get__)  # type: ignore[attr-defined]
def _is_cpu(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    return not is_device(session, args[0]) and func(*args)


@handles(torch.Tensor.get_device, torch.get_device)
def _get_device(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    return 0 if is_device(session, args[0] if args else kwargs["input"]) else func(*args, **kwargs)


@handles(torch.Tensor.is_shared)
def _is_shared(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    return is_device(session, args[0]) or func(*args)


@handles(torch.Tensor.share_memory_)
def _share_memory(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    return args[0] if is_device(session, args[0]) else func(*args)


@handles(torch.Tensor.type)
def _type(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    wanted = args[1] if len(args) > 1 else kwargs.get("dtype")
    if wanted is None:
        return f"torch.cuda.{TYPES[args[0].dtype]}" if is_device(session, args[0]) else func(*args)
    if isinstance(wanted, torch.dtype):
        return move(session, args[0], None, wanted, False)
    raise NotModelledError(f"Tensor.type({wanted!r}) is not modelled; use .to(device, dtype)")


# To and fro


@handles(torch.Tensor.to)
def _to(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    tensor, *rest = args
    kwargs = dict(kwargs)
    copy = kwargs.pop("copy", False)
    other = kwargs.pop("other", None)
    if rest and isinstance(rest[0], torch.Tensor):
        other, *rest = rest
    if other is not None:
        rest = [DEVICE if is_device(session, other) else other.device, other.dtype, *rest]
    if rest and isinstance(rest[-1], bool) and sum(isinstance(entry, bool) for entry in rest) == 2:
        copy = rest.pop()  # (device, dtype, non_blocking, copy)
    if rest and isinstance(rest[0], int) and not isinstance(rest[0], bool):
        rest[0] = wanted_device(rest[0])
    if isinstance(kwargs.get("device"), int):
        kwargs["device"] = wanted_device(kwargs["device"])
    device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*rest, **kwargs)
    return move(session, tensor, device, dtype, non_blocking, copy, memory_format)


@handles(torch.Tensor.cuda)
def _cuda(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    device = args[1] if len(args) > 1 else kwargs.get("device")
    non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
    device = DEVICE if device is None else wanted_device(device)
    if device.type != "cuda":
        raise ValueError(f"Tensor.cuda(): a CUDA device is expected, got {device}")
    return move(session, args[0], device, None, non_blocking, False, kwargs.get("memory_format"))


@handles(torch.Tensor.cpu)
def _cpu(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    return move(session, args[0], CPU, None, False, False, kwargs.get("memory_format"))


def move(
    session: Session, tensor: torch.Tensor, device: torch.device | None, dtype: torch.dtype | None, non_blocking: bool,
    copy: bool = False, memory_format: torch.memory_format | None = None,
) -> torch.Tensor:  # fmt: skip
    """`Tensor.to` with its arguments sorted out."""
    here = is_device(session, tensor)
    device = wanted_device(device) if device is not None else None
    options: dict[str, Any] = {"dtype": dtype or tensor.dtype, "copy": copy}
    if memory_format is not None:
        options["memory_format"] = memory_format
    if device is None or device.type == ("cuda" if here else "cpu"):
        return tensor.to(**options)
    if device.type not in ("cpu", "cuda"):
        return tensor.to(device, **options)
    session.enter("Tensor.to")
    if tensor.requires_grad and torch.is_grad_enabled():
        result: torch.Tensor = Moved.apply(tensor, session, options["dtype"], non_blocking)  # type: ignore[no-untyped-call]
    else:
        result = _transfer(session, tensor.detach(), options["dtype"], non_blocking)
    if memory_format is not None and memory_format is not torch.preserve_format:
        result = result.contiguous(memory_format=memory_format)
    session.leave()
    return result


def _transfer(session: Session, tensor: torch.Tensor, dtype: torch.dtype, non_blocking: bool) -> torch.Tensor:
    across = transfers.to_host if is_device(session, tensor) else transfers.to_device
    return across(session, tensor, dtype, non_blocking)


class Moved(torch.autograd.Function):
    """A copy between host and device that gradients flow back through."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, session: Session, dtype: torch.dtype, non_blocking: bool) -> Any:
        """Copy to the other side."""
        ctx.session, ctx.dtype, ctx.non_blocking = session, tensor.dtype, non_blocking
        return _transfer(session, tensor.detach(), dtype, non_blocking)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Copy the gradient back."""
        return _transfer(ctx.session, gradients[0], ctx.dtype, ctx.non_blocking), None, None, None


@handles(torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor)
def _from_data(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    """Data from Python or numpy: made on the CPU, then copied (pageable and blocking)."""
    kwargs = dict(kwargs)
    asked, pin = kwargs.pop("device", None), kwargs.pop("pin_memory", False)
    data = args[1] if func is torch.Tensor.new_tensor and len(args) > 1 else args[0] if args else kwargs.get("data")
    if asked is None:
        if func is torch.Tensor.new_tensor:
            asked = DEVICE if is_device(session, args[0]) else CPU
        elif isinstance(data, torch.Tensor) and func is not torch.tensor:
            asked = DEVICE if is_device(session, data) else CPU
        else:
            asked = _device.CURRENT_DEVICE or CPU
    device = wanted_device(asked)
    if func in (torch.as_tensor, torch.asarray) and isinstance(data, torch.Tensor):
        return move(session, data, device, kwargs.get("dtype"), False, bool(kwargs.get("copy")))
    requires_grad = kwargs.pop("requires_grad", False)
    with session.bookkeeping():
        result = func(*args, **kwargs, device=CPU)
        if pin:
            session.pin(result)
    if device.type == "cuda":
        result = move(session, result, device, None, False)
    return result.requires_grad_() if requires_grad else result


# What brings values to the host


@handles(torch.Tensor.numpy)
def _numpy(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    if is_device(session, args[0]):
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory "
            "first."
        )
    return func(*args, **kwargs)


@handles(torch.Tensor.tolist)
def _tolist(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    return func(_on_host(session, args[0]))


@handles(torch.Tensor.__repr__, torch.Tensor.__format__)
def _repr(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    if not is_device(session, tensor):
        with session.bookkeeping():
            return func(*args, **kwargs)
    host = _on_host(session, tensor)
    with session.bookkeeping():
        if isinstance(tensor, torch.nn.Parameter):
            host = torch.nn.Parameter(host, requires_grad=tensor.requires_grad)
        elif tensor.requires_grad and tensor.grad_fn is None:
            host.requires_grad_()
        text: str = func(host, *args[1:], **kwargs)
        if func is torch.Tensor.__format__ and tensor.dim() == 0:
            return text
        text, tail = text.rsplit(")", 1)
        if tensor.grad_fn is not None:
            tail = f", grad_fn=<{tensor.grad_fn.name()}>" + ")" + tail
            return f"{text}, device='cuda:0'{tail}"
        for mark in (", requires_grad=True", ", dtype="):
            if mark in text:
                head, rest = text.rsplit(mark, 1)
                return f"{head}, device='cuda:0'{mark}{rest}){tail}"
        return f"{text}, device='cuda:0'){tail}"


@handles(torch.Tensor.__dlpack__, torch.Tensor.__dlpack_device__)
def _dlpack(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    if is_device(session, args[0]):
        raise NotModelledError("DLPack of a tensor on the emulated GPU is not modelled; copy it with .cpu() first")
    return func(*args, **kwargs)


def _on_host(session: Session, tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    if not is_device(session, tensor):
        return tensor
    return transfers.to_host(session, tensor, tensor.dtype, False)


# Methods that never reach the mode, set on the class while a recording runs


def pin_memory_method(session: Session, original: Any) -> Any:
    """Return what stands in for `Tensor.pin_memory`: also called by the DataLoader's pin thread."""

    def pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        """Copy the tensor to pinned memory, if it is not pinned yet."""
        if is_on_device(tensor):
            raise RuntimeError(f"cannot pin 'torch.cuda.{TYPES[tensor.dtype]}' only dense CPU tensors can be pinned")
        transfers.check_layout(tensor)
        if session.in_pin_thread():
            from loaderviz.emulator.torch_cuda.tags import HostTag

            copy = tensor.clone(memory_format=torch.contiguous_format)
            set_tag(copy, HostTag(session, pinned=True))  # its block is given at hand-out, by the main thread
            return copy
        session.enter("Tensor.pin_memory")
        with torch._C.DisableTorchFunction():
            result = transfers.pin_memory(session, tensor.detach())
        session.leave()
        return result

    return pin_memory


def is_pinned_method(session: Session, original: Any) -> Any:
    """Return what stands in for `Tensor.is_pinned`."""

    def is_pinned(tensor: torch.Tensor, device: Any = None) -> bool:
        """Tell whether the tensor is in pinned memory."""
        with torch._C.DisableTorchFunction():
            if tensor.layout is not torch.strided or is_on_device(tensor):
                return False
            tag = session.host_tag(tensor)
        return bool(tag and tag.pinned)

    return is_pinned


def record_stream_method(session: Session, original: Any) -> Any:
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
