"""Overrides: every function and method of torch that names a device, or asks for one (torch.cuda is in `cuda_api`).

A CPU build of torch would refuse `.to("cuda")` before any operator runs. The mode `Functions` sees the call first,
takes the device out of it, and says where the result belongs. Some parts of torch ask below Python's modes: autograd's
engine call, the grouping of tensors for foreach optimizers, autocast, generators, the compiler, saving and loading.
"""

from __future__ import annotations

import inspect
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import torch
from torch._C._autograd import DeviceType
from torch._dynamo import eval_frame
from torch.autograd import graph
from torch.autograd.profiler import record_function
from torch.autograd.profiler_util import FunctionEvent
from torch.nn.parallel import _functions
from torch.optim import optimizer
from torch.overrides import TorchFunctionMode
from torch.utils import _device, _foreach_utils
from torch.utils.hooks import RemovableHandle

from loaderviz.emulator.runtime import Direction
from loaderviz.emulator.torch import copies
from loaderviz.emulator.torch.patches import QUESTIONS, device_named, stands_for, touches_device
from loaderviz.emulator.torch.session import CPU, DEVICE, PIN_THREAD, Session, wanted_device
from loaderviz.emulator.torch.tensors import ATTRIBUTE, DeviceTag, HostTag, is_on_device, set_tag
from loaderviz.errors import NotModelledError
from loaderviz.timeline import Kind, Timeline

if TYPE_CHECKING:
    from loaderviz.emulator.torch.operators import Operators
    from loaderviz.emulator.torch.patches import Patches

