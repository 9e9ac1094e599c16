"""The front page without a browser: its texts, its numbers, its addresses, and where it is written."""

import json
import random
import re
import shutil
import string
import subprocess
from dataclasses import asdict

import pytest
from factory import script
from test_engine import NODE, answers, any_settings

from loaderviz import summarize
from loaderviz.emulator.memory import OutOfMemory
from loaderviz.view.picture import EXPLORER, module
from loaderviz.widgets.explorer import Settings, rates_of, simulate, tables

made = script("docs/site.py")
GAP = re.compile(r"\{\w+\}")
needs_node = pytest.mark.skipif(NODE is None, reason="node is missing: install Node.js 18 or later, for its tests")


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """What Node answers with the script of the front page."""
    story = (made.STORY / "story.js").read_text(encoding="utf-8")
    with answers(tmp_path_factory.mktemp("story"), module(*EXPLORER) + story) as ask:
        yield ask


# Texts


def test_each_text_is_there_in_both_languages_with_the_same_gaps():
    for key, text in made.TEXTS.items():
        assert set(text) == {"en", "zh"} and all(each.strip() for each in text.values()), key
        assert sorted(GAP.findall(text["en"])) == sorted(GAP.findall(text["zh"])), key
        assert re.search("[\u4e00-\u9fff]", text["zh"]) and not re.search("[\u4e00-\u9fff]", text["en"]), key


def test_no_number_is_typed_into_a_text():
    for key, text in made.TEXTS.items():
        assert not [each for each in text.values() if re.search(r"\d", each)], key


def test_each_text_is_used_and_none_is_missing():
    script_, page = ((made.STORY / name).read_text(encoding="utf-8") for name in ("story.js", "page.html"))
    used = {key.replace("-", "_"): key for key in made.TEXTS}
    named = {used[name] for name in re.findall(r"\$(\w+)", page) if name in used}
    for scene, about in made.SCENES.items():
        named |= {f"{scene}-{part}" for part in ("title", "text", "said")}
        named |= {f"{scene}-row-{row}" for row in about["rows"] if not about["lanes"]}
        named |= {f"{scene}-{key}" for key in re.findall(r'text\("([\w-]+)"', script_)} & set(made.TEXTS)
    named |= {f"guess-choice-{row}" for row in made.SCENES["guess"]["rows"]} & set(made.TEXTS)
    named |= {
        "guess-right",
        "guess-wrong",
        "numbers-text",
        "lessons-book",
        "lessons-no-book",
        "legend",
        "name",
        "other",
    }
    named |= set(re.findall(r'texts(?:\.|\[")([\w-]+)', script_))
    assert sorted(named - set(tables()["texts"])) == sorted(made.TEXTS)


@pytest.mark.parametrize("scene", made.SCENES)
def test_a_scene_says_two_to_four_sentences_and_all_its_gaps_are_filled(scene):
    for language, stop in (("en", r"[.?!](?=\s|$)"), ("zh", "[。？！]")):
        values = made.values_of(made.SCENES[scene], language)
        text = made.told(f"{scene}-text", language, values)
        assert 2 <= len(re.findall(stop, re.sub("`.*?`", "", text))) <= 4, text
        assert not re.search(r"[{}]", text + made.told(f"{scene}-said", language, values))


def test_a_gap_that_nothing_fills_is_an_error_that_names_it():
    with pytest.raises(KeyError, match="nobody"):
        made.fill("{now_step} {nobody}", {"now_step": "1 ms"})


def test_the_scripts_are_short_and_their_lines_fit_beside_each_other_on_a_screen():
    scripts = [each for folder in ("loaderviz", "docs") for each in (made.ROOT / folder).rglob("*.js")]
    lines = {path: path.read_text(encoding="utf-8").splitlines() for path in scripts}
    assert {"view.js", "story.js", "choices.js", "load.js", *EXPLORER} <= {path.name for path in scripts}
    assert [(path.name, line) for path, mine in lines.items() for line in mine if len(line) > 100] == []
    assert sum(map(len, lines.values())) <= 6_000


