"""Processes that a program spawns inside a block get a cure along: a line that each runs before anything of its own."""

from __future__ import annotations

import contextlib
import importlib.abc
import multiprocessing.spawn
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from loaderviz.errors import NotModelledError

Execute = Callable[[ModuleType], None]


class Finder(importlib.abc.MetaPathFinder):
    """Finds a module where the others do; `execute` gets the usual way to execute it, and the module.

    Two of them with the same `execute` are one.
    """

    def __init__(self, name: str, execute: Callable[[Execute, ModuleType], None]) -> None:
        self.name, self.execute = name, execute

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of the module; any other one is none of our business."""
        if name != self.name:
            return None
        others = (each for each in sys.meta_path if getattr(each, "execute", None) is not self.execute)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            usual = spec.loader.exec_module
            spec.loader.exec_module = lambda module: self.execute(usual, module)  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def running_first(line: str) -> Iterator[None]:
    """Let each process that is spawned inside the block run a line of Python first; it may import loaderviz."""
    prepared = multiprocessing.spawn.get_preparation_data

    def prepare(name: str) -> dict[str, Any]:
        return {f"loaderviz: {line}": _First(line), **prepared(name)}  # a key that multiprocessing passes over

    multiprocessing.spawn.get_preparation_data = prepare
    try:
        yield
    finally:
        multiprocessing.spawn.get_preparation_data = prepared


class _First:
    """To read it is to run its line; it is the first that a new process reads."""

    def __init__(self, line: str) -> None:
        self._line = line

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return exec, (f"import sys; sys.path.append({str(Path(__file__).parents[1])!r}); {self._line}",)


REFUSING = f"from {__name__} import refuse_cuda; refuse_cuda()"


def refuse_cuda() -> None:
    """Let CUDA of this process, where torch has none, be refused by an error that says why."""
    sys.meta_path.insert(0, Finder("torch.cuda", _execute_refusing))


def _execute_refusing(execute: Execute, module: ModuleType) -> None:
    execute(module)
    begin = module._lazy_init

    def lazy_init() -> None:
        if module.is_available():
            begin()
        else:
            raise NotModelledError(
                "CUDA in a spawned process: the emulated GPU is in the process that is recorded, and not in those that "
                "it starts. Let that one do the GPU's work; workers of a DataLoader need none"
            )

    module._lazy_init = lazy_init  # type: ignore[attr-defined]
