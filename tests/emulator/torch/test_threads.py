"""Threads of a program in virtual time: who goes on when, whatever this machine does meanwhile."""

import asyncio
import contextlib
import copy
import gc
import http.server
import logging.handlers
import os
import pickle
import queue
import random
import re
import select
import selectors
import socket
import sys
import threading
import time
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import Pipe, get_context
from multiprocessing.dummy import Pool as DummyPool
from multiprocessing.pool import ThreadPool

import pytest
import torch
from factory import STARTS_A_THREAD, beside, in_threads
from torch.utils.data import DataLoader, TensorDataset

import loaderviz as lv
from loaderviz.emulator import threads
from loaderviz.emulator.hardware import Host
from loaderviz.emulator.threads import DeadlockError
from loaderviz.emulator.torch.session import Session
from loaderviz.errors import NotModelledError
from loaderviz.timeline import Cause
from loaderviz.traces.steps import cut

MS = 10**6  # ns
LOCK, WAKE, START = 50, 7_000, 20_000  # ns
HOST = replace(Host.preset("laptop"), lock=LOCK, thread_wake=WAKE, thread_start=START, switch_interval=0, cores=0)


def work(seconds):
    """Take so long in virtual time, and any time on this machine."""
    with lv.costs(seconds):
        threads.REAL_SLEEP(random.choice([0, 1e-5, 1e-3]))


def now():
    """The host's clock [ns], without a look at it, which would cost something."""
    return Session.active.runtime.now


def table(timeline):
    """Return all that is in a timeline, to be compared."""
    return [lane.name for lane in timeline.lanes], [timeline.row(i) for i in range(len(timeline))], timeline.context


def started(*runs):
    """Start a thread for each; they are joined by `end`."""
    made = [threading.Thread(target=run) for run in runs]
    for thread in made:
        thread.start()
    return made


# Programs, unaware of all this


def copying_thread(device):
    """A thread that loads and copies, two batches ahead."""
    ready, model = queue.Queue(2), torch.nn.Linear(4, 2).to(device)
    data = TensorDataset(torch.randn(48, 4), torch.randint(2, (48,)))

    def copy():
        for x, y in DataLoader(data, 8, generator=torch.Generator().manual_seed(1)):
            ready.put((x.to(device), y.to(device)))
        ready.put(None)

    threading.Thread(target=copy, daemon=True).start()
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
    for x, y in iter(ready.get, None):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def loop_beside_the_main_thread(device):
    """As spdl does it: an event loop in a thread of its own, work in an executor, a bounded queue to the main one."""
    sink, results = queue.Queue(2), []

    async def pipeline():
        loop, between = asyncio.get_running_loop(), asyncio.Queue(1)
        with ThreadPoolExecutor(2) as pool:

            async def load():
                for i in range(5):
                    made = await loop.run_in_executor(pool, lambda i=i: torch.full((8,), float(i)).to(device))
                    await between.put(made)
                await between.put(None)

            async def hand_out():
                while (item := await between.get()) is not None:
                    while sink.full():
                        await asyncio.sleep(1e-3)
                    sink.put(item)
                sink.put(None)

            await asyncio.gather(load(), hand_out())

    with beside(lambda: asyncio.run(pipeline())):
        for item in iter(sink.get, None):
            results.append(item.sum().item())
            work(3e-4)
    return results


def torchdata_pin(device):
    """The node of torchdata that pins in a thread of its own."""
    nodes = pytest.importorskip("torchdata.nodes")
    node = nodes.Mapper(
        nodes.Batcher(nodes.IterableWrapper(range(12)), 4), lambda x: torch.tensor(x, dtype=torch.float)
    )
    loader = nodes.Loader(nodes.PinMemory(node) if device == "cuda" else node)
    return [batch.to(device).sum().item() for batch in loader]


def spdl_pipeline(device):
    """A pipeline of spdl, where that is installed."""
    builder = pytest.importorskip("spdl.pipeline").PipelineBuilder().add_source(range(6))
    builder = builder.pipe(lambda i: torch.full((4,), float(i)).to(device), concurrency=1).add_sink(2)
    pipeline = builder.build(num_threads=1)
    with pipeline.auto_stop():
        return [batch.sum().item() for batch in pipeline]


class Answers(http.server.BaseHTTPRequestHandler):
    log_message = print

    def do_GET(self):
        time.sleep(0.01)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"%f" % torch.full((2,), float(self.path[1:])).to(self.server.device).sum().item())


