"""The model: round trip, self-check, windows."""

import bz2
import gzip
import json
import lzma
import re
from dataclasses import replace

import factory
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import loaderviz
from loaderviz.timeline import (
    DEVICE_KINDS,
    ArrowKind,
    Cause,
    Context,
    Kind,
    Look,
    Timeline,
    TimelineBuilder,
    TimelineError,
)

SEEDS = st.integers(0, 10_000)


def two_spans(second_start=10, lane_group="device"):
    builder = TimelineBuilder(Context())
    lane = builder.lane("stream 0", lane_group)
    spans = [builder.span(0, 10, lane, Kind.COMPUTE, "a"), builder.span(second_start, 20, lane, Kind.COMPUTE, "b")]
    return builder, spans


@given(SEEDS)
def test_json_round_trip(seed):
    timeline = factory.random_timeline(seed)
    again = Timeline.from_dict(json.loads(json.dumps(timeline.to_dict())))
    assert again == timeline
    dtypes = ({name: values.dtype for name, values in each.spans.items()} for each in (again, timeline))
    assert next(dtypes) == next(dtypes)


def test_where_the_program_was_seen_is_kept_and_what_former_files_have_of_it_is_left_out():
    timeline = factory.loader("prefetch")
    seen = replace(timeline, context=replace(timeline.context, looks=(Look(3, 5_000_000, "a.py:1"),)))
    data = json.loads(json.dumps(seen.to_dict()))
    assert Timeline.from_dict(data).context == seen.context
    del data["context"]["looks"]
    data["loaderviz"], data["context"]["lines"] = 1, {"a.py:1": 5_000_000}
    assert Timeline.from_dict(data).context == timeline.context


def test_large_numbers_and_many_names_stay_what_they_are():
    builder, columns = TimelineBuilder(Context()), ("start", "batch", "nbytes", "correlation", "name", "source")
    lane, many = builder.lane("main", "host", "main"), range(70_000)
    for number in many:
        time, more = 10**18 + number, {"nbytes": number << 30, "correlation": number << 40, "source": f"a.py:{number}"}
        builder.span(time, time, lane, Kind.API, f"call {number}", batch=number, **more)
    timeline = builder.build()
    given = [10**18 + number for number in many], many, [n << 30 for n in many], [n << 40 for n in many], many, many
    for found in (timeline, Timeline.from_dict(timeline.to_dict())):
        for column, values in zip(columns, given, strict=True):
            assert found.spans[column].tolist() == list(values), column


@pytest.mark.parametrize("text", ["", "[1, 2]", "{}", '{"loaderviz": 99}', "\x80", '{"loaderviz": 1}'])
def test_a_foreign_file(tmp_path, text):
    path = tmp_path / "t.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(TimelineError):
        Timeline.load(path)


def nested(values):
    return [[value] for value in values]


HOSTILE = {
    "columns in columns": lambda data: data.update(spans={name: nested(each) for name, each in data["spans"].items()}),
    "one such column": lambda data: data["spans"].update(start=nested(data["spans"]["start"])),
    "arrows in columns": lambda data: data.update(arrows={name: nested(each) for name, each in data["arrows"].items()}),
    "a number for a column": lambda data: data["spans"].update(start=3),
    "halves": lambda data: data["spans"].update(start=[time + 0.5 for time in data["spans"]["start"]]),
    "a large number": lambda data: data["spans"].update(lane=[2**40 for _ in data["spans"]["lane"]]),
    "a time before all": lambda data: data["spans"].update(start=[-(2**63) for _ in data["spans"]["start"]]),
    "a lane's large device": lambda data: data["lanes"][0].update(device=2**70),
    "names that are numbers": lambda data: data.update(names=[3 for _ in data["names"]]),
    "a name": lambda data: data.update(names="a" * len(data["names"])),
    "sources that are lists": lambda data: data.update(sources=nested(data["sources"])),
    "a lane's name": lambda data: data["lanes"][0].update(name=3),
    "a lane's group": lambda data: data["lanes"][0].update(group="nowhere"),
    "a lane's number": lambda data: data["lanes"][0].update(number="7"),
    "a device": lambda data: data["context"].update(device=["a100"]),
    "samples": lambda data: data["context"].update(samples=True),
    "notes": lambda data: data["context"].update(notes=[3]),
    "looks": lambda data: data["context"].update(looks=3),
    "a look": lambda data: data["context"].update(looks=[3]),
    "a look that lacks something": lambda data: data["context"].update(looks=[[3, 4]]),
    "a look of too much": lambda data: data["context"].update(looks=[[3, 4, "a.py:1", 5]]),
    "a look's line": lambda data: data["context"].update(looks=[[3, 4, 5]]),
    "a look's time": lambda data: data["context"].update(looks=[["3", 4, "a.py:1"]]),
    "a look's far time": lambda data: data["context"].update(looks=[[2**70, 4, "a.py:1"]]),
    "versions": lambda data: data["context"].update(versions={"torch": 2}),
    "a mark's text": lambda data: data.update(marks=[MARK | {"text": None}]),
    "a mark's spans": lambda data: data.update(marks=[MARK | {"spans": [0]}]),
    "a mark's far span": lambda data: data.update(marks=[MARK | {"spans": [0, 10**6]}]),
    "a mark's lane": lambda data: data.update(marks=[MARK | {"lane": 99}]),
    "negative samples": lambda data: data["context"].update(samples=-3),
    "an endless share": lambda data: data["context"].update(sent=float("inf")),
    "negative usage": lambda data: data["context"].update(usage={"disk": -4096}),
    "a look that lasts less": lambda data: data["context"].update(looks=[[3, -4, "a.py:1"]]),
    "a negative message": lambda data: data["context"].update(messages=[[7, "allreduce", -8, "Float", "0", 2]]),
    "ranks below 0": lambda data: data["context"].update(messages=[[7, "allreduce", 8, "Float", "0", -2]]),
    "negative bytes": lambda data: data["spans"]["nbytes"].__setitem__(3, -2),
    "a negative wait": lambda data: data["spans"]["waited"].__setitem__(3, -1),
    "a batch below none": lambda data: data["spans"]["batch"].__setitem__(3, -2),
    "what pinned is not": lambda data: data["spans"]["pinned"].__setitem__(3, 2),
}
MARK = {"time": 3, "lane": 0, "kind": "early-read", "text": "x", "spans": [0, -1]}


