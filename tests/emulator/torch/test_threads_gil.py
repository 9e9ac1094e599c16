"""Python's interpreter lock in virtual time: who runs Python, who runs C beside it, and who waits for the lock."""

import queue
import threading
import time
from dataclasses import replace
from functools import partial

import pytest
import torch
from factory import beside, in_threads

import loaderviz as lv
from loaderviz.emulator.hardware import Host
from loaderviz.emulator.threads.gil import CALL
from loaderviz.emulator.torch.session import Session
from loaderviz.timeline import Cause

MS, WAKE = 10**6, 1_000  # ns
HOST = replace(Host.preset("laptop"), lock=0, thread_wake=WAKE, thread_start=0, cores=0)
FREE = replace(HOST, switch_interval=0)


def now():
    return Session.active.runtime.now


def together(*runs, host=HOST):
    """Run these in threads, joined by the main one; return when each was over, when all were, and the timeline."""
    ends = [0] * len(runs)

    def run(number):
        runs[number]()
        ends[number] = now()

    with lv.record(on="a100", host=host) as recording:
        in_threads(*(partial(run, number) for number in range(len(runs))))
        end = now()
    return ends, end, recording.timeline.self_check()


def work(seconds, **options):
    with lv.costs(seconds, **options):
        pass


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_r53_n_threads_of_python_take_n_times_as_long(count):
    ends, end, _ = together(*[partial(work, 0.1)] * count)
    assert count * 100 * MS <= end < count * 100.1 * MS
    assert min(ends) > (count - 1) * 94 * MS  # in turns of 5 ms: all end at about the same time


@pytest.mark.parametrize(
    ("host", "gil", "count", "cores"),
    [(FREE, True, count, 0) for count in (1, 2, 4)]
    + [(FREE, True, *each) for each in ((2, 4), (4, 2), (10, 5))]
    + [(HOST, False, *each) for each in ((1, 2), (2, 2), (4, 2), (6, 2), (3, 4))],  # decoders that let go of the lock
)
def test_r53_without_the_lock_threads_share_the_cores(host, gil, count, cores):
    host, rounds = replace(host, cores=cores, siblings=1, sibling=0, contention=0), max(1, count / (cores or count))
    _, end, timeline = together(*[partial(work, 0.1, gil=gil)] * count, host=host)
    assert rounds * 100 * MS <= end < rounds * 101 * MS
    assert not (host.switch_interval == 0 and (timeline.cause == Cause.GIL).any())


def test_r53_python_goes_on_beside_c():
    ends, _, _ = together(partial(work, 0.05, gil=False), partial(work, 0.05))
    assert max(ends) < 50.1 * MS


def test_r53_a_call_of_c_beside_python_waits_for_a_switch_each_time():
    def c():
        for _ in range(10):
            work(1e-3, gil=False)

    ends, _, timeline = together(partial(work, 0.2), c)
    assert (5 + 10 * 6) * MS <= ends[1] < (5 + 10 * 6.1) * MS
    longest = (timeline.end - timeline.start)[timeline.cause == Cause.GIL].max()
    assert longest <= 5 * MS + 2 * WAKE


@pytest.mark.parametrize(("where", "few"), [("cpu", 3.5), ("cuda", 12)])  # a launch is counted as Python
@pytest.mark.parametrize("beside", [1, 3])
def test_r53_operators_beside_python_are_few_in_an_interval(where, few, beside):
    """Each lets go of the lock, so after a few of them another thread has it, for an interval."""
    count = []

    def operators():
        x = torch.ones(8, device=where)
        end = now() + 200 * MS
        while now() < end:
            x.add(1)
            count.append(1)

    _, _, timeline = together(*[partial(work, 0.25)] * beside, operators, host=replace(HOST, thread_wake=5_000))
    turns = 200 / (5 * beside)
    assert 0.9 * turns < len(count) < few * turns
    waits = (timeline.end - timeline.start)[timeline.cause == Cause.GIL]
    assert waits.max() < (5 * beside + 0.1) * MS and waits.sum() > 190 * MS


@pytest.mark.once_for("c")
@pytest.mark.parametrize("c", [1e-6, 4e-6, 1e-5, 1.1e-5, 7.3e-5, 3e-4])
@pytest.mark.parametrize("python", [1e-7, 9e-7, 4e-6])
def test_r53_nobody_starves_beside_threads_that_let_go_of_the_lock_and_take_it_just_as_often(c, python):
    """Two threads take turns at the lock for short; one of Python wakes now and then, and finds it free at times."""
    soon = 40 * MS

    def calls():
        while now() < soon:
            work(python)
            work(c, gil=False)

    ends, _, _ = together(calls, calls, partial(work, 0.02), host=replace(HOST, thread_wake=5_000))
    assert ends[2] < soon


def test_r53_threads_that_take_the_lock_from_each_other_for_short_need_no_switch():
    def calls():
        for _ in range(1000):
            work(1e-6)
            work(2e-5, gil=False)

    ends, _, _ = together(calls, calls)
    assert max(ends) < 1.3 * 21 * MS


@pytest.mark.parametrize("wait", ["sleep", "lock", "queue", "gpu", "join"])
def test_r53_who_waits_has_let_go_of_the_lock(wait):
    lock, ready = None, None

    def waits():
        if wait == "sleep":
            time.sleep(0.05)
        elif wait == "lock":
            lock.acquire(timeout=0.05)
        elif wait == "queue":
            with pytest.raises(queue.Empty):
                ready.get(timeout=0.05)
        elif wait == "gpu":
            torch.cuda._sleep(70_000_000)
            torch.cuda.synchronize()
        else:
            in_threads(partial(time.sleep, 0.05))

    with lv.record(on="a100", host=HOST):
        lock, ready = threading.Lock(), queue.Queue()
        lock.acquire()
        with beside(waits):
            time.sleep(1e-3)
            before = now()
            work(0.02)
            assert now() - before == 20 * MS


def test_waits_for_the_lock_are_told_by_their_cause():
    _, _, timeline = together(partial(work, 0.02), partial(work, 0.02))
    rows = [timeline.row(i) for i in (timeline.cause == Cause.GIL).nonzero()[0]]
    assert {row.name for row in rows} == {CALL} and len({row.lane for row in rows}) == 2
    assert Cause.GIL.words == "waiting for Python's lock"
    assert lv.summarize(timeline) is not None


def test_costs_wants_to_know_whether_the_lock_is_held():
    for value in (None, 1, "no"):
        with pytest.raises(lv.LoadervizError, match="gil"):
            lv.costs(1, gil=value)


def test_one_thread_never_waits_for_the_lock():
    def program(host):
        with lv.record(on="a100", host=host) as recording:
            work(0.05)
            torch.ones(8, device="cuda").sum().item()
            work(0.01, gil=False)
        return list(recording.timeline.rows())

    assert program(HOST) == program(FREE)
