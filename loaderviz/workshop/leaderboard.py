"""A local leaderboard: a JSON file with the times of a workshop. Written atomically; a damaged file is put aside.

board = Leaderboard("leaderboard.json")
board.add("Ada", 81_300_000)      # ns
board                             # a table, fastest first
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loaderviz import words

FORMAT = "loaderviz leaderboard 1"
VARIABLE = "LOADERVIZ_LEADERBOARD"


@dataclass(frozen=True)
class Entry:
    """One run: who, how long [ns, virtual], when (ISO 8601, UTC)."""

    name: str
    ns: int
    when: str


class Leaderboard:
    """The file and what is in it. Without a path: the one in the environment, else `leaderboard.json` here.

    `note` says what went wrong with the file, "" if nothing did: a leaderboard must never stop an exercise.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(path or os.environ.get(VARIABLE) or "leaderboard.json")
        self.note = ""
        self.entries: list[Entry] = self._read()  # in the order of time

    def add(self, name: str, ns: int) -> Entry:
        """Add a run and save the file. What others have written meanwhile is kept."""
        entry = Entry(str(name), int(ns), datetime.now(UTC).isoformat(timespec="seconds"))
        self.entries = [*self._read(), entry]
        self._write()
        return entry

    def previous(self, name: str) -> Entry | None:
        """Return the last run of `name`; None if there is none."""
        return next((entry for entry in reversed(self.entries) if entry.name == name), None)

    def ranking(self) -> list[Entry]:
        """Return the best run of each name, fastest first."""
        best: dict[str, Entry] = {}
        for entry in self.entries:
            if entry.name not in best or entry.ns < best[entry.name].ns:
                best[entry.name] = entry
        return sorted(best.values(), key=lambda entry: (entry.ns, entry.when))

    def __repr__(self) -> str:
        rows = [
            f"{place:3}. {entry.name:20} {words.duration(entry.ns):>10}  {entry.when}"
            for place, entry in enumerate(self.ranking(), 1)
        ]
        return "\n".join([*(rows or ["(nobody yet)"]), *([self.note] if self.note else [])])

    def _repr_markdown_(self) -> str:
        head = ["| place | name | time | when |", "|--:|:--|--:|:--|"]
        rows = [
            f"| {place} | {_cell(entry.name)} | {words.duration(entry.ns)} | {entry.when} |"
            for place, entry in enumerate(self.ranking(), 1)
        ]
        return "\n".join([*head, *rows]) + (f"\n\n{self.note}" if self.note else "")

    def _read(self) -> list[Entry]:
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as problem:
            return self._put_aside(f"{type(problem).__name__}")
        try:
            return _entries(json.loads(text))
        except (ValueError, KeyError, TypeError, RecursionError) as problem:
            return self._put_aside(str(problem) or type(problem).__name__)

    def _put_aside(self, why: str) -> list[Entry]:
        """Keep a file that cannot be read under another name, and begin a new one."""
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.damaged-{number}")).exists():
            number += 1
        try:
            self.path.replace(aside)
            self.note = f"{self.path.name} could not be read ({why}); it is kept as {aside.name}, a new one begins."
        except OSError as problem:
            self.note = f"{self.path} could not be read ({why}) nor put aside ({problem})."
        return []

    def _write(self) -> None:
        """Write a new file beside the old one, then put it in its place: nobody ever sees half a file."""
        content = json.dumps({"format": FORMAT, "entries": [asdict(entry) for entry in self.entries]}, indent=1)
        temporary = ""
        try:
            handle, temporary = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
        except OSError as problem:
            if temporary:
                Path(temporary).unlink(missing_ok=True)
            self.note = (
                f"the leaderboard could not be saved in {self.path} ({problem}); {VARIABLE} can name another file."
            )


def _entries(data: Any) -> list[Entry]:
    """Return the entries of a parsed file; raise ValueError, KeyError or TypeError if it is none of ours."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f"it is not a {FORMAT!r}")
    entries = []
    for entry in data["entries"]:
        name, ns, when = entry["name"], entry["ns"], entry["when"]
        if not (isinstance(name, str) and isinstance(ns, int) and not isinstance(ns, bool) and isinstance(when, str)):
            raise ValueError(f"an entry is not well made: {entry}")
        entries.append(Entry(name, ns, when))
    return entries


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
