"""An Nsight Systems export (`nsys export --type sqlite`) -> RawTraces, one per process.

Tables exist only if there is something for them, and their columns differ by version: each is looked up before use.
Enumerations are read from the file: nsys numbers memory kinds otherwise than CUPTI does. Times: ns since it began.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from loaderviz import words
from loaderviz.files import LIMITS, check_counts
from loaderviz.timeline import Cause, Ids, Mask, Numbers, grouped
from loaderviz.traces.kineto import DTYPES, RawTrace
from loaderviz.traces.source import TraceError
from loaderviz.vendors import MIGRATION, NSIGHT, NSYS, ON_DEVICE, PAGE_FAULTS, Role

_GPU = "CUPTI_ACTIVITY_KIND_"
_OPERATIONS = dict(enumerate(("HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP"), 1))
_UNIFIED = {11: "HtoD", 12: "DtoH", 13: "DtoD"}  # the driver moves pages of managed memory
_OPERATIONS |= _UNIFIED
_PREFETCH = 1  # CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_USER: the program asked for it; else a touch did
_MEMORIES = dict(enumerate(("Pageable", "Pinned", "Device", "Array", "Managed", "Device", "Managed", "Unknown")))
_VERSION = re.compile(r"(?:_v\d{4,5})?(?:_pt(?:sz|ds))?$")  # cudaMemcpyAsync_v3020
_TELLING = re.compile(r"not all|lost|dropped|missing|incomplete|overflow|could not", re.I)
_AT_ONCE = 50_000
_EVENTS = (*(f"{_GPU}{name}" for name in ("RUNTIME", "KERNEL", "MEMCPY", "MEMSET")), "NVTX_EVENTS")
_UNNAMED = "range without a name"
_NULL, _BAD = -1, -(2**61)  # stand for NULL, or a column that is not there, and for what is no whole number
_WHOLE = f"CASE typeof({{0}}) WHEN 'integer' THEN {{0}} WHEN 'null' THEN {_NULL} ELSE {_BAD} END"
_MANY = 6  # processes without GPU work; more are told as one
_CPU_FAULTS, _GPU_FAULTS = (f"CUDA_UM_{side}_PAGE_FAULT_EVENTS" for side in ("CPU", "GPU"))
_STREAM_WAITS = 2  # CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT; in all others the host waits

Row = tuple[Any, ...]
Columns = dict[str, Numbers]  # of spans: those of `DTYPES`, and "pid"


def read_nsight(path: Path) -> list[RawTrace]:
    """Return the trace of each process that used the GPU. Raises `TraceError` for a database of something else."""
    log = Path(f"{path.resolve()}-wal")  # what was written last may be there alone
    how = "mode=ro" if log.exists() else "mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.resolve()))}?{how}", uri=True)) as connection:
            connection.text_factory = lambda text: text.decode("utf-8", "replace")
            return _Export(path, connection).traces()
    except sqlite3.Error as problem:
        raise TraceError(f"{path} looks like an SQLite database but cannot be read: {problem}") from problem


def _log_of(path: Path) -> str:
    """Say that a write-ahead log may be missing: what was written last is there, and is not in the file yet."""
    with path.open("rb") as file:
        logged = file.read(20)[18:20] == b"\x02\x02"
    missing = logged and not Path(f"{path.resolve()}-wal").exists()
    return (
        f". If there was a file {path.name}-wal beside it, copy that, too: it holds what was written last"
        if missing
        else ""
    )


class _Export:
    """One database, with its tables and columns looked up."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self.connection = path, connection
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        known = [name for (name,) in names if re.fullmatch(r"\w+", str(name))]
        self.columns = {name: {row[1] for row in connection.execute(f'PRAGMA table_info("{name}")')} for name in known}
        if not any(name.startswith((_GPU, "NVTX_EVENTS", "TARGET_INFO")) for name in known):
            shown = ", ".join(sorted(known)[:4]) or "none"
            told = f"its tables are: {shown}{_log_of(path)}"
            raise TraceError(f"{path} is an SQLite database, but no Nsight Systems export; {told}")
        self.strings: dict[Any, Any] = dict(self.select("StringIds", "id", "value"))
        self.left_out: Counter[str] = Counter()
        self.names, self.places = Ids(), Ids()

    def select(self, table: str, *columns: str, as_: str = "{}") -> Iterator[Row]:
        """Give rows of a table, None for columns it does not have; nothing if there is no such table."""
        known = self.columns.get(table)
        if known is None:
            return
        wanted = ", ".join(as_.format(f'"{column}"' if column in known else "NULL") for column in columns)
        cursor = self.connection.execute(f'SELECT {wanted} FROM "{table}" LIMIT {LIMITS["event"]}')
        while rows := cursor.fetchmany(_AT_ONCE):
            yield from rows

    def numbers(self, table: str, *columns: str) -> list[Numbers]:
        """Return columns of a table of whole numbers."""
        rows = self.select(table, *columns, as_=_WHOLE)
        return list(np.fromiter(chain.from_iterable(rows), np.int64).reshape(-1, len(columns)).T)

    def traces(self) -> list[RawTrace]:
        """Return one trace per process; processes that have host ranges only stay in where no process has GPU work."""
        base = next((row[0] for row in self.select("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")), None)
        base = base if isinstance(base, int) and abs(base) < 2**62 else None
        calls = [self._calls(_GPU + table) for table in ("RUNTIME", "DRIVER")]
        found = [*calls, *self._work(), self._ranges(), self._synchronizations(calls), self._faults()]
        rows = {name: np.concatenate([each[name] for each in found]) for name in ("pid", *DTYPES)}
        if not len(rows["pid"]):
            raise TraceError(f"{self.path} has no events that can be drawn: {self._why_empty()}")
        good = (rows["end"] >= rows["start"]) & (rows["nbytes"] != _BAD) & (rows["correlation"] != _BAD)
        good &= (np.abs(rows["start"]) < 2**60) & (np.abs(rows["end"]) < 2**60)
        processes, whose = np.unique(rows["pid"], return_inverse=True)
        working = self._working(processes, whose, good, rows["role"])
        devices, threads, versions = self._devices(), self._threads(), self._versions()
        traces = []
        for pid, works, mine in zip(processes.tolist(), working.tolist(), grouped(whose, len(processes)), strict=True):
            if works:
                kept = mine[good[mine]]
                columns = {name: rows[name][kept].astype(dtype) for name, dtype in DTYPES.items()}
                traces.append(
                    RawTrace(
                        self.path,
                        columns | {name: columns[name] + (base or 0) for name in ("start", "end")},
                        list(self.names),
                        list(self.places),
                        f"process {pid}",
                        unix=base is not None,
                        devices=devices,
                        threads=threads,
                        lost=Counter({" with values of other kinds": len(mine) - len(kept)}),
                        versions=versions,
                    )
                )
        said = (text for (text,) in self.select("DIAGNOSTIC_EVENT", "text") if isinstance(text, str))
        traces[0].missing = [f"nsys says: {text.rstrip('. ')[:200]}" for text in said if _TELLING.search(text)][:3]
        traces[0].remarks += self._faulted()
        if "StringIds" not in self.columns:
            traces[0].remarks.append("names are not known: the file has no table StringIds")
        traces[0].left_out = self.left_out
        return traces

    def _working(self, processes: Numbers, whose: Numbers, good: Mask, role: Numbers) -> Mask:
        """Return which processes are kept: those with GPU work, or all where none has; raise an error for too many."""
        working: Mask = np.bincount(whose[good & np.isin(role, ON_DEVICE)], minlength=len(processes)) > 0
        working |= not working.any()
        check_counts(process=int(working.sum()), lane=len(self.places), character=sum(map(len, self.names)))
        idle, counts = (
            processes[~working].tolist(),
            np.bincount(whose[good], minlength=len(processes))[~working].tolist(),
        )
        if len(idle) > _MANY:
            self.left_out[f"spans of {len(idle):,} processes (no GPU work);"] += sum(counts)
        else:
            for pid, count in zip(idle, counts, strict=True):
                self.left_out[f"spans of process {pid} (no GPU work);"] += count
        return working

    def _why_empty(self) -> str:
        """Say what a file lacks that has nothing to draw."""
        missing, empty = ([name for name in _EVENTS if (name in self.columns) is known] for known in (False, True))
        lacks = [f"it lacks the tables {', '.join(missing)}"] if missing else []
        lacks += [f"its tables {', '.join(empty)} are empty"] if empty else []
        return f"{' and '.join(lacks)}; record with `{NSYS}`{_log_of(self.path)}"

    # Each gives spans as columns

    def _calls(self, table: str) -> Columns:
        start, end, tid, correlation, name = self.numbers(table, "start", "end", "globalTid", "correlationId", "nameId")
        who = _numbered(
            self.names, lambda number: _VERSION.sub("", str(self.strings.get(number, "unknown call"))), name
        )
        return self._columns(Role.CALL, start, end, who, self._on_threads(tid), tid, correlation)

    def _work(self) -> Iterator[Columns]:
        """The GPU's: kernels, graphs, copies, memsets."""
        columns = "start", "end", "deviceId", "streamId", "correlationId", "globalPid"
        operations, memories = dict(_OPERATIONS), dict(_MEMORIES)
        for number, label in self.select("ENUM_CUDA_MEMCPY_OPER", "id", "label"):
            if match := re.search(r"(Host|Device|Array|Peer)-to-(Host|Device|Array|Peer)", str(label)):
                operations[number] = f"{match.group(1)[0]}to{match.group(2)[0]}"
        for number, label in self.select("ENUM_CUDA_MEM_KIND", "id", "label"):
            if isinstance(label, str):
                memories[number] = label.split()[0]

        def rows(table: str, role: Role, name: Callable[..., str], *more: str) -> Columns:
            start, end, device, stream, correlation, owner, *told = self.numbers(_GPU + table, *columns, *more)
            nbytes = told.pop(0) if more[0] == "bytes" else _NULL
            at = _numbered(self.places, lambda *at: (None, None, *(max(0, each) for each in at)), device, stream)
            return self._columns(role, start, end, _numbered(self.names, name, *told), at, owner, correlation, nbytes)

        def kernel(long: int, short: int) -> str:
            return str(self.strings.get(long) or self.strings.get(short) or "unknown kernel")

        def memcpy(kind: int, cause: int, *sides: int) -> str:
            memory = " -> ".join(memories.get(side, "Unknown") for side in sides)
            if kind in _UNIFIED:
                memory = "prefetched pages" if cause == _PREFETCH else MIGRATION
            return f"Memcpy {operations.get(kind, '?')} ({memory})"

        yield rows("KERNEL", Role.KERNEL, kernel, "demangledName", "shortName")
        yield rows("GRAPH_TRACE", Role.KERNEL, "CUDA graph {}".format, "graphId")
        yield rows("MEMCPY", Role.MEMCPY, memcpy, "bytes", "copyKind", "migrationCause", "srcKind", "dstKind")
        yield rows("MEMSET", Role.MEMSET, lambda kind: f"Memset ({memories.get(kind, 'Unknown')})", "bytes", "memKind")

    def _synchronizations(self, calls: list[Columns]) -> Columns:
        """When the host waits for the device, in the thread of the call with the same number."""
        columns = "start", "end", "correlationId", "globalPid", "syncType"
        start, end, correlation, owner, kind = self.numbers(_GPU + "SYNCHRONIZATION", *columns)
        keep = kind != _STREAM_WAITS
        if count := int((~keep).sum()):
            self.left_out["synchronisation rows"] += count
        start, end, correlation, owner = (column[keep] for column in (start, end, correlation, owner))
        pid = owner >> 24 & 0xFFFFFF
        place = self._on_threads(pid << 24 | pid)
        keys = np.concatenate([_key(each["pid"], each["correlation"]) for each in calls])
        order = np.argsort(keys, kind="stable")
        if len(order):
            found = np.minimum(np.searchsorted(keys[order], _key(pid, correlation)), len(order) - 1)
            same = keys[order][found] == _key(pid, correlation)
            place = np.where(same, np.concatenate([each["place"] for each in calls])[order][found], place)
        name = np.full(len(start), self.names[Cause.SYNCHRONIZE.words] if len(start) else 0)
        return self._columns(Role.SYNC, start, end, name, place, owner, correlation)

    def _faults(self) -> Columns:
        """Groups of page faults of managed memory: from when to when the GPU waits for their pages."""
        start, end, device, owner = self.numbers(_GPU_FAULTS, "start", "end", "deviceId", "globalPid")
        place = _numbered(self.places, lambda number: (None, None, max(0, number), 0), device)
        name = np.full(len(start), self.names[PAGE_FAULTS] if len(start) else 0)
        return self._columns(Role.GPU_ANNOTATION, start, end, name, place, owner)

    def _faulted(self) -> list[str]:
        """Say how many page faults of managed memory there are; of those of the CPU no end is told."""
        (count,), (host,) = self.numbers(_GPU_FAULTS, "numberOfPageFaults"), self.numbers(_CPU_FAULTS, "start")
        number = int(count.clip(1).sum())  # one at least in a group that tells none
        told = f"managed memory: {words.count(number, 'page fault')} of the GPU in {words.count(len(count), 'group')}"
        return [f"{told}, {words.count(len(host), 'page fault')} of the CPU"] if number or len(host) else []

    def _ranges(self) -> Columns:
        spans: list[Row] = []
        for start, end, tid, text, number in self.select("NVTX_EVENTS", "start", "end", "globalTid", "text", "textId"):
            name = text if isinstance(text, str) else self.strings.get(number, None if self.strings else _UNNAMED)
            if end is None or not isinstance(name, str):
                self.left_out["NVTX marks and ranges without an end"] += 1
                continue
            role = Role.OPERATOR if name.startswith(("aten::", "autograd::")) else Role.ANNOTATION
            times = (each if isinstance(each, int) and abs(each) < 2**60 else _BAD for each in (start, end))
            spans.append((*times, self.names[name], role, tid if isinstance(tid, int) else 0))
        start, end, who, roles, tid = np.array(spans, np.int64).reshape(-1, 5).T
        return self._columns(Role.ANNOTATION, start, end, who, self._on_threads(tid), tid) | {"role": roles}

    def _on_threads(self, tid: Numbers) -> Numbers:
        return _numbered(self.places, lambda each: (each >> 24 & 0xFFFFFF, each & 0xFFFFFF, None, None), tid)

    def _columns(
        self,
        role: Role,
        start: Numbers,
        end: Numbers,
        name: Numbers,
        place: Numbers,
        owner: Numbers,
        correlation: Numbers | int = _NULL,
        nbytes: Numbers | int = _NULL,
    ) -> Columns:
        """Put the columns of spans together; `owner` is a globalPid or globalTid: hardware, VM, process, thread."""
        values = owner >> 24 & 0xFFFFFF, start, end, role, name, place, correlation, nbytes
        return dict(zip(("pid", *DTYPES), np.broadcast_arrays(*values), strict=True))

    # What belongs to all processes

    def _devices(self) -> dict[int, str]:
        rows = self.select("TARGET_INFO_GPU", "cuDevice", "id", "name")
        devices = ((cuda if cuda is not None else number, name) for cuda, number, name in rows)
        return {number: name for number, name in devices if isinstance(number, int) and isinstance(name, str)}

    def _threads(self) -> dict[tuple[Any, Any], str]:
        rows = self.select("ThreadNames", "globalTid", "nameId")
        return {
            (str(tid >> 24 & 0xFFFFFF), str(tid & 0xFFFFFF)): str(self.strings.get(name, ""))
            for tid, name in rows
            if isinstance(tid, int)
        }

    def _versions(self) -> dict[str, str]:
        rows = {str(name): str(value) for name, value in self.select("META_DATA_EXPORT", "name", "value")}
        version = next((value for name, value in rows.items() if "VERSION" in name.upper() and "." in value), "")
        return {NSIGHT: version}


def _numbered(table: Ids, what: Callable[..., Any], *columns: Numbers) -> Numbers:
    """Return for each row the number in `table` of what `what` makes of its values, called once for equal ones."""
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, which = np.unique(column, return_inverse=True)
        code = code * len(values) + which
    _, first, which = np.unique(code, return_index=True, return_inverse=True)
    keys = zip(*(column[first].tolist() for column in columns), strict=True)
    return np.array([table[what(*key)] for key in keys], np.int64)[which]


def _key(pid: Numbers, correlation: Numbers) -> Numbers:
    key: Numbers = pid << 36 | correlation & (1 << 36) - 1
    return key
