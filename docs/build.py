"""Write what is made in docs/: the rules, and of the guide and the answers what the lessons' sources say.

    python docs/build.py              # from loaderviz.rules, the names of the tests, and the lessons
    python docs/build.py --run 03     # and run the lessons that begin so (all without a name), for answers and numbers

In a source, the cell with the tag "guide" has the lesson's heading, three paragraphs (what it asks, for the list in
lesson 0; its idea; its exercises with their minutes) and its part of instructor.md; the cell "answers" is its part of
answers.md. There an answer stands below `<!-- NAME HASH -->`: the name of the prediction, and the hash of its question,
its choices, its answer and the explanation, by which somebody says that they fit. `<!--=EXPRESSION:FORMAT-->…<!---->`
is a number, computed when the lesson has run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import textwrap
from functools import cache
from pathlib import Path

from loaderviz.rules import RULES

sys.path.insert(0, str(Path(__file__).parents[1] / "notebooks"))
from build import apart, shown

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "notebooks" / "src").glob("*.py"))
HEAD = """# The rules

What the emulated GPU obeys, and what reports, findings and lessons cite; `loaderviz.rule("R16")` shows one.
Made by `python docs/build.py` from `loaderviz/rules.toml`: edit there.

| rule | what it says | source | held by |
|---|---|---|---|
"""
GUIDE, ANSWERS = ROOT / "docs" / "instructor.md", ROOT / "docs" / "answers.md"
WORDS_A_MINUTE = 100  # for readers whose language it is not
STOP = 2  # minutes for a prediction: choose, show hands, run, look
HEAD_OF_ANSWERS = """# Answers

