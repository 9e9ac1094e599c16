"""What `torch.cuda`, `torch.accelerator` and the generic `torch.Stream` and `torch.Event` answer."""

from __future__ import annotations

import math
from threading import Thread

import pytest
import torch
from torch.cuda import Event as EarlyEvent
from torch.cuda import Stream as EarlyStream
from torch.cuda import current_stream as early_current_stream

import loaderviz as lv
from loaderviz.emulator import Gpu
from loaderviz.emulator.runtime import CudaError
from loaderviz.errors import NotModelledError
from loaderviz.timeline import Kind

LONG = 1_500_000  # cycles of torch.cuda._sleep: 1 ms
GIB = 2**30


@pytest.fixture
def recording():
    with lv.record(on="a100") as running:
        yield running


def test_device_queries(recording):
    cuda, gpu = torch.cuda, Gpu.preset("a100")
    assert cuda.is_available()
    assert cuda.is_initialized()
    assert cuda.device_count() == 1
    assert cuda.current_device() == 0
    assert cuda.get_device_name(0) == gpu.name
    assert cuda.get_device_capability("cuda") == (8, 0)
    assert cuda.is_bf16_supported()
    properties = cuda.get_device_properties(torch.device("cuda"))
    assert (properties.total_memory, properties.multi_processor_count) == (gpu.memory, gpu.sms)
    cuda.init()
    cuda.set_device("cuda:0")
    with cuda.device(0), cuda.device_of(torch.ones(1, device="cuda")):
        assert cuda.current_device() == 0
    with pytest.raises(ValueError, match="Expected a cuda device"):
        cuda.synchronize("cpu")


def test_accelerator_answers_as_cuda(recording):
    accelerator = torch.accelerator
    assert accelerator.is_available()
    assert accelerator.current_accelerator() == torch.device("cuda")
    assert accelerator.device_count() == 1
    assert accelerator.current_device_index() == 0
    assert accelerator.current_stream() == torch.cuda.current_stream()
    side = torch.Stream(device="cuda")
    accelerator.set_stream(side)
    assert torch.cuda.current_stream() == side
    accelerator.synchronize()


def test_streams_are_current_inside_their_block(recording):
    default, side = torch.cuda.default_stream(), torch.cuda.Stream(priority=-1)
    assert torch.cuda.current_stream() == default
    assert side != default
    assert hash(side) != hash(default)
    assert side.priority == -1
    assert (side.device, side.device_index) == (torch.device("cuda", 0), 0)
    assert isinstance(side, torch.cuda.Stream)
    assert isinstance(side, torch.Stream)
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() == side
        with torch.cuda.stream(None):
            assert torch.cuda.current_stream() == side
        with default:
            assert torch.cuda.current_stream() == default
        assert torch.cuda.current_stream() == side
    assert torch.cuda.current_stream() == default
    with pytest.raises(ZeroDivisionError), torch.cuda.stream(side):
        1 / 0
    assert torch.cuda.current_stream() == default
    torch.cuda.set_stream(side)
    assert torch.cuda.current_stream() == side
    assert len({torch.cuda.Stream() for _ in range(64)}) == 32


def test_names_imported_before_the_recording_work(recording):
    side = EarlyStream()
    with torch.cuda.stream(side):
        assert early_current_stream() == side
    assert isinstance(side, EarlyStream)
    assert isinstance(EarlyEvent(), EarlyEvent)


def test_events_time_in_virtual_milliseconds(recording):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    assert start.query()
    start.record()
    torch.cuda._sleep(LONG)
    end.record()
    assert not end.query()
    with pytest.raises(RuntimeError, match="not complete"):
        start.elapsed_time(end)
    end.synchronize()
    assert end.query()
    assert math.isclose(start.elapsed_time(end), 1.0, rel_tol=0.02)
    with pytest.raises(CudaError, match="enable_timing"):
        torch.cuda.Event().record()
        plain = torch.cuda.Event()
        plain.record()
        torch.cuda.synchronize()
        plain.elapsed_time(end)


def test_generic_events_and_streams(recording):
    side, start, end = torch.Stream("cuda"), torch.Event("cuda", enable_timing=True), torch.Event(enable_timing=True)
    with side:
        start.record()
        torch.cuda._sleep(LONG)
    side.record_event(end)
    torch.cuda.current_stream().wait_event(end)
    side.synchronize()
    assert side.query()
    assert start.elapsed_time(end) > 0.99


