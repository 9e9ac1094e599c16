"""How large is a page of the view, how soon is it there, how long does a step of zooming take? In Chromium, medians.

Run it from the root of the repository: python -m benchmarks.view [--spans 1000000] [--rounds 7]

"first paint" runs from the opening of the page to the frame in which the view is drawn. A zoom step is a frame with
another window: its arithmetic, and the time until the browser has it on screen. "of a bare canvas": against one
`fillRect` for each span in the window, nothing else, in the same page. A notebook's display is the
`_repr_mimebundle_` of a timeline that nothing was asked of before.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from loaderviz import export
from loaderviz.timeline import ARROW_COLUMNS, SPAN_COLUMNS, Context, Kind, Lane, Timeline

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "browser"))
from factory import loaders
from labserver import Missing, started_browser

READY = "() => [...document.querySelectorAll('.lv-view')].some(host => host.lv?.frames > 0)"
# For each zoom: median ms of the script alone, of the frame on screen, and of the same spans on a bare canvas.
ZOOMS = """async rounds => {
    const {view, model} = document.querySelector('.lv-view').lv, {start, end} = model.columns, found = [];
    const {width, height} = view.ui.data, bare = Object.assign(document.createElement('canvas'), {width, height});
    document.body.prepend(bare);
    const brush = bare.getContext('2d');
    const shown = () => new Promise(done => requestAnimationFrame(() => setTimeout(done)));
    const median = values => values.sort((one, other) => one - other)[values.length >> 1];
    const clock = async act => {
        const begin = performance.now();
        act();
        const script = performance.now() - begin;
        await shown();
        return [script, performance.now() - begin];
    };
    for (const zoom of [1, 10, 100, 1000]) {
        const times = [[], [], []], from = 0.31 * model.end, to = from + 0.69 * model.end / zoom;
        const k = width / (to - from);
        const plain = () => view.rows.filter(row => row.track && row.y < view.surface.height).forEach(row => {
            for (const bar of model.within(row.track, from, to))
                brush.fillRect((start[bar] - from) * k, row.y, (end[bar] - start[bar]) * k, row.height);
        });
        for (let round = 0; round < rounds; round++) {
            view.window = [from, to];
            view.dirty = true;
            const [script, frame] = await clock(() => view.paint()), [, other] = await clock(plain);
            [script, frame, other].forEach((value, at) => times[at].push(value));
        }
        found.push([zoom, ...times.map(median)]);
    }
    bare.remove();
    return found;
}"""


def streams(spans: int, devices: int, each: int, seed: int = 1) -> Timeline:
    """`spans` kernels of random length and gap (lognormal, a compressor's worst case), `each` streams a device."""
    draw = np.random.default_rng(seed)
    lanes = tuple(Lane(f"stream {k}", "device", "stream", k, device) for device in range(devices) for k in range(each))
    count = spans // len(lanes)
    lengths, gaps = (np.exp(draw.normal(8, 1, (len(lanes), count))).astype(np.int64) + 1 for _ in range(2))
    end = np.cumsum(lengths + gaps, axis=1)
    order = np.argsort((end - lengths).ravel(), kind="stable")
    total = len(order)
    columns = {name: np.zeros(total, kind) for name, kind in SPAN_COLUMNS.items()}
    for name in ("nbytes", "correlation", "pinned", "source"):
        columns[name] -= 1
    columns["start"], columns["end"] = (end - lengths).ravel()[order], end.ravel()[order]
    columns["lane"] = np.repeat(np.arange(len(lanes), dtype=np.int32), count)[order]
    columns["kind"] += int(Kind.COMPUTE)
    columns["name"] = draw.integers(0, 40, total).astype(np.int32)
    columns["batch"] = (np.arange(total) // 5_000).astype(np.int32)
    names = tuple(f"kernel_{number}" for number in range(40))
    arrows = {name: np.empty(0, kind) for name, kind in ARROW_COLUMNS.items()}
    return Timeline(Context("A100", "recorded", "host"), lanes, names, (), columns, arrows)


def first_paint(browser: Any, path: Path, rounds: int) -> tuple[float, Any]:
    """Return the median time [s] until the view of a page is drawn, and the last page."""
    taken, page = [], None
    for _ in range(rounds):
        if page is not None:
            page.close()
        page = browser.new_page()
        begin = time.perf_counter()
        page.goto(path.as_uri(), wait_until="commit")
        page.wait_for_function(READY)
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken), page


def display(spans: int, rounds: int) -> tuple[float, int]:
    """Return the median time [s] of a notebook's display, Python side, and the bytes of its output."""
    taken, size = [], 0
    for round_ in range(rounds):
        timeline = streams(spans, 1, 4, round_)
        begin = time.perf_counter()
        bundle = timeline._repr_mimebundle_()
        taken.append(time.perf_counter() - begin)
        size = len(bundle["text/html"])
    return statistics.median(taken), size


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spans", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    pages = {
        "compare of four loaders": (loaders(24), 0.4, 0.5),
        f"{options.spans:,} spans": (streams(options.spans, 1, 40), 12, 1.0),
        "64 ranks of 5,000 spans": (streams(320_000, 64, 3), None, 2.0),
    }
    with tempfile.TemporaryDirectory() as folder, started_browser() as browser:
        print(f"{'page':28} {'size':>9} {'wanted':>9} {'first paint':>12} {'wanted':>8}")
        for number, (name, (item, most, soon)) in enumerate(pages.items()):
            path = Path(folder) / f"{number}.html"
            export.to_html(item, path)
            taken, page = first_paint(browser, path, max(3, options.rounds // 2))
            wanted = "" if most is None else f"{most:.1f} MB"
            print(f"{name:28} {path.stat().st_size / 1e6:6.2f} MB {wanted:>9} {taken:10.2f} s {soon:6.1f} s")
            for zoom, script, frame, bare in page.evaluate(ZOOMS, options.rounds):
                print(f"{'':4}zoom {zoom:5}x: {script:6.1f} ms script, {frame:6.1f} ms frame (wanted 50), "
                      f"{frame / bare:5.2f} of a bare canvas ({bare:.1f} ms)")  # fmt: skip
            page.close()
    for spans, wanted in ((1_000, 0.03), (300_000, 0.4)):
        taken, size = display(spans, 3)
        print(
            f"display of {spans:,} spans: {1e3 * taken:.0f} ms in Python (wanted {1e3 * wanted:.0f}), {size // 1000} kB"
        )


if __name__ == "__main__":
    try:
        main()
    except Missing as missing:
        sys.exit(str(missing))
