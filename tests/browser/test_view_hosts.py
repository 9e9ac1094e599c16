"""Where a view is looked at: JupyterLab fresh, reopened, untrusted and dark; nbconvert's page; VS Code and Colab."""

from __future__ import annotations

import gzip
import html
import json
import re
from typing import Any

import factory
import pytest

from loaderviz.export import to_html
from loaderviz.timeline import Timeline

pytestmark = pytest.mark.browser

DRAWN = "() => [...document.querySelectorAll('.lv-view')].filter(host => host.lv?.frames > 0).length"
COMMAND = "async ([name, given]) => { await window.jupyterapp.commands.execute(name, given); }"
# All keys that a view handles, and those of JupyterLab's command mode that would change the notebook.
HANDLED = ("+", "-", "0", "[", "]", "?", ".", ",", " ", "Enter", "ArrowDown", "ArrowUp", "ArrowLeft", "ArrowRight")
KEYS = (*"wasdfn", *HANDLED, *"bxcvmyddz", "Escape")


@pytest.fixture
def timeline() -> Timeline:
    return factory.loader("prefetch", 4)


def fragment(timeline: Timeline) -> str:
    """Return the HTML of a timeline's output."""
    text: str = timeline._repr_mimebundle_()["text/html"]
    return text


def wait_drawn(page: Any, count: int) -> None:
    page.wait_for_function(f"count => ({DRAWN})() === count", arg=count)


def test_in_jupyterlab_fresh_dark_with_keys_reopened_and_not_trusted(lab, open_and_run, timeline, tmp_path):
    path = tmp_path / "run.json"
    timeline.save(path)
    lab.write("views", [f"import loaderviz as lv\ntimeline = lv.Timeline.load({str(path)!r})", "timeline", "timeline"])
    notebook = open_and_run("views")
    page = notebook.page
    wait_drawn(page, 2)
    assert not page.evaluate("document.querySelector('.lv-view').lv.view.theme.dark")

    cells = page.locator(".jp-Notebook .jp-Cell").count()
    page.evaluate("document.querySelector('.lv-view').lv.view.ui.stage.focus()")
    for key in KEYS:
        page.keyboard.press(key)
        assert page.locator(".jp-Notebook .jp-Cell").count() == cells, key

    before = page.evaluate("document.querySelector('.lv-view').lv.window")
    page.locator(".lv-view").first.hover()
    page.mouse.wheel(0, 50)
    assert page.evaluate("document.querySelector('.lv-view').lv.window") == before

    page.evaluate(COMMAND, ["apputils:change-theme", {"theme": "JupyterLab Dark"}])
    page.wait_for_function("() => document.querySelector('.lv-view').lv.view.theme.dark")
    page.wait_for_selector("#jupyterlab-splash", state="detached")  # or JupyterLab removes it twice
    page.evaluate(COMMAND, ["apputils:change-theme", {"theme": "JupyterLab Light"}])
    page.wait_for_function("() => !document.querySelector('.lv-view').lv.view.theme.dark")

    page.evaluate(COMMAND, ["notebook:run-all-cells", {}])  # the scripts of an output may run twice
    page.wait_for_function(f"() => ({DRAWN})() === 2 && document.querySelectorAll('.lv-view').length === 2")
    page.evaluate(COMMAND, ["docmanager:save", {}])

    content = lab.call("GET", "contents/views.ipynb")["content"]
    for cell in content["cells"]:
        cell["metadata"].pop("trusted", None)
        cell["outputs"] = [output | {"metadata": {"copied": True}} for output in cell["outputs"]]
    lab.call("PUT", "contents/copied.ipynb", {"type": "notebook", "format": "json", "content": content})
    page.goto(f"{lab.url}/doc/tree/views.ipynb?token={lab.token}&reset")  # nothing is run: what was saved is there
    wait_drawn(page, 2)
    page.goto(f"{lab.url}/doc/tree/copied.ipynb?token={lab.token}&reset")
    page.wait_for_selector(".jp-OutputArea img")
    assert page.locator("img.lv-still, .jp-OutputArea img").count() == 2
    assert page.evaluate(
        "[...document.querySelectorAll('.jp-OutputArea img')].every(picture => picture.naturalWidth > 300)"
    )
    assert page.evaluate(DRAWN) == 0
    assert notebook.script_errors == []
    assert notebook.outside == []


