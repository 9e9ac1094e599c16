"""Handlers: what answers a torch function in place of torch; first of all, questions about where a tensor is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from loaderviz.emulator.torch_cuda.session import DEVICE, Session
from loaderviz.emulator.torch_cuda.tags import is_on_device

Handler = Callable[[Session, Any, tuple[Any, ...], dict[str, Any]], Any]
TYPES = {
    torch.float32: "FloatTensor", torch.float64: "DoubleTensor", torch.float16: "HalfTensor",
    torch.bfloat16: "BFloat16Tensor", torch.uint8: "ByteTensor", torch.int8: "CharTensor",
    torch.int16: "ShortTensor", torch.int32: "IntTensor", torch.int64: "LongTensor", torch.bool: "BoolTensor",
}  # fmt: skip


class Handlers(dict[Any, Handler]):
    """Handlers by the torch function that they stand in for."""

    def register(self, *functions: Any) -> Callable[[Handler], Handler]:
        """Return a decorator that makes a handler answer these functions."""

        def note(handler: Handler) -> Handler:
            self.update(dict.fromkeys(functions, handler))
            return handler

        return note


HANDLERS = Handlers()


def is_device(tensor: Any) -> bool:
    """Tell whether this is a tensor of the emulated device."""
    return isinstance(tensor, torch.Tensor) and is_on_device(tensor)


@HANDLERS.register(torch.Tensor.device.__get__)
def _device_of(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    return DEVICE if is_device(args[0]) else func(*args)


@HANDLERS.register(torch.Tensor.is_cuda.__get__)  # type: ignore[attr-defined]
def _is_cuda(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    return is_device(args[0]) or func(*args)


@HANDLERS.register(torch.Tensor.is_cpu.__get__)  # type: ignore[attr-defined]
def _is_cpu(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    return not is_device(args[0]) and func(*args)


@HANDLERS.register(torch.Tensor.get_device, torch.get_device)
def _get_device(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    return 0 if is_device(args[0] if args else kwargs["input"]) else func(*args, **kwargs)