def servers(device):
    """A server whose handlers use the GPU, a logger's thread, and two threads at a socket and a pipe of the program."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.device, records, results = device, queue.Queue(), []
    listener = logging.handlers.QueueListener(records, logging.Handler())
    listener.handle = lambda record: results.append(torch.full((2,), float(record)).to(device).sum().item())
    (one, other), (reader, writer) = socket.socketpair(), os.pipe()

    def feeds():
        for number in range(3):
            time.sleep(2e-3)
            torch.ones(2).to(device)
            other.sendall(bytes([number]))
            os.write(writer, bytes([number]))
        other.close()

    with one, beside(feeds), beside(partial(server.serve_forever, 0.01)), selectors.DefaultSelector() as selector:
        selector.register(one, selectors.EVENT_READ)
        listener.start()
        for number in range(2):
            address = f"http://127.0.0.1:{server.server_port}/{number}"
            records.put(float(urllib.request.urlopen(address, timeout=60).read()))
        while selector.select(1) and (got := one.recv(1)):
            results += [torch.tensor(list(got)).to(device).sum().item(), *os.read(reader, 1)]
        listener.stop()
        server.shutdown()
    server.server_close()
    return results


PROGRAMS = [copying_thread, loop_beside_the_main_thread, torchdata_pin, spdl_pipeline, servers]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_of_threads_gives_one_timeline_and_the_values_of_the_cpu(program):
    found = []
    torch.manual_seed(0)
    expected = sorted(program("cpu"))
    before = sys.getswitchinterval()
    try:
        for interval in (before, 1e-6, 1e-6):
            sys.setswitchinterval(interval)
            torch.manual_seed(0)
            with lv.record(on="a100") as recording:
                assert sorted(program("cuda")) == expected
            assert not recording.hazards and recording.timeline.self_check()
            found.append(table(recording.timeline))
            gc.collect()
    finally:
        sys.setswitchinterval(before)
    assert found[0] == found[1] == found[2]
    assert len([name for name in found[0][0] if name.startswith(("main", "thread"))]) > 1
    assert any("of Python one of them runs at a time" in note for note in found[0][2].notes)


# Who goes on when


def test_r51_a_lock_is_free_when_it_is_let_go_of_and_who_waits_is_woken():
    lock, at = None, {}

    def second():
        work(1e-3)
        with lock:
            at["second"] = now()

    with lv.record(on="a100", host=HOST) as recording:
        lock = threading.Lock()
        [thread] = started(second)
        with lock:
            work(5e-3)
        released = now()
        thread.join()
        at["joined"] = now()
    assert released == START + LOCK + 5 * MS
    assert at["second"] == released + WAKE
    timeline = recording.timeline
    waits = (timeline.cause == Cause.THREAD).nonzero()[0]
    assert [(timeline.start[i], timeline.end[i]) for i in waits] == [
        (START + MS + LOCK, released + WAKE),
        (released, at["joined"]),
    ]


def test_r52_a_thread_has_a_current_stream_of_its_own_and_begins_on_the_default_one():
    seen = {}

    def second():
        seen["begins"] = torch.cuda.current_stream()
        torch.cuda.set_stream(torch.cuda.Stream())
        seen["has"] = torch.cuda.current_stream()

    with lv.record(on="a100", host=HOST):
        default, side = torch.cuda.current_stream(), torch.cuda.Stream()
        with torch.cuda.stream(side):
            in_threads(second)
            assert torch.cuda.current_stream() == side
        assert seen["begins"] == default
        assert seen["has"] not in (default, side)


def test_who_waits_for_the_gpu_does_not_hold_others_back():
    """One thread waits for a long kernel, another one works and launches meanwhile."""
    order = []

    def waits():
        x = torch.ones(1024, 1024, device="cuda")
        (x @ x @ x @ x).sum().item()
        order.append("waited")

    def works():
        for _ in range(7):
            work(1e-4)
            torch.ones(1, device="cuda")
        order.append("worked")

    with lv.record(on="t4", host=HOST) as recording:
        in_threads(waits, works)
    assert order == ["worked", "waited"]
    timeline = recording.timeline
    [wait] = (timeline.cause == Cause.SYNCHRONIZE).nonzero()[0]
    lanes = [lane.name for lane in timeline.lanes]
    assert lanes[timeline.lane[wait]] == "thread 1 (waits)"
    other = timeline.lane == lanes.index("thread 2 (works)")
    assert (other & (timeline.end > timeline.start[wait]) & (timeline.end < timeline.end[wait])).any()


WAITS = {
    "queue": lambda: queue.Queue().get(timeout=5),
    "simple queue": lambda: queue.SimpleQueue().get(timeout=5),
    "event": lambda: threading.Event().wait(5),
    "condition": lambda: holding(threading.Condition()).wait(5),
    "semaphore": lambda: threading.Semaphore(0).acquire(timeout=5),
    "barrier": lambda: threading.Barrier(2).wait(5),
    "lock": lambda: holding(threading.Lock()).acquire(timeout=5),
    "sleep": lambda: time.sleep(5),
    "asyncio": lambda: asyncio.run(asyncio.sleep(5)),
    "join": lambda: started(lambda: time.sleep(6))[0].join(5),
    "select": lambda: select.select([], [], [], 5),
    "selector": lambda: selectors.SelectSelector().select(5),
}


def holding(lock):
    lock.acquire()
    return lock


@pytest.mark.parametrize("name", WAITS)
def test_a_time_out_is_virtual(name):
    taken = []

    def second():
        start = now()
        with contextlib.suppress(queue.Empty, threading.BrokenBarrierError):
            WAITS[name]()
        taken.append(now() - start)

    with lv.record(on="a100"):
        in_threads(second)
    assert 5000 * MS <= taken[0] < 5002 * MS


def test_what_was_made_before_the_block_is_waited_for_in_virtual_time_too():
    ready, set_later, both = queue.Queue(1), threading.Event(), threading.Barrier(2)

    def second():
        for i in range(3):
            ready.put(torch.full((2,), float(i), device="cuda"))
        work(1e-3)
        set_later.set()
        both.wait()
        work(1e-3)

    with lv.record(on="a100", host=HOST) as recording:
        [thread] = started(second)
        assert [ready.get().sum().item() for _ in range(3)] == [0, 2, 4]
        with pytest.raises(queue.Empty):
            ready.get(timeout=1e-4)
        set_later.wait()
        assert now() >= START + MS
        both.wait()
        thread.join()
        assert now() >= START + 2 * MS
    assert len(recording.timeline.context.notes) == 1


LOOKS = {
    "queue": lambda lock, thread: queue_of(lock).empty(),
    "lock": lambda lock, thread: not lock.acquire(blocking=False),
    "locked": lambda lock, thread: lock.locked(),
    "thread": lambda lock, thread: thread.is_alive(),
    "join": lambda lock, thread: thread.join(0) or thread.is_alive(),
    "sleep": lambda lock, thread: time.sleep(0) or not lock.acquire(blocking=False),
}


def queue_of(lock):
    """Return a queue that has something as soon as nobody has the lock."""
    items = queue.Queue()
    if not lock.locked():
        items.put(1)
    return items


@pytest.mark.parametrize("name", LOOKS)
@pytest.mark.parametrize("seconds", [1e-5, 10])
def test_who_looks_again_and_again_lets_time_pass_and_comes_to_an_end(name, seconds):
    """However long it takes in virtual time, in some thousands of looks: 10 s at 50 ns each would be 200 million."""
    looks = 0
    with lv.record(on="a100", host=replace(HOST, lock=0)):
        lock = holding(threading.Lock())
        [thread] = started(lambda: (work(seconds), lock.release()))
        while LOOKS[name](lock, thread):
            looks += 1
        assert START + seconds * 1e9 <= now() <= START + 1e4 + seconds * 1.01e9
    assert looks < 60_000


def test_what_a_pool_runs_and_how_long_it_may_take_is_virtual():
    with lv.record(on="a100"), ThreadPoolExecutor(1) as pool:
        with pytest.raises(TimeoutError):
            list(pool.map(time.sleep, [5, 5], timeout=6))
        assert 6000 * MS <= now() < 6002 * MS
        pool.submit(time.sleep, 5).result()
        assert now() >= 15_000 * MS


def test_threads_are_as_they_are_where_that_is_asked_for():
    """They run at once, beside the one that records, which may wait for them without a lock, and in a fetch, too."""
    ready, seen, names = queue.Queue(), [], (threading.Lock, threading.RLock, queue.SimpleQueue, threading._time)
    with lv.record(on="a100", host=HOST, threads=False) as recording:
        seen.append((threading.Lock, threading.RLock, queue.SimpleQueue, threading._time))
        [thread] = started(lambda: (ready.put(1), seen.append("ran")))
        while len(seen) < 2:
            pass
        assert next(iter(DataLoader([0], collate_fn=lambda _: ready.get()))) == 1
        thread.join()
    assert seen == [names, "ran"]
    assert not [lane for lane in recording.timeline.lanes if lane.role == "thread"]


# What cannot go on, or is not recorded


@pytest.fixture
def silent(monkeypatch):
    """Return the errors that ended threads. Beside a test, threads of its runner live, which end no wait."""
    problems = []
    monkeypatch.setattr(threads, "STUCK_OUTSIDE", 200)
    monkeypatch.setattr(threading, "excepthook", lambda problem: problems.append(problem.exc_value))
    return problems


def test_who_has_just_ended_is_nobody_to_wait_for(monkeypatch):
    """The thread that ends finds that all others wait: that is said at once."""
    looks, real, others = [], threads.REAL_SLEEP, set(threading.enumerate())  # of other tests
    every = threading.enumerate
    monkeypatch.setattr(threading, "enumerate", lambda: [each for each in every() if each not in others])
    monkeypatch.setattr(threads, "REAL_SLEEP", lambda seconds: looks.append(seconds) or real(seconds))
    says = r"main thread waits in Queue\.get at .*; 1 other thread had ended"
    with pytest.raises(DeadlockError, match=says), lv.record(on="a100"):
        threading.Thread(target=time.sleep, args=(1e-3,)).start()
        queue.Queue().get()
    assert 0.01 not in looks


def takes(first, second, both):
    with first:
        both.wait()
        with second:
            pass


def takes_both():
    """Return two threads that have a lock each and want the other's."""
    one, other, both = threading.Lock(), threading.Lock(), threading.Barrier(2)
    return started(partial(takes, one, other, both), partial(takes, other, one, both))


