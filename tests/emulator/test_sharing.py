"""Cores, disk and memory are shared: closed forms."""

import random
from dataclasses import replace

import pytest

from loaderviz.emulator import Gpu, Host, Runtime
from loaderviz.emulator.host import LoaderSchedule, Shared

HOST = Host.preset("laptop")


@pytest.mark.parametrize("cores", [0, 1, 2, 3, 5])
def test_more_busy_than_cores_take_turns(cores):
    """Each of eight workers does 1,000 ns, while the main thread rests: as many at a time as there are cores.

    Without a number of cores there are enough.
    """
    shared = Shared(replace(HOST, cores=cores))
    turns = [worker // (cores or 8) for worker in range(8)]
    assert [shared.compute(0, 1_000, now=0) for _ in turns] == [(1_000 * turn, 1_000 * (1 + turn)) for turn in turns]


def test_the_main_thread_has_a_core_but_where_it_rests():
    """It is busy to 1,000 and from 4,000 to 5,000: with one core a worker has only what is between."""
    shared = Shared(replace(HOST, cores=1))
    shared.main_rests(1_000, 4_000)
    assert shared.compute(0, 3_500, now=5_000) == (1_000, 5_500)


def test_no_more_is_done_than_the_cores_can():
    """Random work of random beginnings: at no time more is taken than there is, and all of it is done."""
    cores = 3
    shared, works = Shared(replace(HOST, cores=cores)), []
    for _ in range(200):
        start, work = random.randrange(10_000), random.randrange(1, 400)
        first, end = shared.compute(start, work, now=0)
        assert start <= first <= end - work
        works.append(work)
    assert max(shared._used) == cores
    spans = zip(shared._times, shared._times[1:], strict=False)
    assert sum(used * (end - start) for used, (start, end) in zip(shared._used, spans, strict=False)) == sum(works)


def test_a_file_is_read_once_and_then_cached():
    """Two files of 1 MB at 1 GB/s with 10 us each; who asks meanwhile waits for the disk, not for the latency."""
    shared = Shared(replace(HOST, disk=10**9, disk_latency=10_000))
    assert shared.read(0, [("a", 10**6), ("b", 10**6), ("a", 10**6)]) == 2_000_000 + 2 * 10_000
    assert shared.read(500, [("c", 10**6)]) == 3_000_000 + 10_000
    assert shared.read(9_000_000, [("a", 10**6), ("c", 10**6)]) == 9_000_000


@pytest.mark.parametrize("workers", [1, 4])
def test_busy_workers_slow_pageable_copies_and_pinning(workers):
    """Each by a tenth: every worker has two orders, and a fetch takes longer than all that is copied here."""
    host = replace(HOST, crowding=100, cores=0, memory_bandwidth=10**9)
    runtime = Runtime(Gpu.preset("t4"), host)
    alone = runtime.memcpy(10**7, "h2d", pinned=False)
    schedule = LoaderSchedule(runtime, workers)
    schedule.hand_out(schedule.fetch(0, 0, 10**9, 10**6))
    beside = runtime.memcpy(10**7, "h2d", pinned=False)
    runtime.synchronize()
    took, before = (each.end - each.start for each in (beside, alone))
    assert took == pytest.approx(before * (1 + 0.1 * workers), rel=1e-3)
    assert schedule.pin(0, runtime.now, 10**6, lambda start: 0) == runtime.now + 2 * 10**6 * (10 + workers) // 10
