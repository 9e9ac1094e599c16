"""Rows of checks: what is one, files that others have touched, places that cannot be written, servers that are away."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import closing
from pathlib import Path
from typing import get_args
from unittest.mock import Mock

import factory
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderviz import workshop
from loaderviz.workshop import ExerciseError, exercises, predict, rooms
from loaderviz.workshop.exercises import Exercise, NotYet, Score
from loaderviz.workshop.rooms import Row, append, read, row_of

ADA = Row("check", "Ada", "3.1", "passed", 4.5, at=1_800_000_000)
linux = pytest.mark.skipif(sys.platform != "linux", reason="links, pipes and accounts are Linux's here")


def exercise(measure=lambda answer, chance: Score("done")):
    return Exercise("0.1", measure)


def mine(place):
    return [(row.name, row.about, row.outcome) for row in read(place)[0]]


# What is a row


@given(st.sampled_from(rooms.KINDS), st.text(), st.text(), st.text(), st.floats(0, 1e5), st.integers(0, 2**62))
def test_any_row_is_a_line_of_at_most_a_kilobyte_that_is_read_again(kind, name, about, outcome, minutes, ns):
    line = Row(kind, name, about, outcome, minutes, ns, 2**40).line()
    assert len(line) <= rooms.LONGEST and b"\n" not in line
    again = row_of(line)
    assert again is None or (len(again.name) <= 40 and again.line() == line and again.minutes == minutes)


def test_the_longest_row_is_below_a_kilobyte():
    for sign in ('"', "\\", "\N{GRINNING FACE}", "页", "a"):
        line = Row("recall", sign * 999, sign * 999, sign * 999, 1e5, 2**63 - 1, 2**40).line()
        assert len(line) <= rooms.LONGEST
        assert row_of(Row("vote", sign * 999, sign * 999, sign * 999, 1e5, 2**63 - 1, 2**40).line()) is not None


def line(**other):
    return json.dumps(ADA._asdict() | other).encode()


@pytest.mark.parametrize(
    "bad",
    [
        b"", b"{", b"[]", b"null", b"7", b'"Ada"', b"\xff\xfe{}", b"[" * 1000, b'{"a":' * 200, ADA.line()[:-1],
        line(kind="joke"), line(kind=None), line(name=""), line(name="\u202e\x07 "), line(name=["Ada"]),
        line(name=None), line(about=""), line(outcome="won"), line(outcome=True), line(minutes="4"), line(minutes=-1),
        line(minutes=True), line(minutes=float("nan")), line(minutes=float("inf")), line(minutes=1e9), line(ns=1.5),
        line(ns=-1), line(ns=2**63), line(at=2**70), line(at=0.5), line(at=None), line(password="x"),
        line(name="\ud800"), line(name="x" * 1000), ADA.line().replace(b"4.5", b"9" * 5000), ADA.line() + b" " * 1000,
    ],
)  # fmt: skip
def test_what_is_no_row(bad):
    assert row_of(bad) is None


def test_a_name_is_cut_and_leads_nowhere_whoever_wrote_it():
    long = row_of(line(name="<b>Ada</b>\u202e\n" + "x" * 60))
    assert len(long.name) == 40 and "\u202e" not in long.name and "\n" not in long.name
    assert row_of(line() + b"  ") == ADA  # blanks are JSON's, too
    assert set(rooms.OUTCOMES) == {*get_args(exercises.Status), "right", "wrong"}


# Files


def test_a_torn_line_costs_itself_and_is_told(tmp_path):
    file = tmp_path / "a.jsonl"
    append(file, ADA)
    with file.open("ab") as opened:
        opened.write(b"\n" + ADA.line()[:30])  # killed here
    assert mine(file) == [("Ada", "3.1", "passed")] and "some lines are left out" in read(file)[1][0]
    append(file, ADA._replace(name="Bob"))
    rows, (note,) = read(tmp_path)
    assert [row.name for row in rows] == ["Ada", "Bob"] and str(file) in note and "rows: 1." in note


def test_a_disk_that_takes_a_part_is_an_error_and_a_torn_line(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(rooms.os, "write", lambda handle, data: write(handle, data[:25]))
    with pytest.raises(OSError, match="the disk is full"):
        append(tmp_path / "a.jsonl", ADA)
    monkeypatch.undo()
    append(tmp_path / "a.jsonl", ADA)
    assert len(read(tmp_path)[0]) == len(read(tmp_path)[1]) == 1


def test_of_a_large_file_the_end_is_read_and_of_many_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr(rooms, "READ", 300)
    monkeypatch.setattr(rooms, "FILES", 2)
    for number in range(20):
        append(tmp_path / "a.jsonl", ADA._replace(name=f"n{number}"))
    for name in ("b.jsonl", "c.jsonl", "d.txt"):
        append(tmp_path / name, ADA._replace(name=name))
    rows, notes = read(tmp_path)
    assert [row.name for row in rows] == ["n18", "n19", "b.jsonl"] and "more than 2 files" in notes[0]


def test_of_a_flooded_folder_a_part_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(rooms, "ALL", 500)
    for number in range(9):
        for _ in range(3):
            append(tmp_path / f"{number}.jsonl", ADA)
    rows, notes = read(tmp_path)
    assert 3 <= len(rows) <= 9 and "more than 500 bytes of rows" in notes[0]


def test_rows_of_many_files_are_in_the_order_of_their_time(tmp_path):
    for name, at in (("b", 3), ("a", 5), ("b", 4), ("a", 1)):
        append(tmp_path / f"{name}.jsonl", ADA._replace(name=f"{name}{at}", at=at))
    assert [row.at for row in read(tmp_path)[0]] == [1, 3, 4, 5]


@linux
def test_links_pipes_devices_and_folders_are_left_as_they_are(tmp_path):
    secret = tmp_path / "secret.txt"
    append(secret, ADA)
    before, room = secret.read_bytes(), tmp_path / "room"
    room.mkdir()
    (room / "link.jsonl").symlink_to(secret)
    (room / "dangling.jsonl").symlink_to(tmp_path / "new")
    os.link(secret, room / "hard.jsonl")
    os.mkfifo(room / "pipe.jsonl")
    (room / "folder.jsonl").mkdir()
    append(room / "good.jsonl", ADA)
    rows, notes = read(room)  # and waits for nobody to write into the pipe
    assert len(rows) == 1 and len(notes) == 5
    for name in ("link", "dangling", "hard", "pipe", "folder"):
        with pytest.raises(OSError):
            append(room / f"{name}.jsonl", ADA)
    with pytest.raises(OSError, match="plain file"):
        append("/dev/null", ADA)
    assert secret.read_bytes() == before and not (tmp_path / "new").exists()


def as_account(number):
    """Write a row as another account, with files that nobody else may read by default."""
    if (child := os.fork()) == 0:
        try:
            os.umask(0o077)
            os.setgroups([])
            os.setgid(number)
            os.setuid(number)
            rooms._here.file = f"{os.urandom(8).hex()}.jsonl"  # another kernel's
            rooms.heard("check", "3.1", "passed", name=f"account {number}")
            os._exit(1 if rooms._here.note else 0)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@linux
@pytest.mark.skipif(sys.platform == "linux" and os.getuid() != 0, reason="only root can be two accounts")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # newer Pythons warn of a fork beside torch's threads
@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_accounts_that_differ_write_into_one_folder_whatever_their_umask(mode, monkeypatch, request):
    place = tempfile.TemporaryDirectory()  # pytest's own are for its account alone
    request.addfinalizer(place.cleanup)
    folder = Path(place.name)
    folder.chmod(mode)
    monkeypatch.setenv("LOADERVIZ_ROOM", str(folder))
    monkeypatch.setenv("LOADERVIZ_PROGRESS", "off")
    assert [as_account(number) for number in (60001, 60002, 60001)] == [0, 0, 0]
    rows, notes = read(folder)
    assert sorted(row.name for row in rows) == ["account 60001"] * 2 + ["account 60002"] and notes == []
    owners = {(file.stat().st_uid, file.stat().st_mode & 0o777) for file in folder.iterdir()}
    assert owners == {(60001, 0o644), (60002, 0o644)}


WRITER = """
import sys
from pathlib import Path
from loaderviz.workshop.rooms import Row, append
for number in range(400):  # of a longer file only the last rows are read
    append(Path(sys.argv[1]), Row("check", sys.argv[2], str(number), "passed"))
    print(number + 1, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_what_a_killed_writer_had_written_is_there(tmp_path):
    file, names = tmp_path / "all.jsonl", ("Ada", "Bob")
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(file), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name in names
    ]
    said = {}
    for writer, name in zip(writers, names, strict=True):
        for _ in range(30):
            said[name] = int(writer.stdout.readline())
    for writer in writers:
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
    rows, _ = read(file)
    for name in names:
        numbers = [int(row.about) for row in rows if row.name == name]
        assert numbers == list(range(len(numbers))) and len(numbers) >= said[name]


