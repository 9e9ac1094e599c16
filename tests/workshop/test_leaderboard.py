"""The leaderboard's file: order, others' entries, damage, places that cannot be written."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderviz.workshop import EXERCISES, Leaderboard, capstone

from .answers import race_blocking
from .conftest import cell


@pytest.fixture
def path(tmp_path):
    return tmp_path / "board.json"


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
    assert board.note == ""


def test_what_others_wrote_meanwhile_is_kept(path):
    mine, theirs = Leaderboard(path), Leaderboard(path)
    mine.add("Ada", 1)
    theirs.add("Bob", 2)
    mine.add("Ada", 3)
    assert [entry.name for entry in Leaderboard(path).entries] == ["Ada", "Bob", "Ada"]


@given(st.lists(st.tuples(st.text(max_size=5), st.integers(0, 10**12)), max_size=12))
def test_the_ranking_is_the_best_of_each(runs):
    board = Leaderboard("nowhere/at/all.json")
    board.entries = [capstone.Leaderboard and _entry(name, ns, place) for place, (name, ns) in enumerate(runs)]
    best = {name: min(ns for other, ns in runs if other == name) for name, _ in runs}
    ranking = board.ranking()
    assert {entry.name: entry.ns for entry in ranking} == best
    assert [entry.ns for entry in ranking] == sorted(best.values())


def _entry(name, ns, place):
    from loaderviz.workshop.leaderboard import Entry

    return Entry(name, ns, f"2026-01-01T00:00:{place:02}")


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"\xff\xfe", b'{"format": "another", "entries": []}',
        b'{"format": "loaderviz leaderboard 1"}', b'{"format": "loaderviz leaderboard 1", "entries": [{"name": 1}]}',
        b'{"format": "loaderviz leaderboard 1", "entries": [{"name": "A", "ns": "1", "when": ""}]}',
    ],
)  # fmt: skip
def test_a_damaged_file_is_put_aside(path, content):
    path.write_bytes(content)
    board = Leaderboard(path)
    assert board.entries == [] and "kept as board.json.damaged-1" in board.note
    assert path.with_name("board.json.damaged-1").read_bytes() == content
    board.add("Ada", 5)
    assert [entry.ns for entry in Leaderboard(path).entries] == [5]
    path.write_bytes(content)
    assert "damaged-2" in Leaderboard(path).note


def test_nothing_is_left_beside_the_file(path):
    Leaderboard(path).add("Ada", 5)
    assert os.listdir(path.parent) == ["board.json"]
    assert json.loads(path.read_text())["entries"][0]["ns"] == 5


def test_a_write_that_fails_leaves_the_old_file(path, monkeypatch):
    Leaderboard(path).add("Ada", 5)

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    board = Leaderboard(path)
    board.add("Ada", 3)
    assert "could not be saved" in board.note and "No space left" in repr(board)
    assert [entry.ns for entry in Leaderboard(path).entries] == [5]
    assert os.listdir(path.parent) == ["board.json"]


def test_a_folder_that_does_not_exist_stops_nobody(tmp_path):
    board = Leaderboard(tmp_path / "no" / "board.json")
    board.add("Ada", 5)
    assert "could not be saved" in board.note


def test_the_capstone_climbs_the_ladder(own_leaderboard):
    race = EXERCISES["C"]
    first = race.check(race_blocking, name="Ada")
    assert first.status == "not yet" and "Against the baseline" in first.score
    assert "previous" not in first.score
    second = race.check(cell(race.answer), name="Ada")
    assert second.passed and "Against your previous run" in second.score
    assert "Against the limit" in second.score
    board = capstone.leaderboard()
    assert [entry.name for entry in board.entries] == ["Ada", "Ada"]
    assert board.entries[1].ns < board.entries[0].ns < capstone.baseline()
    assert capstone.limit() <= board.entries[1].ns
    race.check(cell(race.starter), name="Ada")
    assert len(capstone.leaderboard().entries) == 2  # not attempted: no line
