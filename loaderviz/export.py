"""Timeline -> files that other tools and other people read: one HTML page, Chrome trace JSON, a pandas table.

to_html({"blocking": t1, "pinned": t2}, "timelines.html", "MNIST")   # self-contained, works offline
to_table(t1).groupby("kind").duration_ns.sum()

The JSON form that loaderviz itself reads back is `Timeline.save` and `Timeline.load`; Chrome trace JSON is written by
`to_chrome_trace` (see `loaderviz.chrome`). plotly and pandas are imported where they are needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loaderviz.advice import advise
from loaderviz.chrome import to_chrome_trace
from loaderviz.errors import LoadervizError
from loaderviz.files import writable
from loaderviz.metrics import Summary, check_timeline
from loaderviz.timeline import Cause, Kind, Timeline

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ExportError", "Section", "to_chrome_trace", "to_html", "to_table"]


class ExportError(LoadervizError, ValueError):
    """Something cannot be put into the report."""


@dataclass(frozen=True)
class Section:
    """A part of the HTML page: a heading, a paragraph, and items below each other.

    Items may be plotly figures, pandas tables, Timelines, Summaries, Advice, Hazards (each by itself), Comparisons
    (figure, utilisation and table) or strings (a paragraph); and what else has a `_repr_html_`.
    """

    heading: str
    text: str = ""
    items: Sequence[Any] = ()


# Figures are light in both schemes, as their colours are chosen for white: on a dark page they lie like cards.
_STYLE = """
:root { color-scheme: light dark; --ink: #222; --soft: #444; --page: #fff; --back: #f6f6f6; --line: #ddd; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --soft: #bbb; --page: #161616; --back: #262626; --line: #444; }
}
body { font: 16px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: var(--ink); background: var(--page);
       max-width: 1760px; margin: 0 auto; padding: 16px 24px 48px; }
