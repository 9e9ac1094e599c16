"""notebooks/build.py: from one source the learner's notebook and the solved one, stable to the byte."""

import base64
import json
import re
from pathlib import Path

import factory
import pytest

pytest.importorskip("jupytext", reason="jupytext is missing: pip install -r requirements.txt")

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
build = factory.script("notebooks/build.py")

STARTER = "def load(x):\n    return ..."
ANSWER = "def load(x):\n    return x"
SOURCE = f"""# %% [markdown]
# # 1. A lesson
#
# [before](00_before.ipynb) and [the net](https://pytorch.org) and [a part](#there)

# %%
x = 1

# %% tags=["starter"]
# Exercise 1.2
{STARTER}

# %% tags=["exercise"]
# Exercise 1.2
{ANSWER}

# %%
x = 1

# %% [markdown]
# The end

# %% tags=["claims"]
assert x == 1

# %% [markdown] tags=["guide"]
# Say it.
"""


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "notebooks"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "01_lesson.py").write_text(SOURCE)
    return folder


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
        ("code", f"# Exercise 1.2\n{STARTER}"),
        ("code", "x = 1"),
        ("markdown", "The end\n\nThe exercises of this lesson, solved: [solutions](solutions/01_lesson.ipynb)"),
    ]
    to_try = "*Here the exercises are solved. To try them yourself, open [the lesson](../01_lesson.ipynb).*"
    assert solved == [
        ("markdown", f"{links.format('../')}\n\n{to_try}"),
        ("code", "x = 1"),
        ("code", f"# Exercise 1.2\n{ANSWER}"),
        ("code", "x = 1"),
        ("markdown", "The end"),
    ]
    stored = json.loads((folder / "01_lesson.ipynb").read_text())
    assert stored["metadata"]["loaderviz"].endswith("edit notebooks/src/01_lesson.py, then run make notebooks")
    assert [cell["metadata"] for cell in stored["cells"]] == [{}, {}, {"tags": ["exercise"]}, {}, {}]
    texts = json.loads((folder.parent / "loaderviz" / "workshop" / "exercises.json").read_text())
    assert texts == {"1.2": {"starter": STARTER.splitlines(), "answer": ANSWER.splitlines()}}


def test_what_no_notebook_has_is_found_by_its_tag(folder):
    source = folder / "src" / "01_lesson.py"
    assert [build.apart(source, tag) for tag in ("claims", "guide")] == ["assert x == 1", "Say it."]
    with pytest.raises(build.SourceError, match=r"01_lesson.py: there is no cell with the tag 'picture'"):
        build.apart(source, "picture")


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
    (folder / "solutions" / "99_old.ipynb").write_text("{}")
    assert build.main([], folder) == build.main(["--check"], folder) == 1
    assert "solutions/99_old.ipynb has no source in src/: delete it" in capsys.readouterr().err


def test_ids_stay_when_another_cell_changes_or_comes(folder):
    def ids():
        build.main([], folder)
        return [cell["id"] for cell in json.loads((folder / "01_lesson.ipynb").read_text())["cells"]]

    before = ids()
    assert before == ["1-a-lesson", "x-1", "exercise-1-2", "x-1--2", "the-end"]
    change(folder, "# The end", "# new\n\n# %%\n# +-+\n\n# %% [markdown]\n# The end\n#\n# of it")
    assert ids() == [*before[:4], "new", "code", "the-end"]


