"""Nsight Systems exports, made here with the schema of real ones, in several versions."""

import shutil
import sqlite3

import pytest
from trace_files import notes, rows, write

from loaderviz import advise, files, summarize
from loaderviz.timeline import Kind
from loaderviz.traces import TraceError, read

PROCESS = 4_321
GPID = 1 << 48 | PROCESS << 24  # hardware, virtual machine, process
GTID = GPID | PROCESS

# The columns of real exports, without their types.
SCHEMA = """
StringIds: id value
ENUM_CUDA_MEMCPY_OPER: id name label
ENUM_CUDA_MEM_KIND: id name label
TARGET_INFO_SESSION_START_TIME: utcEpochNs utcTime localTime
TARGET_INFO_GPU: vmId id name busLocation isDiscrete memoryBandwidth asyncEngines smCount cuDevice
META_DATA_EXPORT: name value
ThreadNames: nameId priority globalTid
DIAGNOSTIC_EVENT: timestamp timestampType source severity text globalPid
CUPTI_ACTIVITY_KIND_RUNTIME: start end eventClass globalTid correlationId nameId returnValue callchainId
CUPTI_ACTIVITY_KIND_KERNEL: start end deviceId contextId greenContextId streamId correlationId globalPid demangledName \
shortName mangledName graphNodeId gridX
CUPTI_ACTIVITY_KIND_MEMCPY: start end deviceId contextId streamId correlationId globalPid bytes copyKind srcKind \
dstKind migrationCause copyCount
CUPTI_ACTIVITY_KIND_MEMSET: start end deviceId contextId streamId correlationId globalPid value bytes \
graphNodeId memKind
CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: start end deviceId contextId streamId correlationId globalPid syncType eventId
NVTX_EVENTS: start end eventType rangeId category color text globalTid endGlobalTid textId domainId
"""
CALLS = "cudaMemcpyAsync_v3020", "cudaLaunchKernel_v7000", "cudaStreamSynchronize_v3020"
STRINGS = [*CALLS[:2], "void gemm<float>(int)", "gemm", "batch 3", "python", CALLS[2]]
OPERATIONS = [
    (1, "CUDA_MEMCPY_KIND_HTOD", "Host-to-Device"),
    (2, "CUDA_MEMCPY_KIND_DTOH", "Device-to-Host"),
    (8, "CUDA_MEMCPY_KIND_DTOD", "Device-to-Device"),
    (10, "CUDA_MEMCPY_KIND_PTOP", "Peer-to-Peer"),
    (11, "CUDA_MEMCPY_KIND_UVM_HTOD", "Unified Host-to-Device"),
]
MEMORIES = ["Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown"]


