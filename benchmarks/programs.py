"""Programs, each unaware of the emulator: what benchmarks/compatibility.py runs.

    echo mnist cpu | python -m benchmarks.programs       # prints the numbers of the program, as JSON
    echo mnist a100 | python -m benchmarks.programs      # the same one in an emulated recording, with what it found

Those here are in the style of public ones, written anew: small models, few steps. packages.py adds other people's.
Each function is one program; its argument is the device that it asks for, its result the numbers (losses, mostly) that
must not depend on it.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import random
import re
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import loaderviz
from benchmarks.packages import Package, packages, transformer
from loaderviz.imports import import_torchvision

PATIENCE = 200  # s for one run
Numbers = list[float]


class Program(NamedTuple):
    """A program, what it is in the style of, and the packages that it needs beyond torch (the first is its subject)."""

    run: Callable[[str], Numbers]
    style: str
    needs: tuple[str, ...]
    whose: str = "our own"
    make: Callable[[], None] = lambda: None


PROGRAMS: dict[str, Program | Package] = {**packages()}  # first, with the newest packages: some of ours need older


def program(style: str, *needs: str) -> Callable[[Callable[[str], Numbers]], Callable[[str], Numbers]]:
    """Return a decorator that puts a program into the table."""

    def note(run: Callable[[str], Numbers]) -> Callable[[str], Numbers]:
        PROGRAMS[run.__name__] = Program(run, style, needs)
        return run

    return note


def images(count: int = 64, channels: int = 1, size: int = 12, classes: int = 10) -> TensorDataset:
    """Return random images with labels, the same in each run."""
    generator = torch.Generator().manual_seed(1)
    values = torch.rand(count, channels, size, size, generator=generator)
    return TensorDataset(values, torch.randint(0, classes, (count,), generator=generator))


def net(channels: int = 1, classes: int = 10) -> nn.Sequential:
    """Return a small convolutional network."""
    first = nn.Conv2d(channels, 8, 3, padding=1)
    return nn.Sequential(
        first, nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, classes)
    )


def fit(
    model: nn.Module,
    batches: Iterable[Any],
    device: str,
    loss_of: Callable[..., Any] = F.cross_entropy,
    lr: float = 0.05,
) -> Numbers:
    """Train; return the losses."""
    model = model.to(device)
    moved = ((x.to(device, non_blocking=True), y.to(device, non_blocking=True)) for x, y in batches)
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    return descend(optimizer, (loss_of(model(x), y) for x, y in moved))


def descend(optimizer: torch.optim.Optimizer, losses: Iterable[torch.Tensor]) -> Numbers:
    """Take a step for each loss, before the next one is computed; return them."""
    values = []
    for loss in losses:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


# In the style of pytorch/examples


@program("pytorch/examples mnist")
def mnist(device: str) -> Numbers:
    options = {"num_workers": 1, "pin_memory": True} if device == "cuda" else {}
    model = net()
    losses = fit(model, DataLoader(images(), 16, **options), device)
    model.eval()
    with torch.no_grad():
        right = sum(
            model(x.to(device)).argmax(1).eq(y.to(device)).sum().item() for x, y in DataLoader(images(), 32, **options)
        )
    return [*losses, right]


@program("pytorch/examples mnist_rnn")
def mnist_rnn(device: str) -> Numbers:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.LSTM(12, 16, batch_first=True), nn.Linear(16, 10)

        def forward(self, x: Any) -> Any:
            return F.log_softmax(self.head(self.rnn(x.squeeze(1))[0][:, -1]), 1)

    return fit(Net(), DataLoader(images(), 16), device, F.nll_loss)


@program("pytorch/examples imagenet --dummy")
def imagenet_dummy(device: str) -> Numbers:
    from torchvision import datasets, models, transforms

    data = datasets.FakeData(8, (3, 32, 32), 10, transforms.ToTensor())
    model = models.resnet18(num_classes=10)
    if device == "cuda":
        model = nn.DataParallel(model).cuda()
    return fit(model, DataLoader(data, 4, num_workers=1, pin_memory=device == "cuda"), device)


@program("pytorch/examples vae")
def vae(device: str) -> Numbers:
    class Vae(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.mean, self.log, self.down = (nn.Linear(*s) for s in ((144, 32), (32, 4), (32, 4), (4, 144)))

        def forward(self, x: Any) -> Any:
            hidden = F.relu(self.up(x.view(-1, 144)))
            mean, log = self.mean(hidden), self.log(hidden)
            return torch.sigmoid(self.down(mean + torch.randn_like(log) * torch.exp(0.5 * log))), mean, log, x

    def loss_of(out: Any, _: Any) -> Any:
        again, mean, log, x = out
        return F.binary_cross_entropy(again, x.view(-1, 144)) - 0.5 * torch.mean(1 + log - mean.pow(2) - log.exp())

    return fit(Vae(), DataLoader(images(), 16), device, loss_of)


@program("pytorch/examples dcgan")
def dcgan(device: str) -> Numbers:
    make = nn.Sequential(
        nn.ConvTranspose2d(8, 8, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 1, 9), nn.Tanh()
    )
    judge = nn.Sequential(nn.Conv2d(1, 8, 4, 2), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(200, 1), nn.Sigmoid())
    make, judge, losses = make.to(device), judge.to(device), []
    steps = [torch.optim.Adam(each.parameters(), 2e-3, betas=(0.5, 0.999)) for each in (make, judge)]
    for x, _ in DataLoader(images(), 16):
        real, noise = x.to(device), torch.randn(len(x), 8, 1, 1, device=device)
        ones, zeros = torch.full((len(x), 1), 1.0, device=device), torch.full((len(x), 1), 0.0, device=device)
        judge.zero_grad()
        fake = make(noise)
        error = F.binary_cross_entropy(judge(real), ones) + F.binary_cross_entropy(judge(fake.detach()), zeros)
        error.backward()
        steps[1].step()
        make.zero_grad()
        F.binary_cross_entropy(judge(fake), ones).backward()
        steps[0].step()
        losses.append(error.item())
    return losses


@program("pytorch/examples siamese_network")
def siamese(device: str) -> Numbers:
    class Pairs(Dataset):
        def __len__(self) -> int:
            return 32

        def __getitem__(self, i: int) -> Any:
            data = images()
            return torch.stack((data[i][0], data[(i * 7) % 64][0])), torch.tensor(float(i % 2))

    class Twin(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = net(classes=8), nn.Linear(16, 1)

        def forward(self, pair: Any) -> Any:
            return self.head(torch.cat((self.body(pair[:, 0]), self.body(pair[:, 1])), 1)).squeeze(1)

    return fit(Twin(), DataLoader(Pairs(), 8), device, F.binary_cross_entropy_with_logits)


@program("pytorch/examples super_resolution")
def super_resolution(device: str) -> Numbers:
    model = nn.Sequential(nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1), nn.PixelShuffle(2))
    large = images(size=24).tensors[0]
    data = TensorDataset(F.interpolate(large, scale_factor=0.5, mode="bicubic"), large)
    return fit(model, DataLoader(data, 16), device, F.mse_loss)


@program("pytorch/examples word_language_model")
def word_language_model(device: str) -> Numbers:
    text = torch.randint(0, 50, (8, 41), generator=torch.Generator().manual_seed(2)).to(device)
    table, rnn, head = (
        nn.Embedding(50, 16).to(device),
        nn.GRU(16, 16, 2, batch_first=True).to(device),
        nn.Linear(16, 50),
    )
    head, hidden, losses = head.to(device), torch.zeros(2, 8, 16, device=device), []
    parameters = [*table.parameters(), *rnn.parameters(), *head.parameters()]
    for start in range(0, 40, 10):
        hidden = hidden.detach()
        out, hidden = rnn(table(text[:, start : start + 10]), hidden)
        loss = F.cross_entropy(head(out).flatten(0, 1), text[:, start + 1 : start + 11].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 0.25)
        with torch.no_grad():
            for parameter in parameters:
                parameter.add_(parameter.grad, alpha=-1.0)
                parameter.grad = None
        losses.append(loss.item())
    return losses


@program("pytorch/examples gat")
def gat(device: str) -> Numbers:
    class Layer(nn.Module):
        def __init__(self, inside: int, outside: int) -> None:
            super().__init__()
            self.weight, self.score = nn.Linear(inside, outside, bias=False), nn.Linear(2 * outside, 1, bias=False)

        def forward(self, x: Any, edges: Any) -> Any:
            h = self.weight(x)
            pairs = torch.cat((h[:, None].expand(-1, len(h), -1), h[None].expand(len(h), -1, -1)), 2)
            e = F.leaky_relu(self.score(pairs).squeeze(2), 0.2)
            return torch.softmax(torch.where(edges > 0, e, -9e15 * torch.ones_like(e)), 1) @ h

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList((Layer(8, 8), Layer(8, 3)))

        def forward(self, x: Any) -> Any:
            return self.layers[1](F.elu(self.layers[0](x, edges)), edges)

    generator = torch.Generator().manual_seed(3)
    nodes, edges = torch.rand(20, 8, generator=generator), (torch.rand(20, 20, generator=generator) > 0.7).float()
    edges = (edges + torch.eye(20)).to(device)
    return fit(Net(), [(nodes, torch.arange(20) % 3)] * 4, device)


@program("pytorch/examples mnist_forward_forward")
def forward_forward(device: str) -> Numbers:
    layers = [nn.Linear(144, 32).to(device), nn.Linear(32, 32).to(device)]
    steps, losses = [torch.optim.Adam(layer.parameters(), 0.03) for layer in layers], []
    x, y = (tensor.to(device) for tensor in images().tensors)
    good, bad = x.flatten(1).clone(), x.flatten(1).clone()
    good[range(64), y] = 1.0
    bad[range(64), y[torch.randperm(64)]] = 1.0
    for layer, optimizer in zip(layers, steps, strict=True):
        for _ in range(3):
            hot, cold = (F.relu(layer(F.normalize(each))).pow(2).mean(1) for each in (good, bad))
            loss = torch.log(1 + torch.exp(torch.cat([-hot + 2.0, cold - 2.0]))).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        good, bad = F.relu(layer(good)).detach(), F.relu(layer(bad)).detach()
    return losses


@program("pytorch/examples distributed/ddp, one process")
def ddp(device: str) -> Numbers:
    import torch.distributed as dist
    from torch.utils.data.distributed import DistributedSampler

    dist.init_process_group("nccl" if device == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    if device == "cuda":
        torch.cuda.set_device(0)
    model = nn.parallel.DistributedDataParallel(net().to(device), device_ids=[0] if device == "cuda" else None)
    data = images()
    losses = fit(model, DataLoader(data, 16, sampler=DistributedSampler(data), pin_memory=device == "cuda"), device)
    dist.destroy_process_group()
    return losses


@program("pytorch/examples mnist_hogwild")
def hogwild(device: str) -> Numbers:
    model = net().to(device).share_memory()
    with torch.multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(fit, (model, DataLoader(images(), 16), device))


# In the style of repositories and tutorials


class Block(nn.Module):
    """One layer of a transformer, with causal attention."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.one, self.two, self.qkv = nn.LayerNorm(width), nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        q, k, v = (part.unflatten(2, (4, -1)).transpose(1, 2) for part in self.qkv(self.one(x)).split(x.shape[2], 2))
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return x + self.mlp(self.two(x))


