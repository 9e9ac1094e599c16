"""A learner's own file: how far they are in all lessons, and which questions of earlier ones they are asked."""

import random
import re
import tomllib
from pathlib import Path

import pytest
import torch

import loaderviz as lv
from loaderviz import workshop
from loaderviz.rules import RULES
from loaderviz.timeline import Kind
from loaderviz.workshop import EXERCISES, ExerciseError, learner, rooms
from loaderviz.workshop.exercises import FOLDER, LISTENERS, Exercise, Score
from loaderviz.workshop.learner import QUESTIONS, Progress, drawn
from loaderviz.workshop.rooms import Row

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def nothing_drawn(monkeypatch):
    monkeypatch.setattr(learner, "_drawn", {})


def rows(*told):
    return [Row("check" if "." in about else "recall", "Ada", about, outcome) for about, outcome in told]


# Progress


def test_an_exercise_that_was_passed_stays_so_and_others_have_their_last_outcome():
    made = Progress(
        rows(("3.1", "not yet"), ("3.1", "passed"), ("3.1", "crashed"), ("0.1", "not yet"), ("0.1", "crashed"))
    )
    assert made.outcomes == {"3.1": "passed", "0.1": "crashed"} and made.passed == ["3.1"]
    assert f"You have passed 1 of {len(EXERCISES)} exercises. The next one is “0.a " in " ".join(repr(made).split("\n"))
    assert " · 3.1 ✔ 3.2 · " in repr(made) and "0: 0.a · 0.1 ✘" in repr(made)


def test_its_exercises_are_those_of_the_course_and_all_can_be_passed():
    assert list(EXERCISES) == learner.NUMBERS
    everything = Progress(rows(*((number, "passed") for number in EXERCISES)))
    assert everything._said() == [f"You have passed {len(EXERCISES)} of {len(EXERCISES)} exercises."]


def test_a_foreign_row_a_vote_and_an_unknown_number_change_nothing():
    foreign = [
        Row("vote", "Ada", "3.1", "passed"),
        Row("check", "Ada", "99.1", "passed"),
        Row("recall", "A", "3.1", "right"),
    ]
    assert Progress(foreign).outcomes == {}


def test_checks_are_kept_from_one_kernel_to_the_next(own_rows):
    assert workshop.progress().passed == []
    Exercise("0.1", lambda answer, chance: Score("done")).check(lambda copies: 1)
    assert workshop.progress().passed == ["0.1"]
    with own_rows.open("ab") as file:
        file.write(b'{"kind":"che')
    assert workshop.progress().passed == ["0.1"] and "some lines are left out" in repr(workshop.progress())


