"""How good a recording is, in notes that every figure shows: what is missing or left out, how fine the clock is."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from loaderviz import words
from loaderviz.recorder.kineto import RawTrace
from loaderviz.recorder.names import ON_DEVICE, Calls, Role

Ints = npt.NDArray[np.integer[Any]]

_PLURAL = {"instant": " marks", "counter": "s"}
_ENOUGH = 50  # events; the steps of a clock cannot be told from fewer


def resolution(start: Ints, end: Ints) -> int:
    """Return the largest step that all times are multiples of, ns; 0 if there are too few to tell."""
    if len(start) < _ENOUGH:
        return 0
    some = slice(0, 20_000)
    return int(np.gcd.reduce(np.concatenate([start[some] - start[0], end[some] - start[some]])))


def notes(trace: RawTrace, rows: dict[str, npt.NDArray[Any]], launch: Ints, calls: Calls, tick: int) -> list[str]:
    """Return what a reader must know of this trace."""
    found = [f"the file is damaged: {what}" for what in trace.damage]
    if not len(rows["start"]):
        return [*found, "the file has no events that can be drawn", *_left_out(trace)]
    work = np.isin(rows["role"], ON_DEVICE)
    total = int(work.sum())
    parts = []
    if total:
        launching = (rows["role"] == Role.CALL) & np.isin(rows["name"], calls.launches)
        idle = int((~np.isin(rows["correlation"][launching], rows["correlation"][work])).sum())
        orphans = int((work & (launch < 0)).sum())
        parts.append(f"{idle:,} of {int(launching.sum()):,} launches without GPU work")
        parts.append(f"{orphans:,} of {total:,} GPU spans without a launch")
        instant = int((work & (rows["start"] == rows["end"])).sum())
        if instant:
            parts.append(f"{words.share(instant / total)} of GPU spans last 0 ns")
        known = launch[work]
        early = int((rows["start"][work][known >= 0] < rows["start"][known[known >= 0]]).sum())
        if early:
            parts.append(f"{early:,} GPU spans begin before their launch")
    if tick:
        parts.append(f"clock steps of {words.duration(tick)}")
    parts.append(f"{trace.lost:,} events lost" if trace.lost else "no event lost")
    return [*found, "recording quality: " + ", ".join(parts), *_gpu_window(rows, work), *_left_out(trace)]


def _gpu_window(rows: dict[str, npt.NDArray[Any]], work: npt.NDArray[np.bool_]) -> list[str]:
    """Say where the GPU's work is if it fills less than half of the trace, as with a slow start of CUDA."""
    begin, whole = int(rows["start"][0]), int(rows["end"].max() - rows["start"][0])
    if not work.any():
        return []
    first, last = int(rows["start"][work].min()) - begin, int(rows["end"][work].max()) - begin
    if last - first >= whole / 2:
        return []
    return [f"the GPU has work from {words.duration(first)} to {words.duration(last)} only; for its share of that time "
            f"ask for window=({first}, {last})"]  # fmt: skip


def _left_out(trace: RawTrace) -> list[str]:
    """Say which events are not drawn; flows and metadata are not counted, their content is in the picture."""
    shown = {name: count for name, count in trace.left_out.items() if name.lower() not in ("flow", "trace", "")}
    shown = {f"{name}{_PLURAL.get(name, '' if ' ' in name else ' events')}": count for name, count in shown.items()}
    if trace.sync_rows:
        shown["synchronisation rows (they give arrows)"] = trace.sync_rows
    if not shown:
        return []
    several = sorted(shown.items(), key=lambda item: -item[1])
    return ["not drawn: " + ", ".join(f"{count:,} {name}" for name, count in several[:6])]