def gpt(device: str, compiled: bool) -> Numbers:
    """Train a small language model as nanoGPT does, with pinned batches, accumulation and fused AdamW."""
    model = nn.Sequential(nn.Embedding(64, 32), Block(), Block(), nn.LayerNorm(32), nn.Linear(32, 64)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.95), fused=device == "cuda")
    text, losses = torch.randint(0, 64, (2000,), generator=torch.Generator().manual_seed(4)), []
    run = torch.compile(model) if compiled and device == "cuda" else model

    def batch() -> Any:
        starts = torch.randint(len(text) - 17, (8,))
        x, y = (torch.stack([text[i + k : i + k + 16] for i in starts]) for k in (0, 1))
        if device == "cuda":
            return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
        return x, y

    x, y = batch()
    for _ in range(3):
        for _ in range(2):
            loss = F.cross_entropy(run(x).flatten(0, 1), y.flatten()) / 2
            x, y = batch()
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return losses


@program("nanoGPT train.py")
def nanogpt(device: str) -> Numbers:
    return gpt(device, compiled=False)


@program("nanoGPT bench.py, torch.compile")
def nanogpt_compiled(device: str) -> Numbers:
    return gpt(device, compiled=True)


@program("airbench94: data on the GPU, half precision, channels_last")
def airbench(device: str) -> Numbers:
    data, labels = (tensor.to(device) for tensor in images(64, 3, 16).tensors)
    model = net(3).to(device).half().to(memory_format=torch.channels_last)
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.1, momentum=0.85, nesterov=True), []
    data = F.pad(data.half(), (2,) * 4, "reflect").to(memory_format=torch.channels_last)
    for _ in range(2):
        order = torch.randperm(64, device=device)
        for rows in order.split(16):
            flip = (torch.rand(16, device=device) < 0.5).view(-1, 1, 1, 1)
            x = torch.where(flip, data[rows].flip(-1), data[rows])[..., 2:-2, 2:-2]
            loss = F.cross_entropy(model(x), labels[rows], label_smoothing=0.2, reduction="none").sum()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


