"""Autocast with CUDA's lists: which operators of the device take half precision, which float32, which the widest.

PyTorch casts at a dispatch key of each backend; an emulated tensor has the CPU's, so the CPU's lists would serve. Here
the operators that have a cast for CUDA (PyTorch is asked which) get one at a key that nobody uses, while autocast is
on: it casts tensors of the device, as aten/src/ATen/autocast_mode.h says, and leaves those of the CPU to the CPU's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.library import Library, fallthrough_kernel
from torch.utils._pytree import tree_leaves, tree_map_only

from loaderviz.emulator.torch import internals
from loaderviz.emulator.torch.functions import names
from loaderviz.emulator.torch.patches import Patches
from loaderviz.emulator.torch.session import Session
from loaderviz.emulator.torch.tensors import is_on_device

KEY = "AutocastPrivateUse1"
KEYS: Any = internals.DispatchKey
OURS, CPUS = (internals.DispatchKeySet(key) for key in (KEYS.AutocastPrivateUse1, KEYS.AutocastCPU))
Kernel = Callable[..., Any]
Change = Callable[[Any, Any], Any]  # of the arguments of a call and its keywords
# By name, without overload. An operator with a cast for CUDA that stands in none of these is computed in float32.
LOWER = names("""
    _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution prelu
    cudnn_convolution cudnn_convolution_transpose addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm
    baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell
    rnn_tanh_cell rnn_relu_cell scaled_dot_product_attention _scaled_dot_product_flash_attention
""")
WIDEST = names("addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add")
# float32 is asked of the result, if the call asks for no dtype; a norm has another overload for that
RESULT = names("prod softmax log_softmax cumprod cumsum linalg_vector_norm linalg_matrix_norm sum")
NORM = {"aten::norm.Scalar": "ScalarOpt_dtype", "aten::norm.ScalarOpt_dim": "ScalarOpt_dim_dtype"}
UNSAFE = "binary_cross_entropy"
# What cuDNN does for a whole RNN (aten/src/ATen/cudnn/AutocastRNN.cpp), and the CPU cell by cell
RNN = tuple(f"aten::{kind}.{form}" for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu") for form in ("input", "data"))


def install(session: Session, patches: Patches) -> None:
    """Let the state of autocast be CUDA's own, and the casts be made while it is on."""
    casts = Casts(session)
    patches.at_end(casts.end)

    @patches.around(torch, "set_autocast_enabled", "set_autocast_cpu_enabled")
    def set_enabled(original: Any, *args: Any) -> None:
        original(*args)
        casts.follow()

    @patches.around(torch, "clear_autocast_cache")
    def clear_cache(original: Any) -> None:
        original()
        casts.cache.clear()


