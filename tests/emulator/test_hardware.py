"""Presets: every number has a source or says that it is assumed; unknown names tell which exist."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaderviz.emulator import Gpu, Host, Runtime, costs
from loaderviz.emulator.hardware import ASSUMED, GPU_SOURCES, GPUS, HOST_SOURCES, HOSTS, UnknownHardwareError, numbers
from loaderviz.errors import LoadervizError

MACHINES = [*GPUS.values(), *HOSTS.values()]
each_machine = pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
each_gpu = pytest.mark.parametrize("gpu", GPUS.values(), ids=list(GPUS))


@each_machine
def test_every_number_has_a_source_or_says_assumed(machine):
    table = numbers(machine)
    names = {entry.name for entry in fields(machine)} - {"name", "sources"}
    assert set(table) == names
    for name, text in table.items():
        source = machine.source(name)
        assert text == f"{getattr(machine, name)} ({source})"
        assert source.startswith(ASSUMED) or len(source) > 15


@each_machine
def test_sources_are_of_numbers_that_exist(machine):
    names = {entry.name for entry in fields(machine)}
    assert set(machine.sources) | set(GPU_SOURCES if isinstance(machine, Gpu) else HOST_SOURCES) <= names


@pytest.mark.parametrize("name", ["t4", "h100", "laptop-pcie3"])
def test_links_without_a_primary_source_say_so(name):
    """No published figure was found for these cards' links: they are taken from another machine's."""
    for number in ("h2d", "d2h", "pageable"):
        assert Gpu.preset(name).source(number).startswith(ASSUMED)


@each_machine
def test_numbers_are_positive_and_whole(machine):
    for entry in fields(machine):
        value = getattr(machine, entry.name)
        for number in value if isinstance(value, tuple) else [value]:
            assert isinstance(number, str | dict) or (type(number) is int and number >= 0)


@each_gpu
def test_the_cards_are_plausible(gpu):
    """Pageable is slower than pinned, the link slower than the memory, and half precision not slower than single."""
    assert gpu.pageable < min(gpu.h2d, gpu.d2h) <= max(gpu.h2d, gpu.d2h) < gpu.memory_bandwidth
    assert gpu.fp64 <= gpu.fp32 <= gpu.tf32 <= gpu.fp16
    assert 0 < gpu.context_memory < gpu.memory
    assert 500 <= gpu.bidirectional <= 1000
    assert gpu.staging_chunk * 10**9 // gpu.h2d > 0


@pytest.mark.parametrize(("kind", "presets"), [(Gpu, GPUS), (Host, HOSTS)])
@pytest.mark.parametrize("name", ["v100", "", None, 3])
def test_an_unknown_preset_names_those_that_exist(kind, presets, name):
    with pytest.raises(UnknownHardwareError) as caught:
        kind.preset(name)
    assert isinstance(caught.value, LoadervizError)
    assert isinstance(caught.value, ValueError)
    assert repr(name) in str(caught.value)
    assert all(known in str(caught.value) for known in presets)


def test_presets_are_found_in_any_case_and_cannot_be_changed():
    assert Gpu.preset("A100") is Gpu.preset("a100")
    with pytest.raises(FrozenInstanceError):
        Gpu.preset("a100").h2d = 1
    faster = replace(Gpu.preset("a100"), h2d=1)
    assert (faster.h2d, Gpu.preset("a100").h2d) == (1, 25 * 10**9)
    assert faster != Gpu.preset("a100")


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("host", HOSTS)
def test_a_program_takes_the_same_time_whenever_it_runs(gpu, host):
    timelines = []
    for _ in range(2):
        runtime = Runtime(Gpu.preset(gpu), Host.preset(host))
        side = runtime.stream()
        for _ in range(3):
            runtime.memcpy(10**7, "h2d", side)
            runtime.wait_stream(runtime.default_stream, side)
            runtime.launch(costs.kernel_time(runtime.gpu, 10**7))
            runtime.memcpy(10**6, "d2h", pinned=False)
        timelines.append(runtime.timeline())
    assert timelines[0] == timelines[1]


# Costs


@each_gpu
@settings(deadline=None)
@given(nbytes=st.integers(0, 10**11), flops=st.integers(0, 10**15))
def test_a_kernel_is_bound_by_memory_or_by_arithmetic(gpu, nbytes, flops):
    """A roofline: the longer of the two, never less than exact, never more than 1 ns above it."""
    work = costs.kernel_time(gpu, nbytes, flops) - gpu.kernel_start
    efficiency = gpu.efficiency * 10**-3
    exact = max(nbytes / gpu.memory_bandwidth, flops / gpu.fp32) / efficiency * 1e9
    assert exact * (1 - 1e-9) <= work <= exact * (1 + 1e-9) + 1
    assert work == max(
        costs.kernel_time(gpu, nbytes) - gpu.kernel_start, costs.kernel_time(gpu, 0, flops) - gpu.kernel_start
    )


@each_gpu
def test_lower_precision_is_never_slower(gpu):
    times = [costs.kernel_time(gpu, 0, 10**14, precision) for precision in ("fp64", "fp32", "tf32", "fp16")]
    assert times == sorted(times, reverse=True)


@each_gpu
def test_the_share_of_the_gpu_grows_with_the_elements(gpu):
    full = gpu.sms * gpu.threads_per_sm
    assert costs.sm_share(gpu, 0) == costs.sm_share(gpu, 1) == 1
    assert costs.sm_share(gpu, full // 2) in (500, 501)
    assert costs.sm_share(gpu, full) == costs.sm_share(gpu, 100 * full) == 1000


def test_host_costs():
    host = Host.preset("laptop")
    assert costs.host_time(host, host.memory_bandwidth) == 10**9
    assert costs.page_lock_time(host, 0) == host.page_lock_base
    assert costs.page_lock_time(host, 2**30) == host.page_lock_base + host.page_lock_per_gib
    per_sample, per_byte = 256 * host.fetch_per_sample, 10**6 * host.fetch_per_byte // 1000  # given in picoseconds
    assert costs.fetch_time(host, 256, 10**6) == host.fetch_base + per_sample + per_byte


@settings(deadline=None)
@given(st.integers(0, 10**18), st.integers(1, 10**12))
def test_times_are_rounded_up(a, b):
    assert (costs.ceil_div(a, b) - 1) * b < a <= costs.ceil_div(a, b) * b
