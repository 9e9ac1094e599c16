"""What Python's threads wait with, in virtual time: the names of `threading`, `queue`, `concurrent` and `asyncio`.

Conditions, events, semaphores, barriers, queues and futures are Python, made of locks; so a `Lock` that waits in
virtual time is most of it. Who makes one decides: the program's own are virtual, those of libraries that wait for other
processes are real (`REAL`), and so is what was made before the block, or in a data set's fetch.
"""

from __future__ import annotations

import _thread
import concurrent.futures.thread
import multiprocessing.connection
import multiprocessing.queues
import os
import queue
import selectors
import sys
import threading
import time
from asyncio.base_events import BaseEventLoop
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import Callable
from multiprocessing.pool import Pool, ThreadPool
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from loaderviz.emulator.hardware import SECOND
from loaderviz.emulator.threads import ASKS, FETCH_ELSEWHERE, IN_A_FETCH, Scheduler
from loaderviz.emulator.threads.gil import Line
from loaderviz.errors import NotModelledError

if TYPE_CHECKING:
    from loaderviz.emulator.torch.patches import Patches

# Their threads and locks wait for processes, sockets and people.
NEED_REAL_TIME = """
multiprocessing torch.multiprocessing torch.utils.data torchdata.stateful_dataloader torch.distributed
concurrent.futures.process subprocess socket socketserver logging ssl http urllib zmq tornado ipykernel IPython
jupyter_client traitlets tqdm.std tqdm._monitor _pytest pytest hypothesis loaderviz.emulator loaderviz.stations
multiprocess joblib.externals.loky fsspec aiohttp urllib3 wandb ray
debugpy pydevd _pydevd_bundle execnet pytest_rerunfailures
"""
REAL = tuple(f"{name}." for name in NEED_REAL_TIME.split())
BETWEEN = (  # they make them for others
    "threading", "queue", "concurrent.futures._base", "concurrent.futures.thread", "multiprocessing.dummy",
)  # fmt: skip
POOL = "multiprocessing.pool"  # of processes, or of threads
PATCHED = ("loaderviz.emulator.threads.python", "loaderviz.emulator.torch.patches")
OWN_EVENT = threading.Thread.__init__.__code__  # what a thread says it has started with: to `start`, at once
TURN = "_loaderviz_turn"  # of a thread of the program
LOOKS = (
    (threading.Event, "is_set"),
    *((queue.Queue, name) for name in ("empty", "full", "qsize")),
    *((queue._PySimpleQueue, name) for name in ("empty", "qsize")),  # type: ignore[attr-defined]
    *((concurrent.futures.Future, name) for name in ("done", "running", "cancelled")),
)
RealQueue = queue.SimpleQueue
TELL = (threading.Event, "set"), (queue.Queue, "put"), (concurrent.futures.Future, "set_result")
LEARN = (threading.Event, "wait"), (queue.Queue, "get"), (concurrent.futures.Future, "result")
PROCESSES_TAKE = (
    "the program looked in vain whether another process had sent something: how often depends on this machine, and "
    "each look took as long as it may wait"
)
LINE = "_loaderviz_line"  # of the selector of an event loop: who waits in it


