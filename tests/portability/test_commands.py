"""The commands that texts and messages print can be typed in sh, cmd.exe and PowerShell, with nothing activated."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXTS = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "notebooks").rglob("*.md")]
SOURCES = [*(ROOT / "loaderviz").rglob("*.py"), *(ROOT / "notebooks" / "src").rglob("*.py")]
DATA = [path for end in ("toml", "json") for path in (ROOT / "loaderviz").rglob(f"*.{end}")]
COMMAND = r"(?:^|[\s`(:])(?:python[\d.]*|py|pip|loaderviz|jupyter|make|uv) "
SINGLE = re.compile(COMMAND + r"[^`\n;]*?(?<=[ =])'[^'\n]+'")
ACTIVATES = re.compile(r"bin/activate\b|Scripts\\+activate|Activate\.ps1|\b(?:conda|source|mamba) +\S*activate")


def said(path):
    """What a file says: a text as it stands; of a program the strings, whose parts that are computed are left out."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return text
    comments = re.findall(r"(?m)^# (.*)", text)  # a notebook's text
    strings = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
    return "\n".join(comments + [each for each in strings if isinstance(each, str)])


@pytest.mark.parametrize("path", [*TEXTS, *SOURCES, *DATA], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_its_commands_have_double_quotes_and_activate_nothing(path):
    text = said(path)
    assert [found[0] for rule in (SINGLE, ACTIVATES) for found in rule.finditer(text)] == []


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Repair: python -m pip install '.[notebook]' in the folder", SINGLE),
        ("    pip download -r requirements.txt 'setuptools>=77' -d wheels", SINGLE),
        ("`make mutants MUTATIONS='Add'`", SINGLE),
        ("    source .venv/bin/activate", ACTIVATES),
        ("begin with `.venv\\Scripts\\activate`", ACTIVATES),
    ],
)
def test_what_would_fail_elsewhere_is_found(text, rule):
    assert rule.search(text)
