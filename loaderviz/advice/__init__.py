"""Timeline -> findings: what keeps the data from reaching the GPU while it computes, and what a change would gain.

    for finding in loaderviz.advise(timeline):
        print(finding.rule, finding.expected_gain, finding.change)

Every gain is an upper bound with its closed form: the smaller of the time that the change removes and of what the
window has beyond the work that remains (kernels, copy engines, streams in order, the host's own work). So no promise
exceeds what the limit allows. Works on a timeline from anywhere; imports neither torch nor the emulator.
"""

from __future__ import annotations

from loaderviz import words
from loaderviz.activity import check_timeline
from loaderviz.advice.copies import copy_not_hidden, many_small_copies, pageable_copy, resident
from loaderviz.advice.evidence import Evidence
from loaderviz.advice.finding import Advice, Finding, Gain, is_worth_it
from loaderviz.advice.host import (
    allocates_in_loop,
    fetch_in_loop,
    host_bound,
    nothing,
    start_up,
    synchronizes_each_step,
    waiting_for_data,
)
from loaderviz.timeline import Timeline

__all__ = ["Advice", "Finding", "Gain", "advise"]

RULES = (
    pageable_copy, copy_not_hidden, fetch_in_loop, waiting_for_data, synchronizes_each_step, many_small_copies,
    allocates_in_loop, resident, host_bound,
)  # fmt: skip


def advise(timeline: Timeline, window: tuple[int, int] | None = None, device: int | None = None) -> Advice:
    """Return what could be gained and by which change, the largest gain first; one finding that says so if nothing.

    Judged is the steady state, from the first step (else the GPU's first work) to the end of the GPU's last work, or
    `window = (start, end)` [ns, as in `timeline.start`]; of several devices the busiest, or `device`. Findings worth
    less than 3 % are left out. Raises `NotATimelineError` for anything but a Timeline, `MetricsError` for a window or
    device that makes no sense.

        advice = loaderviz.advise(timeline)
        advice[0].change             # 'loader = PrefetchLoader(loader, "cuda", depth=2)'
        advice[0].expected_gain.ns   # ns in the window, at most
    """
    facts = Evidence.of(check_timeline(timeline, "advise()"), device, window)
    found = [finding for rule in RULES if (finding := rule(facts))]
    worth = [finding for finding in found if is_worth_it(finding.expected_gain, facts.window)]
    worth.sort(key=lambda finding: -finding.expected_gain.ns)
    once = start_up(facts)  # told, although nothing is gained a step
    worth = [*(worth or [nothing(facts, found)]), *([once] if once else [])]
    return Advice(worth, _judged(facts), (facts.start, facts.end))


def _judged(facts: Evidence) -> str:
    """Say which part of the timeline the findings are about, and what it cannot be shorter than."""
    summary = facts.summary
    parts = [f"device {facts.device} of {len(summary.devices)}"] if len(summary.devices) > 1 else []
    part, all_of_it = words.duration(facts.window), words.duration(facts.timeline.duration)
    parts.append(part if part == all_of_it else f"{part} of {all_of_it}")
    if summary.batches:
        steps = "1 step" if summary.batches == 1 else f"{summary.batches:,} steps of {words.duration(summary.step)}"
        parts.append(steps)
    engines = {"kernels": summary.kernels, "H2D copies": summary.h2d, "D2H copies": summary.d2h}
    longest = max(engines, key=lambda name: engines[name])
    limit = f"; the limit is {words.duration(summary.limit)}, {longest} alone" if summary.limit else ""
    return f"Judged: {', '.join(parts)}{limit}."