@program("airbench96: whitening, cutout, lookahead, flipped views in evaluation")
def airbench_large(device: str) -> Numbers:
    data, labels = (tensor.to(device) for tensor in images(64, 3, 16).tensors)
    data = data.half().to(memory_format=torch.channels_last)
    patches = data.float().unfold(2, 2, 1).unfold(3, 2, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 12)
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    white = nn.Conv2d(3, 12, 2, bias=False, device=device, dtype=torch.half).requires_grad_(False)
    white.weight.copy_((vectors / torch.sqrt(values + 1e-2)).T.abs().reshape(12, 3, 2, 2))  # a vector has no sign
    model = nn.Sequential(white, nn.GELU(), net(12).to(device).half()).to(memory_format=torch.channels_last)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer, losses = torch.optim.SGD(trained, 0.05, momentum=0.85, nesterov=True), []
    slow = [value.clone() for value in model.state_dict().values() if value.is_floating_point()]
    for epoch in range(2):
        for rows in torch.randperm(64, device=device).split(16):
            x = data[rows].flip(-1) if epoch % 2 else data[rows]
            corner = torch.randint(0, 12, (2, 16, 1, 1, 1), device=device)
            place = torch.arange(16, device=device)
            tall, wide = (
                each.sub(c).clamp(-1, 4).remainder(5) < 4
                for each, c in zip((place[:, None], place), corner, strict=True)
            )
            loss = F.cross_entropy(model(x.masked_fill(tall & wide, 0)), labels[rows], reduction="none")
            loss.sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.float().mean().item())
        with torch.no_grad():
            fast = [value for value in model.state_dict().values() if value.is_floating_point()]
            torch._foreach_lerp_(slow, fast, 0.5)
            torch._foreach_copy_(fast, slow)
    model.eval()
    with torch.inference_mode():
        views = 0.5 * model(data) + 0.5 * model(data.flip(-1))
    return [*losses, views.float().softmax(1).max(1).values.mean().item()]


