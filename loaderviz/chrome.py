"""Timeline -> Chrome trace JSON, as torch.profiler writes it, for Perfetto, chrome://tracing and other readers.

Categories and arguments are the profiler's (`kernel`, `gpu_memcpy`, `cuda_runtime`, `cpu_op`, `user_annotation`,
`ac2g`), so that tools made for its traces read this one. What the profiler has no word for (a worker's fetch, a wait)
is a `user_annotation`; the argument "loaderviz kind" says what it was. Times are µs with three decimals: exact in ns.
`loaderviz.read` makes an equal Timeline of it: what events have no place for stands in the key "loaderviz".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from loaderviz.activity import check_timeline
from loaderviz.files import writable
from loaderviz.timeline import ArrowKind, Kind, Span, Timeline

Event = dict[str, Any]
Places = dict[tuple[int, int], Event]  # (lane, row) -> pid and tid

FORMAT = 1  # of the key "loaderviz"
HOST_PID = 10_000  # devices have their ordinal as pid; a host process must not look like one of them
_SUB_LANE = 100_000  # thread ids of further rows for spans that overlap without nesting; Perfetto drops such spans
_CATEGORIES = {
    Kind.COMPUTE: "kernel", Kind.COMMUNICATION: "kernel", Kind.COPY_H2D: "gpu_memcpy", Kind.COPY_D2H: "gpu_memcpy",
    Kind.COPY_D2D: "gpu_memcpy", Kind.MEMSET: "gpu_memset", Kind.API: "cuda_runtime", Kind.OPERATOR: "cpu_op",
}  # fmt: skip


def to_chrome_trace(timeline: Timeline, path: str | Path) -> Path:
    """Write the timeline as Chrome trace JSON and return the path; ui.perfetto.dev opens it.

    Raises `NotATimelineError`, and `NoFolderError` when the folder does not exist.
    """
    check_timeline(timeline, "to_chrome_trace()")
    path = writable(path)
    path.write_text(json.dumps(chrome_trace(timeline)), encoding="utf-8")
    return path


def chrome_trace(timeline: Timeline) -> dict[str, Any]:
    """Return the trace as plain dicts; time 0 is `baseTimeNanoseconds`, the timeline's first start."""
    rows = _rows(timeline)
    places = _places(timeline, rows)
    devices = sorted({lane.device for lane in timeline.lanes if lane.group == "device"})
    context = timeline.context
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": device, "name": context.device} for device in devices],
        "displayTimeUnit": "ns",
        "baseTimeNanoseconds": timeline.begin,
        "loaderviz": {"format": FORMAT, **asdict(context), "notes": list(context.notes),
                      "lanes": [asdict(lane) for lane in timeline.lanes], "names": list(timeline.names),
                      "sources": list(timeline.sources)},
        "traceEvents": [*_names(timeline, places), *_spans(timeline, rows, places), *_flows(timeline, rows, places),
                        *_marks(timeline, places)],
    }  # fmt: skip


def _rows(timeline: Timeline) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return for each span the row of its lane, 0 for most: in one row, two spans nest or are apart."""
    rows = np.zeros(len(timeline), np.int64)
    for number in range(len(timeline.lanes)):
        stacks: list[list[int]] = []  # for each row, the ends of the spans that are open
        for index in np.flatnonzero(timeline.lane == number):
            start, end = int(timeline.start[index]), int(timeline.end[index])
            for row, stack in enumerate([*stacks, []]):
                if row == len(stacks):
                    stacks.append(stack)
                while stack and stack[-1] <= start:
                    stack.pop()
                if not stack or end <= stack[-1]:
                    stack.append(end)
                    rows[index] = row
                    break
    return rows


def _places(timeline: Timeline, rows: np.ndarray[Any, Any]) -> Places:
    """Return pid and tid of each row of each lane; a device's threads are its streams, if their numbers are free."""
    used = {(int(lane), int(row)) for lane, row in zip(timeline.lane, rows, strict=True)}
    used |= {(number, 0) for number in range(len(timeline.lanes))}
    places: Places = {}
    taken = set()
    for number, row in sorted(used, key=lambda each: each[::-1]):  # every lane's first row before any second one
        lane = timeline.lanes[number]
        pid, tid = (lane.device, lane.number) if lane.group == "device" else (HOST_PID, number + 1)
        tid += row * _SUB_LANE
        while (pid, tid) in taken:  # sub-lanes of a stream bear its number
            tid += _SUB_LANE
        taken.add((pid, tid))
        places[number, row] = {"pid": pid, "tid": tid}
    return places


