"""Patches: replace names while a recording runs, and put every one of them back, also after an exception.

A replacement may outlive its recording: in a module that imported it inside the block, in a default argument, in a
closure. So each one stands aside when its recording is over, and does what its name does then.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import signal
import subprocess
import sys
import threading
import time
import timeit
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from signal import getsignal
from signal import signal as set_handler
from types import BuiltinFunctionType, FrameType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch

from loaderviz.emulator.threads import Turn
from loaderviz.emulator.threads.python import BETWEEN, TURN, Lock, is_ours, is_real
from loaderviz.emulator.torch import internals
from loaderviz.emulator.torch.tensors import AT_REST, MEMBERS, is_on_device, seen_outside
from loaderviz.errors import NotModelledError
from loaderviz.imports import ELSEWHERE, SPAWNED, function_of, program_of, rank_of
from loaderviz.stopping import Later, faced, is_own

if TYPE_CHECKING:
    from loaderviz.emulator.torch.session import Session

MISSING = object()
SECOND = 10**9
CLOCKS = ("perf_counter", "monotonic", "time")
NEED_REAL_TIME = """
multiprocessing threading queue selectors socket subprocess asyncio concurrent logging ssl http urllib zmq tornado
ipykernel jupyter_client traitlets tqdm _pytest hypothesis torch.distributed torch.multiprocessing
"""
REAL_TIME = tuple(NEED_REAL_TIME.split())
LONG = tuple(f"loaderviz.emulator.{name}" for name in ("threads", "torch.patches", "torch.dataloader"))  # they wait
KNOWN = 30  # names in a row; before those there are no new ones
READ = 50  # ns of host time that a look at the clock costs, so that a loop that waits for it comes to an end
PATIENCE = 1.0  # s of real time without any call of the emulated GPU
PUSH: tuple[Any, Any] = _python_dispatch._push_mode, torch.overrides._push_mode  # a mode of operators, of functions
INSTALLED = str(Path(torch.__file__).parents[1])
QUESTIONS: dict[Any, Any] = {
    MEMBERS["device"].__get__: torch.device("cuda", 0),
    MEMBERS["is_cuda"].__get__: True,
    MEMBERS["is_cpu"].__get__: False,
    torch.Tensor.get_device: 0,
}


class Patches:
    """A stack of replaced attributes; `restore` undoes them in reverse order.

    `pricing` has those that only price what runs, which are undone before the others where a recording stops early.
    """

    def __init__(self, pricing: Patches | None = None) -> None:
        self.pricing = pricing or self
        self.live = True  # the recording runs: replacements act, instead of what they replace
        self._undo: list[Callable[[], object]] = []
        self._swaps: list[tuple[Any, Any]] = []  # (before, stand-in)
        self._places: list[Place] = []  # where stand-ins of functions stand
        self._loaded: set[str] = set()  # names of the modules that were there when the recording began

    def set(self, owner: Any, name: str, value: Any) -> Any:
        """Set `owner.name`; what was there before (also nothing) comes back on `restore`. Return what stands there.

        A function or class stands there as a stand-in of its own, which looks as before, and which does what
        `owner.name` does then when the recording is over.
        """
        before = getattr(owner, name, MISSING)
        if isinstance(value, staticmethod):
            value = staticmethod(self._stand_in(owner, name, before, value.__func__))
        elif isinstance(value, (FunctionType, MethodType, type)) and before is not MISSING:
            # beside one that stands alone, what it stands in for would answer as if it were not there
            value = value if getattr(value, "stands_alone", False) else self._stand_in(owner, name, before, value)
        self.at_end(functools.partial(_put_back, owner, name, vars(owner).get(name, MISSING)))
        setattr(owner, name, value)
        return value

    def at_end(self, undo: Callable[[], object]) -> None:
        """Let `restore` call `undo`, and call it again if an interrupt came meanwhile. Say so before there is need."""
        self._undo.append(undo)

    def function(self, owner: Any, name: str, value: Any) -> None:
        """Like `set`, and also for those who imported the name: see `swap_everywhere`. Absent names are skipped."""
        before = getattr(owner, name, MISSING)
        if before is not MISSING:
            self._swaps.append((before, self.set(owner, name, value)))

    def set_all(self, owner: Any, values: Mapping[str, Any]) -> None:
        """Like `set`, of several names."""
        for name, value in values.items():
            self.set(owner, name, value)

    def around(self, owner: Any, *names: str) -> Callable[[Callable[..., Any]], None]:
        """Return a decorator: the function takes the place of `owner.name`, and gets that before its arguments.

        So it does of each of several names.
        """

        def put(replacement: Callable[..., Any]) -> None:
            place = self.function if isinstance(owner, ModuleType) else self.set
            for name in names:
                if before := getattr(owner, name, None):
                    place(owner, name, MethodType(replacement, before))

        return put

    def swap_everywhere(self, skip: Callable[[str], bool]) -> None:
        """Replace what `function` replaced in loaded modules that hold it by name, but those that `skip` takes."""
        self._loaded = set(sys.modules)
        swaps = {id(before): value for before, value in self._swaps}
        known = _known(frozenset(swaps))
        for namespace, name, value in _entries(swaps, [module for module in self._loaded if not skip(module)], known):
            self.at_end(functools.partial(namespace.__setitem__, name, value))
            namespace[name] = swaps[id(value)]

    def restore(self) -> None:
        """Put all back, also in modules imported since. After an interrupt a second call does the rest."""
        if self.pricing is not self:
            self.pricing.restore()
        self.live = False
        for place in self._places:
            place.value = None
        while self._undo:
            self._undo[-1]()
            self._undo.pop()
        swaps = {id(value): before for before, value in self._swaps}
        for namespace, name, value in _entries(swaps, _imported_since(self._loaded) if self._loaded else (), {}):
            namespace[name] = swaps[id(value)]
        self._swaps.clear()

    def _stand_in(self, owner: Any, name: str, before: Any, value: Any) -> Any:
        """Return a function or class of its own that is `value` while the recording runs, then `owner.name`."""
        is_class = isinstance(value, type) and hasattr(type(before), "__instancecheck__")
        lasts = isinstance(owner, (ModuleType, type)) and isinstance(before, (FunctionType, BuiltinFunctionType))
        place = _kept_place(owner, name, before) if lasts and not is_class else Place(owner, name, before)
        self._places.append(place)
        place.value = value
        if is_class:
            place.stand_in = _class_for(place, value)
        elif place.stand_in is None:

            @functools.wraps(before)
            def stand_in(*args: Any, **kwargs: Any) -> Any:
                return (place.value or place.now())(*args, **kwargs)

            place.stand_in = stand_in
        return place.stand_in


class Place:
    """Where a stand-in stands: `owner.name`, where `before` stood. `value` acts for it, None after its recording."""

    __slots__ = ("before", "name", "owner", "stand_in", "value")

    def __init__(self, owner: Any, name: str, before: Any) -> None:
        self.owner, self.name, self.before = owner, name, before
        self.value: Any = None
        self.stand_in: Any = None

    def now(self) -> Any:
        """Return what does the work now."""
        if self.value is not None:
            return self.value
        current = getattr(self.owner, self.name, self.before)
        return self.before if current is self.stand_in else current  # it is just about to be put back


_kept_place = functools.lru_cache(2**12)(Place)  # the next recording takes what stood in for a function of this one


def _put_back(owner: Any, name: str, value: Any) -> None:
    if value is not MISSING:
        setattr(owner, name, value)
    elif name in vars(owner):
        delattr(owner, name)


def _class_for(place: Place, value: Any) -> Any:
    before, now = place.before, place.now

    class StandInType(type(value)):  # type: ignore[misc]
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return now()(*args, **kwargs) if cls is stand_in else super().__call__(*args, **kwargs)

        def __instancecheck__(cls, instance: Any) -> bool:
            return super().__instancecheck__(instance) or (cls is stand_in and isinstance(instance, (before, now())))

        def __subclasscheck__(cls, other: Any) -> bool:
            return super().__subclasscheck__(other) or (cls is stand_in and issubclass(other, (before, now())))

        @property
        def __signature__(cls) -> inspect.Signature:
            return inspect.signature(value)

    stand_in = stands_for(before)(StandInType(before.__name__, (value,), {}))
    return stand_in


def _imported_since(loaded: set[str]) -> set[str]:
    """Return the modules that are not `loaded`, and `__main__`. New ones come last in `sys.modules`.

    To look at each name would cost a worker that is forked a page of memory for each.
    """
    found, known = {"__main__"}, 0
    for name in reversed(sys.modules):
        known = known + 1 if name in loaded else 0
        if known > KNOWN:
            break
        if not known:
            found.add(name)
    return found


@functools.lru_cache(8)
def _known(wanted: frozenset[int]) -> dict[str, tuple[int, list[str]]]:
    """Return what `_entries` knows of installed modules when it looks for values of these ids: nothing at first."""
    return {}


def _entries(
    wanted: dict[int, Any], modules: Iterable[str], known: dict[str, tuple[int, list[str]]]
) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Iterate over the names in these modules whose value has one of the ids in `wanted`.

    Of an installed module it notes in `known` how many names it has, and which of them were found: while it has as many
    as then, it is asked for those alone.
    """
    for module in modules:
        names = getattr(sys.modules.get(module), "__dict__", None)
        if not isinstance(names, dict):
            continue
        count, found = known.get(module, (-1, []))
        if count != len(names):
            found = [name for name, value in names.copy().items() if id(value) in wanted]  # a thread may add a name
            if module.startswith("torch.") or str(names.get("__file__")).startswith(INSTALLED):
                known[module] = len(names), found
        for name in found:
            if id(value := names.get(name)) in wanted:
                yield names, name, value


