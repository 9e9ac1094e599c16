"""Random programs of threads: what happens, in which order and when, is what a plain simulation of them says.

The simulation has no costs, so times agree but for those of locks and wake-ups. Where two threads come to something
within that time, either may be first: such programs are left out.
"""

import itertools
import queue
import random
import threading
import time
from collections import defaultdict, deque
from contextlib import suppress
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush

import pytest
from factory import in_threads
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import loaderviz as lv
from loaderviz.emulator import threads
from loaderviz.emulator.hardware import Host
from loaderviz.emulator.threads import DeadlockError
from loaderviz.emulator.torch.session import Session

# The interpreter's lock has tests of its own.
HOST = replace(Host.preset("laptop"), lock=0, thread_start=0, thread_wake=0, cores=0, switch_interval=0)
APART, COSTS = 60, 30  # us between two threads that come to something; what locks may cost until then
SIZES, SEATS, LOCKS = (1, 2, 0), 2, 1  # of the queues (0: no bound), and of the semaphore

TAKING = ("hold", LOCKS), ("sit", 1)
KINDS = *TAKING, ("put", len(SIZES)), ("get", len(SIZES)), ("set", 2), ("wait", 2), ("join", 2)


def random_program(seed):
    """Return threads, each a list of what comes after how many us, what it is, of which, and how long it may take.

    In every second one all threads take the lock or a seat, so that several wait for it at once. Hypothesis would
    draw equal times too often: of such programs nearly all are left out.
    """
    chance = random.Random(seed)
    kinds = TAKING if seed % 2 else KINDS

    def step():
        (what, many), lasts = chance.choice(kinds), chance.randint(100, 100_000)
        if what == "set" or (what not in ("hold", "sit") and chance.random() < 0.5):
            lasts = None
        return chance.randint(100, 60_000), (what, chance.randrange(many), lasts)

    return [[step() for _ in range(chance.randint(2, 6))] for _ in range(chance.randint(3, 5))]


class Plain:
    """Each thread is a generator that stands in a line and goes on when it is let go on, first come, first served."""

    def __init__(self, program):
        self.now, self.heap, self.number = 0, [], itertools.count()
        self.log, self.moments, self.over = [], [], set()
        self.lines, self.held, self.seats = defaultdict(deque), set(), SEATS
        self.items, self.flags = [deque() for _ in SIZES], set()
        for number, thread in enumerate(program):
            self.at(0, partial(self.go_on, self.run(number, thread, len(program)), None))
        while self.heap:
            self.now, _, happens = heappop(self.heap)
            happens()

    def at(self, when, happens):
        heappush(self.heap, (when, next(self.number), happens))

    def go_on(self, thread, answer):
        self.current = thread
        with suppress(StopIteration):
            thread.send(answer)

    def stand(self, *line, until=None):
        """Wait until somebody lets the first of the line go on, or until a time; tell which."""
        here = [self.current]
        self.lines[line].append(here)
        if until is not None:
            self.at(until, partial(self.give_up, self.lines[line], here))
        return (yield)

    def give_up(self, line, here):
        if any(each is here for each in line):
            line.remove(here)
            self.moments.append((self.now, id(here[0])))
            self.go_on(here[0], False)

    def let_go_on(self, *line, everybody=False):
        waiting = self.lines[line]
        for _ in range(len(waiting) if everybody else min(1, len(waiting))):
            self.at(self.now, partial(self.go_on, waiting.popleft()[0], True))

    def sleep(self, duration):
        self.at(self.now + duration, partial(self.go_on, self.current, True))
        yield
        self.moments.append((self.now, id(self.current)))

    def run(self, number, thread, count):
        for before, (what, which, lasts) in thread:
            yield from self.sleep(before)
            until = None if lasts is None else self.now + lasts
            self.log.append((self.now, number, what, "begins"))
            answer = yield from getattr(self, what)(number, which, until, count)
            self.log.append((self.now, number, what, answer))
        self.over.add(number)
        self.let_go_on("join", number, everybody=True)

    def hold(self, number, which, until, count):
        lasts = until - self.now
        while which in self.held:
            yield from self.stand("hold", which)
        self.held.add(which)
        self.log.append((self.now, number, "hold", "has it"))
        yield from self.sleep(lasts)
        self.held.remove(which)
        self.let_go_on("hold", which)

    def sit(self, number, which, until, count):
        lasts = until - self.now
        while not self.seats:
            yield from self.stand("sit")
        self.seats -= 1
        self.log.append((self.now, number, "sit", "has it"))
        yield from self.sleep(lasts)
        self.seats += 1
        self.let_go_on("sit")

    def put(self, number, which, until, count):
        while SIZES[which] and len(self.items[which]) == SIZES[which]:
            if not (yield from self.stand("put", which, until=until)):
                return "Full"
        self.items[which].append(number)
        self.let_go_on("get", which)
        return None

    def get(self, number, which, until, count):
        while not self.items[which]:
            if not (yield from self.stand("get", which, until=until)):
                return "Empty"
        got = self.items[which].popleft()
        self.let_go_on("put", which)
        return got

    def set(self, number, which, until, count):
        self.flags.add(which)
        self.let_go_on("wait", which, everybody=True)
        return None
        yield

    def wait(self, number, which, until, count):
        return which in self.flags or (yield from self.stand("wait", which, until=until))

    def join(self, number, which, until, count):
        if which % count != number and which % count not in self.over:
            yield from self.stand("join", which % count, until=until)
        return which % count in self.over


