"""Import torchvision, also where its compiled library does not fit the torch that is installed.

The package index's torchvision for Linux is built for CUDA. Beside a CPU build of torch its compiled library cannot be
loaded. torchvision allows for that, but in one place (`torchvision._meta_registrations`) it describes two operators
of that library all the same, and the import ends with ``operator torchvision::nms does not exist``. Data sets and
transforms need no compiled operator, so it is enough that the two names exist.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

from loaderviz.errors import LoadervizError
from loaderviz.spawned import Execute, Finder, running_first

MISSING_SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
"""The operators that torchvision 0.28.0 describes without asking whether its library was loaded."""


class TorchvisionMissingError(LoadervizError, ImportError):
    """torchvision (or the torch below it) is not installed; the message says how to install it."""


def import_torchvision() -> ModuleType:
    """Import torchvision and return it; leave a healthy torchvision exactly as it is.

    The import is tried as it stands. Only if it fails for want of an operator, and torchvision itself says that its
    compiled library was not loaded, the missing schemas (`MISSING_SCHEMAS`) are defined and the import is repeated.
    They get no kernel: `torchvision.ops.nms` still says that the compiled operators are not there. Calling this
    again returns the module.

    Raises:
        TorchvisionMissingError: torchvision or torch is not installed.

    Example:
        >>> datasets = import_torchvision().datasets
    """
    try:
        with cured_imports():
            return importlib.import_module("torchvision")
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "torchvision"):
            raise
        raise TorchvisionMissingError(
            f"{error.name} is not installed in {sys.prefix}. "
            "Install it with: python -m pip install '.[notebook]' in the folder of loaderviz",
            name=error.name,
        ) from error


@contextlib.contextmanager
def cured_imports() -> Iterator[None]:
    """Let any `import torchvision` inside the block be as with `import_torchvision`, in spawned processes, too.

    with cured_imports():
        runpy.run_path("train.py")
    """
    finder = Finder("torchvision", _execute)
    sys.meta_path.insert(0, finder)
    try:
        with running_first(f"from {__name__} import cure_imports; cure_imports()"):
            yield
    finally:
        sys.meta_path.remove(finder)


def cure_imports() -> None:
    """The same from now on, as a spawned process needs it."""
    sys.meta_path.insert(0, Finder("torchvision", _execute))


def _execute(execute: Execute, module: ModuleType) -> None:
    try:
        execute(module)
    except RuntimeError as error:
        if "operator torchvision::" not in str(error) or _compiled_library_loaded():
            raise
    else:
        return
    for name in [name for name in sys.modules if name.startswith("torchvision.")]:
        del sys.modules[name]  # what the failed import left behind
    _define_missing_schemas()
    execute(module)


def _compiled_library_loaded() -> bool:
    """What torchvision itself found when it tried; True (hands off) if it did not get so far as to try."""
    extension = sys.modules.get("torchvision.extension")
    return extension is None or bool(extension._has_ops())


def _define_missing_schemas() -> None:
    """Define each schema that is not there yet (a second definition of one would be an error)."""
    import torch

    for name, signature in MISSING_SCHEMAS.items():
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", signature)
