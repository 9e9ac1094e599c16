"""The timeline view in a real browser, offline: what it drew, read back from `host.lv`, against the Timeline."""

import random
import re

import factory
import numpy as np
import pytest

from loaderviz import metrics, words
from loaderviz.analysis.advice import advise
from loaderviz.intervals import covered_within, union
from loaderviz.timeline import Context, Kind, TimelineBuilder
from loaderviz.view import compare, picture, theme
from loaderviz.view.pack import Part, pack

pytestmark = pytest.mark.browser

HOST = "document.querySelector('.lv-view')"
WIDTHS = (1920, 390, 2560, 800, 1280)
HOSTILE = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "\u202egnp.exe",
    "k" * 500,
    "𝕜ernel 🧵 é",
)


class Shown:
    """A page with one view. `problems` collects script errors, warnings, dialogs and requests."""

    def __init__(self, page):
        self.page, self.problems = page, []
        note = self.problems.append
        page.on("pageerror", lambda error: note(f"error: {error}"))
        page.on("console", lambda said: note(said.text) if said.type == "error" or "loaderviz" in said.text else None)
        page.on("dialog", lambda dialog: (note("dialog"), dialog.dismiss()))
        page.on("request", lambda asked: note(asked.url) if not asked.url.startswith("file:") else None)

    def ask(self, what, given=None):
        """Return the value of a JavaScript expression of `lv` (the hook of the view) and `given`."""
        return self.page.evaluate(f"given => {{ const lv = {HOST}.lv; return {what}; }}", given)

    def set(self, head, body, **options):
        """Show other data, as a widget does."""
        self.page.evaluate(
            f"async ([head, body, options]) => {HOST}.lv.set(head, Uint8Array.from(body), options)",
            [head, list(body), options],
        )
        self.settle()

    def settle(self):
        """Wait until all that was asked for is drawn."""
        self.page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def do(self, what, given=None):
        """Let JavaScript change something, and wait until it is drawn."""
        self.ask(what, given)
        self.settle()

    def go(self, begin, end):
        self.do("lv.go(...given)", [begin, end])

    def resize(self, width, height):
        self.page.set_viewport_size({"width": width, "height": height})
        self.settle()
        self.settle()

    def origin(self):
        """Return where the canvas is in the window, CSS px."""
        return self.ask("(box => [box.x, box.y])(lv.view.ui.over.getBoundingClientRect())")

    def mouse_to(self, bar):
        (x, y), box = self.origin(), self.ask(f"lv.rect({bar})")
        place = x + box["x"] + box["width"] / 2, y + box["y"] + box["height"] / 2
        self.page.mouse.move(*place)
        self.settle()
        return place

    def drag(self, begin, end, y):
        self.page.mouse.move(begin, y)
        self.page.mouse.down()
        self.page.mouse.move(end, y, steps=4)
        self.page.mouse.up()

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()

    def focus(self):
        self.page.evaluate(f"{HOST}.lv.view.ui.stage.focus()")

    def button(self, name):
        return self.page.locator(".lv-view").get_by_role("button", name=name)


@pytest.fixture
def show(chromium, tmp_path):
    """Return a function that shows timelines (or head and body) in an offline page; at the end nothing went wrong."""
    opened = []

    def shown(*timelines, packed=None, width=1000, height=800, **context):
        parts = [each if isinstance(each, Part) else Part(each) for each in timelines]
        head, body = packed or pack(parts, title="a finding", twin="in words")
        text = f"{picture.element(head, body, '<svg/>')}<script type='module'>{picture.module()}</script>"
        path = tmp_path / f"view{len(opened)}.html"
        path.write_text(f"<!doctype html><html lang='en' class='lv-page'><meta charset='utf-8'>{text}", "utf-8")
        inside = chromium.browser.new_context(viewport={"width": width, "height": height}, offline=True, **context)
        opened.append((inside, Shown(inside.new_page())))
        result = opened[-1][1]
        result.page.goto(path.as_uri())
        result.page.wait_for_function(f"() => {HOST}.lv?.frames > 0")
        return result

    yield shown
    for inside, result in opened:
        inside.close()
        assert result.problems == []


def random_bars(seed, count=3_000, lanes=3, longest=20_000):
    """Streams of kernels of very different lengths and gaps."""
    draw, spans = np.random.default_rng(seed), []
    for number in range(lanes):
        lengths, gaps = (np.exp(draw.uniform(0, np.log(longest), count)).astype(int) for _ in range(2))
        starts = np.cumsum(gaps + np.r_[0, lengths[:-1]])
        columns = (starts.tolist(), (starts + lengths).tolist(), draw.integers(-1, 9, count).tolist())
        spans += [(f"stream {number}", start, end, Kind.COMPUTE, {"name": f"kernel{batch}", "batch": batch})
                  for start, end, batch in zip(*columns, strict=True)]  # fmt: skip
    return factory.made(*spans, device="A100", origin="emulated", host="host")


def odd_timeline():
    """No length, no gap, gaps and lengths of more than 2^32 ns, bytes beyond 2^32, hostile names."""
    builder = TimelineBuilder(Context("A100", "emulated", "host"))
    lane = builder.lane(HOSTILE[0], "device", number=1)
    start = 0
    for name, length in zip(HOSTILE, (0, 1, 2**33, 5, 2**32 - 1), strict=True):
        builder.span(start, start + length, lane, Kind.COPY_H2D, name, nbytes=length + 2**32 - 3, pinned=True)
        start += length + (2**34 if length == 1 else 0)
    return builder.build()


# What `lv.buckets` gives, without typed arrays.
PLAIN = """({shares, wide, from, k}) => ({
    wide, from, k, shares: Object.entries(shares).map(([swatch, column]) => [+swatch, Array.from(column)]),
})"""
# The part of the first lane that is covered by blue, which has no red.
INK_SHARE = """(() => {
    const {y, height} = lv.rect(0), {context, surface} = lv.view;
    const {data} = context.getImageData(0, Math.round(y), surface.width, Math.round(height));
    let ink = 0;
    for (let at = 0; at < data.length; at += 4) ink += data[at + 3] / 255 * (1 - data[at] / 255);
    return ink / (data.length / 4);
})()"""


