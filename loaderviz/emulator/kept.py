"""Workers of a DataLoader that are started anew, and kept for the next one: their imports take 2 s of a processor each.

    with kept_workers():   # those that are started in the block, by the start method spawn
        iter(loader)

A process goes on to the next worker's work if all that it has got is torch's, Python's or loaderviz's. What a program
defines may leave something in its modules, which the next worker would find, and a new one would not.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import io
import os
import sys
import threading
from collections.abc import Callable
from multiprocessing import context, parent_process, reduction, resource_sharer, util
from multiprocessing.connection import Connection, Pipe, wait
from types import FunctionType
from typing import Any, NamedTuple

from loaderviz.imports import held

IDLE = 60.0  # s without work, after which a process ends
PATIENCE = 60.0  # s in which it takes its next work
GRACE = 1.0  # s that the threads of a worker have to end after it
KNOWN = sys.stdlib_module_names - {"__main__"} | {"torch", "numpy", "loaderviz"}
DONE, TAKEN = b"done", b"taken"
POPEN = "multiprocessing.popen_spawn_win32" if sys.platform == "win32" else "multiprocessing.popen_spawn_posix"

Process = tuple[Any, "Connection[Any, Any]"]  # as multiprocessing has it, and what orders go through
_idle = list[Process]()
_received = list[int]()  # by a process that was kept, with its order


def kept_workers() -> contextlib.AbstractContextManager[None]:
    """Let the workers that are spawned in a block be processes that were kept, or that are kept after their work."""
    module = importlib.import_module(POPEN)
    return held(module, "Popen", functools.partial(_start, module.Popen))


# In the process that is recorded


class _Popen:
    """Stands for a process while it is one worker: for multiprocessing it ends when the worker's work does."""

    def __init__(self, process: Process) -> None:
        self.returncode: int | None = None
        self._real, self._link = process

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def poll(self, flag: int = os.WNOHANG if hasattr(os, "WNOHANG") else 0) -> int | None:
        """Return the exit status: 0 when the work is done, that of the process if it has ended."""
        if self.returncode is None:
            try:
                if self._link.poll():
                    self._link.recv_bytes()
                    self.returncode = 0
                    _idle.append((self._real, self._link))
            except (EOFError, OSError):
                self.returncode = self._real.wait(GRACE)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait so many seconds, or as long as it takes."""
        if self.poll() is None and timeout != 0:
            wait([self._link, self._real.sentinel], timeout)
        return self.poll()

    def close(self) -> None:
        """The process may be another worker by now."""


class _Own(reduction.ForkingPickler):
    """Pickles what a worker gets, unless a program defines a part of it: that is a `TypeError`."""

    def reducer_override(self, value: Any) -> Any:
        named = value if isinstance(value, (type, FunctionType)) else type(value)
        if str(named.__module__).partition(".")[0] not in KNOWN:
            raise TypeError(named)
        return NotImplemented


class _Number(NamedTuple):
    """One that the system has for a file or a pipe, as it is pickled."""

    place: int

    def detach(self) -> int:
        """Return the one in this process."""
        return _received[self.place]


class _Handed:
    """Stands for a process that starts, where an order is pickled: what the system numbers is sent apart from it."""

    def __init__(self, real: Any) -> None:
        self._real, self.numbers = real, list[int]()

    def duplicate_for_child(self, number: int) -> int:
        """Return what the other process knows it by."""
        if sys.platform == "win32":
            return reduction.duplicate(number, self._real.sentinel) if self._real else number
        self.numbers.append(number)
        return len(self.numbers) - 1

    DupFd = _Number


def _start(usual: Callable[[Any], Any], process: Any) -> Any:
    """Return what multiprocessing holds of a process that starts, or of one that was kept."""
    while True:
        kept = _idle.pop() if _idle else None
        order = io.BytesIO()
        handed: Any = _Handed(kept and kept[0])
        context.set_spawning_popen(handed)
        try:
            with held(reduction, "ForkingPickler", _Own):
                reduction.dump((process._target, process._args, process._kwargs), order)
        except Exception:  # also what cannot be pickled at all: that is told as ever
            _idle.extend([kept] if kept else [])
            dismiss()
            return usual(process)
        finally:
            context.set_spawning_popen(None)
        if kept is None:
            here, there = Pipe()
            process._target = functools.partial(serve, there, IDLE, process._target)
            try:
                return _Popen((usual(process), here))
            finally:
                there.close()
        if _takes(kept, handed.numbers, order.getvalue()):
            return _Popen(kept)


def _takes(kept: Process, numbers: list[int], order: bytes) -> bool:
    """Tell whether a kept process has taken an order; it may have ended by now."""
    real, link = kept
    try:
        link.send(len(numbers))
        for number in numbers:
            reduction.send_handle(link, number, real.pid)
        link.send_bytes(order)
        if link.poll(PATIENCE):
            return link.recv_bytes() == TAKEN
        real.kill()
    except (EOFError, OSError):
        pass
    real.poll()
    return False


def dismiss() -> None:
    """End the processes that have no work."""
    leaving = [_idle.pop() for _ in range(len(_idle))]
    for _, link in leaving:
        link.close()
    for real, _ in leaving:
        if real.wait(5 * GRACE) is None:
            real.terminate()
            real.wait()


util.Finalize(None, dismiss, exitpriority=0)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)


# In the process that works


def serve(link: Connection[Any, Any], idle: float, work: Callable[..., Any], *args: Any, **options: Any) -> None:
    """Do the work of a worker, then that of the next ones, until none comes in so many seconds."""
    gc.freeze()  # what is imported stays
    while True:
        work(*args, **options)
        del work, args, options
        gc.collect()
        if not _rests():
            return
        try:
            link.send_bytes(DONE)
            parent = parent_process()
            if parent is None or link not in wait([link, parent.sentinel], idle):
                return
            _received[:] = [reduction.recv_handle(link) for _ in range(link.recv())]
            work, args, options = reduction.ForkingPickler.loads(link.recv_bytes())
            link.send_bytes(TAKEN)
        except (EOFError, OSError, KeyboardInterrupt):
            return


def _rests() -> bool:
    """Tell whether no thread is left of the work."""
    resource_sharer.stop(GRACE)
    others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    for thread in others:
        thread.join(GRACE)
    return not any(thread.is_alive() for thread in others)
