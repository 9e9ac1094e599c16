"""Files: where one is read or written; its bytes, plain or gzip, whole or cut; what a foreign one looks like.

And how much of one is read: what has more is no recording of a program, and would take hours and gigabytes. A file that
people keep is written beside its place, then moved there: a full disk leaves the old one.
"""

from __future__ import annotations

import atexit
import errno
import io
import os
import re
import shutil
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO

from loaderviz import words
from loaderviz.errors import LoadervizError, NoFileError, NoFolderError, NotWritableError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

LIMITS = {
    "event": 50_000_000,  # 2.5 GB of columns
    "character": 1 << 26,  # of all different names
    "lane": 100_000,
    "device": 4_096,
    "process": 4_096,  # of one file
    "mark": 100_000,
    "list": 1 << 21,  # of JSON, its objects too: some MB of them take gigabytes
}
LONGEST = 1 << 26  # bytes without the end of an event, or before the first: no trace is like that
BOMB_SIZE, BOMB_RATIO = 1 << 24, 200  # traces shrink by 10 to 50; what inflates 200-fold to over 16 MB is none
LARGEST = 1 << 30  # bytes that a saved timeline inflates to; one that is plain may have four times as many
BLOCK = 1 << 20  # bytes read, and at most inflated, at once
_PACKED = 1 << 15  # compressed bytes given to zlib at once
_HEAD = 1 << 16  # bytes by which a file is told from another kind
_GZIP, _ANY = b"\x1f\x8b", 47  # of zlib: with the head of either
SQLITE = b"SQLite format 3\x00"


class TooLargeError(LoadervizError, ValueError):
    """A file holds more than any recording does, or inflates to more than any file does."""


def check_counts(**counts: int) -> None:
    """Raise `TooLargeError` if one of these is beyond its limit.

    >>> check_counts(lane=200_000)
    Traceback (most recent call last):
    loaderviz.files.TooLargeError: it has 200,000 lanes, and at most 100,000 are read
    """
    for noun, count in counts.items():
        if count > LIMITS[noun]:
            raise TooLargeError(f"it has {words.count(count, noun)}, and at most {LIMITS[noun]:,} are read")


# Places


def readable(path: str | os.PathLike[str]) -> Path:
    """Return `path` as a Path; raise `NoFileError` if there is nothing."""
    if not str(path):
        raise NoFileError(f"the path is empty; give one from {Path.cwd()}, or a whole one")
    if "://" in str(path):
        raise NoFileError(
            f"{path} is an address; give the open file: with fsspec.open({str(path)!r}) as file: read(file)"
        )
    if not (path := Path(path)).exists():
        there = "" if path.parent.is_dir() else f", nor a folder {path.parent}"
        raise NoFileError(f"there is no file {path}{there}; give a path from {Path.cwd()}, or a whole one")
    return path


def writable(path: str | Path) -> Path:
    """Return `path` as a Path, once an empty file could be made there, or beside the one that is there.

    Raises `NoFolderError` without its folder, `NotWritableError` where it cannot be, TypeError if it is no path.
    """
    if not isinstance(path, (str, Path)):
        raise TypeError(f"the file to write is {path!r}; give its path as a string or a pathlib.Path")
    path = Path(path)
    with naming(path):
        if not path.parent.is_dir():
            raise NoFolderError(f"cannot write {path}: the folder {path.parent} does not exist; make it first")
        if path.is_dir():
            raise NoFolderError(f"cannot write {path}: it is a folder; give the name of a file in it")
        if _is_special(path):
            if not os.access(path, os.W_OK):  # a pipe is not opened: that waits for its reader
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        else:
            probe = _beside(path) if path.exists() else path.resolve()
            probe.open("xb").close()
            probe.unlink()
    return path


