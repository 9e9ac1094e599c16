"""Time and memory grow with what a file holds, not with its square.

Counted are the lines of the package that run, and the numbers that numpy handles, of files with one thing in plenty.
"""

import sys
from dataclasses import replace
from pathlib import Path

import factory
import numpy as np
import pytest
from trace_files import BASE, call, copy, note, op, trace, work, write

import loaderviz
from loaderviz import export
from loaderviz.analysis.ranks import drawn, rank_table
from loaderviz.timeline import Kind, Timeline
from loaderviz.traces.assemble import assemble
from loaderviz.traces.kineto import read_kineto
from loaderviz.traces.source import Document
from loaderviz.traces.steps import counted
from loaderviz.view import lanes

HERE = str(Path(loaderviz.__file__).parent)
FEW, MANY = 60, 240
LINEAR = 6.5  # times as much for four times as many; what grows with the square comes to 16
count = {"lines": 0, "numbers": 0}


class Counted(np.ndarray):
    """An array that counts the numbers that are read of it, and of what is made of it."""

    def __array_ufunc__(self, ufunc, method, *values, out=(), **options):
        count["numbers"] += sum(np.size(each) for each in values)
        plain = [each.view(np.ndarray) if isinstance(each, Counted) else each for each in values]
        into = {"out": tuple(each.view(np.ndarray) for each in out)} if out else {}
        result = getattr(ufunc, method)(*plain, **into, **options)
        return result.view(Counted) if isinstance(result, np.ndarray) else result

    def __array_function__(self, function, types, values, options):
        flat = [part for each in values for part in (each if isinstance(each, (list, tuple)) else [each])]
        count["numbers"] += sum(each.size for each in flat if isinstance(each, np.ndarray))
        return super().__array_function__(function, types, values, options)

    def __getitem__(self, key):
        result = super().__getitem__(key)
        count["numbers"] += np.size(key) + np.size(result) if isinstance(key, np.ndarray) else 1
        return result


def counting(columns):
    return {name: values.view(Counted) for name, values in columns.items()}


def cost(function, *values):
    """How many lines run, and numbers are handled; and what comes out."""

    def line(frame, event, _):
        count["lines"] += event == "line"
        return line

    def entered(frame, event, _):
        return line if frame.f_code.co_filename.startswith(HERE) else None

    count.update(lines=0, numbers=0)
    before = sys.gettrace()
    sys.settrace(entered)
    try:
        result = function(*values)
    except loaderviz.LoadervizError as problem:
        result = problem
    finally:
        sys.settrace(before)
    return count["lines"] + count["numbers"], result


def launched(n, name="k", stream=7, device=0, at=None, length=3):
    at = BASE + n if at is None else at
    return [call("cudaLaunchKernel", at, 1, n + 1), work(name, at + 1, length, n + 1, stream, device)]


def copied(n, at):
    return [call("cudaMemcpyAsync", at, 1, 10**6 + n), copy(at + 2, 3, 10**6 + n, nbytes=1_000 + n)]


def frame(n):
    return op(f"a{n}.py(3): f", BASE + n, 3, tid=n) | {"cat": "python_function"}


def waiting(n):
    told = {"correlation": n + 1, "device": 0, "stream": n, "wait_on_stream": n - 1}
    return op("Stream Wait Event", BASE + n, 0) | {
        "cat": "cuda_sync",
        "args": told | {"wait_on_cuda_event_record_corr_id": n},
    }


STEPS = [note(f"ProfilerStep#{n}", BASE + 250 * n, 249) for n in range(4)]
TRACES = {  # the nth events of a file that has n of one thing
    "threads": lambda n: [op("aten::a", BASE + n, 3, tid=10_000 + n)],
    "threads of backward": lambda n: [op(f"autograd::engine::{n}Backward0", BASE + n, 3, tid=10_000 + n)],
    "threads that prefetch": lambda n: [
        note(f"{what}batch {n}", BASE + 5 * n, 4, tid=tid) for what, tid in (("", 4_000), ("prefetch of ", n))
    ],
    "processes": lambda n: [op("aten::a", BASE + n, 3, pid=10_000 + n, tid=n)],
    "streams": lambda n: launched(n, stream=n),
    "waits of streams": lambda n: [*launched(n, stream=n), waiting(n)],
    "devices": lambda n: launched(n, device=n),
    "kernels at once": lambda n: launched(n, at=BASE + n % 10, length=10**6),
    "operators at once": lambda n: [op("aten::a", BASE + n, 10**6 + n)],
    "frames": lambda n: [op("aten::a", BASE + n, 3, tid=n), frame(n)],
    "names": lambda n: launched(n, name=f"kernel {n}"),
    "slow first calls": lambda n: [op(f"aten::{n}", BASE + 3_000 * n, 2_000), *launched(n, at=BASE + 3_000 * n)],
    "steps": lambda n: [note(f"ProfilerStep#{n + 9}", BASE + 10 * n, 9), *launched(n, at=BASE + 10 * n)],
    "optimizers": lambda n: [
        note("Optimizer.step#SGD.step", BASE + 10 * n + 7, 2),
        op(f"aten::{n}", BASE + 10 * n, 1),
        *launched(n, at=BASE + 10 * n),
    ],
    "batches": lambda n: [
        note(f"batch {n}: 64 samples", BASE + 20 * n, 19),
        *launched(n, at=BASE + 20 * n + 8),
        *copied(n, BASE + 20 * n),
    ],
    "copies": lambda n: copied(n, BASE + 10 * n),
}
ALONE = ("slow first calls", "steps", "optimizers")  # without the steps of others


