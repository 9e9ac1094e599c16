"""What a learner touches: exercises, what a check says, predictions.

An exercise is a hole with a measured target. Any design that meets the target passes; code is never compared.
"""

from __future__ import annotations

import ast
import inspect
import json
import linecache
import math
import numbers
import random
import re
import secrets
import signal
import sys
import sysconfig
import textwrap
import threading
import time
import tomllib
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from loaderviz import words
from loaderviz.errors import LoadervizError, NotModelledError
from loaderviz.timeline import Timeline
from loaderviz.view import View
from loaderviz.widgets.cells import live_here, show

FOLDER = Path(__file__).parent
TEXTS = json.loads((FOLDER / "exercises.json").read_text(encoding="utf-8"))
# What exercises ask, by their numbers, and what is said of answers, by keys: in English, and in other languages.
ASKED, SAID = (tomllib.loads((FOLDER / name).read_text(encoding="utf-8")) for name in ("exercises.toml", "texts.toml"))


def say(key: str, **values: object) -> str:
    """Return a text of texts.toml with its values, in the learner's language.

    >>> say("in-line", line=7)
    ' in line 7 of your code'
    """
    text: str = words.in_language(SAID[key])
    return text.format(**values)


def counted(number: int, noun: str) -> str:
    """Return how many in the learner's language: "1 worker", "2 workers"; `noun` is a key of texts.toml."""
    said = say(noun)
    return words.count(number, noun) if said == noun else f"{number:,} {said}"


