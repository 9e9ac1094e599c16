"""The front page in a real browser, served as a host does: its scenes, keys, addresses, looks, and what it asks for."""

import re
from dataclasses import replace

import factory
import pytest

from loaderviz.widgets.explorer import Settings, explore, rates_of

pytestmark = pytest.mark.browser
made = factory.script("docs/site.py")
DRAWN = "scenes => scenes.every(each => each.view?.drawn.rects + each.view?.drawn.buckets > 0)"
# What makes the page wider than the window, if it is.
WIDE = """() => document.documentElement.scrollWidth > innerWidth
    ? [...document.querySelectorAll('html, body *')].filter(each => each.scrollWidth > each.clientWidth)
        .map(each => `${each.tagName}.${each.className}: ${each.scrollWidth}`) : []"""
# The names of what the keyboard reaches, of the page and of its pictures.
FOCUSED = """() => {
    let node = document.activeElement;
    while (node.shadowRoot?.activeElement) node = node.shadowRoot.activeElement;
    const name = node.ariaLabel || node.labels?.[0]?.textContent || node.textContent || node.title;
    return [node.tagName, name.trim(), node.closest('section')?.id ?? node.getRootNode().host?.closest('section')?.id];
}"""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Where the site is served."""
    with factory.serving(made.site(tmp_path_factory.mktemp("site") / "site").parent) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def opened(chromium, address):
    """Return a function: a page of the site, and what went wrong in it; nothing may."""
    contexts, problems = [], []

    def page_of(path="/", width=1280, **options):
        context = chromium.browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.asked = []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        page.goto(address + path)
        return page

    yield page_of
    for context in contexts:
        context.close()
    assert problems == []


def until(page, expression, value=True):
    """Wait for an expression: Playwright's own wait is code from a text, which the page's policy holds back."""
    for _ in range(400):
        if page.evaluate(expression if value is not True else f"Boolean({expression})") == value:
            return
        page.wait_for_timeout(50)
    pytest.fail(f"{expression} is {page.evaluate(expression)}")


def whole(page):
    """Look at the page from top to bottom, until all of it is drawn."""
    for name in (*made.SCENES, "numbers"):
        page.locator(f"#{name}").scroll_into_view_if_needed()
        page.wait_for_timeout(50)
    until(page, f"({DRAWN})(globalThis.lvScenes ?? [{{}}]) && document.getElementById('numbers').lv")


def said(page, scene):
    return page.locator(f"#{scene} .said").text_content().replace("\xa0", " ")


def expected(scene, language="en", **changes):
    about = made.SCENES[scene]
    return made.told(f"{scene}-said", language, made.values_of(
        about | {"settings": replace(about["settings"], **changes)}, language)).replace("\xa0", " ")  # fmt: skip


# What it asks for, and keeps


@pytest.mark.parametrize("path", ["/", "/zh.html"])
def test_it_asks_one_host_for_one_file_and_keeps_nothing(opened, address, path):
    page = opened(path, locale="en-US")
    whole(page)
    page.locator("#prefetch").get_by_role("checkbox").check()
    page.wait_for_timeout(300)
    assert page.asked == [address + path]
    assert page.context.cookies() == [] and page.context.storage_state()["origins"] == []
    kept = "[localStorage.length, sessionStorage.length, document.cookie.length]"
    assert page.evaluate(kept) == [0, 0, 0]
    assert page.evaluate("indexedDB.databases().then(all => all.length)") == 0


def test_it_goes_on_without_a_network(opened):
    page = opened()
    until(page, "globalThis.lvScenes")
    page.context.set_offline(True)
    whole(page)
    page.locator("#guess .choices button").nth(2).click()
    page.locator("#now select").select_option("t4")
    assert said(page, "now") == expected("now", gpu="t4", **rates_of("t4"))
    assert "2.06x" in said(page, "guess") and len(page.asked) == 1


# Scenes


def test_each_scene_says_what_python_works_out_before_and_after_a_change(opened):
    page = opened()
    whole(page)
    for name in ("now", "pinned", "prefetch", "nothing"):
        assert said(page, name) == expected(name)
    page.locator("#now select").select_option("h200")
    assert said(page, "now") == expected("now", gpu="h200", **rates_of("h200"))
    page.locator("#pinned").get_by_label("pin_memory=True").uncheck()
    assert said(page, "pinned") == expected("pinned", pin=False)
    page.locator("#nothing").get_by_role("slider", name="CPU work a sample").press("End")
    assert said(page, "nothing") == expected("nothing", fetch_per_sample=1_000_000)


def test_a_guess_is_asked_for_before_anything_is_told(opened):
    page = opened()
    whole(page)
    values = made.values_of(made.SCENES["guess"])
    assert said(page, "guess") == made.TEXTS["guess-waiting"]["en"]
    assert page.evaluate("lvScenes[1].view.head.parts.length") == 1
    choices = page.locator("#guess .choices button")
    choices.nth(0).click()
    assert said(page, "guess").startswith(f"Your choice makes the loop {values['workers_speedup']} as fast. Another")
    choices.nth(2).click()
    assert said(page, "guess").startswith(f"You chose the best one: {values['prefetch_speedup']} as fast")
    assert page.locator("#guess [aria-pressed=true]").count() == 1
    assert page.evaluate("lvScenes[1].view.head.parts.length") == 5
    page.get_by_role("button", name="Without guessing").click()
    assert said(page, "guess").startswith("Twice the workers: 1.00x")


def test_one_batch_is_followed_and_the_race_is_what_python_recorded(opened):
    page = opened()
    whole(page)
    page.locator("#prefetch").get_by_label("Follow batch").select_option("16")
    assert said(page, "prefetch").startswith("Batch 16: its copy takes ")
    chosen = "(view => view.columns.batch[view.selection])(lvScenes[3].host.lv)"
    assert page.evaluate(chosen) == 16
    forget = page.locator("#prefetch").get_by_label("forget the wait")
    forget.check()
    until(page, "lvScenes[3].frozen.lv?.drawn.rects > 0")
    assert "This picture is frozen: Python recorded it" in said(page, "prefetch")
    assert page.locator("#prefetch mark").text_content().strip() == "# main.wait_stream(side)  ← this line is missing"
    early = re.search(r"begins (\S+ \S+) before", said(page, "prefetch"))[1]
    timeline, units = made.recorded().timeline, {"µs": 1e3, "ms": 1e6}
    rows = list(timeline.rows())
    framed = {rows[each].kind: rows[each] for each in timeline.marks[0].spans}
    copy, kernel = framed[made.Kind.COPY_H2D], framed[made.Kind.COMPUTE]
    bars = page.evaluate("(view => view.head.parts[0].marks[0].bars.map(view.rect))(lvScenes[3].frozen.lv)")
    assert bars[1]["x"] < bars[0]["x"] + bars[0]["width"]  # what the words say is what is framed
    amount, unit = early.split()
    assert float(amount) * units[unit] == pytest.approx(copy.end - kernel.start, rel=0.01)
    forget.uncheck()
    assert said(page, "prefetch").startswith("Batch 16: ") and page.evaluate(chosen) == 16
    assert page.locator("#prefetch pre.race").is_hidden()


def test_it_plays_and_a_second_press_holds_it(opened):
    page = opened()
    whole(page)
    page.locator("#now").scroll_into_view_if_needed()
    play = page.locator("#now .primary")
    play.press("Enter")
    until(page, "lvScenes[0].view.time > 0")
    assert play.text_content() == "Pause"
    play.press("Enter")
    assert play.text_content() == "Play" and not page.evaluate("lvScenes[0].view.playing")


# Keys, names, looks


@pytest.mark.parametrize("path", ["/?lang=en", "/zh.html"])
def test_the_keyboard_reaches_every_control_and_each_has_a_name(opened, path):
    page = opened(path)
    whole(page)
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    seen = []
    for _ in range(170):
        page.keyboard.press("Tab")
        seen.append(tuple(page.evaluate(FOCUSED)))
        if seen[-1][0] == "BODY":
            break
    assert all(name for _, name, _ in seen)
    assert seen[0][0] == "A" and seen[1][1] == ("用中文阅读" if "en" in path else "Read this in English")
    of = {scene: [tag for tag, _, where in seen if where == scene] for scene in (*made.SCENES, "numbers", "doors")}
    assert {"BUTTON", "SELECT", "A"} <= set(of["now"]) and of["guess"].count("BUTTON") >= 5
    assert of["pinned"].count("INPUT") == 2 and {"SELECT", "INPUT"} <= set(of["prefetch"])
    assert of["nothing"].count("INPUT") == 2 and of["numbers"].count("INPUT") >= 12
    assert of["doors"] == ["PRE"]
    page.locator("#nothing input").first.press("ArrowLeft")
    page.locator("#pinned input").first.press("Space")
    page.locator("#guess .choices button").first.press("Space")
    assert page.locator("#guess [aria-pressed=true]").count() == 1


def test_the_keyboard_folds_and_unfolds_a_lane_and_stays_on_it(opened):
    page = opened()
    whole(page)
    for scene, name in (("now", "copy engine to GPU"), ("numbers", "main"), ("nothing", "as it is")):
        lane = page.locator(f"#{scene} .picture .head, #{scene} .lv-picture .head").filter(has_text=name).first
        lane.focus()
        before = page.evaluate(FOCUSED)
        for key in ("Enter", "Space"):
            was = lane.get_attribute("aria-expanded")
            page.keyboard.press(key)
            assert lane.get_attribute("aria-expanded") != was
            assert page.evaluate(FOCUSED)[1:] != before[1:] or key == "Space"
        assert page.evaluate(FOCUSED) == before


def test_words_beside_a_bar_take_no_room_below_it(opened):
    """The step of a row that has room at its end stands there, however long the words below it are."""
    page = opened()
    whole(page)
    for choice in range(5):
        page.locator("#guess .controls button").nth(choice).click()
        heights = page.evaluate("lvScenes[1].view.lanes().map(each => each.height)")
        assert len(heights) == 5 and max(heights) - min(heights) < 10, heights  # a line has 17


def test_a_picture_is_told_to_who_does_not_see_it(opened):
    page = opened()
    whole(page)
    for scene in made.SCENES:
        figure = page.locator(f"#{scene} .picture").first
        assert figure.get_attribute("role") == "figure" and figure.get_attribute("aria-label")
        twin = page.locator(f"#{figure.get_attribute('aria-describedby')}")
        assert twin.get_attribute("aria-live") == "polite" and len(twin.text_content()) > 40
    assert page.get_by_role("heading", level=2).count() == 7
    assert page.locator("#numbers .lv-words").get_attribute("aria-live") == "polite"


@pytest.mark.parametrize("path", ["/?lang=en", "/zh.html"])
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_nothing_is_wider_than_the_window(opened, width, path):
    page = opened(path, width)
    whole(page)
    page.locator("#guess .choices button").first.click()
    assert page.evaluate(WIDE) == []
    page.locator("#prefetch").get_by_role("checkbox").check()
    until(page, "lvScenes[3].frozen.lv?.drawn.rects > 0")
    assert page.evaluate(WIDE) == []
    page.add_style_tag(content="* { letter-spacing: .12em !important; line-height: 1.6 !important; }")
    assert page.evaluate(WIDE) == []


def test_large_letters_of_a_reader_do_not_make_it_wider(opened):
    page = opened(width=640)
    page.evaluate("document.body.style.fontSize = '32px'; document.documentElement.style.fontSize = '28px'")
    whole(page)
    assert page.evaluate(WIDE) == []


def luminance(page, selector):
    return page.evaluate("""selector => {
        const { backgroundColor } = getComputedStyle(document.querySelector(selector));
        const [red, green, blue] = backgroundColor.match(/\\d+/g).map(Number);
        return (2 * red + 5 * green + blue) / 8;
    }""", selector)  # fmt: skip


def test_dark_light_and_forced_colours(opened):
    dark = opened(color_scheme="dark")
    whole(dark)
    assert luminance(dark, "body") < 40 and luminance(dark, ".picture") < 40
    assert dark.locator(".picture[data-lv-dark]").count() == len(made.SCENES)
    dark.emulate_media(color_scheme="light")
    until(dark, "!document.querySelector('.picture[data-lv-dark]')")
    assert luminance(dark, "body") > 240 and luminance(dark, ".picture") > 240
    forced = opened(forced_colors="active")
    whole(forced)
    assert forced.evaluate("lvScenes[0].view.theme.forced")
    pressed = forced.locator("#guess .choices button").first
    pressed.click()
    assert pressed.evaluate("node => getComputedStyle(node).borderTopWidth") == "2px"


def test_nothing_moves_for_who_wants_no_motion(opened):
    page = opened(reduced_motion="reduce")
    whole(page)
    page.locator("#now .primary").click()
    times = []
    for _ in range(12):
        times.append(page.evaluate("lvScenes[0].view.time"))
        page.wait_for_timeout(40)
    assert len(set(times)) <= 3  # at rest between its events, each for 600 ms
    assert page.evaluate("document.getAnimations().length") == 0


def test_without_scripts_it_can_be_read(opened):
    for language, name in made.PAGES.items():
        page = opened(f"/{name}", java_script_enabled=False)
        text = page.locator("body").inner_text().replace("\xa0", " ")
        assert re.sub(r"\s", "", made.told("title", language)) in re.sub(r"\s", "", text)
        for scene in made.SCENES:
            values = made.values_of(made.SCENES[scene], language)
            for paragraph in made.told(f"{scene}-text", language, values).split("\n\n"):
                assert re.sub(r"[\s`*]", "", paragraph) in re.sub(r"\s", "", text)
            if scene != "guess":
                assert expected(scene, language) in text
                picture = page.locator(f"#{scene} noscript img, #{scene} img").first
                picture.scroll_into_view_if_needed()
                assert picture.evaluate("node => node.decode().then(() => node.naturalWidth)") > 100
        assert expected("guess", language) not in text
        page.locator("#guess summary").click()
        assert expected("guess", language) in page.locator("#guess").inner_text().replace("\xa0", " ")
        assert page.locator("#language").get_attribute("href").startswith(("index.html", "zh.html"))


# Addresses and languages


def words(page):
    return page.locator("#numbers .lv-words").text_content()


def test_settings_are_in_the_address_and_go_back(opened, address):
    page = opened("/#gpu=t4&batch_size=64")
    until(page, "document.getElementById('numbers').lv")
    explorer = explore(gpu="t4", batch_size=64)
    assert words(page) == explorer.text()
    before = page.evaluate("history.length")
    for _ in range(3):
        page.locator("#numbers").get_by_role("slider", name="workers").press("ArrowRight")
    until(page, "location.hash.includes('workers=7')")
    assert page.evaluate("history.length") == before  # a slider leaves no trail
    explorer.set(workers=7)
    assert words(page) == explorer.text() == words(opened(page.url.removeprefix(address)))
    assert page.locator("#link").input_value() == page.url
    page.locator("#nothing .open a").click()  # a link is a step that one can go back
    until(page, "!location.hash.includes('workers=7')")
    until(page, "document.querySelector('#numbers .lv-words').textContent.includes('2 ahead')")
    page.go_back()
    until(page, "location.hash.includes('workers=7')")
    until(page, "document.querySelector('#numbers .lv-words').textContent", explorer.text())


def test_a_place_in_the_page_is_no_setting(opened):
    page = opened("/#doors")
    until(page, "globalThis.lvScenes")
    page.locator(".skip").press("Enter")
    until(page, "document.getElementById('numbers').lv")
    assert page.locator("#problem").is_hidden() and page.url.endswith("#numbers")
    assert words(page) == explore().text()


@pytest.mark.parametrize("hash_", ["#<img src=x onerror=alert(1)>=1", "#" + "workers=4&" * 3_000, "#%E0%A4%A"])
def test_an_address_that_means_nothing_is_said_in_one_sentence(opened, hash_):
    page = opened(f"/{hash_}")
    until(page, "document.getElementById('numbers').lv")
    assert page.locator("#problem").text_content() == made.TEXTS["numbers-problem"]["en"]
    assert words(page) == explore().text()
    page.locator("#numbers").get_by_role("button", name="prefetch").click()
    until(page, "location.hash.includes('depth=2')")
    assert page.locator("#problem").is_hidden()


def test_the_link_is_copied_or_at_least_selected(opened):
    page = opened(permissions=["clipboard-read", "clipboard-write"])
    whole(page)
    page.locator("#numbers").get_by_role("button", name="prefetch").click()
    until(page, "location.hash.includes('depth=2')")
    page.locator("#copy").click()
    until(page, "document.getElementById('copied').textContent")
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    bare = opened()
    bare.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    bare.reload()
    whole(bare)
    bare.evaluate("document.execCommand = () => false")
    bare.locator("#copy").click()
    assert bare.locator("#copied").text_content() == made.TEXTS["numbers-by-hand"]["en"]
    assert bare.evaluate("getSelection().toString() || document.activeElement.value") == bare.url


def test_the_language_is_the_readers_or_the_one_that_was_chosen(opened):
    page = opened("/#workers=2", locale="zh-CN")
    page.wait_for_url("**/zh.html#workers=2")
    until(page, "document.getElementById('numbers').lv")
    assert "2 个工作进程" in words(page) and page.evaluate("document.documentElement.lang") == "zh"
    page.locator("#language").click()  # who chooses English has it, with the same settings
    page.wait_for_url("**/index.html?lang=en#workers=2")
    until(page, "document.getElementById('numbers').lv")
    assert "2 workers" in words(page)
    page.reload()
    assert page.evaluate("document.documentElement.lang") == "en"
    other = opened("/zh.html", locale="en-US")
    whole(other)
    assert said(other, "nothing") == expected("nothing", "zh") and other.url.endswith("/zh.html")
    english = opened("/", locale="zh-TW", java_script_enabled=False)
    assert english.evaluate("document.documentElement.lang") == "en"


def test_the_file_works_without_any_server(chromium, tmp_path):
    page = chromium.browser.new_page()
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.goto(made.site(tmp_path / "site").as_uri() + "#workers=2")
    until(page, "document.getElementById('numbers').lv")
    assert words(page) == explore(workers=2).text() and problems == []
    page.locator("#numbers").get_by_role("slider", name="workers").press("ArrowRight")
    until(page, "location.hash === '#workers=3'")
    page.close()


def test_settings_of_the_explorer_are_those_of_python():
    assert Settings() == made.FIRST
