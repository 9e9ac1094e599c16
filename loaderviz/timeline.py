"""Timeline: what happened, when, and in which lane. The middle of loaderviz.

Every producer (the emulator, the profiler, a trace file) makes a `Timeline`; every consumer (metrics, figures,
exports) reads one. It is frozen and columnar: numpy arrays with one entry per span, times in integer nanoseconds.
It holds no tensors and knows nothing of torch or plotly.

    timeline = Timeline.load("run.json").self_check()
    copies = timeline.where(Kind.COPY_H2D)
    int((timeline.end - timeline.start)[copies].sum())  # ns spent in host-to-device copies
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loaderviz import words
from loaderviz.errors import LoadervizError
from loaderviz.spans import (
    COPIES,
    DEVICE_KINDS,
    KERNELS,
    ArrowKind,
    Cause,
    Context,
    Kind,
    Lane,
    Mark,
    Span,
)  # fmt: skip

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = [
    "ARROW_COLUMNS", "COPIES", "DEVICE_KINDS", "KERNELS", "SPAN_COLUMNS", "ArrowKind", "Cause", "Context", "Kind",
    "Lane", "Mark", "Span", "Timeline", "TimelineError",
]  # fmt: skip

FORMAT = 1  # version of the JSON form
Ints = npt.NDArray[np.integer[Any]]


class TimelineError(LoadervizError, ValueError):
    """A timeline, or its JSON form, is not well made."""


SPAN_COLUMNS: dict[str, type[np.integer[Any]]] = {
    "start": np.int64, "end": np.int64, "lane": np.int32, "kind": np.int8, "name": np.int32, "batch": np.int32,
    "nbytes": np.int64, "correlation": np.int64, "pinned": np.int8, "cause": np.int8, "source": np.int32,
}  # fmt: skip
ARROW_COLUMNS: dict[str, type[np.integer[Any]]] = {"tail": np.int64, "head": np.int64, "kind": np.int8}
_KINDS, _CAUSES = tuple(Kind), tuple(Cause)  # by number: quicker than to call the enum


@dataclass(frozen=True, eq=False)
class Timeline:
    """Spans in lanes, arrows between them, marks beside them, and where they come from.

    Columns (numpy, one entry per span, sorted by start): `start`, `end` [ns]; `lane` (index into `lanes`); `kind`
    (`Kind`); `name` (index into `names`); `batch` (-1: none); `nbytes` (-1: not known); `correlation` (joins a host
    call and its device work, -1: none); `pinned` (1 pinned, 0 pageable, -1: does not apply); `cause` (`Cause`);
    `source` (index into `sources`, "file:line", -1: not known). Arrows: `tail` and `head` are span indices.
    """

    context: Context
    lanes: tuple[Lane, ...]
    names: tuple[str, ...]
    sources: tuple[str, ...]
    spans: dict[str, Ints]
    arrows: dict[str, Ints]
    marks: tuple[Mark, ...] = ()

    def __getattr__(self, column: str) -> Ints:
        """Give a span column by name: `timeline.start` is `timeline.spans["start"]`."""
        if column in SPAN_COLUMNS:
            return self.spans[column]
        raise AttributeError(f"Timeline has no {column!r}; span columns are {', '.join(SPAN_COLUMNS)}")

    def __len__(self) -> int:
        return len(self.spans["start"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Timeline) and self.to_dict() == other.to_dict()

    def __repr__(self) -> str:
        spans, lanes = words.count(len(self), "span"), words.count(len(self.lanes), "lane")
        origin, device = self.context.origin, self.context.device
        return f"<Timeline: {spans} in {lanes}, {self.duration / 1e6:.3f} ms, {origin} {device}>"

    @property
    def begin(self) -> int:
        """Start of the first span, ns; 0 when empty."""
        return int(self.spans["start"].min()) if len(self) else 0

    @property
    def duration(self) -> int:
        """From the first start to the last end, ns."""
        return int(self.spans["end"].max()) - self.begin if len(self) else 0

    def row(self, index: int) -> Span:
        """Return span `index` with its ids looked up."""
        return self._looked_up(*(int(self.spans[column][index]) for column in SPAN_COLUMNS))

    def rows_at(self, indices: Ints) -> list[Span]:
        """Return some spans with their ids looked up; for many it is faster than `row` for each."""
        columns = (self.spans[column][indices].tolist() for column in SPAN_COLUMNS)
        return [self._looked_up(*values) for values in zip(*columns, strict=True)]

    def _looked_up(
        self, start: int, end: int, lane: int, kind: int, name: int, batch: int, nbytes: int, correlation: int,
        pinned: int, cause: int, source: int,
    ) -> Span:  # fmt: skip
        return Span(
            start, end, self.lanes[lane], _KINDS[kind], self.names[name], batch, nbytes, correlation,
            None if pinned < 0 else bool(pinned), _CAUSES[cause], self.sources[source] if source >= 0 else "",
        )  # fmt: skip

    def rows(self, *kinds: Kind) -> Iterator[Span]:
        """Iterate over the spans in order of start; only of `kinds`, if any are given."""
        for index in range(len(self)):
            if not kinds or int(self.spans["kind"][index]) in kinds:
                yield self.row(index)

    def where(self, *kinds: Kind) -> npt.NDArray[np.bool_]:
        """Return a mask over the spans, shape `(len(self),)`: True where the kind is one of `kinds`."""
        asked = np.zeros(len(Kind), bool)
        asked[list(kinds)] = True
        mask: npt.NDArray[np.bool_] = asked[self.spans["kind"]]
        return mask

    def between(self, start: int, end: int) -> Timeline:
        """Return the part from `start` to `end` [ns]: spans that lie across an edge are cut there, and noted."""
        if end < start:
            raise TimelineError(f"between({start}, {end}): the end lies before the start; give start <= end")
        spans = self.spans
        keep = (spans["end"] > start) & (spans["start"] < end)
        keep |= (spans["start"] == spans["end"]) & (spans["start"] >= start) & (spans["start"] <= end)
        trimmed = int(((spans["start"] < start) | (spans["end"] > end))[keep].sum())
        note = f"{words.duration(end - start)} of {words.duration(self.duration)} shown"
        note += f", {words.count(trimmed, 'span')} cut at the edges" if trimmed else ""
        part = replace(self, context=replace(self.context, notes=(*self.context.notes, note))).only(keep)
        part.spans["start"], part.spans["end"] = np.maximum(part.start, start), np.minimum(part.end, end)
        return replace(part, marks=tuple(mark for mark in part.marks if start <= mark.time <= end)).sorted()

    def only(self, keep: npt.NDArray[np.bool_]) -> Timeline:
        """Return the timeline with these spans alone: `keep` is a mask over them. Arrows between two of them stay."""
        moved = np.where(keep, np.cumsum(keep) - 1, -1)
        arrows = self.arrows | {side: moved[self.arrows[side]] for side in ("tail", "head")}
        whole = (arrows["tail"] >= 0) & (arrows["head"] >= 0)
        return replace(
            self, spans={column: values[keep].copy() for column, values in self.spans.items()},
            arrows={column: values[whole] for column, values in arrows.items()},
            marks=tuple(_renumber(mark, moved) for mark in self.marks),
        )  # fmt: skip

    def from_batch(self, batch: int) -> Timeline:
        """Return the part from the hand-out of `batch` on, which leaves the warm-up out.

        Raises `TimelineError` if the main thread was never handed that batch.
        """
        pattern = re.compile(rf"batch {batch}(:|$)")
        starts = [span.start for span in self.rows(Kind.RANGE) if pattern.match(span.name)]
        if not starts:
            raise TimelineError(f"from_batch({batch}): no range of the timeline is named 'batch {batch}'")
        return self.between(min(starts), self.begin + self.duration)

    def sorted(self) -> Timeline:
        """Return it with the spans in order of start, longer ones first (a caller before what it calls)."""
        order = np.lexsort((-self.spans["end"], self.spans["start"]))
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        return replace(
            self,
            spans={name: values[order] for name, values in self.spans.items()},
            arrows=self.arrows | {side: place[self.arrows[side]] for side in ("tail", "head")},
            marks=tuple(_renumber(mark, place) for mark in self.marks),
        )

    def self_check(self) -> Timeline:
        """Raise `TimelineError` unless the timeline is well made; return it, so that calls can be chained.

        No span ends before it starts, ids are in range, no two spans overlap in one stream, every arrow goes forward.
        """
        _check_columns(self)
        _check_streams(self)
        start, arrows = self.spans["start"], self.arrows
        tails = np.where(arrows["kind"] == ArrowKind.WAIT, self.spans["end"][arrows["tail"]], start[arrows["tail"]])
        backward = np.flatnonzero(tails > start[arrows["head"]])
        if len(backward):
            tail, head = (self.row(int(arrows[side][backward[0]])) for side in ("tail", "head"))
            raise TimelineError(f"an arrow goes back in time: from {tail} to {head}")
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and dicts, ready for JSON; `from_dict` gives an equal Timeline back."""
        return {
            "loaderviz": FORMAT,
            "context": asdict(self.context) | {"notes": list(self.context.notes)},
            "lanes": [asdict(lane) for lane in self.lanes],
            "names": list(self.names),
            "sources": list(self.sources),
            "spans": {column: values.tolist() for column, values in self.spans.items()},
            "arrows": {column: values.tolist() for column, values in self.arrows.items()},
            "marks": [asdict(mark) | {"spans": list(mark.spans)} for mark in self.marks],
        }

    @classmethod
    def from_dict(cls, data: Any) -> Timeline:
        """Build a Timeline from what `to_dict` gave. Raises `TimelineError` on anything else."""
        version = data.get("loaderviz") if isinstance(data, dict) else None
        if version != FORMAT:
            raise TimelineError(
                f"this is not a loaderviz timeline of format {FORMAT}: its 'loaderviz' entry is {version!r}. "
                "Traces of other tools are read by loaderviz.read()."
            )
        try:
            context = dict(data["context"])
            context["notes"] = tuple(context["notes"])
            timeline = cls(
                Context(**context),
                tuple(Lane(**lane) for lane in data["lanes"]),
                tuple(data["names"]),
                tuple(data["sources"]),
                {name: np.array(data["spans"][name], dtype) for name, dtype in SPAN_COLUMNS.items()},
                {name: np.array(data["arrows"][name], dtype) for name, dtype in ARROW_COLUMNS.items()},
                tuple(Mark(**(mark | {"spans": tuple(mark["spans"])})) for mark in data["marks"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as problem:
            what = f"{type(problem).__name__}: {problem}"
            raise TimelineError(f"the timeline is damaged: {what}. Make it anew.") from problem
        return timeline.self_check()

    def save(self, path: str | Path) -> Path:
        """Write the timeline as JSON; `Timeline.load` reads it back."""
        path = Path(path)
        path.write_text(json.dumps(self.to_dict()), encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: str | Path) -> Timeline:
        """Read what `save` wrote. Raises `TimelineError` for a damaged or foreign file, OSError if there is none."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as problem:  # bad JSON or bad UTF-8, or absurdly nested
            raise TimelineError(f"{path} is not a loaderviz timeline (no valid JSON: {problem})") from problem
        return cls.from_dict(data)

    def figure(self, **options: Any) -> go.Figure:
        """Draw it; the options are those of `loaderviz.draw.figure`, such as `color="batch"` or `color="kind"`."""
        from loaderviz import draw  # the one door to drawing: imported when it is used

        return draw.figure(self, **options)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        from loaderviz import draw

        return draw.mimebundle(self)


def _renumber(mark: Mark, place: Ints) -> Mark:
    first, second = (int(place[i]) if i >= 0 else -1 for i in mark.spans)
    return replace(mark, spans=(first, second))


def _check_columns(timeline: Timeline) -> None:
    spans, lengths = timeline.spans, {len(values) for values in timeline.spans.values()}
    if len(lengths) != 1:
        raise TimelineError(f"the span columns have different lengths: {sorted(lengths)}")
    if len(backward := np.flatnonzero(spans["end"] < spans["start"])):
        raise TimelineError(f"a span ends before it starts: {timeline.row(int(backward[0]))}")
    limits = {"lane": len(timeline.lanes), "name": len(timeline.names), "kind": len(Kind), "cause": len(Cause)}
    for column, limit in limits.items():
        if len(spans[column]) and not (spans[column].min() >= 0 and spans[column].max() < limit):
            raise TimelineError(f"span column {column!r} must lie in 0..{limit - 1}, has {spans[column].max()}")
    if len(spans["source"]) and spans["source"].max() >= len(timeline.sources):
        raise TimelineError(f"span column 'source' has {spans['source'].max()}, with {len(timeline.sources)} sources")
    for side in ("tail", "head"):
        ends = timeline.arrows[side]
        if len(ends) and not (ends.min() >= 0 and ends.max() < len(timeline)):
            raise TimelineError(f"an arrow's {side} points at span {ends.max()}, but there are {len(timeline)} spans")


def _check_streams(timeline: Timeline) -> None:
    """A stream does one thing at a time (R16); recorded traces keep real overlap in sub-lanes of their own."""
    spans = timeline.spans
    for number, lane in enumerate(timeline.lanes):
        if lane.group != "device":
            continue
        mine = np.flatnonzero((spans["lane"] == number) & (spans["kind"] != Kind.RANGE))
        mine = mine[np.lexsort((spans["end"][mine], spans["start"][mine]))]
        clash = np.flatnonzero(spans["start"][mine][1:] < spans["end"][mine][:-1])
        if len(clash):
            first, second = (timeline.row(int(mine[clash[0] + step])) for step in (0, 1))
            raise TimelineError(f"two spans overlap in {lane.name}: {first} and {second}")
