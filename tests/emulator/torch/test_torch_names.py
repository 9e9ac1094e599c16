"""What `torch.cuda`, `torch.accelerator` and the generic `torch.Stream` and `torch.Event` answer."""

import contextlib
import inspect
import math
import pickle
import pkgutil
import signal
from queue import Queue
from threading import Thread
from types import ModuleType

import pytest
import torch
from factory import in_threads
from torch.cuda import Stream as EarlyStream
from torch.cuda import current_stream as early_current_stream

import loaderviz as lv
from loaderviz.emulator.runtime import CudaError
from loaderviz.errors import NotModelledError
from loaderviz.timeline import DEVICE_KINDS, Kind

LONG = 1_500_000  # cycles of torch.cuda._sleep: 1 ms
GIB = 2**30


def test_a_program_that_looks_for_a_macs_gpu_first_takes_the_emulated_one(monkeypatch):
    for module in (torch.backends.mps, torch.mps):
        monkeypatch.setattr(module, "is_available", lambda: True)
    with lv.record(on="a100"):
        found = "mps" if torch.backends.mps.is_available() or torch.mps.is_available() else "cuda"
        assert (found, torch.get_device_module().__name__) == ("cuda", "torch.cuda")
    assert torch.backends.mps.is_available() and torch.mps.is_available()


@pytest.mark.parametrize(
    "call",
    [lambda x, to: x.to(to), lambda _, to: torch.zeros(2, device=to), lambda _, to: torch.tensor([1], device=to)],
)
def test_a_device_that_is_not_emulated_is_noted(call):
    """Where it is, as on a Mac, the program goes on; where it is not, torch's own error is told."""
    with lv.record(on="a100") as recording:
        call(torch.ones(2), "meta")
        with contextlib.suppress(Exception):
            call(torch.ones(2), "mps")
    (told,) = [note for note in recording.timeline.context.notes if "not in this timeline" in note]
    assert "what runs on mps is not" in told


def test_device_queries(recording):
    torch.cuda.set_device("cuda:0")
    with pytest.raises(ValueError, match="Expected a cuda device"):
        torch.cuda.synchronize("cpu")
    torch.accelerator.set_stream(side := torch.Stream(device="cuda"))
    assert torch.cuda.current_stream() == torch.accelerator.current_stream() == side