class Casts:
    """The casts of one recording, and the weights cast since autocast was entered."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by the id of a leaf: that, and its cast
        self._libraries: list[Library] = []

    def follow(self) -> None:
        """Autocast was switched: let the operators come here if it is on for a device that concerns us."""
        on = torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu")
        if on and not self._libraries:
            self._begin()
        internals.dispatch_tls_set_dispatch_key_included(KEY, on)
        internals.dispatch_tls_set_dispatch_key_excluded(KEY, not on)
        if torch.is_autocast_enabled("cuda"):
            self.session.note("autocast: dtypes by CUDA's lists, the values computed by the CPU's kernels")

    def end(self) -> None:
        """The recording is over."""
        if self._libraries:
            internals.dispatch_tls_set_dispatch_key_included(KEY, False)
            internals.dispatch_tls_set_dispatch_key_excluded(KEY, True)
        while self._libraries:
            self._libraries.pop()._destroy()
        self.cache.clear()

    def _begin(self) -> None:
        others, aten = Library("_", "IMPL", KEY), Library("aten", "IMPL", KEY)
        self._libraries = [others, aten]
        others.fallback(fallthrough_kernel, KEY)
        for name in operators_with("AutocastCUDA"):
            aten.impl(name, self._kernel_of(name))
        for name in RNN:
            aten.impl(name, _kernel(_overload(name), self._cast(_lower)))
        for name in operators_with("AutocastCPU") - operators_with("AutocastCUDA"):
            aten.impl(name, _past_the_cpus(_overload(name)), with_keyset=True)

    def _kernel_of(self, name: str) -> Kernel:
        base, overload = name.removeprefix("aten::").partition(".")[0], _overload(name)
        if base in LOWER or base in WIDEST:
            return _kernel(overload, self._cast(_lower if base in LOWER else _widest))
        if base in RESULT:
            return _kernel(overload, _with_result(overload))
        if name in NORM:
            overload = getattr(torch.ops.aten.norm, NORM[name])
            return _kernel(overload, _with_result(overload, appends=True))
        return _kernel(overload, _refuse if base == UNSAFE else self._cast(lambda values: torch.float32))

    def _cast(self, choose: Callable[[Iterable[torch.Tensor]], torch.dtype]) -> Change:
        def change(args: Any, kwargs: Any) -> Any:
            dtype = choose(filter(_is_eligible, tree_leaves((args, kwargs))))
            return tree_map_only(torch.Tensor, lambda value: self.to(value, dtype), (args, kwargs))

        return change

    def to(self, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Cast a tensor if it is one that autocast casts; a weight only once."""
        if value.dtype is dtype or not _is_eligible(value):
            return value
        once = value.dtype is torch.float32 and value.requires_grad and value.is_leaf and value._base is None
        if not (once and dtype is not torch.float32 and torch.is_autocast_cache_enabled()):
            return value.to(dtype)
        if id(value) not in self.cache:
            self.cache[id(value)] = value, value.to(dtype)
        return self.cache[id(value)][1]


def _kernel(overload: Any, change: Change) -> Kernel:
    """Return what calls an operator; of tensors of the device with what autocast changes, and not the CPU's."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with internals.DisableTorchFunction(), internals.ExcludeDispatchKeyGuard(OURS):
            if not any(map(is_on_device, tree_leaves((args, kwargs)))):
                return overload(*args, **kwargs)
            if torch.is_autocast_enabled("cuda"):
                args, kwargs = change(args, kwargs)
            with internals.ExcludeDispatchKeyGuard(CPUS):
                return overload(*args, **kwargs)

    return kernel


def _with_result(overload: Any, appends: bool = False) -> Change:
    """Return what asks an operator for a result of float32, if the call asks for none."""
    place = next(place for place, argument in enumerate(overload._schema.arguments) if argument.name == "dtype")

    def change(args: Any, kwargs: Any) -> Any:
        if (args[place] if place < len(args) else kwargs.get("dtype")) is not None:
            return args, kwargs
        dtype = torch.float32 if _is_eligible(args[0]) else args[0].dtype if appends else None
        return args[:place], {**kwargs, "dtype": dtype}

    return change


def _refuse(args: Any, kwargs: Any) -> Any:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast. Use "
        "binary_cross_entropy_with_logits or BCEWithLogitsLoss, which join the sigmoid before it to it."
    )


def _lower(values: Iterable[torch.Tensor]) -> torch.dtype:
    return torch.get_autocast_dtype("cuda")


def _widest(values: Iterable[torch.Tensor]) -> torch.dtype:
    return torch.float32 if any(value.dtype is torch.float32 for value in values) else _lower(values)


def _past_the_cpus(overload: Any) -> Kernel:
    """Return what calls an operator that the CPU's autocast casts, but CUDA's does not: its parts may be cast."""

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        skipped = OURS | CPUS if any(map(is_on_device, tree_leaves((args, kwargs)))) else OURS
        return overload.redispatch(keys - skipped, *args, **kwargs)

    return kernel


def _is_eligible(value: Any) -> bool:
    return is_on_device(value) and value.is_floating_point() and value.dtype is not torch.float64


def operators_with(key: str) -> set[str]:
    """Return the names of the aten operators, with their overloads, that have a kernel of their own at a dispatch key.

    >>> "aten::pow.Tensor_Scalar" in operators_with("AutocastCUDA")
    True
    """
    has, known = internals.dispatch_has_kernel_for_dispatch_key, internals.dispatch_get_all_op_names()
    return {name for name in known if name.startswith("aten::") and has(name, key)}


def _overload(name: str) -> Any:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")
