"""Lesson 7: the timelines that its exercises make have the traps and the causes that they claim."""

import random
import re

import pytest

import loaderviz as lv
from loaderviz.timeline import COPIES, Kind
from loaderviz.workshop import lesson07

from .answers_later import MISTAKES, brute_force, merge_and_intersect

MAKERS = [lesson07.one_after_the_other, lesson07.beside_kernels, lesson07.two_at_once]
KINDS = {
    "data": {"waiting-for-data"},
    "pageable copy": {"pageable-copy", "hidden-sync"},
    "one stream": {"copy-not-hidden"},
    "nothing": {"nothing-to-gain"},
}
CLOSEST = (87, 228, 361, 750627348)  # seeds whose sizes were once so close to the limit that the GPU waited for data


def pieces(timeline):
    return lesson07.intervals_of(timeline, *COPIES), lesson07.intervals_of(timeline, Kind.COMPUTE)


@pytest.mark.parametrize("make", MAKERS)
def test_the_metric_that_judges_agrees_with_brute_force(make):
    for _ in range(20):
        timeline = make(random)
        exposed = lv.summarize(timeline).exposed_copy
        assert exposed == brute_force(*pieces(timeline)) == merge_and_intersect(*pieces(timeline))


def test_the_traps_are_there_whatever_the_numbers():
    for _ in range(50):
        beside, both = (make(random) for make in MAKERS[1:])
        assert (
            0 < lv.summarize(beside).exposed_copy < MISTAKES["all copy time"](*pieces(beside))
        )  # some is hidden, some is not
        wrong = ("everything", "all copy time", "each copy alone", "each kernel alone")
        answers = {lv.summarize(both).exposed_copy, *(MISTAKES[name](*pieces(both)) for name in wrong)}
        assert len(answers) == 5  # all different, so each mistake can be named


def test_other_timelines_each_time():
    seen = []

    def spy(copies, kernels):
        seen.append((tuple(copies), tuple(kernels)))
        exposed = merge_and_intersect(copies, kernels)
        copies.clear()  # the lists are copies of what is judged
        return exposed

    for _ in range(2):
        assert lesson07.exposed_copy.check(spy).passed
    assert len(seen) == len(set(seen)) == 6
    assert any(list(copies) != sorted(copies) for copies, _ in seen)  # in no order


@pytest.mark.slow
@pytest.mark.parametrize("cause", lesson07.CAUSES)
def test_each_training_has_its_cause_with_a_margin_and_the_advice_sees_no_other(cause):
    for seed in (*(random.getrandbits(32) for _ in range(12)), *CLOSEST):
        timeline = lesson07.training(cause, seed).self_check()
        share = lv.summarize(timeline).compute_share
        assert share > 0.98 if cause == "nothing" else share < 0.83, seed  # queued kernels have gaps
        (finding,) = lv.advise(timeline)
        assert finding.kind in KINDS[cause], (seed, finding)
        assert cause == "nothing" or finding.expected_gain.share > 0.15, (seed, finding)


def test_a_wrong_answer_is_told_how_to_make_its_timeline_again():
    outcome = lesson07.find_cause.check(lambda timeline: "data")
    assert eval(again(outcome), {"lesson07": lesson07}) == outcome.timeline
    outcome = lesson07.exposed_copy.check(lambda copies, kernels: 0)
    assert eval(again(outcome), {"lesson07": lesson07, "random": random}) == outcome.timeline


def again(outcome):
    return re.search(r"again: `(.*)`", outcome.message)[1]


@pytest.mark.slow
def test_each_cause_comes_as_often_in_another_order():
    orders = []

    def spy(timeline):
        orders[-1].append(kind := lv.advise(timeline)[0].kind)
        return next(cause for cause, kinds in KINDS.items() if kind in kinds)

    for _ in range(3):
        orders.append([])
        outcome = lesson07.find_cause.check(spy)
        assert outcome.passed, outcome
    assert all(len(order) == 8 for order in orders)
    assert len({tuple(order) for order in orders}) > 1
