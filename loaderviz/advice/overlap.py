"""Does overlap pay? One judgement, for `advise` and for the table of the experiment, so that they never disagree."""

from __future__ import annotations

from loaderviz import words
from loaderviz.advice.finding import WORTH_IT
from loaderviz.metrics import Summary

WORTH_HIDING = 0.1  # with less of the copy hidden, a gain comes from something else
CANNOT_PAY = "Overlap cannot pay here: the GPU waits for the host, not for the copy."


def waits_for_the_host(summary: Summary) -> bool:
    """Tell whether the GPU loses more time to an idle state, in which the host is late, than to exposed copies."""
    return summary.exposed_copy < summary.idle


def verdict(pinned: Summary, prefetch: Summary) -> str:
    """Say in words whether hiding the copy pays, from the same loop with one stream (`pinned`) and with two."""
    if not (pinned.step and prefetch.step and pinned.batches):
        return "No steps were timed, so nothing can be said."
    copy, gain = pinned.copy / pinned.batches, pinned.step / prefetch.step
    facts = (
        f"With pinned memory and no prefetch the copy takes {words.duration(copy)} of a step of "
        f"{words.duration(pinned.step)} ({words.share(pinned.copy_share)}), and the GPU is idle "
        f"{words.share(1 - (pinned.busy or 0))} of the time. The side stream hides {words.share(prefetch.overlap)} of "
        f"the copy and makes a step {words.times(gain)} as fast. "
    )
    if gain >= WORTH_IT and (prefetch.overlap or 0) >= WORTH_HIDING:
        return facts + f"Overlap pays here; what is left is {words.times(prefetch.headroom)} the limit of the hardware."
    return facts + (CANNOT_PAY if waits_for_the_host(pinned) else "Overlap does not pay here.")