def write(path: str | Path, text: str | bytes) -> Path:
    """Write a text and return its path. Raises as `writable` does; then the old file is as it was."""
    path = writable(path)
    data = text if isinstance(text, bytes) else text.encode("utf-8", "backslashreplace")
    with naming(path):
        if _is_special(path):
            path.write_bytes(data)
            return path
        place, beside = path.resolve(), _beside(path)
        try:
            beside.write_bytes(data)
            if place.exists():
                shutil.copymode(place, beside)
            beside.replace(place)
        finally:
            beside.unlink(missing_ok=True)
    return path


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let errors of the system name the file that was asked for."""
    try:
        yield
    except LoadervizError:
        raise
    except (OSError, ValueError) as problem:
        why = getattr(problem, "strerror", None) or problem
        raise NotWritableError(f"cannot write {path}: {why}; make room or name another file") from problem


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file()  # /dev/stdout, a pipe


def _beside(path: Path) -> Path:
    """Return the file that is written first, and then moved to the place of `path`; a link stays one."""
    return path.resolve().with_name(f".loaderviz.{os.getpid()}.{threading.get_ident()}")


# Temporary folders


_IN_USE, _NEW = "in use", 60  # a file that its process has locked; s in which it does so


def own_folder(stack: ExitStack) -> Path:
    """Return a new temporary folder, which goes when `stack` is closed, or the process ends.

    Those that processes left which were killed are removed first. Raises OSError where none can be made.
    """
    for left in Path(tempfile.gettempdir()).glob(f"loaderviz-*/{_IN_USE}"):
        with suppress(OSError), left.open("rb+") as file:
            if time.time() - left.stat().st_mtime > _NEW:
                _lock(file)
                shutil.rmtree(left.parent, ignore_errors=True)
    folder, process = Path(tempfile.mkdtemp(prefix="loaderviz-")), os.getpid()

    def remove() -> None:
        if os.getpid() == process:  # and not a fork that ends
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():  # on Windows a file stays that a worker writes to at this moment
                atexit.unregister(remove)

    atexit.register(remove)
    stack.callback(remove)
    mine = stack.enter_context((folder / _IN_USE).open("wb"))
    with suppress(OSError):
        _lock(mine)
    return folder


def _lock(file: IO[bytes]) -> None:
    """Raise OSError if another process has locked the file; its forks hold the lock, too."""
    if sys.platform == "win32":
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


# Bytes


class Source:
    """The inflated bytes of one file; `damage` says what is wrong with it, "its gzip data are cut after 20 MB".

    `packed` are bytes that zlib made, which stand for those of a file.
    """

    def __init__(self, path: Path, packed: bytes = b"") -> None:
        self.path, self.packed = path, packed
        self.damage = ""
        self.read = 0  # inflated bytes given out
        self._checked = 0, 0
        with self._opened() as file:
            self.compressed = bool(packed) or file.read(2) == _GZIP

    def _opened(self) -> BinaryIO:
        if not self.packed and not self.path.is_file():
            raise NoFileError(f"{self.path} is a folder, a pipe or a device; give a file")
        return io.BytesIO(self.packed) if self.packed else self.path.open("rb")

    def blocks(self) -> Iterator[bytes]:
        """Give the content in blocks of at most `BLOCK` bytes, up to the end or to the first damage."""
        with self._opened() as file:
            for block in self._inflated(file) if self.compressed else iter(lambda: file.read(BLOCK), b""):
                self.read += len(block)
                yield block

    def first(self) -> bytes:
        """Return the first bytes of the content."""
        found = b""
        for block in Source(self.path).blocks():
            found += block
            if len(found) >= _HEAD:
                break
        return found[:_HEAD]

    def whole(self) -> bytes:
        """Return all of the content; raise `TooLargeError` for more than `LARGEST` bytes."""
        content, most = bytearray(), LARGEST if self.compressed else 4 * LARGEST
        if not self.compressed and self.path.stat().st_size > most:
            raise TooLargeError(f"it has more than {words.size(most)}")
        for block in self.blocks():
            content += block
            if len(content) > most:
                raise TooLargeError(f"it inflates to more than {words.size(most)}")
        return bytes(content)

    def _inflated(self, file: BinaryIO) -> Iterator[bytes]:
        given = 0
        inflater = zlib.decompressobj(_ANY)
        while data := file.read(_PACKED):
            end = file.tell()
            while data:
                if inflater.eof:  # a file may hold several gzip members; zeros after the last are padding
                    data = data.lstrip(b"\x00")
                    if not data:
                        break
                    if not data.startswith(_GZIP[:1]):
                        self.damage = f"{len(data)} bytes after its gzip data are left out"
                        return
                    inflater = zlib.decompressobj(_ANY)
                    continue
                copy = inflater.copy()
                try:
                    block = inflater.decompress(data, BLOCK)
                except zlib.error:
                    pieces = list[bytes]()  # byte by byte what comes before the place that zlib refuses
                    with suppress(zlib.error):
                        pieces.extend(copy.decompress(data[place : place + 1]) for place in range(len(data)))
                    rest = b"".join(pieces)
                    self.damage = f"its gzip data are damaged after {words.size(given + len(rest))}"
                    yield rest
                    return
                data = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
                given += len(block)
                self._check_ratio(given, end - len(data))
                if block:
                    yield block
        if not inflater.eof:
            self.damage = f"its gzip data are cut after {words.size(given)}"

    def _check_ratio(self, given: int, taken: int) -> None:
        """Raise `TooLargeError` if the last of the `given` bytes were made of far too few of those `taken`."""
        more, of = given - self._checked[0], taken - self._checked[1]
        if more > BOMB_SIZE:
            self._checked = given, taken
            if more > BOMB_RATIO * of:
                raise TooLargeError(
                    f"it inflates more than {BOMB_RATIO}-fold, which no trace does; it looks like a gzip bomb and is "
                    "not read further"
                )


# What a file of another kind looks like


NSYS = "an Nsight Systems report; export it with `nsys export --type sqlite` and read the .sqlite file"
# How files begin that people hand in by mistake, and what to do instead.
_FOREIGN = {
    _GZIP: "a gzip archive inside another; unpack it once with `gunzip` first",
    b"PK\x03\x04": "a zip archive; unpack it and read the trace in it",
    b"\x28\xb5\x2f\xfd": "a zstd archive; unpack it with `zstd -d` first",
    b"BZh": "a bzip2 archive; unpack it with `bunzip2` first",
    b"\xfd7zXZ\x00": "an xz archive; unpack it with `unxz` first",
    b'\x04"M\x18': "an lz4 archive; unpack it with `lz4 -d` first",
    b"7z\xbc\xaf": "a 7-Zip archive; unpack it first",
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"%PDF": "a PDF document",
    b"\x7fELF": "a program or library",
    b"\x89HDF": "an HDF5 file",
    SQLITE: "an SQLite database",
    b"\x93NUMPY": "a numpy array",
    b"PAR1": "a Parquet table; give the trace that it was made of",
    b"\xff\xfe": "text in UTF-16; save it as UTF-8, such as with `iconv -f UTF-16 -t UTF-8`",
    b"\xfe\xff": "text in UTF-16; save it as UTF-8, such as with `iconv -f UTF-16 -t UTF-8`",
    b"\x80\x02": "a Python pickle, such as a torch.save or memory-snapshot file",
    b"\x80\x03": "a Python pickle",
    b"\x80\x04": "a Python pickle, such as a CUDA memory snapshot",
    b"\x80\x05": "a Python pickle",
}
FOREIGN = tuple(_FOREIGN)
_EVENTS = re.compile(r'"traceEvents"\s*:\s*([^\s\[])')
_NO_LIST = {"{": "an object", '"': "a text", "t": "true", "f": "false"}


def looks_like(head: bytes) -> str:
    """Say in a few words what a file that begins with `head` seems to be, for an error message."""
    head = head[:_HEAD]
    text = head.decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    keys = list(dict.fromkeys(re.findall(r'"([A-Za-z_][\w ]{0,40})"\s*:', text)))
    binary, first = b"\x00" in head[:1024], text.partition("\n")[0].strip()[:60]
    nsys = binary and (b"QuadDCommon" in head or b"NVIDIA" in head[:4096])
    html = text[:15].lower().startswith(("<!doctype", "<html", "<?xml", "<svg"))
    events = _EVENTS.findall(text[:4096])[:1]  # by the first letter of what stands in the place of their list
    instead = next((_NO_LIST.get(letter, "a number") for letter in events), "")
    known = (
        (not head, "an empty file"),
        (not head.strip(), "a file of blanks"),
        *((head.startswith(magic), name) for magic, name in _FOREIGN.items()),
        (head[257:262] == b"ustar", "a tar archive; unpack it first"),
        (nsys, NSYS),
        (binary, "a binary file"),
        (html, "an HTML or XML page (was the download's error page saved instead of the file?)"),
        (not text.startswith(("{", "[")), f"a text file; its first line is {first!r}"),
        (events == ["n"], "a trace without events: its 'traceEvents' is null, so the profiler recorded nothing"),
        (events != [], f"JSON whose 'traceEvents' is {instead}, where a list of events belongs"),
        (
            {"nodes", "schema"} <= set(keys),
            "a PyTorch execution trace, which has no times of the GPU; export a torch.profiler trace beside it",
        ),
        (bool({"cells", "nbformat"} & set(keys)), "a Jupyter notebook"),
        (text.startswith("[") and not keys, "a JSON list without events"),
        (bool(keys), f"JSON without 'traceEvents' (it has {', '.join(keys[:4])})"),
    )
    return next((what for applies, what in known if applies), "JSON without 'traceEvents'")
