"""Clock: inside a recording, `time` follows the virtual clock of the host, for the thread that records.

Other threads and the standard library's own waiting (multiprocessing, queues, sockets) keep the real clock, or they
would wait for ever.
"""

from __future__ import annotations

import sys
import threading
import time
import timeit
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from loaderviz.timeline import Kind

if TYPE_CHECKING:
    from loaderviz.emulator.torch_cuda.patching import Patches
    from loaderviz.emulator.torch_cuda.session import Session

SECOND = 10**9
CLOCKS = ("perf_counter", "monotonic", "time")
REAL_TIME = (
    "multiprocessing", "threading", "queue", "selectors", "socket", "subprocess", "asyncio", "concurrent", "logging",
    "ssl", "http", "urllib", "zmq", "tornado", "ipykernel", "jupyter_client", "traitlets", "tqdm", "_pytest",
    "hypothesis", "torch.distributed", "torch.multiprocessing",
)  # fmt: skip
READ = 50  # ns of host time that a look at the clock costs, so that a loop that waits for it comes to an end


def install(session: Session, patches: Patches) -> None:
    """Replace the clocks and `sleep` in `time` (and for those who imported them by name)."""
    for name in CLOCKS:
        real = getattr(time, name)
        real_ns = getattr(time, name + "_ns")
        base = real_ns()
        patches.function(time, name, _clock(session, real, base, SECOND))
        patches.function(time, name + "_ns", _clock(session, real_ns, base, None))
    patches.function(time, "sleep", _sleep(session, time.sleep))
    patches.function(timeit, "default_timer", time.perf_counter)
    _install_benchmark(patches)


def _install_benchmark(patches: Patches) -> None:
    """`torch.utils.benchmark.Timer` waits for the device; up to torch 2.12 it decides so when it is imported."""
    benchmark = sys.modules.get("torch.utils.benchmark")
    if benchmark is None:
        return
    begin = benchmark.Timer.__init__

    def synchronized() -> float:
        torch.cuda.synchronize()
        return timeit.default_timer()

    def init(
        self: Any, stmt: str = "pass", setup: str = "pass", global_setup: str = "", timer: Any = synchronized,
        *args: Any, **kwargs: Any,
    ) -> None:  # fmt: skip
        begin(self, stmt, setup, global_setup, timer, *args, **kwargs)

    patches.set(benchmark.Timer, "__init__", init)


def is_virtual(session: Session, caller: Any) -> bool:
    """Tell whether a call from this frame is the program's own, on the recording thread."""
    if not session.alive or threading.get_ident() != session.thread:
        return False
    module = caller.f_globals.get("__name__") or ""
    return not module.startswith(REAL_TIME)


def _clock(session: Session, real: Callable[[], Any], base: int, divisor: int | None) -> Callable[[], Any]:
    def clock() -> Any:
        """Return the virtual time, from the moment at which the recording began."""
        if not is_virtual(session, sys._getframe(1)):
            return real()
        session.enter("time")
        session.runtime.now += READ
        session.leave()
        now = base + session.runtime.now
        return now if divisor is None else now / divisor

    return clock


def _sleep(session: Session, real: Callable[[float], None]) -> Callable[[float], None]:
    def sleep(seconds: float) -> None:
        """Let virtual time pass."""
        if not is_virtual(session, sys._getframe(1)):
            real(seconds)
            return
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        session.enter("time.sleep")
        session.runtime.batch, session.runtime.source = session.batches.current, session.source()
        session.runtime.host_work(round(seconds * SECOND), "time.sleep", Kind.OPERATOR)
        session.leave()

    return sleep
