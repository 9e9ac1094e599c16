"""Timelines -> what the view reads: a head in JSON and a body of binary columns; docs/contributing.md has the format.

    head, body = pack([Part(timeline)], title="the finding")
    head, body = pack([Part(timeline)], limit=20_000)     # most bars; the rest is merged, and the totals stay exact

A bar is one row of the body: a span, or, of more than `limit`, the busy time of neighbours that look alike. Rows are
ordered by part, lane, track and start, so that a column needs a few bits a row: what is stored of a time is the gap to
the bar before, and of wide numbers one plane of bytes after the other, which compresses well.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderviz import metrics, words
from loaderviz.metrics import Loop
from loaderviz.timeline import DEVICE_KINDS, Cause, Kind, Timeline
from loaderviz.view import theme
from loaderviz.view.lanes import Row, arrange

Json = dict[str, Any]
Ints = npt.NDArray[np.int64]

ESCAPE = 2**32 - 1  # in a column of u32: the value is the next one in head["wide"]
MOST = 2_000_000  # bars of a page; a browser holds about 35 bytes of each
_SMALL = 2_000  # bytes; a smaller body is not compressed, so that a page can show it at once
_CELLS = 200  # of the utilisation curve
_LABELS = {Kind.COPY_H2D: "bytes", Kind.COPY_D2H: "bytes", Kind.COPY_D2D: "bytes", Kind.MEMSET: "bytes",
           Kind.FETCH: "batch", Kind.PIN: "batch", Kind.RANGE: "batch", Kind.WAIT: "cause"}  # fmt: skip
_PLAIN = (Kind.WAIT,)  # their colour never stands for a batch
_UNFOLDED = 4  # devices or ranks; of more, each is folded to the strip of what it does
STATES = {name: len(Kind) + place for place, name in enumerate(theme.STATES)}  # style numbers


@dataclass(frozen=True)
class Part:
    """One timeline of a view. `finding` is its verdict in words, `folded` shows its hero row alone.

    `hero` has the numbers beside that row, `findings` and `ghost` are as `advised` makes them. `shift`: its times begin
    so many ns later.
    """

    timeline: Timeline
    name: str = ""
    finding: str = ""
    folded: bool = False
    operators: bool = False
    utilization: bool = False
    hero: Json | None = None
    ghost: Json | None = None
    findings: Sequence[Json] = field(default_factory=tuple)
    shift: int = 0

    @cached_property
    def arranged(self) -> tuple[list[Row], int]:
        """Its rows, and how many spans are nested too deeply to be in one."""
        return arrange(self.timeline, self.operators)

    @cached_property
    def bars(self) -> Bars:
        """A bar for each span of each row, and for each state of each strip."""
        return _bars_of(self)


@dataclass(frozen=True)
class Bars:
    """Rows of the body for one part, as columns of one entry a bar; times from the part's begin on [ns].

    `span` is the number of the span in its timeline, or of one of a merged bar; -1 for a state. `track` counts the
    tracks of all rows.
    """

    track: Ints
    start: Ints
    end: Ints
    style: Ints
    span: Ints
    count: Ints


def pack(
    parts: Sequence[Part], *, title: str = "", subtitle: str = "", twin: str = "", color: str = "batch",
    window: tuple[int, int] | None = None, notes: Sequence[str] = (), limit: int = MOST, small: int = _SMALL,
    **more: Any,
) -> tuple[Json, bytes]:  # fmt: skip
    """Return head and body of a view of these timelines, in at most about `limit` bars.

    `window` is the part to show first [ns from the begin of each]; None lets the data say. A body below `small` bytes
    is not compressed. `more` goes into the head as it is, such as `height`.
    """
    whole: list[tuple[int, int] | None] = []
    tables: list[Bars] = []
    for part in parts:
        bars, kept = _thinned(part, part.bars, max(1, limit // len(parts)), window)
        tables.append(bars)
        whole.append(kept)
    if window is None:
        window = whole[0] if whole and whole[0] else first_view(parts[0].timeline) if len(parts) == 1 else None
    writer = _Writer()
    names, sources = _Names(), _Names()
    offset, joins, packed = 0, [np.empty((0, 3), np.int64)], []
    for part, bars, kept in zip(parts, tables, whole, strict=True):
        place = _bar_of(part, bars, offset)
        _add(writer, part.timeline, bars, names, sources)
        joins.append(_joins(part.timeline, place))
        packed.append(_part(part, bars, kept, place))
        offset += len(bars.span)
    codec, body = writer.finish(np.concatenate(joins), small)
    head = {
        "v": 1, "title": title, "subtitle": subtitle, "twin": twin, "color": color,
        "window": None if window is None else [int(edge) for edge in window], "axis": None, "height": None,
        "notes": [*notes, *_notes(parts, tables, whole)], "names": names.all, "sources": sources.all,
        "causes": ["", *(cause.words for cause in list(Cause)[1:])], **_looks(),
        "parts": packed,
        "wide": writer.wide, "rows": offset, "arrows": writer.arrows, "codec": codec, "columns": writer.columns,
    }  # fmt: skip
    return head | more, body


def _bars_of(part: Part) -> Bars:
    timeline, origin = part.timeline, part.timeline.begin - part.shift
    spans: list[Ints] = []
    tracks: list[Ints] = []
    starts: list[Ints] = []
    ends: list[Ints] = []
    styles: list[Ints] = []
    number = 0
    for row in part.arranged[0]:
        if row.kind == "strip":
            found = metrics.states(timeline, row.device)
            pieces = np.concatenate(list(found.values()))
            style = np.repeat([STATES[name] for name in found], [len(each) for each in found.values()])
            order = np.argsort(pieces[:, 0], kind="stable")
            columns = [(np.full(len(order), -1), pieces[order, 0], pieces[order, 1], style[order])]
        else:
            columns = [(each, timeline.start[each], timeline.end[each], timeline.kind[each]) for each in row.tracks]
        for span, start, end, style in columns:
            for column, values in zip((spans, starts, ends, styles), (span, start, end, style), strict=True):
                column.append(np.asarray(values, np.int64))
            tracks.append(np.full(len(span), number))
            number += 1
    empty = np.empty(0, np.int64)
    track, start, end, style, span = (
        np.concatenate([empty, *column]) for column in (tracks, starts, ends, styles, spans)
    )
    return Bars(track, start - origin, end - origin, style, span, np.ones(len(span), np.int64))


def merge(bars: Bars, category: Ints, keep: npt.NDArray[np.bool_], limit: int) -> Bars:
    """Return at most about `limit` bars: short neighbours of one track become one bar for each category of them.

    Those that `keep` marks, and those longer than a cell of time, stay alone; cells grow until the limit holds. A
    merged bar is as long as its spans are together, and lies within the time in which they lie: totals stay exact.
    """
    cell = max(1, int(bars.end.max(initial=1)) // max(1, limit))
    length = bars.end - bars.start
    for _ in range(80):
        place = bars.start // cell
        alone = keep | (length >= cell)
        opens = np.ones(len(place), bool)
        opens[1:] = (np.diff(bars.track) != 0) | (np.diff(place) != 0) | alone[1:] | alone[:-1]
        group = np.cumsum(opens) - 1
        order = np.lexsort((category, group))
        piece = np.r_[True, (np.diff(group[order]) != 0) | (np.diff(category[order]) != 0)] if len(order) else opens
        if (pieces := int(np.count_nonzero(piece))) <= limit or cell > bars.end.max(initial=0):
            break
        cell = max(cell * 3 // 2, cell * pieces // limit) + 1
    first = np.flatnonzero(piece)
    one = order[first]
    busy = np.add.reduceat(length[order], first) if len(first) else length
    before = np.cumsum(busy) - busy
    of = group[one]
    heads = np.flatnonzero(np.r_[True, np.diff(of) != 0]) if len(of) else first
    start = bars.start[np.flatnonzero(opens)][of] + before - before[heads][of]
    count = np.diff(np.r_[first, len(order)])
    return Bars(bars.track[one], start, start + busy, bars.style[one], bars.span[one], count)


def first_view(timeline: Timeline) -> tuple[int, int] | None:
    """Return where the GPU works and 5 % on both sides [ns from the begin]; None where that is about all of it."""
    work = timeline.where(*DEVICE_KINDS)
    if not work.any():
        return None
    first, last = (int(edge) - timeline.begin for edge in (timeline.start[work].min(), timeline.end[work].max()))
    edge = (last - first) // 20
    return (max(0, first - edge), min(timeline.duration, last + edge)) if last - first < timeline.duration / 2 else None


def _thinned(part: Part, bars: Bars, limit: int, window: tuple[int, int] | None) -> tuple[Bars, tuple[int, int] | None]:
    """Return the bars in at most about `limit`, and the window that has every span on its own (None: all of it)."""
    if len(bars.span) <= limit:
        return bars, None
    timeline = part.timeline
    judged = Loop.of(timeline, metrics.choose_device(timeline, None)[0]).window
    begin, end = window or first_view(timeline) or (0, timeline.duration)
    if window is None and judged and judged[0] - timeline.begin < end:
        begin = max(begin, judged[0] - timeline.begin)
    starts = np.sort(bars.start)
    first = int(np.searchsorted(starts, begin))
    last = min(first + limit // 2, len(starts) - 1)
    kept = (begin, int(min(end, starts[last]))) if starts[last] > begin else (begin, begin + 1)
    inside = (bars.end >= kept[0]) & (bars.start <= kept[1])
    batch = np.where(bars.span < 0, -1, timeline.batch[bars.span])
    category = bars.style * 64 + np.where(batch < 0, 63, batch % len(theme.BATCHES))
    return merge(bars, category, inside, limit), kept


# Columns


class _Names:
    """Collects texts, and gives each its number; 0 is ""."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {"": 0}

    def numbers(self, texts: Sequence[str], used: Ints) -> Ints:
        """Return for each of `texts` that is used its number, 0 for the others."""
        table = np.zeros(len(texts) + 1, np.int64)  # the last one, which -1 finds, is ""
        for place in np.unique(used[used >= 0]).tolist():
            table[place] = self._numbers.setdefault(texts[place], len(self._numbers))
        return table

    @property
    def all(self) -> list[str]:
        return list(self._numbers)


