"""An Nsight Systems export (`nsys export --type sqlite`) -> RawTraces, one per process.

Tables are made only when there is something for them, and their columns differ by version: each is looked up before it
is used. Times are ns since the session began. Enumerations are read from the file, since nsys numbers memory kinds
otherwise than CUPTI does (0 Pageable, 1 Pinned, 2 Device there; 1, 2, 3 here).
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from loaderviz.traces.events import DTYPES, MAX_EVENTS, Ids
from loaderviz.traces.kineto import RawTrace
from loaderviz.traces.source import TraceError
from loaderviz.vendors import ON_DEVICE, Role

_GPU = "CUPTI_ACTIVITY_KIND_"
_OPERATIONS = dict(enumerate(("HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP"), 1))
_OPERATIONS |= {11: "HtoD", 12: "DtoH", 13: "DtoD"}
_MEMORIES = dict(enumerate(("Pageable", "Pinned", "Device", "Array", "Managed", "Device", "Managed", "Unknown")))
_VERSION = re.compile(r"(?:_v\d{4,5})?(?:_pt(?:sz|ds))?$")  # cudaMemcpyAsync_v3020
_TELLING = re.compile(r"not all|lost|dropped|missing|incomplete|overflow|could not", re.I)
_AT_ONCE = 50_000

Row = tuple[Any, ...]


def read_nsight(path: Path) -> list[RawTrace]:
    """Return the trace of each process that used the GPU. Raises `TraceError` for a database of something else."""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)) as connection:
            connection.text_factory = lambda text: text.decode("utf-8", "replace")
            return _Export(path, connection).traces()
    except sqlite3.Error as problem:
        raise TraceError(f"{path} looks like an SQLite database but cannot be read: {problem}") from problem


class _Export:
    """One database, with its tables and columns looked up."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self.connection = path, connection
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        known = [name for (name,) in names if re.fullmatch(r"\w+", str(name))]
        self.columns = {name: {row[1] for row in connection.execute(f'PRAGMA table_info("{name}")')} for name in known}
        if not any(name.startswith((_GPU, "NVTX_EVENTS", "TARGET_INFO")) for name in known):
            shown = ", ".join(sorted(known)[:4]) or "none"
            raise TraceError(f"{path} is an SQLite database, but no Nsight Systems export; its tables are: {shown}")
        self.strings: dict[Any, Any] = dict(self.select("StringIds", "id", "value"))
        self.left_out: Counter[str] = Counter()

    def select(self, table: str, *columns: str) -> Iterator[Row]:
        """Give rows of a table, None for columns it does not have; nothing if there is no such table."""
        known = self.columns.get(table)
        if known is None:
            return
        wanted = ", ".join(f'"{column}"' if column in known else "NULL" for column in columns)
        cursor = self.connection.execute(f'SELECT {wanted} FROM "{table}" LIMIT {MAX_EVENTS}')
        while rows := cursor.fetchmany(_AT_ONCE):
            yield from rows

    def traces(self) -> list[RawTrace]:
        """Return one trace per process; processes that have host ranges only stay in where no process has GPU work."""
        base = next((row[0] for row in self.select("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")), None)
        processes: dict[int, _Process] = {}
        for rows in (self._calls(), self._work(), self._ranges()):
            for pid, row in rows:
                processes.setdefault(pid, _Process()).add(*row)
        if count := sum(1 for _ in self.select(_GPU + "SYNCHRONIZATION", "start")):
            self.left_out["synchronisation rows"] += count
        working = {pid: process for pid, process in processes.items() if process.on_device} or processes
        for pid in processes.keys() - working.keys():
            self.left_out[f"spans of process {pid} (no GPU work);"] += len(processes[pid].rows)
        said = (text for (text,) in self.select("DIAGNOSTIC_EVENT", "text") if isinstance(text, str))
        remarks = [f"nsys says: {text}" for text in said if _TELLING.search(text)][:3]
        found = [
            RawTrace(
                self.path,
                process.columns(base or 0),
                list(process.names),
                list(process.places),
                f"process {pid}",
                unix=base is not None,
                devices=self._devices(),
                threads=self._threads(),
                lost=process.lost,
                versions=self._versions(),
            )
            for pid, process in sorted((working or {0: _Process()}).items())
        ]
        found[0].remarks, found[0].left_out = remarks, self.left_out
        return found

    # Each gives process and (start, end, role, name, place, correlation, bytes) of spans

    def _calls(self) -> Iterator[tuple[int, Row]]:
        columns = "start", "end", "globalTid", "correlationId", "nameId"
        for table in (_GPU + "RUNTIME", _GPU + "DRIVER"):
            for start, end, tid, correlation, name in self.select(table, *columns):
                pid, thread = _process(tid), _thread(tid)
                plain = _VERSION.sub("", str(self.strings.get(name, "unknown call")))
                yield pid, (start, end, Role.CALL, plain, (pid, thread, None, None), correlation, -1)

    def _work(self) -> Iterator[tuple[int, Row]]:
        """The GPU's: kernels, graphs, copies, memsets."""
        columns = "start", "end", "deviceId", "streamId", "correlationId", "globalPid"
        operations, memories = dict(_OPERATIONS), dict(_MEMORIES)
        for number, label in self.select("ENUM_CUDA_MEMCPY_OPER", "id", "label"):
            if match := re.search(r"(Host|Device|Array|Peer)-to-(Host|Device|Array|Peer)", str(label)):
                operations[number] = f"{match.group(1)[0]}to{match.group(2)[0]}"
        for number, label in self.select("ENUM_CUDA_MEM_KIND", "id", "label"):
            if isinstance(label, str):
                memories[number] = label.split()[0]

        def rows(table: str, role: Role, *more: str) -> Iterator[tuple[int, Row]]:
            for start, end, device, stream, correlation, owner, *told in self.select(_GPU + table, *columns, *more):
                place, nbytes = (None, None, device or 0, stream or 0), -1
                if role is Role.MEMCPY:
                    nbytes, kind, *sides = told
                    sides = [memories.get(side, "Unknown") for side in sides]
                    name = f"Memcpy {operations.get(kind, '?')} ({' -> '.join(sides)})"
                elif role is Role.MEMSET:
                    nbytes, memory = told
                    name = f"Memset ({memories.get(memory, 'Unknown')})"
                elif more == ("graphId",):
                    name = f"CUDA graph {told[0]}"
                else:
                    name = str(self.strings.get(told[0]) or self.strings.get(told[1]) or "unknown kernel")
                yield _process(owner), (start, end, role, name, place, correlation, nbytes)

        yield from rows("KERNEL", Role.KERNEL, "demangledName", "shortName")
        yield from rows("GRAPH_TRACE", Role.KERNEL, "graphId")
        yield from rows("MEMCPY", Role.MEMCPY, "bytes", "copyKind", "srcKind", "dstKind")
        yield from rows("MEMSET", Role.MEMSET, "bytes", "memKind")

    def _ranges(self) -> Iterator[tuple[int, Row]]:
        for start, end, tid, text, number in self.select("NVTX_EVENTS", "start", "end", "globalTid", "text", "textId"):
            name = text if isinstance(text, str) else self.strings.get(number)
            if end is None or not isinstance(name, str):
                self.left_out["NVTX marks and ranges without an end"] += 1
                continue
            pid = _process(tid)
            role = Role.OPERATOR if name.startswith(("aten::", "autograd::")) else Role.ANNOTATION
            yield pid, (start, end, role, name, (pid, _thread(tid), None, None), -1, -1)

    # What belongs to all processes

    def _devices(self) -> dict[int, str]:
        rows = self.select("TARGET_INFO_GPU", "cuDevice", "id", "name")
        devices = ((cuda if cuda is not None else number, name) for cuda, number, name in rows)
        return {number: name for number, name in devices if isinstance(number, int) and isinstance(name, str)}

    def _threads(self) -> dict[tuple[Any, Any], str]:
        rows = self.select("ThreadNames", "globalTid", "nameId")
        return {(str(_process(tid)), str(_thread(tid))): str(self.strings.get(name, "")) for tid, name in rows}

    def _versions(self) -> dict[str, str]:
        rows = {str(name): str(value) for name, value in self.select("META_DATA_EXPORT", "name", "value")}
        version = next((value for name, value in rows.items() if "VERSION" in name.upper() and "." in value), "")
        return {"Nsight Systems": version} if version else {}