def function_of(source: str, names: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the function of a piece of source, as if a learner had typed it: reports quote its lines."""
    file, place = f"<card {abs(hash(source))}>", {**names, "__name__": "a card"}
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), place)
    found: Callable[..., Any] = [value for value in place.values() if getattr(value, "__module__", "") == "a card"][-1]
    return found


def shipped(number: str, part: Literal["starter", "answer"] = "answer") -> Callable[..., Any]:
    """Return the function of an exercise's starter or answer."""
    return function_of("\n".join(TEXTS[number][part]), {"torch": torch})


class ExerciseError(LoadervizError, ValueError):
    """What a lesson was asked for cannot be had; the message says why, and what there is."""


Measure = Callable[[Any, random.Random], "Score"]
# Called as `rooms.heard` with what came of a check ("check"), or what was chosen of a prediction ("vote").
LISTENERS: list[Callable[..., object]] = []


def tell(kind: str, about: str, outcome: str, **more: Any) -> None:
    """Tell all listeners of a check or a choice."""
    for listener in LISTENERS:
        listener(kind, about, outcome, **more)


class Exercise:
    """One exercise: what exercises.toml has under its number, and `measure(answer, chance)`, which runs the learner's
    object and returns a `Score`, or raises `NotYet`; what it draws at random it draws from `chance`.

    `name` is what the learner types, such as "lesson03.overlap"; `title`, which begins with the number, `task`,
    `target` and `hints` are in the learner's language; `arguments` are the names of what the learner's function is
    called with. `starter` and `answer` are Python source.
    """

    asks = 1  # how often `solution()` only asks whether it shall be shown
    title = property(lambda self: f"{self.number} {self._asked('title')}")
    task = property(lambda self: self._asked("task"))
    target = property(lambda self: self._asked("target"))
    hints = property(lambda self: self._asked("hints"))

    def __init__(self, number: str, measure: Measure, name: str = "") -> None:
        self.number, self.measure = number, measure
        self.name = f"{measure.__module__.rpartition('.')[2]}.{name or measure.__name__}"
        asked, code = ASKED[number], TEXTS.get(number, {})
        self.starter, self.answer = (asked.get(part) or "\n".join([*code[part], ""]) for part in ("starter", "answer"))
        given = [node.args.args for node in ast.parse(self.starter).body if isinstance(node, ast.FunctionDef)]
        self.arguments = [argument.arg for argument in given[-1]]
        self.last: Outcome | None = None
        self.tells: dict[str, Any] = {}  # what else a check tells: `ns` of a race, `name`
        self._next_hint = self._asked_for = 0
        self._tries, self._begun = 0, math.inf

    def __repr__(self) -> str:
        self._begin()
        return say("exercise", title=self.title, task=self.task, target=self.target, name=self.name)

    def _begin(self) -> None:
        self._begun = min(self._begun, time.monotonic())

    def _asked(self, part: str) -> Any:
        asked, known = words.in_language(ASKED[self.number])[part], self.measure.__globals__
        return asked.format_map(known) if isinstance(asked, str) else [text.format_map(known) for text in asked]

    def _repr_markdown_(self) -> str:
        self._begin()
        title, target = say("exercise-title", title=self.title), say("exercise-target", target=self.target)
        return boxed(title, self.task, target, say("helps", name=self.name))

    def check(self, answer: Any = None, *, seed: int | None = None) -> Outcome:
        """Run the learner's object on fresh data and return the `Outcome`. The object's own errors are caught.

        `seed` draws the data of a former check again; what a check says that is not passed ends with its seed.
        """
        seed = secrets.randbits(32) if seed is None else seed
        self._begin()
        with warnings.catch_warnings(action="ignore"):  # what the run would warn of (hazards) is in the outcome
            try:
                self.last = self._judge(answer, seed)
            except Exception as fault:
                fault.add_note(f"a fault of the check; again: {self.name}.check(..., seed={seed})")
                raise
        self._tries += self.last.status != "not attempted"
        tell("check", self.number, self.last.status, minutes=(time.monotonic() - self._begun) / 60, **self.tells)
        return self.last

    def hint(self, number: int | None = None) -> Note:
        """Return the next hint, or hint `number` (from 1)."""
        last = len(self.hints)
        number = min(self._next_hint + 1, last) if number is None else number
        if not 1 <= number <= last:
            raise ValueError(say("no-hint", number=number, last=last))
        self._next_hint = max(self._next_hint, number)
        after = say("last-hint" if number == last else "next-hint", name=self.name)
        return Note(say("hint", number=number, last=last, hint=self.hints[number - 1], after=after))

    def solution(self) -> Note:
        """Return the code of one solution. There are others: whatever meets the target is right.

        Until the exercise is passed the first call only asks whether it shall be shown: a second one shows it.
        """
        self._asked_for += 1
        if self._asked_for > self.asks or (self.last is not None and self.last.passed):
            return Note(say("solution", number=self.number), self.answer)
        left = counted(len(self.hints) - self._next_hint, "unread hint")
        return Note(
            say("solution-asks", number=self.number, tries=counted(self._tries, "try"), left=left, name=self.name)
        )

    def show(self) -> View | Note:
        """Return the picture of the last check; its score, where that has none.

        Raises `ExerciseError` before the first check.
        """
        if (last := self.last) is None:
            raise ExerciseError(say("nothing-checked", name=self.name))
        if last.timeline is None:
            return Note(f"{last.title} · {say(last.status)} · {last.score or last.message}\n\n{say('no-picture')}")
        short = f"{say('exercise-number', number=self.number)} · {say(last.status)}"
        long = f"{short} · {last.score}"  # what the check said beyond one line stands below the check
        return last.timeline.view(title=long if last.score and len(long) <= TITLE_LETTERS else short)

    def _judge(self, answer: Any, seed: int) -> Outcome:
        nothing = answer is None or answer is ...
        if nothing or is_unchanged(answer, self.starter):
            return self._not_attempted(say("nothing-given" if nothing else "as-given"))
        again = say("again", name=self.name, seed=seed)
        try:
            self._must_be_callable(answer)
            score = self.measure(answer, random.Random(seed))
        except Crashed as problem:
            return Outcome("crashed", self.title, say("not-run", problem=problem))
        except (NotYet, Theirs, NotModelledError) as problem:  # the last: in a thread of theirs, and they went on
            if hole := left_open(answer):
                return self._not_attempted(say("hole", hole=hole))
            error = _refused_before(problem) or (problem.error if isinstance(problem, Theirs) else problem)
            if not isinstance(error, NotYet):
                return self._crashed(error, again)
            more = say("stuck", name=self.name, again=again)
            return Outcome("not yet", self.title, error.fact, error.rule, "", error.score, more, error.timeline)
        return Outcome("passed", self.title, say("well-done"), score=score.text, timeline=score.timeline)

    def _must_be_callable(self, answer: Any) -> None:
        call = f"{self.name}.check(your_function)"
        if not callable(answer):
            raise Crashed(say("no-function", kind=type(answer).__name__, call=call))
        name = getattr(answer, "__name__", "")
        if line := _Broken.line_of(name):
            raise Crashed(say("not-compiled", name=name, line=line))
        try:
            signature = inspect.signature(answer)
        except (TypeError, ValueError):  # a builtin without one
            return
        try:
            signature.bind(*self.arguments)
        except TypeError:
            called = f"{name or 'it'}({', '.join(self.arguments)})"
            raise Crashed(say("other-arguments", call=called, signature=signature)) from None

    def _crashed(self, error: BaseException, again: str) -> Outcome:
        line, said = line_of(error), f"{type(error).__name__}: {str(error).strip() or say('no-message')}"
        if isinstance(error, NameError) and error.name == BLANK:
            return self._not_attempted(say("blank", blank=BLANK, line=line or say("your-code")))
        message = say("endless", seconds=SECONDS) if isinstance(error, Endless) else say("stopped", said=said)
        if isinstance(error.__cause__, StopIteration):
            line = line_of(error.__cause__)
            message = say("at-the-end")
        elif IN_WORKER in said:
            theirs = [found for found in FRAME.findall(said) if is_theirs(found[0])]
            line = _line(theirs[-1][1], theirs[-1][2].strip()) if theirs else line
            last = said.strip().splitlines()[-1]
            message = say("cuda-in-worker" if "in forked subprocess" in last else "stopped-in-worker", said=last)
        more = say("repair", what=say("this-line" if line else "it"), again=again)
        return Outcome("crashed", self.title, message, line=line, following=more)

    def _not_attempted(self, why: str) -> Outcome:
        return Outcome("not attempted", self.title, sentence(why), following=say("write-your-own", name=self.name))


def sentence(text: str) -> str:
    """Return a text with a capital and one full stop."""
    return say("sentence", text=f"{text[:1].upper()}{text[1:].rstrip('.。')}")


def check_of(number: str) -> Callable[[Measure], Exercise]:
    """Make the exercise with this number of the function that measures an answer."""
    return lambda measure: Exercise(number, measure)


def _refused_before(problem: BaseException) -> NotModelledError | None:
    """Return what the emulated GPU refused to another thread, if that led to `problem`: it is its first cause."""
    while before := problem.__cause__ or problem.__context__:
        problem = before
    return problem if isinstance(problem, NotModelledError) else None


# What a check says

Status = Literal["passed", "not attempted", "not yet", "crashed"]
SIGNS: dict[Status, str] = {"passed": "✔", "not attempted": "○", "not yet": "△", "crashed": "✘"}
TITLE_LETTERS = 115  # in a notebook beside an open file browser


class NotYet(Exception):
    """Raised by a check: the target is not met. `fact` says what was seen, `rule` why it is so."""

    def __init__(self, fact: str, rule: str = "", score: str = "", timeline: Timeline | None = None) -> None:
        super().__init__(fact)
        self.fact, self.rule, self.score, self.timeline = fact, rule, score, timeline


class Crashed(Exception):
    """Raised by a check: the learner's code cannot be run as it is; the message says why."""


class Theirs(Exception):
    """Raised by a check: the learner's code stopped with `error`."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class Endless(BaseException):
    """Raised in the learner's code, at the line where it is, when it has worked for `SECONDS`.

    No `Exception`: a loop that catches all of those has no end, either.
    """


def number_of(returned: Any, wanted: str, timeline: Timeline) -> float:
    """Return what the learner's function returned as a float; raise `NotYet`, which says `wanted`, for no number."""
    if isinstance(returned, torch.Tensor) and returned.ndim == 0 and returned.device.type == "cpu":
        returned = returned.item()
    if isinstance(returned, bool) or not isinstance(returned, numbers.Real):
        raise NotYet(say(wanted, returned=returned), "", "", timeline)
    return float(returned)


SECONDS = 20.0  # of processor time that one call of the learner's code may take; none takes more than a few


@contextmanager
def learners_code() -> Iterator[None]:
    """Around a call of the learner's code: an error in here is theirs, an error elsewhere is a fault of the check.

    A call without an end is stopped after `SECONDS`; not on Windows and not beside the main thread, which have no such
    timer.
    """
    try:
        with _timed():
            yield
    except (NotYet, Crashed):
        raise
    except (Exception, SystemExit, Endless) as error:
        raise Theirs(error) from error


@contextmanager
def _timed() -> Iterator[None]:
    """Raise `Endless` when the block has used `SECONDS` of processor time, and again each second until it ends.

    Python drops what is raised while an object is finalised: that is not told, the next second has the next one.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise Endless

    def dropped(told: Any) -> None:
        if told.exc_type is not Endless:
            as_before(told)

    as_before, sys.unraisablehook = sys.unraisablehook, dropped
    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        sys.unraisablehook = as_before


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
        return self.status == "passed"

    def __repr__(self) -> str:
        headline = f"{SIGNS[self.status]} {say(self.status).upper()} · {self.title}"
        line = say("in-your-code", line=self.line) if self.line else ""
        rule = say("rule", rule=self.rule) if self.rule else ""
        return "\n  ".join(filter(None, (headline, self.message, line, rule, self.score, self.following)))

    def _repr_markdown_(self) -> str:
        headline = f"**{SIGNS[self.status]} {say(self.status).capitalize()}** · {words.markdown(self.title)}"
        line = say("in-your-code", line=f"`{self.line}`") if self.line else ""
        rule = say("rule-marked", rule=words.markdown(self.rule)) if self.rule else ""
        parts = (
            headline,
            words.markdown(self.message),
            line,
            rule,
            words.markdown(self.score),
            words.markdown(self.following),
        )
        return boxed(*filter(None, parts))


@dataclass(frozen=True, repr=False)
class Note:
    """A hint or a solution: text, and code where there is some."""

    text: str
    code: str = ""

    def __repr__(self) -> str:
        return f"{self.text}\n\n{self.code}".strip()

    def _repr_markdown_(self) -> str:
        code = f"\n\n```python\n{self.code.strip()}\n```" if self.code else ""
        return boxed(words.markdown(self.text)) + code


def as_text(rows: Sequence[Sequence[str]]) -> str:
    """Return a table, of which the first row has the heads, in columns."""
    return "\n".join(words.aligned(rows, "<" * len(rows[0])))


def as_markdown(rows: Sequence[Sequence[str]], sides: str) -> str:
    """Return the same in Markdown; `sides` has a letter for each column, l or r."""
    rule = ["---:" if side == "r" else "---" for side in sides]
    return "\n".join(f"| {' | '.join(row)} |" for row in [rows[0], rule, *rows[1:]])


def boxed(*paragraphs: str) -> str:
    """Return Markdown paragraphs as one block with a line at its side, which every front end can draw."""
    return "\n".join(f"> {line}".rstrip() for line in "\n\n".join(paragraphs).splitlines())


# Is there a hole left in the learner's code, and where did it go wrong? Nothing else is ever read in it.

BLANK = "____"
IN_WORKER = "in DataLoader worker process"
FRAME = re.compile(r'File "([^"]+)", line (\d+), in .*\n(?!\s*File)(.*)')  # of a traceback: file, line, its text
_NOT_THEIRS = tuple(
    str(path) for path in (Path(torch.__file__).parent, Path(__file__).parents[1], sysconfig.get_path("stdlib"))
)


def left_open(answer: Any) -> str:
    """Return the first line with a placeholder (`...` or `____`) in it, as "line 4: `...`"; "" if there is none."""
    source, tree, first = _parsed(answer)
    subscripts = (node.slice for node in ast.walk(tree) if isinstance(node, ast.Subscript))
    indices = {id(part) for index in subscripts for part in ast.walk(index)}  # x[..., 0] is no hole
    lines = [
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.Constant) and node.value is ... and id(node) not in indices)
        or (isinstance(node, ast.Name) and node.id == BLANK and id(node) not in indices)
    ]
    if not lines:
        return ""
    code = source.splitlines()[min(lines) - 1].split("#")[0].strip()
    return _line(first + min(lines) - 1, f"`{code}`")


def is_unchanged(answer: Any, starter: str) -> bool:
    """Tell whether `answer` is the starter as it was given out (comments, spaces and docstrings aside)."""
    mine = _parsed(answer)[1].body
    return bool(mine) and any(_without_words(mine[0]) == _without_words(node) for node in ast.parse(starter).body)


def _without_words(node: ast.stmt) -> str:
    """Return what a statement does, as text; the docstring of a function is in the language of the lesson."""
    if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
        return f"{node.name} {ast.dump(node.args)} {[ast.dump(each) for each in node.body[1:]]}"
    return ast.dump(node)


def line_of(error: BaseException) -> str:
    """Return the last line of the learner's own code that the error passed through; "" if there is none."""
    theirs = [frame for frame in traceback.extract_tb(error.__traceback__) if is_theirs(frame.filename)]
    if not theirs:
        return ""
    return _line(theirs[-1].lineno, (theirs[-1].line or "").strip())


def _line(number: object, code: str) -> str:
    return say("line" if code else "line-number", number=number, code=code)


def is_theirs(file: str) -> bool:
    """Tell whether a file (or notebook cell) is neither Python's, nor torch's, nor ours."""
    return not file.startswith((*_NOT_THEIRS, "<frozen"))


def _parsed(answer: Any) -> tuple[str, ast.Module, int]:
    """Return the source of a function or class, or of an object's class, and the number of its first line.

    Without source ("") where Python cannot find it, or it is no statement, as a lambda in the middle of a call.
    """
    while hasattr(answer, "func") and callable(answer.func):  # functools.partial
        answer = answer.func
    if not (inspect.isroutine(answer) or inspect.isclass(answer)):
        answer = type(answer)
    try:
        lines, first = inspect.getsourcelines(answer)
        source = textwrap.dedent("".join(lines))
        return source, ast.parse(source), max(1, first)
    except (OSError, TypeError, SyntaxError):
        return "", ast.Module([], []), 1


# CUDA outside of a recording, typed into a cell: say what to do, and not that torch was not compiled for it

NO_CUDA = re.compile("not compiled with CUDA|no NVIDIA driver|No CUDA GPUs")


def explain_cuda(shell: Any) -> None:
    """Let an IPython shell say in two lines what a call of CUDA outside of a recording needs."""

    def shown(shell: Any, kind: type[BaseException], error: BaseException, trace: Any, tb_offset: Any = None) -> None:
        if not NO_CUDA.search(str(error)):
            shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
            return
        where = line_of(error) or say("this-cell")
        print(say("cuda-outside", where=where), file=sys.stderr)

    shell.set_custom_exc((AssertionError, RuntimeError), shown)


class _Broken:
    """The last cell that Python could not compile: what it defines is what an earlier cell left."""

    cell, line = "", ""

    @classmethod
    def ran(cls, result: Any) -> None:
        """IPython ran a cell, or could not."""
        cell, error = result.info.raw_cell or "", result.error_before_exec
        if isinstance(error, SyntaxError):
            cls.cell, cls.line = cell, _line(error.lineno or 1, (error.text or "").strip())
        elif any(name in _DEFINED.findall(cell) for name in _DEFINED.findall(cls.cell)):
            cls.cell = ""

    @classmethod
    def line_of(cls, name: str) -> str:
        """Return the line that is no Python, if it is in a cell that would have defined `name`; else ""."""
        return cls.line if name in _DEFINED.findall(cls.cell) else ""


_DEFINED = re.compile(r"^(?:def|class) +(\w+)", re.M)


def follow(shell: Any) -> None:
    """Let an IPython shell tell what its cells do that the checks cannot see."""
    explain_cuda(shell)
    shell.events.register("post_run_cell", _Broken.ran)


if shell := getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)():
    follow(shell)


