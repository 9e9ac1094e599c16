"""The workflow for a public host: it can be read, its steps are those that run here, and they see a wrong number."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from factory import script

from loaderviz import cli

ROOT = Path(__file__).parents[2]
here, numbers = script(".ci/portability.py"), script("tests/portability/same_numbers.py")


def test_the_workflow_has_each_system_and_python_and_only_plain_steps():
    yaml = pytest.importorskip("yaml")
    text = here.WORKFLOW.read_text(encoding="utf-8")
    (job,) = yaml.safe_load(text)["jobs"].values()
    systems = " ".join(job["strategy"]["matrix"]["system"])
    assert all(name in systems for name in ("ubuntu", "arm", "windows", "macos"))
    assert job["strategy"]["matrix"]["python"] == ["3.11", "3.14"]
    assert [step["run"] for step in job["steps"] if "run" in step] == here.steps()
    for step in here.steps():  # the same in sh, cmd.exe and PowerShell
        assert step.startswith("python start.py ") and not re.search(r"['`$%&|<>;\\]|make|activate", step), step
    assert "http" not in text


def test_each_step_is_understood():
    """Its options, files and markers are there."""
    parser, marks = cli._parser(), (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    seen = []
    for step in here.steps():
        match shlex.split(step)[2:]:
            case ["--dev"]:
                seen.append("set-up")
            case ["-m", "loaderviz", *options]:
                seen.append(parser.parse_args(options).command)
            case ["-m", "pytest", *options]:
                left_out = re.findall(r"not (\w+)", options[-1])
                assert "browser" in left_out and all(f'"{mark}: ' in marks for mark in left_out)
                seen.append("tests")
            case [file, _]:
                assert (ROOT / file).is_file()
                seen.append(file)
    assert seen == ["set-up", "ready", "tests", "compare", "tests/portability/same_numbers.py"]


def test_a_number_that_differs_is_named_and_fails(tmp_path, capsys):
    kept = json.loads(numbers.KEPT.read_text(encoding="utf-8"))
    assert numbers.differences(kept, kept) == []
    name = "64, pinned, step"
    assert numbers.differences(kept | {name: kept[name] + 1}, kept) == [
        f"{name}: {kept[name] + 1} here, {kept[name]} kept"
    ]
    less = {key: value for key, value in kept.items() if key != name}
    assert numbers.differences(less, kept) == [f"{name}: nothing here, {kept[name]} kept"]
    assert numbers.differences(kept, less) == [f"{name}: {kept[name]} here, nothing kept"]
    (tmp_path / "found.json").write_text('{"64": {"pinned": {"summary": {"step": 1, "host_blocked": {"free": 2}}}}}')
    assert numbers.main([str(tmp_path / "found.json")]) == 1
    said = capsys.readouterr().out
    assert (
        f"{name}: 1 here, {kept[name]} kept" in said and "64, pinned, host_blocked, free: 2 here, nothing kept" in said
    )


def test_the_script_runs_the_steps_that_are_chosen_and_ends_with_the_first_that_fails(monkeypatch):
    ran = []
    monkeypatch.setattr(here.subprocess, "call", lambda command, **_: ran.append(command) or len(ran) // 2)
    assert here.main(["ready", "numbers.py", "--dev"]) == 1
    assert ran == [f'"{sys.executable}" start.py {rest}' for rest in ("--dev", "-m loaderviz ready")]
