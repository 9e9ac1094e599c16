"""A loop whose slow part is known: what the first finding must be, where it is run, which line is to be named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Case:
    """A program as a newcomer wrote it: `run()`; `run(**change)` and `run(repaired=True)` are what may be done to it.

    `kinds`: what the first finding may be. `hosts`: presets, "auto" (both emulated) or "cpu". `line`: the comment at
    the end of the line that the finding has to name, "" for none.
    """

    run: Callable[..., Any]
    kinds: tuple[str, ...]
    hosts: tuple[str, ...]
    line: str

    @property
    def name(self) -> str:
        """The function's name."""
        return self.run.__name__


def case(
    *kinds: str, hosts: tuple[str, ...] = ("workstation",), line: str = ""
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Note the decorated loop in its module's `CASES`."""

    def note(run: Callable[..., Any]) -> Callable[..., Any]:
        run.__globals__.setdefault("CASES", []).append(Case(run, kinds, hosts, line))
        return run

    return note


def case_device() -> str:
    """Return "cuda" in a recording with a GPU, emulated or not, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"
