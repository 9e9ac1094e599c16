"""The training of the capstone: fresh MNIST digits, a small network, the limit, and what makes a loader honest.

run, right = train(load)     # load(images, labels, size, epochs) hands out batches on the GPU
run.took, limit()            # ns
right                        # share of the test digits that the network knows afterwards
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from loaderviz.metrics import summarize
from loaderviz.recording import record
from loaderviz.workshop import facts, machine
from loaderviz.workshop.lesson04 import SHUFFLE
from loaderviz.workshop.measure import Consumer, Run, Setting, feed
from loaderviz.workshop.outcome import NotYet
from loaderviz.workshop.source import Data

Loader = Callable[..., Any]  # load(images, labels, size, epochs): hands out batches on the GPU

SIZE, PER_EPOCH, EPOCHS, HIDDEN = 256, 12, 4, 128
TESTED = 2000  # test digits that the trained network is asked
HOST = replace(
    machine.HOST, name="workshop host, slow fetch", fetch_per_byte=machine.HOST.fetch_per_byte * machine.SLOWER,
    worker_start=machine.HOST.worker_start // 10,
    sources=machine.HOST.sources | {
        "fetch_per_byte": "40 times the preset 'laptop': bytes move at a fortieth of its speed here, too",
        "worker_start": "chosen small: in a training run of many steps the start of the workers does not count",
    },
)  # fmt: skip


class Digits(Data):
    """A fresh random choice of MNIST digits: images uint8 `[N, 28, 28]`, labels int64 `[N]`."""

    def __init__(self) -> None:
        from loaderviz import mnist  # brings torchvision, which the lessons before need not have

        generator = torch.Generator().manual_seed(secrets.randbits(62))
        images, labels = mnist.tensors(train=True)
        rows = torch.randperm(len(images), generator=generator)[: SIZE * PER_EPOCH]
        self.sizes = (SIZE,) * PER_EPOCH
        self.images, self.labels = images[rows], labels[rows]
        self.weights = torch.randint(1, 2**16, (machine.FEATURES,), generator=generator).double()
        self.sums = machine.sums_of(self.images, self.weights)


class Training(Consumer):
    """The training loop of the capstone: a small network, cross entropy, SGD; uint8 images are converted by it."""

    def __init__(self, data: Data, setting: Setting, count: int = 0) -> None:
        super().__init__(data, setting, count)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            layers = torch.nn.Linear(machine.FEATURES, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 10)
        self.model = torch.nn.Sequential(torch.nn.Flatten(), *layers).to("cuda")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.weights = data.weights.to("cuda")

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Note which samples these are, for the check, and train on them. Raises `NotYet` for labels that are none."""
        whole = images.flatten(1).double()
        if images.is_floating_point():
            whole = (whole * 255).round()
        self.seen.append((torch.mv(whole, self.weights), labels.clone()))
        try:
            self.train_on(images, labels)
        except IndexError:  # what would be a device-side assert on a GPU
            early = bool((labels == torch.iinfo(torch.int64).max).any())
            fact = "was read before its copy was complete" if early else "has labels that are no digits"
            raise NotYet(f"Batch {len(self.seen) - 1} {fact}.", facts.NO_WAIT if early else "") from None

    def train_on(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Train on one batch. Images that come as they are stored become float32 from 0 to 1 here, on the GPU."""
        pixels = images if images.is_floating_point() else images.float() / 255
        loss = cross_entropy(self.model(pixels), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def right(self) -> float:
        """Return the share (0..1) of the first test digits that the network knows. Call it after the recording."""
        from loaderviz import mnist

        images, labels = (part[:TESTED] for part in mnist.tensors(train=False))
        with torch.no_grad():
            return float((self.model(images.float() / 255).argmax(1) == labels).float().mean())

    def dtypes(self, images: Any) -> torch.dtype:
        """Images may be uint8, as they are stored, or float32 from 0 to 1."""
        return torch.float32 if getattr(images, "dtype", None) == torch.float32 else torch.uint8


def train(load: Loader) -> tuple[Run, float]:
    """Train with a loader on fresh digits; return the run and the share (0..1) of the test digits that are right then.

    Raises `NotYet` if the batches are not honest, and what `feed` raises.
    """
    trainings: list[Training] = []

    def consumer(*arguments: Any) -> Training:
        trainings.append(Training(*arguments))
        return trainings[0]

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(secrets.randbits(62))
        setting = Setting(epochs=EPOCHS, host=HOST)
        run = feed(load, Digits(), setting, SIZE, EPOCHS, resident=True, consumer=consumer)
    _must_be_honest(run)
    return run, trainings[0].right()


def _must_be_honest(run: Run) -> None:
    """Raise `NotYet` unless each epoch has each sample once, with its label, in a new order of the samples."""
    wanted = _keys(run.data.sums, run.data.labels).sort().values
    epochs = []
    for start in range(0, len(run.seen), PER_EPOCH):
        batches = [_keys(*seen) for seen in run.seen[start : start + PER_EPOCH]]
        for number, keys in enumerate(batches, start):
            if not torch.isin(keys, wanted).all():
                early = bool(keys.isnan().any())
                text = "was read before its copy was complete" if early else "has images or labels that are wrong"
                raise run.not_yet(f"batch {number} {text}", facts.NO_WAIT if early else "change neither")
        if not torch.equal(torch.cat(batches).sort().values, wanted):
            raise run.not_yet(f"in epoch {start // PER_EPOCH} some samples come twice, others never", SHUFFLE)
        epochs.append({tuple(keys.sort().values.tolist()) for keys in batches})
    for number, (one, other) in enumerate(itertools.pairwise(epochs), 1):
        if one & other:
            raise run.not_yet(f"a batch of epoch {number} has the same samples as one of the epoch before", SHUFFLE)
    run.must_be_sent(run.data.images.nbytes + run.data.labels.nbytes)
    run.must_have_no_hazards()


def _keys(sums: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return one exact number for each sample, of image and label."""
    return sums * 16 + labels.double()


@lru_cache(maxsize=1)
def limit() -> int:
    """Return the time [ns] of the first copy of a stored batch from pinned memory, and then only training."""
    with record(on=machine.GPU, host=HOST) as recording:
        data = Digits()
        training = Training(data, Setting())
        images, labels = data.images[:SIZE].to("cuda"), data.labels[:SIZE].to("cuda")
        torch.cuda.synchronize()
        training.step(images, labels)
        torch.cuda.synchronize()
    kernels = summarize(recording.timeline).kernels
    first = machine.copy_time(data.images[:SIZE], data.labels[:SIZE])
    return first + EPOCHS * PER_EPOCH * kernels


def milliseconds(load: Loader) -> float:
    """Train on the GPU that is there, twice; return the time of a step in the second run in ms, by events."""
    data, (begin, end) = Digits(), (torch.cuda.Event(enable_timing=True) for _ in range(2))
    training = Training(data, Setting())
    for _ in range(2):  # the first run allocates memory and loads kernels
        begin.record()  # an event that is recorded again forgets the first time
        for images, labels in load(data.images, data.labels, SIZE, EPOCHS):
            training.step(images, labels)
        end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / (EPOCHS * PER_EPOCH)
