"""How many files of the package a thing goes through: docs/contributing.md tells it, and here it is counted."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch

import loaderviz as lv
from loaderviz.workshop import EXERCISES, exercises

ROOT = Path(lv.__file__).parent
TOLD = (ROOT.parent / "docs" / "contributing.md").read_text(encoding="utf-8")
EVENTS = [
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 100, "dur": 90},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 110, "dur": 9},
    {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 130, "dur": 40},
]


def a_copy(_):
    with lv.record(on="a100"):
        x = torch.ones(1000).pin_memory()
        yield lambda: x.to("cuda", non_blocking=True)


def a_trace(folder):
    events = [{**each, "args": {"correlation": 5, "device": 0, "stream": 7}} for each in EVENTS]
    (folder / "trace.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    yield lambda: lv.read(folder / "trace.json")


def a_check(_):
    answer = exercises.shipped("3.1")
    yield lambda: EXERCISES["3.1"].check(answer, seed=1)


@pytest.mark.parametrize(
    ("journey", "room", "told"),
    [
        (a_copy, ".", r"goes through at most (\d+) files until it returns"),
        (a_trace, ".", r"three\s+events goes through at most (\d+) files"),
        (a_check, "workshop", r"check of exercise 3\.1 goes through (\d+) files in\s+`workshop/`"),
    ],
)
def test_a_thing_goes_through_no_more_files_than_is_told(journey, room, told, tmp_path, monkeypatch):
    monkeypatch.setenv("LOADERVIZ_PROGRESS", str(tmp_path / "progress.jsonl"))
    seen = set()
    for work in journey(tmp_path):
        sys.setprofile(lambda frame, *_: seen.add(frame.f_code))
        try:
            work()
        finally:
            sys.setprofile(None)
    ran = {code.co_filename for code in seen if code.co_name != "<module>"}
    found = [file for file in ran if Path(file).is_relative_to(ROOT / room)]
    assert 2 < len(found) <= int(re.search(told, " ".join(TOLD.split()))[1]), sorted(found)
