"""Break it: every card looks right on a lucky day, the detector says what it is, and points follow the votes."""

import pytest

from loaderviz.workshop import ExerciseError, break_it, exercises, suspects
from loaderviz.workshop.lessons.lesson05 import try_out

from .answers import forgotten_wait, hands_out_nothing
from .conftest import cell


@pytest.mark.slow
@pytest.mark.parametrize("change", break_it.CHANGES, ids=" ".join)
def test_a_card_looks_right_and_has_at_most_one_kind_of_race(change):
    source = break_it.source_of(*change)
    lucky = try_out(exercises.function_of(source, vars(suspects)), like=suspects.LOADERS[change[0]], copies="eager")
    assert all(lucky.right)
    trial = break_it.SuspectCard(1, change[0], source).trial
    assert len({hazard.kind for hazard in trial.hazards}) <= 1


def test_the_cards_have_every_kind_and_tell_nothing_before_an_answer():
    cards = [break_it.SuspectCard(1, name, break_it.source_of(name, *change)) for name, *change in break_it.CHANGES]
    assert {break_it.found(card.trial) for card in cards} == set(break_it.KINDS)
    dealt = break_it.deal(seed=3)
    assert [card.code.code for card in break_it.deal(seed=3)] == [card.code.code for card in dealt]
    assert len({card.code.code for card in dealt}) == len(dealt)
    assert repr(break_it.points(dealt)).startswith("0 of 0 answers right")
    right, wrong = dealt[:2]
    right.choose(break_it.found(right.trial))
    wrong.choose(next(kind for kind in break_it.KINDS if kind != break_it.found(wrong.trial)))
    said = repr(break_it.points(dealt))
    assert said.startswith("1 of 2 answers right") and said.count("✔") == said.count("✘") == 1
    assert break_it.found(wrong.trial) in said


def test_a_room_gives_the_pair_the_wrong_votes_and_itself_the_right_ones():
    room = break_it.Room()
    assert "taken" in repr(room.hand_in("Ada", forgotten_wait))
    room.hand_in("Bo", suspects.loader_b)
    room.vote("Ada", {"early-read": 2, "nothing": 5})
    room.vote("Bo", {"early-reuse": 7})
    table = room.judge()
    assert table["the detector"].to_dict() == {"Ada": "early-read", "Bo": "nothing"}
    assert table["points of the pair"].to_dict() == {"Ada": 5, "Bo": 0}  # nothing broken: no point
    assert table["points of the room"].to_dict() == {"Ada": 2, "Bo": 0}
    for name, votes in (("Cy", {}), ("Ada", {"late-read": 1})):
        with pytest.raises(ExerciseError, match="there is no"):
            room.vote(name, votes)


def test_what_looks_wrong_is_not_taken():
    wrong = cell("def load(batches):\n    for x, y in batches:\n        yield x.to('cuda') + 1, y.to('cuda')\n")
    with pytest.raises(ExerciseError, match="16 batches of 16 have wrong numbers"):
        break_it.Room().hand_in("Ada", wrong)
    with pytest.raises(Exception, match="a batch is a pair"):
        break_it.Room().hand_in("Bo", hands_out_nothing)
