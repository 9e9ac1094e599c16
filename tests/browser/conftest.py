"""A JupyterLab of our own, and a Chromium that opens notebooks in it.

Both are started once for all tests. The server gets a copy of the notebooks and private settings, so that nothing of
the developer's Jupyter is read or changed.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
START_SECONDS = 90
CELLS_MILLISECONDS = 120_000  # for all cells of a notebook, on a slow and busy machine
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


@dataclass
class Opened:
    """A notebook in the browser, all cells run."""

    page: Any
    cells: list[dict[str, Any]] = field(default_factory=list)
    script_errors: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    @property
    def outputs(self) -> list[dict[str, Any]]:
        """All outputs, in order."""
        return [output for cell in self.cells for output in cell["outputs"]]


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab."""

    url: str
    token: str

    def call(self, method: str, path: str) -> Any:
        """Ask the server's REST interface."""
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(f"{self.url}/api/{path}", method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=20) as reply:
            return json.loads(reply.read() or "null")

    def end_kernels(self) -> None:
        """End all kernels: one that lives on would bring its old outputs into the next page."""
        for session in self.call("GET", "sessions"):
            self.call("DELETE", f"sessions/{session['id']}")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is missing: pip install playwright")
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium here: install it (apt-get install chromium) or set CHROMIUM=/path/to/chrome")
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory, chromium: Any) -> Iterator[Lab]:
    pytest.importorskip("jupyterlab", reason="JupyterLab is missing: pip install -r requirements.txt")
    home = tmp_path_factory.mktemp("lab")
    shutil.copytree(NOTEBOOKS, home / "notebooks", ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
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
        lab.end_kernels()
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
                pytest.fail(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.1)
        else:
            return


@pytest.fixture
def open_and_run(chromium: Any, lab: Lab) -> Iterator[Callable[[str], Opened]]:
    """Return a function that opens a notebook by name and runs all its cells."""
    page = chromium.new_page(viewport={"width": 1280, "height": 1000})
    page.set_default_timeout(60_000)
    opened = Opened(page)
    page.on("pageerror", lambda error: opened.script_errors.append(str(error)))
    own = (lab.url, lab.url.replace("http", "ws", 1), "data:", "blob:")
    page.on("request", lambda request: None if request.url.startswith(own) else opened.outside.append(request.url))

    def run(name: str) -> Opened:
        page.goto(f"{lab.url}/doc/tree/{name}.ipynb?token={lab.token}")
        page.wait_for_selector(".jp-Notebook .jp-Cell")
        opened.cells = page.evaluate(RUN_ALL, CELLS_MILLISECONDS)
        return opened

    yield run
    page.close()
    lab.end_kernels()