class _Writer:
    """Puts columns into the body; those that are constant, or left out at their default, take no room."""

    def __init__(self) -> None:
        self.wide: dict[str, list[int]] = {}
        self.columns: list[Json] = []
        self.arrows = 0
        self._parts: dict[str, list[Ints]] = {}
        self._planes: list[bytes] = []

    def add(self, name: str, values: Ints, wide: bool = False) -> None:
        """Add values to a column of the spans; `wide` ones may be of any size."""
        if wide:
            large = (values < 0) | (values >= ESCAPE)
            self.wide.setdefault(name, []).extend(values[large].tolist())
            values = np.where(large, ESCAPE, values)
        self._parts.setdefault(name, []).append(values)

    def finish(self, arrows: Ints, small: int) -> tuple[str, bytes]:
        """Return the codec and the body: the columns of the spans, then those of the arrows (tail, head, kind)."""
        self.wide = {name: values for name, values in self.wide.items() if values}
        self.arrows = len(arrows)
        for name, parts in self._parts.items():
            self._write(name, np.concatenate(parts), "spans")
        arrows = arrows[np.lexsort((arrows[:, 1], arrows[:, 0]))]
        for name, values in zip(("tail", "head", "arrow"), arrows.T, strict=True):
            self._write(name, values, "arrows")
        raw = b"".join(self._planes)
        return ("raw", raw) if len(raw) < small else ("gzip", gzip.compress(raw, 6, mtime=0))

    def _write(self, name: str, values: Ints, table: str) -> None:
        default = _DEFAULTS.get(name, 0)
        if not len(values) or (values == default).all():
            return
        if (values == values[0]).all() and values[0] != ESCAPE:
            self.columns.append({"name": name, "type": "i32", "table": table, "constant": int(values[0])})
            return
        kind = "i32" if name in _SIGNED else "u8" if values.max() < 2**8 else "u16" if values.max() < 2**16 else "u32"
        if kind == "i32":
            delta = np.diff(values, prepend=0)
            values = (delta << 1) ^ (delta >> 63)
        for plane in range({"u8": 1, "u16": 2}.get(kind, 4)):
            self._planes.append((values >> (8 * plane) & 255).astype(np.uint8).tobytes())
        self.columns.append({"name": name, "type": kind, "table": table})


