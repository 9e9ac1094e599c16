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
import select
import selectors
import socket
import sys
import threading
import time
from asyncio.base_events import BaseEventLoop
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import Callable
from functools import partial
from math import inf
from multiprocessing.pool import Pool, ThreadPool
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from loaderviz.emulator.hardware import SECOND
from loaderviz.emulator.threads import (
    ASKS,
    FETCH_ELSEWHERE,
    FROM_OUTSIDE,
    IN_A_FETCH,
    JITTER,
    WAITS_FOR_FILES,
    Scheduler,
)
from loaderviz.emulator.threads.gil import Line
from loaderviz.errors import NotModelledError

if TYPE_CHECKING:
    from loaderviz.emulator.torch.patches import Patches

# Their threads and locks wait for processes, sockets and people.
NEED_REAL_TIME = """
multiprocessing torch.multiprocessing torch.utils.data torchdata.stateful_dataloader torch.distributed
concurrent.futures.process subprocess zmq tornado ipykernel IPython
jupyter_client traitlets tqdm.std tqdm._monitor _pytest pytest hypothesis loaderviz.emulator loaderviz.stations
multiprocess joblib.externals.loky fsspec aiohttp urllib3 wandb ray
debugpy pydevd _pydevd_bundle execnet pytest_rerunfailures
"""
REAL = tuple(f"{name}." for name in NEED_REAL_TIME.split())
BETWEEN = (  # they make them for others
    "threading", "queue", "concurrent.futures._base", "concurrent.futures.thread", "multiprocessing.dummy",
)  # fmt: skip
POOL = "multiprocessing.pool"  # of processes, or of threads
PATCHED = ("loaderviz.emulator.threads", "loaderviz.emulator.torch.patches")
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
LINE = "_loaderviz_line"  # of the selector of an event loop: who waits in it
THROUGH = ("loaderviz.emulator", *WAITS_FOR_FILES)  # they wait for their caller
SELECTORS = "SelectSelector", "PollSelector", "EpollSelector", "KqueueSelector", "DevpollSelector"
READS = "recv", "recv_into", "recvfrom", "recvfrom_into", "recvmsg", "_accept"
SENT = 5_000_000  # ns: what is sent in less has not waited for who reads it
SENDS = "connect", "connect_ex", "send", "sendall", "sendto"


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
                with scheduler.in_real_time("Lock.acquire", least=JITTER if scheduler.let_go_for else inf):
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

    __enter__ = acquire_lock = acquire

    def __repr__(self) -> str:
        return repr(self._real)

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

    release_lock = release

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
        scheduler.let_go(f"a data set {IN_A_FETCH}, and {FETCH_ELSEWHERE}")


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
    _install_files(scheduler, patches)
    _install_pool(scheduler, patches)


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
        with scheduler.in_real_time("Thread.join", least=JITTER if scheduler.let_go_for else inf):
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


def can_read(file: Any) -> bool:
    """Tell whether to read from a socket, a pipe or a connection takes no wait; of one that is closed that says so."""
    try:
        return bool(multiprocessing.connection.wait([file], 0))
    except (OSError, ValueError):
        return True


def is_programs() -> bool:
    """Tell whether the program waits, by what it calls, and no library for its processes, or event loop."""
    frame: Any = sys._getframe(1)
    while (name := frame.f_globals.get("__name__") or "").startswith(THROUGH) and frame.f_back:
        frame = frame.f_back
    return not is_real(name) and not name.startswith("asyncio")


def _left(
    scheduler: Scheduler,
    call: str,
    came: Callable[[], Any],
    timeout: float | None,
    files: Any = True,
    line: Line | None = None,
) -> float | None:
    """Wait until something has come, or for so many seconds, and return how long the call itself may wait then.

    A time-out is virtual. What another thread with turns has sent is there at its next point; for all else virtual time
    waits for real time, and the wait takes as long as it does here. Without open `files` none but other threads that
    move its `line`, an event loop's, can end it before. What libraries wait for with their processes is real.
    """
    if timeout is None and not files and scheduler.is_alone():
        scheduler.begin()
    endless = timeout is None and not files and not scheduler.here()
    if endless or not (scheduler.is_recorded() and (line is not None or is_programs())):
        return timeout
    with scheduler.seen():
        now = scheduler.runtime.now
        until = None if timeout is None else now + max(0, round(timeout * SECOND))
        if came() or (until == now and line is not None):
            scheduler.runtime.now += 20 * ASKS
        elif until == now:
            scheduler.look()
        elif files:
            scheduler.wait_for_files(came, call, until)
        elif until is None or scheduler.here():
            scheduler.wait(Line() if line is None else line, call, until)
        else:
            scheduler.session.sleep(until - now)
    return 0