# Of the row of a bar, at its left end: the device px that are drawn in each of four columns, as true and false from top
# to bottom, without the line of a tick of the time axis.
COLUMN = """(bar => {
    const { view } = lv, { dpr } = view.surface, row = view.rowOf(bar), top = row.y - view.scrollTop;
    const columns = [2, 3, 4, 5].map(at => [...view.context.getImageData(Math.round((lv.rect(bar).x + at) * dpr),
        Math.round(top * dpr), 1, Math.round(row.height * dpr)).data].filter((_, at) => at % 4 === 3));
    const ink = column => column.filter(alpha => alpha > 0).length;
    return columns.sort((one, other) => ink(one) - ink(other))[0].map(alpha => alpha > 0);
})(given)"""
# Where the outline of the selection crosses the middle of a bar, CSS px from its top.
OUTLINE = """(bar => {
    const { view } = lv, { dpr } = view.surface, { x, y, width } = lv.rect(bar);
    const { data } = view.overContext.getImageData(Math.round((x + width / 2) * dpr), 0, 1, view.ui.over.height);
    const hit = at => Math.max(...rgb(view.theme.ink).map((value, place) => Math.abs(value - data[4 * at + place]))) < 3
        && data[4 * at + 3] === 255;
    return Array.from({ length: data.length / 4 }, (_, at) => at).filter(hit).map(at => at / dpr - y);
})(given)""".replace("rgb(", "(text => [1, 3, 5].map(at => parseInt(text.slice(at, at + 2), 16)))(")


@pytest.mark.parametrize(("scheme", "dpr"), [("light", 1), ("dark", 2)])
def test_a_kernel_is_thick_and_a_copy_thin_in_each_lane(scheme, dpr, show):
    timeline, heights = factory.device_kinds()
    part = Part(timeline)
    shown = show(part, color_scheme=scheme, device_scale_factor=dpr)
    thick = {"stream": 24, "host": 18}
    for number, row in enumerate(row for row in part.arranged[0] if row.kind != "strip"):
        for bar in np.flatnonzero(part.bars.track == number).tolist():
            name = timeline.row(int(part.bars.span[bar])).name
            high = 13 if row.kind == "engine" else thick[row.kind] * heights[name]
            assert shown.ask(f"lv.rect({bar}).height") == pytest.approx(high, abs=0.3)
            if row.kind != "host":  # whose lanes have a ground
                column = shown.ask(COLUMN, bar)
                assert sum(column) == pytest.approx(high * dpr, abs=1)
                assert column.index(True) == 2 * dpr  # thick or thin, they hang from one line
            shown.do(f"lv.select({bar})")
            edges = shown.ask(OUTLINE, bar)
            assert -2.6 < min(edges) < 0 and high - 0.6 < max(edges) < high + 2.6
            shown.do("lv.select(-1)")
    exposed, strip = shown.ask("""[lv.view.theme.swatches, [...lv.columns.style].findIndex(style =>
        lv.head.styles[style].key === 'state:copy exposed')].map((what, at) => at ? lv.rect(what).height
        : what[lv.head.styles.findIndex(style => style.key === 'state:copy exposed')].height)""")
    assert (exposed, strip) == (0.55, pytest.approx(24 * 0.55))
    legend = shown.page.locator(".lv-view .legend")
    samples = {"thick: kernel": 12, "thin: copy, memset": 7, "GPU computes": 12}
    samples["copy while the GPU waits (exposed)"] = 7
    for name, high in samples.items():
        sample = legend.locator("li").filter(has_text=re.compile(f"^{re.escape(name)}$")).locator(".swatch")
        assert sample.bounding_box()["height"] == high, name


WRITTEN = """() => { const written = window.written = [], { fillText } = CanvasRenderingContext2D.prototype;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
        written.push(text); fillText.call(this, text, ...place); }; }"""


def test_a_run_of_kernels_with_short_pauses_has_one_name_in_the_strip_and_thin_bars_have_theirs(show):
    kernels = [("stream 7", at, at + 9_950, Kind.COMPUTE) for at in (*range(0, 200_000, 10_000), 500_000)]
    copy = ("stream 7", 300_000, 400_000, Kind.COPY_H2D, {"batch": 3, "nbytes": 6_000_000})
    shown = show(factory.made(*kernels, copy))
    shown.page.evaluate(WRITTEN)
    shown.do("lv.view.redraw()")
    written = shown.page.evaluate("window.written")
    names = ("compute", "copy exposed", "idle", "batch 3: 6 MB")
    assert [written.count(name) for name in names] == [1, 1, 2, 2]


@pytest.mark.parametrize("dpr", [1, 2])
def test_bars_narrower_than_a_pixel_grow_from_the_bottom_if_they_are_kernels_and_from_the_top_if_copies(dpr, show):
    kinds = Kind.COMPUTE, Kind.MEMSET, Kind.COPY_D2D
    spans = [(f"stream {number}", start, start + 240, kind, {"name": "short", "batch": 0})
             for number, kind in enumerate(kinds) for start in range(0, 1_000_000, 400)]  # fmt: skip
    last = "stream 0", 2_000_000, 2_000_400, Kind.COMPUTE, {"name": "last"}
    shown = show(factory.made(*spans, last), device_scale_factor=dpr)
    for number, kind in enumerate(kinds):
        first = shown.ask(f"lv.model.track(0, {number}, 0).first")
        drawn = [at for at, ink in enumerate(shown.ask(COLUMN, first)) if ink]
        most = 24 * dpr * (1 if kind == Kind.COMPUTE else 0.55)
        assert len(drawn) == pytest.approx(0.6 * most, abs=2)
        assert drawn == list(range(drawn[0], drawn[-1] + 1))
        assert (drawn[-1] == 26 * dpr - 1) if kind == Kind.COMPUTE else (drawn[0] == 2 * dpr), kind


def test_what_the_page_decodes_is_what_was_packed(show):
    shown = show(factory.empty())
    rough = (factory.random_timeline(seed, 60, 500, 2) for seed in range(4))
    for timeline in (factory.loader("prefetch", 1), *rough, factory.empty(), odd_timeline()):
        shown.set(*pack([Part(timeline)]))
        bars = Part(timeline).bars
        columns = shown.ask(
            "Object.fromEntries(Object.entries(lv.columns).map(([name, all]) => [name, Array.from(all)]))"
        )
        assert columns["start"] == bars.start.tolist()
        assert columns["end"] == bars.end.tolist()
        assert columns["style"] == bars.style.tolist()
        spans = bars.span[bars.span >= 0]
        mine = [bar for bar, span in enumerate(bars.span.tolist()) if span >= 0]
        names = shown.ask("lv.head.names")
        assert [names[columns["name"][bar]] for bar in mine] == [span.name for span in timeline.rows_at(spans)]
        for column in ("batch", "nbytes"):
            assert [columns[column][bar] for bar in mine] == timeline.spans[column][spans].tolist()
        ends = zip(*(columns[name] for name in ("tail", "head", "arrow")), strict=True)
        found = {(int(bars.span[tail]), int(bars.span[head]), kind) for tail, head, kind in ends}
        assert found <= set(zip(*(timeline.arrows[name].tolist() for name in ("tail", "head", "kind")), strict=True))