def _us(ns: int) -> float:
    return round(ns / 1_000, 3)


def _names(timeline: Timeline, places: Places) -> Iterator[Event]:
    seen: set[int] = set()
    for (number, row), place in sorted(places.items()):
        lane = timeline.lanes[number]
        if place["pid"] not in seen:
            seen.add(place["pid"])
            host = lane.group == "host"
            name = "host" if host else f"GPU {lane.device}: {timeline.context.device}"
            yield {"ph": "M", "name": "process_name", **place, "ts": 0, "args": {"name": name}}
            yield {"ph": "M", "name": "process_sort_index", **place, "ts": 0,
                   "args": {"sort_index": -1 if host else lane.device}}  # fmt: skip
        name = lane.name if row == 0 else f"{lane.name} ({row + 1})"
        yield {"ph": "M", "name": "thread_name", **place, "ts": 0, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", **place, "ts": 0, "args": {"sort_index": 10 * number + row}}


def _spans(timeline: Timeline, rows: np.ndarray[Any, Any], places: Places) -> Iterator[Event]:
    begin = timeline.begin
    for index in range(len(timeline)):
        span = timeline.row(index)
        device = span.lane.group == "device"
        category = _CATEGORIES.get(span.kind, "gpu_user_annotation" if device else "user_annotation")
        yield {
            "ph": "X", "cat": category, "name": span.name,
            **places[int(timeline.lane[index]), int(rows[index])],
            "ts": _us(span.start - begin), "dur": _us(span.duration),
            "args": {"span": index, "lane": int(timeline.lane[index])} | _arguments(span),
        }  # fmt: skip


def _arguments(span: Span) -> Event:
    arguments: Event = {"loaderviz kind": span.kind.name.lower()}
    if span.lane.group == "device":
        arguments |= {"device": span.lane.device, "stream": span.lane.number}
    if span.correlation >= 0:
        arguments["correlation"] = span.correlation
    if span.nbytes >= 0:
        arguments["bytes"] = span.nbytes
        if span.duration and span.lane.group == "device":
            arguments["memory bandwidth (GB/s)"] = span.nbytes / span.duration
    if span.batch >= 0:
        arguments["batch"] = span.batch
    if span.pinned is not None:
        arguments["pinned"] = span.pinned
    if span.cause:
        arguments["cause"] = span.cause.words
    if span.source:
        arguments["source"] = span.source
    return arguments


def _flows(timeline: Timeline, rows: np.ndarray[Any, Any], places: Places) -> Iterator[Event]:
    """Give two events an arrow. A flow binds to the span around its time; at a span's end it leaves 1 ns earlier."""
    begin = timeline.begin
    for number, (tail, head, kind) in enumerate(zip(*timeline.arrows.values(), strict=True)):
        first, second = timeline.row(int(tail)), timeline.row(int(head))
        wait = kind == ArrowKind.WAIT
        name = "event wait" if wait else "ac2g"
        leaves = max(first.start, first.end - 1) if wait else first.start
        common = {"id": number + 1, "cat": name, "name": name}
        for phase, index, time in (("s", tail, leaves), ("f", head, second.start)):
            place = places[int(timeline.lane[index]), int(rows[index])]
            event = {"ph": phase, **common, **place, "ts": _us(time - begin), "args": {"span": int(index)}}
            yield event | ({"bp": "e"} if phase == "f" else {})


def _marks(timeline: Timeline, places: Places) -> Iterator[Event]:
    for mark in timeline.marks:
        yield {"ph": "i", "s": "t", "cat": "hazard", "name": mark.kind, **places[mark.lane, 0],
               "ts": _us(mark.time - timeline.begin),
               "args": {"text": mark.text, "lane": mark.lane, "spans": list(mark.spans)}}  # fmt: skip
