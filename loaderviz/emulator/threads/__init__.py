"""Threads of a recorded program in virtual time: real ones, of which one runs at a time, always the earliest.

The thread that has the baton runs, all others wait for theirs. At a *point* (a call of the GPU, a lock that is taken,
a sleep, a start, a join) it goes to the thread with the smallest (clock, number); so what threads do to each other
happens in the order of virtual time, and a program gives the same timeline however this machine schedules it. Between
two points a thread runs ahead: what it lets go of says from when on that is free. The device is worked out as far as
the earliest thread has come, so that who waits for it does not hide what others put in before.

A finalizer of garbage in a cycle may end threads and take locks; so Python looks for such garbage when virtual time
says so (`Scheduler.collect`): by itself it would do so after so many objects, and a first run makes more of them.

python.py has what threads wait with: locks, and by them conditions, events, queues and futures.
"""

from __future__ import annotations

import _thread
import copy
import gc
import os
import re
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from heapq import heappop, heappush
from itertools import count
from time import perf_counter_ns
from typing import Any

from loaderviz import words
from loaderviz.emulator.device import Stream
from loaderviz.emulator.hazards.between_threads import BetweenThreads
from loaderviz.emulator.host import OwnTime
from loaderviz.emulator.runtime import Runtime
from loaderviz.emulator.threads.gil import Gil, Line
from loaderviz.errors import LoadervizError, NotModelledError
from loaderviz.stations import is_program, place_of, stack_of
from loaderviz.timeline import Cause, Kind

UNNAMED = re.compile(r"^(Thread|ThreadPoolExecutor)-\d+(_\d+)?")  # numbered through the whole process
LOOK, STUCK = 0.25, 6  # s between two looks at a thread that comes to no point; how many without work are a wait
WORKS, SPINS = 2_000_000, 120  # ns of processor time between two looks: it does something; how many are a loop
ELSEWHERE = "subprocess", "socket", "selectors", "ssl"  # waits that others end
SLOW = 40  # how many looks they may take
PROCESSES = "multiprocessing"  # the main thread may wait for them as long
WAITS_FOR_FILES = "socket", "selectors", "ssl", "http", "urllib", "aiohttp", "fsspec"  # for the program
STANDARD = ("threading", "queue", "concurrent", "asyncio", "contextlib", *WAITS_FOR_FILES)  # what it waits with
MADE_OF_LOCKS = {"threading", "queue", "concurrent.futures._base", "concurrent.futures.thread", "contextlib"}
MODEL = "the program's threads take turns in virtual time; of Python one of them runs at a time (R53)"
FROM_OUTSIDE = (
    "a thread waited for a socket, a pipe, another process or a thread that takes no turns: that took as long as on "
    "this machine, so that the timeline may depend on it"
)
OUTSIDE = "a thread that is not recorded ended a wait of one that is: the timeline depends on when it did"
UNSEEN = (
    "{} {} that the recording cannot see, while threads that could end it have no turn: a bare lock (one made before "
    "record(), by `_thread`, or in C), a process, or a variable that a loop looks at. {} It is at\n{}"
)
HINT = "Wait for a lock, queue, event or future that is made inside the block, or let the loop call time.sleep."
IN_A_FETCH = "waits for a thread of the program while it fetches"
FETCH_ELSEWHERE = "that is not modelled where a second thread uses the GPU. Fetch in the thread itself"
LET_GO = (
    "from {} on the program's threads ran in real time, and what they do is not in the timeline, which may depend on "
    "this machine; who waits for them waits as long as here, and a loop that looks takes no time: {}"
)
NOWHERE = "an unknown line"
CIRCLE = "when the recording ended, these threads waited for each other, and would do so for ever: {}"
SLICE, JITTER = 2e-4, 1_000_000  # s between two looks whether something has come; a call so short [ns] has not waited
YOUNG, OLD = 200, 4000  # points between two collections of young garbage; after how many comes the first one of all
ASKS, EAGER, PAUSE = 50, 1000, 1000  # ns that a look costs; after how many without a pause [ns] each costs more


