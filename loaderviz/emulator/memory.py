"""Memory pools in virtual time: PyTorch's caching allocator for the device, and its cache of pinned host memory.

A cache belongs to the stream that it was allocated for (R35): a freed block is handed out again at once on that
stream, which is safe since the stream runs in order, and never on another one. No memory is held, only addresses.
Sizes are bytes. What the allocator itself asks of CUDA costs what it costs there, and is seen in the timeline:
`cudaMalloc` and `cudaFree`, an event record for each stream at `free`, an event query for each poll.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from loaderviz.emulator.device import Stream
from loaderviz.emulator.runtime import Event, Runtime
from loaderviz.errors import LoadervizError

FIRST_ADDRESS, FIRST_PINNED_ADDRESS = 0x7F00_0000_0000, 0x2000_0000_0000
ROUND = 512  # every device block is a multiple of this
SMALL = 2**20  # up to here a block comes from a small segment
SMALL_SEGMENT = 2 * 2**20
LARGE_SEGMENT = 20 * 2**20  # for blocks below OWN_SEGMENT; larger ones get a segment of their own, rounded up
OWN_SEGMENT = 10 * 2**20
ROUND_SEGMENT = 2 * 2**20
PAGE = 4096  # pinned blocks lie this far apart at least
FREE, LIVE, DEFERRED, FREED = range(4)  # in the cache; in use; waiting for streams that used it; given back


class BlockError(LoadervizError, RuntimeError):
    """A block was freed twice, or belongs to another pool."""


class OutOfMemory(LoadervizError, MemoryError):
    """The GPU has no room for a segment, even after the cache was given back. All numbers are bytes.

    `tried` is the segment that was asked of CUDA (never below 2 MiB), `requested` what the program asked for.
    """

    def __init__(
        self, device: str, requested: int, tried: int, total: int, free: int, allocated: int, unallocated: int
    ) -> None:
        self.requested, self.tried, self.total, self.free = requested, tried, total, free
        self.allocated, self.unallocated = allocated, unallocated
        asked, whole, left, used, rest = map(binary, (tried, total, free, allocated, unallocated))
        super().__init__(
            f"CUDA out of memory. Tried to allocate {asked}. The emulated {device} has {whole} in total, of which "
            f"{left} are free. PyTorch has allocated {used}; another {rest} are reserved but unallocated. Use a "
            "smaller batch, drop tensors that are no longer needed, or emulate a GPU with more memory."
        )


TAKEN, LET_GO, RELEASED, GROWN, GIVEN_BACK, SPLIT = range(6)  # what happens to memory
ONE, SIZE, REQUESTED = range(3)  # what of it is counted
EFFECTS: dict[str, dict[int, tuple[int, int]]] = {  # figure of torch.cuda.memory_stats -> event: sign, what is counted
    "allocation": {TAKEN: (1, ONE), LET_GO: (-1, ONE)},
    "allocated_bytes": {TAKEN: (1, SIZE), LET_GO: (-1, SIZE)},
    "active": {TAKEN: (1, ONE), RELEASED: (-1, ONE)},
    "active_bytes": {TAKEN: (1, SIZE), RELEASED: (-1, SIZE)},
    "requested_bytes": {TAKEN: (1, REQUESTED), RELEASED: (-1, REQUESTED)},
    "segment": {GROWN: (1, ONE), GIVEN_BACK: (-1, ONE)},
    "reserved_bytes": {GROWN: (1, SIZE), GIVEN_BACK: (-1, SIZE)},
    "inactive_split": {SPLIT: (1, REQUESTED)},  # an event has the change of their number there
    "inactive_split_bytes": {SPLIT: (1, SIZE)},
}
_SIGNS = np.array(
    [
        [
            [sign * (at == what) for at in (ONE, SIZE, REQUESTED)]
            for sign, what in (effects.get(event, (0, ONE)) for effects in EFFECTS.values())
        ]
        for event in range(SPLIT + 1)
    ],
    np.int64,
)
POOLS = ("all", "small_pool", "large_pool")
MOST_EVENTS = 2**18  # numbers that wait to be added up


class Figure(NamedTuple):
    """A figure of a pool: what it is now, its peak, and all that was ever added and taken away."""

    current: int = 0
    peak: int = 0
    allocated: int = 0
    freed: int = 0


class Ledger:
    """What happened to a pool's memory: noted as it happens, added up when somebody asks.

    `events` has four numbers for each: the event, whether it is of the large pool, its size and what was requested
    [bytes].
    """

    def __init__(self) -> None:
        self.events: list[int] = []
        self._sums = np.zeros((len(Figure._fields), len(EFFECTS), len(POOLS)), np.int64)

    def figures(self) -> dict[str, dict[str, Figure]]:
        """Return each figure of each pool, as `torch.cuda.memory_stats` names them."""
        if self.events:
            self.add_up()
        of_figures = zip(EFFECTS, np.moveaxis(self._sums, 0, -1).tolist(), strict=True)
        return {
            name: {pool: Figure(*sums) for pool, sums in zip(POOLS, all_, strict=True)} for name, all_ in of_figures
        }

    def add_up(self) -> None:
        """Add up the events since the last time, all figures and pools at once."""
        events = np.array(self.events, np.int64).reshape(-1, 4)
        self.events.clear()
        what, is_large = events[:, 0], events[:, 1] == 1
        amounts = np.stack([np.ones_like(what), events[:, 2], events[:, 3]], 1)
        changes = np.einsum("nfa,na->fn", _SIGNS[what], amounts)[:, None] * np.stack(
            [is_large | True, ~is_large, is_large]
        )
        current, peak, allocated, freed = self._sums
        course = current[..., None] + changes.cumsum(-1)
        peak[:] = np.maximum(peak, course.max(-1))
        current[:] = course[..., -1]
        allocated += changes.clip(min=0).sum(-1)
        freed -= changes.clip(max=0).sum(-1)

    def reset(self, *, peaks: bool) -> None:
        """Let the peaks start anew from what is held now, or else all that was added up."""
        if self.events:
            self.add_up()
        current, peak, allocated, freed = self._sums
        if peaks:
            peak[:] = current
        else:
            allocated[:], freed[:] = 0, 0


NO_STREAMS: Mapping[int, Stream] = {}  # of most blocks: one for all


class _Block:
    """A piece of memory; compared by identity, and each handout is a new one."""

    __slots__ = ("address", "freed", "pending", "pool", "requested", "size", "state", "streams")
    freed: int  # when the program, and then the last stream that used it, let go of it [ns]

    def __init__(self, pool: object, address: int, size: int, requested: int, state: int = LIVE) -> None:
        self.pool, self.address, self.size, self.requested, self.state = pool, address, size, requested, state
        self.streams = NO_STREAMS
        self.pending = 0  # events that must be over before it can be reused

    @property
    def end(self) -> int:
        """The first address after it."""
        return self.address + self.size

    def __repr__(self) -> str:
        state = ("cached", "live", "waiting", "freed")[self.state]
        return f"<{state} block of {self.size} bytes at {self.address:#x}>"


class Block(_Block):
    """A piece of device memory.

    `address`, `size` (rounded up), `requested` [bytes]; `stream` owns it; `streams` were recorded with
    `record_stream`. Who read and wrote its addresses, also under earlier owners, is `races`' business.
    """

    __slots__ = ("_after", "_before", "_cache", "stream")

    def __init__(
        self, pool: object, address: int, size: int, requested: int, stream: Stream, cache: Cache, state: int = LIVE
    ) -> None:
        super().__init__(pool, address, size, requested, state)
        self.stream, self._cache = stream, cache  # the latter is where it goes when it is free
        self._before: Block | None = None  # the neighbours in the segment
        self._after: Block | None = None


Cache = list[tuple[int, int, Block]]  # free blocks, sorted by size, then address


class PinnedBlock(_Block):
    """A piece of pinned host memory. `size` is the next power of two; `streams` are those that copied with it (R41)."""

    __slots__ = ()


class _Pool(ABC):
    """What both pools have in common: blocks that come back when the streams that used them have come that far."""

    def __init__(self, runtime: Runtime, first_address: int) -> None:
        self.runtime = runtime
        self.ledger = Ledger()
        self.reserved = 0  # bytes that were taken from CUDA
        self.mallocs = 0  # cudaMalloc calls that gave a segment; cudaHostAlloc calls
        self.releases = 0  # cudaFree calls
        self.retries = 0  # cudaMalloc calls that failed, so that the cache was given back
        self.ooms = 0
        self._next_address = first_address
        self._deferred: dict[int, deque[tuple[Event, Any]]] = {}  # freed too early, oldest first; by stream, or all

    def _note(self, block: _Block, stream: Stream, call: str, owner: Stream | None = None) -> None:
        self._check(block, call)
        if block.size and stream is not owner:
            block.streams = {**block.streams, stream.id: stream}

    def _check(self, block: _Block, call: str) -> None:
        if block.pool is not self:
            raise BlockError(f"{call}: {block} belongs to another pool; give it to the pool that allocated it")
        if block.state != LIVE:
            raise BlockError(f"{call}: {block} was freed already; free each block once and do not use it after that")

    def free(self, block: _Block) -> None:
        """Give the block back, at the host's time: at once if no stream but its own used it (R35).

        Else an event is recorded in each of them (host time), and the block comes back when a later `allocate` finds
        them over (R36, R40). Raises `BlockError` if it was freed before or belongs to another pool.
        """
        self._check(block, "free")
        if not block.size:
            block.state = FREED
            return
        runtime, events = self.runtime, self.ledger.events
        block.freed = runtime.now
        events += (LET_GO, block.size > SMALL, block.size, 0)
        if len(events) > MOST_EVENTS:
            self.ledger.add_up()
        if not block.streams:
            if runtime.races and isinstance(block, Block):
                runtime.races.freed(block.address, block.end, block.stream)
            self._release(block)
            return
        block.state, block.pending = DEFERRED, len(block.streams)
        for stream in block.streams.values():
            event = runtime.event(timing=False)
            runtime.record_event(event, stream)
            if runtime.races:
                runtime.races.recorded(block.address, block.end, event.clock)
            self._deferred.setdefault(stream.id if isinstance(block, Block) else 0, deque()).append((event, block))

    def _collect(self, *, asks: bool = True) -> None:
        """Take back what was freed too early, from the oldest on while its event is over; `asks` CUDA, which costs."""
        runtime = self.runtime
        for key in list(self._deferred):
            queue = self._deferred[key]
            while queue and (runtime.query(queue[0][0], learn=False) if asks else runtime.is_over(queue[0][0])):
                event, block = queue.popleft()
                over_at = runtime.now if asks or event.record is None else event.record.end
                block.freed = max(block.freed, over_at)
                block.pending -= 1
                if not block.pending:
                    self._release(block)
            if not queue:
                del self._deferred[key]

    @abstractmethod
    def _release(self, block: Any) -> None:
        """Nobody uses the block any more: it may be handed out again."""


class DevicePool(_Pool):
    """PyTorch's caching allocator over one emulated GPU.

    Sizes round up to 512 bytes. Up to 1 MiB they come from 2 MiB segments, above from 20 MiB ones, from 10 MiB on from
    one of their own (in steps of 2 MiB). Best fit, lowest address first; what is left over is split off; free
    neighbours merge. `capacity` is the GPU's memory without what the CUDA context takes [bytes].
    """

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime, FIRST_ADDRESS)
        self.capacity = runtime.gpu.memory - runtime.gpu.context_memory
        self._free: defaultdict[tuple[int, bool], Cache] = defaultdict(list)  # by stream, and whether of large segments
        self._segments: dict[int, Block] = {}  # address -> its first block; the others are the neighbours after it

    def allocate(self, nbytes: int, stream: Stream | None = None) -> Block:
        """Return a block of at least `nbytes` bytes for `stream` (None: the default stream).

        Warm it costs no time beyond polls; cold it calls `cudaMalloc`: host time, but no wait (R13). A block of 0 bytes
        is free of charge. Raises `OutOfMemory`, and `ValueError` for a negative size.
        """
        if nbytes > 0:
            self._collect()
        return self._take(nbytes, stream or self.runtime.default_stream)

    def adopt(self, nbytes: int, stream: Stream) -> Block:
        """Return a block, as `allocate` does, for what lay on the device before this run: free of cost, untouched."""
        block = self._take(nbytes, stream, adopts=True)
        if self.runtime.races:
            self.runtime.races.memory.forget(block.address, block.end)
        return block

    def _take(self, nbytes: int, stream: Stream, *, adopts: bool = False) -> Block:
        if nbytes <= 0 and not _is_positive(nbytes):
            return Block(self, 0, 0, 0, stream, [])
        size = -(-nbytes // ROUND) * ROUND
        large = size > SMALL
        cache = self._free[stream.id, large]
        index = bisect_left(cache, (size,))
        region = cache.pop(index)[2] if index < len(cache) else self._grow(size, nbytes, stream, cache, adopts)
        block = self._cut(region, size, nbytes, SMALL + 1 if large else ROUND)
        self.ledger.events += (TAKEN, large, block.size, nbytes)
        return block

    def record_stream(self, block: Block, stream: Stream) -> None:
        """Note that `stream` uses the block, so that `free` waits for it (R36). The owning stream needs no note."""
        self._note(block, stream, "record_stream", block.stream)

    def empty_cache(self) -> int:
        """Wait for recorded streams, `cudaFree` each free segment (waits, R13); return the bytes given back."""
        for queue in self._deferred.values():
            for event, _ in queue:
                self.runtime.synchronize(event, learn=False)  # whether it does is luck
        self._collect(asks=False)
        before = self.reserved
        for cache in self._free.values():
            for entry in [entry for entry in cache if not (entry[2]._before or entry[2]._after)]:
                cache.remove(entry)
                del self._segments[entry[1]]
                self.runtime.free(entry[0])
                if self.runtime.races:
                    self.runtime.races.memory.forget(entry[1], entry[1] + entry[0])
                self.ledger.events += (GIVEN_BACK, entry[0] > SMALL_SEGMENT, entry[0], 0)
                self.reserved -= entry[0]
                self.releases += 1
        return before - self.reserved

    def mem_get_info(self) -> tuple[int, int]:
        """Return (free, total) bytes of the GPU, as `cudaMemGetInfo`: the cache and the context are not free."""
        return self.capacity - self.reserved, self.runtime.gpu.memory

    def cached(self) -> dict[int, int]:
        """Return the bytes that lie free in the pool of each stream, by its id; only that stream can have them."""
        sizes: dict[int, int] = {}
        for (stream, _), cache in self._free.items():
            sizes[stream] = sizes.get(stream, 0) + sum(entry[0] for entry in cache)
        return sizes

    def segments(self) -> Iterator[list[Block]]:
        """Yield each segment that is held, by address, as its blocks: live, free, or waiting for other streams."""
        for _, block in sorted(self._segments.items()):
            blocks, following = [block], block._after
            while following:
                blocks.append(following)
                following = following._after
            yield blocks

    def _cut(self, region: Block, size: int, nbytes: int, least: int) -> Block:
        """Take a block from the front of a free region; the rest stays free if it has at least `least` bytes."""
        cache = region._cache
        block = Block(self, region.address, size, nbytes, region.stream, cache)
        rest, before = region.size - size, region._before
        was_split, large = before is not None or region._after is not None, size > SMALL
        block._before = before
        if before:
            before._after = block
        else:
            self._segments[block.address] = block
        if rest >= least:
            region.address += size
            region.size = rest
            region._before, block._after = block, region
            insort(cache, (rest, region.address, region))
            self.ledger.events += (SPLIT, large, -size, 0) if was_split else (SPLIT, large, rest, 1)
        else:
            if was_split:
                self.ledger.events += (SPLIT, large, -region.size, -1)
            block.size = region.size
            block._after = region._after
            if region._after:
                region._after._before = block
        return block

    def _release(self, block: Block) -> None:
        """Put a block back into its stream's cache, merged with free neighbours. The block itself stays as it was."""
        large, merged, size = block.size > SMALL, 0, 0
        self.ledger.events += (RELEASED, large, block.size, block.requested)
        block.state = FREED
        cache, before, after = block._cache, block._before, block._after
        region, start, end = None, block.address, block.address + block.size
        if before and before.state == FREE:
            region, start = before, before.address
            merged, size = 1, before.size
            del cache[bisect_left(cache, (before.size, start))]
            before = before._before
        if after and after.state == FREE:
            region, end = region or after, after.address + after.size
            merged, size = merged + 1, size + after.size
            del cache[bisect_left(cache, (after.size, after.address))]
            after = after._after
        if region is None:
            region = Block(self, start, end - start, 0, block.stream, cache, FREE)
        else:
            region.address, region.size = start, end - start
        region._before, region._after = before, after
        if before or after:
            self.ledger.events += (SPLIT, large, region.size - size, 1 - merged)
        elif merged:
            self.ledger.events += (SPLIT, large, -size, -merged)
        if before:
            before._after = region
        else:
            self._segments[start] = region
        if after:
            after._before = region
        insort(cache, (region.size, start, region))

    def _grow(self, size: int, nbytes: int, stream: Stream, cache: Cache, adopts: bool) -> Block:
        """Ask CUDA for a segment that holds `size` bytes; if it has none, give the cache back and ask once more."""
        segment = segment_size(size)
        if self.reserved + segment > self.capacity:
            self.runtime.malloc(segment)  # the call that fails (that it costs as much as one that does not: assumed)
            self.retries += 1
            self.empty_cache()
        if not adopts:
            self.runtime.malloc(segment)
        if self.reserved + segment > self.capacity:
            self.ooms += 1
            free, total = self.mem_get_info()
            allocated = self.ledger.figures()["allocated_bytes"]["all"].current
            name = self.runtime.gpu.name
            raise OutOfMemory(name, nbytes, segment, total, free, allocated, self.reserved - allocated)
        self.mallocs += not adopts
        self.reserved += segment
        self.ledger.events += (GROWN, size > SMALL, segment, 0)
        region = Block(self, self._next_address, segment, 0, stream, cache, FREE)
        self._next_address += segment
        return region