def export(path, change=None):
    """An export of one step: pinned copy, kernel, synchronise, in an NVTX range; `change` may alter the database."""
    calls = [(1_000, 1_900, 0, 1), (3_000, 3_700, 1, 2), (9_000, 25_000, 6, 3)]
    call = {"eventClass": 0, "globalTid": GTID, "returnValue": 0}
    work = {"deviceId": 0, "contextId": 1, "globalPid": GPID}
    copied = {"streamId": 13, "correlationId": 1, "bytes": 4_096, "copyKind": 1, "srcKind": 1, "dstKind": 2}
    kernel = {"streamId": 7, "correlationId": 2, "demangledName": 2, "shortName": 3, "gridX": 1}
    memset = {"streamId": 7, "correlationId": 9, "bytes": 64, "value": 0, "memKind": 2}
    waited = {"streamId": 7, "correlationId": 3, "syncType": 3, "eventId": 0}
    rows = [
        *(("StringIds", {"id": n, "value": text}) for n, text in enumerate(STRINGS)),
        *(("ENUM_CUDA_MEMCPY_OPER", {"id": n, "name": name, "label": label}) for n, name, label in OPERATIONS),
        *(("ENUM_CUDA_MEM_KIND", {"id": n, "name": "", "label": label}) for n, label in enumerate(MEMORIES)),
        ("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": 1_700_000_000_000_000_000}),
        ("TARGET_INFO_GPU", {"vmId": 1, "id": 5, "name": "Tesla T4", "asyncEngines": 3, "cuDevice": 0}),
        ("META_DATA_EXPORT", {"name": "EXPORT_PRODUCT_VERSION", "value": "2025.3.1"}),
        ("DIAGNOSTIC_EVENT", {"timestamp": 0, "text": "Not all CUDA events might have been collected."}),
        *(
            ("CUPTI_ACTIVITY_KIND_RUNTIME", {"start": start, "end": end, "nameId": name, "correlationId": n, **call})
            for start, end, name, n in calls
        ),
        ("CUPTI_ACTIVITY_KIND_MEMCPY", {"start": 2_000, "end": 8_000, **copied, **work}),
        ("CUPTI_ACTIVITY_KIND_MEMSET", {"start": 8_100, "end": 8_200, **memset, **work}),
        ("CUPTI_ACTIVITY_KIND_KERNEL", {"start": 8_500, "end": 24_001, **kernel, **work}),
        ("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", {"start": 9_100, "end": 24_900, **waited, **work}),
        ("NVTX_EVENTS", {"start": 500, "end": 26_000, "eventType": 59, "textId": 4, "globalTid": GTID}),
        ("NVTX_EVENTS", {"start": 500, "eventType": 59, "text": "mark", "globalTid": GTID}),
    ]
    connection = sqlite3.connect(path)
    for line in SCHEMA.strip().splitlines():
        name, columns = line.split(": ")
        connection.execute(f"CREATE TABLE {name} ({', '.join(columns.split())})")
    for table, row in rows:
        marks = ", ".join("?" * len(row))
        connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))
    if change:
        connection.executescript(change)
    connection.commit()
    connection.close()
    return path


EXPECTED = [
    (0, 25_500, "RANGE", "batch 3", "main", 3),
    (500, 900, "API", "cudaMemcpyAsync", "main", 3),
    (1_500, 6_000, "COPY_H2D", "Memcpy HtoD (Pinned -> Device)", "stream 13", 3),
    (2_500, 700, "API", "cudaLaunchKernel", "main", 3),
    (7_600, 100, "MEMSET", "Memset (Device)", "stream 7", -1),
    (8_000, 15_501, "COMPUTE", "void gemm<float>(int)", "stream 7", 3),
    (8_500, 16_000, "API", "cudaStreamSynchronize", "main", 3),
    (8_600, 15_800, "WAIT", "synchronize", "main", 3),  # as the table of synchronisations has it
]


def table(timeline):
    return [(row.start, row.duration, row.kind.name, row.name, row.lane.name, row.batch) for row in timeline.rows()]


def test_an_export_reads_as_a_profiler_trace_does(tmp_path):
    timeline = read(export(tmp_path / "report.sqlite")).self_check()
    assert table(timeline) == EXPECTED
    assert timeline.context.device == "Tesla T4"
    assert timeline.context.versions == {"Nsight Systems": "2025.3.1"}
    assert "2023-11-14 22:13:20.000000500 UTC" in timeline.context.clock
    assert "nsys says: Not all CUDA events" in notes(timeline)
    (said,) = timeline.context.missing  # a sentence that a finding goes on with
    assert said.endswith("collected")
    assert "1 NVTX marks" in notes(timeline)
    assert "0 of 2 launches without GPU work, 1 of 3 GPU spans without a launch" in notes(timeline)  # the memset
    assert len(timeline.arrows["tail"]) == 2
    assert rows(timeline, Kind.COPY_H2D)[0].nbytes == 4_096
    assert summarize(timeline).host_blocked == {"synchronize": 15_800}


@pytest.mark.parametrize(
    "change",
    [
        "DROP TABLE ENUM_CUDA_MEMCPY_OPER; DROP TABLE ENUM_CUDA_MEM_KIND;",  # older exports
        "DROP TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION; DROP TABLE ThreadNames; DROP TABLE DIAGNOSTIC_EVENT;",
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN demangledName; UPDATE StringIds SET value = "
        "'void gemm<float>(int)' WHERE id = 3;",
        "ALTER TABLE CUPTI_ACTIVITY_KIND_MEMSET DROP COLUMN memKind; UPDATE StringIds SET value = value;",
        "ALTER TABLE TARGET_INFO_GPU DROP COLUMN cuDevice; UPDATE TARGET_INFO_GPU SET id = 0;",
        "UPDATE NVTX_EVENTS SET textId = NULL, text = 'batch 3' WHERE end IS NOT NULL;",
    ],
)
def test_other_versions(tmp_path, change):
    found = table(read(export(tmp_path / "report.sqlite", change)))
    if "memKind" in change:
        found = [tuple("Memset (Device)" if cell == "Memset (Unknown)" else cell for cell in row) for row in found]
    if "SYNCHRONIZATION" in change:  # then the whole call counts as waiting
        found = [(8_600, 15_800, *row[2:]) if row[2] == "WAIT" else row for row in found]
    assert found == EXPECTED


