"""Where exports are written: the check that comes before the work, with a message that helps."""

from __future__ import annotations

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
