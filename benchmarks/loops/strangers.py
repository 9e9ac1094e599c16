"""Twenty-four loops whose slow part is known by construction, by somebody who had not read the analysis.

Each is as a newcomer would write it; its docstring ends with what the repair gained. `_` swallows what makes no sense.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.loops.case import case, case_device
from loaderviz.loaders import PrefetchLoader


class Made(Dataset):
    """Sample i is `make(i)`."""

    def __init__(self, size, make):
        self.size, self.make = size, make

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return self.make(index)


def mlp(*widths: int) -> nn.Module:
    """Return a perceptron on the device."""
    layers = itertools.chain(*((nn.Linear(a, b), nn.ReLU()) for a, b in itertools.pairwise(widths)))
    return nn.Sequential(nn.Flatten(), *list(layers)[:-1]).to(case_device())


def ahead(loader: Iterable[Any], prefetch: int) -> Iterable[Any]:
    """Return the loader, or one that copies `prefetch` batches ahead."""
    return PrefetchLoader(loader, case_device(), prefetch) if prefetch else loader


@contextmanager
def one_thread() -> Iterator[None]:
    """Give torch one thread where the loop is really run: the other core is the workers'."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if case_device() == "cpu" else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def train(model: nn.Module, loader: Iterable[Any], steps: int = 40) -> None:
    """Train a classifier, with nothing in the loop that need not be there."""
    device, optimizer = case_device(), torch.optim.SGD(model.parameters(), 0.01)
    for inputs, labels in itertools.islice(loader, steps):
        inputs, labels = inputs.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@case("waiting-for-data", hosts=("workstation", "cpu"), line="SLOW")
def store_over_the_network(workers=2, pinned=True, prefetch=0, **_):
    """Each sample is a request that takes 4 ms; two workers ask one after the other.

    workers=8: 4.0 times as fast on workstation, 5 times on cpu.
    """

    def request(index):
        time.sleep(0.004)  # SLOW
        return torch.full((128,), index / 320), index % 10

    loader = DataLoader(Made(320, request), 8, num_workers=workers, pin_memory=pinned and case_device() == "cuda")
    with one_thread():
        train(mlp(128, 256, 10), ahead(loader, prefetch))


