"""Timelines -> what the view reads: a head in JSON and a body of binary columns; docs/contributing.md has the format.

    head, body = pack([Part(timeline)], title="the finding")
    head, body = pack([Part(timeline)], limit=20_000)     # most bars; the rest is merged, and the totals stay exact

A bar is one row of the body: a span, or, of more than `limit`, the busy time of neighbours that look alike. Rows are
ordered by part, lane, track and start, so that their differences are small; and one plane of bytes after the other
compresses well.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from typing import Any

import numpy as np

from loaderviz import metrics, words
from loaderviz.metrics import Loop
from loaderviz.timeline import DEVICE_KINDS, Cause, Kind, Mask, Numbers, Timeline
from loaderviz.view import spoken, theme
from loaderviz.view.lanes import Row, arrange

Json = dict[str, Any]
Window = tuple[int, int]  # ns from the begin of a timeline

MOST = 2_000_000  # bars of a page; a browser holds about 35 bytes of each
MARKS = 1_000  # hazards that are drawn
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

    `hero` has the numbers beside that row, `findings` and `ghost` are made in picture.py. `shift`: its times begin so
    many ns later.
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
    def tracks(self) -> list[Row]:
        """The row of each track."""
        return [row for row in self.arranged[0] for _ in row.tracks]

    @cached_property
    def bars(self) -> Bars:
        """A bar for each span of each row, and for each state of each strip."""
        return _bars_of(self)

    def batches(self, bars: Bars) -> Numbers:
        """Return the batch of each bar; -1 for a state."""
        return np.where(bars.span < 0, -1, self.timeline.batch[bars.span])

    def thinned(self, bars: Bars, keep: Mask, limit: int) -> Bars:
        """Return at most about `limit` of its bars: those of one colour are merged, but for what `keep` marks."""
        batch = self.batches(bars)
        colour = np.where(batch < 0, len(theme.BATCHES), batch % len(theme.BATCHES))
        return merge(bars, bars.style * 64 + colour, keep, limit)

    def bar_of(self, bars: Bars) -> Numbers:
        """Return for each span its bar, that of a mirror not counted; -1 if it has none, and at -1."""
        mirror = np.array([row.mirror for row in self.tracks], bool)
        place = np.full(len(self.timeline) + 1, -1, np.int64)
        mine = np.flatnonzero((bars.span >= 0) & (bars.count == 1) & ~mirror[bars.track])
        place[bars.span[mine]] = mine
        return place


@dataclass(frozen=True)
class Bars:
    """Rows of the body for one part, as columns of one entry a bar; times from the part's begin on [ns].

    `span` is the number of the span in its timeline, or of one of a merged bar; -1 for a state. `track` counts the
    tracks of all rows.
    """

    track: Numbers
    start: Numbers
    end: Numbers
    style: Numbers
    span: Numbers
    count: Numbers

    def at(self, some: Numbers) -> Bars:
        """Return some of them."""
        return Bars(*(column[some] for column in vars(self).values()))


def pack(
    parts: Sequence[Part],
    *,
    title: str = "",
    subtitle: str = "",
    twin: str = "",
    color: str = "batch",
    window: Window | None = None,
    limit: int = MOST,
    small: int = _SMALL,
    **more: Any,
) -> tuple[Json, bytes]:
    """Return head and body of a view of these timelines, in at most about `limit` bars.

    `window` is the part to show first [ns from the begin of each; None: what has every span on its own]. A body below
    `small` bytes is not compressed. `more` goes into the head as it is, such as `height`.
    """
    tables = [_thinned(part, max(1, limit // len(parts)), window) for part in parts]
    window = window or tables[0][1]
    names: dict[str, int] = {"": 0}
    sources: dict[str, int] = {"": 0}
    columns, joins, packed, rows = [], [], [], 0
    for part, (bars, kept) in zip(parts, tables, strict=True):
        place = part.bar_of(bars)
        place[place >= 0] += rows
        columns.append(_columns(part.timeline, bars, names, sources))
        joins.append(_joins(part.timeline, place))
        packed.append(_part(part, bars, kept, place))
        rows += len(bars.span)
    arrows = np.concatenate(joins)
    arrows = arrows[np.lexsort((arrows[:, 1], arrows[:, 0]))]
    spans = {name: np.concatenate([each[name] for each in columns]) for name in columns[0]}
    told, body = _body({"spans": spans, "arrows": dict(zip(("tail", "head", "arrow"), arrows.T, strict=True))})
    compressed = len(body) >= small
    head = {
        "v": 1, "title": title, "subtitle": subtitle, "twin": twin, "color": color,
        "window": None if window is None else [int(edge) for edge in window], "axis": None, "height": None,
        "notes": list(_notes(parts, tables)), "names": list(names), "sources": list(sources),
        "causes": ["", *(cause.words for cause in list(Cause)[1:])], **looks(), "parts": packed,
        "rows": rows, "arrows": len(arrows), "codec": "gzip" if compressed else "raw", "columns": told,
    }  # fmt: skip
    if written := spoken.words_in(words.language()):
        head["words"] = written
    return head | more, gzip.compress(body, 6, mtime=0) if compressed else body


def _bars_of(part: Part) -> Bars:
    timeline, origin = part.timeline, part.timeline.begin - part.shift
    tables = [np.empty((0, 5), np.int64)]
    tracks = ((row, spans) for row in part.arranged[0] for spans in row.tracks)
    for number, (row, spans) in enumerate(tracks):
        columns = [spans, timeline.start[spans], timeline.end[spans], timeline.kind[spans]]
        if row.kind == "strip":
            found = metrics.states(timeline, row.device)
            pieces = np.concatenate(list(found.values()))
            style = np.repeat([STATES[name] for name in found], [len(each) for each in found.values()])
            order = np.argsort(pieces[:, 0], kind="stable")
            columns = [np.full(len(order), -1, np.int64), pieces[order, 0], pieces[order, 1], style[order]]
        tables.append(np.stack([np.full(len(columns[0]), number, np.int64), *columns], axis=1).astype(np.int64))
    track, span, start, end, style = np.concatenate(tables).T.copy()
    return Bars(track, start - origin, end - origin, style, span, np.ones(len(span), np.int64))


def merge(bars: Bars, category: Numbers, keep: Mask, limit: int) -> Bars:
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


def first_view(timeline: Timeline) -> Window | None:
    """Return where the GPU works, or steps are judged, and 5 % on both sides [ns from the begin].

    None where that is about all of it, or where it does not work.
    """
    work, steps = timeline.where(*DEVICE_KINDS), Loop.of(timeline, metrics.choose_device(timeline, None)[0]).window
    if not work.any():
        return None
    times = np.r_[timeline.start[work].min(), timeline.end[work].max(), steps or ()] - timeline.begin
    first, last = int(times.min()), int(times.max())
    edge = (last - first) // 20
    return (max(0, first - edge), min(timeline.duration, last + edge)) if last - first < timeline.duration / 2 else None


def _thinned(part: Part, limit: int, window: Window | None) -> tuple[Bars, Window | None]:
    """Return a part in at most about `limit` bars, and the window that has every span on its own (None: all of it)."""
    timeline, bars = part.timeline, part.bars
    if len(bars.span) <= limit:
        return bars, None
    judged = Loop.of(timeline, metrics.choose_device(timeline, None)[0]).window
    begin, end = window or first_view(timeline) or (0, timeline.duration)
    if window is None and judged and judged[0] - timeline.begin < end:
        begin = max(begin, judged[0] - timeline.begin)
    starts = np.sort(bars.start)
    first = int(np.searchsorted(starts, begin))
    last = min(first + limit // 2, len(starts) - 1)
    kept = (begin, int(min(end, starts[last]))) if starts[last] > begin else (begin, begin + 1)
    inside = (bars.end >= kept[0]) & (bars.start <= kept[1])
    return part.thinned(bars, inside, limit), kept


# Columns


_DIFFERENCES = ("start", "batch", "tail", "head")  # of these the differences are stored, as zigzag numbers
_DEFAULTS = {"batch": -1, "hidden": 255, "count": 1}


def _columns(timeline: Timeline, bars: Bars, names: dict[str, int], sources: dict[str, int]) -> dict[str, Numbers]:
    """Return the columns of a part's bars; `names` and `sources` get the texts that they name by number."""
    span, known = bars.span, bars.span >= 0
    told = "name", "batch", "nbytes", "cause", "pinned", "source", "waited"
    of = {name: np.full(len(span), -1, np.int64) for name in told}
    for name, values in of.items():
        values[known] = timeline.spans[name][span[known]]
    hidden, single = np.full(len(span), 255, np.int64), known & (bars.count == 1)
    hidden[single] = np.nan_to_num(metrics.hidden_shares(timeline)[span[single]] * 200, nan=255).round()
    return {
        "start": bars.start,
        "duration": bars.end - bars.start,
        "style": bars.style,
        "name": _numbered(timeline.names, of["name"], names),
        "batch": of["batch"],
        "nbytes": of["nbytes"] + 1,
        "cause": np.maximum(of["cause"], 0),
        "waited": np.maximum(of["waited"], 0),
        "pinned": of["pinned"] + 1,
        "source": _numbered([timeline.lines[source] for source in timeline.sources], of["source"], sources),
        "hidden": hidden,
        "count": bars.count,
    }


