"""Run a program as Python would, inside a recording: `python -m loaderviz run train.py --epochs 1`.

    recording, status = record_program(Program("train.py", ["--epochs", "1"]), on="a100")

The program sees what it sees under `python train.py`: its arguments in `sys.argv`, its folder in `sys.path[0]`, itself
as `__main__` (so that worker processes find its classes, by fork or spawn). However it ends, by `sys.exit`, an error or
Ctrl-C, what was recorded until then is kept, and the exit status is the program's own.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import os
import runpy
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from loaderviz.errors import LoadervizError
from loaderviz.tracebacks import clean

if TYPE_CHECKING:
    from loaderviz.recording import Recording

FAILED, INTERRUPTED = 1, 130  # exit statuses: an uncaught error, Ctrl-C


class ProgramError(LoadervizError, RuntimeError):
    """There is no such program, or it is none."""


class Program:
    """A script, or with `is_module` a module, and its arguments. Raises `ProgramError` if there is none.

    A script is a file of Python source, or a folder or zip file with a `__main__.py` in it.
    """

    def __init__(self, name: str, arguments: Sequence[str] = (), *, is_module: bool = False) -> None:
        self.name, self.arguments, self.is_module = name, list(arguments), is_module
        self.title = name if is_module else Path(name).name
        if not is_module:
            _check_script(Path(name))

    def run(self) -> int:
        """Run it to its end and return its exit status; an error is printed as Python prints it."""
        try:
            with self._environment():
                if self.is_module:
                    _check_module(self.name)
                    runpy.run_module(self.name, run_name="__main__", alter_sys=True)
                elif _is_source(Path(self.name)):
                    self._run_source(Path(self.name).absolute())
                else:
                    runpy.run_path(self.name, run_name="__main__")
        except SystemExit as stop:
            return _exit_status(stop)
        except KeyboardInterrupt:
            print("loaderviz: stopped", file=sys.stderr)
            return INTERRUPTED
        except ProgramError:
            raise
        except BaseException as error:
            _print_error(error)
            return FAILED
        return 0

    def _run_source(self, path: Path) -> None:
        """Run a file of source as `__main__`. (Of `runpy.run_path`, `sys.argv` and `__file__` have the same path.)"""
        loader = SourceFileLoader("__main__", str(path))
        self._main = main = ModuleType("__main__")
        main.__dict__.update(__file__=str(path), __loader__=loader, __builtins__=builtins)
        before, sys.modules["__main__"] = sys.modules["__main__"], main
        try:
            exec(loader.source_to_code(loader.get_data(str(path)), str(path)), main.__dict__)
        finally:
            sys.modules["__main__"] = before

    @contextlib.contextmanager
    def _environment(self) -> Iterator[None]:
        """Set `sys.argv` and `sys.path` as Python itself does; put them back."""
        argv, path = sys.argv, list(sys.path)
        sys.argv = ["-m" if self.is_module else self.name, *self.arguments]
        if not sys.flags.safe_path:
            script = Path(self.name)
            here = Path.cwd() if self.is_module else script.resolve().parent
            sys.path[:1] = [str(here)] if self.is_module or _is_source(script) else []  # runpy adds an archive
        try:
            yield
        finally:
            sys.argv, sys.path[:] = argv, path


def record_program(
    program: Program, on: str = "auto", host: str = "measured", wait: int = 0, steps: int | None = None
) -> tuple[Recording, int]:
    """Run a program in a recording; return the recording, which is over, and the program's exit status.

    The options are those of `loaderviz.record`; `host` has no meaning in a real run. Raises what `record` raises for an
    option that means nothing, and `ProgramError` for a module that does not exist.
    """
    from loaderviz.emulator.findings import HazardWarning
    from loaderviz.recording import record

    process = os.getpid()
    recording = record(on, host=host, wait=wait, steps=steps)
    recording.__enter__()
    try:
        status = program.run()
        if os.getpid() != process:  # a child of the program's own os.fork() has come here; the parent shows it all
            os._exit(status)
    finally:
        sys.stdout.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HazardWarning)  # the races are printed
            recording.__exit__(None, None, None)
    return recording, status


def _check_script(path: Path) -> None:
    if not path.exists():
        raise ProgramError(f"cannot run {path}: there is no such file. A module is run with `run -m {path.name}`")
    if path.suffix == ".ipynb":
        raise ProgramError(f"cannot run {path}: it is a notebook. In it, `%load_ext loaderviz` and `%%timeline` record")
    if path.is_dir() and not (path / "__main__.py").exists():
        raise ProgramError(f"cannot run {path}: it is a folder without a __main__.py; name a script in it")
    if path.is_file() and _is_source(path):
        start = path.read_bytes()[:4096]
        if b"\0" in start or start.startswith((b"\x1f\x8b", b"\x89PNG")):
            raise ProgramError(f"cannot run {path}: it is no Python source; `view` shows a trace file")


def _is_source(path: Path) -> bool:
    return not path.is_dir() and path.suffix not in (".zip", ".pyz", ".pyc")


def _check_module(name: str) -> None:
    """Raise `ProgramError` unless there is a module of this name that can be run."""
    spec = None
    try:
        if all(part.isidentifier() for part in name.split(".")):
            spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as problem:
        if not f"{name}.".startswith(f"{problem.name}."):
            raise  # a parent package itself lacks something
    if spec is None:
        raise ProgramError(f"cannot run -m {name}: no module of this name is found from {sys.path[0]}")
    if spec.submodule_search_locations is not None and importlib.util.find_spec(f"{name}.__main__") is None:
        raise ProgramError(f"cannot run -m {name}: it is a package without a __main__ module")


def _exit_status(stop: SystemExit) -> int:
    """Return the status that Python would exit with; a text is printed."""
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code
    print(stop.code, file=sys.stderr)
    return FAILED


def _print_error(error: BaseException) -> None:
    """Print an uncaught error as Python does, by the program's own `sys.excepthook` if it has set one."""
    sys.stdout.flush()
    clean(error)
    sys.excepthook(type(error), error, error.__traceback__)
