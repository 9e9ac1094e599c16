"""`%%timeline`: record a notebook's cell, and show its picture and its numbers.

    %%timeline on=t4 color=kind mine
    for x, y in loader:
        train_step(x, y)

The cell runs in the notebook's namespace like any other: its last expression is displayed, its errors are its own.
"""

from __future__ import annotations

import ast
import shlex
import sys
import traceback
from dataclasses import dataclass, field
from typing import Any

from IPython.core.error import UsageError
from IPython.display import display

from loaderviz.errors import LoadervizError, clean
from loaderviz.imports import cured_imports
from loaderviz.recording import Recording, record

RECORD_OPTIONS = ("on", "host", "copies", "hazards", "wait", "steps")  # of record(); the last two are numbers
COLORS = ("batch", "kind")
_KNOWN = f"{', '.join(RECORD_OPTIONS)}, color, as in `%%timeline on=t4 color=kind`, and a name for the timeline"


def register(shell: Any) -> None:
    """Add the magic to a shell, an `InteractiveShell` of IPython; `%load_ext loaderviz` calls it."""

    def timeline(line: str, cell: str) -> None:
        """Record this cell on an emulated or a real GPU; options: on, host, wait, steps, color, and a name."""
        _run(shell, line, cell)

    shell.register_magic_function(timeline, "cell", "timeline")


@dataclass
class Options:
    """What stands behind `%%timeline`: options of `record()`, the colours, and the name to store the timeline under."""

    name: str = ""
    color: str = "batch"
    record: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, line: str) -> Options:
        """Return the options of the line; raise `UsageError`, which IPython shows as one sentence."""
        options = cls()
        try:
            words = shlex.split(line, comments=True)
        except ValueError as problem:
            raise UsageError(f"%%timeline {line}: {problem}") from None
        for word in words:
            key, equals, value = word.partition("=")
            if not equals and not word.isidentifier():
                raise UsageError(f"%%timeline: {word!r} is neither an option nor a name; there are {_KNOWN}")
            if not equals and options.name:
                raise UsageError(f"%%timeline: two names, {options.name!r} and {word!r}; a timeline has one")
            if not equals:
                options.name = word
            elif key == "color":
                if value not in COLORS:
                    raise UsageError(f"%%timeline color={value}: choose color=batch or color=kind")
                options.color = value
            elif key in RECORD_OPTIONS:
                options.record[key] = _number(key, value) if key in ("wait", "steps") else value
            else:
                raise UsageError(f"%%timeline: no option {key!r}; there are {_KNOWN}")
        return options


def _number(key: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise UsageError(f"%%timeline {key}={value}: give a whole number of steps") from None


def _run(shell: Any, line: str, cell: str) -> None:
    options = Options.parse(line)
    try:
        code = _compile(shell, line, cell)
    except SyntaxError as error:  # IPython would show the frames of this module above it
        error.filename = "this cell"
        said = "".join(traceback.format_exception_only(error))
        raise UsageError(f"%%timeline: this is not Python, so nothing was run.\n{said.rstrip()}") from None
    try:
        recording = record(**options.record).__enter__()
        recording.warn = False  # the races are shown below
    except (LoadervizError, ValueError) as problem:  # an option that means nothing
        raise UsageError(f"%%timeline: {problem}") from None
    failed = True
    try:
        try:
            with cured_imports():
                for part in code:
                    exec(part, shell.user_global_ns, shell.user_ns)
        finally:
            recording.__exit__(*sys.exc_info())
        failed = False
    except BaseException as error:
        clean(error)
        lines = shell.InteractiveTB.structured_traceback(type(error), error, error.__traceback__, tb_offset=0)
        error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]  # IPython asks for it
        raise
    finally:
        if options.name:
            shell.user_ns[options.name] = recording.timeline
        if len(recording.timeline):
            _show(recording, options.color)
        elif not failed:
            print("%%timeline: nothing was recorded; the cell put no work on 'cuda'")


def _compile(shell: Any, line: str, cell: str) -> list[Any]:
    """Return the cell as code objects: all of it, or all but a last expression, and that."""
    source = "\n" + shell.transform_cell(cell)  # the magic's own line is line 1
    number = len(shell.user_ns.get("In", " ")) - 1  # of this cell, in every version of IPython
    name = shell.compile.cache(source, number, raw_code=f"%%timeline {line}\n{cell}")
    tree = shell.transform_ast(shell.compile.ast_parse(source, name))
    quiet = cell.rstrip().endswith(";")
    last = [tree.body.pop()] if tree.body and isinstance(tree.body[-1], ast.Expr) and not quiet else []
    codes = [shell.compile(tree, name, "exec")]
    return codes + [shell.compile(ast.Interactive(last), name, "single") for _ in last]  # "single" displays its value


def _show(recording: Recording, color: str) -> None:
    from loaderviz import metrics

    timeline = recording.timeline
    display(timeline.view(color=color))
    display(metrics.summarize(timeline))
    if timeline.context.origin == "emulated" and recording.hazards:  # a real run does not show its races
        display(recording.hazards)
