"""Hazards one by one: what is a race and what is not, what the reports say, and which waits are told to be useless."""

import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from loaderviz.emulator import Gpu, Host, Runtime
from loaderviz.emulator.device import Command, Engine, Stream
from loaderviz.emulator.hazards import Hazards, Lints, short
from loaderviz.emulator.hazards.happens_before import COUNTERFACTUALS, HostWork, LastAccess
from loaderviz.emulator.hazards.races import BATCHES, KEPT, Conflict, Conflicts, Races
from loaderviz.emulator.memory import DevicePool, PinnedPool
from loaderviz.timeline import Kind
from loaderviz.words import duration

KB = 1024
LONG = 1_000_000


class Program:
    """A few lines of CUDA, in words: `line` is the source of what follows."""

    def __init__(self, raising=False):
        self.gpu = Runtime(Gpu.preset("a100"), Host.preset("laptop"))
        self.races = self.gpu.races = Races(self.gpu.order, self.gpu.builder, raising=raising)
        self.pool, self.pinned = DevicePool(self.gpu), PinnedPool(self.gpu)
        self.main, self.side = self.gpu.default_stream, self.gpu.stream()

    def line(self, number, batch=-1):
        self.gpu.source, self.gpu.batch = f"/home/me/train.py:{number}", batch
        return self

    def touch(self, command, block, part=(0, 1), shape=(4, 64), **how):
        start, end = (block.address + round(block.size * share) for share in part)
        self.races.access(command, start, end, shape, "torch.float32", block, **how)

    def kernel(self, stream, *reads, writes=(), part=(0, 1), time=1_000, name="mul"):
        command = self.gpu.launch(time, stream, name=name)
        for block in reads:
            self.touch(command, block, part, reads=True)
        for block in writes:
            self.touch(command, block, part, writes=True)
        return command

    def copy(self, direction, stream, block, buffer=None, nbytes=25_000_000, part=(0, 1)):
        command = self.gpu.memcpy(nbytes, direction, stream, pinned=buffer is not None)
        self.touch(command, block, part, reads=direction == "d2h", writes=direction == "h2d")
        if buffer is not None:
            self.pinned.use(buffer, stream)
            self.touch(command, buffer, reads=direction == "h2d", writes=direction == "d2h")

    def host(self, buffer, **how):
        span = self.gpu.builder.span(self.gpu.now, self.gpu.now + 10, self.gpu.main, 7, "aten::add", source="")
        work, end = HostWork("aten::add", self.gpu.batch, self.gpu.source, span), buffer.address + buffer.size
        self.races.access(work, buffer.address, end, (4, 64), "torch.float32", buffer, **how)

    def event(self):
        return self.gpu.event()

    def recorded(self):
        event = self.gpu.event()
        self.gpu.record_event(event, self.main)
        return event

    def hazards(self):
        self.timeline = self.gpu.timeline()
        return self.races.hazards

    def kinds(self):
        return [hazard.kind for hazard in self.hazards()]

    def lints(self):
        self.gpu.timeline()
        return {f.kind: f for f in self.races.linter.lints(self.gpu.now, self.pool.cached())}


@pytest.fixture
def program():
    return Program()


# The four races


@pytest.mark.parametrize("case", ["w r early-read", "w rw early-read", "w w early-reuse", "r w early-reuse", "r r"])
def test_what_two_accesses_without_an_order_are(program, case):
    first, second, *kinds = case.split()
    block = program.pool.allocate(4 * KB)
    for stream, how in ((program.side, first), (program.main, second)):
        program.touch(program.gpu.launch(10, stream), block, reads="r" in how, writes="w" in how)
    assert program.kinds() == kinds


def reuse(program, protection=""):
    """A block of the side stream's pool, read by the default stream, dropped, and filled again."""
    pool, gpu, main, side = program.pool, program.gpu, program.main, program.side
    first = pool.allocate(4 * KB, side)
    program.line(1, 2).copy("h2d", side, first)
    program.line(2, 2)
    gpu.wait_stream(main, side)
    program.line(3, 2).kernel(main, first, time=LONG)
    if protection == "record_stream":
        pool.record_stream(first, main)
    pool.free(first)
    if protection == "side waits":
        gpu.wait_stream(side, main)
    if protection == "sleep":
        gpu.host_work(10 * LONG)  # it is over by then, which nobody promised
    again = pool.allocate(4 * KB, side)
    program.line(4, 3).copy("h2d", side, again)
    return first, again


