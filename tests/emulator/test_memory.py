"""Memory pools: against a naive allocator that keeps plain lists, and rule by rule."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loaderviz.emulator import Gpu, Host, Runtime
from loaderviz.emulator.memory import FREE, BlockError, DevicePool, OutOfMemory, PinnedPool, binary, segment_size
from loaderviz.errors import LoadervizError
from loaderviz.timeline import Kind

KIB, MIB = 2**10, 2**20
QUIET = replace(Host.preset("laptop"), query=0, event_call=0)  # so that all polls of an allocation see the same time


def small_gpu(capacity):
    """A GPU with so much room for tensors."""
    gpu = Gpu.preset("a100")
    return replace(gpu, memory=gpu.context_memory + capacity)


def stats_of(pool):
    """What a pool holds and held."""
    figures = {name: pools["all"] for name, pools in pool.ledger.figures().items()}
    held, active, reserved = (figures[f"{name}_bytes"] for name in ("allocated", "active", "reserved"))
    return SimpleNamespace(
        allocated=held.current, allocated_peak=held.peak, active=active.current, active_peak=active.peak,
        reserved=reserved.current, reserved_peak=reserved.peak, segments=figures["segment"].current,
        allocations=figures["allocation"].allocated, frees=figures["allocation"].freed, mallocs=pool.mallocs,
        releases=pool.releases, retries=pool.retries, ooms=pool.ooms,
    )  # fmt: skip


def names(runtime):
    """How often each CUDA call was made."""
    calls = [row.name for row in runtime.timeline().rows(Kind.API)]
    return {name: calls.count(name) for name in sorted(set(calls))}


@pytest.fixture
def runtime():
    return Runtime(Gpu.preset("a100"), Host.preset("laptop"))


# Against a naive allocator


class NoRoom(Exception):
    pass


def piece_of(address, size):
    return SimpleNamespace(address=address, size=size, free=True, recorded={}, waits_for=[])


class NaivePool:
    """Looks at every piece of every segment each time."""

    def __init__(self, capacity):
        self.capacity, self.next = capacity, 0x7F00_0000_0000
        self.segments, self.deferred = [], {}
        self.mallocs = self.frees = 0

    def reserved(self):
        return sum(piece.size for segment in self.segments for piece in segment.pieces)

    def allocate(self, nbytes, stream, is_over):
        self.poll(is_over)
        size = next(n for n in range(nbytes, nbytes + 512) if n % 512 == 0)
        large = size > MIB
        found = [
            (piece.size, piece.address, segment, piece)
            for segment in self.segments
            for piece in segment.pieces
            if (segment.stream, segment.large) == (stream, large) and piece.free and piece.size >= size
        ]
        if found:
            _, _, segment, piece = min(found, key=lambda entry: entry[:2])
        else:
            segment = self.grow(size, stream, large)
            piece = segment.pieces[0]
        rest = piece.size - size
        if rest > MIB or (not large and rest):
            segment.pieces.insert(segment.pieces.index(piece) + 1, piece_of(piece.address + size, rest))
            piece.size = size
        piece.free = False
        return piece

    def grow(self, size, stream, large):
        want = 2 * MIB if not large else 20 * MIB if size < 10 * MIB else next(
            n for n in range(size, size + 2 * MIB, 512) if n % (2 * MIB) == 0
        )  # fmt: skip
        if self.reserved() + want > self.capacity:
            self.empty_cache()
            if self.reserved() + want > self.capacity:
                raise NoRoom
        self.mallocs += 1
        segment = SimpleNamespace(stream=stream, large=large, pieces=[piece_of(self.next, want)])
        self.next += want
        self.segments.append(segment)
        return segment

    def free(self, piece, markers):
        piece.waits_for = [(stream, markers[stream]) for stream in piece.recorded]
        for stream, marker in piece.waits_for:
            self.deferred.setdefault(stream, []).append((marker, piece))
        if not piece.waits_for:
            self.release(piece)

    def poll(self, is_over):
        for queue in self.deferred.values():
            while queue and is_over(queue[0][0]):
                marker, piece = queue.pop(0)
                piece.waits_for = [entry for entry in piece.waits_for if entry[1] is not marker]
                if not piece.waits_for:
                    self.release(piece)

    def release(self, piece):
        piece.free, piece.recorded = True, {}
        for segment in self.segments:
            merged = []
            for each in segment.pieces:
                if merged and merged[-1].free and each.free:
                    merged[-1].size += each.size
                else:
                    merged.append(each)
            segment.pieces = merged

    def empty_cache(self):
        self.poll(lambda marker: True)
        kept = [segment for segment in self.segments if len(segment.pieces) > 1 or not segment.pieces[0].free]
        self.frees += len(self.segments) - len(kept)
        self.segments = kept

    def active(self):
        return sum(piece.size for segment in self.segments for piece in segment.pieces if not piece.free)


SIZES = [
    1, 511, 512, 513, 3000, 100 * KIB, MIB - 512, MIB, MIB + 1, 2 * MIB, 3 * MIB, 9 * MIB, 10 * MIB - 1, 10 * MIB,
    11 * MIB, 25 * MIB, 200 * MIB,
]  # fmt: skip
operations = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), st.one_of(st.sampled_from(SIZES), st.integers(1, 4 * MIB)), st.integers(0, 2)),
        st.tuples(st.just("allocate"), st.one_of(st.sampled_from(SIZES), st.integers(1, 4 * MIB)), st.integers(0, 2)),
        st.tuples(st.just("free"), st.integers(0, 99)),
        st.tuples(st.just("record_stream"), st.integers(0, 99), st.integers(0, 2)),
        st.tuples(st.just("work"), st.integers(0, 2), st.integers(1, 300_000)),
        st.tuples(st.just("host_work"), st.integers(1, 300_000)),
        st.tuples(st.just("empty_cache")),
    ),
    max_size=50,
)


def allocations(*sizes):
    return [("allocate", size, 1) for size in sizes]


HELD = [("record_stream", 0, 0), ("free", 0)]  # by the default stream; two blocks are over, two are not
WAITED_FOR = [*allocations(*[MIB] * 4), *HELD * 2, ("host_work", 300_000), ("work", 0, 300_000), *HELD * 2]
WAITED_FOR += allocations(512)


@settings(max_examples=200, deadline=None)
@example(allocations(MIB, MIB - 512, 1), 64 * MIB)  # the smallest rest of a small segment
@example(allocations(9 * MIB, 10 * MIB - 512, MIB + 512), 64 * MIB)  # and of a large one
@example([*allocations(MIB), ("work", 1, 300_000), ("record_stream", 0, 1), ("free", 0), *allocations(MIB)], 64 * MIB)
@example(WAITED_FOR, 64 * MIB)
@given(operations, st.sampled_from([24 * MIB, 64 * MIB, 1000 * MIB]))
def test_the_pool_agrees_with_a_naive_one(program, capacity):
    """The same addresses, sizes, cudaMalloc calls and refusals, whatever a program does; no two live blocks overlap."""
    runtime = Runtime(small_gpu(capacity), QUIET)
    streams = [runtime.default_stream, runtime.stream(), runtime.stream()]
    pool, model = DevicePool(runtime), NaivePool(capacity)
    live, asked = [], []
    for name, *rest in program:
        if name == "allocate":
            size, stream = rest
            try:
                piece = model.allocate(size, stream, lambda marker: asked.append(marker) or runtime.is_over(marker))
            except NoRoom:
                with pytest.raises(OutOfMemory):
                    pool.allocate(size, streams[stream])
                continue
            block = pool.allocate(size, streams[stream])
            assert (block.address, block.size, block.requested) == (piece.address, piece.size, size)
            assert block.stream is streams[stream]
            assert block.size % 512 == 0
            assert size <= block.size
            live.append((block, piece))
        elif name == "free" and live:
            block, piece = live.pop(rest[0] % len(live))
            pool.free(block)
            model.free(piece, {stream.id: stream.last for stream in streams})
        elif name == "record_stream" and live:
            block, piece = live[rest[0] % len(live)]
            pool.record_stream(block, streams[rest[1]])
            if streams[rest[1]] is not block.stream:
                piece.recorded[streams[rest[1]].id] = True
        elif name == "work":
            runtime.launch(rest[1], streams[rest[0]])
        elif name == "host_work":
            runtime.host_work(rest[0])
        elif name == "empty_cache":
            pool.empty_cache()
            model.empty_cache()
        stats = stats_of(pool)
        assert stats.reserved == model.reserved() <= capacity
        assert (stats.mallocs, stats.releases) == (model.mallocs, model.frees)
        assert stats.active == model.active()
        assert stats.allocated == sum(block.size for block, _ in live)
        assert stats.segments == len(model.segments)
        assert [[(each.address, each.size, each.state == FREE) for each in blocks] for blocks in pool.segments()] == [
            [(each.address, each.size, each.free) for each in segment.pieces] for segment in model.segments
        ]
        assert pool.mem_get_info() == (capacity - stats.reserved, runtime.gpu.memory)
        places = sorted((block.address, block.end) for block, _ in live)
        assert all(end <= start for (_, end), (start, _) in pairwise(places))
    for block, _ in live:
        pool.free(block)
    assert pool.empty_cache() == model.reserved()  # every segment is whole again, and CUDA has it back
    stats = stats_of(pool)
    assert (stats.allocated, stats.active, stats.reserved, stats.segments) == (0, 0, 0, 0)
    assert stats.allocations == stats.frees
    assert stats.mallocs == stats.releases
    assert stats.allocated_peak <= stats.active_peak <= stats.reserved_peak <= capacity
    assert names(runtime).get("cudaEventQuery", 0) == len(asked)  # up to the first of a stream that is not over


# Device pool, rule by rule


def test_what_was_there_before_costs_nothing_now(runtime):
    pool = DevicePool(runtime)
    block = pool.adopt(3 * 2**20, runtime.stream())
    assert runtime.now == 0 and names(runtime) == {}
    assert (stats_of(pool).allocated, stats_of(pool).reserved, stats_of(pool).mallocs) == (
        block.size,
        segment_size(block.size),
        0,
    )
    pool.free(block)
    assert pool.allocate(3 * 2**20, block.stream).address == block.address and runtime.now == 0
    with pytest.raises(ValueError, match=r"allocate\(-1\)"):
        pool.adopt(-1, runtime.default_stream)
    with pytest.raises(OutOfMemory, match="out of memory"):
        pool.adopt(runtime.gpu.memory, runtime.default_stream)


def test_what_is_cached_is_told_for_each_stream_of_small_and_large_segments_together(runtime):
    pool, side = DevicePool(runtime), runtime.stream()
    for size, stream in ((512, None), (3 * MIB, None), (3 * MIB, side)):
        pool.free(pool.allocate(size, stream))
    assert pool.cached() == {runtime.default_stream.id: 22 * MIB, side.id: 20 * MIB}


@pytest.mark.parametrize("kind", [DevicePool, PinnedPool])
def test_a_zero_byte_block_costs_nothing(runtime, kind):
    pool = kind(runtime)
    block = pool.allocate(0)
    if kind is DevicePool:
        pool.record_stream(block, runtime.stream())
    assert (block.size, block.requested, stats_of(pool).reserved, stats_of(pool).allocations) == (0, 0, 0, 0)
    pool.free(block)
    with pytest.raises(BlockError, match="freed already"):
        pool.free(block)
    assert runtime.now == 0


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("kind", [DevicePool, PinnedPool])
def test_what_is_no_live_block_of_the_pool_is_refused(runtime, kind, waits):
    """Of another pool, or freed already: then it is there again, or waits for a stream. Each handout is a new one."""
    one, other, side = kind(runtime), kind(runtime), runtime.stream()
    block, use = one.allocate(1000), one.record_stream if kind is DevicePool else one.use
    if waits:
        runtime.launch(10**9, side)
        use(block, side)
    with pytest.raises(BlockError, match="another pool") as caught:
        other.free(block)
    assert isinstance(caught.value, LoadervizError) and hex(block.address) in str(caught.value)
    one.free(block)
    again = one.allocate(1000)
    assert (again.address == block.address) == (not waits) and len({again, block}) == 2
    for call in (one.free, lambda freed: use(freed, side)):
        with pytest.raises(BlockError, match="freed already"):
            call(block)
    with pytest.raises(ValueError, match="-5"):
        one.allocate(-5)


# Out of memory


def test_out_of_memory_tells_all_numbers():
    runtime = Runtime(small_gpu(64 * MIB), QUIET)
    pool = DevicePool(runtime)
    pool.allocate(30 * MIB)
    pool.allocate(5 * MIB)
    with pytest.raises(OutOfMemory) as caught:
        pool.allocate(17 * MIB + 5)
    error = caught.value
    assert (error.requested, error.tried, error.total) == (17 * MIB + 5, 18 * MIB, runtime.gpu.memory)
    assert (error.free, error.allocated, error.unallocated) == (14 * MIB, 35 * MIB, 15 * MIB)
    text = str(error)
    assert text.startswith("CUDA out of memory. Tried to allocate 18.00 MiB.")
    for number in (error.total, 14 * MIB, 35 * MIB, 15 * MIB):
        assert binary(number) in text
    assert [binary(size) for size in (0, 1023, 1536)] == ["0 bytes", "1023 bytes", "1.50 KiB"]
    assert (stats_of(pool).ooms, stats_of(pool).retries) == (1, 1)
    assert pool.allocate(15 * MIB).size == 15 * MIB  # what fits still fits: the rest of the 20 MiB segment
    assert (stats_of(pool).reserved, stats_of(pool).allocated) == (50 * MIB, 50 * MIB)


def test_cached_blocks_are_given_back_before_memory_runs_out():
    """cudaFree synchronises: the memory is there, but the overlap is gone (R13)."""
    runtime = Runtime(small_gpu(64 * MIB), QUIET)
    pool, side = DevicePool(runtime), runtime.stream()
    pool.free(pool.allocate(40 * MIB, side))
    kernel = runtime.launch(10_000_000, side)
    block = pool.allocate(50 * MIB)  # the cache of the other stream is of no use here (R35)
    assert block.size == 50 * MIB
    assert kernel.end < runtime.now == kernel.end + 2 * runtime.gpu.malloc  # the failed one runs beside the kernel
    assert names(runtime) == {"cudaFree": 1, "cudaLaunchKernel": 1, "cudaMalloc": 3}
    assert (stats_of(pool).retries, stats_of(pool).ooms, stats_of(pool).segments) == (1, 0, 1)


def test_out_of_memory_waits_for_recorded_streams_first():
    runtime = Runtime(small_gpu(64 * MIB), QUIET)
    pool, side = DevicePool(runtime), runtime.stream()
    block = pool.allocate(60 * MIB, side)
    runtime.launch(10_000_000)
    pool.record_stream(block, runtime.default_stream)
    pool.free(block)
    assert pool.allocate(60 * MIB).address != block.address
    calls = names(runtime)
    assert (calls["cudaEventQuery"], calls["cudaEventSynchronize"]) == (1, 1)
    pool.allocate(512)
    assert names(runtime)["cudaEventQuery"] == 1  # the event was waited for; nobody asks for it again


def test_peaks_start_anew():
    runtime = Runtime(small_gpu(64 * MIB), QUIET)
    pool = DevicePool(runtime)
    pool.free(pool.allocate(40 * MIB))
    keep = pool.allocate(512)
    assert (stats_of(pool).allocated_peak, stats_of(pool).reserved_peak) == (40 * MIB, 42 * MIB)
    pool.empty_cache()
    pool.ledger.reset(peaks=True)
    assert (stats_of(pool).allocated_peak, stats_of(pool).active_peak, stats_of(pool).reserved_peak) == (
        512,
        512,
        2 * MIB,
    )
    pool.free(keep)
    assert stats_of(pool).allocated_peak == 512


# Pinned pool


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("allocate"), st.integers(1, 10_000)),
            st.tuples(st.just("free"), st.integers(0, 99)),
            st.tuples(st.just("copy"), st.integers(0, 99), st.integers(0, 1)),
            st.tuples(st.just("host_work"), st.integers(1, 20_000)),
        ),
        max_size=40,
    )
)
def test_pinned_blocks_are_reused_only_when_their_copies_are_over(program):
    runtime = Runtime(Gpu.preset("a100"), QUIET)
    pool = PinnedPool(runtime)
    streams = [runtime.default_stream, runtime.stream()]
    live, copies, owned = [], {}, {}
    for name, *rest in program:
        if name == "allocate":
            locks = stats_of(pool).mallocs
            block = pool.allocate(rest[0])
            assert rest[0] <= block.size < 2 * rest[0]
            assert block.size & (block.size - 1) == 0
            assert all(runtime.is_over(copy) for copy in copies.get(block.address, []))
            assert all(block.address != other.address for other in live)
            assert (block.address in owned) == (stats_of(pool).mallocs == locks)
            assert owned.setdefault(block.address, block.size) == block.size  # no splitting
            copies[block.address] = []
            live.append(block)
        elif name == "free" and live:
            pool.free(live.pop(rest[0] % len(live)))
        elif name == "copy" and live:
            block = live[rest[0] % len(live)]
            copies[block.address].append(runtime.memcpy(block.requested, "h2d", streams[rest[1]]))
            pool.use(block, streams[rest[1]])
        elif name == "host_work":
            runtime.host_work(rest[0])
        assert stats_of(pool).allocated == sum(block.size for block in live)
        assert stats_of(pool).reserved == sum(owned.values())
    ranges = sorted(owned.items())
    assert all(start + size <= following for (start, size), (following, _) in pairwise(ranges))
    for block in live:
        pool.free(block)
    runtime.synchronize()
    before = stats_of(pool).mallocs
    again = [pool.allocate(size) for size in owned.values()]  # all of it is back
    assert {block.address for block in again} == set(owned)
    assert stats_of(pool).mallocs == before


@pytest.mark.parametrize("long_one_first", [True, False])
def test_another_thread_gets_only_what_was_back_at_its_time(runtime, long_one_first):
    """The pin thread may be behind the main thread: what was freed, or read by a copy, after its time is not there."""
    pool, up, down = PinnedPool(runtime), runtime.stream(), runtime.stream()
    host = runtime.host
    block, cost = pool.allocate_at(5000, 0)
    assert cost == host.page_lock_base + -(-8192 * host.page_lock_per_gib // 2**30)
    assert runtime.now == 0  # the main thread does not pay
    copies = [runtime.memcpy(5000, "h2d", up), runtime.memcpy(10**6, "d2h", down)]
    for stream in (down, up) if long_one_first else (up, down):
        pool.use(block, stream)
    pool.free(block)
    runtime.synchronize()
    back = max(copy.end for copy in copies)
    early, _ = pool.allocate_at(5000, back - 1)
    late, cost = pool.allocate_at(5000, back)
    assert early.address != block.address
    assert (late.address, cost) == (block.address, 0)
    pool.free(late)  # now, which the other thread has not reached
    assert pool.allocate_at(5000, runtime.now - 1)[0].address != late.address
    assert pool.allocate_at(5000, runtime.now)[0].address == late.address and pool.allocate_at(0, 0)[0].size == 0
