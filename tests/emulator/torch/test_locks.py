"""Locks that workers share: who wants one waits in virtual time until those before him have given it back."""

import contextlib
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch
from factory import Samples
from torch.utils.data import DataLoader

import loaderviz as lv
from loaderviz.emulator import Host, threads
from loaderviz.timeline import Cause, Kind

HOST = replace(Host.preset("workstation"), cores=0, first_read=0)
HELD, OTHER, BATCH = 1_000_000, 500_000, 4  # ns, ns, samples
OF_THE_BATCH = {"tensors": 1, "shared": 4 * BATCH, "epoch": 12}  # of four bytes a sample
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
def locking(name, kind):
    import fcntl

    with open(name, "a") as file:
        getattr(fcntl, kind)(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            getattr(fcntl, kind)(file.fileno(), fcntl.LOCK_UN)


@contextlib.contextmanager
def locked_until_closed(name):
    import fcntl

    with open(name, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def locked_by_number(name):
    number = os.open(name, os.O_RDWR)
    os.lockf(number, os.F_LOCK, 0)
    try:
        yield
    finally:
        os.close(number)


def a_file(lock, *options):
    name = tempfile.mkstemp()[1]
    return lambda: lock(name, *options)


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
    "a Semaphore(1)": lambda: (lock := FORK.Semaphore(1)) and (lambda: lock),
    "flock": lambda: a_file(locking, "flock"),
    "flock, closed": lambda: a_file(locked_until_closed),
    "os.lockf, closed": lambda: a_file(locked_by_number),
    "lockf": lambda: a_file(locking, "lockf"),
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
def test_a_managers_lock_is_one_too():
    with FORK.Manager() as manager:
        lock = manager.Lock()
        steps = [end for _, end in fetches(recorded(lambda: lock, 3))]
    assert {after - before for before, after in pairwise(sorted(steps))} == {BATCH * HELD}


@needs_fork
def test_two_at_a_time_have_a_semaphore_of_two():
    """Four workers: the third and the fourth batch wait until the first two of them have had it."""
    semaphore = FORK.Semaphore(2)
    free = fetches(recorded(None, 4))
    ends = sorted(end - free[0][1] for _, end in fetches(recorded(lambda: semaphore, 4)))
    assert ends[:4] == [0, 0, BATCH * HELD, BATCH * HELD]
    assert recorded(lambda: semaphore, 4).context.usage["locked"] == BATCH * HELD // 2


@needs_fork
def test_a_lock_is_had_while_a_file_is_read(tmp_path):
    """20 MB from the page cache, and again without the lock: four workers are no faster than what needs it."""
    (tmp_path / "data").write_bytes(bytes(20_000_000))
    lock, none = FORK.Lock(), contextlib.nullcontext()

    def reading(seconds):
        (tmp_path / "data").read_bytes()

    def step(lock, workers):
        timeline = recorded(lambda: lock, workers, other=0, cost=reading, batches=24)
        return lv.summarize(timeline.from_batch(8)).step

    one = step(none, 1)
    assert step(none, 4) < 0.4 * one
    assert step(lock, 4) == pytest.approx(one / 2, rel=0.05)


@needs_fork
def test_parts_of_a_file_and_locks_of_others_are_locks_of_their_own():
    """Each of three workers locks other bytes: nobody waits. what_if has the lock that is taken for longest."""
    import fcntl

    name = tempfile.mkstemp()[1]

    @contextlib.contextmanager
    def part():
        with open(name, "a") as file:
            number = torch.utils.data.get_worker_info().id
            fcntl.lockf(file, fcntl.LOCK_EX, 10, 10 * number)
            yield
            fcntl.lockf(file, fcntl.LOCK_UN, 10, 10 * number)

    assert fetches(recorded(part, 3)) == fetches(recorded(None, 3))


@needs_fork
@pytest.mark.parametrize("locks", [2, 4])
def test_what_if_does_not_add_up_locks_of_which_each_batch_has_one(locks):
    several = [FORK.Lock() for _ in range(locks)]
    turn = [0]

    def mine():
        turn[0] += 1
        return several[(turn[0] - 1) // BATCH % locks]

    before = recorded(mine, 0, batches=40)
    step, own = lv.summarize(lv.what_if(before, workers=8)).step, BATCH * (HELD + OTHER)
    assert step == pytest.approx(max(BATCH * HELD / locks, own / 8), rel=0.1)


@needs_fork
def test_who_tries_a_lock_without_waiting_is_told_that_this_machine_decides():
    taken = FORK.Lock()
    taken.acquire()

    def tries(seconds):
        assert not taken.acquire(block=False)
        assert not taken.acquire(timeout=0.001)

    notes = recorded(None, 1, cost=tries).context.notes
    assert any("tries a lock without waiting" in note for note in notes)


@needs_fork
def test_advice_offers_no_more_workers_where_two_loaders_share_a_lock():
    lock = FORK.Lock()

    def of(index):
        with lock:
            time.sleep(HELD / 1e9)
        return torch.zeros(1)

    with lv.record(on="a100", host=HOST) as recording:
        loaders = [DataLoader(Samples(of, 40), BATCH, num_workers=1) for _ in range(2)]
        for x, y in zip(*loaders, strict=True):
            (x.cuda() + y.cuda()).sum()
    assert not [each.kind for each in lv.advise(recording.timeline) if "workers" in each.parameters]


@needs_fork
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # that a file is dropped
def test_a_locked_file_is_the_programs_own():
    """A dropped one is closed at once, and its lock is gone; so is one whose number is closed, by name or not."""
    import fcntl

    name = tempfile.mkstemp()[1]

    class Numbered:
        def __init__(self, number):
            self.fileno = lambda: number

    def uses(seconds):
        file = open(name, "a")  # noqa: SIM115 - it is dropped
        fcntl.flock(file, fcntl.LOCK_EX)
        number = os.open(name, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file = None
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(Numbered(number), fcntl.LOCK_UN)
        fcntl.flock(Numbered(number), fcntl.LOCK_EX)
        os.close(fd=number)
        with pytest.raises(ValueError, match="negative"):
            fcntl.flock(-1, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="Bad file descriptor"):
            fcntl.flock(number, fcntl.LOCK_EX)
        assert file is None

    for workers in (0, 1):
        assert len(fetches(recorded(None, workers, cost=uses, batches=2))) == 2


@needs_fork
def test_events_queues_and_locks_of_a_workers_own_are_no_locks_of_all():
    event, queue = FORK.Event(), FORK.Queue(4)
    event.set()
    own = []

    def uses(seconds):
        assert event.is_set() and event.wait()
        queue.put(1)
        queue.get()
        own.append(own[0] if own else FORK.Lock())
        with own[0]:
            time.sleep(HELD / 1e9)

    timeline, free = recorded(None, 3, cost=uses), recorded(None, 3, other=HELD)
    assert not any("tries a lock" in note for note in timeline.context.notes)
    assert fetches(timeline) == fetches(free)


@needs_fork
@pytest.mark.slow
@pytest.mark.parametrize("start", ["forkserver", "spawn"])
@pytest.mark.parametrize("acquires", [False, True])
def test_workers_that_are_started_anew_share_their_locks_too(start, acquires):
    data = Samples(partial(guarded, multiprocessing.get_context(start).Lock(), acquires), 6 * BATCH)
    with lv.record(on="a100", host=HOST) as recording:
        for x in DataLoader(data, BATCH, num_workers=2, multiprocessing_context=start):
            x.cuda().sum()
    ends = sorted(end for _, end in fetches(recording.timeline))
    assert {after - before for before, after in pairwise(ends)} == {BATCH * HELD}


def guarded(lock, acquires, _):
    """A sample for which a lock is held; it can be pickled, as a function of a test cannot."""
    with acquiring(lock) if acquires else lock:
        time.sleep(HELD / 1e9)
    return torch.zeros(1)


@needs_fork
def test_waits_for_the_disk_are_no_waits_for_a_lock(tmp_path):
    """Each batch reads 4 MB that nobody has read, and has a lock for a moment: what_if keeps the waits for the disk."""
    for index in range(80):
        (tmp_path / str(index)).write_bytes(bytes(1_000_000))
    lock, number = FORK.Lock(), iter(range(80))

    def of(index):
        with lock:
            time.sleep(1e-6)
        (tmp_path / str(next(number))).read_bytes()
        return torch.zeros(1)

    with lv.record(on="a100", host=HOST) as recording:
        for x in DataLoader(Samples(of, 80), BATCH):
            x.cuda().sum()
    step = lv.summarize(recording.timeline).step
    assert lv.summarize(lv.what_if(recording.timeline, workers=1)).step == pytest.approx(step, rel=0.1)


@needs_fork
@pytest.mark.slow
@pytest.mark.parametrize("make", [threading.Lock, multiprocessing.Lock])
def test_a_lock_that_another_thread_of_the_program_has_ends_no_recording(make, monkeypatch):
    """It is older than the recording, which cannot see it: after a while the threads go on in real time."""
    monkeypatch.setattr(threads, "LOOK", 0.01)
    lock = make()

    def beside():
        for _ in range(3):
            with lock:
                time.sleep(0.004)
            time.sleep(0.004)

    def of(index):
        with lock:
            time.sleep(0.004)
        return torch.zeros(1)

    with lv.record(on="a100", host=HOST) as recording:
        thread = threading.Thread(target=beside)
        thread.start()
        assert len(list(DataLoader(Samples(of, 16), 4))) == 4
        thread.join()
    assert recording.timeline.self_check()


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
    waits = BATCH * (HELD + OTHER) if cost is sleeps else 0
    for workers in (0, 3):
        usage = recorded(LOCKS["a Lock"](), workers, cost=cost).context.usage
        assert usage == OF_THE_BATCH | {"locked": BATCH * HELD, "unlocked waits": waits}
    assert recorded(None, 3).context.usage == OF_THE_BATCH


@needs_fork
@pytest.mark.once_for("workers")
@pytest.mark.parametrize("workers", [0, 1, 2, 4])
@pytest.mark.parametrize("then", [1, 3, 6])
def test_what_if_waits_for_the_lock_as_a_recording_does(workers, then):
    lock = LOCKS["a Lock"]()
    before, after = recorded(lock, workers, batches=40), recorded(lock, then, batches=40)
    predicted = lv.summarize(lv.what_if(before, workers=then)).step
    assert predicted == pytest.approx(lv.summarize(after).step, rel=0.1)


@needs_fork
def test_advice_names_the_lock_and_offers_no_more_workers():
    full, nearly, none = recorded(LOCKS["a Lock"](), 4), recorded(LOCKS["a Lock"](), 2), recorded(None, 4, batches=200)
    first = lv.advise(full)[0]
    assert first.kind == "waiting-for-data"
    assert "hold the lock for less" in first.change and "wait for each other in test_locks.py" in first.evidence
    assert not first.parameters
    assert "hold the lock for less" in lv.advise(nearly)[0].change
    assert "num_workers=" in lv.advise(none)[0].change
    rows = full.cause[full.where(Kind.FETCH)]
    assert rows.tolist().count(Cause.THREAD) == len(rows) - 1  # all but the first


@needs_fork
@pytest.mark.parametrize(("other", "helps"), [(0, False), (OTHER // 2, True)])
def test_one_worker_that_has_the_lock_all_the_time_needs_no_second_one(other, helps):
    alone = recorded(LOCKS["a Lock"](), 1, other=other, batches=40, cost=declared)
    found = next(each for each in lv.advise(alone) if each.kind == "waiting-for-data")
    assert ("num_workers=" in found.change) is helps
    assert helps or ("hold the lock for less" in found.change and "and one fetch has it at a time" in found.evidence)
    beside = recorded(LOCKS["a Lock"](), 2, other=other, batches=40, cost=declared)
    assert (lv.summarize(beside).step < 0.9 * lv.summarize(alone).step) is helps


@needs_fork
def test_a_loop_without_workers_is_not_promised_the_time_with_the_lock():
    alone = recorded(LOCKS["a Lock"](), 0, other=OTHER // 10, batches=40, cost=declared)
    found = next(each for each in lv.advise(alone) if each.kind == "fetch-in-loop")
    assert found.expected_gain.per_step < 1.2 * (lv.summarize(alone).step - BATCH * HELD)  # a bound is above a replay


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
    assert recorded(lambda: contextlib.nullcontext(lock.acquire(timeout=0)), 1).context.usage == OF_THE_BATCH


def test_a_worker_may_sleep_before_its_first_fetch():
    with lv.record(on="a100", host="laptop") as recording:
        for x in DataLoader(Samples(float), 2, num_workers=1, worker_init_fn=rests):
            x.cuda()
    assert len(fetches(recording.timeline)) == 2


def rests(worker):
    time.sleep(0.001)
