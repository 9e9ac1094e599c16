"""Where a thread of the program is: its line, and while a batch is fetched, what the data set does there.

    sampler = Sampler()          # a thread looks at this thread's stack every 20 ms
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
from contextlib import suppress
from itertools import accumulate, chain, repeat, starmap, tee
from operator import attrgetter
from time import perf_counter_ns
from types import FrameType
from typing import NamedTuple

from loaderviz.timeline import Cause

PERIOD = 0.02  # s between two looks
_HERE = os.path.dirname(__file__)
_FOREIGN = (*{*sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()}, "<frozen")
_FETCH, _COLLATE = (os.path.join("torch", "utils", "data", "_utils", name) for name in ("fetch.py", "collate.py"))
_LOADER = os.path.join("torch", "utils", "data")
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


def stack_of(thread: int) -> Stack:
    """Return the frames of a thread, the innermost first, each with its line; none of a thread that has ended.

    Iterators in C alone find them, so that no other thread runs meanwhile: while a thread goes on, `f_back` of its
    frames leads to frames of other calls, and to what are no frames (seen with Python 3.11).
    """
    leaf = map(dict.get, starmap(sys._current_frames, [()]), [thread])
    frames, same = tee(accumulate(chain(leaf, repeat("f_back")), getattr))
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


class Sampler:
    """Looks at the thread that made it, from another one, until `stop`.

    `own`: beside fetches only where the program itself works, as it runs on the emulator.
    """

    def __init__(self, own: bool = False) -> None:
        self._own = own
        self._thread, self._stopped, self._counts = threading.get_ident(), threading.Event(), Counter[Place]()
        self._looks, self.seen = False, list[tuple[int, str]]()  # all looks beside a fetch: ns of perf_counter_ns, line
        self._last: Place | None = None
        with suppress(RuntimeError):  # no thread may start here: then nothing is known
            threading.Thread(target=self._run, daemon=True, name="loaderviz sampler").start()

    def begin(self) -> None:
        """A fetch begins."""
        self._counts.clear()
        self._looks = True

    def most(self) -> Place | None:
        """The fetch ends: return where it was seen most often; for one between two looks, where the last one was."""
        self._looks = False
        if self._counts:
            self._last = max(self._counts, key=self._counts.__getitem__)
        return self._last

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(PERIOD):
            place, own = self._look()
            if place is not None and self._looks and place.cause:
                self._counts[place] += 1
            elif place is not None and not place.cause and own:
                self.seen.append((perf_counter_ns(), place.line))

    def _look(self) -> tuple[Place | None, bool]:
        """Return where the thread is; a frame that was kept until the next look would keep what it holds alive."""
        stack = stack_of(self._thread)
        return place_of(stack), not self._own or is_own(stack)
