"""The notebooks in a real JupyterLab and a real browser: cells run, figures are drawn, nothing leaves the machine."""

from pathlib import Path

import pytest
from labserver import opened_page

NAMES = sorted(path.stem for path in (Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
FIGURE = "application/vnd.plotly.v1+json"
# The marks that are in the picture: bars, and the areas under curves.
DRAWN = "plot => plot.querySelectorAll('.bars .point path, .scatterlayer .trace path').length"
# Of each view, once it is drawn: its width and height, and how many bars it has.
# What stands in for a widget is hidden beside it.
VIEWS = """() => Promise.all([...document.querySelectorAll('.lv-view:not([data-lv-stand])')].map(async host => {
    await host.lv.ready;
    const box = host.getBoundingClientRect();
    return [box.width, box.height, host.lv.head.rows];
}))"""

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("name", NAMES)
def test_all_cells_run_and_all_figures_are_drawn(name, open_and_run):
    notebook = open_and_run(name)

    problems = [output for output in notebook.outputs if output["output_type"] == "error"]
    assert [f"{problem['ename']}: {problem['evalue']}" for problem in problems] == []
    assert all(cell["count"] for cell in notebook.cells), "a cell did not run"

    html = ["".join(output.get("data", {}).get("text/html", "")) for output in notebook.outputs]
    for number, output in enumerate(notebook.outputs):  # what a picture shows in words: in its output, or below a chart
        if FIGURE in output.get("data", {}):
            assert 'class="lv-twin"' in html[number + 1]
        assert html[number].count('class="lv-view"') <= html[number].count('class="lv-twin"')
    views = sum(
        'class="lv-view"' in "".join(output.get("data", {}).get("text/html", "")) for output in notebook.outputs
    )
    drawn = notebook.page.evaluate(VIEWS)
    assert views
    assert len(drawn) == views
    assert all(width > 600 and height > 200 and bars > 5 for width, height, bars in drawn), drawn
    figures = [output["data"][FIGURE] for output in notebook.outputs if FIGURE in output.get("data", {})]
    plots = notebook.page.locator(".jp-OutputArea .js-plotly-plot")
    for number, figure in enumerate(figures):
        plots.nth(number).locator(".gtitle").wait_for(state="attached")
        assert plots.nth(number).evaluate(DRAWN) >= sum(trace.get("visible", True) for trace in figure["data"]) > 0
        box = plots.nth(number).bounding_box()
        assert box is not None
        assert box["width"] > 600
        assert box["height"] > 200
    assert plots.count() == len(figures)

    assert notebook.script_errors == []
    assert notebook.outside == []
    assert notebook.refused == []


@pytest.mark.parametrize("name", ["zh/00_start_here", "solutions/00_start_here"])
def test_a_notebook_in_a_folder_of_the_course_is_whole_when_it_is_opened(name, chromium, lab):
    with opened_page(chromium, lab) as opened:
        opened.page.goto(f"{lab.url}/doc/tree/{name}.ipynb?token={lab.token}")
        opened.page.wait_for_selector(".jp-RenderedMarkdown img")
        opened.page.wait_for_load_state("networkidle")
        assert opened.page.evaluate("[...document.images].every(image => image.naturalWidth)")
        assert opened.refused == opened.outside == []