def test_waits_order_streams(recording):
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(LONG)
        event = side.record_event()
        torch.cuda._sleep(LONG)
    main.wait_event(event)
    first = torch.cuda.Event(enable_timing=True)
    first.record()
    main.wait_stream(side)
    second = torch.cuda.Event(enable_timing=True)
    second.record()
    torch.cuda.synchronize()
    assert math.isclose(first.elapsed_time(second), 1.0, rel_tol=0.02)


def test_memory_statistics_follow_the_pool(recording):
    free, total = torch.cuda.mem_get_info()
    assert total == 40 * GIB
    x = torch.empty(GIB // 4, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == torch.cuda.max_memory_allocated() == GIB // 4
    assert torch.cuda.memory_reserved(0) == torch.cuda.max_memory_reserved() == GIB // 4
    assert torch.cuda.mem_get_info()[0] == free - GIB // 4
    del x
    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == GIB // 4
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 0
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    assert "num_ooms" in torch.cuda.memory_summary()
    assert torch.accelerator.memory_allocated() == 0


def test_seeds_repeat_random_numbers(recording):
    draws = []
    for seed in (torch.cuda.manual_seed, torch.cuda.manual_seed_all, torch.manual_seed):
        seed(3)
        draws.append(torch.rand(4, device="cuda"))
    assert torch.equal(draws[0], draws[1])
    state = torch.cuda.get_rng_state()
    first = torch.rand(2, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(2, device="cuda"), first)
    assert len(torch.cuda.get_rng_state_all()) == 1
    with torch.random.fork_rng(devices=[0]):
        torch.rand(3, device="cuda")
    torch.cuda.seed_all()


def test_nvtx_and_record_function_are_ranges_on_the_main_lane():
    with lv.record(on="a100") as recording:
        torch.cuda.nvtx.range_push("outer")
        with torch.cuda.nvtx.range("inner {}", 3), torch.profiler.record_function("innermost"):
            torch.ones(2, device="cuda")
        torch.cuda.nvtx.mark("here")
        assert torch.cuda.nvtx.range_pop() == 0
        assert torch.cuda.nvtx.range_pop() == -1
    ranges = {span.name: span for span in recording.timeline.rows(Kind.RANGE)}
    assert set(ranges) == {"outer", "inner 3", "innermost", "here"}
    assert ranges["outer"].start <= ranges["inner 3"].start < ranges["inner 3"].end <= ranges["outer"].end


THREAD_CALLS = {
    "to": lambda x: torch.ones(1).to("cuda"),
    "cuda": lambda x: torch.ones(1).cuda(),
    "factory": lambda x: torch.zeros(1, device="cuda"),
    "operator": lambda x: x + 1,
    "in place": lambda x: x.add_(1),
    "item": lambda x: x.item(),
    "cat": lambda x: torch.cat([x, x]),
    "function": lambda x: torch.nn.functional.relu(x),
    "synchronize": lambda x: torch.cuda.synchronize(),
    "stream": lambda x: torch.cuda.Stream(),
    "event": lambda x: torch.cuda.Event(),
    "stream block": lambda x: torch.cuda.stream(torch.cuda.current_stream()).__enter__(),
    "pin_memory": lambda x: torch.ones(1).pin_memory(),
    "memory": lambda x: torch.cuda.memory_allocated(),
}


@pytest.mark.parametrize("name", THREAD_CALLS)
def test_cuda_in_a_second_thread_is_refused_at_the_call(name, recording):
    caught = []
    given = torch.ones(1, device="cuda")

    def work():
        try:
            THREAD_CALLS[name](given)
        except NotModelledError as problem:
            caught.append(str(problem))

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert len(caught) == 1
    assert "second Python thread" in caught[0]
    assert given.item() == 1


def test_a_second_thread_may_work_on_the_host_and_ask(recording):
    given, seen = torch.ones(2, device="cuda"), []

    def work():
        seen.extend([torch.ones(3).sum().item(), given.shape, given.is_cuda, str(given.device), given.dtype])

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [3.0, (2,), True, "cuda:0", torch.float32]