@pytest.mark.parametrize("protection", ["", "sleep", "record_stream", "side waits"])
def test_a_freed_block_filled_again_while_it_is_read_needs_a_protection_and_no_luck(program, protection):
    first, again = reuse(program, protection)
    hazards = program.hazards()
    assert [hazard.kind for hazard in hazards] == ["early-reuse"] * (protection in ("", "sleep"))
    for hazard in hazards:
        assert again.address == first.address and (hazard.overlap > 0) == (not protection)
        assert ("by luck" in str(hazard)) == (protection == "sleep") and "R36" in hazard.rule


@pytest.mark.parametrize("stop", ["the allocator's", "the program's"])
def test_that_the_allocator_waits_for_recorded_memory_orders_nothing_for_the_program(program, stop):
    """Giving the cache back waits for recorded streams (R13), but only if memory happens to be held back by one."""
    pool, side = program.pool, program.side
    recorded, block, buffer = pool.allocate(4 * KB), pool.allocate(4 * KB), program.pinned.allocate(4 * KB)
    program.copy("d2h", side, block, buffer)
    pool.record_stream(recorded, side)
    pool.free(recorded)
    if stop == "the allocator's":
        pool.empty_cache()
    else:
        program.gpu.synchronize(side)
    program.host(buffer, reads=True)
    assert program.kinds() == ["early-host-read"] * (stop == "the allocator's")


@pytest.mark.parametrize("adopts", [False, True])
def test_memory_that_was_there_before_has_no_past(program, adopts):
    """It only gets the addresses of a freed block: what was done there concerns it not, but its neighbour."""
    pool, side = program.pool, program.side
    old = pool.allocate(4 * KB, program.main)
    program.kernel(side, writes=[old])
    pool.free(old)
    first = (pool.adopt if adopts else pool.allocate)(2 * KB, program.main)
    second = pool.allocate(2 * KB, program.main)
    assert (first.address, second.address) == (old.address, old.address + 2 * KB)
    assert [program.kernel(program.main, block).in_race for block in (first, second)] == [not adopts, True]


# The report


def read_early(program):
    block = program.pool.allocate(4 * KB)
    program.line(3, 2).copy("h2d", program.side, block)
    program.line(4, 2).kernel(program.main, block, time=LONG)


def with_a_buffer(program, direction, **how):
    """A copy between the device and a pinned buffer, which the host reads or writes meanwhile."""
    block, buffer = program.pool.allocate(4 * KB), program.pinned.allocate(4 * KB)
    program.line(3, 2).copy(direction, program.side, block, buffer)
    program.line(4, 3).host(buffer, **how)


def overwrite_early(program):
    block = program.pool.allocate(4 * KB)
    program.line(3, 2).kernel(program.main, block, time=LONG)
    program.line(4, 3).copy("h2d", program.side, block)


@pytest.mark.parametrize(
    ("happens", "kind", "rule", "order"),
    [
        (read_early, "early-read", "R16", "torch.cuda.current_stream().wait_event(ready)"),
        (overwrite_early, "early-reuse", "R16", "side.wait_event(done)"),
        (reuse, "early-reuse", "R36", "side.wait_stream(torch.cuda.current_stream())"),
        (partial(with_a_buffer, direction="h2d", writes=True), "early-refill", "R42", "copied = side.record_event()"),
        (partial(with_a_buffer, direction="d2h", reads=True), "early-host-read", "R32", "side.synchronize()"),
    ],
)
def test_every_report_says_all_of_both_sides_and_what_to_add_where(program, happens, kind, rule, order):
    happens(program)
    (hazard,) = program.hazards()
    assert (hazard.kind, hazard.count, hazard.batches) == (kind, 1, (hazard.second.batch,)) and rule in hazard.rule
    assert hazard.first.writes == (kind in ("early-read", "early-host-read")) != hazard.second.writes
    (mark,) = program.timeline.self_check().marks
    spans = [program.timeline.row(span) for span in mark.spans]
    assert [span[:2] for span in spans] == [(side.start, side.end) for side in (hazard.first, hazard.second)]
    assert (mark.kind, mark.time, program.timeline.lanes[mark.lane]) == (kind, hazard.second.start, spans[1].lane)
    assert max(map(len, str(hazard).splitlines()[1:])) <= 110  # all but its title
    assert ("record_stream" in hazard.fix) == (happens is reuse)
    text = " ".join(str(hazard).split())  # without its line breaks
    for access, number in ((hazard.first, 3), (hazard.second, 4)):
        assert access.source.endswith(f":{number}") and access.operator and access.start >= 0 < access.end
        for part in (
            access.operator, "float32[4, 64]", f"batch {access.batch}", access.place, f"train.py:{number}",
            f"from {duration(access.start)} to {duration(access.end)}",
        ):  # fmt: skip
            assert part in text, part
    assert order in hazard.fix and "train.py:4" in hazard.fix
    assert "train.py:3" in hazard.missing and ("does not wait" in hazard.missing or happens is reuse)
    assert f"same time for {duration(hazard.overlap)} in this run" in text or not hazard.overlap
    assert len(hazard.shows) > 80 and hazard.shows in text and hazard.rule.startswith("R")


