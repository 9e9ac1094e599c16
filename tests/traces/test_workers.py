"""What DataLoader workers and pin thread do is recorded where it happens, and nothing else changes for them."""

import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import datasets
import pytest
import torch
from factory import Samples
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, _utils
from torch.utils.data import dataloader as torch_dataloader
from trace_files import record_cpu

import loaderviz as lv
from loaderviz import machine
from loaderviz.errors import NotSentError
from loaderviz.machine import Usage
from loaderviz.timeline import Cause, Kind
from loaderviz.traces import live, workers
from loaderviz.traces.workers import RECORD, Fetch, What, read_files

ITERATORS = torch_dataloader._BaseDataLoaderIter, torch_dataloader._MultiProcessingDataLoaderIter
FETCHERS = _utils.fetch._MapDatasetFetcher, _utils.fetch._IterableDatasetFetcher
OWNERS = _utils.worker, _utils.pin_memory, *ITERATORS, *FETCHERS


def batches(dataset, epochs=1, seed=3, **options):
    """All batches of a DataLoader, as plain values; an error that ends it, as its type and message."""
    torch.manual_seed(seed)
    loader = DataLoader(dataset, generator=torch.Generator().manual_seed(seed), **options)
    found, iterator = [], None
    try:
        for _ in range(epochs):
            iterator = iter(loader)
            found.append([pickle.loads(pickle.dumps(batch)) for batch in iterator])
    except Exception as error:
        found.append((type(error), str(error).splitlines()[-1]))
    finally:
        if options["num_workers"] and iterator is not None:
            iterator._shutdown_workers()  # torch's error holds the iterator until the garbage collector comes
    return str(found)


def recorded(dataset, **options):
    """The same under a recording: what came out, and the timeline."""
    with lv.record(on="cpu") as recording:
        found = batches(dataset, **options)
    return found, recording.timeline.self_check()


def fetches(timeline):
    """(lane, name) of all fetches of the workers, in order of start."""
    return [(row.lane.name, row.name) for row in timeline.rows(Kind.FETCH) if row.lane.role == "worker"]


def check_times(timeline, error=20_000):
    """A fetch ends before its batch is handed out; a worker does one thing at a time."""
    handed_out = {row.batch: row.start for row in timeline.rows(Kind.RANGE) if row.name.startswith("batch ")}
    for row in timeline.rows(Kind.FETCH, Kind.PIN):
        if row.batch in handed_out and row.lane.role != "main":
            assert row.end <= handed_out[row.batch] + error
    for lane in timeline.lanes:
        if lane.role in ("worker", "pin"):
            mine = [row for row in timeline.rows() if row.lane == lane]
            assert all(first.end <= second.start for first, second in pairwise(mine))


# The same batches, errors and ends as without a recording, whatever the options


