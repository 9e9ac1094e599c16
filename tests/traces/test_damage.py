"""Damaged, foreign and hostile files: what can be read is read, the rest is told in one sentence."""

import gc
import gzip
import random
import re
import subprocess
import sys
import zlib
from base64 import b64encode
from types import SimpleNamespace
from zipfile import ZipFile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_files import BASE, call, copy, loop, notes, op, read_events, styled, trace, work, write

from loaderviz import files
from loaderviz.errors import LoadervizError
from loaderviz.timeline import Timeline
from loaderviz.traces import TraceError, read, source


def many(count=400):
    events = [op(f"aten::op{n}", BASE + 10 * n, 5) for n in range(count)]
    return styled(trace(*events), "kineto")


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_cut_file_gives_what_is_in_it(tmp_path, keep, compressed):
    text = many().encode()
    data = gzip.compress(text) if compressed else text
    path = tmp_path / "cut.json.gz"
    path.write_bytes(data[: int(len(data) * keep)])
    timeline = read(path)
    assert 0.5 * keep * 400 < len(timeline) <= 400
    assert [row.name for row in timeline.rows()] == [f"aten::op{n}" for n in range(len(timeline))]
    said = notes(timeline)
    assert "the file is damaged: " + ("its gzip data are cut after" if compressed else "it ends in the middle") in said


def test_every_cut_of_a_small_file(tmp_path):
    """No place to cut makes it fail otherwise than with a sentence; and never is an event invented."""
    text = styled(trace(*loop()), "kineto")
    whole = [row[:2] for row in read(write(tmp_path, text)).rows()]
    for end in range(0, len(text), 3):
        try:
            found = [row[:2] for row in read(write(tmp_path, text[:end])).rows()]
        except TraceError as problem:
            none = re.search(
                "has (no events: the|1 event, and none can be drawn: 1 event of no valid JSON)", str(problem)
            )
            assert none or "is no trace: it looks like" in str(problem)
            assert end < text.index('"traceEvents"') + (300 if none else 16)
            continue
        assert len(found) <= len(whole)


