"""Where the batches of an exercise come from: fresh random data, handed out as a good DataLoader would.

A `Source` stands for a DataLoader whose workers (and pin thread) keep up: each batch is there when it is asked for, and
costs the loop only the hand-out. What it hands out carries its batch number, so that the picture knows it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence

import torch

from loaderviz.emulator.dataloader import mark
from loaderviz.emulator.torch_cuda.session import Session
from loaderviz.timeline import Kind
from loaderviz.workshop.machine import FEATURES, sums_of

Batch = tuple[torch.Tensor, torch.Tensor]


class Data:
    """Fresh random images and labels, and the sums by which they are recognised.

    images: `[N, FEATURES]` of whole numbers 0..255; labels: int64 `[N]`, each another one, so a label names its sample.
    A new seed each time: nobody can know the values before.
    """

    def __init__(self, sizes: Sequence[int], dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(secrets.randbits(62))
        count = sum(sizes)
        self.sizes = tuple(sizes)
        self.images = torch.randint(256, (count, FEATURES), generator=generator, dtype=torch.uint8).to(dtype)
        self.labels = torch.randperm(2**20, generator=generator)[:count] + secrets.randbelow(2**20)
        self.weights = torch.randint(1, 2**16, (FEATURES,), generator=generator).double()
        self.sums = sums_of(self.images, self.weights)

    @property
    def batches(self) -> list[Batch]:
        """The data in batches, in order."""
        return list(zip(self.images.split(self.sizes), self.labels.split(self.sizes), strict=True))


class Source:
    """An iterable of batches (images, labels) in host memory; make it inside a recording.

    `pinned`: the batches are in page-locked memory. `buffers`: the source has only so many pinned buffers and refills
    them in turn: batch k + buffers overwrites batch k. It can be iterated again, as a DataLoader can.
    """

    def __init__(self, batches: Sequence[Batch], *, pinned: bool = True, buffers: int = 0) -> None:
        self._data, self._buffers = list(batches), buffers
        self.refills: list[tuple[int, int]] = []  # (virtual ns, number of the batch that was overwritten)
        if pinned:
            self._ready = [(x.pin_memory(), y.pin_memory()) for x, y in self._data[: buffers or None]]
        else:
            self._ready = [(x.clone(), y.clone()) for x, y in self._data]

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator[Batch]:
        session = Session.running("the source of an exercise")
        first = session.batches.new_iterator()
        for number in range(len(self)):
            batch = self._ready[number % len(self._ready)]
            if self._buffers and number >= self._buffers:
                self.refills.append((session.runtime.now, number - self._buffers))
                for buffer, fresh in zip(batch, self._data[number], strict=True):
                    buffer.copy_(fresh)
            mark(session, batch, first + number)
            session.mark_source()
            session.runtime.batch = first + number
            session.runtime.host_work(session.runtime.host.hand_out, "DataLoader hand-out", Kind.OPERATOR)
            yield batch
