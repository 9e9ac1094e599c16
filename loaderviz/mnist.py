"""MNIST for the lessons: the real digits where they can be had, else a drawn stand-in of the same shapes and sizes.

Both come as torchvision's `MNIST` data set. Which of the two it is, is never left open: `describe` says it, each data
set carries it as `source`, and the stand-in announces itself once in one line.

Where the digits are looked for, in this order:

1. the folder given as `root`;
2. the folder named by the environment variable ``LOADERVIZ_DATA``;
3. loaderviz's own cache (``LOADERVIZ_CACHE``, or the user's cache folder of the platform);
4. torchvision's download into that cache, for `AUTO_SECONDS` at most. ``LOADERVIZ_OFFLINE=1`` skips it, and a failure
   is remembered for a day, so that a user without a network waits once;
5. the stand-in, drawn into the cache in about two seconds.

A folder has torchvision's layout: ``<folder>/MNIST/raw/train-images-idx3-ubyte`` and so on, plain or ``.gz``.

Train and test digits belong together. From the places 2 to 5 both splits come from one place, chosen once per process:
where only the real test digits are found, both splits are drawn, and the line says why. A `root` is taken at its word:
the split that is there is served, the one that is not is an error.

Example:
    >>> from loaderviz import mnist
    >>> images, labels = mnist.tensors(train=True)
    >>> print(mnist.describe())
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from loaderviz import _mnist_cache, _mnist_files
from loaderviz._mnist_files import MnistError, has_split, split_name
from loaderviz._torchvision import import_torchvision

import_torchvision()
# A class of this module, not of torchvision: a DataLoader worker that starts from nothing (spawn, forkserver) imports
# this module to unpickle the data set, and so gets the import cure before torchvision is imported.
from torchvision.datasets import MNIST as _TorchvisionMNIST  # type: ignore[import-untyped, unused-ignore] # noqa: E402

__all__ = ["MNIST", "MnistError", "Source", "describe", "find", "load", "tensors"]

AUTO_SECONDS = 12.0
"""The most that ``download="auto"`` spends; the four files are 11 MB, importing torch in the child takes 2 to 4 s."""

ASKED_SECONDS = 300.0
"""The most that ``download=True`` spends."""

Download = bool | Literal["auto"]

_OTHER = {"train": "t10k", "t10k": "train"}
_SPOKEN = {"train": "train", "t10k": "test"}


@dataclass(frozen=True)
class Source:
    """Where digits come from: `str(source)` is the one line that says it."""

    real: bool
    """True for the real MNIST, False for the drawn stand-in."""
    root: Path
    """The folder, in torchvision's layout."""
    note: str = ""
    """Why it is this one, or what is missing; empty if there is nothing to say."""

    @property
    def name(self) -> str:
        """``real MNIST`` or ``drawn stand-in``."""
        return "real MNIST" if self.real else "drawn stand-in"

    def __str__(self) -> str:
        if self.real:
            return f"real MNIST in {self.root}" + (f" ({self.note})" if self.note else "")
        return (
            f"drawn stand-in for MNIST (computer-drawn digits, no handwriting) in {self.root}"
            + (f", because {self.note}" if self.note else "")
            + ". For the real one: set LOADERVIZ_DATA to a folder with MNIST/raw/*-ubyte(.gz) in it, or call "
            "loaderviz.mnist.load(download=True)."
        )


class MNIST(_TorchvisionMNIST):  # type: ignore[misc, unused-ignore]
    """torchvision's `MNIST` on files that were checked, plain or ``.gz``, where one split may be alone; see `load`.

    `data` is uint8 [N, 28, 28], `targets` int64 [N], an item is (PIL image or what `transform` makes of it, int).
    """

    def __init__(self, source: Source, train: bool = True, transform: Callable[..., Any] | None = None) -> None:
        self.source = source
        super().__init__(str(source.root), train=train, transform=transform, download=False)

    def _check_legacy_exist(self) -> bool:
        return False  # torchvision's old processed/*.pt files cannot be checked

    def _check_exists(self) -> bool:
        return True  # reading the files says more exactly what is missing

    def _load_data(self) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = _mnist_files.read_split(self.source.root, split_name(self.train))
        return torch.from_numpy(images), torch.from_numpy(labels).long()

    def extra_repr(self) -> str:
        """Torchvision's line about the split, and where the digits come from."""
        return f"{super().extra_repr()}\nSource: {self.source.name}"


