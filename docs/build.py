"""Write docs/rules.md from loaderviz.rules and the names of the tests: python docs/build.py."""

import re
from pathlib import Path

from loaderviz.rules import RULES

ROOT = Path(__file__).parents[1]
HEAD = """# The rules

What the emulated GPU obeys, and what reports, findings and lessons cite; `loaderviz.rule("R16")` shows one.
Made by `python docs/build.py` from `loaderviz/rules.toml`: edit there.

| rule | what it says | source | held by |
|---|---|---|---|
"""


def rules() -> str:
    """Return the text of docs/rules.md: each rule with its source and the tests that hold it."""
    tests: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests" / "emulator").rglob("test_*.py")):
        for name in re.findall(r"^def (test_r\d+\w*)\(", path.read_text(encoding="utf-8"), re.M):
            for number in re.findall(r"(?<=_r)\d+(?=_)", name):
                tests.setdefault(f"R{number}", []).append(f"`{name}`")
    held = {name: "<br>".join(tests.get(name, ["not yet held"])) for name in RULES}
    return HEAD + "".join(f"| {r.name} | {r.statement} | {r.source} | {held[r.name]} |\n" for r in RULES.values())


if __name__ == "__main__":
    (ROOT / "docs" / "rules.md").write_text(rules(), encoding="utf-8")
