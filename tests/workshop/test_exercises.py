"""Each exercise in its four outcomes: right answers of different design, wrong ones with their fact, holes, errors;
predictions, with and without widgets and a kernel.
"""

import ast
import itertools
import random
import re
import signal
import string
import sys
import textwrap
import time
from pathlib import Path
from unittest.mock import Mock

import IPython
import pytest
import torch

from loaderviz import workshop
from loaderviz.loaders import BlockingLoader
from loaderviz.loaders import base as marks
from loaderviz.timeline import Kind
from loaderviz.view import spoken
from loaderviz.workshop import (
    EXERCISES,
    ExerciseError,
    Note,
    Outcome,
    capstone,
    claims,
    exercises,
    harness,
    lesson00,
    lesson03,
    predict,
)
from loaderviz.workshop.exercises import TEXTS

from . import answers, answers_later
from .answers import loader_consumer, loader_ring
from .conftest import cell

RIGHT = answers.RIGHT | answers_later.RIGHT
WRONG = answers.WRONG | answers_later.WRONG
ALL = list(EXERCISES.values())
EACH = pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.number)


LONG = {number for number in EXERCISES if number > "8.1" or number.startswith("11")}  # their checks take seconds
DEAR = {"9.1", "11.1", "11.2", "11.3"}  # so do those of their wrong answers; lesson 11 has 11.0 in the quick tests


def pairs(answers, later=()):
    """Return a case for each answer; those to the exercises in `later` are for `make test-all`."""
    every = [(number, entry) for number, entries in answers.items() for entry in entries]
    names = (getattr(entry[0] if type(entry) is tuple else entry, "__name__", "") for _, entry in every)
    return [
        pytest.param(number, entry, id=f"{number}-{name}", marks=[pytest.mark.slow] * (number in later))
        for (number, entry), name in zip(every, names, strict=True)
    ]


def drawn():
    """Return a seed that a failure prints; another one for each LOADERVIZ_SEED."""
    seed = random.getrandbits(32)
    print(f"check(..., seed={seed})")
    return seed


@pytest.fixture(scope="module")
def drawn_once():
    """The machines of 9.1, which take seconds to draw, are the same for all answers."""
    both = ("",) * claims.TRUE, claims.FALSE
    cases = {ways: list(claims._drawn(ways, random.Random(len(ways)))) for ways in both}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "_drawn", lambda ways, *_: cases[ways])
        yield


def judged(number, answer, request):
    """Return the outcome of an answer, and its time as a share of the longest that passes, in a race."""
    if number == "9.1":
        request.getfixturevalue("drawn_once")
    outcome = EXERCISES[number].check(answer, seed=drawn())
    return outcome, share_of(EXERCISES[number], outcome)


def share_of(exercise, outcome):
    world, timeline = getattr(exercise, "world", None), outcome.timeline
    return timeline.duration / world.target / capstone.limit(world) if world and timeline else 0


@pytest.mark.parametrize(
    "exercise", [pytest.param(e, marks=[pytest.mark.slow] * (e.number in LONG), id=e.number) for e in ALL]
)
def test_the_solution_that_is_shipped_passes_in_the_language_of_the_learner(exercise):
    """In English it passes in the lessons as they are solved."""
    outcome = in_chinese(exercise, cell(exercise.answer), drawn())
    assert outcome.passed, outcome
    assert outcome.score and outcome.timeline is not None
    assert outcome.timeline.self_check() is outcome.timeline


@EACH
def test_the_starter_is_not_attempted_nor_is_nothing(exercise):
    other_words = exercise.starter.replace(' """', ' """在其他语言里：', 1)
    for answer in (cell(exercise.starter), cell(other_words), None, ...):
        assert exercise.check(answer).status == "not attempted"


@pytest.mark.slow
@pytest.mark.once_for("number")
@pytest.mark.parametrize(("number", "answer"), pairs(RIGHT))
def test_any_design_that_meets_the_target_passes(number, answer, request):
    outcome, share = judged(number, answer, request)
    assert outcome.status == "passed", outcome
    assert share < 0.98  # else a change of a price would turn the verdict


