"""RawTraces, one per rank -> one Timeline: kinds, lanes, launch arrows, waits and batches, all in numpy.

What a trace does not say in so many words is derived here, and by these rules:

* GPU work belongs to the call with the same correlation number; of several the one that began first.
* The host is blocked during cuda*Synchronize, during cudaFree and page-locking, and during the copy of pageable
  memory that began before its call returned (R1, R7, R13, R25).
* A step's number (`ProfilerStep#N`, `batch N`) is the batch of all host spans that begin in it, and of the GPU work
  that they launched. loaderviz's own marks ("batch 3: 64 samples") hold until the next.
* Two spans of one stream that overlap (CUDA graphs, programmatic launches) go to sub-lanes. Nothing is stretched.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np

from loaderviz import intervals, words
from loaderviz.batches import STEP_RANGE, numbers_of
from loaderviz.stations import is_package
from loaderviz.timeline import (
    ARROW_COLUMNS,
    COPIES,
    SPAN_COLUMNS,
    ArrowKind,
    Cause,
    Context,
    Ids,
    Ints,
    Kind,
    Lane,
    Look,
    Timeline,
    gathered,
    grouped,
)
from loaderviz.traces import clocks, steps
from loaderviz.traces.kineto import RawTrace, Rows
from loaderviz.vendors import BLIT_DIRECTIONS, ON_DEVICE, Api, Role, calls_of, is_blit, kind_of

MANY = 4  # ranks; what is noted of more is told once
PAUSE = 100_000  # ns between two calls of torch: what the main thread does in less is not told
DAY = 86_400 * 10**9  # no profile lasts a day; an event that far from the others has a broken clock


@dataclass
class _Part:
    """One trace on the way to a timeline: rows sorted by start, lanes, arrows as pairs of rows."""

    rows: Rows
    lanes: list[Lane]
    names: list[str]
    arrows: Ints  # shape (n, 3): tail, head, kind
    notes: list[str]
    missing: list[str]
    whole: list[str]
    tick: int  # ns between two readings of the clock, 0 if there are too few events to tell
    sources: list[str]  # lines of Python, "train.py:82"
    looks: list[Look]  # where the main thread is between its calls of torch


def assemble(traces: Sequence[RawTrace]) -> Timeline:
    """Return the timeline of these traces (one at least), time 0 at the first event of all."""
    several = len(traces) > 1
    used = [(trace, device) for trace in traces for device in sorted(devices_of(trace))]
    apart = _devices_apart(traces) if several else [{}]
    told = [trace.label or (f"rank {trace.rank}" if trace.rank is not None else "") for trace in traces]
    labels = [f"{name} " if name and told.count(name) == 1 else f"file {n} " for n, name in enumerate(told)]
    labels = labels if several else [""]  # lanes' names begin so; two files of one rank are told apart by their number
    twice = [(name, many) for name, many in Counter(filter(None, told)).items() if many > 1]
    parts = [_part(*each) for each in zip(traces, labels, apart, strict=True)]
    together = all(trace.unix for trace in traces)
    off = _set_clocks(traces, parts) if several else []
    begins = [int(part.rows["start"][0]) if len(part.rows["start"]) else 0 for part in parts]
    origin = min((begin for begin in begins if begin), default=0)
    notes = [] if together or not several else ["the files do not tell their clocks' base: each rank begins at time 0"]
    notes += clocks.told(off, labels) if several else []
    for number, part in enumerate(parts):
        own = origin if together else begins[number]
        part.rows["start"] -= own
        part.rows["end"] -= own
        part.looks = [look._replace(time=look.time - own) for look in part.looks]
        if several:
            part.rows["correlation"][part.rows["correlation"] > 0] += number << 40  # unique over all ranks
    messages = tuple(
        each._replace(correlation=each.correlation + (number << 40) * several)
        for number, trace in enumerate(traces)
        for each in trace.messages
    )
    notes += [f"{many} files are of {name}, and are told apart by their number" for name, many in twice]
    notes += _of_ranks([part.notes for part in parts], labels)
    ticks = [part.tick for part in parts if part.tick]
    clock = f"in steps of {words.duration(min(ticks))}" if ticks else "ns"
    zero = origin if together and origin else None
    if zero:
        moment = datetime.datetime.fromtimestamp(origin // 10**9, datetime.UTC)
        clock += f"; time 0 is {moment:%Y-%m-%d %H:%M:%S}.{origin % 10**9:09d} UTC"
    missing = tuple(f"{label}{each}" for part, label in zip(parts, labels, strict=True) for each in part.missing)
    context = Context(
        _device(traces, used),
        "file",
        clock=clock,
        versions={name: text for trace in traces for name, text in trace.versions.items()},
        notes=tuple(notes),
        missing=missing,
        whole=tuple(_of_ranks([part.whole for part in parts], labels)),
        zero=zero,
        messages=messages,
        looks=() if several else tuple(parts[0].looks),
    )
    return replace(_merged(parts), context=context).self_check()


def _set_clocks(traces: Sequence[RawTrace], parts: Sequence[_Part]) -> list[int]:
    """Put the clocks of several ranks right; return by how many ns each was ahead."""
    off = clocks.ahead([_collectives(*each) for each in zip(traces, parts, strict=True)])
    for part, ahead in zip(parts, off, strict=True):
        part.rows["start"] -= ahead
        part.rows["end"] -= ahead
    return off


def _collectives(trace: RawTrace, part: _Part) -> clocks.Collectives:
    """Return of which kind each collective of a rank is, and when it ended."""
    rows = part.rows
    mine = np.flatnonzero((rows["kind"] == Kind.COMMUNICATION) & (rows["end"] > rows["start"]))
    messages = {message.correlation: message for message in trace.messages}
    names = (part.names[name] for name in rows["name"][mine].tolist())
    return clocks.kinds(names, map(messages.get, rows["correlation"][mine].tolist())), rows["end"][mine]


def _of_ranks(notes: Sequence[list[str]], labels: Sequence[str]) -> list[str]:
    """Return the notes on each rank with its label, those of many that differ in their numbers only as one."""
    if len(notes) == 1:
        return notes[0]
    alike = gathered(
        (re.sub(r"\d", "", note), f"{label.strip()}: {note}")
        for of_rank, label in zip(notes, labels, strict=True)
        for note in of_rank
    )
    return [
        note
        for same in alike.values()
        for note in (same if len(same) <= MANY else [f"{len(same)} ranks, such as {same[0]}"])
    ]


def _part(trace: RawTrace, label: str, device_of: dict[int, int]) -> _Part:
    columns, names = trace.columns, trace.names
    order = np.lexsort((-columns["end"], columns["start"]))  # longer ones first
    for name in columns:  # one column at a time, for they may be large
        columns[name] = columns[name][order]
    notes = trace.remarks + _tidy(trace)
    place = Lanes(trace, label, device_of)
    rows: Rows = _meanings(trace) | {"lane": place.lane}
    del columns["place"], place.lane, order
    rows |= {name: columns.pop(name) for name in list(columns)}
    calls = calls_of(names)
    launch = np.full(len(rows["start"]), -1, np.int32)  # for each row the row of the call that launched it
    work = np.isin(rows["role"], ON_DEVICE)
    launch[work] = _calls_with(rows, rows["correlation"][work])
    if trace.blits:  # ROCm's copies are kernels, whose direction stands in their call
        blits = np.flatnonzero(np.array([is_blit(name) for name in names])[rows["name"]] & (launch >= 0))
        for row, correlation in zip(blits.tolist(), rows["correlation"][blits].tolist(), strict=True):
            rows["kind"][row] = BLIT_DIRECTIONS.get(trace.blits.get(correlation, 0), rows["kind"][row])
    tick, missing = resolution(rows["start"], rows["end"]), trace.missing + _missing(trace, rows, calls)
    whole = _quality(trace, rows, launch, calls, tick)
    notes = [*missing, *notes, *(f"the file is damaged: {what}" for what in trace.damage), *whole]
    rows["batch"] = steps.batches(rows, launch, names, place.main)
    rows["source"], sources, looks = _sources(trace, rows, place)
    rows["source"][launch >= 0] = rows["source"][launch[launch >= 0]]
    lanes, overlapping = _sub_lanes(rows, place.lanes)
    if overlapping:
        notes.append(f"{overlapping:,} spans overlap another of their stream; they are in lanes of their own")
    joined = _event_arrows(trace, rows, launch, place.streams)
    heads = np.flatnonzero(launch >= 0)
    tails = launch[heads]
    rows, blocked = _add_waits(rows, launch, calls, names)
    del launch, rows["role"]
    # where these rows are, now that a row stands after each that is blocked
    tails, heads, joined = (former + np.searchsorted(blocked, former) for former in (tails, heads, joined))
    forward = rows["start"][tails] <= rows["start"][heads]
    arrows = [
        np.c_[tails[forward], heads[forward], np.full(int(forward.sum()), ArrowKind.LAUNCH)],
        np.c_[joined, np.full(len(joined), ArrowKind.WAIT)],
    ]
    return _Part(rows, lanes, names, np.concatenate(arrows), notes, missing, whole, tick, sources, looks)


def _sources(trace: RawTrace, rows: Rows, lanes: Lanes) -> tuple[Ints, list[str], list[Look]]:
    """Return for each row of the host the nearest frame of the program, as a number, and the frames' lines.

    In a thread that has none of the program they are those of packages that no other package calls. The third
    is where the main thread is between its calls of torch, for each pause that is long enough to be told.
    """
    result, table, looks = np.full(len(rows["start"]), -1, np.int32), dict[str, int](), list[Look]()
    apart: dict[int, list[tuple[int, int, int]]] = {}
    for source, pid, tid, start, length in trace.frames:
        if (lane := lanes.threads.get(_key((pid, tid, None, None), 0))) is not None:
            begin = trace.zero + start
            found = begin, -(begin + length), table.setdefault(source, len(table))
            apart.setdefault(lane, []).append(found)
    by_lane, names = grouped(rows["lane"], int(rows["lane"].max(initial=-1)) + 1) if apart else [], list(table)
    own = [not is_package(name) for name in names]
    for lane, found_here in apart.items():
        frames = sorted(each for each in found_here if own[each[2]])
        if not frames:
            begins, ends, _ = np.array(frames := sorted(found_here)).T
            frames = [frames[row] for row in np.flatnonzero(intervals.outermost(begins, -ends, int(begins[0])))]
        edges = [(-(2**62), -1)]  # from when on which frame is the innermost one
        stack, around = [-1], list[int]()  # open frames; for each frame the one that it is in
        for number, begin in enumerate([*(frame[0] for frame in frames), 2**62]):
            while stack[-1] >= 0 and -frames[stack[-1]][1] <= begin:
                edges.append((-frames[stack.pop()][1], stack[-1]))
            around.append(stack[-1])
            stack.append(number)
            edges.append((begin, number))
        times, inner = np.array(edges, np.int64).T
        lines, here = np.array([*(frame[2] for frame in frames), -1]), by_lane[lane]
        result[here] = lines[inner[np.searchsorted(times, rows["start"][here], side="right") - 1]]
        for begin, end in _pauses(rows, here) if lane == lanes.main else ():
            # the innermost frame that has most of the pause: it is open in the middle of it
            frame = inner[np.searchsorted(times, (begin + end) // 2, side="right") - 1]
            while frame >= 0 and 2 * (min(end, -frames[frame][1]) - max(begin, frames[frame][0])) <= end - begin:
                frame = around[frame]
            looks += [Look(begin, end - begin, names[lines[frame]])] if frame >= 0 else []
    return result, names, looks


def _pauses(rows: Rows, here: Ints) -> list[list[int]]:
    """Return start and end of the times in which these rows of a thread neither call torch or CUDA nor load."""
    busy = here[np.isin(rows["kind"][here], (Kind.OPERATOR, Kind.API, Kind.FETCH, Kind.WAIT))]
    whole = np.array([[rows["start"][here].min(), rows["end"][here].max()]])
    found = intervals.subtract(whole, intervals.union(rows["start"][busy], rows["end"][busy]))
    return [list(pause) for pause in found.tolist() if pause[1] - pause[0] >= PAUSE]


def _tidy(trace: RawTrace) -> list[str]:
    """Drop events of a broken clock and events that the file has twice; return notes that say so."""
    columns = trace.columns
    notes: list[str] = []
    start, end = columns["start"], columns["end"]
    if not len(start):
        return notes
    columns["nbytes"] = np.maximum(columns["nbytes"], -1)
    keep = (np.abs(start - start[len(start) // 2]) <= DAY) & (end - start <= DAY)
    if strange := int((~keep).sum()):
        trace.lost[" more than a day away"] += strange
        notes.append(f"{strange:,} events more than a day away from the others are left out")
    pair = np.flatnonzero((start[1:] == start[:-1]) & (end[1:] == end[:-1]))
    twins = np.unique(np.concatenate([pair, pair + 1]))
    twins = twins[columns["role"][twins] != Role.OPERATOR]  # one may call one of its name
    if len(twins):
        ids: dict[tuple[Any, ...], int] = {}  # a thread may stand there as text and as a number
        same_place = [ids.setdefault(tuple(_int(part, part) for part in place), len(ids)) for place in trace.places]
        keys = [columns[name][twins] for name in ("correlation", "name", "role", "end", "start")]
        keys.insert(0, np.array(same_place)[columns["place"][twins]])
        order = np.lexsort([-columns["nbytes"][twins], *keys])  # the one that tells its size is kept
        same = np.all([key[order][1:] == key[order][:-1] for key in keys], axis=0)
        keep[twins[order[1:][same]]] = False
        if same.any():
            notes.append(f"events that the file has twice are taken once ({int(same.sum()):,} left out)")
    if not keep.all():
        for name in columns:
            columns[name] = columns[name][keep]
    return notes


def _meanings(trace: RawTrace) -> Rows:
    """Return kind, pinned and cause of each event, looked up once for each role and name."""
    role, name = trace.columns["role"], trace.columns["name"]
    used = np.zeros((len(Role), max(1, len(trace.names))), bool)
    used[role, name] = True
    tables = np.zeros((3, *used.shape), np.int8)
    for row, column in np.argwhere(used).tolist():
        tables[:, row, column] = kind_of(Role(row), trace.names[column])
    return {what: table[role, name] for what, table in zip(("kind", "pinned", "cause"), tables, strict=True)}


def _calls_with(rows: Rows, correlations: Ints) -> Ints:
    """Return the row of the call with each of these numbers, -1 where there is none."""
    calls = np.flatnonzero((rows["role"] == Role.CALL) & (rows["correlation"] > 0))
    if not len(calls):
        return np.full(len(correlations), -1)
    order = calls[np.argsort(rows["correlation"][calls], kind="stable")]  # of one number, the first to begin is first
    numbers = rows["correlation"][order]
    place = np.minimum(np.searchsorted(numbers, correlations), len(order) - 1)
    return np.where(numbers[place] == correlations, order[place], -1)


def _sub_lanes(rows: Rows, lanes: list[Lane]) -> tuple[list[Lane], int]:
    """Move spans that overlap the one before them in their stream to further lanes "stream 7 (2)"."""
    added, overlapping = Ids(), 0
    streams = np.flatnonzero(np.array([lane.role == "stream" for lane in lanes], bool)[rows["lane"]])
    streams = streams[np.lexsort([rows[column][streams] for column in ("end", "start", "lane")])]
    for number, mine in enumerate(grouped(rows["lane"], len(lanes), streams)):
        start, end = rows["start"][mine], rows["end"][mine]
        late = start[1:] < np.maximum.accumulate(end)[:-1]  # one before it is still open
        some = np.flatnonzero(np.r_[False, late] | np.r_[late, False])
        levels = intervals.tracks(zip(start[some].tolist(), end[some].tolist(), strict=True))
        for index, level in zip(mine[some].tolist(), levels, strict=True):
            if level:
                overlapping += 1
                rows["lane"][index] = len(lanes) + added[number, level]
    further = (replace(lanes[number], name=f"{lanes[number].name} ({level + 1})") for number, level in added)
    return [*lanes, *further], overlapping


def _merged(parts: list[_Part]) -> Timeline:
    """Return the parts as one timeline; a single part, which may be large, is not copied."""
    lanes: list[Lane] = []
    table: dict[str, int] = {}
    sources: dict[str, int] = {}
    lengths = [len(part.rows["start"]) for part in parts]
    for part in parts:
        part.rows["lane"] = part.rows["lane"] + len(lanes)
        lines = np.array([sources.setdefault(line, len(sources)) for line in part.sources] or [-1], np.int32)
        part.rows["source"] = np.where(part.rows["source"] >= 0, lines[part.rows["source"]], -1)
        lanes += part.lanes
        numbers = np.array([table.setdefault(name, len(table)) for name in part.names], np.int32)
        if len(numbers) and (len(parts) > 1 or len(table) < len(numbers)):
            part.rows["name"] = numbers[part.rows["name"]]
    spans = {}
    for column, dtype in SPAN_COLUMNS.items():
        pieces = [
            part.rows.pop(column) if column in part.rows else np.full(length, 0 if column == "waited" else -1, dtype)
            for part, length in zip(parts, lengths, strict=True)
        ]
        spans[column] = (pieces[0] if len(pieces) == 1 else np.concatenate(pieces)).astype(dtype, copy=False)
    before = np.cumsum([0, *lengths[:-1]])
    joins = np.concatenate(
        [part.arrows + np.array([start, start, 0]) for part, start in zip(parts, before, strict=True)]
    )
    arrows = {name: joins[:, i].astype(dtype) for i, (name, dtype) in enumerate(ARROW_COLUMNS.items())}
    timeline = Timeline(Context(), tuple(lanes), tuple(table), tuple(sources), spans, arrows)
    return timeline if len(parts) == 1 else timeline.sorted()


def _devices_apart(traces: Sequence[RawTrace]) -> list[dict[int, int]]:
    """Number the devices of several ranks anew where they clash; those of one rank stay neighbours.

    Ranks without one get the numbers after these, each its own: their loops are not one.
    """
    used = [sorted(devices_of(trace)) for trace in traces]
    flat = [device for devices in sorted(filter(None, used)) for device in devices]
    keep = flat == sorted(set(flat))
    numbers, after = count(), count(max(flat, default=-1) + 1 if keep else len(flat))
    return [{device: device if keep else next(numbers) for device in devices} or {-1: next(after)} for devices in used]


def _device(traces: Sequence[RawTrace], used: list[tuple[RawTrace, int]]) -> str:
    if not used:
        named = _named(max((trace.devices for trace in traces), key=len).values())  # each rank may name all of them
        return f"{named}, no work of it recorded" if named else "no GPU work in it"
    names = _named(trace.devices.get(device, "") for trace, device in used)
    return names or ("a GPU of unknown name" if len(used) == 1 else f"{len(used)} GPUs of unknown name")


def _named(names: Iterable[str]) -> str:
    """Return the names of GPUs, "2 x NVIDIA A100", but for unknown ones."""
    return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in Counter(names).items() if name)


# Lanes: host threads and streams, from the pids and tids of a trace. The role decides, not the pid: GPU rows have the
# device's number as pid, which may equal a real pid. The stream is `args.stream` (newer Kineto puts synchronisation
# rows at tid = stream + 1,000,000); older files have "stream 7" as tid.

_DULL = re.compile(r"^(?:thread \S+(?: \(.*\))?|python[\d.]*|main|stream .*|\d+)$|(?-i:^python|^pyper)", re.I)
_BACKWARD = re.compile(r"^autograd::engine|Backward\d*$")

Key = tuple[str, Any, Any]  # kind of the lane, pid or device, tid or stream


class Lanes:
    """The lanes of one trace. `lane` has the number of each event's lane; `main` is that of the training loop."""

    def __init__(self, trace: RawTrace, label: str = "", device_of: dict[int, int] | None = None) -> None:
        self._trace, self._label, self._device_of = trace, label, device_of or {}
        roles, place = trace.columns["role"], trace.columns["place"]
        group = np.where(np.isin(roles, ON_DEVICE), 1, np.where(roles == Role.GPU_ANNOTATION, 2, 0))
        used = np.zeros((max(1, len(trace.places)), 3), bool)
        used[place, group] = True
        keys = {(number, kind): _key(trace.places[number], kind) for number, kind in np.argwhere(used).tolist()}
        order = sorted(set(keys.values()), key=_natural)
        numbers = {key: number for number, key in enumerate(order)}
        table = np.zeros(used.shape, np.int32)
        for where, key in keys.items():
            table[where] = numbers[key]
        self.lane = table[place, group]
        self.main = self._main(order)
        backward = [number for number, name in enumerate(trace.names) if _BACKWARD.search(name)]
        self._backward = set(np.unique(self.lane[np.isin(trace.columns["name"], backward)]).tolist())
        self.lanes = [self._lane(number, *key) for number, key in enumerate(order)]
        self.threads = {key: number for number, key in enumerate(order) if key[0] == "thread"}
        self.streams = {key[1:]: number for number, key in enumerate(order) if key[0] == "stream"}

    def _main(self, keys: list[Key]) -> int:
        """Return the lane of the training loop: of the steps, else the first thread, else of the most calls."""
        threads = {number: key for number, key in enumerate(keys) if key[0] == "thread"}
        if not threads:
            return -1
        columns = self._trace.columns
        stepping = np.isin(columns["name"], list(numbers_of(self._trace.names, STEP_RANGE)))
        stepping &= np.isin(columns["role"], (Role.ANNOTATION, Role.OPERATOR))
        if marked := [number for number in self.lane[stepping].tolist() if number in threads]:
            return int(Counter(marked).most_common(1)[0][0])
        calls = np.bincount(self.lane[columns["role"] == Role.CALL], minlength=len(keys))
        everything = np.bincount(self.lane, minlength=len(keys))
        first = [number for number, key in threads.items() if key[1] == key[2]]
        return max(first or threads, key=lambda number: (calls[number], everything[number]))

    def _lane(self, number: int, kind: str, owner: Any, thread: Any) -> Lane:
        if kind != "thread":
            name = f"{self._label}stream {thread}{' ranges' if kind == 'ranges' else ''}"
            return Lane(name, "device", kind, thread, self._device_of.get(owner, owner))
        role = "main" if number == self.main else "thread"
        name = self._label + ("main" if role == "main" else self._thread(number, owner, thread))
        identity = thread if isinstance(thread, int) else 0
        return Lane(name, "host", role, identity, min(self._device_of.values(), default=0))

    def _thread(self, number: int, pid: Any, tid: Any) -> str:
        label = self._trace.threads.get((str(pid), str(tid)), "")
        if inner := re.match(r"^thread \S+ \((.+)\)$", label):
            label = inner.group(1)
        if label and not _DULL.match(label):
            return f"{label[:24]} {tid}"
        return f"autograd {tid}" if number in self._backward else f"thread {tid}"