def test_a_solved_notebook_keeps_the_outputs_of_cells_that_have_not_changed(folder):
    build.main([], folder)
    path = folder / "solutions" / "01_lesson.ipynb"
    run = json.loads(path.read_text())
    for number, cell in enumerate(cell for cell in run["cells"] if cell["cell_type"] == "code"):
        cell |= {"execution_count": number, "outputs": [{"output_type": "stream", "name": "stdout", "text": ["!\n"]}]}
    path.write_text(json.dumps(run, indent=1, sort_keys=True) + "\n")
    assert build.main(["--check"], folder) == 0

    change(folder, "x = 1\n\n# %% [markdown]\n# The end", "x = 1 + 1\n\n# %% [markdown]\n# The end")
    assert build.main(["--check"], folder) == 1
    build.main([], folder)
    assert build.main(["--check"], folder) == 0
    stored = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [(cell["execution_count"], len(cell["outputs"])) for cell in stored] == [(0, 1), (1, 1), (None, 0)]
    learner = json.loads((folder / "01_lesson.ipynb").read_text())
    assert [cell.get("outputs", []) for cell in learner["cells"]] == [[]] * 5


CELLS = [
    "import warnings\nimport plotly.graph_objects as go\nwarnings.warn('look')\nprint('one')\nprint('two')",
    "go.Figure(go.Bar(x=[1, 2], y=['a', 'b'], orientation='h'))",
    "go.Figure(go.Scatter(x=[1, 2], y=[3, 4]))",
    "from loaderviz.workshop import predict\npredict('Which?', ['this', 'that'], answer='this')",
    "import loaderviz as lv\nlv.explore()",
    "import secrets\nprint(secrets.randbelow(10**6), secrets.randbits(32))",
]


