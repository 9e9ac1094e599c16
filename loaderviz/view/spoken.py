"""What a picture says in another language than English: texts.toml has it, and `words.language` chooses.

Lanes, states and the legend are asked for by their English. The headline, findings and hazards are sentences with
numbers of their own: each function returns None where a language has none, and then the English is said.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loaderviz import metrics, words
from loaderviz.timeline import Mark, Timeline

if TYPE_CHECKING:
    from loaderviz.analysis import Finding, Gain

SECTIONS = "headline", "findings", "hazards"  # of texts.toml; all else are words of the picture


@cache
def texts() -> dict[str, dict[str, Any]]:
    """Return all of texts.toml."""
    return tomllib.loads(Path(__file__).with_name("texts.toml").read_text(encoding="utf-8"))


@cache
def words_in(language: str) -> dict[str, str]:
    """Return what the picture writes in another language, by its English; nothing for English."""
    return {english: each[language] for english, each in texts().items() if language in each}


def word(text: str) -> str:
    """Return what the picture writes for this English, which may have numbers: the English where a language has none.

    >>> word("side stream 13")
    'side stream 13'
    """
    return words.translated(text, words_in(words.language()))


def _say(section: str, key: str, **values: object) -> str | None:
    said = words.in_language({"en": None, **texts()[section].get(key, {})})
    return None if said is None else str(said).format(**values)


def headline(timeline: Timeline, window: tuple[int, int] | None = None) -> str:
    """Return what `metrics.describe` does, in the language of the picture where it has sentences for it."""
    summary = metrics.summarize(timeline, window)
    if not len(timeline):
        told = _say("headline", "empty")
    elif not (summary.kernels or summary.copy):
        other, key = words.duration(summary.window - summary.idle), "other-work" if summary.busy else "no-work"
        told = _say("headline", key, window=words.duration(summary.window), other=other)
    else:
        told = _numbers(summary)
    return told or metrics.describe(timeline, window=window)


def twin(timeline: Timeline, label: str, window: tuple[int, int] | None) -> str | None:
    """Return what `picture.text` does, in another language; None for English."""
    if (then := _say("headline", "then")) is None:
        return None
    summary, marks = metrics.summarize(timeline, window), timeline.marks
    whole, step, exposed = map(words.duration, (summary.window, summary.step, summary.exposed_copy))
    cause, time = max(summary.host_blocked.items(), key=lambda item: item[1], default=("", 0))
    parts = [
        (_say("headline", "of", label=label) or "") * bool(label) + headline(timeline, window),
        summary.batches and _say("headline", "batches", count=f"{summary.batches:,}", time=whole, step=step),
        not summary.batches and summary.window and _say("headline", "in-all", time=whole),
        summary.exposed_copy and _say("headline", "exposed", time=exposed),
        cause and _say("headline", "blocked", cause=word(cause), time=words.duration(time)),
        marks and _say("headline", "marks", count=f"{len(marks):,}", first="".join(hazard(marks[0]) or marks[0].text)),
    ]
    return then.join(str(part).rstrip("。") for part in parts if part)


def _numbers(summary: metrics.Summary) -> str | None:
    hidden = summary.communication and summary.hidden_communication / summary.communication
    at_limit = summary.away == "at the limit"
    parts = [
        _say("headline", "computes", gpu=summary.device, share=words.share(summary.compute_share))
        if len(summary.devices) > 1
        else _say("headline", "computes-one", share=words.share(summary.compute_share)),
        summary.communication and _say("headline", "communication", share=words.share(hidden)),
        _say("headline", "no-copies")
        if summary.overlap is None
        else _say("headline", "copy", share=words.share(summary.overlap)),
        summary.headroom is not None
        and (_say("headline", "at-limit") if at_limit else _say("headline", "away", times=f"{summary.headroom:.2f}")),
    ]
    between = words.in_language({"en": ", ", "zh": "，"})
    return None if None in parts else between.join(str(part) for part in parts if part)


def fastest(best: str, other: str, speed: float, **shares: str) -> str | None:
    """Return how many times as fast as another timeline the fastest is; `shares` are those in which GPUs compute."""
    key = "fastest" if shares else "first-fastest"
    return _say("headline", key, best=best, other=other, times=f"{speed:.2f}", **shares)


def finding(found: Finding, spans: int) -> dict[str, str]:
    """Return title, text and change of a finding, of which the picture marks so many spans; nothing for English.

    A change that is a remark in English is left out: the sentence says it.
    """
    title = _say("findings", found.kind)
    if title is None:
        return {}
    name, _, said = title.partition("。")
    gain = _gain(found.expected_gain)
    marked = _say("headline", "marked", count=f"{spans:,}") if spans else ""
    code = "\n".join(line for line in found.change.splitlines() if not line.startswith("#"))
    return {"title": f"{name}（{found.kind}）{gain and f'：{gain}'}", "text": f"{said}{marked}", "change": code}


def _gain(gain: Gain) -> str:
    if not gain.ns:
        return (_say("headline", "paid-once") or "") if gain.once else ""
    each = "gain" if gain.per_step is None else "gain-a-step"
    time = words.duration(gain.ns if gain.per_step is None else gain.per_step)
    return _say("headline", each, time=time, share=words.share(gain.share)) or ""


def hazard(mark: Mark) -> tuple[str, str] | None:
    """Return what is wrong at a hazard, and what is missing; None for English."""
    told = _say("hazards", mark.kind)
    return None if told is None else (told.partition("。")[0] + "。", told.partition("。")[2])
