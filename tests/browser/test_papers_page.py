"""Slides and the handout in a browser: nothing is cut off, keys go on, two pages of paper, nobody is asked."""

import re

import pytest

from loaderviz.workshop import papers

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("more", [0, 40])
def test_the_handout_has_two_pages(quiet, tmp_path, monkeypatch, language, more):
    monkeypatch.setenv("LOADERVIZ_LANGUAGE", language)
    asked = {f"3.{number}": {"title": "A title of usual length"} for number in range(100, 100 + more)}
    monkeypatch.setattr(papers, "ASKED", papers.ASKED | asked)
    paper = quiet(tmp_path / "handout.html", papers.handout()).pdf(prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b", paper)) == 2


def test_each_slide_is_whole_and_keys_go_on(quiet, tmp_path):
    page = quiet(tmp_path / "slides.html", papers.slides("03"))
    page.wait_for_function("document.querySelector('section > div').style.zoom > 0")
    each = "[...document.querySelectorAll('section')].map(each => each.{} - each.{})"
    assert max(page.evaluate(each.format("scrollHeight", "clientHeight"))) <= 1
    assert max(page.evaluate(each.format("scrollWidth", "clientWidth"))) <= 1
    seen = [page.evaluate("Math.round(scrollY / innerHeight)")]
    for key in ("ArrowLeft", "ArrowRight", " ", "PageDown", "PageUp"):
        page.keyboard.press(key)
        seen.append(page.evaluate("Math.round(scrollY / innerHeight)"))
    assert seen == [0, 0, 1, 2, 3, 2]
