"""What other systems lack, taken from this one: most programs run in a Python of their own, changed before."""

import ast
import itertools
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import time
import types
from functools import partial
from pathlib import Path

import factory
import pytest
import torch
from torch.utils.data import DataLoader

import loaderviz as lv
from loaderviz import machine
from loaderviz.analysis import calibration
from loaderviz.emulator import Host, host
from loaderviz.emulator.torch import dataloader, session
from loaderviz.traces import live, workers

ROOT = Path(__file__).parents[2]
START = multiprocessing.get_start_method()  # of this run's workers
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
from torch.utils.data import DataLoader, TensorDataset
import loaderviz as lv

DATA = TensorDataset(torch.arange(32.0))  # which torch copies to shared memory for spawned workers

def train():
    loader = DataLoader(DATA, 8, num_workers=1, pin_memory=True)
    return sum(batch.to("cuda", non_blocking=True).sum().item() for (batch,) in loader)

if __name__ == "__main__":
    with lv.record(on="a100", host="laptop") as recording:
        total = train()
    timeline = recording.timeline
    print(total, len(timeline), timeline.duration, lv.summarize(timeline).step, sep="|")
    with lv.record(on="a100") as recording:  # measured here
        assert train() == total
    with lv.record(on="cpu") as recording:
        assert sum(batch.sum().item() for (batch,) in DataLoader(DATA, 8, num_workers=1)) == total
    assert lv.summarize(recording.timeline).batches
    lv.advise(recording.timeline)
    CHECK
