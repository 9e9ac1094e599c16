"""The table of placements: every way to make or convert a tensor, wherever it is asked to be, and what it then is.

The answers come from plain PyTorch, outside a recording, where "meta" is a second device under the same rules. A line
is evaluated in three worlds: with cuda called meta (what is on meta there belongs on cuda), with cuda called cpu (what
is on meta there is on meta), and with all on the cpu (values and errors). What plain PyTorch cannot say without a GPU,
such as what torch.cuda.FloatTensor makes, has its answer right of "=>": another line, a literal or an error's name.
"""

import contextlib
import copy  # noqa: F401  (for the lines of the table, as below)
import io
import itertools
import pickle  # noqa: F401
import re

import numpy as np  # noqa: F401
import pytest
import torch
from torch.utils.data import default_collate, default_convert  # noqa: F401

import loaderviz as lv

# Old ways to make a tensor warn that they are old, here and there in other words.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")

# {} is where a place is asked for: nothing, or device=...
FACTORIES = """
torch.empty(2, 3{})
torch.empty((2,), dtype=torch.int32{})
torch.empty_strided((2, 3), (1, 2){})
torch.empty_permuted((2, 3), (1, 0){})
torch.empty_quantized((2, 3), torch.quantize_per_tensor(torch.ones(2, device="cpu"), 0.1, 0, torch.qint8){})
torch.zeros(2, 3{})
torch.zeros((), dtype=torch.bool{})
torch.zeros(0{})
torch.ones(2, 3{})
torch.ones([2], requires_grad=True{})
torch.ones((2, 3), dtype=torch.complex64{})
torch.full((2, 3), 7{})
torch.full((2,), 0.5, dtype=torch.float64{})
torch.full((), True{})
torch.arange(5{})
torch.arange(1, 2, 0.25{})
torch.arange(3.0, dtype=torch.float16{})
torch.range(1, 4{})
torch.linspace(0, 1, 5{})
torch.logspace(0, 2, 3{})
torch.eye(3{})
torch.eye(2, 3, dtype=torch.int64{})
torch.scalar_tensor(3{})
torch.tensor(1.5{})
torch.tensor(1{})
torch.tensor([]{})
torch.tensor([1, 2, 3]{})
torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True{})
torch.tensor([True, False]{})
torch.tensor([1j, 2.0]{})
torch.tensor([1, 2], dtype=torch.float16{})
torch.tensor(np.arange(3){})
torch.tensor(np.float64(2){})
torch.tensor([np.ones(2), np.zeros(2)]{})
torch.tensor(range(3){})
torch.tensor([torch.tensor(1.0), torch.tensor(2.0)]{})
torch.tensor("word"{})
torch.as_tensor([1, 2]{})
torch.as_tensor(3.5{})
torch.as_tensor(np.ones(2, np.float32){})
torch.as_tensor(np.arange(2), dtype=torch.float16{})
torch.asarray(np.arange(3){})
torch.asarray(bytearray(4), dtype=torch.uint8{})
torch.tril_indices(3, 3{})
torch.triu_indices(3, 4, 1{})
torch.bartlett_window(4{})
torch.blackman_window(4{})
torch.hamming_window(4{})
torch.hann_window(4{})
torch.kaiser_window(4{})
torch.fft.fftfreq(4{})
torch.fft.rfftfreq(4{})
torch.signal.windows.hann(4{})
torch.signal.windows.gaussian(4{})
torch.rand(2, 3{})
torch.randn(2, 3, dtype=torch.float64{})
torch.randint(5, (2, 3){})
torch.randint(2, 5, (2,), dtype=torch.int32{})
torch.randperm(4{})
torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], (2, 2){})
torch.sparse_coo_tensor(size=(2, 3){})
torch.sparse_csr_tensor([0, 1, 2], [0, 1], [1.0, 2.0], (2, 2){})
torch.sparse_csc_tensor([0, 1, 2], [0, 1], [1.0, 2.0], (2, 2){})
torch.sparse_bsr_tensor([0, 1], [0], [[[1.0, 2.0]]], (1, 2){})
torch.sparse_bsc_tensor([0, 1], [0], [[[1.0], [2.0]]], (2, 1){})
torch.sparse_compressed_tensor([0, 1, 2], [0, 1], [1.0, 2.0], (2, 2), layout=torch.sparse_csr{})
torch.zeros(2, 2, layout=torch.sparse_coo{})
torch.nn.Linear(2, 3{}).weight
torch.nn.Linear(2, 3, bias=False, dtype=torch.float64{}).weight
list(torch.nn.BatchNorm1d(2{}).state_dict().values())
list(torch.nn.LSTM(2, 3{}).parameters())
list(torch.nn.MultiheadAttention(4, 2{}).parameters())
torch.nn.Embedding(3, 2{}).weight
torch.nn.Conv2d(1, 2, 3{}).bias
torch.nn.LayerNorm(3{}).weight
torch.nn.Parameter(torch.ones(2{}))
torch.nn.Parameter(torch.ones(2{}), requires_grad=False)
torch.nn.Buffer(torch.ones(2{}))
torch.nn.utils.rnn.pad_sequence([torch.ones(2{}), torch.ones(1{})])
torch.vander(torch.arange(3{}))
torch.complex(torch.ones(2{}), torch.zeros(2{}))
torch.polar(torch.ones(2{}), torch.zeros(2{}))
torch.view_as_complex(torch.ones(2, 2{}))
torch.cartesian_prod(torch.arange(2{}), torch.arange(2{}))
torch.block_diag(torch.ones(2, 1{}), torch.ones(1, 1{}))
torch.meshgrid(torch.arange(2{}), torch.arange(3{}), indexing="ij")
torch.normal(torch.zeros(2{}), torch.ones(2{}))
torch.normal(0.0, torch.ones(2{}))
torch.bernoulli(torch.full((3,), 0.5{}))
torch.multinomial(torch.ones(4{}), 2)
torch.poisson(torch.ones(3{}))
torch.ones(2{}).uniform_()
torch.ones(2{}).normal_().exponential_()
torch.nn.functional.dropout(torch.ones(2, 2{}))
torch.nn.functional.one_hot(torch.arange(3{}), 3)
torch.nn.init.xavier_uniform_(torch.empty(2, 3{}))
torch.ones(2{}) + 1
torch.ones(2{}) * torch.tensor(2.0, device="cpu")
torch.tensor(2.0, device="cpu") - torch.ones(2{})
torch.ones(2{}).numpy()
np.asarray(torch.ones(2{}))
torch.ones(2{}).tolist()
torch.ones(1{}).item()
"""
# Here no place can be asked for: what is in force decides, or nothing does.
PLACELESS = """
torch.from_numpy(np.arange(3))
torch.frombuffer(bytearray(8), dtype=torch.int32)
torch.from_dlpack(np.arange(3))
torch.normal(0.0, 1.0, (2, 3))
torch.Tensor([1, 2])
torch.Tensor(2, 3)
torch.Tensor()
torch.Tensor(np.ones(2, np.float32))
torch.Tensor(torch.Size([2]))
torch.FloatTensor([1, 2])
torch.FloatTensor(2, 3)
torch.DoubleTensor(2)
torch.HalfTensor([1])
torch.LongTensor([[1, 2]])
torch.IntTensor()
torch.BoolTensor([True])
torch.ByteTensor(2)
torch.LongTensor(1.5)
torch.Generator().device
default_collate([1, 2])
default_collate([1.5, 2.5])
default_collate([np.ones(2), np.zeros(2)])
default_collate([{"a": 1, "b": (2.0, np.arange(2))}] * 2)
default_convert(np.arange(2))
torch.get_default_dtype() == torch.tensor(1.0).dtype
torch.device("cuda")
torch.device("cuda", 0)
torch.device("meta")
"""
# x is a template, on cuda, cpu or meta, with one dimension more or less.
TEMPLATES = """
torch.arange(6.0, device="cuda").view(2, 3)
torch.arange(6.0, device="cpu").view(2, 3)
torch.arange(6.0, device="meta").view(2, 3)
torch.tensor(3, device="cuda")
torch.tensor(3, device="cpu")
torch.ones(2, 3, dtype=torch.float16, device="cuda").T
""".strip().splitlines()
LIKE = """
torch.zeros_like(x{})
torch.ones_like(x{})
torch.ones_like(x, dtype=torch.int16{})
torch.full_like(x, 2{})
torch.empty_like(x{})
torch.rand_like(x, dtype=torch.float32{})
torch.randn_like(x, dtype=torch.float64{})
torch.randint_like(x, 5{})
x.new_zeros(2{})
x.new_zeros((2, 3), dtype=torch.int8{})
x.new_ones(2{})
x.new_full((2,), 3{})
x.new_empty(2{})
x.new_empty_strided((2, 3), (1, 2){})
x.new_tensor([1, 2]{})
x.new_tensor(1.5{})
x.new_tensor(np.arange(2){})
torch.tensor(x{})
torch.as_tensor(x{})
torch.as_tensor(x, dtype=torch.float64{})
torch.asarray(x{})
torch.asarray(x, copy=True{})
"""
# {} is a place without a word before it.
MOVES = """
x.to({})
x.to({}, torch.float64)
x.to({}, non_blocking=True)
x.to({}, copy=True)
x.to(device={})
x.to(device={}, dtype=torch.int32)
x.to(torch.zeros(1, dtype=torch.float16, device={}))
x.to(other=torch.zeros(1, device={}))
x.type_as(torch.zeros(1, dtype=torch.float64, device={}))
torch.zeros_like(x, device={}).copy_(x)
torch.empty(2, device={}).new(2, 3)
torch.empty(2, device={}).new([1, 2])
torch.empty(2, dtype=torch.int64, device={}).new()
torch.empty(2, device={}).new(torch.Size([2]))
torch.nn.Linear(2, 3).to({}).weight
torch.nn.Linear(2, 3).to(device={}, dtype=torch.float64).bias
torch.nn.Linear(2, 3, device="meta").to_empty(device={}).weight
torch.nn.Parameter(x.float().to({}))
torch.device({})
"""
KEPT = """
x.clone()
x.detach()
x.data
x.contiguous()
x.float()
x.long()
x.half()
x.bool()
x.type(torch.float64)
x.type(dtype=torch.int32)
x.to(torch.float16)
x.to(dtype=torch.int64, copy=True)
x.to(x.device) is x
x.to("cuda") is x
x.to("cuda").data_ptr() == x.data_ptr()
x.to(x)
x.flatten()
x.unsqueeze(0)
x + 1
1 - x
x * 2.5
x * torch.tensor(2, device="cpu")
torch.tensor(2.5, device="cpu") * x
x + np.float32(2)
x / x.sum()
x.sum()
x == x
x.argmax()
x.reshape(-1).sort()
x.reshape(-1).topk(1)
x.cpu()
x.cpu().numpy()
x.numpy()
np.asarray(x)
x.tolist()
x.sum().item()
float(x.max())
copy.copy(x)
copy.deepcopy(x)
copy.deepcopy(torch.nn.Parameter(x.float()))
torch.nn.Parameter(x.float())
torch.nn.Buffer(x)
x.float().requires_grad_()
x.as_subclass(torch.nn.Parameter)
x.as_subclass(torch.Tensor)
torch.Tensor(x.float())
torch.FloatTensor(x.float())
torch.Tensor(x.double())
x.new(2, 3)
x.new([1, 2])
x.new(2, device="cpu")
x.new(2, device="cuda")
x.new(x)
x.new(torch.zeros(2, dtype=x.dtype, device="cpu"))
torch.Tensor(2, device=x.device)
torch.ones(2, device=x.device)
torch.stack([x, x])
default_collate([x, x])
default_collate([{"a": x}, {"a": x}])
default_convert([x])
torch.cat([x.reshape(-1), torch.zeros(2, device="cpu")])
torch.stack([x.reshape(-1), torch.zeros(6, device="cpu")])
x.reshape(-1)[torch.tensor([0], device="cpu")]
x.reshape(-1)[0]
x + torch.zeros(6, 1, 1, device="cpu")
torch.zeros(2, device="cpu") + x.sum()
torch.zeros((), device="cpu").mul(x.sum())
torch.where(torch.tensor(True, device="cpu"), x, 0)
torch.where(x > 0, x, torch.tensor(0, device="cpu"))
torch.nn.functional.mse_loss(x.float(), torch.tensor(0.0, device="cpu").expand(x.shape))
torch.add(x, 1, out=torch.empty(0, device="cpu"))
torch.ones(2, out=torch.empty(2, device=x.device))
torch.arange(3, out=torch.empty(3, dtype=torch.int64, device=x.device))
torch.broadcast_tensors(x, torch.zeros((), device="cpu"))
x.reshape(-1).to_sparse().to_dense()
x.untyped_storage().device
x.device
x.layout
x.untyped_storage().nbytes() > 0
x.untyped_storage().data_ptr() == x.data_ptr()
torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))
torch.from_dlpack(x)
"""
# What plain PyTorch without a GPU cannot say: what stands on the right is the answer.
TOLD = """
torch.cuda.FloatTensor(2, 3) => torch.empty(2, 3, device="cuda")
torch.cuda.FloatTensor([1, 2]) => torch.tensor([1.0, 2.0], device="cuda")
torch.cuda.FloatTensor([[1], [2]]) => torch.tensor([[1.0], [2.0]], device="cuda")
torch.cuda.FloatTensor(np.arange(2)) => torch.tensor([0.0, 1.0], device="cuda")
torch.cuda.FloatTensor() => torch.tensor([], device="cuda")
torch.cuda.FloatTensor(torch.Size([2])) => torch.empty(2, device="cuda")
torch.cuda.FloatTensor(2, device="cuda") => torch.empty(2, device="cuda")
torch.cuda.FloatTensor(2, device="cpu") => RuntimeError
torch.cuda.FloatTensor(torch.ones(2)) => TypeError
torch.cuda.FloatTensor(torch.ones(2, device="cuda")) => torch.ones(2, device="cuda")
torch.cuda.FloatTensor(2).zero_() => torch.zeros(2, device="cuda")
torch.cuda.DoubleTensor([1]) => torch.tensor([1.0], dtype=torch.float64, device="cuda")
torch.cuda.HalfTensor([1]) => torch.tensor([1.0], dtype=torch.float16, device="cuda")
torch.cuda.BFloat16Tensor([1]) => torch.tensor([1.0], dtype=torch.bfloat16, device="cuda")
torch.cuda.LongTensor([[1, 2]]) => torch.tensor([[1, 2]], device="cuda")
torch.cuda.IntTensor([1]) => torch.tensor([1], dtype=torch.int32, device="cuda")
torch.cuda.ShortTensor(2) => torch.empty(2, dtype=torch.int16, device="cuda")
torch.cuda.CharTensor(2) => torch.empty(2, dtype=torch.int8, device="cuda")
torch.cuda.ByteTensor([1]) => torch.tensor([1], dtype=torch.uint8, device="cuda")
torch.cuda.BoolTensor([True]) => torch.tensor([True], device="cuda")
torch.cuda.LongTensor(1.5) => TypeError
isinstance(torch.ones(2, device="cuda"), torch.cuda.FloatTensor) => True
isinstance(torch.ones(2, device="cpu"), torch.cuda.FloatTensor) => False
isinstance(torch.ones(2, device="cuda"), torch.FloatTensor) => False
isinstance(torch.ones(2, device="cuda"), torch.cuda.HalfTensor) => False
isinstance(torch.ones(2, device="cuda"), torch.Tensor) => True
torch.cuda.HalfTensor.dtype => torch.float16
torch.ones(2).type() => "torch.FloatTensor"
torch.ones(2, device="cuda").type() => "torch.cuda.FloatTensor"
torch.ones(2, dtype=torch.int64, device="cuda").type() => "torch.cuda.LongTensor"
torch.eye(2, device="cuda").to_sparse().type() => "torch.cuda.sparse.FloatTensor"
torch.ones(2).type("torch.cuda.FloatTensor") => torch.ones(2, device="cuda")
torch.ones(2).type("torch.cuda.HalfTensor") => torch.ones(2, dtype=torch.float16, device="cuda")
torch.ones(2).type(torch.cuda.DoubleTensor) => torch.ones(2, dtype=torch.float64, device="cuda")
torch.ones(2, device="cuda").type(torch.FloatTensor) => torch.ones(2)
torch.ones(2, device="cuda").type("torch.IntTensor") => torch.ones(2, dtype=torch.int32)
torch.ones(2, device="cuda").type("torch.cuda.IntTensor") => torch.ones(2, dtype=torch.int32, device="cuda")
torch.ones(2, device="cuda").type(torch.float16) => torch.ones(2, dtype=torch.float16, device="cuda")
torch.ones(2).type("torch.cuda.NoTensor") => ValueError
torch.ones(2).cuda() => torch.ones(2, device="cuda")
torch.ones(2).cuda(0) => torch.ones(2, device="cuda")
torch.ones(2).cuda(None) => torch.ones(2, device="cuda")
torch.ones(2).cuda("cuda:0") => torch.ones(2, device="cuda")
torch.ones(2).cuda(torch.device("cuda"), non_blocking=True) => torch.ones(2, device="cuda")
torch.ones(2).cuda(device=0, memory_format=torch.preserve_format) => torch.ones(2, device="cuda")
torch.tensor(3).cuda() => torch.tensor(3, device="cuda")
torch.ones(2).cuda("cpu") => RuntimeError
torch.ones(2).cuda("meta") => RuntimeError
torch.ones(2).cuda(1) => RuntimeError
torch.ones(2, device="meta").cuda() => NotImplementedError
torch.ones(2, device="cuda").cuda().cpu() => torch.ones(2)
(lambda x: x.cuda() is x)(torch.ones(2, device="cuda")) => True
torch.ones(2, requires_grad=True).cuda().is_leaf => False
torch.ones(2, requires_grad=True, device="cuda").cuda().is_leaf => True
torch.ones(2, device="cuda:1") => RuntimeError
torch.ones(2, device=1) => RuntimeError
torch.ones(2).to("cuda:1") => RuntimeError
torch.ones(2).to(1) => RuntimeError
torch.ones(2, device="cuda").to("cuda:1") => RuntimeError
torch.ones(2, device=-1) => RuntimeError
torch.ones(2, device="cuda:-1") => RuntimeError
torch.ones(2, device="cuda:") => RuntimeError
torch.ones(2, device="cuda:00") => RuntimeError
torch.ones(2, device="gpu") => RuntimeError
torch.ones(2, device="") => RuntimeError
torch.ones(2, device=1.5) => TypeError
torch.ones(2, device=torch.ones(1)) => TypeError
torch.ones(2).to("gpu") => RuntimeError
torch.ones(2).to("cpu:0") => torch.ones(2)
torch.ones(2, device="cuda").to("cpu:0") => torch.ones(2)
torch.FloatTensor(torch.ones(2, device="meta")) => TypeError
torch.FloatTensor(torch.ones(2, device="cuda")) => TypeError
torch.zeros(2).fill_(torch.ones((), device="cuda")) => torch.ones(2)
torch.ones(2).to(None, torch.int32) => torch.ones(2, dtype=torch.int32)
torch.ones(2, device="cuda").to(None, torch.int32) => torch.ones(2, dtype=torch.int32, device="cuda")
torch.device("cuda:0", 1) => RuntimeError
repr(torch.device(0)) => "device(type='cuda', index=0)"
repr(torch.device("cuda")) => "device(type='cuda')"
repr(torch.ones(2, device="cuda").device) => "device(type='cuda', index=0)"
torch.ones(2, device="cuda").device == torch.device("cuda:0") => True
torch.ones(2, device="cuda").device == torch.device("cuda") => False
str(torch.ones(2, device="cuda")) => "tensor([1., 1.], device='cuda:0')"
default("cuda") || str(torch.ones(2)) => "tensor([1., 1.], device='cuda:0')"
default_type("torch.cuda.FloatTensor") || str(torch.ones(2)) => "tensor([1., 1.])"
default_type("torch.cuda.FloatTensor") || str(torch.ones(2, device="cpu")) => "tensor([1., 1.], device='cpu')"
str(torch.get_default_device()) => "cpu"
torch.device("cuda") || str(torch.get_default_device()) => "cuda:0"
default("cuda") || str(torch.get_default_device()) => "cuda:0"
default(0) || str(torch.get_default_device()) => "cuda:0"
default(0) || torch.ones(2) => torch.ones(2, device="cuda")
torch.device(0) || torch.ones(2) => torch.ones(2, device="cuda")
default("meta"); torch.device("cuda") || str(torch.get_default_device()) => "cuda:0"
default_type("torch.cuda.FloatTensor") || str(torch.get_default_device()) => "cpu"
default_type("torch.cuda.FloatTensor") || torch.Tensor(2, 3) => torch.empty(2, 3, device="cuda")
default_type("torch.cuda.FloatTensor") || torch.Tensor([1, 2]) => torch.tensor([1.0, 2.0], device="cuda")
default_type("torch.cuda.FloatTensor") || torch.Tensor(np.ones(2)) => torch.ones(2, device="cuda")
default_type("torch.cuda.FloatTensor") || torch.Tensor() => torch.tensor([], device="cuda")
default_type("torch.cuda.FloatTensor") || torch.Tensor(2, device="cpu") => RuntimeError
default_type("torch.cuda.FloatTensor") || torch.Tensor(torch.ones(2, device="cpu")) => torch.ones(2)
default_type("torch.cuda.HalfTensor", True) || torch.Tensor([1, 2]) => torch.tensor([1.0, 2.0], dtype=torch.float16, device="cuda")
default_type("torch.cuda.DoubleTensor") || torch.Tensor(2) => torch.empty(2, dtype=torch.float64, device="cuda")
default_type("torch.cuda.FloatTensor") || torch.FloatTensor([1]) => torch.tensor([1.0])
default_type("torch.cuda.FloatTensor") || torch.cuda.HalfTensor(2) => torch.empty(2, dtype=torch.float16, device="cuda")
default_type("torch.cuda.FloatTensor") || torch.normal(0.0, 1.0, (2, 3)) => torch.empty(2, 3, device="cuda")
default_type("torch.cuda.FloatTensor") || torch.from_numpy(np.ones(2)) => torch.ones(2, dtype=torch.float64)
default_type("torch.cuda.FloatTensor") || torch.frombuffer(bytearray(2), dtype=torch.uint8) => torch.zeros(2, dtype=torch.uint8)
default_type("torch.cuda.FloatTensor") || torch.as_tensor(torch.ones(2, device="cpu")) => torch.ones(2)
default_type("torch.cuda.FloatTensor") || torch.tensor(torch.ones(2, device="cpu")) => torch.ones(2)
default_type("torch.cuda.FloatTensor") || default_collate([1.5, 2]) => torch.tensor([1.5, 2.0], dtype=torch.float64, device="cuda")
default_type("torch.cuda.FloatTensor") || default_collate([1, 2]) => torch.tensor([1, 2], device="cuda")
default_type("torch.cuda.FloatTensor") || torch.Generator().device => torch.device("cpu")
default_type("torch.cuda.FloatTensor") || torch.randperm(3, generator=torch.Generator()) => RuntimeError
torch.device("cuda") || next(iter(torch.utils.data.DataLoader(range(4), batch_size=2))) => torch.arange(2, device="cuda")
torch.device("cuda") || torch.randperm(3, generator=torch.Generator()) => RuntimeError
torch.device("cuda") || torch.ones(2, pin_memory=True) => RuntimeError
torch.ones(2, pin_memory=True).is_pinned() => True
torch.ones(2).pin_memory().is_pinned() => True
torch.ones(2).pin_memory() => torch.ones(2)
torch.ones_like(torch.ones(2, device="cuda"), device="cpu", pin_memory=True).is_pinned() => True
torch.ones(2, device="cuda").new_ones(2, device="cpu", pin_memory=True).is_pinned() => True
torch.tensor([1.0, 1.0], pin_memory=True).is_pinned() => True
torch.ones(2).is_pinned() => False
torch.ones(2, device="cuda").is_pinned() => False
torch.ones(2, device="cuda", pin_memory=True) => RuntimeError
torch.ones(2, device="cuda").pin_memory() => RuntimeError
torch.Generator("cuda").device.type => "cuda"
str(torch.Generator(torch.device("cuda", 0)).device) => "cuda:0"
torch.rand(2, generator=torch.Generator("cuda"), device="cuda") => torch.empty(2, device="cuda")
torch.randint(3, (2,), generator=torch.Generator("cuda"), device="cuda") => torch.ones(2, dtype=torch.int64, device="cuda")
torch.rand(2, generator=torch.Generator("cuda")) => RuntimeError
torch.rand(2, generator=torch.Generator(), device="cuda") => RuntimeError
torch.ones(2, device="cuda").uniform_(generator=torch.Generator()) => RuntimeError
torch.bernoulli(torch.ones(2, device="cuda"), generator=torch.Generator("cuda")) => torch.ones(2, device="cuda")
str(torch.ones(2, device="cuda").untyped_storage().device) => "cuda:0"
str(torch.UntypedStorage(4, device="cuda").device) => "cuda:0"
str(torch.UntypedStorage(4).device) => "cpu"
torch.ones(2).untyped_storage().cuda().device => torch.device("cuda")
torch.ones(2, device="cuda").untyped_storage().cpu().device => torch.device("cpu")
torch.ones(2, device="cuda").untyped_storage().nbytes() => 8
torch.ones(2, device="cuda").untyped_storage().is_cuda => True
torch.ones(2, device="cuda").data_ptr() != 0 => True
torch.ones(2, device="cuda").storage().device.type => "cuda"
torch.cuda.FloatStorage(2).device.type => "cuda"
torch.empty(0, device="cuda").set_(torch.ones(2, device="cuda").untyped_storage()) => torch.ones(2, device="cuda")
torch.empty(0).set_(torch.ones(2, device="cuda").untyped_storage()) => RuntimeError
torch.zeros((), device="cpu").add_(torch.ones((), device="cuda")) => RuntimeError
torch.zeros(6, device="cpu")[torch.zeros(1, dtype=torch.int64, device="cuda")] => RuntimeError
torch.ones(6, device="cuda")[torch.zeros(1, dtype=torch.int64, device="cpu")] => torch.ones(1, device="cuda")
torch.ones(6, device="cuda").index_select(0, torch.tensor([0])) => RuntimeError
torch.ones(6, device="cuda").gather(0, torch.tensor([0])) => RuntimeError
torch.nn.functional.embedding(torch.tensor([0]), torch.ones(2, 2, device="cuda")) => RuntimeError
torch.nn.functional.cross_entropy(torch.ones(2, 3, device="cuda"), torch.tensor([0, 1])) => RuntimeError
torch.nn.Linear(2, 3, device="cuda")(torch.ones(1, 2)) => RuntimeError
torch.zeros(2, device="cpu").add_(torch.ones((), device="cuda")) => RuntimeError
torch.ones(1, 2, device="cuda") @ torch.ones(2, 1) => RuntimeError
torch.ones(1, 2) @ torch.ones(2, 1, device="cuda") => RuntimeError
torch.complex(torch.ones(2, device="cuda"), torch.zeros(2)) => RuntimeError
(lambda x: x.to("cpu") is x)(torch.ones(2)) => True
(lambda x: x.to("cpu") is x)(torch.ones(2, device="cuda")) => False
(lambda x: x.cpu() is x)(torch.ones(2)) => True
torch.cuda.FloatTensor(1.5) => TypeError
torch.from_dlpack(torch.ones(2, device="cuda")) => torch.ones(2, device="cuda")
torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(torch.ones(2, device="cuda"))) => torch.ones(2, device="cuda")
torch.from_dlpack(torch.ones(2, device="cuda"), device="cpu") => torch.ones(2)
tuple(map(int, torch.ones(2, device="cuda").__dlpack_device__())) => (2, 0)
(lambda x: torch.from_dlpack(x).data_ptr() == x.data_ptr())(torch.ones(2, device="cuda")) => True
torch.ones(2, device="cuda").numpy(force=True) => np.ones(2, np.float32)
torch.ones(2, device="cuda").__array__() => TypeError
np.array([torch.ones((), device="cuda")]) => TypeError
torch.tensor(np.arange(2), device="cuda").cpu().numpy() => np.arange(2)
torch.nn.Linear(2, 3).cuda().weight => torch.nn.Parameter(torch.empty(3, 2, device="cuda"))
torch.nn.Linear(2, 3).cuda(0).bias => torch.nn.Parameter(torch.empty(3, device="cuda"))
torch.nn.Linear(2, 3).half().cuda("cuda:0").bias => torch.nn.Parameter(torch.empty(3, dtype=torch.float16, device="cuda"))
torch.nn.Linear(2, 3, device="cuda").cpu().bias => torch.nn.Parameter(torch.empty(3))
torch.nn.Linear(2, 3).type("torch.cuda.HalfTensor").bias => torch.nn.Parameter(torch.empty(3, dtype=torch.half, device="cuda"))
torch.nn.BatchNorm1d(2).cuda().running_mean => torch.zeros(2, device="cuda")
torch.nn.BatchNorm1d(2).cuda().num_batches_tracked => torch.tensor(0, device="cuda")
torch.nn.Linear(2, 3, device="meta").cuda() => NotImplementedError
torch.nn.Linear(2, 3).to("cuda", torch.int32) => TypeError
torch.nn.Linear(2, 3).to("cuda:1") => RuntimeError
(lambda m: m.weight is m.cuda().weight)(torch.nn.Linear(2, 3)) => True
put(torch.nn.Linear(2, 1, bias=False), weight=torch.ones(1, 2, device="cuda")) => torch.nn.Parameter(torch.ones(1, 2))
put(torch.nn.Linear(2, 1, bias=False, device="cuda"), weight=torch.ones(1, 2)) => torch.nn.Parameter(torch.ones(1, 2, device="cuda"))
put(torch.nn.Linear(2, 1, bias=False), assign=True, weight=torch.ones(1, 2, device="cuda")) => torch.nn.Parameter(torch.ones(1, 2, device="cuda"))
put(torch.nn.Linear(2, 1, bias=False, device="meta"), assign=True, weight=torch.ones(1, 2, device="cuda")) => torch.nn.Parameter(torch.ones(1, 2, device="cuda"))
(lambda x: setattr(x, "data", x.data.cuda()) or x)(torch.ones(2)) => torch.ones(2, device="cuda")
(lambda x: x.cuda().sum().backward() or x.grad)(torch.ones(2, requires_grad=True)) => torch.ones(2)
(lambda x: x.cpu().sum().backward() or x.grad)(torch.ones(2, requires_grad=True, device="cuda")) => torch.ones(2, device="cuda")
(lambda x: setattr(x, "grad", torch.ones(2)))(torch.ones(2, requires_grad=True, device="cuda")) => RuntimeError
loaded(torch.ones(2, device="cuda")) => torch.ones(2, device="cuda")
loaded(torch.ones(2, device="cuda"), "cpu") => torch.ones(2)
loaded(torch.ones(2, device="cuda"), torch.device("cpu")) => torch.ones(2)
loaded(torch.ones(2, device="cuda"), {"cuda:0": "cpu"}) => torch.ones(2)
loaded(torch.ones(2, device="cuda"), {"cpu": "cuda:0"}) => torch.ones(2, device="cuda")
loaded(torch.ones(2, device="cuda"), lambda storage, location: storage) => torch.ones(2)
loaded(torch.ones(2, device="cuda"), lambda storage, location: None) => torch.ones(2, device="cuda")
loaded(torch.ones(2, device="cuda"), "meta") => torch.ones(2, device="meta")
loaded(torch.ones(2, device="cuda"), "gpu") => RuntimeError
loaded(torch.ones(2, device="cuda"), "cuda:1") => RuntimeError
loaded(torch.ones(2, device="cuda"), 0) => TypeError
loaded(torch.ones(2)) => torch.ones(2)
loaded(torch.ones(2), "cuda") => torch.ones(2, device="cuda")
loaded(torch.ones(2), "cuda:0") => torch.ones(2, device="cuda")
loaded(torch.ones(2), torch.device("cuda")) => torch.ones(2, device="cuda")
loaded(torch.ones(2), {"cpu": "cuda:0"}) => torch.ones(2, device="cuda")
loaded(torch.ones(2), lambda storage, location: storage.cuda()) => torch.ones(2, device="cuda")
loaded(torch.ones(2), lambda storage, location: storage.cuda(0)) => torch.ones(2, device="cuda")
loaded(torch.ones(2), "cuda:1") => RuntimeError
loaded(torch.ones(2, device="meta"), "cuda") => torch.ones(2, device="meta")
loaded(torch.nn.Parameter(torch.ones(2)), "cuda") => torch.nn.Parameter(torch.ones(2, device="cuda"))
loaded({"a": torch.ones(2, device="cuda"), "b": torch.ones(2)}) => [torch.ones(2, device="cuda"), torch.ones(2)]
loaded({"a": torch.ones(2, device="cuda"), "b": torch.ones(2)}, "cpu") => [torch.ones(2), torch.ones(2)]
loaded(torch.eye(2, device="cuda").to_sparse(), "cpu").to_dense() => torch.eye(2)
loaded(torch.nn.Linear(2, 3, device="cuda"), "cpu", weights_only=False).bias => torch.nn.Parameter(torch.empty(3))
loaded(torch.nn.Linear(2, 3, device="cuda"), weights_only=False).bias => torch.nn.Parameter(torch.empty(3, device="cuda"))
torch.device("cuda") || loaded(torch.ones(2, device="cpu")) => torch.ones(2)
torch.device("cpu") || loaded(torch.ones(2, device="cuda")) => torch.ones(2, device="cuda")
default("meta") || loaded(torch.ones(2, device="cuda")) => torch.ones(2, device="cuda")
pickle.loads(pickle.dumps(torch.ones(2, device="cuda"))) => torch.ones(2, device="cuda")
pickle.loads(pickle.dumps(torch.nn.Parameter(torch.ones(2, device="cuda")))) => torch.nn.Parameter(torch.ones(2, device="cuda"))
copy.deepcopy(torch.nn.Linear(2, 3, device="cuda")).bias => torch.nn.Parameter(torch.empty(3, device="cuda"))
torch.eye(2, device="cuda").to_sparse().to("cpu").to_dense() => torch.eye(2)
torch.nested.nested_tensor([[1.0, 2.0], [3.0]], device="cuda").device.type => "cuda"
torch.sparse_coo_tensor(torch.tensor([[0, 1]]), torch.ones(2), device="cuda").to_dense() => torch.ones(2, device="cuda")
torch.device("cuda") || torch.sparse_coo_tensor(torch.tensor([[0, 1]]), torch.ones(2)).device.type => "cuda"
torch.device("cpu") || torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), device="cuda").device.type => "cuda"
torch.sparse_coo_tensor(torch.tensor([[0]], device="cuda"), torch.ones(1, device="cuda")).to_dense() => torch.ones(1, device="cuda")
default_type("torch.cuda.HalfTensor", True) || torch.ones(2) => torch.ones(2, dtype=torch.float16, device="cuda")
default_type("torch.cuda.HalfTensor", True) || torch.tensor(1.5) => torch.tensor(1.5, dtype=torch.float16, device="cuda")
default_type("torch.cuda.HalfTensor", True) || torch.tensor(1) => torch.tensor(1, device="cuda")
default_type("torch.cuda.HalfTensor", True) || torch.ones(2, device="cpu") => torch.ones(2, dtype=torch.float16)
torch.eye(2, device="cuda").to_sparse().values() => torch.ones(2, device="cuda")
torch.eye(2, device="cuda").to_sparse_csr().values() => torch.ones(2, device="cuda")
torch.eye(2).to_sparse().cuda().coalesce().indices() => torch.tensor([[0, 1], [0, 1]], device="cuda")
torch.empty_like(torch.eye(2), device="cuda") => torch.empty(2, 2, device="cuda")
torch.cuda.device(0) || torch.ones(2) => torch.ones(2)
torch.cuda.device(0) || torch.ones(2).cuda() => torch.ones(2, device="cuda")
torch.cuda.device(0) || torch.ones(2, device="cuda") => torch.ones(2, device="cuda")
"""  # noqa: E501
CONTEXTS = """
torch.device("cuda")
torch.device("cuda:0")
torch.device("meta")
torch.device("cpu")
default("cuda")
default(torch.device("cuda", 0))
default("meta")
default("cpu")
default("meta"); torch.device("cuda")
default("cuda"); torch.device("cpu")
torch.device("cuda"); torch.device("meta")
torch.device("meta"); torch.device("cuda")
torch.device("cuda"); torch.device("cpu"); torch.device("meta")
torch.cuda.device(0)
torch.cuda.device("cuda:0"); torch.device("meta")
default_type("torch.cuda.FloatTensor")
default_type("torch.cuda.DoubleTensor", True)
default_type("torch.cuda.DoubleTensor"); torch.device("cpu")
default_type("torch.cuda.FloatTensor"); torch.device("meta")
""".strip().splitlines()
SOME = CONTEXTS[0], 'default("meta")', 'default_type("torch.cuda.FloatTensor")'
PLACES = """None; "cuda"; "cuda:0"; 0; torch.device("cuda"); torch.device("cuda", 0); torch.device(0); "meta"; "cpu"
"cpu:0"; torch.device("meta"); torch.device("cpu")""".replace("\n", "; ").split("; ")
RANDOM = re.compile(
    r"empty|rand|normal|uniform|(Float|Double|Half|Byte|Short|Char|\.)Tensor\(\d|new\(\d|Size|bernoulli|multinomial|poisson"
    r"|dropout|nn\.(Linear|LSTM|Conv|Embedding|Multihead)"
)
WORLDS = [{"cuda": "meta", "meta": "cpu"}, {"cuda": "cpu", "meta": "meta"}, {"cuda": "cpu", "meta": "cpu"}]
KINDS = TypeError, ValueError, BufferError, AttributeError, AssertionError, NotImplementedError, RuntimeError
NO_DATA = re.compile("no data|on meta tensors")
NO_KERNEL = re.compile("QuantizedMeta|aten::_to_sparse|storage_device.is_cpu|ensors on meta|meta for Dlpack")
PLACED = {
    "cuda": (0, 0, True, False, False),
    "cpu": (None, -1, False, True, False),
    "meta": (None, -1, False, False, True),
}