FILE, FIRST = re.escape(__file__), takes.__code__.co_firstlineno
BOTH_WAIT = "; ".join(
    f"thread {one} waits in Lock.acquire at {FILE}:{FIRST + 3} for thread {other}, which took it at {FILE}:{FIRST + 1}"
    for one, other in ((1, 2), (2, 1))
)


def test_a_deadlock_is_said_at_once_with_who_waits_for_whom_and_where(silent):
    with pytest.raises(DeadlockError) as stopped, lv.record(on="a100"):
        made = takes_both()
        made[0].join()
    for thread in made:
        thread.join()
    assert re.search(rf"the main thread waits in Thread.join at .* for thread 1.*; {BOTH_WAIT}", str(stopped.value))
    assert silent == [stopped.value] * 2


def test_a_deadlock_of_some_threads_is_noted(silent):
    """The main thread has gone on: with a time-out, or without waiting at all."""
    with lv.record(on="a100") as recording:
        [thread, _] = takes_both()
        thread.join(1e-3)
    told = BOTH_WAIT.replace(FILE, "test_threads.py")  # a note leaves this machine, with a page
    assert any(re.search(told, note) for note in recording.timeline.context.notes)


def test_a_queue_that_nobody_fills_is_a_deadlock_too(silent):
    def fails(ready):
        ready.put(torch.ones(1, device="cuda"))
        raise KeyError("mine")

    says = rf"main thread waits in Queue\.get.*; thread 1 .* ended with KeyError: 'mine' at {re.escape(__file__)}:\d"
    with pytest.raises(DeadlockError, match=says), lv.record(on="a100"):
        ready = queue.Queue()
        started(lambda: fails(ready))
        assert ready.get().is_cuda
        ready.get()
    assert [type(problem) for problem in silent] == [KeyError]