class Lock:
    """`threading.Lock` in virtual time (R51): free from a time on, when it is let go of, and one who waits is woken.

    Where time is real (`Scheduler.here`) it is a real lock. One that is `fresh` is nobody else's yet: who takes it
    first keeps the baton.
    """

    def __init__(self, scheduler: Scheduler, fresh: bool = False) -> None:
        self._scheduler, self._real, self._fresh = scheduler, _thread.allocate_lock(), fresh
        self._line, self._free_at = Line(), 0

    def locked(self) -> bool:
        """Tell whether somebody has it."""
        self._scheduler.look()
        return self._real.locked()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it as a lock is taken. Raises `DeadlockError` where all threads wait."""
        scheduler, fresh, self._fresh = self._scheduler, self._fresh, False
        if fresh or scheduler.here() is None:
            if self._real.acquire(False):
                return fresh or scheduler.took(self._line)
            if not blocking:
                return False
            if fresh or not scheduler.is_alone():
                leave_for_a_fetch(scheduler)
                return self._real.acquire(True, timeout)
            scheduler.begin()  # a wait of the only thread passes in virtual time, or has no end
        runtime = scheduler.runtime
        with scheduler.seen():
            runtime.now += max(ASKS, runtime.host.lock)
            until = runtime.now + round(timeout * SECOND) if timeout >= 0 else None
            while scheduler.alive and (late := runtime.now < self._free_at or not self._real.acquire(False)):
                if not blocking or (until is not None and runtime.now >= until):
                    scheduler.look()
                    return False
                free_at = self._free_at if late and not self._real.locked() else None
                ends = [each for each in (until, free_at) if each is not None]
                scheduler.wait(self._line, "Lock.acquire", min(ends, default=None))
            if scheduler.alive:
                scheduler.learn(self._line.told)
                return scheduler.took(self._line)
        return self._real.acquire(blocking, timeout)

    __enter__ = acquire

    def release(self) -> None:
        """Let it go. Raises RuntimeError if nobody has it."""
        scheduler = self._scheduler
        if scheduler.here():
            scheduler.session.catch_up()
        self._real.release()
        if scheduler.here():
            self._free_at, self._line.told = scheduler.runtime.now, scheduler.tell()
            scheduler.session.leave()
        if self._line:
            scheduler.wake(self._line)

    def __exit__(self, *_: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self._real = _thread.allocate_lock()

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle '_thread.lock' object")


def leave_for_a_fetch(scheduler: Scheduler) -> None:
    """A data set's fetch waits with the baton: let threads go on in real time.

    Raises `NotModelledError` where one of them uses the GPU.
    """
    if scheduler.main and scheduler.session.fetching and scheduler.alive and scheduler.session.in_recording_thread():
        if scheduler.shares_gpu or scheduler.running is not scheduler.main:
            raise NotModelledError(f"a data set {IN_A_FETCH}: {FETCH_ELSEWHERE}")
        scheduler.let_go(f"a data set {IN_A_FETCH}")


class Ordered(dict[Any, None]):
    """The threads of a pool, in the order in which it started them: a set's is that of their addresses."""

    def add(self, thread: Any) -> None:
        """Add one."""
        self[thread] = None


def is_ours(depth: int = 2) -> bool:
    """Tell whether what is being made in the frame `depth` above is the program's, by the module that asks for it."""
    frame: Any = sys._getframe(depth)
    while frame is not None and (frame.f_globals.get("__name__") or "").startswith((*BETWEEN, *PATCHED)):
        if frame.f_code is OWN_EVENT:
            return False
        frame = frame.f_back
    pool = frame
    while pool is not None and pool.f_globals.get("__name__") == POOL:
        if any(isinstance(pool.f_locals.get(name), ThreadPool) for name in ("self", "pool")):
            return True
        pool = pool.f_back
    return frame is not None and not is_real(frame.f_globals.get("__name__"))


def is_real(thread_or_module: Any) -> bool:
    """Tell whether the threads and locks of a module are real, or a thread, by what it runs: a server's loop is."""
    if isinstance(thread := thread_or_module, threading.Thread):
        module = getattr(getattr(thread, "_target", None), "__module__", None) or type(thread).__module__
        return module != POOL and is_real(module)  # the threads of a pool of processes are not the program's to start
    return f"{thread_or_module}.".startswith(REAL)


def install(scheduler: Scheduler, patches: Patches) -> None:
    """Replace the names for a recording."""
    session, scheduler.gives_turns = scheduler.session, True
    scheduler.may_wake = lambda thread: thread.ident in session.threads or not is_real(thread)
    process = os.getpid()
    foreign: WeakSet[Any] = WeakSet()  # locks that were made since, and not for the program

    def is_virtual() -> bool:
        """Tell whether a lock made now takes part. In a forked child none does: `threading` makes its own anew there,
        before the recording is taken away, and to wait for one would be to wait for a thread that is not there.
        """
        here = os.getpid() == process and session.in_recording_thread()
        return here and not session.fetching and session.alive and is_ours(3)

    class Made(Lock):
        def __new__(cls) -> Any:
            if is_virtual():
                return super().__new__(cls)
            foreign.add(made := _thread.allocate_lock())
            return made

        def __init__(self) -> None:
            super().__init__(scheduler)

    def waiter(real: Callable[[], Any]) -> Any:
        """What waits for a condition is real where the condition's own lock was made to be; else virtual."""
        frame: Any = sys._getframe(1)
        while (frame.f_globals.get("__name__") or "").startswith(PATCHED):
            frame = frame.f_back
        if frame.f_code is not threading.Condition.wait.__code__:
            return Made()
        own = frame.f_locals["self"]._lock
        if isinstance(own, (Lock, threading._PyRLock)):  # type: ignore[attr-defined]
            leave_for_a_fetch(scheduler)
        here = session.in_recording_thread() and not session.fetching and own not in foreign
        return Lock(scheduler, fresh=True) if here else real()

    def recursive(real: Callable[[], Any]) -> Any:
        if is_virtual():
            return threading._PyRLock()  # type: ignore[attr-defined]
        foreign.add(made := real())
        return made

    class Simple(queue._PySimpleQueue):  # type: ignore[misc,name-defined]
        def __new__(cls) -> Any:
            return super().__new__(cls) if cls is not Simple or is_virtual() else RealQueue()

        __reduce__ = Lock.__reduce__

    patches.function(threading, "Lock", Made)
    patches.function(queue, "SimpleQueue", Simple)
    patches.around(threading, "_allocate_lock")(waiter)
    patches.around(threading, "RLock")(recursive)
    patches.set(concurrent.futures.thread, "_global_shutdown_lock", Lock(scheduler))  # held while a thread is started
    _install_clock(scheduler, patches)
    _install_thread(scheduler, patches, is_virtual)
    _install_looks(scheduler, patches)
    _install_loop(scheduler, patches, is_virtual)
    _install_pool(scheduler, patches)
    _install_processes(scheduler, patches)


