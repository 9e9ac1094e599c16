"""A fuzz: each public callable of torch.*, Tensor.* and functional on the CPU, and the same call on the emulated GPU.

Arguments are drawn from the schemas of the operators, or from `CALLS_TEXT` where hardly any of these would be accepted.
Calls that the CPU accepts outside a recording are made again inside one, with every tensor, device and generator on
"cuda". Structure, dtype, shape, strides, device and value of the result have to be the same, which of the arguments it
shares memory with, and the arguments afterwards. Where PyTorch's FakeTensorMode can say of which dtype and on which
device the results are on a GPU, that is asked. Of those that the CPU refuses a few are tried on the device, too.

    python -m tests.emulator.torch.fuzz --seed 0 --draws 3 [patterns: torch.add, "F.*", ...]
"""

import argparse
import fnmatch
import inspect
import random
import re
import time
import traceback
import warnings
from collections import Counter
from functools import partial
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.dlpack import DLDeviceType

import loaderviz as lv

MORE = ("linalg", "fft", "special")
SPACES = {"torch": torch, "Tensor": torch.Tensor, "F": F} | {name: getattr(torch, name) for name in MORE}
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
HALF = (torch.float16, torch.bfloat16)
DTYPES = [torch.float32] * 10 + [torch.float64, torch.int64] * 2 + [torch.bool, torch.complex64, torch.uint8, *HALF]
SHAPES = [(3, 3)] * 6 + [(3,)] * 4 + [(3, 3, 3), (2, 3)] * 2 + [(), (), (0,), (0, 3), (1, 3, 3, 3), (4, 1)]
TRIES = 60  # draws for each accepted one that is asked for, before a callable is given up
BATCH = 60  # callables in one recording
DUNDERS = """
    abs add and array bool complex contains deepcopy div dlpack_device eq float floordiv format ge getitem gt iadd iand
    idiv ifloordiv ilshift imod imul index int invert ior ipow irshift isub iter itruediv ixor le len long lshift lt
    matmul mod mul ne neg nonzero or pos pow radd rand rdiv repr reversed rfloordiv rlshift rmatmul rmod rmul ror rpow
    rrshift rshift rsub rtruediv rxor setitem sub truediv xor
"""

# What is not called, and why: names with or without their space

EXCLUDED = {
    "sets the state of the process, which the rest of the fuzz would run with": """
        torch.set_* torch.use_deterministic_algorithms torch.init_num_threads torch.autocast_* torch.manual_seed
        torch.seed torch.clear_autocast_cache torch.prepare_multiprocessing_environment
        torch.profiler_allow_cudagraph_cupti_lazy_reinit_cuda12
    """,
    "compiles, traces or parses programs, or is a helper of that": """
        torch.compile torch.cond torch.while_loop torch.vmap torch.fork torch.wait torch.import_ir_module* torch.parse_*
        torch.merge_type_from_type_comment torch.unify_type_list torch.classproperty torch.sym_fresh_size
        torch.sym_constrain_range* F.boolean_dispatch F.handle_torch_function F.has_torch_function* F.Optional
        F.assert_int_or_pair
    """,
    "reads or writes files, or memory that is not torch's": """
        torch.load torch.save torch.from_file torch.get_file_path torch.from_numpy torch.frombuffer
    """,
    "an operator without a kernel for the CPU, most of one backend by its name": """
        torch.cudnn_* torch.miopen_* batch_norm_backward_elemt batch_norm_backward_reduce batch_norm_elemt
        batch_norm_gather_stats* batch_norm_stats indices_copy values_copy
    """,
    "an operator of the CPU alone: a backend of it, or one that reads its memory": """
        torch.mkldnn_* to_mkldnn torch.fbgemm_* torch.quantized_* torch.choose_qparams_optimized
    """,
    "CPU torch refuses it where there is no GPU; other tests call it": """
        Tensor.cuda Tensor.pin_memory Tensor.record_stream F.scaled_grouped_mm
    """,
    "of a backend other than CUDA": """
        Tensor.ipu Tensor.mtia Tensor.xpu torch.get_autocast_ipu* torch.get_autocast_xla*
    """,
    "raises an error that says it was removed": """
        torch.eig torch.lstsq torch.matrix_rank torch.solve torch.symeig Tensor.eig Tensor.lstsq Tensor.solve
        Tensor.symeig Tensor.reinforce Tensor.volatile
    """,
    "is of functorch's dimensions": "Tensor.index",
    "is an address": "Tensor.data_ptr Tensor.const_data_ptr",
}

# Whose values are no matter: random, what the memory held before, or of matrices so near to singular ones that LAPACK's
# rounding decides, which hangs on where the memory begins
NO_VALUES = """
    alpha_dropout* bernoulli* binomial *dropout* cauchy_ empty* exponential_ fractional_max_pool* geometric_
    gumbel_softmax log_normal_ multinomial new new_empty* normal* poisson rand* random_ resize* rrelu* uniform_
    torch.lobpcg *_lowrank linalg.lstsq
"""

# Where rounding may differ: below a mode torch takes the decomposition with vectors, also where it needs values alone,
# and what LAPACK rounds may hang on where its memory begins
ROUNDED = "nuclear_norm linalg.cond linalg.eigvalsh linalg.svdvals linalg.*norm"

# Which are views on the CPU, or have other strides, since there is nothing to be copied from the device
COPIED = "Tensor.cpu Tensor.type Tensor.type_as Tensor.to indices values dequantize from_dlpack"

# What the emulated device rightly answers instead of `due`, which is the CPU's answer
ANSWERS = {
    "Tensor.is_cuda": lambda due: True,
    "Tensor.is_cpu": lambda due: False,
    "Tensor.is_shared": lambda due: True,
    "get_device": lambda due: 0,
    "torch.get_autocast_dtype": lambda due: torch.float16,
    "torch.get_default_device": lambda due: CPU,
    "Tensor.device": lambda due: CUDA,
    "torch.typename": lambda due: due.replace("torch.", "torch.cuda."),
    "Tensor.type": lambda due: due.replace("torch.", "torch.cuda.") if isinstance(due, str) else None,
    "Tensor.__dlpack_device__": lambda due: ("tuple", DLDeviceType.kDLCUDA, 0),
}

# What a GPU always refuses, and which of what the CPU accepts it refuses besides: names, the error, why
NOT_ON_GPU = "Tensor.numpy Tensor.__array__ Tensor.apply_ Tensor.map_ Tensor.map2_"
REFUSED = (
    ("Tensor.numpy Tensor.__array__", "can't convert cuda", "numpy has no memory of a GPU"),
    ("Tensor.apply_ Tensor.map_ Tensor.map2_", "only implemented on CPU tensors", "Python's functions run on the host"),
    ("*", r"_cuda\" not implemented for '(Long|Int|Short|Char|Byte|Bool)'", "CUDA has no products of integers"),
    ("torch.rand*", "Expected a 'cpu' device type for generator", "a generator of the GPU, and no device"),
    ("native_channel_shuffle", "view size is not compatible", "CUDA has the composite one, which makes a view"),
)
APART = "same device|two devices|is on cpu|on CPU"  # what a GPU says where one operand may not be on the host

# How arguments are drawn, in the words of `words_of`: of a callable, alternatives divided by ";"; else by kind and name

