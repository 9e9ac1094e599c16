"""What is wrong in an emulated program, and what is right but useless or slow: Hazards and Lints, and how they read.

happens_before.py  what is certain to be over when something else begins: vector clocks; who touched each byte last
between_threads.py the same where the program has several threads: what each knows of the others' work
races.py           two accesses that nothing orders: a Hazard
lints.py           waits for nothing, waits without need, hidden synchronisation: a Lint
texts.toml         their words: what is wrong, the missing order, the line to add
"""

from __future__ import annotations

import functools
import linecache
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import TypeVar

from loaderviz import words
from loaderviz.errors import LoadervizError
from loaderviz.rules import RULES

UNSEEN = "a write that torch does not see (by numpy, or in a data set)"  # known only by the bytes that changed
PLAIN = {"aten::_local_scalar_dense": ".item()"}  # operators that nobody knows by their own name
LABEL = 12  # columns of a printed report


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

    @property
    def line(self) -> str:
        """The program line that did it, as "train.py:31"."""
        return short(self.source)

    def __str__(self) -> str:
        if self.operator == UNSEEN:
            return f"{self.operator} changes {self.tensor}; it was noticed at this line"
        name = f"{PLAIN[self.operator]} ({self.operator})" if self.operator in PLAIN else self.operator
        what = f"{name} {'writes' if self.writes else 'reads'} {self.tensor}" if self.dtype else name
        batch = f", batch {self.batch}" if self.batch >= 0 else ""
        when = f", from {words.duration(self.start)} to {words.duration(self.end)}" if self.start >= 0 else ""
        return f"{what}{batch}, on {self.place}{when}"


@dataclass(frozen=True, repr=False)
class Report:
    """What hazards and lints have in common.

    `first` and `second` are the two sides in the order of the program (a lint has only the first); `problem` says in a
    sentence what is wrong, `missing` which order nothing ensures, `fix` the line to add and where, `shows` how it is
    seen on a real GPU. It was met `count` times, first in `batches`. `rule` is the rule of CUDA or PyTorch behind it.
    `edge` is the missing order in a few words, for the picture.
    """

    kind: str
    first: Access
    second: Access | None
    rule: str
    problem: str
    fix: str
    shows: str
    missing: str = ""
    edge: str = ""
    count: int = 1
    batches: tuple[int, ...] = ()

    @property
    def line(self) -> str:
        """The report in one line: kind, file and line, problem."""
        return f"{self.kind} at {(self.second or self.first).line}: {self.problem}"

    @property
    def overlap(self) -> int:
        """For how many ns both sides ran at the same time."""
        if self.second is None or self.first.start < 0 or self.second.start < 0:
            return 0
        return max(0, min(self.first.end, self.second.end) - max(self.first.start, self.second.start))

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.problem}{self._times()}"]
        for name, text, source in self._rows():
            lines += [words.wrapped(text, f"  {name:{LABEL - 2}}", LABEL), *([" " * LABEL + source] if source else [])]
        return "\n".join(lines)

    __repr__ = __str__  # what a notebook or a prompt shows, without the folders of this machine

    def _repr_html_(self) -> str:
        cells = ""
        for name, text, source in self._rows():
            place, _, line = source.partition("  ")
            told = f"{place} `{line}`" if line and "`" not in line else source
            cells += f'<tr><td style="vertical-align:top;white-space:nowrap"><b>{name}</b></td>'
            cells += f'<td style="text-align:left">{words.html(text)}{told and "<br>"}{words.html(told)}</td></tr>'
        return f"<p><b>{self.kind}</b>: {words.html(self.problem + self._times())}</p><table>{cells}</table>"

    def _times(self) -> str:
        if self.count == 1 and not self.batches:
            return ""
        times = "once" if self.count == 1 else f"{self.count:,} times"
        more = ", …" if self.count > len(self.batches) else ""
        place = f", in batch{'es' if len(self.batches) > 1 else ''} {', '.join(map(str, self.batches))}{more}"
        return f" ({times}{place if self.batches else ''})"

    def _rows(self) -> list[tuple[str, str, str]]:
        """Return (label, words, line of code); what there is nothing to say about is left out."""
        rules = (f"{name}: {RULES[name].statement.removesuffix('.')}" for name in self.rule.split(", "))
        rows = [
            ("first" if self.second else "where", str(self.first), code(self.first.source)),
            ("then", str(self.second or ""), code(self.second.source) if self.second else ""),
            ("same time", self._together(), ""),
            ("missing", self.missing, ""),
            ("fix", self.fix, ""),
            ("on a GPU", self.shows, ""),
            ("rule", "; ".join(rules), ""),
        ]
        return [row for row in rows if row[1]]

    def _together(self) -> str:
        if self.first.start < 0 or self.second is None or self.second.start < 0:
            return ""
        if self.overlap:
            return f"for {words.duration(self.overlap)} in this run"
        if self.second.end <= self.first.start:
            early = words.duration(self.first.start - self.second.end)
            return f"no, the wrong way round: the second was over {early} before the first began"
        return "not in this run, but only by luck: nothing keeps them apart"


class Hazard(Report):
    """A race: two accesses of the same bytes that nothing orders. `kind` is its heading in texts.toml."""


class Lint(Report):
    """What is right, but useless or slow: wait-on-nothing, needless-wait, hidden-sync, stream-per-epoch."""


AnyReport = TypeVar("AnyReport", Hazard, Lint)


class Reports(list[AnyReport]):
    """The hazards or the lints of a recording, in the order in which they were met; prints as a report."""

    none = "nothing to report"

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self)) or self.none

    def _repr_html_(self) -> str:
        return "".join(report._repr_html_() for report in self) or f"<p>{self.none}</p>"


class Hazards(Reports[Hazard]):
    """The races of a recording."""

    none = "no hazards"


class Lints(Reports[Lint]):
    """What is right, but useless or slow in a recording."""

    none = "no lints"


# The texts


@functools.cache
def texts() -> dict[str, dict[str, str]]:
    """What the reports of each case say, with places for what differs: `rule`, `problem`, `missing`, `fix`, …"""
    own = tomllib.loads(files(__package__).joinpath("texts.toml").read_text(encoding="utf-8"))
    texts = {case: {**own.get(text.get("like"), {}), **text} for case, text in own.items()}
    return {case: {name: words for name, words in text.items() if name != "like"} for case, text in texts.items()}


def lint_of(case: str, at: Access, count: int, **values: object) -> Lint:
    """Return the report of a lint at the line of an access; `values` are what the text of its case has places for."""
    said = {name: text.format(at=at, **values) for name, text in texts()[case].items()}
    return Lint(case.split(",")[0], at, None, count=count, batches=(at.batch,) if at.batch >= 0 else (), **said)


def stream_words(number: int | None) -> str:
    """Return "stream 13", "stream 7 (default)", or "the host" for None."""
    return "the host" if number is None else f"stream {number}{' (default)' if number == 7 else ''}"


def short(source: str) -> str:
    """Return "train.py:31" for its whole path, "In[6]:2" for a cell's line, "an unknown line" for ""."""
    return words.place(source) or "an unknown line"


def code(source: str) -> str:
    """Return "train.py:31  loss = model(images)": the line itself, where the file can be read."""
    file, _, number = source.rpartition(":")
    text = linecache.getline(file, int(number)).strip() if number.isdigit() else ""
    return f"{short(source)}  {text}" if text else short(source) if source else ""
