"""README and the how-to pages: their code runs, and what it prints is what they say; they stay short."""

import ast
import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from factory import script

import loaderviz as lv
from loaderviz import cli
from loaderviz.imports import cured_imports

ROOT = Path(__file__).parents[1]
pages = script("docs/pages.py")
FORKS = pytest.mark.skipif(sys.platform != "linux", reason="a page's data set cannot be imported by spawned workers")
SCREEN, WIDEST = 61, 125  # lines, characters
LONGER = {"tour.md": 85}  # what is beside the tasks of the other pages


def told(page):
    """The page as a case, slow where it runs something."""
    text = page.read_text(encoding="utf-8")
    return pytest.param(
        page,
        marks=[pytest.mark.slow] if "```sh" in text or "```python" in text else [],
        id=page.relative_to(ROOT).as_posix(),
    )


@FORKS
@pytest.mark.timeout(900)  # a page starts up to six programs
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", [told(page) for page in pages.PAGES])
def test_a_page_says_what_its_code_prints(page, tmp_path):
    text = page.read_text(encoding="utf-8")
    for package in pages.needs(text):
        with cured_imports():
            pytest.importorskip(package)
    assert pages.ran(page, tmp_path) == text, f"run: python docs/pages.py {page.relative_to(ROOT)}"


def test_readme_fits_and_every_how_to_page_is_one_screen_and_in_the_list():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120 and max(map(len, lines)) <= 100
    folder = ROOT / "docs" / "howto"
    listed = re.findall(r"\]\(([\w-]+\.md)\)", (folder / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted({path.name for path in folder.glob("*.md")} - {"README.md"})
    for path in folder.glob("*.md"):
        text = path.read_text(encoding="utf-8")
        written = re.sub(r"(?ms)^```text\n.*?^```$|^\|.*?$", "", text).splitlines()  # neither outputs nor tables
        assert len(text.splitlines()) <= LONGER.get(path.name, SCREEN) and max(map(len, written)) <= WIDEST, path.name


def test_the_numbers_of_readme_are_those_of_the_pages_that_it_names():
    readme, validation, compatibility = (
        " ".join((ROOT / name).read_text(encoding="utf-8").split())
        for name in ("README.md", "docs/validation.md", "docs/compatibility.md")
    )
    found = re.search(r"\*\*held out\*\*.*?: (\d+) rows, median factor ([\d.]+), worst ([\d.]+)\.", validation)
    said = "for {} published times that we did not tune it on, the median factor is {}, and the worst is {}."
    assert said.format(*found.groups()) in readme
    fitted = re.search(r"\*\*fitted\*\*.*?: (\d+) rows", validation)[1]
    assert f"kernels, calls, copies, decoding and workers cost is fitted on {fitted} published times" in readme
    run, every = re.search(r"(\d+) of (\d+) run,", compatibility).groups()
    assert f"Of {every} public programs and libraries](docs/compatibility.md), {run} run unchanged" in readme


def test_every_block_of_code_is_of_a_kind_that_runs():
    for page in pages.PAGES:
        text = page.read_text(encoding="utf-8")
        assert len(re.findall("(?m)^```", text)) == 2 * len(pages.BLOCK.findall(text)), page.name


def beside(page):
    """The lines of code of a page that stand in no block: the indented ones, and those within sentences."""
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text(encoding="utf-8"))
    sentences = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text)]
    return [*re.findall(r"(?m)^ {4,}(\S.*)$", text), *sentences]


COMMAND = re.compile(r"(?:python3? (?:start\.py )?-m |try/bin/)(\S+)(?: ([^&]*))?")
ALONE = [["ready"], ["compare"]]  # of other commands a single word is but the name


@pytest.mark.parametrize(
    ("page", "least"),
    [(page, 3 * (page.parent == ROOT)) for page in pages.PAGES]
    + [(ROOT / "docs" / "setup.md", 6), (ROOT / "docs" / "releasing.md", 4)],
    ids=lambda given: getattr(given, "stem", None),
)
def test_a_command_beside_the_blocks_is_one_that_its_program_takes(page, least, capsys):
    found = [words for line in beside(page) for words in COMMAND.findall(line)]
    assert len(found) >= least
    for program, given in found:
        options = shlex.split(given, comments=True)
        assert PathFinder.find_spec(program.partition(".")[0])  # `find_spec` lets setuptools replace distutils
        if program == "loaderviz" and options != ["--version"]:
            help_of = ["--help"] if len(options) == 1 and options not in ALONE else []
            with pytest.raises(SystemExit, match="0") if help_of else contextlib.nullcontext():
                cli._parser().parse_args([*options, *help_of])


