"""Event texts -> numpy columns: the part that costs the time of reading a trace.

A prefilter drops events that are never needed before they are parsed, and cuts the arguments of operators out, most of
a file. Events of one template, which differ in their numbers only, are read by numpy. What is left is parsed many
events at once, with the garbage collector off, and taken one by one.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loaderviz.traces.source import Event, TraceError, salvaged
from loaderviz.vendors import ROLES, Role

Ints = npt.NDArray[np.integer[Any]]
Numbers = npt.NDArray[np.int64]
Rows = dict[str, Ints]
Place = tuple[Any, Any, Any, Any]  # pid, tid, device, stream
Group = tuple[list[bytes], list[bytes]]  # heads (up to the name) and tails (after `"pid": `) of events of one template

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


class EventTable:
    """Collects the events of one file, which begin with `key`. The arrays are made once, by `finish`."""

    def __init__(self, key: bytes) -> None:
        self.names, self.places = _Names(), Ids()
        self.threads: dict[tuple[str, str], str] = {}  # (pid, tid) -> its name
        self.left_out: Counter[str] = Counter()  # what was not taken, by category or phase
        self.event_waits: list[tuple[Any, ...]] = []  # their correlation and `_WAIT_KEYS`
        self.sync_rows = 0
        self.blits: dict[int, int] = {}  # correlation of a hip call -> its direction
        self.frames: list[Frame] = []  # of Python, outside torch and the standard library
        self.lost = self.count = 0
        self._opening, self._filters = b'{"' + key + b'"', key == b"ph"
        self._columns: Rows = {name: np.empty(0, dtype) for name, dtype in DTYPES.items()}
        self._mark = b""  # what stands between name and pid, such as `", "pid": `
        self._templates = Templates(self._opening, self._number_of, self.places)

    def add(self, bodies: Sequence[bytes]) -> None:
        """Take the events of a chunk, as `Document.chunks` gives them; if one is damaged, all of them one by one."""
        counted = Counter(self.left_out)
        texts, rest = _prefiltered(bodies, self.left_out, self.frames) if self._filters else (list(bodies), [])
        found, odd = self._by_template(texts)
        try:
            text = b"[" + b",".join(self._opening + body + b"}" for body in rest + odd) + b"]"
            events = json.loads(text.decode("utf-8", "replace"), strict=False, parse_float=Decimal)
            if not all(isinstance(event, dict) for event in events):
                raise TypeError("an event is no object")
        except _DAMAGE:
            self.left_out, found = counted, []
            whole = [(self._opening + body + b"}").decode("utf-8", "replace") for body in bodies]
            events, lost = salvaged(whole, Decimal)
            self.lost += lost
        for rows in found:
            self._keep(rows)
        spans = [row for event in events if (row := self._row(event))]
        self._keep(dict(zip(DTYPES, np.array(spans, np.int64).reshape(-1, len(DTYPES)).T, strict=True)))
        if self.count > MAX_EVENTS:
            raise TraceError(f"it has more than {MAX_EVENTS:,} events; record fewer steps")
        if self.names.size > MAX_NAMES:
            raise TraceError(f"the names of its events take more than {MAX_NAMES:,} characters; this is no trace")
        if len(self.places) > MAX_PLACES:
            raise TraceError(f"it has more than {MAX_PLACES:,} threads and streams; this is no trace of a profiler")

    def finish(self) -> Rows:
        """Return the columns, and forget them."""
        columns, self._columns = self._columns, {}
        for column in columns.values():
            column.resize(self.count, refcheck=False)
        return columns

    def _by_template(self, texts: list[bytes]) -> tuple[list[Rows], list[bytes]]:
        """Return the rows that numpy reads, a group of alike events each, and the texts that it cannot."""
        self._mark = self._mark or next((match.group() for text in texts if (match := _PID.search(text))), b"")
        groups, rest = grouped(texts, self._mark) if self._mark else ({}, texts)
        taken = []
        for digits_out, (heads, tails) in groups.items():
            found = self._templates.rows(digits_out, heads, tails)
            if found is None:
                rest += [head + self._mark + tail for head, tail in zip(heads, tails, strict=True)]
                continue
            rows, who = found
            keep = who >= 0
            if not keep.all():
                rest += [heads[place] + self._mark + tails[place] for place in np.flatnonzero(~keep).tolist()]
                rows, who = {name: values[keep] for name, values in rows.items()}, who[keep]
            taken.append({**rows, "role": who % len(Role), "name": who // len(Role)})
        return taken, rest

    def _number_of(self, category: str, name: str) -> int:
        """Return a number that stands for name and role; -1 if such events are not spans."""
        role = _role(category)
        return -1 if role in (Role.NONE, Role.SYNC) else self.names[name] * len(Role) + role

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
            self.lost += 1
            return None
        inner = event.get("args")
        arguments: dict[str, Any] = inner if isinstance(inner, dict) else {}
        correlation = _number(arguments.get("correlation", -1))
        if role == Role.NONE:
            self.left_out[event.get("cat", "")] += 1
            if event.get("cat") == "python_function" and (found := _frame(json.dumps(event, default=str).encode())):
                self.frames.append(found)
            return None
        if role == Role.SYNC:
            self.sync_rows += 1
            if event["name"] == "Stream Wait Event":
                self.event_waits.append((correlation, *(arguments.get(key) for key in _WAIT_KEYS)))
            return None
        if role == Role.CALL and "kind" in arguments:
            self.blits[correlation] = _number(arguments["kind"])
        where = event.get("pid"), event.get("tid"), arguments.get("device"), arguments.get("stream")
        try:
            place = self.places[where]
        except TypeError:  # a list or an object
            place = self.places[tuple(key if isinstance(key, Hashable) else str(key) for key in where)]
        nbytes = _number(arguments.get("size", arguments.get("bytes", -1)))
        return start, start + length, role, name, place, correlation, nbytes

    def _keep(self, rows: Rows) -> None:
        """Keep these spans; one that ends before it starts, or is absurdly long, is lost."""
        start, length = rows["start"], rows["end"] - rows["start"]
        keep = (length >= 0) & (np.abs(start) <= _LONGEST_TIME) & (length <= _LONGEST_TIME)
        self.lost += int((~keep).sum())
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
            self.left_out[_PHASES.get(str(phase), "event of an unknown phase")] += 1
        elif event.get("name") == "thread_name" and len(self.threads) < MAX_PLACES:
            label = inner.get("name") if isinstance(inner, dict) else inner
            if isinstance(label, str):
                self.threads[str(event.get("pid")), str(event.get("tid"))] = label


def _number(value: Any) -> int:
    """Return a whole number; what is none, or too large, becomes -1. Text is read: ROCm writes `"size": "2560"`."""
    try:
        number = int(value, 0) if isinstance(value, str) else int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
    return number if -(2**62) < number < 2**62 else -1


def _nanoseconds(value: Any) -> int:
    """Return a time given in µs as whole ns, with all its digits; raise an error for what is none."""
    if type(value) is not int and not isinstance(value, (str, Decimal)):
        raise TypeError(f"{value!r} is no time")
    time = Decimal(value) * 1000
    if abs(time) > _LONGEST_TIME:
        raise ValueError(f"{value!r} µs is out of range")
    return int(time.to_integral_value())


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
Frame = tuple[str, str, str, float, float]  # "train.py:82", pid, tid, start and length [µs]
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


def _prefiltered(
    bodies: Sequence[bytes], left_out: Counter[str], frames: list[Frame]
) -> tuple[list[bytes], list[bytes]]:
    """Return what is needed (operators without their arguments) and the synchronisation rows.

    The frames of Python outside torch are added to `frames`; all other events are counted in `left_out`.
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
            if len(frames) < MOST_FRAMES and (found := _frame(body)):
                frames.append(found)
        elif body.startswith(_INSTANTS) and body.count(b"{") == 1:
            instants += 1
        else:
            (syncs if body.startswith(_SYNCS) else texts).append(body)
    left_out.update(
        {name: count for name, count in (("flow", flows), ("instant", instants), ("python_function", python)) if count}
    )
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
_PID = re.compile(rb'",\s*"pid":\s?')
_BORDER = 7_777_777  # stands between two events: each must have all of its numbers
_LARGEST = np.iinfo(np.int64).max  # what numpy makes of larger numbers
_LONGEST = 1 << 51  # µs; as ns it fits into int64 with room to spare


