"""How well host="auto" foretells torch's real DataLoader on this machine: eight data sets, 0, 1 and 2 workers.

    python -m benchmarks.pipeline                                      # the table goes to docs/pipeline.md
    python -m benchmarks.pipeline [--rounds 5] [--sets pictures tokens]  # some of it is only printed

Real and emulated runs of the same loop take turns; a ratio is predicted over measured throughput, from the medians. A
step is the mean over the batches after a third of them. Where one more worker changes the real step by more than 10 %
in the same direction in every round, the prediction has to change by as much as 5 % in that direction; elsewhere it
should say that nothing changes. Measured on the wall: the machine should have nothing else to do.
"""

from __future__ import annotations

import argparse
import io
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import loaderviz as lv
from loaderviz.batches import BATCH_RANGE
from loaderviz.imports import cured_imports
from loaderviz.machine import cores, processor
from loaderviz.timeline import Kind

with cured_imports():
    from torchvision import transforms

from PIL import Image

WORKERS = (0, 1, 2)
MOST, LEAST = 1.5, 1 / 1.5
ROUNDS = 5
PAGE = Path(__file__).parents[1] / "docs" / "pipeline.md"
INTRODUCTION = """\
# This machine's DataLoader, measured and foretold

Eight data sets were read by PyTorch's real DataLoader, and by the emulated one with `host="auto"`, which measures this
machine by itself. Both took turns, {rounds} times each, with 0, 1 and 2 workers. A time is what a step of the real
loop takes [ms], in the median. A ratio is predicted over measured throughput: 1.00 is exact, and below 1 the prediction
is too slow. The last two columns say by how much a step gets longer or shorter with one more worker, and by how much
it is said to. A change is clear where it is above 10 % in the same direction in all {rounds} rounds.

Made by `python -m benchmarks.pipeline` on {date}, with PyTorch {torch} and {cores} cores ({processor}). Another machine
gives other numbers, and so does one that has other work.
"""
HEAD = (
    "| data set | 0 workers | 1 | 2 | ratio, 0 workers | 1 | 2 | from 0 to 1 worker | from 1 to 2 |",
    "| :--- | ---: | ---: | ---: | ---: | ---: | ---: | :--- | :--- |",
)
CHANGES, SAID = 0.1, 0.05  # of a step: a real change, and one that the prediction names


class Items(Dataset[Any]):
    """A data set whose samples a function of the index makes."""

    def __init__(self, make: Callable[[int], Any], length: int) -> None:
        self.make, self.length = make, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Set(NamedTuple):
    """A data set, the batch size, how many batches a run has, and how they are collated (None: as torch does)."""

    make: Callable[[int], Any]
    batch: int
    batches: int
    collate: Any = None

    def loader(self, workers: int) -> DataLoader[Any]:
        """Return torch's DataLoader over it, with no order to draw."""
        return DataLoader(
            Items(self.make, self.batch * self.batches), self.batch, num_workers=workers, collate_fn=self.collate
        )


def rough(height: int, width: int, chance: np.random.Generator) -> Any:
    """Return a picture with the spectrum of a photograph, shape (height, width, 3), uint8."""
    distance = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    distance[0, 0] = 1
    noise = np.fft.rfft2(chance.normal(size=(3, height, width))) / distance
    shades = np.fft.irfft2(noise, s=(height, width))
    return np.clip(128 + 48 * shades / shades.std(), 0, 255).astype(np.uint8).transpose(1, 2, 0)


def picture(files: list[bytes], transform: Any, index: int) -> Any:
    """Decode and augment, as torchvision's ImageFolder does."""
    return transform(Image.open(io.BytesIO(files[index % len(files)])).convert("RGB")), index % 10


def row(values: Any, index: int) -> Any:
    """Take a row of a mapped file."""
    return torch.from_numpy(np.array(values[index % len(values)])), index % 10


def sample(tensor: torch.Tensor, index: int) -> Any:
    """Take a row of a tensor."""
    return tensor[index % len(tensor)], index % 10


def pieces(words: list[str], known: dict[str, int], index: int) -> Any:
    """Cut a text into the longest known pieces of its words, and pad it to 128 of them."""
    found: list[int] = []
    for number in range(90):
        word = words[(index * 31 + number * 7) % len(words)]
        while word:
            end = next(end for end in range(len(word), 0, -1) if word[:end] in known)
            found.append(known[word[:end]])
            word = word[end:]
    return torch.tensor((found + [0] * 128)[:128])


def chunk(packed: list[bytes], index: int) -> Any:
    """Inflate a chunk of 64 KB, as h5py and zarr do, and take a row of it."""
    return torch.from_numpy(np.frombuffer(zlib.decompress(packed[index % len(packed)]), np.uint8)[:1024].copy())


def heavy(index: int) -> Any:
    """Work in pure Python."""
    total = 0
    for number in range(8_000):
        total = (total * 31 + number ^ index) & 0xFFFF
    return total


def floats(index: int) -> Any:
    """Make a tensor of 602 KB."""
    return torch.full((3, 224, 224), float(index))


def array(index: int) -> Any:
    """Make an array of 562 KB."""
    return np.full((375, 500, 3), index % 256, np.uint8)


