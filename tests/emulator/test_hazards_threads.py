"""Threads of the host put work into streams: a hazard is found if and only if no path of certain edges orders it.

`Paths` keeps every call, every piece of work and every edge, and walks. A call comes after the one before it of its
thread, after the release of a lock that it takes, after the start of its thread, and after the end of one that it
joins. Work comes after its call, and after the work in its stream, and the events that its stream waits for, of which
its call is certain to come later. Of the same bytes, work in one stream comes after what was written there before, in
the order of this run.
"""

from hypothesis import example, given, settings
from hypothesis import strategies as st
from race_programs import Graph, index

from loaderviz.emulator import Gpu, Host, Runtime
from loaderviz.emulator.hazards.between_threads import BetweenThreads
from loaderviz.emulator.hazards.races import Races

THREADS, STREAMS, EVENTS, LOCKS, BLOCKS, UNIT = 3, 3, 2, 2, 2, 512


class Paths(Graph):
    """Calls and work as nodes, each with those directly before it."""

    def __init__(self):
        super().__init__()
        self.calls, self.work, self.events, self.locks, self.ends = {}, [], {}, {}, {}
        self.memory = {block: [] for block in range(BLOCKS)}

    def call(self, thread, *after):
        self.calls[thread] = self.node(self.calls.get(thread), *after)
        return self.calls[thread]

    def known(self, stream, call):
        """Return the work in a stream that was certainly put there before a call."""
        return [work for work, place, by in self.work if place == stream and self.reaches(by, call)]

    def enqueue(self, thread, stream, *after):
        call = self.call(thread)
        work = self.node(call, *self.known(stream, call), *after)
        self.work.append((work, stream, call))
        return work

    def certain(self, event, call):
        record, by = self.events.get(event, (None, None))
        return [record] if record is not None and self.reaches(by, call) else []

    def kernel(self, thread, stream, block, writes):
        work, before = self.enqueue(thread, stream), self.memory[block]
        others = [each for each, place, written in before if place != stream and (writes or written)]
        after = [work, *(each for each, place, written in before if place == stream and written)]
        self.memory[block] = [*before, (work, stream, writes)]
        return not all(any(self.reaches(other, each) for each in after) for other in others)

    def record(self, thread, stream, event):
        self.events[event] = self.enqueue(thread, stream), self.calls[thread]

    def wait(self, thread, stream, event):
        if event in self.events:
            call = self.call(thread)
            self.work.append((self.node(call, *self.known(stream, call), *self.certain(event, call)), stream, call))

    def synchronize(self, thread, what, which):
        call = self.call(thread)
        if what == "event":
            after = self.certain(which, call)
        else:
            streams = range(STREAMS) if what == "device" else [which]
            after = [work for stream in streams for work in self.known(stream, call)]
        self.call(thread, *after)

    def release(self, thread, lock):
        self.locks[lock] = self.call(thread)

    def acquire(self, thread, lock):
        self.call(thread, self.locks.get(lock))

    def renew(self, by, other):
        """A thread ends that another one joins, which starts it anew."""
        self.calls[other] = self.node(self.call(by, self.calls.get(other)))


class Emulated:
    """The same on the emulated device."""

    def __init__(self):
        runtime = self.runtime = Runtime(Gpu.preset("a100"), Host.preset("laptop"))
        self.races = runtime.races = Races(runtime.order, runtime.builder)
        self.streams = [runtime.default_stream, runtime.stream(), runtime.stream()]
        self.events = [runtime.event() for _ in range(EVENTS)]
        runtime.order.divide(BetweenThreads(runtime.order))
        self.order, self.locks, self.numbers = runtime.order.threads, {}, list(range(THREADS))
        for thread in range(1, THREADS):
            self.order.start(thread)

    def run(self, thread):
        self.order.run(self.numbers[thread])

    def kernel(self, thread, stream, block, writes):
        command = self.runtime.launch(1000, self.streams[stream])
        start = (block + 1) * UNIT
        self.races.access(command, start, start + UNIT, (1,), "u8", None, reads=not writes, writes=writes)
        return command.in_race

    def record(self, thread, stream, event):
        self.runtime.record_event(self.events[event], self.streams[stream])

    def wait(self, thread, stream, event):
        self.runtime.wait_event(self.streams[stream], self.events[event])

    def synchronize(self, thread, what, which):
        self.runtime.synchronize(
            {"event": self.events, "stream": self.streams}[what][which] if what != "device" else None
        )

    def release(self, thread, lock):
        self.locks[lock] = self.order.tell()

    def acquire(self, thread, lock):
        self.order.learn(self.locks.get(lock))

    def renew(self, by, other):
        known = self.order.end(self.numbers[other])
        self.order.learn(known)
        self.numbers[other] = max(self.numbers) + 1
        self.order.start(self.numbers[other])


