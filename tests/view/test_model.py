"""What the view knows (model.js) and what its numbers are made of (numbers.js), in Node: no page, no pixel."""

import gzip
import random
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from factory import made as made_of
from factory import script
from test_engine import NODE, answers
from unpack import unpack

from loaderviz import intervals, words
from loaderviz.timeline import Cause, Kind
from loaderviz.view import theme
from loaderviz.view.lanes import _ENGINES as ENGINES
from loaderviz.view.picture import EXPLORER, module
from loaderviz.view.spoken import SECTIONS, words_in
from loaderviz.widgets.explorer import Settings, simulate

made = script("docs/site.py")
VIEW = Path(words.__file__).parent / "view"
needs_node = pytest.mark.skipif(NODE is None, reason="node is missing: install Node.js 18 or later, for its tests")
INSIDE = """Model, word, story, facts, duration, size, share, times, ticks, placeOf, bisect, ceilOf, union, intersect,
    subtract, lengthOf, median, rounded"""
MODEL = """const model = new page.Model(it.head, Object.fromEntries(Object.entries(it.columns)
    .map(([name, values]) => [name, Float64Array.from(values)])));"""


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """What Node answers with the module and the names inside of it."""
    with answers(tmp_path_factory.mktemp("model"), f"{module(*EXPLORER)}\nexport {{ {INSIDE} }};") as ask:
        yield ask


def with_model(expression):
    return f"(() => {{ {MODEL} return {expression}; }})()"


def shown(timeline, **head):
    """A timeline as `MODEL` takes it."""
    about, body = timeline.view().packed()
    return {"head": about | head, "columns": {name: each.tolist() for name, each in unpack(about, body).items()}}


def one_track(bars, names=("",), batch=()):
    """A picture of one lane; `bars` are [start, end)."""
    count = len(bars)
    columns = {name: [0] * count for name in ("style", "name", "cause", "pinned", "source")}
    columns |= {"nbytes": [-1] * count, "hidden": [255] * count, "count": [1] * count, "batch": [-1] * count}
    columns |= {"start": [start for start, _ in bars], "end": [end for _, end in bars]}
    columns |= {"tail": [], "head": [], "arrow": [], "name": [at % len(names) for at in range(count)]}
    if batch:
        columns["batch"] = list(batch)
    lane = {"name": "a lane", "kind": "stream", "role": "", "tracks": [{"count": count, "mirror": False}]}
    head = {"parts": [{"lanes": [lane], "duration": 1}], "names": list(names), "rows": count, "causes": [""]}
    return {"head": head | {"styles": [{"key": "compute", "name": "kernel", "height": 1}]}, "columns": columns}


# The body


@needs_node
def test_a_body_is_read_as_python_has_packed_it(ask):
    settings = [
        Settings(),
        Settings(steps=1, kernels=1),
        Settings(batch_size=20, sample_bytes=100_000_000),  # sizes of 31 bits and more
        Settings(side_stream=True, depth=3, pin=True, non_blocking=True, lifetime="ring"),
        Settings(resident=True),
    ]
    given = []
    for each in settings:
        head, body = simulate(each).view().packed()
        plain = gzip.decompress(body) if head["codec"] == "gzip" else body
        packed = {"raw": plain, "gzip": gzip.compress(plain)}
        given += [(head | {"codec": codec}, list(bytes_)) for codec, bytes_ in packed.items()]
    found = ask(
        "page.decode(it[0], Uint8Array.from(it[1])).then(columns => Object.fromEntries(Object.entries(columns)"
        ".map(([name, values]) => [name, [...values]])))",
        given,
    )
    for (head, body), columns in zip(given, found, strict=True):
        expected = unpack(head, bytes(body))
        assert columns == {name: values.tolist() for name, values in expected.items()}


