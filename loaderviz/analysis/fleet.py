"""Hundreds of ranks: each file becomes its numbers where it is read, and only these come together, as one table.

table = loaderviz.ranks("run/", executor=pool)   # a RankTable, as that of a timeline with all ranks
table.timeline                                   # its telling ranks, read whole
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loaderviz.analysis.ranks import RankTable, Times, done_by, table_of
from loaderviz.metrics import Loop, device_of, devices_of, lateness, messages_of, window_of
from loaderviz.timeline import ABSENT, Context, Ints, Kind, Message, Timeline, TimelineBuilder
from loaderviz.traces import TraceError, absent, attempted, check_executor, clocks, made_of, read, told_of, tried
from loaderviz.traces.places import found
from loaderviz.traces.steps import checked_part

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from loaderviz.traces.kineto import RawTrace


@dataclass(frozen=True)
class RankNumbers:
    """What is kept of a rank, of each of its GPUs, some kilobytes. Times in ns of Unix time, where that is known.

    `did` is for how long it did what a `RankRow` says, in its `window`. Of each collective there are the name and the
    message. `moments` are its own begin, and when each of its `n` collectives came and ended; by then it had `done` so
    much of each of `CAUSES`, of shape `(1 + 2n, 4)`. `steps` are those that launched them; its
    window holds `count`. `world` is how many ranks the run has, None if its file does not tell.
    """

    path: Path
    label: str
    rank: int | None
    device: str
    unix: bool
    window: tuple[int, int]
    did: tuple[int, int, int, int]
    names: tuple[str, ...]
    moments: Ints
    done: Ints
    steps: Ints
    count: float
    messages: tuple[Message | None, ...]
    world: int | None


def ranks(path: Any, *, executor: Executor | None = None, steps: slice | None = None) -> RankTable:
    """Return hundreds of ranks beside each other, and the timeline of the telling ones: late, or fastest and slowest.

    `path`, `executor` and `steps` mean what they mean to `loaderviz.read`. Some kilobytes are kept of each file, so a
    process needs the memory of one rank. The telling ranks are read again: whole, or the `steps` of them. Kernels,
    copies and loading of a rank are those of its own steady state. Raises what `loaderviz.read` raises, and
    `TraceError` for fewer than two ranks.

    >>> table = loaderviz.ranks("run/")
    >>> table.late[0].row.rank, table.late[0].cause
    ('1', 'loads')
    """
    check_executor(executor)
    steps, _ = checked_part(steps, None)
    with ExitStack() as stack:
        files, named = found(path, stack)
        numbers, left_out = tried(partial(_numbers_of, part=steps), files, named, executor)
        every = [each for of_file in numbers for each in of_file]
        if len({(each.path, each.label) for each in every}) < 2:
            raise TraceError(f"ranks() needs the traces of two ranks at least, and {path} has one; read it alone")
        table = _joined(every)
        telling = dict.fromkeys(every[row.device].path for row in table.telling)
        timeline = read(list(telling), executor=executor, steps=steps)
        lacks = absent([(each.rank, each.world) for each in every])
        context = timeline.context  # it tells of those that are read again
        told, missing = ((*(e for e in part if ABSENT not in e), *lacks) for part in (context.notes, context.missing))
        return replace(
            table,
            timeline=replace(timeline, context=replace(context, notes=told, missing=missing)),
            notes=(*told_of(left_out, files), *lacks),
        )


def _numbers_of(path: Path, part: slice | None = None) -> list[RankNumbers] | TraceError:
    """Return the numbers of each rank in a file, or why it is no trace."""
    raws = attempted(path, alone=False, part=part)
    if not isinstance(raws, list):
        return TraceError(f"{path} is a timeline that loaderviz saved") if isinstance(raws, Timeline) else raws
    timelines = ((raw, made_of([raw])) for raw in raws if len(raw.columns["start"]))
    return [_numbers(path, *each, device) for each in timelines for device in devices_of(each[1])]


def _numbers(path: Path, raw: RawTrace, timeline: Timeline, device: int) -> RankNumbers:
    loop, zero = Loop.of(timeline, device), timeline.context.zero or 0
    start, end = window_of(timeline, loop.window)
    rows = np.flatnonzero(
        (device_of(timeline) == device) & timeline.where(Kind.COMMUNICATION) & (timeline.end > timeline.start)
    )
    moments, done = done_by(Times(timeline, *window_of(timeline, None)), device, rows)
    return RankNumbers(
        path,
        raw.label or (f"rank {raw.rank}" if raw.rank is not None else ""),
        raw.rank,
        timeline.context.device,
        timeline.context.zero is not None,
        (start + zero, end + zero),
        Times(timeline, start, end).of(device),
        tuple(timeline.names[name] for name in timeline.name[rows].tolist()),
        moments + zero,
        done,
        timeline.batch[rows],
        loop.count(start, end),
        tuple(messages_of(timeline, rows)),
        raw.world,
    )


def _joined(every: list[RankNumbers]) -> RankTable:
    """Return the table of these ranks, by a timeline of their collectives and steps alone; they are put in order."""
    every.sort(key=lambda each: (each.rank is None, each.rank or 0))  # as `read` does
    files = Counter(label for label, _ in {(each.label, each.path) for each in every})
    names = [each.label if files[each.label] == 1 else "" for each in every]
    off = clocks.ahead(
        [(clocks.kinds(each.names, each.messages), each.moments[1 + len(each.names) :]) for each in every]
    )
    every = [
        replace(each, window=(each.window[0] - ahead, each.window[1] - ahead), moments=each.moments - ahead)
        for each, ahead in zip(every, off, strict=True)
    ]
    together, first = all(each.unix for each in every), min(each.window[0] for each in every)
    zeros = [first if together else each.window[0] for each in every]
    builder, messages = (
        TimelineBuilder(Context(", ".join(dict.fromkeys(each.device for each in every)))),
        list[Message](),
    )
    for number, (each, name) in enumerate(zip(every, names, strict=True)):
        lane = builder.lane(f"{name or f'file {number}'} collectives", "device", number=number, device=number)
        numbers = (*np.split(each.moments[1:] - zeros[number], 2), each.steps)
        for came, ended, step, what, message in zip(
            *map(np.ndarray.tolist, numbers), each.names, each.messages, strict=True
        ):
            correlation = -1 if message is None else len(messages)
            messages += [message._replace(correlation=correlation)] if message else []
            builder.span(came, ended, lane, Kind.COMMUNICATION, what, batch=step, correlation=correlation)
    builder.context = replace(builder.context, messages=tuple(messages))
    busiest = max(range(len(every)), key=lambda at: sum(every[at].did[:2]))
    start, end = (edge - zeros[busiest] for edge in every[busiest].window)
    timeline = builder.build()
    for number, each in enumerate(every):
        mine = timeline.where(Kind.COMMUNICATION) & (device_of(timeline) == number)
        idle = timeline.results.setdefault("unoccupied", np.zeros((2, len(timeline)), np.int64))
        idle[:, mine] = np.split((each.moments - each.done[:, 0])[1:], 2)
    late = lateness(timeline, (start, end), every[busiest].count)
    return table_of(
        timeline,
        late,
        {number: each.did for number, each in enumerate(every)},
        lambda number: (every[number].moments - zeros[number], every[number].done),
    )
