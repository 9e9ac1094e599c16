"""An export carries its timeline, which comes back equal; its events are for other tools."""

import json

import factory
import pytest
from trace_files import read_events, work, write

from loaderviz.export import to_chrome_trace
from loaderviz.timeline import ArrowKind, Cause, Context, Kind, Timeline, TimelineBuilder
from loaderviz.traces import TraceError, read


def everything():
    """A timeline with all that one can hold."""
    told = {"host": "h", "clock": "virtual ns", "samples": 7, "versions": {"torch": "2.13"}, "notes": ("a", "b")}
    context = Context(device="GPU <&> \u00b5", origin="emulated", **told)
    builder = TimelineBuilder(context)
    base = 1_712_195_495_521_308_558
    lanes = [
        builder.lane("worker 1", "host", "worker", 1),
        builder.lane("main", "host", "main"),
        builder.lane("stream 7", "device", number=7),
        builder.lane("stream 7 (2)", "device", number=7),
        builder.lane("stream 7", "device", number=7, device=1),
    ]
    builder.lane("never used", "device", number=9)
    for number, kind in enumerate(Kind):
        more = {"correlation": number << 40, "pinned": (None, True, False)[number % 3]}
        more |= {"cause": list(Cause)[number % len(Cause)], "source": f"train.py:{number}" if number % 2 else ""}
        start, nbytes = base + 100 * number, 10**12 * (number % 2) - 1
        lane, name = lanes[number % 5], f"name {number % 4}"
        builder.span(start, start + 99, lane, kind, name, batch=number - 1, nbytes=nbytes, **more)
    builder.arrow(0, 1, ArrowKind.LAUNCH)
    builder.arrow(0, 1, ArrowKind.LAUNCH)  # twice the same
    builder.arrow(2, 5, ArrowKind.WAIT)
    builder.mark(base + 3, lanes[2], "early-read", 'reads "too" early', (1, 2))
    builder.mark(base + 3, lanes[1], "hidden-sync", "\u2026")
    return builder.build()


@pytest.mark.parametrize("write", [Timeline.save, to_chrome_trace])
@pytest.mark.parametrize("timeline", [everything(), factory.loader("prefetch"), factory.empty()])
def test_what_was_written_is_read_again(tmp_path, timeline, write):
    found = read(write(timeline, tmp_path / "run.json"))
    assert found.to_dict() == timeline.to_dict()  # the dicts, so that a difference is shown
    assert found == timeline and found.marks == timeline.marks
    assert {name: each.dtype for name, each in found.spans.items()} == {
        name: each.dtype for name, each in timeline.spans.items()
    }


def test_overlapping_rows_get_threads_of_their_own(tmp_path):
    """Perfetto drops spans of one thread that overlap without nesting; sub-lanes bear the same stream number."""
    kernels = [work(f"k{n}", 10 + 4 * n, 6, 5) for n in range(4)]
    path = to_chrome_trace(read_events(tmp_path, *kernels), tmp_path / "export.json")
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    spans = [(event["tid"], event["ts"], event["ts"] + event["dur"]) for event in events if event["ph"] == "X"]
    assert len({tid for tid, *_ in spans}) == 2
    for tid, start, end in spans:
        assert all(t != tid or e <= start or end <= s or (s, e) == (start, end) for t, s, e in spans)


def test_a_cut_export_is_whole(tmp_path):
    """The timeline stands before the events."""
    timeline = factory.loader("prefetch")
    text = to_chrome_trace(timeline, tmp_path / "export.json").read_text(encoding="utf-8")
    assert read(write(tmp_path, text[: text.index('"traceEvents"') + 1_000])) == timeline


def test_exports_that_cannot_be_read(tmp_path):
    path = to_chrome_trace(factory.loader("pinned"), tmp_path / "export.json")
    changed = path.read_text(encoding="utf-8").replace('"loaderviz": "', '"loaderviz": "AAAA')
    with pytest.raises(TraceError, match="'loaderviz' entry is damaged"):
        read(write(tmp_path, changed))
    with pytest.raises(TraceError, match="was written by loaderviz and is no rank"):
        read([path, path])
    assert isinstance(read(path), Timeline)