@program("tutorial: pin_memory and non_blocking")
def pinned_memory(device: str) -> Numbers:
    source = torch.arange(2.0**16)
    there = (source.pin_memory() if device == "cuda" else source).to(device, non_blocking=True)
    back = (there * 2).to("cpu", non_blocking=True)
    if device == "cuda":
        torch.cuda.synchronize()
    return [back.sum().item()]


@program("tutorial: data loading")
def data_loading(device: str) -> Numbers:
    class Faces(Dataset):
        def __len__(self) -> int:
            return 12

        def __getitem__(self, i: int) -> Any:
            return {"image": torch.full((3, 8, 8), float(i)), "landmarks": torch.arange(4.0) + i}

    total = []
    for batch in DataLoader(Faces(), 4, num_workers=2, pin_memory=device == "cuda"):
        batch = {name: value.to(device, non_blocking=True) for name, value in batch.items()}
        total.append((batch["image"].sum() + batch["landmarks"].mean()).item())
    return total


@program("tutorial: automatic mixed precision")
def mixed_precision(device: str) -> Numbers:
    model, losses = net().to(device), []
    optimizer, scaler = (
        torch.optim.SGD(model.parameters(), 0.05),
        torch.amp.GradScaler(device, enabled=device == "cuda"),
    )
    for x, y in DataLoader(images(), 16):
        with torch.autocast(device, torch.bfloat16):
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@program("tutorial: profiler")
def profiling(device: str) -> Numbers:
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found, record_function("model"):
        losses = fit(net(), DataLoader(images(), 16), device)
    return [*losses, float("model" in found.key_averages().table())]


@program("tutorial: CUDA graphs, whole network")
def cuda_graphs(device: str) -> Numbers:
    model = net().to(device)
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.05), []
    x, y = torch.zeros(16, 1, 12, 12, device=device), torch.zeros(16, dtype=torch.long, device=device)

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(3):
        step()
    run, static = step, None
    if device == "cuda":
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.graph(graph, stream=side):
            static = step()
        torch.cuda.current_stream().wait_stream(side)
        run = graph.replay
    for a, b in DataLoader(images(), 16):
        x.copy_(a)
        y.copy_(b)
        loss = run()
        losses.append((loss if static is None else static).item())
    return losses


