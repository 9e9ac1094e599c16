"""Cures for what a program imports, here and in the processes it starts: torchvision, and CUDA where there is none.

The package index's torchvision for Linux is built for CUDA. Beside a CPU build of torch its compiled library cannot be
loaded. torchvision allows for that, but in one place (`torchvision._meta_registrations`) it describes two operators
of that library all the same, and the import ends with ``operator torchvision::nms does not exist``. Data sets and
transforms need no compiled operator, so it is enough that the two names exist.

Other names of torch and of multiprocessing stand for something else only in a block, or until a stack closes:

    with held(fetcher, "collate_fn", timed):
        fetch()
    stack.enter_context(held(Loader, "_reset", around(Loader._reset, note)))
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import inspect
import multiprocessing.spawn
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from multiprocessing import reduction
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from loaderviz.errors import SENDING, LoadervizError, NotModelledError, require
from loaderviz.stopping import signals_held

Execute = Callable[[ModuleType], None]
Function = Callable[..., Any]


# Names of a module or an object that stand for something else, for a while


@contextlib.contextmanager
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

    @functools.wraps(original)
    def stand_in(*args: Any, **options: Any) -> Any:
        return function(original, *args, **options)

    return stand_in


def bound_arguments(function: Function, /, *args: Any, **options: Any) -> inspect.BoundArguments:
    """Return what a function of torch is called with, by the names of its parameters; `TypeError` for a wrong call."""
    return inspect.signature(function).bind(*args, **options)


# Modules as they are executed, and what a spawned process runs first


class Finder(importlib.abc.MetaPathFinder):
    """Finds modules as others do; `execute` gets the usual way to execute one, and it. Equal ones are one."""

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


def preparing(line: str, prepared: Callable[[str], dict[str, Any]]) -> Any:
    """Return the same `get_preparation_data`, but that each process that is spawned runs a line of Python first.

    The line may import loaderviz.
    """
    return lambda name: {f"loaderviz: {line}": _First(line), **prepared(name)}  # a key that multiprocessing passes over


class _First:
    """To read it is to run its line; it is the first that a new process reads."""

    def __init__(self, line: str) -> None:
        self._line = line

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return exec, (f"import sys; sys.path.append({str(Path(__file__).parents[1])!r}); {self._line}",)


# torchvision


MISSING_SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
"""The operators that torchvision 0.28.0 describes without asking whether its library was loaded."""


def import_torchvision() -> ModuleType:
    """Import torchvision and return it; leave a healthy torchvision exactly as it is.

    The import is tried as it stands. Only if it fails for want of an operator, and torchvision itself says that its
    compiled library was not loaded, the missing schemas (`MISSING_SCHEMAS`) are defined and the import is repeated.
    They get no kernel: `torchvision.ops.nms` still says that the compiled operators are not there.

    Raises `MissingPackageError` if torchvision or torch is not installed.

    >>> datasets = import_torchvision().datasets
    """
    require("MNIST", "torch", "torchvision")
    with cured_imports():
        return importlib.import_module("torchvision")


@contextlib.contextmanager
def cured_imports() -> Iterator[None]:
    """Let any `import torchvision` inside the block be as with `import_torchvision`, in spawned processes, too.

    with cured_imports():
        runpy.run_path("train.py")
    """
    finder = Finder("torchvision", _execute_cured)
    sys.meta_path.insert(0, finder)
    try:
        with _cured_processes():
            yield
    finally:
        sys.meta_path.remove(finder)


@contextlib.contextmanager
def _cured_processes() -> Iterator[None]:
    spawn, line = multiprocessing.spawn, f"from {__name__} import cure_imports; cure_imports()"
    with held(spawn, "get_preparation_data", preparing(line, spawn.get_preparation_data)):
        yield


def cure_imports() -> None:
    """The same from now on, as a spawned process needs it."""
    sys.meta_path.insert(0, Finder("torchvision", _execute_cured))


def _execute_cured(execute: Execute, module: ModuleType) -> None:
    try:
        execute(module)
    except RuntimeError as error:
        extension = sys.modules.get("torchvision.extension")
        loaded = extension is None or extension._has_ops()  # what torchvision found; it may not have got so far
        if "operator torchvision::" not in str(error) or loaded:
            raise
    else:
        return
    for name in [name for name in sys.modules if name.startswith("torchvision.")]:
        del sys.modules[name]  # what the failed import left behind
    import torch

    for name, signature in MISSING_SCHEMAS.items():
        if not hasattr(torch.ops.torchvision, name):  # a second definition of one would be an error
            torch.library.define(f"torchvision::{name}", signature)
    execute(module)


# CUDA in a spawned process


REFUSING = f"from {__name__} import refuse_cuda; refuse_cuda()"


def refuse_cuda() -> None:
    """Let CUDA of this process, where torch has none, be refused by an error that says why."""
    if cuda := sys.modules.get("torch.cuda"):  # of a fork server
        _execute_refusing(lambda _: None, cuda)
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


# What runs in the processes that a program starts: a recording has the program's own one alone


ELSEWHERE = "{} runs in a process of its own, which is not recorded"
SPAWNED = "torch.multiprocessing.spawn"  # where the ranks of spawn() and start_processes() begin
RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE")  # what a launcher tells each rank
LAUNCHER = re.compile(
    r"torchrun|accelerate|deepspeed|horovodrun|mpirun|mpiexec|"
    r"torch\.distributed\.(run|launch)|accelerate\.commands\.launch|deepspeed\.launcher\.\w+"
)
NO_PROGRAM = "torch.utils.data", "torchdata", "loaderviz.", "multiprocessing.managers"  # whose processes need no word


class WorkersError(LoadervizError, OSError, RuntimeError):
    """A DataLoader's workers cannot be started here."""


