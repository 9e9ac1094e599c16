"""DataLoader on the emulated host: real data from real workers, in virtual time, the same in every run."""

import contextlib
import gc
import multiprocessing.queues
import os
import select
import threading
import time
import warnings
from collections import namedtuple
from dataclasses import replace
from itertools import pairwise
from multiprocessing import synchronize
from typing import ClassVar

import numpy as np
import pytest
import torch
from factory import STARTS_A_THREAD, in_threads
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
    get_worker_info,
)
from torchdata.stateful_dataloader import StatefulDataLoader

import loaderviz as lv
from loaderviz import intervals
from loaderviz.emulator import Host, host
from loaderviz.emulator.hardware import Parcel
from loaderviz.emulator.torch import dataloader, patches
from loaderviz.imports import WorkersError
from loaderviz.timeline import Kind

HOST = Host.preset("laptop")
Pair = namedtuple("Pair", "images labels")


class Squares(Dataset):
    """Sample i is i * i; each costs `seconds`; sample `bad` raises."""

    def __init__(self, length=12, seconds=0.0, bad=None):
        self.length, self.seconds, self.bad = length, seconds, bad

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index == self.bad:
            raise ValueError(f"sample {index} is bad")
        time.sleep(self.seconds)
        return torch.tensor(float(index * index))


