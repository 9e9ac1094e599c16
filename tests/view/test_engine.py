"""The explorer of a page: its JavaScript gives what Python gives, for any settings, to the nanosecond.

It runs in Node as the very module that pages have; tests/browser/test_explorer_page.py asks a browser, too.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import asdict

import factory
import numpy as np
import pytest
from unpack import unpack

from loaderviz import compare, summarize
from loaderviz.emulator.hardware import GPUS
from loaderviz.emulator.memory import OutOfMemory
from loaderviz.emulator.replay import LIFETIMES, PRESETS
from loaderviz.metrics import finding
from loaderviz.view.picture import EXPLORER, module
from loaderviz.widgets.explorer import (
    Settings,
    SettingsError,
    advice,
    explore,
    program_of,
    rates_of,
    simulate,
    tables,
)

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="node is missing: install Node.js 18 or later, for its tests")
# What is asked: tables, and for each answer an expression with `it` in it. A browser is asked the same.
ASK = """async ({ tables, expression, all }, page) => {
  const asked = new Function("it", "tables", "page", `return ${expression}`), answers = [];
  for (const it of all) {
    try {
      answers.push(JSON.stringify(await asked(it, tables, page)));
    } catch (problem) {
      answers.push(JSON.stringify({ problem: problem.constructor.name, text: problem.message }));
    }
  }
  return answers;
}"""
IN_NODE = f"""
import {{ createInterface }} from "node:readline";
import * as page from "./page.mjs";
for await (const line of createInterface({{ input: process.stdin }}))
  for (const answer of await ({ASK})(JSON.parse(line), page)) console.log(answer);
