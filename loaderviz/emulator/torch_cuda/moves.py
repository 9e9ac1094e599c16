"""Moves: calls that bring a tensor to the device or back, in all their forms, and data from Python."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _device

from loaderviz.emulator.torch_cuda import transfers
from loaderviz.emulator.torch_cuda.handlers import TYPES, Handlers, is_device
from loaderviz.emulator.torch_cuda.session import CPU, DEVICE, Session, wanted_device
from loaderviz.errors import NotModelledError

HANDLERS = Handlers()


@HANDLERS.register(torch.Tensor.to)
def _to(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    tensor, *rest = args
    kwargs = dict(kwargs)
    copy = kwargs.pop("copy", False)
    other = kwargs.pop("tensor", None)
    if rest and isinstance(rest[0], torch.Tensor):
        other, *rest = rest
    if other is not None:
        rest = [DEVICE if is_device(other) else other.device, other.dtype, *rest]
    if rest and isinstance(rest[-1], bool) and sum(isinstance(entry, bool) for entry in rest) == 2:
        copy = rest.pop()  # (device, dtype, non_blocking, copy)
    if rest and isinstance(rest[0], int) and not isinstance(rest[0], bool):
        rest[0] = wanted_device(rest[0])
    if isinstance(kwargs.get("device"), int):
        kwargs["device"] = wanted_device(kwargs["device"])
    device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*rest, **kwargs)
    return move(session, tensor, device, dtype, non_blocking, copy, memory_format)


@HANDLERS.register(torch.Tensor.cuda)
def _cuda(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    device = args[1] if len(args) > 1 else kwargs.get("device")
    non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
    device = DEVICE if device is None else wanted_device(device)
    if device.type != "cuda":
        raise ValueError(f"Tensor.cuda(): a CUDA device is expected, got {device}")
    return move(session, args[0], device, None, non_blocking, False, kwargs.get("memory_format"))


@HANDLERS.register(torch.Tensor.cpu)
def _cpu(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    return move(session, args[0], CPU, None, False, False, kwargs.get("memory_format"))


def move(
    session: Session, tensor: torch.Tensor, device: torch.device | None, dtype: torch.dtype | None, non_blocking: bool,
    copy: bool = False, memory_format: torch.memory_format | None = None,
) -> torch.Tensor:  # fmt: skip
    """`Tensor.to` with its arguments sorted out."""
    here = is_device(tensor)
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
    across = transfers.to_host if is_device(tensor) else transfers.to_device
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


@HANDLERS.register(torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor)
def _from_data(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    """Data from Python or numpy: made on the CPU, then copied (pageable and blocking)."""
    kwargs = dict(kwargs)
    asked, pin = kwargs.pop("device", None), kwargs.pop("pin_memory", False)
    data = args[1] if func is torch.Tensor.new_tensor and len(args) > 1 else args[0] if args else kwargs.get("data")
    if asked is None:
        if func is torch.Tensor.new_tensor:
            asked = DEVICE if is_device(args[0]) else CPU
        elif isinstance(data, torch.Tensor) and func is not torch.tensor:
            asked = DEVICE if is_device(data) else CPU
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


@HANDLERS.register(torch.Tensor.type)
def _type(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    wanted = args[1] if len(args) > 1 else kwargs.get("dtype")
    if wanted is None:
        return f"torch.cuda.{TYPES[args[0].dtype]}" if is_device(args[0]) else func(*args)
    if isinstance(wanted, torch.dtype):
        return move(session, args[0], None, wanted, False)
    raise NotModelledError(f"Tensor.type({wanted!r}) is not modelled; use .to(device, dtype)")


@HANDLERS.register(torch.ctc_loss)
def _ctc_loss(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    """The lengths may be on the CPU; the mean over them is taken on the device, and torch copies them there."""
    log_probabilities, targets, *rest = args
    if is_device(log_probabilities):
        rest = [move(session, entry, DEVICE, None, False) if type(entry) is torch.Tensor else entry for entry in rest]
    return func(log_probabilities, targets, *rest, **kwargs)