To the predictions and exercises of all lessons, for those who teach. Made by `python docs/build.py` from the sources of
the lessons: edit there. A prediction's answer is computed in its lesson; `--run` runs the lessons and writes questions,
answers and numbers. Where an answer has changed, it asks for its explanation, and for the choices in the lesson, to be
read again. The exercises' code is in [notebooks/solutions](../notebooks/solutions/00_start_here.ipynb).
"""
TOLD = re.compile(
    r"### (?P<number>\d+)\. (?P<title>.+)\n\nAsks: (?P<asks>.+)\n\nIdea: (?P<idea>.+)\n\n"
    r"Exercises: (?P<exercises>.+)\n\n"
)
GLANCE = re.compile(r"(?<=^\|---\|---\|---\|---\|---:\|---:\|---:\|\n)(?:\|.*\n)+", re.M)
LESSONS = re.compile(r"(?<=\n)### 0\. .*?(?=\n## )", re.S)
LIST = re.compile(r"(?<=^# \|---\|---\|---\|---:\|\n)(?:# \|.*\n)+", re.M)
TABLE = re.compile(r"^(\| min \| what \| cells \|\n.*\n)(?:\|.*\n)+", re.M)
PLAN = re.compile(r"^\| \d+ \| ([^|]+) \| ([^|]+) \|$", re.M)
ITEM = re.compile(
    r'(?P<fixed>\d+) min|(?P<exercise>\d+\.\w)|(?P<lesson>\d+)(?: "(?P<from>[^"]+)")?(?: to "(?P<to>[^"]+)")?'
)
ANSWER = re.compile(r"<!-- (\w+) (\w+) -->\n\* \*.*?\*\s+\*\*.*?\*\*(.*?)(?=\n\n|\Z)", re.S)
NUMBER = re.compile(r"<!--=(.+?)-->.*?<!---->")


def rules() -> str:
    """Return the text of docs/rules.md: each rule with its source and the tests that hold it."""
    tests: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests" / "emulator").rglob("test_*.py")):
        for name in re.findall(r"^def (test_r\d+\w*)\(", path.read_text(encoding="utf-8"), re.M):
            for number in re.findall(r"(?<=_r)\d+(?=_)", name):
                tests.setdefault(f"R{number}", []).append(f"`{name}`")
    held = {name: "<br>".join(tests.get(name, ["not yet held"])) for name in RULES}
    return HEAD + "".join(f"| {r.name} | {r.statement} | {r.source} | {held[r.name]} |\n" for r in RULES.values())


def sections(source: Path) -> list[tuple[str, int, int]]:
    """Return the heading of each section of a lesson, its words, and its predictions; the first has no heading."""
    found: list[tuple[str, int, int]] = []
    for cell in shown(source):
        prose = cell.cell_type == "markdown"
        for piece in re.split(r"^(?=## )", cell.source, flags=re.M) if prose else [cell.source]:
            title = piece[3:].split("\n")[0] if prose and piece.startswith("## ") else None
            if title is not None or not found:
                found.append((title or "", 0, 0))
            words = sum(any(map(str.isalnum, word)) for word in piece.split()) if prose else 0
            asks = 0 if prose else len(re.findall(r"= (?:predict|\w+\.card)\(", piece))
            found[-1] = (found[-1][0], found[-1][1] + words, found[-1][2] + asks)
    return found


def minutes(parts: list[tuple[str, int, int]]) -> float:
    """Return how long it takes to read sections, and to stop at their predictions."""
    return sum(words / WORDS_A_MINUTE + asks * STOP for _, words, asks in parts)


@cache
def told(source: Path) -> dict[str, str]:
    """Return what the guide tells of a lesson: number, title, asks, idea, exercises, and the rest, its text."""
    cell = apart(source, "guide")
    found = TOLD.match(cell)
    assert found, f"{source.name}: the cell with the tag 'guide' begins with heading, Asks:, Idea:, and Exercises:"
    return found.groupdict() | {"text": cell[found.end() :]}


def exercises() -> dict[str, int]:
    """Return the minutes of each exercise, which a lesson gives as `3.1 (15)`."""
    every = " ".join(told(source)["exercises"] for source in SOURCES)
    return {number: int(time) for number, time in re.findall(r"(\d+\.\w) \((\d+)\)", every)}


def lasting(lesson: str, given: dict[str, int]) -> int:
    """Return the minutes of a lesson with its exercises, a multiple of five."""
    solving = sum(time for name, time in given.items() if name.split(".")[0] == lesson)
    return 5 * round((minutes(sections(SOURCES[int(lesson)])) + solving) / 5)


def taken(item: re.Match[str], given: dict[str, int]) -> float:
    """Return the minutes of an item in the last column of a plan: `5 min`, `3.1` an exercise, `3` a lesson, `3 "A"` a
    section, `3 "A" to "B"` those from A until B. Raises `StopIteration` where there is no such section."""
    if item["fixed"] or item["exercise"]:
        return int(item["fixed"] or given[item["exercise"]])
    parts = sections(SOURCES[int(item["lesson"])])
    at = [
        next(at for at, part in enumerate(parts) if part[0].startswith(item[name])) if item[name] else None
        for name in ("from", "to")
    ]
    return minutes(parts[at[0] : at[0] + 1 if at[0] is not None and at[1] is None else at[1]])


def guide(text: str) -> str:
    """Return docs/instructor.md with what the lessons say, and the words and minutes of its tables, counted."""
    given = exercises()

    def glance(source: Path) -> str:
        about, parts = told(source), sections(source)
        words = 50 * round(sum(words for _, words, _ in parts) / 50)
        row = " | ".join(about[name] for name in ("number", "title", "idea", "exercises"))
        return f"| {row} | {words:,} | {minutes(parts):.0f} | {lasting(about['number'], given)} min |\n"

    def plan(table: re.Match[str]) -> str:
        clock, rows = 0.0, []
        for what, items in PLAN.findall(table[0]):
            rows.append(f"| {clock:.0f} | {what} | {items} |\n")
            clock += sum(taken(item, given) for item in ITEM.finditer(items))
        return f"{table[1]}{''.join(rows)}| {clock:.0f} | *the end* | |\n"

    lessons = "\n\n".join("### {number}. {title}\n\n{text}".format(**told(source)) for source in SOURCES) + "\n"
    text = LESSONS.sub(lambda _: lessons, GLANCE.sub("".join(map(glance, SOURCES)), text))
    return TABLE.sub(plan, text)


def timed(text: str, lesson: str) -> str:
    """Return the source of a lesson with the minutes that it tells and, in lesson 0, the list of all."""
    given = exercises()
    rows = []
    for source in SOURCES:
        about = told(source)
        title = about["title"] if about["number"] == "0" else f"[{about['title']}]({source.stem}.ipynb)"
        rows.append(f"# | {about['number']} | {title} | {about['asks']} | {lasting(about['number'], given)} |\n")
    text = re.sub(r"(?<=^# Time: about )\d+", str(lasting(lesson, given)), text, flags=re.M)
    return LIST.sub("".join(rows), text) if lesson == "0" else text


def asking(part: str) -> str:
    """Return a cell that prints, when a lesson has run, what its part of answers.md needs."""
    names, numbers = [name for name, _, _ in ANSWER.findall(part)], NUMBER.findall(part)
    return (
        f"import json; print(json.dumps([{{name: [each.question, each.choices, each._right_one()] for name in {names} "
        "for each in [globals()[name]]}, {text: format(eval(what, globals()), how) "
        f"for text in {numbers} for what, _, how in [text.rpartition(':')]}}]))"
    )


def answered(part: str, said: str) -> tuple[str, list[str]]:
    """Return a lesson's answers as the lesson says them, and which of them want to be read again."""
    predictions, numbers = json.loads(said)
    part = NUMBER.sub(lambda found: f"<!--={found[1]}-->{numbers[found[1]].replace('%', ' %')}<!---->", part)
    again = []

    def answer(found: re.Match[str]) -> str:
        name, before, explained = found.groups()
        question, choices, right = predictions[name]
        fits = [question, choices, right, NUMBER.sub("", explained).split()]
        digest = hashlib.sha256(json.dumps(fits).encode()).hexdigest()[:8]
        if digest != before:
            again.append(f"{name}: {question} {right}. Do choices and explanation fit? Then write the hash {digest}")
        return f"<!-- {name} {before} -->\n{filled(f'* *{question}* **{right}**{explained}')}"

    return ANSWER.sub(answer, part), again


