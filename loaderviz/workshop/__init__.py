"""Exercises that check themselves, on an emulated GPU: a hole, a measured target, and facts from your own timeline.

    from loaderviz.workshop import lesson03
    lesson03.overlap                       # the task and its target
    lesson03.overlap.check(my_loader)      # passed, not attempted, not yet, or crashed
    lesson03.overlap.hint()

`EXERCISES` has them all by number ("3.1"), `predict` asks before a cell runs, `capstone.race` is the last one.
"""

from __future__ import annotations

from loaderviz.workshop import capstone, lesson00, lesson01, lesson02, lesson03, lesson04, lesson05, lesson06, lesson07
from loaderviz.workshop.exercise import Exercise
from loaderviz.workshop.leaderboard import Leaderboard
from loaderviz.workshop.outcome import Note, Outcome
from loaderviz.workshop.predict import Prediction, predict

EXERCISES: dict[str, Exercise] = {
    exercise.number: exercise
    for module in (lesson00, lesson01, lesson02, lesson03, lesson04, lesson05, lesson06, lesson07, capstone)
    for exercise in module.EXERCISES
}

__all__ = [
    "EXERCISES", "Exercise", "Leaderboard", "Note", "Outcome", "Prediction", "capstone", "lesson00", "lesson01",
    "lesson02", "lesson03", "lesson04", "lesson05", "lesson06", "lesson07", "predict",
]  # fmt: skip
