"""The instructor's guide speaks of the course as it is: its minutes, its answers, its files."""

import json
import re
from pathlib import Path

import factory
import pytest

from loaderviz.workshop import EXERCISES

pytest.importorskip("jupytext", reason="jupytext is missing: pip install -r requirements.txt")

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs" / "instructor.md").read_text(encoding="utf-8")
ANSWERS = (ROOT / "docs" / "answers.md").read_text(encoding="utf-8")
SOURCES = sorted((ROOT / "notebooks" / "src").glob("*.py"))
build = factory.script("docs/build.py")


def section(title):
    """Return the text of a section, up to the next heading of its level."""
    return GUIDE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_every_exercise_and_every_prediction_has_its_answer():
    assert re.findall(r"\*\*Exercise (\d+\.\w):\*\*", ANSWERS) == list(EXERCISES)
    parts = re.split(r"\n### \d+\. ", section("Lesson by lesson"))[1:]
    for source, said, part in zip(SOURCES, parts, ANSWERS.split("\n## ")[1:], strict=True):
        assert "**Say:**" in said and "**Stuck:**" in said
        asked = re.findall(r"^(\w+) = predict\(", source.read_text(encoding="utf-8"), re.M)
        told = [name for name, _, _ in build.ANSWER.findall(part)]
        assert told == [name for name in asked if name != "guess_workers"]  # which depends on the machine


@pytest.mark.slow
def test_words_and_minutes_are_counted_in_the_lessons_as_they_are():
    repair = "out of date: python docs/build.py, then python notebooks/build.py"
    assert build.guide(GUIDE) == GUIDE and build.all_answers() == ANSWERS, repair
    for source in SOURCES:
        text = source.read_text(encoding="utf-8")
        assert build.timed(text, str(int(source.stem[:2]))) == text, f"{source.name} is {repair}"


def test_a_plan_fills_its_time_and_counts_what_it_names():
    plans = re.split(r"\n### (\d+) minutes", section("Plans"))[1:]
    for length, text in zip(plans[::2], plans[1::2], strict=True):
        end = int(re.search(r"^\| (\d+) \| \*the end\*", text, re.M)[1])
        assert 0.85 * int(length) <= end <= int(length)
    part = {"fixed": None, "exercise": None, "lesson": "3", "from": "Prefetch", "to": None}
    (words, asks), *more = [at[1:] for at in build.sections(SOURCES[3]) if at[0].startswith("Prefetch")]
    assert build.taken(part, {}) == words / 100 + 2 * asks and not more
    assert build.taken(part | {"to": "Prefetch"}, {}) == 0
    with pytest.raises(StopIteration):
        build.taken(part | {"from": "Nothing"}, {})


def test_an_answer_that_has_changed_is_named_until_somebody_says_that_the_rest_fits():
    part = "<!-- busy 1234 -->\n* *?* **?** (<!--=x:.0%-->?<!---->): why.\n\n* more\n"
    said = [{"busy": ["How?", ["a", "b"], "a"]}, {"x:.0%": "8%"}]
    text, (again,) = build.answered(part, json.dumps(said))
    assert text == "<!-- busy 1234 -->\n* *How?* **a** (<!--=x:.0%-->8 %<!---->): why.\n\n* more\n"
    good = text.replace("1234", again.split()[-1])
    assert build.answered(good, json.dumps(said)) == (good, [])
    assert build.answered(good, json.dumps([said[0], {"x:.0%": "9%"}]))[1] == []  # a number may differ
    for other in (["How?", ["a", "b"], "b"], ["How?", ["a", "c"], "a"]):
        assert build.answered(good, json.dumps([{"busy": other}, said[1]]))[1] != []
    assert build.answered(good.replace("why", "so"), json.dumps(said))[1] != []


@pytest.mark.parametrize("length", range(96, 120))
def test_an_answer_is_the_same_wherever_its_lines_end(length):
    part = "<!-- busy 1234 -->\n* *?* **?** in <!--=x:.0%-->?<!----> of it: why.\n\n* **Exercise 1.1:** more\n"
    said = json.dumps([{"busy": ["How " * (length // 4) + "?" * (length % 4), ["a", "b"], "a"]}, {"x:.0%": "8%"}])
    once, (again,) = build.answered(part, said)
    good = once.replace("1234", again.split()[-1])
    assert build.answered(good, said) == (good, []) and "**Exercise 1.1:** more" in good.splitlines()[-1]
    assert max(map(len, good.splitlines())) <= 118


def test_the_terms_are_few_and_each_is_one_thing_in_both_languages():
    text = (ROOT / "notebooks" / "terms.md").read_text(encoding="utf-8")
    rows = [row.strip("| ").split(" | ") for row in text.splitlines() if row.startswith("| ")][1:]
    assert len(rows) <= 42 and {len(row) for row in rows} == {4}
    assert all(len({row[at] for row in rows}) == len(rows) for at in range(4))


def test_its_links_lead_somewhere():
    headings = re.findall(r"^#+ (.+)$", GUIDE, re.M)
    anchors = {"#" + re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    for target in re.findall(r"\]\(([^)]+)\)", GUIDE):
        assert target in anchors or (ROOT / "docs" / target).exists(), target
    assert "docs/instructor.md" in (ROOT / "README.md").read_text(encoding="utf-8")
