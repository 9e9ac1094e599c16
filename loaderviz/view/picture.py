"""View: one or more timelines as a picture, where people look at it: a notebook, a page, a PDF, a terminal.

As HTML it is an element, and the script that brings it to life. Head and body stand in the element, so that nothing
else is needed: no kernel, no network. In a notebook each output has the script, too, compressed: which of them runs
first does not matter, a page keeps one of each version. Where scripts do not run, the still picture and the words stay.
It is an `<img>` with its data, since notebooks that are not trusted remove SVG, styles and ids.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from loaderviz import metrics, words
from loaderviz.errors import LoadervizError, require
from loaderviz.metrics import Loop, window_of
from loaderviz.timeline import Mask, Timeline
from loaderviz.view import spoken, still
from loaderviz.view.pack import MOST, Json, Part, Window, first_view, pack

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from loaderviz.analysis import Advice, Finding, Subject

NOTEBOOK = 300_000  # bytes of an output in a notebook, which is stored with it
_BARS = 25_000  # about as many fit into that


class ViewError(LoadervizError, ValueError):
    """An option of a picture has a value that means nothing."""


@dataclass(frozen=True, repr=False)
class View:
    """Timelines by name on one time axis, each from its own beginning; displaying it in a notebook draws it.

    `color` is "batch" or "kind", `operators` adds the aten operators of the host, `title` replaces the finding.
    `window` is what is shown first [ns, as in `timeline.start` of the first]; None lets the data say. `verdict=False`
    withholds what the picture says in words until its reader asks for it (with a `title`: for good). `folded` shows one
    row for each timeline, `curve` adds the utilisation that nvidia-smi would show, `advice` the findings about each
    timeline by its name. Raises `ViewError` and `NotATimelineError`.
    """

    timelines: Mapping[str, Timeline]
    color: str = "batch"
    operators: bool = False
    title: str | None = None
    window: tuple[int, int] | None = None
    verdict: bool = True
    folded: bool = False
    curve: bool = False
    advice: Mapping[str, Advice] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.color not in ("batch", "kind"):
            raise ViewError(
                f"color is {self.color!r}; give 'batch' (a colour for each batch) or 'kind' (for each kind)"
            )
        for name, timeline in self.timelines.items():
            metrics.check_timeline(timeline, f"view(), for {name!r}," if name else "view()")

    @cached_property
    def parts(self) -> list[Part]:
        """The timelines as the view has them."""
        return [self.part(name) for name in self.timelines]

    def part(self, name: str) -> Part:
        """Return one of the timelines as the view has it."""
        return Part(self.timelines[name], name, operators=self.operators, utilization=self.curve)

    @cached_property
    def heading(self) -> str:
        """The title, or the finding in words; "" if it is withheld."""
        return self.title if self.title is not None else self.finding() if self.verdict else ""

    def finding(self) -> str:
        """Return what the picture shows, in one line."""
        (timeline,) = self.timelines.values()
        return spoken.headline(timeline, self.window)

    def below(self) -> str:
        """Return what stands under the picture, as HTML."""
        return ""

    @cached_property
    def subtitle(self) -> str:
        """Where the timelines come from."""
        return "; ".join(dict.fromkeys(_origin(timeline) for timeline in self.timelines.values()))

    def text(self) -> str:
        """Return the picture in words, a line for each timeline."""
        return "\n".join(text(timeline, name, self.window) for name, timeline in self.timelines.items())

    @cached_property
    def first(self) -> tuple[int, int] | None:
        """The window to show first, from the begin of each timeline on."""
        first = next(iter(self.timelines.values()))
        if self.window is None:
            return first_view(first) if len(self.timelines) == 1 else None
        start, end = window_of(first, self.window)
        return start - first.begin, end - first.begin

    @property
    def told(self) -> bool:
        """Whether a reader can learn what the picture says in words, at once or when asking for it."""
        return self.verdict or self.title is None

    def packed(self, limit: int = MOST, **more: Any) -> tuple[Json, bytes]:
        """Return head and body for view.js, in at most about `limit` bars; see `pack`."""
        withheld: Json = {} if self.verdict else {"withheld": self.finding() if self.told else ""}
        parts = _advised(self.parts, self.advice)
        return pack(
            parts,
            title=self.heading,
            subtitle=self.subtitle,
            twin=self.text() if self.told else "",
            color=self.color,
            window=self.first,
            limit=limit,
            **withheld,
            **more,
        )

    def around(self, start: int, end: int, limit: int) -> tuple[Json, bytes]:
        """Return the same with all that there is in another window [ns from the begin of each timeline on]."""
        begin = next(iter(self.timelines.values())).begin
        return replace(self, window=(begin + start, begin + end), title=self.heading).packed(limit)

    def svg(self) -> str:
        """Return the still picture."""
        return self._svg

    @cached_property
    def _svg(self) -> str:
        twin = self.text() if self.verdict else ""
        return still.svg(self.heading, self.subtitle, twin, self.parts, self.color == "batch", self.first)

    def fragment(self, limit: int = MOST, room: int | None = None) -> str:
        """Return the picture as HTML without the view's script; in at most about `room` bytes, if that is given."""
        picture, below = self.svg(), self.below()
        while True:
            head, body = self.packed(limit)
            html = element(head, body, picture, below)
            if room is None or len(html) <= room or limit < 100:
                return html
            limit = int(min(limit, head["rows"]) * 0.9 * max(0.1, (room - 1.4 * len(picture)) / len(html)))

    def figure(self) -> go.Figure:
        """Return it as a plain plotly figure of at most some 2,000 bars, to change by hand and to export."""
        require("a figure", "plotly")
        from loaderviz.view.figure import figure

        return figure(self)

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        picture, script = self.svg(), loader()
        html = self.fragment(_BARS, NOTEBOOK - len(script) - len(picture)) + script
        return {"text/html": html, "image/svg+xml": picture, "text/plain": repr(self)}