@program("NVIDIA apex examples: data_prefetcher")
def apex_prefetcher(device: str) -> Numbers:
    def prefetched(loader: Any) -> Any:
        stream, source = torch.cuda.Stream(), iter(loader)

        def preload() -> Any:
            batch = next(source, None)
            with torch.cuda.stream(stream):
                return batch and [entry.to(device, non_blocking=True) for entry in batch]

        batch = preload()
        while batch:
            torch.cuda.current_stream().wait_stream(stream)
            for entry in batch:
                entry.record_stream(torch.cuda.current_stream())
            ready, batch = batch, preload()
            yield ready

    loader = DataLoader(images(), 16, pin_memory=device == "cuda")
    return fit(net(), prefetched(loader) if device == "cuda" else loader, device)


# Libraries


@program("timm 0.9 train.py", "timm==0.9.16")
def timm_former(device: str) -> Numbers:
    return timm_model(device)


@program("timm train.py", "timm>=1")
def timm_model(device: str) -> Numbers:
    import timm
    from timm.data import Mixup
    from timm.optim import create_optimizer_v2
    from timm.utils import ModelEmaV2

    model = timm.create_model("resnet10t", num_classes=10).to(device)
    ema, mixup = ModelEmaV2(model), Mixup(0.8, num_classes=10, label_smoothing=0.1)
    optimizer, losses = create_optimizer_v2(model, "adamw", 1e-3), []
    for x, y in DataLoader(images(16, 3, 32), 8):
        x, y = mixup(x.to(device), y.to(device))
        loss = torch.sum(-y * F.log_softmax(model(x), 1), 1).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ema.update(model)
        losses.append(loss.item())
    return losses


@program("torchtnt AutoUnit", "torchtnt", "setuptools<81")
def torchtnt_unit(device: str) -> Numbers:
    from torchtnt.framework.auto_unit import AutoUnit
    from torchtnt.framework.train import train

    losses: Numbers = []

    class Unit(AutoUnit):
        def compute_loss(self, state: Any, data: Any) -> Any:
            out = self.module(data[0])
            return F.cross_entropy(out, data[1]), out

        def configure_optimizers_and_lr_scheduler(self, module: Any) -> Any:
            return torch.optim.SGD(module.parameters(), 0.05), None

        def on_train_step_end(self, state: Any, data: Any, step: int, results: Any) -> None:
            losses.append(results.loss.item())

    train(Unit(module=net(), device=torch.device(device)), DataLoader(images(), 16), max_epochs=1)
    return losses


@program("spdl pipeline with a thread pool", "spdl")
def spdl_pipeline(device: str) -> Numbers:
    from spdl.pipeline import PipelineBuilder

    builder = (
        PipelineBuilder().add_source(range(6)).pipe(lambda i: torch.full((4,), float(i)).to(device), concurrency=1)
    )
    pipeline = builder.add_sink(2).build(num_threads=1)
    with pipeline.auto_stop():
        return [batch.sum().item() for batch in pipeline]


@program("torchdata nodes", "torchdata")
def torchdata_nodes(device: str) -> Numbers:
    from torchdata.nodes import Batcher, IterableWrapper, Loader, ParallelMapper

    node = ParallelMapper(
        Batcher(IterableWrapper(range(12)), 4), partial(torch.tensor, dtype=torch.float32), num_workers=2
    )
    return [batch.to(device).sum().item() for batch in Loader(node)]


@program("torchdata nodes with PinMemory", "torchdata")
def torchdata_pin(device: str) -> Numbers:
    from torchdata.nodes import Batcher, IterableWrapper, Loader, Mapper, PinMemory

    node = Mapper(Batcher(IterableWrapper(range(12)), 4), partial(torch.tensor, dtype=torch.float32))
    return [batch.to(device).sum().item() for batch in Loader(PinMemory(node) if device == "cuda" else node)]


@program("torchdata StatefulDataLoader", "torchdata")
def stateful_loader(device: str) -> Numbers:
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(images(), 16, num_workers=1, pin_memory=device == "cuda")
    losses = fit(net(), loader, device)
    return [*losses, len(loader.state_dict()) > 0]


