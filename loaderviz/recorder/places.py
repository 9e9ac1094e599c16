"""Which lane each event belongs to: host threads and streams, from the pids and tids of a trace.

The role decides, not the pid: GPU rows have the device's number as pid, which may equal a real pid. The stream is
`args.stream` (newer Kineto puts synchronisation rows at tid = stream + 1,000,000); older files have "stream 7" as tid.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np

from loaderviz.recorder.kineto import RawTrace
from loaderviz.recorder.names import ON_DEVICE, STEP, Role
from loaderviz.timeline import Lane

_CLASSES = 3  # host, device, annotations on the device
_DULL = re.compile(r"^(?:thread \S+(?: \(.*\))?|python[\d.]*|main|stream .*|\d+)$", re.I)

_BACKWARD = re.compile(r"^autograd::engine|Backward\d*$")


class Lanes:
    """The lanes of one trace. `lane` has the number of each event's lane; `main` is that of the training loop."""

    def __init__(self, trace: RawTrace, label: str = "", device_of: dict[int, int] | None = None) -> None:
        self.trace, self.label, self.device_of = trace, label, device_of or {}
        roles, place = trace.columns["role"], trace.columns["place"]
        on_device = np.isin(roles, ON_DEVICE)
        group = np.where(on_device, 1, np.where(roles == Role.GPU_ANNOTATION, 2, 0))
        used = np.zeros((max(1, len(trace.places)), _CLASSES), bool)
        used[place, group] = True
        keys = {(number, kind): self._key(trace.places[number], kind) for number, kind in np.argwhere(used).tolist()}
        order = sorted(set(keys.values()), key=_natural)
        numbers = {key: number for number, key in enumerate(order)}
        table = np.zeros(used.shape, np.int32)
        for (number, kind), key in keys.items():
            table[number, kind] = numbers[key]
        self.lane = table[place, group]
        self.main = self._main(order)
        self.lanes = [self._lane(number, key) for number, key in enumerate(order)]
        self.streams = {key[1:]: number for number, key in enumerate(order) if key[0] == "stream"}

    def _key(self, place: tuple[Any, Any, Any, Any], kind: int) -> tuple[str, Any, Any]:
        pid, tid, device, stream = place
        if kind == 0:
            return "thread", _int(pid, str(pid)), _int(tid, str(tid))
        stream_number = _int(tid, 0) if stream is None else _int(stream, 0)
        device_number = _int(pid, 0) if device is None else _int(device, 0)
        return ("stream", "ranges")[kind - 1], device_number, abs(stream_number)

    def _main(self, keys: list[tuple[str, Any, Any]]) -> int:
        """Return the lane of the training loop: of the steps, else the first thread, else of the most calls."""
        threads = {number: key for number, key in enumerate(keys) if key[0] == "thread"}
        if not threads:
            return -1
        columns = self.trace.columns
        steps = [number for number, name in enumerate(self.trace.names) if STEP.match(name)]
        host = np.isin(columns["role"], (Role.ANNOTATION, Role.OPERATOR))
        stepping = self.lane[np.isin(columns["name"], steps) & host].tolist() if steps else []
        marked = [number for number in stepping if number in threads]
        if marked:
            return int(Counter(marked).most_common(1)[0][0])
        calls = np.bincount(self.lane[columns["role"] == Role.CALL], minlength=len(keys))
        everything = np.bincount(self.lane, minlength=len(keys))
        first = [number for number, key in threads.items() if key[1] == key[2]]
        return max(first or threads, key=lambda number: (calls[number], everything[number]))

    def _lane(self, number: int, key: tuple[str, Any, Any]) -> Lane:
        kind, owner, thread = key
        if kind == "thread":
            role = "main" if number == self.main else "thread"
            name = "main" if role == "main" else self._thread(number, owner, thread)
            identity = thread if isinstance(thread, int) else 0
            return Lane(self.label + name, "host", role, identity, min(self.device_of.values(), default=0))
        device = self.device_of.get(owner, owner)
        name = f"stream {thread}" + (" ranges" if kind == "ranges" else "")
        return Lane(self.label + name, "device", "stream" if kind == "stream" else "ranges", thread, device)

    def _thread(self, number: int, pid: Any, tid: Any) -> str:
        label = self.trace.threads.get((str(pid), str(tid)), "")
        inner = re.match(r"^thread \S+ \((.+)\)$", label)
        label = inner.group(1) if inner else label
        if label and not _DULL.match(label) and not label.startswith(("python", "pyper")):
            return f"{label[:24]} {tid}"
        if self._runs_backward(number):
            return f"autograd {tid}"
        return f"thread {tid}"

    def _runs_backward(self, number: int) -> bool:
        backward = [n for n, name in enumerate(self.trace.names) if _BACKWARD.search(name)]
        return bool(np.isin(self.trace.columns["name"][self.lane == number], backward).any()) if backward else False


def devices_of(trace: RawTrace) -> set[int]:
    """Return the numbers of the devices that the trace's GPU work is on."""
    columns = trace.columns
    used = np.unique(columns["place"][np.isin(columns["role"], ON_DEVICE)]).tolist()
    return {_int(pid, 0) if device is None else _int(device, 0)
            for pid, _, device, _ in (trace.places[number] for number in used)}  # fmt: skip


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


def _natural(key: tuple[str, Any, Any]) -> tuple[Any, ...]:
    """Sort threads before streams, numbers before names."""
    kind, owner, thread = key
    parts = [(isinstance(part, str), part) for part in (owner, thread)]
    return (kind != "thread", parts[0], parts[1], kind)
