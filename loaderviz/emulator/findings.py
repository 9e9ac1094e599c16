"""Hazard: one thing that is wrong (or costs time) in a recorded program, with both sides, the cure, and how it shows.

for hazard in recording.hazards:      # races: wrong on a real GPU, now and then
    print(hazard)
for finding in recording.findings:    # right, but slower than it could be
    print(finding.line)
"""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import overload

from loaderviz import words
from loaderviz.errors import LoadervizError

RACES = ("early-read", "early-reuse", "early-refill", "early-host-read")
FINDINGS = ("wait-on-nothing", "hidden-sync", "stream-per-epoch", "needless-wait")

UNSEEN = "a write past torch (numpy, or a data set)"  # known only by the bytes that changed


class HazardWarning(UserWarning):
    """A recorded program has a race: on a real GPU it gives wrong numbers now and then."""


class RaceError(LoadervizError, RuntimeError):
    """Raised at the racing call by `record(hazards="raise")`; `hazard` is the report."""

    def __init__(self, hazard: Hazard) -> None:
        self.hazard = hazard
        super().__init__(f"\n{hazard}")


@dataclass(frozen=True)
class Access:
    """One side of a hazard: what touched the memory, where and when.

    `stream` is its number as traces show it (7: the default stream), None for the host. `shape` and `dtype` are those
    of the tensor it touched ("" and () where there is none). `batch` is -1 for none, `source` is "file:line", `start`
    and `end` are virtual ns (-1: it had not run yet).
    """

    operator: str
    writes: bool
    stream: int | None
    shape: tuple[int, ...] = ()
    dtype: str = ""
    batch: int = -1
    source: str = ""
    start: int = -1
    end: int = -1

    @property
    def place(self) -> str:
        """Where it ran: "stream 13", "stream 7 (default)" or "the host"."""
        return stream_words(self.stream)

    @property
    def tensor(self) -> str:
        """What it touched: "float32[64, 1024]", or "a float32 scalar"."""
        if not self.shape:
            return f"a {self.dtype} scalar" if self.dtype else ""
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    def __str__(self) -> str:
        if self.operator == UNSEEN:
            return f"{self.operator} changes {self.tensor} before this line is done"
        what = f"{self.operator} {'writes' if self.writes else 'reads'} {self.tensor}" if self.dtype else self.operator
        parts = [what] + ([f"batch {self.batch}"] if self.batch >= 0 else []) + [f"on {self.place}"]
        if self.start >= 0:
            parts.append(f"from {words.duration(self.start)} to {words.duration(self.end)}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Hazard:
    """A race (`kind` in `RACES`), or something that costs time (`kind` in `FINDINGS`).

    `first` and `second` are the two sides in the order of the program (a finding has only the first); `problem` says in
    a sentence what is wrong, `missing` which order nothing ensures, `fix` the line to add and where, `shows` how it is
    seen on a real GPU. It was met `count` times, first in `batches`. `rule` is the rule of CUDA or PyTorch behind it.
    """

    kind: str
    rule: str
    first: Access
    second: Access | None
    problem: str
    missing: str
    fix: str
    shows: str
    count: int = 1
    batches: tuple[int, ...] = ()

    @property
    def line(self) -> str:
        """The hazard in one line: kind, file and line, problem."""
        access = self.second or self.first
        return f"{self.kind} at {short(access.source)}: {self.problem}"

    @property
    def overlap(self) -> int:
        """For how many ns both sides ran at the same time."""
        if self.second is None or self.first.start < 0 or self.second.start < 0:
            return 0
        return max(0, min(self.first.end, self.second.end) - max(self.first.start, self.second.start))

    @property
    def _inverted(self) -> int:
        """For how many ns the second was over when the first began."""
        return self.first.start - self.second.end if self.second else 0

    def __str__(self) -> str:
        rows = [(name, text) for name, text in self._rows() if text]
        body = "\n".join(f"  {name:9}{text}" for name, text in rows)
        return f"{self.kind}: {self.problem}{self._times()}\n{body}"

    def _repr_markdown_(self) -> str:
        rows = "\n".join(f"| {name.strip()} | {_markdown(text)} |" for name, text in self._rows() if text)
        return f"**{self.kind}**: {_markdown(self.problem)}{self._times()}\n\n| | |\n|---|---|\n{rows}\n"

    def _repr_html_(self) -> str:
        cells = "".join(
            f'<tr><td style="vertical-align:top"><b>{name.strip()}</b></td>'
            f'<td style="text-align:left;white-space:pre-wrap">{escape(text)}</td></tr>'
            for name, text in self._rows()
            if text
        )
        return f"<p><b>{self.kind}</b>: {escape(self.problem + self._times())}</p><table>{cells}</table>"

    def _times(self) -> str:
        if self.count == 1 and not self.batches:
            return ""
        times = "once" if self.count == 1 else f"{self.count:,} times"
        more = ", …" if self.count > len(self.batches) else ""
        place = f", in batch{'es' if len(self.batches) > 1 else ''} {', '.join(map(str, self.batches))}{more}"
        return f" ({times}{place if self.batches else ''})"

    def _rows(self) -> list[tuple[str, str]]:
        sides = [("first" if self.second else "where", str(self.first)), ("", code(self.first.source))]
        if self.second is not None:
            sides += [("then", str(self.second)), ("", code(self.second.source)), ("together", self._together())]
        return [*sides, ("missing", self.missing), ("fix", self.fix), ("on a GPU", self.shows), ("rule", self.rule)]

    def _together(self) -> str:
        if self.first.start < 0 or self.second is None or self.second.start < 0:
            return ""
        if self.overlap:
            return f"for {words.duration(self.overlap)} in this run"
        if self.second.end <= self.first.start:
            return f"the wrong way round in this run: the second was over {words.duration(self._inverted)} too early"
        return "not in this run: they came apart by luck, nothing keeps them apart"


class Hazards(Sequence[Hazard]):
    """The hazards of a recording, in the order in which they were met; prints as a report."""

    def __init__(self, hazards: Sequence[Hazard] = ()) -> None:
        self._hazards = tuple(hazards)

    @overload
    def __getitem__(self, index: int) -> Hazard: ...
    @overload
    def __getitem__(self, index: slice) -> Hazards: ...
    def __getitem__(self, index: int | slice) -> Hazard | Hazards:
        found = self._hazards[index]
        return Hazards(found) if isinstance(found, tuple) else found

    def __len__(self) -> int:
        return len(self._hazards)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, (Hazards, list, tuple)) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._hazards)

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self._hazards)) or "no hazards"

    def _repr_markdown_(self) -> str:
        return "\n\n".join(hazard._repr_markdown_() for hazard in self._hazards) or "no hazards"


def stream_words(number: int | None) -> str:
    """Return "stream 13", "stream 7 (default)", or "the host" for None."""
    return "the host" if number is None else f"stream {number}{' (default)' if number == 7 else ''}"


def short(source: str) -> str:
    """Return "train.py:31" for "/home/me/train.py:31"; "an unknown line" for ""."""
    return source.replace("\\", "/").rsplit("/", 1)[-1] or "an unknown line"


def code(source: str) -> str:
    """Return "train.py:31  loss = model(images)": the line itself, where the file can be read."""
    file, _, number = source.rpartition(":")
    text = linecache.getline(file, int(number)).strip() if number.isdigit() else ""
    return f"{short(source)}  {text}" if text else short(source) if source else ""


def _markdown(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")
