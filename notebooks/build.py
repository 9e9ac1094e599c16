"""Make the notebooks from their text: notebooks/src/NAME.py is the only place to edit.

    python notebooks/build.py            # writes notebooks/NAME.ipynb and notebooks/solutions/NAME.ipynb
    python notebooks/build.py --check    # writes nothing; says which file is out of date, and then ends with 1

The text is in jupytext's percent format and has the exercises solved: that is the notebook in solutions/. In the
learner's notebook each cell with the tag "exercise" holds the starter of the exercise instead; the first line of such
a cell is `# Exercise 3.1`, and the rest must be the answer that `loaderviz.workshop.EXERCISES` has.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jupytext
import nbformat

from loaderviz.workshop import EXERCISES

FOLDER = Path(__file__).resolve().parent
EDIT = "made by notebooks/build.py: edit notebooks/src/{}.py, then run make notebooks"
TITLE = re.compile(r"# Exercise (\S+)\n")
RELATIVE = re.compile(r"(\]\()(?![a-z]+:|#|/)")  # the beginning of a link to a file
SOLVED = "\n\n*Here the exercises are solved. To try them yourself, open [the lesson](../{}.ipynb).*"
SOLUTIONS = "\n\nThe exercises of this lesson, solved: [solutions](solutions/{}.ipynb)"


class SourceError(ValueError):
    """A source is not as it should be; the message says which, where, and what to do."""


def notebooks(source: Path) -> tuple[str, str]:
    """Return the text of two .ipynb files: the learner's, and the one with the solutions.

    Raises `SourceError` for an exercise that is not known, or whose cell is not the known answer, and where the first
    or the last cell is no text.
    """
    cells = jupytext.read(source, fmt="py:percent").cells
    if not cells or {cells[0].cell_type, cells[-1].cell_type} != {"markdown"}:
        raise SourceError(f"{source.name}: the first cell and the last one must be text")
    learner, solved = ([_cell(cell) for cell in cells] for _ in range(2))
    exercises = [cell for cell in learner if "exercise" in cell.metadata.get("tags", [])]
    for cell in exercises:
        cell.source = _starter(cell.source, source.name)
    for cell in solved:
        if cell.cell_type == "markdown":
            cell.source = RELATIVE.sub(r"\1../", cell.source)
    if exercises:
        learner[-1].source += SOLUTIONS.format(source.stem)
        solved[0].source += SOLVED.format(source.stem)
    return _text(learner, source.stem), _text(solved, source.stem)


def _cell(cell: Any) -> Any:
    """Return a cell with nothing but its kind, its text and its tags."""
    make = nbformat.v4.new_code_cell if cell.cell_type == "code" else nbformat.v4.new_markdown_cell
    tags = cell.metadata.get("tags")
    return make(cell.source, metadata={"tags": tags} if tags else {})


def _starter(text: str, file: str) -> str:
    """Return the learner's text of an exercise cell."""
    title = TITLE.match(text)
    number = title[1] if title else "?"
    if number not in EXERCISES:
        raise SourceError(
            f"{file}: a cell with the tag 'exercise' begins with {text.splitlines()[:1]}; wanted is the line "
            f"'# Exercise N', with one of these numbers: {', '.join(EXERCISES)}"
        )
    exercise = EXERCISES[number]
    if text[title.end() :].strip() != exercise.answer.strip():
        raise SourceError(f"{file}: below '# Exercise {number}' must be exactly the text of {exercise.name}.answer")
    return title[0] + exercise.starter.strip()


def _text(cells: list[Any], name: str) -> str:
    """Return the notebook as JSON, the same for the same source."""
    for cell, identity in zip(cells, _identities(cells), strict=True):
        cell.id = identity
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "loaderviz": EDIT.format(name)}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=metadata, nbformat_minor=5)
    nbformat.validate(notebook)
    return nbformat.writes(notebook) + "\n"


def _identities(cells: list[Any]) -> list[str]:
    """Return an id for each cell, made of its first line: a changed line elsewhere, or a new cell, changes no other."""
    seen: Counter[str] = Counter()
    found = []
    for cell in cells:
        first = cell.source.lstrip().split("\n")[0].lower()
        name = re.sub(r"[^a-z0-9]+", "-", first).strip("-")[:40].strip("-") or cell.cell_type
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name}--{seen[name]}")
    return found


def build(folder: Path = FOLDER) -> tuple[dict[Path, str], list[SourceError]]:
    """Return the text of each notebook that the sources of a folder make, by its path, and what is wrong in sources."""
    files: dict[Path, str] = {}
    problems = []
    for source in sorted((folder / "src").glob("*.py")):
        try:
            texts = notebooks(source)
        except SourceError as problem:
            problems.append(problem)
        else:
            files |= dict(zip(_pair(folder, source.stem), texts, strict=True))
    return files, problems


def _pair(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.ipynb", folder / "solutions" / f"{name}.ipynb"


def out_of_date(files: dict[Path, str]) -> list[Path]:
    """Return the notebooks that are missing or differ."""
    return [path for path, text in files.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]


def without_source(folder: Path = FOLDER) -> list[Path]:
    """Return the notebooks that no source makes."""
    wanted = {path for source in (folder / "src").glob("*.py") for path in _pair(folder, source.stem)}
    return sorted({*folder.glob("*.ipynb"), *folder.glob("solutions/*.ipynb")} - wanted)


def main(arguments: list[str] | None = None, folder: Path = FOLDER) -> int:
    """Write the notebooks, or say which are out of date; return 1 if there is something left to do."""
    parser = argparse.ArgumentParser(description="Make the notebooks from notebooks/src/*.py.")
    parser.add_argument("--check", action="store_true", help="write nothing; name the files that are out of date")
    check = parser.parse_args(arguments).check
    files, problems = build(folder)
    left = [str(problem) for problem in problems]
    left += [f"{path.relative_to(folder)} has no source in src/: delete it" for path in without_source(folder)]
    for path in out_of_date(files):
        if check:
            left.append(f"{path.relative_to(folder)} is out of date: run make notebooks")
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(files[path], encoding="utf-8", newline="\n")
            print(f"{path.relative_to(folder)} written")
    for line in left:
        print(line, file=sys.stderr)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
