"""A test before and after the course: five questions about pictures that no lesson shows, and two loaders to repair.

Everything is computed: the answers come from the same measures as the advice and the checks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from loaderviz.metrics import summarize
from loaderviz.timeline import Timeline
from loaderviz.workshop import harness
from loaderviz.workshop.exercises import Exercise, Note, Prediction, Score, say
from loaderviz.workshop.harness import Data, FeedConfig, feed
from loaderviz.workshop.lessons import lesson06, lesson07


class Question(Prediction):
    """A question about a timeline; `picture` draws it."""

    def __init__(self, timeline: Timeline, question: str, choices: Sequence[str], answer: str) -> None:
        super().__init__(question, choices, answer)
        self.timeline = timeline

    @property
    def picture(self) -> Any:
        """The timeline as a picture that says nothing of the answer."""
        return self.timeline.view(title=say("see"), verdict=False)


def questions(seed: int) -> list[Question]:
    """Return the five questions; another seed makes other timelines with other answers."""
    chance = random.Random(seed)
    return [make(chance) for make in (_cause, _hidden, _overlap, _workers, _bytes)]


def score(asked: Sequence[Question]) -> Note:
    """Return how many of the questions were answered, and how many answers are right."""
    said, right = sum(each.choice is not None for each in asked), sum(each.right for each in asked)
    return Note(say("quiz-score", right=right, all=len(asked), said=said))


def _cause(chance: random.Random) -> Question:
    cause = chance.choice(lesson07.CAUSES)
    timeline = lesson07.training(cause, chance.getrandbits(32))
    choices = [*map(say, ("cause-data", "cause-copy", "cause-stream", "none-of-it"))]
    return Question(timeline, say("which-cause"), choices, choices[lesson07.CAUSES.index(cause)])


def _hidden(chance: random.Random) -> Question:
    make = chance.choice((lesson07.one_after_the_other, lesson07.beside_kernels))
    timeline = make(chance)
    share = summarize(timeline).overlap or 0
    choices = [*map(say, ("none-of-it", "part-of-it", "all-of-it"))]
    return Question(timeline, say("how-much-hidden"), choices, choices[(share > 0) + (share > 0.99)])


def _overlap(chance: random.Random) -> Question:
    timeline = chance.choice((lesson07.one_after_the_other, lesson07.beside_kernels))(chance)
    summary = summarize(timeline)
    gain = summary.window / max(summary.copy, summary.compute)
    choices = [*map(say, ("little-gain", "some-gain", "much-gain"))]
    return Question(timeline, say("how-much-gain"), choices, choices[(gain > 1.3) + (gain > 1.6)])


def _workers(chance: random.Random) -> Question:
    enough = chance.randrange(2, 6)
    case = lesson06.case("compute", enough, chance)
    _, timeline = case.run(1)
    return Question(timeline, say("how-many-workers", costs=case), [str(number) for number in range(1, 8)], str(enough))


def _bytes(chance: random.Random) -> Question:
    cause = chance.choice(("pageable copy", "one stream"))
    timeline = lesson07.training(cause, chance.getrandbits(32))
    choices = [*map(say, ("by-host", "by-gpu", "by-nobody"))]
    staged = summarize(timeline).host_blocked.get("staging", 0) > 0
    return Question(timeline, say("who-carries"), choices, choices[0 if staged else 1])


# For home


def _repaired(answer: Callable[..., Any], chance: random.Random) -> Score:
    data = Data.random([harness.SAMPLES] * 32, chance)
    run = feed(answer, data, FeedConfig(host=harness.FAST_HOST))
    run.must_be_right()
    run.must_not_be_far_ahead(4)
    return run.must_take(run.limit(), 1.1)


repair_g, repair_h = (Exercise(f"Q.{letter}", _repaired, f"repair_{letter.lower()}") for letter in "GH")
loader_g, loader_h = repair_g.starter, repair_h.starter
