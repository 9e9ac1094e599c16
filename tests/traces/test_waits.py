"""What a trace tells about waiting: blocked calls, event arrows, DataLoader; and cause by cause."""

import pytest
from trace_files import BASE, call, copy, note, op, read_events, repeated, rows, work

from loaderviz import summarize
from loaderviz.timeline import ArrowKind, Cause, Kind

BLOCKING = {
    Cause.SYNCHRONIZE: "cudaDeviceSynchronize cudaStreamSynchronize cudaEventSynchronize hipStreamSynchronize "
    "cuCtxSynchronize urQueueFinish",
    Cause.ALLOCATION: "cudaFree hipFree cuMemFree_v2",
    Cause.PAGE_LOCKING: "cudaHostAlloc cudaHostRegister",
    Cause.NONE: "cudaMalloc cuMemAlloc_v2 cudaMallocAsync cudaEventQuery cudaStreamWaitEvent cudaLaunchKernel",
}


@pytest.mark.parametrize(("cause", "name"), [(cause, name) for cause in BLOCKING for name in BLOCKING[cause].split()])
def test_calls_that_block(tmp_path, cause, name):
    waits = rows(read_events(tmp_path, call(name, BASE, 8, 1), op("aten::x", BASE, 20)), Kind.WAIT)
    expected = [(cause, 0, 8_000, cause.words)] if cause is not Cause.NONE else []
    assert [(row.cause, row.start, row.end, row.name) for row in waits] == expected


@pytest.mark.parametrize(
    ("name", "memory", "began", "cause"),
    [
        ("cudaMemcpyAsync", "Pageable -> Device", 2, Cause.STAGING),  # the copy began inside the call
        ("cudaMemcpyAsync", "Pageable -> Device", 40, None),  # it began after: the call did not wait for it
        ("cudaMemcpyAsync", "Pinned -> Device", 2, None),
        ("cudaMemcpy", "Pinned -> Device", 2, Cause.SYNCHRONIZE),
        ("cudaMemcpy", "Pageable -> Device", 2, Cause.STAGING),
        ("hipMemcpyWithStream", "Host -> Device", 2, Cause.SYNCHRONIZE),
    ],
)
def test_copies_that_block(tmp_path, name, memory, began, cause):
    copied = copy(BASE + began, 10, 1, f"Memcpy HtoD ({memory})")
    timeline = read_events(tmp_path, call(name, BASE, 30, 1), copied)
    assert [(row.cause, row.duration) for row in timeline.rows(Kind.WAIT)] == ([(cause, 30_000)] if cause else [])
    if cause:
        assert summarize(timeline).host_blocked == {cause.words: 30_000}
        call_row, wait = (rows(timeline, kind)[0] for kind in (Kind.API, Kind.WAIT))
        assert (wait.start, wait.end, wait.lane) == (call_row.start, call_row.end, call_row.lane)


def test_waits_do_not_move_arrows(tmp_path):
    """Rows are added between rows: arrows must still join the same spans."""
    events = repeated(
        29,
        100,
        lambda n, at: [
            call("cudaLaunchKernel", at, 5, n + 1),
            work(f"k{n}", at + 20, 30, n + 1),
            call("cudaStreamSynchronize", at + 10, 45, 1_000 + n),
        ],
    )
    timeline = read_events(tmp_path, *events)
    assert len(rows(timeline, Kind.WAIT)) == 29
    for tail, head in zip(timeline.arrows["tail"], timeline.arrows["head"], strict=True):
        launch, kernel = timeline.row(int(tail)), timeline.row(int(head))
        assert (launch.name, kernel.start - launch.start) == ("cudaLaunchKernel", 20_000)
        assert launch.correlation == kernel.correlation


def test_an_operator_may_bear_the_name_of_a_wait(tmp_path):
    timeline = read_events(tmp_path, op("synchronize", BASE, 50), call("cudaDeviceSynchronize", BASE + 5, 20, 1))
    assert [(row.kind.name, row.name) for row in timeline.rows()] == [
        ("OPERATOR", "synchronize"),
        ("API", "cudaDeviceSynchronize"),
        ("WAIT", "synchronize"),
    ]
    assert len(set(timeline.names)) == len(timeline.names)


def test_dataloader_with_and_without_workers(tmp_path):
    name = "enumerate(DataLoader)#_{}DataLoaderIter.__next__"
    timeline = read_events(
        tmp_path, note(name.format("MultiProcessing"), BASE, 9), op(name.format("SingleProcess"), BASE + 20, 30)
    )
    steps = [row.name for row in timeline.rows(Kind.RANGE)]
    assert (steps, [(row.kind, row.cause) for row in timeline.rows(Kind.WAIT, Kind.FETCH)]) == (
        ["batch 0", "batch 1"],
        [(Kind.WAIT, Cause.DATA), (Kind.FETCH, Cause.NONE)],
    )
    assert summarize(timeline).host_blocked == {"waiting for data": 9_000}


def two_streams(record=11, wait=14, copied=10, kernel=30):
    waits_on = {"wait_on_stream": 20, "wait_on_cuda_event_record_corr_id": 2, "wait_on_cuda_event_id": 8}
    sync = work("Stream Wait Event", BASE + 15, 1, 3, cat="cuda_sync", cuda_sync_kind="Stream Wait Event", **waits_on)
    return [
        call("cudaMemcpyAsync", BASE, 2, 1),
        copy(BASE + copied, 10, 1, stream=20),
        call("cudaEventRecord", BASE + record, 1, 2),
        call("cudaStreamWaitEvent", BASE + wait, 1, 3),
        sync,
        call("cudaLaunchKernel", BASE + 18, 2, 4),
        work("gemm", BASE + kernel, 5, 4, stream=7),
    ]


def arrows(timeline):
    mine = timeline.arrows["kind"] == ArrowKind.WAIT
    ends = zip(timeline.arrows["tail"][mine].tolist(), timeline.arrows["head"][mine].tolist(), strict=True)
    return [(timeline.row(tail).name, timeline.row(head).name) for tail, head in ends]


def test_event_waits_become_arrows(tmp_path):
    joined = [("Memcpy HtoD (Pinned -> Device)", "gemm")]
    assert arrows(read_events(tmp_path, *two_streams())) == joined
    assert arrows(read_events(tmp_path, *two_streams(record=-5))) == []  # recorded before the copy was issued
    assert arrows(read_events(tmp_path, *two_streams(wait=25))) == []  # the kernel was launched before the wait
    assert arrows(read_events(tmp_path, *two_streams(kernel=12))) == []  # the times say that it did not wait
