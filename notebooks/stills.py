"""Still pictures as PNG: GitHub, nbviewer and e-mails show neither plotly's figures nor widgets, and SVG not always.

    with Camera() as camera:
        camera.figure(comparison.utilization())    # a plotly figure, as a notebook shows it
        camera.svg(timeline.view().svg())          # a timeline
        write_pictures(camera, ("03",), folder)    # folder/NAME.png: the first thing that lesson 3 shows

The picture above a lesson is where the one before it ended, so that it answers none of the lesson's questions.
"""

from __future__ import annotations

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
from torch.profiler import record_function
from torch.utils.data import DataLoader

import loaderviz as lv
from loaderviz import experiment, mnist
from loaderviz.loaders import BlockingLoader, PinnedLoader, PrefetchLoader, ResidentLoader
from loaderviz.timeline import Kind, Timeline
from loaderviz.view import View, still
from loaderviz.workshop import claims
from loaderviz.workshop.lessons.lesson00 import Machine, machine
from loaderviz.workshop.loop import GPU, HOST, make_batches, new_model, steps, train_step, watch

FOLDER = Path(__file__).resolve().parent
SCALE, COLORS = 1.25, 48  # dots a pixel; a picture of few colours is a third of the size
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


# The pictures above the lessons.


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


def one_copy() -> View:
    """One call of `x.to("cuda")`, on a GPU that does nothing else."""
    x = batches(1)[0][0]
    with lv.record(on=GPU, host=HOST) as recording:
        for number in range(2):
            with record_function(f"batch {number}: 2048 samples"):
                x.to("cuda")
    return recording.timeline.from_batch(1).view(color="kind", title='One call of x.to("cuda"), and its copy')


def blocking() -> View:
    """The loop of lesson 1."""
    return train(lambda: BlockingLoader(batches(6))).view(
        title="The loop of lesson 1: the host is blocked by each copy"
    )


def pinned_blocking() -> View:
    """The loop of lesson 2 that pins before it begins, and still waits for each copy."""
    timeline = train(lambda: BlockingLoader(batches(6, pinned=True)))
    return timeline.view(title="Lesson 2: the batches are pinned, the calls still wait")


def prefetched() -> View:
    """The copy in a stream of its own."""
    return train(lambda: PrefetchLoader(batches(9, pinned=True))).view(
        title="Lesson 3: a later batch is copied meanwhile"
    )


def race() -> View:
    """The forgotten wait of lesson 3."""
    x = batches(1)[0][0]
    with lv.record(on=GPU, host=HOST) as recording:
        torch.ones(4).to("cuda").sum().item()  # the first memory is slow to get: without it the copy is over before
        side, source = torch.cuda.Stream(), x.pin_memory()
        with torch.cuda.stream(side):
            on_gpu = source.to("cuda", non_blocking=True)
        on_gpu.sum().item()
    timeline = recording.timeline
    *_, copy = timeline.rows(Kind.COPY_H2D)
    return timeline.between(copy.start - 40_000, int(timeline.end.max())).view(
        color="kind", title="Lesson 3: a wait was forgotten"
    )


def workers() -> View:
    """Two workers, the thread that pins, and the loop of lesson 2."""
    data = experiment.Images(*dataset(16))
    loader = DataLoader(data, 2048, num_workers=2, collate_fn=experiment.as_it_is, pin_memory=True)
    return train(lambda: PinnedLoader(loader), warm_up=10).view(title="Two workers, a pin thread and a loop")


def recorded() -> View:
    """The end of the recording that the lesson reads: one pass forward."""
    trace = lv.read(FOLDER / "traces" / "alexnet_pageable_2023.json.gz")
    *_, last = trace.rows(Kind.RANGE)
    return trace.between(last.start, last.end).view(color="kind", title="A real recording: its last pass forward")


def resident() -> View:
    """The loop of lesson 4, whose data set is on the GPU."""
    return train(lambda: ResidentLoader(dataset(7), 2048)).view(title="The loop of lesson 4: the GPU never waits")


def printed() -> View:
    """A program as an article prints it: four workers, `non_blocking`, and nothing pinned."""
    loader = DataLoader(claims.Samples(64 * 10, (3, 64, 64)), 64, num_workers=4)
    trained = claims.MACHINES[0].train(loader, non_blocking=True)
    return trained.timeline.view(title="As an article prints it: copies and kernels take turns")


def convolving() -> View:
    """A network that computes for a long time on each byte."""

    def loop() -> torch.Tensor:
        torch.manual_seed(0)
        net = [torch.nn.Conv2d(1, 24, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(24 * 26 * 26, 10)]
        model = torch.nn.Sequential(*net).to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in steps(make_batches(256, 6)):
            loss = train_step(model, optimizer, x[:, None].to("cuda"), y.to("cuda"))
        return loss

    return watch(loop).view(title="A convolutional network: copies between long steps")


PICTURES: dict[str, Callable[[], View | Machine]] = {
    "00_start_here": machine,
    "01_blocking_copy": one_copy,
    "02_pin_memory": blocking,
    "03_non_blocking_prefetch": pinned_blocking,
    "04_gpu_resident_slicing": prefetched,
    "05_find_the_bug": race,
    "06_workers": workers,
    "07_your_own_trace": recorded,
    "08_capstone": resident,
    "09_what_the_articles_say": printed,
    "10_extras": convolving,
}


def write_pictures(camera: Camera, lessons: tuple[str, ...], folder: Path) -> list[Path]:
    """Write the pictures above the lessons whose names begin so; return the files that have changed."""
    folder.mkdir(exist_ok=True)
    files = {folder / f"{name}.png": make for name, make in PICTURES.items() if name.startswith(lessons)}
    before = {path: path.read_bytes() for path in files if path.is_file()}
    camera.known |= {digest_of(png): png for png in before.values()}
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():  # the loops say their losses
        warnings.simplefilter("ignore", lv.HazardWarning)  # one of the pictures shows it
        after = {path: camera.svg(make().svg()) for path, make in files.items()}
    changed = [path for path, png in after.items() if before.get(path) != png]
    for path in changed:
        path.write_bytes(after[path])
    return changed
