"""The bytes of a trace file: plain or gzip, whole or cut, in blocks of bounded size; what a foreign file looks like.

source = Source(Path("trace.json.gz"))
for block in source.blocks():
    ...
source.damage        # "" or what is wrong with the file: "its gzip data are cut after 20,971,520 bytes"
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loaderviz import words
from loaderviz.errors import LoadervizError

BLOCK = 1 << 20  # bytes read, and at most inflated, at once
PACKED = 1 << 15  # compressed bytes given to zlib at once
BOMB_SIZE, BOMB_RATIO = 1 << 28, 200  # traces shrink by 10 to 50; what inflates 200-fold to over 256 MB is no trace
SQLITE = b"SQLite format 3\x00"
_GZIP = b"\x1f\x8b"

# How files begin that people hand in by mistake, and what to do instead.
_FOREIGN = (
    (b"PK\x03\x04", "a zip archive; unpack it and read the trace in it"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive; unpack it with `zstd -d` first"),
    (b"BZh", "a bzip2 archive; unpack it with `bunzip2` first"),
    (b"\xfd7zXZ\x00", "an xz archive; unpack it with `unxz` first"),
    (b"\x89PNG", "a PNG picture"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"%PDF", "a PDF document"),
    (b"\x7fELF", "a program or library"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x93NUMPY", "a numpy array"),
    (b"\x80\x02", "a Python pickle, such as a torch.save or memory-snapshot file"),
    (b"\x80\x03", "a Python pickle"),
    (b"\x80\x04", "a Python pickle, such as a CUDA memory snapshot"),
    (b"\x80\x05", "a Python pickle"),
    (b"ustar", "a tar archive; unpack it first"),
)


class TraceError(LoadervizError, ValueError):
    """A file cannot be read as a trace: it is something else, holds nothing, or is too hostile to be read."""


class Source:
    """The inflated bytes of one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage = ""
        self.read = 0  # inflated bytes given out
        with path.open("rb") as file:
            self.compressed = file.read(2) == _GZIP

    def blocks(self) -> Iterator[bytes]:
        """Give the content in blocks of at most `BLOCK` bytes, up to the end or to the first damage."""
        for block in self._inflated() if self.compressed else self._plain():
            self.read += len(block)
            yield block

    def first(self, size: int = 1 << 16) -> bytes:
        """Return the first bytes of the content."""
        blocks = Source(self.path).blocks()
        found = b""
        for block in blocks:
            found += block
            if len(found) >= size:
                break
        return found[:size]

    def _plain(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            while block := file.read(BLOCK):
                yield block

    def _inflated(self) -> Iterator[bytes]:
        taken = given = 0
        inflater = zlib.decompressobj(31)
        with self.path.open("rb") as file:
            while data := file.read(PACKED):
                taken += len(data)
                while data:
                    if inflater.eof:  # a file may hold several gzip members; zeros after the last are padding
                        data = data.lstrip(b"\x00")
                        if not data:
                            break
                        if not data.startswith(_GZIP[:1]):
                            self.damage = f"{len(data)} bytes after its gzip data are left out"
                            return
                        inflater = zlib.decompressobj(31)
                        continue
                    before = inflater.copy()
                    try:
                        block = inflater.decompress(data, BLOCK)
                    except zlib.error as problem:
                        rest = _up_to_damage(before, data)
                        self.damage = f"its gzip data are damaged after {words.size(given + len(rest))} ({problem})"
                        yield rest
                        return
                    given += len(block)
                    if given > BOMB_SIZE and given > BOMB_RATIO * taken:
                        raise TraceError(
                            f"{self.path} inflates more than {BOMB_RATIO}-fold, which no trace does; it looks like a "
                            "gzip bomb and is not read further"
                        )
                    yield block
                    data = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
        if not inflater.eof:
            self.damage = f"its gzip data are cut after {words.size(given)}"


def _up_to_damage(inflater: Any, data: bytes) -> bytes:
    """Inflate byte by byte what comes before the place that zlib refuses."""
    found = b""
    for place in range(len(data)):
        try:
            found += inflater.decompress(data[place : place + 1])
        except zlib.error:
            break
    return found


def looks_like(head: bytes) -> str:
    """Say in a few words what a file that begins with `head` seems to be, for an error message."""
    if not head.strip():
        return "a file of blanks" if head else "an empty file"
    for magic, name in _FOREIGN:
        if head.startswith(magic) or (magic == b"ustar" and head[257:262] == magic):
            return name
    return _binary(head) if b"\x00" in head[:1024] else _text(head.decode("utf-8", "replace").lstrip("\ufeff \t\r\n"))


def _binary(head: bytes) -> str:
    if head.startswith(SQLITE):
        return "an SQLite database"
    if b"QuadDCommon" in head or b"NVIDIA" in head[:4096]:
        return "an Nsight Systems report; export it with `nsys export --type sqlite` and read the .sqlite file"
    return "a binary file"


def _text(text: str) -> str:
    if text[:15].lower().startswith(("<!doctype", "<html", "<?xml", "<svg")):
        return "an HTML or XML page (was the download's error page saved instead of the file?)"
    if text.startswith(("{", "[")):
        return _json(text)
    return f"a text file; its first line is {text.splitlines()[0][:60]!r}"


def _json(text: str) -> str:
    keys = list(dict.fromkeys(re.findall(r'"([A-Za-z_][\w ]{0,40})"\s*:', text)))
    if {"nodes", "schema"} <= set(keys):
        return "a PyTorch execution trace, which has no times of the GPU; export a torch.profiler trace beside it"
    if {"cells", "nbformat"} & set(keys):
        return "a Jupyter notebook"
    if text.startswith("[") and not keys:
        return "a JSON list without events"
    shown = ", ".join(keys[:4])
    return f"JSON without 'traceEvents' (it has {shown})" if shown else "JSON without 'traceEvents'"
