"""Lesson 5: four of its loaders are wrong on every run, with the right report; two are right, however long they run."""

import inspect
import linecache
from unittest.mock import Mock

import pytest
import torch

import loaderviz as lv
from loaderviz.emulator.hazards import HazardWarning
from loaderviz.timeline import Kind
from loaderviz.workshop import harness, suspects
from loaderviz.workshop.exercises import NotYet, Theirs
from loaderviz.workshop.lessons.lesson05 import TRIED, count_wrong, table, try_out

from .answers import blocking, too_many
from .conftest import cell

# hazard, code of its first and its second side; batches that are right
WRONG = {
    "A": ("early-read", "copies = [part.to(", "labels.clone()", 0),
    "C": ("early-reuse", "return work(images)", "copies, arrived = copy_ahead(batch, side)", TRIED),
    "D": ("early-refill", "copies = [buffer.to(", "buffer.copy_(part)", 1),
    "F": ("early-host-read", 'images.amax().to("cpu", non_blocking=True)', "images / brightest.item()", 0),
}
LINTS = {"A": ["wait-on-nothing"], "D": ["wait-on-nothing"], "E": ["needless-wait"]}


@pytest.fixture(scope="module")
def trials():
    return {name: try_out(loader) for name, loader in suspects.LOADERS.items()}


def line(access):
    file, _, number = access.source.rpartition(":")
    assert file == suspects.__file__
    return linecache.getline(file, int(number))


@pytest.mark.parametrize("name", suspects.LOADERS)
def test_four_are_wrong_and_two_are_right(name, trials):
    trial = trials[name]
    kind, first, second, right = WRONG.get(name, ("", "", "", TRIED))
    assert {hazard.kind for hazard in trial.hazards} == ({kind} if kind else set())
    assert [lint.kind for lint in trial.lints] == LINTS.get(name, [])
    assert sum(trial.right) == right
    for hazard in trial.hazards:
        assert first in line(hazard.first) and second in line(hazard.second)
    head, _ = trial.view().packed()
    kinds = {mark["kind"] for mark in head["parts"][0]["marks"] if min(mark["bars"]) >= 0}
    assert kind in kinds if kind else not kinds
    assert head["title"].startswith(f"loader_{name.lower()}: ")
    assert ("nothing to report" in head["title"]) == (name == "B")
    if kind:  # the times of a report are those of the picture
        mark, hazard = trial.timeline.marks[0], trial.hazards[0]
        times = [int(trial.timeline.start[span]) - trial.timeline.begin for span in mark.spans]
        low, high = trial.view().first
        assert times == [hazard.first.start, hazard.second.start] and all(low <= time <= high for time in times)
    assert try_out(suspects.LOADERS[name], batches=1).run.seen  # they end with their source
    with lv.record(on="t4") as recording:
        assert list(suspects.LOADERS[name]([])) == []
    assert recording.hazards == []


@pytest.mark.parametrize("batches", [3, 20])
@pytest.mark.parametrize("name", ["A", "D", "F"])
def test_wrong_numbers_do_not_depend_on_luck(name, batches):
    trial = try_out(suspects.LOADERS[name], batches=batches)
    assert sum(trial.right) == WRONG[name][3]  # not one more in a longer run
    assert {hazard.kind for hazard in trial.hazards} == {WRONG[name][0]}


def test_references_fail_as_soon_as_the_host_is_further_ahead():
    """C keeps four batches and hands one out: the sixth copy is the first that gets memory for a second time."""
    assert try_out(suspects.loader_c, batches=5).hazards == []
    trial = try_out(suspects.loader_c, batches=40)
    assert {hazard.kind for hazard in trial.hazards} == {"early-reuse"} and trial.hazards[0].count == 40 - 5
    assert len(trial.overwritten) > 20 and all(trial.right)  # a kernel's numbers are computed when it is queued


@pytest.mark.parametrize("name", ["B", "E"])
def test_the_right_ones_stay_right_with_the_host_far_ahead(name):
    trial = try_out(suspects.LOADERS[name], batches=80)
    assert len(trial.right) == 80 and all(trial.right)
    assert trial.hazards == [] and trial.overwritten == ()
    handed_out = [span.start for span in trial.timeline.rows(Kind.RANGE) if span.name.startswith("batch ")]
    assert handed_out[30] < trial.timeline.begin + 4 * trial.timeline.duration // 80  # 30 batches while the GPU does 4