@program("Lightning Trainer", "lightning")
def lightning_trainer(device: str) -> Numbers:
    import lightning

    losses: Numbers = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def training_step(self, batch: Any, index: int) -> Any:
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.05)

    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(accelerator=device, devices=1, max_epochs=1, **quiet)
    trainer.fit(Module(), DataLoader(images(), 16))
    return losses


@program("Lightning Fabric", "lightning")
def lightning_fabric(device: str) -> Numbers:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator=device, devices=1)
    fabric.launch()
    model = net()
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.05))
    losses = []
    for x, y in fabric.setup_dataloaders(DataLoader(images(), 16)):
        loss = F.cross_entropy(model(x), y)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@program("accelerate", "accelerate")
def accelerate_loop(device: str) -> Numbers:
    from accelerate import Accelerator

    accelerator, model = Accelerator(cpu=device == "cpu"), net()
    loader, losses = DataLoader(images(), 16), []
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.05), loader)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return [*losses, accelerator.device.type == device]


@program("transformers Trainer, a random tiny GPT-2", "transformers", "accelerate")
def transformers_trainer(device: str) -> Numbers:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    shape = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 64, "n_positions": 16}
    model = GPT2LMHeadModel(GPT2Config(**shape, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    text = torch.randint(0, 64, (16, 16), generator=torch.Generator().manual_seed(5))
    options = {"report_to": [], "logging_steps": 1, "max_steps": 4, "disable_tqdm": True, "save_strategy": "no"}
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(folder, per_device_train_batch_size=4, use_cpu=device == "cpu", **options)
        trainer = Trainer(model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in text])
        trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@program("transformers from_pretrained, five architectures", "transformers")
def from_pretrained(device: str) -> Numbers:
    import transformers

    losses = []
    ids = torch.randint(3, 60, (4, 8), generator=torch.Generator().manual_seed(5))
    words, pictures = {"input_ids": ids, "labels": ids}, torch.rand(4, 3, 32, 32)
    kinds = dict.fromkeys(
        ("GPT2LMHeadModel", "BertForMaskedLM", "LlamaForCausalLM", "T5ForConditionalGeneration"), words
    )
    kinds["ViTForImageClassification"] = {"pixel_values": pictures, "labels": torch.tensor([0, 1, 1, 0])}
    for kind, batch in kinds.items():
        with tempfile.TemporaryDirectory() as folder:
            transformer(folder, kind, num_labels=2)
            model = getattr(transformers, kind).from_pretrained(folder).to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        moved = {name: tensor.to(device) for name, tensor in batch.items()}
        losses += descend(optimizer, (model(**moved).loss for _ in range(4)))
    return losses


@program('transformers from_pretrained, device_map="auto"', "transformers", "accelerate")
def device_map(device: str) -> Numbers:
    from transformers import AutoModelForCausalLM

    os.environ.pop("HF_DEACTIVATE_ASYNC_LOAD", None)
    with tempfile.TemporaryDirectory() as folder:
        transformer(folder, "LlamaForCausalLM")
        model = AutoModelForCausalLM.from_pretrained(folder, device_map="auto")
    return [model(torch.arange(8, device=device)[None]).logits.sum().item()]


@program("diffusers: training to predict the noise", "diffusers")
def diffusion(device: str) -> Numbers:
    from diffusers import DDPMScheduler, UNet2DModel

    blocks = {"down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",), "block_out_channels": (8,)}
    model = UNet2DModel(8, 1, 1, norm_num_groups=4, layers_per_block=1, **blocks).to(device)
    schedule = DDPMScheduler()

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        noise, steps = torch.randn(x.shape), torch.randint(1000, (len(x),))
        noisy, steps, noise = (it.to(device) for it in (schedule.add_noise(x, noise, steps), steps, noise))
        return F.mse_loss(model(noisy, steps).sample, noise)

    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    return descend(optimizer, (loss_of(x) for x, _ in DataLoader(images(size=8), 16)))


@program("torchao: weights of 8 bits, and training for them", "torchao")
def torchao_weights(device: str) -> Numbers:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_
    from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig

    trained = nn.Sequential(nn.Flatten(), nn.Linear(144, 32), nn.ReLU(), nn.Linear(32, 10)).to(device)
    quantize_(trained, QATConfig(weight_config=IntxFakeQuantizeConfig(torch.int8, "per_channel"), step="prepare"))
    losses = fit(trained, DataLoader(images(), 16), device)
    for config in (Int8WeightOnlyConfig(), Int8DynamicActivationInt8WeightConfig()):
        model = nn.Sequential(nn.Flatten(), nn.Linear(144, 32), nn.ReLU(), nn.Linear(32, 10)).to(device)
        quantize_(model, config)
        with torch.no_grad():
            losses += [model(x.to(device)).square().sum().item() for x, _ in DataLoader(images(), 32)]
    return losses