def test_damaged_gzip(tmp_path):
    data = bytearray(gzip.compress(many().encode()))
    data[len(data) // 2] ^= 0xFF
    path = tmp_path / "bad.json.gz"
    path.write_bytes(data)
    assert "the file is damaged" in notes(read(path))
    path.write_bytes(gzip.compress(many().encode()) + b"\x00" * 64)  # padding is no damage
    assert "damaged" not in notes(read(path))
    text = many().encode()
    path.write_bytes(gzip.compress(text[:5_000]) + gzip.compress(text[5_000:]))  # two members, one content
    assert len(read(path)) == 400
    path.write_bytes(gzip.compress(text) + b"garbage")
    assert "bytes after its gzip data" in notes(read(path))


BROKEN = {
    "quotes": ('"aten::op7"', '"say "hello" {to} me"', 399, None),
    "backslash": ('"aten::op7"', '"C:\\data\\new"', 400, None),
    "control": ('"aten::op7"', '"a\x01b\nc"', 400, "a\x01b\nc"),
    "not utf-8": ('"aten::op7"', '"caf\udce9"', 400, "caf�"),
    "bare word": ('"External id": 1', '"bw": N/A, "x": nan, "y": -inf', 400, "aten::op7"),
    "NaN time": ('"dur": 5', '"dur": NaN', 399, None),
    "infinite time": ('"dur": 5', '"dur": 1e999', 399, None),
    "huge whole time": ('"dur": 5', '"dur": 1' + "0" * 40, 399, None),
    "more digits than Python converts": ('"dur": 5', '"dur": ' + "9" * 5_000, 399, None),
    "text as time": ('"dur": 5', '"dur": "soon"', 399, None),
    "number as text": ('"dur": 5', '"dur": "5"', 400, "aten::op7"),
    "negative length": ('"dur": 5', '"dur": -5', 399, None),
    "no length": (', "dur": 5', "", 399, None),
    "name is a number": ('"aten::op7"', "7", 399, None),
    "deep": ('"External id": 1', '"x": ' + "[" * 100_000 + "]" * 100_000, 400, "aten::op7"),
    "huge number in arguments": ('"External id": 1', '"Comms Id": 1' + "0" * 30, 400, "aten::op7"),
    "nothing": ('"ph": "X"', '"ph": ""', 399, None),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_event_costs_at_most_itself(tmp_path, monkeypatch, what):
    monkeypatch.setattr(source, "CHUNK", 20_000)
    old, new, left, name = BROKEN[what]
    events = many().split("\n  },\n  {")
    assert old in events[7]
    events[7] = events[7].replace(old, new, 1)
    path = tmp_path / "broken.json"
    path.write_bytes("\n  },\n  {".join(events).encode("utf-8", "surrogateescape"))
    timeline = read(path)
    names = [row.name for row in timeline.rows()]
    assert len(names) == left
    assert [each for each in names if each.startswith("aten::op") and each != "aten::op7"] == [
        f"aten::op{n}" for n in range(400) if n != 7
    ]
    if name:
        assert names[7] == name
    elif left < 400 and what != "nothing":
        assert "1 event lost" in notes(timeline)


def test_broken_gpu_events(tmp_path):
    bad = [
        work("a", BASE, 5, "x"),
        work("b", BASE + 10, 5, 2, stream=[1]),
        work("c", BASE + 20, 5, None),
        copy(BASE + 30, 5, 4, nbytes=10**30),
        work("d", BASE + 40, 5, 5.0, device="0"),
        call("e", BASE, 1, {"a": 1}),
        work("f", BASE + 50, 5, 6) | {"args": None},
        work("g", BASE + 60, 5, 7) | {"args": [1]},
        work("h", BASE + 70, 5, 8, steps=[{"ph": "X", "name": "a"}, {"ph": "s"}, {"ph": "X"}]),  # like a border
    ]
    timeline = read_events(tmp_path, *bad)
    assert sorted(row.name[:6] for row in timeline.rows()) == ["Memcpy", "a", "b", "c", "d", "e", "f", "g", "h"]


def test_a_list_without_borders_is_read_in_one_go(tmp_path, monkeypatch):
    """Each event begins with another key: its text is not copied once for each of them."""
    texts, decoder = [], source._DECODER
    monkeypatch.setattr(
        source, "_DECODER", SimpleNamespace(raw_decode=lambda *each: texts.append(each[0]) or decoder.raw_decode(*each))
    )
    events = [{f"key {n}": n} | op("aten::a", BASE + n, 1) for n in range(300)]
    path = write(tmp_path, {"traceEvents": events})
    assert len(read(path)) == 300
    assert sum(map(len, {id(text): text for text in texts}.values())) < 3 * path.stat().st_size


BLANK = " " * 200_000


@pytest.mark.timeout(20)  # a pattern that goes back and forth takes hours
@pytest.mark.parametrize(
    "junk", ["}]" + BLANK + "x", "}" + BLANK + "x", ": nan(" * 50_000, ":" + BLANK + "x", "\\" * 99_999]
)
def test_blanks_and_brackets_cost_no_time(tmp_path, junk):
    text = styled(trace(*loop(), op("last", BASE + 90, 1)), "one line")
    for place in ('"External id": 1', '"name": "last"'):
        path = write(tmp_path, text.replace(place, junk, 1))
        assert 7 < len(read(path)) < 10
    path = write(tmp_path, text[: text.index('"last"')] + junk)
    assert len(read(path)) == 9


@pytest.mark.timeout(20)  # as an int such a number has a million digits: minutes for each
def test_numbers_that_nobody_can_write_out_cost_no_time(tmp_path):
    text = styled(trace(*loop(), op("far", 1234.5, 5), work("near", BASE + 90, 5, 6789.5)), "kineto")
    timeline = read(write(tmp_path, text.replace("1234.5", "1e999990").replace("6789.5", "1e999999999")))
    assert [row.correlation for row in timeline.rows() if row.name in ("far", "near")] == [-1]
    assert "1 event lost" in notes(timeline)


def test_events_out_of_range(tmp_path):
    """An event at 0, as broken clocks give, must not make a timeline of fifty years."""
    timeline = read_events(tmp_path, *loop(), op("zero", 0, 5), op("late", BASE + 10**12, 5), op("long", BASE, 10**14))
    assert timeline.duration == 100_000
    assert "3 events more than a day away" in notes(timeline)
    assert "3 events lost" in notes(timeline)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_random_damage_never_escapes(tmp_path_factory, seed):
    rng = random.Random(seed)
    data = bytearray(styled(trace(*loop(), *loop(BASE + 200)), rng.choice(["kineto", "one line", "compact"])).encode())
    for _ in range(rng.randrange(1, 6)):
        place = rng.randrange(len(data))
        data[place : place + rng.randrange(3)] = bytes(rng.choices(b'{}[]",:\\0x1e9\x00\xff', k=rng.randrange(4)))
    path = tmp_path_factory.mktemp("fuzz") / "t.json"
    path.write_bytes(data)
    try:
        read(path).self_check()
    except LoadervizError as problem:
        assert str(path) in str(problem)


FOREIGN = {
    "empty": (b"", "an empty file"), "blank": (b"  \n ", "a file of blanks"),
    "text": (b"hello\nworld", "a text file; its first line is 'hello'"),
    "csv": (b"a,b\n1,2\n", "a text file; its first line is 'a,b'"),
    "html": (b"<!DOCTYPE html><html>", "an HTML or XML page"), "parquet": (b"PAR1\x15\x04", "a Parquet table"),
    "zip": (b"PK\x03\x04abc", "; unpack it"), "zstd": (b"\x28\xb5\x2f\xfdabc", "a zstd archive"),
    "zip with a trace as it is": (b'PK\x03\x04..{"traceEvents": [{"ph": "X"}]}', "; unpack it"),
    "utf-16": ('{"traceEvents": []}'.encode("utf-16"), "text in UTF-16; save it as UTF-8"),
    "null": (b'{"schemaVersion": 1, "traceEvents": null}', "'traceEvents' is null, so the profiler recorded nothing"),
    "png": (b"\x89PNG\r\n", "a PNG picture"), "pickle": (b"\x80\x04\x95", "a Python pickle"),
    "binary": (b"\x01\x00\x02", "a binary file"), "list": (b"[1, 2]", "JSON list without events"),
    "json": (b'{"a": 1, "b": {"c": 2}}', "JSON without 'traceEvents' (it has a, b, c)"),
    "notebook": (b'{"cells": [], "nbformat": 4}', "a Jupyter notebook"),
    "execution trace": (b'{"schema": "1.0", "pid": 3, "nodes": []}', "a PyTorch execution trace"),
    "nsys report": (b"\x00\x01 QuadDCommon", "an Nsight Systems report; export it with `nsys export"),
}  # fmt: skip


@pytest.mark.parametrize("what", FOREIGN)
@pytest.mark.parametrize("compressed", [False, True])
def test_what_a_foreign_file_looks_like(tmp_path, what, compressed):
    data, words = FOREIGN[what]
    path = tmp_path / "it.json"
    path.write_bytes(gzip.compress(data) if compressed else data)
    with pytest.raises(TraceError) as caught:
        read(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"), [("host.xplane.pb", "an XPlane profile"), ("a.nsys-rep", "`nsys export --type sqlite`")]
)
def test_what_a_files_name_tells(tmp_path, name, words):
    (tmp_path / name).write_bytes(b"\x0a\x01\x02")
    with pytest.raises(TraceError, match=words):
        read(tmp_path / name)


OTHERS = [
    {"ph": "X", "pid": 1, "tid": 14, "ts": 100.0, "dur": 20.0, "name": "loop_fusion"},
    *({"ph": phase, "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 3} for phase in "BEbesC"),
    {"ph": "X", "cat": "python_function", "name": "a.py(3): f", "pid": 1, "tid": 1, "ts": 3, "dur": 1},
]


@pytest.mark.parametrize("drawn", [[], loop()])
def test_events_of_other_tools_are_counted_as_left_out(tmp_path, drawn):
    """JAX writes no categories; other tools write begin and end apart."""
    path = write(tmp_path, trace(*OTHERS, *drawn))
    if drawn:
        said = notes(read(path))
        assert "no event lost" in said
    else:
        with pytest.raises(TraceError, match=f"{path} has 8 events, and none can be drawn: .*, 1 flow$") as caught:
            read(path)
        said = str(caught.value)
    for words in ("1 events without a category (as JAX", "2 events by begin and end", "2 asynchronous events"):
        assert words in said
    assert "1 counters" in said and "1 python_function events" in said


BAD = {
    "ts": ("time", [True, None, "soon", [1], {}, 1e30]),
    "dur": ("length", [None, {"__class__": 3}, "x" * 99, [], "1e99"]),
    "cat": ("category", [3, None, [], {"__class__": "kernel"}]),
    "name": ("name", [3, None, [], {"__class__": "str"}, True]),
}


@pytest.mark.parametrize("key, value", [(key, value) for key, (_, values) in BAD.items() for value in values])
def test_a_file_whose_every_event_is_broken_says_why(tmp_path, key, value):
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 3, "dur": 1}
    path = write(tmp_path, trace(event | {key: value}, event | {key: value}, event | {"dur": -1}))
    told = f"2 events without a {BAD[key][0]} that can be read, 1 event of negative length"
    with pytest.raises(TraceError, match=f"{path} has 3 events, and none can be drawn: {told}$"):
        read(path)


@pytest.mark.parametrize(
    ("factor", "told"), [(3, " whose time is in ns"), (1_000, " whose time is in ns"), (10**6, " without")]
)
def test_times_in_ns_are_told_as_such(tmp_path, factor, told):
    events = [each | {"ts": each["ts"] * factor} for each in loop()]
    with pytest.raises(TraceError, match=f"{len(events)} events{told}"):
        read(write(tmp_path, trace(*events)))


@pytest.mark.parametrize(
    "value, said", [({"__class__": 3}, "an object"), ("x", "a text"), (3, "a number"), (True, "true")]
)
def test_events_that_are_no_list(tmp_path, value, said):
    with pytest.raises(TraceError, match=f"JSON whose 'traceEvents' is {said}, where a list of events belongs"):
        read(write(tmp_path, {"schemaVersion": 1, "traceEvents": value}))


@pytest.mark.parametrize("event", [3, None, "x", [], [{"ph": "X"}], True, {}])
def test_an_event_that_is_none_is_lost(tmp_path, event):
    for events in ([event, *loop()], [*loop(), event], [loop()[0], event, *loop()[1:]]):
        assert len(read(write(tmp_path, {"traceEvents": events})).self_check()) == 9
    with pytest.raises(TraceError, match=r"has (1 event, and none|no events)"):
        read(write(tmp_path, {"traceEvents": [event]}))


@pytest.mark.parametrize("first", ["{}", '{"": 1}', '{"' + "k" * 50 + '": 1}', '{ph: "X"}', '{"a\\u0062": 2}'])
def test_a_first_event_that_is_odd_costs_at_most_itself(tmp_path, monkeypatch, first):
    """Also where the file is longer than what is read at once."""
    monkeypatch.setattr(files, "BLOCK", 2_000)
    path = write(tmp_path, many().replace('"traceEvents": [', '"traceEvents": [' + first + ",", 1))
    timeline = read(path)
    assert len(timeline) == 400
    assert "damaged" not in notes(timeline)


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        (lambda folder: folder, TraceError, "has no trace in it"),
        (lambda folder: [], TraceError, "an empty list"),
        (lambda folder: 3, TypeError, "needs a path"),
        (lambda folder: ZipFile(folder / "a.zip", "w"), TypeError, "of an archive, too.*, got ZipFile"),
        (lambda folder: [folder, folder], TraceError, "a folder inside a list"),
    ],
)
def test_what_is_no_path(tmp_path, given, error, told):
    with pytest.raises(error, match=told):
        read(given(tmp_path))


@pytest.mark.parametrize("reader", [read, Timeline.load])
@pytest.mark.parametrize(("name", "told"), [("nothing.json", r"there is no file .*give a path from"), ("", "is empty")])
def test_a_path_of_no_file(tmp_path, reader, name, told):
    with pytest.raises(FileNotFoundError, match=told) as caught:
        reader(name and tmp_path / name)
    assert isinstance(caught.value, LoadervizError)


@pytest.mark.parametrize("before", [b"", random.Random(0).randbytes(1 << 20).hex().encode()])
@pytest.mark.parametrize("begins", [b'{"traceEvents": [{"ph": "X", "name": "', b'{"loaderviz": 1, "names": ["'])
def test_a_gzip_bomb_is_refused_before_much_of_it_is_inflated(tmp_path, monkeypatch, begins, before):
    """Also where what comes first shrinks as other files do."""
    check, given = files.Source._check_ratio, []
    monkeypatch.setattr(files, "BOMB_SIZE", 1 << 20)
    monkeypatch.setattr(files.Source, "_check_ratio", lambda *each: given.append(each[1]) or check(*each))
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(begins + before + b'"},' + b'{"ph": "X", "name": "a"},' * 2**20))
    with pytest.raises(TraceError, match="gzip bomb"):
        read(path)
    assert given[-1] < len(before) + (4 << 20)


