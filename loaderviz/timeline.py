"""Timeline: what happened, when, and in which lane. The middle of loaderviz.

Every producer (the emulator, the profiler, a trace file) makes a `Timeline`, with a `TimelineBuilder`; every consumer
(metrics, figures, exports) reads one. It is frozen and columnar: numpy arrays with one entry per span, times in integer
nanoseconds. It holds no tensors and knows nothing of torch or plotly.
"""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from loaderviz import words
from loaderviz.batches import BATCH_RANGE
from loaderviz.errors import LoadervizError
from loaderviz.files import Source, TooLargeError, check_counts, looks_like, readable, write
from loaderviz.version import __version__

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
    """Why the host waits; of a fetch, what it does for the longest."""

    NONE = 0
    STAGING = 1  # a pageable copy goes through the driver's staging buffer (R1, R7)
    SYNCHRONIZE = 2  # a stream, event or device synchronise, `.item()` among them (R25)
    QUEUE_FULL = 3  # the launch queue has no free place (R24)
    PAGE_LOCKING = 4  # new page-locked memory (R13, R44)
    ALLOCATION = 5  # cudaFree of what may be in use (R13)
    DATA = 6  # the next batch is not ready
    INPUT = 7  # a fetch waits for its source: a network, a lock, another process
    READ = 8  # it reads files
    DECODE = 9  # it decodes pictures or sound
    TRANSFORM = 10  # it runs other code of the data set
    COLLATE = 11  # it makes a batch of samples
    THREAD = 12  # another thread of the program: a lock, queue, event, future or join (R51)
    GIL = 13  # the lock of Python's interpreter, which another thread has (R53)

    @property
    def words(self) -> str:
        """The cause as a reader sees it, such as "queue full"."""
        return _WORDS.get(self.name, self.name.lower().replace("_", " "))


_WORDS = {
    "DATA": "waiting for data",
    "PAGE_LOCKING": "page-locking",
    "INPUT": "waiting for its source",
    "READ": "reading files",
    "DECODE": "decoding",
    "TRANSFORM": "the data set's own code",
    "COLLATE": "collating",
    "THREAD": "waiting for a thread",
    "GIL": "waiting for Python's lock",
}
ABSENT = "in collectives others may wait for"  # ranks that were not read
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


class Look(NamedTuple):
    """From which time [ns] on, and for how many ns, the main thread was in a line of the program."""

    time: int
    lasts: int
    line: str

    @property
    def moment(self) -> int:
        """When it was looked [ns]: the end of the time for which the look stands."""
        return self.time + self.lasts


class Message(NamedTuple):
    """What a collective was asked to move; the launch of its kernel has this `correlation`.

    `name` is torch's ("allreduce", "_allgather_base"), `nbytes` the size as nccl-tests count it: all that a rank gives
    or gets. `ranks` are those of the process group that is named `group`. None, or "": not known.
    """

    correlation: int
    name: str
    nbytes: int | None
    dtype: str
    group: str
    ranks: int | None


