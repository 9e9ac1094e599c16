"""Clocks of several hosts: how far each is ahead, by its ranks' collectives, which end at one time in all of them.

Hosts agree on the time to some ms, if NTP sets their clocks, and a collective takes less: a clock that is ahead would
part it from that of the other ranks, and its rank would seem to be late, or to wait.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from loaderviz import words
from loaderviz.timeline import Ints, Message, gathered

AHEAD = 10_000  # ns: ends differ by some 5,000 where clocks agree, on eight H100s of one host
APART = 20_000  # ns: if ends, less one offset, differ by more in the median, they are not of the same collectives
FEWEST, MOST, NAMED = 4, 128, 4  # collectives that are compared, if there are so many; ranks that are named
_TOGETHER = re.compile("all.?reduce|all.?gather|reduce.?scatter|all.?to.?all", re.I)  # no rank is done before others

Collectives = tuple[Sequence[Hashable], Ints]  # of a rank: of which kind each is, and when it ended [ns]


def kinds(names: Iterable[str], messages: Iterable[Message | None]) -> list[Hashable]:
    """Return for each collective of a rank what it has in common with those of others; None: not all end together."""
    told = (
        (name, message.name if message else "", message.group if message else "")
        for name, message in zip(names, messages, strict=True)
    )
    return [(name, group) if _TOGETHER.search(f"{name} {what}") else None for name, what, group in told]


def ahead(ranks: Sequence[Collectives]) -> list[int]:
    """Return by how many ns the clock of each rank is ahead of the first one's; 0 where that cannot be told.

    >>> import numpy as np
    >>> ends = np.array([0, 700_000, 1_500_000])
    >>> ahead([(["allreduce"] * 3, ends), (["allreduce"] * 3, ends + 3_000_000)])
    [0, 3000000]
    """
    apart = [{kind: np.sort(ends[places]) for kind, places in _places(each).items()} for each, ends in ranks]
    found, of = dict[int, int](), dict[Hashable, int]()  # what is known of ranks; for each kind a rank that is known
    left = list(range(len(ranks)))
    while left:
        shared = ((number, kind) for number in left for kind in apart[number] if kind in of)
        number, kind = next(shared, (left[0], None))
        off = 0
        if kind is not None:
            other = of[kind]
            off = found[other] + _offset(apart[other][kind], apart[number][kind])
        found[number] = off if abs(off) >= AHEAD else 0
        of |= {each: number for each in apart[number] if each not in of}
        left.remove(number)
    return [found[number] for number in range(len(ranks))]


def told(off: Sequence[int], labels: Sequence[str]) -> list[str]:
    """Return the note on the clocks that are ahead or behind by so many ns."""
    clocks = [
        f"{label.strip()} is {'ahead' if time > 0 else 'behind'} by {words.duration(abs(time))}"
        for time, label in zip(off, labels, strict=True)
        if time
    ]
    more = [f"and {words.count(len(clocks) - NAMED, 'more rank')}"] * (len(clocks) > NAMED)
    which = "; ".join([*clocks[:NAMED], *more])
    return [f"the ranks' clocks differ, by the ends of their collectives, and are put right: {which}"] if clocks else []


def _places(kinds: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    """Return where collectives of each kind stand, the most frequent kind first."""
    found = gathered((kind, place) for place, kind in enumerate(kinds) if kind is not None)
    return dict(sorted(found.items(), key=lambda each: -len(each[1])))


def _offset(ends: Ints, others: Ints) -> int:
    """Return by how much the second ends are later than the first, which may have begun some collectives before."""
    ends, others = ends[:MOST], others[:MOST]
    count = min(len(ends), len(others))
    least = max(min(count, FEWEST), count // 2)
    fits = list[tuple[float, float]]()  # for each shift by how much they differ from their offset, and that
    for shift in sorted(range(least - len(others), len(ends) - least + 1), key=abs):
        first, second = ends[max(0, shift) :], others[max(0, -shift) :]
        apart = second[: len(first)] - first[: len(second)]
        off = float(np.median(apart))
        fits.append((float(np.median(np.abs(apart - off))), off))
        if fits[0][0] <= APART and abs(fits[0][1]) < AHEAD:
            return 0
    best = min(fits)[0]
    alike = [off for apart, off in fits if apart <= 2 * best + APART / 40]
    nearest = min((abs(off), off) for off in alike)[1]
    return round(nearest) if best <= APART else 0
