"""Library: the corners of torch that ask for a device below Python's modes, each with a small stand-in.

Here are those of a few lines: generators, modules, optimizers, attention; the others have a file each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch.autograd import graph
from torch.optim import optimizer
from torch.utils import _device, _foreach_utils
from torch.utils.data import dataloader
from torch.utils.hooks import RemovableHandle

from loaderviz.emulator.torch import internals
from loaderviz.emulator.torch.functions import Functions, answers
from loaderviz.emulator.torch.library import autocast, compilers, cuda, graphs, parallel, profiler, storing, telemetry
from loaderviz.emulator.torch.library.storing import PADDING
from loaderviz.emulator.torch.operators import Operators
from loaderviz.emulator.torch.patches import Patches, stands_for
from loaderviz.emulator.torch.placement import install_types, move
from loaderviz.emulator.torch.session import DEVICE, Session, wanted_device
from loaderviz.emulator.torch.tensors import PLAIN, is_on_device
from loaderviz.imports import held

# Parts of torch that make nothing of the device, and that a loop calls often
ASKS_NOTHING: tuple[tuple[Any, str], ...] = (
    (torch.autograd.profiler.record_function, "__enter__"),
    (torch.autograd.profiler.record_function, "__exit__"),
    (torch.autograd, "_make_grads"),
    (torch.autograd, "_tensor_or_tensors_to_tuple"),
    (internals.C, "_set_grad_enabled"),
)
ROOMS = cuda, telemetry, graphs, parallel, autocast, compilers, storing, profiler


def install(session: Session, patches: Patches, operators: Operators, calls: Functions) -> None:
    """Put all stand-ins in place."""
    for room in ROOMS:
        room.install(session, patches)
    patches.around(graph, "_engine_run_backward")(operators.backward.run)
    patches.function(torch, "Generator", _generator(torch.Generator))
    patches.set(torch.backends.cuda, "is_built", lambda: True)
    install_types(session, patches)
    _install_default_device(patches, calls)
    _install_attention(patches)
    for owner in (_foreach_utils, internals.C):
        patches.around(owner, "_group_tensors_by_device_and_dtype")(_grouped)
    _install_host_prices(session, patches.pricing)
    _install_optimizers(patches)

    # Autograd calls pack and unpack hooks (checkpointing, `save_on_cpu`) where no mode is active: bring ours along

    def with_mode(hook: Callable[..., Any]) -> Callable[..., Any]:
        def call(value: Any) -> Any:
            with calls:
                return hook(value)

        return call

    def enter(self: Any) -> None:
        internals.push_saved_tensors_default_hooks(with_mode(self.pack_hook), with_mode(self.unpack_hook))

    patches.set(graph.saved_tensors_hooks, "__enter__", enter)


def _generator(original: Any) -> Any:
    """Return a class that stands in for `torch.Generator`: a CUDA generator draws the CPU's numbers."""

    @stands_for(original)
    class Generator(original):  # type: ignore[misc]
        def __new__(cls, device: Any = "cpu") -> Any:
            place = wanted_device(device)
            self = super().__new__(cls, "cpu" if place.type == "cuda" else place)
            self._place = torch.device(device) if isinstance(device, str) else place  # without an index if it has none
            return self

        @property
        def device(self) -> torch.device:
            return self._place  # type: ignore[no-any-return]

    return Generator


def _install_default_device(patches: Patches, calls: Functions) -> None:
    """A default device is a mode that torch puts below all others. Let ours be below that, so that nobody else ends it.

    `with torch.device(...)` ends by taking away the mode on top, which after `set_default_device` in it would be ours.
    """

    @patches.around(_device.DeviceContext, "__enter__", "__exit__")
    def above(original: Any, self: Any, *args: Any) -> Any:
        others = [torch.overrides._pop_mode() for _ in range(internals.len_torch_function_stack())]
        ours = [mode for mode in others if mode is calls]
        for mode in reversed(others):
            if mode is not calls:
                torch.overrides._push_mode(mode)
        try:
            return original(self, *args)
        finally:
            others = [torch.overrides._pop_mode() for _ in range(internals.len_torch_function_stack())]
            for mode in (*ours, *reversed(others)):
                torch.overrides._push_mode(mode)