def stands_for(original: type) -> Callable[[Any], Any]:
    """Return a decorator: the class looks like `original`, which it stands in for; see `Patches` and `Disguised`."""

    def dress(cls: Any) -> Any:
        for name in ("__name__", "__qualname__", "__module__", "__doc__"):
            setattr(cls, name, getattr(original, name))
        cls.original = original
        return cls

    return dress


class Disguised:
    """The base of what stands for objects of torch's classes."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """Pass for what it stands for in isinstance checks, whenever that name was imported."""
        return vars(type(self)).get("original", type(self))


# The clock. Inside a recording `time` follows the virtual clock of the host, for the thread that records. Other threads
# and the standard library's own waiting (multiprocessing, queues, sockets) keep the real clock, or they would wait for
# ever.


def install_clock(session: Session, patches: Patches) -> None:
    """Replace the clocks and `sleep` in `time` (and for those who imported them by name)."""

    def replace(name: str, base: int, unit: int) -> None:
        @patches.around(time, name)
        def clock(real: Callable[[], Any]) -> Any:
            if not is_virtual(session, sys._getframe(1)):
                return real()
            session.enter("time")
            session.runtime.now += READ
            session.leave()
            now = base + session.runtime.now + (session.meter.wall() if session.fetching else session.since_stop())
            return now if unit == 1 else now / unit

    for name in CLOCKS:
        base = getattr(time, name + "_ns")()
        replace(name, base, SECOND)
        replace(name + "_ns", base, 1)

    @patches.around(time, "sleep")
    def sleep(real: Callable[[float], None], seconds: float) -> None:
        if not is_virtual(session, sys._getframe(1)):
            real(seconds)
            return
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        own = session.meter.not_counted() if session.fetching else contextlib.nullcontext()
        with own, session.calling("time.sleep"):
            session.sleep(round(seconds * SECOND))

    _install_timers(patches)


def _install_timers(patches: Patches) -> None:
    """Let those who time code have the clock, which their functions hold since they were defined."""
    real = timeit.default_timer
    for function in (timeit.timeit, timeit.repeat, timeit.Timer.__init__):
        given = (time.perf_counter if each is real else each for each in function.__defaults__ or ())
        patches.set(function, "__defaults__", tuple(given))
    patches.function(timeit, "default_timer", time.perf_counter)
    if benchmark := sys.modules.get("torch.utils.benchmark"):

        def synchronized() -> float:
            torch.cuda.synchronize()
            return timeit.default_timer()

        @patches.around(benchmark.Timer, "__init__")  # up to torch 2.12 it decides when it is imported whether to wait
        def init(
            begin: Any, self: Any, stmt: str = "pass", setup: str = "pass", start: str = "", *args: Any, **more: Any
        ) -> None:
            if not args:
                more.setdefault("timer", synchronized)
            begin(self, stmt, setup, start, *args, **more)


def is_virtual(session: Session, caller: Any) -> bool:
    """Tell whether a call from this frame is the program's own, on the recording thread."""
    if not session.alive or threading.get_ident() != session.thread:
        return False
    while caller.f_code.co_filename == __file__:  # a stand-in calls for its caller
        caller = caller.f_back
    name = caller.f_globals.get("__name__") or ""
    if name.startswith(BETWEEN) and session.scheduler.gives_turns:  # a pool runs the program's `time.sleep`
        return not session.fetching
    return not name.startswith(REAL_TIME)