CALLS_TEXT = """
    T H t t_ mH mT adjoint: t(2, 3); t(3, 3)
    as_strided as_strided_ as_strided_copy: f(3, 3), pick((3,), (2, 2)), (1,) * 2; f(3, 3), (2, 2), (3, 1),
        **maybe(storage_offset=1)
    as_strided_scatter: f(3, 3), f(2, 2), (2, 2), (3, 1)
    torch.adaptive_avg_pool1d torch.adaptive_max_pool1d F.adaptive_avg_pool1d F.adaptive_max_pool1d*: f(2, 3, 8),
        pick(1, 2, 4)
    F.adaptive_avg_pool2d F.adaptive_max_pool2d*: f(2, 3, 8, 8), pick(1, 2, (4, 2)); f(3, 5, 7), 3
    F.adaptive_avg_pool3d F.adaptive_max_pool3d*: f(2, 3, 4, 4, 4), pick(1, 2, (4, 2, 1)); f(3, 5, 7, 4), 3
    F.avg_pool1d F.max_pool1d* torch.max_pool1d* torch.avg_pool1d: f(2, 3, 8), pick(2, 3), **maybe(stride=2, padding=1,
        ceil_mode=True)
    F.avg_pool2d F.max_pool2d* torch.max_pool2d: f(2, 3, 8, 8), pick(2, (2, 3)), **maybe(stride=2, padding=1,
        ceil_mode=True)
    F.avg_pool3d F.max_pool3d* torch.max_pool3d: f(2, 3, 6, 6, 6), pick(2, 3), **maybe(stride=2, padding=1,
        ceil_mode=True)
    F.lp_pool1d: f(2, 3, 8), pick(1, 2), 2
    F.lp_pool2d: f(2, 3, 8, 8), pick(1, 2), 2
    F.lp_pool3d: f(2, 3, 4, 4, 4), pick(1, 2), 2
    F.fractional_max_pool2d*: f(2, 3, 8, 8), 2, pick(3, 4)
    F.fractional_max_pool3d*: f(2, 3, 8, 8, 8), 2, pick(3, 4)
    F.max_unpool1d: f(2, 3, 4), i(8, 2, 3, 4), 2
    F.max_unpool2d: f(2, 3, 4, 4), i(64, 2, 3, 4, 4), 2
    F.max_unpool3d: f(2, 3, 2, 2, 2), i(64, 2, 3, 2, 2, 2), 2
    affine_grid_generator cudnn_affine_grid_generator: f(2, 2, 3), (2, 3, 4, 5), pick(True, False)
    F.affine_grid: f(2, 2, 3), (2, 3, 4, 5), True; f(2, 3, 4), (2, 3, 4, 5, 2), False
    F.grid_sample: f(2, 3, 4, 4), f(2, 5, 5, 2), pick("bilinear", "nearest", "bicubic"), pick("zeros", "border",
        "reflection"), False
    grid_sampler grid_sampler_2d: f(2, 3, 4, 4), f(2, 5, 5, 2), n(0, 1), n(0, 2), False
    grid_sampler_3d: f(2, 3, 4, 4, 4), f(2, 5, 5, 5, 3), n(0, 1), n(0, 2), False
    conv1d: t(2, 4, 9), t(6, 2, 3), pick(None, t(6)), pick(1, 2), pick(0, 1, "valid"), 1, 2
    conv2d: f(2, 4, 8, 8), f(6, 2, 3, 3), pick(None, f(6)), pick(1, 2), pick(0, 1, "valid"), 1, 2
    conv3d: f(2, 4, 5, 5, 5), f(6, 4, 3, 3, 3), pick(None, f(6)), pick(1, 2), pick(0, 1)
    conv_transpose1d: f(2, 4, 9), f(4, 2, 3), pick(None, f(4)), 2, 1, 1, 2
    conv_transpose2d: f(2, 4, 5, 5), f(4, 2, 3, 3), pick(None, f(4)), 2, 1, 1, 2
    conv_transpose3d: f(2, 4, 3, 3, 3), f(4, 2, 3, 3, 3), pick(None, f(4)), 2, 1, 1, 2
    conv_tbc: f(5, 2, 3), f(2, 3, 4), f(4), n(0, 1)
    convolution: f(2, 4, 8, 8), f(6, 4, 3, 3), pick(None, f(6)), [1, 1], [0, 0], [1, 1], False, [0, 0], 1
    torch.channel_shuffle F.channel_shuffle native_channel_shuffle: t(2, 4, 3, 3), 2
    pixel_shuffle: t(2, 4, 3, 3), 2
    pixel_unshuffle: t(2, 1, 4, 4), 2
    F.fold: f(2, 12, 9), (4, 4), (2, 2)
    F.unfold: f(2, 3, 4, 4), 2
    Tensor.unfold: t(4, 5), n(0, 1), 2, n(1, 2)
    unfold_copy: t(4, 5), n(0, 1), 2, n(1, 2)
    F.interpolate F.upsample: f(2, 3, 4, 4), pick(8, (3, 5)), mode=pick("nearest", "bilinear", "bicubic", "area"); f(2,
        3, 4), scale_factor=2.0, mode=pick("nearest", "linear")
    F.upsample_bilinear F.upsample_nearest: f(2, 3, 4, 4), 8; f(2, 3, 4, 4), scale_factor=2
    F.pad: t(2, 3, 4), (1, 1), **maybe(value=2); f(2, 3, 4), (1, 2), pick("reflect", "replicate", "circular")
    constant_pad_nd: t(2, 3), (1, n(0, 2)), number()
    F.batch_norm: f(2, 3, 4), f(3), u(3), **maybe(weight=f(3), bias=f(3), training=True)
    F.instance_norm: f(2, 3, 4), **maybe(running_mean=f(3), running_var=u(3))
    F.group_norm torch.group_norm: f(2, 4, 3), 2, pick(None, f(4)), pick(None, f(4))
    F.layer_norm torch.layer_norm: f(2, 3, 4), (4,), pick(None, f(4)), pick(None, f(4))
    rms_norm: f(2, 3, 4), (4,), pick(None, f(4))
    F.local_response_norm: f(2, 4, 3), 2
    torch.batch_norm: f(2, 3, 4), f(3), f(3), f(3), u(3), pick(True, False), 0.1, 1e-5, True
    torch.instance_norm: f(2, 3, 4), f(3), f(3), pick(None, f(3)), u(3), True, 0.1, 1e-5, True
    native_batch_norm: f(2, 3, 4), f(3), f(3), f(3), u(3), pick(True, False), 0.1, 1e-5
    native_group_norm: f(2, 4, 3), f(4), f(4), 2, 4, 3, 2, 1e-5
    native_layer_norm: f(2, 3, 4), (4,), f(4), f(4), 1e-5
    batch_norm_update_stats: f(2, 3, 4), f(3), u(3), 0.1
    F.normalize: f(2, 3), **maybe(p=1.0, dim=0)
    linear: f(2, 3), f(4, 3), pick(None, f(4))
    bilinear: f(2, 3), f(2, 4), f(5, 3, 4), pick(None, f(5))
    prelu: f(2, 3), f(pick(1, 3))
    F.embedding: i(5, 2, 3), t(5, 4), **maybe(padding_idx=1)
    F.embedding_bag: i(5, 2, 3), f(5, 4), mode=pick("sum", "mean", "max"); i(5, 6), f(5, 4), torch.tensor([0, 2])
    torch.embedding: t(5, 4), i(5, 2, 3), n(-1, 2)
    torch.embedding_bag: f(5, 4), i(5, 6), torch.tensor([0, 2]), False, n(0, 2)
    embedding_renorm_: f(5, 4), i(5, 3), 0.5, 2.0
    F.one_hot: i(4, 3), pick(-1, 5)
    F.cosine_embedding_loss torch.cosine_embedding_loss: f(3, 4), f(3, 4), torch.tensor([1, -1, 1])
    F.cross_entropy: f(4, 5), i(5, 4), **maybe(weight=u(5), label_smoothing=0.1, reduction=pick("sum", "none")); f(4,
        5), u(4, 5)
    F.linear_cross_entropy: f(4, 5), f(6, 5), i(6, 4)
    F.nll_loss: f(4, 5), i(5, 4), **maybe(weight=u(5), reduction=pick("sum", "none")); f(2, 5, 3, 3), i(5, 2, 3, 3)
    F.ctc_loss torch.ctc_loss: f(6, 2, 5).log_softmax(2), i(4, 2, 3) + 1, torch.tensor([6, 5]), torch.tensor([3, 2]);
        f(6, 2, 5).log_softmax(2), i(4, 2, 3) + 1, (6, 5), (3, 2)
    F.binary_cross_entropy: u(3, 4), u(3, 4), **maybe(weight=u(3, 4), reduction=pick("sum", "none"))
    F.binary_cross_entropy_with_logits: f(3, 4), u(3, 4), **maybe(weight=u(3, 4), pos_weight=u(4), reduction="sum")
    F.gaussian_nll_loss: f(3, 4), f(3, 4), u(3, 4), **maybe(full=True, reduction="sum")
    F.hinge_embedding_loss F.soft_margin_loss: f(3, 4), torch.sign(f(3, 4)), **maybe(reduction=pick("sum", "none"))
    F.huber_loss F.l1_loss F.mse_loss F.smooth_l1_loss: f(3, 4), f(3, 4), **maybe(reduction=pick("sum", "none"),
        weight=u(3, 4)); f(3, 4), f(3, 4)
    F.kl_div F.poisson_nll_loss: f(3, 4), u(3, 4), **maybe(reduction=pick("sum", "none"))
    F.margin_ranking_loss: f(4), f(4), torch.sign(f(4)), **maybe(margin=0.5)
    F.multi_margin_loss: f(4, 5), i(5, 4), **maybe(p=2, weight=u(5), reduction="none")
    F.multilabel_margin_loss: f(4, 5), i(5, 4, 5), **maybe(reduction="none")
    F.multilabel_soft_margin_loss: f(4, 5), i(2, 4, 5), **maybe(weight=u(5), reduction="none")
    F.triplet_margin_loss F.triplet_margin_with_distance_loss: f(3, 4), f(3, 4), f(3, 4), **maybe(margin=0.5,
        swap=True, reduction="none")
    torch.kl_div: f(3, 4), u(3, 4), n(0, 2)
    torch.poisson_nll_loss: f(3, 4), u(3, 4), True, False, 1e-8, n(0, 2)
    torch.hinge_embedding_loss: f(3, 4), torch.sign(f(3, 4)), 1.0, n(0, 2)
    torch.margin_ranking_loss: f(4), f(4), torch.sign(f(4)), 0.5, n(0, 2)
    torch.triplet_margin_loss: f(3, 4), f(3, 4), f(3, 4), reduction=n(0, 2)
    torch.binary_cross_entropy_with_logits: f(3, 4), u(3, 4), u(3, 4), u(4), n(0, 2)
    F.scaled_dot_product_attention: f(2, 2, 5, 4), f(2, 2, 5, 4), f(2, 2, 5, 4), **maybe(attn_mask=i(2, 5, 5) > 0);
        f(2, 2, 5, 4), f(2, 2, 5, 4), f(2, 2, 5, 4), is_causal=True
    F.multi_head_attention_forward: f(5, 2, 4), f(5, 2, 4), f(5, 2, 4), 4, 2, f(12, 4), f(12), None, None, False, 0.0,
        f(4, 4), f(4), **maybe(need_weights=False, is_causal=False)
    F.grouped_mm: t(3, 16, 16, dtype=torch.bfloat16), t(3, 16, 16, dtype=torch.bfloat16)
    F.softmax F.log_softmax F.softmin F.gumbel_softmax F.glu: f(4, 6), dim=n(-2, 1)
    torch.softmax torch.log_softmax Tensor.softmax Tensor.log_softmax: f(4, 6), n(-2, 1), **maybe(dtype=torch.float64)
    F.dropout2d F.dropout3d feature_dropout feature_dropout_: f(2, 3, 4, 4), 0.5, True
    F.dropout1d: f(2, 3, 4), 0.5, True
    torch.dropout torch.dropout_ torch.alpha_dropout torch.alpha_dropout_ torch.feature_alpha_dropout
        torch.feature_alpha_dropout_ native_dropout: f(3, 4), 0.5, pick(True, False)
    F.threshold: t(3, 4), 0.5, 2.0
    F.rrelu: f(3, 4), 0.1, 0.3, pick(True, False)
    rnn_tanh rnn_relu: f(5, 2, 3), f(1, 2, 4), [f(4, 3), f(4, 4), f(4), f(4)], True, 1, 0.0, False, False, False
    gru: f(5, 2, 3), f(1, 2, 4), [f(12, 3), f(12, 4), f(12), f(12)], True, 1, 0.0, False, False, False
    lstm: f(5, 2, 3), [f(1, 2, 4), f(1, 2, 4)], [f(16, 3), f(16, 4), f(16), f(16)], True, 1, 0.0, False, False, False
    rnn_tanh_cell rnn_relu_cell: f(2, 3), f(2, 4), f(4, 3), f(4, 4), f(4), f(4)
    gru_cell: f(2, 3), f(2, 4), f(12, 3), f(12, 4), f(12), f(12)
    lstm_cell: f(2, 3), [f(2, 4), f(2, 4)], f(16, 3), f(16, 4), f(16), f(16)
    mm: t(2, 3), t(3, 4)
    bmm: t(2, 3, 4), t(2, 4, 3)
    mv: t(2, 3), t(3)
    dot vdot: t(3), t(3)
    addmm addmm_: t(2, 4), t(2, 3), t(3, 4), **maybe(alpha=2, beta=3)
    addmv addmv_: t(2), t(2, 3), t(3), **maybe(alpha=2, beta=3)
    addr addr_: t(2, 3), t(2), t(3), **maybe(alpha=2, beta=3)
    baddbmm baddbmm_: t(2, 3, 5), t(2, 3, 4), t(2, 4, 5), **maybe(alpha=2, beta=3)
    addbmm addbmm_: t(3, 5), t(2, 3, 4), t(2, 4, 5), **maybe(alpha=2, beta=3)
    chain_matmul: c(2, 3), c(3, 4), c(4, 2)
    einsum: pick("ij,jk->ik", "ij,jk", "ij,jk->i"), t(2, 3), t(3, 4); "ii->i", t(3, 3)
    tensordot: t(2, 3), t(3, 4), pick(1, ([1], [0]))
    cdist: f(2, 3), f(4, 3), **maybe(p=1.0)
    pdist: f(4, 3), pick(1.0, 2.0)
    cholesky logdet inverse pinverse cholesky_inverse: pd(3, 3); pd(2, 3, 3)
    cholesky_solve: c(3, 2), torch.linalg.cholesky(pd(3, 3))
    det slogdet matrix_exp: c(3, 3); c(2, 3, 3)
    matrix_power: c(3, 3), n(-1, 3)
    qr svd geqrf: c(4, 3); c(2, 3, 3)
    torch.lu Tensor.lu: c(3, 3), **maybe(get_infos=True)
    linalg.matrix_rank: c(3, 3), **maybe(hermitian=True)
    linalg.lu_solve: *torch.linalg.lu_factor(pd(3, 3)), c(3, 2)
    linalg.ldl_solve: *torch.linalg.ldl_factor(pd(3, 3)), c(3, 2)
    lu_solve: c(3, 2), *torch.linalg.lu_factor(pd(3, 3))
    lu_unpack: *torch.linalg.lu_factor(pd(3, 3)), **maybe(unpack_pivots=False)
    orgqr: *torch.geqrf(c(4, 3)),
    ormqr: *torch.geqrf(c(4, 4)), c(4, 3)
    triangular_solve: c(3, 2), pd(3, 3), **maybe(upper=False, transpose=True)
    lobpcg: pd(9, 9), 2
    svd_lowrank pca_lowrank: f(6, 4), 2
    renorm renorm_: c(3, 4), 2, n(0, 1), 1.0
    norm: c(3, 4), **maybe(dim=n(0, 1), keepdim=True); c(3, 4), pick(1, 2, "fro", float("inf")), n(0, 1)
    norm_except_dim: c(3, 4), 2, n(0, 1)
    nuclear_norm: c(3, 4), **maybe(keepdim=True)
    native_norm: s(), pick(1, 2)
    torch.from_dlpack torch.to_dlpack: t(3)
    torch.initial_seed torch.is_autocast_cpu_enabled: *()
    F.logsigmoid: f(3)
    map2_: f(3), f(3), f(3), lambda one, two, three: one + two
    F.scaled_mm: f(16, 16).to(torch.float8_e4m3fn), f(16, 16).to(torch.float8_e4m3fn).mT, torch.ones(1),
        F.ScalingType.TensorWise, torch.ones(1), F.ScalingType.TensorWise
    kthvalue: f(4), n(1, 4); t(3, 4), n(1, 3), 0
    topk: t(3, 4), n(1, 3), **maybe(dim=0, largest=False)
    quantile nanquantile: c(3, 4).abs(), pick(0.3, u()), **maybe(dim=n(0, 1)); f(5).float(), torch.tensor([0.25, 0.5])
    histc: f(8), n(2, 5), -2, 2
    histogram: f(8).double(), n(2, 5); f(8).float(), torch.tensor([-1.0, 0.0, 1.0])
    histogramdd: f(8, 2).float(), n(2, 4)
    bincount: i(5, 8), **maybe(weights=f(8), minlength=7)
    gather: t(3, 4), n(0, 1), i(3, 2, 3)
    index_select: t(3, 4), n(0, 1), i(3, 2)
    take: t(3, 4), i(12, 2, 3)
    take_along_dim: t(3, 4), i(3, 3, 4), **maybe(dim=n(0, 1)); t(3, 4), i(3, 3, 4), 0
    index_add index_add_ index_copy index_copy_: x(), 0, i(1, 1), x(); t(3, 4), 0, torch.tensor([0, 2]), t(2, 4)
    index_reduce index_reduce_: t(3, 4), 0, torch.tensor([0, 2]), t(2, 4), pick("prod", "mean", "amax", "amin")
    index_fill index_fill_: t(3, 4), n(0, 1), i(3, 2), pick(number(), t())
    index_put index_put_: t(3, 4), (i(3, 2), i(3, 2)), pick(t(), t(2)), **maybe(accumulate=True); t(3, 4), (i(2, 3, 4)
        > 0,), t()
    scatter scatter_: t(3, 4), 0, i(3, 2, 4), pick(t(2, 4), number()); t(3, 4), 1, i(4, 3, 1), t(3, 1),
        reduce=pick("add", "multiply")
    scatter_add scatter_add_: t(3, 4), n(0, 1), i(3, 2, 3), t(2, 3)
    scatter_reduce scatter_reduce_: t(3, 4), n(0, 1), i(3, 2, 3), t(2, 3), pick("sum", "prod", "mean", "amax", "amin"),
        **maybe(include_self=False)
    masked_scatter masked_scatter_: t(3, 4), i(2, 3, 4) > 0, t(12)
    masked_fill masked_fill_: t(3, 4), i(2, 3, 4) > 0, pick(number(), t())
    put put_: t(3, 4), i(12, 5), t(5), **maybe(accumulate=True)
    select select_copy: t(3, 4), n(-2, 1), n(-3, 2)
    select_scatter: t(3, 3), t(3), n(0, 1), n(-3, 2)
    diagonal_scatter: t(3, 3), t(3)
    slice_scatter slice_inverse: t(3, 4), t(1, 4), 0, 1, 2
    narrow narrow_copy: t(3, 4), n(0, 1), n(0, 1), n(1, 2); t(3, 4), 0, torch.tensor(1), 2
    split_with_sizes split_with_sizes_copy unsafe_split_with_sizes: t(4, 5), [1, 3], 0; t(5, 4), [2, 3]
    torch.split Tensor.split split_copy unsafe_split: t(4, 5), 2, n(0, 1)
    tensor_split: t(4, 5), pick(2, [1, 3]), n(0, 1); t(4), host(torch.tensor([1, 2]))
    hsplit vsplit: t(4, 4, 2), pick(2, [1, 3])
    dsplit: t(2, 3, 4), pick(2, [1, 3])
    unflatten: t(4, 6), 1, pick((2, 3), (-1, 2))
    view reshape view_copy: t(4, 6), pick((2, 12), (-1,), (24,), (6, 4))
    Tensor.view: t(2, 3), torch.uint8; t(4, 6).contiguous(), pick((2, 12), (-1,)); t(24), 4, 6
    view_as reshape_as resize_as resize_as_: t(4, 6), t(6, 4)
    expand expand_copy broadcast_to: t(3, 1), (3, n(1, 4)); t(3), (2, 3)
    expand_as: t(3, 1), t(3, 4)
    repeat tile: t(2, 3), pick((2, 1), (2, 2, 2))
    repeat_interleave: t(2, 3), pick(2, torch.tensor([1, 2])), 0; i(4, 3)
    permute permute_copy: t(2, 3, 4), pick((2, 0, 1), (0, -1, 1))
    movedim moveaxis: t(2, 3, 4), pick(0, (0, 1)), 1; t(2, 3, 4), (0, 1), (2, 0)
    roll: t(2, 3), pick(1, (1, 2)), **maybe(dims=0); t(2, 3), (1, 2), (0, 1)
    rot90: t(2, 3), n(-1, 3), (0, 1)
    fliplr flipud: t(2, 3)
    flip: t(2, 3), pick((0,), (0, 1))
    meshgrid: t(2), t(3), indexing=pick("ij", "xy")
    cat concat concatenate hstack vstack row_stack dstack: [x(), t(*shape)]
    column_stack stack: [t(3), t(3)]
    torch.block_diag cartesian_prod: t(3), t(2); t(3), t(2), t(1)
    atleast_1d atleast_2d atleast_3d broadcast_tensors: x(); x(), x()
    combinations: t(4), n(1, 3)
    cross: t(2, 3), t(2, 3), **maybe(dim=1); t(3), t(3)
    corrcoef cov: c(3, 4)
    trace: t(3, 4)
    diag tril triu: t(3, 3), n(-1, 1)
    tril_indices triu_indices: n(1, 3), n(1, 3), **maybe(device=CPU, dtype=torch.int32)
    trapezoid trapz cumulative_trapezoid: t(3, 4), **maybe(dx=2.0); t(3, 4), x=f(4)
    gradient: c(4, 5), **maybe(dim=0, edge_order=1)
    searchsorted: torch.arange(5.0), f(3).float(), **maybe(right=True, out_int32=True)
    bucketize: f(3).float(), torch.arange(5.0), **maybe(right=True)
    segment_reduce: f(4), pick("max", "mean", "min", "sum"), lengths=torch.tensor([1, 3])
    multinomial: u(3, 4) + 0.1, 2, pick(True, False)
    bernoulli: u(3, 4)
    binomial: u(3).float() * 5, u(3).float()
    poisson: u(3, 4)
    normal: f(3), u(3); 0.0, u(3); f(3), 1.0; 0.0, 1.0, (2, 3), **maybe(device=CPU)
    randint: n(3, 9), (2, 3), device=CPU; 1, 5, (2,), **maybe(dtype=torch.int32)
    randint_like: t(3), 5; t(3), 1, 5
    randperm: n(0, 6), device=CPU
    arange range: 5, device=CPU; 1, 9, 2, **maybe(device=CPU, dtype=own)
    linspace logspace: 0, n(1, 3), 5, device=CPU; 0.0, 1.0, 3, **maybe(dtype=torch.float64, device=CPU)
    eye: n(0, 3), **maybe(m=2, device=CPU)
    full: (2, 3), number(), **maybe(device=CPU, dtype=own)
    empty_strided: (2, 3), (3, 1), device=CPU
    empty_permuted: (2, 3), (1, 0), device=CPU
    Tensor.new_empty_strided: t(3), (2, 3), (3, 1)
    tensor as_tensor asarray: pick([1, 2], 3.5, [[True]], [1j]), **maybe(dtype=torch.float32, device=CPU); x(),
        device=CPU
    scalar_tensor: number(), **maybe(device=CPU, dtype=torch.float64)
    Tensor.new_tensor: x(), [1, 2.5]; x(), x()
    Tensor.new: f(3), 2, 3; f(3), [1.0, 2.0]; f(3).float()
    complex: f(3).float(), f(3).float(); f(2, 3).double(), f(3, 2).double().mT
    polar: f(3).abs().float(), f(3).float()
    view_as_complex view_as_complex_copy: f(3, 2).float(); f(2, 3, 2).double()
    view_as_real view_as_real_copy imag: t(2, 3, dtype=torch.complex64)
    ldexp ldexp_: f(3), i(3, 3)
    gcd lcm bitwise_left_shift bitwise_right_shift: i(9, 3), i(4, 3)
    nextafter nextafter_ heaviside igamma igammac: f(3).float().abs(), f(3).float().abs()
    mvlgamma mvlgamma_: u(3) + 2, n(1, 2)
    polygamma polygamma_: n(0, 2), u(3)
    Tensor.polygamma Tensor.polygamma_: u(3), n(0, 2)
    vander: t(3), **maybe(N=4, increasing=True)
    isin: t(3, 4), t(3); t(3), number()
    unravel_index: i(12, 3), (3, 4)
    stft: f(16).float(), 4, **maybe(hop_length=2, window=torch.ones(4)), return_complex=True
    istft: torch.stft(f(16).float(), 4, return_complex=True, window=torch.ones(4)), 4, window=torch.ones(4)
    *_window: n(1, 6), **maybe(device=CPU, periodic=False, dtype=torch.float64)
    torch.unique Tensor.unique: t(3, 4), **maybe(return_inverse=True, return_counts=True, dim=0)
    unique_consecutive: t(6), **maybe(return_inverse=True, return_counts=True)
    nonzero_static: t(3, 4), size=5
    allclose equal isclose is_same_size is_set_to: x(), t(*shape)
    result_type: x(), x(); x(), number()
    can_cast promote_types: own, torch.float32
    broadcast_shapes: (2, 1), (3,); (1,), (4, 5)
    typename is_storage is_tensor is_complex is_floating_point: x()
    sym_float sym_int sym_not sym_sqrt: n(0, 4)
    sym_max sym_min: n(0, 3), n(0, 3)
    sym_ite: True, n(0, 3), n(0, 3)
    sym_sum: [1, n(0, 3)]
    get_autocast_dtype is_autocast_enabled torch.get_device_module: "cpu"
    fake_quantize_per_tensor_affine: f(3, 4).float(), 0.1, 0, 0, 255; f(3).float(), torch.tensor(0.1), torch.tensor(0,
        dtype=torch.int32), 0, 255
    fake_quantize_per_channel_affine: f(3, 4).float(), torch.ones(3), torch.zeros(3, dtype=torch.int32), 0, 0, 255
    fused_moving_avg_obs_fake_quant: f(3, 4).float(), torch.ones(1, dtype=torch.long), torch.ones(1, dtype=torch.long),
        torch.zeros(1), torch.ones(1), torch.ones(1), torch.zeros(1, dtype=torch.int), 0.1, 0, 255, 0
    choose_qparams_optimized: f(16).float(), 16, 200, 0.16, 8
    quantize_per_tensor: f(3, 4).float(), 0.1, 2, pick(torch.quint8, torch.qint8)
    quantize_per_tensor_dynamic: f(3, 4).float(), torch.quint8, False
    quantize_per_channel: f(3, 4).float(), torch.ones(3), torch.zeros(3, dtype=torch.int), 0, torch.qint8
    int_repr dequantize q_scale q_zero_point qscheme: torch.quantize_per_tensor(f(3).float(), 0.1, n(0, 3),
        torch.quint8)
    q_per_channel_*: torch.quantize_per_channel(f(3, 4).float(), torch.ones(3), torch.zeros(3, dtype=torch.int), 0,
        torch.qint8)
    empty_quantized: (2,), torch.quantize_per_tensor(f(3).float(), 0.1, 0, torch.quint8)
    sparse_coo_tensor: i(3, 2, 4), t(4), (3, 3), **maybe(device=CPU); i(3, 1, 4), t(4)
    sparse_csr_tensor: torch.tensor([0, 1, 2]), torch.tensor([0, 1]), t(2), (2, 2)
    sparse_csc_tensor: torch.tensor([0, 1, 2]), torch.tensor([0, 1]), t(2), (2, 2)
    sparse_bsr_tensor sparse_bsc_tensor: torch.tensor([0, 1, 2]), torch.tensor([0, 1]), t(2, 2, 2), (4, 4)
    sparse_compressed_tensor: torch.tensor([0, 1, 2]), torch.tensor([0, 1]), t(2), (2, 2), layout=torch.sparse_csr
    coalesce is_coalesced dense_dim sparse_dim to_dense: s()
    indices values: t(3, 3).to_sparse()
    crow_indices crow_indices_copy col_indices col_indices_copy: t(3, 3).to_sparse_csr()
    ccol_indices ccol_indices_copy row_indices row_indices_copy: t(3, 3).to_sparse_csc()
    to_sparse to_sparse_coo: t(3, 3); t(2, 3)
    to_sparse_csr to_sparse_csc: t(3, 3); t(2, 3)
    to_sparse_bsr to_sparse_bsc: t(4, 4), (2, 2)
    sparse_mask: t(3, 3), s()
    sparse_resize_ sparse_resize_and_clear_: s(), (4, 4), 2, 0
    resize_as_sparse_: s(), s()
    smm hspmm dsmm hsmm spmm: s(), t(3, 2)
    sspaddmm: s(), s(), t(3, 3)
    saddmm: s(), s(), t(3, 3)
    Tensor.to_padded_tensor: torch.nested.nested_tensor([torch.arange(2.0), torch.arange(3.0)]), 0.0
    set_: t(3), t(2, 2); t(3)
    Tensor.resize_: t(2, 3), pick((3, 2), (2,), (4, 4))
    Tensor.resize: t(2, 3), 3, 2
    apply_: t(3), abs
    map_: t(3), t(3), max
    as_subclass: x(), torch.nn.Parameter
    Tensor.__getitem__: t(3, 4), pick(0, -1, (slice(None), 1), slice(0, 3, 2), None, ..., (None, 2), True); t(3, 4),
        i(3, 2); t(3, 4), i(2, 3, 4) > 0; t(3, 4), (i(3, 2), slice(1, 3)); t(3, 4), [0, 2]
    Tensor.__setitem__: t(3, 4), pick(0, (slice(None), 1), ..., [0, 2]), pick(number(), t()); t(3, 4), i(3, 2), t();
        t(3, 4), i(2, 3, 4) > 0, number()
    Tensor.__contains__: t(3), number()
    Tensor.__deepcopy__: x(), {}
    Tensor.__format__: t(), pick("", ".2f", ">9"); t(3), ""
    Tensor.__array__ Tensor.__dlpack_device__ Tensor.__iter__ Tensor.__len__ Tensor.__repr__ Tensor.__reversed__
        Tensor.__neg__ Tensor.__pos__ Tensor.__abs__ Tensor.__invert__: x()
    Tensor.__index__ Tensor.__int__ Tensor.__bool__ Tensor.__float__ Tensor.__complex__ Tensor.__long__
        Tensor.__nonzero__ item is_nonzero: t(); t(1)
    Tensor.__matmul__ Tensor.__rmatmul__ matmul: t(3, 3), t(3, 3); t(3), t(3); t(2, 3, 3), t(3, 3)
    Tensor.__and__ Tensor.__or__ Tensor.__xor__ Tensor.__iand__ Tensor.__ior__ Tensor.__ixor__ Tensor.__rand__
        Tensor.__ror__ Tensor.__rxor__: i(9, 3), i(9, 3); i(9, 3) > 4, pick(True, i(9, 3) > 3)
    Tensor.__lshift__ Tensor.__rshift__ Tensor.__ilshift__ Tensor.__irshift__: i(9, 3), pick(1, i(3, 3))
    Tensor.__rlshift__ Tensor.__rrshift__: i(3, 3), 9
    Tensor.to: x(), CPU; x(), pick(torch.float64, torch.float16); x(), x(); x(), CPU, torch.float32,
        **maybe(copy=True); x(), "cpu"
    Tensor.type: x(); x(), torch.float64; x(), "torch.FloatTensor"
    Tensor.dim_order is_contiguous: t(2, 3)
    stride size: x(), **maybe(dim=dim()); x()
    Tensor.backward: f(2, 2).requires_grad_().sum()
    Tensor.grad Tensor.grad_fn Tensor.is_leaf Tensor.output_nr Tensor.retains_grad Tensor.name: f(2).requires_grad_()
    Tensor.register_hook: f(2).requires_grad_(), abs
    Tensor.retain_grad: f(2).requires_grad_()
    Tensor.register_post_accumulate_grad_hook: f(2).requires_grad_(), abs
    sum_to_size: t(3, 3), pick((1, 3), (3, 1), (1,))
    fill_diagonal_: t(3, 3), number()
    Tensor.module_load: f(3), f(3)
    random_: x(), **maybe(to=5)
    log_normal_ cauchy_ exponential_: f(3)
    geometric_: f(3), 0.5
    dequantize: x(torch.float32)
    gelu: f(3)
    where: i(2, 3) > 0, t(3), pick(t(3), t()); i(2, 3) > 0
    Tensor.where: t(3), i(2, 3) > 0, t(3)
    std var std_mean var_mean: c(3, 4), **maybe(dim=n(0, 1), keepdim=True, correction=0)
    argsort: t(3, 4), **maybe(dim=0, descending=True); t(3), stable=True
    diff: t(4), **maybe(n=2)
    kron: t(2, 2), t(2)
    linalg.householder_product: *torch.geqrf(c(4, 3)),
    linalg.tensorinv: c(6, 2, 3), 1
    Tensor.__*: x(), pick(x, number)()
"""