class Stream(IterableDataset):
    """Counts, shared out among the workers."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return (torch.tensor(float(number)) for number in range(first, 8, step))


class Batched(Squares):
    """Gives whole batches."""

    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Rows:
    """A batch of a class that torch does not know."""

    def __init__(self, samples):
        self.values = torch.stack(samples)


class Boxed(Rows):
    """One that can be pinned."""

    def pin_memory(self):
        self.values = self.values.pin_memory()
        return self


def as_pair(samples):
    values = torch.stack(samples)
    return Pair(values, {"double": values * 2, "name": "x"})


def values_of(batch):
    if isinstance(batch, Boxed):
        return batch.values.tolist()
    return (batch[0] if isinstance(batch, (Pair, list)) else batch).tolist()


def recorded(make, **options):
    with lv.record(on="a100", **options) as recording:
        batches = [values_of(batch) for batch in make()]
    return batches, recording.timeline


LOADERS = {
    "no workers": lambda: DataLoader(Squares(), 4),
    "no workers, pinned": lambda: DataLoader(Squares(), 4, pin_memory=True),
    "one worker": lambda: DataLoader(Squares(), 4, num_workers=1),
    "three workers": lambda: DataLoader(Squares(), 2, num_workers=3),
    "pinned": lambda: DataLoader(Squares(), 4, num_workers=2, pin_memory=True),
    "prefetch one": lambda: DataLoader(Squares(), 2, num_workers=2, prefetch_factor=1),
    "persistent": lambda: DataLoader(Squares(), 4, num_workers=2, persistent_workers=True, pin_memory=True),
    "shuffled": lambda: DataLoader(Squares(), 4, shuffle=True, generator=torch.Generator().manual_seed(1)),
    "shuffled by workers": lambda: DataLoader(
        Squares(), 4, shuffle=True, generator=torch.Generator().manual_seed(1), num_workers=2
    ),
    "iterable": lambda: DataLoader(Stream(), 3),
    "iterable with workers": lambda: DataLoader(Stream(), 3, num_workers=2, pin_memory=True),
    "no batches": lambda: DataLoader(Squares(), None),
    "no batches, workers": lambda: DataLoader(Squares(), None, num_workers=2),
    "batch sampler": lambda: DataLoader(
        Squares(), batch_sampler=BatchSampler(SequentialSampler(range(8)), 3, False), num_workers=1
    ),
    "whole batches": lambda: DataLoader(Batched(), 4, num_workers=1),
    "named tuple": lambda: DataLoader(Squares(), 4, collate_fn=as_pair, num_workers=1, pin_memory=True),
    "class of one's own": lambda: DataLoader(Squares(), 4, collate_fn=Boxed, num_workers=1, pin_memory=True),
    "class of one's own, no workers": lambda: DataLoader(Squares(), 4, collate_fn=Boxed, pin_memory=True),
    "drop last": lambda: DataLoader(Squares(), 5, drop_last=True),
    "last is short": lambda: DataLoader(Squares(), 5, num_workers=2),
    "spawned": lambda: DataLoader(Squares(8), 4, num_workers=1, multiprocessing_context="spawn", pin_memory=True),
}


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.inherits("the replaced Meter.calibrate"))])
def test_where_the_host_has_a_price_for_the_data_set_no_time_goes_into_finding_what_the_emulator_takes(
    monkeypatch, workers
):
    def calibrate(*_):
        raise ZeroDivisionError("calibrated")

    monkeypatch.setattr(dataloader.Meter, "calibrate", calibrate)
    priced = torch.arange(8.0)
    assert recorded(lambda: DataLoader(TensorDataset(priced), 4, num_workers=workers))[0] == [
        *map(list, priced.split(4))
    ]
    with pytest.raises(ZeroDivisionError, match="calibrated"):
        recorded(lambda: DataLoader(Squares(), 4, num_workers=workers))


def test_what_the_emulator_takes_of_a_measured_fetch_is_found_once_and_not_before_there_is_one(monkeypatch):
    calls, calibrate = [], dataloader.Meter.calibrate

    def counting(meter):
        calibrate(meter)
        meter.overhead = 0  # a clock may be too coarse to see it
        calls.append(meter.calls)

    monkeypatch.setattr(dataloader.Meter, "calibrate", counting)
    with lv.record(on="a100", host="auto"):
        torch.ones(3, device="cuda")
        assert not calls
        for _ in range(2):
            list(DataLoader(TensorDataset(torch.arange(8.0)), 4))
    assert len(calls) == 1 and calls[0] < 100  # in each of its rounds, which every worker makes, too


@pytest.mark.slow
@pytest.mark.parametrize("name", LOADERS)
def test_every_loader_gives_its_data_twice_with_the_same_timeline(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's advice about this machine
        expected = [values_of(batch) for batch in LOADERS[name]()]
    (batches, timeline), (again, second) = recorded(LOADERS[name]), recorded(LOADERS[name])
    assert batches == again == expected
    assert timeline.where(Kind.FETCH).sum() == len(batches)
    assert list(timeline.rows()) == list(second.rows())  # what is unpriced, a context says by this machine's clock


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's own
@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 2}, {"num_workers": 1, "pin_memory": True, "persistent_workers": True}]
)
def test_torchdatas_loader_has_the_times_of_torchs(options):
    """Lanes, batches and costs; only the range that torch names after the iterator's class differs."""
    found = []
    for kind in (DataLoader, StatefulDataLoader):
        loader = kind(Squares(), 4, **options)
        batches, timeline = recorded(lambda loader=loader: (batch for _ in range(2) for batch in loader))
        spans = [span._replace(name="") for span in timeline.rows()]
        found.append((batches, spans, [span.name for span in timeline.rows(Kind.FETCH, Kind.PIN)]))
    assert found[0] == found[1]
    assert len(found[0][0]) == 6


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_another_thread_iterates_is_noted(workers):
    batches = []
    with lv.record(on="a100", threads=False) as recording:
        in_threads(lambda: batches.extend(DataLoader(Squares(4), 2, num_workers=workers)))
    assert [batch.tolist() for batch in batches] == [[0.0, 1.0], [4.0, 9.0]]
    assert recording.timeline.context.notes == (dataloader.ELSEWHERE,)


@pytest.mark.parametrize("host", [HOST, replace(HOST, fetch_per_sample=1_000_000)], ids=["preset", "one's own"])
@pytest.mark.parametrize("workers", [0, 2])
def test_costs_are_those_of_the_host(workers, host):
    host = replace(host, contention=0)
    _, timeline = recorded(lambda: DataLoader(TensorDataset(torch.zeros(12, 100)), 4, num_workers=workers), host=host)
    fetches, sent = list(timeline.rows(Kind.FETCH)), host.sending(Parcel(1, 1600)) if workers else 0
    assert [span.duration for span in fetches] == [host.fetch_time(4, 1600) + sent] * 3