def test_a_wait_that_the_recording_cannot_see_is_refused_with_the_stack(silent, monkeypatch):
    monkeypatch.setattr(threads, "LOOK", 0.01)
    older = holding(threading.Lock())
    says = r"thread 1.* waits for .* a bare lock \(one made before record\(\)"
    with pytest.raises(NotModelledError, match=says) as refused, lv.record(on="a100"):
        [thread] = started(lambda: (torch.ones(1, device="cuda"), older.acquire(timeout=10)))
        time.sleep(1)
    older.release()
    thread.join()
    assert "older.acquire(timeout=10)" in str(refused.value)


@pytest.fixture
def impatient(monkeypatch):
    """What loops is looked at soon, and seldom."""
    for name, value in (("LOOK", 0.01), ("SPINS", 5), ("WORKS", 0)):
        monkeypatch.setattr(threads, name, value)


@pytest.mark.skipif(sys.version_info[:3] == (3, 13, 0), reason="that Python lets an error of a signal out of the block")
def test_a_loop_that_looks_at_a_variable_is_refused(impatient, silent):
    done = []
    says = "the main thread loops over something"
    with pytest.raises(NotModelledError, match=says), lv.record(on="a100"):
        [thread] = started(lambda: (torch.ones(1, device="cuda"), time.sleep(1), done.append(1)))
        time.sleep(0.5)
        while not done:
            pass
    thread.join()


WAITS_IN_A_FETCH = {
    "queue": lambda ready, event, lock: ready.get(),
    "event": lambda ready, event, lock: event.wait(),
    "lock": lambda ready, event, lock: lock.acquire(),
}


