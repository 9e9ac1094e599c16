"""What a check tells: a line for the learner's own file, and one for the room, where somebody has set one.

    LOADERVIZ_ROOM=/a/folder/of/the/room          # in which each kernel makes a file of its own
    LOADERVIZ_ROOM=http://10.0.0.5:8700/K7QM2XPA  # what `python -m loaderviz room` prints
    workshop.room("http://…", name="Ada")         # the same for one kernel

A line is a row of JSON of at most 1 kB. A kernel that is killed leaves at most a torn last line, which readers leave
out and name. In a folder for many accounts each kernel writes to a new file, which belongs to its account, and which
all may read; readers follow no links. Nothing here ever stops a check: what goes wrong stands in `workshop.room()`.
"""

from __future__ import annotations

import getpass
import hashlib
import http.client
import json
import os
import platform
import re
import secrets
import stat
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from loaderviz import words
from loaderviz.workshop.exercises import LISTENERS, ExerciseError, Note, say

VARIABLE, OWN = "LOADERVIZ_ROOM", "LOADERVIZ_PROGRESS"
KINDS = ("check", "vote", "recall")
OUTCOMES = ("passed", "not attempted", "not yet", "crashed", "right", "wrong")  # of a vote it is what was chosen
LONGEST, LONGEST_NAME = 1024, 40  # bytes of a row; characters of a name
ABOUT, OUTCOME = 240, 110  # bytes; twice, since JSON writes a quote as two: and with a name of 160 it is still 1 kB
READ, FILES, ALL = 1 << 20, 2000, 1 << 25  # bytes read of a file, its last ones; files and bytes read of a folder
MOMENT = 2.0  # s in which a server must answer
ENDS = 204, 400, 413, 507  # statuses after which a line is not sent again: taken, no row, too long, no room for it
ADDRESS = re.compile(r"http://(?P<host>\[[0-9a-fA-F:.]+\]|[\w.-]+)(:(?P<port>\d{1,5}))?/(?P<code>[A-Za-z0-9]{4,40})/?")
_OPEN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class Row(NamedTuple):
    """One line: who, about which exercise or question, and what came of it, after so many minutes, at `at` [Unix s].

    `ns` is the time of a race of the capstone, 0 for what is none.

    >>> Row("check", "Ada", "3.1", "passed", 4.5, at=1_800_000_000).line()
    b'{"kind":"check","name":"Ada","about":"3.1","outcome":"passed","minutes":4.5,"ns":0,"at":1800000000}'
    """

    kind: str
    name: str
    about: str
    outcome: str
    minutes: float = 0.0
    ns: int = 0
    at: int = 0

    def line(self) -> bytes:
        """Return the row as it is written: one line without its end, at most 1 kB."""
        name = words.one_line(self.name, LONGEST_NAME)
        row = self._replace(name=name, about=_cut(self.about, ABOUT), outcome=_cut(self.outcome, OUTCOME))
        return json.dumps(row._asdict(), ensure_ascii=False, separators=(",", ":")).encode()


def _cut(text: str, most: int) -> str:
    return words.one_line(text, most).encode()[:most].decode(errors="ignore").strip()


def row_of(line: bytes) -> Row | None:
    """Return the row of a line; None if it is none: torn, too long, with other parts or values than rows have.

    >>> row_of(b'{"kind":"check","na') is None
    True
    """
    try:
        given = json.loads(line) if len(line) <= LONGEST else None
        row = Row(**given) if isinstance(given, dict) else None
    except (ValueError, TypeError, RecursionError):
        return None
    if row is None or not all(isinstance(each, str) for each in row[:4]) or not all(map(_is_number, row[4:])):
        return None
    row = row._replace(name=words.one_line(row.name, LONGEST_NAME), about=_cut(row.about, ABOUT))
    row = row._replace(outcome=_cut(row.outcome, OUTCOME))
    known = row.kind in KINDS and (row.kind == "vote" or row.outcome in OUTCOMES)
    whole = isinstance(row.ns, int) and isinstance(row.at, int) and row.minutes < 1e6
    return row if known and whole and row.name and row.about and row.outcome else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2**63


# Files


