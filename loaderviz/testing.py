"""Three lines of a test that hold a training loop's numbers; pytest finds the fixture by itself.

    from loaderviz.testing import held

    def test_the_copy_is_hidden(timeline_of):
        timeline = timeline_of(train, model, loader, on="a100", host="laptop")
        held(timeline, overlap=0.9, step="2ms")

pytest imports this module in every project beside it, so torch is imported only where the fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from loaderviz.timeline import Timeline


def held(timeline: Timeline, **limits: float | str) -> None:
    """Raise `AssertionError` with the first finding where a number of the timeline is worse than its limit.

    A limit is the least for what is better when it is more (overlap, busy, samples_per_second), else the most: a
    number, in ns for times, or a text such as "2ms". Raises `LimitError` for a name that has none.
    """
    from loaderviz.analysis.report import BETTER, broken, report

    found = report(timeline)
    texts = {name: f"{name}={value}" for name, value in limits.items()}
    under = [text for name, text in texts.items() if BETTER.get(name, True)]
    said = broken(found, under, [text for text in texts.values() if text not in under])
    if said:
        first = found["advice"]["findings"][0]
        raise AssertionError("; ".join(said) + f". First finding: {first['kind']}: {first['evidence']}")


@pytest.fixture
def timeline_of() -> Callable[..., Timeline]:
    """Return a function that calls a loop in a recording and returns the timeline; see `loaderviz.record`."""
    from loaderviz.recording import record

    def recorded(loop: Callable[..., Any], *args: Any, on: str = "auto", host: str = "auto", **named: Any) -> Timeline:
        with record(on=on, host=host) as recording:
            loop(*args, **named)
        return recording.timeline

    return recorded
