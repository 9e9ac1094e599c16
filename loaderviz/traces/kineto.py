"""A torch.profiler (Kineto) trace file -> RawTrace: its event texts -> numpy columns, which costs the time of reading.

A prefilter drops events that are never needed before they are parsed, and cuts the arguments of operators out, most of
a file. Events of one template, which differ in their numbers only, are read by numpy. What is left is parsed many
events at once, with the garbage collector off, and taken one by one.

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
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loaderviz.traces.source import Document, Event, TraceError, salvaged
from loaderviz.vendors import ROLES, Role

Ints = npt.NDArray[np.integer[Any]]
Numbers = npt.NDArray[np.int64]
Rows = dict[str, Ints]
Place = tuple[Any, Any, Any, Any]  # pid, tid, device, stream
Frame = tuple[str, str, str, float, float]  # of Python, "train.py:82", pid, tid, start and length [µs]

MAX_EVENTS = 50_000_000  # 2.5 GB of columns
MAX_NAMES = 1 << 28  # characters of all different names
MAX_PLACES = 100_000
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
_LONGEST_TIME = 1 << 61  # ns; int64 has room for a start and a length of it


class Ids(dict[Any, int]):
    """Numbers its keys in the order of their first use."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


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

    `places` are (pid, tid, device, stream), as the file has them. `label` names the process if it has no rank. `damage`
    and `lost` say what could not be read.
    """

    path: Path
    columns: Rows = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    label: str = ""
    unix: bool = True
    rank: int | None = None
    devices: dict[int, str] = field(default_factory=dict)
    threads: dict[tuple[str, str], str] = field(default_factory=dict)  # (pid, tid) -> its name
    event_waits: list[tuple[Any, ...]] = field(default_factory=list)  # their correlation and `_WAIT_KEYS`
    sync_rows: int = 0
    blits: dict[int, int] = field(default_factory=dict)  # correlation of a hip call -> its direction
    frames: list[Frame] = field(default_factory=list)  # outside torch and the standard library; µs from `zero` ns
    zero: int = 0
    left_out: Counter[str] = field(default_factory=Counter)  # what was not taken, by category or phase
    lost: int = 0
    damage: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)


def read_kineto(document: Document) -> RawTrace:
    """Read a whole trace. Damage is noted in the RawTrace; `TraceError` is raised for what is no trace or hostile."""
    path, was_enabled = document.source.path, gc.isenabled()
    table = EventTable(trace := RawTrace(path, damage=document.damage))
    gc.disable()  # it would look at millions of young dicts again and again; two thirds of the time
    try:
        for bodies in document.chunks():
            table.add(bodies, document.key)
    finally:
        if was_enabled:
            gc.enable()
    table.finish()
    outer, start = document.tail | document.head, trace.columns["start"]
    base = _whole(outer.get("baseTimeNanoseconds"))
    if base is not None and len(start) and int(start.min()) < UNIX:
        trace.zero = base
        start += base
        trace.columns["end"] += base
    trace.unix = bool(len(start) and int(start[len(start) // 2]) > UNIX)
    trace.lost += document.lost
    for name, value in _told(outer, path.name).items():
        setattr(trace, name, value)
    return trace


def _whole(value: Any) -> int | None:
    return value if type(value) is int and -(2**62) < value < 2**62 else None


def _told(outer: dict[str, Any], name: str) -> dict[str, Any]:
    """Return what the keys around the events, or the file's name, tell: rank, devices, versions, lost events."""
    info, properties = outer.get("distributedInfo"), outer.get("deviceProperties")
    rank = _whole(info.get("rank")) if isinstance(info, dict) else None
    match = re.search(r"rank[-_ ]?(\d{1,6})", name, re.I)  # "rank-3.json.gz", "rank3_trace.json"
    rank = int(match[1]) if rank is None and match else rank
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


# The events


