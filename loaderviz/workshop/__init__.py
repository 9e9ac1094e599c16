"""Exercises that check themselves, on an emulated GPU: a hole, a measured target, and facts from your own timeline.

    from loaderviz.workshop import lesson03
    lesson03.overlap                       # the task and its target
    lesson03.overlap.check(my_loader)      # passed, not attempted, not yet, or crashed
    lesson03.overlap.hint()

`exercise("3.1")` finds one by its number, `EXERCISES` has them all; `predict` asks before a cell runs, `capstone.race`
is the last one.
"""

from __future__ import annotations

from loaderviz.imports import fork_workers
from loaderviz.workshop import articles, break_it
from loaderviz.workshop.exercises import Exercise, ExerciseError, Note, Outcome, Prediction, predict, say
from loaderviz.workshop.learner import progress, recall
from loaderviz.workshop.lessons import (
    capstone,
    claims,
    lesson00,
    lesson01,
    lesson02,
    lesson03,
    lesson04,
    lesson05,
    lesson06,
    lesson07,
    lesson11,
    suspects,
)
from loaderviz.workshop.lessons.capstone import Leaderboard
from loaderviz.workshop.rooms import room

fork_workers()

_CORE = lesson00, lesson01, lesson02, lesson03, lesson04, lesson05, lesson06, lesson07
_LESSONS = *_CORE, capstone, claims, lesson11
EXERCISES = {each.number: each for lesson in _LESSONS for each in vars(lesson).values() if isinstance(each, Exercise)}


def exercise(number: str) -> Exercise:
    """Return an exercise by its number. Raises `ExerciseError` for a number that none has.

    >>> exercise("3.1").title
    '3.1 Copy under the work'
    """
    if number not in EXERCISES:
        raise ExerciseError(say("no-exercise", number=number, known=say("comma").join(EXERCISES)))
    return EXERCISES[number]


__all__ = [
    "EXERCISES",
    "Exercise",
    "ExerciseError",
    "Leaderboard",
    "Note",
    "Outcome",
    "Prediction",
    "articles",
    "break_it",
    "capstone",
    "claims",
    "exercise",
    "lesson00",
    "lesson01",
    "lesson02",
    "lesson03",
    "lesson04",
    "lesson05",
    "lesson06",
    "lesson07",
    "lesson11",
    "predict",
    "progress",
    "recall",
    "room",
    "suspects",
]
