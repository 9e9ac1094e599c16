"""Break it, the game of lesson 5: break a prefetcher so that it looks right; the others vote, the detector judges.

room = break_it.Room()
room.hand_in("Ada and Bo", their_loader)          # taken if a lucky day shows right numbers
room.vote("Ada and Bo", {"early-read": 3, "nothing": 5})
room.judge()                                      # what it was, and the points
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from loaderviz.workshop.exercises import ExerciseError, Note, Prediction, counted, function_of, say
from loaderviz.workshop.lessons import suspects
from loaderviz.workshop.lessons.lesson05 import Trial, try_out

NOTHING = "nothing"
# The answers of a card: kinds of hazards. What each would look like on a GPU is in texts.toml.
KINDS = ("early-read", "early-reuse", "early-refill", "early-host-read", NOTHING)

# A loader of the lesson, and a piece of its code with what comes in its place; nothing: that line is left out.
CHANGES = (
    ("B", "", ""),
    ("B", "used[slot].wait()", ""),
    ("B", "used[slot - 1].record()", ""),
    ("B", "main.wait_event(arrived)", ""),
    ("B", "main.wait_event(arrived)", "side.wait_event(arrived)"),
    ("B", "arrived = side.record_event()", "arrived = main.record_event()"),
    ("C", "ready = [copies]", "ready = [claim(copies, main)]"),
    ("C", "ready = [copies]", "ready = [claim(copies, side)]"),
    ("C", "maxlen=4", "maxlen=8"),
    ("D", "side.wait_event(copied)", "copied.synchronize()"),
    ("D", "side.wait_event(copied)", "copied.query()"),
    ("D", "side.wait_event(copied)", "main.wait_event(copied)"),
    ("E", "", ""),
    ("E", "main.wait_event(arrived)", "main.wait_stream(main)"),
    ("F", "arrived.synchronize()", "side.synchronize()"),
    ("F", "arrived.synchronize()", "main.synchronize()"),
    ("F", "", ""),
)


def found(trial: Trial) -> str:
    """Return the kind of the first race of a trial, or NOTHING."""
    return trial.hazards[0].kind if trial.hazards else NOTHING


# Alone


class SuspectCard(Prediction):
    """A loader; say which race is in it. `code` shows it."""

    def __init__(self, number: int, name: str, source: str) -> None:
        super().__init__(say("card-asks", number=number), list(KINDS), lambda: found(self.trial))
        self.code, self._name = Note(say("card", number=number), source), name

    @property
    def trial(self) -> Trial:
        """What the detector sees in it."""
        return _tried(self._name, self.code.code)


@lru_cache(maxsize=len(CHANGES))
def _tried(name: str, source: str) -> Trial:
    return try_out(function_of(source, vars(suspects)), like=suspects.LOADERS[name])


def source_of(name: str, piece: str, instead: str) -> str:
    """Return the source of a suspect with a piece of it changed, under a name and a docstring that say nothing."""
    head, _, body = inspect.getsource(suspects.LOADERS[name]).partition('"""\n')
    lines = [f'def loader(batches):\n    """{head.rpartition(chr(34) * 3)[2]}"""', *body.splitlines()]
    if not piece:
        return "\n".join(lines)
    (at,) = (number for number, line in enumerate(lines) if piece in line)
    lines[at : at + 1] = [lines[at].partition("  #")[0].replace(piece, instead)] if instead else []
    return "\n".join(lines)


def deal(seed: int) -> list[SuspectCard]:
    """Return five cards, not two of the same code; another seed deals others."""
    chosen = random.Random(seed).sample(CHANGES, 5)
    return [SuspectCard(number, name, source_of(name, *change)) for number, (name, *change) in enumerate(chosen, 1)]


def points(cards: Sequence[SuspectCard]) -> Note:
    """Return how many of the cards were named rightly, and what was in each that got an answer."""
    said = [card for card in cards if card.choice is not None]
    right, answers = sum(card.right for card in said), counted(len(said), "answer")
    lines = [say("cards-right", right=right, answers=answers, cards=len(cards))]
    for card in said:
        kind = found(card.trial)
        lines.append(say("card-was", sign="✔" if card.right else "✘", card=card.code.text, kind=kind, means=say(kind)))
    return Note("\n\n".join(lines))


# In a room


@dataclass
class Entry:
    """A loader that was handed in, as it was tried, and how many said what of it."""

    trial: Trial
    votes: dict[str, int] = field(default_factory=dict)


@dataclass
class Room:
    """What the pairs handed in, by their names. A wrong vote is a point for the pair, a right one for the room."""

    entries: dict[str, Entry] = field(default_factory=dict)

    def hand_in(self, name: str, loader: Callable[..., Any]) -> Note:
        """Take a loader for batches in pinned memory, if it looks right. What the detector says is not told yet.

        Raises `ExerciseError` if on a lucky day, where the bytes of a copy arrive at once, a number is wrong.
        """
        lucky = try_out(loader, copies="eager")
        if wrong := lucky.right.count(False):
            raise ExerciseError(say("looks-wrong", name=name, wrong=counted(wrong, "batch"), all=len(lucky.right)))
        self.entries[name] = Entry(try_out(loader))
        return Note(say("taken", name=name, count=len(lucky.right)))

    def vote(self, name: str, votes: Mapping[str, int]) -> None:
        """Note how many say which kind. Raises `ExerciseError` for a name or a kind that there is not."""
        for what, known in (({name}, self.entries), (set(votes), KINDS)):
            if unknown := what - set(known):
                there_is = ", ".join(known) or say("none-there")
                raise ExerciseError(say("no-vote", unknown=sorted(unknown)[0], known=there_is))
        self.entries[name].votes = dict(votes)

    def judge(self) -> Any:
        """Return a pandas table: for each pair what the detector found, and the points. Nothing broken: no point."""
        import pandas as pd

        rows: dict[str, dict[str, object]] = {}
        for name, entry in self.entries.items():
            kind = found(entry.trial)
            right, cast = entry.votes.get(kind, 0), sum(entry.votes.values())
            votes, pair = say("some-of-all", some=right, all=cast), 0 if kind == NOTHING else cast - right
            heads = map(say, ("the detector", "right votes", "points of the pair", "points of the room"))
            rows[name] = dict(zip(heads, (kind, votes, pair, right), strict=True))
        return pd.DataFrame(rows.values(), index=list(rows))
