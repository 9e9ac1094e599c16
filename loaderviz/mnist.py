"""MNIST for the lessons: the real digits where they can be had, else a drawn stand-in of the same shapes and sizes.

    images, labels = mnist.tensors(train=True)      # uint8 [60000, 28, 28], int64 [60000]

Real digits are looked for in the folder that ``LOADERVIZ_DATA`` names and in our cache, each with torchvision's layout
(``MNIST/raw/train-images-idx3-ubyte``, plain or ``.gz``); then a download into the cache is tried for `AUTO_SECONDS`,
at most once a day (``LOADERVIZ_OFFLINE=1``: never). Else the stand-in is drawn, in a second, and kept there. Train and
test digits come from one place. Which digits they are is said in one line.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import http.client
import os
import tempfile
import threading
import time
import tomllib
import urllib.request
import zlib
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from loaderviz.errors import LoadervizError

Array = NDArray[np.uint8]
Ints = NDArray[np.int64]
Download = bool | Literal["auto"]

AUTO_SECONDS = 12.0  # the four files are 11 MB
ASKED_SECONDS = 300.0  # with download=True
REMEMBER_SECONDS = 24 * 3600  # a user without a network waits once a day
MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"  # as torchvision has
RAW = Path("MNIST", "raw")  # as torchvision names it
SIZES = {True: 60_000, False: 10_000}  # train, test
_DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
FILES: dict[bool, dict[str, str]] = {True: _DATA["files"]["train"], False: _DATA["files"]["test"]}  # and their MD5 sums


class MnistError(LoadervizError, RuntimeError):
    """The files of MNIST are missing, damaged or not MNIST; the message names the file and what to do next."""


class DigitSource(NamedTuple):
    """Where digits come from: a folder, or None and why it is the stand-in; `str(source)` is the line that says it."""

    folder: Path | None
    why: str = ""

    def __str__(self) -> str:
        if self.folder:
            return f"real MNIST in {self.folder}"
        return (
            f"drawn stand-in for MNIST (computer-drawn digits, no handwriting), because {self.why}. For the real one: "
            "set LOADERVIZ_DATA to a folder with MNIST/raw/*-ubyte(.gz), "
            "or call loaderviz.mnist.tensors(download=True)."
        )


def tensors(train: bool = True, download: Download = "auto") -> tuple[torch.Tensor, torch.Tensor]:
    """60,000 train or 10,000 test digits: images uint8 [N, 28, 28], labels int64 [N]; `find` says which.

    `download`: "auto" tries for `AUTO_SECONDS` and falls back on the stand-in; False never uses the network; True tries
    for `ASKED_SECONDS`, and no stand-in will do.

    Raises `MnistError` for damaged files, or a ``download=True`` that did not succeed; `ValueError` for another
    `download`.

    >>> [part.shape for part in tensors(train=False)]
    [torch.Size([10000, 28, 28]), torch.Size([10000])]
    """
    folder = find(download).folder
    images, labels = _mapped(train) or _in_memory(train) if folder is None else _read(folder, train)
    own = images if isinstance(images, np.memmap) else images.copy()  # the next caller gets them anew
    return torch.from_numpy(own), torch.from_numpy(labels.astype(np.int64))


# Where the digits are


def find(download: Download = "auto") -> DigitSource:
    """Choose where the digits come from, and download them if need be. Raises as `tensors`."""
    if download not in (True, False, "auto"):
        raise ValueError(f'download={download!r}: give "auto", True or False')
    cache = _cache()
    source = _stored(os.environ.get("LOADERVIZ_DATA", ""), cache)
    if source.folder:
        return source
    if os.environ.get("LOADERVIZ_OFFLINE", "").strip().lower() not in ("", "0", "false", "no"):
        why = "LOADERVIZ_OFFLINE is set"
    elif download is False:
        why = "nothing is downloaded here (download=False)"
    elif download == "auto" and (failed := _failed(cache)):
        why = f"the download failed within the last day ({failed})"
    elif problem := _fetch(cache, ASKED_SECONDS if download is True else AUTO_SECONDS):
        why = f"the download from {MIRROR} failed ({problem})"
    else:
        _stored.cache_clear()
        return _stored("", cache)
    if download is True:
        raise MnistError(f"{why}. Try again with a network, or name a folder with the files in LOADERVIZ_DATA")
    source = DigitSource(None, f"{source.why} and {why}" if source.why else why)
    _announce(source)
    return source


def _cache() -> Path:
    return Path(torch.hub.get_dir()).parent / "loaderviz"  # beside torch's own


@functools.cache  # once per process, so that train and test digits belong together
def _stored(data: str, cache: Path) -> DigitSource:
    given = Path(os.path.expanduser(data))  # Path's own refuses an unknown "~user"
    if data and not _lacking(given):
        return DigitSource(given)
    if not _lacking(cache):
        return DigitSource(cache)
    return DigitSource(None, data and f"LOADERVIZ_DATA={data} lacks {_lacking(given)}")


@functools.cache
def _announce(source: DigitSource) -> None:
    print(f"loaderviz: {source}")  # once per process


def _failed(cache: Path) -> str:
    """Return why a download failed within the last day; "" if none did, or nobody may look."""
    note = cache / "download-failed"
    with contextlib.suppress(OSError):
        if 0 <= time.time() - note.stat().st_mtime < REMEMBER_SECONDS:
            return note.read_text(errors="replace")
    return ""


def _fetch(cache: Path, seconds: float) -> str:
    """Download the four files; return "", or why it did not work, which is noted for a day."""
    outcome = [f"it took longer than {seconds:g} s"]

    def work() -> None:
        try:
            (cache / RAW).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                for name, md5 in {**FILES[True], **FILES[False]}.items():
                    path = Path(folder, f"{name}.gz")
                    with urllib.request.urlopen(MIRROR + path.name, timeout=min(seconds, 5)) as reply:
                        path.write_bytes(reply.read())
                    _content(path, md5)
                    os.replace(path, cache / RAW / path.name)
            outcome[0] = ""
        except (OSError, ValueError, MnistError, http.client.HTTPException) as error:  # the last: it is no web server
            outcome[0] = str(error)

    thread = threading.Thread(target=work, daemon=True)  # a name look-up knows no time limit
    thread.start()
    thread.join(seconds)
    if outcome[0]:
        with contextlib.suppress(OSError):
            (cache / "download-failed").write_text(outcome[0])
    return outcome[0]


# Files


def _lacking(root: Path) -> str:
    """Name the files that `root` has not; if it has them all, read and check them."""
    names = [name for split in FILES.values() for name in split]
    if not (lacking := " and ".join(name for name in names if not _file(root, name))):
        for train in FILES:
            _read(root, train)
    return lacking


def _file(root: Path, name: str) -> Path | None:
    files = root / RAW / name, root / RAW / f"{name}.gz"
    return next((path for path in files if os.path.isfile(path)), None)  # Path's own raises where nobody may look


@functools.lru_cache(maxsize=2)  # `find` checks what `tensors` then reads
def _read(root: Path, train: bool) -> tuple[Array, Array]:
    """Read a split: images [N, 28, 28], labels [N]. The header before the bytes is known, since all are."""
    images, labels = (_content(_file(root, name), md5) for name, md5 in FILES[train].items())
    return images[16:].reshape(-1, 28, 28), labels[8:]


def _content(path: Path | None, md5: str) -> Array:
    assert path, "find() looked"
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:  # gzip reports a wrong check sum as an OSError
        raise MnistError(f"{path} cannot be read ({error}); replace it with a fresh copy") from error
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
        raise MnistError(
            f"{path} is damaged, or not MNIST's (Fashion-MNIST has the same names): its {len(content):,} bytes have "
            "another check sum; replace it with a fresh copy"
        )
    return np.frombuffer(content, np.uint8)


# The stand-in


HANDS = 120  # ways to write each digit, shared out over its forms
PIECE = 2_000  # images drawn at once
SHIFT = 1  # pixels up to which a digit is moved
# Twice the coefficients of a Catmull-Rom curve, lowest power first, from four points in a row.
CATMULL_ROM = np.array([[0, 2, 0, 0], [-1, 0, 1, 0], [2, -5, 4, -1], [-1, 3, -3, 1]])
POWERS = np.arange(16)[:, None] ** np.arange(4) * 16 ** np.arange(3, -1, -1)  # of 16 times on it, over 16**3


def _mapped(train: bool) -> tuple[Array, Array] | None:
    """Return what `draw` gives, of a file whose pages all kernels share; what one writes to is its own."""
    count = SIZES[train]
    with contextlib.suppress(OSError, ValueError):  # it is gone, or was cut
        if file := _kept(train, _cache()):
            both = np.memmap(file, np.uint8, "c", shape=(count * 785,))
            return both[: count * 784].reshape(-1, 28, 28), both[count * 784 :]
    return None


@functools.cache
def _kept(train: bool, cache: Path) -> Path | None:
    """Return the file with the digits that are drawn, made where there is none; None where none can be kept."""
    file, wanted = cache / f"drawn-{'train' if train else 'test'}", _DATA["drawn"]["train" if train else "test"]
    part = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with contextlib.suppress(FileNotFoundError), file.open("rb") as kept:
            if hashlib.file_digest(kept, functools.partial(hashlib.md5, usedforsecurity=False)).hexdigest() == wanted:
                return file
        cache.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as made:
            for each in draw(train):
                made.write(each.data)
        return part.replace(file)
    except OSError:
        return None
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def draw(train: bool) -> tuple[Array, Array]:
    """Draw a split of the stand-in: images uint8 [N, 28, 28], labels uint8 [N], classes equally frequent.

    The same bytes everywhere: PCG64's raw stream, which numpy promises to keep, and integer arithmetic.
    """
    count, bits = SIZES[train], np.random.PCG64(1 if train else 2)
    labels = (np.argsort(bits.random_raw(count), kind="stable") % 10).astype(np.uint8)
    hand = labels * np.int64(HANDS) + _uniform(bits, 0, HANDS - 1, count)
    moved = np.lib.stride_tricks.sliding_window_view(_hands(), (28, 28), axis=(1, 2))
    places = hand, _uniform(bits, 0, 2 * SHIFT, count), _uniform(bits, 0, 2 * SHIFT, count)
    images = np.empty((count, 28, 28), np.uint8)
    for first in range(0, count, PIECE):
        piece = slice(first, first + PIECE)
        ink = moved[tuple(place[piece] for place in places)]
        grain = bits.random_raw(len(ink) * 98).astype("<u8").view(np.uint8).reshape(ink.shape) >> 3
        images[piece] = np.maximum(ink, grain) - grain  # grain only takes ink away
    return images, labels


_in_memory = functools.lru_cache(maxsize=2)(draw)  # where no file can be kept


def _uniform(bits: np.random.PCG64, low: int, high: int, count: int = 1) -> Ints:
    return (bits.random_raw(count) >> np.uint64(33)).astype(np.int64) % (high - low + 1) + low


@functools.cache
def _hands() -> Array:
    """[10 * HANDS, 28 + 2 * SHIFT, 28 + 2 * SHIFT]: each digit as each hand writes it, in the middle."""
    bits, side = np.random.PCG64(0), 28 + 2 * SHIFT
    pixel = np.arange(side) * 64 + 32 - side * 32  # centres, from the middle, in 1/64 of a pixel
    hands = np.empty((10 * HANDS, side, side), np.uint8)
    for number in range(len(hands)):
        forms = _DATA["digits"][str(number // HANDS)]
        strokes = [np.array(stroke.split(), np.int64) for stroke in forms[number % len(forms)].split(",")]
        path = np.concatenate([_curve(stroke.reshape(-1, 2), bits) for stroke in strokes])
        path -= path.sum(axis=0) // len(path)  # as in MNIST the middle of the ink is the middle of the image
        width, height, slant = _uniform(bits, 70, 120), _uniform(bits, 80, 106), _uniform(bits, -15, 40)
        x, y = path[:, 0] * width // 100 - path[:, 1] * slant // 100, path[:, 1] * height // 100
        squared = (pixel[:, None, None] - y) ** 2 + (pixel[None, :, None] - x) ** 2
        distance = np.sqrt(squared.min(axis=2).astype(np.float64)).astype(np.int64)
        radius, steepness, darkest = _uniform(bits, 72, 168), _uniform(bits, 3, 5), _uniform(bits, 215, 255)
        hands[number] = np.clip((radius - distance) * steepness, 0, darkest)
    return hands


def _curve(points: Ints, bits: np.random.PCG64) -> Ints:
    """A Catmull-Rom curve through jittered points, [P, 2] in 1/64 of a pixel; the box is 20 pixels high."""
    same = np.append(False, (points[1:] == points[:-1]).all(axis=1))
    jitter = _uniform(bits, -6, 6, 2 * len(points)).reshape(-1, 2)
    jitter[same] = jitter[np.flatnonzero(same) - 1]  # a corner moves as one
    p = (points + jitter) * 20 * 64 // 100
    four = np.lib.stride_tricks.sliding_window_view(np.concatenate([p[:1], p, p[-1:]]), 4, axis=0)  # [P - 1, 2, 4]
    curve: Ints = np.einsum("pxk,tk->ptx", four, POWERS @ CATMULL_ROM).reshape(-1, 2) // (2 * 16**3)
    return curve
