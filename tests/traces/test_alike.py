"""Events that look alike, read by numpy: whatever they hold, the result is that of the JSON parser."""

import json
from collections import Counter

import pytest
import trace_files
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from trace_files import BASE, PID, call, copy, op, shared, trace, work, write

from loaderviz.traces import kineto as reader
from loaderviz.traces import read
from loaderviz.traces.kineto import template_of

NEVER = 10**9
STYLES = ("compact", "one line", "torch 2.13", "kineto", "sorted keys")


def seen(path, monkeypatch, few):
    """All that a reader learns from a file, however the events are read: spans, arrows, notes."""
    monkeypatch.setattr(reader, "FEW", few)
    timeline = read(path).self_check()
    ends = zip(*(timeline.arrows[side].tolist() for side in ("tail", "head", "kind")), strict=True)
    arrows = Counter((timeline.row(tail), timeline.row(head), kind) for tail, head, kind in ends)
    return Counter(timeline.rows()), arrows, timeline.lanes, sorted(timeline.context.notes), timeline.context.clock


def check(path, monkeypatch):
    """Read a file in both ways; return how many events numpy took."""
    taken = 0
    rows = reader.EventTable._of_template

    def counted(self, digits_out, heads, tails):
        nonlocal taken
        found = rows(self, digits_out, heads, tails)
        taken += len(heads) if found else 0
        return found

    expected = seen(path, monkeypatch, NEVER)
    with monkeypatch.context() as patch:
        patch.setattr(reader.EventTable, "_of_template", counted)
        assert seen(path, patch, 2) == expected
    return taken


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("alexnet_pageable_2023.json.gz", 0.9),
        ("two_ranks/rank-0.json.gz", 0.9),
        ("event_sync_2023.json.gz", 0.5),
        ("resnet50_workers0_2021.json.gz", 0.95),
        ("cpu_only_2023.json.gz", 0.95),
    ],
)
def test_real_traces_read_the_same_and_mostly_by_numpy(name, least, monkeypatch):
    path = shared(name)
    assert check(path, monkeypatch) >= least * sum(seen(path, monkeypatch, NEVER)[0].values()) * 0.95


VALUES = st.one_of(
    st.integers(0, 10**6),
    st.integers(0, 2**70),
    st.integers(-5, 5),
    st.floats(0, 10**6),
    st.sampled_from([0.5, 1.25, 12.375, 1e-7, 1e22, "7", "0x1f", "stream 7", "a.b", "est. 5", None, True, [1, 2]]),
)
EXTRA = st.dictionaries(
    st.sampled_from(["queued", "bytes", "size", "kind", "stream", "device", "est. %", "arg2", "name", "ts", "grid"]),
    VALUES,
    max_size=3,
)
TIMES = st.one_of(
    st.integers(0, 5_000), st.integers(0, 5_000_000).map(lambda ns: ns / 1_000), st.sampled_from([0.0625, -3, 10**16])
)
IDS = st.sampled_from([PID, PID + 1, "25738", "stream 9", "python", -1, 7.0])
NAMES = st.sampled_from(["gemm", "aten::mm", "void f<4>(int)", 'a "b" \\ c', "ä\n", 'x", "pid": 5', "stage1", "stage2"])


@st.composite
def events(draw):
    """A few kinds of events, each several times with its own numbers, so that most come in groups."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        make = draw(st.sampled_from([op, call, work, copy]))
        extra, tid, name = draw(EXTRA), draw(IDS), draw(NAMES)
        if make is op:  # the arguments of operators are read only where an event beside them is damaged
            extra = {key: value for key, value in extra.items() if key not in ("bytes", "size", "stream", "device")}
        for _ in range(draw(st.integers(2, 4))):
            ts, dur, number = BASE + draw(TIMES), draw(TIMES), draw(st.integers(1, 9))
            if make is op:
                event = op(name, ts, dur, tid)
            elif make is copy:
                event = copy(ts, dur, number)
            else:
                event = make(name, ts, dur, number)
            found.append(event | {"args": event["args"] | extra})
        if make is not op and draw(st.booleans()):
            found[-1] |= {"args": found[-1]["args"] | {"correlation": draw(VALUES)}}
    return [event for event in found if first_of_its_time(found, event)]


def first_of_its_time(found, event):
    """Of different events with one start and one end the file's order decides which gets a lane of its own."""
    first = next(each for each in found if (each["ts"], each["dur"]) == (event["ts"], event["dur"]))
    return all(event[key] == first[key] for key in ("cat", "name", "pid", "tid"))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(made=[op("gemm", BASE, length, "25738") for length in (0, 0, 0.0)], style="compact")  # twins by both readers
