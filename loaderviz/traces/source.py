"""A trace file: its events, as texts, and what stands around them.

The file is not parsed as a whole: it is cut at the places where one event ends and the next begins, such as
`}, {"ph"`. Inside a JSON string every quote has a backslash before it, so that these bytes cannot occur in a valid
string; where an object inside an event looks so, the parser fails on the piece and `salvaged` joins the parts again.
Cutting is a search for bytes, some ten times as fast as parsing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from loaderviz import words
from loaderviz.errors import LoadervizError
from loaderviz.files import FOREIGN, LONGEST, NSYS, Source, looks_like

Event = dict[str, Any]

_BY_NAME = {
    ".nsys-rep": NSYS,
    ".qdrep": NSYS,
    ".xplane.pb": "an XPlane profile (JAX, TensorFlow, XLA), which is not read; give the trace.json.gz beside it",
}


class TraceError(LoadervizError, ValueError):
    """A file cannot be read as a trace: it is something else, holds nothing, or is too hostile to be read."""


# The events

CHUNK = 1 << 19  # bytes whose events are parsed together: few enough to stay in the cache
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST = re.compile(rb'\s*\{\s*"([^"\\]{1,40})"')
_LATER = re.compile(rb"\}\s*," + _FIRST.pattern)
_ENTRY = re.compile(r"[^,\s]")
_LIST_END = re.compile(r'\}\s*+\](?:\s*+,\s*+"\w+"\s*+:|\s*+(?:\}\s*+)?$)')
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
            if not text and block.startswith(FOREIGN):
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
        shape = "a damaged gzip archive" if why and not text else looks_like(text or b" " * (self.source.read > 0))
        raise TraceError(f"{self.source.path} is no trace: it looks like {shape}{why}")

    def chunks(self) -> Iterator[list[bytes]]:
        """Give the events, some thousand at once, each as its text after the opening `{"key"` and before its `}`."""
        buffer = self._skipped(self._buffer)
        while not buffer.strip() and (block := next(self._blocks, b"")):
            buffer = self._skipped(block)
        first = _FIRST.match(buffer) or _FIRST.match(buffer := self._skipped(buffer + next(self._blocks, b"")))
        first = first or _LATER.search(buffer)  # the first event is empty, or damaged
        if first is None:
            yield from self._end(buffer)
            return
        border, begin = self._border(buffer, first.group(1)), first.end()
        if first.start() or first.group(1) != self.key:  # the first events begin otherwise than the rest
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

    def _skipped(self, buffer: bytes) -> bytes:
        """Return it without what comes before the first object; each entry of the list that is none is lost."""
        text, place = buffer.decode("latin-1"), 0  # a letter for each byte
        with suppress(ValueError, RecursionError):
            while (place := _next(text, place)) < len(text) and text[place] not in "{]":
                place = _DECODER.raw_decode(text, place)[1]
                self.lost += 1
        return buffer[place:]

    def _end(self, text: bytes) -> Iterator[list[bytes]]:
        """Give the last event, and keep what comes after the list of events."""
        if self.source.damage:
            self.damage.append(self.source.damage)
        rest, bodies = text.decode("utf-8", "replace"), []
        opening = re.compile(rf'\{{\s*"{re.escape(self.key.decode())}"')
        place = _next(rest, 0)
        while place < len(rest) and rest[place] != "]":
            try:
                event, end = _DECODER.raw_decode(rest, place)
                match = opening.match(rest, place)  # as it stands: to parse and write it again would lose digits
                if match:
                    bodies.append(rest[match.end() : end - 1].encode())
                elif isinstance(event, dict):
                    bodies += self._bodies([event])
                else:
                    self.lost += 1
            except (ValueError, RecursionError):
                saved, end = self._broken_end(rest, place)
                bodies += self._bodies(saved)
            place = _next(rest, end)
        yield bodies
        if place < len(rest):
            self.tail = _outer("{" + rest[_next(rest, place + 1) :])
        elif not self.damage and (self.head or rest.strip()):
            self.damage.append(f"it ends in the middle, after {words.size(self.source.read)}")

    def _broken_end(self, rest: str, place: int) -> tuple[list[Event], int]:
        """Return what can be saved of the last events, and where the list ends, or the text where it is cut."""
        match = _LIST_END.search(rest, place)
        saved, lost = salvaged([rest[place : match.start() + 1]] if match else [])
        self.lost += lost if match else 1
        if not match and not self.damage:
            self.damage.append(f"it ends in the middle of an event, after {words.size(self.source.read)}")
        return saved, match.start() + 1 if match else len(rest)


def _next(text: str, place: int) -> int:
    """Return where the next entry begins, or the list ends, behind blanks and commas."""
    found = _ENTRY.search(text, place)
    return found.start() if found else len(text)


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
_BARE_WORD = re.compile(r'(:\s*)(?:N/A|-?nan(?:\([^)"]{0,40}\))?|-?inf(?:inity)?|undefined)(?=\s*[,}\]])', re.I)
MERGE = 4  # pieces joined when an object inside an event looked like the border of two


def salvaged(texts: list[str], parse_float: Callable[[str], Any] = float) -> tuple[list[Event], int]:
    """Return the events of these texts, and how many are lost; parts of one that was cut inside are joined again."""
    saved: list[Event] = []
    lost = place = 0
    while place < len(texts):
        events, others, used = _one(texts, place, parse_float)
        saved += events
        lost += others
        place += used
    return saved, lost


def _one(texts: list[str], place: int, parse_float: Callable[[str], Any]) -> tuple[list[Event], int, int]:
    """Return the event (or events) that a text holds, with those after it that are parts of it; how many entries are
    no events; and the number of these texts."""
    text = texts[place]
    joined = (
        "},".join(part[:-1] for part in texts[place : place + more]) + "}"
        for more in range(2, 1 + min(MERGE, len(texts) - place))
    )
    repaired = _BARE_WORD.sub(r"\1null", _BAD_BACKSLASH.sub(r"\\\\", text))
    for used, attempt in enumerate((text, repaired, *joined)):
        with suppress(ValueError, ArithmeticError, RecursionError):
            found = json.loads("[" + attempt + "]", strict=False, parse_float=parse_float)
            events = [event for event in found if isinstance(event, dict)]
            if used < 2 or len(events) == len(found):
                return events, len(found) - len(events), max(1, used)
    return [], 1, 1
