"""What torch.cuda and torch.accelerator say of memory: torch's own functions, over what its C++ would have answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from loaderviz.emulator.memory import DEFERRED, FREE, LIVE, SMALL_SEGMENT
from loaderviz.emulator.torch.library.cuda import check_device
from loaderviz.emulator.torch.session import Session
from loaderviz.errors import NotModelledError

if TYPE_CHECKING:
    from loaderviz.emulator.memory import Block, Figure, Ledger
    from loaderviz.emulator.torch.patches import Patches

NONE = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
BLOCK_STATES = {LIVE: "active_allocated", DEFERRED: "active_pending_free", FREE: "inactive"}
# What torch.cuda.host_memory_stats calls the figures of a pool: a block of it is a segment
PINNED = {"allocations": "segment", "allocated_bytes": "reserved_bytes", "active_requests": "active"}
NO_HISTORY = "torch.cuda.memory: the emulated allocator keeps no history; its snapshots show what is there now"


def install(session: Session, patches: Patches) -> None:
    """Put in place what torch's C++ would answer, and what Python itself decides."""
    functions = _fraction(session) | _whole(session)
    own = _statistics(session) | _pinned_statistics(session) | _history(session)
    for name, answer in (own | {"_accelerator_getMemoryInfo": functions["mem_get_info"]}).items():
        patches.set(torch._C, name, answer)
    for owner in (torch.cuda, torch.cuda.memory, torch.accelerator):
        for name, answer in functions.items():
            patches.function(owner, name, answer)


def _now(session: Session) -> None:
    session.enter("a question about memory")  # gives back what was freed since the last call
    session.leave()


def _resets(ledger: Ledger, *, peaks: bool) -> Callable[..., None]:
    return lambda *_: ledger.reset(peaks=peaks)


def _statistics(session: Session) -> dict[str, Any]:
    pool = session.pool

    def statistics(device: Any = None) -> dict[str, Any]:
        check_device(device)
        _now(session)
        nested: dict[str, Any] = {name: _as_dicts(pools) for name, pools in pool.ledger.figures().items()}
        nested |= {"oversize_allocations": NONE, "oversize_segments": NONE, "max_split_size": -1}
        nested |= dict.fromkeys(("num_sync_all_streams", "num_oom_rejections"), 0)
        return nested | {
            "num_alloc_retries": pool.retries,
            "num_ooms": pool.ooms,
            "num_device_alloc": pool.mallocs,
            "num_device_free": pool.releases,
        }

    peaks, totals = (_resets(pool.ledger, peaks=peaks) for peaks in (True, False))
    return {
        "_cuda_memoryStats": statistics,
        "_cuda_resetPeakMemoryStats": peaks,
        "_cuda_resetAccumulatedMemoryStats": totals,
        "_accelerator_getDeviceStats": statistics,
        "_accelerator_resetPeakStats": peaks,
        "_accelerator_resetAccumulatedStats": totals,
    }


def _pinned_statistics(session: Session) -> dict[str, Any]:
    pinned = session.pinned

    def statistics() -> dict[str, Any]:
        _now(session)
        figures = {name: pools["all"] for name, pools in pinned.ledger.figures().items()}
        named = {name: figures[figure]._asdict() for name, figure in PINNED.items()}
        return named | {
            "active_bytes": figures["active_bytes"]._asdict(),
            "num_host_alloc": pinned.mallocs,
            "num_host_free": 0,  # the cache keeps what it has
            "host_alloc_time": _times(pinned.locks),
            "host_free_time": _times([]),
        }

    return {
        "_cuda_hostMemoryStats": statistics,
        "_cuda_resetPeakHostMemoryStats": _resets(pinned.ledger, peaks=True),
        "_cuda_resetAccumulatedHostMemoryStats": _resets(pinned.ledger, peaks=False),
        "_host_emptyCache": lambda: None,
    }


def _history(session: Session) -> dict[str, Any]:
    def snapshot(pool_id: tuple[Any, ...] | None = None, *_: Any) -> dict[str, Any]:
        if pool_id and tuple(pool_id[:2]) != (0, 0):
            raise NotModelledError("memory_snapshot: the emulated GPU has no memory pools of one's own; leave them out")
        _now(session)
        segments = [_segment(blocks) for blocks in session.pool.segments()]
        return {"segments": segments, "device_traces": [[]], "external_annotations": []}

    def record_history(enabled: Any = "all", *_: Any, **__: Any) -> None:
        if enabled is not None:
            session.note(NO_HISTORY)

    return {
        "_cuda_memorySnapshot": snapshot,
        "_cuda_record_memory_history": record_history,
        "_cuda_record_memory_history_legacy": record_history,
        "_accelerator_isAllocatorInitialized": lambda: True,
    }


def _whole(session: Session) -> dict[str, Any]:
    def empty_cache() -> None:
        with session.calling("torch.cuda.empty_cache"):
            session.pool.empty_cache()

    def mem_get_info(device: Any = None) -> tuple[int, int]:
        check_device(device)
        _now(session)
        return session.pool.mem_get_info()

    return {"empty_cache": empty_cache, "mem_get_info": mem_get_info}


def _fraction(session: Session) -> dict[str, Any]:
    pool, limit = session.pool, 1.0
    whole = pool.capacity

    def set_fraction(fraction: float, device: Any = None) -> None:
        check_device(device)
        if not isinstance(fraction, float):
            raise TypeError("Invalid type for fraction argument, must be `float`")
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        nonlocal limit
        limit = fraction
        pool.capacity = min(whole, int(fraction * session.runtime.gpu.memory))

    def get_fraction(device: Any = None) -> float:
        check_device(device)
        return limit

    return {"set_per_process_memory_fraction": set_fraction, "get_per_process_memory_fraction": get_fraction}


def _as_dicts(pools: dict[str, Figure]) -> dict[str, dict[str, int]]:
    return {pool: figure._asdict() for pool, figure in pools.items()}


def _times(durations: list[int]) -> dict[str, int]:
    times = [duration // 1000 for duration in durations]  # us, as torch has them
    total, count = sum(times), len(times)
    return {
        "total": total,
        "max": max(times, default=0),
        "min": min(times, default=0),
        "count": count,
        "avg": total // max(1, count),
    }


def _segment(blocks: list[Block]) -> dict[str, Any]:
    """Return a segment in torch's words; sizes in bytes. Nothing has frames: the allocator's history is not kept."""
    total = sum(block.size for block in blocks)
    active = [block for block in blocks if block.state != FREE]
    return {
        "device": 0,
        "address": blocks[0].address,
        "stream": blocks[0].stream.id,
        "segment_type": "small" if total == SMALL_SEGMENT else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "total_size": total,
        "active_size": sum(block.size for block in active),
        "allocated_size": sum(block.size for block in active if block.state == LIVE),
        "requested_size": sum(block.requested for block in active),
        "blocks": [
            {"address": block.address, "size": block.size, "requested_size": block.requested, "frames": []}
            | {"state": BLOCK_STATES[block.state]}
            for block in blocks
        ],
        "frames": [],
    }
