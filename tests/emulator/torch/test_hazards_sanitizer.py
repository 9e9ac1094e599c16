"""Beside torch's own race detector for CUDA: what it reports of the same happenings, ours reports at least.

Its `EventHandler` is plain Python and runs without a GPU. It knows tensors by their first address, forgets them when
they are freed, and sees no host memory; nor does it know streams that the default one waits for, which PyTorch never
makes. So everything here is whole tensors on the device, and PyTorch's streams.
"""

from hypothesis import given, settings
from hypothesis import strategies as st
from race_programs import BLOCKING, BLOCKS, EVENTS, UNIT, UNITS, Machine, index
from torch.cuda._sanitizer import EventHandler


class Both(Machine):
    """Tells torch's detector of a program, too; `reports` has for each kernel: does ours report it, does torch's?"""

    def __init__(self):
        super().__init__()
        self.theirs, self.reports = EventHandler(), []
        for stream in self.streams[1:]:
            self.theirs._handle_stream_creation(stream.id)
        for block in self.blocks:
            self.theirs._handle_memory_allocation(block.address)
        for event in range(EVENTS):
            self.theirs._handle_event_creation(event)

    def kernel(self, stream, duration, pieces):
        super().kernel(stream, duration, pieces)
        written = {self.blocks[block].address + first * UNIT: writes for block, first, _, _, writes in pieces}
        read_only = {address for address, writes in written.items() if not writes}
        theirs = self.theirs._handle_kernel_launch(
            self.streams[stream].id, read_only, written.keys() - read_only, set(), "kernel", {a: [] for a in written}
        )
        self.reports.append((bool(self.found[-1]), bool(theirs)))

    def record(self, event, stream):
        super().record(event, stream)
        self.theirs._handle_event_record(event, self.streams[stream].id)

    def wait(self, stream, event, line):
        super().wait(stream, event, line)
        self.theirs._handle_event_wait(event, self.streams[stream].id)

    def synchronize_device(self):
        super().synchronize_device()
        self.theirs._handle_device_synchronization()

    def synchronize_stream(self, stream):
        super().synchronize_stream(stream)
        self.theirs._handle_stream_synchronization(self.streams[stream].id)

    def synchronize_event(self, event):
        super().synchronize_event(event)
        self.theirs._handle_event_synchronization(event)

    def renew(self, block, stream, recorded):
        self.theirs._handle_memory_deallocation(self.blocks[block].address)
        super().renew(block, stream, recorded)
        self.theirs._handle_memory_allocation(self.blocks[block].address)


def kernel(stream, *pieces):
    return "kernel", stream, 1_000, [(block, 0, UNITS, not writes, writes) for block, writes in pieces]


touched = st.lists(st.tuples(index(BLOCKS), st.booleans()), max_size=BLOCKS, unique_by=lambda piece: piece[0])
operations = st.one_of(
    *3 * [st.builds(lambda stream, pieces: kernel(stream, *pieces), index(BLOCKING), touched)],
    *2 * [st.tuples(st.just("record"), index(EVENTS), index(BLOCKING))],
    *2 * [st.tuples(st.just("wait"), index(BLOCKING), index(EVENTS), st.just(0))],
    st.tuples(st.just("synchronize_stream"), index(BLOCKING)),
    st.tuples(st.just("synchronize_event"), index(EVENTS)),
    st.tuples(st.just("synchronize_device")),
    st.tuples(st.just("renew"), index(BLOCKS), index(BLOCKING), st.none()),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(operations, min_size=4, max_size=30))
def test_ours_reports_at_least_what_torchs_does(program):
    reports = Both().run(program).reports
    assert [number for number, (ours, theirs) in enumerate(reports) if theirs and not ours] == []


def test_ours_sees_what_torchs_cannot():
    """Memory that is freed and handed out again, and a view that begins elsewhere."""
    written = kernel(1, (0, True))
    assert Both().run([written, kernel(0, (0, True))]).reports == [(False, False), (True, True)]
    assert Both().run([written, ("renew", 0, 0, None), kernel(0, (0, True))]).reports == [(False, False), (True, False)]
    view = "kernel", 0, 1_000, [(0, 1, UNITS - 1, True, False)]
    assert Both().run([written, view]).reports == [(False, False), (True, False)]
