"""The look of every timeline: one table of colours and patterns, for the view, its still picture and plotly.

A colour means one thing. Seven batches have one each before the first comes again, chosen so that k and k + 1, k + 3
and k + 4 differ in hue and in lightness, and k to k + 2, which are drawn at the same time, for people who lack a sort
of cones, too; the number is on the bar, too. What the GPU does (`STATES`) and a blocked host
have colours that no batch and no kind has, and patterns where two of them must be told apart without colour. Bars, or
the frame around a strip of states, have at least 3:1 against white and a dark page (#161616), text on a bar 4.5:1.

Thick is a kernel, thin a copy or a memset: in each lane, and in the strip of states, where thick says that the GPU
computes. Thin bars hang from the top of their lane. Where bars are narrower than a pixel, their height is a share of
its time: kernels then grow from the bottom and copies from the top, so that they are told apart there, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from loaderviz.timeline import Kind

BLUE, AMBER, SKY, BROWN, GREEN, VIOLET, OLIVE = (
    "#0072B2", "#C07E00", "#2E9BD6", "#8A5A2B", "#009E60", "#7B5BC2", "#8A9C1E",
)  # fmt: skip
EXPOSED, WAITING, COMPUTING, HIDDEN, COMMUNICATING = "#D9480F", "#C4619B", "#5F6F86", "#8FE3C8", "#5555FF"
TEXT, SOFT, GRID, BAND, FRAME = "#222222", "#555555", "#E3E3E3", "#F6F6F6", "#808080"
THIN = 0.55  # height of a copy, of that of a kernel


@dataclass(frozen=True)
class Style:
    """How a sort of bar looks: its name in the legend, its colour, that of text on it, its pattern ("" for none).

    A pattern ("/", "x" or ".") is drawn in `color` on `back`. `height` is a share of that of a kernel in the same lane.
    """

    name: str
    color: str
    ink: str = "#FFFFFF"
    pattern: str = ""
    back: str = ""
    height: float = 1


BATCHES = tuple(
    Style("", color, "#000000" if color in (AMBER, SKY, GREEN, OLIVE) else "#FFFFFF")
    for color in (BLUE, AMBER, SKY, BROWN, GREEN, VIOLET, OLIVE)
)
NO_BATCH = Style("no batch", "#8C8C8C", "#000000")

_BLACK = "#000000"
KINDS: dict[Kind, Style] = {
    Kind.COMPUTE: Style("kernel", BLUE),
    Kind.COMMUNICATION: Style("communication kernel", SKY, _BLACK),
    Kind.COPY_H2D: Style("copy to the GPU", AMBER, _BLACK, height=THIN),
    Kind.COPY_D2H: Style("copy from the GPU", BROWN, height=THIN),
    Kind.COPY_D2D: Style("copy on the GPU", AMBER, _BLACK, "x", "#FFFFFF", THIN),
    Kind.MEMSET: Style("memset", "#6E6E6E", _BLACK, ".", "#FFFFFF", THIN),
    Kind.API: Style("CUDA call", "#737373"),
    Kind.OPERATOR: Style("operator", "#949494", _BLACK),
    Kind.FETCH: Style("fetch a batch", GREEN, _BLACK),
    Kind.PIN: Style("pin a batch", OLIVE, _BLACK),
    Kind.WAIT: Style("host blocked", WAITING, _BLACK, "/", "#FBEEF6"),
    Kind.RANGE: Style("range", "#949494", _BLACK),
}

STATES: dict[str, Style] = {  # what the GPU is doing; the keys are those of `metrics.states`
    "compute": Style("compute", COMPUTING),
    "copy hidden": Style("copy hidden", HIDDEN, "#FFFFFF", "/", COMPUTING),
    "copy exposed": Style("copy exposed", EXPOSED, _BLACK, height=THIN),
    "communication": Style("communication", COMMUNICATING, height=THIN),
    "waiting for ranks": Style("waiting for other ranks", COMMUNICATING, _BLACK, "/", "#F0F0FF", THIN),
    "other device work": Style("memset or copy on the GPU", "#6E6E6E", _BLACK, ".", "#FFFFFF", THIN),
    "idle": Style("idle", "#E9E9E9", _BLACK),
}

LEGEND = {  # what a state means, where there is room to say it; its name stands on its bars
    "compute": "GPU computes",
    "copy hidden": "copy while the GPU computes (hidden)",
    "copy exposed": "copy while the GPU waits (exposed)",
    "communication": "communication while the GPU waits (exposed)",
    "waiting for ranks": "GPU waits for other ranks",
    "other device work": "GPU sets or copies its own memory",
    "idle": "GPU idle",
}
WAITED = "arrow from A to B: B waits until A has ended"

STYLES = (*KINDS.values(), *STATES.values())  # by number: a kind's is its own, those of the states follow


def legend(number: int) -> str:
    """Return what the legend calls the style of this number."""
    return [*LEGEND.values()][number - len(KINDS)] if number >= len(KINDS) else STYLES[number].name


def of_batch(batch: int) -> Style:
    """Return the style of a batch; it comes again after `len(BATCHES)` batches, grey for -1."""
    return BATCHES[batch % len(BATCHES)] if batch >= 0 else NO_BATCH