@pytest.mark.parametrize("name", WAITS_IN_A_FETCH)
def test_a_fetch_that_waits_for_a_thread_is_refused(name):
    says = "waits for a thread of the program while it fetches"
    with pytest.raises(NotModelledError, match=says), lv.record(on="a100"):
        ready, event, lock = queue.Queue(), threading.Event(), holding(threading.Lock())
        in_threads(lambda: torch.ones(1, device="cuda"))
        [thread] = started(lambda: (work(1), ready.put(1), event.set(), lock.release()))
        next(iter(DataLoader([0], collate_fn=lambda _: WAITS_IN_A_FETCH[name](ready, event, lock))))
    thread.join()


# Where no second thread uses the GPU, what the recording cannot see is none of its business


def note_of(recording):
    [note] = [note for note in recording.timeline.context.notes if "ran in real time" in note]
    return note


@pytest.mark.parametrize("name", WAITS_IN_A_FETCH)
def test_a_fetch_that_waits_for_a_thread_waits_as_it_is_where_none_uses_the_gpu(name):
    with lv.record(on="a100") as recording:
        ready, event, lock = queue.Queue(), threading.Event(), holding(threading.Lock())
        [thread] = started(lambda: (time.sleep(0.05), ready.put(1), event.set(), lock.release()))
        [batch] = DataLoader([0], collate_fn=lambda _: WAITS_IN_A_FETCH[name](ready, event, lock) or 1)
        assert torch.ones(2, device="cuda").sum().item() == 2
        thread.join()
    assert batch == 1 and "while it fetches" in note_of(recording) and recording.timeline.self_check()


def test_a_loop_that_looks_at_a_variable_of_a_thread_without_gpu_comes_to_its_end(impatient):
    done = []
    with lv.record(on="a100") as recording:
        started(lambda: done.append(torch.ones(3).sum().item()))
        while not done:
            pass
        assert torch.ones(2, device="cuda").sum().item() == 2
    assert done == [3] and "the main thread loops over something" in note_of(recording)
    assert "at test_threads.py:" in note_of(recording) and "let the loop call time.sleep" in note_of(recording)


@pytest.mark.parametrize("host", ["laptop", "auto"])
def test_a_thread_that_comes_back_from_a_wait_unseen_has_the_cpu_and_no_gpu(host, monkeypatch, silent):
    """It was the one that ran, with the recording's modes: neither its operators nor its locks count any more."""
    monkeypatch.setattr(threads, "LOOK", 0.01)
    older, seen, names = holding(threading.Lock()), [], queue.Queue()

    def waits():
        older.acquire()
        x = torch.nn.Linear(4, 2)(torch.ones(3, 4, requires_grad=True)).sum()
        x.backward()
        seen.append(x.device.type)
        names.put(1)
        time.sleep(1e-3)
        torch.ones(1, device="cuda")

    says = "no turns any more: thread 1 .* waits for something that the recording cannot see"
    with pytest.raises(NotModelledError, match=says), lv.record(on="a100", host=host) as recording:
        [thread] = started(waits)
        time.sleep(1)
        assert torch.ones(2, device="cuda").add(1).sum().item() == 4
        before = now()
        older.release()
        names.get()
        passed = now() - before
        threading.Thread.join(thread)

    assert seen == ["cpu"] and [type(problem) for problem in silent] == [NotModelledError]
    waited = [span.end - span.start for span in recording.timeline.rows() if span.name == "Queue.get"]
    assert host == "auto" or passed == sum(waited)
    assert not [lane for lane in recording.timeline.lanes if lane.role == "thread" and "Linear" in lane.name]
    assert "at test_threads.py:" in note_of(recording)


def test_a_recording_that_stops_early_lets_threads_without_gpu_go_on():
    done = []
    with lv.record(on="a100", host=HOST, wait=1, steps=2) as recording:
        ready, net = queue.Queue(1), torch.nn.Linear(6, 3).cuda()
        [thread] = started(lambda: [ready.put(torch.randn(4, 6)) for _ in range(12)] + [done.append(1)])
        for _ in range(12):
            recording.step()
            net(ready.get().to("cuda")).sum().backward()
        assert Session.active.since_stop()
        thread.join()
        in_threads(lambda: done.append(torch.ones(3).sum().item()))
    assert done == [1, 3] and len(recording.timeline.self_check()) > 4


def test_a_thread_that_begins_after_an_early_stop_uses_the_gpu():
    seen = []
    with lv.record(on="a100", host=HOST, steps=1) as recording:
        x = torch.ones(3, device="cuda")
        for _ in range(6):
            recording.step()
            x = x * 1
        assert Session.active.since_stop()
        in_threads(lambda: seen.append((x + torch.ones(3, device="cuda")).cpu().tolist()))
        assert (x + 1).is_cuda
    assert seen == [[2, 2, 2]]


