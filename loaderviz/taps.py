"""Names of torch, Python or an object of ours that stand for something else, for a while.

with held(fetcher, "collate_fn", timed):     # in this block, and put back however it ends
    fetch()
stack.enter_context(held(Loader, "_reset", around(Loader._reset, note)))     # until the stack closes
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

Function = Callable[..., Any]


@contextmanager
def held(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Let `owner.name` be `value` in a block.

    >>> class Door:
    ...     is_open = False
    >>> with held(Door, "is_open", True):
    ...     Door.is_open
    True
    >>> Door.is_open
    False
    """
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def around(original: Function, function: Function) -> Function:
    """Return what stands in the place of `original`: `function`, which gets it before its arguments."""

    @wraps(original)
    def stand_in(*args: Any, **options: Any) -> Any:
        return function(original, *args, **options)

    return stand_in
