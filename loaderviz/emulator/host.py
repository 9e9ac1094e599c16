"""The host in virtual time: its cores, disk and memory, what a program's own code costs, and its DataLoader.

`LoaderSchedule` says when torch's DataLoader fetches, pins and hands out each batch. torch orders `prefetch_factor`
batches from each worker when an epoch begins, and one more at each hand-out. A worker takes its orders one after the
other, and batches go through the pin thread in order (R45).

    schedule = LoaderSchedule(runtime, workers=2)
    ready = schedule.fetch(0, worker=0, took=1_000_000, nbytes=4096)
    ready = schedule.pin(0, ready, 4096, lambda start: 2_000)    # the page-locking of its memory
    schedule.hand_out(ready)                # the main thread waits for it
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from io import FileIO
from itertools import repeat
from time import perf_counter_ns, process_time_ns
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from weakref import WeakSet

from loaderviz.batches import HAND_OUT, loading_lane
from loaderviz.emulator.hardware import FULL, SECOND, Host, ceil_div
from loaderviz.errors import LoadervizError
from loaderviz.machine import COARSE, Carried, fine_time_ns, switches, thread_time_ns, tick, waited
from loaderviz.stations import SAMPLING
from loaderviz.timeline import Cause, Kind

if TYPE_CHECKING:
    from loaderviz.emulator.runtime import Runtime

IN_A_QUEUE = 0.3  # of a fetch: if it waits so long for a lock that others have, that is what it does
PREFETCH_FACTOR = 2  # batches that each worker prepares ahead, as DataLoader's default


class CostsError(LoadervizError, ValueError):
    """A time was declared that is none."""


class costs:
    """Say what the Python in a `with` block costs, whatever it takes on this machine.

    The block takes a processor for `seconds`. It then waits for `waits` seconds without a processor, as for a disk or a
    network. So a recording with a named host is the same everywhere. Operators of torch in the block cost what they
    always do. `gil=False` says that the block is C code that lets go of the interpreter's lock, as a decoder of
    pictures does, so that Python of other threads goes on meanwhile (R53). Outside a recording, and on a real GPU,
    `costs` does nothing. Raises `CostsError` for a negative time and for a value that is no time.

    >>> with loaderviz.record(on="t4", host="laptop") as recording:
    ...     with loaderviz.costs(2e-3, waits=1e-3):  # a sample's, measured once on the machine that counts
    ...         pass
    >>> recording.timeline.duration  # ns
    3000000
    """

    declare: ClassVar[Callable[[int, int, bool], AbstractContextManager[None]] | None] = None  # whoever counts now

    def __init__(self, seconds: float = 0, *, waits: float = 0, gil: bool = True) -> None:
        for name, value in (("", seconds), ("waits=", waits)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 10**6:
                raise CostsError(f"costs({name}{value!r}): give the seconds that the block takes, such as 2e-3")
        if not isinstance(gil, bool):
            raise CostsError(f"costs(gil={gil!r}): say True, or False for C that lets go of the interpreter's lock")
        self._work, self._waits, self._gil = round(seconds * SECOND), round(waits * SECOND), gil

    def __enter__(self) -> None:
        declare = costs.declare
        self._block = declare(self._work, self._waits, self._gil) if declare else nullcontext()
        self._block.__enter__()

    def __exit__(self, *error: object) -> None:
        self._block.__exit__(*error)  # type: ignore[arg-type]


class ProcessorTime(threading.local):
    """The calling thread's processor time [ns], without Python's garbage collections while it watches.

    What one costs is the number of objects that are alive, and in a recording most of them are the recording's own. It
    falls into whatever happens to run then, 200 ms into one fetch; so no collection is charged to the program.
    """

    _since = _collecting = 0
    _fine = False
    _noted: ClassVar[deque[tuple[int, int, bool]]] = deque()  # thread, its time, and whether a collection begins
    _elsewhere: ClassVar[defaultdict[int, list[tuple[int, bool]]]] = defaultdict(list)  # the same, of other threads
    _callback: ClassVar[list[Any]] = []  # that of Python's collector, while this watches

    def __call__(self) -> int:
        """Return the time, from an arbitrary begin."""
        while self._noted or threading.get_ident() in self._elsewhere:  # to leave one out may begin another one
            self._leave_out()
        return (fine_time_ns() if self._fine else thread_time_ns()) - self._collecting

    @contextmanager
    def fine(self) -> Iterator[None]:
        """Take a clock for short pieces meanwhile, where this one ticks coarsely: what is timed is done many times."""
        before, self._fine = self._fine, tick() >= COARSE
        try:
            yield
        finally:
            self._fine = before

    def watch(self, on: bool = True) -> None:
        """Begin, or end, to leave collections out; a second call changes nothing."""
        if on and not self._callback:
            self._callback.append(self._noting())
            gc.callbacks.extend(self._callback)
        elif not on and self._callback:
            gc.callbacks.remove(self._callback.pop())
            self._noted.clear()
            self._elsewhere.clear()  # of threads that never looked: another one may have their number

    def _noting(self) -> Callable[..., Any]:
        """Return a callback for Python's collector that is C alone: in Python's bytecode a signal is handled.

        What its handler raises, such as KeyboardInterrupt, Python would print and forget. The collector calls
        `getattr(notes, "start", ...)`, and a property looks for what `notes` is missing in a dict, which makes it.
        """

        def noting(begins: bool) -> property:
            now = zip(iter(threading.get_ident, None), iter(thread_time_ns, None), repeat(begins))
            return property(defaultdict(partial(next, map(self._noted.append, now))).__missing__)

        notes = type("Notes", (), {"start": noting(True), "stop": noting(False)})()
        return partial(getattr, notes)

    def _leave_out(self) -> None:
        with suppress(IndexError):  # all are taken, some by another thread
            while True:
                thread, time, begins = self._noted.popleft()
                self._elsewhere[thread].append((time, begins))
        for time, begins in self._elsewhere.pop(threading.get_ident(), ()):
            if not begins and self._since:
                self._collecting += time - self._since
            self._since = time if begins else 0


processor_time = ProcessorTime()


class Reading(NamedTuple):
    """What clocks say [ns]: on the wall, of the process, and how long each thread ran, and lacked a core."""

    wall: int
    process: int
    threads: dict[int, tuple[int, int]]
    switches: int = -1  # how often the calling thread let go of its core; -1: this system does not tell


class Waited(NamedTuple):
    """How long the calling thread waited [ns], and for how long its own work may have been to wait for threads of C."""

    time: int
    spun: int


class WaitingTime:
    """How long the calling thread has waited [ns]: for a socket, a pipe, a process, a lock, a mounted file system.

    The only use of time on the wall. Less the processor time of all of Python's threads (who waits for the
    interpreter's lock waits for another thread's work, also while that one has no core; but where the sampler's has
    none, it has just slept, and holds no lock), and less the time in which the thread could have run and had no core,
    which Linux tells in schedstat. Where no one tells it, that is in there, too, and `is_exact` is False.

    Threads of C are OpenMP's: they spin before they sleep, beside whatever the thread waits for, so their processor
    time is not taken off; but it waits for the one that had no core for longest.
    """

    wall, _own = staticmethod(perf_counter_ns), staticmethod(process_time_ns)  # the real ones: a recording has others
    is_exact = False  # this system says how long a thread waited for a core

    def read(self) -> Reading:
        """Read the clocks, to be compared by `since`."""
        threads = dict[int, tuple[int, int]]()
        with suppress(OSError):
            for thread in os.listdir("/proc/self/task"):
                with suppress(OSError), FileIO(f"/proc/self/task/{thread}/schedstat") as file:  # else it has ended
                    ran, lacked, _ = file.read().split()
                    threads[int(thread)] = int(ran), int(lacked)
        self.is_exact = bool(threads)
        return Reading(self.wall(), self._own(), threads, switches())

    def since(self, before: Reading) -> Waited:
        """Return how long the thread has waited since then."""
        now, pythons = self.read(), {getattr(each, "native_id", 0): each.name for each in threading.enumerate()}
        ran, lacked, longest, holding = 0, 0, 0, 0
        for thread, times in now.threads.items():
            runs, lacks = (new - old for new, old in zip(times, before.threads.get(thread, (0, 0)), strict=True))
            if thread not in pythons:
                ran, longest = ran + runs, max(longest, lacks)
            elif thread == threading.get_native_id():
                lacked = lacks
            elif pythons[thread] != SAMPLING:
                holding = max(holding, lacks)
        time = now.wall - before.wall - (now.process - before.process - ran) - lacked - longest
        time = waited(time, before.switches, now.switches)
        if now.switches >= 0:  # who waits for the interpreter's lock asks again after each turn, and lets go each time
            turn = int(1e9 * sys.getswitchinterval()) + 100_000  # a timer may be so late
            holding = min(holding, (now.switches - before.switches) * turn)
        return Waited(time - min(max(0, time), holding), min(ran, lacked + longest))


waiting_time = WaitingTime()


class OwnTime:
    """The processor time that a program's own code takes on its thread, piece by piece, from `go` to `stop`.

    Never time on the wall: then other programs on this machine would become time of this one. Of each piece `overhead`
    ns are the emulator's. A clock may tick coarsely (16 ms on Windows), so that a piece is 0 or a whole tick; what is
    less than the overhead is carried on to the next pieces, and the sum is right.
    """

    def __init__(self) -> None:
        self.overhead = 0
        self._since: int | None = None
        self._carried = Carried()

    def go(self) -> None:
        """The program's own code goes on."""
        self._since = processor_time()

    def stop(self) -> int:
        """It calls what costs otherwise: return the ns to be counted now."""
        if self._since is None:
            return 0
        took, self._since = processor_time() - self._since, None
        return self._carried.due(took - self.overhead)