@needs_node
def test_a_body_that_is_cut_off_or_no_gzip_is_refused(ask):
    head, body = simulate(Settings()).view().packed()
    plain = list(gzip.decompress(body) if head["codec"] == "gzip" else body)
    given = [
        (head | {"codec": "raw"}, plain[:-1]),
        (head | {"codec": "raw"}, []),
        (head | {"codec": "gzip"}, plain[:50]),
        (head | {"codec": "gzip"}, []),
    ]
    short, empty, broken, nothing = ask("page.decode(it[0], Uint8Array.from(it[1]))", given)
    for each in (short, empty):
        assert re.fullmatch(rf"the body has \d+ bytes, its columns need {len(plain)}", each["text"])
    assert broken["problem"] and nothing["problem"]


# What is where


@needs_node
def test_bars_are_found_as_by_looking_at_each(ask):
    chance, given, expected = random.Random(43), [], []
    for _ in range(60):
        edges = sorted(chance.choices(range(60), k=2 * chance.randint(1, 9)))  # of no length, and touching, too
        bars = list(zip(edges[::2], edges[1::2], strict=True))
        start, end = sorted(chance.sample(range(-5, 66), 2))
        time, reach = chance.randint(-5, 65), chance.randint(0, 4)
        given.append(one_track(bars) | {"asked": [start, end, time, reach]})
        mine = [max(0, min(e, end) - max(s, start)) for s, e in bars]
        away = [max(s - time, time - e, 0) for s, e in bars]
        low = time - reach  # a bar has its start, but not its end
        near = [at for at, (s, e) in enumerate(bars) if away[at] <= reach and (s >= low or e > low)]
        best = min((away[at] for at in near), default=None)
        expected.append((sum(mine), best))
    found = ask(
        with_model(
            "[model.crowd(model.tracks[0], ...it.asked.slice(0, 2)).busy,"
            " model.barAt(model.tracks[0], it.asked[2], it.asked[3]), model.shares(model.tracks[0], ...it.asked)]"
        ),
        given,
    )
    for each, (busy, best), (crowd, bar, shares) in zip(given, expected, found, strict=True):
        assert crowd == busy == shares.get("compute", 0), each
        start, end = (each["columns"][name] for name in ("start", "end"))
        time = each["asked"][2]
        assert (None if bar < 0 else max(start[bar] - time, time - end[bar], 0)) == best, each


@needs_node
@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("CONV", [0, 2]),
        ("  conv2d  ", [0]),
        ("3", [1, 3]),
        ("batch 3", [3]),
        ("batch3", [3]),
        ("", []),
        (" \t\n", []),
        (".*", []),
        ("[", [1]),
        ("__proto__", [4]),
        ("卷积", [2]),
        ("x" * 100_000, []),
    ],
)
def test_names_and_batches_are_searched(ask, text, rows):
    names = ["conv2d", "gemm[3]", "卷积 conv", "copy", "__proto__"]
    given = one_track([(at, at + 1) for at in range(5)], names, batch=[0, 1, 2, 3, -1]) | {"text": text}
    (found,) = ask(with_model("model.search(it.text)"), [given])
    assert found == rows


@needs_node
def test_a_batch_is_between_two_stations_or_in_one(ask):
    given = one_track([(0, 10), (10, 10), (20, 30)])
    times = [-1, 0, 5, 10, 15, 19.5, 20, 30, 30.5]
    (found,) = ask(with_model(f"{times}.map(time => page.placeOf(model, [0, 1, 2], time))"), [given])
    shares = [each and (each["bar"], each["next"], each["share"]) for each in found]
    assert shares[0] is None and shares[-1] is None
    assert shares[1:3] == [(0, -1, 0), (0, -1, 0)]
    assert shares[4:6] == [(1, 2, 0.5), (1, 2, 0.95)] and shares[6:8] == [(2, -1, 0), (2, -1, 0)]
    assert ask(with_model("page.placeOf(model, [], 5)"), [given]) == [None]


# Words


@needs_node
def test_numbers_are_written_as_python_writes_them(ask):
    chance = random.Random(44)
    values = [0, 1, 2, 5, 999, 999.4, 999.5, 1000, 1001, 9995, 99_950, 999_499, 999_500, 999_950_000, 2.5, 0.5, 12.345]
    values += [1_500_000_000, 3_010_560_000, 10**15] + [
        chance.randint(1, 10 ** chance.randint(1, 13)) for _ in range(400)
    ]
    found = ask("[page.duration(it), page.size(it), page.times(it / 1000), page.share(it / 1e4)]", values)
    for value, each in zip(values, found, strict=True):
        mine = [words.duration(value), words.size(value), words.times(value / 1000), words.share(value / 1e4)]
        assert each == mine, value


