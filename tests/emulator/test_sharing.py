"""Cores, disk and memory are shared: closed forms."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderviz.emulator import Gpu, Host, Runtime
from loaderviz.emulator.hardware import HardwareError, Parcel
from loaderviz.emulator.host import LoaderSchedule, Shared
from loaderviz.timeline import Kind

# Without what later tests are about: cores that slow each other, and pages that are new
HOST = replace(Host.preset("laptop"), siblings=1, contention=0, first_read=0)


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
    assert shared.read(0, [("a", 10**6, 10**6), ("b", 10**6, 10**6), ("a", 10**6, 10**6)]) == 2_000_000 + 2 * 10_000
    assert shared.read(500, [("c", 10**6, 10**6)]) == 3_000_000 + 10_000
    assert shared.read(9_000_000, [("a", 10**6, 10**6), ("c", 10**6, 10**6)]) == 9_000_000


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


def test_the_workers_of_all_loaders_slow_copies_until_they_have_nothing_to_do():
    """An idle one adds nothing, nor one that is let go of, or whose epoch is over; two orders a worker last to 2 s."""
    runtime = Runtime(Gpu.preset("t4"), replace(HOST, crowding=100, cores=7))
    schedules = [LoaderSchedule(runtime, workers) for workers in (2, 3, 4)]
    for schedule in schedules:
        schedule.fetch(0, 0, 10**9, 10**6)

    def crowded():
        return runtime.shared.crowded(1_000, 1_500_000_000)

    assert crowded() == 1_700, "nine workers on seven cores"
    schedules.pop()
    assert crowded() == 1_700, "the loop's variable holds it"
    schedule = LoaderSchedule(runtime, 4)  # which has fetched nothing yet: how long that takes is not known
    assert crowded() == 1_500
    schedules[1].end()
    assert crowded() == 1_200
    schedules.clear()
    assert crowded() == 1_000


# Cores with siblings, and cores that slow each other


@pytest.mark.parametrize(
    ("siblings", "sibling", "together"), [(1, 250, 2_000), (2, 250, 2_500), (2, 0, 2_000), (3, 100, 2_400)]
)
def test_siblings_add_their_share(siblings, sibling, together):
    """Two cores do in 1 ms what `together` thousandths of one would: many small pieces of work fill them all."""
    shared = Shared(replace(HOST, cores=2, siblings=siblings, sibling=sibling))
    end = max(shared.compute(0, 1_000, now=0)[1] for _ in range(1_000))
    assert end == pytest.approx(1_000 * 1_000 * 1_000 / together, rel=0.01)


@pytest.mark.parametrize(
    ("shares", "ends"),
    [
        ({"cores": 1, "siblings": 2, "sibling": 250}, [1_000, 1_000 + 750]),  # what the first leaves, then all of it
        ({"cores": 8, "contention": 100}, [1_000, 1_000 + 91, 1_000 + 176]),  # a tenth each; alone once they are done
    ],
)
def test_who_comes_later_has_a_share_of_a_core_or_a_slower_one(shares, ends):
    """1,000 ns of work each, beside those that came before."""
    shared = Shared(replace(HOST, **shares))
    assert [shared.compute(0, 1_000, now=0) for _ in ends] == [(0, end) for end in ends]


@given(
    cores=st.integers(1, 4),
    siblings=st.integers(1, 3),
    sibling=st.integers(0, 500),
    works=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 120)), min_size=1, max_size=12),
)
def test_work_is_done_as_fast_as_a_slow_simulation_says(cores, siblings, sibling, works):
    """Nanosecond by nanosecond: who came first has a core, further ones their shares of it."""
    host = replace(HOST, cores=cores, siblings=siblings, sibling=sibling, contention=70)
    shared, used = Shared(host), [0] * 400_000
    for start, work in works:
        left, time = work * 1000, start
        while left > 0:
            speed = host.speed(used[time])
            used[time] += speed > 0
            left -= speed
            time += 1
        assert shared.compute(start, work, now=0)[1] == time


def test_ranks_divide_what_they_share():
    host = replace(
        HOST, cores=8, disk=4 * 10**9, memory_bandwidth=10**10, parallel_bandwidth=6 * 10**10, shm=64 * 10**9
    )
    assert replace(host, ranks_on_host=1).for_rank() == host
    part = replace(host, ranks_on_host=8).for_rank()
    assert (part.cores, part.disk, part.shm, part.ranks_on_host) == (1, 5 * 10**8, 8 * 10**9, 1)
    assert part.parallel_bandwidth == part.memory_bandwidth == 75 * 10**8
    assert replace(host, ranks_on_host=100).for_rank().cores == 1, "each has one"
    assert Runtime(Gpu.preset("t4"), replace(host, ranks_on_host=2)).host.cores == 4
    with pytest.raises(HardwareError, match="ranks_on_host=0"):
        replace(host, ranks_on_host=0)


# The way from a worker to the main process


def test_a_batch_crosses_by_tensors_pages_and_pickled_bytes():
    """Two tensors of 3 pages in all, and 1,000 pickled bytes."""
    host = replace(
        HOST,
        tensor_sent=10_000,
        tensor_received=7_000,
        pickle_per_byte=2_000,
        unpickle_per_byte=3_000,
        new_page=100,
        unmap=10,
    )
    parcel = Parcel(2, 2 * 4096 + 1, 1_000)
    assert host.sending(parcel) == 2 * 10_000 + 3 * 100 + 2_000
    assert host.receiving(parcel) == 2 * 7_000 + 3 * 10 + 3_000
    assert host.sending(Parcel(pickled=9_000, arrays=8_000)) == 2 * 9_000 + 2 * 2 * 100  # two pages, twice more
    assert host.sending(Parcel()) == host.receiving(Parcel()) == 0


def test_who_reads_a_new_page_first_pays_for_it():
    """The pin thread; or staging, which is as much slower, and only for what is new."""
    host = replace(HOST, cores=0, crowding=0, first_read=1_000, staged_page=3_000, memory_bandwidth=10**10)
    runtime = Runtime(Gpu.preset("t4"), host)
    schedule = LoaderSchedule(runtime, 1)
    assert schedule.pin(0, 0, 8 * 4096, lambda start: 0, receiving=500) == 500 + 2 * 8 * 4096 // 10 + 1 + 8 * 1_000
    size, took = 100 * 4096, []
    for new in (False, True):
        command = runtime.memcpy(size, "h2d", pinned=False, new=new)
        runtime.synchronize()
        took.append(command.end - command.start)
    assert took[1] - took[0] == 100 * 3_000
    pinned = runtime.memcpy(size, "h2d", pinned=True, new=True)
    runtime.synchronize()
    assert pinned.end - pinned.start == runtime.gpu.copy_time(size, runtime.gpu.h2d)
    before = runtime.now
    runtime.memcpy(4096, "h2d", pinned=False)
    small = runtime.now - before
    runtime.synchronize()
    before = runtime.now
    runtime.memcpy(4096, "h2d", pinned=False, new=True)
    assert runtime.now - before == small + 1_000, "a small one is read at once"


# The spans of workers and the pin thread


def scheduled(**more):
    """A loader with two workers on one core, which the main thread leaves after 1,000 ns."""
    host = replace(HOST, cores=1, disk=10**9, disk_latency=0, hand_out=10, **more)
    runtime = Runtime(Gpu.preset("t4"), host)
    schedule = LoaderSchedule(runtime, 2)
    runtime.host_work(1_000)
    runtime.shared.main_rests(1_000, 10**6)
    return runtime, schedule


@pytest.mark.parametrize(
    ("what", "begin", "end"),
    [
        ({}, 1_000, 3_000),  # the wait for the core is no part of it
        ({"slept": 500}, 0, 3_000),
        ({"slept": 1_500}, 0, 3_500),
        ({"waited": 1_200}, 0, 3_200),
        ({"files": [("a", 2_000, 2_000)]}, 0, 4_000),
        ({"files": [("a", 2_000, 2_000)], "waited": 1_900}, 0, 4_000),  # the wait was for the disk: the longer of both
        ({"files": [("a", 2_000, 2_000)], "waited": 2_100, "slept": 50}, 0, 4_150),
    ],
)
def test_a_fetch_begins_with_what_it_does_first(what, begin, end):
    runtime, schedule = scheduled()
    assert schedule.fetch(0, 1, 2_000, 77, "data.py:3", **what) == schedule.free_at(1) == end
    assert schedule.free_at(0) == 0
    (row,) = runtime.timeline().rows(Kind.FETCH)
    assert (row.start, row.end, row.name, row.batch, row.nbytes) == (begin, end, "fetch batch 0", 0, 77)
    assert (row.lane.name, row.lane.role, row.lane.number, row.source) == ("worker 1", "worker", 1, "data.py:3")


def test_a_batch_is_fetched_after_its_order_by_a_worker_that_is_free():
    runtime, schedule = scheduled()
    ready = [schedule.fetch(batch, batch % 2, 100, 0) for batch in range(4)]  # two orders for each worker
    assert ready == [1_100, 1_200, 1_300, 1_400]
    schedule.hand_out(ready[0], receiving=5)  # a fifth order, at 1,100 + 15
    assert schedule.ordered == [0] * 4 + [1_115]
    assert schedule.fetch(4, 0, 100, 0) == 1_500
    later = LoaderSchedule(runtime, 2, first=5, former=schedule)  # another epoch, from batch 5 on
    assert later.fetch(5, 0, 100, 0) == 1_600
    assert later.fetch(6, 1, 50, 0, order=3) == 1_650
    assert LoaderSchedule(runtime, 3, prefetch_factor=4).ordered == [1_115] * 12


def test_the_pin_thread_takes_one_batch_after_the_other():
    runtime, schedule = scheduled(memory_bandwidth=10**9, crowding=0)
    locked = []
    ends = [schedule.pin(batch, ready, 50, lambda at: locked.append(at) or 7, receiving=3) for batch, ready in
            ((0, 2_000), (1, 2_010), (2, 9_000))]  # fmt: skip
    assert ends == [2_110, 2_220, 9_110]  # 50 bytes read and written at a byte a ns
    assert locked == [2_000, 2_110, 9_000]
    spans = [
        (row.start, row.end, row.name, row.batch, row.nbytes, row.pinned) for row in runtime.timeline().rows(Kind.PIN)
    ]
    starts = zip(locked, ends, strict=True)
    assert spans == [(*times, f"pin batch {batch}", batch, 50, True) for batch, times in enumerate(starts)]


@pytest.mark.parametrize("cores", [0, 1, 2])
@pytest.mark.parametrize(("at", "busy"), [(-1, 0), (0, 2), (99, 2), (100, 1), (199, 1), (200, 0)])
def test_how_many_fetch_if_each_takes_as_long_as_for_the_last_batch(cores, at, busy):
    """Of four orders one is done: worker 1 has two left, worker 0 one. At most as many fetch as there are cores."""
    runtime = Runtime(Gpu.preset("t4"), replace(HOST, cores=cores))
    schedule = LoaderSchedule(runtime, 2)
    begun = schedule.fetch(0, 0, 100, 0)
    schedule.ordered[:] = [begun] * 4
    schedule._free[1] = begun
    assert schedule.busy_workers(begun + at) == busy
    assert runtime.shared.busy_workers(begun + at) == min(busy, cores or 2)