@pytest.mark.parametrize("dpr", [1, 2])
def test_level_of_detail_is_the_share_of_each_pixel_column(dpr, show):
    """Brute force: what narrow bars cover of each column, by swatch; and the pixels themselves hold that area."""
    timeline = random_bars(7)
    part = Part(timeline)
    bars = part.bars
    shown = show(timeline, device_scale_factor=dpr)
    draw = random.Random(11)
    tracks = [(lane["lane"], lane["track"]) for lane in shown.ask("lv.lanes()")]
    offsets = np.r_[0, np.cumsum([len(track) for row in part.arranged[0] for track in row.tracks])]
    for _ in range(6):
        span = int(timeline.duration * 10 ** draw.uniform(-3, 0))
        begin = draw.randrange(max(1, timeline.duration - span))
        shown.go(begin, begin + span)
        for number, (lane, track) in enumerate(tracks[:3]):
            drawn = shown.ask(f"({PLAIN})(lv.buckets(0, ...given))", [lane, track])
            k, edge = drawn["k"], drawn["from"]
            mine = np.arange(offsets[number], offsets[number + 1])
            start, end = bars.start[mine], bars.end[mine]
            narrow = (end - start) * k < 2
            assert drawn["wide"] == mine[~narrow & (end > edge) & (start < edge + len_of(drawn) / k)].tolist()
            x = np.clip((np.stack([start, end]) - edge) * k, 0, len_of(drawn))[:, narrow]
            swatch = np.array(shown.ask("given.map(bar => lv.view.swatches[bar])", mine[narrow].tolist()), int)
            for which, column in drawn["shares"]:
                expected = covered(x[:, swatch == which], len(column))
                np.testing.assert_allclose(column, expected, atol=2e-4, err_msg=f"{lane} {track} {begin} {span}")


def len_of(drawn):
    return len(drawn["shares"][0][1]) if drawn["shares"] else 0


def covered(x, columns):
    """How much of each column [i, i + 1) these pieces cover, in a fixed-point grid that `intervals` can count."""
    fine = 10**9
    pieces = union(*(np.round(x * fine).astype(np.int64)))
    edges = np.arange(columns) * fine
    return covered_within(pieces, edges, edges + fine) / fine


def test_states_fill_each_column_so_that_no_edge_looks_idle(show):
    shown = show(random_bars(4, 800, 1, 400_000))
    strip = shown.ask("lv.lanes().find(row => row.name === 'what the GPU does').lane")
    for zoom in (1, 3, 17):
        shown.do("lv.go(0, lv.model.end / given)", zoom)
        drawn = shown.ask(f"({PLAIN})(lv.buckets(0, {strip}, 0))")
        full = np.sum([column for _, column in drawn["shares"]], axis=0)
        starts, ends = (
            shown.ask(f"given.map(bar => lv.columns.{edge}[bar])", drawn["wide"]) for edge in ("start", "end")
        )
        for start, end in zip(starts, ends, strict=True):
            first, last = np.ceil((start - drawn["from"]) * drawn["k"]), np.floor((end - drawn["from"]) * drawn["k"])
            full[max(0, int(first)) : max(0, int(last))] += 1
        np.testing.assert_allclose(full, 1, atol=2e-3)


def test_the_pixels_of_a_lane_hold_its_busy_share(show):
    """The part of a lane's area that is not ground is the share of time in which it is busy, at all zooms."""
    timeline = random_bars(3, 6_000, 1, 900)
    shown = show(packed=pack([Part(timeline)], color="kind"))  # all kernels in one blue, without red
    draw = random.Random(5)
    busy = union(timeline.start, timeline.end)
    for _ in range(6):
        span = int(timeline.duration * draw.uniform(0.3, 1))
        begin = draw.randrange(timeline.duration - span + 1)
        shown.go(begin, begin + span)
        share = shown.ask(INK_SHARE)
        begin, end = (timeline.begin + int(edge) for edge in shown.ask("lv.window"))
        expected = int(covered_within(busy, np.array([begin]), np.array([end]))[0]) / (end - begin)
        assert share == pytest.approx(expected, abs=0.01)


def test_every_bar_is_under_the_mouse_where_it_is_drawn(show):
    timeline = factory.loader("prefetch", 4)
    part = Part(timeline)
    bars = part.bars
    shown = show(timeline)
    window, width = shown.ask("lv.window"), shown.ask("lv.view.surface.width")
    x, y = shown.origin()
    for bar in range(len(bars.span)):
        box = shown.ask(f"lv.rect({bar})")
        assert box["x"] == pytest.approx((bars.start[bar] - window[0]) / (window[1] - window[0]) * width)
        assert box["width"] == pytest.approx((bars.end[bar] - bars.start[bar]) / (window[1] - window[0]) * width)
        if box["width"] > 5:
            hit = shown.ask("lv.at(...given)", [x + box["x"] + box["width"] / 2, y + box["y"] + box["height"] / 2])
            assert hit["bar"] == bar
    labels = [row.name for row in part.arranged[0]]
    assert shown.ask("[...new Set(lv.lanes().map(lane => lane.name))]") == labels


def test_totals_of_a_measured_time_are_those_of_the_timeline(show):
    timeline = factory.loader("pinned", 6)
    shown = show(timeline)
    strip = shown.ask("lv.head.parts[0].lanes.findIndex(lane => lane.kind === 'strip')")
    draw = random.Random(2)
    states = metrics.states(timeline)
    for _ in range(20):
        begin, end = sorted(draw.sample(range(timeline.duration), 2))
        found = shown.ask("lv.shares(0, given[0], 0, given[1], given[2])", [strip, begin, end])
        inside = {
            name: int(covered_within(part, np.array([begin + timeline.begin]), np.array([end + timeline.begin]))[0])
            for name, part in states.items()
        }
        assert found == {f"state:{name}": time for name, time in inside.items() if time}
    x, y = shown.origin()
    shown.drag(x + 100, x + 400, y - 10)  # on the axis
    width, end = shown.ask("lv.view.surface.width"), shown.ask("lv.window[1]")
    measured = shown.ask("lv.view.measure")
    assert measured == pytest.approx([100 / width * end, 400 / width * end], rel=0.01)
    assert "compute" in shown.ask("lv.view.ui.detail.textContent")