@needs_node
def test_ticks_are_round_and_no_more_than_asked_for(ask):
    chance = random.Random(45)
    given = [[start, start + 10 ** chance.uniform(0, 10), chance.randint(1, 30)]
             for start in [0, *(chance.uniform(0, 10**9) for _ in range(80))]]  # fmt: skip
    for (start, end, most), found in zip(given, ask("page.ticks(...it)", given), strict=True):
        times, step = found["times"], found["step"]
        assert len(times) <= most + 1 and all(start - step / 1e6 <= time <= end + step / 1e6 for time in times)
        assert re.fullmatch(r"[125]0*|1", f"{step:.0f}") or step < 1
        assert np.allclose(np.diff(times), step) and np.allclose(np.mod(np.array(times) / step + 0.5, 1), 0.5)


@needs_node
@pytest.mark.parametrize(
    ("text", "values", "said"),
    [
        ("batch 1,234", None, "批次 1,234"),
        ("a step, 12.3 ms", None, "每步 12.3 ms"),
        ("batch 17: 4096 samples", None, "批次 17：4096 个样本"),
        ("side stream 13,", None, "side stream 13,"),
        ("constructor", None, "constructor"),
        ("__proto__", None, "__proto__"),
        ("hasOwnProperty", None, "hasOwnProperty"),
        ("", None, ""),
        ("{thing}", None, "{thing}"),  # a name of a user's is no gap
        ("{name}, {time} in all", {"name": "{time}", "time": "$& $1 #"}, "{time}，共 $& $1 #"),
        ("batch {batch}: {name}", {"batch": 7, "name": "<b>"}, "批次 7：<b>"),
        ("no such text of 3 words", None, "no such text of 3 words"),
    ],
)
def test_a_word_is_in_the_readers_language_or_stays(ask, text, values, said):
    expression = "page.word({ head: { words: it.words } }, it.text, it.values ?? undefined)"
    given = {"words": words_in("zh"), "text": text, "values": values}
    assert ask(expression, [given]) == [said]
    (english,) = ask(expression, [given | {"words": {}}])
    assert english == (made.fill(text, {name: str(each) for name, each in values.items()}) if values else text)


LATIN = re.compile(r"[A-Za-z]{2,}")
NAMES = {
    "GPU",
    "CUDA",
    "ms",
    "ns",
    "MB",
    "kB",
    "GB",
    "bytes",
    "DataLoader",
    "hand",
    "out",
    "memset",
    "rank",
    "loaderviz",
}


def named(timeline):
    """The words that a user's or CUDA's names are made of."""
    return NAMES | {word for name in timeline.names for word in LATIN.findall(name)}


@needs_node
@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(pin=True, non_blocking=True, side_stream=True, depth=2),
        Settings(workers=0),
        Settings(side_stream=True, lifetime="record_stream", depth=3, batch_size=64),
    ],
    ids=["blocking", "ahead", "no workers", "recorded"],
)
def test_the_story_of_each_bar_is_in_chinese(ask, settings):
    timeline = simulate(settings)
    told = "[...it.columns.start.keys()].map(bar => [...page.facts(model, bar), ...page.story(model, bar)])"
    english, chinese = ask(with_model(told), [shown(timeline), shown(timeline, words=words_in("zh"))])
    allowed, sources = named(timeline), {*timeline.sources}
    for mine, other in zip(english, chinese, strict=True):
        assert len(mine) == len(other) and mine != other
        for line in {*other} - sources:
            assert not [each for each in LATIN.findall(line) if each not in allowed], line
            assert "undefined" not in line and "{" not in line
    assert settings.side_stream == any("waits" in line for mine in english for line in mine)


