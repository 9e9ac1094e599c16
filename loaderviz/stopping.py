"""What ends a program from outside: Ctrl-C, a closed terminal, `timeout`, docker stop, a batch system's limit.

    with Stopping() as stopping:  # a signal is noted, and what is being done is finished
        stopping.begin()          # from here the first one raises KeyboardInterrupt, in the program
        train()
        stopping.end()            # from here they are noted again; Ctrl-C a second time breaks off what is written
    stopping.status(own)          # 128 + the signal's number, as a shell tells it

A child that the program forks has the signals as they were. What the program handles itself is its own until its end:
it sees no handler of ours, and the default that it sets is ours again.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
from _thread import interrupt_main, start_new_thread
from collections.abc import Callable, Iterator
from signal import getsignal
from signal import signal as set_handler
from types import FrameType
from typing import Any, NoReturn, TypeGuard

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGXCPU", "SIGUSR1", "SIGUSR2", "SIGBREAK")  # batch systems send some of them
SIGNALS = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
INTERRUPTED = 130  # exit status after Ctrl-C
OURS = ("loaderviz.", "torch.", "multiprocessing.", "_signal")  # modules whose handlers are none of the program's
_SAME = 1.0  # s: what comes sooner is the same news again; `timeout` tells it to the process, and to its group


class Stopping:
    """Handles the signals that would end the process, those that are not ignored or handled otherwise."""

    def __init__(self) -> None:
        self.number = 0  # of the first signal that came
        self._runs = self._over = self._heard = False  # the program; a signal, at any time
        self._last, self._process = -math.inf, os.getpid()
        self._before: dict[int, Any] = {}
        self._at_begin: dict[int, Any] = {}
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Stopping:
        self._unraisable = sys.unraisablehook
        if threading.current_thread() is threading.main_thread():  # only that can handle signals
            sys.unraisablehook = self._swallowed
            for number in SIGNALS:
                if (before := getsignal(number)) in (signal.SIG_DFL, signal.default_int_handler):
                    self._before[number] = before
                    set_handler(number, self._came)
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()
        for number, handler in self._before.items():
            set_handler(number, handler)
        sys.unraisablehook = self._unraisable

    def begin(self) -> None:
        """The program begins. Raises KeyboardInterrupt where a signal came before."""
        self._runs = True
        if self._before:
            self._at_begin = {number: getsignal(number) for number in signal.valid_signals()}
            for name, stand_in in faced(self._taken, self._shown).items():
                self._undo.callback(setattr, signal, name, getattr(signal, name))
                setattr(signal, name, stand_in)
        if self.number:
            raise KeyboardInterrupt

    def end(self) -> None:
        """The program is over, and its own handlers of signals are, too: one could break off what is written."""
        self._runs, self._over = False, True
        self._undo.close()
        for number, before in self._at_begin.items():
            if (own := getsignal(number)) is not before and callable(own):
                ours = number in self._before
                self._before.setdefault(number, own)
                set_handler(number, self._came if ours else _ignored)
        self._leave_workers()

    def _taken(self, number: int, handler: Any) -> Any:
        """Return ours for what would end the process without a word."""
        default = handler == signal.SIG_DFL and os.getpid() == self._process
        return self._came if default and number in self._before else handler

    def _shown(self, number: int, handler: Any) -> Any:
        return self._before[number] if handler == self._came else handler

    def _leave_workers(self) -> None:
        """Let torch raise no error when a worker dies: each does when the group gets the signal."""
        if self._before and (child := getattr(signal, "SIGCHLD", 0)) and callable(getsignal(child)):
            self._before.setdefault(child, set_handler(child, _ignored))

    def status(self, own: int) -> int:
        """Return the exit status, of a program that had `own`: the signal's, unless it has dealt with Ctrl-C itself."""
        if not self.number or (self.number == signal.SIGINT and own != INTERRUPTED):
            return own
        return 128 + self.number

    def _came(self, number: int, _: object, clock: Any = time.monotonic) -> None:
        if os.getpid() != self._process:
            set_handler(number, self._before[number])
            signal.raise_signal(number)
            return
        first, again = not self._heard, self._heard and clock() - self._last > _SAME
        self._heard, self._last = True, clock()
        self.number = self.number or (0 if self._over else number)
        if first or again if self._runs else again and number == signal.SIGINT:
            self._leave_workers()
            raise KeyboardInterrupt

    def _swallowed(self, told: Any) -> None:
        """Send the signal again where Python ignores an error: in a finalizer, a callback, a hook of a fork."""
        here = os.getpid() == self._process
        if not (self._runs and isinstance(told.exc_value, KeyboardInterrupt) and (self.number or not here)):
            self._unraisable(told)
        else:
            self._last = -math.inf
            send_again(self.number if here else signal.SIGINT, 0.02)


