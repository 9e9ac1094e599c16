"""Import torchvision, also where its compiled library does not fit the torch that is installed.

The package index's torchvision for Linux is built for CUDA. Beside a CPU build of torch its compiled library cannot be
loaded. torchvision allows for that, but in one place (`torchvision._meta_registrations`) it describes two operators
of that library all the same, and the import ends with ``operator torchvision::nms does not exist``. Data sets and
transforms need no compiled operator, so it is enough that the two names exist.
"""

from __future__ import annotations

import importlib
import sys
import threading
from types import ModuleType

from loaderviz.errors import LoadervizError

MISSING_SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
"""The operators that torchvision 0.28.0 describes without asking whether its library was loaded."""

_lock = threading.Lock()


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
    with _lock:
        try:
            return importlib.import_module("torchvision")
        except ModuleNotFoundError as error:
            if error.name not in ("torch", "torchvision"):
                raise
            raise TorchvisionMissingError(
                f"{error.name} is not installed in {sys.prefix}. "
                "Install it with: python -m pip install -r requirements.txt",
                name=error.name,
            ) from error
        except RuntimeError as error:
            if "operator torchvision::" not in str(error) or _compiled_library_loaded():
                raise
        _forget_torchvision()
        _define_missing_schemas()
        return importlib.import_module("torchvision")


def _compiled_library_loaded() -> bool:
    """What torchvision itself found when it tried; True (hands off) if it did not get so far as to try."""
    extension = sys.modules.get("torchvision.extension")
    return extension is None or bool(extension._has_ops())


def _forget_torchvision() -> None:
    """Drop what the failed import left behind, so that the next one starts afresh."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]


def _define_missing_schemas() -> None:
    """Define each schema that is not there yet (a second definition of one would be an error)."""
    import torch

    for name, signature in MISSING_SCHEMAS.items():
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", signature)
