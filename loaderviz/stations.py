"""Where a thread of the program is: its line, and while a batch is fetched, what the data set does there.

    sampler = Sampler()          # a thread looks at this thread's stack, soon every 20 ms
    sampler.begin(); fetch(); sampler.most()   # Place(cause=Cause.DECODE, line="data.py:12"), or None

Light: worker processes import it. A look takes some 30 µs, so that it is 0.2 % of a core.
"""

from __future__ import annotations

import linecache
import os
import re
import site
import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import accumulate, chain, repeat, starmap, takewhile, tee
from operator import attrgetter
from time import perf_counter_ns, sleep
from types import FrameType
from typing import Any, NamedTuple

from loaderviz.timeline import Cause, Look

PERIOD, SOON, OFTEN = 0.02, 0.005, 200  # s between two looks, but between so many at first
TURN, HALF = 0.0001, 5e-7  # s; Python cuts off what is less than a microsecond
_HERE = os.path.dirname(__file__)
_FOREIGN = (*{*sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()}, "<frozen")
_FETCH, _COLLATE = (os.path.join("torch", "utils", "data", "_utils", name) for name in ("fetch.py", "collate.py"))
_LOADER = os.path.join("torch", "utils", "data")
_TRAINS = tuple(f"{os.sep}torch{os.sep}{name}" for name in ("nn", "optim", "autograd", "amp", "_dynamo", "_tensor.py"))
# What the line says, or whose code it is in: the first that fits
_SIGNS = (
    (Cause.INPUT, re.compile(r"\b(sleep|recv\w*|urlopen|acquire|execute|fetch(one|all|many)|select|poll)\s*\(")),
    (Cause.DECODE, re.compile(r"decode|imread|Image\.open|\.convert\(|read_image|from_buffer")),
    (Cause.READ, re.compile(r"\b(open|load|loads|read\w*|memmap|fromfile|seek)\s*\(")),
)
_MODULES = (
    (Cause.INPUT, ("socket", "ssl", "selectors", "http", "urllib3", "requests", "sqlite3", "threading", "queue")),
    (Cause.DECODE, ("PIL", "cv2", "torchvision.io", "imageio", "soundfile", "av")),
    (Cause.READ, ("numpy.lib", "torch.serialization", "json", "pickle", "zipfile", "tarfile", "gzip", "h5py")),
)


Stack = list[tuple[FrameType, int]]  # frames and their lines


class Place(NamedTuple):
    """A line of the program, as "file:line", and what a fetch does there (`Cause.NONE` beside a fetch)."""

    cause: Cause
    line: str


def is_program(file: str) -> bool:
    """Tell whether a file is the program's own: neither Python's, nor installed, nor ours."""
    return not file.startswith(_FOREIGN) and not (file.startswith(_HERE) and "lessons" not in file)


def stack_of(thread: int | None = None) -> Stack:
    """Return the frames of a thread, the innermost first, each with its line; none of a thread that has ended.

    Without a thread those of the caller. This function's own frame would keep the list, and so all of them, alive.
    Iterators in C alone find them, so that no other thread runs meanwhile: while a thread goes on, `f_back` of its
    frames leads to frames of other calls, and to what are no frames (seen with Python 3.11).
    """
    leaf = iter([sys._getframe(1)]) if thread is None else map(dict.get, starmap(sys._current_frames, [()]), [thread])
    frames, same = tee(accumulate(chain[Any](leaf, repeat("f_back")), getattr))
    seen = list[tuple[FrameType, int | None]]()
    with suppress(AttributeError):  # the frame beyond the last one is None, and has no line
        seen.extend(zip(frames, map(attrgetter("f_lineno"), same)))  # noqa: B905
    return [(frame, line or frame.f_code.co_firstlineno) for frame, line in seen]  # some instructions are of no line


def place_of(stack: Stack) -> Place | None:
    """Return where a stack is; None where nothing of the program is on it."""
    line, fetches, collates = "", False, False
    for depth, (frame, number) in enumerate(stack):
        file = frame.f_code.co_filename
        if _LOADER in file and not file.endswith((_FETCH, _COLLATE)):  # it waits for a batch
            return None
        if not line and is_program(file):
            line, text = f"{file}:{number}", linecache.getline(file, number)
        caller = stack[depth + 1][0] if depth + 1 < len(stack) else None
        if caller is not None and caller.f_code.co_filename.endswith(_FETCH):
            fetches, collates = True, _is_collate(frame, caller)
            break
    if not (line or collates):
        return None
    if not fetches:
        return Place(Cause.NONE, line)
    if collates:
        return Place(Cause.COLLATE, line)
    module = str(stack[0][0].f_globals.get("__name__"))
    told = [cause for cause, sign in _SIGNS if sign.search(text)]
    found = [cause for cause, names in _MODULES if module.startswith(names)]
    return Place((found or told or [Cause.TRANSFORM])[0], line)


