"""Which sample goes into which batch: epoch orders from (seed, epoch), and their share per rank.

Pure functions on CPU tensors. The order is drawn by a CPU generator of its own, seeded with `seed + epoch` as
`torch.utils.data.DistributedSampler` does it: the same on every device and every rank, and it leaves the global
generator alone. (CUDA's `randperm` gives another order for the same seed.)
"""

from __future__ import annotations

import torch
from torch import Tensor


def permutation(count: int, seed: int, epoch: int) -> Tensor:
    """Return the int64 permutation of `count` things for one epoch.

    >>> permutation(4, seed=0, epoch=0).tolist() == permutation(4, seed=0, epoch=0).tolist()
    True
    """
    generator = torch.Generator(device="cpu")
    generator.manual_seed(seed + epoch)
    return torch.randperm(count, generator=generator, device="cpu")


def block_permutation(count: int, block_size: int, seed: int, epoch: int) -> Tensor:
    """Return the numbers 0 .. count-1 in blocks of `block_size` neighbours, the blocks in random order.

    The last block in storage order may be shorter; it can come anywhere.

    >>> sorted(block_permutation(5, 2, seed=0, epoch=0).tolist())
    [0, 1, 2, 3, 4]
    """
    blocks = permutation(-(-count // block_size), seed, epoch)
    samples = (blocks[:, None] * block_size + torch.arange(block_size, device="cpu")).flatten()
    return samples[samples < count]


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
