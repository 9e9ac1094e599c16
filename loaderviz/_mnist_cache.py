"""Our own folder of digits: the downloaded MNIST, the drawn stand-in, and the memory of a download that failed.

Whatever lies here is ours to replace. Both kinds are put in place by renaming, and the stand-in's bytes are always the
same, so any number of processes may do it at once without a lock: the last one wins with an equal file.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

from loaderviz import _mnist_drawn, _mnist_files
from loaderviz._mnist_download import download
from loaderviz._mnist_files import MnistError, file_names, raw_folder, read_split, write_atomically, write_idx

REMEMBER_SECONDS = 24 * 3600
"""How long a failed download is not tried again, so that a user without a network waits once a day."""

STALE_SECONDS = 24 * 3600
"""From this age a temporary file can only be what a killed process left."""

MANIFEST = "stand-in.json"


def cache_folder() -> Path:
    """``LOADERVIZ_CACHE``, or ``loaderviz`` in the user's cache folder on this platform."""
    given = os.environ.get("LOADERVIZ_CACHE")
    if given:
        return Path(given).expanduser()
    try:
        home = Path.home()
    except RuntimeError:  # a container's user may have none
        home = Path(tempfile.gettempdir())
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "loaderviz" / "Cache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "loaderviz"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "loaderviz"


def drawn_root() -> Path:
    """The root of the stand-in, whether it has been drawn yet or not."""
    return cache_folder() / f"mnist-drawn-{_mnist_drawn.DRAWING_VERSION}"


def real_root() -> Path:
    """The root of the downloaded MNIST, whether it is there or not."""
    return cache_folder() / "mnist"


def have_real() -> bool:
    """Whether a whole, real MNIST lies in the cache; a damaged one is removed."""
    root = real_root()
    if not root.exists():
        return False
    if _is_whole_and_real(root):
        return True
    shutil.rmtree(root, ignore_errors=True)
    return False


def _is_whole_and_real(root: Path) -> bool:
    try:
        return all(_mnist_files.is_real(split, read_split(root, split)[1]) for split in _mnist_files.SIZES)
    except MnistError:
        return False


def fetch_real(mirrors: list[str], resources: list[tuple[str, str]], seconds: float) -> str | None:
    """Download MNIST into the cache; return None, or why it did not work (which is remembered for a day)."""
    workplace = _mnist_files.part_name(real_root())
    try:
        workplace.mkdir(parents=True)
        reason = download(workplace, mirrors, resources, seconds)
        if reason is None and not _is_whole_and_real(workplace):
            reason = "the downloaded files are not whole"
        if reason is None:
            _put_in_place(workplace)
    except OSError as error:
        return f"the cache folder {cache_folder()} cannot be written to ({error})"
    finally:
        shutil.rmtree(workplace, ignore_errors=True)
    _remember(reason)
    return reason


def _put_in_place(workplace: Path) -> None:
    """Make the downloaded folder the real root."""
    try:
        os.rename(workplace, real_root())
    except OSError:
        # A folder cannot be renamed onto a full one. Nor does it need to be if another process was faster.
        if not have_real():
            raise


def _remember(reason: str | None) -> None:
    """Note why the download failed, or forget it. Best effort: without the note the next process tries again."""
    with contextlib.suppress(OSError):
        if reason is None:
            _failure_file().unlink(missing_ok=True)
        else:
            write_atomically(_failure_file(), json.dumps({"time": time.time(), "reason": reason}).encode())


def remembered_failure() -> str | None:
    """Why the last download failed, if that was less than a day ago."""
    try:
        record = json.loads(_failure_file().read_bytes())
        age = time.time() - float(record["time"])
        return str(record["reason"]) if 0 <= age < REMEMBER_SECONDS else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _failure_file() -> Path:
    return cache_folder() / "download-failed.json"


def ensure_drawn() -> Path:
    """The stand-in's root, drawn now if it is not there whole (about two seconds, 55 MB).

    Raises:
        MnistError: the cache folder cannot be written to.
    """
    root = drawn_root()
    if _drawn_is_whole(root):
        return root
    with _writing():
        sums = {}
        for split in _mnist_files.SIZES:
            arrays = _mnist_drawn.draw(train=split == "train")
            for name, array in zip(file_names(split), arrays, strict=True):
                sums[name] = write_idx(raw_folder(root) / name, array)
        write_atomically(root / MANIFEST, json.dumps(sums, indent=1).encode())
        _remove_stale()
    return root


def _drawn_is_whole(root: Path) -> bool:
    """Whether the four files have the check sums (CRC-32) that were noted when they were drawn."""
    try:
        sums = json.loads((root / MANIFEST).read_bytes())
        names = [name for split in _mnist_files.SIZES for name in file_names(split)]
        return all(zlib.crc32((raw_folder(root) / name).read_bytes()) == sums[name] for name in names)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _remove_stale() -> None:
    """Remove what killed processes left; whatever is younger may still be in use."""
    oldest = time.time() - STALE_SECONDS
    for path in [*cache_folder().glob("*.part"), *raw_folder(drawn_root()).glob("*.part")]:
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < oldest:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MnistError(
            f"The cache folder {cache_folder()} cannot be written to ({error}). "
            "Set LOADERVIZ_CACHE to a folder with 60 MB of room that you can write to."
        ) from error
