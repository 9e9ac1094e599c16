"""The one family of exceptions: each message says what was wrong, with the value, and what to do next.

And `clean` gives the error of a recorded program the traceback that the program alone would have had.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from traceback import clear_frames
from types import TracebackType
from typing import Any


class LoadervizError(Exception):
    """Base class of everything that loaderviz raises on purpose."""


class NotModelledError(LoadervizError, NotImplementedError):
    """The emulated device does not model this call; the message names the call and a way out."""


class NestedRecordingError(LoadervizError, RuntimeError):
    """A recording was begun inside another one, or a second time."""


_PACKAGE = Path(__file__).parent
_HERE = (_PACKAGE.parent / "pyproject.toml").is_file()  # the project, which a wheel does not bring
INSTALL = "python -m pip install " + ('".[notebook]" in the folder of loaderviz' if _HERE else '"loaderviz[notebook]"')


class MissingPackageError(LoadervizError, ImportError):
    """A package is not installed that comes with an extra of loaderviz."""


class NoFileError(LoadervizError, FileNotFoundError):
    """The file to be read does not exist."""


class NoFolderError(LoadervizError, FileNotFoundError):
    """The folder of a file to be written does not exist, or a folder was named as the file."""


class NotWritableError(LoadervizError, OSError):
    """A file cannot be written: no right to, no space, a name that the system does not take."""


class NotSentError(LoadervizError, RuntimeError):
    """A DataLoader's worker has a batch, and this system has no way to send it: no shared memory, no socket."""


def require(what: str, *packages: str) -> None:
    """Raise `MissingPackageError` if one of these packages is not installed; `what` needs them.

    >>> require("recording", "torch")
    """
    if missing := [name for name in packages if find_spec(name) is None]:
        raise MissingPackageError(
            f"{what} needs {' and '.join(missing)}, not installed here; "
            f"the extra 'notebook' has all that is needed: {INSTALL}"
        )


# Tracebacks without this package's frames


_THE_PROGRAMS_TOOLS = str(_PACKAGE / "loaders")  # used by the program, unlike the rest of the package
_RUNPY = ("<frozen runpy>", "runpy.py")
_DISPATCH = str(Path("torch", "_ops.py"))  # through it the emulated device calls torch


def clean(error: BaseException) -> None:
    """Take our frames out of the traceback of an error, and of the errors that caused it, in place.

    An error that this package raised by mistake keeps the frames that lead to it: they belong into a report.
    """
    chain: list[BaseException | None] = [error]
    seen: set[int] = set()
    while chain:
        each = chain.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        trace = None
        for link in reversed(_kept(each)):
            trace = TracebackType(trace, link.tb_frame, link.tb_lasti, link.tb_lineno)
        each.__traceback__ = trace
        chain += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]


def _kept(error: BaseException) -> list[TracebackType]:
    links, trace = [], error.__traceback__
    while trace is not None:
        links.append(trace)
        trace = trace.tb_next
    begins = next((index for index, link in enumerate(links) if not _is_ours(link)), len(links))
    links = links[begins:]
    if links and _is_ours(links[-1]) and not isinstance(error, LoadervizError):
        return links
    kept, dropped = [], False
    for link in links:
        dropped = _is_ours(link) or (dropped and link.tb_frame.f_code.co_filename.endswith(_DISPATCH))
        kept += [] if dropped else [link]
    return kept


def _is_ours(link: TracebackType) -> bool:
    file = link.tb_frame.f_code.co_filename
    if Path(file).name in _RUNPY:
        return True
    return file.startswith(str(_PACKAGE)) and not file.startswith(_THE_PROGRAMS_TOOLS)


def reraise(original: Callable[[Any], object], sent: Any) -> None:
    """Raise the error that a DataLoader's worker sent, but let it not hold itself, and so the loader's iterator.

    The frame of torch's that raises it does. So the workers would live on until a garbage collection, and that cannot
    let them go: it ends the threads of their queues first, and then waits 5 s for each of them.

    Raises `NotSentError` where the batch did not come because this system has no way for it.
    """
    try:
        original(sent)
    except BaseException as error:
        clear_frames(error.__traceback__.tb_next if error.__traceback__ else None)
        if not (cure := _cure(sent)):
            raise
        raise NotSentError(f"a DataLoader's worker could not send its batch: {cure}") from error


def _cure(sent: Any) -> str:
    """Return what to do where a batch had no way; torch's collate function takes shared memory before the queue."""
    for sign, cure in _NO_WAY.items():
        taken = sent.exc_type is RuntimeError and sign == _FULL
        if sign in sent.exc_msg and (sent.where == SENDING or taken):
            return cure
    return ""


SENDING = "in a DataLoader's worker, which was sending its batch"  # where an error comes from, as torch says it
_FULL = "unable to allocate shared memory(shm) for file"
# What the system says, and what to do.
_NO_WAY = {
    _FULL: "/dev/shm, where it would lie, is full. Give the container more of it "
    "(--shm-size=1g), or take smaller batches, fewer workers or num_workers=0",
    "AF_UNIX path too long": "the path of the temporary folder is too long for a socket in it. Name a shorter one in "
    "the variable TMPDIR before Python starts",
}
