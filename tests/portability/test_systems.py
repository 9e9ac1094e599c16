"""What other systems lack, taken from this one: each program runs in a Python of its own, which was changed before."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_PROC = """
import builtins, io, os, pathlib
def hiding(name, original):
    def call(path=".", *rest, **options):
        if str(path).startswith(("/proc", "/sys/")):
            seen.append(str(path))
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return original(path, *rest, **options)
    return call
seen = []
for place, name in (builtins, "open"), (io, "open"), (os, "listdir"), (os, "scandir"), (os, "stat"):
    setattr(place, name, hiding(name, getattr(place, name)))
class FileIO(io.FileIO):
    def __init__(self, path, *rest, **options):
        hiding("FileIO", lambda *_: None)(path)
        super().__init__(path, *rest, **options)
io.FileIO = FileIO
"""
NO_FORK = """
import multiprocessing, os, torch.utils.data  # torch for Linux needs the last of these names
for name in "fork", "forkpty", "register_at_fork":
    delattr(os, name)
for name in "fork", "forkserver":
    multiprocessing.context._concrete_contexts.pop(name)
multiprocessing.set_start_method("spawn", force=True)
"""
NO_AFFINITY = """
import os
del os.sched_getaffinity, os.sched_setaffinity
"""
SPAWN = """
import multiprocessing
multiprocessing.set_start_method("spawn", force=True)
"""
PROGRAM = """
import sys
import torch
from torch.utils.data import DataLoader
import loaderviz as lv

DATA = [float(number) for number in range(32)]  # of a tensor torch makes a copy for spawned workers

def train():
    loader = DataLoader(DATA, 8, num_workers=1, pin_memory=True)
    return sum(batch.to("cuda", non_blocking=True).sum().item() for batch in loader)

if __name__ == "__main__":
    with lv.record(on="a100", host="laptop") as recording:
        total = train()
    timeline = recording.timeline
    print(total, len(timeline), timeline.duration, lv.summarize(timeline).step, sep="|")
    with lv.record(on="a100") as recording:  # measured here
        assert train() == total
    with lv.record(on="cpu") as recording:
        assert sum(batch.sum().item() for batch in DataLoader(DATA, 8, num_workers=1)) == total
    assert lv.summarize(recording.timeline).batches
    lv.advise(recording.timeline)
    CHECK
"""


def printed(folder, before="", check=""):
    """What the program prints in a Python that was changed by some lines."""
    text = before + PROGRAM.replace("CHECK", check)
    (folder / "program.py").write_text(text)
    settings = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    return printed(tmp_path_factory.mktemp("here"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "check"),
    [
        pytest.param(NO_PROC, "assert any('schedstat' in path or 'task' in path for path in seen), seen", id="no_proc"),
        pytest.param(NO_FORK, "assert not hasattr(__import__('os'), 'fork')", id="no_fork"),
        pytest.param(
            NO_AFFINITY,
            "from loaderviz.machine import cores; assert 1 <= cores().physical <= __import__('os').cpu_count()",
            id="no_sched_getaffinity",
        ),
        pytest.param(SPAWN, "", id="spawn"),
    ],
)
def test_a_system_that_lacks_it_gives_the_same_timeline(before, check, here, tmp_path):
    assert printed(tmp_path, before, check) == here
