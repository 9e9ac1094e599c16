"""Where a thread is: seen at once, since it goes on while it is looked at."""

import linecache
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
    stack = stations.stack_of(sys._current_frames()[thread.ident])
    place = stations.place_of(stack)
    thread.join()
    line = read.__code__.co_firstlineno + 2
    assert place in ((Cause.INPUT, f"{__file__}:{line}"), (Cause.INPUT, f"{__file__}:{line - 1}"))


def test_an_empty_stack_is_nowhere():
    assert stations.stack_of(None) == [] and stations.place_of([]) is None and not stations.is_own([])