@pytest.mark.notebook
@pytest.mark.browser
@pytest.mark.usefixtures("kernels")
def test_what_a_run_stores(tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat", reason="nbformat is missing: pip install -r requirements-dev.txt")
    pytest.importorskip("playwright", reason="playwright is missing: pip install -r requirements-dev.txt")
    monkeypatch.syspath_prepend(NOTEBOOKS)
    from execute import MEASURED, execute
    from stills import Camera, digest_of

    path, make = tmp_path / "small.ipynb", nbformat.v4.new_code_cell
    cells = [*map(make, CELLS), make("1 / 4", metadata={"tags": ["measured"]})]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    stored = []
    try:
        camera = Camera().__enter__()
    except RuntimeError as missing:
        pytest.skip(str(missing))
    try:
        for each in (camera, Camera({})):  # the other one cannot draw, only know
            execute(path, each)
            stored.append([cell.outputs for cell in nbformat.read(path, as_version=4).cells])
    finally:
        camera.__exit__()
    assert stored[0] == stored[1]  # known pictures are not drawn again
    words, bars, line, question, explorer, number, measured = stored[0]
    warned, printed = sorted(words, key=lambda output: output.name)
    assert warned.text.startswith("cell:3: UserWarning: look")
    assert printed.text == "one\ntwo\n"
    for (picture,) in (bars, line):
        assert picture.output_type == "display_data"
        assert digest_of(base64.b64decode(picture.data["image/png"]))
    assert [set(output.data) for output in question] == [{"text/html", "text/plain"}]
    assert [set(output.data) for output in explorer] == [{"image/png", "text/plain"}, {"text/html"}]
    assert "<svg" not in explorer[1].data["text/html"]
    assert re.fullmatch(r"\d+ \d+\n", number[0].text)
    assert [output.text for output in measured] == [MEASURED]


def test_the_number_of_a_rule_leads_to_what_it_says(folder):
    change(folder, "# The end", "# The end: R16, `R7`")
    build.main([], folder)
    for path in (folder / "01_lesson.ipynb", folder / "solutions" / "01_lesson.ipynb"):
        *_, (_, end), (kind, rules) = cells(path)
        assert end.startswith("The end: [R16](#R16), `R7`") and kind == "markdown"
        assert rules.startswith("## The rules named here\n\n### R16\n\n") and "### R7\n" not in rules


def test_a_translation_says_what_of_it_is_out_of_date(folder, capsys):
    file, made = folder / "src" / "01_lesson.zh.md", folder / "zh" / "01_lesson.ipynb"
    file.write_text(
        "<!-- the-end 1234 -->\n完 [甲](a.md)\n\n<!-- x-1 5678 -->\nx = 1  # 一\n<!-- gone 9 -->\n无\n", "utf-8"
    )
    assert build.main([], folder) == 0
    said = capsys.readouterr().err
    assert "01_lesson.zh.md: the notebook has no cell gone" in said
    assert cells(made)[-1][1].startswith(f"{build.CHANGED}The end") and cells(made)[2] == ("code", "x = 1")
    for name, digest in re.findall(r"zh.md: (\S+) has changed since.* the hash (\w+)", said):
        file.write_text(re.sub(f"{name} .* -->", f"{name} {digest} -->", file.read_text("utf-8")), "utf-8")
    build.main([], folder)
    assert [cells(made)[at][1] for at in (-1, 2, 4)] == ["完 [甲](../a.md)", "x = 1  # 一", "x = 1"]
    assert cells(made)[1] == ("code", 'import os\n\nos.environ["LOADERVIZ_LANGUAGE"] = "zh"')
    assert "[before](../00_before.ipynb)" in cells(made)[0][1]
    assert capsys.readouterr().err.count("\n") == 1


def test_a_translation_links_to_translations_where_there_are_some(folder):
    (folder / "src" / "00_before.zh.md").write_text("", "utf-8")
    (folder / "src" / "01_lesson.zh.md").write_text("", "utf-8")
    change(folder, "# The end", "# [a](01_lesson.ipynb#end) [b](solutions/00_before.ipynb) [c](https://d.e) [f](#here)")
    build.main([], folder)
    first, *_, last = cells(folder / "zh" / "01_lesson.ipynb")
    assert "[before](00_before.ipynb)" in first[1]
    assert last[1].startswith("[a](01_lesson.ipynb#end) [b](../solutions/00_before.ipynb) [c](https://d.e) [f](#here)")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("# The end", "# R99", r"01_lesson.py: there is no rule R99"),
        ("# Exercise 1.2", "y = 2", r"begins with \['y = 2'\]"),
        ('["starter"]\n# Exercise 1.2', '["starter"]\n# Exercise 1.1', r"exercise is two cells.*exercise 1.1 is not"),
        ('# %% tags=["starter"]', "# %%", r"exercise is two cells.*exercise 1.2 is not"),
        ('# %% tags=["exercise"]', "# %%", r"exercise is two cells.*exercise 1.2 is not"),
        ("# %% [markdown]\n# The end\n", "", r"the first cell and the last one must be text"),
        (SOURCE, "", r"the first cell and the last one must be text"),
    ],
)
def test_a_source_that_is_wrong_is_named_and_nothing_of_it_is_written(folder, capsys, old, new, expected):
    change(folder, old, new)
    (folder / "src" / "02_other.py").write_text("# %% [markdown]\n# # 2. Other\n\n# %% [markdown]\n# end\n")
    assert build.main([], folder) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(expected, line), line
    assert sorted(path.name for path in folder.glob("*.ipynb")) == ["02_other.ipynb"]  # the others are
    assert not (folder.parent / "loaderviz").exists()


def test_what_is_not_in_chinese_is_named(tmp_path):
    assert build.untranslated() == []
    (tmp_path / "view").mkdir()
    (tmp_path / "view" / "texts.toml").write_text('[findings]\nresident = { zh = "常驻" }\n[one.two]\nen = "2"\n')
    (tmp_path / "asked.toml").write_text(
        '["1.a"]\ntask = "Do"\n["1.b"]\ntask = "Do"\n["1.b".zh]\ntask = "做"\n[x]\ny = 1\n'
    )
    (tmp_path / "empty.toml").write_text("")
    first, *found = build.untranslated(tmp_path)
    assert first == "asked.toml: 1.a is not in Chinese"
    assert "view/texts.toml: findings.late-rank is not in Chinese" in found
    assert "view/texts.toml: one.two is not in Chinese" in found and "resident" not in str(found)