"""


def printed(python, folder, before="", check=""):
    """What the program prints in a Python that was changed by some lines."""
    text = before + PROGRAM.replace("CHECK", check)
    (folder / "program.py").write_text(text)
    done = python.run("program.py", folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def here(tmp_path_factory, new_python):
    return printed(new_python, tmp_path_factory.mktemp("here"))


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
def test_a_system_that_lacks_it_gives_the_same_timeline(before, check, here, tmp_path, new_python):
    assert printed(new_python, tmp_path, before, check) == here


MAIN_JOB = """
import multiprocessing, sys
multiprocessing.set_start_method(sys.argv[1])
from loaderviz.cli import main
sys.exit(main(["compare", "--host", "laptop", "--json", "numbers.json"]))
"""


@pytest.mark.slow
@pytest.mark.skipif(START == "fork", reason="`make test-spawn` runs it; forked workers: test_workflow.py")
def test_the_numbers_of_the_main_job_are_those_of_the_repository(tmp_path):
    factory.python("-c", MAIN_JOB, START, folder=tmp_path).check_returncode()
    same = factory.script("tests/portability/same_numbers.py")
    here = same.numbers(json.loads((tmp_path / "numbers.json").read_text(encoding="utf-8")))
    assert same.differences(here, json.loads(same.KEPT.read_text(encoding="utf-8"))) == [] and len(here) > 100


# Clocks that tick each 15.625 ms, as the processor's clocks of Windows do


TICK = 15_625_000  # ns


def test_the_clocks_of_a_worker_may_tick_apart(monkeypatch):
    """What its other threads took is the process's time less its own thread's, and so may be less than nothing."""
    real = time.process_time_ns
    monkeypatch.setattr(dataloader, "process_time_ns", lambda: real() // TICK * TICK)
    with lv.record(on="a100", host="auto") as recording:
        taken = list(DataLoader([torch.ones(4)] * 200, 4, num_workers=1, multiprocessing_context="fork"))
    assert len(taken) == 50 and recording.timeline.self_check()


@pytest.fixture
def ticking(monkeypatch):
    """A time [ns] that a program moves on: the processor's clocks show its last tick."""
    real = [0]
    for name in "thread_time_ns", "process_time_ns":
        monkeypatch.setattr(host, name, lambda: real[0] // TICK * TICK)
    for module in dataloader, session, machine, live, calibration:
        monkeypatch.setattr(module, "tick", lambda: TICK)
    waiting = host.WaitingTime
    monkeypatch.setattr(waiting, "wall", staticmethod(lambda: real[0]))
    monkeypatch.setattr(waiting, "_own", staticmethod(host.process_time_ns))
    monkeypatch.setattr(host, "os", types.SimpleNamespace(listdir=lambda path: []))
    monkeypatch.setattr(host, "switches", lambda: -1)  # Windows does not tell who let go of a core
    return real


def burns(real, time, count):
    """Samples that take so many ns of this processor each."""

    def sample(_):
        real[0] += time
        return torch.ones(1)

    return factory.Samples(sample, count)


def test_the_tick_of_a_clock_is_found(monkeypatch):
    reads = itertools.count(7_000_000, 1_000)
    monkeypatch.setattr(machine, "thread_time_ns", lambda: next(reads) // TICK * TICK)
    assert machine.tick.__wrapped__() == TICK
    monkeypatch.undo()
    assert 0 < machine.tick.__wrapped__() < machine.COARSE


def test_fetches_are_measured_right_in_sum_by_a_clock_that_ticks(ticking):
    """Each takes 5 ms, of which 1 ms is the emulator's: so the clock says 0 ms, or 15.6."""
    meter = dataloader.Meter(Host.preset("laptop"), True)
    meter.overhead, work, waited = 10_000, 0, 0
    for _ in range(1000):
        with meter:
            ticking[0] += 5_000_000
            meter.calls = 100
        work, waited = work + meter.work, waited + meter.waited.time
    assert abs(work - 4_000_000_000) <= 2 * TICK and waited <= 2 * TICK
    for _ in range(1000):
        with meter:
            ticking[0] += 1_000_000
            meter._waits_from = meter._waits_from._replace(wall=meter._waits_from.wall - 2_000_000)  # a wait
        waited += meter.waited.time
    assert abs(waited - 2_000_000_000) <= 3 * TICK


@pytest.mark.parametrize(
    ("time", "count", "noted"), [(5_000_000, 12, True), (1_500_000, 100, True), (150_000, 100, False)]
)
def test_time_that_nothing_prices_is_noted_however_the_clock_ticks(ticking, time, count, noted):
    with lv.record(on="a100", host="laptop") as recording:
        for batch in DataLoader(burns(ticking, time, count)):
            batch.to("cuda")
    assert recording.timeline.context.unpriced == ("data set",) * noted
    assert not any("clock" in note for note in recording.timeline.context.notes)  # nothing of it is in the timeline


def test_a_timeline_says_that_the_clock_it_was_measured_with_ticks(ticking):
    for on in "a100", "cpu":
        with lv.record(on=on, host="auto") as recording:
            for _ in DataLoader(burns(ticking, 1_000, 4)):
                pass
        notes = recording.timeline.context.notes
        assert sum("goes on by 15.62 ms at once" in note for note in notes) == 1, notes


def test_what_a_worker_waited_for_is_right_in_sum_by_a_clock_that_ticks(tmp_path):
    """It works 5 ms for each batch, and waits for 1 ms."""
    now = 0
    with (tmp_path / "0-0").open("wb") as file:
        for index in range(300):
            for what, time in (workers.What.BEGAN, 6_000_000), (workers.What.ENDED, 0):
                busy = now * 5 // 6 // TICK * TICK
                file.write(workers.RECORD.pack(what, 0, index, now, 8, 0, -1, 0, 0, 0, 0, busy, -1, 0))
                now += time
    fetches, *_ = workers.read_files(tmp_path)
    assert len(fetches) == 300 and abs(sum(fetch.waited for fetch in fetches) - 300_000_000) <= 2 * TICK


def test_a_machine_whose_clock_ticks_is_calibrated_on_the_wall(ticking):
    found = calibration.calibrate()
    measured = {name for name, source in found.sources.items() if source == calibration.MEASURED}
    assert {"memory_bandwidth", "flops"} <= measured and not {"fetch_base", "hand_out"} & measured
    assert found.memory_bandwidth < 10**12 and found.flops < 10**14


# The processor's name is told in another place on each system


def test_the_name_of_the_processor_on_windows_is_the_registrys(monkeypatch):
    class Key:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    places = []
    winreg = types.SimpleNamespace(
        HKEY_LOCAL_MACHINE="HKLM",
        OpenKey=lambda *place: places.append(place) or Key(),
        QueryValueEx=lambda key, name: ({"ProcessorNameString": " 13th Gen Intel(R) Core(TM) i7 "}[name], 1),
    )
    monkeypatch.setitem(sys.modules, "winreg", winreg)
    monkeypatch.setattr(sys, "platform", "win32")
    assert machine.processor() == "13th Gen Intel(R) Core(TM) i7"
    assert places == [("HKLM", r"HARDWARE\DESCRIPTION\System\CentralProcessor\0")]
    winreg.OpenKey = lambda *_: (_ for _ in ()).throw(FileNotFoundError)
    assert machine.processor() == (platform.processor() or platform.machine())


def test_the_name_of_the_processor_on_a_mac_is_sysctls(monkeypatch, tmp_path):
    (tmp_path / "sysctl").write_text("#!/bin/sh\n[ \"$1 $2\" = '-n machdep.cpu.brand_string' ] && echo Apple M2\n")
    (tmp_path / "sysctl").chmod(0o755)
    other = platform.processor() or platform.machine()
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.processor() == "Apple M2"
    monkeypatch.setenv("PATH", "")
    assert machine.processor() == other


def test_the_name_of_the_processor_is_the_recordings(monkeypatch):
    monkeypatch.setattr(live, "processor", lambda: "Apple M2")
    with lv.record(on="cpu") as recording:
        torch.ones(1)
    assert recording.timeline.context.device == "CPU alone (Apple M2)"


# Windows deletes no file that a process has open


KEEPS = """
import os, shutil, tempfile
from glob import glob
def opened():
    for link in glob("/proc/[0-9]*/fd/*"):
        try:
            yield os.readlink(link)
        except OSError:
            pass
def keeping(path, real=os.unlink):
    if os.path.realpath(path) in opened():
        raise PermissionError(13, "The process cannot access the file", path)
    real(path)
os.unlink = os.remove = keeping
shutil._use_fd_functions = False
folders = lambda: glob(os.path.join(tempfile.gettempdir(), "loaderviz-*"))
"""
LIVES_ON = """
import torch, loaderviz as lv
from torch.utils.data import DataLoader
if __name__ == "__main__":
    for _ in range(2):
        loader = DataLoader(torch.ones(8), 2, num_workers=1, persistent_workers=True)
        with lv.record(on="cpu") as recording:
            list(loader)
        print(len(folders()), lv.summarize(recording.timeline).batches, len(list(loader)))
    with lv.record(on="cpu") as recording:
        [folder] = folders()
        busy = open(os.path.join(folder, "0-7"), "wb")
    print(len(folders()), os.listdir(folders()[0]))
    busy.close()
"""


@pytest.mark.slow
def test_temporary_files_go_though_workers_live_on(tmp_path, new_python):
    (tmp_path / "program.py").write_text(KEEPS + SPAWN + LIVES_ON)
    done = new_python.run("program.py", folder=tmp_path, TMPDIR=str(tmp_path))
    assert done.stdout.splitlines() == ["0 3 4", "0 3 4", "1 ['0-7']"], done.stderr
    assert not list(tmp_path.glob("loaderviz-*"))  # the last one went at the program's end


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
        with lv.record(on="t4", threads=False):
            waits(wait, queue.put)
    except NotModelledError as error:
        print("second Python thread" in str(error), (threading._allocate_lock, threading.Thread.join) == names)

with lv.record(on="t4", threads=False):  # waits that end are as ever, however often they are looked at
    with ThreadPoolExecutor(1) as pool:
        print(pool.submit(lambda: time.sleep(0.2) or 7).result(), event.wait(0.01), queue.empty())
    sent = [threading.Thread(target=queue.put, args=(each,)) for each in range(50)]
    [each.start() for each in sent]
    print(sorted(queue.get() for _ in sent) == [*range(50)], [each.join() for each in sent].count(None))
"""


@pytest.mark.slow
@pytest.mark.parametrize("without", [True, False])
def test_a_refusal_in_a_thread_ends_the_wait_for_it(without, tmp_path, new_python):
    done = new_python.run("-c", WAITS.format(without=without), folder=tmp_path)
    assert done.stdout.splitlines() == ["True True"] * 4 + ["7 False True", "True 50"], done.stderr


# Consoles of other code pages than UTF-8, as Windows has them: redirected output, too


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "command"),  # what is printed for a sign of each code page: test_command_line.py
    [("cp936", "compare --batch-size 16 --steps 2 --warmup 1 --workers 0"), ("ascii", "run --on t4 program.py")],
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
    assert done.returncode == 0 and "Error" not in said and "\\x" not in said, said
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


@pytest.fixture
def said(tmp_path, new_python):
    """Return a function: what comes of data sets and options, how many workers are left, what is printed besides."""
    return partial(said_by, new_python, tmp_path)


def said_by(python, folder, on, *cases, method="spawn", file=None):
    listed = ", ".join(f"(({on!r}, {method!r}, {case}".replace(", {", "), {", 1) + ")" for case in cases)
    code = CELLS.replace("TASKS", f"cases = [{listed}]")
    if file is not None:
        file.write_text(code, encoding="utf-8")
    done = python.run(*([file] if file else ["-c", code]), folder=folder)
    found, _, left = done.stdout.strip().rpartition(" ")
    assert found, done.stderr
    return ast.literal_eval(found), int(left), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("on", ["t4", "cpu"])
def test_what_a_cell_defines_is_refused_at_once(said, on):
    assert said(on, *REFUSED.values()) == ([*REFUSED], 0, "")


@pytest.mark.slow
def test_a_fork_server_refuses_it_too_and_what_can_be_imported_works(said):
    assert said("cpu", REFUSED["Squares"], "plain, {}", method="forkserver") == (["Squares", 4], 0, "")
    assert said("t4", REFUSED["Squares"], method="fork") == ([4], 0, "")


@pytest.mark.slow
def test_a_script_has_its_classes_in_its_workers(said, tmp_path):
    assert said("cpu", "Squares(), {'collate_fn': collate}", file=tmp_path / "script.py") == ([4], 0, "")


def test_a_main_without_a_spec_keeps_nobody_from_workers(monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", types.SimpleNamespace(__name__="__main__"))
    with lv.record(on="cpu"):
        assert len(list(DataLoader([1, 2], num_workers=1, multiprocessing_context="fork"))) == 2
