"""to_chrome_trace and read are inverse: what was exported comes back equal, whatever made it."""

import json

import factory
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_files import loop, read_events, shared, work, write

from loaderviz.export import to_chrome_trace
from loaderviz.timeline import ArrowKind, Cause, Context, Kind, Timeline, TimelineBuilder
from loaderviz.traces.read import TraceError, read


def there_and_back(timeline, folder):
    found = read(to_chrome_trace(timeline, folder / "export.json"))
    assert found.to_dict() == timeline.to_dict()  # the dicts, so that a difference is shown
    assert found == timeline
    for column in timeline.spans:
        assert found.spans[column].dtype == timeline.spans[column].dtype
    return found


@pytest.mark.parametrize("name", factory.LOADERS)
def test_the_four_loaders(tmp_path, name):
    there_and_back(factory.loader(name), tmp_path)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_random_timelines(tmp_path_factory, seed):
    there_and_back(factory.random_timeline(seed, spans=30), tmp_path_factory.mktemp("random"))


def test_everything_a_timeline_can_hold(tmp_path):
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
    there_and_back(builder.build(), tmp_path)
    there_and_back(factory.empty(), tmp_path)


def test_overlapping_rows_get_threads_of_their_own(tmp_path):
    """Perfetto drops spans of one thread that overlap without nesting; sub-lanes bear the same stream number."""
    kernels = [work(f"k{n}", 10 + 4 * n, 6, 5) for n in range(4)]
    timeline = read_events(tmp_path, *kernels)
    there_and_back(timeline, tmp_path)
    events = json.loads((tmp_path / "export.json").read_text(encoding="utf-8"))["traceEvents"]
    spans = [(event["tid"], event["ts"], event["ts"] + event["dur"]) for event in events if event["ph"] == "X"]
    assert len({tid for tid, *_ in spans}) == 2
    for tid, start, end in spans:
        assert all(t != tid or e <= start or end <= s or (s, e) == (start, end) for t, s, e in spans)


def test_what_was_read_can_be_exported_and_read_again(tmp_path):
    there_and_back(read_events(tmp_path, *loop()), tmp_path)


@pytest.mark.parametrize("name", ["alexnet_pageable_2023.json.gz", "event_sync_2023.json.gz", "two_ranks"])
def test_real_traces_exported_and_read_again(tmp_path, name):
    there_and_back(read(shared(name)), tmp_path)


def test_an_emulated_training_loop(tmp_path):
    import torch

    import loaderviz
    from loaderviz.loaders import PrefetchLoader

    data = torch.utils.data.TensorDataset(torch.rand(96, 8), torch.randint(0, 4, (96,)))
    with loaderviz.record(on="a100") as recording:
        model = torch.nn.Linear(8, 4).to("cuda")
        loader = torch.utils.data.DataLoader(data, batch_size=32, num_workers=2, pin_memory=True)
        for inputs, labels in PrefetchLoader(loader, "cuda"):
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        torch.cuda.synchronize()
    found = there_and_back(recording.timeline, tmp_path)
    assert {lane.role for lane in found.lanes} == {"main", "worker", "pin", "stream"}
    assert loaderviz.summarize(found).batches == 2  # without the first, the start-up
    assert found.figure().to_dict() == recording.timeline.figure().to_dict()


def test_a_saved_timeline_is_read_too(tmp_path):
    timeline = factory.loader("prefetch")
    assert read(timeline.save(tmp_path / "run.json")) == timeline


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
    with pytest.raises(TraceError, match="is an export of loaderviz"):
        read([path, path])
    assert isinstance(read(path), Timeline)
