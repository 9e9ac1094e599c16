"""The capstone: the race writes ladder and leaderboard, the ladder says what was measured, the training learns; the
leaderboard's file: order, names, several writers at once, foreign files, places that cannot be written.
"""

import multiprocessing
import os
import random
import re
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import loaderviz as lv
from loaderviz.timeline import Kind, TimelineError
from loaderviz.view import Comparison
from loaderviz.workshop import EXERCISES, ExerciseError, Leaderboard, capstone, diagnosis
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


def test_a_file_that_cannot_be_used_is_told_and_stops_nobody(own_ladder, tmp_path, monkeypatch):
    monkeypatch.setenv("LOADERVIZ_LEADERBOARD", str(tmp_path))
    outcome = capstone.race.check(on_gpu_loader, name="Ada")
    assert outcome.passed and "cannot be used" in outcome.score


@pytest.mark.slow
def test_the_ladder_of_the_lesson(own_ladder):
    """What lesson 8 says: with float32 a prefetcher wins nothing, and fewer bytes win much."""
    floats = capstone.climb("floats", floats_prefetched)
    assert lv.summarize(floats.timeline).overlap > 0.7
    assert "waiting for data" in floats.costs_most
    fewer = capstone.climb("bytes", bytes_prefetched)
    assert floats.ns > 3 * fewer.ns
    assert abs(floats.right - fewer.right) < 0.1 and fewer.right > 0.5
    with pytest.raises(ExerciseError, match=r"zeros: Batch 0 has images or labels that are wrong\. change"):
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


WRITERS, RUNS = 6, 12


@pytest.fixture
def path(tmp_path):
    return tmp_path / "board.sqlite"


