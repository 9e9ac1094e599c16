"""Threads for workers in a replayed loop: nothing is sent, and one at a time has Python's lock (closed forms)."""

from dataclasses import replace

import pytest

import loaderviz as lv
from loaderviz.emulator import Gpu, Host, Runtime
from loaderviz.emulator.replay import PRESETS, Batch, LoaderConfig, Replay
from loaderviz.timeline import Cause, Kind
from loaderviz.widgets.explorer import Settings, simulate

MS = 10**6  # ns
COSTS = dict.fromkeys(
    ("dispatch", "launch", "memcpy_call", "synchronize", "event_call", "hand_out", "wake", "contention", "crowding"), 0
)
HOST = replace(Host.preset("workstation"), **COSTS, cores=0, page_lock_base=0, page_lock_per_gib=0)
FREE = replace(HOST, switch_interval=0)
GPU = replace(Gpu.preset("a100"), malloc=0, malloc_small=0)


class Loop:
    """Batches of one small tensor that takes `fetch` ns and `waits`; the host works `host` ns, the GPU `gpu` ns."""

    resident_bytes = ()

    def __init__(self, fetch, host, gpu, waits=0):
        self.fetch, self.host, self.gpu, self.waits = fetch, host, gpu, waits

    def batch(self, number):
        return Batch([1000], 1, self.fetch, waits=self.waits)

    def train(self, runtime, number):
        for _ in range(10):
            runtime.host_needs(self.host // 10)
        runtime.launch(self.gpu, name="kernel")

    def source(self, does):
        return ""


def step(loop, host=HOST, steps=24, **config):
    """Return the time of a step [ns], at the end of a long loop."""
    config = LoaderConfig(**{"workers": 4, "threads": True, "non_blocking": True, "pin": True} | config)
    timeline = Replay(config, loop, Runtime(GPU, host)).run(24, steps).self_check()
    return timeline.duration / steps


def near(found, expected):
    return abs(found - expected) < 0.05 * expected


@pytest.mark.parametrize(
    ("fetch", "python", "host", "gpu", "workers"),
    [
        (10, 1000, 2, 1, 1),  # one thread fetches in Python: the loop has to wait for it
        (10, 1000, 2, 1, 4),  # more of them change nothing
        (10, 500, 2, 1, 8),
        (10, 0, 2, 1, 2),  # a decoder without the lock: as processes
        (10, 0, 2, 1, 8),
        (10, 300, 2, 9, 8),  # the GPU is the slowest
        (4, 250, 6, 1, 4),  # the loop's own Python is
        (10, 100, 1, 1, 2),  # the threads' C is
    ],
)
def test_a_step_is_what_the_lock_the_threads_and_the_gpu_let_it_be(fetch, python, host, gpu, workers):
    held = fetch * python / 1000
    expected = max(held + host, fetch / workers, gpu) * MS
    found = step(Loop(fetch * MS, host * MS, gpu * MS), python=python, workers=workers)
    assert near(found, expected), found / MS


@pytest.mark.parametrize("python", [0, 700, 1000])
def test_without_a_lock_threads_are_as_processes_that_send_nothing(python):
    loop = Loop(10 * MS, 2 * MS, MS)
    assert near(step(loop, FREE, python=python), 2.5 * MS)
    unsent = replace(FREE, tensor_sent=0, tensor_received=0, pickle_per_byte=0, unpickle_per_byte=0, new_page=0)
    assert near(step(loop, FREE), step(loop, replace(unsent, first_read=0, unmap=0), threads=False))


def test_a_fetch_that_waits_holds_no_lock():
    assert near(step(Loop(MS, 2 * MS, MS, waits=9 * MS)), 3 * MS)
    assert near(step(Loop(MS, 2 * MS, MS, waits=29 * MS)), 30 / 4 * MS)


def test_nothing_is_sent():
    """Tensors cost a process much; in threads the pin thread and the loop take them as they are."""
    dear = replace(HOST, tensor_sent=40 * MS, tensor_received=20 * MS)
    for pin in (True, False):
        assert near(step(Loop(MS, 2 * MS, MS), dear, pin=pin), 3 * MS)
        assert step(Loop(MS, 2 * MS, MS), dear, pin=pin, threads=False) > 10 * MS


def test_few_cores_slow_what_runs_without_the_lock_too():
    found = step(Loop(12 * MS, MS, MS), replace(HOST, cores=2, siblings=1), python=0, workers=6)
    assert 6 * MS <= found < 8 * MS


@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_each_batch_is_fetched_once_and_in_order(workers, steps):
    config = LoaderConfig(workers=workers, threads=True, pin=True, depth=2, side_stream=True, non_blocking=True)
    timeline = Replay(config, Loop(3 * MS, MS, MS), Runtime(GPU, HOST)).run(0, steps).self_check()
    fetched = [span.batch for span in timeline.rows(Kind.FETCH)]
    assert sorted(fetched) == list(range(len(fetched))) and len(fetched) >= steps


def test_who_fetches_in_python_keeps_the_loop_from_launching():
    """The loop has its data and waits for the lock: that is no wait for data."""
    threads, processes = (
        Replay(config, Loop(10 * MS, 2 * MS, MS), Runtime(GPU, HOST)).run(24, 24)
        for config in (LoaderConfig(4, pin=True, threads=True), LoaderConfig(4, pin=True))
    )
    assert near(lv.summarize(threads).step, 12 * MS) and near(lv.summarize(processes).step, 3 * MS)
    locked = (threads.end - threads.start)[threads.cause == Cause.GIL]
    assert 8 * MS < locked.sum() / 24 < 10 * MS and not (processes.cause == Cause.GIL).any()
    assert "waiting for data" not in str(lv.summarize(threads))
    assert lv.advise(threads)[0].kind == "interpreter-lock"


@pytest.mark.parametrize("python", [0, 200, 500, 1000])
@pytest.mark.parametrize("preset", ["blocking", "pinned", "prefetch"])
def test_the_explorer_shows_what_is_foretold_of_its_processes(preset, python):
    """Within 15 %: the part that no recording tells is what a fetch costs without sending it."""
    processes = Settings(fetch_per_sample=1_000, steps=20, **PRESETS[preset])
    threads = lv.summarize(simulate(processes.change(threads=True, python=python))).step
    foretold = lv.summarize(lv.what_if(simulate(processes), threads=python / 1000)).step
    assert threads == pytest.approx(foretold, rel=0.15)
