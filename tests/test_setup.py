"""Setting up: which PyTorch `make` installs and what it says, what the wheel has in it, what is said without extras."""

import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import torch

from loaderviz import cli, notebooks

ROOT = Path(__file__).parents[1]
PACKAGES = [
    line for line in (ROOT / "requirements.txt").read_text().splitlines() if re.match(r"torch(vision)?==", line)
]
LINUX = sys.platform == "linux" and os.uname().machine == "x86_64"

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is missing")


@pytest.fixture
def index(tmp_path):
    """The address of a package index that has wheels of the pinned torch and torchvision, and nothing else."""
    for package in PACKAGES:
        name, number = package.split("==")
        folder = tmp_path / "index" / name
        folder.mkdir(parents=True)
        file, info = f"{name}-{number}+cpu-py3-none-any.whl", f"{name}-{number}+cpu.dist-info"
        with zipfile.ZipFile(folder / file, "w") as wheel:
            wheel.writestr(f"{name}.py", "from_the_index = True\n")
            about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}+cpu\nRequires-Dist: not-in-the-index\n"
            wheel.writestr(f"{info}/METADATA", about)
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
        (folder / "index.html").write_text(f'<a href="{file}">{file}</a>')
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path / "index")
    handler.func.log_message = lambda *_: None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def make_torch(tmp_path):
    """Return a function that runs `make torch` with this Python: what it says, and what it puts into a folder."""

    def run(*variables, gpu=False):
        tools, target = tmp_path / "tools", tmp_path / "installed"
        tools.mkdir(exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        (tools / "nvidia-smi").write_text(f"#!/bin/sh\nexit {0 if gpu else 9}\n")
        (tools / "nvidia-smi").chmod(0o755)
        path = f"{tools}{os.pathsep}{os.environ['PATH']}"
        settings = {"PATH": path, "PIP_TARGET": str(target), "PIP_CONFIG_FILE": os.devnull, "HOME": str(tmp_path)}
        command = ["make", "--silent", "torch", f"RUN={sys.executable}", *variables]
        done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, check=True)
        return done.stdout.strip(), sorted(file.name for file in target.glob("*.py"))

    return run