def test_a_program_of_one_thread_has_the_same_timeline_with_turns_and_without():
    def program():
        ready, lock, event = queue.Queue(), threading.RLock(), threading.Event()
        net, more = torch.nn.Linear(8, 2).cuda(), queue.SimpleQueue()
        for x, y in DataLoader(TensorDataset(torch.randn(16, 8), torch.zeros(16, dtype=torch.long)), 4):
            with lock:
                ready.put(x.cuda(non_blocking=True)), more.put(y.cuda())
            event.set(), event.wait(1), event.is_set()
            torch.nn.functional.cross_entropy(net(ready.get()), more.get()).backward()
            time.sleep(1e-4)

    recorded = []
    for turns in (True, False):
        with lv.record(on="a100", host="laptop", threads=turns) as recording:
            program()
        recorded.append(table(recording.timeline))
    assert recorded[0] == recorded[1]


def test_names_of_threads_are_what_programs_take_them_for():
    real = threading.Lock(), queue.SimpleQueue()
    with lv.record(on="a100"):
        made = queue.SimpleQueue()
        assert isinstance(made, queue.SimpleQueue) and isinstance(real[1], queue.SimpleQueue)

        class Mine(queue.SimpleQueue):
            pass

        mine = Mine()
        mine.put(1)
        assert isinstance(mine, queue.SimpleQueue) and type(mine) is Mine and mine.get() == 1
        for each in (threading.Lock(), real[0], threading.RLock(), made):
            for take in (pickle.dumps, copy.deepcopy):
                with pytest.raises(TypeError, match="pickle"):
                    take(each)
        inside, ready = threading.Lock(), threading.Condition(threading.Lock())
    with inside, ready:
        assert inside.locked() and repr(inside).startswith("<locked _thread.lock") and not inside.acquire_lock(False)


@pytest.mark.parametrize("asleep", ["in a queue", "in time.sleep", "in a call of the GPU"])
def test_a_thread_that_goes_on_after_the_block_has_the_cpu_and_no_gpu(asleep):
    seen = []

    def late():
        try:
            if asleep == "in a queue":
                ready.get()
            elif asleep == "in time.sleep":
                time.sleep(1)
            else:
                work(1)
                torch.ones(1, device="cuda")
                torch.ones(1, device="cuda")
        except lv.LoadervizError as problem:
            seen.append(problem)
        seen.append(torch.ones(3).add(1).sum().item())
        try:
            torch.ones(1, device="cuda")
        except Exception as problem:
            seen.append(problem)

    with lv.record(on="a100"):
        ready = queue.Queue()
        [thread] = started(late)
        time.sleep(1e-3)
    ready.put(1)
    thread.join()
    with lv.record(on="a100") as recording:
        assert torch.ones(2, device="cuda").sum().item() == 2
    assert 6.0 in seen and isinstance(seen[-1], (lv.LoadervizError, AssertionError, RuntimeError))
    assert not recording.timeline.context.notes


def no_more(*_, **__):
    raise RuntimeError("no more")


def test_a_thread_that_could_not_be_started_has_no_turn(monkeypatch):
    with lv.record(on="a100"):
        thread = threading.Thread(target=bool)
        with monkeypatch.context() as patch:
            patch.setattr(threading, STARTS_A_THREAD, no_more)
            with pytest.raises(RuntimeError, match="no more"):
                thread.start()
        in_threads(lambda: torch.ones(1, device="cuda"))
        time.sleep(1e-3)


def test_what_is_kept_of_a_run_with_threads_is_that_part_of_the_whole():
    def steps(**options):
        with lv.record(on="a100", host=HOST, **options) as recording:
            ready, data = queue.Queue(1), torch.randn(64, 6)
            net = torch.nn.Linear(6, 3).cuda()
            optimizer = torch.optim.SGD(net.parameters(), 0.1)
            [thread] = started(lambda: [ready.put(data[at : at + 4].to("cuda")) for at in range(0, 64, 4)])
            for _ in range(0, 64, 4):
                recording.step()
                net(ready.get()).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            thread.join()
            still_emulated = Session.active.aside is None
        assert still_emulated
        return recording.timeline.self_check()

    whole, part = steps(), steps(wait=3, steps=4)
    assert len(part) > 4
    assert list(part.rows()) == list(cut(whole, 3, 4, by_call=True).rows())


