"""Pipelines whose time one can write down: k deep with uneven batches, and copies both ways at once."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from loaderviz.emulator import Gpu, Host, Runtime
from loaderviz.timeline import DEVICE_KINDS, Kind

FREE = dict.fromkeys(("launch", "memcpy_call", "synchronize", "event_call", "query", "wake"), 0)
HOST = replace(Host.preset("laptop"), **FREE)  # a host that is never in the way
AT_ONCE = dict.fromkeys(("launch_latency", "copy_latency", "d2h_latency", "queue_gap"), 0)
GPU = replace(Gpu.preset("a100"), **AT_ONCE, h2d=10**9, d2h=10**9)  # 1 byte a ns


def runtime(**gpu):
    return Runtime(replace(GPU, **gpu), HOST)


numbers = st.integers(1, 10_000)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=12), st.integers(1, 5))
@settings(max_examples=100, deadline=None)
def test_a_pipeline_k_deep_with_uneven_batches(batches, depth):
    """copied[k] = max(copied[k-1], used[k-depth]) + copy[k]; used[k] = max(used[k-1], copied[k]) + compute[k]."""
    gpu = runtime()
    side = gpu.stream()
    copied, used = [], []
    events = []
    for batch, (copy, compute) in enumerate(batches):
        if batch >= depth:
            gpu.wait_event(side, events[batch - depth])
        gpu.memcpy(copy, "h2d", side)
        gpu.wait_stream(gpu.default_stream, side)
        gpu.launch(compute)
        events.append(gpu.event())
        gpu.record_event(events[-1])
        buffer_free = used[batch - depth] if batch >= depth else 0
        copied.append(max(copied[-1] if copied else 0, buffer_free) + copy)
        used.append(max(used[-1] if used else 0, copied[-1]) + compute)
    timeline = gpu.timeline()
    assert [row.end for row in timeline.rows(Kind.COPY_H2D)] == copied
    assert [row.end for row in timeline.rows(Kind.COMPUTE)] == used


@given(st.integers(1, 100_000), st.integers(1, 100_000), st.sampled_from([1000, 720, 500]))
@settings(max_examples=100, deadline=None)
def test_a_short_copy_slows_a_long_one_for_as_long_as_it_lasts(one, other, factor):
    """While both run each moves `factor` thousandths of a byte a ns; what is left of the longer one at full speed."""
    gpu = runtime(bidirectional=factor)
    gpu.memcpy(one, "h2d", gpu.stream())
    gpu.memcpy(other, "d2h", gpu.stream())
    ends = {row.kind: row.end for row in gpu.timeline().rows(*DEVICE_KINDS)}
    short, long = sorted((one, other))
    together = -(-short * 1000 // factor)
    rest = -(-max(0, long * 1000 - together * factor) // 1000)
    assert sorted(ends.values()) == [together, together + rest]
