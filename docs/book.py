"""Make the course as a book, pages that ask no server for anything: python docs/book.py [OUT] [--lessons 00 03].

The lessons are run as learners have them. Nobody chooses and no exercise is solved, so those cells say how to open the
lesson. The pictures need no kernel: each carries its data and its script.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from plotly.graph_objects import Figure
from plotly.io import to_html
from plotly.offline import get_plotlyjs
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "notebooks"))
from execute import PLOTLY, ran  # noqa: E402

OPEN = '<p class="lv-open">To {}, <a href="{}index.html#open">open the lesson</a>.</p>'
BY_HAND = re.compile("(?<=</ol>)<p>[^<]*</p>(?=</div><style>)")  # what a prediction says where there is a kernel
SETTINGS = {
    "project": "loaderviz",
    "html_title": "loaderviz",
    "extensions": ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"],
    "html_theme": "furo",
    "html_static_path": ["docs/book.css", "docs/plotly.min.js"],
    "default_role": "code",
    "html_css_files": ["book.css"],
    "html_copy_source": False,
    "html_show_copyright": False,
    "nb_execution_mode": "off",
    "myst_heading_anchors": 4,
    "autodoc_typehints": "none",  # the docstrings say it in words
}


def shown(path: Path) -> Any:
    """Return a lesson, run, as a page shows it."""
    lesson, up = ran(path), "../" * len(path.relative_to(ROOT / "notebooks").parts)
    for cell in lesson.cells:
        if cell.cell_type == "code":
            cell.outputs = [_html(output, up) for output in cell.outputs]
            if ".check(" in cell.source:
                note = {"text/html": OPEN.format("write it and have it checked", up)}
                cell.outputs = [nbformat.v4.new_output("display_data", note)]
            elif ".reveal()" in cell.source:
                cell.metadata["tags"] = [*cell.metadata.get("tags", ()), "hide-output"]
    return lesson


def _html(output: Any, up: str) -> Any:
    """Return an output without widgets, for which a page has no kernel; a figure of plotly as HTML."""
    data = {kind: value for kind, value in output.get("data", {}).items() if not kind.startswith("application/")}
    if PLOTLY in output.get("data", {}):
        figure = Figure(output.data[PLOTLY], skip_invalid=True)
        data["text/html"] = to_html(figure, full_html=False, include_plotlyjs=f"{up}_static/plotly.min.js")
    elif "text/html" in data:
        data["text/html"] = BY_HAND.sub(OPEN.format("choose before you see the answer", up), data["text/html"])
    return nbformat.from_dict(output | {"data": data}) if "data" in output else output


def book(out: Path, lessons: tuple[str, ...] = ("",)) -> Path:
    """Write the book, those lessons run whose names begin so, and return its first page.

    Raises `RuntimeError` where something is wrong, such as a link that leads nowhere.
    """
    with tempfile.TemporaryDirectory() as place:
        source, pages = Path(place, "source"), Path(place, "pages")
        for name in ("docs", "notebooks"):
            no_pages = shutil.ignore_patterns("*.py", "__pycache__", "index.md", "src")
            shutil.copytree(ROOT / name, source / name, ignore=no_pages)
        for name in ("README.md", "LICENSE", "docs/index.md"):
            shutil.copy(ROOT / name, source)
        (source / "docs/plotly.min.js").write_text(get_plotlyjs(), encoding="utf-8")
        for path in [*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("notebooks/zh/*.ipynb")]:
            if path.relative_to(ROOT / "notebooks").as_posix().startswith(lessons):
                nbformat.write(shown(path), source / path.relative_to(ROOT))
        app = Sphinx(source, None, pages, Path(place), "html", SETTINGS, None, warningiserror=True)
        app.connect("autodoc-process-docstring", _examples, priority=400)  # before napoleon
        app.connect("source-read", _anchors)
        app.build()
        if app.statuscode:
            raise RuntimeError("the book has the faults named above")
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(pages, out)
    return out / "index.html"


def _anchors(_: Any, __: str, content: list[str]) -> None:
    """Name headings in links as Sphinx does."""
    content[0] = content[0].replace("](#R", "](#r")


def _examples(_: Any, what: str, __: str, ___: Any, ____: Any, lines: list[str]) -> None:
    """Set what a docstring has indented, which is code, as code; of a module's keep the first line."""
    text = lines[0] if what == "module" else re.sub(r"\n\n(?= {4})(?! *>>>)", "\n\n::\n\n", "\n".join(lines))
    lines[:] = text.split("\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make the course as a book.")
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "build" / "book")
    parser.add_argument("--lessons", nargs="+", default=[""], help="beginnings of names, such as 03 (default: all)")
    options = parser.parse_args()
    print(book(options.out, tuple(options.lessons)))
