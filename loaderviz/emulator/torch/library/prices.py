"""What `Host` charges for modules and optimizers, whose other Python is free or measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import optimizer
from torch.utils import _foreach_utils
from torch.utils.hooks import RemovableHandle

from loaderviz.emulator.torch.session import DEVICE, Session
from loaderviz.emulator.torch.tensors import PLAIN, is_on_device

if TYPE_CHECKING:
    from loaderviz.emulator.torch.patches import Patches


def install(session: Session, patches: Patches) -> None:
    """Put all in place."""
    for owner in (_foreach_utils, torch._C):
        patches.around(owner, "_group_tensors_by_device_and_dtype")(_grouped)
    _install_host_prices(session, patches)
    _install_optimizers(patches)


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
