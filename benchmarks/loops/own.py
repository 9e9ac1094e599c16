"""Loops whose slow part is known, by who wrote the analysis; `strangers` has those of somebody who had not read it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

from benchmarks.loops.case import Case, case, case_device
from loaderviz.loaders import PrefetchLoader, ResidentLoader
from loaderviz.machine import cores

CASES: list[Case] = []
EMULATED = ("workstation", "laptop")


class Samples(Dataset):
    """`count` samples, each made by `make(index)`."""

    def __init__(self, make: Any, count: int = 256) -> None:
        self.make, self.count = make, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def loaded(data: Dataset, size: int, workers: int = 0, pinned: bool = False, prefetch: int = 0, **_: Any) -> Any:
    """Return what a loop takes its batches from."""
    loader = DataLoader(data, size, num_workers=workers, pin_memory=pinned or bool(prefetch))
    return PrefetchLoader(loader, case_device(), depth=prefetch) if prefetch else loader


def network(width: int, hidden: int = 512, layers: int = 1, out: int = 10) -> nn.Module:
    """Return a network of dense layers of `hidden` units."""
    inner = [part for _ in range(layers - 1) for part in (nn.Linear(hidden, hidden), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(width, hidden), nn.ReLU(), *inner, nn.Linear(hidden, out))


def train(batches: Any, net: nn.Module, pinned: bool = False, each: Any = None) -> None:
    """Train on each batch, which is moved to the device first; then `each(number, loss)`."""
    device = case_device()
    net = net.to(device)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for number, batch in enumerate(batches):
        x = batch[0] if isinstance(batch, (list, tuple)) else batch
        x = x.to(device, non_blocking=pinned)
        loss = net(x.float()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if each is not None:
            each(number, loss)


@case("fetch-in-loop", hosts=EMULATED)
def pictures(workers: int = 0, **options: Any) -> None:
    """JPEG pictures are decoded by the loop's own thread."""
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (256, 256, 3), np.uint8)
    Image.fromarray(noise).save(file, "JPEG")

    def decode(index: int) -> Any:
        return torch.from_numpy(np.array(Image.open(io.BytesIO(file.getvalue())).convert("RGB"))).permute(2, 0, 1)

    train(loaded(Samples(decode, 480), 16, workers, **options), network(256 * 256 * 3, 64))


@case("fetch-in-loop", hosts=EMULATED)
def far_away(workers: int = 0, **options: Any) -> None:
    """Each sample is asked for over a network, which takes 20 ms."""

    def ask(index: int) -> Any:
        time.sleep(0.02)
        return torch.zeros(784)

    train(loaded(Samples(ask, 320), 8, workers, **options), network(784))


@case("waiting-for-data", hosts=("workstation", "cpu"))
def far_away_two_workers(workers: int = 2, **options: Any) -> None:
    """The same with two workers: more workers than cores help."""

    def ask(index: int) -> Any:
        time.sleep(0.02)
        return torch.zeros(784)

    train(loaded(Samples(ask, 320), 8, workers, **options), network(784))


@case("pageable-copy", "hidden-sync", hosts=EMULATED)
def pageable(workers: int = 2, pinned: bool = False, **options: Any) -> None:
    """Batches of 19 MB come in pageable memory, and the GPU has as much to do as the copy takes."""
    data = TensorDataset(torch.zeros(20 * 64, 3 * 160 * 160))
    train(loaded(data, 64, workers, pinned, **options), network(3 * 160 * 160, 256), pinned)


@case("copy-not-hidden", hosts=EMULATED)
def in_order(workers: int = 4, pinned: bool = True, **options: Any) -> None:
    """Pinned and not blocking, but in the stream that computes, for longer than the pin thread needs for a batch."""
    data = TensorDataset(torch.zeros(20 * 128, 3 * 64 * 64))
    train(loaded(data, 128, workers, pinned, **options), network(3 * 64 * 64, 3072), pinned)


@case("many-small-copies", hosts=EMULATED)
def tiny_copies(repaired: bool = False, **_: Any) -> None:
    """24 small tensors of a batch are moved one by one."""
    device = case_device()
    net, parts = network(24 * 32).to(device), list(torch.zeros(24, 64, 32))
    for number in range(40):
        with torch.profiler.record_function(f"batch {number}"):
            x = torch.cat(parts, 1).to(device) if repaired else torch.cat([part.to(device) for part in parts], 1)
            net(x).mean().backward()


