"""Published measurements and what is predicted for them: published.csv, and held_out.csv, on which nothing is fitted.

    for row in rows():                  # of both files
        print(row.item, row.measured, predict(row), row.used)

A row's `setup` says what has to be known to predict it, as "key=value" pairs; `predict` gives the row's own unit. A row
is "fitted" (a number of a preset was fitted on it), "same" (another size of what was), "unseen" (nothing was fitted on
it, but it was seen) or "held out": that file was frozen before its measurements were read, and `HELD_OUT` is its hash.

Our own rows, of an H200, are the kernels of a step of `steps.stepper` in sum, as torch.profiler has them (of
regnet_y_8gf, whose sum was longer than its step, the step), and copies between two events. h200.csv has what was
fitted: us of passes over float32 images of a batch of 128, between two events, each the mean of 3 or 5.
"""

from __future__ import annotations

import csv
import hashlib
import io
import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from benchmarks.pipeline import Items, rough, steady
from benchmarks.steps import Setup, gpu_time, host_time
from loaderviz import costs, record
from loaderviz.emulator import Gpu, Host, Runtime
from loaderviz.emulator.hardware import DATA, FULL, GB, PAGE
from loaderviz.emulator.kernels import Array, Call, kernel_times
from loaderviz.emulator.torch.dataloader import FORMATS
from loaderviz.imports import cured_imports
from loaderviz.timeline import Kind

with cured_imports():
    from torchvision import transforms
    from torchvision.transforms import functional

from PIL import Image

FILES = {name: Path(__file__).with_name(f"{name}.csv") for name in ("published", "held_out")}
HELD_OUT = "19f9e73bceef90a5eb598e5fe36af377aac68438cc5a52b1e002ecc0fd96d402"  # SHA-256 of held_out.csv
SERVER, OLD_HOST, OLD_CARDS = (
    "server 2023",
    "server 2016",
    ("v100", "t4"),
)  # DeepLearningExamples' servers of these cards
HOSTED = "resnet50"  # the other steps have large batches, and hosts much faster than their GPU
PRODUCT_SIZES = (4096, 8192, 16384)  # of which the best counts
BATCHES, ADDITIONS, CALLS = 24, 100, 16  # of a loader's run; of a run of additions; of a part of a data set
# Cards without a preset, by NVIDIA's data sheets: what they have in place of another card's.
CARDS = {
    "titan rtx": ("2080ti", {"memory_bandwidth": 672 * GB, "sms": 72, "fp32": 163 * 10**11, "fp16": 1305 * 10**11}),
    "rtx a5000": ("3090", {"memory_bandwidth": 768 * GB, "sms": 64, "fp32": 278 * 10**11, "fp16": 1111 * 10**11}),
}


class Row(NamedTuple):
    """A published measurement."""

    part: str  # "loader", "host", "copy" or "kernel"
    source: str
    version: str  # of the source: a commit or a date
    machine: str
    torch: str
    item: str
    setup: dict[str, str]
    measured: float
    unit: str
    used: str


def rows(*files: str) -> list[Row]:
    """Return the rows of some files, of all by default."""
    found = []
    for name in files or FILES:
        with FILES[name].open(encoding="utf-8", newline="") as file:
            for given in csv.DictReader(file):
                setup = dict(pair.split("=") for pair in given["setup"].split())
                found.append(Row(**given | {"setup": setup, "measured": float(given["measured"])}))
    return found


def is_frozen() -> bool:
    """Tell whether held_out.csv is what it was when it was frozen."""
    return hashlib.sha256(FILES["held_out"].read_bytes()).hexdigest() == HELD_OUT


def predict(row: Row) -> float:
    """Return what is predicted, in the row's unit."""
    return {"loader": loader, "host": host, "copy": copy, "kernel": kernel}[row.part](row, row.setup)


def card(name: str) -> Gpu:
    """Return a preset, or a card made of one."""
    if name in CARDS:
        like, own = CARDS[name]
        return replace(Gpu.preset(like), **own)
    return Gpu.preset(name)


# Kernels


def setup_of(given: dict[str, str]) -> Setup:
    """Return the step of a model."""
    plain = given.get("as") == "plain"
    return Setup(given["model"], int(given["batch"]), given["mode"], given["precision"], given["layout"], plain)