def text(timeline: Timeline, label: str = "", window: tuple[int, int] | None = None) -> str:
    """Return the picture in one line of words, for people who do not see it; see `metrics.describe`."""
    if told := spoken.twin(timeline, label, window):
        return told
    summary, marks = metrics.summarize(timeline, window), timeline.marks
    count, first = words.count(summary.batches or 0, "batch"), marks[0] if marks else None
    cause, time = max(summary.host_blocked.items(), key=lambda item: item[1], default=("", 0))
    many = "a hazard" if len(marks) == 1 else f"{len(marks)} hazards, the first"
    alone = not summary.batches and summary.window
    parts = [
        metrics.describe(timeline, label, window),
        summary.batches and f"{count} in {words.duration(summary.window)}, {words.duration(summary.step)} a step",
        alone and f"{words.duration(summary.window)} in all",
        summary.exposed_copy and f"{words.duration(summary.exposed_copy)} of copy is exposed",
        cause and f"the host is blocked longest by: {cause} ({words.duration(time)})",
        first and f"{many}: {first.kind}, {first.text}",
    ]
    return "; ".join(str(part) for part in parts if part)


def _origin(timeline: Timeline) -> str:
    """Say where a timeline comes from, and what is not as it was recorded."""
    context = timeline.context
    cores = [words.count(context.cores, "CPU core")] if context.cores else []
    host = [f"host: {', '.join([context.host, *cores])}"] if context.host else []
    notes = [context.cut, *(each for each in context.notes if each not in (context.cut, *context.whole))]
    return "; ".join([f"{context.device}, {context.origin}", *host, *(notes if context.cut else context.notes)])


# The element and its script


_SOFT = "font-size:14px;color:var(--jp-ui-font-color2,inherit);max-width:90ch;margin:6px 0"
_PARTS = ("model.js", "draw.js", "chrome.js", "view.js")  # of the module, each of which uses those before it
_LOOKS = {"view.css": "__LV_CSS__", "explorer.css": "__LV_EXPLORER_CSS__"}  # and where they are put in
# A string or a template, which stays; or a comment or an indent, which goes. No regular expression in the parts has a
# quotation mark, "//" or "/*" in it: what is left of them runs in every test of the browser.
_SKIPPED = re.compile(r'("(?:\\.|[^"\\])*"|`(?:\\.|[^`\\])*`)|/\*.*?\*/|//[^\n]*|(?<=\n)\s+', re.S)