# Where the emulated GPU is out of reach, in a second thread or a forked process, using it is an error, at the call.


class Guard(TorchFunctionMode):
    """Refuses, on threads that are not recorded, functions that touch the device: `refuse` raises. Others pass."""

    def __init__(self, refuse: Callable[[str], object]) -> None:
        super().__init__()
        self._refuse = refuse
        self.touches = looked_at  # in a fetch of a worker its meter asks in its place

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function, or refuse it. Questions about a device tensor are answered, its values are out of reach."""
        if func is torch.device:
            return device_named(*args, **(kwargs or {}))
        if self.touches(func, args, kwargs):
            if func in QUESTIONS:
                return QUESTIONS[func]
            if getattr(func, "__name__", "") != "__get__":  # its shape, dtype, …
                self._refuse(f"torch.{getattr(func, '__name__', func)}")
        return func(*args, **(kwargs or {}))


def looked_at(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> bool:
    """`touches_device`, of a call past our modes: tensors of the host that it gets may be written."""
    for tensor in (arg for arg in args if isinstance(arg, torch.Tensor)):
        seen_outside(tensor)
    return touches_device(func, args, kwargs)


def touches_device(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> bool:
    """Tell whether a call has to do with the device: names it, or gets a tensor that is on it."""
    if isinstance(func, type):  # torch.device("cuda") only names it
        return False
    if kwargs and (type(kwargs.get("device")) is int or any(map(_is_of_device, kwargs.values()))):
        return True
    if func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
        return True
    return func is torch.Tensor.cuda or any(map(_is_of_device, args))


def device_named(*args: Any, **kwargs: Any) -> torch.device:
    """`torch.device`: an index alone names a GPU, of which a CPU build of torch would say that there is none."""
    index = args[0] if args else kwargs.get("device")
    if len(args) + len(kwargs) == 1 and type(index) is int:
        return torch.device("cuda", index)
    return torch.device(*args, **kwargs)


def _is_of_device(value: Any) -> bool:
    """Tell whether this is a tensor of the device or a name of it, or a list with one of these in it."""
    if isinstance(value, (list, tuple)):
        return any(map(_is_of_device, value))
    if isinstance(value, str):
        return value.startswith("cuda")
    return is_on_device(value) or (isinstance(value, torch.device) and value.type == "cuda")


def watch_threads(session: Session, patches: Patches) -> None:
    """Let each thread that is started while the recording runs have its turns, or a guard, which says what is wrong."""
    scheduler = session.scheduler

    def leave_thread() -> None:
        leave_modes(session.functions_mode, session.operators)
        PUSH[1](Guard(session.enter))

    scheduler.leave_thread = leave_thread
    scheduler.at_rest = lambda: AT_REST if session.aside is AT_REST else None

    @patches.around(threading.Thread, "start")
    def start(begin: Callable[..., None], thread: Any) -> None:
        run, turn = thread.run, None
        if scheduler.gives_turns and session.in_recording_thread() and not session.fetching and is_ours():
            turn = None if is_real(thread) else scheduler.start(thread.name)
            setattr(thread, TURN, turn)

        def guarded() -> None:
            session.threads.add(threading.get_ident())
            try:
                guard = Guard(session.enter) if session.alive else contextlib.nullcontext()
                with in_turn(session, turn) if turn else guard:
                    run()
            except NotModelledError as problem:
                session.refused_elsewhere(problem)
                raise
            finally:
                session.threads.discard(threading.get_ident())
                del thread.run  # the thread's own method again
                if turn is not None:
                    scheduler.end(turn)

        thread.run = guarded
        try:
            begin(thread)
        except RuntimeError:  # there can be no more threads
            if turn is not None:
                scheduler.forget(turn)
            raise


@contextlib.contextmanager
def in_turn(session: Session, turn: Turn) -> Iterator[None]:
    """What a thread that has turns is in, from its first one on: the modes of the session, if that goes on."""
    session.scheduler.enter(turn)
    if session.scheduler.alive:
        modes = (session.operators if session.aside is None else None), session.functions_mode
        for mode, push in zip(modes, PUSH, strict=True):
            if mode is not None:
                push(mode)
        session.leave()
    try:
        yield
    finally:
        leave_modes(session.functions_mode, session.operators)


def leave_modes(functions: Any, operators: Any) -> list[Any]:
    """Take these modes from the calling thread; return those of functions that were above them.

    Not by the modes' own exit: it takes whatever is on top, and an interrupt may have come in the middle of it.
    """
    taken = []
    while functions in torch.overrides._get_current_function_mode_stack():
        taken.append(internals.pop_torch_function_stack())
    while operators in _python_dispatch._get_current_dispatch_mode_stack():
        _python_dispatch._pop_mode()
    return taken


NO_GPU = f"{ELSEWHERE} and has no emulated GPU: call it in the recorded process to have both"
ONE_RANK = (
    "{}, in a process of its own, which is not recorded and has no emulated GPU. The emulated machine has one GPU, so "
    "one rank: let the launcher start its recording, as torchrun --nproc-per-node 1 -m loaderviz run train.py does"
)


def watch_processes(session: Session, patches: Patches) -> None:
    """Say what the program runs in other processes, which have no emulated GPU; ranks of a training are refused."""

    @patches.around(BaseProcess, "start")
    def start(begin: Callable[..., None], process: Any) -> None:
        if function := function_of(process):
            text = NO_GPU.format(function)
            if text not in session.notes and getattr(process, "_target", None).__module__ == SPAWNED:
                session.warn(text)  # ranks: they may take long, and the note comes at the end
            session.note(text)
        begin(process)

    @patches.around(subprocess.Popen, "__init__")
    def popen(begin: Callable[..., None], process: Any, args: Any = None, *more: Any, **options: Any) -> None:
        if rank := rank_of(args, options.get("env")):
            raise session.refused_elsewhere(NotModelledError(ONE_RANK.format(rank)))
        program = program_of(args)
        if program and not program.startswith(INSTALLED):
            session.note(NO_GPU.format(Path(program).name))
        begin(process, args, *more, **options)


def stop_waits(session: Session, patches: Patches) -> None:
    """Let a wait for a thread that was refused end: by a signal that nobody else uses, or by looking now and then."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_kill"):
        stop_by_looking(session, patches)
        return

    def stop(*_: object) -> None:
        if session.refused:
            raise session.refused

    patches.at_end(functools.partial(signal.signal, signal.SIGURG, signal.getsignal(signal.SIGURG) or signal.SIG_DFL))
    signal.signal(signal.SIGURG, stop)
    session.stops = True