def _key(place: tuple[Any, Any, Any, Any], kind: int) -> Key:
    pid, tid, device, stream = place
    if kind == 0:
        return "thread", _int(pid, str(pid)), _int(tid, str(tid))
    number = _int(tid if stream is None else stream, 0)
    return ("stream", "ranges")[kind - 1], _int(pid if device is None else device, 0), abs(number)


def _natural(key: Key) -> tuple[Any, ...]:
    kind, *rest = key
    return (kind != "thread", *((isinstance(part, str), part) for part in rest), kind)


def devices_of(trace: RawTrace) -> set[int]:
    """Return the numbers of the devices that the trace's GPU work is on."""
    used = np.unique(trace.columns["place"][np.isin(trace.columns["role"], ON_DEVICE)]).tolist()
    return {_key(trace.places[number], 1)[1] for number in used}


def _int(value: Any, default: Any) -> Any:
    """Return the number that a pid, tid, device or stream is: 7, "7", "stream 7", 7.0; `default` if it is none."""
    if isinstance(value, bool) or value is None:
        return default
    if isinstance(value, int):
        return value if abs(value) < 2**53 else default
    match = re.fullmatch(r"(?:stream\s*)?(?:(0x[0-9a-f]{1,13})|(-?\d{1,15})(?:\.0)?)", str(value).strip(), re.I)
    if not match:
        return default
    return int(match.group(1), 16) if match.group(1) else int(match.group(2))


