"""The loader's price, by an outside tester who knows the public interface alone: waiting, decoding, the way between
processes, cores, and the same nanoseconds twice. What is measured on this machine has 35 % of room.
"""

import _thread
import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import io
import math
import multiprocessing.context
import os
import queue
import random
import resource
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types

import factory
import numpy as np
import pytest
import torch
from factory import Samples
from PIL import Image, ImageFile
from torch.utils.data import DataLoader, Dataset, IterableDataset

import loaderviz as lv
from loaderviz.emulator import Host
from loaderviz.emulator.host import CostsError
from loaderviz.emulator.torch import dataloader
from loaderviz.errors import LoadervizError, NotModelledError
from loaderviz.timeline import Kind

pytestmark = [
    pytest.mark.this_clock,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning"),
    pytest.mark.skipif(sys.platform != "linux", reason="pipes, locks and affinity of Linux"),
]

LAPTOP = Host.preset("laptop")
FIELDS = "dispatch launch memcpy_call synchronize event_call query page_lock_base page_lock_per_gib fetch_per_sample"
NOTHING = dict.fromkeys([*FIELDS.split(), "fetch_per_byte", "fetch_base", "hand_out", "worker_start"], 0)
FREE = Host(name="free", memory_bandwidth=10**15, **NOTHING)  # a fetch costs what is declared, with collate_fn=list
MS = 1_000_000


def load(data, host="laptop", count=4, loop=None, **options):
    """Record one epoch of a data set (or of a function of the index) and return the recording."""
    data = data if isinstance(data, (Dataset, IterableDataset)) else Samples(data, count)
    with lv.record(on="a100", host=host, hazards="off") as recording:
        for batch in DataLoader(data, **options):
            if loop:
                loop(batch)
    return recording


def durations(recording, kind=Kind.FETCH, name=""):
    return [span.duration for span in recording.timeline.rows(kind) if name in span.name]


def hand_outs(recording):
    return durations(recording, Kind.OPERATOR, "DataLoader hand-out")


def fetching(recording):
    """From the first fetch to the last, ns: without the workers' start."""
    spans = list(recording.timeline.rows(Kind.FETCH))
    return max(span.end for span in spans) - min(span.start for span in spans)


def rest(seconds=0.03):
    """Wait, not by time.sleep, and without a processor."""
    select.select([], [], [], seconds)


def burn(rounds=20_000):
    hashlib.pbkdf2_hmac("sha256", b"a", b"b", rounds)  # without the GIL, in C


def declared(work=0.0, waits=0.0, what=lambda: None):
    """A sample that declares its time, in a block in which `what()` happens."""

    def sample(index):
        with lv.costs(work, waits=waits):
            what()
        return index

    return sample


@pytest.fixture
def burners():
    """Four processes that want all processors."""
    code = "while True: pass"
    processes = [subprocess.Popen([sys.executable, "-S", "-c", code]) for _ in range(4)]
    yield
    for process in processes:
        process.kill()
        process.wait()


# 1. Waiting: ways to wait for about WAIT seconds

WAIT = 0.04


def by_event(index):
    done = threading.Event()
    threading.Timer(WAIT, done.set).start()
    done.wait()


def by_queue(index):
    with contextlib.suppress(queue.Empty):
        queue.Queue().get(timeout=WAIT)


def by_poll(index):
    select.poll().poll(WAIT * 1000)


def by_socket(index):
    """An answer that another thread sends late."""
    ours, theirs = socket.socketpair()
    with ours, theirs, factory.beside(lambda: (rest(WAIT), theirs.sendall(b"answer"))):
        assert ours.recv(100) == b"answer"