def test_a_timeline_that_takes_long_to_be_built_is_no_loop_of_the_program(impatient, monkeypatch):
    finish = Session.finish

    def slow(session):
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            pass
        return finish(session)

    with lv.record(on="a100"):
        [thread] = started(partial(time.sleep, 1))
        time.sleep(1e-3)
        monkeypatch.setattr(Session, "finish", slow)
    thread.join()


def test_a_refusal_at_the_end_of_the_block_lets_the_other_threads_go_on():
    scheduler, problem = None, NotModelledError("refused")
    with pytest.raises(NotModelledError, match="refused"), lv.record(on="a100"):
        [thread] = started(partial(time.sleep, 1))
        time.sleep(1e-3)
        scheduler = Session.active.scheduler
        scheduler.main.problem, scheduler._wanted = problem, scheduler.main
    thread.join(60)
    assert not thread.is_alive() and not scheduler.alive


class Stage:
    """A thread that goes on until the finalizer ends it; it lies in a cycle, as the iterators of torchdata do."""

    def __init__(self):
        self.itself, self.over = self, threading.Event()
        [self.thread] = started(partial(self.run, self.over))

    @staticmethod
    def run(over):
        while not over.wait(1e-3):
            torch.ones(1).add(1)

    def __del__(self):
        self.over.set()
        if self.thread is not threading.current_thread():  # after the block any thread may collect it
            self.thread.join()


@pytest.mark.parametrize("forgotten", ["in the block", "in an earlier one"])
def test_garbage_is_collected_when_virtual_time_says_so(forgotten):
    """Python's own moment depends on how many objects there are, of which a first run makes more."""
    before, seen = gc.get_threshold(), []
    try:
        for threshold in (7, 5000, 50):
            gc.set_threshold(threshold, 3, 3)
            if forgotten != "in the block":
                with lv.record(on="a100"):
                    Stage()
            beside_it = threading.active_count()
            with lv.record(on="a100") as recording:
                for _ in range(4):
                    Stage()
                    for _ in range(60):
                        torch.ones(8, device="cuda").sum().item()
                        [{} for _ in range(20)]
                assert threading.active_count() - beside_it < 4
            assert gc.get_threshold() == (threshold, 3, 3)
            seen.append(table(recording.timeline))
    finally:
        gc.set_threshold(*before)
    assert seen[0] == seen[1] == seen[2]


def test_a_thread_of_an_earlier_recording_is_waited_for_as_it_is():
    go_on = threading.Event()
    with lv.record(on="a100"):
        [old] = started(lambda: go_on.wait(10) and threads.REAL_SLEEP(0.5))
        time.sleep(1e-3)
    go_on.set()
    with lv.record(on="a100"):
        in_threads(bool)
        old.join()
        assert not old.is_alive()


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_child_collects_garbage_as_ever():
    before = gc.get_threshold()
    with lv.record(on="a100"), beside(partial(time.sleep, 1e-3)):
        assert not gc.get_threshold()[0]
        reader, writer = os.pipe()
        if not (child := os.fork()):
            os.write(writer, b"as ever" if gc.get_threshold() == before else b"not")
            os._exit(0)
        assert os.read(reader, 10) == b"as ever"
        os.waitpid(child, 0)
    assert gc.get_threshold() == before


def of_a_thread_pool(device):
    def load(number):
        work(1e-4 * (number % 3 + 1))
        time.sleep(1e-4)
        return torch.full((8,), float(number)).to(device).sum().item()

    with ThreadPool(3) as pool:
        loaded = [*pool.map(load, range(6)), *sorted(pool.imap_unordered(load, range(4)))]
        loaded.append(pool.apply_async(load, (5,)).get(timeout=1))
    pool = DummyPool(2)
    loaded += pool.starmap(load, [(1,), (2,)])
    pool.close()
    pool.join()
    return loaded


def test_a_pool_of_threads_is_in_virtual_time_and_one_of_processes_is_not():
    plain, seen = of_a_thread_pool("cpu"), []
    for _ in range(4):
        with lv.record(on="a100", host="laptop") as recording:
            assert of_a_thread_pool("cuda") == plain
        seen.append(table(recording.timeline))
    assert all(each == seen[0] for each in seen) and len(seen[0][0]) > 8
    with lv.record(on="a100") as recording, beside(partial(time.sleep, 1)), get_context("spawn").Pool(1) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]
    assert len([lane for lane in recording.timeline.lanes if "thread" in lane.name]) == 1


