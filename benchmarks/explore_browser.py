"""How long is the explorer's way from a key to the redrawn picture, in a real browser? The goal is 60 ms.

Run it from the root of the repository: python -m benchmarks.explore_browser [--presses 20] [--width 1280]

It starts a JupyterLab and a Chromium of its own, and presses arrow keys on several sliders. The clock runs in the page:
from the key event to the frame after the first one in which the view shows other data. Also told: what a bare slider
takes in the same page whose kernel only writes its number into a label, which is the least that any explorer takes;
the kernel's CPU time for a press, and how much data it sends.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "browser"))
from labserver import Missing, Opened, opened_page, started_browser, started_lab

GOAL = 60  # ms
NAME = "benchmark"
SLIDERS = ("batch size", "compute per batch", "workers", "batches ahead", "pinned copy rate", "bytes per sample")
CELLS = [
    """
import time
import loaderviz as lv
from loaderviz.widgets import explorer as module

explorer = lv.explore("prefetch", compute=300_000)
changed, spent = explorer.controls._on_change, []

def timed(settings):
    begin = time.process_time()
    changed(settings)
    spent.append(time.process_time() - begin)

explorer.controls._on_change = timed
explorer
""",
    """
import ipywidgets

bare, label = ipywidgets.IntSlider(description="bare"), ipywidgets.Label("0")
bare.observe(lambda change: setattr(label, "value", str(change["new"])), "value")
ipywidgets.VBox([bare, label.add_class("bare-label")])
""",
]
VIEW, LABEL = ".lv-view[data-lv-live]", ".bare-label"

# Resolves with the ms from the next key event to the frame after the one that shows other data, or another text.
WATCH = """host => {
    const shown = () => host.lv ? host.lv.head : host.textContent;
    const before = shown();
    return {done: new Promise((tell, refuse) => {
        window.addEventListener('keydown', event => {
            const begin = event.timeStamp;
            const look = () => {
                if (shown() !== before) requestAnimationFrame(() => tell(performance.now() - begin));
                else if (performance.now() - begin > 10000) refuse(new Error('nothing changed in 10 s'));
                else requestAnimationFrame(look);
            };
            requestAnimationFrame(look);
        }, {capture: true, once: true});
    })};
}"""


ASK = """async code => {
    const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
    const future = kernel.requestExecute({code});
    return await new Promise(tell => {
        future.onIOPub = message => { if (message.header.msg_type === 'stream') tell(message.content.text); };
    });
}"""


def presses(opened: Opened, slider: str, count: int, watched: str = VIEW) -> list[float]:
    """Press arrow keys on a slider, there and back; return the ms of each press until `watched` shows it."""
    page = opened.page
    host = page.locator(watched).first
    handle = page.locator(".widget-slider", has_text=slider).get_by_role("slider").first
    handle.focus()
    times = []
    for number in range(count):
        watch = host.evaluate_handle(WATCH)
        handle.press("ArrowRight" if number % 4 < 2 else "ArrowLeft")
        times.append(watch.evaluate("watch => watch.done"))
        page.wait_for_timeout(60)  # words and code follow the figure
    return times


def ask_kernel(opened: Opened, expression: str) -> Any:
    """Return the value of a Python expression in the notebook's kernel; it must be plain JSON."""
    told = opened.page.evaluate(ASK, f"import json, time\nprint(json.dumps({expression}))")
    return json.loads(told)


def measure(opened: Opened, count: int) -> None:
    """Print the table."""
    opened.lab.write(NAME, CELLS)
    received: list[int] = []
    opened.page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: received.append(len(frame))))
    opened.run(NAME)
    opened.page.locator(VIEW).first.wait_for()
    opened.page.wait_for_timeout(3_000)  # the figure takes the width of its cell
    print(f"{'slider':<20}{'median':>8}{'best':>8}{'worst':>8}   ms from key to redrawn picture, of {count}")
    every: list[float] = []
    bare = presses(opened, "bare", count * 2, LABEL)
    received.clear()
    begin = ask_kernel(opened, "time.process_time()")
    for slider in SLIDERS:
        times = presses(opened, slider, count)
        every += times
        print(f"{slider:<20}{statistics.median(times):>8.0f}{min(times):>8.0f}{max(times):>8.0f}", flush=True)
    middle, kernel = statistics.median(every), ask_kernel(opened, "time.process_time()") - begin
    print(f"median of all {middle:.0f} ms; goal {GOAL}: {'met' if middle <= GOAL else 'missed'}")
    spent = statistics.median(ask_kernel(opened, "spent"))
    print(f"for each press the kernel needs {1e3 * kernel / len(every):.0f} ms of CPU time, {1e3 * spent:.0f} of it to "
          f"redraw, and sends {sum(received) / len(every) / 1e3:.0f} kB")  # fmt: skip
    least = statistics.median(bare := bare + presses(opened, "bare", count * 2, LABEL))
    print(
        f"a bare slider and label in this page {least:.0f} ms (best {min(bare):.0f}): {middle / least:.2f} times that"
    )


def main() -> int:
    """Start everything, measure, end it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--presses", type=int, default=20, help="on each slider")
    parser.add_argument("--width", type=int, default=1280, help="of the page, px")
    options = parser.parse_args()
    try:
        with (
            tempfile.TemporaryDirectory() as home, started_browser() as browser, started_lab(Path(home)) as lab,
            opened_page(browser, lab, options.width) as opened,
        ):  # fmt: skip
            measure(opened, options.presses)
    except Missing as missing:
        print(f"left out: {missing}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