# Waiting: the host inside blocking calls, and streams that wait for events of others

_BLOCKING = ((Api.SYNCHRONIZE, Cause.SYNCHRONIZE), (Api.FREE, Cause.ALLOCATION), (Api.PAGE_LOCK, Cause.PAGE_LOCKING))
_NO_STREAM = (-1, 2**32 - 1)  # both are written where a synchronisation has no stream


def _add_waits(rows: Rows, launch: Ints, calls: Ints, names: list[str]) -> tuple[Rows, Ints]:
    """Return the rows with a WAIT after each blocking call, all of it, and those calls' former rows, sorted."""
    cause = np.full(len(rows["start"]), Cause.NONE, np.int8)
    does = np.where(rows["role"] == Role.CALL, calls[rows["name"]], 0)
    for what, each in _BLOCKING:
        cause[does & what != 0] = each
    if (told := rows["role"] == Role.SYNC).any():  # the file says when the host waits in its calls
        cause[(cause == Cause.SYNCHRONIZE) & np.isin(rows["correlation"], rows["correlation"][told])] = Cause.NONE
    copies = np.flatnonzero(np.isin(rows["kind"], COPIES) & (launch >= 0))
    copies = copies[does[launch[copies]] & Api.COPY != 0]
    call = launch[copies]
    staged = (rows["pinned"][copies] == 0) & (rows["start"][copies] < rows["end"][call])
    returns = np.array(["Async" in name for name in names], bool)  # such a call does not wait for its copy
    cause[call[~returns[rows["name"][call]] & (rows["end"][copies] <= rows["end"][call])]] = Cause.SYNCHRONIZE
    cause[call[staged]] = Cause.STAGING
    blocked = np.flatnonzero((cause != Cause.NONE) & (rows["end"] > rows["start"]))
    causes, which = np.unique(cause[blocked], return_inverse=True)
    new: dict[str, Any] = {
        "kind": Kind.WAIT,
        "cause": cause[blocked],
        "correlation": -1,
        "nbytes": -1,
        "pinned": -1,
        "role": Role.NONE,
        "name": len(names) + which,
    }
    names += [Cause(each).words for each in causes.tolist()]
    result = {}
    for column in sorted(rows, key=lambda name: -rows[name].itemsize):  # large ones first: their room is used again
        old = rows.pop(column)
        result[column] = np.insert(old, blocked + 1, new.get(column, old[blocked])) if len(blocked) else old
    return result, blocked