# What the main thread, the pin thread and the workers share. The main thread comes first, then batches in their order:
# what one of them leaves is for the next. So the work in sum is never more than the cores can do; how an operating
# system would slice it is not modelled. Sleeping, waiting for data and reading files takes no core; waiting for the GPU
# does, as CUDA's synchronise spins.

Reads = Iterable[tuple[Hashable, int, int]]  # files, each with its bytes and how many of them are read
# Which lock a fetch takes, how many may have it at a time, for how many ns the fetch has it, and in which line
Locks = Sequence[tuple[Hashable, int, int, str]]


@dataclass
class LockUse:
    """What a loader's fetches do with locks: for how many ns they have each, alone, and wait for all but locks."""

    held: Counter[Hashable] = field(default_factory=Counter)
    waits: int = 0
    fetches: int = 0

    @property
    def most(self) -> int:
        """For how many ns they have the lock that they have for longest."""
        return max(self.held.values(), default=0)


class Shared:
    """The use of one host's cores and disk. Times in ns. With `Host.cores` 0 there are as many as are asked for."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._times, self._used = [0], [0]  # from each time on so many cores are taken
        self._main = 0  # up to here the main thread's part is in there
        self._disk = 0  # when it is free
        self._cached = Counter[Hashable]()  # bytes of files that were read before: they are in the page cache
        self._lock: Shared | None = None  # the interpreter's: one core for all that needs it
        self._locks = dict[Hashable, Shared]()  # those that processes share: one core for all who have one
        self._use = defaultdict[int, LockUse](LockUse)  # by loader; -1: what the main thread fetches
        self.loaders: WeakSet[LoaderSchedule] = WeakSet()  # those at work; who lets go of an iterator ends it

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

        The main thread is at `now`. Who comes later is slower for those before him, and they not for him: the sum is
        what the cores can do.
        """
        if not self._host.cores or not work:
            return start, start + work
        self.main_rests(now, now)
        pieces, place, left = list[tuple[int, int]](), bisect_right(self._times, start) - 1, work * FULL
        while left > 0:
            speed = self._host.speed(self._used[place])
            following = self._times[place + 1] if place + 1 < len(self._times) else start + ceil_div(left, speed)
            if speed:
                end = min(start + ceil_div(left, speed), following)
                pieces.append((start, end))
                left -= (end - start) * speed
                start = end
            else:
                start = following
            place += 1
        for piece in pieces:
            self.take(*piece)
        return pieces[0][0], start

    def work(self, start: int, work: int) -> int:
        """Return when the thread that runs has done so much work in C, beside all others that want a core."""
        self._main = max(self.compute(start, work, start)[1], self._main)
        return self._main

    def _turns(self, many: int = 1) -> Shared:
        """Return what so many have at a time."""
        return Shared(replace(self._host, cores=many, siblings=1, contention=0))

    def share_lock(self) -> None:
        """From now on workers are threads of the main one's process, and one at a time has the interpreter's lock."""
        self._lock = self._turns()

    def queued(self, start: int, locks: Locks, loader: int = -1) -> tuple[int, str]:
        """Return how long a fetch that begins at `start` waits for locks that others have, and the line of the last."""
        late, line = 0, ""
        for name, many, held, where in locks:
            if name not in self._locks:
                self._locks[name] = self._turns(many)
            ready = self._locks[name].compute(start, held, 0)[1]
            if ready > start + held:
                late, line = late + ready - start - held, where
            self._use[loader].held[name] += held // many
        return late, line

    def waits(self, time: int, loader: int = -1) -> None:
        """A fetch waits for so many ns, without locks."""
        self._use[loader].waits += time
        self._use[loader].fetches += 1

    def usage(self) -> dict[str, int]:
        """Return for how long a fetch has the lock that is had for longest, and waits for all but locks, on average."""
        use = max(self._use.values(), key=lambda use: use.most, default=LockUse())
        fetches = use.fetches
        return {"locked": use.most // fetches, "unlocked waits": use.waits // fetches} if use.most and fetches else {}

    def python(self, start: int, work: int) -> int:
        """Return when a thread that is ready at `start` has done so much Python, after all that came before."""
        return self._lock.compute(start, work, 0)[1] if self._lock else start + work

    def fetched(self, start: int, work: int, python: int, now: int) -> tuple[int, int]:
        """Return when a worker begins and ends so much work; `python` ns of it, first, where that has to be shared."""
        if not (self._lock and python):
            return self.compute(start, work, now)
        first, end = self._lock.compute(start, python, 0)
        self.take(first, end)
        return first, self.compute(end, work - python, now)[1]

    def read(self, start: int, files: Reads) -> int:
        """Return when these files are read: from the disk, one after the other, as far as they are not in the cache."""
        fresh = Counter[Hashable]()
        for key, size, count in files:
            fresh[key] = min(fresh[key] + count, size - self._cached[key])
        fresh = +fresh
        if not fresh or not self._host.disk:
            return start
        self._cached += fresh
        self._disk = max(start, self._disk) + ceil_div(fresh.total() * SECOND, self._host.disk)
        return self._disk + len(fresh) * self._host.disk_latency

    def busy_workers(self, at: int) -> int:
        """Return how many workers of all loaders fetch then, at most one a core."""
        busy = sum(loader.busy_workers(at) for loader in self.loaders)
        return min(busy, self._host.cores or busy)

    def crowded(self, time: int, at: int) -> int:
        """Return how long a copy within the host's memory takes, beside the workers that are busy then."""
        return time * (1000 + self._host.crowding * self.busy_workers(at)) // 1000

    @property
    def batches(self) -> int:
        """How many bytes of shared memory the batches of all loaders take at most."""
        return sum(loader.kept for loader in self.loaders)


class LoaderSchedule:
    """Workers and pin thread in one epoch, from batch `first`; they go on where the `former` epoch left them."""

    def __init__(
        self,
        runtime: Runtime,
        workers: int,
        prefetch_factor: int = PREFETCH_FACTOR,
        first: int = 0,
        former: LoaderSchedule | None = None,
    ) -> None:
        self.runtime, self.first = runtime, first
        self.ordered = [runtime.now] * (workers * prefetch_factor)  # when each batch was
        self._free: list[int] = former._free if former else [runtime.now] * workers  # when each worker is
        self._pin_free: int = former._pin_free if former else runtime.now
        self._fetched, self._took = 0, 0  # how many, and how long the last one took
        self.kept = 0  # bytes of shared memory that the batches take which its workers have ready, and the one in use
        others = {loader.number for loader in runtime.shared.loaders}
        self.number: int = former.number if former else min(set(range(len(others) + 1)) - others)
        runtime.shared.loaders.add(self)

    def free_at(self, worker: int) -> int:
        """Return when a worker has done what it was last asked for."""
        return self._free[worker]

    def queue(self, worker: int, order: int, locks: Locks) -> tuple[int, str]:
        """Let a worker take the locks that it needs for an order; return how long it waits for others, and where."""
        return self.runtime.shared.queued(max(self.ordered[order], self._free[worker]), locks, self.number)

    def fetch(
        self,
        batch: int,
        worker: int,
        took: int,
        nbytes: int,
        source: str = "",
        slept: int = 0,
        waited: int = 0,
        files: Reads = (),
        order: int | None = None,
        does: int = int(Cause.NONE),
        python: int = 0,
        queued: tuple[int, str] = (0, ""),
    ) -> int:
        """A worker fetches a batch of `nbytes` bytes and sends it; return when it is there.

        It takes a core for `took` ns, and none for `slept` ns and while it reads `files` or `waited`, as was measured:
        for the disk, too, so the longer of both counts. The span begins with that, not with the wait for a core.
        `order` is the number of the order for it, if they come back in another one. `does` is a `Cause`: what it does
        for the longest, at the line `source`. Of a thread `python` ns need the interpreter's lock, and come first. For
        locks that other workers have it is `queued` for so many ns at a line, at first, for all samples at once.
        """
        ordered = self.ordered[batch - self.first if order is None else order]
        start, shared = max(ordered, self._free[worker]), self.runtime.shared
        late, line = queued
        begun = max(shared.read(start, files), start + waited) + slept
        shared.waits(begun - start, self.number)
        begun += late
        first, ready = shared.fetched(begun, took, python, self.runtime.now)
        self._free[worker], self._fetched, self._took = ready, self._fetched + 1, ready - start
        start = start if begun > start else first
        lane = self.runtime.builder.lane(*loading_lane(worker, self.number))
        name = f"fetch batch {batch}"
        rested, add = max(0, begun - start), self.runtime.builder.span
        if late > IN_A_QUEUE * (ready - start):
            does, source = int(Cause.THREAD), line
        add(start, ready, lane, Kind.FETCH, name, batch, nbytes, cause=does, source=source, waited=rested)
        return ready

    def busy_workers(self, at: int) -> int:
        """Return how many of its workers fetch then, if each takes as long as for its last batch."""
        free, busy = list(self._free), 0
        for batch in range(self._fetched, len(self.ordered)):
            worker = batch % len(free)
            start = max(self.ordered[batch], free[worker])
            free[worker] = start + self._took
            busy += start <= at < free[worker]
        return busy

    def end(self, *, workers_stay: bool = False) -> None:
        """The epoch is over: its workers have nothing to do, or leave; nothing of theirs is in shared memory."""
        del self.ordered[self._fetched :]
        self.kept = 0
        if not workers_stay:
            self.runtime.shared.loaders.discard(self)

    def pin(self, batch: int, ready: int, nbytes: int, locks: Callable[[int], int], receiving: int = 0) -> int:
        """The pin thread takes a batch in `receiving` ns and copies it into pinned memory; return when it is there.

        It is the first in this process to read it. `locks(start)` takes the pinned memory, and says how long
        page-locking takes, if there is any.
        """
        start, shared, host = max(ready, self._pin_free), self.runtime.shared, self.runtime.host
        copying = shared.crowded(host.pinning(nbytes), start)
        start, end = shared.compute(start, receiving + locks(start) + copying, self.runtime.now)
        self._pin_free = end
        lane = self.runtime.builder.lane(*loading_lane(-1, self.number))
        self.runtime.builder.span(
            start, end, lane, Kind.PIN, f"pin batch {batch}", batch=batch, nbytes=nbytes, pinned=True
        )
        return end

    def hand_out(self, ready: int, receiving: int = 0) -> None:
        """The main thread waits for a batch and takes it, in `receiving` ns more; the next order goes to a worker."""
        self.runtime.wait_for_data(ready)
        self.runtime.host_work(self.runtime.host.hand_out + receiving, HAND_OUT)
        self.ordered.append(self.runtime.now)