EXPLORER = ("emulator.js", "numbers.js", "explorer.js")  # what the explorer's module has more


def stripped(text: str) -> str:
    """Return a script or a style sheet without comments and indents."""
    return _SKIPPED.sub(lambda found: found[1] or "", text)


@cache
def module(*more: str) -> str:
    """Return the view's ES module without its comments, its style sheets in it; `more` are further parts."""
    code = "".join(map(_part_of, (*_PARTS, *more)))
    for name, place in _LOOKS.items():
        style = json.dumps(_part_of(name).replace("\n", "")).replace("</", "<\\/")
        code = code.replace(f'"{place}"', style, 1)
    return code


def _part_of(name: str) -> str:
    return stripped(files("loaderviz.view").joinpath(name).read_text(encoding="utf-8"))


@cache
def loader(*more: str) -> str:
    """Return the script that a notebook's output ends with: it imports the module once for a page.

    It can run twice, so it has no class or const at the top. A page without `blob:` in its policy keeps the still.
    """
    text = module(*more).encode()
    code, name = b64encode(gzip.compress(text, 9, mtime=0)).decode(), hashlib.sha256(text).hexdigest()[:16]
    return f"<script>{_part_of('load.js').strip() % {'code': code, 'name': name}}</script>"


def element(head: dict[str, Any], body: bytes, still: str, below: str = "", stands: bool = False) -> str:
    """Return a view's element: the still picture, its words, `below` (HTML) and the data.

    `stands`: it stands in for a widget in the next output, and vanishes when that is there.
    """
    said = twin(head["twin"], "withheld" in head)
    notes = "".join(f'<p style="{_SOFT}">{escape(note)}</p>' for note in head["notes"])
    return (
        f"{_begun('lv-view', head['title'] or 'timeline', still, stands)}{said}{notes}"
        f'<div class="lv-below" slot="below">{below}</div>{_data("lv-head", head)}'
        f'<script type="application/octet-stream" class="lv-body">{b64encode(body).decode()}</script></div>'
    )


def live_element(data: Json, picture: str, title: str, below: str, stands: bool = False) -> str:
    """Return the explorer's element: a still picture and what stands `below` it (HTML), and the data of its script."""
    begun = _begun("lv-explorer", title, picture, stands)
    return f'{begun}<div class="lv-below">{below}</div>{_data("lv-settings", data)}</div>'


def _begun(kind: str, title: str, picture: str, stands: bool) -> str:
    return (
        f'<div class="{kind}" data-lm-suppress-shortcuts="true"{" data-lv-stand" if stands else ""}>'
        f'<img class="lv-still" alt="{escape(title)}" style="max-width:100%" '
        f'src="data:image/svg+xml;base64,{b64encode(picture.encode()).decode()}">'
    )


def _data(kind: str, data: Json) -> str:
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" class="{kind}">{text}</script>'


def twin(text: str, folded: bool = False) -> str:
    """Return what a picture shows, in words, as HTML; "" for no words."""
    lines = "<br>".join(escape(line) for line in text.splitlines())
    if folded and lines:
        return f'<details class="lv-twin" style="{_SOFT}"><summary>In words</summary>{lines}</details>'
    return f'<p class="lv-twin" style="{_SOFT}">In words: {lines}</p>' if lines else ""


# Advice in the picture: where each finding is seen, and as a ghost what its change is predicted to make of the loop.
# A finding leads to the spans that it is about, the costliest first, and to the step around the first of them.


_MOST = 50  # spans that are marked for a finding