@program("ignite Engine", "pytorch-ignite")
def ignite_engine(device: str) -> Numbers:
    from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
    from ignite.metrics import Accuracy

    model, losses = net().to(device), []
    trainer = create_supervised_trainer(model, torch.optim.SGD(model.parameters(), 0.05), F.cross_entropy, device)
    judge = create_supervised_evaluator(model, {"accuracy": Accuracy()}, device)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: losses.append(engine.state.output))
    trainer.run(DataLoader(images(), 16), max_epochs=1)
    judge.run(DataLoader(images(), 32))
    return [*losses, judge.state.metrics["accuracy"]]


@program("fastai Learner", "fastai")
def fastai_learner(device: str) -> Numbers:
    import fastai.callback.progress  # noqa: F401  # gives a learner `no_bar`
    from fastai.data.core import DataLoaders
    from fastai.data.load import DataLoader as FastLoader
    from fastai.learner import Learner

    data = images()
    loaders = DataLoaders(*(FastLoader(data, 16, num_workers=0) for _ in range(2)), device=torch.device(device))
    learner = Learner(loaders, net(), loss_func=F.cross_entropy)
    with learner.no_bar(), learner.no_logging():
        learner.fit(2, 0.01)
    return [float(loss) for loss in learner.recorder.losses]


@program("PyTorch Geometric GCN", "torch_geometric")
def geometric(device: str) -> Numbers:
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader as GraphLoader
    from torch_geometric.nn import GCNConv, global_mean_pool

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = GCNConv(4, 8), GCNConv(8, 3)

        def forward(self, data: Any) -> Any:
            x = self.two(F.relu(self.one(data.x, data.edge_index)), data.edge_index)
            return global_mean_pool(x, data.batch)

    generator, model = torch.Generator().manual_seed(6), Net().to(device)
    graphs = [
        Data(
            torch.rand(6, 4, generator=generator),
            torch.randint(0, 6, (2, 12), generator=generator),
            y=torch.tensor([i % 3]),
        )
        for i in range(12)
    ]
    optimizer, batches = (
        torch.optim.SGD(model.parameters(), 0.05),
        (batch.to(device) for batch in GraphLoader(graphs, 4)),
    )
    return descend(optimizer, (F.cross_entropy(model(batch), batch.y) for batch in batches))


@program("kornia augmentation on the GPU", "kornia")
def kornia_augmentation(device: str) -> Numbers:
    import kornia.augmentation as K

    change = nn.Sequential(K.RandomHorizontalFlip(1.0), K.Normalize(torch.tensor(0.5), torch.tensor(0.5)))
    return fit(net(), ((change(x.to(device)), y) for x, y in DataLoader(images(), 16)), device)


@program("torchvision.transforms.v2", "torchvision")
def torchvision_v2(device: str) -> Numbers:
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    change = v2.Compose([v2.RandomHorizontalFlip(1.0), v2.Resize((8, 8), antialias=True), v2.Normalize([0.5], [0.5])])
    batches = ((change(tv_tensors.Image(x).to(device)), y) for x, y in DataLoader(images(), 16))
    return fit(net(), batches, device)


@program("torchmetrics", "torchmetrics")
def metrics(device: str) -> Numbers:
    from torchmetrics.classification import MulticlassAccuracy

    model, accuracy = net().to(device), MulticlassAccuracy(10).to(device)
    for x, y in DataLoader(images(), 16):
        accuracy.update(model(x.to(device)), y.to(device))
    return [accuracy.compute().item()]


@program("webdataset", "webdataset")
def webdataset_loader(device: str) -> Numbers:
    import webdataset

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "a.tar")
        with webdataset.TarWriter(path) as writer:
            for number in range(12):
                writer.write(
                    {"__key__": f"{number:04}", "value.json": json.dumps([number] * 4), "cls": str(number % 3)}
                )
        data = webdataset.WebDataset(f"file:{path}", shardshuffle=False).decode().to_tuple("value.json", "cls")
        batches = webdataset.WebLoader(data.map_tuple(torch.tensor, int), batch_size=4, num_workers=1)
        return [(x.to(device) * y.to(device)[:, None]).sum().item() for x, y in batches]


