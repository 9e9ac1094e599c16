"""The main experiment: four ways to feed a GPU with MNIST, each recorded as a Timeline.

Each trains the same small network from the same start. Those that use a DataLoader get the same batches, so their
losses are equal; so is the resident loader's in its first epoch, after which it draws another order. Beside them
"usual" is the loop as most people write it: digits one by one through PIL, from two workers, and `.cuda()` in the loop.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

from loaderviz import mnist
from loaderviz.emulator.hardware import Gpu, Host
from loaderviz.emulator.replay import PRESETS, LoaderConfig
from loaderviz.errors import LoadervizError
from loaderviz.imports import fork_workers, import_torchvision
from loaderviz.loaders import BlockingLoader, PinnedLoader, PrefetchLoader, ResidentLoader
from loaderviz.recording import record
from loaderviz.timeline import Kind, Timeline

LOADERS, USUAL = tuple(PRESETS), "usual"
LARGEST_USUAL = 1024  # samples in a batch: beyond it the usual step is so long that nothing else could be seen
SMALL_BATCH, LARGE_BATCH = 64, 4096  # overlap cannot pay in the first, copy and compute are comparable in the second
HIDDEN = 896  # with it a batch of 4096 computes longer than the pin thread, or the copy, takes for it, on an A100
Batch = tuple[torch.Tensor, torch.Tensor]


class ExperimentError(LoadervizError, ValueError):
    """The experiment cannot be run with these numbers."""


class Images(Dataset[Batch]):
    """MNIST in memory, given out in whole batches: images `[B, 28, 28]` in the dtype given, labels int64 `[B]`."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Batch:
        return self.images[index], self.labels[index]

    def __getitems__(self, indices: list[int]) -> Batch:
        """Gather a batch in one go; the DataLoader calls it where a data set has it."""
        rows = torch.tensor(indices)
        return self.images.index_select(0, rows), self.labels.index_select(0, rows)


class Digits(Dataset[tuple[torch.Tensor, int]]):
    """MNIST as torchvision has it with `transform=ToTensor()`: an image is float32 `[1, 28, 28]`, a label an int."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels = images, labels
        _to_tensor()  # raises without torchvision, here and not in a worker

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        _to_tensor()  # in a spawned worker: what its first fetch imports would have no price there

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        return _to_tensor()(Image.fromarray(self.images[index].numpy())), int(self.labels[index])


@functools.cache
def _to_tensor() -> Callable[[Any], torch.Tensor]:
    """Torchvision's transform; each process makes its own, since in a spawned one the import needs its cure, too."""
    transform: Callable[[Any], torch.Tensor] = import_torchvision().transforms.ToTensor()
    return transform


def as_it_is(batch: Any) -> Any:
    """Collate a batch that is one already."""
    return batch


@dataclass(frozen=True)
class Setting:
    """What to run: batch size, how many batches before and while the clock runs, DataLoader workers, prefetch depth."""

    batch_size: int = LARGE_BATCH
    steps: int = 4
    warmup: int = 6  # page-locking, cudaMalloc and the start of the workers are over by then: later steps are alike
    workers: int = 4
    depth: int = 2

    def __post_init__(self) -> None:
        for name, least in {"batch_size": 1, "steps": 1, "depth": 1, "warmup": 0, "workers": 0}.items():
            if getattr(self, name) < least:
                raise ExperimentError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.batch_size > 60_000:
            raise ExperimentError(f"batch_size {self.batch_size} is larger than MNIST, which has 60,000 images")

    @property
    def loaders(self) -> tuple[str, ...]:
        """What to compare at this batch size."""
        return (USUAL, *LOADERS) if self.batch_size <= LARGEST_USUAL else LOADERS

    @property
    def batches(self) -> int:
        """How many batches are trained on in all."""
        return self.warmup + self.steps


@dataclass(frozen=True)
class Run:
    """One loader's outcome: its timeline from the first batch after the warm-up on, and the loss of the last batch."""

    timeline: Timeline
    loss: float


def four_loaders(
    setting: Setting | None = None,
    on: str | Gpu = "a100",
    host: str | Host = "workstation",
    progress: Callable[[str], None] | None = None,
    only: Iterable[str] = LOADERS,
) -> dict[str, Run]:
    """Run the experiment once for each loader in `only`; `progress` is called with the name of each when it is done.

    `on` and `host` are those of `loaderviz.record`. `setting.loaders` has the usual loop, too, for batches up to 1024.
    MNIST is not downloaded for it: where it is not on this machine, the digits are drawn.
    """
    setting = setting or Setting()
    fork_workers()
    images, labels = mnist.tensors(train=True, download=False)
    runs = {}
    for name in only:
        with record(on=on, host=host) as recording:
            loss = train(make_loader(name, setting, images, labels), setting)
        runs[name] = Run(recording.timeline.self_check().from_batch(setting.warmup), loss)
        if progress:
            progress(name)
    return runs


class Gather(NamedTuple):
    """What collects the resident loader's batches on the GPU: names of kernels, and their time [ns a step]."""

    kernels: list[str]
    time: float


def gather(runs: Mapping[str, Run]) -> Gather:
    """Return the kernels that the resident loader's run has and the prefetcher's has not."""
    resident, prefetch = (list(runs[name].timeline.rows(Kind.COMPUTE)) for name in ("resident", "prefetch"))
    kernels = sorted({span.name for span in resident} - {span.name for span in prefetch})
    time = sum(span.end - span.start for span in resident if span.name in kernels)
    return Gather(kernels, time / len({span.batch for span in resident}))


def make_loader(name: str, setting: Setting, images: torch.Tensor, labels: torch.Tensor) -> Iterable[Any]:
    """Return one of the four loaders over MNIST, as `PRESETS` has them, or "usual"; call it inside `record()`."""
    config = LoaderConfig(**{"workers": setting.workers} | PRESETS.get(name, {}))
    if config.resident:
        loader = ResidentLoader((images, labels), setting.batch_size, seed=0, drop_last=True)
        return itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), setting.batches)
    count = (setting.batches + setting.depth) * setting.batch_size  # the prefetcher has work up to the last step
    order = RandomSampler(range(len(images)), num_samples=count, generator=torch.Generator().manual_seed(0))
    if name == USUAL:
        digits = DataLoader(Digits(images, labels), setting.batch_size, sampler=order, num_workers=2)
        return ((x.cuda(), y.cuda()) for x, y in digits)
    source = DataLoader(
        Images(images, labels),
        setting.batch_size,
        sampler=order,
        num_workers=config.workers,
        collate_fn=as_it_is,
        pin_memory=config.pin,
        generator=torch.Generator().manual_seed(0),
    )
    if config.side_stream:
        return PrefetchLoader(source, depth=setting.depth, lifetime=config.lifetime)
    return PinnedLoader(source) if config.non_blocking else BlockingLoader(source)


def train(loader: Iterable[Any], setting: Setting) -> float:
    """Train a small network on batches of images, uint8 or from 0 to 1; return the loss of the last one.

    The host runs ahead of the GPU, so it waits for it after the warm-up and at the end, as any timing must (R27).
    """
    torch.manual_seed(0)
    layers = torch.nn.Flatten(), torch.nn.Linear(784, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 10)
    model = torch.nn.Sequential(*layers).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = torch.zeros(())
    for number, (images, labels) in enumerate(itertools.islice(loader, setting.batches)):
        pixels = images if images.is_floating_point() else images.float() / 255
        loss = torch.nn.functional.cross_entropy(model(pixels), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number == setting.warmup - 1:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return loss.item()