@pytest.mark.parametrize("table_name", ["KERNEL", "MEMCPY", "MEMSET", "RUNTIME"])
def test_tables_are_made_only_when_needed(tmp_path, table_name):
    timeline = read(export(tmp_path / "report.sqlite", f"DROP TABLE CUPTI_ACTIVITY_KIND_{table_name};")).self_check()
    gone = {"KERNEL": {"gemm"}, "MEMCPY": {"Memcpy "}, "MEMSET": {"Memset"}, "RUNTIME": {"cuda"}}[table_name]
    assert not any(name in row.name for row in timeline.rows() for name in gone)
    assert len(timeline) >= 5 or table_name == "RUNTIME"


def test_memory_kinds_are_those_of_nsys(tmp_path):
    """0 is Pageable there, 0 is Unknown in CUPTI."""
    change = "UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET srcKind = 0; "
    row = rows(read(export(tmp_path / "a.sqlite", change)), Kind.COPY_H2D)[0]
    assert (row.name, row.pinned) == ("Memcpy HtoD (Pageable -> Device)", False)
    other = change + "DELETE FROM ENUM_CUDA_MEM_KIND; INSERT INTO ENUM_CUDA_MEM_KIND VALUES (0, '', 'Pinned');"
    assert rows(read(export(tmp_path / "b.sqlite", other)), Kind.COPY_H2D)[0].pinned is True


@pytest.mark.parametrize(("kind", "expected"), [(2, "COPY_D2H"), (8, "COPY_D2D"), (10, "COPY_D2D"), (11, "COPY_H2D")])
def test_directions(tmp_path, kind, expected):
    timeline = read(export(tmp_path / "a.sqlite", f"UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET copyKind = {kind};"))
    assert [row.kind.name for row in timeline.rows() if row.name.startswith("Memcpy")] == [expected]


def test_several_processes_become_several_groups_of_lanes(tmp_path):
    other = 1 << 48 | 5_000 << 24
    change = "; ".join(
        f"INSERT INTO {name} SELECT {columns.replace('globalPid', str(other)).replace('globalTid', str(other | 5_000))}"
        f" FROM {name}"
        for name, columns in {
            "CUPTI_ACTIVITY_KIND_MEMSET": "start, end, 1, contextId, streamId, correlationId, globalPid, value, bytes, "
            "graphNodeId, memKind",
            "CUPTI_ACTIVITY_KIND_RUNTIME": "start, end, eventClass, globalTid, correlationId, nameId, returnValue, "
            "callchainId",
        }.items()
    )
    timeline = read(export(tmp_path / "a.sqlite", change + ";")).self_check()
    lanes = {4321: ("main", "stream 7", "stream 13"), 5000: ("main", "stream 7")}
    assert {lane.name for lane in timeline.lanes} == {f"process {n} {name}" for n in lanes for name in lanes[n]}


def test_a_synchronisation_is_a_wait_of_the_host_and_one_of_a_stream_is_not(tmp_path):
    """Also where its call is not in the file; then in the process's first thread."""
    columns = "start, end, deviceId, contextId, streamId, correlationId, globalPid, syncType, eventId"
    lost = columns.replace("start, end", "26000, 27000").replace("correlationId", "99")
    stream = columns.replace("start, end", "28000, 29000").replace("syncType", "2")
    change = "".join(
        f"INSERT INTO CUPTI_ACTIVITY_KIND_SYNCHRONIZATION SELECT {each} FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION "
        "WHERE correlationId = 3 AND syncType = 3;"
        for each in (lost, stream)
    )
    timeline = read(export(tmp_path / "a.sqlite", change)).self_check()
    waits = [(row.start, row.duration, row.lane.name) for row in rows(timeline, Kind.WAIT)]
    assert waits == [(8_600, 15_800, "main"), (25_500, 1_000, "main")]
    assert "1 synchronisation rows" in notes(timeline)


