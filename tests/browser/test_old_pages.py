"""Pages that a former version wrote, in a browser of today: they are drawn, and ask for nothing."""

import gzip
from pathlib import Path

import pytest

pytestmark = pytest.mark.browser
HERE = Path(__file__).parents[1] / "old_files"
DRAWN = "() => [...document.querySelectorAll('.lv-view')].every(each => each.lv && each.lv.model)"


@pytest.mark.parametrize("name", ["emulated_prefetch", "race"])
def test_a_page_of_a_former_version_is_drawn(name, quiet, tmp_path):
    text = gzip.decompress((HERE / f"{name}.html.gz").read_bytes()).decode()
    page = quiet(tmp_path / f"{name}.html", text)
    page.wait_for_function(DRAWN)
    lanes = page.evaluate("document.querySelector('.lv-view').lv.model.head.parts[0].lanes.length")
    bars = page.evaluate("document.querySelector('.lv-view').lv.model.columns.start.length")
    assert lanes >= 2 and bars > 8