@case("synchronizes-each-step", hosts=EMULATED)
def reads_the_loss(repaired: bool = False, **_: Any) -> None:
    """`.item()` after each of four parts of a step: the host never runs ahead."""
    device = case_device()
    nets, x = [network(1024, 1024).to(device) for _ in range(4)], torch.zeros(256, 1024, device=device)
    total: Any = 0.0
    for number in range(40):
        with torch.profiler.record_function(f"batch {number}"):
            for net in nets:
                loss = net(x).square().mean()
                loss.backward()
                total += loss.detach() if repaired else loss.item()
    float(total)


@case("allocates-in-loop", hosts=EMULATED)
def empties_the_cache(repaired: bool = False, **_: Any) -> None:
    """`empty_cache()` after each step, so that the next one has all of its memory allocated anew."""
    device = case_device()
    net, x = network(256, 256, 6).to(device), torch.zeros(8192, 256, device=device)
    for number in range(24):
        with torch.profiler.record_function(f"batch {number}"):
            net.zero_grad()
            net(x).mean().backward()
            if not repaired:
                torch.cuda.empty_cache()


@case("restarts-workers", hosts=EMULATED)
def short_epochs(repaired: bool = False, workers: int = 4, **_: Any) -> None:
    """Workers are started anew in each of many short epochs."""
    data, device = TensorDataset(torch.zeros(12 * 64, 784)), case_device()
    loader = DataLoader(data, 64, num_workers=workers, pin_memory=True, persistent_workers=repaired)
    net = network(784, 512).to(device)
    for _ in range(8):
        for (x,) in loader:
            net(x.to(device, non_blocking=True)).mean().backward()


@case("restarts-iterator", hosts=("workstation", "cpu"), line="ANEW")
def iterator_for_each_batch(repaired: bool = False, **_: Any) -> None:
    """Each step begins an iterator of its own, for which 200,000 rows are shuffled."""
    loader, device = DataLoader(TensorDataset(torch.zeros(200_000, 32)), 32, shuffle=True), case_device()
    net, kept = network(32, 32).to(device), iter(loader)
    for _ in range(24):
        if not repaired:
            kept = iter(loader)
        (x,) = next(kept)  # ANEW
        net(x.to(device)).mean().backward()


@case("hidden-sync", hosts=EMULATED, line="MADE")
def floats_made_in_the_loop(repaired: bool = False, **_: Any) -> None:
    """The loader pins bytes, and the loop makes floats of them before it copies them."""
    data = TensorDataset(torch.zeros(24 * 32, 3 * 128 * 128, dtype=torch.uint8))
    device, net = case_device(), network(3 * 128 * 128, 64).to(case_device())
    for (x,) in DataLoader(data, 32, pin_memory=True):
        if repaired:
            x = x.to(device, non_blocking=True).float() / 255
        else:
            x = (x.float() / 255).to(device, non_blocking=True)  # MADE
        net(x).mean().backward()


@case("anomaly-mode", hosts=("workstation", "cpu"))
def looks_for_nan(repaired: bool = False, **_: Any) -> None:
    """Anomaly detection was left on."""
    device, data = case_device(), TensorDataset(torch.zeros(32 * 16, 64))
    net = network(64, 64, layers=8).to(device)
    with torch.autograd.set_detect_anomaly(not repaired):
        for (x,) in DataLoader(data, 16, pin_memory=device == "cuda"):
            net(x.to(device, non_blocking=True)).mean().backward()


@case("workers-cost-more", hosts=EMULATED)
def features_in_columns(workers: int = 2, repaired: bool = False, **_: Any) -> None:
    """Each sample has twenty short tensors: to send a batch of them takes far longer than to make it."""
    columns = [torch.zeros(40 * 64, 64) for _ in range(20)]
    data = TensorDataset(*([torch.cat(columns, 1)] if repaired else columns))
    device, net = case_device(), network(64, 64)
    net = net.to(device)
    for features, *_ in DataLoader(data, 64, num_workers=workers):
        net(features.to(device)[:, :64]).mean().backward()


@case("workers-cost-more", hosts=("cpu",))
def eight_workers_for_little(workers: int = 8, **_: Any) -> None:
    """A batch of what is in memory is made sooner than a worker sends it."""
    data = TensorDataset(torch.zeros(60 * 64, 784))
    train(DataLoader(data, 64, num_workers=workers), network(784, 64))