def test_a_batch_is_pinned_after_its_fetch_and_handed_out_after_that():
    _, timeline = recorded(LOADERS["pinned"])
    by_batch = {kind: {span.batch: span for span in timeline.rows(kind)} for kind in (Kind.FETCH, Kind.PIN)}
    steps = {span.batch: span for span in timeline.rows(Kind.OPERATOR) if span.name == "DataLoader hand-out"}
    for batch, pin in by_batch[Kind.PIN].items():
        assert by_batch[Kind.FETCH][batch].end <= pin.start < pin.end <= steps[batch].start
    pins = sorted(by_batch[Kind.PIN].values(), key=lambda span: span.batch)
    assert all(first.end <= second.start for first, second in pairwise(pins))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_may_be_left_and_begun_anew(workers):
    def program():
        loader = DataLoader(Squares(), 2, num_workers=workers, persistent_workers=workers > 0)
        for batch in loader:
            yield batch
            break
        yield from loader

    batches, timeline = recorded(program)
    assert batches == [[0.0, 1.0], *(values_of(batch) for batch in DataLoader(Squares(), 2))]
    steps = [span for span in timeline.rows(Kind.RANGE) if span.name.startswith("batch ")]
    assert [span.batch for span in steps] == list(range(7))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("inside", ["begin", "end"])
def test_an_iterator_may_be_older_than_the_recording_or_outlive_it(inside, workers):
    here, outside = lv.record(on="a100"), contextlib.nullcontext()
    begin, end = (here, outside) if inside == "begin" else (outside, here)
    with begin:
        source = iter(DataLoader(Squares(), 4, num_workers=workers))
        first = next(source).tolist()
    with end:
        batches = [first, *(batch.tolist() for batch in source)]
    assert batches == [values_of(batch) for batch in DataLoader(Squares(), 4)]


def on_device():
    return TensorDataset(torch.arange(8.0, device="cuda"))


def test_a_data_set_on_the_device_pays_for_its_kernels():
    with lv.record(on="a100") as recording:
        for (batch,) in DataLoader(on_device(), 4):
            assert batch.is_cuda
    assert sum(span.name in ("stack", "cat") for span in recording.timeline.rows(Kind.COMPUTE)) == 2


class ToDevice(Squares):
    """Copies in its `__getitem__`."""

    def __getitem__(self, index):
        return super().__getitem__(index).to("cuda")


def test_copies_inside_the_data_set_are_seen():
    batches, timeline = recorded(lambda: DataLoader(ToDevice(4), 2))
    assert batches == [[0.0, 1.0], [4.0, 9.0]]
    assert timeline.where(Kind.COPY_H2D).sum() == 4


class SlowBeginning(Squares):
    """The first sample takes 20 ms, each other 1 ms."""

    def __getitem__(self, index):
        time.sleep(0.001 if index else 0.02)
        return torch.tensor(index)


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_out_of_order_batches_come_as_they_are_ready_in_virtual_time(persistent_workers):
    def run(in_order):
        with lv.record(on="a100") as recording:
            loader = DataLoader(
                SlowBeginning(), 2, num_workers=2, in_order=in_order, persistent_workers=persistent_workers
            )
            epochs = [[batch.tolist() for batch in loader] for _ in range(2)]
        return epochs, recording.timeline

    in_order, _ = run(True)
    epochs, timeline = run(False)
    assert in_order == [[[first, first + 1] for first in range(0, 12, 2)]] * 2
    # Worker 0 has batches 0 (21 ms) and 2, worker 1 gets the others, one by one, each of which takes 2 ms
    assert epochs == [[[2, 3], [6, 7], [8, 9], [10, 11], [0, 1], [4, 5]]] * 2
    again, other = run(False)
    assert (again, list(other.rows())) == (epochs, list(timeline.rows()))


class Opening(Stream):
    """Opens a file for 20 ms before its first sample, as it is asked for an iterator."""

    def __iter__(self):
        time.sleep(0.02)
        return super().__iter__()


