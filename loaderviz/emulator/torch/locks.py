"""Locks that processes share, in a data set: for how long a fetch has which, so that workers wait in virtual time.

    holdings = Holdings(meter)
    holdings.begin(replace)     # a fetch begins: `replace(owner, name, value)` until it ends
    holdings.held()             # ((which, for how many at a time, ns, "file:line"), ...)

Seen are the locks and semaphores of multiprocessing, also of a manager, and those of files that fcntl locks for one
process, as filelock does. Who has one in virtual time is `Shared.queued`'s to say; `waited` is for how long a fetch
waited for one on this machine, for another worker or for a process that is none.

Not seen is what was bound to a name before the recording (`acquire = lock.acquire`, `from fcntl import flock`), and in
a spawned worker what is acquired without `with`. A file that is closed instead of unlocked has its lock until the fetch
ends, or takes it again, unless it is closed as it was given to fcntl. Who tries a lock without waiting (`tried`) gets
it as on this machine.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
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
CAPACITIES = WeakKeyDictionary[Any, int]()  # how many have a semaphore at once: a forked worker inherits it


class Key(NamedTuple):
    """A lock: by what name all processes know it, how many may have it at once, and the open file that it is of."""

    name: Hashable
    many: int = 1
    file: int = -1


@dataclass
class Holding:
    """A fetch and a lock: where it took it, how often without having given it back, for how long it had it [ns]."""

    line: str = ""
    depth: int = 0
    since: int = 0
    declared: int = 0
    reading: Reading | None = None
    time: int = 0
    waits: int = 0


def count_free() -> None:
    """Note how many may have each semaphore, which nobody has yet."""
    for lock in _semaphores():
        with contextlib.suppress(NotImplementedError):  # macOS does not tell
            CAPACITIES.setdefault(lock, max(1, lock._semlock._get_value()))


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
        count_free()
        for lock in _semaphores():  # each has methods of its own
            raw, key = lock._semlock, _key(lock)
            replace(lock, "acquire", functools.partial(self._acquire, key, raw.acquire))
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
            does, real = self._acquire if method in take else self._give_it, vars(kind)[method]

            def seen(lock: Any, *args: Any, does: Any = does, real: Any = real, **options: Any) -> Any:
                return does(key(lock), functools.partial(real, lock), *args, **options)

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
            time = before + lock.time + (lock.waits if lock.waits > JITTER else 0)
            found[key.name] = key.name, key.many, time, line
        return tuple(found.values())

    def _acquire(self, key: Key | None, acquire: Callable[..., Any], *args: Any, **options: Any) -> Any:
        got = self._take(key, functools.partial(acquire, *args, **options))
        self.tried = self.tried or (got is False and threading.get_ident() == self.meter.thread)
        return got

    def _give_it(self, key: Key | None, release: Callable[..., Any], *args: Any) -> Any:
        return self._give(key, functools.partial(release, *args))

    def _of_files(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of fcntl that locks a file for one process, or a part of it, or unlocks it."""

        @functools.wraps(function)
        def locking(file: Any, operation: int, *part: int) -> Any:
            call = functools.partial(function, file, operation, *part)
            if not operation & (fcntl.LOCK_EX | fcntl.LOCK_UN):
                return call()
            number = file if isinstance(file, int) else file.fileno()
            return self._on_file(number, part, call, operation & fcntl.LOCK_EX, file)

        return locking

    def _of_posix(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `os.lockf`."""

        @functools.wraps(function)
        def locking(number: int, command: int, length: int) -> Any:
            call = functools.partial(function, number, command, length)
            takes = command in (os.F_LOCK, os.F_TLOCK)
            return call() if command == os.F_TEST else self._on_file(number, (length,), call, takes)

        return locking

    def _on_file(self, number: int, part: Any, call: Callable[[], Any], takes: Any, file: Any = None) -> Any:
        """Lock a part of a file, which ends with its file, or unlock it."""
        found = os.fstat(number)
        which = Key((found.st_dev, found.st_ino, *(part if any(part) else ())), file=number)
        if not takes:
            return self._give(which, call)
        self._give(which, int)  # it was closed meanwhile
        try:
            got = self._take(which, call)
        except BlockingIOError:
            self.tried = True
            raise
        if hasattr(file, "__dict__") and "close" not in vars(file):
            close = file.close
            file.close = lambda: self._give(which, close)
        return got

    def _closing(self, close: Callable[[int], None]) -> Callable[[int], None]:
        """Return `os.close`, with which the locks of a file are gone."""

        @functools.wraps(close)
        def closing(number: int) -> None:
            for key in [key for key in self._locks if key.file == number]:
                self._give(key, int)
            close(number)

        return closing

    def _take(self, key: Key | None, acquire: Callable[[], Any]) -> Any:
        """Take a lock; looking at the clocks is the emulator's own work."""
        meter = self.meter
        if key is None or threading.get_ident() != meter.thread:
            return acquire()
        start, began = processor_time(), waiting_time.wall()
        got = acquire()
        self.waited += waiting_time.wall() - began - (processor_time() - start)
        start, began = processor_time(), waiting_time.wall()
        lock = self._locks.setdefault(key, Holding())
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

    def _give(self, key: Key | None, release: Callable[[], Any]) -> Any:
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
        return release()


def _semaphores() -> list[Any]:
    registered = list(util._afterfork_registry.values())  # type: ignore[attr-defined]
    return [each for each in registered if isinstance(each, synchronize.SemLock)]


def _key(lock: Any) -> Key | None:
    """Return which lock this is; None for a semaphore that many have at once."""
    semaphore = lock._semlock
    many = 1 if semaphore.maxvalue == 1 else CAPACITIES.get(lock, SEVERAL)
    return Key(semaphore.name or semaphore.handle, many) if many < SEVERAL else None


def _key_of_proxy(proxy: Any) -> Key | None:
    token = proxy._token
    return Key(f"{token.address} {token.id}") if token.typeid in PROXIES else None
