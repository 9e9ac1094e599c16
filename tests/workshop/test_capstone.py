"""The capstone: the race writes ladder and leaderboard, the ladder says what was measured, the training learns; the
leaderboard, of the rows of a room or a learner's own.
"""

import os
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import loaderviz as lv
from loaderviz.timeline import Kind, TimelineError
from loaderviz.view import Comparison
from loaderviz.workshop import EXERCISES, ExerciseError, Leaderboard, capstone, diagnosis, rooms
from loaderviz.workshop.lessons.capstone import Ladder, LeaderboardEntry, Rung, escaped
from loaderviz.workshop.lessons.lesson04 import waits_too_often
from loaderviz.workshop.loop import GPU
from tests import factory

from .answers import on_gpu_loader
from .answers_later import (
    blocking_floats,
    bytes_prefetched,
    constant_digits,
    floats_prefetched,
)
from .conftest import cell


@pytest.fixture
def own_ladder(monkeypatch):
    monkeypatch.setattr(capstone, "ladder", Ladder(capstone.limit))


@pytest.mark.slow
def test_each_honest_run_is_a_rung_and_a_line(own_ladder):
    race = EXERCISES["8.1"]
    first = race.check(blocking_floats, name="Ada")
    assert first.status == "not yet" and "Against the baseline" in first.score
    assert "previous" not in first.score
    second = race.check(cell(race.answer), name="Ada", reason="compute")
    assert second.passed and second.score.startswith("Ada: 48 steps in ")
    assert "Against your previous run" in second.score and "Against the limit" in second.score
    board = capstone.leaderboard()
    assert [entry.name for entry in board.entries] == ["Ada", "Ada"]
    assert capstone.limit() <= board.entries[1].ns < min(board.entries[0].ns, capstone.baseline())
    assert [rung.ns for rung in capstone.ladder.rungs.values()] == [board.entries[1].ns]
    race.check(cell(race.starter), name="Ada")
    race.check(constant_digits, name="Ada")
    assert len(capstone.leaderboard().entries) == 2  # not attempted, not honest: no line
    assert race.last.status == "not yet"


def test_a_place_that_cannot_be_written_stops_nobody(own_ladder, tmp_path, monkeypatch):
    monkeypatch.setenv("LOADERVIZ_ROOM", str(tmp_path / "nowhere" / "at all"))
    monkeypatch.setenv("LOADERVIZ_PROGRESS", str(tmp_path))
    assert capstone.race.check(on_gpu_loader, name="Ada").passed
    assert "did not reach the room" in repr(rooms.room()) and "Your progress is not kept" in repr(rooms.room())


@pytest.mark.slow
def test_the_ladder_of_the_lesson(own_ladder):
    """What lesson 8 says: with float32 a prefetcher wins nothing, and fewer bytes win much."""
    floats = capstone.climb("floats", floats_prefetched)
    assert lv.summarize(floats.timeline).overlap > 0.7
    assert "waiting for data" in floats.costs_most
    fewer = capstone.climb("bytes", bytes_prefetched)
    assert floats.ns > 3 * fewer.ns
    assert abs(floats.right - fewer.right) < 0.1 and fewer.right > 0.5
    with pytest.raises(ExerciseError, match=r"zeros: Batch 0 has images that are not those of the data set\. change"):
        capstone.climb("zeros", constant_digits)
    assert list(capstone.ladder.rungs) == ["floats", "bytes"]
    both = capstone.ladder.compare(batches=range(27, 31))
    assert isinstance(both, Comparison) and list(both.timelines) == ["floats", "bytes"]
    with pytest.raises(TimelineError, match="no kernel works on batch 4711"):
        capstone.ladder.compare("bytes", batches=range(27, 4712))


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
    with pytest.raises(ExerciseError, match="no rung named 'x'; the ladder has: none yet"):
        ladder.compare("x", batches=range(2))
    ladder.add(rungs()[1])
    with pytest.raises(ExerciseError, match="the ladder has: c"):
        ladder.compare("c", "x", batches=range(2))


def test_the_limit_is_the_first_copy_and_the_kernels():
    run, right = capstone.train(on_gpu_loader, random)
    kernels = [span for span in run.timeline.rows(Kind.COMPUTE) if not span.name.startswith("index_select")]
    assert capstone.limit() <= run.took <= capstone.FITS.target * capstone.limit()
    assert sum(span.duration for span in kernels) <= capstone.limit()
    assert 0.5 < right <= 1


def test_each_run_has_other_digits():
    one, other = (capstone.digits(random) for _ in range(2))
    assert one.images.dtype == torch.uint8 and one.images.shape == (256 * 12, 28, 28)
    assert not torch.equal(one.images, other.images)
    with lv.record(on=GPU):
        assert 0 < capstone.milliseconds(on_gpu_loader) < capstone.milliseconds(blocking_floats)


def test_the_line_that_wins_one_world_loses_another(own_ladder):
    resident = EXERCISES["8.1"].answer
    assert EXERCISES["8.1"].check(cell(resident)).passed
    assert "Memory for" in EXERCISES["8.2"].check(cell(resident)).message