_SIGNED = ("batch", "tail", "head")
_DEFAULTS = {"batch": -1, "hidden": 255, "count": 1}


def _add(writer: _Writer, timeline: Timeline, bars: Bars, names: _Names, sources: _Names) -> None:
    """Write the columns of a part's bars."""
    span, known = bars.span, bars.span >= 0
    first = np.diff(bars.track, prepend=-1) != 0
    writer.add("gap", bars.start - np.where(first, 0, np.roll(bars.end, 1)), wide=True)
    writer.add("duration", bars.end - bars.start, wide=True)
    writer.add("style", bars.style)
    of = {name: np.full(len(span), -1) for name in ("name", "batch", "nbytes", "cause", "pinned", "source")}
    for name, values in of.items():
        values[known] = timeline.spans[name][span[known]]
    shown = [words.place(source) for source in timeline.sources]
    writer.add("name", names.numbers(timeline.names, of["name"])[of["name"]])
    writer.add("batch", of["batch"])
    writer.add("nbytes", of["nbytes"] + 1, wide=True)
    writer.add("cause", np.maximum(of["cause"], 0))
    writer.add("pinned", of["pinned"] + 1)
    writer.add("source", sources.numbers(shown, of["source"])[of["source"]])
    hidden, single = np.full(len(span), 255), known & (bars.count == 1)
    hidden[single] = np.nan_to_num(metrics.hidden_shares(timeline)[span[single]] * 200, nan=255).round()
    writer.add("hidden", hidden)
    writer.add("count", bars.count)


