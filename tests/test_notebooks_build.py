"""notebooks/build.py: from one source the learner's notebook and the solved one, stable to the byte."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

pytest.importorskip("jupytext", reason="jupytext is missing: pip install -r requirements.txt")

from loaderviz.workshop import EXERCISES

spec = importlib.util.spec_from_file_location("notebooks_build", Path(__file__).parents[1] / "notebooks" / "build.py")
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)

EXERCISE = EXERCISES["1.2"]
SOURCE = f"""# %% [markdown]
# # 1. A lesson
#
# [before](00_before.ipynb) and [the net](https://pytorch.org) and [a part](#there)

# %%
x = 1

# %% tags=["exercise"]
# Exercise 1.2
{EXERCISE.answer}
# %%
x = 1

# %% [markdown]
# The end
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "01_lesson.py").write_text(SOURCE)
    return tmp_path


def cells(path):
    return [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(path.read_text())["cells"]]


def change(folder, old, new):
    source = folder / "src" / "01_lesson.py"
    assert old in source.read_text()
    source.write_text(source.read_text().replace(old, new))


def test_two_notebooks_come_from_one_source(folder):
    assert build.main([], folder) == 0
    learner, solved = cells(folder / "01_lesson.ipynb"), cells(folder / "solutions" / "01_lesson.ipynb")
    links = "# 1. A lesson\n\n[before]({}00_before.ipynb) and [the net](https://pytorch.org) and [a part](#there)"
    assert learner == [
        ("markdown", links.format("")),
        ("code", "x = 1"),
        ("code", f"# Exercise 1.2\n{EXERCISE.starter.strip()}"),
        ("code", "x = 1"),
        ("markdown", "The end\n\nThe exercises of this lesson, solved: [solutions](solutions/01_lesson.ipynb)"),
    ]
    to_try = "*Here the exercises are solved. To try them yourself, open [the lesson](../01_lesson.ipynb).*"
    assert solved == [
        ("markdown", f"{links.format('../')}\n\n{to_try}"),
        ("code", "x = 1"),
        ("code", f"# Exercise 1.2\n{EXERCISE.answer.strip()}"),
        ("code", "x = 1"),
        ("markdown", "The end"),
    ]
    stored = json.loads((folder / "01_lesson.ipynb").read_text())
    assert stored["metadata"]["loaderviz"].endswith("edit notebooks/src/01_lesson.py, then run make notebooks")
    assert [cell["metadata"] for cell in stored["cells"]] == [{}, {}, {"tags": ["exercise"]}, {}, {}]


def test_a_second_build_changes_nothing_and_check_writes_nothing(folder, capsys):
    assert build.main(["--check"], folder) == 1
    assert not list(folder.glob("**/*.ipynb"))
    error = capsys.readouterr().err
    assert "01_lesson.ipynb is out of date: run make notebooks" in error
    assert "solutions/01_lesson.ipynb is out of date" in error
    build.main([], folder)
    assert build.main(["--check"], folder) == 0
    capsys.readouterr()
    assert build.main([], folder) == 0
    assert capsys.readouterr().out == ""  # nothing written
    (folder / "01_lesson.ipynb").write_text("{}")
    assert build.main(["--check"], folder) == 1


def test_ids_stay_when_another_cell_changes_or_comes(folder):
    def ids():
        build.main([], folder)
        return [cell["id"] for cell in json.loads((folder / "01_lesson.ipynb").read_text())["cells"]]

    before = ids()
    assert before == ["1-a-lesson", "x-1", "exercise-1-2", "x-1--2", "the-end"]
    change(folder, "# The end", "# new\n\n# %%\n# +-+\n\n# %% [markdown]\n# The end\n#\n# of it")
    assert ids() == [*before[:4], "new", "code", "the-end"]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("# Exercise 1.2", "# Exercise 77", r"01_lesson.py: .*'# Exercise 77'.*one of these numbers: .*1\.2"),
        ("# Exercise 1.2", "y = 2", r"begins with \['y = 2'\]"),
        (
            'to("cuda").float()',
            'to("cuda")',
            r"below '# Exercise 1.2' must be exactly the text of lesson01.fewer_bytes",
        ),
        ("# %% [markdown]\n# The end\n", "", r"the first cell and the last one must be text"),
    ],
)
def test_a_source_that_is_wrong_is_named_and_nothing_of_it_is_written(folder, capsys, old, new, expected):
    change(folder, old, new)
    (folder / "src" / "02_other.py").write_text("# %% [markdown]\n# # 2. Other\n\n# %% [markdown]\n# end\n")
    assert build.main([], folder) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(expected, line), line
    assert sorted(path.name for path in folder.glob("*.ipynb")) == ["02_other.ipynb"]  # the others are


def test_an_empty_source_is_an_error(folder, capsys):
    (folder / "src" / "01_lesson.py").write_text("")
    assert build.main([], folder) == 1
    assert "must be text" in capsys.readouterr().err


def test_a_notebook_without_source_is_named(folder, capsys):
    build.main([], folder)
    (folder / "solutions" / "99_old.ipynb").write_text("{}")
    assert build.main([], folder) == build.main(["--check"], folder) == 1
    assert "solutions/99_old.ipynb has no source in src/: delete it" in capsys.readouterr().err
