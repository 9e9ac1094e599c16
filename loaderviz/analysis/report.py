"""A timeline's numbers for programs: as plain values, held against limits, and one run beside another.

report(timeline)                                   # for JSON; "schema" counts its changes
read_report("before.json")                         # one that was saved
broken(report(timeline), under=["overlap=0.9"])    # a sentence for each limit that is not kept
differences(before, after)                         # each number with its change, and its noise where that is known
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loaderviz import intervals, words
from loaderviz.analysis import SCHEMA, Advice
from loaderviz.analysis.advice import advise
from loaderviz.analysis.evidence import Evidence
from loaderviz.errors import LoadervizError
from loaderviz.files import Source, readable
from loaderviz.intervals import Intervals
from loaderviz.metrics import Summary, check_timeline, summarize
from loaderviz.timeline import COPIES, Floats, Ints, Kind, Timeline

# Numbers of a Summary that limits are for, and whether more of it is better; those in ns may be given with a unit.
BETTER = {
    "overlap": True,
    "busy": True,
    "samples_per_second": True,
    "step": False,
    "exposed_copy": False,
    "idle": False,
    "headroom": False,
    "copy_share": False,
}
TIMES, SHARES = ("step", "exposed_copy", "idle"), ("overlap", "busy", "copy_share")
UNITS = {"": 1.0, "ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9, "%": 0.01}
SURE = 2.0  # times the noise: a smaller change is none


class LimitError(LoadervizError, ValueError):
    """A limit that cannot be read, or of a number that there is not."""


class ReportError(LoadervizError, ValueError):
    """What is no report of this schema; the message says what is wrong with it."""


def report(timeline: Timeline, hazards: int = 0, advice: Advice | None = None) -> dict[str, Any]:
    """Return what is known of a timeline, ready for JSON: times in ns, shares 0..1, `None` for what was not measured.

    `advice` is what `advise(timeline)` gave, where it is there already.

    >>> report(timeline)["summary"]["overlap"]
    0.0
    """
    summary, context = summarize(check_timeline(timeline, "report()")), timeline.context
    return {
        "schema": SCHEMA,
        "device": context.device,
        "origin": context.origin,
        "host": context.host,
        "summary": summary.to_dict(),
        "noise": _noise(timeline, summary),
        "hazards": hazards,
        "advice": (advise(timeline) if advice is None else advice).to_dict(),
        "notes": list(context.notes),
    }


def read_report(file: str | Path) -> dict[str, Any]:
    """Return a report from its file. Raises `ReportError` for any other file, `FileError` for none."""
    try:
        found = json.loads(Source(readable(file)).whole())
        fault = _fault(found)
    except (ValueError, RecursionError) as problem:
        found, fault = {}, f"it is no JSON: {problem}"
    if fault:
        raise ReportError(f"{file} is no report, since {fault}. Make one with `loaderviz run --json FILE`")
    return dict(found)


def _fault(found: Any) -> str:
    """Say what is wrong with a report: all that is compared has to be there, as a finite number or null."""
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        return f"it has no entry 'schema' of {SCHEMA}"
    for part, missing in ("summary", "missing"), ("noise", None):
        values = found.get(part)
        if not isinstance(values, dict):
            return f"its {part!r} is {str(values)[:40]}"
        for name in BETTER:
            value: Any = values.get(name, missing)
            finite = type(value) in (int, float) and abs(value) < sys.float_info.max  # NaN is not
            if not (finite or value is None):
                return f"its {name!r} in {part!r} is {str(value)[:40]}"
    return ""


def _noise(timeline: Timeline, summary: Summary) -> dict[str, float | None]:
    """Return how far each number may be off by chance, in its unit, from how its steps differ; None: not known."""
    facts = Evidence(timeline, summary.device)

    def each(when: Intervals) -> Ints:
        return intervals.covered_within(when, facts.begins[:-1], facts.begins[1:])

    time, works, copying = each(facts.judged), each(facts.covered(facts.here)), facts.covered(facts.mask(*COPIES))
    copies, hidden = each(copying), each(intervals.intersect(copying, facts.kernels))
    engine = {"kernels": Kind.COMPUTE, "H2D copies": Kind.COPY_H2D, "D2H copies": Kind.COPY_D2H}.get(summary.longest)
    one, samples = np.ones(len(time)), (summary.samples_per_second or 0) * time.sum() / max(1, len(time))
    whole = one / max(1, summary.batches or 0)  # of a time in the window, which has so many steps
    parts: dict[str, tuple[Any, Any]] = {
        "overlap": (hidden, copies),
        "busy": (works, time),
        "samples_per_second": (samples * one, time),
        "step": (time, one),
        "exposed_copy": (copies - hidden, whole),
        "idle": (time - works, whole),
        "headroom": (time, each(facts.covered(facts.mask(engine))) if engine is not None else 0 * one),
        "copy_share": (copies, time),
    }
    found = summary.to_dict()
    return {name: None if found[name] is None else _error(*pair) for name, pair in parts.items()}


def _error(parts: Floats | Ints, wholes: Floats | Ints) -> float | None:
    """Return the standard error of the ratio of both sums, of which each step gives a part; None for fewer than 3."""
    if len(parts) < 3 or not wholes.sum():
        return None
    off = parts - parts.sum() / wholes.sum() * wholes
    return float(off.std(ddof=1) * math.sqrt(len(parts)) / wholes.sum())


@dataclass(frozen=True)
class Limit:
    """A number's name, and the value that it has to keep, or the share of what it was by which it may get worse."""

    name: str
    value: float