HOSTILE |= {
    f"{name}: {value!r}"[:32]: lambda data, name=name, value=value: data.update({name: value})
    for name in ("context", "lanes", "names", "sources", "spans", "arrows", "marks")
    for value in (None, True, 3.5, "text", [[]], [None], [{"__class__": 3}], {"__class__": {}}, [1] * 9_999)
    if not (name in ("spans", "arrows", "context") and value == [])
}
SAID = {
    "context: {'__class__': {}}": 'a context has "__class__", which is none of device, origin, host',
    "lanes: [None]": "a lane is null, where an object belongs",
    "lanes: [{'__class__': 3}]": "a lane has no 'group'",
    "spans: None": "its 'spans' is null, where an object belongs",
    "marks: 'text'": "its 'marks' is \"text\", where a list belongs",
    "names: [None]": "one of its 'names' is null, where a text belongs",
    "halves": "one of its 'start' is 0.5, where a whole number belongs",
    "samples": "the samples of a context is true",
    "a look": "the looks of a context is a list",
    "a mark's text": "the text of a mark is null",
    "a negative message": "its 'nbytes' is -8, and nothing has less than 0",
    "negative bytes": "'nbytes' must lie in -1..",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_file_with_something_of_another_kind(tmp_path, what):
    """What is wrong is told in the words of JSON, not of Python."""
    path, data = tmp_path / "t.json", factory.loader("prefetch").to_dict() | {"marks": [MARK]}
    assert len(Timeline.from_dict(data).marks) == 1
    HOSTILE[what](data)
    path.write_text(json.dumps(data))
    for again in (lambda: Timeline.load(path), lambda: Timeline.from_dict(data)):
        with pytest.raises(TimelineError, match=re.escape(SAID.get(what, "damaged"))) as caught:
            again()
        assert not re.search(
            r"Error|__init__|NoneType|dict|argument|True|None|object has", str(caught.value).replace(str(path), "")
        )


@pytest.mark.parametrize("key", ["context", "lanes", "names", "sources", "spans", "arrows", "marks"])
def test_a_file_that_lacks_something(key):
    data = factory.loader("prefetch").to_dict()
    del data[key]
    with pytest.raises(TimelineError, match=f"damaged: it has no '{key}'"):
        Timeline.from_dict(data)


@pytest.mark.parametrize("packer", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_a_packed_file_is_read_or_its_packing_named(tmp_path, packer):
    timeline, path = factory.many_spans(500), tmp_path / "saved.json.x"
    content = json.dumps(timeline.to_dict()).encode()
    path.write_bytes(packer(content))
    for reader, error in ((Timeline.load, TimelineError), (loaderviz.read, loaderviz.LoadervizError)):
        if packer in (bytes, gzip.compress):
            assert reader(path) == timeline
        else:
            with pytest.raises(error, match=r"it looks like an? (bzip2|xz) archive; unpack it with"):
                reader(path)
    path.write_bytes(gzip.compress(content)[:-40])
    with pytest.raises(TimelineError, match="its gzip data are cut after"):
        Timeline.load(path)


def test_columns_and_rows_agree():
    timeline = factory.loader("prefetch")
    rows = list(timeline.rows())
    assert [row.start for row in rows] == timeline.start.tolist()
    assert [row.name for row in rows] == [timeline.names[number] for number in timeline.name]
    assert (np.diff(timeline.start) >= 0).all()
    copies = list(timeline.rows(Kind.COPY_H2D))
    assert len(copies) == timeline.where(Kind.COPY_H2D).sum() == 6
    assert {(row.pinned, row.cause, row.lane.name) for row in copies} == {(True, Cause.NONE, "stream 7")}
    with pytest.raises(AttributeError, match="span columns are start, end"):
        timeline.colour


@given(SEEDS, st.integers(-10, 80), st.integers(0, 60))
def test_between_keeps_exactly_what_runs_in_the_window(seed, start, length):
    timeline = factory.random_timeline(seed)
    part = timeline.between(start, start + length).self_check()
    window = set(range(start, start + length))

    def work(some):
        return {(row.lane.name, row.name, time) for row in some.rows() for time in range(row.start, row.end)}

    assert work(part) == {item for item in work(timeline) if item[2] in window}
    assert len(part.context.notes) == len(timeline.context.notes) + 1
    if length:  # a span that only touches the window is not in it; one of no length is
        points = [row for row in timeline.rows() if row.duration == 0 and start <= row.start <= start + length]
        assert sum(row.duration == 0 for row in part.rows()) == len(points)
    with pytest.raises(TimelineError, match="the end lies before the start"):
        timeline.between(5, 1)


def test_only_keeps_spans_by_a_mask_and_the_arrows_between_them():
    timeline = factory.loader("prefetch")
    device = timeline.where(*DEVICE_KINDS)
    part = timeline.only(device).self_check()
    assert list(part.rows()) == [row for row, mine in zip(timeline.rows(), device, strict=True) if mine]

    def ends(one, keep):
        rows = list(one.rows())
        pairs = zip(one.arrows["tail"], one.arrows["head"], strict=True)
        return [(rows[tail], rows[head]) for tail, head in pairs if keep[tail] and keep[head]]

    assert ends(part, [True] * len(part)) == ends(timeline, device)
    assert list(timeline.only(~device | device).rows()) == list(timeline.rows())
    half = timeline.between(timeline.begin, timeline.begin + timeline.duration // 2)
    names = [(tail.name, head.name) for tail, head in ends(half, [True] * len(half))]
    assert 0 < len(names) < len(timeline.arrows["tail"])
    assert {tail for tail, _ in names} <= {"cudaMemcpyAsync", "cudaLaunchKernel", "Memcpy HtoD (Pinned -> Device)"}


def test_self_check_finds_overlap_in_a_stream_but_not_on_the_host_and_what_goes_back_in_time():
    two_spans(10)[0].build().self_check()
    two_spans(9, "host")[0].build().self_check()
    backwards, (first, second) = two_spans()
    backwards.arrow(second, first, ArrowKind.LAUNCH)
    for builder, said in (
        (two_spans(9)[0], "two spans overlap in stream 0"),
        (two_spans(25)[0], "ends before it starts"),
        (backwards, "back in time"),
    ):
        with pytest.raises(TimelineError, match=said):
            builder.build().self_check()


@pytest.mark.parametrize("column", ["lane", "name", "kind", "cause", "source"])
def test_self_check_finds_ids_out_of_range(column):
    timeline = two_spans()[0].build()
    spans = timeline.spans | {column: np.full_like(timeline.spans[column], 99)}
    with pytest.raises(TimelineError, match=column):
        replace(timeline, spans=spans).self_check()


def test_marks_and_arrows_follow_their_spans_when_sorted():
    builder = TimelineBuilder(Context())
    lane = builder.lane("stream 0", "device")
    late = builder.span(50, 60, lane, Kind.COMPUTE, "late")
    early = builder.span(0, 10, lane, Kind.COPY_H2D, "early")
    builder.arrow(early, late, ArrowKind.WAIT)
    builder.mark(55, lane, "early-read", "late reads too early", (early, late))
    timeline = builder.build().self_check()
    assert [timeline.row(i).name for i in timeline.marks[0].spans] == ["early", "late"]
    assert (timeline.arrows["tail"].tolist(), timeline.arrows["head"].tolist()) == ([0], [1])
    assert timeline.between(0, 20).marks == ()


@given(SEEDS, st.sampled_from([Kind.COMPUTE, (Kind.API, Kind.WAIT), None]), st.sampled_from([0, (1, 2), -1, None]))
def test_select_is_true_where_all_that_is_asked_holds(seed, kind, batch):
    timeline = factory.random_timeline(seed)
    host = [number for number, lane in enumerate(timeline.lanes) if lane.group == "host"]

    def holds(span):
        kinds = (kind,) if isinstance(kind, Kind) else kind
        batches = (batch,) if isinstance(batch, int) else batch
        return (kind is None or span.kind in kinds) and (batch is None or span.batch in batches)

    expected = [holds(span) for span in timeline.rows()]
    assert timeline.select(kind, batch=batch).tolist() == expected
    for lane in (host, lambda lane: lane.group == "host"):
        both = [good and span.lane.group == "host" for good, span in zip(expected, timeline.rows(), strict=True)]
        assert timeline.select(kind, lane, batch).tolist() == both


def test_select_asks_for_a_cause_and_places_are_those_of_numbers():
    timeline = factory.loader("blocking")
    mask = timeline.select(Kind.WAIT, cause=Cause.STAGING)
    assert {(span.kind, span.cause) for span in timeline.rows_at(np.flatnonzero(mask))} == {(Kind.WAIT, Cause.STAGING)}
    assert np.flatnonzero(timeline.places([5, 2])).tolist() == [2, 5]
    assert not timeline.places([]).any()
