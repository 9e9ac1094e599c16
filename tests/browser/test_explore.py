"""Explorer, stepper and viewer in a real JupyterLab: they answer to keys, stay on the machine, survive a reload."""

from __future__ import annotations

import json
import urllib.request

import pytest

CELLS = [
    "import loaderviz as lv\nexplorer = lv.explore()\nexplorer",
    "lv.step_through(explorer.timeline)",
    "lv.explore.viewer(explorer.timeline)",
]
BARS = "plot => [...plot.querySelectorAll('.bars .point path')].map(path => path.getAttribute('d')).join()"
AGAIN = """async () => {
    const app = window.jupyterapp;
    await app.commands.execute('notebook:run-all-cells');
    await app.commands.execute('docmanager:save');
}"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # playwright closes its pipes when its loop is collected
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def notebook(lab, open_and_run):
    """The three pictures, one to a cell."""
    cells = [
        {"cell_type": "code", "id": f"cell-{number}", "source": source, "metadata": {}, "outputs": [],
         "execution_count": None}
        for number, source in enumerate(CELLS)
    ]  # fmt: skip
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    content = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    request = urllib.request.Request(
        f"{lab.url}/api/contents/pictures.ipynb", method="PUT", headers={"Authorization": f"token {lab.token}"},
        data=json.dumps({"type": "notebook", "format": "json", "content": content}).encode(),
    )  # fmt: skip
    urllib.request.urlopen(request, timeout=20).close()
    opened = open_and_run("pictures")
    assert [output for output in opened.outputs if output["output_type"] == "error"] == []
    return opened


def plots(page):
    """The three plots, once they are drawn."""
    found = page.locator(".jp-OutputArea .js-plotly-plot")
    for number in range(len(CELLS)):
        found.nth(number).locator(".gtitle").wait_for(state="attached", timeout=30_000)
    assert found.count() == len(CELLS)
    return [found.nth(number) for number in range(len(CELLS))]


def test_keys_move_the_pictures_and_a_reload_shows_them_again(notebook):
    from playwright.sync_api import expect

    page = notebook.page
    explorer, stepper, viewer = plots(page)
    expect(explorer.locator(".gtitle")).to_contain_text("4 workers, pageable, one stream")
    before = explorer.evaluate(BARS)

    handle = page.locator(".widget-slider", has_text="workers").get_by_role("slider")
    handle.focus()
    handle.press("ArrowRight")
    expect(explorer.locator(".gtitle")).to_contain_text("5 workers")
    page.get_by_role("button", name="prefetch").focus()
    page.keyboard.press("Enter")
    expect(explorer.locator(".gtitle")).to_contain_text("5 workers, pinned, non_blocking, side stream, 2 ahead")
    expect(page.locator("pre", has_text="main.wait_event(copied)")).to_have_count(1)
    assert explorer.evaluate(BARS) != before
    copy = page.get_by_role("button", name="copy the code")
    copy.focus()
    copy.press("Enter")
    expect(page.get_by_role("button", name="copied")).to_have_count(1)

    expect(stepper.locator(".gtitle")).to_contain_text("event 1 of")
    cursor = page.locator(".widget-slider", has_text="event").get_by_role("slider")
    cursor.focus()
    cursor.press("ArrowRight")
    cursor.press("ArrowRight")
    expect(stepper.locator(".gtitle")).to_contain_text("event 3 of")
    page.get_by_role("button", name="next event").press("Enter")
    expect(stepper.locator(".gtitle")).to_contain_text("event 4 of")

    whole = viewer.locator(".gtitle").text_content()
    page.get_by_role("button", name="closer").press("Enter")
    expect(viewer.locator(".gtitle")).not_to_have_text(whole)
    page.get_by_role("button", name="all", exact=True).press("Enter")
    expect(viewer.locator(".gtitle")).to_have_text(whole)
    page.get_by_role("button", name="next span").press("Enter")
    expect(page.get_by_role("cell", name="launched by")).to_have_count(1)

    for plot in plots(page):
        assert plot.bounding_box()["width"] > 600
    page.evaluate(AGAIN)
    handle = page.locator(".widget-slider", has_text="workers").get_by_role("slider")
    handle.press("ArrowLeft")
    expect(plots(page)[0].locator(".gtitle")).to_contain_text("3 workers, pageable")
    page.reload()
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    for plot in plots(page):
        plot.locator(".bars .point path").first.wait_for(state="attached")
    expect(plots(page)[0].locator(".gtitle")).to_contain_text("3 workers, pageable")
    assert notebook.script_errors == []
    assert notebook.outside == []
