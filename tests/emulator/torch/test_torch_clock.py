"""Inside a recording time is the virtual host's, and other Python is free or measured."""

import itertools
import subprocess
import sys
import threading
import time
import timeit
from dataclasses import replace
from time import perf_counter as early_perf_counter
from time import sleep as early_sleep

import pytest
import torch
from factory import in_threads
from torch.utils import benchmark

import loaderviz as lv
from loaderviz.emulator import Host, host
from loaderviz.stations import SAMPLING
from loaderviz.timeline import Kind

HOST = Host.preset("laptop")


@pytest.mark.parametrize("clock", ["perf_counter", "monotonic", "time"])
def test_clocks_follow_the_virtual_host(clock, recording):
    """Those that were imported before the recording, too."""
    clocks = getattr(time, clock), early_perf_counter, timeit.default_timer, getattr(time, clock + "_ns")
    before = [read() for read in clocks]
    early_sleep(3600)
    *seconds, ns = (read() - start for read, start in zip(clocks, before, strict=True))
    assert seconds == pytest.approx([3600] * 3, abs=1e-3) and ns == pytest.approx(3600 * 10**9, abs=10**6)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("auto", "laptop (cores, new pages of memory, data sets and other Python as measured on this machine; the "),
        ("laptop", "laptop (other Python costs nothing)"),
        (replace(HOST, ranks_on_host=8), "laptop (8 ranks share it) (other Python costs nothing)"),
    ],
)
def test_a_timeline_says_what_of_its_host_was_measured_and_who_shares_it(given, told):
    with lv.record(on="a100", host=given) as recording:
        torch.ones(2, device="cuda")
    assert recording.timeline.context.host.startswith(told)
    assert ("the preset's calls of torch" in recording.timeline.context.host) == (given == "auto")


def test_clocks_go_on_from_the_real_ones_and_back():
    before = time.time()
    with lv.record(on="a100"):
        inside = time.time()
        time.sleep(10**6)
    assert before <= inside <= time.time() < before + 10**5


def test_a_loop_that_waits_for_the_clock_ends(recording):
    end = time.monotonic() + 0.001
    while time.monotonic() < end:
        pass


def test_other_threads_keep_real_time(recording):
    seen = []

    def work():
        start = time.perf_counter()
        time.sleep(0.01)
        seen.append(time.perf_counter() - start)

    in_threads(work)
    assert seen[0] < 60
    with pytest.raises(ValueError, match="non-negative"):
        time.sleep(-1)


def test_a_sleep_is_a_span_of_the_main_lane():
    with lv.record(on="a100") as recording:
        time.sleep(0.25)
    (span,) = recording.timeline.rows(Kind.OPERATOR)
    assert (span.name, span.duration) == ("time.sleep", 250_000_000)


def test_benchmark_timer_measures_virtual_time(recording):
    x = torch.ones(4, device="cuda")
    measured = benchmark.Timer("x.add(1); torch.cuda._sleep(150_000)", globals={"x": x, "torch": torch}).timeit(20)
    assert 1e-4 < measured.mean < 2e-4  # 0.1 ms on the device is what each takes in the end


def test_host_operators_cost_dispatch_and_bytes():
    values = torch.ones(10**6)
    with lv.record(on="a100") as recording:
        values.add(1)
        values.view(10, -1).t().detach()
    (span,) = recording.timeline.rows(Kind.OPERATOR)
    assert (span.name, span.duration) == ("aten::add", HOST.dispatch + HOST.work_time(8 * 10**6))


def test_other_python_is_free_under_a_preset():
    with lv.record(on="a100") as recording:
        sum(range(10**6))
        torch.ones(1, device="cuda")
    assert "costs nothing" in recording.timeline.context.host
    assert recording.timeline.duration < 10**6


