"""Still pictures as PNG: GitHub, nbviewer and e-mails show neither plotly's figures nor widgets, and SVG not always.

with Camera() as camera:
    camera.figure(comparison.utilization())    # a plotly figure, as a notebook shows it
    camera.svg(timeline.view().svg())          # a timeline
    write_pictures(camera, {"03_name": code}, folder)    # folder/03_name.png: what the last line of the code shows

One that moves by itself stays SVG, as folder/00_name.svg.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import torch
from PIL import Image, PngImagePlugin
from plotly.offline import get_plotlyjs

import loaderviz as lv
from loaderviz import mnist
from loaderviz.timeline import Timeline
from loaderviz.view import still
from loaderviz.workshop.loop import make_batches, new_model, steps, train_step, watch

FOLDER = Path(__file__).resolve().parent
SCALE, COLORS = 1.25, 48  # dots a pixel; a picture of few colours is a third of the size
MOVES = "@keyframes"  # in an SVG
OF = "drawn from"  # the name in a PNG of the digest of what it shows


class Camera:
    """Chromium, which draws what it is given. `known` are pictures by digest that need not be drawn again: their bytes
    depend on Chromium and its fonts, and would differ from machine to machine.

    Raises `RuntimeError` where there is no Chromium.
    """

    def __init__(self, known: dict[str, bytes] | None = None) -> None:
        self.known = known or {}

    def __enter__(self) -> Camera:
        from playwright.sync_api import sync_playwright

        path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
        if path is None:
            raise RuntimeError("no Chromium to draw with: apt-get install chromium, or set CHROMIUM=/path/to/chrome")
        with contextlib.ExitStack() as stack:
            driver = stack.enter_context(sync_playwright())
            browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
            stack.callback(browser.close)
            self._page = browser.new_page(device_scale_factor=SCALE, viewport={"width": still.WIDTH, "height": 2000})
            style = "body { margin: 0 } svg { display: block }"
            self._page.set_content(
                f"<!doctype html><style>{style}</style><script>{get_plotlyjs()}</script><div id=here></div>"
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def svg(self, text: str) -> bytes:
        """Return an SVG document as a PNG."""
        return self._shot(text, "([text]) => { here.innerHTML = text }")

    def figure(self, figure: go.Figure | dict[str, Any]) -> bytes:
        """Return a plotly figure, or its JSON, as a PNG."""
        shown = json.loads(go.Figure(figure).update_layout(width=still.WIDTH).to_json())
        draw = "([data, layout]) => Plotly.newPlot(here, data, layout, {staticPlot: true})"
        return self._shot([shown["data"], shown["layout"]], draw)

    def _shot(self, what: Any, draw: str) -> bytes:
        digest = hashlib.sha256(json.dumps([SCALE, COLORS, what], sort_keys=True).encode()).hexdigest()
        if digest not in self.known:
            self._page.evaluate("() => { Plotly.purge(here); here.innerHTML = '' }")
            self._page.evaluate(draw, what if isinstance(what, list) else [what])
            self.known[digest] = smaller(self._page.locator("#here").screenshot(), digest)
        return self.known[digest]


def smaller(png: bytes, digest: str) -> bytes:
    """Return a PNG with few colours, and the digest of what it shows."""
    about, out = PngImagePlugin.PngInfo(), io.BytesIO()
    about.add_text(OF, digest)
    image = (
        Image.open(io.BytesIO(png))
        .convert("RGB")
        .quantize(COLORS, Image.Quantize.MAXCOVERAGE, 3, dither=Image.Dither.NONE)
    )
    shades = image.getpalette() or []  # the mean of nearly white dots is white
    image.putpalette(255 if min(shades[at // 3 * 3 :][:3]) > 248 else shade for at, shade in enumerate(shades))
    image.save(out, "PNG", optimize=True, pnginfo=about)
    return out.getvalue()


def digest_of(png: bytes) -> str:
    """Return the digest of what a PNG of `Camera` shows; "" for another one."""
    return str(getattr(Image.open(io.BytesIO(png)), "text", {}).get(OF, ""))


# The pictures above the lessons, and what their cells need.


def train(make_loader: Callable[[], Iterable[Any]], warm_up: int = 3) -> Timeline:
    """Return the timeline of a training on the batches of a loader, which is made inside the recording."""

    def loop() -> torch.Tensor:
        model, optimizer = new_model()
        for x, y in steps(make_loader(), warm_up):
            loss = train_step(model, optimizer, x, y)
        return loss

    return watch(loop, warm_up=warm_up)


def batches(count: int, pinned: bool = False) -> list[Any]:
    """Return batches on the host."""
    made = make_batches(2048, count)
    return [(x.pin_memory(), y.pin_memory()) for x, y in made] if pinned else made


def dataset(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the samples of so many batches."""
    images, labels = (part[: count * 2048] for part in mnist.tensors(train=True))
    return images.float() / 255, labels


def shown(code: str) -> str:
    """Run code whose last line is a picture; return that as SVG."""
    place: dict[str, Any] = {"__name__": "picture"}
    tree = ast.parse(code)
    last = tree.body.pop()
    assert isinstance(last, ast.Expr), f"the last line of a picture's cell shows it; here it is {ast.unparse(last)}"
    exec(compile(tree, "picture.py", "exec"), place)
    return str(eval(compile(ast.Expression(last.value), "picture.py", "eval"), place).svg())


def write_pictures(camera: Camera, codes: dict[str, str], folder: Path) -> list[Path]:
    """Write the pictures above lessons, each from its code; return the files that have changed."""
    folder.mkdir(exist_ok=True)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    camera.known |= {digest_of(png): png for path, png in before.items() if path.suffix == ".png"}
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():  # the loops say their losses
        warnings.simplefilter("ignore", lv.HazardWarning)  # one of the pictures shows it
        drawn = {folder / name: shown(code) for name, code in codes.items()}
    after = {
        path.with_suffix(".svg" if MOVES in svg else ".png"): svg.encode() if MOVES in svg else camera.svg(svg)
        for path, svg in drawn.items()
    }
    changed = [path for path, picture in after.items() if before.get(path) != picture]
    for path in changed:
        path.write_bytes(after[path])
    return changed
