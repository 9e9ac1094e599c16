"""Each exercise in its four outcomes: right answers of different design, wrong ones with their fact, holes, errors."""

from __future__ import annotations

import re
import time

import pytest
import torch

from loaderviz.loaders import BlockingLoader, marks
from loaderviz.workshop import EXERCISES, lesson03, machine
from loaderviz.workshop.exercise import NothingCheckedError

from . import answers, answers00, answers05, answers06, answers07, answers08
from .answers import Preloader, loader_ring
from .conftest import cell

RIGHT = answers.RIGHT | answers00.RIGHT | answers05.RIGHT | answers06.RIGHT | answers07.RIGHT | answers08.RIGHT
WRONG = answers.WRONG | answers00.WRONG | answers05.WRONG | answers06.WRONG | answers07.WRONG | answers08.WRONG
ALL = list(EXERCISES.values())
LESSONS = [exercise for exercise in ALL if exercise.number != "8.1"]


def pairs(answers):
    return [
        pytest.param(
            number, entry, id=f"{number}-{getattr(entry[0] if type(entry) is tuple else entry, '__name__', '')}"
        )
        for number, entries in answers.items()
        for entry in entries
    ]


def named(exercise):
    return exercise.number


@pytest.mark.parametrize("exercise", ALL, ids=named)
def test_the_solution_that_is_shipped_passes(exercise):
    outcome = exercise.check(cell(exercise.answer))
    assert outcome.passed, outcome
    assert outcome.score and outcome.timeline is not None
    assert outcome.timeline.self_check() is outcome.timeline


@pytest.mark.parametrize("exercise", ALL, ids=named)
def test_the_starter_is_not_attempted(exercise):
    assert exercise.check(cell(exercise.starter)).status == "not attempted"


@pytest.mark.parametrize(("number", "answer"), pairs(RIGHT))
def test_any_design_that_meets_the_target_passes(number, answer):
    outcome = EXERCISES[number].check(answer)
    assert outcome.status == "passed", outcome


@pytest.mark.parametrize(("number", "entry"), pairs(WRONG))
def test_a_wrong_answer_gets_its_fact(number, entry):
    answer, expected = entry
    outcome = EXERCISES[number].check(answer)
    assert outcome.status == "not yet", outcome
    assert re.search(expected, repr(outcome).replace("\n", " ")), outcome
    assert "hint()" in repr(outcome)


def test_there_are_enough_answers():
    assert set(RIGHT) == set(WRONG) == set(EXERCISES)
    assert all(len(answers) >= 3 for answers in RIGHT.values())
    assert all(len(answers) >= 4 for answers in WRONG.values())


@pytest.mark.parametrize("exercise", ALL, ids=named)
def test_an_error_of_the_learner_is_wrapped_with_its_line(exercise):
    arguments = ", ".join(exercise._arguments)
    answer = cell(f"def load({arguments}):\n    first = 1\n    raise KeyError('no such batch')\n")
    outcome = exercise.check(answer)
    assert outcome.status == "crashed"
    assert "KeyError: 'no such batch'" in outcome.message
    assert outcome.line == "line 3: raise KeyError('no such batch')"


@pytest.mark.parametrize("exercise", ALL, ids=named)
@pytest.mark.parametrize("hole", ["...", "____", "x = ____"])
def test_a_hole_is_not_attempted_whatever_it_does(exercise, hole):
    arguments = ", ".join(exercise._arguments)
    outcome = exercise.check(cell(f"def load({arguments}):\n    done = True\n    {hole}\n"))
    assert outcome.status == "not attempted"
    assert f"line 3: `{hole}`" in outcome.message


@pytest.mark.parametrize("nothing", [None, ...])
def test_nothing_is_not_attempted(nothing):
    assert lesson03.overlap.check(nothing).status == "not attempted"


def test_an_index_of_dots_is_no_hole():
    source = lesson03.overlap.answer.replace("yield coming  #", "yield [part[...] for part in coming]  #")
    assert lesson03.overlap.check(cell(source)).passed
    slow = "def load(batches):\n    for x, y in batches:\n        yield x.to('cuda')[..., :], y.to('cuda')\n"
    assert lesson03.overlap.check(cell(slow)).status == "not yet"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(7, "it is a int, not a function"), (lambda: None, "takes \\(\\)"), (iter([]), "not a function")],
)
def test_what_cannot_be_called_is_said_so(answer, expected):
    outcome = lesson03.overlap.check(answer)
    assert outcome.status == "crashed"
    assert re.search(expected, outcome.message)


def test_an_error_half_way_is_the_learners():
    def breaks(batches):
        for number, batch in enumerate(BlockingLoader(batches)):
            if number == 3:
                batch[0] + batch[1].cpu().float()[:, None]
            yield batch

    outcome = lesson03.overlap.check(breaks)
    assert outcome.status == "crashed"
    assert "same device" in outcome.message
    assert "batch[0] + batch[1].cpu()" in outcome.line


def test_an_error_in_a_loader_class_is_theirs_too():
    """No line of theirs is on the way, but it is their choice of loader that fails: a ring has buffers of one size."""
    outcome = EXERCISES["3.2"].check(loader_ring)
    assert outcome.status == "crashed" and outcome.line == ""
    assert "has fixed buffers" in outcome.message