"""
ROW = "start", "end", "lane", "kind", "name", "batch", "nbytes", "correlation", "pinned", "cause", "source"
DRAWN = "start", "end", "style", "name", "batch", "nbytes", "cause", "pinned", "hidden", "tail", "head", "arrow"
ALL = """(() => {
    const { timeline: { lanes, rows, arrows }, summary, program, text } = page.workedOut(it, tables);
    const { head, columns } = page.pictured([{ timeline: { lanes, rows, arrows }, summary }], tables.looks);
    const { sets, loop, ...numbers } = summary;
    return { rows: rows.map(row => ROW.map(name => (name === "lane" ? lanes[row.lane].name : row[name]))),
      lanes: lanes.map(({ name }) => name), arrows, numbers, program, text, part: head.parts[0],
      bars: Object.fromEntries(DRAWN.map(name => [name, [...columns[name]]
        .map(each => (name === "name" ? head.names[each] : each))])) };
})()""".replace("ROW", json.dumps(ROW)).replace("DRAWN", json.dumps(DRAWN))


@contextmanager
def answers(folder, script):
    """Give a function: what an expression of JavaScript gives for each `it`; `page` is the module of this text.

    One Node answers all that is asked: what it has compiled is fast from then on.
    """
    (folder / "page.mjs").write_text(script, encoding="utf-8")
    (folder / "asks.mjs").write_text(IN_NODE, encoding="utf-8")
    pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    with subprocess.Popen([NODE, folder / "asks.mjs"], text=True, encoding="utf-8", **pipes) as node:

        def ask(expression, all_, known=None):
            print(json.dumps({"tables": known or tables(), "expression": expression, "all": all_}), file=node.stdin)
            node.stdin.flush()
            return [json.loads(node.stdout.readline()) for _ in all_]

        yield ask
        node.stdin.close()


@pytest.fixture(scope="module")
def in_page(tmp_path_factory):
    with answers(tmp_path_factory.mktemp("page"), module(*EXPLORER)) as ask:
        yield ask


def any_settings(chance, heavy=False):
    """Settings as a hand may give them: a preset or any mixture, sizes from one byte to what does not fit."""
    gpu, pick = chance.choice(list(GPUS)), chance.choice
    changed = {
        "gpu": gpu,
        "batch_size": pick([1, 8, 64, 256, 2048, 8192, 32768, chance.randint(2, 60_000)]),
        "sample_bytes": pick([1, 100, 784, 3136, 12288, 150_528, 602_112, chance.randint(1, 10**6)]),
        "compute": pick([0, 1000, 50_000, 880_000, 4_400_000, 88_000_000, chance.randint(0, 10**8)]),
        "kernels": pick([1, 2, 8, 17, 64, 200] if heavy else [1, 2, 3, 8]),
        "workers": pick([0, 1, 2, 4, 8, 12, 16, 64] if heavy else [0, 1, 2, 3, 4, 8]),
        "ranks_on_host": pick([1, 1, 2, 3, 8, 32]),
        "fetch_per_sample": pick([0, 0, 1000, 20_000, 200_000]),
        "steps": pick([1, 2, 3, 6, 20] if heavy else [1, 2, 3, 6]),
        "pinned_rate": pick([1, 6, 25, 55]) * 10**9,
        "pageable_rate": pick([1, 3, 10]) * 10**9,
        "pin": chance.random() < 0.5,
        "non_blocking": chance.random() < 0.5,
        "side_stream": chance.random() < 0.6,
        "depth": chance.randint(0, 6),
        "lifetime": pick(list(LIFETIMES)),
        "pinned_before": chance.random() < 0.1,
        "threads": chance.random() < 0.4,
        "python": pick([0, 200, 500, 1000, chance.randint(0, 1000)]),
    }
    changed |= pick([{}, PRESETS[pick(list(PRESETS))]]) | pick([{}, rates_of(gpu)])
    return Settings(**changed)


EDGES = [
    Settings(**changed)
    for changed in (
        {},
        {"steps": 1},
        {"steps": 100, "kernels": 1},
        {"batch_size": 1, "sample_bytes": 1},
        {"batch_size": 1, "sample_bytes": 65_536},
        {"batch_size": 1, "sample_bytes": 65_537},
        {"batch_size": 60_000, "sample_bytes": 100_000_000},
        {"batch_size": 20, "sample_bytes": 100_000_000, "pageable_rate": 1_000_000},
        {"batch_size": 60_000, "fetch_per_sample": 10**9},
        {"workers": 0, "pin": True, "pinned_before": True},
        {"workers": 0, "pin": True, "depth": 16},
        {"workers": 64, "ranks_on_host": 64},
        {"workers": 64, "compute": 0, "kernels": 2},
        {"compute": 10**10, "depth": 16, "side_stream": True, "lifetime": "ring"},
        {"kernels": 200, "compute": 0, "non_blocking": True, "pin": True, "depth": 8, "pinned_before": True},
        {"side_stream": True, "lifetime": "record_stream", "depth": 3, "batch_size": 64, "sample_bytes": 602_112},
        {"side_stream": True, "lifetime": "wait", "sample_bytes": 150_528, "batch_size": 32_768, "depth": 3},
        {"resident": True, "sample_bytes": 602_112, "gpu": "t4"},
        {"resident": True, "batch_size": 60_000, "sample_bytes": 12_288},
        {"pinned_rate": 10**13, "pageable_rate": 10**13, "fetch_per_sample": 1},
        {"threads": True, "python": 0, "workers": 64, "ranks_on_host": 64},
        {"threads": True, "python": 333, "batch_size": 60_000, "fetch_per_sample": 10**9},
        {"threads": True, "workers": 64, "kernels": 200, "steps": 100, "batch_size": 8},
        {"threads": True, "workers": 0, "pin": True},
        {"threads": True, "resident": True},
    )
]


def rows_of(timeline):
    return [
        [row.start, row.end, row.lane.name, int(row.kind), row.name, row.batch, row.nbytes, row.correlation, row.pinned,
         int(row.cause), int(row.source.rpartition(":")[2] or 0)]
        for row in timeline.rows()
    ]  # fmt: skip


def first_difference(settings, found):
    """Return in words the first thing that differs from Python's; "" if nothing does."""
    program = program_of(settings)
    try:
        timeline = simulate(settings, program)
    except OutOfMemory:
        return "" if found.get("problem") == "OutOfMemory" else f"{settings}: Python has no memory left"
    if "problem" in found:
        return f"{settings}: {found}"
    rows = rows_of(timeline)
    if rows != found["rows"]:
        pairs = zip([*rows, None], [*found["rows"], None], strict=False)
        return "{}: Python has {}, the page {}".format(settings, *next(pair for pair in pairs if pair[0] != pair[1]))
    summary = summarize(timeline)
    numbers = {name: getattr(summary, name) for name in found["numbers"]}
    view = timeline.view()
    head, body = view.packed()
    bars = {name: values.tolist() for name, values in unpack(head, body).items() if name in DRAWN}
    bars["name"] = [head["names"][each] for each in bars["name"]]
    told = f"{settings.words()}: {finding(summary)}. {advice(settings, summary)}"
    expected = {
        "lanes": [lane.name for lane in timeline.lanes],
        "arrows": sorted(np.stack([timeline.arrows[side] for side in ("tail", "head", "kind")], 1).tolist()),
        "numbers": numbers,
        "program": {"text": program.text, "lines": program.lines},
        "text": told,
        "part": head["parts"][0],
        "bars": bars,
    }
    found["arrows"].sort()
    for name, value in expected.items():
        if found[name] != value:
            pieces = value if isinstance(value, dict) else {"": value}
            other = found[name] if isinstance(value, dict) else {"": found[name]}
            piece = next(each for each in {**pieces, **other} if pieces.get(each) != other.get(each))
            return f"{settings}: {name} {piece}: Python has {pieces.get(piece)}, the page {other.get(piece)}"
    return ""


def check(in_page, all_):
    found = in_page(ALL, [asdict(settings) for settings in all_])
    assert len(found) == len(all_)
    for settings, each in zip(all_, found, strict=True):
        assert not (told := first_difference(settings, each)), told[:2000]
    return found


def test_settings_at_the_edges(in_page):
    found = check(in_page, EDGES)
    assert len(EDGES) == 25 and sum("problem" in each for each in found) == 2


