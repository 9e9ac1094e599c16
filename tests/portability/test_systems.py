"""What other systems lack, taken from this one: most programs run in a Python of their own, changed before."""

import ast
import os
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

import loaderviz as lv
from loaderviz.emulator.torch import dataloader

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


# Clocks that tick each 15.625 ms, as the processor's clocks of Windows do


TICK = 15_625_000  # ns


def test_the_clocks_of_a_worker_may_tick_apart(monkeypatch):
    """What its other threads took is the process's time less its own thread's, and so may be less than nothing."""
    real = time.process_time_ns
    monkeypatch.setattr(dataloader, "process_time_ns", lambda: real() // TICK * TICK)
    with lv.record(on="a100", host="auto") as recording:
        taken = list(DataLoader([torch.ones(4)] * 200, 4, num_workers=1, multiprocessing_context="fork"))
    assert len(taken) == 50 and recording.timeline.self_check()


# What is refused to a second thread ends the wait of the one that records, also where no signal can: on Windows


WAITS = """
import contextlib, signal, threading, time
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
if {without}:
    del signal.pthread_kill
import torch
import loaderviz as lv
from loaderviz.emulator.torch import patches
from loaderviz.errors import NotModelledError

patches.PATIENCE = 0.05
threading.excepthook = lambda problem: None
names = threading._allocate_lock, threading.Thread.join

def waits(wait, also=None):
    threading.Thread(target=lambda: also(torch.ones(1).to("cuda")), daemon=True).start()
    wait()

def never():
    other = threading.Thread(target=threading.Event().wait, daemon=True)
    other.start()
    other.join()

queue, event = Queue(), threading.Event()
for wait in queue.get, event.wait, threading.Barrier(2).wait, never:
    try:
        with lv.record(on="t4"):
            waits(wait, queue.put)
    except NotModelledError as error:
        print("second Python thread" in str(error), (threading._allocate_lock, threading.Thread.join) == names)

with lv.record(on="t4"):  # waits that end are as ever, however often they are looked at
    with ThreadPoolExecutor(1) as pool:
        print(pool.submit(lambda: time.sleep(0.2) or 7).result(), event.wait(0.01), queue.empty())
    sent = [threading.Thread(target=queue.put, args=(each,)) for each in range(50)]
    [each.start() for each in sent]
    print(sorted(queue.get() for _ in sent) == [*range(50)], [each.join() for each in sent].count(None))
"""


@pytest.mark.parametrize("without", [True, False])
def test_a_refusal_in_a_thread_ends_the_wait_for_it(without):
    run = [sys.executable, "-c", WAITS.format(without=without)]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=100)
    assert done.stdout.splitlines() == ["True True"] * 4 + ["7 False True", "True 50"], done.stderr


# Consoles of other code pages than UTF-8, as Windows has them: redirected output, too


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "command"),
    [
        ("cp936", "compare --batch-size 16 --steps 2 --warmup 1 --workers 0"),
        *((page, "run --on t4 program.py") for page in ("cp936", "cp932", "cp1252", "ascii")),
    ],
)
def test_no_sign_that_a_code_page_lacks_ends_a_command(page, command, tmp_path):
    """A sign that is not in the page comes as another: what is printed is its bytes, and nothing fails."""
    (tmp_path / "program.py").write_text(
        "import torch\nfor _ in range(3):\n    torch.ones(64).to('cuda').sum().item()\n"
    )
    settings = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": page, "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "loaderviz", *command.split()], cwd=tmp_path, env=settings, capture_output=True
    )
    said = (done.stdout + done.stderr).decode(page)
    assert done.returncode == 0 and "Error" not in said, said
    assert "open it in a browser." in said


# What a notebook's cell defines, and a worker that is started anew would have to import.
#
# A program that Python reads with -c is as a notebook's cells are: its `__main__` is no file that a worker can import.


CELLS = """
import functools, multiprocessing, torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset
import loaderviz as lv

class Squares(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return torch.tensor(index)

class Marker: pass
def collate(samples): return torch.stack(samples)
def local():
    class Inner(Squares): pass
    return Inner()

def tried(on, method, dataset, **given):
    with lv.record(on=on):
        try:
            loader = DataLoader(dataset, 2, num_workers=2, multiprocessing_context=method, **given)
            return sum(len(batch) for batch in loader)
        except RuntimeError as error:
            assert "num_workers=0" in str(error) and "%%writefile" in str(error), error
            return str(error).split(":")[0]

plain, deep = list(torch.ones(4)), TensorDataset(torch.ones(4))
deep.notes = {"a": [(Marker(),)]}
if __name__ == "__main__":
    TASKS
    print([tried(*case, **given) for case, given in cases], len(multiprocessing.active_children()))
"""
REFUSED = {
    "Squares": "Squares(), {}",
    "local.<locals>.Inner": "Subset(ConcatDataset([plain, local()]), range(4)), {}",
    "Marker": "deep, {}",
    "collate": "plain, {'worker_init_fn': functools.partial(collate)}",
    "<lambda>": "plain, {'collate_fn': lambda samples: samples}",
}


def said(on, *cases, method="spawn", file=None):
    """What came of these data sets and options, how many workers are left, and what was printed besides."""
    listed = ", ".join(f"(({on!r}, {method!r}, {case}".replace(", {", "), {", 1) + ")" for case in cases)
    code = CELLS.replace("TASKS", f"cases = [{listed}]")
    if file is not None:
        file.write_text(code, encoding="utf-8")
    run = [sys.executable, *([str(file)] if file else ["-c", code])]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=200)
    found, _, left = done.stdout.strip().rpartition(" ")
    assert found, done.stderr
    return ast.literal_eval(found), int(left), done.stderr


@pytest.mark.parametrize("on", ["t4", "cpu"])
def test_what_a_cell_defines_is_refused_at_once(on):
    assert said(on, *REFUSED.values()) == ([*REFUSED], 0, "")


@pytest.mark.slow
@pytest.mark.parametrize("on", ["t4", "cpu"])
def test_a_fork_server_refuses_it_too_and_what_can_be_imported_works(on):
    assert said(on, REFUSED["Squares"], "plain, {}", method="forkserver") == (["Squares", 4], 0, "")
    assert said(on, REFUSED["Squares"], method="fork") == ([4], 0, "")


@pytest.mark.slow
def test_a_script_has_its_classes_in_its_workers(tmp_path):
    assert said("cpu", "Squares(), {'collate_fn': collate}", file=tmp_path / "script.py") == ([4], 0, "")


def test_a_main_without_a_spec_keeps_nobody_from_workers(monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", types.SimpleNamespace(__name__="__main__"))
    with lv.record(on="cpu"):
        assert len(list(DataLoader([1, 2], num_workers=1, multiprocessing_context="fork"))) == 2