@contextlib.contextmanager
def default(place):
    torch.set_default_device(place)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def default_type(name, as_class=False):
    """A default device comes nearest in plain PyTorch, which has no type for meta."""
    try:
        if "cuda" in name:
            torch.set_default_tensor_type(eval(name) if as_class else name)
            yield
        else:
            with default(name.split(".")[1]):
                torch.set_default_dtype(getattr(torch, name.split(".")[2].removesuffix("Tensor").lower()))
                yield
    finally:
        torch.set_default_tensor_type("torch.FloatTensor")


def loaded(kept, map_location=None, **options):
    buffer = io.BytesIO()
    torch.save(kept, buffer)
    buffer.seek(0)
    return torch.load(buffer, map_location, **options)


def put(module, assign=False, **state):
    module.load_state_dict(state, assign=assign)
    return module.weight


def facts(result, values, emulated=False):
    """Of each part of a result: the type of its device, and what is the same on every device."""
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, list | tuple) and not isinstance(result, torch.Size):
        return [fact for part in result for fact in facts(part, values, emulated)]
    if not isinstance(result, torch.Tensor):
        return [[result.type, ""] if isinstance(result, torch.device) else ["", "", repr(result)]]
    rest = [type(result).__name__, result.dtype, [*result.shape], result.layout, result.requires_grad, result.is_leaf]
    place, strided = result.device, result.layout == torch.strided
    if strided:
        rest.append(result.stride())
    if emulated:
        told = place.index, result.get_device(), result.is_cuda, result.is_cpu, result.is_meta
        rest += [told] * (told != PLACED[place.type])
        stored = result.untyped_storage().device if strided else place
        rest += [f"stored on {stored}"] * (stored != place)
    held = ""
    if values and place.type != "meta":
        held = result.detach().dequantize() if result.is_quantized else result.detach()
        held = repr(held.cpu().tolist() if strided else held.cpu().to_dense().tolist())
    return [[place.type, held, *rest]]


