"""The rules of CUDA and PyTorch that the emulated GPU obeys and that reports, findings and lessons cite, as text.

Each is held by the tests whose names begin with `test_r16_`; the texts are in `rules.toml`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from html import escape
from pathlib import Path

from loaderviz.errors import LoadervizError


class UnknownRuleError(LoadervizError, KeyError):
    """There is no rule of this name."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class Rule:
    """A rule: its name, what it says, and who says so. Prints as text; a card in a notebook."""

    name: str
    statement: str
    source: str

    def __str__(self) -> str:
        return f"{self.name}: {self.statement}\n(source: {self.source})"

    def _repr_html_(self) -> str:
        return (
            '<div style="border-left:4px solid #888;padding:.3em .8em;margin:.3em 0">'
            f"<b>{self.name}</b> {escape(self.statement)}<br><small>{escape(self.source)}</small></div>"
        )


def rule(name: str) -> Rule:
    """Return a rule by its name, such as "R16" (or 16). Raises `UnknownRuleError` for one that is not published.

    >>> print(rule("R24").statement)
    Each stream's launch queue holds about 1,000 commands; when it is full, the next launch blocks the host.
    """
    number = str(name).strip().upper().removeprefix("R")
    try:
        return RULES[f"R{number}"]
    except KeyError:
        raise UnknownRuleError(f"no rule {name!r}; there are {', '.join(RULES)}") from None


_TEXTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_SOURCES = _TEXTS.pop("sources")
RULES = {name: Rule(name, text["statement"], text["source"].format(**_SOURCES)) for name, text in _TEXTS.items()}