# The first wrong answer to each exercise: test_a_failure_names_the_seed_that_makes_it_again_in_any_language
@pytest.mark.once_for("number")
@pytest.mark.parametrize(
    ("number", "entry"), pairs({number: entries[1:] or entries for number, entries in WRONG.items()}, later=DEAR)
)
def test_a_wrong_answer_gets_its_fact(number, entry, request):
    answer, expected = entry
    gets_its_fact(*judged(number, answer, request), expected)


def gets_its_fact(outcome, share, expected):
    assert outcome.status == "not yet", outcome
    if re.search("idle for|largest part", expected) and share:  # cores, memory and honesty are judged before the time
        assert share > 1.02
    assert re.search(expected, repr(outcome).replace("\n", " ")), outcome
    assert "hint()" in repr(outcome)


def test_each_key_of_the_texts_is_used_and_each_that_is_used_is_there_with_its_values():
    used, begins, files = set(), set(), Path(exercises.__file__).parent.rglob("*.py")
    for node in (node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))):
        if isinstance(node, ast.Constant):
            used.add(node.value)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "say" and all(given.arg for given in node.keywords):
            key = node.args[0]
            begins |= {key.values[0].value} if isinstance(key, ast.JoinedStr) else set()
            told = [key.body, key.orelse] if isinstance(key, ast.IfExp) else [key]
            for text in (exercises.SAID[each.value]["en"] for each in told if isinstance(each, ast.Constant)):
                assert {name for name, *_ in places(text)} <= {given.arg for given in node.keywords}, text
    used |= {f"{begin}{rest}" for begin in begins for rest in used if isinstance(begin, str)}
    assert exercises.SAID.keys() <= used | set(re.findall(">([^<>]+)</text>", lesson00.DRAWN))


CHINESE = "[\u3001-\u9fff\uff01-\uff5e]"  # also its punctuation
THE_SAME = {"space", "by-gpu", "of-a-type", "GPU", "SMs"}  # nothing, the name of a type, names


def places(text):
    """Return what a text has in braces, without attributes: (name, format, conversion)."""
    found = ((name, *more) for _, name, *more in string.Formatter().parse(text) if name is not None)
    return sorted({(name.partition(".")[0], *more) for name, *more in found})


def english_in(text):
    """Return two English words in a row that are no code, no place and no quoted label; None if there are none."""
    found = re.search(r"[a-z]{2,},? [a-z]+", re.sub(r"`[^`]*`|'[^']*'|{[^}]*}|\([^)]*\)", "", text))
    return found and found[0]


def translations():
    """Return (where, English, Chinese) of each text, its parts in lists; no part is there where the Chinese is not."""
    found = [(key, [texts["en"]], [texts["zh"]] if "zh" in texts else []) for key, texts in exercises.SAID.items()]
    for number, asked in exercises.ASKED.items():
        for part in ("title", "task", "target", "hints"):
            both = (texts.get(part, []) for texts in (asked, asked.get("zh", {})))
            found.append((f"{number} {part}", *([text] if isinstance(text, str) else text for text in both)))
    for key, claim in claims.CLAIMS.items():
        for part in ("text", "shows", "decides", "when"):
            found.append((f"{key} {part}", [getattr(claim, part)], [(claim.zh or {}).get(part)] if claim.zh else []))
    return found


def test_each_text_has_its_chinese():
    """What is missing is printed."""
    missing = [where for where, english, chinese in translations() if len(english) != len(chinese)]
    assert not missing
    without = {where for where, _, texts in translations() for text in texts if not re.search(CHINESE, text)}
    assert without == THE_SAME


def test_a_translation_has_the_places_of_the_english_and_no_english_but_names():
    pairs = [pair for _, *texts in translations() for pair in zip(*texts, strict=True)]
    assert sum(english_in(english) is not None for english, _ in pairs) > 350
    for english, chinese in pairs:
        assert places(english) == places(chinese), chinese
        assert english_in(chinese) is None, chinese
        assert not re.search(f"[。，：；、（] {CHINESE}|{CHINESE} [。，：；、）]", chinese), chinese


