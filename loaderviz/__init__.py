"""loaderviz: does my data reach the GPU while the GPU is computing, and if not, why?

with loaderviz.record(on="a100") as recording:   # ordinary PyTorch code for CUDA, on an emulated GPU
    train(...)
recording.timeline                               # the picture; loaderviz.summarize() gives the numbers
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loaderviz.draw import compare
    from loaderviz.errors import LoadervizError
    from loaderviz.explore import explore, step_through
    from loaderviz.metrics import summarize
    from loaderviz.reading import read
    from loaderviz.recording import record
    from loaderviz.timeline import Timeline

__version__ = "0.1.0"
__all__ = ["LoadervizError", "Timeline", "compare", "explore", "read", "record", "step_through", "summarize"]

_HOME = {
    "LoadervizError": "loaderviz.errors",
    "Timeline": "loaderviz.timeline",
    "compare": "loaderviz.draw",
    "explore": "loaderviz.explore",
    "read": "loaderviz.reading",
    "record": "loaderviz.recording",
    "step_through": "loaderviz.explore",
    "summarize": "loaderviz.metrics",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `import loaderviz` itself imports no torch, plotly or ipywidgets."""
    if name not in _HOME:
        raise AttributeError(f"module 'loaderviz' has no attribute {name!r}; it has {', '.join(__all__)}")
    home = importlib.import_module(_HOME[name])
    return home if name == "explore" else getattr(home, name)  # a package that is called as its function


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