@pytest.fixture
def alone(monkeypatch):
    """Nobody has set anything: the board is the learner's own."""
    for name in ("LOADERVIZ_LEADERBOARD", "JUPYTERHUB_USER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(capstone.getpass, "getuser", lambda: "ada")


@pytest.mark.parametrize("empty", [False, True])
def test_it_remembers_and_ranks(path, empty):
    mine, theirs = Leaderboard(path), Leaderboard(path)
    assert mine.ranking() == [] and "nobody yet" in repr(mine) and "nobody yet" in mine._repr_markdown_()
    assert os.listdir(path.parent) == []  # looking at it makes no file
    if empty:
        path.touch()
    for board, name, ns in ((mine, "Ada", 300), (theirs, "Bob", 200), (mine, "Ada", 100)):
        board.add(name, ns)
    for board in (mine, theirs):  # which were opened before
        assert [(entry.name, entry.ns) for entry in board.ranking()] == [("Ada", 100), ("Bob", 200)]
        assert [entry.ns for entry in board.entries] == [300, 200, 100]
        assert board.previous("Ada").ns == 100 and board.previous("Eve") is None and board.note == ""
    assert repr(mine).index("Ada") < repr(mine).index("Bob")
    assert re.search(r"\| 1 \| Ada \| 100 ns \|.* \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC \|$", mine._repr_markdown_(), re.M)


@given(st.lists(st.tuples(st.sampled_from("ABC"), st.integers(0, 5)), max_size=12))
def test_the_ranking_is_the_best_of_each_and_of_equal_ones_the_earlier(runs):
    entries = [LeaderboardEntry(name, ns, f"2026-01-01T00:00:{place:02}") for place, (name, ns) in enumerate(runs)]

    class Given(Leaderboard):
        @property
        def entries(self):
            return entries

    best = sorted(entries, key=lambda entry: (entry.ns, entry.when))
    wanted = [entry for place, entry in enumerate(best) if entry.name not in {each.name for each in best[:place]}]
    assert Given().ranking() == wanted


def write_runs(path, writer, barrier):
    board = Leaderboard(path)
    barrier.wait()  # all begin at once, with a file that does not exist yet
    for run in range(1, RUNS + 1):  # one of 0 ns is no run
        board.add(f"writer {writer}", 1000 * writer + run)
        assert board.previous(f"writer {writer}").ns == 1000 * writer + run
    assert board.note == ""


@pytest.mark.skipif(sys.platform != "linux", reason="several processes are forked, which is safe on Linux only")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # newer Pythons warn of a fork beside torch's threads
def test_kernels_that_write_at_once_lose_nothing(path):
    context = multiprocessing.get_context("fork")  # the children need not import torch again
    barrier = context.Barrier(WRITERS)
    writers = [context.Process(target=write_runs, args=(path, number, barrier)) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert [writer.exitcode for writer in writers] == [0] * WRITERS
    seen = [(entry.name, entry.ns) for entry in Leaderboard(path).entries]
    assert sorted(seen) == sorted((f"writer {k}", 1000 * k + run) for k in range(WRITERS) for run in range(1, RUNS + 1))
    for number in range(WRITERS):  # each one's runs are in its order
        assert [ns % 1000 for name, ns in seen if name == f"writer {number}"] == list(range(1, RUNS + 1))
    assert os.listdir(path.parent) == [path.name]


def test_one_who_holds_the_file_for_ever_stops_nobody(path, monkeypatch):
    Leaderboard(path).add("Ada", 5)
    monkeypatch.setattr(capstone, "WAIT_SECONDS", 0.05)
    holder = sqlite3.connect(path)
    holder.execute("begin exclusive")
    board = Leaderboard(path)
    board.add("Bob", 3)
    assert "cannot be used (database is locked)" in board.note
    assert board.ranking() == [] and "locked" in repr(board) and "locked" in board._repr_markdown_()
    holder.close()
    assert [entry.name for entry in Leaderboard(path).entries] == ["Ada"]


def test_on_my_own_board_i_am_who_i_am(alone, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    board = Leaderboard()
    assert board.path.name == "leaderboard.sqlite"
    assert board.name_for() == board.name_for("  ") == "ada"
    assert board.name_for(" Ada \n Lovelace ") == "Ada Lovelace"
    assert len(board.name_for("x" * 100)) == 40
    board.add("", 7)
    assert [entry.name for entry in Leaderboard().entries] == ["ada"]
    assert escaped("A|b *c* ![x](http://y) <b>") == r"A\|b \*c\* \!\[x\]\(http\:\/\/y\) \<b\>"  # only a name


@pytest.mark.parametrize("problem", [OSError, KeyError, ImportError])
def test_an_account_without_a_name(alone, path, monkeypatch, problem):
    monkeypatch.setattr(capstone.getpass, "getuser", Mock(side_effect=problem))
    assert Leaderboard(path).name_for().startswith("you-")


def test_on_a_board_for_many_one_account_has_many_names(alone, path, monkeypatch):
    mine = {Leaderboard(path).name_for(), Leaderboard(path).name_for()}
    assert mine == {f"ada-{capstone.SUFFIX}"}
    monkeypatch.setattr(capstone, "SUFFIX", "another kernel's")
    assert Leaderboard(path).name_for() not in mine
    monkeypatch.setenv("LOADERVIZ_LEADERBOARD", str(path))
    assert Leaderboard().path == path and Leaderboard().name_for().startswith("ada-")
    monkeypatch.setenv("JUPYTERHUB_USER", "grace")
    assert Leaderboard().name_for() == "grace" and Leaderboard().name_for("me") == "me"


def somebody_elses():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "other.sqlite")
        with closing(sqlite3.connect(path)) as file, file:
            file.execute("create table runs (other)")
        return path.read_bytes()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{}", "cannot be used"),
        (b"\xff\xfe" * 600, "cannot be used"),
        (b"SQLite format 3\0 and then nothing", "cannot be used"),
        (somebody_elses(), "it is a database, but no leaderboard"),
    ],
)
def test_a_foreign_file_is_left_as_it_is(path, content, said):
    path.write_bytes(content)
    board = Leaderboard(path)
    assert board.entries == []
    assert said in board.note and "LOADERVIZ_LEADERBOARD can name another file" in repr(board)
    board.add("Ada", 5)
    assert board.entries == [] and path.read_bytes() == content


@pytest.mark.parametrize(
    ("place", "ns"), [("no/such/folder/board.sqlite", 5), (".", 5), ("a\0b", 5), ("board.sqlite", 2**70)]
)
def test_what_cannot_be_written_stops_nobody(tmp_path, place, ns):
    board = Leaderboard(tmp_path / place)
    board.add("Ada", ns)
    assert "cannot be used" in board.note
    assert Leaderboard(tmp_path / place).entries == []


def test_what_is_no_run_cannot_be_put_in_and_names_do_not_lead(path):
    Leaderboard(path).add("Ada \ud800\u202eecalevoL\x07\n", 5)
    with closing(sqlite3.connect(path)) as file, file:
        for name, ns in [("Bob", -3), ("Bob", 0), ("Bob", "fast"), ("Bob", 1.5), (b"\xff", 4)]:
            with pytest.raises(sqlite3.IntegrityError):
                file.execute("insert into runs (world, name, ns) values ('fits', ?, ?)", (name, ns))
        with pytest.raises(sqlite3.IntegrityError):
            file.execute("insert into runs values ('fits', 'Bob', 3, 'yesterday')")
        file.execute("insert into runs (world, name, ns) values ('fits', ?, 2)", ("\u202e",))
        file.execute("insert into runs (world, name, ns) values ('fits', cast(x'ff' as text), 9)")
    board = Leaderboard(path)
    assert [(entry.name, entry.ns) for entry in board.ranking()] == [("Ada ecalevoL", 5), ("\ufffd", 9)]
    assert board.note == "" and "Ada ecalevoL" in board._repr_markdown_()
