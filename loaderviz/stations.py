"""Where a thread of the program is: its line, and while a batch is fetched, what the data set does there.

    sampler = Sampler()          # a thread looks at this thread's stack, at first every 5 ms, then every 20 ms
    sampler.begin(); fetch(); sampler.most()   # Place(cause=Cause.DECODE, line="data.py:12"), or None

Light: worker processes import it. A look takes 18 µs (10 calls deep) to 48 µs (50): at first 1 % of a core, then 0.2 %.
"""

from __future__ import annotations

import gc
import linecache
import os
import re
import site
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate, chain, compress, repeat, starmap, takewhile, zip_longest
from operator import attrgetter, call, truth
from time import perf_counter_ns, sleep
from types import CodeType
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

from loaderviz.timeline import Cause, Look

SAMPLING = "loaderviz sampler"  # the name of its thread
PERIOD, SOON, OFTEN = 0.02, 0.005, 200  # s between two looks, but between so many at first
TURN, HALF = 0.0001, 5e-7  # s; Python cuts off what is less than a microsecond
_HERE = os.path.join(os.path.dirname(__file__), "")
_PATHS = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts"))
_MADE = "<frozen", "<__array_function__", "<eval_with"  # of Python, numpy and torch
_FOREIGN = (*{*_PATHS, *site.getsitepackages(), site.getusersitepackages()}, *_MADE)
_INSTALLED = re.compile(  # on any machine, and as a profiler cuts it
    r".*[/\\](site|dist)-packages[/\\]|(torch(vision|data|audio)?|numpy|PIL|loaderviz)[/\\]"
).match
_LOADER = os.path.join("torch", "utils", "data")
_FETCH, _COLLATE = (os.path.join(_LOADER, "_utils", name) for name in ("fetch.py", "collate.py"))
_WITHIN = _FETCH, _COLLATE, os.path.join(_LOADER, "dataset.py")  # its Subset and ConcatDataset ask the program's own
_TRAINS = tuple(f"{os.sep}torch{os.sep}{name}" for name in ("nn", "optim", "autograd", "amp", "_dynamo", "_tensor.py"))
# What the line says, or whose code it is in: the first that fits
_SIGNS = (
    (Cause.THREAD, re.compile(r"\b(flock|lockf)\s*\(")),
    (Cause.INPUT, re.compile(r"\b(sleep|recv\w*|urlopen|acquire|execute|fetch(one|all|many)|select|poll)\s*\(")),
    (Cause.DECODE, re.compile(r"decode|loads\s*\(|imread|Image\.open|\.convert\(|read_image|from_buffer")),
    (Cause.READ, re.compile(r"\b(open|load|read\w*|memmap|fromfile|seek|extract\w*|getmember)\s*\(")),
)
_MODULES = (
    (Cause.THREAD, ("multiprocessing.synchronize", "filelock")),  # one process at a time
    (Cause.INPUT, ("socket", "ssl", "selectors", "http", "urllib3", "requests", "sqlite3", "threading", "queue")),
    (Cause.DECODE, ("PIL", "cv2", "torchvision.io", "imageio", "soundfile", "av")),
    (
        Cause.READ,
        ("numpy.lib", "torch.serialization", "zipfile", "tarfile", "gzip", "bz2", "lzma", "h5py"),
    ),
)


class Call(NamedTuple):
    """A function on a stack, where it is (None: an instruction of no line), and its module's names."""

    code: CodeType
    line: int | None
    names: dict[str, Any]

    @property
    def file(self) -> str:
        """Return the file it is in."""
        return self.code.co_filename

    @property
    def place(self) -> str:
        """Return where it is, as "file:line"."""
        return f"{self.file}:{self.line or self.code.co_firstlineno}"


Stack = list[Call]  # the innermost first


class Place(NamedTuple):
    """A line of the program, as "file:line", and what a fetch does there (`Cause.NONE` beside a fetch)."""

    cause: Cause
    line: str

    def seen(self, waited: int, busy: int) -> Place:
        """Return what a fetch does there that waited and was busy for so many ns: a query that computes is no wait."""
        waits = self.cause in (Cause.INPUT, Cause.THREAD)
        return self._replace(cause=Cause.TRANSFORM) if waits and waited < busy else self


@cache
def is_program(file: str) -> bool:
    """Tell whether a file is the program's own: neither Python's, nor installed, nor ours."""
    ours = file.startswith(_HERE) and "lessons" not in file
    return not (ours or file.startswith(_FOREIGN) or is_package(file))


def is_package(file: str) -> bool:
    """Tell whether a file is of an installed package, as it is written on any machine, with its folders or without."""
    return _INSTALLED(file) is not None