@program("datasets with format torch", "datasets")
def hf_datasets(device: str) -> Numbers:
    from datasets import Dataset as Table

    table = Table.from_dict({"x": [[float(i)] * 4 for i in range(12)], "y": list(range(12))}).with_format("torch")
    return [(b["x"].to(device).sum(1) * b["y"].to(device)).sum().item() for b in DataLoader(table, 4, num_workers=1)]


@program("prefetch_generator", "prefetch_generator", "setuptools<81")
def background_generator(device: str) -> Numbers:
    from prefetch_generator import BackgroundGenerator

    return fit(net(), BackgroundGenerator(DataLoader(images(), 16)), device)


@program("mosaicml-streaming StreamingDataset", "mosaicml-streaming")
def streaming(device: str) -> Numbers:
    from streaming import MDSWriter, StreamingDataset

    with tempfile.TemporaryDirectory() as folder:
        with MDSWriter(out=folder, columns={"x": "float32", "y": "int"}) as writer:
            for number in range(12):
                writer.write({"x": float(number), "y": number})
        data = StreamingDataset(local=folder, batch_size=4)
        return [(b["x"].to(device) * b["y"].to(device)).sum().item() for b in DataLoader(data, 4)]


@program("IterableDataset in workers")
def iterable(device: str) -> Numbers:
    class Lines(IterableDataset):
        def __iter__(self) -> Any:
            info = torch.utils.data.get_worker_info()
            return iter([torch.full((3,), float(i)) for i in range(info.id if info else 0, 12, info.num_workers)])

    return [
        batch.to(device).sum().item() for batch in DataLoader(Lines(), 3, num_workers=2, pin_memory=device == "cuda")
    ]


@program("a background thread that copies to the GPU")
def copying_thread(device: str) -> Numbers:
    from queue import Queue
    from threading import Thread

    queue: Queue[Any] = Queue(2)
    model = net()  # before the thread: its loader draws a seed from the same generator

    def copy() -> None:
        for x, y in DataLoader(images(), 16):
            queue.put((x.to(device), y.to(device)))
        queue.put(None)

    Thread(target=copy, daemon=True).start()
    return fit(model, iter(queue.get, None), device)


def run(name: str, place: str) -> dict[str, Any]:
    """Run one program on the "cpu", or on an emulated GPU; return its numbers and what was found, or its error."""
    asked = PROGRAMS[name]
    subject = re.split("[<=>]", asked.needs[0])[0] if asked.needs else "torch"
    result: dict[str, Any] = {}
    try:
        result["version"] = f"{subject} {importlib.metadata.version(subject)}"
        asked.make()
        for seed in (torch.manual_seed, random.seed, np.random.seed):
            seed(0)
        if place == "cpu":
            return result | {"numbers": asked.run("cpu")}
        with loaderviz.record(on=place, check=True) as recording:
            result["numbers"] = asked.run("cuda")
    except BaseException as problem:
        return result | {"error": f"{type(problem).__name__}: {problem}"}
    found = {"hazards": sorted({hazard.kind for hazard in recording.hazards})}
    if check := recording.check:
        compared = f"{check.calls} calls, {check.modules} modules"
        found["check"] = f"{compared}: {check.differences[0]}" if check.differences else f"{compared}: agree"
    return result | found


def run_apart(name: str, place: str) -> str:
    """Run one program in a fork of this process, so that all of torch is imported once; return its result as JSON."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(PATIENCE)
        with open(os.devnull, "w") as nowhere, tempfile.TemporaryDirectory() as folder:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
            os.mkdir(os.path.join(folder, "here"))
            os.chdir(os.path.join(folder, "here"))
            found = json.dumps(run(name, place)).encode()
        with open(writer, "wb") as pipe:
            pipe.write(found)
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        found = pipe.read().decode()
    os.waitpid(child, 0)
    return found or json.dumps({"error": f"Timeout: no end after {PATIENCE} s, or the process was killed"})


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    import_torchvision()  # as `python -m loaderviz run` does
    with loaderviz.record(on="a100"):  # imports what a recording needs
        torch.ones(1, device="cuda")
    for line in sys.stdin:
        print(run_apart(*line.rsplit(maxsplit=1)), flush=True)