@pytest.fixture
def example(tmp_path, monkeypatch):
    """What stands for the names and the files of the pages."""
    monkeypatch.chdir(tmp_path)
    with lv.record(on="t4") as recording:
        torch.ones(8).cuda().sum().item()
    traces = ROOT / "notebooks" / "traces"
    shutil.copy(traces / "event_sync_2023.json.gz", "trace.json.gz")
    Path("traces").mkdir()
    for rank in (0, 1):
        shutil.copy(traces / f"two_ranks_{rank}.json.gz", "traces")
    for name in ("rank0.json", "fit-rank2.json"):
        recording.timeline.save(name)
    accelerator = SimpleNamespace(process_index=0)
    return {"lv": lv, "loaderviz": lv, "recording": recording, "advice": lv.advise(recording.timeline),
            "accelerator": accelerator}  # fmt: skip


@pytest.mark.filterwarnings("ignore:recording.step")  # after the block
@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_an_expression_beside_the_blocks_can_be_evaluated(page, example):
    """Where a GPU is needed, a recording without one stands for it."""
    for line in beside(page):
        with contextlib.suppress(SyntaxError):  # of what is no Python
            words = ast.walk(ast.parse(line, mode="eval"))
            if {each.id for each in words if isinstance(each, ast.Name)} & {*example}:
                eval(line.replace('on="cuda"', 'on="cpu"'), example)


def test_links_of_the_pages_lead_somewhere():
    for page in [*pages.PAGES, *(ROOT / "docs" / name for name in ("setup.md", "emulator.md", "pilot.md"))]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), (page.name, target)


def page_of(tmp_path, text):
    (tmp_path / "page.md").write_text(text, encoding="utf-8")
    return tmp_path / "page.md"


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("```python\nprint(1)\n```\n\n```text\n2\n```\nend\n", "```python\nprint(1)\n```\n\n```text\n1\n```\nend\n"),
        ("```text\nnothing ran\n```\n", "```text\n```\n"),  # an output of nothing
        ("```python\nx = 2\n```\n```python\nprint(x)\n```\n```text\n```\n", None),  # variables are the page's
        ("```python\nprint(*range(3), sep='\\n')\n```\n```text\n0\n…\n```\n", "=") ,
        ("```python\n# later.py\nname = 'file'\n```\n```text\n```\n", "="),
        ("no code at all, `python` in a line\n", "="),
        ("```python\nprint('```')\n```\n```text\n```\n", None),
    ],
)  # fmt: skip
def test_outputs_are_written_where_they_stand(text, made, tmp_path):
    (tmp_path / "in").mkdir()
    found = pages.ran(page_of(tmp_path, text), tmp_path / "in")
    if made:
        assert found == (text if made == "=" else made)
    else:
        assert found != text
    assert (tmp_path / "in" / "later.py").is_file() == ("later.py" in text)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```python\n1 / 0\n```\n", ZeroDivisionError),
        ("```python\nif\n```\n", SyntaxError),
        ("<!-- needs: no_such_package -->\n", ModuleNotFoundError),
        ("```sh\nfalse\n```\n", RuntimeError),
        ("```sh\nno_such_program --help\n```\n", RuntimeError),
        ("```sh\nfalse\ntrue\n```\n", RuntimeError),  # the first of two
    ],
)
@FORKS
def test_a_page_that_does_not_run_is_not_written(text, error, tmp_path):
    before = Path.cwd()
    with pytest.raises(error):
        pages.ran(page_of(tmp_path, text), tmp_path)
    assert Path.cwd() == before


@FORKS
def test_commands_run_in_bash_and_a_failure_that_is_told_is_told_with_its_status(tmp_path):
    text = "```sh\npython -c \"print('hé')\"\nexit 3\n```\n\n```text\n```\n"
    assert pages.ran(page_of(tmp_path, text), tmp_path).endswith("```text\nhé\n(exit status 3)\n```\n")
    text = "```sh\n#!/bin/bash\n# job.sh\n#SBATCH -n 1\nsrun -n1 --x=2 bash -c 'echo $SLURM_PROCID $0'\n```\n"
    text += "```sh\nsbatch job.sh\ndocker run -v \"$PWD\":/a image python -c 'print(2)'\n```\n\n```text\n```\n"
    assert pages.ran(page_of(tmp_path, text), tmp_path).endswith("```text\n0 bash\n2\n```\n")
    assert (tmp_path / "job.sh").read_text().startswith("#!/bin/bash\n# job.sh\n")


@FORKS
@pytest.mark.slow
def test_the_command_writes_the_pages_that_are_named(tmp_path):
    page = page_of(tmp_path, "```python\nprint('new')\n```\n\n```text\nold\n```\n")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, ROOT / "docs" / "pages.py", page], check=True, env=environment, cwd=tmp_path)
    assert "new" in page.read_text().split("text")[1] and "old" not in page.read_text()
