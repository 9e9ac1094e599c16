"""Trace files and real runs -> Timeline; here `read`, which takes one file or several.

places.py    what `read` is given -> the files to read: of a folder, a pattern, an archive, an open file
source.py    the bytes of a file, gzip or not, damaged or not, as a stream of event texts in bounded memory
kineto.py    torch.profiler's file -> RawTrace: event texts -> numpy columns
nsight.py    an Nsight Systems export -> RawTraces
assemble.py  RawTraces, one per rank -> Timeline: lanes, launches, waits, notes on the quality
steps.py     which batch each span is for, and which steps are kept
live.py      a real run: torch.profiler, and what the main thread's DataLoaders do (`loaderviz.record`)
workers.py   what their workers and pin thread do, noted there
merge.py     the trace of a real run + these notes -> Timeline

Only live and workers import torch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import numpy as np

from loaderviz import words
from loaderviz.batches import BATCH_RANGE
from loaderviz.files import SQLITE, Source, TooLargeError
from loaderviz.progress import told
from loaderviz.timeline import ABSENT, Kind, Timeline, TimelineError
from loaderviz.traces.assemble import Lanes, assemble, nothing_drawn
from loaderviz.traces.kineto import RawTrace, read_kineto, told_rank
from loaderviz.traces.places import PathLike, found
from loaderviz.traces.source import Document, TraceError
from loaderviz.traces.steps import BY_LOADER, COUNTED, checked_part, counted, marks_of, noted, of_steps, of_window
from loaderviz.vendors import Role

if TYPE_CHECKING:
    from concurrent.futures import Executor

__all__ = ["TraceError", "read"]

_TEMPORARY = re.compile(r"\S*[/\\]loaderviz-\w+[/\\]")  # where members of archives and open files are copied to
_MANY = 6  # files that are left out; of more only their number is told

Given = PathLike | BinaryIO
Read = TypeVar("Read")  # what is made of a file


def read(
    path: Given | Iterable[Given],
    *,
    executor: Executor | None = None,
    ranks: Iterable[int] | None = None,
    steps: slice | None = None,
    window: tuple[int, int] | None = None,
) -> Timeline:
    """Return the Timeline of a trace file, of several files with one rank each, or of some of their `ranks`.

    Several files are those of a folder and its folders, of a pattern such as "run/rank?.json", of an archive (zip, tar)
    or of a list. An open file is read as it is. A file in a folder or archive that is no trace is left out, and a note
    says so. The `map` of an `executor`, such as a `concurrent.futures.ProcessPoolExecutor`, reads the files. Without an
    executor they are read one after the other.

    The function reads JSON of torch.profiler (Kineto) of 2021 to today, plain or gzip, of CUDA, ROCm, XPU, MTIA or the
    CPU alone. It reads SQLite exports of Nsight Systems. It reads what `export.to_chrome_trace` and `Timeline.save`
    wrote, and gives back an equal timeline. Times are integer ns, and time 0 is the first event. If nothing marks the
    steps (`ProfilerStep#3`, "batch 3"), they are counted by `DataLoader.__next__`, else by `optimizer.step()`, and a
    note says so. Several ranks are aligned by the clocks in their files, and where these differ, by the ends of their
    collectives. `timeline.context.notes` says what is damaged, missing or left out.

    A part of a large file may be enough. `steps=slice(3, 6)` takes the steps 3 to 5, marked or counted.
    `window=(start, end)` takes what the host begins between these times [ns from the first event]. Both include work
    of the GPU that is launched there. The rest becomes no span. `export.to_chrome_trace` writes the part to a file.

    Raises `TraceError` for a file that is no trace (the message says what it looks like), that has no event which can
    be drawn, or that is hostile. It is also raised where no file belongs to one of the `ranks`, and where a file has
    none of the `steps` or no event in the `window`. Raises `NoFileError`, a FileNotFoundError, where there is no file,
    another OSError where it cannot be opened, and TypeError for arguments of other types.

    >>> loaderviz.summarize(loaderviz.read("trace.json")).step  # ns
    1831043.0
    """
    check_executor(executor)
    wanted = _numbers(ranks)
    steps, window = checked_part(steps, window)
    with ExitStack() as stack:
        files, named = found(path, stack)
        given = partial(attempted, alone=len(files) == 1, ranks=wanted, part=steps)
        read, left_out = tried(given, files, named, executor)
    if read and isinstance(read[0], Timeline):
        if not (wanted is None and steps is None and window is None):
            raise TraceError(
                f"{path} is a timeline that loaderviz saved, which is read whole, without ranks, steps or window; "
                "timeline.between(start, end) gives a part of it"
            )
        return read[0]
    raws = [raw for each in read if isinstance(each, list) for raw in each]
    if wanted is not None:
        raws = [raw for raw in raws if raw.rank in wanted]
        if not raws:
            raise TraceError(f"no file in {path} is of one of the ranks {', '.join(map(str, wanted))}")
    if not any(len(raw.columns["start"]) for raw in raws):
        raise TraceError(nothing_drawn(raws[0]))
    if window is not None:
        raws = of_window(raws, *window)
    try:
        timeline = made_of(sorted(raws, key=lambda raw: (raw.rank is None, raw.rank or 0)))
    except TooLargeError as problem:
        raise TraceError(f"{files[0]}{' and others' if len(files) > 1 else ''}: {problem}") from problem
    missing = sorted(set(wanted or ()) - {raw.rank for raw in raws})
    notes = [f"no file is of rank {', '.join(map(str, missing))}"] if missing else []
    several = len(raws) > 1
    lacks = absent([(raw.rank, raw.world) for raw in raws], several and wanted is None)
    told = timeline.context.missing + lacks * several  # who reads one alone wants no other
    return noted(timeline, *told_of(left_out, files), *notes, *lacks, missing=told)


def absent(ranks: Iterable[tuple[int | None, int | None]], all_files: bool = True) -> tuple[str, ...]:
    """Return a sentence on the ranks of a run that are not among these, each with how many the run has by its file.

    There is none where no rank is missing, and where the files do not tell, or differ. `all_files`: all were read.
    """
    there, worlds = map(set, zip(*ranks, strict=True))
    world = worlds.pop() if len(worlds) == 1 else None
    lacking, more = [rank for rank in range(world or 0) if rank not in there], ""
    if world is None or not lacking or len(lacking) + len(there) > world:
        return ()
    if len(lacking) > _MANY:
        more = f" and {len(lacking) - _MANY:,} more"
    one = len(lacking) == 1
    named = f"rank{'s' * (not one)} {', '.join(map(str, lacking[:_MANY]))}{more} of {world:,}"
    what = f"{'has' if one else 'have'} no file here" if all_files else f"{'was' if one else 'were'} not read"
    return (f"{named} {what}: {ABSENT} {'it' if one else 'them'}",)


def tried(
    attempt: Callable[[Path], Read | TraceError], files: Sequence[Path], named: bool, executor: Executor | None
) -> tuple[list[Read], list[TraceError]]:
    """Return what was read of these files, and why others are left out; raise that if they were `named`, or all are."""
    attempts = (map if executor is None else executor.map)(attempt, files)
    every = list(told(attempts, files, "reading {} files"))
    left_out = [each for each in every if isinstance(each, TraceError)]
    read = [each for each in every if not isinstance(each, TraceError)]
    if left_out and (named or not read):
        others = len(left_out) - 1
        more = f"; nor is any of the {others:,} other files" if others > 1 else "; nor is the other file"
        raise left_out[0] if named or not others else TraceError(f"{left_out[0]}{more}")
    return read, left_out


def told_of(left_out: Sequence[TraceError], files: Sequence[Path]) -> tuple[str, ...]:
    """Return notes on those of these files that are no traces, a few of many; they are named without their folders."""
    told = [f"left out: {problem}" for problem in left_out[:_MANY]]
    for file in sorted(files, key=lambda file: -len(str(file))):
        told = [each.replace(str(file), file.name) for each in told]
    return *told, *(f"left out: {words.count(len(left_out) - _MANY, 'more file')}",) * (len(left_out) > _MANY)


def made_of(raws: Sequence[RawTrace]) -> Timeline:
    """Return the Timeline of these traces, with its steps."""
    return counted(assemble(raws))


def check_executor(executor: object) -> None:
    """Raise TypeError for what cannot map a function to files."""
    if isinstance(executor, type) or (executor is not None and not callable(getattr(executor, "map", None))):
        raise TypeError(
            f"executor={executor!r} has no map(); give one such as concurrent.futures.ProcessPoolExecutor()"
        )


def _numbers(ranks: Iterable[int] | None) -> list[int] | None:
    try:
        wanted = None if ranks is None else [-1 if isinstance(rank, bool) else index(rank) for rank in ranks]
    except TypeError:
        wanted = []
    if wanted is not None and (not wanted or min(wanted) < 0):
        raise TypeError(f"ranks={ranks!r}: give the numbers of ranks, such as ranks=[0, 7]")
    return wanted


def attempted(
    path: Path, alone: bool, ranks: Sequence[int] | None = None, part: slice | None = None
) -> list[RawTrace] | Timeline | TraceError:
    """Read a file, and give the error instead of raising it: it is told once all others are read.

    One that says at its beginning that it is of another rank than these is not read. `part` are the steps to keep.
    """
    try:
        found = _raw(path, alone, ranks)
        return found if part is None or isinstance(found, Timeline) else [of_steps(_marked(raw), part) for raw in found]
    except TraceError as problem:
        return TraceError(_TEMPORARY.sub("", str(problem)))


def _marked(raw: RawTrace) -> RawTrace:
    """Return a trace with a mark for each of its steps, also where nothing in the file marks them: they are counted."""
    if len(marks_of(raw)[0]):
        return raw
    columns = dict(raw.columns)
    timeline = made_of([replace(raw, columns=dict(columns), names=list(raw.names), lost=Counter(raw.lost))])
    steps, lanes = np.flatnonzero(timeline.where(Kind.RANGE) & timeline.named(BATCH_RANGE.match)), Lanes(raw)
    zero = timeline.context.zero or int(columns["start"].min(initial=1 << 62))
    more: dict[str, Any] = {
        "start": timeline.start[steps] + zero,
        "end": timeline.end[steps] + zero,
        "role": Role.ANNOTATION,
        "name": len(raw.names) + np.arange(len(steps)),
        "place": columns["place"][lanes.lane == lanes.main][:1],
    }
    for name, values in columns.items() if len(steps) else ():
        columns[name] = np.r_[values, np.broadcast_to(more.get(name, -1), len(steps)).astype(values.dtype)]
    names = [*raw.names, *(timeline.names[name] for name in timeline.name[steps].tolist())]
    counted_by = [note for note in timeline.context.notes if note in (COUNTED, BY_LOADER)]
    return replace(raw, columns=columns, names=names, remarks=[*raw.remarks, *counted_by])


def _raw(path: Path, alone: bool, ranks: Sequence[int] | None) -> list[RawTrace] | Timeline:
    """Read a file: a rank's trace, an Nsight Systems export of some processes, or, alone, what loaderviz wrote."""
    source = Source(path)
    try:
        head = source.first()
        if head.startswith(SQLITE):
            if source.compressed:
                raise TraceError(f"{path} is a gzip-ed SQLite database; unpack it with `gunzip` first")
            from loaderviz.traces.nsight import read_nsight

            return read_nsight(path)
        if re.match(rb'\s*\{\s*"loaderviz"\s*:\s*\d+\s*,', head):  # what `Timeline.save` writes
            return _own(path, None, alone)
        document = Document(path)
        if ranks is not None and told_rank(document.head) not in (None, *ranks):
            return []
        packed = document.head.get("loaderviz")  # what `export.to_chrome_trace` writes; the events are for other tools
        return _own(path, packed, alone) if isinstance(packed, str) else [read_kineto(document)]
    except TooLargeError as problem:
        raise TraceError(f"{path}: {problem}") from problem


def _own(path: Path, packed: str | None, alone: bool) -> Timeline:
    """Return what loaderviz wrote: a saved timeline, or the one that is packed in another file."""
    if not alone:
        raise TraceError(f"{path} was written by loaderviz and is no rank of a run; read it alone")
    try:
        return Timeline.load(path) if packed is None else Timeline.unpacked(packed)
    except TimelineError as problem:
        said = str(problem) if packed is None else f"{path}: its 'loaderviz' entry is damaged ({problem})"
        raise TraceError(said) from problem
