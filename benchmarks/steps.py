"""Steps of models, priced without a GPU: their kernels from a run on the meta device, their host time from a recording.

work = step_calls(Setup("resnet50", 256, "train", "amp", "nhwc"))   # a Counter of kernels.Call
kernel_time(work, Gpu.preset("a100"))                               # ns, gaps between kernels included
host_time(Setup("resnet50", 256, "train", "amp", "nhwc"), "server 2023")   # ns, whatever the batch
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, cast
from unittest.mock import patch

import torch
from torch import nn
from torch._prims_common import suggest_memory_format
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from loaderviz import record
from loaderviz.emulator import Gpu
from loaderviz.emulator.hardware import Kernel
from loaderviz.emulator.kernels import Call, Times, kernel_times
from loaderviz.emulator.torch import operators
from loaderviz.emulator.torch.operators import KernelCosts, Operator, _collected, _outputs
from loaderviz.imports import cured_imports

with cured_imports():
    import torchvision

# Functions that CUDA's autocast computes in half and in single precision, of those that the models below call.
LOWER, SINGLE = ("conv2d", "linear", "scaled_dot_product_attention"), ("layer_norm",)
VIT_SMALL = {"image_size": 224, "patch_size": 16, "num_layers": 12, "num_heads": 6, "hidden_dim": 384, "mlp_dim": 1536}
LENGTHS = {"bert-large": 384, "gpt2": 1024}  # words: SQuAD, and nanoGPT's context


class Setup(NamedTuple):
    """A step: which model, images in a batch, "train" or "infer", "fp32", "half" or "amp", "nchw" or "nhwc".

    `plain`: forward and backward alone, each gradient set to zero before, as torch 1.7 did; no optimizer.
    """

    model: str
    batch: int
    mode: str
    precision: str = "fp32"
    layout: str = "nchw"
    plain: bool = False

    @property
    def amp(self) -> bool:
        """Whether it runs under autocast."""
        return self.precision == "amp"


class Timed(tuple[int, ...]):
    """Times of an operator's kernels that know their call."""

    call: Call


def _timed(gpu: Gpu, call: Call) -> Times:
    times = Timed(kernel_times(gpu, call))
    times.call = call._replace(reads=tuple(call.reads), writes=tuple(call.writes))
    return times


class Counted(TorchDispatchMode):
    """Counts the calls of all operators that run inside, as the emulated GPU prices them."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self.costs, self.known = KernelCosts(gpu), dict[Any, Operator]()
        self.calls = Counter[Call]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator and count it."""
        result = func(*args, **(kwargs or {}))
        if "convolution" in func.__name__ and any(map(is_channels_last, args[:3])):
            result = tree_map_only(torch.Tensor, as_channels_last, result)
        if (operator := self.known.get(func)) is None:
            operator = self.known[func] = Operator(func)
        if not (operator.is_free or operator.no_kernel):
            outputs = _outputs(result)
            if operator.base == "native_batch_norm" and not args[5]:  # on the meta device eval mode hides itself
                outputs = [outputs[0], torch.empty(0, device="meta")]
            tensors = _collected(args, kwargs or {})
            with patch.object(operators, "kernel_times", _timed):
                times, *_ = self.costs.of(operator, args, tensors, outputs, operator.written(args, kwargs or {}))
            self.calls[cast(Timed, times).call] += 1
        return result


def kernel_time(calls: Counter[Call], gpu: Gpu) -> tuple[int, int]:
    """Return ns of kernels, the gaps between them included, and how many there are."""
    times = [(kernel_times(gpu, call), count) for call, count in calls.items()]
    kernels = sum(len(each) * count for each, count in times)
    return sum(sum(each) * count for each, count in times) + kernels * gpu.queue_gap, kernels


def is_channels_last(value: object) -> bool:
    """Tell whether torch takes a tensor for images, or for a weight, whose channels lie side by side."""
    return isinstance(value, torch.Tensor) and suggest_memory_format(value) is torch.channels_last


