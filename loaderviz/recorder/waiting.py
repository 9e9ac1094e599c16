"""What a trace tells about waiting: the host inside blocking calls, and streams that wait for events of others."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from loaderviz.recorder.kineto import RawTrace
from loaderviz.recorder.names import ON_DEVICE, Calls, Role
from loaderviz.recorder.places import Lanes
from loaderviz.timeline import COPIES, Cause, Kind

Ints = npt.NDArray[np.integer[Any]]
Rows = dict[str, npt.NDArray[Any]]

_NO_STREAM = (-1, 2**32 - 1)  # both are written where a synchronisation has no stream


def blocking_calls(rows: Rows, launch: Ints, calls: Calls, names: list[str]) -> tuple[Ints, Ints]:
    """Return the calls in which the host is blocked (their rows, sorted) and why. The whole call counts as waiting."""
    cause = np.full(len(rows["start"]), Cause.NONE, np.int8)
    is_call = rows["role"] == Role.CALL
    for each, numbers in calls.blocking.items():
        if numbers:
            cause[is_call & np.isin(rows["name"], numbers)] = each
    copies = np.flatnonzero(np.isin(rows["kind"], COPIES) & (launch >= 0))
    copies = copies[np.isin(rows["name"][launch[copies]], calls.copies)]
    call = launch[copies]
    staged = (rows["pinned"][copies] == 0) & (rows["start"][copies] < rows["end"][call])
    returns = np.array(["Async" in name for name in names], bool)  # such a call does not wait for its copy
    waited = ~returns[rows["name"][call]] & (rows["end"][copies] <= rows["end"][call])
    cause[call[waited]] = Cause.SYNCHRONIZE
    cause[call[staged]] = Cause.STAGING
    blocked = np.flatnonzero((cause != Cause.NONE) & (rows["end"] > rows["start"]))
    return blocked, cause[blocked]


def add_waits(rows: Rows, launch: Ints, calls: Calls, names: list[str]) -> tuple[Rows, Ints]:
    """Return the rows with a WAIT after each blocking call, and the former rows of those calls (see `moved`)."""
    place, cause = blocking_calls(rows, launch, calls, names)
    causes = np.unique(cause)
    numbers = (len(names) + np.searchsorted(causes, cause)).astype(np.int32)
    names += [Cause(each).words for each in causes.tolist()]
    new: dict[str, Any] = {
        "kind": Kind.WAIT, "cause": cause, "correlation": -1, "nbytes": -1, "pinned": -1, "role": Role.NONE,
        "name": numbers,
    }  # fmt: skip
    result = {}
    for column in sorted(rows, key=lambda name: -rows[name].itemsize):  # large ones first: their room is used again
        old = rows.pop(column)
        result[column] = np.insert(old, place + 1, new.get(column, old[place])) if len(place) else old
    return result, place


def moved(former: Ints, place: Ints) -> Ints:
    """Return where these former rows are, now that a row stands after each of `place`."""
    return former + np.searchsorted(place, former, side="left")


def event_arrows(trace: RawTrace, rows: Rows, launch: Ints, place: Lanes, calls: Calls) -> list[tuple[int, int]]:
    """Return pairs of rows (work, work that waited for it), from the profiler's "Stream Wait Event" rows.

    The event stands for the work put into its stream before it was recorded; the first work put into the waiting
    stream after the wait is what waited. Pairs that the times contradict are left out.
    """
    if not trace.event_waits:
        return []
    waits = np.array([[_int(value) for value in row] for row in trace.event_waits], np.int64)
    waited, recorded = (_calls_of(rows, waits[:, column]) for column in (0, 4))
    queues = _queues(rows, launch)
    pairs = set()
    for index in np.flatnonzero((waited >= 0) & (recorded >= 0)).tolist():
        _, stream, device, awaited, _ = waits[index].tolist()
        source, target = (place.streams.get((max(device, 0), number)) for number in (awaited, stream))
        if source is None or target is None or source == target:
            continue
        before = np.searchsorted(queues[source][0], rows["start"][recorded[index]]) - 1
        after = np.searchsorted(queues[target][0], rows["start"][waited[index]])
        if before >= 0 and after < len(queues[target][0]):
            tail, head = int(queues[source][1][before]), int(queues[target][1][after])
            if rows["end"][tail] <= rows["start"][head]:
                pairs.add((tail, head))
    return sorted(pairs)


def _calls_of(rows: Rows, correlations: Ints) -> Ints:
    """Return the row of the call with each of these numbers, -1 where there is none."""
    calls = np.flatnonzero((rows["role"] == Role.CALL) & (rows["correlation"] > 0))
    if not len(calls):
        return np.full(len(correlations), -1)
    order = calls[np.argsort(rows["correlation"][calls], kind="stable")]
    numbers = rows["correlation"][order]
    place = np.minimum(np.searchsorted(numbers, correlations), len(order) - 1)
    return np.where(numbers[place] == correlations, order[place], -1)


def _queues(rows: Rows, launch: Ints) -> dict[int, tuple[Ints, Ints]]:
    """Return for each lane when its work was launched, sorted, and the rows of that work."""
    work = np.flatnonzero(np.isin(rows["role"], ON_DEVICE) & (launch >= 0))
    queues = {}
    for lane in np.unique(rows["lane"]).tolist():
        mine = work[rows["lane"][work] == lane]
        order = np.argsort(rows["start"][launch[mine]], kind="stable")
        queues[lane] = rows["start"][launch[mine]][order], mine[order]
    return queues


def _int(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
    return -1 if number in _NO_STREAM else number
