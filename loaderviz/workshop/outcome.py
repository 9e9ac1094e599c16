"""What a check says: four outcomes, each with a face for the terminal and one for the notebook.

passed          the target is met; `score` is the line to be proud of
not attempted   the hole is still there
not yet         it runs, and something is missing: a fact from the learner's own timeline, and the rule behind it
crashed         the learner's code raised an error; `line` is where
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

from loaderviz.timeline import Timeline

Status = Literal["passed", "not attempted", "not yet", "crashed"]
PASSED: Status = "passed"
NOT_ATTEMPTED: Status = "not attempted"
NOT_YET: Status = "not yet"
CRASHED: Status = "crashed"
SIGNS: dict[Status, str] = {PASSED: "✔", NOT_ATTEMPTED: "○", NOT_YET: "△", CRASHED: "✘"}
TITLE_LETTERS = 115  # in a notebook beside an open file browser
NO_PICTURE = "There is no picture: no code of yours has run to its end."


class NotYet(Exception):
    """Raised by a check: the target is not met. `fact` says what was seen, `rule` why it is so."""

    def __init__(self, fact: str, rule: str = "", score: str = "", timeline: Timeline | None = None) -> None:
        super().__init__(fact)
        self.fact, self.rule, self.score, self.timeline = fact, rule, score, timeline

    def with_score(self, score: str) -> NotYet:
        """Return it with the line of numbers."""
        self.score = score
        return self


class Crashed(Exception):
    """Raised by a check: the learner's code cannot be run as it is; the message says why."""


class Theirs(Exception):
    """Raised by a check: the learner's code stopped with `error`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def learners_code() -> Iterator[None]:
    """Around a call of the learner's code: an error in here is theirs, an error elsewhere is a fault of the check."""
    try:
        yield
    except (NotYet, Crashed):
        raise
    except Exception as error:
        raise Theirs(error) from error


@dataclass(frozen=True)
class Score:
    """What a check returns when the target is met: one line with the numbers, and the run it comes from."""

    text: str
    timeline: Timeline | None = None


@dataclass(frozen=True, repr=False)
class Outcome:
    """The result of `Exercise.check`. `timeline` is the learner's run, None where it did not get that far."""

    status: Status
    title: str
    message: str
    rule: str = ""
    line: str = ""
    score: str = ""
    following: str = ""
    timeline: Timeline | None = None

    @property
    def passed(self) -> bool:
        """Whether the target is met."""
        return self.status == PASSED

    @property
    def parts(self) -> list[str]:
        """The lines below the headline, without the empty ones."""
        rule = f"Rule: {self.rule}" if self.rule else ""
        line = f"In your code: {self.line}" if self.line else ""
        return [part for part in (self.message, line, rule, self.score, self.following) if part]

    def __repr__(self) -> str:
        return "\n  ".join([f"{SIGNS[self.status]} {self.status.upper()} · {self.title}", *self.parts])

    def _repr_markdown_(self) -> str:
        headline = f"**{SIGNS[self.status]} {self.status.capitalize()}** · {_plain(self.title)}"
        line = f"In your code: `{self.line}`" if self.line else ""
        rule = f"*Rule:* {_plain(self.rule)}" if self.rule else ""
        parts = (headline, _plain(self.message), line, rule, _plain(self.score), _plain(self.following))
        return boxed(*(part for part in parts if part))


@dataclass(frozen=True, repr=False)
class Note:
    """A hint or a solution: text, and code where there is some."""

    text: str
    code: str = ""

    def __repr__(self) -> str:
        return f"{self.text}\n\n{self.code}".strip()

    def _repr_markdown_(self) -> str:
        code = f"\n\n```python\n{self.code.strip()}\n```" if self.code else ""
        return boxed(_plain(self.text)) + code


class Picture:
    """The timeline of the last check under its score line; `figure` is the plotly figure."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome

    @property
    def headline(self) -> str:
        """The score line, or what the check said."""
        score = self.outcome.score or self.outcome.message
        return f"{self.outcome.title} · {self.outcome.status} · {score}"

    @property
    def figure(self) -> Any:
        """The timeline as a plotly figure; None if the run did not get that far."""
        if self.outcome.timeline is None:
            return None
        return self.outcome.timeline.figure(color="batch", title=escape(self._title(), quote=False))

    def _title(self) -> str:
        """Return what fits into one line above the picture; what the check said beyond it stands below the check."""
        short = f"Exercise {self.outcome.title.partition(' ')[0]} · {self.outcome.status}"
        long = f"{short} · {self.outcome.score}"
        return long if self.outcome.score and len(long) <= TITLE_LETTERS else short

    def __repr__(self) -> str:
        if self.outcome.timeline is None:
            return f"{self.headline}\n{NO_PICTURE}"
        from loaderviz import draw

        return f"{self.headline}\n{draw.text(self.outcome.timeline)}"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        if self.outcome.timeline is None:
            return {"text/plain": repr(self), "text/markdown": boxed(_plain(self.headline), NO_PICTURE)}
        from loaderviz.draw.single import bundle_of

        return bundle_of(self.figure, repr(self))


def boxed(*paragraphs: str) -> str:
    """Return Markdown paragraphs as one block with a line at its side, which every front end can draw."""
    return "\n".join(f"> {line}".rstrip() for line in "\n\n".join(paragraphs).splitlines())


def _plain(text: str) -> str:
    """Keep Markdown from reading names such as `record_stream` or `a * b` as emphasis, outside of code marks."""
    pieces = text.split("`")
    pieces[::2] = [piece.replace("*", "\\*").replace("_", "\\_").replace("<", "&lt;") for piece in pieces[::2]]
    return "`".join(pieces)
