"""Random programs: `Runtime` must agree to the ns with the naive scheduler."""

from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st
from naive_scheduler import Event as NaiveEvent
from naive_scheduler import Naive

from loaderviz.emulator import Gpu, Host, Runtime
from loaderviz.emulator.runtime import Event
from loaderviz.timeline import Kind

KB = 1024
STREAMS = [(0, False), (-3, False), (0, True)]  # (priority, blocking) of streams 1, 2, 3
EVENTS = 3


def machine(
    latency, copy_latency, chunk, depth, costs, pageable=12, engines=3, gap=0, memory=1000, staged=(0, 0), both=(720, 0)
):
    """A GPU and a host that do everything within a few ns."""
    per_ns = 10**9
    gpu = replace(
        Gpu.preset("t4"), h2d=16 * KB * per_ns, d2h=20 * KB * per_ns, pageable=pageable * KB * per_ns,
        launch_latency=latency, copy_latency=copy_latency, d2h_latency=copy_latency + 1,
        queue_gap=gap, staging_chunk=chunk * KB, queue_depth=depth, malloc=costs,
        malloc_small=costs // 2, async_engines=engines, memory_bandwidth=memory * KB * per_ns,
        pageable_d2h=staged[0] * KB * per_ns, pageable_cached=staged[1] * KB * per_ns,
        bidirectional=both[0], bidirectional_d2h=both[1],
    )  # fmt: skip
    host = replace(
        Host.preset("laptop"), launch=costs, memcpy_call=costs, synchronize=costs, wake=costs, event_call=costs,
        query=costs, memory_bandwidth=32 * KB * per_ns,
    )  # fmt: skip
    return gpu, host


machines = st.builds(
    machine, st.integers(0, 3), st.integers(0, 3), st.sampled_from([4, 32, 200]), st.sampled_from([2, 3, 1000]),
    st.integers(0, 2), st.sampled_from([12, 40]), st.sampled_from([1, 2, 3]), st.integers(0, 2),
    st.sampled_from([20, 80, 1000]), st.sampled_from([(0, 0), (15, 0), (15, 30)]),
    st.sampled_from([(720, 0), (500, 960), (960, 500)]),
)  # fmt: skip
lanes = st.integers(0, len(STREAMS))
events = st.integers(0, EVENTS - 1)
operations = st.one_of(
    st.tuples(
        st.just("launch"), lanes, st.integers(0, 12), st.sampled_from([1, 300, 500, 501, 1000]),
        st.sampled_from([0, 1000, 350]),
    ),
    st.tuples(
        st.just("memcpy"), lanes, st.sampled_from([0, 8, 64, 65, 100, 256]), st.sampled_from(["h2d", "d2h"]),
        st.booleans(), st.sampled_from([False, False, True]),
    ),
    st.tuples(st.just("record"), lanes, events),
    st.tuples(st.just("wait"), lanes, events),
    st.tuples(st.just("host_work"), st.integers(0, 9)),
    st.tuples(st.just("synchronize_stream"), lanes),
    st.tuples(st.just("synchronize_event"), events),
    st.sampled_from([("synchronize",), ("malloc", 1), ("free", 2**30)]),
    st.tuples(st.just("query"), events),
)  # fmt: skip
programs = st.lists(operations, max_size=30)


def spans(timeline):
    return sorted((r.start, r.end, r.lane.name, r.kind, r.name) for r in timeline.rows())


class Driver:
    """Runs a program of `operations` on either machine, and keeps the answers of its queries."""

    def __init__(self, machine, event):
        self.machine, self.answers = machine, []
        self.events = [event() for _ in range(EVENTS)]
        made = (machine.stream(priority, blocking=blocking) for priority, blocking in STREAMS)
        self.streams = [machine.default_stream, *made]

    def do(self, operation):
        machine, streams, events = self.machine, self.streams, self.events
        match operation:
            case "launch", lane, duration, share, traffic:
                machine.launch(duration, streams[lane], share=share, traffic=traffic)
            case "memcpy", lane, kib, direction, pinned, blocking:
                machine.memcpy(kib * KB, direction, streams[lane], pinned=pinned, blocking=blocking)
            case "record", lane, event:
                machine.record_event(events[event], streams[lane])
            case "wait", lane, event:
                machine.wait_event(streams[lane], events[event])
            case "synchronize_stream", lane:
                machine.synchronize(streams[lane])
            case "synchronize_event", event:
                machine.synchronize(events[event])
            case "query", event:
                self.answers.append(machine.query(events[event]))
            case name, *numbers:
                getattr(machine, name)(*numbers)
        return self

    def run(self, program):
        for operation in program:
            self.do(operation)
        return self


