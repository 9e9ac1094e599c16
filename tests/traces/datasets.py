"""Data sets for recorded DataLoaders, in a module that a spawned worker can import."""

import hashlib
import os
import signal
import sys
import threading
import time

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

SIZE = 24


class Squares(Dataset):
    """Sample k is (k, k squared); noise from torch's generator tells whether the workers' seeds stayed the same."""

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return torch.full((3,), float(index)), index * index + torch.rand(()).item()


class Slow(Squares):
    """A sample takes far longer than the step that uses it."""

    def __getitem__(self, index):
        time.sleep(0.01)
        return super().__getitem__(index)


class Modules(Dataset):
    """Each sample tells whether heavy modules are loaded in the worker."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return int("plotly" in sys.modules), int("ipywidgets" in sys.modules), int("pandas" in sys.modules)


class Failing(Squares):
    """Sample 9 raises an error, or ends its worker."""

    def __init__(self, how="raise"):
        self.how = how

    def __getitem__(self, index):
        if index == 9:
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "leave":
                os._exit(3)
            if self.how == "sleep":
                time.sleep(4.5)
            raise KeyError("sample nine")
        return super().__getitem__(index)


class Uneven(IterableDataset):
    """Worker 0 has 2 batches of 2, worker 1 has 5."""

    def __iter__(self):
        info = get_worker_info()
        worker = 0 if info is None else info.id
        for index in range(4 if worker == 0 else 10):
            yield torch.tensor([100 * worker + index])


class Napping(Squares):
    """The first batch of worker 0 takes its time, so that others overtake it."""

    def __getitem__(self, index):
        if index == 0:
            time.sleep(0.8)
        return super().__getitem__(index)


def raise_in_worker(worker):
    raise OSError(f"worker {worker} has no data")


def count_calls(worker):
    info = get_worker_info()
    info.dataset.started = worker


class Hashing(Squares):
    """Each sample is hashed by a thread of its own; it is the processor time [ns] which that took."""

    def __getitem__(self, index):
        took = []

        def work():
            hashlib.sha256(bytes(8_000_000))
            took.append(time.thread_time_ns())

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return torch.tensor(took)


class Hoarding(Squares):
    """Keeps a megabyte of each sample, and waits a little."""

    def __init__(self):
        self.kept = []

    def __getitem__(self, index):
        self.kept.append(bytearray(os.urandom(2**20)))
        time.sleep(0.06)
        return torch.tensor(index)


class FromDisk(Dataset):
    """Sample k is in a file of its own, which the system is told to forget before it is read."""

    def __init__(self, folder, nbytes=2_000_000):
        self.paths = [os.path.join(folder, f"{index}.bin") for index in range(8)]
        for path in self.paths:
            with open(path, "wb") as file:
                file.write(os.urandom(nbytes))
                os.fsync(file.fileno())

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with open(self.paths[index], "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
