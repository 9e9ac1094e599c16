"""The course as a book: its links lead somewhere, it asks no other site, its pictures can be touched."""

import html.parser
from functools import cache
from urllib.parse import unquote

import factory
import pytest

for module in ("sphinx", "myst_nb", "furo"):
    pytest.importorskip(module, reason=f"{module} is missing: pip install -r requirements-dev.txt")

pytestmark = [pytest.mark.notebook, pytest.mark.browser, pytest.mark.timeout(900)]  # two lessons run
LESSON = "04_gpu_resident_slicing"  # it has a view, a plotly figure, predictions and exercises
EXPLORING = "00_start_here"  # it has the explorer


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The folder of a book, in which two lessons have been run."""
    return factory.script("docs/book.py").book(tmp_path_factory.mktemp("book"), (LESSON, EXPLORING)).parent


class Page(html.parser.HTMLParser):
    """What a page names, `links` to other pages, and its own `places`; what the browser would fetch: `parts`."""

    def __init__(self, path):
        super().__init__()
        self.links, self.parts, self.places = set(), set(), {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        has = dict(attributes)
        self.places.add(has.get("id", ""))
        part = has.get("href") if tag == "link" and has.get("rel") != "canonical" else has.get("src")
        self.parts |= {part} if part else set()
        self.links |= {has["href"]} if tag == "a" and "href" in has else set()


def test_every_link_leads_to_a_page_and_a_place_and_every_part_is_in_the_book(pages):
    read = cache(Page)
    wrong, count = [], 0
    for path in pages.rglob("*.html"):
        page = read(path)
        assert not [part for part in page.parts if part.startswith(("http:", "https:", "//"))]
        for link in page.parts | page.links:
            if not link.startswith(("http:", "https:", "data:", "mailto:")):
                file, _, place = link.partition("#")
                target = (path.parent / unquote(file.partition("?")[0])).resolve() if file else path
                there = target.is_file() and (target.suffix != ".html" or unquote(place) in read(target).places)
                wrong += [] if there else [(path.name, link)]
                count += 1
    assert wrong == [] and count > 1000
    assert all((pages / door).is_file() for door in factory.script("docs/site.py").DOORS.values())


@pytest.mark.parametrize("width", [1280, 390])
def test_a_lesson_can_be_read_and_touched_without_network_or_kernel(pages, quiet, width):
    page = quiet(pages / "notebooks" / f"{LESSON}.html", width=width)
    page.wait_for_function("[...document.querySelectorAll('.lv-view')].every(each => each.lv)")
    page.wait_for_selector(".js-plotly-plot .main-svg")
    assert page.locator(".lv-view").count() >= 1
    said = page.locator(".lv-open").all_inner_texts()
    assert [any(word in text for text in said) for word in ("choose before", "have it checked")] == [True, True]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator(".lv-open a").first.click()
    assert page.url.endswith("index.html#open")


@pytest.mark.parametrize("width", [1280, 390])
def test_a_slider_of_the_explorer_moves_in_the_book_without_a_kernel(pages, quiet, width):
    from loaderviz.widgets import explore

    page = quiet(pages / "notebooks" / f"{EXPLORING}.html", width=width)
    explorer = explore(gpu="laptop", batch_size=2048, sample_bytes=3136)  # the lesson's machine and batch
    words = page.locator(".lv-explorer .lv-words")
    words.wait_for()
    assert words.text_content() == explorer.text()
    page.get_by_role("slider", name="workers", exact=True).press("ArrowRight")
    explorer.set(workers=5)
    assert words.text_content() == explorer.text()
    drawn = "Array.from(document.querySelector('.lv-explorer').lv.view.model.columns.start)"
    assert page.evaluate(drawn) == explorer.view.parts[0].bars.start.tolist()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