def _is_ours(file: str) -> bool:
    return file.startswith(_HERE) or f"{os.sep}torch{os.sep}" in file


def stack_of(thread: int | None = None) -> Stack:
    """Return what a thread is in, the innermost call first; nothing of a thread that has ended. None: the own one.

    Iterators in C alone follow its frames, and leave them before another thread runs: while a thread goes on, `f_back`
    of its frames leads to frames of other calls, and a frame that outlives its call is no frame any more. No garbage is
    collected meanwhile, since that may run Python (seen with Python 3.11: wrong frames, and crashes).
    """
    enabled: list[bool] = []
    begin = starmap(call, [(partial(enabled.extend, map(call, [gc.isenabled])),), (gc.disable,)])
    leaf = iter([sys._getframe(1)]) if thread is None else map(dict.get, starmap(sys._current_frames, [()]), [thread])
    frames = takewhile(truth, accumulate(chain[Any](leaf, repeat("f_back")), getattr))
    told = map(attrgetter("f_code", "f_lineno", "f_globals"), frames)
    stack: list[Any] = []
    try:
        stack.extend(chain[Any](begin, told, map(call, compress([gc.enable], enabled))))
    except BaseException:
        if enabled == [True]:
            gc.enable()
        raise
    return [Call(*each) for each in stack if each]


def place_of(stack: Stack) -> Place | None:
    """Return where a stack is: in the program's innermost line, else in a package's outermost; None: in none."""
    own, outer, fetches, collates = None, None, False, False
    for each, caller in zip_longest(stack, stack[1:]):
        if _LOADER in each.file and not each.file.endswith(_WITHIN):  # it waits for a batch, or runs a sampler
            break
        if own is None and is_program(each.file):
            own = each
        elif is_package(each.file) and not _is_ours(each.file):
            outer = each
        if caller is not None and caller.file.endswith(_FETCH):
            fetches, collates = True, each.file.endswith(_COLLATE) or each.code is _TIMED
            break
    named = own or outer
    if not (named or collates):
        return None
    line = named.place if named else ""
    if not fetches:
        return Place(Cause.NONE, line)
    if collates:
        return Place(Cause.COLLATE, line)
    inside = takewhile(lambda each: not is_program(each.file), stack)
    modules = [str(stack[0].names.get("__name__")), *(str(each.names.get("__name__")) for each in inside)]
    text = linecache.getline(named.file, named.line or named.code.co_firstlineno) if named else ""
    told = [cause for cause, sign in _SIGNS if sign.search(text)]
    found = [cause for module in modules for cause, names in _MODULES if module.startswith(names)]
    return Place((found or told or [Cause.TRANSFORM])[0], line)


def is_own(stack: Stack) -> bool:
    """Tell whether a stack is in the program's own code, or in what it calls beside torch and the emulator."""
    for each in stack:
        if is_program(each.file):
            return True
        if _is_ours(each.file):
            return False
    return False


def is_training(stack: Stack) -> bool:
    """Tell whether a stack is in what torch does of a step in Python, such as the call of a module, or an optimizer."""
    inside = takewhile(lambda each: not is_program(each.file), stack)
    return any(part in each.file for each in inside for part in _TRAINS)


COLLATES = Place(Cause.COLLATE, "")
_CLOCK_OF: Any = getattr(time, "pthread_getcpuclockid", None)  # the real ones: a recording may have others
_GET_TIME: Any = getattr(time, "clock_gettime_ns", None)


DRAWS = "draws "  # before the line of a look where a loop takes its next batch, and lets go of the one before


@dataclass
class Told:
    """What is known of one fetcher: where its fetches were last seen, what collates, and ns of that not yet told."""

    last: Place | None = None
    collate: Place = COLLATES
    owed: int = 0


