"""Trace files and real runs -> Timeline; here `read`, which takes a file, a folder of ranks, or a list of files.

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

import os
import re
from collections.abc import Iterable
from pathlib import Path

from loaderviz.files import SQLITE, Source, TooLargeError, readable
from loaderviz.timeline import Timeline, TimelineError
from loaderviz.traces.assemble import assemble, nothing_drawn
from loaderviz.traces.kineto import RawTrace, read_kineto
from loaderviz.traces.source import Document, TraceError
from loaderviz.traces.steps import counted

__all__ = ["TraceError", "read"]

_SUFFIXES = (".json", ".json.gz", ".gz", ".sqlite", ".db", ".json.tmp")

PathLike = str | os.PathLike[str]


def read(path: PathLike | Iterable[PathLike]) -> Timeline:
    """Return the Timeline of a trace file, of a folder with one file per rank, or of a list of such files.

    Read are torch.profiler (Kineto) JSON of 2021 to today, plain or gzip, of CUDA, ROCm, XPU, MTIA or the CPU alone;
    Nsight Systems SQLite exports; and what `export.to_chrome_trace` and `Timeline.save` wrote, which comes back equal.
    Times are integer ns, time 0 is the first event. Steps that nothing marks (`ProfilerStep#3`, "batch 3") are counted
    by `DataLoader.__next__`, else by `optimizer.step()`, and a note says so. Several ranks are aligned by the clock
    that their files tell. What is damaged, missing or left out is told in `timeline.context.notes`.

    Raises `TraceError` for a file that is no trace (the message says what it looks like), that has no event which can
    be drawn, or that is hostile;
    `NoFileError`, a FileNotFoundError, when there is none, another OSError when it cannot be opened.

    >>> loaderviz.summarize(loaderviz.read("trace.json")).step  # ns
    1831043.0
    """
    if isinstance(path, (str, os.PathLike)):
        files = [readable(path)]
        if files[0].is_dir():
            files = sorted(f for f in files[0].iterdir() if f.name.lower().endswith(_SUFFIXES) and f.is_file())
            if not files:
                raise TraceError(f"the folder {path} has no trace in it: no file ends in {', '.join(_SUFFIXES[:4])}")
    elif isinstance(path, Iterable):
        files = [readable(each) for each in path]
        if not files:
            raise TraceError("read() got an empty list; give at least one trace file")
    else:
        raise TypeError(f"read() needs a path or a list of paths, got {type(path).__name__}")
    for file in files:
        if file.is_dir():
            raise TraceError(f"{file} is a folder inside a list; give files, or the folder alone")
    found = [_raw(file, alone=len(files) == 1) for file in files]
    if isinstance(found[0], Timeline):
        return found[0]
    raws = [raw for each in found if isinstance(each, list) for raw in each]
    if not any(len(raw.columns["start"]) for raw in raws):
        raise TraceError(nothing_drawn(raws[0]))
    try:
        return counted(assemble(sorted(raws, key=lambda raw: (raw.rank is None, raw.rank or 0))))
    except TooLargeError as problem:
        raise TraceError(f"{files[0]}{' and others' if len(files) > 1 else ''}: {problem}") from problem


def _raw(path: Path, alone: bool) -> list[RawTrace] | Timeline:
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