@EACH
def test_an_exercise_is_asked_in_the_language_of_the_learner(exercise, monkeypatch):
    english = [exercise.title, exercise.task, exercise.target, *exercise.hints]
    monkeypatch.setenv("LOADERVIZ_LANGUAGE", "zh")
    for before, text in zip(english, [exercise.title, exercise.task, exercise.target, *exercise.hints], strict=True):
        assert re.search(CHINESE, text) and not english_in(text) and "{" not in text, text
        named, said = ({*re.findall(r"`([^`]+)`", each)} for each in (before, text))
        assert {spoken.word(name) if " " in name else name for name in named} == said, text  # a row as in the picture


def test_sentences_are_joined_and_counted_as_the_language_has_it(monkeypatch):
    ran = exercises.say("stretch", start="1 ms", end="2 ms")
    assert exercises.sentence("it is late.") == "It is late." and exercises.counted(2, "batch") == "2 batches"
    assert (
        exercises.say("space").join([exercises.say("idle", ran=ran), "Why?"]).startswith("The GPU has nothing to do f")
    )
    monkeypatch.setenv("LOADERVIZ_LANGUAGE", "zh")
    ran = exercises.say("stretch", start="1 ms", end="2 ms")
    assert exercises.sentence("太晚。") == exercises.sentence("太晚") == "太晚。"
    assert exercises.counted(1, "worker") == "1 个工作进程" and exercises.counted(2, "batch") == "2 个批次"
    assert exercises.say("idle-waits", fact=exercises.say("idle", ran=ran)).startswith(
        "从 1 ms 到 2 ms，GPU 无事可做。主机"
    )
    claim, drawing = claims.CLAIMS["threads"], lesson00.MachineDrawing(Mock(duration=1, rows=lambda kind: []))
    assert claim.said("text") == claim.zh["text"] and claims.BOOK["idle time"].said("when").isascii()
    assert ">主机内存</text>" in drawing.svg() and not re.search("[a-z] ?[a-z]+</text>", drawing.svg())
    assert claims.card("threads").choices == ("成立", "不成立", "视情况而定")
    monkeypatch.setenv("LOADERVIZ_LANGUAGE", "xx")
    assert claim.said("text") == claim.text and ">host memory</text>" in drawing.svg()
    assert exercises.counted(1, "worker") == "1 worker"


def in_chinese(exercise, answer, seed):
    """Return what a check says to whoever has chosen Chinese, after a look at its words."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOADERVIZ_LANGUAGE", "zh")
        outcome = exercise.check(answer, seed=seed)
        rule, headline = repr(Outcome("not yet", "", "", outcome.rule)), repr(outcome).partition("·")[0]
    said = "\n".join([headline, outcome.message, rule, outcome.score, outcome.following])
    assert re.search(CHINESE, said)
    assert not english_in(said), said
    assert not re.search(f"[。，：；、（] {CHINESE}|{CHINESE} [。，：；、）]", said), said
    return outcome


@pytest.mark.slow
@pytest.mark.parametrize("number", sorted(number for number in WRONG if number < "2"))
def test_a_check_speaks_the_language_of_the_learner(number):
    """All that is wrong; the first wrong answer to each of the other exercises: the test below."""
    for answer, _ in WRONG[number][1:]:
        assert in_chinese(EXERCISES[number], answer, seed=1).status == "not yet"


HEAD = """
import copy, itertools, queue, random, threading, time
from collections import deque
import numpy
from torch.utils.data import DataLoader
import loaderviz as lv
from loaderviz.workshop import claims
from loaderviz.experiment import Images as lv_images
from loaderviz.loaders import PrefetchLoader
from loaderviz.workshop.lessons.lesson03 import claim, copy_ahead
from loaderviz.workshop.lessons.lesson11 import Augmented, augment

