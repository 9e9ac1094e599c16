"""Beside torch's own race detector for CUDA: what it reports of the same happenings, ours reports at least.

Its `EventHandler` is plain Python and runs without a GPU. It knows tensors by their first address, forgets them when
they are freed, and sees no host memory; nor does it know streams that the default one waits for, which PyTorch never
makes. So everything here is whole tensors on the device, and PyTorch's streams.

First its handler alone, told by hand; then all of it, in a recording, where it hears the emulator by torch's own table.
"""

import prefetchers
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from race_programs import BLOCKING, BLOCKS, EVENTS, UNIT, UNITS, Machine, index
from torch.cuda import _gpu_trace
from torch.cuda._sanitizer import CUDASanitizerDispatchMode, CUDASanitizerErrors, EventHandler

import loaderviz as lv

TABLES = {name: table for name, table in vars(_gpu_trace).items() if hasattr(table, "callback_list")}
for (
    table
) in TABLES.values():  # to import the detector is to let it listen: recordings of all tests would take twice as long
    table.callback_list.clear()


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


# All of torch's sanitizer, in a recording


@pytest.fixture
def tables(monkeypatch):
    """The tables of torch's hooks, by name, with no listener until the end of the test."""
    for table in TABLES.values():
        monkeypatch.setattr(table, "callback_list", [])
    return TABLES


def verdicts(run):
    """Return the kinds of our hazards, and whether torch's sanitizer ends the same program with an error."""
    with lv.record(on="a100", copies="eager") as recording:
        run()
    ended = False
    try:
        with lv.record(on="a100", copies="eager", hazards="off"), CUDASanitizerDispatchMode():
            run()
    except CUDASanitizerErrors:
        ended = True
    return {hazard.kind for hazard in recording.hazards}, ended


def side_stream(order):
    """A kernel on a side stream writes what one on the default stream reads; `order` stands between them."""

    def run():
        shared, side = torch.ones(1000, device="cuda"), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            shared.mul_(2)
        order(side)
        shared.sum()

    return run


def by_event(side):
    done = side.record_event()
    torch.cuda.current_stream().wait_event(done)


ORDERS = {
    "wait_stream": lambda side: torch.cuda.current_stream().wait_stream(side),
    "event": by_event,
    "synchronize": lambda side: torch.cuda.synchronize(),
    "stream.synchronize": lambda side: side.synchronize(),
    "event.synchronize": lambda side: side.record_event().synchronize(),
}
NO_ORDERS = {
    "nothing": lambda side: None,
    "the wrong way round": lambda side: side.wait_stream(torch.cuda.current_stream()),
    "an event too early": lambda side: torch.cuda.current_stream().wait_event(torch.cuda.Event()),
    "another stream's end": lambda side: torch.cuda.Stream().synchronize(),
}


@pytest.mark.filterwarnings("ignore::loaderviz.HazardWarning")
@pytest.mark.parametrize("name", [*ORDERS, *NO_ORDERS])
def test_both_find_a_read_that_nothing_orders(tables, name):
    expected = (set(), False) if name in ORDERS else ({"early-read"}, True)
    assert verdicts(side_stream((ORDERS | NO_ORDERS)[name])) == expected


@pytest.mark.filterwarnings("ignore::loaderviz.HazardWarning")
@pytest.mark.parametrize("name", prefetchers.PREFETCHERS)
def test_torchs_sanitizer_ends_no_program_that_we_find_right(tables, name):
    """It misses what it cannot see: memory that is freed and handed out again, and pinned memory."""
    way = prefetchers.PREFETCHERS[name]

    def run():
        batches = [(torch.rand(64, 100).pin_memory(),) for _ in range(8)]
        for (values,) in way.make(batches):
            (values @ values.T).sum()

    ours, ended = verdicts(run)
    assert ours <= way.races and bool(ours) >= ended
    assert ended == (name in ("ring, unprotected", "waits too early", "never waits"))


def test_the_table_is_told_in_order_with_the_numbers_that_the_program_sees(tables):
    heard = []
    with lv.record(on="a100"):
        total = torch.zeros((), device="cuda")
        torch._C._activate_gpu_trace()
        for name, table in tables.items():
            table.add_callback(lambda *numbers, name=name: heard.append((name.removesuffix("Callbacks"), *numbers)))
        values, side, event = torch.empty(1000, device="cuda"), torch.cuda.Stream(), torch.cuda.Event()
        event.wait(side)  # never recorded: CUDA does not know it yet
        event.synchronize()
        event.record()
        event.wait(side)
        event.synchronize()
        values.record_stream(side)
        address, number, stream = values.data_ptr(), event.cuda_event, side.cuda_stream
        total.item()
        side.synchronize()
        torch.cuda.synchronize()
        del values
        torch.cuda.current_stream()
        for _ in range(32):
            torch.cuda.Stream()  # the last of them is the first of the pool again
    del event
    assert heard == [
        ("MemoryAllocation", address),
        ("StreamCreation", stream),
        ("EventCreation", number),
        ("EventRecord", number, 0),
        ("EventWait", number, stream),
        ("EventSynchronization", number),
        ("StreamSynchronization", 0),  # of `item`
        ("StreamSynchronization", stream),
        ("DeviceSynchronization",),
        ("MemoryDeallocation", address),
        *[("StreamCreation", stream + more) for more in range(1, 32)],
        ("EventDeletion", number),
    ]


def test_who_listens_changes_no_time(tables):
    def run():
        with lv.record(on="a100") as recording:
            run_of_streams()
        return recording.timeline

    run_of_streams = side_stream(by_event)
    alone = run()
    tables["EventRecordCallbacks"].add_callback(lambda *numbers: None)
    beside = run()
    assert [(row.name, row.start, row.end) for row in alone.rows()] == [(r.name, r.start, r.end) for r in beside.rows()]
