"""Numbers for programs: JSON, limits, two runs beside each other, and the fixture."""

import json
import math

import numpy as np
import pytest
import torch
from factory import loader, made

import loaderviz as lv
from loaderviz.analysis.report import BETTER, LimitError, _error, broken, differences, limit, regressions, report
from loaderviz.cli import main
from loaderviz.testing import held
from loaderviz.timeline import Kind

PROGRAM = """
import torch
x = torch.zeros({size}, 784)
model = torch.nn.Linear(784, 64).cuda()
for number in range(12):
    with torch.profiler.record_function(f"batch {{number}}"):
        model(x.cuda()).sum().backward()
"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Return the files of two runs, of which the second copies eight times as much."""
    found, tmp_path = [], tmp_path_factory.mktemp("reports")
    for size in (64, 512):
        (tmp_path / f"{size}.py").write_text(PROGRAM.format(size=size))
        found.append(tmp_path / f"{size}.json")
        options = ["--on", "a100", "--host", "laptop", "--out", str(tmp_path / "page.html"), "--json", str(found[-1])]
        assert main(["run", *options, str(tmp_path / f"{size}.py")]) == 0
    return found


def test_a_report_is_json_and_has_the_numbers_of_the_summary():
    timeline = loader("pinned")
    found = json.loads(json.dumps(report(timeline)))
    summary = lv.summarize(timeline)
    assert found["schema"] == 1 and {name: found["summary"][name] for name in BETTER} == {
        name: getattr(summary, name) for name in BETTER
    }
    assert [each["kind"] for each in found["advice"]["findings"]] == [each.kind for each in lv.advise(timeline)]
    assert found["summary"] == json.loads(json.dumps(summary.to_dict()))
    assert found["noise"].keys() == BETTER.keys() and min(found["noise"].values()) >= 0


def test_what_no_device_is_there_to_do_is_null_and_no_zero(tmp_path, capsys):
    (tmp_path / "program.py").write_text(PROGRAM.format(size=64).replace(".cuda()", ""))
    files = [str(tmp_path / "page.html"), "--json", str(tmp_path / "cpu.json")]
    assert main(["run", "--on", "cpu", "--out", *files, str(tmp_path / "program.py")]) == 0
    found = json.loads((tmp_path / "cpu.json").read_text())
    unknown = {name for name, value in found["summary"].items() if value is None}
    assert {*BETTER, "copy", "compute", "limit"} - {"step", "samples_per_second"} <= unknown
    assert found["noise"]["step"] > 0 and found["noise"]["busy"] is None
    capsys.readouterr()
    assert main(["diff", *2 * [files[-1]]]) == 0
    assert "busy: not measured -> not measured\n" in capsys.readouterr().out
    assert broken(found, ["busy=0.5"], ["idle=1ms"]) == [
        "busy was not measured, and is to be 0.5",
        "idle was not measured, and is to be 1 ms",
    ]


def test_the_noise_of_a_number_is_how_far_it_differs_from_one_run_to_the_next():
    chance = np.random.default_rng(0)
    time = chance.uniform(1, 3, (2000, 50))
    copies = time * chance.uniform(0, 0.5, time.shape)
    shares, noises = copies.sum(1) / time.sum(1), [_error(*each) for each in zip(copies, time, strict=True)]
    assert np.mean(noises) == pytest.approx(shares.std(), rel=0.1)
    assert _error(time[0], 2 * time[0]) == pytest.approx(0, abs=1e-9)  # the same share in each step
    assert _error(time[0, :2], time[0, :2]) is _error(time[0], 0 * time[0]) is None


def test_each_number_has_the_noise_of_its_steps(capsys, tmp_path):
    even, uneven = (steps(lengths) for lengths in ([2] * 12, [1, 3] * 6))
    noises = [report(each)["noise"] for each in (even, uneven)]
    assert set(noises[0].values()) == {0} and all(noises[1][name] > 0 for name in ("step", "busy", "idle"))
    assert noises[1]["overlap"] == 0  # no copy is hidden in any step
    for name, timeline in (("even", even), ("uneven", uneven)):
        (tmp_path / name).write_text(json.dumps(report(timeline)))
    main(["diff", str(tmp_path / "even"), str(tmp_path / "uneven")])
    assert all("±" in line or line == "overlap: 0 -> 0" for line in capsys.readouterr().out.splitlines())


def steps(lengths):
    """Return the timeline of steps of so many ms, each with 0.1 ms of copies and 0.5 ms of kernels."""
    spans = []
    for number, begin in enumerate((10**6 * np.cumsum([0, *lengths[:-1]])).tolist()):
        spans += [
            ("main", begin, begin + 10**5, Kind.RANGE, {"name": f"batch {number}: 8 samples", "batch": number}),
            ("stream 7", begin, begin + 10**5, Kind.COPY_H2D, {"batch": number, "nbytes": 8}),
            ("stream 7", begin + 10**5, begin + 6 * 10**5, Kind.COMPUTE, {"batch": number}),
        ]
    return made(*spans)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("overlap=0.9", ("overlap", 0.9)),
        ("overlap=90%", ("overlap", 0.9)),
        ("step=2ms", ("step", 2e6)),
        (" step=350us", ("step", 350e3)),
        ("headroom=1.5", ("headroom", 1.5)),
    ],
)
def test_limits_are_read(text, expected):
    found = limit(text)
    assert (found.name, found.value) == (expected[0], pytest.approx(expected[1]))


