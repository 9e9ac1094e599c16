"""The package as a whole: what it shows, what importing it costs, and that its parts stay small."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import loaderviz

ROOT = Path(loaderviz.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
LONGEST_MODULE, LONGEST_FUNCTION = 330, 50  # lines; the aim is 300 and 40


def in_new_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_the_public_names_are_exactly_these():
    assert set(loaderviz.__all__) == {
        "HazardWarning", "LoadervizError", "RaceError", "Timeline", "advise", "compare", "explore", "read", "record",
        "step_through", "summarize", "what_if",
    }  # fmt: skip
    for name in loaderviz.__all__:
        assert callable(getattr(loaderviz, name))
        assert name in dir(loaderviz)


def test_what_a_recording_warns_of_and_raises_can_be_named():
    assert issubclass(loaderviz.HazardWarning, UserWarning)
    assert issubclass(loaderviz.RaceError, (loaderviz.LoadervizError, RuntimeError))
    code = (
        "import loaderviz, torch, warnings\n"
        "warnings.simplefilter('error', loaderviz.HazardWarning)\n"
        "try:\n"
        "    with loaderviz.record(on='a100'):\n"
        "        with torch.cuda.stream(torch.cuda.Stream()):\n"
        "            there = torch.ones(8).pin_memory().to('cuda', non_blocking=True)\n"
        "        there.sum()\n"
        "except loaderviz.HazardWarning:\n"
        "    print('caught')"
    )
    assert in_new_python(code) == "caught"


def test_an_unknown_name_says_what_there_is():
    with pytest.raises(AttributeError, match=r"no attribute 'recrod'; it has .*record"):
        loaderviz.recrod


def test_importing_it_imports_nothing_heavy():
    heavy = "torch", "plotly", "pandas", "ipywidgets", "numpy", "torchvision"
    code = f"import loaderviz, sys; print([name for name in {heavy} if name in sys.modules])"
    assert in_new_python(code) == "[]"


def test_the_runtime_runs_without_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from loaderviz.emulator import Gpu, Host, Runtime\n"
        "gpu = Runtime(Gpu.preset('t4'), Host.preset('laptop'))\n"
        "gpu.launch(1000); gpu.synchronize(); print(len(gpu.timeline().self_check()))"
    )
    assert in_new_python(code) == "4"  # launch, kernel, synchronise, the wait in it


def test_record_stays_a_function_whatever_was_imported_before():
    code = "import loaderviz.recording, loaderviz; print(callable(loaderviz.record))"
    assert in_new_python(code) == "True"


def test_explore_is_a_call_and_a_package_whatever_was_imported_before():
    code = (
        "import loaderviz.explore.settings, loaderviz, sys; loaderviz.explore(workers=1); loaderviz.explore.viewer\n"
        "print('torch' in sys.modules)"
    )
    assert in_new_python(code) == "False"


def test_recording_and_loaders_need_only_torch_and_numpy():
    absent = "plotly", "pandas", "ipywidgets", "torchvision", "tqdm", "IPython"
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({absent}))\n"
        "import loaderviz, torch\n"
        "from loaderviz.loaders import BlockingLoader\n"
        "with loaderviz.record(on='t4') as recording:\n"
        "    batches = [batch.sum().item() for batch in BlockingLoader([torch.ones(3), torch.ones(4)])]\n"
        "assert recording.timeline.duration; loaderviz.summarize(recording.timeline); print(batches)"
    )
    assert in_new_python(code) == "[3.0, 4.0]"


def lines(node):
    return node.end_lineno - node.lineno + 1


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_and_functions_are_short(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST_MODULE, "split it where a reader would look for the parts"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            doc = ast.get_docstring(node, clean=False) or ""
            inner = [part for part in ast.walk(node) if isinstance(part, ast.FunctionDef) and part is not node]
            length = lines(node) - doc.count("\n") - sum(lines(part) for part in inner)  # inner ones count alone
            assert length <= LONGEST_FUNCTION, f"{node.name} has {length} lines"
