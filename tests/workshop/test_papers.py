"""Slides, the handout, and lessons without their answers: whole pages, which link to nothing that is not there."""

import json
import re
from html.parser import HTMLParser

import pytest

from loaderviz import cli, notebooks
from loaderviz.workshop import EXERCISES, ExerciseError, exercises, papers
from loaderviz.workshop.exercises import Exercise, Score

NUMBERS = [path.name[:2] for path in sorted(notebooks.folder().glob("[0-9]*.ipynb"))]


class Seen(HTMLParser):
    """What a page refers to, and the text in it."""

    def __init__(self, page):
        super().__init__()
        self.links, self.text, self.tags = [], "", []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href") and value]

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("number", ["00", "03", "8"])
def test_slides_have_the_lesson_and_no_answer_of_an_exercise(number):
    pytest.importorskip("nbconvert", reason="nbconvert is missing: pip install -r requirements.txt")
    page = papers.slides(number)
    seen = Seen(page)
    assert page.count("<section>") > 8 and all(link.startswith(("data:", "http", "#")) for link in seen.links)
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=.https?:", page) and "require.js" not in page
    (source,) = notebooks.folder().glob(f"solutions/{int(number):02}_*.ipynb")
    cells = json.loads(source.read_text(encoding="utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
    plain = "".join(seen.text.split())
    assert texts[0].splitlines()[0].lstrip("# ") in seen.text
    answers = [text for cell, text in zip(cells, texts, strict=True) if "exercise" in cell["metadata"].get("tags", [])]
    assert answers and not any("".join(text.split("\n", 1)[1].split()) in plain for text in answers)
    assert "Welldone" not in plain and "## The rules" not in page and "{{" not in page.split("<section>")[0]


@pytest.mark.parametrize("lesson", ["77", "", "3.1", "-1", "../03", "003", "*", "³", "3\n", "x" * 99])
def test_a_lesson_that_is_none_is_named_with_those_that_are(lesson, capsys):
    with pytest.raises(ExerciseError, match=f"there are no slides of lesson .*{', '.join(NUMBERS)}"):
        papers.slides(lesson)


def test_the_handout_has_all_exercises_and_all_terms_and_asks_nobody(monkeypatch):
    seen = Seen(papers.handout())
    assert all(each.title in seen.text for each in EXERCISES.values())
    terms = (notebooks.folder() / "terms.md").read_text(encoding="utf-8")
    assert seen.tags.count("tr") == len([row for row in terms.splitlines() if row.startswith("| ")]) - 1 > 30
    assert [link[:10] for link in seen.links] == ["data:image"] and "script" not in seen.tags
    assert not re.search("[\u4e00-\u9fff]", seen.text) and "{{" not in seen.text
    monkeypatch.setenv("LOADERVIZ_LANGUAGE", "zh")
    chinese = Seen(papers.handout())
    assert "练习" in chinese.text and "主机 (host)" in chinese.text and "计算机：处理器及其内存" in chinese.text


def test_the_commands_write_pages_and_say_where_before_they_cannot(tmp_path, capsys):
    assert cli.main(["handout", "--out", str(tmp_path / "h.html")]) == 0
    assert (tmp_path / "h.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert str(tmp_path / "h.html") in capsys.readouterr().out
    assert cli.main(["handout", "--out", str(tmp_path / "no" / "h.html")]) == cli.FAILED
    assert cli.main(["slides", "99"]) == cli.FAILED
    error = capsys.readouterr().err
    assert "does not exist; make it first" in error and "no slides of lesson '99'" in error


# Answers apart


def test_lessons_without_solutions_have_none_and_no_link_to_one(tmp_path, capsys):
    assert cli.main(["lessons", "--without-solutions", str(tmp_path / "given")]) == 0
    notebooks.copy(tmp_path / "all")
    given, whole = ({path.relative_to(tmp_path / name) for path in (tmp_path / name).rglob("*") if path.is_file()}
                    for name in ("given", "all"))  # fmt: skip
    assert whole - given == {path for path in whole if path.parent.name == "solutions"} != set()
    for path in sorted(given):
        text = (tmp_path / "given" / path).read_bytes()
        assert b"](solutions/" not in text and b"](../solutions/" not in text, path
        if path.suffix != ".ipynb":
            assert text == (tmp_path / "all" / path).read_bytes()
            continue
        mine, theirs = (json.loads((tmp_path / name / path).read_bytes()) for name in ("given", "all"))
        changed = [(cell, other) for cell, other in zip(mine["cells"], theirs["cells"], strict=True) if
                   "".join(cell["source"]) != "".join(other["source"])]  # fmt: skip
        assert len(changed) <= 1 and all(cell["source"].strip() for cell, _ in changed)
        assert {**mine, "cells": 0} == {**theirs, "cells": 0}
        for link in re.findall(r"\]\(([^)#:]+)\)", text.decode()):
            assert (tmp_path / "given" / path.parent / link).exists(), (path, link)


def test_files_that_are_there_are_kept(tmp_path):
    (tmp_path / notebooks.FIRST).write_text("mine")
    assert notebooks.copy(tmp_path, solutions=False) == (tmp_path, 1)
    assert (tmp_path / notebooks.FIRST).read_text() == "mine"
    notebooks.copy(tmp_path)
    assert list((tmp_path / "solutions").iterdir())


def test_a_solution_asks_once_more_before_it_is_shown():
    each = Exercise("0.1", lambda answer, chance: Score("done"))
    each.hint()
    each.check(lambda other, arguments, here: 1)
    first, second = each.solution(), each.solution()
    assert "1 try" in repr(first) and "1 unread hint" in repr(first) and first.code == ""
    assert second.code == each.answer and "One way to do exercise 0.1" in repr(second)


def test_who_has_passed_sees_it_at_once_and_a_text_in_chinese_is_whole(monkeypatch):
    each = Exercise("0.1", lambda answer, chance: Score("done"))
    assert each.check(lambda copies: 1).passed and each.solution().code == each.answer
    monkeypatch.setenv("LOADERVIZ_LANGUAGE", "zh")
    said = repr(Exercise("0.1", exercises.shipped).solution())
    assert "0 次尝试" in said and "2 条提示没有看" in said