def evaluate(code, contexts, names, values, emulated=False):
    try:
        with contextlib.ExitStack() as stack:
            for context in contexts:
                stack.enter_context(eval(context, globals()))
            result = eval(code, globals(), names)
        if emulated:
            torch.cuda.synchronize()
        return facts(result, values, emulated)
    except (*KINDS, lv.LoadervizError) as error:
        kind = next(kind.__name__ for kind in KINDS if isinstance(error, kind))
        return "refused" if kind == "NotImplementedError" and isinstance(error, lv.LoadervizError) else kind, str(error)


def expected(code, contexts, x, values):
    """The answer of plain PyTorch, put together from three worlds."""
    worlds = []
    for words in WORLDS:
        there = [text.replace("cuda:0", "cuda").replace('"cuda", 0', '"cuda"') for text in (code, x, *contexts)]
        there = [re.sub("cuda|meta", lambda word, words=words: words[word[0]], text) for text in there]
        there = [re.sub(r"torch\.(cpu|meta)\.device\(.*\)", "contextlib.nullcontext()", text) for text in there]
        there = [re.sub(r"(device=|to\(|device\(|default\()0\b", rf'\1"{words["cuda"]}"', text) for text in there]
        worlds.append(evaluate(there[0], there[2:], {"x": eval(there[1])}, values))
    on_cuda, on_meta, answer = worlds
    failed = [world[0] for world in (answer, on_meta) if isinstance(world, tuple)]
    if failed:
        return failed[0]
    if isinstance(on_cuda, tuple):
        kind, why = on_cuda
        if not (NO_DATA.search(why) or NO_KERNEL.search(why)):
            return kind
        on_cuda = [["meta" if NO_KERNEL.search(why) else "cpu", *fact[1:]] for fact in answer]
    places = ["cuda" if there[0] == "meta" else meta[0] for there, meta in zip(on_cuda, on_meta, strict=True)]
    parts = zip(places, on_cuda, answer, strict=True)
    return [[place, "" if place == "meta" else here[1], *there[2:]] for place, there, here in parts]


