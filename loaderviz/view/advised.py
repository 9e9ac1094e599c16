"""Advice in the picture: where each finding is seen, and as a ghost what its change is predicted to make of the loop.

A finding leads to the spans that it is about, the costliest first, and to the step around the first of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from loaderviz import metrics, words
from loaderviz.metrics import Loop, Mask
from loaderviz.timeline import Cause, Kind, Timeline
from loaderviz.view.pack import Json, Part, Window

if TYPE_CHECKING:
    from loaderviz.analysis.finding import Advice, Finding

_MOST = 50  # spans that are marked for a finding
_COPIES = (Kind.COPY_H2D,)
_SEEN: dict[str, tuple[tuple[Kind, ...], tuple[Cause, ...]]] = {  # rule -> kinds of its spans, and causes of waits
    "pageable-copy": (_COPIES, ()), "hidden-sync": (_COPIES, ()), "copy-not-hidden": (_COPIES, ()),
    "many-small-copies": (_COPIES, ()), "resident": (_COPIES, ()), "index-on-host": (_COPIES, ()),
    "fetch-in-loop": ((Kind.FETCH, Kind.PIN), ()), "waiting-for-data": ((Kind.WAIT,), (Cause.DATA,)),
    "restarts-workers": ((Kind.WAIT,), (Cause.DATA,)), "synchronizes-each-step": ((Kind.WAIT,), (Cause.SYNCHRONIZE,)),
    "allocates-in-loop": ((Kind.WAIT,), (Cause.ALLOCATION, Cause.PAGE_LOCKING)),
    "communication-exposed": ((Kind.COMMUNICATION,), ()), "late-rank": ((Kind.COMMUNICATION,), ()),
}  # fmt: skip


def advised(parts: Sequence[Part], advice: Mapping[str, Advice]) -> list[Part]:
    """Return the parts with their findings (`advice` is by the name of a part), then the predicted timelines.

    Of one timeline the first prediction is in sight; the others are when their finding is asked for.
    """
    found: list[Part] = []
    ghosts: list[Part] = []
    for number, part in enumerate(parts):
        findings = []
        for finding in advice.get(part.name, ()):
            ghost = None
            if finding.predicted is not None:
                ghost = len(parts) + len(ghosts)
                hidden = len(parts) > 1 or bool(ghosts)
                ghosts.append(_ghost(part, finding, number, advice[part.name].window, hidden))
            findings.append(_line(part.timeline, finding, advice[part.name].window) | {"ghost": ghost})
        found.append(replace(part, findings=findings))
    return [*found, *ghosts]


def _line(timeline: Timeline, finding: Finding, judged: Window) -> Json:
    """Return a finding as the view has it: its words, its spans, and the window that shows the costliest."""
    spans = _spans(timeline, finding.rule, judged)
    window = _window(timeline, finding.rule, judged, spans)
    return {
        "rule": finding.rule, "title": finding.title, "text": finding.evidence, "change": finding.change,
        "window": window and [edge - timeline.begin for edge in window], "bars": np.sort(spans).tolist(),
    }  # fmt: skip


def _spans(timeline: Timeline, rule: str, judged: Window) -> np.ndarray:
    """Return the spans that a finding is about, those that cost most first."""
    kinds, causes = _SEEN.get(rule, ((), ()))
    mine: Mask = timeline.where(*kinds) & (timeline.start >= judged[0]) & (timeline.end <= judged[1])
    if causes:
        mine &= np.isin(timeline.cause, causes)
    if rule in ("pageable-copy", "hidden-sync"):
        mine &= timeline.pinned == 0
    cost = (timeline.end - timeline.start) * (1 - np.nan_to_num(metrics.hidden_shares(timeline)))
    spans = np.flatnonzero(mine)
    return spans[np.argsort(-cost[spans], kind="stable")][:_MOST]


def _window(timeline: Timeline, rule: str, judged: Window, spans: np.ndarray) -> Window | None:
    """Return the time to look at, if there is one: the longest wait or span, with the step around it."""
    if rule == "start-up":
        return timeline.begin, judged[0]
    device = metrics.choose_device(timeline, None)[0]
    times = np.stack([timeline.start[spans], timeline.end[spans]], axis=1)
    if rule == "host-bound":
        idle = metrics.states(timeline, device)["idle"]
        idle = idle[(idle[:, 0] >= judged[0]) & (idle[:, 1] <= judged[1])]
        times = idle[np.argsort(idle[:, 0] - idle[:, 1], kind="stable")]
    if not len(times):
        return None
    start, end = times[0].tolist()
    steps = timeline.start[Loop.of(timeline, device).spans]
    before, after = steps[steps <= start], steps[steps >= end]
    return int(before.max(initial=judged[0])), int(after.min(initial=judged[1]))


def _ghost(part: Part, finding: Finding, of: int, judged: Window, hidden: bool) -> Part:
    """Return the prediction as a part that begins where the judged time does; `until` is where that ends."""
    assert finding.predicted is not None
    begin, end = (edge - part.timeline.begin for edge in judged)
    step, now = (words.duration(metrics.summarize(each).step) for each in (finding.predicted, part.timeline))
    ghost = {"of": of, "label": f"{finding.asked} predicts {step} a step instead of {now}", "until": end,
             "gain": end - begin - finding.predicted.duration, "hidden": hidden}  # fmt: skip
    return Part(finding.predicted, "predicted", folded=True, shift=begin, ghost=ghost, hero={})
