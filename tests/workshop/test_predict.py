"""Predictions, with and without widgets and a kernel."""

from __future__ import annotations

import IPython
import pytest

from loaderviz.workshop import predict
from loaderviz.workshop.predict import PredictionError

QUESTION, CHOICES = "Which share is hidden?", ["none", "half", "all <of it>"]


def test_without_a_kernel_it_is_text():
    guess = predict(QUESTION, CHOICES, "none")
    assert guess.widget() is None
    assert repr(guess).splitlines()[:3] == ["Predict: Which share is hidden?", "    1. none", "    2. half"]
    bundle = guess._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    assert "all &lt;of it&gt;" in bundle["text/html"]


def test_without_ipywidgets_it_is_text(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    assert predict(QUESTION, CHOICES, "none").widget() is None


@pytest.mark.parametrize(
    ("said", "answer", "expected"),
    [
        ("half", "none", "You said: half. The answer: none. ✘"),
        (1, "none", "You said: none. The answer: none. ✔"),
        ("all <of it>", 3, "✔ Right!"),
        (2, lambda: "half", "✔ Right!"),
    ],
)
def test_reveal_shows_both(said, answer, expected):
    guess = predict(QUESTION, CHOICES, answer, why="One stream is one queue.").choose(said)
    note = guess.reveal()
    assert expected in repr(note)
    assert QUESTION in repr(note) and repr(note).endswith("One stream is one queue.")
    assert guess.right == ("✔" in repr(note))


def test_reveal_without_a_prediction():
    guess = predict(QUESTION, CHOICES, "none")
    assert "You made no prediction" in repr(guess.reveal()) and "The answer: none." in repr(guess.reveal())
    assert not guess.right


def test_the_answer_is_asked_for_at_the_end_only():
    ran = []
    guess = predict(QUESTION, CHOICES, lambda: ran[-1]).choose("half")
    ran.append("half")
    assert "✔" in repr(guess.reveal())
    ran.append(9)
    with pytest.raises(PredictionError, match="the answer: 9 is none of the choices"):
        guess.reveal()


@pytest.mark.parametrize(
    ("choices", "answer", "expected"),
    [
        (["one"], "one", "at least two"), (["a", "a"], "a", "differ"), (CHOICES, "nothing", "none of the choices"),
        (CHOICES, 0, "none of the choices"), (CHOICES, 4, "none of the choices"),
        (CHOICES, True, "none of the choices"),
    ],
)  # fmt: skip
def test_a_bad_prediction_is_refused(choices, answer, expected):
    with pytest.raises(PredictionError, match=expected):
        predict(QUESTION, choices, answer)


def test_a_choice_that_is_none_is_refused():
    with pytest.raises(PredictionError, match=r"choose\(\): 'perhaps' is none of the choices"):
        predict(QUESTION, CHOICES, 1).choose("perhaps")


def test_the_widget_keeps_what_was_said(monkeypatch):
    monkeypatch.setattr(IPython, "get_ipython", object)  # as if there were a kernel
    guess = predict(QUESTION, CHOICES, "none")
    box = guess.widget()
    assert guess.widget() is box
    label, radio, said = box.children
    assert QUESTION in label.value and "arrow keys" in said.value
    assert radio.value is None and radio.options == tuple(CHOICES)
    radio.value = "half"
    assert guess.choice == "half" and "You said: <b>half</b>" in said.value
    guess.choose("none")
    assert radio.value == "none" and "✔" in repr(guess.reveal())
    assert "application/vnd.jupyter.widget-view+json" in guess._repr_mimebundle_()
    box.close()
