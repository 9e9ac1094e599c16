"""Memory names: the memory functions that `torch.cuda` and `torch.accelerator` share, answered by the emulated pool."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from loaderviz.emulator.torch_cuda.session import wanted_device

if TYPE_CHECKING:
    from loaderviz.emulator.torch_cuda.session import Session


def check_device(device: Any) -> None:
    """Accept only the one GPU there is."""
    if device is None or (isinstance(device, int) and device < 0):
        return
    if wanted_device(device).type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {device}")


def memory_functions(session: Session) -> dict[str, Any]:
    """Return the memory functions, which torch.cuda and torch.accelerator share; all bytes come from the pool."""
    pool = session.pool

    def up_to_date(device: Any) -> None:
        """Give back what was freed since the last call, so that the numbers are right."""
        check_device(device)
        session.enter("a question about memory")
        session.leave()

    def reading(get: Callable[[Any], int]) -> Callable[..., int]:
        def read(device: Any = None) -> int:
            """Return a number of bytes."""
            up_to_date(device)
            return get(pool.stats)

        return read

    def memory_stats(device: Any = None) -> OrderedDict[str, int]:
        """Return the statistics that the emulated pool keeps, by PyTorch's names."""
        up_to_date(device)
        stats = pool.stats
        figures = {
            "allocated_bytes.all.current": stats.allocated, "allocated_bytes.all.peak": stats.allocated_peak,
            "active_bytes.all.current": stats.active, "active_bytes.all.peak": stats.active_peak,
            "reserved_bytes.all.current": stats.reserved, "reserved_bytes.all.peak": stats.reserved_peak,
            "segment.all.current": stats.segments, "allocation.all.allocated": stats.allocations,
            "allocation.all.freed": stats.frees, "num_device_alloc": stats.mallocs, "num_device_free": stats.releases,
            "num_alloc_retries": stats.retries, "num_ooms": stats.ooms,
        }  # fmt: skip
        return OrderedDict(sorted(figures.items()))

    def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
        """Return the statistics as lines of text."""
        return "\n".join(f"{name:32} {value:>16,}" for name, value in memory_stats(device).items())

    def empty_cache() -> None:
        """Give unused segments back, which synchronises (R13)."""
        session.enter("torch.cuda.empty_cache")
        pool.empty_cache()
        session.leave()

    def mem_get_info(device: Any = None) -> tuple[int, int]:
        """Return (free, total) bytes."""
        up_to_date(device)
        return pool.mem_get_info()

    allocated, peak = reading(lambda stats: stats.allocated), reading(lambda stats: stats.allocated_peak)
    reserved, reserved_peak = reading(lambda stats: stats.reserved), reading(lambda stats: stats.reserved_peak)
    return {
        "memory_allocated": allocated, "max_memory_allocated": peak, "memory_reserved": reserved,
        "memory_cached": reserved, "max_memory_reserved": reserved_peak, "max_memory_cached": reserved_peak,
        "memory_stats": memory_stats, "memory_summary": memory_summary, "empty_cache": empty_cache,
        "mem_get_info": mem_get_info, "get_memory_info": mem_get_info,
        "reset_peak_memory_stats": lambda device=None: pool.reset_peak(),
        "reset_max_memory_allocated": lambda device=None: pool.reset_peak(),
        "reset_max_memory_cached": lambda device=None: pool.reset_peak(),
        "reset_accumulated_memory_stats": lambda device=None: None,
    }  # fmt: skip