@case("pageable-copy", "hidden-sync", hosts=("workstation", "laptop"))
def volumes_with_masks(workers=4, pinned=False, prefetch=0, **_):
    """A dict of a CT volume and its mask per sample, copied with `non_blocking=True` out of pageable memory.

    pinned=True: 1.6 times as fast on workstation, 1.5 times on laptop.
    """
    device, volumes = "cuda", torch.randn(8, 1, 64, 64, 64)
    data = Made(240, lambda i: {"volume": volumes[i % 8], "mask": volumes[i % 8] > 0, "patient": f"p{i}"})
    loader = ahead(DataLoader(data, 6, num_workers=workers, pin_memory=pinned), prefetch)
    model = nn.Conv3d(1, 1, 4, stride=4).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for batch in loader:
        volume = batch["volume"].to(device, non_blocking=True)
        mask = batch["mask"].to(device, non_blocking=True)
        target = F.max_pool3d(mask.float(), 4)
        loss = F.binary_cross_entropy_with_logits(model(volume), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@case("many-small-copies", hosts=("workstation", "laptop"))
def boxes_one_by_one(repaired=False, **_):
    """Detection: the boxes, labels and areas of each of 12 images are copied one by one, from pinned memory.

    Repair, one packed copy: 1.7 times as fast on workstation and laptop.
    """
    images = torch.randn(12, 3, 32, 32).pin_memory()
    targets = [{"boxes": torch.rand(7, 4), "labels": torch.arange(7), "area": torch.rand(7)} for _ in range(12)]
    targets = [{name: value.pin_memory() for name, value in target.items()} for target in targets]
    packed = torch.stack([torch.cat([t["boxes"], t["labels"][:, None], t["area"][:, None]], 1) for t in targets])
    packed = packed.pin_memory()
    model = mlp(3 * 32 * 32, 128, 28)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _step in range(40):
        if repaired:
            boxes = packed.cuda(non_blocking=True)[..., :4]
        else:
            here = [{name: value.cuda(non_blocking=True) for name, value in target.items()} for target in targets]
            boxes = torch.stack([target["boxes"] for target in here])
        loss = F.l1_loss(model(images.cuda(non_blocking=True)), boxes.flatten(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@case("synchronizes-each-step", hosts=("workstation", "laptop"), line="SLOW")
def norm_of_each_layer(repaired=False, **_):
    """Each layer's gradient has its norm noted for a table of the run, with one `.item()` for each.

    Repair, every 20 steps: 1.3 times as fast on workstation and laptop.
    """
    model, inputs = mlp(512, 512, 512, 512, 64), torch.randn(8, 256, 512, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    history = []
    for step in range(40):
        loss = model(inputs[step % 8]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if not repaired or step % 20 == 0:
            history.append({name: layer.grad.norm().item() for name, layer in model.named_parameters()})  # SLOW
        optimizer.step()


@case("other-work-in-loop", hosts=("auto", "cpu"), line="SLOW")
def journal_of_every_sample(repaired=False, **_):
    """Each step writes the tokens that it saw to a journal, as JSON, and flushes it.

    Repair, every 20 steps: 5 times as fast on auto, 2.0 times on cpu.
    """
    device, tokens = case_device(), torch.randint(0, 5000, (40, 64, 256))
    model = nn.EmbeddingBag(5000, 8).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with one_thread(), tempfile.TemporaryFile("w") as journal:
        for step, batch in enumerate(tokens):
            loss = model(batch.to(device)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if not repaired or step % 20 == 0:
                print(json.dumps({"step": step, "seen": batch.tolist()}), file=journal, flush=True)  # SLOW


def pad_by_hand(sentences: list[tuple[list[int], int]]) -> tuple[Tensor, Tensor]:
    """Pad to the longest, a number at a time."""
    longest = max(len(words) for words, _ in sentences)
    rows = [[float(words[i]) if i < len(words) else 0.0 for i in range(longest)] for words, _ in sentences]  # SLOW
    return torch.tensor(rows), torch.tensor([label for _, label in sentences])  # SLOW


def pad_by_torch(sentences: list[tuple[list[int], int]]) -> tuple[Tensor, Tensor]:
    """Pad to the longest, with torch."""
    rows = nn.utils.rnn.pad_sequence([torch.from_numpy(np.array(words, np.float32)) for words, _ in sentences], True)
    return rows, torch.tensor([label for _, label in sentences])


@case("collate-in-python", hosts=("auto", "cpu"), line="SLOW")
def padding_by_hand(repaired=False, workers=1, pinned=True, prefetch=0, **_):
    """Sentences are padded in `collate_fn` by a list comprehension, number by number.

    Repair, `pad_sequence`: 3.5 times as fast on auto, 2 to 4 times on cpu.
    """
    words = [np.arange(1000 + i).tolist() for i in range(50)]
    loader = DataLoader(
        Made(30 * 64, lambda i: (words[i % 50], i % 10)),
        64,
        num_workers=workers,
        pin_memory=pinned and case_device() == "cuda",
        collate_fn=pad_by_torch if repaired else pad_by_hand,
    )
    model = nn.Sequential(nn.AdaptiveAvgPool1d(64), nn.Linear(64, 10)).to(case_device())
    with one_thread():
        train(model, ahead(loader, prefetch))


@case("reads-too-much", hosts=("auto", "cpu"), line="SLOW")
def noon_of_a_day(repaired=False, workers=2, pinned=True, prefetch=0, **_):
    """A sample is half a day's weather, 12 KB, for which the file of the whole year, 9 MB, is read.

    Repair, `seek`: 4 to 6 times as fast on auto, 4 times or more on cpu.
    """
    size = 48 * 64 * 4
    with tempfile.TemporaryDirectory() as folder:
        for year in range(4):
            values = np.random.default_rng(year).random(730 * size // 4, np.float32)
            Path(folder, f"{year}.f32").write_bytes(values)

        def noon(index):
            with open(f"{folder}/{index % 4}.f32", "rb") as file:
                if repaired:
                    file.seek(index % 730 * size)
                    values = file.read(size)
                else:
                    values = file.read()[index % 730 * size :][:size]  # SLOW
            return torch.frombuffer(bytearray(values), dtype=torch.float32), index % 10

        loader = DataLoader(Made(200, noon), 8, num_workers=workers, pin_memory=pinned and case_device() == "cuda")
        with one_thread():
            train(mlp(48 * 64, 10), ahead(loader, prefetch))


@case("uneven-workers", hosts=("workstation", "cpu"))
def one_shelf_is_far(repaired=False, workers=4, pinned=True, prefetch=0, **_):
    """Every fourth batch lies on a far shelf, so of four workers one gets all the slow ones.

    Repair, shuffled: 2.3 times as fast on workstation, 2.4 times on cpu.
    """

    def fetch(index):
        time.sleep(0.008 if index // 8 % 4 == 0 else 0.001)
        return torch.full((256,), index / 320), index % 10

    pinned = pinned and case_device() == "cuda"
    loader = DataLoader(Made(320, fetch), 8, shuffle=repaired, num_workers=workers, pin_memory=pinned)
    with one_thread():
        train(mlp(256, 512, 10), ahead(loader, prefetch))


@case("wide-dtype", hosts=("workstation", "laptop"))
def bytes_sent_as_floats(repaired=False, prefetch=2, **_):
    """A camera's frames, whole numbers up to 255, travel as float32.

    Repair, uint8 until they are on the GPU: 3.2 times as fast on workstation, 2.4 times on laptop.
    """
    frames = torch.randint(0, 256, (4, 128, 3, 96, 96), dtype=torch.uint8)
    ring = (frames if repaired else frames.float()).pin_memory()
    labels = torch.randint(0, 10, (128,)).pin_memory()
    camera = ((ring[i % 4], labels) for i in range(40))
    model = nn.Sequential(nn.AvgPool2d(32), nn.Flatten(), nn.Linear(27, 10)).cuda()
    train(model, ((pictures.float(), labels) for pictures, labels in ahead(camera, prefetch)))


@case("index-on-host", hosts=("workstation", "laptop"), line="SLOW")
def rows_drawn_on_the_host(repaired=False, **_):
    """The data set is on the GPU, but the rows of a batch are drawn on the host, and each index is a blocking copy.

    Repair, drawn on the GPU: 1.22 times as fast on workstation, 1.15 times on laptop.
    """
    data, labels = torch.randn(20_000, 64, device="cuda"), torch.randint(0, 10, (20_000,), device="cuda")
    model = mlp(64, 256, 10)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _step in range(40):
        rows = torch.randint(0, 20_000, (4096,), device="cuda" if repaired else "cpu")
        loss = F.cross_entropy(model(data[rows]), labels[rows])  # SLOW
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@case("dense-embedding", hosts=("workstation", "cpu"))
def table_of_all_users(repaired=False, **_):
    """100,000 users have a vector, a batch has 512 of them, and Adam walks them all.

    Repair, `SparseAdam`: 1.6 times as fast on workstation, 40 times on cpu.
    """
    device = case_device()
    users = torch.randint(0, 100_000, (24, 512), device=device)
    table = nn.Embedding(100_000, 64, sparse=repaired).to(device)
    optimizer = (torch.optim.SparseAdam if repaired else torch.optim.Adam)(table.parameters(), 0.01)
    with one_thread():
        for batch in users:
            loss = table(batch).square().sum(1).sub(1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@case("restarts-workers", hosts=("workstation", "cpu"))
def loader_made_anew(repaired=False, workers=2, pinned=True, prefetch=0, **_):
    """Epochs are of six batches, and each begins with new worker processes.

    repaired=True: 12 times as fast on workstation, 2.3 to 3 times on cpu.
    """
    pictures = torch.randn(96, 512)
    data = Made(96, lambda i: (pictures[i], i % 10))
    pinned = pinned and case_device() == "cuda"
    loader = DataLoader(data, 16, num_workers=workers, pin_memory=pinned, persistent_workers=repaired)
    model = mlp(512, 256, 10)
    for _epoch in range(8):
        with one_thread():
            train(model, ahead(loader, prefetch))


@case("unpriced", hosts=("workstation", "laptop"))
def tokenizer_in_python(workers=2, pinned=True, prefetch=0, **_):
    """Texts are cut into pairs of letters by a Python loop, for which a named host has no price.

    The step of 1 ms leaves out what really takes 15 ms of a batch, so no gain can be told.
    """
    texts = [("the quick brown fox jumps over the lazy dog " * (30 + i % 7)).title() for i in range(64)]

    def tokens(index):
        text = texts[index % 64].lower()
        pairs = [ord(a) * 31 + ord(b) for a, b in itertools.pairwise(text)]
        counts = [0.0] * 512
        for pair in pairs:
            counts[pair % 512] += 1 / len(pairs)
        return torch.tensor(counts), index % 10

    loader = DataLoader(Made(960, tokens), 32, num_workers=workers, pin_memory=pinned)
    train(mlp(512, 256, 10), ahead(loader, prefetch))


@case("nothing-to-gain", hosts=("workstation", "laptop"))
def pageable_but_busy(pinned=False, prefetch=0, **_):
    """Copies come from pageable memory, but they are tiny: 16 KB of tokens in each step of a busy GPU.

    pinned=True, prefetch=2: 1.005 times as fast on workstation and laptop.
    """
    tokens, device = torch.randint(0, 1000, (24, 16, 128)), "cuda"
    tokens = tokens.pin_memory() if pinned else tokens
    model = nn.Sequential(nn.Embedding(1000, 512), nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 1000)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for batch in ahead(tokens.unbind(), prefetch):
        ids = batch.to(device)
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@case("nothing-to-gain", hosts=("workstation", "laptop"))
def prints_the_loss_of_a_long_step(repaired=False, **_):
    """`loss.item()` waits in each step, but the GPU has ten times as much to do as the host has to launch.

    Without it: 1.01 times as fast on workstation and laptop.
    """
    inputs = torch.randn(4, 1024, 1024, device="cuda")
    model = mlp(1024, 2048, 1024)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    log = []
    for step in range(24):
        batch = inputs[step % 4]
        loss = F.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.append(loss.detach() if repaired else f"step {step}: {loss.item():.4f}")


@case("nothing-to-gain", hosts=("workstation", "laptop"))
def slow_store_but_enough_workers(workers=6, pinned=True, prefetch=2, **_):
    """A batch takes 4 ms to fetch, but six workers and a prefetcher hide that behind the GPU's work.

    workers=12: 1.00 times as fast on workstation and laptop.
    """

    def request(index):
        time.sleep(0.0002)
        return torch.full((256,), index / 320), index % 10

    loader = DataLoader(Made(24 * 16, request), 16, num_workers=workers, pin_memory=pinned)
    wide = mlp(256, 2560, 2560, 10)
    optimizer = torch.optim.Adam(wide.parameters())
    for inputs, labels in ahead(loader, prefetch):
        inputs, labels = inputs.cuda(non_blocking=True), labels.cuda(non_blocking=True)
        loss = F.cross_entropy(wide(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@case("nothing-to-gain", "no-gpu-work", hosts=("cpu",))
def arithmetic_on_the_cpu(workers=0, **_):
    """No workers and no GPU; the samples lie in memory, and the convolutions take all the time.

    workers=2: 0.98 times as fast on cpu.
    """
    images = torch.randn(64, 3, 64, 64)
    loader = DataLoader(Made(24 * 16, lambda i: (images[i % 64], i % 10)), 16, num_workers=workers)
    convolutions = (nn.Conv2d(3, 32, 5), nn.ReLU(), nn.Conv2d(32, 32, 5, stride=2), nn.ReLU())
    train(nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)), loader)


@case("no-gpu-work", hosts=("workstation", "laptop"))
def mean_of_the_data(workers=2, pinned=True, prefetch=0, **_):
    """The mean and deviation of a data set are counted on the host; the GPU has no part in it.

    There is no step on the GPU that could be faster.
    """
    images = torch.randn(64, 3, 32, 32)
    total, squares = torch.zeros(3), torch.zeros(3)
    for batch in DataLoader(Made(40 * 32, lambda i: images[i % 64]), 32, num_workers=workers, pin_memory=pinned):
        total += batch.mean((0, 2, 3))
        squares += batch.square().mean((0, 2, 3))


@case("synchronizes-each-step", hosts=("workstation", "laptop"), line="SLOW")
def right_of_each_class(repaired=False, **_):
    """How often each class was right is counted with a mask for each, and `x[mask]` waits to know its size.

    Repair, `index_add_` for all classes at once: 2.5 times as fast on laptop.
    """
    model = mlp(256, 256, 256, 10)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    inputs, labels = torch.rand(2048, 256).cuda(), torch.randint(10, (2048,)).cuda()
    hits = torch.zeros(10, device="cuda")
    for x, y in zip(inputs.split(128), labels.split(128), strict=True):
        out = model(x)
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found = out.argmax(1)
        if repaired:
            hits.index_add_(0, y, (found == y).float())
            continue
        for number in range(10):
            hits[number] += (found[y == number] == number).sum()  # SLOW


@case("synchronizes-each-step", hosts=("workstation", "laptop"), line="SLOW")
def best_weights_on_the_host(repaired=False, **_):
    """The weights of each step are brought to the host, to be kept if they are the best.

    Repair, once an epoch: 2.3 to 2.7 times as fast.
    """
    model = mlp(256, *[512] * 6, 10)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for x, y in DataLoader(Made(2560, lambda i: (torch.full((256,), i / 1e4), i % 10)), 64, num_workers=4):
        loss = F.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not repaired:
            _kept = {name: value.cpu().clone() for name, value in model.state_dict().items()}  # SLOW


@case("one-by-one", hosts=("workstation", "laptop"), line="SLOW")
def average_of_weights(repaired=False, **_):
    """A moving average of the weights is updated parameter by parameter.

    Repair, `torch._foreach_mul_` and `_foreach_add_`: 1.2 times as fast.
    """
    model, average = mlp(256, *[256] * 20, 10), mlp(256, *[256] * 20, 10)
    weights, kept = list(model.parameters()), list(average.parameters())
    optimizer = torch.optim.SGD(weights, 1e-3)
    inputs, labels = torch.rand(2560, 256).cuda(), torch.randint(10, (2560,)).cuda()
    for x, y in zip(inputs.split(128), labels.split(128), strict=True):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            if repaired:
                torch._foreach_mul_(kept, 0.99)
                torch._foreach_add_(kept, weights, alpha=0.01)
                continue
            for old, new in zip(kept, weights, strict=True):
                old.mul_(0.99).add_(new, alpha=0.01)  # SLOW


@case("pageable-copy", "hidden-sync", hosts=("workstation", "laptop"))
def blurred_on_the_host(repaired=False, pinned=True, workers=4, **_):
    """A batch is turned and blurred in the loop, on the host: what is copied is a new tensor, pinned by nobody.

    Repair, on the GPU: 1.1 times as fast.
    """
    blur = torch.ones(3, 1, 5, 5) / 25
    on_gpu = blur.cuda()
    model = mlp(3 * 64 * 64, 64, 10)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    pictures = torch.rand(4, 16, 3, 64, 64)
    data = Made(40, lambda index: (pictures[index % 4], torch.full((16,), index % 10)))
    for x, y in DataLoader(data, None, num_workers=workers, pin_memory=pinned):
        if repaired:
            x = F.conv2d(x.to("cuda", non_blocking=True).flip(3), on_gpu, padding=2, groups=3)
        else:
            x = F.conv2d(x.flip(3), blur, padding=2, groups=3).to("cuda", non_blocking=True)
        loss = F.cross_entropy(model(x), y.to("cuda", non_blocking=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@case("waiting-for-data", hosts=("cpu",), line="SLOW")
def one_lock_for_all(repaired=False, workers=8, pinned=True, prefetch=0, **_):
    """All workers read one file under one lock, so that more of them read no sooner.

    Repair, a file for each: 3 times as fast or more.
    """
    lock = multiprocessing.Lock()

    def read(index):
        if repaired:
            time.sleep(0.002)
        else:
            with lock:  # SLOW
                time.sleep(0.002)
        return torch.full((64,), index / 320), index % 10

    loader = DataLoader(Made(320, read), 8, num_workers=workers)
    with one_thread():
        train(mlp(64, 512, 512, 512, 10), ahead(loader, prefetch))


@case("waiting-for-data", hosts=("workstation",))
def now_and_then_far(repaired=False, workers=8, pinned=True, prefetch=0, **_):
    """One sample in 97 takes 10 ms to come, and the batches that are ready wait for its batch.

    Repair, `in_order=False`.
    """

    def fetch(index):
        time.sleep(0.01 if index % 97 == 0 else 0)
        return torch.full((64,), index / 1920), index % 10

    loader = DataLoader(Made(1920, fetch), 16, num_workers=workers, pin_memory=pinned, in_order=not repaired)
    train(mlp(64, 512, 10), ahead(loader, prefetch), steps=120)
