"""loaderviz's own Chrome trace export, read back into an equal Timeline; see `loaderviz.chrome` for what is written.

The head of the file has what events have no place for (lanes with their roles, the tables of names, the context), the
events' arguments the rest. A damaged file gives what is left, and a note.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np

from loaderviz.recorder import salvage
from loaderviz.recorder.chunks import Document
from loaderviz.recorder.source import TraceError
from loaderviz.timeline import (
    ARROW_COLUMNS,
    SPAN_COLUMNS,
    ArrowKind,
    Cause,
    Context,
    Kind,
    Lane,
    Mark,
    Timeline,
)  # fmt: skip

_SAVED = re.compile(rb'\s*\{\s*"loaderviz"\s*:\s*\d+\s*,')
_CAUSES = {cause.words: cause for cause in Cause}
FORMAT = 1

Event = dict[str, Any]


def is_saved(head: bytes) -> bool:
    """Tell whether a file that begins so was written by `Timeline.save`."""
    return bool(_SAVED.match(head))


def is_export(document: Document) -> bool:
    """Tell whether a trace document was written by `export.to_chrome_trace`."""
    own = document.head.get("loaderviz")
    return isinstance(own, dict) and "format" in own


def timeline(document: Document) -> Timeline:
    """Return the timeline of an export. Raises `TraceError` for a later format, or a head that was changed."""
    own = document.head["loaderviz"]
    if own["format"] != FORMAT:
        raise TraceError(
            f"{document.source.path} is an export of format {own['format']!r}; this loaderviz reads {FORMAT}: update it"
        )
    try:
        context = Context(
            **{name: own[name] for name in ("device", "origin", "host", "clock", "samples", "versions")},
            notes=tuple(own["notes"]),
        )
        lanes = tuple(Lane(**lane) for lane in own["lanes"])
        reader = _Reader(own["names"], own["sources"], int(document.head["baseTimeNanoseconds"]))
    except (KeyError, TypeError, ValueError) as problem:
        raise TraceError(f"{document.source.path}: its 'loaderviz' entry is damaged ({problem!r})") from problem
    for bodies in document.chunks():
        reader.add([(b'{"' + document.key + b'"' + body + b"}").decode("utf-8", "replace") for body in bodies])
    lost = reader.lost + document.lost
    if lost or document.damage:
        damage = "; ".join(document.damage) or "some events cannot be read"
        context = replace(context, notes=(*context.notes, f"the file is damaged: {damage}; {lost:,} events lost"))
    rows = np.array(reader.rows, np.int64).reshape(-1, len(SPAN_COLUMNS))
    arrows = np.array(reader.arrows(), np.int64).reshape(-1, len(ARROW_COLUMNS))
    found = Timeline(
        context, lanes, tuple(own["names"]), tuple(own["sources"]),
        {name: rows[:, i].astype(dtype) for i, (name, dtype) in enumerate(SPAN_COLUMNS.items())},
        {name: arrows[:, i].astype(dtype) for i, (name, dtype) in enumerate(ARROW_COLUMNS.items())},
        tuple(reader.marks),
    )  # fmt: skip
    return found.self_check()


class _Reader:
    """Collects spans, arrows and marks. A span's number in the file is told, so that arrows survive lost events."""

    def __init__(self, names: list[str], sources: list[str], base: int) -> None:
        self.names = {name: number for number, name in enumerate(names)}
        self.sources = {source: number for number, source in enumerate(sources)}
        self.base = base
        self.rows: list[tuple[int, ...]] = []
        self.marks: list[Mark] = []
        self.lost = 0
        self._row_of: dict[int, int] = {}
        self._flows: dict[int, dict[str, tuple[int, int]]] = {}

    def add(self, texts: list[str]) -> None:
        try:
            events = json.loads("[" + ",".join(texts) + "]")
        except (ValueError, RecursionError):
            events, lost = salvage.events(texts)
            self.lost += lost
        for event in events:
            try:
                self._take(event)
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
                self.lost += 1

    def _take(self, event: Event) -> None:
        phase, arguments = event["ph"], event.get("args") or {}
        if phase == "X":
            start = self.base + _ns(event["ts"])
            row = (
                start, start + _ns(event["dur"]), arguments["lane"], Kind[arguments["loaderviz kind"].upper()],
                self.names[event["name"]], arguments.get("batch", -1), arguments.get("bytes", -1),
                arguments.get("correlation", -1), int(arguments.get("pinned", -1)),
                _CAUSES[arguments["cause"]] if "cause" in arguments else Cause.NONE,
                self.sources[arguments["source"]] if "source" in arguments else -1,
            )  # fmt: skip
            self._row_of[arguments["span"]] = len(self.rows)
            self.rows.append(tuple(int(value) for value in row))
        elif phase in ("s", "f"):
            kind = ArrowKind.WAIT if event["name"] == "event wait" else ArrowKind.LAUNCH
            self._flows.setdefault(event["id"], {})[phase] = (arguments["span"], kind)
        elif phase == "i":
            first, second = (self._row_of.get(span, -1) for span in arguments["spans"])
            time = self.base + _ns(event["ts"])
            self.marks.append(Mark(time, arguments["lane"], event["name"], arguments["text"], (first, second)))

    def arrows(self) -> list[tuple[int, int, int]]:
        """Return the arrows whose two spans were read, in their order."""
        found = []
        for _, ends in sorted(self._flows.items()):
            tail, head = (self._row_of.get(ends[phase][0]) if phase in ends else None for phase in "sf")
            if tail is not None and head is not None:
                found.append((tail, head, int(ends["s"][1])))
        return found


def _ns(us: float) -> int:
    return round(us * 1000)