def _install_attention(patches: Patches) -> None:
    """Where a program asks for a kernel of attention that only CUDA has, the CPU's flash attention answers.

    A `TransformerEncoder` in evaluation packs sequences padded at their end, and pads with zeros afterwards. Here they
    are not packed, but carry their mask to the layers, which take their slow path. The host waits as for nested
    tensors: it asks whether the padding is at the end, and how long the sequences are.
    """
    names = torch.nn.attention.SDPBackend
    cuda_only = {names.EFFICIENT_ATTENTION, names.CUDNN_ATTENTION}
    place = SimpleNamespace(inside=False)  # an encoder on the device, and in none of its layers

    @patches.around(torch.nn.attention, "_sdpa_kernel")
    def choose(original: Any, backends: Iterable[Any], *args: Any, **kwargs: Any) -> None:
        asked = list(backends)
        original([*asked, *([names.FLASH_ATTENTION, names.MATH] if cuda_only & set(asked) else [])], *args, **kwargs)

    @patches.around(torch.nn.TransformerEncoder, "forward")
    def encode(original: Any, self: Any, src: Any, *args: Any, **kwargs: Any) -> Any:
        with held(place, "inside", is_on_device(src)):
            return original(self, src, *args, **kwargs)

    @patches.around(torch.nn.TransformerEncoderLayer, "forward")
    def encode_layer(
        run: Any, self: Any, src: Any, src_mask: Any = None, src_key_padding_mask: Any = None, is_causal: Any = False
    ) -> Any:
        padding = getattr(src, PADDING, src_key_padding_mask)
        with held(place, "inside", False):
            result = run(self, src, src_mask, padding, is_causal)
        if hasattr(src, PADDING):
            setattr(result, PADDING, padding)
        return result

    @patches.around(torch, "_nested_tensor_from_mask")
    def pack(original: Any, tensor: Any, mask: Any, mask_check: bool = True) -> Any:
        if not place.inside:
            return original(tensor, mask, mask_check)
        mask.sum(1).cpu()
        packed = tensor.clone()
        setattr(packed, PADDING, mask.logical_not())
        return packed

    ask = torch.overrides.has_torch_function
    patches.set(torch.overrides, "has_torch_function", lambda values: not place.inside and ask(values))


@answers(torch.ctc_loss)
def _ctc_loss(session: Session, func: Any, log_probabilities: Any, targets: Any, *lengths: Any, **kwargs: Any) -> Any:
    """The lengths may be on the CPU; the mean over them is taken on the device, and torch copies them there."""
    if is_on_device(log_probabilities):
        lengths = tuple(move(session, it, DEVICE, None, False) if type(it) is torch.Tensor else it for it in lengths)
    return func(log_probabilities, targets, *lengths, **kwargs)


@answers(torch.dropout)
def _dropout(session: Session, func: Any, tensor: Any, p: float, train: bool) -> Any:
    """On CUDA one fused kernel does it (ATen/native/Dropout.cpp), with the same numbers here."""
    fused = train and 0 < p < 1 and is_on_device(tensor) and tensor.numel()
    return torch.native_dropout(tensor, p, train)[0] if fused else func(tensor, p, train)


@answers(torch._VF._pad_packed_sequence)
def _pad_packed(session: Session, func: Any, *args: Any, **kwargs: Any) -> Any:
    """The lengths are made on the host, in C++, which nothing tells from what it makes on the device."""
    padded, lengths = func(*args, **kwargs)
    with session.bookkeeping():
        return padded, lengths.clone()


