"""Small traces for the tests, written as the profilers write them; and a way to read them."""

import gzip
import json
from pathlib import Path

import loaderviz as lv
from loaderviz.timeline import Kind
from loaderviz.traces import read

PID = 4_000
BASE = 1_700_000_000_000_000  # µs, Unix


def event(cat, name, pid, tid, ts, dur, args):
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def op(name, ts, dur, tid=PID, pid=PID, **args):
    return event("cpu_op", name, pid, tid, ts, dur, {"External id": 1, **args})


def note(name, ts, dur, tid=PID):
    return op(name, ts, dur, tid) | {"cat": "user_annotation"}


def call(name, ts, dur, correlation, tid=PID, cat="cuda_runtime", **args):
    return event(cat, name, PID, tid, ts, dur, {"cbid": 211, "correlation": correlation, **args})


def work(name, ts, dur, correlation, stream=7, device=0, cat="kernel", **args):
    told = {"device": device, "context": 1, "stream": stream, "correlation": correlation, **args}
    return event(cat, name, device, stream, ts, dur, told)


def copy(ts, dur, correlation, name="Memcpy HtoD (Pinned -> Device)", stream=7, nbytes=1_000, **args):
    return work(name, ts, dur, correlation, stream, cat="gpu_memcpy", bytes=nbytes, **args)


def trace(*events, **outer):
    return {"schemaVersion": 1, **outer, "traceEvents": list(events), "traceName": "test.json"}


def loop(base=BASE):
    """A launch, a pinned copy and a synchronise in one step."""
    return [
        note("ProfilerStep#3", base, 100),
        op("aten::copy_", base + 1, 20),
        call("cudaMemcpyAsync", base + 2, 8, 1),
        copy(base + 12, 30, 1),
        op("aten::mm", base + 30, 10),
        call("cudaLaunchKernel", base + 32, 5, 2),
        work("gemm", base + 45, 40, 2),
        call("cudaDeviceSynchronize", base + 60, 26, 3),
    ]


def repeated(count, period, events, first=BASE):
    """Of so many steps of `period` µs the `events(n, at)` of each, where it is the nth and begins at `at`."""
    return [event for n in range(count) for event in events(n, first + n * period)]


def write(folder, data, name="trace.json"):
    """Write a trace (dict, list, text or bytes), gzip if the name says so."""
    path = Path(folder) / name
    raw = data if isinstance(data, bytes) else (data if isinstance(data, str) else json.dumps(data)).encode()
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return path


def straggling(folder, late, count=12, steps=6, **told):
    """Files of `count` ranks that reduce in each step; the loader of rank `late` takes 300 µs longer than any other."""
    for rank in range(count):
        loads = 50 + (300 if rank == late else 5 * rank)
        events = repeated(
            steps,
            1_000,
            lambda n, at, loads=loads, rank=rank: [
                note(f"ProfilerStep#{n + 3}", at, 1_000),
                op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, loads),
                call("cudaLaunchKernel", at + loads + 10, 5, 10 * n + 1),
                work("gemm", at + loads + 20, 320, 10 * n + 1, device=rank),
                call("cudaLaunchKernel", at + loads + 50, 5, 10 * n + 2),
                work("ncclDevKernel_AllReduce_Sum", at + loads + 350, 550 - loads, 10 * n + 2, 20, device=rank),
            ],
        )
        write(folder, trace(*events, distributedInfo={"rank": rank, **told}), f"{rank}.json")


def read_events(folder, *events, **outer):
    return read(write(folder, trace(*events, **outer))).self_check()


def record_cpu(block, **options):
    """The timeline of a real run of this on the CPU."""
    with lv.record(on="cpu", **options) as recording:
        block()
    return recording.timeline.self_check()


def notes(timeline):
    return "; ".join(timeline.context.notes)


def steps_of(timeline):
    return [row.name for row in timeline.rows(Kind.RANGE) if row.name.startswith("batch ")]


def rows(timeline, *kinds):
    return list(timeline.rows(*kinds))


def styled(data, style):
    """The same trace in the layouts that Kineto used: one line (a rewritten file), keys in lines, one key a line."""
    if style == "compact":
        return json.dumps(data, separators=(",", ":"))
    if style == "one line":
        return json.dumps(data)
    if style == "torch 2.13":
        return json.dumps(data, indent=2)
    if style == "sorted keys":
        return json.dumps(data, sort_keys=True)
    assert style == "kineto"
    head = {key: value for key, value in data.items() if key not in ("traceEvents", "traceName")}
    opening = json.dumps(head)[1:-1]
    body = ",\n".join(_kineto(event) for event in data["traceEvents"])
    return f'\n{{\n  {opening},\n  "traceEvents": [\n{body}\n  ],\n  "traceName": {json.dumps(data["traceName"])}\n}}\n'


def _kineto(event):
    if event["ph"] != "X":
        first = {"name": event["name"]} if "name" in event and event["ph"] == "M" else {}
        return "  " + json.dumps(first | event).replace("{", "{\n    ", 1)[:-1] + "\n  }"
    head = json.dumps({key: event[key] for key in ("ph", "cat", "name", "pid", "tid")})[1:-1]
    args = json.dumps(event["args"])[1:-1]
    return (
        f'  {{\n    {head},\n    "ts": {json.dumps(event["ts"])}, "dur": {json.dumps(event["dur"])},\n'
        f'    "args": {{\n      {args}\n    }}\n  }}'
    )
