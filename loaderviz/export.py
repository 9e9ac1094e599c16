"""Timeline -> files that other tools and other people read: one HTML page, Chrome trace JSON, a pandas table.

loaderviz reads the Chrome trace back. plotly and pandas are imported where they are needed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loaderviz.analysis import Advice
from loaderviz.analysis.advice import advise
from loaderviz.analysis.ranks import RankTable, drawn, rank_table
from loaderviz.errors import LoadervizError, require
from loaderviz.files import writable, write
from loaderviz.intervals import tracks
from loaderviz.metrics import Summary, check_timeline, summarize
from loaderviz.timeline import SPAN_COLUMNS, ArrowKind, Cause, Kind, Lane, Paths, Timeline
from loaderviz.view import View, compare
from loaderviz.view.picture import module

if TYPE_CHECKING:
    import pandas as pd


class ExportError(LoadervizError, ValueError):
    """Something cannot be put into the report."""


@dataclass(frozen=True)
class Section:
    """A part of the HTML page: a heading, a paragraph, and items below each other.

    Items may be views of `loaderviz.view`, Comparisons, Timelines, plotly figures, pandas tables, Summaries, Advice,
    Hazards (each by itself) or strings (a paragraph); and what else has a `_repr_html_`.
    """

    heading: str
    text: str = ""
    items: Sequence[Any] = ()


_UNITS = re.compile(r"(?<=\d) (?=(%|ns|µs|ms|s|[kMG]?B|bytes|GB/s)(\W|$))")  # a line does not end before a unit


def to_html(
    content: Timeline | Mapping[str, Timeline] | Sequence[Section] | Section, path: str | Path, title: str = "loaderviz"
) -> Path:
    """Write one self-contained HTML page and return its path; it needs no network.

    `content` is a Timeline (picture, numbers, findings), a dict of name -> Timeline (a comparison and each Summary), or
    Sections. Each picture has its text twin. Raises `ExportError` for anything else, `NotATimelineError` for a dict of
    other things, `NoFolderError` when the folder does not exist.
    """
    writable(path)  # before the work
    body = "\n".join(_section(section) for section in _sections(content))
    return write(path, page(f"<h1>{escape(title)}</h1>\n{body}", title))


def page(body: str, title: str, *more: str) -> str:
    """Return a self-contained HTML page with the view's script; `more` are further parts of it (`picture.module`)."""
    scripts = ""
    if 'class="plotly-graph-div"' in body:
        from plotly.offline import get_plotlyjs

        scripts = f"<script>{get_plotlyjs()}</script>"
    # a plotly figure is light in both schemes: on a dark page it lies like a card
    style = files("loaderviz.view").joinpath("report.css").read_text(encoding="utf-8")
    return (
        f'<!DOCTYPE html>\n<html lang="en" class="lv-page"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{style}</style>\n{scripts}</head>\n<body>{body}\n"
        f'<script type="module">{module(*more)}</script></body></html>\n'
    )


def to_table(timeline: Timeline) -> pd.DataFrame:
    """Return one row per span: times in ns, names looked up, `gb_per_s` for copies, NA where it does not apply.

    Columns: start_ns, end_ns, duration_ns, lane, group, device, kind, name, batch, nbytes, gb_per_s, correlation,
    pinned, cause, source.
    """
    require("to_table()", "pandas")
    import pandas as pd

    check_timeline(timeline, "to_table()")
    column, duration, lanes = timeline.spans, timeline.end - timeline.start, timeline.lanes

    def told(texts: Sequence[Any], by: str, kind: Any = object) -> pd.Series:
        return pd.Series([texts[number] for number in column[by].tolist()], dtype=kind)

    def known(name: str) -> pd.Series:
        values = pd.Series(column[name].astype(np.int64), dtype="Int64")
        return values.mask(values < 0)

    rate = np.where((column["nbytes"] >= 0) & (duration > 0), column["nbytes"] / np.maximum(duration, 1), np.nan)
    return pd.DataFrame(
        {
            "start_ns": timeline.start,
            "end_ns": timeline.end,
            "duration_ns": duration,
            "lane": told([lane.name for lane in lanes], "lane"),
            "group": told([lane.group for lane in lanes], "lane"),
            "device": told([lane.device if lane.group == "device" else None for lane in lanes], "lane", "Int64"),
            "kind": told([kind.name.lower() for kind in Kind], "kind"),
            "name": told(timeline.names, "name"),
            "batch": known("batch"),
            "nbytes": known("nbytes"),
            "gb_per_s": rate,
            "correlation": known("correlation"),
            "pinned": told((False, True, None), "pinned", "boolean"),  # -1 finds the last one, here and below
            "cause": told(["", *(cause.words for cause in list(Cause)[1:])], "cause"),
            "source": told([*(timeline.lines[each] for each in timeline.sources), ""], "source"),
        }
    )