@dataclass(frozen=True)
class Context:
    """Where a timeline comes from; all of it is shown to the reader.

    `origin` is "emulated", "recorded" or "file"; `samples` counts the samples of all batches handed out (None: not
    known); `zero` is time 0 in ns of Unix time (None: not known); `host` says whose host costs are in it, `cores` how
    many CPU cores that has (None: not known); `notes` lists what was thinned, dropped or assumed; of these, `missing`
    are what happened, or may have, and is not in it, `whole` tell of a whole recording, so that a part needs them not,
    and `cut` says which part this is of a recording of `part_of` ns (None: it is whole).
    `unpriced` names what the data set did here and costs nothing in it ("data set": its own Python; "waiting"),
    `measured` what was measured with this machine's clock on the wall ("waiting").
    `looks`: where the main thread was seen in a line of the program ("file:line") that is in no operator of torch.
    `messages`: what collectives were asked to move, of those that tell.
    `faults`: what was seen to be wrong while it was recorded, by the kind of its finding, with the line after a blank
    where it is known; "float64" is for wide-dtype, too, "loader-in-thread" says that another thread than the loop's
    takes batches, "shared-lock" where fetches take a lock that processes share, "not-pinned" the class of a batch, of
    which torch does not know what to pin.
    `sent` is the share (0..1) of what workers' fetches compute that it takes to send the batches to another process.
    `shared_memory` [bytes] is what that machine has for batches on their way from workers (None: not known).
    `usage`: what a batch took, on average, beside its fetch: "others", ns of the processor in other threads of its
    worker, "busy", ns in which its fetch ran or "lacked" a core, and those in which it did, bytes "read" of files that
    are not mapped, those of them that came from the "disk" itself, and bytes brought back from "swap"; of an emulated
    one "locked", ns in which its fetch had the lock that is taken for longest, if there is one, and "unlocked waits",
    in which it waited for all but locks. What most batches are for a worker that sends them: "tensors", how many, and
    of an emulated one their new "shared" bytes, and bytes that are "pickled", of which so many are of "arrays". In all:
    bytes of "memory" of its own by which a worker grew, but for the largest jump, "loop lacked", ns in which the thread
    of the loop found no core, and how many batches an "epoch" has. Only what is more than 0.
    """

    device: str = "unknown device"
    origin: str = "file"
    host: str = ""
    clock: str = "ns"
    samples: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    cut: str = ""
    part_of: int | None = None
    unpriced: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()
    cores: int | None = None
    zero: int | None = None
    looks: tuple[Look, ...] = ()
    messages: tuple[Message, ...] = ()
    faults: tuple[str, ...] = ()
    sent: float = 0.0
    shared_memory: int | None = None
    usage: dict[str, int] = field(default_factory=dict)


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
    waited: int = 0

    @property
    def duration(self) -> int:
        """Length in ns."""
        return self.end - self.start


# The timeline


# Of the JSON form. It is one more as soon as a saved timeline can have what none of a released version has: a kind, a
# cause, a column, a field. Numbers of kinds stay, a new field has a default, and a new column a value in `_LATER`.
FORMAT = 2
Paths = Literal["names", "full"]
Key = TypeVar("Key")
Value = TypeVar("Value")
Ints = npt.NDArray[np.integer[Any]]
Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]  # over the spans: which of them
Floats = npt.NDArray[np.float64]


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
    "waited": np.int64,
}
WIDTH = len(SPAN_COLUMNS)
ARROW_COLUMNS: dict[str, type[np.integer[Any]]] = {"tail": np.int64, "head": np.int64, "kind": np.int8}
_LATER = {"waited": (2, 0)}  # columns that the first format has not: since which one, and what older files have in it
_KINDS, _CAUSES = tuple(Kind), tuple(Cause)  # by number: quicker than to call the enum


