"""What an instructor shows and gives out: slides of a lesson, and a handout of two pages, each one page of HTML.

Both need no network: slides are the solved notebook as it ran, without the exercises' answers, cut at its headings and
cells by nbconvert; the handout is made of the table of terms, and of the exercises' titles.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from importlib.resources import files
from typing import Any

from loaderviz import notebooks, words
from loaderviz.emulator.replay import PRESETS
from loaderviz.widgets.explorer import Settings, simulate
from loaderviz.workshop.exercises import ASKED, ExerciseError, say

LEFT_OUT = {"exercise", "starter", "gpu"}  # tags of cells that no slide has: answers, and what needs a GPU
RULES = "## The rules named here"  # from here on a notebook has sources
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:)[^)]*\)")  # to a file or a rule, which slides have not
READ = "read-rows", "read-colours", "read-thick", "read-exposed"
OVERLAP = "needs-pinned", "needs-call", "needs-stream"
HEADS = "title", "reading", "conditions", "duty", "boxes", "words"
HEAD = """<!doctype html>
<html lang="{{language}}">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{{title}}</title>
<style>
"""
MANY = 30  # titles of exercises that fit beside a large picture


def slides(lesson: str) -> str:
    """Return a page of slides of a lesson, by its number, such as "03".

    Raises `ExerciseError` if there is no such lesson, `MissingPackageError` without nbconvert.
    """
    place = notebooks.folder()
    found = (
        sorted((place / "solutions").glob(f"{int(lesson):02}_*.ipynb")) if re.fullmatch("[0-9]{1,2}", lesson) else []
    )
    if not found:
        known = sorted(path.name[:2] for path in place.glob("[0-9]*.ipynb"))
        raise ExerciseError(say("no-slides", lesson=words.one_line(lesson, 40), known=say("comma").join(known)))
    nbformat, nbconvert, formatters = map(import_module, ("nbformat", "nbconvert", "pygments.formatters"))
    notebook = nbformat.read(found[0], as_version=4)
    exporter = nbconvert.HTMLExporter(template_name="basic", embed_images=True, exclude_anchor_links=True)
    parts = []
    for cells in _cut(notebook.cells):
        one = nbformat.v4.new_notebook(cells=cells, metadata=notebook.metadata)
        body, _ = exporter.from_notebook_node(one, {"metadata": {"path": str(place)}})
        parts.append(f"<section><div>{body}</div></section>")
    titles = (cell.source.splitlines()[0].lstrip("# ") for cell in notebook.cells if cell.cell_type == "markdown")
    colours = formatters.HtmlFormatter().get_style_defs(".highlight")
    return _page("slides.html", title=words.html(next(titles, "")), colours=colours, slides="\n".join(parts))


def _cut(cells: list[Any]) -> Iterator[list[Any]]:
    """Give the cells of each slide: a text and the first cell of code after it, or a cell of code."""
    slide: list[Any] = []
    for cell in cells:
        if cell.source.startswith(RULES):
            break
        is_check = cell.cell_type == "code" and ".check(" in cell.source
        if is_check or LEFT_OUT.intersection(cell.metadata.get("tags", [])) or not cell.source.strip():
            continue
        if cell.cell_type == "markdown":
            cell.source = LINK.sub(r"\1", cell.source).replace("](../", "](")  # nbconvert embeds what lies below
        if slide and (cell.cell_type == "markdown" or slide[-1].cell_type == "code"):
            yield slide
            slide = []
        slide.append(cell)
    if slide:
        yield slide


def handout() -> str:
    """Return the two pages, in the language that LOADERVIZ_LANGUAGE names. Raises `NoLessonsError` without lessons."""
    run = simulate(replace(Settings(steps=4), **PRESETS["prefetch"]))
    picture = base64.b64encode(run.view(title=say("handout-picture"), verdict=False).svg().encode()).decode()
    table = (notebooks.folder() / "terms.md").read_text(encoding="utf-8")
    terms = [row.strip("| ").split(" | ") for row in table.splitlines() if row.startswith("| ")]
    rows = [words.in_language({"en": row[:2], "zh": [f"{row[2]} ({row[0]})", row[3]]}) for row in terms[1:]]
    titles = [f"{number} {words.in_language(asked)['title']}" for number, asked in ASKED.items() if number[0].isdigit()]
    return _page(
        "handout.html",
        picture=picture,
        many="many" if len(titles) > MANY else "",
        exercises="".join(f"<li>{words.html(title)}</li>" for title in titles),
        terms="".join(f"<tr><th>{words.html(term)}</th><td>{words.html(what)}</td></tr>" for term, what in rows),
        read=_list(READ),
        overlap=_list(OVERLAP),
        **{key: words.html(say(f"handout-{key}")) for key in HEADS},
    )


def _list(keys: tuple[str, ...]) -> str:
    return "".join(f"<li>{words.html(say(key))}</li>" for key in keys)


def _page(name: str, **values: str) -> str:
    """Return a page of this package, which begins with its styles, with its `{{places}}` filled in."""
    text = HEAD + files("loaderviz.workshop").joinpath(name).read_text(encoding="utf-8")
    language = "zh" if words.in_language({"en": "", "zh": "zh"}) else "en"
    return re.sub(r"\{\{(\w+)\}\}", lambda found: {**values, "language": language}[found[1]], text)