def _poller(left: Callable[..., float | None], real: Callable[[], Any]) -> Any:
    made = real()

    def poll(timeout: float | None = None) -> Any:
        seconds = None if timeout is None or timeout < 0 else timeout / 1000
        return made.poll(0 if left("poll", lambda: made.poll(0), seconds) == 0 else timeout)

    return SimpleNamespace(**{name: getattr(made, name) for name in ("register", "modify", "unregister")}, poll=poll)


def _install_files(scheduler: Scheduler, patches: Patches) -> None:
    """What waits for sockets, pipes and processes."""
    left = partial(_left, scheduler)

    def read(real: Callable[..., Any], file: Any, *args: Any, **kwargs: Any) -> Any:
        timeout = file.gettimeout() if isinstance(file, socket.socket) else None
        asks = timeout == 0 or (isinstance(file, int) and not os.get_blocking(file))
        if not asks and left(real.__qualname__, lambda: can_read(file), timeout) == 0 and not can_read(file):
            raise TimeoutError("timed out")
        return real(file, *args, **kwargs)

    def send(real: Callable[..., Any], file: Any, *args: Any, **kwargs: Any) -> Any:
        with scheduler.in_real_time(real.__qualname__, least=SENT if is_programs() else inf):
            return real(file, *args, **kwargs)

    def poll(real: Callable[..., bool], connection: Any, timeout: float | None = 0.0) -> bool:
        return real(connection, left("Connection.poll", lambda: can_read(connection), timeout))

    def get(real: Callable[..., Any], messages: Any, block: bool = True, timeout: float | None = None) -> Any:
        rest = left("Queue.get", lambda: not messages.empty(), timeout if block else 0)
        if rest == 0:  # a thread of its own writes what others put, whenever that comes
            scheduler.session.note(FROM_OUTSIDE)
        return real(messages, block if rest != 0 else not messages.empty(), timeout)

    def select_(real: Callable[..., Any], r: Any, w: Any, x: Any, timeout: float | None = None) -> Any:
        return real(r, w, x, left("select", lambda: any(real(r, w, x, 0)), timeout, r or w or x))

    def selector(real: Callable[..., Any], selector: Any, timeout: float | None = None) -> Any:
        line = getattr(selector, LINE, None)  # an event loop has a pipe for itself
        others = len(selector.get_map()) > (line is not None)
        rest = left("select", lambda: real(selector, 0), timeout, others, line)
        scheduler.learn(line.told if line is not None else None)
        return real(selector, rest)

    connection = multiprocessing.connection._ConnectionBase
    patches.around(socket.socket, *READS)(read)
    patches.around(socket.socket, *SENDS)(send)
    patches.around(sys.modules.get("ssl") and sys.modules["ssl"].SSLSocket, "read", "write", "do_handshake")(send)
    if os.name == "posix":
        patches.around(os, "read")(read)
        patches.around(connection, "recv", "recv_bytes", "recv_bytes_into")(read)
    patches.around(connection, "poll")(poll)
    patches.around(select, "select")(select_)
    patches.around(select, "poll")(partial(_poller, left))
    patches.pricing.around(multiprocessing.queues.Queue, "get")(get)  # as what else stands there where it is measured
    for name in SELECTORS:
        patches.around(getattr(selectors, name, None), "select")(selector)


def _install_loop(scheduler: Scheduler, patches: Patches, is_virtual: Callable[[], bool]) -> None:
    """An event loop made in the block waits, and looks at the clock, in virtual time, as long as it runs there."""

    def line_of(selector: Any) -> Any:
        """Who waits in this one; None where it is another's."""
        return getattr(selector, LINE, None) if scheduler.is_recorded() else None

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
