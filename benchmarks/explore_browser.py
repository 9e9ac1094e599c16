"""How much work is the front page for a browser, until it is there, and for each key on a slider?

Run it from the root of the repository: python -m benchmarks.explore_browser [--presses 20] [--slower 4] [--throttle]

A Chromium of its own opens the site that `docs/site.py` makes. What is told is the processor time of the page's own
thread, times how much slower a reader's processor is (4, as a phone's): on a busy machine that says more than a clock.
With --throttle the browser itself slows the processor down, and a clock tells when the page is there, and how long it
is from a key until what it changed is drawn: what a reader waits for, on a machine that does nothing else.
A page is there with its first picture. The rows of an empty page, with a slider that writes its number into a label,
are the least that any page takes; the goals are for what comes on top of them: 1 s, and 50 ms in the median.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "browser"))
from labserver import Missing, started_browser

ROOT = Path(__file__).resolve().parents[1]
READY, UPDATE = 1_000, 50  # ms above an empty page
EMPTY = """<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>empty</title>
<input type="range" min="0" max="99"><p>50</p>
<script>document.querySelector("input").oninput = event => {
    document.querySelector("p").textContent = event.target.value;
};</script></html>"""
THERE = "globalThis.lvScenes ? lvScenes[0].view?.drawn.rects > 0 : document.querySelector('p + script') !== null"
# The page's own clock: when it is there, and from each key until the frame after it is done [ms].
CLOCK = f"""addEventListener("DOMContentLoaded", () => {{
    globalThis.lvUpdates = [];
    const look = () => {{
        if ({THERE}) globalThis.lvReady = performance.now();
        else requestAnimationFrame(look);
    }};
    look();
    addEventListener("input", ({{ timeStamp }}) => requestAnimationFrame(() => {{
        const {{ port1, port2 }} = new MessageChannel();
        port1.onmessage = () => lvUpdates.push(performance.now() - timeStamp);
        port2.postMessage(0);
    }}), true);
}});"""
SLIDERS = {
    "an empty page": "input",
    "compute (two rows)": "#nothing [type=range] >> nth=0",
    "CPU work (two rows)": "#nothing [type=range] >> nth=1",
    "batch size": "#numbers [type=range] >> nth=2",
    "compute": "#numbers [type=range] >> nth=4",
    "workers": "#numbers [type=range] >> nth=6",
    "batches ahead": "#numbers [type=range] >> nth=9",
}


class Page:
    """A page of a new context, on a processor that is so much `slower`; `start` is when it is there [ms]."""

    def __init__(self, browser: Any, address: str, slower: float, throttled: bool) -> None:
        context = browser.browser.new_context(viewport={"width": 1280, "height": 800}, locale="en-US")
        self.slower, self.throttled = slower, throttled
        self.page = context.new_page()
        self.devtools = context.new_cdp_session(self.page)
        self.devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
        if throttled:
            self.devtools.send("Emulation.setCPUThrottlingRate", {"rate": slower})
            self.page.add_init_script(CLOCK)
        self.page.goto(address)
        while not self.page.evaluate("globalThis.lvReady" if throttled else THERE):
            self.page.wait_for_timeout(50)
        self.start = self.page.evaluate("lvReady") if throttled else self.spent() * slower

    def spent(self) -> float:
        """Return the ms of all tasks so far."""
        metrics = self.devtools.send("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration") * 1e3)

    def presses(self, slider: str, count: int) -> list[float]:
        """Press arrow keys on a slider, there and back; return the ms that each press takes."""
        handle = self.page.locator(slider)
        handle.focus()
        self.page.wait_for_timeout(800)
        times = []
        for number in range(count):
            before = self.spent()
            self.page.keyboard.press("ArrowRight" if number % 4 < 2 else "ArrowLeft")
            self.page.wait_for_timeout(600)  # until the address has it, too
            spent = [(self.spent() - before) * self.slower]
            times += self.page.evaluate("lvUpdates.splice(0)") if self.throttled else spent
        return times


def measure(browser: Any, folder: Path, count: int, slower: float, throttled: bool) -> None:
    """Print the tables."""
    spec = importlib.util.spec_from_file_location("site_maker", ROOT / "docs" / "site.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError("docs/site.py")
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    site = maker.site(folder / "site").as_uri()
    empty = folder / "empty.html"
    empty.write_text(EMPTY, encoding="utf-8")
    names = ("an empty page", "the front page")
    there: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(5):
        for name, address in zip(names, (empty.as_uri(), site), strict=True):
            page = Page(browser, address, slower, throttled)
            there[name].append(page.start)
            page.page.context.close()
    _told("there after", there, READY)
    bare, front = (Page(browser, address, slower, throttled) for address in (empty.as_uri(), site))
    for name in ("nothing", "numbers"):
        front.page.locator(f"#{name}").scroll_into_view_if_needed()
        front.page.wait_for_timeout(1_500)
    times = {name: (bare if slider == "input" else front).presses(slider, count) for name, slider in SLIDERS.items()}
    _told("a key", times, UPDATE)


def _told(what: str, times: dict[str, list[float]], goal: float) -> None:
    """Print a table, whose first row is the empty page's, and whether the others' median is so near to it."""
    print(f"{what + ' [ms]':<24}{'median':>8}{'best':>8}{'worst':>8}")
    for name, each in times.items():
        print(f"{name:<24}{statistics.median(each):>8.0f}{min(each):>8.0f}{max(each):>8.0f}", flush=True)
    empty, *others = times.values()
    above = statistics.median(time for other in others for time in other) - statistics.median(empty)
    print(f"above an empty page: {above:.0f} ms; goal {goal}: {'met' if above <= goal else 'missed'}\n")


def main() -> int:
    """Start everything, measure, end it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--presses", type=int, default=20, help="on each slider")
    parser.add_argument("--slower", type=float, default=4, help="how many times slower a reader's processor is")
    parser.add_argument("--throttle", action="store_true", help="let the browser be slower, and take a clock")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as folder, started_browser() as browser:
            measure(browser, Path(folder), options.presses, options.slower, options.throttle)
    except Missing as missing:
        print(f"left out: {missing}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
