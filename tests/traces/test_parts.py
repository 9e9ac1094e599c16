"""`read(steps=, window=)`: which events of a trace become spans, and what is refused."""

import re
from concurrent.futures import ThreadPoolExecutor

import factory
import numpy as np
import pytest
from factory import real, shared
from test_view_command import view
from trace_files import BASE, call, copy, loop, note, notes, op, repeated, straggling, trace, work, write

import loaderviz
from loaderviz.export import to_chrome_trace
from loaderviz.timeline import DEVICE_KINDS, Kind
from loaderviz.traces import TraceError, read


def marked(count=6, first=3):
    """Steps of 100 µs; the kernel of each runs during the next one."""
    events = repeated(
        count,
        100,
        lambda n, at: [
            note(f"ProfilerStep#{first + n}", at, 100),
            op("aten::mm", at + 5, 20),
            call("cudaLaunchKernel", at + 10, 5, n + 1),
            work(f"gemm{first + n}", at + 120, 60, n + 1),
        ],
    )
    return trace(*events)


@pytest.fixture
def path(tmp_path):
    return write(tmp_path, marked())


def told(timeline):
    """What is known of each host span and kernel, whatever time 0 is."""
    zero = timeline.context.zero or 0
    return sorted((row.name, row.start + zero, row.end + zero, row.batch, row.lane.name) for row in timeline.rows())


@pytest.mark.parametrize(
    ("steps", "numbers"),
    [
        (slice(4, 6), [4, 5]),
        (slice(None, 5), [3, 4]),
        (slice(7, None), [7, 8]),
        (slice(8, 99), [8]),
        (slice(None), [3, 4, 5, 6, 7, 8]),
    ],
)
def test_the_spans_of_some_steps_are_those_of_the_whole_with_these_batches(path, steps, numbers):
    part, whole = read(path, steps=steps).self_check(), read(path)
    assert told(part) == [row for row in told(whole) if row[3] in numbers]
    assert [row.name for row in part.rows(Kind.COMPUTE)] == [f"gemm{number}" for number in numbers]
    assert len(part.arrows["tail"]) == len(numbers)  # also to the kernel that runs after the steps
    assert f"the part that was read has {len(numbers)} step{'s' * (len(numbers) > 1)} of 6 in the file" in notes(part)


def test_a_window_takes_what_the_host_begins_in_it(path):
    part = read(path, window=(5_000, 110_000)).self_check()
    assert [row.name for row in part.rows(Kind.COMPUTE)] == ["gemm3"]
    assert [row.name for row in part.rows(Kind.OPERATOR)] == ["aten::mm", "aten::mm"]
    assert [row.name for row in part.rows(Kind.RANGE)] == ["ProfilerStep#4"]
    assert told(read(path, window=(0, 10**9))) == told(read(path))


def test_work_without_a_launch_is_taken_by_its_own_time(tmp_path):
    data = marked()
    data["traceEvents"] += [work("early", BASE + 1, 2, 90, stream=9), copy(BASE + 150, 5, 91, stream=9)]
    part = read(write(tmp_path, data), steps=slice(4, 5))
    assert [row.name for row in part.rows() if "stream 9" in row.lane.name] == ["Memcpy HtoD (Pinned -> Device)"]


def test_what_was_read_is_written_and_read_back_equal(path, tmp_path):
    for part in (read(path, steps=slice(4, 6)), read(path, window=(5_000, 110_000))):
        assert read(to_chrome_trace(part, tmp_path / "part.json")) == part


def test_each_rank_is_cut_at_its_own_steps(tmp_path):
    straggling(tmp_path, 1, count=3)
    with ThreadPoolExecutor(2) as pool:
        part = read(tmp_path, steps=slice(4, 6), executor=pool)
    assert part == read(tmp_path, steps=slice(4, 6))
    assert told(part) == [row for row in told(read(tmp_path)) if row[3] in (4, 5)]


WRONG = {
    "steps": [
        3, (3, 6), range(3, 6), slice(3, 3), slice(5, 3), slice(-2, None), slice(0, -1), slice(0, 6, 2),
        slice("a", "b"), slice(True, 4), slice(0.0, 4), slice(None, 0),
    ],
    "window": [5, (5,), (5, 5), (9, 3), (-1, 4), ("a", "b"), (0, None), [0, 5], (0, 1.5)],
}  # fmt: skip


@pytest.mark.parametrize(("option", "given"), [(option, each) for option in WRONG for each in WRONG[option]], ids=repr)
def test_what_are_no_steps_and_no_time_is_refused(path, option, given):
    wanted = "numbers of steps" if option == "steps" else "start and end in ns"
    with pytest.raises(TypeError, match=re.escape(f"{option}={given!r}: give {wanted}")):
        read(path, **{option: given})


@pytest.mark.parametrize(
    ("part", "error", "told"),
    [
        ({"steps": slice(20, 30)}, TraceError, "has the steps 3 to 8, and none from 20 to 29"),
        (
            {"window": (1_000_000, 2_000_000)},
            TraceError,
            r"no event in window=\(1000000, 2000000\); its last one ends at 680,000 ns",
        ),
        ({"steps": slice(3, 4), "window": (0, 5)}, TypeError, "give one of them"),
    ],
)
def test_a_part_that_a_file_has_not_is_told(path, part, error, told):
    with pytest.raises(error, match=told):
        read(path, **part)


