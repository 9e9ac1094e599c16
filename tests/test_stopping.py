"""Nothing that was recorded is lost: by a signal, by an output that cannot be written, by an error of the program."""

import contextlib
import gc
import gzip
import json
import multiprocessing.util
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import loaderviz as lv
from loaderviz import cli
from loaderviz.analysis import calibration
from loaderviz.emulator.host import processor_time
from loaderviz.emulator.torch import dataloader
from loaderviz.errors import LoadervizError, NotWritableError
from loaderviz.files import writable, write
from loaderviz.stopping import Stopping, signals_held
from loaderviz.timeline import Timeline

LOOP = """
import sys
import torch
from torch.utils.data import DataLoader

where = sys.argv[1]
weight = torch.ones(100, requires_grad=True, device=where)
optimizer = torch.optim.SGD([weight], 0.1)
for epoch in range(10_000):
    for step, batch in enumerate(DataLoader(torch.ones(640, 100), 16, num_workers=2, pin_memory=where == "cuda")):
        (batch.to(where) @ weight).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if epoch == step == 0:
            print("begun", flush=True)
"""
GPU = "import torch\ntorch.ones(1000).to('cuda').sum().item()\n"
POSIX = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "temp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))
    return tmp_path


@pytest.fixture
def temp(here):
    """A folder with a short name: the path of a worker's socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(dir=here.parents[1]) as folder:
        yield Path(folder)


def run(text, *options, on="t4"):
    Path("program.py").write_text(textwrap.dedent(text), encoding="utf-8")
    return cli.main(["run", "--on", on, "--host", "laptop", *map(str, options), "program.py"])


# Signals


def alive(session):
    """Count the processes of this session."""
    found = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its_session = file.read_text().rpartition(") ")[2].split()[:4]
            found += int(its_session) == session and state != "Z"
        except OSError:
            continue
    return found


def stopped(here, warm, on, number, after, *, group=False, times=1):
    """Send a signal to a recorded loop some seconds after its first step; return what is wrong with its end."""
    (here / "program.py").write_text(LOOP)
    temp, page = Path(tempfile.mkdtemp(dir="/tmp")), here / "timeline.html"  # the names of sockets in it are short
    command = ["-m", "loaderviz", "run", "--on", on, "program.py", "cpu" if on == "cpu" else "cuda"]
    process = warm.start(*command, folder=here, TMPDIR=str(temp))
    while warm.out.read_text() != "begun\n":
        assert "Traceback" not in warm.err.read_text()
        time.sleep(0.01)
    time.sleep(after)
    for _ in range(times):
        (os.killpg if group else os.kill)(process, number)
    status, said = warm.ended(), warm.err.read_text()
    wrong = {
        "status": status if status != 128 + number else 0,
        "page": not page.exists()
        or f"stopped by {number.name}" not in said
        or not re.search(r"step +\S+ \S+ +\d+ batch(es)?\b", said),  # one, on a busy machine
        "folders": [each.name for each in temp.iterdir() if each.name.startswith("loaderviz")],
        "processes": alive(process),
        "noise": re.findall("Exception (?:in thread|ignored).*", said),
    }
    shutil.rmtree(temp)
    page.unlink(missing_ok=True)
    return {name: value for name, value in wrong.items() if value}


@POSIX
@pytest.mark.parametrize(
    ("on", "name", "more"),
    [
        ("cpu", "SIGTERM", {"group": True, "times": 2}),
        ("t4", "SIGHUP", {}),
        ("cpu", "SIGINT", {}),
        ("t4", "SIGINT", {"group": True}),
    ],
)
def test_a_signal_keeps_what_was_recorded_and_leaves_nothing_behind(here, warm, on, name, more):
    assert stopped(here, warm, on, getattr(signal, name), 0.3, **more) == {}


@POSIX
@pytest.mark.slow
@pytest.mark.parametrize("on", ["cpu", "a100"])
def test_signals_at_random_moments(here, warm, on):
    draw = random.Random(on)
    for _ in range(3):
        number = draw.choice([signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
        case = number, 2 * draw.random(), draw.random() < 0.4, draw.choice([1, 2])
        assert stopped(here, warm, on, *case[:2], group=case[2], times=case[3]) == {}, case


@pytest.mark.parametrize("stops", [True, False])
def test_a_pin_thread_says_of_a_worker_that_is_gone_only_what_nobody_else_says(monkeypatch, stops):
    def loop(in_queue, out_queue, device_id, done_event, device):
        raise ConnectionResetError("the worker is gone")

    monkeypatch.setattr(dataloader, "TELLS_OF_WORKERS", 0.01)
    done = threading.Event()
    if stops:
        done.set()
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(dataloader.pin_loop, loop, None, None, 0, done, None).exception()
    assert type(told) is (type(None) if stops else ConnectionResetError)


@POSIX
def test_a_signal_that_python_swallows_is_sent_again(here, capsys):
    text = """
    import os, signal, torch
    torch.ones(1000).to("cuda").sum().item()
    class Held:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)
            sum(range(1000))
    held = Held()
    del held
    while True:
        torch.ones(10).to("cuda")
    """
    assert run(text) == 128 + signal.SIGTERM
    assert "stopped by SIGTERM" in capsys.readouterr().err and Path("timeline.html").exists()


@POSIX
@pytest.mark.parametrize(
    ("ending", "name", "status"),
    [
        ("pass", "SIGINT", 0),
        ("sys.exit(4)", "SIGINT", 4),
        ("pass", "SIGTERM", 143),
        ("raise ValueError", "SIGHUP", 129),
    ],
)
def test_a_program_that_deals_with_ctrl_c_has_its_own_status(here, ending, name, status):
    kill = f"import os, signal, sys\ntry:\n    os.kill(os.getpid(), signal.{name})\n    input()\n"
    assert run(f"{GPU}{kill}except KeyboardInterrupt:\n    {ending}\n") == status
    assert Path("timeline.html").exists()


LEAVES = """
import os, shutil, signal, sys, threading, time
import torch
from torch.utils.data import DataLoader, TensorDataset