BEGINS = {
    "sleeps": lambda number: time.sleep(0.02),
    "costs": lambda number: lv.costs(0.02).__enter__(),
    "waits": lambda number: lv.costs(waits=0.02).__enter__(),
}


@pytest.mark.parametrize("persistent_workers", [False, True])
@pytest.mark.parametrize("begins", [*BEGINS, "opens"])
def test_what_a_worker_does_before_its_first_order_is_waited_for(begins, persistent_workers):
    """A worker_init_fn, and the beginning of an iterable data set: 20 ms more in the first fetch of each worker."""

    def fetches(streams, init):
        with lv.record(on="a100", host="laptop") as recording:
            options = {"num_workers": 2, "persistent_workers": persistent_workers, "worker_init_fn": init}
            loader = DataLoader(streams(), 2, **options)
            epochs = [[batch.tolist() for batch in loader] for _ in range(2)]
        rows = np.flatnonzero(recording.timeline.where(Kind.FETCH))
        rows = rows[np.argsort(recording.timeline.batch[rows], kind="stable")]
        return epochs, (recording.timeline.end - recording.timeline.start)[rows[recording.timeline.batch[rows] >= 0]]

    plain, without = fetches(Stream, None)
    given, took = fetches(Opening if begins == "opens" else Stream, BEGINS.get(begins))
    first = np.array([1, 1, 0, 0, 1, 1, 0, 0])  # of two workers in two epochs
    if persistent_workers and begins != "opens":  # an iterator is made for each epoch
        first[4:] = 0
    shared = 500_000 if begins == "costs" else 0  # ns: two work at once, and share what the cores share
    assert given == plain and (took - without).tolist() == pytest.approx((20_000_000 * first).tolist(), abs=shared)


class ReallyWaits(Squares):
    """The first sample really waits for 60 ms, unseen; in virtual time it takes 1 ms, and the others take 5 ms."""

    def __getitem__(self, index):
        if not index:
            select.select([], [], [], 0.06)
        time.sleep(0.005 if index else 0.001)
        return torch.tensor(index)


def test_what_a_fetch_really_waits_for_does_not_change_the_order_on_a_named_host():
    with lv.record(on="a100") as recording:
        loader = DataLoader(ReallyWaits(), 1, num_workers=2, in_order=False, prefetch_factor=1)
        assert next(iter(loader)).tolist() == [0]
    assert len(recording.timeline)


class Burns(Squares):
    """Each sample takes 0.3 ms of the processor, by a clock that the test holds, and sleeps 0.1 ms."""

    clock: ClassVar[list[int]] = [0]

    def __getitem__(self, index):
        self.clock[0] += 300_000
        time.sleep(1e-4)
        return super().__getitem__(index)


@pytest.fixture
def held(monkeypatch):
    """The clock of `Burns` is that of the recording, by which nothing waits."""
    monkeypatch.setattr(host, "thread_time_ns", lambda: Burns.clock[0])
    monkeypatch.setattr(dataloader, "others_time", lambda: 0)
    monkeypatch.setattr(dataloader, "JITTER", 10**12)


