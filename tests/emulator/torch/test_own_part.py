"""What the emulator itself does in a fetch is nobody's time: by a clock that counts calls, in which nothing is random.

A call of a function, of Python's or of C's, is 1 us of the thread's processor time, and nothing else is.
"""

import sys
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate

import loaderviz as lv
from loaderviz.emulator import host
from loaderviz.timeline import Kind

BATCH, BATCHES = 64, 4


class Items:
    def __init__(self, make: Callable[[int], object]) -> None:
        self.make = make

    def __len__(self) -> int:
        return BATCH * BATCHES

    def __getitem__(self, index: int) -> object:
        return self.make(index)


def asleep(index):
    time.sleep(1e-4)
    return index


ROWS = torch.rand(BATCH * BATCHES, 8)
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
}


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
    assert expected / 1.5 - 150 <= took <= 1.5 * expected + 150  # 150 us a batch: its own frame


@pytest.mark.parametrize("name", ["new tensors", "shapes", "arithmetic", "asleep"])
def test_on_a_named_host_the_emulators_part_is_not_unpriced(counted, name):
    expected = plain(counted, SETS[name])
    with lv.record(on="a100", host="laptop", hazards="off") as recording:
        list(DataLoader(SETS[name], BATCH))
    took = recording.unpriced["data set"] * 1e6 / BATCHES
    stands_in = 15 * BATCH if name == "asleep" else 0  # what takes `time.sleep`'s place asks who calls
    assert took <= 1.5 * expected + 150 + stands_in