def test_the_line_to_add_fits_the_streams_of_the_program(program):
    """The default stream may be the one to be waited for; and of two side streams each has a name."""
    block = program.pool.allocate(4 * KB)
    program.line(3).kernel(program.main, writes=[block])
    program.line(4).kernel(program.side, block)
    third = program.gpu.stream()
    program.gpu.wait_stream(third, program.main)
    program.line(5).kernel(third, writes=[block])
    back, two = program.hazards()
    assert "ready = torch.cuda.current_stream().record_event()" in back.fix and "side.wait_event(ready)" in back.fix
    assert "done = stream_13.record_event()" in two.fix and "stream_14.wait_event(done)" in two.fix


def test_record_stream_is_no_cure_for_memory_of_the_readers_own_pool(program):
    """Memory of the default stream, dropped and allocated again there, and filled by a side stream (R37)."""
    first = program.pool.allocate(4 * KB, program.main)
    program.line(3).kernel(program.main, first, time=LONG)
    program.pool.record_stream(first, program.main)
    program.pool.free(first)
    program.line(4).copy("h2d", program.side, program.pool.allocate(4 * KB, program.main))
    (hazard,) = program.hazards()
    assert "`side.wait_stream(torch.cuda.current_stream())`" in hazard.fix and "does not help" in hazard.fix
    assert "record_stream" not in program.timeline.marks[0].text


def test_the_same_hazard_is_told_once_with_a_count_and_its_batches(program):
    block = program.pool.allocate(4 * KB)
    for batch in range(9):
        program.line(3, batch).copy("h2d", program.side, block)
        program.line(4, batch).kernel(program.main, block)
    hazards = {h.kind: h for h in program.hazards()}
    assert len(program.races.hazards) == 2  # the read, and the next copy over what is being read
    assert hazards["early-reuse"].count == 8
    assert hazards["early-read"].count == 9 and hazards["early-read"].batches == (0, 1, 2, 3, 4)
    assert "9 times, in batches 0, 1, 2, 3, 4, …" in str(hazards["early-read"])


def test_code_in_a_report_is_set_as_code(program, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("\n\ncopied = images.to('cuda')\nloss = images | `2`\n")
    read_early(program)
    (hazard,) = program.hazards()
    first, second = (replace(side, source=f"{script}:{side.source[-1]}") for side in (hazard.first, hazard.second))
    hazard = replace(hazard, first=first, second=second)
    html = hazard._repr_html_()
    assert "<code>ready = side.record_event()</code>" in html
    assert "<br>train.py:3 <code>copied = images.to(&#x27;cuda&#x27;)</code>" in html


def test_a_line_of_a_notebook_cell_is_named_as_jupyter_does(monkeypatch):
    compiler = SimpleNamespace(format_code_name={"/tmp/ipykernel_1/42.py": ("Cell", "In[6]")}.get)
    shell = SimpleNamespace(compile=compiler)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert short("/tmp/ipykernel_1/42.py:3") == "In[6]:3"
    assert short("/home/me/train.py:31") == "train.py:31" and short("") == "an unknown line"
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))  # imported by a script
    assert short("/tmp/ipykernel_1/42.py:3") == "42.py:3"


def test_a_wait_that_came_too_early_is_named(program):
    block = program.pool.allocate(4 * KB)
    program.line(2).gpu.wait_stream(program.main, program.side)
    program.line(3).copy("h2d", program.side, block)
    program.line(4).kernel(program.main, block)
    (hazard,) = program.hazards()
    assert "stream 7 (default) does wait for stream 13 at train.py:2, but earlier" in hazard.missing