@case("other-work-in-loop", hosts=EMULATED, line="LOG")
def sends_a_log(repaired: bool = False, workers: int = 2, **options: Any) -> None:
    """Each step sends a line to a tracking server and waits for its answer."""
    data = TensorDataset(torch.zeros(40 * 64, 784))

    def each(number: int, loss: Any) -> None:
        if not repaired or number % 20 == 19:
            time.sleep(0.004)  # LOG

    train(loaded(data, 64, workers, **{"pinned": True, **options}), network(784, 1024), True, each)


@case("other-work-in-loop", hosts=("auto", "cpu"), line="CHECKPOINT")
def saves_a_checkpoint(repaired: bool = False, workers: int = 2, **options: Any) -> None:
    """The model is saved in each second step."""
    data, place = TensorDataset(torch.zeros(30 * 64, 784)), Path(tempfile.mkdtemp()) / "model.pt"
    net = network(784, 2048)

    def each(number: int, loss: Any) -> None:
        if number % (30 if repaired else 2) == 1:
            torch.save(net.state_dict(), place)  # CHECKPOINT

    train(loaded(data, 64, workers, **{"pinned": case_device() == "cuda", **options}), net, True, each)


@case("other-work-in-loop", hosts=("cpu",), line="SYNC")
def writes_to_the_disk(repaired: bool = False, workers: int = 1, **options: Any) -> None:
    """Each step appends a line to a file and waits until the disk has it."""
    data = TensorDataset(torch.zeros(60 * 64, 784))
    with tempfile.TemporaryFile() as file:

        def each(number: int, loss: Any) -> None:
            file.write(b"0" * 4096)
            if not repaired:
                os.fsync(file.fileno())
                time.sleep(0.01)  # SYNC

        train(loaded(data, 64, workers, **options), network(784, 64), False, each)


@case("cuda-in-dataset", hosts=EMULATED)
def moves_each_sample(repaired: bool = False, **options: Any) -> None:
    """`.cuda()` in `__getitem__`."""
    device, rows = case_device(), torch.zeros(1280, 784)
    data = Samples((lambda i: rows[i]) if repaired else (lambda i: rows[i].to(device)), 1280)
    train(DataLoader(data, 32), network(784))


