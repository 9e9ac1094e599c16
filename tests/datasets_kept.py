"""Data sets for workers that are kept, in a module that a spawned worker can import."""

import time

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset


class Squares(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index * index


class Slow(Squares):
    def __getitem__(self, index):
        time.sleep(0.25)
        return index


class Broken(Squares):
    def __getitem__(self, index):
        if index == 3:
            raise ValueError("no sample 3")
        return index


class Wide(Squares):
    """A batch is far larger than a pipe."""

    def __getitem__(self, index):
        return np.zeros(2**20, np.uint8)


class Counting(IterableDataset):
    def __iter__(self):
        return iter(range(4))


def collate(samples):
    return torch.utils.data.default_collate(samples)


def as_bytes(samples):
    return [sample.tobytes() for sample in samples]