class Real:
    """The same with Python's own threads, in a recording."""

    def __init__(self, program):
        self.log, self.program, self.threads = [], program, []
        self.locks, self.seats = [threading.Lock() for _ in range(LOCKS)], threading.Semaphore(SEATS)
        self.queues, self.flags = [queue.Queue(size) for size in SIZES], [threading.Event() for _ in range(2)]
        self.ran = [partial(self.run_to_the_end, number) for number in range(len(program))]

    def note(self, number, what, answer):
        self.log.append((Session.active.runtime.now, number, what, answer))

    def run_to_the_end(self, number):
        with suppress(DeadlockError):  # the main thread raises it, too
            self.run(number)

    def run(self, number):
        self.threads.append((number, threading.current_thread()))
        for before, (what, which, lasts) in self.program[number]:
            time.sleep(before / 1e6)
            self.note(number, what, "begins")
            self.note(number, what, getattr(self, what)(number, which, lasts and lasts / 1e6))

    def held(self, number, what, lock, lasts):
        with lock:
            self.note(number, what, "has it")
            time.sleep(lasts)

    def hold(self, number, which, lasts):
        self.held(number, "hold", self.locks[which], lasts)

    def sit(self, number, which, lasts):
        self.held(number, "sit", self.seats, lasts)

    def put(self, number, which, lasts):
        try:
            self.queues[which].put(number, timeout=lasts)
        except queue.Full:
            return "Full"

    def get(self, number, which, lasts):
        try:
            return self.queues[which].get(timeout=lasts)
        except queue.Empty:
            return "Empty"

    def set(self, number, which, lasts):
        self.flags[which].set()

    def wait(self, number, which, lasts):
        return self.flags[which].wait(lasts)

    def join(self, number, which, lasts):
        which %= len(self.program)
        thread = dict(self.threads)[which]
        if which != number:
            thread.join(lasts)
        return which != number and not thread.is_alive()


@pytest.mark.slow
@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_random_programs_of_threads(seed):
    program = random_program(seed)
    plain = Plain(program)
    moments = sorted(plain.moments)
    near = (later - before < APART for (before, one), (later, other) in itertools.pairwise(moments) if one != other)
    assume(not any(near))
    with pytest.MonkeyPatch.context() as patch, lv.record(on="a100", host=HOST):
        patch.setattr(threads, "STUCK_OUTSIDE", 0)  # no thread of another test is waited for
        real, stuck = Real(program), False
        try:
            in_threads(*real.ran)
        except DeadlockError:
            stuck = True
    assert stuck == (len(plain.over) < len(program))
    for number in range(len(program)):
        ran, meant = ([each for each in log if each[1] == number] for log in (real.log, plain.log))
        assert [each[1:] for each in ran] == [each[1:] for each in meant]
        late = [found / 1000 - time for (found, *_), (time, *_) in zip(ran, meant, strict=True)]
        assert all(0 <= each < COSTS for each in late), late
