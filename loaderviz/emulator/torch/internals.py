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
    parse_schema,
)
from torch._C._autograd import DeviceType
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.cuda import _gpu_trace as gpu_trace

NEWEST = (2, 14)
nested: Any = vars(C)["_nested"]
parse_to = C._nn._parse_to
get_sequence_nr = C._autograd._get_sequence_nr
push_saved_tensors_default_hooks = C._autograd._push_saved_tensors_default_hooks
create_function_from_graph = C._create_function_from_graph
current_autograd_node = C._current_autograd_node
current_graph_task_id = C._current_graph_task_id
disabled_torch_function_impl = C._disabled_torch_function_impl
DisableTorchDispatch = C._DisableTorchDispatch
dispatch_get_all_op_names = C._dispatch_get_all_op_names
dispatch_has_kernel_for_dispatch_key = C._dispatch_has_kernel_for_dispatch_key
dispatch_tls_local_exclude_set = C._dispatch_tls_local_exclude_set
dispatch_tls_local_include_set = C._dispatch_tls_local_include_set
dispatch_tls_set_dispatch_key_excluded = C._dispatch_tls_set_dispatch_key_excluded
dispatch_tls_set_dispatch_key_included = C._dispatch_tls_set_dispatch_key_included
ensureCUDADeviceGuardSet = C._ensureCUDADeviceGuardSet
ExcludeDispatchKeyGuard = C._ExcludeDispatchKeyGuard
ForceDispatchKeyGuard = C._ForceDispatchKeyGuard
get_dispatch_mode = C._get_dispatch_mode
get_float32_matmul_precision = C._get_float32_matmul_precision
is_torch_function_enabled = C._is_torch_function_enabled
jit_pass_inline_fork_wait = C._jit_pass_inline_fork_wait
len_torch_dispatch_stack = C._len_torch_dispatch_stack
len_torch_function_stack = C._len_torch_function_stack
pop_torch_function_stack = C._pop_torch_function_stack
storage_use_count = C._storage_Use_Count
TorchDispatchModeKey = C._TorchDispatchModeKey


def untried(version: str = torch.__version__) -> list[str]:
    """Return a sentence where a version of torch is newer than any that was tried, else nothing.

    >>> untried("2.13.1+cpu")
    []
    """
    if tuple(map(int, re.findall(r"\d+", version)[:2])) <= NEWEST:
        return []
    newest = ".".join(map(str, NEWEST))
    return [f"PyTorch {version} is newer than {newest}, the newest version on which the emulated GPU was tried"]
