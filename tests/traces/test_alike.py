"""Random events read alike in whatever style they are written; odd numbers and odd events read as they are meant."""

import json
from collections import Counter

import pytest
import trace_files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_files import BASE, PID, call, copy, loop, notes, op, read_events, trace, work, write

from loaderviz.traces import TraceError, read

STYLES = ("compact", "one line", "torch 2.13", "kineto", "sorted keys")


def seen(path):
    """All that a reader learns from a file: spans, arrows, notes; or why nothing of it can be drawn."""
    try:
        timeline = read(path).self_check()
    except TraceError as problem:
        return str(problem)
    ends = zip(*(timeline.arrows[side].tolist() for side in ("tail", "head", "kind")), strict=True)
    arrows = Counter((timeline.row(tail), timeline.row(head), kind) for tail, head, kind in ends)
    return Counter(timeline.rows()), arrows, timeline.lanes, sorted(timeline.context.notes), timeline.context.clock


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


@settings(max_examples=75, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=events())
def test_random_events_read_the_same_in_every_style(made, tmp_path):
    first, *others = (seen(write(tmp_path, trace_files.styled(trace(*made), style))) for style in STYLES)
    assert others == [first] * len(others)


@pytest.mark.parametrize("first", [0, 1])
def test_of_an_event_that_stands_there_twice_the_one_with_a_size_is_kept(tmp_path, first):
    sized, plain = work("gemm", BASE, 5, 1, queued=0, bytes=64.0), work("gemm", BASE, 5, 1)
    path = write(tmp_path, trace(*([sized, sized, plain, plain] if first else [plain, plain, sized, sized])))
    assert [row.nbytes for row in read(path).rows()] == [64]


def test_a_number_gone_from_one_event_and_added_to_the_next(tmp_path):
    """Together they have as many numbers as two whole events; each must have its own."""
    raw = json.dumps(trace(*(op(f"aten::op{n}", BASE + n, 5 + n) for n in range(40))))
    raw = raw.replace('"dur": 12,', '"dur": ,').replace('"dur": 13, "args"', '"dur": 13, "7args"')
    path = write(tmp_path, raw)
    lengths = {row.name: row.duration for row in read(path).rows()}
    assert lengths == {f"aten::op{n}": (5 + n) * 1_000 for n in range(40) if n != 7}


def test_rocm_copies_keep_the_direction_of_their_call(tmp_path):
    """The copy's kernels look alike; what they copy stands in the call, as text."""
    pairs = [
        (
            call("hipMemcpyAsync", BASE + 50 * n, 5, n + 1, kind=str(1 + n % 2), size="2560"),
            work("__amd_rocclr_copyBuffer.kd", BASE + 50 * n + 9, 20, n + 1),
        )
        for n in range(40)
    ]
    path = write(tmp_path, trace(*(event for pair in pairs for event in pair)))
    kinds = Counter(row.kind.name for row in read(path).rows())
    assert (kinds["COPY_H2D"], kinds["COPY_D2H"]) == (20, 20)


def test_an_operator_inside_another_of_its_name_is_one_of_two_whatever_the_clock_tells(tmp_path):
    inner, outer = (op("aten::upsample_bilinear2d", BASE, 5) for _ in range(2))
    timeline = read_events(tmp_path, *loop(), outer, inner | {"args": {"External id": 2}})
    assert sum(row.name == "aten::upsample_bilinear2d" for row in timeline.rows()) == 2
    assert "twice" not in notes(timeline)