kernels = st.tuples(st.just("kernel"), index(THREADS), index(STREAMS), index(BLOCKS), st.booleans())
operations = st.one_of(
    kernels, kernels,
    st.tuples(st.just("record"), index(THREADS), index(STREAMS), index(EVENTS)),
    st.tuples(st.just("wait"), index(THREADS), index(STREAMS), index(EVENTS)),
    st.tuples(st.just("release"), index(THREADS), index(LOCKS)),
    st.tuples(st.just("acquire"), index(THREADS), index(LOCKS)),
    st.tuples(st.just("synchronize"), index(THREADS), st.sampled_from(["event", "stream", "device"]), index(EVENTS)),
    st.tuples(st.just("renew"), st.just(0), st.integers(1, THREADS - 1)),
)  # fmt: skip


@st.composite
def handed_over(draw):
    """A thread writes, hands over by an event and a lock, and another one reads; one step may be missing."""
    one, other = draw(st.permutations(range(THREADS)))[:2]
    first, second = draw(st.permutations(range(STREAMS)))[:2]
    program = [
        ("kernel", one, first, 0, True), ("record", one, first, 0), ("release", one, 0), ("acquire", other, 0),
        ("wait", other, second, 0), ("kernel", other, second, 0, draw(st.booleans())),
    ]  # fmt: skip
    del program[draw(st.integers(1, 7)) : draw(st.integers(1, 7))]
    for noise in draw(st.lists(operations, max_size=4)):
        program.insert(draw(st.integers(0, len(program))), noise)
    return program


WRITES = ("kernel", 1, 0, 0, True)
READS = ("kernel", 2, 1, 0, False)
RENEWED = [("renew", 0, 1), ("kernel", 1, 0, 0, True), ("record", 1, 0, 0), ("renew", 0, 1), ("wait", 0, 1, 0)]


@settings(max_examples=600, deadline=None)
@example([WRITES, READS])  # no edge at all
@example([WRITES, ("record", 1, 0, 0), ("wait", 2, 1, 0), READS])  # of CUDA alone: the wait may come too early
@example([WRITES, ("release", 1, 0), ("acquire", 2, 0), READS])  # of the host alone
@example([WRITES, ("record", 1, 0, 0), ("release", 1, 0), ("acquire", 2, 0), ("wait", 2, 1, 0), READS])
@example([WRITES, ("release", 1, 0), ("acquire", 2, 0), ("record", 2, 0, 0), ("wait", 2, 1, 0), READS])
@example([WRITES, ("synchronize", 1, "device", 0), READS])  # one thread knows that it is over, the other does not
@example([WRITES, ("synchronize", 2, "device", 0), READS])  # it may have come before there was anything
@example([WRITES, ("release", 1, 0), WRITES, ("acquire", 2, 0), ("synchronize", 2, "stream", 0), READS])  # too early
@example([*RENEWED, ("kernel", 0, 1, 0, False)])  # a thread that was joined, and its successor
@given(st.lists(operations, max_size=14) | st.lists(operations, min_size=10, max_size=30) | handed_over())
def test_an_access_of_a_thread_is_in_a_hazard_if_and_only_if_no_path_leads_to_it(program):
    paths, emulated = Paths(), Emulated()
    for name, thread, *rest in program:
        emulated.run(thread)
        found = getattr(emulated, name)(thread, *rest)
        assert found == getattr(paths, name)(thread, *rest)


def test_threads_that_come_and_go_leave_nothing_behind():
    emulated = Emulated()
    for step in range(200):
        emulated.run(0)
        emulated.renew(0, 1)
        emulated.run(1)
        emulated.kernel(1, step % STREAMS, 0, False)
    emulated.run(0)
    assert len(emulated.order._slots) == THREADS
    assert all(len(clock) <= STREAMS * THREADS for clock in emulated.order.clocks.values())
    assert len(emulated.order._ended) <= 1
