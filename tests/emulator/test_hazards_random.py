"""A hazard is reported if and only if a search of the happens-before graph finds the two accesses unordered."""

from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st
from race_programs import (
    UNIT,
    UNITS,
    Book,
    Machine,
    copies,
    hosts,
    kernels,
    near_misses,
    programs,
    records,
    right_programs,
    waits,
)

from loaderviz.emulator.hazards.happens_before import HOST, HappensBefore


def kernel(stream, first, units, *, writes):
    return "kernel", stream, 1_000, [(0, first, units, not writes, writes)]


def written_in_part(first, units, read):
    """A stream writes a block, and then a part of it; another one reads one unit, without waiting."""
    return [kernel(0, 0, UNITS, writes=True), kernel(0, first, units, writes=True), kernel(1, read, 1, writes=False)]


@settings(max_examples=400, deadline=None)
@example(written_in_part(0, 1, read=2))  # behind the part
@example(written_in_part(2, 2, read=0))  # before it
@example(written_in_part(1, 2, read=0))
@example(written_in_part(1, 2, read=3))
@example(written_in_part(1, 2, read=1))
@example([kernel(0, 0, 4, writes=True), kernel(1, 0, 4, writes=True), kernel(0, 0, 4, writes=False)])  # two writers
@example([kernel(0, 0, 4, writes=True), kernel(1, 0, 4, writes=False), kernel(0, 0, 4, writes=True)])
@given(programs | near_misses())
def test_an_access_is_in_a_hazard_if_and_only_if_no_path_leads_to_it(program):
    book = Book()
    machine = Machine(book).run(program)
    assert machine.found == [bool(races) for races in book.races]


def waits_to_add(program):
    """Where the hazards of a program say that a wait is missing: (place, stream to wait for, stream that waits)."""
    machine = Machine().run(program)
    machine.runtime.timeline()
    return [(int(h.second.source.rpartition(":")[2]), h.first.stream, h.second.stream) for h in machine.races.hazards]


def races_with(program, added):
    mended = [
        each
        for place, operation in enumerate(program)
        for each in (*(("order", *streams) for at, *streams in added if at == place), operation)
    ]
    return any(Machine().run(mended).found)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(kernels, kernels, copies, hosts, records, waits), max_size=20))
def test_a_program_with_the_missing_waits_has_no_race(program):
    """Programs without queries, whose answers the waits may change."""
    assert not races_with(program, waits_to_add(program))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(kernels.filter(lambda kernel: kernel[1] < 2), records, waits), max_size=20))
def test_of_two_streams_no_wait_is_missing_that_another_one_makes_needless(program):
    added = waits_to_add(program)
    for left_out in added:
        assert races_with(program, [wait for wait in added if wait is not left_out])


@settings(max_examples=200, deadline=None)
@example([("kernel", 0, 1000, [(0, 0, 1, True, False)]), ("record", 0, 0), ("wait", 2, 0, 0), ("renew", 0, 0, 2)])
@given(right_programs)
def test_a_line_of_waits_is_needed_if_and_only_if_something_is_unordered_without_it(program):
    """For programs without a race: in a program with one, what a line keeps apart may not matter any more.

    That memory is handed out again is something, too, whoever gets it: all that was done with it has to be over.
    """
    book, twins = Book(), [Book(without=line) for line in range(3)]
    machine = Machine(book, *twins).run(program)
    assert not any(book.races)
    needed = {f"wait.py:{twin.without}" for twin in twins if any(twin.races) or twin.over != book.over}
    assert machine.runtime.order.needed == needed


def ordered(program, without=None):
    """The order that a program of the host makes, with counterfactuals of its lines or without the waits of one."""
    order, events = HappensBefore(), {}
    for operation, stream, event, line in program:
        if operation == "work":
            order.enqueue(stream)
        elif operation == "record":
            events[event] = order.snapshot(stream)
        elif operation == "host waits":
            order.wait(HOST, events.get(event, {}))
        elif operation == "device":
            order.host_wait_all()
        elif line != without:
            if without is None:
                order.add_counterfactual(line)
            order.wait(stream, events.get(event, {}), line)
    return order


@settings(max_examples=200, deadline=None)
@example(  # what stream 2 knows of stream 0, it knows through stream 1, which without line a knew nothing
    [("work", 0, 0, "a"), ("record", 0, 0, "a"), ("wait", 1, 0, "a"), ("work", 1, 0, "a"), ("record", 1, 1, "a"),
     ("wait", 2, 1, "b")]
)  # fmt: skip
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["work", "work", "record", "record", "wait", "wait", "host waits", "device"]),
            st.integers(0, 2), st.integers(0, 2), st.sampled_from(["a", "b"]),
        ),
        max_size=30,
    )
)  # fmt: skip
def test_the_order_without_a_line_is_that_of_the_program_without_its_waits(program):
    order = ordered(program)
    for line, other in order.counterfactuals.items():
        plain = ordered(program, without=line)
        for stream in (HOST, 0, 1, 2):
            assert other.clock(stream) == plain.clock(stream)


@settings(max_examples=100, deadline=None)
@given(programs)
def test_looking_for_hazards_changes_no_time(program):
    with_races, without = Machine(), Machine()
    without.runtime.races = None
    timelines = [machine.run(program).runtime.timeline() for machine in (with_races, without)]
    first, second = ({**timeline.to_dict(), "marks": []} for timeline in timelines)
    assert first == second


@settings(max_examples=50, deadline=None)
@given(programs)
def test_what_is_kept_does_not_grow_with_the_run(program):
    machine = Machine()
    for _ in range(3):
        machine.run(program)
    memory = machine.races.memory
    spans = sorted((cell.start, cell.end) for cell in memory._cells.values())
    assert memory._starts == [start for start, _ in spans]
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    blocks = {address // (UNIT * UNITS) for address, _ in spans}
    assert len(spans) <= UNITS * len(blocks)
    assert all(len(cell.writes) <= 3 and len(cell.reads) <= 3 for cell in memory._cells.values())