class EventTable:
    """Collects the events of one file in `trace`. The arrays are made once, by `finish`."""

    def __init__(self, trace: RawTrace) -> None:
        self.trace, self.names, self.places, self.count = trace, _Names(), Ids(), 0
        self._columns: Rows = {name: np.empty(0, dtype) for name, dtype in DTYPES.items()}
        self._opening = self._mark = b""  # what an event begins with, and what stands between its name and its pid
        self._templates: dict[bytes, Template | None] = {}
        self._head = lru_cache(_MAX_HEADS)(self._new_head)

    def add(self, bodies: Sequence[bytes], key: bytes) -> None:
        """Take the events of a chunk, as `Document.chunks` gives them; if one is damaged, all of them one by one."""
        trace, counted, self._opening = self.trace, Counter(self.trace.left_out), b'{"' + key + b'"'
        texts, rest = _prefiltered(bodies, trace) if key == b"ph" else (list(bodies), [])
        found, odd = self._by_template(texts)
        try:
            text = b"[" + b",".join(self._opening + body + b"}" for body in rest + odd) + b"]"
            events = json.loads(text.decode("utf-8", "replace"), strict=False, parse_float=Decimal)
            if not all(isinstance(event, dict) for event in events):
                raise TypeError("an event is no object")
        except _DAMAGE:
            trace.left_out, found = counted, []
            whole = [(self._opening + body + b"}").decode("utf-8", "replace") for body in bodies]
            events, lost = salvaged(whole, Decimal)
            trace.lost += lost
        for rows in found:
            self._keep(rows)
        spans = np.fromiter(chain.from_iterable(filter(None, map(self._row, events))), np.int64)
        self._keep(dict(zip(DTYPES, spans.reshape(-1, len(DTYPES)).T, strict=True)))
        for what, count, most in (
            ("events; record fewer steps", self.count, MAX_EVENTS),
            ("characters in the names of its events; this is no trace", self.names.size, MAX_NAMES),
            ("threads and streams; this is no trace of a profiler", len(self.places), MAX_PLACES),
        ):
            if count > most:
                raise TraceError(f"it has more than {most:,} {what}")

    def finish(self) -> None:
        """Give the trace its columns, names and places."""
        for column in self._columns.values():
            column.resize(self.count, refcheck=False)
        self.trace.columns, self.trace.names, self.trace.places = self._columns, list(self.names), list(self.places)

    def _by_template(self, texts: list[bytes]) -> tuple[list[Rows], list[bytes]]:
        """Return the rows that numpy reads, those of a template at once, and the texts that it cannot read."""
        self._mark = mark = self._mark or next((match[1] for text in texts if (match := _PID.match(text))), b"")
        groups: dict[bytes, tuple[list[bytes], list[bytes]]] = {}  # heads (up to the name), tails (after `"pid": `)
        rest: list[bytes] = []
        if not mark:
            return [], texts
        for text in texts:
            head, found, tail = text.partition(mark)
            if not found:
                rest.append(text)
                continue
            digits_out = tail.translate(None, _DIGITS)
            group = groups.get(digits_out)
            if group is None:
                group = groups[digits_out] = ([], [])
            group[0].append(head)
            group[1].append(tail)
        taken = []
        for digits_out, (heads, tails) in groups.items():
            rows = self._of_template(digits_out, heads, tails)
            keep = rows["role"] >= 0 if rows else np.zeros(len(heads), bool)
            if not keep.all():
                rest += [heads[place] + mark + tails[place] for place in np.flatnonzero(~keep).tolist()]
                rows = {name: values[keep] for name, values in rows.items()}
            if rows:
                taken.append(rows)
        return taken, rest

    def _of_template(self, digits_out: bytes, heads: list[bytes], tails: list[bytes]) -> Rows:
        """Return columns of the events of one template, the role -1 for those that are no spans; {} if it cannot."""
        if len(heads) < FEW:
            return {}
        if digits_out not in self._templates and len(self._templates) < MAX_TEMPLATES:
            self._templates[digits_out] = template_of(tails[0])
        if (template := self._templates.get(digits_out)) is None:
            return {}
        try:
            numbers = _numbers(tails, template.width)
            start, length = (_times(numbers, template, name) for name in ("ts", "dur"))
            who = np.fromiter(map(self._head, heads), np.int64, len(heads))
        except _DAMAGE:
            return {}
        if (numbers[:, list(template.places.values())] == _LARGEST).any():
            return {}
        found = {name: numbers[:, place] for name, place in template.places.items()}
        none = np.full(len(heads), -1)
        places = (
            found[name].tolist() if name in found else [None] * len(heads)
            for name in ("pid", "tid", "device", "stream")
        )
        place = np.fromiter(map(self.places.__getitem__, zip(*places, strict=True)), np.int64, len(heads))
        role = np.where(who < 0, -1, who % len(Role))
        times: Rows = {"start": start, "end": start + length, "name": who // len(Role), "role": role}
        return times | {"place": place} | {name: found.get(name, none) for name in ("correlation", "nbytes")}

    def _new_head(self, head: bytes) -> int:
        """Return a number that stands for name and role of a head, -1 if such events are no spans.

        Raises ValueError if it is not just phase, category and name.
        """
        event = json.loads((self._opening + head + b'"}').decode("utf-8", "replace"), strict=False)
        if event.keys() != {"ph", "cat", "name"} or event["ph"] != "X":
            raise ValueError("it has other keys before its pid")
        role = _role(event["cat"])
        return -1 if role in (Role.NONE, Role.SYNC) else self.names[event["name"]] * len(Role) + role

    def _row(self, event: Event) -> tuple[int, ...] | None:
        """Return a parsed event as a row of the columns; None if it is no span, or has values of wrong types (lost).

        Kept beside the columns are synchronisation rows and the directions of hip copies; what is left out is counted.
        """
        if event.get("ph") != "X":
            self._other(event)
            return None
        try:
            start, length = _nanoseconds(event["ts"]), _nanoseconds(event["dur"])
            name, role = self.names[event["name"]], _role(event.get("cat", ""))
        except _DAMAGE:
            self.trace.lost += 1
            return None
        arguments = event.get("args")
        if not isinstance(arguments, dict):
            arguments = {}
        correlation = _number(arguments["correlation"]) if "correlation" in arguments else -1
        if role == Role.NONE:
            self.trace.left_out[event.get("cat", "")] += 1
            if event.get("cat") == "python_function" and (found := _frame(json.dumps(event, default=str).encode())):
                self.trace.frames.append(found)
            return None
        if role == Role.SYNC:
            self.trace.sync_rows += 1
            if event["name"] == "Stream Wait Event":
                self.trace.event_waits.append((correlation, *(arguments.get(key) for key in _WAIT_KEYS)))
            return None
        if role == Role.CALL and "kind" in arguments:
            self.trace.blits[correlation] = _number(arguments["kind"])
        where = event.get("pid"), event.get("tid"), arguments.get("device"), arguments.get("stream")
        try:
            place = self.places[where]
        except TypeError:  # a list or an object
            place = self.places[tuple(key if isinstance(key, Hashable) else str(key) for key in where)]
        nbytes = _number(arguments.get("size", arguments.get("bytes", -1))) if arguments else -1
        return start, start + length, role, name, place, correlation, nbytes

    def _keep(self, rows: Rows) -> None:
        """Keep these spans; one that ends before it starts, or is absurdly long, is lost."""
        start, length = rows["start"], rows["end"] - rows["start"]
        keep = (length >= 0) & (np.abs(start) <= _LONGEST_TIME) & (length <= _LONGEST_TIME)
        self.trace.lost += int((~keep).sum())
        count = self.count + int(keep.sum())
        if count > len(self._columns["start"]):  # they grow in place: to join arrays at the end takes twice the room
            for column in self._columns.values():
                column.resize(max(count * 5 // 4, 1 << 16), refcheck=False)
        for name, values in rows.items():
            self._columns[name][self.count : count] = values if keep.all() else values[keep]
        self.count = count

    def _other(self, event: Event) -> None:
        """Keep the names of threads, count other events that are no spans."""
        phase, inner = event.get("ph"), event.get("args")
        if phase != "M":
            self.trace.left_out[_PHASES.get(str(phase), "event of an unknown phase")] += 1
        elif event.get("name") == "thread_name" and len(self.trace.threads) < MAX_PLACES:
            label = inner.get("name") if isinstance(inner, dict) else inner
            if isinstance(label, str):
                self.trace.threads[str(event.get("pid")), str(event.get("tid"))] = label


def _number(value: Any) -> int:
    """Return a whole number; what is none, or too large, becomes -1. Text is read: ROCm writes `"size": "2560"`."""
    try:
        number = value if type(value) is int else int(value, 0) if isinstance(value, str) else int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
    return number if -(2**62) < number < 2**62 else -1


def _nanoseconds(value: Any) -> int:
    """Return a time given in µs as whole ns, with all its digits; raise an error for what is none."""
    if isinstance(value, str):
        value = Decimal(value)
    elif type(value) is not int and type(value) is not Decimal:
        raise TypeError(f"{value!r} is no time")
    time = value * 1000
    if abs(time) > _LONGEST_TIME:
        raise ValueError(f"{value!r} µs is out of range")
    whole: int = round(time)
    return whole


# The prefilter: by how their texts begin. Whatever does not look exactly as expected is kept, and read with all care.

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
_SYNCS, _FLOWS, _INSTANTS = _begin(b"X", b"cuda_sync", b"xpu_sync"), _begin(b"s") + _begin(b"f"), _begin(b"i")


# A frame of Python, "train.py(82): train_step"; of torch and the standard library there are far too many.
_FRAME = re.compile(
    rb'"name":\s*"([^"]+)\((\d+)\): [^"]*",\s*"pid":\s*"?(\d+)"?,\s*"tid":\s*"?(\d+)"?,\s*'
    rb'"ts":\s*([\d.]+),\s*"dur":\s*([\d.]+)'
)
_INSIDE = re.compile(
    r"(?:.*[/\\](?:site|dist)-packages[/\\])?torch[/\\]|<(?!ipython|stdin)|.*[/\\]lib[/\\]python3[^/\\]*[/\\][^/\\]*$"
)
MOST_FRAMES = 1_000_000


@lru_cache(10_000)
def _is_users(file: bytes) -> bool:
    """Tell whether a file is neither of torch nor of the standard library."""
    name = file.decode("utf-8", "replace")
    first = re.split(r"[/\\.]", name, maxsplit=1)[0]
    return not (_INSIDE.match(name) or first in sys.stdlib_module_names)


def _frame(body: bytes) -> Frame | None:
    """Return the frame that an event tells, None if it is of a library or reads otherwise."""
    match = _FRAME.search(body)
    if match is None or not _is_users(match[1]):
        return None
    source = f"{match[1].decode('utf-8', 'replace')}:{match[2].decode()}"
    return source, match[3].decode(), match[4].decode(), float(match[5]), float(match[6])


def _prefiltered(bodies: Sequence[bytes], trace: RawTrace) -> tuple[list[bytes], list[bytes]]:
    """Return what is needed (operators without their arguments) and the synchronisation rows.

    The trace gets the frames of Python outside torch, and counts all other events.
    """
    texts: list[bytes] = []
    syncs: list[bytes] = []
    flows = instants = python = 0
    for body in bodies:
        if body.startswith(_FLOWS) and b"{" not in body:
            flows += 1
        elif body.startswith(_OPERATORS):
            place = body.find(b"{")
            plain = place > 0 and body.find(b"{", place + 1) < 0 and body.endswith(_ARGUMENTS, 0, place)
            texts.append(body[:place] + b"{}" if plain else body)
        elif body.startswith(_FRAMES) and body.count(b"{") == 1:
            python += 1
            if len(trace.frames) < MOST_FRAMES and (found := _frame(body)):
                trace.frames.append(found)
        elif body.startswith(_INSTANTS) and body.count(b"{") == 1:
            instants += 1
        else:
            (syncs if body.startswith(_SYNCS) else texts).append(body)
    trace.left_out += Counter(flow=flows, instant=instants, python_function=python)
    return texts, syncs


# Templates. A profiler writes millions of events in a few shapes: take the digits out of their texts, and the texts are
# equal. So each shape is understood once, by the JSON parser, on a sample in which every number is replaced by its
# place; then
#
#     b'9, "tid": 7, "ts": 12.5, "dur": 3, "args": {"device": 0, "stream": 7, "correlation": 42}'
#
# gives the row 9, 7, 12, 15, 3, 0, 7, 42 (".5" is read as 15: the 1 keeps leading zeros). What has another shape, a
# number that does not fit, or a digit where no number is goes to the JSON parser.

FEW = 16  # events of one template; fewer are not worth numpy's start
MAX_TEMPLATES = 1_000  # profilers write some ten
_MAX_HEADS = 50_000  # different names kept
_DIGITS = b"0123456789"
_NOT_DIGITS = bytes(code if code in _DIGITS else 32 for code in range(256))  # a table that makes blanks of all others
_NUMBER = re.compile(rb"(\d+)\.\d+|\d+|\.\d*")
# What stands before the pid where an event begins with phase, category and name alone; others are not grouped.
_PID = re.compile(rb':\s?"(?:[^"\\]|\\.)*(?:",\s*"(?:ph|cat|name)":\s?"(?:[^"\\]|\\.)*){2}(",\s*"pid":\s?)')
_BORDER = 7_777_777  # stands between two events: each must have all of its numbers
_LARGEST = np.iinfo(np.int64).max  # what numpy makes of larger numbers
_LONGEST = 1 << 51  # µs; as ns it fits into int64 with room to spare


class Template(NamedTuple):
    """Where the numbers of an event are: the place of each that counts, which have decimals, how many there are."""

    places: dict[str, int]
    decimals: frozenset[int]
    width: int


def template_of(tail: bytes) -> Template | None:
    """Return the template of an event by a sample; None unless all that counts in it is a plain number.

    >>> template_of(b'1, "tid": 7, "ts": 12.5, "dur": 3, "args": {"correlation": 42}').places
    {'pid': 0, 'tid': 1, 'ts': 2, 'dur': 4, 'correlation': 5}
    """
    width = numbers = 0
    decimals = set()

    def place(match: re.Match[bytes]) -> bytes:
        nonlocal width, numbers
        here = width
        width += 2 if match.group(1) else 1
        if match.group().startswith(b"."):
            return b"."
        numbers += 1
        if match.group(1):
            decimals.add(here)
        return b"%d" % (here + 1)  # from 1: "-0" would be 0

    filled = _NUMBER.sub(place, tail)
    try:
        event = json.loads((b'{"pid": ' + filled + b"}").decode())
    except (ValueError, RecursionError):
        return None
    arguments = event.get("args") if isinstance(event.get("args"), dict) else {}
    wanted = {name: event.get(name) for name in ("pid", "tid", "ts", "dur")}
    wanted |= {name: arguments[name] for name in ("device", "stream", "correlation") if name in arguments}
    if size := [arguments[name] for name in ("size", "bytes") if name in arguments]:
        wanted["nbytes"] = size[0]
    found = {name: _slot(value, name) for name, value in wanted.items()}
    texts = sum(isinstance(value, str) and _slot(value, "tid") > 0 for value in (event.get("pid"), event.get("tid")))
    whole = {slot - 1 for name, slot in found.items() if name not in ("ts", "dur")}  # these must have no decimals
    if min(found.values()) <= 0 or _plain(event) + texts != numbers or decimals & whole:
        return None
    if event.keys() & {"ph", "cat", "name"} or "kind" in arguments:  # the JSON parser knows what to do with them
        return None
    return Template({name: slot - 1 for name, slot in found.items()}, frozenset(decimals), width)


def _slot(value: Any, name: str) -> int:
    """Return the place, from 1, that stands for a number; 0 if there is none. Ids may be text: "25738", "stream 7"."""
    if name in ("pid", "tid") and isinstance(value, str) and (match := re.fullmatch(r"(?:stream )?(\d+)", value)):
        return int(match.group(1))
    return value if type(value) is int else 0


def _plain(value: Any) -> int:
    if isinstance(value, (dict, list)):
        return sum(_plain(each) for each in (value.values() if isinstance(value, dict) else value))
    return type(value) is int and value >= 0


def _numbers(tails: Sequence[bytes], width: int) -> Numbers:
    """Return the numbers of events of a template, shape (events, width); raise ValueError if one has more or fewer."""
    border = b" %d " % _BORDER
    text = (border.join(tails) + border).replace(b".", b" 1").translate(_NOT_DIGITS)
    found: Numbers = np.fromstring(text, np.int64, sep=" ")  # of text this is not deprecated
    if len(found) != len(tails) * (width + 1) or (found[width :: width + 1] != _BORDER).any():
        raise ValueError("the events do not have the same numbers")
    return found.reshape(len(tails), width + 1)


def _times(numbers: Numbers, template: Template, name: str) -> Numbers:
    """Return times given in µs as whole ns; raise ValueError if they have more than three decimals or are too large."""
    place = template.places[name]
    whole = numbers[:, place]
    if (whole > _LONGEST).any():
        raise ValueError("a time is out of range")
    if place not in template.decimals:
        return whole * 1_000
    rest = numbers[:, place + 1]  # 1, and then the decimals
    if (rest >= 2_000).any():
        raise ValueError("a time is finer than a nanosecond")
    return whole * 1_000 + np.where(rest < 20, rest * 100, np.where(rest < 200, rest * 10, rest)) - 1_000
