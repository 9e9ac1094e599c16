"""The explorer as a page: its controls move picture, numbers, words and code, without kernel and network."""

import gzip
import json
import random
import re
from pathlib import Path

import pytest
from test_engine import ASK, EDGES, any_settings, check

from loaderviz import words
from loaderviz.emulator.replay import PRESETS
from loaderviz.view.picture import EXPLORER, module
from loaderviz.widgets import explore
from loaderviz.widgets.explorer import tables

pytestmark = pytest.mark.browser
# Of each control that Tab reaches: its name, and what a screen reader says of a slider's value.
NAMED = """() => [...document.querySelectorAll('.lv-controls :is(input, select)')].filter(each => !each.disabled)
    .map(each => [each.labels[0].textContent, each.getAttribute('aria-valuetext')])"""
LV = "document.querySelector('.lv-explorer').lv"
BARS = f"Array.from({LV}.view.model.columns.start)"


@pytest.fixture
def shown(quiet, tmp_path):
    """Return a function: the page of an explorer, which is quiet."""

    def page_of(explorer, width=1280, **options):
        path = explorer if isinstance(explorer, Path) else explorer.to_html(tmp_path / "page.html")
        return quiet(path, width=width, **options)

    return page_of


def slider(page, name):
    return page.get_by_role("slider", name=name, exact=True)


def said(page):
    return page.locator(".lv-words").text_content()


def test_each_control_has_a_name_and_tells_its_value_with_its_unit(shown):
    page = shown(explore("prefetch"))
    told = dict(page.evaluate(NAMED))
    assert list(told) == [
        "GPU", "pinned copy rate", "pageable copy rate", "the data set is in", "batch size", "size of a sample",
        "compute per batch", "kernels per batch", "or type values", "workers", "workers are",
        "ranks on the host", "CPU work a sample", "pin_memory=True", "non_blocking=True", "copy on a side stream",
        "batches ahead", "memory kept by",
    ]  # fmt: skip
    assert [value for value in told.values() if value] == [
        "25 GB/s", "10 GB/s", "4,096 samples", "784 B", "880 µs", "8 kernels", "4 workers", "1 rank", "nothing",
        "2 batches",
    ]  # fmt: skip


def test_keys_move_picture_numbers_words_and_code_as_python_has_them(shown):
    page = shown(explorer := explore())
    assert said(page) == explorer.text()
    slider(page, "workers").press("ArrowRight")
    explorer.set(workers=5)
    assert said(page) == explorer.text()
    slider(page, "batch size").press("ArrowLeft")  # brings its work
    explorer.set(batch_size=2048, compute=440_000)
    assert said(page) == explorer.text()
    page.get_by_label("GPU", exact=True).select_option("h200")  # brings its link
    explorer.set(gpu="h200", pinned_rate=55_430_000_000, pageable_rate=page.evaluate(f"{LV}.settings.pageable_rate"))
    assert said(page) == explorer.text() and page.evaluate(f"{LV}.settings") == vars(explorer.settings)
    for name, preset in PRESETS.items():
        page.get_by_role("button", name=name, exact=True).press("Enter")
        explorer.set(**preset)
        assert said(page) == explorer.text()
        assert page.locator(".lv-code pre").text_content() == explorer.program.text
        assert page.locator(".lv-numbers .lv-value").first.text_content() == words.duration(explorer.summary.step)
        assert page.evaluate(BARS) == explorer.view.parts[0].bars.start.tolist()
        assert page.locator("button[aria-pressed=true]").all_text_contents() == [name]
    assert all(slider(page, name).is_disabled() for name in ("workers", "batches ahead"))


def test_workers_are_threads_by_keys_and_so_much_of_a_fetch_has_the_lock(shown):
    page = shown(explorer := explore(fetch_per_sample=1_000))
    kind, part = page.get_by_label("workers are", exact=True), slider(page, "fetch in Python")
    assert kind.locator("option").all_text_contents() == ["processes", "threads"] and part.is_disabled()
    kind.focus()
    page.keyboard.press("t")
    part.press("ArrowLeft")
    assert part.get_attribute("aria-valuetext") == "90 %" and "lock" in part.get_attribute("title")
    explorer.set(threads=True, python=900)
    assert said(page) == explorer.text() and "4 threads, 90 % of a fetch in Python" in explorer.text()
    assert page.locator(".lv-code pre").text_content() == explorer.program.text
    assert page.evaluate(BARS) == explorer.view.parts[0].bars.start.tolist()
    slider(page, "workers").press("Home")
    assert kind.is_disabled() and part.is_disabled()