@dataclass(frozen=True, eq=False)
class Timeline:
    """Spans in lanes, arrows between them, marks beside them, and where they come from.

    Columns (numpy, one entry per span, sorted by start): `start`, `end` [ns]; `lane` (index into `lanes`); `kind`
    (`Kind`); `name` (index into `names`); `batch` (-1: none); `nbytes` (-1: not known); `correlation` (joins a host
    call and its device work, -1: none); `pinned` (1 pinned, 0 pageable, -1: does not apply); `cause` (`Cause`);
    `source` (index into `sources`, `file:line`, -1: not known); `waited` [ns] of a fetch, in which it needs no core (it
    sleeps, or waits for a disk, a socket or a lock). Arrows: `tail` and `head` are span indices.
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

    @cached_property
    def lines(self) -> dict[str, str]:
        """What people see of a source, for each in `sources` and of a look: "train.py:31", without the folders."""
        return words.places([*self.sources, *(look.line for look in self.context.looks)])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("results", "lines")}

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
        batch, nbytes, correlation, pinned, cause, source, waited = rest
        return Span(
            start,
            end,
            self.lanes[lane],
            _KINDS[kind],
            self.names[name],
            batch,
            nbytes,
            correlation,
            None if pinned < 0 else bool(pinned),
            _CAUSES[cause],
            self.sources[source] if source >= 0 else "",
            waited,
        )

    def rows(self, *kinds: Kind) -> Iterator[Span]:
        """Iterate over the spans in order of start; only of `kinds`, if any are given."""
        return map(self.row, np.flatnonzero(self.where(*kinds or Kind)).tolist())

    def select(
        self,
        kind: Kind | Sequence[Kind] | None = None,
        lane: int | Sequence[int] | Callable[[Lane], object] | None = None,
        batch: int | Sequence[int] | Ints | None = None,
        cause: Cause | Sequence[Cause] | None = None,
    ) -> Mask:
        """Return a mask over the spans, shape `(len(self),)`: True where all that is asked holds; None asks nothing.

        Each is one value or several: `lane` as indices into `lanes`, or as a test that a `Lane` passes.

        >>> mask = timeline.select(Kind.COMPUTE, lambda lane: lane.group == "device")
        >>> {span.kind.name for span in timeline.rows_at(np.flatnonzero(mask))}
        {'COMPUTE'}
        """
        if callable(lane):
            lane = [number for number, each in enumerate(self.lanes) if lane(each)]
        asked = {"kind": kind, "lane": lane, "batch": batch, "cause": cause}
        masks = [np.isin(self.spans[column], values) for column, values in asked.items() if values is not None]
        return np.logical_and.reduce(masks) if masks else np.ones(len(self), bool)

    def where(self, *kinds: Kind) -> Mask:
        """Return a mask over the spans, shape `(len(self),)`: True where the kind is one of `kinds`."""
        mask = np.zeros(len(self), bool)
        for kind in kinds:
            mask |= self.spans["kind"] == kind
        return mask

    def named(self, test: Callable[[str], object]) -> Mask:
        """Return a mask: True for spans whose name passes the test, which is asked once for each name."""
        return np.array([bool(test(name)) for name in self.names], bool)[self.spans["name"]]

    def in_lanes(self, test: Callable[[Lane], object]) -> Mask:
        """Return a mask: True for spans in lanes that pass the test."""
        return np.array([bool(test(lane)) for lane in self.lanes], bool)[self.spans["lane"]]

    def places(self, spans: Sequence[int] | Ints) -> Mask:
        """Return a mask: True for the spans of these numbers."""
        mask = np.zeros(len(self), bool)
        mask[np.asarray(spans, np.int64)] = True
        return mask

    def call_of(self, work: Span) -> Span | None:
        """Return the host's call that put this work into its stream, None where none is known."""
        calls = np.flatnonzero(self.where(Kind.API) & (self.correlation == work.correlation))
        return self.row(int(calls[0])) if work.correlation >= 0 and len(calls) else None

    def by_lane(self) -> list[Numbers]:
        """Return for each lane its spans, in order of start."""
        return grouped(self.spans["lane"], len(self.lanes))

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
        former, whole = self.context, self.context.part_of or self.duration
        note = f"{words.duration(end - start)} of {words.duration(whole)} shown"
        note += f", {words.count(trimmed, 'span')} cut at the edges" if trimmed else ""
        notes = *(each for each in former.notes if each != former.cut), note
        part = replace(self, context=replace(former, notes=notes, cut=note, part_of=whole)).only(keep)
        part.spans["start"], part.spans["end"] = np.maximum(part.start, start), np.minimum(part.end, end)
        return replace(part, marks=tuple(mark for mark in part.marks if start <= mark.time <= end)).sorted()

    def only(self, keep: Mask) -> Timeline:
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
        # a stream does one thing at a time (R16); traces keep real overlap in sub-lanes
        work = np.flatnonzero(self.in_lanes(lambda lane: lane.group == "device") & (spans["kind"] != Kind.RANGE))
        work = work[np.lexsort((spans["end"][work], spans["start"][work], spans["lane"][work]))]
        start, end, lane = (spans[column][work] for column in ("start", "end", "lane"))
        if len(clash := np.flatnonzero((start[1:] < end[:-1]) & (lane[1:] == lane[:-1]))):
            first, second = (self._told(work[clash[0] + step]) for step in (0, 1))
            raise TimelineError(f"two spans overlap in {self.lanes[lane[clash[0]]].name[:60]}: {first} and {second}")
        start, arrows = self.spans["start"], self.arrows
        tails = np.where(arrows["kind"] == ArrowKind.WAIT, self.spans["end"][arrows["tail"]], start[arrows["tail"]])
        backward = np.flatnonzero(tails > start[arrows["head"]])
        if len(backward):
            tail, head = (self._told(arrows[side][backward[0]]) for side in ("tail", "head"))
            raise TimelineError(f"an arrow goes back in time: from {tail} to {head}")
        return self

    def _told(self, index: int) -> str:
        start, end, lane, _, name, *_ = self.row(index)
        return f"{name[:60]!r} in {lane.name[:60]} from {start:,} to {end:,} ns"

    def to_dict(self, paths: Paths = "names") -> dict[str, Any]:
        """Return plain lists and dicts, ready for JSON; `from_dict` gives an equal Timeline back.

        Lines of code have the names of their files alone, as in all that is made to be shown; with `paths="full"` the
        folders, too. Timelines that differ in folders alone are equal. Raises `ValueError` for another value.
        """
        if paths not in get_args(Paths):
            raise ValueError(f'paths={paths!r}: give "names", or "full" for file names with their folders')
        shown = self.lines if paths == "names" else {source: source for source in self.lines}
        looks = [look._replace(line=shown[look.line]) for look in self.context.looks]
        return {
            "loaderviz": FORMAT,
            "version": __version__,
            "context": _plain(self.context) | {"versions": dict(self.context.versions), "looks": looks},
            "lanes": [_plain(lane) for lane in self.lanes],
            "names": list(self.names),
            "sources": [shown[source] for source in self.sources],
            "spans": {column: values.tolist() for column, values in self.spans.items()},
            "arrows": {column: values.tolist() for column, values in self.arrows.items()},
            "marks": [_plain(mark) for mark in self.marks],
        }

    @classmethod
    def from_dict(cls, data: Any) -> Timeline:
        """Build a Timeline from what `to_dict` gave, of this format or a former one.

        Raises `TimelineError` on anything else; for a newer format it says which loaderviz has written it.
        """
        version = _format_of(data)
        try:
            spans, arrows = _entry(data, "spans", dict), _entry(data, "arrows", dict)
            lanes, marks = _entry(data, "lanes", list), _entry(data, "marks", list)
            check_counts(lane=len(lanes), mark=len(marks))  # before they are made
            context = dict(_entry(data, "context", dict))
            if version == 1:
                context.pop("lines", None)  # some have it: lines without their times
            starts = spans.get("start")
            many = len(starts) if isinstance(starts, (list, np.ndarray)) else 0
            former = {name: [value] * many for name, (since, value) in _LATER.items() if version < since} | spans
            timeline = cls(
                _record(Context, context),
                tuple(_record(Lane, lane) for lane in lanes),
                _texts(data, "names"),
                _texts(data, "sources"),
                {name: _column(former, name, dtype) for name, dtype in SPAN_COLUMNS.items()},
                {name: _column(arrows, name, dtype) for name, dtype in ARROW_COLUMNS.items()},
                tuple(_record(Mark, mark) for mark in marks),
            ).self_check()
            if timeline.duration > LONGEST_RUN:
                raise _DamageError(f"it lasts {words.duration(timeline.duration)}, which no run does")
        except (_DamageError, TimelineError) as problem:
            raise TimelineError(f"the timeline is damaged: {problem}. Make it anew.") from problem
        except TooLargeError as problem:
            raise TimelineError(str(problem)) from problem
        return timeline

    def save(self, path: str | Path, paths: Paths = "names") -> Path:
        """Write the timeline as JSON; `Timeline.load` reads it back. Raises `NoFolderError` for a missing folder.

        Lines of code are named without their folders ("train.py:31"); with `paths="full"` these are kept.
        """
        return write(path, json.dumps(self.to_dict(paths)))

    @classmethod
    def load(cls, path: str | Path) -> Timeline:
        """Read what `save` wrote, as it is or gzip-ed.

        Raises `TimelineError` for a damaged, hostile or foreign file, `NoFileError` for none.
        """
        try:
            return cls._of(Source(readable(path)))
        except TimelineError as problem:
            raise TimelineError(f"{path}: {problem}") from problem

    def packed(self, paths: Paths = "names") -> str:
        """Return what `save` writes as a short text, for a place in another file; `unpacked` reads it."""
        return b64encode(zlib.compress(json.dumps(self.to_dict(paths)).encode(), 1)).decode()

    @classmethod
    def unpacked(cls, text: str) -> Timeline:
        """Return the timeline of a `packed` text. Raises `TimelineError` for any other."""
        try:
            packed = b64decode(text, validate=True)
        except ValueError as problem:
            raise TimelineError("the timeline is damaged: its text is not of base64. Make it anew.") from problem
        return cls._of(Source(Path(), packed or b"\x00"))

    @classmethod
    def _of(cls, source: Source) -> Timeline:
        try:
            content = source.whole()
            if content.lstrip()[:1] != b"{":
                raise _DamageError(f"it looks like {looks_like(content)}")
            if source.damage:
                raise _DamageError(source.damage)
            return cls.from_dict(_parsed(content))
        except _DamageError as problem:
            raise TimelineError(f"this is not a loaderviz timeline: {problem}") from problem
        except TooLargeError as problem:
            raise TimelineError(str(problem)) from problem

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