def saved(count, group="device", role="stream", kind=Kind.COMPUTE, ranks=1, marks=0):
    columns = dict.fromkeys(("batch", "nbytes", "correlation", "pinned", "source"), [-1] * count)
    columns |= {
        "cause": [0] * count,
        "kind": [int(kind)] * count,
        "lane": list(range(count)),
        "name": list(range(count)),
    }
    columns |= {"start": list(range(count)), "end": list(range(9, count + 9))}
    mark = {"time": 3, "lane": 0, "kind": "early-read", "text": "x", "spans": [0, -1]}
    return Timeline.from_dict({
        "loaderviz": 1,
        "context": {},
        "lanes": [{"name": f"{role} {n}", "group": group, "role": role, "device": n % ranks} for n in range(count)],
        "names": [f"name {n}" for n in range(count)],
        "sources": [],
        "spans": columns,
        "arrows": {"tail": [], "head": [], "kind": []},
        "marks": [mark] * marks,
    })  # fmt: skip


TIMELINES = {
    "lanes of one number": saved,
    "ranks": lambda n: saved(n, ranks=n),
    "loops": lambda n: saved(n, "host", "main", Kind.OPERATOR),
    "loops of ranks": lambda n: saved(n, "host", "main", Kind.OPERATOR, ranks=n),
    "workers": lambda n: saved(n, "host", "worker", Kind.FETCH),
    "hazards": lambda n: saved(9, marks=n),
    "workers of a loop": lambda n: factory.loader("pinned", n, n),
    "batches of a loop": lambda n: factory.loader("blocking", n),
    "batches ahead": lambda n: factory.loader("prefetch", n),
}
JOURNEYS = {
    "summarize": loaderviz.summarize,
    "advise": loaderviz.advise,
    "ranks": rank_table,
    "drawn": drawn,
    "what_if": lambda timeline: loaderviz.what_if(timeline, workers=0, prefetch=2),
    "what_if on another": lambda timeline: loaderviz.what_if(timeline, gpu="h100"),
    "picture": lambda timeline: timeline.view(operators=True).packed(),
    "still": lambda timeline: timeline.view().svg(),
    "figure": lambda timeline: timeline.figure(),
    "trace": lambda timeline: export._as_text(timeline, "names"),
    "table": export.to_table,
    "save": Timeline.to_dict,
    "load": lambda timeline: Timeline.from_dict(timeline.to_dict()),
    "between": lambda timeline: timeline.between(timeline.begin + 3, timeline.begin + timeline.duration // 2),
}


@pytest.fixture(autouse=True)
def small_picture(monkeypatch):
    monkeypatch.setattr(lanes, "LANES", 30)


def journeys(small, large):
    """Say which journeys cost far more than four times as much."""
    parts = [replace(each, spans=counting(each.spans), arrows=counting(each.arrows)) for each in (small, large)]
    costs = {name: [cost(journey, replace(part))[0] for part in parts] for name, journey in JOURNEYS.items()}
    return {name: (few, many) for name, (few, many) in costs.items() if many > LINEAR * few}


@pytest.mark.slow
@pytest.mark.parametrize("what", TRACES)
def test_a_trace_that_has_much_of(tmp_path, what):
    found = []
    for number in (FEW, MANY):
        events = [event for n in range(number) for event in TRACES[what](n)]
        raw = read_kineto(Document(write(tmp_path, trace(*([] if what in ALONE else STEPS), *events))))
        raw.columns = counting(raw.columns)
        found.append(cost(lambda raw=raw: counted(assemble([raw]))))
    assert found[1][0] < LINEAR * found[0][0]
    assert not journeys(*(timeline for _, timeline in found))


@pytest.mark.slow
@pytest.mark.parametrize("what", TIMELINES)
def test_a_timeline_that_has_much_of(what):
    assert not journeys(*(TIMELINES[what](number) for number in (FEW, MANY)))
