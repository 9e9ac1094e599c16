"""The look of every figure: Okabe-Ito colours, a second channel for each, one template, 12 px text at least.

Colour is never alone: lanes tell host from device, patterns tell waits and D2D copies, text tells batch and cause.
The colours are those of Okabe and Ito, which people with the common colour-vision deficiencies can tell apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from loaderviz.timeline import Kind

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILLION, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
GREY, PALE, INK, DARK = "#8C8C8C", "#D0D0D0", "#000000", "#4D4D4D"
TEXT, SOFT = "#222222", "#555555"  # words around the lanes; the soft ones for what matters less
HOST_BAND, GRID = "#F6F6F6", "#E3E3E3"

TEXT_PX = 12  # the smallest text in any figure
TRACK_PX = 28  # height of one track of bars; 12 px text needs a bar of 21


@dataclass(frozen=True)
class Style:
    """How a kind of bar looks: its name in the legend, its colour and that of text on it; its pattern ("" for none).

    A pattern is drawn in `color` on `back`.
    """

    name: str
    color: str
    ink: str = INK
    pattern: str = ""
    back: str = "white"


KINDS: dict[Kind, Style] = {
    Kind.COMPUTE: Style("kernel", BLUE, "white"),
    Kind.COMMUNICATION: Style("communication kernel", SKY),
    Kind.COPY_H2D: Style("copy H2D", VERMILLION),
    Kind.COPY_D2H: Style("copy D2H", ORANGE),
    Kind.COPY_D2D: Style("copy D2D", VERMILLION, INK, "x", "#FBE9DF"),
    Kind.MEMSET: Style("memset", BLACK, INK, ".", "#E2E2E2"),
    Kind.API: Style("CUDA call", "#A6A6A6"),
    Kind.OPERATOR: Style("operator", "#C4C4C4"),
    Kind.FETCH: Style("fetch a batch", GREEN),
    Kind.PIN: Style("pin a batch", YELLOW),
    Kind.WAIT: Style("host blocked", PURPLE, INK, "/", "#F8EDF4"),
    Kind.RANGE: Style("range", "#DADADA"),
}

# What the GPU is doing; the keys are those of `metrics.states`. No colour of a batch is among them.
STATES: dict[str, Style] = {
    "compute": Style("compute", DARK),
    "copy hidden": Style("copy hidden", ORANGE, INK, "/", DARK),
    "copy exposed": Style("copy exposed", VERMILLION),
    "other device work": Style("memset or copy D2D", BLACK, INK, ".", "#E2E2E2"),
    "idle": Style("idle", "#E9E9E9"),
}

# Neighbouring batches differ in hue and in lightness. Purple is left to waits, vermillion to exposed copies; black and
# yellow read badly as bars.
BATCHES: tuple[Style, ...] = (Style("", BLUE, "white"), Style("", ORANGE), Style("", GREEN), Style("", SKY))
NO_BATCH = Style("no batch", "#9C9C9C")  # dark enough for a thin bar


HALO = ", ".join(["0 0 2px white"] * 3)  # around text on a pattern, as CSS has it


def pattern(style: Style, color: Any) -> dict[str, Any]:
    """Return plotly's settings for a style's pattern in this colour, or in one colour for each bar."""
    return {"shape": style.pattern, "size": 6, "solidity": 0.3, "fgcolor": color, "bgcolor": style.back}


def of_batch(batch: int) -> Style:
    """Return the style of a batch; it repeats after `len(BATCHES)` batches, grey for -1."""
    return BATCHES[batch % len(BATCHES)] if batch >= 0 else NO_BATCH


TEMPLATE = go.layout.Template(
    layout={
        "font": {"family": "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif", "size": TEXT_PX + 1, "color": TEXT},
        "title": {"x": 0.01, "xref": "container", "xanchor": "left", "font": {"size": 16},
                  "subtitle": {"font": {"size": TEXT_PX + 1, "color": SOFT}}},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "colorway": [BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY],
        "xaxis": {"gridcolor": GRID, "zeroline": False, "ticks": "outside", "tickcolor": PALE,
                  "title": {"font": {"size": TEXT_PX + 1}}},
        "yaxis": {"gridcolor": GRID, "zeroline": False, "ticklabelstandoff": 6},
        "legend": {"font": {"size": TEXT_PX + 1}},
        "hoverlabel": {"font": {"size": TEXT_PX + 1, "color": TEXT}, "bgcolor": "white", "bordercolor": DARK,
                       "align": "left", "namelength": -1},
        "uniformtext": {"minsize": TEXT_PX, "mode": "hide"},
    }
)  # fmt: skip
