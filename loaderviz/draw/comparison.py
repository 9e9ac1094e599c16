"""Several timelines side by side: one figure with one time axis, one table, one utilisation curve each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from loaderviz import metrics, words
from loaderviz.draw import page, theme
from loaderviz.draw.detail import BUDGET
from loaderviz.draw.single import DrawError, bundle_of, check_options
from loaderviz.draw.single import text as text_of
from loaderviz.metrics import Summary
from loaderviz.timeline import Timeline

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Comparison:
    """Timelines by name, in the order given. Displaying it in a notebook shows the figure and the table."""

    timelines: dict[str, Timeline]
    options: dict[str, Any]

    def figure(self, **options: Any) -> go.Figure:
        """Return all timelines below each other on one time axis, each starting at 0.

        Options, as in `draw.figure`: `color`, `arrows`, `operators`, `title`, `budget` (bars in all).
        """
        wanted: dict[str, Any] = {"color": "batch", "arrows": False, "operators": False, "title": None}
        wanted["budget"] = BUDGET
        if unknown := (self.options | options).keys() - wanted:
            raise DrawError(f"compare() has no option {', '.join(sorted(unknown))}; it has {', '.join(wanted)}")
        wanted |= self.options | options
        arrows = check_options(wanted["color"], wanted["arrows"], wanted["budget"])
        shown = [(name, timeline, timeline.begin) for name, timeline in self.timelines.items()]
        unit, unit_name = page.time_unit(max(timeline.duration for timeline in self.timelines.values()))
        parts = page.place(shown, wanted["operators"], wanted["budget"])
        look = page.Look(wanted["color"] == "batch", arrows, unit, unit_name)
        title = self._finding() if wanted["title"] is None else wanted["title"]
        return page.draw(parts, look, escape(title, quote=False), escape(self._contexts(), quote=False), self.text())

    def summaries(self) -> dict[str, Summary]:
        """Return the Summary of each timeline."""
        return {name: metrics.summarize(timeline) for name, timeline in self.timelines.items()}

    def table(self) -> pd.DataFrame:
        """Return one row per timeline; the units are in the column names, missing numbers are NaN.

        `speed-up` is against the first timeline: by samples/s, else by step time, else by makespan.
        """
        import pandas as pd

        summaries = self.summaries()
        first = next(iter(summaries.values()))
        rows = {name: _row(summary) | {"speed-up": _speedup(first, summary)} for name, summary in summaries.items()}
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("timeline")

    def printed(self) -> pd.DataFrame:
        """Return the table as words: each column with the decimals that its largest number needs."""
        table = self.table().rename_axis(None).astype(float)
        return table.apply(lambda column: [_printed(value, _decimals(column)) for value in column])

    def utilization(self, window_ns: int | None = None) -> go.Figure:
        """Return the GPU-utilisation curves: share of each sampling window with a kernel, as nvidia-smi shows it.

        `window_ns` is the sampling window; None takes about a fortieth of the longest timeline.
        """
        longest = max(timeline.duration for timeline in self.timelines.values())
        window = _round_window(longest / 40) if window_ns is None else window_ns
        unit, unit_name = page.time_unit(longest)
        count = len(self.timelines)
        headings = [f"{escape(name, quote=False)}: {_mean_utilization(each)}" for name, each in self.timelines.items()]
        figure = make_subplots(rows=count, shared_xaxes=True, vertical_spacing=0.28 / count, subplot_titles=headings)
        for number, timeline in enumerate(self.timelines.values()):
            edges, share = metrics.utilization(timeline, window)
            figure.add_scatter(
                x=(edges - timeline.begin) / unit, y=100 * np.r_[share, share[-1:]], row=number + 1, col=1,
                mode="lines", line={"color": theme.BLUE, "shape": "hv", "width": 1.5}, fill="tozeroy",
                fillcolor=theme.SKY, hovertemplate=f"%{{y:.0f}} % from %{{x:.4g}} {unit_name}<extra></extra>",
            )  # fmt: skip
        title = f"GPU utilisation: share of each {words.duration(window)} in which a kernel runs"
        figure.update_layout(
            template=theme.TEMPLATE, meta={"text": title + ". " + "; ".join(headings)}, title={"text": title},
            height=110 * count + 130, margin={"l": 70, "r": 24, "t": 84, "b": 56}, showlegend=False,
        )  # fmt: skip
        figure.update_annotations(x=0, xanchor="left", font_size=theme.TEXT_PX + 1)
        figure.update_xaxes(range=[0, 1.005 * longest / unit], exponentformat="none", separatethousands=True)
        figure.update_xaxes(title_text=f"time [{unit_name}]", row=count, col=1)
        figure.update_yaxes(range=[0, 105], tickvals=[0, 50, 100], ticktext=["0 %", "50 %", "100 %"])
        return figure

    def text(self) -> str:
        """Return all of it in words, a line per timeline."""
        return "\n".join(text_of(timeline, name) for name, timeline in self.timelines.items())

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return bundle_of(self.figure(), self.text())

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(self._repr_mimebundle_(), raw=True)
        display(self.printed())

    def _finding(self) -> str:
        summaries = self.summaries()
        speeds = {name: _speedup(next(iter(summaries.values())), summary) for name, summary in summaries.items()}
        known = {name: speed for name, speed in speeds.items() if speed is not None}
        if len(known) < 2:
            return " and ".join(summaries)
        first, best = next(iter(summaries)), max(known, key=lambda name: known[name])
        if best == first:
            second = max((name for name in known if name != first), key=lambda name: known[name])
            speed = words.times(known[first] / known[second])
            return f"{first} is {'' if len(known) == 2 else 'the fastest, '}{speed} as fast as {second}"
        after, before = (words.share(summaries[name].compute_share) for name in (best, first))
        speed = words.times(known[best])
        return f"{best} is {speed} as fast as {first}: the GPU computes {after} of the time instead of {before}"

    def _contexts(self) -> str:
        contexts = [timeline.context for timeline in self.timelines.values()]
        return "; ".join(dict.fromkeys(f"{context.device}, {context.origin}" for context in contexts))


def compare(timelines: Mapping[str, Timeline], **options: Any) -> Comparison:
    """Return several timelines side by side; the options are those of `Comparison.figure`, such as `color="kind"`.

        both = compare({"blocking": t1, "pinned": t2})
        both.table()["speed-up"]

    Raises `DrawError` for an empty mapping or an unknown option, `NotATimelineError` for a value that is no Timeline.
    """
    if not isinstance(timelines, Mapping):
        kind = type(timelines).__name__
        raise metrics.NotATimelineError(f"compare() needs a dict of name -> Timeline, got {kind}; give {{'name': it}}")
    if not timelines:
        raise DrawError("compare() got no timelines; give at least one, such as {'blocking': timeline}")
    for name, timeline in timelines.items():
        metrics.check_timeline(timeline, f"compare(), for {name!r},")
    comparison = Comparison({str(name): timeline for name, timeline in timelines.items()}, options)
    comparison.figure()  # a wrong option is told here, not when it is displayed
    return comparison


def _row(summary: Summary) -> dict[str, float | None]:
    percent = {"busy": summary.compute_share, "hidden": summary.overlap}
    in_percent = {name: None if value is None else 100 * value for name, value in percent.items()}
    return {
        "makespan [ms]": summary.window / 1e6,
        "step [µs]": None if summary.step is None else summary.step / 1e3,
        "samples/s": summary.samples_per_second,
        "GPU computes [%]": in_percent["busy"],
        "copy [ms]": summary.copy / 1e6,
        "copy hidden [%]": in_percent["hidden"],
        "copy exposed [ms]": summary.exposed_copy / 1e6,
        "host blocked [ms]": sum(summary.host_blocked.values()) / 1e6,
        "limit [ms]": summary.limit / 1e6,
        "headroom": summary.headroom,
    }


def _decimals(column: pd.Series) -> int:
    """Return how many decimals a column of the table has: four digits in all for times, few for shares and factors."""
    name = str(column.name)
    largest = column.abs().max()
    if "[" not in name:
        return 0 if largest >= 1_000 else 2
    if name.endswith("[%]"):
        return 1
    power = int(np.floor(np.log10(largest))) if largest > 0 else 0
    return max(0, 3 - power) if power >= 0 else min(6, 2 - power)


def _printed(value: float, decimals: int) -> str:
    return "–" if value != value else f"{value:,.{decimals}f}"


def _mean_utilization(timeline: Timeline) -> str:
    summary = metrics.summarize(timeline)
    mean = _ratio(summary.kernels, summary.window)
    return "no work on the GPU" if not mean else f"{words.share(mean)} of {words.duration(summary.window)}"


def _speedup(first: Summary, other: Summary) -> float | None:
    if first.samples_per_second and other.samples_per_second:
        return other.samples_per_second / first.samples_per_second
    if first.step and other.step:
        return first.step / other.step
    return _ratio(first.window, other.window)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _round_window(ns: float) -> int:
    """Return 1, 2 or 5 times a power of ten near `ns`, at least 1 µs."""
    power = 10 ** int(np.floor(np.log10(max(ns, 1_000))))
    return int(power * min((1, 2, 5, 10), key=lambda step: abs(step * power - ns)))