@pytest.mark.parametrize("pin_memory", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_measured_fetch_counts_once_with_what_it_burnt_and_slept(monkeypatch, held, workers, pin_memory):
    """Burnt and slept time is in the fetches and nowhere else; what the loop burns between them is between them.

    What sending a batch takes is left out here: it is measured by another clock.
    """
    monkeypatch.setattr(dataloader, "thread_time_ns", lambda: 0)

    def run(data, burns):
        with lv.record(on="a100", host="auto") as recording:
            loader = DataLoader(data, 2, num_workers=workers, pin_memory=pin_memory, multiprocessing_context=fork)
            for batch in loader:
                batch.to("cuda", non_blocking=True)
                Burns.clock[0] += burns
        return recording.timeline

    fork = "fork" if workers else None
    queue = HOST.fetch_base if workers else 0
    assert [span.duration for span in run(Squares(6), 0).rows(Kind.FETCH)] == [queue] * 3
    timeline = run(Burns(6), 50_000)
    assert [span.duration for span in timeline.rows(Kind.FETCH)] == [queue + 2 * 400_000] * 3
    main = timeline.where(*set(Kind) - {Kind.RANGE}) & (timeline.lane == timeline.lanes.index(timeline.row(0).lane))
    known = intervals.union(timeline.start[main], timeline.end[main])
    gaps = intervals.subtract(np.array([[timeline.begin, int(known.max())]]), known)
    assert [end - start for start, end in gaps.tolist()] == [50_000] * 2  # the last one comes after all that is seen


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("spun", "told"), [(60_000, False), (60_001, True), (10**9, True)])
def test_threads_that_may_have_waited_for_each_other_are_noted(monkeypatch, held, workers, spun, told):
    """From a tenth of what the fetches took, 600 us of the processor each; never more than that."""
    monkeypatch.setattr(host.WaitingTime, "since", lambda *_: host.Waited(0, spun))
    with lv.record(on="a100", host="auto") as recording:
        for _ in DataLoader(Burns(6), 2, num_workers=workers, multiprocessing_context="fork" if workers else None):
            pass
    assert ("torch.set_num_threads(1)" in str(recording.timeline.context.notes)) is told
    assert all(span.duration < 10**8 for span in recording.timeline.rows(Kind.FETCH))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_measured_fetch_leaves_out_what_the_emulator_asks_at_each_call(monkeypatch, held, workers):
    """Whether a call touches the device: for a batch it looks at each tensor; 1 ms by the clock of the test."""

    touches = patches.touches_device

    def asked(*call):
        Burns.clock[0] += 10**6
        return touches(*call)

    for module in (patches, dataloader):
        monkeypatch.setattr(module, "touches_device", asked)
    with lv.record(on="a100", host="auto") as recording:
        list(DataLoader(Burns(6), 2, num_workers=workers, multiprocessing_context="fork" if workers else None))
    took = [span.duration for span in recording.timeline.rows(Kind.FETCH)]
    assert took == [HOST.fetch_base * workers + 2 * 400_000] * 3
    assert workers or Burns.clock[0] > 10**7, "nothing was asked"


def test_the_main_thread_pays_for_new_pages_once_when_it_pins_a_workers_batch():
    host = replace(Host.preset("laptop"), page_lock_base=0, page_lock_per_gib=0)
    data = TensorDataset(torch.zeros(4, 2**18))
    with lv.record(on="a100", host=host) as recording:
        for (batch,) in DataLoader(data, 4, num_workers=1):
            batch.pin_memory()
            batch.pin_memory()  # by now its pages are mapped
    first, second = (span.duration for span in recording.timeline.rows(Kind.PIN))
    assert first - second == 2**22 // 4096 * host.first_read
    assert second == host.dispatch + host.pin_time(2**22)


class Additions(Squares):
    """A sample is many small calls of torch."""

    def __getitem__(self, index):
        x = torch.zeros(1)
        for _ in range(2_000):
            x = x + 1
        return x


@pytest.mark.slow
@pytest.mark.this_clock
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.inherits("the replaced Meter.calibrate"))])
def test_what_the_emulator_does_in_a_fetch_is_not_called_unpriced(monkeypatch, workers):
    """Its own part is most of what such calls take in a recording; this machine is busier at some times than others."""

    def unpriced():
        with lv.record(on="a100", host="laptop") as recording:
            for _ in DataLoader(Additions(4), 1, num_workers=workers):
                pass
        return recording.unpriced["data set"]

    counted, all_of_it = [], []
    while len(counted) < 12 and (len(counted) < 2 or min(counted) > 0.5 * min(all_of_it)):
        counted.append(unpriced())
        with monkeypatch.context() as uncalibrated:
            uncalibrated.setattr(dataloader.Meter, "calibrate", lambda self: None)
            all_of_it.append(unpriced())
    assert min(counted) < 0.7 * min(all_of_it)


SLOW = replace(HOST, crowding=1_000)