def append(file: Path, row: Row | None, mode: int = 0o600) -> None:
    """Add a row, if there is one, to a file of this account, which is made if need be.

    A file with a second name, a link, and what is no file stay as they are. Raises OSError, or ValueError for a NUL.
    """
    handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _OPEN, mode)
    try:
        _must_be_plain(os.fstat(handle))
        if mode & 0o044 and hasattr(os, "fchmod"):
            os.fchmod(handle, mode)  # whatever the account's umask is
        line = b"\n" + row.line() + b"\n" if row else b""  # so that a torn line before it does not take it along
        if os.write(handle, line) < len(line):
            raise OSError(say("disk-full"))
    finally:
        os.close(handle)


def _must_be_plain(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        raise OSError(say("no-plain-file"))


def read(place: Path) -> tuple[list[Row], list[str]]:
    """Return the rows of a file, or of all files of a folder, oldest first, and what was left out, in sentences."""
    rows, notes, left = list[Row](), list[str](), ALL
    try:
        names = sorted(name for name in os.listdir(place) if name.endswith(".jsonl")) if place.is_dir() else [""]
    except (OSError, ValueError) as problem:
        return [], [say("file-left-out", file=place, problem=problem)]
    if len(names) > FILES:
        notes.append(say("many-files", folder=place, most=FILES))
    for name in names[:FILES]:
        try:
            more, torn = _rows_of(place / name)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as problem:
            notes.append(say("file-left-out", file=place / name, problem=problem))
            continue
        rows += more
        if (left := left - min(READ, (place / name).stat().st_size)) < 0:
            notes.append(say("much", folder=place, most=words.size(ALL)))
            break
        if torn:
            notes.append(say("torn", file=place / name, count=torn))
    return sorted(rows, key=lambda row: row.at), notes


def _rows_of(file: Path) -> tuple[list[Row], int]:
    """Return the rows in the last `READ` bytes of a file, and how many lines are none."""
    with open(os.open(file, os.O_RDONLY | _OPEN), "rb") as opened:
        _must_be_plain(status := os.fstat(opened.fileno()))
        opened.seek(start := max(0, status.st_size - READ))
        lines = [line for line in opened.read(READ).split(b"\n")[bool(start) :] if line]
    rows = [row_of(line) for line in lines]
    return [row for row in rows if row], rows.count(None)


def moment(at: int) -> str:
    """Return a time [Unix s] as "2026-01-31 09:30:00 UTC".

    >>> moment(1_800_000_000)
    '2027-01-15 08:00:00 UTC'
    """
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(min(at, 2**37)))


def own_file() -> Path | None:
    """Return the learner's own file of rows: what LOADERVIZ_PROGRESS names ("off": none), else in the data folder."""
    if named := os.environ.get(OWN, ""):
        return None if named == "off" else Path(os.path.expanduser(named))
    home = os.path.expanduser("~")
    default = {"win32": f"{home}/AppData/Local", "darwin": f"{home}/Library/Application Support"}
    data = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_DATA_HOME", "")
    return Path(data or default.get(sys.platform, f"{home}/.local/share")) / "loaderviz" / "progress.jsonl"


# Names


def name_for(wanted: str = "") -> str:
    """Return a name as it is written: one line, at most 40 characters; who gives none has the one of before.

    Else it is JupyterHub's user name, which all accounts of a hub may share; else the account's, and four characters
    that are the same in each kernel of this account on this machine.
    """
    given = words.one_line(str(wanted), LONGEST_NAME) or _here.name
    return given or words.one_line(os.environ.get("JUPYTERHUB_USER", ""), LONGEST_NAME) or _account()


@cache
def _account() -> str:
    try:
        account = words.one_line(getpass.getuser(), LONGEST_NAME - 5)
    except (OSError, KeyError, ImportError):  # an account without a name, in some containers
        account = ""
    machine = f"{platform.node()} {uuid.getnode()} {os.path.expanduser('~')}"
    return f"{account or 'you'}-{hashlib.sha256(machine.encode(errors='replace')).hexdigest()[:4]}"


# The room of this kernel


class _Here:
    """Where this kernel's rows go, and what became of the last one."""

    def __init__(self) -> None:
        self.where = self.name = self.note = self.own_note = ""
        self.file = f"{secrets.token_hex(8)}.jsonl"  # nobody can have put one there
        self.waiting = deque[bytes](maxlen=100)
        self.sending = threading.Lock()