def load({}):
"""
ATTEMPTS = [
    (*block.partition("\n")[0].split(" ", 1), block.partition("\n")[2])
    for block in Path(__file__).with_name("attempts.txt").read_text(encoding="utf-8").split("\n--- ")[1:]
]


@pytest.mark.slow
@pytest.mark.once_for("number")
@pytest.mark.parametrize(("number", "expected", "body"), ATTEMPTS)
def test_an_attempt_is_judged_rightly(number, expected, body, request):
    head = HEAD.format(", ".join(EXERCISES[number].arguments))
    outcome, _ = judged(number, cell(head + textwrap.indent(body, "    "), "load"), request)
    assert outcome.status == ("passed" if expected == "passes" else "not yet"), outcome
    assert expected == "passes" or re.search(expected, repr(outcome).replace("\n", " ")), outcome


def test_an_exercise_is_found_by_its_number():
    assert workshop.exercise("3.1") is lesson03.overlap
    assert list(TEXTS) == list(EXERCISES)  # of each one the notebooks have a starter and an answer
    with pytest.raises(ExerciseError, match=r"no exercise '9.9'; there are 0.a, 0.1, "):
        workshop.exercise("9.9")


@pytest.mark.slow
@EACH
def test_a_failure_names_the_seed_that_makes_it_again_in_any_language(exercise):
    answer, expected = WRONG[exercise.number][0]
    first = exercise.check(answer)
    gets_its_fact(first, share_of(exercise, first), expected)
    seed = int(re.search(rf"{exercise.name}\.check\(\.\.\., seed=(\d+)\)", repr(first))[1])
    again = in_chinese(exercise, answer, seed)
    assert to_the_nanosecond(again) == to_the_nanosecond(first)
    numbers = [sorted(re.findall(r"\d[\d.,]*\d", each.message)) for each in (first, again)]
    assert numbers[0] == numbers[1] or "hazard" in first.message, (first.message, again.message)


def to_the_nanosecond(outcome):
    timeline = outcome.timeline
    spans = timeline.rows() if timeline else ()
    return outcome.status, [(s.start - timeline.begin, s.duration, s.lane, s.name, s.batch) for s in spans]


def test_there_are_enough_answers():
    assert set(RIGHT) == set(WRONG) == set(EXERCISES)
    judged = [(number, expected == "passes") for number, expected, _ in ATTEMPTS]
    assert all(len(RIGHT[number]) + judged.count((number, True)) >= 3 for number in EXERCISES)
    assert all(len(WRONG[number]) + judged.count((number, False)) >= 4 for number in EXERCISES)


@pytest.mark.slow
@EACH
def test_an_error_of_the_learner_is_wrapped_with_its_line(exercise):
    arguments = ", ".join(exercise.arguments)
    answer = cell(f"def load({arguments}):\n    first = 1\n    raise KeyError('no such batch')\n")
    outcome = exercise.check(answer)
    assert outcome.status == "crashed"
    assert "KeyError: 'no such batch'" in outcome.message
    assert outcome.line == "line 3: raise KeyError('no such batch')"


@pytest.mark.slow
@pytest.mark.parametrize(("exercise", "hole"), [*zip(ALL, itertools.cycle(["...", "____", "x = ____"]))])
def test_a_hole_is_not_attempted_whatever_it_does(exercise, hole):
    arguments = ", ".join(exercise.arguments)
    outcome = exercise.check(cell(f"def load({arguments}):\n    done = True\n    {hole}\n"))
    assert outcome.status == "not attempted"
    assert f"line 3: `{hole}`" in outcome.message


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


IN_A_THREAD = """
import queue, threading
def load(batches):
    ready = queue.Queue(2)
    def work():
        try:
            for x, y in batches:
                ready.put((x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)))
        finally:
            AT_THE_END
    threading.Thread(target=work, daemon=True).start()
    while (batch := ready.get(TIMEOUT)) is not None:
        yield batch