def kernel(row: Row, given: dict[str, str]) -> float:
    """Return ms of a step of a model, of a product, of attention, or of an elementwise kernel."""
    gpu = card(row.machine)
    if "model" in given:
        setup, server = setup_of(given), OLD_HOST if row.machine in OLD_CARDS else SERVER
        waits = host_time(setup._replace(batch=0), server) if setup.model == HOSTED and not setup.plain else 0
        return max(gpu_time(setup, gpu)[0], waits) / 1e6
    if "product" in given:
        precision: Any = "fp32" if given["product"] == "fp32" else "fp16"
        dtype = "float" if precision == "fp32" else "c10::Half"
        arrays = [Array((size, size), dtype) for size in PRODUCT_SIZES]
        times = [sum(kernel_times(gpu, Call("mm", [each] * 2, [each], precision))) for each in arrays]
        return min(time * 1e12 / (2 * size**3) for time, size in zip(times, PRODUCT_SIZES, strict=True)) / 1e6
    if "attention" in given:
        shape = tuple(int(given[name]) for name in ("batch", "heads", "length", "width"))
        each = Array(shape, "c10::Half")
        call = Call("_scaled_dot_product_flash_attention", [each] * 3, [each], "fp16")
    else:
        half = Array((int(given["elementwise"]) // 8,), "float")
        call = Call("mul", [half], [half])
    return sum(kernel_times(gpu, call)) / 1e6


# The host


def host(row: Row, given: dict[str, str]) -> float:
    """Return ms of a step that the host sets, with the pageable copy of its batch, or of a call."""
    if "model" in given:
        setup, gpu = setup_of(given), card(row.machine)
        images = setup.batch * 3 * 224 * 224 * (2 if setup.precision == "half" else 4)
        alone = setup._replace(batch=0, precision="fp32" if setup.plain else setup.precision)
        return max(gpu_time(setup, gpu)[0], host_time(alone, SERVER) + gpu.pageable_time(images)) / 1e6
    if "call" in given:
        call = given["call"]
        return (
            Host.preset(SERVER).pin_time(4_000_000) if call == "pin" else getattr(Host.preset("laptop"), call)
        ) / 1e6
    with record(on=row.machine, host=SERVER, hazards="off"):
        x = torch.zeros(int(given["add"]), int(given["add"]), device="cuda")
        x + x
        torch.cuda.synchronize()
        start = time.perf_counter_ns()  # a recording's own clock
        for _ in range(ADDITIONS):
            x + x
            if given["wait"] == "each":
                torch.cuda.synchronize()
        torch.cuda.synchronize()
        return (time.perf_counter_ns() - start) / ADDITIONS / 1e6


# Copies


def copy(row: Row, given: dict[str, str]) -> float:
    """Return ms of a copy, or of a batch's copy into pinned memory."""
    if "pinning" in given:
        return pinning(int(given["pinning"]), given["thread"] == "1", row.machine)
    gpu, runtime_host = card(row.machine), Host.preset(SERVER)
    if "under" in given:
        compute, nbytes = int(given["under"]), 64 * 2**20
        bandwidth = gpu.memory_bandwidth * int(given["eighths"]) // 8
        gpu = replace(gpu, h2d=round(nbytes / int(given["alone"]) * 1e9), memory_bandwidth=bandwidth)
        runtime = Runtime(gpu, runtime_host)
        runtime.launch(compute, traffic=FULL)  # what it computes is not told: the most that it can lose
        runtime.memcpy(nbytes, "h2d", runtime.stream())
        runtime.synchronize()
        return runtime.now / 1e6
    nbytes, way, pinned = int(given["bytes"]), given["way"], given["pinned"] == "1"
    runtime, ways = Runtime(gpu, runtime_host), {"h2d": "d2h", "d2h": "h2d"}
    if given.get("both"):
        runtime.memcpy(2 * nbytes, ways[way], runtime.stream())
        runtime.memcpy(nbytes, way, runtime.stream(), pinned=pinned)
        runtime.synchronize()
        kind = Kind.COPY_H2D if way == "h2d" else Kind.COPY_D2H
        return next(span.duration for span in runtime.timeline().rows(kind)) / 1e6
    runtime.memcpy(nbytes, way, pinned=pinned)
    runtime.synchronize()
    return runtime.now / 1e6  # as the host sees it


def pinning(nbytes: int, of_thread: bool, gpu: str) -> float:
    """Return ms in which the pin thread, or the main one, pins a batch of a worker, beyond the first of all."""
    source = DataLoader(Items(lambda _: torch.empty(nbytes // 4), 4), None, num_workers=1, pin_memory=of_thread)
    with record(on=gpu, host=SERVER, hazards="off") as recording:
        for batch in source:
            pinned = batch if of_thread else batch.pin_memory()
            del batch, pinned
    return min(span.duration for span in recording.timeline.rows(Kind.PIN)) / 1e6


# Loaders


@lru_cache(None)
def file(kind: str, width: int, height: int, nbytes: int) -> bytes:
    """Return the file of a picture with a photograph's spectrum, of so many bytes; 0: of noise, as Pillow saves it."""
    chance = np.random.default_rng(0)
    pixels = rough(height, width, chance) if nbytes else chance.integers(0, 256, (height, width, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)

    def saved(quality: int) -> bytes:
        with io.BytesIO() as into:
            image.save(into, kind, **({"quality": quality} if kind == "JPEG" else {}))
            return into.getvalue()

    if not nbytes:
        return saved(75)
    return min(map(saved, range(2, 100)), key=lambda data: abs(len(data) - nbytes))


# Who decodes: not every machine has the library, and what it costs is in one number of hardware.toml.
DECODERS = {
    "torchvision": DATA["decoders"]["torchvision.io.image"]["decode_jpeg"],
    "OpenCV": DATA["decoders"]["cv2"]["imdecode"],
    "turbojpeg": DATA["decoders"]["turbojpeg"]["TurboJPEG.decode"],
}


# A row tells the day; wheels of OpenCV are of the version of that day, which had no SIMD before 4.10 came.
WITH_SIMD, PLAIN = "2024-06", DATA["plain"]["cv2"]["factor"]


def decoding_time(row: Row, given: dict[str, str], of: Host) -> float:
    """Return ms in which one of `DECODERS` decodes a picture on this host."""
    pixels = int(given["width"]) * int(given["height"])
    took = FORMATS[given["decode"]].time(int(given["file"]), pixels if "grey" in given else 3 * pixels)
    plain = given["by"] == "OpenCV" and row.version < WITH_SIMD
    return took * DECODERS[given["by"]] * of.transforms / FULL**2 / 1e6 * (PLAIN / FULL if plain else 1)


def augmented(image: Any) -> Any:
    """Return a training sample of ImageNet."""
    chain = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(), NORMALIZE]
    return transforms.Compose(chain)(image), 0


NORMALIZE = transforms.Normalize((0.5,) * 3, (0.2,) * 3)
MADE: dict[str, Callable[[Any], Any]] = {  # what a row makes of Pillow's picture
    "array": np.array,
    "tensor": functional.pil_to_tensor,
    "224": lambda image: functional.pil_to_tensor(functional.resize(image, [224, 224])),
    "augmented": augmented,
}
TRANSFORMS: dict[str, Callable[[torch.Tensor, Any], object]] = {
    "PILToTensor": lambda tensor, image: functional.pil_to_tensor(image),
    "Resize(tensor)": lambda tensor, image: functional.resize(tensor, [224, 224], antialias=True),
    "ConvertImageDtype": lambda tensor, image: functional.convert_image_dtype(tensor[:, :224, :224]),
    "Normalize": lambda tensor, image: NORMALIZE(torch.zeros(3, 224, 224)),
}


def small(kind: str, of: Host) -> Dataset[Any]:
    """Return a data set in memory: rows of numbers, pairs of numpy numbers, or CIFAR-10's pictures."""
    if kind == "rows":
        return TensorDataset(torch.zeros(20_000, 20), torch.zeros(20_000, 5))
    if kind == "numbers":
        return Items(lambda index: {"x": np.float32(index), "y": np.float32(index)}, 102_400)
    crop = transforms.RandomCrop(32, padding=4)
    chain = transforms.Compose([crop, transforms.RandomHorizontalFlip(), transforms.ToTensor(), NORMALIZE])
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    return Items(priced(lambda: (chain(Image.fromarray(pixels)), 0), of), 50_000)


def host_of(given: dict[str, str]) -> Host:
    """Return the host of a loader's row: a preset by its name, with the cores that the source tells."""
    base = Host.preset(given["host"].replace("_", " "))
    return replace(base, **{name: int(given[name]) for name in ("cores", "siblings") if name in given})


def loader(row: Row, given: dict[str, str]) -> float:
    """Return ms of a sample, or of what else the row measures."""
    make = partial(whole, given) if "epoch" in given else partial(transform, given) if "transform" in given else None
    make = make or (partial(decoding_time, row, given) if given.get("by") in DECODERS else None)
    make = make or partial(crossing if "crosses" in given else sample_time, given)
    return make(host_of(given))


def alone(call: Callable[[], object], of: Host) -> int:
    """Return ns of a call in a data set on this host: of the mean of `CALLS`, since some draw what they do."""

    def took(calls: int) -> int:
        torch.manual_seed(0)
        with record(on="a100", host=of, hazards="off") as recording:
            for _ in DataLoader(Items(lambda _: [call() for _ in range(calls)] and 0, 1), None):
                pass
        return recording.timeline.duration

    return (took(CALLS + 1) - took(1)) // CALLS


def priced(call: Callable[[], Any], of: Host, seconds: float | None = None) -> Callable[[int], Any]:
    """Return the samples of a data set, each of which costs what a call does, or so long; it is made only once."""
    sample = call()
    seconds = alone(call, of) / 1e9 if seconds is None else seconds

    def make(_: int) -> Any:
        with costs(seconds):  # an object that is in a list twice would be pickled once
            return sample.copy() if isinstance(sample, (np.ndarray, Image.Image)) else sample

    return make


def sample_time(given: dict[str, str], of: Host) -> float:
    """Return ms a sample of a loader that decodes, or whose sample costs a given time."""
    workers, batch, sleeps = (int(given.get(name, 0)) for name in ("workers", "batch", "loop"))
    width, height = (int(given[name]) for name in ("width", "height"))
    if "sample" in given:
        make = priced(lambda: np.zeros((height, width, 3), np.uint8), of, int(given["sample"]) / 1e9)
    else:
        packed = file(given["decode"], width, height, int(given.get("file", 0)))

        def decoded() -> Any:
            picture = Image.open(io.BytesIO(packed)).convert("RGB")
            return MADE[given["to"]](picture) if given.get("to") in MADE else picture

        make = priced(decoded, of)
    collate = None if given.get("to") in ("224", "augmented") else list
    count = max(BATCHES, 3 * workers)
    data = Items(make, max(1, batch) * count)
    with record(on="a100", host=of, hazards="off") as recording:
        for _ in DataLoader(data, batch or None, num_workers=workers, collate_fn=collate):
            if sleeps:
                time.sleep(sleeps / 1e9)
    return steady(recording.timeline) * 1e3 / max(1, batch)


def transform(given: dict[str, str], of: Host) -> float:
    """Return ms of one of torchvision's transforms of a picture of 375 x 500."""
    image = Image.fromarray(np.zeros((375, 500, 3), np.uint8))
    tensor, call = functional.pil_to_tensor(image), TRANSFORMS[given["transform"]]
    return alone(lambda: call(tensor, image), of) / 1e6


def whole(given: dict[str, str], of: Host) -> float:
    """Return ms of an epoch: of the four ways to the GPU, beyond their sleeps, or of a small data set in memory."""
    workers, card_ = int(given["workers"]), "a100-80gb"
    if given["epoch"] != "10":
        data = small(given["epoch"], of)
        with record(on=card_, host=of, hazards="off") as recording:
            for _ in DataLoader(data, int(given["batch"]), num_workers=workers):
                pass
        return recording.timeline.duration / 1e6
    pin, non_blocking = (given[name] == "1" for name in ("pin", "non_blocking"))
    ones = torch.ones(2**18)
    with record(on=card_, host=of, hazards="off"):
        source = DataLoader(Items(lambda _: ones, 1000), 100, pin_memory=pin, num_workers=workers)
        for _ in range(2):  # in the first the pinned memory is taken
            start = time.perf_counter()
            for batch in source:
                batch.to("cuda", non_blocking=non_blocking)
                time.sleep(0.2)
            torch.cuda.synchronize()
            took = time.perf_counter() - start - 10 * 0.2
    return took * 1e3


def crossing(given: dict[str, str], of: Host) -> float:
    """Return ms in which one process sends 32 MiB and another takes them, as fast as the slower of the two goes."""
    make = {
        "bytes": lambda: bytes(2**25),
        "array": lambda: np.zeros(2**23, np.float32),
        "tensor": lambda: torch.zeros(2**23),
    }[given["crosses"]]
    source = DataLoader(Items(lambda _: make(), BATCHES), None, num_workers=1, collate_fn=lambda batch: batch)
    with record(on="a100", host=of, hazards="off") as recording:
        for batch in source:
            if isinstance(batch, torch.Tensor):
                batch[:: PAGE // 4].sum()
    return steady(recording.timeline) * 1e3
