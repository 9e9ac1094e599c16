"""MNIST's files: their names, the IDX format, and the checks that a split is whole and is what it says it is.

IDX: four bytes (0, 0, type, number of dimensions; type 8 is uint8), each dimension as a big-endian uint32, then the
elements. A folder has torchvision's layout, ``<root>/MNIST/raw/train-images-idx3-ubyte`` and so on, each file plain or
as ``.gz``.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import secrets
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loaderviz.errors import LoadervizError

Bytes = NDArray[np.uint8]
Split = tuple[Bytes, Bytes]
"""Images uint8 [N, 28, 28] and labels uint8 [N]."""

SIZES = {"train": 60_000, "t10k": 10_000}
"""Digits in a split, under the name that its files begin with."""

REAL_CLASS_COUNTS = {
    "train": (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
    "t10k": (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
}
"""How often each digit occurs in the real MNIST. Its look-alikes with the same file names (Fashion-MNIST, the drawn
stand-in) have 6,000 and 1,000 of each, so the counts tell them apart."""


class MnistError(LoadervizError, RuntimeError):
    """The MNIST files are missing, damaged or not MNIST; the message names the file and what to do next."""


def split_name(train: bool) -> str:
    """``train`` or ``t10k``: how the split's files begin."""
    return "train" if train else "t10k"


def raw_folder(root: Path) -> Path:
    """Where torchvision keeps the files below `root`."""
    return root / "MNIST" / "raw"


def file_names(split: str) -> tuple[str, str]:
    """The names of a split's image file and label file, without ``.gz``."""
    return f"{split}-images-idx3-ubyte", f"{split}-labels-idx1-ubyte"


def locate(root: Path, name: str) -> Path | None:
    """The file as it lies below `root`, plain before ``.gz``; None if there is neither."""
    plain = raw_folder(root) / name
    return next((path for path in (plain, plain.with_name(name + ".gz")) if path.is_file()), None)


def has_split(root: Path, split: str) -> bool:
    """Whether both files of the split are there (not whether they are whole)."""
    return all(locate(root, name) is not None for name in file_names(split))


def read_split(root: Path, split: str) -> Split:
    """Read and check a split: images uint8 [N, 28, 28] and writable, labels uint8 [N].

    Raises:
        MnistError: a file is missing, cut short, damaged, or has another shape than MNIST's.
    """
    count = SIZES[split]
    image_name = file_names(split)[0]
    labels = read_labels(root, split)
    images = _read_idx(_present(root, image_name), (count, 28, 28))
    # A download that was cut short can have its full length and end in zeros; no digit of MNIST is blank.
    blank = ~images.reshape(count, -1).any(axis=1)
    if blank.any():
        raise MnistError(
            f"{locate(root, image_name)}: image {int(np.argmax(blank))} is blank; the file is only half written. "
            "Replace it with a fresh copy."
        )
    return images, labels


def read_labels(root: Path, split: str) -> Bytes:
    """Read and check the labels of a split alone: uint8 [N]. It is quick, and enough for `is_real`.

    Raises:
        MnistError: as `read_split`.
    """
    name = file_names(split)[1]
    labels = _read_idx(_present(root, name), (SIZES[split],))
    if int(labels.max()) > 9:
        where = int(np.argmax(labels > 9))
        raise MnistError(
            f"{locate(root, name)}: label {labels[where]} at position {where} is no digit; the file is damaged. "
            "Replace it with a fresh copy."
        )
    return labels


def is_real(split: str, labels: Bytes) -> bool:
    """Whether the labels occur as often as in the real MNIST."""
    return tuple(np.bincount(labels, minlength=10).tolist()) == REAL_CLASS_COUNTS[split]


def _present(root: Path, name: str) -> Path:
    path = locate(root, name)
    if path is None:
        raise MnistError(f"{raw_folder(root) / name}(.gz) is missing. Put the file there, or give another root.")
    return path


def _read_idx(path: Path, shape: tuple[int, ...]) -> Bytes:
    """The elements of an IDX file of uint8 that must have this shape."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:  # gzip reports a wrong check sum as an OSError
        raise MnistError(f"{path} cannot be read ({error}). Replace it with a fresh copy.") from error
    header = _idx_header(shape)
    if content[: len(header)] != header:
        raise MnistError(
            f"{path} does not begin like an IDX file of uint8 {list(shape)}: its first bytes are "
            f"{content[: len(header)].hex(' ') or 'none'}, expected {header.hex(' ')}. Replace it with a fresh copy."
        )
    expected = len(header) + int(np.prod(shape))
    if len(content) != expected:
        raise MnistError(
            f"{path} has {len(content):,} bytes of content, expected {expected:,}: it is cut short or damaged. "
            "Replace it with a fresh copy."
        )
    # A bytearray, since torch wants memory that it may write to.
    return np.frombuffer(bytearray(content), np.uint8, offset=len(header)).reshape(shape)


def _idx_header(shape: tuple[int, ...]) -> bytes:
    return struct.pack(f">4B{len(shape)}I", 0, 0, 8, len(shape), *shape)


def write_idx(path: Path, array: Bytes) -> int:
    """Write an array of uint8 as an IDX file, all or nothing (see `write_atomically`); return its CRC-32."""
    content = _idx_header(array.shape) + array.tobytes()
    write_atomically(path, content)
    return zlib.crc32(content)


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the place and rename into it: a reader or a second writer never sees half a file.

    Raises:
        OSError: the folder cannot be written to.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = part_name(path)
    try:
        with open(part, "xb") as file:
            file.write(content)
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def part_name(path: Path) -> Path:
    """A name beside `path` that no other process uses. (`tempfile` would shut other users out of a shared cache.)"""
    return path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