@given(made=events(), style=st.sampled_from(STYLES))
def test_random_events_read_the_same(made, style, tmp_path, monkeypatch):
    path = write(tmp_path, trace_files.styled(trace(*made), style))
    check(path, monkeypatch)


@pytest.mark.parametrize("first", [0, 1])
def test_of_an_event_that_stands_there_twice_the_one_with_a_size_is_kept(tmp_path, monkeypatch, first):
    """However they are read: numpy takes those without a fraction, and so before the others."""
    sized, plain = work("gemm", BASE, 5, 1, queued=0, bytes=64.0), work("gemm", BASE, 5, 1)
    path = write(tmp_path, trace(*([sized, sized, plain, plain] if first else [plain, plain, sized, sized])))
    check(path, monkeypatch)
    assert [row.nbytes for row in read(path).rows()] == [64]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=events(), data=st.data())
def test_damaged_events_read_the_same(made, data, tmp_path, monkeypatch):
    """A digit too many or too few, a quote gone: no event takes the numbers of its neighbour."""
    raw = json.dumps(trace(*made))
    begin = raw.index("[")
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(begin + 1, len(raw) - 30))
        raw = raw[:place] + data.draw(st.sampled_from(["", "7", '"', ".", " ", "-", ","])) + raw[place + 1 :]
    check(write(tmp_path, raw), monkeypatch)


def test_a_number_gone_from_one_event_and_added_to_the_next(tmp_path, monkeypatch):
    """Together they have as many numbers as two whole events; each must have its own."""
    raw = json.dumps(trace(*(op(f"aten::op{n}", BASE + n, 5 + n) for n in range(40))))
    raw = raw.replace('"dur": 12,', '"dur": ,').replace('"dur": 13, "args"', '"dur": 13, "7args"')
    path = write(tmp_path, raw)
    check(path, monkeypatch)
    lengths = {row.name: row.duration for row in read(path).rows()}
    assert lengths == {f"aten::op{n}": (5 + n) * 1_000 for n in range(40) if n != 7}


def test_rocm_copies_keep_the_direction_of_their_call(tmp_path, monkeypatch):
    """The copy's kernels look alike; what they copy stands in the call, as text."""
    pairs = [
        (
            call("hipMemcpyAsync", BASE + 50 * n, 5, n + 1, kind=str(1 + n % 2), size="2560"),
            work("__amd_rocclr_copyBuffer.kd", BASE + 50 * n + 9, 20, n + 1),
        )
        for n in range(40)
    ]
    path = write(tmp_path, trace(*(event for pair in pairs for event in pair)))
    assert check(path, monkeypatch) == 40  # the kernels
    kinds = Counter(row.kind.name for row in read(path).rows())
    assert (kinds["COPY_H2D"], kinds["COPY_D2H"]) == (20, 20)


NOT_PLAIN = """
"tid": -7, "ts": 1, "dur": 2
"tid": 7, "ts": 1e5, "dur": 2
"tid": 7, "ts": 1
"tid": 7.5, "ts": 1, "dur": 2
"tid": 7, "tid": 8, "ts": 1, "dur": 2
"tid": true, "ts": 1, "dur": 2
"tid": "a 7", "ts": 1, "dur": 2
"tid": 7, "ts": "1", "dur": 2
"tid": 7, "ts": 1, "dur":
"tid": 7, "ts": 1, "dur": 2, "name": "again"
"tid": 7, "ts": 1, "dur": 2, "args": {"arg1": 5}
"tid": 7, "ts": 1, "dur": 2, "args": {"a": "0x7f"}
"tid": 7, "ts": 1, "dur": 2, "args": {"stream": "7"}
"tid": 7, "ts": 1, "dur": 2, "args": {"a": -1}
"tid": 7, "ts": 1, "dur": 2, "args": {"kind": 1}
"tid": 7, "ts": 1, "dur": 2, "args": {"correlation": 1.5}
"tid": 7, "ts": 1, "dur": 2, "args": {"stream": null}
"""


@pytest.mark.parametrize("tail", NOT_PLAIN.strip().splitlines())
def test_what_is_not_plain_goes_to_the_json_parser(tail):
    assert template_of(b"5, " + tail.encode()) is None
