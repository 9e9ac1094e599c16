"""Advice beside loops whose slow part is known: is it named first, is the change right, and is its gain as predicted?

    python -m benchmarks.causes               # all of them; the table goes to docs/advice.md
    python -m benchmarks.causes pageable own   # those whose name or author begins so, printed
    python -m benchmarks.causes gpu            # those that use a GPU, on the GPU that is there, printed

Each change that the first finding gives is really made, as arguments of the loop or, where a line has to be written
anew, by the repair that stands in the loop; then the loop is recorded again.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import statistics
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import loaderviz as lv
from benchmarks.loops import own, strangers
from benchmarks.loops.case import Case
from loaderviz import words
from loaderviz.analysis import WORTH_IT, Advice, Finding
from loaderviz.analysis.advice import LARGE, LOADS

PAGE = Path(__file__).parents[1] / "docs" / "advice.md"
HOSTS = ("workstation", "laptop", "auto", "cpu", "gpu")
WITHIN, SLACK = 0.15, 1.02  # of a predicted gain; a gain above its bound by less is one of rounding
MEASURED, TIMES = ("auto", "cpu", "gpu"), 3  # hosts that are this machine, which is not as fast twice
REAL_GAIN = 1.1  # a repair that gains less is none, and such a loop has nothing to gain
# A real host may be so slow that it sets the pace, whatever was put into a loop: the known repair is tried then, and
# this one where the loop has none
USUAL = {
    "copy-not-hidden": {"prefetch": 2},
    "pageable-copy": {"pinned": True},
    "waiting-for-data": {"workers": 8, "pinned": True},
    "fetch-in-loop": {"workers": 8, "pinned": True},
    "workers-cost-more": {"workers": 0},
}
IDLE = 0.3  # of the time
NOTHING = ("nothing-to-gain", "no-gpu-work", "cause-not-seen", "work-not-seen")
BESIDE = (  # told, but no cause of a step's time
    "start-up",
    "warm-up",
    "outlier-fetch",
    "memory-grows",
    "swaps",
    "cores-taken",
    "cold-cache",
    "uneven-steps",
    "too-many-workers",
)


@dataclass
class Row:
    """What was found of one loop on one host; steps in ns, None where they are not known."""

    case: Case
    author: str
    host: str
    first: Finding | None = None
    step: float | None = None
    after: float | None = None
    again: str = ""
    problem: str = ""
    by_host: bool = False  # its host sets the pace, and the known repair gains nothing

    @property
    def is_right(self) -> bool:
        """Whether the cause comes first, with its line."""
        if self.first is None:
            return False
        if self.by_host and self.first.kind in LARGE:
            return True
        if self.host == "gpu" and "unpriced" in self.case.kinds:  # there, all has its price
            return self.first.kind in LOADS
        return self.first.kind in self.case.kinds and (not self.case.line or self.named)

    @property
    def named(self) -> bool:
        """Whether the finding names the line that ends in the case's comment."""
        run, numbers = self.case.run, list[int]()
        for part in (run, *filter(inspect.isfunction, map(run.__globals__.get, run.__code__.co_names))):
            lines, start = inspect.getsourcelines(part)
            numbers += [start + row for row, line in enumerate(lines) if line.rstrip().endswith(f"# {self.case.line}")]
        return any(f":{number}" in self.first.evidence for number in numbers) if self.first else False

    @property
    def is_nothing(self) -> bool:
        """Whether the right answer is that nothing can be gained, or known."""
        return bool(set(self.case.kinds) & {*NOTHING, "unpriced"})

    @property
    def gained(self) -> float | None:
        """What the change has gained a step [ns]."""
        return self.step - self.after if self.step and self.after else None


def first_of(advice: Advice, kinds: Sequence[str] = ()) -> Finding | None:
    """Return the first finding that is about a step's time, or of these kinds, which are told beside those."""
    beside = set(kinds) & set(BESIDE)
    return next((each for each in advice if (each.kind in beside if beside else each.kind not in BESIDE)), None)


