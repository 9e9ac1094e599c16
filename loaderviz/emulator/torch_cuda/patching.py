"""Patches: replace names while a recording runs, and put every one of them back, also after an exception."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

MISSING = object()


class Patches:
    """A stack of replaced attributes; `restore` undoes them in reverse order."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []
        self._swaps: list[tuple[Any, Any]] = []  # (before, value)
        self._loaded: set[str] = set()  # names of the modules that were there when the recording began

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set `owner.name`; what was there before (also nothing) comes back on `restore`."""
        self._undo.append((owner, name, vars(owner).get(name, MISSING)))
        setattr(owner, name, value)

    def function(self, owner: Any, name: str, value: Any) -> None:
        """Like `set`, and also for those who imported the name: see `swap_everywhere`. Absent names are skipped."""
        before = getattr(owner, name, MISSING)
        if before is not MISSING:
            self._swaps.append((before, value))
            self.set(owner, name, value)

    def swap_everywhere(self, skip: Callable[[str], bool]) -> None:
        """Replace what `function` replaced in every loaded module that holds it by name (`from time import time`).

        Modules whose name `skip` accepts are left alone.
        """
        self._loaded = set(sys.modules)
        swaps = {id(before): (before, value) for before, value in self._swaps}
        for namespace, name, value in _entries(swaps, lambda module: not skip(module)):
            self._undo.append((namespace, name, value))
            namespace[name] = swaps[id(value)][1]

    def restore(self) -> None:
        """Put everything back, also in modules that were imported since and took a replaced name with them."""
        while self._undo:
            owner, name, value = self._undo.pop()
            if isinstance(owner, dict):
                owner[name] = value
            elif value is MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        swaps = {id(value): (value, before) for before, value in self._swaps}
        for namespace, name, value in _entries(swaps, lambda module: module not in self._loaded):
            namespace[name] = swaps[id(value)][1]
        self._swaps.clear()


def _entries(
    wanted: dict[int, tuple[Any, Any]], accept: Callable[[str], bool]
) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Iterate over the names in modules whose value is one of `wanted` (id -> (value, …))."""
    for module_name, module in list(sys.modules.items()):
        names = getattr(module, "__dict__", None)
        if not isinstance(names, dict) or not accept(module_name):
            continue
        for name, value in list(names.items()):
            if id(value) in wanted and wanted[id(value)][0] is value:
                yield names, name, value
