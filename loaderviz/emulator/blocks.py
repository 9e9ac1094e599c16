"""What the memory pools hand out: blocks of device memory, their sizes, and what can go wrong with them.

segment_size(512)       # 2_097_152: what the pool asks CUDA for when it needs 512 bytes
"""

from __future__ import annotations

from loaderviz.emulator.device import Stream
from loaderviz.errors import LoadervizError

ROUND = 512  # every device block is a multiple of this
SMALL = 2**20  # up to here a block comes from a small segment
SMALL_SEGMENT = 2 * 2**20
LARGE_SEGMENT = 20 * 2**20  # for blocks below OWN_SEGMENT; larger ones get a segment of their own, rounded up
OWN_SEGMENT = 10 * 2**20
ROUND_SEGMENT = 2 * 2**20
FREE, LIVE, DEFERRED, FREED = range(4)  # in the cache; in use; waiting for recorded streams; given back


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
        super().__init__(
            f"CUDA out of memory. Tried to allocate {words(tried)}. The emulated {device} has {words(total)} in total, "
            f"of which {words(free)} are free. PyTorch has allocated {words(allocated)}; another {words(unallocated)} "
            "are reserved but unallocated. Use a smaller batch, drop tensors that are no longer needed, or emulate a "
            "GPU with more memory."
        )


class Block:
    """A piece of device memory; compared by identity, and each handout is a new Block.

    `address`, `size` (rounded up), `requested` [bytes]; `stream` owns it; `streams` were recorded with
    `record_stream`. Who read and wrote its addresses, also under earlier owners, is `races`' business.
    """

    __slots__ = (
        "_after", "_before", "_cache", "address", "pending", "pool", "requested", "size", "state", "stream", "streams",
    )  # fmt: skip

    def __init__(
        self, pool: object, address: int, size: int, requested: int, stream: Stream, cache: Cache, state: int = LIVE
    ) -> None:
        self.pool, self.address, self.size, self.requested, self.stream = pool, address, size, requested, stream
        self.state = state
        self._cache = cache  # where it goes when it is free
        self.streams: dict[int, Stream] = {}
        self.pending = 0  # events that must be over before it can be reused
        self._before: Block | None = None  # the neighbours in the segment
        self._after: Block | None = None

    def __repr__(self) -> str:
        state = ("cached", "live", "waiting", "freed")[self.state]
        return f"<{state} block of {self.size} bytes at {self.address:#x}, stream {self.stream.number}>"

    @property
    def end(self) -> int:
        """The first address after it."""
        return self.address + self.size


Cache = list[tuple[int, int, Block]]  # free blocks, sorted by size, then address


def segment_size(size: int) -> int:
    """Return how many bytes the allocator asks CUDA for when it needs a block of `size` bytes."""
    if size <= SMALL:
        return SMALL_SEGMENT
    if size < OWN_SEGMENT:
        return LARGE_SEGMENT
    return -(-size // ROUND_SEGMENT) * ROUND_SEGMENT


def words(nbytes: int) -> str:
    """Return a size as PyTorch writes it: "512 bytes", "20.00 MiB", "1.50 GiB"."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.2f} {name}"
    return f"{nbytes} bytes"
