"""Exercise: a hole with a measured target. Any design that meets the target passes; code is never compared.

lesson03.overlap.check(my_loader)   # passed, not attempted, not yet (with a fact), crashed
lesson03.overlap.hint()             # one hint after the other
lesson03.overlap.solution()         # the code of one way to do it
lesson03.overlap.show()             # the picture of the last check, with its score
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from loaderviz.errors import LoadervizError
from loaderviz.workshop import holes
from loaderviz.workshop.outcome import (
    CRASHED,
    NOT_ATTEMPTED,
    NOT_YET,
    PASSED,
    Crashed,
    Note,
    NotYet,
    Outcome,
    Picture,
    Score,
    Theirs,
    boxed,
)


class NothingCheckedError(LoadervizError, RuntimeError):
    """The picture of a check was asked for before there was one."""


class Exercise:
    """One exercise. `measure` runs the learner's object and returns a `Score`, or raises `NotYet`.

    `name` is what the learner types, such as "lesson03.overlap"; `task` and `target` are shown in the notebook;
    `starter` and `answer` are Python source, `arguments` the names of what the learner's function is called with.
    """

    def __init__(
        self, number: str, name: str, title: str, *, task: str, target: str, starter: str, answer: str,
        hints: Sequence[str], measure: Callable[[Any], Score] | None = None, arguments: Sequence[str] = ("batches",),
    ) -> None:  # fmt: skip
        self.number, self.name, self.title = number, name, f"{number} {title}"
        self.task, self.target = task, target
        self.starter, self.answer, self.hints = starter.strip() + "\n", answer.strip() + "\n", tuple(hints)
        self._measure, self._arguments = measure, tuple(arguments)
        self._next_hint = 0
        self.last: Outcome | None = None

    def __repr__(self) -> str:
        return f"{self.title}\n  Task: {self.task}\n  Target: {self.target}\n  Check it: {self.name}.check(...)"

    def _repr_markdown_(self) -> str:
        helps = f"`{self.name}.hint()` gives a hint, `{self.name}.solution()` shows one way to do it."
        return boxed(f"**Exercise {self.title}**", self.task, f"*Target:* {self.target}", helps)

    def check(self, answer: Any = None) -> Outcome:
        """Run the learner's object on fresh data and return the `Outcome`. The object's own errors are caught."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the run would warn of (hazards) is in the outcome
            self.last = self._judge(answer)
        return self.last

    def hint(self, number: int | None = None) -> Note:
        """Return the next hint, or hint `number` (from 1)."""
        if number is None:
            number = min(self._next_hint + 1, len(self.hints))
        if not 1 <= number <= len(self.hints):
            raise ValueError(f"hint({number}): this exercise has the hints 1 to {len(self.hints)}")
        self._next_hint = max(self._next_hint, number)
        after = (
            f"Next hint: `{self.name}.hint()`"
            if number < len(self.hints)
            else f"This was the last hint. `{self.name}.solution()` shows one way to do it."
        )
        return Note(f"Hint {number} of {len(self.hints)}: {self.hints[number - 1]}\n\n{after}")

    def solution(self) -> Note:
        """Return the code of one solution. There are others: whatever meets the target is right."""
        return Note(f"One way to do exercise {self.number}. Any other that meets the target is as good.", self.answer)

    def show(self) -> Picture:
        """Return the picture and the score line of the last check. Raises `NothingCheckedError` before the first."""
        if self.last is None:
            raise NothingCheckedError(f"nothing was checked yet: call {self.name}.check(...) first, then show()")
        return Picture(self.last)

    def measure(self, answer: Any) -> Score:
        """Run the learner's object; return the score, or raise `NotYet` with a fact."""
        if self._measure is None:
            raise NotImplementedError(f"{self.name} has no way to measure an answer")
        return self._measure(answer)

    def _judge(self, answer: Any) -> Outcome:
        nothing = answer is None or answer is ...
        if nothing or holes.is_unchanged(answer, self.starter):
            return self._not_attempted("nothing was given to check" if nothing else "this is the code as it was given")
        try:
            self._callable(answer)
            score = self.measure(answer)
        except NotYet as problem:
            if hole := holes.left_open(answer):
                return self._not_attempted(f"there is still a hole in {hole}")
            more = f"Stuck? `{self.name}.hint()`"
            return Outcome(
                NOT_YET, self.title, problem.fact, problem.rule, "", problem.score, more, problem.timeline
            )  # fmt: skip
        except Crashed as problem:
            return Outcome(CRASHED, self.title, f"Your code could not be run: {problem}")
        except Theirs as problem:
            return self._crashed(problem.error, answer)
        return Outcome(PASSED, self.title, "Well done.", score=score.text, timeline=score.timeline)

    def _callable(self, answer: Any) -> None:
        call = f"{self.name}.check(your_function)"
        if not callable(answer):
            raise Crashed(
                f"it is a {type(answer).__name__}, not a function. Give the function without calling it: {call}"
            )
        try:
            signature = inspect.signature(answer)
        except (TypeError, ValueError):  # a builtin without one
            return
        try:
            signature.bind(*self._arguments)
        except TypeError:
            raise Crashed(
                f"the check calls your function as {getattr(answer, '__name__', 'it')}({', '.join(self._arguments)}), "
                f"but it takes {signature}. Keep the arguments of the starter."
            ) from None

    def _crashed(self, problem: Exception, answer: Any) -> Outcome:
        if hole := holes.left_open(answer):
            return self._not_attempted(f"there is still a hole in {hole}")
        line = holes.line_of(problem)
        if isinstance(problem, NameError) and problem.name == holes.BLANK:
            return self._not_attempted(f"there is still a {holes.BLANK} in {line or 'your code'}")
        text = str(problem).strip() or "no message"
        message = f"Your code stopped with an error. It says: {type(problem).__name__}: {text}"
        return Outcome(
            CRASHED,
            self.title,
            message,
            line=line,
            following=f"Repair {'this line' if line else 'it'}, then check again.",
        )

    def _not_attempted(self, why: str) -> Outcome:
        following = f"Write your own, run its cell, then check again. `{self.name}.hint()` helps."
        return Outcome(NOT_ATTEMPTED, self.title, f"{why[:1].upper()}{why[1:]}.", following=following)
