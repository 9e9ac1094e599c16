"""The table of versions says what the tests said, and stands in its place on the page."""

import re
from xml.etree import ElementTree

import pytest

from benchmarks import versions
from benchmarks.versions import BETWEEN, PAGE, ROOT, TABLE, Row, main, read, set_up, write

REPORT = """<testsuites><testsuite>
<testcase name="test_a[1]"/><testcase name="test_b"><skipped type="pytest.xfail"/></testcase>
<testcase name="test_c[1]"><failure>x</failure></testcase><testcase name="test_c[2]"><failure>x</failure></testcase>
<testcase name="test_d"><error>x</error></testcase>
</testsuite></testsuites>"""


def test_a_report_is_counted_and_a_test_is_named_once(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    assert read(report, "3.13.0", "2.15.0") == Row("3.13.0", "2.15.0", 1, 1, 3, ("test_c", "test_d"))
    report.write_text("no tests ran")
    with pytest.raises(ElementTree.ParseError):
        read(report, "3.13.0", "2.15.0")


def test_the_table_takes_the_place_of_the_last_one_and_nothing_else_changes(tmp_path):
    page, text = tmp_path / "page.md", PAGE.read_text(encoding="utf-8")
    page.write_text(text, encoding="utf-8")
    rows = [Row("3.12.1", "2.13.0", 4481, 5, 0, ()), Row("3.13.0", "2.15.0", 9, 0, 5, ("a", "b", "c", "d", "e"))]
    write(rows, page)
    written = page.read_text(encoding="utf-8")
    assert BETWEEN.search(written)[0] == (
        f"{TABLE}| 3.12.1 | 2.13.0 | 4,481 | 5 | 0 |  |\n| 3.13.0 | 2.15.0 | 9 | 0 | 5 | `a`, `b`, `c`, and 2 more |\n"
    )
    assert BETWEEN.sub("", written) == BETWEEN.sub("", text)


@pytest.mark.parametrize("failed", [0, 2])
def test_a_python_that_is_not_there_has_a_row_that_says_so_and_the_others_are_run(failed, capsys, monkeypatch):
    row, wrote = Row("3.13.0", "2.14.1", 3, 1, failed, ("a",) * failed), []
    found = {"3.13": ROOT / "bin" / "python"}
    monkeypatch.setattr(versions, "set_up", lambda python, torch: found.get(python) or set_up(python, torch))
    monkeypatch.setattr(versions, "tested", lambda own, torch: row)
    monkeypatch.setattr(versions, "write", wrote.extend)
    assert main(["3.99:2.14.1", "3.13:2.14.1"]) == (failed > 0)
    assert wrote == ["| 3.99 | 2.14.1 | – | – | – | not run (no Python 3.99 here) |\n", row]
    assert capsys.readouterr().out == TABLE + "".join(map(str, wrote))


def test_the_command_asks_for_each_python_that_the_package_is_for_and_the_table_has_a_row_for_it():
    asked = re.search(r"^VERSIONS \?= (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.M)[1].split()
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    rows = re.findall(r"^\| (3\.\d+)[\d.]* \| ([\d.]+) ", BETWEEN.search(PAGE.read_text("utf-8"))[0], re.M)
    assert [each.split(":") for each in asked] == [*map(list, rows)]
    assert {each.split(":")[0] for each in asked} == {*re.findall(r"Python :: (3\.\d+)", project)}


@pytest.mark.parametrize("pairs", [["3.99"], ["3.99:2.13.0", "a:b:c"], []])
def test_what_is_no_pair_is_refused(pairs, capsys):
    assert main(pairs) == 2
    assert "is no pair such as 3.13:2.14.1" in capsys.readouterr().err
