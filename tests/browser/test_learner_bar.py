"""The bar of progress and the questions of recall in JupyterLab: with a kernel, and copied without trust."""

import re

import pytest

pytestmark = pytest.mark.browser
CELLS = [
    "import os\nos.environ['LOADERVIZ_PROGRESS'] = 'own.jsonl'\nfrom loaderviz import workshop",
    "from loaderviz.workshop.rooms import heard\n"
    "for told in ('0.1', 'passed'), ('1.1', 'not yet'), ('1.2', 'crashed'): heard('check', *told)",
    "workshop.progress()",
    "workshop.recall(3)",
]
BAR = """() => [...document.querySelectorAll('.lv-progress span span')].map(cell => {
    const look = getComputedStyle(cell); return [cell.title, look.backgroundColor, look.display] })"""


def test_the_bar_is_drawn_without_trust_and_a_question_answers_at_once(lab, open_and_run):
    lab.write("course", CELLS)
    notebook = open_and_run("course")
    page = notebook.page
    page.set_viewport_size({"width": 1280, "height": 800})
    cells = page.evaluate(BAR)
    assert len(cells) > 20 and {shown for _, _, shown in cells} == {"inline-block"}
    looks = {title[:3]: color for title, color, _ in cells}
    assert looks["0.1"] == "rgb(30, 125, 76)" and len({looks[each] for each in ("0.1", "1.1", "1.2", "3.1")}) == 4
    assert page.evaluate("(() => { const bar = document.querySelector('.lv-progress'); "
                         "return bar.scrollWidth <= bar.clientWidth && bar.offsetHeight < 160 })()")  # fmt: skip
    first = page.locator(".lv-choices").first
    first.locator("input").first.check()
    first.locator("p", has_text=re.compile("Right!|Not this time")).wait_for()
    assert page.locator(".lv-choices").count() == 2
    content = lab.call("GET", "contents/course.ipynb")["content"]
    for cell, ran in zip(content["cells"], notebook.cells, strict=True):
        cell["metadata"].pop("trusted", None)
        cell["outputs"] = [each | {"metadata": {"copied": True}} for each in ran["outputs"] if "metadata" in each]
    lab.call("PUT", "contents/copied.ipynb", {"type": "notebook", "format": "json", "content": content})
    page.goto(f"{lab.url}/doc/tree/copied.ipynb?token={lab.token}&reset")
    page.wait_for_selector(".lv-progress")
    assert page.evaluate(BAR) == cells and page.locator(".lv-prediction li").count() == 6  # in place of buttons
    assert notebook.outside == []
