"""Presets: every number has a source or says that it is assumed; unknown names tell which exist."""

import itertools
from dataclasses import FrozenInstanceError, fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaderviz.emulator import Gpu, Host, Runtime, hardware
from loaderviz.emulator.hardware import (
    ASSUMED,
    CACHED,
    GPU_SOURCES,
    GPUS,
    HOST_SOURCES,
    HOSTS,
    KERNELS,
    HardwareError,
    UnknownHardwareError,
    ceil_div,
    numbers,
    pages,
)
from loaderviz.errors import LoadervizError

MACHINES = [*GPUS.values(), *HOSTS.values()]
each_machine = pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
each_gpu = pytest.mark.parametrize("gpu", GPUS.values(), ids=list(GPUS))


@each_machine
def test_every_number_is_whole_and_has_a_source_or_says_assumed(machine):
    table = numbers(machine)
    names = {entry.name for entry in fields(machine)}
    assert set(table) == names - {"name", "sources"}
    assert set(machine.sources) | set(GPU_SOURCES if isinstance(machine, Gpu) else HOST_SOURCES) <= names
    for name, text in table.items():
        value, source = getattr(machine, name), machine.source(name)
        assert text == f"{value} ({source})"
        assert source.startswith(ASSUMED) or len(source) > 15
        for number in value if isinstance(value, tuple) else [value]:
            assert isinstance(number, str | dict) or (type(number) is int and number >= 0)


@pytest.mark.parametrize("name", ["t4", "b200", "laptop-pcie3"])
def test_links_without_a_primary_source_say_so(name):
    """No published figure was found for these cards' links: they are taken from another machine's."""
    for number in ("h2d", "d2h", "pageable"):
        assert Gpu.preset(name).source(number).startswith(ASSUMED)


@each_gpu
def test_the_cards_are_plausible(gpu):
    """Pageable is slower than pinned, the link slower than the memory, and half precision not slower than single."""
    assert gpu.pageable < min(gpu.h2d, gpu.d2h) <= max(gpu.h2d, gpu.d2h) < gpu.memory_bandwidth
    assert gpu.fp64 <= gpu.fp32 <= gpu.tf32 <= gpu.fp16
    assert 0 < gpu.context_memory < gpu.memory
    assert 500 <= gpu.bidirectional <= 1000
    if "GeForce" in gpu.name and gpu.capability >= (8, 0):  # half of the sheet's: products are summed in float32
        assert (gpu.tf32, gpu.fp16) == (gpu.fp32, pytest.approx(2 * gpu.fp32, rel=0.01))
    assert gpu.staging_chunk * 10**9 // gpu.h2d > 0


@pytest.mark.parametrize(("kind", "presets"), [(Gpu, GPUS), (Host, HOSTS)])
@pytest.mark.parametrize("name", ["gtx", "", None, 3])
def test_an_unknown_preset_names_those_that_exist(kind, presets, name):
    with pytest.raises(UnknownHardwareError) as caught:
        kind.preset(name)
    assert isinstance(caught.value, LoadervizError)
    assert isinstance(caught.value, ValueError)
    assert f"no {kind.__name__.replace('Gpu', 'GPU').replace('Host', 'host')} preset {name!r};" in str(caught.value)
    assert all(known in str(caught.value) for known in presets)


def test_presets_are_found_in_any_case_and_cannot_be_changed():
    assert Gpu.preset("A100") is Gpu.preset("a100")
    with pytest.raises(FrozenInstanceError):
        Gpu.preset("a100").h2d = 1
    faster = replace(Gpu.preset("a100"), h2d=1)
    assert (faster.h2d, Gpu.preset("a100").h2d) == (1, 25 * 10**9)
    assert faster != Gpu.preset("a100")


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA A100-PG509-200", "a100-sxm"),
        ("A100-PCIE-40GB", "a100"),
        ("Tesla V100-DGXS-32GB", "v100-32gb"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("GeForce RTX 2080 Ti", "2080ti"),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", "laptop"),
        *((gpu.name, key) for key, gpu in GPUS.items()),
    ],
)
def test_a_card_is_found_by_the_name_that_it_reports(name, preset):
    assert Gpu.named(name) is Gpu.preset(preset)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
        "AMD Instinct MI300X",
        "NVIDIA A10",
        "",
    ],
)
def test_a_card_of_a_like_name_is_another(name):
    with pytest.raises(UnknownHardwareError, match=f"no preset fits the GPU {name!r}; choose the nearest of: 2080ti"):
        Gpu.named(name)


