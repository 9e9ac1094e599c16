"""The notebooks in a real JupyterLab and a real browser: cells run, figures are drawn, nothing leaves the machine."""

import pytest
from labserver import opened_page
from test_notebooks import OPENED, is_as_given, nbformat, read

FIGURE = "application/vnd.plotly.v1+json"
# The marks that are in the picture: bars, and the areas under curves.
DRAWN = "plot => plot.querySelectorAll('.bars .point path, .scatterlayer .trace path').length"
# The module of the views is loaded after the output that asks for it.
MOUNTED = "() => [...document.querySelectorAll('.lv-view')].every(host => host.lv)"
# Of each view, once it is drawn: its width and height, and how many bars it has.
# What stands in for a widget is hidden beside it.
OURS = ".lv-view:not([data-lv-stand], .lv-explorer .lv-view)"
VIEWS = f"""() => Promise.all([...document.querySelectorAll('{OURS}')].map(async host => {{
    await host.lv.ready;
    const box = host.getBoundingClientRect();
    return [box.width, box.height, host.lv.head.rows];
}}))"""

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("name", OPENED)
def test_all_cells_run_and_all_figures_are_drawn(name, open_and_run):
    notebook = open_and_run(name)

    problems = [output for output in notebook.outputs if output["output_type"] == "error"]
    assert [f"{problem['ename']}: {problem['evalue']}" for problem in problems] == []
    assert all(cell["count"] for cell in notebook.cells), "a cell did not run"
    given = read(name)
    for cell, ran in zip((cell for cell in given.cells if cell.cell_type == "code"), notebook.cells, strict=True):
        cell.outputs = [nbformat.from_dict(output) for output in ran["outputs"]]
    is_as_given(given, name)

    html = ["".join(output.get("data", {}).get("text/html", "")) for output in notebook.outputs]
    for number, output in enumerate(notebook.outputs):  # what a picture shows in words: in its output, or below a chart
        if FIGURE in output.get("data", {}):
            assert 'class="lv-twin"' in html[number + 1]
        assert html[number].count('class="lv-view"') <= html[number].count('class="lv-twin"')
    views = sum(
        'class="lv-view"' in "".join(output.get("data", {}).get("text/html", "")) for output in notebook.outputs
    )
    notebook.page.wait_for_function(MOUNTED)
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


ASKED = [
    "from loaderviz.workshop import break_it, claims, lesson03, predict, quiz\n"
    "guess = predict('Which share is `hidden`?', ['none', 'half of `a<b>`', 'all of it'], 'none')\nguess",
    "claims.card('rate')",
    "break_it.deal(1)[0]",
    "quiz.Question(None, 'Who carries them?', ['the host', 'the GPU'], 'the host')",
    "lesson03.overlap",
]
# The words that are seen in each cell's output.
SEEN = """() => [...document.querySelectorAll('.jp-CodeCell')].map(cell =>
    [...cell.querySelectorAll('.jp-OutputArea-output')].filter(output => output.offsetHeight)
    .map(output => output.innerText.replace(/\\s+/g, ' ')).join(' '))"""


def test_a_prediction_answers_to_keys_and_is_there_without_its_kernel(lab, chromium, open_and_run, tmp_path):
    from playwright.sync_api import expect

    expect.set_options(timeout=30_000)
    lab.write("asked", ASKED)
    notebook = open_and_run("asked")
    page, cells = notebook.page, len(ASKED)
    assert [output for output in notebook.outputs if output["output_type"] == "error"] == []
    expect(page.locator(".lv-choices")).to_have_count(4)
    assert page.locator(".lv-prediction:visible").count() == 0  # it stands in where there are no buttons
    assert "`" not in "".join(page.evaluate(SEEN)) and page.locator(".lv-choices code").all_inner_texts()[1] == "a<b>"

    group = page.locator(".lv-choices").first
    page.locator(".jp-CodeCell .cm-content").first.click()
    page.keyboard.press("Escape")
    for _ in range(6):  # past the buttons of the cell
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.type === 'radio'"):
            break
    # The kernel's answer, which is what the file keeps, comes after the buttons'.
    said = "document.body.textContent.replaceAll('`', '').includes('{} (you said this)')"
    for key, chosen in (("ArrowDown", 1), ("ArrowDown", 2), ("ArrowDown", 0), ("ArrowUp", 2), ("ArrowUp", 1)):
        page.keyboard.press(key)
        page.wait_for_function(said.format(("none", "half of a<b>", "all of it")[chosen]))
        expect(group.get_by_role("radio").nth(chosen)).to_be_checked()
        expect(group.get_by_role("radio").nth(chosen)).to_be_focused()
    for key in "ddbaxm":  # in JupyterLab's command mode they delete, make, cut and change cells
        page.keyboard.press(key)
    assert page.locator(".jp-CodeCell").count() == cells
    expect(group.get_by_role("status")).to_contain_text("You said: half of a<b>.")

    page.keyboard.press("Control+s")  # the others stay JupyterLab's
    page.wait_for_function("!window.jupyterapp.shell.currentWidget.context.model.dirty")
    saved = lab.call("GET", "contents/asked.ipynb")["content"]
    notebook.lab.end_kernels()
    page.goto("about:blank")
    page.goto(f"{lab.url}/doc/tree/asked.ipynb?token={lab.token}&reset")  # nothing is run: what was saved is there
    expect(page.locator(".lv-prediction:visible")).to_have_count(4)
    page.wait_for_function("document.body.textContent.includes('model not found')")
    page.wait_for_function("!document.body.textContent.includes('Loading widget')")
    told = page.evaluate(SEEN)
    assert not [text for text in told if "rror" in text or "Loading" in text or "`" in text]
    assert "half of a<b> (you said this)" in told[0] and told[0].count("you said") == 1
    for words, text in zip(("it depends", "early-read", "the GPU", "Exercise 3.1"), told[1:], strict=True):
        assert words in text

    assert notebook.script_errors == notebook.outside == notebook.refused == []

    nbformat, nbconvert = pytest.importorskip("nbformat"), pytest.importorskip("nbconvert")
    text, _ = nbconvert.HTMLExporter().from_notebook_node(nbformat.from_dict(saved))
    (tmp_path / "asked.html").write_text(text.replace("https://", "about:blank#"), encoding="utf-8")
    page.goto((tmp_path / "asked.html").as_uri())
    assert page.get_by_text("half of a<b> (you said this)").is_visible()
    assert page.locator(".lv-prediction:visible").count() == 4