def _numbered(texts: Sequence[str], used: Numbers, numbers: dict[str, int]) -> Numbers:
    """Return for each place in `texts` the number of that text, 0 for -1; new ones are added to `numbers`."""
    table = np.zeros(len(texts) + 1, np.int64)  # the last one, which -1 finds, is ""
    for place in np.unique(used[used >= 0]).tolist():
        table[place] = numbers.setdefault(texts[place], len(numbers))
    return table[used]


def _joins(timeline: Timeline, place: Numbers) -> Numbers:
    """Return the arrows of which both ends are bars: (tail, head, kind)."""
    tail, head, kind = (timeline.arrows[name] for name in ("tail", "head", "kind"))
    joins: Numbers = np.stack([place[tail], place[head], np.asarray(kind, np.int64)], axis=1)
    return joins[(joins[:, :2] >= 0).all(axis=1)]


def _body(tables: Mapping[str, Mapping[str, Numbers]]) -> tuple[list[Json], bytes]:
    """Return what the head says of each column, and all columns; those that are constant take no room."""
    told: list[Json] = []
    planes: list[bytes] = []
    for table, name, values in ((table, *column) for table, columns in tables.items() for column in columns.items()):
        values = np.asarray(values, np.int64)
        if not len(values) or (values == _DEFAULTS.get(name, 0)).all():
            continue
        about: Json = {"name": name, "table": table}
        if (values == values[0]).all():
            told.append(about | {"constant": int(values[0])})
            continue
        if name in _DIFFERENCES:
            difference = np.diff(values, prepend=0)
            values = (difference << 1) ^ (difference >> 63)
        count = (int(values.max()).bit_length() + 7) // 8
        planes += [(values >> (8 * plane) & 255).astype(np.uint8).tobytes() for plane in range(count)]
        told.append(about | {"planes": count, "differences": name in _DIFFERENCES})
    return told, b"".join(planes)