def test_measured_time_is_the_threads_processor_time_and_no_time_on_the_wall(monkeypatch):
    """What other programs, or a real wait, take is no time of this program."""
    burnt = [0]
    monkeypatch.setattr(host, "thread_time_ns", lambda: burnt[0])
    ends = []
    for work in (0, 3_000_000):
        with lv.record(on="a100", host="auto") as recording:
            torch.ones(1, device="cuda")
            threading.Event().wait(0.01)
            burnt[0] += work
            torch.ones(1, device="cuda")
        ends.append(recording.timeline.rows(Kind.OPERATOR))
    assert "measured" in recording.timeline.context.host
    starts = [[span.start for span in rows] for rows in ends]
    assert [after - before for before, after in zip(*starts, strict=True)] == [0, 3_000_000]


def test_what_the_emulator_takes_around_a_call_is_taken_off(monkeypatch):
    """Here each look at the clock takes 1 us, so that each piece of Python is 1 us of the emulator's own."""
    clock = itertools.count(0, 1_000)
    monkeypatch.setattr(host, "thread_time_ns", lambda: next(clock))
    with lv.record(on="a100", host="auto") as recording:
        x = torch.ones(1, device="cuda")
        for _ in range(50):
            x.add_(1)
    starts = [span.start for span in recording.timeline.rows(Kind.OPERATOR)][1:]
    assert {after - before for before, after in itertools.pairwise(starts)} == {HOST.dispatch + HOST.launch}


def test_what_a_preset_prices_is_not_measured_as_well(monkeypatch):
    """Python in a module, in backward and in an optimizer's step costs what `Host` says, all else what it burns."""
    burnt, inside = [0], [0]
    monkeypatch.setattr(host, "thread_time_ns", lambda: burnt[0])

    class Burns(torch.nn.Linear):
        def forward(self, x):
            burnt[0] += inside[0]
            return super().forward(x)

    def hook(*_):
        burnt[0] += inside[0]

    ends = []
    for inside[0], outside in ((0, 0), (10**9, 0), (0, 3_000)):
        with lv.record(on="a100", host="auto") as recording:
            model = Burns(4, 4).to("cuda")
            model.weight.register_hook(hook)
            optimizer = torch.optim.SGD(model.parameters())
            for _ in range(2):
                loss = model(torch.ones(4, 4, device="cuda")).sum()
                burnt[0] += outside
                loss.backward()
                optimizer.step()
        ends.append(max(span.start for span in recording.timeline.rows(Kind.OPERATOR)))
    assert [end - ends[0] for end in ends] == [0, 0, 2 * 3_000]


