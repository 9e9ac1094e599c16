"""A torch.profiler (Kineto) trace file -> RawTrace; loaderviz's own exports -> Timeline.

Times: with `baseTimeNanoseconds` (torch 2.4 and later) `ts` counts µs from it; before, `ts` is µs of Unix time. Both
become ns of Unix time here, so that several ranks can be aligned.
"""

from __future__ import annotations

import gc
import json
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from loaderviz.timeline import ARROW_COLUMNS, SPAN_COLUMNS, ArrowKind, Cause, Context, Kind, Lane, Mark, Timeline
from loaderviz.traces.events import EventTable, Frame, Ints, Place
from loaderviz.traces.source import Document, Event, TraceError, salvaged

UNIX = 10**17  # ns; times above it (1973) are of the Unix clock, smaller ones count from an unknown moment


@dataclass
class RawTrace:
    """One process's trace as read: `columns` (see `events.DTYPES`) with one entry per event, in any order.

    `places` are (pid, tid, device, stream), as the file has them. `label` names the process if it has no rank. `damage`
    and `lost` say what could not be read.
    """

    path: Path
    columns: dict[str, Ints]
    names: list[str]
    places: list[Place]
    label: str = ""
    unix: bool = True
    rank: int | None = None
    devices: dict[int, str] = field(default_factory=dict)
    threads: dict[tuple[Any, Any], str] = field(default_factory=dict)
    event_waits: list[tuple[Any, ...]] = field(default_factory=list)
    sync_rows: int = 0
    blits: dict[int, int] = field(default_factory=dict)
    frames: list[Frame] = field(default_factory=list)  # µs from `zero` ns
    zero: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    damage: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)


