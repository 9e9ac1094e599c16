"""A trace file: its bytes, plain or gzip, whole or cut; what a foreign file looks like; its events, as texts.

The file is not parsed as a whole: it is cut at the places where one event ends and the next begins, such as
`}, {"ph"`. Inside a JSON string every quote has a backslash before it, so that these bytes cannot occur in a valid
string; where an object inside an event looks so, the parser fails on the piece and `salvaged` joins the parts again.
Cutting is a search for bytes, some ten times as fast as parsing.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from loaderviz import words
from loaderviz.errors import LoadervizError

BLOCK = 1 << 20  # bytes read, and at most inflated, at once
HEAD = 1 << 16  # bytes by which a file is told from another kind
PACKED = 1 << 15  # compressed bytes given to zlib at once
BOMB_SIZE, BOMB_RATIO = 1 << 28, 200  # traces shrink by 10 to 50; what inflates 200-fold to over 256 MB is no trace
SQLITE = b"SQLite format 3\x00"
Event = dict[str, Any]
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
    (SQLITE, "an SQLite database"),
    (b"\x93NUMPY", "a numpy array"),
    (b"PAR1", "a Parquet table; give the trace that it was made of"),
    (b"\xff\xfe", "text in UTF-16; save it as UTF-8, such as with `iconv -f UTF-16 -t UTF-8`"),
    (b"\xfe\xff", "text in UTF-16; save it as UTF-8, such as with `iconv -f UTF-16 -t UTF-8`"),
    (b"\x80\x02", "a Python pickle, such as a torch.save or memory-snapshot file"),
    (b"\x80\x03", "a Python pickle"),
    (b"\x80\x04", "a Python pickle, such as a CUDA memory snapshot"),
    (b"\x80\x05", "a Python pickle"),
    (b"ustar", "a tar archive; unpack it first"),
)


_NSYS = "an Nsight Systems report; export it with `nsys export --type sqlite` and read the .sqlite file"
_BY_NAME = {
    ".nsys-rep": _NSYS,
    ".qdrep": _NSYS,
    ".xplane.pb": "an XPlane profile (JAX, TensorFlow, XLA), which is not read; give the trace.json.gz beside it",
}


class TraceError(LoadervizError, ValueError):
    """A file cannot be read as a trace: it is something else, holds nothing, or is too hostile to be read."""


class Source:
    """The inflated bytes of one file; `damage` says what is wrong with it, "its gzip data are cut after 20 MB"."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage = ""
        self.read = 0  # inflated bytes given out
        with path.open("rb") as file:
            self.compressed = file.read(2) == _GZIP

    def blocks(self) -> Iterator[bytes]:
        """Give the content in blocks of at most `BLOCK` bytes, up to the end or to the first damage."""
        with self.path.open("rb") as file:
            for block in self._inflated(file) if self.compressed else iter(lambda: file.read(BLOCK), b""):
                self.read += len(block)
                yield block

    def first(self) -> bytes:
        """Return the first bytes of the content."""
        found = b""
        for block in Source(self.path).blocks():
            found += block
            if len(found) >= HEAD:
                break
        return found[:HEAD]

    def _inflated(self, file: BinaryIO) -> Iterator[bytes]:
        taken = given = 0
        inflater = zlib.decompressobj(31)
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
                    rest = b""
                    with suppress(zlib.error):  # byte by byte what comes before the place that zlib refuses
                        for place in range(len(data)):
                            rest += before.decompress(data[place : place + 1])
                    self.damage = f"its gzip data are damaged after {words.size(given + len(rest))} ({problem})"
                    yield rest
                    return
                given += len(block)
                if given > BOMB_SIZE and given > BOMB_RATIO * taken:
                    raise TraceError(
                        f"{self.path} inflates more than {BOMB_RATIO}-fold, which no trace does; it looks like a gzip "
                        "bomb and is not read further"
                    )
                yield block
                data = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
        if not inflater.eof:
            self.damage = f"its gzip data are cut after {words.size(given)}"


