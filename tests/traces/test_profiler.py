"""Real runs: torch.profiler's own trace, with the DataLoader's work added, as the Timeline of an emulated run of it."""

import os
from collections import Counter
from itertools import pairwise
from pathlib import Path
from time import sleep
from types import SimpleNamespace

import datasets
import factory
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import record_function
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from trace_files import notes, record_cpu, steps_of

import loaderviz as lv
from loaderviz import recording as recording_module
from loaderviz.analysis.evidence import LOOKS, Evidence
from loaderviz.batches import HAND_OUT
from loaderviz.errors import LoadervizError, NestedRecordingError
from loaderviz.loaders import BlockingLoader, PrefetchLoader
from loaderviz.loaders import base as marks
from loaderviz.machine import cores
from loaderviz.stations import DRAWS
from loaderviz.timeline import Cause, Kind, Look, Timeline
from loaderviz.traces import live, merge
from loaderviz.traces.live import NotLookedForError
from loaderviz.traces.merge import Anchor, Clock
from loaderviz.traces.steps import Window

NEXT = "enumerate(DataLoader)#_{}DataLoaderIter.__next__"


def data_loader(workers=1, **options):
    return DataLoader(datasets.Squares(), **{"batch_size": 4, "num_workers": workers} | options)


def train(loader, steps=None):
    weight = torch.ones(3, requires_grad=True)
    for number, batch in enumerate(loader):
        (batch[0] * weight).sum().backward()
        if number + 1 == steps:
            break


def loader_of(size, batch_size=2, **options):
    return DataLoader([torch.zeros(size)] * 8, batch_size, **options)


# The same loop, emulated and real


@pytest.mark.parametrize("loader", [None, BlockingLoader, PrefetchLoader], ids=str)
@pytest.mark.parametrize("workers", [0, 2])
def test_an_emulated_and_a_real_run_tell_the_same_story(loader, workers):
    """The same lanes, names, kinds and batches, each sort of span in the same order; only waiting is the machine's."""

    def story(on):
        with lv.record(on=on) as recording:
            for _ in range(2):
                source = data_loader(workers)
                train(loader(source, "cpu") if loader else source)
        told = {}
        for row in recording.timeline.rows(Kind.WAIT, Kind.FETCH, Kind.RANGE, Kind.OPERATOR):
            if row.kind is Kind.WAIT:
                assert (row.name, row.cause, row.lane.role) == ("waiting for data", Cause.DATA, "main")
            elif row.kind is not Kind.OPERATOR or row.name.startswith(("DataLoader", "start ")):
                drawn = loader is not None and row.name.startswith("enumerate")  # before the batch is the loop's
                entry = (row.name, None if drawn else row.batch, row.nbytes)
                told.setdefault((row.lane.name, row.lane.role, row.kind, row.name[:5]), []).append(entry)
        return told

    assert story("cpu") == story("a100")


def test_what_the_main_thread_does_for_a_batch_lies_in_torchs_range_of_it():
    timeline = record_cpu(lambda: train(data_loader(2)))
    ranges = [row for row in timeline.rows(Kind.RANGE) if row.name == NEXT.format("MultiProcessing")]
    parts = [row for row in timeline.rows() if row.name in ("waiting for data", "DataLoader hand-out")]
    assert [row.batch for row in parts if row.kind is Kind.OPERATOR] == list(range(6))
    for part in parts:
        (around,) = (row for row in ranges if row.start <= part.start < row.end)
        assert (around.batch, around.lane) == (part.batch, part.lane)
        assert part.end <= around.end
    steps = [row for row in timeline.rows(Kind.RANGE) if row.name.startswith("batch ")]
    assert all(first.end == second.start for first, second in pairwise(steps))  # a step reaches to the next


def test_the_context_says_what_was_recorded_where():
    timeline = record_cpu(lambda: train(data_loader(1)))
    context = timeline.context
    assert context.origin == "recorded"
    assert context.device.startswith("CPU alone (")
    assert (context.host, context.cores) == ("this machine", cores().threads)
    assert context.versions["torch"] == torch.__version__
    assert context.samples == datasets.SIZE
    assert "times of the monotonic clock, put onto the profiler's to ± " in notes(timeline)
    assert "UTC" in context.clock
    assert not any(name.startswith("loaderviz|") for name in timeline.names)


