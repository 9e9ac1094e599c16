"""Advice, Finding and Gain: what `advise` returns, and how it reads in a terminal, a notebook and a page.

advice.py    the findings, and `loaderviz.advise`     evidence.py  what a finding may ask a timeline
what_if.py   the loop with another loader, predicted  ranks.py     several ranks beside each other
validate.py  the emulator's prices beside a trace, and a machine made of one
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Literal

from loaderviz import words

if TYPE_CHECKING:
    from loaderviz.timeline import Cause, Kind, Timeline

WORTH_IT = 1.03  # a gain of less than 3 % is not worth a change of the program


@dataclass(frozen=True)
class Gain:
    """What a change can gain at most: `ns` in the window, its `share` of it (0..1), and `per_step` ns if known.

    `basis` is the closed form in words, with its numbers; `once` says that the cost is not paid in each step.
    """

    ns: int
    share: float
    per_step: float | None
    basis: str = ""
    once: bool = False

    def __str__(self) -> str:
        if not self.ns:
            return "nothing a step, it is paid once" if self.once else "nothing"
        time = words.duration(self.ns) if self.per_step is None else f"{words.duration(self.per_step)} a step"
        return f"up to {time} ({words.share(self.share)})"


NO_GAIN = Gain(0, 0.0, None)


def is_worth_it(gain: Gain, window: int) -> bool:
    """Tell whether the loop would be at least 3 % faster."""
    return gain.ns > 0 and window >= WORTH_IT * (window - gain.ns)


@dataclass(frozen=True)
class Subject:
    """What in a timeline a finding is about, so that a picture can point to it: spans, or a time.

    Spans are those of `kinds`, of waits only those with one of `causes`, of copies only `pageable` ones if that is set.
    A `time` is what passes while the GPU is "idle", the "start-up" before the judged window, or what is "outside" of
    its steps.
    """

    kinds: tuple[Kind, ...] = ()
    causes: tuple[Cause, ...] = ()
    pageable: bool = False
    time: Literal["", "idle", "outside", "start-up"] = ""


@dataclass(frozen=True)
class Finding:
    """One thing that costs time: what kind of thing, the evidence in numbers, the line of code to change, the gain.

    `expected_gain` is an upper bound; it is 0 for what is paid once and for a finding that nothing can be gained.
    `predicted` is the timeline that `asked`, a call of what_if(), gives for the change; None where it cannot tell.
    """

    kind: str
    evidence: str
    change: str
    expected_gain: Gain
    asked: str = ""
    predicted: Timeline | None = field(default=None, compare=False, repr=False)
    subject: Subject = field(default=Subject(), repr=False)

    @property
    def title(self) -> str:
        """The kind and the gain, in one line."""
        return f"{self.kind}: {self.expected_gain}" if self.expected_gain.ns or self.expected_gain.once else self.kind

    @property
    def rule(self) -> str:
        """The former name of `kind`; a rule is one of CUDA or PyTorch (`loaderviz.rule`)."""
        warnings.warn("finding.rule is called finding.kind now", DeprecationWarning, stacklevel=2)
        return self.kind

    def __str__(self) -> str:
        code = self.change.replace("\n", f"\n{'':10}")  # as it is, to be copied
        seen, gain = (
            words.wrapped(text, f"  {name:8}", 10)
            for name, text in (("seen", self.evidence), ("gain", self.expected_gain.basis))
        )
        return "\n".join(part for part in (self.title, seen, code and f"  change  {code}", gain) if part)


class Advice(list[Finding]):
    """The findings about one timeline, the largest gain first; prints as text, as HTML in a notebook.

    `judged` says in words which part of the timeline was looked at, `window` is that part in ns.
    """

    def __init__(self, findings: Iterable[Finding], judged: str, window: tuple[int, int]) -> None:
        super().__init__(findings)
        self.judged, self.window = judged, window

    def __str__(self) -> str:
        return "\n\n".join([words.wrapped(self.judged), *(f"{number}. {each}" for number, each in enumerate(self, 1))])

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        return "\n".join(
            [f"{words.markdown(self.judged)}\n", *(_as_markdown(number, each) for number, each in enumerate(self, 1))]
        )

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.judged)}</p><ol>{''.join(map(_as_html, self))}</ol>"


def _as_markdown(number: int, finding: Finding) -> str:
    title = words.markdown(finding.title).replace(words.markdown(finding.kind), f"**{finding.kind}**", 1)
    lines = [f"{number}. {title}", "", f"   {words.markdown(finding.evidence)}"]
    if finding.change:
        code = finding.change.replace("\n", "\n   ")
        lines += ["", f"   ```python\n   {code}\n   ```"]
    if finding.expected_gain.basis:
        lines += ["", f"   Gain: {words.markdown(finding.expected_gain.basis)}."]
    return "\n".join([*lines, ""])


def _as_html(finding: Finding) -> str:
    title = escape(finding.title).replace(finding.kind, f"<b>{finding.kind}</b>", 1)
    text = f"<p>{title}</p><p>{escape(finding.evidence)}</p>"
    if finding.change:
        text += f"<pre>{escape(finding.change)}</pre>"
    if finding.expected_gain.basis:
        text += f"<p>Gain: {escape(finding.expected_gain.basis)}.</p>"
    return f"<li>{text}</li>"
