"""A JupyterLab of our own and a Chromium that opens notebooks in it, for the browser tests and benchmarks.

    with started_browser() as browser, started_lab(home) as lab, opened_page(browser, lab) as opened:
        opened.run("00_start_here")
        opened.outputs

The server gets the course as it is handed out, and private settings, so that nothing of the developer's Jupyter is
read or changed. `Missing` is raised, with what to install, where there is no browser or no JupyterLab.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loaderviz import notebooks

START_SECONDS = 90
CELLS_MILLISECONDS = 180_000  # for all cells of a notebook, on a slow and busy machine
SETTINGS = {
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},  # cells out of sight stay in the page
    "@jupyterlab/docmanager-extension/plugin": {"autosave": False},
}
FOLDERS = {
    "JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "runtime",
    "IPYTHONDIR": "ipython", "JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
}  # fmt: skip

# The kernel light of the toolbar says "idle" before there is a connection, and a "run all" of then is lost: so wait
# for the application's own promises. The evaluation itself has no time limit, hence the race.
RUN_ALL = """async limit => {
    const app = window.jupyterapp;
    await app.restored;
    const panel = app.shell.currentWidget;
    await panel.context.ready;
    await panel.sessionContext.ready;
    await panel.sessionContext.session.kernel.info;
    const late = new Promise((_, refuse) => setTimeout(() => refuse(new Error(`not done in ${limit} ms`)), limit));
    await Promise.race([app.commands.execute('notebook:run-all-cells'), late]);
    const cells = panel.content.widgets.filter(cell => cell.model.type === 'code').map(cell => cell.model);
    return cells.map(cell => ({count: cell.executionCount, outputs: cell.outputs.toJSON()}));
}"""


class Missing(Exception):
    """Something that the browser tests need is not installed; the message says what."""


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab."""

    url: str
    token: str

    def call(self, method: str, path: str, data: Any = None) -> Any:
        """Ask the server's REST interface."""
        headers = {"Authorization": f"token {self.token}"}
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(f"{self.url}/api/{path}", body, headers, method=method)
        with urllib.request.urlopen(request, timeout=20) as reply:
            return json.loads(reply.read() or "null")

    def write(self, name: str, cells: Sequence[str]) -> None:
        """Put a notebook of these code cells into the server's folder."""
        made = [
            {"cell_type": "code", "id": f"cell-{number}", "source": source, "metadata": {}, "outputs": [],
             "execution_count": None}
            for number, source in enumerate(cells)
        ]  # fmt: skip
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        content = {"cells": made, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
        self.call("PUT", f"contents/{name}.ipynb", {"type": "notebook", "format": "json", "content": content})

    def end_kernels(self) -> None:
        """Let all kernels end: one that lives on would bring its old outputs into the next page of its notebook.

        A kernel takes seconds to end; nobody waits for it.
        """
        for session in self.call("GET", "sessions"):
            threading.Thread(target=self._end, args=(session["id"],), daemon=True).start()

    def _end(self, session: str) -> None:
        with suppress(OSError):  # the server has ended meanwhile
            self.call("DELETE", f"sessions/{session}")


@dataclass
class Opened:
    """A page of the browser, and what the notebook that was run in it gave."""

    page: Any
    lab: Lab
    cells: list[dict[str, Any]] = field(default_factory=list)
    script_errors: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # what the server answered with 400 or above

    def run(self, name: str) -> Opened:
        """Open a notebook by name and run all its cells."""
        self.page.goto(f"{self.lab.url}/doc/tree/{name}.ipynb?token={self.lab.token}")
        self.page.wait_for_selector(".jp-Notebook .jp-Cell")
        self.cells = self.page.evaluate(RUN_ALL, CELLS_MILLISECONDS)
        return self

    @property
    def outputs(self) -> list[dict[str, Any]]:
        """All outputs, in order."""
        return [output for cell in self.cells for output in cell["outputs"]]


@contextmanager
def started_browser() -> Iterator[Any]:
    """Start Chromium, and end it. Given is a browser context: its pages share the files of JupyterLab."""
    if importlib.util.find_spec("playwright") is None:
        raise Missing("playwright is missing: pip install playwright")
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        raise Missing("no Chromium here: install it (apt-get install chromium) or set CHROMIUM=/path/to/chrome")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser.new_context()
        browser.close()


@contextmanager
def started_lab(home: Path) -> Iterator[Lab]:
    """Start JupyterLab on a copy of the notebooks in `home`, an empty folder, and end it."""
    if importlib.util.find_spec("jupyterlab") is None:
        raise Missing("JupyterLab is missing: pip install -r requirements.txt")
    notebooks.copy(home / "notebooks")
    for plugin, values in SETTINGS.items():
        path = home / "settings" / f"{plugin}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    lab = Lab(f"http://127.0.0.1:{port}", secrets.token_hex(16))
    options = [
        "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0",
        f"--IdentityProvider.token={lab.token}", f"--ServerApp.root_dir={home / 'notebooks'}",
        "--LabApp.expose_app_in_browser=True",
    ]  # fmt: skip
    environment = os.environ | {name: str(home / folder) for name, folder in FOLDERS.items()}
    environment["LOADERVIZ_OFFLINE"] = "1"
    environment["OMP_NUM_THREADS"] = "1"  # small matrices: with more threads a busy machine is far slower
    log = home / "server.log"
    with log.open("w") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options], stdout=sink, stderr=sink, env=environment
        )
    try:
        _wait_for(lab, process, log)
        yield lab
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(lab: Lab, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when the server answers; fail with its log if it ends or does not."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            lab.call("GET", "status")
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-2000:]}") from None
            time.sleep(0.1)
        else:
            return


@contextmanager
def opened_page(browser: Any, lab: Lab, width: int = 1280, height: int = 1000) -> Iterator[Opened]:
    """Open an empty page of this size that notes script errors and requests to other machines; close it after."""
    page = browser.new_page()
    page.set_viewport_size({"width": width, "height": height})
    page.set_default_timeout(60_000)
    opened = Opened(page, lab)
    page.on("pageerror", lambda error: opened.script_errors.append(str(error)))
    own = (lab.url, lab.url.replace("http", "ws", 1), "data:", "blob:")
    page.on("request", lambda request: None if request.url.startswith(own) else opened.outside.append(request.url))
    page.on(
        "response",
        lambda reply: opened.refused.append(f"{reply.status} {reply.url}") if reply.status >= 400 else None,
    )
    try:
        yield opened
    finally:
        page.close()
        lab.end_kernels()
