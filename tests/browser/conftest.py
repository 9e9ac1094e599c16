"""One JupyterLab and one Chromium for all tests; a page and its kernel for each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "view"))
sys.path.insert(0, str(Path(__file__).parent))
from labserver import Lab, Missing, Opened, opened_page, started_browser, started_lab


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    try:
        with started_browser() as browser:
            yield browser
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory, chromium: Any) -> Iterator[Lab]:
    try:
        with started_lab(tmp_path_factory.mktemp("lab")) as lab:
            yield lab
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def open_and_run(chromium: Any, lab: Lab) -> Iterator[Callable[[str], Opened]]:
    """Return a function that opens a notebook by name and runs all its cells."""
    with opened_page(chromium, lab) as opened:
        yield opened.run
