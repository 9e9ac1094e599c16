"""Run the solved notebooks and store what they show, as places without plotly and widgets can show it (GitHub).

A picture becomes a PNG, with what stands below it, a widget what it has for places without widgets. Cells with the tag
"measured" say how fast this computer is, or when it was: their output is not stored. The rest is the same on every
machine: the digits are the drawn ones, there is no GPU, the leaderboard is empty, and chance has a seed.
"""

from __future__ import annotations

import base64
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import nbclient
import nbformat
from stills import Camera, digest_of

PLOTLY, SVG, PNG = "application/vnd.plotly.v1+json", "image/svg+xml", "image/png"
ENVIRONMENT = {"LOADERVIZ_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "JUPYTERHUB_USER": "you"}
SEEDED = (  # checks draw fresh data each time; nobody is there to make predictions
    "from loaderviz.workshop import Prediction; Prediction.asks = 0; del Prediction; "
    "import random, secrets; _chance = random.Random(0); "
    "secrets.randbelow, secrets.randbits = _chance.randrange, _chance.getrandbits; del random, secrets, _chance"
)
MEASURED = "(This cell measures the computer that it runs on, so what it says is not stored here.)\n"
BELOW = re.compile(r'<div class="lv-below"[^>]*>(.*?)</div><script', re.DOTALL)  # the picture, of a view
HERE = re.compile(  # the file that a cell is to the kernel, and the folder of this project
    r"""(?P<cell>(?<![^\s"'(])[^\s"'(]*ipykernel_\d+[\\/]\d+\.py)|"""
    + re.escape(f"{Path(__file__).parents[1]}{os.sep}")
)


def ran(path: Path, last: str = "") -> Any:
    """Return a notebook, run in its folder, with this last cell. Raises `CellExecutionError` if a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells += [nbformat.v4.new_code_cell(last)] if last else []
    resources = {"metadata": {"path": str(path.parent)}}
    client = nbclient.NotebookClient(
        notebook,
        timeout=600,
        store_widget_state=False,
        record_timing=False,
        coalesce_streams=True,
        resources=resources,
        extra_arguments=[f"--IPKernelApp.exec_lines={SEEDED}"],
    )
    metadata = dict(notebook.metadata)
    with tempfile.TemporaryDirectory() as place:
        client.execute(env=os.environ | ENVIRONMENT | {"LOADERVIZ_PROGRESS": f"{place}/progress.jsonl"})
    notebook.metadata = nbformat.from_dict(metadata)  # without what the kernel says of itself
    return notebook


def execute(path: Path, camera: Camera) -> None:
    """Run a notebook and store its outputs. Raises `CellExecutionError` if a cell fails."""
    old = [png for cell in nbformat.read(path, as_version=4).cells for png in pictures(cell)]
    camera.known |= {digest_of(png): png for png in old}
    notebook = ran(path)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = stored(cell, camera)
    path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8", newline="\n")


def pictures(cell: Any) -> list[bytes]:
    """Return the pictures in the outputs of a cell."""
    bundles = [output.get("data", {}) for output in cell.get("outputs", ())]
    return [base64.b64decode(bundle[PNG]) for bundle in bundles if PNG in bundle]


def stored(cell: Any, camera: Camera) -> list[Any]:
    """Return the outputs of a cell that has run as they are stored."""
    if "measured" in cell.metadata.get("tags", ()):
        return [nbformat.v4.new_output("stream", name="stdout", text=MEASURED)]
    return [part for output in cell.outputs for part in _still(output, camera)]


def _still(output: Any, camera: Camera) -> list[Any]:
    """Return an output without plotly and widgets: a picture where it has one, and what there is besides."""
    if output.output_type == "stream":
        return [nbformat.from_dict(output | {"text": _anywhere(output.text)})]
    data = {kind: _anywhere(value) for kind, value in output.data.items() if kind.startswith("text/")}
    if PLOTLY in output.data or SVG in output.data:
        drawn = camera.figure(output.data[PLOTLY]) if PLOTLY in output.data else camera.svg(output.data[SVG])
        words = {"text/plain": data["text/plain"]} if "text/plain" in data else {}
        parts = [nbformat.v4.new_output("display_data", words | {PNG: base64.b64encode(drawn).decode()})]
        below = "".join(BELOW.findall(data.get("text/html", "")))
        return [*parts, nbformat.v4.new_output("display_data", {"text/html": below})] if below else parts
    return [nbformat.from_dict(output | {"data": data})] if "".join(data.values()).strip() else []


def _anywhere(text: str) -> str:
    """Return a text without the folders of this computer."""
    return HERE.sub(lambda found: "cell" if found["cell"] else "", text)
