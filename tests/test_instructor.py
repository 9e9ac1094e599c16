"""The instructor's guide speaks of the course as it is: its exercises, its rules, its headings, its files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from loaderviz.workshop import EXERCISES

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs" / "instructor.md").read_text(encoding="utf-8")
SOURCES = sorted((ROOT / "notebooks" / "src").glob("*.py"))


def section(title):
    """Return the text of a section, up to the next heading of its level."""
    return GUIDE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_every_exercise_has_its_answer():
    answers = set(re.findall(r"\*\*(?:Exercise )?(\d\.\d):\*\*", section("Lesson by lesson")))
    assert answers == set(EXERCISES)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_every_lesson_has_its_part_with_its_predictions(source):
    part = section("Lesson by lesson").split(f"### {int(source.stem[:2])}. ")[1].split("\n### ")[0]
    told = part.split("**Predictions.**")[1].split("\n* **")[0]
    asked = source.read_text(encoding="utf-8").count("= predict(")
    assert len(re.findall(r"\*[^*]+\?\*", told)) >= asked
    assert "**Say:**" in part and "**Stuck:**" in part


def test_the_headings_that_the_plans_name_exist():
    headings = re.findall(r"^# ## (.+)$", "\n".join(path.read_text(encoding="utf-8") for path in SOURCES), re.M)
    named = re.findall(r"(?:to|from|out) \"([^\"]+)\"", section("Plans"))
    assert len(named) > 5
    assert [name for name in named if not any(heading.startswith(name.rstrip("… ")) for heading in headings)] == []


def test_the_minutes_of_a_plan_go_forward_and_fit():
    plans = re.split(r"\n### (\d+) minutes", section("Plans"))
    for length, text in zip(plans[1::2], plans[2::2], strict=True):
        minutes = [int(number) for number in re.findall(r"^\| (\d+) \|", text, re.M)]
        assert minutes == sorted(set(minutes)) and minutes[0] == 0
        assert minutes[-1] < int(length) <= minutes[-1] + 15


def test_all_tables_give_a_lesson_the_minutes_that_it_gives_itself():
    own = [
        int(re.search(r"^# Time: about (\d+) minutes", path.read_text(encoding="utf-8"), re.M)[1]) for path in SOURCES
    ]
    start = re.findall(r"^# \| \d+ \| .* \| (\d+) \|$", SOURCES[0].read_text(encoding="utf-8"), re.M)
    glance = re.findall(r"^\| \d+ \| .* \| (\d+) min \|$", section("The course at a glance"), re.M)
    assert [int(number) for number in start] == own
    assert [int(number) for number in glance] == own


def test_its_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", GUIDE):
        if target.startswith("#"):
            anchors = {
                re.sub(r"[^a-z0-9 -]", "", line.lower()).replace(" ", "-")
                for line in re.findall(r"^#+ (.+)$", GUIDE, re.M)
            }
            assert target[1:] in anchors, target
        else:
            assert (ROOT / "docs" / target).exists(), target
    assert "docs/instructor.md" in (ROOT / "README.md").read_text(encoding="utf-8")