@pytest.mark.parametrize("blanks", [3 << 20, 40 << 20])
def test_blanks_before_the_first_event(tmp_path, blanks):
    """They are no end of the file, and a bomb where they are too many."""
    path = tmp_path / "blanks.json.gz"
    event = b'{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 5, "args": {"device": 0, "stream": 7}}]}'
    path.write_bytes(_bomb(b'{"traceEvents": [', b" ", blanks) if blanks > 16 << 20 else
                     gzip.compress(b'{"traceEvents": [' + b" " * blanks + event))  # fmt: skip
    if blanks > 16 << 20:
        with pytest.raises(TraceError, match="gzip bomb"):
            read(path)
    else:
        assert len(read(path)) == 1


def test_an_event_without_an_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("loaderviz.traces.source.LONGEST", 1 << 20)
    monkeypatch.setattr(source, "CHUNK", 1 << 18)
    path = write(tmp_path, '{"traceEvents": [{"ph": "X", "name": "' + "a" * (1 << 22))
    with pytest.raises(TraceError, match=r"no event ends within 1.049 MB"):
        read(path)
    with pytest.raises(TraceError, match="is no trace"):
        read(write(tmp_path, '{"a": "' + "x" * (1 << 22)))


@pytest.mark.slow
def test_hostile_files_stay_small(tmp_path):
    """In a process with little memory: deep nesting, a bomb of one string, very many names or lists."""
    saved, packed = b'{"loaderviz": 1, "names": [', _bomb(b'{"loaderviz": 1, "spans": [', b"[],", 99 << 20, 15)
    bombs = {
        "deep.json": b'{"traceEvents": [' + b"[" * 5_000_000,
        "deep2.json": b'{"traceEvents": [{"ph": "X", "args": ' + b'{"a":' * 2_000_000,
        "string.json.gz": _bomb(b'{"traceEvents": [{"ph": "X", "name": "', b"a", 160 << 20),
        "blanks.json.gz": _bomb(b"", b" ", 320 << 20),
        "list.json.gz": _bomb(b'{"traceEvents": [', b"0,", 160 << 20),
        "lists.json": saved + b"[]," * (10 << 20),
        "deep3.json": saved + b"[" * (1 << 20),
        "objects.json": saved + b'{"":{}},' * (4 << 20),
        "names.json": saved + b'"ab",' * (14 << 20),
        "numbers.json": saved[:-10] + b'"lanes": [' + b"1000," * (20 << 20) + b"1]}",
        "saved.json.gz": _bomb(saved, b"[],", 99 << 20),
        "packed.json": b'{"loaderviz": "' + b64encode(packed) + b'", "traceEvents": []}',
    }
    for name, data in bombs.items():
        (tmp_path / name).write_bytes(data)
    code = (
        "import resource, sys\n"
        "from loaderviz.traces import read, TraceError\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n"
        "        print(*read(path).context.notes)\n"
        "    except TraceError as problem:\n"
        "        print(problem)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *(str(tmp_path / name) for name in bombs)],
        capture_output=True,
        text=True,
        check=False,
        env={"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": ":".join(sys.path)},
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    assert len(done.stdout.splitlines()) == len(bombs), done.stdout
    assert done.stdout.count("looks like a gzip bomb") == 5
    for said in (
        "10,485,762 lists",
        "8,388,610 lists",
        "it has no 'spans'",
        "nested too deeply",
        "73,400,347 characters",
    ):
        assert said in done.stdout


def _bomb(head, body, size, wbits=31):
    packer = zlib.compressobj(6, wbits=wbits)
    block = body * ((1 << 20) // len(body))
    parts = [packer.compress(head), *(packer.compress(block) for _ in range(size >> 20)), packer.flush()]
    return b"".join(parts)


@pytest.mark.parametrize("noun", ["event", "character", "lane"])
def test_too_many_things(tmp_path, monkeypatch, noun):
    path = write(tmp_path, trace(*(op(f"aten::op{n}", BASE + n, 1, tid=n) for n in range(101))))
    saved = read(path).save(tmp_path / "saved.json")
    monkeypatch.setitem(files.LIMITS, noun, 100)
    for each in (path, saved):
        with pytest.raises(TraceError, match=rf"{each}: it has [\d,]+ {noun}s, and at most 100 are read"):
            read(each)


@pytest.mark.parametrize("state", [True, False])
def test_reading_leaves_the_garbage_collector_as_it_was(tmp_path, state):
    (gc.enable if state else gc.disable)()
    try:
        read_events(tmp_path, *loop())
        assert gc.isenabled() is state
    finally:
        gc.enable()
