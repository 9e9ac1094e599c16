"""Random PyTorch programs: without a hazard the values are right, however late the bytes come; and what covers what."""

from __future__ import annotations

import gc
import warnings
from itertools import product

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import loaderviz as lv
from loaderviz.emulator.findings import HazardWarning
from loaderviz.emulator.torch_cuda.session import Session
from loaderviz.emulator.torch_cuda.touched import ROWS, pieces
from loaderviz.emulator.torch_cuda.watched import WHOLE, checksum

SIZE = 8
# Many programs share a recording, since to begin one takes long: to shrink them would take minutes.
QUICK = {"deadline": None, "phases": [Phase.generate], "suppress_health_check": list(HealthCheck)}


class Program:
    """Streams, events, device tensors, pinned buffers; every operation gives them back in a known state."""

    def __init__(self):
        self.streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
        self.events = [torch.cuda.Event() for _ in range(2)]
        self.device = [torch.full((SIZE,), float(n), device="cuda") for n in range(2)]
        self.pinned = [torch.full((SIZE,), 10.0 + n).pin_memory() for n in range(2)]
        self.seen, self.written = [], 0
        torch.cuda.synchronize()

    def run(self, program):
        for name, *rest in program:
            getattr(self, name)(*rest)
        torch.cuda.synchronize()
        self.seen += [tensor.tolist() for tensor in (*self.device, *self.pinned)]
        return self.seen

    def upload(self, stream, tensor, buffer, view):
        with torch.cuda.stream(self.streams[stream]):
            self.device[tensor][view].copy_(self.pinned[buffer][view], non_blocking=True)

    def renew(self, stream, tensor, buffer):
        with torch.cuda.stream(self.streams[stream]):
            self.device[tensor] = self.pinned[buffer].to("cuda", non_blocking=True)

    def download(self, stream, tensor, buffer, view):
        with torch.cuda.stream(self.streams[stream]):
            self.pinned[buffer][view].copy_(self.device[tensor][view], non_blocking=True)

    def add(self, stream, tensor, other, view):
        with torch.cuda.stream(self.streams[stream]):
            self.device[tensor][view].add_(self.device[other][view])

    def compute(self, stream, tensor, other):
        with torch.cuda.stream(self.streams[stream]):
            self.device[tensor] = self.device[other] * 2

    def record(self, event, stream):
        self.events[event].record(self.streams[stream])

    def wait(self, stream, event):
        self.events[event].wait(self.streams[stream])

    def order(self, stream, other):
        self.streams[stream].wait_stream(self.streams[other])

    def record_stream(self, tensor, stream):
        self.device[tensor].record_stream(self.streams[stream])

    def synchronize(self, what):
        (self.streams + self.events)[what].synchronize()

    def read(self, buffer):
        self.seen.append(self.pinned[buffer].tolist())

    def write(self, buffer, view, value):
        self.pinned[buffer][view].fill_(value)

    def numpy(self, buffer, value):
        """A value never written before: bytes that are put back before anybody looks are not seen to have changed."""
        self.written += 1
        self.pinned[buffer].numpy()[:] = value + self.written * 16


two, three = st.integers(0, 1), st.integers(0, 2)
views = st.sampled_from([slice(0, SIZE), slice(0, 4), slice(4, SIZE), slice(2, 6)])
values = st.sampled_from([-1.0, 3.0, 7.5])
operations = st.one_of(
    st.tuples(st.just("upload"), three, two, two, views),
    st.tuples(st.just("renew"), three, two, two),
    st.tuples(st.just("download"), three, two, two, views),
    st.tuples(st.just("add"), three, two, two, views),
    st.tuples(st.just("compute"), three, two, two),
    st.tuples(st.just("record"), two, three),
    st.tuples(st.just("wait"), three, two),
    *3 * [st.tuples(st.just("order"), three, three)],
    st.tuples(st.just("record_stream"), two, three),
    *3 * [st.tuples(st.just("synchronize"), st.integers(0, 4))],
    st.tuples(st.just("read"), two),
    st.tuples(st.just("write"), two, views, values),
    st.tuples(st.just("numpy"), two, values),
)


def run(programs, **options):
    """Run programs one after the other in one recording; return for each (what it saw, was there a hazard in it?)."""
    gc.collect()
    results = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HazardWarning)
        with lv.record(on="a100", **options):
            races = Session.running("test").runtime.races
            for program in programs:
                before = count(races)
                seen = Program().run(program)
                results.append((repr(seen), count(races) > before))  # NaN is equal to NaN in words
    return results


def count(races):
    return sum(sighting.count for sighting in races._sightings.values()) if races else 0


def guarded(program):
    """The program with a synchronise of all streams between any two operations that touch memory."""
    return [step for operation in program for step in (operation, *(("synchronize", s) for s in range(3)))]


programs = st.lists(operations, min_size=4, max_size=25)


@settings(max_examples=8, **QUICK)
@given(st.lists(programs, min_size=15, max_size=15))
def test_without_a_hazard_late_bytes_make_no_difference(programs):
    late, at_once = run(programs), run(programs, copies="eager", hazards="off")
    for program, (values, hazard), (right, _) in zip(programs, late, at_once, strict=True):
        assert hazard or values == right, program


@settings(max_examples=3, **QUICK)
@given(st.lists(programs, min_size=10, max_size=10))
def test_a_program_that_waits_after_everything_has_no_hazard_and_the_right_values(programs):
    programs = [guarded(program) for program in programs]
    late, at_once = run(programs), run(programs, copies="eager", hazards="off")
    assert not any(hazard for _, hazard in late) and late == at_once


# Which bytes a view covers


def covered(tensor):
    """Every element, one by one."""
    return {
        sum(place * stride for place, stride in zip(places, tensor.stride(), strict=True))
        for places in product(*map(range, tensor.shape))
    }


slices = st.tuples(st.integers(0, 5), st.integers(0, 6), st.integers(1, 3)).map(lambda s: slice(*s))


@given(slices, slices, slices, st.permutations(range(3)), st.booleans())
def test_a_view_covers_its_own_elements(first, second, third, order, expanded):
    view = torch.empty(5, 6, 7)[first, second, third].permute(*order)
    if expanded:
        view = view[None].expand(3, *view.shape)
    found = {element for start, end in pieces(view) for element in range(start, end)}
    assert found == covered(view)
    assert len(pieces(view)) <= ROWS


def test_a_view_of_many_rows_covers_the_space_between_them():
    view = torch.empty(ROWS + 1, 8)[:, :3]
    assert pieces(view) == [(0, 8 * ROWS + 3)]
    assert len(pieces(view[:ROWS])) == ROWS


@given(st.integers(1, 3 * WHOLE), st.data())
def test_a_checksum_tells_every_changed_byte(size, data):
    before = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    after = before.copy()
    after[data.draw(st.integers(0, size - 1))] ^= data.draw(st.integers(1, 255))
    assert checksum(before.data) != checksum(after.data) and checksum(before.data) == checksum(before.copy().data)


def test_a_checksum_tells_another_order():
    labels = np.random.default_rng(0).integers(0, 10, 4 * WHOLE).astype(np.int64)
    assert checksum(labels.view(np.uint8).data) != checksum(np.sort(labels).view(np.uint8).data)
