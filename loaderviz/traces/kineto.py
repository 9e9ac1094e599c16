"""A torch.profiler (Kineto) trace file -> RawTrace.

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

from loaderviz.traces.events import EventTable, Frame, Ints, Place
from loaderviz.traces.source import Document

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
