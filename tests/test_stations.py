"""Where a thread is: seen at once, since it goes on while it is looked at."""

import bisect
import copy
import gc
import io
import json
import linecache
import multiprocessing
import os
import re
import signal
import sys
import tarfile
import threading
import weakref
import zipfile
import zlib
from collections import Counter
from itertools import pairwise
from time import perf_counter, sleep, thread_time
from types import SimpleNamespace

import factory
import pytest
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Sampler, Subset, random_split

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
    with factory.beside(lambda: space["fetch"](samples())) as thread:
        assert arrived.wait(10)
        monkeypatch.setattr(linecache, "getline", line_of)
        place = stations.place_of(stations.stack_of(thread.ident))
    line = read.__code__.co_firstlineno + 2
    assert place in ((Cause.INPUT, f"{__file__}:{line}"), (Cause.INPUT, f"{__file__}:{line - 1}"))


@pytest.mark.parametrize(("hold", "cause"), [(multiprocessing.Lock, Cause.THREAD), (threading.Event, Cause.INPUT)])
def test_a_fetch_that_waits_for_a_lock_of_processes_waits_for_another_of_them(hold, cause):
    held = hold()

    def take(arrived):
        arrived.set()
        if isinstance(held, threading.Event):
            held.wait(10)
        else:
            with held:
                pass

    def samples():
        take(arrived)
        yield 1

    if cause == Cause.THREAD:
        held.acquire()
    arrived, space = threading.Event(), {}
    exec(compile(FETCH, stations._FETCH, "exec"), space)
    thread = threading.Thread(target=lambda: space["fetch"](samples()))
    thread.start()
    assert arrived.wait(10)
    sleep(0.1)  # it is in C by then
    place = stations.place_of(stations.stack_of(thread.ident))
    held.release() if cause == Cause.THREAD else held.set()
    thread.join()
    first = take.__code__.co_firstlineno
    assert place == (cause, f"{__file__}:{first + (5 if cause == Cause.THREAD else 3)}")
    assert place.seen(waited=10, busy=1) == place
    assert place.seen(waited=1, busy=10).cause == Cause.TRANSFORM


@pytest.mark.parametrize(
    ("program", "line"), [(["train.py", "main.py"], "train.py:1"), ([], "/venv/lib/site-packages/images/folder.py:1")]
)
def test_a_place_is_the_innermost_line_of_the_program_or_the_outermost_of_a_package(program, line):
    packages = [f"/venv/lib/site-packages/{name}.py" for name in ("PIL/Image", "images/decoder", "images/folder")]
    files = [*packages, *program, stations._FETCH, "main.py"]
    stack = [stations.Call(compile("0", file, "exec"), 1, {}) for file in files]
    assert stations.place_of(stack) == (Cause.TRANSFORM, line)
    assert stations.place_of(stack[:-2]) == (Cause.NONE, line)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("record = json.loads(lines[index])", Cause.DECODE),  # no file is read
        ("return orjson.loads(self.rows[index])", Cause.DECODE),
        ("notes = json.load(file)", Cause.READ),
        ("sample = pickle.load(open(path, 'rb'))", Cause.READ),
        ("fcntl.flock(file, fcntl.LOCK_EX)", Cause.THREAD),
    ],
)
def test_what_a_fetch_does_is_told_by_its_line(monkeypatch, text, cause):
    monkeypatch.setattr(linecache, "getline", lambda file, line: text)
    space, seen = {"take": lambda: seen.append(stations.place_of(stations.stack_of())) or 1}, []
    exec(compile("def fetch(take):\n    return [take()]\n", stations._FETCH, "exec"), space)
    space["fetch"](space["take"])
    assert [place.cause for place in seen] == [cause]


def test_a_stack_is_of_one_moment_while_its_thread_calls_and_returns():
    """Also where garbage is collected, of which a program may be told in Python."""
    gc.callbacks.append(lambda phase, told: sum(range(3)))
    begun, ended, before = [], [], sys.getswitchinterval()

    def numbers(upto):
        yield from range(upto)
        if upto:
            yield from numbers(upto - 1)

    def call(depth):
        kept = [depth]
        return call(depth - 1) if depth else sum(n for n in numbers(5) if kept)

    def work():
        while not ended:
            begun[:] = [call(12)]

    with factory.beside(work) as thread:
        while not begun:
            threading.Event().wait(0.01)
        sys.setswitchinterval(1e-6)
        stacks = [stations.stack_of(thread.ident) for _ in range(20_000)]
        sys.setswitchinterval(before)
        ended.append(True)
    gc.callbacks.pop()
    seen = {" ".join(call.code.co_name for call in stack) for stack in stacks}
    whole = re.compile(r"(\S+ ){0,2}(numbers )*(<genexpr> )?(call )*work run _bootstrap_inner _bootstrap")
    assert [stack for stack in seen if not whole.fullmatch(stack)] == []
    assert any("call call" in stack for stack in seen)