x = torch.ones(1000, requires_grad=True, device="cuda" if torch.cuda.is_available() else "cpu")
(x * 2).sum().backward()


def on_signal():
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        x.sum().item()


def unheard():
    try:
        os._exit(0)
    finally:
        print("never")


def wrong():
    try:
        os._exit("3")
    except TypeError as error:
        print(error)
    os._exit(status=11)


def in_backward():
    x.register_hook(lambda _: os._exit(6))
    (x * 2).sum().backward()


def between_batches():
    for batch in DataLoader(TensorDataset(torch.ones(8)), 2, num_workers=1):
        with torch.no_grad(), torch.autocast("cpu"):
            os._exit(300)


def child():
    if not (other := os.fork()):
        os._exit(9)
    print(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
    os._exit(8)


def thread():
    threading.Thread(target=os._exit, args=(4,)).start()
    time.sleep(60)


def without_a_place():
    shutil.rmtree("pages")
    os._exit(0)


globals()[sys.argv[1]]()
"""


@POSIX
@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "on", "status", "printed"),
    [
        ("on_signal", "cpu", 7, ""),
        ("unheard", "t4", 0, ""),
        ("wrong", "cpu", 11, "'str' object cannot be interpreted as an integer"),
        ("in_backward", "t4", 6, ""),
        ("in_backward", "cpu", 6, ""),
        ("between_batches", "t4", 300 % 256, ""),
        ("between_batches", "cpu", 300 % 256, ""),
        ("child", "t4", 8, "9"),
    ],
)
def test_a_program_that_leaves_at_once_has_its_page(here, temp, new_python, how, status, printed, on):
    """In a Python that was forked without loaderviz: else it is a child itself."""
    done = leave(here, temp, new_python, how, on)
    assert (done.returncode, done.stdout.strip()) == (status, printed)
    assert len(Timeline.load(here / "t.json.gz")) > 5
    assert "program.py" in (here / "pages/page.html").read_text("utf-8")
    assert not any(temp.glob("loaderviz*"))


@pytest.mark.slow
def test_a_program_that_leaves_at_once_is_told_what_is_lost(here, temp, new_python):
    done = leave(here, temp, new_python, "thread", "t4")
    assert done.returncode == 4 and not (here / "t.json.gz").exists()
    assert "a thread of the program has called os._exit, so nothing that was recorded is kept" in done.stderr
    done = leave(here, temp, new_python, "without_a_place", "t4")
    assert done.returncode == 1 and "pages" in done.stderr and (here / "t.json.gz").exists()
    assert [path.suffix for path in temp.rglob("*.gz")] == [".gz"]


def leave(here, temp, new_python, how, on):
    """Record a program that ends by os._exit; return what became of it."""
    (here / "pages").mkdir(exist_ok=True)
    (here / "program.py").write_text(LEAVES)
    command = "-m", "loaderviz", "run", "--on", on, "--out", "pages/page.html", "--save", "t.json.gz"
    return new_python.run(*command, "program.py", how, folder=here, TMPDIR=str(temp))


@POSIX
def test_a_forked_child_has_the_signals_as_they_were():
    with Stopping() as stopping:
        stopping.begin()
        with signals_held():
            child = os.fork()
            if not child:
                os.kill(os.getpid(), signal.SIGTERM)
                os._exit(5)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        stopping.end()


@POSIX
def test_an_interrupt_that_python_swallows_in_a_worker_is_sent_again(capfd):
    """Ctrl-C reaches a worker also while it collects garbage, where Python ignores what a callback raises."""

    def callback(*_):
        gc.callbacks.remove(callback)
        signal.raise_signal(signal.SIGINT)
        sum(range(1000))

    with Stopping() as stopping:
        stopping.begin()
        with signals_held():
            child = os.fork()
            if not child:
                gc.callbacks.append(callback)
                with contextlib.suppress(BaseException):
                    gc.collect()
                    time.sleep(10)
                    os._exit(5)
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        stopping.end()
    assert "ignored" not in capfd.readouterr().err


@POSIX
def test_an_interrupt_in_a_collection_of_garbage_is_heard_after_it(capfd):
    """Also in a recording that no command watches over: our callback of the collector runs no bytecode."""
    others = gc.callbacks[:]  # hypothesis has one that does
    gc.callbacks.clear()
    before, heap = signal.signal(signal.SIGALRM, signal.default_int_handler), [[number] for number in range(1_000_000)]
    processor_time.watch()
    try:
        for _ in range(5):
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.005)  # a collection takes 70 ms
                gc.collect()
                sum(range(len(heap)))
            start, own = time.thread_time_ns(), processor_time()
            gc.collect()
            assert 0 <= processor_time() - own < (time.thread_time_ns() - start) / 4
    finally:
        processor_time.watch(False)
        signal.signal(signal.SIGALRM, before)
        gc.callbacks[:] = others
    assert "ignored" not in capfd.readouterr().err


def test_threads_that_read_the_time_at_once_take_each_others_collections():
    """The one that was to be taken next may have been taken by another thread meanwhile."""
    before, stop = sys.getswitchinterval(), threading.Event()

    def read():
        while not stop.is_set():
            gc.collect(0)
            processor_time()

    processor_time.watch()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            runs = [pool.submit(read) for _ in range(4)]
            time.sleep(0.5)
            stop.set()
            assert [run.exception() for run in runs] == [None] * 4
    finally:
        sys.setswitchinterval(before)
        processor_time.watch(False)
    assert not processor_time._noted and not processor_time._elsewhere


@POSIX
def test_held_signals_come_after_the_block():
    seen = []
    with pytest.raises(KeyboardInterrupt):
        with signals_held():
            os.kill(os.getpid(), signal.SIGINT)
            seen.append(sum(range(100)))
        seen.append("never")
    assert seen == [4950]


# Handlers that the program has of its own: they are called, their status counts, and the recording is kept


@pytest.fixture
def handlers():
    before = {number: signal.getsignal(number) for number in (signal.SIGALRM, signal.SIGUSR1, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


OWN = """
import os, signal, sys, torch
def mine(number, frame):
    print("mine", signal.Signals(number).name, flush=True)
    {does}
old = signal.signal(signal.{name}, mine)
assert old in (signal.SIG_DFL, signal.default_int_handler), old
torch.ones(1000).to("cuda").sum().item()
os.kill(os.getpid(), signal.{name})
for _ in range(100):
    torch.ones(10).to("cuda").sum().item()
print("went on", flush=True)
"""
AGAIN = "signal.signal(number, signal.SIG_DFL); os.kill(os.getpid(), number)"


@POSIX
@pytest.mark.parametrize(
    ("name", "does", "status", "printed"),
    [
        ("SIGUSR1", "pass", 0, ["mine SIGUSR1", "went on"]),  # a checkpoint, before the time of a batch job is over
        ("SIGTERM", "sys.exit(0)", 0, ["mine SIGTERM"]),
        ("SIGTERM", "sys.exit(85)", 85, ["mine SIGTERM"]),  # asks a batch system to queue it again
        ("SIGTERM", "raise KeyboardInterrupt", 130, ["mine SIGTERM"]),
        ("SIGTERM", "raise ValueError('over')", 1, ["mine SIGTERM"]),
        ("SIGTERM", AGAIN, 143, ["mine SIGTERM"]),
        ("SIGHUP", "signal.signal(number, old); signal.raise_signal(number)", 129, ["mine SIGHUP"]),
        (
            "SIGINT",
            "signal.signal(number, signal.SIG_IGN); os.kill(os.getpid(), number)",
            0,
            ["mine SIGINT", "went on"],
        ),
        ("SIGINT", "old(number, frame)", 130, ["mine SIGINT"]),
        ("SIGUSR2", "os.kill(os.getpid(), signal.SIGHUP)", 129, ["mine SIGUSR2"]),
    ],
)
def test_a_handler_of_the_programs_own_is_called_and_decides(here, handlers, capsys, name, does, status, printed):
    assert run(OWN.format(name=name, does=does), "--save", "kept.json") == status
    out, err = capsys.readouterr()
    assert out.splitlines() == printed and "The picture" in err
    assert len(Timeline.load("kept.json")) > 5 and Path("timeline.html").exists()


@POSIX
def test_a_handler_set_before_the_command_is_called_too_and_stays(here, handlers, capsys):
    came = []
    handler = lambda number, frame: came.append(number)  # noqa: E731
    signal.signal(signal.SIGTERM, handler)
    assert run(f"{GPU}import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n") == 0
    assert came == [signal.SIGTERM] and signal.getsignal(signal.SIGTERM) is handler


@POSIX
def test_the_program_sees_its_own_handlers_alone(here, handlers, capsys):
    """A trainer sets its handler for SIGUSR1 only where there is none; one puts back what was before."""
    text = """
    import signal, sys
    from signal import getsignal, signal as set_handler
    def mine(number, frame): pass
    found = [getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGTERM), set_handler(signal.SIGUSR1, mine)]
    print([each == signal.SIG_DFL for each in found], getsignal(signal.SIGUSR1) is mine)
    print(signal.signal(signal.SIGUSR1, signal.SIG_IGN) is mine, signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN)
    for wrong in (lambda: signal.signal(9, mine), lambda: signal.signal(15, "no"), lambda: signal.getsignal(4000)):
        try:
            wrong()
        except (OSError, TypeError, ValueError) as error:
            print(type(error).__name__)
    """
    before = signal.signal, signal.getsignal
    for on in "t4", "cpu":
        assert run(text, on=on) == 0
        assert capsys.readouterr().out.splitlines() == [
            "[True, True, True] True", "True True", "OSError", "TypeError", "ValueError",
        ]  # fmt: skip
        assert (signal.signal, signal.getsignal) == before


HANDLES = """
import signal, sys
for n in (signal.SIGTERM, signal.SIGALRM):
    signal.signal(n, lambda *_: sys.exit(9))
