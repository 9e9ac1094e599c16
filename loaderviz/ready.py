"""Is this machine ready for a workshop? Half a minute, and a repair for what is not.

python -m loaderviz ready
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, redirect_stdout
from importlib.metadata import version
from io import StringIO
from time import perf_counter
from typing import Any, NamedTuple

from loaderviz.errors import LoadervizError, require

SECONDS = 30  # for one check; all of them take half a minute on a laptop
PACKAGES = "torch", "torchvision", "plotly", "pandas", "jupyterlab", "ipywidgets", "anywidget"
KERNEL = "import sys, loaderviz, torch; print('|'.join([sys.executable, loaderviz.__file__]))"


class Check(NamedTuple):
    """Something that a lesson needs: a test that says what it found or raises an error, and what to do in that case."""

    name: str
    test: Callable[[], str]
    repair: str


def check(say: Callable[[str], None] = print) -> bool:
    """Make all checks, and say of each what was found; stop at the first that fails, with its repair.

    The last line is READY, or begins with NOT READY.
    """
    for each in CHECKS:
        start = perf_counter()
        try:
            found = each.test()
        except Exception as problem:
            said = str(problem).strip().splitlines() or [type(problem).__name__]
            say(f"{each.name:12} {said[0]}")
            say(f"NOT READY. {each.repair}")
            return False
        say(f"{each.name:12} {found} ({perf_counter() - start:.1f} s)")
    say("READY")
    return True


def _import() -> str:
    require("a lesson", *PACKAGES)
    import torch

    from loaderviz._torchvision import import_torchvision

    import_torchvision()
    gpu = "with a GPU" if torch.cuda.is_available() else "without a GPU, which the lessons do not need"
    return f"Python {sys.version.split()[0]}, torch {torch.__version__} {gpu}"


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

    loader: Any = DataLoader(range(8), 4, num_workers=1, multiprocessing_context="spawn", timeout=SECONDS)  # type: ignore[arg-type]
    batches = [batch.tolist() for batch in loader]
    if batches != [[0, 1, 2, 3], [4, 5, 6, 7]]:
        raise LoadervizError(f"a worker process gave {batches}")
    return "a worker process gave its batches"


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
    return f"a kernel of {python}, with loaderviz {version('loaderviz')}"


def _digits() -> str:
    from loaderviz import mnist

    with redirect_stdout(StringIO()):  # it says where they come from, as we do
        source = mnist.find(train=False, download=False)
    drawn, _ = mnist.draw(train=False)
    return (
        f"{source}" if source.folder else f"{len(drawn):,} drawn ones; a lesson tries to download the real ones first"
    )


CHECKS = (
    Check("packages", _import, "Repair: python -m pip install '.[notebook]' in the folder of loaderviz"),
    Check("recording", _record, "Repair: python -m pip install 'torch==2.13.0', with which loaderviz is tested"),
    Check("workers", _spawn, "Repair: give the container more shared memory, --shm-size=1g, and run this again"),
    Check("notebook", _kernel, "Repair: start JupyterLab from this environment: python -m jupyterlab"),
    Check(
        "digits",
        _digits,
        "Repair: leave LOADERVIZ_DATA unset, or give it a folder with whole files; the lessons draw digits then",
    ),
)