@pytest.mark.skipif(not shutil.which("make"), reason="make is missing")
def test_what_checks_javascript_is_named_exactly_and_make_says_where_it_is_not_there(tmp_path):
    tools = json.loads((made.ROOT / "package.json").read_text(encoding="utf-8"))["devDependencies"]
    assert {"prettier", "eslint"} <= set(tools) and all(re.fullmatch(r"\d+\.\d+\.\d+", each) for each in tools.values())
    for name in ("Makefile", "pyproject.toml", "requirements.txt", "requirements-dev.txt"):
        shutil.copy(made.ROOT / name, tmp_path)

    def make(*goals):
        return subprocess.run(["make", *goals], cwd=tmp_path, capture_output=True, text=True, encoding="utf-8")

    alone = make("check-js")
    assert alone.returncode != 0 and "node_modules is missing" in alone.stderr
    assert "eslint" not in make("-n", "check").stdout  # so that CI needs no npm
    (tmp_path / "node_modules").mkdir()
    assert "node_modules/.bin/eslint" in make("-n", "check").stdout


# Numbers


@needs_node
@pytest.mark.parametrize("language", made.PAGES)
@pytest.mark.parametrize("scene", made.SCENES)
def test_the_page_works_out_what_its_prose_says(asked, scene, language):
    known = tables(language=language)
    about = made.SCENES[scene] | {"settings": asdict(made.SCENES[scene]["settings"])}
    assert asked("page.valuesOf(it, tables)", [about], known) == [made.values_of(made.SCENES[scene], language)]


@needs_node
def test_the_page_works_out_what_python_does_for_other_settings(asked):
    chance, scenes = random.Random(41), []
    while len(scenes) < 40:
        scene, settings = dict(chance.choice(list(made.SCENES.values()))), any_settings(chance)
        try:
            [simulate(settings.change(**changes)) for changes in scene["rows"].values()]
        except OutOfMemory:
            continue
        scenes.append(scene | {"settings": settings})
    given = [scene | {"settings": asdict(scene["settings"])} for scene in scenes]
    assert asked("page.valuesOf(it, tables)", given) == [made.values_of(scene) for scene in scenes]


def test_the_story_is_what_its_words_say():
    """Where a number changes, its sentence has to be read again."""
    linked = rates_of("t4")
    steps = {summarize(simulate(Settings(gpu=gpu, **linked))).step for gpu in tables()["gpus"]}
    assert len(steps) == 1  # of the first picture: no GPU differs by more than its link
    assert "{now_compute}" in made.TEXTS["now-text"]["en"] and "gpu" in made.SCENES["now"]["controls"]
    guess = {name: each[2].step for name, each in made.worked_out(made.SCENES["guess"]).items()}
    assert min(guess, key=guess.get) == "prefetch" and guess["workers"] == guess["now"]
    assert made.worked_out(made.SCENES["pinned"])["now"][2].overlap == 0
    assert made.worked_out(made.SCENES["prefetch"])["now"][2].overlap > 0.9
    now, best = made.worked_out(made.SCENES["nothing"]).values()
    assert 1 <= now[2].step / best[2].step < 1.05


# The race


@pytest.mark.slow
def test_the_loop_has_a_race_and_with_the_line_that_is_missing_none(monkeypatch, tmp_path):
    frozen = made.race()
    assert frozen["values"]["line"] == "main.wait_stream(side)" and frozen["head"]["parts"][0]["marks"]
    assert frozen["head"]["plain"] and len(frozen["body"]) < 4_000
    (tmp_path / "race.txt").write_text(frozen["code"].replace("# main", "main"), encoding="utf-8")
    monkeypatch.setattr(made, "STORY", tmp_path)
    assert not made.recorded().hazards
    with pytest.raises(ValueError, match="unpack"):
        made.race()


# Addresses


def addresses(asked, hashes):
    return asked("(({ settings, wrong }) => [settings, wrong])(page.settingsOf(it, tables))", hashes)


@needs_node
def test_settings_go_into_an_address_and_come_back(asked):
    chance, kept = random.Random(7), []
    while len(kept) < 100:
        settings = any_settings(chance)
        try:
            simulate(settings)
        except OutOfMemory:
            continue
        kept.append(asdict(settings))
    hashes = asked("page.addressOf(it, tables)", kept)
    assert max(map(len, hashes)) < 400 and all(set(each) <= set(string.ascii_letters + string.digits + "_=&#-")
                                               for each in hashes)  # fmt: skip
    assert addresses(asked, hashes) == [[settings, False] for settings in kept]
    assert asked("page.addressOf(it, tables)", [asdict(Settings())]) == [""]
    linked = Settings(gpu="t4", **rates_of("t4"))  # a GPU brings its link, but another may be asked for
    assert asked("page.addressOf(it, tables)", [asdict(linked)]) == ["#gpu=t4"]


