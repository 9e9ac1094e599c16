"""The notebooks: made from their sources, stored without outputs and, solved, with those that GitHub can show; they run
as given and solved, they say the truth."""

from __future__ import annotations

import ast
import json
import multiprocessing
import re
import sys
import textwrap
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import factory
import pytest
import torch

from loaderviz import notebooks
from loaderviz.rules import RULES
from loaderviz.workshop import claims

jupytext = pytest.importorskip("jupytext", reason="jupytext is missing: pip install -r requirements.txt")
nbformat = pytest.importorskip("nbformat", reason="nbformat is missing: pip install -r requirements.txt")

FOLDER = Path(__file__).parents[1] / "notebooks"
NAMES = sorted(source.stem for source in (FOLDER / "src").glob("*.py"))
TRANSLATED = sorted(f"{path.parent.name}/{path.stem}" for path in FOLDER.glob("??/*.ipynb"))
# Those that a browser opens and runs as given: of two lessons one in its translation, which has the same code.
OPENED = [TRANSLATED[number] if number % 2 else name for number, name in enumerate(NAMES)]
BOTH = [*NAMES, *TRANSLATED, *(f"solutions/{name}" for name in NAMES)]
START = multiprocessing.get_start_method()  # of workers, as conftest.py sets it
SECONDS_A_CELL = 60 if START == "fork" else 300  # more than any cell needs; a cell that hangs ends with its name
KERNEL_MB = 1000  # a workshop has laptops with little memory, and servers with many learners
CELLS, LINES_A_CELL = range(20, 46), 11  # lines of code; blank lines, comments and docstrings are not counted
PREDICTIONS = range(2, 5)
MEASURED = re.compile(r"\d\s?(%|ms|µs|us|ns|GB/s|MB|kB|times as|x as)(?!\w)")
PICTURE = re.compile(r"!\[(?P<words>[^]]*)\]\((?P<file>[^)]*)\)")
PICTURE_BYTES, SOLVED_BYTES = 60_000, 300_000
THIS_MACHINE = re.compile(r"/(?:root|home|Users|tmp|var|work|usr)/\S*|ipykernel_\d+|site-packages|[A-Z]:\\\\\w+")
TAG = re.compile(r"<[^>]*>")
PARTS = ["**The question of this", "Time: about", "## Try", "## The same code on a real GPU", "## Recap"]
WITHOUT_RULES = ("04", "07", "08", "09")

# What must be read in the output, as patterns.
SAYS = {
    "03_non_blocking_prefetch": [
        r"the sum, on the GPU:  nan",
        r"the sum, on the host: +([\d.]+)[^\0]*the sum, on a lucky day: +\1[^\0]*the sum, with the wait: +\1",
        r"early-read",  # the report on the forgotten wait
    ],
    "07_your_own_trace": [r"damaged: its gzip data are cut", r"notes.txt is no trace: it looks like a text file"],
    "10_extras": [r"read by numpy: nan\n[^\0]*numpy: no hazards\nhalves: early-read"],
}
# Words of the lines on stderr that are wanted: which digits these are, and the races that a lesson shows.
WARNS = {name: ["HazardWarning"] for name in ("03_non_blocking_prefetch", "05_find_the_bug", "10_extras")}


@cache
def build(folder: str = "notebooks") -> Any:
    return factory.script(f"{folder}/build.py")