class DeadlockError(LoadervizError, RuntimeError):
    """Each thread of the recorded program waits for another one: who waits for whom, and where, and which failed."""


class HostThread:
    """What each thread of the host has for itself. A `Session` has that of the thread that runs; others rest here."""

    def __init__(self, stream: Stream) -> None:
        self.thread = threading.get_ident()
        self.stream = stream  # the current one
        self.stream_history: list[tuple[int, Stream]] = [(0, stream)]  # (autograd sequence number, stream)
        self.own = OwnTime()  # of the program, where it is measured
        self.functions = 0  # of torch that run, one in the other, where it is measured
        self.quiet = 0  # above 0: operators are seen and not counted (our own bookkeeping)
        self.aside: Any = (
            None  # the operators' mode, while data are fetched; ON_HOST while nothing is emulated; AT_REST
        )
        self.call: tuple[Any, Any] = ((), {})  # the arguments of the torch function that runs
        self.calls = self.counted = 0  # how many there were, and at which of them `Host.python` was charged
        self.line, self.line_of = "", -1  # the program's line of a call of torch, and which call's it is
        self.priced = 0  # above 0: inside a module, backward or an optimizer's step, where `Host` alone counts
        self.target: Any = None  # the device where a factory call wants its result
        self.check: Any = None  # the `check.Checker`, if calls are to be made again on the CPU
        self.prefetching: list[Any] = []  # annotations that are open


class Turn:
    """A thread of the program, and when its scheduler gives it its turn: at `at` ns, if it is in no `line`."""

    def __init__(self, scheduler: Scheduler, number: int, name: str, parts: list[tuple[Any, dict[str, Any]]]) -> None:
        self.scheduler, self.number, self.name, self.parts = scheduler, number, name, parts
        self.baton = _thread.allocate_lock()
        self.baton.acquire()
        self.ident = self.at = self.version = self.looks = self.looked = 0
        self.line: Line | None = None  # who waits for the same, this one among them
        self.why, self.place = "", ""
        self.problem: BaseException | None = None  # to be raised where it waits
        self.came: Callable[[], Any] = bool  # tells whether what it waits for, of files, is there
        self.joiners = Line()
        self.joiners.owner = self
        self.known: Any = None  # what it knew of the work of all, when it ended
        self.done = False

    def rest(self) -> None:
        """Keep what is the thread's own, while others run."""
        for owner, values in self.parts:
            values.update((name, getattr(owner, name)) for name in values)

    def resume(self) -> None:
        """Put it back."""
        for owner, values in self.parts:
            vars(owner).update(values)