def test_the_former_setting_stays_as_an_outline_on_an_axis_of_one_length(shown):
    page = shown(explorer := explore())
    axis = page.evaluate(f"{LV}.view.head.axis")
    before = explorer.summary.step
    page.get_by_role("button", name="prefetch").click()
    explorer.set(**PRESETS["prefetch"])
    assert axis == page.evaluate(f"{LV}.view.head.axis") > explorer.timeline.duration
    told = page.locator(".lv-picture .subtitle").text_content()
    now = explorer.summary.step
    faster = f"{words.duration(now)} a step instead of {words.duration(before)}: {words.times(before / now)} as fast"
    assert told == faster and page.evaluate(f"{LV}.view.former !== null")


def test_what_does_not_fit_and_what_means_nothing_is_said_and_the_picture_stays(shown):
    page = shown(explorer := explore(gpu="t4", sample_bytes=602_112, batch_size=64))
    bars, alert = page.evaluate(BARS), page.get_by_role("alert")
    page.get_by_role("button", name="resident").click()
    assert "do not fit into the memory of this GPU. The picture still shows" in alert.text_content()
    assert page.evaluate(BARS) == bars
    page.get_by_role("button", name="blocking").click()
    assert alert.text_content() == "" and said(page) == explorer.text()
    field = page.get_by_label("or type values")
    for text, wrong in {"wokers=3": "no setting wokers", "3": "sets nothing", "workers=-1": "from 0 to 64"}.items():
        field.fill(text)
        field.press("Enter")
        assert wrong in alert.text_content()
    field.fill("workers=3, batch_size=1000")
    field.press("Enter")
    explorer.set(workers=3, batch_size=1000)
    assert alert.text_content() == field.input_value() == "" and said(page) == explorer.text()
    assert slider(page, "batch size").get_attribute("aria-valuetext") == "1,000 samples"


@pytest.mark.parametrize("width", [320, 390, 800, 1280])
def test_it_fits_into_a_window_and_has_a_picture_without_scripts(shown, width):
    page = shown(explorer := explore(), width)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for row in page.locator(".lv-row").all():
        assert row.evaluate("node => node.scrollWidth <= node.clientWidth + 1"), row.text_content()
    drawn = f"{LV}.view.drawn.rects + {LV}.view.drawn.buckets > 20"
    page.wait_for_function(drawn)
    page = shown(explorer, width, java_script_enabled=False)
    assert page.locator("img.lv-still").is_visible() and explorer.text() in page.locator("body").inner_text()


# The lines of the code that its panel cuts through, at its top and its bottom, and whether some are above it.
CUT = """() => {
    const pre = document.querySelector('.lv-code pre'), range = document.createRange();
    range.selectNodeContents(pre);
    const top = pre.getBoundingClientRect().top + pre.clientTop, bottom = top + pre.clientHeight;
    const isCut = each => [top, bottom].some(edge => each.top < edge - 1 && each.bottom > edge + 1);
    return [pre.scrollTop > 0, [...range.getClientRects()].filter(isCut).map(each => each.top - top)];
}"""


@pytest.mark.parametrize("width", [390, 1280])
def test_the_panel_of_the_code_shows_whole_lines_where_the_loop_is(shown, width):
    page = shown(explore("prefetch"), width)
    page.wait_for_function("document.querySelector('.lv-code pre').scrollTop > 0")
    assert page.evaluate(CUT) == [True, []]


