"""A fuzz: each public callable of torch.*, Tensor.* and functional on the CPU, and the same call on the emulated GPU.

Arguments are drawn from the schemas of the operators, or from `CALLS` where hardly any of these would be accepted.
Calls that the CPU accepts outside a recording are made again inside one, with every tensor, device and generator on
"cuda". Structure, dtype, shape, device and value of the result have to be the same, and so the arguments afterwards;
where PyTorch's FakeTensorMode can say on which device a GPU has a result, that is asked.

    python -m tests.emulator.torch.fuzz --seed 0 --draws 3 [patterns: torch.add, "F.*", ...]
"""

from __future__ import annotations

import argparse
import fnmatch
import inspect
import random
import re
import time
import traceback
import types
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

import loaderviz as lv

SPACES: dict[str, Any] = {"torch": torch, "Tensor": torch.Tensor, "F": F}
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
WEIGHTS = {
    "float32": 50,
    "float64": 12,
    "int64": 12,
    "bool": 6,
    "complex64": 6,
    "float16": 4,
    "bfloat16": 4,
    "uint8": 3,
}
DTYPES = {getattr(torch, name): weight for name, weight in WEIGHTS.items()}
SHAPES = {(3, 3): 30, (3,): 20, (3, 3, 3): 10, (): 8, (0,): 5, (2, 3): 10, (0, 3): 3, (1, 3, 3, 3): 7, (4, 1): 5}
HALF = (torch.float16, torch.bfloat16)
TRIES = 60  # refused draws of one callable before it is given up, for each accepted one that is asked for
BATCH = 60  # callables in one recording
DUNDERS = """
    abs add and array bool complex contains deepcopy div dlpack_device eq float floordiv format ge getitem gt
    iadd iand idiv ifloordiv ilshift imod imul index int invert ior ipow irshift isub iter itruediv ixor le len
    long lshift lt matmul mod mul ne neg nonzero or pos pow radd rand rdiv repr reversed rfloordiv rlshift rmatmul rmod
    rmul ror rpow rrshift rshift rsub rtruediv rxor setitem sub truediv xor
"""

# What is not called, and why. Names with or without their space

EXCLUDED = {
    "sets the state of the process, which the rest of the fuzz would run with": """
        torch.set_* torch.use_deterministic_algorithms torch.init_num_threads torch.autocast_* torch.manual_seed
        torch.seed torch.clear_autocast_cache torch.prepare_multiprocessing_environment
        torch.profiler_allow_cudagraph_cupti_lazy_reinit_cuda12
    """,
    "compiles, traces or parses programs, or is a helper of that": """
        torch.compile torch.cond torch.while_loop torch.vmap torch.fork torch.wait torch.import_ir_module*
        torch.parse_* torch.merge_type_from_type_comment torch.unify_type_list torch.classproperty torch.sym_fresh_size
        F.boolean_dispatch F.handle_torch_function F.has_torch_function* F.assert_int_or_pair F.Optional
        torch.sym_constrain_range*
    """,
    "reads or writes files, or memory that is not torch's": """
        torch.load torch.save torch.from_file torch.get_file_path torch.from_numpy torch.frombuffer
    """,
    "an operator of one backend by its name, without a kernel for the CPU": """
        torch.cudnn_* torch.miopen_* batch_norm_backward_elemt batch_norm_backward_reduce
        batch_norm_elemt batch_norm_gather_stats* batch_norm_stats
    """,
    "an operator of the CPU's own backend, or without a kernel for CUDA": """
        torch.mkldnn_* to_mkldnn torch.fbgemm_* torch.quantized_*
    """,
    "of backends other than CUDA": "Tensor.ipu Tensor.mtia Tensor.xpu torch.get_autocast_ipu* torch.get_autocast_xla*",
    "raises an error that says it was removed": """
        eig lstsq matrix_rank solve symeig Tensor.reinforce Tensor.volatile
    """,
    "gives addresses, which are different ones": "Tensor.data_ptr Tensor.const_data_ptr",
}
EXCLUSIONS = {name: reason for reason, names in EXCLUDED.items() for name in names.split()}

# The values of these are no matter: random, or what the memory held before
NO_VALUES = """
    alpha_dropout* bernoulli* binomial *dropout* cauchy_ empty* exponential_ fractional_max_pool* geometric_
    gumbel_softmax log_normal_ multinomial native_dropout new new_empty* normal* poisson rand* random_ resize* rrelu*
    uniform_ torch.lobpcg *_lowrank torch.hash_tensor_
""".split()

# Where the emulated device rightly answers otherwise than the CPU
ANSWERS: dict[str, Any] = {"Tensor.is_cuda": True, "Tensor.is_cpu": False, "get_device": 0}

# What a GPU refuses, and the CPU does not: name, error, why
REFUSED: list[tuple[str, str, str]] = [
    ("Tensor.numpy", "can't convert cuda", "numpy has no memory of a GPU"),
    ("Tensor.__array__", "can't convert cuda", "numpy has no memory of a GPU"),
    ("Tensor.apply_", "", "only for CPU tensors"),
    ("Tensor.map_", "", "only for CPU tensors"),
    ("Tensor.map2_", "", "only for CPU tensors"),
    ("Tensor.pin_memory", "only dense CPU tensors can be pinned", "as it says"),
]

# Arguments as Python, of alternatives divided by ";"
CALLS_TEXT = r"""
T H mT mH adjoint: f(3, 3)
as_strided as_strided_ as_strided_copy: g(3, 3), pick((3,), (2, 2)), pick((1,), (2,)) * 1
adaptive_avg_pool1d adaptive_max_pool1d: f(2, 3, 8), pick(1, 2, 4)
"""
CALLS: dict[str, str] = {}


class Draw:
    """Draws the arguments of one call: its tensors are alike as a rule, in dtype and shape."""

    def __init__(self, key: str) -> None:
        self.random = random.Random(key)
        self.generator = torch.Generator().manual_seed(self.random.getrandbits(32))
