"""RawTraces, one per rank -> one Timeline: kinds, lanes, launch arrows, waits and batches, all in numpy.

What a trace does not say in so many words is derived here, and by these rules:

* GPU work belongs to the call with the same correlation number; of several the one that began first.
* The host is blocked during cuda*Synchronize, during allocation and page-locking, and during the copy of pageable
  memory that began before its call returned (R1, R7, R13, R25).
* A step's number (`ProfilerStep#N`, `batch N`) is the batch of all host spans that begin in it, and of the GPU work
  that they launched. loaderviz's own marks ("batch 3: 64 samples") hold until the next.
* Two spans of one stream that overlap (CUDA graphs, programmatic launches) go to sub-lanes. Nothing is stretched.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderviz import words
from loaderviz.intervals import take_free
from loaderviz.recorder import quality, steps, waiting
from loaderviz.recorder.kineto import RawTrace
from loaderviz.recorder.names import BLIT_DIRECTIONS, ON_DEVICE, Calls, Role, is_blit, kind_of
from loaderviz.recorder.places import Lanes, devices_of
from loaderviz.timeline import ARROW_COLUMNS, SPAN_COLUMNS, ArrowKind, Context, Lane, Timeline

Ints = npt.NDArray[np.integer[Any]]
Rows = dict[str, npt.NDArray[Any]]

DAY = 86_400 * 10**9  # no profile lasts a day; an event that far from the others has a broken clock


@dataclass
class Part:
    """One trace on the way to a timeline: rows sorted by start, lanes, arrows as pairs of rows."""

    rows: Rows
    lanes: list[Lane]
    names: list[str]
    arrows: Ints  # shape (n, 3): tail, head, kind
    notes: list[str]
    tick: int  # ns between two readings of the clock, 0 if there are too few events to tell


def assemble(traces: Sequence[RawTrace]) -> Timeline:
    """Return the timeline of these traces (one at least), time 0 at the first event of all."""
    several = len(traces) > 1
    device = _device(traces)
    apart = _devices_apart(traces) if several else [{}]
    labels = _labels(traces) if several else [""]
    parts = [_part(*each) for each in zip(traces, labels, apart, strict=True)]
    together = all(trace.unix for trace in traces)
    begins = [int(part.rows["start"][0]) if len(part.rows["start"]) else 0 for part in parts]
    origin = min((begin for begin in begins if begin), default=0)
    notes = [] if together or not several else ["the files do not tell their clocks' base: each rank begins at time 0"]
    for number, part in enumerate(parts):
        own = origin if together else begins[number]
        part.rows["start"] -= own
        part.rows["end"] -= own
        if several:
            part.rows["correlation"][part.rows["correlation"] > 0] += number << 40  # unique over all ranks
        notes += [f"{labels[number].strip()}: {note}" if several else note for note in part.notes]
    context = Context(
        device=device, origin="file", clock=_clock(parts, together, origin),
        versions={name: text for trace in traces for name, text in trace.versions.items()}, notes=tuple(notes),
    )  # fmt: skip
    return replace(_merged(parts), context=context).self_check()


def _part(trace: RawTrace, label: str, device_of: dict[int, int]) -> Part:
    columns, notes = trace.columns, list(trace.remarks)
    if trace.blits:
        trace.columns["blit"] = np.zeros(len(columns["start"]), np.int8)
        for row, direction in trace.blits.items():
            columns["blit"][row] = direction
    _sort(columns)
    notes += _tidy(trace)
    place = Lanes(trace, label, device_of)
    rows: Rows = _meanings(trace) | {"lane": place.lane}
    del columns["place"], place.lane
    rows |= {name: columns.pop(name) for name in list(columns) if name != "blit"}  # moved, for they may be large
    calls = Calls(trace.names)
    launch = launches(rows)
    if trace.blits:
        _turn_blits(rows, columns.pop("blit"), launch, trace.names)
    tick = quality.resolution(rows["start"], rows["end"])
    notes += quality.notes(trace, rows, launch, calls, tick)
    rows["batch"] = steps.batches(rows, launch, trace.names, place.main)
    lanes, overlapping = _sub_lanes(rows, place.lanes)
    if overlapping:
        notes.append(f"{overlapping:,} spans overlap another of their stream; they are in lanes of their own")
    events = waiting.event_arrows(trace, rows, launch, place, calls)
    rows, blocked = waiting.add_waits(rows, launch, calls, trace.names)
    launched = np.flatnonzero(launch >= 0)
    tails, heads = (waiting.moved(former, blocked) for former in (launch[launched], launched))
    del launch, rows["role"]
    forward = rows["start"][tails] <= rows["start"][heads]
    tails, heads = tails[forward], heads[forward]
    arrows = [np.stack([tails, heads, np.full(len(heads), ArrowKind.LAUNCH)], axis=1)]
    joined = waiting.moved(np.array(events, np.int64).reshape(-1, 2), blocked)
    arrows.append(np.c_[joined, np.full(len(joined), ArrowKind.WAIT)])
    return Part(rows, lanes, trace.names, np.concatenate(arrows), notes, tick)


def _sort(columns: Rows) -> None:
    """Sort the rows by start, longer ones first, in place: one column at a time, for they may be large."""
    order = np.lexsort((-columns["end"], columns["start"]))
    for name in columns:
        columns[name] = columns[name][order]


def _tidy(trace: RawTrace) -> list[str]:
    """Drop events of a broken clock and events that the file has twice; return notes that say so."""
    columns = trace.columns
    notes: list[str] = []
    start, end = columns["start"], columns["end"]
    if not len(start):
        return notes
    keep = np.abs(start - start[len(start) // 2]) <= DAY
    keep &= end - start <= DAY
    strange = int((~keep).sum())
    if strange:
        trace.lost += strange
        notes.append(f"{strange:,} events more than a day away from the others are left out")
    pair = np.flatnonzero((start[1:] == start[:-1]) & (end[1:] == end[:-1]))
    twins = np.unique(np.concatenate([pair, pair + 1]))
    if len(twins):
        keys = [columns[name][twins] for name in ("correlation", "place", "name", "role", "end", "start")]
        order = np.lexsort([-columns["nbytes"][twins], *keys])  # the one that tells its size is kept
        same = np.ones(len(twins) - 1, bool)
        for key in keys:
            same &= key[order][1:] == key[order][:-1]
        again = twins[order[1:][same]]
        keep[again] = False
        if len(again):
            notes.append(f"events that the file has twice are taken once ({len(again):,} left out)")
    if not keep.all():
        for name in columns:
            columns[name] = columns[name][keep]
    return notes


def _meanings(trace: RawTrace) -> dict[str, npt.NDArray[np.int8]]:
    """Return kind, pinned and cause of each event, looked up once for each role and name."""
    role, name = trace.columns["role"], trace.columns["name"]
    used = np.zeros((len(Role), max(1, len(trace.names))), bool)
    used[role, name] = True
    tables = np.zeros((3, *used.shape), np.int8)
    for row, column in np.argwhere(used).tolist():
        tables[:, row, column] = kind_of(Role(row), trace.names[column])
    return {what: table[role, name] for what, table in zip(("kind", "pinned", "cause"), tables, strict=True)}


def launches(rows: Rows) -> Ints:
    """Return for each row the row of the call that launched it, -1 for host rows and where none is found."""
    result = np.full(len(rows["start"]), -1, np.int32)
    call = np.flatnonzero((rows["role"] == Role.CALL) & (rows["correlation"] > 0))
    work = np.flatnonzero(np.isin(rows["role"], ON_DEVICE) & (rows["correlation"] > 0))
    if len(call) and len(work):
        order = call[np.argsort(rows["correlation"][call], kind="stable")]  # of one number, the first to begin is first
        numbers = rows["correlation"][order]
        place = np.minimum(np.searchsorted(numbers, rows["correlation"][work]), len(order) - 1)
        found = numbers[place] == rows["correlation"][work]
        result[work[found]] = order[place[found]]
    return result


def _turn_blits(rows: Rows, direction: Ints, launch: Ints, names: list[str]) -> None:
    """Give ROCm's copy kernels the direction that stands in their call."""
    blit = [number for number, name in enumerate(names) if is_blit(name)]
    mine = np.flatnonzero(np.isin(rows["name"], blit) & (launch >= 0)) if blit else np.empty(0, np.int64)
    for number, kind in BLIT_DIRECTIONS.items():
        rows["kind"][mine[direction[launch[mine]] == number]] = kind


