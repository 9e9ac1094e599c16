"""Numbers with units, and lines of code, in words, as summaries, figures and reports print them. Standard library only.

duration(1_234_567)   # "1.235 ms"
share(0.412)          # "41 %"
"""

from __future__ import annotations

import linecache
import os
import re
import shutil
import sys
import textwrap
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from html import escape
from itertools import chain
from itertools import count as count_from
from types import FrameType
from typing import Any

_DURATIONS = ((10**9, "s"), (10**6, "ms"), (10**3, "µs"))
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_WIDTH = 110  # columns of a report that does not go to a terminal
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:[nµm]?s|bytes|[kMG]B)\b|%)")
_GLUE = "\N{NO-BREAK SPACE}"  # no line is broken there
_SIDES = {"<": ' style="text-align:left"', ">": ' style="text-align:right"'}  # of cells in HTML
_SIZES = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def language() -> str:
    """Return the language that LOADERVIZ_LANGUAGE names, such as "zh"; "en" where it is not set."""
    return os.environ.get("LOADERVIZ_LANGUAGE", "en")


def in_language(texts: Mapping[str, Any]) -> Any:
    """Return what LOADERVIZ_LANGUAGE names of `texts`, such as "zh"; where it names nothing there, the English.

    >>> in_language({"en": "host", "zh": "主机"})
    'host'
    """
    return texts.get(language(), texts.get("en", texts))


def translated(text: str, table: Mapping[str, str]) -> str:
    """Return what a table has for a text, of which each number is a # there; the text itself where it has nothing.

    >>> translated("worker 3", {"worker #": "工作进程 #"})
    '工作进程 3'
    """
    if text in table:
        return table[text]
    general, numbers = table.get(_NUMBER.sub("#", text)), iter(_NUMBER.findall(text))
    return text if general is None else re.sub("#", lambda _: next(numbers), general)


def _or_a_dash(words: Callable[[float], str]) -> Callable[[float | None], str]:
    """Let a function say "–" for None."""
    return wraps(words)(lambda number: "–" if number is None else words(number))


@_or_a_dash
def duration(ns: float) -> str:
    """Return a time given in ns with the unit that suits it: "850 ns", "12.5 µs", "1.234 ms", "2.5 s"; "–" for None."""
    # round first: 999_999.7 ns is 1 ms, not 1000 µs
    unit, name = next((pair for pair in _DURATIONS if abs(ns) >= pair[0] * 0.9995), (1, "ns"))
    return f"{_four_digits(ns / unit)} {name}"


@_or_a_dash
def size(nbytes: float) -> str:
    """Return a number of bytes with its decimal unit, such as "200.7 kB" (kB = 1000 bytes); "–" for None."""
    unit, name = next((pair for pair in _SIZES if abs(nbytes) >= pair[0] * 0.9995), (1, "bytes"))
    return "1 byte" if nbytes == 1 else f"{_four_digits(nbytes / unit)} {name}"


@_or_a_dash
def share(value: float) -> str:
    """Return a share 0..1 in per cent; "–" for None. Only an exact 0 or 1 reads "0 %" or "100 %"."""
    percent = 100 * value
    if 0 < percent < 1 or 99 < percent < 100:  # "100 % hidden" must not stand for 99.6 %
        return "< 1 %" if percent < 1 else "> 99 %"
    return f"{percent:.0f} %"


@_or_a_dash
def times(value: float) -> str:
    """Return a factor, such as "1.02x", "11.3x", "1,234x": three digits; "–" for None."""
    return f"{value:,.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}x"


@_or_a_dash
def rate(per_second: float) -> str:
    """Return a rate per second, such as "9.23 M", "234,949" or "0.5"; "–" for None."""
    if abs(per_second) >= 1e6:
        return f"{per_second / 1e6:,.4g} M"
    return f"{per_second:,.0f}" if abs(per_second) >= 100 else f"{per_second:.3g}"


def count(number: int, noun: str) -> str:
    """Return how many: "1 span", "12,345 spans", "2 batches", "2 copies", "2 tries"."""
    if noun.endswith(("py", "try")):
        return f"{number:,} {noun if number == 1 else f'{noun[:-1]}ies'}"
    plural = "" if number == 1 else "es" if noun.endswith(("ch", "s")) else "s"
    return f"{number:,} {noun}{plural}"


def place(source: str) -> str:
    """Return a "file:line" as a reader knows it: without folders, and "In[6]:2" for a line of the cell that ran as 6.

    The file that IPython makes of a cell tells a reader nothing. IPython is asked only if it is imported already.

    >>> place("/home/ada/course/train.py:31")
    'train.py:31'
    """
    file, _, line = source.rpartition(":")
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    named = getattr(getattr(shell, "compile", None), "format_code_name", lambda file: None)(file)
    return f"{named[1]}:{line}" if named else re.split(r"[/\\]", source)[-1]