def test_a_part_of_an_unmarked_or_a_saved_file_is_refused(path, tmp_path):
    unmarked = write(tmp_path, trace(*loop()[1:]), "unmarked.json")
    saved, marks = read(path).save(tmp_path / "saved.json"), r"nothing in .*unmarked.json marks .* counted.*window="
    whole = r"timeline.between\(start, end\) gives a part"
    for file, part, told in (
        (unmarked, "steps", marks),
        (saved, "steps", whole),
        (saved, "window", whole),
        (saved, "ranks", whole),
    ):
        with pytest.raises(TraceError, match=told):
            read(file, **{part: slice(0, 1) if part == "steps" else (0, 5)})


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.int64])
def test_whole_numbers_of_numpy_are_taken(path, kind):
    assert told(read(path, window=(kind(0), kind(100)))) == told(read(path, window=(0, 100)))
    assert told(read(path, steps=slice(kind(4), kind(6)))) == told(read(path, steps=slice(4, 6)))


def test_a_part_without_work_of_the_gpu_says_nothing_of_the_file(tmp_path):
    """What the file lacks is told of the whole; the messages of a part are those of its own collectives."""
    given = trace(*loop()) | {"deviceProperties": [{"id": 0, "name": "NVIDIA A100"}]}
    path = write(tmp_path, given, "named.json")
    part = read(path, window=(0, 1))
    assert not part.where(*DEVICE_KINDS).any() and part.context.missing == ()
    assert not [finding for finding in loaderviz.advise(part) if finding.kind == "work-not-seen"]


def test_the_command_line_reads_some_steps(path, tmp_path, capsys):
    assert view(path, "--steps", "4:6", "--out", tmp_path / "page.html") == 0
    assert "the part that was read has 2 steps of 6 in the file" in capsys.readouterr().out
    for wrong in ("4", "6:4", "4:4", "-1:4", "a:b", "1:2:3"):
        with pytest.raises(SystemExit):
            view(path, f"--steps={wrong}", "--out", tmp_path / "page.html")
        assert f"{wrong!r} has no step in it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "step"),
    [
        factory.slow("resnet50_workers0_2021.json.gz", 6),
        ("judged/mi300_resnet_act_checkpoint.json.gz", 16),
        ("ranks8_nanogpt_2025/Baseline_-_12-11_-_6bd4b-rank1-chrome-trace.json.gz", 11),
    ],
)
def test_one_step_of_a_real_trace_has_all_of_its_spans(name, step, tmp_path):
    whole, part = real(name), read(shared(name), steps=slice(step, step + 1)).self_check()
    of_step = [[row[:4] for row in told(each) if row[3] == step] for each in (part, whole)]
    assert of_step[0] == of_step[1] != []
    assert len(part) < len(whole) / 2
    assert not set(part.batch.tolist()) - {-1, step}
    assert read(to_chrome_trace(part, tmp_path / "part.json")) == part


def counted_only(by, count=6, base=BASE):
    """Steps of 100 µs that a loader or an optimizer tells of; the kernel of each runs during the next one."""
    return repeated(
        count,
        100,
        lambda n, at: [
            *[op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 4)] * (by == "loader"),
            op("aten::mm", at + 5, 20),
            call("cudaLaunchKernel", at + 10, 5, n + 1),
            op("autograd::engine", at + 30, 5, tid=9),
            work(f"gemm{n}", at + 120, 60, n + 1),
            note("Optimizer.step#SGD.step", at + 80, 15),
        ],
        base,
    )


@pytest.mark.parametrize("by", ["loader", "optimizer"])
@pytest.mark.parametrize("base", [BASE, 5_000])  # of Unix time, or of an unknown moment
@pytest.mark.parametrize("steps", [slice(1, 3), slice(4, None), slice(None, 1)])
def test_steps_that_are_counted_can_be_asked_for(tmp_path, by, base, steps):
    path = write(tmp_path, trace(*counted_only(by, base=base)))
    part, whole = read(path, steps=steps).self_check(), read(path)
    numbers = list(range(6))[steps]
    assert sorted(row[:1] + row[3:] for row in told(part)) == sorted(
        row[:1] + row[3:] for row in told(whole) if row[3] in numbers
    )
    assert [row.name for row in part.rows(Kind.COMPUTE)] == [f"gemm{number}" for number in numbers]
    assert f"the part that was read has {len(numbers)} step{'s' * (len(numbers) > 1)} of 6 in the file" in notes(part)
    said = "steps are counted by " + {"loader": "DataLoader.__next__", "optimizer": "optimizer.step()"}[by]
    assert notes(part).count(said) == notes(whole).count(said) == 1
    with pytest.raises(TraceError, match="has the steps 0 to 5, and none from 7 to 8"):
        read(path, steps=slice(7, 9))
