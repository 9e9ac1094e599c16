"""Shared: what the main thread, the pin thread and the workers share: the host's cores, its disk and its page cache.

The main thread comes first, then batches in their order: what one of them leaves is for the next. So the work in sum is
never more than the cores can do; how an operating system would slice it is not modelled. Sleeping, waiting for data and
reading files takes no core; waiting for the GPU does, as CUDA's synchronise spins.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable

from loaderviz.emulator.hardware import SECOND, Host, ceil_div

Reads = Iterable[tuple[Hashable, int]]  # files, each with its size in bytes


class Shared:
    """The use of one host's cores and disk. Times in ns. With `Host.cores` 0 there are as many as are asked for."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._times, self._used = [0], [0]  # from each time on so many cores are taken
        self._main = 0  # up to here the main thread's part is in there
        self._disk = 0  # when it is free
        self._cached: set[Hashable] = set()  # files read before: they are in the page cache
        self.busy_workers: Callable[[int], int] = lambda at: 0  # how many fetch at a time

    def main_rests(self, start: int, end: int) -> None:
        """The main thread sleeps, or waits for data: its core is free."""
        self.take(self._main, start)
        self._main = max(self._main, end)

    def take(self, start: int, end: int, cores: int = 1) -> None:
        """Take cores from `start` to `end`, whoever else wants them."""
        if not self._host.cores or start >= end:
            return
        for time in (start, end):
            place = bisect_left(self._times, time)
            if place == len(self._times) or self._times[place] != time:
                self._times.insert(place, time)
                self._used.insert(place, self._used[place - 1])
        for place in range(bisect_left(self._times, start), bisect_left(self._times, end)):
            self._used[place] += cores

    def compute(self, start: int, work: int, now: int) -> tuple[int, int]:
        """Return when `work` of another thread or process, ready at `start`, has a core first, and when it is done.

        The main thread is at `now`.
        """
        if not self._host.cores or not work:
            return start, start + work
        self.main_rests(now, now)
        pieces, place = list[tuple[int, int]](), bisect_right(self._times, start) - 1
        while work:
            following = self._times[place + 1] if place + 1 < len(self._times) else start + work
            if self._used[place] < self._host.cores:
                end = min(start + work, following)
                pieces.append((start, end))
                work -= end - start
                start = end
            else:
                start = following
            place += 1
        for piece in pieces:
            self.take(*piece)
        return pieces[0][0], start

    def read(self, start: int, files: Reads) -> int:
        """Return when these files are read: the first time from the disk, one after the other; then from the cache."""
        fresh = {key: size for key, size in files if key not in self._cached}
        if not fresh or not self._host.disk:
            return start
        self._cached.update(fresh)
        self._disk = max(start, self._disk) + ceil_div(sum(fresh.values()) * SECOND, self._host.disk)
        return self._disk + len(fresh) * self._host.disk_latency

    def crowded(self, time: int, at: int) -> int:
        """Return how long a copy within the host's memory takes, beside the workers that are busy then."""
        return time * (1000 + self._host.crowding * self.busy_workers(at)) // 1000