def copied(loaders=(), draws=(), *, size=20_000_000):
    """Return how long a pageable copy lasts [ns] after so many draws of the loaders, of which none are dropped."""
    data = torch.zeros(size, dtype=torch.uint8)
    with lv.record(on="a100", host=SLOW) as recording:
        iterators = [iter(make()) for make in loaders]
        for iterator, count in zip(iterators, draws, strict=True):
            for _ in range(count):
                next(iterator, None)
        data.to("cuda")
    timeline = recording.timeline
    (copy,) = timeline.where(Kind.COPY_H2D).nonzero()[0]
    return int(timeline.end[copy] - timeline.start[copy])


def loader(length, workers, **options):
    return lambda: DataLoader(Squares(length, 0.05), 1, num_workers=workers, **options)


def test_busy_workers_of_every_loader_that_lives_slow_a_copy():
    """Each of them by its whole time: a second loader neither hides the first nor counts once its epoch is over."""
    alone, training = copied(), loader(40, 4)
    beside = copied([training], [1])
    assert beside > 4 * alone
    over = loader(2, 2, persistent_workers=True)
    assert copied([training, over], [1, 3]) == beside
    assert copied([training, loader(40, 2)], [1, 1]) > beside + alone
    assert copied([over], [3]) == copied([loader(2, 2)], [2]) == alone, "there was no third batch to order"
    assert copied([loader(1, 4)], [1]) == alone, "three workers never had an order"


def test_two_loaders_at_work_have_lanes_of_their_own():
    """As in a recorded run: the second one's are named so, and the third takes the place of one whose epoch is over."""
    with lv.record(on="a100", host=HOST) as recording:
        training = iter(loader(8, 2, pin_memory=True)())
        for length in (2, 3):
            for _ in loader(length, 1)():
                next(training)
    lanes = [lane for lane in recording.timeline.lanes if lane.role in ("worker", "pin")]
    assert {(lane.name, lane.number) for lane in lanes} == {
        ("worker 0", 0),
        ("worker 1", 1),
        ("pin thread", 0),
        ("worker 0 (loader 2)", 1_000),
    }


def test_batches_of_every_loader_share_the_memory_of_workers():
    """Each loader has up to five batches of 1 MB in it; one whose epoch is over has none."""

    def notes(*lengths):
        data = [TensorDataset(torch.zeros(length, 250_000)) for length in lengths]
        with lv.record(on="a100", host=replace(HOST, shm=7_000_000)) as recording:
            loaders = [DataLoader(each, 1, num_workers=2, persistent_workers=True) for each in data]
            for each in map(iter, loaders):
                next(each), next(each, None)
        return [note for note in recording.timeline.context.notes if "shared memory" in note]

    assert notes(10) == notes(1, 10) == []
    (note,) = notes(10, 10)
    assert "take up to 10 MB" in note


def refusing(error, *_, **__):
    raise error


REFUSALS = {
    "a process": (os, "fork", BlockingIOError(11, "Resource temporarily unavailable")),
    "the second process": (os, "fork", PermissionError(1, "Operation not permitted")),
    "a semaphore": (synchronize._multiprocessing, "SemLock", OSError(38, "Function not implemented")),
    "a thread": (threading, STARTS_A_THREAD, RuntimeError("can't start new thread")),
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's own, of half an iterator
@pytest.mark.parametrize("on", ["a100", "cpu"])
@pytest.mark.parametrize("what", REFUSALS)
def test_where_workers_may_not_start_one_sentence_says_so(monkeypatch, on, what):
    """As in a sandbox, or under a limit of processes; without workers the same goes well."""
    owner, name, error = REFUSALS[what]
    answers = [getattr(owner, name)] * (what == "the second process")

    def refuse(*args, **options):
        return answers.pop()(*args, **options) if answers else refusing(error)

    batches = []
    with lv.record(on=on, host=HOST):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, refuse)
            with pytest.raises(WorkersError, match=r"num_workers=2.*not let.*start.*num_workers=0") as caught:
                list(DataLoader(Squares(4), 2, num_workers=2, multiprocessing_context="fork", pin_memory=on != "cpu"))
        batches += DataLoader(Squares(4), 2)
    assert caught.value.__cause__ is error and str(error) in str(caught.value) and len(batches) == 2
    assert isinstance(caught.value, OSError) and isinstance(caught.value, RuntimeError)
    assert not multiprocessing.active_children()


