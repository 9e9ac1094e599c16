"""Locks that processes share, in a data set: for how long a fetch has which, so that workers wait in virtual time.

    holdings = Holdings(meter)
    holdings.begin(replace)     # a fetch begins: `replace(owner, name, value)` until it ends
    holdings.held()             # ((which, for how many at a time, ns, "file:line"), ...)

Seen are the locks and semaphores of multiprocessing, a manager's Lock and RLock, and the locks of files by fcntl. Who
has one in virtual time is `Shared.queued`'s to say; `waited` is for how long a fetch waited for one on this machine,
for another worker or for a process that is none.

Not seen is what other threads of a worker take, what was bound to a name before (`acquire = lock.acquire`, `from fcntl
import flock`), a semaphore in a worker that was not forked, and everything of Windows. `loaderviz.costs` around a lock
counts after it. If a file is dropped while it is locked, its lock ends with the fetch, or when the fetch locks it once
more. Who tries a lock without waiting (`tried`) gets it as on this machine.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from multiprocessing import synchronize, util
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from loaderviz.emulator.host import Locks, Reading, processor_time, waiting_time
from loaderviz.stations import place_of, stack_of

if TYPE_CHECKING:
    from loaderviz.emulator.torch.dataloader import Meter

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

JITTER = 500_000  # ns: a shorter wait is one for the interpreter's lock, or the system's own
SEVERAL = 64  # a semaphore that more have at once is no lock: a queue has one of 2**31
PROXIES = "Lock", "RLock"  # of a manager
# How many have a semaphore at once, and the process that saw it first: a forked worker inherits what its parent saw
SEEN = WeakKeyDictionary[Any, tuple[int, int]]()
LOOKED = set[bool]()  # whether that was done in this process, or in the one that it was forked from


class Key(NamedTuple):
    """A lock: by what name all processes know it, how many may have it at once, and the open file that it is of."""

    name: Hashable
    many: int = 1
    file: int = -1


@dataclass
class Holding:
    """A fetch and a lock: where it took it, how often without having given it back, for how long it had it [ns].

    Since it has it for this time: how much had passed, what was waited for and charged elsewhere (`declared`), and what
    the clocks said; `waits` are what it waited for while it had it.
    """

    line: str = ""
    depth: int = 0
    since: int = 0
    declared: int = 0
    reading: Reading | None = None
    time: int = 0
    waits: int = 0


def look() -> list[Any]:
    """Return the semaphores of this process, and note how many may have each: as many as could before the fork.

    One that nobody can have is an event, or a part of a condition.
    """
    LOOKED.add(True)
    registered = [reference() for reference in util._afterfork_registry.valuerefs()]  # type: ignore[attr-defined]
    locks = [each for each in registered if isinstance(each, synchronize.SemLock)]
    for lock in locks:
        if lock not in SEEN:
            with contextlib.suppress(NotImplementedError):  # macOS does not tell
                SEEN[lock] = lock._semlock._get_value() or SEVERAL, os.getpid()  # type: ignore[attr-defined]
    return locks


def look_in_worker() -> None:
    """Find the locks that a worker which was not forked has from its parent: only what is made here is registered."""
    for lock in gc.get_objects() if not LOOKED else ():  # which takes some 10 ms
        if issubclass(type(lock), synchronize.SemLock):
            util.register_after_fork(lock, lambda it: it._semlock._after_fork())


class Holdings:
    """The locks that the fetch of a `Meter` has, or had."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self._locks = dict[Key, Holding]()
        self.waited = 0  # ns on this machine
        self.tried = False  # in vain, without waiting

    def begin(self, replace: Callable[[Any, str, Any], None]) -> None:
        """A fetch begins."""
        self._locks.clear()
        self.waited, self.tried = 0, False
        for lock in look():  # each has methods of its own
            raw, key = lock._semlock, _key(lock)
            replace(lock, "acquire", functools.partial(self._take, key, raw.acquire))
            replace(lock, "release", functools.partial(self._give, key, raw.release))
        self._see(replace, synchronize.SemLock, _key, ["__enter__"], ["__exit__"])
        if managers := sys.modules.get("multiprocessing.managers"):
            proxy = managers.AcquirerProxy
            self._see(replace, proxy, _key_of_proxy, ["acquire", "__enter__"], ["release", "__exit__"])
        if fcntl:
            for name in ("flock", "lockf"):
                replace(fcntl, name, self._of_files(vars(fcntl)[name]))
            replace(os, "lockf", self._of_posix(os.lockf))
            replace(os, "close", self._closing(os.close))

    def _see(self, replace: Any, kind: Any, key: Callable[[Any], Key | None], take: list[str], give: list[str]) -> None:
        """See the methods of a class that take a lock, and give it back."""
        for method in (*take, *give):
            does, real = self._take if method in take else self._give, vars(kind)[method]

            def seen(lock: Any, *args: Any, does: Any = does, real: Any = real, **options: Any) -> Any:
                return does(key(lock), real, lock, *args, **options)

            replace(kind, method, seen)

    def end(self) -> None:
        """A fetch ends: a file that was closed has no lock any more."""
        for key in [key for key in self._locks if key.file >= 0]:
            self._give(key, int)

    def held(self) -> Locks:
        """Return the locks of this fetch: how many may have one, for how many ns it had it, the line that took it."""
        found = dict[Hashable, tuple[Hashable, int, int, str]]()
        for key, lock in self._locks.items():
            *_, before, line = found.get(key.name, (0, lock.line))
            if time := before + lock.time + (lock.waits if lock.waits > JITTER else 0):
                found[key.name] = key.name, key.many, time, line
        return tuple(found.values())

    def _of_files(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of fcntl that locks a file for one process, or a part of it, or unlocks it."""

        @functools.wraps(function)
        def locking(file: Any, operation: int, *part: int) -> None:
            call = functools.partial(function, file, operation, *part)
            number, takes = file if isinstance(file, int) else file.fileno(), operation & fcntl.LOCK_EX
            if not takes and not operation & fcntl.LOCK_UN:
                call()
                return
            key = self._on_file(number, part, call, takes)
            if takes and hasattr(file, "__dict__") and hasattr(file, "close") and "close" not in vars(file):
                its, close = weakref.ref(file), type(file).close  # a file that is dropped is closed at once, as before
                file.close = lambda: self._give(key, lambda: close(its()))

        return locking

    def _of_posix(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `os.lockf`."""

        @functools.wraps(function)
        def locking(number: int, command: int, length: int) -> None:
            call = functools.partial(function, number, command, length)
            takes = command in (os.F_LOCK, os.F_TLOCK)
            if command == os.F_TEST:
                call()
            else:
                self._on_file(number, (length,), call, takes)

        return locking

    def _on_file(self, number: int, part: tuple[int, ...], call: Callable[[], Any], takes: Any) -> Key | None:
        """Lock a part of an open file, or unlock it; return which lock it is, if there is such a file."""
        try:
            found = os.fstat(number)
        except (OSError, OverflowError):
            call()
            return None
        key = Key((found.st_dev, found.st_ino, *(part if any(part) else ())), file=number)
        if not takes:
            self._give(key, call)
            return key
        self._give(key, int)  # it was closed meanwhile
        try:
            self._take(key, call)
        except BlockingIOError:
            self.tried = True
            raise
        return key

    def _closing(self, close: Callable[[int], None]) -> Callable[[int], None]:
        """Return `os.close`, with which the locks of a file are gone."""

        @functools.wraps(close)
        def closing(fd: int) -> None:
            for key in [key for key in list(self._locks) if key.file == fd]:
                self._give(key, int)
            close(fd)

        return closing

    def _take(self, key: Key | None, acquire: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Take a lock; looking at the clocks is the emulator's own work."""
        meter = self.meter
        if key is None or threading.get_ident() != meter.thread:
            return acquire(*args, **options)
        start, began = processor_time(), waiting_time.wall()
        got = acquire(*args, **options)
        waited = max(0, waiting_time.wall() - began - (processor_time() - start))
        start, began = processor_time(), waiting_time.wall()
        for other in self._locks.values():  # who has two waits for the second one, and does nothing with the first
            other.declared -= waited
        self.waited += waited
        self.tried = self.tried or got is False
        lock = self._locks.setdefault(key, Holding())
        lock.depth += got is not False
        if lock.depth != 1 or got is False:
            meter.charged_elsewhere(start, began)
            return got
        place = None if lock.line else place_of(stack_of())
        lock.line = place.line if place else lock.line
        lock.reading = waiting_time.read() if meter.measured else None
        meter.charged_elsewhere(start, began)
        lock.since, lock.declared = meter.passed(), meter.waits_declared
        return got

    def _give(self, key: Key | None, release: Callable[..., Any], *args: Any) -> Any:
        """Give a lock back."""
        lock, meter = self._locks.get(key) if key else None, self.meter
        if lock is not None and lock.depth and threading.get_ident() == meter.thread:
            start, began = processor_time(), waiting_time.wall()
            lock.depth -= 1
            if not lock.depth:
                lock.time += meter.passed() - lock.since
                if lock.reading is not None:
                    lock.waits += waiting_time.since(lock.reading).time - (meter.waits_declared - lock.declared)
            meter.charged_elsewhere(start, began)
        return release(*args)


def _key(lock: Any) -> Key | None:
    """Return which lock this is; None for a semaphore that many have at once, and one that is no other process's."""
    semaphore, (many, process) = lock._semlock, SEEN.get(lock, (SEVERAL, 0))
    many = min(many, semaphore.maxvalue)
    name = semaphore.name or (process and (process, semaphore.handle))
    return Key(name, many) if many < SEVERAL and name else None


def _key_of_proxy(proxy: Any) -> Key | None:
    token = proxy._token
    return Key(f"{token.address} {token.id}") if token.typeid in PROXIES else None