@needs_node
def test_a_fetch_says_what_most_of_it_is_and_how_long_it_waits(ask):
    """It is no host that is blocked."""
    known = {"cause": Cause.READ, "waited": 80_000, "nbytes": 4_000, "batch": 0}
    timeline = made_of(("worker 0", 0, 100_000, Kind.FETCH, known), ("main", 0, 100_000, Kind.FETCH, {"batch": 1}))
    lines = [
        line for bar in ask(with_model("[...it.columns.start.keys()].map(bar => page.story(model, bar))"),
                            [shown(timeline)])[0] for line in bar
    ]  # fmt: skip
    assert lines == ["most of it is reading files", "waits 80 µs, and takes 20 µs of a core"]


def test_each_text_is_written_somewhere_and_each_that_is_written_has_its_chinese():
    every = tomllib.loads((VIEW / "texts.toml").read_text(encoding="utf-8"))
    known = {english: each for english, each in every.items() if english not in SECTIONS}
    code = "\n".join(path.read_text(encoding="utf-8") for path in VIEW.glob("*.js"))
    literals = set(re.findall(r'"((?:[^"\\\n]|\\.)*)"', code)) | set(re.findall(r"^  (\w+): \"", code, re.M))
    from_python = {style.name for style in (*theme.STYLES, theme.NO_BATCH)} | {
        name for row in ENGINES for name in row[:3]
    }
    from_python |= {*theme.LEGEND.values(), "default stream", "side stream"}
    from_python |= {cause.words for cause in list(Cause)[1:]} | {row for row in known if "#" in row or "main" in row}
    from_python |= {each for each in known if each.startswith("idle: ") or each in ("exposed", "hidden", "pin")}
    assert sorted(set(known) - literals - from_python) == []
    asked = set(re.findall(r'\b(?:word\((?:view|model|this|of|frame\.view), |say\()\s*"([^"]+)"', code))
    asked |= {*theme.LEGEND.values(), theme.WAITED, "default stream", "side stream", "main thread: loads, calls"}
    asked |= {style.name for style in theme.STYLES} | {cause.words for cause in list(Cause)[1:]}
    asked |= {name for row in ENGINES for name in row[:3]}
    assert sorted(asked - set(known)) == []
    for english, each in known.items():
        gaps = [sorted(re.findall(r"\{\w+\}|#", text)) for text in (english, each["zh"])]
        assert gaps[0] == gaps[1] and each["zh"].strip(), english


# Sets of times, and whole numbers


@needs_node
def test_sets_of_intervals_are_those_of_python(ask):
    chance, given = random.Random(46), []
    for _ in range(120):
        one, other = ([sorted(chance.choices(range(40), k=2)) for _ in range(chance.randint(0, 7))] for _ in "12")
        given.append([one, other])
    found = ask(
        "(() => { const [one, other] = it.map(page.union); return [one, page.intersect(one, other),"
        " page.subtract(one, other), page.lengthOf(one)]; })()",
        given,
    )
    for pair, each in zip(given, found, strict=True):
        one, other = (intervals.union(*np.array(part, np.int64).reshape(-1, 2).T) for part in pair)
        sets = [one, intervals.intersect(one, other), intervals.subtract(one, other)]
        assert each == [*(part.tolist() for part in sets), intervals.length(one)], pair


@needs_node
def test_whole_numbers_are_exact_beyond_what_a_double_holds(ask):
    chance = random.Random(47)
    given = [[chance.randint(0, 10 ** chance.randint(1, 15)), chance.randint(1, 10**10), chance.randint(1, 10**13)]
             for _ in range(300)] + [[0, 10**9, 1], [2**53 - 1, 1, 1], [2**53 - 1, 10**9, 10**9]]  # fmt: skip
    expected = [-(-a * b // c) for a, b, c in given]
    kept = [(row, value) for row, value in zip(given, expected, strict=True) if value < 2**53]
    assert ask("page.ceilOf(...it)", [row for row, _ in kept]) == [value for _, value in kept]
    halves = [0.5, 1.5, 2.5, -0.5, -1.5, 3.49, 7.51, 0]
    assert ask("page.rounded(it) + 0", halves) == [round(each) for each in halves]
    rows = [[1], [2, 1], [3, 1, 2], [4, 1, 3, 2], [5, 5, 1, 1]]
    assert ask("page.median(it)", rows) == [float(np.median(each)) for each in rows]
