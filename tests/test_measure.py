"""notebooks/measure.py: it runs a notebook, sees its memory and its processes, and says what it cannot do."""

import sys
from pathlib import Path

import factory
import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is missing: pip install -r requirements.txt")
pytest.importorskip("nbclient", reason="nbclient is missing: pip install -r requirements.txt")
psutil = pytest.importorskip("psutil", reason="psutil is missing: pip install -r requirements.txt")


@pytest.fixture(scope="module")
def measure():
    return factory.script("notebooks/measure.py")


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
def test_memory_of_kernel_and_child_and_a_cell_that_fails(measure, tmp_path, monkeypatch, capsys):
    from nbclient.exceptions import CellExecutionError

    took, seen = measure.notebook(written(tmp_path, "mine = before + 1", TWO, "assert mine == 3"), before="before = 2")
    assert took > 2 and seen.cpu > 0
    assert seen.alone > 200_000_000
    assert seen.together > seen.alone + 90_000_000
    assert seen.processes == 2
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        measure.notebook(written(tmp_path, "1 / 0"))
    written(tmp_path, "1 + 1")
    monkeypatch.setattr(measure, "FOLDER", tmp_path)
    assert measure.main(["0_s", "--spawn"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split("|")[1:3] == [" notebook ", " s "]
    assert lines[4].split("|")[1] == " 0_small " and lines[4].split("|")[-2] == " 1 "


def test_the_guide_gets_what_was_measured_and_keeps_the_rest(measure, capsys):
    guide = (Path(__file__).parents[1] / "docs" / "instructor.md").read_text(encoding="utf-8")
    text = measure.written(guide, "| anew |\n")
    assert text.count("<!-- measured -->\n| anew |\n<!-- end -->") == 1
    assert text.replace("| anew |\n", guide.split("<!-- measured -->\n")[1].split("<!-- end -->")[0], 1) == guide
    for arguments, said in ((["--write", "06"], "--write is for all lessons"), (["99"], "no notebook in")):
        with pytest.raises(SystemExit):
            measure.main(arguments)
        assert said in capsys.readouterr().err
    process = psutil.Popen([sys.executable, "-c", ""])
    process.wait()
    assert measure.memory_of(process) == 0  # it has ended
