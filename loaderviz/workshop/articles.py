"""The programs of the five articles, written anew with their calls and settings, each beside a repaired one.

for printed, repaired in articles.PROGRAMS.values():
    print(lv.advise(articles.run(printed))[0], lv.summarize(articles.run(repaired)).step)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, Subset

from loaderviz import mnist
from loaderviz.emulator.hardware import Gpu
from loaderviz.imports import import_torchvision
from loaderviz.loaders import PrefetchLoader, ResidentLoader
from loaderviz.recording import record
from loaderviz.timeline import Timeline
from loaderviz.workshop.lessons.claims import Samples, Slices
from loaderviz.workshop.loop import GPU, HOST, network, train_step

WAIT, STEPS = 4, 12  # steps before those that count, and these


class FromList(Dataset[torch.Tensor]):
    """A list whose items become tensors when they are asked for."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.Tensor(self.values[index])


def digits(batches: int, size: int) -> Dataset[Any]:
    """Return MNIST as torchvision has it, through ToTensor, as many digits as these batches need."""
    torchvision = import_torchvision()
    kind = torchvision.datasets.MNIST
    digits = kind.__new__(kind)  # its __init__ would look for files, and the digits may be drawn
    torchvision.datasets.VisionDataset.__init__(digits, "", transform=torchvision.transforms.ToTensor())
    digits.data, digits.targets = mnist.tensors()
    return Subset(digits, range(batches * size))


def fit(batches: Iterable[Any], model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Train on batches that are on the GPU, as bytes or as floats: what a repaired program does."""
    for x, y in batches:
        train_step(model, optimizer, x.float() / 255 if x.dtype == torch.uint8 else x, y)


def article_1(batches: int) -> None:
    """`non_blocking=True` is the prefetching: a list, four workers, Adam; labels that the loop makes."""
    images = mnist.tensors()[0][: batches * 64].float() / 255
    loader = DataLoader(FromList(list(images)), batch_size=64, shuffle=True, num_workers=4)
    model = network().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    for batch in loader:
        inputs = batch.cuda(non_blocking=True)
        labels = batch.sum((1, 2)).long() % 10
        outputs = model(inputs)
        loss = cross_entropy(outputs, labels.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def repaired_1(batches: int) -> None:
    """The list is one tensor on the GPU, and the labels are made there; Adam updates all weights in one kernel."""
    images = mnist.tensors()[0][: batches * 64].float() / 255
    labels = images.sum((1, 2)).long() % 10
    model = network().cuda()
    fit(ResidentLoader((images, labels), 64), model, torch.optim.Adam(model.parameters(), lr=0.001, fused=True))


def article_2(batches: int) -> None:
    """Two workers and `pin_memory=True` make loading fast: MNIST through ToTensor, `.to(device)` in the loop."""
    loader = DataLoader(digits(batches, 64), batch_size=64, shuffle=True, num_workers=2, pin_memory=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs, labels in loader:
        inputs, labels = inputs.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()


def repaired_2(batches: int) -> None:
    """The digits are decoded once, moved as bytes, and scaled on the GPU."""
    images, labels = (part[: batches * 64] for part in mnist.tensors())
    model = network().cuda()
    fit(ResidentLoader((images, labels), 64), model, torch.optim.SGD(model.parameters(), lr=0.01))


def article_3(batches: int) -> None:
    """`pin_memory=True` chooses the device: batches of 32, no workers, one copy for each part."""
    loader = DataLoader(Samples(batches * 32, (3, 64, 64)), 32, pin_memory=True)
    model = network(3 * 64 * 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for data, target in loader:
        data = data.to("cuda")
        target = target.to("cuda")
        loss = cross_entropy(model(data), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def repaired_3(batches: int) -> None:
    """Two workers fetch, a thread pins, and the copies run beside the kernels."""
    loader = DataLoader(Samples(batches * 32, (3, 64, 64)), 32, num_workers=2, pin_memory=True)
    model = network(3 * 64 * 64).cuda()
    fit(PrefetchLoader(loader), model, torch.optim.SGD(model.parameters(), lr=0.01))


def article_4(batches: int) -> None:
    """`pin_memory=True` saves a fifth of the time with images: four workers, and copies that block."""
    loader = DataLoader(Samples(batches * 64, (3, 96, 96)), batch_size=64, num_workers=4, pin_memory=True)
    model = network(3 * 96 * 96).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in loader:
        images = images.cuda()
        labels = labels.cuda()
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()


def repaired_4(batches: int) -> None:
    """A sample is bytes, a quarter of the floats, until it is on the GPU; the copies run beside the kernels."""
    data = Samples(batches * 64, (3, 96, 96), dtype=torch.uint8)
    model = network(3 * 96 * 96).cuda()
    loader = DataLoader(data, 64, num_workers=4, pin_memory=True)
    fit(PrefetchLoader(loader), model, torch.optim.SGD(model.parameters(), lr=0.01))


def article_5(batches: int) -> None:
    """The DataLoader of which the article complains: MNIST through ToTensor, batches of 128, `.cuda()` in the loop."""
    loader = DataLoader(digits(batches, 128), batch_size=128, shuffle=True, num_workers=2)
    model = network().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def sliced_5(batches: int) -> None:
    """What the article has in its place: slices of 64, all on the GPU."""
    images, labels = (part[: batches * 64] for part in mnist.tensors())
    model = network().cuda()
    fit(Slices(images.float() / 255, labels, 64, "cuda"), model, torch.optim.Adam(model.parameters()))


def repaired_5(batches: int) -> None:
    """Batches of the DataLoader's size, of samples in a new order each epoch; Adam in one kernel."""
    images, labels = (part[: batches * 128] for part in mnist.tensors())
    model = network().cuda()
    fit(ResidentLoader((images, labels), 128), model, torch.optim.Adam(model.parameters(), fused=True))


Program = Callable[[int], None]
PROGRAMS: dict[str, tuple[Program, Program]] = {  # as printed, and repaired
    "1": (article_1, repaired_1),
    "2": (article_2, repaired_2),
    "3": (article_3, repaired_3),
    "4": (article_4, repaired_4),
    "5": (article_5, repaired_5),
}


def run(program: Program, on: str | Gpu = GPU, host: str = HOST) -> Timeline:
    """Return the steps that count of a program, on an emulated GPU."""
    # torch counts the cores of this computer, and warns of them
    with warnings.catch_warnings(action="ignore"), record(on=on, host=host, wait=WAIT, steps=STEPS) as recording:
        program(WAIT + STEPS + 2)
    return recording.timeline
