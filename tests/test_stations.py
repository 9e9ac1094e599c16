"""Where a thread is: seen at once, since it goes on while it is looked at."""

import linecache
import re
import sys
import threading

from loaderviz import stations
from loaderviz.timeline import Cause

FETCH = "def fetch(samples):\n    return [sample for sample in samples]\n"


def read(arrived, free):
    arrived.set()
    free.wait(10)


def test_a_thread_that_goes_on_while_its_line_is_read_was_where_it_was_seen(monkeypatch):
    arrived, free, left = threading.Event(), threading.Event(), threading.Event()

    def samples():
        read(arrived, free)
        yield 1
        left.set()

    def line_of(file, number):  # reading a file lets the other thread go on: its generator is suspended, then ends
        free.set()
        assert left.wait(10)
        return "free.wait(10)"

    space = {}
    exec(compile(FETCH, stations._FETCH, "exec"), space)
    thread = threading.Thread(target=lambda: space["fetch"](samples()))
    thread.start()
    assert arrived.wait(10)
    monkeypatch.setattr(linecache, "getline", line_of)
    stack = stations.stack_of(thread.ident)
    place = stations.place_of(stack)
    thread.join()
    line = read.__code__.co_firstlineno + 2
    assert place in ((Cause.INPUT, f"{__file__}:{line}"), (Cause.INPUT, f"{__file__}:{line - 1}"))


def test_a_stack_is_of_one_moment_while_its_thread_calls_and_returns():
    ended, before = threading.Event(), sys.getswitchinterval()

    def numbers(upto):
        yield from range(upto)
        if upto:
            yield from numbers(upto - 1)

    def call(depth):
        kept = [depth]
        return call(depth - 1) if depth else sum(n for n in numbers(5) if kept)

    def work():
        while not ended.is_set():
            call(12)

    thread = threading.Thread(target=work)
    thread.start()
    sys.setswitchinterval(1e-6)
    stacks = [stations.stack_of(thread.ident) for _ in range(20_000)]
    sys.setswitchinterval(before)
    ended.set()
    thread.join()
    seen = {" ".join(frame.f_code.co_name for frame, _ in stack) for stack in stacks}
    whole = re.compile("(numbers )*(<genexpr> )?(call )*(is_set )?work run _bootstrap_inner _bootstrap")
    assert [stack for stack in seen if not whole.fullmatch(stack)] == []
    assert any("call call" in stack for stack in seen)


def test_an_empty_stack_is_nowhere():
    assert stations.stack_of(0) == [] and stations.place_of([]) is None and not stations.is_own([])
