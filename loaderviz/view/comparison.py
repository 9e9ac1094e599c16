"""Several timelines side by side: one picture on one time axis, one table, one utilisation curve each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from loaderviz import metrics, words
from loaderviz.errors import require
from loaderviz.metrics import Summary
from loaderviz.timeline import Timeline
from loaderviz.view import spoken
from loaderviz.view.pack import Json, Part
from loaderviz.view.picture import View, ViewError

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from loaderviz.analysis import Advice

_STORY = ("step", "GPU computes", "copy hidden", "speed-up")  # the rest of the table is folded


@dataclass(frozen=True, repr=False)
class Comparison(View):
    """Timelines by name, in the order given. Displaying it in a notebook shows the picture and the table."""

    def part(self, name: str) -> Part:
        """Return one of the timelines as the view has it, with what it says and its numbers."""
        timeline = self.timelines[name]
        told = spoken.headline(timeline) if self.verdict else ""
        hero = _hero(metrics.summarize(timeline), self.speedups[name])
        return replace(super().part(name), folded=self.folded, hero=hero, finding=told)

    def summaries(self) -> dict[str, Summary]:
        """Return the Summary of each timeline."""
        return {name: metrics.summarize(timeline) for name, timeline in self.timelines.items()}

    @cached_property
    def speedups(self) -> dict[str, float | None]:
        """Return how many times as fast as the first each is: by samples/s, else by step time, else by the window."""
        summaries = self.summaries()
        first = next(iter(summaries.values()))
        return {name: _speedup(first, summary) for name, summary in summaries.items()}

    def table(self) -> pd.DataFrame:
        """Return one row per timeline; the units are in the column names, missing numbers are NaN.

        "speed-up" is that of `speedups`; "start-up" is what passes before the window, and is in no other column.
        """
        require("the table of a comparison", "pandas")
        import pandas as pd

        summaries, columns = self.summaries().values(), {}
        for name, (unit, _, of) in _COLUMNS.items():
            numbers = (of(summary) for summary in summaries)
            columns[name + unit] = [None if each is None else _UNITS[unit](each) for each in numbers]
        columns["speed-up"] = list(self.speedups.values())
        return pd.DataFrame(columns, index=list(self.timelines)).rename_axis("timeline")

    def printed(self) -> pd.DataFrame:
        """Return the table as words; a "start-up" of nothing, as after a warm-up, is no column."""
        require("the table of a comparison", "pandas")
        import pandas as pd

        return pd.DataFrame(self._columns(), index=list(self.timelines))

    def utilization(self, window_ns: int | None = None) -> go.Figure:
        """Return the GPU-utilisation curves: share of each sampling window with a kernel, as nvidia-smi shows it.

        `window_ns` is the sampling window; None takes about a fortieth of the longest timeline.
        """
        require("a figure", "plotly")
        from loaderviz.view.figure import utilization

        longest = max(timeline.duration for timeline in self.timelines.values())
        return utilization(self.timelines, _round_window(longest / 40) if window_ns is None else window_ns)

    def finding(self) -> str:
        """Return which is the fastest, and why."""
        summaries = self.summaries()
        known = {name: speed for name, speed in self.speedups.items() if speed is not None}
        if len(known) < 2:
            return " and ".join(summaries)
        first, best = next(iter(summaries)), max(known, key=lambda name: known[name])
        if best == first:
            second = max((name for name in known if name != first), key=lambda name: known[name])
            times, most = known[first] / known[second], "" if len(known) == 2 else "the fastest, "
            return spoken.fastest(first, second, times) or f"{first} is {most}{words.times(times)} as fast as {second}"
        after, before = (words.share(summaries[name].compute_share) for name in (best, first))
        told = spoken.fastest(best, first, known[best], after=after, before=before)
        speed = words.times(known[best])
        return told or f"{best} is {speed} as fast as {first}: the GPU computes {after} of the time instead of {before}"

    @cached_property
    def subtitle(self) -> str:
        """Where the timelines come from."""
        contexts = (timeline.context for timeline in self.timelines.values())
        return "; ".join(dict.fromkeys(f"{context.device}, {context.origin}" for context in contexts))

    def below(self) -> str:
        """Return the table: the columns that tell the story, and behind a click all of them."""
        if not self.told:
            return ""
        columns = self._columns()
        story = {name: columns[name] for name in _STORY}
        rest = f"<details><summary>all numbers</summary>{_html(columns, self.timelines)}</details>"
        table = _html(story, self.timelines) + rest
        return table if self.verdict else f"<details><summary>the numbers</summary>{table}</details>"

    def _columns(self) -> dict[str, list[str]]:
        """Return the columns of the table as words."""
        summaries = self.summaries().values()
        said = {name: [say(of(summary)) for summary in summaries] for name, (_, say, of) in _COLUMNS.items()}
        if not any(summary.start_up for summary in summaries):
            del said["start-up"]
        return said | {"speed-up": list(map(words.times, self.speedups.values()))}


def compare(
    timelines: Mapping[str, Timeline],
    color: str = "batch",
    operators: bool = False,
    title: str | None = None,
    verdict: bool = True,
    folded: bool = True,
    advice: Mapping[str, Advice] | None = None,
) -> Comparison:
    """Return several timelines side by side; the options are those of `View`, such as `color="kind"`.

    Each timeline has one row, "what the GPU does", so that all of them fit on the screen. A click on a name shows the
    lanes of that timeline, and `folded=False` shows those of all.

    >>> both = loaderviz.compare({"blocking": timeline, "prefetch": loaderviz.what_if(timeline, prefetch=2)})
    >>> both.table()["speed-up"].round(2).tolist()
    [1.0, 2.06]

    Raises `ViewError` for an empty mapping or a wrong option, `NotATimelineError` for a value that is no Timeline.
    """
    if not isinstance(timelines, Mapping):
        kind = type(timelines).__name__
        raise metrics.NotATimelineError(f"compare() needs a dict of name -> Timeline, got {kind}; give {{'name': it}}")
    if not timelines:
        raise ViewError("compare() got no timelines; give at least one, such as {'blocking': timeline}")
    for name, timeline in timelines.items():
        metrics.check_timeline(timeline, f"compare(), for {name!r},")
    named = {str(name): timeline for name, timeline in timelines.items()}
    folded = folded and len(named) > 1
    return Comparison(named, color, operators, title, verdict=verdict, folded=folded, advice=advice or {})


def _hero(summary: Summary, speedup: float | None) -> Json:
    """Return the numbers beside a timeline's row; times are of a step, or of the window where no step is known [ns]."""
    steps = summary.window / summary.step if summary.step else 1
    return {
        "step": summary.step,
        "speedup": speedup,
        "exposed": round(summary.exposed_copy / steps),
        "hidden": round(summary.hidden_copy / steps),
        "idle": round(summary.idle / steps),
        "busy": summary.compute_share,
    }


