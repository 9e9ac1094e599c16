"""What leaves the machine: files hold no folder, user, host, environment or command line; nothing is asked for."""

import base64
import gzip
import json
import os
import pickle
import re
import shlex
import socket
import subprocess
import sys
import warnings
import zlib
from pathlib import Path

import factory
import pytest
import torch

import loaderviz
from loaderviz import export, words
from loaderviz.analysis import calibration
from loaderviz.timeline import Kind, Look, Timeline

ROOT = Path(__file__).parents[1]
FOLDER = 'Ada\'s "<b>secret</b>" & $HOME `x` ünï 🧵; %2F'  # every sign that a file system of Linux takes
HIDDEN = {"HOME": "home-of-xyzzy", "USER": "user-xyzzy", "LOGNAME": "user-xyzzy", "TOKEN": "environment-xyzzy"}
ARGUMENT = "--token=command-line-xyzzy"
SOMEWHERE = re.compile(r"(?<![\w.:/&;])(?:/(?:home|root|tmp|usr|opt|work|var|mnt|Users|private)/|[A-Z]:\\)[^\s\"'<>]*")
slow = pytest.mark.slow
posix = pytest.mark.skipif(sys.platform == "win32", reason="its file systems take no such names")


def told(content):
    """Return all text of a file: also what is packed in it, pictures and data of a view among it."""
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    text = content.decode("utf-8", "replace")
    for packed in re.findall(r"[A-Za-z0-9+/]{200,}={0,2}", text):
        raw = base64.b64decode(packed + "=" * (-len(packed) % 4), validate=False)
        for open_it in (zlib.decompress, gzip.decompress, bytes):
            try:
                text += "\n" + open_it(raw).decode()
                break
            except (OSError, EOFError, ValueError, zlib.error):  # a picture, or the columns of a view
                continue
    return text.replace("\\/", "/").replace("\\u003c", "<")


def secrets(*folders):
    """Return what may be in no file: folders and parts of them, names and values of this process and its programs."""
    found = [*HIDDEN.values(), ARGUMENT.partition("=")[2], "secret", socket.gethostname(), sys.prefix, str(ROOT.parent)]
    return [each for each in [*found, *map(str, folders)] if len(each) > 3]


def check(text, folder):
    hidden = secrets(folder)
    ways = {each: (each, json.dumps(each)[1:-1], words.html(each)) for each in hidden}
    assert [each for each, written in ways.items() if any(way in text for way in written)] == []
    assert SOMEWHERE.findall(text) == []


def test_the_check_itself_sees_what_is_hidden_in_a_file():
    """In a saved timeline, packed in a Chrome trace, in a picture, in the data of a page."""
    timeline = factory.made(("main", 0, 10, Kind.API, {"source": "/home/ada/x.py:1"}), notes=("see /tmp/a b/c",))
    packed = json.dumps({"loaderviz": timeline.packed("full")}).encode() + b" " * 300
    for content in (packed, gzip.compress(packed), json.dumps(timeline.to_dict("full")).encode()):
        assert "/home/ada/x.py:1" in SOMEWHERE.findall(told(content)), content
    assert SOMEWHERE.findall(told(json.dumps(timeline.to_dict()).encode())) == ["/tmp/a"]
    page = timeline.view().fragment().encode()
    assert "x.py:1" in told(page) and "/home/ada" not in told(page)
    with pytest.raises(AssertionError):
        check("a user-xyzzy b", "/nowhere")


@pytest.mark.parametrize("on", ["a100", "cpu"])
def test_neither_an_error_nor_a_program_that_was_started_brings_its_folder_along(tmp_path, on):
    """What an error says belongs to the program, which gets it: in the notes of a timeline stands only its kind."""
    program = tmp_path / "secret of ada" / "job.py"
    program.parent.mkdir()
    program.write_text("")
    with pytest.raises(FileNotFoundError, match="no-such"), loaderviz.record(on=on) as recording:
        torch.ones(9).sum()
        subprocess.run([sys.executable, str(program), ARGUMENT], check=True)
        subprocess.run(
            f"{shlex.quote(sys.executable)} -S {shlex.quote(str(program))} {ARGUMENT}", shell=True, check=True
        )
        (program.parent / "no-such.bin").read_bytes()
    timeline = recording.timeline
    assert any(note.startswith("job.py runs in a process of its own") for note in timeline.context.notes)
    kinds = [note for note in timeline.context.notes if "ended the block" in note]
    assert kinds == (["FileNotFoundError ended the block; what came before it is here"] if on == "cpu" else [])
    text = json.dumps(timeline.to_dict("full")["context"]) + told(timeline.view().fragment().encode())
    assert not [each for each in ("secret", "no-such", str(tmp_path), ARGUMENT) if each in text]