def sets(folder: Path) -> dict[str, Set]:
    """Return the data sets by name; their files lie in `folder`."""
    chance, letters = np.random.default_rng(0), "abcdefghijklmnopqrstuvwxyz"
    files = []
    for _ in range(16):
        with io.BytesIO() as file:
            Image.fromarray(rough(375, 500, chance)).save(file, "JPEG", quality=90)
            files.append(file.getvalue())
    augment = transforms.Compose([transforms.RandomResizedCrop(224), transforms.ToTensor()])
    chance.integers(0, 256, (2048, 49_152), dtype=np.uint8).tofile(folder / "rows")
    mapped = np.memmap(folder / "rows", np.uint8, shape=(2048, 49_152))
    words = ["".join(chance.choice(list(letters), chance.integers(3, 12))) for _ in range(500)]
    known = {piece: number for number, piece in enumerate(letters)}
    known |= {word[:3]: number for number, word in enumerate(words, 26)}
    packed = [zlib.compress(chance.integers(0, 24, 65_536, dtype=np.uint8).tobytes()) for _ in range(64)]
    return {
        "pictures": Set(partial(picture, files, augment), 32, 16),
        "mapped rows": Set(partial(row, mapped), 256, 40),
        "small tensors": Set(partial(sample, torch.rand(60_000, 784)), 256, 120),
        "tokens": Set(partial(pieces, words, known), 64, 30),
        "chunks": Set(partial(chunk, packed), 64, 40),
        "heavy Python": Set(heavy, 64, 16),
        "float tensors": Set(floats, 32, 30),
        "arrays in a list": Set(array, 32, 30, list),
    }


def real(data: Set, workers: int) -> float:
    """Return the seconds of a step of the real loader on this machine."""
    times = []
    for _ in data.loader(workers):
        times.append(time.perf_counter())
    begin = len(times) // 3
    return (times[-1] - times[begin]) / (len(times) - 1 - begin)


def predicted(data: Set, workers: int) -> float:
    """Return the same of an emulated one, whose host is this machine."""
    with lv.record(on="a100", host="auto", hazards="off") as recording:
        for _ in data.loader(workers):
            pass
    return steady(recording.timeline)


def steady(timeline: lv.Timeline) -> float:
    """Return the seconds of a step: the mean over the batches after a third of them."""
    starts = sorted(span.start for span in timeline.rows(Kind.RANGE) if BATCH_RANGE.match(span.name))
    begin = len(starts) // 3
    return (starts[-1] - starts[begin]) / (len(starts) - 1 - begin) / 1e9


class Row(NamedTuple):
    """Seconds of a step in each round: measured and predicted, by the number of workers."""

    measured: dict[int, list[float]]
    predicted: dict[int, list[float]]

    def ratio(self, workers: int) -> float:
        """Return predicted over measured throughput."""
        return statistics.median(self.measured[workers]) / statistics.median(self.predicted[workers])

    def signs(self) -> Iterator[str]:
        """Give for each further worker how it really changes a step, and how it is said to."""
        for more in WORKERS[1:]:
            changes = [
                now / before - 1 for before, now in zip(self.measured[more - 1], self.measured[more], strict=True)
            ]
            said = statistics.median(self.predicted[more]) / statistics.median(self.predicted[more - 1]) - 1
            clear = all(change > CHANGES for change in changes) or all(change < -CHANGES for change in changes)
            right = said * changes[0] > 0 and abs(said) > SAID if clear else abs(said) <= CHANGES
            real_change = f"{statistics.median(changes):+.0%}" if clear else "no clear change"
            yield f"{real_change}, said {said:+.0%}{'' if right else ': **wrong**'}"


def measure(data: Set, rounds: int) -> Row:
    """Run the real and the emulated loop in turns."""
    found = Row({workers: [] for workers in WORKERS}, {workers: [] for workers in WORKERS})
    for _ in range(rounds):
        for workers in WORKERS:
            found.measured[workers].append(real(data, workers))
            found.predicted[workers].append(predicted(data, workers))
    return found


def main() -> None:
    """Print the table; write the page where all data sets were run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--sets", nargs="*", help="some of the data sets, by name")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        known = sets(Path(folder))
        if unknown := ", ".join(set(options.sets or ()) - known.keys()):
            parser.error(f"no data set is called {unknown}; there are {', '.join(known)}")
        ratios, lines = [], list(HEAD)
        print(*HEAD, sep="\n")
        for name in options.sets or known:
            row = measure(known[name], options.rounds)
            ratios += (mine := [row.ratio(workers) for workers in WORKERS])
            times = [f"{1e3 * statistics.median(row.measured[workers]):.2f}" for workers in WORKERS]
            lines.append(f"| {' | '.join([name, *times, *(f'{ratio:.2f}' for ratio in mine), *row.signs()])} |")
            print(lines[-1], flush=True)
    inside = sum(LEAST <= ratio <= MOST for ratio in ratios)
    result = f"{inside} of {len(ratios)} ratios lie from {LEAST:.2f} to {MOST:.2f}."
    print(f"\n{result}")
    if not options.sets and options.rounds >= ROUNDS:
        machine = {
            "date": date.today(),
            "cores": cores().physical,
            "processor": processor(),
            "torch": torch.__version__,
        }
        told = INTRODUCTION.format(rounds=options.rounds, **machine)
        PAGE.write_text("\n".join([told, *lines, "", result, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