def by_pipe(index):
    """What a helper process writes late."""
    command = ["sh", "-c", f"sleep {WAIT}; echo late"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as helper:
        assert helper.stdout.read() == b"late\n"


def by_process(index):
    subprocess.run(["sleep", str(WAIT)], check=True)


def by_lock(index):
    """A lock that another process holds, and lets go of after WAIT."""
    code = "import fcntl, time; fcntl.flock(0, fcntl.LOCK_EX); print(flush=True); time.sleep({})"
    with tempfile.NamedTemporaryFile() as lock, open(lock.name) as its:
        command = [sys.executable, "-S", "-c", code.format(WAIT)]
        with subprocess.Popen(command, stdin=its, stdout=subprocess.PIPE) as other:
            its.close()  # or the lock would stay with this end of it
            other.stdout.readline()
            fcntl.flock(lock, fcntl.LOCK_EX)


WAYS = [by_event, by_queue, by_poll, by_socket, by_pipe, by_process, by_lock]


def timed(way):
    """The way as a sample: the seconds that it took here, by a clock that no recording moves (10 ms fine)."""

    def sample(index):
        begin = os.times().elapsed
        way(index)
        return os.times().elapsed - begin

    return sample


IN_WORKERS = [by_event, by_poll, by_socket, by_pipe, by_process, by_lock]


@pytest.mark.parametrize(
    ("way", "workers"),
    [(way, 0) for way in WAYS] + [factory.slow(way, 2) for way in IN_WORKERS[1:]] + [(IN_WORKERS[0], 2)],
)
def test_on_this_machine_waiting_costs_what_it_takes(way, workers):
    took = []
    recording = load(timed(way), "auto", num_workers=workers, loop=lambda batch: took.append(float(batch)))
    fetched = sum(durations(recording)) / 1e9
    assert 0.65 * 4 * WAIT < fetched < 1.35 * max(sum(took), 4 * WAIT) + 0.01
    assert recording.timeline.context.measured == ("waiting",)
    assert recording.timeline.context.unpriced == () and recording.unpriced == {}
    assert any("measured" in note and "wait" in note for note in recording.timeline.context.notes)


@functools.cache
def idle(workers):
    return load(lambda index: 0.0, num_workers=workers).timeline.duration


@pytest.mark.parametrize(("way", "workers"), [(way, 0) for way in WAYS] + [(by_socket, 2), (by_process, 2)])
def test_a_named_host_does_not_know_what_waiting_costs_and_says_so(way, workers):
    recording = load(way, num_workers=workers)
    assert recording.timeline.duration == idle(workers)
    assert "waiting" in recording.timeline.context.unpriced and recording.timeline.context.measured == ()
    assert recording.unpriced["waiting"] > 0.65 * 4 * WAIT
    lines = str(lv.summarize(recording.timeline)).splitlines()
    assert any(line.startswith("unpriced: waiting") for line in lines)
    assert lv.advise(recording.timeline)[0].kind == "unpriced"


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_more_workers_wait_together_beyond_the_cores(workers):
    recording = load(lambda index: rest(0.05), "auto", count=12, num_workers=workers)
    assert 0.65 < fetching(recording) / 1e9 / (12 * 0.05 / workers) < 1.35


class Stream(IterableDataset):
    def __iter__(self):
        for _ in range(4):
            rest()
            yield 0.0


class Batches(Samples):
    def __getitems__(self, indices):
        rest()
        return [0.0 for _ in indices]


def slow_collate(samples):
    rest()
    return torch.zeros(1)


PLACES = {
    "iterable": lambda: (Stream(), {}, 4),
    "getitems": lambda: (Batches(None, 8), {"batch_size": 2}, 4),
    "collate": lambda: (Samples(lambda index: 0.0), {"collate_fn": slow_collate}, 4),
    "no batches": lambda: (Samples(lambda index: rest()), {"batch_size": None}, 4),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("place", PLACES)
def test_wherever_the_data_set_waits(place, workers):
    data, options, waits = PLACES[place]()
    recording = load(data, "auto", num_workers=workers, **options)
    assert 0.65 < sum(durations(recording)) / 1e9 / (waits * 0.03) < 1.35
    assert recording.timeline.context.measured == ("waiting",)
    named = load(data, num_workers=workers, **options)
    assert 0.65 < named.unpriced["waiting"] / (waits * 0.03) < 1.35
    assert "waiting" in named.timeline.context.unpriced


def test_workers_wait_for_each_other():
    lock = multiprocessing.get_context("fork").Lock()

    def sample(index):
        with lock:
            rest()

    recording = load(sample, "auto", count=8, num_workers=2)
    assert 0.65 < fetching(recording) / 1e9 / (8 * 0.03) < 1.35  # one at a time, as without the second worker


@pytest.mark.parametrize("workers", [0, 2])
def test_sleep_and_waiting_are_both_in_a_fetch(workers):
    def sample(index):
        time.sleep(0.04)
        rest(0.02)

    recording = load(sample, "auto", num_workers=workers)
    assert all(52 * MS < took < 81 * MS for took in durations(recording))
    named = load(sample, FREE, num_workers=workers, collate_fn=list)
    assert durations(named) == [40 * MS] * 4  # the sleep alone
    assert 0.65 < named.unpriced["waiting"] / 0.08 < 1.35


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("sample", "count", "waits"),
    [
        (lambda index: rest(0.05) if index % 4 == 2 else None, 12, 3 * 0.05),  # in one batch of four
        (lambda index: rest(0.001), 60, 60 * 0.001),  # as of a data base that answers after a millisecond
    ],
)
def test_waits_that_are_nearly_all_of_the_time_are_told(sample, count, waits, workers):
    """So it must be known that this was a clock on the wall."""
    recording = load(sample, "auto", count=count, num_workers=workers)
    assert sum(durations(recording)) / 1e9 > 0.65 * waits
    assert recording.timeline.context.measured == ("waiting",)
    named = load(sample, count=count, num_workers=workers)
    assert "waiting" in named.timeline.context.unpriced and named.unpriced["waiting"] > 0.65 * waits


def test_a_loop_until_a_deadline_ends():
    """0 workers: the clock that the data set reads goes on while it waits, or the loop never ends."""
    rounds = []

    def sample(index):
        deadline = time.monotonic() + 0.02
        rounds.append(0)
        while time.monotonic() < deadline and rounds[-1] < 40:
            rest(0.005)
            rounds[-1] += 1

    load(sample, "auto", count=2)
    assert max(rounds) < 20


@pytest.mark.parametrize("workers", [0, 2])
def test_a_process_with_a_time_limit_is_waited_for_once(workers):
    """Where its end is looked for between sleeps, each of those is no time of its own."""

    def sample(index):
        subprocess.run(["sleep", "0.04"], timeout=20, check=True)

    recording = load(sample, "auto", 2, num_workers=workers)
    assert max(durations(recording)) < 2_000 * MS


@pytest.mark.parametrize("workers", [0, 2])
def test_threads_sleep_at_the_same_time(workers):
    took, sample = [], lambda index: factory.in_threads(*[functools.partial(time.sleep, 0.04)] * 4)
    recording = load(timed(sample), "auto", num_workers=workers, loop=lambda batch: took.append(float(batch)))
    for fetched, real in zip(durations(recording), took, strict=True):
        assert 0.65 * 40 * MS < fetched < 1.35 * max(real * 1e9, 40 * MS) + 10 * MS
    assert len(took) == 4 and min(durations(recording)) < 0.5 * 4 * 40 * MS  # not one after the other


# Declared

DECLARED = [(0, 0.02), (1e-3, 0.02), (1e-3, 0), (0.0, 0.0), (3e-9, 7e-9), (np.float64(0.5), 100), (2, 1e-6)]


@pytest.mark.parametrize(
    ("work", "waits", "workers"), [(*times, 0) for times in DECLARED] + [(1e-3, 0.02, 2), (3e-9, 7e-9, 2)]
)
def test_a_declared_block_costs_that(work, waits, workers):
    recording = load(declared(work, waits), FREE, num_workers=workers, collate_fn=list)
    assert durations(recording) == [round((work + waits) * 1e9)] * 4
    assert recording.timeline.context.unpriced == () and recording.timeline.context.measured == ()


HAPPENINGS = [lambda: rest(random.random() / 50), lambda: burn(100_000), by_process.__get__(0), lambda: None]


@pytest.mark.parametrize(("what", "workers"), [(what, 0) for what in HAPPENINGS] + [(HAPPENINGS[0], 2)])
def test_whatever_happens_in_a_declared_block(what, workers):
    recording = load(declared(1e-3, 0.02, what), FREE, num_workers=workers, collate_fn=list)
    assert durations(recording) == [21 * MS] * 4
    assert recording.timeline.context.unpriced == ()
    lines = str(lv.summarize(recording.timeline)).splitlines()
    assert not any(line.startswith("unpriced") for line in lines)
    assert all(finding.kind != "unpriced" for finding in lv.advise(recording.timeline))


def test_declared_on_this_machine_too():
    recording = load(declared(waits=0.1, what=lambda: rest(0.02)), "auto")
    assert all(100 * MS <= took < 110 * MS for took in durations(recording))
    assert recording.timeline.context.measured == ()


def test_an_error_leaves_a_declared_block():
    def sample(index):
        with contextlib.suppress(KeyError), lv.costs(1e-3, waits=2e-3):
            rest(0.01)
            raise KeyError
        return index

    assert durations(load(sample, FREE, collate_fn=list)) == [3 * MS] * 4


def test_blocks_one_after_the_other_and_what_is_beside_them():
    def sample(index):
        for waits in (1e-3, 2e-3, 4e-3):
            with lv.costs(waits=waits):
                rest(0.002)
        rest(0.03)
        return index

    recording = load(sample, FREE, collate_fn=list)
    assert durations(recording) == [7 * MS] * 4
    assert 0.65 < recording.unpriced["waiting"] / 0.12 < 1.35
    assert "waiting" in recording.timeline.context.unpriced


BAD = [-1, -1e-9, True, False, math.nan, math.inf, -math.inf, "0.1", "", None, [1], 1j, b"1", np.bool_(True)]


@pytest.mark.parametrize("bad", BAD)
def test_what_is_no_time_is_refused(bad):
    for call in (lambda: lv.costs(bad), lambda: lv.costs(waits=bad), lambda: lv.costs(1e-3, waits=bad)):
        with pytest.raises(CostsError) as told:
            call()
        assert isinstance(told.value, LoadervizError)


# What is no waiting


def test_no_wait_is_said_of_a_data_set_that_has_none():
    for host in ("auto", "laptop"):
        for workers in (0, 2):
            context = load(lambda index: float(index), host, num_workers=workers).timeline.context
            assert (context.measured, context.unpriced) == ((), ())


@pytest.mark.parametrize("workers", [0, 2])
def test_work_is_no_waiting(workers):
    recording = load(lambda index: burn(), num_workers=workers)
    assert "waiting" not in recording.timeline.context.unpriced and "data set" in recording.timeline.context.unpriced
    assert load(lambda index: burn(), "auto", num_workers=workers).timeline.context.measured == ()


def worked(index):
    """The processor's seconds that the sample took."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    burn(60_000)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_a_processor_taken_by_others_is_no_waiting(burners, workers):
    took = []
    recording = load(worked, "auto", 6, num_workers=workers, loop=lambda batch: took.append(float(batch)))
    assert recording.timeline.context.measured == ()
    assert 0.65 < sum(durations(recording)) / 1e9 / sum(took) < 1.35
    assert "waiting" not in load(worked, num_workers=workers).timeline.context.unpriced


@pytest.mark.parametrize("workers", [0, 2])
def test_a_wait_beside_others_that_take_the_processors(burners, workers):
    recording = load(lambda index: rest(0.05), "auto", 6, num_workers=workers)
    assert 0.65 < sum(durations(recording)) / 1e9 / (6 * 0.05) < 1.35


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("host", ["auto", "laptop"])
def test_sleep_is_no_waiting_that_is_measured(host, workers):
    begin = os.times().elapsed
    recording = load(lambda index: time.sleep(90.0), host, num_workers=workers)
    assert os.times().elapsed - begin < 90  # not one of them was real
    assert all(90_000 * MS <= took < 90_050 * MS for took in durations(recording))
    assert (recording.timeline.context.measured, recording.timeline.context.unpriced) == ((), ())


@pytest.mark.parametrize("host", ["auto", "laptop"])
def test_waiting_of_the_loop_is_none_of_the_data_set(host):
    recording = load(lambda index: 0.0, host, loop=lambda batch: rest(0.02))
    assert (recording.timeline.context.measured, recording.timeline.context.unpriced) == ((), ())
    assert sum(durations(recording)) < 20 * MS


def test_a_worker_that_starts_late_is_no_waiting(monkeypatch):
    monkeypatch.setattr(dataloader, "look_in_worker", lambda: rest(0.1))
    assert load(lambda index: 0.0, num_workers=2).timeline.context.unpriced == ()


def test_a_worker_that_waits_in_its_init_function_is_told_or_charged():
    waits = {"num_workers": 2, "worker_init_fn": lambda index: rest(0.1)}
    assert load(lambda index: 0.0, "laptop", **waits).timeline.context.unpriced == ("waiting",)
    measured = load(lambda index: 0.0, "auto", **waits)
    assert measured.timeline.context.measured == ("waiting",) and max(durations(measured)) > 90 * MS


# 2. Decoding


def encoded(pixels, form="JPEG", **options):
    with io.BytesIO() as file:
        (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(file, form, **options)
        return file.getvalue()


NOISE = np.random.default_rng(0).integers(0, 256, (128, 128, 3), dtype=np.uint8)
FLAT = np.full((128, 128, 3), 99, np.uint8)
PHOTO = encoded(NOISE, quality=90)


def opened(data=PHOTO):
    return Image.open(io.BytesIO(data))


def fetch_of(sample, host="laptop", **options):
    """What each of three fetches costs, which must be the same."""
    took = set(durations(load(lambda index: (sample(), None)[1], host, 3, **options)))
    assert len(took) == 1
    return took.pop()


def base():
    return fetch_of(lambda: None)


def decoding():
    return fetch_of(lambda: opened().load()) - base()


def parsed():
    parser = ImageFile.Parser()
    parser.feed(PHOTO[:3000])
    parser.feed(PHOTO[3000:])
    parser.close().load()


def within():
    with opened() as image:
        image.load()


READY, DRAWN = opened(), Image.fromarray(NOISE)
READY.load()
ASKING = {  # what has no price itself, and how often a picture is decoded in it
    "nothing": (opened, 0),
    "size": (lambda: opened().size, 0),
    "info": (lambda: opened().info, 0),
    "verify": (lambda: opened().verify(), 0),
    "mode": (lambda: opened().mode, 0),
    "decoded before": (lambda: (READY.getbbox(), READY.getpixel((0, 0))), 0),
    "drawn": (lambda: (DRAWN.getbbox(), DRAWN.getpixel((0, 0))), 0),
    "new": (lambda: [(im.getbbox(), im.getpixel((0, 0))) for im in [Image.new("RGB", (500, 500))]], 0),
    "getpixel": (lambda: opened().getpixel((3, 3)), 1),
    "split": (lambda: opened().split(), 1),
    "histogram": (lambda: opened().histogram(), 1),
    "getbbox": (lambda: opened().getbbox(), 1),
    "parser": (parsed, 1),
    "with": (within, 1),
    "again": (lambda: [(im.load(), im.getbbox(), im.getpixel((0, 0))) for im in [opened()]], 1),
    "two of the same bytes": (lambda: [opened().load(), opened().load()], 2),
}


@pytest.mark.parametrize("asking", ASKING)
def test_a_picture_is_decoded_once_whoever_asks_and_never_where_nobody_does(asking):
    sample, times = ASKING[asking]
    assert fetch_of(sample) - base() == times * decoding()


def test_more_bytes_of_a_gif_cost_more():
    files = [encoded(pixels, "GIF") for pixels in (FLAT, NOISE)]
    costs = [fetch_of(lambda data=data: np.asarray(opened(data))) for data in files]
    assert base() < costs[0] < costs[1]


@pytest.mark.parametrize("inside", [True, False])
def test_decoded_in_a_declared_block_it_is_decoded_and_else_where_it_is_asked_for(inside):
    def sample():
        with lv.costs(5e-3):
            image = opened()
            if inside:
                image.load()
        image.getpixel((0, 0))

    assert fetch_of(sample) - base() == 5 * MS + (0 if inside else decoding())


def test_a_collate_that_decodes():
    def collate(samples):
        return torch.stack([torch.zeros(1) for data in samples if opened(data).load()])

    def plain(samples):
        return torch.stack([torch.zeros(1) for data in samples])

    both = [load(lambda index: PHOTO, batch_size=2, collate_fn=each) for each in (collate, plain)]
    got, without = (durations(each) for each in both)
    assert [a - b for a, b in zip(got, without, strict=True)] == [2 * decoding()] * 2


def test_a_damaged_picture_is_an_error_as_ever():
    def sample(index):
        with pytest.raises(OSError, match="truncated"):
            opened(PHOTO[:2000]).load()

    load(sample)


# 3. Between processes


def boundary(value, loop=None, **options):
    """A fetch of the first batch, and what the main process does to hand it out."""
    recording = load(lambda index: value, loop=loop, **{"num_workers": 1, **options})
    return durations(recording)[0], (hand_outs(recording) or [0])[0]


SMALL, LARGE = torch.zeros(10), torch.zeros(1_000_000)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"x": x}, lambda x: (x, x[:1]), lambda x: [{"a": [x]}]])
def test_a_large_batch_costs_both_sides_more_wherever_in_it_the_bytes_are(wrap):
    small, middle, large = (boundary(wrap(value)) for value in (SMALL, LARGE[:250_000], LARGE))
    assert small[0] < middle[0] < large[0] and small[1] < middle[1] < large[1]


@pytest.mark.parametrize(
    ("value", "options"),
    [(value, {}) for value in (SMALL, LARGE, {"a": [LARGE, 3]})]
    + [(value, {"collate_fn": list}) for value in (np.zeros(100_000, np.float32), "a" * 1000, b"a" * 400_000)],
    ids=["small", "large", "nested", "array", "text", "bytes"],
)
def test_without_workers_there_is_no_boundary(value, options):
    sent = dict.fromkeys(["shm", "tensor_sent", "tensor_received", "pickle_per_byte", "unpickle_per_byte"], 10**6)
    dear = dataclasses.replace(LAPTOP, **sent, new_page=10**6, first_read=10**6, staged_page=10**6, unmap=10**6)
    recording = load(lambda index: value, dear, **options)
    assert hand_outs(recording) == []
    assert durations(recording) == durations(load(lambda index: value, **options))


def test_the_pin_thread_receives_where_there_is_one():
    small, large = (load(lambda i, x=x: x, num_workers=1, pin_memory=True) for x in (SMALL, LARGE))
    plain = load(lambda index: LARGE, num_workers=1)
    assert {span.lane.role for span in large.timeline.rows(Kind.PIN)} == {"pin"}
    assert all(a < b for a, b in zip(durations(small, Kind.PIN), durations(large, Kind.PIN), strict=True))
    assert hand_outs(small) == hand_outs(large)  # the main thread has none of it
    assert hand_outs(large)[0] < hand_outs(plain)[0]


def test_ten_times_the_tensors_ten_times_the_price():
    host = dataclasses.replace(FREE, tensor_sent=1000, tensor_received=100)
    for count in (1, 3, 10):
        batch = [torch.zeros(5) for _ in range(count)]
        recording = load(lambda i, batch=batch: batch, host, num_workers=1, collate_fn=lambda b: b[0])
        assert hand_outs(recording) == [100 * count] * 4
        assert durations(recording) == [1000 * count] * 4


@pytest.mark.parametrize("value", [7, "name", ["a", "b"] * 20, 0.5, None, {"label": 3}])
def test_numbers_and_words_cost_little(value):
    fetch, hand_out = boundary(value, collate_fn=list)
    assert fetch < LAPTOP.fetch_base + LAPTOP.fetch_per_sample + 10_000
    assert LAPTOP.hand_out <= hand_out < LAPTOP.hand_out + 10_000


@pytest.mark.parametrize(
    "of",
    [
        lambda a: a,
        lambda a: {"x": [a]},
        lambda a: types.SimpleNamespace(a=a),
        lambda a: a.tobytes(),
        lambda a: Image.frombytes("L", (1000, 400), a.tobytes()),
    ],
    ids=["array", "nested", "object", "bytes", "picture"],
)
def test_pickled_bytes_have_a_price_in_whatever_they_are(of):
    host = dataclasses.replace(FREE, unpickle_per_byte=1000)  # 1 ns a byte
    value = of(np.zeros(100_000, np.float32))
    recording = load(lambda index: value, host, num_workers=1, collate_fn=list)
    assert all(400_000 <= took < 402_000 for took in hand_outs(recording))


@pytest.mark.parametrize(
    ("of", "arrays"), [(lambda a: [a, a.copy()], 2), (lambda a: a.tobytes(), 0), (lambda a: (a, a.tobytes(), {}), 1)]
)
def test_a_worker_writes_new_pages_for_arrays_that_it_pickles_and_none_for_bytes(of, arrays):
    host, value = dataclasses.replace(FREE, new_page=1000), of(np.zeros(2**14, np.uint8))
    recording = load(lambda index: value, host, num_workers=1, collate_fn=list)
    assert durations(recording) == [2 * 4 * 1000 * arrays] * len(durations(recording))
    assert recording.timeline.context.usage.get("arrays", 0) == 2**14 * arrays


def test_the_same_array_four_times_in_a_batch_is_sent_once():
    """Pickle writes an object once, and then refers to it."""
    array = np.zeros(100_000, np.float32)
    options = {"num_workers": 1, "batch_size": 4, "collate_fn": list}
    same, one = load(lambda i: array, **options), load(lambda i: array, **{**options, "batch_size": 1})
    assert hand_outs(same)[0] < 2 * hand_outs(one)[0]


def test_a_sample_that_is_a_view_sends_the_memory_that_it_views():
    """PyTorch sends storages: the first row of a data set that is one tensor takes all of it to shared memory."""
    view = load(lambda i: torch.zeros(1000, 1000)[i], num_workers=1, batch_size=None)
    whole = load(lambda i: torch.zeros(1000, 1000), num_workers=1, batch_size=None)
    assert durations(view)[0] > durations(whole)[0] / 2


@pytest.mark.parametrize(("host", "workers"), [("laptop", 1), ("laptop", 2), ("workstation", 1), ("server 2023", 2)])
def test_tiny_samples_in_memory_need_no_worker(host, workers):
    options = {"batch_size": 16, "count": 64}
    slow = load(lambda i: SMALL, host, num_workers=workers, **options)
    fast = load(lambda i: SMALL, host, **options)
    assert fetching(fast) < fetching(slow) and fast.timeline.duration < slow.timeline.duration


def copies(loop, workers):
    """GB/s of the copies to the GPU in a loop."""
    recording = load(lambda index: LARGE, loop=loop, num_workers=workers)
    spans = list(recording.timeline.rows(Kind.COPY_H2D))
    return [span.nbytes / span.duration for span in spans]


PARTS = {
    "whole": lambda b: b.cuda(),
    "view": lambda b: b.view(1000, 1000).cuda(),
    "half": lambda b: b[:, :500_000].cuda(),
    "copy_": lambda b: torch.empty(1, 1_000_000, device="cuda").copy_(b),
    "to": lambda b: b.to(device="cuda", non_blocking=True),
    "numpy": lambda b: torch.from_numpy(b.numpy()).cuda(),
    "detach": lambda b: b.detach().squeeze(0).cuda(),
}


NOT_SEEN = pytest.mark.xfail(strict=True, reason="an array over a worker's batch is another storage")


@pytest.mark.parametrize("part", [pytest.param(part, marks=[NOT_SEEN] * (part == "numpy")) for part in PARTS])
def test_however_it_is_called(part):
    assert max(copies(PARTS[part], 1)) < 0.6 * min(copies(PARTS[part], 0))


@pytest.mark.parametrize("own", [torch.zeros_like, lambda b: b.clone(), lambda b: b + 1, lambda b: b.double()])
def test_what_the_main_process_makes_of_it_is_its_own(own):
    assert min(copies(lambda b: own(b).cuda(), 1)) > 0.8 * min(copies(lambda b: own(b).cuda(), 0))


def test_pinned_it_is_as_fast_as_ever():
    assert copies(lambda b: b.pin_memory().cuda(), 1) == copies(lambda b: b.pin_memory().cuda(), 0)


# 4. Cores


TEN = declared(0.01)


def speedup(workers, sample=TEN, count=32, **fields):
    """How much faster than 10 ms after 10 ms."""
    host = dataclasses.replace(FREE, **fields)
    return count * 10 * MS / fetching(load(sample, host, count, num_workers=workers, collate_fn=list))


@pytest.mark.parametrize(
    ("workers", "fields", "best"),
    [
        (2, {"cores": 2}, 2),
        factory.slow(2, {"cores": 8}, 2),
        (8, {"cores": 2, "siblings": 2, "sibling": 250}, 2.5),
        (8, {"cores": 1, "siblings": 2, "sibling": 500}, 1.5),
        factory.slow(8, {"cores": 3, "siblings": 2, "sibling": 0}, 3),
        (8, {"cores": 2, "siblings": 4, "sibling": 200}, 2 * 1.6),  # the other three threads of a core, each so much
    ],
)
def test_no_faster_than_the_workers_and_the_threads_of_the_cores(workers, fields, best):
    assert speedup(workers, **fields) == pytest.approx(best, rel=0.01 if workers == 2 else 0.05)


def rows(recording):
    return [(s.start, s.end, s.lane.name, s.kind, s.name, s.batch) for s in recording.timeline.rows()]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("workers", [2, 8])
def test_waiting_needs_no_core(workers, ranks):
    options = {"cores": 2, "ranks_on_host": ranks, "contention": 100}
    assert speedup(workers, declared(waits=0.01), 16, **options) == pytest.approx(workers, rel=0.001)


def test_work_and_waiting():
    """4 workers on one core: 10 ms of it a sample, while the others wait."""
    sample, host = declared(0.01, waits=0.03), dataclasses.replace(FREE, cores=1)
    assert 190 * MS <= fetching(load(sample, host, 16, num_workers=4, collate_fn=list)) <= 200 * MS


def cores_of(affinity):
    code = f"import os; os.sched_setaffinity(0, {affinity}); from loaderviz.machine import cores; print(*cores())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [int(number) for number in done.stdout.split()]


def test_the_cores_of_this_machine():
    from loaderviz.machine import cores

    physical, threads = cores()
    allowed = os.sched_getaffinity(0)
    assert 1 <= physical <= threads <= len(allowed)
    assert cores_of({min(allowed)}) == [1, 1]
    assert cores_of(allowed) == [physical, threads]


# 5. Twice the same

PICTURES = [encoded(NOISE[: 32 * n, :64], quality=80) for n in (1, 2, 3)]


def pictures(folder):
    """Pictures in files, work and waiting declared, which in truth take now this long, now that."""

    def sample(index):
        declared(1e-3 * (index % 3), 2e-3 * (index % 2), lambda: rest(random.Random().random() / 100))(index)
        image = Image.open(folder / f"{index % 3}.jpg").convert("RGB").resize((16, 16))
        return torch.from_numpy(np.array(image)).float(), index

    return Samples(sample, 12)


@pytest.fixture
def folder(tmp_path):
    for number, data in enumerate(PICTURES):
        (tmp_path / f"{number}.jpg").write_bytes(data)
    return tmp_path


def training(data, host, **options):
    with lv.record(on="a100", host=host, hazards="off") as recording:
        model = torch.nn.Linear(16 * 16 * 3, 4).cuda()
        for images, labels in DataLoader(data, batch_size=2, **options):
            loss = model(images.cuda(non_blocking=True).flatten(1)).sum() + labels.cuda().sum()
            loss.backward()
    assert recording.timeline.context.measured == ()
    assert "waiting" not in recording.timeline.context.unpriced
    return rows(recording)


CALLS = {"dispatch": 1000, "launch": 2000, "memcpy_call": 300, "synchronize": 70}
SIMPLE = dataclasses.replace(FREE, name="simple", cores=1, **CALLS)


@pytest.mark.parametrize(
    ("workers", "options"), [(0, {}), (2, {}), (2, {"pin_memory": True})], ids=["none", "two", "pinned"]
)
@pytest.mark.parametrize(
    "host",
    [
        pytest.param("laptop", marks=pytest.mark.slow),
        pytest.param("server 2023", marks=pytest.mark.slow),
        pytest.param(SIMPLE, marks=pytest.mark.slow, id="own"),
        pytest.param(dataclasses.replace(LAPTOP, name="one core", cores=1), id="fewer cores than workers"),
    ],
)
def test_two_runs_have_the_same_nanoseconds(folder, host, workers, options):
    one, two = (training(pictures(folder), host, num_workers=workers, **options) for _ in range(2))
    assert one == two


@pytest.mark.slow
def test_beside_burners_it_is_the_same(folder, burners):
    one, two = (training(pictures(folder), "laptop", num_workers=2) for _ in range(2))
    assert one == two


class ThreadWorker(threading.Thread):
    """A worker of a DataLoader that is a thread, as MONAI's ThreadDataLoader has them."""

    pid = property(id)


class ThreadQueue(queue.Queue):
    def close(self):
        pass

    cancel_join_thread = close


class ThreadContext(multiprocessing.context.SpawnContext):
    _name, Process, Queue = "threads", ThreadWorker, ThreadQueue


def of_thread_workers():
    loader = DataLoader(torch.arange(8.0), 2, num_workers=2, multiprocessing_context=ThreadContext())
    return [x.sum().item() for x in loader]


def test_workers_that_are_threads_are_refused_by_name():
    refused = pytest.raises(NotModelledError, match="workers are threads, by its multiprocessing_context ThreadContext")
    with refused, lv.record(on="a100"):
        of_thread_workers()
    assert of_thread_workers() == [1, 5, 9, 13]


def test_workers_that_are_threads_go_on_where_nothing_is_recorded():
    found = queue.Queue()
    with lv.record(on="a100"):
        _thread.start_new_thread(lambda: found.put(of_thread_workers()), ())
        assert found.get(timeout=60) == [1, 5, 9, 13]
