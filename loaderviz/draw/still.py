"""A still picture of a figure, as SVG: for places that show neither widgets nor plotly (GitHub, nbviewer, an e-mail).

    still.svg(timeline.figure())      # "<svg …>", about 100 bytes a bar

It draws what `page.draw` makes, and nothing else: horizontal bars in lanes on one time axis, lines, arrows and crosses
over them, their names and legend, the words above and below.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from html import escape, unescape
from textwrap import wrap
from typing import Any

import plotly.graph_objects as go

from loaderviz.draw import theme

WIDTH = 960  # px
MOST = 2_500  # bars
_TOP, _BELOW, _ROW, _COLUMNS = 62, 44, 20, 4  # px over the lanes, under them, a row of the legend; entries in it
_LETTER = 7.2  # px of 12 px text
_HIGH = 14  # px that a bar needs for its text
_TICKS = 8  # on the time axis, about
_SUBTITLE, _SUBTITLE_LINE = 138, 17  # letters in a line of the subtitle; px between two
_BREAK = re.compile(r"<br\s*/?>")
_BOLD = re.compile(r"<b>(.*?)</b>")
_DASHES = {"dot": "2 3", "dash": "7 4"}
_SHAPES = {  # of patterns, in squares of 6 px: the name, and what is drawn in the colour `{0}`
    "/": ("stripes", '<path d="M-1 1L1 -1M0 6L6 0M5 7L7 5" stroke="{0}" stroke-width="1.5"/>'),
    "x": ("crosses", '<path d="M0 0L6 6M6 0L0 6" stroke="{0}"/>'),
    ".": ("dots", '<circle cx="3" cy="3" r="1.6" fill="{0}"/>'),
}
_ARROW = (
    '<marker id="arrow" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto" markerUnits="userSpaceOnUse">'
    '<path d="M0 0L9 4L0 8Z"/></marker>'
)
_CROSS = "l10 10m0 -10l-10 10"

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
    bars.sort(key=lambda trace: trace.get("zorder", 0))
    drawn = [trace for trace in shown if trace["type"] == "scatter" and not _is_entry(trace)]
    legend = sorted(
        (trace for trace in shown if trace.get("showlegend")), key=lambda trace: trace.get("legendrank", 1_000)
    )
    titles = _titles(layout["title"])
    left, right, upper = layout["margin"]["l"], WIDTH - layout["margin"]["r"], _TOP + _further(titles)
    (low, top), (first, last) = layout["yaxis"]["range"], layout["xaxis"]["range"]
    bottom = upper + (low - top) * theme.TRACK_PX

    def across(x: float) -> float:
        return float(left + (x - first) / ((last - first) or 1) * (right - left))

    def down(y: float) -> float:
        return float(upper + (y - top) * theme.TRACK_PX)

    height = round(bottom + _BELOW + _ROW * -(-len(legend) // _COLUMNS))
    meta = layout.get("meta")
    return "".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img" '
        f'font-family="sans-serif" font-size="{theme.TEXT_PX}" fill="{theme.TEXT}">',
        f"<desc>{escape(meta['text'])}</desc>" if isinstance(meta, dict) else "", *_patterns([*bars, *legend]), _ARROW,
        '<rect width="100%" height="100%" rx="8" fill="white"/>', *_title(titles),
        *_shades(layout, "below", left, right, down), *_axis(layout, across, upper, bottom),
        *_shades(layout, "between", left, right, down), *_lanes(layout, left, down),
        *(part for trace in bars for part in _bars(trace, across, down)),
        *(part for trace in drawn for part in _marks(trace, across, down)),
        *_notes(layout, left, right, across, down), *_legend(legend, left, bottom + _BELOW), "</svg>",
    ])  # fmt: skip


def _is_entry(trace: Json) -> bool:
    """Tell whether a trace draws nothing and stands in the legend for others."""
    return list(trace["x"]) == [None]


def _bars(trace: Json, across: Scale, down: Scale) -> Iterator[str]:
    """Draw the bars of a trace, and their text where it fits."""
    count, marker = len(trace["base"]), trace["marker"]
    texts, inks = trace.get("text") or "", trace.get("insidetextfont", {}).get("color", theme.INK)
    line = marker.get("line", {})
    columns = (marker["color"], texts, inks, line.get("width", 0), line.get("color", "white"))
    rows = zip(trace["base"], trace["x"], trace["y"], trace["width"], *(_each(column, count) for column in columns),
               strict=True)  # fmt: skip
    halo = ' paint-order="stroke" stroke="white" stroke-width="3"' if "pattern" in marker else ""
    for base, length, place, width, color, text, ink, edge, rim in rows:
        x, wide = across(base), across(base + length) - across(base)
        y, high = down(place - width / 2), width * theme.TRACK_PX
        around = f' stroke="{rim}"' if edge else ""
        yield (f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(wide, 0.5):.1f}" height="{high:.1f}" '
               f'fill="{_fill(marker, color)}"{around}/>')  # fmt: skip
        if text and high >= _HIGH and _LETTER * len(unescape(text)) < wide:
            yield _words(x + wide / 2, y + high / 2 + 4, text, f'text-anchor="middle" fill="{ink}"{halo}')


def _each(values: Any, count: int) -> Sequence[Any]:
    """Return a value for each bar, where there may be one for all."""
    return values if isinstance(values, (list, tuple)) else [values] * count


def _marks(trace: Json, across: Scale, down: Scale) -> Iterator[str]:
    """Draw the lines of a trace, with their arrows, or its crosses."""
    points = [
        "" if x is None else f"{across(x):.1f} {down(y):.1f}" for x, y in zip(trace["x"], trace["y"], strict=True)
    ]
    if "lines" not in trace["mode"]:
        yield from (_cross(f"M{point}m-5 -5") for point in points if point)
        return
    pieces = "L".join(points).strip("L").split("LL") if any(points) else []
    paths = ["M" + piece for piece in pieces]
    arrow = ' marker-end="url(#arrow)"' if "markers" in trace["mode"] else ""
    for path in paths if arrow else ["".join(paths)]:
        yield f'<path d="{path}" fill="none" {_stroke(trace["line"])}{arrow}/>'


def _stroke(line: Json) -> str:
    dash = f' stroke-dasharray="{_DASHES[line["dash"]]}"' if line.get("dash") in _DASHES else ""
    return f'stroke="{line["color"]}" stroke-width="{line.get("width", 2)}"{dash}'


def _words(x: float, y: float, text: str, looks: str = "") -> str:
    """Write some of plotly's HTML without its tags, other than bold."""
    parts = [escape(unescape(re.sub(r"<[^>]*>", "", part)), quote=False) for part in _BOLD.split(text)]
    inside = "".join(f'<tspan font-weight="bold">{part}</tspan>' if odd % 2 else part for odd, part in enumerate(parts))
    return f'<text x="{x:.1f}" y="{y:.1f}" {looks}>{inside}</text>'


