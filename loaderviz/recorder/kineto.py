"""A torch.profiler (Kineto) trace file -> RawTrace: its columns, and what its head, tail and metadata say.

Times: with `baseTimeNanoseconds` (torch 2.4 and later) `ts` counts µs from it; before, `ts` is µs of Unix time. Both
become ns of Unix time here, so that several ranks can be aligned.
"""

from __future__ import annotations

import gc
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loaderviz.recorder.chunks import Document
from loaderviz.recorder.columns import Columns, Ints, Place

UNIX = 10**17  # ns; times above it (1973) are of the Unix clock, smaller ones count from an unknown moment


@dataclass
class RawTrace:
    """One process's trace as read, before it is made into a timeline.

    `columns`: start and end [ns], role, name, place, correlation, nbytes; one entry per event, in any order. `places`
    are (pid, tid, device, stream), as the file has them. `label` names the process if it has no rank. `damage` and
    `lost` say what could not be read.
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
        columns: Columns | None = None
        for bodies in document.chunks():
            columns = columns or Columns(document.key)
            columns.add(bodies)
    finally:
        if was_enabled:
            gc.enable()
    columns = columns or Columns(document.key)
    outer = document.tail | document.head
    found = columns.finish()
    base = _whole(outer.get("baseTimeNanoseconds"))
    if base is not None and len(found["start"]) and int(found["start"].min()) < UNIX:
        for name in ("start", "end"):
            found[name] += base
    return RawTrace(
        document.source.path, found, list(columns.names), list(columns.places),
        unix=bool(len(found["start"]) and int(found["start"][len(found["start"]) // 2]) > UNIX),
        rank=_rank(outer, document.source.path), devices=_devices(outer), threads=_threads(columns.metadata),
        event_waits=columns.event_waits, sync_rows=columns.sync_rows, blits=columns.blits,
        left_out=columns.left_out, lost=columns.lost + document.lost,
        damage=document.damage, remarks=_remarks(outer), versions=_versions(outer),
    )  # fmt: skip


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**62) < value < 2**62:
        return None
    return value


def _rank(outer: dict[str, Any], path: Path) -> int | None:
    """Return the rank the file tells, else the one in its name ("rank-3.json.gz", "rank3_trace.json")."""
    info = outer.get("distributedInfo")
    rank = _whole(info.get("rank")) if isinstance(info, dict) else None
    if rank is None and (match := re.search(r"rank[-_ ]?(\d{1,6})", path.name, re.I)):
        rank = int(match.group(1))
    return rank


def _devices(outer: dict[str, Any]) -> dict[int, str]:
    properties = outer.get("deviceProperties")
    devices = {}
    for entry in properties if isinstance(properties, list) else []:
        number = _whole(entry.get("id")) if isinstance(entry, dict) else None
        if number is not None and isinstance(entry.get("name"), str):
            devices[number] = entry["name"]
    return devices


def _threads(metadata: list[dict[str, Any]]) -> dict[tuple[Any, Any], str]:
    rows = [entry for entry in metadata if entry["name"] == "thread_name" and isinstance(entry["label"], str)]
    return {(str(entry["pid"]), str(entry["tid"])): entry["label"] for entry in rows}


def _versions(outer: dict[str, Any]) -> dict[str, str]:
    names = ("torch_version", "cuda_runtime_version", "cuda_driver_version", "hip_runtime_version", "kineto_version")
    return {name: str(outer[name]) for name in names if isinstance(outer.get(name), (str, int, float))}


def _remarks(outer: dict[str, Any]) -> list[str]:
    """Return what the profiler itself logged as lost, from the lines that older versions keep in the file."""
    lines = [line for key in ("INFO", "WARNING", "ERROR") for line in _list(outer.get(key)) if isinstance(line, str)]
    remarks = []
    for line in lines:
        for what, count in re.findall(r"(Out-of-range|Invalid ext correlations|CPU GPU out-of-order) = (\d+)", line):
            if int(count):
                remarks.append(f"the profiler itself dropped {int(count):,} events ({what.lower()})")
        if re.search(r"CUPTI stopped early\? = 1", line):
            remarks.append("the profiler's buffer was full: it stopped early")
    return remarks


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