def _sections(content: Any) -> list[Section]:
    if isinstance(content, Timeline):
        advice = advise(content)
        return [
            Section("Timeline", items=[advised(content, advice), summarize(content), *ranks(content)]),
            Section("What could be gained", items=[advice]),
        ]
    if isinstance(content, Mapping):
        if not content:
            raise ExportError("to_html() got an empty dict; give at least one timeline, such as {'blocking': timeline}")
        for name, timeline in content.items():
            check_timeline(timeline, f"to_html(), for {name!r},")
        found = {str(name): advise(timeline) for name, timeline in content.items()}
        each = [Section(str(name), items=[summarize(timeline)]) for name, timeline in content.items()]
        return [Section("Side by side", items=[compare(content, advice=found)]), *each]
    sections = [content] if isinstance(content, Section) else content
    if isinstance(sections, (list, tuple)) and all(isinstance(item, Section) for item in sections):
        if not sections:
            raise ExportError("to_html() got no sections; give at least one Section(heading, text, items)")
        return list(sections)
    kind = type(content).__name__
    raise ExportError(f"to_html() cannot show a {kind}; give a Timeline, a dict of name -> Timeline, or Sections")


def _section(section: Section) -> str:
    text = f"<p>{_together(escape(section.text))}</p>" if section.text else ""
    items = "\n".join(_item(item) for item in section.items)
    return f"<section><h2>{escape(section.heading)}</h2>{text}\n{items}</section>"


def _item(item: Any) -> str:
    """Return one item as HTML."""
    if isinstance(item, str):
        return f"<p>{_together(escape(item))}</p>"
    if isinstance(item, Timeline):
        item = item.view()
    if isinstance(item, View):
        return replace(item, curve=True).fragment()
    package = type(item).__module__.partition(".")[0]
    if package == "plotly" and hasattr(item, "to_html"):
        twin = (item.layout.meta or {}).get("text", "") if isinstance(item.layout.meta, (dict, type(None))) else ""
        html = item.to_html(full_html=False, include_plotlyjs=False, config={"responsive": True, "displaylogo": False})
        lines = "<br>".join(_together(escape(line)) for line in twin.splitlines())
        return f'<div class="figure">{html}</div>' + (f'<p class="twin">In words: {lines}</p>' if twin else "")
    if package == "pandas" and hasattr(item, "rename_axis"):
        flat = item.rename_axis(index=None, columns=None)
        html = flat.to_html(border=0, escape=True, na_rep="–", float_format=_number)
        html = re.sub(r" (\[[^\]]*\])</th>", r"<br>\1</th>", html)  # units below the names: columns are narrow
        return f'<div class="scroll">{html}</div>'
    if hasattr(item, "_repr_html_"):
        side = " side" if isinstance(item, Summary) else ""  # its two tables stand side by side
        return f'<div class="scroll{side}">{_together(item._repr_html_())}</div>'
    kinds = "a view, a Timeline, a plotly figure, a pandas table, a Summary, Advice, a Hazard or a string"
    raise ExportError(f"a section cannot show a {type(item).__name__}; give {kinds}")


def advised(timeline: Timeline, advice: Advice) -> View:
    """Return the picture with the findings in it; of many ranks it shows some, and its numbers are about all."""
    return drawn(timeline).view(advice=advice)


def ranks(timeline: Timeline) -> list[RankTable]:
    """The table of its ranks, if it has several."""
    return [table for table in [rank_table(timeline)] if table]


def _together(html: str) -> str:
    return _UNITS.sub("\N{NO-BREAK SPACE}", html)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"


# Chrome trace JSON, as torch.profiler writes it, for Perfetto, chrome://tracing and other readers.
# Categories and arguments are the profiler's (`kernel`, `gpu_memcpy`, `cuda_runtime`, `cpu_op`, `user_annotation`,
# `ac2g`), so that tools made for its traces read this one. What the profiler has no word for (a worker's fetch, a wait)
# is a `user_annotation`; the argument "loaderviz kind" says what it was. Times are µs with three decimals: exact in ns.
# `loaderviz.read` gives an equal Timeline back, which stands packed in the key "loaderviz".


Event = dict[str, Any]
Places = dict[tuple[int, int], Event]  # (lane, row) -> pid and tid