# Ten kinds of recordings

PROGRAM = """
import json, os, sys, threading, warnings
import torch
import loaderviz as lv
from loaderviz.export import to_chrome_trace, to_html
from loaderviz.loaders import PinnedLoader
from torch.utils.data import DataLoader
from parts.data import Images, collated

warnings.filterwarnings("ignore", category=UserWarning, module="torch")  # of whether this machine has a GPU
torch.manual_seed(0)
model = torch.nn.Linear(64, 8)

def train(loader, device, net):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for images in loader:
        loss = net(images.to(device, non_blocking=True)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()

def emulated(**options):
    with lv.record(on="a100", **options) as recording:
        train(DataLoader(Images(), 8, collate_fn=collated, num_workers=1), "cuda", torch.nn.Linear(64, 8).cuda())
    return recording

def races():
    with lv.record(on="a100") as recording:
        with torch.cuda.stream(torch.cuda.Stream()):
            there = torch.ones(1 << 16).pin_memory().to("cuda", non_blocking=True)
        there.sum()
    return recording

def threads():
    with lv.record(on="a100") as recording:
        thread = threading.Thread(target=lambda: torch.ones(100, device="cuda").sum().item())
        thread.start()
        thread.join()
    return recording

def measured():
    with lv.record(on="a100", host="auto") as recording:
        train(DataLoader(Images(), 8, collate_fn=collated), "cuda", torch.nn.Linear(64, 8).cuda())
    return recording

def real(workers):
    with lv.record(on="cpu") as recording:
        train(DataLoader(Images(slow=True), 8, collate_fn=collated, num_workers=workers), "cpu", model)
    return recording

def fails():
    try:
        with lv.record(on="a100") as recording:
            torch.ones(3, device="cuda") @ torch.ones(4, device="cuda")
    except RuntimeError:
        return recording

def shown(name, timeline, hazards=()):
    advice = lv.advise(timeline)
    bundle = [timeline.view(advice=advice)._repr_mimebundle_(), timeline._repr_mimebundle_(), advice._repr_html_(),
              lv.summarize(timeline)._repr_html_(), repr(advice), repr(timeline), [str(each) for each in hazards],
              [each._repr_html_() for each in hazards]]
    with open(f"{OUT}/{name}.notebook.json", "w") as file:
        json.dump(bundle, file)

OUT = os.environ["OUT"]
kinds = {"emulated": emulated, "races": races, "threads": threads, "measured": measured, "fails": fails,
         "real": lambda: real(0), "workers": lambda: real(2)}
for name, kind in kinds.items():
    recording = kind()
    timeline = recording.timeline
    hazards = recording.hazards if timeline.context.origin == "emulated" else ()
    timeline.save(f"{OUT}/{name}.json")
    to_chrome_trace(timeline, f"{OUT}/{name}.trace.json")
    to_html(timeline, f"{OUT}/{name}.html")
    shown(name, timeline, hazards)
    print(name, len(timeline), *timeline.sources[:1])
"""
DATA = """
import time
import torch

class Images(torch.utils.data.Dataset):
    def __init__(self, slow=False):
        self.slow = slow

    def __len__(self):
        return 32

    def __getitem__(self, index):
        if self.slow:
            time.sleep(0.002)
        return torch.full((64,), float(index))

def collated(batch):
    return torch.stack(batch)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a hostile name, and a program in two files in it, of which one has the name of another."""
    folder = tmp_path_factory.mktemp("secret") / FOLDER
    for place in ("parts", "others", "out"):
        (folder / place).mkdir(parents=True)
    (folder / "train.py").write_text(PROGRAM)
    (folder / "parts" / "data.py").write_text(DATA)
    return folder


def environment(folder):
    home = folder.parent / HIDDEN["HOME"]
    home.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name not in ("PWD", "OLDPWD")}
    return kept | HIDDEN | {"HOME": str(home), "OUT": str(folder / "out"), "PYTHONPATH": str(ROOT)}