def _is_collate(frame: FrameType, fetch: FrameType) -> bool:
    collate = getattr(fetch.f_locals.get("self"), "collate_fn", None)
    code = getattr(collate, "__code__", None) or getattr(getattr(type(collate), "__call__", None), "__code__", None)  # noqa: B004
    return frame.f_code is code or frame.f_code.co_filename.endswith(_COLLATE)


def is_own(stack: Stack) -> bool:
    """Tell whether a stack is in the program's own code, or in what it calls beside torch and the emulator."""
    for frame, _ in stack:
        file = frame.f_code.co_filename
        if is_program(file):
            return True
        if file.startswith(_HERE) or f"{os.sep}torch{os.sep}" in file:
            return False
    return False


def is_training(stack: Stack) -> bool:
    """Tell whether a stack is in what torch does of a step in Python, such as the call of a module, or an optimizer."""
    files = takewhile(lambda file: not is_program(file), (frame.f_code.co_filename for frame, _ in stack))
    return any(part in file for file in files for part in _TRAINS)


class Sampler:
    """Looks at the thread that made it, from another one, until `stop`.

    A look stands for the time since the one before, as told by `clock` [ns]. `own`: beside fetches only where the
    program itself works, as it runs on the emulator. `often`: so many looks come sooner. Meanwhile Python's threads
    take turns sooner: with its usual 5 ms a look comes where C code lets go of the interpreter, and a loop in Python
    of 3 ms is never seen.
    """

    _wall, _sleep = staticmethod(perf_counter_ns), staticmethod(sleep)  # the real ones: a recording has others

    def __init__(self, clock: Callable[[], int] = perf_counter_ns, *, own: bool = False, often: int = OFTEN) -> None:
        self._clock, self._own, self._often = clock, own, often
        self._thread, self._stopped, self._counts = threading.get_ident(), False, Counter[Place]()
        self._looks, self.seen = False, list[Look]()  # all looks beside a fetch
        self._last: Place | None = None
        self._collate = Place(Cause.COLLATE, "")
        self._began = self._collated = self._owed = 0  # ns
        self._usual = sys.getswitchinterval()
        sys.setswitchinterval(min(TURN, self._usual) + HALF)
        self._turn = sys.getswitchinterval()
        with suppress(RuntimeError):  # no thread may start here: then nothing is known
            threading.Thread(target=self._run, daemon=True, name="loaderviz sampler").start()

    def begin(self) -> None:
        """A fetch begins."""
        self._counts.clear()
        self._looks, self._began, self._collated = True, self._wall(), 0

    def timed(self, collate: Callable[..., object]) -> Callable[..., object]:
        """Return what makes batches of samples, timed: that is known of each fetch, and needs no look."""
        code = getattr(collate, "__code__", None)
        if code is not None and is_program(code.co_filename):
            self._collate = Place(Cause.COLLATE, f"{code.co_filename}:{code.co_firstlineno}")

        def make(samples: object) -> object:
            began = self._wall()
            try:
                return collate(samples)
            finally:
                self._collated += self._wall() - began

        return make

    @contextmanager
    def timing(self, fetcher: Any) -> Iterator[None]:
        """Time what makes the batches of one of torch's fetchers, in this block."""
        collate = fetcher.collate_fn
        fetcher.collate_fn = self.timed(collate)
        try:
            yield
        finally:
            fetcher.collate_fn = collate

    def most(self) -> Place | None:
        """The fetch ends: return where it was seen most often; for one between two looks, where the last one was.

        So many of the fetches are said to be collating that these take as long as collating takes in all.
        """
        self._looks = False
        took = self._wall() - self._began
        self._owed += self._collated
        seen = {place: count for place, count in self._counts.items() if place.cause != Cause.COLLATE}
        made = [place for place in self._counts if place.cause == Cause.COLLATE and place.line]
        self._collate = made[-1] if made else self._collate
        self._last = max(seen, key=seen.__getitem__) if seen else self._last
        if 2 * self._owed > took:
            self._owed -= took
            return self._collate
        return self._last

    def stop(self) -> None:
        """Look no more. Without a lock: a forked process stops its parent's, whose thread may have held one."""
        if not self._stopped and sys.getswitchinterval() == self._turn:  # the program has set no other
            sys.setswitchinterval(self._usual + HALF)
        self._stopped = True

    def _run(self) -> None:
        before = self._wall()
        for period in chain(repeat(SOON, self._often), repeat(PERIOD)):
            self._sleep(period)
            if self._stopped:
                return
            place, own = self._look()
            now = self._wall()
            lasts, before = min(now - before, round(2 * period * 1e9)), now
            if place is not None and self._looks and place.cause:
                self._counts[place] += 1
            elif place is not None and not place.cause and own:
                self.seen.append(Look(self._clock(), lasts, place.line))

    def _look(self) -> tuple[Place | None, bool]:
        """Return where the thread is; a frame that was kept until the next look would keep what it holds alive."""
        stack = stack_of(self._thread)
        return place_of(stack), is_own(stack) if self._own else not is_training(stack)
