"""What stays: the tables of docs/api.md, compared with the code in both directions."""

import ast
import re
from importlib import import_module
from pathlib import Path
from typing import get_args

import factory
import pytest
from factory import script

import loaderviz
from loaderviz import cli, export, loaders, timeline
from loaderviz.analysis import FindingKind, ranks
from loaderviz.analysis.advice import advise
from loaderviz.analysis.report import report
from loaderviz.emulator import hazards
from loaderviz.metrics import Summary
from loaderviz.stopping import INTERRUPTED

ROOT = Path(__file__).parents[1]
API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
SECTION = re.compile(r"^### ([^\n]+)\n(.*?)(?=^##|\Z)", re.M | re.S)
ROW = re.compile(r"^\| (`[^|]+`) \| (.+) \| ([\d.]+) \|$", re.M)


def tables(text):
    """Return the names of each section's tables, those of a row apart."""
    found = {}
    for title, body in SECTION.findall(text):
        names = [name for names, _, _ in ROW.findall(body) for name in re.findall(r"`([^`]+)`", names)]
        assert len(names) == len(set(names)), f"a name stands twice in {title}"
        assert body.count("\n| `") == len(ROW.findall(body)), f"a row of {title} lacks something, such as its version"
        found[title] = set(names)
    return found


def commands():
    (choices,) = [action.choices for action in cli._parser()._actions if isinstance(action.choices, dict)]
    return set(choices)


def variables():
    """Those that the package reads."""
    texts = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "loaderviz").rglob("*.py"))
    return set(re.findall(r"\"(LOADERVIZ_[A-Z]+)\"", texts))


def kinds_of_hazards(*, lints):
    """Those that a report of this class has: a case is told "kind, variant"."""
    cases = hazards.texts()
    is_lint = {case: "edge" not in text for case, text in cases.items()}
    return {re.split(r",| of ", case)[0] for case in cases if is_lint[case] == lints}


def keys_of_findings():
    findings = [finding.to_dict() for finding in advise(factory.loader("blocking"))]
    assert findings, "without a finding there is nothing to compare"
    return {key for finding in findings for key in (*finding, *finding["gain"])}


def names_of_pages():
    """What README and the how-to pages take from other modules; `timeline_of` is a fixture, which nobody imports."""
    found = {"testing.timeline_of"}
    for page in script("docs/pages.py").PAGES:
        code = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
        for node in ast.walk(ast.parse("\n".join(code))):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("loaderviz."):
                found |= {f"{node.module.removeprefix('loaderviz.')}.{each.name}" for each in node.names}
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "notebooks":
                found.add(f"notebooks.{node.attr}")
    for name in found:
        module, _, name = name.partition(".")
        assert getattr(import_module(f"loaderviz.{module}"), name).__doc__
    return {name for name in found if not name.startswith(("export.", "loaders."))}


CODE = {
    "Names of loaderviz": lambda: set(loaderviz.__all__),
    "Names of loaderviz.export": lambda: {"Section", "to_chrome_trace", "to_html", "to_table"},
    "Names of loaderviz.loaders": lambda: set(loaders.__all__),
    "Names of other modules": names_of_pages,
    "Commands": commands,
    "Exit statuses": lambda: {"0", *map(str, (cli.FAILED, cli.USAGE_ERROR, cli.NOT_KEPT)), "128 + n"},
    "Environment variables": variables,
    "Kinds of findings": lambda: set(get_args(FindingKind)),
    "Kinds of hazards": lambda: kinds_of_hazards(lints=False),
    "Kinds of lints": lambda: kinds_of_hazards(lints=True),
    "Kinds of spans": lambda: {kind.name for kind in timeline.Kind},
    "Causes of waits and fetches": lambda: {cause.name for cause in timeline.Cause},
    "Causes of a late rank": lambda: set(ranks.CAUSES),
    "Reports as JSON": lambda: set(report(factory.loader("blocking"))),
    "Numbers of a summary": lambda: set(Summary.__dataclass_fields__),
    "Advice as JSON": lambda: set(advise(factory.loader("blocking")).to_dict()),
    "Findings as JSON": keys_of_findings,
    "Saved timelines": lambda: {str(number) for number in range(1, timeline.FORMAT + 1)},
}


@pytest.mark.parametrize("section", CODE)
def test_what_is_promised_is_there_and_what_is_there_is_promised(section):
    written, code = tables(API).get(section, set()), CODE[section]()
    assert written - code == set(), f"{section}: docs/api.md promises what the code has not"
    assert code - written == set(), f"{section}: docs/api.md lacks it; give it a row, with the version since when"


def test_every_table_is_compared():
    assert {title for title, names in tables(API).items() if names} == set(CODE)


def test_nothing_is_older_than_the_first_version_or_newer_than_this_one():
    this = tuple(map(int, re.findall(r"\d+", loaderviz.__version__)[:2]))
    for names, _, since in ROW.findall(API):
        assert (0, 1) <= tuple(map(int, since.split("."))) <= this, names


def test_each_kind_that_a_program_makes_is_one_of_these():
    """A kind stands in the code of a finding, a hazard or a lint, and nowhere else."""
    source = (ROOT / "loaderviz" / "analysis" / "advice.py").read_text(encoding="utf-8")
    made = set(re.findall(r"\bFinding\(\s*\"([\w-]+)\"", source))
    assert len(made) > 20 and made <= set(get_args(FindingKind))


def test_the_names_of_export_can_be_called():
    for name in CODE["Names of loaderviz.export"]():
        assert getattr(export, name).__doc__


def test_a_signal_is_told_as_a_shell_tells_it():
    assert INTERRUPTED == 128 + 2


@pytest.mark.parametrize(
    ("section", "change", "more"),
    [
        ("Kinds of findings", ("| `swaps` |", "| `swops` |"), {"swops"}),
        ("Causes of waits and fetches", ("| `DATA` | ", "| DATA | "), set()),
        ("Kinds of lints", ("### Kinds of lints\n", "### Lints\n"), set()),
    ],
    ids=["another name", "no code marks", "another heading"],
)
def test_a_table_that_is_wrong_is_seen(section, change, more):
    """The comparison itself: what is written otherwise is missing there."""
    written, code = tables(API.replace(*change)).get(section, set()), CODE[section]()
    assert code - written and written - code == more


def test_a_row_without_its_version_is_an_error():
    with pytest.raises(AssertionError, match="lacks something, such as its version"):
        tables(re.sub(r"(\| `swaps` \|.*) \| 0\.2 \|", r"\1 |", API))
    with pytest.raises(AssertionError, match="stands twice"):
        tables(API.replace("| `swaps` |", "| `resident` |"))
