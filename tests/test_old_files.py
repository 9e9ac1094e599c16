"""Files that former versions wrote: each opens and says what it said. A newer one is refused, with the reason."""

import gzip
import hashlib
import json
import os
import re
import shutil
from base64 import b64decode
from dataclasses import fields, replace
from pathlib import Path

import factory
import numpy as np
import pytest

import loaderviz
from loaderviz import timeline as model
from loaderviz.export import to_chrome_trace, to_html
from loaderviz.timeline import Context, Lane, Mark, Timeline, TimelineError
from loaderviz.view.pack import Part, pack
from loaderviz.workshop.lessons import capstone

HERE = Path(__file__).parent / "old_files"
SAVED = json.loads((HERE / "expected.json").read_text())
FORMATS = json.loads((HERE / "formats.json").read_text())
LATER = {"outside": 0, "unpriced": []}  # of a summary: what these files cannot have
NULL = {"recorded_cpu": {"busy": None, "copy_share": None}}  # was 0 where no device is in the file
PAGES = factory.script("tests/view/unpack.py")


def file(name):
    return HERE / f"{name}.json.gz"


def told(timeline):
    """Return what the code of then said of a timeline, in its order."""
    columns = [
        [span.start, span.end, span.lane.name, span.kind.name, span.name, span.batch, span.nbytes, span.correlation,
         span.pinned, span.cause.name, span.source.rpartition("/")[2]]
        for span in timeline.rows()
    ]  # fmt: skip
    summary = vars(loaderviz.summarize(timeline))
    return {
        "spans": len(columns),
        "digest": hashlib.sha256(json.dumps(columns).encode()).hexdigest(),
        "arrows": len(timeline.arrows["tail"]),
        "marks": [mark.kind for mark in timeline.marks],
        "notes": list(timeline.context.notes),
        "device": timeline.context.device,
        "origin": timeline.context.origin,
        "summary": {
            name: list(each) if isinstance(each, tuple) else each
            for name, each in summary.items()
            if not name.startswith("fetch_")
        },
    }


def bars(head, body):
    """Return the bars of the first part of a page: the others are predictions."""
    columns, count = (
        PAGES.unpack(head, body),
        sum(len(rows) for part, *_, rows in PAGES.tracks(head) if part is head["parts"][0]),
    )
    of = [columns[name][:count].tolist() for name in ("start", "duration", "batch", "nbytes")]
    return sorted(zip(*of, (head["names"][number] for number in columns["name"][:count]), strict=True))


def test_there_are_ten():
    assert len(SAVED) == 10 and {path.name for path in HERE.glob("*.json.gz")} == {
        "chrome_trace.json.gz", *(f"{name}.json.gz" for name in SAVED)
    }  # fmt: skip


