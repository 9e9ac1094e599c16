"""predict: the learner says what will happen before the cell runs; afterwards the answer stands beside it.

    guess = predict("Which share of the copy is hidden?", ["none", "about half", "all"], answer=lambda: ...)
    guess                     # radio buttons where widgets work, else the numbered choices
    guess.choose(2)           # the same without widgets
    guess.reveal()            # "You said: about half. The answer: none."

The widget is a group of radio buttons: Tab reaches it, arrow keys choose. Question and choices are visible text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from loaderviz.errors import LoadervizError
from loaderviz.workshop.outcome import Note

Answer = str | int | Callable[[], Any]


class PredictionError(LoadervizError, ValueError):
    """A prediction is not well made: its choices, the choice made, or the answer."""


class Prediction:
    """A question, its choices, what the learner said (`choice`), and the answer.

    `answer` is one of the choices, its number (from 1), or a function without arguments that returns either; the
    function is called by `reveal()`, so it can look at what ran meanwhile. `why` is a sentence shown with the answer.
    """

    def __init__(self, question: str, choices: Sequence[str], answer: Answer, why: str = "") -> None:
        self.question, self.choices, self.why = str(question), tuple(map(str, choices)), str(why)
        if len(self.choices) < 2:
            raise PredictionError(f"predict() needs at least two choices, got {list(self.choices)}")
        if len(set(self.choices)) != len(self.choices):
            raise PredictionError(f"the choices must differ from each other: {list(self.choices)}")
        self._answer = answer
        if not callable(answer):
            self._one_of(answer, "answer")
        self.choice: str | None = None
        self._widget: Any = None

    def choose(self, choice: str | int) -> Prediction:
        """Say what will happen: a choice, or its number from 1. It can be changed until `reveal()`."""
        self.choice = self._one_of(choice, "choose()")
        if self._widget is not None:
            self._widget.children[1].value = self.choice
        return self

    def reveal(self) -> Note:
        """Return what was said beside the answer. Raises `PredictionError` if the answer is none of the choices."""
        found = self._answer() if callable(self._answer) else self._answer
        right = self._one_of(found, "the answer")
        if self.choice is None:
            said = "You made no prediction this time. Next time, make one first: it helps you to remember."
        else:
            said = f"You said: {self.choice}."
        verdict = "" if self.choice is None else " ✔ Right!" if self.choice == right else " ✘ Not this time."
        parts = self.question, f"{said} The answer: {right}.{verdict}", self.why
        return Note("\n\n".join(part for part in parts if part))

    @property
    def right(self) -> bool:
        """Whether what was said is the answer."""
        found = self._answer() if callable(self._answer) else self._answer
        return self.choice is not None and self.choice == self._one_of(found, "the answer")

    def __repr__(self) -> str:
        chosen = (">" if text == self.choice else " " for text in self.choices)
        rows = [f"  {sign} {number}. {self.choices[number - 1]}" for number, sign in enumerate(chosen, 1)]
        end = "Say it with .choose(number); after the run, .reveal() shows the answer."
        return "\n".join([f"Predict: {self.question}", *rows, end])

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        text = {"text/plain": repr(self), "text/html": self._html()}
        widget = self.widget()
        if widget is None:
            return text
        bundle: dict[str, Any] = dict(widget._repr_mimebundle_() or {})
        return bundle | text

    def widget(self) -> Any:
        """Return the radio buttons (made once, so that what was said survives a second display); None without them."""
        if self._widget is None:
            try:
                import ipywidgets
                from IPython import get_ipython
            except ImportError:
                return None
            if get_ipython() is None:  # no kernel, so nobody would hear the buttons
                return None
            self._widget = self._radio(ipywidgets)
        return self._widget

    def _radio(self, ipywidgets: Any) -> Any:
        label = ipywidgets.HTML(f"<b>Predict:</b> {escape(self.question)}")
        wide = ipywidgets.Layout(width="auto")
        radio = ipywidgets.RadioButtons(options=self.choices, value=self.choice, layout=wide, tooltip=self.question)
        said = ipywidgets.HTML("Choose one, with the mouse or with Tab and the arrow keys.")

        def note(change: dict[str, Any]) -> None:
            if change["new"] is not None:
                self.choice = change["new"]
                said.value = f"You said: <b>{escape(change['new'])}</b>. Run on: .reveal() shows the answer below."

        radio.observe(note, names="value")
        return ipywidgets.VBox([label, radio, said])

    def _html(self) -> str:
        texts = (escape(text) + (" (you said this)" if text == self.choice else "") for text in self.choices)
        rows = "".join(f"<li>{text}</li>" for text in texts)
        return f"<p><b>Predict:</b> {escape(self.question)}</p><ol>{rows}</ol><p>.choose(number), later .reveal()</p>"

    def _one_of(self, value: Any, what: str) -> str:
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= len(self.choices):
            return self.choices[value - 1]
        if isinstance(value, str) and value in self.choices:
            return value
        raise PredictionError(
            f"{what}: {value!r} is none of the choices; give one of {list(self.choices)}, or a number from 1 to "
            f"{len(self.choices)}"
        )


def predict(question: str, choices: Sequence[str], answer: Answer, why: str = "") -> Prediction:
    """Ask before running. Raises `PredictionError` for fewer than two choices or an answer that is none of them.

    >>> guess = predict("Can a GPU copy and compute at the same time?", ["yes", "no"], answer="yes")
    >>> guess.choose("yes").reveal()
    Can a GPU copy and compute at the same time?
    <BLANKLINE>
    You said: yes. The answer: yes. ✔ Right!
    """
    return Prediction(question, choices, answer, why)
