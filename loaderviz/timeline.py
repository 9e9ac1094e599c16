"""Timeline: what happened, when, and in which lane. The middle of loaderviz.

Every producer (the emulator, the profiler, a trace file) makes a `Timeline`, with a `TimelineBuilder`; every consumer
(metrics, figures, exports) reads one. It is frozen and columnar: numpy arrays with one entry per span, times in integer
nanoseconds. It holds no tensors and knows nothing of torch or plotly.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from loaderviz import words
from loaderviz.batches import BATCH_RANGE
from loaderviz.errors import LoadervizError, readable, write

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from loaderviz.analysis import Advice
    from loaderviz.view import View


class Kind(IntEnum):
    """What a span is. The order is the order of the legend."""

    COMPUTE = 0  # a kernel
    COMMUNICATION = 1  # a collective's kernel (nccl, rccl)
    COPY_H2D = 2
    COPY_D2H = 3
    COPY_D2D = 4
    MEMSET = 5
    API = 6  # a CUDA runtime call on the host
    OPERATOR = 7  # aten::… on the host
    FETCH = 8  # a worker (or the main thread) prepares a batch
    PIN = 9  # a batch is copied into page-locked memory
    WAIT = 10  # the host is blocked; `cause` says by what
    RANGE = 11  # an annotation, such as "batch 3"


KERNELS = (Kind.COMPUTE, Kind.COMMUNICATION)
COPIES = (Kind.COPY_H2D, Kind.COPY_D2H)  # host-device copies; D2D is work on the device
DEVICE_KINDS = (*KERNELS, *COPIES, Kind.COPY_D2D, Kind.MEMSET)


class Cause(IntEnum):
    """Why the host waits."""

    NONE = 0
    STAGING = 1  # a pageable copy goes through the driver's staging buffer (R1, R7)
    SYNCHRONIZE = 2  # a stream, event or device synchronise, `.item()` among them (R25)
    QUEUE_FULL = 3  # the launch queue has no free place (R24)
    PAGE_LOCKING = 4  # new page-locked memory (R13, R44)
    ALLOCATION = 5  # cudaFree of what may be in use (R13)
    DATA = 6  # the next batch is not ready

    @property
    def words(self) -> str:
        """The cause as a reader sees it, such as "queue full"."""
        return {Cause.DATA: "waiting for data", Cause.PAGE_LOCKING: "page-locking"}.get(
            self, self.name.lower().replace("_", " ")
        )


LOADING = ("worker", "pin")  # roles of the host threads that prepare batches


class ArrowKind(IntEnum):
    """What an arrow between two spans says."""

    LAUNCH = 0  # the host call -> the work it put on the device
    WAIT = 1  # the work that an event stands for -> the first work that waited for it


@dataclass(frozen=True)
class Lane:
    """A row of the picture: host thread or stream of this `number`; `role`: worker, pin, main, thread or stream."""

    name: str
    group: Literal["host", "device"]
    role: str = "stream"
    number: int = 0
    device: int = 0


@dataclass(frozen=True)
class Context:
    """Where a timeline comes from; all of it is shown to the reader.

    `origin` is "emulated", "recorded" or "file"; `samples` counts the samples of all batches handed out (None: not
    known); `host` says whose host costs are in it; `notes` lists what was thinned, dropped or assumed. `unpriced` names
    what the data set did here and costs nothing in it ("data set": its own Python; "waiting"), `measured` what was
    measured with this machine's clock on the wall ("waiting").
    """

    device: str = "unknown device"
    origin: str = "file"
    host: str = ""
    clock: str = "ns"
    samples: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unpriced: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mark:
    """A point of interest, such as a hazard: when, where, what, and two spans (-1: none); `report` in lines."""

    time: int
    lane: int
    kind: str
    text: str
    spans: tuple[int, int] = (-1, -1)
    report: str = ""


class Span(NamedTuple):
    """One row of the table, with its ids looked up. Times in ns; `pinned` is True, False or None (no host side)."""

    start: int
    end: int
    lane: Lane
    kind: Kind
    name: str
    batch: int
    nbytes: int
    correlation: int
    pinned: bool | None
    cause: Cause
    source: str

    @property
    def duration(self) -> int:
        """Length in ns."""
        return self.end - self.start


# The timeline


FORMAT = 1  # version of the JSON form
Ints = npt.NDArray[np.integer[Any]]


class TimelineError(LoadervizError, ValueError):
    """A timeline, or its JSON form, is not well made."""


SPAN_COLUMNS: dict[str, type[np.integer[Any]]] = {
    "start": np.int64,
    "end": np.int64,
    "lane": np.int32,
    "kind": np.int8,
    "name": np.int32,
    "batch": np.int32,
    "nbytes": np.int64,
    "correlation": np.int64,
    "pinned": np.int8,
    "cause": np.int8,
    "source": np.int32,
}
WIDTH = len(SPAN_COLUMNS)
ARROW_COLUMNS: dict[str, type[np.integer[Any]]] = {"tail": np.int64, "head": np.int64, "kind": np.int8}
_KINDS, _CAUSES = tuple(Kind), tuple(Cause)  # by number: quicker than to call the enum


@dataclass(frozen=True, eq=False)
class Timeline:
    """Spans in lanes, arrows between them, marks beside them, and where they come from.

    Columns (numpy, one entry per span, sorted by start): `start`, `end` [ns]; `lane` (index into `lanes`); `kind`
    (`Kind`); `name` (index into `names`); `batch` (-1: none); `nbytes` (-1: not known); `correlation` (joins a host
    call and its device work, -1: none); `pinned` (1 pinned, 0 pageable, -1: does not apply); `cause` (`Cause`);
    `source` (index into `sources`, `file:line`, -1: not known). Arrows: `tail` and `head` are span indices.
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
        return f"<Timeline: {spans} in {lanes}, {words.duration(self.duration)}, {origin} {device}>"

    @cached_property
    def results(self) -> dict[str, Any]:
        """What has been worked out of it, see `metrics.once`. No part of its value: not compared, saved or copied."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "results"}

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

    def _looked_up(self, start: int, end: int, lane: int, kind: int, name: int, *rest: int) -> Span:
        batch, nbytes, correlation, pinned, cause, source = rest
        text, known = self.sources[source] if source >= 0 else "", None if pinned < 0 else bool(pinned)
        here, what = self.lanes[lane], self.names[name]
        return Span(start, end, here, _KINDS[kind], what, batch, nbytes, correlation, known, _CAUSES[cause], text)

    def rows(self, *kinds: Kind) -> Iterator[Span]:
        """Iterate over the spans in order of start; only of `kinds`, if any are given."""
        return map(self.row, np.flatnonzero(self.where(*kinds or Kind)).tolist())

    def where(self, *kinds: Kind) -> npt.NDArray[np.bool_]:
        """Return a mask over the spans, shape `(len(self),)`: True where the kind is one of `kinds`."""
        mask = np.zeros(len(self), bool)
        for kind in kinds:
            mask |= self.spans["kind"] == kind
        return mask

    def named(self, test: Callable[[str], object]) -> npt.NDArray[np.bool_]:
        """Return a mask: True for spans whose name passes the test, which is asked once for each name."""
        return np.array([bool(test(name)) for name in self.names], bool)[self.spans["name"]]

    def in_lanes(self, test: Callable[[Lane], object]) -> npt.NDArray[np.bool_]:
        """Return a mask: True for spans in lanes that pass the test."""
        return np.array([bool(test(lane)) for lane in self.lanes], bool)[self.spans["lane"]]

    @property
    def launches(self) -> tuple[Ints, Ints]:
        """The calls that launched work, and the work of each: numbers of spans."""
        launch = self.arrows["kind"] == ArrowKind.LAUNCH
        return self.arrows["tail"][launch], self.arrows["head"][launch]

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
            self,
            spans={column: values[keep].copy() for column, values in self.spans.items()},
            arrows={column: values[whole] for column, values in arrows.items()},
            marks=tuple(_renumber(mark, moved) for mark in self.marks),
        )

    def from_batch(self, batch: int) -> Timeline:
        """Return the part from the hand-out of `batch` on, which leaves the warm-up out.

        Raises `TimelineError` if the main thread was never handed that batch.
        """
        ranges = ((span.start, BATCH_RANGE.match(span.name)) for span in self.rows(Kind.RANGE))
        starts = [start for start, match in ranges if match and int(match["number"]) == batch]
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
        spans = self.spans
        for number, lane in enumerate(self.lanes):
            if lane.group != "device":
                continue  # a stream does one thing at a time (R16); traces keep real overlap in sub-lanes
            mine = np.flatnonzero((spans["lane"] == number) & (spans["kind"] != Kind.RANGE))
            mine = mine[np.lexsort((spans["end"][mine], spans["start"][mine]))]
            clash = np.flatnonzero(spans["start"][mine][1:] < spans["end"][mine][:-1])
            if len(clash):
                first, second = (self.row(int(mine[clash[0] + step])) for step in (0, 1))
                raise TimelineError(f"two spans overlap in {lane.name}: {first} and {second}")
        start, arrows = self.spans["start"], self.arrows
        tails = np.where(arrows["kind"] == ArrowKind.WAIT, self.spans["end"][arrows["tail"]], start[arrows["tail"]])
        backward = np.flatnonzero(tails > start[arrows["head"]])
        if len(backward):
            tail, head = (self.row(int(arrows[side][backward[0]])) for side in ("tail", "head"))
            raise TimelineError(f"an arrow goes back in time: from {tail} to {head}")
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and dicts, ready for JSON; `from_dict` gives an equal Timeline back."""
        context = asdict(self.context)
        return {
            "loaderviz": FORMAT,
            "context": {name: list(each) if isinstance(each, tuple) else each for name, each in context.items()},
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
            given = data["context"]
            context = given | {name: tuple(given.get(name, ())) for name in ("notes", "unpriced", "measured")}
            timeline = cls(
                _record(Context, context),
                tuple(_record(Lane, lane) for lane in data["lanes"]),
                _texts(data["names"], "names"),
                _texts(data["sources"], "sources"),
                {name: _column(data["spans"][name], dtype) for name, dtype in SPAN_COLUMNS.items()},
                {name: _column(data["arrows"][name], dtype) for name, dtype in ARROW_COLUMNS.items()},
                tuple(_record(Mark, mark | {"spans": tuple(mark["spans"])}) for mark in data["marks"]),
            )
            return timeline.self_check()
        except (KeyError, TypeError, IndexError, ValueError, OverflowError) as problem:
            if isinstance(problem, TimelineError):
                raise
            what = f"{type(problem).__name__}: {problem}"
            raise TimelineError(f"the timeline is damaged: {what}. Make it anew.") from problem

    def save(self, path: str | Path) -> Path:
        """Write the timeline as JSON; `Timeline.load` reads it back. Raises `NoFolderError` for a missing folder."""
        return write(path, json.dumps(self.to_dict()))

    @classmethod
    def load(cls, path: str | Path) -> Timeline:
        """Read what `save` wrote. Raises `TimelineError` for a damaged or foreign file, `NoFileError` for none."""
        try:
            data = json.loads(readable(path).read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as problem:  # bad JSON or bad UTF-8, or absurdly nested
            raise TimelineError(f"{path} is not a loaderviz timeline (no valid JSON: {problem})") from problem
        return cls.from_dict(data)

    def packed(self) -> str:
        """Return what `save` writes as a short text, for a place in another file; `unpacked` reads it."""
        return b64encode(zlib.compress(json.dumps(self.to_dict()).encode(), 1)).decode()

    @classmethod
    def unpacked(cls, text: str) -> Timeline:
        """Return the timeline of a `packed` text. Raises `TimelineError` for any other."""
        try:
            data = json.loads(zlib.decompressobj().decompress(b64decode(text), LARGEST))
        except (ValueError, RecursionError, zlib.error) as problem:
            raise TimelineError(f"the timeline is damaged: {problem}. Make it anew.") from problem
        return cls.from_dict(data)

    def view(
        self,
        color: str = "batch",
        operators: bool = False,
        title: str | None = None,
        window: tuple[int, int] | None = None,
        verdict: bool = True,
        advice: Advice | None = None,
    ) -> View:
        """Return the picture, which a notebook displays: zoom, select, play; see `loaderviz.view.View`.

        >>> shown = timeline.view(color="kind", advice=loaderviz.advise(timeline))  # the findings below it
        >>> shown.finding()
        'GPU computes 47 % of the time, 0 % of the copy is hidden, 2.05x the limit'
        """
        from loaderviz.view import View  # the one door to drawing: imported when it is used

        return View({"": self}, color, operators, title, window, verdict, advice={} if advice is None else {"": advice})

    def figure(
        self,
        color: str = "batch",
        operators: bool = False,
        title: str | None = None,
        window: tuple[int, int] | None = None,
    ) -> go.Figure:
        """Return the picture as a plain plotly figure of at most some 2,000 bars, to change by hand and to export."""
        return self.view(color, operators, title, window).figure()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return self.view()._repr_mimebundle_()


def _renumber(mark: Mark, place: Ints) -> Mark:
    first, second = (int(place[i]) if i >= 0 else -1 for i in mark.spans)
    return replace(mark, spans=(first, second))


# What a file says may be anything


Record = TypeVar("Record")
LARGEST = 1 << 32  # bytes of a packed timeline as JSON: what inflates to more is none
FAR = 2**62  # the largest number of a file: the difference of two still fits into 64 bits


def _record(kind: type[Record], data: dict[str, Any]) -> Record:
    """Return a dataclass made of plain data; raise TypeError unless each field has its type."""
    record = kind(**data)
    for name, hint in get_type_hints(kind).items():
        if not _fits(value := getattr(record, name), hint):
            raise TypeError(f"the {name} of a {kind.__name__.lower()} is {value!r}")
    return record


def _fits(value: Any, hint: Any) -> bool:
    origin, given = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in given
    if origin is UnionType:
        return any(_fits(value, each) for each in given)
    if origin is dict:
        return isinstance(value, dict) and all(isinstance(each, given[1]) for each in value.values())
    if origin is tuple:
        as_many = given[-1] is Ellipsis or len(value) == len(given)
        return isinstance(value, tuple) and as_many and all(_fits(each, given[0]) for each in value)
    return isinstance(value, hint) and not isinstance(value, bool) and (hint is not int or abs(value) <= FAR)


def _texts(data: Any, what: str) -> tuple[str, ...]:
    if not isinstance(data, list) or not all(isinstance(text, str) for text in data):
        raise TypeError(f"its {what} are not a list of texts")
    return tuple(data)


def _column(data: Any, dtype: type[np.integer[Any]]) -> Ints:
    values, limits = np.array(data), np.iinfo(dtype)
    if values.ndim != 1 or (len(values) and values.dtype.kind != "i"):
        raise TypeError("a column is not a list of whole numbers")
    if len(values) and (values.min() < max(limits.min, -FAR) or values.max() > min(limits.max, FAR)):
        raise OverflowError(f"a column has numbers beyond {dtype.__name__}")
    return values.astype(dtype)


def _check_columns(timeline: Timeline) -> None:
    spans, lengths = timeline.spans, {len(values) for values in timeline.spans.values()}
    if len(lengths) != 1 or len({len(values) for values in timeline.arrows.values()}) != 1:
        raise TimelineError(f"the columns have different lengths: {sorted(lengths)}")
    if len(backward := np.flatnonzero(spans["end"] < spans["start"])):
        raise TimelineError(f"a span ends before it starts: {timeline.row(int(backward[0]))}")
    limits = {"lane": len(timeline.lanes), "name": len(timeline.names), "kind": len(Kind), "cause": len(Cause)}
    limits |= {"source": len(timeline.sources), "tail": len(timeline), "head": len(timeline)}
    for column, limit in limits.items():
        values, least = (timeline.arrows | spans)[column], -1 if column == "source" else 0
        if len(values) and not (values.min() >= least and values.max() < limit):
            raise TimelineError(f"{column!r} must lie in {least}..{limit - 1}, has {values.min()}..{values.max()}")
    for mark in timeline.marks:
        if not (
            0 <= mark.lane < max(1, len(timeline.lanes)) and all(-1 <= span < len(timeline) for span in mark.spans)
        ):
            raise TimelineError(f"a mark points at a lane or span that there is not: {mark}")


# How a producer makes one


class Ids(dict[Any, int]):
    """Numbers its keys in the order in which they are asked for."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


class TimelineBuilder:
    """Collects spans, arrows and marks, and builds the frozen Timeline from them."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._lanes: dict[tuple[Any, ...], int] = {}  # by what makes a `Lane`
        self._values: list[Any] = []  # of one span after the other: as tuples they would be garbage to be looked at
        self._arrows: list[tuple[int, int, int]] = []
        self._marks: list[Mark] = []

    def lane(
        self, name: str, group: Literal["host", "device"], role: str = "stream", number: int = 0, device: int = 0
    ) -> int:
        """Return the index of this lane, made on first use; the arguments are those of `Lane`."""
        return self._lanes.setdefault((name, group, role, number, device), len(self._lanes))

    def span(
        self,
        start: int,
        end: int,
        lane: int,
        kind: int,
        name: str,
        batch: int = -1,
        nbytes: int = -1,
        correlation: int = -1,
        pinned: bool | None = None,
        cause: int = int(Cause.NONE),
        source: str = "",
    ) -> int:
        """Add a span of a `Kind`, and a `Cause`; times in ns. Return its number, to be used in `arrow`."""
        values = self._values
        values += (start, end, lane, kind, name, batch, nbytes, correlation, pinned, cause, source)
        return len(values) // WIDTH - 1

    def arrow(self, tail: int, head: int, kind: ArrowKind) -> None:
        """Join two spans by their numbers."""
        self._arrows.append((tail, head, kind))

    def __len__(self) -> int:
        return len(self._values) // WIDTH

    def place(self, span: int) -> tuple[int, int, int]:
        """Return start [ns], end [ns] and lane of a span by its number."""
        start, end, lane = self._values[span * WIDTH : span * WIDTH + 3]
        return start, end, lane

    def mark(
        self, time: int, lane: int, kind: str, text: str, spans: tuple[int, int] = (-1, -1), report: str = ""
    ) -> None:
        """Add a mark at `time` [ns]."""
        self._marks.append(Mark(time, lane, kind, text, spans, report))

    def rest(self, since: int) -> TimelineBuilder:
        """Return a builder that has the spans from number `since` on, without arrows and marks."""
        other = copy(self)
        other._values, other._arrows, other._marks = self._values[since * WIDTH :], [], []
        other._lanes = copy(self._lanes)
        return other

    def build(self) -> Timeline:
        """Return the Timeline, its spans in order of start."""
        names, sources = Ids(), Ids()
        columns = {name: self._values[place::WIDTH] for place, name in enumerate(SPAN_COLUMNS)}
        columns["name"] = [names[name] for name in columns["name"]]
        columns["source"] = [sources[source] if source else -1 for source in columns["source"]]
        columns["pinned"] = [-1 if pinned is None else pinned for pinned in columns["pinned"]]
        joins = np.array(self._arrows, np.int64).reshape(-1, len(ARROW_COLUMNS))
        return Timeline(
            self.context,
            tuple(Lane(*lane) for lane in self._lanes),
            tuple(names),
            tuple(sources),
            {name: np.fromiter(columns[name], dtype) for name, dtype in SPAN_COLUMNS.items()},
            {name: joins[:, i].astype(dtype) for i, (name, dtype) in enumerate(ARROW_COLUMNS.items())},
            tuple(self._marks),
        ).sorted()