@pytest.mark.parametrize("part", [0, factory.slow(1), factory.slow(2)])
def test_300_settings(in_page, part):
    found = check(in_page, [any_settings(random.Random(100 * part + seed)) for seed in range(100)])
    assert sum(len(each.get("rows", ())) for each in found) > 3_000


@pytest.mark.slow
@pytest.mark.parametrize("part", range(50))
def test_5000_settings(in_page, part):
    """One in ten has hundreds of kernels and dozens of workers, which Python takes ten times as long to emulate."""
    check(in_page, [any_settings(random.Random(10**6 + 100 * part + seed), seed % 10 == 0) for seed in range(100)])


@pytest.mark.parametrize("number", ["hand_out", "wake", "staged_page", "contention"])
def test_a_rule_that_the_page_does_not_follow_is_a_difference_that_names_a_span(in_page, number):
    known = tables()
    known["host"][number] += 1000
    slow = Settings(fetch_per_sample=2000)
    (found,) = in_page(ALL, [asdict(slow)], known)
    assert "Python has [" in first_difference(slow, found)


def test_what_a_page_lacks_it_refuses_by_name(in_page):
    lacks = {"prefetch_factor": 3}, {"gpu": "abacus"}
    found = in_page("page.simulate(it, tables)", list(lacks))
    assert [each["problem"] for each in found] == ["SettingsError"] * 2
    assert all(word in each["text"] for word, each in zip(("prefetch_factor", "abacus"), found, strict=True))


def test_typed_values_are_taken_and_refused_as_python_does(in_page):
    good = {"workers=3, batch_size=1_000": {"workers": 3, "batch_size": 1000}, "pin=True": {"pin": True},
            " gpu='t4',lifetime=\"ring\" ": {"gpu": "t4", "lifetime": "ring"}, "": {}}  # fmt: skip
    bad = {"wokers=3": {"wokers": 3}, "workers=-1": {"workers": -1}, "steps=101": {"steps": 101}, "pin=3": {"pin": 3}}
    ill = {
        "3": "3 sets nothing",
        "workers=": "sets nothing",
        "gpu='abacus'": "h100, ",
        "depth=x": "depth is ",
        "gpu='constructor'": "gpu is constructor",
        "toString=1": "no setting toString",
    }
    found = in_page("page.typed(it, tables)", [*good, *bad, *ill])
    assert found[: len(good)] == list(good.values())
    for values, refused in zip(bad.values(), found[len(good) :], strict=False):
        with pytest.raises(SettingsError) as error:
            Settings().change(**values)
        assert refused == {"problem": "SettingsError", "text": str(error.value)}
    for said, refused in zip(ill.values(), found[-len(ill) :], strict=True):
        assert said in refused["text"]


def test_a_calibrated_gpu_is_there_by_its_file(in_page, tmp_path):
    file = tmp_path / "my_gpu.json"
    file.write_text(json.dumps({"gpu": {"preset": "t4", "name": "mine", "queue_gap": 3_000}}))
    settings = explore(gpu=str(file)).settings
    (found,) = in_page(ALL, [asdict(settings)], tables(str(file)))
    assert first_difference(settings, found) == ""
    assert found["text"].startswith("MY_GPU, ")


def test_several_timelines_are_drawn_as_a_comparison(in_page):
    """Their bars, one after the other, and the numbers beside each row."""
    all_ = {name: Settings(**preset) for name, preset in PRESETS.items()}
    made = """(() => {
        const parts = Object.entries(it).map(([name, settings]) => ({ name, ...page.workedOut(settings, tables) }));
        const { head, columns } = page.pictured(parts, tables.looks, { folded: true });
        return { parts: head.parts, bars: Object.fromEntries(DRAWN.map(name => [name, [...columns[name]]
            .map(each => (name === "name" ? head.names[each] : each))])) };
    })()""".replace("DRAWN", json.dumps(DRAWN))
    (found,) = in_page(made, [{name: asdict(settings) for name, settings in all_.items()}])
    head, body = compare({name: simulate(each) for name, each in all_.items()}).packed()
    bars = {name: values.tolist() for name, values in unpack(head, body).items() if name in DRAWN}
    bars["name"] = [head["names"][each] for each in bars["name"]]
    assert found["bars"] == bars
    told = [{key: part[key] for key in ("name", "folded", "hero", "lanes", "duration")} for part in head["parts"]]
    assert [{key: part[key] for key in told[0]} for part in found["parts"]] == told


def test_a_picture_has_only_the_lanes_that_are_asked_for_and_no_arrow_to_another(in_page):
    ask = """(() => {
        const only = ["default", "side"];
        const { head, columns } = page.pictured([page.workedOut(it, tables)], tables.looks, { only });
        return [head.parts[0].lanes.map(({ short }) => short), head.rows, [...columns.tail, ...columns.head]];
    })()"""
    ((lanes, bars, ends),) = in_page(ask, [asdict(Settings(**PRESETS["prefetch"]))])
    assert lanes == ["default", "side"] and ends and max(ends) < bars
