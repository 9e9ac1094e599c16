"""The lessons as files, in a checkout or in an installed loaderviz; and whether this machine is ready for them."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from contextlib import AbstractContextManager, redirect_stdout
from importlib.metadata import PackageNotFoundError, files
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from loaderviz import words
from loaderviz.errors import INSTALL, LoadervizError, require
from loaderviz.files import naming
from loaderviz.version import __version__

FIRST = "00_start_here.ipynb"
# as in pyproject.toml
PARTS = "*.ipynb", "*.md", "pictures/*.png", "pictures/*.svg", "solutions/*.ipynb", "traces/*", "zh/*.ipynb"

SOLVED = re.compile(r"\]\((\.\./)?solutions/")  # a link to a solved notebook


class NoLessonsError(LoadervizError, FileNotFoundError):
    """The notebooks, or a file that they read, did not come with this loaderviz."""


def folder() -> Path:
    """Return the notebooks' folder, of the checkout or the wheel. Raises `NoLessonsError` if there is none."""
    beside = Path(__file__).parents[1]
    for near in (beside / "notebooks", beside / "share" / "loaderviz" / "notebooks"):  # of `pip install --target`
        if (near / FIRST).is_file():
            return near
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


def copy(to: str | Path, solutions: bool = True) -> tuple[Path, int]:
    """Copy the lessons into a folder, which is made; return it and how many files were there already and were kept.

    Without `solutions` the solved notebooks stay out, and so do the paragraphs that link to them. Raises
    `NoLessonsError`, and `NotWritableError` where nothing can be written.
    """
    source, target, kept = folder(), Path(to), 0
    paths = sorted(path for part in PARTS for path in source.glob(part))
    for path in paths if solutions else [path for path in paths if path.parent.name != "solutions"]:
        place = target / path.relative_to(source)
        with naming(target):
            if place.exists():
                kept += 1
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            if solutions or path.suffix != ".ipynb":
                shutil.copyfile(path, place)
            else:
                place.write_text(_without_solutions(path.read_text(encoding="utf-8")), encoding="utf-8")
    return target, kept


def _without_solutions(notebook: str) -> str:
    """Return a notebook without the paragraphs that link to solved ones."""
    content = json.loads(notebook)
    for cell in content["cells"]:
        if cell["cell_type"] == "markdown":
            paragraphs = "".join(cell["source"]).split("\n\n")
            cell["source"] = "\n\n".join(part for part in paragraphs if not SOLVED.search(part))
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def trace(name: str) -> Path:
    """Return the path of a trace that the lessons read. Raises `NoLessonsError` if there is no such file."""
    for place in (Path("traces"), Path("..", "traces")):  # of the notebook
        if (place / name).is_file():
            return place / name
    path = folder() / "traces" / name
    if not path.is_file():
        known = sorted(each.name for each in path.parent.glob("*.json*"))
        raise NoLessonsError(f"there is no trace {name!r}; the lessons have {', '.join(known)}")
    return path


# Is this machine ready for a workshop?


SECONDS = 30  # for one check; all of them take half a minute on a laptop
# as in requirements.txt: soupsieve 4.1.1 begins with the first, torch 2.13's wheels end before the second
PYTHON, UNTIL = (3, 11, 5), (3, 15)
BUILDS = "linux-x86_64", "linux-aarch64", "win-amd64"  # of torch's wheels, beside Macs
MACOS = 14
MEMORY = {True: 900_000_000, False: 2_400_000_000}  # bytes, lesson 6 with forked workers, and with spawned ones
PACKAGES = "torch", "torchvision", "plotly", "pandas", "jupyterlab", "ipywidgets", "anywidget"
SHARED = 60_000_000  # bytes that a kernel puts into /dev/shm: 51 MB were seen in lesson 6, and there are semaphores
KERNEL = "import sys, loaderviz, torch; print('|'.join([sys.executable, loaderviz.__file__]))"


class Check(NamedTuple):
    """Something that a lesson needs: a test that says what it found or raises an error, and what to do in that case."""

    name: str
    test: Callable[[], str]
    repair: str


def ready() -> bool:
    """Make all checks, and say what was found; stop at the first that fails, with its repair. Last: READY, or not."""
    for each in CHECKS:
        start = perf_counter()
        try:
            found = each.test()
        except Exception as problem:
            said = str(problem).strip().splitlines() or [type(problem).__name__]
            print(f"{each.name:12} {said[0]}")
            print(f"NOT READY. {each.repair}")
            return False
        print(f"{each.name:12} {found} ({perf_counter() - start:.1f} s)")
    print("READY")
    return True


