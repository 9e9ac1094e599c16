"""Advice, Finding and Gain: what `advise` returns, and how it reads in a terminal, a notebook and a page.

advice.py    the findings, and `loaderviz.advise`   evidence.py     what a finding may ask a timeline
what_if.py   the loop with another loader           trials.py       each change of a finding, replayed
ranks.py     several ranks beside each other        fleet.py        hundreds of them, of a file each
report.py    numbers for programs, and limits
validate.py  the emulator's prices beside a trace   calibration.py  a host made of this machine
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal

from loaderviz import words
from loaderviz.timeline import Cause, Kind, Timeline

if TYPE_CHECKING:
    from loaderviz.analysis.evidence import Removal

WORTH_IT = 1.03  # a gain of less than 3 % is not worth a change of the program
SCHEMA = 1  # of `to_dict`
FindingKind = Literal[
    # copies to the GPU
    "pageable-copy",  # from pageable memory: through a staging buffer, and the host waits
    "hidden-sync",  # the same, although the program asked for no wait
    "index-on-host",  # x[rows] with rows in host memory
    "copy-not-hidden",  # from pinned memory, while no kernel runs
    "many-small-copies",  # several a step, each as long as its latency
    "model-on-host",  # of what a layer or a loss on the CPU needs and gives
    "cuda-in-dataset",  # made by the data set or its collate function
    "page-faults",  # of managed memory, which moves when it is touched
    "wide-dtype",  # of bytes in a type of four or eight
    "resident",  # the copying itself is the limit, or loading is; the data set could live on the GPU
    # how batches come
    "fetch-in-loop",  # the loop's own thread fetches them
    "waiting-for-data",  # workers or pin thread are too slow
    "reads-too-much",  # a line reads far more of a file than the sample needs
    "collate-in-python",  # making a batch of samples is what takes long
    "uneven-workers",  # one worker's batches take far longer
    "threads-in-workers",  # other threads of theirs take the cores
    "too-many-workers",  # more of them than cores, and they compute
    "cold-cache",  # files come from the disk itself, and not from the memory in which they are kept once read
    "workers-cost-more",  # the loop would make a batch sooner than it takes one from them
    "restarts-workers",  # worker processes are started anew, as in each epoch
    "restarts-iterator",  # one is begun for each batch
    "outlier-fetch",  # one fetch takes far longer than all others
    "unsharded-iterable",  # each worker gives all samples
    # the loop's own thread
    "interpreter-lock",  # another thread runs Python, and this one waits for it
    "synchronizes-each-step",  # .item(), print or a synchronise
    "anomaly-mode",  # each gradient is looked at for NaN
    "allocates-in-loop",  # cudaMalloc, cudaFree, page-locking
    "memory-grows",  # cudaMalloc again and again, and nothing is given back; or a worker needs more, batch by batch
    "swaps",  # the machine's memory is full
    "cores-taken",  # other programs have them
    "uneven-steps",  # some take far longer than the others
    "other-work-in-loop",  # a line that is no training takes the time: a log, a checkpoint, a report
    "dense-embedding",  # backward pass and optimizer walk all rows
    "one-by-one",  # a loop over tensors that torch can take all at once
    "host-bound",  # kernels are shorter than their launches
    "between-epochs",  # work beside the steps, such as validation
    # several GPUs
    "communication-exposed",  # collectives run while nothing computes
    "late-rank",  # one rank comes last
    # what is paid once, or is not known, or is no fault
    "start-up",
    "warm-up",
    "unpriced",  # the emulated host has no price for what the data set does
    "short-window",  # most of its batches were begun before it
    "no-gpu-work",
    "work-not-seen",
    "cause-not-seen",
    "nothing-to-gain",
]

Remedy = Literal[  # what helps a loop that waits for data; the text of the change follows from it
    "",  # what the finding's kind says
    "workers",  # more of them
    "some-workers",  # more, but nobody knows how many there are
    "no-warm-up",  # the first batches are left out
    "any-order",  # a batch is taken as soon as it is ready
    "stock",  # more of them are made ahead, or workers are kept
    "lock",  # workers hold it for less
    "fewer-bytes",  # in a batch
    "fewer-tensors",  # in a batch
    "cheaper",  # samples that are prepared once
    "one-epoch",  # as short as it is, the start of more workers is too long
    "room",  # smaller batches, for there is no memory for more
]


@dataclass(frozen=True)
class Gain:
    """What a change can gain at most: `ns` in the window, its `share` of it (0..1), and `per_step` ns if known.

    `basis` is the closed form in words, with its numbers; `once` says that the cost is not paid in each step.
    `predicted` is what the change gains a step [ns], in a replay of the loop, or since what is left out takes no time;
    None where that is not known.
    """

    ns: int
    share: float
    per_step: float | None
    basis: str = ""
    once: bool = False
    predicted: float | None = None

    @property
    def told(self) -> str:
        """The bound with its numbers, and the prediction."""
        if self.predicted is None:
            return self.basis
        return f"{self.basis}; the change is predicted to save {words.duration(self.predicted)} a step"

    def __str__(self) -> str:
        if not self.ns:
            return "nothing a step, it is paid once" if self.once else "nothing"
        time = words.duration(self.ns) if self.per_step is None else f"{words.duration(self.per_step)} a step"
        return f"up to {time} ({words.share(self.share)})"


NO_GAIN, ONCE = Gain(0, 0.0, None), Gain(0, 0.0, None, once=True)


def is_worth_it(gain: int, window: int) -> bool:
    """Tell whether a loop that takes `window` ns would be at least 3 % faster with this gain [ns]."""
    return gain > 0 and window >= WORTH_IT * (window - gain)


@dataclass(frozen=True)
class Subject:
    """What in a timeline a finding is about, so that a picture can point to it: spans, or a time.

    Spans are those of `kinds`, of waits only those with one of `causes`, of copies only `pageable` ones if that is set.
    A `time` is what passes while the GPU is "idle", the "start-up" before the judged window, or what is "outside" of
    its steps.
    """

    kinds: tuple[Kind, ...] = ()
    causes: tuple[Cause, ...] = ()
    pageable: bool = False
    time: Literal["", "idle", "outside", "start-up"] = ""


@dataclass(frozen=True)
class Finding:
    """One thing that costs time: what kind of thing, the evidence in numbers, the line of code to change, the gain.

    `expected_gain` is an upper bound; it is 0 for what is paid once and for a finding that nothing can be gained.
    `parameters` are the change as arguments of `what_if`, empty where a line has to be written anew; what that line
    takes away is `removal`. `predicted` is the timeline of the loop with the change; None where it could not be
    replayed. `remedy` says which of several changes it is.
    """

    kind: FindingKind
    evidence: str
    change: str
    expected_gain: Gain
    parameters: Mapping[str, Any] = field(default_factory=dict)
    predicted: Timeline | None = field(default=None, compare=False, repr=False)
    subject: Subject = field(default=Subject(), repr=False)
    removal: Removal | None = field(default=None, compare=False, repr=False)
    remedy: Remedy = field(default="", compare=False, repr=False)

    @property
    def asked(self) -> str:
        """What was replayed, as a call."""
        given = ", ".join(f"{name}={value!r}" for name, value in self.parameters.items())
        return f"what_if({given})" if given else "a replay without it"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON: times in ns, `null` for what is not known."""
        gain = self.expected_gain
        return {
            "kind": self.kind,
            "evidence": self.evidence,
            "change": self.change,
            "parameters": dict(self.parameters),
            "gain": {
                "bound_ns": gain.ns,
                "share": gain.share,
                "bound_per_step_ns": gain.per_step,
                "predicted_per_step_ns": gain.predicted,
                "once": gain.once,
                "basis": gain.basis,
            },
        }

    @property
    def title(self) -> str:
        """The kind and the gain, in one line."""
        return f"{self.kind}: {self.expected_gain}" if self.expected_gain.ns or self.expected_gain.once else self.kind

    def __str__(self) -> str:
        code = self.change.replace("\n", f"\n{'':10}")  # as it is, to be copied
        seen, gain = (
            words.wrapped(text, f"  {name:8}", 10)
            for name, text in (("seen", self.evidence), ("gain", self.expected_gain.told))
        )
        return "\n".join(part for part in (self.title, seen, code and f"  change  {code}", gain) if part)


