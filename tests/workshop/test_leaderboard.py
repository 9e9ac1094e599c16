"""The leaderboard's file: order, names, several writers at once, foreign files, places that cannot be written."""

from __future__ import annotations

import multiprocessing
import os
import re
import sqlite3
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderviz.workshop import Leaderboard, leaderboard
from loaderviz.workshop.leaderboard import Entry, escaped

WRITERS, RUNS = 6, 12


@pytest.fixture
def path(tmp_path):
    return tmp_path / "board.sqlite"


@pytest.fixture
def alone(monkeypatch):
    """Nobody has set anything: the board is the learner's own."""
    for name in ("LOADERVIZ_LEADERBOARD", "JUPYTERHUB_USER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(leaderboard.getpass, "getuser", lambda: "ada")
    leaderboard._suffix.cache_clear()


def test_it_remembers_and_ranks(path):
    assert Leaderboard(path).entries == []
    Leaderboard(path).add("Ada", 300)
    Leaderboard(path).add("Bob", 200)
    Leaderboard(path).add("Ada", 100)
    board = Leaderboard(path)
    assert [(entry.name, entry.ns) for entry in board.ranking()] == [("Ada", 100), ("Bob", 200)]
    assert [entry.ns for entry in board.entries] == [300, 200, 100]
    assert board.previous("Ada").ns == 100 and board.previous("Eve") is None
    assert repr(board).index("Ada") < repr(board).index("Bob")
    assert "| 1 | Ada | 100 ns |" in board._repr_markdown_()
    assert re.search(r"\| \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC \|$", board._repr_markdown_(), re.M)
    assert board.note == ""


def test_looking_at_it_makes_no_file(path):
    board = Leaderboard(path)
    assert board.ranking() == [] and "nobody yet" in repr(board) and "nobody yet" in board._repr_markdown_()
    assert os.listdir(path.parent) == []


def test_a_run_is_seen_by_a_board_that_was_opened_before(path):
    mine, theirs = Leaderboard(path), Leaderboard(path)
    mine.add("Ada", 1)
    theirs.add("Bob", 2)
    assert mine.entries == theirs.entries
    assert [entry.name for entry in mine.entries] == ["Ada", "Bob"]


@given(st.lists(st.tuples(st.sampled_from("ABC"), st.integers(0, 5)), max_size=12))
def test_the_ranking_is_the_best_of_each_and_of_equal_ones_the_earlier(runs):
    entries = [Entry(name, ns, f"2026-01-01T00:00:{place:02}") for place, (name, ns) in enumerate(runs)]

    class Given(Leaderboard):
        @property
        def entries(self):
            return entries

    ranking = Given().ranking()
    best = {
        name: min(entry.ns for entry in entries if entry.name == name) for name in {entry.name for entry in entries}
    }
    firsts = {name: next(e for e in entries if (e.name, e.ns) == (name, ns)) for name, ns in best.items()}
    assert {entry.name: entry for entry in ranking} == firsts
    assert [(e.ns, e.when) for e in ranking] == sorted((e.ns, e.when) for e in firsts.values())


# Several kernels


def write_runs(path, writer, barrier):
    board = Leaderboard(path)
    barrier.wait()  # all begin at once, with a file that does not exist yet
    for run in range(RUNS):
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
    assert sorted(seen) == sorted((f"writer {k}", 1000 * k + run) for k in range(WRITERS) for run in range(RUNS))
    for number in range(WRITERS):  # each one's runs are in its order
        assert [ns % 1000 for name, ns in seen if name == f"writer {number}"] == list(range(RUNS))
    assert os.listdir(path.parent) == [path.name]


def test_one_who_holds_the_file_for_ever_stops_nobody(path, monkeypatch):
    Leaderboard(path).add("Ada", 5)
    monkeypatch.setattr(leaderboard, "WAIT_SECONDS", 0.05)
    holder = sqlite3.connect(path)
    holder.execute("begin exclusive")
    board = Leaderboard(path)
    board.add("Bob", 3)
    assert "cannot be used (database is locked)" in board.note
    assert board.ranking() == [] and "locked" in repr(board) and "locked" in board._repr_markdown_()
    holder.close()
    assert [entry.name for entry in Leaderboard(path).entries] == ["Ada"]


# Names


def test_on_my_own_board_i_am_who_i_am(alone, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    board = Leaderboard()
    assert board.path.name == "leaderboard.sqlite"
    assert board.name_for() == board.name_for("  ") == "ada"
    assert board.name_for(" Ada \n Lovelace ") == "Ada Lovelace"
    assert len(board.name_for("x" * 100)) == 40
    board.add("", 7)
    assert [entry.name for entry in Leaderboard().entries] == ["ada"]


def test_on_a_board_for_many_one_account_has_many_names(alone, path, monkeypatch):
    names = set()
    for _ in range(5):  # five kernels
        leaderboard._suffix.cache_clear()
        names |= {Leaderboard(path).name_for(), Leaderboard(path).name_for()}
    assert len(names) == 5
    assert all(name.startswith("ada-") for name in names)
    monkeypatch.setenv("LOADERVIZ_LEADERBOARD", str(path))
    assert Leaderboard().path == path and Leaderboard().name_for().startswith("ada-")
    monkeypatch.setenv("JUPYTERHUB_USER", "grace")
    assert Leaderboard().name_for() == "grace" and Leaderboard().name_for("me") == "me"


@pytest.mark.parametrize("problem", [OSError, KeyError, ImportError])
def test_an_account_without_a_name(alone, path, monkeypatch, problem):
    def nobody():
        raise problem

    monkeypatch.setattr(leaderboard.getpass, "getuser", nobody)
    assert Leaderboard(path).name_for().startswith("you-")


def test_a_name_is_only_a_name():
    assert escaped("A|b *c* ![x](http://y) <b>") == r"A\|b \*c\* \!\[x\]\(http\:\/\/y\) \<b\>"


# Files that are none


@pytest.mark.parametrize("content", [b"{}", b"\xff\xfe" * 600, b"SQLite format 3\0 and then nothing"])
def test_a_foreign_file_is_left_as_it_is(path, content):
    path.write_bytes(content)
    board = Leaderboard(path)
    assert board.entries == []
    assert "cannot be used" in board.note and "LOADERVIZ_LEADERBOARD can name another file" in repr(board)
    board.add("Ada", 5)
    assert path.read_bytes() == content


def test_a_database_of_somebody_else_is_left_as_it_is(path):
    with sqlite3.connect(path) as file:
        file.execute("create table runs (other)")
    file.close()
    before = path.read_bytes()
    board = Leaderboard(path)
    board.add("Ada", 5)
    assert board.entries == [] and "it is a database, but no leaderboard" in board.note
    assert path.read_bytes() == before


def test_an_empty_file_becomes_one(path):
    path.touch()
    assert Leaderboard(path).entries == []
    Leaderboard(path).add("Ada", 5)
    assert [entry.ns for entry in Leaderboard(path).entries] == [5]


@pytest.mark.parametrize("place", ["no/such/folder/board.sqlite", ".", "a\0b"])
def test_a_place_that_cannot_be_written_stops_nobody(tmp_path, place):
    board = Leaderboard(tmp_path / place)
    board.add("Ada", 5)
    assert "cannot be used" in board.note
    assert board.entries == []


def test_numbers_and_letters_that_no_file_can_hold(path):
    for name, ns in (("Ada", 2**70), ("\ud800", 1)):
        board = Leaderboard(path)
        board.add(name, ns)
        assert "cannot be used" in board.note
    assert Leaderboard(path).entries == []