HOSTILE = [
    "#workers=-1", "#workers=65", "#workers=NaN", "#workers=Infinity", "#workers=1e9", "#workers=1.5", "#workers=0x10",
    "#workers=", "#workers", "#workers=4&", "#&", "#=", "#workers=4=4", "#workers=4&workers=5", "#workers=true",
    "#workers=" + "9" * 15, "#workers=" + "9" * 400, "#" + "a=1&" * 5_000, "#pin=1", "#pin=True", "#pin=null",
    "#gpu=abacus", "#gpu=", "#gpu=constructor", "#gpu=__proto__", "#gpu=4", "#lifetime=toString", "#lifetime=0",
    "#__proto__=1", "#constructor=1", "#hasOwnProperty=1", "#nothing=1", "#WORKERS=4", "#steps=101",
    "#<script>alert(1)</script>=1", "#workers=<img src=x onerror=alert(1)>", "#workers=4%00", "#%", "#%E0%A4%A",
    "#workers=４", "#workers=٤", "#workers=4;pin=true", "#workers = 4", "#workers=4\n", "#workers=4#pin=true",
    "#javascript:alert(1)", "#gpu=t4&resident=true&sample_bytes=602112", "#batch_size=60000&sample_bytes=100000000",
    "#batch_size=" + "9" * 23, "#ｗorkers=4", "#gpu=a100 ", "#workers=+4", "#workers=04.0", "#threads=1",
    "#python=1001",
]  # fmt: skip


@needs_node
def test_an_address_that_means_nothing_gives_the_first_settings_and_says_so(asked):
    for hash_, found in zip(HOSTILE, addresses(asked, HOSTILE), strict=True):
        if hash_ not in ("#workers",):  # a place of the page that does not exist
            assert found == [asdict(Settings()), True], hash_


@needs_node
def test_a_place_in_the_page_is_no_setting_and_what_a_host_has_escaped_is_read(asked):
    assert addresses(asked, ["", "#", "#numbers", "#doors", "#x-1"]) == [[asdict(Settings()), False]] * 5
    escaped = addresses(asked, ["#gpu%3Dt4&workers=3", "#workers=03"])
    assert escaped == [
        [asdict(Settings(gpu="t4", workers=3, **rates_of("t4"))), False],
        [asdict(Settings(workers=3)), False],
    ]


# Files


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return made.site(tmp_path_factory.mktemp("a folder 中文") / "not" / "yet").parent


def test_a_page_is_small_and_names_no_other_host(built):
    import gzip

    for name in made.PAGES.values():
        page = (built / name).read_bytes()
        assert len(gzip.compress(page, 6)) < 80_000
        text = page.decode().replace("http://www.w3.org/2000/svg", "")
        assert not re.findall(r"https?://|//[a-z]+\.[a-z]|@import|url\((?!data:)", text)
        assert not re.findall(r"localStorage|sessionStorage|indexedDB|document\.cookie|XMLHttp|sendBeacon", text)
        assert "$" + "data" not in text and "unsafe-eval" not in text


def test_pages_name_their_language_and_the_other_and_each_picture_is_there(built):
    for language, name in made.PAGES.items():
        text = (built / name).read_text(encoding="utf-8")
        assert f'<html lang="{language}">' in text and text.count("<h1>") == 1
        for source in re.findall(r'src="([^"]+)"|<a [^>]*href="([^"#]+?)(?:\?|")', text):
            assert (built / next(filter(None, source))).is_file(), source
        ids = re.findall(r' id="([^"]+)"', text.split("<script")[0])
        assert len(ids) == len(set(ids))
        assert set(re.findall(r'(?:aria-labelledby|for)="([^"]+)"', text.split("<script")[0])) <= set(ids)


def test_a_folder_with_something_else_stays_and_an_older_site_goes(built, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="is no site"):
        made.site(tmp_path)
    with pytest.raises(FileExistsError, match="is no site"):
        made.site(tmp_path / "thesis.txt")
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    with pytest.raises(FileNotFoundError, match="there is no book"):
        made.site(tmp_path / "out", tmp_path)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_book_stands_behind_its_door(tmp_path):
    book = tmp_path / "book"
    book.mkdir()
    (book / "index.html").write_text("the book")
    for _ in range(2):  # the second in place of the first
        first = made.site(tmp_path / "site", book)
        for language, name in made.PAGES.items():
            (door,) = re.findall('class="door" href="([^"]+)"', (first.parent / name).read_text(encoding="utf-8"))
            assert door == f"book/{made.DOORS[language]}" and ("/zh/" in door) == (language == "zh")
        assert (first.parent / "book" / "index.html").read_text() == "the book"
        (first.parent / "old.html").touch()
    assert not (made.site(tmp_path / "site").parent / "old.html").exists()