def _html(columns: Mapping[str, list[str]], names: Mapping[str, Any]) -> str:
    rows = zip(map(escape, names), *columns.values(), strict=True)
    return words.table(["", *map(escape, columns)], rows, "h")


_UNITS: dict[str, Callable[[float], float]] = {  # what stands in the head of a column, and its numbers of ns or shares
    "": lambda value: value,
    " [ms]": lambda ns: ns / 1e6,
    " [µs]": lambda ns: ns / 1e3,
    " [%]": lambda share: 100 * share,
}
_Number = Callable[[Summary], float | None]
_COLUMNS: dict[str, tuple[str, Callable[[float | None], str], _Number]] = {  # a unit, how it is said, and what it is
    "start-up": (" [ms]", words.duration, lambda summary: summary.start_up),
    "window": (" [ms]", words.duration, lambda summary: summary.window),
    "step": (" [µs]", words.duration, lambda summary: summary.step),
    "samples/s": ("", words.rate, lambda summary: summary.samples_per_second),
    "GPU computes": (" [%]", words.share, lambda summary: summary.compute_share),
    "copy": (" [ms]", words.duration, lambda summary: summary.copy),
    "copy hidden": (" [%]", words.share, lambda summary: summary.overlap),
    "copy exposed": (" [ms]", words.duration, lambda summary: summary.exposed_copy),
    "host blocked": (" [ms]", words.duration, lambda summary: sum(summary.host_blocked.values())),
    "limit": (" [ms]", words.duration, lambda summary: summary.limit),
    "headroom": ("", words.times, lambda summary: summary.headroom),
}


def _speedup(first: Summary, other: Summary) -> float | None:
    if first.samples_per_second and other.samples_per_second:
        return other.samples_per_second / first.samples_per_second
    if first.step and other.step:
        return first.step / other.step
    return first.window / other.window if other.window else None


def _round_window(ns: float) -> int:
    power = 10 ** int(np.floor(np.log10(max(ns, 1_000))))
    return int(power * min((1, 2, 5, 10), key=lambda step: abs(step * power - ns)))
