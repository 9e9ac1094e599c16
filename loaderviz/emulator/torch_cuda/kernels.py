"""Kernels: what is known of each aten operator, and what it costs on the device, by bytes and FLOPs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from loaderviz.emulator import costs
from loaderviz.emulator.hardware import Gpu

Tensors = list[torch.Tensor]
aten = torch.ops.aten

# No kernel: they only make or describe memory.
NO_KERNEL = frozenset((
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "set_", "resize_",
    "_unsafe_view", "lift", "detach_", "squeeze_", "unsqueeze_", "transpose_", "t_", "as_strided_", "swapaxes_",
    "swapdims_", "record_stream",
))  # fmt: skip
QUESTIONS = frozenset(("is_same_size", "is_pinned", "_has_compatible_shallow_copy_type"))
# They read something back, so the host waits for the current stream (R25).
SYNCHRONIZING = frozenset((
    "_local_scalar_dense", "nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive",
    "unique_dim_consecutive", "equal", "is_nonzero", "bincount", "_linalg_check_errors",
))  # fmt: skip
INDEXING = frozenset(("index", "index_put_", "index_put", "_index_put_impl_", "_unsafe_index_put"))
GATHERING = frozenset(("index_select", "index", "gather", "embedding", "take"))  # they read a part of their source
# CPU tensors may stand beside device tensors here.
MIXED = INDEXING | {
    "copy_", "_to_copy", "_pack_padded_sequence", "_pack_padded_sequence_backward", "_ctc_loss", "_ctc_loss_backward",
    "tensor_split", "set_",
}  # fmt: skip
HOST_OUTPUTS = {"_pack_padded_sequence": 1}  # which result belongs on the host
MATMUL = frozenset(("mm", "addmm", "bmm", "baddbmm"))
FP32: costs.Precision = "fp32"
HALF = (torch.float16, torch.bfloat16)
# The CPU's kernels for attention, which torch's FLOP counter does not know: they count as CUDA's.
COUNTED_AS = {
    aten._scaled_dot_product_flash_attention_for_cpu: aten._scaled_dot_product_flash_attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: aten._scaled_dot_product_flash_attention_backward,
}


class Operator:
    """What is known of one aten overload, worked out once."""

    def __init__(self, overload: Any) -> None:
        schema = overload._schema
        self.overload, self.packet = overload, overload.overloadpacket
        self.name: str = schema.name
        self.base = self.name.split("::")[-1]
        aliases = [entry.alias_info for entry in schema.returns]
        # Views share their storage, and with it all that is known of it.
        self.is_free = (
            self.base in QUESTIONS
            or self.name.startswith("profiler::")
            or any(alias is not None and not alias.is_write for alias in aliases)
        )
        self.no_kernel = self.base in NO_KERNEL
        self.synchronizes = self.base in SYNCHRONIZING or overload is aten.repeat_interleave.Tensor
        self.indexes = self.base in INDEXING
        self.gathers = self.base in GATHERING
        self.mixed = self.base in MIXED
        self.host_output = HOST_OUTPUTS.get(self.base, -1)
        self.touches: Any = None  # what it reads and writes, worked out when it is first asked for
        self.flops: Callable[..., int] | None = flop_registry.get(COUNTED_AS.get(self.packet, self.packet))


class KernelCosts:
    """Time and share of the GPU of each kernel."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._flops: dict[Any, int] = {}
        self._known: dict[tuple[int, int, costs.Precision, int], tuple[int, int]] = {}

    def of(
        self, operator: Operator, args: Any, kwargs: Any, tensors: Tensors, sizes: list[int], outputs: Tensors
    ) -> tuple[int, int]:
        """Return (time [ns], share of the GPU [thousandths]) of an operator's kernel on `tensors` of `sizes` bytes."""
        nbytes = sum(sizes[1:] if operator.gathers else sizes)
        written = elements = 0
        for output in outputs:
            count = output.numel()
            written += count * output.element_size()
            elements = max(elements, count)
        nbytes += 2 * written if operator.gathers else written  # a gather reads as much of its source as it hands out
        if not elements:
            elements = max((tensor.numel() for tensor in tensors), default=1) or 1
        flops, precision = 0, FP32
        if operator.flops is not None:
            flops = self._count(operator, args, kwargs, tensors, outputs)
            precision = _precision(operator, tensors)
        key = nbytes, flops, precision, elements
        cost = self._known.get(key)
        if cost is None:
            time = costs.kernel_time(self._gpu, nbytes, flops, precision)
            cost = self._known[key] = time, costs.sm_share(self._gpu, elements)
        return cost

    def _count(self, operator: Operator, args: Any, kwargs: Any, tensors: Tensors, outputs: Tensors) -> int:
        key = (operator.packet, *(tensor.shape for tensor in tensors), *(output.shape for output in outputs))
        count = self._flops.get(key)
        if count is None:
            result: Any = outputs[0] if len(outputs) == 1 else tuple(outputs)
            if operator.base == "convolution_backward":  # its results may be None where no gradient is asked for
                result = (args[1], args[2], None)  # input and weight have the shapes of their gradients
            assert operator.flops is not None
            count = self._flops[key] = int(operator.flops(*args, **kwargs, out_val=result))
        return count


def _precision(operator: Operator, tensors: Tensors) -> costs.Precision:
    """Return in what precision the GPU would compute a product of these tensors."""
    dtype = next((tensor.dtype for tensor in tensors if tensor.dtype.is_floating_point), torch.float32)
    if dtype in HALF:
        return "fp16"
    if dtype is torch.float64:
        return "fp64"
    if operator.base in MATMUL:
        return "fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    return "tf32" if torch.backends.cudnn.allow_tf32 else "fp32"
