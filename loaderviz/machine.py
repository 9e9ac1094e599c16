"""This machine: the cores that this process may use (the only place that counts them), its clock and memory's pages.

    cores()      # Cores(physical=8, threads=16): an affinity and a container's quota are taken off
    new_pages()  # NewPages(written=510.0, read=120.0, unmapped=90.0): ns a page of shared memory

Never imports torch.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from io import FileIO
from pathlib import Path
from time import perf_counter_ns
from typing import NamedTuple

import numpy as np

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

CPUS, GROUPS, SHARED = Path("/sys/devices/system/cpu"), Path("/sys/fs/cgroup"), Path("/dev/shm")  # of Linux
PAGE = 4096  # bytes
BLOCK = 512  # bytes, in which Linux counts what is read from a disk
# A system without a clock for each thread, such as a browser, has one thread.
thread_time_ns: Callable[[], int] = getattr(time, "thread_time_ns", time.process_time_ns)
COARSE = 1_000_000  # ns of a clock's tick from which single short pieces of time mean nothing
TICKS = (
    "this system's clock of processor time goes on by {0} at once: what was measured is right in sum, and not for each "
    "batch or line, so record many steps"
)


@cache
def tick() -> int:
    """Return the ns by which the clock of processor time goes on at once: less than 1,000, and 15.6 ms on Windows."""
    begin = now = thread_time_ns()
    while now == begin:
        now = thread_time_ns()
    then = now
    while now == then:
        now = thread_time_ns()
    return now - then


def fine_time_ns() -> int:
    """Return the thread's processor time; where its clock ticks coarsely time on the wall, to time short work again."""
    return thread_time_ns() if tick() < COARSE else perf_counter_ns()


class Carried:
    """Pieces of a time by a clock that may tick coarsely: what is less than nothing is carried on to the next ones."""

    def __init__(self) -> None:
        self._owed = 0

    def due(self, time: int) -> int:
        """Return what is to be counted now of a piece that took so many ns by the clock; the sum is right."""
        self._owed += time
        due = max(0, self._owed)
        self._owed -= due
        return due


class Cores(NamedTuple):
    """How many cores there are, and how many threads they run at once: two each with SMT, where it is known."""

    physical: int
    threads: int

    @property
    def siblings(self) -> int:
        """The threads of a core."""
        return max(1, self.threads // self.physical)


@cache
def cores() -> Cores:
    """Return the cores that this process may use.

    An affinity (taskset, Slurm) and a container's quota (cgroup v1 and v2) limit them. What shares a core with another
    thread is told on Linux; elsewhere each of the system's CPUs counts as a core.
    """
    ask = getattr(os, "sched_getaffinity", None)
    allowed = ask(0) if ask else range(os.cpu_count() or 1)
    known = {_siblings(cpu) for cpu in allowed}
    most = _quota() or len(allowed)
    return Cores(max(1, min(len(known), most)), max(1, min(len(allowed), most)))


def processor() -> str:
    """Return the processor's name, such as "AMD EPYC 7B13"; its architecture where the system tells no name."""
    name = ""
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        if sys.platform == "win32":
            import winreg

            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"HARDWARE\DESCRIPTION\System\CentralProcessor\0") as key:
                name = winreg.QueryValueEx(key, "ProcessorNameString")[0]
        elif sys.platform == "darwin":
            ask = ["sysctl", "-n", "machdep.cpu.brand_string"]
            name = subprocess.run(ask, capture_output=True, text=True, check=True).stdout
        else:
            told = (line.partition(":") for line in _lines(Path("/proc/cpuinfo")))
            name = next((found for key, _, found in told if key.strip() in ("model name", "Model")), "")
    return name.strip() or platform.processor() or platform.machine()