def read_kineto(document: Document) -> RawTrace:
    """Read a whole trace. Damage is noted in the RawTrace; `TraceError` is raised for what is no trace or hostile."""
    was_enabled = gc.isenabled()
    gc.disable()  # it would look at millions of young dicts again and again; two thirds of the time
    try:
        columns: EventTable | None = None
        for bodies in document.chunks():
            columns = columns or EventTable(document.key)
            columns.add(bodies)
    finally:
        if was_enabled:
            gc.enable()
    columns = columns or EventTable(document.key)
    outer = document.tail | document.head
    found = columns.finish()
    base = _whole(outer.get("baseTimeNanoseconds"))
    relative = base is not None and len(found["start"]) and int(found["start"].min()) < UNIX
    if base is not None and relative:
        found["start"] += base
        found["end"] += base
    return RawTrace(
        document.source.path,
        found,
        list(columns.names),
        list(columns.places),
        unix=bool(len(found["start"]) and int(found["start"][len(found["start"]) // 2]) > UNIX),
        threads=columns.threads,
        event_waits=columns.event_waits,
        sync_rows=columns.sync_rows,
        blits=columns.blits,
        frames=columns.frames,
        zero=base if base is not None and relative else 0,
        left_out=columns.left_out,
        lost=columns.lost + document.lost,
        damage=document.damage,
        **_told(outer, document.source.path.name),
    )


def _whole(value: Any) -> int | None:
    return value if type(value) is int and -(2**62) < value < 2**62 else None


def _told(outer: dict[str, Any], name: str) -> dict[str, Any]:
    """Return what the keys around the events, or the file's name, tell: rank, devices, versions, lost events."""
    info, properties = outer.get("distributedInfo"), outer.get("deviceProperties")
    rank = _whole(info.get("rank")) if isinstance(info, dict) else None
    if rank is None and (
        match := re.search(r"rank[-_ ]?(\d{1,6})", name, re.I)
    ):  # "rank-3.json.gz", "rank3_trace.json"
        rank = int(match.group(1))
    entries = [entry for entry in properties if isinstance(entry, dict)] if isinstance(properties, list) else []
    devices = {_whole(entry.get("id")): entry.get("name") for entry in entries}
    keys = ("torch_version", "cuda_runtime_version", "cuda_driver_version", "hip_runtime_version", "kineto_version")
    remarks = []  # what the profiler itself logged as lost, in lines that older versions keep in the file
    logs = [outer[key] for key in ("INFO", "WARNING", "ERROR") if isinstance(outer.get(key), list)]
    for line in (line for log in logs for line in log if isinstance(line, str)):
        for what, count in re.findall(r"(Out-of-range|Invalid ext correlations|CPU GPU out-of-order) = (\d+)", line):
            if int(count):
                remarks.append(f"the profiler itself dropped {int(count):,} events ({what.lower()})")
        if re.search(r"CUPTI stopped early\? = 1", line):
            remarks.append("the profiler's buffer was full: it stopped early")
    return {
        "rank": rank,
        "remarks": remarks,
        "devices": {number: name for number, name in devices.items() if number is not None and isinstance(name, str)},
        "versions": {key: str(outer[key]) for key in keys if isinstance(outer.get(key), (str, int, float))},
    }


# loaderviz's own files. Their head has what events have no place for (lanes with their roles, the tables of names, the
# context), the events' arguments the rest; see `loaderviz.export` for what is written.

FORMAT = 1
_CAUSES = {cause.words: cause for cause in Cause}


def exported(document: Document) -> Timeline:
    """Return the timeline of an export, equal to the one written; of a damaged file what is left, and a note.

    Raises `TraceError` for a later format, or a head that was changed.
    """
    own, path = document.head["loaderviz"], document.source.path
    if own["format"] != FORMAT:
        raise TraceError(f"{path} is an export of format {own['format']!r}; this loaderviz reads {FORMAT}: update it")
    try:
        context = Context(
            **{name: own[name] for name in ("device", "origin", "host", "clock", "samples", "versions")},
            notes=tuple(own["notes"]),
        )
        lanes = tuple(Lane(**lane) for lane in own["lanes"])
        reader = _Exported(own["names"], own["sources"], int(document.head["baseTimeNanoseconds"]))
    except (KeyError, TypeError, ValueError) as problem:
        raise TraceError(f"{path}: its 'loaderviz' entry is damaged ({problem!r})") from problem
    for bodies in document.chunks():
        reader.add([(b'{"' + document.key + b'"' + body + b"}").decode("utf-8", "replace") for body in bodies])
    lost = reader.lost + document.lost
    if lost or document.damage:
        damage = "; ".join(document.damage) or "some events cannot be read"
        context = replace(context, notes=(*context.notes, f"the file is damaged: {damage}; {lost:,} events lost"))
    rows = np.array(reader.rows, np.int64).reshape(-1, len(SPAN_COLUMNS))
    arrows = np.array(reader.arrows(), np.int64).reshape(-1, len(ARROW_COLUMNS))
    spans = {name: rows[:, i].astype(dtype) for i, (name, dtype) in enumerate(SPAN_COLUMNS.items())}
    joins = {name: arrows[:, i].astype(dtype) for i, (name, dtype) in enumerate(ARROW_COLUMNS.items())}
    names, sources = tuple(own["names"]), tuple(own["sources"])
    return Timeline(context, lanes, names, sources, spans, joins, tuple(reader.marks)).self_check()


class _Exported:
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
            events, lost = salvaged(texts)
            self.lost += lost
        for event in events:
            try:
                self._take(event, event["ph"], event.get("args") or {})
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
                self.lost += 1

    def _take(self, event: Event, phase: str, arguments: Event) -> None:
        if phase in ("X", "i"):
            time = self.base + round(event["ts"] * 1000)
        if phase == "X":
            row = (
                time,
                time + round(event["dur"] * 1000),
                arguments["lane"],
                Kind[arguments["loaderviz kind"].upper()],
                self.names[event["name"]],
                arguments.get("batch", -1),
                arguments.get("bytes", -1),
                arguments.get("correlation", -1),
                arguments.get("pinned", -1),
                _CAUSES[arguments["cause"]] if "cause" in arguments else Cause.NONE,
                self.sources[arguments["source"]] if "source" in arguments else -1,
            )
            self._row_of[arguments["span"]] = len(self.rows)
            self.rows.append(tuple(int(value) for value in row))
        elif phase in ("s", "f"):
            kind = ArrowKind.WAIT if event["name"] == "event wait" else ArrowKind.LAUNCH
            self._flows.setdefault(event["id"], {})[phase] = (arguments["span"], kind)
        elif phase == "i":
            first, second = (self._row_of.get(span, -1) for span in arguments["spans"])
            about = event["name"], arguments["text"], (first, second), arguments.get("report", "")
            self.marks.append(Mark(time, arguments["lane"], *about))

    def arrows(self) -> list[tuple[int, int, int]]:
        """Return the arrows whose two spans were read, in their order."""
        found = []
        for _, ends in sorted(self._flows.items()):
            tail, head = (self._row_of.get(ends[phase][0]) if phase in ends else None for phase in "sf")
            if tail is not None and head is not None:
                found.append((tail, head, int(ends["s"][1])))
        return found
