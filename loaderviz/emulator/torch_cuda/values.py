"""Values: calls that bring a device tensor's values to Python, or refuse to; `print` comes down to these."""

from __future__ import annotations

from typing import Any

import torch

from loaderviz.emulator.torch_cuda import transfers
from loaderviz.emulator.torch_cuda.handlers import Handlers, is_device
from loaderviz.emulator.torch_cuda.session import Session

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
    return func(_on_host(session, args[0], "Tensor.tolist"))


def _on_host(session: Session, tensor: torch.Tensor, call: str) -> torch.Tensor:
    tensor = tensor.detach()
    if not is_device(tensor):
        if session.touched:
            session.touched.host_read(tensor, call)
        return tensor
    return transfers.to_host(session, tensor, tensor.dtype, False)