def _bar_of(part: Part, bars: Bars, offset: int) -> Ints:
    """Return for each span its bar in the body, that of a mirror not counted; -1 if it has none, and at -1."""
    mirror = np.array([row.mirror for row in part.arranged[0] for _ in (row.tracks or ((),))], bool)
    place = np.full(len(part.timeline) + 1, -1, np.int64)
    mine = np.flatnonzero((bars.span >= 0) & (bars.count == 1) & ~mirror[bars.track])
    place[bars.span[mine]] = mine + offset
    return place


def _joins(timeline: Timeline, place: Ints) -> Ints:
    """Return the arrows of which both ends are bars: (tail, head, kind)."""
    tail, head, kind = (timeline.arrows[name] for name in ("tail", "head", "kind"))
    joins: Ints = np.stack([place[tail], place[head], np.asarray(kind, np.int64)], axis=1)
    return joins[(joins[:, :2] >= 0).all(axis=1)]


# Head


@cache
def _looks() -> Json:
    """Return all styles: those of the kinds by number, then those of the states."""
    looks = theme.as_json()
    styles = [
        {"key": kind.name.lower(), **style, "by_batch": kind not in _PLAIN, "label": _LABELS.get(kind, "name"),
         "state": False}
        for kind, style in zip(Kind, looks["kinds"], strict=True)
    ]  # fmt: skip
    states = [
        {"key": f"state:{name}", **style, "by_batch": False, "label": "none", "state": True}
        for name, style in looks["states"].items()
    ]
    return {"styles": styles + states, "batches": looks["batches"], "no_batch": looks["none"]}


def _notes(parts: Sequence[Part], tables: Sequence[Bars], whole: Sequence[tuple[int, int] | None]) -> Iterator[str]:
    """Say what is not in the picture as it is."""
    for part, bars, kept in zip(parts, tables, whole, strict=True):
        before = f"{part.name}: " if part.name else ""
        if kept:
            start, end = (words.duration(edge) if edge else "0" for edge in kept)
            yield (
                f"{before}{words.count(len(part.timeline), 'span')} are too many for a notebook: from {start} to {end} "
                f"each is here, the rest as {words.count(len(bars.span), 'bar')} of busy time. "
                "view(window=(start, end)) shows another part in full, "
                "loaderviz.export.to_html(timeline, 'page.html') all."
            )
        if part.arranged[1] > 0:
            yield f"{before}{words.count(part.arranged[1], 'deeply nested span')} not drawn"