def grouped(keys: Ints, count: int, order: Ints | None = None) -> list[Numbers]:
    """Return for each key below `count` the places that have it, in order; of some places alone, sorted by their keys.

    >>> [places.tolist() for places in grouped(np.array([1, 0, 1]), 3)]
    [[1], [0, 2], []]
    """
    if order is None:
        order = np.argsort(keys, kind="stable")
    return np.split(order, np.searchsorted(keys[order], np.arange(1, count))) if count else []


def gathered(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Return for each key the values that come with it, both in order.

    >>> gathered([("a", 1), ("b", 2), ("a", 3)])
    {'a': [1, 3], 'b': [2]}
    """
    found: dict[Key, list[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def _renumber(mark: Mark, place: Ints) -> Mark:
    first, second = (int(place[i]) if i >= 0 else -1 for i in mark.spans)
    return replace(mark, spans=(first, second))


# What a file says may be anything. What is wrong with it is told in the words of JSON.


Record = TypeVar("Record")
FAR = 2**62  # the largest number of a file: the difference of two still fits into 64 bits
LONGEST_RUN = 2**53  # ns, 104 days
_LONG = re.compile(r'(\w":\s*)\[([^\[\]{}"]{4096,})\]')  # a list of numbers, which is no part of a text
_AT_ONCE = 1 << 20  # letters of such a list whose numbers are Python's


class _DamageError(ValueError):
    """A value of a file is not what belongs there."""


def _parsed(content: bytes) -> Any:
    """Return the JSON of a file, its long lists of numbers as arrays: as Python's they take five times the room."""
    arrays: list[Any] = []

    def kept(found: re.Match[str]) -> str:
        numbers, begin, pieces = found[2], 0, []
        while begin < len(numbers):
            end = numbers.find(",", begin + _AT_ONCE)
            end = len(numbers) if end < 0 else end
            pieces.append(np.array(json.loads(f"[{numbers[begin:end]}]")))
            begin = end + 1
        arrays.append(np.concatenate(pieces))
        return f"{found[1]}NaN"  # which JSON has not

    try:
        text = _LONG.sub(kept, content.decode())
        check_counts(list=text.count("[") + text.count("{"), character=len(text))
        rest = iter(arrays)
        return json.loads(text, parse_constant=lambda _: next(rest, None))
    except TooLargeError:
        raise
    except (ValueError, RecursionError) as problem:
        why = {RecursionError: "it is nested too deeply", UnicodeDecodeError: "it is not UTF-8"}
        told = getattr(problem, "msg", why.get(type(problem), "a number has too many digits"))
        raise _DamageError(f"no valid JSON: {told}") from problem


def _format_of(data: Any) -> int:
    """Return the format of a saved timeline. Raises `TimelineError` for none, and for one that is newer than these."""
    version = data.get("loaderviz") if isinstance(data, dict) else None
    if type(version) is not int or version < 1:
        kind = f"its 'loaderviz' entry is {_said(version)}" if isinstance(data, dict) else f"it is {_said(data)}"
        raise TimelineError(
            f"this is not a timeline that loaderviz saved: {kind}. Traces of other tools are read by loaderviz.read()."
        )
    if version > FORMAT:
        by = words.one_line(str(data.get("version", "")), 20)
        raise TimelineError(
            f"this timeline has format {_said(version)}, of loaderviz {by or 'of a later version'}, and this is "
            f"loaderviz {__version__}, which reads formats 1 to {FORMAT}. Install the newer one: "
            "python -m pip install --upgrade loaderviz"
        )
    return version


def _plain(record: Any) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(record).items()}