def real(machine, launch_blocking=False):
    return Driver(Runtime(*machine, launch_blocking=launch_blocking), Event)


@settings(max_examples=200, deadline=None)
@given(machines, programs, st.booleans())
@example(  # a higher priority becomes ready at the ns when the engine becomes free
    machine(0, 0, 4, 1000, 1),
    [("launch", 2, 5, 1000, 0), ("launch", 1, 5, 1000, 0), ("launch", 2, 5, 1000, 0)],
    False,
)
@example(  # staging is faster than the link: the host returns no earlier than the copy begins
    machine(3, 0, 200, 1000, 0, pageable=40),
    [("memcpy", 1, 65, "h2d", False, False), ("host_work", 1)],
    False,
)
@example(machine(0, 0, 4, 1000, 0, gap=2), [("launch", 1, 5, 1000, 0)] * 3, False)  # kernels queued behind each other
@example(  # a copy behind a kernel does not wait for the gap, nor a kernel behind a copy
    machine(0, 0, 4, 1000, 0, gap=2),
    [("launch", 1, 5, 1000, 0), ("memcpy", 1, 64, "h2d", True, False), ("launch", 1, 5, 1000, 0)],
    False,
)
@example(  # a kernel that arrives later than the gap after the one before it
    machine(3, 0, 4, 1000, 2, gap=1), [("launch", 1, 0, 1000, 0), ("launch", 1, 5, 1000, 0)], False
)
@example(  # both directions share the link
    machine(0, 0, 4, 1000, 0), [("memcpy", 1, 256, "h2d", True, False), ("memcpy", 2, 256, "d2h", True, False)], False
)
@example(  # a copy takes its part of the memory from the kernel that runs, and gives it back
    machine(0, 0, 4, 1000, 0, memory=20),
    [("launch", 1, 12, 1000, 1000), ("host_work", 2), ("memcpy", 2, 100, "h2d", True, False)],
    False,
)
@example(  # two copies become ready at the same ns
    machine(0, 0, 4, 1000, 0),
    [("memcpy", 1, 64, "h2d", True, False), ("launch", 2, 0, 1, 0), ("memcpy", 2, 64, "h2d", True, False)],
    False,
)
def test_runtime_agrees_with_the_naive_scheduler(machine, program, launch_blocking):
    ours = real(machine, launch_blocking).run(program)
    naive = Driver(Naive(*machine, launch_blocking), NaiveEvent).run(program)
    assert (ours.answers, ours.machine.now) == (naive.answers, naive.machine.now)
    assert spans(ours.machine.timeline()) == naive.machine.spans()


@settings(max_examples=100, deadline=None)
@given(machines, programs, st.data())
def test_looking_changes_nothing(machine, program, data):
    """Asking whether anything is over, at no cost, at any moment, leaves the timeline as it is."""
    plain, watched = real(machine).run(program), real(machine)
    runtime = watched.machine
    for operation in program:
        for target in data.draw(st.lists(st.sampled_from(watched.streams + watched.events), max_size=2)):
            runtime.is_over(target)
        if data.draw(st.booleans()):
            runtime.device.advance(runtime.now)
        watched.do(operation)
    assert watched.answers == plain.answers
    assert runtime.timeline() == plain.machine.timeline()


def test_looking_changes_nothing_even_when_nothing_takes_time():
    """On a machine without latency the host can still enqueue something more urgent at the very ns of the look."""
    plain, watched = (real(machine(0, 0, 4, 1000, 0)).do(("launch", 1, 5, 1000, 0)) for _ in range(2))
    assert not watched.machine.is_over(watched.streams[1])
    timelines = [driver.do(("launch", 2, 5, 1000, 0)).machine.timeline() for driver in (plain, watched)]
    assert [r.lane.number for r in timelines[1].rows(Kind.COMPUTE)] == [14, 13]
    assert timelines[0] == timelines[1]


@settings(max_examples=50, deadline=None)
@given(machines, programs, programs)
def test_one_can_go_on_after_a_timeline(machine, program, more):
    """The host's clock is then at the end of the device's work; numbers that join calls and work stay unique."""
    driver = real(machine).run(program)
    runtime = driver.machine
    before = spans(runtime.timeline())
    assert spans(runtime.timeline()) == before  # asked for twice
    assert runtime.now == max([runtime.now, *(row[1] for row in before)])
    timeline = driver.run(more).machine.timeline()
    assert set(before) <= set(spans(timeline))
    of_work = [r.correlation for r in timeline.rows() if r.lane.group == "device"]
    assert len(set(of_work)) == len(of_work)