def call_handlers_between(patches: Patches) -> None:
    """Let the program's handlers of signals run between calls of the emulated GPU: inside one they find half a tensor.

    Of PyTorch itself a call is over before Python looks for a signal.
    """
    if threading.current_thread() is not threading.main_thread():
        return

    def outside(frame: FrameType | None) -> FrameType | None:
        found = None
        while patches.live and frame is not None:
            name, frame = str(frame.f_globals.get("__name__")), frame.f_back
            if name.startswith("loaderviz.emulator.") and not name.startswith(LONG):
                found = frame
        return found

    def put_back() -> None:
        for number in signal.valid_signals():
            if isinstance(handler := getsignal(number), Later):
                set_handler(number, handler.handler)

    patches.at_end(put_back)
    for number in signal.valid_signals():
        if is_own(handler := getsignal(number)):
            set_handler(number, Later(handler, outside))
    faces = faced(
        lambda _, handler: Later(handler, outside) if is_own(handler) else handler,
        lambda _, handler: handler.handler if isinstance(handler, Later) else handler,
    )
    for name, stand_in in faces.items():
        patches.function(signal, name, stand_in)


class PatientLock:
    """The lock of one wait of the thread that records: taken in slices of `PATIENCE`, between which it looks.

    Of queues, events, futures and barriers, which wait with a `Condition`: a slice of its own could miss who notifies.
    """

    def __init__(self, lock: Any, session: Session) -> None:
        self._lock, self._session, self.release = lock, session, lock.release

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it as a lock is taken. Raises what was refused to another thread."""
        if not blocking or timeout >= 0:
            return bool(self._lock.acquire(blocking, timeout))
        while not self._lock.acquire(timeout=PATIENCE):
            if self._session.alive and self._session.refused:
                raise self._session.refused
        return True


def stop_by_looking(session: Session, patches: Patches) -> None:
    """Let the thread that records look each `PATIENCE` s whether another was refused, where no signal ends its wait."""

    @patches.around(threading.Thread, "join")
    def join(original: Callable[..., None], thread: Any, timeout: float | None = None) -> None:
        while timeout is None and session.in_recording_thread() and not session.scheduler.here() and thread.is_alive():
            original(thread, PATIENCE)
            if thread.is_alive() and session.refused:
                raise session.refused
        original(thread, timeout)

    allocate: Callable[[], Any] = threading._allocate_lock  # type: ignore[attr-defined]

    def waiter() -> Any:
        lock = allocate()
        return PatientLock(lock, session) if session.in_recording_thread() and type(lock) is not Lock else lock

    patches.set(threading, "_allocate_lock", waiter)


def stop_waiting(session: Session) -> None:
    """Raise the other thread's error in the one that records, by a signal, once that does nothing more for a while."""
    while session.alive:
        now = session.runtime.now
        time.sleep(PATIENCE)
        if session.alive and session.runtime.now == now:
            main = session.scheduler.main
            signal.pthread_kill(main.ident if main else session.thread, signal.SIGURG)


def refuse_in_fork(call: str) -> NoReturn:
    """Raise what CUDA says in a forked process."""
    raise RuntimeError(
        f"{call}: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
        "'spawn' start method"
    )
