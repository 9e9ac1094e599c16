"""The board of a room: what it makes of rows, and what its server does with strangers, floods and slow clients."""

import json
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import closing, suppress

import factory
import pytest

from loaderviz import cli, workshop
from loaderviz.workshop import EXERCISES, board, rooms
from loaderviz.workshop.exercises import Exercise, Score
from loaderviz.workshop.rooms import Row

NOW = 1_800_000_000.0
CODE = "K7QM2XPA"


def check(name, about, outcome="not yet", minutes=1.0, ago=0, ns=0):
    return Row("check", name, about, outcome, minutes, ns, int(NOW) - ago)


def shown(*rows):
    return board.state(rows, now=NOW)


# What the board says of rows


def test_a_cell_has_the_last_outcome_the_tries_and_the_minutes_and_what_was_passed_stays_so():
    rows = [check("Ada", "3.1", "not attempted"), check("Ada", "3.1"), check("Ada", "3.1", "crashed", 3.4)]
    assert shown(*rows)["people"][0]["cells"] == {"3.1": ["crashed", 2, 3]}
    rows += [check("Ada", "3.1", "passed", 5.6), check("Ada", "3.1", "not yet", 9.0)]
    (ada,) = shown(*rows)["people"]
    assert ada["cells"] == {"3.1": ["passed", 3, 6]} and ada["stuck"] is None


@pytest.mark.parametrize(
    ("tries", "minutes", "ago", "stuck"),
    [
        (1, 7.9, 0, None),
        (1, 8.0, 0, ["3.1", 1, 8]),
        (1, 2.0, 360, ["3.1", 1, 8]),  # six minutes without a word
        (1, 2.0, 350, None),
        (3, 1.0, 0, None),
        (4, 1.0, 0, ["3.1", 4, 1]),
        (9, 99.0, 1199, ["3.1", 9, 119]),
        (9, 99.0, 1200, None),  # has left
        (1, 1.0, -3600, None),  # another clock
    ],
)
def test_who_is_stuck(tries, minutes, ago, stuck):
    assert shown(*[check("Ada", "3.1", minutes=minutes, ago=ago)] * tries)["people"][0]["stuck"] == stuck


def test_who_has_gone_on_is_not_stuck_and_who_is_stuck_for_longest_comes_first():
    rows = [check("Ada", "3.1", minutes=30), check("Ada", "3.2"), check("Bob", "1.1", minutes=9)]
    rows += [check("Eve", "1.1", minutes=20), check("Dan", "0.1", "passed", 90)]
    assert [person["name"] for person in shown(*rows)["people"]] == ["Eve", "Bob", "Ada", "Dan"]


def test_the_ranking_is_of_the_best_times_of_the_race():
    rows = [check("Ada", "8.1", ns=3_000_000), check("Ada", "8.1", ns=2_000_000), check("Bob", "8.1", ns=2_500_000)]
    rows += [check("Eve", "8.2", ns=1), check("Dan", "8.1")]
    assert shown(*rows)["ranking"] == [["Ada", "2 ms"], ["Bob", "2.5 ms"]]


def test_of_each_voter_the_last_vote_counts_and_the_last_questions_are_shown():
    votes = [Row("vote", name, about, said) for about in ("a", "b", "c", "d", "a") for name, said in
             (("Ada", "2. no"), ("Bob", "1. yes"), ("Ada", "1. yes"))]  # fmt: skip
    votes.append(Row("vote", "Eve", "a", "2. no"))
    found = shown(*votes)["votes"]
    assert [each["about"] for each in found] == ["a", "d", "c"]
    assert found[0]["choices"] == [["1. yes", 2], ["2. no", 1]]


def test_what_no_exercise_has_and_nothing_at_all():
    assert shown(check("Ada", "99.9"), Row("recall", "Ada", "0.1", "wrong"))["people"] == []
    empty = board.state([])
    assert [number for number, _ in empty["exercises"]] == list(EXERCISES) and empty["votes"] == empty["ranking"] == []


def test_who_floods_a_folder_with_names_and_choices_fills_no_page():
    rows = [check(f"n{number}", "3.1") for number in range(999)] + [check("n3", "3.2")]
    found = shown(*rows, *(Row("vote", f"n{number}", "Which?", f"{number}. x") for number in range(99)))
    assert len(found["people"]) == board.NAMES and len(found["votes"][0]["choices"]) == 8
    assert next(each for each in found["people"] if each["name"] == "n3")["cells"].keys() == {"3.1", "3.2"}