def test_keys_zoom_pan_walk_follow_arrows_and_leave(show):
    timeline = factory.loader("prefetch", 5)
    bars = Part(timeline).bars
    shown = show(timeline)
    shown.focus()
    whole = shown.ask("lv.window")
    shown.press("w")
    window = shown.ask("lv.window")
    assert window[1] - window[0] == pytest.approx(0.7 * (whole[1] - whole[0]))
    shown.press("d")
    assert shown.ask("lv.window[0]") > window[0]
    shown.press("a", "s", "0")
    assert shown.ask("lv.window") == whole

    shown.press("ArrowRight")
    assert shown.ask("lv.selection") == 0
    shown.press("ArrowRight")
    assert shown.ask("lv.selection") == 1
    shown.press("]")
    before = shown.ask("lv.columns.batch[lv.selection]")
    shown.press("]")
    assert shown.ask("lv.columns.batch[lv.selection]") == before + 1

    arrow = shown.ask("lv.columns.arrow.indexOf(1)")  # an event: a copy, and the kernel that waits for it
    tail, head = shown.ask(f"[lv.columns.tail[{arrow}], lv.columns.head[{arrow}]]")
    rows = shown.ask(f"[lv.rect({tail}).y, lv.rect({head}).y]")
    shown.ask(f"lv.select({tail})")
    shown.press("ArrowDown" if rows[1] > rows[0] else "ArrowUp")
    assert shown.ask("lv.selection") == head
    shown.press("Enter")
    window = shown.ask("lv.window")
    assert window[0] < bars.start[head] < bars.end[head] < window[1]
    assert window[1] - window[0] < 3 * (bars.end[head] - bars.start[head]) + 20
    shown.press("/")
    shown.page.keyboard.type("memcpy")
    shown.press("Enter")
    found = shown.ask("lv.view.found.list.length")
    assert found == sum("memcpy" in timeline.names[name].lower() for name in timeline.name.tolist()) > 0
    shown.press("Escape", "Escape")
    assert shown.ask("[lv.selection, lv.view.found.list.length]") == [-1, 0]
    shown.page.keyboard.press("Shift+Tab")  # Tab always leaves
    assert shown.page.evaluate(f"{HOST}.shadowRoot.activeElement !== {HOST}.lv.view.ui.stage")


def test_the_plain_wheel_scrolls_and_with_ctrl_the_time_under_the_pointer_stays(show):
    timelines = factory.loader("prefetch", 6)
    shown = show(timelines, height=330)
    whole = shown.ask("lv.window")
    x, y = shown.origin()
    shown.page.mouse.move(x + 300, y + 60)
    shown.page.mouse.wheel(0, 200)
    shown.page.wait_for_timeout(150)
    assert shown.ask("lv.window") == whole
    assert shown.ask("lv.view.ui.scroll.scrollTop") + shown.page.evaluate("scrollY") > 0
    shown.page.evaluate("scrollTo(0, 0)")
    x, y = shown.origin()
    shown.page.mouse.move(x + 300, y + 60)
    before = shown.ask("lv.view.timeAt(given)", x + 300)
    shown.page.keyboard.down("Control")
    for delta in (-120, -240, 60):
        shown.page.mouse.wheel(0, delta)
        shown.settle()
        window, width = shown.ask("lv.window"), shown.ask("lv.view.surface.width")
        assert shown.ask("lv.view.timeAt(given)", x + 300) == pytest.approx(before, abs=(window[1] - window[0]) / width)
    shown.page.keyboard.up("Control")
    assert window[1] - window[0] < whole[1]
    shown.page.mouse.wheel(80, 0)  # sideways pans
    shown.page.wait_for_timeout(50)
    assert shown.ask("lv.window[0]") > window[0]
    span = "lv.window[1] - lv.window[0]"
    before = shown.ask(span)
    shown.page.mouse.move(x + 300, y - 10)
    shown.page.mouse.wheel(0, -120)  # over the axis of a page it zooms
    shown.page.wait_for_timeout(50)
    assert shown.ask(span) < before
    mini, width = (
        shown.ask("(box => [box.x, box.y])(lv.view.ui.mini.getBoundingClientRect())"),
        shown.ask("lv.view.surface.width"),
    )
    shown.page.mouse.click(mini[0] + 0.75 * width, mini[1] + 8)  # the strip brings the window there
    assert sum(shown.ask("lv.window")) / 2 == pytest.approx(0.75 * whole[1], rel=0.02)


def test_double_click_fits_drag_pans_and_two_fingers_pinch(show):
    shown = show(factory.loader("prefetch", 6), has_touch=True)
    bar = shown.ask("Array.from({length: lv.head.rows}, (_, bar) => bar).find(bar => lv.rect(bar).width > 30)")
    shown.page.mouse.dblclick(*shown.mouse_to(bar))
    shown.settle()
    window = shown.ask("lv.window")
    assert shown.ask(f"lv.rect({bar}).width") > 0.5 * shown.ask("lv.view.surface.width")
    x, y = shown.origin()
    shown.drag(x + 300, x + 200, y + 60)
    moved = 100 / shown.ask("lv.view.surface.width") * (window[1] - window[0])
    assert shown.ask("lv.window[0]") - window[0] == pytest.approx(moved, rel=0.05)

    before = shown.ask("lv.window")
    touch = shown.page.context.new_cdp_session(shown.page)
    for kind, apart in (("touchStart", 50), ("touchMove", 100), ("touchMove", 150), ("touchEnd", 0)):
        points = [{"x": x + 300 + side * apart, "y": y + 60, "id": side} for side in (-1, 1)] if apart else []
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    shown.settle()
    after = shown.ask("lv.window")
    assert (after[1] - after[0]) == pytest.approx((before[1] - before[0]) / 3, rel=0.15)


CURVES = """() => { const curves = window.curves = [], { moveTo, bezierCurveTo } = Path2D.prototype;
    Path2D.prototype.moveTo = function (...from) { this.from = from; moveTo.apply(this, from); };
    Path2D.prototype.bezierCurveTo = function (...way) {
        curves.push([...this.from, ...way.slice(4)]); bezierCurveTo.apply(this, way); }; }"""