def looks_like(head: bytes) -> str:
    """Say in a few words what a file that begins with `head` seems to be, for an error message."""
    text = head.decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    keys = list(dict.fromkeys(re.findall(r'"([A-Za-z_][\w ]{0,40})"\s*:', text)))
    binary, first = b"\x00" in head[:1024], text.splitlines()[0][:60] if text else ""
    magics = ((head.startswith(magic) or (magic == b"ustar" == head[257:262]), name) for magic, name in _FOREIGN)
    nsys = binary and (b"QuadDCommon" in head or b"NVIDIA" in head[:4096])
    html = text[:15].lower().startswith(("<!doctype", "<html", "<?xml", "<svg"))
    known = (
        (not head, "an empty file"),
        (not head.strip(), "a file of blanks"),
        *magics,
        (nsys, _NSYS),
        (
            '"traceEvents"' in text[:4096] and re.search(r'"traceEvents"\s*:\s*null', text) is not None,
            "a trace without events: its 'traceEvents' is null, so the profiler recorded nothing",
        ),
        (binary, "a binary file"),
        (html, "an HTML or XML page (was the download's error page saved instead of the file?)"),
        (not text.startswith(("{", "[")), f"a text file; its first line is {first!r}"),
        (
            {"nodes", "schema"} <= set(keys),
            "a PyTorch execution trace, which has no times of the GPU; export a torch.profiler trace beside it",
        ),
        (bool({"cells", "nbformat"} & set(keys)), "a Jupyter notebook"),
        (text.startswith("[") and not keys, "a JSON list without events"),
        (bool(keys), f"JSON without 'traceEvents' (it has {', '.join(keys[:4])})"),
    )
    return next((what for applies, what in known if applies), "JSON without 'traceEvents'")


# The events

CHUNK = 1 << 19  # bytes whose events are parsed together: few enough to stay in the cache
LONGEST = 1 << 26  # bytes without the end of an event, or before the first: no trace is like that
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST = re.compile(rb'\s*\{\s*"([^"\\]{1,40})"')
_DECODER = json.JSONDecoder(strict=False)


class Document:
    """The parts of one file: `head` and `tail` (the keys before and after the events) and the events between them.

    `damage` lists what is wrong with the file; `lost` counts events that could not be cut out of it.
    """

    def __init__(self, path: Path) -> None:
        self.source = Source(path)
        self.head: dict[str, Any] = {}
        self.tail: dict[str, Any] = {}
        self.damage: list[str] = []
        self.lost = 0
        self.key = b"ph"  # the key that each event begins with
        self._blocks = self.source.blocks()
        self._buffer = self._open()

    def _open(self) -> bytes:
        """Read up to the first event, and return what was read of the events."""
        text = b""
        name = self.source.path.name.lower().removesuffix(".gz")
        if known := next((what for suffix, what in _BY_NAME.items() if name.endswith(suffix)), ""):
            raise TraceError(f"{self.source.path} is no trace: it looks like {known}")
        for block in self._blocks:
            if not text and block.startswith(tuple(magic for magic, _ in _FOREIGN)):
                text = block  # an archive may hold the text of a trace as it is
                break
            text = (text + block).lstrip(b"\xef\xbb\xbf \t\r\n")
            if text[:1] == b"[" and text[1:100].lstrip()[:1] in (b"{", b"]"):
                return text[1:]
            if match := _EVENTS.search(text, max(0, len(text) - len(block) - 100)):
                self.head = _outer(text[: match.start()].decode("utf-8", "replace") + '"traceEvents": []}')
                return text[match.end() :]
            if len(text) > LONGEST or (text and text[:1] != b"{"):
                break
        why = f" ({self.source.damage})" if self.source.damage else ""
        shape = looks_like(text or b" " * (self.source.read > 0))
        raise TraceError(f"{self.source.path} is no trace: it looks like {shape}{why}")

    def chunks(self) -> Iterator[list[bytes]]:
        """Give the events, some thousand at once, each as its text after the opening `{"key"` and before its `}`."""
        buffer = self._buffer
        first = _FIRST.match(buffer) or _FIRST.match(buffer := buffer + next(self._blocks, b""))
        if first is None:
            yield from self._end(buffer)
            return
        border, begin = self._border(buffer, first.group(1)), first.end()
        if first.group(1) != self.key:  # the first events begin otherwise than the rest
            begin = buffer.index(border) + len(border)
            yield self._bodies(*salvaged([buffer[: begin - len(border)].decode("utf-8", "replace") + "}"]))
        yield from self._cut(buffer[begin:], border)

    def _bodies(self, events: list[Event], lost: int = 0) -> list[bytes]:
        """Return parsed events as the texts that `chunks` gives."""
        self.lost += lost
        key, opening = self.key.decode(), len(self.key) + 3
        return [json.dumps({key: event.get(key)} | event)[opening:-1].encode() for event in events]

    def _border(self, text: bytes, key: bytes) -> bytes:
        """Learn what stands between two events: `}, {"ph"` with the blanks and line breaks of this file."""
        for name in (b"ph", key):
            if match := re.search(rb'\}\s*,\s*\{\s*"' + re.escape(name) + b'"', text):
                self.key = name
                return match.group()
        self.key = key
        return b""

    def _cut(self, buffer: bytes, border: bytes) -> Iterator[list[bytes]]:
        for block in self._blocks:
            buffer += block
            if len(buffer) < CHUNK:
                continue
            if not border:
                border = self._border(buffer[-len(block) - 4_096 :], self.key)
            place = buffer.rfind(border) if border else -1
            if place >= 0:
                yield buffer[:place].split(border)
                buffer = buffer[place + len(border) :]
            elif len(buffer) > LONGEST:
                raise TraceError(
                    f"{self.source.path}: no event ends within {words.size(LONGEST)}; this is no trace of a profiler"
                )
        pieces = buffer.split(border) if border else [buffer]
        yield pieces[:-MERGE]  # the last may be parts of one event
        yield from self._end(b'{"' + self.key + b'"' + border.join(pieces[-MERGE:]))

    def _end(self, text: bytes) -> Iterator[list[bytes]]:
        """Give the last event, and keep what comes after the list of events."""
        if self.source.damage:
            self.damage.append(self.source.damage)
        rest, bodies = text.decode("utf-8", "replace").strip(), []
        opening = re.compile(rf'\{{\s*"{re.escape(self.key.decode())}"')
        while rest.startswith("{"):
            try:
                event, end = _DECODER.raw_decode(rest)
                match = opening.match(rest)  # as it stands: to parse and write it again would lose digits
                bodies += [rest[match.end() : end - 1].encode()] if match else self._bodies([event])
            except (ValueError, RecursionError):
                saved, end = self._broken_end(rest)
                bodies += self._bodies(saved)
            rest = rest[end:].lstrip(", \t\r\n")
        yield bodies
        if rest.startswith("]"):
            self.tail = _outer("{" + rest[1:].lstrip(", \t\r\n"))
        elif not self.damage and (self.head or rest):
            self.damage.append(f"it ends in the middle, after {words.size(self.source.read)}")

    def _broken_end(self, rest: str) -> tuple[list[Event], int]:
        """Return what can be saved of the last events, and where the list ends, or the text where it is cut."""
        match = re.search(r"\}\s*\](?:\s*,\s*\"\w+\"\s*:|\s*\}?\s*$)", rest)
        saved, lost = salvaged([rest[: match.start() + 1]] if match else [])
        self.lost += lost if match else 1
        if not match and not self.damage:
            self.damage.append(f"it ends in the middle of an event, after {words.size(self.source.read)}")
        return saved, match.start() + 1 if match else len(rest)