POOLS_TEXT = """
    Tensor.index Tensor.indices Tensor.indices_or_sections: index()
    Tensor.mask Tensor.condition: x(torch.bool)
    Tensor.tensor_indices_or_sections: host(torch.tensor(pick([1], [1, 2])))
    Tensor.lengths: i(3)
    Tensor.*: x()
    List[Optional[Tensor]].indices: [index()]
    List[Tensor].*: [x() for _ in range(n(1, 3))]
    None.*: n(0, 3)
    int.dim* int.axis* int.start_dim int.end_dim int.source int.destination: dim()
    List[int].dim* List[int].source List[int].destination List[int].axis: sorted({dim() for _ in range(n(1, 2))})
    List[int].size List[int].shape List[int].sizes List[int].dims: pick(shape, [-1], [2, *shape], [n(0, 3)])
    List[int].*: [n(0, 2) for _ in range(max(1, len(shape)))]
    int.*: n(-1, 3)
    number.*: number()
    List[number].*: [number(), number()]
    float.*: pick(0.0, 0.3, 0.5, 1.0, 2.0, -1.0)
    List[float].*: [0.0, 1.0]
    bool.pin_memory: False
    bool.*: pick(True, False)
    str.rounding_mode: pick("trunc", "floor")
    str.reduce: pick("sum", "prod", "mean", "amax", "amin", "add", "multiply")
    str.indexing: pick("ij", "xy")
    str.side: pick("left", "right")
    str.UPLO: pick("U", "L")
    str.approximate: pick("none", "tanh")
    str.reduction: pick("none", "mean", "sum")
    str.interpolation: pick("linear", "lower", "higher", "nearest", "midpoint")
    str.*: "mean"
    ScalarType.*: pick(own, torch.float32, torch.float64, torch.int64, torch.float16, torch.bool)
    Layout.*: torch.strided
    MemoryFormat.*: pick(torch.contiguous_format, torch.preserve_format)
    Device.*: CPU
    Generator.*: torch.Generator().manual_seed(7)
    *: None
"""