def test_hazards_print_as_a_report_and_slice_as_a_list(program):
    assert (repr(Hazards()), repr(Lints()), Hazards()) == ("no hazards", "no lints", [])
    reuse(program)
    hazards = program.hazards()
    assert hazards[:1] == hazards and hazards[:0] == [] and repr(hazards) == str(hazards[0])


# Findings


def test_a_wait_for_nothing_is_told(program):
    """The work is queued only later, or the event was never recorded, or it is one of the same stream."""
    program.line(2, 0).gpu.wait_stream(program.main, program.side)
    program.line(3).copy("h2d", program.side, program.pool.allocate(KB))
    lint = program.lints()["wait-on-nothing"]
    assert lint.first.source.endswith(":2") and "nothing new was in stream 13" in lint.problem
    for event, problem in ((Program.event, "not recorded yet"), (Program.recorded, "waits for itself")):
        other = Program()
        other.line(2).gpu.wait_event(other.main, event(other))
        assert problem in other.lints()["wait-on-nothing"].problem


def test_a_line_that_sometimes_waits_for_something_is_not_told(program):
    for _ in range(3):
        program.line(2).gpu.wait_stream(program.main, program.side)
        program.line(3).kernel(program.side)
    assert "wait-on-nothing" not in program.lints()


def needless(program, useful):
    """The side stream waits for the default stream before each copy, which nothing needs if it has a block for each."""
    blocks = [program.pool.allocate(KB) for _ in range(1 if useful else 8)] * (8 if useful else 1)
    buffers = [program.pinned.allocate(KB) for _ in blocks]  # now, since page-locking takes time
    for block, buffer in zip(blocks, buffers, strict=True):
        program.line(5).gpu.wait_stream(program.side, program.main)
        program.line(6).copy("h2d", program.side, block, buffer)
        program.line(7).gpu.wait_stream(program.main, program.side)
        program.line(8).kernel(program.main, block, time=LONG)
    return program


def test_a_wait_that_orders_nothing_and_costs_time_is_told():
    lints = needless(Program(), useful=False).lints()
    assert list(lints) == ["needless-wait"]
    lint = lints["needless-wait"]
    assert lint.first.source.endswith(":5") and lint.count == 8
    program = needless(Program(), useful=True)
    assert program.lints() == {} and program.kinds() == []
    assert {line[-1] for line in program.gpu.order.needed} == {"5", "7"}


def test_a_wait_that_the_host_relies_on_is_needed(program):
    """The copy is in the side stream, the host waits for the main one, and reads: line 2 orders that."""
    block, buffer = program.pool.allocate(KB), program.pinned.allocate(KB)
    program.line(1).copy("d2h", program.side, block, buffer, nbytes=KB)
    program.line(2).gpu.wait_stream(program.main, program.side)
    program.line(3).gpu.synchronize(program.main)
    assert program.gpu.order.needed == set()
    program.line(4).host(buffer)
    assert {line[-1] for line in program.gpu.order.needed} == {"2"} and program.kinds() == []


def test_the_time_that_a_needless_wait_costs_is_the_time_without_work(program):
    program.line(1).kernel(program.main, time=LONG)
    program.line(2).gpu.wait_stream(program.side, program.main)
    program.line(3).kernel(program.side, time=1_000)
    kernel, held = (span for span in program.gpu.timeline().rows() if span.name == "mul")
    launched = next(s.end for s in program.gpu.timeline().rows() if s.source.endswith(":3") and s.kind == 6)
    lost = held.start - launched - program.gpu.gpu.launch_latency
    (lint,) = program.races.linter.lints(100 * lost, {})
    assert duration(lost) in lint.problem and held.start == kernel.end
    assert program.races.linter.lints(100 * lost + 1, {}) == []  # less than a hundredth of the run


@pytest.mark.parametrize("lines", [COUNTERFACTUALS, COUNTERFACTUALS + 1])
def test_so_many_lines_are_judged_at_a_time(program, lines):
    for line in range(lines):
        program.kernel(program.main, time=LONG)
        program.line(line).gpu.wait_stream(program.side, program.main)
        program.kernel(program.side)
    assert len(program.gpu.order.counterfactuals) == COUNTERFACTUALS == 16
    program.gpu.timeline()
    assert len(program.races.linter.lints(program.gpu.now, {})) == COUNTERFACTUALS


def test_torchs_own_waits_are_not_judged(program):
    program.kernel(program.main, time=LONG)
    program.line(2).gpu.wait_stream(program.side, program.main, asked=False)
    program.line(3).kernel(program.side)
    program.gpu.wait_stream(program.main, program.side, asked=False)
    program.gpu.wait_stream(program.main, program.side, asked=False)
    assert program.lints() == {}


