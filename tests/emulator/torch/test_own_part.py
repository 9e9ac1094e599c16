"""What the emulator itself does in a fetch is nobody's time: by a clock that counts calls, in which nothing is random.

A call of a function, of Python's or of C's, is 1 us of the thread's processor time, and nothing else is. A batch may
take 150 us more than without a recording, for the frame of its fetch.
"""

import io
import sys
import time
from functools import partial

import numpy as np
import pytest
import torch
from factory import Samples
from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate

import loaderviz as lv
from loaderviz.emulator import host
from loaderviz.timeline import Kind

BATCH, BATCHES = 64, 4


def asleep(index):
    time.sleep(1e-4)
    return index


def read(path):
    with open(path, "rb") as file:
        return file.read()


Items = partial(Samples, count=BATCH * BATCHES)
ROWS = torch.rand(BATCH * BATCHES, 8)
INTO = io.BytesIO()
torch.save(ROWS, INTO)
SAVED = INTO.getvalue()
SETS = {
    "new tensors": Items(lambda index: torch.zeros(16)),
    "rows": Items(lambda index: (ROWS[index], index % 10)),
    "shapes": Items(lambda index: len(ROWS) + ROWS.shape[0] + ROWS.ndim),
    "arithmetic": Items(lambda index: (ROWS[index] * 2.0 + 1).sum()),
    "numpy": Items(lambda index: {"x": np.float32(index), "y": np.float32(index)}),
    "Python": Items(lambda index: sum(map(abs, range(20)))),
    "TensorDataset": TensorDataset(ROWS, ROWS),
    "Subset": Subset(Items(lambda index: (ROWS[index], 0)), range(BATCH * BATCHES)),
    "asleep": Items(asleep),
    "files": Items(lambda index: len(read(__file__))),
    "saved tensors": Items(lambda index: torch.load(io.BytesIO(SAVED))),
    "mapped files": Items(lambda index: np.array(np.memmap(__file__, np.uint8, "r")[index : index + 8])),
}

STANDS_IN = {"asleep": 15, "files": 12}  # calls a sample of what takes the place of `time.sleep` and `open`


@pytest.fixture
def counted(monkeypatch):
    """Let the clock of processor time count calls; return it."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += 1000 if event in ("call", "c_call") else 0

    monkeypatch.setattr(host, "thread_time_ns", lambda: calls)
    sys.setprofile(count)
    yield lambda: calls
    sys.setprofile(None)


def plain(counted, data):
    """Return the us of a fetch where nothing is recorded."""
    took = []
    for begin in range(0, BATCH * BATCHES, BATCH):
        start = counted()
        default_collate([data[index] for index in range(begin, begin + BATCH)])
        took.append((counted() - start) // 1000)
    return min(took)


@pytest.mark.parametrize("name", [name for name in SETS if name != "asleep"])
def test_a_measured_fetch_takes_what_it_takes_without_a_recording(counted, name):
    expected = plain(counted, SETS[name])
    with lv.record(on="a100", host="auto", hazards="off") as recording:
        list(DataLoader(SETS[name], BATCH))
    took = min(span.duration for span in recording.timeline.rows(Kind.FETCH)) / 1000
    assert expected / 1.5 - 150 <= took <= 1.5 * expected + 150 + BATCH * STANDS_IN.get(name, 0)


@pytest.mark.parametrize("name", ["new tensors", "shapes", "arithmetic", "asleep"])
def test_on_a_named_host_the_emulators_part_is_not_unpriced(counted, name):
    expected = plain(counted, SETS[name])
    with lv.record(on="a100", host="laptop", hazards="off") as recording:
        list(DataLoader(SETS[name], BATCH))
    took = recording.unpriced["data set"] * 1e6 / BATCHES
    assert took <= 1.5 * expected + 150 + BATCH * STANDS_IN.get(name, 0)
