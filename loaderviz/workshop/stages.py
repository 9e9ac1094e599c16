"""What a batch costs in each stage of the way to the GPU, and the step that follows: the slowest stage sets the pace.

found = stages(steady(timeline))            # {"fetch": 3_281_000, "pin": 401_000, "copy": …, "compute": …} ns a batch
limit(found, workers=4)                     # ns a step
chart({1: 3_282_000, 4: 920_000}, found)    # measured steps over the number of workers, and the limit
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from loaderviz.experiment import Images
from loaderviz.timeline import Kind, Timeline, TimelineError

if TYPE_CHECKING:
    import plotly.graph_objects as go

STEADY = range(12, 28)  # batches by which the start is over: of 32, the first 12 fill queues and take memory
STAGES = {"fetch": Kind.FETCH, "pin": Kind.PIN, "copy": Kind.COPY_H2D, "compute": Kind.COMPUTE}
SLOWEST = "a pipeline is as fast as its slowest stage: fetch / workers, pin, copy or compute"


def stages(timeline: Timeline) -> dict[str, int]:
    """Return what one batch costs in each stage, ns: the median over the batches; 0 where a stage does not occur.

    `fetch` is one worker's time for a batch, however many workers there are.
    """
    found = {}
    for name, kind in STAGES.items():
        mine = timeline.where(kind) & (timeline.batch >= 0)
        _, which = np.unique(timeline.batch[mine], return_inverse=True)
        times = np.bincount(which, (timeline.end - timeline.start)[mine])
        found[name] = int(np.median(times)) if len(times) else 0
    return found


def limit(costs: Mapping[str, int], workers: int) -> int:
    """Return the shortest step [ns] with so many workers (from 1): the time of the slowest stage.

    >>> limit({"fetch": 3200, "pin": 400, "copy": 130, "compute": 900}, workers=2)
    1600
    """
    return max(math.ceil(costs["fetch"] / workers), costs["pin"], costs["copy"], costs["compute"])


def steady(timeline: Timeline, batches: range = STEADY) -> Timeline:
    """Return the part in which the GPU works on these batches: from the end of its work on the one before.

    Cut by the GPU's work, since the host runs ahead of it. A step takes `duration / len(batches)` there.
    Raises `TimelineError` if the GPU did not work on all of them.
    """
    edges = []
    for batch in (batches[0] - 1, batches[-1]):
        ends = timeline.end[timeline.where(Kind.COMPUTE) & (timeline.batch == batch)]
        if not len(ends):
            raise TimelineError(f"steady({batches}): no kernel works on batch {batch}; train on more batches")
        edges.append(int(ends.max()))
    return timeline.between(*edges)


def in_flight(timeline: Timeline) -> int:
    """Return how many batches there were at most in host memory: fetched, and not yet handed out."""
    ready = {span.batch: span.end for span in timeline.rows(Kind.FETCH)}
    taken = {span.batch: span.start for span in timeline.rows(Kind.OPERATOR) if span.name == "DataLoader hand-out"}
    never = timeline.begin + timeline.duration + 1
    counts = (
        sum(ready.get(batch, 0) <= time <= taken.get(batch, never) for batch in ready.keys() | taken.keys())
        for time in taken.values()
    )
    return max(counts, default=0)


def chart(steps: Mapping[int, float], costs: Mapping[str, int]) -> go.Figure:
    """Draw measured steps [ns] over the number of workers (points), and the slowest stage (line)."""
    import plotly.graph_objects as go  # a lesson draws; a check does not

    from loaderviz.draw import theme

    last = max(steps)
    some = [1 + k / 20 for k in range(20 * (last - 1) + 1)]
    lines = {"fetch / workers": [costs["fetch"] / workers / 1000 for workers in some]}
    lines |= {name: [costs[name] / 1000] * len(some) for name in ("compute", "pin", "copy")}
    looks = {
        "fetch / workers": (theme.GREEN, "dot"), "compute": (theme.BLUE, "longdash"), "pin": (theme.ORANGE, "dashdot"),
        "copy": (theme.VERMILLION, "dash"),
    }  # fmt: skip
    figure = go.Figure(layout={"template": theme.TEMPLATE, "height": 400, "margin": {"t": 60, "b": 60}})
    slowest = [max(parts) for parts in zip(*lines.values(), strict=True)]
    figure.add_scatter(
        x=some, y=slowest, name="the slowest stage", mode="lines", line={"color": theme.PALE, "width": 9}
    )
    for name, values in lines.items():
        color, dash = looks[name]
        figure.add_scatter(x=some, y=values, name=name, mode="lines", line={"color": color, "dash": dash})
    measured = {"color": theme.BLACK, "size": 10, "symbol": "diamond"}
    workers = [count for count in steps if count]
    values = [steps[count] / 1000 for count in workers]
    figure.add_scatter(x=workers, y=values, name="measured step", mode="markers", marker=measured)
    figure.update_layout(title="A step takes as long as the slowest stage")
    figure.update_xaxes(title="workers", dtick=1)
    unit = {"text": "µs a batch", "standoff": 12, "font": {"size": theme.TEXT_PX + 1}}  # beside the numbers
    figure.update_yaxes(title=unit, automargin=True, rangemode="tozero")
    return figure


class SometimesSlow(Images):
    """MNIST in memory where one sample of `every` makes its batch `seconds` late, as a file on a busy disk does."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, every: int, seconds: float) -> None:
        super().__init__(images, labels)
        self.every, self.seconds = every, seconds

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Gather a batch in one go; a recording counts the sleep in virtual time."""
        if any(index % self.every == 0 for index in indices):
            time.sleep(self.seconds)
        return super().__getitems__(indices)
