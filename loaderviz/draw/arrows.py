"""Arrows and marks: from the call to the work it launched, from an event to what waited for it; hazards as crosses."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from loaderviz.draw import theme
from loaderviz.draw.lanes import Placement
from loaderviz.timeline import ArrowKind

if TYPE_CHECKING:
    from loaderviz.draw.page import Look, Part

LIMIT = 400  # arrows of one kind; more hide the picture
_LOOKS = {
    "launch": (ArrowKind.LAUNCH, "#555555", "dot", "launch"),
    "wait": (ArrowKind.WAIT, theme.BLACK, "solid", "waits for"),
}


def traces(parts: Sequence[Part], look: Look) -> list[go.Scatter]:
    """Return a trace for each kind of arrow asked for, and one for the marks."""
    found = [trace for name in look.arrows for trace in _arrows(parts, look, name)]
    return found + _marks(parts, look)


def _arrows(parts: Sequence[Part], look: Look, name: str) -> list[go.Scatter]:
    kind, color, dash, words = _LOOKS[name]
    ends = [_ends(part, look, kind) for part in parts]
    joins = np.concatenate([np.empty((0, 4)), *ends])
    total = len(joins)
    if not total and not look.steady:
        return []
    if total > LIMIT:
        joins = joins[np.linspace(0, total - 1, LIMIT).astype(int)]
        words += f" ({LIMIT} of {total:,} drawn)"
    gap = np.full(len(joins), np.nan)
    return [
        go.Scatter(
            x=np.stack([joins[:, 0], joins[:, 2], gap], axis=1).ravel(),
            y=np.stack([joins[:, 1], joins[:, 3], gap], axis=1).ravel(),
            mode="lines+markers", line={"color": color, "width": 1.2, "dash": dash}, hoverinfo="skip", name=words,
            showlegend=total > 0,
            marker={"symbol": "arrow", "angleref": "previous", "color": color, "size": [0, 9, 0] * len(joins)},
        )
    ]  # fmt: skip


def _ends(part: Part, look: Look, kind: ArrowKind) -> npt.NDArray[np.float64]:
    """Return x and y of tail and head, shape (arrows, 4); only arrows whose two spans are drawn."""
    timeline, placement = part.timeline, part.placement
    mine = timeline.arrows["kind"] == kind
    tail, head = timeline.arrows["tail"][mine], timeline.arrows["head"][mine]
    own = _own(placement)
    middle, half = np.full(len(timeline), np.nan), np.zeros(len(timeline))
    tracks = placement.track[own]
    middle[placement.span[own]] = np.array([track.middle for track in placement.tracks])[tracks]
    half[placement.span[own]] = 0.3 * np.array([track.height for track in placement.tracks])[tracks]
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


def _marks(parts: Sequence[Part], look: Look) -> list[go.Scatter]:
    x, y, texts = [], [], []
    for part in parts:
        places = _lane_places(part) if part.timeline.marks else {}
        for mark in part.timeline.marks:
            x.append((mark.time - part.origin) / look.unit)
            y.append(places.get(mark.lane, part.placement.bottom))
            texts.append(f"<b>{escape(mark.kind, quote=False)}</b><br>{escape(mark.text, quote=False)}")
    if not x and not look.steady:
        return []
    marker = {"symbol": "x", "size": 13, "color": theme.BLACK, "line": {"color": "white", "width": 1.5}}
    return [
        go.Scatter(x=x, y=y, mode="markers", marker=marker, name="hazard", hovertext=texts, showlegend=bool(x),
                   hovertemplate="%{hovertext}<extra></extra>")
    ]  # fmt: skip


def _lane_places(part: Part) -> dict[int, float]:
    """Return where the first track of each lane is."""
    placement = part.placement
    own = _own(placement)
    lanes, first = np.unique(part.timeline.lane[placement.span[own]], return_index=True)
    tracks = placement.track[own][first]
    return {int(lane): placement.tracks[track].middle for lane, track in zip(lanes, tracks, strict=True)}


def _own(placement: Placement) -> npt.NDArray[np.bool_]:
    """Say which bars are in a track of their lane: a copy is drawn again in its engine, but streams have the order."""
    engine = np.array([track.group == "engine" for track in placement.tracks], bool)
    own: npt.NDArray[np.bool_] = ~engine[placement.track]
    return own