# What a kernel writes


def test_nothing_is_written_unless_somebody_asks(tmp_path, monkeypatch):
    monkeypatch.setenv("LOADERVIZ_PROGRESS", "off")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    exercise().check(lambda copies: 1)
    predict("Which?", ["a", "b"], answer="a").choose("a")
    assert os.listdir(tmp_path) == [] and "No room is set" in repr(workshop.room())


def test_a_check_is_a_row_for_the_learner_and_one_for_the_room(tmp_path, own_rows):
    folder = tmp_path / "room"
    folder.mkdir()
    said = workshop.room(folder, name="Ada\nLovelace")
    assert str(folder) in repr(said) and "Ada Lovelace" in repr(said)

    def late(answer, chance):
        raise NotYet("too slow")

    assert exercise().check(None).status == "not attempted"
    assert exercise(late).check(lambda copies: 1).status == "not yet"
    assert exercise().check(lambda copies: 1).passed
    assert exercise().check(lambda: 1).status == "crashed"
    wanted = [("Ada Lovelace", "0.1", status) for status in ("not attempted", "not yet", "passed", "crashed")]
    assert mine(own_rows) == mine(folder) == wanted and len(os.listdir(folder)) == 1
    predict("Which one?", ["this", "that"], answer=1).choose(2).choose("this")
    assert mine(folder)[4:] == [("Ada Lovelace", "Which one?", "2. that"), ("Ada Lovelace", "Which one?", "1. this")]
    assert mine(own_rows) == wanted
    rooms.heard("recall", "pinned", "wrong")
    assert (
        mine(own_rows)[4:] == [("Ada Lovelace", "pinned", "wrong")] and len(mine(folder)) == 6
    )  # nobody else's business


