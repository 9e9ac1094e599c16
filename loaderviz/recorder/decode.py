"""The JSON of a chunk of events -> lists of values, one list for each column. With msgspec, where it is installed.

msgspec's typed decoder makes no dict and skips what is not asked for: about half the time of `json`. It is strict; what
it refuses is read by `json`, which takes NaN and control characters, too.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

try:
    msgspec: Any = importlib.import_module("msgspec")
except ImportError:  # optional
    msgspec = None

_NOTHING: dict[str, Any] = {}
Other = Callable[[Any, Any, Any, Any, Any], None]


def lists_of(text: bytes, arguments: bool, exact: bool, others: Other) -> tuple[list[Any], ...]:
    """Return ts, dur, name, category, place, correlation, size and arguments of the events in a JSON list.

    Without `arguments` the last three are empty. `others` is called for events that are no spans; `exact` makes
    decimals of numbers with a fraction. Raises ValueError, TypeError, KeyError or the like for damaged text.
    """
    if msgspec is not None and not exact:
        try:
            return _from_structs((_HEAVY if arguments else _LIGHT).decode(text), arguments, others)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
    options: dict[str, Any] = {"parse_float": Decimal} if exact else {}
    return from_dicts(json.loads(text.decode("utf-8", "replace"), strict=False, **options), arguments, others)


def from_dicts(events: list[Any], arguments: bool, others: Other) -> tuple[list[Any], ...]:
    """Return the lists that `Columns._append` takes, of events as json gives them."""
    if arguments:
        spans = [event for event in events if event.get("ph") == "X"]
        if len(spans) < len(events):
            for event in events:
                if event.get("ph") != "X":
                    others(event.get("ph"), event.get("name"), event.get("pid"), event.get("tid"), event.get("args"))
        events = spans
    head = (
        [event["ts"] for event in events], [event["dur"] for event in events], [event["name"] for event in events],
        [event.get("cat", "") for event in events],
    )  # fmt: skip
    if not arguments:
        return (*head, [(event["pid"], event["tid"], None, None) for event in events], [], [], [])
    inner = [event.get("args") or _NOTHING for event in events]
    places = [
        (event["pid"], event["tid"], entry.get("device"), entry.get("stream"))
        for event, entry in zip(events, inner, strict=True)
    ]
    sizes = [entry.get("bytes", -1) if "size" not in entry else entry["size"] for entry in inner]
    return (*head, places, [entry.get("correlation", -1) for entry in inner], sizes, inner)


def _from_structs(events: list[Any], arguments: bool, others: Other) -> tuple[list[Any], ...]:
    """Return the same of events as msgspec gives them."""
    if arguments:
        spans = [event for event in events if event.ph == "X"]
        if len(spans) < len(events):
            for event in events:
                if event.ph != "X":
                    label = event.args and {"name": event.args.name or event.args.labels}
                    others(event.ph, event.name, event.pid, event.tid, label)
        events = spans
    head = (
        [event.ts for event in events], [event.dur for event in events], [event.name for event in events],
        [event.cat for event in events],
    )  # fmt: skip
    if not arguments:
        return (*head, [(event.pid, event.tid, None, None) for event in events], [], [], [])
    inner = [event.args or _EMPTY for event in events]
    places = [
        (event.pid, event.tid, entry.device, entry.stream) for event, entry in zip(events, inner, strict=True)
    ]  # fmt: skip
    sizes = [entry.bytes if entry.size == -1 else entry.size for entry in inner]
    return (*head, places, [entry.correlation for entry in inner], sizes, inner)


def argument(arguments: Any, key: str) -> Any:
    """Return an argument of an event, whichever parser read it."""
    return arguments.get(key) if isinstance(arguments, dict) else getattr(arguments, key, None)


if msgspec is not None:
    _LOOSE = int | float | str | None
    _NUMBERS = ("correlation", "bytes", "size")
    _WAITED = ("wait_on_stream", "wait_on_cuda_event_record_corr_id")
    _OTHERS = ("kind", "stream", "device", *_WAITED, "name", "labels")
    _PLACE = [("name", str, ""), ("pid", int | str, ""), ("tid", int | str, ""), ("cat", str, "")]
    _Arguments: Any = msgspec.defstruct(
        "Arguments", [(name, _LOOSE, -1) for name in _NUMBERS] + [(name, _LOOSE, None) for name in _OTHERS], gc=False
    )
    _Operator: Any = msgspec.defstruct(
        "Operator", [("ts", int | float), ("dur", int | float), ("name", str), *_PLACE[1:]], gc=False
    )
    _Event: Any = msgspec.defstruct(
        "Event",
        [("ph", str, ""), ("ts", int | float, math.nan), ("dur", int | float, math.nan), *_PLACE,
         ("args", _Arguments | None, None)],
        gc=False,
    )  # fmt: skip
    _EMPTY = _Arguments()
    _LIGHT = msgspec.json.Decoder(list[_Operator])
    _HEAVY = msgspec.json.Decoder(list[_Event])
