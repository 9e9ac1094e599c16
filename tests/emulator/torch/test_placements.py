"""The table of placements: every way to make or convert a tensor, wherever it is asked to be, and what it then is.

The answers come from plain PyTorch, outside a recording, where "meta" is a second device under the same rules. Each line
is evaluated in three worlds: with cuda called meta (what lands there is on cuda), with cuda called cpu (what is still
on meta is on meta), and with all on the cpu (values, dtypes and errors). What no device here can show, such as memory
pinned or a type called torch.cuda.FloatTensor, has its answer beside it, right of "=>": another line or an error's name.
"""

import contextlib
import copy
import io
import itertools
import pickle
import re

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate, default_convert

import loaderviz as lv

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
    *(
        pytest.mark.filterwarnings(f"ignore:{start}")
        for start in (
            "torch.range is deprecated",
            "torch.set_default_tensor_type",
            "TypedStorage is deprecated",
            "The PyTorch API of nested tensors",
            "Sparse (CSR|CSC|BSR|BSC|invariant)",
            "Specifying device explicitly",
            "The given NumPy array is not writable",
            "__array_wrap__",
        )
    ),
]

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
torch.sparse_coo_tensor(torch.tensor([[0, 1]]), torch.ones(2){})
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
torch.multinomial(torch.ones(4{}), 2) -> cuda
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
torch.nested.nested_tensor([[1.0, 2.0], [3.0]]{}).unbind()
torch.nested.nested_tensor([torch.ones(2, device="cpu"), torch.ones(1, device="cpu")]{}).unbind()
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
torch.UntypedStorage(4).device
torch.Generator().device
default_collate([1, 2])
default_collate([1.5, 2.5])
default_collate([np.ones(2), np.zeros(2)])
default_collate([{"a": 1, "b": (2.0, np.arange(2))}] * 2)
default_convert(np.arange(2))
next(iter(torch.utils.data.DataLoader(range(4), batch_size=2)))
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
"""
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
torch.nn.functional.softmax(x, -1, dtype=torch.float32) + torch.ones_like(x, dtype=torch.float32{})
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
torch.nn.Parameter(x.float()).to({})
torch.nn.Parameter(x.float().to({}))
torch.nn.utils.rnn.pack_sequence([x.view(-1).to({})]).data
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
x.to()
x.to(x)
x.view(-1)
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
x.view(-1).sort()
x.view(-1).topk(1)
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
torch.full((2,), x, device="cpu")
torch.stack([x, x])
default_collate([x, x])
default_collate([{"a": x}, {"a": x}])
default_convert([x])
torch.cat([x.view(-1), torch.zeros(2, device="cpu")])
torch.stack([x.view(-1), torch.zeros(6, device="cpu")])
x.view(-1)[torch.tensor([0], device="cpu")]
x.view(-1)[0]
torch.zeros(6, device="cpu")[torch.zeros(1, dtype=torch.int64, device=x.device)]
x.view(-1).index_select(0, torch.tensor([0], device="cpu"))
x + torch.zeros(6, device="cpu").view(6, 1, 1)
torch.zeros(2, device="cpu") + x.sum()
torch.zeros(2, device="cpu").add_(x.sum())
torch.zeros((), device="cpu").add_(x.sum().float())
torch.zeros((), device="cpu").mul(x.sum())
torch.where(torch.tensor(True, device="cpu"), x, 0)
torch.where(x > 0, x, torch.tensor(0, device="cpu"))
torch.clamp(x, min=torch.tensor(1, device="cpu"))
torch.zeros(2, device="cpu").fill_(x.sum())
torch.lerp(x.float(), x.float(), torch.tensor(0.5, device="cpu"))
torch.complex(x.float(), torch.zeros((), device="cpu"))
x.float().view(1, -1) @ torch.ones(6, 1, device="cpu")
torch.nn.functional.linear(x.float().view(1, -1), torch.ones(2, 6, device="cpu"))
torch.nn.functional.mse_loss(x.float(), torch.tensor(0.0, device="cpu").expand(x.shape))
torch.add(x, 1, out=torch.empty(0, device="cpu"))
torch.ones(2, out=torch.empty(2, device=x.device))
torch.arange(3, out=torch.empty(3, dtype=torch.int64, device=x.device))
torch.broadcast_tensors(x, torch.zeros((), device="cpu"))
x.view(-1).to_sparse().to_dense()
x.view(-1).to_sparse().to("cpu")
x.untyped_storage().device
x.device
x.is_cuda
x.is_cpu
x.is_meta
x.get_device()
x.layout
x.type() => {"cuda": "torch.cuda.", "cpu": "torch.", "meta": "torch.meta."}[x.device.type] + SHORT[x.dtype]
x.untyped_storage().nbytes() > 0
x.untyped_storage().data_ptr() == x.data_ptr()
torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))
torch.from_dlpack(x)
"""
# What plain PyTorch without a GPU cannot say: what stands on the right is the answer.
TOLD = """
"""
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
torch.device("cuda"); default("meta")
torch.cuda.device(0)
torch.cuda.device("cuda:0"); torch.device("meta")
default_type("torch.cuda.FloatTensor")
default_type(torch.cuda.HalfTensor)
default_type("torch.cuda.DoubleTensor"); torch.device("cpu")
default_type("torch.cuda.FloatTensor"); torch.device("meta")
""".strip().splitlines()
PLACES = """None; "cuda"; "cuda:0"; 0; torch.device("cuda"); torch.device("cuda", 0); torch.device(0); "meta"; "cpu"; "cpu:0"
torch.device("meta"); torch.device("cpu")""".replace("\n", "; ").split("; ")
RANDOM = re.compile(
    r"empty|rand|normal|uniform|Tensor\(2|UntypedStorage\(|new\(2|Size|nn\.[A-Z]\w+\(|bernoulli|multinomial|poisson|dropout"
)
WORLDS = [{"cuda": "meta", "meta": "cpu"}, {"cuda": "cpu", "meta": "meta"}, {"cuda": "cpu", "meta": "cpu"}]
KINDS = TypeError, ValueError, BufferError, AttributeError, AssertionError, NotImplementedError, RuntimeError


@contextlib.contextmanager
def default(place):
    torch.set_default_device(place)
    yield
    torch.set_default_device(None)


@contextlib.contextmanager
def default_type(kind):
    """In plain PyTorch no type is on meta: a default device comes nearest."""
    name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
    if "cuda" in name:
        torch.set_default_tensor_type(kind)
        yield
        torch.set_default_tensor_type("torch.FloatTensor")
    else:
        with default(name.split(".")[1]):
            torch.set_default_dtype(getattr(torch, name.split(".")[-1].removesuffix("Tensor").lower()))
            yield
            torch.set_default_dtype(torch.float32)


def facts(result, values, true_device):
    """Of each part of what a line gives: the type of its device, and all that is the same on every device."""
    if isinstance(result, torch.nn.utils.rnn.PackedSequence | dict):
        result = list(result.values()) if isinstance(result, dict) else list(result)
    if (
        isinstance(result, list | tuple)
        and not isinstance(result, torch.Size)
        and any(isinstance(part, torch.Tensor | list | tuple | dict) for part in result)
    ):
        return [fact for part in result for fact in facts(part, values, true_device)]
    if isinstance(result, torch.device):
        return [(result.type, "device")]
    if not isinstance(result, torch.Tensor):
        return [("", repr(result))]
    place = result.device
    rest = [
        type(result).__name__,
        result.dtype,
        tuple(result.shape),
        result.layout,
        result.requires_grad,
        result.is_leaf,
    ]
    if result.layout == torch.strided:
        rest.append(result.stride())
    if true_device:
        told = place.type, place.index, result.is_cuda, result.is_meta, result.is_cpu, result.get_device()
        if told not in (
            ("cuda", 0, True, False, False, 0),
            ("cpu", None, False, False, True, -1),
            ("meta", None, False, True, False, -1),
        ):
            rest.append(told)
        if result.layout == torch.strided and result.untyped_storage().device != place:
            rest.append(result.untyped_storage().device)
    if values and place.type != "meta":
        dense = result.detach().dequantize() if result.is_quantized else result.detach()
        rest.append(repr(dense.cpu().to_dense().tolist()))
    return [(place.type, rest)]


def evaluate(code, contexts, names, values, true_device=False):
    try:
        with contextlib.ExitStack() as stack:
            for context in contexts:
                stack.enter_context(eval(context, globals()))
            result = eval(code, globals(), names)
        return facts(result, values, true_device)
    except lv.NotModelledError as refusal:
        return f"NotModelledError {refusal}"
    except KINDS as error:
        return next(kind for kind in KINDS if isinstance(error, kind)), str(error)


def expected(code, contexts, x, values):
    worlds = []
    for words in WORLDS:
        there = [re.sub("cuda|meta", lambda word: words[word[0]], text) for text in (code, x, *contexts)]
        there = [
            text.replace("torch.cpu.device(", "torch.cuda.device(").replace("torch.meta.device(", "torch.cuda.device(")
            for text in there
        ]
        worlds.append(evaluate(there[0], there[2:], {"x": eval(there[1])}, values))
    return worlds


def combine(worlds, lost):
    on_cuda, on_meta, answer = worlds
    for world in answer, on_meta:
        if isinstance(world, tuple):
            return world
    if isinstance(on_cuda, tuple) and on_cuda[0] != NotImplementedError:
        return on_cuda
    ...
