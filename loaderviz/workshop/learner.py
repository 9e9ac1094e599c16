"""How far a learner is in all lessons, and questions of earlier ones, drawn of what was missed.

workshop.progress()   # a bar of all exercises, of the rows in the learner's own file
workshop.recall(3)    # two questions of lessons 0 to 2; an answer is judged at once, and kept in the same file
"""

from __future__ import annotations

import random
import secrets
import tomllib
from collections.abc import Sequence
from typing import Any

from loaderviz import words
from loaderviz.workshop import rooms
from loaderviz.workshop.exercises import (
    ASKED,
    FOLDER,
    SIGNS,
    ExerciseError,
    Note,
    Prediction,
    say,
    tell,
)
from loaderviz.workshop.rooms import Row

QUESTIONS: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "recall.toml").read_text(encoding="utf-8"))
NUMBERS = [number for number in ASKED if number[0].isdigit()]
LOOKS = {  # background and text of a cell, in light and dark notebooks
    "passed": "#1e7d4c;color:#fff", "not yet": "#ffd166;color:#1d1d1d", "crashed": "#b3261e;color:#fff",
    "not attempted": "#8c8c8c;color:#000", "": "#8c8c8c40",
}  # fmt: skip
SHOWN = {"": "·", **{str(status): sign for status, sign in SIGNS.items()}}
CELL = "display:inline-block;width:1.5em;height:1.5em;line-height:1.5em;margin:1px;text-align:center;border-radius:3px"
LESSON = "display:inline-block;margin:0 10px 4px 0;white-space:nowrap"
ASKS = 2  # questions that `recall` draws


def lesson_of(number: str) -> int:
    """Return the lesson of an exercise, by its number.

    >>> lesson_of("11.0")
    11
    """
    return int(number.partition(".")[0])


class Progress:
    """What was passed, by the rows of a learner's own file. In a notebook it is a bar that needs no script."""

    def __init__(self, rows: Sequence[Row], notes: Sequence[str] = ()) -> None:
        self.notes, self.outcomes = list(notes), dict[str, str]()
        for row in rows:
            if row.kind == "check" and row.about in NUMBERS and self.outcomes.get(row.about) != "passed":
                self.outcomes[row.about] = row.outcome

    @property
    def passed(self) -> list[str]:
        """The numbers of the exercises that were passed."""
        return [number for number in NUMBERS if self.outcomes.get(number) == "passed"]

    def _lessons(self) -> dict[str, list[str]]:
        lessons = dict.fromkeys(map(lesson_of, NUMBERS))
        return {str(lesson): [each for each in NUMBERS if lesson_of(each) == lesson] for lesson in lessons}

    def _said(self) -> list[str]:
        following = [number for number in NUMBERS if number not in self.passed][:1]
        titles = [f"{number} {words.in_language(ASKED[number])['title']}" for number in following]
        done = say("progress-said", passed=len(self.passed), all=len(NUMBERS))
        return [done, *(say("progress-next", title=title) for title in titles), *self.notes]

    def __repr__(self) -> str:
        rows = [f"{n[0]}: {' '.join(f'{each} {self._sign(each)}' for each in n[1])}" for n in self._lessons().items()]
        return "\n".join([*self._said(), *rows])

    def _repr_html_(self) -> str:
        lessons = []
        for lesson, numbers in self._lessons().items():
            cells = "".join(map(self._cell, numbers))
            lessons.append(f'<span style="{LESSON}">{say("lesson", number=lesson)} {cells}</span>')
        said = words.html(say("space").join(self._said()))
        return f'<div class="lv-progress"><div>{" ".join(lessons)}</div><div>{said}</div></div>'

    def _cell(self, number: str) -> str:
        outcome = self.outcomes.get(number, "")
        title = f"{number} {words.in_language(ASKED[number])['title']}: {say(outcome) if outcome else say('no-try')}"
        looks = f"{CELL};background-color:{LOOKS[outcome]}"
        return f'<span title="{words.html(title)}" style="{looks}">{self._sign(number)}</span>'

    def _sign(self, number: str) -> str:
        return SHOWN[self.outcomes.get(number, "")]


