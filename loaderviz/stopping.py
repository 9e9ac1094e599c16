"""What ends a program from outside: Ctrl-C, a closed terminal, `timeout`, docker stop, a batch system's limit.

    with Stopping() as stopping:  # a signal is noted, and what is being done is finished
        stopping.begin()          # from here the first one raises KeyboardInterrupt, in the program
        train()
        stopping.end()            # from here they are noted again; Ctrl-C a second time breaks off what is written
    stopping.status(own)          # 128 + the signal's number, as a shell tells it

A child that the program forks has the signals as they were.
"""

from __future__ import annotations

import _thread
import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGXCPU", "SIGUSR1", "SIGUSR2", "SIGBREAK")  # batch systems send some of them
SIGNALS = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
INTERRUPTED = 130  # exit status after Ctrl-C
_SAME = 1.0  # s: what comes sooner is the same news again; `timeout` tells it to the process, and to its group


class Stopping:
    """Handles the signals that would end the process, those that are not ignored or handled otherwise."""

    def __init__(self) -> None:
        self.number = 0  # of the first signal that came
        self._runs = False  # the program
        self._last, self._process = -math.inf, os.getpid()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stopping:
        self._unraisable = sys.unraisablehook
        if threading.current_thread() is threading.main_thread():  # only that can handle signals
            sys.unraisablehook = self._swallowed
            for number in SIGNALS:
                if (before := signal.getsignal(number)) in (signal.SIG_DFL, signal.default_int_handler):
                    self._before[number] = before
                    signal.signal(number, self._came)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        sys.unraisablehook = self._unraisable

    def begin(self) -> None:
        """The program begins. Raises KeyboardInterrupt where a signal came before."""
        self._runs = True
        if self.number:
            raise KeyboardInterrupt

    def end(self) -> None:
        """The program is over."""
        self._runs = False
        self._leave_workers()

    def _leave_workers(self) -> None:
        """Let torch raise no error when a worker dies: each does when the group gets the signal."""
        if self._before and (child := getattr(signal, "SIGCHLD", 0)) and callable(signal.getsignal(child)):
            self._before.setdefault(child, signal.signal(child, _ignored))

    def status(self, own: int) -> int:
        """Return the exit status, of a program that had `own`: the signal's, unless it has dealt with Ctrl-C itself."""
        if not self.number or (self.number == signal.SIGINT and own != INTERRUPTED):
            return own
        return 128 + self.number

    def _came(self, number: int, _: object, clock: Any = time.monotonic) -> None:
        if os.getpid() != self._process:
            signal.signal(number, self._before[number])
            signal.raise_signal(number)
            return
        first, again = not self.number, bool(self.number) and clock() - self._last > _SAME
        self.number, self._last = self.number or number, clock()
        if first or again if self._runs else again and number == signal.SIGINT:
            self._leave_workers()
            raise KeyboardInterrupt

    def _swallowed(self, told: Any) -> None:
        """Send the signal again where Python ignores an error: in a finalizer, a callback, a hook of a fork."""
        if not (self._runs and self.number and isinstance(told.exc_value, KeyboardInterrupt)):
            self._unraisable(told)
        elif os.getpid() == self._process:
            self._last = -math.inf
            _thread.start_new_thread(self._send_again, ())

    def _send_again(self, sleep: Any = time.sleep) -> None:
        sleep(0.02)
        if hasattr(signal, "pthread_kill"):
            signal.pthread_kill(threading.main_thread().ident or 0, self.number)
        else:
            _thread.interrupt_main(signal.Signals(self.number))


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Let the handler of a signal that comes inside the block run after it: what starts processes loses none then."""
    came, process, before = list[int](), os.getpid(), dict[int, Any]()

    def hold(number: int, _: object) -> None:
        if os.getpid() == process:
            came.append(number)
        else:
            signal.signal(number, before[number])
            signal.raise_signal(number)

    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if callable(handler := signal.getsignal(number)):
                before[number] = handler
                signal.signal(number, hold)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came[:1]:
            signal.raise_signal(number)


def _ignored(*_: object) -> None:
    """Python itself complains where a signal is on its way and its handler is gone."""


@contextlib.contextmanager
def no_news_of_workers() -> Iterator[None]:
    """When a worker dies, torch raises an error wherever its main thread is: not while that builds the timeline."""
    child = getattr(signal, "SIGCHLD", 0)
    handler = signal.getsignal(child) if child else None
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(child, _ignored)
    try:
        yield
    finally:
        signal.signal(child, handler)


def leave_soon(status: int, within: float = 5.0) -> None:
    """Let the process end in so many seconds, though a thread of the program should still run then."""

    def leave() -> None:
        time.sleep(within)
        os._exit(status)

    _thread.start_new_thread(leave, ())