h1 { font-size: 26px; margin: 8px 0 16px; } h2 { font-size: 20px; margin: 36px 0 8px; }
p { max-width: 90ch; margin: 8px 0; } p.twin { font-size: 14px; color: var(--soft); }
.figure { background: #fff; border-radius: 8px; overflow: hidden; margin: 8px 0; }
.scroll { overflow-x: auto; } .side { display: flex; flex-wrap: wrap; column-gap: 48px; align-items: flex-start; }
table { border-collapse: collapse; font-size: 14px; margin: 12px 0; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 10px; border: 0; border-bottom: 1px solid var(--line); text-align: right; }
th { background: var(--back); font-weight: 600; white-space: nowrap; }
thead th { vertical-align: bottom; } tbody th, td:first-child { text-align: left; }
pre { background: var(--back); padding: 8px 12px; max-width: 110ch; overflow-x: auto; font-size: 14px; }
li { margin: 16px 0; } li p { margin: 4px 0; }
@media print { body { max-width: none; } .figure { break-inside: avoid; } }
"""
_UNITS = re.compile(r"(?<=\d) (?=(%|ns|µs|ms|s|[kMG]?B|bytes|GB/s)(\W|$))")  # a line does not end before a unit


def to_html(
    content: Timeline | Mapping[str, Timeline] | Sequence[Section] | Section, path: str | Path, title: str = "loaderviz"
) -> Path:
    """Write one self-contained HTML page and return its path; it needs no network, plotly.js is in it once.

    `content` is a Timeline (figure, numbers, findings), a dict of name -> Timeline (a comparison and each Summary), or
    Sections. Each figure is followed by its text twin. Raises `ExportError` for anything else, `NotATimelineError` for
    a dict of other things, `NoFolderError` when the folder does not exist.
    """
    from plotly.offline import get_plotlyjs

    path = writable(path)
    body = "\n".join(_section(section) for section in _sections(content))
    page = (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style>\n<script>{get_plotlyjs()}</script></head>\n"
        f"<body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )
    path.write_text(page, encoding="utf-8")
    return path


def to_table(timeline: Timeline) -> pd.DataFrame:
    """Return one row per span: times in ns, names looked up, `gb_per_s` for copies, NA where it does not apply.

    Columns: start_ns, end_ns, duration_ns, lane, group, device, kind, name, batch, nbytes, gb_per_s, correlation,
    pinned, cause, source.
    """
    import pandas as pd

    check_timeline(timeline, "to_table()")
    column, duration = timeline.spans, timeline.end - timeline.start
    lanes = timeline.lanes
    devices = [lane.device if lane.group == "device" else None for lane in lanes]

    def known(name: str) -> pd.Series:
        values = pd.Series(column[name].astype(np.int64), dtype="Int64")
        return values.mask(values < 0)

    rate = np.divide(column["nbytes"], duration, out=np.full(len(timeline), np.nan), where=duration > 0)
    rate[column["nbytes"] < 0] = np.nan
    return pd.DataFrame(
        {
            "start_ns": timeline.start, "end_ns": timeline.end, "duration_ns": duration,
            "lane": pd.Series([lanes[number].name for number in column["lane"]], dtype=object),
            "group": pd.Series([lanes[number].group for number in column["lane"]], dtype=object),
            "device": pd.array([devices[number] for number in column["lane"]], "Int64"),
            "kind": pd.Series([Kind(number).name.lower() for number in column["kind"]], dtype=object),
            "name": pd.Series([timeline.names[number] for number in column["name"]], dtype=object),
            "batch": known("batch"), "nbytes": known("nbytes"), "gb_per_s": rate, "correlation": known("correlation"),
            "pinned": pd.array([None if value < 0 else bool(value) for value in column["pinned"]], dtype="boolean"),
            "cause": pd.Series([Cause(number).words if number else "" for number in column["cause"]], dtype=object),
            "source": pd.Series([timeline.sources[n] if n >= 0 else "" for n in column["source"]], dtype=object),
        }
    )  # fmt: skip


def _sections(content: Any) -> list[Section]:
    if isinstance(content, Timeline):
        return [Section("Timeline", items=[content, _summary(content)]),
                Section("What could be gained", items=[advise(content)])]  # fmt: skip
    if isinstance(content, Section):
        return [content]
    if isinstance(content, Mapping):
        from loaderviz.draw import compare

        if not content:
            raise ExportError("to_html() got an empty dict; give at least one timeline, such as {'blocking': timeline}")
        each = [Section(str(name), items=[_summary(timeline)]) for name, timeline in _checked(content)]
        return [Section("Side by side", items=[compare(content)]), *each]
    if isinstance(content, (list, tuple)) and all(isinstance(item, Section) for item in content):
        if not content:
            raise ExportError("to_html() got no sections; give at least one Section(heading, text, items)")
        return list(content)
    kind = type(content).__name__
    raise ExportError(f"to_html() cannot show a {kind}; give a Timeline, a dict of name -> Timeline, or Sections")


def _checked(timelines: Mapping[str, Any]) -> list[tuple[str, Timeline]]:
    return [(name, check_timeline(timeline, f"to_html(), for {name!r},")) for name, timeline in timelines.items()]


def _summary(timeline: Timeline) -> Summary:
    from loaderviz.metrics import summarize

    return summarize(timeline)


def _section(section: Section) -> str:
    text = f"<p>{_paragraph(section.text)}</p>" if section.text else ""
    items = "\n".join(_item(item) for item in section.items)
    return f"<section><h2>{escape(section.heading)}</h2>{text}\n{items}</section>"


def _item(item: Any) -> str:
    """Return one item as HTML."""
    import pandas as pd
    import plotly.graph_objects as go

    from loaderviz import draw

    if isinstance(item, str):
        return f"<p>{_paragraph(item)}</p>"
    if isinstance(item, go.Figure):
        return _figure(item)
    if isinstance(item, Timeline):
        return _figure(draw.figure(item))
    if isinstance(item, draw.Comparison):
        return "\n".join((_table(item.printed()), _figure(item.figure()), _figure(item.utilization())))
    if isinstance(item, pd.DataFrame):
        return _table(item)
    if hasattr(item, "_repr_html_"):
        side = " side" if isinstance(item, Summary) else ""  # its two tables stand side by side
        return f'<div class="scroll{side}">{_together(item._repr_html_())}</div>'
    kinds = "a plotly figure, a pandas table, a Timeline, a Summary, Advice, a Hazard, a Comparison or a string"
    raise ExportError(f"a section cannot show a {type(item).__name__}; give {kinds}")


def _figure(figure: Any) -> str:
    """Return the figure without plotly.js, which the page has once, and its text twin below it."""
    twin = (figure.layout.meta or {}).get("text", "") if isinstance(figure.layout.meta, (dict, type(None))) else ""
    html = figure.to_html(full_html=False, include_plotlyjs=False, config={"responsive": True, "displaylogo": False})
    lines = "<br>".join(_paragraph(line) for line in twin.splitlines())
    return f'<div class="figure">{html}</div>' + (f'<p class="twin">In words: {lines}</p>' if twin else "")


def _paragraph(text: str) -> str:
    return _together(escape(text))


def _together(html: str) -> str:
    """Keep numbers and their units in one line."""
    return _UNITS.sub("\N{NO-BREAK SPACE}", html)


def _table(table: pd.DataFrame) -> str:
    flat = table.rename_axis(index=None, columns=None)
    html = flat.to_html(border=0, escape=True, na_rep="–", float_format=_number)
    html = re.sub(r" (\[[^\]]*\])</th>", r"<br>\1</th>", html)  # units below the names, so that columns are narrow
    return f'<div class="scroll">{html}</div>'


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"
