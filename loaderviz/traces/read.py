"""read(): a trace that already exists, as a Timeline. One file, a folder of ranks, or a list of files."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from loaderviz.errors import readable
from loaderviz.timeline import Timeline, TimelineError
from loaderviz.traces.assemble import assemble
from loaderviz.traces.kineto import RawTrace, read_kineto
from loaderviz.traces.source import SQLITE, Document, Source, TraceError
from loaderviz.traces.steps import counted

__all__ = ["TraceError", "read"]

LARGE = 50_000_000  # bytes in all; several files of less are read before a further process has begun
_SUFFIXES = (".json", ".json.gz", ".gz", ".sqlite", ".db", ".json.tmp")

PathLike = str | os.PathLike[str]


def read(path: PathLike | Iterable[PathLike]) -> Timeline:
    """Return the Timeline of a trace file, of a folder with one file per rank, or of a list of such files.

    Read are torch.profiler (Kineto) JSON of 2021 to today, plain or gzip, of CUDA, ROCm, XPU, MTIA or the CPU alone;
    Nsight Systems SQLite exports; and what `export.to_chrome_trace` and `Timeline.save` wrote, which comes back equal.
    Times are integer ns, time 0 is the first event. Steps that nothing marks (`ProfilerStep#3`, "batch 3") are counted
    by `DataLoader.__next__`, else by `optimizer.step()`, and a note says so. Several ranks are aligned by the clock
    that their files tell. What is damaged, missing or left out is told in `timeline.context.notes`.

    Raises `TraceError` for a file that is no trace (the message says what it looks like), or that is hostile;
    `NoFileError`, a FileNotFoundError, when there is none, another OSError when it cannot be opened.

        timeline = loaderviz.read("trace.json.gz")
        print(loaderviz.summarize(timeline))
    """
    if isinstance(path, (str, os.PathLike)):
        files = [Path(path)]
        if files[0].is_dir():
            files = sorted(f for f in files[0].iterdir() if f.name.lower().endswith(_SUFFIXES) and f.is_file())
            if not files:
                raise TraceError(f"the folder {path} has no trace in it: no file ends in {', '.join(_SUFFIXES[:4])}")
    elif isinstance(path, Iterable):
        files = [Path(each) for each in path]
        if not files:
            raise TraceError("read() got an empty list; give at least one trace file")
    else:
        raise TypeError(f"read() needs a path or a list of paths, got {type(path).__name__}")
    for file in files:
        if file.is_dir():
            raise TraceError(f"{file} is a folder inside a list; give files, or the folder alone")
        readable(file)
    found = [*(_beside(files) if len(files) > 1 else [_raw(files[0], alone=True)])]
    if isinstance(found[0], Timeline):
        return found[0]
    raws = [raw for each in found if isinstance(each, list) for raw in each]
    return counted(assemble(sorted(raws, key=lambda raw: (raw.rank is None, raw.rank or 0))))


def _beside(files: Sequence[Path]) -> Iterator[list[RawTrace] | Timeline]:
    """Give what several files hold; large ones are read by new processes (not forks: threads may run), one a core."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = min(len(files), cores)
    if count < 2 or not sys.executable or sum(file.stat().st_size for file in files) < LARGE:
        yield from (_raw(file, alone=False) for file in files)
        return
    code = "from loaderviz.traces.read import send; send()"
    command, paths = [sys.executable, "-c", code], os.pathsep.join(filter(None, sys.path))
    readers = [
        subprocess.Popen(
            [*command, *map(str, files[n::count])], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": paths}
        )
        for n in range(count)
    ]
    try:
        for number, file in enumerate(files):
            try:
                found = pickle.load(cast(BinaryIO, readers[number % count].stdout))
            except (EOFError, pickle.UnpicklingError):
                raise TraceError(f"the process that read {file} was ended: is there enough memory?") from None
            if isinstance(found, Exception):
                raise found
            yield found
    finally:
        for reader in readers:
            reader.kill()
            reader.communicate()


def send() -> None:
    """Read the files that the command line names, and write what is in them, or what went wrong, to the output."""
    for name in sys.argv[1:]:
        try:
            found: object = _raw(Path(name), alone=False)
        except (TraceError, OSError) as problem:
            found = problem
        pickle.dump(found, sys.stdout.buffer, pickle.HIGHEST_PROTOCOL)
        sys.stdout.buffer.flush()


def _raw(path: Path, alone: bool) -> list[RawTrace] | Timeline:
    """Read a file: a rank's trace, an Nsight Systems export of some processes, or, alone, what loaderviz wrote."""
    source = Source(path)
    head = source.first()
    if head.startswith(SQLITE):
        if source.compressed:
            raise TraceError(f"{path} is a gzip-ed SQLite database; unpack it with `gunzip` first")
        from loaderviz.traces.nsight import read_nsight

        return read_nsight(path)
    if alone and re.match(rb'\s*\{\s*"loaderviz"\s*:\s*\d+\s*,', head):  # what `Timeline.save` writes
        return Timeline.load(path)
    document = Document(path)
    own = document.head.get("loaderviz")  # what `export.to_chrome_trace` writes; the events are for other tools
    if not isinstance(own, str):
        return [read_kineto(document)]
    if not alone:
        raise TraceError(f"{path} is an export of loaderviz, which is no rank of a run; read it alone")
    try:
        return Timeline.unpacked(own)
    except TimelineError as problem:
        raise TraceError(f"{path}: its 'loaderviz' entry is damaged ({problem})") from problem