def test_graphs_as_a_whole(tmp_path):
    change = (
        "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER, deviceId INTEGER, graphId INTEGER, "
        "contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER);"
        f"INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (30000, 40000, 0, 6, 1, 7, 77, {GPID});"
    )
    assert rows(read(export(tmp_path / "a.sqlite", change)), Kind.COMPUTE)[-1].name == "CUDA graph 6"


def test_odd_rows_are_counted(tmp_path):
    change = (
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 5; UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET bytes = 'many';"
    )
    timeline = read(export(tmp_path / "a.sqlite", change))
    assert "2 events lost" in notes(timeline)


def test_databases_that_are_no_export(tmp_path):
    path = tmp_path / "other.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE users (id INTEGER)")
    connection.commit()
    connection.close()
    with pytest.raises(TraceError, match="no Nsight Systems export; its tables are: users"):
        read(path)
    data = path.read_bytes()
    with pytest.raises(TraceError, match=r"gzip-ed SQLite database; unpack it with `gunzip`"):
        read(write(tmp_path, data, "other.sqlite.gz"))
    path.write_bytes(data[:100] + b"\xff" * 500)
    with pytest.raises(TraceError, match="cannot be read"):
        read(path)


def test_a_damaged_export_ends_in_a_sentence(tmp_path):
    data = export(tmp_path / "a.sqlite").read_bytes()
    for end in range(100, len(data), 4_096):
        path = tmp_path / "cut.sqlite"
        path.write_bytes(data[:end])
        try:
            read(path).self_check()
        except TraceError as problem:
            assert "cut.sqlite" in str(problem)