def test_an_arrow_goes_from_the_end_of_one_bar_to_the_start_of_the_other_a_launchs_from_the_start(show):
    shown = show(factory.loader("prefetch", 3))
    shown.page.evaluate(CURVES)
    shown.ask("lv.select(lv.columns.head[lv.columns.arrow.indexOf(0)])")  # the arrow of its launch
    shown.do("lv.zoom(1.01)")
    drawn = {tuple(curve) for curve in shown.page.evaluate("window.curves.map(each => each.map(Math.round))")}
    wanted = {0: set(), 1: set()}
    for kind, *ends in shown.ask("""[...lv.columns.arrow].map((kind, at) =>
            [kind, lv.rect(lv.columns.tail[at]), lv.rect(lv.columns.head[at])])"""):
        tail, head = ends
        if tail["y"] == head["y"]:
            continue
        x, to_x = tail["x"] + (tail["width"] if kind else 0), head["x"]
        wanted[kind].add((x, tail["y"], tail["height"], to_x, head["y"], head["height"]))

    def fits(curve, want):
        x, y, to_x, to_y = curve
        from_x, top, high, at_x, to_top, to_high = want
        ends = abs(x - from_x) <= 1.5 and abs(to_x - at_x) <= 1.5
        return ends and top - 1 <= y <= top + high + 1 and to_top - 6 <= to_y <= to_top + to_high + 6

    every = wanted[0] | wanted[1]
    assert all(any(fits(curve, want) for want in every) for curve in drawn)
    assert all(any(fits(curve, want) for curve in drawn) for want in wanted[1])
    assert any(fits(curve, want) for curve in drawn for want in wanted[0])


def test_a_span_says_what_it_waited_for_and_its_batch_is_lit(show):
    timeline = factory.loader("prefetch", 6)
    shown = show(timeline)
    shown.focus()
    arrow = shown.ask("""lv.columns.arrow.findIndex((kind, at) =>
        kind === 1 && lv.view.story(lv.columns.head[at])[0].startsWith('waits'))""")
    head, tail = shown.ask(f"[lv.columns.head[{arrow}], lv.columns.tail[{arrow}]]")
    story, batch = shown.ask(f"lv.view.story({head})"), shown.ask(f"lv.columns.batch[{tail}]")
    assert story[0].endswith(f"for the copy of batch {batch}")
    shown.mouse_to(head)
    assert shown.ask("lv.view.ui.tip.hidden") is False
    assert story[0] in shown.ask("lv.view.ui.tip.textContent")
    way = shown.ask(f"lv.model.way(0, {batch}).map(bar => lv.model.style(bar).key)")
    assert [key for key in way if key in ("fetch", "pin", "copy_h2d")] == ["fetch", "pin", "copy_h2d"]
    assert way[-1] == "compute"
    shown.ask(f"lv.select({head})")
    shown.page.wait_for_timeout(250)
    assert story[0] in shown.ask("lv.view.ui.live.textContent")


def test_the_picture_fits_its_width_also_after_it_was_changed_and_other_data_leave_an_outline(show):
    shown = show(*(Part(each, name) for name, each in factory.loaders(4).items()), width=1000, height=700)
    shown.ask("lv.zoom(0.5)")
    window = shown.ask("lv.window")
    for width in WIDTHS:
        shown.resize(width, 700)
        assert shown.ask("lv.window") == window
        sizes = shown.ask("""(({surface, headWidth, ui}) =>
            [surface.width + headWidth, ui.scroll.clientWidth, ui.data.clientWidth, surface.width])(lv.view)""")
        assert sizes[0] == sizes[1]
        assert sizes[2] == sizes[3] > 0.6 * width
        assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
        words = "'.head.lane span:last-child, .title, .tools button'"
        cut = shown.page.evaluate(f"""[...{HOST}.shadowRoot.querySelectorAll({words})].filter(node =>
            node.clientWidth && node.scrollWidth > node.clientWidth + 1).map(node => node.textContent)""")
        assert cut == [], width
    head, body = pack([Part(factory.loader("prefetch", 4))], title="other")
    shown.ask("lv.go(100000, 500000)")
    shown.set(head, body, keep=True, difference="3 ms less")
    assert shown.ask("[lv.head.title, lv.window, Boolean(lv.view.former)]") == ["other", [100000, 500000], True]
    assert "3 ms less" in shown.ask("lv.view.ui.subtitle.textContent")


# How many words the picture has beside its bars, and what they lie over: a bar, the name of a row, words, the edge.
OVER = """(() => {
    const { view } = lv, { ui, model } = view, canvas = ui.over.getBoundingClientRect(), range = document.createRange();
    const placed = (what, { left, right, top, bottom }, of) => ({ what, left, right, top, bottom, of });
    const lines = node => { range.selectNodeContents(node); return [...range.getClientRects()]; };
    const told = (...names) => names.flatMap(name => [...view.root.querySelectorAll(name)]).flatMap(node =>
        lines(node).map(box => placed(node.textContent, box, node)));
    const bars = view.rows.filter(row => row.track ?? row.hero).flatMap(row => {
        const [y, high] = row.track ? [row.y + 2, row.height - 4] : [row.y + 3, 24],
            top = canvas.top + y - view.scrollTop;
        return [...model.within(row.track ?? row.hero)].map(bar => [bar, lv.rect(bar)]).map(([bar, { x, width }]) =>
            placed(model.style(bar).name, { left: canvas.left + Math.max(0, x), top, bottom: top + high,
                right: canvas.left + Math.min(canvas.width, x + width) })); });
    const words = told('.hero .entry', '.hero b', '.hero:not(:has(*))'), ticks = told('.tick'), { right } = canvas;
    const stacks = [...view.root.querySelectorAll('.hero .whereBar')].map(node =>
        placed('stack', node.getBoundingClientRect(), node));
    const names = [...view.root.querySelectorAll('.head span:last-child')].map(node =>
        placed(node.textContent, node.getBoundingClientRect(), node));
    const over = (ones, others) => ones.flatMap(one => others.filter(other => one.of !== other.of
        && one.left + 1 < other.right && other.left + 1 < one.right && one.top + 1 < other.bottom
        && other.top + 1 < one.bottom).map(other => [one.what, other.what]));
    return [words.length, [...over([...words, ...stacks], [...bars, ...names, ...words]), ...over(ticks, ticks),
        ...words.filter(one => one.right > right + 1).map(one => [one.what, 'edge'])]];
})()"""


