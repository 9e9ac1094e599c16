"""What a thread does with another one's tensors: a race, unless both the threads and their streams wait."""

import asyncio
import queue
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch
from factory import in_a_thread

import loaderviz as lv

OLDER = queue.Queue(), threading.Event()


class Slot:
    """A variable that two threads share, with something that says when it is set."""

    value = None


def by_queue(slot):
    made = queue.Queue()
    return lambda: made.put(1), made.get


def by_simple_queue(slot):
    made = queue.SimpleQueue()
    return lambda: made.put(1), made.get


def by_older_queue(slot):
    return lambda: OLDER[0].put(1), OLDER[0].get


def by_event(slot):
    made = threading.Event()
    return made.set, made.wait


def by_older_event(slot):
    OLDER[1].clear()
    return OLDER[1].set, OLDER[1].wait


def by_looking_at_an_event(slot):
    made = threading.Event()

    def wait():
        while not made.is_set():
            time.sleep(1e-4)

    return made.set, wait


def by_condition(slot):
    made = threading.Condition()

    def tell():
        with made:
            slot.told = True
            made.notify()

    def wait():
        with made:
            made.wait_for(lambda: hasattr(slot, "told"))

    return tell, wait


def by_semaphore(slot):
    made = threading.Semaphore(0)
    return made.release, made.acquire


def by_barrier(slot):
    made = threading.Barrier(2)
    return made.wait, made.wait


def by_lock_of_another_thread(slot):
    made = threading.Lock()
    made.acquire()
    return made.release, made.acquire


def by_future(slot):
    made = Future()
    return lambda: made.set_result(1), made.result


def by_an_error_in_a_future(slot):
    made = Future()
    return lambda: made.set_exception(KeyError()), made.exception


def by_event_loop(slot):
    loop, done = asyncio.new_event_loop(), []

    def tell():
        loop.call_soon_threadsafe(done.append, 1)
        loop.call_soon_threadsafe(loop.stop)

    return tell, lambda: (loop.run_forever(), loop.close())


HAND_OVER = [value for name, value in list(globals().items()) if name.startswith("by_")]


def handed_over(between, *, waits=True, joins=False):
    """A thread computes on a stream of its own; the main one uses the result. Return the recording."""
    with lv.record(on="a100", host="laptop", hazards="warn") as recording:
        slot = Slot()
        tell, wait = between(slot)

        def makes():
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                x = torch.ones(1 << 20, device="cuda") * 3  # made here
                slot.value = x, side.record_event()
            tell()

        thread = threading.Thread(target=makes)
        thread.start()
        if joins:
            thread.join()
        else:
            wait()
        x, ready = slot.value
        if waits:
            torch.cuda.current_stream().wait_event(ready)
        slot.seen = (x + 1).sum().item()  # used here
        thread.join()
    return recording, slot.seen


def line_of(text):
    with open(__file__, encoding="utf-8") as file:
        return next(number for number, line in enumerate(file, 1) if f"# {text}" in line)


@pytest.mark.parametrize("between", HAND_OVER, ids=lambda between: between.__name__)
def test_what_is_handed_over_with_an_event_is_no_race(between):
    recording, seen = handed_over(between)
    assert not recording.hazards and seen == 4 * (1 << 20)


def test_what_is_handed_over_by_a_join_is_no_race():
    assert not handed_over(lambda slot: (bool, bool), joins=True)[0].hazards


@pytest.mark.filterwarnings("ignore::loaderviz.emulator.hazards.HazardWarning")
@pytest.mark.parametrize("between", [by_queue, by_event_loop, by_semaphore], ids=lambda between: between.__name__)
def test_threads_that_wait_do_not_make_their_streams_wait(between):
    [hazard] = handed_over(between, waits=False)[0].hazards
    assert hazard.kind == "early-read" and "Nor does" not in hazard.missing
    assert hazard.first.source.endswith(f":{line_of('made here')}")
    assert hazard.second.source.endswith(f":{line_of('used here')}")