@pytest.mark.parametrize(("nbytes", "told"), [(64 * KB, False), (64 * KB + 1, True)])
def test_a_pageable_copy_that_blocks_is_a_hidden_sync(program, nbytes, told):
    program.line(2, 3).copy("h2d", program.main, program.pool.allocate(KB), nbytes=nbytes)
    found = program.lints()
    assert ("hidden-sync" in found) == told
    if told:
        waits = [s for s in program.gpu.timeline().rows() if s.cause == 1]
        assert duration(sum(s.duration for s in waits)) in found["hidden-sync"].problem
        assert found["hidden-sync"].batches == (3,)


def test_an_asynchronous_copy_into_pageable_memory_is_told_not_to_be_relied_on(program):
    """R11: that it blocks is no promise of CUDA any more."""
    program.line(2, 3).copy("d2h", program.main, program.pool.allocate(KB))
    lint = program.lints()["hidden-sync"]
    assert lint.rule == "R11, R26" and "do not promise" in lint.missing and "synchronize()" in lint.fix
    assert "where" in str(lint) and "first" not in str(lint)


def epochs(program, streams, of_one_loader=False):
    for _ in range(streams):
        side = program.side if of_one_loader else program.line(9).gpu.stream()
        for _ in range(3):
            block = program.pool.allocate(2**21, side)
            program.kernel(side, writes=[block])
            program.pool.free(block)
    return program.lints()


def test_a_stream_per_epoch_with_memory_in_each_is_told():
    lint = epochs(Program(), 3)["stream-per-epoch"]
    assert "3 streams" in lint.problem and "41.94 MB" in lint.problem  # 2 left, with 20 MiB each
    assert epochs(Program(), 2) == {} and epochs(Program(), 5, of_one_loader=True) == {}


def test_several_streams_in_use_together_are_no_finding(program):
    streams = [program.line(9).gpu.stream() for _ in range(5)]
    for stream in streams * 4:
        block = program.pool.allocate(2**21, stream)
        program.kernel(stream, writes=[block])
        program.pool.free(block)
    assert program.lints() == {}


# What is kept of conflicts


def accessed(start, end, batch=-1, sequence=1):
    """A write on a stream that took place then; with a start of None, by the host."""
    if start is None:
        return LastAccess(0, HostWork("fill", batch, "train.py:2"), True, (), "", None)
    work = Command(Stream(1, 13), "mm", Kind.COMPUTE, Engine.COMPUTE, 1)
    work.start, work.end, work.batch = start, end, batch
    return LastAccess(sequence, work, True, (), "", None)


@pytest.mark.parametrize(
    ("first", "second", "shows"),
    [
        ((0, 10), (5, 20), (2, 5)),
        ((0, 10), (9, 20), (2, 1)),
        ((5, 20), (0, 10), (2, 5)),
        ((0, 10), (10, 20), (0, 0)),  # one after the other, as they should be
        ((0, 10), (13, 20), (0, -3)),
        ((13, 20), (0, 10), (1, -3)),  # the wrong way round
        ((0, 10), (0, 0), (0, 0)),
        ((-1, -1), (0, 10), (0, 0)),  # one has not run
        ((0, 10), (-1, -1), (0, 0)),
        ((None, None), (0, 10), (0, 0)),  # the host has no times
        ((0, 10), (None, None), (0, 0)),
    ],
)
def test_a_conflict_shows_best_where_both_ran_at_once_for_longest(first, second, shows):
    assert Conflict(accessed(*first), accessed(*second), "").shows == shows


def test_of_many_conflicts_of_a_kind_a_few_are_kept_and_all_works_counted():
    found, count = Conflicts("early-read"), max(BATCHES, KEPT) + 5
    for number in range(count):
        conflict = Conflict(accessed(0, 100), accessed(100 - number, 200, batch=number - 1), "")
        for again in (conflict, conflict._replace(first=accessed(0, 50))):  # with two works before it
            found.add(again)
    assert (found.count, len(found.kept)) == (count, KEPT)
    assert found.batches == list(range(BATCHES))  # -1 is none
    assert found.best.shows == (2, KEPT - 1)
    found.add(Conflict(accessed(0, 1), accessed(0, 1, batch=2), ""))
    assert (found.count, found.batches) == (count + 1, list(range(BATCHES)))