def test_small_answers_about_a_card_without_bfloat16():
    with lv.record(on="t4"):
        assert torch.cuda.is_bf16_supported() and not torch.cuda.is_bf16_supported(including_emulation=False)
        card = torch.cuda.get_device_properties(0)
        assert (card.warp_size, card.shared_memory_per_multiprocessor, card.max_threads_per_block) == (32, 65536, 1024)
        assert card.shared_memory_per_block_optin == 65536  # as deviceQuery prints it of a T4
        assert str(card.uuid) == str(torch.cuda.get_device_properties("cuda").uuid)
        assert (card.L2_cache_size, card.memory_bus_width, card.memory_clock_rate) == (4 * 2**20, 256, 5_000_000)
        with pytest.raises(AttributeError, match="pci_bus_id of Tesla T4"):
            card.pci_bus_id
        with torch.cuda.profiler.profile(), torch.autograd.profiler.emit_nvtx():
            torch.ones(2, device="cuda").add(1)
        torch.cuda.set_per_process_memory_fraction(0.25)
        assert torch.cuda.get_per_process_memory_fraction() == 0.25
        kept = torch.empty(3 * GIB, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty_like(kept)
        for wrong, error in ((2.0, ValueError), (1, TypeError)):
            with pytest.raises(error, match="fraction"):
                torch.cuda.set_per_process_memory_fraction(wrong)


@pytest.mark.parametrize("stacks", [False, True])
def test_torchs_profiler_shows_the_emulated_work(stacks, capfd, tmp_path):
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with lv.record(on="a100") as recording:
        given = torch.ones(64, 64, device="cuda", requires_grad=True)
        profile = torch.profiler.profile(activities=activities, with_stack=stacks)
        with profile, torch.profiler.record_function("my step"):
            (given @ torch.ones(64, 64).pin_memory().to("cuda", non_blocking=True)).sum().backward()
        given.neg()
    assert "frame #" not in capfd.readouterr().err  # C++ stacks, of each event that CUDA did not record
    on_device = list(recording.timeline.rows(*DEVICE_KINDS))[1:-1]  # not what was before and after
    table = {event.key: event for event in profile.key_averages()}
    for name in {span.name for span in on_device}:
        spans = [span.duration / 1000 for span in on_device if span.name == name]
        assert (table[name].count, table[name].self_device_time_total) == (len(spans), pytest.approx(sum(spans)))
    total = sum(span.duration for span in on_device) / 1000
    assert sum(event.self_device_time_total for event in profile.events()) == pytest.approx(
        2 * total
    )  # and by operator
    mine = table["aten::mm"], table["my step"]
    assert mine[0].device_time_total == pytest.approx(table["mm"].self_device_time_total)
    assert "aten::neg" not in table and mine[1].cpu_time_total > mine[0].cpu_time_total
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    again = lv.read(tmp_path / "trace.json")
    assert [span.name for span in again.rows(*DEVICE_KINDS)] == [span.name for span in on_device]
    if stacks:
        profile.export_stacks(str(tmp_path / "stacks.txt"), "self_cuda_time_total")
        assert "test_torch_names.py" in (tmp_path / "stacks.txt").read_text()


def test_streams_are_current_inside_their_block(recording):
    default, side = torch.cuda.default_stream(), EarlyStream(priority=-1)  # a name from before the recording
    assert torch.cuda.current_stream() == early_current_stream() == default
    assert side != default and hash(side) != hash(default)
    assert (side.priority, side.device, side.device_index) == (-1, torch.device("cuda", 0), 0)
    assert isinstance(side, torch.cuda.Stream) and isinstance(side, torch.Stream)
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


def test_events_time_in_virtual_milliseconds(recording):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    assert start.query()
    with pytest.raises(CudaError, match="recorded"):
        start.elapsed_time(end)
    start.record()
    torch.cuda._sleep(LONG)
    end.record()
    assert not end.query()
    with pytest.raises(RuntimeError, match="not complete"):
        start.elapsed_time(end)
    end.synchronize()
    assert end.query()
    assert math.isclose(start.elapsed_time(end), 1.0, rel_tol=0.02)
    plain = torch.cuda.Event()
    plain.record()
    torch.cuda.synchronize()
    with pytest.raises(CudaError, match="enable_timing"):
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


def test_memory_statistics_follow_the_pool(recording):
    cuda, size = torch.cuda, GIB // 4
    free, _ = cuda.mem_get_info()
    x = torch.empty(size, dtype=torch.uint8, device="cuda")
    view = x[10:]
    del x
    assert cuda.mem_get_info() == (free - size, 40 * GIB) and cuda.memory_allocated() == size
    del view
    assert (cuda.memory_allocated(), cuda.max_memory_allocated()) == (0, size)


def test_a_snapshot_tells_every_byte_of_the_pool(recording, tmp_path):
    side = torch.cuda.Stream()
    kept = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in (100, 3_000, 2**20, 3 * 2**20, 25 * 2**20)]
    with torch.cuda.stream(side):
        kept.append(torch.empty(700, device="cuda"))
    torch.cuda._sleep(LONG)
    kept[-1].record_stream(torch.cuda.default_stream())
    del kept[-1], kept[1]  # one waits for the default stream, one is free at once
    segments = torch.cuda.memory_snapshot()
    blocks = [block for segment in segments for block in segment["blocks"]]
    for key, figure in {"total_size": "reserved", "allocated_size": "allocated", "active_size": "active"}.items():
        assert sum(segment[key] for segment in segments) == torch.cuda.memory_stats()[f"{figure}_bytes.all.current"]
    assert [block["size"] for block in blocks if block["state"] == "active_pending_free"] == [3_072]
    live = [block["size"] for block in blocks if block["state"] == "active_allocated"]
    assert live == [512, 2**20, 3 * 2**20, 26 * 2**20]  # 25 MiB leaves too little of its segment to be cut off
    assert [segment["segment_type"] for segment in segments].count("large") == 2
    assert {segment["stream"] for segment in segments} == {0, side.stream_id}
    assert {block["requested_size"] for block in blocks} == {0, 100, 2**20, 3 * 2**20, 25 * 2**20, 2_800}
    torch.cuda.memory._dump_snapshot(tmp_path / "memory.pickle")
    assert pickle.loads((tmp_path / "memory.pickle").read_bytes()) == torch.cuda.memory._snapshot()
    summary = torch.cuda._memory_viz.segsum(torch.cuda.memory._snapshot())  # torch's own reader takes it
    assert f"segments: {len(segments)}" in summary
    with pytest.raises(NotModelledError, match="memory_snapshot"):
        torch.cuda.memory_snapshot((0, 1))


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


NAMES = """
    torch torch.nn torch.cuda torch.accelerator torch.compiler torch.cuda.graphs torch.cuda.memory torch.cuda.random
    torch.cuda.streams torch.cuda.nvtx torch.cuda.jiterator torch.Tensor torch.autocast torch.profiler.record_function
"""
OWNERS = {name: pkgutil.resolve_name(name) for name in NAMES.split()}
LOOKS = ("__name__", "__qualname__", "__module__", "__doc__")


