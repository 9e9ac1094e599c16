"""A torch.profiler (Kineto) trace file -> RawTrace: its event texts -> numpy columns, which costs the time of reading.

A prefilter drops events that are never needed before they are parsed, and cuts the arguments of operators out, most of
a file. What is left is parsed many events at once, with the garbage collector off, and taken one by one.

Times: with `baseTimeNanoseconds` (torch 2.4 and later) `ts` counts µs from it; before, `ts` is µs of Unix time. Both
become ns of Unix time here, so that several ranks can be aligned.
"""

from __future__ import annotations

import gc
import json
import re
import sys
from collections import Counter
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from itertools import chain, compress
from pathlib import Path
from typing import Any

import numpy as np

from loaderviz.files import LIMITS, check_counts
from loaderviz.timeline import Ids, Ints, Message
from loaderviz.traces.source import Document, Event, TraceError, salvaged
from loaderviz.vendors import ROLES, Role, is_collective, message_of

Rows = dict[str, Ints]
Place = tuple[Any, Any, Any, Any]  # pid, tid, device, stream
Frame = tuple[str, Any, Any, int, int]  # of Python, "train.py:82", pid, tid, start and length [ns]

DTYPES: dict[str, Any] = {
    "start": np.int64,
    "end": np.int64,
    "role": np.int8,
    "name": np.int32,
    "place": np.int32,
    "correlation": np.int64,
    "nbytes": np.int64,
}
UNIX = 10**17  # ns; times above it (1973) are of the Unix clock, smaller ones count from an unknown moment
_WAIT_KEYS = ("stream", "device", "wait_on_stream", "wait_on_cuda_event_record_corr_id")
_PHASES = {"i": "instant", "I": "instant", "C": "counter", "s": "flow", "t": "flow", "f": "flow"}
_PHASES |= dict.fromkeys("BE", "events by begin and end") | dict.fromkeys("bne", "asynchronous events")
_DAMAGE = (ValueError, TypeError, KeyError, ArithmeticError, RecursionError, AttributeError)
_OWN = "python_function", "Trace", "trace"  # stacks, and the profiler's own: these are not drawn, and not missing
_ASCEND = re.compile(r"(?:Ascend Hardware|CANN|Overlap Analysis)(?: \d+)?")  # processes in its files
_LOGGED = {  # of the first, none is lost: CUPTI runs in the warm-up, too
    "Out-of-range": "left out {:,} events from before and after the time that it was asked to record",
    "Invalid ext correlations": "left out {:,} links between operators and work of the GPU, which were not valid",
    "CPU GPU out-of-order": "saw {:,} pieces of work that the GPU began before their launch",
}
_LONGEST_TIME = 1 << 61  # ns; int64 has room for a start and a length of it


class _Names(Ids):
    """Counts the characters of the names."""

    size = 0

    def __missing__(self, key: Any) -> int:
        if not isinstance(key, str):
            raise TypeError(f"the name of an event is {key!r}")
        self.size += len(key)
        return super().__missing__(key)


@lru_cache(1_000)
def _role(category: str) -> int:
    return int(ROLES.get(category.lower(), Role.NONE))


@dataclass
class RawTrace:
    """One process's trace as read: `columns` (see `DTYPES`) with one entry per event, in any order.

    `places` are (pid, tid, device, stream), as the file has them. `label` names the process if it has no rank.
    """

    path: Path
    columns: Rows = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    label: str = ""
    unix: bool = True
    rank: int | None = None
    world: int | None = None  # how many ranks the run has
    devices: dict[int, str] = field(default_factory=dict)
    threads: dict[tuple[str, str], str] = field(default_factory=dict)  # (pid, tid) -> its name
    event_waits: list[tuple[Any, ...]] = field(default_factory=list)  # their correlation and `_WAIT_KEYS`
    sync_rows: int = 0
    blits: dict[int, int] = field(default_factory=dict)  # correlation of a hip call -> its direction
    messages: list[Message] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)  # outside torch and the standard library; from `zero` ns on
    zero: int = 0
    left_out: Counter[str] = field(default_factory=Counter)  # what was not taken, by category or phase
    lost: Counter[str] = field(default_factory=Counter)  # what could not be read, by what is wrong with it
    damage: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    part: bool = False  # of a file that has work of a GPU
    arguments: list[dict[str, Any]] = field(default_factory=list)  # of each row, if they were asked for
    unplaced: int = 0  # events that have no place in a timeline or are lost, but for marks and frames of Python
    versions: dict[str, str] = field(default_factory=dict)