def _table(text):
    entries = [" ".join(entry.split()).partition(": ") for entry in re.split(r"\n    (?=\S)", text)[1:]]
    found = {name: entry for names, _, entry in entries for name in names.split()}
    return {name: found[name] for name in sorted(found, key=lambda name: "." not in name)}  # those of one space first


CALLS, POOLS = _table(CALLS_TEXT), _table(POOLS_TEXT)


# What there is to be called


def named(case, patterns):
    """Return the first of these patterns that means a case, with or without its space."""
    patterns = patterns.split() if isinstance(patterns, str) else patterns
    return next((it for it in patterns if fnmatch.filter([case, case.partition(".")[2]], it)), None)


def cases(patterns="*"):
    found = [f"{space}.{name}" for space in SPACES for name in dir(SPACES[space]) if _is_public(space, name)]
    return [case for case in found if named(case, patterns)]


def _is_public(space, name):
    value = getattr(SPACES[space], name, None)
    if space == "Tensor":
        return name[0] != "_" or (name[:2] == "__" and name.strip("_") in DUNDERS.split())
    return name[0] != "_" and callable(value) and not isinstance(value, type)


def called(case, args, kwargs):
    space, _, name = case.partition(".")
    target = getattr(SPACES[space], name)
    return target(*args, **kwargs) if callable(target) else getattr(args[0], name)


