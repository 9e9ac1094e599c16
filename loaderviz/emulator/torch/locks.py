"""Locks that processes share, in a data set: for how long a fetch has which, so that workers wait in virtual time.

    holdings = Holdings(meter)
    holdings.begin(replace)     # a fetch begins: `replace(owner, name, value)` until it ends
    holdings.held()             # ((which, ns, "file:line"), ...)

Seen are the locks of multiprocessing (not semaphores of more than one), entered or acquired, and those of whole files
that fcntl locks for one process, as filelock does. Who has one in virtual time is `Shared.queued`'s to say; `waited` is
for how long a fetch waited for one on this machine, for another worker or for a process that is none. A lock that is
acquired without `with` in a spawned worker is not seen.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from multiprocessing import synchronize, util
from typing import TYPE_CHECKING, Any

from loaderviz.emulator.host import Locks, Reading, processor_time, waiting_time
from loaderviz.stations import place_of, stack_of

if TYPE_CHECKING:
    from loaderviz.emulator.torch.dataloader import Meter

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

JITTER = 500_000  # ns: a shorter wait is one for the interpreter's lock, or the system's own


@dataclass
class Holding:
    """A lock that a fetch takes: where, how often without having given it back, and for how long it had it [ns]."""

    line: str = ""
    depth: int = 0
    since: int = 0
    declared: int = 0
    reading: Reading | None = None
    time: int = 0
    waits: int = 0


class Holdings:
    """The locks that the fetch of a `Meter` has, or had."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self._locks = dict[Hashable, Holding]()
        self.waited = 0  # ns on this machine

    def begin(self, replace: Callable[[Any, str, Any], None]) -> None:
        """A fetch begins."""
        self._locks.clear()
        self.waited = 0
        kind = synchronize.SemLock
        enter, leave = (vars(kind)[name] for name in ("__enter__", "__exit__"))

        def entering(lock: Any) -> Any:
            return self._take(_name(lock), functools.partial(enter, lock))

        def leaving(lock: Any, *error: Any) -> Any:
            return self._give(_name(lock), functools.partial(leave, lock, *error))

        replace(kind, "__enter__", entering)
        replace(kind, "__exit__", leaving)
        for name in ("flock", "lockf") if fcntl else ():
            replace(fcntl, name, self._of_files(vars(fcntl)[name]))

    def held(self) -> Locks:
        """Return the locks of this fetch, for how many ns it had each, and the line that took it first."""
        return tuple(
            (name, lock.time + (lock.waits if lock.waits > JITTER else 0), lock.line)
            for name, lock in self._locks.items()
        )

    def watch(self) -> None:
        """From now on see also who acquires a lock and releases it: each lock has methods of its own for that.

        Called in a worker; known are the locks that were there when it was forked.
        """
        for lock in list(util._afterfork_registry.values()):  # type: ignore[attr-defined]
            if isinstance(lock, synchronize.SemLock):
                raw, name = lock._semlock, _name(lock)  # type: ignore[attr-defined]
                lock.acquire = functools.partial(self._acquire, name, raw.acquire)  # type: ignore[method-assign]
                lock.release = functools.partial(self._give, name, raw.release)  # type: ignore[method-assign]

    def _acquire(self, name: Hashable, acquire: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._take(name, functools.partial(acquire, *args, **kwargs))

    def _of_files(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of fcntl that locks a file for one process, or unlocks it."""

        @functools.wraps(function)
        def locking(file: Any, operation: int, *args: Any) -> Any:
            call = functools.partial(function, file, operation, *args)
            if not operation & (fcntl.LOCK_EX | fcntl.LOCK_UN):
                return call()
            found = os.fstat(file if isinstance(file, int) else file.fileno())
            which = found.st_dev, found.st_ino
            return self._take(which, call) if operation & fcntl.LOCK_EX else self._give(which, call)

        return locking

    def _take(self, name: Hashable, acquire: Callable[[], Any]) -> Any:
        """Take a lock; looking at the clocks is the emulator's own work."""
        meter = self.meter
        if name is None or threading.get_ident() != meter.thread:
            return acquire()
        start, began = processor_time(), waiting_time.wall()
        got = acquire()
        self.waited += waiting_time.wall() - began - (processor_time() - start)
        start, began = processor_time(), waiting_time.wall()
        lock = self._locks.setdefault(name, Holding())
        lock.depth += got is not False
        first = lock.depth == 1 and got is not False
        if first:
            place = None if lock.line else place_of(stack_of())
            lock.line = place.line if place else lock.line
            lock.reading = waiting_time.read() if meter.measured else None
        meter.charged_elsewhere(start, began)
        if first:
            lock.since, lock.declared = meter.passed(), meter.waits_declared
        return got

    def _give(self, name: Hashable, release: Callable[[], Any]) -> Any:
        """Give a lock back."""
        lock, meter = self._locks.get(name), self.meter
        if lock is not None and lock.depth and threading.get_ident() == meter.thread:
            start, began = processor_time(), waiting_time.wall()
            lock.depth -= 1
            if not lock.depth:
                lock.time += meter.passed() - lock.since
                if lock.reading is not None:
                    lock.waits += waiting_time.since(lock.reading).time - (meter.waits_declared - lock.declared)
            meter.charged_elsewhere(start, began)
        return release()


def _name(lock: Any) -> Hashable:
    """Return what this lock is called in all processes; None for a semaphore that several have at once."""
    semaphore = lock._semlock
    return (semaphore.name or semaphore.handle) if semaphore.maxvalue == 1 else None
