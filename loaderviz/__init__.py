"""loaderviz: does my data reach the GPU while the GPU is computing, and if not, why?

with loaderviz.record(on="a100") as recording:   # ordinary PyTorch code for CUDA, on an emulated GPU
    train(...)
recording.timeline                               # the picture; loaderviz.summarize() gives the numbers
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from loaderviz.version import __version__ as __version__

if TYPE_CHECKING:
    from loaderviz.analysis.advice import advise
    from loaderviz.analysis.fleet import ranks
    from loaderviz.analysis.what_if import what_if
    from loaderviz.emulator.hazards import HazardWarning, RaceError
    from loaderviz.emulator.host import costs
    from loaderviz.errors import LoadervizError
    from loaderviz.metrics import summarize
    from loaderviz.recording import record
    from loaderviz.rules import rule
    from loaderviz.timeline import Timeline
    from loaderviz.traces import read
    from loaderviz.view import compare
    from loaderviz.widgets import explore, step_through


__all__ = [
    "HazardWarning", "LoadervizError", "RaceError", "Timeline", "advise", "calibrate", "compare", "costs", "explore",
    "ranks", "read", "record", "rule", "step_through", "summarize", "validate", "what_if",
]  # fmt: skip

_HOME = {
    "HazardWarning": "loaderviz.emulator.hazards",
    "LoadervizError": "loaderviz.errors",
    "RaceError": "loaderviz.emulator.hazards",
    "Timeline": "loaderviz.timeline",
    "advise": "loaderviz.analysis.advice",
    "calibrate": "loaderviz.analysis.calibration",
    "compare": "loaderviz.view",
    "costs": "loaderviz.emulator.host",
    "explore": "loaderviz.widgets",
    "ranks": "loaderviz.analysis.fleet",
    "read": "loaderviz.traces",
    "record": "loaderviz.recording",
    "rule": "loaderviz.rules",
    "step_through": "loaderviz.widgets",
    "summarize": "loaderviz.metrics",
    "validate": "loaderviz.analysis.validate",
    "what_if": "loaderviz.analysis.what_if",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `import loaderviz` itself imports no torch, plotly or ipywidgets."""
    if name not in _HOME:
        raise AttributeError(f"module 'loaderviz' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext loaderviz`: give the notebook `%%timeline`."""
    from loaderviz.magic import register

    register(shell)