def test_minutes_are_counted_from_when_the_exercise_was_first_seen(own_rows, monkeypatch):
    now = Mock(return_value=1000.0)
    monkeypatch.setattr(exercises.time, "monotonic", now)
    each = exercise()
    each._repr_markdown_()
    now.return_value = 1090.0
    each._repr_markdown_()
    each.check(lambda copies: 1)
    assert [row.minutes for row in read(own_rows)[0]] == [1.5]


@pytest.mark.parametrize("place", ["/proc/nothing/here", "a\0b", "", "/", "/dev/null/x", "x" * 5000, "\ud800/x"])
def test_a_place_that_cannot_be_written_never_fails_a_check(place, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rooms._here, "where", place)
    monkeypatch.setattr(rooms, "own_file", lambda: rooms.Path(place))
    assert exercise().check(lambda copies: 1).passed
    assert "Your progress is not kept" in repr(workshop.room())


@linux
def test_a_home_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("LOADERVIZ_PROGRESS", str(blocked / "in it" / "progress.jsonl"))
    assert exercise().check(lambda copies: 1).passed
    assert repr(workshop.room()).count("Your progress is not kept") == 1
    monkeypatch.setenv("LOADERVIZ_PROGRESS", str(tmp_path / "new" / "progress.jsonl"))
    assert exercise().check(lambda copies: 1).passed and "is not kept" not in repr(workshop.room())