def _said(value: Any) -> str:
    """Return a value as JSON has it, a long one by its kind."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, (list, tuple)):
        return "a list"
    if isinstance(value, np.ndarray):
        return "a list of numbers"
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _entry(data: dict[str, Any], name: str, kind: type) -> Any:
    """Return an entry that is to be an object, or a list."""
    if name not in data:
        raise _DamageError(f"it has no {name!r}")
    if not isinstance(data[name], kind):
        raise _DamageError(f"its {name!r} is {_said(data[name])}, where {_said(kind())} belongs")
    return data[name]


def _record(kind: type[Record], data: Any) -> Record:
    """Return a dataclass made of an object; raise an error unless it has its fields, each of its type."""
    what = kind.__name__.lower()
    if not isinstance(data, dict):
        raise _DamageError(f"a {what} is {_said(data)}, where an object belongs")
    types, needed = _FIELDS[what]
    if missing := needed - data.keys():
        raise _DamageError(f"a {what} has no {min(missing)!r}")
    if unknown := data.keys() - types:
        raise _DamageError(f"a {what} has {_said(min(unknown))}, which is none of {', '.join(types)}")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
    for name, value in values.items():
        if not _fits(value, types[name]):
            raise _DamageError(f"the {name} of a {what} is {_said(value)}")
    for name, row in (("looks", Look), ("messages", Message)):
        if name in values:
            values[name] = tuple(row(*each) for each in values[name])
    return kind(**values)


def _fits(value: Any, hint: Any) -> bool:
    origin, given = get_origin(hint), get_args(hint)
    if origin is Literal:
        return isinstance(value, str) and value in given
    if origin is UnionType:
        return any(_fits(value, each) for each in given)
    if origin is dict:
        return isinstance(value, dict) and all(isinstance(each, given[1]) for each in value.values())
    if origin is tuple:
        many = given[-1] is Ellipsis
        return (
            isinstance(value, tuple)
            and (many or len(value) == len(given))
            and all(_fits(each, given[0]) for each in value)
        )
    if hint in _ROWS:
        as_many = isinstance(value, list | tuple) and len(value) == len(_ROWS[hint])
        return as_many and all(map(_fits, value, _ROWS[hint]))
    return isinstance(value, hint) and not isinstance(value, bool) and (hint is not int or abs(value) <= FAR)


_ROWS = {row: tuple(get_type_hints(row).values()) for row in (Look, Message)}
_FIELDS = {  # of each record the types of its fields, and the names of those that it cannot do without
    kind.__name__.lower(): (
        get_type_hints(kind),
        {each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING},
    )
    for kind in (Context, Lane, Mark)
}


def _texts(data: dict[str, Any], name: str) -> tuple[str, ...]:
    for text in (texts := _entry(data, name, list)):
        if not isinstance(text, str):
            raise _DamageError(f"one of its {name!r} is {_said(text)}, where a text belongs")
    check_counts(character=sum(map(len, texts)))
    return tuple(texts)


def _column(data: dict[str, Any], name: str, dtype: type[np.integer[Any]]) -> Ints:
    values, limits = data.get(name), np.iinfo(dtype)
    if not isinstance(values, (list, np.ndarray)):
        raise _DamageError(f"its {name!r} is {_said(values)}, where a list of whole numbers belongs")
    for value in values if isinstance(values, list) else ():
        if type(value) is not int:
            raise _DamageError(f"one of its {name!r} is {_said(value)}, where a whole number belongs")
    values = np.array(values)
    if len(values) and values.dtype.kind != "i":
        raise _DamageError(f"its {name!r} has other values than whole numbers of 64 bits")
    if len(values) and (values.min() < max(limits.min, -FAR) or values.max() > min(limits.max, FAR)):
        raise _DamageError(f"its {name!r} has numbers beyond {limits.bits} bits")
    return values.astype(dtype)


_OR_NONE = "source", "batch", "nbytes", "pinned"  # columns in which -1 stands for none


def _check_columns(timeline: Timeline) -> None:
    spans, lengths = timeline.spans, {len(values) for values in timeline.spans.values()}
    if len(lengths) != 1 or len({len(values) for values in timeline.arrows.values()}) != 1:
        raise TimelineError(f"the columns have different lengths: {sorted(lengths)}")
    if len(backward := np.flatnonzero(spans["end"] < spans["start"])):
        raise TimelineError(f"a span ends before it starts: {timeline._told(backward[0])}")
    limits = {
        "lane": len(timeline.lanes),
        "name": len(timeline.names),
        "kind": len(Kind),
        "cause": len(Cause),
        "source": len(timeline.sources),
        "tail": len(timeline),
        "head": len(timeline),
        "pinned": 2,
        **dict.fromkeys(("batch", "nbytes", "waited"), FAR + 1),
    }
    devices = {lane.device for lane in timeline.lanes}
    check_counts(event=len(timeline), lane=len(timeline.lanes), device=len(devices), mark=len(timeline.marks))
    for column, limit in limits.items():
        values, least = (timeline.arrows | spans)[column], -1 if column in _OR_NONE else 0
        if len(values) and not (values.min() >= least and values.max() < limit):
            raise TimelineError(f"{column!r} must lie in {least}..{limit - 1}, has {values.min()}..{values.max()}")
    for mark in timeline.marks:
        if not (
            0 <= mark.lane < max(1, len(timeline.lanes)) and all(-1 <= span < len(timeline) for span in mark.spans)
        ):
            told = f"lane {mark.lane}, spans {mark.spans[0]} and {mark.spans[1]}"
            raise TimelineError(f"a mark points at a lane or span that there is not: {told}")
    context = timeline.context
    amounts = [  # all of a context that is a count, a size or a share
        *((name, getattr(context, name)) for name in ("samples", "cores", "sent", "shared_memory")),
        *context.usage.items(),
        *(("lasts", look.lasts) for look in context.looks),
        *((name, getattr(message, name)) for message in context.messages for name in ("nbytes", "ranks")),
    ]
    for name, value in amounts:
        if not 0 <= (value or 0) <= FAR:
            raise TimelineError(f"its {name!r} is {value}, and nothing has less than 0, or more than {FAR}")


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
        self._values: Any = []  # of one span after the other: as tuples they would be garbage to be looked at
        self._first = 0  # the number of the first: those before it were dropped
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
        waited: int = 0,
    ) -> int:
        """Add a span of a `Kind`, and a `Cause`; times in ns. Return its number, to be used in `arrow`."""
        values = self._values
        values += (start, end, lane, kind, name, batch, nbytes, correlation, pinned, cause, source, waited)
        return self._first + len(values) // WIDTH - 1

    def arrow(self, tail: int, head: int, kind: ArrowKind) -> None:
        """Join two spans by their numbers."""
        self._arrows.append((tail, head, kind))

    def __len__(self) -> int:
        return self._first + len(self._values) // WIDTH

    def place(self, span: int) -> tuple[int, int, int]:
        """Return start [ns], end [ns] and lane of a span by its number; -1, -1 and 0 if it was dropped."""
        at = (span - self._first) * WIDTH
        start, end, lane = self._values[at : at + 3] if at >= 0 else (-1, -1, 0)
        return start, end, lane

    def lane_of(self, span: int) -> str:
        """Return the name of the lane of a span, "main" if it was dropped."""
        return str(list(self._lanes)[self.place(span)[2]][0])

    def drop(self, before: int) -> None:
        """Forget the first spans, up to one that ends at `before` [ns] or later. The others keep their numbers."""
        ends = self._values[1::WIDTH]
        count = next((place for place, end in enumerate(ends) if end >= before), len(ends))
        del self._values[: count * WIDTH]
        self._first += count

    def forget(self) -> None:
        """Keep no more than the last span from now on."""
        self._first, self._values = len(self), deque(maxlen=WIDTH)

    def mark(
        self, time: int, lane: int, kind: str, text: str, spans: tuple[int, int] = (-1, -1), report: str = ""
    ) -> None:
        """Add a mark at `time` [ns]."""
        self._marks.append(Mark(time, lane, kind, text, spans, report))

    def rest(self, since: int) -> TimelineBuilder:
        """Return a builder that has the spans from number `since` on, without arrows and marks."""
        other = copy(self)
        values = list(self._values)[max(0, since - self._first) * WIDTH :]
        other._first, other._values, other._arrows, other._marks = 0, values, [], []
        other._lanes = copy(self._lanes)
        return other

    def _numbers(self, first: int, second: int) -> tuple[int, int]:
        return max(-1, first - self._first), max(-1, second - self._first)

    def build(self) -> Timeline:
        """Return the Timeline, its spans in order of start."""
        names, sources = Ids(), Ids()
        columns = {name: self._values[place::WIDTH] for place, name in enumerate(SPAN_COLUMNS)}
        columns["name"] = [names[name] for name in columns["name"]]
        columns["source"] = [sources[source] if source else -1 for source in columns["source"]]
        columns["pinned"] = [-1 if pinned is None else pinned for pinned in columns["pinned"]]
        joins = np.array(self._arrows, np.int64).reshape(-1, len(ARROW_COLUMNS)) - [self._first, self._first, 0]
        joins = joins[(joins >= 0).all(1)]
        return Timeline(
            self.context,
            tuple(Lane(*lane) for lane in self._lanes),
            tuple(names),
            tuple(sources),
            {name: np.fromiter(columns[name], dtype) for name, dtype in SPAN_COLUMNS.items()},
            {name: joins[:, i].astype(dtype) for i, (name, dtype) in enumerate(ARROW_COLUMNS.items())},
            tuple(replace(mark, spans=self._numbers(*mark.spans)) for mark in self._marks),
        ).sorted()
