"""Files that people keep are written beside their place and moved there: a full disk leaves the old one whole.

write("timelines.html", page)
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from loaderviz.errors import LoadervizError


class NoFolderError(LoadervizError, FileNotFoundError):
    """The folder of a file to be written does not exist, or a folder was named as the file."""


def writable(path: str | Path) -> Path:
    """Return `path` as a Path; raise `NoFolderError` unless a file can be made there, TypeError if it is no path."""
    if not isinstance(path, (str, Path)):
        raise TypeError(f"the file to write is {path!r}; give its path as a string or a pathlib.Path")
    path = Path(path)
    if not path.parent.is_dir():
        raise NoFolderError(f"cannot write {path}: the folder {path.parent} does not exist; make it first")
    if path.is_dir():
        raise NoFolderError(f"cannot write {path}: it is a folder; give the name of a file in it")
    return path


def write(path: str | Path, text: str) -> Path:
    """Write a text and return its path. Raises as `writable` does, and OSError; then the old file is as it was."""
    path = writable(path)
    if path.exists() and not path.is_file():  # /dev/stdout, a pipe
        path.write_text(text, encoding="utf-8")
        return path
    place = path.resolve()  # a link stays one
    beside = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        if place.exists():
            shutil.copymode(place, beside)
        beside.replace(place)
    finally:
        beside.unlink(missing_ok=True)
    return path