# What `Host` charges for modules and optimizers, whose other Python is free or measured


def _install_host_prices(session: Session, patches: Patches) -> None:
    """A module's call and an optimizer's step cost what `Host` says; other Python in them is free or measured."""
    host = session.runtime.host

    @patches.around(torch.nn.Module, "__call__")
    def call(call_module: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if session.quiet or session.fetching or not session.in_recording_thread():
            return call_module(self, *args, **kwargs)
        session.begin_priced(host.module)
        try:
            if session.check is not None:
                return session.check.module(call_module, self, args, kwargs)
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


def rest(session: Session, patches: Patches) -> None:
    """Nothing is recorded any more: let parts of torch run below no mode that make nothing of the device."""
    data = () if session.touched else ((dataloader._BaseDataLoaderIter, "__next__"),)
    for owner, name in (*ASKS_NOTHING, *data):
        patches.around(owner, name)(_unseen)
    for kind in vars(torch.optim).values():
        if isinstance(kind, type) and getattr(kind, "step", None) and "step" in vars(kind):
            patches.around(kind, "step")(_step_unseen)


def _unseen(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with internals.DisableTorchFunction():
        return function(*args, **kwargs)


def _step_unseen(step: Callable[..., Any], self: Any, *closure: Any, **kwargs: Any) -> Any:
    alone = not (closure or kwargs) and all(_only_reads(self, group) for group in self.param_groups)
    with internals.DisableTorchFunction() if alone else nullcontext():
        return step(self, *closure, **kwargs)


def _asks_only(params: Iterable[torch.Tensor]) -> bool:
    """Tell whether these are torch's own tensors, below no mode but ours."""
    return internals.len_torch_function_stack() == 1 and PLAIN.issuperset(map(type, params))


def _only_reads(optimizer: Any, group: Any) -> bool:
    """Tell whether its state is made; fused ones ask for the device."""
    if group.get("fused") or not _asks_only(group["params"]):
        return False
    with internals.DisableTorchFunction():
        used = [param for param in group["params"] if param.grad is not None]
    return isinstance(optimizer, torch.optim.SGD) or all(optimizer.state.get(param) for param in used)


def _install_optimizers(patches: Patches) -> None:
    """What an optimizer asks of each parameter goes past `Functions`: it would see some five questions for each."""

    def zero_grad(zero: Any, self: Any, set_to_none: bool = True) -> None:
        is_module = isinstance(self, torch.nn.Module)
        params = self.parameters() if is_module else (each for group in self.param_groups for each in group["params"])
        with internals.DisableTorchFunction() if set_to_none and _asks_only(params) else nullcontext():
            zero(self, set_to_none)

    def init_group(init: Any, self: Any, group: Any, *lists: Any) -> Any:
        with internals.DisableTorchFunction() if _only_reads(self, group) else nullcontext():
            return init(self, group, *lists)

    for owner in (torch.optim.Optimizer, torch.nn.Module):
        patches.around(owner, "zero_grad")(zero_grad)
    for kind in vars(torch.optim).values():
        if isinstance(kind, type) and "_init_group" in vars(kind):
            patches.around(kind, "_init_group")(init_group)


def _grouped(group: Callable[..., Any], tensor_lists: Any, with_indices: bool = False) -> Any:
    """Group tensors by (device, dtype), device tensors apart from host tensors."""
    groups: dict[Any, Any] = {}
    for (device, dtype), (lists, indices) in group(tensor_lists, with_indices).items():
        with internals.DisableTorchFunction():  # our own questions
            places = [tensor is not None and is_on_device(tensor) for tensor in lists[0]]
        for here in sorted(set(places)):
            keep = [position for position, place in enumerate(places) if place == here]
            part = [[entries[position] for position in keep] if entries else entries for entries in lists]
            part_indices = [indices[position] for position in keep] if indices else indices
            groups[DEVICE if here else device, dtype] = (part, part_indices)
    return groups
