"""Read head and body back, as docs/contributing.md has it and view.js does; nothing of `pack` is used."""

import gzip

import numpy as np

DEFAULTS = {"batch": -1, "hidden": 255, "count": 1}
SPANS = (
    *("start", "duration", "style", "name", "batch", "nbytes", "cause", "waited"),
    *("pinned", "source", "hidden", "count"),
)


def unpack(head, body):
    """Return the columns: those of the spans with "end", and tail, head, arrow."""
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
        size = column["planes"]
        planes = np.frombuffer(raw, np.uint8, rows * size, offset).reshape(size, rows).astype(np.int64)
        offset += rows * size
        values = sum(plane << (8 * place) for place, plane in enumerate(planes))
        columns[column["name"]] = np.cumsum((values >> 1) ^ -(values & 1)) if column["differences"] else values
    assert offset == len(raw), "the body is longer than its columns"
    columns["nbytes"] -= 1
    assert sum(len(rows) for *_, rows in tracks(head)) == head["rows"]
    return columns | {"end": columns["start"] + columns["duration"]}


def tracks(head):
    """Give (part, lane, track, rows of the body) for each track."""
    place = 0
    for part in head["parts"]:
        for lane in part["lanes"]:
            for track in lane["tracks"]:
                yield part, lane, track, np.arange(place, place + track["count"])
                place += track["count"]
