"""Each change is tried before it is advised: replayed on the emulator's rules, beside the same loop without it.

    Trials(facts).tried(finding)   # the finding with what its change gains a step; None where that is nothing
    way(timeline, advice)          # one change after the other, to the limit

What is gained is the difference of two replays, so that what a replay does not know is in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from loaderviz import words
from loaderviz.analysis import WORTH_IT, Advice, Finding, PathStep
from loaderviz.analysis.evidence import Evidence, Removal
from loaderviz.analysis.what_if import WITH_WORKERS, Change, LoopModel, changed, crossing, gpu_of, of_loop, replayed
from loaderviz.errors import LoadervizError
from loaderviz.intervals import either
from loaderviz.timeline import KERNELS, Kind, Timeline

REPLAYED = 2_000  # steps, and ten times as many kernels: more are not replayed only to check an advice
BAND = 0.15  # that a replay may be off, and the bound is above it
NO_USE = 0.005  # of a step: a smaller gain is none
UNLIKE = 0.7  # of a step: a replay of a real loop as it is that takes less is of another loop
SEVERAL = "a replay has one DataLoader, and a step takes batches of several here"
ANEW = "no replay has such a change"
LONGEST_WAY, STEPS_OF_WAY = 6, 500  # changes; steps of a loop whose way is looked for


class Trials:
    """The replays of one loop, of which the one without a change is made once."""

    def __init__(self, facts: Evidence) -> None:
        self.facts, self.timeline = facts, facts.timeline
        self._real = facts.timeline.context.origin != "emulated"
        self._refused = ""  # why the last one was not replayed

    @cached_property
    def why_not(self) -> str:
        """Why the loop cannot be replayed, or would take too long; "" where it can."""
        steps, kernels = len(self.facts.marks), int(self.facts.mask(*KERNELS).sum())
        if steps > REPLAYED or kernels > REPLAYED * 10:
            most = f"a replay takes at most {REPLAYED:,} steps and {REPLAYED * 10:,} kernels"
            return f"{most}, and this loop has {steps:,} and {kernels:,}; record fewer steps"
        now, took = self.facts.summary.step, self.unchanged
        if not (now and took):
            return self._refused or "the timeline shows no steps"
        if self._real and took <= UNLIKE * now:
            return f"as it is, a step takes {words.duration(took)} in a replay, and it took {words.duration(now)}"
        return ""

    @cached_property
    def unchanged(self) -> float | None:
        """A step of the loop as it is [ns], in a replay; None where it cannot be replayed."""
        return _step(self._replayed)

    @cached_property
    def _loop(self) -> LoopModel:
        return LoopModel(self.timeline, facts=self.facts)

    @cached_property
    def _replayed(self) -> Timeline | None:
        return self._without(None)

    def tried(self, finding: Finding) -> Finding | None:
        """Return the finding with what its change gains; None where the change gains nothing.

        One that cannot be replayed comes back with its bound alone, which says why.
        """
        removal = finding.removal
        if finding.expected_gain.predicted:
            return finding
        if not (finding.parameters or removal or finding.kind in _PRICED):
            return _not_replayed(finding, ANEW)
        if self.facts.unlike_loaders and not removal:
            return _not_replayed(finding, SEVERAL)
        self._refused = ""
        before, after, predicted = self.ask(finding)
        now, steps = self.facts.summary.step, self.facts.steps
        if not (before and now and steps) or after is None:
            return _not_replayed(finding, self._refused or self.why_not or "the timeline shows no steps")
        saved = now * (1 - after / before)  # both replays may be off by the same part
        lacking = self.facts.hindered if finding.parameters.get("workers") else 0  # cores, as workers would lack them
        if saved < max(NO_USE, lacking) * now:
            return None
        kept = self.facts.mask(*KERNELS)
        if removal:
            kept &= ~self.facts.launched(removal.calls)
        gain, kernels = finding.expected_gain, self.facts.length(kept) / steps
        most = min(saved * (1 + BAND), max(saved, now - kernels))
        close = saved * (1 + BAND) if removal else saved + 1  # what a line takes is known less than what a setting does
        if close >= (gain.per_step or 0):  # what the bound has not counted
            what = f"{words.share(BAND)} more than a replay gains"
            if most < saved * (1 + BAND):
                what = "the step without its kernels"
            basis = f"at most {words.duration(most)} a step, which is {what}"
            gain = replace(gain, ns=round(most / now * self.facts.window), share=most / now, per_step=most, basis=basis)
        return replace(finding, expected_gain=replace(gain, predicted=saved), predicted=predicted)

    def ask(self, finding: Finding) -> tuple[float | None, float | None, Timeline | None]:
        """Return a step before and after the change [ns], and the timeline after it."""
        now, per_step, removal = self.facts.summary.step, finding.expected_gain.per_step, finding.removal
        if finding.kind == "restarts-workers" and now and per_step:  # what it takes is what it gains
            return now, now - per_step, self._replayed if self.facts.summary.busy and not self.why_not else None
        sends = finding.kind == "workers-cost-more" and self._real  # what that costs, no replay knows of a real host
        if sends or not self.facts.summary.busy:
            return now, self._on_cpu(finding.parameters, removal), None
        if self.why_not:
            return None, None, None
        if finding.kind == "allocates-in-loop" and now and self.unchanged:  # no replay allocates
            return now, max(self.unchanged, now - (per_step or 0.0)), self._without(None)
        try:
            predicted = self._without(removal) if removal else of_loop(self._loop, Change(**finding.parameters))
        except LoadervizError as problem:
            self._refused = _in_short(problem)
            return None, None, None
        before = min(now or 0.0, self.unchanged or 0.0)  # one that is slower than the loop would gain too much
        after, slower = _step(predicted), (self.unchanged or 0.0) - before
        if finding.kind == "workers-cost-more":  # without workers, nothing is left of what a replay does not know
            before = now or 0.0
        if after and predicted is not None and self._replayed is not None:  # but for what both take to begin
            after -= min(slower, _lead(predicted), _lead(self._replayed))
        return before, after, predicted

    def _without(self, removal: Removal | None) -> Timeline | None:
        try:
            loop = LoopModel(self.timeline, removal, self.facts) if removal else self._loop
            gpu = gpu_of(loop)
            config = changed(loop, pinned=True) if removal and removal.pinned else loop.config
            return replayed(loop, config, gpu, gpu, graphs=removal is not None and removal.graphs)
        except LoadervizError as problem:
            self._refused = _in_short(problem)
            return None

    def _on_cpu(self, parameters: Mapping[str, Any], removal: Removal | None) -> float | None:
        """Return a step where the CPU trains, too: workers take cores, but not while they wait [ns]."""
        facts = self.facts
        workers = parameters.get("workers", len(facts.lanes_of("worker")))
        if not facts.steps:
            return None
        fetch, cores, left = facts.fetch, facts.cores or workers, removal.fetch if removal else 1.0
        computes, waits = left * fetch.computes, left * fetch.waits * (removal.waits if removal else 1.0)
        if removal and removal.any_order and self._ends_late(workers):
            self._refused = "an epoch ends with its slowest batch in any order"
            return None
        if not workers:  # the loop does all of it, one after the other
            own = facts.host_floor(either(facts.getting, facts.taking)).ns + facts.taking_late
            return own / facts.steps + computes + waits
        own = facts.host_floor(facts.getting).ns / facts.steps
        if not facts.lanes_of("worker"):  # a replay would send each batch from one process to another, too
            sends, receives = crossing(facts)
            own = own * (1 + (WITH_WORKERS - 1) * facts.crowded(workers)) + receives
            computes += sends
        supply = max((computes + waits) / workers, computes / min(workers, cores))
        return float(max(own, supply, (own + computes) / cores))

    def _ends_late(self, workers: int) -> bool:
        """Tell whether epochs end with batches that one worker alone still makes, if they come in any order."""
        timeline, rows = self.timeline, self.facts.fetches & (self.timeline.batch >= 0)
        lasts = (timeline.end - timeline.start)[rows].tolist()
        times = sorted(self.facts.as_ready(dict(zip(timeline.batch[rows].tolist(), lasts, strict=True))).items())
        longest = max(sum(time for _, time in times[place::workers]) for place in range(workers))
        return bool(longest * workers > (1 + BAND) * sum(lasts))


_PRICED = ("restarts-workers", "allocates-in-loop")


def _not_replayed(finding: Finding, why: str) -> Finding:
    """Return the finding, whose bound says that it is all that is known of its gain."""
    gain = finding.expected_gain
    return replace(finding, expected_gain=replace(gain, basis=f"{gain.basis}; its gain is not predicted: {why}"))


def _in_short(problem: LoadervizError) -> str:
    """Say why a loop is not replayed, without what would have to be recorded for it."""
    first, _, rest = str(problem).replace("what_if()", "a replay").partition(": ")
    return first if " " in first else rest


def _step(timeline: Timeline | None) -> float | None:
    """Return what a step of a replay takes [ns]: all of it is steps, and at its end the host waits for the GPU."""
    return timeline.duration / int(timeline.where(Kind.RANGE).sum()) if timeline is not None else None


def _lead(timeline: Timeline) -> float:
    """Return the time until the GPU's first work, as a part of each step [ns]."""
    first = timeline.start[timeline.where(*KERNELS)].min(initial=timeline.begin + timeline.duration)
    return float(first - timeline.begin) / int(timeline.where(Kind.RANGE).sum())