def signatures(case):
    """Return lists of arguments, each with its name and kind, and whether it is optional, by name, an output."""
    space, _, name = case.partition(".")
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{space}_{name}" if space in MORE else f"aten::{name}")
    target = getattr(SPACES[space], name)
    if inspect.isfunction(target) and (space == "F" or not schemas):
        given = inspect.signature(target).parameters.values()
        return [[_of_parameter(it) for it in given if it.name[0] != "_" and "VAR" not in it.kind.name]]
    found = [[_of_schema(it) for it in schema.arguments] for schema in schemas]
    found = [each for each in found if not any(re.search(r"Dict|List.t|^t$|str\]$", kind) for _, kind, *_ in each)]
    if space == "Tensor":
        found = [each for each in found if each and each[0][1] == "Tensor" and not any(is_out for *_, is_out in each)]
    return found or [[("self", "Tensor", False, False, False)] * (space == "Tensor")]


def _of_schema(it):
    optional = it.has_default_value() or (it.kwarg_only and "Optional" in str(it.real_type))
    return it.name, re.sub(r"^Optional\[(.*)\]$", r"\1", str(it.real_type)), optional, it.kwarg_only, it.is_out


def _of_parameter(it):
    kind = inspect.formatannotation(it.annotation).split(" | ")[0].replace("torch.", "").replace("list", "List")
    kind = "Tensor" if it.annotation is it.empty else kind
    return it.name, kind, it.default is not it.empty, it.kind is it.KEYWORD_ONLY, False