def _install_clock(scheduler: Scheduler, patches: Patches) -> None:
    began = threading._time()  # type: ignore[attr-defined]

    def clock(real: Callable[[], float]) -> float:  # no point: whose lock this thread has, nobody sees
        return began + scheduler.runtime.now / SECOND if scheduler.here() or scheduler.is_alone() else real()

    for module, name in ((threading, "_time"), (queue, "time")):
        patches.around(module, name)(clock)


def _install_thread(scheduler: Scheduler, patches: Patches, is_virtual: Callable[[], bool]) -> None:
    runtime = scheduler.runtime

    def turn_of(thread: Any) -> Any:
        """Return a thread's turn; None where time is real, or where it is of an earlier recording."""
        turn = getattr(thread, TURN, None) if scheduler.here() else None
        return turn if turn and turn.scheduler is scheduler else None

    @patches.around(concurrent.futures.ThreadPoolExecutor, "__init__")
    def pool(begin: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        if is_virtual():
            self._threads = Ordered()

    @patches.around(threading.Thread, "join")
    def join(real: Callable[..., None], thread: Any, timeout: float | None = None) -> None:
        turn = turn_of(thread)
        if turn is not None and turn is not scheduler.running:
            with scheduler.seen():
                until = None if timeout is None else runtime.now + max(0, round(timeout * SECOND))
                while scheduler.alive and not turn.done:
                    if until is not None and runtime.now >= until:
                        scheduler.look()
                        return
                    scheduler.wait(turn.joiners, "Thread.join", until)
                scheduler.learn(turn.known)
        real(thread, timeout)

    @patches.around(threading.Thread, "is_alive")
    def is_alive(real: Callable[..., bool], thread: Any) -> bool:
        turn = turn_of(thread)
        if turn is None:
            return real(thread)
        scheduler.look()
        scheduler.learn(turn.known)
        return not turn.done


def _install_looks(scheduler: Scheduler, patches: Patches) -> None:
    """Looks take time; what is looked at without its lock, or is older than the block, orders threads all the same."""
    told = WeakKeyDictionary[Any, Any]()

    def look(real: Callable[..., Any], waited_for: Any) -> Any:
        if sys._getframe(2).f_globals is not vars(threading):  # which asks whether a thread has started
            scheduler.look()
        if answer := real(waited_for):
            scheduler.learn(told.get(waited_for))
        return answer

    def tell(real: Callable[..., Any], waited_for: Any, *args: Any, **kwargs: Any) -> Any:
        if scheduler.order:
            told[waited_for] = scheduler.tell(told.get(waited_for))
        return real(waited_for, *args, **kwargs)

    def learn(real: Callable[..., Any], waited_for: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return real(waited_for, *args, **kwargs)
        finally:
            scheduler.learn(told.get(waited_for))

    for names, does in ((LOOKS, look), (TELL, tell), (LEARN, learn)):
        for owner, name in names:
            patches.around(owner, name)(does)


def _install_loop(scheduler: Scheduler, patches: Patches, is_virtual: Callable[[], bool]) -> None:
    """An event loop that is made in the block waits and looks at the clock in virtual time, as long as it runs there.

    What it has from sockets and processes comes when it comes, and takes no virtual time.
    """
    session = scheduler.session

    def line_of(selector: Any) -> Any:
        """Who waits in this one; None where it is another's."""
        here = scheduler.alive and session.in_recording_thread() and not session.fetching
        return getattr(selector, LINE, None) if here else None

    @patches.around(BaseSelectorEventLoop, "__init__")
    def init(begin: Callable[..., None], loop: Any, *args: Any, **kwargs: Any) -> None:
        begin(loop, *args, **kwargs)
        if is_virtual():
            setattr(loop._selector, LINE, Line())

    @patches.around(BaseEventLoop, "time")
    def now(real: Callable[..., float], loop: Any) -> float:
        return real(loop) if line_of(loop._selector) is None else time.monotonic()

    @patches.around(BaseEventLoop, "call_soon_threadsafe")
    def call(real: Callable[..., Any], loop: Any, *args: Any, **kwargs: Any) -> Any:
        with scheduler.seen():
            handle = real(loop, *args, **kwargs)
        if (line := getattr(loop._selector, LINE, None)) is not None:
            line.told = scheduler.tell(line.told)
        if line:
            scheduler.wake(line)
        return handle

    @patches.around(selectors.DefaultSelector, "select")
    def select(real: Callable[..., Any], selector: Any, timeout: float | None = None) -> Any:
        line = line_of(selector)
        if line is None:
            return real(selector, timeout)
        events = _select(scheduler, line, real, selector, timeout)
        scheduler.learn(line.told)
        return events


def _select(scheduler: Scheduler, line: Line, real: Callable[..., Any], selector: Any, timeout: float | None) -> Any:
    """Wait for other threads in virtual time, and for all else, that is, more than the loop's own pipe, as it is."""
    outside = len(selector.get_map()) > 1
    if timeout is None and not outside and scheduler.is_alone():
        scheduler.begin()
    with scheduler.seen():
        events, rest = real(selector, timeout if outside else 0), max(0, round((timeout or 0) * SECOND))
        if events or (timeout is not None and not rest):
            scheduler.runtime.now += 20 * ASKS
            return events
        if scheduler.here() and not outside:
            scheduler.wait(line, "select", None if timeout is None else scheduler.runtime.now + rest)
        elif timeout is None:
            return real(selector, None)
        else:
            scheduler.session.sleep(rest)
    return real(selector, 0)


def _install_pool(scheduler: Scheduler, patches: Patches) -> None:
    """A `ThreadPool` has a thread that waits for processes, of which there are none, and for a pipe of the pool's own.

    The threads of the program write into that.
    """
    lines = WeakKeyDictionary[Any, Line]()

    @patches.around(Pool, "_wait_for_updates")
    def wait(real: Callable[..., None], sentinels: Any, notifier: Any, timeout: float | None = None) -> None:
        if scheduler.here():
            with scheduler.seen():
                if notifier.empty():
                    scheduler.wait(lines.setdefault(notifier, Line()), "ThreadPool")
            timeout = 0
        real(sentinels, notifier, timeout)

    @patches.around(multiprocessing.queues.SimpleQueue, "put")
    def put(real: Callable[..., None], notifier: Any, item: Any) -> None:
        real(notifier, item)
        if line := lines.get(notifier):
            scheduler.wake(line)


def _install_processes(scheduler: Scheduler, patches: Patches) -> None:
    """Who waits for a process in vain waits in virtual time, too: else a loop of such looks would hold all others."""

    def passes(timeout: float | None) -> None:
        frame: Any = sys._getframe(2)
        while (frame.f_globals.get("__name__") or "").startswith(PATCHED):
            frame = frame.f_back
        if scheduler.here() and not is_real(frame.f_globals.get("__name__")):
            scheduler.session.note(PROCESSES_TAKE)
            with scheduler.seen():
                scheduler.session.sleep(max(0, round((timeout or 0) * SECOND)))

    @patches.pricing.around(multiprocessing.queues.Queue, "get")  # as what else stands there, where Python is measured
    def get(real: Callable[..., Any], waited_for: Any, block: bool = True, timeout: float | None = None) -> Any:
        try:
            return real(waited_for, block, timeout)
        except queue.Empty:
            passes(timeout if block else 0)
            raise

    @patches.around(multiprocessing.connection._ConnectionBase, "poll")
    def poll(real: Callable[..., bool], connection: Any, timeout: float | None = 0.0) -> bool:
        if not (there := real(connection, timeout)):
            passes(timeout)
        return there