def differences(cases, contexts=(), x="None"):
    """What the emulated GPU answers otherwise than it should. A case is a line, or a line, its contexts, the answer."""
    cases = [(case, contexts, None) if isinstance(case, str) else case for case in cases]
    values = [not RANDOM.search(code) for code, _, _ in cases]
    answers = [case[2] or expected(*case[:2], x, known) for case, known in zip(cases, values, strict=True)]
    different = []
    with lv.record(on="a100"):
        for (code, within, _), known, answer in zip(cases, values, answers, strict=True):
            got = evaluate(code, within, {"x": eval(x)}, known, emulated=True)
            if got != answer and not (isinstance(got, tuple) and got[0] == answer):
                different.append(f"{'; '.join(within)} || {code} [x = {x}]: {got}, not {answer}")
    assert torch.get_default_device() == torch.ones(1).device == torch.device("cpu")
    assert torch.get_default_dtype() == torch.float32
    return different


def at(line, place):
    """The line with a place in its holes: after a comma, or first among the arguments."""
    word = "" if place is None else f"device={place}"
    return line.replace("({}", f"({word}").replace("{}", word and f", {word}")


@pytest.fixture(autouse=True)
def clean():
    yield
    while torch._C._len_torch_function_stack():  # left behind by a context that was not undone
        torch.overrides._pop_mode()