def test_a_fault_of_the_check_is_not_blamed_on_the_learner(monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("in the check")

    monkeypatch.setattr(machine.Work, "__call__", broken)
    with pytest.raises(ZeroDivisionError, match="in the check"):
        lesson03.overlap.check(BlockingLoader)


def test_after_an_error_everything_is_as_before():
    def stops(batches):
        raise RuntimeError("stop")

    before = time.perf_counter
    assert lesson03.overlap.check(stops).status == "crashed"
    assert time.perf_counter is before and marks.on_batch is None
    assert lesson03.overlap.check(Preloader).passed


# Cheating


def test_a_former_run_cannot_be_kept():
    kept = []

    def cached(batches):
        if not kept:
            kept.extend(BlockingLoader(batches))
        yield from kept

    lesson03.overlap.check(cached)
    outcome = lesson03.overlap.check(cached)
    assert outcome.status == "not yet"
    assert "does not hold the values" in outcome.message


def test_data_cannot_be_brought_before_the_clock_runs():
    """The data do not exist before the call, and the copy must be seen in the window."""

    def by_value(batches):
        for images, labels in batches:
            yield torch.tensor(images.tolist(), device="cuda"), labels.to("cuda")

    outcome = lesson03.overlap.check(by_value)
    assert outcome.status == "not yet", outcome


def test_work_left_in_the_queue_counts():
    """The window ends when the GPU is done, so leaving everything queued gains nothing."""

    def queue_more(batches):
        yield from BlockingLoader(batches)
        torch.cuda._sleep(10**9)

    outcome = lesson03.overlap.check(queue_more)
    assert outcome.status == "not yet"
    assert outcome.timeline.duration > 600_000_000


def test_a_subclass_of_tensor_is_no_batch():
    class Sneaky(torch.Tensor):
        is_cuda = True

    def sneak(batches):
        for images, labels in batches:
            yield images.as_subclass(Sneaky), labels

    outcome = lesson03.overlap.check(sneak)
    assert outcome.status == "not yet"
    assert "a Sneaky: a tensor is wanted" in outcome.message


def test_other_data_each_time():
    seen = []

    def look(batches):
        for images, labels in batches:
            seen.append(images.sum().item())
            yield images.to("cuda"), labels.to("cuda")

    lesson03.overlap.check(look)
    lesson03.overlap.check(look)
    assert len(seen) == 64
    assert seen[:32] != seen[32:]


# What is said


def test_hints_come_one_after_the_other():
    exercise = lesson03.overlap
    exercise._next_hint = 0
    texts = [repr(exercise.hint()) for _ in range(len(exercise.hints) + 1)]
    assert texts[0].startswith("Hint 1 of 3") and "lesson03.overlap.hint()" in texts[0]
    assert texts[2] == texts[3]
    assert "solution()" in texts[2]
    assert repr(exercise.hint(2)) == texts[1]
    with pytest.raises(ValueError, match="hints 1 to 3"):
        exercise.hint(4)


def test_the_solution_is_code_in_both_faces():
    note = lesson03.refill.solution()
    assert lesson03.refill.answer.strip() in repr(note)
    assert "```python\nfrom loaderviz.workshop.lesson03 import" in note._repr_markdown_()


def test_the_outcome_has_two_faces():
    outcome = lesson03.overlap.check(BlockingLoader)
    assert repr(outcome).startswith("△ NOT YET · 3.1 Copy under the work")
    markdown = outcome._repr_markdown_()
    assert markdown.startswith("> **△ Not yet** · 3.1") and "*Rule:* R30" in markdown
    task = lesson03.overlap._repr_markdown_()
    assert "**Exercise 3.1" in task and "*Target:*" in task


def test_what_is_said_stands_in_a_box():
    exercise = EXERCISES["1.1"]
    for said in (exercise, exercise.check(None), exercise.check(cell(exercise.answer)), exercise.hint(1)):
        lines = said._repr_markdown_().splitlines()
        assert len(lines) > 2 and all(line.startswith(">") for line in lines)
    exercise.check(None)
    assert "not attempted" in exercise.show()._repr_mimebundle_()["text/markdown"]


def test_underscores_are_no_emphasis():
    markdown = lesson03.uneven.check(RIGHT["3.2"][2])._repr_markdown_()
    assert "<" not in markdown.replace("&lt;", "")
    from loaderviz.workshop.outcome import Note

    assert Note("a_b `c_d` *e*")._repr_markdown_() == "> a\\_b `c_d` \\*e\\*"


def test_show_needs_a_check_first_and_then_has_the_picture():
    exercise = lesson03.uneven
    exercise.last = None
    with pytest.raises(NothingCheckedError, match=r"lesson03.uneven.check"):
        exercise.show()
    outcome = exercise.check(cell(exercise.answer))
    picture = exercise.show()
    assert outcome.score in repr(picture)
    assert picture.figure.layout.title.text is not None
    assert "text/plain" in picture._repr_mimebundle_()
    exercise.check(None)
    assert exercise.show().figure is None
    assert "no picture" in exercise.show()._repr_mimebundle_()["text/plain"]


def test_starters_are_short():
    for exercise in LESSONS:
        code = [line for line in exercise.starter.splitlines() if line.strip() and "import" not in line]
        assert len(code) <= 14, exercise.number