def test_where_nothing_can_be_kept_it_says_so_in_one_sentence(own_rows, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LOADERVIZ_PROGRESS", str(tmp_path / "file" / "progress.jsonl"))
    assert len(workshop.progress().notes) == 1 and "can name another file" in repr(workshop.progress())
    assert "LOADERVIZ_PROGRESS" in workshop.progress()._repr_html_()
    monkeypatch.setenv("LOADERVIZ_PROGRESS", "off")
    assert 'since LOADERVIZ_PROGRESS is "off"' in repr(workshop.progress())
    assert isinstance(workshop.recall(3, seed=1), learner.Recall)  # of nothing that is known


def test_the_bar_is_html_that_is_kept_without_trust_and_each_cell_has_its_words():
    html = Progress(rows(("3.1", "passed"), ("3.2", "not yet")), ["<script>alert(1)</script>"])._repr_html_()
    assert {*re.findall(r"<(\w+)", html)} == {
        "div",
        "span",
    }  # neither script nor style nor svg, which JupyterLab removes
    assert html.count("title=") == len(EXERCISES) and 'title="3.1 Copy under the work: passed"' in html
    assert "&lt;script&gt;" in html and "Lesson 0" in html


def test_a_lesson_opens_with_the_bar_above_its_questions(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda *what: shown.extend(what))
    monkeypatch.setattr(learner.Recalled, "_ipython_display_", lambda asked: shown.append(asked))
    asked = workshop.recall(3, seed=1)
    asked._ipython_display_()
    assert isinstance(shown[0], Progress) and shown[2:] == asked.questions
    lessons = [path.read_text(encoding="utf-8") for path in (ROOT / "notebooks/src").glob("*.py")]
    assert len(lessons) == 12 and all(re.search(r"^(progress|recall)\(\d*\)$", text, re.M) for text in lessons)


def test_in_chinese(monkeypatch):
    monkeypatch.setenv("LOADERVIZ_LANGUAGE", "zh")
    assert "您已通过" in repr(Progress([])) and "第 0 课" in Progress([])._repr_html_()
    asked = workshop.recall(3, seed=1)
    assert re.search(r"[\u4e00-\u9fff]", asked.questions[0].question) and "前面课程" in repr(asked)
    assert re.search("对了|正确的是", repr(asked.choose(1, 1)))


# Recall


def test_the_questions_are_whole_in_both_languages_and_each_lesson_after_the_first_can_ask_two():
    for key, asked in QUESTIONS.items():
        assert set(asked) - {"rule"} == {"lesson", "answer", "en", "zh"}, key
        assert asked.get("rule", "R1") in RULES and 0 <= asked["lesson"] <= 8
        for language in ("en", "zh"):
            texts = asked[language]
            assert set(texts) == {"question", "choices", "why"} and len(set(texts["choices"])) == 3
            assert 1 <= asked["answer"] <= 3 and all(texts.values())
        assert bool(re.search(r"[\u4e00-\u9fff]", asked["zh"]["question"])) and len(asked["en"]["question"]) < 200
    assert all(len(drawn(lesson, [], random.Random(0))) == 2 for lesson in range(1, 11))
    answers = [asked["answer"] for asked in QUESTIONS.values()]
    assert min(map(answers.count, (1, 2, 3))) > len(answers) / 5  # and they are shuffled
    assert tomllib.loads((FOLDER / "recall.toml").read_text(encoding="utf-8")) == QUESTIONS


@pytest.mark.parametrize("seed", range(5))
def test_what_was_missed_comes_first_then_what_is_new_then_what_is_known_for_longest(seed):
    chance = random.Random(seed)
    assert {QUESTIONS[key]["lesson"] for key in drawn(2, [], chance)} <= {0, 1}
    told = rows(("timing", "wrong"), ("item-waits", "right"), ("exposed", "wrong"), ("exposed", "right"))
    first, second = drawn(2, told, chance)
    assert (first, second) == ("timing", "two-colours")  # the latter is the only new one
    told += rows(("two-colours", "right"), ("timing", "right"))
    assert drawn(2, told, chance) == ["item-waits", "exposed"]
    assert drawn(1, rows(("timing", "wrong")), chance)[0] != "timing"  # of the lesson itself


def test_what_is_new_is_of_a_lesson_first_in_which_a_check_is_not_passed():
    for seed in range(9):
        told = rows(("2.1", "not yet"), ("1.1", "passed"))
        assert {QUESTIONS[key]["lesson"] for key in drawn(8, told, random.Random(seed))} == {2}


def test_chance_draws_others_and_a_seed_the_same():
    draws = {tuple(drawn(8, [], random.Random(seed))) for seed in range(20)}
    assert len(draws) > 10
    assert repr(workshop.recall(8, seed=5)) == repr(workshop.recall(8, seed=5))
    orders = {workshop.recall(1, seed=seed).questions[0].choices for seed in range(20)}
    assert len(orders) > 4


def test_the_same_two_until_both_are_answered_and_what_was_said_first_is_kept(own_rows):
    asked = workshop.recall("03")
    assert workshop.recall(3) is asked and workshop.recall(4) is not asked
    first, second = asked.questions
    right = first.choices.index(first._right_one()) + 1
    said = asked.choose(right)
    assert "✔ Right!" in repr(said) and first.why in repr(said) and workshop.recall(3) is asked
    wrong = (second.choices.index(second._right_one()) + 1) % 3 + 1
    second.choose(wrong)
    second.choose(second._right_one())  # after the answer was shown: it does not count
    kept = [(row.about, row.outcome) for row in rooms.read(own_rows)[0]]
    assert kept == [(first.key, "right"), (second.key, "wrong")]
    again = workshop.recall(3)
    assert again is not asked and again.questions[0].key == second.key
    assert again.questions[1].key != first.key


def test_an_answer_is_no_vote(monkeypatch):
    told = []
    monkeypatch.setattr(learner, "tell", lambda *what: told.append(what))
    monkeypatch.setattr("loaderviz.workshop.exercises.tell", lambda *what, **more: pytest.fail("told the room"))
    workshop.recall(5).choose(1, 1)
    assert len(told) == 2 and {kind for kind, _, _ in told} == {"recall"} and rooms.heard in LISTENERS


@pytest.mark.parametrize("lesson", [-1, "x", "", None, 1.5, "3.1", True, [3], "lesson 3", 10**9, "³"])
def test_what_is_no_lesson(lesson):
    with pytest.raises(ExerciseError, match="is no number of a lesson"):
        workshop.recall(lesson)


def test_before_the_first_lesson_there_is_nothing_and_a_wrong_choice_is_told():
    assert "no earlier lesson" in repr(workshop.recall(0))
    asked = workshop.recall(2)
    with pytest.raises(ExerciseError, match="4"):
        asked.choose(4)
    assert asked.choose().text == "" and not asked.answered
    html = asked.questions[0]._repr_mimebundle_()["text/html"]
    assert "recall(2).choose(1, 2)" in html and "Recall:" in html and "<script" not in html
    asked.choose(1)
    html = asked.questions[0]._repr_mimebundle_()["text/html"]
    assert "recall(2)" not in html and ("Right!" in html or "Not this time" in html)


# Some of the answers, as the emulated GPU has them


def test_some_answers_are_what_the_emulated_gpu_does():
    with lv.record(on="a100", host="laptop") as recording:
        torch.ones(33 * 1024**2 // 4).pin_memory()
        assert torch.cuda.host_memory_stats()["allocated_bytes.current"] == 64 * 1024**2  # pinned-size
        values = torch.ones(1 << 21, device="cuda")
        for _ in range(100):
            values = values + 1
        values[0].item()
    waits, copies = (recording.timeline.rows(kind) for kind in (Kind.WAIT, Kind.COPY_D2H))
    assert max(wait.duration for wait in waits) > 10 * max(copy.duration for copy in copies)  # item-waits