def places(sources: Iterable[str]) -> dict[str, str]:
    """Return the `place` of each of these lines; files of one name in several folders are told apart by a number.

    >>> places(["/a/utils.py:3", "/b/utils.py:3", "/a/utils.py:4"])["/b/utils.py:3"]
    'utils.py (2):3'
    """
    named, names = dict[str, str](), set[str]()
    found = {}
    for source in sources:
        file, colon, line = source.rpartition(":")
        if file not in named:
            plain = place(f"{file}:0").removesuffix(":0")
            more = (f"{plain} ({number})" for number in count_from(2))
            named[file] = next(name for name in chain([plain], more) if name not in names)
            names.add(named[file])
        found[source] = f"{named[file]}:{line}" if colon else place(source)
    return found


def warn(text: str, frame: FrameType | None, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that `frame` has reached, as `warnings.warn` does, but name its file without folders."""
    code, known = (frame.f_code.co_filename, frame.f_globals) if frame else ("torch", {})
    file, line = place(f"{code}:0").removesuffix(":0"), frame.f_lineno if frame else 0
    linecache.cache[file] = (0, None, linecache.getlines(code, known), file)  # the line of code is shown below
    shown = known.setdefault("__warningregistry__", {})  # by which a filter knows what was shown
    warnings.warn_explicit(text, category, file, line, known.get("__name__", file), shown)


def wrapped(text: str, label: str = "", indent: int = 0, most: int = _WIDTH) -> str:
    """Break a paragraph into lines of a terminal's width, at most `most`, but none between a number and its unit.

    The first line begins with `label`, the others with `indent` spaces.
    """
    columns = max(40, shutil.get_terminal_size().columns) if sys.stdout.isatty() else most
    lines = textwrap.wrap(
        _BEFORE_UNIT.sub(_GLUE, text),
        min(columns, most),
        initial_indent=label,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace(_GLUE, " ")


def markdown(text: str) -> str:
    """Return text as Markdown shows it: names such as `record_stream` or `a * b` are no emphasis outside of code marks.

    >>> markdown("void add_<4> `a_b`")
    'void add\\\\_&lt;4> `a_b`'
    """
    pieces = text.split("`")
    for old, new in (("*", "\\*"), ("_", "\\_"), ("<", "&lt;"), ("](", "]&#40;"), ("$", "&#36;")):
        pieces[::2] = [piece.replace(old, new) for piece in pieces[::2]]
    return "`".join(pieces)


def html(text: str) -> str:
    """Return text as HTML shows it; what stands in code marks is code.

    >>> html("`a<b>` & c")
    '<code>a&lt;b&gt;</code> &amp; c'
    """
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def aligned(rows: Sequence[Sequence[str]], sides: str = "") -> list[str]:
    """Return rows as lines of columns, all flush right but the last; `sides` has "<" for one that is flush left.

    >>> aligned([("step", "2 ms", "of 3"), ("window", "12 ms", "")], "<>")
    ['step     2 ms  of 3', 'window  12 ms']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    sides = sides.ljust(len(widths), ">")
    return ["  ".join([*map("{:{}{}}".format, row, sides, widths), row[-1]]).rstrip() for row in rows]


def table(head: Sequence[str], rows: Iterable[Sequence[str]], sides: str = "") -> str:
    """Return a table as HTML, of cells that are HTML.

    `sides` has "<" or ">" for a column that is flush left, or right, and "h" for one that has the heads of rows.

    >>> table(["", "step"], [["pinned", "2 ms"]], "h")
    '<table><thead><tr><th></th><th>step</th></tr></thead><tbody><tr><th>pinned</th><td>2 ms</td></tr></tbody></table>'
    """
    columns = [("th" if side == "h" else "td", _SIDES.get(side, "")) for side in sides.ljust(len(head))]
    names = "".join(f"<th{look}>{name}</th>" for (_, look), name in zip(columns, head, strict=True))
    lines = (
        "".join(f"<{tag}{look}>{cell}</{tag}>" for (tag, look), cell in zip(columns, row, strict=True)) for row in rows
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"


def one_line(text: str, limit: int) -> str:
    """Return what people may write into a table of others: one line, without control or right-to-left characters.

    >>> one_line("Ada\\n\\u202eLovelace", 8)
    'Ada Love'
    """
    seen = "".join(
        " " if each.isspace() else each for each in text if each.isspace() or unicodedata.category(each)[0] != "C"
    )
    return " ".join(seen.split())[:limit].strip()


def _four_digits(value: float) -> str:
    places = 3 if abs(value) < 10 else 2 if abs(value) < 100 else 1
    return f"{value:.{places}f}".rstrip("0").rstrip(".")
