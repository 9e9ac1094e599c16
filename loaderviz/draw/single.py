"""Timeline -> plotly figure, its text twin, and its display in a notebook."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from textwrap import wrap
from typing import Any, Literal

import plotly.graph_objects as go
import plotly.io as pio

from loaderviz import metrics, words
from loaderviz.draw import page, still
from loaderviz.draw.detail import BUDGET
from loaderviz.errors import LoadervizError
from loaderviz.timeline import Timeline

Arrows = bool | Literal["launch", "wait"]
_LINE = 150  # characters in a line of the subtitle; some 1,000 px
_CUT = re.compile(r"(.+) of (.+) shown(.*)")  # the note of `Timeline.between`
_OF_ALL = ("recording quality: ", "the GPU has work from ", "not drawn: ")  # notes that a part of a recording needs not
_MIMETYPE = "application/vnd.plotly.v1+json"


class DrawError(LoadervizError, ValueError):
    """An option of a figure has a value that means nothing."""


def figure(
    timeline: Timeline, color: str = "batch", arrows: Arrows = False, operators: bool = False, title: str | None = None,
    label: str = "", window: tuple[int, int] | None = None, budget: int = BUDGET, steady: bool = False,
) -> go.Figure:  # fmt: skip
    """Return the timeline as a figure: host lanes above, then copy engines and streams, below them what the GPU does.

    `color` is "batch" (each batch one colour) or "kind"; `arrows` is "launch", "wait", True for both; `operators` adds
    the aten operators of the host. `title` replaces the finding in words, `label` stands before it. `window =
    (start, end)` [ns, as in `timeline.start`] draws a part, in which less is merged: spans make at most `budget`
    bars. With `steady` all figures of the same options have the same traces, as `refresh` needs it. The text twin is in
    `figure.layout.meta["text"]`. Raises `NotATimelineError` and `DrawError`.

        timeline.figure(color="kind", arrows="wait").write_html("run.html")
    """
    metrics.check_timeline(timeline, "draw.figure()")
    look_arrows, origin = check_options(color, arrows, budget), timeline.begin
    shown = timeline if window is None else timeline.between(*window)
    unit, unit_name = page.time_unit(shown.duration)
    parts = page.place([(label, shown, origin)], operators, budget)
    look = page.Look(color == "batch", look_arrows, unit, unit_name, steady)
    heading = escape(metrics.describe(shown, label) if title is None else title, quote=False)
    lines = _balanced(_subtitle(parts[0]))
    subtitle = "<br>".join(escape(line, quote=False) for line in lines)
    return page.draw(parts, look, heading, subtitle, text(shown, label))


def text(timeline: Timeline, label: str = "") -> str:
    """Return the figure in one line of words, for people who do not see it.

    draw.text(timeline)  # "GPU computes 41 % of the time, …; 6 batches in 1.84 ms, 306.7 µs a step; …"
    """
    finding = metrics.describe(timeline, label)
    summary = metrics.summarize(timeline)
    parts = [finding]
    if summary.batches:
        count = words.count(summary.batches, "batch")
        parts.append(f"{count} in {words.duration(summary.window)}, {words.duration(summary.step)} a step")
    elif summary.window:
        parts.append(f"{words.duration(summary.window)} in all")
    if summary.exposed_copy:
        parts.append(f"{words.duration(summary.exposed_copy)} of copy is exposed")
    if summary.host_blocked:
        cause, time = max(summary.host_blocked.items(), key=lambda item: item[1])
        parts.append(f"the host is blocked longest by: {cause} ({words.duration(time)})")
    if timeline.marks:
        first = timeline.marks[0]
        count = "a hazard" if len(timeline.marks) == 1 else f"{len(timeline.marks)} hazards, the first"
        parts.append(f"{count}: {first.kind}, {first.text}")
    return "; ".join(parts)


def mimebundle(timeline: Timeline, **options: Any) -> dict[str, Any]:
    """Return what a notebook shows for a timeline: its figure for plotly's renderer of the moment, and its text."""
    return bundle_of(figure(timeline, **options), text(timeline, options.get("label", "")))