def limit(text: str, *, change: bool = False) -> Limit:
    """Read "overlap=0.9" or "step=2ms"; or a `change`, such as "step=10%". Raises `LimitError`.

    >>> limit("step=2ms")
    Limit(name='step', value=2000000.0)
    """
    match = re.fullmatch(r"(\w+)=([\d.]+)\s*(|ns|us|µs|ms|s|%)", text.strip())
    if match is None:
        raise LimitError(f"{text!r} is no limit: write NAME=NUMBER, such as overlap=0.9, step=2ms or step=10%")
    name, number, unit = match.groups()
    if name not in BETTER:
        raise LimitError(f"{name!r} has no limit: give one of {', '.join(BETTER)}")
    if change and unit != "%":
        raise LimitError(f"{text!r}: a change needs a share, such as {name}=10%")
    if unit == "%" and not change and name not in SHARES:
        raise LimitError(f"{text!r}: one run has no change in it; `loaderviz diff` compares two")
    if unit not in ("", "%") and name not in TIMES:
        raise LimitError(f"{text!r}: {name} is no time, so it has no {unit}")
    try:
        return Limit(name, float(number) * UNITS[unit])
    except ValueError as problem:
        raise LimitError(f"{text!r}: {number!r} is no number") from problem


def broken(found: Mapping[str, Any], under: Sequence[str] = (), over: Sequence[str] = ()) -> list[str]:
    """Return a sentence for each number that is `under` or `over` its limit, or that was not measured."""
    said = []
    for text, is_under in [*((each, True) for each in under), *((each, False) for each in over)]:
        asked = limit(text)
        value = found["summary"][asked.name]
        if value is None:
            said.append(f"{asked.name} was not measured, and is to be {_told(asked.name, asked.value)}")
        elif (value < asked.value) if is_under else (value > asked.value):
            way = "under" if is_under else "over"
            said.append(f"{asked.name} is {_told(asked.name, value)}: {way} {_told(asked.name, asked.value)}")
    return said


@dataclass(frozen=True)
class Difference:
    """A number before and after; `change` is a share of what it was, `noise` the part of it that may be chance."""

    name: str
    before: float | None
    after: float | None
    change: float | None
    noise: float | None

    @property
    def is_worse(self) -> bool:
        """Whether it is worse, by more than chance."""
        if self.change is None:
            return False
        worse = -self.change if BETTER[self.name] else self.change
        return worse > SURE * (self.noise or 0.0)

    def __str__(self) -> str:
        values = " -> ".join(
            "not measured" if each is None else _told(self.name, each) for each in (self.before, self.after)
        )
        if self.change is None:
            return f"{self.name}: {values}"
        noise = f", ± {words.share(self.noise)}" if self.noise is not None else ""
        return f"{self.name}: {values} ({self.change:+.1%}{noise})"


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """Return each number of two reports beside each other."""
    found = []
    for name in BETTER:
        old, new = (each["summary"][name] for each in (before, after))
        noises = [each["noise"].get(name) for each in (before, after)]
        change = (new - old) / old if old and new is not None else None
        known = [each for each in noises if each is not None]
        noise = math.hypot(*known) / abs(old) if known and old else None
        found.append(Difference(name, old, new, change, noise))
    return found


def regressions(found: Sequence[Difference], over: Sequence[str]) -> list[str]:
    """Return a sentence for each number that got worse by more than its limit, such as "step=10%", and than chance."""
    said = []
    for asked in (limit(text, change=True) for text in over):
        mine = next(each for each in found if each.name == asked.name)
        if mine.change is None:
            said.append(f"{mine}: it was not measured in both")
        elif mine.is_worse and abs(mine.change) > asked.value:
            said.append(f"{mine}: worse by more than {words.share(asked.value)}")
    return said


def _told(name: str, value: float) -> str:
    return words.duration(value) if name in TIMES else f"{value:,.4g}"