def _advised(parts: Sequence[Part], advice: Mapping[str, Advice]) -> list[Part]:
    """Return the parts with their findings (`advice` is by the name of a part), then the predicted timelines.

    Of one timeline the first prediction is in sight, and under it the next changes on the way to the limit, as a
    staircase; the others are when their finding is asked for.
    """
    found: list[Part] = []
    ghosts: list[Part] = []
    for number, part in enumerate(parts):
        findings = list[Json]()
        for finding in advice.get(part.name, ()):
            ghost = None
            if finding.predicted is not None:
                ghost = len(parts) + len(ghosts)
                hidden = len(parts) > 1 or bool(ghosts)
                now, gain = advice[part.name].step or 0, finding.expected_gain.predicted or 0  # as the path reckons
                told = f"{finding.asked} predicts {words.duration(now - gain)} a step instead of {words.duration(now)}"
                ghosts.append(_ghost(part, finding.predicted, told, number, advice[part.name].window, hidden))
            # why a rank is late, its rows do not show; nor can they show what is not in the timeline
            opened = finding.kind == "late-rank" or (finding.kind == "work-not-seen" and not findings)
            line = _line(part.timeline, finding, advice[part.name].window)
            findings.append(line | {"open": opened, "ghost": ghost})
        found.append(replace(part, findings=findings))
        if len(parts) == 1 and part.name in advice:
            ghosts += _stairs(part, advice[part.name])
    return [*found, *ghosts]


def _line(timeline: Timeline, finding: Finding, judged: Window) -> Json:
    """Return a finding as the view has it: its words, its spans, and the window that shows the costliest."""
    spans = _spans(timeline, finding.subject, judged)
    window = _window(timeline, finding.subject, judged, spans)
    return {
        "title": finding.title,
        "text": finding.evidence,
        "change": finding.change,
        **spoken.finding(finding, len(spans)),
        "window": window and [edge - timeline.begin for edge in window],
        "bars": np.sort(spans).tolist(),
    }


def _spans(timeline: Timeline, subject: Subject, judged: Window) -> np.ndarray:
    """Return the spans that a finding is about, those that cost most first."""
    mine: Mask = timeline.where(*subject.kinds) & (timeline.start >= judged[0]) & (timeline.end <= judged[1])
    if subject.causes:
        mine &= np.isin(timeline.cause, subject.causes)
    if subject.pageable:
        mine &= timeline.pinned == 0
    cost = (timeline.end - timeline.start) * (1 - np.nan_to_num(metrics.hidden_shares(timeline)))
    spans = np.flatnonzero(mine)
    return spans[np.argsort(-cost[spans], kind="stable")][:_MOST]


def _window(timeline: Timeline, subject: Subject, judged: Window, spans: np.ndarray) -> Window | None:
    """Return the time to look at, if there is one: the longest wait or span, with the step around it."""
    if subject.time == "start-up":
        return timeline.begin, judged[0]
    device = metrics.choose_device(timeline, None)[0]
    times = np.stack([timeline.start[spans], timeline.end[spans]], axis=1)
    if subject.time:
        apart = subject.time == "outside"
        found = Loop.of(timeline, device).breaks(*judged) if apart else metrics.states(timeline, device)["idle"]
        found = found[(found[:, 0] >= judged[0]) & (found[:, 1] <= judged[1])]
        times = found[np.argsort(found[:, 0] - found[:, 1], kind="stable")]
    if not len(times):
        return None
    start, end = times[0].tolist()
    steps = timeline.start[Loop.of(timeline, device).spans]
    before, after = steps[steps <= start], steps[steps >= end]
    return int(before.max(initial=judged[0])), int(after.min(initial=judged[1]))


def _stairs(part: Part, advice: Advice) -> list[Part]:
    """Return the changes on the way to the limit that no finding has drawn, each with those before it."""
    shown = next((each for each in advice if each.predicted is not None), None)
    steps = advice.path[1:] if advice.path and shown and shown.kind == advice.path[0].kind else advice.path
    label = "{} a step" if len(steps) == len(advice.path) else "then {} a step"
    return [_ghost(part, each.predicted, label.format(each.told), 0, advice.window, False) for each in steps]


def _ghost(part: Part, predicted: Timeline, label: str, of: int, judged: Window, hidden: bool) -> Part:
    """Return a prediction as a part that begins where the judged time does; `until` is where that ends."""
    begin, end = (edge - part.timeline.begin for edge in judged)
    # as many steps as there are here, of a replay that may have more of them
    here, there = (metrics.summarize(each).batches or 1 for each in (part.timeline, predicted))
    gain = end - begin - predicted.duration * min(here, there) // there
    ghost = {"of": of, "label": label, "until": end, "gain": gain, "hidden": hidden}
    return Part(predicted, "predicted", folded=True, shift=begin, ghost=ghost, hero={})