def run(folder, *command):
    options = {"cwd": folder, "env": environment(folder), "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, *map(str, command)], **options)
    assert done.returncode == 0, done.stderr
    return done


@slow
@posix
@pytest.mark.timeout(900)
def test_files_of_each_kind_of_recording_hold_no_folder_and_no_name(folder):
    done = run(folder, folder / "train.py", ARGUMENT)
    assert FOLDER in done.stdout  # the timeline itself knows the folders, for the stepper
    check(done.stderr, folder)
    (at,) = re.findall(r"^train.py:(\d+): HazardWarning: 1 hazard found", done.stderr, re.M)
    assert 'with lv.record(on="a100") as recording:' in PROGRAM.splitlines()[int(at) - 1]
    out = folder / "out"
    assert len(list(out.glob("*.html"))) == 7 and len(list(out.iterdir())) == 28
    for file in sorted(out.iterdir()):
        text = told(file.read_bytes())
        check(text, folder)
        assert "train.py:" in text or file.name.startswith(("real.", "workers.")), file.name
    assert "data.py:" in told((out / "workers.json").read_bytes())


@slow
@posix
@pytest.mark.timeout(900)
def test_what_the_command_line_writes_holds_no_folder_and_no_name(folder):
    """A run with its report, a comparison, and traces of others: one with stacks, a folder with a file that is none."""
    made = folder / "written"
    (made / "ranks").mkdir(parents=True)
    alexnet = ROOT / "notebooks" / "traces"
    for rank in (0, 1):
        (made / "ranks" / f"rank{rank}.json.gz").write_bytes((alexnet / f"two_ranks_{rank}.json.gz").read_bytes())
    (made / "ranks" / "no_trace.json").write_text("{}")
    (made / "stacks.json").write_text(json.dumps(with_stacks(folder)))
    (made / "program.py").write_text("import torch\nfor _ in range(5):\n    torch.ones(9).to('cuda').sum().item()\n")
    few = "--batch-size 64 --steps 2 --warmup 2 --workers 1 --out compared.html --json compared-report.json"
    for command in (
        ["run", "--on", "a100", "--out", "run.html", "--save", "run.json", "--json", "report.json",
         made / "program.py", ARGUMENT],
        ["compare", *few.split(" ")],
        ["view", made / "ranks", "--out", "ranks.html"],
        ["view", made / "stacks.json", "--out", "stacks.html"],
        ["view", made / "run.json", "--out", "again.html"],
    ):  # fmt: skip
        options = {"cwd": made, "env": environment(folder), "capture_output": True, "text": True}
        done = subprocess.run([sys.executable, "-m", "loaderviz", *map(str, command)], **options)
        assert done.returncode == 0, done.stderr
    files = [*made.glob("*.html"), *made.glob("*report.json"), made / "run.json"]
    assert len(files) == 8
    texts = {file.name: told(file.read_bytes()) for file in files}
    for name, text in texts.items():
        assert (name, check(text, folder)) == (name, None)
    assert "left out: no_trace.json" in texts["ranks.html"] and "program.py:3" in texts["run.html"]
    assert "train.py:8" in texts["stacks.html"] and "own.py:9" in texts["stacks.html"]


def with_stacks(folder):
    """A trace of torch.profiler with the lines of Python, in folders of another machine too."""
    lines = [f"{folder}/train.py(7): main", "/home/ada/work/train.py(8): step", "C:\\Users\\ada\\own.py(9): load"]
    events = [
        {"ph": "X", "cat": "python_function", "name": line, "pid": 1, "tid": 1, "ts": 100.0 * at, "dur": 90.0}
        for at, line in enumerate(lines)
    ]
    for at in range(len(lines)):
        common = {"pid": 1, "tid": 1, "ts": 100.0 * at + 10}
        events.append({"ph": "X", "cat": "cpu_op", "name": "aten::mm", **common, "dur": 50.0})
        events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **common, "dur": 5.0,
                       "args": {"correlation": at + 1}})  # fmt: skip
        events.append({"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 100.0 * at + 20,
                       "dur": 30.0, "args": {"correlation": at + 1, "stream": 7, "device": 0}})  # fmt: skip
    more = {"hostname": "user-xyzzy", "traceName": f"{folder}/trace.json", "with_stack": 1}
    return {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA A100"}], "traceEvents": events, **more}


# Nothing is asked for, and nothing is served


LISTENS = """
import os, sys

def heard(event, given):
    if not event.startswith("socket.") or event not in ("socket.bind", "socket.connect", "socket.getaddrinfo"):
        return
    if event != "socket.getaddrinfo" and isinstance(given[1], (str, bytes)):
        return  # of this machine alone, by which workers send batches
    with open(os.environ["ASKED"], "a") as file:
        file.write(f"{event} {given[event != 'socket.getaddrinfo':]}\\n")
    raise ConnectionRefusedError("no network here")

sys.addaudithook(heard)
"""


@pytest.fixture
def refusing(tmp_path):
    """Return a function that runs Python with every socket refused; it returns what was asked for."""
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(LISTENS)
    asked = tmp_path / "asked.txt"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOADERVIZ_")}
    path = os.pathsep.join([str(tmp_path / "hook"), str(ROOT)])
    own = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "ASKED": str(asked), "PYTHONPATH": path}

    def asks(*command):
        asked.write_text("")
        options = {"cwd": tmp_path, "env": kept | own, "capture_output": True, "text": True}
        done = subprocess.run([sys.executable, *map(str, command)], **options)
        assert done.returncode == 0, done.stderr
        return asked.read_text()

    return asks


