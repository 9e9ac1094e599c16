"""Functions: calls that name a device, and questions about one, answered by a `TorchFunctionMode`.

A CPU build of torch would refuse `.to("cuda")` before any operator runs. This mode sees the call first, takes the
device out of it, and says where the result belongs.
"""

from __future__ import annotations

from typing import Any

from torch.overrides import TorchFunctionMode
from torch.utils import _device

from loaderviz.emulator.torch_cuda import handlers, moves, values
from loaderviz.emulator.torch_cuda.guard import touches_device
from loaderviz.emulator.torch_cuda.session import CPU, Session, wanted_device

HANDLERS = handlers.HANDLERS | moves.HANDLERS | values.HANDLERS


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
        operators = self.session.resting
        if operators is None:
            return self._call(func, args, kwargs or {})
        if _device.CURRENT_DEVICE is None and not touches_device(func, args, kwargs):
            return func(*args, **(kwargs or {}))
        self.session.resting = None
        try:
            with operators:
                return self._call(func, args, kwargs or {})
        finally:
            self.session.resting = operators

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        session = self.session
        before, session.call = session.call, (args, kwargs)
        try:
            return self._run(func, args, kwargs)
        finally:
            session.call = before

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        handler = HANDLERS.get(func)
        if handler is not None:
            return handler(self.session, func, args, kwargs)
        if kwargs and ("device" in kwargs or "pin_memory" in kwargs):
            return call_with_device(self.session, func, args, kwargs)
        if _device.CURRENT_DEVICE is not None and func in self._constructors:
            return call_with_device(self.session, func, args, {**kwargs, "device": _device.CURRENT_DEVICE})
        return func(*args, **kwargs)


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