def test_the_own_file_is_in_the_data_folder_of_the_system(monkeypatch, tmp_path):
    monkeypatch.delenv("LOADERVIZ_PROGRESS")
    monkeypatch.setattr(rooms.os.path, "expanduser", lambda path: path.replace("~", "/home/ada"))
    for name in ("XDG_DATA_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    found = {}
    for system in ("linux", "darwin", "win32"):
        monkeypatch.setattr(rooms.sys, "platform", system)
        found[system] = rooms.own_file().as_posix()
    monkeypatch.undo()
    assert found == {
        "linux": "/home/ada/.local/share/loaderviz/progress.jsonl",
        "darwin": "/home/ada/Library/Application Support/loaderviz/progress.jsonl",
        "win32": "/home/ada/AppData/Local/loaderviz/progress.jsonl",
    }


@pytest.mark.parametrize(
    "where", ["nowhere/at/all", "", "https://a.b/CODE12", "http://host/", "http://a b/CODE", "ftp://x/y", "a\0b",
              "http://host:99999999/CODE", "http://user:pw@host/CODE", "http://host/CODE/../x", "http://h/CO\r\nDE", 7],
)  # fmt: skip
def test_what_is_no_room_is_refused_in_one_sentence(where):
    with pytest.raises(ExerciseError, match="is no room: give a folder"):
        workshop.room(where)
    assert rooms.where() == ""


def test_a_name_is_that_of_the_hub_or_one_that_each_kernel_of_an_account_has(monkeypatch):
    monkeypatch.setattr(rooms.getpass, "getuser", lambda: "student")
    rooms._account.cache_clear()
    here = rooms.name_for()
    assert here.startswith("student-") and rooms.name_for() == here
    rooms._account.cache_clear()
    monkeypatch.setattr(rooms.platform, "node", lambda: "another laptop")
    assert rooms.name_for().startswith("student-") and rooms.name_for() != here
    monkeypatch.setattr(rooms.getpass, "getuser", Mock(side_effect=KeyError))
    rooms._account.cache_clear()
    assert rooms.name_for().startswith("you-")
    rooms._account.cache_clear()
    monkeypatch.setenv("JUPYTERHUB_USER", "grace")
    assert rooms.name_for() == "grace" and rooms.name_for(" x" * 60) == ("x " * 20).strip()


# A server that is away, silent, or another


def waits(text=""):
    return [text in line.decode() for line in rooms._here.waiting]


def settle():
    """Wait until nobody sends."""
    for thread in threading.enumerate():
        if thread.name.startswith("Thread-") and "_send" in thread.name:
            thread.join(30)


def test_a_server_that_never_answers_delays_no_check():
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        rooms._here.where = f"http://127.0.0.1:{silent.getsockname()[1]}/CODE"
        assert exercise().check(lambda copies: 1).passed  # and the server has not even taken the connection
        connection, _ = silent.accept()
        with connection:
            assert connection.recv(8).startswith(b"POST")
            assert exercise().check(lambda copies: 1).passed and waits('"0.1"') == [True, True]
        settle()
    assert "did not reach the room" in repr(workshop.room())


def test_lines_wait_for_a_server_that_is_away_and_the_oldest_make_room(monkeypatch):
    monkeypatch.setattr(rooms, "post", Mock(side_effect=ConnectionRefusedError("nobody there")))
    rooms._here.where = "http://127.0.0.1:9/CODE"
    for number in range(120):
        rooms.heard("check", f"n{number}", "passed")
    settle()
    assert len(rooms._here.waiting) == 100 and "nobody there" in repr(workshop.room())
    sent = []
    monkeypatch.setattr(rooms, "post", lambda where, line: sent.append(json.loads(line)["about"]) or 204)
    rooms.heard("check", "last", "passed")
    settle()
    assert sent == [f"n{number}" for number in range(21, 120)] + ["last"] and not rooms._here.waiting
    assert "did not reach" not in repr(workshop.room())


def answer(server, reply, asked):
    """Take one connection, note what is asked for, and send this."""
    connection, _ = server.accept()
    with connection:
        asked.append(connection.recv(4096))
        connection.sendall(reply)


def test_neither_a_proxy_nor_another_place_gets_a_line(monkeypatch):
    asked = []
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as server,
        closing(socket.create_server(("127.0.0.1", 0))) as other,
    ):
        elsewhere = f"http://127.0.0.1:{other.getsockname()[1]}"
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, elsewhere)
        reply = f"HTTP/1.0 307 x\r\nLocation: {elsewhere}/CODE\r\nContent-Length: 0\r\n\r\n".encode()
        with factory.beside(answer, args=(server, reply, asked)):
            assert rooms.post(f"http://127.0.0.1:{server.getsockname()[1]}/CODE", ADA.line()) == 307
        other.settimeout(0.2)
        with pytest.raises(TimeoutError):
            other.accept()
    assert asked[0].startswith(b"POST /CODE HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "reply", [b"", b"\0\1\2" * 50, b"HTTP/1.0 500 no\r\n\r\n", b"HTTP/1.0 403 no\r\n\r\n", b"x" * 90000]
)
def test_a_server_of_another_kind_fails_no_check(reply):
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as server,
        factory.beside(answer, args=(server, reply, [])),
    ):
        rooms._here.where = f"http://127.0.0.1:{server.getsockname()[1]}/CODE"
        assert exercise().check(lambda copies: 1).passed
        settle()
    assert "did not reach the room" in repr(workshop.room()) and len(rooms._here.waiting) == 1