@needs_make
def test_what_is_installed_and_why(make_torch, index, tmp_path):
    """The default where it fits; else torch and torchvision from an index, and nothing else."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (tmp_path / "Makefile").write_text(re.sub(r"(?m)^TORCH_INDEX \?= .*", f"TORCH_INDEX ?= {index}", text))
    here, both = f"--makefile={tmp_path / 'Makefile'}", ["torch.py", "torchvision.py"]
    nobody = "http://127.0.0.1:9"
    cases = [([f"TORCH_INDEX={nobody}"], False, f"the default build, since {nobody} does not answer", [])]
    if LINUX:  # elsewhere the default build is the CPU build
        cases += [([here], True, "the default build, for the NVIDIA GPU that nvidia-smi lists", [])]
        cases += [([here], False, f"from {index}, since nvidia-smi lists no NVIDIA GPU", both)]
    cases += [([f"TORCH_INDEX={index}"], True, f"from {index}, as you asked", both)]
    for variables, gpu, said, files in cases:
        assert make_torch(*variables, gpu=gpu) == (f"PyTorch: {said}", files)


def test_what_a_learner_installs_has_nothing_for_tests_and_all_of_the_extra():
    def names(lines):
        return {re.split(r"[=<>\[]", line)[0].lower() for line in lines if line and not line.startswith(("#", "-r"))}

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    learner, dev = ((ROOT / f).read_text().splitlines() for f in ("requirements.txt", "requirements-dev.txt"))
    assert names(extras["notebook"]) <= names(learner)
    assert names(extras["dev"]) - {"loaderviz"} <= names(learner) | names(dev)
    assert not names(learner) & {"pytest", "mypy", "ruff", "playwright", "hypothesis", "jupytext"}
    assert not names(learner) & names(dev)
    assert next(line for line in dev if not line.startswith("#")) == "-r requirements.txt"


def setuptools():
    try:
        return int(version("setuptools").split(".")[0])
    except PackageNotFoundError:
        return 0


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.skipif(setuptools() < 77, reason="setuptools 77 or later is missing")
def test_the_wheel_has_the_license_the_types_and_the_lessons_which_are_copied_out_of_it(tmp_path):
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for folder in ("loaderviz", "notebooks"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "src"))
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "out", "."]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (built,) = (tmp_path / "out").glob("*.whl")
    with zipfile.ZipFile(built) as wheel:
        files = wheel.namelist()
        about = wheel.read(next(file for file in files if file.endswith("/METADATA"))).decode()
    wanted = [path for path in (ROOT / "loaderviz").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {path.relative_to(ROOT).as_posix() for path in wanted} <= set(files)  # data of the package, too
    assert any(file.endswith("dist-info/licenses/LICENSE") for file in files)
    assert "License-Expression: MIT" in about

    command = [sys.executable, "-m", "pip", "install", "-qI", "--no-deps", f"--prefix={tmp_path / 'there'}", built]
    subprocess.run(command, check=True, capture_output=True)
    (place,) = {path.parents[1] for path in (tmp_path / "there").rglob("loaderviz/py.typed")}
    code = "from loaderviz import cli, notebooks; cli.main(['lessons', 'mine']); print(notebooks.trace('README.md'))"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for again in (False, True):
        where = {"cwd": elsewhere, "env": os.environ | {"PYTHONPATH": str(place)}}
        run = subprocess.run([sys.executable, "-c", code], **where, capture_output=True, text=True, check=True)
        told, trace = run.stdout.splitlines()
        assert ("files that it had already left" in told) == again, told
        assert Path(trace).is_relative_to(tmp_path / "there")
    notebooks.copy(tmp_path / "checkout")
    assert files_of(elsewhere / "mine") == files_of(tmp_path / "checkout")


EXTRA = r", .*the extra 'notebook' .* '\.\[notebook\]'"
MAIN, ERROR = "loaderviz.cli.main", "MissingPackageError:"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (f"{MAIN}(['compare'])", "loaderviz: `compare` needs pandas and torchvision"),
        ("loaderviz.Timeline.from_dict(EMPTY).figure()", f"{ERROR} a figure needs plotly"),
        ("import loaderviz.export as e; e.to_table(None)", rf"{ERROR} to_table\(\) needs pandas"),
    ],
)
def test_what_needs_more_than_torch_and_numpy_says_so_in_one_sentence(code, expected, tmp_path):
    absent = "plotly", "pandas", "ipywidgets", "torchvision", "IPython"
    before = f"import sys; sys.modules.update(dict.fromkeys({absent})); import loaderviz, loaderviz.cli\n"
    before += "from loaderviz.timeline import Context, TimelineBuilder as B\nEMPTY = B(Context()).build().to_dict()\n"
    run = subprocess.run([sys.executable, "-c", before + code], capture_output=True, text=True, cwd=tmp_path)
    assert re.search(expected + EXTRA, run.stderr.splitlines()[-1]), run.stderr


@pytest.mark.slow
def test_a_machine_is_ready_or_has_one_repair(capsys, monkeypatch):
    assert cli.main(["ready"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*(each.name for each in notebooks.CHECKS), "READY"]

    def broken():
        raise OSError("no space in /dev/shm\nand more")

    checks = [notebooks.Check("one", lambda: "fine", "never"), notebooks.Check("two", broken, "Repair: buy one")]
    monkeypatch.setattr(notebooks, "CHECKS", [*checks, *checks])
    assert cli.main(["ready"]) == 1
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith("one ") and second.split() == ["two", "no", "space", "in", "/dev/shm"]
    assert last == "NOT READY. Repair: buy one"


@pytest.mark.parametrize("room", [59_999_999, 60_000_000, 130_000_000, None])
def test_ready_measures_what_is_free_of_shared_memory(room, monkeypatch):
    monkeypatch.setattr(notebooks, "shared_memory", lambda free: room)
    monkeypatch.setattr("torch.utils.data.DataLoader", lambda *_, **__: iter(torch.arange(8).split(4)))
    if room == 59_999_999:
        with pytest.raises(notebooks.LoadervizError, match="/dev/shm has 60 MB free"):
            notebooks._spawn()
    else:
        told = {None: "batches$", 60_000_000: "enough for 1 kernel in", 130_000_000: "enough for 2 kernels in"}
        assert re.search(told[room], notebooks._spawn())


def test_lessons_that_are_nowhere_are_an_error(tmp_path, monkeypatch):
    with pytest.raises(notebooks.NoLessonsError, match=r"no trace 'x'; the lessons have alexnet_.*event_sync"):
        notebooks.trace("x")
    monkeypatch.setattr(notebooks, "FIRST", "no_such.ipynb")
    with pytest.raises(notebooks.NoLessonsError, match="pip install"):
        notebooks.copy(tmp_path)
