"""Memory pools in virtual time: PyTorch's caching allocator for the device, and its cache of pinned host memory.

    pool = DevicePool(runtime)
    block = pool.allocate(802_816, side_stream)    # cold: cudaMalloc, which synchronises (R13); warm: free of cost
    pool.record_stream(block, runtime.default_stream)
    pool.free(block)                               # comes back when the default stream has come this far (R36)

A cache belongs to the stream that it was allocated for (R35): a freed block is handed out again at once on that
stream, which is safe since the stream runs in order, and never on another one. No memory is held, only addresses.
Sizes are bytes. What the allocator itself asks of CUDA costs what it costs there, and is seen in the timeline:
`cudaMalloc` and `cudaFree`, an event record for each stream at `free`, an event query for each poll.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass

from loaderviz.emulator.blocks import (
    DEFERRED,
    FREE,
    FREED,
    LIVE,
    ROUND,
    SMALL,
    Block,
    BlockError,
    Cache,
    OutOfMemory,
    segment_size,
)  # fmt: skip
from loaderviz.emulator.device import Stream
from loaderviz.emulator.pinned import PinnedBlock, PinnedPool
from loaderviz.emulator.runtime import Event, Runtime

__all__ = ["Block", "BlockError", "DevicePool", "OutOfMemory", "PinnedBlock", "PinnedPool", "Statistics"]

FIRST_ADDRESS = 0x7F00_0000_0000


@dataclass
class Statistics:
    """Bytes and counts of a `DevicePool`, as `torch.cuda.memory_stats` has them.

    `allocated` is in use by the program, `active` also waits for recorded streams, `reserved` was taken from CUDA.
    """

    allocated: int = 0
    allocated_peak: int = 0
    active: int = 0
    active_peak: int = 0
    reserved: int = 0
    reserved_peak: int = 0
    allocations: int = 0
    frees: int = 0
    segments: int = 0  # held now
    mallocs: int = 0  # cudaMalloc calls that gave a segment
    releases: int = 0  # cudaFree calls
    retries: int = 0  # cudaMalloc calls that failed, so that the cache was given back
    ooms: int = 0


class DevicePool:
    """PyTorch's caching allocator over one emulated GPU.

    Sizes round up to 512 bytes. Up to 1 MiB they come from 2 MiB segments, above from 20 MiB ones, from 10 MiB on from
    one of their own (in steps of 2 MiB). Best fit, lowest address first; what is left over is split off; free
    neighbours merge. `capacity` is the GPU's memory without what the CUDA context takes [bytes].
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.capacity = runtime.gpu.memory - runtime.gpu.context_memory
        self.stats = Statistics()
        self._next_address = FIRST_ADDRESS
        self._free: dict[tuple[int, bool], Cache] = {}  # by stream, and whether of large segments
        self._deferred: dict[int, deque[tuple[Event, Block]]] = {}  # by recorded stream, oldest first

    def allocate(self, nbytes: int, stream: Stream | None = None) -> Block:
        """Return a block of at least `nbytes` bytes for `stream` (None: the default stream).

        Warm it costs no time beyond polls; cold it calls `cudaMalloc`, which synchronises (R13). A block of 0 bytes is
        free of charge. Raises `OutOfMemory`, and `ValueError` for a negative size.
        """
        if self._deferred and nbytes > 0:
            self._poll()
        return self._take(nbytes, stream or self.runtime.default_stream)

    def adopt(self, nbytes: int, stream: Stream) -> Block:
        """Return a block for what lay on the device before this run began: that cost its time then, and none now.

        Nobody has touched it in this run, whatever lay at its addresses. Raises as `allocate` does.
        """
        block = self._take(nbytes, stream, adopts=True)
        if self.runtime.races:
            self.runtime.races.returned(block.address, block.end)
        return block

    def _take(self, nbytes: int, stream: Stream, *, adopts: bool = False) -> Block:
        if nbytes <= 0:
            if nbytes < 0:
                raise ValueError(f"allocate({nbytes}): a size cannot be negative; give the number of bytes")
            return Block(self, 0, 0, 0, stream, [])
        size = -(-nbytes // ROUND) * ROUND
        large = size > SMALL
        cache = self._free.setdefault((stream.id, large), [])
        index = bisect_left(cache, (size,))
        region = cache.pop(index)[2] if index < len(cache) else self._grow(size, nbytes, stream, cache, adopts)
        block = self._cut(region, size, nbytes, SMALL + 1 if large else ROUND)
        stats = self.stats
        stats.allocations += 1
        stats.allocated += block.size
        stats.active += block.size
        if stats.active > stats.active_peak:
            stats.active_peak = stats.active
        if stats.allocated > stats.allocated_peak:
            stats.allocated_peak = stats.allocated
        return block

    def record_stream(self, block: Block, stream: Stream) -> None:
        """Note that `stream` uses the block, so that `free` waits for it (R36). The owning stream needs no note."""
        self._check(block, "record_stream")
        if stream is not block.stream and block.size:
            block.streams[stream.id] = stream

    def free(self, block: Block) -> None:
        """Give the block back, at the host's time: its stream may have it again at once (R35).

        If streams were recorded, an event is recorded in each of them (host time), and the block comes back when a
        later `allocate` finds them over (R36). Raises `BlockError` if it was freed before or belongs to another pool.
        """
        self._check(block, "free")
        if not block.size:
            block.state = FREED
            return
        self.stats.frees += 1
        self.stats.allocated -= block.size
        races = self.runtime.races
        if block.streams:
            block.state = DEFERRED
            block.pending = len(block.streams)
            for stream in block.streams.values():
                event = self.runtime.event(timing=False)
                self.runtime.record_event(event, stream)
                if races:
                    races.recorded(block.address, block.end, event.clock)
                self._deferred.setdefault(stream.id, deque()).append((event, block))
        else:
            self._release(block)

    def empty_cache(self) -> int:
        """Wait for recorded streams, then `cudaFree` every segment that is wholly free; return the bytes given back.

        Synchronises (R13), if there is anything to free.
        """
        for queue in self._deferred.values():
            for event, block in queue:
                self.runtime.synchronize(event, learn=False)  # whether it does is luck
                self._event_over(block)
        self._deferred.clear()
        before = self.stats.reserved
        for cache in self._free.values():
            for entry in [entry for entry in cache if not (entry[2]._before or entry[2]._after)]:
                cache.remove(entry)
                self.runtime.malloc(entry[0], "cudaFree")
                if self.runtime.races:
                    self.runtime.races.returned(entry[1], entry[1] + entry[0])
                self.stats.reserved -= entry[0]
                self.stats.segments -= 1
                self.stats.releases += 1
        return before - self.stats.reserved

    def mem_get_info(self) -> tuple[int, int]:
        """Return (free, total) bytes of the GPU, as `cudaMemGetInfo`: the cache and the context are not free."""
        return self.capacity - self.stats.reserved, self.runtime.gpu.memory

    def cached(self) -> dict[int, int]:
        """Return the bytes that lie free in the pool of each stream, by its id; only that stream can have them."""
        sizes: dict[int, int] = {}
        for (stream, _), cache in self._free.items():
            sizes[stream] = sizes.get(stream, 0) + sum(entry[0] for entry in cache)
        return sizes

    def reset_peak(self) -> None:
        """Let the peaks start anew from what is held now."""
        stats = self.stats
        stats.allocated_peak, stats.active_peak, stats.reserved_peak = stats.allocated, stats.active, stats.reserved

    # Inside

    def _check(self, block: Block, call: str) -> None:
        if block.pool is not self:
            raise BlockError(f"{call}: {block} belongs to another pool; give it to the pool that allocated it")
        if block.state != LIVE:
            raise BlockError(f"{call}: {block} was freed already; free each block once and do not use it after that")

    def _cut(self, region: Block, size: int, nbytes: int, least: int) -> Block:
        """Take a block from the front of a free region; the rest stays free if it has at least `least` bytes."""
        cache = region._cache
        block = Block(self, region.address, size, nbytes, region.stream, cache)
        rest, before = region.size - size, region._before
        block._before = before
        if before:
            before._after = block
        if rest >= least:
            region.address += size
            region.size = rest
            region._before, block._after = block, region
            insort(cache, (rest, region.address, region))
        else:
            block.size = region.size
            block._after = region._after
            if region._after:
                region._after._before = block
        return block

    def _release(self, block: Block) -> None:
        """Put a block back into its stream's cache, merged with free neighbours. The block itself stays as it was."""
        self.stats.active -= block.size
        block.state = FREED
        cache, before, after = block._cache, block._before, block._after
        region, start, end = None, block.address, block.end
        if before and before.state == FREE:
            region, start = before, before.address
            del cache[bisect_left(cache, (before.size, start))]
            before = before._before
        if after and after.state == FREE:
            region, end = region or after, after.end
            del cache[bisect_left(cache, (after.size, after.address))]
            after = after._after
        region = region or Block(self, start, 0, 0, block.stream, cache, FREE)
        region.address, region.size = start, end - start
        region._before, region._after = before, after
        if before:
            before._after = region
        if after:
            after._before = region
        insort(cache, (region.size, start, region))

    def _grow(self, size: int, nbytes: int, stream: Stream, cache: Cache, adopts: bool) -> Block:
        """Ask CUDA for a segment that holds `size` bytes; if it has none, give the cache back and ask once more."""
        segment = segment_size(size)
        stats = self.stats
        if stats.reserved + segment > self.capacity:
            self.runtime.malloc(segment)  # the call that fails (that it costs as much as one that does not: assumed)
            stats.retries += 1
            self.empty_cache()
        if not adopts:
            self.runtime.malloc(segment)
        if stats.reserved + segment > self.capacity:
            stats.ooms += 1
            free, total = self.mem_get_info()
            raise OutOfMemory(
                self.runtime.gpu.name, nbytes, segment, total, free, stats.allocated, stats.reserved - stats.allocated
            )
        stats.mallocs += not adopts
        stats.segments += 1
        stats.reserved += segment
        stats.reserved_peak = max(stats.reserved_peak, stats.reserved)
        region = Block(self, self._next_address, segment, 0, stream, cache, FREE)
        self._next_address += segment
        return region

    def _poll(self) -> None:
        """Ask CUDA whether the oldest event of each recorded stream is over; go on while it is (R36)."""
        for stream in list(self._deferred):
            queue = self._deferred[stream]
            while queue and self.runtime.query(queue[0][0], learn=False):
                self._event_over(queue.popleft()[1])
            if not queue:
                del self._deferred[stream]

    def _event_over(self, block: Block) -> None:
        """One of the streams recorded for a freed block has come to the free."""
        block.pending -= 1
        if not block.pending:
            self._release(block)
