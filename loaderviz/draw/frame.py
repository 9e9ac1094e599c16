"""The frame of a figure: axes, lanes' names, margins, headers, legend. Plain JSON, as the traces are."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from loaderviz import metrics
from loaderviz.draw import hazards, theme
from loaderviz.draw.bars import Json
from loaderviz.draw.lanes import left_px

if TYPE_CHECKING:
    from loaderviz.draw.page import Look, Part

MARGIN = {"r": 24, "t": 78, "b": 64}  # px
BELOW = 56  # px from the lanes to the legend; it is below the axis, so that narrow cells keep their width
LEGEND_ROW = 20  # px
_LEGEND_WIDTH, _LETTER = 900, 6.9  # px that a row of it has, and a letter in it
_SUBTITLE_LINE = 17  # px, the height of a further line
_TITLE = 26  # px above the title, where the subtitle has several lines; plotly itself would centre it


def layout(parts: Sequence[Part], look: Look, title: str, subtitle: str, legend_rows: int) -> Json:
    """Return the layout for the traces of these parts, without the template.

    `title` and `subtitle` are HTML as plotly knows it; for `legend_rows` rows room is left below the axis.
    """
    tracks = [track for part in parts for track in part.placement.tracks if track.label]
    bottom = max((part.placement.bottom for part in parts), default=0.0)
    lanes_px = round(max(bottom, 3) * theme.TRACK_PX)
    further = subtitle.count("<br>")
    margin = MARGIN | {
        "b": MARGIN["b"] + LEGEND_ROW * legend_rows, "t": MARGIN["t"] + _SUBTITLE_LINE * further, "l": left_px(tracks),
    }  # fmt: skip
    height = lanes_px + margin["t"] + margin["b"]
    place = {"y": 1 - _TITLE / height, "yref": "container", "yanchor": "top"} if further else {}
    span = time_range(parts, look)
    empty = not any(len(part.timeline) for part in parts)
    annotations, shapes = _headers_and_bands(parts, span)
    notes, leaders = hazards.notes(parts, look, span)
    return {
        "title": {"text": title, "subtitle": {"text": subtitle}, **place}, "barmode": "overlay", "bargap": 0,
        "height": height, "margin": margin, "hovermode": "closest", "dragmode": "zoom",
        "legend": {"itemclick": False if look.by_batch else "toggle", "itemdoubleclick": False, "orientation": "h",
                   "x": 0, "xanchor": "left", "y": -BELOW / lanes_px, "yanchor": "top"},
        "xaxis": {"title": {"text": f"time [{look.unit_name}]", "standoff": 8}, "exponentformat": "none",
                  "separatethousands": True, "range": list(span), "showgrid": True, "visible": not empty},
        "yaxis": {"range": [bottom + 0.1, -0.1], "tickmode": "array", "tickvals": [track.middle for track in tracks],
                  "ticktext": [escape(track.label, quote=False) for track in tracks], "showgrid": False,
                  "fixedrange": True, "visible": not empty},
        "annotations": [*annotations, *notes, *([_EMPTY] if empty else [])], "shapes": [*shapes, *leaders],
    }  # fmt: skip


_EMPTY = {"text": "This timeline is empty: nothing was recorded.", "showarrow": False, "x": 0.5, "y": 0.5,
          "xref": "paper", "yref": "paper", "font": {"size": 16}}  # fmt: skip


def legend_rows(names: Sequence[str]) -> int:
    """Return how many rows the legend takes; plotly gives each entry the width of the longest one."""
    longest = max((len(name) for name in names), default=0)
    return -(-len(names) // max(1, int(_LEGEND_WIDTH / (_LETTER * longest + 45))))


def time_range(parts: Sequence[Part], look: Look) -> tuple[float, float]:
    """Return the range of the time axis, in the units of `look`: all of the parts, and a little on both sides."""
    first = min((part.timeline.begin - part.origin for part in parts), default=0)
    end = max((part.timeline.begin + part.timeline.duration - part.origin for part in parts), default=0)
    pad = 0.005 * (end - first)
    return (first - pad) / look.unit, (end + pad) / look.unit


def _headers_and_bands(parts: Sequence[Part], span: tuple[float, float]) -> tuple[list[Json], list[Json]]:
    """Return (annotations, shapes): what each of several timelines is, above it; a shade behind the host lanes.

    The grid goes through the lanes only, not through what stands above them. `span` is the range of the time axis.
    """
    annotations: list[Json] = []
    shapes: list[Json] = []
    above = -0.1
    for part in parts:
        host = [track for track in part.placement.tracks if track.group == "host"]
        if host:
            shapes.append({
                "type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": host[0].top - 0.05,
                "y1": host[-1].top + host[-1].height + 0.08, "fillcolor": theme.HOST_BAND, "line": {"width": 0},
                "layer": "below",
            })  # fmt: skip
        if len(parts) > 1:
            shapes.append({
                "type": "rect", "x0": span[0], "x1": span[1], "y0": above, "y1": part.top - 0.05,
                "fillcolor": "white", "line": {"width": 0}, "layer": "between",
            })  # fmt: skip
            above = part.placement.bottom + 0.05
            line = metrics.describe(part.timeline).replace("GPU computes", "the GPU computes", 1)
            annotations.append({
                "text": f"<b>{escape(part.label, quote=False)}</b>: {line}", "xref": "paper", "x": 0,
                "xanchor": "left", "y": part.top - 0.1, "yanchor": "bottom", "showarrow": False, "align": "left",
                "font": {"size": theme.TEXT_PX + 2},
            })  # fmt: skip
    return annotations, shapes
