"""Locks that workers share: who wants one waits in virtual time until those before him have given it back."""

import contextlib
import multiprocessing
import sys
import tempfile
import time
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from factory import Samples
from torch.utils.data import DataLoader

import loaderviz as lv
from loaderviz.emulator import Host
from loaderviz.timeline import Cause, Kind

HOST = replace(Host.preset("workstation"), cores=0, first_read=0)
HELD, OTHER, BATCH = 1_000_000, 500_000, 4  # ns, ns, samples
FORK = multiprocessing.get_context("fork")
needs_fork = pytest.mark.skipif(sys.platform != "linux", reason="only forked workers have this lock")


@contextlib.contextmanager
def acquiring(lock):
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def polling(lock):
    while not lock.acquire(block=False):
        pass
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def locking_file(name, function):
    fcntl = pytest.importorskip("fcntl")
    with open(name, "a") as file:
        function(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            function(file.fileno(), fcntl.LOCK_UN)


def a_files_lock(kind):
    import fcntl

    name = tempfile.mkstemp()[1]
    return lambda: locking_file(name, getattr(fcntl, kind))


@contextlib.contextmanager
def twice(lock):
    with lock, lock:
        yield


LOCKS = {
    "a Lock": lambda: (lock := FORK.Lock()) and (lambda: lock),
    "an RLock": lambda: (lock := FORK.RLock()) and (lambda: twice(lock)),
    "a Value": lambda: (value := FORK.Value("i")) and value.get_lock,
    "a Condition": lambda: (condition := FORK.Condition()) and (lambda: condition),
    "a Semaphore of one": lambda: (lock := FORK.BoundedSemaphore(1)) and (lambda: lock),
    "acquire": lambda: (lock := FORK.Lock()) and (lambda: acquiring(lock)),
    "acquire(block=False)": lambda: (lock := FORK.Lock()) and (lambda: polling(lock)),
    "flock": lambda: a_files_lock("flock"),
    "lockf": lambda: a_files_lock("lockf"),
}


def sleeps(seconds):
    time.sleep(seconds)


def declared(seconds):
    with lv.costs(seconds):
        pass


def recorded(lock, workers, *, host=HOST, held=HELD, other=OTHER, batches=12, cost=sleeps):
    """Return a loop of 12 batches; for each sample its worker needs the lock for `held` ns, and `other` ns more."""

    def of(index):
        with lock() if lock else contextlib.nullcontext():
            cost(held / 1e9)
        cost(other / 1e9)
        return torch.zeros(1)

    data = Samples(of, batches * BATCH)
    with lv.record(on="a100", host=host) as recording:
        for x in DataLoader(data, BATCH, num_workers=workers, multiprocessing_context="fork" if workers else None):
            x.cuda().sum()
    return recording.timeline


def fetches(timeline):
    return [(span.start, span.end) for span in timeline.rows(Kind.FETCH)]


@needs_fork
@pytest.mark.parametrize("kind", LOCKS)
def test_one_worker_at_a_time_has_a_lock(kind):
    """Three workers begin at once: the second batch waits for the first's four turns, the third for eight of them."""
    free = fetches(recorded(None, 3))
    alone = free[0][1] - free[0][0]
    ends = sorted(end - free[0][0] for _, end in fetches(recorded(LOCKS[kind](), 3)))
    assert ends[:3] == [alone + number * BATCH * HELD for number in range(3)]
    assert {after - before for before, after in pairwise(ends)} == {BATCH * HELD}


@needs_fork
def test_locks_of_their_own_and_semaphores_of_more_than_one_keep_nobody_waiting():
    free = fetches(recorded(None, 3))
    own, several = [FORK.Lock() for _ in range(3)], FORK.Semaphore(3)

    def mine():
        return own[torch.utils.data.get_worker_info().id]

    assert fetches(recorded(mine, 3)) == free
    assert fetches(recorded(lambda: several, 3)) == free
    assert fetches(recorded(LOCKS["a Lock"](), 1)) == fetches(recorded(None, 1))


@needs_fork
@pytest.mark.parametrize("cost", [sleeps, declared])
def test_the_context_says_how_long_a_fetch_had_it_and_waited_for_it(cost):
    usage = recorded(LOCKS["a Lock"](), 3, other=0, cost=cost).context.usage
    assert usage["locked"] == BATCH * HELD
    assert usage["queued"] == pytest.approx(2 * BATCH * HELD, rel=0.15)  # the first ones wait for less
    assert recorded(LOCKS["a Lock"](), 0, cost=cost).context.usage == {"locked": BATCH * HELD}
    assert recorded(None, 3).context.usage == {}


@needs_fork
@pytest.mark.parametrize("workers", [0, 1, 2, 4])
@pytest.mark.parametrize("then", [1, 3, 6])
def test_what_if_waits_for_the_lock_as_a_recording_does(workers, then):
    lock = LOCKS["a Lock"]()
    before, after = recorded(lock, workers, batches=40), recorded(lock, then, batches=40)
    predicted = lv.summarize(lv.what_if(before, workers=then)).step
    assert predicted == pytest.approx(lv.summarize(after).step, rel=0.1)


@needs_fork
def test_advice_names_the_lock_and_offers_no_more_workers():
    full, nearly, none = recorded(LOCKS["a Lock"](), 4), recorded(LOCKS["a Lock"](), 2), recorded(None, 4)
    first = lv.advise(full)[0]
    assert first.kind == "waiting-for-data"
    assert "hold the lock for less" in first.change and "wait for each other in test_locks.py" in first.evidence
    assert not first.parameters
    assert "hold the lock for less" in lv.advise(nearly)[0].change
    assert "num_workers=" in lv.advise(none)[0].change
    rows = full.cause[full.where(Kind.FETCH)]
    assert rows.tolist().count(Cause.THREAD) == len(rows) - 1  # all but the first


@needs_fork
@pytest.mark.this_clock
def test_on_this_machines_clock_nobody_waits_twice():
    """Workers of this machine really wait for each other: that is no wait of the emulated ones."""

    def computes(seconds):
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass

    lock = LOCKS["a Lock"]()
    timeline = recorded(lock, 2, host="auto", cost=computes, other=0, batches=20)
    usage = timeline.context.usage
    assert usage["locked"] == pytest.approx(BATCH * HELD, rel=0.3)
    assert lv.summarize(timeline).step == pytest.approx(BATCH * HELD, rel=0.5)


@needs_fork
def test_a_lock_that_is_never_given_back_or_was_taken_before_is_nobodys():
    """Whoever keeps a lock ends the program where it runs; what a fetch has had of it until then is not known."""
    lock = FORK.Lock()
    assert recorded(lambda: contextlib.nullcontext(lock.acquire(timeout=0)), 1).context.usage == {}


def test_a_worker_may_sleep_before_its_first_fetch():
    with lv.record(on="a100", host="laptop") as recording:
        for x in DataLoader(Samples(float), 2, num_workers=1, worker_init_fn=rests):
            x.cuda()
    assert len(fetches(recording.timeline)) == 2


def rests(worker):
    time.sleep(0.001)