"""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("at_the_end", "timeout", "status", "says"),
    [
        (
            "pass",
            "",
            "crashed",
            "every thread of the program waits for another one: the main thread waits in Queue.get",
        ),
        ("ready.put(None)", "", "not yet", "It is in stream 7 (default), and so are the kernels"),
        ("pass", "timeout=0.1", "crashed", "Empty"),
    ],
)
def test_a_prefetcher_with_a_thread_is_judged_as_any_other(at_the_end, timeout, status, says):
    """Whether the loop waits for ever, ends, or stops with an error of its own."""
    source = IN_A_THREAD.replace("AT_THE_END", at_the_end).replace("TIMEOUT", timeout)
    outcome = lesson03.overlap.check(cell(source, "load"))
    assert (outcome.status, says in outcome.message) == (status, True), outcome.message


def test_a_fault_of_the_check_is_not_blamed_on_the_learner(monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("in the check")

    monkeypatch.setattr(harness.BatchWork, "__call__", broken)
    with pytest.raises(ZeroDivisionError, match="in the check") as caught:
        lesson03.overlap.check(BlockingLoader, seed=7)
    assert "seed=7" in caught.value.__notes__[0]


def test_after_an_error_everything_is_as_before():
    def stops(batches):
        raise RuntimeError("stop")

    before = time.perf_counter
    assert lesson03.overlap.check(stops).status == "crashed"
    assert time.perf_counter is before and marks.on_batch is None
    assert lesson03.overlap.check(loader_consumer).passed


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


def test_work_left_in_the_queue_counts():
    """The window ends when the GPU is done, so leaving everything queued gains nothing."""

    def queue_more(batches):
        yield from BlockingLoader(batches)
        torch.cuda._sleep(10**9)

    outcome = lesson03.overlap.check(queue_more)
    assert outcome.status == "not yet"
    assert outcome.timeline.duration > 600_000_000


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


def test_what_is_said_has_two_faces_and_one_is_in_a_box():
    exercise, outcome = lesson03.refill, lesson03.overlap.check(BlockingLoader)
    note = [exercise.solution() for _ in range(2)][-1]  # the first one asks
    assert exercise.answer.strip() in repr(note) and f"```python\n{exercise.answer.strip()}" in note._repr_markdown_()
    assert repr(outcome).startswith("△ NOT YET · 3.1") and "R30" in repr(outcome)
    assert "**Exercise 3.3" in exercise._repr_markdown_() and "*Target:*" in exercise._repr_markdown_()
    for said in (exercise, outcome, exercise.check(None), exercise.check(cell(exercise.answer)), exercise.hint(1)):
        lines = said._repr_markdown_().splitlines()
        assert len(lines) > 2 and all(line.startswith(">") for line in lines)
    markdown = lesson03.uneven.check(loader_ring)._repr_markdown_()
    assert "crashed" in markdown.lower() and "<" not in markdown.replace("&lt;", "")
    assert Note("a_b `c_d` *e*")._repr_markdown_() == "> a\\_b `c_d` \\*e\\*"  # no emphasis


def test_show_needs_a_check_first_and_then_has_the_picture():
    exercise = lesson03.uneven
    exercise.last = None
    with pytest.raises(ExerciseError, match=r"lesson03.uneven.check"):
        exercise.show()
    exercise.check(cell(exercise.answer))
    picture = exercise.show()
    assert picture.heading.startswith("Exercise 3.2 · passed")
    assert picture.heading in picture._repr_mimebundle_()["text/html"]
    exercise.check(None)
    assert "not attempted" in repr(exercise.show()) and "no picture" in exercise.show()._repr_markdown_()


def test_starters_are_short():
    for exercise in ALL:
        code = [line for line in exercise.starter.splitlines() if line.strip() and "import" not in line]
        assert len(code) <= 14 or exercise.number == "8.1", exercise.number


def test_a_cell_that_calls_cuda_outside_of_a_recording_is_told_what_to_do(capsys):
    shell = IPython.core.interactiveshell.InteractiveShell()
    exercises.explain_cuda(shell)
    shell.run_cell("x = 1\n\nraise AssertionError('Torch not compiled with CUDA enabled')  # as x.cuda() does")
    said = capsys.readouterr()
    assert "in line 3: raise AssertionError(" in said.err and "with lv.record(on=" in said.err
    assert "Traceback" not in said.out + said.err
    shell.run_cell("raise RuntimeError('another one')")
    assert "another one" in capsys.readouterr().out


def test_after_a_syntax_error_the_function_of_before_is_not_judged(monkeypatch):
    shell = IPython.core.interactiveshell.InteractiveShell()
    exercises.follow(shell)
    shell.user_ns["check"] = EXERCISES["3.a"].check
    right = EXERCISES["3.a"].answer
    name = re.findall(r"^def (\w+)", right, re.M)[-1]

    def outcome():
        return shell.run_cell(f"check({name})").result

    shell.run_cell(right)
    assert outcome().passed
    broken = right + "    x = (\n"
    shell.run_cell(broken)
    refused = outcome()
    assert refused.status == "crashed" and "syntax error in line" in refused.message, refused
    assert f"Python kept the {name} of an earlier cell" in refused.message
    shell.run_cell("y = = 2")  # another cell's error is none of this function
    assert outcome().passed
    shell.run_cell(broken)
    shell.run_cell(right)
    assert outcome().passed


def test_an_answer_that_ends_the_program_is_stopped_with_its_line():
    outcome = EXERCISES["3.a"].check(cell("import sys\n\n\ndef load(batches):\n    sys.exit()\n    yield 1", "load"))
    assert outcome.status == "crashed" and "SystemExit" in outcome.message and "sys.exit()" in outcome.line, outcome


# Predictions


QUESTION, CHOICES = "Which `share` is hidden?", ["none", "half", "all `<of it>`"]


class Shell:
    """What IPython has where there is a kernel."""

    kernel = object()


def test_without_a_kernel_or_anywidget_it_is_text(monkeypatch):
    guess = predict(QUESTION, CHOICES, "none")
    assert guess.widget() is None
    assert repr(guess).splitlines()[:3] == ["Predict: Which `share` is hidden?", "    1. none", "    2. half"]
    html = guess._repr_mimebundle_()["text/html"]
    assert "Which <code>share</code> is" in html and "all <code>&lt;of it&gt;</code>" in html and "`" not in html
    monkeypatch.setattr(IPython, "get_ipython", Shell)
    monkeypatch.setitem(sys.modules, "anywidget", None)
    assert guess.widget() is None


@pytest.mark.parametrize(
    ("said", "answer", "expected"),
    [
        ("half", "none", "You said: half. The answer: none. ✘"),
        (1, "none", "You said: none. The answer: none. ✔"),
        ("all `<of it>`", 3, "✔ Right!"),
        (2, lambda: "half", "✔ Right!"),
    ],
)
def test_reveal_shows_both(said, answer, expected):
    guess = predict(QUESTION, CHOICES, answer, why="One stream is one queue.").choose(said)
    note = guess.reveal()
    assert expected in repr(note)
    assert QUESTION in repr(note) and repr(note).endswith("One stream is one queue.")
    assert guess.right == ("✔" in repr(note))


def test_the_answer_is_asked_for_at_the_end_only():
    silent = predict(QUESTION, CHOICES, "none")
    asked, told = repr(silent.reveal()), repr(silent.reveal())
    assert "First say what you expect" in asked and "2. half" in asked and "The answer" not in asked
    assert "no prediction" in told and "The answer: none." in told and not silent.right
    ran = []
    guess = predict(QUESTION, CHOICES, lambda: ran[-1]).choose("half")
    ran.append("half")
    assert "✔" in repr(guess.reveal())
    ran.append(9)
    with pytest.raises(ExerciseError, match="the answer: 9 is none of the choices"):
        guess.reveal()


@pytest.mark.parametrize(
    ("choices", "answer", "expected"),
    [(["one"], "one", "at least two"), (["a", "a"], "a", "differ")]
    + [(CHOICES, answer, "none of the choices") for answer in ("nothing", 0, 4, True)],
)
def test_a_bad_prediction_is_refused(choices, answer, expected):
    with pytest.raises(ExerciseError, match=expected):
        predict(QUESTION, choices, answer)
    with pytest.raises(ExerciseError, match=r"choose\(\): 'perhaps' is none of the choices"):
        predict(QUESTION, CHOICES, 1).choose("perhaps")


def test_the_widget_and_the_notebook_keep_what_was_said(monkeypatch):
    monkeypatch.setattr(IPython, "get_ipython", Shell)
    shown = []

    def display(data, *, display_id=None, **_):
        shown.append(data)
        return Mock(update=lambda data, **_: shown.append(data)) if display_id else None

    monkeypatch.setattr("IPython.display.display", display)
    guess = predict(QUESTION, CHOICES, "none")
    guess._ipython_display_()
    stands, live = shown
    assert "you said" not in stands["text/html"] and "application/vnd.jupyter.widget-view+json" in live
    box = guess.widget()
    assert guess.widget() is box and box.choice == -1 and "arrow keys" in box.said
    assert box.question == "<b>Predict:</b> Which <code>share</code> is hidden?"
    assert box.choices[2] == "all <code>&lt;of it&gt;</code>"
    box.choice = 1  # as the browser does
    assert guess.choice == "half" and "You said: <b>half</b>" in box.said
    assert shown[-1]["text/html"].count("half <b>(you said this)</b>") == 1
    guess.choose("none")
    assert box.choice == 0 and "✔" in repr(guess.reveal()) and "none <b>(you said this)</b>" in shown[-1]["text/html"]
    box.close()


@pytest.mark.parametrize("number", ["1.b", "2.a", "3.a", "3.b"])
def test_a_small_task_that_is_passed_shows_the_loop_that_never_waits_for_its_loss(number):
    exercise = EXERCISES[number]
    timeline = exercise.check(cell(exercise.answer)).timeline
    assert not timeline.where(Kind.COPY_D2H).any() and timeline.where(Kind.COPY_H2D).sum() == 2 * lesson03.FEW


ENDLESS = {
    "a loop of Python": "while True:\n    pass",
    "what catches every error": "while True:\n    try:\n        x = 1\n    except Exception:\n        pass",
    "what catches all, for a while": """
