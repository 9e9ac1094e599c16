"""TimelineBuilder: collects spans in any order and builds the frozen Timeline. Producers use it; readers never do.

builder = TimelineBuilder(Context(device="A100", origin="emulated"))
stream = builder.lane("stream 7", "device", number=7)
builder.span(0, 1000, stream, Kind.COMPUTE, "gemm")
timeline = builder.build()
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from loaderviz.timeline import ARROW_COLUMNS, SPAN_COLUMNS, ArrowKind, Cause, Context, Kind, Lane, Mark, Timeline


class TimelineBuilder:
    """Collects spans, arrows and marks, and builds the frozen Timeline from them."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._lanes: dict[Lane, int] = {}
        self._names: dict[str, int] = {}
        self._sources: dict[str, int] = {}
        self._rows: list[tuple[int, ...]] = []
        self._arrows: list[tuple[int, int, int]] = []
        self._marks: list[Mark] = []

    def lane(
        self, name: str, group: Literal["host", "device"], role: str = "stream", number: int = 0, device: int = 0
    ) -> int:
        """Return the index of this lane, made on first use; the arguments are those of `Lane`."""
        return self._lanes.setdefault(Lane(name, group, role, number, device), len(self._lanes))

    def span(
        self, start: int, end: int, lane: int, kind: Kind, name: str, *, batch: int = -1, nbytes: int = -1,
        correlation: int = -1, pinned: bool | None = None, cause: Cause = Cause.NONE, source: str = "",
    ) -> int:  # fmt: skip
        """Add a span; times in ns. Return its number, to be used in `arrow`."""
        name_id = self._names.setdefault(name, len(self._names))
        source_id = self._sources.setdefault(source, len(self._sources)) if source else -1
        pin = -1 if pinned is None else int(pinned)
        self._rows.append((start, end, lane, kind, name_id, batch, nbytes, correlation, pin, cause, source_id))
        return len(self._rows) - 1

    def arrow(self, tail: int, head: int, kind: ArrowKind) -> None:
        """Join two spans by their numbers."""
        self._arrows.append((tail, head, kind))

    def __len__(self) -> int:
        return len(self._rows)

    def times(self, span: int) -> tuple[int, int]:
        """Return start and end [ns] of a span by its number."""
        return self._rows[span][0], self._rows[span][1]

    def lane_of(self, span: int) -> int:
        """Return the lane of a span by its number."""
        return self._rows[span][2]

    def mark(self, time: int, lane: int, kind: str, text: str, spans: tuple[int, int] = (-1, -1)) -> None:
        """Add a mark at `time` [ns]."""
        self._marks.append(Mark(time, lane, kind, text, spans))

    def build(self) -> Timeline:
        """Return the Timeline, its spans in order of start."""
        table = np.array(self._rows, np.int64).reshape(-1, len(SPAN_COLUMNS))
        joins = np.array(self._arrows, np.int64).reshape(-1, len(ARROW_COLUMNS))
        return Timeline(
            self.context,
            tuple(self._lanes),
            tuple(self._names),
            tuple(self._sources),
            {name: table[:, i].astype(dtype) for i, (name, dtype) in enumerate(SPAN_COLUMNS.items())},
            {name: joins[:, i].astype(dtype) for i, (name, dtype) in enumerate(ARROW_COLUMNS.items())},
            tuple(self._marks),
        ).sorted()