def misfit(
    python: tuple[int, ...] = sys.version_info[:3],
    build: str = sysconfig.get_platform(),
    macos: str = platform.mac_ver()[0],
    machine: str = platform.machine(),
) -> str:
    """Say why the lessons' packages are not made for this Python (of this `build`) or system; "" if they are.

    The numbers are those of the wheels of requirements.txt, as package indexes list them.

    >>> misfit((3, 13, 0), "win-arm64")
    'PyTorch has no package for win-arm64; it has some for linux-x86_64, linux-aarch64, win-amd64 and Apple silicon'
    """
    if not PYTHON <= python < UNTIL:
        return f"loaderviz's packages are for Python 3.11.5 to 3.14, and this is {'.'.join(map(str, python))}"
    if not build.startswith("macosx"):
        offer = f"it has some for {', '.join(BUILDS)} and Apple silicon"
        return "" if build in BUILDS else f"PyTorch has no package for {build}; {offer}"
    if machine != "arm64":  # what a Python for Intel says on Apple silicon, too
        return "PyTorch has no package for Macs with an Intel processor, nor for a Python made for them"
    if int(macos.split(".")[0]) < MACOS:
        return f"PyTorch's package is for macOS {MACOS} or later, and this is {macos}"
    return ""


def _system() -> str:
    problem = misfit()
    if problem and (find_spec("torch") is None or not PYTHON <= sys.version_info < UNTIL):  # else it is there anyway
        raise LoadervizError(problem)
    return f"Python {platform.python_version()} for {sysconfig.get_platform()}"


def _memory() -> str:
    import psutil

    from loaderviz.machine import memory_room

    least, room = MEMORY[sys.platform == "linux"], memory_room()
    free = min(psutil.virtual_memory().available, sys.maxsize if room is None else room)
    if free < least:
        raise LoadervizError(f"{words.size(free)} are free, and lesson 6 takes up to {words.size(least)}")
    return f"{words.size(free)} are free; lesson 6 takes up to {words.size(least)}"


def _import() -> str:
    require("a lesson", *PACKAGES)
    import torch

    from loaderviz.imports import import_torchvision

    import_torchvision()
    gpu = "with a GPU" if torch.cuda.is_available() else "without a GPU, which the lessons do not need"
    return f"torch {torch.__version__} {gpu}"


def _record() -> str:
    import torch

    from loaderviz.recording import record
    from loaderviz.timeline import Kind

    with record(on="a100") as recording:
        total = torch.ones(1000).pin_memory().to("cuda", non_blocking=True).sum().item()
    copies = int(recording.timeline.where(Kind.COPY_H2D).sum())
    if (total, copies) != (1000.0, 1):
        raise LoadervizError(f"the sum of 1000 ones is {total}, after {copies} copies")
    return f"{len(recording.timeline)} spans on an emulated GPU"


def _spawn() -> str:
    from torch.utils.data import DataLoader

    from loaderviz.machine import shared_memory  # which needs numpy, and start.py asks `misfit` without it

    loader: Any = DataLoader(range(8), 4, num_workers=1, multiprocessing_context="spawn", timeout=SECONDS)  # type: ignore[arg-type]
    batches = [batch.tolist() for batch in loader]
    if batches != [[0, 1, 2, 3], [4, 5, 6, 7]]:
        raise LoadervizError(f"a worker process gave {batches}")
    if (room := shared_memory(free=True)) is None:
        return "a worker process gave its batches"
    if room < SHARED:
        raise LoadervizError(
            f"/dev/shm has {words.size(room)} free, and lesson 6 puts up to {words.size(SHARED)} there in each kernel"
        )
    many = words.count(room // SHARED, "kernel")
    return f"a worker process gave its batches; /dev/shm has {words.size(room)} free, enough for {many} in lesson 6"


def _kernel() -> str:
    from jupyter_client.manager import run_kernel

    said: list[str] = []

    def hear(message: dict[str, Any]) -> None:
        said.append(str(message["content"].get("text") or message["content"].get("evalue") or ""))

    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    running: AbstractContextManager[Any] = run_kernel(kernel_name="python3", startup_timeout=SECONDS, **quiet)
    with running as client:
        client.execute_interactive(KERNEL, timeout=SECONDS, output_hook=hear)
    python, _, module = "".join(said).strip().partition("|")
    if not module:
        raise LoadervizError(f"a notebook's kernel cannot import loaderviz: {''.join(said).strip() or 'it is silent'}")
    return f"a kernel of {python}, with loaderviz {__version__}"


def _digits() -> str:
    from loaderviz import mnist

    with redirect_stdout(StringIO()):  # it says where they come from, as we do
        source = mnist.find(download=False)
    drawn, _ = mnist.draw(train=False)
    return (
        f"{source}" if source.folder else f"{len(drawn):,} drawn ones; a lesson tries to download the real ones first"
    )


CHECKS = (
    Check("system", _system, "Repair: take such a Python or machine, or open the lessons on another one in a browser"),
    Check("packages", _import, f"Repair: {INSTALL}"),
    Check("memory", _memory, "Repair: close other programs and notebooks, or give the container more memory"),
    Check("recording", _record, 'Repair: python -m pip install "torch==2.13.0", with which loaderviz is tested'),
    Check("workers", _spawn, "Repair: give the container more shared memory, --shm-size=1g, and run this again"),
    Check("notebook", _kernel, "Repair: start JupyterLab from this environment: python -m jupyterlab"),
    Check(
        "digits",
        _digits,
        "Repair: leave LOADERVIZ_DATA unset, or give it a folder with whole files; the lessons draw digits then",
    ),
)
