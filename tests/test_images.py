"""The files for a dev container, Docker and Binder: nobody could build them here, so they are read, and each command of
theirs is one that works from a clean copy of the repository.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from factory import script

from loaderviz import cli, notebooks

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
DEVCONTAINER = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
POST_BUILD = ROOT / ".binder" / "postBuild"
STEPS = [tuple(line.split(" ", 1)) for line in DOCKERFILE.splitlines() if line and not line.startswith("#")]


def commands():
    """Every command that starts Python in a container."""
    found = [shlex.split(DEVCONTAINER[key]) for key in ("postCreateCommand", "postAttachCommand")]
    for step, rest in STEPS:
        found += [json.loads(rest)] if step == "CMD" else [shlex.split(rest)] if step == "RUN" else []
    return [command for command in found if command[0].startswith("python")]


def test_every_command_is_start_py_with_what_exists():
    seen = []
    for python, file, *rest in commands():
        assert (python, file) == ("python3", "start.py") and (ROOT / file).is_file()
        rest = rest[rest[:1] == ["--dev"] :]
        if not rest:
            continue
        option, module, *options = rest
        assert option == "-m" and find_spec(module)
        if module == "loaderviz":
            seen.append(cli._parser().parse_args(options).command)
        folders = [each.partition("=")[2] for each in options if each.startswith("--notebook-dir=")]
        assert all((ROOT / folder / notebooks.FIRST).is_file() for folder in folders)
    assert len(commands()) == 4 and seen == ["ready"]


def test_the_dockerfile_has_known_steps_in_an_order_that_works():
    names = [step for step, _ in STEPS]
    assert set(names) <= {"FROM", "RUN", "WORKDIR", "USER", "COPY", "EXPOSE", "CMD"}
    assert names[0] == "FROM" and names[-1] == "CMD" and names.count("CMD") == 1
    assert names.index("USER") < names.index("COPY") < STEPS.index(("RUN", "python3 start.py"))
    assert "http" not in DOCKERFILE and not re.search(r"\bADD\b|curl|wget|sudo", DOCKERFILE)
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    for name in ("start.py", "requirements.txt", "pyproject.toml", "loaderviz", "notebooks"):
        assert name not in ignored
    assert {".git", ".venv"} <= set(ignored)


def test_each_image_has_a_python_that_the_project_is_for():
    lowest = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["requires-python"]
    runtime = (ROOT / ".binder" / "runtime.txt").read_text(encoding="utf-8").strip()
    major, minor, patch = map(int, lowest.removeprefix(">=").split("."))
    misfits = [notebooks.misfit((major, minor, each), "linux-x86_64", "", "x86_64") for each in (patch - 1, patch)]
    assert misfits[0] and not misfits[1]  # pip refuses what `ready` does
    said = [DEVCONTAINER["image"], dict(STEPS)["FROM"], runtime]
    for name in said:
        version = re.fullmatch(r"python[:-](3\.\d+)(?:-slim)?", name)[1]
        assert not notebooks.misfit((*map(int, version.split(".")), 99), "linux-x86_64", "", "x86_64")


def test_a_container_has_room_for_workers():
    assert "--shm-size=1g" in DEVCONTAINER["runArgs"] and "--shm-size=1g" in DOCKERFILE


@pytest.mark.skipif(shutil.which("bash") is None or os.name == "nt", reason="Binder's file is a script of bash")
def test_binder_installs_into_its_own_python_with_the_parts_of_start_py(monkeypatch):
    assert os.access(POST_BUILD, os.X_OK)
    subprocess.run(["bash", "-n", POST_BUILD], check=True)
    start, ran = script("start.py"), []
    monkeypatch.setitem(sys.modules, "start", start)
    monkeypatch.setattr(start, "build", lambda: ("", "since this is a test"))
    monkeypatch.setattr(start.subprocess, "run", lambda command, **_: ran.append(command))
    text = POST_BUILD.read_text(encoding="utf-8")
    exec(re.search(r'python -c "\n(.*?)"\n\Z', text, re.S)[1], {})
    assert {command[0] for command in ran} == {sys.executable}
    said = (ROOT / "docs" / "instructor.md").read_text(encoding="utf-8")
    steps = [" ".join(command).partition("-version-check ")[2] for command in ran]
    assert steps == ["-r requirements.txt", "--no-deps --editable ."]
    assert all(f"`pip install {step}`" in said for step in steps)


def listed(*options):
    """The files that git keeps, a line each."""
    found = subprocess.run(["git", "ls-files", *options], cwd=ROOT, capture_output=True, text=True)
    if found.returncode:
        pytest.skip("this is no checkout of git")
    return found.stdout.splitlines()


def test_a_clean_copy_has_all_of_these_files():
    files = {
        ".devcontainer/devcontainer.json",
        "Dockerfile",
        ".dockerignore",
        ".binder/postBuild",
        ".binder/runtime.txt",
    }
    assert files <= {*listed()}
    assert not any(re.match("(?i)runtime.txt|apt.txt|environment.yml", name) for name in listed())


def test_no_link_is_kept():
    """As that of an environment beside a checkout, which leads into one machine's folders."""
    assert [line for line in listed("--stage") if line.startswith("120000")] == []
