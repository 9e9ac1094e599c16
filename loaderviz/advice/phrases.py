"""Evidence in words: times a step, where the longest span is, what fills the longest gap.

phrases.describe_copies(facts, mask, "pinned ")   # "24 pinned copies to the GPU, 2 a step, 6.5 MB in 270 µs a step, …"
"""

from __future__ import annotations

import numpy as np

from loaderviz import intervals, words
from loaderviz.activity import Mask
from loaderviz.advice.evidence import Evidence
from loaderviz.timeline import Kind


def duration(facts: Evidence, ns: float) -> str:
    """A time in the window, as a reader compares it: a step's share of it where steps are known."""
    return f"{words.duration(ns / facts.steps)} a step" if facts.steps else words.duration(ns)


def describe_copies(facts: Evidence, mask: Mask, kind: str) -> str:
    """Describe copies: "24 pinned copies to the GPU, 2 a step, 6.5 MB in 270 µs a step (24.1 GB/s), 0 % hidden"."""
    count, size = int(mask.sum()), int(np.maximum(facts.timeline.nbytes[mask], 0).sum())
    time = int((facts.timeline.end - facts.timeline.start)[mask].sum())
    length = facts.length(mask)
    carries = f"{words.size(size / (facts.steps or 1))} in " if size else ""
    rate = f" ({words.size(size / time * 1e9)}/s)" if size and time else ""
    hidden = words.share(1 - facts.exposed(mask) / length if length else 0.0)
    much = f"{carries}{duration(facts, length)}{rate}"
    return f"{count:,} {kind}copies to the GPU{a_step(facts, count)}, {much}, {hidden} hidden"


def a_step(facts: Evidence, count: int) -> str:
    """Say how many that is a step: ", 2 a step"; "" where steps are not known."""
    if not facts.steps:
        return ""
    per = count / facts.steps
    return f", {per:,.0f} a step" if per >= 100 else f", {per:.3g} a step"


def in_few_steps(facts: Evidence, mask: Mask) -> tuple[str, str]:
    """Where these are in at most half of the steps: " in 2 of 12 steps", and how to leave them out; else "" twice.

    Only the first steps can be left out: what comes back later is no warm-up.
    """
    batches = np.unique(facts.timeline.batch[mask])
    batches = batches[batches >= 0]
    if not (facts.steps and len(batches)) or len(batches) > facts.steps / 2:
        return "", ""
    seen = f" in {len(batches):,} of {facts.steps:,} steps"
    known = np.unique(facts.timeline.batch[facts.here | mask])
    if batches.max() >= known[known >= 0].min() + facts.steps / 2:
        return seen, ""
    after = f"batch {int(batches.max()) + 1}"
    marked = any(name.split(":")[0] == after for name in facts.timeline.names)
    cut = f"timeline.from_batch({after.split()[1]})  # " if marked else "# record more steps: "
    return seen, f"{cut}a warm-up is paid once"


def names_of(facts: Evidence, mask: Mask) -> list[str]:
    """The names of these spans, the most frequent first."""
    numbers, counts = np.unique(facts.timeline.name[mask], return_counts=True)
    return [facts.timeline.names[number] for number in numbers[np.argsort(-counts, kind="stable")]]


def longest_gap(facts: Evidence) -> str:
    """Say where the device's longest gap is in which the host neither loads nor waits, and what it does there."""
    loading = facts.loop & facts.timeline.where(Kind.FETCH, Kind.PIN, Kind.WAIT)
    gaps = intervals.subtract(facts.idle, facts.covered(loading))
    if not len(gaps):
        return ""
    first, last = gaps[np.argmax(gaps[:, 1] - gaps[:, 0])].tolist()
    part = np.minimum(facts.last, last) - np.maximum(facts.first, first)  # of each span that lies in the gap
    part[~(facts.loop & facts.timeline.where(Kind.API, Kind.OPERATOR))] = 0
    begin, length = words.duration(first - facts.timeline.begin), words.duration(last - first)
    text = f"The longest gap begins at {begin} and lasts {length}"
    best = int(part.max(initial=0))
    if 2 * best < last - first:
        return text
    most = np.flatnonzero(part == best)[-1]  # the innermost of those that fill it
    return f"{text}, in {facts.timeline.names[facts.timeline.name[most]]}"


def where(facts: Evidence, mask: Mask) -> str:
    """Where these spans are, and the longest: "in stream 7, the longest takes 262 µs, at 1.2 ms (batch 3)"."""
    indices = np.flatnonzero(mask)
    lanes = dict.fromkeys(facts.timeline.lanes[lane].name for lane in facts.timeline.lane[indices].tolist())
    longest = int(indices[np.argmax((facts.last - facts.first)[indices])])
    at = words.duration(int(facts.timeline.start[longest]) - facts.timeline.begin)
    lasts = words.duration(int(facts.timeline.end[longest] - facts.timeline.start[longest]))
    batch = int(facts.timeline.batch[longest])
    whose = f" (batch {batch})" if batch >= 0 else ""
    return f"in {', '.join(lanes)}, the longest takes {lasts}, at {at}{whose}"