def recorded(case: Case, host: str, **change: object) -> lv.Timeline:
    """Return the timeline of the loop on this host."""
    on = {"cpu": {"on": "cpu"}, "gpu": {"on": "cuda"}}.get(host, {"on": "a100", "host": host})
    with contextlib.redirect_stdout(io.StringIO()), lv.record(**on) as recording:
        case.run(**change)
    return recording.timeline


def usual(case: Case, host: str, **change: object) -> lv.Timeline:
    """Return the timeline of the loop; where the host is this machine, of three the one whose step is in the middle."""
    made = [recorded(case, host, **change) for _ in range(TIMES if host in MEASURED else 1)]
    return sorted(made, key=lambda timeline: lv.summarize(timeline).step or 0)[len(made) // 2]


def is_by_host(case: Case, timeline: lv.Timeline) -> bool:
    """Whether the host sets the pace of a loop on a real GPU: that is idle, and the known repair gains little."""
    summary = lv.summarize(timeline)
    if (summary.busy or 0) > 1 - IDLE or "host-bound" in case.kinds or not summary.step:
        return False
    if set(case.kinds) & set(NOTHING):
        return True
    takes = inspect.signature(case.run).parameters
    change = {"repaired": True} if "repaired" in takes else USUAL.get(case.kinds[0], {})
    after = lv.summarize(usual(case, "gpu", **change)).step if change else None
    return bool(after) and summary.step < REAL_GAIN * after


def tried(case: Case, author: str, host: str) -> Row:
    """Record a loop, do what its first finding says, and record it again."""
    row = Row(case, author, host)
    try:
        timeline = usual(case, host)
        row.step, row.first = lv.summarize(timeline).step, first_of(lv.advise(timeline), case.kinds)
        row.by_host = host == "gpu" and is_by_host(case, timeline)
        if row.first is None or row.first.kind in NOTHING:
            return row
        change = dict(row.first.parameters) if row.first.parameters else {"repaired": True}
        after = usual(case, host, **change)
        row.after, again = lv.summarize(after).step, first_of(lv.advise(after), case.kinds)
        row.again = again.kind if again else ""
    except Exception as problem:  # a crash is a result
        row.problem = f"{type(problem).__name__}: {problem}"[:120]
    return row


def rows(wanted: list[str]) -> Iterator[Row]:
    """Give the rows of all loops, or of those whose name or author begins so, on all of their hosts or on those."""
    on = set(HOSTS) & set(wanted)
    names = [each for each in wanted if each not in on]
    for author in (own, strangers):
        name = author.__name__.rpartition(".")[2]
        for case in author.CASES:
            if not names or any(case.name.startswith(each) or name == each for each in names):
                real = ("gpu",) if set(case.hosts) - {"cpu"} else ()
                for host in [host for host in (*case.hosts, *real) if host in (on or case.hosts)]:
                    yield tried(case, name, host)


def line(row: Row) -> str:
    """Return a row of the table."""
    first, gain = row.first, row.first.expected_gain if row.first else None
    cells = [
        row.case.name.replace("_", " "),
        row.host,
        " or ".join(row.case.kinds),
        ("" if row.is_right else "**")
        + (first.kind if first else row.problem or "none")
        + ("" if row.is_right else "**"),
        words.duration(row.step) if row.step else "",
        words.duration(gain.predicted) if gain and gain.predicted else "",
        words.duration(row.gained) if row.gained is not None else "",
        words.duration(gain.per_step) if gain and gain.per_step else "",
        row.again if first and row.again != first.kind else f"**{row.again}**" if row.again else "",
    ]
    return f"| {' | '.join(cells)} |"


def shares(found: list[Row]) -> list[str]:
    """Return the numbers that are to be reached, as sentences."""
    if not found:
        return []
    faults = [row for row in found if not row.is_nothing and row.first and row.gained is not None]
    claims = [row for row in faults if row.first and row.first.expected_gain.per_step]  # others gain nothing a step
    predicted = [row for row in claims if row.first and row.first.expected_gain.predicted]
    near = [row for row in predicted if abs(row.gained / row.first.expected_gain.predicted - 1) <= WITHIN]  # type: ignore[operator, union-attr]
    held = [row for row in claims if row.gained <= row.first.expected_gain.per_step * SLACK]  # type: ignore[operator, union-attr]
    gone = [row for row in faults if row.again != row.first.kind]  # type: ignore[union-attr]
    ratios = [row.first.expected_gain.per_step / row.gained for row in claims if row.gained and row.gained > 0]  # type: ignore[union-attr, operator]
    useless = [row for row in claims if row.step and row.after and row.step < WORTH_IT * row.after]
    over = f"{statistics.median(ratios):.2f} in the median" if ratios else "not known"
    return [
        f"* {sum(row.is_right for row in found)} of {len(found)} loops: what is first is the cause.",
        f"* {len(near)} of {len(predicted)} predictions are within {words.share(WITHIN)} of what was gained.",
        f"* {len(claims) - len(predicted)} of {len(claims)} first findings have no prediction.",
        f"* {len(held)} of {len(claims)} gains are within their bound; bound over gain: {over}.",
        f"* {len(gone)} of {len(faults)} findings are gone once they are obeyed.",
        f"* {len(useless)} changes gained less than 3 %.",
        f"* {sum(bool(row.problem) for row in found)} ended with an error.",
    ]


HEAD = (
    "| loop | host | known cause | first finding | step | predicted gain | gain | bound | then |\n"
    "| :--- | :--- | :--- | :--- | ---: | ---: | ---: | ---: | :--- |"
)


def confusions(found: list[Row]) -> list[str]:
    """Return a table of how often which cause was found where another was known, and where it was right."""
    named = ("right" if row.is_right else row.first.kind if row.first else "nothing" for row in found)
    counts = Counter(zip((" or ".join(row.case.kinds) for row in found), named, strict=True))
    rows = [f"| {known} | {told} | {count} |" for (known, told), count in sorted(counts.items())]
    return ["| known cause | first finding | loops |", "| :--- | :--- | ---: |", *rows]


INTRODUCTION = f"""# Advice, held by experiments

`loaderviz.advise` names first what a loop should change, and says what that gains. Here are loops whose slow part is
known, since it was put there. Each was recorded, the first change that was advised was really made, and the loop was
recorded again. `own` are by those who wrote the analysis, `strangers` by somebody who had not read it.

A row is right if the known cause comes first and, where one line is to blame, its line is named. `gain` is what the
change really gained a step, `predicted gain` and `bound` are what the advice had said, `then` is the first finding
after the change. What is in bold is wrong. On the hosts `auto` and `cpu` times are this machine's, and each loop is
recorded {TIMES} times, of which the middle one counts. `python -m benchmarks.causes` makes this page, and
`python -m benchmarks.causes gpu` tries the loops on the GPU that is there; where its host sets the pace, and the known
repair gains less than {REAL_GAIN - 1:.0%}, "host-bound" is right.
"""


def main(wanted: list[str]) -> None:
    """Print the table as it grows; write the page where all loops were run."""
    os.environ.setdefault("LOADERVIZ_OFFLINE", "1")
    warnings.simplefilter("ignore")
    found = []
    print(HEAD)
    for row in rows(wanted):
        found.append(row)
        print(line(row), row.problem, flush=True)
    parts = []
    for author in ("own", "strangers"):
        mine = [row for row in found if row.author == author]
        parts += [f"## {author.capitalize()}", "", *shares(mine), "", HEAD, *map(line, mine), ""]
        print(author, *shares(mine), sep="\n")
    if not wanted:
        PAGE.write_text(
            "\n".join([INTRODUCTION, "## What was taken for what", "", *confusions(found), "", *parts]),
            encoding="utf-8",
        )


if __name__ == "__main__":
    main(sys.argv[1:])