def _sub_lanes(rows: Rows, lanes: list[Lane]) -> tuple[list[Lane], int]:
    """Move spans that overlap the one before them in their stream to further lanes "stream 7 (2)"."""
    added: dict[tuple[int, int], int] = {}
    all_lanes, overlapping = list(lanes), 0
    for number, lane in enumerate(lanes):
        if lane.role != "stream":
            continue
        mine = np.flatnonzero(rows["lane"] == number)
        start, end = rows["start"][mine], rows["end"][mine]
        order = np.lexsort((end, start))
        mine, start, end = mine[order], start[order], end[order]
        reach = np.maximum.accumulate(end)
        open_before = np.r_[False, start[1:] < reach[:-1]]
        if not open_before.any():
            continue
        cluster = np.cumsum(~open_before) - 1
        crowded = np.flatnonzero(np.bincount(cluster)[cluster] > 1)
        free: list[float] = []
        last = -1
        for index in crowded.tolist():
            if cluster[index] != last:
                free, last = [], int(cluster[index])
            level = take_free(free, int(start[index]), int(end[index]))
            if level:
                overlapping += 1
                if (number, level) not in added:
                    added[number, level] = len(all_lanes)
                    name = f"{lane.name} ({level + 1})"
                    all_lanes.append(Lane(name, "device", "stream", lane.number, lane.device))
                rows["lane"][mine[index]] = added[number, level]
    return all_lanes, overlapping