def read(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


@cache
def source(name: str) -> list[Any]:
    """The cells as they are solved: starters are only in the learner's notebook."""
    cells = build().shown(FOLDER / "src" / f"{name}.py")
    return [cell for cell in cells if "starter" not in cell.metadata.get("tags", [])]


def apart(name: str, tag: str) -> str:
    return str(build().apart(FOLDER / "src" / f"{name}.py", tag))


def code(name: str) -> list[str]:
    return [cell.source for cell in source(name) if cell.cell_type == "code"]


def tagged(cells: list[Any], tag: str) -> list[Any]:
    return [cell for cell in cells if tag in cell.metadata.get("tags", [])]


def test_the_course_is_whole_and_each_lesson_has_its_claims_and_its_picture():
    assert [int(name[:2]) for name in NAMES] == list(range(len(NAMES)))
    assert all("assert" in apart(name, "claims") for name in NAMES)
    assert sorted(path.stem for path in (FOLDER / "pictures").iterdir()) == NAMES


def test_the_notebooks_are_those_of_their_sources(capsys):
    assert build().main(["--check"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("name", BOTH)
def test_nothing_is_stored_besides_the_text_and_its_outputs(name):
    stored = read(name)
    nbformat.validate(stored)
    assert set(stored.metadata) == {"kernelspec", "loaderviz"}
    assert stored.metadata.kernelspec.name == "python3"
    hidden = {"jupyter": {"source_hidden": True}, "tags": ["hide-input"], "transient": {"remove_source": True}}
    for cell in stored.cells:
        asks = cell.cell_type == "code" and build().ASKS.search(cell.source)
        assert cell.metadata == hidden if asks else set(cell.metadata) <= {"tags"}


@pytest.mark.parametrize("name", NAMES)
def test_a_lesson_has_no_outputs_and_opens_with_a_small_picture_that_is_described(name):
    cells = read(name).cells
    for cell in cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None, cell.source
    (picture,) = PICTURE.finditer(cells[0].source)
    assert len(picture["words"]) > 60
    file = FOLDER / picture["file"]
    assert file.parent == FOLDER / "pictures" and file.stem == name
    drawn = file.read_bytes()
    assert drawn.startswith({".png": b"\x89PNG", ".svg": b"<svg"}[file.suffix]) and len(drawn) <= PICTURE_BYTES


def test_the_course_begins_with_something_to_look_at_and_soon_has_something_to_touch():
    """A picture within 60 words, one that answers to the mouse within 150, and seven cells of code at most."""
    before, look, code_cells = "", "", 0
    for cell in read(NAMES[0]).cells:
        if cell.cell_type == "markdown":
            before += f"{cell.source}\n\n"
            look = look or before[: picture.end() if (picture := PICTURE.search(before)) else 0]
        else:
            code_cells += 1
            if ".view(" in cell.source:
                break
    read_until_then = [sum(any(map(str.isalnum, word)) for word in text.split()) for text in (look, before)]
    assert 0 < read_until_then[0] <= 60 and read_until_then[1] <= 150
    assert code_cells <= 7


@pytest.mark.parametrize("name", NAMES)
def test_a_solved_notebook_is_stored_as_it_ran_and_as_github_can_show_it(name):
    path = FOLDER / "solutions" / f"{name}.ipynb"
    assert path.stat().st_size <= SOLVED_BYTES
    cells = [cell for cell in read(f"solutions/{name}").cells if cell.cell_type == "code"]
    not_run = [cell.source for cell in cells if cell.execution_count is None]
    assert not_run == [], "changed since they ran last: make notebooks"
    kinds = {kind for cell in cells for output in cell.outputs for kind in output.get("data", {})}
    assert "image/png" in kinds
    assert kinds <= {"image/png", "text/plain", "text/html", "text/markdown"}
    assert {output.output_type for cell in cells for output in cell.outputs} >= {"stream", "display_data"}
    assert THIS_MACHINE.findall(json.dumps([cell.outputs for cell in cells])) == []
    for cell in tagged(cells, "measured"):
        assert [output.text[:32] for output in cell.outputs] == ["(This cell measures the computer"]


@pytest.mark.parametrize("name", NAMES)
def test_only_the_exercises_differ_between_the_two(name):
    pairs = list(zip(read(name).cells, read(f"solutions/{name}").cells, strict=True))
    for number, (given, solved) in enumerate(pairs):
        assert given.cell_type == solved.cell_type
        if given.cell_type == "code":
            exercise = "exercise" in given.metadata.get("tags", [])
            assert (given.source == solved.source) != exercise, f"cell {number}"
            assert solved.source == source(name)[number].source


def lines_of_code(source: str) -> int:
    """Count the lines that are neither blank nor comment nor docstring."""
    skipped: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            skipped |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(1 for number, line in lines if line.strip() and line.lstrip()[0] != "#" and number not in skipped)


@pytest.mark.parametrize("name", NAMES)
def test_the_lesson_has_its_parts_in_few_and_short_cells(name):
    text = "\n".join(cell.source for cell in source(name) if cell.cell_type == "markdown")
    assert text.startswith(f"# {int(name[:2])}. ")
    assert [part for part in PARTS if part not in text] == []
    assert text.index("## The same code on a real GPU") < text.index("## Recap")
    assert MEASURED.findall(text) == [], "cells print what was measured"
    assert len(source(name)) in CELLS and len(tagged(source(name), "gpu")) == 1
    assert [cell for cell in code(name) if lines_of_code(cell) > LINES_A_CELL] == []
    rules = [int(number) for number in re.findall(r"\bR(\d+)", text)]
    assert rules or name.startswith(WITHOUT_RULES)
    assert all(f"R{number}" in RULES for number in rules)


@pytest.mark.parametrize("name", NAMES)
def test_predictions_are_asked_before_and_answered_after_by_what_ran(name):
    calls = [node for text in code(name) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    asked = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "predict"]
    cards = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "card"]
    assert len(asked) in PREDICTIONS or [ast.literal_eval(card.args[0]) for card in cards] == list(claims.CLAIMS)
    for call in asked:
        answers = {word.arg: word.value for word in call.keywords} | dict(zip("qca", call.args, strict=False))
        assert isinstance(answers.get("answer", answers.get("a")), ast.Lambda), "the answer is computed, not typed"
    methods = [call.func.attr for call in calls if isinstance(call.func, ast.Attribute)]
    assert methods.count("reveal") == len(asked)
    assert methods.count("judge") == len(cards) or not cards


@pytest.mark.parametrize("name", NAMES)
def test_each_exercise_is_shown_given_and_checked(name):
    cells = source(name)
    for number, cell in enumerate(cells):
        if "exercise" in cell.metadata.get("tags", []):
            before, after = cells[number - 1].source, cells[number + 1].source
            assert re.fullmatch(r"\w+\.\w+", before), before
            assert after.startswith(f"{before}.check("), after


@pytest.fixture(scope="module")
def handed_out(tmp_path_factory):
    return notebooks.copy(tmp_path_factory.mktemp("course"))[0]


def test_links_and_pictures_of_the_course_that_is_handed_out_lead_to_its_files(handed_out):
    markdown_it = pytest.importorskip("markdown_it", reason="markdown-it-py is missing: pip install myst-nb")
    texts = {path: path.read_text(encoding="utf-8") for path in handed_out.rglob("*.md")}
    for path in handed_out.rglob("*.ipynb"):
        cells = nbformat.read(path, as_version=4).cells
        texts[path] = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    assert {f"{name}.ipynb" for name in BOTH} | {"terms.md", "traces/README.md"} <= {
        path.relative_to(handed_out).as_posix() for path in texts
    }
    broken, found = [], 0
    for path, text in texts.items():
        page = markdown_it.MarkdownIt("commonmark").enable("table").render(text)
        headings = [unescape(TAG.sub("", each)).strip() for each in re.findall(r"<h\d>(.*?)</h\d>", page, re.S)]
        for link in map(urlsplit, map(unescape, re.findall(r'\b(?:href|src)\s*=\s*"([^"]*)"', page))):
            if link.scheme or link.netloc:
                continue
            found += 1
            place = path.parent / unquote(link.path) if link.path else path
            whole = place.resolve().is_relative_to(handed_out) and place.is_file()
            if not whole or (place == path and link.fragment and link.fragment not in headings):
                broken.append((path.name, link.geturl()))
    assert broken == []
    assert found > 3 * len(BOTH)


def marked(names: list[str]) -> Any:
    return lambda test: pytest.mark.usefixtures("kernels")(
        pytest.mark.notebook(pytest.mark.parametrize("name", names)(test))
    )


def client(notebook: Any, folder: Path, **more: Any) -> Any:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is missing: pip install -r requirements.txt")
    place = {"metadata": {"path": str(folder)}}
    return nbclient.NotebookClient(notebook, timeout=SECONDS_A_CELL, store_widget_state=False, resources=place, **more)


@pytest.fixture(scope="module", autouse=True)
def place_of_the_kernels(tmp_path_factory):
    """No data from outside, one thread (small matrices: a busy machine is far slower with more), own progress."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOADERVIZ_OFFLINE", "1")
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("LOADERVIZ_PROGRESS", str(tmp_path_factory.mktemp("own") / "progress.jsonl"))
        yield


# The kernel's peak, and what of it are pages of files, such as the libraries of torch, in MB. `getrusage` will not do:
# on Linux its peak begins with that of the parent process, here pytest's.
PEAK = """
import pathlib, re
status = pathlib.Path("/proc/self/status")
sizes = dict(re.findall(r"(\\w+):\\s+(\\d+) kB", status.read_text())) if status.exists() else {}
print(*(int(sizes.get(name, 0)) * 1024 // 10**6 for name in ("VmHWM", "RssFile")))
"""
# A run has nobody who predicts; the cards of lesson 9 judge only then.
NOT_ASKED = "from loaderviz.workshop import Prediction; Prediction.asks = 0; del Prediction"


@marked(NAMES)
def test_a_solved_notebook_runs_and_what_it_says_is_true(name, monkeypatch):
    if name == NAMES[0]:  # in a kernel as learners have it: a new Python
        monkeypatch.delenv("JUPYTER_PATH", raising=False)
    notebook = read(f"solutions/{name}")
    notebook.cells.insert(0, nbformat.v4.new_code_cell(NOT_ASKED))
    notebook.cells += [nbformat.v4.new_code_cell(text) for text in at_the_end(name)]
    client(notebook, FOLDER / "solutions").execute()

    on_gpu, answers, told, _, peak = (printed(cell) for cell in notebook.cells[-5:])
    told_before = apart(name, "answers")
    assert build("docs").answered(told_before, told) == (told_before, []), "python docs/build.py --run"
    assert spoiled(notebook, json.loads(answers)) == []
    assert "ms a step" in on_gpu
    assert "Skipped" not in on_gpu
    whole, files = map(int, peak.split())
    assert whole > 200 or sys.platform != "linux"
    # torch's build for CUDA has larger libraries; all kernels of a machine share their pages
    assert whole - (files if torch.version.cuda else 0) < KERNEL_MB
    assert {status for _, status in checked(notebook)} <= {"✔ PASSED"}, checked(notebook)
    pictures = ["".join(output.get("data", {}).get("text/html", "")) for output in outputs(notebook)]
    pictures = [html for html in pictures if 'class="lv-view"' in html]
    assert pictures
    assert max(map(len, pictures)) <= 300_000  # characters, stored with the notebook
    assert without_words(notebook) == []
    shown = "".join(map(printed, notebook.cells))
    assert [pattern for pattern in SAYS.get(name, []) if not re.search(pattern, shown)] == []
    assert unexpected_warnings(notebook, name) == []


def without_words(notebook: Any) -> list[str]:
    """Return the cells that show a picture which neither it nor what they print says in words."""
    mute = []
    for cell in notebook.cells:
        for data in (output.data for output in cell.get("outputs", []) if "data" in output):
            drawn = {"application/vnd.plotly.v1+json", "image/svg+xml", "image/png"} & set(data)
            if drawn or re.search("<(svg|img|canvas)", data.get("text/html", "")):
                mute += [cell.source] if len(f"{data.get('text/plain', '')} {printed(cell)}".split()) < 8 else []
    return mute


def spoiled(notebook: Any, answers: dict[str, str]) -> list[tuple[str, str]]:
    """Return what gives the answer of a prediction (by its name) away: text, code, or output before it."""
    found = []
    for name, answer in answers.items():
        asked = (
            re.search(r"^(\w+) = predict\(", cell.source, re.M) for cell in notebook.cells if answer in cell.source
        )
        alike = "|".join({name, *(each[1] for each in asked if each)})  # choices in any order are no answer
        for cell in notebook.cells:
            if f"{name}.reveal()" in cell.source:
                break
            if re.search(rf"^({alike}) = |\b({alike})\.reveal\(\)", cell.source, re.M):
                continue
            shown = [part for output in cell.get("outputs", []) for part in output.get("data", {}).values()]
            if any(len(answer.split()) > 2 and answer in str(text) for text in (cell.source, *shown, printed(cell))):
                found.append((name, cell.source))
    return found


def at_the_end(name: str) -> list[str]:
    """Return cells to run at the end of a notebook: its cell for a real GPU on the emulated one (so that it is never
    found broken on the day), its claims, its memory."""
    (gpu,) = tagged(source(name), "gpu")
    emulated = "import loaderviz as lv\nfrom loaderviz.workshop.loop import GPU\nwith lv.record(on=GPU):\n"
    return [
        emulated + textwrap.indent(gpu.source, "    "),
        "import json; from loaderviz.workshop import Prediction; "
        "print(json.dumps({name: thing._right_one() for name, thing in "
        "list(globals().items()) if name[0] != '_' and isinstance(thing, Prediction)}))",
        build("docs").asking(apart(name, "answers")),
        apart(name, "claims"),
        PEAK,
    ]


class WithoutWords(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant("") if isinstance(node.value, str) else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.JoinedStr:
        values = [self.generic_visit(part) for part in node.values if isinstance(part, ast.FormattedValue)]
        return ast.JoinedStr(values)


@pytest.mark.parametrize("name", TRANSLATED)
def test_a_translation_changes_words_and_no_code(name):
    first, language, *rest = read(name).cells
    assert language.source == f'import os\n\nos.environ["LOADERVIZ_LANGUAGE"] = "{name.partition("/")[0]}"'
    for given, other in zip([first, *rest], read(Path(name).name).cells, strict=True):
        if given.cell_type == "code":
            mine, same = (ast.dump(WithoutWords().visit(ast.parse(cell.source))) for cell in (given, other))
            assert mine == same, given.source


@pytest.mark.parametrize("name", TRANSLATED)
def test_a_translation_leaves_no_text_in_english_and_gives_the_same_minutes(name):
    """Not even the rules at the end, which the build adds; the minutes stand in a sentence of each lesson."""
    cells, before = (read(each).cells for each in (name, Path(name).name))
    written = [cell.source for cell in cells if cell.cell_type == "markdown"]
    assert [text for text in written if not re.search("[\u4e00-\u9fff]", text)] == []
    assert not any("Source: " in text for text in written)
    minutes = re.search(r"时间：约 (\d+) 分钟", written[0]), re.search(r"Time: about (\d+) minutes", before[0].source)
    assert all(minutes) and minutes[0][1] == minutes[1][1]


@marked([name for name in TRANSLATED if name not in OPENED])  # the others: tests/browser/test_browser.py
def test_a_translation_as_given_runs_and_says_that_nothing_was_attempted(name):
    notebook = read(name)
    client(notebook, FOLDER).execute()
    is_as_given(notebook, name)


@pytest.mark.skipif(START == "fork", reason="`make test-spawn` runs it; forked workers: tests/browser/test_browser.py")
@marked(NAMES)
def test_a_lesson_as_given_runs_with_workers_that_are_started_anew(name):
    notebook = read(name)
    first = f"import multiprocessing; multiprocessing.set_start_method({START!r})"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(first))
    client(notebook, FOLDER).execute()
    is_as_given(notebook, name)


def is_as_given(notebook: Any, name: str) -> None:
    """Assert that in a notebook that has run nothing was attempted, and nobody was warned."""
    said = "尚未作答" if name.startswith("zh/") else "NOT ATTEMPTED"
    assert {status for _, status in checked(notebook)} <= {f"○ {said}"}, checked(notebook)
    assert len(checked(notebook)) >= len(tagged(source(Path(name).name), "exercise"))
    assert unexpected_warnings(notebook, name) == []


def checked(notebook: Any) -> list[tuple[str, str]]:
    """Return the cells that check an exercise, and what they said first."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and ".check(" in cell.source]
    said = ["".join(output.get("data", {}).get("text/plain", "") for output in cell.outputs) for cell in cells]
    return [(cell.source, text.split(" · ")[0]) for cell, text in zip(cells, said, strict=True)]


def unexpected_warnings(notebook: Any, name: str) -> list[str]:
    errors = [output.text for output in outputs(notebook) if output.get("name") == "stderr"]
    expected = ["stand-in", *WARNS.get(Path(name).name, [])]
    return [text for text in errors if not any(word in text for word in expected)]


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def printed(cell: Any) -> str:
    return "".join(output.text for output in cell.get("outputs", []) if output.get("name") == "stdout")
