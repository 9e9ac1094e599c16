"""The lessons as files: where they are, in a checkout or in an installed loaderviz, and a copy of them to work in.

copy("lessons")                     # the notebooks, the solved ones, and the traces that lesson 7 reads
trace("event_sync_2023.json.gz")    # one of those, wherever the notebook was opened
"""

from __future__ import annotations

import shutil
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from loaderviz.errors import LoadervizError

FIRST = "00_start_here.ipynb"
PARTS = "*.ipynb", "solutions/*.ipynb", "traces/*"


class NoLessonsError(LoadervizError, FileNotFoundError):
    """The notebooks, or a file that they read, did not come with this loaderviz."""


def folder() -> Path:
    """Return the folder of the notebooks: that of the checkout, else where the wheel has put them.

    Raises `NoLessonsError` if there are none.
    """
    checkout = Path(__file__).parents[1] / "notebooks"
    if (checkout / FIRST).is_file():
        return checkout
    try:
        installed = [Path(str(each.locate())) for each in files("loaderviz") or () if each.name == FIRST]
    except PackageNotFoundError:
        installed = []
    for path in installed:
        if path.is_file() and path.parent.name != "solutions":
            return path.resolve().parent
    raise NoLessonsError(
        "the notebooks are not beside this loaderviz: install it with `python -m pip install .` in its folder, or open "
        "the folder notebooks/ of its repository"
    )


def copy(to: str | Path) -> tuple[Path, int]:
    """Copy the lessons into a folder, which is made; return it and how many files were there already and were kept.

    Raises `NoLessonsError`, and OSError where nothing can be written.
    """
    source, target, kept = folder(), Path(to), 0
    for path in sorted(path for part in PARTS for path in source.glob(part)):
        place = target / path.relative_to(source)
        if place.exists():
            kept += 1
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    return target, kept


def trace(name: str) -> Path:
    """Return the path of a trace that the lessons read. Raises `NoLessonsError` if there is no such file."""
    for place in (Path("traces"), Path("..", "traces")):  # of the notebook
        if (place / name).is_file():
            return place / name
    path = folder() / "traces" / name
    if not path.is_file():
        raise NoLessonsError(f"there is no trace {name!r}; the lessons have {', '.join(_traces(path.parent))}")
    return path


def _traces(place: Path) -> list[str]:
    return sorted(path.name for path in place.glob("*.json*"))
