"""Damaged events, one by one: what the JSON reader refuses is repaired where that is safe, else given up and counted.

Real damage, each seen in published traces: quotes inside a Python frame's name that are not escaped, backslashes of
Windows paths, control characters, bare `N/A`, `nan` and `inf` where a number belongs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

Event = dict[str, Any]

_BAD_BACKSLASH = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_BARE_WORD = re.compile(r'(:\s*)(?:N/A|-?nan(?:\([^)"]*\))?|-?inf(?:inity)?|undefined)(?=\s*[,}\]])', re.I)
_NUMBER = r"(-?\d{1,25}(?:\.\d{1,25})?(?:[eE][-+]?\d{1,3})?)"
_FIELDS = {
    "ph": re.compile(r'"ph"\s*:\s*"(\w)"'),
    "cat": re.compile(r'"cat"\s*:\s*"(\w+)"'),
    "name": re.compile(r'"name"\s*:\s*"(.*?)"\s*,\s*"(?:ph|cat|pid|tid|ts|dur|args|id)"\s*:', re.S),
    "pid": re.compile(rf'"pid"\s*:\s*(?:{_NUMBER}|"([^"]*)")'),
    "tid": re.compile(rf'"tid"\s*:\s*(?:{_NUMBER}|"([^"]*)")'),
    "ts": re.compile(rf'"ts"\s*:\s*{_NUMBER}'),
    "dur": re.compile(rf'"dur"\s*:\s*{_NUMBER}'),
}
_ARGUMENTS = ("device", "stream", "correlation", "bytes")
MERGE = 4  # pieces joined when an object inside an event looked like the border of two


def events(texts: list[str], parse_float: Callable[[str], Any] = float) -> tuple[list[Event], int]:
    """Return the events of these texts, and how many could not be saved.

    Each text is an object in braces; where an object inside an event looked like the border of two, it is a part of
    one, and the parts are joined again.
    """
    saved: list[Event] = []
    lost = place = 0
    while place < len(texts):
        event, used = _one(texts, place, parse_float)
        if event is None:
            lost += 1
        else:
            saved += event
        place += used
    return saved, lost


def _one(texts: list[str], place: int, parse_float: Callable[[str], Any]) -> tuple[list[Event] | None, int]:
    text = texts[place]
    for repair in (str, repaired):
        found = _parsed(repair(text), parse_float)
        if found is not None:
            return found, 1
    for more in range(1, min(MERGE, len(texts) - place)):
        found = _parsed("},".join(text[:-1] for text in texts[place : place + more + 1]) + "}", parse_float)
        if found is not None:
            return found, more + 1
    rough = _rough(text, parse_float)
    return ([rough] if rough else None), 1


def _parsed(text: str, parse_float: Callable[[str], Any]) -> list[Event] | None:
    """Return the event, or events, that a text holds; None if it is no JSON."""
    try:
        found = json.loads("[" + text + "]", strict=False, parse_float=parse_float)
    except (ValueError, RecursionError):
        return None
    return found if all(isinstance(event, dict) for event in found) else None


def repaired(text: str) -> str:
    """Return the text with backslashes and bare words made into JSON.

    >>> repaired('{"path": "C:\\\\data", "bw": N/A}')
    '{"path": "C:\\\\\\\\data", "bw": null}'
    """
    return _BARE_WORD.sub(r"\1null", _BAD_BACKSLASH.sub(r"\\\\", text))


def _rough(text: str, parse_float: Callable[[str], Any]) -> Event | None:
    """Read the fields by pattern where the text is no JSON, as quotes inside a name make it."""
    if text.count('"ph"') != 1:
        return None  # more than one event in the text: a field could be taken from its neighbour
    found = {name: pattern.search(text) for name, pattern in _FIELDS.items()}
    if not all(found.values()):
        return None
    event: Event = {name: next(filter(None, match.groups()), "") for name, match in found.items() if match}
    for name in ("pid", "tid"):
        event[name] = int(event[name]) if re.fullmatch(r"-?\d+", event[name]) else event[name]
    for name in ("ts", "dur"):
        event[name] = parse_float(event[name]) if re.search(r"[.eE]", event[name]) else int(event[name])
    arguments = {name: re.search(rf'"{name}"\s*:\s*(-?\d{1, 18})', text) for name in _ARGUMENTS}
    event["args"] = {name: int(match.group(1)) for name, match in arguments.items() if match}
    return event
