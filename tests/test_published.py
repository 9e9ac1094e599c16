"""Published measurements: the tables are whole, the hold-out is frozen, and pipelines stay within reach."""

import csv
import re
import statistics
from pathlib import Path

import pytest

from benchmarks.published import CARDS, card, is_frozen, predict, rows
from benchmarks.validate import origin
from loaderviz.emulator.hardware import GPUS

ROOT = Path(__file__).resolve().parents[1]
PARTS, USES = {"loader", "host", "copy", "kernel"}, {"fitted", "same", "unseen", "held out"}


def test_nobody_changed_what_was_held_out():
    assert is_frozen()
    assert {row.used for row in rows("held_out")} == {"held out"}
    assert "held out" not in {row.used for row in rows("published")}


def test_each_row_can_be_predicted_and_stands_once():
    every = rows()
    for row in every:
        assert row.part in PARTS and row.used in USES and row.unit == "ms" and row.measured > 0 and row.source, row
        assert row.part == "loader" or row.machine in {*GPUS, *CARDS}, row
    named = [(row.source, row.machine, row.item) for row in every]
    assert len(named) == len(set(named))


def test_a_card_without_a_preset_is_made_of_a_relative():
    titan, relative = card("titan rtx"), card("2080ti")
    assert titan.sms == 72 and titan.architecture == relative.architecture and titan.fp16 > 2 * relative.fp16


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "median", "worst"),
    [("imread_benchmark", 1.25, 2), ("ml-engineering", 1.3, 1.4), ("rapidsmpf", 1.1, 1.5), ("nvbandwidth", 1.1, 1.2)],
)
def test_what_was_fitted_stays_within_reach(source, median, worst):
    mine = [row for row in rows("published") if row.source.startswith(source)]
    ratios = [predict(row) / row.measured for row in mine[:: 1 + len(mine) // 12]]  # all are in docs/validation.md
    factors = [max(ratio, 1 / ratio) for ratio in ratios]
    assert statistics.median(factors) < median and max(factors) < worst


def test_a_rows_commit_date_and_processor_are_those_that_its_source_tells():
    row = rows("published")[0]._replace(part="loader", source="imread_benchmark 15865fb", version="2025-11-21")
    assert origin(row._replace(machine="Xeon Gold 6248")) == ("15865fb", "2025-11-21", "Xeon Gold 6248")
    assert origin(row._replace(source="timm, rtx3090", version="", machine="a100")) == ("not told",) * 3


def test_the_page_has_every_row_and_the_emulators_promises_quote_it():
    page, promises = (
        " ".join((ROOT / name).read_text().split()) for name in ("docs/validation.md", "docs/emulator.md")
    )
    table = (ROOT / "docs" / "validation.csv").read_text().splitlines()
    assert len(table) == 1 + len(rows()) and (ROOT / "docs" / "validation.png").stat().st_size > 10_000
    assert all(all(row.values()) for row in csv.DictReader(table))  # what a source does not tell is said
    for used, count in [(used, sum(row.used == used for row in rows())) for used in USES]:
        found = re.search(rf"\*\*{used}\*\* \([^)]*\): (\d+) rows, median factor ([\d.]+), worst ([\d.]+)\.", page)
        assert int(found[1]) == count
        if used in ("fitted", "held out"):
            assert f"{found[1]} {used}: median factor {found[2]}, worst {found[3]}" in promises
    unseen = [int(error) for error in re.findall(r"(\d+)% \| never fitted on", page)]
    assert f"traces that nothing was fitted on are off by at most {max(unseen)}%" in promises