NESTED = 32  # rows of a lane that hold spans within spans; more are needed by no program
AT_ONCE = 1 << 16  # spans whose columns are lists at a time
HOST_PID = 10_000  # devices have their ordinal as pid; a host process must not look like one of them
_SUB_LANE = 100_000  # thread ids of further rows for spans that overlap without nesting; Perfetto drops such spans
_CATEGORIES = {
    Kind.COMPUTE: "kernel",
    Kind.COMMUNICATION: "kernel",
    Kind.COPY_H2D: "gpu_memcpy",
    Kind.COPY_D2H: "gpu_memcpy",
    Kind.COPY_D2D: "gpu_memcpy",
    Kind.MEMSET: "gpu_memset",
    Kind.API: "cuda_runtime",
    Kind.OPERATOR: "cpu_op",
}


def to_chrome_trace(timeline: Timeline, path: str | Path, paths: Paths = "names") -> Path:
    """Write the timeline as Chrome trace JSON and return the path; ui.perfetto.dev opens it.

    Time 0 is `baseTimeNanoseconds`, the timeline's first start. Lines of code are named without their folders; with
    `paths="full"` these are kept.

    Raises `NotATimelineError`, `NoFolderError` when the folder does not exist, `ValueError` for other `paths`.
    """
    return write(path, _as_text(check_timeline(timeline, "to_chrome_trace()"), paths))


def _as_text(timeline: Timeline, paths: Paths) -> str:
    """Return the trace as JSON. Spans and arrows, of which there are millions, are written without dicts."""
    rows = _rows(timeline)
    places = _places(timeline, rows)
    devices = sorted({lane.device for lane in timeline.lanes if lane.group == "device"})
    outer = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": device, "name": timeline.context.device} for device in devices],
        "displayTimeUnit": "ns",
        "baseTimeNanoseconds": timeline.begin,
        "loaderviz": timeline.packed(paths),
    }
    named, marked = (map(json.dumps, make(timeline, places)) for make in (_names, _marks))
    events = ", ".join([*named, *_spans(timeline, rows, places, paths), *_flows(timeline, rows, places), *marked])
    return f'{json.dumps(outer)[:-1]}, "traceEvents": [{events}]}}'


def _rows(timeline: Timeline) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return for each span the row of its lane, 0 for most: in one row, two spans nest or are apart."""
    rows = np.zeros(len(timeline), np.int64)
    for mine in timeline.by_lane():
        if (timeline.start[mine][1:] >= timeline.end[mine][:-1]).all():
            continue  # all apart, as in a stream
        stacks: list[list[int]] = [[]]  # for each row, the ends of the spans that are open
        rest: list[tuple[int, int, int]] = []
        for index, start, end in zip(
            *(c.tolist() for c in (mine, timeline.start[mine], timeline.end[mine])), strict=True
        ):
            for row, stack in enumerate(stacks):
                while stack and stack[-1] <= start:
                    stack.pop()
                if not stack or end <= stack[-1]:
                    stack.append(end)
                    rows[index] = row
                    break
            else:
                if len(stacks) < NESTED:
                    stacks.append([end])
                    rows[index] = len(stacks) - 1
                else:
                    rest.append((start, end, index))
        rows[[index for _, _, index in rest]] = len(stacks) + np.array(tracks(each[:2] for each in rest), np.int64)
    return rows


def _places(timeline: Timeline, rows: np.ndarray[Any, Any]) -> Places:
    """Return pid and tid of each row of each lane; a device's threads are its streams, if their numbers are free."""
    second = rows > 0
    further = zip(timeline.lane[second].tolist(), rows[second].tolist(), strict=True)
    used = {*further, *((number, 0) for number in range(len(timeline.lanes)))}
    places: Places = {}
    taken: set[tuple[int, int]] = set()
    following: dict[tuple[int, int], int] = {}  # thread ids that are not yet taken by those who wanted the same one
    for number, row in sorted(used, key=lambda each: each[::-1]):  # every lane's first row before any second one
        lane = timeline.lanes[number]
        pid, tid = (lane.device, lane.number) if lane.group == "device" else (HOST_PID, number + 1)
        wanted = pid, tid + row * _SUB_LANE
        tid = following.get(wanted, wanted[1])
        while (pid, tid) in taken:  # sub-lanes of a stream bear its number
            tid += _SUB_LANE
        following[wanted] = tid + _SUB_LANE
        taken.add((pid, tid))
        places[number, row] = {"pid": pid, "tid": tid}
    return places


def _names(timeline: Timeline, places: Places) -> Iterator[Event]:
    def told(what: str, place: Event, name: str, order: int) -> Iterator[Event]:
        for key, value in (("name", name), ("sort_index", order)):
            yield {"ph": "M", "name": f"{what}_{key}", **place, "ts": 0, "args": {key: value}}

    seen: set[int] = set()
    for (number, row), place in sorted(places.items()):
        lane = timeline.lanes[number]
        if place["pid"] not in seen:
            seen.add(place["pid"])
            host = lane.group == "host"
            name = "host" if host else f"GPU {lane.device}: {timeline.context.device}"
            yield from told("process", place, name, -1 if host else lane.device)
        yield from told("thread", place, f"{lane.name} ({row + 1})" if row else lane.name, 10 * number + row)


