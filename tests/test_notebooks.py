"""The notebooks: both halves of each pair agree, nothing is stored in them, they run, and what they say is true."""

from __future__ import annotations

import ast
import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

jupytext = pytest.importorskip("jupytext", reason="jupytext is missing: pip install -r requirements.txt")
nbformat = pytest.importorskip("nbformat", reason="nbformat is missing: pip install -r requirements.txt")

FOLDER = Path(__file__).parents[1] / "notebooks"
SOURCES = sorted((FOLDER / "src").glob("*.py"))
NAMES = [source.stem for source in SOURCES]
SECONDS_A_CELL = 60  # far more than any cell needs; a cell that hangs ends the run with its name
LINES_A_CELL = 11  # of code; blank lines, comments and docstrings are not counted
MEASURED = re.compile(r"\d\s?(%|ms|µs|us|ns|GB/s|MB|kB|times as|x as)(?!\w)")
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")

# What the prose of a lesson says beyond what its cells print, as expressions in the kernel when all cells have run.
CLAIMS = {
    "00_start_here": [
        "same",
        "lv.summarize(steady).compute_share < 0.5 and lv.summarize(steady).overlap == 0",
        "max((time, part) for part, time in lv.summarize(steady).breakdown.items())[1] == 'idle: host fetches a batch'",
        "runs['blocking'].loss == runs['pinned'].loss == runs['prefetch'].loss",
        "lv.summarize(runs['pinned'].timeline).overlap == 0 < lv.summarize(runs['prefetch'].timeline).overlap",
        "not lv.summarize(runs['resident'].timeline).h2d",
    ],
    "01_blocking_copy": [
        "summary.overlap == 0 and summary.compute_share < 0.5",
        "summary.copy_share > tiny.copy_share",  # the batches are large because there the copy is
        "max(tiny.idle, tiny.copy, tiny.compute) == tiny.idle",
        "busy_ms > 2 * idle_ms",
        "launch_ms * 10 < whole_ms <= item_ms",
    ],
    "02_pin_memory": [
        "lv.summarize(pinning).step > lv.summarize(plain).step",
        "all(lv.summarize(each).overlap == 0 for each in (plain, pinning, pinned, from_loader))",
        "now.copy < before.copy",
        "'staging' in before.host_blocked and 'synchronize' in now.host_blocked",
        "{lane.role for lane in from_loader.lanes} == {'main', 'worker', 'pin', 'stream'}",
        "{row.lane.role for row in from_loader.rows()} == {'main', 'worker', 'pin', 'stream'}",  # drawn, too
    ],
    "03_non_blocking_prefetch": [
        "lv.summarize(not_pinned).step > 0.95 * lv.summarize(blocking).step",
        "lv.summarize(not_pinned).overlap == lv.summarize(one_stream).overlap == 0",
        "best.overlap > 0.9 and best.headroom < 1.1",
        "best.overlap > lv.summarize(late).overlap > lv.summarize(late_and_reading).overlap == 0",
        "step['pinned_loader'] < step['blocking_loader'] and step['prefetch_loader'] > 0.97 * step['pinned_loader']",
        "any(row.lane.number != 7 and row.kind.name == 'COPY_H2D' for row in prefetch.rows())",
        # one batch, one number, in the copy and in the kernels: a copy hides under an earlier batch
        "{row.batch for row in prefetch.rows() if row.kind.name == 'COMPUTE'} == {3, 4, 5, 6}",
        "{row.batch for row in prefetch.rows() if row.kind.name == 'COPY_H2D'} == {4, 5, 6, 7}",
    ],
    "04_gpu_resident_slicing": [
        "summary.compute_share < 0.2 and summary.breakdown['idle: host fetches a batch'] > summary.window / 2",
        "lv.summarize(sliced).copy == 0",
        "batch_mates(shuffled_slices) == 255 and batch_mates(shuffled_samples) > 2000",
        "sum(count == 1 for count in classes) > len(classes) / 2",
        "accuracy_with(slices_of_the_part) < accuracy_with(samples_of_the_part) - 0.1",
        "lv.summarize(timelines['gather']).step > lv.summarize(sliced).step",
        "lv.summarize(long_run).compute_share > 0.95",
    ],
}


def pair(name: str) -> tuple[Any, Any]:
    """Return the notebook as its source says, and as its .ipynb says."""
    written = jupytext.read(FOLDER / "src" / f"{name}.py")
    return written, nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def code_cells(name: str) -> list[Any]:
    return [cell for cell in pair(name)[1].cells if cell.cell_type == "code"]


def texts(name: str) -> list[str]:
    return [cell.source for cell in pair(name)[1].cells if cell.cell_type == "markdown"]