@dataclass(frozen=True)
class PathStep:
    """A change on the way to the limit: its finding's `kind` and `parameters` (none: a line), a `step` [ns] after it.

    `predicted` is the replay with this change and those before it, and `left` the advice about that.
    """

    kind: FindingKind
    parameters: Mapping[str, Any]
    step: float
    predicted: Timeline = field(repr=False, compare=False)
    left: Advice = field(repr=False, compare=False)

    @property
    def told(self) -> str:
        """The change and what follows, such as "workers=4: 410 µs", or "without host-bound: 410 µs"."""
        given = ", ".join(f"{name}={value}" for name, value in self.parameters.items())
        return f"{given or f'without {self.kind}'}: {words.duration(self.step)}"


class Advice(list[Finding]):
    """The findings about one timeline, in the order to make their changes; prints as text, as HTML in a notebook.

    `judged` says in words which part of the timeline was looked at, `window` is that part in ns, `step` what a step
    takes now and `limit` the least that the hardware allows [ns], which is the time of what is `longest`; both are None
    where steps are not known.
    """

    def __init__(
        self,
        findings: Iterable[Finding],
        judged: str,
        window: tuple[int, int],
        timeline: Timeline | None = None,
        step: float | None = None,
        limit: float | None = None,
        longest: str = "",
    ) -> None:
        super().__init__(findings)
        self.longest = longest
        self.judged, self.window, self.step, self.limit, self._timeline = judged, window, step, limit, timeline

    @cached_property
    def path(self) -> tuple[PathStep, ...]:
        """The way to the limit: the first change, then the first of what is left, and so on, each one replayed."""
        from loaderviz.analysis.trials import way

        return way(self._timeline, self) if self._timeline is not None and self.step else ()

    @property
    def told_path(self) -> str:
        """The path in one line; "" where no change could be replayed."""
        if not self.path or self.step is None:
            return ""
        steps = [words.duration(self.step), *(each.told for each in self.path)]
        left = self.path[-1].left
        next_kind = next((each.kind for each in left if each.expected_gain.ns), None)
        then = f" Then {next_kind} is what is left." if next_kind else ""
        alone = f" The {left.longest} alone take {words.duration(left.limit)} there." if left.limit else ""
        before = takewhile(lambda each: each.kind != self.path[0].kind, self)
        unknown = [each.kind for each in before if each.expected_gain.per_step and each.predicted is None]
        without = f" It leaves out {' and '.join(unknown)}, whose gain no replay has shown." if unknown else ""
        return f"The way to the limit, a step: {' → '.join(steps)}.{without}{then}{alone}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON: times in ns, `null` for what is not known."""
        path = [{"kind": each.kind, "parameters": dict(each.parameters), "step_ns": each.step} for each in self.path]
        return {
            "schema": SCHEMA,
            "judged": self.judged,
            "window_ns": list(self.window),
            "step_ns": self.step,
            "limit_ns": self.limit,
            "findings": [each.to_dict() for each in self],
            "path": path,
        }

    def __str__(self) -> str:
        found, path = [f"{number}. {each}" for number, each in enumerate(self, 1)], self.told_path
        return "\n\n".join([words.wrapped(self.judged), *found, *([words.wrapped(path)] if path else [])])

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        found = (_as_markdown(number, each) for number, each in enumerate(self, 1))
        return "\n".join([f"{words.markdown(self.judged)}\n", *found, words.markdown(self.told_path)])

    def _repr_html_(self) -> str:
        path = f"<p>{escape(self.told_path)}</p>" if self.told_path else ""
        return f"<p>{escape(self.judged)}</p><ol>{''.join(map(_as_html, self))}</ol>{path}"


def _as_markdown(number: int, finding: Finding) -> str:
    title = words.markdown(finding.title).replace(words.markdown(finding.kind), f"**{finding.kind}**", 1)
    code = finding.change.replace("\n", "\n   ")
    parts = [
        f"{number}. {title}\n\n   {words.markdown(finding.evidence)}\n",
        code and f"\n   ```python\n   {code}\n   ```\n",
        finding.expected_gain.basis and f"\n   Gain: {words.markdown(finding.expected_gain.told)}.\n",
    ]
    return "".join(parts)


def _as_html(finding: Finding) -> str:
    parts = [
        f"<p>{escape(finding.title).replace(finding.kind, f'<b>{finding.kind}</b>', 1)}</p>",
        f"<p>{escape(finding.evidence)}</p>",
        finding.change and f"<pre>{escape(finding.change)}</pre>",
        finding.expected_gain.basis and f"<p>Gain: {escape(finding.expected_gain.told)}.</p>",
    ]
    return f"<li>{''.join(parts)}</li>"
