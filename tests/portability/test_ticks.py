"""Clocks that tick each 15.625 ms, as the processor's clocks of Windows do."""

import time

import torch
from torch.utils.data import DataLoader

import loaderviz as lv
from loaderviz.emulator.torch import dataloader

TICK = 15_625_000  # ns


def test_the_clocks_of_a_worker_may_tick_apart(monkeypatch):
    """What its other threads took is the process's time less its own thread's, and so may be less than nothing."""
    real = time.process_time_ns
    monkeypatch.setattr(dataloader, "process_time_ns", lambda: real() // TICK * TICK)
    with lv.record(on="a100", host="auto") as recording:
        taken = list(DataLoader([torch.ones(4)] * 200, 4, num_workers=1, multiprocessing_context="fork"))
    assert len(taken) == 50 and recording.timeline.self_check()