sys.exit(4)
"""


@POSIX
@pytest.mark.parametrize(
    ("text", "names", "status"),
    [("", ["SIGINT"], 0), (HANDLES, ["SIGTERM", "SIGTERM", "SIGALRM", "SIGUSR1"], 4)],
    ids=["complete", "handlers of its own"],
)
def test_what_is_written_is_finished_and_the_handlers_are_put_back(
    here, handlers, monkeypatch, capsys, text, names, status
):
    before, told = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)], Timeline.save

    def save(timeline, file):
        for name in names:
            os.kill(os.getpid(), getattr(signal, name))
        told(timeline, file)

    monkeypatch.setattr(Timeline, "save", save)
    assert run(GPU + text, "--save", "kept.json") == status  # the program's own
    assert Timeline.load("kept.json") and Path("timeline.html").exists()
    assert text or [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


SAVES = """
import io, signal, torch
model = torch.nn.Linear(50, 50).to("cuda")
before, found = {name: value.cpu() for name, value in model.state_dict().items()}, []
def save(number, frame):
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    kept = torch.load(io.BytesIO(file.getvalue()), map_location="cpu")
    found.append(all(torch.equal(kept[name], before[name]) for name in before))
    signal.setitimer(signal.ITIMER_REAL, 0.003 if len(found) < 40 else 0)
