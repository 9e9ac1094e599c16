"""The private names of torch's C++ that the emulator asks, each without its underscore; what it answers is set on `C`.

No other file has one, so that a torch without it fails here. The emulator's tests passed on 2.10, 2.13 and `NEWEST`.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import _C as C
from torch._C import (
    DisableTorchFunction,
    DisableTorchFunctionSubclass,
    DispatchKey,
    DispatchKeySet,
    Graph,
    ScriptFunction,
    ScriptMethod,
    ScriptModule,
    StorageBase,
    TensorBase,
    _create_function_from_graph as create_function_from_graph,
    _current_autograd_node as current_autograd_node,
    _current_graph_task_id as current_graph_task_id,
    _disabled_torch_function_impl as disabled_torch_function_impl,
    _DisableTorchDispatch as DisableTorchDispatch,
    _dispatch_get_all_op_names as dispatch_get_all_op_names,
    _dispatch_has_kernel_for_dispatch_key as dispatch_has_kernel_for_dispatch_key,
    _dispatch_tls_local_exclude_set as dispatch_tls_local_exclude_set,
    _dispatch_tls_local_include_set as dispatch_tls_local_include_set,
    _dispatch_tls_set_dispatch_key_excluded as dispatch_tls_set_dispatch_key_excluded,
    _dispatch_tls_set_dispatch_key_included as dispatch_tls_set_dispatch_key_included,
    _ensureCUDADeviceGuardSet as ensureCUDADeviceGuardSet,
    _ExcludeDispatchKeyGuard as ExcludeDispatchKeyGuard,
    _ForceDispatchKeyGuard as ForceDispatchKeyGuard,
    _get_dispatch_mode as get_dispatch_mode,
    _get_float32_matmul_precision as get_float32_matmul_precision,
    _is_torch_function_enabled as is_torch_function_enabled,
    _jit_pass_inline_fork_wait as jit_pass_inline_fork_wait,
    _len_torch_dispatch_stack as len_torch_dispatch_stack,
    _len_torch_function_stack as len_torch_function_stack,
    _pop_torch_function_stack as pop_torch_function_stack,
    _storage_Use_Count as storage_use_count,
    _TorchDispatchModeKey as TorchDispatchModeKey,
    parse_schema,
)
from torch._C._autograd import (
    DeviceType,
    _get_sequence_nr as get_sequence_nr,
    _push_saved_tensors_default_hooks as push_saved_tensors_default_hooks,
)
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.cuda import _gpu_trace as gpu_trace

NEWEST = (2, 14)
nested: Any = vars(C)["_nested"]
parse_to = C._nn._parse_to


def untried(version: str = torch.__version__) -> list[str]:
    """Return a sentence where a version of torch is newer than any that was tried, else nothing.

    >>> untried("2.13.1+cpu")
    []
    """
    if tuple(map(int, re.findall(r"\d+", version)[:2])) <= NEWEST:
        return []
    newest = ".".join(map(str, NEWEST))
    return [f"PyTorch {version} is newer than {newest}, the newest version on which the emulated GPU was tried"]
