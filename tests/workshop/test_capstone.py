"""The capstone: the race writes ladder and leaderboard, the ladder says what was measured, the training learns."""

from __future__ import annotations

import pytest
import torch

import loaderviz as lv
from loaderviz.draw.comparison import Comparison
from loaderviz.timeline import Kind, TimelineError
from loaderviz.workshop import EXERCISES, capstone, training
from loaderviz.workshop.ladder import Ladder, LadderError, Rung
from loaderviz.workshop.loop import GPU
from tests import factory

from .answers import on_gpu_loader
from .answers08 import blocking, bytes_prefetched, constants, floats_prefetched
from .conftest import cell


@pytest.fixture
def own_ladder(monkeypatch):
    monkeypatch.setattr(capstone, "ladder", Ladder(capstone.limit))


def test_each_honest_run_is_a_rung_and_a_line(own_ladder):
    race = EXERCISES["8.1"]
    first = race.check(blocking, name="Ada")
    assert first.status == "not yet" and "Against the baseline" in first.score
    assert "previous" not in first.score
    second = race.check(cell(race.answer), name="Ada")
    assert second.passed and second.score.startswith("Ada: 48 steps in ")
    assert "Against your previous run" in second.score and "Against the limit" in second.score
    board = capstone.leaderboard()
    assert [entry.name for entry in board.entries] == ["Ada", "Ada"]
    assert capstone.limit() <= board.entries[1].ns < min(board.entries[0].ns, capstone.baseline())
    assert [rung.ns for rung in capstone.ladder.rungs.values()] == [board.entries[1].ns]
    race.check(cell(race.starter), name="Ada")
    race.check(constants, name="Ada")
    assert len(capstone.leaderboard().entries) == 2  # not attempted, not honest: no line
    assert race.last.status == "not yet"


def test_a_file_that_cannot_be_used_is_told_and_stops_nobody(own_ladder, tmp_path):
    outcome = capstone.race.check(on_gpu_loader, name="Ada", file=str(tmp_path))
    assert outcome.passed and "cannot be used" in outcome.score


def test_the_ladder_of_the_lesson(own_ladder):
    """What lesson 8 says: with float32 a prefetcher wins nothing, and fewer bytes win much."""
    floats = capstone.climb("floats", floats_prefetched)
    assert lv.summarize(floats.timeline).overlap > 0.7
    assert "waiting for data" in floats.costs_most
    fewer = capstone.climb("bytes", bytes_prefetched)
    assert floats.ns > 3 * fewer.ns
    assert abs(floats.right - fewer.right) < 0.1 and fewer.right > 0.5
    assert list(capstone.ladder.rungs) == ["floats", "bytes"]
    both = capstone.ladder.compare(batches=range(27, 31))
    assert isinstance(both, Comparison) and list(both.timelines) == ["floats", "bytes"]
    with pytest.raises(TimelineError, match="no kernel works on batch 4711"):
        capstone.ladder.compare("bytes", batches=range(27, 4712))


def test_a_loader_that_is_not_honest_is_no_rung(own_ladder):
    with pytest.raises(capstone.NotHonestError, match=r"zeros: Batch 0 has images or labels that are wrong\. change"):
        capstone.climb("zeros", constants)
    assert capstone.ladder.rungs == {}


def rungs():
    return [Rung("a|b", factory.loader("blocking"), 0.5), Rung("c", factory.loader("prefetch"))]


def test_the_rows_are_ratios_of_the_times():
    one, other = rungs()
    ladder = Ladder(lambda: other.ns // 2)
    assert ladder.rows() == [] and "loader" in repr(ladder) and ladder._repr_markdown_().count("\n") == 1
    ladder.add(one), ladder.add(other), ladder.add(Rung("d", one.timeline))
    first, second, third = ladder.rows()
    assert first[2:4] == ("", "") and first[6] == "50 %"
    assert second[2] == second[3] == lv.words.times(one.ns / other.ns) and second[6] == "–"
    assert third[2] == "1.00x" and third[3] == f"{other.ns / one.ns:.2f}x"
    assert second[4] == "2.00x"
    assert r"| a\|b |" in ladder._repr_markdown_() and "a|b" in repr(ladder)
    assert ladder._repr_markdown_().count("\n") == 4
    ladder.add(Rung("c", one.timeline))
    assert list(ladder.rungs) == ["a|b", "c", "d"] and ladder.rows()[1][2] == "1.00x"


def test_a_rung_says_what_costs_most():
    one, _ = rungs()
    breakdown = lv.summarize(one.timeline).breakdown
    assert one.costs_most.split(", ")[0] != "compute"
    assert all(one.costs_most.startswith(what) or ns <= max(breakdown.values()) for what, ns in breakdown.items())
    assert "50 % of the test digits are right" in repr(one)
    kernel = next(one.timeline.rows(Kind.COMPUTE))
    assert Rung("only computing", one.timeline.between(kernel.start, kernel.end)).costs_most == "nothing"


def test_a_rung_that_does_not_exist():
    ladder = Ladder(lambda: 1)
    with pytest.raises(LadderError, match="no rung named 'x'; the ladder has: none yet"):
        ladder.compare("x", batches=range(2))
    ladder.add(rungs()[1])
    with pytest.raises(LadderError, match="the ladder has: c"):
        ladder.compare("c", "x", batches=range(2))


def test_the_limit_is_the_first_copy_and_the_kernels():
    run, right = training.train(on_gpu_loader)
    kernels = [span for span in run.timeline.rows(Kind.COMPUTE) if not span.name.startswith("index_select")]
    assert training.limit() <= run.took <= capstone.TARGET * training.limit()
    assert sum(span.duration for span in kernels) <= training.limit()
    assert 0.5 < right <= 1


def test_each_run_has_other_digits():
    one, other = training.Digits(), training.Digits()
    assert one.images.dtype == torch.uint8 and one.images.shape == (256 * 12, 28, 28)
    assert not torch.equal(one.images, other.images)


def test_the_milliseconds_are_those_of_a_step():
    with lv.record(on=GPU):
        assert 0 < capstone.milliseconds(on_gpu_loader) < capstone.milliseconds(blocking)