@pytest.mark.parametrize("verdict", [True, False])
def test_four_loaders_are_in_sight_at_once_in_a_notebook_and_each_unfolds(verdict, lab, open_and_run, tmp_path):
    """In a JupyterLab of 1280 x 800, whose notebook has 679 px; with a kernel, and from the saved notebook."""
    for name, each in factory.loaders(4).items():
        each.save(tmp_path / name)
    code = f"""import pathlib, loaderviz as lv
lv.compare({{each: lv.Timeline.load(pathlib.Path({str(tmp_path)!r}) / each) for each in {factory.LOADERS}}},
           verdict={verdict})"""
    lab.write("four", [code])
    page = open_and_run("four").page
    page.set_viewport_size({"width": 1280, "height": 800})
    for round in range(2):
        wait_drawn(page, 1)
        page.wait_for_function("document.querySelector('.lv-view').lv.view.width < 1200")
        view = "document.querySelector('.lv-view').lv"
        told = f"(({{scroll}}) => scroll.scrollHeight <= scroll.clientHeight)({view}.view.ui)"
        rows = f"{view}.lanes().map(row => [row.type, row.name])"
        assert page.evaluate(rows) == [["part", name] for name in factory.LOADERS]
        assert page.evaluate(told)
        high = page.evaluate("document.querySelector('.lv-view').closest('.jp-OutputArea').offsetHeight")
        assert 400 < high <= 679, high
        page.locator(".lv-view").get_by_role("button", name="unfold prefetch").click()
        page.wait_for_function(f"{rows}.some(([, name]) => name === 'copy engine to GPU')")
        assert page.evaluate(told)  # the output has grown
        page.locator(".lv-view").get_by_role("button", name="unfold all").click()
        assert page.evaluate(f"{rows}.filter(([, name]) => name === 'what the GPU does').length") == 0
        assert page.evaluate(f"{rows}.filter(([, name]) => name === 'default stream').length") == 4
        assert page.evaluate(told)
        page.locator(".lv-view").get_by_role("button", name="fold all", exact=True).click()
        assert len(page.evaluate(rows)) == 4
        if not round:
            page.evaluate(COMMAND, ["docmanager:save", {}])
            lab.end_kernels()
            page.goto(f"{lab.url}/doc/tree/four.ipynb?token={lab.token}&reset")


# VS Code puts an output in by innerHTML, then makes each script anew at the end of its wrapper and takes it out again.
VSCODE = """<!doctype html><body class='vscode-dark'><div id='first'></div><div id='second'></div><script>
for (const place of document.querySelectorAll('body > div')) {
    place.innerHTML = TEXT;
    for (const old of [...place.getElementsByTagName('script')]) {
        const made = document.createElement('script');
        made.text = old.innerText;
        for (const name of ['type', 'src', 'nonce', 'noModule', 'async']) if (old[name]) made[name] = old[name];
        place.append(made);
        made.remove();
    }
}</script>"""


def test_as_vs_code_and_colab_show_it(quiet, timeline, tmp_path):
    text = json.dumps(fragment(timeline)).replace("</", "<\\/")
    page = quiet(tmp_path / "code.html", VSCODE.replace("TEXT", text))
    wait_drawn(page, 2)
    assert page.evaluate("[...document.querySelectorAll('.lv-view')].every(host => host.lv.view.theme.dark)")
    inside = html.escape(f"<!doctype html><html theme='dark'><body>{fragment(timeline)}</body></html>")
    text = f'<iframe sandbox="allow-scripts" srcdoc="{inside}" width=900 height=700>'
    other = quiet(tmp_path / "colab.html", text)
    frame = other.frames[1]
    frame.wait_for_function(f"() => ({DRAWN})() === 1")
    assert frame.evaluate("document.querySelector('.lv-view').lv.view.theme.dark")


@pytest.mark.parametrize("sanitize", [False, True])
def test_as_nbconvert_writes_it(sanitize, quiet, timeline, tmp_path):
    nbformat, nbconvert = pytest.importorskip("nbformat"), pytest.importorskip("nbconvert")
    output = nbformat.v4.new_output("execute_result", {"text/html": fragment(timeline), "text/plain": "words"})
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("timeline", outputs=[output])])
    text, _ = nbconvert.HTMLExporter(sanitize_html=sanitize).from_notebook_node(book)
    # The template asks a network for what only formulas need.
    text = text.replace("https://", "data:text/javascript,//")
    page = quiet(tmp_path / "book.html", text)
    if sanitize:
        assert page.locator(".lv-view, .jp-OutputArea img").count() > 0
        assert page.evaluate(DRAWN) == 0
    else:
        wait_drawn(page, 1)


def test_without_decompression_or_scripts_the_still_picture_stays(quiet, timeline, tmp_path):
    without = f"<script>delete globalThis.DecompressionStream</script>{fragment(timeline)}"
    page = quiet(tmp_path / "old.html", without)
    page.wait_for_timeout(300)
    assert page.locator("img.lv-still").is_visible()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_of_a_comparison_is_light_and_no_wider_than_a_window(language, quiet, tmp_path, monkeypatch):
    monkeypatch.setenv("LOADERVIZ_LANGUAGE", language)
    path = to_html(factory.loaders(12), tmp_path / "compared.html")
    text = path.read_text(encoding="utf-8")
    without = re.sub(r'src="data:image[^"]*"', "", text)  # without the still picture
    assert len(without) < len(text) and len(gzip.compress(without.encode(), 6)) < 80_000
    for width in (320, 390, 1280):
        page = quiet(path, width=width)
        page.wait_for_function("() => [...document.querySelectorAll('.lv-view')].every(host => host.lv?.frames > 0)")
        for folded in (True, False):
            wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert wide[0] <= wide[1], (width, folded)
            page.evaluate("document.querySelector('.lv-view').lv.view.toggleAll()")