def test_summary_and_title_say_whether_the_dataloader_is_the_bottleneck():
    timeline = record_cpu(lambda: train(DataLoader(datasets.Slow(), batch_size=4, num_workers=1)))
    summary = lv.summarize(timeline)
    assert (summary.batches, summary.samples) == (5, datasets.SIZE - 4)  # without the first batch, the start-up
    assert summary.host_blocked.keys() == {"waiting for data"}
    assert "waiting for data" in timeline.figure().layout.title.text
    alone = record_cpu(lambda: train(DataLoader(datasets.Slow(), batch_size=4)))
    assert "fetching batches" in alone.figure().layout.title.text
    assert Timeline.from_dict(alone.to_dict()) == alone


def marked(loader, name, first=0):
    for number, _ in enumerate(loader, first):
        with record_function(name.format(number)):
            torch.ones(2).mul(2)


def test_the_programs_own_marks_come_before_the_dataloaders():
    timeline = record_cpu(lambda: marked(data_loader(0), "batch {}", first=10))
    assert steps_of(timeline) == [f"batch {number}" for number in range(10, 16)]
    assert [row.batch for row in timeline.rows(Kind.OPERATOR) if row.name == "aten::mul"] == list(range(10, 16))


@pytest.mark.parametrize("on", ["cpu", "a100"])
def test_a_mark_may_begin_with_a_capital(on):
    with lv.record(on=on) as recording:
        marked(range(3), "Batch {}")
    timeline = recording.timeline.self_check()
    assert lv.summarize(timeline, (timeline.begin, timeline.begin + timeline.duration)).batches == 3


def test_a_mark_that_repeats_the_loaders_is_taken_once():
    timeline = record_cpu(lambda: marked(BlockingLoader([torch.ones(2)] * 3, "cpu"), "batch {}"))
    assert steps_of(timeline) == [f"batch {number}: 2 samples" for number in range(3)]


def test_a_loader_that_prefetches_counts_its_own_hand_outs():
    timeline = record_cpu(lambda: train(PrefetchLoader(data_loader(1), "cpu", depth=2)), wait=2, steps=2)
    assert steps_of(timeline) == ["batch 2: 4 samples", "batch 3: 4 samples"]
    assert not any("prefetch of" in timeline.names[name] for name in timeline.name)
    given = [row for row in timeline.rows(Kind.OPERATOR) if row.name == "DataLoader hand-out"]
    assert [row.batch for row in given] == [5]  # drawn while batch 3 is due


def test_a_dataloader_in_a_second_thread_is_no_step():
    def loop():
        factory.in_threads(lambda: train(data_loader(1)))
        torch.ones(2).neg()

    timeline = record_cpu(loop)
    assert steps_of(timeline) == []
    assert "in a second thread" in notes(timeline)
    assert len(list(timeline.rows(Kind.FETCH))) == 6


# Which steps


@pytest.mark.parametrize(
    ("wait", "steps", "expected"),
    [(0, None, range(6)), (0, 2, range(2)), (2, None, range(2, 6)), (1, 3, range(1, 4)), (4, 9, (4, 5)), (5, 1, [5])],
)
@pytest.mark.parametrize("on", ["cpu", "a100"])
def test_wait_and_steps(on, wait, steps, expected):
    with lv.record(on=on, wait=wait, steps=steps) as recording:
        train(data_loader(1))
    timeline = recording.timeline.self_check()
    assert steps_of(timeline) == [f"batch {batch}: 4 samples" for batch in expected]
    assert timeline.context.samples == 4 * len(expected)
    said = notes(timeline)
    assert (f"left out (wait={wait})" in said) == (wait > 0)
    if steps is not None:
        missing = steps > len(expected)
        assert (f"the block had {len(expected)} of the {steps} steps" in said) == missing
        assert (f"{steps} is left out (steps={steps})" in said) == (wait + steps < 6)