def test_a_slider_moves_in_what_nbconvert_makes_of_a_saved_notebook(shown, tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    nbconvert = pytest.importorskip("nbconvert")
    cells = ["import loaderviz as lv\nlv.explore()", "lv.explore('prefetch')"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
    nbclient.NotebookClient(book, timeout=240, kernel_name="python3").execute()
    nbformat.write(book, tmp_path / "saved.ipynb")  # from here on there is no kernel
    saved = nbformat.read(tmp_path / "saved.ipynb", as_version=4)
    text, _ = nbconvert.HTMLExporter().from_notebook_node(saved)
    path = tmp_path / "saved.html"
    # What asks a network is for formulas and widgets only.
    path.write_text(text.replace("https://", "data:text/javascript,//"), encoding="utf-8")
    page = shown(path)
    for number, (preset, settings) in enumerate(((None, {}), ("prefetch", {"depth": 3}))):
        mine = page.locator(".lv-explorer").nth(number)
        mine.scroll_into_view_if_needed()
        explorer = explore(preset, **settings) if preset else explore()
        explorer.set(workers=5)
        mine.get_by_role("slider", name="workers", exact=True).press("ArrowRight")
        if settings:
            mine.get_by_role("slider", name="batches ahead", exact=True).press("ArrowRight")
        assert mine.locator(".lv-words").text_content() == explorer.text()
        assert mine.locator(".lv-code pre").text_content() == explorer.program.text


def test_a_browser_works_out_what_python_does_as_node_does(chromium):
    """The same 20 edges and 300 settings as in tests/view/test_engine.py."""
    page, script = chromium.new_page(), module(*EXPLORER)
    asks = f"""async ([script, given]) => {{
        const address = URL.createObjectURL(new Blob([script], {{ type: "text/javascript" }}));
        return ({ASK})(given, await import(address));
    }}"""

    def in_browser(expression, all_):
        given = {"tables": tables(), "expression": expression, "all": all_}
        return [json.loads(each) for each in page.evaluate(asks, [script, given])]

    found = check(in_browser, [*EDGES, *(any_settings(random.Random(seed)) for seed in range(300))])
    assert sum(len(each.get("rows", ())) for each in found) > 10_000
    page.close()


LATIN = re.compile(r"[A-Za-z]{3,}")
# What a reader of the picture sees, hears, or reads above a pointer, but for the code, and what CUDA names so.
READ = f"""() => {{
    const {{ root, ui }} = {LV}.view, texts = [ui.legend, ui.help, ui.detail, ui.heads, ui.tip, ui.wheres, ui.live];
    const attributes = [...root.querySelectorAll('[title], [aria-label], [placeholder]')].flatMap(each =>
        ['title', 'aria-label', 'placeholder'].map(name => each.getAttribute(name)).filter(Boolean));
    return [...texts.flatMap(each => [...each.querySelectorAll('*')].filter(node => !node.children.length)
        .map(node => node.textContent)), ...attributes].filter(Boolean);
}}"""


@pytest.mark.parametrize("threads", [False, True])
def test_everything_in_the_picture_is_in_the_readers_language(shown, monkeypatch, threads):
    monkeypatch.setenv("LOADERVIZ_LANGUAGE", "zh")
    page = shown(explorer := explore("prefetch", threads=threads, fetch_per_sample=1_000))
    page.wait_for_function(f"{LV}.view.drawn.rects + {LV}.view.drawn.buckets > 20")
    x, y = page.evaluate(f"""(view => {{
        const isKernel = bar => view.model.style(bar).key === 'compute';
        const bar = [...view.model.columns.batch.keys()].find(isKernel), {{ over }} = view.ui;
        view.select(bar);
        over.scrollIntoView({{ block: 'center' }});
        const box = over.getBoundingClientRect(), rect = view.rect(bar);
        return [box.x + rect.x + rect.width / 2, box.y + rect.y + rect.height / 2];
    }})({LV}.view)""")
    page.mouse.move(x, y)
    page.wait_for_function(f"!{LV}.view.ui.tip.hidden && {LV}.view.ui.live.textContent")
    allowed = {
        "GPU",
        "CUDA",
        "Esc",
        "Enter",
        "ctrl",
        "memset",
        "DataLoader",
        "rank",
        "Python",
        "GIL",
        "non",
        "blocking",
        "pin",
        "memory",
    }
    allowed |= {word for name in explorer.timeline.names for word in LATIN.findall(name)}
    texts = page.evaluate(READ)
    assert len(texts) > 60
    assert [text for text in texts if set(LATIN.findall(text)) - allowed] == []


def test_a_page_of_the_explorer_is_light(tmp_path):
    for language in ("en", "zh"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LOADERVIZ_LANGUAGE", language)
            text = explore().to_html(tmp_path / "page.html").read_text(encoding="utf-8")
        without = re.sub(r'src="data:image[^"]*"', "", text)  # without its still picture
        assert len(gzip.compress(without.encode(), 6)) < 80_000