class Sampler:
    """Looks at the thread that made it, from another one, until `stop`.

    A look stands for the time since the one before; `clock` [ns] tells when that was. `own`: beside fetches only where
    the program itself works, as it runs on the emulator. `often`: so many looks come sooner. Meanwhile Python's threads
    take turns sooner: with its usual 5 ms a look comes where C code lets go of the interpreter, and a loop in Python
    of 3 ms is never seen.
    """

    _former: ClassVar[float | None] = None  # s: how long turns are without a sampler; a forked process has its parent's
    wall, _sleep = staticmethod(perf_counter_ns), staticmethod(sleep)  # the real ones: a recording has others

    def __init__(self, clock: Callable[[], int] = perf_counter_ns, *, own: bool = False, often: int = OFTEN) -> None:
        self._clock, self._own, self._often = clock, own, often
        self._thread, self._stopped, self._counts = threading.get_ident(), False, Counter[Place]()
        self._looks, self.seen = False, list[Look]()  # all looks beside a fetch
        self._draws = set[str]()
        self._fetchers, self._told = WeakKeyDictionary[Any, Told](), Told()
        self._began = self._collated = 0  # ns
        self._usual = Sampler._former = self._former or sys.getswitchinterval()
        sys.setswitchinterval(min(TURN, self._usual) + HALF)
        self._turn = sys.getswitchinterval()
        with suppress(RuntimeError):  # no thread may start here: then nothing is known
            threading.Thread(target=self._run, daemon=True, name=SAMPLING).start()

    def begin(self) -> None:
        """A fetch begins."""
        self._counts.clear()
        self._looks, self._began, self._collated = True, self.wall(), 0

    def by(self, fetcher: Any) -> None:
        """It is the fetch of this fetcher."""
        with suppress(TypeError):  # nothing is kept of one that cannot be told from another
            self._told = self._fetchers.setdefault(fetcher, Told())

    def collated(self, code: CodeType | None, time: int) -> None:
        """What makes batches of samples has taken so many ns, as is known of each fetch without a look."""
        self._collated += time
        if code is not None and is_program(code.co_filename) and not self._told.collate.line:
            self._told.collate = Place(Cause.COLLATE, f"{code.co_filename}:{code.co_firstlineno}")

    def draws(self, stack: Stack) -> None:
        """A loop takes its batches where this stack is in the program; there it lets go of the one before, too."""
        self._draws.update([each.place for each in stack if is_program(each.file)][:1])

    def most(self) -> Place | None:
        """The fetch ends: return where it was seen most often; for one between two looks, where the last one was.

        So many of the fetches are said to be collating that these take as long as collating takes in all.
        """
        self._looks = False
        told, took = self._told, self.wall() - self._began
        told.owed += self._collated
        order = [place for place, _ in self._counts.most_common()]
        told.last = next((place for place in order if place.cause != Cause.COLLATE), told.last)
        told.collate = next((place for place in order if place.cause == Cause.COLLATE and place.line), told.collate)
        if 2 * told.owed > took:
            told.owed -= took
            return told.collate
        return told.last

    def stop(self) -> None:
        """Look no more. Without a lock: a forked process stops its parent's, whose thread may have held one."""
        if not self._stopped and sys.getswitchinterval() == self._turn:  # the program has set no other
            sys.setswitchinterval(self._usual + HALF)
        Sampler._former, self._stopped = None, True

    def _run(self) -> None:
        by_work = self._own and _CLOCK_OF  # an emulated program is timed by its thread's processor time [ns]
        clock = partial(_GET_TIME, _CLOCK_OF(self._thread)) if by_work else self.wall
        before, began, since = clock(), -1, 0
        for period in chain(repeat(SOON, self._often), repeat(PERIOD)):
            self._sleep(period)
            if self._stopped:
                return
            place, own = self._look()
            now, moment = clock(), self._clock()
            lasts, before = now - before, now  # where C code keeps the interpreter, a look comes late
            began, since = moment, since if moment == began else 0  # an emulated clock stands still meanwhile
            if place is not None and self._looks and place.cause:
                self._counts[place] += 1
            elif place is not None and not place.cause and own:
                line = DRAWS * (place.line in self._draws) + place.line
                self.seen.append(Look(moment + since if self._own else moment - lasts, lasts, line))
            since += lasts

    def _look(self) -> tuple[Place | None, bool]:
        """Return where the thread is, and whether that is to be counted."""
        stack = stack_of(self._thread)
        return place_of(stack), is_own(stack) if self._own else not is_training(stack)


def timed(collate: Callable[..., object], sampler: Sampler | None) -> Callable[..., object]:
    """Return what makes batches of samples, by which `place_of` knows it, and whose time the sampler is told."""

    def make(samples: object) -> object:
        if sampler is None:
            return collate(samples)
        began = sampler.wall()
        try:
            return collate(samples)
        finally:
            sampler.collated(getattr(collate, "__code__", None), sampler.wall() - began)

    return make


_TIMED = timed(list, None).__code__


@contextmanager
def timing(fetcher: Any, sampler: Sampler | None) -> Iterator[None]:
    """Time what makes the batches of one of torch's fetchers, in this block."""
    collate = fetcher.collate_fn
    if sampler is not None:
        sampler.by(fetcher)
    fetcher.collate_fn = timed(collate, sampler)
    try:
        yield
    finally:
        fetcher.collate_fn = collate