def _spans(timeline: Timeline, rows: np.ndarray[Any, Any], places: Places, paths: Paths) -> Iterator[str]:
    begin, names = timeline.begin, [json.dumps(name) for name in timeline.names]
    shown = [timeline.lines[each] for each in timeline.sources] if paths == "names" else timeline.sources
    sources, causes = [json.dumps(source) for source in shown], [json.dumps(each.words) for each in Cause]
    heads: dict[tuple[int, int, int], tuple[str, str, str, bool]] = {}  # what spans of a kind in a row have in common
    columns = [*(timeline.spans[column] for column in SPAN_COLUMNS), rows]
    for first in range(0, len(timeline), AT_ONCE):
        part = [column[first : first + AT_ONCE].tolist() for column in columns]
        for start, end, lane, kind, name, batch, nbytes, correlation, pinned, cause, source, _, row in zip(
            *part, strict=True
        ):
            since, lasts = start - begin, end - start
            head = heads.get((lane, kind, row))
            if head is None:
                head = heads[lane, kind, row] = _head(timeline.lanes[lane], Kind(kind), places[lane, row])
            before, place, text, device = head
            if correlation >= 0:
                text += f', "correlation": {correlation}'
            if nbytes >= 0:
                text += f', "bytes": {nbytes}'
                if device and lasts:
                    text += f', "memory bandwidth (GB/s)": {nbytes / lasts}'
            if batch >= 0:
                text += f', "batch": {batch}'
            if pinned >= 0:
                text += ', "pinned": true' if pinned else ', "pinned": false'
            if cause:
                text += f', "cause": {causes[cause]}'
            if source >= 0 and timeline.sources[source]:
                text += f', "source": {sources[source]}'
            yield (
                f'{before}{names[name]}{place}"ts": {since // 1_000}.{since % 1_000:03d}, '
                f'"dur": {lasts // 1_000}.{lasts % 1_000:03d}, "args": {{{text}}}}}'
            )


def _head(lane: Lane, kind: Kind, place: Event) -> tuple[str, str, str, bool]:
    """Return what stands before a span's name, between it and its times, first in its arguments; whether a device's."""
    device = lane.group == "device"
    category = _CATEGORIES.get(kind, "gpu_user_annotation" if device else "user_annotation")
    text = f'"loaderviz kind": "{kind.name.lower()}"'
    text += f', "device": {lane.device}, "stream": {lane.number}' if device else ""
    where = f', "pid": {place["pid"]}, "tid": {place["tid"]}, '
    return f'{{"ph": "X", "cat": "{category}", "name": ', where, text, device


def _flows(timeline: Timeline, rows: np.ndarray[Any, Any], places: Places) -> Iterator[str]:
    """Give two events an arrow. A flow binds to the span around its time; at a span's end it leaves 1 ns earlier."""
    tails, heads, kinds = timeline.arrows["tail"], timeline.arrows["head"], timeline.arrows["kind"]
    start, end = timeline.start - timeline.begin, timeline.end - timeline.begin
    waits = kinds == ArrowKind.WAIT
    leaves = np.where(waits, np.maximum(start[tails], end[tails] - 1), start[tails])
    at = {key: f'"pid": {place["pid"]}, "tid": {place["tid"]}' for key, place in places.items()}
    sides = [[timeline.lane[index], rows[index], time] for index, time in ((tails, leaves), (heads, start[heads]))]
    columns = [each.tolist() for each in (waits, *sides[0], *sides[1])]
    for number, (wait, lane, row, left, its, below, came) in enumerate(zip(*columns, strict=True), 1):
        name = '"event wait"' if wait else '"ac2g"'
        common = f'"id": {number}, "cat": {name}, "name": {name}'
        yield f'{{"ph": "s", {common}, {at[lane, row]}, "ts": {left // 1_000}.{left % 1_000:03d}}}'
        yield f'{{"ph": "f", {common}, {at[its, below]}, "ts": {came // 1_000}.{came % 1_000:03d}, "bp": "e"}}'


def _marks(timeline: Timeline, places: Places) -> Iterator[Event]:
    for mark in timeline.marks:
        yield {
            "ph": "i",
            "s": "t",
            "cat": "hazard",
            "name": mark.kind,
            **places[mark.lane, 0],
            "ts": (mark.time - timeline.begin) / 1_000,
            "args": {"text": mark.text, "report": mark.report},
        }