def test_a_step_outside_the_block_is_refused():
    recording = lv.record(on="cpu")
    with pytest.raises(LoadervizError, match="belongs into the record"):
        recording.step()


@pytest.mark.parametrize("on", ["cpu", "t4"])
def test_a_step_after_the_block_disturbs_no_loop_and_is_told_of_once(on):
    with lv.record(on=on, steps=2) as recording:
        for _ in range(5):
            recording.step()
    before = list(recording.timeline.rows())
    with pytest.warns(UserWarning, match="this step is not in it") as told:
        for _ in range(5):
            recording.step()
    assert len(told) == 1 and told[0].filename == Path(__file__).name and list(recording.timeline.rows()) == before
    with lv.record(on=on) as other:  # another one runs, and is none of the first one's
        recording.step()
    assert not [row for row in other.timeline.rows(Kind.RANGE) if "ProfilerStep" in row.name]


@pytest.mark.parametrize(("wait", "first"), [(0, 5), (1, 7), (2, 8)])
def test_a_first_step_when_the_emulated_recording_has_stopped_hides_no_batches(wait, first):
    def kept(calls):
        with lv.record(on="t4", host="laptop", wait=wait, steps=2) as recording:
            for number, batch in enumerate(DataLoader(torch.ones(40, 50), 4)):
                if number >= calls:
                    recording.step()
                batch.to("cuda").sum().item()
        return recording.timeline

    late, never = kept(first), kept(99)
    assert list(late.rows()) == list(never.rows()) and len(late) > 10
    assert [note for note in late.context.notes if note not in never.context.notes] == [recording_module._LATE]
    assert not any("the block had" in note for note in late.context.notes)


class Watched(Window):
    """A window that notes what it is told to do."""

    def __init__(self, wait, steps):
        self.log = []
        names = ("prepare", "begin", "end", "discard")
        run = SimpleNamespace(goes_on=lambda: True, **{name: lambda name=name: self.log.append(name) for name in names})
        super().__init__(run, wait, steps)


@given(st.integers(0, 4), st.none() | st.integers(1, 4), st.lists(st.booleans(), max_size=12))
def test_the_window_against_counting_by_hand(wait, steps, events):
    """Whatever the order of hand-outs (False) and calls (True): what is kept at the end are the steps asked for."""
    window = Watched(wait, steps)
    window.enter()
    kept, running = [], wait == 0
    for number, is_call in enumerate(events):
        done = len(window.log)
        window.called() if is_call else window.batch()
        for what in window.log[done:]:
            running = {"begin": True, "end": False, "discard": False}.get(what, running)
            kept = [] if what == "discard" else kept
        if running and (is_call or not any(events[:number])):
            kept.append(number)
    window.leave()
    counted = [n for n, is_call in enumerate(events) if is_call] if any(events) else list(range(len(events)))
    expected = counted[wait : None if steps is None else wait + steps]
    early = any(events) and not wait  # begun with the block: what came before the first call is in it, but no step
    assert [number for number in kept if not early or events[number]] == expected
    assert window.log.count("begin") - window.log.count("end") - window.log.count("discard") in (0, -1, 1)


# The two clocks