def _event_arrows(trace: RawTrace, rows: Rows, launch: Ints, streams: dict[tuple[Any, ...], int]) -> Ints:
    """Return pairs of rows (work, work that waited for it), from the profiler's "Stream Wait Event" rows.

    The event stands for the work put into its stream before it was recorded; the first work put into the waiting
    stream after the wait is what waited. Pairs that the times contradict are left out.
    """
    pairs = set()
    if trace.event_waits:
        waits = np.array([[_int(value, -1) for value in row] for row in trace.event_waits], np.int64)
        waits[np.isin(waits, _NO_STREAM)] = -1
        waited, recorded = (_calls_with(rows, waits[:, column]) for column in (0, 4))
        work = np.flatnonzero(np.isin(rows["role"], ON_DEVICE) & (launch >= 0))
        work = work[np.argsort(rows["start"][launch[work]], kind="stable")]
        work = work[np.argsort(rows["lane"][work], kind="stable")]
        queues = grouped(rows["lane"], int(rows["lane"].max(initial=-1)) + 1, work)  # in order of launch
        times = [rows["start"][launch[queue]] for queue in queues]
        for index in np.flatnonzero((waited >= 0) & (recorded >= 0)).tolist():
            _, stream, device, awaited, _ = waits[index].tolist()
            source, target = (streams.get((max(device, 0), number)) for number in (awaited, stream))
            if source is None or target is None or source == target:
                continue
            before = np.searchsorted(times[source], rows["start"][recorded[index]]) - 1
            after = np.searchsorted(times[target], rows["start"][waited[index]])
            if before >= 0 and after < len(queues[target]):
                tail, head = int(queues[source][before]), int(queues[target][after])
                if rows["end"][tail] <= rows["start"][head]:
                    pairs.add((tail, head))
    return np.array(sorted(pairs), np.int64).reshape(-1, 2)