# Head


@cache
def looks() -> Json:
    """Return all styles: those of the kinds by number, then those of the states."""
    kinds = [
        {
            "key": kind.name.lower(),
            **asdict(theme.KINDS[kind]),
            "legend": theme.legend(kind),
            "by_batch": kind not in _PLAIN,
            "label": _LABELS.get(kind, "name"),
            "state": False,
        }
        for kind in Kind
    ]
    states = [
        {
            "key": f"state:{name}",
            **asdict(style),
            "legend": theme.LEGEND[name],
            "by_batch": False,
            "label": "none",
            "state": True,
        }
        for name, style in theme.STATES.items()
    ]
    batches = [asdict(style) for style in theme.BATCHES]
    return {"styles": kinds + states, "batches": batches, "no_batch": asdict(theme.NO_BATCH), "thin": theme.THIN}


def _notes(parts: Sequence[Part], tables: Sequence[tuple[Bars, Window | None]]) -> Iterator[str]:
    """Say what is not in the picture as it is."""
    for part, (bars, kept) in zip(parts, tables, strict=True):
        before = f"{part.name}: " if part.name else ""
        if kept:
            start, end = (words.duration(edge) if edge else "0" for edge in kept)
            yield (
                f"{before}{words.count(len(part.timeline), 'span')} are too many for a notebook: from {start} to {end} "
                f"each is here, the rest as {words.count(len(bars.span), 'bar')} of busy time. "
                "view(window=(start, end)) shows another part in full, "
                "loaderviz.export.to_html(timeline, 'page.html') all."
            )
        yield from (f"{before}{row.title}" for row in part.arranged[0] if row.kind == "host" and row.of < 0)
        if (more := len(part.timeline.marks) - MARKS) > 0:
            yield f"{before}{words.count(more, 'hazard')} after the first {MARKS:,} not drawn"
        if part.arranged[1] > 0:
            yield f"{before}{words.count(part.arranged[1], 'deeply nested span')} not drawn"