# Predictions: the learner says what will happen before the cell runs; afterwards the answer stands beside it.

# As HTML a prediction stands in for its buttons: a notebook that is opened without its kernel has nothing else.
STANDS_IN = (
    "<style>.jp-OutputArea:has(.lv-choices) .jp-OutputArea-child:has(.lv-prediction),"
    ".jp-OutputArea:has(.lv-prediction):not(:has(.lv-choices)) .jp-OutputArea-child:has(> .jupyter-widgets)"
    "{display:none}</style>"
)
Answer = str | int | Callable[[], Any]


class Prediction:
    """A question, its choices, what the learner said (`choice`), and the answer.

    `answer` is one of the choices, its number (from 1), or a function without arguments that returns either; the
    function is called by `reveal()`, so it can look at what ran meanwhile. `why` is a sentence shown with the answer.
    Raises `ExerciseError` for fewer than two choices or an answer that is none of them.

    >>> guess = predict("Can a GPU copy and compute at the same time?", ["yes", "no"], answer="yes")
    >>> guess.choose("yes").reveal()
    Can a GPU copy and compute at the same time?
    <BLANKLINE>
    You said: yes. The answer: yes. ✔ Right!
    """

    asks = 1  # how often `reveal()` without a choice asks for one before it gives the answer
    label = "predict"  # the key of what stands before the question

    def __init__(self, question: str, choices: Sequence[str], answer: Answer, why: str = "") -> None:
        self.question, self.choices, self.why = str(question), tuple(map(str, choices)), str(why)
        if len(self.choices) < 2:
            raise ExerciseError(say("two-choices", choices=list(self.choices)))
        if len(set(self.choices)) != len(self.choices):
            raise ExerciseError(say("equal-choices", choices=list(self.choices)))
        self._answer = answer
        if not callable(answer):
            self._one_of(answer, "answer")
        self.choice: str | None = None
        self._asked = 0
        self._widget: Any = None
        self._shown: Any = None

    def choose(self, choice: str | int) -> Prediction:
        """Say what will happen: a choice, or its number from 1. It can be changed until `reveal()`."""
        self.choice = self._one_of(choice, "choose()")
        self._tell()
        if self._widget is not None:
            self._widget.set_trait("choice", self.choices.index(self.choice))
            self._widget.set_trait("said", self._said())
        if self._shown is not None:  # so that the notebook has it when it is saved
            self._shown.update(self._repr_mimebundle_(), raw=True)
        return self

    def _tell(self) -> None:
        tell("vote", self.question, f"{self.choices.index(self.choice or '') + 1}. {self.choice}")

    def reveal(self) -> Note:
        """Return what was said beside the answer. Without a choice: the first time, ask for one.

        Raises `ExerciseError` if the answer is none of the choices.
        """
        if self.choice is None and self._asked < self.asks:
            self._asked += 1
            rows = [f"{number}. {text}" for number, text in enumerate(self.choices, 1)]
            return Note("\n\n".join([say("expect", question=self.question), *rows, say("how-to-choose")]))
        key = "no-prediction" if self.choice is None else "right" if self.right else "wrong"
        said = say(key, choice=self.choice, right=self._right_one())
        return Note("\n\n".join(part for part in (self.question, said, self.why) if part))

    @property
    def right(self) -> bool:
        """Whether what was said is the answer."""
        return self.choice == self._right_one()

    def _right_one(self) -> str:
        return self._one_of(self._answer() if callable(self._answer) else self._answer, say("the-answer"))

    def __repr__(self) -> str:
        chosen = (">" if text == self.choice else " " for text in self.choices)
        rows = [f"  {sign} {number}. {self.choices[number - 1]}" for number, sign in enumerate(chosen, 1)]
        return "\n".join([f"{say(self.label)} {self.question}", *rows, self._by_hand()])

    def _by_hand(self) -> str:
        return say("by-hand")

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {"text/plain": repr(self), "text/html": self._html()}

    def _ipython_display_(self) -> None:
        from IPython.display import display

        self._shown = display(self._repr_mimebundle_(), raw=True, display_id=f"prediction-{id(self)}")
        show(self.widget())

    def widget(self) -> Any:
        """Return the buttons (made once, so that what was said survives a second display); None without them."""
        kernel = hasattr(getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)(), "kernel")
        if self._widget is None and kernel and live_here():  # without a kernel nobody would hear the buttons
            from loaderviz.widgets.controls import Choices

            texts, at = [*map(words.html, self.choices)], self.choices.index(self.choice) if self.choice else -1
            asked = f"<b>{say(self.label)}</b> {words.html(self.question)}"
            self._widget = Choices(question=asked, choices=texts, choice=at, said=self._said())
            self._widget.observe(lambda change: self.choose(change["new"] + 1), names="choice")
        return self._widget

    def _said(self) -> str:
        if self.choice is None:
            return say("choose-one")
        return say("chosen", choice=f"<b>{words.html(self.choice)}</b>")

    def _html(self) -> str:
        texts = (words.html(text) + f" <b>{say('said-this')}</b>" * (text == self.choice) for text in self.choices)
        rows = "".join(f"<li>{text}</li>" for text in texts)
        asked = f"<p><b>{say(self.label)}</b> {words.html(self.question)}</p><ol>{rows}</ol>"
        return f'<div class="lv-prediction">{asked}<p>{words.html(self._by_hand())}</p></div>{STANDS_IN}'

    def _one_of(self, value: Any, what: str) -> str:
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= len(self.choices):
            return self.choices[value - 1]
        if isinstance(value, str) and value in self.choices:
            return value
        choices, last = list(self.choices), len(self.choices)
        raise ExerciseError(say("no-choice", what=what, value=value, choices=choices, last=last))


predict = Prediction  # what a lesson calls