def seen_in(function, seconds=1.0):
    """Return in which lines what calls it again and again was seen, each with its share of the looks."""
    sampler, until = stations.Sampler(), perf_counter() + seconds
    while perf_counter() < until:
        function()
    sampler.stop()
    lines = Counter(look.line.removeprefix(f"{__file__}:") for look in sampler.seen)
    return {line: count / lines.total() for line, count in lines.items()}


@pytest.mark.this_clock
def test_work_in_python_is_seen_beside_code_that_lets_go_of_the_interpreter():
    data, packed, summed = os.urandom(20_000), [], []

    def step():
        began = thread_time()
        zlib.compress(data)
        packed.append(thread_time() - began)
        sum([number * number for number in range(30_000)])
        summed.append(thread_time() - began - packed[-1])

    first, seen = step.__code__.co_firstlineno, seen_in(step)
    truth = sum(summed) / sum(packed + summed)
    assert truth / 2 < seen[str(first + 4)] < 1.5 * truth


def test_threads_take_turns_sooner_only_while_a_sampler_looks():
    usual = sys.getswitchinterval()
    one = stations.Sampler()
    assert sys.getswitchinterval() == pytest.approx(stations.TURN)
    stations.Sampler().stop()  # as in a worker, which was forked meanwhile
    assert sys.getswitchinterval() == pytest.approx(usual)
    one.stop()
    one.stop()
    assert sys.getswitchinterval() == pytest.approx(usual)
    one = stations.Sampler()
    sys.setswitchinterval(0.003)  # the program's own
    one.stop()
    assert sys.getswitchinterval() == pytest.approx(0.003)
    sys.setswitchinterval(1e-6)
    one = stations.Sampler()
    assert sys.getswitchinterval() == pytest.approx(1e-6)
    one.stop()
    assert sys.getswitchinterval() == pytest.approx(1e-6)
    sys.setswitchinterval(usual)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("times", [15, factory.slow(60)])
def test_a_forked_process_stops_its_parents_sampler(monkeypatch, times):
    """Whatever the thread that looks was doing when the process was forked."""
    monkeypatch.setattr(stations, "SOON", 0)
    for _ in range(times):
        sampler = stations.Sampler(often=10**9)
        child = os.fork()
        if not child:
            sampler.stop()
            os._exit(0)
        until = perf_counter() + 20
        while not (gone := os.waitpid(child, os.WNOHANG)[0]) and perf_counter() < until:
            sleep(0.001)
        sampler.stop()
        if not gone:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        assert gone


def clocked():
    """Return a sampler that never looks, and the time of its clock, to be set."""
    now = [0]

    class Clocked(stations.Sampler):
        wall = staticmethod(lambda: now[0])

        def _run(self):
            pass

    sampler = Clocked()
    sampler.stop()
    return sampler, now


@pytest.mark.parametrize(("share", "times"), [(0, 0), (10, 2), (40, 8), (60, 12), (100, 20)])
def test_fetches_are_said_to_collate_as_long_as_they_do(share, times):
    sampler, now = clocked()

    def collate(samples):
        now[0] += share
        return samples[0]

    found = []
    for _ in range(20):
        sampler.begin()
        now[0] += 100 - share
        assert stations.timed(collate, sampler)([3]) == 3
        found.append(sampler.most())
    line = collate.__code__.co_firstlineno
    assert found.count((Cause.COLLATE, f"{__file__}:{line}")) == times
    assert found.count(None) == 20 - times


def test_each_fetcher_is_told_by_its_own():
    class Fetcher:
        def __init__(self, collate):
            self.collate_fn = collate

    sampler, now = clocked()

    def slow(samples):
        now[0] += 1000
        return samples

    def quick(samples):
        return samples

    fetchers, found = (Fetcher(slow), Fetcher(quick)), ([], [])
    for number in (0, 1, 1, 0, 1, 1):
        sampler.begin()
        now[0] += 10
        with stations.timing(fetchers[number], sampler):
            fetchers[number].collate_fn([])
        found[number].append(sampler.most())
    assert found[0] == [(Cause.COLLATE, f"{__file__}:{slow.__code__.co_firstlineno}")] * 2
    assert found[1] == [None] * 4


def test_the_line_that_collates_is_the_one_that_was_seen_most():
    sampler = stations.Sampler()
    sampler.stop()
    sampler.begin()
    often, seldom = (stations.Place(Cause.COLLATE, f"a.py:{line}") for line in (3, 4))
    sampler._counts.update({often: 3, seldom: 1})
    sampler.collated(None, 10**12)
    assert sampler.most() == often


def test_looks_while_an_emulated_clock_stands_still_follow_each_other():
    now = [7]
    sampler = stations.Sampler(lambda: now[0], own=True)
    while len(sampler.seen) < 4:
        sum(range(100))
    now[0] = 10**15
    sleep(0.05)
    sampler.stop()
    first = [look for look in sampler.seen if look.time < 10**15]
    assert len(first) > 2 and first[0].time == 7
    assert all(late.time - early.time == early.lasts for early, late in pairwise(first))