def test_reading_writes_nothing(tmp_path):
    path = export(tmp_path / "a.sqlite")
    before = path.read_bytes()
    read(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.sqlite"]


@pytest.mark.parametrize("log", [True, False])
def test_a_file_whose_rows_are_in_its_write_ahead_log(tmp_path, log):
    path, there = tmp_path / "report.sqlite", tmp_path / "copied" / "report.sqlite"
    there.parent.mkdir()
    rows = export(path, "PRAGMA journal_mode = wal") and sqlite3.connect(path)
    rows.execute("DELETE FROM NVTX_EVENTS")
    rows.commit()
    shutil.copy(path, there)
    if log:
        shutil.copy(f"{path}-wal", f"{there}-wal")
    assert [row[3] for row in table(read(there))] == [row[3] for row in EXPECTED[log:]]
    rows.close()


def test_a_file_without_its_write_ahead_log(tmp_path):
    path, there = tmp_path / "report.sqlite", tmp_path / "copied.sqlite"
    for number, (made, said) in enumerate(((True, "are empty; record"), (False, "but no Nsight Systems export"))):
        place = path.with_stem(f"report{number}")
        rows = sqlite3.connect(place)
        rows.execute("PRAGMA journal_mode = wal")
        rows.execute(f"CREATE TABLE {'NVTX_EVENTS' if made else 'other'} (start, end)")
        rows.commit()
        if made:
            rows.execute("PRAGMA wal_checkpoint")
        rows.execute("INSERT INTO NVTX_EVENTS VALUES (1, 2)") if made else rows.execute(
            "CREATE TABLE TARGET_INFO_GPU (id)"
        )
        rows.commit()
        shutil.copy(place, there)
        rows.close()
        with pytest.raises(
            TraceError, match=f"{said}.*If there was a file copied.sqlite-wal beside it, copy that, too"
        ):
            read(there)


def test_a_file_without_tables_of_events_names_them(tmp_path):
    names = [line.split(":")[0] for line in SCHEMA.strip().splitlines()]
    drops = [name for name in names if name.startswith(("CUPTI", "NVTX"))]
    path = export(tmp_path / "report.sqlite", "".join(f"DROP TABLE {name};" for name in drops))
    with pytest.raises(
        TraceError, match=r"it lacks the tables CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_.*, NVTX_EVENTS; record"
    ):
        read(path)
    path.unlink()
    path = export(
        path, "".join(f"DELETE FROM {name};" for name in drops if "MEMSET" not in name) + f"DROP TABLE {drops[3]}"
    )
    with pytest.raises(TraceError, match=r"it lacks the tables CUPTI_ACTIVITY_KIND_MEMSET and its tables .* are empty"):
        read(path)


def test_a_file_without_its_tables_of_texts_is_drawn_without_names(tmp_path):
    timeline = read(export(tmp_path / "report.sqlite", "DROP TABLE StringIds; DROP TABLE ENUM_CUDA_MEM_KIND"))
    assert [row[:3] for row in table(timeline)] == [row[:3] for row in EXPECTED]
    assert {row.name for row in rows(timeline, Kind.COMPUTE, Kind.RANGE)} == {"unknown kernel", "range without a name"}
    assert "names are not known: the file has no table StringIds" in notes(timeline)


@pytest.mark.parametrize("column", ["start", "end", "correlationId"])
def test_a_file_whose_every_row_is_lost(tmp_path, column):
    names = [line.split(":")[0] for line in SCHEMA.strip().splitlines() if line.startswith("CUPTI")]
    change = "".join(f"UPDATE {name} SET {column} = 'x';" for name in names) + "DELETE FROM NVTX_EVENTS"
    with pytest.raises(TraceError, match="has 7 events, and none can be drawn: 7 events with values of other kinds"):
        read(export(tmp_path / "report.sqlite", change))


@pytest.mark.parametrize("idle", [3, 30])
def test_very_many_processes(tmp_path, monkeypatch, idle):
    kernel = (
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, globalPid) VALUES (9, 10, 0, 7, {});"
    )
    call = "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid) VALUES (9, 10, {});"
    work = "".join(kernel.format((n + 1) << 24) for n in range(5)) + "".join(
        call.format((n + 99) << 24) for n in range(idle)
    )
    path = export(tmp_path / "report.sqlite", work)
    timeline = read(path)
    assert len(timeline) == len(EXPECTED) + 5
    told = (
        [f"1 spans of process {n + 99} (no GPU work)" for n in range(3)]
        if idle == 3
        else ["30 spans of 30 processes (no"]
    )
    assert all(each in notes(timeline) for each in told)
    monkeypatch.setitem(files.LIMITS, "process", 5)
    with pytest.raises(TraceError, match=f"{path}: it has 6 processes, and at most 5 are read"):
        read(path)


# Managed memory: the tables of nsys 2023 to 2025, with the columns that are read

FAULTS = (
    "CREATE TABLE CUDA_UM_GPU_PAGE_FAULT_EVENTS (start, end, globalPid, deviceId, address, numberOfPageFaults);"
    "CREATE TABLE CUDA_UM_CPU_PAGE_FAULT_EVENTS (start, globalPid, address);"
)