def test_a_clock_that_ticks_coarsely_counts_right_in_sum(monkeypatch):
    """As on Windows: a piece of 0.1 ms is no tick or one of 16 ms, and each of the emulator's as well."""
    real = [0]
    monkeypatch.setattr(host, "thread_time_ns", lambda: real[0] // 16_000_000 * 16_000_000)
    own, counted = host.OwnTime(), 0
    own.overhead = 20_000
    for _ in range(5000):
        own.go()
        real[0] += 120_000
        counted += own.stop()
        real[0] += 37_000  # the emulator's
    assert abs(counted - 5000 * 100_000) < 32_000_000


BARE = """
import os, threading, time
del time.thread_time_ns, time.thread_time, os.O_CLOEXEC, threading.get_native_id, threading.Thread.native_id
threading._HAVE_THREAD_NATIVE_ID = False
real = os.listdir
def no_proc(path):
    if str(path).startswith("/proc/self/task"):
        raise FileNotFoundError(path)
    return real(path)
os.listdir = no_proc

import loaderviz as lv
import loaderviz.analysis.calibration
import torch
from torch.utils.data import DataLoader

with lv.record(on="a100") as recording:
    for workers in 0, 2:
        for batch in DataLoader([torch.ones(4)] * 8, 2, num_workers=workers):
            batch.to("cuda").sum().item()
print(len(recording.timeline.self_check()) > 100, lv.emulator.host.waiting_time.is_exact)
"""


@pytest.mark.slow
def test_a_system_without_clocks_of_threads_records():
    """Python has no thread_time_ns on some, and Windows no O_CLOEXEC; neither tells how long one waited for a core."""
    done = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True False\n"), done.stderr


MINE, PYTHON, NATIVE, OTHER, SAMPLER = threading.get_native_id(), 10**8, 10**8 + 1, 10**8 + 2, 10**9


@pytest.mark.parametrize(
    ("process", "threads", "waited", "spun"),  # a wait of 60 ms, of which the process's clock and the threads' are told
    [
        (0, {}, 60, 0),
        (25, {}, 35, 0),  # of a thread that has ended, or of a system that tells no more
        (0, {MINE: (0, 20)}, 40, 0),
        (60, {MINE: (0, 0), PYTHON: (60, 0)}, 0, 0),  # the interpreter's lock
        (20, {MINE: (0, 0), PYTHON: (20, 30)}, 10, 0),  # who holds it had no core for 30 ms
        (0, {MINE: (0, 10), PYTHON: (0, 90)}, 0, 0),
        (55, {MINE: (0, 0), NATIVE: (55, 0)}, 60, 0),  # OpenMP's spins beside it
        (900, {MINE: (0, 0)} | {NATIVE + each: (60, 0) for each in range(15)}, 60, 0),
        (50, {MINE: (0, 0), NATIVE: (50, 30), OTHER: (0, 10)}, 30, 30),  # for the last of them
        (9, {MINE: (0, 20), NATIVE: (9, 30)}, 10, 9),
        (0, {MINE: (0, 0), SAMPLER: (0, 40)}, 60, 0),  # which has just woken, and holds no lock
        (5, {MINE: (0, 0), SAMPLER: (5, 40), PYTHON: (0, 10)}, 45, 0),
    ],
)
def test_what_a_thread_waits_for_is_told_from_other_threads_work(monkeypatch, process, threads, waited, spun):
    """All 7 ms further on: each clock goes on from what it said before."""
    before = dict.fromkeys(threads, (7, 7))
    after = {thread: (7 + ran, 7 + lacked) for thread, (ran, lacked) in threads.items()}
    readings = [host.Reading(7, 7, before), host.Reading(67, 7 + process, after)]
    waiting = host.WaitingTime()
    monkeypatch.setattr(waiting, "read", lambda: readings.pop(0))
    alive, sampler = threading.Thread(), threading.Thread(name=SAMPLING)
    alive._native_id, sampler._native_id = PYTHON, SAMPLER
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread(), alive, sampler])
    assert waiting.since(waiting.read()) == (waited, spun)
    readings += [host.Reading(7, 7, before, 5), host.Reading(67, 7 + process, after, 5)]
    assert waiting.since(waiting.read()) == (min(waited, 0), spun)  # it never let go of its core: a hypervisor took it


@pytest.mark.parametrize(("times", "waited"), [(1, 55), (4, 40), (8, 20), (12, 20), (-1, 20)])
def test_who_let_go_of_its_core_once_did_not_wait_for_the_interpreters_lock_for_long(monkeypatch, times, waited):
    """It asks for it every 5 ms. The other thread, as that which sends a worker's batches, had no core for 40 of 60."""
    holder = threading.Thread()
    holder._native_id = PYTHON
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread(), holder])
    monkeypatch.setattr(sys, "getswitchinterval", lambda: 0.0049)
    waiting, before = host.WaitingTime(), {MINE: (0, 0), PYTHON: (0, 0)}
    after = host.Reading(60_000_000, 0, {MINE: (0, 0), PYTHON: (0, 40_000_000)}, times)
    monkeypatch.setattr(waiting, "read", lambda: after)
    assert waiting.since(host.Reading(0, 0, before, min(times, 0))) == (waited * 1_000_000, 0)
