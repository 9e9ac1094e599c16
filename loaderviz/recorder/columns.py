"""Event texts -> numpy columns: the part that costs the time of reading a trace.

Three things make it fast with the standard library alone. Events that are never needed are dropped before they are
parsed, and operators lose their arguments (`skim`). Events that differ in their numbers only are read by numpy
(`alike`). What is left is parsed many events at once, with the garbage collector off, and columns are made by one list
comprehension each, not by a loop over events. With msgspec installed its typed decoder replaces `json`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderviz.recorder import decode, salvage
from loaderviz.recorder.alike import Alike, grouped, mark_of
from loaderviz.recorder.names import ROLES, Role, is_blit
from loaderviz.recorder.skim import Skim
from loaderviz.recorder.source import TraceError

Ints = npt.NDArray[np.integer[Any]]
Rows = dict[str, Ints]
Place = tuple[Any, Any, Any, Any]  # pid, tid, device, stream

MAX_EVENTS = 50_000_000  # 2.5 GB of columns
MAX_NAMES = 1 << 28  # characters of all different names
MAX_PLACES = 100_000
_LONGEST_TIME = float(1 << 61)  # ns; int64 has room for a start and a length of it
_FINE = float(1 << 42)  # µs; a float64 above it has no ns digits any more


class Ids(dict[Any, int]):
    """Numbers its keys in the order of their first use."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


class Names(Ids):
    """Numbers names, and refuses a file whose names are too many for the memory."""

    size = 0

    def __missing__(self, key: Any) -> int:
        if not isinstance(key, str):
            raise TypeError(f"the name of an event is {key!r}")
        self.size += len(key)
        if self.size > MAX_NAMES:
            raise TraceError(f"the names of its events take more than {MAX_NAMES:,} characters; this is no trace")
        return super().__missing__(key)


class _Roles(dict[str, int]):
    """The role of each category, looked up once."""

    def __missing__(self, category: str) -> int:
        role = self[category] = int(ROLES.get(category.lower(), Role.NONE))
        return role