def as_channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """Return what a convolution made with its channels side by side, as on CUDA: the meta device does not ask how."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def fused_attention(query: Any, key: Any, value: Any, mask: Any = None, *args: Any, **more: Any) -> torch.Tensor:
    """Be the one operator that attention is in a recording; the meta device would make it of products."""
    if mask is not None:
        raise NotImplementedError("a mask: another operator")
    result = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, *args, **more)
    return cast(torch.Tensor, result[0])


@contextmanager
def as_on_cuda(amp: bool) -> Iterator[None]:
    """Run what is on the meta device with attention fused, and with `amp` in the precisions of CUDA's autocast."""
    functional: Any = nn.functional
    before = {name: getattr(functional, name) for name in (*LOWER, *SINGLE)}
    halves = dict[int, tuple[torch.Tensor, torch.Tensor]]()  # of the weights, each cast once, as autocast does

    def to(dtype: torch.dtype, value: Any) -> Any:
        if not (isinstance(value, torch.Tensor) and value.is_floating_point()):
            return value
        if value.requires_grad and value.is_leaf and dtype is torch.half:
            return halves.setdefault(id(value), (value, value.to(dtype)))[1]
        return value.to(dtype)

    def casting(function: Callable[..., Any], dtype: torch.dtype) -> Callable[..., Any]:
        def run(*args: Any, **more: Any) -> Any:
            halved = {name: to(dtype, value) for name, value in more.items()}
            return function(*(to(dtype, value) for value in args), **halved)

        return run

    functions = before | {"scaled_dot_product_attention": fused_attention}
    for name, function in functions.items():
        setattr(functional, name, casting(function, torch.float if name in SINGLE else torch.half) if amp else function)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(functional, name, function)