def load(
    train: bool = True,
    root: str | os.PathLike[str] | None = None,
    transform: Callable[..., Any] | None = None,
    download: Download = "auto",
) -> MNIST:
    """MNIST as torchvision's data set: 60,000 train or 10,000 test digits, real or drawn (`.source` says which).

    Args:
        train: the train split, else the test split.
        root: a folder to look in first. Nothing in it is ever changed, save that ``download=True`` adds what it lacks.
        transform: applied to each PIL image, as in torchvision.
        download: ``"auto"`` tries for `AUTO_SECONDS` and falls back on the stand-in; False never uses the network;
            True tries again for up to `ASKED_SECONDS`, and no stand-in will do.

    Raises:
        MnistError: files in `root` or ``LOADERVIZ_DATA`` are damaged or not MNIST; `root` has only the other split;
            ``download=True`` did not succeed; the cache cannot be written to.
        ValueError: `download` is none of the three.

    Example:
        >>> dataset = load(train=False)
        >>> len(dataset), dataset.source.name
    """
    source = find(train, root, download)
    dataset = MNIST(source, train, transform)
    _announce(source)
    return dataset


def tensors(train: bool = True, root: str | os.PathLike[str] | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole split: images uint8 [N, 28, 28] and labels int64 [N], from where `load` would take them.

    Raises:
        MnistError: as `load`.
    """
    dataset = load(train, root)
    return dataset.data, dataset.targets


def describe(train: bool = True, root: str | os.PathLike[str] | None = None, download: Download = "auto") -> str:
    """One line on where `load` with these arguments takes its digits from: "real MNIST in …" or "drawn stand-in …".

    It fetches or draws them as `load` would, so that the line is true.

    Raises:
        MnistError, ValueError: as `load`.
    """
    return str(find(train, root, download))


def find(train: bool = True, root: str | os.PathLike[str] | None = None, download: Download = "auto") -> Source:
    """Choose where the digits come from, fetching or drawing them if need be; `load` without the loading.

    Raises:
        MnistError, ValueError: as `load`.
    """
    if download not in (True, False, "auto"):
        raise ValueError(f'download={download!r}: give "auto", True or False.')
    folder = None if root is None else Path(root).expanduser()
    if folder is not None:
        source = _in_root(folder, split_name(train), complete_it=download is True)
        if source is not None and download is True and not source.real:
            raise MnistError(f"root {folder} holds the drawn stand-in; for download=True give another root.")
        if source is not None:
            return source
    source = _in_common_places(download)
    if folder is None or source.real:
        return source
    return Source(False, source.root, f"root {folder} holds no MNIST files and {source.note}")


# --- a folder of the user's ------------------------------------------------------------------------------------------


def _in_root(folder: Path, split: str, complete_it: bool) -> Source | None:
    """The digits in a `root` that was given; None if it holds none at all."""
    if complete_it and not (has_split(folder, split) and has_split(folder, _OTHER[split])):
        _complete(folder)
    if has_split(folder, split):
        alone = "" if has_split(folder, _OTHER[split]) else f"the {_SPOKEN[split]} split alone"
        return Source(_kind(folder, split), folder, alone)
    lacking = [name for name in _mnist_files.file_names(split) if _mnist_files.locate(folder, name) is None]
    if len(lacking) == 2 and not has_split(folder, _OTHER[split]):
        return None
    raise MnistError(
        f"root {folder} holds only a part of MNIST: {' and '.join(lacking)} (or .gz) missing in MNIST/raw. The drawn "
        "stand-in is not mixed in. Add the missing files, or download=True; without root both splits match."
    )


def _kind(folder: Path, split: str) -> bool:
    """True if the split in the user's folder is real, False if it is our stand-in; anything else is an error."""
    labels = _mnist_files.read_labels(folder, split)
    if _mnist_files.is_real(split, labels):
        return True
    if (folder / _mnist_cache.MANIFEST).is_file():
        return False
    counts = torch.bincount(torch.from_numpy(labels), minlength=10).tolist()
    raise MnistError(
        f"{_mnist_files.raw_folder(folder)} holds files with MNIST's names, but not MNIST: its {_SPOKEN[split]} labels "
        f"0 to 9 occur {counts} times, expected {list(_mnist_files.REAL_CLASS_COUNTS[split])}. "
        "(Fashion-MNIST has the same file names.) Give another folder."
    )


def _complete(folder: Path) -> None:
    """Download MNIST and put what `folder` lacks into it; what is there stays as it is."""
    downloaded = _downloaded_on_demand()
    for split in _mnist_files.SIZES:
        for name in _mnist_files.file_names(split):
            if _mnist_files.locate(folder, name) is None:
                content = (_mnist_files.raw_folder(downloaded) / name).read_bytes()
                try:
                    _mnist_files.write_atomically(_mnist_files.raw_folder(folder) / name, content)
                except OSError as error:
                    raise MnistError(f"{name} cannot be written to root {folder} ({error}). Give another.") from error


# --- LOADERVIZ_DATA, the cache, the download, the stand-in -----------------------------------------------------------

_chosen: dict[tuple[str, Path], Source] = {}
"""The choice of this process for each setting of the environment, so that train and test come from one place."""

_announced: set[Source] = set()


def _in_common_places(download: Download) -> Source:
    """The places that need no `root`. The first choice holds for the process, unless ``download=True`` asks again."""
    setting = (os.environ.get("LOADERVIZ_DATA", ""), _mnist_cache.cache_folder())
    known = _chosen.get(setting)
    if known is None or (download is True and not known.real):
        known = _chosen[setting] = _choose(setting[0], download)
    elif not known.real:
        _mnist_cache.ensure_drawn()  # somebody may have emptied the cache meanwhile
    return known


def _choose(data: str, download: Download) -> Source:
    here, why_not_here = _in_data_folder(data)
    if here is not None and (here.real or download is not True):
        return here
    if download is True:
        return Source(True, _downloaded_on_demand())
    if _mnist_cache.have_real():
        return Source(True, _mnist_cache.real_root())
    reason = _why_not_downloaded(download)
    if reason is None:
        return Source(True, _mnist_cache.real_root())
    return Source(False, _mnist_cache.ensure_drawn(), " and ".join(filter(None, [why_not_here, reason])))


def _in_data_folder(data: str) -> tuple[Source | None, str]:
    """The digits in ``LOADERVIZ_DATA`` if both splits are there, else why not."""
    if not data:
        return None, ""
    folder = Path(data).expanduser()
    there = [split for split in _mnist_files.SIZES if has_split(folder, split)]
    if not there:
        return None, f"LOADERVIZ_DATA={data} holds no MNIST files"
    kinds = {_kind(folder, split) for split in there}
    if len(there) == 1:
        present, absent = _SPOKEN[there[0]], _SPOKEN[_OTHER[there[0]]]
        return (
            None,
            f"LOADERVIZ_DATA={data} has the {present} split without the {absent} split that belongs to it",
        )
    if len(kinds) == 2:
        return None, f"LOADERVIZ_DATA={data} has one real and one drawn split"
    return Source(kinds.pop(), folder), ""


def _why_not_downloaded(download: Download) -> str | None:
    """Try the download if that is wanted; None if it succeeded."""
    if download is False:
        return "download=False"
    if _offline():
        return "LOADERVIZ_OFFLINE is set"
    earlier = _mnist_cache.remembered_failure()
    if earlier is not None:
        return f"the download failed within the last day ({earlier})"
    failure = _fetch(AUTO_SECONDS)
    return None if failure is None else f"the download failed ({failure})"


def _downloaded_on_demand() -> Path:
    """The cache's root of the real MNIST for ``download=True``."""
    if not _mnist_cache.have_real():
        if _offline():
            raise MnistError("download=True, but LOADERVIZ_OFFLINE is set. Unset it, or drop download=True.")
        failure = _fetch(ASKED_SECONDS)
        if failure is not None:
            raise MnistError(
                f"MNIST could not be downloaded: {failure}. Try again with a network, or copy the four files into "
                "<folder>/MNIST/raw and set LOADERVIZ_DATA to the folder, or drop download=True for a drawn stand-in."
            )
    return _mnist_cache.real_root()


def _fetch(seconds: float) -> str | None:
    return _mnist_cache.fetch_real(list(_TorchvisionMNIST.mirrors), list(_TorchvisionMNIST.resources), seconds)


def _offline() -> bool:
    return os.environ.get("LOADERVIZ_OFFLINE", "").strip().lower() not in ("", "0", "false", "no")


def _announce(source: Source) -> None:
    """Say once per process what is used, unless it is simply the real MNIST."""
    if (not source.real or source.note) and source not in _announced:
        _announced.add(source)
        print(f"loaderviz: {source}")
