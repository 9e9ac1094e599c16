"""Explorer, stepper and viewer in a real JupyterLab: they answer to keys, stay on the machine, survive a reload."""

from __future__ import annotations

import pytest
from labserver import LEGEND_BELOW

# So many kinds of spans that the legend has more rows than there is room for in a narrow picture.
MANY_KINDS = """import torch
from torch.utils.data import DataLoader, TensorDataset
with lv.record(on="t4", hazards="off") as recording:
    side = torch.cuda.Stream()
    for (x,) in DataLoader(TensorDataset(torch.ones(48, 1 << 17)), 8, num_workers=2, pin_memory=True):
        x = x.to("cuda", non_blocking=True)
        y = torch.zeros_like(x).copy_(x)
        with torch.cuda.stream(side):
            z = torch.ones(1 << 20).pin_memory().to("cuda", non_blocking=True)
        for _ in range(20):
            y = (y * y).sqrt()
        y.sum().item()
"""
CELLS = [
    "import loaderviz as lv\nexplorer = lv.explore()\nexplorer",
    "lv.step_through(explorer.timeline)",
    f"{MANY_KINDS}lv.explore.viewer(recording.timeline, color='kind')",
]
BARS = "plot => [...plot.querySelectorAll('.bars .point path')].map(path => path.getAttribute('d')).join()"
AGAIN = """async () => {
    const app = window.jupyterapp;
    await app.commands.execute('notebook:run-all-cells');
    await app.commands.execute('docmanager:save');
}"""
# What Tab reaches in the output of a cell, in the order of the page: its visible words, or those of its label.
TAB_ORDER = """cell => [...cell.querySelectorAll('button, input, select, [role=slider], [tabindex="0"]')]
    .filter(each => each.closest('.jupyter-widgets') && !each.closest('.js-plotly-plot'))
    .filter(each => each.tabIndex >= 0 && !each.disabled && each.offsetParent !== null)
    .map(each => ({PRE: 'code', BUTTON: each.innerText.trim()})[each.tagName]
        || each.closest('label')?.innerText
        || each.closest('.widget-inline-hbox')?.querySelector('.widget-label')?.innerText
        || each.closest('.widget-play').previousElementSibling.innerText)"""
STOPS = [
    [
        "blocking", "pinned", "prefetch", "resident", "the data set lives in", "batch size", "bytes per sample",
        "compute per batch", "kernels per batch", "workers", "CPU work per sample", "pin_memory=True",
        "non_blocking=True", "copy on a side stream", "batches ahead", "GPU", "pinned copy rate", "pageable copy rate",
        "copy the code", "code",
    ],
    ["play, stop:", "play, stop:", "◀ event before", "next event ▶", "event"],
    [
        "zoom", "move", "select a window", "◀ earlier", "later ▶", "closer +", "wider −", "all", "◀ span before",
        "next span ▶",
    ],
]  # fmt: skip

pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # playwright closes its pipes when its loop is collected
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def notebook(lab, open_and_run):
    """The three pictures, one to a cell."""
    lab.write("pictures", CELLS)
    opened = open_and_run("pictures")
    assert [output for output in opened.outputs if output["output_type"] == "error"] == []
    return opened


def plots(page):
    """The three plots, once they are drawn."""
    found = page.locator(".jp-OutputArea .js-plotly-plot")
    for number in range(len(CELLS)):
        found.nth(number).locator(".bars .point path").first.wait_for(state="attached", timeout=30_000)
    assert found.count() == len(CELLS)
    return [found.nth(number) for number in range(len(CELLS))]


def slider(page, name):
    return page.locator(".widget-slider", has_text=name).get_by_role("slider")


def explorer_answers(page, plot):
    """Sliders and buttons change bars, title, words and code."""
    from playwright.sync_api import expect

    words = page.locator("p[role=status]").first
    expect(plot.locator(".gtitle")).to_contain_text("4 workers, pageable, one stream")
    before = plot.evaluate(BARS)
    slider(page, "workers").press("ArrowRight")
    expect(plot.locator(".gtitle")).to_contain_text("5 workers")
    expect(words).to_contain_text("5 workers, pageable")
    page.get_by_role("button", name="prefetch").press("Enter")
    expect(plot.locator(".gtitle")).to_contain_text("5 workers, pinned, non_blocking, side stream, 2 ahead")
    expect(words).to_contain_text("2 ahead: GPU computes")
    expect(page.locator("pre", has_text="main.wait_event(copied)")).to_have_count(1)
    assert plot.evaluate(BARS) != before
    page.get_by_role("button", name="copy the code").press("Enter")
    expect(page.get_by_role("button", name="copied")).to_have_count(1)


def stepper_answers(page, plot):
    """The cursor goes by slider, button and Play, and Play stops when it is told to."""
    from playwright.sync_api import expect

    title, words = plot.locator(".gtitle"), page.locator("p[role=status]").nth(1)
    expect(title).to_contain_text("event 1 of")
    slider(page, "event").press("ArrowRight")
    slider(page, "event").press("ArrowRight")
    expect(title).to_contain_text("event 3 of")
    page.get_by_role("button", name="next event").press("Enter")
    expect(title).to_contain_text("event 4 of")
    now = words.text_content()
    play, stop = (page.locator(".widget-play button").nth(number) for number in range(2))
    play.press("Enter")
    expect(title).to_contain_text("event 6 of")
    expect(words).not_to_have_text(now)
    stop.press("Enter")  # it goes back to the beginning
    expect(title).to_contain_text("event 1 of")
    page.wait_for_timeout(800)  # three beats of Play
    expect(title).to_contain_text("event 1 of")


def viewer_answers(page, plot):
    """Buttons zoom, and tell about a span."""
    from playwright.sync_api import expect

    whole = plot.locator(".gtitle").text_content()
    page.get_by_role("button", name="closer").press("Enter")
    expect(plot.locator(".gtitle")).not_to_have_text(whole)
    page.get_by_role("button", name="all", exact=True).press("Enter")
    expect(plot.locator(".gtitle")).to_have_text(whole)
    page.get_by_role("button", name="next span").press("Enter")
    expect(page.get_by_role("cell", name="launched by")).to_have_count(1)


def test_keys_move_the_pictures_and_a_reload_shows_them_again(notebook):
    from playwright.sync_api import expect

    page = notebook.page
    explorer, stepper, viewer = plots(page)
    assert [plot.evaluate(LEGEND_BELOW) for plot in (explorer, stepper, viewer)] == [True] * 3  # the very first picture
    stops = [page.locator(".jp-CodeCell").nth(number).evaluate(TAB_ORDER) for number in range(len(CELLS))]
    assert [[" ".join(stop.split()) for stop in each] for each in stops] == STOPS
    explorer_answers(page, explorer)
    stepper_answers(page, stepper)
    viewer_answers(page, viewer)
    for plot in plots(page):
        assert plot.bounding_box()["width"] > 600

    page.evaluate(AGAIN)
    slider(page, "workers").press("ArrowLeft")
    expect(plots(page)[0].locator(".gtitle")).to_contain_text("3 workers, pageable")
    page.reload()
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    expect(plots(page)[0].locator(".gtitle")).to_contain_text("3 workers, pageable")
    assert notebook.script_errors == []
    assert notebook.outside == []