tries = 0
while True:
    try:
        tries += 1
        while True:
            pass
    except BaseException:
        if tries > 1:
            raise""",
    "a sum that is never reached": "while sum(range(100)) < 10**9:\n    continue",
    "work for the GPU": "while True:\n    torch.ones(8, device='cuda')",
    "where Python drops an error": """
class Held:
    def __del__(self):
        while True:
            pass
held = Held()
del held
while True:
    pass""",
    "before the first batch": "yield next(number for number in itertools.count() if number < 0)",
    "after the last batch": "yield from ((x.cuda(), y.cuda()) for x, y in batches)\nwhile batches:\n    pass",
    "a generator that never gives": "for x, y in batches:\n    while x is not None:\n        y.sum()\n    yield x",
}


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timer of processor time")
@pytest.mark.parametrize("body", ENDLESS.values(), ids=ENDLESS)
def test_a_loop_without_end_is_stopped_with_its_line(body, monkeypatch):
    monkeypatch.setattr(exercises, "SECONDS", 0.5)
    source = "import itertools\n\n\ndef load(batches):\n" + textwrap.indent(body, "    ")
    before = signal.getsignal(signal.SIGPROF)
    outcome = EXERCISES["3.a"].check(cell(source, "load"), seed=1)
    assert outcome.status == "crashed", outcome
    assert re.search("worked for 0 seconds of processor time and was not done.*has no end", outcome.message)
    assert re.fullmatch(r"line \d+: .+", outcome.line), outcome.line
    assert signal.getsignal(signal.SIGPROF) == before and signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)
    assert EXERCISES["3.a"].check(cell(EXERCISES["3.a"].answer)).passed  # the next one is judged as ever


def test_a_long_check_is_no_endless_answer(monkeypatch):
    """What is counted is one call of the learner's code, and not what the check does for it."""
    monkeypatch.setattr(exercises, "SECONDS", 0.2)
    begin = time.process_time()
    for _ in range(4):
        with exercises.learners_code():
            pass
        while time.process_time() - begin < 0.1:
            pass
        begin = time.process_time()
