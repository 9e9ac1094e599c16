"""A still picture of a figure, as SVG: for places that show neither widgets nor plotly (GitHub, nbviewer, an e-mail).

    still.svg(timeline.figure())      # "<svg …>", about 100 bytes a bar

It draws what `page.draw` makes, and nothing else: horizontal bars in lanes on one time axis, their names and legend,
the words above and below. Arrows, crosses and frames are left to plotly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from html import escape, unescape
from typing import Any

import plotly.graph_objects as go

from loaderviz.draw import theme

WIDTH = 960  # px
MOST = 2_500  # bars
_TOP, _BELOW, _ROW, _COLUMNS = 62, 44, 20, 4  # px over the lanes, under them, a row of the legend; entries in it
_LETTER = 7.2  # px of 12 px text
_HIGH = 14  # px that a bar needs for its text
_TICKS = 8  # on the time axis, about
_BREAK = re.compile(r"<br\s*/?>")

Json = dict[str, Any]
Scale = Callable[[float], float]


def svg(figure: go.Figure) -> str:
    """Return the figure as an SVG document; "" if it has no bars, or more than such a document should hold.

    The text twin becomes the document's description.
    """
    data = figure.to_plotly_json()
    layout, shown = data["layout"], [trace for trace in data["data"] if trace.get("visible", True)]
    bars = [trace for trace in shown if trace["type"] == "bar" and trace.get("base")]
    if not 0 < sum(len(trace["base"]) for trace in bars) <= MOST:
        return ""
    legend = [trace for trace in shown if trace.get("showlegend") and (trace["type"] == "bar" or _is_entry(trace))]
    legend.sort(key=lambda trace: trace.get("legendrank", 1_000))
    left, right = layout["margin"]["l"], WIDTH - layout["margin"]["r"]
    (low, top), (first, last) = layout["yaxis"]["range"], layout["xaxis"]["range"]
    bottom = _TOP + (low - top) * theme.TRACK_PX

    def across(x: float) -> float:
        return float(left + (x - first) / ((last - first) or 1) * (right - left))

    def down(y: float) -> float:
        return float(_TOP + (y - top) * theme.TRACK_PX)

    height = round(bottom + _BELOW + _ROW * -(-len(legend) // _COLUMNS))
    meta = layout.get("meta")
    return "".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img" '
        f'font-family="sans-serif" font-size="{theme.TEXT_PX}" fill="{theme.TEXT}">',
        f"<desc>{escape(meta['text'])}</desc>" if isinstance(meta, dict) else "", *_patterns(bars),
        '<rect width="100%" height="100%" rx="8" fill="white"/>', *_title(layout["title"]),
        *_lanes(layout, left, right, down), *_axis(layout, across, bottom),
        *(part for trace in bars for part in _bars(trace, across, down)), *_notes(layout, left, right, down),
        *_legend(legend, left, bottom + _BELOW), "</svg>",
    ])  # fmt: skip


def _is_entry(trace: Json) -> bool:
    """Tell whether a trace draws nothing and stands in the legend for others."""
    return list(trace["x"]) == [None]


def _bars(trace: Json, across: Scale, down: Scale) -> Iterator[str]:
    """Draw the bars of a trace, and their text where it fits."""
    count, marker = len(trace["base"]), trace["marker"]
    texts, inks = trace.get("text") or "", trace.get("insidetextfont", {}).get("color", theme.INK)
    edges = marker.get("line", {}).get("width", 0)
    columns = (marker["color"], texts, inks, edges)
    rows = zip(trace["base"], trace["x"], trace["y"], trace["width"], *(_each(column, count) for column in columns),
               strict=True)  # fmt: skip
    for base, length, place, width, color, text, ink, edge in rows:
        x, wide = across(base), across(base + length) - across(base)
        y, high = down(place - width / 2), width * theme.TRACK_PX
        fill = f"url(#{_pattern(color)})" if "pattern" in marker else color
        line = ' stroke="white"' if edge else ""
        yield f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(wide, 0.5):.1f}" height="{high:.1f}" fill="{fill}"{line}/>'
        if text and high >= _HIGH and _LETTER * len(text) < wide:
            yield _words(x + wide / 2, y + high / 2 + 4, text, f'text-anchor="middle" fill="{ink}"')


def _each(values: Any, count: int) -> Sequence[Any]:
    """Return a value for each bar, where there may be one for all."""
    return values if isinstance(values, (list, tuple)) else [values] * count


def _words(x: float, y: float, text: str, looks: str = "") -> str:
    """Write some of plotly's HTML without its tags."""
    plain = escape(unescape(re.sub(r"<[^>]*>", "", text)), quote=False)
    return f'<text x="{x:.1f}" y="{y:.1f}" {looks}>{plain}</text>'


