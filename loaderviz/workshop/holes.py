"""Is there a hole left in the learner's code, and where did it go wrong? Nothing else is ever read in it.

left_open(answer)                # "line 4: ...", or "" when nothing is left to fill in
is_unchanged(answer, starter)    # the starter, as it was given out
line_of(error, answer)           # "line 7: x = x.to('cuda')": the last line of theirs that the error passed
"""

from __future__ import annotations

import ast
import inspect
import sysconfig
import textwrap
import traceback
from pathlib import Path
from typing import Any, TypeGuard

import torch

BLANK = "____"
_NOT_THEIRS = tuple(
    str(path) for path in (Path(torch.__file__).parent, Path(__file__).parents[1], sysconfig.get_path("stdlib"))
)


def left_open(answer: Any) -> str:
    """Return the first line with a placeholder (`...` or `____`) in it, as "line 4: `...`"; "" if there is none."""
    if answer is None or answer is ...:
        return "nothing to check yet"
    source, first = _located(answer)
    tree = _parsed(source)
    if tree is None:
        return ""
    subscripts = (node.slice for node in ast.walk(tree) if isinstance(node, ast.Subscript))
    indices = {id(part) for index in subscripts for part in ast.walk(index)}  # x[..., 0] is no hole
    lines = [node.lineno for node in ast.walk(tree) if _is_blank(node) and id(node) not in indices]
    if not lines:
        return ""
    code = source.splitlines()[min(lines) - 1].split("#")[0].strip()
    return f"line {first + min(lines) - 1}: `{code}`"


def is_unchanged(answer: Any, starter: str) -> bool:
    """Tell whether `answer` is the starter as it was given out (comments and spaces aside)."""
    mine, given = _parsed(source_of(answer)), _parsed(starter)
    if mine is None or given is None or not mine.body:
        return False
    return any(ast.dump(mine.body[0]) == ast.dump(node) for node in given.body)


def source_of(answer: Any) -> str:
    """Return the source of a function or class, or of an object's class; "" where Python cannot find it."""
    return _located(answer)[0]


def line_of(error: BaseException) -> str:
    """Return the last line of the learner's own code that the error passed through; "" if there is none."""
    theirs = [frame for frame in traceback.extract_tb(error.__traceback__) if is_theirs(frame.filename)]
    if not theirs:
        return ""
    text = (theirs[-1].line or "").strip()
    return f"line {theirs[-1].lineno}: {text}" if text else f"line {theirs[-1].lineno}"


def is_theirs(file: str) -> bool:
    """Tell whether a file (or notebook cell) is neither Python's, nor torch's, nor ours."""
    return not file.startswith((*_NOT_THEIRS, "<frozen"))


def _located(answer: Any) -> tuple[str, int]:
    """Return the source and the number of its first line in the file or cell."""
    while hasattr(answer, "func") and callable(answer.func):  # functools.partial
        answer = answer.func
    if not (inspect.isroutine(answer) or inspect.isclass(answer)):
        answer = type(answer)
    try:
        lines, first = inspect.getsourcelines(answer)
    except (OSError, TypeError):
        return "", 1
    return textwrap.dedent("".join(lines)), max(1, first)


def _is_blank(node: ast.AST) -> TypeGuard[ast.expr]:
    return (isinstance(node, ast.Constant) and node.value is ...) or (isinstance(node, ast.Name) and node.id == BLANK)


def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source) if source else None
    except SyntaxError:  # a lambda in the middle of a call, say
        return None