class _ToWorker(reduction.ForkingPickler):
    """Pickles what a worker gets that is started anew, where it cannot import what a notebook's cells define."""

    def reducer_override(self, value: Any) -> Any:
        """Raise `WorkersError` for a class or function of a cell; all else is pickled as ever."""
        if isinstance(value, (type, FunctionType)) and value.__module__ == "__main__":
            raise WorkersError(
                f"{value.__qualname__}: a cell of this notebook, or a prompt, defines it, and the DataLoader's "
                "workers, which are started anew, cannot import it from there. Take num_workers=0, or write it to a "
                "file, with %%writefile mine.py as the first line of its cell, and import it from mine"
            )
        return NotImplemented


@contextlib.contextmanager
def starting(workers: int, module: str) -> Iterator[None]:
    """Let a DataLoader's workers start, which all import a module of ours, and torchvision as this process did.

    Raise `WorkersError` where the system refuses what a DataLoader's workers need: processes, threads, semaphores.

    So it is where they are spawned, or come from a fork server, and would need what a notebook's cell defines. An error
    of the program's own, such as in its sampler or in what it has pickled, passes. Torch leaves alone the
    workers that had started by then. They are ended here: each holds what it inherited open, such as pipes.
    """
    before = set(multiprocessing.active_children())
    if sys.platform == "linux":  # a fork server imports once what each worker does, if it was told nothing else
        from multiprocessing.forkserver import _forkserver

        if _forkserver._preload_modules == ["__main__"]:  # type: ignore[attr-defined]
            multiprocessing.set_forkserver_preload(["__main__", module])
    told = dict[str, Any]()  # by which workers that are started anew import what `__main__` defines
    with contextlib.suppress(AttributeError):  # a module that somebody made by hand has no `__spec__`
        told = multiprocessing.spawn.get_preparation_data("")
    imports_main = {"init_main_from_name", "init_main_from_path"} & told.keys()
    pickler = reduction.ForkingPickler if imports_main else _ToWorker
    try:
        with held(reduction, "ForkingPickler", pickler), signals_held(), _cured_processes():
            yield
    except WorkersError:
        raise
    except (OSError, RuntimeError, ImportError) as error:
        places = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
        refused = any(place.startswith(("multiprocessing.", "threading")) for place in places)
        for process in set(multiprocessing.active_children()) - before if refused else ():
            process.terminate()
            process.join()
        if not refused or "multiprocessing.reduction" in places:
            raise
        raise WorkersError(
            f"DataLoader(num_workers={workers}): this system does not let its workers start ({type(error).__name__}: "
            f"{error}). With num_workers=0 the batches are loaded in the process itself"
        ) from error


def answering(queue: Any) -> None:
    """Let a worker's queue send what keeps a batch from being sent: torch would drop both and wait for ever."""
    from torch._utils import ExceptionWrapper  # in a worker it is there

    def instead(problem: Exception, item: Any) -> None:
        index, unsent = item
        if not isinstance(unsent, ExceptionWrapper):
            found = type(problem), problem, problem.__traceback__
            unsent = ExceptionWrapper(found, SENDING)
        elif unsent.exc_type is not RuntimeError:
            unsent.exc_type = RuntimeError  # one of the program's own may be no class that can be sent
        else:
            return
        queue.put((index, unsent))

    queue._on_queue_feeder_error = instead


def function_of(process: Any) -> str:
    """Return the name of what a process of multiprocessing runs; "" for a DataLoader's worker, which is recorded."""
    target = getattr(process, "_target", None) or type(process)
    target = getattr(target, "func", target)
    if target.__module__ == SPAWNED:
        target = process._args[0]
    name = getattr(target, "__qualname__", type(target).__qualname__)
    return "" if target.__module__.startswith(NO_PROGRAM) else f"{target.__module__}.{name}".removeprefix("__main__.")


def program_of(command: Any) -> str:
    """Return the Python program that a command runs, as a script, a module or "-c", or a launcher; "" for another."""
    try:
        words = shlex.split(command) if isinstance(command, str) else [os.fsdecode(word) for word in command]
    except (TypeError, ValueError):  # no command; Popen says so
        words = []
    program, rest = (words[0], words[1:]) if words else ("", [])
    python = re.fullmatch(r"python[\d.]*(w?\.exe)?", Path(program).name) or program == sys.executable
    if python:
        while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
            rest = rest[2 if rest[0] in ("-X", "-W") else 1 :]
        program = rest[1] if rest[:1] == ["-m"] and rest[1:] else rest[0] if rest else ""
    return program if python or LAUNCHER.fullmatch(program := Path(program).name) else ""


def rank_of(command: Any, env: Mapping[Any, Any] | None) -> str:
    """Return in words that a command is a rank of a distributed training, or launches such ranks; "" for another."""
    program = program_of(command)
    if LAUNCHER.fullmatch(Path(program).name):
        return f"{program} launches the ranks of a distributed training"
    told = env is not None and any(key in env and env[key] != os.environ.get(key) for key in RANK)
    return f"{program or command} is launched as a rank of a distributed training" if told else ""


def fork_workers() -> None:
    """Let our own loops fork their DataLoader workers on Linux, as before Python 3.14, unless the program has chosen.

    Its default, "forkserver", imports torch in each worker of a notebook: 2.3 s each, on two cores (Python 3.14.8).
    """
    if sys.platform == "linux" and sys.version_info >= (3, 14):
        if multiprocessing.get_start_method(allow_none=True) is None:
            multiprocessing.set_start_method("fork")
