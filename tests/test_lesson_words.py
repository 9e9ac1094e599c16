"""How much a learner reads: few words before the first task, few for each task, and few in a lesson."""

import ast
import io
import re
import tokenize
import tomllib
from pathlib import Path

import factory
import pytest

from loaderviz.view import spoken
from loaderviz.workshop import EXERCISES
from loaderviz.workshop.exercises import say
from loaderviz.workshop.learner import ASKS, QUESTIONS

pytest.importorskip("jupytext", reason="jupytext is missing: pip install -r requirements.txt")

SOURCES = sorted((Path(__file__).parents[1] / "notebooks" / "src").glob("*.py"))
EACH = pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
FIRST, A_TASK, A_LESSON, A_QUESTION = 250, 150, 600, 15
build = factory.script("notebooks/build.py")


def words(text):
    """Count the words of a text as it is shown: an address and a picture's description are not."""
    shown = re.sub(r"\]\([^)]*\)", "]", re.sub(r"!\[[^]]*\]\([^)]*\)", "", text))
    return sum(any(map(str.isalnum, word)) for word in shown.split())


def words_of_code(source):
    """Count the words that a cell of code tells its reader: comments, docstrings, a prediction's question and choices.

    The source of a prediction is hidden.
    """
    tree = ast.parse(source)
    if asked := [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _calls(node) == "predict"]:
        given = {word.arg: word.value for word in asked[0].keywords} | dict(enumerate(asked[0].args))
        question, choices = given.get(0, given.get("question")), given.get(1, given.get("choices"))
        return words(ast.literal_eval(question)) + sum(map(words, ast.literal_eval(choices)))
    if drawn := [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _calls(node) == "recall"]:
        return words(say("recall-head")) + sum(longest_questions(drawn[0].args[0].value))
    comments = [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return sum(map(words, [*comments, *(ast.get_docstring(node) or "" for node in functions)]))


def _calls(node):
    return getattr(node.func, "id", "")


def longest_questions(lesson):
    """Return the words of the two longest questions that a lesson can begin with, each with its choices and label."""
    asked = [each["en"] for each in QUESTIONS.values() if each["lesson"] < lesson]
    told = (words(" ".join([say("recall-label"), each["question"], *each["choices"]])) for each in asked)
    return sorted(told)[-ASKS:]


def read_in(cells):
    """Return the words before the first task, those for each task (their mean) and those of a lesson.

    A task is an exercise: its box counts as words, and what stands before its check is read for it. The list of rules
    at the end of a notebook, to look things up, is not counted. A lesson without tasks has no words before them.
    """
    names, total, first, tasks, last = {each.name: each for each in EXERCISES.values()}, 0, None, 0, 0
    for cell in cells:
        if "exercise" in cell.metadata.get("tags", []):
            continue  # the answer, which a learner does not see
        if cell.cell_type == "markdown":
            total += words(cell.source)
        elif task := names.get(cell.source.strip()):
            first, tasks = total if first is None else first, tasks + 1
            total += words(task._repr_markdown_())
        else:
            total += words_of_code(cell.source)
            last = total if ".check(" in cell.source else last
    return (0, 0, total) if first is None else (first, last / tasks, total)


@EACH
def test_a_lesson_after_the_first_begins_with_questions_of_earlier_ones(source):
    number, code = int(source.name[:2]), [cell.source for cell in build.shown(source) if cell.cell_type == "code"]
    assert [place for place, text in enumerate(code) if text == f"recall({number})"] == ([1] if number else [])


def test_a_question_of_an_earlier_lesson_has_few_words():
    found = {key: words(" ".join([each["en"]["question"], *each["en"]["choices"]])) for key, each in QUESTIONS.items()}
    assert {key: count for key, count in found.items() if count > A_QUESTION} == {}
    assert 20 < sum(longest_questions(1)) < sum(longest_questions(11)) == 2 * (A_QUESTION + 1)


@EACH
def test_a_lesson_has_few_words_and_soon_a_task(source):
    read = dict(zip(("first", "a task", "a lesson"), read_in(build.shown(source)), strict=True))
    for (what, found), most in zip(read.items(), (FIRST, A_TASK, A_LESSON), strict=True):
        assert found <= most, (what, read)


def test_the_words_are_counted_that_stand_on_the_screen():
    source = '''
# %% [markdown]
# # Three [little](words.ipynb) ![none of these](picture.png)
#
# %%
guess = predict("Is it so?", ["yes", "no, never"], answer=lambda: "text that nobody sees")  # nor this
# %%
def shown(x):
    """Four words stand here."""
    return x + 1  # two more
# %%
lesson03.go_on
# %% tags=["starter"]
# Exercise 3.a
# %% tags=["exercise"]
# Exercise 3.a and its answer
# %%
lesson03.go_on.check(load)
# %% [markdown]
# the end
'''
    import jupytext

    box = words(EXERCISES["3.a"]._repr_markdown_())
    assert box > 10
    assert read_in(jupytext.reads(source, fmt="py:percent").cells) == (
        2 + 3 + 3 + 4 + 2,
        14 + box + 2,
        14 + box + 2 + 2,
    )
    assert words("a * b\n\n| c | d-e |\n|---|---:|") == 4


@pytest.mark.parametrize(("word", "told"), [("lane", "a row of the picture"), ("span", "a bar of the picture")])
def test_a_word_of_the_picture_is_explained_where_an_exercise_first_has_it(word, told):
    texts = [text for each in EXERCISES.values() for text in (each.task, each.target, *each.hints)]
    assert told in next(text for text in texts if re.search(rf"\b{word}s?\b", text))
    assert f"| {word} |" in (ROOT / "notebooks/terms.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("number", ["1.b", "2.b", "3.0", "6.0", "8.0"])
def test_a_small_task_has_its_picture_after_the_check(number):
    shown = f"{EXERCISES[number].name}.show()"
    assert any(shown in source.read_text(encoding="utf-8").splitlines() for source in SOURCES)


# One Chinese word for each thing, as notebooks/terms.md has it; what stands here was said for it elsewhere.
OTHER_WORDS = {
    "拷贝(?!引擎)": "复制",
    "掩盖": "隐藏",
    "内核|(?<![`\\w（])kernels?(?![`\\w）])": "核函数",
    "中转": "暂存",
    "拷贝流|复制流": "侧流",
    "GPU (?:的)?内存": "显存",
    "你": "您",
}
ROOT = Path(__file__).parents[1]
IN_CHINESE = [
    ROOT / "docs/story/texts.toml",
    *sorted((ROOT / "loaderviz").rglob("*.toml")),
    *sorted((ROOT / "notebooks/src").glob("*.zh.md")),
]


def chinese(file):
    """Return the Chinese texts of a file, without code and values."""
    text = file.read_text(encoding="utf-8")
    found = [text] if file.suffix == ".md" else _strings(tomllib.loads(text))
    plain = (re.sub(r"```.*?```|`[^`]*`|\{[^}]*\}|^import.*$", "", each, flags=re.S | re.M) for each in found)
    return [line for each in plain for line in each.splitlines() if re.search("[\u4e00-\u9fff]", line)]


def _strings(value):
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [each for part in parts for each in _strings(part)]


@pytest.mark.parametrize("file", IN_CHINESE, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_chinese_texts_have_one_word_for_each_thing(file):
    found = [(word, line) for line in chinese(file) for other, word in OTHER_WORDS.items() if re.search(other, line)]
    assert found == []


@pytest.mark.parametrize("file", IN_CHINESE, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_a_chinese_text_names_the_rows_that_the_chinese_picture_has(file):
    said = file.read_text(encoding="utf-8")
    said = said if file.suffix == ".md" else "\n".join(_strings_in_chinese(tomllib.loads(said)))
    rows = [row for row in spoken.words_in("zh") if " " in row]
    names = {name for name in re.findall("`([^`\n]+)`", said) if " " in name}
    assert not [name for name in names if any(row.startswith(name) for row in rows)]


def _strings_in_chinese(value):
    """Return the strings below each "zh"."""
    parts = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
    here = _strings(value["zh"]) if isinstance(value, dict) and "zh" in value else []
    return here + [each for part in parts for each in _strings_in_chinese(part)]


def test_the_terms_of_the_sheet_are_those_of_the_texts():
    sheet = (ROOT / "notebooks/terms.md").read_text(encoding="utf-8")
    assert all(word in sheet for other, word in OTHER_WORDS.items() if other != "你")
    assert sum(bool(chinese(file)) for file in IN_CHINESE) > 15
