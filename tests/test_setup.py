"""Setting up: which PyTorch start.py installs and what it says, and what is said without extras."""

import functools
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from factory import script, serving

from loaderviz import cli, notebooks
from loaderviz.errors import LoadervizError

ROOT = Path(__file__).parents[1]
HOW_TO = (ROOT / "docs" / "howto").glob("*.md")
start = script("start.py")
PACKAGES = re.findall(r"(?m)^torch(?:vision)?==.*", start.requirements())
ARGUMENTS = ["-c", "import sys; print(sys.argv[1:])", "a b", "--dev"]


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
    with serving(tmp_path / "index") as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def install(tmp_path, monkeypatch, capfd):
    """Return a function that installs torch as start.py does: what it says, and what it puts into a folder."""
    tools, target = tmp_path / "tools", tmp_path / "installed"
    tools.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)
    monkeypatch.setenv("PIP_TARGET", str(target))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setattr(start, "RUN", sys.executable)

    def run(system="Linux", given=None, gpu=False):
        shutil.rmtree(target, ignore_errors=True)
        (tools / "nvidia-smi").write_text(f"#!/bin/sh\nexit {0 if gpu else 9}\n")
        (tools / "nvidia-smi").chmod(0o755)
        monkeypatch.setattr(platform, "system", lambda: system)
        monkeypatch.setattr(platform, "machine", lambda: "arm64")
        monkeypatch.setenv("TORCH_INDEX", given or "")
        start.torch()
        return capfd.readouterr().out.strip(), sorted(file.name for file in target.glob("*.py"))

    return run


@pytest.mark.skipif(os.name == "nt", reason="a shell's script stands for nvidia-smi")
def test_what_is_installed_and_why(install, index, monkeypatch):
    """The default where it fits; else torch and torchvision from an index, and nothing else."""
    nobody, both = "http://127.0.0.1:9", ["torch.py", "torchvision.py"]
    assert install("Darwin") == ("PyTorch: the default build, which on Darwin arm64 is not a large one", [])
    assert install("Windows", gpu=True)[1] == []
    assert install("Windows", given=index) == (f"PyTorch: from {index}, as you asked", both)
    assert install(given=nobody) == (f"PyTorch: the default build, since {nobody} does not answer", [])
    assert install(given="no address") == ("PyTorch: the default build, since no address does not answer", [])
    monkeypatch.setattr(start, "INDEX", index)  # on ARM, too, where the default build is the one for CUDA
    assert install() == (f"PyTorch: from {index}, since nvidia-smi lists no NVIDIA GPU", both)
    assert install(gpu=True) == ("PyTorch: the default build, for the NVIDIA GPU that nvidia-smi lists", [])


