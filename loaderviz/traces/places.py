"""What `read` is given -> the files to read.

found("run/", stack)              # all traces in a folder, and in the folders in it
found("run/rank*.json.gz", stack) # those that fit a pattern
found("run.tar.gz", stack)        # the members of an archive, in a folder that `stack` removes
found(open(..., "rb"), stack)     # one file, wherever it is: also of fsspec
"""

from __future__ import annotations

import glob
import os
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from loaderviz import words
from loaderviz.errors import NoFileError
from loaderviz.files import BLOCK, BOMB_RATIO, BOMB_SIZE, LARGEST, Source, TooLargeError, own_folder, readable
from loaderviz.traces.source import TraceError

PathLike = str | os.PathLike[str]

_SUFFIXES = (".json", ".json.gz", ".gz", ".sqlite", ".db", ".json.tmp", ".zip", ".tar", ".tgz")
_ARCHIVED = tarfile.TarError, zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError, ValueError


def found(given: Any, stack: ExitStack) -> tuple[list[Path], bool]:
    """Return the files, and whether each was named: another one may be no trace.

    Copies are in folders that `stack` removes. Raises as `loaderviz.read` does.
    """
    if isinstance(given, (str, os.PathLike)):
        files, named = _at(given)
        return _unpacked(files, named, stack)
    if hasattr(given, "read") and not isinstance(given, zipfile.ZipFile):  # that one reads members, by name
        return _unpacked([_copied(given, stack)], True, stack)
    if not isinstance(given, Iterable) or isinstance(given, bytes):
        what = type(given).__name__
        raise TypeError(f"read() needs a path (of an archive, too), an open file or a list of them, got {what}")
    files, named = list[Path](), True
    for each in given:
        if isinstance(each, (str, os.PathLike)) and readable(each).is_dir():
            raise TraceError(f"{each} is a folder inside a list; give files, or the folder alone")
        more, alone = found(each, stack)
        files, named = files + more, named and alone
    if not files:
        raise TraceError("read() got an empty list; give at least one trace file")
    return files, named


def _at(path: PathLike) -> tuple[list[Path], bool]:
    pattern = os.fspath(path)
    if glob.has_magic(pattern) and not os.path.exists(pattern):
        fitting = [Path(each) for each in sorted(glob.glob(pattern, recursive=True)) if os.path.isfile(each)]
        if not fitting:
            raise NoFileError(f"no file fits the pattern {pattern}; see what is there, from {Path.cwd()}")
        return fitting, len(fitting) == 1
    place = readable(path)
    if place.is_dir():
        within = sorted(file for file in place.rglob("*") if file.name.lower().endswith(_SUFFIXES) and file.is_file())
        if not within:
            raise TraceError(f"the folder {path} has no trace in it: no file ends in {', '.join(_SUFFIXES[:4])}")
        return within, len(within) == 1
    return [place], True


def _unpacked(files: list[Path], named: bool, stack: ExitStack, depth: int = 3) -> tuple[list[Path], bool]:
    """Return these files with the members of archives in their places, and of archives in them."""
    unpacked = list[tuple[Path, list[Path]]]()
    for file in files if depth else ():
        members = list[Path]()
        try:
            members = _members(file, stack)
        except TraceError:
            if named:
                raise  # else it is left out, as any other file that is no trace
        unpacked.append((file, members))
    if not any(members for _, members in unpacked):
        return files, named
    return _unpacked([each for file, members in unpacked for each in members or [file]], False, stack, depth - 1)


def _copied(file: BinaryIO, stack: ExitStack) -> Path:
    """Return a copy of an open file, under its own name, if it has one."""
    name = PurePosixPath(str(getattr(file, "name", None) or "trace.json")).name
    path = own_folder(stack) / (name or "trace.json")
    with path.open("wb") as copy:
        while block := file.read(BLOCK):
            if isinstance(block, str):
                raise TypeError(f"{name} is open as text; open it for reading bytes: open(..., 'rb')")
            copy.write(block)
            _check_room(name, copy.tell())
        if not copy.tell() and hasattr(file, "tell") and file.tell():
            raise TraceError(f"{name} is read to its end already; call its seek(0) first")
    return path


def _members(path: Path, stack: ExitStack) -> list[Path]:
    """Return copies of the traces in an archive; nothing where the file is none."""
    head, source = b"", Source(path)
    with suppress(TooLargeError):
        head = source.first()
    opened: Iterator[tuple[str, int, Any]]
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")) and not source.compressed:
        opened = _of_zip(path)
    elif head[257:262] == b"ustar" or (path.name.lower().endswith(".tar") and head and not head.strip(b"\0")):
        opened = _of_tar(path)
    else:
        return []
    folder, files, total = own_folder(stack) / path.name, list[Path](), 0
    try:
        for name, packed, member in opened:
            place = folder / PurePosixPath(name).name
            place = folder / str(len(files)) / place.name if place.exists() else place
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("wb") as copy:
                while block := member.read(BLOCK):
                    copy.write(block)
                    total += len(block)
                    _check_room(path, total)
                    if packed and copy.tell() > max(BOMB_SIZE, BOMB_RATIO * packed):
                        raise TraceError(f"{path}: {name} inflates more than {BOMB_RATIO}-fold, which no trace does")
            files.append(place)
    except TraceError:
        raise
    except _ARCHIVED as problem:
        raise TraceError(f"{path} is a damaged archive ({problem}); unpack it, and read the traces in it") from problem
    if not files:
        raise TraceError(f"the archive {path} has no trace in it: no member ends in {', '.join(_SUFFIXES[:4])}")
    return files


def _of_zip(path: Path) -> Iterator[tuple[str, int, Any]]:
    """Give of each trace in it name, packed bytes, and the open member."""
    with zipfile.ZipFile(path) as archive:
        for info in sorted(archive.infolist(), key=lambda info: info.filename):
            if info.filename.lower().endswith(_SUFFIXES):
                with archive.open(info) as member:
                    yield info.filename, info.compress_size, member


def _of_tar(path: Path) -> Iterator[tuple[str, int, Any]]:
    with tarfile.open(path) as archive:
        newest, declared = dict[str, tarfile.TarInfo](), 0  # what is appended replaces what was there
        for info in archive:  # to go on to the next one inflates what lies between
            declared += info.size
            _check_room(path, declared)
            if declared > max(BOMB_SIZE, BOMB_RATIO * path.stat().st_size):
                raise TraceError(f"{path}: {info.name} inflates more than {BOMB_RATIO}-fold, which no trace does")
            newest[info.name] = info
        file = archive.fileobj
        if file is not None and (file.seek(archive.offset), file.read(512))[1] != bytes(512):
            raise tarfile.ReadError("it lacks its end")
        for name, info in newest.items():
            if (info.isfile() or info.islnk()) and name.lower().endswith(_SUFFIXES):
                yield name, 0, archive.extractfile(info)


def _check_room(name: str | Path, nbytes: int) -> None:
    if nbytes > 4 * LARGEST:
        raise TraceError(f"{name} has more than {words.size(4 * LARGEST)} of traces; give its files by themselves")