def way(timeline: Timeline, advice: Advice) -> tuple[PathStep, ...]:
    """Return the changes that lead to the limit, each the first of what was left after the one before.

    A step after a change is reckoned as a finding's gain is, so that both say the same; a setting is changed once. A
    setting is replayed with those before it; a line that is written anew is gone from the loop that is replayed then.
    """
    from loaderviz.analysis.advice import advise

    found: list[PathStep] = []
    given, here = dict[str, Any](), dict[str, Any]()  # the settings; those of them that the loop has not got yet
    now, left = advice.step or 0.0, advice
    last, trials = now, Trials(Evidence(timeline))
    if (trials.facts.summary.batches or 0) > STEPS_OF_WAY:
        return ()
    while len(found) < LONGEST_WAY:
        first = next((each for each in left if _leads_on(each, given)), None)
        if first is None:
            break
        step, predicted = last * (1 - (first.expected_gain.predicted or 0.0) / (left.step or now)), first.predicted
        given = _joined(given, first.parameters)
        anew = not first.parameters or first.kind in _PRICED
        if not anew:
            here = _joined(here, first.parameters)
            before, after, predicted = trials.ask(replace(first, parameters=here))
            step = now * after / before if before and after else 0.0
        if step <= 0 or predicted is None or last < WORTH_IT * step:
            break
        last, left = step, advise(predicted)
        found.append(PathStep(first.kind, first.parameters, step, predicted, left))
        if anew:
            now, here, trials = step, {}, Trials(Evidence(predicted))
    return tuple(found)


def _leads_on(finding: Finding, given: Mapping[str, Any]) -> bool:
    """Whether a finding's change was replayed, is new, and takes back nothing of those that are `given`."""
    asked = {**given, **finding.parameters}
    return finding.predicted is not None and (asked != given or not finding.parameters) and asked == {**asked, **given}


def _joined(given: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return both changes as one; where the data live on the GPU nothing is loaded."""
    both = {**given, **more}
    if both.get("resident"):
        both = {name: value for name, value in both.items() if name not in ("pinned", "prefetch", "workers")}
    return both