# What it is called with


def words_of(key):
    """Return the words in which arguments are drawn; the tensors of one call are alike as a rule: `own` and `shape`."""
    chance, generator, made = random.Random(key), torch.Generator(), []
    generator.manual_seed(chance.getrandbits(32))
    pick, n, own, shape = lambda *options: chance.choice(options), chance.randint, *map(chance.choice, (DTYPES, SHAPES))
    floating = own if own.is_floating_point else torch.float32
    exact = own if own.is_complex else torch.float32 if floating in HALF else floating

    def t(*shape, dtype=own):  # sometimes one that is not contiguous
        if dtype.is_floating_point or dtype.is_complex:
            kind = torch.complex64 if dtype.is_complex else torch.float64
            result = torch.randn(shape, generator=generator, dtype=kind).to(dtype)
        else:
            low, high = -3 * dtype.is_signed, 2 if dtype is torch.bool else 6
            result = torch.randint(low, high, shape, generator=generator).to(dtype)
        if len(shape) > 1 and chance.random() < 0.2:
            return result.mT.contiguous().mT
        return torch.stack([result, result], -1)[..., 0] if shape and chance.random() < 0.1 else result

    def host(tensor):  # stays on the host
        tensor.on_host = True
        return tensor

    def x(dtype=None):  # sometimes of another shape or dtype that goes with those of the call
        size = pick((), shape[1:], tuple(1 for _ in shape)) if chance.random() < 0.1 else shape
        result = t(*size, dtype=dtype or (own if chance.random() < 0.9 else chance.choice(DTYPES)))
        made.append(result)
        return host(result) if shape and not size and len(made) > 1 and n(0, 1) else result  # a number beside others

    def pd(*shape):  # positive definite
        given = t(*shape, dtype=exact)
        return given @ given.mH + 2 * torch.eye(shape[-1], dtype=given.dtype)

    def i(below, *shape):
        return torch.randint(0, below, shape, generator=generator)

    return (
        locals()
        | {
            "torch": torch,
            "F": F,
            "CPU": CPU,
            "call": lambda *args, **kwargs: (args, kwargs),
            "maybe": lambda **kwargs: {name: value for name, value in kwargs.items() if n(0, 1)},
            "number": lambda: pick(-1, 0, 1, 2, 3, 0.5, 2.5, True),
            "dim": lambda: n(-max(1, len(shape)), max(1, len(shape)) - 1),
            "f": lambda *shape: t(*shape, dtype=floating),
            "c": lambda *shape: t(*shape, dtype=exact),  # what linear algebra takes
            "u": lambda *shape: torch.rand(shape, generator=generator).to(floating),
            "s": lambda: torch.sparse_coo_tensor(i(3, 2, 4), t(4), (3, 3), check_invariants=True),
            "index": lambda: i(max(1, min(shape, default=1)), *pick(shape, shape[:1], (2,))),
        }
    )