def _part(part: Part, bars: Bars, kept: tuple[int, int] | None, place: Ints) -> Json:
    """Return a part of the head; `place` gives each span its bar."""
    timeline, begin = part.timeline, part.timeline.begin
    rows = part.arranged[0]
    summary = metrics.summarize(timeline)
    counts = np.bincount(bars.track, minlength=sum(len(row.tracks) or 1 for row in rows)).tolist()
    groups, numbers = _groups(rows)
    lanes, track = [], 0
    for row in rows:
        many = len(row.tracks) or 1
        about = asdict(row) | {"tracks": [{"count": n, "mirror": row.mirror} for n in counts[track : track + many]]}
        del about["mirror"]
        lanes.append(about | {"group": numbers.get(row.device, -1), "folded": False})
        track += many
    return {
        "name": part.name, "finding": part.finding, "duration": timeline.duration, "folded": part.folded,
        "hero": _hero(part, rows),
        "where": _where(summary), "where_title": _where_title(summary), "groups": groups, "lanes": lanes,
        "strips": [_strip(timeline)] if part.utilization and timeline.duration else [],
        "marks": [{"time": mark.time - begin, "lane": mark.lane, "kind": mark.kind, "report": mark.report,
                   **dict(zip(("text", "missing"), _told(mark.text), strict=True)),
                   "bars": place[list(mark.spans)].tolist()}
                  for mark in timeline.marks],
        "findings": [{**each, "bars": place[list(each["bars"])].tolist()} for each in part.findings],
        "ghost": part.ghost,
        "whole": None if kept is None else list(kept),
    }  # fmt: skip


def _told(text: str) -> tuple[str, str]:
    problem, _, missing = text.partition("; missing: ")
    return problem, missing


def _groups(rows: Sequence[Row]) -> tuple[list[Json], dict[int, int]]:
    """Return the groups of lanes, one for each of several devices, and the group of each device."""
    devices = list(dict.fromkeys(row.device for row in rows if row.kind != "host"))
    if len(devices) < 2:
        return [], {}
    strips = {row.device: place for place, row in enumerate(rows) if row.kind == "strip"}
    folded = len(devices) > _UNFOLDED
    ranks = {row.device: found[0] for row in rows if (found := re.match(r"rank \d+", row.title))}
    return (
        [{"name": ranks.get(device, f"GPU {device}"), "folded": folded, "lane": strips[device]} for device in devices],
        {device: place for place, device in enumerate(devices)},
    )


def _hero(part: Part, rows: Sequence[Row]) -> Json | None:
    strips = [place for place, row in enumerate(rows) if row.kind == "strip"]
    if part.hero is None or not strips:
        return None
    device = metrics.choose_device(part.timeline, None)[0]
    mine = [place for place in strips if rows[place].device == device]
    return part.hero | {"lane": (mine or strips)[0]}


def _where(summary: metrics.Summary) -> list[Json]:
    """Return where a step goes: the window's breakdown, divided by its steps."""
    steps = summary.window / summary.step if summary.step else 1
    keys = {"compute": "state:compute", "communication exposed": "communication", "copy exposed": "state:copy exposed",
            "other device work": "state:other device work"}  # fmt: skip
    return [
        {"name": "GPU computes" if name == "compute" else name, "ns": round(time / steps),
         "key": keys.get(name) or ("wait" if name.startswith("idle: host blocked") else "state:idle")}
        for name, time in summary.breakdown.items()
    ]  # fmt: skip


def _where_title(summary: metrics.Summary) -> str:
    if summary.step:
        return f"a step, {words.duration(summary.step)}"
    return f"all of it, {words.duration(summary.window)}" if summary.window else ""


def _strip(timeline: Timeline) -> Json:
    """Return the utilisation curve, as nvidia-smi would show it."""
    cell = max(1, timeline.duration // _CELLS)
    _, shares = metrics.utilization(timeline, cell)
    mean = metrics.summarize(timeline).compute_share
    return {"name": "GPU utilisation", "begin": 0, "cell": cell, "values": [round(float(each), 3) for each in shares],
            "max": 1, "text": f"mean {words.share(mean)}"}  # fmt: skip