class _Process:
    """The rows of one process, in the columns of `DTYPES`."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.names, self.places = Ids(), Ids()
        self.on_device = False
        self.lost = 0

    def add(self, start: Any, end: Any, role: Role, name: str, place: Any, correlation: Any, nbytes: Any) -> None:
        numbers = (start, end, -1 if correlation is None else correlation, -1 if nbytes is None else nbytes)
        if not all(isinstance(number, int) and abs(number) < 2**60 for number in numbers) or end < start:
            self.lost += 1
            return
        self.on_device = self.on_device or role in ON_DEVICE
        self.rows.append((start, end, role, self.names[name], self.places[place], *numbers[2:]))

    def columns(self, base: int) -> dict[str, Any]:
        table = np.array(self.rows, np.int64).reshape(-1, len(DTYPES))
        columns = {name: table[:, i].astype(dtype) for i, (name, dtype) in enumerate(DTYPES.items())}
        return columns | {name: columns[name] + base for name in ("start", "end")}


def _process(identity: Any) -> int:
    """Return the pid in a globalPid or globalTid: hardware 8 bits, virtual machine 8, process 24, thread 24."""
    return identity >> 24 & 0xFFFFFF if isinstance(identity, int) else 0


def _thread(identity: Any) -> int:
    return identity & 0xFFFFFF if isinstance(identity, int) else 0