@each_gpu
def test_each_architecture_has_a_row_for_every_class_of_kernels(gpu):
    assert gpu.kernels is KERNELS[gpu.architecture]
    assert set(gpu.kernels) == set(KERNELS["ampere"])
    for kind, kernel in gpu.kernels.items():
        assert 1_000 <= kernel.floor <= 20_000, kind
        assert 100 <= kernel.bandwidth <= 1000, kind
        above = 1100 if gpu.architecture in ("ga10x", "ada") else 1000  # GeForce cards exceed the clock of their sheet
        assert 0 <= kernel.peak <= (1500 if kind == "conv_3x3_fp32" else above), kind  # Winograd multiplies less
    assert bool(gpu.l2) == bool(gpu.l2_bandwidth) == (gpu.architecture == "ada")
    assert not gpu.l2 or gpu.l2_bandwidth > 2 * gpu.memory_bandwidth


# Costs


SLOW = replace(
    Gpu.preset("a100"), h2d=4 * 10**9, d2h=2 * 10**9, pageable=10**9, copy_latency=100, d2h_latency=200,
    malloc=7_000, malloc_small=70,
)  # fmt: skip


def test_a_copy_takes_its_latency_and_its_bytes():
    assert (SLOW.copy_time(4_000, SLOW.h2d), SLOW.copy_time(4_000, SLOW.d2h, down=True)) == (1_100, 2_200)
    assert (SLOW.pageable_time(4_000), SLOW.pageable_time(4_000, down=True)) == (4_100, 4_200)
    staged = replace(SLOW, pageable_d2h=4 * 10**9, pageable_cached=2 * 10**9)
    assert staged.pageable_time(4_000, down=True) == 1_200
    assert [staged.pageable_time(nbytes) for nbytes in (4_000, CACHED, CACHED + 500)] == [
        2_100, 100 + CACHED // 2, 100 + CACHED // 2 + 500]  # fmt: skip
    assert replace(SLOW.behind(10**9, 10**9), copy_latency=0).pageable_time(CACHED + 500) == CACHED + 500
    assert [SLOW.malloc_time(nbytes) for nbytes in (1, 2**21, 2**21 + 1)] == [70, 70, 7_000]


def test_a_thread_touches_bytes_or_computes_whichever_takes_longer():
    host = replace(Host.preset("laptop"), memory_bandwidth=10**9, flops=2 * 10**9, parallel_bandwidth=0)
    assert [host.work_time(1_000, flops) for flops in (0, 1_999, 2_000, 2_001)] == [1_000, 1_000, 1_000, 1_001]
    assert replace(host, flops=0).work_time(1_000, 10**12) == 1_000
    assert [replace(host, parallel_bandwidth=rate * 10**9).pin_time(1_000) for rate in (0, 1, 4)] == [2_000, 2_000, 500]
    assert [pages(nbytes) for nbytes in (0, 1, 4096, 4097)] == [0, 1, 1, 2]
    own = replace(host, dispatch=1_000, python=100, module=20, node=8, composite=2)
    assert own.step_operator() == 1_000 + 65  # half of what only every second one has
    whole, batched = (own.fetch_time(10, 4_000, batched=batched) for batched in (False, True))
    assert whole - batched == 10 * own.fetch_per_sample
    assert batched == own.fetch_base + 4 * own.fetch_per_byte


@pytest.mark.parametrize(
    ("busy", "speed"), [(0, 1000), (1, 1000 * 1000 // 1100), (2, 250 * 1000 // 1200), (3, 250 * 1000 // 1300), (4, 0)]
)
def test_one_more_thread_beside_busy_cores(busy, speed):
    host = replace(Host.preset("laptop"), cores=2, siblings=2, sibling=250, contention=100)
    assert host.speed(busy) == speed
    assert replace(host, cores=0).speed(busy) == 1000


def test_host_costs():
    host = Host.preset("laptop")
    assert host.work_time(host.memory_bandwidth) == 10**9
    assert host.pin_time(15 * 10**9) == 10**9  # read and written at 30 GB/s
    published = 112_000  # ns for 4 MB: PyTorch tutorial pinmem_nonblock
    assert Host.preset("workstation").pin_time(4 * 2**20) == pytest.approx(published, rel=0.01)
    # The pin thread keeps up with staging. An H100's copies were measured in a server of its own, with faster memory.
    for each, gpu in itertools.product(HOSTS.values(), (gpu for gpu in GPUS.values() if not gpu.pageable_cached)):
        assert each.work_time(2 * 10**9) <= 10**18 // gpu.pageable
    assert host.page_lock_time(0) == host.page_lock_base
    assert host.page_lock_time(2**30) == host.page_lock_base + host.page_lock_per_gib
    per_sample, per_byte = 256 * host.fetch_per_sample, 10**6 * host.fetch_per_byte // 1000  # given in picoseconds
    assert host.fetch_time(256, 10**6) == host.fetch_base + per_sample + per_byte


@settings(deadline=None)
@given(st.integers(0, 10**18), st.integers(1, 10**12))
def test_times_are_rounded_up(a, b):
    assert (ceil_div(a, b) - 1) * b < a <= ceil_div(a, b) * b


T4, LAPTOP = Gpu.preset("t4"), Host.preset("laptop")


@pytest.mark.parametrize(
    ("machine", "name", "value", "wanted"),
    [(T4, name, value, "above 0") for name in ("memory_bandwidth", "sms", "bidirectional") for value in (0, -5)]
    + [(T4, name, -1, "0 or more") for name in ("h2d", "d2h", "pageable")]
    + [(LAPTOP, "launch", -1, "0 or more"), (LAPTOP, "memory_bandwidth", 0, "above 0")],
)
def test_a_machine_that_cannot_be(machine, name, value, wanted):
    with pytest.raises(HardwareError, match=rf"{type(machine).__name__}\({name}={value}\): give a number {wanted}"):
        replace(machine, **{name: value})


@pytest.mark.parametrize("name", ["h2d", "d2h", "pageable"])
def test_a_link_without_a_rate_copies_nothing(name):
    unknown = replace(T4, **{name: 0})  # as what_if has it of a timeline that does not tell
    with pytest.raises(HardwareError, match=f"{name}=0.*give bytes a second"):
        Runtime(unknown)


RTX_5090 = ["pcie5*", 1792, "32 GiB", 104.8, 104.8, 209.5, 1.64, 170, [12, 0], "NVIDIA GeForce RTX 5090"]


@pytest.mark.parametrize("architecture", ["ada", "blackwell"])
def test_a_card_of_a_new_capability_takes_nothing_over_from_another_generation(monkeypatch, architecture):
    """A row of it is refused until the table of capabilities has one, too; the same for a `Gpu` of one's own."""
    with pytest.raises(HardwareError, match=r'RTX 5090 has compute capability 12.0.*\[gpu.capabilities\] "12.0" = '):
        hardware._card("rtx5090", [architecture, *RTX_5090])
    with pytest.raises(HardwareError, match=r"capability 10\.3.*tiles=\.\.\., threads_per_sm=\.\.\."):
        replace(Gpu.preset("b200"), capability=(10, 3), tiles=0)
    given = replace(Gpu.preset("b200"), capability=(10, 3), tiles=2, threads_per_sm=1024)
    assert (given.tiles, given.threads_per_sm) == (2, 1024)
    monkeypatch.setitem(hardware.DATA["gpu"]["capabilities"], "12.0", [1536, 2, 100])
    card = hardware._card("rtx5090", [architecture, *RTX_5090])
    assert (card.threads_per_sm, card.tiles) == (1536, 2)


@pytest.mark.parametrize(
    ("row", "count", "column"),
    [
        (["ada", *RTX_5090[:6], *RTX_5090[7:]], 10, "multiprocessors"),  # a rate is missing
        (["ada", *RTX_5090[:-1]], 10, "name"),
        (["ada", "pcie5*", "1792", *RTX_5090[2:]], 11, "GB/s of memory"),
        (["ada", *RTX_5090, 1], 12, "one more"),
        ([], 0, "architecture"),
    ],
)
def test_a_row_of_a_card_that_lacks_a_number_is_named_with_its_columns(row, count, column):
    said = f"row of 'mine' .*, has {count} values, of which that for {column} does not fit; give these 11: archi.*name"
    with pytest.raises(HardwareError, match=said):
        hardware._card("mine", row)


def test_multiprocessors_are_those_of_nvidias_table():
    """Resident threads and shared memory [KiB] of "Technical Specifications per Compute Capability"."""
    threads = {(7, 0): 2048, (7, 5): 1024, (8, 0): 2048, (8, 6): 1536, (8, 9): 1536, (9, 0): 2048, (10, 0): 2048}
    shared = {(7, 0): 96, (7, 5): 64, (8, 0): 164, (8, 6): 100, (8, 9): 100, (9, 0): 228, (10, 0): 228}
    assert {gpu.capability: gpu.threads_per_sm for gpu in GPUS.values()} == threads
    rows = {gpu.capability: hardware.Multiprocessor.of("", gpu.capability) for gpu in GPUS.values()}
    assert {capability: row.shared for capability, row in rows.items()} == shared
    assert set(hardware.DATA["gpu"]["capabilities"]) == {"{}.{}".format(*capability) for capability in rows}


def test_what_a_card_copies_to_pageable_memory_is_published_or_said_to_be_assumed():
    published = {name: gpu for name, gpu in GPUS.items() if gpu.pageable_d2h}
    assert {"t4", "4090", "h100"} <= published.keys()
    assert GPUS["4090"].pageable_d2h < GPUS["4090"].pageable < GPUS["4090"].h2d < GPUS["4090"].d2h
    for name, gpu in GPUS.items():
        assert ("assumed" not in gpu.source("pageable_d2h")) <= (name in published)
    assert GPUS["t4"].source("pageable_d2h").startswith("assumed from: ")  # its link is another card's
    assert "976" in GPUS["4090"].source("pageable_d2h")
