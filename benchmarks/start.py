"""What the first minutes cost: lesson 0 until the first picture that can be touched, and README's first command.

    python -m benchmarks.start [--rounds 3]

Seconds of processor time (user and system) of a process and its workers, medians; "of torch" is the ratio to a process
that imports torch and makes one step of an optimizer, in the same round: nothing of the kind can be cheaper.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import nbclient
import nbformat

from loaderviz import notebooks

TOUCHED = ".view("  # in the cell that shows the first picture that can be touched
TORCH = """
import torch
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(1)).sum().backward()
optimizer.step()
"""


def torch_alone() -> None:
    """Import torch and make a step."""
    subprocess.run([sys.executable, "-c", TORCH], check=True)


def first_picture() -> None:
    """Run lesson 0 in a kernel until its first picture that can be touched."""
    path = notebooks.folder() / notebooks.FIRST
    notebook = nbformat.read(path, as_version=4)
    shows = [TOUCHED in cell.source for cell in notebook.cells if cell.cell_type == "code"].index(True)
    notebook.cells = [cell for cell in notebook.cells if cell.cell_type == "code"][: shows + 1]
    places = {"metadata": {"path": str(path.parent)}}
    nbclient.NotebookClient(notebook, timeout=600, store_widget_state=False, resources=places).execute()


def first_command() -> None:
    """Run `python -m loaderviz compare`."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "loaderviz", "compare", "--out", str(Path(folder, "timelines.html"))]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


GOALS: dict[Callable[[], None], float] = {first_picture: 12, first_command: 20}  # seconds


def seconds(run: Callable[[], None]) -> float:
    """Return the processor time of the processes that this starts and ends."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure, print a table."""
    parser = argparse.ArgumentParser(description="Measure the processor time of a newcomer's first minutes.")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is run; the median is printed")
    options = parser.parse_args()
    os.environ["LOADERVIZ_OFFLINE"] = "1"
    found = [{run: seconds(run) for run in (torch_alone, *GOALS)} for _ in range(options.rounds)]
    print(f"{'':14} {'seconds':>8} {'goal':>6} {'of torch':>9}")
    for run in found[0]:
        middle, goal = statistics.median(each[run] for each in found), GOALS.get(run)
        ratio = statistics.median(each[run] / each[torch_alone] for each in found)
        print(f"{run.__name__.replace('_', ' '):14} {middle:8.1f} {f'{goal:.0f}' if goal else '':>6} {ratio:9.1f}")


if __name__ == "__main__":
    main()