def filled(point: str) -> str:
    """Return a point of a list in lines that fit into a source; a number and its expression are not cut."""
    whole = NUMBER.sub(lambda found: found[0].replace(" ", "\0"), " ".join(point.split()))
    lines = textwrap.fill(whole, 118, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return lines.replace("\0", " ")


def commented(text: str) -> str:
    """Return a text as a source has it."""
    return "\n".join(f"# {line}".rstrip() for line in text.splitlines())


def answers(lessons: tuple[str, ...]) -> list[str]:
    """Run the lessons whose names begin so, and write their answers; return what wants to be read again."""
    from execute import ran

    again = []
    for source in SOURCES:
        if source.stem.startswith(lessons):
            part = apart(source, "answers")
            last = ran(ROOT / "notebooks" / "solutions" / f"{source.stem}.ipynb", asking(part)).cells[-1]
            new, some = answered(part, last.outputs[-1].text)
            text = source.read_text(encoding="utf-8").replace(commented(part), commented(new))
            source.write_text(text, encoding="utf-8")
            again += [f"{source.stem}, {each}" for each in some]
    return again


def main() -> None:
    """Write what differs."""
    parser = argparse.ArgumentParser(description="Write what is made in docs/.")
    parser.add_argument("--run", nargs="*", metavar="LESSON", help="run the lessons that begin so, for their answers")
    options = parser.parse_args()
    if options.run is not None:
        print(*answers(tuple(options.run or [""])), sep="\n")
    (ROOT / "docs" / "rules.md").write_text(rules(), encoding="utf-8")
    GUIDE.write_text(guide(GUIDE.read_text(encoding="utf-8")), encoding="utf-8")
    ANSWERS.write_text(all_answers(), encoding="utf-8")
    for source in SOURCES:
        source.write_text(timed(source.read_text(encoding="utf-8"), told(source)["number"]), encoding="utf-8")


def all_answers() -> str:
    """Return docs/answers.md."""
    return "\n".join([HEAD_OF_ANSWERS, *(f"{apart(source, 'answers')}\n" for source in SOURCES)])


if __name__ == "__main__":
    main()