# How good a recording is, in notes that every figure shows: what is missing or left out, how fine the clock is

_PLURAL = {"instant": " marks", "counter": "s", "": "events without a category (as JAX and XLA write them)"}
_ENOUGH = 50  # events; the steps of a clock cannot be told from fewer


def resolution(start: Ints, end: Ints) -> int:
    """Return the largest step that all times are multiples of, ns; 0 if there are too few to tell."""
    if len(start) < _ENOUGH:
        return 0
    some = slice(0, 20_000)
    return int(np.gcd.reduce(np.concatenate([start[some] - start[0], end[some] - start[some]])))


def _left_out(trace: RawTrace) -> list[str]:
    """Return how many events of which kinds are not drawn. Flows are not counted, they are in the picture."""
    out = [
        (f"{name[:60]}{_PLURAL.get(name, '' if ' ' in name else ' events')}", count)
        for name, count in trace.left_out.items()
        if name.lower() not in ("flow", "trace")
    ]
    out += [("synchronisation rows (they give arrows)", trace.sync_rows)] if trace.sync_rows else []
    out.sort(key=lambda item: -item[1])
    return [f"{count:,} {name}" for name, count in out[:6]]


def nothing_drawn(trace: RawTrace) -> str:
    """Say of a file without events that can be drawn how many it has, and why each is not drawn."""
    count = trace.lost.total() + trace.left_out.total() + trace.sync_rows
    flows = trace.left_out["flow"]
    reasons = [
        *(f"{words.count(number, 'event')}{what}" for what, number in trace.lost.most_common() if number),
        *_left_out(trace),
        *([words.count(flows, "flow")] if flows else []),
    ]
    damage = f" (the file is damaged: {'; '.join(trace.damage)})" if trace.damage else ""
    if not count:
        return f"{trace.path} has no events: the profiler recorded nothing{damage}"
    return f"{trace.path} has {words.count(count, 'event')}, and none can be drawn: {', '.join(reasons)}{damage}"