def test_there_are_notebooks_and_each_is_a_pair():
    assert NAMES[0] == "00_start_here"
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == NAMES
    assert sorted(CLAIMS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_both_halves_of_a_pair_agree(name):
    written, stored = pair(name)
    assert [(cell.cell_type, cell.source) for cell in stored.cells] == [
        (cell.cell_type, cell.source) for cell in written.cells
    ], f"run: jupytext --sync notebooks/src/{name}.py"
    tags = [[cell.metadata.get("tags", []) for cell in half.cells] for half in (written, stored)]
    assert tags[0] == tags[1]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_stored_but_the_text(name):
    stored = pair(name)[1]
    nbformat.validate(stored)
    assert "widgets" not in stored.metadata
    assert stored.metadata.kernelspec.name == "python3"
    for cell in stored.cells:
        assert set(cell.metadata) <= {"tags", "lines_to_next_cell"}  # jupytext keeps the blank lines of the .py
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
    ids = [cell.id for cell in stored.cells]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", NAMES)
def test_code_cells_are_short(name):
    for cell in code_cells(name):
        assert lines_of_code(cell.source) <= LINES_A_CELL, cell.source


def lines_of_code(source: str) -> int:
    """Count the lines that are neither blank nor comment nor docstring."""
    skipped: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            skipped |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(1 for number, line in lines if line.strip() and line.lstrip()[0] != "#" and number not in skipped)


def test_the_count_of_lines_leaves_out_what_explains():
    assert lines_of_code('def f():\n    """Say\n    it."""\n\n    # why\n    return 1\n') == 2


@pytest.mark.parametrize("name", NAMES)
def test_measured_numbers_are_printed_by_cells_and_not_typed_into_the_prose(name):
    for text in texts(name):
        assert not MEASURED.search(text), MEASURED.findall(text)


@pytest.mark.parametrize("name", NAMES)
def test_the_lesson_has_its_parts(name):
    prose = "\n".join(texts(name))
    assert texts(name)[0].startswith(f"# {int(name[:2])}. ")
    for part in (
        "**The question of this",
        "Time: about",
        "redict",
        "Try",
        "## The same code on a real GPU",
        "## Recap",
    ):
        assert part in prose, part
    if name != "00_start_here":
        rules = [int(number) for number in re.findall(r"\bR(\d+)", prose)]
        assert rules or name.startswith("04")
        assert all(1 <= number <= 45 for number in rules)


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_files(name):
    for text in texts(name):
        for target in LINK.findall(text):
            assert (FOLDER / target).is_file(), target


@pytest.mark.notebook
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # jupyter_client and its event loop, on some Pythons
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # its sockets are closed when the loop is collected
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_notebook_runs_and_what_it_says_is_true(name, monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="nbclient is missing: pip install -r requirements.txt")
    monkeypatch.setenv("LOADERVIZ_OFFLINE", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # small matrices: with more threads a busy machine is far slower
    notebook = pair(name)[1]
    gpu = [number for number, cell in enumerate(notebook.cells) if "gpu" in cell.metadata.get("tags", [])]
    assert len(gpu) == 1
    add = nbformat.v4.new_code_cell
    # The cell for a real GPU runs on the emulated one as well, so that it is never found broken on the day.
    notebook.cells.append(add("with lv.record(on=GPU):\n" + textwrap.indent(notebook.cells[gpu[0]].source, "    ")))
    notebook.cells.append(add(f"import json; print(json.dumps([bool(eval(claim)) for claim in {CLAIMS[name]!r}]))"))

    resources = {"metadata": {"path": str(FOLDER)}}
    nbclient.NotebookClient(notebook, timeout=SECONDS_A_CELL, store_widget_state=False, resources=resources).execute()

    on_gpu, claims = (printed(cell) for cell in notebook.cells[-2:])
    assert "ms a step" in on_gpu
    assert "Skipped" not in on_gpu
    kept = json.loads(claims)
    assert kept == [True] * len(kept), [claim for claim, true in zip(CLAIMS[name], kept, strict=True) if not true]
    assert any("application/vnd.plotly.v1+json" in output.get("data", {}) for output in outputs(notebook))
    if name.startswith("03"):
        shown = "".join(map(printed, notebook.cells))
        assert "the sum, on the GPU:  nan" in shown
        sums = re.findall(r"the sum, (?:on the host|on a lucky day|with the wait): +([\d.]+)", shown)
        assert len(sums) == 3
        assert len(set(sums)) == 1
        assert "early-read" in shown  # the report on the forgotten wait
    # The line that says which digits these are is expected there, and the race that lesson 3 shows; nothing else is.
    expected = ("stand-in", "HazardWarning") if name.startswith("03") else ("stand-in",)
    errors = [output.text for output in outputs(notebook) if output.get("name") == "stderr"]
    assert [text for text in errors if not any(word in text for word in expected)] == []


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def printed(cell: Any) -> str:
    return "".join(output.text for output in cell.get("outputs", []) if output.get("name") == "stdout")