Handler = Callable[..., Any]  # of the session, the torch function, and what that was called with
HANDLERS: dict[Any, Handler] = {}  # by the torch function that they answer in place of torch
# What an optimizer asks of each parameter: no operator comes of it
ASKED: Any = [vars(torch._C.TensorBase)[name] for name in ("grad", "is_sparse", "requires_grad", "is_leaf", "dtype")]
GETTERS = {*(attribute.__get__ for attribute in ASKED), ASKED[0].__set__}
FIRST = 5  # before torch's own packages (10 is the CPU's) in the order of serialization
PLAIN = {torch.Tensor, torch.nn.Parameter, type(None), list, tuple, int, float, bool, str}
PADDING = "_loaderviz_padding"  # the mask of sequences that an encoder has packed
NO_OVERRIDE = torch._C._disabled_torch_function_impl  # what a class says that wants none, as `Parameter` does


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
        session, kwargs = self.session, kwargs or {}
        if session.resting is not None:
            return self._while_fetching(func, types, args, kwargs)
        if types and not PLAIN.issuperset(types) and (kinds := overriding(types)):
            return self._by_subclass(func, kinds, args, kwargs)
        session.calls += 1
        if func in GETTERS:
            return func(*args)
        before, session.call = session.call, (args, kwargs)
        try:
            if handler := HANDLERS.get(func):
                return handler(session, func, *args, **kwargs)
            placed = kwargs and ("device" in kwargs or "pin_memory" in kwargs)
            if not placed and _device.CURRENT_DEVICE is not None and func in self._constructors:
                kwargs, placed = {**kwargs, "device": _device.CURRENT_DEVICE}, True
            return call_with_device(session, func, args, kwargs) if placed else func(*args, **kwargs)
        finally:
            session.call = before

    def _while_fetching(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        session, operators = self.session, self.session.resting
        touches = session.meter.touches if session.measured else touches_device
        if not touches(func, args, kwargs) and _device.CURRENT_DEVICE is None and func is not torch.device:
            return func(*args, **kwargs)
        session.resting = None
        try:
            with session.meter.not_counted(), operators:
                return Functions.__torch_function__(self, func, types, args, kwargs)
        finally:
            session.resting = operators

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
        if session.resting is None and not session.functions:
            session.enter("torch")
        session.functions += 1
        try:
            return super().__torch_function__(func, types, args, kwargs)
        finally:
            session.functions -= 1
            session.leave()


def overriding(kinds: Iterable[type]) -> list[Any]:
    """Return those of the types that see torch functions before torch does; none while torch has them switched off."""
    found = [kind for kind in kinds if kind not in PLAIN]
    if not found or not torch._C._is_torch_function_enabled():
        return []
    return [kind for kind in found if getattr(kind, "__torch_function__", NO_OVERRIDE) is not NO_OVERRIDE]


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


def answers(*functions: Any) -> Callable[[Handler], Handler]:
    """Return a decorator that makes a handler answer these torch functions."""

    def note(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(functions, handler))
        return handler

    return note


# Questions about where a tensor is


@answers(torch.device)
def _named_device(session: Session, func: Any, *args: Any, **kwargs: Any) -> torch.device:
    return device_named(*args, **kwargs)


@answers(torch.get_device, *QUESTIONS)
def _place(session: Session, func: Any, input: Any, *args: Any) -> Any:
    return QUESTIONS.get(func, 0) if is_on_device(input) else func(input, *args)


# Calls that bring a tensor to the device or back, in all their forms, and data from Python


@answers(torch.Tensor.to)
def _to(
    session: Session, func: Any, given: Any, /, *rest: Any, copy: bool = False, tensor: Any = None, **kwargs: Any
) -> Any:
    asked = list(rest)
    if asked and isinstance(asked[0], torch.Tensor):
        tensor = asked.pop(0)
    if tensor is not None:
        asked[:0] = DEVICE if is_on_device(tensor) else tensor.device, tensor.dtype
    if asked and isinstance(asked[-1], bool) and sum(isinstance(entry, bool) for entry in asked) == 2:
        copy = asked.pop()  # (device, dtype, non_blocking, copy)
    device, dtype, non_blocking, memory_format = _parse_to(session, torch._C._nn._parse_to, *asked, **kwargs)
    return move(session, given, device, dtype, non_blocking, copy, memory_format)


@answers(torch._C._nn._parse_to)
def _parse_to(session: Session, func: Any, *args: Any, **kwargs: Any) -> Any:
    """What `Tensor.to` and `Module.to` were asked for; a CPU build of torch does not take an index for a GPU."""
    if args and type(args[0]) is int:
        args = wanted_device(args[0]), *args[1:]
    if type(kwargs.get("device")) is int:
        kwargs["device"] = wanted_device(kwargs["device"])
    return func(*args, **kwargs)


@answers(torch.Tensor.cuda)
def _cuda(
    session: Session, func: Any, tensor: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = None
) -> Any:
    device = DEVICE if device is None else wanted_device(device)
    if device.type != "cuda":
        raise ValueError(f"Tensor.cuda(): a CUDA device is expected, got {device}")
    return move(session, tensor, device, None, non_blocking, memory_format=memory_format)


@answers(torch.Tensor.cpu)
def _cpu(session: Session, func: Any, tensor: Any, memory_format: Any = None) -> Any:
    return move(session, tensor, CPU, None, False, memory_format=memory_format)


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
    if device is None or device.type == ("cuda" if here else "cpu"):
        return tensor.to(**options)
    if device.type not in ("cpu", "cuda"):
        return tensor.to(device, **options)
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
        return copies.transfer(session, tensor.detach(), dtype, non_blocking)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Copy the gradient back."""
        return copies.transfer(ctx.session, gradients[0], ctx.dtype, ctx.non_blocking), None, None, None


@answers(torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor)
def _from_data(
    session: Session, func: Any, *args: Any, device: Any = None, pin_memory: bool = False, **kwargs: Any
) -> Any:
    """Data from Python or numpy: made on the CPU, then copied (pageable and blocking)."""
    given = args[0] if args else kwargs.get("data")
    if device is None:
        if isinstance(given, torch.Tensor) and func is not torch.tensor:  # or the tensor whose method it is
            device = DEVICE if is_on_device(given) else CPU
        else:
            device = _device.CURRENT_DEVICE or CPU
    device = wanted_device(device)
    if func in (torch.as_tensor, torch.asarray) and isinstance(given, torch.Tensor):
        return move(session, given, device, kwargs.get("dtype"), False, bool(kwargs.get("copy")))
    requires_grad = kwargs.pop("requires_grad", False)
    with session.bookkeeping():
        result = func(*args, **kwargs, device=CPU)
        if pin_memory:
            session.pin(result)
    if device.type == "cuda":
        result = move(session, result, device, None, False)
    return result.requires_grad_() if requires_grad else result


@answers(torch.Tensor.type)
def _type(session: Session, func: Any, tensor: Any, dtype: Any = None, non_blocking: bool = False) -> Any:
    if dtype is None:
        name = func(tensor)
        return name.replace("torch.", "torch.cuda.") if is_on_device(tensor) else name
    if isinstance(dtype, torch.dtype):
        return move(session, tensor, None, dtype, False)
    raise NotModelledError(f"Tensor.type({dtype!r}) is not modelled; use .to(device, dtype)")


@answers(torch.ctc_loss)
def _ctc_loss(session: Session, func: Any, log_probabilities: Any, targets: Any, *lengths: Any, **kwargs: Any) -> Any:
    """The lengths may be on the CPU; the mean over them is taken on the device, and torch copies them there."""
    if is_on_device(log_probabilities):
        lengths = tuple(move(session, it, DEVICE, None, False) if type(it) is torch.Tensor else it for it in lengths)
    return func(log_probabilities, targets, *lengths, **kwargs)


# Calls that bring a device tensor's values to Python, or refuse to; `print` comes down to these


@answers(torch.Tensor.numpy)
def _numpy(session: Session, func: Any, tensor: Any, **kwargs: Any) -> Any:
    if is_on_device(tensor):
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory "
            "first."
        )
    return func(tensor, **kwargs)


@answers(torch.Tensor.to_padded_tensor)
def _to_padded(session: Session, func: Any, tensor: Any, value: Any, *args: Any) -> Any:
    padding = getattr(tensor, PADDING, None)
    return func(tensor, value, *args) if padding is None else tensor.masked_fill(padding.unsqueeze(-1), value)


@answers(torch.Tensor.tolist)
def _tolist(session: Session, func: Any, tensor: Any) -> Any:
    tensor = tensor.detach()
    if is_on_device(tensor):
        tensor = copies.transfer(session, tensor, tensor.dtype, False)
    elif session.tracking:
        session.tracking.host_access(tensor, "Tensor.tolist")
    return func(tensor)


# Methods of `Tensor` that never reach a mode, or that the DataLoader's pin thread calls: set on the class


def install_methods(session: Session, patches: Patches) -> None:
    """Set the methods while the recording runs."""

    @patches.around(torch.Tensor, "pin_memory")
    def pin_memory(_: Any, tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        if is_on_device(tensor):
            raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
        copies.check_layout(tensor)
        if threading.current_thread().name == PIN_THREAD:
            copy = tensor.clone(memory_format=torch.contiguous_format)
            set_tag(copy, HostTag(session, pinned=True))  # its block is given at hand-out, by the main thread
            return copy
        session.enter("Tensor.pin_memory")
        with torch._C.DisableTorchFunction():
            tag = session.host_tag(tensor)
            result = tensor if tag and tag.pinned else copies.pin_memory(session, tensor.detach(), tag)
        session.leave()
        return result

    @patches.around(torch.Tensor, "is_pinned")
    def is_pinned(_: Any, tensor: torch.Tensor, device: Any = None) -> bool:
        with torch._C.DisableTorchFunction():
            if tensor.layout is not torch.strided or is_on_device(tensor):
                return False
            tag = session.host_tag(tensor)
        return bool(tag and tag.pinned)

    @patches.around(torch.Tensor, "record_stream")
    def record_stream(_: Any, tensor: torch.Tensor, stream: Any) -> None:
        session.enter("Tensor.record_stream")
        with torch._C.DisableTorchFunction():
            tag = session.device_tag(tensor)
        if tag is None:
            raise RuntimeError("record_stream: the tensor is on the CPU; only device memory has streams")
        session.pool.record_stream(tag.block, session.stream_of(stream))  # R36
        session.leave()

    def dlpack(original: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if is_on_device(tensor):  # its memory would be that of the CPU tensor behind it
            raise NotModelledError("DLPack of a tensor on the emulated GPU is not modelled; copy it with .cpu() first")
        return original(tensor, *args, **kwargs)

    for name in ("__dlpack__", "__dlpack_device__"):
        patches.around(torch.Tensor, name)(dlpack)


# The corners of torch that ask for the device below Python's modes, each with a small stand-in


def install_library(session: Session, patches: Patches, operators: Operators, calls: Functions) -> None:
    """Put all stand-ins in place."""
    patches.around(graph, "_engine_run_backward")(operators.backward.run)
    for owner in (_foreach_utils, torch._C):
        patches.around(owner, "_group_tensors_by_device_and_dtype")(_grouped)
    patches.function(torch, "Generator", _generator(torch.Generator))
    patches.set(torch.backends.cuda, "is_built", lambda: True)
    patches.set(torch.backends.cudnn, "is_acceptable", lambda tensor: False)
    _install_host_prices(session, patches)
    _install_optimizers(patches)
    _install_data_parallel(patches)
    _install_distributed(session, patches)
    _install_saved_tensor_hooks(patches, calls)
    _install_autocast(session, patches)
    _install_compiler(session, patches)
    _install_serialization(session, patches)
    _install_ranges(session, patches)
    _install_profiler(session, patches)
    _install_sending(session, patches)
    _install_attention(patches)
    for name in ("nested_tensor", "as_nested_tensor"):
        patches.around(torch.nested, name)(_on_host_only)

    @patches.around(torch.jit._builtins, "_find_builtin")
    def find_builtin(find: Any, function: Any) -> Any:  # by identity, also of what stands in for a builtin now
        return find(inspect.unwrap(function))


def _on_host_only(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if touches_device(original, args, kwargs):
        raise NotModelledError(f"torch.{original.__name__}: nested tensors on the emulated GPU are not modelled")
    return original(*args, **kwargs)


def _install_attention(patches: Patches) -> None:
    """Where a program asks for a kernel of attention that only CUDA has, the CPU's flash attention answers.

    A `TransformerEncoder` in evaluation packs sequences padded at their end, and pads with zeros afterwards. Here they
    are not packed, but carry their mask to the layers, which take their slow path. The host waits as for nested
    tensors: it asks whether the padding is at the end, and how long the sequences are.
    """
    names = torch.nn.attention.SDPBackend
    cuda_only = {names.EFFICIENT_ATTENTION, names.CUDNN_ATTENTION}
    inside = [False]  # an encoder on the device, and in none of its layers

    @patches.around(torch.nn.attention, "_sdpa_kernel")
    def choose(original: Any, backends: Iterable[Any], *args: Any, **kwargs: Any) -> None:
        asked = list(backends)
        original([*asked, *([names.FLASH_ATTENTION, names.MATH] if cuda_only & set(asked) else [])], *args, **kwargs)

    @patches.around(torch.nn.TransformerEncoder, "forward")
    def encode(original: Any, self: Any, src: Any, *args: Any, **kwargs: Any) -> Any:
        inside.append(is_on_device(src))
        try:
            return original(self, src, *args, **kwargs)
        finally:
            inside.pop()

    @patches.around(torch.nn.TransformerEncoderLayer, "forward")
    def encode_layer(
        run: Any, self: Any, src: Any, src_mask: Any = None, src_key_padding_mask: Any = None, is_causal: Any = False
    ) -> Any:
        inside.append(False)
        try:
            padding = getattr(src, PADDING, src_key_padding_mask)
            result = run(self, src, src_mask, padding, is_causal)
        finally:
            inside.pop()
        if hasattr(src, PADDING):
            setattr(result, PADDING, padding)
        return result

    @patches.around(torch, "_nested_tensor_from_mask")
    def pack(original: Any, tensor: Any, mask: Any, mask_check: bool = True) -> Any:
        if not inside[-1]:
            return _on_host_only(original, tensor, mask, mask_check)
        mask.sum(1).cpu()
        packed = tensor.clone()
        setattr(packed, PADDING, mask.logical_not())
        return packed

    ask = torch.overrides.has_torch_function
    patches.set(torch.overrides, "has_torch_function", lambda values: not inside[-1] and ask(values))


def _install_profiler(session: Session, patches: Patches) -> None:
    """`torch.profiler` shows the emulated work in virtual time; what it really recorded, the CPU's, is left aside."""
    profile, emit_nvtx = torch.autograd.profiler.profile, torch.autograd.profiler.emit_nvtx
    since, stacks = "_loaderviz_since", "_loaderviz_stacks"

    @patches.around(profile, "__init__")
    def init(
        make: Any, self: Any, *args: Any, use_device: str | None = None, use_cuda: bool = False, **kwargs: Any
    ) -> None:
        make(self, *args, **kwargs | {"use_cpu": True, "with_stack": False})  # it looks into nn.Module's own call
        self.use_device = "cuda" if use_cuda else use_device
        vars(self)[stacks] = kwargs.get("with_stack", False)

    @patches.around(profile, "_start_trace")
    def start(begin: Any, self: Any) -> None:
        begin(self)
        vars(self)[since] = len(session.runtime.builder)

    @patches.around(profile, "__exit__")
    def leave(end: Any, self: Any, *error: Any) -> Any:
        if not self.enabled or not session.in_recording_thread() or not hasattr(self, since):
            return end(self, *error)
        emulated: list[Timeline] = []

        def events(*_: Any, **__: Any) -> list[FunctionEvent]:
            emulated[:] = emulated or [session.runtime.recorded(getattr(self, since))]
            return _profiled(emulated[0], self.use_device)

        def export_chrome_trace(path: str, *_: Any, **__: Any) -> None:
            from loaderviz.export import to_chrome_trace

            to_chrome_trace(emulated[0], path)

        self._parse_kineto_results, self.export_chrome_trace = events, export_chrome_trace
        with session.bookkeeping():
            result = end(self, *error)
            events()
        self.with_stack = getattr(self, stacks)
        session.note("torch.profiler shows the emulated work in virtual time, without shapes and memory")
        return result

    activities = torch.profiler.ProfilerActivity
    patches.function(torch.autograd, "_supported_activities", lambda: {activities.CPU, activities.CUDA})
    patches.set(emit_nvtx, "__enter__", lambda self: self)
    patches.set(emit_nvtx, "__exit__", lambda self, *error: None)


def _profiled(timeline: Timeline, device: str | None) -> list[FunctionEvent]:
    """Return the spans of a timeline as the profiler's events: each device span counts for the operator that put it."""
    events: list[FunctionEvent] = []
    inside: list[tuple[int, FunctionEvent]] = []  # end, event: what the main thread is in
    launched_by: dict[int, FunctionEvent] = {}  # correlation -> operator
    for number, span in enumerate(timeline.rows()):
        on_device = span.lane.group == "device"
        if on_device and device is None:
            continue
        event = FunctionEvent(
            number,
            re.sub(r"(?<=^ProfilerStep)#\d+", "*", span.name),
            span.lane.number,
            span.start / 1000,
            span.end / 1000,
            input_shapes=[],
            stack=[span.source],
            use_device=device,
            trace_name=span.name,
            device_type=DeviceType.CUDA if on_device else DeviceType.CPU,
            flops=0,
        )
        event.is_user_annotation = span.kind == Kind.RANGE
        events.append(event)
        if on_device:
            if operator := launched_by.get(span.correlation):
                operator.append_kernel(span.name, 0, span.duration / 1000)
        elif span.lane.role == "main":
            while inside and inside[-1][0] <= span.start:
                inside.pop()
            if span.kind == Kind.API and span.correlation >= 0:
                launched_by[span.correlation] = inside[-1][1] if inside else event
            elif span.kind == Kind.OPERATOR:
                inside.append((span.end, event))
    return events


def _grouped(group: Callable[..., Any], tensor_lists: Any, with_indices: bool = False) -> Any:
    """Group tensors by (device, dtype), device tensors apart from host tensors."""
    groups: dict[Any, Any] = {}
    for (device, dtype), (lists, indices) in group(tensor_lists, with_indices).items():
        with torch._C.DisableTorchFunction():  # our own questions
            places = [tensor is not None and is_on_device(tensor) for tensor in lists[0]]
        for here in sorted(set(places)):
            keep = [position for position, place in enumerate(places) if place == here]
            part = [[entries[position] for position in keep] if entries else entries for entries in lists]
            part_indices = [indices[position] for position in keep] if indices else indices
            groups[DEVICE if here else device, dtype] = (part, part_indices)
    return groups


def _install_host_prices(session: Session, patches: Patches) -> None:
    """A module's call and an optimizer's step cost what `Host` says; other Python in them is free or measured."""
    host = session.runtime.host

    @patches.around(torch.nn.Module, "__call__")
    def call(call_module: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if session.quiet or session.fetching or not session.in_recording_thread():
            return call_module(self, *args, **kwargs)
        session.begin_priced(host.module)
        try:
            return call_module(self, *args, **kwargs)
        finally:
            session.end_priced()

    def step_begins(stepping: Any, *_: Any) -> None:
        if session.in_recording_thread():
            count = sum(len(group["params"]) for group in stepping.param_groups)
            session.begin_priced(host.optimizer + count * host.parameter)

    def step_ends(stepping: Any, *_: Any) -> None:
        if session.in_recording_thread():
            session.batches.optimizer_stepped(stepping)
            session.end_priced()

    for hooks, hook in (
        (optimizer._global_optimizer_pre_hooks, step_begins),
        (optimizer._global_optimizer_post_hooks, step_ends),
    ):
        handle = RemovableHandle(hooks)
        patches.at_end(handle.remove)
        hooks[handle.id] = hook


def _install_optimizers(patches: Patches) -> None:
    """What an optimizer asks of each parameter goes past `Functions`: it would see some five questions for each."""

    def asks_only(params: Iterable[torch.Tensor]) -> bool:  # of torch's own tensors, below no mode but ours
        return torch._C._len_torch_function_stack() == 1 and PLAIN.issuperset(map(type, params))

    def zero_grad(zero: Any, self: Any, set_to_none: bool = True) -> None:
        if isinstance(self, torch.nn.Module):
            params = list(self.parameters())
        else:
            params = [param for group in self.param_groups for param in group["params"]]
        with torch._C.DisableTorchFunction() if set_to_none and asks_only(params) else nullcontext():
            zero(self, set_to_none)

    def only_reads(optimizer: Any, group: Any) -> bool:  # its state is made; fused ones ask for the device
        if group.get("fused") or not asks_only(group["params"]):
            return False
        with torch._C.DisableTorchFunction():
            used = [param for param in group["params"] if param.grad is not None]
        return isinstance(optimizer, torch.optim.SGD) or all(optimizer.state.get(param) for param in used)

    def init_group(init: Any, self: Any, group: Any, *lists: Any) -> Any:
        with torch._C.DisableTorchFunction() if only_reads(self, group) else nullcontext():
            return init(self, group, *lists)

    for owner in (torch.optim.Optimizer, torch.nn.Module):
        patches.around(owner, "zero_grad")(zero_grad)
    for kind in vars(torch.optim).values():
        if isinstance(kind, type) and "_init_group" in vars(kind):
            patches.around(kind, "_init_group")(init_group)


def _install_data_parallel(patches: Patches) -> None:
    """`DataParallel` over the one GPU there is: its inputs are copied there, and the module is called."""

    def scatter(tensor: torch.Tensor, devices: Any, sizes: Any, dim: int, streams: Any) -> tuple[torch.Tensor, ...]:
        with torch.cuda.stream(streams[0] if streams else None):
            return (tensor.to(DEVICE, non_blocking=True),)

    def gather(tensors: Any, dim: int, index: int | None) -> torch.Tensor:
        return tensors[0].to("cpu" if index == -1 else DEVICE)  # type: ignore[no-any-return]

    patches.set(torch._C, "_scatter", scatter)
    patches.set(torch._C, "_gather", gather)
    patches.set(_functions, "_streams", None)  # the copy stream that it keeps for each GPU


def _install_distributed(session: Session, patches: Patches) -> None:
    """One rank on one GPU: there is nothing to reduce, so `DistributedDataParallel` calls its module. More are refused.

    NCCL is in no CPU build of torch, and wants a real GPU; for one rank gloo stands in, and says that it is "nccl".
    """
    if not torch.distributed.is_available():
        return
    distributed, parallel = torch.distributed, torch.nn.parallel.DistributedDataParallel
    synchronizes, asked = "require_backward_grad_sync", ""

    def one_rank(ranks: int) -> None:
        if ranks > 1:
            raise NotModelledError(
                f"torch.distributed with {ranks} ranks: the emulated machine has one GPU, so one rank; start it with "
                "torchrun --nproc-per-node 1, or record on real GPUs"
            )

    @patches.around(distributed, "init_process_group")
    def init_process_group(begin: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal asked
        options = inspect.signature(begin).bind(*args, **kwargs).arguments
        ranks = options.get("world_size", -1)
        one_rank(ranks if ranks > 0 else int(os.environ.get("WORLD_SIZE", 1)))
        asked = "nccl" if "nccl" in (options.get("backend") or "nccl") else ""
        if asked:
            options |= {"backend": "gloo", "device_id": None}
        begin(**options)

    @patches.around(distributed, "get_backend")
    def get_backend(backend_of: Any, group: Any = None) -> str:
        return asked or backend_of(group)

    @patches.around(parallel, "__init__")
    def init(make: Any, self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        if any(map(is_on_device, module.parameters())):
            one_rank(distributed.get_world_size(kwargs.get("process_group")))
            session.note("DistributedDataParallel over one rank: no gradient is copied into a bucket, none is reduced")
        make(self, module, *args, **kwargs)

    def is_synchronizing(self: Any) -> bool:
        return bool(vars(self)[synchronizes]) and not any(map(is_on_device, self.parameters()))

    patches.function(distributed, "is_nccl_available", lambda: True)
    patches.set(
        parallel, synchronizes, property(is_synchronizing, lambda self, on: vars(self).update({synchronizes: on}))
    )


def _generator(original: Any) -> Any:
    """Return a class that stands in for `torch.Generator`: a CUDA generator draws the CPU's numbers."""

    @stands_for(original)
    class Generator(original):  # type: ignore[misc]
        def __new__(cls, device: Any = "cpu") -> Any:
            place = wanted_device(device)
            self = super().__new__(cls, "cpu" if place.type == "cuda" else place)
            self._place = place
            return self

        @property
        def device(self) -> torch.device:
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


def _install_sending(session: Session, patches: Patches) -> None:
    """A tensor of the device that goes to another process goes by CUDA's handles for memory, which nothing emulates."""
    reducers: dict[Any, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]

    def send(reduce: Any, tensor: torch.Tensor) -> Any:
        with torch._C.DisableTorchFunction():
            here = session.alive and is_on_device(tensor)
        if here:
            problem = NotModelledError(
                "a tensor on the emulated GPU cannot be sent to another process (CUDA IPC is not modelled): keep "
                "one process for the GPU, or send tensor.cpu()"
            )
            raise problem if session.in_recording_thread() else session.refused_elsewhere(problem)
        return reduce(tensor)

    for kind in (torch.Tensor, torch.nn.Parameter):
        patches.at_end(partial(reducers.__setitem__, kind, reducers[kind]))
        reducers[kind] = partial(send, reducers[kind])


def _install_autocast(session: Session, patches: Patches) -> None:
    """Autocast for CUDA runs as the CPU's autocast with the same dtype, and the timeline says so."""

    @patches.around(torch.amp.autocast_mode.autocast, "__init__")
    def init(
        begin: Any, self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None
    ) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
            if enabled:
                session.note(f"autocast: the values are really computed in {dtype}, by the CPU's kernels and lists")
        begin(self, device_type, dtype, enabled, cache_enabled)

    def as_cpu(ask: Callable[[str], Any], device_type: str = "cuda") -> Any:
        return ask("cpu" if device_type == "cuda" else device_type)

    for name in ("is_autocast_enabled", "get_autocast_dtype", "is_autocast_available"):
        patches.around(torch, name)(as_cpu)


def _install_compiler(session: Session, patches: Patches) -> None:
    """Compiled code runs as its eager operators, also what was compiled before, and the timeline says so."""
    note = "torch.compile: compiled code is emulated as its eager operators, so nothing is fused"

    @patches.around(torch, "compile")
    def compile_eagerly(original: Any, *args: Any, **kwargs: Any) -> Any:
        asked = inspect.signature(original).bind(*args, **kwargs).arguments
        model = asked.pop("model", None)
        if model is None:
            return lambda model: torch.compile(model, **asked)
        if asked.get("mode") is not None and asked.get("options") is not None:
            raise RuntimeError("torch.compile: either mode or options can be specified, but not both")
        if asked.get("disable") or isinstance(model, type):
            return model
        session.note(note)
        return torch.compiler.disable(model)  # wrapped just as a compiled one is

    def without_compiling(callback: Any) -> None:
        if callback:
            session.note(note)

    patches.set(eval_frame, "_stance", eval_frame.DynamoStance("force_eager"))  # with fullgraph=True, too
    patches.set(eval_frame, "_callback_from_stance", without_compiling)  # asked at each call of compiled code
    patches.set(torch.compiler, "cudagraph_mark_step_begin", lambda: None)  # there are no CUDA graphs
    patches.function(torch._dynamo, "reset", lambda: None)  # nor anything else to be forgotten


def _install_serialization(session: Session, patches: Patches) -> None:
    """torch.save notes "cuda:0" for device storages, torch.load puts them there; a deep copy is where its source is."""

    def location(storage: Any) -> str | None:
        tag = getattr(storage, ATTRIBUTE, None)
        if type(tag) is not DeviceTag:
            if session.tracking:
                session.tracking.host_access(copies.bytes_of(storage), "torch.save")
            return None
        with session.calling("torch.save"):
            session.deferred.deliver(tag, session.stream)
            _move_bytes(session, "d2h", reads=[copies.bytes_of(storage)])
        return "cuda:0"

    def restore(storage: Any, wanted: str) -> Any:
        if not wanted.startswith("cuda"):
            return None
        wanted_device(wanted)
        with session.calling("torch.load"):
            _move_bytes(session, "h2d", writes=[session.place(copies.bytes_of(storage))])
        return storage

    @patches.around(torch.storage._StorageBase, "__deepcopy__")
    def deepcopy(copy_storage: Any, self: Any, memo: Any) -> Any:
        tag = getattr(self, ATTRIBUTE, None)
        if type(tag) is not DeviceTag:
            return copy_storage(self, memo)
        session.deferred.deliver(tag, session.stream)
        with session.bookkeeping():
            result = copy_storage(self, memo)
        if getattr(result, ATTRIBUTE, None) is None:
            with session.calling("copy.deepcopy"):
                target = session.place(copies.bytes_of(result), tag.batch)
                _move_bytes(session, "d2d", [copies.bytes_of(self)], [target])
        return result

    patches.set(torch.serialization, "_package_registry", list(torch.serialization._package_registry))
    torch.serialization.register_package(FIRST, location, restore)


def _move_bytes(
    session: Session, direction: Direction, reads: Sequence[torch.Tensor] = (), writes: Sequence[torch.Tensor] = ()
) -> None:
    """Copy all of a storage; to the host and from there it is a blocking copy of pageable memory."""
    crosses, size = direction != "d2d", (*reads, *writes)[0].nbytes
    command = session.runtime.memcpy(size, direction, session.stream, pinned=not crosses, blocking=crosses)
    if session.tracking:
        session.tracking.device(command, reads=reads, writes=writes)
    if crosses:
        session.deferred.host_knows()


def _install_ranges(session: Session, patches: Patches) -> None:
    """`record_function` (and with it the DataLoader's own annotation) becomes a range on the main lane."""
    starts: dict[int, int] = {}

    def entering(enter: Any, self: Any) -> Any:
        starts[id(self)] = session.enter_range(self.name)
        return enter(self)

    def leaving(leave: Any, self: Any, *error: Any) -> Any:
        session.leave_range(self.name, starts.pop(id(self)))
        return leave(self, *error)

    @patches.around(record_function, "__enter__")
    def begin(enter: Any, self: Any) -> Any:
        return session.own_work(entering, enter, self) if session.in_recording_thread() else enter(self)

    @patches.around(record_function, "__exit__")
    def end(leave: Any, self: Any, *error: Any) -> Any:
        if id(self) in starts:
            return session.own_work(leaving, leave, self, *error)
        with session.bookkeeping():
            return leave(self, *error)
