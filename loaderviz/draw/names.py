"""Names as figures show them: cut to a length, without what tells a reader nothing, ready for plotly's HTML."""

from __future__ import annotations

import re
from functools import lru_cache
from html import escape

LONGEST = 90  # letters; kernel names of a C++ template run over pages
_BOTH_ENDS = 16  # letters; a name cut to more keeps its end, too, which often tells it from its neighbours


def cut(name: str, length: int) -> str:
    """Return a name of at most `length` letters, with "…" for what was left out.

    >>> cut("a thread with a very long name", 24)
    'a thread with a…ong name'
    """
    if len(name) <= length:
        return name
    tail = length // 3 if length >= _BOTH_ENDS else 0
    return f"{name[: length - 1 - tail]}…{name[len(name) - tail :]}"


@lru_cache(1_024)
def shorten(name: str, length: int = LONGEST) -> str:
    """Return a name ready for plotly: cut to `length` characters, with "<" and "&" escaped."""
    return escape(cut(re.sub(r"^void ", "", name), length), quote=False)
