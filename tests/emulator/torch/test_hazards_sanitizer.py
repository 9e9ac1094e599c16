"""Beside torch's own race detector for CUDA: what it reports of the same happenings, ours reports at least.

Its `EventHandler` is plain Python and runs without a GPU. It knows tensors by their first address, forgets them when
they are freed, and sees no host memory; so everything here is whole tensors on the device.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from torch.cuda._sanitizer import EventHandler

from loaderviz.emulator import Gpu, Host, Runtime
from loaderviz.emulator.hazards.races import Races
from loaderviz.emulator.memory import DevicePool

NAMES = "ABCD"


class Both:
    """One program for both. Streams are "A" (the default one) to "D", tensors and events any name."""

    def __init__(self):
        self.gpu = Runtime(Gpu.preset("a100"), Host.preset("laptop"))
        self.races = self.gpu.races = Races(self.gpu.order, self.gpu.builder)
        self.pool, self.theirs = DevicePool(self.gpu), EventHandler()
        self.streams, self.events, self.tensors = {"A": self.gpu.default_stream}, {}, {}
        self.reports = []  # for each kernel: (does ours report it?, does torch's?)

    def stream(self, name):
        if name not in self.streams:
            self.streams[name] = self.gpu.stream()
            self.theirs._handle_stream_creation(self.streams[name].id)
        return self.streams[name]

    def tensor(self, name):
        if name not in self.tensors:
            self.tensors[name] = self.pool.allocate(4096, self.stream("A"))
            self.theirs._handle_memory_allocation(self.tensors[name].address)
        return self.tensors[name]

    def kernel(self, stream, reads="", writes=""):
        stream = self.stream(stream)
        blocks = [(self.tensor(name), name in writes) for name in dict.fromkeys(reads + writes)]
        work = self.gpu.launch(1_000, stream)
        for block, written in blocks:
            self.races.access(work, block.address, block.end, (), "", block, reads=not written, writes=written)
        theirs = self.theirs._handle_kernel_launch(
            stream.id, {block.address for block, written in blocks if not written},
            {block.address for block, written in blocks if written}, set(), "kernel",
            {block.address: [] for block, _ in blocks},
        )  # fmt: skip
        self.reports.append((bool(work.in_race), bool(theirs)))

    def event(self, name):
        if name not in self.events:
            self.events[name] = self.gpu.event()
            self.theirs._handle_event_creation(id(self.events[name]))
        return self.events[name]

    def record(self, event, stream):
        self.gpu.record_event(self.event(event), self.stream(stream))
        self.theirs._handle_event_record(id(self.event(event)), self.stream(stream).id)

    def wait(self, stream, event):
        self.gpu.wait_event(self.stream(stream), self.event(event))
        self.theirs._handle_event_wait(id(self.event(event)), self.stream(stream).id)

    def order(self, stream, other):
        """`stream` waits for `other`, by an event of its own."""
        self.record(f"{stream}{other}", other)
        self.wait(stream, f"{stream}{other}")

    def synchronize(self, what=None, name=""):
        if what is None:
            self.gpu.synchronize()
            self.theirs._handle_device_synchronization()
        elif what == "stream":
            self.gpu.synchronize(self.stream(name))
            self.theirs._handle_stream_synchronization(self.stream(name).id)
        else:
            self.gpu.synchronize(self.event(name))
            self.theirs._handle_event_synchronization(id(self.event(name)))

    def free(self, tensor):
        block = self.tensors.pop(tensor, None)
        if block:
            self.pool.free(block)
            self.theirs._handle_memory_deallocation(block.address)

    def run(self, program):
        for name, *rest in program:
            getattr(self, name)(*rest)
        return self


K, RECORD, WAIT, ORDER, SYNC = "kernel", "record", "wait", "order", "synchronize"

# name: (program, the kernels of it that race, by their number)
streams, events, tensors = st.sampled_from(NAMES), st.sampled_from("ef"), st.sampled_from(["x", "y", "xy", ""])
operations = st.one_of(
    *3 * [st.tuples(st.just(K), streams, tensors, tensors)],
    *2 * [st.tuples(st.just(RECORD), events, streams)],
    *2 * [st.tuples(st.just(WAIT), streams, events)],
    st.tuples(st.just(ORDER), streams, streams),
    st.tuples(st.just(SYNC), st.just("stream"), streams),
    st.tuples(st.just(SYNC), st.just("event"), events),
    st.tuples(st.just(SYNC)),
    st.tuples(st.just("free"), st.sampled_from("xy")),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(operations, min_size=4, max_size=30))
def test_ours_reports_at_least_what_torchs_does(program):
    reports = Both().run(program).reports
    assert [number for number, (ours, theirs) in enumerate(reports) if theirs and not ours] == []


def test_ours_sees_what_torchs_cannot():
    """Memory that is freed and handed out again, and a view that begins elsewhere."""
    both = Both().run([(K, "B", "x"), ("free", "x"), (K, "A", "", "y")])
    assert both.reports == [(False, False), (True, False)]

    both = Both()
    block = both.tensor("x")
    both.kernel("A", "", "x")
    work = both.gpu.launch(1_000, both.stream("B"))
    both.races.access(work, block.address + 784, block.end, (), "", block, reads=True)
    assert work.in_race
    assert not both.theirs._handle_kernel_launch(
        both.stream("B").id, {block.address + 784}, set(), set(), "", {block.address + 784: []}
    )
