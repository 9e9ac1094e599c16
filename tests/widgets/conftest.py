"""The timelines of tests/factory.py are for these tests too; pictures are closed after each test."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture(autouse=True)
def close_pictures():
    yield
    cells = sys.modules.get("loaderviz.widgets.cells")
    for picture in list(cells._open.values()) if cells else ():
        picture.close()