def drawn(case, key):
    """Draw the arguments of a call."""
    words = words_of(key)
    if name := named(case, CALLS):
        return eval(f"call({words['pick'](*CALLS[name].split('; '))})", words)
    args, kwargs, outs, skipped = [], {}, [], False
    for name, kind, optional, by_name, is_out in words["pick"](*signatures(case)):
        if is_out:
            outs.append(torch.empty(0, dtype=words["pick"](words["own"], torch.float32)))
        elif optional and words["chance"].random() > (0.8 if kind == "Device" else 0.35):
            skipped = True
        else:
            pool = next(it for it in POOLS if fnmatch.fnmatchcase(f"{kind}.{name}", it.replace("[", "[[]")))
            value = eval(POOLS[pool], words)
            kwargs |= {name: value} if skipped or by_name else {}
            args += [] if skipped or by_name else [value]
    return args, kwargs | ({"out": outs[0] if len(outs) == 1 else tuple(outs)} if outs else {})


def moved(value):
    """Return an argument as it is on the emulated device."""
    if isinstance(value, torch.Generator):
        return torch.Generator(CUDA).manual_seed(7)
    if not isinstance(value, torch.Tensor):
        return {CPU: CUDA, "cpu": "cuda"}.get(value, value) if isinstance(value, (str, torch.device)) else value
    if hasattr(value, "on_host") or not value.is_leaf:
        return value if hasattr(value, "on_host") else value.to(CUDA)
    view = value.layout is torch.strided and value._is_view() and not value.is_conj()
    base = (value._base if view else value).detach().to(CUDA)
    base = base.as_strided(value.shape, value.stride(), value.storage_offset()) if view else base
    return base.requires_grad_(value.requires_grad)


def faked(mode, value):
    """Return an argument on a GPU, without values."""
    if not isinstance(value, torch.Tensor):
        return None if isinstance(value, torch.Generator) else moved(value)
    meta = value.detach().to("meta")
    if value.layout is torch.strided and not value.is_nested:
        meta = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return FakeTensor(mode, meta, CPU if hasattr(value, "on_host") else CUDA)


# What comes of it


def outcome(case, arguments, move=lambda value: value):
    """Make a call; return the result and the arguments afterwards, or the error."""
    torch.manual_seed(5)
    try:
        args, kwargs = tree_map(move, arguments)
        result = called(case, args, kwargs)
        given = [it for it in tree_leaves((args, kwargs)) if isinstance(it, torch.Tensor)]
        return (described(result, given), described(given, None)), None
    except Exception as error:
        return None, error


