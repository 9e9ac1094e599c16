"""A local leaderboard: a small SQLite file with the times of a workshop, to which several kernels may write at once.

    board = Leaderboard()           # the file that LOADERVIZ_LEADERBOARD names, else leaderboard.sqlite here
    board.add("Ada", 81_300_000)    # ns
    board                           # a table, fastest first

SQLite comes with Python. It locks the file while it writes, waits for others who write, and never leaves half a run.
"""

from __future__ import annotations

import getpass
import os
import re
import secrets
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from loaderviz import words

VARIABLE = "LOADERVIZ_LEADERBOARD"
FORMAT = 0x6C76_6C62  # SQLite's application_id: "lvlb"
WAIT_SECONDS = 10.0  # for others who write; a run takes milliseconds to write
LONGEST_NAME = 40


@dataclass(frozen=True)
class Entry:
    """One run: who, how long [ns, virtual], when (ISO 8601, UTC)."""

    name: str
    ns: int
    when: str

    @property
    def time_of_day(self) -> str:
        """When, as a table shows it: "2026-01-31 09:30:00 UTC"."""
        return self.when.replace("T", " ").replace("+00:00", " UTC")


class Leaderboard:
    """The file and what is in it. Without a path: the one that the environment names, else one in the working folder.

    `note` says what went wrong with the file, "" if nothing did: a leaderboard must never stop an exercise. A file that
    is no leaderboard is left as it is.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        named = path or os.environ.get(VARIABLE)
        self.path, self.shared, self.note = Path(named or "leaderboard.sqlite"), bool(named), ""

    def add(self, name: str, ns: int) -> Entry:
        """Add a run of `name_for(name)` to the file."""
        entry = Entry(self.name_for(name), int(ns), datetime.now(UTC).isoformat(timespec="seconds"))

        def write(file: sqlite3.Connection) -> None:
            file.execute("begin immediate")  # from here on nobody else writes
            if not _is_ours(file):
                file.execute("create table runs (name text not null, ns integer not null, at text not null)")
                file.execute(f"pragma application_id = {FORMAT}")
            file.execute("insert into runs (name, ns, at) values (?, ?, ?)", (entry.name, entry.ns, entry.when))

        self._use(write)
        return entry

    @property
    def entries(self) -> list[Entry]:
        """All runs, in the order in which they were added."""

        def read(file: sqlite3.Connection) -> list[Entry]:
            rows = file.execute("select name, ns, at from runs order by rowid") if _is_ours(file) else ()
            return [Entry(*row) for row in rows]

        return (self._use(read) or []) if os.path.exists(self.path) else []

    def previous(self, name: str) -> Entry | None:
        """Return the last run of `name`; None if there is none."""
        return next((entry for entry in reversed(self.entries) if entry.name == name), None)

    def ranking(self) -> list[Entry]:
        """Return the best run of each name, fastest first; of equal ones the earlier."""
        best: dict[str, Entry] = {}
        for entry in sorted(self.entries, key=lambda entry: entry.ns):  # a stable sort
            best.setdefault(entry.name, entry)
        return list(best.values())

    def name_for(self, wanted: str = "") -> str:
        """Return a name as it is written here: in one line, at most 40 characters. Who gives none gets one.

        It is the account's name; in a file that others write to, one that nobody else has: on a hub everybody may have
        the same account, so JupyterHub's user name comes first, else four random characters are added (the same for as
        long as the kernel runs).
        """
        if name := _one_line(wanted):
            return name
        if not self.shared:
            return _account()
        return _one_line(os.environ.get("JUPYTERHUB_USER", "")) or f"{_account()}-{_suffix()}"

    def __repr__(self) -> str:
        rows = [
            f"{place:3}. {entry.name:{LONGEST_NAME}} {words.duration(entry.ns):>10}  {entry.time_of_day}"
            for place, entry in enumerate(self.ranking(), 1)
        ]
        return "\n".join([*(rows or ["(nobody yet)"]), *([self.note] if self.note else [])])

    def _repr_markdown_(self) -> str:
        rows = [
            f"| {place} | {escaped(entry.name)} | {words.duration(entry.ns)} | {entry.time_of_day} |"
            for place, entry in enumerate(self.ranking(), 1)
        ]
        head = ["| place | name | time | when |", "|--:|:--|--:|:--|"]
        text = "\n".join([*head, *rows]) if rows else "*The leaderboard is empty: nobody yet.*"
        return text + (f"\n\n{self.note}" if self.note else "")

    def _use(self, action: Callable[[sqlite3.Connection], Any]) -> Any:
        """Do something with the open file, in one transaction; if it cannot be done, note why and return None."""
        try:
            with closing(sqlite3.connect(self.path, timeout=WAIT_SECONDS)) as file, file:
                return action(file)
        except (sqlite3.Error, OSError, ValueError, OverflowError) as problem:
            self.note = f"The leaderboard {self.path} cannot be used ({problem}); {VARIABLE} can name another file."
            return None


def _is_ours(file: sqlite3.Connection) -> bool:
    """Tell whether this is a leaderboard; False if it is empty. Raises `sqlite3.DatabaseError` for anything else."""
    [kind] = file.execute("pragma application_id").fetchone()
    if kind != FORMAT and file.execute("select count(*) from sqlite_master").fetchone() != (0,):
        raise sqlite3.DatabaseError("it is a database, but no leaderboard")
    return bool(kind == FORMAT)


def _one_line(name: str) -> str:
    return " ".join(str(name).split())[:LONGEST_NAME].strip()


@lru_cache(maxsize=1)
def _suffix() -> str:
    return secrets.token_hex(2)


def _account() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # an account without a name, in some containers
        return "you"


def escaped(text: str) -> str:
    """Return text that Markdown shows as it is: no link, no picture, no end of a table's cell."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", text)