def test_it_speaks_the_language_of_the_room(monkeypatch):
    monkeypatch.setenv("LOADERVIZ_LANGUAGE", "zh")
    assert shown()["words"]["stuck"] == "需要帮助" and shown()["signs"]["passed"][0] == "✔"


# The server


@pytest.fixture
def served():
    """A server in a thread; returns it, ends it."""
    made = []

    def start(folder=None):
        server = board.Server("127.0.0.1", 0, CODE, board.Kept(folder))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        made.append(server)
        return server

    yield start
    for server in made:
        server.shutdown()
        server.server_close()


def asked(server, raw):
    """Send bytes; return the status and all that was answered."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(raw)
        answer = b""
        while more := connection.recv(65536):
            answer += more
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/") else 0, answer


def get(server, path, method="GET"):
    return asked(server, f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


def post(server, body, path=f"/{CODE}", head=None):
    length = f"Content-Length: {len(body)}" if head is None else head
    return asked(server, f"POST {path} HTTP/1.1\r\nHost: x\r\n{length}\r\n\r\n".encode() + body)[0]


def state(server):
    status, answer = get(server, f"/{CODE}/state")
    assert status == 200
    return json.loads(answer.partition(b"\r\n\r\n")[2])


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(board, "FRESH", -1)


def test_a_row_that_is_posted_is_on_the_board_at_the_servers_time(served, at_once):
    server = served()
    hostile = "<img src=x onerror=alert(1)>\u202e"
    row = Row("check", hostile, "3.1", "passed", 2.0, at=2**39)
    assert post(server, json.dumps(row._asdict()).encode()) == 204
    (person,) = state(server)["people"]
    assert person["name"] == hostile[:-1] and person["cells"] == {"3.1": ["passed", 1, 2]}
    assert server.kept._rows[0].at < 2**39  # a foreign clock does not count
    assert post(server, row._replace(name="y" * 99).line()) == 204
    assert {len(each["name"]) for each in state(server)["people"]} == {len(hostile) - 1, 40}


def test_the_page_asks_nobody_else_and_lets_nobody_in(served):
    server = served()
    status, answer = get(server, f"/{CODE}/")
    head, _, page = answer.partition(b"\r\n\r\n")
    assert status == 200 and page == board.FILE.read_bytes()
    assert b"default-src 'none'" in head and b"script-src 'sha256-" in head and b"frame-ancestors 'none'" in head
    assert b"http" not in page and b"innerHTML" not in page and b"//cdn" not in page
    assert b"Python" not in head and b"no-store" in head


@pytest.mark.parametrize(
    "path", ["/", "//", f"/{CODE[:-1]}", f"/{CODE}X", f"/{CODE.lower()}", "/../" + CODE, f"/x/{CODE}", "/%4B7QM2XPA",
             "/" + "é" * 9, f"/?{CODE}", "/" + "A" * 60_000],
)  # fmt: skip
def test_without_the_code_nobody_reads_or_writes(served, path):
    server, row = served(), check("Eve", "3.1").line()
    assert get(server, path)[0] == get(server, f"{path}/state")[0] == 403
    assert post(server, row, path) == 403 and not server.kept._rows


def test_a_wrong_method_or_place(served):
    server = served()
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE"):
        assert get(server, f"/{CODE}", method)[0] == 405
    assert get(server, f"/{CODE}", "BREW")[0] == 501
    assert post(server, b"{}", f"/{CODE}/state") == 405 and get(server, f"/{CODE}/secret")[0] == 404
    assert get(server, f"/{CODE}/../../etc/passwd")[0] == 404


@pytest.mark.parametrize(
    ("body", "head", "status"),
    [
        (b"x" * 1025, None, 413),
        (b"", "Content-Length: 999999999", 413),  # and it is not read
        (b"", "Content-Length: 99999999999999999999", 411),
        (b"{}", "Content-Length: -2", 411),
        (b"{}", "Content-Length: two", 411),
        (b"{}", "Content-Length: \u0662", 411),
        (b"{}", "X: y", 411),
        (b"2\r\n{}\r\n0\r\n\r\n", "Transfer-Encoding: chunked", 411),
        (b"2\r\n{}\r\n0\r\n\r\n", "Content-Length: 4\r\nTransfer-Encoding: chunked", 411),
        (b"{}", None, 400),
        (b"[" * 1024, None, 400),
        (b"\xff" * 100, None, 400),
        (b'{"name":"Ada"}', None, 400),
        (Row("recall", "Ada", "pinned", "wrong").line(), None, 400),
        (check("Ada", "3.1", "won").line(), None, 400),
        (b"", None, 204),  # a greeting
    ],
)
def test_a_body_that_is_no_row(served, body, head, status):
    server = served()
    assert post(server, body, head=head) == status and not server.kept._rows
    assert post(server, check("Ada", "3.1").line()) == 204  # and it goes on


def test_a_body_that_ends_early(served):
    server, body = served(), check("Ada", "3.1").line()
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(b"POST /%s HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (CODE.encode(), len(body), body[:-9]))
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(999).split(b" ")[1] == b"400"
    assert not server.kept._rows


@pytest.mark.parametrize(
    "raw", [b"\0" * 9, b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00", b"GET / HTTP/9.9\r\n\r\n",
            b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", b"x" * 70_000 + b"\r\n\r\n"],
)  # fmt: skip
def test_what_is_no_request(served, raw, capfd):
    server = served()
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=30)) as connection:
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_WR)
        until_closed(connection)
    assert get(server, f"/{CODE}")[0] == 200 and capfd.readouterr() == ("", "")


def until_closed(connection):
    with suppress(ConnectionError):
        while connection.recv(4096):
            pass


@pytest.mark.parametrize("raw", [b"", b"GET ", b"POST /K7QM2XPA HTTP/1.1\r\nContent-Length: 500\r\n\r\n{"])
def test_a_slow_client_is_closed_whatever_it_has_sent(served, monkeypatch, raw):
    monkeypatch.setattr(board, "SECONDS", 0.1)
    server = served()
    stop = threading.Event()
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(raw)

        def drip():  # each piece comes in time
            with suppress(OSError):
                while not stop.wait(0.01):
                    connection.send(b"x")

        with factory.beside(drip):
            until_closed(connection)
            stop.set()
    assert get(server, f"/{CODE}")[0] == 200


def test_more_connections_than_there_may_be_are_closed_and_others_answered_later(served, monkeypatch):
    monkeypatch.setattr(board, "CONNECTIONS", 3)
    server = served()
    idle = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(3)]
    while len(server._open) < 3:
        pass
    assert get(server, f"/{CODE}")[0] == 0
    for each in idle:
        each.close()
    while server._open:
        pass
    assert get(server, f"/{CODE}")[0] == 200


def test_who_asks_too_often_waits_and_wrong_codes_count_more(served, monkeypatch):
    monkeypatch.setattr(board, "RATE", 0.0)
    monkeypatch.setattr(board, "BURST", 50.0)
    server = served()
    assert [get(server, "/WRONG")[0] for _ in range(5)] == [403, 403, 403, 429, 429]
    assert get(server, f"/{CODE}")[0] == 429 and post(server, check("Ada", "3.1").line()) == 429
    other = board.Meter()
    assert [other.takes("a") for _ in range(51)] == [True] * 50 + [False] and other.takes("b")


def test_what_an_address_may_ask_comes_back_and_few_addresses_are_kept(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(board.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(board, "ADDRESSES", 3)
    meter = board.Meter()
    while meter.takes("a", 100):
        pass
    clock[0] += 60
    assert meter.takes("a")
    for number in range(9):
        meter.takes(f"n{number}")
    assert len(meter._left) == 3


def test_a_room_is_full_at_some_time(monkeypatch):
    monkeypatch.setattr(board, "NAMES", 2)
    monkeypatch.setattr(board, "EACH", 3)
    kept = board.Kept()
    assert [kept.add(check("Ada", "3.1")) for _ in range(4)] == [True, True, True, False]
    assert [kept.add(check(name, "3.1")) for name in ("Bob", "Eve", "Bob")] == [True, False, True]


def test_a_folder_keeps_what_is_posted_and_shows_what_kernels_write_there(served, tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(board, "FILE_ROWS", 2)
    server = served(tmp_path)
    rooms.append(tmp_path / "kernel.jsonl", check("Grace", "1.1"), 0o644)
    for name in ("Ada", "Bob", "Eve"):
        assert post(server, check(name, "3.1").line()) == 204
    assert {each["name"] for each in state(server)["people"]} == {"Ada", "Bob", "Eve", "Grace"}
    assert len(list(tmp_path.iterdir())) == 3  # of at most two rows
    (tmp_path / "other.jsonl").write_text("not a row\n")
    assert "some lines are left out" in state(server)["notes"][0]
    for file in tmp_path.iterdir():
        file.unlink()
    tmp_path.rmdir()
    assert post(server, check("Ada", "3.1").line()) == 503
    assert state(server)["people"] == []


def test_what_is_checked_while_the_folder_cannot_be_written_is_on_the_board_once_it_can(served, at_once, tmp_path):
    """An instructor's folder may be full, read-only or away for a while: no row is lost meanwhile, and none twice."""
    folder = tmp_path / "room"
    folder.mkdir()
    server = served(folder)
    workshop.room(f"http://127.0.0.1:{server.port}/{CODE}", name="Ada")
    folder.rmdir()
    rooms.heard("check", "3.1", "passed", 2.0)
    rooms.heard("check", "3.2", "not yet", 1.0)
    rooms._send()
    assert "503" in repr(workshop.room())
    folder.mkdir()
    rooms.heard("check", "3.3", "not yet", 1.0)
    rooms._send()
    (person,) = state(server)["people"]
    assert {about: cell[:2] for about, cell in person["cells"].items()} == {
        "3.1": ["passed", 1],
        "3.2": ["not yet", 1],
        "3.3": ["not yet", 1],
    }
    assert "503" not in repr(workshop.room())