@pytest.mark.filterwarnings("ignore::loaderviz.emulator.hazards.HazardWarning")
def test_that_it_came_in_the_right_order_this_time_is_no_order_of_threads():
    """The main thread sleeps for long enough, then lets its stream wait for the event."""
    recording, seen = handed_over(lambda slot: (bool, lambda: time.sleep(1)))
    [hazard] = recording.hazards
    assert hazard.kind == "early-read" and seen == 4 * (1 << 20)
    assert hazard.first.source.endswith(f":{line_of('made here')}")
    assert hazard.second.source.endswith(f":{line_of('used here')}")
    assert "Nor does the main thread wait for thread 1 (makes)" in hazard.missing
    assert "with a queue, a lock" in hazard.fix and "Nor does the main thread" in str(hazard)
    assert recording.timeline.marks


@pytest.mark.filterwarnings("ignore::loaderviz.emulator.hazards.HazardWarning")
def test_a_thread_refills_a_pinned_buffer_that_another_ones_copy_reads():
    def run(knows):
        with lv.record(on="a100", host="laptop") as recording:
            buffer, ready = torch.zeros(1 << 20).pin_memory(), queue.Queue()

            def copies():
                buffer.to("cuda", non_blocking=True)
                if knows:
                    torch.cuda.synchronize()
                ready.put(1)

            thread = threading.Thread(target=copies)
            thread.start()
            ready.get()
            buffer.fill_(1)
            thread.join()
        return recording.hazards

    [hazard] = run(False)
    assert hazard.kind == "early-refill" and not run(True)


def test_what_a_thread_has_waited_for_its_starter_and_its_successors_know():
    """A stream of work through threads that come and go, each joined, on streams in turn."""
    with lv.record(on="a100", host="laptop", hazards="raise") as recording:
        x, streams = torch.ones(1 << 16, device="cuda"), [torch.cuda.Stream() for _ in range(3)]
        torch.cuda.synchronize()

        def step(stream):
            with torch.cuda.stream(stream):
                x.mul_(2)
            stream.synchronize()

        for i in range(6):
            in_a_thread(lambda i=i: step(streams[i % 3]))
        assert x[0].item() == 64
    assert not recording.hazards


def test_memory_that_one_thread_lets_go_of_may_be_another_ones():
    """The allocator's lock orders them: whoever gets a block comes after who waited for its use, and freed it."""
    with lv.record(on="a100", host="laptop", hazards="raise"):
        side = torch.cuda.Stream()

        def uses(delay):
            time.sleep(delay)
            x = torch.ones(1 << 20, device="cuda")
            here = torch.cuda.current_stream()
            side.wait_stream(here)
            with torch.cuda.stream(side):
                x.mul_(2)
            here.wait_stream(side)

        threads = [threading.Thread(target=uses, args=(i * 1e-2,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert torch.cuda.max_memory_allocated() == 4 << 20


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_race_that_is_to_be_raised_is_raised_in_the_thread_that_meets_it():
    caught = []
    with lv.record(on="a100", host="laptop", hazards="raise"):
        x, side = torch.ones(1 << 20, device="cuda"), torch.cuda.Stream()

        def meets():
            with torch.cuda.stream(side):
                try:
                    x.add(1)
                except lv.LoadervizError as problem:
                    caught.append(problem)

        in_a_thread(meets)
    assert [type(each).__name__ for each in caught] == ["RaceError"]


def test_a_pool_that_fills_a_list_in_order_has_no_race():
    with lv.record(on="a100", host="laptop", hazards="raise"), ThreadPoolExecutor(3) as pool:

        def load(i):
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                return torch.full((64,), float(i), device="cuda"), stream.record_event()

        total = 0.0
        for x, ready in pool.map(load, range(8)):
            torch.cuda.current_stream().wait_event(ready)
            total += x.sum().item()
    assert total == 64 * 28


@pytest.mark.filterwarnings("ignore::loaderviz.emulator.hazards.HazardWarning")
def test_a_wait_that_only_another_thread_needs_is_not_called_needless():
    with lv.record(on="a100", host="laptop") as recording:
        x, side, ready = torch.ones(1 << 20, device="cuda"), torch.cuda.Stream(), queue.Queue()

        def reads():
            ready.get()
            with torch.cuda.stream(side):
                x.add(1)

        thread = threading.Thread(target=reads)
        thread.start()
        side.wait_stream(torch.cuda.current_stream())
        ready.put(1)
        thread.join()
    assert not recording.hazards and not recording.lints
