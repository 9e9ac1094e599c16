"""Pictures are closed after each test."""

import sys

import pytest


@pytest.fixture(autouse=True)
def close_pictures():
    yield
    cells = sys.modules.get("loaderviz.widgets.cells")
    for picture in list(cells._open.values()) if cells else ():
        picture.close()