signal.signal(signal.SIGALRM, save)
save(0, None)
while len(found) < 40:
    model(torch.ones(64, 50, pin_memory=True).to("cuda", non_blocking=True)).mean().backward()
print(found.count(True))
"""


@POSIX
def test_a_handler_that_saves_a_checkpoint_finds_the_model_whole(here, handlers, capsys):
    """Between two calls of the emulated GPU, as of a real one: inside one a tensor has no memory yet."""
    assert run(SAVES) == 0
    assert capsys.readouterr().out == "40\n"


@POSIX
def test_handlers_are_the_programs_again_after_a_recording(handlers):
    mine, other = (lambda *_: None), (lambda *_: None)
    signal.signal(signal.SIGALRM, mine)
    with lv.record(on="t4"):
        assert signal.getsignal(signal.SIGALRM) is mine
        assert signal.signal(signal.SIGUSR1, other) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGALRM) is mine and signal.getsignal(signal.SIGUSR1) is other


# Outputs that cannot be written


@pytest.mark.parametrize("option", ["--out", "--save", "--json"])
@pytest.mark.parametrize("name", ["no/page.html", ".", "x" * 256, "a\0b"])
def test_an_output_is_tried_before_the_program_starts(here, capsys, option, name):
    assert run("open('ran', 'w')", option, name) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"loaderviz: cannot write {name}: ") and err.count("\n") == 1
    assert not Path("ran").exists() and [each.name for each in here.iterdir()] in (
        ["temp", "program.py"],
        ["program.py", "temp"],
    )


WRITING = (
    "run --on t4 {} program.py --out", "compare --out", "compare --json", "view t.json --out", "calibrate --save",
    "lessons", "handout --out", "slides 03 --out", "room --port 0 --folder",
)  # fmt: skip


@pytest.mark.parametrize("name", ["a\0b", "x" * 256, "program.py/below", "y/" * 2100 + "page"])
@pytest.mark.parametrize("command", WRITING)
def test_a_path_that_cannot_be_is_one_sentence_of_each_command_that_writes(here, capsys, command, name):
    Path("program.py").write_text(GPU)
    words = command.format("").split()
    words = [*words[:3], words[-1], name, *words[3:-1]] if words[0] == "run" else [*words, name]
    assert cli.main(words) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("loaderviz: ") and name in err
    assert sorted(each.name for each in here.iterdir()) == ["program.py", "temp"]


@pytest.mark.parametrize("name", ["with a space", "Größe 数据 é", "z" * 255, "-o", "a'b\"c$(d)"])
@pytest.mark.parametrize("command", ["handout --out", "calibrate --save", "lessons"])
def test_any_name_that_the_system_takes_is_written(here, capsys, monkeypatch, command, name):
    monkeypatch.setattr(tempfile, "tempdir", None)  # the path of this test's is too long for a socket
    words = command.split()
    assert cli.main([*words[:-1], f"{words[-1]}={name}"] if words[1:] else [*words, "--", name]) == 0
    assert name in capsys.readouterr().out and [each.name for each in here.iterdir() if each.name != "temp"] == [name]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a tensor goes another way")
def test_a_machine_is_not_measured_where_no_tensor_can_come_from_a_worker(here, capsys, monkeypatch):
    monkeypatch.setattr(calibration, "PATIENCE", 1)
    deep = here / ("deep" * 30)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    monkeypatch.setattr(multiprocessing.util, "get_temp_dir", lambda: str(deep))
    assert cli.main(["calibrate", "--save", "host.toml"]) == 1
    assert "did not send a batch" in (err := capsys.readouterr().err) and "TMPDIR" in err and err.count("\n") == 1
    assert not (here / "host.toml").exists()


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs POSIX")
def test_a_room_whose_folder_takes_no_rows_does_not_open(here, capsys, monkeypatch):
    Path("rows").mkdir()
    monkeypatch.setattr(
        "loaderviz.files.Path.open", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied"))
    )
    assert cli.main(["room", "--port", "0", "--folder", "rows"]) == 1
    assert "cannot write rows/" in (err := capsys.readouterr().err) and "Permission denied" in err


def test_the_longest_name_can_be_written_and_an_old_file_stays_until_then(here):
    name = "x" * 255
    assert write(name, "old").read_text() == "old"
    assert writable(name).read_text() == "old" and len(list(here.iterdir())) == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("full", ["--out", "--save", "--json"])
def test_what_cannot_be_written_afterwards_is_named_and_the_rest_is_written(here, capsys, full):
    files = {"--out": "page.html", "--save": "kept.json", "--json": "report.json"} | {full: "/dev/full"}
    assert run(GPU, *(each for pair in files.items() for each in pair)) == 1
    err = capsys.readouterr().err
    assert "cannot write /dev/full: No space left on device" in err
    assert "GPU computes" in err and "Judged: " in err
    assert all(Path(file).stat().st_size > 100 for file in files.values() if file != "/dev/full")
    [kept] = (here / "temp").glob("loaderviz*")
    assert str(kept) in err and len(Timeline.load(kept)) > 5 and kept.read_bytes().startswith(b"\x1f\x8b")


@POSIX
@pytest.mark.slow
def test_a_file_that_grows_too_large_leaves_the_others(here, new_python):
    text = f"{GPU}import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    Path("program.py").write_text(text + "resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))\n")
    command = "-m", "loaderviz", "run", "--on", "t4", "--json", "r.json", "program.py"
    done = new_python.run(*command, folder=here, TMPDIR=str(here / "temp"))
    assert done.returncode == 1 and "cannot write timeline.html: File too large" in done.stderr
    assert "the recording is kept in" in done.stderr and "Judged: " in done.stderr
    assert json.loads(Path("r.json").read_text())["schema"]
    assert sorted(each.name for each in here.iterdir()) == ["program.py", "r.json", "temp"]


SMALL = "mkdir disk && mount -t tmpfs -o size=200k none disk && cp program.py disk && cd disk && "


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs to mount a disk"
)
@pytest.mark.parametrize("also_full", [False, True])
def test_a_disk_of_200_kb_takes_what_has_room_and_the_rest_is_kept(here, also_full):
    """Where the temporary folder is on that disk, too, the recording has room there when it is packed."""
    Path("program.py").write_text("import torch\nfor _ in range(150):\n    torch.ones(9).to('cuda').sum().item()\n")
    temp = here / ("disk" if also_full else "temp")
    command = "run --on t4 --host laptop --out page.html --json report.json --save kept.json program.py"
    line = f"{SMALL}{sys.executable} -m loaderviz {command}; echo $?; ls -A; cat {temp}/loaderviz*"
    environment = os.environ | {"PYTHONPATH": str(Path(lv.__file__).parents[1]), "TMPDIR": str(temp)}
    done = subprocess.run(["unshare", "-m", "sh", "-c", line], capture_output=True, check=False, env=environment)
    if b"mount" in done.stderr:
        pytest.skip(done.stderr.decode())
    listed, _, packed = done.stdout.partition(b"\x1f\x8b")
    status, *names = listed.decode().split()
    assert status == "1" and {"page.html", "report.json", "program.py"} <= {*names} and "kept.json" not in names
    assert not [name for name in names if name.startswith(".")] and b"cannot write kept.json: No space" in done.stderr
    assert b"Judged: " in done.stderr and b"the recording is kept in " + os.fsencode(temp) in done.stderr
    assert len(json.loads(gzip.decompress(b"\x1f\x8b" + packed))["spans"]["start"]) > 1_000


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_standard_output_loses_nothing(here):
    Path("program.py").write_text(GPU + "print('told')\n")
    environment = os.environ | {"PYTHONPATH": str(Path(lv.__file__).parents[1]), "PYTHONUNBUFFERED": ""}
    command = f"{sys.executable} -m loaderviz run --on t4 program.py > /dev/full"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1 and "standard output" in done.stderr and "Traceback" not in done.stderr
    assert Path("timeline.html").exists()


def test_errors_of_files_are_ours_and_the_systems():
    with pytest.raises(NotWritableError, match="cannot write /dev/xxx") as told:
        write("/dev/" + 300 * "x", "")
    assert isinstance(told.value, LoadervizError) and isinstance(told.value, OSError)


# Programs that fail


@pytest.mark.parametrize("before", ["", GPU])
@pytest.mark.parametrize("on", ["t4", "cpu"])
def test_a_program_that_fails_leaves_its_report(here, capsys, before, on):
    text = before.replace("cuda", "cpu") if on == "cpu" else before
    assert run(text + "raise ValueError('too late')\n", "--json", "r.json", "--save", "t.json", on=on) == 1
    found = json.loads(Path("r.json").read_text())
    assert isinstance(found["notes"], list) and (before or found["summary"]["step"] is None)
    assert "ValueError: too late" in capsys.readouterr().err and Path("t.json").exists()
    assert not list((here / "temp").glob("loaderviz*"))