@pytest.mark.skipif(shutil.which("make") is None, reason="make is missing")
def test_make_sets_up_by_the_same_file_and_hands_an_index_on(tmp_path):
    said = tmp_path / "python"
    said.write_text('#!/bin/sh\necho "$@, $TORCH_INDEX"\n')
    said.chmod(0o755)
    variables = [f"PYTHON={said}", f"VENV={tmp_path}", "TORCH_INDEX=http://127.0.0.1:9"]
    done = subprocess.run(["make", "--silent", "setup-dev", *variables], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines() == [f"start.py{dev}, http://127.0.0.1:9" for dev in ("", " --dev")], done.stderr


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder in which start.py has its lists, and the commands that it runs but for those of an environment."""
    for names in start.MADE_OF.values():
        for name in names:
            (tmp_path / name).write_text("torch==1\n")
            os.utime(tmp_path / name, (1, 1))
    ran = []

    def make(command, **_):
        ran.append(" ".join(command[1:]))
        (tmp_path / ".venv").mkdir(exist_ok=True)

    for name, value in {"ROOT": tmp_path, "VENV": tmp_path / ".venv", "torch": lambda: ran.append("torch")}.items():
        monkeypatch.setattr(start, name, value)
    monkeypatch.setattr(start.subprocess, "run", make)
    return ran


def test_each_part_is_set_up_once_and_again_when_its_list_is_newer(project, tmp_path):
    def parts():
        found = [command.split()[-1] for command in project]
        project.clear()
        return found

    learner = [str(tmp_path / ".venv"), "torch", "requirements.txt", "."]
    assert start.main([]) == 0 and parts() == learner
    assert start.main([]) == 0 and parts() == []
    assert start.main(["--dev"]) == 0 and parts() == ["requirements-dev.txt"]
    assert start.main(["--dev"]) == 0 and parts() == []
    os.utime(tmp_path / "pyproject.toml")
    os.utime(tmp_path / ".venv" / ".ready", (2, 2))
    assert start.main(["--dev"]) == 0 and parts() == [*learner, "requirements-dev.txt"]


def test_a_set_up_that_failed_is_not_taken_for_one(project, monkeypatch):
    def fail(command, **_):
        raise subprocess.CalledProcessError(7, command)

    monkeypatch.setattr(start.subprocess, "run", fail)
    with pytest.raises(subprocess.CalledProcessError):
        start.main([])
    monkeypatch.setattr(start.subprocess, "run", lambda command, **_: start.VENV.mkdir(exist_ok=True))
    assert not start.is_new(".ready")
    assert start.main([]) == 0 and start.is_new(".ready")


def test_nothing_is_begun_where_there_is_no_pytorch(project, monkeypatch, capsys):
    monkeypatch.setattr(start, "misfit", functools.partial(notebooks.misfit, build="win-arm64"))
    assert start.main(["-c", ""]) == 1
    assert "PyTorch has no package for win-arm64" in capsys.readouterr().err
    assert not project


def test_what_follows_is_run_by_the_environments_python(capfd, monkeypatch):
    monkeypatch.setattr(start, "RUN", sys.executable)
    assert start.run([*ARGUMENTS[:1], "import sys; print(sys.argv[1:]); sys.exit(5)", *ARGUMENTS[2:]]) == 5
    code = f"import start; start.RUN = {sys.executable!r}; start.is_new = lambda _: True; start.main({ARGUMENTS})"
    assert subprocess.call([sys.executable, "-c", code], cwd=ROOT) == 0
    assert capfd.readouterr().out == "['a b', '--dev']\n" * 2


@pytest.mark.parametrize(
    ("python", "build", "macos", "machine", "said"),
    [
        ((3, 11, 4), "linux-x86_64", "", "x86_64", "3.11.5 to 3.14, and this is 3.11.4"),
        ((3, 11, 5), "linux-x86_64", "", "x86_64", None),
        ((3, 14, 9), "linux-aarch64", "", "aarch64", None),
        ((3, 15, 0), "linux-x86_64", "", "x86_64", "3.11.5 to 3.14, and this is 3.15.0"),
        ((3, 13, 0), "linux-armv7l", "", "armv7l", "no package for linux-armv7l"),
        ((3, 13, 0), "win-amd64", "", "AMD64", None),
        ((3, 13, 0), "win-amd64", "", "ARM64", None),  # a Python for x64 on such a Windows
        ((3, 13, 0), "win-arm64", "", "ARM64", "no package for win-arm64"),
        ((3, 13, 0), "win32", "", "AMD64", "no package for win32"),
        ((3, 14, 0), "macosx-14.0-universal2", "14.0", "arm64", None),
        ((3, 14, 0), "macosx-11.0-arm64", "26.1", "arm64", None),
        ((3, 14, 0), "macosx-11.0-arm64", "13.7.1", "arm64", "macOS 14 or later, and this is 13.7.1"),
        ((3, 13, 0), "macosx-10.13-universal2", "15.1", "x86_64", "Macs with an Intel processor"),
    ],
)
def test_where_there_is_a_pytorch(python, build, macos, machine, said, monkeypatch):
    found = notebooks.misfit(python, build, macos, machine)
    assert said in found if said else not found
    monkeypatch.setattr(notebooks, "misfit", lambda: found)
    monkeypatch.setattr(notebooks, "find_spec", lambda name: None)
    if said:
        with pytest.raises(LoadervizError, match=said):
            notebooks._system()
        monkeypatch.setattr(notebooks, "find_spec", lambda name: name)  # built by others
    assert notebooks._system().startswith("Python 3.")


@pytest.mark.parametrize(
    ("system", "free", "limit", "said"),
    [
        ("linux", 899_000_000, None, "899 MB are free, and lesson 6 takes up to 900 MB"),
        ("linux", 901_000_000, None, None),
        ("linux", 8_000_000_000, 512_000_000, "512 MB are free"),
        ("linux", 8_000_000_000, 1 << 63, None),
        ("linux", 8_000_000_000, 0, "0 bytes are free"),
        ("darwin", 2_300_000_000, None, "2.3 GB are free, and lesson 6 takes up to 2.4 GB"),  # of spawned workers
        ("win32", 2_500_000_000, None, None),
    ],
)
def test_a_machine_has_memory_for_a_lesson(system, free, limit, said, monkeypatch):
    import psutil

    from loaderviz import machine

    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
    monkeypatch.setattr(machine, "memory_room", lambda: limit)
    monkeypatch.setattr(sys, "platform", system)
    if said:
        with pytest.raises(LoadervizError, match=said):
            notebooks._memory()
    else:
        assert "are free" in notebooks._memory()


def test_what_a_learner_installs_has_nothing_for_tests_and_all_of_the_extra():
    def names(lines):
        return {re.split(r"[=<>;\[]", line)[0].lower() for line in lines if line and not line.startswith(("#", "-r"))}

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    learner, dev = ((ROOT / f).read_text().splitlines() for f in ("requirements.txt", "requirements-dev.txt"))
    assert names(extras["notebook"]) <= names(learner)
    assert names(extras["dev"]) - {"loaderviz"} <= names(learner) | names(dev)
    assert not names(learner) & {"pytest", "mypy", "ruff", "playwright", "hypothesis", "jupytext"}
    assert not names(learner) & names(dev)
    apart = (ROOT / "requirements-integrations.txt").read_text().splitlines()
    needed = re.findall(r"<!-- needs: (.*?) -->", "".join(page.read_text("utf-8") for page in HOW_TO))
    assert {*" ".join(needed).split()} <= names(apart) and not names(apart) & (names(learner) | names(dev))
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in apart[1:])
    assert next(line for line in dev if not line.startswith("#")) == "-r requirements.txt"


@pytest.mark.parametrize(
    ("files", "limit", "quota"),
    [
        (
            {"": "0::/room/one", "memory.max": "max", "room/one/memory.max": "2000", "room/one/cpu.max": "150 100"},
            2000,
            2,
        ),
        ({"": "4:memory:/one", "memory/one/memory.limit_in_bytes": "3000", "cpu.max": "100 100"}, 3000, 0),
        ({"": "4:cpuset:/one", "cpuset/cpu.cfs_quota_us": "100", "cpuset/cpu.cfs_period_us": "100"}, None, 0),
        ({}, None, 0),
        # what it uses is taken off, but for files that the system may drop
        ({"": "0::/", "memory.max": "2000", "memory.current": "900", "memory.stat": "inactive_file 300"}, 1400, 0),
        (
            {
                "": "4:memory:/",
                "memory/memory.limit_in_bytes": "2000",
                "memory/memory.usage_in_bytes": "2500",
                "memory/memory.stat": "total_inactive_file 400",
            },
            0,
            0,
        ),
    ],
)
def test_the_limits_of_a_container(files, limit, quota, monkeypatch):
    from loaderviz import machine

    known = {machine.GROUPS / name if name else Path("/proc/self/cgroup"): [text] for name, text in files.items()}
    monkeypatch.setattr(machine, "_lines", lambda file: known.get(file, []))
    assert (machine.memory_room(), machine._quota()) == (limit, quota)


EXTRA = r""", .*the extra 'notebook' .* "\.\[notebook\]" in the folder"""
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
    monkeypatch.setattr("loaderviz.machine.shared_memory", lambda free: room)
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


def test_set_up_and_ready_need_no_package(tmp_path):
    """What a new machine's Python has is the standard library alone."""
    code = f"""
import sys
class Nothing:
    def find_spec(name, *_):
        if name.partition(".")[0] in ("numpy", "torch", "psutil", "plotly"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Nothing)
sys.path.insert(0, {str(ROOT)!r})
import start
print(start.misfit((3, 9, 0)))
from loaderviz import cli
cli.main(["ready"])
"""
    told = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True).stdout
    first, *rest = told.splitlines()
    assert first == "loaderviz's packages are for Python 3.11.5 to 3.14, and this is 3.9.0"
    assert rest[-1].startswith("NOT READY. Repair: ")
