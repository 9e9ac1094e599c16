"""The board's page in a browser: hostile names are text, nobody else is asked, nothing is cut off on a wall."""

import threading
import time

import pytest

from loaderviz.workshop import EXERCISES, board
from loaderviz.workshop.rooms import Row

pytestmark = pytest.mark.browser
HOSTILE = '<img src="http://192.0.2.1/x.png" onerror="document.title = 1">'
CUT = """[...document.querySelectorAll('section')].map(each => each.scrollHeight - each.clientHeight)
    .concat(document.documentElement.scrollWidth - innerWidth, document.documentElement.scrollHeight - innerHeight)"""


@pytest.mark.parametrize(("width", "height", "scheme"), [(1280, 800, "light"), (1920, 1080, "dark")])
@pytest.mark.parametrize("many", [0, 1, 25, 90])
def test_a_room_fits_on_the_wall(chromium, many, width, height, scheme):
    kept, now = board.Kept(), int(time.time())
    for number in range(many):
        name = HOSTILE if number == 0 else f"learner {number} 李雷"
        for about in list(EXERCISES)[: number % 12 + 1]:
            kept.add(Row("check", name, about, "not yet", 9 + number, 3_000_000, now))
        kept.add(Row("check", name, "8.1", "not yet", 9 + number, 3_000_000, now))
        for about in ("Which <b>one</b>? " * 9, "And then?", "哪一行在等待？"):
            kept.add(Row("vote", name, about, f"{number % 3 + 1}. {HOSTILE}", at=now))
    server = board.Server("127.0.0.1", 0, "CODE", kept)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address, asked, said = f"http://127.0.0.1:{server.port}/CODE", [], []
    page = chromium.new_page()
    try:
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.goto(address)
        page.wait_for_selector("th + th")
        assert all(url.startswith(address) for url in asked) and said == []
        assert max(page.evaluate(CUT)) <= 1
        assert page.locator("img, b img, section script").count() == 0
        assert page.title() == f"Stuck: {many}"
        left = many - page.locator("tr").count() + 1
        assert (f"{left} more people" in page.inner_text("#people p")) == (left > 0)
        assert left == 0 or many > 25
        if many:
            assert page.locator("td", has_text=HOSTILE[:20]).count() == (left == 0)  # the one who is stuck for least
            size = "parseFloat(getComputedStyle(document.querySelector('#stuck b')).fontSize)"
            assert page.evaluate(size) >= height / 40  # read from the back: 20 px of 800
        server.shutdown()
        server.server_close()
        page.locator("footer", has_text="does not answer").wait_for()
    finally:
        page.close()
        server.shutdown()
        server.server_close()
