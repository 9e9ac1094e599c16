"""One JupyterLab and one Chromium for all tests; a page and its kernel for each."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "view"))
sys.path.insert(0, str(Path(__file__).parent))
from labserver import Lab, Missing, Opened, opened_page, started_browser, started_lab

OWN = re.compile("file:|data:|blob:")  # what a page has by itself


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    try:
        with started_browser() as browser:
            yield browser
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory, chromium: Any, kernels: None) -> Iterator[Lab]:
    try:
        with started_lab(tmp_path_factory.mktemp("lab")) as lab:
            yield lab
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def quiet(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Return a function that opens a file, or a text as one: no page of the test may fail or ask a network."""
    contexts, problems = [], list[str]()

    def page_of(path: Path, text: str | None = None, width: int = 1280, **options: Any) -> Any:
        if text is not None:
            path.write_text(text, encoding="utf-8")
        contexts.append(chromium.browser.new_context(viewport={"width": width, "height": 900}, **options))
        page = contexts[-1].new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
        page.on("request", lambda asked: OWN.match(asked.url) or problems.append(asked.url))
        page.goto(path.as_uri())
        return page

    yield page_of
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture
def open_and_run(chromium: Any, lab: Lab) -> Iterator[Callable[[str], Opened]]:
    """Return a function that opens a notebook by name and runs all its cells."""
    with opened_page(chromium, lab) as opened:
        yield opened.run