@pytest.mark.this_clock
def test_a_look_that_comes_late_stands_for_the_time_before_it():
    """Code in C that does not let go of the interpreter is seen after it."""
    data = [[number, str(number)] for number in range(100_000)]
    sampler, began = stations.Sampler(), perf_counter()
    for _ in range(5):
        json.dumps(data)
    took = perf_counter() - began
    sampler.stop()
    assert sum(look.lasts for look in sampler.seen) > took * 1e9 / 2


def test_a_part_of_a_data_set_is_the_data_set():
    """Subset and ConcatDataset are torch's own, in the module of the DataLoader."""

    slow = factory.Samples(lambda index: (stations.place_of(stations.stack_of()).cause, index))
    for data in (Subset(slow, [1, 2]), ConcatDataset([slow, slow]), random_split(slow, [3, 1])[0]):
        cause, _ = next(iter(DataLoader(data, None)))
        assert cause == Cause.TRANSFORM


def test_what_collates_is_timed_in_a_block_alone_and_its_error_is_the_programs():
    fetcher = SimpleNamespace(collate_fn=lambda samples: 1 // samples)
    mine, sampler = fetcher.collate_fn, stations.Sampler()
    with pytest.raises(ZeroDivisionError), stations.timing(fetcher, sampler):
        assert fetcher.collate_fn(1) == 1
        fetcher.collate_fn(0)
    sampler.stop()
    assert fetcher.collate_fn is mine


def test_own_frames_are_kept_by_nobody(uncollected):
    class Thing:
        pass

    def call():
        thing = Thing()
        place = stations.place_of(stations.stack_of())
        return weakref.ref(thing), place

    gone, place = call()
    assert gone() is None
    assert place == (Cause.NONE, f"{__file__}:{call.__code__.co_firstlineno + 2}")


@pytest.mark.parametrize("enabled", [True, False])
def test_whether_garbage_is_collected_is_as_before(monkeypatch, enabled):
    (gc.enable if enabled else gc.disable)()
    try:
        for thread in (None, threading.get_ident(), 0):
            stations.stack_of(thread)
            assert gc.isenabled() is enabled
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr(stations, "attrgetter", lambda *names: lambda frame: 1 // 0)
            stations.stack_of()
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


def test_an_empty_stack_is_nowhere():
    assert stations.stack_of(0) == [] and stations.place_of([]) is None and not stations.is_own([])


class Order(Sampler):
    """Rows in an order that takes a while, of which a loop without workers is seen in the last line."""

    def __iter__(self):
        total = 0
        for number in range(400_000):
            total += number
        return iter([total % 4] * 4)

    def __len__(self):
        return 4


@pytest.mark.parametrize("own", [False, True])
def test_a_sampler_that_works_is_seen_in_its_line(own):
    looks = stations.Sampler(own=own)
    list(DataLoader([1, 2, 3, 4], 2, sampler=Order()))
    looks.stop()
    first = Order.__iter__.__code__.co_firstlineno
    lines = {f"{__file__}:{first + row}" for row in range(1, 5)}
    assert sum(look.lasts for look in looks.seen if look.line in lines) > 0


@pytest.mark.parametrize("opener", [tarfile.open, zipfile.ZipFile])
@pytest.mark.parametrize("helper", [copy.copy, os.path.join, bisect.bisect])
def test_what_reads_an_archive_is_reading_whatever_module_helps_it(opener, helper, tmp_path):
    """`tarfile` copies what it knows of a member with `copy`, which would be code of the data set."""
    stacks = []

    class Watched(io.FileIO):
        def readinto(self, buffer):
            stacks.append(stations.stack_of())
            return super().readinto(buffer)

        def read(self, *size):
            stacks.append(stations.stack_of())
            return super().read(*size)

    class Members(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return len((archive.extractfile if opener is tarfile.open else archive.open)(f"{index}.bin").read())

    path = tmp_path / "members"
    if opener is tarfile.open:
        with tarfile.open(path, "w") as archive:
            for index in range(2):
                archive.addfile(known := tarfile.TarInfo(f"{index}.bin"), io.BytesIO())
                assert known.size == 0
    else:
        with zipfile.ZipFile(path, "w") as archive:
            for index in range(2):
                archive.writestr(f"{index}.bin", b"x" * 100)
    with Watched(path) as file:
        archive = opener(fileobj=file) if opener is tarfile.open else opener(file)
        stacks.clear()
        list(DataLoader(Members(), None))
    code = getattr(helper, "__code__", None) or os.path.split.__code__
    names = vars(sys.modules[helper.__module__]) if hasattr(helper, "__code__") else {"__name__": "_bisect"}
    inside = [stack[1:] for stack in stacks]
    places = {stations.place_of([stations.Call(code, 1, names), *stack]) for stack in inside}
    line = Members.__getitem__.__code__.co_firstlineno + 1
    assert places == {(Cause.READ, f"{__file__}:{line}")}