@given(
    st.integers(-(10**18), 10**18),
    st.integers(-(10**6), 10**6),
    st.lists(st.tuples(*[st.integers(0, 5_000)] * 4), min_size=1, max_size=8),
)
def test_a_time_is_put_onto_the_profilers_clock_within_the_error_stated(offset, drift, delays):
    length = 10**9

    def there(time):  # the profiler's clock at this time of ours
        return time + offset + drift * time // length

    def anchors(begin):
        found, now = [], begin
        for first, second, third, fourth in delays:
            start, inside, end = now + first, now + first + second, now + first + second + third
            found.append(Anchor(now, inside, end + fourth, there(start), there(end)))
            now = end + fourth + 100
        return found

    ours = Clock(anchors(0), anchors(length))
    slack = abs(drift) * 200_000 // length + 2  # within the group of anchors the clocks drift, too
    for time in (0, length // 3, length):
        assert abs(ours.of(time) - there(time)) <= ours.error + slack


# Errors and ends


def test_an_error_in_the_block_goes_on_and_what_was_recorded_is_kept():
    recording = lv.record(on="cpu")
    with pytest.raises(KeyError, match="mine"), recording:
        train(data_loader(0), steps=2)
        raise KeyError("mine")
    assert steps_of(recording.timeline.self_check()) == ["batch 0: 4 samples", "batch 1: 4 samples"]
    assert not torch.autograd._profiler_enabled()


def test_an_error_of_our_own_does_not_hide_the_programs(monkeypatch):
    monkeypatch.setattr(live, "read_kineto", lambda document: 1 / 0)
    recording = lv.record(on="cpu")
    with pytest.raises(KeyError, match="mine"), recording:
        raise KeyError("mine")
    assert "could not be built: division by zero" in notes(recording.timeline)
    with pytest.raises(ZeroDivisionError), lv.record(on="cpu"):
        pass
    with lv.record(on="a100"):  # and nothing is left behind
        pass


def test_an_empty_block_is_an_empty_timeline_with_a_reason():
    timeline = record_cpu(lambda: None)
    assert len(timeline) == 0
    assert "nothing was recorded: the block ran no PyTorch operator" in notes(timeline)
    assert lv.summarize(timeline).window == 0


def test_recordings_do_not_nest():
    for outer, inner in (("cpu", "cpu"), ("cpu", "a100"), ("a100", "cpu")):
        with lv.record(on=outer) as going_on:
            with pytest.raises(NestedRecordingError, match="running already"):
                lv.record(on=inner)
            torch.ones(2).neg()
        assert "aten::neg" in going_on.timeline.names
    early = lv.record(on="cpu")
    with lv.record(on="cpu"), pytest.raises(NestedRecordingError, match="running already"):
        early.__enter__()
    with early:
        pass
    with pytest.raises(NestedRecordingError, match="used already"), early:
        pass


def test_a_profiler_of_the_programs_own_is_told_of():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
        with pytest.raises(NestedRecordingError, match="a profiler is running"), lv.record(on="cpu"):
            pass
        torch.ones(2).neg()
    assert any(event.key == "aten::neg" for event in own.key_averages())
    assert (marks.on_batch, marks.on_prefetch) == (None, None)


def test_a_program_that_forks_leaves_the_recording_to_its_parent():
    with lv.record(on="cpu") as recording:
        torch.ones(2).neg()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                recording.__exit__(None, None, None)
                code = 0 if "forked" in notes(recording.timeline) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        torch.ones(2).exp()
    names = {row.name for row in recording.timeline.rows()}
    assert {"aten::neg", "aten::exp"} <= names


def test_hazards_of_a_real_run_are_not_claimed_to_be_absent():
    with lv.record(on="cpu") as recording:
        torch.ones(2).neg()
    for what in ("hazards", "lints"):
        with pytest.raises(NotLookedForError, match="on an emulated GPU: record"):
            getattr(recording, what)
    with pytest.raises(LoadervizError, match="does not show its races"):
        lv.record(on="cpu", hazards="raise")


def test_a_torch_without_its_profiler_is_named(monkeypatch):
    monkeypatch.setattr(live.profiler, "kineto_available", lambda: False)
    with pytest.raises(LoadervizError, match="built without its profiler"):
        lv.record(on="cpu")


def loop(steps):
    for batch in DataLoader(torch.ones(2 * steps, 8), 2):
        (batch @ batch.T).relu().sum()


def test_a_recording_that_is_full_keeps_whole_steps_and_says_so(capfd):
    timeline = record_cpu(lambda: loop(100), limit=1_000)
    assert 900 < len(timeline) <= 1_000 and "the recording was full" in timeline.context.notes[-1]
    steps = [row for row in timeline.rows(Kind.RANGE) if row.name.startswith("batch ")]
    assert [row.batch for row in steps] == list(range(len(steps))) and timeline.context.samples == 2 * len(steps)
    assert not any("full" in note for note in record_cpu(lambda: loop(100)).context.notes)


def test_spans_are_counted_while_it_runs(capfd, monkeypatch):
    monkeypatch.setattr(live, "_LOOK", 0)
    with lv.record(on="cpu", limit=1_000) as recording:
        loop(2_000)
        counter, window = recording._run._counter, recording._run._window
    assert window.over and counter._steps < 200 and len(recording.timeline) <= 1_000
    with lv.record(on="cpu", limit=10**6) as recording:
        loop(100)
    counted = recording._run._counter._each * 100
    assert 0.7 * len(recording.timeline) < counted < 1.3 * len(recording.timeline)
    assert capfd.readouterr().err == ""


# Hand-outs last until the batch before is let go


def handed_out(lines, gap=500, steps=5):
    """Hand-outs of 10 us, each `gap` us before an operator of 20; the main thread was seen in the gaps at these lines.

    The last hand-out has nothing after it. Returned are the ends of the hand-outs [us after their starts].
    """
    spans, looks = [], []
    for step, line in zip(range(steps), [*lines, None, None, None, None, None], strict=False):
        at = step * 1_000_000
        spans.append(("main", at, at + 10_000, Kind.OPERATOR, {"name": HAND_OUT, "batch": step}))
        spans.append(("main", at, at + 900_000, Kind.RANGE, {"name": f"batch {step}: 8 samples", "batch": step}))
        if step < steps - 1:
            spans.append(("main", at + gap * 1000, at + gap * 1000 + 20_000, Kind.OPERATOR, {"name": "aten::to"}))
        if line is not None:
            looks.append(Look(at - 100_000, 200_000, line))
    timeline = merge._let_go(factory.made(*spans), looks)[0].self_check()
    gives = [row for row in timeline.rows(Kind.OPERATOR) if row.name == HAND_OUT]
    return [row.duration // 1000 for row in gives]


def test_a_look_at_a_sampler_which_runs_in_a_hand_out_is_outside_of_torch():
    spans = [("main", 0, 50_000, Kind.OPERATOR, {"name": HAND_OUT}), ("main", 60_000, 90_000, Kind.OPERATOR)]
    clock = merge.Clock([merge.Anchor(0, 0, 0, 0, 0)], [merge.Anchor(*[100_000] * 5)])
    looks = [Look(10_000, 20_000, "order.py:8"), Look(60_000, 20_000, "train.py:3")]
    assert merge._looks(factory.made(*spans), looks, clock, 0, 100_000) == ((looks[0],), (looks[1],))


@pytest.mark.parametrize(
    ("lines", "gap", "lasts"),
    [
        ([DRAWS] * 3, 500, [500] * 4),
        ([DRAWS] * 3 + ["a.py:3"], 500, [500] * 3 + [10]),  # there it computes
        ([DRAWS] * 2, 500, [10] * 4),  # seen too seldom
        ([DRAWS, "a.py:3", DRAWS, "a.py:4"], 500, [10] * 4),
        (["a.py:3"] * 4, 500, [10] * 4),
        ([DRAWS] * 4, 110, [10] * 4),  # a gap of 100 us is nothing
        ([DRAWS] * 4, 112, [112] * 4),
    ],
)
def test_a_hand_out_lasts_until_the_batch_before_is_let_go(lines, gap, lasts):
    assert handed_out(lines, gap) == [*lasts, 10]


def test_the_end_of_a_stream_is_a_fetch_without_a_batch():
    class Stream(IterableDataset):
        def __iter__(self):
            for number in range(4):
                with lv.costs(5e-3):
                    pass
                yield torch.full((3,), float(number))
            with lv.costs(1e-3):
                pass

    for on in ({"on": "cpu"}, {"on": "a100", "host": "workstation"}):
        with lv.record(**on) as recording:
            for _ in range(2):
                for batch in DataLoader(Stream(), 2):
                    batch.sum()
        timeline = recording.timeline.self_check()
        fetches = list(timeline.rows(Kind.FETCH))
        assert [row.batch for row in fetches] == [0, 1, -1, 2, 3, -1]
        assert {row.name for row in fetches if row.batch < 0} == {"fetch (not handed out)"}
    assert fetches[2].duration == 1_000_000
    assert Evidence(timeline).fetch.shortest >= 10_000_000


def test_steps_to_wait_for_are_those_of_the_outer_loader():
    timeline = record_cpu(lambda: list(DataLoader(factory.Samples(within), 1)), wait=1, steps=2)
    assert steps_of(timeline) == ["batch 1: 1 samples", "batch 2: 1 samples"]


@pytest.mark.this_clock
def test_the_line_that_draws_batches_is_no_other_work():
    def draw():
        for (x,) in DataLoader(TensorDataset(torch.zeros(10 * 16, 500_000)), 16, num_workers=1):
            x[0, 0].item()

    lines = Counter(look.line for look in record_cpu(draw).context.looks)
    drawing = {line for line in lines if line.endswith(f":{draw.__code__.co_firstlineno + 1}")}
    assert sum(lines[line] for line in drawing) < LOOKS  # one, where other programs have the cores


def within(_):
    """A sample that is a batch of another loader."""
    with lv.costs(5e-3):
        pass
    return next(iter(loader_of(4, 3)))[0]


def test_a_call_of_torch_in_which_the_program_was_seen_has_its_line():
    x = torch.rand(300_000)

    def step():
        [x.add(1) for _ in range(8)]  # most calls are seen by no look
        torch.sort(x)

    timeline = record_cpu(lambda: [step() for _ in range(20)])
    seen = Counter(timeline.lines[timeline.sources[row]] for row in timeline.source[timeline.source >= 0].tolist())
    assert seen.most_common(1)[0][0].endswith(f":{step.__code__.co_firstlineno + 2}")
    inside = timeline.named(lambda name: name == "aten::sort")
    known = timeline.source[inside & (timeline.source >= 0)]
    assert len(known) > 0 and len(set(known.tolist())) == 1
    assert Evidence(timeline).at_lines[0].size == 0  # few lines are known: between two of them nothing is


def test_lines_of_looks_are_those_of_the_outermost_call_and_of_all_in_it():
    spans = [
        ("main", 0, 100, Kind.OPERATOR, {"name": "aten::sort"}),
        ("main", 10, 90, Kind.OPERATOR, {"name": "aten::copy_"}),
        ("main", 20, 30, Kind.API, {"name": "cudaLaunchKernel"}),
        ("main", 100, 200, Kind.OPERATOR, {"name": "aten::add"}),
        ("main", 300, 400, Kind.OPERATOR, {"name": "aten::add"}),
    ]
    looks = [Look(0, 50, "a.py:1"), Look(0, 100, "a.py:2"), Look(200, 50, "a.py:3"), Look(300, 50, DRAWS)]
    timeline = merge._with_lines(factory.made(*spans), looks).self_check()
    told = [timeline.sources[each] if each >= 0 else "" for each in timeline.source.tolist()]
    assert told == ["a.py:1", "a.py:1", "a.py:1", "a.py:2", ""]


@pytest.mark.this_clock
def test_the_body_of_a_loop_in_the_line_that_draws_is_no_hand_out():
    """A batch of a few bytes is not unmapped for 20 ms."""

    def loop():
        # fmt: off
        for (x,) in DataLoader(TensorDataset(torch.rand(20 * 16, 64)), 16, num_workers=1): sleep(0.02); x.sum()  # noqa: E701, E702
        # fmt: on

    timeline = record_cpu(loop)
    assert max(row.duration for row in timeline.rows(Kind.OPERATOR) if row.name == HAND_OUT) < 15_000_000
    first = next(each for each in lv.advise(timeline) if each.kind != "cores-taken")  # by other tests
    assert first.kind == "other-work-in-loop"
    assert first.evidence.startswith(f"test_profiler.py:{loop.__code__.co_firstlineno + 2} takes")
