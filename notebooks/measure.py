"""Measure what a learner needs: the time and the memory of each notebook, and of the JupyterLab server.

    python notebooks/measure.py                  # JupyterLab, then all notebooks as they are given out
    python notebooks/measure.py --write          # and put the table into docs/instructor.md, on a quiet machine
    python notebooks/measure.py 06 07            # these lessons only
    python notebooks/measure.py --spawn 06       # workers are started as on macOS and Windows

Each notebook runs in a kernel of its own. Memory is the peak while it runs: of the kernel, and of the kernel with its
worker processes. What processes share counts once (Linux: proportional set size; elsewhere what is theirs alone). Run
it on a machine that does nothing else; the time depends on that, the memory does not.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import psutil

FOLDER = Path(__file__).resolve().parent
EVERY = 0.1  # s, between two looks at the memory
MB = 10**6


class Watcher(threading.Thread):
    """Looks at a process and its children until `stop`: peaks in bytes, and the CPU time of all in s."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._process, self._over = psutil.Process(pid), threading.Event()
        self.alone = self.together = self.processes = 0
        self.cpu = 0.0

    def run(self) -> None:
        """Look, again and again."""
        while not self._over.is_set():
            self.look()
            self._over.wait(EVERY)

    def look(self) -> None:
        """Look once; a process that has just ended has no memory."""
        try:
            children = self._process.children(recursive=True)
            times = [self._process.cpu_times()]
        except psutil.Error:
            return
        own, others = memory_of(self._process), [memory_of(child) for child in children]
        self.alone = max(self.alone, own)
        self.together = max(self.together, own + sum(others))
        self.processes = max(self.processes, 1 + len(others))
        for child in children:  # workers that are kept have not ended, so their parent has not been charged for them
            with contextlib.suppress(psutil.Error):
                times.append(child.cpu_times())
        fields = "user", "system", "children_user", "children_system"
        self.cpu = max(self.cpu, sum(getattr(each, field, 0) for each in times for field in fields))

    def stop(self) -> None:
        """Look a last time."""
        self.look()
        self._over.set()
        self.join()


def memory_of(process: psutil.Process) -> int:
    """Return the memory of a process in bytes; 0 if it has ended or is not ours."""
    try:
        memory = process.memory_full_info()
    except psutil.Error:
        return 0
    return int(getattr(memory, "pss", 0) or memory.uss)


def notebook(path: Path, before: str = "") -> tuple[float, Watcher]:
    """Run a notebook, and this code before it; return how long it took [s], and what was seen.

    Raises `CellExecutionError` if a cell fails.
    """
    text = nbformat.read(path, as_version=4)
    text.cells.insert(0, nbformat.v4.new_code_cell(before))
    places: dict[str, Any] = {"metadata": {"path": str(path.parent)}}
    client = nbclient.NotebookClient(text, timeout=600, store_widget_state=False, resources=places)
    begin = time.perf_counter()
    with client.setup_kernel():
        watcher = Watcher(client.km.provisioner.pid)
        watcher.start()
        for index, cell in enumerate(text.cells):
            client.execute_cell(cell, index)
        took = time.perf_counter() - begin
        watcher.stop()
    return took, watcher


def jupyterlab() -> tuple[float, int]:
    """Start JupyterLab; return how long it takes until it answers [s], and its memory then [bytes]."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--no-browser", "--allow-root", f"--port={port}", "--ip=127.0.0.1", "--IdentityProvider.token=measure"]
    command = [sys.executable, "-m", "jupyterlab", *options, f"--ServerApp.root_dir={FOLDER}"]
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as sink, subprocess.Popen(command, stdout=sink, stderr=sink) as server:
        try:
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/lab?token=measure", timeout=10).close()
                    return time.perf_counter() - begin, memory_of(psutil.Process(server.pid))
                except OSError:
                    if server.poll() is not None:
                        raise RuntimeError("JupyterLab did not start; try: python -m jupyterlab") from None
                    time.sleep(0.1)
        finally:
            server.terminate()


def written(guide: str, measured: str) -> str:
    """Return the text of the guide with what was measured between its marks."""
    head, mark, rest = guide.partition("<!-- measured -->\n")
    return f"{head}{mark}{measured}{rest[rest.index('<!-- end -->') :]}"


def table(paths: list[Path], before: str, lab: bool) -> Iterator[str]:
    """Yield the lines of the table, and what one learner needs."""
    yield f"Python {platform.python_version()}, {platform.system()}, {os.cpu_count()} cores:\n\n"
    yield "| notebook | s | CPU s | MB, kernel | MB, with workers | processes |\n|---|---:|---:|---:|---:|---:|\n"
    alone, together = [], []
    for path in paths:
        took, seen = notebook(path, before)
        alone.append(seen.alone // MB)
        together.append(seen.together // MB)
        sizes = f"{alone[-1]:,} | {together[-1]:,} | {seen.processes}"
        yield f"| {path.stem} | {took:.1f} | {seen.cpu:.1f} | {sizes} |\n"
    if lab:
        took, memory = jupyterlab()
        need = memory // MB + max(together) + max(alone)
        yield (
            f"\nThe JupyterLab server adds {memory // MB} MB and answers after {took:.1f} s. A kernel keeps its memory "
            "until it is shut\ndown, and people leave notebooks open. So count **one server, one kernel at work and "
            f"one forgotten:\n{memory // MB} + {max(together):,} + {max(alone):,} MB, {need / 1000:.1f} GB.**\n"
        )


def main(arguments: list[str] | None = None) -> int:
    """Print the table, and write it if asked to."""
    parser = argparse.ArgumentParser(description="Measure the time and the memory of the notebooks.")
    parser.add_argument("lessons", nargs="*", help="beginnings of names, such as 06 (default: all, and JupyterLab)")
    parser.add_argument("--spawn", action="store_true", help="start workers by spawn, as macOS and Windows do")
    parser.add_argument("--write", action="store_true", help="put the table of all lessons into docs/instructor.md")
    options = parser.parse_args(arguments)
    if options.write and (options.lessons or options.spawn):
        parser.error("--write is for all lessons as they are given out: leave the other options out")
    before = "import multiprocessing; multiprocessing.set_start_method('spawn')" if options.spawn else ""
    paths = [path for path in sorted(FOLDER.glob("*.ipynb")) if path.name.startswith(tuple(options.lessons or [""]))]
    if not paths:
        parser.error(f"no notebook in {FOLDER} begins with {' or '.join(options.lessons)}")
    lines = []
    for line in table(paths, before, lab=not options.lessons):
        lines.append(line)
        print(line, end="", flush=True)
    if options.write:
        guide = FOLDER.parent / "docs" / "instructor.md"
        guide.write_text(written(guide.read_text(encoding="utf-8"), "".join(lines)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
