"""The published rules: each that the project cites is there, with its source; docs/rules.md is made from them."""

import re
import runpy
from pathlib import Path

import pytest

import loaderviz
from loaderviz.rules import RULES, UnknownRuleError

ROOT = Path(__file__).parents[1]
CITING = [
    path
    for folder, pattern in (("loaderviz", "*.py"), ("notebooks/src", "*.py"), ("docs", "*.md"), (".", "README.md"))
    for path in sorted((ROOT / folder).rglob(pattern) if folder != "." else (ROOT / folder).glob(pattern))
]


def test_every_rule_that_is_cited_is_published():
    cited = {name for path in CITING for name in re.findall(r"\bR\d{1,2}\b", path.read_text(encoding="utf-8"))}
    assert len(cited) > 30
    assert cited <= set(RULES)


def test_the_document_is_made_from_them():
    made = runpy.run_path(str(ROOT / "docs" / "build.py"))["rules"]()
    assert (ROOT / "docs" / "rules.md").read_text(encoding="utf-8") == made, "run: python docs/build.py"


@pytest.mark.parametrize("name", ["R16", "r16", " 16", 16])
def test_a_rule_is_text_and_a_card(name):
    rule = loaderviz.rule(name)
    assert str(rule).startswith("R16: A stream is a queue") and "(source: " in str(rule)
    assert rule._repr_html_().count("R16") == 1


@pytest.mark.parametrize("name", ["R5", "R0", "", "RR16", None, 3.5, "<script>"])
def test_a_rule_that_is_not_there(name):
    with pytest.raises(UnknownRuleError, match=re.escape(f"no rule {name!r}; there are R1, R2")):
        loaderviz.rule(name)
