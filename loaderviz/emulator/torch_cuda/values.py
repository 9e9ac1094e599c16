"""Values: calls that bring a device tensor's values to Python (`numpy`, `tolist`, `print`), or refuse to."""

from __future__ import annotations

from typing import Any

import torch

from loaderviz.emulator.torch_cuda import transfers
from loaderviz.emulator.torch_cuda.handlers import Handlers, is_device
from loaderviz.emulator.torch_cuda.session import Session
from loaderviz.errors import NotModelledError

HANDLERS = Handlers()


@HANDLERS.register(torch.Tensor.numpy)
def _numpy(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    if is_device(args[0]):
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory "
            "first."
        )
    return func(*args, **kwargs)


@HANDLERS.register(torch.Tensor.tolist)
def _tolist(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    return func(_on_host(session, args[0]))


@HANDLERS.register(torch.Tensor.__repr__, torch.Tensor.__format__)
def _repr(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    if not is_device(tensor):
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


@HANDLERS.register(torch.Tensor.__dlpack__, torch.Tensor.__dlpack_device__)
def _dlpack(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    if is_device(args[0]):
        raise NotModelledError("DLPack of a tensor on the emulated GPU is not modelled; copy it with .cpu() first")
    return func(*args, **kwargs)


def _on_host(session: Session, tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    if not is_device(tensor):
        return tensor
    return transfers.to_host(session, tensor, tensor.dtype, False)
