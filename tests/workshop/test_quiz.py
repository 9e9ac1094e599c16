"""The quiz: its answers are computed, differ from seed to seed, and stand in no picture; its two loaders look right."""

import pytest

from loaderviz.workshop import quiz

from .conftest import cell

SEEDS = range(8)


@pytest.fixture(scope="module")
def asked():
    return {seed: quiz.questions(seed) for seed in SEEDS}


def answer(question):
    return question._right_one()


def test_five_questions_whose_answers_change_with_the_seed(asked):
    assert all(len(some) == 5 for some in asked.values())
    for place in range(5):
        assert len({answer(some[place]) for some in asked.values()}) > 1, place
    again = quiz.questions(3)
    assert [(answer(one), one.timeline) for one in again] == [(answer(one), one.timeline) for one in asked[3]]


def test_the_score_counts_what_is_right():
    some = quiz.questions(1)
    assert "0 of 5 right; 0 were answered" in repr(quiz.score(some))
    for each in some[:3]:
        each.choose(answer(each))
    some[3].choose(next(choice for choice in some[3].choices if choice != answer(some[3])))
    assert "3 of 5 right; 4 were answered" in repr(quiz.score(some))


def test_no_picture_says_its_answer(asked):
    for each in asked[0]:
        assert answer(each) not in each.picture.heading


@pytest.mark.parametrize("letter", "gh")
def test_the_loaders_for_home_are_wrong_and_their_answers_are_right(letter):
    exercise = getattr(quiz, f"repair_{letter}")
    assert exercise.check(cell(exercise.answer)).passed
    assert exercise.check(cell(exercise.starter)).status == "not attempted"
    outcome = exercise.check(cell(exercise.starter.replace("arrived", "there")))
    assert outcome.status == "not yet" and outcome.rule.startswith("R")
