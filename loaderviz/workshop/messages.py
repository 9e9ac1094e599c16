"""What exercises say, in the learner's language (LOADERVIZ_LANGUAGE): titles, tasks, hints, and the messages of checks.

The table is the English text in this folder (exercises.toml, and what the code says), each text as `str.format` has it:
"batch {0} was read too early". messages.LANGUAGE.json has a text's translation; `python -m loaderviz.workshop.messages
zh` prints what it lacks. A text that has changed since is shown in English, and `gone` names it.
"""

from __future__ import annotations

import ast
import itertools
import json
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

FOLDER = Path(__file__).parent
ASKED = tomllib.loads((FOLDER / "exercises.toml").read_text(encoding="utf-8"))  # by an exercise's number
PLACE = re.compile(r"\{(\d+)\}")
NO_TEXT = re.compile(r"</|create table|^select|^insert|\bpx\b|^[^\s{]*$")  # of SVG and SQL; a single word


def texts(source: str) -> Iterator[str]:
    """Yield the texts in Python source, docstrings aside; what an f-string fills in is a number in braces."""
    skipped: set[int] = set()
    for node in ast.walk(ast.parse(source)):  # what is around comes before what is inside
        if isinstance(node, ast.Expr):
            skipped.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            pieces, number = [], 0
            for part in node.values:
                pieces.append(_literal(part) if isinstance(part, ast.Constant) else f"{{{number}}}")
                number += isinstance(part, ast.FormattedValue)
            text = "".join(pieces)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            text = _literal(node)
        else:
            continue
        if re.search("[a-z]{3}", text) and not NO_TEXT.search(text):
            yield text.strip()


def _literal(part: ast.Constant) -> str:
    return str(part.value).replace("{", "{{").replace("}", "}}")


def _numbered(text: str) -> str:
    number = itertools.count()
    return re.sub(r"\{.+?\}", lambda _: f"{{{next(number)}}}", text)


@lru_cache
def table() -> dict[str, str]:
    """Return each text of the workshop, and the file in which it is."""
    asked = (text for each in ASKED.values() for text in (each["title"], each["task"], each["target"], *each["hints"]))
    found = {_numbered(text): "exercises.toml" for text in asked}
    files = sorted(FOLDER.rglob("*.py"))
    return found | {text: file.name for file in files for text in texts(file.read_text(encoding="utf-8"))}


@lru_cache
def _translation(language: str) -> dict[str, str]:
    file = FOLDER / f"messages.{Path(language).name}.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))) if language and file.is_file() else {}


def gone(language: str) -> list[str]:
    """Return the texts that were translated and are said no more: changed since, so translate them again."""
    return [text for text in _translation(language) if text not in table()]


@lru_cache
def _patterns(language: str) -> list[tuple[re.Pattern[str], str]]:
    """Return how each translated text is found in what is said, and its translation; the longest first."""
    found = []
    for text, other in sorted(_translation(language).items(), key=lambda pair: -len(PLACE.sub("", pair[0]))):
        pieces = PLACE.split(text)[::2]
        parts = [re.escape(piece.replace("{{", "{").replace("}}", "}")) for piece in pieces]
        if parts[0]:  # at the beginning of a sentence it has a capital
            parts[0] = r"(?<!\w)" + (f"(?i:{parts[0][0]}){parts[0][1:]}" if parts[0][0].isalpha() else parts[0])
        parts[-1] += r"(?!\w)" if pieces[-1][-1:].isalpha() else r"(?=\s|$)" if pieces[-1].endswith(".") else ""
        pattern = parts[0]
        for number, part in enumerate(parts[1:], 1):
            first, last = number == 1 and not pieces[0], number == len(pieces) - 1 and not pieces[-1]
            pattern += (r"(\S+)" if first else r"(\S*\w)" if last else "(.*?)") + part
        found.append((re.compile(pattern), other))
    return found


def translated(text: str, language: str | None = None) -> str:
    """Return what is said in a language, by default LOADERVIZ_LANGUAGE's; what has no translation as it is."""
    language = os.environ.get("LOADERVIZ_LANGUAGE", "") if language is None else language
    for pattern, other in _patterns(language):
        text = pattern.sub(lambda found, other=other: other.format(*found.groups()), text)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    missing = {text: "" for text in table() if text not in _translation(sys.argv[1])}
    print(json.dumps(missing, indent=1, ensure_ascii=False))
    print(*(f"said no more: {text}" for text in gone(sys.argv[1])), sep="\n", file=sys.stderr)