def progress() -> Progress:
    """Return how far this learner is, by the file that `LOADERVIZ_PROGRESS` names, else one in the data folder."""
    if (own := rooms.own_file()) is None:
        return Progress([], [say("progress-off", variable=rooms.OWN)])
    return Progress([], [problem]) if (problem := rooms.keep(None)) else Progress(*rooms.read(own))


# Recall


class Recalled(Prediction):
    """One question, for a lesson after the one that explains it. What is chosen first is judged, and kept."""

    label, _told = "recall-label", False

    def __init__(self, key: str, lesson: int, chance: random.Random) -> None:
        asked = QUESTIONS[key]
        texts = words.in_language(asked)
        right, choices = texts["choices"][asked["answer"] - 1], chance.sample(texts["choices"], len(texts["choices"]))
        rule = f" ({asked['rule']})" if "rule" in asked else ""
        super().__init__(texts["question"], choices, right, texts["why"] + rule)
        self.key, self.lesson = key, lesson

    def _tell(self) -> None:
        if not self._told:
            tell("recall", self.key, "right" if self.right else "wrong")
        self._told = True

    def verdict(self) -> str:
        """Return whether the choice is right, and why; "" before there is one."""
        if self.choice is None:
            return ""
        return say("recall-right" if self.right else "recall-wrong", right=self._right_one(), why=self.why)

    def _said(self) -> str:
        return words.html(self.verdict()) or super()._said()

    def _by_hand(self) -> str:
        return self.verdict() or say("recall-by-hand", lesson=self.lesson)


class Recall:
    """Two questions of earlier lessons; `choose(2, 1)` answers both where there are no buttons."""

    def __init__(self, questions: Sequence[Recalled]) -> None:
        self.questions = list(questions)

    @property
    def answered(self) -> bool:
        """Whether all of them are."""
        return all(each.choice is not None for each in self.questions)

    def choose(self, *choices: str | int) -> Note:
        """Answer the questions in their order, each by a choice or its number from 1; return what is right, and why."""
        for question, choice in zip(self.questions, choices, strict=False):
            question.choose(choice)
        return Note("\n\n".join(filter(None, (question.verdict() for question in self.questions))))

    def __repr__(self) -> str:
        return "\n\n".join([say("recall-head"), *map(repr, self.questions)])

    def _ipython_display_(self) -> None:
        from IPython.display import Markdown, display

        display(progress(), Markdown(f"**{say('recall-head')}**"))
        for question in self.questions:
            question._ipython_display_()


_drawn: dict[int, Recall] = {}  # of this kernel, until they are answered


def recall(lesson: int | str, seed: int | None = None) -> Recall | Note:
    """Return two questions of the lessons before this one: first what was answered wrong last time, then what is new.

    The same two until both are answered, then others. `seed` draws them anew, in the same way each time. Raises
    `ExerciseError` for what is no number of a lesson.
    """
    number = int(lesson) if isinstance(lesson, (int, str)) and str(lesson).isdecimal() else -1
    if not 0 <= number <= 99:
        raise ExerciseError(say("no-lesson", lesson=words.one_line(repr(lesson), 60)))
    if seed is None and number in _drawn and not _drawn[number].answered:
        return _drawn[number]
    chance = random.Random(secrets.randbits(32) if seed is None else seed)
    own = rooms.own_file()
    keys = drawn(number, rooms.read(own)[0] if own else [], chance)
    if not keys:
        return Note(say("recall-none"))
    _drawn[number] = Recall([Recalled(key, number, chance) for key in keys])
    return _drawn[number]


def drawn(lesson: int, rows: Sequence[Row], chance: random.Random) -> list[str]:
    """Return the keys of questions of earlier lessons: those that were missed; new ones of lessons in which a check is
    not passed; other new ones; last those that were right, the oldest first. Among equals chance decides.
    """
    last = {row.about: (place, row.outcome) for place, row in enumerate(rows) if row.kind == "recall"}
    hard = {lesson_of(number) for number, outcome in Progress(rows).outcomes.items() if outcome != "passed"}

    def rank(key: str) -> tuple[int, int, float]:
        place, outcome = last.get(key, (0, ""))
        at = {"wrong": 0, "": 1 if QUESTIONS[key]["lesson"] in hard else 2, "right": 3}[outcome]
        return at, place if at == 3 else 0, chance.random()

    return sorted((key for key, asked in QUESTIONS.items() if asked["lesson"] < lesson), key=rank)[:ASKS]