class Columns:
    """Collects the events of one file. The arrays are made once, by `finish`."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.names, self.categories, self.places = Names(), Ids(), Ids()
        self.left_out: Counter[str] = Counter()  # what was not taken, by category or phase
        self.metadata: list[dict[str, Any]] = []
        self.event_waits: list[tuple[Any, ...]] = []  # their correlation and `_WAIT_KEYS`
        self.sync_rows = 0
        self.blits: dict[int, int] = {}  # row of a hip call -> its direction
        self.lost = 0
        self.count = 0
        self._blits_seen = False
        self._exact = False  # times have digits that a float cannot hold
        self._columns: Rows = {name: np.empty(0, dtype) for name, dtype in _DTYPES.items()}
        self._roles = _Roles()
        self._skim = Skim(key)
        self._mark = b""
        self._alike = Alike(b'{"' + key + b'"', self._number_of, self.places)

    def add(self, bodies: Sequence[bytes]) -> None:
        """Take the events of a chunk, as `Document.chunks` gives them; if one is damaged, all of them one by one."""
        known, counted = len(self.metadata), Counter(self.left_out)
        for _ in range(2):
            exact = self._exact
            try:
                for found in list(self._found(bodies)):
                    self._keep(*found)
                break
            except TraceError:
                raise
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError, AttributeError):
                del self.metadata[known:]
                self.left_out = Counter(counted)
                if exact == self._exact:
                    self._one_by_one(bodies)
                    break  # else the times turned out to need decimals: once more with them
        else:
            self._one_by_one(bodies)
        if self.count > MAX_EVENTS:
            raise TraceError(f"it has more than {MAX_EVENTS:,} events; record fewer steps")

    def _found(self, bodies: Sequence[bytes]) -> Iterator[tuple[Rows, list[Any], list[Any], list[Any]]]:
        """Read a chunk: events that look alike by numpy, the others by the JSON parser."""
        texts, rest, dropped = self._skim.wanted(bodies)
        self.left_out.update(dropped)
        self._mark = self._mark or mark_of(texts)
        groups, odd = grouped(texts, self._mark) if self._mark else ({}, texts)
        rest += odd
        for shape, group in groups.items():
            found = self._alike.rows(shape, group)
            if found is None:
                rest += [head + self._mark + tail for head, tail in zip(*group, strict=True)]
                continue
            rows, who = found
            keep = who >= 0
            if not keep.all():
                rest += [group[0][place] + self._mark + group[1][place] for place in np.flatnonzero(~keep).tolist()]
                rows, who = {name: values[keep] for name, values in rows.items()}, who[keep]
            yield {**rows, "role": who % len(Role), "name": who // len(Role)}, [], [], []
        for lists in self._lists(rest):
            yield self._rows(*lists)

    def _number_of(self, category: str, name: str) -> int:
        """Return a number that stands for name and role; -1 if such events are not spans."""
        role = self._roles[category]
        self._blits_seen = self._blits_seen or is_blit(name)
        return -1 if role in (Role.NONE, Role.SYNC) else self.names[name] * len(Role) + role

    def _lists(self, bodies: Sequence[bytes]) -> Iterator[tuple[list[Any], ...]]:
        """Parse a chunk, the parts of it one after the other."""
        light, syncs, heavy = self._skim.parted(bodies)
        opening = b'{"' + self.key + b'"'
        for part, closing, arguments in ((light, b"0}", False), (syncs, b"}", True), (heavy, b"}", True)):
            if part:  # an operator is cut after `"args": `, hence the 0
                text = b"[" + opening + (closing + b"," + opening).join(part) + closing + b"]"
                self._blits_seen = self._blits_seen or (arguments and b"__amd_rocclr" in text)
                yield decode.lists_of(text, arguments, self._exact, self._other)

    def _one_by_one(self, bodies: Sequence[bytes]) -> None:
        opening = b'{"' + self.key + b'"'
        texts = [(opening + body + b"}").decode("utf-8", "replace") for body in bodies]
        events, lost = salvage.events(texts, Decimal)
        self.lost += lost
        clean = [cleaned for event in events if (cleaned := self._cleaned(event))]
        exact, self._exact = self._exact, True  # slow, and right for all times
        self._keep(*self._rows(*decode.from_dicts(clean, True, self._other)))
        self._exact = exact

    def _rows(
        self, times: list[Any], lengths: list[Any], names: list[Any], categories: list[Any], places: list[Place],
        correlations: list[Any], sizes: list[Any], arguments: list[Any],
    ) -> tuple[Rows, list[Any], list[Any], list[Any]]:  # fmt: skip
        """Make arrays of a chunk's lists; raises an error if a value cannot be used."""
        start, length = self._nanoseconds(times), self._nanoseconds(lengths)
        rows = {
            "start": start, "end": start + length,
            "role": np.fromiter(map(self._roles.__getitem__, categories), np.int8, len(categories)),
            "name": np.fromiter(map(self.names.__getitem__, names), np.int32, len(names)),
            "place": np.fromiter(map(self.places.__getitem__, places), np.int32, len(places)),
            "correlation": _whole(correlations) if correlations else np.full(len(start), -1),
            "nbytes": _whole(sizes) if sizes else np.full(len(start), -1),
        }  # fmt: skip
        if len(self.places) > MAX_PLACES:
            raise TraceError(f"it has more than {MAX_PLACES:,} threads and streams; this is no trace of a profiler")
        return rows, categories, names, arguments

    def _keep(self, rows: Rows, categories: list[str], names: list[str], arguments: list[Any]) -> None:
        """Keep the spans among the rows; one that ends before it starts, or is absurdly long, is lost."""
        roles, start, length = rows["role"], rows["start"], rows["end"] - rows["start"]
        good = (roles != Role.NONE) & (roles != Role.SYNC)
        bad = good & ((length < 0) | (np.abs(start) > _LONGEST_TIME) | (length > _LONGEST_TIME))
        self.lost += int(bad.sum())
        keep = good & ~bad
        self._set_apart(rows, good, keep, categories, names, arguments)
        if not keep.all():
            rows = {name: values[keep] for name, values in rows.items()}
        self._store(rows)

    def _set_apart(
        self, rows: Rows, good: npt.NDArray[np.bool_], keep: npt.NDArray[np.bool_], categories: list[str],
        names: list[str], arguments: list[Any],
    ) -> None:  # fmt: skip
        """Keep synchronisation rows and the directions of hip copies beside the columns; count what is left out."""
        roles = rows["role"]
        if not good.all():
            self.left_out.update(categories[index] for index in np.flatnonzero(roles == Role.NONE))
            for index in np.flatnonzero(roles == Role.SYNC).tolist():
                self.sync_rows += 1
                if names[index] == "Stream Wait Event":
                    details = (decode.argument(arguments[index], key) for key in _WAIT_KEYS)
                    self.event_waits.append((int(rows["correlation"][index]), *details))
        if self._blits_seen and arguments:
            kept = np.cumsum(keep) - 1 + self.count
            for index in np.flatnonzero(keep & (roles == Role.CALL)).tolist():
                if (direction := decode.argument(arguments[index], "kind")) is not None:
                    self.blits[int(kept[index])] = _number(direction)

    def _nanoseconds(self, times: list[Any]) -> npt.NDArray[np.int64]:
        """Return times given in µs as whole ns."""
        if self._exact:
            return np.array([int((Decimal(time) * 1000).to_integral_value()) for time in times], np.int64)
        values = np.array(times)
        if values.ndim != 1:
            raise ValueError("a time is no number")
        if values.dtype.kind == "i":
            return np.asarray(values, np.int64) * 1000
        if values.dtype.kind != "f" or not np.isfinite(values).all():
            raise ValueError("a time is no finite number")
        whole = np.floor(values)
        rest = values - whole
        if (np.abs(whole) > _FINE).any():
            self._exact = True  # absolute times with ns digits (torch 2.3): read the text again, as decimals
            raise ValueError("times are too large for float64")
        if (np.abs(whole) > _LONGEST_TIME / 1000).any():
            raise ValueError("a time is out of range")
        return np.asarray(whole, np.int64) * 1000 + np.asarray(np.rint(rest * 1000), np.int64)

    def _cleaned(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """Return an event with values of the right types, or None; a wrong one is counted as lost."""
        if event.get("ph") != "X":
            self._other(event.get("ph"), event.get("name"), event.get("pid"), event.get("tid"), event.get("args"))
            return None
        try:
            times = {name: _time(event[name]) for name in ("ts", "dur")}
            if not isinstance(event.get("name"), str) or not isinstance(event.get("cat", ""), str):
                raise TypeError("name and category must be text")
        except (KeyError, TypeError, ValueError, ArithmeticError):
            self.lost += 1
            return None
        place = {name: _hashable(event.get(name)) for name in ("pid", "tid")}
        inner = event.get("args")
        arguments = {name: _hashable(value) for name, value in inner.items()} if isinstance(inner, dict) else {}
        return event | times | place | {"args": arguments}

    def _other(self, phase: Any, name: Any, pid: Any, tid: Any, arguments: Any) -> None:
        """Keep metadata, count events that are no spans."""
        if phase == "M":
            if name in ("process_name", "thread_name", "process_labels") and len(self.metadata) < MAX_PLACES:
                label = arguments.get("name", arguments.get("labels")) if isinstance(arguments, dict) else arguments
                self.metadata.append({"name": name, "pid": pid, "tid": tid, "label": label})
            return
        kinds = {"i": "instant", "I": "instant", "C": "counter", "s": "flow", "t": "flow", "f": "flow"}
        self.left_out[kinds.get(str(phase), "event of an unknown phase")] += 1

    def _store(self, rows: Rows) -> None:
        """Append rows to the columns, which grow in place: to join small arrays at the end takes twice the room."""
        count = self.count + len(rows["start"])
        if count > len(self._columns["start"]):
            for column in self._columns.values():
                column.resize(max(count * 5 // 4, 1 << 16), refcheck=False)
        for name, values in rows.items():
            self._columns[name][self.count : count] = values
        self.count = count

    def finish(self) -> Rows:
        """Return the columns, and forget them."""
        columns, self._columns = self._columns, {}
        for column in columns.values():
            column.resize(self.count, refcheck=False)
        return columns


_DTYPES: dict[str, Any] = {
    "start": np.int64, "end": np.int64, "role": np.int8, "name": np.int32, "place": np.int32, "correlation": np.int64,
    "nbytes": np.int64,
}  # fmt: skip
_WAIT_KEYS = ("stream", "device", "wait_on_stream", "wait_on_cuda_event_record_corr_id")


def _whole(values: list[Any]) -> npt.NDArray[np.int64]:
    """Return whole numbers; what is none, or too large, becomes -1. Text is read: ROCm writes `"size": "2560"`."""
    try:
        numbers = np.array(values, np.int64)
    except (TypeError, ValueError, OverflowError):
        numbers = np.empty((0, 0), np.int64)
    # a list for each value makes a table
    return numbers if numbers.ndim == 1 else np.array([_number(value) for value in values], np.int64)


def _number(value: Any) -> int:
    try:
        number = int(value, 0) if isinstance(value, str) else int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
    return number if -(2**62) < number < 2**62 else -1


def _time(value: Any) -> float | Decimal:
    if isinstance(value, str):
        value = float(value) if any(sign in value for sign in ".eE") else int(value)
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no time")
    if abs(float(value)) > _LONGEST_TIME / 1000:
        raise ValueError(f"{value!r} µs is out of range")
    return value


def _hashable(value: Any) -> Any:
    return value if isinstance(value, (int, str, type(None))) else str(value)
