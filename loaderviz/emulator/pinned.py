"""PinnedPool: PyTorch's cache of pinned host memory, in virtual time.

pool = PinnedPool(runtime)
block = pool.allocate(802_816)            # cold: page-locks a power of two, slow once (R44)
runtime.memcpy(802_816, "h2d", stream)
pool.use(block, stream)                   # the copy reads it
pool.free(block)                          # comes back when the copy is over (R40)
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from loaderviz.emulator.blocks import DEFERRED, FREE, LIVE, BlockError
from loaderviz.emulator.costs import page_lock_time
from loaderviz.emulator.device import Stream
from loaderviz.emulator.runtime import Event, Runtime

FIRST_ADDRESS = 0x2000_0000_0000
PAGE = 4096  # blocks lie this far apart at least


class PinnedBlock:
    """A piece of pinned host memory. `size` is the next power of two; `streams` are those that copied with it (R41)."""

    __slots__ = ("address", "freed", "pending", "pool", "requested", "size", "state", "streams")

    def __init__(self, pool: PinnedPool, address: int, size: int, requested: int) -> None:
        self.pool, self.address, self.size, self.requested = pool, address, size, requested
        self.state = LIVE
        self.streams: dict[int, Stream] = {}
        self.pending = 0
        self.freed = 0  # when the program let go of it [ns]

    def __repr__(self) -> str:
        return f"<{('cached', 'live', 'waiting')[self.state]} pinned block of {self.size} bytes at {self.address:#x}>"


@dataclass
class PinnedStatistics:
    """Bytes and counts of a `PinnedPool`. Nothing is ever given back to the system."""

    allocated: int = 0  # in use by the program
    reserved: int = 0  # page-locked, in use or not
    allocations: int = 0
    page_locks: int = 0  # cudaHostAlloc calls


class PinnedPool:
    """PyTorch's cache of pinned host memory: powers of two, no splitting (R39).

    A block that asynchronous copies used comes back when they are over (R40); only copies noted with `use` count (R41),
    and nothing stops the host from writing into a block while it is being copied (R42).
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.stats = PinnedStatistics()
        self._next_address = FIRST_ADDRESS
        self._free: dict[int, list[tuple[int, int]]] = {}  # size -> (free since [ns], address)
        self._deferred: deque[tuple[Event, PinnedBlock]] = deque()  # oldest first

    def allocate(self, nbytes: int) -> PinnedBlock:
        """Return a block of at least `nbytes` bytes. Cold it is page-locked first: slow, and it synchronises (R44).

        Warm it costs no more than polls. Raises `ValueError` for a negative size.
        """
        if nbytes <= 0:
            if nbytes < 0:
                raise ValueError(f"allocate({nbytes}): a size cannot be negative; give the number of bytes")
            return PinnedBlock(self, 0, 0, 0)
        while self._deferred and self.runtime.query(self._deferred[0][0], learn=False):
            self._event_over(self._deferred.popleft()[1])
        size = 1 << (nbytes - 1).bit_length()
        cache = self._free.setdefault(size, [])
        stats = self.stats
        if cache:
            address = cache.pop()[1]
        else:
            self.runtime.page_lock(size)
            address = self._lock(size)
        stats.allocations += 1
        stats.allocated += size
        return PinnedBlock(self, address, size, nbytes)

    def allocate_at(self, nbytes: int, time: int) -> tuple[PinnedBlock, int]:
        """Return a block for another thread (the DataLoader's pin thread), and the ns that page-locking costs it.

        `time` [ns] may lie before the host's: what was freed later is not reused. Costs the main thread nothing.
        """
        if nbytes <= 0:
            return self.allocate(nbytes), 0
        while self._deferred and self.runtime.is_over(self._deferred[0][0]):
            event, block = self._deferred.popleft()
            self._event_over(block, event.record.end if event.record else self.runtime.now)
        size = 1 << (nbytes - 1).bit_length()
        cache = self._free.setdefault(size, [])
        usable = next((entry for entry in cache if entry[0] <= time), None)
        if usable:
            cache.remove(usable)
        address = usable[1] if usable else self._lock(size)
        self.stats.allocations += 1
        self.stats.allocated += size
        return PinnedBlock(self, address, size, nbytes), 0 if usable else page_lock_time(self.runtime.host, size)

    def _lock(self, size: int) -> int:
        """Note a new page-locked block; return its address."""
        self.stats.page_locks += 1
        self.stats.reserved += size
        address = self._next_address
        self._next_address += max(size, PAGE)
        return address

    def use(self, block: PinnedBlock, stream: Stream) -> None:
        """Note that an asynchronous copy in `stream` reads or writes the block (R29, R41). Costs no time."""
        self._check(block, "use")
        if block.size:
            block.streams[stream.id] = stream

    def free(self, block: PinnedBlock) -> None:
        """Give the block back: at once if no copy used it, else after an event in each stream that did (R40).

        Raises `BlockError` if it was freed before or belongs to another pool.
        """
        self._check(block, "free")
        block.state = DEFERRED
        block.freed = self.runtime.now
        block.pending = len(block.streams)
        self.stats.allocated -= block.size
        for stream in block.streams.values():
            event = self.runtime.event(timing=False)
            self.runtime.record_event(event, stream)
            if self.runtime.races:
                self.runtime.races.recorded(block.address, block.address + block.size, event.clock)
            self._deferred.append((event, block))
        if not block.pending:
            self._release(block)

    def _check(self, block: PinnedBlock, call: str) -> None:
        if block.pool is not self:
            raise BlockError(f"{call}: {block} belongs to another pool; give it to the pool that allocated it")
        if block.state != LIVE:
            raise BlockError(f"{call}: {block} was freed already; free each block once and do not use it after that")

    def _event_over(self, block: PinnedBlock, time: int | None = None) -> None:
        block.freed = max(block.freed, self.runtime.now if time is None else time)
        block.pending -= 1
        if not block.pending:
            self._release(block)

    def _release(self, block: PinnedBlock) -> None:
        block.state = FREE
        if block.size:
            self._free[block.size].append((block.freed, block.address))
