"""Read head and body back, as docs/contributing.md has it and view.js does; nothing of `pack` is used."""

from __future__ import annotations

import gzip

import numpy as np

SIZES = {"u8": 1, "u16": 2, "u32": 4, "i32": 4}
DEFAULTS = {"batch": -1, "hidden": 255, "count": 1}
SPANS = ("gap", "duration", "style", "name", "batch", "nbytes", "cause", "pinned", "source", "hidden", "count")


def unpack(head, body):
    """Return the columns: those of the spans with "start" and "end", and tail, head, arrow."""
    raw = gzip.decompress(body) if head["codec"] == "gzip" else body
    lengths = {"spans": head["rows"], "arrows": head["arrows"]}
    columns = {name: np.full(head["rows"], DEFAULTS.get(name, 0), np.int64) for name in SPANS}
    columns |= {name: np.zeros(head["arrows"], np.int64) for name in ("tail", "head", "arrow")}
    offset = 0
    for column in head["columns"]:
        rows = lengths[column["table"]]
        if "constant" in column:
            columns[column["name"]][:] = column["constant"]
            continue
        size = SIZES[column["type"]]
        planes = np.frombuffer(raw, np.uint8, rows * size, offset).reshape(size, rows).astype(np.int64)
        offset += rows * size
        values = sum(plane << (8 * place) for place, plane in enumerate(planes))
        if column["type"] == "i32":
            values = np.cumsum((values >> 1) ^ -(values & 1))
        columns[column["name"]] = values
    assert offset == len(raw), "the body is longer than its columns"
    for name, wide in head["wide"].items():
        columns[name][columns[name] == 2**32 - 1] = wide
    columns["nbytes"] -= 1
    counts = [track["count"] for part in head["parts"] for lane in part["lanes"] for track in lane["tracks"]]
    assert sum(counts) == head["rows"]
    start, end, place = np.zeros(head["rows"], np.int64), np.zeros(head["rows"], np.int64), 0
    for count in counts:
        clock = 0
        for row in range(place, place + count):
            start[row] = clock + columns["gap"][row]
            clock = end[row] = start[row] + columns["duration"][row]
        place += count
    return columns | {"start": start, "end": end}


def tracks(head):
    """Give (part, lane, track, rows of the body) for each track."""
    place = 0
    for part in head["parts"]:
        for lane in part["lanes"]:
            for track in lane["tracks"]:
                yield part, lane, track, np.arange(place, place + track["count"])
                place += track["count"]