class Template(NamedTuple):
    """Where the numbers of an event are: the place of each that counts, which have decimals, how many there are."""

    places: dict[str, int]
    decimals: frozenset[int]
    width: int


class Templates:
    """Reads the events of one file. `number_of(category, name)` gives a head's number, -1 if its events are not spans.

    `places` numbers the tuples (pid, tid, device, stream).
    """

    def __init__(self, opening: bytes, number_of: Callable[[str, str], int], places: dict[Any, int]) -> None:
        self._opening, self._number_of, self._places = opening, number_of, places
        self._known: dict[bytes, Template | None] = {}
        self._number = lru_cache(_MAX_HEADS)(self._head)

    def rows(self, digits_out: bytes, heads: list[bytes], tails: list[bytes]) -> tuple[Rows, Numbers] | None:
        """Return columns of the events of one template, and the number of each event's head.

        None if they need the JSON parser. The columns are start and end [ns], place, correlation and nbytes.
        """
        if len(heads) < FEW:
            return None
        if digits_out not in self._known and len(self._known) < MAX_TEMPLATES:
            self._known[digits_out] = template_of(tails[0])
        if (template := self._known.get(digits_out)) is None:
            return None
        try:
            numbers = _numbers(tails, template.width)
            start, length = (_times(numbers, template, name) for name in ("ts", "dur"))
            who = np.fromiter(map(self._number, heads), np.int64, len(heads))
        except _DAMAGE:
            return None
        if (numbers[:, list(template.places.values())] == _LARGEST).any():
            return None
        found = {name: numbers[:, place] for name, place in template.places.items()}
        none = np.full(len(heads), -1)
        places = (
            found[name].tolist() if name in found else [None] * len(heads)
            for name in ("pid", "tid", "device", "stream")
        )
        place = np.fromiter(map(self._places.__getitem__, zip(*places, strict=True)), np.int64, len(heads))
        columns = {name: found.get(name, none) for name in ("correlation", "nbytes")}
        return columns | {"start": start, "end": start + length, "place": place}, who

    def _head(self, head: bytes) -> int:
        """Return the number of a head that is new; raise ValueError if it is not just phase, category and name."""
        event = json.loads((self._opening + head + b'"}').decode("utf-8", "replace"), strict=False)
        if event.keys() != {"ph", "cat", "name"} or event["ph"] != "X":
            raise ValueError("it has other keys before its pid")
        return self._number_of(event["cat"], event["name"])


def grouped(bodies: Sequence[bytes], mark: bytes) -> tuple[dict[bytes, Group], list[bytes]]:
    """Part event texts by their template: (groups, those in which `mark` does not stand between name and pid)."""
    groups: dict[bytes, Group] = {}
    rest: list[bytes] = []
    for body in bodies:
        head, found, tail = body.partition(mark)
        if not found:
            rest.append(body)
            continue
        digits_out = tail.translate(None, _DIGITS)
        group = groups.get(digits_out)
        if group is None:
            group = groups[digits_out] = ([], [])
        group[0].append(head)
        group[1].append(tail)
    return groups, rest


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