@pytest.mark.slow
@pytest.mark.parametrize("context", ["", *CONTEXTS])
def test_factories(context):
    contexts = context.split("; ") if context else []
    few = context in ("", *SOME, *CONTEXTS[2:5])
    left_out = "asarray|torch.range|quantized" if "default_type" in context else "no line" if few else "sparse"
    places = PLACES if not context else ['"cuda"', "None", '"cpu"', '"meta"'] if few else ['"cuda"']
    lines = [line for line in FACTORIES.strip().splitlines() if not re.search(left_out, line)]
    codes = [at(line, place) for line in lines for place in [None, *places]]
    codes += [] if "default_type" in context else PLACELESS.strip().splitlines()
    assert differences(codes, contexts) == []


@pytest.mark.slow
@pytest.mark.parametrize(("x", "context"), [*((x, "") for x in TEMPLATES), *itertools.product(TEMPLATES[:3], SOME)])
def test_conversions(x, context):
    places = ['"cuda"', '"cpu"', '"meta"'] if context else [place for place in PLACES if "torch" not in place][1:]
    codes = [at(line, place) for line in LIKE.strip().splitlines() for place in [None, *places]]
    codes += [line.replace("{}", place) for line in MOVES.strip().splitlines() for place in places]
    codes += KEPT.strip().splitlines()
    left_out = r"asarray|tensor\(x|out=|torch\.Tensor\(2, device" if "default_type" in context else "no line"
    assert differences([code for code in codes if not re.search(left_out, code)], [context] if context else [], x) == []


def test_told():
    cases = []
    for line in TOLD.strip().splitlines():
        left, right = line.split(" => ")
        context, _, code = left.rpartition(" || ")
        literal = not re.search("torch|np", right.partition('"')[0])
        told = right if right.endswith("Error") else facts(eval(right), False) if literal else None
        told = told or expected(right, [], "None", not RANDOM.search(line))
        cases.append((code, context.split("; ") if context else [], told))
    assert differences(cases) == []


@pytest.mark.skipif(torch.__version__ < (2, 11), reason="torch 2.10 itself fails here")
def test_default_set_inside_a_context():
    def places(device):
        with torch.device(device):
            torch.set_default_device("cpu")
            inside = torch.ones(2).device.type
            torch.set_default_device(None)
            return inside, torch.ones(2).device.type

    expected = [place.replace("meta", "cuda") for place in places("meta")]
    with lv.record(on="a100"):
        assert list(places("cuda")) == expected
        assert torch.ones(2, device="cuda").get_device() == 0
        assert torch.ones(2).device.type == "cpu"