def described(value, given):
    """Return a result, or the arguments themselves, as what can be compared after the recording."""
    value = value.unbind() if isinstance(value, torch.Tensor) and value.is_nested else value
    if isinstance(value, torch.Tensor):
        strided, plain = value.layout is torch.strided, value.detach()
        plain = plain.dequantize() if value.is_quantized else plain if strided else plain.to_dense()
        return SimpleNamespace(
            kind=(value.dtype, tuple(value.shape), value.layout),
            device="" if given is None else value.device.type,
            strides=value.stride() if strided and value.numel() > 1 else (),
            shares=[at for at, other in enumerate(given or ()) if strided and torch._C._is_alias_of(value, other)],
            plain=plain.cpu().resolve_conj().resolve_neg(),
        )
    if isinstance(value, (list, tuple)) or hasattr(value, "__next__"):
        return (type(value).__name__, *(described(each, given) for each in value))
    if isinstance(value, str):
        return re.sub(r"\s+", "", value.replace(", device='cuda:0'", ""))
    numbers = int, float, complex, torch.dtype, torch.layout, torch.device, type(None)
    return value if isinstance(value, numbers) else type(value).__name__


def known(case, key):
    """Return what FakeTensorMode says that a GPU returns; nothing if it cannot."""
    try:
        with FakeTensorMode() as mode:
            args, kwargs = tree_map(lambda value: faked(mode, value), drawn(case, key))
            return [it for it in tree_leaves(called(case, args, kwargs)) if isinstance(it, FakeTensor)]
    except Exception:
        return []


def difference(job):
    """Return how a call on the emulated device is not what it should be; "" if it is."""
    if job.problem is not None:
        error = f"{type(job.problem).__name__}: {job.problem}"
        if job.refusal is not None:
            return f"crashed: {error}" if _is_internal(job.problem, job.refusal) else ""
        on_host = any(hasattr(it, "on_host") for it in tree_leaves(drawn(job.case, job.key)))
        allowed = (on_host and re.search(APART, error)) or any(
            named(job.case, names) and re.search(text, error) for names, text, _ in REFUSED
        )
        return "" if allowed else f"refused: {error}"
    if job.refusal is not None or named(job.case, NOT_ON_GPU):
        return "" if job.refusal is not None else "a GPU refuses it"
    name = named(job.case, ANSWERS)
    if name and (due := ANSWERS[name](job.expected[0])) is not None:
        return "" if job.found[0] == due else f"answers {job.found[0]}, not {due}"
    _as_on_gpu(job)
    return _unlike(job.case, job.found, job.expected)


def _is_internal(error, refusal):
    """Tell whether this is an error that the library makes by mistake, where torch alone has another one."""
    ours = traceback.extract_tb(error.__traceback__)[-1].filename.startswith(lv.__path__[0])
    kinds = AttributeError, LookupError, AssertionError, NameError, RecursionError
    return ours and isinstance(error, kinds) and type(error) is not type(refusal)


def _as_on_gpu(job):
    """Let what is expected have the device, and perhaps the dtype and the strides, that it has on a GPU."""
    given = tree_leaves(drawn(job.case, job.key))
    there = any(isinstance(it, (torch.Tensor, torch.device)) or it == "cpu" for it in given)
    found, due = ([it for it in tree_leaves(each[0]) if _is_leaf(it)] for each in (job.found, job.expected))
    fakes = job.fakes if len(job.fakes) == len(due) else [None] * len(due)
    for leaf in due:
        leaf.device = "cuda" if there else "cpu"
    for leaf, here, fake in zip(due, found, fakes, strict=False):
        if fake is not None:
            leaf.device = fake.device.type
            leaf.kind = (fake.dtype, *leaf.kind[1:]) if leaf.kind[0] in HALF else leaf.kind  # statistics, in float32
            leaf.strides = here.strides if here.strides == fake.stride() else leaf.strides


def _is_leaf(value):
    return isinstance(value, SimpleNamespace)


def _unlike(case, found, due):
    if _is_leaf(found) and _is_leaf(due):
        names = ["kind", "device"] + ([] if named(case, COPIED) else ["strides", "shares"])
        kinds = [[getattr(it, name) for name in names] for it in (found, due)]
        if kinds[0] != kinds[1] or named(case, NO_VALUES) or _equal(found.plain, due.plain, named(case, ROUNDED)):
            return "" if kinds[0] == kinds[1] else f"{kinds[0]}, not {kinds[1]}"
        return ", not ".join(str(it.plain.flatten()[:6].tolist()) for it in (found, due))
    if isinstance(found, tuple) and isinstance(due, tuple) and len(found) == len(due):
        return next(filter(None, (_unlike(case, *pair) for pair in zip(found, due, strict=True))), "")
    same = type(found) is type(due) and (found == due or found != found or named(case, NO_VALUES))
    return "" if same else f"{found!r:.80}, not {due!r:.80}"


def _equal(one, other, rounded):
    """Tell whether values are the same; products in half precision are rounded once on a GPU."""
    wide = torch.complex128 if one.is_complex() or other.is_complex() else torch.float64
    rounding = 2e-2 if {one.dtype, other.dtype} & {*HALF} else 1e-5 if rounded else 0
    if one.is_floating_point() or one.is_complex():
        return torch.allclose(one.to(wide), other.to(wide), rounding, rounding, equal_nan=True)
    return torch.equal(one, other)


# The whole


def jobs_of(case, seed, draws, report):
    """Draw calls until enough are accepted by the CPU."""
    for number in range(TRIES * draws):
        job = SimpleNamespace(case=case, key=f"{seed} {case} {number}", fakes=[])
        job.expected, job.refusal = outcome(case, drawn(case, job.key))
        if job.refusal is None:
            job.fakes = known(case, job.key)
            report.accepted[case] += 1
            yield job
        elif number - report.accepted[case] < draws:
            yield job
        if report.accepted[case] >= draws:
            return


def fuzz(chosen, seed=0, draws=2, say=lambda *words: None):
    """Call these; return what came of it."""
    reasons = {case: why for case in chosen for why, names in EXCLUDED.items() if named(case, names)}
    left = [case for case in chosen if case not in reasons]
    report = SimpleNamespace(
        accepted=Counter(dict.fromkeys(left, 0)), excluded=reasons, tally=Counter(), differences=[]
    )
    while left:
        batch, left, jobs = left[:BATCH], left[BATCH:], []
        for case in batch:
            say(case)
            jobs += jobs_of(case, seed, draws, report)
        given = [drawn(job.case, job.key) for job in jobs]
        with lv.record(on="a100", host="laptop", hazards="off"):
            for job, arguments in zip(jobs, given, strict=True):
                say("on the device:", job.key)
                job.found, job.problem = outcome(job.case, arguments, moved)
        report.differences += [f"{job.case} [{job.key}] {unlike:.400}" for job in jobs if (unlike := difference(job))]
        report.tally.update("refused" if job.refusal is not None else "accepted" for job in jobs)
        report.tally["known to FakeTensorMode"] += sum(bool(job.fakes) for job in jobs)
    report.few = [f"{case} ({count})" for case, count in report.accepted.items() if count < draws]
    report.coverage = 1 - len(report.few) / max(1, len(report.accepted))
    return report


def told(report):
    """Return a report as text."""
    lines = [
        f"{report.coverage:.1%} of {len(report.accepted)} callables had enough draws that the CPU accepts",
        ", ".join(f"{count} {what}" for what, count in report.tally.items()),
        *(f"excluded {count}: {why}" for why, count in Counter(report.excluded.values()).items()),
        f"fewer draws: {' '.join(report.few) or 'none'}",
        f"{len(report.differences)} differences",
    ]
    return "\n".join([*lines, *report.differences])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", default=["*"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--verbose", action="store_true", help="name each call before it is made, to see what aborts")
    options = parser.parse_args()
    say = partial(print, flush=True) if options.verbose else lambda *words: None
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    print(told(fuzz(cases(options.patterns), options.seed, options.draws, say)))
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
