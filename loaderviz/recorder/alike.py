"""Events that look alike, read without a JSON parser: the numbers of all of them at once, by numpy.

A profiler writes millions of events in a few shapes: take the digits out of their texts, and the texts are equal. So
each shape is understood once, by the JSON parser, on a sample in which every number is replaced by its place; then

    b'9, "tid": 7, "ts": 12.5, "dur": 3, "args": {"device": 0, "stream": 7, "correlation": 42}'

gives the row 9, 7, 12, 15, 3, 0, 7, 42 (".5" is read as 15: the 1 keeps leading zeros). What has another shape, a
number that does not fit, or a digit where no number is goes to the JSON parser.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loaderviz.recorder.source import TraceError

Numbers = npt.NDArray[np.int64]
Group = tuple[list[bytes], list[bytes]]  # heads (up to the name) and tails (after `"pid": `) of events of one shape

FEW = 16  # events of one shape; fewer are not worth numpy's start
MAX_SHAPES = 1_000  # profilers write some ten
_MAX_HEADS = 50_000  # different names kept
_DIGITS = b"0123456789"
_NOT_DIGITS = bytes(code if code in _DIGITS else 32 for code in range(256))  # a table that makes blanks of all others
_NUMBER = re.compile(rb"(\d+)\.\d+|\d+|\.\d*")
_PID = re.compile(rb'",\s*"pid":\s?')
_BORDER = 7_777_777  # stands between two events: each must have all of its numbers
_LARGEST = np.iinfo(np.int64).max  # what numpy makes of larger numbers
_LONGEST = 1 << 51  # µs; as ns it fits into int64 with room to spare


class Shape(NamedTuple):
    """Where the numbers of an event are: the place of each that counts, which have decimals, how many there are."""

    places: dict[str, int]
    decimals: frozenset[int]
    width: int


class _Heads(dict[bytes, int]):
    """The numbers of heads, worked out once for each; it forgets them where they are too many."""

    def __init__(self, number_of: Callable[[bytes], int]) -> None:
        super().__init__()
        self._number_of = number_of

    def __missing__(self, head: bytes) -> int:
        if len(self) >= _MAX_HEADS:
            self.clear()
        number = self[head] = self._number_of(head)
        return number


class Alike:
    """Reads the events of one file. `number_of(category, name)` gives a head's number, -1 if its events are not spans.

    `places` numbers the tuples (pid, tid, device, stream).
    """

    def __init__(self, opening: bytes, number_of: Callable[[str, str], int], places: dict[Any, int]) -> None:
        self._opening, self._number_of, self._places = opening, number_of, places
        self._shapes: dict[bytes, Shape | None] = {}
        self._heads = _Heads(self._head)

    def rows(self, shape: bytes, group: Group) -> tuple[dict[str, Numbers], Numbers] | None:
        """Return the columns of a group, and for each event the number of its head; None if it needs the JSON parser.

        The columns are start and end [ns], place, correlation and nbytes.
        """
        heads, tails = group
        known = self._shape(shape, tails[0]) if len(heads) >= FEW else None
        if known is None:
            return None
        try:
            numbers = _numbers(tails, known.width)
            start, length = (_nanoseconds(numbers, known, name) for name in ("ts", "dur"))
            who = np.fromiter(map(self._heads.__getitem__, heads), np.int64, len(heads))
        except TraceError:
            raise
        except (ValueError, TypeError, AttributeError, RecursionError):
            return None
        if (numbers[:, list(known.places.values())] == _LARGEST).any():
            return None
        columns = {
            name: numbers[:, known.places[name]] if name in known.places else np.full(len(heads), -1)
            for name in ("correlation", "nbytes")
        }
        return columns | {"start": start, "end": start + length, "place": self._place(numbers, known)}, who

    def _shape(self, shape: bytes, tail: bytes) -> Shape | None:
        if shape not in self._shapes:
            if len(self._shapes) >= MAX_SHAPES:
                return None
            self._shapes[shape] = understood(tail)
        return self._shapes[shape]

    def _head(self, head: bytes) -> int:
        """Return the number of a head that is new; raise ValueError if it is not just phase, category and name."""
        event = json.loads((self._opening + head + b'"}').decode("utf-8", "replace"), strict=False)
        if event.keys() != {"ph", "cat", "name"} or event["ph"] != "X":
            raise ValueError("it has other keys before its pid")
        return self._number_of(event["cat"], event["name"])

    def _place(self, numbers: Numbers, shape: Shape) -> Numbers:
        columns = [numbers[:, shape.places[name]].tolist() if name in shape.places else [None] * len(numbers)
                   for name in ("pid", "tid", "device", "stream")]  # fmt: skip
        return np.fromiter(map(self._places.__getitem__, zip(*columns, strict=True)), np.int64, len(numbers))


def grouped(bodies: Sequence[bytes], mark: bytes) -> tuple[dict[bytes, Group], list[bytes]]:
    """Part event texts by their shape: (groups, those in which `mark` does not stand between name and pid)."""
    groups: dict[bytes, Group] = {}
    rest: list[bytes] = []
    for body in bodies:
        head, found, tail = body.partition(mark)
        if not found:
            rest.append(body)
            continue
        shape = tail.translate(None, _DIGITS)
        group = groups.get(shape)
        if group is None:
            group = groups[shape] = ([], [])
        group[0].append(head)
        group[1].append(tail)
    return groups, rest


def mark_of(bodies: Sequence[bytes]) -> bytes:
    """Return what stands between name and pid in these events, such as `", "pid": `; b"" if no event has it."""
    matches = (_PID.search(body) for body in bodies)
    return next((match.group() for match in matches if match), b"")


def understood(tail: bytes) -> Shape | None:
    """Return the shape of an event by a sample; None unless all that counts in it is a plain number.

    >>> understood(b'1, "tid": 7, "ts": 12.5, "dur": 3, "args": {"correlation": 42}').places
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
    closing = b"0}" if filled.rstrip().endswith(b":") else b"}"  # an operator is cut before its arguments
    try:
        event = json.loads((b'{"pid": ' + filled + closing).decode())
    except (ValueError, RecursionError):
        return None
    arguments = event.get("args") if isinstance(event.get("args"), dict) else {}
    wanted = {name: event.get(name) for name in ("pid", "tid", "ts", "dur")}
    wanted |= {name: arguments[name] for name in ("device", "stream", "correlation") if name in arguments}
    if size := [arguments[name] for name in ("size", "bytes") if name in arguments]:
        wanted["nbytes"] = size[0]
    found = {name: _slot(value, name) for name, value in wanted.items()}
    text = [value for value in (event.get("pid"), event.get("tid")) if isinstance(value, str)]
    plain = _plain(event) + sum(_slot(value, "tid") > 0 for value in text) - (closing == b"0}")
    if min(found.values()) <= 0 or plain != numbers or decimals & _whole(found):
        return None
    if event.keys() & {"ph", "cat", "name"} or "kind" in arguments:  # the JSON parser knows what to do with them
        return None
    return Shape({name: slot - 1 for name, slot in found.items()}, frozenset(decimals), width)