class Unpicklable(Squares):
    def __reduce__(self):
        return refusing(RuntimeError("this one is not to be copied"))


@pytest.fixture
def closed_once(monkeypatch):
    """A queue is closed when its thread has ended. Else both may close one number of the system's, which another file
    has by then: in 5 of 80 halves of an iterator, without loaderviz, too.
    """
    close = multiprocessing.queues.Queue.close

    def closed(queue):
        close(queue)
        if queue._thread:
            queue._thread.join()

    monkeypatch.setattr(multiprocessing.queues.Queue, "close", closed)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's own, of half an iterator
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of its queue
@pytest.mark.parametrize("on", ["a100", "cpu"])
def test_errors_of_the_program_while_workers_start_are_its_own(on, closed_once):
    def sampler():
        yield refusing(OSError("no list of samples"))

    with lv.record(on=on, host=HOST):
        with pytest.raises(OSError, match=r"^no list of samples$"):
            iter(DataLoader(Squares(4), 2, num_workers=1, sampler=sampler(), multiprocessing_context="fork"))
        gc.collect()  # torch's half iterator goes here, and not in the midst of an import
        with pytest.raises(RuntimeError, match=r"^this one is not to be copied$"):
            iter(DataLoader(Unpicklable(), 2, num_workers=1, multiprocessing_context="spawn"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's own
@pytest.mark.parametrize("make", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("pin_memory", [False, True])
@pytest.mark.parametrize("on", ["a100", "cpu"])
def test_workers_leave_with_the_error_that_one_of_them_sent(on, pin_memory, make, uncollected):
    """No garbage collection is needed, in which each is waited for in vain: none is left when the error is gone."""
    options = {"num_workers": 2, "multiprocessing_context": "fork", "pin_memory": pin_memory and on != "cpu"}
    with lv.record(on=on, host=HOST):
        for raised in (ValueError, KeyError):
            try:
                for batch in make(Squares(12, bad=5 if raised is ValueError else None), 2, **options):
                    if raised is KeyError and batch[0] > 9:
                        raise KeyError("of the loop itself")
            except raised:
                pass
            assert not [each for each in threading.enumerate() if each.name == "loaderviz pin thread"]
            assert not multiprocessing.active_children()


class Whole(Dataset):
    """It gives all samples of a batch at once, and fails after many views."""

    table = torch.zeros(400, 2)

    def __len__(self):
        return 8

    def __getitems__(self, indices):
        raise IndexError(f"there is no row {len([self.table[row] for row in range(400)])}")

    def __getitem__(self, index):
        return self.__getitems__([index])


@pytest.mark.parametrize("options", [{"batch_size": 4}, {"batch_size": None}])
def test_a_fetch_that_fails_pays_for_nothing_that_it_took_however_its_samples_are_asked_for(options):
    with lv.record(on="a100") as recording, pytest.raises(IndexError):
        list(DataLoader(Whole(), **options))
    assert recording.timeline.where(Kind.FETCH).sum() == 0


@pytest.mark.parametrize(("kind", "pins"), [(Rows, False), (Boxed, True)])
def test_a_batch_whose_class_has_no_pin_memory_is_not_pinned_and_a_note_says_so(kind, pins):
    with lv.record(on="a100") as recording:
        loader = DataLoader(torch.ones(24, 4096), 8, num_workers=1, pin_memory=True, collate_fn=kind)
        assert [batch.values.is_pinned() for batch in loader] == 3 * [pins]
    assert recording.timeline.where(Kind.PIN).sum() == 3 * pins
    said = [
        note for note in recording.timeline.context.notes if "pin_memory=True leaves a batch of the class Rows" in note
    ]
    assert len(said) == (not pins)
