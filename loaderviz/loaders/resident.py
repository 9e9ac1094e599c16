"""The data set lives on the device: a batch is a slice of it, or one gather, and no copy is left to hide.

It is moved once, as it is stored; what remains per batch is one small kernel per tensor, or nothing at all for a slice.
The order of the samples still comes from the host: once per epoch, and without waiting for it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .base import DeviceLoader, checked_count, handing_out, listening, place_in, require_device
from .nested import leaves, map_nested

SHUFFLES = ("samples", "blocks", "batches", None)
METHODS = ("gather", "permute")
_ADVICE = (
    "Keep the data as stored (uint8, not float32), {gather}call "
    "torch.cuda.empty_cache() if an earlier data set was dropped, or stream the data through PrefetchLoader"
)


class ResidentLoader(DeviceLoader[Any]):
    """Hand out batches of a data set that stays on the device.

    Args:
        data: a tensor or a nesting of tensors with one common first dimension, a `TensorDataset`, or a data set
            in memory with `.data` and `.targets`. Kept in its dtype; a batch has the nesting of the data.
        batch_size: samples per batch (and per rank).
        shuffle: `"samples"` (default, True): a new permutation of all samples each epoch. `"blocks"`: blocks of
            `block_size` neighbours in random order. `"batches"`: the batches stay as they are, only their order
            is random, so a sample meets the same batch-mates for ever, and a file sorted by class gives batches of
            one class. None (False): storage order.
        drop_last: leave out the last, shorter batch; and, with several ranks, what does not divide equally. With
            `shuffle="batches"` those are the same samples in every epoch. Without it ranks repeat samples.
        seed: the order is a function of (seed, epoch): the same on every device, and, with `"samples"`, the one
            of `DistributedSampler(seed=seed)`. All ranks need the same seed.
        generator: a CPU generator from which the seed is drawn, instead of `seed`.
        rank, world_size: this process and their number. Every rank draws the same order and takes every
            world_size-th of it (of the batches with `shuffle="batches"`).
        device: where the data goes.
        method: how shuffled batches are made: `"gather"`, one `index_select` per tensor and batch, or
            `"permute"`: the whole data set once per epoch into a second buffer (twice the memory), of which the
            batches are slices, valid until the next epoch begins.
        block_size: for `shuffle="blocks"`; an eighth of the batch if not given.
        copy: with `shuffle` None or `"batches"` a batch is a *view* of the stored data. Changing it in place
            would change the data set; that is detected and raises at the next step. `copy=True` hands out copies.
        transform: called with each batch, on the device.

    In steady state nothing waits for the device. Iterate and compute on one stream. The state is small: epoch,
    batches handed out, and the settings that decide the order.

    Raises:
        MemoryError: the data does not fit into the free memory of the device; nothing has been moved then.
        TypeError, ValueError: an argument makes no sense; the message says which.

    >>> loader = ResidentLoader((torch.arange(5), torch.arange(5) * 10), 2, shuffle=None, device="cpu")
    >>> [labels.tolist() for _, labels in loader]
    [[0, 10], [20, 30], [40]]
    """

    def __init__(
        self,
        data: Any,
        batch_size: int,
        shuffle: str | bool | None = "samples",
        drop_last: bool = False,
        *,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str = "cuda",
        method: str = "gather",
        block_size: int | None = None,
        copy: bool = False,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(device)
        self.batch_size = checked_count(batch_size, "batch_size", least=1)
        if isinstance(shuffle, bool):  # as `DataLoader` users write it
            shuffle = "samples" if shuffle else None
        if shuffle not in SHUFFLES:
            raise ValueError(f"shuffle must be one of {SHUFFLES}, got {shuffle!r}")
        self.shuffle = shuffle
        if method not in METHODS:
            raise ValueError(f"method must be one of {METHODS}, got {method!r}")
        self.world_size = checked_count(world_size, "world_size", least=1)
        self.rank = checked_count(rank, "rank", least=0)
        if self.rank >= self.world_size:
            raise ValueError(f"rank must be below world_size {self.world_size}, got {self.rank}: ranks count from 0")
        self.block_size = checked_count(
            max(1, self.batch_size // 8) if block_size is None else block_size, "block_size", least=1
        )
        if generator is None:
            self.seed = 0 if seed is None else checked_count(seed, "seed", least=0)
        elif seed is not None:
            raise ValueError("pass either seed or generator, not both: the seed is drawn from the generator")
        elif generator.device.type != "cpu":
            raise ValueError(
                f"generator must be on the CPU, got one on {generator.device}: the order is drawn on the host, so that "
                "it is the same on every device"
            )
        else:
            self.seed = int(torch.randint(2**48, (), generator=generator, device="cpu"))
        self.drop_last, self.method, self.copy, self.transform = bool(drop_last), method, copy, transform
        self._store(tensors_of(data))

    def __len__(self) -> int:
        """Return the number of batches in an epoch, on each rank."""
        if self._by_batches:
            whole = share_size(self.samples, self.batch_size, self.drop_last)
            return share_size(whole, self.world_size, self.drop_last)
        return share_size(self._share, self.batch_size, self.drop_last)

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration run epoch `epoch` from its start. Needless otherwise: each one moves on by one."""
        self._set_place(checked_count(epoch, "epoch", least=0), 0)

    def state_dict(self) -> dict[str, Any]:
        """Return the place after the last batch handed out, with all that decides the order."""
        return {"epoch": self._epoch, "batches": self._batches, "seed": self.seed, **self._settings()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was saved, with its seed; a running iteration is cancelled.

        Raises ValueError if a setting differs that decides the order: the count of batches would mean others.
        """
        epoch, batches = place_in(state)
        for name, mine in self._settings().items():
            if state.get(name) != mine:
                raise ValueError(
                    f"the state was saved with {name}={state.get(name)!r}, this loader has {mine!r}: build it as "
                    "it was when the state was saved, or start a new epoch instead of resuming"
                )
        self.seed = checked_count(state.get("seed"), "'seed' in the state", least=0)
        self._set_place(epoch, batches)

    def _settings(self) -> dict[str, Any]:
        names = ("samples", "batch_size", "shuffle", "drop_last", "world_size")
        settings = {name: getattr(self, name) for name in names}
        return settings | ({"block_size": self.block_size} if self.shuffle == "blocks" else {})

    @property
    def _by_batches(self) -> bool:
        return self.shuffle == "batches" or (self.shuffle is None and self.world_size == 1)

    def _store(self, data: Any) -> None:
        """Move the data to the device, once it is sure to fit."""
        parts = [leaf for leaf in leaves(data) if isinstance(leaf, Tensor)]
        lengths = [len(part) if part.dim() else None for part in parts]
        if None in lengths or len(set(lengths)) != 1:
            shapes = ", ".join(str(tuple(part.shape)) for part in parts)
            raise ValueError(f"all tensors of the data need the same first dimension, the samples; shapes: {shapes}")
        self.samples = len(parts[0])
        self._share = share_size(self.samples, self.world_size, self.drop_last)
        permutes = self.method == "permute" and not self._by_batches
        size = sum(part[:1].numel() * part.element_size() for part in parts)
        index = 0 if self._by_batches else 8 * self._share
        advice = _ADVICE.format(gather="use method='gather', which needs no second copy, " if permutes else "")
        check_memory(parts, self.device, index + (size * self._share if permutes else 0), advice)
        self._parts = [part.detach().to(self.device) for part in parts]
        self._pack = packer(data)
        self._buffers: list[Tensor] = []
        if permutes:
            self._buffers = [part.new_empty((self._share, *part.shape[1:])) for part in self._parts]
        # Split once: making a view costs more than everything else that handing out a slice does.
        split = self._parts if self._by_batches else self._buffers
        self._slices = [torch.split(part, self.batch_size) for part in split]
        self._stream: torch.cuda.Stream | None = None  # the one that was current when the last batch was made
        self._version = self._changes()

    def _run(self) -> Generator[Any, None, None]:
        self._begin_epoch()
        self._check_unchanged()
        first = self._batches
        self._follow()
        plan, make = self._plan(self._epoch)
        for index, key in enumerate(plan[first:], first):
            self._follow(key)
            samples = len(key) if isinstance(key, Tensor) else len(self._slices[0][key])
            with handing_out(index, samples if listening() else 0):
                ready = [self._pack(make(key))]
                if self.transform is not None:
                    ready[0] = self.transform(ready[0])
            self._batches = index + 1
            yield ready.pop()  # no reference stays here: the memory is free when the user drops the batch
            self._check_unchanged()
        self._end_epoch()

    def _follow(self, key: Any = None) -> None:
        """Order the current stream after the one that worked on order and buffers before, if it is another one."""
        if self.device.type != "cuda" or self._by_batches:
            return
        stream = torch.cuda.current_stream(self.device)
        if self._stream is not None and stream != self._stream:
            stream.wait_stream(self._stream)
            if isinstance(key, Tensor):
                key.record_stream(stream)  # the order is from the pool of the stream that the epoch began on
        self._stream = stream

    def _plan(self, epoch: int) -> tuple[Sequence[Any], Callable[[Any], list[Tensor]]]:
        """Return a key for each batch of this rank's epoch, and what makes the tensors of a batch from its key."""
        if self._by_batches:
            count = share_size(self.samples, self.batch_size, self.drop_last)
            return self._ordered(count, epoch).tolist(), self._slice
        order = self._ordered(self.samples, epoch)
        if self.device.type == "cuda":
            # A fresh pinned block each epoch: the allocator reuses it only when its copy is done, nobody waits.
            order = order.pin_memory()
        order = order.to(self.device, non_blocking=True)
        if not self._buffers:
            return torch.split(order, self.batch_size)[: len(self)], self._gather
        for part, buffer in zip(self._parts, self._buffers, strict=True):
            torch.index_select(part, 0, order, out=buffer)
        return range(len(self)), self._slice

    def _ordered(self, count: int, epoch: int) -> Tensor:
        """Return this rank's part of the epoch's order of `count` samples or batches, on the CPU."""
        if self.shuffle is None:
            order = torch.arange(count, device="cpu")
        elif self.shuffle == "blocks":
            blocks = permutation(-(-count // self.block_size), self.seed, epoch)
            samples = (blocks[:, None] * self.block_size + torch.arange(self.block_size, device="cpu")).flatten()
            order = samples[samples < count]
        else:
            order = permutation(count, self.seed, epoch)
        return share(order, self.rank, self.world_size, self.drop_last)

    def _gather(self, index: Tensor) -> list[Tensor]:
        # index_select, not part[index]: the general indexing kernel is several times slower on uint8 images.
        return [part.index_select(0, index) for part in self._parts]

    def _slice(self, number: int) -> list[Tensor]:
        parts = [pieces[number] for pieces in self._slices]
        return [part.clone() for part in parts] if self.copy else parts

    def _changes(self) -> int:
        return sum(part._version for part in self._parts if not part.is_inference())

    def _check_unchanged(self) -> None:
        if self._changes() != self._version:
            raise RuntimeError(
                "the stored data set was changed in place: a batch is a view of it when shuffle is None or "
                "'batches', so x.sub_(...), x += ... or x[...] = ... on a batch changes the samples for every "
                "later epoch. Build the loader again from the original data, and either write x = x - ... in the "
                "loop or pass copy=True"
            )


# Which sample goes into which batch: the order of an epoch is drawn by a CPU generator seeded with seed + epoch, as
# DistributedSampler does it: the same on every device and rank. (CUDA's randperm gives another order for a seed.)


def permutation(count: int, seed: int, epoch: int) -> Tensor:
    """Return the int64 permutation of `count` things for one epoch.

    >>> permutation(4, seed=0, epoch=0).tolist() == permutation(4, seed=0, epoch=0).tolist()
    True
    """
    generator = torch.Generator(device="cpu")
    generator.manual_seed(seed + epoch)
    return torch.randperm(count, generator=generator, device="cpu")


def share_size(count: int, world_size: int, drop: bool) -> int:
    """Return how many of `count` things each rank gets: the same number for all."""
    return count // world_size if drop else -(-count // world_size)


def share(order: Tensor, rank: int, world_size: int, drop: bool) -> Tensor:
    """Return the part of `order` that belongs to `rank`: every `world_size`-th, equally many for each rank.

    As in `DistributedSampler`: with `drop` the tail that does not divide is left out, else the order is filled up
    by repeating its beginning.

    >>> share(torch.arange(5), rank=1, world_size=2, drop=False).tolist()
    [1, 3, 0]
    """
    if world_size == 1 or not len(order):
        return order
    total = share_size(len(order), world_size, drop) * world_size
    if total > len(order):
        order = order.repeat(-(-total // len(order)))
    return order[rank:total:world_size]


# A data set as tensors that share their first dimension


Pack = Callable[[Sequence[Tensor]], Any]


def tensors_of(data: Any) -> Any:
    """Return `data` as a nesting of tensors; a data set gives the tensors it is made of.

    Accepts a tensor, any nesting of tensors, a `TensorDataset`, and a data set in memory with `data` and
    `targets` (as torchvision's MNIST and CIFAR10 have them). Raises TypeError for anything else, and ValueError
    for a data set with transforms, which would be skipped silently.
    """
    if isinstance(data, torch.utils.data.TensorDataset):
        return data.tensors
    if hasattr(data, "data") and hasattr(data, "targets") and not isinstance(data, Tensor):
        for name in ("transform", "target_transform"):
            if getattr(data, name, None) is not None:
                raise ValueError(
                    f"the data set has a {name}, which works on single samples and would not be applied here. Pass "
                    "(dataset.data, dataset.targets), and do the same to whole batches with transform="
                )
        return torch.as_tensor(data.data), torch.as_tensor(data.targets)
    if not any(isinstance(leaf, Tensor) for leaf in leaves(data)):
        raise TypeError(
            f"data must be a tensor, a nesting of tensors, a TensorDataset or a data set with .data and .targets; "
            f"a {type(data).__name__} without tensors was given"
        )
    return data


def packer(data: Any) -> Pack:
    """Return the function that puts one tensor per tensor of `data` back into the nesting of `data`."""
    if isinstance(data, Tensor):
        return lambda parts: parts[0]
    if type(data) is tuple and all(isinstance(item, Tensor) for item in data):
        return tuple

    def rebuild(parts: Sequence[Tensor]) -> Any:
        rest = iter(parts)
        return map_nested(data, lambda _: next(rest))

    return rebuild


def check_memory(parts: Sequence[Tensor], device: torch.device, extra: int, advice: str) -> None:
    """Raise MemoryError unless the tensors not yet on `device`, and `extra` bytes, fit into its free memory.

    The free memory is what the driver reports (`torch.cuda.mem_get_info`). What PyTorch's allocator keeps cached
    is not in it: a refusal can be wrong then, never an acceptance. Other devices than CUDA are not checked.
    """
    if device.type != "cuda":
        return
    require_device(device)
    free, total = torch.cuda.mem_get_info(device)
    to_move = sum(part.numel() * part.element_size() for part in parts if part.device.type != "cuda")
    if to_move + extra > free:
        raise MemoryError(
            f"the data set does not fit on {device}: it needs {_size(to_move + extra)} ({_size(to_move)} of data, "
            f"{_size(extra)} of buffers), and {_size(free)} of {_size(total)} are free. {advice}"
        )


def _size(count: int) -> str:
    """Return a number of bytes as text: 47040000 is '47.0 MB'."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} bytes"
