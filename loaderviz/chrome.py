"""Timeline -> Chrome trace JSON, as torch.profiler writes it, for Perfetto, chrome://tracing and other readers.

Categories and arguments are the profiler's (`kernel`, `gpu_memcpy`, `cuda_runtime`, `cpu_op`, `user_annotation`,
`ac2g`), so that tools made for its traces read this one. What the profiler has no word for (a worker's fetch, a wait)
is a `user_annotation`; the argument "loaderviz kind" says what it was. Times are µs with three decimals: exact in ns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from loaderviz.activity import check_timeline
from loaderviz.files import writable
from loaderviz.timeline import ArrowKind, Kind, Lane, Span, Timeline

Event = dict[str, Any]

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
    devices = sorted({lane.device for lane in timeline.lanes if lane.group == "device"})
    context = timeline.context
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": device, "name": context.device} for device in devices],
        "displayTimeUnit": "ns",
        "baseTimeNanoseconds": timeline.begin,
        "loaderviz": {"origin": context.origin, "host": context.host, "samples": context.samples,
                      "versions": context.versions, "notes": list(context.notes)},
        "traceEvents": [*_names(timeline, rows), *_spans(timeline, rows), *_flows(timeline, rows), *_marks(timeline)],
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


def _place(lane: Lane, number: int, row: int = 0) -> Event:
    """Return pid and tid of a lane; a device's threads are its streams."""
    thread = lane.number if lane.group == "device" else number + 1
    return {"pid": lane.device if lane.group == "device" else HOST_PID, "tid": thread + row * _SUB_LANE}


def _us(ns: int) -> float:
    return round(ns / 1_000, 3)


def _names(timeline: Timeline, rows: np.ndarray[Any, Any]) -> Iterator[Event]:
    used = {(int(lane), int(row)) for lane, row in zip(timeline.lane, rows, strict=True)}
    used |= {(number, 0) for number in range(len(timeline.lanes))}
    seen: set[int] = set()
    for number, row in sorted(used):
        lane = timeline.lanes[number]
        place = _place(lane, number, row)
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


def _spans(timeline: Timeline, rows: np.ndarray[Any, Any]) -> Iterator[Event]:
    begin = timeline.begin
    for index in range(len(timeline)):
        span = timeline.row(index)
        device = span.lane.group == "device"
        category = _CATEGORIES.get(span.kind, "gpu_user_annotation" if device else "user_annotation")
        yield {
            "ph": "X", "cat": category, "name": span.name,
            **_place(span.lane, int(timeline.lane[index]), int(rows[index])),
            "ts": _us(span.start - begin), "dur": _us(span.duration), "args": _arguments(span),
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


def _flows(timeline: Timeline, rows: np.ndarray[Any, Any]) -> Iterator[Event]:
    """Give two events an arrow. A flow binds to the span around its time; at a span's end it leaves 1 ns earlier."""
    begin = timeline.begin
    for number, (tail, head, kind) in enumerate(zip(*timeline.arrows.values(), strict=True)):
        first, second = timeline.row(int(tail)), timeline.row(int(head))
        wait = kind == ArrowKind.WAIT
        name = "event wait" if wait else "ac2g"
        leaves = max(first.start, first.end - 1) if wait else first.start
        common = {"id": number + 1, "cat": name, "name": name}
        for phase, span, index, time in (("s", first, tail, leaves), ("f", second, head, second.start)):
            place = _place(span.lane, int(timeline.lane[index]), int(rows[index]))
            yield {"ph": phase, **common, **place, "ts": _us(time - begin)} | ({"bp": "e"} if phase == "f" else {})


def _marks(timeline: Timeline) -> Iterator[Event]:
    for mark in timeline.marks:
        place = _place(timeline.lanes[mark.lane], mark.lane)
        yield {"ph": "i", "s": "t", "cat": "hazard", "name": mark.kind, **place, "ts": _us(mark.time - timeline.begin),
               "args": {"text": mark.text}}  # fmt: skip
