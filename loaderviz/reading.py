"""read(): a trace that already exists, as a Timeline. One file, a folder of ranks, or a list of files.

timeline = loaderviz.read("trace.json.gz")      # torch.profiler, Nsight Systems SQLite, loaderviz's own exports
timeline = loaderviz.read("traces/")            # one file per rank: aligned, with lanes per rank
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from loaderviz.recorder import exported
from loaderviz.recorder.assemble import assemble
from loaderviz.recorder.chunks import Document
from loaderviz.recorder.kineto import RawTrace, read_kineto
from loaderviz.recorder.source import SQLITE, Source, TraceError
from loaderviz.timeline import Timeline

__all__ = ["TraceError", "read"]

MAX_RANKS = 1_024
_SUFFIXES = (".json", ".json.gz", ".gz", ".sqlite", ".db", ".json.tmp")

PathLike = str | os.PathLike[str]


def read(path: PathLike | Iterable[PathLike]) -> Timeline:
    """Return the Timeline of a trace file, of a folder with one file per rank, or of a list of such files.

    Read are torch.profiler (Kineto) JSON of 2021 to today, plain or gzip, of CUDA, ROCm, XPU, MTIA or the CPU alone;
    Nsight Systems SQLite exports; and what `export.to_chrome_trace` and `Timeline.save` wrote, which comes back equal.
    Times are integer ns, time 0 is the first event. Several ranks are aligned by the clock that their files tell.
    What is damaged, missing or left out is told in `timeline.context.notes`.

    Raises `TraceError` for a file that is no trace (the message says what it looks like), or that is hostile;
    FileNotFoundError, or another OSError, when it cannot be opened.

        timeline = loaderviz.read("trace.json.gz")
        print(loaderviz.summarize(timeline))
    """
    files = _files(path)
    if len(files) == 1:
        return _one(files[0])
    raws = [raw for file in files for raw in _raw(file)]
    return assemble(sorted(raws, key=lambda raw: (raw.rank is None, raw.rank or 0)))


def _files(path: PathLike | Iterable[PathLike]) -> list[Path]:
    if isinstance(path, (str, os.PathLike)):
        folder = Path(path)
        if not folder.is_dir():
            return [_existing(folder)]
        found = sorted(file for file in folder.iterdir() if file.name.lower().endswith(_SUFFIXES) and file.is_file())
        if not found:
            raise TraceError(f"the folder {folder} has no trace in it: no file ends in {', '.join(_SUFFIXES[:4])}")
        files = found
    elif isinstance(path, Iterable):
        files = [_existing(Path(each)) for each in path]
        if not files:
            raise TraceError("read() got an empty list; give at least one trace file")
    else:
        raise TypeError(f"read() needs a path or a list of paths, got {type(path).__name__}")
    if len(files) > MAX_RANKS:
        raise TraceError(f"read() got {len(files):,} files; it takes {MAX_RANKS:,} ranks at most")
    return files


def _existing(path: Path) -> Path:
    if path.is_dir():
        raise TraceError(f"{path} is a folder inside a list; give files, or the folder alone")
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    return path


def _one(path: Path) -> Timeline:
    head = Source(path).first()
    if exported.is_saved(head):
        return Timeline.load(path)
    if head.startswith(SQLITE):
        return assemble(_raw(path))
    document = Document(path)
    return exported.timeline(document) if exported.is_export(document) else assemble([read_kineto(document)])


def _raw(path: Path) -> list[RawTrace]:
    """Read a trace of one rank; an Nsight Systems export may hold several processes."""
    source = Source(path)
    if source.first(16).startswith(SQLITE):
        if source.compressed:
            raise TraceError(f"{path} is a gzip-ed SQLite database; unpack it with `gunzip` first")
        from loaderviz.recorder.nsight import read_nsight

        return read_nsight(path)
    document = Document(path)
    if exported.is_export(document):
        raise TraceError(f"{path} is an export of loaderviz, which is no rank of a run; read it alone")
    return [read_kineto(document)]