def names_now():
    """Return what the names of `OWNERS` stand for."""
    return {f"{owner}.{name}": value for owner in OWNERS for name, value in vars(OWNERS[owner]).items()}


def signature(value):
    """Return the signature, or None for those of C that have none."""
    try:
        return inspect.signature(value)
    except ValueError:
        return None


def test_what_takes_the_place_of_a_name_of_torch_looks_like_it():
    before = names_now()
    with lv.record(on="a100"):
        inside = names_now()
    changed = {name: (before[name], inside[name]) for name in before if inside[name] is not before[name]}
    assert len(changed) > 100
    for name, (outside, stand_in) in changed.items():
        if not callable(outside):
            assert outside is None or isinstance(outside, ModuleType) or type(stand_in) is type(outside), name
            continue
        assert {look: getattr(stand_in, look) for look in LOOKS if hasattr(outside, look)} == {
            look: getattr(outside, look) for look in LOOKS if hasattr(outside, look)
        }, name
        assert isinstance(stand_in, type) == isinstance(outside, type), name
        assert isinstance(outside, type) or signature(stand_in) == signature(outside), name
    for kind in ("Stream", "Event"):
        outside, stand_in = changed[f"torch.cuda.{kind}"]
        assert list(signature(stand_in).parameters) == list(signature(outside).parameters)


def test_what_is_a_class_outside_is_one_inside():
    classes = {name: value for name, value in names_now().items() if isinstance(value, type)}
    with lv.record(on="a100"):
        inside = names_now()
    assert len(classes) > 300
    for name, outside in classes.items():
        kind = inside[name]
        assert isinstance(kind, type), name
        assert kind | None, name
        assert kind is outside or issubclass(outside, kind) or name.endswith("Tensor"), name
        if kind is not outside and subclass(outside):
            assert issubclass(subclass(kind), kind), name
            assert not issubclass(kind, subclass(kind)), name


def subclass(kind):
    """Return a subclass, or None if there cannot be one, as of `torch.dtype` and `torch.cuda.FloatTensor`."""
    try:
        return type(kind)("Mine", (kind,), {})
    except TypeError:
        return None


MADE_BEFORE = {
    "torch.nn.DataParallel": torch.nn.DataParallel(torch.nn.ReLU()),
    "torch.Generator": torch.Generator(),
    "torch.cuda.device": torch.cuda.device(0),
    "torch.accelerator.device_index": torch.accelerator.device_index(0),
    "torch.cuda.StreamContext": torch.cuda.StreamContext(None),
}
if torch.version.cuda is None:  # a build that has no real streams lets us make one
    MADE_BEFORE["torch.cuda.Stream"] = object.__new__(torch.cuda.Stream)


@pytest.mark.parametrize("name", MADE_BEFORE)
def test_an_object_made_before_is_an_instance_inside(name, recording):
    module, _, kind = name.rpartition(".")
    kind = getattr(OWNERS[module], kind)
    assert isinstance(MADE_BEFORE[name], kind)
    assert not isinstance(MADE_BEFORE[name], subclass(kind))
    assert not isinstance(3, kind)


def test_subclasses_of_streams_events_and_generators_are_of_their_class(recording):
    class MyStream(torch.cuda.Stream):
        extra = 1

    class MyEvent(torch.cuda.Event):
        extra = 2

    class MyGenerator(torch.Generator):
        extra = 3

    stream, event, generator = MyStream(priority=-1), MyEvent(enable_timing=True), MyGenerator("cuda")
    assert (stream.extra, stream.priority, stream.__class__) == (1, -1, MyStream)
    assert (event.extra, event.__class__, generator.extra) == (2, MyEvent, 3)
    for kind in (torch.cuda.Stream, torch.Stream):
        assert isinstance(stream, kind)
    for kind in (torch.cuda.Event, torch.Event):
        assert isinstance(event, kind)
    assert not isinstance(torch.cuda.Stream(), MyStream)
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() == stream
        event.record()
    event.synchronize()
    assert event.query()
    assert torch.rand(2, device="cuda", generator=generator).is_cuda


REFUSED = {
    "MemPool": lambda kind: kind(),
    "CUDAPluggableAllocator": lambda kind: kind("a.so", "allocate", "free"),
    "GreenContext": lambda kind: kind.create(8, 0),
}


@pytest.mark.parametrize("name", [name for name in REFUSED if hasattr(torch.cuda, name)])
def test_a_class_that_is_not_modelled_cannot_be_made(name, recording):
    kind = getattr(torch.cuda, name)
    for made in (kind, subclass(kind)):
        with pytest.raises(NotModelledError, match=rf"torch\.cuda\.{name}: the emulated GPU does not model"):
            REFUSED[name](made)


