"""Answers for lesson 6: numbers of workers, and loaders for files that are slow to read."""

from __future__ import annotations

import itertools

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    get_worker_info,
)

# 6.1


def by_loop(fetch, pin, copy, compute):
    return next(n for n in itertools.count(1) if fetch / n <= max(pin, copy, compute))


def by_floor_division(fetch, pin, copy, compute):
    return -(-fetch // max(pin, copy, compute))


def by_search(fetch, pin, copy, compute):
    steps = {n: max(fetch / n, pin, copy, compute) for n in range(1, 33)}
    return min(steps, key=steps.get)


def as_float(fetch, pin, copy, compute):
    return float(by_loop(fetch, pin, copy, compute))


def only_the_gpu(fetch, pin, copy, compute):
    return -(-fetch // compute)


def no_pin(fetch, pin, copy, compute):
    return -(-fetch // max(copy, compute))


def no_copy(fetch, pin, copy, compute):
    return -(-fetch // max(pin, compute))


def rounded(fetch, pin, copy, compute):
    return max(1, round(fetch / max(pin, copy, compute)))


def one_stage_after_the_other(fetch, pin, copy, compute):
    return -(-fetch // (pin + copy + compute))


def always_four(fetch, pin, copy, compute):
    return 4


def a_lot(fetch, pin, copy, compute):
    return 64


def none_needed(fetch, pin, copy, compute):
    return 0


def not_rounded(fetch, pin, copy, compute):
    return fetch / max(pin, copy, compute)


# 6.2


def rows_of(data, size):
    return BatchSampler(SequentialSampler(data), size, drop_last=False)


def as_given(batch):
    return batch


class OneRead(Dataset):
    """Answers DataLoader's question for many samples."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]

    def __getitems__(self, indices):
        return self.data[indices]


class OfBatches(Dataset):
    """Has whole batches as its items."""

    def __init__(self, data, size):
        self.data, self.size = data, size

    def __len__(self):
        return -(-len(self.data) // self.size)

    def __getitem__(self, batch):
        return self.data[range(batch * self.size, min((batch + 1) * self.size, len(self.data)))]


class Stream(IterableDataset):
    """Each worker reads every n-th batch."""

    def __init__(self, data, size):
        self.batches = OfBatches(data, size)

    def __iter__(self):
        worker = get_worker_info()
        return (self.batches[number] for number in range(worker.id, len(self.batches), worker.num_workers))


def by_getitems(data, size):
    return DataLoader(OneRead(data), size, num_workers=2, collate_fn=as_given, pin_memory=True)


def by_batches(data, size):
    return DataLoader(OfBatches(data, size), batch_size=None, num_workers=3, pin_memory=True)


def by_stream(data, size):
    return DataLoader(Stream(data, size), batch_size=None, num_workers=2, pin_memory=True)


def by_sampler(data, size):
    return DataLoader(data, batch_size=None, sampler=rows_of(data, size), num_workers=4, prefetch_factor=1)


def four_workers(data, size):
    return DataLoader(data, size, num_workers=4, pin_memory=True)


def eight_workers(data, size):
    return DataLoader(data, size, num_workers=8, pin_memory=True)


def large_buffer(data, size):
    return DataLoader(data, size, num_workers=2, prefetch_factor=16, pin_memory=True)


def no_worker(data, size):
    return DataLoader(data, batch_size=None, sampler=rows_of(data, size), pin_memory=True)


def one_worker(data, size):
    return DataLoader(data, batch_size=None, sampler=rows_of(data, size), num_workers=1, pin_memory=True)


def read_all_first(data, size):
    return [data[rows] for rows in rows_of(data, size)]


def shuffled(data, size):
    rows = BatchSampler(RandomSampler(data), size, drop_last=False)
    return DataLoader(data, batch_size=None, sampler=rows, num_workers=2, pin_memory=True)


def last_one_missing(data, size):
    return DataLoader(data, batch_size=None, sampler=list(rows_of(data, size))[:-1], num_workers=2, pin_memory=True)


class Zeros(OneRead):
    def __getitems__(self, indices):
        return torch.zeros(len(indices), 784, dtype=torch.uint8), torch.zeros(len(indices), dtype=torch.int64)


class NotRead(OneRead):
    """Takes the values from behind the data set's back."""

    def __getitems__(self, indices):
        return tuple(part[indices] for part in self.data._disk)


def zeros(data, size):
    return DataLoader(Zeros(data), size, num_workers=2, collate_fn=as_given, pin_memory=True)


def not_read(data, size):
    return DataLoader(NotRead(data), size, num_workers=2, collate_fn=as_given, pin_memory=True)


def forgot_to_return(data, size):
    DataLoader(data, size)


def is_no_loader(data, size):
    return size


RIGHT = {
    "6.1": [by_loop, by_floor_division, by_search, as_float],
    "6.2": [by_getitems, by_batches, by_stream, by_sampler],
}
WRONG = {
    "6.1": [
        (only_the_gpu, r"fetch .*, pin .*, copy .*, compute .* You said \d+ workers.* With \d+ it takes the same"),
        (no_pin, r"With \d+ it takes the same.*as fast as its slowest stage"),
        (no_copy, r"With \d+ it takes the same.*as fast as its slowest stage"),
        (rounded, r"a step takes [\d.]+ .s, with more of them [\d.]+ .s. The loop waits for batch \d+ from [\d,]+ µs"),
        (one_stage_after_the_other, r"with more of them [\d.]+ .s"),
        (always_four, r"You said 4 workers"),
        (a_lot, r"You said 64 workers.* With 63 it takes the same.*takes memory and a core"),
        (none_needed, r"You said 0 workers; give a number from 1 to 64"),
        (not_rounded, r"Your function returned \d\.\d+. A whole number"),
    ],
    "6.2": [
        (four_workers, r"fetch a batch takes 3\.\d+ ms, and 4 workers do it.*one is ready every 8\d\d.* µs.*and waits"),
        (eight_workers, r"8 workers, but the machine of this task has 4 cores"),
        (large_buffer, r"2 workers do it.*as fast as its slowest stage"),
        (no_worker, r"takes 5\d\d.* µs, and the main thread does it itself"),
        (one_worker, r"takes 5\d\d.* µs, and 1 worker does it"),
        (read_all_first, r"The GPU has nothing to do from 0 µs to"),
        (shuffled, r"Batch 0 does not hold|As number 0 you handed out|holds values of batch"),
        (last_one_missing, r"31 batches were handed out, but 32 were wanted"),
        (zeros, r"Batch 0 does not hold the values"),
        (not_read, r"were fetched in [\d.]+ ms; to read all files takes [\d.]+ ms"),
        (forgot_to_return, r"returned nothing \(None\). Return a DataLoader"),
        (is_no_loader, r"returned a int. Return a DataLoader"),
    ],
}