class Scheduler:
    """Gives the baton of one recording. `alive` until it ends; nothing is scheduled before a second thread starts.

    `session` is a `HostThread` with a `runtime`; `others` has what else belongs to the running thread: objects, and for
    each the names of what is a thread's own, with what a new one begins with.
    """

    def __init__(self, session: Any, others: list[tuple[Any, dict[str, Any]]]) -> None:
        self.session, self._others = session, others
        self.runtime: Runtime = session.runtime
        self.alive, self.gives_turns = True, False  # the latter where `python.install` lets threads have them
        self.may_wake: Callable[[threading.Thread], bool]  # tells whether one outside the recording may end a wait
        self.at_rest: Callable[[], object] = lambda: None  # tells what a new thread's `aside` is
        self.leave_thread: Callable[[], object] = bool  # called in a thread that goes on when the recording is over
        self.running: Turn | None = None  # who has the baton
        self.main: Turn | None = None
        self.outside: deque[Line] = deque()  # lines that a thread outside the recording has moved
        self.points, self._young, self._old = 0, YOUNG, OLD  # how many there were, and after how many to collect
        self._collects: tuple[int, ...] = ()  # Python's own thresholds, while it does not collect by them
        self.shares_gpu = False  # a second thread has used it
        self.let_go_for = ""  # why threads have turns no more, if they had
        self._turns: list[Turn] = []  # of threads that have not ended
        self._failed: list[str] = []  # what errors ended others
        self._heap: list[tuple[int, int, int, Turn]] = []
        self._numbers = count()
        self._for_device: list[tuple[Callable[[], bool], Turn]] = []
        self.files, self._ahead = Line(), 0  # who waits for sockets and pipes; virtual less real time then [ns]
        self._wanted: Turn | None = None  # was interrupted: it is the next, whatever its time is
        self._problem: BaseException | None = None  # it ends all threads
        self.gil = Gil(self)

    # Who runs

    def here(self) -> Turn | None:
        """Return the turn of the thread that calls; None where time is real: outside, in a fetch, with one thread."""
        turn = self.running
        if turn is None or turn.ident != threading.get_ident() or not self.alive or self.session.fetching:
            return None
        return turn

    def begin(self) -> Turn:
        """A second thread is about to start: from now on time passes from thread to thread."""
        if self.main is None:
            if gc.isenabled() and not self.session.measured:
                gc.collect()  # what is older than this block
                self._collects = gc.get_threshold()
                gc.set_threshold(0)
            own = HostThread(self.session.stream)
            self.main = self.running = Turn(self, next(self._numbers), "the main thread", self._parts(own, 0))
            self.main.ident = threading.get_ident()
            self._turns.append(self.main)
            self.gil.take()
            self.runtime.scheduler = self
            self.session.alone, self.session.stop = 0, None
            self.session.note(MODEL)
            if self.runtime.races:
                self.runtime.order.divide(BetweenThreads(self.runtime.order))
            _thread.start_new_thread(self._watch, ())
        assert self.running
        return self.running

    def is_alone(self) -> bool:
        """Tell whether the thread that calls is the program's only one, and no other one could end its wait."""
        me = threading.current_thread()
        here = self.main is None and self.gives_turns and self.is_recorded()
        return here and not any(each is not me and self.may_wake(each) for each in threading.enumerate())

    def start(self, name: str) -> Turn:
        """Return the turn of a new thread, whose clock begins where the caller's is."""
        self.begin()
        with self.seen():
            self.runtime.now += self.runtime.host.thread_start
        number, runtime = next(self._numbers), self.runtime
        name = UNNAMED.sub(f"thread {number}", name)
        own = HostThread(runtime.default_stream)
        if self.order:
            self.order.start(number)
        own.check, own.aside = self.session.check, self.at_rest()
        turn = Turn(self, number, name, self._parts(own, runtime.builder.lane(name, "host", "thread", number)))
        self._turns.append(turn)
        self._ready(turn, runtime.now)
        return turn

    def _parts(self, own: HostThread, lane: int) -> list[tuple[Any, dict[str, Any]]]:
        """Return the objects that have something of each thread, and the values of a new one."""
        clock = {"now": self.runtime.now, "batch": -1, "source": "", "rested": 0, "main": lane}
        parts = [(self.session, vars(own)), (self.runtime, clock), (self.runtime.shared, {"_main": self.runtime.now})]
        return parts + [(owner, copy.copy(values)) for owner, values in self._others]

    def enter(self, turn: Turn) -> None:
        """The new thread itself waits for its first turn."""
        turn.ident = turn.parts[0][1]["thread"] = threading.get_ident()
        self._wait(turn)
        self.gil.take()

    def end(self, turn: Turn) -> None:
        """The thread that runs ends: who joins it goes on, and the baton is handed over."""
        turn.done = True
        if not self.alive or self.running is not turn:
            return
        if error := sys.exception():
            told = reversed(traceback.extract_tb(error.__traceback__))
            at = next((f"{each.filename}:{each.lineno}" for each in told if is_program(each.filename)), NOWHERE)
            self._failed.append(f"{turn.name} ended with {type(error).__name__}: {error} at {at}")
        self.session.give_back()
        if self.order:
            turn.known = self.order.end(turn.number)
        self.gil.drop()
        self._turns.remove(turn)
        self.wake(turn.joiners, everybody=True)
        self._hand_over(self._next() or self._stuck())

    def forget(self, turn: Turn) -> None:
        """It could not be started."""
        turn.version += 1
        turn.done = True
        if self.order:
            self.order.end(turn.number)
        self._turns.remove(turn)

    def point(self) -> None:
        """What follows is seen by others: let all who are earlier go first."""
        turn = self.here()
        if turn is None:
            return
        self.points += 1
        self.session.give_back()
        now = self.runtime.now
        others = self._for_device or self._wanted or self.outside or self.files
        if others or (self._heap and self._heap[0][:2] < (now, turn.number)):
            self._ready(turn, now)
            self._pass(turn)
        self.gil.share()

    def collect(self) -> None:
        """Look for garbage in cycles now and then, mostly among young objects, and in the main thread if it has turns.

        A finalizer that another thread is in may outlast the recording, and nothing is collected in the next one.
        """
        due = self._young + (0 if self.running is self.main else OLD)
        if self._collects and self.points >= due and gc.isenabled() and self.here():
            self._young, old = self.points + YOUNG, self.points >= self._old
            self._old = 2 * self.points if old else self._old
            gc.collect(2 if old else 0)

    def works(self, duration: int, gil: bool = True) -> None:
        """The thread that runs has so many ns to do: Python, which needs the interpreter's lock, or C without it."""
        if self.here() is None:
            self.runtime.now += duration
        elif gil and self.gil.interval:
            while duration > 0:
                piece = self.gil.piece(duration)
                self.runtime.now += piece
                duration -= piece
                self.point()
        else:
            with self.without_gil():
                self.runtime.now = self.runtime.shared.work(self.runtime.now, duration)

    @contextmanager
    def without_gil(self) -> Iterator[None]:
        """Around what runs in C for a while, or waits: other threads run Python meanwhile."""
        self.gil.drop()
        yield
        self.point()
        self.gil.take()

    @contextmanager
    def seen(self) -> Iterator[None]:
        """Around what others see: a point first; what it takes is no part of the program's own time."""
        self.session.catch_up()
        self.point()
        try:
            yield
        finally:
            self.session.leave()

    def look(self) -> None:
        """The program looks whether something is so: that takes time, and more and more in a loop that only looks."""
        if turn := self.here():
            with self.seen():
                turn.looks = turn.looks + 1 if self.runtime.now - turn.looked < PAUSE else 0
                self.runtime.now += max(ASKS, self.runtime.host.lock, ASKS * (turn.looks - EAGER))
                turn.looked = self.runtime.now

    def wait(self, line: Line, call: str, until: int | None = None, cause: Cause = Cause.THREAD) -> bool:
        """Stand in a line until somebody moves it, or until a time [ns]; tell whether it was moved.

        Raises what ends the program, such as a `DeadlockError`.
        """
        self.gil.drop()
        moved = self.stand(line, self._place(call), until, cause)
        self.gil.take()
        self.collect()
        return moved

    def stand(
        self,
        line: Line,
        place: tuple[str, str],
        until: int | None = None,
        cause: Cause = Cause.THREAD,
        first: bool = False,
    ) -> bool:
        """Wait in a line, as in `wait`, for the lock of the interpreter, too; `first`: before all others there."""
        turn, runtime = self.running, self.runtime
        assert turn
        since = runtime.now
        turn.line, (turn.why, turn.place) = line, place
        line.insert(0 if first else len(line), turn)
        if until is not None:
            self._ready(turn, until)
        try:
            self._pass(turn)
        finally:
            moved, turn.line = turn.line is None, None
            if not moved:
                line.remove(turn)
            turn.version += 1  # also where an error has ended the wait
        if self.alive and turn.at > since:
            self.waited(turn.at, place, cause)
        return moved

    def waited(self, until: int, place: tuple[str, str], cause: Cause) -> None:
        """The thread that runs has waited until a time [ns], in a call and at a line."""
        runtime, (call, line) = self.runtime, place
        since, runtime.now = runtime.now, until
        runtime.shared.main_rests(since, until)
        batch = self.session.batches.current
        runtime.builder.span(since, until, runtime.main, Kind.WAIT, call, batch, cause=cause, source=line)

    def wait_for_files(self, came: Callable[[], Any], call: str, until: int | None) -> None:
        """Wait until something has come from a socket, a pipe or a process, or until a time [ns].

        Virtual time passes no faster than real time meanwhile, unless it comes from a thread that has turns.
        """
        ahead = self.runtime.now - perf_counter_ns()
        self._ahead = min(self._ahead, ahead) if self.files else ahead
        if turn := self.here():
            turn.came = came
            self.wait(self.files, call, until, Cause.INPUT)
        else:
            with self.in_real_time(call, until):
                while not came() and (until is None or ahead + perf_counter_ns() < until):
                    REAL_SLEEP(SLICE)

    @contextmanager
    def in_real_time(self, call: str, until: int | None = None, least: float = 0) -> Iterator[None]:
        """Around what waits for others than threads with turns: it is charged, from `least` ns and `until` at most."""
        began = perf_counter_ns()
        try:
            yield
        finally:
            took = perf_counter_ns() - began
            if took > least and self.is_recorded():
                end = self.runtime.now + took
                if until is None or end < until:
                    self.session.note(FROM_OUTSIDE)
                self.waited(min(end, until or end), self._place(call), Cause.INPUT)

    def is_recorded(self) -> bool:
        """Tell whether the thread that calls is charged what it waits: none outside, in a fetch, or after all steps."""
        session = self.session
        return session.alive and session.in_recording_thread() and not (session.fetching or session.since_stop())

    def _place(self, call: str) -> tuple[str, str]:
        """Return the call of the standard library by which the program waits, and the program's line."""
        frame: Any = sys._getframe(2)
        while frame and (module := frame.f_globals.get("__name__") or "").startswith((*STANDARD, "loaderviz.emulator")):
            call = call if module.startswith(("loaderviz", "contextlib")) else frame.f_code.co_qualname
            frame = frame.f_back
        return call, f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""

    def wake(self, line: Line, *, everybody: bool = False, spread: int = 0) -> Turn | None:
        """Let the first who stands in a line go on, or everybody, a wake-up after now; return the last of these.

        The wake-up takes `spread` thousandths longer than most.
        """
        if self.here() is None:
            if self.alive:
                self.outside.append(line)
            return None
        turn = None
        for turn in line[:] if everybody else line[:1]:
            self._move(turn, self.runtime.now + self.runtime.host.thread_wake * (1000 + spread) // 1000)
        return turn

    def took(self, line: Line) -> bool:
        """Note who has taken a lock, and where."""
        frame: Any = sys._getframe(2)
        while frame.f_globals.get("__name__") in MADE_OF_LOCKS and frame.f_back:
            frame = frame.f_back
        recorded = threading.get_ident() == self.session.thread
        line.owner, line.taken = (self.running, (frame.f_code, frame.f_lineno)) if recorded else (None, None)
        return True

    def wait_for_device(self, over: Callable[[], bool]) -> None:
        """Let others go on until something of the device is over, as far as they can come before that.

        The caller sets the clock, and ends the wait by `gil.take`.
        """
        turn = self.here()
        if turn and not over():
            self.gil.drop()
            self._for_device.append((over, turn))
            self._pass(turn)

    # Who knows of whose work

    @property
    def order(self) -> BetweenThreads | None:
        """What threads know of each other's work; None where no races are looked for."""
        return self.runtime.order.threads

    def tell(self, before: Any = None) -> Any:
        """Return what the thread that runs knows, and what was told before; None where nobody asks."""
        return self.order.tell(before) if self.order and self.here() else before

    def learn(self, told: Any) -> None:
        """The thread that runs comes after who told this."""
        if self.order and self.here():
            self.order.learn(told)

    # The baton

    def _ready(self, turn: Turn, at: int) -> None:
        turn.version += 1
        heappush(self._heap, (at, turn.number, turn.version, turn))

    def _next(self) -> Turn | None:
        """Take out whose turn it is. Before that the device does what comes first, for those who wait for it."""
        heap, device = self._heap, self.runtime.device
        while True:
            while self.outside:
                line = self.outside.popleft()
                self.session.note(OUTSIDE)
                for turn in line[:1]:
                    self._move(turn, self.runtime.now)
            if self._wanted:
                turn, self._wanted = self._wanted, None
                self._for_device = [each for each in self._for_device if each[1] is not turn]
                turn.version, turn.at = turn.version + 1, self.runtime.now
                return turn
            while heap and heap[0][3].version != heap[0][2]:
                heappop(heap)
            first = heap[0][0] if heap else self.runtime.now if self._for_device else None
            if self.files and self._come(first):
                continue
            waiting, self._for_device = self._for_device, []
            for over, turn in waiting:
                if over():
                    self._ready(turn, device.clock)
                else:
                    self._for_device.append((over, turn))
            if self._for_device and device.step_before(heap[0][0] if heap else None):
                continue
            if not heap:
                return None
            at, _, _, turn = heappop(heap)
            turn.at, turn.version = at, turn.version + 1
            return turn

    def _come(self, until: int | None) -> bool:
        """Let those go on for whom something has come, at once, or while real time catches up with virtual time."""
        at = self.runtime.now
        while not (self._wanted or self.outside or any(turn.came() for turn in self.files)):
            at = self._ahead + perf_counter_ns()
            if until is not None and at >= until:
                return False
            REAL_SLEEP(SLICE)
        if at != self.runtime.now:
            self.session.note(FROM_OUTSIDE)
        for turn in [turn for turn in self.files if turn.came()]:
            self._move(turn, at + self.runtime.host.thread_wake)
        return True

    def _move(self, turn: Turn, at: int) -> None:
        """Take a thread out of its line; it is ready at a time [ns]."""
        assert turn.line is not None
        turn.line.remove(turn)
        turn.line = None
        self._ready(turn, at)

    def _pass(self, turn: Turn) -> None:
        """Give the baton to whose turn it is, and come back when it is `turn`'s; raise what is to be raised there."""
        following = self._next() or self._stuck()
        if following is not turn:
            turn.rest()
            self._hand_over(following)
            self._wait(turn)
        if turn.problem:
            problem, turn.problem = turn.problem, None
            raise problem

    def _hand_over(self, turn: Turn) -> None:
        self.running = turn
        if self.order:
            self.order.run(turn.number)
        if turn.baton.locked():
            turn.baton.release()

    def _wait(self, turn: Turn) -> None:
        while self.running is not turn and self.alive:
            try:
                turn.baton.acquire()
            except BaseException as problem:  # a signal, in the main thread: it has its turn at the next point
                turn.problem, self._wanted = problem, turn
        if self.alive:
            turn.resume()
        elif not (self.let_go_for and turn is self.main):
            self.leave_thread()

    def let_go(self, why: str) -> None:
        """All threads go on in real time, as if there were no turns: the main thread is the one that is recorded.

        Only where no other one has used the GPU. `why` is a sentence's end for the notes.
        """
        session, main = self.session, self.main
        assert main and self.running
        if self.running is not main:
            session.stray, session.stop = self.running.ident, bool  # the latter so that its calls are looked at
            main.resume()
        self.let_go_for, self.gives_turns = why, False
        session.note(LET_GO.format(words.duration(self.runtime.now), why))
        session.alone, self.running = main.ident, None
        if self.order:
            self.order.run(main.number)
        self.close()

    # What cannot go on

    def _stuck(self) -> Turn:
        """Nobody can go on: wait for threads outside the recording, if there are any; else it is a deadlock."""
        assert self.main
        for patience in range(STUCK_OUTSIDE, -1, -1):
            if self.outside or self._wanted:
                break
            known = {threading.get_ident(), *(turn.ident for turn in self._turns)}  # the former may have just ended
            foreign = [thread for thread in threading.enumerate() if thread.ident not in known]
            if self.session.refused or not patience or not any(map(self.may_wake, foreign)):
                ended = next(self._numbers) - len(self._turns)
                others = f"{words.count(ended, 'other thread')} had ended" if ended else "no other thread was started"
                waits = [*map(self._waits, self._turns), *(self._failed or [others] * (len(self._turns) == 1))]
                deadlock = DeadlockError("every thread of the program waits for another one: " + "; ".join(waits))
                self._problem = self.main.problem = self.session.refused or deadlock
                self._wanted = self.main
            else:
                REAL_SLEEP(0.01)
        return self._next() or self._stuck()

    def _waits(self, turn: Turn, shown: Callable[[str], str] = str) -> str:
        """Say where a thread waits, and for whom; lines as they are to be `shown`."""
        line = turn.line or Line()
        took = f", which took it at {shown(f'{line.taken[0].co_filename}:{line.taken[1]}')}" if line.taken else ""
        owner = f" for {(line.owner or self.main or turn).name}{took}" if line.owner or took else ""
        return f"{turn.name} waits in {turn.why} at {shown(turn.place) or NOWHERE}{owner}"

    def note_circles(self) -> None:
        """At the end of the block: note who waits for each other, whoever else has gone on."""
        for turn in self._turns:
            circle = [turn]
            while (line := circle[-1].line) and line.owner and line.owner not in circle:
                circle.append(line.owner)
            if line and line.owner is turn and len(circle) > 1:
                circle.sort(key=lambda each: each.number)
                told = (self._waits(each, shown=os.path.basename) for each in circle)  # notes leave this machine
                self.session.note(CIRCLE.format("; ".join(told)))

    def _watch(self) -> None:
        """Find a thread that waits where nobody sees it: for long it comes to no point, and uses no processor."""
        before, work, still, busy = -1, 0, 0, 0
        while self.alive:
            REAL_SLEEP(LOOK)
            turn = self.running
            if turn is None or self.points != before or len(self._turns) < 2:
                before, still, busy = self.points, 0, 0
                continue
            used = None  # where the system does not tell another thread's processor time
            with suppress(AttributeError, OSError):
                used = time.clock_gettime_ns(time.pthread_getcpuclockid(turn.ident))  # type: ignore[attr-defined,unused-ignore]
            works, work = used is None or used - work > WORKS, used or 0
            still, busy = (0, busy + 1) if works else (still + 1, busy)
            if (still >= STUCK or busy >= SPINS) and self.running is turn and self.points == before:
                self._refuse_unseen(turn, still)

    def _refuse_unseen(self, turn: Turn, still: int) -> None:
        """A thread has had the baton for so many looks, and waits for what one without it may have to do."""
        frame = sys._current_frames().get(turn.ident)
        modules = [each.f_globals.get("__name__") or "" for each, _ in traceback.walk_stack(frame)] or [__name__]
        waiting = self._for_device or self.outside or any(each[3].version == each[2] for each in list(self._heap))
        elsewhere = (*ELSEWHERE, PROCESSES) if turn is self.main else ELSEWHERE
        fetching = self.session.fetching
        in_file = fetching and not modules[0].startswith(STANDARD)  # or at another machine
        slow = modules[0] == __name__ or (
            still < SLOW and (in_file or any(name.startswith(elsewhere) for name in modules))
        )
        loader = not fetching and any(name.startswith("torch.utils.data") for name in modules)
        if not self.alive or slow or loader or not waiting:
            return  # another process or machine ends that wait: its own schedule says when
        does = "waits for something" if still else "loops over something"
        if not self.shares_gpu:
            place = place_of(stack_of(turn.ident))
            line = os.path.basename(place.line) if place else NOWHERE
            self.let_go(f"{turn.name} {does} that the recording cannot see, at {line}. {HINT}")
            return
        stack = "".join(traceback.format_stack(frame)[-6:])
        problem = NotModelledError(UNSEEN.format(turn.name, does, HINT, stack))
        self.session.refused_elsewhere(problem)  # where it is the main thread, that is stopped by a signal
        main, self._problem = self.main, problem
        if main and main is not turn:
            turn.rest()
            main.problem, self._wanted = problem, main
            self._hand_over(self._next() or main)

    def close(self) -> None:
        """The recording is over: what still waits goes on by itself, in real time."""
        self.alive = False
        if self._collects and not gc.get_threshold()[0]:
            gc.set_threshold(*self._collects)
        for turn in self._turns:
            if turn.ident != threading.get_ident():
                turn.problem = turn.problem or self._problem
                if turn.baton.locked():
                    turn.baton.release()


REAL_SLEEP = time.sleep  # a recording has another one
STUCK_OUTSIDE = 3000  # hundredths of s in which a thread outside the recording may end the wait of all
