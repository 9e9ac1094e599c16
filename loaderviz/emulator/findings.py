"""Hazard: one thing that is wrong (or costs time) in a recorded program, with both sides, the cure, and how it shows.

for hazard in recording.hazards:      # races: wrong on a real GPU, now and then
    print(hazard)
for finding in recording.findings:    # right, but slower than it could be
    print(finding.line)
"""

from __future__ import annotations

import linecache
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import overload

from loaderviz import words
from loaderviz.errors import LoadervizError

RACES = ("early-read", "early-reuse", "early-refill", "early-host-read")
FINDINGS = ("wait-on-nothing", "hidden-sync", "stream-per-epoch", "needless-wait")

UNSEEN = "a write that torch does not see (by numpy, or in a data set)"  # known only by the bytes that changed
RULES = {  # what a report says of its rule; docs/instructor.md has all of them
    "R7": "a copy from pageable memory is staged by the host",
    "R11": "a copy into pageable memory returns when it is done",
    "R15": "PyTorch has 32 side streams, which are handed out in turn",
    "R16": "a stream is a queue; between streams there is no order, unless one waits for an event of the other",
    "R32": '`.to("cpu", non_blocking=True)` gives memory that is not filled yet',
    "R35": "freed memory goes back at once to the stream that it was taken in",
    "R36": "`record_stream`, or a wait, keeps it from being used again too early",
    "R42": "nothing keeps the host from writing into a pinned buffer during a copy",
}
PLAIN = {"aten::_local_scalar_dense": ".item()"}  # operators that nobody knows by their own name
LABEL, WIDTH = 12, 110  # columns of a printed report


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
            return f"{self.operator} changes {self.tensor}; it was noticed at this line"
        name = f"{PLAIN[self.operator]} ({self.operator})" if self.operator in PLAIN else self.operator
        what = f"{name} {'writes' if self.writes else 'reads'} {self.tensor}" if self.dtype else name
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
        lines = []
        for name, text, source in self._rows():
            lines += textwrap.wrap(
                f"{name:{LABEL - 2}}{text}", WIDTH, initial_indent="  ", subsequent_indent=" " * LABEL,
                break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip
            lines += [" " * LABEL + source] if source else []
        return "\n".join([f"{self.kind}: {self.problem}{self._times()}", *lines])

    def _repr_markdown_(self) -> str:
        rows = "\n".join(
            f"| {name} | {_markdown(text)}{f'<br>{_markdown(_marked(source))}' if source else ''} |"
            for name, text, source in self._rows()
        )
        return f"**{self.kind}**: {_markdown(self.problem)}{self._times()}\n\n| | |\n|---|---|\n{rows}\n"

    def _repr_html_(self) -> str:
        cells = "".join(
            f'<tr><td style="vertical-align:top;white-space:nowrap"><b>{name}</b></td><td style="text-align:left">'
            f"{_html(text)}{f'<br>{_html(_marked(source))}' if source else ''}</td></tr>"
            for name, text, source in self._rows()
        )
        return f"<p><b>{self.kind}</b>: {_html(self.problem + self._times())}</p><table>{cells}</table>"

    def _times(self) -> str:
        if self.count == 1 and not self.batches:
            return ""
        times = "once" if self.count == 1 else f"{self.count:,} times"
        more = ", …" if self.count > len(self.batches) else ""
        place = f", in batch{'es' if len(self.batches) > 1 else ''} {', '.join(map(str, self.batches))}{more}"
        return f" ({times}{place if self.batches else ''})"

    def _rows(self) -> list[tuple[str, str, str]]:
        """Return (label, words, line of code); what there is nothing to say about is left out."""
        rows = [("first" if self.second else "where", str(self.first), code(self.first.source))]
        if self.second is not None:
            rows += [("then", str(self.second), code(self.second.source)), ("same time", self._together(), "")]
        told = "; ".join(RULES[rule] for rule in self.rule.split(", ") if rule in RULES)
        rule = f"{self.rule}: {told}" if told else self.rule
        rows += [("missing", self.missing, ""), ("fix", self.fix, ""), ("on a GPU", self.shows, ""), ("rule", rule, "")]
        return [row for row in rows if row[1]]

    def _together(self) -> str:
        if self.first.start < 0 or self.second is None or self.second.start < 0:
            return ""
        if self.overlap:
            return f"for {words.duration(self.overlap)} in this run"
        if self.second.end <= self.first.start:
            early = words.duration(self._inverted)
            return f"no, the wrong way round: the second was over {early} before the first began"
        return "not in this run, but only by luck: nothing keeps them apart"


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
    """Return "train.py:31" for "/home/me/train.py:31", "In[6]:2" for a line of a notebook cell that ran as number 6;
    "an unknown line" for ""."""
    return words.place(source).replace("\\", "/").rsplit("/", 1)[-1] or "an unknown line"


def code(source: str) -> str:
    """Return "train.py:31  loss = model(images)": the line itself, where the file can be read."""
    file, _, number = source.rpartition(":")
    text = linecache.getline(file, int(number)).strip() if number.isdigit() else ""
    return f"{short(source)}  {text}" if text else short(source) if source else ""


def _marked(line: str) -> str:
    """Put the code of "train.py:31  loss = model(images)" between backticks; a line with backticks stays as it is."""
    place, _, text = line.partition("  ")
    return f"{place} `{text}`" if text and "`" not in text else line


def _markdown(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")


def _html(text: str) -> str:
    """Escape text, and set what stands between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