def test_a_state_is_made_once_a_second(served, monkeypatch):
    server = served()
    assert state(server)["people"] == []
    post(server, check("Ada", "3.1").line())
    monkeypatch.setattr(board, "FRESH", 1e9)
    assert state(server)["people"] == []


def test_checks_and_votes_of_a_kernel_come_to_the_board(served, at_once):
    server = served()
    address = f"http://127.0.0.1:{server.port}/{CODE}"
    assert "did not reach" not in repr(workshop.room(address, name="Ada"))
    assert Exercise("0.1", lambda answer, chance: Score("done")).check(lambda copies: 1).passed
    workshop.predict("Which?", ["this", "that"], answer=1).choose(2)
    while rooms._here.waiting:
        pass
    found = state(server)
    assert found["people"][0]["cells"]["0.1"][0] == "passed" and found["people"][0]["name"] == "Ada"
    assert found["votes"] == [{"about": "Which?", "choices": [["2. that", 1]]}]
    said = repr(workshop.room(f"http://127.0.0.1:{server.port}/WRONG"))
    assert "with the status 403" in said


# The command


def test_it_listens_on_this_machine_alone_unless_it_is_told_otherwise():
    options = cli._parser().parse_args(["room"])
    assert options.bind == "127.0.0.1" and not options.code
    made = {"".join(board.secrets.choice(board.ALPHABET) for _ in range(board.CODE_LENGTH)) for _ in range(50)}
    assert len(made) == 50 and not {*"".join(made)} & {*"0O1IL"}
    assert board._reached_at("10.1.2.3") == "10.1.2.3" and board._reached_at("0.0.0.0") not in ("", "0.0.0.0")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--code", "abc"], "'abc' cannot be a join code"),
        (["--code", "<script>"], "cannot be a join code"),
        (["--folder", "no/such"], "there is no folder no/such"),
        (["--port", "70000"], "there is no port 70000"),
        (["--port", "-1"], "there is no port -1"),
        (["--bind", "192.0.2.7"], "loaderviz: "),  # not of this machine
        (["--bind", "no host of this name"], "loaderviz: "),
    ],
)
def test_what_cannot_be_served_is_one_sentence(arguments, said, capsys):
    assert cli.main(["room", *arguments]) == cli.FAILED
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1


def test_a_port_that_is_taken_is_named(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert cli.main(["room", "--port", str(taken.getsockname()[1])]) == cli.FAILED
    assert "in use" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT")
def test_the_command_says_its_address_and_ends_with_ctrl_c():
    command = [sys.executable, "-m", "loaderviz", "room", "--port", "0", "--code", "room42"]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job, and who it starts, ignore it
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        said = [running.stdout.readline() for _ in range(4)]
        address = said[0].split()[-1]
        assert address.startswith("http://127.0.0.1:") and address.endswith("/room42")
        with urllib.request.urlopen(address, timeout=30) as reply:
            assert b"<!doctype html>" in reply.read()
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(address[:-1], timeout=30)
        running.send_signal(signal.SIGINT)
        _, error = running.communicate(timeout=60)
    assert running.returncode == 0 and error == ""
    assert address in said[1] and "Only this machine" in said[2] and "in memory only" in said[3]