def test_a_thread_that_looks_for_what_a_process_sends_lets_time_pass():
    """As torchdata's ParallelMapper does with processes, while the main thread sleeps: that never came to an end."""
    messages, (reader, writer), found = get_context("spawn").Queue(), Pipe(), []

    def look():
        while len(found) < 2:
            found.extend([reader.recv()] if reader.poll(0.02) else [])
            with contextlib.suppress(queue.Empty):
                found.append(messages.get(timeout=0.02))

    with lv.record(on="a100") as recording, beside(look):
        time.sleep(0.05)
        messages.put(1)
        writer.send(2)
        time.sleep(0.1)
        torch.ones(2, device="cuda").sum().item()
    assert sorted(found) == [1, 2] and any("another process" in note for note in recording.timeline.context.notes)
    messages.close()


PAIR = socket.socketpair()
ALONE = {
    "event": lambda: threading.Event().wait(0.02),
    "empty queue": lambda: queue.Queue().get(timeout=0.02),
    "full queue": lambda: [full := queue.Queue(1), full.put(1), full.put(2, timeout=0.02)],
    "simple queue": lambda: queue.SimpleQueue().get(timeout=0.02),
    "semaphore": lambda: threading.Semaphore(0).acquire(timeout=0.02),
    "lock": lambda: [lock := threading.Lock(), lock.acquire(), lock.acquire(timeout=0.02)],
    "condition": lambda: [condition := threading.Condition(), condition.acquire(), condition.wait(0.02)],
    "barrier": lambda: threading.Barrier(2).wait(0.02),
    "future": lambda: Future().result(0.02),
    "select": lambda: select.select([], [], [], 0.02),
    "selector": lambda: selectors.SelectSelector().select(0.02),
    "poll": lambda: select.poll().poll(20),
    "connection": lambda: [pair := Pipe(), pair[0].poll(0.02)],
    "socket": lambda: [PAIR[0].settimeout(0.02), PAIR[0].recv(1)],
}


@pytest.fixture
def alone(monkeypatch):
    """As in a program of its own: the tests before may have left threads, which could end a wait."""
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread()])


@pytest.mark.parametrize("wait", ALONE)
def test_a_wait_of_the_only_thread_takes_the_time_that_it_may(wait, alone):
    """R51. It took no virtual time, so that a loop until a deadline had no end."""
    with lv.record(on="a100", host=HOST):
        begin = time.monotonic()
        with contextlib.suppress(queue.Empty, queue.Full, threading.BrokenBarrierError, TimeoutError):
            ALONE[wait]()
        assert 0.02 <= time.monotonic() - begin < 0.0201
        event, rounds = threading.Event(), 0
        while time.monotonic() < begin + 0.1:
            event.wait(0.01)
            rounds += 1
    assert rounds == 8


async def locks_twice():
    lock = asyncio.Lock()
    await lock.acquire()
    await lock.acquire()


@pytest.mark.parametrize("wait", [lambda: [lock := threading.Lock(), lock.acquire(), lock.acquire()],
                                  lambda: queue.Queue().get(), lambda: asyncio.run(locks_twice())])  # fmt: skip
def test_the_only_thread_that_waits_for_itself_is_a_deadlock(wait, alone):
    says = "the main thread waits in .*; no other thread was started"
    with pytest.raises(DeadlockError, match=says), lv.record(on="a100"):
        wait()


@pytest.mark.parametrize("has_turns", [False, True])
@pytest.mark.parametrize("of", ["a socket", "a process"])
def test_what_comes_from_outside_takes_as_long_as_on_this_machine(of, has_turns):
    order, (one, other), answers = queue.Queue(), socket.socketpair(), get_context("spawn").Queue()

    def outside():
        order.get()
        threads.REAL_SLEEP(0.05)
        answers.put(1)
        other.send(b"1")

    with beside(outside), lv.record(on="a100", host=HOST) as recording:
        in_threads(*[bool] * has_turns)
        begin = time.monotonic()
        order.put(1)
        one.recv(1) if of == "a socket" else answers.get(timeout=60)
        assert 0.04 <= time.monotonic() - begin < 30
    assert any("as long as on this machine" in note for note in recording.timeline.context.notes)
    answers.close(), one.close(), other.close()


@pytest.mark.this_clock  # a thread that starts late has less of its sleep left when it is joined
def test_after_a_fall_back_to_real_time_waits_take_as_long_as_they_do(monkeypatch):
    monkeypatch.setattr(threads, "LOOK", 0.01)
    older = holding(threading.Lock())
    with lv.record(on="a100", host=HOST) as recording:
        started(partial(older.acquire, timeout=2))
        time.sleep(1e-3)
        begin = time.monotonic()
        threading.Event().wait(0.02)
        in_threads(partial(threads.REAL_SLEEP, 0.02))
        assert time.monotonic() - begin >= 0.04
    assert "ran in real time" in note_of(recording)
