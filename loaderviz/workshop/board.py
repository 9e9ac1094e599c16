"""The board of a room: a small server that takes rows of checks, and a page that shows who is stuck where.

    python -m loaderviz room --bind 0.0.0.0 --folder rows     # prints the address for learners, and that of the board

It listens on 127.0.0.1 unless it is told otherwise, and knows two things by a join code in the address: a row that is
posted, and the board with its state. Whoever has the code may write in any name: it keeps strangers out, and proves
not who writes. The rest is limits: of sizes, of requests, of rows and names kept, of connections and their time.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.server
import json
import math
import os
import re
import secrets
import socket
import socketserver
import string
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from loaderviz import words
from loaderviz.files import writable
from loaderviz.workshop import EXERCISES, ExerciseError, rooms
from loaderviz.workshop.exercises import SIGNS, say
from loaderviz.workshop.rooms import LONGEST, Row

LETTERS = string.ascii_uppercase + string.digits
ALPHABET = "".join(sorted({*LETTERS} - {*"0O1IL"}))  # nobody takes one for another on a wall
CODE_LENGTH = 8  # 31 ** 8 codes: at `RATE` / `WRONG` tries a second, 27,000 years for all of them
NAMES, EACH, FILE_ROWS = 200, 300, 1000  # names that may post, rows of each, rows in a file of at most 1 MB
BURST, RATE, WRONG = 300.0, 20.0, 20.0  # requests of one address at once, then in a second; what a wrong code counts
ADDRESSES = 4096  # whose requests are counted
CONNECTIONS, SECONDS = 128, 10.0  # at once, and until one is closed, whatever it still sends
STUCK_MINUTES, STUCK_TRIES, AWAY = 8.0, 4, 20 * 60  # s without a row: somebody has left
VOTES, CHOICES, FRESH = 3, 8, 1.0  # predictions shown, the last ones, choices of each; s for which a state is shown
RACE = "8.1"
FILE = Path(__file__).with_name("board.html")


def state(rows: Iterable[Row], notes: Sequence[str] = (), now: float | None = None) -> dict[str, Any]:
    """Return what the board shows of the rows, as JSON has it: people, who is stuck, the capstone's ranking, votes."""
    now = time.time() if now is None else now
    checks, votes = dict[str, list[Row]](), dict[str, dict[str, Row]]()
    for row in rows:
        if row.kind == "check" and row.about in EXERCISES and (row.name in checks or len(checks) < NAMES):
            checks.setdefault(row.name, []).append(row)
        elif row.kind == "vote":
            votes[row.about] = {**votes.pop(row.about, {}), row.name: row}  # the last one asked is the last one here
    people = [_person(name, mine, now) for name, mine in checks.items()]
    people.sort(key=lambda person: (not person["stuck"], -(person["stuck"] or [0, 0, 0])[2], person["name"]))
    told = ("who", "stuck", "nobody-stuck", "ranking", "nobody-yet", "votes", "nobody-voted", "and-more", "no-answer")
    return {
        "people": people,
        "exercises": [[number, each.title] for number, each in EXERCISES.items()],
        "signs": {status: [sign, say(status)] for status, sign in SIGNS.items()},
        "ranking": _ranking(checks),
        "votes": [_counted(about, last.values()) for about, last in list(votes.items())[: -VOTES - 1 : -1]],
        "notes": list(notes)[:5],
        "words": {key: say(f"board-{key}") for key in told},
    }


def _person(name: str, rows: Sequence[Row], now: float) -> dict[str, Any]:
    """Return one line of the board: of each exercise the outcome, tries and minutes; what they are stuck at, if at any.

    An exercise that was passed once stays so.
    """
    cells, tries = dict[str, list[Any]](), dict[str, int]()
    for row in rows:
        if cells.get(row.about, [""])[0] != "passed":
            tries[row.about] = tries.get(row.about, 0) + (row.outcome != "not attempted")
            cells[row.about] = [row.outcome, tries[row.about], round(row.minutes)]
    last = rows[-1]
    silent = max(0.0, now - last.at)
    minutes, many = last.minutes + silent / 60, tries[last.about]
    stuck = cells[last.about][0] != "passed" and silent < AWAY and (minutes >= STUCK_MINUTES or many >= STUCK_TRIES)
    return {"name": name, "cells": cells, "stuck": [last.about, many, round(minutes)] if stuck else None}


