"""How large the house is: statements, lines and files of each room; `python -m benchmarks.size` prints them.

Statements (`ast.stmt`) are what counts, so that several on one line, or one on several, change nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PARTS = ("loaderviz", "tests", "benchmarks")
ROW = "{:32} {:>10} {:>8} {:>6}"


class Size(NamedTuple):
    """Statements, lines and files of some Python."""

    statements: int = 0
    lines: int = 0
    files: int = 0


def size_of(files: list[Path]) -> Size:
    """Return the size of these files of Python together."""
    texts = [file.read_text(encoding="utf-8") for file in files]
    statements = sum(isinstance(node, ast.stmt) for text in texts for node in ast.walk(ast.parse(text)))
    return Size(statements, sum(len(text.splitlines()) for text in texts), len(files))


def rooms(root: Path, part: str) -> Iterator[tuple[str, Size]]:
    """Give each room of a part, a folder, with its size; then the whole part, whose name has no slash."""
    files = sorted((root / part).rglob("*.py"))
    sizes = {
        folder: size_of([file for file in files if file.parent == folder])
        for folder in sorted({file.parent for file in files})
    }
    for folder, size in sizes.items():
        yield folder.relative_to(root).as_posix() + "/", size
    yield part, Size(*map(sum, zip(*sizes.values(), strict=True)))


def main() -> None:
    """Print a line for each room, and the lines of JavaScript."""
    print(ROW.format("room", "statements", "lines", "files"))
    for part in PARTS:
        for name, size in rooms(ROOT, part):
            print(ROW.format(name, *(f"{number:,}" for number in size)))
    scripts = [file.read_text(encoding="utf-8") for file in (ROOT / "loaderviz").rglob("*.js")]
    print(ROW.format("JavaScript", "", f"{sum(len(text.splitlines()) for text in scripts):,}", len(scripts)))


if __name__ == "__main__":
    main()