def _pattern(color: str) -> str:
    return f"stripes{color.lstrip('#')}"


def _patterns(bars: list[Json]) -> Iterator[str]:
    """Define stripes in each colour that a trace with a pattern has."""
    striped = [trace["marker"] for trace in bars if "pattern" in trace["marker"]]
    grounds = {color: marker["pattern"]["bgcolor"] for marker in striped for color in _each(marker["color"], 1)}
    for color, ground in grounds.items():
        yield (f'<pattern id="{_pattern(color)}" width="6" height="6" patternUnits="userSpaceOnUse" '
               f'patternTransform="rotate(45)"><rect width="6" height="6" fill="{ground}"/>'
               f'<rect width="2" height="6" fill="{color}"/></pattern>')  # fmt: skip


def _title(title: Json) -> Iterator[str]:
    lines = _BREAK.split(title.get("text") or "") + _BREAK.split((title.get("subtitle") or {}).get("text") or "")
    for number, line in enumerate([line for line in lines if line][:2]):
        soft = f' fill="{theme.SOFT}"' if number else ""
        yield _words(12, 26 + 20 * number, line, f'font-size="{16 - 3 * number}"{soft}')


def _lanes(layout: Json, left: float, right: float, down: Scale) -> Iterator[str]:
    """Shade the host lanes, and name all."""
    for shape in layout.get("shapes") or ():
        if shape["type"] == "rect":
            y, high = down(shape["y0"]), down(shape["y1"]) - down(shape["y0"])
            yield (f'<rect x="{left}" y="{y:.1f}" width="{right - left}" height="{high:.1f}" '
                   f'fill="{theme.HOST_BAND}"/>')  # fmt: skip
    for place, name in zip(layout["yaxis"]["tickvals"], layout["yaxis"]["ticktext"], strict=True):
        yield _words(left - 8, down(place) + 4, name, 'text-anchor="end"')


def _axis(layout: Json, across: Scale, bottom: float) -> Iterator[str]:
    first, last = layout["xaxis"]["range"]
    for tick in ticks(first, last):
        yield f'<path d="M{across(tick):.1f} {_TOP}V{bottom:.1f}" stroke="{theme.GRID}"/>'
        yield _words(across(tick), bottom + 14, f"{tick:,.10g}", 'text-anchor="middle"')
    yield _words(across((first + last) / 2), bottom + 32, layout["xaxis"]["title"]["text"], 'text-anchor="middle"')


def ticks(first: float, last: float) -> list[float]:
    """Return round numbers from `first` to `last`, eight at most: steps of 1, 2 or 5 times a power of ten.

    >>> ticks(-0.02, 5.2)
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    """
    if not last > first:
        return []
    power = 10.0 ** int(f"{(last - first) / _TICKS:e}".partition("e")[2])
    step = next(power * times for times in (1, 2, 5, 10, 20) if (last - first) / (power * times) < _TICKS)
    return [number * step for number in range(int(-(-first // step)), int(last // step) + 1)]


def _notes(layout: Json, left: float, right: float, down: Scale) -> Iterator[str]:
    """Write the headers of a comparison, and what hazards there are."""
    for note in layout.get("annotations") or ():
        lines = _BREAK.split(note["text"])
        y = down(note["y"]) if note.get("yref") != "paper" else down(1.5)
        y -= 16 * (len(lines) - 1) + 4 if note.get("yanchor") == "bottom" else -14 * (note.get("yanchor") == "top")
        anchor = {"right": "end", "left": "start"}.get(note.get("xanchor", ""), "middle")
        for number, line in enumerate(lines):
            yield _words(left + note["x"] * (right - left), y + 16 * number, line, f'text-anchor="{anchor}"')


def _legend(traces: list[Json], left: float, top: float) -> Iterator[str]:
    for number, trace in enumerate(traces):
        x, y = left + number % _COLUMNS * 190, top + number // _COLUMNS * _ROW
        marker, bar = trace.get("marker", {}), trace["type"] == "bar"
        color = _each(marker.get("color") or trace.get("line", {}).get("color") or theme.GREY, 1)[0]
        fill = f"url(#{_pattern(color)})" if "pattern" in marker else color
        yield f'<rect x="{x}" y="{y + (0 if bar else 4)}" width="12" height="{12 if bar else 5}" fill="{fill}"/>'
        yield _words(x + 18, y + 10, trace["name"])
