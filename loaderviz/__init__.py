"""loaderviz: does my data reach the GPU while the GPU is computing, and if not, why?

with loaderviz.record(on="a100") as recording:   # ordinary PyTorch code for CUDA, on an emulated GPU
    train(...)
recording.timeline                               # the picture; loaderviz.summarize() gives the numbers
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loaderviz.advice import advise
    from loaderviz.draw import compare
    from loaderviz.emulator.findings import HazardWarning, RaceError
    from loaderviz.errors import LoadervizError
    from loaderviz.explore import explore, step_through
    from loaderviz.metrics import summarize
    from loaderviz.prediction import what_if
    from loaderviz.reading import read
    from loaderviz.recording import record
    from loaderviz.timeline import Timeline

__version__ = "0.1.0"
__all__ = [
    "HazardWarning", "LoadervizError", "RaceError", "Timeline", "advise", "compare", "explore", "read", "record",
    "step_through", "summarize", "what_if",
]  # fmt: skip

_HOME = {
    "HazardWarning": "loaderviz.emulator.findings",
    "LoadervizError": "loaderviz.errors",
    "RaceError": "loaderviz.emulator.findings",
    "Timeline": "loaderviz.timeline",
    "advise": "loaderviz.advice",
    "compare": "loaderviz.draw",
    "explore": "loaderviz.explore",
    "read": "loaderviz.reading",
    "record": "loaderviz.recording",
    "step_through": "loaderviz.explore",
    "summarize": "loaderviz.metrics",
    "what_if": "loaderviz.prediction",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `import loaderviz` itself imports no torch, plotly or ipywidgets."""
    if name not in _HOME:
        raise AttributeError(f"module 'loaderviz' has no attribute {name!r}; it has {', '.join(__all__)}")
    home = importlib.import_module(_HOME[name])
    return home if name == "explore" else getattr(home, name)  # a package that is called as its function


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext loaderviz`: give the notebook `%%timeline`."""
    from loaderviz.magic import register

    register(shell)


def unload_ipython_extension(shell: Any) -> None:
    """`%unload_ext loaderviz`: take it away."""
    from loaderviz.magic import unregister

    unregister(shell)
