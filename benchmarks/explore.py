"""How long is the explorer's way from a slider to the redrawn picture, as far as it is Python's? The goal is 40 ms.

Run it from the root of the repository: python -m benchmarks.explore [--moves 120]

Every slider and choice is moved in turn; a move makes the timeline, its numbers, the view's data, words and code.
The stepper's step and the viewer's numbers are timed, too. Times are the process's CPU time: a busy machine does not
count. What the browser adds is measured by benchmarks.explore_browser.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np

from loaderviz.metrics import summarize
from loaderviz.timeline import Context, Kind, Timeline, TimelineBuilder
from loaderviz.widgets import explore, step_through, viewer
from loaderviz.widgets.settings import simulate

GOAL = 40.0  # ms
MOVES = {
    "workers": (2, 3, 6, 8), "batch_size": (1024, 4096, 8192), "pin": (True, False), "depth": (1, 2, 3),
    "side_stream": (True, False), "non_blocking": (True, False), "compute": (300_000, 1_000_000), "gpu": ("t4", "h100"),
    "lifetime": ("ring", "record_stream", "consumer"),
}  # fmt: skip


def milliseconds(action: Callable[[], object]) -> float:
    """Return the CPU time that `action` takes."""
    start = time.process_time()
    action()
    return (time.process_time() - start) * 1e3


def least(action: Callable[[], object], times: int = 10) -> float:
    """Return the least CPU time of several runs [ms]."""
    return min(milliseconds(action) for _ in range(times))


def sliders(moves: int) -> dict[tuple[str, object], list[float]]:
    """Move each control of an explorer in turn; return the times of each move [ms]."""
    explorer = explore("prefetch")
    times: dict[tuple[str, object], list[float]] = {}
    while sum(map(len, times.values())) < moves:
        for name, values in MOVES.items():
            for value in values:
                if explorer.controls[name].value != value:
                    took = milliseconds(lambda n=name, v=value: setattr(explorer.controls[n], "value", v))
                    times.setdefault((name, value), []).append(took)
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
    parser.add_argument("--moves", type=int, default=120, help="slider moves (default 120)")
    moves = parser.parse_args().moves
    print(f"python {platform.python_version()}, CPU times in ms")
    times = sliders(moves)
    every = sorted(each for many_times in times.values() for each in many_times)
    slowest = max(times, key=lambda move: min(times[move]))
    middle, most = statistics.median(every), min(times[slowest])
    print(f"slider to sent picture   median {middle:6.1f}   19 of 20 under {every[len(every) * 19 // 20]:6.1f}")
    print(f"  the slowest move, at its best: {' '.join(map(str, slowest))} {most:.1f}; "
          f"goal {GOAL:.0f}: {'met' if max(middle, most) <= GOAL else 'missed'}")  # fmt: skip
    explorer = explore("prefetch")
    chosen, timeline = explorer.settings, explorer.timeline
    parts = {
        "timeline": lambda: simulate(chosen), "numbers": lambda: summarize(timeline),
        "head and body": lambda: timeline.view().packed(),
    }  # fmt: skip
    for name, action in parts.items():
        print(f"  of it: {name:18} {least(action):6.1f}")
    print(f"stepper, one event {least(step_through(timeline).step, 40):25.1f}")
    view = viewer(many(200_000))
    length = view.timeline.duration
    for part in (1, 10, 100, 1000):
        took = least(lambda part=part: view.show(length // 3, length // 3 + length // part), 3)
        print(f"viewer, 200,000 spans, numbers of 1/{part:<5} {took:5.1f}")


if __name__ == "__main__":
    main()
