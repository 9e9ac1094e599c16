"""Library: the corners of torch that ask for a device below Python's modes, each with a small stand-in.

Here are those of a few lines (generators, hooks of saved tensors, attention); the others have a file each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import graph

from loaderviz.emulator.torch.functions import Functions
from loaderviz.emulator.torch.library import (
    autocast,
    compilers,
    cuda,
    graphs,
    memory,
    methods,
    parallel,
    prices,
    profiler,
    storing,
    telemetry,
)
from loaderviz.emulator.torch.library.methods import PADDING
from loaderviz.emulator.torch.patches import stands_for
from loaderviz.emulator.torch.placement import install_types
from loaderviz.emulator.torch.session import Session, wanted_device
from loaderviz.emulator.torch.tensors import is_on_device

if TYPE_CHECKING:
    from loaderviz.emulator.torch.operators import Operators
    from loaderviz.emulator.torch.patches import Patches

ROOMS = methods, cuda, memory, telemetry, graphs, prices, parallel, autocast, compilers, storing, profiler


def install(session: Session, patches: Patches, operators: Operators, calls: Functions) -> None:
    """Put all stand-ins in place."""
    for room in ROOMS:
        room.install(session, patches)
    patches.around(graph, "_engine_run_backward")(operators.backward.run)
    patches.function(torch, "Generator", _generator(torch.Generator))
    patches.set(torch.backends.cuda, "is_built", lambda: True)
    install_types(session, patches)
    _install_saved_tensor_hooks(patches, calls)
    _install_attention(patches)


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
            return original(tensor, mask, mask_check)
        mask.sum(1).cpu()
        packed = tensor.clone()
        setattr(packed, PADDING, mask.logical_not())
        return packed

    ask = torch.overrides.has_torch_function
    patches.set(torch.overrides, "has_torch_function", lambda values: not inside[-1] and ask(values))