SAME = {
    "shuffled": (datasets.Squares(), {"num_workers": 2, "batch_size": 4, "shuffle": True}),
    "no workers": (datasets.Squares(), {"num_workers": 0, "batch_size": 4, "shuffle": True}),
    "no batches": (datasets.Squares(), {"num_workers": 2, "batch_size": None}),
    "persistent": (datasets.Squares(), {"num_workers": 2, "batch_size": 4, "persistent_workers": True, "epochs": 3}),
    "init function": (
        datasets.Squares(),
        {"num_workers": 2, "batch_size": 4, "epochs": 2, "worker_init_fn": datasets.count_calls},
    ),
    "uneven": (datasets.Uneven(), {"num_workers": 2, "batch_size": 2}),
    "uneven persistent": (
        datasets.Uneven(),
        {"num_workers": 2, "batch_size": 2, "persistent_workers": True, "epochs": 2},
    ),
    "uneven no workers": (datasets.Uneven(), {"num_workers": 0, "batch_size": 2}),
    "error": (datasets.Failing(), {"num_workers": 2, "batch_size": 4}),
    "error no workers": (datasets.Failing(), {"num_workers": 0, "batch_size": 4}),
    "error in init": (
        datasets.Squares(),
        {"num_workers": 1, "batch_size": 4, "worker_init_fn": datasets.raise_in_worker},
    ),
    "timeout": (datasets.Failing("sleep"), {"num_workers": 1, "batch_size": 4, "timeout": 3}),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same_comes_out(name):
    dataset, options = SAME[name]
    plain = batches(dataset, **options)
    found, timeline = recorded(dataset, **options)
    assert found == plain
    check_times(timeline)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_any_start_method_and_nothing_heavy_in_the_worker(method):
    options = {"num_workers": 1, "batch_size": 2, "persistent_workers": True, "epochs": 2}
    found, timeline = recorded(datasets.Modules(), multiprocessing_context=method, **options)
    assert found.count("tensor([0, 0])") == 3 * 2 * 2
    assert fetches(timeline) == [("worker 0", f"fetch batch {batch}") for batch in range(4)]
    check_times(timeline)
    notes = " ".join(timeline.context.notes)  # a fork server has torch ready
    assert ("the start of 1 worker took " in notes) == (method == "spawn")
    _, timeline = recorded(datasets.Squares(), num_workers=2, batch_size=4)
    assert "the start of" not in " ".join(timeline.context.notes)  # forked, which takes ms


def test_a_forked_worker_does_not_record_operators_for_nobody(monkeypatch):
    """It has its parent's profiler, running; a worker that was spawned has none."""
    asked = []
    monkeypatch.setattr(torch.autograd, "_enable_record_function", asked.append)
    workers.RecordedLoop(Path(), 0, lambda: None)()
    assert asked == []
    with lv.record(on="cpu"):
        workers.RecordedLoop(Path(), 0, lambda: None)()
    assert asked == [False]


def test_batches_that_overtake_others_keep_their_numbers():
    """With in_order=False the hand-outs are numbered in the order in which they come."""
    found, timeline = recorded(datasets.Napping(), num_workers=2, batch_size=4, in_order=False)
    first_samples = [int(batch[0][0][0]) for batch in eval(found, {"tensor": torch.tensor, "torch": torch})[0]]
    assert sorted(first_samples) == list(range(0, 24, 4))
    slow = first_samples.index(0)
    assert slow > 0, "the first batch was to be overtaken"
    assert sorted(int(name.split()[-1]) for _, name in fetches(timeline)) == list(range(6))
    longest = max(timeline.rows(Kind.FETCH), key=lambda row: row.duration)
    assert longest.name == f"fetch batch {slow}"
    check_times(timeline)


def test_what_is_fetched_and_never_handed_out_says_so():
    with lv.record(on="cpu") as recording:
        for _ in DataLoader(datasets.Squares(), batch_size=4, num_workers=1, prefetch_factor=3):
            break
    names = [name for _, name in fetches(recording.timeline)]
    assert names[0] == "fetch batch 0"
    assert set(names[1:]) <= {"fetch (not handed out)"}
    assert {row.batch for row in recording.timeline.rows(Kind.FETCH)} <= {0, -1}


def test_an_error_in_a_worker_is_a_failed_fetch():
    _, timeline = recorded(datasets.Failing(), num_workers=1, batch_size=4)
    assert [name for _, name in fetches(timeline)][:3] == ["fetch batch 0", "fetch batch 1", "failed fetch"]


@pytest.mark.parametrize("how", ["kill", "leave"])
def test_the_records_outlive_a_worker_that_dies(how, tmp_path, monkeypatch):
    """Though the system tells of its death while the timeline is built, where torch raises an error, too."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    told = live.read_kineto
    monkeypatch.setattr(live, "read_kineto", lambda document: (os.kill(os.getpid(), signal.SIGCHLD), told(document))[1])
    recording = lv.record(on="cpu")
    with pytest.raises(RuntimeError, match="DataLoader worker"), recording:
        list(DataLoader(datasets.Failing(how), batch_size=4, num_workers=1, collate_fn=len))
    names = [name for _, name in fetches(recording.timeline.self_check())]
    assert len(names) == 3
    assert names[-1] == "fetch (not ended)"
    assert any("RuntimeError ended the block; what came before" in note for note in recording.timeline.context.notes)
    assert not list(tmp_path.glob("loaderviz*"))
    assert callable(signal.getsignal(signal.SIGCHLD))  # torch's


@pytest.mark.inherits("the refusal that the test put into torch")
@pytest.mark.parametrize("on", ["cpu", "a100"])
@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (
            RuntimeError("unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)"),
            "--shm",
        ),
        (OSError("AF_UNIX path too long"), "TMPDIR"),
        (OSError(24, "Too many open files"), "Too many open files"),
        (type("Local", (Exception,), {})("no class that can be sent"), "no class that can be sent"),
    ],
)
def test_a_batch_that_cannot_be_sent_is_an_error_and_no_wait_for_ever(on, refused, told, monkeypatch):
    # in the forked workers, too
    monkeypatch.setattr(torch.UntypedStorage, "_share_fd_cpu_", lambda storage: refuse(refused))
    # torch.stack leaves it to the queue to put the batch into shared memory.
    loader = DataLoader([torch.ones(3)] * 4, 2, num_workers=1, collate_fn=torch.stack, timeout=20)
    with pytest.raises((RuntimeError, OSError), match=told) as caught, lv.record(on=on):
        list(loader)
    assert isinstance(caught.value, NotSentError) == (told in ("--shm", "TMPDIR"))


class Wordless(ValueError):
    def __str__(self):
        return None


def refuse(error, *_):
    raise error


@pytest.mark.parametrize("on", ["cpu", "a100"])
@pytest.mark.parametrize("error", [ValueError("my cache: AF_UNIX path too long for my own socket"), Wordless()])
def test_an_error_of_the_data_set_stays_its_own(on, error):
    with pytest.raises(ValueError) as caught, lv.record(on=on):
        list(DataLoader(Samples(partial(refuse, error)), 2, num_workers=1))
    assert type(caught.value) is type(error)


def test_two_loaders_at_once_have_lanes_of_their_own():
    with lv.record(on="cpu") as recording:
        pairs = zip(*(DataLoader(datasets.Squares(), batch_size=8, num_workers=1) for _ in range(2)), strict=True)
        assert len(list(pairs)) == 3
    lanes = sorted((lane.name, lane.role) for lane in recording.timeline.lanes)  # which worker is seen first is chance
    assert lanes == [("main", "main"), ("worker 0", "worker"), ("worker 0 (loader 2)", "worker")]


def test_epochs_share_their_lanes_and_number_their_batches_on():
    _, timeline = recorded(datasets.Squares(), num_workers=1, batch_size=8, epochs=3)
    assert fetches(timeline) == [("worker 0", f"fetch batch {batch}") for batch in range(9)]


def test_workers_older_than_the_recording_are_told_of():
    iterator = iter(DataLoader(datasets.Squares(), batch_size=4, num_workers=1))
    next(iterator)
    with lv.record(on="cpu") as recording:
        rest = list(iterator)
    assert len(rest) == 5
    assert fetches(recording.timeline) == []
    assert "being iterated when the recording began" in "; ".join(recording.timeline.context.notes)


def test_workers_that_live_on_stop_recording_and_go_on_working():
    loader = DataLoader(datasets.Squares(), batch_size=4, num_workers=1, persistent_workers=True)
    with lv.record(on="cpu") as recording:
        list(loader)
    assert len(fetches(recording.timeline)) == 6
    assert [len(list(loader)) for _ in range(2)] == [6, 6]
    with lv.record(on="cpu") as recording:
        assert len(list(loader)) == 6
    assert fetches(recording.timeline) == []


# Everything is put back


def state():
    return [dict(vars(owner)) for owner in OWNERS]


def test_after_the_last_step_nothing_more_is_kept():
    with lv.record(on="cpu", steps=3) as recording:
        kept = []
        for step, _ in enumerate(DataLoader(torch.arange(400.0), 2, num_workers=2)):
            if step in (50, 199):
                logs = sum(file.stat().st_size for file in recording._run._folder.iterdir())
                kept.append((logs, len(recording._run._loader.batches), recording._run._loader.sampler._stopped))
    assert kept[0] == kept[1] and kept[0][1:] == (4, True)
    assert {row.batch for row in recording.timeline.rows(Kind.FETCH)} >= {0, 1, 2}


def test_torch_is_as_it_was_after_the_block_and_after_an_error():
    before = state()
    with lv.record(on="cpu"):
        assert state() != before
        list(DataLoader(datasets.Squares(), batch_size=4, num_workers=1))
    assert state() == before
    with pytest.raises(ZeroDivisionError), lv.record(on="cpu"):
        iterator = iter(DataLoader(datasets.Squares(), batch_size=4, num_workers=1))
        next(iterator)
        raise ZeroDivisionError
    assert state() == before


@pytest.mark.parametrize("lacking", ["_worker_loop(index_queue=…)", "a future name"])
def test_a_torch_without_these_parts_is_recorded_without_workers(monkeypatch, lacking):
    monkeypatch.setattr(workers, "can_record", lambda: lacking)
    found, timeline = recorded(datasets.Squares(), num_workers=1, batch_size=4)
    assert found == batches(datasets.Squares(), num_workers=1, batch_size=4)
    assert fetches(timeline) == []
    assert f"has no {lacking}: the DataLoader's work is not in the timeline" in "; ".join(timeline.context.notes)


def test_this_torch_has_all_that_is_needed(monkeypatch):
    assert workers.can_record() == ""
    monkeypatch.setattr(_utils.worker, "_worker_loop", lambda dataset, index_queue, worker_id: None)
    assert workers.can_record() == "torch.utils.data._utils.worker._worker_loop(data_queue=…)"
    monkeypatch.delattr(_utils.worker, "_worker_loop")
    assert workers.can_record() == "torch.utils.data._utils.worker._worker_loop"


def test_a_worker_that_cannot_write_works_all_the_same(tmp_path):
    taken = []

    def loop(dataset, index_queue, data_queue, worker_id):
        taken.append((index_queue, data_queue, worker_id))

    workers.RecordedLoop(tmp_path / "absent", 0, loop)("data", "orders", "results", 5)
    assert taken == [("orders", "results", 5)]


# The pin thread


class Batch:
    """Stands for a tensor; pinning it takes a while."""

    def __init__(self, value):
        self.value = value

    def pin_memory(self):
        if self.value == "bad":
            raise MemoryError("no page to lock")
        time.sleep(0.01)
        return f"pinned {self.value}"


def pin_loop(items, folder, monkeypatch, num_workers):
    """Run torch's pin loop in our stand-in on these items, as its thread does; return what it sends and the log."""
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    done, incoming, outgoing = threading.Event(), queue.Queue(), queue.Queue()
    threads = torch.get_num_threads()
    (folder / workers.RUNNING).touch()
    run = workers.RecordedLoop(folder, 4, _utils.pin_memory._pin_memory_loop, num_workers)
    thread = threading.Thread(target=run, args=(incoming, outgoing, 0, done, None))
    thread.start()
    for item in items:
        incoming.put(item)
    sent = [outgoing.get(timeout=20) for _ in items]
    done.set()
    incoming.put((None, None))
    thread.join(timeout=20)
    assert not thread.is_alive()
    torch.set_num_threads(threads)
    return sent, read_files(folder)[0]


def test_the_pin_thread_pins_as_before_and_only_its_work_is_noted(tmp_path, monkeypatch):
    """Errors of workers, ends and resumptions pass through; an error while pinning goes to the main thread."""
    resume, stop = _utils.worker._ResumeIteration(), _utils.worker._IterableDatasetStopIteration(0)
    try:
        raise KeyError("mine")
    except KeyError:
        error = ExceptionWrapper(where="in a worker")
    items = [(0, Batch("a")), (1, error), (2, stop), (resume, None), (3, [Batch("old")]), (4, Batch("bad"))]
    sent, log = pin_loop([*items, (resume, None), (0, Batch("b"))], tmp_path, monkeypatch, num_workers=2)
    assert [index for index, _ in sent] == [0, 1, 2, resume, 3, 4, resume, 0]
    assert (sent[0][1], sent[1][1], sent[4][1], sent[7][1]) == ("pinned a", error, ["pinned old"], "pinned b")
    with pytest.raises(MemoryError, match="no page to lock"):
        sent[5][1].reraise()
    fetches = [(fetch.iterator, fetch.worker, fetch.epoch, fetch.order, fetch.failed) for fetch in log]
    assert fetches == [(4, -1, 0, 0, False), (4, -1, 0, 3, False), (4, -1, 1, 0, False)]
    assert all(fetch.end - fetch.start >= 10_000_000 for fetch in log)
    assert all(first.end <= second.start for first, second in pairwise(log))


def collate(samples):
    return Batch(len(samples))


def test_the_pin_thread_of_a_dataloader_has_a_lane(monkeypatch):
    """Torch starts its pin thread where there is an accelerator; here it is only told so. All else is real."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    with lv.record(on="cpu") as recording:
        options = {"num_workers": 2, "pin_memory": True, "collate_fn": collate, "persistent_workers": True}
        loader = DataLoader(datasets.Squares(), batch_size=6, **options)
        assert [list(loader) for _ in range(2)] == [["pinned 6"] * 4] * 2
        del loader
    timeline = recording.timeline.self_check()
    pins = [(row.lane.name, row.lane.role, row.name, row.batch, row.pinned) for row in timeline.rows(Kind.PIN)]
    assert sorted(pins) == [("pin thread", "pin", f"pin batch {batch}", batch, True) for batch in range(8)]
    check_times(timeline)
    ends = {row.batch: row.end for row in timeline.rows(Kind.FETCH)}
    assert all(ends[row.batch] <= row.start for row in timeline.rows(Kind.PIN))
    waits = list(timeline.rows(Kind.WAIT))
    assert waits
    assert {(row.name, row.cause) for row in waits} == {("waiting for data", Cause.DATA)}


SUMS = Samples(lambda index: torch.tensor(sum(range(200_000 + index))), 8)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.inherits("the replaced clocks"))])
@pytest.mark.parametrize(("switches", "waits"), [([5], False), ([-1], True), (range(1_000), True)])
def test_what_a_hypervisor_takes_is_no_waiting(workers, switches, waits, monkeypatch):
    """A thread's clock that goes on half as fast is one of a machine whose cores are given to another one."""
    told = iter(switches)
    monkeypatch.setattr(machine, "thread_time_ns", lambda: time.thread_time_ns() // 2)
    monkeypatch.setattr(machine, "thread_lacked", lambda: 0)
    monkeypatch.setattr(machine, "switches", lambda: next(told, switches[-1]))
    timeline = record_cpu(lambda: list(DataLoader(SUMS, batch_size=4, num_workers=workers)))
    fetches = timeline.where(Kind.FETCH)
    assert fetches.sum() == 2 and (timeline.waited[fetches] > 100_000).all() == waits
    assert waits or not timeline.waited[fetches].any()


# The files


def packed(what, epoch, order, now, size, busy=None, switches=-1, cause=Cause.NONE):
    """A record; the thread is `busy` all the time, unless it is told."""
    return RECORD.pack(what, epoch, order, now, size, cause, -1, 0, 0, 0, 0, now if busy is None else busy, switches, 0)


def at_work(time):
    return Usage(busy=time, switches=0)


def write(folder, iterator, worker, *records, cut=0):
    data = b"".join(packed(*record) for record in records)
    (folder / f"{iterator}-{worker}").write_bytes(data[: len(data) - cut])


def test_beginnings_and_ends_are_joined(tmp_path):
    records = [
        (What.BEGAN, 0, 0, 100, -1),
        (What.ENDED, 0, 0, 150, 64),
        (What.BEGAN, 0, 2, 160, -1),
        (What.FAILED, 0, 2, 170, -1),
        (What.BEGAN, 0, 4, 180, -1),
        (What.EXHAUSTED, 0, 4, 185, -1),
        (What.BEGAN, 0, 6, 190, -1),
        (What.BEGAN, 1, 0, 200, -1),
        (What.ENDED, 1, 0, 230, 32),
        (What.BEGAN, 1, 2, 240, -1),
        (What.LEFT, 1, 0, 250, -1),
    ]
    write(tmp_path, 2, 1, *records)
    write(tmp_path, 2, 0, (What.LEFT, 0, 0, 245, -1))
    write(tmp_path, 3, 0, (What.LEFT, 0, 0, 245, -1))
    write(tmp_path, 3, 1)
    (tmp_path / "trace.json").write_text("{}")  # no records
    fetches = [
        Fetch(2, 1, 0, 0, 100, 150, 64, used=at_work(50)),
        Fetch(2, 1, 0, 2, 160, 170, -1, failed=True, used=at_work(10)),
        Fetch(2, 1, 1, 0, 200, 230, 32, used=at_work(30)),
    ]
    assert read_files(tmp_path)[:2] == (fetches, {2: 250})


@pytest.mark.parametrize(
    ("busy", "switches", "waited", "cause"),
    [
        (60, (4, 4), 0, Cause.TRANSFORM),  # a hypervisor took 40 of 100 ns
        (60, (4, 5), 40, Cause.TRANSFORM),  # it let go of its core, but most of the query is work
        (40, (4, 5), 60, Cause.INPUT),
        (40, (4, 4), 0, Cause.TRANSFORM),
        (40, (-1, -1), 60, Cause.INPUT),  # Windows does not tell
        (0, (0, 1), 100, Cause.INPUT),
    ],
)
def test_who_never_let_go_of_a_core_has_not_waited(tmp_path, busy, switches, waited, cause):
    began, ended = switches
    records = (What.BEGAN, 0, 0, 100, -1, 7, began), (What.ENDED, 0, 0, 200, 64, 7 + busy, ended, Cause.INPUT)
    write(tmp_path, 0, 0, *records)
    ((fetch,), *_) = read_files(tmp_path)
    assert (fetch.waited, fetch.cause) == (waited, cause)


def test_the_start_of_a_worker_is_what_its_process_took_before_its_first_order(tmp_path):
    write(tmp_path, 0, 0, (What.BEGAN, 0, 0, 100, -1, 7), (What.ENDED, 0, 0, 150, 64, 40), (What.BEGAN, 0, 2, 160, -1))
    write(tmp_path, 0, 1, (What.BEGAN, 0, 1, 100, -1, 5))
    write(tmp_path, 1, 1, (What.BEGAN, 0, 3, 100, -1, 90))  # it had orders before this recording
    write(tmp_path, 1, 0, (What.BEGAN, 1, 0, 100, -1, 90))
    write(tmp_path, 2, 0, (What.LEFT, 0, 0, 100, -1, 90))
    write(tmp_path, 2, 1)
    write(tmp_path, 2, 2, (What.BEGAN, 0, 2, 100, -1, 90), cut=1)
    write(tmp_path, 3, "pin", (What.BEGAN, 0, 0, 100, -1, 90))
    (tmp_path / "0-0.lines").write_text("a line")
    assert read_files(tmp_path)[2] == [7, 5]


@pytest.mark.parametrize("cut", [1, RECORD.size - 1])
def test_a_record_that_was_cut_off_is_left_out(tmp_path, cut):
    write(tmp_path, 0, 0, (What.BEGAN, 0, 0, 100, -1), (What.ENDED, 0, 0, 150, 64), cut=cut)
    assert read_files(tmp_path)[:2] == ([Fetch(0, 0, 0, 0, 100, None)], {})


def test_a_log_ends_when_its_file_is_deleted(tmp_path):
    path = tmp_path / "0-0"
    log = workers.FileLog(path)
    (tmp_path / workers.RUNNING).touch()
    log.received((0, [1, 2]), 100)
    kept = os.open(path, os.O_RDONLY)
    path.unlink()
    log.sent((0, torch.ones(2)), 200)  # this one finds out
    log.received((1, [3, 4]), 300)
    data = os.read(kept, 1_000)
    os.close(kept)
    assert next(RECORD.iter_unpack(data))[:4] == (What.BEGAN, 0, 0, 100)
    assert len(data) <= 2 * RECORD.size


def test_a_batch_whose_size_cannot_be_counted_is_fetched_all_the_same():
    class Odd:
        @property
        def __dict__(self):
            raise RuntimeError("no")

    assert workers.size_of(Odd()) == -1
    assert workers.size_of([torch.ones(4), {"x": torch.ones(2, dtype=torch.uint8)}]) == 18


# What a batch takes beside its fetch


def test_the_time_of_a_workers_other_threads_is_told():
    with lv.record(on="cpu") as recording:
        took = [int(batch.sum()) for batch in DataLoader(datasets.Hashing(), 4, num_workers=1)]
    others = recording.timeline.context.usage["others"]
    assert 0.6 * sum(took) < others * len(took) < 1.5 * sum(took)


def test_what_the_loops_own_threads_do_while_it_fetches_is_its_models():
    assert "others" not in record_cpu(lambda: list(DataLoader(datasets.Hashing(), 4))).context.usage


@pytest.mark.skipif(not machine.own_memory(), reason="this system does not tell a process's own memory")
@pytest.mark.inherits("how often it looks")
def test_a_worker_whose_memory_grows_is_told(monkeypatch):
    monkeypatch.setattr(workers, "LOOK", 0.0)
    monkeypatch.setattr(workers, "RARE", 0)
    timeline = record_cpu(lambda: list(DataLoader(datasets.Hoarding(), 2, num_workers=1)))
    assert 0.1 * datasets.SIZE < timeline.context.usage["memory"] / 2**20 < datasets.SIZE  # but for the largest jump
    assert lv.Timeline.from_dict(timeline.to_dict()) == timeline


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="this system cannot be told to forget a file")
@pytest.mark.parametrize("number", [0, 1])
def test_what_comes_from_the_disk_itself_is_told(tmp_path, number):
    before, data = machine.usage().disk, datasets.FromDisk(tmp_path)
    data[0]
    if machine.usage().disk - before < 1_000_000:
        pytest.skip("this file system does not tell what it reads from the disk")
    timeline = record_cpu(lambda: list(DataLoader(data, 2, num_workers=number)))
    assert 0.5 < timeline.context.usage["disk"] / 4_000_000 < 2


def test_what_the_system_does_not_tell_is_nothing(tmp_path):
    (tmp_path / "vmstat").write_text("pswpout 3\npswpin 5\n")
    (tmp_path / "rollup").write_text("Rss:   900 kB\nPrivate_Dirty:      12 kB\n")
    assert machine.swapped_in(tmp_path / "vmstat") == 5 * machine.PAGE
    assert machine.own_memory(tmp_path / "rollup") == 12 * 1024
    assert machine.swapped_in(tmp_path / "none") == machine.own_memory(tmp_path / "none") == 0


def test_shared_memory_is_not_measured_where_it_has_no_room_for_that(tmp_path, monkeypatch):
    """A page too many is a bus error, which ends the process."""
    used = []
    real = tempfile.TemporaryFile
    monkeypatch.setattr(machine, "SHARED", tmp_path)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: used.append(dir) or real(dir=dir))
    for room in (8 * machine.PAGE, 8 * machine.PAGE + 1):
        monkeypatch.setattr(machine, "shared_memory", lambda room=room, **_: room)
        assert min(machine.new_pages.__wrapped__(4)) >= 0
    assert used == [None] * 5 + [tmp_path] * 5


KILLED = """
import contextlib, os, sys
from loaderviz.files import own_folder
with contextlib.ExitStack() as stack:
    print(own_folder(stack), flush=True)
    if sys.argv[1] == "fork" and not os.fork():
        sys.exit()  # a fork that ends removes nothing
    sys.argv[1] == "kill" and os.kill(os.getpid(), 9)
    sys.argv[1] == "never ended" and stack.pop_all()
    sys.stdin.read()
"""


def test_temporary_folders_go_at_every_end(tmp_path, monkeypatch):
    """Of a process that was killed, with the next one's; never that of one that runs."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    begin = partial(
        subprocess.Popen, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path
    )
    processes = [begin([sys.executable, "-c", KILLED, how]) for how in ("kill", "fork")]
    found = [Path(process.stdout.readline().strip()) for process in processes]
    time.sleep(1)
    for folder in found:
        os.utime(folder / "in use", (0, 0))
    ended = begin([sys.executable, "-c", KILLED, "never ended"])
    third = Path(ended.stdout.readline().strip())
    assert [each.exists() for each in (*found, third)] == [False, True, True]
    for each in (*processes, ended):
        each.communicate("")
    assert not list(tmp_path.glob("loaderviz-*"))
