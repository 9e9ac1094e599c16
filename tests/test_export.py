"""The exports: what a reader of the file finds in it, and what bad input is told."""

import errno
import html
import json
import re
import tempfile
from collections import defaultdict

import factory
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderviz.errors import NoFolderError
from loaderviz.export import ExportError, Section, to_chrome_trace, to_html, to_table
from loaderviz.metrics import NotATimelineError, summarize
from loaderviz.timeline import Kind, Timeline
from loaderviz.view import compare


def spans_of(trace):
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def test_one_page_offline(tmp_path):
    path = to_html(factory.loaders(2), tmp_path / "page.html", "MNIST & <friends>")
    text = path.read_text(encoding="utf-8")
    assert len(text) < 400_000
    assert not re.search(r"<script[^>]* src=", text)
    shown = re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    headings = [html.unescape(heading) for heading in re.findall(r"<h[12][^>]*>(.*?)</h[12]>", shown, re.DOTALL)]
    assert headings == ["MNIST & <friends>", "Side by side", *factory.LOADERS]
    fetched = re.findall(r"\s(?:src|href)=[\"'](.*?)[\"']", shown)
    assert [address[:26] for address in fetched] == ["data:image/svg+xml;base64,"]
    assert shown.count("<table") == 2 + 2 * 4  # comparison in short and in full, a summary and a breakdown of each
    assert "In words: blocking: GPU computes" in shown


def test_a_page_of_sections(tmp_path):
    timeline = factory.loader("prefetch")
    items = [
        timeline, timeline.figure(), summarize(timeline), to_table(timeline).head(2), "a <paragraph>",
        compare({"it": timeline}), timeline.view(color="kind"),
    ]  # fmt: skip
    for content in (Section("Heading", "Text & more", items), [Section("Heading", "Text & more", items)]):
        text = to_html(content, tmp_path / "page.html").read_text(encoding="utf-8")
        assert "<p>Text &amp; more</p>" in text
        assert "<p>a &lt;paragraph&gt;</p>" in text
        assert text.count('class="plotly-graph-div"') == len(re.findall(r"plotly\.js v\d", text)) == 1
        assert text.count('<div class="lv-view"') == 3
    assert "nothing was recorded" in to_html(factory.empty(), tmp_path / "e.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("content", [None, "text", 3, {}, [], [3], [Section("x", items=[3])]])
def test_content_that_cannot_be_shown(tmp_path, content):
    with pytest.raises(ExportError, match=r"give|at least one"):
        to_html(content, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("write", [to_html, to_chrome_trace, Timeline.save])
@pytest.mark.parametrize(
    ("path", "error", "told"),
    [
        ("no/file", NoFolderError, "does not exist; make it first"),
        (".", NoFolderError, "it is a folder"),
        (3, TypeError, "give its path"),
    ],
)
def test_bad_paths(tmp_path, monkeypatch, write, path, error, told):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=told):
        write(factory.loader("pinned"), path)


def test_what_is_no_timeline(tmp_path):
    for write in (lambda wrong: to_html(wrong, tmp_path / "x"), lambda wrong: to_chrome_trace(wrong, "x"), to_table):
        with pytest.raises(NotATimelineError):
            write({"a": 3})


@pytest.mark.parametrize("write", [to_html, to_chrome_trace, Timeline.save])
def test_a_full_disk_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch, write):
    path, link = tmp_path / "kept", tmp_path / "link"
    path.write_text("old")
    link.symlink_to(path)

    def half(self, data):
        with open(self, "wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full, pytest.raises(OSError, match="No space left"):
        full.setattr(type(path), "write_bytes", half)
        write(factory.loader("pinned"), path)
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 2
    write(factory.loader("pinned"), link)
    assert link.is_symlink() and len(path.read_text()) > 3


def written(timeline):
    with tempfile.TemporaryDirectory() as folder:
        return json.loads(to_chrome_trace(timeline, f"{folder}/trace.json").read_text(encoding="utf-8"))


@given(st.integers(0, 10_000))
def test_chrome_trace_is_exact_and_nests(seed):
    timeline = factory.random_timeline(seed)
    trace = written(timeline)
    events = spans_of(trace)
    times = [(round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)) for event in events]
    assert times == [(row.start - timeline.begin, row.end - timeline.begin) for row in timeline.rows()]
    threads = defaultdict(list)
    for (start, end), event in zip(times, events, strict=True):
        threads[event["pid"], event["tid"]].append((start, end))
    for spans in threads.values():  # within a thread two spans are apart or one holds the other; Perfetto needs it
        for one, (start, end) in enumerate(spans):
            for first, last in spans[:one]:
                assert last <= start or end <= first or (first <= start and end <= last) or start == end, (first, last)


