"""Arrows: from the call to the work it launched, and from an event to what waited for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from loaderviz.draw import theme
from loaderviz.draw.bars import Json
from loaderviz.draw.lanes import Placement
from loaderviz.timeline import ArrowKind

if TYPE_CHECKING:
    from loaderviz.draw.page import Look, Part

LIMIT = 400  # arrows of one kind; more hide the picture
_LOOKS = {
    "launch": (ArrowKind.LAUNCH, "#555555", "dot", "launch"),
    "wait": (ArrowKind.WAIT, theme.BLACK, "solid", "waits for"),
}


def traces(parts: Sequence[Part], look: Look) -> list[Json]:
    """Return a trace for each kind of arrow asked for, if there are any; with `look.steady`, in any case."""
    found = [_arrows(parts, look, name) for name in look.arrows]
    return [trace for trace in found if trace["visible"] or look.steady]


def _arrows(parts: Sequence[Part], look: Look, name: str) -> Json:
    kind, color, dash, words = _LOOKS[name]
    ends = [_ends(part, look, kind) for part in parts]
    joins = np.concatenate([np.empty((0, 4)), *ends])
    total = len(joins)
    if total > LIMIT:
        joins = joins[np.linspace(0, total - 1, LIMIT).astype(int)]
        words += f" ({LIMIT} of {total:,} drawn)"
    ends_of = joins.tolist()
    return {
        "type": "scatter", "mode": "lines+markers", "name": words, "showlegend": total > 0, "visible": total > 0,
        "x": [x for join in ends_of for x in (join[0], join[2], None)],
        "y": [y for join in ends_of for y in (join[1], join[3], None)],
        "line": {"color": color, "width": 1.2, "dash": dash}, "hoverinfo": "skip",
        "marker": {"symbol": "arrow", "angleref": "previous", "color": color, "size": [0, 9, 0] * len(joins)},
    }  # fmt: skip


def _ends(part: Part, look: Look, kind: ArrowKind) -> npt.NDArray[np.float64]:
    """Return x and y of tail and head, shape (arrows, 4); only arrows whose two spans are drawn."""
    timeline = part.timeline
    mine = timeline.arrows["kind"] == kind
    tail, head = timeline.arrows["tail"][mine], timeline.arrows["head"][mine]
    middle, height = places(part)
    half = 0.3 * height
    down = np.sign(middle[head] - middle[tail])
    leaves = timeline.end[tail] if kind is ArrowKind.WAIT else timeline.start[tail]
    joins: npt.NDArray[np.float64] = np.stack(
        [
            (leaves - part.origin) / look.unit, middle[tail] + down * half[tail],
            (timeline.start[head] - part.origin) / look.unit, middle[head] - down * half[head],
        ],
        axis=1,
    )  # fmt: skip
    return joins[~np.isnan(joins).any(axis=1)]


def places(part: Part) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return for each span of the timeline the middle and the height of its track; NaN and 0 if it is not drawn."""
    placement = part.placement
    mine = own(placement)
    middle, height = np.full(len(part.timeline), np.nan), np.zeros(len(part.timeline))
    tracks = placement.track[mine]
    middle[placement.span[mine]] = np.array([track.middle for track in placement.tracks])[tracks]
    height[placement.span[mine]] = np.array([track.height for track in placement.tracks])[tracks]
    return middle, height


def own(placement: Placement) -> npt.NDArray[np.bool_]:
    """Say which bars are in a track of their lane: a copy is drawn again in its engine, but streams have the order."""
    engine = np.array([track.group == "engine" for track in placement.tracks], bool)
    mine: npt.NDArray[np.bool_] = ~engine[placement.track]
    return mine