@pytest.mark.parametrize("long", [False, True])
def test_no_words_lie_over_a_bar_however_narrow_the_picture_and_however_long_the_words(long, show):
    short = factory.made(("stream 7", 0, 90_000, Kind.COMPUTE, {"batch": 0}), ("main", 0, 100_000, Kind.API))
    other, _ = factory.device_kinds()
    names = ("a loader with a rather long name of its own", "x" * 90, "DataLoader, 3 steps") if long else "abc"
    timelines = dict(zip(names, (factory.loader("prefetch", 12), short, other), strict=True))
    advice = {name: advise(each) for name, each in timelines.items()}
    for view in (compare(timelines), compare(timelines, folded=False, advice=advice)):
        shown = show(packed=view.packed(), width=1280, height=2000)
        shown.ask("lv.head.parts.forEach((part, at) => { if (part.ghost) lv.toggle(`h${at}`); })")
        for width in (1280, 679, 390, 820, 560, 1280):
            shown.page.set_viewport_size({"width": width, "height": 2000})
            for begin, end in ((0, 1), (0, 0.3), (0.05, 0.4)):
                shown.settle()
                shown.do("lv.go(...given.map(share => share * lv.model.end))", [begin, end])
                count, found = shown.ask(OVER)
                assert count >= 3 * 5
                assert found == [], (width, begin, end)
            assert shown.page.evaluate("document.documentElement.scrollWidth") <= width


# Of a plotly figure: how many entries its legend has, and what its words lie over.
PLOTLY_OVER = """() => {
    const all = (...names) => names.flatMap(name => [...document.querySelectorAll(name)]),
        box = node => node.getBoundingClientRect();
    const words = all('.legend .traces text', '.xtick text', '.g-xtitle text', '.gtitle', '.gtitle-subtitle');
    const over = (one, other) => one !== other && box(one).left + 1 < box(other).right && box(other).left + 1
        < box(one).right && box(one).top + 1 < box(other).bottom && box(other).top + 1 < box(one).bottom;
    return [all('.legend .traces').length, words.flatMap(one => [...words, ...all('.point path')].filter(other =>
        over(one, other)).map(other => [one.textContent, other.textContent]))]; }"""


def test_no_words_of_a_figure_lie_over_its_bars_when_the_legend_wraps(chromium):
    plotly = pytest.importorskip("plotly.offline")
    timeline, _ = factory.device_kinds()
    host = [("main", at * 100_000, at * 100_000 + 90_000, kind) for at, kind in enumerate(Kind) if at > Kind.MEMSET]
    rows = [("stream 7", row.start, row.end, row.kind) for row in timeline.rows() if row.lane.name == "stream 7"]
    figure = factory.made(*rows, *host, device="NVIDIA A100").view(color="kind", operators=True).figure()
    page = chromium.new_page()
    for width in (1280, 679):
        page.set_viewport_size({"width": width, "height": 900})
        html = figure.to_html(full_html=False, include_plotlyjs=False)
        page.set_content(f"<script>{plotly.get_plotlyjs()}</script>{html}")
        page.wait_for_function("document.querySelectorAll('.legend .traces').length > 5")
        page.wait_for_timeout(300)
        count, found = page.evaluate(PLOTLY_OVER)
        assert count >= 12 and found == [], width
    page.close()


def test_words_of_a_part_without_bars_of_its_own_have_room_too(show):
    finding = "the host is blocked for most of the time, and nobody knows for how long it will be, and why " * 3
    parts = [Part(factory.loader("pinned", 3), name, finding=finding) for name in ("one", "two")]
    shown = show(*parts, width=390, height=1500)
    assert shown.ask(OVER)[1] == []
    shown.resize(1280, 1500)
    assert shown.ask(OVER)[1] == []


def test_hostile_names_are_text(show):
    part, words = Part(odd_timeline(), HOSTILE[1], finding=HOSTILE[0]), {"title": HOSTILE[1], "subtitle": HOSTILE[2]}
    shown = show(packed=pack([part], **words, twin=HOSTILE[0], notes=[HOSTILE[0]]))
    assert shown.page.evaluate(f"{HOST}.shadowRoot.querySelectorAll('img, script').length") == 0
    assert shown.page.evaluate("document.querySelectorAll('body > img').length") == 0
    assert shown.ask("lv.view.ui.title.textContent") == HOSTILE[1]
    shown.ask("lv.go(0, 4e10)")
    for bar in range(5):
        shown.ask(f"lv.view.fit({bar})")
        shown.mouse_to(bar)
        assert shown.ask("lv.view.ui.tip.querySelector('b').textContent") in (*HOSTILE, "1 span")
        room = shown.ask("(tip => [tip.left, tip.right, innerWidth])(lv.view.ui.tip.getBoundingClientRect())")
        assert 0 <= room[0] < room[1] <= room[2]


def test_a_comparison_opens_on_one_row_for_each_loader_and_unfolds(show):
    hero = {"step": 210_000, "speedup": 1.5, "exposed": 1_000, "hidden": 2_000, "idle": 3_000, "busy": 0.5}
    parts = []
    for name, timeline in factory.loaders(4).items():
        lane = next(at for at, row in enumerate(Part(timeline).arranged[0]) if row.kind == "strip")
        parts.append(Part(timeline, name, folded=True, hero={**hero, "lane": lane}))
    shown = show(*parts, width=1366, height=768)
    assert shown.ask("lv.lanes().map(row => [row.type, row.name])") == [["part", name] for name in factory.LOADERS]
    assert shown.ask("lv.view.ui.scroll.scrollHeight <= lv.view.ui.scroll.clientHeight")
    assert shown.ask("lv.view.ui.heads.textContent").count("210 µs a step · 1.50x") == 4
    ends = shown.ask("lv.model.ends")
    assert ends == [timeline.duration for timeline in factory.loaders(4).values()]
    button = shown.button("unfold pinned")
    assert button.get_attribute("aria-expanded") == "false"
    button.click()
    rows = {row["name"] for row in shown.ask("lv.lanes()") if row["part"] == 1}
    assert rows == {"pinned", *(row.name for row in parts[1].arranged[0] if row.kind != "strip")}
    assert shown.button("fold pinned").get_attribute("aria-expanded") == "true"


def test_the_time_cursor_carries_batches_along_their_way_and_stops_at_the_end(show):
    timeline = factory.loader("prefetch", 5)
    shown = show(timeline)
    stages = "['fetch', 'pin', 'copy_h2d', 'compute']"
    way = shown.ask(f"lv.model.way(0, 3).filter(bar => {stages}.includes(lv.model.style(bar).key))")
    starts, ends = shown.ask("[given.map(bar => lv.columns.start[bar]), given.map(bar => lv.columns.end[bar])]", way)

    def place(time):
        return shown.ask("lv.place(0, 3, given)", time)

    assert place(starts[0] - 1) is place(max(ends) + 1) is None
    for bar, start, end in zip(way, starts, ends, strict=True):
        assert place((start + end) / 2) == {"bar": bar, "next": -1, "share": 0}
    for at, (end, start) in enumerate(zip(ends, starts[1:], strict=False)):
        assert start <= end or place((start + end) / 2) == {"bar": way[at], "next": way[at + 1], "share": 0.5}
    shown.ask("lv.view.play(given)", timeline.duration / 200)  # all of it in 0.2 s
    shown.page.wait_for_function(f"() => !{HOST}.lv.view.playing")
    assert shown.ask("lv.time") == shown.ask("lv.window[1]")
    shown.focus()
    shown.press("Escape")
    assert shown.ask("lv.time") == -1


