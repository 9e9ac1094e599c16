"""Functions: every function and method of torch that a program calls, seen by a `TorchFunctionMode`.

A CPU build of torch would refuse `.to("cuda")` before any operator runs. This mode sees the call first, takes the
device out of it, and says where the result belongs. What it does itself instead stands in `HANDLERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _device
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from loaderviz.emulator.torch import internals
from loaderviz.emulator.torch.patches import QUESTIONS, Disguised, Guard, device_named
from loaderviz.emulator.torch.session import CPU, DEVICE, ON_HOST, STANDS_FOR_CUDA, Session, wanted_device
from loaderviz.emulator.torch.tensors import AT_REST, MEMBERS, any_on_device, is_on_device, tag_of

Handler = Callable[..., Any]  # of the session, the torch function, and what that was called with
HANDLERS: dict[Any, Handler] = {}  # by the torch function that they answer in place of torch
# What an optimizer asks of each parameter: no operator comes of it
GETTERS = {MEMBERS[name].__get__ for name in ("grad", "is_sparse", "requires_grad", "is_leaf", "dtype")}
GRADIENT = MEMBERS["grad"].__get__
HOST_OUTPUTS = {"_pack_padded_sequence": 1, "_pad_packed_sequence": 1}  # which result belongs on the host
NOT_ASKED = {torch.Tensor, torch.nn.Parameter, type(None), list, tuple, int, float, bool, str}  # types without override
NO_OVERRIDE = internals.disabled_torch_function_impl  # what a class says that wants none, as `Parameter` does
STAND_IN = "_loaderviz_stand_in"  # of a tensor that is on the CPU where nothing is emulated, for one of the GPU
modes = internals.len_torch_dispatch_stack


def names(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


def answers(*functions: Any) -> Callable[[Handler], Handler]:
    """Return a decorator that makes a handler answer these torch functions."""

    def note(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(functions, handler))
        return handler

    return note


class Functions(TorchFunctionMode):
    """The mode that sees every torch function while a recording runs."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function: by its handler, as a call with a `device`, or as it is."""
        session, kwargs = self.session, kwargs or {}
        if (session.stop is not None and session.stop_if_idle()) or session.aside is not None:
            return self._otherwise(func, types, args, kwargs)
        if types and not NOT_ASKED.issuperset(types) and (kinds := overriding(types)):
            return self._by_subclass(func, kinds, args, kwargs)
        if modes() != 1 and is_faked():
            return QUESTIONS[func] if func in QUESTIONS and is_on_device(args[0]) else func(*args, **kwargs)
        session.calls += 1
        if func in GETTERS:
            return func(*args)
        before, session.call = session.call, (args, kwargs)
        try:
            if session.check is not None:
                return session.check.call(self._answer, func, args, kwargs)
            as_it_is = not kwargs and func not in HANDLERS and session.default_type is CPU
            return func(*args) if as_it_is else self._answer(func, args, kwargs)
        finally:
            session.call = before

    def _answer(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        session = self.session
        if handler := HANDLERS.get(func):
            return handler(session, func, *args, **kwargs)
        of_nothing = session.default_type is not CPU and kwargs.get("device") is None
        if of_nothing and not any(isinstance(it, torch.Tensor) for it in tree_leaves((args, kwargs))):
            with session.placing(session.default_type):
                return func(*args, **kwargs)
        if kwargs and (kwargs.get("device") is not None or "pin_memory" in kwargs):
            return call_with_device(session, func, args, kwargs)
        return func(*args, **of_default(kwargs))

    def _aside(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function while nothing is emulated (`Session.on_host`), or while data are fetched."""
        session, operators = self.session, self.session.aside
        if operators is ON_HOST:
            return call_on_host(func, args, kwargs)
        touches = session.meter.touches(func, args, kwargs)
        if not touches and _device.CURRENT_DEVICE is None and func is not torch.device:
            return func(*args, **kwargs)
        session.aside, session.touched = None, True
        try:
            with session.meter.not_counted(), operators:
                return Functions.__torch_function__(self, func, types, args, kwargs)
        finally:
            session.aside = operators

    def _otherwise(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function while less is emulated; one of a thread that is not recorded any more has no device."""
        session = self.session
        if session.stray and session.stop_if_idle():
            with internals.DisableTorchDispatch():
                return Guard(session.enter).__torch_function__(func, types, args, kwargs)
        aside = self._at_rest if session.aside is AT_REST else self._aside
        return aside(func, types, args, kwargs)

    def _at_rest(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function when nothing is recorded any more: what comes of the device's tensors is the device's, too."""
        if types and not NOT_ASKED.issuperset(types) and (kinds := overriding(types)):
            return self._by_subclass(func, kinds, args, kwargs)
        if func in GETTERS and func != GRADIENT:
            return func(*args)
        result = self._answer(func, args, kwargs) if kwargs or func in HANDLERS else func(*args)
        if isinstance(result, torch.Tensor):
            if tag_of(result) is None and not (args and result is args[0]) and any_on_device((*args, *kwargs.values())):
                self.session.put(result, on_device=True)
        elif isinstance(result, (tuple, list)) and any_on_device((*args, *kwargs.values())):
            on_host = HOST_OUTPUTS.get(func.__name__, -1)
            for place, tensor in enumerate(result):
                if isinstance(tensor, torch.Tensor) and tag_of(tensor) is None:
                    self.session.put(tensor, on_device=place != on_host)
        return result

    def _by_subclass(self, func: Any, kinds: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Let the tensors' own classes see the call first, as above a real GPU; what they call in turn comes to us."""
        with self:
            for kind in kinds:
                result = kind.__torch_function__(func, kinds, args, kwargs)
                if result is not NotImplemented:
                    return result
        raise TypeError(f"no implementation found for {torch.overrides.resolve_name(func) or func} on types {kinds}")


class MeasuringFunctions(Functions):
    """The same where the program's own Python is measured: what the emulator takes is no part of it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one function, with the clock stopped; a data set's own clock goes on."""
        session = self.session
        if session.aside is AT_REST or (session.stray and session.stop_if_idle()):
            return self._otherwise(func, types, args, kwargs or {})
        if session.fetching and session.aside is not None:  # at once: all before `touches` looks at its clock counts
            return self._aside(func, types, args, kwargs or {})
        if session.aside is None and not session.functions:
            session.enter("torch")
        session.functions += 1
        try:
            return super().__torch_function__(func, types, args, kwargs)
        finally:
            session.functions -= 1
            session.leave()


def overriding(kinds: Iterable[type]) -> list[Any]:
    """Return those of the types that see torch functions before torch does; none while torch has them switched off."""
    found = [kind for kind in kinds if kind not in NOT_ASKED]
    if not found or not internals.is_torch_function_enabled():
        return []
    return [kind for kind in found if getattr(kind, "__torch_function__", NO_OVERRIDE) is not NO_OVERRIDE]


class DefaultGenerator(Disguised):
    """The GPU's own generator of random numbers: it draws from the CPU's."""

    original = torch.Generator
    device = DEVICE

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.default_generator, name)


def of_default(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call, for C++, which knows the default generator only as one that is not given."""
    return kwargs | {"generator": None} if type(kwargs.get("generator")) is DefaultGenerator else kwargs


def is_faked() -> bool:
    """Tell whether a `FakeTensorMode` runs: no tensor has memory, and torch itself says where each would be."""
    return internals.get_dispatch_mode(internals.TorchDispatchModeKey.FAKE) is not None


def call_on_host(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function as a program for the CPU would have: who asks for the GPU gets the CPU, under another name."""
    if func is torch.device:
        return device_named(*args, **kwargs)
    if func is torch.Tensor.cuda:
        func, args = torch.Tensor.to, (args[0], STANDS_FOR_CUDA)
    args, kwargs = (args, kwargs) if isinstance(func, type) else tree_map(_for_host, (args, kwargs))
    leaves = tree_leaves((args, kwargs))
    named = [leaf for leaf in leaves if isinstance(leaf, torch.device) or leaf == "cpu"]
    there = named[0] is STANDS_FOR_CUDA if named else any(map(is_there, leaves))
    result = func(*args, **kwargs)
    return tree_map_only(torch.Tensor, _stand_in, result) if there else result


def _for_host(value: Any) -> Any:
    is_device = isinstance(value, torch.device) and value.type == "cuda"
    return STANDS_FOR_CUDA if is_device or (isinstance(value, str) and value.partition(":")[0] == "cuda") else value


def is_there(value: Any) -> bool:
    """Tell whether this is a tensor of the device, or stands for one where nothing is emulated."""
    return isinstance(value, torch.Tensor) and (is_on_device(value) or hasattr(value, STAND_IN))


def _stand_in(tensor: torch.Tensor) -> torch.Tensor:
    setattr(tensor, STAND_IN, True)
    return tensor


def call_with_device(session: Session, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a factory (`torch.zeros`, `x.new_empty`, …) and put its result where it was asked for."""
    asked = kwargs.get("device")
    device = None if asked is None else wanted_device(asked)
    if device is not None and device.type not in ("cpu", "cuda"):
        return func(*args, **kwargs)
    if device is not None and (out := kwargs.get("out")) is not None and is_on_device(out) != (device.type == "cuda"):
        raise RuntimeError(f"device type {device.type} does not match that of out parameter, which is on the other one")
    kwargs = of_default(dict(kwargs))
    pin = kwargs.pop("pin_memory", False)
    if pin and (device or CPU).type == "cuda":
        raise RuntimeError("Only dense CPU tensors can be pinned")
    if device is not None:
        kwargs["device"] = CPU
    with session.placing(device):
        result = func(*args, **kwargs)
    if session.aside is AT_REST and device is not None and tag_of(result) is None:
        session.put(result, on_device=device.type == "cuda")
    if pin:
        with session.bookkeeping():
            session.pin(result)
    return result
