"""What the interpreter's lock costs a thread here, beside threads of Python: the constants of R53.

    python -m benchmarks.gil         # a table: processor and wall time of a call alone, and beside one and two threads

A call of C that is shorter than a wake-up is shared with the other threads by halves, thirds, and so on. A longer one
waits for as many switch intervals as there are other threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch

SECONDS, BESIDE = 2.0, (0, 1, 2)


def spin(over: threading.Event) -> None:
    """Run Python until it is over."""
    count = 0
    while not over.is_set():
        for _ in range(1000):
            count += 1


def each(call: Callable[[], object], beside: int) -> tuple[float, float]:
    """Return the time on the wall and of the processor [us] that a call takes beside so many threads of Python."""
    over = threading.Event()
    threads = [threading.Thread(target=spin, args=(over,)) for _ in range(beside)]
    for thread in threads:
        thread.start()
    call()
    count, begin, used = 0, time.perf_counter(), time.thread_time()
    while (wall := time.perf_counter() - begin) < SECONDS:
        call()
        count += 1
    used = time.thread_time() - used
    over.set()
    for thread in threads:
        thread.join()
    return 1e6 * wall / count, 1e6 * used / count


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    small, large = torch.randn(64), torch.randn(256, 256)
    calls: dict[str, Callable[[], object]] = {
        "500 additions in Python": lambda: sum(range(500)),
        "torch: 64 numbers added": lambda: small.add(1),
        "torch: product of 256 x 256": lambda: large @ large,
        "time.sleep(0)": lambda: time.sleep(0),
    }
    print(f"us on the wall (processor) of a call beside {BESIDE} threads of Python")
    for name, call in calls.items():
        print(f"{name:28}", *(f"{wall:9.1f} ({used:.1f})" for wall, used in (each(call, count) for count in BESIDE)))


if __name__ == "__main__":
    main()
