"""Patches: replace names while a recording runs, and put every one of them back, also after an exception."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

MISSING = object()


class Patches:
    """A stack of replaced attributes; `restore` undoes them in reverse order."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []
        self._swaps: dict[int, tuple[Any, Any]] = {}

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set `owner.name`; what was there before (also nothing) comes back on `restore`."""
        self._undo.append((owner, name, vars(owner).get(name, MISSING)))
        setattr(owner, name, value)

    def function(self, owner: Any, name: str, value: Any) -> None:
        """Like `set`, and also for those who imported the name before: see `swap_everywhere`. Absent names are skipped."""
        before = getattr(owner, name, MISSING)
        if before is not MISSING:
            self._swaps[id(before)] = (before, value)
            self.set(owner, name, value)

    def swap_everywhere(self, skip: Callable[[str], bool]) -> None:
        """Replace what `function` replaced in every loaded module that holds it by name (`from time import time`).

        Modules whose name `skip` accepts are left alone.
        """
        for module_name, module in list(sys.modules.items()):
            if module is None or skip(module_name):
                continue
            names = getattr(module, "__dict__", None)
            if not isinstance(names, dict):
                continue
            for name, value in list(names.items()):
                swap = self._swaps.get(id(value))
                if swap and swap[0] is value:
                    self._undo.append((module, name, value))
                    names[name] = swap[1]

    def restore(self) -> None:
        """Put everything back."""
        while self._undo:
            owner, name, value = self._undo.pop()
            if value is MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        self._swaps.clear()