def test_functions_that_are_not_modelled_name_themselves(recording):
    cuda = torch.cuda
    for name, call in {
        "_create_jit_fn": cuda.jiterator._create_jit_fn,
        "caching_allocator_alloc": cuda.memory.caching_allocator_alloc,
        "ExternalStream": lambda: cuda.ExternalStream(2**40),
        "cudaHostRegister": lambda: cuda.cudart().cudaHostRegister(0, 8, 0),
    }.items():
        with pytest.raises(NotModelledError, match=f"{name}: the emulated GPU does not model"):
            call()
    assert cuda.ExternalStream(cuda.current_stream().cuda_stream) == cuda.current_stream()


THREAD_CALLS = {
    "to": lambda x: torch.ones(1).to("cuda"),
    "to index": lambda x: torch.ones(1).to(0),
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


def logging(call, caught):
    """Return what a thread runs that notes a refusal and goes on."""

    def work():
        try:
            call()
        except NotModelledError as problem:
            caught.append(problem)

    return work


@pytest.mark.parametrize("name", THREAD_CALLS)
def test_cuda_in_a_second_thread_is_refused_at_the_call_and_when_the_block_ends(name):
    caught = []
    with (
        pytest.raises(NotModelledError, match="second Python thread") as at_the_end,
        lv.record(on="a100", threads=False) as recording,
    ):
        given = torch.ones(1, device="cuda")
        in_threads(logging(lambda: THREAD_CALLS[name](given), caught))
        in_threads(logging(lambda: given + 1, caught))
        assert len(caught) == 2
        assert given.item() == 1
    assert at_the_end.value is caught[0]
    assert recording.timeline.duration


def test_a_refusal_in_a_thread_is_the_context_of_an_error_that_ends_the_block():
    caught = []
    with pytest.raises(KeyError) as ending, lv.record(on="a100", threads=False):
        in_threads(logging(torch.cuda.synchronize, caught))
        raise KeyError("mine") from IndexError()
    assert ending.value.__cause__.__context__ is caught[0]


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs POSIX signals")
def test_who_waits_for_a_thread_that_was_refused_is_stopped():
    results, before, caught = Queue(), signal.getsignal(signal.SIGURG), []
    with pytest.raises(NotModelledError, match="second Python thread") as stopped, lv.record(on="a100", threads=False):
        in_threads(logging(lambda: results.put(torch.ones(1).to("cuda")), caught))
        results.get()
    assert stopped.value is caught[0]
    assert signal.getsignal(signal.SIGURG) is before


def test_only_the_recordings_own_threads_are_told_of_its_gpu():
    asked, answers = Queue(), Queue()
    Thread(target=lambda: [answers.put(question()) for question in iter(asked.get, None)]).start()
    here = torch.cuda.is_available(), torch.cuda.device_count()
    with lv.record(on="a100"):
        in_threads(lambda: answers.put(torch.cuda.is_available()))
        assert answers.get() is True
        for question in (torch.cuda.is_available, torch.cuda.device_count, None):
            asked.put(question)
        assert (answers.get(), answers.get()) == here


def test_a_tensor_of_the_device_is_not_sent_to_another_process():
    with pytest.raises(NotModelledError, match="sent to another process"), lv.record(on="a100"):
        model = torch.nn.Linear(2, 2).cuda().share_memory()
        with torch.multiprocessing.get_context("fork").Pool(1) as pool:
            pool.apply(len, (list(model.parameters()),))


def test_a_second_thread_may_work_on_the_host_and_ask(recording):
    given, seen = torch.ones(2, device="cuda"), []

    def work():
        seen.extend([torch.ones(3).sum().item(), given.shape, given.is_cuda, str(given.device), given.dtype])
        seen.extend([str(torch.device(0)), torch.nn.LazyLinear(3)(torch.ones(1, 2)).shape])

    in_threads(work)
    assert seen == [3.0, (2,), True, "cuda:0", torch.float32, "cuda:0", (1, 3)]


@pytest.mark.parametrize("asked", [True, False])
def test_the_accelerators_module_is_not_remembered_across_a_recording(asked):
    """Torch keeps its first answer: of a program that asks before the recording, or of the recording itself."""
    torch.get_device_module.cache_clear()
    here = torch.get_device_module()
    if not asked:
        torch.get_device_module.cache_clear()
    with lv.record(on="t4"):
        assert torch.get_device_module() is torch.cuda
        assert torch.get_device_module("cpu") is torch.cpu
    assert torch.get_device_module() is here