def bundle_of(shown: go.Figure, twin: str) -> dict[str, Any]:
    """Return the mimebundle of a figure: for plotly, as a still picture for places without it, and in plain words."""
    bundle: dict[str, Any] = shown._repr_mimebundle_() or {}  # empty where plotly's renderer is a browser window
    if _MIMETYPE not in bundle:
        bundle |= pio.renderers["plotly_mimetype"].to_mimebundle(shown.to_dict())
    picture = still.svg(shown)
    return bundle | ({"image/svg+xml": picture} if picture else {}) | {"text/plain": twin}


def refresh(widget: go.Figure, shown: go.Figure) -> None:
    """Make a FigureWidget (or a figure) show what `shown` shows, in place: a browser keeps its plot and redraws once.

    Both must come from `figure(..., steady=True)` with the same options. Raises `DrawError` if their traces differ.

        widget = go.FigureWidget(draw.figure(timeline, steady=True))
        draw.refresh(widget, draw.figure(another, steady=True))
    """
    before, after = ([trace.type for trace in each.data] for each in (widget, shown))
    if before != after:
        raise DrawError(
            f"the figure has {len(after)} traces, the widget {len(before)}; draw both with steady=True and one look"
        )
    with widget.batch_update():
        for old, new in zip(widget.data, shown.data, strict=True):
            _become(old, new.to_plotly_json())
        _become(widget.layout, shown.layout.to_plotly_json())


def _become(old: Any, new: dict[str, Any]) -> None:
    """Set all properties of a trace or layout to those of `new`; what `new` does not have is unset."""
    gone = {name: None for name in old.to_plotly_json() if name not in new and name not in ("type", "uid")}
    old.update({name: value for name, value in new.items() if name != "type"} | gone, overwrite=True)


def check_options(color: str, arrows: Arrows, budget: int) -> tuple[str, ...]:
    """Return the names of the arrows to draw; raise `DrawError` for a value that means nothing."""
    if color not in ("batch", "kind"):
        raise DrawError(f"color is {color!r}; give 'batch' (each batch one colour) or 'kind' (each kind of span one)")
    choices: dict[Any, tuple[str, ...]] = {
        False: (), None: (), True: ("launch", "wait"), "launch": ("launch",), "wait": ("wait",),
    }  # fmt: skip
    if not isinstance(arrows, (bool, str, type(None))) or arrows not in choices:
        raise DrawError(f"arrows is {arrows!r}; give 'launch', 'wait', True for both or False for none")
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise DrawError(f"budget is {budget!r}; give the largest number of bars, such as {BUDGET}")
    return choices[arrows]


def _subtitle(part: page.Part) -> str:
    """Say where the timeline comes from and what is not drawn as it is."""
    context = part.timeline.context
    lines = [f"{context.device}, {context.origin}"]
    if context.host:
        lines.append(f"host: {context.host}")
    if len(part.bars) < len(part.placement.span):
        spans, bars = len(part.placement.span), len(part.bars)
        lines.append(f"{spans:,} spans drawn as {bars:,} bars; window=(start, end) shows a part in full")
    if part.placement.left_out:
        lines.append(f"{part.placement.left_out:,} deeply nested spans not drawn")
    return "; ".join([*lines, *_notes(context.notes)])


def _notes(notes: Sequence[str]) -> list[str]:
    """Return the notes without those that a part needs not; a part of a part is told as a part of the whole."""
    cuts = [match for note in notes if (match := _CUT.fullmatch(note))]
    if not cuts:
        return list(notes)
    others = [note for note in notes if not _CUT.fullmatch(note) and not any(each in note for each in _OF_ALL)]
    length, _, edges = cuts[-1].groups()
    return [f"{length} of {cuts[0][2]} shown{edges}", *others]


def _balanced(text: str) -> list[str]:
    """Return the lines of a text: as few as possible, and of about one length."""
    lines = wrap(text, _LINE)
    narrower = (wrap(text, width) for width in range(len(text) // max(1, len(lines)), _LINE))
    return next((each for each in narrower if len(each) == len(lines)), lines)