class Answers(nn.Module):
    """BERT-large with a layer for answers, as DeepLearningExamples trains it on SQuAD: attention made of products."""

    def __init__(self, layers: int = 24, width: int = 1024, heads: int = 16, words: int = 30528) -> None:
        super().__init__()
        self.heads, self.words, self.places = heads, nn.Embedding(words, width), nn.Embedding(512, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
        sizes = ((width, width),) * 4, ((width, 4 * width), (4 * width, width))
        self.into, self.back = (nn.ModuleList(nn.Linear(*size) for _ in range(layers) for size in of) for of in sizes)
        self.dropout, self.answer = nn.Dropout(0.1), nn.Linear(width, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return scores of begins and ends."""
        x = self.dropout(self.norms[0](self.words(words) + self.places.weight[: words.shape[1]]))
        for layer in range(len(self.into) // 4):
            query, key, value, out = self.into[4 * layer : 4 * layer + 4]
            wide, narrow = self.back[2 * layer : 2 * layer + 2]
            q, k, v = (part(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (query, key, value))
            weights = self.dropout((q @ k.transpose(2, 3) / 8).softmax(-1))
            x = self.norms[2 * layer + 1](x + self.dropout(out((weights @ v).transpose(1, 2).flatten(2))))
            x = self.norms[2 * layer + 2](x + self.dropout(narrow(nn.functional.gelu(wide(x)))))
        return cast(torch.Tensor, self.answer(x).flatten(1))


class Words(nn.Module):
    """GPT-2 of 124M parameters in bfloat16, as nanoGPT trained it in 2022: attention made of products."""

    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12, words: int = 50304) -> None:
        super().__init__()
        self.heads, self.embed, self.head = heads, nn.Embedding(words, width), linear(width, words)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
        parts = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)] * layers
        self.layers = nn.ModuleList(linear(*sizes) for sizes in parts)
        self.mask = torch.ones(LENGTHS["gpt2"], LENGTHS["gpt2"], dtype=torch.bool)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return scores of the next words, float32."""
        x = self.embed(tokens)
        for layer in range(len(self.layers) // 4):
            into, out, wide, back = self.layers[4 * layer : 4 * layer + 4]
            parts = into(self.norms[2 * layer](x).bfloat16()).chunk(3, 2)
            q, k, v = (each.unflatten(2, (self.heads, -1)).transpose(1, 2) for each in parts)
            scores = (q @ k.transpose(-2, -1) / 8).masked_fill(self.mask, float("-inf"))
            mixed = nn.functional.dropout(scores.float().softmax(-1), 0.1).bfloat16() @ v
            x = x + out(mixed.transpose(1, 2).flatten(2))
            x = x + back(nn.functional.gelu(wide(self.norms[2 * layer + 1](x).bfloat16())))
        return cast(torch.Tensor, self.head(self.norms[-1](x).bfloat16())).float().flatten(0, 1)


def linear(width: int, to: int) -> nn.Module:
    """Return a layer in bfloat16."""
    return nn.Linear(width, to, bias=to != 50304).bfloat16()


LANGUAGE: dict[str, type[nn.Module]] = {"bert-large": Answers, "gpt2": Words}


def build(name: str, device: str, setup: Setup) -> nn.Module:
    """Return a model on a device."""
    plain = {"init_weights": False} if name.startswith(("vgg", "inception")) else {}
    with torch.device("cpu" if name.startswith("regnet") else device):  # its start values need real memory
        if name in LANGUAGE:
            model: nn.Module = LANGUAGE[name]()
        elif name.startswith("vit_small"):
            model = torchvision.models.VisionTransformer(**VIT_SMALL)
        else:
            model = getattr(torchvision.models, name)(**plain)
    model = model.to(device)
    if setup.layout == "nhwc":
        model = model.to(memory_format=torch.channels_last)
    return model.train(setup.mode == "train")


def inputs(setup: Setup, device: str, batch: int, size: int) -> torch.Tensor:
    """Return a batch: pictures of this size, or words."""
    if setup.model in LENGTHS:
        return torch.zeros(batch, LENGTHS[setup.model], dtype=torch.long, device=device)
    images = torch.zeros(batch, 3, size, size, device=device)
    return images.to(memory_format=torch.channels_last) if setup.layout == "nhwc" else images


def inference(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, amp: bool) -> Callable[[], None]:
    """Return a function that makes a step of DeepLearningExamples' validation: its loss and accuracies are read."""
    read = images.device.type == "cuda"

    @torch.no_grad()
    def step() -> None:
        with torch.autocast("cuda", torch.float16, enabled=amp and read):
            logits = model(images)
            loss = nn.functional.cross_entropy(logits.float(), labels)
        hits = logits.topk(5, 1).indices.t().eq(labels.view(1, -1))
        values = [hits[:rank].reshape(-1).float().sum(0, keepdim=True).mul_(100) for rank in (1, 5)]
        if read:
            for value in (*values, loss):
                value.item()

    return step


def training(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, amp: bool) -> Callable[[], None]:
    """Return a function that makes a step with SGD and momentum, or with AdamW for a language model."""
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=True)
    if isinstance(model, Words):
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        labels = labels.new_zeros(images.numel())

    def step() -> None:
        with torch.autocast("cuda", torch.float16, enabled=amp and images.device.type == "cuda"):
            result = model(images)
            logits = result if isinstance(result, torch.Tensor) else result.logits + result.aux_logits
        nn.functional.cross_entropy(logits.float(), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def plain_step(model: nn.Module, setup: Setup, images: torch.Tensor, to_none: bool = False) -> Callable[[], None]:
    """Return a function that makes a step of pytorch-gpu-benchmark: forward and backward, or inference.

    `to_none`: `zero_grad` forgets the gradients, as torch 2 does; torch 1.7 set each to zero, by a kernel of its own.
    """
    dtype = torch.half if setup.precision == "half" else torch.float
    model, trains = model.to(dtype), setup.mode == "train"
    device = torch.device("cuda") if images.device.type == "cpu" else images.device
    labels = torch.zeros(len(images), dtype=torch.long, device=device)

    def step() -> None:
        with torch.set_grad_enabled(trains):
            for parameter in model.parameters() if trains else ():
                if to_none:
                    parameter.grad = None
                elif parameter.grad is not None:
                    parameter.grad.zero_()
            logits = model(images.to(device, dtype))
            if trains:
                nn.functional.cross_entropy(logits, labels).backward()

    return step


def stepper(setup: Setup, device: str, batch: int, size: int, to_none: bool = False) -> Callable[[], None]:
    """Return a function that makes one step on a device."""
    model, images = build(setup.model, device, setup), inputs(setup, device, batch, size)
    if setup.plain:
        return plain_step(model, setup, images.cpu() if device == "cuda" else images, to_none)
    make = training if setup.mode == "train" else inference
    return make(model, images, torch.zeros(batch, dtype=torch.long, device=device), setup.amp)


@lru_cache(None)
def step_calls(setup: Setup, tensor_float: bool = True) -> Counter[Call]:
    """Return the calls of one step; `tensor_float`: the card has TF32."""
    step = stepper(setup, "meta", setup.batch, 299 if setup.model.startswith("inception") else 224)
    if setup.mode == "train" and not setup.plain:
        with as_on_cuda(setup.amp):
            step()  # the optimizer makes its buffers
    with Counted(Gpu.preset("a100" if tensor_float else "v100")) as counted, as_on_cuda(setup.amp):
        step()
    return counted.calls


def gpu_time(setup: Setup, gpu: Gpu) -> tuple[int, int]:
    """Return ns of kernels, gaps included, and the number of kernels of one step."""
    return kernel_time(step_calls(setup, gpu.capability >= operators.TENSOR_FLOAT), gpu)


@contextmanager
def free_gpu(gpu: str, host: str) -> Iterator[None]:
    """Record on this GPU with kernels of no time, so that only the host counts."""
    card = Gpu.preset(gpu)
    none = dict.fromkeys(card.kernels, Kernel(0, 10**6, 10**6))
    with record(
        on=replace(card, kernels=none, queue_gap=0, memory=10**12, malloc=0, malloc_small=0), host=host, hazards="off"
    ):
        yield


@lru_cache(None)
def host_time(setup: Setup, host: str, to_none: bool = False) -> int:
    """Return the host's ns of one step; it does not depend on the size of the data."""
    with free_gpu("a100", host):
        step = stepper(setup, "cuda", 2, 32, to_none)
        step()
        start = time.perf_counter_ns()  # a recording's own clock
        step()
        return time.perf_counter_ns() - start