@pytest.mark.parametrize("name", SAVED)
def test_what_is_saved_says_what_it_said(name, tmp_path):
    timeline = Timeline.load(file(name))
    assert told(timeline) == SAVED[name] | {"summary": SAVED[name]["summary"] | LATER | NULL.get(name, {})}
    assert loaderviz.read(file(name)) == timeline and not timeline.waited.any()
    again = Timeline.load(timeline.save(tmp_path / "again.json"))
    assert again == timeline and told(again) == told(timeline)
    loaderviz.advise(timeline)
    text = to_html(timeline, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "/home/ada" not in text + (tmp_path / "again.json").read_text()


def test_the_chrome_trace_is_the_timeline():
    assert loaderviz.read(file("chrome_trace")) == Timeline.load(file("emulated_blocking"))


@pytest.mark.parametrize("name", ["emulated_prefetch", "race"])
def test_a_page_of_then_has_the_data_of_its_timeline(name):
    page = gzip.decompress((HERE / f"{name}.html.gz").read_bytes()).decode()
    (head,), (body,) = (re.findall(rf'class="lv-{part}">([^<]*)<', page) for part in ("head", "body"))
    (head, body), today = (json.loads(head), b64decode(body)), pack([Part(timeline=Timeline.load(file(name)))])
    then, now = bars(head, body), bars(*today)
    assert then == now and len(then) > 8


def test_a_leaderboard_is_read(tmp_path):
    path = Path(shutil.copy(HERE / "board.sqlite", tmp_path))
    was = path.read_bytes()
    board = capstone.Leaderboard(path)
    assert [(entry.name, entry.ns) for entry in board.ranking()] == [("Ada", 3_500_000), ("Grace", 4_000_000)]
    assert [entry.ns for entry in capstone.Leaderboard(path, capstone.FILES.name).ranking()] == [9_000_000]
    assert board.entries[0].when.endswith(" UTC") and not board.note and path.read_bytes() == was


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.timeout(30, method="thread")  # which ends what hangs in C, too
def test_a_pipe_in_the_place_of_a_leaderboard_holds_nobody_up(tmp_path):
    os.mkfifo(path := tmp_path / "board.sqlite")
    board = capstone.Leaderboard(path)
    assert board.entries == [] and board.note


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0" + bytes(200), b"not a row\n"])
def test_what_is_no_leaderboard_is_an_empty_one(tmp_path, content):
    (path := tmp_path / "board.sqlite").write_bytes(content)
    assert capstone.Leaderboard(path).entries == [] and path.read_bytes() == content


# The promise: what a format can have


def has():
    """Return what a timeline that is saved today can have."""
    kinds = {kind.__name__: [each.name for each in kind] for kind in (model.Kind, model.Cause, model.ArrowKind)}
    columns = {"spans": list(model.SPAN_COLUMNS), "arrows": list(model.ARROW_COLUMNS)}
    records = {kind.__name__: [each.name for each in fields(kind)] for kind in (Context, Lane, Mark)}
    return kinds | columns | records | {kind.__name__: list(kind._fields) for kind in (model.Look, model.Message)}


def test_a_timeline_that_can_have_more_is_of_another_format():
    """Where this fails: is the last format released? Then FORMAT is one more, with an entry of its own in formats.json.

    Else its entry grows. Either way, a new column has its value for older files in `_LATER`, a new field a default.
    """
    assert list(FORMATS) == [str(number) for number in range(1, model.FORMAT + 1)]
    assert has() == FORMATS[str(model.FORMAT)]


@pytest.mark.parametrize("number", range(1, model.FORMAT))
def test_the_next_format_has_all_of_the_one_before(number):
    """Numbers in a file mean what they meant, and what an older file lacks has a value."""
    before, after = FORMATS[str(number)], FORMATS[str(number + 1)]
    for name in ("Kind", "Cause", "ArrowKind"):
        assert after[name][: len(before[name])] == before[name]
    for name, each in before.items():
        assert set(each) <= set(after[name]), name
    new = {"spans": set(after["spans"]) - set(before["spans"]), "arrows": set(after["arrows"]) - set(before["arrows"])}
    assert new == {"spans": {name for name, (since, _) in model._LATER.items() if since == number + 1}, "arrows": set()}
    for kind in (Context, Lane, Mark):
        needed = model._FIELDS[kind.__name__.lower()][1]
        assert needed <= set(before[kind.__name__])


def test_a_reader_of_tomorrow_opens_them_all(monkeypatch):
    """It knows a kind, a cause, a column and a field of the context more, and so does what it saves."""
    kinds = {kind: [each.name for each in kind] + ["NEXT"] for kind in (model.Kind, model.Cause)}
    for kind, names in kinds.items():
        more = model.IntEnum(kind.__name__, names, start=0)
        monkeypatch.setattr(model, kind.__name__, more)
    monkeypatch.setattr(model, "_KINDS", tuple(model.Kind))
    monkeypatch.setattr(model, "FORMAT", 3)
    monkeypatch.setitem(model.SPAN_COLUMNS, "power", np.int64)
    monkeypatch.setitem(model._LATER, "power", (3, 7))
    for name in SAVED:
        old = Timeline.load(file(name))
        assert len(old) == SAVED[name]["spans"] and set(old.spans["power"].tolist()) <= {7}
        new = replace(old, spans=old.spans | {"kind": np.full(len(old), 12, np.int8)})
        saved = new.to_dict()
        assert saved["loaderviz"] == 3
        if len(old):
            assert Timeline.from_dict(json.loads(json.dumps(saved))).spans["kind"][0] == 12


# Files of a newer version, and what only looks like one


def newer(by="9.1.0", number=99):
    return factory.loader("prefetch").to_dict() | {"loaderviz": number, "version": by, "spans": {"of": "another kind"}}


def as_trace(path, data):
    """A Chrome trace in which such a timeline is packed."""
    to_chrome_trace(factory.loader("prefetch"), path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Timeline, "to_dict", lambda self, paths: data)
        packed = factory.loader("prefetch").packed()
    path.write_text(json.dumps(json.loads(path.read_text()) | {"loaderviz": packed}))


WRITERS = {
    "plain": lambda path, data: path.write_text(json.dumps(data)),
    "gzip": lambda path, data: path.write_bytes(gzip.compress(json.dumps(data).encode())),
    "its number last": lambda path, data: path.write_text(json.dumps(dict(reversed(data.items())))),
    "in a Chrome trace": as_trace,
}


@pytest.mark.parametrize("written", WRITERS)
def test_a_newer_file_names_both_versions_and_what_to_do(written, tmp_path):
    path = tmp_path / "new.json"
    WRITERS[written](path, newer())
    readers = [loaderviz.read] if "Chrome" in written else [Timeline.load, loaderviz.read]
    for read in readers[: 1 if written == "its number last" else 2]:  # `read` knows a saved timeline by its first key
        with pytest.raises(loaderviz.LoadervizError) as caught:
            read(path)
        said = str(caught.value)
        assert f"format 99, of loaderviz 9.1.0, and this is loaderviz {loaderviz.__version__}" in said
        assert "pip install --upgrade loaderviz" in said and "damaged. Make it anew" not in said


@pytest.mark.parametrize("by", [None, "", 3, ["9"], {"a": 1}, "9\n\x1b[31m\u202e" * 9, "<script>" * 99])
def test_who_wrote_a_newer_file_may_be_anything(by):
    with pytest.raises(
        TimelineError, match=r"^this timeline has format 3, of loaderviz .{1,32}, and this is"
    ) as caught:
        Timeline.from_dict(newer(by, 3))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("number", [True, 1.0, "2", 0, -1, None, [2], float("nan")])
def test_what_is_no_number_of_a_format_is_no_timeline(number):
    with pytest.raises(TimelineError, match="not a timeline that loaderviz saved"):
        Timeline.from_dict(newer(number=number))


def test_a_format_beyond_all_is_told_in_short():
    with pytest.raises(TimelineError, match="this timeline has format 1000") as caught:
        Timeline.from_dict(newer(number=10**4000))
    assert len(str(caught.value)) < 400


def test_only_an_older_file_may_lack_a_later_column():
    data = factory.loader("prefetch").to_dict()
    del data["spans"]["waited"]
    with pytest.raises(TimelineError, match="damaged: its 'waited' is null"):
        Timeline.from_dict(data)
    assert not Timeline.from_dict(data | {"loaderviz": 1}).waited.any()


def test_a_file_between_two_versions_keeps_what_it_has():
    """Before the second format had its number, files of the first had a column more."""
    data = factory.loader("prefetch").to_dict() | {"loaderviz": 1}
    data["spans"]["waited"] = [3] * len(data["spans"]["start"])
    assert set(Timeline.from_dict(data).waited.tolist()) == {3}