def _whole(found: dict[str, int]) -> set[int]:
    """Return the places that must have no decimals."""
    return {slot - 1 for name, slot in found.items() if name not in ("ts", "dur")}


def _slot(value: Any, name: str) -> int:
    """Return the place, from 1, that stands for a number; 0 if there is none. Ids may be text: "25738", "stream 7"."""
    if name in ("pid", "tid") and isinstance(value, str) and (match := re.fullmatch(r"(?:stream )?(\d+)", value)):
        return int(match.group(1))
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _plain(value: Any) -> int:
    """Count the plain positive numbers in parsed JSON."""
    if isinstance(value, dict):
        return sum(_plain(each) for each in value.values())
    if isinstance(value, list):
        return sum(_plain(each) for each in value)
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _numbers(tails: Sequence[bytes], width: int) -> Numbers:
    """Return the numbers of events of one shape, shape (events, width); raise ValueError if one has more or fewer."""
    border = b" %d " % _BORDER
    text = (border.join(tails) + border).replace(b".", b" 1").translate(_NOT_DIGITS)
    found = np.fromstring(text, np.int64, sep=" ")  # of text this is not deprecated
    if len(found) != len(tails) * (width + 1):
        raise ValueError("the events do not have the same numbers")
    numbers: Numbers = found.reshape(len(tails), width + 1)
    if (numbers[:, -1] != _BORDER).any():
        raise ValueError("the events do not have the same numbers")
    return numbers


def _nanoseconds(numbers: Numbers, shape: Shape, name: str) -> Numbers:
    """Return times given in µs as whole ns; raise ValueError if they have more than three decimals or are too large."""
    place = shape.places[name]
    whole = numbers[:, place]
    if (whole > _LONGEST).any():
        raise ValueError("a time is out of range")
    if place not in shape.decimals:
        return whole * 1_000
    rest = numbers[:, place + 1]  # 1, and then the decimals
    if (rest >= 2_000).any():
        raise ValueError("a time is finer than a nanosecond")
    return whole * 1_000 + np.where(rest < 20, rest * 100, np.where(rest < 200, rest * 10, rest)) - 1_000