def test_chrome_trace_speaks_as_the_profiler_does():
    timeline = factory.loader("prefetch")
    trace = written(timeline)
    events = spans_of(trace)
    copies = [event for event in events if event["cat"] == "gpu_memcpy"]
    seen = {(c["name"], c["pid"], c["tid"], c["args"]["stream"], c["args"]["bytes"]) for c in copies}
    assert seen == {("Memcpy HtoD (Pinned -> Device)", 0, 7, 7, factory.NBYTES)} and len(copies) == 6
    assert {event["cat"] for event in events} == {"kernel", "gpu_memcpy", "cuda_runtime", "cpu_op", "user_annotation"}
    calls = {event["args"]["correlation"]: event["name"] for event in events if event["cat"] == "cuda_runtime"}
    assert {calls[copy["args"]["correlation"]] for copy in copies} == {"cudaMemcpyAsync"}
    named = [event for event in trace["traceEvents"] if event["name"] == "thread_name"]
    assert sorted(event["args"]["name"] for event in named) == sorted(lane.name for lane in timeline.lanes)
    assert {(event["pid"], event["tid"]) for event in events} <= {(event["pid"], event["tid"]) for event in named}
    assert trace["deviceProperties"] == [{"id": 0, "name": "A100 PCIe"}]


def test_every_arrow_is_a_flow_between_its_two_spans():
    timeline = factory.loader("prefetch")
    trace = written(timeline)
    flows = {(event["id"], event["ph"]): event for event in trace["traceEvents"] if event["ph"] in "sf"}
    assert len(flows) == 2 * len(timeline.arrows["tail"]) > 60

    def spans_at(flow):
        mine = [event for event in spans_of(trace) if all(event[key] == flow[key] for key in ("pid", "tid"))]
        return {event["name"] for event in mine if event["ts"] <= flow["ts"] < event["ts"] + event["dur"]}

    for number, (tail, head) in enumerate(zip(timeline.arrows["tail"], timeline.arrows["head"], strict=True), start=1):
        start, finish = flows[number, "s"], flows[number, "f"]
        assert start["ts"] <= finish["ts"] and finish["bp"] == "e"
        assert timeline.row(int(tail)).name in spans_at(start)
        assert timeline.row(int(head)).name in spans_at(finish)


def test_hazards_are_instants_and_empty_is_valid():
    marks = [(5, "stream 0", "early-read", "a reads too early")]
    trace = written(factory.made(("stream 0", 0, 9, Kind.COMPUTE), marks=marks))
    instants = [event for event in trace["traceEvents"] if event["ph"] == "i"]
    assert [(event["name"], event["ts"], event["args"]["text"]) for event in instants] == [
        ("early-read", 0.005, "a reads too early")
    ]
    assert written(factory.empty())["traceEvents"] == []


def test_table():
    timeline = factory.loader("blocking")
    table = to_table(timeline)
    assert len(table) == len(timeline)
    assert table[table.kind == "copy_h2d"].duration_ns.sum() == summarize(timeline, (0, timeline.duration)).copy
    copy = table[table.kind == "copy_h2d"].iloc[0]
    assert (copy.lane, copy.device, copy.batch, copy.pinned, copy.source) == ("stream 0", 0, 0, False, "train.py:14")
    assert copy.gb_per_s == pytest.approx(factory.NBYTES / (2 * factory.COPY))
    wait = table[table.cause == "staging"].iloc[0]
    assert wait[["nbytes", "pinned", "device", "gb_per_s"]].isna().all()
    assert table.pinned.dtype == pd.BooleanDtype()
    empty = to_table(factory.empty())
    assert (len(empty), list(empty.columns)) == (0, list(table.columns))
