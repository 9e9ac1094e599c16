"""The package as a whole: what it shows, what importing it costs, and that its parts stay small."""

import ast
import doctest
import functools
import importlib
import re
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from factory import script
from torch.utils.data import DataLoader, TensorDataset

import loaderviz
from loaderviz import mnist
from loaderviz.emulator.torch import internals
from loaderviz.export import to_chrome_trace
from loaderviz.widgets import Settings
from loaderviz.widgets.explorer import simulate

ROOT = Path(loaderviz.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
LONGEST_FUNCTION = 50  # lines
MOST_FILES = 9  # in a folder; more in these:
# The doors; what names a device; one a lesson; what is given, and each format; each question
LARGE_FOLDERS = {"workshop": 12, "loaderviz": 26, "torch": 13, "lessons": 13, "traces": 11, "analysis": 10}


def name_of(path):
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


def test_the_public_names_are_exactly_these():
    assert set(loaderviz.__all__) == {
        "HazardWarning", "LoadervizError", "RaceError", "Timeline", "advise", "calibrate", "compare", "costs",
        "explore", "ranks", "read", "record", "rule", "step_through", "summarize", "validate", "what_if",
    }  # fmt: skip
    for name in loaderviz.__all__:
        assert callable(getattr(loaderviz, name))
        assert name in dir(loaderviz)


def test_what_a_recording_warns_of_and_raises_can_be_named():
    assert issubclass(loaderviz.HazardWarning, UserWarning)
    assert issubclass(loaderviz.RaceError, (loaderviz.LoadervizError, RuntimeError))


HEAVY = "torch", "plotly", "pandas", "ipywidgets", "numpy", "torchvision"
ABSENT = "plotly", "pandas", "ipywidgets", "torchvision", "tqdm", "IPython"
CATCHES = """
import loaderviz, torch, warnings
warnings.simplefilter('error', loaderviz.HazardWarning)
try:
    with loaderviz.record(on='a100'):
        with torch.cuda.stream(torch.cuda.Stream()):
            there = torch.ones(8).pin_memory().to('cuda', non_blocking=True)
        there.sum()
except loaderviz.HazardWarning:
    print('caught')
"""
RECORDS = f"""
import sys; sys.modules.update(dict.fromkeys({ABSENT}))
import loaderviz, torch
from loaderviz.loaders import BlockingLoader
with loaderviz.record(on='t4') as recording:
    batches = [batch.sum().item() for batch in BlockingLoader([torch.ones(3), torch.ones(4)])]
assert recording.timeline.duration; loaderviz.summarize(recording.timeline); print(batches)
"""


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        (f"import loaderviz, sys; print([name for name in {HEAVY} if name in sys.modules])", "[]"),
        ("import loaderviz.recording, loaderviz; print(callable(loaderviz.record))", "True"),
        pytest.param(CATCHES, "caught", marks=pytest.mark.slow),
        pytest.param(RECORDS, "[3.0, 4.0]", marks=pytest.mark.slow),
    ],
    ids=[
        "importing it imports nothing heavy",
        "record stays a function whatever was imported before",
        "what a recording warns of can be caught",
        "recording and loaders need only torch and numpy",
    ],
)
def test_in_a_new_python(code, printed):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == printed


def test_an_unknown_name_says_what_there_is():
    with pytest.raises(AttributeError, match=r"no attribute 'recrod'; it has .*record"):
        loaderviz.recrod


@pytest.mark.parametrize("path", [each for each in MODULES if ">>> " in each.read_text(encoding="utf-8")], ids=name_of)
def test_examples_run(path, tmp_path, monkeypatch):
    mnist.tensors(train=True)  # says once where the digits come from, which is no part of an example
    monkeypatch.chdir(tmp_path)
    timeline, dataset = simulate(Settings()), TensorDataset(torch.ones(1000, 4), torch.ones(1000))
    to_chrome_trace(timeline, "trace.json")
    (tmp_path / "run").mkdir()
    script("tests/traces/trace_files.py").straggling(tmp_path / "run", late=1, count=3)
    known = {"loaderviz": loaderviz, "torch": torch, "timeline": timeline, "DataLoader": DataLoader}
    known |= {"dataset": dataset, "loader": DataLoader(dataset, 256), "train_step": train_step}
    on_a_gpu = loaderviz.record(on="a100") if "loaders" in path.parts else nullcontext()
    with on_a_gpu:
        assert not doctest.testmod(importlib.import_module(name_of(path)), extraglobs=known).failed


def test_a_newcomer_sees_a_folder_at_a_glance():
    files = Counter(path.parent.name for path in MODULES)
    assert {folder: count for folder, count in files.items() if count > LARGE_FOLDERS.get(folder, MOST_FILES)} == {}


def train_step(images, labels):
    assert images.is_cuda and labels.is_cuda


def lines(node):
    return node.end_lineno - node.lineno + 1


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_functions_are_short(path):
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            doc = ast.get_docstring(node, clean=False) or ""
            inner = [part for part in ast.walk(node) if isinstance(part, ast.FunctionDef) and part is not node]
            length = lines(node) - doc.count("\n") - sum(lines(part) for part in inner)  # inner ones count alone
            assert length <= LONGEST_FUNCTION, f"{node.name} has {length} lines"


def test_private_names_of_torch_in_c_stand_in_one_file():
    """So that a version of torch without one fails there."""
    named = [name_of(path) for path in MODULES if re.search(r"torch\._C\b|_C import", path.read_text(encoding="utf-8"))]
    assert named == ["loaderviz.emulator.torch.internals"]


def test_a_clock_that_a_system_may_lack_is_asked_for_in_one_file():
    """There another one stands in for it."""
    named = [name_of(path) for path in MODULES if re.search(r"from time import.*thread_time", path.read_text("utf-8"))]
    assert named == []


def test_one_place_counts_cores():
    """What a machine has is not what a process may use: an affinity, or a container's quota."""
    every = [*MODULES, *(ROOT.parent / "benchmarks").rglob("*.py")]
    assert [path.name for path in every if "cpu_count" in path.read_text(encoding="utf-8")] == ["machine.py"]


def test_a_torch_that_is_newer_than_any_tried_is_a_note(monkeypatch):
    notes = []
    for newest in ((9, 0), (2, 0)):
        monkeypatch.setattr(internals, "NEWEST", newest)
        with loaderviz.record(on="a100") as recording:
            torch.ones(2, device="cuda")
        notes.append(recording.timeline.context.notes)
    assert notes[0] == ()
    assert notes[1] == (
        f"PyTorch {torch.__version__} is newer than 2.0, the newest version on which the emulated GPU was tried",
    )


def test_what_how_it_works_names_is_there():
    text = (ROOT.parent / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+)\.py: ([\w.]+)`", text)
    assert len(named) >= 25
    for file, name in named:
        module = importlib.import_module(f"loaderviz.{file.replace('/', '.')}".removesuffix(".__init__"))
        assert callable(functools.reduce(getattr, name.split("."), module))
