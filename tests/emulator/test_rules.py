"""The rules of CUDA and PyTorch that concern time and order: one named test each, in exact ns.

Every expected time is a closed form of the presets' fields: nothing here is a snapshot. docs/rules.md has the test of
each rule; those that need torch are in torch/test_rules_torch.py.
"""

from dataclasses import replace

import pytest

from loaderviz.emulator import Gpu, Host, Runtime
from loaderviz.emulator.memory import DevicePool, PinnedPool
from loaderviz.emulator.runtime import PAGEABLE_ASYNC, POOL_STREAMS, Capture, CudaError, GraphNode
from loaderviz.errors import NotModelledError
from loaderviz.timeline import DEVICE_KINDS, ArrowKind, Cause, Kind

GPU = replace(Gpu.preset("a100"), queue_gap=0, d2h_latency=Gpu.preset("a100").copy_latency)
HOST = Host.preset("laptop")
CALL, LAUNCH, SYNC, EVENT, WAKE = HOST.memcpy_call, HOST.launch, HOST.synchronize, HOST.event_call, HOST.wake
LATENCY = GPU.launch_latency
KERNEL = 2_000_000
MB25 = 25_000_000  # takes 1 ms over the link
PINNED = GPU.copy_latency + 1_000_000  # its copy, pinned
PAGEABLE = GPU.copy_latency + MB25 * 10**9 // GPU.pageable
LAST_CHUNK = GPU.copy_latency + -(-GPU.staging_chunk * 10**9 // GPU.h2d)


@pytest.fixture
def gpu():
    return Runtime(GPU, HOST)


def device(runtime):
    """[(name, stream number, start, end)] of all that ran on the device, in order of start."""
    return [(r.name, r.lane.number, r.start, r.end) for r in runtime.timeline().rows(*DEVICE_KINDS)]


def times(runtime, *kinds):
    return [(r.start, r.end) for r in runtime.timeline().rows(*(kinds or DEVICE_KINDS))]


def host(runtime, *kinds):
    """[(name, start, end)] of the host's calls and waits."""
    return [(r.name, r.start, r.end) for r in runtime.timeline().rows(*(kinds or (Kind.API, Kind.WAIT)))]


def joined(timeline, kind):
    """[(tail, head)] of all arrows of a kind, as spans."""
    mine = timeline.arrows["kind"] == kind
    ends = zip(timeline.arrows["tail"][mine].tolist(), timeline.arrows["head"][mine].tolist(), strict=True)
    return [(timeline.row(tail), timeline.row(head)) for tail, head in ends]


# 1 Copies


def test_r1_sync_pageable_h2d_waits_for_the_stream_and_returns_once_staged(gpu):
    gpu.launch(KERNEL)
    gpu.memcpy(MB25, "h2d", pinned=False)
    kernel_end = LAUNCH + LATENCY + KERNEL
    begin = kernel_end + CALL + LATENCY
    staged = begin + PAGEABLE - LAST_CHUNK
    assert gpu.now == staged
    assert device(gpu) == [
        ("kernel", 7, LAUNCH + LATENCY, kernel_end),
        ("Memcpy HtoD (Pageable -> Device)", 7, begin, begin + PAGEABLE),
    ]
    assert host(gpu) == [
        ("cudaLaunchKernel", 0, LAUNCH),
        ("cudaMemcpyAsync", LAUNCH, staged),
        ("staging", LAUNCH, kernel_end),
        ("staging", kernel_end + CALL, staged),
    ]
    assert staged < begin + PAGEABLE


def test_r2_sync_pinned_h2d_returns_at_its_end(gpu):
    gpu.memcpy(MB25, "h2d", blocking=True)
    end = CALL + LATENCY + PINNED
    assert gpu.now == end + WAKE
    assert host(gpu) == [
        ("cudaMemcpyAsync", 0, CALL),
        ("cudaStreamSynchronize", CALL, end + WAKE),
        ("synchronize", CALL + SYNC, end),
    ]


@pytest.mark.parametrize("pinned", [True, False])
def test_r3_sync_d2h_returns_at_its_end(gpu, pinned):
    gpu.memcpy(MB25, "d2h", pinned=pinned, blocking=True)
    end = CALL + LATENCY + (PINNED if pinned else PAGEABLE)
    assert times(gpu) == [(CALL + LATENCY, end)]
    assert gpu.now == end + WAKE


def test_r4_d2d_does_not_block_the_host(gpu):
    gpu.memcpy(MB25, "d2d")
    assert gpu.now == CALL
    floor, share, _ = GPU.kernels["memcpy"]
    work = floor + -(-2 * MB25 * 10**12 // (GPU.memory_bandwidth * share))
    assert device(gpu) == [("Memcpy DtoD (Device -> Device)", 7, CALL + LATENCY, CALL + LATENCY + work)]


def test_r6_r7_async_pageable_h2d_blocks_for_its_own_stream_only(gpu):
    side = gpu.stream()
    gpu.launch(KERNEL)
    gpu.memcpy(MB25, "h2d", side, pinned=False)
    begin = LAUNCH + CALL + LATENCY
    assert device(gpu)[1] == ("Memcpy HtoD (Pageable -> Device)", side.number, begin, begin + PAGEABLE)
    assert host(gpu)[1:] == [
        ("cudaMemcpyAsync", LAUNCH, begin + PAGEABLE - LAST_CHUNK),
        ("staging", LAUNCH + CALL, begin + PAGEABLE - LAST_CHUNK),
    ]


@pytest.mark.parametrize(("direction", "rate"), [("h2d", GPU.h2d), ("d2h", GPU.d2h)])
def test_r8_pinned_async_copies_cost_the_host_one_call(gpu, direction, rate):
    gpu.launch(KERNEL)
    gpu.memcpy(MB25, direction)
    assert gpu.now == LAUNCH + CALL
    begin = LAUNCH + LATENCY + KERNEL
    assert times(gpu)[1] == (begin, begin + GPU.copy_latency + MB25 * 10**9 // rate)


def test_r10_memset_is_asynchronous_except_into_pinned_memory(gpu):
    floor, share, _ = GPU.kernels["fill"]
    work = floor + -(-MB25 * 10**12 // (GPU.memory_bandwidth * share))
    gpu.memset(MB25)
    assert gpu.now == LAUNCH
    gpu.memset(MB25, pinned_host=True)
    first = LAUNCH + LATENCY + work
    assert gpu.now == first + work + WAKE
    assert device(gpu) == [
        ("Memset (Device)", 7, LAUNCH + LATENCY, first),
        ("Memset (Pinned)", 7, first, first + work),
    ]


def test_r11_async_d2h_into_pageable_memory_blocks_until_done(gpu):
    gpu.memcpy(MB25, "d2h", pinned=False)
    end = CALL + LATENCY + PAGEABLE
    assert gpu.now == end
    assert host(gpu) == [("cudaMemcpyAsync", 0, end), ("staging", CALL, end)]


def test_r12_small_pageable_h2d_does_not_block(gpu):
    gpu.launch(KERNEL)
    gpu.memcpy(PAGEABLE_ASYNC, "h2d", pinned=False)
    fill = -(-PAGEABLE_ASYNC * 10**9 // HOST.memory_bandwidth)
    assert PAGEABLE_ASYNC == 65_536
    assert gpu.now == LAUNCH + CALL + fill
    side = Runtime(GPU, HOST)
    side.memcpy(PAGEABLE_ASYNC, "h2d", pinned=False)
    (start, _end) = times(side)[0]
    assert start == CALL + fill + LATENCY  # never before the host has written what it sends
    gpu.memcpy(PAGEABLE_ASYNC + 1, "h2d", pinned=False)
    assert gpu.now > LAUNCH + LATENCY + KERNEL  # one byte more waits for the stream


# 13: what synchronises the device


@pytest.mark.parametrize(("nbytes", "cost"), [(1, GPU.malloc_small), (2**21, GPU.malloc_small), (2**22, GPU.malloc)])
def test_r13_malloc_costs_host_time_and_waits_for_nobody(gpu, nbytes, cost):
    side = gpu.stream()
    gpu.launch(KERNEL)
    gpu.launch(KERNEL, side)
    gpu.malloc(nbytes)
    assert gpu.now == 2 * LAUNCH + cost < KERNEL
    assert host(gpu, Kind.API)[-1] == ("cudaMalloc", 2 * LAUNCH, 2 * LAUNCH + cost)
    assert not host(gpu, Kind.WAIT)


@pytest.mark.parametrize("call", ["page_lock", "free"])
def test_r13_free_waits_for_every_stream_and_page_locking_for_none(gpu, call):
    side = gpu.stream()
    gpu.launch(KERNEL)
    gpu.launch(2 * KERNEL, side)
    if call == "page_lock":
        gpu.page_lock(2**20)
        until, name, cause = 2 * LAUNCH, "cudaHostAlloc", Cause.PAGE_LOCKING
        cost = HOST.page_lock_time(2**20)
    else:
        gpu.free(2**25)
        until = LAUNCH + LATENCY + KERNEL + 2 * KERNEL  # in turn, since each fills the GPU
        cost, name, cause = GPU.malloc, "cudaFree", Cause.ALLOCATION
    assert gpu.now == until + cost
    assert host(gpu, Kind.API)[-1] == (name, 2 * LAUNCH, until + cost)
    assert {r.cause for r in gpu.timeline().rows(Kind.WAIT)} == {cause}


# 2 Streams


def test_r14_the_default_stream_and_blocking_streams_wait_for_each_other(gpu):
    blocking, free = gpu.stream(blocking=True), gpu.stream()
    share = 100  # they would all fit side by side
    gpu.launch(KERNEL, blocking, name="first", share=share)
    gpu.launch(KERNEL, free, name="free", share=share)
    gpu.launch(KERNEL, name="default", share=share)
    gpu.launch(KERNEL, blocking, name="last", share=share)
    start = LAUNCH + LATENCY
    assert {row[0]: row[2:] for row in device(gpu)} == {
        "first": (start, start + KERNEL),
        "free": (2 * LAUNCH + LATENCY, 2 * LAUNCH + LATENCY + KERNEL),
        "default": (start + KERNEL, start + 2 * KERNEL),
        "last": (start + 2 * KERNEL, start + 3 * KERNEL),
    }


def test_r15_the_pool_has_32_streams_a_priority_round_robin(gpu):
    streams = [gpu.stream() for _ in range(POOL_STREAMS + 1)]
    assert len(set(streams)) == POOL_STREAMS == 32
    assert streams[32] is streams[0]
    urgent = [gpu.stream(-1) for _ in range(POOL_STREAMS + 1)]
    assert urgent[32] is urgent[0]
    assert not set(urgent) & set(streams)
    assert not any(stream.blocking for stream in streams + urgent)


def test_r16_wait_stream_holds_only_for_what_is_enqueued(gpu):
    side = gpu.stream()
    gpu.launch(KERNEL, name="before", share=100)
    gpu.wait_stream(side, gpu.default_stream)
    assert gpu.now == LAUNCH + 2 * EVENT
    gpu.launch(KERNEL, name="after", share=100)
    gpu.launch(1000, side, name="side", share=100)
    end = LAUNCH + LATENCY + KERNEL
    assert device(gpu) == [
        ("before", 7, LAUNCH + LATENCY, end),
        ("after", 7, end, end + KERNEL),
        ("side", side.number, end, end + 1000),
    ]


def test_r18_the_lower_priority_number_goes_first_without_preemption(gpu):
    low, high = gpu.stream(0), gpu.stream(-3)
    gpu.launch(KERNEL, name="running")
    gpu.launch(1000, low, name="low")
    gpu.launch(1000, high, name="high 1")
    gpu.launch(1000, high, name="high 2")  # next in its stream at the very ns when `high 1` leaves the GPU
    end = LAUNCH + LATENCY + KERNEL
    assert device(gpu)[1:] == [
        ("high 1", high.number, end, end + 1000),
        ("high 2", high.number, end + 1000, end + 2000),
        ("low", low.number, end + 2000, end + 3000),
    ]


def test_r18_priorities_are_clamped_to_the_device_range(gpu):
    assert gpu.stream(-100).priority == -3
    assert gpu.stream(7).priority == 0
    assert gpu.stream(-1).priority == -1
    assert gpu.stream(-100, blocking=True).priority == -3


@pytest.mark.parametrize(("share", "together"), [(1000, False), (501, False), (500, True), (1, True)])
def test_r19_two_kernels_overlap_only_if_both_fit(gpu, share, together):
    side = gpu.stream()
    gpu.launch(KERNEL, share=share)
    gpu.launch(KERNEL, side, share=share)
    first = LAUNCH + LATENCY
    second = first + (LAUNCH if together else KERNEL)
    assert times(gpu) == [(first, first + KERNEL), (second, second + KERNEL)]


# 3 Engines and link


@pytest.mark.parametrize(("engines", "one", "other"), [(3, "h2d", "h2d"), (3, "d2h", "d2h"), (1, "h2d", "d2h")])
def test_r20_copies_of_one_direction_or_of_one_engine_take_turns(engines, one, other):
    gpu = Runtime(replace(GPU, async_engines=engines), HOST)
    gpu.memcpy(MB25, one, gpu.stream())
    gpu.memcpy(MB25, other, gpu.stream())
    start = CALL + LATENCY
    assert times(gpu) == [(start, start + PINNED), (start + PINNED, start + 2 * PINNED)]


def test_a_gpu_without_a_copy_engine_is_not_modelled():
    with pytest.raises(NotModelledError, match=r"async_engines=0.*at least one copy engine"):
        Runtime(replace(GPU, async_engines=0), HOST)


@pytest.mark.parametrize("first", ["h2d", "d2h"])
@pytest.mark.parametrize(("to_device", "to_host"), [(500, 960), (720, 0), (720, 720), (960, 500), (1000, 1)])
def test_r21_both_directions_at_once_slow_each_other_each_by_its_own_factor(first, to_device, to_host):
    gpu = Runtime(replace(GPU, bidirectional=to_device, bidirectional_d2h=to_host), HOST)
    second = {"h2d": "d2h", "d2h": "h2d"}[first]
    for way in (first, second):
        gpu.memcpy(MB25, way, gpu.stream())
    factors = {"h2d": to_device, "d2h": to_host or to_device}  # 0: as the other way
    a, b = CALL + LATENCY, 2 * CALL + LATENCY
    left = {first: (PINNED - (b - a)) * 1000, second: PINNED * 1000}  # the first runs alone during the second call
    both = {way: -(-left[way] // factors[way]) for way in left}
    over = min(both, key=lambda way: (both[way], way == second))
    until = b + both[over]
    other = {first: second, second: first}[over]
    rest = -(-max(0, left[other] - both[over] * factors[other]) // 1000)
    ends = {over: until, other: until + rest}
    assert times(gpu) == [(a, ends[first]), (b, ends[second])]


def test_r21_an_a100_slows_the_copy_to_the_device_alone(gpu):
    """Published: 12.5 GB/s of 25 to the device, and 24 to the host."""
    gpu.memcpy(10 * MB25, "d2h")
    gpu.memcpy(MB25, "h2d", gpu.stream())
    a, b = CALL + LATENCY, 2 * CALL + LATENCY
    to_host = PINNED + 9_000_000
    assert times(gpu) == [(a, a + to_host + 2 * PINNED * 40 // 1000), (b, b + 2 * PINNED)]


@pytest.mark.parametrize("traffic", [0, 400, 1000])
def test_r49_a_copy_takes_its_part_of_the_memory_from_the_kernel_beside_it(gpu, traffic):
    gpu.launch(KERNEL, traffic=traffic)
    gpu.memcpy(MB25, "h2d", gpu.stream())
    begin, copy = LAUNCH + LATENCY, LAUNCH + CALL + LATENCY
    part = MB25 * 10**12 // (PINNED * GPU.memory_bandwidth)
    lost = PINNED * (traffic * part // 1000)  # thousandths of ns
    assert times(gpu) == [(begin, begin + KERNEL + -(-lost // 1000)), (copy, copy + PINNED)]


def test_r49_at_the_worst_they_take_equal_parts():
    gpu = Runtime(replace(GPU, memory_bandwidth=GPU.h2d // 2), HOST)
    gpu.launch(KERNEL, traffic=1000)
    gpu.memcpy(MB25, "h2d", gpu.stream())
    (begin, end), _ = times(gpu)
    assert end - begin == KERNEL + PINNED // 2


@pytest.mark.parametrize("nbytes", [0, 1, 4096, 65_537, 10**9])
def test_r22_copy_time_is_latency_plus_bytes_over_bandwidth(gpu, nbytes):
    gpu.memcpy(nbytes, "h2d")
    gpu.synchronize()
    gpu.memcpy(nbytes, "h2d", pinned=False)
    gpu.synchronize()
    gpu.memcpy(nbytes, "d2h")
    want = [GPU.copy_latency + -(-nbytes * 10**9 // rate) for rate in (GPU.h2d, GPU.pageable, GPU.d2h)]
    assert [end - start for start, end in times(gpu)] == want


MIB = 2**20


@pytest.mark.parametrize("nbytes", [0, 1, MIB, 2 * MIB, 2 * MIB + 1, 500 * 10**6])
@pytest.mark.parametrize(("to_host", "cached"), [(0, 0), (15 * 10**9, 0), (0, 32 * 10**9), (15 * 10**9, 32 * 10**9)])
def test_r22_staging_has_a_speed_for_each_way_and_for_what_a_cache_holds(nbytes, to_host, cached):
    gpu = Runtime(replace(GPU, pageable_d2h=to_host, pageable_cached=cached), HOST)
    for way in ("h2d", "d2h"):
        gpu.memcpy(nbytes, way, pinned=False)
        gpu.synchronize()
    first = min(nbytes, 2 * MIB) if cached else 0
    up = -(-(nbytes - first) * 10**9 // GPU.pageable) + (-(-first * 10**9 // cached) if cached else 0)
    down = -(-nbytes * 10**9 // (to_host or GPU.pageable))
    assert [end - start for start, end in times(gpu)] == [GPU.copy_latency + up, GPU.d2h_latency + down]


# 4 Host side


def test_r23_a_launch_costs_host_time_and_the_gpu_starts_later(gpu):
    for _ in range(3):
        gpu.launch(1000)
    assert gpu.now == 3 * LAUNCH
    assert times(gpu) == [(k * LAUNCH + LATENCY, k * LAUNCH + LATENCY + 1000) for k in (1, 2, 3)]
    assert times(gpu, Kind.API) == [(k * LAUNCH, (k + 1) * LAUNCH) for k in range(3)]


def test_r24_a_full_launch_queue_blocks_the_launch(gpu):
    long = 100_000_000
    for _ in range(GPU.queue_depth):
        gpu.launch(long)
    full = GPU.queue_depth * LAUNCH
    assert gpu.now == full
    gpu.launch(long)
    place = LAUNCH + LATENCY + long  # the first kernel is over
    assert gpu.now == place + LAUNCH
    waits = list(gpu.timeline().rows(Kind.WAIT))
    assert [(r.start, r.end, r.cause) for r in waits] == [(full, place, Cause.QUEUE_FULL)]


# 5 PyTorch's copies


def test_r30_a_blocking_copy_waits_for_all_earlier_work_of_its_stream_only(gpu):
    side = gpu.stream()
    gpu.launch(10 * KERNEL, side, share=100)
    gpu.launch(KERNEL, share=100)
    gpu.memcpy(MB25, "h2d", blocking=True)
    end = 2 * LAUNCH + LATENCY + KERNEL + PINNED
    assert gpu.now == end + WAKE  # the side stream's kernel still runs
    assert host(gpu)[2:] == [
        ("cudaMemcpyAsync", 2 * LAUNCH, 2 * LAUNCH + CALL),
        ("cudaStreamSynchronize", 2 * LAUNCH + CALL, end + WAKE),
        ("synchronize", 2 * LAUNCH + CALL + SYNC, end),
    ]


# 6 and 7 Memory


def test_r35_a_freed_block_comes_back_at_host_time_on_its_stream_only(gpu):
    pool, side = DevicePool(gpu), gpu.stream()
    block = pool.allocate(MB25)
    cold = gpu.now
    assert cold == GPU.malloc
    gpu.launch(KERNEL)
    pool.free(block)
    assert pool.allocate(MB25).address == block.address
    assert gpu.now == cold + LAUNCH  # neither free nor the warm allocation costs or waits
    assert pool.allocate(MB25, side).address != block.address
    assert gpu.now == cold + LAUNCH + GPU.malloc  # cold again (R13)


def test_r36_record_stream_defers_the_reuse_until_the_event_is_over(gpu):
    pool, side = DevicePool(gpu), gpu.stream()
    block = pool.allocate(MB25, side)
    pool.allocate(MB25, side)
    pool.free(pool.allocate(MB25, side))  # another one is in the cache
    start = gpu.now
    gpu.launch(KERNEL)  # the default stream reads the block
    pool.record_stream(block, gpu.default_stream)
    assert gpu.now == start + LAUNCH
    pool.free(block)
    assert gpu.now == start + LAUNCH + EVENT
    assert pool.allocate(MB25, side).address != block.address
    assert gpu.now == start + LAUNCH + EVENT + HOST.query  # a poll, in vain
    gpu.synchronize()
    assert gpu.now == start + LAUNCH + LATENCY + KERNEL + WAKE
    assert pool.allocate(MB25, side).address == block.address
    assert gpu.now == start + LAUNCH + LATENCY + KERNEL + WAKE + HOST.query


def test_r39_pinned_sizes_are_powers_of_two_and_never_split(gpu):
    pool = PinnedPool(gpu)
    sizes = {n: pool.allocate(n).size for n in (1, 2, 3, 4096, 4097, MB25)}
    assert sizes == {1: 1, 2: 2, 3: 4, 4096: 4096, 4097: 8192, MB25: 2**25}
    big = pool.allocate(2**20)
    pool.free(big)
    locks = pool.mallocs
    pool.allocate(2**10)
    assert pool.mallocs == locks + 1
    pool.allocate(2**20 - 1)
    assert pool.mallocs == locks + 1


def test_r29_r40_a_freed_pinned_block_is_reused_only_after_the_copies_noted_for_it(gpu):
    pool, side = PinnedPool(gpu), gpu.stream()
    block = pool.allocate(MB25)
    start = gpu.now
    gpu.memcpy(MB25, "h2d", side)
    pool.use(block, side)
    assert gpu.now == start + CALL  # the note costs nothing
    pool.free(block)
    assert gpu.now == start + CALL + EVENT
    assert pool.allocate(MB25).address != block.address
    gpu.synchronize(side)
    assert pool.allocate(MB25).address == block.address


def test_r41_only_noted_copies_are_tracked(gpu):
    pool = PinnedPool(gpu)
    block = pool.allocate(MB25)
    gpu.memcpy(MB25, "h2d")
    pool.free(block)
    assert pool.allocate(MB25).address == block.address


def test_r44_page_locking_is_slow_once_then_cached(gpu):
    pool = PinnedPool(gpu)
    pool.free(pool.allocate(2**30))
    cold = HOST.page_lock_base + HOST.page_lock_per_gib
    assert gpu.now == cold
    pool.free(pool.allocate(2**30))
    assert gpu.now == cold


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda gpu: gpu.memcpy(-1, "h2d"), "-1 bytes"),
        (lambda gpu: gpu.memcpy(1, "h2h"), "'h2h'"),
        (lambda gpu: gpu.launch(-7), "-7 ns"),
        (lambda gpu: gpu.launch(7, share=0), "share 0"),
        (lambda gpu: gpu.launch(7, share=1001), "share 1001"),
        (lambda gpu: gpu.host_work(-3), "-3 ns"),
    ],
)
def test_bad_values_are_refused_with_the_value(gpu, call, words):
    with pytest.raises(ValueError, match=words):
        call(gpu)
    assert device(gpu) == []


def test_arrows_join_what_an_event_stands_for_and_who_waits(gpu):
    """Through a stream without work of its own, and each pair once."""
    first, relay, last = gpu.stream(), gpu.stream(), gpu.stream()
    gpu.memcpy(MB25, "h2d", first)
    gpu.wait_stream(relay, first)
    gpu.wait_stream(last, relay)
    gpu.wait_stream(last, first)
    gpu.launch(1000, last)
    timeline = gpu.timeline()
    waits = [(tail.name, head.name) for tail, head in joined(timeline, ArrowKind.WAIT)]
    assert waits == [("Memcpy HtoD (Pinned -> Device)", "kernel")]
    for call, work in joined(timeline, ArrowKind.LAUNCH):
        assert call.correlation == work.correlation > 0 and call.end <= work.start


def test_streams_that_wait_for_each_other_again_and_again_remember_the_last_work_only(gpu):
    """Without work in between, what they wait for stays the same: one piece of work of each stream."""
    side, event = gpu.stream(), gpu.event()
    for stream in (side, gpu.default_stream):
        gpu.launch(KERNEL, stream, name=f"last of {stream.number}", share=1)
    for _ in range(15):
        gpu.wait_stream(side, gpu.default_stream)
        gpu.wait_stream(gpu.default_stream, side)
    gpu.record_event(event, side)
    assert len(event.record.awaits) == 3  # its own last work, and what it waits for: of either stream
    gpu.launch(1000, side, name="next", share=1)
    waits = sorted((tail.name, head.name) for tail, head in joined(gpu.timeline(), ArrowKind.WAIT))
    assert waits == [("last of 13", "next"), ("last of 7", "next")]


# What is noted of a call, and what the host knows


def everything(gpu):
    """Make each call once, in batch 3 at a line; return the work that they make."""
    gpu.batch, gpu.source, side = 3, "train.py:7", gpu.stream()
    work = [gpu.launch(500, name="mm"), gpu.memset(400), gpu.memset(300, pinned_host=True)]
    work += [gpu.memcpy(nbytes, "d2d") for nbytes in (0, 900)]
    for direction in ("h2d", "d2h"):
        for pinned in (False, True):
            work += [gpu.memcpy(nbytes, direction, side, pinned=pinned) for nbytes in (700, PAGEABLE_ASYNC + 1)]
    work += gpu.launch_graph([GraphNode("relu", 100)])
    work += gpu.launch_graph([GraphNode("add", 100), GraphNode("copy", nbytes=600, direction="h2d")])
    assert gpu.launch_graph([]) == []
    gpu.wait_stream(side, gpu.default_stream)
    gpu.query(gpu.default_stream)
    gpu.malloc(2**20)
    gpu.page_lock(2**21)
    gpu.free(2**22)
    for target in (side, gpu.event(), None):
        gpu.synchronize(target)
    return work


def test_a_call_and_its_work_say_the_same(gpu):
    work = everything(gpu)
    timeline = gpu.timeline()
    spans = [row for row in timeline.rows() if row.lane.group == "device"]
    calls = list(timeline.rows(Kind.API))
    assert {(row.batch, row.source) for row in timeline.rows()} == {(3, "train.py:7")}
    assert sorted(row.start for row in spans) == sorted(command.start for command in work)
    assert all(call.pinned is None for call in calls)
    pairs = joined(timeline, ArrowKind.LAUNCH)
    assert sorted(head.start for _, head in pairs) == sorted(row.start for row in spans)
    assert all(tail.correlation == head.correlation > 0 for tail, head in pairs)
    whole = [(tail.name, tail.nbytes, head.nbytes) for tail, head in pairs]
    assert [each for each in whole if each[1] != each[2]] == [("cudaGraphLaunch", -1, 600)]  # one of two nodes
    assert len({tail.correlation for tail, _ in pairs}) == len(pairs) - 1  # a graph's nodes have one
    alone = {call.name: call.nbytes for call in calls if call.correlation == -1}
    assert alone == dict.fromkeys(
        ("cudaGraphLaunch", "cudaEventRecord", "cudaStreamWaitEvent", "cudaStreamQuery", "cudaStreamSynchronize",
         "cudaEventSynchronize", "cudaDeviceSynchronize"), -1,
    ) | {"cudaMalloc": 2**20, "cudaHostAlloc": 2**21, "cudaFree": 2**22}  # fmt: skip
    for row in spans:
        assert row.pinned == (None if "Memcpy" not in row.name or "DtoD" in row.name else "Pinned" in row.name)


def test_what_a_graph_copies_was_pinned_when_it_was_captured(gpu):
    (copy,) = gpu.launch_graph([GraphNode("copy", nbytes=MB25, direction="d2h")])
    gpu.synchronize()
    assert (copy.name, copy.pinned, copy.end - copy.start) == ("Memcpy DtoH (Device -> Pinned)", True, PINNED)


@pytest.mark.parametrize("nodes", [0, 1, 30])
def test_a_graph_costs_the_host_one_launch_however_many_nodes_it_has(gpu, nodes):
    gpu.launch_graph([GraphNode("relu", 7)] * nodes)
    assert gpu.now == LAUNCH


def test_an_event_of_a_capture_that_is_recorded_again_is_one_like_others(gpu):
    side, other, event = gpu.stream(), gpu.stream(), gpu.event()
    gpu.capture = Capture(side)
    gpu.record_event(event, side)
    gpu.capture = None
    gpu.launch(KERNEL, side)
    gpu.record_event(event, side)
    gpu.wait_event(other, event)
    gpu.launch(7, other)
    (_, end), (start, _) = times(gpu)
    assert start >= end


def test_a_capture_notes_calls_and_runs_nothing(gpu):
    side, other = gpu.stream(), gpu.stream()
    gpu.capture = capture = Capture(side)
    gpu.launch(KERNEL, side, name="mm", share=300, traffic=20)
    gpu.memcpy(MB25, "h2d", side)
    event = gpu.event()
    gpu.record_event(event, side)
    gpu.wait_event(other, event)
    gpu.launch(7, other, name="relu")
    gpu.launch(9, name="outside")
    gpu.launch_graph([GraphNode("graph", 5)])
    gpu.memcpy(9, "h2d", pinned=False)
    gpu.record_event(event)
    assert capture.branches and capture.takes(other) and not capture.takes(gpu.default_stream)
    assert capture.nodes == [
        GraphNode("mm", KERNEL, 300, 20), GraphNode("memcpy", nbytes=MB25, direction="h2d"), GraphNode("relu", 7)
    ]  # fmt: skip
    with pytest.raises(CudaError, match="unjoined work"):
        capture.end(side)
    assert [(name, end - start) for name, start, end in host(gpu)][:6] == [
        ("cudaLaunchKernel", LAUNCH), ("cudaMemcpyAsync", CALL), ("cudaEventRecord", EVENT),
        ("cudaStreamWaitEvent", EVENT), ("cudaLaunchKernel", LAUNCH), ("cudaLaunchKernel", LAUNCH),
    ]  # fmt: skip
    assert [name for name, *_ in device(gpu)] == ["outside", "graph", "Memcpy HtoD (Pageable -> Device)"]


def test_a_capture_ends_where_it_began_with_all_streams_joined(gpu):
    side, other = gpu.stream(), gpu.stream()
    for late, origin, refused in ((0, side, None), (1, side, "unjoined work"), (0, other, "not ended in the same")):
        gpu.capture = capture = Capture(side)
        gpu.wait_stream(other, side)
        gpu.launch(7, other)
        gpu.wait_stream(side, other)
        for _ in range(late):
            gpu.launch(7, other)
        if refused is None:
            capture.end(origin)
            continue
        for words in (refused, "due to a previous error"):  # it has failed for good
            with pytest.raises(CudaError, match=words):
                capture.end(origin)


@pytest.mark.parametrize(
    "call",
    [
        lambda gpu, side: gpu.query(side),
        lambda gpu, side: gpu.synchronize(),
        lambda gpu, side: gpu.memcpy(9, "h2d", side, blocking=True),
        lambda gpu, side: gpu.memcpy(9, "h2d", side, pinned=False),
        lambda gpu, side: gpu.launch_graph([], side),
        lambda gpu, side: gpu.wait_event(side, gpu.recorded_before),
    ],
)
def test_a_capture_refuses_to_wait_for_what_is_outside_of_it(gpu, call):
    side, gpu.recorded_before = gpu.stream(), gpu.event()
    gpu.record_event(gpu.recorded_before)
    gpu.capture = Capture(side)
    with pytest.raises(CudaError, match="CUDA error"):
        call(gpu, side)
    assert gpu.capture.failed
    gpu.query(side, learn=False)  # an allocator's own
    gpu.synchronize(side, learn=False)
    gpu.wait_event(gpu.default_stream, gpu.recorded_before)


@pytest.mark.parametrize(
    ("call", "knows"),
    [
        (lambda gpu, side, event: gpu.query(side), True),
        (lambda gpu, side, event: gpu.query(event), True),
        (lambda gpu, side, event: gpu.query(side, learn=False), False),  # it was over, but nobody was told
        (lambda gpu, side, event: gpu.is_over(side), False),
        (lambda gpu, side, event: gpu.synchronize(side), True),
        (lambda gpu, side, event: gpu.synchronize(event), True),
        (lambda gpu, side, event: gpu.synchronize(), True),
        (lambda gpu, side, event: gpu.synchronize(side, learn=False), False),
        (lambda gpu, side, event: gpu.synchronize(gpu.default_stream), False),
        (lambda gpu, side, event: gpu.memcpy(9, "d2h", side, pinned=False), True),  # which waits for its stream
        (lambda gpu, side, event: gpu.memcpy(9, "d2h", side, pinned=True), False),
        (lambda gpu, side, event: gpu.wait_event(gpu.default_stream, event), False),
    ],
)
def test_the_host_knows_what_it_was_told(gpu, call, knows):
    side, event = gpu.stream(), gpu.event()
    work = gpu.launch(KERNEL, side)
    gpu.record_event(event, side)
    assert not gpu.query(side) and not gpu.query(event)
    place = side.id, work.sequence
    assert not gpu.is_ordered(None, place)
    gpu.now += 2 * KERNEL
    call(gpu, side, event)
    assert gpu.is_ordered(None, place) == knows


def test_r23_an_event_takes_the_way_of_a_kernel_and_the_time_between_two_needs_both_over_and_timed(gpu):
    first, last, untimed = gpu.event(), gpu.event(), gpu.event(timing=False)
    with pytest.raises(CudaError, match="recorded before"):
        gpu.elapsed_time(first, last)
    gpu.record_event(first)
    gpu.launch(KERNEL)
    gpu.record_event(last)
    gpu.record_event(untimed)
    with pytest.raises(CudaError, match="not complete yet"):
        gpu.elapsed_time(first, last)
    gpu.synchronize()
    assert gpu.elapsed_time(first, last) == last.record.end - first.record.end == LAUNCH + KERNEL
    assert gpu.elapsed_time(last, first) == -gpu.elapsed_time(first, last)
    with pytest.raises(CudaError, match="enable_timing=True"):
        gpu.elapsed_time(first, untimed)


def test_who_sleeps_or_waits_for_data_takes_no_core(gpu):
    """A worker on the one core of this machine goes on while the main thread rests."""
    for rest in (lambda runtime: runtime.sleep(5_000), lambda runtime: runtime.wait_for_data(5_000)):
        runtime = Runtime(GPU, replace(HOST, cores=1, siblings=1, contention=0))
        rest(runtime)
        runtime.host_work(1_000)
        assert runtime.shared.compute(0, 6_000, now=runtime.now) == (0, 7_000)
        (row,) = [row for row in runtime.timeline().rows() if row.duration == 5_000]
        assert row.name == ("time.sleep" if row.kind is Kind.OPERATOR else Cause.DATA.words)