@pytest.mark.slow
def test_a_reason_is_measured_and_costs_a_tenth_if_it_is_wrong(own_ladder):
    race, answer = EXERCISES["8.2"], cell(EXERCISES["8.2"].answer, "load_larger")
    found = capstone.reason_of(race.check(answer, name="Ada", seed=1).timeline)
    assert "give reason='compute' or 'copy' or 'data' or 'host'" in race.last.score
    right, wrong = (race.check(answer, name="Ada", reason=said, seed=1) for said in (found, "luck"))
    assert "4 of 4 points" in right.score and "3 of 4 points" in wrong.score and "you said 'luck'" in wrong.score
    without, best, worse = (entry.ns for entry in capstone.leaderboard(world="larger").entries)
    assert without == worse == best + best // 10
    assert capstone.leaderboard().entries == capstone.leaderboard(world="files").entries == []
    with pytest.raises(ValueError, match="there is no world 'home'; there is fits, larger, files"):
        capstone.leaderboard(world="home")


def test_a_wait_is_allowed_and_one_more_is_not():
    timeline = factory.loader("blocking")
    many = sum(wait.cause in diagnosis.WAITS for wait in timeline.rows(Kind.WAIT))
    assert many > 1 and waits_too_often(timeline, many) is None
    assert waits_too_often(timeline, many - 1)[0].startswith(f"The host waits for the GPU {many} times")


@pytest.mark.slow
def test_each_reason_is_found():
    for answer, reason in ((on_gpu_loader, "compute"), (blocking_floats, "host"), (floats_prefetched, "data")):
        assert capstone.reason_of(capstone.train(answer, random)[0].timeline) == reason


# The leaderboard


def raced(path, *runs, number="8.1"):
    for name, ns in runs:
        rooms.append(path, rooms.Row("check", name, number, "passed", ns=ns, at=1_800_000_000))


def test_it_ranks_the_rows_of_races_and_leaves_out_all_others(tmp_path):
    path = tmp_path / "own.jsonl"
    board = Leaderboard(path)
    assert board.ranking() == [] and "nobody yet" in repr(board) and "nobody yet" in board._repr_markdown_()
    assert os.listdir(tmp_path) == []  # looking at it makes no file
    raced(path, ("Ada", 300), ("Bob", 200), ("Ada", 100), ("Eve", 0))
    raced(path, ("Ada", 7), number="8.2")
    rooms.append(path, rooms.Row("vote", "Eve", "8.1", "1. me", ns=5))
    assert [(entry.name, entry.ns) for entry in board.ranking()] == [("Ada", 100), ("Bob", 200)]
    assert [entry.ns for entry in board.entries] == [300, 200, 100]
    assert board.previous("Ada").ns == 100 and board.previous("Eve") is None and board.note == ""
    assert repr(board).index("Ada") < repr(board).index("Bob")
    assert "| 1 | Ada | 100 ns | 2027-01-15 08:00:00 UTC |" in board._repr_markdown_()
    assert [entry.ns for entry in Leaderboard(path, "larger").entries] == [7]


@given(st.lists(st.tuples(st.sampled_from("ABC"), st.integers(1, 5)), max_size=12))
def test_the_ranking_is_the_best_of_each_and_of_equal_ones_the_earlier(runs):
    entries = [LeaderboardEntry(name, ns, f"2026-01-01T00:00:{place:02}") for place, (name, ns) in enumerate(runs)]

    class Given(Leaderboard):
        @property
        def entries(self):
            return entries

    best = sorted(entries, key=lambda entry: (entry.ns, entry.when))
    wanted = [entry for place, entry in enumerate(best) if entry.name not in {each.name for each in best[:place]}]
    assert Given().ranking() == wanted


def test_in_a_room_it_is_that_of_all_and_says_where_else_one_is(tmp_path, own_rows, monkeypatch):
    shared = tmp_path / "room"
    shared.mkdir()
    raced(own_rows, ("me", 50))
    raced(shared / "a.jsonl", ("Ada", 100))
    raced(shared / "b.jsonl", ("Bob", 90))
    assert [entry.name for entry in capstone.leaderboard().ranking()] == ["me"]
    monkeypatch.setenv("LOADERVIZ_ROOM", str(shared))
    assert [entry.name for entry in capstone.leaderboard().ranking()] == ["Bob", "Ada"]
    monkeypatch.setenv("LOADERVIZ_ROOM", "http://127.0.0.1:9/CODE")
    board = capstone.leaderboard()
    assert [entry.name for entry in board.ranking()] == ["me"] and "http://127.0.0.1:9/CODE" in repr(board)
    assert escaped("A|b *c* ![x](http://y) <b>") == r"A\|b \*c\* \!\[x\]\(http\:\/\/y\) \<b\>"  # only a name


@pytest.mark.parametrize("place", ["no/such/folder/own.jsonl", ".", "a\0b"])
def test_a_place_without_rows_stops_nobody(tmp_path, place):
    assert Leaderboard(tmp_path / place).entries == [] and "nobody yet" in repr(Leaderboard(tmp_path / place))