_here = _Here()


def where() -> str:
    """Return the folder or address of the room; "" without one."""
    return _here.where or os.environ.get(VARIABLE, "")


def board() -> Path | None:
    """Return the folder of the room, the learner's own file where there is none, None where that is off."""
    place = where()
    return Path(place) if place and "://" not in place else own_file()


def room(where: str | os.PathLike[str] | None = None, name: str = "") -> Note:
    """Set where each check of this kernel writes its line, and as whom; without either, only say so.

    `where` is a folder that all may write to, or the address that `python -m loaderviz room` prints. Raises
    `ExerciseError` if it is neither. A server that does not answer now may do so later: the last 100 lines wait for it.
    """
    if where is not None:
        place = os.fsdecode(where) if isinstance(where, (str, os.PathLike)) else ""
        if not (ADDRESS.fullmatch(place) if "://" in place else _can_be(place)):
            raise ExerciseError(say("no-room", where=words.one_line(place, 200), variable=VARIABLE))
        _here.where, _here.note = place, ""
        _here.waiting.clear()
        if "://" in place:
            with _noting():
                _must_be_taken(post(place, b""), place)
    _here.name = words.one_line(str(name), LONGEST_NAME) or _here.name
    return Note("\n\n".join(filter(None, (_said(), _here.note, _here.own_note))))


def _said() -> str:
    if not (place := where()):
        return say("room-none", variable=VARIABLE)
    return say("room-server" if "://" in place else "room-folder", where=place, name=name_for())


def _can_be(place: str) -> bool:
    """Tell whether this is a folder, or a file in one."""
    absolute = os.path.abspath(place) if place and "\0" not in place else ""
    return os.path.isdir(absolute) or os.path.isdir(os.path.dirname(absolute))


def heard(kind: str, about: str, outcome: str, minutes: float = 0.0, ns: int = 0, name: str = "") -> None:
    """Write a row to the learner's own file, if it is no vote, and to the room, if there is one."""
    place, row = where(), Row(kind, name_for(name), about, outcome, round(min(minutes, 1e5), 1), ns, int(time.time()))
    if kind != "vote":
        keep(row)
    if not place or kind == "recall":  # what somebody has forgotten is nobody else's business
        return
    if "://" not in place:
        with _noting():
            append(Path(place) / _here.file if Path(place).is_dir() else Path(place), row, 0o644)
        return
    _here.waiting.append(row.line())
    threading.Thread(target=_send, daemon=True).start()


def keep(row: Row | None) -> str:
    """Write a row, if there is one, to the learner's own file, which is made; say why not where that cannot be done."""
    with _noting("own_note"):
        if own := own_file():
            os.makedirs(own.parent, exist_ok=True)
            append(own, row)
    return _here.own_note


@contextmanager
def _noting(part: str = "note") -> Iterator[None]:
    """Keep in a sentence what goes wrong inside, and forget what went wrong before."""
    said = ""
    try:
        yield
    except (OSError, ValueError, RuntimeError, http.client.HTTPException) as problem:
        said = say("own-unwritten" if part == "own_note" else "unwritten", problem=problem, variable=OWN)
    setattr(_here, part, said)


# A server


def _send() -> None:
    """Send what waits; a server that is away gets it with the next line."""
    with _here.sending, _noting():
        while _here.waiting:
            status = post(place := where(), line := _here.waiting[0])
            if status in ENDS and _here.waiting and _here.waiting[0] is line:
                _here.waiting.popleft()
            _must_be_taken(status, place)


def _must_be_taken(status: int, place: str) -> None:
    if status != 204:
        raise OSError(say("refused", status=status, where=place))


def post(address: str, line: bytes) -> int:
    """Send one line to a server, by no proxy, and return the status. Raises OSError where none answers in time."""
    parts = ADDRESS.fullmatch(address)
    if parts is None:
        raise ValueError(say("no-room", where=words.one_line(address, 200), variable=VARIABLE))
    line_to = http.client.HTTPConnection(parts["host"].strip("[]"), int(parts["port"] or 80), timeout=MOMENT)
    try:
        line_to.request("POST", f"/{parts['code']}", line, {"Content-Type": "application/json"})
        return line_to.getresponse().status
    finally:
        line_to.close()


LISTENERS.append(heard)