def _missing(trace: RawTrace, rows: Rows, calls: Ints) -> list[str]:
    """Return what the file tells to have been, and does not have."""
    found, count = [], len(rows["start"])
    if trace.unplaced > count:
        share = words.share(count / (count + trace.unplaced))
        lost = f"; {words.count(trace.lost.total(), 'event')} cannot be read" if trace.lost.total() else ""
        found.append(f"only {share} of the events with a duration have a place in the timeline{lost}")
    used = np.isin(rows["role"], ON_DEVICE) | ((rows["role"] == Role.CALL) & (calls[rows["name"]] & Api.LAUNCH != 0))
    if trace.devices and not (used.any() or trace.part):
        named = _named(trace.devices.values())
        found.append(f"the file names {named}, and has no call that launches work and no work of a GPU")
    return found


def _quality(trace: RawTrace, rows: Rows, launch: Ints, calls: Ints, tick: int) -> list[str]:
    """Return what a reader must know of the whole trace, and not of each part."""
    out = _left_out(trace)
    not_drawn = ["not drawn: " + ", ".join(out)] if out else []
    lost = f"{words.count(trace.lost.total(), 'event')} lost" if trace.lost.total() else "no event lost"
    if not len(rows["start"]):
        return [f"the file has no events that can be drawn, {lost}", *not_drawn]
    work = np.flatnonzero(np.isin(rows["role"], ON_DEVICE))
    parts, window = [], []
    if len(work):
        start, call = rows["start"][work], launch[work]
        launching = (rows["role"] == Role.CALL) & (calls[rows["name"]] & Api.LAUNCH != 0)
        idle = int((~np.isin(rows["correlation"][launching], rows["correlation"][work])).sum())
        parts.append(f"{idle:,} of {int(launching.sum()):,} launches without GPU work")
        parts.append(f"{int((call < 0).sum()):,} of {len(work):,} GPU spans without a launch")
        if instant := int((start == rows["end"][work]).sum()):
            parts.append(f"{words.share(instant / len(work))} of GPU spans last 0 ns")
        if early := int((start < rows["start"][call])[call >= 0].sum()):
            parts.append(f"{early:,} GPU spans begin before their launch")
        begin, whole = int(rows["start"][0]), int(rows["end"].max() - rows["start"][0])
        first, last = int(start.min()) - begin, int(rows["end"][work].max()) - begin
        if last - first < whole / 2:  # as with a slow start of CUDA
            window = [
                f"the GPU has work from {words.duration(first)} to {words.duration(last)} only; for its share of "
                f"that time ask for window=({first}, {last})"
            ]
    parts += [f"clock steps of {words.duration(tick)}"] if tick else []
    return ["recording quality: " + ", ".join([*parts, lost]), *window, *not_drawn]
