"""Pipelines whose time one can write down: overlapped, serial, k deep, both ways, and with shares of the GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaderviz.emulator import Gpu, Host, Runtime
from loaderviz.timeline import DEVICE_KINDS, Kind

US = 1000
FREE = dict.fromkeys(("launch", "memcpy_call", "synchronize", "event_call", "query", "wake"), 0)
HOST = replace(Host.preset("laptop"), **FREE)  # a host that is never in the way
AT_ONCE = dict.fromkeys(("launch_latency", "copy_latency", "d2h_latency", "queue_gap"), 0)
GPU = replace(Gpu.preset("a100"), **AT_ONCE, h2d=10**9, d2h=10**9)  # 1 byte a ns


def runtime(**gpu):
    return Runtime(replace(GPU, **gpu), HOST)


def serial(batches, copy, compute):
    """Copy and compute in one stream."""
    gpu = runtime()
    for _ in range(batches):
        gpu.memcpy(copy, "h2d")
        gpu.launch(compute)
    gpu.synchronize()
    return gpu


def pipelined(batches, copy, compute, depth):
    """Copies in a side stream into `depth` buffers: copy k waits until compute k - depth has read its buffer."""
    gpu = runtime()
    side = gpu.stream()
    copied, used = ([gpu.event() for _ in range(batches)] for _ in range(2))
    for batch in range(batches):
        if batch >= depth:
            gpu.wait_event(side, used[batch - depth])
        gpu.memcpy(copy, "h2d", side)
        gpu.record_event(copied[batch], side)
        gpu.wait_event(gpu.default_stream, copied[batch])
        gpu.launch(compute)
        gpu.record_event(used[batch])
    gpu.synchronize()
    return gpu


numbers = st.integers(1, 10_000)


@given(st.integers(1, 12), numbers, numbers)
@settings(max_examples=50, deadline=None)
def test_one_stream_is_the_sum(batches, copy, compute):
    assert serial(batches, copy, compute).now == batches * (copy + compute)


@given(st.integers(1, 12), numbers, numbers)
@settings(max_examples=50, deadline=None)
def test_perfect_overlap_is_the_longer_of_the_two_and_the_fill(batches, copy, compute):
    """Two buffers suffice: after the first copy the slower of the two never stops; the other's last one remains."""
    gpu = pipelined(batches, copy, compute, depth=2)
    assert gpu.now == copy + (batches - 1) * max(copy, compute) + compute


@given(st.integers(1, 12), numbers, numbers)
@settings(max_examples=50, deadline=None)
def test_one_buffer_is_no_overlap(batches, copy, compute):
    assert pipelined(batches, copy, compute, depth=1).now == serial(batches, copy, compute).now


@given(st.integers(1, 12), numbers, numbers, st.integers(2, 6))
@settings(max_examples=50, deadline=None)
def test_deeper_pipelines_gain_nothing_when_the_times_are_even(batches, copy, compute, depth):
    assert pipelined(batches, copy, compute, depth).now == pipelined(batches, copy, compute, 2).now


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


@pytest.mark.parametrize("factor", [1000, 720, 500])
def test_two_equal_copies_in_both_directions_take_longer_by_the_factor(factor):
    gpu = runtime(bidirectional=factor)
    for direction in ("h2d", "d2h"):
        gpu.memcpy(720_000, direction, gpu.stream())
    gpu.synchronize()
    assert gpu.now == 720_000 * 1000 // factor


@given(st.integers(1, 100_000), st.integers(1, 100_000))
@settings(max_examples=100, deadline=None)
def test_a_short_copy_slows_a_long_one_for_as_long_as_it_lasts(one, other):
    """While both run each moves 0.72 bytes a ns; what is left of the longer one goes at full speed."""
    gpu = runtime()
    gpu.memcpy(one, "h2d", gpu.stream())
    gpu.memcpy(other, "d2h", gpu.stream())
    ends = {row.kind: row.end for row in gpu.timeline().rows(*DEVICE_KINDS)}
    short, long = sorted((one, other))
    together = -(-short * 1000 // 720)
    rest = -(-max(0, long * 1000 - together * 720) // 1000)
    assert sorted(ends.values()) == [together, together + rest]


@given(st.integers(1, 40), st.sampled_from([1000, 500, 333, 250, 100, 1]))
@settings(max_examples=50, deadline=None)
def test_kernels_run_in_waves_of_as_many_as_fit(kernels, share):
    gpu = runtime()
    for _ in range(kernels):
        gpu.launch(1000, gpu.stream(), share=share)
    gpu.synchronize()
    fit = min(1000 // share, kernels)
    streams = min(kernels, 32)  # the pool's 33rd stream is its first again
    waves = -(-kernels // min(fit, streams))
    assert gpu.now == waves * 1000


@given(st.integers(1, 50), st.integers(1, 20_000), st.integers(0, 20_000))
@settings(max_examples=50, deadline=None)
def test_a_loop_is_bound_by_the_launches_or_by_the_kernels(kernels, duration, launch):
    """The host needs `launch` ns for each; the last kernel ends after the slower of the two chains."""
    gpu = Runtime(GPU, replace(HOST, launch=launch))
    for _ in range(kernels):
        gpu.launch(duration)
    gpu.synchronize()
    assert gpu.now == launch + (kernels - 1) * max(launch, duration) + duration


def test_a_synchronise_every_step_adds_the_launch_latency_to_every_step():
    gpu = Runtime(replace(GPU, launch_latency=4 * US), replace(HOST, launch=5 * US, synchronize=2 * US, wake=3 * US))
    for _ in range(10):
        gpu.launch(100 * US)
        gpu.synchronize()
    assert gpu.now == 10 * (5 + 4 + 100 + 3) * US


def test_what_the_host_does_meanwhile_is_free():
    """max(host, device), not their sum: the synchronise finds the kernel over."""
    gpu = Runtime(GPU, replace(HOST, synchronize=2 * US, wake=3 * US))
    gpu.launch(100 * US)
    gpu.host_work(150 * US)
    gpu.synchronize()
    assert gpu.now == 152 * US