def _fill(marker: Json, color: str) -> str:
    return f"url(#{_pattern(marker['pattern'], color)})" if "pattern" in marker else color


def _pattern(pattern: Json, color: str) -> str:
    """Return the id of a pattern in a colour."""
    return f"{_SHAPES[pattern['shape']][0]}{pattern['bgcolor'].lstrip('#')}{color.lstrip('#')}"


def _patterns(traces: list[Json]) -> Iterator[str]:
    """Define the patterns that occur, in each of their colours."""
    found = {
        _pattern(marker["pattern"], color): (marker["pattern"], color)
        for marker in (trace.get("marker", {}) for trace in traces)
        if "pattern" in marker
        for color in _each(marker["color"], 1)
    }
    for name, (pattern, color) in found.items():
        yield (f'<pattern id="{name}" width="6" height="6" patternUnits="userSpaceOnUse"><rect width="6" height="6" '
               f'fill="{pattern["bgcolor"]}"/>{_SHAPES[pattern["shape"]][1].format(color)}</pattern>')  # fmt: skip


def _titles(title: Json) -> list[str]:
    """Return the lines above the lanes: those of the title, then those of the subtitle."""
    subtitle = _BREAK.sub(" ", (title.get("subtitle") or {}).get("text") or "")
    lines = [line for line in _BREAK.split(title.get("text") or "") if line]
    return lines + [escape(line, quote=False) for line in wrap(unescape(subtitle), _SUBTITLE)]