def _ranking(checks: dict[str, list[Row]]) -> list[list[str]]:
    races = {name: [row.ns for row in rows if row.about == RACE and row.ns] for name, rows in checks.items()}
    best = sorted((min(times), name) for name, times in races.items() if times)
    return [[name, words.duration(ns)] for ns, name in best]


def _counted(about: str, votes: Iterable[Row]) -> dict[str, Any]:
    said = [row.outcome for row in votes]
    return {"about": about, "choices": [[each, said.count(each)] for each in sorted({*said})[:CHOICES]]}


class Kept:
    """The rows that were posted, and those of a folder, if there is one, where the posted ones are written, too."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder, self._token = folder, secrets.token_hex(8)
        self._rows, self._many = list[Row](), Counter[str]()
        self._lock = threading.Lock()
        self._state: tuple[float, bytes] = -math.inf, b""

    def add(self, row: Row) -> bool:
        """Keep a row; tell whether there was room for it. Raises OSError where the folder cannot be written."""
        with self._lock:
            if self._many[row.name] >= EACH or (row.name not in self._many and len(self._many) >= NAMES):
                return False
            if self.folder is None:
                self._rows.append(row)
            else:
                file = f"{self._token}-{self._many.total() // FILE_ROWS}.jsonl"
                rooms.append(self.folder / file, row, 0o644)
            self._many[row.name] += 1
        return True

    def state(self) -> bytes:
        """Return the state of the board as JSON, as it was within the last second."""
        with self._lock:
            if time.monotonic() - self._state[0] > FRESH:
                rows, notes = rooms.read(self.folder) if self.folder else (self._rows, [])
                self._state = time.monotonic(), json.dumps(state(rows, notes)).encode()
            return self._state[1]


class Meter:
    """How many requests each address may still make; what an address has left grows with time."""

    def __init__(self) -> None:
        self._left = dict[str, tuple[float, float]]()
        self._lock = threading.Lock()

    def takes(self, address: str, costs: float = 1.0) -> bool:
        """Count a request, and tell whether it is to be answered."""
        now = time.monotonic()
        with self._lock:
            left, at = self._left.pop(address, (BURST, now))
            left = min(BURST, left + (now - at) * RATE)
            self._left[address] = max(left - costs, -BURST), now
            if len(self._left) > ADDRESSES:
                self._left.pop(next(iter(self._left)))
        return left >= 1


class Server(socketserver.ThreadingTCPServer):
    """The server of one room. `code` is its join code; `port` 0 takes a free one."""

    daemon_threads, allow_reuse_address, request_queue_size = True, os.name != "nt", 64

    def __init__(self, bind: str, port: int, code: str, kept: Kept) -> None:
        self.address_family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        self.code, self.kept, self.meter = code, kept, Meter()
        self._open = dict[socket.socket, float]()
        page = FILE.read_text(encoding="utf-8")
        self.page = page.encode()
        parts = [f"{tag}-src '{_digest(page, tag)}'" for tag in ("script", "style")]
        self.policy = "; ".join(["default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'", *parts])
        super().__init__((bind, port), Handler)
        self.port = self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, unless too many are open."""
        if len(self._open) >= CONNECTIONS:
            self.shutdown_request(request)
            return
        self._open[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection, and close it."""
        self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close connections that last too long: `serve_forever` calls this twice a second."""
        for request, begun in list(self._open.items()):
            if time.monotonic() - begun > SECONDS:
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients that go away are no news, and what they sent is not for the terminal."""


def _digest(page: str, tag: str) -> str:
    found = re.search(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    return f"sha256-{base64.b64encode(hashlib.sha256(found[1].encode() if found else b'').digest()).decode()}"


class Handler(http.server.BaseHTTPRequestHandler):
    """One request and its answer; then the connection is closed."""

    server: Server
    server_version, sys_version = "loaderviz", ""
    timeout = SECONDS  # for each piece of a request; for all of it see `Server.service_actions`
    error_message_format, error_content_type = "%(code)d %(message)s\n", "text/plain; charset=utf-8"

    def do_GET(self) -> None:
        """Give the board, or its state."""
        if (what := self._wanted()) is None:
            return
        if what == "":
            self._answer(200, self.server.page, "text/html; charset=utf-8")
        elif what == "state":
            self._answer(200, self.server.kept.state(), "application/json")
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        """Take a row; a body of nothing is a greeting."""
        if (what := self._wanted()) is None:
            return
        if what:
            self.send_error(405)
        elif (line := self._body()) is not None:
            row = rooms.row_of(line)
            if line and (row is None or row.kind == "recall"):
                self.send_error(400, "this is no row")
                return
            try:
                room = row is None or self.server.kept.add(row._replace(at=int(time.time())))
            except OSError:
                self.send_error(503, "the folder of the room cannot be written")  # now; the kernel keeps its row
                return
            if room:
                self._answer(204)
            else:
                self.send_error(507, "the room is full")

    def _other(self) -> None:
        self.send_error(405)

    do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_HEAD = do_TRACE = do_CONNECT = _other

    def _wanted(self) -> str | None:
        """Return what follows the code in the path; None after an answer, to a wrong code or too many requests."""
        code, _, what = self.path.partition("?")[0].strip("/").partition("/")
        right = hmac.compare_digest(code.encode(errors="replace"), self.server.code.encode())
        if not self.server.meter.takes(self.client_address[0], 1 if right else WRONG):
            self.send_error(429)
        elif not right:
            self.send_error(403, "wrong code")
        else:
            return what
        return None

    def _body(self) -> bytes | None:
        """Return the body of the request; None after an answer, where it has no length, is too long or ends early."""
        given = self.headers.get("Content-Length", "")
        if not re.fullmatch(r"\d{1,9}", given, re.ASCII) or "Transfer-Encoding" in self.headers:
            self.send_error(411)
        elif int(given) > LONGEST:
            self.send_error(413)
        elif len(line := self.rfile.read(int(given))) < int(given):
            self.send_error(400, "the body ends early")
        else:
            return line
        return None

    def _answer(self, status: int, body: bytes = b"", kind: str = "") -> None:
        self.send_response(status)
        if kind:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self) -> None:
        """Send the headers, and with each answer those that keep other pages out."""
        kept = {"Content-Security-Policy": self.server.policy, "Cache-Control": "no-store", "Connection": "close"}
        for name, value in {**kept, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing: the terminal has the address, and stays readable."""


def serve(bind: str, port: int, code: str, folder: Path | None) -> None:
    """Serve a room until Ctrl-C, and say where. Raises `ExerciseError` for what cannot be, OSError as `bind` does."""
    if folder is not None and not folder.is_dir():
        raise ExerciseError(say("no-room-folder", folder=folder))
    if folder is not None:
        writable(folder / f"{secrets.token_hex(8)}.jsonl")  # before anybody joins
    if code and not re.fullmatch("[A-Za-z0-9]{4,40}", code):
        raise ExerciseError(say("no-code", code=words.one_line(code, 60)))
    if not 0 <= port < 1 << 16:
        raise ExerciseError(say("no-port", port=port))
    code = code or "".join(secrets.choice(ALPHABET) for _ in range(CODE_LENGTH))
    with Server(bind, port, code, Kept(folder)) as server:
        host = _reached_at(bind)
        address = f"http://{f'[{host}]' if ':' in host else host}:{server.port}/{code}"
        alone = host in ("127.0.0.1", "::1", "localhost")
        lost = [] if folder else [say("room-lost")]
        told = [say("room-open", address=address), say("room-alone" if alone else "room-all"), *lost]
        print("\n".join(told), flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def _reached_at(bind: str) -> str:
    """Return the address by which others reach this machine; no packet is sent to find it."""
    if bind not in ("", "0.0.0.0", "::"):
        return bind
    family, elsewhere = (socket.AF_INET6, "2001:db8::1") if bind == "::" else (socket.AF_INET, "192.0.2.1")
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((elsewhere, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()