def test_without_motion_play_goes_from_event_to_event(show):
    shown = show(factory.loader("blocking", 2), reduced_motion="reduce")
    shown.focus()
    shown.press(" ")
    times = {*shown.ask("[...lv.columns.start, ...lv.columns.end]")}
    assert shown.ask("lv.time") in times
    shown.press(" ")
    before = shown.ask("lv.time")
    shown.press(".")
    assert shown.ask("lv.time") == min(time for time in times if time > before)
    shown.press(",")
    assert shown.ask("lv.time") == before


STRIP_EDGE = """(() => {
    const bar = lv.model.tracks.find(each => lv.model.style(each.first).state).first, {x, y} = lv.rect(bar);
    return [...lv.view.context.getImageData(Math.round(x) + 3, Math.round(y), 1, 1).data];
})()"""
MARKS = {  # from the weakest to the strongest
    "document.documentElement.dataset.theme = 'light'": False,
    "document.documentElement.setAttribute('theme', 'dark')": True,
    "document.body.className = 'vscode-light'": False,
    "document.body.className = 'vscode-dark'": True,
    "document.body.dataset.jpThemeLight = 'true'": False,
    "document.body.dataset.jpThemeLight = 'false'": True,
    "document.documentElement.dataset.lvTheme = 'light'": False,
}


def test_the_theme_follows_the_host_before_the_system(show):
    shown = show(factory.loader("pinned", 3), color_scheme="dark")
    assert shown.ask("lv.view.theme.dark")
    for mark, dark in MARKS.items():
        shown.page.evaluate(mark)
        shown.page.wait_for_function(f"wanted => {HOST}.lv.view.theme.dark === wanted", arg=dark)
        color = shown.page.evaluate(f"getComputedStyle({HOST}).backgroundColor")
        assert color == ("rgb(22, 22, 22)" if dark else "rgb(255, 255, 255)"), mark
        shown.settle()
        assert shown.ask(STRIP_EDGE) == [*bytes.fromhex(theme.FRAME[1:]), 255], mark  # seen on both: test_picture.py


