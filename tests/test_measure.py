"""notebooks/measure.py: it runs a notebook, sees its memory and its processes, and says what it cannot do."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is missing: pip install -r requirements.txt")
pytest.importorskip("nbclient", reason="nbclient is missing: pip install -r requirements.txt")
psutil = pytest.importorskip("psutil", reason="psutil is missing: pip install -r requirements.txt")

quiet = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # jupyter_client and its event loop, on some Pythons
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def measure():
    path = Path(__file__).parents[1] / "notebooks" / "measure.py"
    spec = importlib.util.spec_from_file_location("notebooks_measure", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written(folder, *cells):
    path = folder / "0_small.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells]), path)
    return path


TWO = """
import subprocess, sys, time
kept = bytearray(200_000_000)
child = subprocess.Popen([sys.executable, "-c", "kept = bytearray(100_000_000); import time; time.sleep(30)"])
time.sleep(2)
child.kill()
"""


@pytest.mark.notebook
class TestNotebook:
    pytestmark = quiet

    def test_memory_of_kernel_and_child(self, measure, tmp_path):
        took, seen = measure.notebook(
            written(tmp_path, "mine = before + 1", TWO, "assert mine == 3"), before="before = 2"
        )
        assert took > 2
        assert seen.alone > 200_000_000
        assert seen.together > seen.alone + 90_000_000
        assert seen.processes == 2
        assert seen.cpu > 0

    def test_a_cell_that_fails_is_an_error(self, measure, tmp_path):
        from nbclient.exceptions import CellExecutionError

        with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
            measure.notebook(written(tmp_path, "1 / 0"))

    def test_the_table(self, measure, tmp_path, monkeypatch, capsys):
        written(tmp_path, "1 + 1")
        monkeypatch.setattr(measure, "FOLDER", tmp_path)
        assert measure.main(["0_s", "--spawn"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("Python 3.") and "cores" in lines[0]
        assert lines[2].split("|")[1:3] == [" notebook ", " s "]
        assert lines[4].split("|")[1] == " 0_small " and lines[4].split("|")[-2] == " 1 "


def test_the_guide_gets_what_was_measured_and_keeps_the_rest(measure, capsys):
    guide = (Path(__file__).parents[1] / "docs" / "instructor.md").read_text(encoding="utf-8")
    text = measure.written(guide, "new\n")
    assert text.count("<!-- measured -->\nnew\n<!-- end -->") == 1
    assert text.replace("new\n", guide.split("<!-- measured -->\n")[1].split("<!-- end -->")[0], 1) == guide
    with pytest.raises(SystemExit):
        measure.main(["--write", "06"])
    assert "--write is for all lessons" in capsys.readouterr().err


def test_a_process_that_has_ended_has_no_memory(measure):
    process = psutil.Popen([sys.executable, "-c", ""])
    process.wait()
    assert measure.memory_of(process) == 0


def test_a_lesson_that_does_not_exist(measure, capsys):
    with pytest.raises(SystemExit):
        measure.main(["99"])
    assert "no notebook in" in capsys.readouterr().err
