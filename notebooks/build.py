"""Make the notebooks from their text: notebooks/src/NAME.py is the only place to edit.

    python notebooks/build.py                  # writes notebooks/NAME.ipynb and notebooks/solutions/NAME.ipynb
    python notebooks/build.py --execute        # and draws pictures/NAME.png and runs the solved ones (make notebooks)
    python notebooks/build.py --execute 03     # only those of lesson 3
    python notebooks/build.py --check          # writes nothing; says which file is out of date, and then ends with 1

The text is in jupytext's percent format. An exercise is two cells that begin with `# Exercise 3.1`: one with the tag
"starter", which only the learner's notebook has, and then one with the tag "exercise", the answer, which only the
notebook in solutions/ has. The package shows and compares them, too: loaderviz/workshop/exercises.json is made here.

No notebook has the cells with a tag of `APART`. The last line of "picture" shows what stands above the lesson: where
the one before it ended, so that it answers none of the lesson's questions. "claims" asserts what the text says
beyond what the cells print, in the kernel when all have run. docs/build.py reads "guide" and "answers".

A rule's number in the text becomes a link to what it says, in a last cell. A translation is a file beside the source,
such as src/00_start_here.zh.md, which makes zh/00_start_here.ipynb; `translated` says how it is written.

Learners' notebooks have no outputs. Solved ones have those of their last run; a cell that has changed since has none.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, get_args

import jupytext
import nbformat

from loaderviz.analysis import FindingKind
from loaderviz.rules import RULES

FOLDER = Path(__file__).resolve().parent
EDIT = "made by notebooks/build.py: edit notebooks/src/{}.py, then run make notebooks"
TITLE = re.compile(r"# Exercise (\d+\.\w+)\n")
Texts = dict[str, dict[str, list[str]]]  # of an exercise, by its number: the lines of "starter" and "answer"
ASKS = re.compile(r"= (predict|\w+\.card)\(")
RULE = re.compile(r"`[^`]*`|\b(R\d+)\b")  # code may name one without a link
PART = re.compile(r"^<!-- (\S+) (\S+) -->\n", re.M)  # of a translation
CHANGED = "> *This part has changed since it was translated. Here it is as it was written.*\n\n"
RELATIVE = re.compile(r"(\]\()(?![a-z]+:|#|/)")  # the beginning of a link to a file
LINK = re.compile(RELATIVE.pattern + r"([^)#]*)")
LANGUAGE = 'import os\n\nos.environ["LOADERVIZ_LANGUAGE"] = "{}"'
SOLVED = "\n\n*Here the exercises are solved. To try them yourself, open [the lesson](../{}.ipynb).*"
SOLUTIONS = "\n\nThe exercises of this lesson, solved: [solutions](solutions/{}.ipynb)"


APART = {"picture", "claims", "guide", "answers"}  # tags of cells that no notebook has


class SourceError(ValueError):
    """A source is not as it should be; the message says which, where, and what to do."""


def shown(source: Path) -> list[Any]:
    """Return the cells of a source that notebooks have."""
    return [cell for cell in jupytext.read(source, fmt="py:percent").cells if not APART.intersection(_tags(cell))]


def apart(source: Path, tag: str) -> str:
    """Return the text of the cell that has this tag of `APART`; raise `SourceError` where there is none."""
    for cell in jupytext.read(source, fmt="py:percent").cells:
        if _has(cell, tag):
            return str(cell.source)
    raise SourceError(f"{source.name}: there is no cell with the tag '{tag}'")


def notebooks(source: Path) -> tuple[str, str, Texts]:
    """Return the text of two .ipynb files, the learner's and the one with the solutions, and the exercises' texts.

    Raises `SourceError` where an exercise is not two cells, or the first or the last cell is no text.
    """
    cells = shown(source)
    if not cells or {cells[0].cell_type, cells[-1].cell_type} != {"markdown"}:
        raise SourceError(f"{source.name}: the first cell and the last one must be text")
    texts = _exercises(cells, source.name)
    learner = [_cell(cell) for cell in cells if not _has(cell, "exercise")]
    solved = [_cell(cell) for cell in cells if not _has(cell, "starter")]
    for cell in learner:
        if _has(cell, "starter"):
            cell.metadata["tags"] = ["exercise"]
    for cell in solved:
        if cell.cell_type == "markdown":
            cell.source = RELATIVE.sub(r"\1../", cell.source)
    if texts:
        learner[-1].source += SOLUTIONS.format(source.stem)
        solved[0].source += SOLVED.format(source.stem)
    for notebook in (learner, solved):
        _link_rules(notebook, source.name)
    return _text(learner, source.stem), _text(solved, source.stem), texts


def _link_rules(cells: list[Any], file: str) -> None:
    """Make each number of a rule a link, and add a cell that has them all."""
    named: set[str] = set()

    def link(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0]
        if found[1] not in RULES:
            raise SourceError(f"{file}: there is no rule {found[1]}; docs/rules.md has them all")
        named.add(found[1])
        return f"[{found[1]}](#{found[1]})"

    for cell in cells:
        if cell.cell_type == "markdown":
            cell.source = RULE.sub(link, cell.source)
    parts = [f"### {r.name}\n\n{r.statement} *Source: {r.source}*" for r in RULES.values() if r.name in named]
    if parts:
        cells.append(nbformat.v4.new_markdown_cell("\n\n".join(["## The rules named here", *parts])))


def translated(notebook: str, file: Path) -> tuple[str, list[str]]:
    """Return a learner's notebook in the language of a translation, and what of that is out of date.

    Before each translated cell stands `<!-- ID HASH -->`: the cell's id in the notebook, and the hash of the text that
    was translated, which a message gives where it is wrong. What was not translated, or has changed since, is as in the
    notebook. A cell after the first one says the language, for tasks, checks and pictures. A link to a lesson leads to
    its translation, where there is one.
    """
    made = nbformat.reads(notebook, as_version=4)
    parts = iter(PART.split(file.read_text(encoding="utf-8"))[1:])
    texts = {name: (digest, text.strip()) for name, digest, text in zip(parts, parts, parts, strict=True)}
    stale = []
    for cell in made.cells:
        before, text = texts.pop(cell.id, ("", ""))
        if text and (digest := hashlib.sha256(cell.source.encode()).hexdigest()[:8]) != before:
            stale.append(f"{file.name}: {cell.id} has changed since: translate it again and write the hash {digest}")
            text = CHANGED + cell.source if cell.cell_type == "markdown" else ""
        cell.source = text or cell.source
        if cell.cell_type == "markdown":
            cell.source = LINK.sub(partial(_from_translation, file), cell.source)
    say = nbformat.v4.new_code_cell(LANGUAGE.format(file.suffixes[0][1:]), id="language")
    made.cells.insert(1, say)
    stale += [f"{file.name}: the notebook has no cell {name}" for name in texts]
    return nbformat.writes(made) + "\n", stale


def _from_translation(file: Path, link: re.Match[str]) -> str:
    """Return a link of a lesson as its translation has it, from the folder of its language."""
    lesson = re.fullmatch(r"(\w+)\.ipynb", link[2])
    beside = lesson and file.with_name(lesson[1] + "".join(file.suffixes)).is_file()
    return f"{link[1]}{link[2]}" if beside else f"{link[1]}../{link[2]}"


def _tags(cell: Any) -> list[str]:
    return list(cell.metadata.get("tags", []))


def _has(cell: Any, tag: str) -> bool:
    return tag in _tags(cell)


def _cell(cell: Any) -> Any:
    """Return a cell with nothing but its kind, its text and its tags."""
    make = nbformat.v4.new_code_cell if cell.cell_type == "code" else nbformat.v4.new_markdown_cell
    tags = _tags(cell)
    metadata: dict[str, Any] = {}
    if cell.cell_type == "code" and ASKS.search(cell.source):  # its source holds the answer
        hidden = {"jupyter": {"source_hidden": True}, "transient": {"remove_source": True}}  # JupyterLab's; nbconvert's
        metadata, tags = hidden, [*tags, "hide-input"]
    return make(cell.source, metadata=metadata | ({"tags": tags} if tags else {}))


def _exercises(cells: list[Any], file: str) -> Texts:
    """Return starter and answer of each exercise."""
    found = []
    for cell in cells:
        for tag in ("starter", "exercise"):
            if _has(cell, tag):
                if not (title := TITLE.match(cell.source)):
                    raise SourceError(
                        f"{file}: a cell with the tag '{tag}' begins with {cell.source.splitlines()[:1]}; wanted is "
                        "the line '# Exercise N', N as 3.1"
                    )
                found.append((tag, title[1], cell.source[title.end() :].strip().splitlines()))
    texts = {}
    for (tag, number, starter), (other, same, answer) in zip_longest(found[::2], found[1::2], fillvalue=("", "", [])):
        if (tag, other, same) != ("starter", "exercise", number) or number in texts:
            raise SourceError(
                f"{file}: an exercise is two cells, one with the tag 'starter' and then one with the tag 'exercise', "
                f"both begin with the line '# Exercise N', and no other cells do; exercise {number} is not"
            )
        texts[number] = {"starter": starter, "answer": answer}
    return texts


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


def build(folder: Path = FOLDER) -> tuple[dict[Path, str], list[SourceError], list[str]]:
    """Return the text of each file that the sources of a folder make, by its path, what is wrong in sources, and what
    is out of date in translations.

    The texts of the exercises are a file only where nothing is wrong.
    """
    files: dict[Path, str] = {}
    problems, exercises, stale = [], {}, []
    for source in sorted((folder / "src").glob("*.py")):
        try:
            given, answers, texts = notebooks(source)
        except SourceError as problem:
            problems.append(problem)
        else:
            learner, solved = _pair(folder, source.stem)
            files |= {learner: given, solved: with_outputs(answers, solved)}
            exercises |= texts
            for file in sorted(source.parent.glob(f"{source.stem}.*.md")):
                made = folder / file.suffixes[0][1:] / learner.name
                files[made], old = translated(given, file)
                stale += old
    if not problems:
        path = folder.parent / "loaderviz" / "workshop" / "exercises.json"
        files[path] = json.dumps(exercises, indent=1, ensure_ascii=False) + "\n"
    return files, problems, stale


def untranslated(folder: Path = FOLDER.parent / "loaderviz") -> list[str]:
    """Return what the tables of texts in a package have in English and not in Chinese; each kind of finding, too."""
    found = []
    for file in sorted(folder.rglob("*.toml")):
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
        if "findings" in tables:  # those of pictures: each kind has one
            tables["findings"] = dict.fromkeys(get_args(FindingKind)) | tables["findings"]
        found += [f"{file.relative_to(folder)}: {name} is not in Chinese" for name in _without_chinese(tables, "")]
    return found


def _without_chinese(table: dict[str, Any], name: str) -> Iterator[str]:
    if name and "zh" not in table and ("en" in table or "task" in table):
        yield name
    for key, part in table.items():
        if isinstance(part, dict) and key != "zh":
            yield from _without_chinese(part, f"{name}.{key}".lstrip("."))
        elif part is None:
            yield f"{name}.{key}"


def with_outputs(text: str, path: Path) -> str:
    """Return the text of a solved notebook with the outputs that the file has for the cells that are in both."""
    if not path.is_file():
        return text
    new, old = nbformat.reads(text, as_version=4), nbformat.read(path, as_version=4)
    before = {(cell.get("id"), cell.source): cell for cell in old.cells if cell.cell_type == "code"}
    for cell in new.cells:
        if cell.cell_type == "code" and (same := before.get((cell.id, cell.source))):
            cell.outputs, cell.execution_count = same.outputs, same.execution_count
    return nbformat.writes(new) + "\n"


def _pair(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.ipynb", folder / "solutions" / f"{name}.ipynb"


def out_of_date(files: dict[Path, str]) -> list[Path]:
    """Return the notebooks that are missing or differ."""
    return [path for path, text in files.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]


def without_source(folder: Path = FOLDER) -> list[Path]:
    """Return the notebooks that no source makes."""
    wanted = {path for source in (folder / "src").glob("*.py") for path in _pair(folder, source.stem)}
    return sorted({*folder.glob("*.ipynb"), *folder.glob("solutions/*.ipynb")} - wanted)


def run(folder: Path, lessons: tuple[str, ...]) -> None:
    """Draw the pictures of the lessons that begin so, and run their solved notebooks."""
    from execute import execute
    from stills import Camera, write_pictures

    with Camera() as camera:
        sources = [source for source in sorted((folder / "src").glob("*.py")) if source.name.startswith(lessons)]
        pictures = {source.stem: apart(source, "picture") for source in sources}
        for path in write_pictures(camera, pictures, folder / "pictures"):
            print(f"{path.relative_to(folder)} drawn")
        for path in sorted((folder / "solutions").glob("*.ipynb")):
            if path.name.startswith(lessons):
                execute(path, camera)
                print(f"{path.relative_to(folder)} run: {path.stat().st_size // 1000} kB", flush=True)


def main(arguments: list[str] | None = None, folder: Path = FOLDER) -> int:
    """Write the notebooks, or say which are out of date; return 1 if there is something left to do."""
    parser = argparse.ArgumentParser(description="Make the notebooks from notebooks/src/*.py.")
    parser.add_argument("--check", action="store_true", help="write nothing; name the files that are out of date")
    lessons = "run the solved notebooks (of the lessons that begin so) and store their outputs; draws the pictures"
    parser.add_argument("--execute", nargs="*", metavar="LESSON", help=lessons)
    options = parser.parse_args(arguments)
    check = options.check
    files, problems, stale = build(folder)
    left = [str(problem) for problem in problems]
    left += [f"{path.relative_to(folder)} has no source in src/: delete it" for path in without_source(folder)]
    for path in out_of_date(files):
        if check:
            left.append(f"{os.path.relpath(path, folder)} is out of date: run make notebooks")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[path], encoding="utf-8", newline="\n")
            print(f"{os.path.relpath(path, folder)} written")
    if options.execute is not None and not left:
        run(folder, tuple(options.execute or [""]))
    for line in [*left, *stale, *untranslated()]:  # what is stale is shown in English, so it can wait
        print(line, file=sys.stderr)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