def read_kineto(document: Document, *, arguments: bool = False) -> RawTrace:
    """Read a whole trace, with the `arguments` of its events if asked.

    Damage is noted in the RawTrace; `TooLargeError` is raised for what is hostile.
    """
    path, was_enabled = document.source.path, gc.isenabled()
    table = EventTable(trace := RawTrace(path, damage=document.damage), arguments)
    gc.disable()  # it would look at millions of young dicts again and again; two thirds of the time
    try:
        for bodies in document.chunks():
            table.add(bodies, document.key)
    finally:
        if was_enabled:
            gc.enable()
    if table.foreign:
        raise TraceError(f"{path} is {table.foreign}, which is not read; give a trace of torch.profiler on a GPU")
    table.finish()
    outer, start = document.tail | document.head, trace.columns["start"]
    base = _whole(outer.get("baseTimeNanoseconds"))
    if base is not None and len(start) and int(start.min()) < UNIX:
        trace.zero = base
        start += base
        trace.columns["end"] += base
    trace.unix = bool(len(start) and int(start[len(start) // 2]) > UNIX)
    trace.lost[" of no valid JSON"] += document.lost
    trace.unplaced += trace.lost.total()
    for name, value in _told(outer, path.name).items():
        setattr(trace, name, value)
    return trace


def _whole(value: Any) -> int | None:
    return value if type(value) is int and -(2**62) < value < 2**62 else None


def told_rank(outer: dict[str, Any]) -> int | None:
    """Return the rank that the keys around the events tell; None if they do not."""
    info = outer.get("distributedInfo")
    return _whole(info.get("rank")) if isinstance(info, dict) else None


def _told(outer: dict[str, Any], name: str) -> dict[str, Any]:
    """Return what the keys around the events, or the file's name, tell: rank, devices, versions, lost events."""
    rank, properties = told_rank(outer), outer.get("deviceProperties")
    match = re.search(r"rank[-_ ]?(\d{1,6})", name, re.I)  # "rank-3.json.gz", "rank3_trace.json"
    rank = int(match[1]) if rank is None and match else rank
    entries = [entry for entry in properties if isinstance(entry, dict)] if isinstance(properties, list) else []
    devices = {_whole(entry.get("id", place)): entry.get("name") for place, entry in enumerate(entries)}
    info = outer.get("distributedInfo")
    world = _whole(info.get("world_size")) if isinstance(info, dict) else None
    keys = ("torch_version", "cuda_runtime_version", "cuda_driver_version", "hip_runtime_version", "kineto_version")
    missing: list[str] = []
    remarks = []  # what the profiler itself logged, in lines that older versions keep in the file
    logs = [outer[key] for key in ("INFO", "WARNING", "ERROR") if isinstance(outer.get(key), list)]
    for line in (line for log in logs for line in log if isinstance(line, str)):
        for what, count in re.findall(rf"({'|'.join(_LOGGED)}) = (\d+)", line):
            if int(count):
                remarks.append(f"the profiler {_LOGGED[what].format(int(count))}")
        if re.search(r"CUPTI stopped early\? = 1", line):
            missing.append("the profiler's buffer was full: it stopped early")
    return {
        "rank": rank,
        "world": world if 0 < (world or 0) <= LIMITS["lane"] else None,
        "remarks": remarks,
        "missing": missing,
        "devices": {number: name for number, name in devices.items() if number is not None and isinstance(name, str)},
        "versions": {key: str(outer[key]) for key in keys if isinstance(outer.get(key), (str, int, float))},
    }


# The events


class EventTable:
    """Collects the events of one file in `trace`. The arrays are made once, by `finish`."""

    def __init__(self, trace: RawTrace, keeps_arguments: bool = False) -> None:
        self.trace, self.names, self.places, self.count = trace, _Names(), Ids(), 0
        self._arguments: list[dict[str, Any]] | None = [] if keeps_arguments else None  # of the rows of a chunk
        self._columns: Rows = {name: np.empty(0, dtype) for name, dtype in DTYPES.items()}
        self._asked: dict[int, set[Message]] = {}  # by "External id", which processes of one file may share
        self._untold: dict[int, int] = {}  # correlation of a kernel that tells no message -> its "External id"
        self.foreign = ""  # what other profiler's file it is

    def add(self, bodies: Sequence[bytes], key: bytes) -> None:
        """Take the events of a chunk, as `Document.chunks` gives them; if one is damaged, all of them one by one."""
        trace, counted, opening = self.trace, Counter(self.trace.left_out), b'{"' + key + b'"'
        texts = _prefiltered(bodies, trace) if key == b"ph" and self._arguments is None else bodies
        try:
            text = b"[" + b",".join(opening + body + b"}" for body in texts) + b"]"
            events = json.loads(text.decode("utf-8", "replace"), strict=False, parse_float=str)
            if not all(isinstance(event, dict) for event in events):
                raise TypeError("an event is no object")
        except _DAMAGE:
            trace.left_out = counted
            whole = [(opening + body + b"}").decode("utf-8", "replace") for body in bodies]
            events, lost = salvaged(whole, str)
            trace.lost[" of no valid JSON"] += lost
        spans = np.fromiter(chain.from_iterable(filter(None, map(self._row, events))), np.int64)
        self._keep(dict(zip(DTYPES, spans.reshape(-1, len(DTYPES)).T, strict=True)))
        check_counts(event=self.count, character=self.names.size, lane=len(self.places))

    def finish(self) -> None:
        """Give the trace its columns, names and places, and to kernels the messages of what asked for them."""
        for column in self._columns.values():
            column.resize(self.count, refcheck=False)
        self.trace.messages += [
            min(asked)._replace(correlation=correlation)
            for correlation, external in self._untold.items()
            if len(asked := self._asked.get(external, ())) == 1
        ]
        self.trace.columns, self.trace.names, self.trace.places = self._columns, list(self.names), list(self.places)

    def _row(self, event: Event) -> tuple[int, ...] | None:
        """Return a parsed event as a row of the columns; None if it is no span, or has values of wrong types (lost).

        Kept beside the columns are synchronisation rows and the directions of hip copies; what is left out is counted.
        """
        if event.get("ph") != "X":
            self._other(event)
            return None
        what = "time"
        try:
            start, what = _nanoseconds(event["ts"]), "length"
            length, what = _nanoseconds(event["dur"]), "category"
            role, what = _role(event.get("cat", "")), "name"
            name = self.names[event["name"]] if role else -1
        except _DAMAGE:
            self.trace.lost[_unread(event, what)] += 1
            return None
        arguments = event.get("args")
        if not isinstance(arguments, dict):
            arguments = {}
        correlation = _number(arguments["correlation"]) if "correlation" in arguments else -1
        if role == Role.NONE:
            self.trace.left_out[event.get("cat", "")] += 1
            self.trace.unplaced += event.get("cat") not in _OWN
            match = _FRAME.match(str(event.get("name"))) if event.get("cat") == "python_function" else None
            if match and _is_users(match[1]) and len(self.trace.frames) < MOST_FRAMES:
                self.trace.frames.append((f"{match[1]}:{match[2]}", event.get("pid"), event.get("tid"), start, length))
            return None
        if role == Role.SYNC:
            self.trace.sync_rows += 1
            if event["name"] == "Stream Wait Event":
                self.trace.event_waits.append((correlation, *(arguments.get(key) for key in _WAIT_KEYS)))
            return None
        if role == Role.CALL and "kind" in arguments:
            self.trace.blits[correlation] = _number(arguments["kind"])
        if "Collective name" in arguments or (role == Role.KERNEL and is_collective(event["name"])):
            self._message(role, correlation, arguments)
        where = event.get("pid"), event.get("tid"), arguments.get("device"), arguments.get("stream")
        try:
            place = self.places[where]
        except TypeError:  # a list or an object
            place = self.places[tuple(key if isinstance(key, Hashable) else str(key) for key in where)]
        if self._arguments is not None:
            self._arguments.append(arguments)
        nbytes = _number(arguments.get("size", arguments.get("bytes", -1))) if arguments else -1
        return start, start + length, role, name, place, correlation, nbytes

    def _message(self, role: int, correlation: int, arguments: dict[str, Any]) -> None:
        """Keep what a collective moves: newer files tell it with its kernel, all that do with the operator."""
        message, external = message_of(correlation, arguments), _number(arguments.get("External id", -1))
        if role == Role.KERNEL and message.name and correlation > 0:
            self.trace.messages.append(message)
        elif role == Role.KERNEL:
            self._untold[correlation] = external
        elif role == Role.OPERATOR and external > 0:
            self._asked.setdefault(external, set()).add(message._replace(correlation=-1))

    def _keep(self, rows: Rows) -> None:
        """Keep these spans; one that ends before it starts is lost."""
        keep = rows["end"] >= rows["start"]
        self.trace.lost[" of negative length"] += int((~keep).sum())
        count = self.count + int(keep.sum())
        if count > len(self._columns["start"]):  # they grow in place: to join arrays at the end takes twice the room
            for column in self._columns.values():
                column.resize(max(count * 5 // 4, 1 << 16), refcheck=False)
        for name, values in rows.items():
            self._columns[name][self.count : count] = values if keep.all() else values[keep]
        self.count = count
        if self._arguments:
            self.trace.arguments += compress(self._arguments, keep.tolist())
            self._arguments.clear()

    def _other(self, event: Event) -> None:
        """Keep the names of threads, count other events that are no spans."""
        phase, what, inner = event.get("ph"), event.get("name"), event.get("args")
        label = inner.get("name") if isinstance(inner, dict) else inner
        if phase != "M":
            self.trace.left_out[_PHASES.get(str(phase), "event of an unknown phase")] += 1
        elif what == "process_name" and _ASCEND.fullmatch(str(label)):
            self.foreign = "a profile of an Ascend NPU, as msprof and torch_npu write it"
        elif what == "thread_name" and isinstance(label, str) and len(self.trace.threads) < LIMITS["lane"]:
            self.trace.threads[str(event.get("pid")), str(event.get("tid"))] = label


def _unread(event: Event, what: str) -> str:
    """Return in words that this could not be read of an event."""
    with suppress(*_DAMAGE):
        if what == "time" and _LONGEST_TIME < 1000 * float(event["ts"]) < 10**5 * UNIX:
            return " whose time is in ns, as it seems, where µs are expected"
    return f" without a {what} that can be read"


def _number(value: Any) -> int:
    """Return a whole number; what is none, or too large, becomes -1. Text is read: ROCm writes `"size": "2560"`."""
    try:
        if type(value) is not int:
            value = int(value, 0) if "x" in value else Decimal(value)
        return int(value) if -(2**62) < value < 2**62 else -1  # to make "1e999999" an int takes minutes
    except (TypeError, ValueError, ArithmeticError):
        return -1


def _nanoseconds(value: Any) -> int:
    """Return a time given in µs as whole ns, with all its digits; raise an error for what is none."""
    time: int | Decimal
    if type(value) is int:
        time = value * 1000
    elif type(value) is str:
        whole, _, rest = value.partition(".")
        quick = len(rest) <= 3 and whole and (whole + rest).isdecimal()
        time = int(f"{whole}{rest:0<3}") if quick else Decimal(value) * 1000
    else:
        raise TypeError(f"{value!r} is no time")
    if not -_LONGEST_TIME <= time <= _LONGEST_TIME:
        raise ValueError(f"{value!r} µs is out of range")
    return round(time)  # not before: to make "1e999999" an int takes minutes


# The prefilter: by how their texts begin. Whatever does not look exactly as expected is kept, and read with all care.

_ASKS = b'"record_param_comms"'  # the operator that tells what a collective moves
_ARGUMENTS = (b'"args": ', b'"args":')
_BLANKS = [(b" ", b" "), (b"", b""), (b" ", b"\n    "), (b" ", b"\n      ")]  # Kineto, compact, torch 2.13, indent=2


def _begin(phase: bytes, *categories: bytes) -> tuple[bytes, ...]:
    """Return how the texts of a phase, or of its categories, begin."""
    found = {
        b':%s"%s"' % (colon, phase) + (b',%s"cat":%s"%s"' % (comma, colon, category) if category else b"")
        for colon, comma in _BLANKS
        for category in categories or (b"",)
    }
    return tuple(found)


_OPERATORS, _FRAMES = _begin(b"X", b"cpu_op", b"Operator"), _begin(b"X", b"python_function")
_FLOWS, _INSTANTS = _begin(b"s") + _begin(b"f"), _begin(b"i")


# A frame of Python, "train.py(82): train_step"; of torch and the standard library there are far too many.
_FRAME, _FRAMES_NAME = re.compile(r"([^\"]+)\((\d+)\): "), re.compile(rb'"name":\s*"([^"]+)\(\d+\): ')
_INSIDE = re.compile(
    r"(?:.*[/\\](?:site|dist)-packages[/\\])?torch[/\\]|<(?!ipython|stdin)|.*[/\\]lib[/\\]python3[^/\\]*[/\\][^/\\]*$"
)
MOST_FRAMES = 1_000_000


@lru_cache(10_000)
def _is_users(file: str) -> bool:
    """Tell whether a file is neither of torch nor of the standard library."""
    first = re.split(r"[/\\.]", file, maxsplit=1)[0]
    return not (_INSIDE.match(file) or first in sys.stdlib_module_names)


def _has_users_frame(body: bytes) -> bool:
    match = _FRAMES_NAME.search(body)
    return bool(match and _is_users(match[1].decode("utf-8", "replace")))


def _prefiltered(bodies: Sequence[bytes], trace: RawTrace) -> list[bytes]:
    """Return what is needed, operators without their arguments; the trace counts all other events."""
    texts: list[bytes] = []
    flows = instants = python = 0
    for body in bodies:
        if body.startswith(_OPERATORS):
            place = body.find(b"{")
            plain = place > 0 and body.find(b"{", place + 1) < 0 and body.endswith(_ARGUMENTS, 0, place)
            plain = plain and body.find(_ASKS, 0, place) < 0
            texts.append(body[:place] + b"{}" if plain else body)
        elif body.startswith(_FLOWS) and b"{" not in body:
            flows += 1
        elif body.startswith(_FRAMES) and body.count(b"{") == 1 and not _has_users_frame(body):
            python += 1
        elif body.startswith(_INSTANTS) and body.count(b"{") == 1:
            instants += 1
        else:
            texts.append(body)
    trace.left_out += Counter(flow=flows, instant=instants, python_function=python)
    return texts