def managed(groups=3, migrations=2, cause=2):
    """Page faults of 2 µs each while the kernel runs, a migration of 1 µs in the first ones, one fault of the host."""
    faults = (f"({9_000 + 3_000 * n}, {11_000 + 3_000 * n}, {GPID}, 0, 0, {5 + n})" for n in range(groups))
    moved = (
        f"({10_500 + 3_000 * n}, {11_500 + 3_000 * n}, 0, 0, {GPID}, 65536, {11 + n % 3}, 4, 2, {cause})"
        for n in range(migrations)
    )
    columns = "start, end, deviceId, streamId, globalPid, bytes, copyKind, srcKind, dstKind, migrationCause"
    change = FAULTS + f"INSERT INTO CUDA_UM_CPU_PAGE_FAULT_EVENTS VALUES (24100, {GPID}, 0);"
    change += "".join(f"INSERT INTO CUDA_UM_GPU_PAGE_FAULT_EVENTS VALUES {row};" for row in faults)
    return change + "".join(f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY ({columns}) VALUES {row};" for row in moved)


@pytest.mark.parametrize(("groups", "migrations"), [(3, 2), (0, 3), (4, 0), (1, 1)])
def test_page_faults_of_managed_memory_are_spans_and_told(tmp_path, groups, migrations):
    timeline = read(export(tmp_path / "a.sqlite", managed(groups, migrations))).self_check()
    faults = [row for row in rows(timeline, Kind.RANGE) if row.name == "page faults"]
    assert [(row.start, row.duration, row.lane.group) for row in faults] == [
        (8_500 + 3_000 * n, 2_000, "device") for n in range(groups)
    ]
    moved = [row.kind for row in timeline.rows() if row.name.endswith("(page migration)")]
    assert moved == [Kind.COPY_H2D, Kind.COPY_D2H, Kind.COPY_D2D][:migrations]
    count = sum(5 + n for n in range(groups))
    said = f"{count} page faults of the GPU in {groups} group{'s' * (groups != 1)}, 1 page fault of the CPU"
    assert f"managed memory: {said}" in notes(timeline)
    assert (timeline.where(Kind.RANGE) & (timeline.batch < 0)).sum() == groups  # they are no steps
    whole = advise(timeline, (0, timeline.duration))
    found = next(each for each in whole if each.kind == "page-faults")
    covered = {time for n in range(groups) for time in range(9_000 + 3_000 * n, 11_000 + 3_000 * n)}
    covered |= {time for n in range(migrations) for time in range(10_500 + 3_000 * n, 11_500 + 3_000 * n)}
    assert found.expected_gain.ns == len(covered)
    assert (f"{groups} group" in found.evidence) is (groups > 0)
    assert (f"{migrations} migration" in found.evidence) is (migrations > 0)
    assert "cudaMemPrefetchAsync" in found.change


def test_pages_that_the_program_asked_for_are_no_faults(tmp_path):
    timeline = read(export(tmp_path / "a.sqlite", managed(0, 3, cause=1)))
    assert [row.name for row in rows(timeline, Kind.COPY_H2D, Kind.COPY_D2H)][1:] == [
        "Memcpy HtoD (prefetched pages)",
        "Memcpy DtoH (prefetched pages)",
    ]
    assert "page-faults" not in [each.kind for each in advise(timeline, (0, timeline.duration))]


def test_migrations_are_no_batches_and_bring_no_results(tmp_path):
    """A kernel and a synchronise, again and again, of a program that knows no other copies."""
    call = (
        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId) "
        f"VALUES ({{}}, {{}}, {GTID}, {{}}, {{}});"
    )
    kernel = (
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, correlationId, globalPid, shortName) "
        f"VALUES ({{}}, {{}}, 0, 7, {{}}, {GPID}, 3);"
    )
    moved = (
        "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY (start, end, deviceId, streamId, globalPid, bytes, copyKind) "
        f"VALUES ({{}}, {{}}, 0, 0, {GPID}, 65536, {{}});"
    )
    change = "DELETE FROM CUPTI_ACTIVITY_KIND_MEMCPY; DELETE FROM NVTX_EVENTS; DELETE FROM DIAGNOSTIC_EVENT;"
    for n in range(20):
        at = 80_000 * (n + 1)
        change += call.format(at, at + 5_000, 100 + n, 1) + kernel.format(at + 6_000, at + 46_000, 100 + n)
        change += call.format(at + 8_000, at + 46_500, 200 + n, 6)
        change += moved.format(at + 10_000, at + 20_000, 11) + moved.format(at + 50_000, at + 70_000, 12)
    advice = advise(read(export(tmp_path / "a.sqlite", change)))
    assert advice[0].kind == "page-faults" and advice[0].expected_gain.ns == 20 * 30_000
    assert "no result is brought" in next(each for each in advice if each.kind == "synchronizes-each-step").evidence
    assert not {"copy-not-hidden", "resident"} & {each.kind for each in advice}


def test_what_is_not_seen_is_recorded_anew_with_nsight_systems(tmp_path):
    tables = ("KERNEL", "MEMCPY", "MEMSET")
    deleted = "".join(f"DELETE FROM CUPTI_ACTIVITY_KIND_{table};" for table in tables)
    timeline = read(export(tmp_path / "report.sqlite", change=deleted))
    (found,) = advise(timeline)
    assert found.kind == "work-not-seen"
    assert found.change.startswith("nsys profile --trace=cuda,nvtx ") and "torch" not in found.change