def _part(part: Part, bars: Bars, kept: Window | None, place: Numbers) -> Json:
    """Return a part of the head; `place` gives each span its bar."""
    timeline, begin = part.timeline, part.timeline.begin
    rows = part.arranged[0]
    summary = metrics.summarize(timeline)
    counts = iter(np.bincount(bars.track, minlength=len(part.tracks)).tolist())
    groups, numbers = _groups(rows)
    lanes = [
        {
            "name": row.name,
            "short": row.short,
            "title": row.title,
            "kind": row.kind,
            "of": row.of,
            "role": row.role,
            "group": numbers.get(row.device, -1),
            "tracks": [{"count": next(counts), "mirror": row.mirror} for _ in row.tracks],
        }
        for row in rows
    ]
    return {
        "name": part.name, "finding": part.finding, "duration": timeline.duration, "folded": part.folded,
        "hero": _hero(part, rows),
        "where": _where(summary), "where_title": _where_title(summary), "groups": groups, "lanes": lanes,
        "strips": [_strip(timeline)] if part.utilization and timeline.where(*DEVICE_KINDS).any() else [],
        "marks": [{"time": mark.time - begin, "lane": mark.lane, "kind": mark.kind, "report": mark.report,
                   **dict(zip(("text", "missing"),
                              spoken.hazard(mark) or mark.text.partition("; missing: ")[::2], strict=True)),
                   "bars": place[list(mark.spans)].tolist()}
                  for mark in timeline.marks[:MARKS]],
        "findings": [{**each, "bars": place[list(each["bars"])].tolist()} for each in part.findings],
        "ghost": part.ghost,
        "whole": None if kept is None else list(kept),
    }  # fmt: skip


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
    keys = {
        "compute": "state:compute",
        "communication exposed, waiting for other ranks": "state:waiting for ranks",
        "communication exposed": "state:communication",
        "copy exposed": "state:copy exposed",
        "other device work": "state:other device work",
    }
    return [
        {
            "name": "GPU computes" if name == "compute" else name if summary.busy else name.removeprefix("idle: "),
            "ns": round(time / steps),
            "key": keys.get(name) or ("wait" if name.startswith("idle: host blocked") else "state:idle"),
        }
        for name, time in summary.breakdown.items()
    ]


def _where_title(summary: metrics.Summary) -> str:
    if summary.step:
        return f"a step, {words.duration(summary.step)}"
    return f"all of it, {words.duration(summary.window)}" if summary.window else ""


def _strip(timeline: Timeline) -> Json:
    """Return the utilisation curve, as nvidia-smi would show it."""
    cell = max(1, timeline.duration // _CELLS)
    edges, shares = metrics.utilization(timeline, cell)
    mean = float(shares @ np.diff(edges)) / max(1, timeline.duration)
    return {
        "name": "GPU utilisation",
        "cell": cell,
        "values": [round(float(each), 3) for each in shares],
        "text": f"mean {words.share(mean)}",
    }
