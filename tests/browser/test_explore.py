"""Explorer, stepper and viewer in a real JupyterLab: they answer to keys, stay on the machine, survive their kernel."""

import pytest

CELLS = [
    "import loaderviz as lv\nexplorer = lv.explore()\nexplorer",
    "lv.step_through(explorer.timeline)",
    "from loaderviz.widgets import viewer\nviewer(explorer.timeline, color='kind')",
]
# What Tab reaches beside the views, in the order of the page: its visible words, or those of its label.
TAB_ORDER = """cell => [...cell.querySelectorAll('button, input, select, [role=slider], [tabindex="0"]')]
    .filter(each => each.closest('.jupyter-widgets, [data-lv-live]') && !each.closest('.lv-view'))
    .filter(each => each.tabIndex >= 0 && !each.disabled && each.offsetParent !== null)
    .map(each => ({PRE: 'code', BUTTON: each.innerText.trim()})[each.tagName]
        || each.closest('label')?.innerText || each.labels?.[0]?.innerText
        || each.closest('.widget-inline-hbox')?.querySelector('.widget-label')?.innerText
        || each.outerHTML.slice(0, 80))"""
STOPS = [
    [
        "blocking", "pinned", "prefetch", "resident", "GPU", "pinned copy rate", "pageable copy rate",
        "the data set is in", "batch size", "size of a sample", "compute per batch", "kernels per batch",
        "or type values", "workers", "workers are", "ranks on the host", "CPU work a sample", "pin_memory=True",
        "non_blocking=True",
        "copy on a side stream", "batches ahead",
        "copy the code", "code",
    ],
    ["◀ event before", "next event ▶", "event"],
    [],
]  # fmt: skip
# Are three views seen and drawn, all of them widgets, or none?
DRAWN = """live => {
    const seen = [...document.querySelectorAll('.lv-view')].filter(host => host.offsetHeight && host.lv);
    const drawn = seen.filter(host => host.lv.drawn.rects + host.lv.drawn.buckets > 20);
    return seen.length === 3 && drawn.every(host => 'lvLive' in host.dataset === live) && drawn.length === 3;
}"""
ERRORS = """() => [...document.querySelectorAll('.jupyter-widgets')]
    .filter(each => each.offsetHeight && /^Error|not found/.test(each.textContent.trim())).length"""
SAVE = "() => window.jupyterapp.commands.execute('docmanager:save')"

pytestmark = pytest.mark.browser


@pytest.fixture
def notebook(lab, open_and_run):
    """The three pictures, one to a cell."""
    lab.write("pictures", CELLS)
    opened = open_and_run("pictures")
    assert [output for output in opened.outputs if output["output_type"] == "error"] == []
    opened.page.wait_for_function("document.querySelectorAll('[data-lv-live].lv-view').length === 3", timeout=30_000)
    return opened


STATUS = "p[role=status]:visible"
LIVE = ".lv-explorer[data-lv-live]"


def slider(page, name):
    return page.get_by_role("slider", name=name, exact=True)


def explorer_answers(page, expect):
    """Sliders and buttons change view, words and code."""
    words = page.locator(STATUS).first
    slider(page, "workers").press("ArrowRight")
    expect(words).to_contain_text("5 workers, pageable")
    page.get_by_role("button", name="prefetch").press("Enter")
    expect(words).to_contain_text("2 ahead: GPU computes")
    page.wait_for_function("document.querySelector('[data-lv-live].lv-view').lv.head.title.includes('2 ahead')")
    expect(page.locator("pre:visible", has_text="main.wait_event(copied)")).to_have_count(1)
    page.get_by_role("button", name="copy the code").press("Enter")
    expect(page.get_by_role("button", name="copied")).to_have_count(1)


def stepper_answers(page, expect):
    """The cursor goes by slider and button, and by the view's own Play."""
    words = page.locator(STATUS).nth(1)
    event = page.locator(".widget-slider", has_text="event").get_by_role("slider")
    for _ in range(2):
        now = words.text_content()
        event.press("ArrowRight")
        expect(words).not_to_have_text(now)  # Python has it, too: the button adds to what it knows
    expect(event).to_have_attribute("aria-valuetext", "2")
    page.get_by_role("button", name="next event").press("Enter")
    expect(event).to_have_attribute("aria-valuetext", "3")
    now = words.text_content()
    page.evaluate("document.querySelectorAll('[data-lv-live].lv-view')[1].lv.play()")
    expect(words).not_to_have_text(now)
    page.evaluate("document.querySelectorAll('[data-lv-live].lv-view')[1].lv.pause()")


def viewer_answers(page, expect):
    """A bar that is selected is told about, and the numbers are those of the window."""
    view = "document.querySelectorAll('[data-lv-live].lv-view')[2].lv"
    page.evaluate(f"{view}.go(1e6, 2e6)")
    expect(page.locator(STATUS).nth(2)).to_contain_text("1 ms to 2 ms: GPU computes")
    page.evaluate(f"{view}.select(30)")
    expect(page.locator("[data-lv-live].lv-view").nth(2).locator(".detail")).to_contain_text("batch")