class PinnedPool(_Pool):
    """PyTorch's cache of pinned host memory: powers of two, no splitting (R39).

    A block that asynchronous copies used comes back when they are over (R40); only copies noted with `use` count (R41),
    and nothing stops the host from writing into a block while it is being copied (R42).
    """

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime, FIRST_PINNED_ADDRESS)
        self._free: dict[int, list[tuple[int, int]]] = {}  # size -> (free since [ns], address)
        self.locks: list[int] = []  # how long each page-locking took [ns]

    def allocate(self, nbytes: int) -> PinnedBlock:
        """Return a block of at least `nbytes` bytes. Cold it is page-locked first: slow, and it synchronises (R44).

        Warm it costs no more than polls. Raises `ValueError` for a negative size.
        """
        block, is_new = self._take(nbytes)
        if is_new:
            before = self.runtime.now
            self.runtime.page_lock(block.size)
            self.locks.append(self.runtime.now - before)
        return block

    def allocate_at(self, nbytes: int, time: int) -> tuple[PinnedBlock, int]:
        """Return a block for another thread (the DataLoader's pin thread), and the ns that page-locking costs it.

        `time` [ns] may lie before the host's: what was freed later is not reused. Costs the main thread nothing.
        """
        block, is_new = self._take(nbytes, time)
        took = self.runtime.host.page_lock_time(block.size) if is_new else 0
        self.locks += [took] * is_new
        return block, took

    def _take(self, nbytes: int, time: int | None = None) -> tuple[PinnedBlock, bool]:
        """Return the block that was freed last (or first, but not after `time`), and whether it is a new one."""
        if not _is_positive(nbytes):
            return PinnedBlock(self, 0, 0, 0), False
        self._collect(asks=time is None)
        size = 1 << (nbytes - 1).bit_length()
        cache = self._free.setdefault(size, [])
        index = len(cache) - 1
        if time is not None:
            index = next((index for index, (since, _) in enumerate(cache) if since <= time), -1)
        if index >= 0:
            address = cache.pop(index)[1]
        else:
            address = self._next_address
            self._next_address += max(size, PAGE)
            self.mallocs += 1
            self.reserved += size
            self.ledger.events += (GROWN, 0, size, 0)
        self.ledger.events += (TAKEN, 0, size, nbytes)
        return PinnedBlock(self, address, size, nbytes), index < 0

    def use(self, block: PinnedBlock, stream: Stream) -> None:
        """Note that an asynchronous copy in `stream` reads or writes the block (R29, R41). Costs no time."""
        self._note(block, stream, "use")

    def _release(self, block: PinnedBlock) -> None:
        block.state = FREED
        self.ledger.events += (RELEASED, 0, block.size, block.requested)
        self._free[block.size].append((block.freed, block.address))


def segment_size(size: int) -> int:
    """Return how many bytes the allocator asks CUDA for when it needs a block of `size` bytes."""
    if size <= SMALL:
        return SMALL_SEGMENT
    if size < OWN_SEGMENT:
        return LARGE_SEGMENT
    return -(-size // ROUND_SEGMENT) * ROUND_SEGMENT


def binary(nbytes: int) -> str:
    """Return a size as PyTorch writes it: "512 bytes", "20.00 MiB", "1.50 GiB"."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.2f} {name}"
    return f"{nbytes} bytes"


def _is_positive(nbytes: int) -> bool:
    if nbytes < 0:
        raise ValueError(f"allocate({nbytes}): a size cannot be negative; give the number of bytes")
    return nbytes > 0