@contextlib.contextmanager
def before_exit(leave: Callable[[int], int], lost: Callable[[], None]) -> Iterator[None]:
    """Let `os._exit` call `leave` first, with its status; that returns the one to take.

    Nothing of the program runs on, such as its `finally`. A child ends as ever; so does a thread, which calls `lost`.
    """
    process, plain = os.getpid(), os._exit

    def stand_in(status: int) -> NoReturn:
        if os.getpid() == process and os._exit is stand_in and isinstance(status, int):
            os._exit = plain
            try:
                if threading.current_thread() is threading.main_thread():
                    status = leave(status)
                else:
                    lost()
            finally:
                plain(status)
        plain(status)

    os._exit = stand_in
    try:
        yield
    finally:
        os._exit = plain


def send_again(number: int, after: float, sleep: Callable[[float], None] = time.sleep) -> None:
    """Send the main thread a signal after so many seconds. Raises RuntimeError where no thread can be started."""

    def send() -> None:
        sleep(after)
        if hasattr(signal, "pthread_kill"):
            signal.pthread_kill(threading.main_thread().ident or 0, number)
        else:
            interrupt_main(signal.Signals(number))

    start_new_thread(send, ())


# What the program sees of signals: its own handlers

Face = Callable[[int, Any], Any]


def faced(taken: Face, shown: Face) -> dict[str, Callable[..., Any]]:
    """Return stand-ins of two functions of `signal`: a handler is `taken` for another one, and `shown` as another."""
    put, get = signal.signal, signal.getsignal

    def set_shown(signalnum: int, handler: Any) -> Any:
        return shown(signalnum, put(signalnum, taken(signalnum, handler)))

    def get_shown(signalnum: int) -> Any:
        return shown(signalnum, get(signalnum))

    return {"signal": set_shown, "getsignal": get_shown}


class Later:
    """A handler of the program's. Where `outside` names a frame of the program it is called when that goes on."""

    def __init__(self, handler: Callable[..., Any], outside: Callable[[FrameType | None], FrameType | None]) -> None:
        self.handler, self._outside, self._process = handler, outside, os.getpid()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Call it, or let Python's tracing of that frame call it; beside a debugger the signal is sent again."""
        program = self._outside(frame) if os.getpid() == self._process else None

        def tell(frame: FrameType, *_: object) -> None:
            sys.settrace(None)
            frame.f_trace, frame.f_trace_opcodes = None, False
            self.handler(number, frame)

        if program is None:
            self.handler(number, frame)
        elif sys.gettrace() is None:
            program.f_trace, program.f_trace_opcodes = tell, True
            sys.settrace(_ignored)
        else:
            send_again(number, 0.002)


def is_own(handler: Any) -> TypeGuard[Callable[..., Any]]:
    """Tell whether the program made this handler."""
    return callable(handler) and not str(getattr(handler, "__module__", "")).startswith(OURS)


@contextlib.contextmanager
def signals_held(after: Callable[[int], None] = signal.raise_signal) -> Iterator[None]:
    """Let the handler of a signal that comes inside the block run after it: what starts processes loses none then.

    `after` raises it: at once, or where what is around the block must not be interrupted either, later.
    """
    came, process, before = list[int](), os.getpid(), dict[int, Any]()

    def hold(number: int, _: object) -> None:
        if os.getpid() == process:
            came.append(number)
        else:
            set_handler(number, before[number])
            signal.raise_signal(number)

    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if callable(handler := getsignal(number)):
                before[number] = handler
                set_handler(number, hold)
    try:
        yield
    finally:
        for number, handler in before.items():
            set_handler(number, handler)
        for number in came[:1]:
            after(number)


def _ignored(*_: object) -> None:
    """Python itself complains where a signal is on its way and its handler is gone."""


@contextlib.contextmanager
def no_news_of_workers() -> Iterator[None]:
    """When a worker dies, torch raises an error wherever its main thread is: not while that builds the timeline."""
    child = getattr(signal, "SIGCHLD", 0)
    handler = getsignal(child) if child else None
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    set_handler(child, _ignored)
    try:
        yield
    finally:
        set_handler(child, handler)


def leave_soon(status: int, within: float = 5.0) -> None:
    """Let the process end in so many seconds, though a thread of the program should still run then."""

    def leave() -> None:
        time.sleep(within)
        os._exit(status)

    start_new_thread(leave, ())