def _outer(text: str) -> dict[str, Any]:
    """Return the keys around the events; what does not parse is left out, for the events count."""
    try:
        found = _DECODER.raw_decode(text.lstrip("\ufeff \t\r\n"))[0]
    except (ValueError, RecursionError):
        found = {}
        for name, number in re.findall(r'"(\w+)"\s*:\s*(-?\d{1,19})\s*[,}]', text):
            found.setdefault(name, int(number))
    return found if isinstance(found, dict) else {}


# Damaged events, one by one: what the JSON reader refuses is repaired where that is safe, else given up and counted.
# Seen in published traces: backslashes of Windows paths, control characters, bare `N/A`, `nan` and `inf` where a number
# belongs.

_BAD_BACKSLASH = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_BARE_WORD = re.compile(r'(:\s*)(?:N/A|-?nan(?:\([^)"]*\))?|-?inf(?:inity)?|undefined)(?=\s*[,}\]])', re.I)
MERGE = 4  # pieces joined when an object inside an event looked like the border of two


def salvaged(texts: list[str], parse_float: Callable[[str], Any] = float) -> tuple[list[Event], int]:
    """Return the events of these texts, and how many are lost; parts of one that was cut inside are joined again."""
    saved: list[Event] = []
    lost = place = 0
    while place < len(texts):
        events, used = _one(texts, place, parse_float)
        saved += events
        lost += not events
        place += used
    return saved, lost


def _one(texts: list[str], place: int, parse_float: Callable[[str], Any]) -> tuple[list[Event], int]:
    """Return the event (or events) that a text holds, with those after it that are parts of it; and their number."""
    text = texts[place]
    joined = (
        "},".join(part[:-1] for part in texts[place : place + more]) + "}"
        for more in range(2, 1 + min(MERGE, len(texts) - place))
    )
    repaired = _BARE_WORD.sub(r"\1null", _BAD_BACKSLASH.sub(r"\\\\", text))
    for used, attempt in enumerate((text, repaired, *joined)):
        with suppress(ValueError, ArithmeticError, RecursionError):
            found = json.loads("[" + attempt + "]", strict=False, parse_float=parse_float)
            if all(isinstance(event, dict) for event in found):
                return found, max(1, used)
    return [], 1
