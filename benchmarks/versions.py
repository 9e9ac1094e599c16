"""Other versions of Python and torch: what the quick tests say there, as the table of docs/setup.md.

    PATH="$PATH:$HOME/.pyenv/versions/3.13.0/bin" python -m benchmarks.versions 3.11:2.10.0 3.13:2.14.1

Each pair has a folder `.venv-PYTHON-TORCH` of its own, which is made at first. A Python is `python3.N` of the PATH. If
it is missing, the table says that its tests were not run.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "setup.md"
BETWEEN = re.compile(r"(?s)(?<=<!-- versions -->\n).*?(?=<!-- /versions -->)")
TESTS = ["tests/emulator", "tests/loaders", "tests/traces"]
TABLE = "| Python | torch | passed | skipped | failed | which |\n|---|---|--:|--:|--:|---|\n"
TOLD = 3  # names of failures in a row


class Row(NamedTuple):
    """What the tests said under one Python and one torch, and the names of those that failed."""

    python: str
    torch: str
    passed: int
    skipped: int
    failed: int
    names: tuple[str, ...]

    def __str__(self) -> str:
        more = [f"and {len(self.names) - TOLD} more"] * (len(self.names) > TOLD)
        which = ", ".join([*(f"`{name}`" for name in self.names[:TOLD]), *more])
        return f"| {self.python} | {self.torch} | {self.passed:,} | {self.skipped:,} | {self.failed} | {which} |\n"


def read(report: Path, python: str, torch: str) -> Row:
    """Return what a report of pytest's (`--junitxml`) says. Raises `ElementTree.ParseError` for what is none."""
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    names = dict.fromkeys(str(case.get("name")).partition("[")[0] for case in failed)
    passed = len(cases) - len(failed) - skipped
    return Row(python, torch, passed, skipped, len(failed), tuple(names))


def set_up(python: str, torch: str) -> Path | None:
    """Return a Python with this torch and what tests need, None without such a Python. Raises CalledProcessError."""
    folder = ROOT / f".venv-{python}-{torch}"
    own = folder / "bin" / "python"
    if not (folder / "ready").exists():
        found = shutil.which(f"python{python}")
        if not found:
            return None
        subprocess.run([found, "-m", "venv", "--clear", folder], check=True)
        lists = [(ROOT / name).read_text(encoding="utf-8") for name in ("requirements.txt", "requirements-dev.txt")]
        others = [line for line in "".join(lists).splitlines() if re.match(r"(?!torch(vision)?==)\w", line)]
        (folder / "others.txt").write_text("\n".join(others), encoding="utf-8")
        pip = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, f"torch=={torch}", "torchvision", "-r", folder / "others.txt"], check=True)
        subprocess.run([*pip, "--no-deps", "--editable", ROOT], check=True)
        (folder / "ready").touch()
    return own


def tested(own: Path, torch: str) -> Row:
    """Run the tests with this Python, and return what they said."""
    report = own.parents[1] / "report.xml"
    report.unlink(missing_ok=True)
    command = [own, "-m", "pytest", "-q", "-n", "auto", "-m", "not fuzz and not slow", f"--junitxml={report}", *TESTS]
    subprocess.run(command, cwd=ROOT)
    whole = subprocess.run([own, "--version"], capture_output=True, text=True).stdout.split()[1]
    return read(report, whole, torch)


def write(rows: Iterable[Row | str], page: Path = PAGE) -> None:
    """Put the table into the page, in place of the last one."""
    text = page.read_text(encoding="utf-8")
    page.write_text(BETWEEN.sub(lambda _: TABLE + "".join(map(str, rows)), text), encoding="utf-8")


def main(pairs: list[str]) -> int:
    """Run and write them all; return how many versions had failures."""
    if wrong := [pair for pair in pairs if pair.count(":") != 1] or [""] * (not pairs):
        print(f"{wrong[0]!r} is no pair such as 3.13:2.14.1 (a Python and a torch)", file=sys.stderr)
        return 2
    asked = [pair.split(":") for pair in pairs]
    pythons = [set_up(python, torch) for python, torch in asked]
    rows = [
        tested(own, torch) if own else f"| {python} | {torch} | – | – | – | not run (no Python {python} here) |\n"
        for own, (python, torch) in zip(pythons, asked, strict=True)
    ]
    write(rows)
    print(TABLE + "".join(map(str, rows)), end="")
    return sum(isinstance(row, Row) and row.failed > 0 for row in rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
