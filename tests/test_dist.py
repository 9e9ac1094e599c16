"""What is uploaded: made as `make dist` makes it, installed where no checkout is, and used there."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

import loaderviz
from loaderviz import cli, notebooks

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PICTURE = re.compile(r"!\[[^]]*\]\((?!attachment:|https?:)([^)]*)\)")
NOT_COPIED = ".git", ".venv*", "__pycache__", "dist", "build", "*.egg-info", ".*_cache", "shared"


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# One version


def test_there_is_one_version_and_the_changelog_has_it():
    """A version is released when it is no `.dev` and no candidate; until then the changelog says that it is not."""
    assert "version" in PROJECT["project"]["dynamic"] and "version" not in PROJECT["project"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "loaderviz.version.__version__"}
    changelog = (ROOT / "docs" / "changelog.md").read_text(encoding="utf-8")
    newest, note = re.search(r"^## ([\d.]+)(.*)$", changelog, re.M).groups()
    numbers, rest = re.fullmatch(r"([\d.]+?)(\.?(?:dev|a|b|rc)\d+)?", loaderviz.__version__).groups()
    assert (*newest.split("."), "0", "0")[:3] == (*numbers.split("."), "0", "0")[:3]
    assert (note.strip() == "(not released)") == bool(rest), "a release has its date, and no .dev"


def test_the_version_is_printed_with_that_of_torch(capsys, monkeypatch):
    assert cli.main(["--version"]) == 0
    plain = capsys.readouterr().out.splitlines()
    assert plain == [f"loaderviz {loaderviz.__version__}", f"torch {torch.__version__}"]
    monkeypatch.setattr("loaderviz.emulator.torch.internals.NEWEST", (2, 0))
    assert cli.main(["--version", "ready"]) == 0  # and nothing else is done
    *same, note = capsys.readouterr().out.splitlines()
    assert same == plain and note.endswith("is newer than 2.0, the newest version on which the emulated GPU was tried")


TORCHES = {
    "none": (None, "it is not installed"),
    "one without its library": ("raise OSError('libcudart.so.99: cannot open shared object file')", "libcudart.so.99"),
    "an old one": ("__version__ = '1.0'", "'torch' is not a package|cannot import name '_C' from 'torch'"),
    "a name of a module of the program": ("", "module 'torch' has no attribute '__version__'"),
    "one that fails without a word": ("raise RuntimeError", "RuntimeError"),
}


@pytest.mark.slow
@pytest.mark.parametrize("which", TORCHES)
def test_the_version_is_told_whatever_torch_is(which, tmp_path):
    text, said = TORCHES[which]
    if text is not None:
        (tmp_path / "torch.py").write_text(text)
    hide = "" if text is not None else "sys.path = [each for each in sys.path if 'site-packages' not in each]"
    code = f"import runpy, sys; sys.argv = ['loaderviz', '--version']\n{hide}\n"
    code += "runpy.run_module('loaderviz', run_name='__main__')"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, *others = done.stdout.splitlines()
    assert first == f"loaderviz {loaderviz.__version__}"
    assert re.search(f"^loaderviz cannot work with torch here: .*({said})", others[-1]), others


# The wheel and the source archive


def has_setuptools():
    found = re.findall(r"\d+", getattr(pytest.importorskip("setuptools"), "__version__", "0"))
    return int(found[0]) >= 77


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder dist/ of a copy of the project, made by the Makefile with this Python."""
    if not has_setuptools():
        pytest.skip("setuptools 77 or later is missing")
    if shutil.which("make") is None:
        pytest.skip("make is missing")
    copy = tmp_path_factory.mktemp("dist") / "copy"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*NOT_COPIED))
    (copy / "build" / "lib" / "loaderviz").mkdir(parents=True)
    (copy / "build" / "lib" / "loaderviz" / "removed_long_ago.py").write_text("")  # of a build before this one
    command = ["make", "--silent", "-o", "setup-dev", "dist", f"RUN={sys.executable}"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return copy / "dist"


@pytest.fixture(scope="module")
def there(made, tmp_path_factory):
    """The wheel, installed into a folder of its own."""
    place = tmp_path_factory.mktemp("there")
    (wheel,) = made.glob("*.whl")
    command = [sys.executable, "-m", "pip", "install", "-qI", "--no-deps", f"--target={place}", wheel]
    subprocess.run(command, check=True, capture_output=True)
    return place


@pytest.mark.slow
def test_wheel_and_archive_have_what_they_are_to_have(made):
    (wheel,), (archive,) = made.glob("*.whl"), made.glob("*.tar.gz")
    assert {wheel.name.split("-")[1], archive.name.removesuffix(".tar.gz").split("-")[1]} == {loaderviz.__version__}
    with zipfile.ZipFile(wheel) as file:
        files = file.namelist()
        about = HeaderParser().parsestr(file.read(next(f for f in files if f.endswith("/METADATA"))).decode())
        doors = file.read(next(f for f in files if f.endswith("/entry_points.txt"))).decode()
    wanted = [path for path in (ROOT / "loaderviz").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    inside = {file for file in files if file.startswith("loaderviz/")}
    assert inside == {path.relative_to(ROOT).as_posix() for path in wanted}  # data of the package, too, and no more
    assert any(file.endswith("dist-info/licenses/LICENSE") for file in files)
    assert "loaderviz = loaderviz.cli:main" in doors
    assert about["License-Expression"] == "MIT" and about["Author"] and about["Keywords"]
    assert {"Typing :: Typed", "Programming Language :: Python :: 3.14"} <= set(about.get_all("Classifier"))
    hosts = {re.search(r"//([^/]+)/", each)[1] for each in about.get_all("Project-URL")}
    assert len(hosts) == 1  # that of the placeholders, until the owner has written the addresses
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    kept = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    assert {"LICENSE", "start.py", ".dockerignore", "tests/test_images.py", *kept} <= names  # its tests can be run
    assert not any("__pycache__" in name for name in names)


@pytest.mark.slow
def test_pip_would_replace_nothing_that_fits_when_it_installs_the_wheel(made):
    (wheel,) = made.glob("*.whl")
    command = [*f"{sys.executable} -m pip install -q --no-index --dry-run --report=-".split(), f"{wheel}[notebook]"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert {each["metadata"]["name"] for each in report["install"]} <= {"loaderviz"}


@pytest.mark.parametrize("minor", range(8, 15))
def test_the_line_for_colab_keeps_each_torch_that_loaderviz_works_with(minor):
    """pip replaces what is installed only where a requirement does not hold for it; torchvision is 15 minors ahead."""
    (line,) = re.findall(r"^    %pip install (.*)", (ROOT / "docs" / "setup.md").read_text("utf-8"), re.M)
    asked = [Requirement(each) for each in shlex.split(line)]
    extra = [Requirement(each) for each in PROJECT["project"]["optional-dependencies"]["notebook"]]
    assert {str(each) for each in asked} - {str(each) for each in extra} == {"loaderviz"}
    needed = [*asked, *map(Requirement, PROJECT["project"]["dependencies"]), *extra]
    wanted = {"torch": f"2.{minor}.0+cu128", "torchvision": f"0.{minor + 15}.0+cu128"}
    kept = {each.name: each.specifier.contains(wanted[each.name]) for each in needed if each.name in wanted}
    assert kept == dict.fromkeys(wanted, minor >= 10)


def test_the_addresses_of_the_project_are_in_one_place():
    """Placeholders, which the owner replaces there."""
    (host,) = {address.split("/")[2] for address in PROJECT["project"]["urls"].values()}
    texts = [*ROOT.glob("*.*"), *(ROOT / "docs").glob("*.md"), *(ROOT / "loaderviz").rglob("*.py")]
    named = {path.name for path in texts if path.is_file() and host in path.read_text("utf-8", errors="replace")}
    assert named - {"README.md"} == {"pyproject.toml"}  # README's links lead somewhere on an index with them alone


PROGRAM = """
import torch
from loaderviz.loaders import PinnedLoader
for batch in PinnedLoader([torch.ones(1000)] * 4):
    (batch * 2).sum()
"""
EXERCISE = """
import loaderviz as lv
from loaderviz.workshop import lesson00
def exposed_share(timeline):
    summary = lv.summarize(timeline)
    return summary.exposed_copy / summary.window
print(lv.__file__, lesson00.reading.check(exposed_share).status)
"""
LACKS = """
from loaderviz import errors, notebooks
try:
    errors.require("a lesson", "missing_here")
except errors.MissingPackageError as error:
    print(str(error).partition("needed: ")[2])
print(next(check.repair for check in notebooks.CHECKS if check.name == "packages"))
"""
INSTALL = 'python -m pip install "loaderviz[notebook]"'
FEW = "--batch-size 64 --steps 2 --warmup 2 --workers 1"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_wheel_is_used_without_the_checkout(there, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    options = {"cwd": tmp_path, "env": environment | {"PYTHONPATH": str(there)}, "capture_output": True, "text": True}

    def used(*command):
        command = command[0].split(" ") if len(command) == 1 else command
        done = subprocess.run([sys.executable, *command], **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    said = used("-m", "loaderviz", "--version")
    assert said == used(there / "bin" / "loaderviz", "--version") and f"loaderviz {loaderviz.__version__}\n" in said
    assert "The pictures are in compared.html" in used(f"-m loaderviz compare {FEW} --out compared.html")
    used("-m loaderviz run --on a100 --out run.html --save run.json program.py")
    assert "The picture is in seen.html" in used("-m loaderviz view run.json --out seen.html")
    assert all((tmp_path / f"{name}.html").stat().st_size > 50_000 for name in ("compared", "run", "seen"))
    for again in (False, True):
        told = used("-m", "loaderviz", "lessons", "mine")
        assert ("files that it had already left" in told) == again, told
    assert used("-m", "loaderviz", "ready").endswith("READY\n")
    options["cwd"] = tmp_path / "mine"
    assert used("-c", LACKS) == f"{INSTALL}\nRepair: {INSTALL}\n"
    file, status = used("-c", EXERCISE).split()
    assert status == "passed" and Path(file).is_relative_to(there)
    trace = Path(used("-c", "from loaderviz import notebooks; print(notebooks.trace('README.md'))").strip())
    assert (tmp_path / "mine" / trace).is_file()
    _check_lessons(tmp_path)


def _check_lessons(folder):
    """The copied lessons are those of the checkout, and each picture that one shows is there."""
    notebooks.copy(folder / "checkout")
    assert files_of(folder / "mine") == files_of(folder / "checkout")
    shown = 0
    for lesson in (folder / "mine").rglob("*.ipynb"):
        for picture in PICTURE.findall(lesson.read_text(encoding="utf-8")):
            assert (lesson.parent / picture).read_bytes()[:4] in (b"\x89PNG", b"<svg"), f"{lesson}: {picture}"
            shown += 1
    assert shown >= 12


@pytest.mark.slow
def test_the_wheel_in_a_prefix_has_its_lessons_too(made, tmp_path):
    """There they are where Python's metadata say, and not beside the package."""
    (wheel,) = made.glob("*.whl")
    command = [sys.executable, "-m", "pip", "install", "-qI", "--no-deps", f"--prefix={tmp_path / 'there'}", wheel]
    subprocess.run(command, check=True, capture_output=True)
    (place,) = {path.parents[1] for path in (tmp_path / "there").rglob("loaderviz/py.typed")}
    code = "from loaderviz import notebooks; print(notebooks.folder())"
    environment = os.environ | {"PYTHONPATH": str(place)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    found = Path(done.stdout.strip())
    assert found.is_relative_to(tmp_path / "there") and (found / notebooks.FIRST).is_file(), done.stderr