@case("cuda-in-dataset", hosts=EMULATED)
def moves_in_collate(repaired: bool = False, **options: Any) -> None:
    """`.to("cuda")` of each sample in the collate function."""
    device, rows = case_device(), torch.zeros(1280, 784)

    def collate(samples: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(samples if repaired else [sample.to(device) for sample in samples])

    train(DataLoader(Samples(lambda i: rows[i], 1280), 32, collate_fn=collate), network(784))


@case("host-bound", hosts=EMULATED)
def launches(graphs: bool = False, **_: Any) -> None:
    """Sixteen small layers: a kernel is shorter than its launch. (Its graph replays the forward and backward pass.)"""
    device = case_device()
    net, x = network(256, 256, 16).to(device), torch.zeros(64, 256, device=device)

    def step() -> None:
        net.zero_grad(set_to_none=True)
        net(x).mean().backward()

    graph: Any = None
    if graphs:
        for _ in range(3):
            step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
    for number in range(40):
        with torch.profiler.record_function(f"batch {number}"):
            graph.replay() if graphs else step()


@case("index-on-host", hosts=EMULATED)
def shuffles_on_the_host(repaired: bool = False, **_: Any) -> None:
    """The data are on the GPU, and the order of each of eight small groups of a step is not."""
    device = case_device()
    data, net = torch.zeros(8192, 256, device=device), network(256, 256).to(device)
    order = torch.randperm(8192, device=device if repaired else "cpu")
    for number in range(40):
        with torch.profiler.record_function(f"batch {number}"):
            net(torch.cat([data[rows] for rows in order[:512].split(64)])).mean().backward()


@case("nothing-to-gain", hosts=EMULATED)
def well_made(workers: int = 4, **options: Any) -> None:
    """Copied ahead, and the GPU always has work."""
    data = TensorDataset(torch.zeros(24 * 1024, 256))
    train(loaded(data, 1024, workers, prefetch=2), network(256, 1024, 3))


@case("nothing-to-gain", hosts=EMULATED)
def slow_but_hidden(workers: int = 4, **options: Any) -> None:
    """Samples take long, and the GPU is busy for longer still."""

    def ask(index: int) -> Any:
        time.sleep(0.0001)
        return torch.zeros(256)

    train(loaded(Samples(ask, 24 * 16), 16, workers, True), network(256, 4096, 3), True)


@case("nothing-to-gain", hosts=EMULATED)
def lives_on_the_gpu(**_: Any) -> None:
    """Slices of a data set on the GPU, and much to compute."""
    data = torch.zeros(24 * 1024, 256)
    train(ResidentLoader((data,), 1024, device=case_device()), network(256, 1024, 3))


# What is told beside the findings about a step, or gains nothing a step; and more loops that are right


@case("reads-too-much", hosts=("auto", "cpu"), line="WHOLE")
def loads_a_whole_array(repaired: bool = False, workers: int = 0, **options: Any) -> None:
    """A row of 12 kB is taken of an array of 25 MB, which each sample loads."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        np.save(path, np.zeros((2000, 3072), np.float32))

        def row(index: int) -> Any:
            return torch.from_numpy(np.load(path, mmap_mode="r" if repaired else None)[index].copy())  # WHOLE

        train(loaded(Samples(row, 96), 8, workers, **options), network(3072, 64))


class Stream(IterableDataset):
    """960 rows in order; `shared` among the workers, or all of them by each."""

    def __init__(self, shared: bool) -> None:
        self.shared, self.rows = shared, torch.arange(960.0).view(-1, 1).repeat(1, 784)

    def __iter__(self) -> Any:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if self.shared and info else (0, 1)
        for row in self.rows[first::step]:
            time.sleep(0.0002)
            yield row


@case("unsharded-iterable", hosts=("workstation", "cpu"))
def each_worker_reads_all(repaired: bool = False, workers: int = 2, **options: Any) -> None:
    """Two workers go through the whole stream, so each sample comes twice."""
    train(loaded(Stream(repaired), 32, workers, **options), network(784))


@case("threads-in-workers", hosts=("cpu",))
def workers_with_threads(repaired: bool = False, workers: int = 2, **_: Any) -> None:
    """Each worker inflates parts with eight threads of its own; not with OpenMP's, which may hang after a fork."""
    packed, pools = zlib.compress(bytes(range(256)) * 4096), []

    def begin(_: int) -> None:
        pools.append(ThreadPoolExecutor(8))

    def sample(_: int) -> torch.Tensor:
        parts = list((map if repaired else pools[-1].map)(zlib.decompress, [packed] * 8))
        return torch.frombuffer(bytearray(parts[0][:784]), dtype=torch.uint8)

    train(DataLoader(Samples(sample, 480), 16, num_workers=workers, worker_init_fn=begin), network(784, 64))


@case("too-many-workers", hosts=("cpu",))
def workers_beyond_the_cores(workers: int = 16, **_: Any) -> None:
    """Sixteen workers compute on far fewer cores."""

    def sample(_: int) -> torch.Tensor:
        end = time.thread_time() + 0.001
        while time.thread_time() < end:
            pass
        return torch.zeros(784)

    train(DataLoader(Samples(sample, 4800), 16, num_workers=workers), network(784, 64))


@case("cold-cache", hosts=("cpu",))
def never_read_before(repaired: bool = False, workers: int = 0, **options: Any) -> None:
    """Files of 4 MB come from the disk itself; repaired, somebody has read them before."""
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:
        paths = [Path(folder) / str(number) for number in range(40)]
        for path in paths:
            path.write_bytes(bytes(4 << 20))
        for path in paths:
            with path.open("rb") as file:
                os.fsync(file.fileno())
                if not repaired:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        data = Samples(lambda index: torch.frombuffer(bytearray(paths[index].read_bytes()), dtype=torch.uint8), 40)
        train(loaded(data, 2, workers, **options), nn.Sequential(nn.AvgPool1d(4096), nn.Linear(1024, 10)))


@case("uneven-workers", hosts=EMULATED)
def every_other_batch_of_one_worker_is_far(repaired: bool = False, **_: Any) -> None:
    """Two workers make one batch ahead each, and every fourth batch is far away: one of them gets them all."""

    def fetch(index: int) -> Any:
        time.sleep(0.004 if index // 16 % 4 == 0 else 0.0004)
        return torch.full((64,), index / 960)

    data = Samples(fetch, 960)
    batches = DataLoader(data, 16, num_workers=2, prefetch_factor=1, pin_memory=True, shuffle=repaired)
    train(batches, network(64), pinned=True)


@case("dense-embedding", hosts=(*EMULATED, "cpu"))
def bags_of_words(repaired: bool = False, **_: Any) -> None:
    """A table has 400,000 words, a batch has 4,096 of them, and Adagrad walks them all."""
    torch.sparse.check_sparse_tensor_invariants.disable()  # as is the default, of which torch warns
    table = nn.EmbeddingBag(400_000, 32, sparse=repaired).to(case_device())
    optimizer = torch.optim.Adagrad(table.parameters())
    for _step in range(16):
        words = torch.randint(400_000, (256, 16)).to(case_device())
        optimizer.zero_grad()
        table(words).square().mean().backward()
        optimizer.step()


@case("memory-grows", hosts=("workstation",))
def keeps_its_outputs(repaired: bool = False, **_: Any) -> None:
    """A list keeps what the network gave for each batch, with its graph."""
    kept, net = list[Any](), network(784, 8192).to(case_device())
    for batch in DataLoader(TensorDataset(torch.zeros(24 * 512, 784)), 512, pin_memory=True):
        output = net(batch[0].to(case_device(), non_blocking=True))
        kept.append(output.detach().mean() if repaired else output)


@case("memory-grows", hosts=("cpu",))
def workers_keep_what_they_read(repaired: bool = False, workers: int = 2, **_: Any) -> None:
    """A data set keeps 200 kB of each sample that it gave."""
    kept = list[bytearray]()

    def sample(_: int) -> torch.Tensor:
        made = bytearray(os.urandom(200_000))
        if not repaired:
            kept.append(made)
        time.sleep(0.002)
        return torch.zeros(784)

    train(DataLoader(Samples(sample, 1600), 16, num_workers=workers), network(784, 64))


@case("uneven-steps", hosts=EMULATED)
def one_long_batch_in_ten(repaired: bool = False, **_: Any) -> None:
    """Each tenth batch is far longer than the others; repaired, all are alike."""
    device = case_device()
    net = network(256, 1024, 2).to(device)
    for number in range(30):
        rows = 8192 if number % 10 == 5 and not repaired else 64
        with torch.profiler.record_function(f"batch {number}"):
            net(torch.zeros(rows, 256, device=device)).mean().backward()


@case("cores-taken", hosts=("cpu",))
def beside_other_programs(repaired: bool = False, **_: Any) -> None:
    """Two other programs for each core compute meanwhile; repaired, none does."""
    spins = [sys.executable, "-S", "-c", "while True: pass"]
    others = [subprocess.Popen(spins) for _ in range(0 if repaired else 2 * cores().threads)]
    try:
        train(loaded(TensorDataset(torch.zeros(40 * 16, 784)), 16), network(784, 1024, 3))
    finally:
        for other in others:
            other.kill()
            other.wait()


@case("nothing-to-gain")
def waits_for_a_long_step(workers: int = 2, **_: Any) -> None:
    """`.item()` in each step, of which the GPU needs far longer than the host."""
    data = TensorDataset(torch.zeros(24 * 16, 784))
    train(loaded(data, 16, workers, prefetch=2), network(784, 4096, 4), each=lambda number, loss: loss.item())


@case("nothing-to-gain", hosts=EMULATED)
def maps_its_file(workers: int = 4, **_: Any) -> None:
    """A row of a mapped array for each sample, and the GPU is busy for longer."""
    with tempfile.TemporaryDirectory() as folder:
        np.save(path := Path(folder) / "rows.npy", np.zeros((384, 784), np.float32))
        rows = np.load(path, mmap_mode="r")
        data = Samples(lambda index: torch.from_numpy(rows[index].copy()), 384)
        train(loaded(data, 16, workers, prefetch=2), network(784, 4096, 3))


@case("nothing-to-gain", hosts=EMULATED)
def a_graph_of_a_step(**_: Any) -> None:
    """Small layers whose step is a CUDA graph already, on data that are on the GPU."""
    launches(graphs=True)


@case("nothing-to-gain", hosts=EMULATED)
def saves_seldom(workers: int = 2, **_: Any) -> None:
    """The loss is read and written down in each twentieth step of long ones."""
    data, log = TensorDataset(torch.zeros(40 * 16, 784)), list[float]()

    def each(number: int, loss: Any) -> None:
        if number % 20 == 19:
            log.append(loss.item())

    train(loaded(data, 16, workers, prefetch=2), network(784, 4096, 3), each=each)


@case("unpriced", hosts=EMULATED)
def python_of_its_own(workers: int = 2, **options: Any) -> None:
    """Python of the data set's own, which no emulated host has a price for."""

    def sample(index: int) -> torch.Tensor:
        return torch.tensor([float(sum(range(index, index + 20_000)))]).repeat(784)

    train(loaded(Samples(sample, 480), 16, workers, True, **options), network(784), True)