WORKERS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
for _ in range(2):
    for batch, in DataLoader(TensorDataset(torch.ones(8, 4)), 4, num_workers=1):
        batch.to("cuda" if torch.cuda.is_available() else "cpu").sum()
"""

ALL_OF = """
import sys, loaderviz as lv
from loaderviz.cli import main
assert not any([main(command.split(" ")) for command in sys.argv[1:]])
timeline = lv.read("run.json")
lv.advise(timeline)
timeline.view().fragment()
"""


@slow
@pytest.mark.timeout(900)
def test_no_command_asks_the_network_and_none_opens_a_port(refusing, tmp_path):
    (tmp_path / "program.py").write_text(WORKERS)
    trace = ROOT / "notebooks" / "traces" / "event_sync_2023.json.gz"
    few = "compare --batch-size 64 --steps 2 --warmup 2 --workers 1"
    commands = (few, "run --on a100 --save run.json program.py", "run --on cpu program.py", f"view {trace}",
                "view run.json", "lessons mine")  # fmt: skip
    assert refusing("-c", ALL_OF, *commands) == refusing("-m", "loaderviz", "--version") == ""


@slow
def test_a_request_would_be_seen(refusing):
    """A download that a lesson asks for, a server, a name that is looked up in a thread whose error nobody hears."""
    assert "amazonaws.com" in refusing("-c", "from loaderviz import mnist; mnist.find()")
    serves = "import socket, contextlib\nwith contextlib.suppress(OSError): socket.create_server(('127.0.0.1', 0))"
    assert "socket.bind" in refusing("-c", serves)
    asks = "import threading, urllib.request as r; t = threading.Thread(target=r.urlopen, args=('http://x.invalid',))"
    assert "x.invalid" in refusing("-c", f"{asks}; t.start(); t.join()")


# The parts, in memory


FILES = {
    "/a/utils.py:3": "utils.py:3",
    "/b/utils.py:3": "utils.py (2):3",
    "/c/utils.py (2):3": "utils.py (2) (2):3",
    "/a/utils.py:4": "utils.py:4",
    "C:\\Users\\ada\\train.py:7": "train.py:7",
    "\\\\server\\share\\data.py:1": "data.py:1",
    "relative/folder/loop.py:12": "loop.py:12",
    "/x: y/z:9/odd:name.py:5": "odd:name.py:5",
    "<frozen runpy>:198": "<frozen runpy>:198",
    "<string>:1": "<string>:1",
    "train.py": "train.py",
    "/a/no line": "no line",
    "": "",
    "/a/b/": "",
    "/home/\u202eada/\u202egnp.py:2": "\u202egnp.py:2",
    f"/{'d' * 5000}/deep.py:1": "deep.py:1",
}


def test_a_line_is_named_without_its_folders_and_files_of_one_name_apart():
    assert words.places(FILES) == FILES
    assert words.places(reversed(["/b/utils.py:3", "/a/utils.py:3"]))["/b/utils.py:3"] == "utils.py (2):3"
    assert words.places([]) == {}


def test_a_warning_names_its_file_without_folders_once_for_a_line_and_a_filter_knows_its_module(tmp_path):
    program = tmp_path / "loop.py"
    program.write_text("for _ in range(3):\n    words.warn('look', sys._getframe(), FutureWarning)  # here\n")
    known = {"__name__": "ada.loop", "sys": sys, "words": words}
    code = compile(program.read_text(), str(program), "exec")
    with warnings.catch_warnings(record=True) as caught:
        for action, module in {"default": "", "ignore": r"ada\.", "error": "other"}.items():
            warnings.filterwarnings(action, category=FutureWarning, module=module)
            exec(code, known)
        words.warn("without a line", None, FutureWarning)
    shown = [warnings.formatwarning(each.message, each.category, each.filename, each.lineno) for each in caught]
    line = "  words.warn('look', sys._getframe(), FutureWarning)  # here\n"
    assert shown[0] == f"loop.py:2: FutureWarning: look\n{line}"
    assert shown[1:] == ["torch:0: FutureWarning: without a line\n"]


def lines_of(*files, **context):
    """A timeline with a call of each of these lines."""
    return factory.made(*(("main", 10 * at, 10 * at + 5, Kind.API, {"source": line}) for at, line in enumerate(files)),
                        **context)  # fmt: skip


def test_folders_are_kept_where_they_are_asked_for(tmp_path):
    given = [line for line in FILES if line]
    timeline = lines_of(*given, looks=(Look(3, 4, "/home/ada/look.py:1"), Look(9, 4, "/a/utils.py:4")))
    path = tmp_path / "t.json"
    full, names = (Timeline.load(timeline.save(path, paths=paths)) for paths in ("full", "names"))
    assert full.sources == timeline.sources == tuple(given) and full.context == timeline.context
    assert names.sources == tuple(FILES[line] for line in given)
    assert [look.line for look in names.context.looks] == ["look.py:1", "utils.py:4"]
    assert full == names == timeline  # for who sees them
    assert names != lines_of(*[*given[:-1], "/a/other.py:1"], looks=timeline.context.looks)
    for paths, saved in (("full", full), ("names", names)):
        read = loaderviz.read(export.to_chrome_trace(timeline, path, paths=paths))
        assert read.sources == saved.sources and ("/home/ada" in told(path.read_bytes())) == (paths == "full")
    assert timeline.to_dict()["sources"] == Timeline.load(names.save(path)).to_dict()["sources"]  # shown once is enough


@pytest.mark.parametrize("paths", ["relative", "", None, True, "FULL", ["full"]])
def test_another_way_to_name_files_is_refused(paths, tmp_path):
    timeline = lines_of("/a/b.py:1")
    for write in (lambda: timeline.save(tmp_path / "t.json", paths), lambda: timeline.to_dict(paths),
                  lambda: export.to_chrome_trace(timeline, tmp_path / "t.json", paths)):  # fmt: skip
        with pytest.raises(ValueError, match=r'give "names", or "full"'):
            write()
    assert not list(tmp_path.iterdir())


def test_tables_and_findings_name_files_as_a_page_does():
    timeline = lines_of("/home/ada/a/step.py:1", "/home/ada/b/step.py:1")
    assert export.to_table(timeline)["source"].tolist() == ["step.py:1", "step.py (2):1"]
    assert "/home" not in timeline.view().fragment() + str(loaderviz.advise(timeline))


def test_lines_with_the_same_name_stay_two_lines():
    """Where the folders alone differ, times are not added up."""
    timeline = lines_of("/a/step.py:1", "/b/step.py:1", "/a/step.py:1")
    again = Timeline.from_dict(timeline.to_dict())
    assert again.source.tolist() == timeline.source.tolist() and len(set(again.sources)) == 2


def test_a_pickled_timeline_has_its_folders_and_no_names_twice():
    timeline = lines_of("/a/step.py:1")
    assert timeline.lines == {"/a/step.py:1": "step.py:1"}
    state = timeline.__getstate__()
    assert "lines" not in state and pickle.loads(pickle.dumps(timeline)).sources == timeline.sources


def test_a_host_made_of_a_file_is_named_without_its_folder(tmp_path, monkeypatch):
    """A recording tells whose host costs are in it."""
    for part in ("_memory", "_decoding", "_boundary", "_sharing", "_locking"):
        monkeypatch.setattr(calibration, part, dict)
    file = tmp_path / "my-host.toml"
    file.write_text('[host]\npreset = "workstation"\nlaunch = 5000\n')
    assert calibration.calibrate(host=str(file)).name == "my-host.toml, calibrated"
    assert calibration.calibrate(host="server 2023").name == "server 2023, calibrated"


def test_files_that_are_no_traces_are_noted_by_name(tmp_path):
    """Also where a folder's name is a part of another's, or of a file's."""
    trace = (ROOT / "notebooks" / "traces" / "event_sync_2023.json.gz").read_bytes()
    for place, content in {"a/a/a.json": b"{}", "a/trace.json.gz": trace, "a/b c/[1].json": b"{}"}.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_bytes(content)
    notes = loaderviz.read(tmp_path / "a").context.notes
    told_of = [note for note in notes if note.startswith("left out: ")]
    assert len(told_of) == 2 and all(note.startswith(("left out: a.json ", "left out: [1].json ")) for note in told_of)
    assert str(tmp_path) not in " ".join(notes)


def test_the_stored_lessons_name_no_place():
    for lesson in (ROOT / "notebooks").rglob("*.ipynb"):
        assert (lesson.name, SOMEWHERE.findall(told(lesson.read_bytes()))) == (lesson.name, [])
