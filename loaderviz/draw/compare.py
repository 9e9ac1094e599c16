"""Several timelines side by side: one figure with one time axis, one table, one utilisation curve each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from loaderviz import metrics, words
from loaderviz.draw import page, theme
from loaderviz.draw import figure as single
from loaderviz.draw.detail import BUDGET
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
        wanted: dict[str, Any] = {"color": "batch", "arrows": False, "operators": False, "title": None, "budget": BUDGET}
        if unknown := (self.options | options).keys() - wanted:
            raise single.DrawError(f"compare() has no option {', '.join(sorted(unknown))}; it has {', '.join(wanted)}")
        wanted |= self.options | options
        arrows = single.check_options(wanted["color"], wanted["arrows"], wanted["budget"])
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

    def utilization(self, window_ns: int | None = None) -> go.Figure:
        """Return the GPU-utilisation curves: share of each sampling window with a kernel, as nvidia-smi shows it.

        `window_ns` is the sampling window; None takes about a fortieth of the longest timeline.
        """
        longest = max(timeline.duration for timeline in self.timelines.values())
        window = _round_window(longest / 40) if window_ns is None else window_ns
        unit, unit_name = page.time_unit(longest)
        figure = go.Figure(layout={"template": theme.TEMPLATE, "meta": {"text": self.text()}})
        for number, (name, timeline) in enumerate(self.timelines.items()):
            edges, share = metrics.utilization(timeline, window)
            color, dash = theme.LINES[number % len(theme.LINES)]
            mean = metrics.summarize(timeline)
            figure.add_scatter(
                x=(edges - timeline.begin) / unit, y=100 * np.r_[share, share[-1:]] if len(share) else [],
                name=f"{escape(name, quote=False)} (mean {words.share(_ratio(mean.kernels, mean.window))})",
                mode="lines", line={"color": color, "dash": dash, "shape": "hv", "width": 2},
                hovertemplate="%{y:.0f} % from %{x:.4g} " + unit_name,
            )  # fmt: skip
        figure.update_layout(
            title={"text": f"GPU utilisation: share of each {words.duration(window)} in which a kernel runs"},
            height=360, margin={"l": 70, "r": 20, "t": 60, "b": 52}, hovermode="x",
        )  # fmt: skip
        figure.update_xaxes(title_text=f"time [{unit_name}]", rangemode="tozero")
        figure.update_yaxes(title_text="utilisation [%]", range=[-2, 103])
        return figure

    def text(self) -> str:
        """Return all of it in words, a line per timeline."""
        return "\n".join(single.text(timeline, name) for name, timeline in self.timelines.items())

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return single.bundle_of(self.figure(), self.text())

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(self._repr_mimebundle_(), raw=True)  # type: ignore[no-untyped-call]
        display(self.table().style.format(precision=3, na_rep="–"))  # type: ignore[no-untyped-call]

    def _finding(self) -> str:
        summaries = self.summaries()
        speeds = {name: _speedup(next(iter(summaries.values())), summary) for name, summary in summaries.items()}
        known = {name: speed for name, speed in speeds.items() if speed is not None}
        if len(known) < 2:
            return " and ".join(summaries)
        first, best = next(iter(summaries)), max(known, key=lambda name: known[name])
        if best == first:
            return f"{first} is the fastest"
        return (
            f"{best} is {words.times(known[best])} as fast as {first}: there the GPU computes "
            f"{words.share(summaries[best].compute_share)} of the time, not {words.share(summaries[first].compute_share)}"
        )

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
        raise single.DrawError("compare() got no timelines; give at least one, such as {'blocking': timeline}")
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