def _siblings(cpu: int) -> str:
    """Return what all CPUs of one core have in common."""
    with suppress(OSError):
        return (CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text()
    return str(cpu)


def _quota() -> int:
    """Return how many cores' time a container's group may have, rounded up; 0: no limit."""
    limits = [0]
    for folder in _groups("cpu"):
        limits += [_whole(*text.split()) for text in _lines(folder / "cpu.max")]
        both = [*_lines(folder / "cpu.cfs_quota_us"), *_lines(folder / "cpu.cfs_period_us")]
        limits += [_whole(*both)] if len(both) == 2 else []
    return min(filter(None, limits), default=0)


def memory_room() -> int | None:
    """Return the bytes of memory that a container's group may take beside what it uses; None: no limit.

    What it has of files and has not read of late counts as free: the system drops that first.
    """
    room = list[int]()
    for folder in _groups("memory"):
        stat = dict(line.split() for line in _lines(folder / "memory.stat"))
        files = stat.get("total_inactive_file", stat.get("inactive_file", 0))  # of cgroup v1, and v2
        for most, now in ("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"):
            limits, used = _lines(folder / most), sum(map(int, _lines(folder / now)))
            room += [int(text) - max(0, used - int(files)) for text in limits if text.isdigit()]  # "max" is none
    return max(0, min(room)) if room else None


def _groups(controller: str) -> Iterator[Path]:
    """Yield the folders of Linux that may have this process's limits: of cgroup v2, and of v1's controller."""
    for line in _lines(Path("/proc/self/cgroup")):
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            yield from (GROUPS / controllers, GROUPS / controllers / path.lstrip("/"))


def _whole(quota: str, period: str) -> int:
    return -(-int(quota) // int(period)) if quota.isdigit() else 0  # "max" and "-1" are none


def _lines(file: Path) -> list[str]:
    with suppress(OSError):
        return file.read_text().splitlines()
    return []


def thread_lacked() -> int:
    """Return for how many ns this thread could have run and found no core; 0 where the system does not tell."""
    return _of_thread("schedstat")


def _of_thread(file: str) -> int:
    """Return the second word of what Linux tells of this thread in a file; 0 where it does not."""
    with suppress(OSError, ValueError, IndexError), FileIO(f"/proc/thread-self/{file}") as told:
        return int(told.read().split()[1])
    return 0


def switches() -> int:
    """Return how often this thread let go of its core by itself, as who waits does; -1: the system does not tell."""
    thread = getattr(resource, "RUSAGE_THREAD", None)  # Linux alone has it
    return -1 if thread is None else resource.getrusage(thread).ru_nvcsw


def waited(time: int, before: int, now: int) -> int:
    """Return how much of `time` [ns], in which a thread did not run and lacked no core, it waited: of its `switches`.

    Who waits lets go of the core. Where a thread never did, a hypervisor has taken what is missing.
    """
    return min(0, time) if before == now >= 0 else time


class Usage(NamedTuple):
    """What a process has used: ns of the processor in other threads, bytes from the disk; and its own thread, in ns.

    It `lacked` a core; it was `busy` where it ran, or lacked one, and waited for the rest of the time. Linux alone
    tells the lack; elsewhere other programs on this machine become waiting. `switches` are those of the thread, `read`
    the bytes that it read of files, also from memory: but not of mapped ones, and Linux alone tells.
    """

    others: int = 0
    disk: int = 0
    lacked: int = 0
    busy: int = 0
    switches: int = -1
    read: int = 0

    def since(self, before: Usage) -> Usage:
        """Return what was used since then."""
        return Usage(*(now - then for now, then in zip(self, before, strict=True)))

    def waited(self, since: Usage, time: int) -> int:
        """Return for how many of the `time` ns since then the thread waited; less than 0 where clocks tick apart."""
        return waited(time - (self.busy - since.busy), since.switches, self.switches)


def usage() -> Usage:
    """Return what this process has used so far; Windows does not tell what came from the disk, and not from memory."""
    blocks = resource.getrusage(resource.RUSAGE_SELF).ru_inblock if resource else 0
    ran, lacked = thread_time_ns(), thread_lacked()
    others = max(0, time.process_time_ns() - ran)
    return Usage(others, blocks * BLOCK, lacked, ran + lacked, switches(), _of_thread("io"))


def own_memory(file: Path = Path("/proc/self/smaps_rollup")) -> int:
    """Return the bytes of memory that only this process has, and not the one that it was forked from; 0: not known."""
    found = [line.split()[1] for line in _lines(file) if line.startswith("Private_Dirty:")]
    return int(found[0]) * 1024 if found else 0


def swapped_in(file: Path = Path("/proc/vmstat")) -> int:
    """Return the bytes that this machine has brought back from swap since it was started; 0 where it is not known."""
    found = [line.split()[1] for line in _lines(file) if line.startswith("pswpin ")]
    return int(found[0]) * PAGE if found else 0


def shared_memory(*, free: bool = False) -> int | None:
    """Return the bytes of /dev/shm, where batches lie on their way from workers, or those that are `free`.

    None on systems that have none.
    """
    with suppress(OSError):
        found = shutil.disk_usage(SHARED)
        return found.free if free else found.total
    return None


class NewPages(NamedTuple):
    """ns that a page (4 KiB) of shared memory takes: first written, first read by another mapping, given back."""

    written: float
    read: float
    unmapped: float


@cache
def new_pages(count: int = 1024) -> NewPages:
    """Measure it in processor time, the best of five times `count` pages; it takes some 20 ms.

    Where /dev/shm has no room for twice as many, they are of the temporary folder: a page too many ends the process.
    """
    found, room = [], shared_memory(free=True) or 0
    for _ in range(5):
        with tempfile.TemporaryFile(dir=SHARED if room > 2 * count * PAGE else None) as file:
            file.truncate(count * PAGE)
            writer, reader = (mmap.mmap(file.fileno(), count * PAGE) for _ in range(2))
            here, there = (np.frombuffer(each, np.uint8)[::PAGE] for each in (writer, reader))
            written, read = _first(partial(here.fill, 1)), _first(there.sum)
            del here, there
            writer.close()
            found.append((written / count, read / count, time_of(reader.close) / count))
    return NewPages(*map(min, zip(*found, strict=True)))


def _first(touch: Callable[[], object]) -> int:
    """Return how much longer the first time takes than the second [ns]."""
    return max(0, time_of(touch) - time_of(touch))


def time_of(action: Callable[[], object]) -> int:
    """Return the processor time of an action [ns]."""
    start = fine_time_ns()
    action()
    return fine_time_ns() - start


def give_back() -> None:
    """Give the system what is free of the memory of a notebook's kernel, which lives on beside others."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if sys.platform == "linux" and hasattr(shell, "kernel"):
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
        if trim is not None:
            trim(0)
