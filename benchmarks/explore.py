"""How long is the explorer's way from a slider to the redrawn picture, as far as it is Python's? The goal is 40 ms.

Run it from the root of the repository: python -m benchmarks.explore [--moves 60]

Every slider and choice is moved in turn; a move makes the timeline, its numbers, the figure's changes, words and code.
The stepper's step and the viewer's zoom are timed, too. What the browser adds is measured by tests/browser.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np

from loaderviz.builder import TimelineBuilder
from loaderviz.explore import explore, step_through, viewer
from loaderviz.explore.live import picture
from loaderviz.explore.pipeline import simulate
from loaderviz.metrics import summarize
from loaderviz.timeline import Context, Kind, Timeline

GOAL = 40.0  # ms
MOVES = {
    "workers": (2, 3, 6, 8), "batch_size": (1024, 4096, 8192), "pin": (True, False), "depth": (1, 2, 3),
    "side_stream": (True, False), "non_blocking": (True, False), "compute": (300_000, 1_000_000), "gpu": ("t4", "h100"),
    "lifetime": ("ring", "record_stream", "consumer"),
}  # fmt: skip


def milliseconds(action: Callable[[], object]) -> float:
    """Return how long `action` takes."""
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1e3


def sliders(moves: int) -> list[float]:
    """Move each control of an explorer in turn."""
    explorer = explore("prefetch")
    times: list[float] = []
    while len(times) < moves:
        for name, values in MOVES.items():
            for value in values:
                if explorer.controls[name].value != value:
                    times.append(milliseconds(lambda n=name, v=value: setattr(explorer.controls[n], "value", v)))
    return times


def many(count: int) -> Timeline:
    """Return a timeline of `count` kernels in four streams."""
    builder, draw = TimelineBuilder(Context("A100")), np.random.default_rng(0)
    lanes = [builder.lane(f"stream {number}", "device", number=number) for number in range(4)]
    gaps, lengths = draw.integers(1, 4_000, count), draw.integers(500, 9_000, count)
    clock = [0] * 4
    for index in range(count):
        lane = index % 4
        start = clock[lane] + int(gaps[index])
        clock[lane] = start + int(lengths[index])
        builder.span(start, clock[lane], lanes[lane], Kind.COMPUTE, "kernel", batch=index // 50)
    return builder.build()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moves", type=int, default=60, help="slider moves (default 60)")
    moves = parser.parse_args().moves
    print(f"python {platform.python_version()}, times in ms")
    times = sliders(moves)
    middle, worst = statistics.median(times), statistics.quantiles(times, n=20)[-1]
    verdict = "met" if middle <= GOAL else "missed"
    print(f"slider to sent picture   median {middle:6.1f}   19 of 20 under {worst:6.1f}   goal {GOAL:.0f}: {verdict}")
    explorer = explore("prefetch")
    chosen, timeline = explorer.settings, explorer.timeline
    parts = {
        "timeline": lambda: simulate(chosen), "numbers": lambda: summarize(timeline),
        "traces and layout": lambda: picture(timeline, "a", "b"),
    }  # fmt: skip
    for name, action in parts.items():
        print(f"  of it: {name:18} {min(milliseconds(action) for _ in range(10)):6.1f}")
    stepper = step_through(timeline)
    print(f"stepper, one event       median {statistics.median(milliseconds(stepper.step) for _ in range(40)):6.1f}")
    view = viewer(many(200_000))
    length = view.timeline.duration
    for part in (1, 10, 100, 1000):
        took = milliseconds(lambda part=part: view.show(length // 3, length // 3 + length // part))
        print(f"viewer, 200,000 spans, zoom to 1/{part:<5} {took:6.1f}   {len(view._shown.bars):,} bars")


if __name__ == "__main__":
    main()