def test_keys_move_the_pictures_and_without_a_kernel_they_are_still_there(notebook):
    page = notebook.page
    from playwright.sync_api import expect

    expect.set_options(timeout=30_000)  # on a busy machine the kernel takes its time to answer
    page.wait_for_function(DRAWN, arg=True, timeout=20_000)
    stops = [page.locator(".jp-CodeCell").nth(number).evaluate(TAB_ORDER) for number in range(len(CELLS))]
    assert [[" ".join(stop.split()) for stop in each] for each in stops] == STOPS
    page.set_viewport_size({"width": 1280, "height": 800})
    page.evaluate("document.querySelector('[data-lv-live].lv-view').closest('.jp-OutputArea-output').scrollIntoView()")
    picture, code = (
        page.locator("[data-lv-live].lv-view").first,
        page.locator(f"{LIVE} pre"),
    )
    before, beside = picture.bounding_box(), code.bounding_box()
    assert beside["x"] > before["x"] + before["width"] and beside["y"] + beside["height"] <= 800 - 30  # the status bar
    explorer_answers(page, expect)
    assert picture.bounding_box()["height"] == before["height"]
    stepper_answers(page, expect)
    viewer_answers(page, expect)

    page.evaluate(SAVE)
    notebook.lab.end_kernels()
    page.wait_for_timeout(2_000)  # a kernel takes its time to end
    page.reload()
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    page.wait_for_function("document.querySelectorAll('[data-lv-stand]').length === 3", timeout=30_000)
    page.wait_for_timeout(2_000)  # the widgets fail in their own time
    page.wait_for_function(DRAWN, arg=False, timeout=20_000)
    assert page.evaluate(ERRORS) == 0
    assert page.get_by_text("run this cell").locator("visible=true").count() == 2
    slider(page, "workers").press("ArrowRight")  # of the explorer, which needs no kernel
    expect(page.locator(STATUS)).to_contain_text("5 workers, pageable")
    assert notebook.outside == []


STEPS = [
    """import loaderviz as lv, torch
def loop():
    weight = torch.rand(784, 4096).to("cuda")
    for number, batch in enumerate(torch.rand(6, 4096, 784)):
        with torch.profiler.record_function(f"batch {number}: 4096 samples"):
            loss = torch.nn.functional.cross_entropy(batch.to("cuda") @ weight, torch.zeros(4096).long().to("cuda"))
with lv.record(on="laptop", host="laptop") as recording:
    loop()
stepper = lv.step_through(recording.timeline)
stepper.step(30)
stepper""",
    "busy = lv.step_through(lv.explore('prefetch', workers=6).timeline)\nbusy.step(100)\nbusy",
]
# Of a stepper: how high it is; and, below its slider, where its source line ends, and whether all of it is seen.
STEPPER = """number => {
    const boxes = [...document.querySelectorAll('.jp-OutputArea')],
        box = boxes.filter(each => each.querySelector('[role=slider]'))[number];
    const line = [...box.querySelectorAll('div')].filter(each => each.textContent.startsWith('▶')).at(-1);
    const place = line.getBoundingClientRect(), top = box.querySelector('[role=slider]').getBoundingClientRect().top;
    return [box.offsetHeight, place.bottom - top, line.scrollWidth <= line.clientWidth && place.right <= innerWidth];
}"""


def test_a_stepper_has_slider_picture_and_source_line_in_one_window(lab, open_and_run):
    lab.write("steps", STEPS)
    page = open_and_run("steps").page
    page.set_viewport_size({"width": 1280, "height": 800})  # of which a notebook has 679 px
    page.wait_for_function(
        "[...document.querySelectorAll('[data-lv-live].lv-view')].filter(host => host.lv?.frames > 0).length === 2"
    )
    for number in range(2):
        live = f"document.querySelectorAll('[data-lv-live].lv-view')[{number}].lv"
        assert page.evaluate(f"{live}.time") > 0  # where it was moved to before it was shown
        for key in ("", "ArrowRight", "Home", "End"):
            if key:
                now = page.evaluate(f"{live}.time")
                page.get_by_role("slider").nth(number).press(key)
                page.wait_for_function(f"now => {live}.time !== now", arg=now)
                page.wait_for_timeout(300)  # the panels follow
            high, below, whole = page.evaluate(STEPPER, number)
            assert high <= 679 and below < 300 and whole, (number, key, high, below)
        ui = page.evaluate(f"(({{scroll}}) => [scroll.scrollHeight, scroll.clientHeight])({live}.view.ui)")
        assert number or ui[0] <= ui[1]


def test_three_views_and_three_explorers_run_five_times(lab, open_and_run):
    """Each time there are three of each, drawn, and nothing is left of those before."""
    made = "import loaderviz as lv\ntimeline = lv.explore(name='apart').timeline"
    lab.write("often", [made, *["timeline"] * 3, *["lv.explore()"] * 3])
    notebook = open_and_run("often")
    page = notebook.page
    drawn = """() => { const seen = [...document.querySelectorAll('.lv-view')].filter(host => host.offsetHeight);
        return seen.length === 6 && seen.filter(host => 'lvLive' in host.dataset).length === 3
            && seen.every(host => host.lv?.frames > 0 && !host.old); }"""
    for _ in range(5):  # anywidget complains 2 s later of what was closed before it lived
        page.wait_for_function(drawn, timeout=30_000)
        page.evaluate("() => document.querySelectorAll('.lv-view').forEach(host => { host.old = true; })")
        page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
    page.wait_for_function(drawn, timeout=30_000)
    slider(page, "workers").last.press("ArrowRight")
    page.wait_for_function("[...document.querySelectorAll('p[role=status]')].at(-1).textContent.includes('5 workers')")
    assert page.evaluate(ERRORS) == 0
    assert notebook.script_errors == notebook.outside == []