# The contrast of each text that is seen with what is behind it, below 4.5:1.
PALE = """(root => {
    const light = color => color.match(/[\\d.]+/g).slice(0, 3).map(value => value / 255)
        .map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
        .reduce((sum, value, at) => sum + value * [0.2126, 0.7152, 0.0722][at], 0);
    const solid = node => { for (let each = node; each; each = each.parentNode ?? each.host) {
        const color = each instanceof Element && getComputedStyle(each).backgroundColor;
        if (color && !/, 0\\)$/.test(color)) return color; } return 'rgb(255, 255, 255)'; };
    return [...root.querySelectorAll('*')].filter(node => node.checkVisibility() && node.tagName !== 'STYLE'
        && [...node.childNodes].some(each => each.nodeType === 3 && each.data.trim())).map(node => {
        const [one, other] = [getComputedStyle(node).color, solid(node)].map(light).sort((a, b) => b - a);
        return [node.textContent, (one + 0.05) / (other + 0.05)]; });
})(lv.view.root)"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_words_around_the_picture_can_be_read(scheme, show):
    timelines = factory.loaders(12)
    view = compare(timelines, advice={name: advise(each) for name, each in timelines.items()}, folded=True)
    shown = show(packed=view.packed(), color_scheme=scheme, width=1366, height=768)
    shown.ask("lv.view.ui.help.hidden = false")
    told = shown.ask(PALE)
    assert len(told) > 60
    assert [(text, ratio) for text, ratio in told if ratio < 4.5] == []
    shown.ask("lv.view.ui.help.hidden = true")
    types = "lv.lanes().map(row => row.type)"
    assert shown.ask(types) == ["part"] * 4
    line = shown.page.locator(".lv-view .findings li").filter(has_text="pinned: copy-not-hidden")
    line.get_by_role("button", name="show the evidence").click()
    shown.settle()
    assert shown.ask(types).count("ghost") == 1  # a prediction comes with its finding
    (part,) = {row["part"] for row in shown.ask("lv.lanes()") if row["type"] == "track"}
    assert shown.ask(f"lv.head.parts[{part}].name") == "pinned"


def test_many_lanes_batches_and_letters_are_drawn_and_reached(show):
    """40 lanes of 200 batches, each with a name of 500 letters: lanes scroll, a label fits, the last bar is found."""
    spans = [(f"stream {number} {'l' * 500}", batch * 1_000, batch * 1_000 + 900, Kind.COMPUTE,
              {"name": f"k{batch}" * 125, "batch": batch}) for number in range(40) for batch in range(200)]  # fmt: skip
    shown = show(factory.made(*spans), width=800)
    assert len({row["lane"] for row in shown.ask("lv.lanes()")}) == 41
    assert shown.ask("lv.view.surface.width") > 0.6 * 800
    shown.focus()
    shown.press("/")
    shown.page.keyboard.type("k199")
    shown.page.keyboard.press("Shift+Enter")
    shown.settle()
    assert shown.ask("lv.columns.start[lv.selection]") == 199_000
    box, room = shown.ask("lv.rect(lv.selection)"), shown.ask("lv.view.surface.height")
    assert 0 <= box["y"] <= room - box["height"]
    shown.do("lv.view.fit(lv.selection)")
    assert shown.ask("lv.drawn.labels") > 0
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= 800


def test_it_is_named_described_spoken_and_printed(show):
    shown = show(factory.loader("pinned", 3), forced_colors="active")
    described = shown.page.evaluate(f"""(host => [host.getAttribute('role'), host.ariaLabel,
        document.getElementById(host.getAttribute('aria-describedby')).textContent])({HOST})""")
    assert described == ["figure", "a finding", "In words: in words"]
    stage = shown.page.locator(".lv-view").get_by_role("application", name="a finding")
    assert stage.get_attribute("aria-roledescription") == "timeline"
    assert shown.ask("lv.drawn.rects") > 0
    assert shown.ask("lv.view.theme.forced")
    shown.page.locator(".lv-view").get_by_text("as a table").click()
    rows = shown.page.locator(".lv-view table").nth(1).locator("tr")
    rows.first.wait_for()
    spans = "lv.model.tracks.filter(each => !each.mirror && lv.model.lane(each).kind !== 'strip')"
    assert rows.count() - 1 == min(100, shown.ask(f"{spans}.reduce((sum, each) => sum + each.count, 0)"))
    shown.page.emulate_media(media="print")  # paper has the still picture
    assert shown.page.locator(".lv-still").is_visible()
    assert not shown.page.locator(".lv-view .stage").is_visible()


def test_what_a_picture_says_is_withheld_until_it_is_asked_for(show):
    timelines = factory.loaders(4)
    words = "lv.view.ui.card.innerText + lv.view.host.getAttribute('aria-label')"
    for made in (timelines["pinned"].view(verdict=False), compare(timelines, verdict=False, folded=True)):
        shown = show(packed=made.packed())
        assert "%" not in shown.ask(words)
        assert not shown.ask("lv.view.host.hasAttribute('aria-describedby')")
        shown.button("show what the picture says in words").click()
        assert shown.ask("lv.view.ui.title.textContent").replace("\xa0", " ") == made.packed()[0]["withheld"]
        assert "%" in shown.ask(words)
        assert shown.ask("lv.view.host.hasAttribute('aria-describedby')")


def test_a_race_is_framed_where_it_is_and_opens_the_picture(show):
    spans = [
        ("stream 7", 0, 1_000_000, Kind.COMPUTE, {"name": "long"}),
        ("stream 7", 1_000_000, 1_004_000, Kind.COMPUTE, {"name": "norm"}),
        ("stream 13", 1_003_000, 1_005_000, Kind.COPY_H2D, {"name": "Memcpy"}),
    ]
    said = "it overwrites; missing: record_stream at train.py:3", (1, 2), "early-reuse: it overwrites\n  fix  do not"
    marks, context = [(1_003_000, "stream 13", "early-reuse", *said)], {"origin": "emulated", "host": "host"}
    shown = show(factory.made(*spans, marks=marks, device="A100", **context))
    window = shown.ask("lv.window")
    assert 990_000 < window[0] < 1_000_000 < 1_005_000 <= window[1]
    red = shown.ask("""(data => { let count = 0;
        for (let at = 0; at < data.length; at += 4) count += data[at] > 170 && data[at + 1] < 40 && data[at + 2] < 40;
        return count; })(lv.view.overContext.getImageData(0, 0, lv.view.surface.width, lv.view.surface.height).data)""")
    assert red > 500
    line = shown.page.locator(".lv-view .findings li")
    assert "early-reuse" in line.inner_text()
    line.locator("summary").click()
    assert line.locator("pre").inner_text() == "early-reuse: it overwrites\n  fix  do not"
    shown.ask("lv.go(0, 2000)")
    line.get_by_role("button").click()
    assert shown.ask("lv.window[0]") > 900_000


def test_findings_show_their_evidence_and_what_is_predicted_stands_pale_below(show):
    timeline = factory.loader("blocking", 12)
    advice = advise(timeline)
    finding, predicted = advice[0], advice[0].predicted
    shown = show(packed=timeline.view(advice=advice).packed())
    ghost, *stairs = [row for row in shown.ask("lv.lanes()") if row["type"] == "ghost"]
    begin, end = (edge - timeline.begin for edge in advice.window)
    assert shown.ask(f"lv.model.ends[{ghost['part']}]") == begin + predicted.duration
    assert shown.ask(f"lv.head.parts[{ghost['part']}].ghost.gain") == end - begin - predicted.duration > 0
    gain = finding.expected_gain.predicted  # not the replay's own step: the path to the limit says the same
    label = f"{finding.asked} predicts {words.duration(275_000 - gain)} a step instead of 275 µs"
    assert label in shown.ask("lv.view.ui.heads.textContent")
    gains = [shown.ask(f"lv.head.parts[{each['part']}].ghost.gain") for each in (ghost, *stairs)]
    assert gains == sorted(gains) and len(stairs) == len(advice.path) - 1 > 0  # the way to the limit goes down
    for step in advice.path[1:]:
        assert f"then {step.told} a step" in shown.ask("lv.view.ui.heads.textContent")
    assert shown.ask("lv.model.search('memcpy').every(bar => lv.model.trackOf(bar).part === 0)")

    lines = shown.page.locator(".lv-view .findings li")
    assert lines.count() == len(advice)
    assert lines.first.bounding_box()["y"] < shown.page.locator(".lv-view .stage").bounding_box()["y"]
    lines.first.get_by_role("button", name="show the evidence").click()
    window, bars = shown.ask("lv.window"), shown.ask("lv.view.evidence")
    copies = timeline.where(Kind.COPY_H2D) & (timeline.start >= advice.window[0])
    assert sorted(shown.ask("given.map(bar => lv.columns.start[bar])", bars)) == timeline.start[copies].tolist()
    assert window[1] - window[0] == pytest.approx(1.3 * 275_000)  # a step, and a little on both sides
    assert finding.evidence in shown.ask("lv.view.text")
    lines.first.locator("summary").click()
    assert lines.first.locator("pre").inner_text() == finding.change


def test_lanes_fold_and_crowds_are_told_as_shares(show):
    timeline = random_bars(3, 6_000, 2, 900)
    shown = show(timeline, height=700)
    x, y = shown.origin()
    draw = random.Random(1)
    for _ in range(10):
        place = draw.uniform(0.1, 0.9) * shown.ask("lv.view.surface.width")
        top = shown.ask("lv.rect(0).y")
        hit = shown.ask("lv.at(...given)", [x + place, y + top + 10])
        begin, end = hit["from"] + timeline.begin, hit["to"] + timeline.begin
        mine = timeline.lane == 0
        inside = mine & (timeline.end > begin) & (timeline.start < end)
        cut = np.minimum(timeline.end[inside], end) - np.maximum(timeline.start[inside], begin)
        assert hit["bar"] == -1
        assert hit["count"] == inside.sum()
        assert hit["busy"] == pytest.approx(cut.sum() / (end - begin))
    shown.page.mouse.move(x + place, y + top + 10)
    shown.settle()
    assert f"{hit['count']} spans" in shown.ask("lv.view.ui.tip.textContent")

    before = {row["name"]: row["height"] for row in shown.ask("lv.lanes()")}
    name = next(iter(before))
    shown.button("fold stream 0").click()
    after = {row["name"]: row["height"] for row in shown.ask("lv.lanes()")}
    assert after.pop(name) <= before.pop(name) / 2
    assert after == before