@pytest.mark.parametrize("name", suspects.LOADERS)
def test_a_lucky_day_hides_the_numbers_and_not_the_report(name, trials):
    lucky = try_out(suspects.LOADERS[name], copies="eager")
    assert all(lucky.right)
    assert [hazard.line for hazard in lucky.hazards] == [hazard.line for hazard in trials[name].hazards]


def test_a_loop_that_reads_its_loss_keeps_the_host_near_so_that_c_is_right():
    assert try_out(suspects.loader_c, read=True).hazards == []
    for name in "ADF":
        assert {hazard.kind for hazard in try_out(suspects.LOADERS[name], read=True).hazards} == {WRONG[name][0]}


def test_a_and_d_let_the_side_stream_wait_for_itself(trials):
    for name, code in (("A", "arrived.wait()"), ("D", "side.wait_event(copied)")):
        (lint,) = trials[name].lints
        assert code in line(lint.first)
        assert lint.problem == "stream 13 waits for itself: what is in one stream runs in order anyway"
    copies = [span.batch for span in trials["D"].timeline.rows(Kind.COPY_H2D)]  # of what is in the buffer
    assert copies == [number for number in range(TRIED) for _ in ("images", "labels")]
    repaired = try_out(changed(suspects.loader_d, "side.wait_event(copied)", "copied.synchronize()"))
    assert repaired.hazards == repaired.lints == [] and all(repaired.right) and repaired.hidden > 0.9


def test_e_waits_without_need_and_is_as_fast_as_b_without_that_line(trials):
    (lint,) = trials["E"].lints
    assert "side.wait_stream(main)" in line(lint.first)
    repaired = try_out(changed(suspects.loader_e, "        side.wait_stream(main)\n", ""))
    assert repaired.hazards == [] and repaired.lints == [] and all(repaired.right)
    assert trials["E"].hidden == 0 and repaired.hidden > 0.9 and trials["B"].hidden > 0.9
    assert repaired.run.took < 1.01 * trials["B"].run.took < 0.75 * trials["E"].run.took


def changed(loader, before, after):
    """The loader with one piece of its code changed."""
    code = inspect.getsource(loader)
    assert code.count(before) == 1
    return cell("from loaderviz.workshop.lessons.lesson03 import claim, copy_ahead\n\n" + code.replace(before, after))


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        ("used[slot].wait()", {"early-reuse"}),
        ("used[slot - 1].record()", {"early-reuse"}),
        ("main.wait_event(arrived)", {"early-read"}),
    ],
)
def test_each_of_these_lines_of_b_is_needed(line, kinds):
    assert {hazard.kind for hazard in try_out(changed(suspects.loader_b, line, "pass")).hazards} == kinds


def test_the_table_has_a_row_for_each(trials):
    rows = table(trials)
    assert list(rows.index) == list("ABCDEF")
    assert list(rows["hazards"]) == ["early-read", "–", "early-reuse", "early-refill", "–", "early-host-read"]
    assert rows.loc["A", "batches right"] == "0 of 16" and rows.loc["E", "copy hidden"] == "0 %"
    assert repr(trials["B"]).startswith("loader_b: batches right: 16 of 16; overwritten in use: 0; copy hidden: 9")


def test_a_loader_of_the_learners_own_can_be_tried():
    trial = try_out(blocking)
    assert all(trial.right) and trial.hazards == [] and trial.hidden == 0
    with pytest.raises(NotYet, match="More than 16 batches"):
        try_out(too_many)
    with pytest.raises(Theirs, match="no such file"):
        try_out(Mock(side_effect=OSError("no such file")))


def test_wrong_batches_are_counted():
    with pytest.warns(HazardWarning), lv.record(on="t4"):
        batches = [(torch.rand(8, 3).pin_memory(), torch.arange(8).pin_memory()) for _ in range(9)]
        assert [count_wrong(suspects.LOADERS[name], batches) for name in "ABE"] == [9, 0, 0]


def test_the_limit_of_5_1_is_the_first_copy_and_then_work():
    from loaderviz.workshop import lesson05

    outcome = lesson05.wait.check(blocking)
    data = [(torch.empty(harness.SAMPLES, harness.FEATURES), torch.empty(harness.SAMPLES, dtype=torch.int64))]
    copy, work = harness.copy_time(*data[0]), harness.work_time(harness.SAMPLES, hidden=lesson05.HIDDEN)
    assert f"the limit of {(copy + lesson05.BATCHES * work) / 1e6:.4g} ms" in outcome.score
    assert copy < work / 1.9