def test_a_share_of_a_time_is_a_change_between_two_runs_and_no_limit_of_one():
    assert limit("step=10%", change=True).value == pytest.approx(0.1)
    with pytest.raises(LimitError, match="needs a share, such as step=10%"):
        limit("step=2ms", change=True)
    for text in ("step=10%", "headroom=10%", "samples_per_second=90%"):
        with pytest.raises(LimitError, match="one run has no change in it; `loaderviz diff` compares two"):
            limit(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("overlap", "no limit: write"),
        ("", "no limit"),
        ("speed=3", "one of overlap"),
        ("overlap=3ms", "is no time"),
        ("step=1.2.3", "no number"),
        ("step=-3", "no limit"),
        ("step=9" * 500, "no limit"),
    ],
)
def test_what_is_no_limit_is_refused(text, words):
    with pytest.raises(LimitError, match=words):
        limit(text)


def test_a_limit_that_is_not_kept_is_said_in_both_directions():
    found = report(loader("pinned"))
    step = found["summary"]["step"]
    assert broken(found, ["overlap=0"], [f"step={step + 1:.0f}ns"]) == []
    under, over = broken(found, ["overlap=0.9"], [f"step={step / 2:.0f}ns"])
    assert under.startswith("overlap is 0: under 0.9") and "over" in over
    found["summary"]["overlap"] = None
    assert broken(found, ["overlap=0.9"]) == ["overlap was not measured, and is to be 0.9"]


def test_two_runs_are_compared_and_noise_is_no_change(reports, capsys):
    before, after = (json.loads(each.read_text()) for each in reports)
    assert {each.change for each in differences(before, before)} <= {0, None}
    assert regressions(differences(before, before), ["step=1%"]) == []
    (said,) = regressions(differences(before, after), ["step=10%"])
    assert said.startswith("step: ") and "worse by more than 10 %" in said
    assert regressions(differences(after, before), ["step=10%"]) == []  # better
    after["noise"]["step"] = after["summary"]["step"]
    assert regressions(differences(before, after), ["step=10%"]) == []
    after["summary"]["step"] = None
    assert "not measured" in regressions(differences(before, after), ["step=10%"])[0]
    files = [str(each) for each in reports]
    capsys.readouterr()
    assert main(["diff", *files]) == 0 and "step: " in capsys.readouterr().out
    assert main(["diff", *files, "--fail-over", "step=10%"]) == 3
    assert main(["diff", *reversed(files), "--fail-over", "step=10%"]) == 0


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"summary": 3}', "no json", "[" * 100_000, b"\x80\xff"])
def test_what_is_no_report_is_refused(tmp_path, content, reports, capsys):
    (tmp_path / "bad.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["diff", str(tmp_path / "bad.json"), str(reports[0])]) == 1
    assert "report" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("schema", 99, "no entry 'schema' of 1"),
        ("noise", [1], "its 'noise' is [1]"),
        *(
            ("summary", value, "its 'step' in 'summary' is")
            for value in ("abc", True, math.nan, math.inf, 10**400, [1])
        ),
        ("summary", ..., "its 'step' in 'summary' is missing"),
    ],
)
def test_a_report_that_lies_is_refused(tmp_path, part, value, said, reports, capsys):
    found = json.loads(reports[0].read_text())
    if part != "summary":
        found[part] = value
    elif value is ...:
        del found["summary"]["step"]
    else:
        found["summary"]["step"] = value
    (tmp_path / "bad.json").write_text(json.dumps(found))
    assert main(["diff", str(reports[0]), str(tmp_path / "bad.json"), "--fail-over", "step=10%"]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("given", "status"), [("overlap=0.9", 3), ("overlap=0", 0), ("speed=1", 1)])
def test_a_run_ends_with_three_where_a_limit_is_not_kept(tmp_path, capsys, given, status):
    (tmp_path / "program.py").write_text(PROGRAM.format(size=64))
    options = ["--on", "a100", "--host", "laptop", "--out", str(tmp_path / "page.html"), "--fail-under", given]
    assert main(["run", *options, str(tmp_path / "program.py")]) == status


def test_a_run_refuses_a_share_of_a_time_before_the_program_starts(tmp_path, capsys):
    (tmp_path / "program.py").write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'began')!r}).touch()")
    assert main(["run", "--on", "cpu", "--fail-over", "step=10%", str(tmp_path / "program.py")]) == 1
    assert "one run has no change in it" in capsys.readouterr().err and not (tmp_path / "began").exists()


def test_a_loop_is_held_by_a_test(timeline_of):
    def loop(count):
        model = torch.nn.Linear(784, 64).cuda()
        for number in range(count):
            with torch.profiler.record_function(f"batch {number}"):
                model(torch.zeros(64, 784).cuda()).sum().backward()

    timeline = timeline_of(loop, 12, on="a100", host="laptop")
    held(timeline, overlap=0.0, step="50ms")
    for limits, error, told in (
        ({"overlap": 0.9}, AssertionError, r"overlap is 0: under 0\.9.*First finding: "),
        ({"step": "1us"}, AssertionError, r"step is .*: over 1 µs"),
        ({"speed": 3}, LimitError, "one of overlap"),
    ):
        with pytest.raises(error, match=told):
            held(timeline, **limits)