def _further(lines: list[str]) -> int:
    """Return the height of the lines after the first two [px]."""
    return _SUBTITLE_LINE * max(0, len(lines) - 2)


def _title(lines: list[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        soft = f' fill="{theme.SOFT}"' if number else ""
        y = 26 + (20 + _SUBTITLE_LINE * (number - 1) if number else 0)
        yield _words(12, y, line, f'font-size="{13 if number else 16}"{soft}')


def _shades(layout: Json, layer: str, left: float, right: float, down: Scale) -> Iterator[str]:
    """Shade the host lanes, which is below the grid, or the room for the headers, which is above it."""
    for shape in layout.get("shapes") or ():
        if shape["type"] == "rect" and shape["layer"] == layer:
            y, high = down(shape["y0"]), down(shape["y1"]) - down(shape["y0"])
            yield (f'<rect x="{left}" y="{y:.1f}" width="{right - left}" height="{high:.1f}" '
                   f'fill="{shape["fillcolor"]}"/>')  # fmt: skip


def _lanes(layout: Json, left: float, down: Scale) -> Iterator[str]:
    for place, name in zip(layout["yaxis"]["tickvals"], layout["yaxis"]["ticktext"], strict=True):
        yield _words(left - 8, down(place) + 4, name, 'text-anchor="end"')


def _axis(layout: Json, across: Scale, upper: float, bottom: float) -> Iterator[str]:
    first, last = layout["xaxis"]["range"]
    for tick in ticks(first, last):
        yield f'<path d="M{across(tick):.1f} {upper}V{bottom:.1f}" stroke="{theme.GRID}"/>'
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


def _notes(layout: Json, left: float, right: float, across: Scale, down: Scale) -> Iterator[str]:
    """Write the headers of a comparison, and what hazards there are, with the lines that lead there."""
    for shape in layout.get("shapes") or ():
        if shape["type"] == "line":
            (x, y0, y1), dots = (across(shape["x0"]), down(shape["y0"]), down(shape["y1"])), _stroke(shape["line"])
            yield f'<path d="M{x:.1f} {y0:.1f}V{y1:.1f}" {dots}/>'
    for note in layout.get("annotations") or ():
        lines = _BREAK.split(note["text"])
        wide = _LETTER * max(len(unescape(re.sub(r"<[^>]*>", "", line))) for line in lines)
        if note.get("xref") == "paper":
            x, y = left + note["x"] * (right - left), down(note["y"]) - 4
        else:
            x, y = across(note["x"]) + note["xshift"], down(note["y"]) + 14
            x = max(left, min(x, right - wide))
            yield (f'<rect x="{x - 4:.1f}" y="{y - 14:.1f}" width="{wide + 8:.1f}" height="{16 * len(lines) + 5}" '
                   'fill="white"/>')  # fmt: skip
        for number, line in enumerate(lines):
            yield _words(x, y + 16 * number, line)


def _legend(traces: list[Json], left: float, top: float) -> Iterator[str]:
    for number, trace in enumerate(traces):
        x, y = left + number % _COLUMNS * 190, top + number // _COLUMNS * _ROW
        yield _sample(trace, x, y)
        yield _words(x + 18, y + 10, trace["name"])


def _sample(trace: Json, x: float, y: float) -> str:
    """Draw what the bars, lines or crosses of a trace look like."""
    marker = trace.get("marker", {})
    if trace["type"] == "bar":
        fill = _fill(marker, _each(marker.get("color", theme.GREY), 1)[0])
        return f'<rect x="{x}" y="{y}" width="12" height="12" fill="{fill}"/>'
    if "lines" in trace["mode"]:
        return f'<path d="M{x - 4} {y + 6}h18" {_stroke(trace["line"])}/>'
    if marker["symbol"] == "x":
        return _cross(f"M{x + 1} {y + 1}")
    return f'<rect x="{x}" y="{y + 4}" width="12" height="5" fill="{marker["line"]["color"]}"/>'


def _cross(corner: str) -> str:
    """Draw a cross from its upper left corner, which is the beginning of a path."""
    edge = f'<path d="{corner}{_CROSS}" stroke="white" stroke-width="6"/>'
    return f'{edge}<path d="{corner}{_CROSS}" stroke="{theme.BLACK}" stroke-width="3"/>'