def _merged(parts: list[Part]) -> Timeline:
    """Return the parts as one timeline; a single part, which may be large, is not copied."""
    lanes: list[Lane] = []
    table: dict[str, int] = {}
    lengths = [len(part.rows["start"]) for part in parts]
    for part in parts:
        part.rows["lane"] = part.rows["lane"] + len(lanes)
        lanes += part.lanes
        numbers = np.array([table.setdefault(name, len(table)) for name in part.names], np.int32)
        if len(numbers) and (len(parts) > 1 or len(table) < len(numbers)):
            part.rows["name"] = numbers[part.rows["name"]]
    spans = {}
    for column, dtype in SPAN_COLUMNS.items():
        pieces = [part.rows.pop(column) if column in part.rows else np.full(length, -1, dtype)
                  for part, length in zip(parts, lengths, strict=True)]  # fmt: skip
        spans[column] = (pieces[0] if len(pieces) == 1 else np.concatenate(pieces)).astype(dtype, copy=False)
    before = np.cumsum([0, *lengths])
    joins = np.concatenate(
        [part.arrows + np.array([start, start, 0]) for part, start in zip(parts, before, strict=False)]
    )
    arrows = {name: joins[:, i].astype(dtype) for i, (name, dtype) in enumerate(ARROW_COLUMNS.items())}
    timeline = Timeline(Context(), tuple(lanes), tuple(table), (), spans, arrows)
    return timeline if len(parts) == 1 else timeline.sorted()


def _labels(traces: Sequence[RawTrace]) -> list[str]:
    """Return what each lane's name begins with; two files of one rank are told apart by their number."""
    own = [trace.label or (f"rank {trace.rank}" if trace.rank is not None else "") for trace in traces]
    unique = [name if name and own.count(name) == 1 else f"file {n}" for n, name in enumerate(own)]
    return [f"{name} " for name in unique]


def _devices_apart(traces: Sequence[RawTrace]) -> list[dict[int, int]]:
    """Number the devices of several ranks, so that those of one rank are neighbours: `loop_lanes` relies on it.

    They keep their numbers where these do so. Else (ranks of several computers, or GPUs 0 and 2 of one rank and 1 and 3
    of the other) they are numbered one after the other.
    """
    used = [sorted(devices_of(trace)) for trace in traces]
    flat = [device for devices in sorted(filter(None, used)) for device in devices]
    if flat == sorted(set(flat)):
        return [{device: device for device in devices} for devices in used]
    numbers = iter(range(len(flat)))
    return [{device: next(numbers) for device in devices} for devices in used]


def _device(traces: Sequence[RawTrace]) -> str:
    used = [(trace, device) for trace in traces for device in sorted(devices_of(trace))]
    if not used:
        return "no GPU work in it"
    counts = Counter(trace.devices.get(device, "") for trace, device in used)
    names = [f"{count} x {name}" if count > 1 else name for name, count in counts.items() if name]
    return ", ".join(names) or ("a GPU of unknown name" if len(used) == 1 else f"{len(used)} GPUs of unknown name")


def _clock(parts: list[Part], unix: bool, origin: int) -> str:
    """Say when time 0 is, and how fine the profiler's clock is."""
    ticks = [part.tick for part in parts if part.tick]
    step = f"in steps of {words.duration(min(ticks))}" if ticks else "ns"
    if not unix or not origin:
        return step
    moment = datetime.datetime.fromtimestamp(origin // 10**9, datetime.UTC)
    return f"{step}; time 0 is {moment:%Y-%m-%d %H:%M:%S}.{origin % 10**9:09d} UTC"
