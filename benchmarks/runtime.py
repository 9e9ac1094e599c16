"""How fast is the emulated runtime itself, without torch? Commands a second of wall time; the goal is 100,000.

Run it from the root of the repository: python -m benchmarks.runtime [--commands 100000]

A command is a kernel, a copy, an event record or an event wait. Three programs: launches in one stream; the loop of a
prefetcher (copy, record, wait, two kernels: two streams); and the same loop on memory from the pools, with its blocks.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable

from loaderviz.emulator import Gpu, Runtime
from loaderviz.emulator.memory import DevicePool, PinnedPool

GOAL = 100_000
NBYTES = 1_000_000


def launches(runtime: Runtime, commands: int) -> None:
    """Nothing but kernels in the default stream."""
    for _ in range(commands):
        runtime.launch(5_000)


def prefetcher(runtime: Runtime, commands: int) -> None:
    """Copy on a side stream, hand over by an event, compute."""
    side, main = runtime.stream(), runtime.default_stream
    for _ in range(commands // 5):
        copied = runtime.event(timing=False)
        runtime.memcpy(NBYTES, "h2d", side)
        runtime.record_event(copied, side)
        runtime.wait_event(main, copied)
        runtime.launch(20_000)
        runtime.launch(30_000)


def with_memory(runtime: Runtime, commands: int) -> None:
    """The prefetcher again, with a pinned block and two device blocks a step, and record_stream (7 commands a step)."""
    side, main = runtime.stream(), runtime.default_stream
    device, pinned = DevicePool(runtime), PinnedPool(runtime)
    for _ in range(commands // 7):
        source, target, result = pinned.allocate(NBYTES), device.allocate(NBYTES, side), device.allocate(NBYTES)
        runtime.memcpy(NBYTES, "h2d", side)
        pinned.use(source, side)
        pinned.free(source)  # records an event
        runtime.wait_stream(main, side)
        runtime.launch(20_000)
        runtime.launch(30_000)
        device.record_stream(target, main)
        device.free(target)  # records an event
        device.free(result)


def measure(program: Callable[[Runtime, int], None], commands: int) -> tuple[float, float]:
    """Return (commands a second, the same with the making of the timeline)."""
    best = [0.0, 0.0]
    for _ in range(3):
        runtime = Runtime(Gpu.preset("a100"))
        start = time.perf_counter()
        program(runtime, commands)
        runtime.synchronize()
        ran = time.perf_counter() - start
        runtime.timeline().self_check()
        built = time.perf_counter() - start
        best = [max(best[0], commands / ran), max(best[1], commands / built)]
    return best[0], best[1]


def allocations(pairs: int) -> float:
    """Return the microseconds of a warm allocate and free, in a pool with a hundred other blocks."""
    pool = DevicePool(Runtime(Gpu.preset("a100")))
    held = [pool.allocate(3_000 * size) for size in range(1, 200)]
    for block in held[::2]:
        pool.free(block)
    start = time.perf_counter()
    for _ in range(pairs):
        pool.free(pool.allocate(100_000))
    return (time.perf_counter() - start) / pairs * 1e6


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commands", type=int, default=100_000, help="commands of each program (default 100,000)")
    commands = parser.parse_args().commands
    print(f"python {platform.python_version()}, {commands:,} commands, best of 3; goal {GOAL:,} commands/s")
    print(f"{'program':14} {'commands/s':>12} {'with timeline':>14}  goal")
    for program in (launches, prefetcher, with_memory):
        ran, built = measure(program, commands)
        verdict = "met" if ran >= GOAL else "missed"
        print(f"{program.__name__:14} {ran:>12,.0f} {built:>14,.0f}  {verdict}")
    print(f"warm allocate + free: {allocations(commands):.2f} us")


if __name__ == "__main__":
    main()
