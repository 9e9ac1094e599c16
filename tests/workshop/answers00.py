"""Answers for lesson 0: what a learner reads from a timeline, rightly and wrongly."""

from __future__ import annotations

import loaderviz as lv


def exposed_of_window(timeline):
    summary = lv.summarize(timeline)
    return summary.exposed_copy / summary.window


def copied_and_not_hidden(timeline):
    summary = lv.summarize(timeline)
    return summary.copy_share * (1 - summary.overlap)


def from_the_breakdown(timeline):
    parts = lv.summarize(timeline).breakdown
    return parts.get("copy exposed", 0) / sum(parts.values())


def all_of_the_copy(timeline):
    return lv.summarize(timeline).copy_share


def in_percent(timeline):
    return 100 * exposed_of_window(timeline)


def in_nanoseconds(timeline):
    return lv.summarize(timeline).exposed_copy


def hidden_share(timeline):
    return lv.summarize(timeline).overlap


def not_computing(timeline):
    return 1 - lv.summarize(timeline).compute_share


def of_the_copy(timeline):
    summary = lv.summarize(timeline)
    return summary.exposed_copy / summary.copy


def as_text(timeline):
    return f"{exposed_of_window(timeline):.0%}"


def always_the_same(timeline):
    return 0.3


RIGHT = {"0.1": [exposed_of_window, copied_and_not_hidden, from_the_breakdown]}
WRONG = {
    "0.1": [
        (all_of_the_copy, r"PrefetchLoader.*Yours counts the hidden copy, too: [\d.]+ [mµ]s"),
        (in_percent, r"BlockingLoader.*Yours is in percent"),
        (in_nanoseconds, r"Yours is a time in nanoseconds"),
        (hidden_share, r"You returned 0 for.*Yours is the (share|hidden part) of the copy"),
        (not_computing, r"Yours is all the time in which the GPU does not compute"),
        (of_the_copy, r"You returned 1 for.*Yours is a share of the copy, not of the whole time"),
        (as_text, r"returned '45%'. A share from 0 to 1 is wanted"),
        (always_the_same, r"a share of 0\.\d+.*Only this part of the copy can be won"),
    ],
}
